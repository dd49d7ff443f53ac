/* Conversations: turns, and what the context holds of them. */

#include "engine/conversation.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/prompt.h"
#include "fmt/json.h"

int moe_conversation_init(struct moe_conversation *c, struct moe_session *session,
                          const struct moe_chat *chat, struct moe_err *err)
{
    *c = (struct moe_conversation){
        .session = session, .chat = chat, .messages = json_array(), .now = moe_chat_today()};
    return c->messages ? MOE_OK : moe_fail(err, MOE_ERR_MEMORY, "out of memory: a conversation");
}

/* ---- Messages ---- */

uint64_t moe_conversation_n(const struct moe_conversation *c)
{
    return json_array_size(c->messages);
}

static json_t *message_at(const struct moe_conversation *c, uint64_t i)
{
    return json_array_get(c->messages, i);
}

static void drop_messages(struct moe_conversation *c, uint64_t n)
{
    c->in_step = c->in_step && n >= moe_conversation_n(c);
    while (moe_conversation_n(c) > n)
        json_array_remove(c->messages, moe_conversation_n(c) - 1);
}

/* An answer that the context holds token by token, and where it lies there. */
struct turn {
    uint64_t n_messages; /* up to it */
    uint64_t answer_at, end;
    bool cut, in_thought;
};

/* Forgets the turns that end behind message n; returns the last of the others, NULL: none. */
static const struct turn *last_turn(struct moe_conversation *c, uint64_t n)
{
    const struct turn *turns = (const void *)c->turns.data;
    uint64_t i = c->turns.size / sizeof *turns;
    while (i > 0 && turns[i - 1].n_messages > n)
        i--;
    c->turns.size = i * sizeof *turns;
    return i > 0 ? &turns[i - 1] : NULL;
}

void moe_conversation_note_turn(struct moe_conversation *c)
{
    const uint64_t n = moe_conversation_n(c);
    const struct turn turn = {n, c->answer_at, c->history.n, c->cut, c->in_thought};
    if (!c->in_step)
        return;
    last_turn(c, n - 1);
    moe_buf_append(&c->turns, &turn, sizeof turn); /* memory short: it is found again */
}

void moe_conversation_keep(struct moe_conversation *c, uint64_t n)
{
    const bool drops = n < moe_conversation_n(c);
    drop_messages(c, n);
    const struct turn *last = last_turn(c, n);
    if (!drops || !last || last->n_messages != n || last->end > c->history.n)
        return;
    c->history.n = last->end;
    c->answer_at = last->answer_at;
    c->cut = last->cut;
    c->in_thought = last->in_thought;
    c->in_step = true;
}

/* Takes the message over; NULL: memory was short, as err says. */
static int add_message(struct moe_conversation *c, json_t *message, struct moe_err *err)
{
    if (!message)
        return MOE_ERR_MEMORY;
    if (json_array_append_new(c->messages, message) != 0)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: a message");
    return MOE_OK;
}

static uint64_t n_system_messages(const struct moe_conversation *c)
{
    return moe_chat_has_role(message_at(c, 0), "system");
}

const char *moe_conversation_system_text(const struct moe_conversation *c)
{
    return n_system_messages(c) ? moe_chat_text(message_at(c, 0)) : NULL;
}

static void forget_context(struct moe_conversation *c)
{
    c->history.n = 0;
    moe_buf_clear(&c->turns);
    c->answer_at = 0;
    c->undone = false;
    c->in_step = false;
}

void moe_conversation_reset(struct moe_conversation *c)
{
    moe_conversation_keep(c, n_system_messages(c));
    forget_context(c);
}

static int check_chat(const struct moe_conversation *c, const char *what, struct moe_err *err)
{
    return c->chat ? MOE_OK
                   : moe_fail(err, MOE_ERR_USAGE,
                              "there is no chat template, so no place for %s: the model continues "
                              "plain text",
                              what);
}

