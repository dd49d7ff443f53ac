/* Messages: what they say, and the forms in which a template takes them. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "fmt/json.h"
#include "prompt/chat_answer.h"
#include "prompt/chat_internal.h"

/* ---- Messages ---- */

/* Appends text in a form that JSON accepts. */
static void append_valid(struct moe_buf *out, const uint8_t *text, uint64_t n)
{
    for (uint64_t i = 0; i < n;) {
        int length = 1;
        moe_utf8_decode(text + i, n - i, &length);
        bool valid = text[i] && moe_utf8_valid(text + i, (uint64_t)length);
        moe_buf_append(out, valid ? (const char *)text + i : "\xEF\xBF\xBD",
                       valid ? (uint64_t)length : 3);
        i += (uint64_t)length;
    }
}

json_t *moe_chat_message(const char *role, const char *text, uint64_t n, struct moe_err *err)
{
    struct moe_buf valid = {0};
    json_t *message = NULL;
    append_valid(&valid, (const uint8_t *)text, n);
    if (!valid.failed)
        message = json_pack("{s:s,s:s%}", "role", role, "content",
                            valid.data ? (const char *)valid.data : "", (size_t)valid.size);
    moe_buf_release(&valid);
    if (!message)
        moe_fail(err, MOE_ERR_MEMORY, "out of memory: a message");
    return message;
}

const char *moe_chat_text(const json_t *message)
{
    return json_string_value(json_object_get(message, "content"));
}

static void append_text(const json_t *text, struct moe_buf *out)
{
    moe_buf_append(out, json_string_value(text), json_string_length(text));
}

void moe_chat_append_content(const json_t *message, struct moe_buf *out)
{
    const json_t *content = json_object_get(message, "content"), *part;
    size_t i;
    append_text(content, out);
    json_array_foreach(content, i, part) append_text(json_object_get(part, "text"), out);
}

bool moe_chat_has_role(const json_t *message, const char *role)
{
    const char *own = json_string_value(json_object_get(message, "role"));
    return own && strcmp(own, role) == 0;
}

int moe_chat_check_messages(const char *name, const json_t *messages, struct moe_err *err)
{
    size_t i;
    const json_t *message;
    if (json_array_size(messages) == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'messages' is %s", name,
                        json_is_array(messages)               ? "empty"
                        : messages && !json_is_null(messages) ? "not a list"
                                                              : "missing");
    json_array_foreach(messages, i, message)
    {
        if (!json_is_string(json_object_get(message, "role")))
            return moe_fail(err, MOE_ERR_FORMAT, "%s: 'messages[%zu].role' is not a string", name,
                            i);
    }
    return MOE_OK;
}

/* ---- Forms of messages ---- */

/* A change to a copy of a message, or only the question whether one is needed (change NULL).
 * jansson fails only for lack of memory, which *failed notes. */
struct change {
    const struct moe_chat *chat;
    bool make, failed;
};

static void change_member(struct change *c, json_t *object, const char *key, json_t *value)
{
    c->failed |= json_object_set_new(object, key, value) != 0;
}

static json_t *joined_content(const json_t *message)
{
    struct moe_buf all = {0};
    moe_chat_append_content(message, &all);
    json_t *text =
        all.failed ? NULL : json_stringn(all.data ? (const char *)all.data : "", all.size);
    moe_buf_release(&all);
    return text;
}

static bool all_texts(const json_t *parts)
{
    size_t i;
    const json_t *part;
    json_array_foreach(parts, i, part)
    {
        if (!json_is_string(json_object_get(part, "text")))
            return false;
    }
    return true;
}

static bool change_content(struct change *c, json_t *message)
{
    const struct chat_forms *f = &c->chat->forms;
    const json_t *content = json_object_get(message, "content");
    json_t *other = NULL;
    bool joins = f->texts_only && json_is_array(content) && all_texts(content);
    bool parts = f->parts_only && json_is_string(content);
    bool empty = f->needs_content && (!content || json_is_null(content));
    if (!joins && !parts && !empty)
        return false;
    if (c->make) {
        other = joins   ? joined_content(message)
                : parts ? json_pack("[{s:s,s:O}]", "type", "text", "text", content)
                        : json_string("");
        change_member(c, message, "content", other);
    }
    return true;
}

static bool is_system(const json_t *message)
{
    return moe_chat_has_role(message, "system") || moe_chat_has_role(message, "developer");
}

static bool change_role(struct change *c, json_t *message)
{
    const struct chat_forms *f = &c->chat->forms;
    if (!(f->no_system && is_system(message)) &&
        !(f->no_developer && moe_chat_has_role(message, "developer")))
        return false;
    if (c->make)
        change_member(c, message, "role", json_string(f->no_system ? "user" : "system"));
    return true;
}

