#include "engine/conversation.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/prompt.h"

void moe_conversation_init(struct moe_conversation *c, struct moe_session *session,
                           const struct moe_chat_format *format)
{
    *c = (struct moe_conversation){.session = session, .format = format, .today = moe_chat_today()};
}

/* ---- Turns ---- */

static void drop_turns(struct moe_conversation *c, int keep)
{
    while (c->n_turns > keep)
        free((char *)c->turns[--c->n_turns].text);
}

static int add_turn(struct moe_conversation *c, enum moe_chat_role role, const char *text,
                    uint64_t n, struct moe_err *err)
{
    if (c->n_turns == c->room) {
        int room = c->room ? 2 * c->room : 16;
        struct moe_chat_turn *turns = realloc(c->turns, (size_t)room * sizeof *turns);
        if (!turns)
            return moe_fail(err, MOE_ERR_MEMORY, "out of memory: %d turns", room);
        c->turns = turns;
        c->room = room;
    }
    char *copy = moe_strndup(n ? text : "", n, err);
    if (!copy)
        return MOE_ERR_MEMORY;
    c->turns[c->n_turns++] = (struct moe_chat_turn){role, copy};
    return MOE_OK;
}

static int n_system_turns(const struct moe_conversation *c)
{
    return c->n_turns && c->turns[0].role == MOE_CHAT_SYSTEM;
}

static void forget_context(struct moe_conversation *c)
{
    c->history.n = 0;
    c->n_done = 0;
    c->in_step = false;
}

void moe_conversation_reset(struct moe_conversation *c)
{
    drop_turns(c, n_system_turns(c));
    forget_context(c);
}

int moe_conversation_system(struct moe_conversation *c, const char *text, struct moe_err *err)
{
    if (!c->format)
        return moe_fail(err, MOE_ERR_USAGE,
                        "there is no chat template, so no place for a system text: the model "
                        "continues plain text");
    drop_turns(c, 0);
    forget_context(c);
    return text ? add_turn(c, MOE_CHAT_SYSTEM, text, strlen(text), err) : MOE_OK;
}

void moe_conversation_release(struct moe_conversation *c)
{
    drop_turns(c, 0);
    free(c->turns);
    moe_ids_release(&c->history);
    moe_ids_release(&c->source);
    *c = (struct moe_conversation){0};
}

/* ---- From turns to tokens ---- */

static int render(const struct moe_conversation *c, int n_turns, struct moe_buf *out,
                  struct moe_buf *words, struct moe_err *err)
{
    return moe_prompt_render(c->session->model, c->format, c->turns, n_turns, c->today, out, words,
                             err);
}

/* How much of the rendered conversation is in the context already, in bytes: what was rendered for
 * the last answer, and the answer. 0 when the new rendering does not begin with these (a template
 * may trim an answer). */
static uint64_t bytes_in_context(const struct moe_conversation *c, const struct moe_buf *all,
                                 struct moe_err *err)
{
    if (!c->in_step || c->n_turns < 3)
        return 0;
    struct moe_buf before = {0};
    const char *answer = c->turns[c->n_turns - 2].text;
    uint64_t n = 0;
    if (render(c, c->n_turns - 2, &before, NULL, err) == MOE_OK) {
        moe_buf_text(&before, answer);
        if (!before.failed && before.size <= all->size &&
            memcmp(before.data, all->data, before.size) == 0)
            n = before.size;
    }
    moe_buf_release(&before);
    return n;
}

/* Replaces the context by `ids`; what both begin with need not be computed again. */
static void adopt(struct moe_conversation *c, struct moe_ids *ids)
{
    uint64_t same = 0;
    if (c->session->model->config.prefix_lm) /* what sees all of another prompt is another */
        c->n_done = 0;
    while (same < c->n_done && same < ids->n && ids->ids[same] == c->history.ids[same])
        same++;
    /* One token at least must be computed: its logits are the next one's. */
    c->n_done = same == ids->n && same ? same - 1 : same;
    moe_ids_release(&c->history);
    c->history = *ids;
    *ids = (struct moe_ids){0};
}

/* Brings the context to where the answer to the last turn begins. */
static int prepare_chat(struct moe_conversation *c, struct moe_err *err)
{
    struct moe_buf all = {0}, words = {0};
    struct moe_ids ids = {0};
    int status = render(c, c->n_turns, &all, &words, err);
    if (status == MOE_OK) {
        uint64_t known = bytes_in_context(c, &all, err);
        status = moe_prompt_encode(c->session->model, &all, &words, known,
                                   known ? &c->history : &ids, err);
        if (status == MOE_OK && !known)
            adopt(c, &ids);
    }
    moe_ids_release(&ids);
    moe_buf_release(&all);
    moe_buf_release(&words);
    return status;
}

