/* What APIs share that make chats of their requests: members set, and checked for their types. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "engine/sampler.h"
#include "fmt/json.h"
#include "serve/reply_internal.h"

void chat_add(struct chat_maker *m, json_t *list, json_t *value)
{
    m->failed |= json_array_append_new(list, value) != 0;
}

void chat_put(struct chat_maker *m, json_t *object, const char *key, json_t *value)
{
    m->failed |= json_object_set_new(object, key, value) != 0;
}

void chat_take(struct chat_maker *m, json_t *chat, const char *as, const json_t *body,
               const char *key)
{
    json_t *value = json_object_get(body, key);
    if (value && !json_is_null(value))
        chat_put(m, chat, as, json_incref(value));
}

void chat_add_thought(struct chat_maker *m, json_t *message, json_t *text)
{
    json_t *had = json_object_get(message, "reasoning_content");
    if (json_is_array(had)) {
        chat_add(m, had, text);
    } else {
        chat_put(m, message, "reasoning_content", json_pack("[O*,o]", had, text));
    }
}

void chat_join_thoughts(struct chat_maker *m, json_t *messages)
{
    size_t i, k;
    json_t *message, *thought;
    json_array_foreach(messages, i, message)
    {
        const json_t *thoughts = json_object_get(message, "reasoning_content");
        struct moe_buf all = {0};
        if (!json_is_array(thoughts))
            continue;
        json_array_foreach(thoughts, k, thought)
        {
            if (all.size && json_string_length(thought))
                moe_buf_text(&all, "\n\n");
            moe_buf_append(&all, json_string_value(thought), json_string_length(thought));
        }
        chat_put(m, message, "reasoning_content",
                 all.failed ? NULL : json_stringn(all.data ? (char *)all.data : "", all.size));
        moe_buf_release(&all);
    }
}

const char *chat_text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static bool is_of(const json_t *value, enum chat_type type)
{
    switch (type) {
    case CHAT_TEXT:
        return json_is_string(value);
    case CHAT_LIST:
        return json_is_array(value);
    case CHAT_OBJECT:
        return json_is_object(value);
    case CHAT_BOOL:
        return json_is_boolean(value);
    case CHAT_TEXT_OR_LIST:
        return json_is_string(value) || json_is_array(value);
    }
    return false;
}

int chat_check(struct chat_maker *m, const json_t *object, const char *where,
               const struct chat_member *members)
{
    static const char *const names[] = {[CHAT_TEXT] = "a text",
                                        [CHAT_LIST] = "a list",
                                        [CHAT_OBJECT] = "an object",
                                        [CHAT_BOOL] = "true or false",
                                        [CHAT_TEXT_OR_LIST] = "a text or a list"};
    const char *dot = *where ? "." : "";
    if (!json_is_object(object))
        return moe_fail(m->err, MOE_ERR_FORMAT, "the request: '%s' is not an object", where);
    for (; members->key; members++) {
        const json_t *value = json_object_get(object, members->key);
        bool given = value && !json_is_null(value);
        if (given ? !is_of(value, members->type) : members->needed)
            return moe_fail(m->err, MOE_ERR_FORMAT, "the request: '%s%s%s' is %s%s", where, dot,
                            members->key, given ? "not " : "missing",
                            given ? names[members->type] : "");
    }
    return MOE_OK;
}

void moe_request_ignore(char ignored[MOE_REQUEST_IGNORED], const char *path, const char *key)
{
    size_t n = strlen(ignored), room = MOE_REQUEST_IGNORED - n;
    size_t length = (n ? 2 : 0) + strlen(path) + strlen(key);
    const bool fits = length + sizeof ", ..." <= room;
    if (!fits && n >= 3 && strcmp(ignored + n - 3, "...") == 0)
        return;
    snprintf(ignored + n, fits ? room : room - 3, "%s%s%s", n ? ", " : "", path, key);
    for (char *c = ignored + n; *c; c++) /* what a header may have */
        if ((unsigned char)*c < ' ' || (unsigned char)*c >= 0x7f)
            *c = '?';
    if (!fits)
        strcat(ignored, "...");
}

int chat_check_thinking(const json_t *thinking, struct moe_err *err)
{
    static const char *const types[] = {"enabled", "adaptive", "auto", "disabled"};
    const char *type = chat_text_of(thinking, "type");
    bool known = !json_is_object(thinking);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        known |= strcmp(type, types[i]) == 0;
    return known ? MOE_OK
                 : moe_fail(err, MOE_ERR_FORMAT,
                            "the request: 'thinking.type' is none of enabled, adaptive, auto, "
                            "disabled");
}

bool chat_says_draws(const char *key)
{
    static const char *const others_of_draws[] = {
        "logit_bias",           "dry_sequence_breakers", "min_tokens", "stop_token_ids", "grammar",
        "chat_template_kwargs", "thinking_budget_tokens"};
    const struct moe_sampling_field *f;
    bool is = false;
    for (int i = 0; (f = moe_sampling_field(i)) != NULL; i++)
        is = is || strcmp(f->key, key) == 0 || (f->alias && strcmp(f->alias, key) == 0);
    for (size_t i = 0; i < sizeof others_of_draws / sizeof others_of_draws[0]; i++)
        is = is || strcmp(others_of_draws[i], key) == 0;
    return is;
}

void chat_ignore_others(struct moe_request *r, const json_t *object, const char *path,
                        const char *const *known)
{
    json_t *value;
    const char *key;
    json_object_foreach((json_t *)object, key, value)
    {
        const char *const *k = known;
        while (*k && strcmp(*k, key) != 0)
            k++;
        if (!*k && !json_is_null(value))
            moe_request_ignore(r->ignored, path, key);
    }
}

void chat_keep(struct moe_request *r, struct chat_maker *m, const json_t *body,
               const char *const *keys)
{
    json_t *kept = json_object();
    for (; *keys; keys++)
        chat_take(m, kept, *keys, body, *keys);
    r->asked = moe_json_text(kept, JSON_COMPACT);
    m->failed |= !r->asked;
    json_decref(kept);
}

int chat_end(const struct chat_maker *m, int status)
{
    return status == MOE_OK && m->failed
               ? moe_fail(m->err, MOE_ERR_MEMORY, "out of memory: the request")
               : status;
}