int moe_conversation_system(struct moe_conversation *c, const char *text, struct moe_err *err)
{
    MOE_TRY(check_chat(c, "a system text", err));
    moe_conversation_keep(c, 0);
    forget_context(c);
    return text ? add_message(c, moe_chat_message("system", text, strlen(text), err), err) : MOE_OK;
}

int moe_conversation_set(struct moe_conversation *c, const json_t *messages, struct moe_err *err)
{
    json_t *copy;
    MOE_TRY(check_chat(c, "messages", err));
    MOE_TRY(moe_json_copy(&copy, messages, err));
    json_decref(c->messages);
    c->messages = copy;
    moe_buf_clear(&c->turns);
    c->in_step = false;
    return MOE_OK;
}

void moe_conversation_release(struct moe_conversation *c)
{
    json_decref(c->messages);
    moe_ids_release(&c->history);
    moe_ids_release(&c->source);
    moe_buf_release(&c->turns);
    *c = (struct moe_conversation){0};
}

/* ---- What an answer says ---- */

/* Appends the answer as it is in the context, special tokens with their texts. */
static void append_answer(const struct moe_conversation *c, struct moe_buf *out)
{
    const struct moe_tokenizer *tok = c->session->model->tokenizer;
    for (uint64_t i = c->answer_at; i < c->history.n; i++) {
        uint32_t n = 0;
        const uint8_t *bytes = moe_tokenizer_bytes(tok, c->history.ids[i], &n);
        moe_buf_append(out, bytes, n);
    }
}

/* Appends what the answer's tokens say: of special ones the marks (NULL: none), of all others the
 * first `most` bytes. */
static void append_said(const struct moe_conversation *c, const struct moe_ids *marks,
                        uint64_t most, struct moe_buf *out)
{
    const struct moe_model *model = c->session->model;
    bool begins = false;
    for (uint64_t i = c->answer_at; i < c->history.n; i++) {
        const uint32_t id = c->history.ids[i];
        uint32_t n = 0;
        const uint8_t *bytes = moe_answer_bytes(model, marks, id, &begins, &n);
        if (!moe_tokenizer_is_special(model->tokenizer, id)) {
            n = n < most ? n : (uint32_t)most;
            most -= n;
        }
        moe_buf_append(out, bytes, n);
    }
}

/* Adds the thought to a message, which it takes over. NULL: memory is short. */
static json_t *with_thought(const struct moe_conversation *c, json_t *message, json_t *thought,
                            struct moe_err *err)
{
    if (message && thought &&
        json_object_set(message, moe_chat_thought_member(c->chat),
                        json_object_get(thought, "content")) != 0) {
        moe_fail(err, MOE_ERR_MEMORY, "out of memory: a message");
        json_decref(message);
        message = NULL;
    }
    json_decref(thought);
    return message;
}

/* Appends what was shown of the last answer, or read: its tokens where the context holds it as it
 * came, as a message has no marks and nothing of one that is cut. */
static void append_shown(const struct moe_conversation *c, struct moe_buf *out)
{
    const json_t *last = json_array_get(c->messages, json_array_size(c->messages) - 1);
    const char *member = moe_chat_thought_member(c->chat), *text = moe_chat_text(last);
    if (text && (c->cut || !c->in_step) && !(member && json_object_get(last, member)) &&
        (c->cut || !json_object_get(last, "tool_calls"))) {
        moe_buf_text(out, text);
        return;
    }
    append_said(c, c->on_part ? moe_chat_marks(c->chat) : NULL, UINT64_MAX, out);
}

/* ---- From messages to tokens ---- */

static struct moe_chat_input input_of(const struct moe_conversation *c, const json_t *messages)
{
    return (struct moe_chat_input){.messages = messages,
                                   .tools = c->tools,
                                   .variables = c->variables,
                                   .add_generation_prompt = true,
                                   .now = c->now};
}