/* Replaces the text by the object that it spells, if it is one. */
static void set_object(struct change *c, json_t *of, const json_t *text)
{
    json_t *object = NULL;
    int status = moe_json_parse_repeated(&object, "arguments", json_string_value(text),
                                         json_string_length(text), MOE_JSON_CONFIG_MEMORY, NULL);
    c->failed |= status == MOE_ERR_MEMORY;
    if (json_is_object(object))
        change_member(c, of, "arguments", object);
    else
        moe_json_free(object);
}

static bool change_arguments(struct change *c, json_t *call)
{
    json_t *function = json_object_get(call, "function");
    json_t *of = json_is_object(function) ? function : call;
    const json_t *arguments = json_object_get(of, "arguments");
    bool to_text = c->chat->forms.arguments_as_text && json_is_object(arguments);
    bool to_object = !c->chat->forms.arguments_as_text && json_is_string(arguments);
    if (!to_text && !to_object)
        return false;
    if (!c->make)
        return true;
    if (to_object) {
        set_object(c, of, arguments);
        return true;
    }
    char *text = moe_json_text(arguments, 0);
    change_member(c, of, "arguments", text ? json_string(text) : NULL);
    free(text);
    return true;
}

/* Gives a thought the name that the template takes it by. */
static bool change_thought(struct change *c, json_t *message)
{
    static const char *const names[] = {"reasoning_content", "reasoning", "thinking"};
    const char *own = c->chat->thought_member;
    for (int i = 0; own && i < 3 && !json_object_get(message, own); i++) {
        json_t *thought = json_object_get(message, names[i]);
        if (!json_is_string(thought))
            continue;
        if (c->make)
            change_member(c, message, own, json_incref(thought));
        return true;
    }
    return false;
}

/* A thought and the content behind it become one thought. */
static bool change_texts(struct change *c, json_t *message)
{
    const char *own = c->chat->thought_member;
    const json_t *thought = own ? json_object_get(message, own) : NULL;
    struct moe_buf all = {0};
    if (!c->chat->forms.one_text || !json_array_size(json_object_get(message, "tool_calls")) ||
        !json_string_length(thought))
        return false;
    moe_buf_append(&all, json_string_value(thought), json_string_length(thought));
    moe_buf_text(&all, "\n\n");
    const uint64_t n = all.size;
    moe_chat_append_content(message, &all);
    const bool both = all.failed || all.size > n;
    if (both && c->make) {
        change_member(c, message, own,
                      all.failed ? NULL : json_stringn((const char *)all.data, all.size));
        change_member(c, message, "content", json_string(""));
    }
    moe_buf_release(&all);
    return both;
}

static bool change_message(struct change *c, json_t *message)
{
    bool changed = change_content(c, message);
    changed |= change_role(c, message);
    changed |= change_thought(c, message);
    changed |= change_texts(c, message);
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    size_t i;
    json_array_foreach(calls, i, call) changed |= change_arguments(c, call);
    return changed;
}

/* Whether a message is to be one with the one before it. */
static bool joins(const struct change *c, const json_t *before, const json_t *message)
{
    const struct chat_forms *f = &c->chat->forms;
    const json_t *contents[] = {json_object_get(before, "content"),
                                json_object_get(message, "content")};
    for (int i = 0; i < 2; i++)
        if (!json_is_string(contents[i]) && !(json_is_array(contents[i]) && all_texts(contents[i])))
            return false;
    return (f->one_system && is_system(before) && is_system(message)) ||
           ((f->one_user || f->no_system) && moe_chat_has_role(before, "user") &&
            moe_chat_has_role(message, "user"));
}

/* Makes one message of those from `from` until `until`. */
static void join(struct change *c, json_t *messages, size_t from, size_t until)
{
    struct moe_buf all = {0};
    for (size_t i = from; i < until; i++) {
        moe_buf_text(&all, i > from ? "\n\n" : "");
        moe_chat_append_content(json_array_get(messages, i), &all);
    }
    json_t *text = all.failed ? NULL : json_stringn((const char *)all.data, all.size);
    change_member(
        c, json_array_get(messages, from), "content",
        c->chat->forms.parts_only ? json_pack("[{s:s,s:o*}]", "type", "text", "text", text) : text);
    moe_buf_release(&all);
}

/* A system text behind a question becomes one, and messages are joined, where the template takes
 * them in no other way. */
