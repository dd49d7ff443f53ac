/* Conversations: turns that a full context drops, and conversations in files. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/context_file.h"
#include "engine/conversation.h"
#include "fmt/json.h"
#include "prompt/chat.h"

/* ---- Turns ---- */

static bool is_from(const struct moe_conversation *c, uint64_t i, const char *role)
{
    return moe_chat_has_role(json_array_get(c->messages, i), role);
}

/* Drops the oldest question and everything up to the next one; false: it is the last. */
static bool drop_turn(struct moe_conversation *c)
{
    uint64_t first = is_from(c, 0, "system"), next = first + 1;
    while (next < moe_conversation_n(c) && !is_from(c, next, "user"))
        next++;
    if (next >= moe_conversation_n(c))
        return false;
    while (next-- > first)
        json_array_remove(c->messages, first);
    moe_buf_clear(&c->turns);
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

static int append_ids(struct moe_ids *ids, const struct moe_conversation *c, uint64_t from,
                      struct moe_err *err)
{
    int status = MOE_OK;
    for (uint64_t i = from; i < c->history.n && status == MOE_OK; i++)
        status = moe_ids_push(ids, c->history.ids[i], err);
    return status;
}

/* Replaces the context by `ids` and the history from `from` on. */
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

/* Drops the older half of plain text, but keeps a special token that begins it. */
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

/* Drops turns of a chat until a quarter of the context is free, and if that is not enough the older
 * half of the answer. */
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
    int status;
    MOE_STEP(c->messages && json_array_append_new(c->messages, question) == 0
                 ? question_ids(c, &ids, err)
                 : moe_fail(err, MOE_ERR_MEMORY, "out of memory: messages"));
    before = ids.n;
    while (ids.n > context && drop_turn(c)) {
        ids.n = 0;
        MOE_STEP(question_ids(c, &ids, err));
        dropped = true;
    }
out:
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

static int on_full(void *conversation, bool *more, struct moe_err *err)
{
    struct moe_conversation *c = conversation;
    return c->chat ? shift_chat(c, more, err) : shift_plain(c, more, err);
}

int moe_conversation_shifting(struct moe_conversation *c, const char *text,
                              struct moe_sampler *sampler,
                              const struct moe_generate_options *options, enum moe_stop_reason *why,
                              struct moe_err *err)
{
    const struct moe_config *config = &c->session->model->config;
    struct moe_generate_options o = *options;
    if (config->n_encoder || config->prefix_lm)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "--context-shift: nothing can be dropped from a text of this model, which "
                        "is read as a whole");
    o.full = on_full;
    o.full_ctx = c;
    if (!text) { /* an answer that ended with the context has a token more than that */
        bool more = true;
        int status = c->history.n > c->session->context ? on_full(c, &more, err) : MOE_OK;
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
    c->undone = !c->in_step;
    return true;
}

/* ---- Conversations in files ---- */

/* What the values of a conversation may take in memory: few of its messages are that long. */
enum { MOST_VALUES = 64 << 20 };

/* ---- When it began ---- */

/* The members of a struct tm, by which templates show a date. */
struct moment {
    const char *key;
    int *to;
    uint32_t most;
    int less; /* than what the file says */
};

enum { N_MOMENTS = 8 };

static void moments_of(struct tm *t, struct moment m[N_MOMENTS])
{
    const struct moment all[N_MOMENTS] = {
        {"second", &t->tm_sec, 60, 0},  {"minute", &t->tm_min, 59, 0},
        {"hour", &t->tm_hour, 23, 0},   {"day", &t->tm_mday, 31, 0},
        {"month", &t->tm_mon, 12, 1},   {"year", &t->tm_year, 9999, 1900},
        {"weekday", &t->tm_wday, 6, 0}, {"yearday", &t->tm_yday, 365, 0},
    };
    memcpy(m, all, sizeof all);
}

static json_t *moment_json(struct tm t)
{
    struct moment m[N_MOMENTS];
    json_t *o = json_object();
    moments_of(&t, m);
    for (int i = 0; i < N_MOMENTS; i++)
        json_object_set_new(o, m[i].key, json_integer(*m[i].to + m[i].less));
    return o;
}

static int read_moment(const char *name, const json_t *root, struct tm *t, struct moe_err *err)
{
    struct moment m[N_MOMENTS];
    const json_t *o = json_object_get(root, "began");
    int status = MOE_OK;
    *t = (struct tm){.tm_isdst = -1};
    moments_of(t, m);
    for (int i = 0; i < N_MOMENTS && status == MOE_OK; i++) {
        uint32_t value = 0;
        status = moe_json_get_u32(name, o, m[i].key, m[i].most, true, &value, err);
        *m[i].to = (int)value - m[i].less;
    }
    if (status == MOE_OK && (t->tm_mon < 0 || t->tm_mday < 1))
        status =
            moe_fail(err, MOE_ERR_FORMAT, "%s: the conversation's first day is not a date", name);
    return status;
}

/* ---- Saving ---- */

static int describe_conversation(const struct moe_conversation *c, struct moe_buf *out,
                                 struct moe_err *err)
{
    json_t *root = json_object();
    json_object_set(root, "messages", c->messages);
    json_object_set_new(root, "chat", json_boolean(c->chat != NULL));
    json_object_set_new(root, "answer_at", json_integer((json_int_t)c->answer_at));
    json_object_set_new(root, "cut", json_boolean(c->cut));
    json_object_set_new(root, "undone", json_boolean(c->undone));
    json_object_set_new(root, "in_thought", json_boolean(c->in_thought));
    json_object_set_new(root, "in_step", json_boolean(c->in_step));
    json_object_set_new(root, "began", moment_json(c->now));
    char *text = json_object_size(root) == 8 ? moe_json_text(root, JSON_COMPACT) : NULL;
    if (text)
        moe_buf_text(out, text);
    free(text);
    json_decref(root);
    return out->size && !out->failed
               ? MOE_OK
               : moe_fail(err, MOE_ERR_MEMORY, "out of memory: the conversation");
}

int moe_conversation_save(const struct moe_conversation *c, const struct moe_sampler *sampler,
                          const char *method, const char *path, struct moe_err *err)
{
    struct moe_context context = {
        .ids = c->history,
        .n_done = moe_sequence_common(c->session, 0, c->history.ids, (uint32_t)c->history.n),
        .has_draws = sampler != NULL,
    };
    if (sampler)
        context.draws = moe_sampler_get_draws(sampler);
    snprintf(context.method, sizeof context.method, "%s", method);
    int status = describe_conversation(c, &context.text, err);
    if (status == MOE_OK)
        status = moe_context_write(path, c->session, 0, &context, err);
    moe_buf_release(&context.text);
    return status;
}

/* ---- Loading ---- */

/* Reads what the file holds beside the ids into `to`, empty until then; *root owns the messages. */
static int read_text(const struct moe_context *context, const char *path,
                     struct moe_conversation *to, json_t **root, struct moe_err *err)
{
    uint32_t answer_at = 0;
    bool chat = false;
    MOE_TRY(moe_json_parse(root, path, context->text.data, context->text.size, MOST_VALUES, err));
    MOE_TRY(moe_json_get_u32(path, *root, "answer_at", (uint32_t)context->ids.n, true, &answer_at,
                             err));
    MOE_TRY(moe_json_get_bool(path, *root, "chat", true, &chat, err));
    MOE_TRY(moe_json_get_bool(path, *root, "cut", true, &to->cut, err));
    MOE_TRY(moe_json_get_bool(path, *root, "undone", true, &to->undone, err));
    MOE_TRY(moe_json_get_bool(path, *root, "in_thought", true, &to->in_thought, err));
    MOE_TRY(moe_json_get_bool(path, *root, "in_step", true, &to->in_step, err));
    MOE_TRY(read_moment(path, *root, &to->now, err));
    to->answer_at = answer_at;
    const json_t *messages = json_object_get(*root, "messages");
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!json_is_string(json_object_get(json_array_get(messages, i), "role")))
            return moe_fail(err, MOE_ERR_FORMAT, "%s: message %zu has no role", path, i + 1);
    if (!json_is_array(messages))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: there are no messages", path);
    if (chat != (to->chat != NULL))
        return moe_fail(err, MOE_ERR_USAGE, "%s: the conversation is %s, and here %s", path,
                        chat ? "a chat" : "plain text",
                        chat ? "plain text is continued" : "is a chat");
    return MOE_OK;
}