static int prepare_plain(struct moe_conversation *c, const char *text, struct moe_err *err)
{
    struct moe_ids ids = {0};
    int status = moe_prompt_prefixed(c->session->model, c->prefix, text, strlen(text), &ids, err);
    if (status == MOE_OK)
        adopt(c, &ids);
    moe_ids_release(&ids);
    return status;
}

/* The text is the encoder's; the decoder's begins anew. */
static int prepare_source(struct moe_conversation *c, const char *text, struct moe_err *err)
{
    const struct moe_model *m = c->session->model;
    forget_context(c);
    c->source.n = 0;
    int status = moe_prompt_source(m, text, strlen(text), &c->source, err);
    return status == MOE_OK ? moe_ids_push(&c->history, m->config.decoder_start, err) : status;
}

/* ---- Asking ---- */

/* Passes the answer on and keeps a copy of it. */
struct listener {
    const struct moe_generate_options *options;
    struct moe_buf answer;
};

static int listen(void *ctx, const char *bytes, uint64_t n)
{
    struct listener *l = ctx;
    moe_buf_append(&l->answer, bytes, n);
    return l->options->text ? l->options->text(l->options->ctx, bytes, n) : MOE_OK;
}

static int listen_token(void *ctx, const struct moe_token_said *said)
{
    const struct listener *l = ctx;
    return l->options->token(l->options->ctx, said);
}

static int answer(struct moe_conversation *c, struct moe_sampler *sampler,
                  const struct moe_generate_options *options, struct listener *l,
                  enum moe_stop_reason *why, struct moe_err *err)
{
    const char **stops = moe_prompt_stops(options->stop_texts, c->format, err);
    if (!stops)
        return MOE_ERR_MEMORY;
    struct moe_generate_options o = *options;
    l->options = options;
    o.stop_texts = stops;
    o.text = listen;
    o.token = options->token ? listen_token : NULL;
    o.ctx = l;
    o.source = c->source.n ? c->source.ids : NULL;
    o.n_source = c->source.n;
    int status = moe_generate(c->session, sampler, &c->history, &c->n_done, &o, why, err);
    if (status == MOE_OK && l->answer.failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: the answer's text");
    c->source.n = 0;
    free(stops);
    return status;
}

int moe_conversation_ask(struct moe_conversation *c, const char *text, struct moe_sampler *sampler,
                         const struct moe_generate_options *options, enum moe_stop_reason *why,
                         struct moe_err *err)
{
    struct listener l = {0};
    int n_before = c->n_turns, status = MOE_OK;
    if (c->session->model->config.n_encoder) {
        status = prepare_source(c, text, err);
    } else if (c->format) {
        status = add_turn(c, MOE_CHAT_USER, text, strlen(text), err);
        if (status == MOE_OK)
            status = prepare_chat(c, err);
    } else {
        status = prepare_plain(c, text, err);
    }
    if (status == MOE_OK)
        status = answer(c, sampler, options, &l, why, err);
    if (status == MOE_OK && c->format)
        status = add_turn(c, MOE_CHAT_ASSISTANT, (const char *)l.answer.data, l.answer.size, err);
    /* A stop text is in the context, but not in the answer; an interrupted prompt is not there. */
    c->in_step = status == MOE_OK && *why != MOE_STOP_TEXT;
    if (status != MOE_OK) {
        drop_turns(c, n_before);
        c->history.n = c->n_done;
    }
    moe_buf_release(&l.answer);
    return status;
}

int moe_conversation_continue(struct moe_conversation *c, struct moe_sampler *sampler,
                              const struct moe_generate_options *options, enum moe_stop_reason *why,
                              struct moe_err *err)
{
    if (c->history.n == 0)
        return moe_fail(err, MOE_ERR_USAGE, "there is nothing to continue yet");
    if (c->n_done == c->history.n)
        c->n_done--; /* its logits are wanted again */
    struct listener l = {0};
    int last = c->n_turns - 1;
    /* The longer answer takes the place of the old one. */
    if (c->format && last >= 0 && c->turns[last].role == MOE_CHAT_ASSISTANT)
        moe_buf_text(&l.answer, c->turns[last].text);
    else
        last = -1;
    int status = answer(c, sampler, options, &l, why, err);
    if (status == MOE_OK && last >= 0) {
        drop_turns(c, last);
        status = add_turn(c, MOE_CHAT_ASSISTANT, (const char *)l.answer.data, l.answer.size, err);
    }
    c->in_step = c->in_step && status == MOE_OK && *why != MOE_STOP_TEXT;
    moe_buf_release(&l.answer);
    return status;
}