static int render(const struct moe_conversation *c, const json_t *messages, struct moe_buf *out,
                  struct moe_buf *words, struct moe_err *err)
{
    const struct moe_chat_input input = input_of(c, messages);
    return moe_chat_render(c->chat, &input, out, words, err);
}

/* How much of the rendered conversation is in the context already, in bytes: what was rendered for
 * the last answer, and the answer. 0 when the new rendering does not begin with these (a template
 * may trim an answer, or drop its thought). */
static uint64_t bytes_in_context(const struct moe_conversation *c, const struct moe_buf *all)
{
    size_t n_before = moe_conversation_n(c) - 2;
    struct moe_buf before = {0};
    struct moe_err refused;
    uint64_t n = 0;
    if (!c->in_step || moe_conversation_n(c) < 3)
        return 0;
    json_t *earlier = json_array();
    for (size_t i = 0; i < n_before; i++)
        json_array_append(earlier, message_at(c, i)); /* memory short: it is no beginning */
    if (earlier && render(c, earlier, &before, NULL, &refused) == MOE_OK) {
        append_answer(c, &before);
        if (!before.failed && before.size <= all->size &&
            memcmp(before.data, all->data, before.size) == 0)
            n = before.size;
    }
    json_decref(earlier);
    moe_buf_release(&before);
    return n;
}

void moe_conversation_adopt(struct moe_conversation *c, struct moe_ids *ids)
{
    moe_ids_release(&c->history);
    moe_buf_clear(&c->turns);
    c->history = *ids;
    *ids = (struct moe_ids){0};
}