static bool change_order(struct change *c, json_t *messages)
{
    const size_t n = json_array_size(messages);
    bool changed = false, asked = false;
    size_t kept = 0, end;
    for (size_t i = 0; i < n; i++) {
        json_t *message = json_array_get(messages, i);
        const bool late = asked && c->chat->forms.early_system && is_system(message);
        asked |= !is_system(message);
        changed |= late;
        if (late && c->make)
            change_member(c, message, "role", json_string("user"));
    }
    for (size_t i = 0; i < n; i = end) {
        for (end = i + 1;
             end < n && joins(c, json_array_get(messages, i), json_array_get(messages, end)); end++)
            ;
        changed |= end > i + 1;
        if (!c->make)
            continue;
        if (end > i + 1)
            join(c, messages, i, end);
        json_array_set(messages, kept++, json_array_get(messages, i));
    }
    while (c->make && json_array_size(messages) > kept)
        json_array_remove(messages, json_array_size(messages) - 1);
    return changed;
}

/* ---- Tools in words, for templates that have no place for them ---- */

/* Calls in an answer become its text, what a tool said a question. */
static bool tell_calls(struct change *c, json_t *message)
{
    const struct chat_forms *f = &c->chat->forms;
    const json_t *calls = json_object_get(message, "tool_calls");
    const bool called = f->no_calls && c->chat->n_calls && json_array_size(calls);
    const bool result = f->no_results && moe_chat_has_role(message, "tool");
    struct moe_buf text = {0};
    if (!called && !result)
        return false;
    if (!c->make)
        return true;
    moe_buf_text(&text, result ? "<tool_response>\n" : "");
    moe_chat_append_content(message, &text);
    if (result)
        moe_buf_text(&text, "\n</tool_response>");
    moe_buf_text(&text, called && text.size ? "\n" : "");
    if (called)
        chat_write_calls(&c->chat->calls[0], calls, &text);
    change_member(c, message, "content",
                  text.failed ? NULL : json_stringn((const char *)text.data, text.size));
    change_member(c, message, "role", json_string(result ? "user" : "assistant"));
    json_object_del(message, "tool_calls");
    moe_buf_release(&text);
    return true;
}

/* The tools, and how to call them, for the system text. */
static void write_tools(struct change *c, const json_t *tools, struct moe_buf *out)
{
    json_t *example =
        json_pack("[{s:s,s:{s:s}}]", "name", "NAME", "arguments", "PARAMETER", "VALUE");
    const json_t *tool;
    size_t i;
    moe_buf_text(
        out,
        "# Tools\n\nYou may call these functions, each with arguments by the JSON schema of its "
        "parameters:\n<tools>\n");
    json_array_foreach(tools, i, tool)
    {
        char *text = moe_json_text(moe_chat_function(tool), 0);
        c->failed |= !text;
        moe_buf_printf(out, "%s\n", text ? text : "");
        free(text);
    }
    moe_buf_text(out, "</tools>\n\nTo call one, write:\n");
    chat_write_calls(&c->chat->calls[0], example, out);
    c->failed |= !example;
    json_decref(example);
}

/* Puts them behind the system text; where the template takes none that begins the question. */
static void tell_tools(struct change *c, json_t *messages, const json_t *tools)
{
    json_t *first = json_array_get(messages, 0);
    const bool system = is_system(first);
    struct moe_buf text = {0};
    if (system)
        moe_chat_append_content(first, &text);
    moe_buf_text(&text, text.size ? "\n\n" : "");
    write_tools(c, tools, &text);
    json_t *told = text.failed ? NULL : json_stringn((const char *)text.data, text.size);
    if (system)
        change_member(c, first, "content", told);
    else
        c->failed |=
            json_array_insert_new(messages, 0,
                                  json_pack("{s:s,s:o}", "role", "system", "content", told)) != 0;
    moe_buf_release(&text);
}

static bool change_all(struct change *c, json_t *messages, const json_t *tools)
{
    bool changed = c->chat->forms.no_tools && c->chat->n_calls && json_array_size(tools);
    size_t i;
    json_t *message;
    json_array_foreach(messages, i, message) changed |= tell_calls(c, message);
    if (c->make && c->chat->forms.no_tools && json_array_size(tools))
        tell_tools(c, messages, tools);
    json_array_foreach(messages, i, message) changed |= change_message(c, message);
    return change_order(c, messages) || changed;
}

int chat_adapt(const struct moe_chat *chat, const json_t *messages, const json_t *tools,
               json_t **out, struct moe_err *err)
{
    struct change c = {.chat = chat};
    *out = NULL;
    if (!change_all(&c, (json_t *)messages, tools))
        return MOE_OK;
    MOE_TRY(moe_json_copy(out, messages, err));
    c.make = true;
    change_all(&c, *out, tools);
    if (!c.failed)
        return MOE_OK;
    json_decref(*out);
    *out = NULL;
    return moe_fail(err, MOE_ERR_MEMORY, "out of memory: the messages");
}
