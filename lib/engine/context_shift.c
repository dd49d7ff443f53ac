#include "engine/context_shift.h"

#include <jansson.h>
#include <string.h>

#include "chat/chat.h"

/* ---- Turns ---- */

static bool is_from(const struct moe_conversation *c, uint64_t i, const char *role)
{
    return moe_chat_has_role(json_array_get(c->messages, i), role);
}

/* Drops the oldest question with all up to the next; false: there is but one. */
static bool drop_turn(struct moe_conversation *c)
{
    uint64_t first = is_from(c, 0, "system"), next = first + 1;
    while (next < moe_conversation_n(c) && !is_from(c, next, "user"))
        next++;
    if (next >= moe_conversation_n(c))
        return false;
    while (next-- > first)
        json_array_remove(c->messages, first);
    return true;
}

/* The ids of the messages up to the last question, with what opens the answer. */
static int question_ids(struct moe_conversation *c, struct moe_ids *ids, struct moe_err *err)
{
    json_t *all = c->messages, *questions = json_copy(all);
    struct moe_buf text = {0};
    if (!questions)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: messages");
    uint64_t n = json_array_size(questions);
    if (n && is_from(c, n - 1, "assistant"))
        json_array_remove(questions, n - 1);
    c->messages = questions;
    int status = moe_conversation_preview(c, &text, ids, err);
    c->messages = all;
    json_decref(questions);
    moe_buf_release(&text);
    return status;
}

/* ---- Shifting ---- */

/* What callbacks are given, and for whom. */
struct shifting {
    struct moe_conversation *c;
    const struct moe_generate_options *options;
};

static int append_ids(struct moe_ids *ids, const struct moe_conversation *c, uint64_t from,
                      struct moe_err *err)
{
    int status = MOE_OK;
    for (uint64_t i = from; i < c->history.n && status == MOE_OK; i++)
        status = moe_ids_push(ids, c->history.ids[i], err);
    return status;
}

/* The context becomes `ids` and what of the history stands from `from` on. */
static int replace(struct moe_conversation *c, struct moe_ids *ids, uint64_t from,
                   struct moe_err *err)
{
    struct moe_stats *stats = &c->session->stats;
    uint64_t answer_at = ids->n, before = c->history.n;
    int status = append_ids(ids, c, from, err);
    if (status != MOE_OK)
        return status;
    moe_conversation_adopt(c, ids);
    c->answer_at = answer_at;
    stats->context_shifts++;
    stats->dropped_tokens += before - c->history.n;
    return MOE_OK;
}

/* Of plain text: its first token stays where it begins every text. */
static int shift_plain(struct moe_conversation *c, bool *more, struct moe_err *err)
{
    struct moe_ids ids = {0};
    bool begins = moe_tokenizer_is_special(c->session->model->tokenizer, c->history.ids[0]);
    int status = begins ? moe_ids_push(&ids, c->history.ids[0], err) : MOE_OK;
    uint64_t from = c->history.n - c->session->context / 2;
    *more = c->session->context >= 4;
    if (status == MOE_OK && *more)
        status = replace(c, &ids, from, err);
    moe_ids_release(&ids);
    return status;
}

/* Of a chat: turns, until a quarter of the context is free; then, if it must be, the older half of
 * the answer. */
static int shift_chat(struct moe_conversation *c, bool *more, struct moe_err *err)
{
    uint64_t context = c->session->context, from = c->answer_at;
    struct moe_ids ids = {0};
    int status = MOE_OK;
    while (status == MOE_OK && drop_turn(c)) {
        ids.n = 0;
        status = question_ids(c, &ids, err);
        if (ids.n + c->history.n - from <= context - context / 4)
            break;
    }
    if (status == MOE_OK && ids.n == 0)
        status = question_ids(c, &ids, err);
    if (status == MOE_OK && ids.n + c->history.n - from > context) {
        from += (c->history.n - from + 1) / 2;
        c->cut = true;
    }
    *more = ids.n + c->history.n - from <= context;
    if (status == MOE_OK && *more)
        status = replace(c, &ids, from, err);
    moe_ids_release(&ids);
    return status;
}