static int take_context(struct moe_conversation *c, struct moe_sampler *sampler,
                        struct moe_context_file *file, const char *path, struct moe_err *err)
{
    struct moe_context *context = &file->context;
    struct moe_conversation new = {.chat = c->chat};
    struct moe_session *s = c->session;
    json_t *root = NULL, *messages = NULL;
    if (context->text.size == 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: holds a prompt's context and no conversation (--prompt-cache)", path);
    if (context->n_done > s->context)
        return moe_fail(err, MOE_ERR_LIMIT,
                        "%s: the conversation of %" PRIu64
                        " tokens does not fit the context of %u (-c sets a longer one)",
                        path, context->n_done, s->context);
    int status = read_text(context, path, &new, &root, err);
    if (status == MOE_OK)
        status = moe_json_copy(&messages, json_object_get(root, "messages"), err);
    if (status == MOE_OK)
        status = moe_context_put(file, s, 0, context->n_done, err);
    if (status == MOE_OK) {
        json_decref(c->messages);
        moe_ids_release(&c->history);
        c->messages = messages;
        c->history = context->ids;
        c->answer_at = new.answer_at;
        c->cut = new.cut;
        c->undone = new.undone;
        c->in_thought = new.in_thought;
        c->in_step = new.in_step;
        c->now = new.now;
        moe_buf_clear(&c->turns);
        moe_conversation_note_turn(c);
        context->ids = (struct moe_ids){0};
        if (sampler && context->has_draws)
            moe_sampler_set_draws(sampler, &context->draws);
    } else {
        json_decref(messages);
    }
    moe_json_free(root);
    return status;
}

int moe_conversation_load(struct moe_conversation *c, struct moe_sampler *sampler,
                          const char *method, const char *path, struct moe_err *err)
{
    struct moe_context_file file;
    MOE_TRY(moe_context_open(&file, path, c->session, method, err));
    int status = take_context(c, sampler, &file, path, err);
    moe_context_close(&file);
    return status;
}