/* Brings the context to where the answer to the last message begins. */
static int prepare_chat(struct moe_conversation *c, struct moe_err *err)
{
    struct moe_buf all = {0}, words = {0};
    struct moe_ids ids = {0};
    int status = render(c, c->messages, &all, &words, err);
    if (status == MOE_OK) {
        uint64_t known = bytes_in_context(c, &all);
        status = moe_prompt_encode(c->session->model, &all, &words, known,
                                   known ? &c->history : &ids, err);
        if (status == MOE_OK && !known)
            moe_conversation_adopt(c, &ids);
        const struct moe_chat_input input = input_of(c, c->messages);
        if (c->session->kv_pool.n_snapshots)
            c->again = moe_prompt_again(c->session->model, c->chat, &input, &all, &c->history);
        c->in_thought = moe_chat_thought_before(c->chat, all.data, all.size) == MOE_THOUGHT_OPEN;
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
        moe_conversation_adopt(c, &ids);
    moe_ids_release(&ids);
    return status;
}

/* The text is the encoder's; the decoder's begins anew. */
static int prepare_source(struct moe_conversation *c, const char *text, struct moe_err *err)
{
    const struct moe_model *m = c->session->model;
    forget_context(c);
    c->source.n = 0;
    uint32_t target;
    MOE_TRY(moe_prompt_source(m, &c->languages, text, strlen(text), &c->source, &target, err));
    MOE_TRY(moe_ids_push(&c->history, m->config.decoder_start, err));
    return target ? moe_ids_push(&c->history, target, err) : MOE_OK;
}

/* ---- Generating ---- */

/* Passes the answer on and keeps a copy of it, and of what it says where it is read. */
struct listener {
    const struct moe_conversation *talk;
    const struct moe_generate_options *options;
    struct moe_buf answer, content, thought, arguments;
    json_t *calls;
    struct moe_answer_reader *reader;
    bool again; /* it reads what was handed on before */
    /* The end of that which the answer could have gone on from as a mark: it was handed on, too. */
    struct moe_buf told;
    enum moe_answer_part_kind told_kind;
    struct moe_err *err;
};

static void release_listener(struct listener *l)
{
    moe_answer_reader_free(l->reader);
    json_decref(l->calls);
    moe_buf_release(&l->answer);
    moe_buf_release(&l->content);
    moe_buf_release(&l->thought);
    moe_buf_release(&l->arguments);
    moe_buf_release(&l->told);
}

/* An id as templates accept: nine letters and digits, the same where the answer goes on. */
static json_t *new_call(const struct listener *l, const struct moe_answer_part *part)
{
    const uint64_t n = moe_conversation_n(l->talk);
    const bool goes_on = moe_chat_has_role(message_at(l->talk, n - 1), "assistant");
    char id[16];
    snprintf(id, sizeof id, "call%03u%02u", (unsigned)(n - goes_on) % 1000,
             (unsigned)json_array_size(l->calls) % 100);
    return json_pack("{s:s,s:s,s:{s:s%,s:s}}", "id", id, "type", "function", "function", "name",
                     part->bytes, (size_t)part->n, "arguments", "{}");
}

static int take_part(void *ctx, const struct moe_answer_part *part)
{
    struct listener *l = ctx;
    size_t last = json_array_size(l->calls);
    json_t *call = json_array_get(l->calls, last - 1);
    int failed = 0;
    switch (part->kind) {
    case MOE_PART_THOUGHT:
        moe_buf_append(&l->thought, part->bytes, part->n);
        break;
    case MOE_PART_CALL_FAILS:
        failed = json_array_remove(l->calls, last - 1);
        moe_buf_text(&l->content, l->content.size && part->n ? "\n\n" : "");
        /* fall through */
    case MOE_PART_CONTENT:
        moe_buf_append(&l->content, part->bytes, part->n);
        break;
    case MOE_PART_CALL:
        moe_buf_clear(&l->arguments);
        failed = json_array_append_new(l->calls, new_call(l, part));
        break;
    case MOE_PART_ARGUMENTS:
        moe_buf_append(&l->arguments, part->bytes, part->n);
        break;
    case MOE_PART_CALL_ENDS:
        failed =
            json_object_set_new(json_object_get(call, "function"), "arguments",
                                json_stringn((const char *)l->arguments.data, l->arguments.size));
        break;
    }
    if (failed || l->content.failed || l->thought.failed || l->arguments.failed)
        return moe_fail(l->err, MOE_ERR_MEMORY, "out of memory: the answer's text");
    if (l->again)
        return MOE_OK;
    /* What was told already is no mark now, or else it is left at that. */
    struct moe_answer_part more = *part;
    const uint64_t n = part->n < l->told.size ? part->n : l->told.size;
    if (n && part->kind == l->told_kind && !part->joins &&
        memcmp(l->told.data, part->bytes, n) == 0) {
        more.bytes += n;
        more.n -= n;
        memmove(l->told.data, l->told.data + n, l->told.size -= n);
    } else if (part->n) {
        moe_buf_clear(&l->told);
    }
    return part->n && !more.n ? MOE_OK : l->talk->on_part(l->talk->part_ctx, &more);
}

static int listen(void *ctx, const char *bytes, uint64_t n)
{
    struct listener *l = ctx;
    moe_buf_append(&l->answer, bytes, n);
    if (l->reader)
        return moe_answer_reader_add(l->reader, bytes, n, l->err);
    return l->options->text ? l->options->text(l->options->ctx, bytes, n) : MOE_OK;
}

/* Begins to read an answer, which says so far what `said` has. */
static int read_answer(const struct moe_conversation *c, struct listener *l,
                       const struct moe_buf *said, struct moe_err *err)
{
    if (!(l->calls = json_array()))
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: the answer's text");
    MOE_TRY(moe_answer_reader_new(&l->reader, c->chat, c->tools, c->in_thought && !c->cut,
                                  take_part, l, err));
    l->again = true;
    return moe_answer_reader_add(l->reader, (const char *)said->data, said->size, err);
}

/* Reads an answer that goes on, and what was told of its end when it stopped. */
static int read_again(const struct moe_conversation *c, struct listener *l, struct moe_err *err)
{
    struct listener ended = {.talk = c, .err = err};
    int status;
    MOE_STEP(read_answer(c, l, &l->answer, err));
    MOE_STEP(read_answer(c, &ended, &l->answer, err));
    MOE_STEP(moe_answer_reader_end(ended.reader, true, err));
    const bool thinks = ended.thought.size > l->thought.size;
    const struct moe_buf *all = thinks ? &ended.thought : &ended.content,
                         *sure = thinks ? &l->thought : &l->content;
    l->told_kind = thinks ? MOE_PART_THOUGHT : MOE_PART_CONTENT;
    if (all->size > sure->size)
        moe_buf_append(&l->told, all->data + sure->size, all->size - sure->size);
    if (l->told.failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: the answer's text");
out:
    release_listener(&ended);
    return status;
}

/* Reads an answer whose text was handed on as it is. */
static int read_shown(const struct moe_conversation *c, struct listener *l, struct moe_err *err)
{
    struct moe_buf said = {0};
    int status;
    if (c->cut || !(moe_chat_thought_member(c->chat) || json_array_size(c->tools))) {
        moe_buf_append(&l->content, l->answer.data, l->answer.size);
        return MOE_OK;
    }
    append_said(c, moe_chat_marks(c->chat), l->answer.size, &said); /* no stop text */
    MOE_STEP(said.failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory: the answer's text")
                         : read_answer(c, l, &said, err));
    MOE_STEP(moe_answer_reader_end(l->reader, false, err));
out:
    moe_buf_release(&said);
    return status;
}

static int listen_token(void *ctx, const struct moe_token_said *said)
{
    const struct listener *l = ctx;
    return l->options->token(l->options->ctx, said);
}

/* Where the answer so far is with its thought. */
static int find_thought(const struct moe_conversation *c, const struct moe_buf *answer,
                        struct moe_thought_at *at, struct moe_err *err)
{
    struct moe_answer_reader *reader;
    *at = (struct moe_thought_at){.place = MOE_BEHIND_THOUGHT, .behind = answer->size};
    if (!c->chat || c->cut)
        return MOE_OK;
    MOE_TRY(moe_answer_reader_new(&reader, c->chat, c->tools, c->in_thought, NULL, NULL, err));
    int status = moe_answer_reader_thought(reader, answer->data, answer->size, at, err);
    moe_answer_reader_free(reader);
    return status;
}

static int answer(struct moe_conversation *c, struct moe_sampler *sampler,
                  const struct moe_generate_options *options, struct listener *l,
                  enum moe_stop_reason *why, struct moe_err *err)
{
    struct moe_thought_at at;
    struct moe_buf said = {0};
    l->talk = c;
    l->err = err;
    if (c->chat && c->on_part)
        MOE_TRY(read_again(c, l, err));
    l->again = false;
    MOE_TRY(find_thought(c, &l->answer, &at, err));
    const char **stops = moe_prompt_stops(options->stop_texts, c->chat, err);
    if (!stops)
        return MOE_ERR_MEMORY;
    struct moe_generate_options o = *options;
    l->options = options;
    o.stop_texts = stops;
    o.text = listen;
    o.marks = l->reader ? moe_chat_marks(c->chat) : NULL;
    if (l->reader && json_array_size(c->tools))
        o.call_stop = moe_chat_call_stop(c->chat, &o.call_then);
    o.token = options->token ? listen_token : NULL;
    if (c->chat && (at.place != MOE_BEHIND_THOUGHT || at.again || !l->answer.size)) {
        const bool apart = o.constraint && !c->held_to_calls, within = at.place == MOE_IN_THOUGHT,
                   can_call = !apart && json_array_size(c->tools);
        moe_buf_append(&said, l->answer.data, l->answer.size);
        o.thought = moe_thought_options_of(c->chat, c->tools, c->in_thought && !c->cut, can_call);
        o.thought.apart = o.thought.chat && within && apart;
        if (within && moe_chat_no_thought(c->variables))
            o.thought.most = 0;
        if (said.size) {
            o.thought.said = &said;
            o.thought.at = at;
        }
    }
    o.ctx = l;
    o.source = c->source.n ? c->source.ids : NULL;
    o.n_source = c->source.n;
    o.again = c->again;
    int status;
    if (said.failed)
        MOE_STEP(moe_fail(err, MOE_ERR_MEMORY, "out of memory: the answer's text"));
    MOE_STEP(moe_generate(c->session, sampler, &c->history, &o, why, err));
    if (l->reader)
        MOE_STEP(moe_answer_reader_end(l->reader,
                                       *why == MOE_STOP_LENGTH || *why == MOE_STOP_CONTEXT, err));
    if (l->answer.failed)
        MOE_STEP(moe_fail(err, MOE_ERR_MEMORY, "out of memory: the answer's text"));
out:
    moe_buf_release(&said);
    c->source.n = 0;
    free(stops);
    return status;
}

/* The message that a read answer is. NULL: memory is short. */
static json_t *read_message(const struct moe_conversation *c, const struct listener *l,
                            struct moe_err *err)
{
    const struct moe_buf *texts[] = {&l->content, &l->thought};
    json_t *made[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++)
        if (i == 0 || (made[0] && l->thought.size))
            made[i] = moe_chat_message("assistant", texts[i]->data ? (char *)texts[i]->data : "",
                                       texts[i]->size, err);
    json_t *message = with_thought(c, made[0], made[1], err);
    if (message && json_array_size(l->calls) &&
        json_object_set(message, "tool_calls", l->calls) != 0) {
        moe_fail(err, MOE_ERR_MEMORY, "out of memory: a message");
        json_decref(message);
        return NULL;
    }
    return message;
}

/* ---- Asking ---- */

/* An answer failed: the context ends where its tokens are not computed. */
static void keep_computed(struct moe_conversation *c)
{
    c->history.n = moe_sequence_common(c->session, 0, c->history.ids, (uint32_t)c->history.n);
}

/* Answers what the context was brought to, and keeps the answer, in place of the last message or
 * behind it. */
static int answer_and_keep(struct moe_conversation *c, struct moe_sampler *sampler,
                           const struct moe_generate_options *options, struct listener *l,
                           bool in_place, enum moe_stop_reason *why, struct moe_err *err)
{
    int status = answer(c, sampler, options, l, why, err);
    if (status == MOE_OK && c->chat && !l->reader)
        status = read_shown(c, l, err);
    if (status == MOE_OK && c->chat) {
        json_t *message = read_message(c, l, err);
        if (message && in_place)
            drop_messages(c, moe_conversation_n(c) - 1);
        status = add_message(c, message, err);
    }
    return status;
}

int moe_conversation_answer(struct moe_conversation *c, struct moe_sampler *sampler,
                            const struct moe_generate_options *options, enum moe_stop_reason *why,
                            struct moe_err *err)
{
    struct listener l = {0};
    if (!moe_conversation_n(c))
        return moe_fail(err, MOE_ERR_USAGE, "there is nothing to answer yet");
    if (options->constraint)
        moe_constraint_restart(options->constraint);
    int status;
    MOE_STEP(prepare_chat(c, err));
    c->answer_at = c->history.n;
    c->cut = c->undone = false;
    MOE_STEP(answer_and_keep(c, sampler, options, &l, false, why, err));
out:
    /* A stop text is in the context, but not in the answer; an interrupted prompt is not there. */
    c->in_step = status == MOE_OK && *why != MOE_STOP_TEXT;
    moe_conversation_note_turn(c);
    if (status != MOE_OK)
        keep_computed(c);
    release_listener(&l);
    return status;
}

/* Without a chat, the text itself. */
static int ask_plainly(struct moe_conversation *c, const char *text, struct moe_sampler *sampler,
                       const struct moe_generate_options *options, enum moe_stop_reason *why,
                       struct moe_err *err)
{
    struct listener l = {0};
    bool encoder = c->session->model->config.n_encoder > 0;
    if (options->constraint)
        moe_constraint_restart(options->constraint);
    int status = encoder ? prepare_source(c, text, err) : prepare_plain(c, text, err);
    if (status == MOE_OK)
        status = answer(c, sampler, options, &l, why, err);
    if (status != MOE_OK)
        keep_computed(c);
    release_listener(&l);
    return status;
}

int moe_conversation_ask(struct moe_conversation *c, const char *text, struct moe_sampler *sampler,
                         const struct moe_generate_options *options, enum moe_stop_reason *why,
                         struct moe_err *err)
{
    if (!c->chat || c->session->model->config.n_encoder)
        return ask_plainly(c, text, sampler, options, why, err);
    MOE_TRY(add_message(c, moe_chat_message("user", text, strlen(text), err), err));
    int status = moe_conversation_answer(c, sampler, options, why, err);
    if (status != MOE_OK) /* of those before it some may have been dropped */
        moe_conversation_keep(c, moe_conversation_n(c) - 1);
    return status;
}

bool moe_conversation_has_result(const struct moe_conversation *c)
{
    return moe_chat_has_role(message_at(c, moe_conversation_n(c) - 1), "tool");
}

int moe_conversation_result(struct moe_conversation *c, const char *text, uint64_t *open,
                            struct moe_err *err)
{
    uint64_t results = 0, n = moe_conversation_n(c);
    while (results < n && moe_chat_has_role(message_at(c, n - 1 - results), "tool"))
        results++;
    const json_t *calls = json_object_get(message_at(c, n - 1 - results), "tool_calls");
    if (json_array_size(calls) <= results)
        return moe_fail(err, MOE_ERR_USAGE, "there is no call of a tool without a result");
    json_t *result = moe_chat_message("tool", text, strlen(text), err);
    if (result && json_object_set(result, "tool_call_id",
                                  json_object_get(json_array_get(calls, results), "id")) != 0) {
        json_decref(result);
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: a message");
    }
    *open = json_array_size(calls) - results - 1;
    return add_message(c, result, err);
}

int moe_conversation_continue(struct moe_conversation *c, struct moe_sampler *sampler,
                              const struct moe_generate_options *options, enum moe_stop_reason *why,
                              struct moe_err *err)
{
    if (c->history.n == 0 || c->undone)
        return moe_fail(err, MOE_ERR_USAGE, "there is nothing to continue yet");
    struct moe_generate_options o = *options;
    struct listener l = {0};
    uint64_t n = moe_conversation_n(c);
    bool in_step = c->in_step;
    o.goes_on = true;
    int status = MOE_OK;
    /* The longer answer takes the place of the old one. */
    if (c->chat && moe_chat_has_role(message_at(c, n - 1), "assistant")) {
        append_shown(c, &l.answer);
        if (options->constraint) { /* where that left it: others may have come since */
            struct moe_thought_at at;
            status = find_thought(c, &l.answer, &at, err);
            const uint64_t held = c->held_to_calls             ? l.answer.size
                                  : at.place != MOE_IN_THOUGHT ? at.behind
                                                               : 0;
            moe_constraint_restart(options->constraint);
            if (status == MOE_OK && l.answer.size)
                status = moe_constraint_take(options->constraint,
                                             l.answer.data + l.answer.size - held, held, err);
        }
        if (status == MOE_OK)
            status = answer_and_keep(c, sampler, &o, &l, true, why, err);
    } else {
        status = answer(c, sampler, &o, &l, why, err);
    }
    c->in_step = in_step && status == MOE_OK && *why != MOE_STOP_TEXT;
    moe_conversation_note_turn(c);
    release_listener(&l);
    return status;
}

int moe_conversation_preview(const struct moe_conversation *c, struct moe_buf *text,
                             struct moe_ids *ids, struct moe_err *err)
{
    struct moe_buf words = {0};
    uint64_t from = text->size;
    int status = render(c, c->messages, text, &words, err);
    if (status == MOE_OK)
        status = moe_prompt_encode(c->session->model, text, &words, from, ids, err);
    moe_buf_release(&words);
    return status;
}