int moe_conversation_alone(struct moe_conversation *c, const char *text, uint64_t *n,
                           struct moe_err *err)
{
    json_t *all = c->messages, *question = moe_chat_message("user", text, strlen(text), err);
    struct moe_ids ids = {0};
    if (!question)
        return MOE_ERR_MEMORY;
    c->messages = json_array();
    bool copied = c->messages && (!moe_chat_has_role(json_array_get(all, 0), "system") ||
                                  json_array_append(c->messages, json_array_get(all, 0)) == 0);
    int status = json_array_append_new(c->messages, question) == 0 && copied
                     ? question_ids(c, &ids, err)
                     : moe_fail(err, MOE_ERR_MEMORY, "out of memory: messages");
    json_decref(c->messages);
    c->messages = all;
    *n = ids.n;
    moe_ids_release(&ids);
    return status;
}

/* Drops as many turns as it takes for the question to fit; none where that is not enough. */
static int make_room_for(struct moe_conversation *c, const char *text, struct moe_err *err)
{
    struct moe_stats *stats = &c->session->stats;
    json_t *all = c->messages, *question = moe_chat_message("user", text, strlen(text), err);
    uint64_t context = c->session->context, before = 0;
    struct moe_ids ids = {0};
    bool dropped = false;
    if (!question)
        return MOE_ERR_MEMORY;
    c->messages = json_copy(all);
    int status = c->messages && json_array_append_new(c->messages, question) == 0
                     ? question_ids(c, &ids, err)
                     : moe_fail(err, MOE_ERR_MEMORY, "out of memory: messages");
    before = ids.n;
    while (status == MOE_OK && ids.n > context && drop_turn(c)) {
        ids.n = 0;
        status = question_ids(c, &ids, err);
        dropped = true;
    }
    bool fits = status == MOE_OK && dropped && ids.n <= context;
    json_t *other = fits ? all : c->messages;
    c->messages = fits ? c->messages : all;
    json_decref(other);
    if (fits) {
        json_array_remove(c->messages, moe_conversation_n(c) - 1);
        c->in_step = false;
        stats->context_shifts++;
        stats->dropped_tokens += before - ids.n;
    }
    moe_ids_release(&ids);
    return status;
}

static int on_full(void *ctx, bool *more, struct moe_err *err)
{
    const struct shifting *s = ctx;
    return s->c->chat ? shift_chat(s->c, more, err) : shift_plain(s->c, more, err);
}

static int pass_text(void *ctx, const char *bytes, uint64_t n)
{
    const struct shifting *s = ctx;
    return s->options->text(s->options->ctx, bytes, n);
}

static int pass_token(void *ctx, const struct moe_token_said *said)
{
    const struct shifting *s = ctx;
    return s->options->token(s->options->ctx, said);
}

int moe_conversation_shifting(struct moe_conversation *c, const char *text,
                              struct moe_sampler *sampler,
                              const struct moe_generate_options *options, enum moe_stop_reason *why,
                              struct moe_err *err)
{
    const struct moe_config *config = &c->session->model->config;
    struct shifting s = {c, options};
    struct moe_generate_options o = *options;
    if (config->n_encoder || config->prefix_lm)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "--context-shift: nothing can be dropped from a text of this model, which "
                        "is read as a whole");
    o.ctx = &s;
    o.full = on_full;
    o.text = options->text ? pass_text : NULL;
    o.token = options->token ? pass_token : NULL;
    if (!text) { /* an answer that ended with the context has a token more than that */
        bool more = true;
        int status = c->history.n > c->session->context ? on_full(&s, &more, err) : MOE_OK;
        return status == MOE_OK ? moe_conversation_continue(c, sampler, &o, why, err) : status;
    }
    int status = c->chat ? make_room_for(c, text, err) : MOE_OK;
    return status == MOE_OK ? moe_conversation_ask(c, text, sampler, &o, why, err) : status;
}

/* ---- The last turn ---- */

bool moe_conversation_undo(struct moe_conversation *c, struct moe_buf *question)
{
    uint64_t last = moe_conversation_n(c);
    while (last > 0 && !is_from(c, last - 1, "user"))
        last--;
    if (last == 0)
        return false;
    if (question)
        moe_chat_append_content(json_array_get(c->messages, last - 1), question);
    moe_conversation_keep(c, last - 1);
    c->undone = true;
    return true;
}
