#include "engine/conversation_file.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/context_file.h"
#include "fmt/json.h"

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
        status = moe_fail(err, MOE_ERR_FORMAT, "%s: the conversation began on no day", name);
    return status;
}

/* ---- Saving ---- */

static int describe(const struct moe_conversation *c, struct moe_buf *out, struct moe_err *err)
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
    char *text = json_object_size(root) == 8 ? json_dumps(root, JSON_COMPACT) : NULL;
    if (text)
        moe_buf_text(out, text);
    free(text);
    json_decref(root);
    return out->size && !out->failed
               ? MOE_OK
               : moe_fail(err, MOE_ERR_MEMORY, "out of memory: the conversation");
}

int moe_conversation_save(const struct moe_conversation *c, const struct moe_sampler *sampler,
                          const char *way, const char *path, struct moe_err *err)
{
    struct moe_context context = {
        .ids = c->history,
        .n_done = c->n_done,
        .far = c->session->far,
        .has_draws = sampler != NULL,
    };
    if (sampler)
        context.draws = moe_sampler_get_draws(sampler);
    snprintf(context.way, sizeof context.way, "%s", way);
    int status = describe(c, &context.text, err);
    if (status == MOE_OK)
        status = moe_context_write(path, c->session, &context, err);
    moe_buf_release(&context.text);
    return status;
}

/* ---- Loading ---- */

/* What the file says beside the ids, into `to`, which has nothing else; the messages are *root's.
 */
static int read_text(const struct moe_context *context, const char *path,
                     struct moe_conversation *to, json_t **root, struct moe_err *err)
{
    uint32_t answer_at = 0;
    bool chat = false;
    int status =
        moe_json_parse(root, path, context->text.data, context->text.size, MOST_VALUES, err);
    if (status == MOE_OK)
        status = moe_json_get_u32(path, *root, "answer_at", (uint32_t)context->ids.n, true,
                                  &answer_at, err);
    if (status == MOE_OK)
        status = moe_json_get_bool(path, *root, "chat", true, &chat, err);
    if (status == MOE_OK)
        status = moe_json_get_bool(path, *root, "cut", true, &to->cut, err);
    if (status == MOE_OK)
        status = moe_json_get_bool(path, *root, "undone", true, &to->undone, err);
    if (status == MOE_OK)
        status = moe_json_get_bool(path, *root, "in_thought", true, &to->in_thought, err);
    if (status == MOE_OK)
        status = moe_json_get_bool(path, *root, "in_step", true, &to->in_step, err);
    if (status == MOE_OK)
        status = read_moment(path, *root, &to->now, err);
    if (status != MOE_OK)
        return status;
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

static int take(struct moe_conversation *c, struct moe_sampler *sampler,
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
    if (status == MOE_OK) {
        c->n_done = 0; /* until the file's are there */
        status = moe_context_put(file, s, context->n_done, err);
    }
    if (status == MOE_OK) {
        json_decref(c->messages);
        moe_ids_release(&c->history);
        c->messages = messages;
        c->history = context->ids;
        c->n_done = context->n_done;
        c->answer_at = new.answer_at;
        c->cut = new.cut;
        c->undone = new.undone;
        c->in_thought = new.in_thought;
        c->in_step = new.in_step;
        c->now = new.now;
        context->ids = (struct moe_ids){0};
        if (sampler && context->has_draws)
            moe_sampler_set_draws(sampler, &context->draws);
    } else {
        json_decref(messages);
    }
    moe_json_free(root);
    return status;
}

int moe_conversation_load(struct moe_conversation *c, struct moe_sampler *sampler, const char *way,
                          const char *path, struct moe_err *err)
{
    struct moe_context_file file;
    int status = moe_context_open(&file, path, c->session, way, err);
    if (status != MOE_OK)
        return status;
    status = take(c, sampler, &file, path, err);
    moe_context_close(&file);
    return status;
}
