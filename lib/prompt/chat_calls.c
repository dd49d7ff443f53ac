/*
 * Learns from a template how an answer calls tools: renders conversations with calls of words that
 * no template contains, and takes the texts around their names, keys and values. Forms that
 * templates do not write are a table.
 */
#define _GNU_SOURCE /* memmem */

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "fmt/json.h"
#include "prompt/chat_answer.h"
#include "prompt/chat_internal.h"

#define TOOL "fD2Mq7Se"
#define TOOL2 "fV5Hy3Ka"
#define KEY "kH9Wj4Zu"
#define KEY2 "kP3Xe8Tn"
#define VALUE "vC3Rx6Ly"
#define THOUGHT "tB8Pz3Jm"
#define NUMBER "7731406"
#define ID "iDqWzTmx1"
#define ID2 "iDqWzTmx2"

enum { MAX_PIECE = 512, MAX_MARK = 64, MAX_SCHEMA_DEPTH = 8 };

/* ---- What readers and writers of calls share ---- */

bool chat_json_walk(struct json_walk *w, char c)
{
    if (w->in_text) {
        w->in_text = w->escaped || c != '"';
        w->escaped = !w->escaped && c == '\\';
        return false;
    }
    w->in_text = c == '"';
    w->depth += c == '{' || c == '[';
    w->depth -= w->depth && (c == '}' || c == ']');
    return w->depth == 0 && (c == '}' || c == ']');
}

const char *chat_next_mark(const char *piece)
{
    piece += *piece != 0;
    piece += strcspn(piece, "<[");
    return *piece ? piece : NULL;
}

unsigned moe_chat_value_kind(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_STRING:
        return MOE_VALUE_TEXT;
    case JSON_INTEGER:
    case JSON_REAL:
        return MOE_VALUE_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE:
        return MOE_VALUE_BOOLEAN;
    case JSON_NULL:
        return MOE_VALUE_NULL;
    case JSON_ARRAY:
        return MOE_VALUE_LIST;
    case JSON_OBJECT:
        break;
    }
    return moe_json_digits(value) ? MOE_VALUE_NUMBER : MOE_VALUE_OBJECT;
}

static unsigned kind_of_type(const json_t *type)
{
    static const struct {
        const char *name;
        unsigned kind;
    } types[] = {{"string", MOE_VALUE_TEXT},   {"integer", MOE_VALUE_NUMBER},
                 {"number", MOE_VALUE_NUMBER}, {"boolean", MOE_VALUE_BOOLEAN},
                 {"null", MOE_VALUE_NULL},     {"array", MOE_VALUE_LIST},
                 {"object", MOE_VALUE_OBJECT}};
    const char *name = json_string_value(type);
    for (size_t i = 0; name && i < sizeof types / sizeof types[0]; i++)
        if (strcmp(types[i].name, name) == 0)
            return types[i].kind;
    return MOE_VALUE_ANY;
}

const json_t *chat_referenced(const json_t *parameters, const json_t *schema)
{
    const char *reference = json_string_value(json_object_get(schema, "$ref")); /* "#/$defs/A" */
    const json_t *at = parameters;
    char key[128];
    int n = 0;
    if (!reference)
        return schema;
    if (*reference++ != '#')
        return NULL;
    for (; at && sscanf(reference, "/%127[^/]%n", key, &n) == 1; reference += n)
        at = json_object_get(at, key);
    return *reference ? NULL : at;
}

static unsigned values_of(const json_t *parameters, const json_t *schema, int depth)
{
    static const char *const alternatives[] = {"type", "enum", "anyOf", "oneOf", "allOf"};
    const json_t *only = json_object_get(schema, "const"), *one;
    const json_t *target = chat_referenced(parameters, schema);
    unsigned kinds = only ? moe_chat_value_kind(only) : MOE_VALUE_ANY;
    size_t k;
    if (depth > MAX_SCHEMA_DEPTH)
        return MOE_VALUE_ANY;
    for (size_t i = 0; i < sizeof alternatives / sizeof alternatives[0]; i++) {
        const json_t *list = json_object_get(schema, alternatives[i]);
        unsigned any = 0, all = MOE_VALUE_ANY;
        json_array_foreach(list, k, one)
        {
            unsigned these = i == 0   ? kind_of_type(one)
                             : i == 1 ? moe_chat_value_kind(one)
                                      : values_of(parameters, one, depth + 1);
            any |= these;
            all &= these;
        }
        if (json_array_size(list))
            kinds &= i == 4 ? all : any;
        else if (i == 0)
            kinds &= kind_of_type(list);
    }
    if (target != schema)
        kinds &= values_of(parameters, target, depth + 1);
    return kinds;
}

unsigned moe_chat_values(const json_t *parameters, const json_t *schema)
{
    return values_of(parameters, schema, 0);
}

/* ---- Tools ---- */

static int check_tool(const char *where, const json_t *tools, size_t i, struct moe_err *err)
{
    const json_t *tool = json_array_get(tools, i), *function = moe_chat_function(tool);
    const json_t *type = json_object_get(tool, "type"), *name = json_object_get(function, "name");
    const json_t *parameters = json_object_get(function, "parameters");
    if (!json_is_object(tool))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'tools[%zu]' is not an object", where, i);
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'tools[%zu].type' is not 'function'", where, i);
    size_t n = json_string_length(name);
    if (n == 0 || n > MOE_CHAT_MAX_TOOL_NAME ||
        strcspn(json_string_value(name), "\"\\\b\f\n\r\t<>{}") != n)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'tools[%zu].function.name' is not 1 to %d bytes without quotes, "
                        "backslashes, tabs, line breaks, < > { and }",
                        where, i, MOE_CHAT_MAX_TOOL_NAME);
    if (parameters && !json_is_null(parameters) && !json_is_object(parameters))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'tools[%zu].function.parameters' is not an object", where, i);
    return MOE_OK;
}

int moe_chat_check_tools(const char *name, const json_t *tools, struct moe_err *err)
{
    if (tools && !json_is_null(tools) && !json_is_array(tools))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'tools' is not a list", name);
    for (size_t i = 0; i < json_array_size(tools); i++)
        MOE_TRY(check_tool(name, tools, i, err));
    return MOE_OK;
}

/* ---- Pieces of a rendered text ---- */

struct piece {
    const char *at;
    size_t n;
};

static struct piece piece(const char *from, const char *to)
{
    return (struct piece){from, to > from ? (size_t)(to - from) : 0};
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Whether bytes of two calls are the same, but for a number that may count the calls. */
static bool alike(char a, char b)
{
    return a == b || (is_digit(a) && is_digit(b));
}

/* Where the mark begins, like "<|call|>", that is open at the end of text; n: none is. */
static size_t open_mark(const char *text, size_t n)
{
    for (size_t i = n; i > 0 && n - i < MAX_MARK; i--) {
        if (text[i - 1] == '>' || text[i - 1] == ']' || moe_is_blank(text[i - 1]))
            break;
        if (text[i - 1] == '<' || text[i - 1] == '[')
            return i - 1;
    }
    return n;
}

/* Bytes at the end that both have, from the beginning of a mark on. */
static size_t common_end(struct piece a, struct piece b)
{
    size_t n = 0;
    while (n < a.n && n < b.n && alike(a.at[a.n - 1 - n], b.at[b.n - 1 - n]))
        n++;
    if ((n == a.n || open_mark(a.at, a.n - n) == a.n - n) &&
        (n == b.n || open_mark(b.at, b.n - n) == b.n - n))
        return n;
    const char *from = a.at + a.n - n;
    size_t cut = 0;
    while (cut < n && !strchr("<[\n", from[cut]))
        cut++;
    return n - cut;
}

/* Bytes at the beginning that both have, up to the end of a mark. */
static size_t common_begin(struct piece a, struct piece b)
{
    size_t n = 0;
    while (n < a.n && n < b.n && alike(a.at[n], b.at[n]))
        n++;
    return n == a.n || n == b.n ? n : open_mark(a.at, n);
}

/* Takes n bytes from a piece's beginning or end. */
static struct piece take_begin(struct piece *from, size_t n)
{
    struct piece taken = {from->at, n};
    from->at += n;
    from->n -= n;
    return taken;
}

static struct piece take_end(struct piece *from, size_t n)
{
    from->n -= n;
    return (struct piece){from->at + from->n, n};
}

/* A copy in which the call's own words and numbers are holes. other: the same bytes of a second
 * call, NULL: there is none. The form owns it; *failed if it is too long or memory is short. */
static char *with_holes(struct piece from, const char *other, bool *failed)
{
    static const struct {
        const char *word;
        uint8_t hole;
    } words[] = {{TOOL, CALL_NAME}, {KEY, CALL_KEY}, {KEY2, CALL_KEY}};
    enum { N_WORDS = sizeof words / sizeof words[0] };
    struct moe_buf out = {0};
    for (size_t i = 0; i < from.n;) {
        size_t w = 0, left = from.n - i;
        while (w < N_WORDS && (left < strlen(words[w].word) ||
                               memcmp(from.at + i, words[w].word, strlen(words[w].word)) != 0))
            w++;
        if (w < N_WORDS) {
            moe_buf_u8(&out, words[w].hole);
            i += strlen(words[w].word);
            continue;
        }
        bool counts = other && from.at[i] != other[i] && is_digit(from.at[i]) && is_digit(other[i]);
        moe_buf_u8(&out, counts ? CALL_NUMBER : (uint8_t)from.at[i]);
        i++;
    }
    moe_buf_u8(&out, 0);
    *failed |= out.failed;
    return (char *)out.data;
}

/* ---- Conversations ---- */

static json_t *parameters(void)
{
    return json_pack("{s:s,s:{s:{s:s,s:s},s:{s:s,s:s}},s:[s]}", "type", "object", "properties", KEY,
                     "type", "string", "description", "", KEY2, "type", "integer", "description",
                     "", "required", KEY);
}

static json_t *tools(void)
{
    json_t *list = json_array();
    for (int i = 0; i < 2; i++)
        json_array_append_new(list, json_pack("{s:s,s:{s:s,s:s,s:o}}", "type", "function",
                                              "function", "name", i ? TOOL2 : TOOL, "description",
                                              "", "parameters", parameters()));
    return list;
}

enum arguments { TEXT_ONLY, TEXT_AND_NUMBER, TEXT_AND_LIST };

/* named_ids: the id names the function, for templates that write nothing else (Kimi-K2). */
static json_t *call(const struct moe_chat *chat, bool second, enum arguments which, bool named_ids)
{
    const char *id = named_ids ? (second ? "functions." TOOL2 ":1" : "functions." TOOL ":0")
                     : second  ? ID2
                               : ID;
    json_t *arguments = json_pack("{s:s}", KEY, VALUE);
    if (which != TEXT_ONLY)
        json_object_set_new(arguments, KEY2,
                            which == TEXT_AND_LIST ? json_pack("[i]", atoi(NUMBER))
                                                   : json_integer(atoi(NUMBER)));
    if (chat->forms.arguments_as_text) {
        char *text = moe_json_text(arguments, 0);
        json_decref(arguments);
        arguments = json_string(text ? text : "");
        free(text);
    }
    return json_pack("{s:s,s:s,s:{s:s,s:o}}", "id", id, "type", "function", "function", "name",
                     second ? TOOL2 : TOOL, "arguments", arguments);
}

/* Writes a conversation that ends with one or two calls, or with a text if there is no call; ids
 * are holes in it. */
static bool write_calls(struct chat_probe *p, json_t *first, json_t *second, const char *thought,
                        struct moe_buf *out)
{
    json_t *calls = first ? json_pack("[o,o*]", first, second) : NULL;
    json_t *answer = json_pack("{s:s,s:o}", "role", "assistant", "content",
                               probe_content(p, calls ? "" : PROBE_ANSWER));
    if (calls)
        json_object_set_new(answer, "tool_calls", calls);
    if (thought)
        json_object_set_new(answer, p->chat->thought_member, json_string(thought));
    if (!probe_write(p,
                     json_pack("[{s:s,s:o},o]", "role", "user", "content",
                               probe_content(p, PROBE_USER), answer),
                     tools(), false, out))
        return false;
    char *text = (char *)out->data;
    for (char *at = text; (at = strstr(at, "iDqWzTmx")); at++) {
        memmove(at + 1, at + strlen(ID), strlen(at + strlen(ID)) + 1);
        *at = CALL_ID;
    }
    return true;
}

/* Writes the question, with the opening of an answer. */
static bool write_prompt(struct chat_probe *p, struct moe_buf *out)
{
    return probe_write(
        p, json_pack("[{s:s,s:o}]", "role", "user", "content", probe_content(p, PROBE_USER)),
        tools(), true, out);
}

/* ---- What is around a call ---- */

/* The parts of a rendered call. */
struct parts {
    struct piece before; /* up to the name, or to the object that has it */
    struct piece named;  /* up to the arguments: their object, or the first key */
    const char *key, *value,
        *end; /* of the first argument; the first byte after the call's last word */
    struct piece name_key, arguments_key;
    struct piece object_begins, object_ends; /* of an object with the name first */
    enum call_style style;
};

/* The place after an object that begins at `text`; NULL: it is none. */
static const char *after_object(const char *text)
{
    struct json_walk walk = {0};
    for (const char *at = text; *at; at++)
        if (chat_json_walk(&walk, *at))
            return at + 1;
    return NULL;
}

/* Goes back over blanks. */
static const char *back_blanks(const char *from, const char *at)
{
    while (at > from && moe_is_blank(at[-1]))
        at--;
    return at;
}

/* The key before a value at `at`, as in "key": value; n 0: there is none. */
static struct piece key_before(const char *from, const char *at)
{
    const char *end = back_blanks(from, at);
    if (end == from || end[-1] != ':')
        return (struct piece){0};
    end = back_blanks(from, end - 1);
    if (end == from || end[-1] != '"')
        return (struct piece){0};
    const char *begin = --end;
    while (begin > from && begin[-1] != '"')
        begin--;
    return begin > from ? piece(begin, end) : (struct piece){0};
}

/* The last '{' before `at`; NULL: there is none. */
static const char *brace_before(const char *from, const char *at)
{
    while (at > from && at[-1] != '{')
        at--;
    return at > from ? at - 1 : NULL;
}

/* Finds the parts of the call of `name` in text. */
static bool find_parts(const char *text, const char *name, struct parts *out)
{
    const char *at = strstr(text, name), *key = at ? strstr(at, KEY) : NULL, *object = NULL;
    *out = (struct parts){.style = CALLS_PARAMETERS};
    if (at && !key) /* the arguments come first */
        key = strstr(text, KEY);
    if (!at || !key || !(out->value = strstr(key, VALUE)))
        return false;
    const char *named = at + strlen(name), *open = back_blanks(text, key - (key > text));
    out->key = key;
    if (key > text && key[-1] == '"' && open > text && open[-1] == '{')
        object = open - 1;
    const char *behind = object ? after_object(object) : NULL;
    if (behind && behind > out->value) {
        out->style = CALLS_JSON;
        const char *first = at < object ? at : object, *outer = brace_before(text, first);
        out->name_key = at > text && at[-1] == '"' ? key_before(text, at - 1) : (struct piece){0};
        out->arguments_key = key_before(text, object);
        const char *outer_end =
            outer && out->name_key.n && out->arguments_key.n ? after_object(outer) : NULL;
        if (outer_end && outer_end > behind) {
            out->style = CALLS_OBJECT;
            if (at < object) {
                out->object_begins = piece(outer, at);
                out->named = piece(at + strlen(name), object);
                out->object_ends = piece(behind, outer_end);
            }
            out->before = piece(text, outer);
            out->end = outer_end;
            return true;
        }
    }
    if (named > key)
        return false;
    out->before = piece(text, at);
    out->named = piece(named, out->style == CALLS_JSON ? object : key);
    out->end = out->style == CALLS_JSON ? behind : out->value + strlen(VALUE);
    return true;
}

/* ---- Learning ---- */

/* The bytes of a mark that text begins with and the prompt ends with. */
static size_t repeated_mark(const char *text, const char *prompt)
{
    const size_t n = strchr("<[", *text) ? strcspn(text, ">]") + 1 : 0, m = strlen(prompt);
    return n < MAX_MARK && n <= m && memcmp(prompt + m - n, text, n) == 0 ? n : 0;
}

/* Where the calls of an answer begin: where it differs from an answer in words, or from what opens
 * it, which may have instructions before its last mark. */
static const char *begin_of_calls(const char *calls, const char *answer, const char *prompt)
{
    size_t n = 0, opens = 0;
    const char *end = strstr(answer, PROBE_ANSWER);
    while (calls[n] && calls[n] == answer[n] && (!end || answer + n < end))
        n++;
    while (calls[opens] && calls[opens] == prompt[opens])
        opens++;
    n = open_mark(calls, n);
    const char *begin =
        opens < n && !memchr(calls + opens, '>', n - opens) ? calls + opens : calls + n;
    return begin + repeated_mark(begin, prompt);
}

/* Cuts a piece where the answer ends. */
static void cut_at_stop(const struct moe_chat *chat, struct piece *end)
{
    for (char **stop = chat->stops; *stop; stop++) {
        const char *at = strstr(end->at, *stop);
        if (at && at < end->at + end->n)
            end->n = (size_t)(at - end->at);
    }
}

/* What ends the key of a value that is no text: where the marks differ in one word, as
 * type="string" and type="number" do, any word. */
static char *other_key_ends(const char *text_ends, struct piece ends, bool *failed)
{
    size_t n_text = strlen(text_ends), head = 0, tail = 0;
    while (head < n_text && head < ends.n && text_ends[head] == ends.at[head])
        head++;
    while (tail < n_text - head && tail < ends.n - head &&
           text_ends[n_text - 1 - tail] == ends.at[ends.n - 1 - tail])
        tail++;
    while (head && ends.at[head - 1] != '"')
        head--;
    struct moe_buf out = {0};
    bool differ = head && tail && (n_text != ends.n || memcmp(text_ends, ends.at, n_text) != 0);
    moe_buf_append(&out, ends.at, differ ? head : ends.n);
    if (differ) {
        const char *quote = memchr(ends.at + head, '"', ends.n - head);
        moe_buf_u8(&out, CALL_WORD);
        moe_buf_append(&out, quote ? quote : ends.at + ends.n - tail,
                       quote ? (size_t)(ends.at + ends.n - quote) : tail);
    }
    moe_buf_u8(&out, 0);
    *failed |= out.failed;
    return (char *)out.data;
}

/* Learns what is around keys and values from a call with a number behind the text. */
static bool learn_parameters(struct chat_probe *p, struct call_form *form, const struct parts *one,
                             const struct parts *second, const char *both, struct piece *post)
{
    const char *value = strstr(both, VALUE), *key2 = value ? strstr(value, KEY2) : NULL,
               *number = key2 ? strstr(key2, NUMBER) : NULL;
    if (!number)
        return false;
    struct piece named = one->named, inner = piece(value + strlen(VALUE), key2),
                 last = piece(number + strlen(NUMBER), both + strlen(both));
    struct piece key_begins = take_end(&named, common_end(named, inner));
    inner.n -= key_begins.n;
    struct piece value_ends = take_begin(post, common_begin(*post, inner));
    take_begin(&inner, value_ends.n);
    bool failed = false;
    size_t tail = last.n < post->n ? 0 : post->n; /* both calls end alike */
    bool same = second->named.n == one->named.n;
    form->named = with_holes(named, same ? second->named.at : NULL, &failed);
    form->key_begins = with_holes(key_begins, NULL, &failed);
    form->text.key_ends = with_holes(piece(one->key + strlen(KEY), one->value), NULL, &failed);
    form->text.value_ends = with_holes(value_ends, NULL, &failed);
    form->other.key_ends =
        other_key_ends(form->text.key_ends, piece(key2 + strlen(KEY2), number), &failed);
    form->other.value_ends = with_holes((struct piece){last.at, last.n - tail}, NULL, &failed);
    form->parameter_between = with_holes(inner, NULL, &failed);
    p->short_of_memory |= failed;
    return !failed && tail && memcmp(last.at + last.n - tail, post->at, tail) == 0;
}

/* *head begins with what ends *tail from byte `from` on. */
static void move_end(char **head, const char *tail, size_t from, bool *failed)
{
    const size_t n = strlen(tail + from), m = strlen(*head);
    char *moved = malloc(n + m + 1);
    *failed |= !moved;
    if (!moved)
        return;
    memcpy(moved, tail + from, n);
    memcpy(moved + n, *head, m + 1);
    free(*head);
    *head = moved;
}

/* Where marks begin alike, the beginning of the next seems to end each: it goes where it belongs
 * (MiniMax-M3, whose marks begin with ]). */
static void move_beginnings(struct call_form *f, bool *failed)
{
    char *const end = strrchr(f->text.value_ends, '>'), *const other =
                                                            strrchr(f->other.value_ends, '>');
    const char *next = end ? end + 1 : "";
    const size_t n = strlen(next), n_named = strlen(f->named);
    if (n == 0 || moe_is_blank(*next) || !other || strcmp(other + 1, next) != 0 || n_named < n ||
        strcmp(f->named + n_named - n, next) != 0)
        return;
    move_end(&f->key_begins, f->named, n_named - n, failed);
    move_end(&f->close, f->named, n_named - n, failed);
    f->named[n_named - n] = end[1] = other[1] = 0;
}

/* Learns a form of the renderings of one call, of two (NULL: the template takes one at a time), of
 * one with a number, each from where the answer's call begins. */
static bool learn_form(struct chat_probe *p, const char *one, const char *two, const char *both,
                       struct call_form *form)
{
    struct parts first, second = {0};
    bool failed = false;
    if (!find_parts(one, TOOL, &first))
        return false;
    struct piece before = first.before, post = piece(first.end, one + strlen(one)),
                 middle = {one, 0};
    const char *behind = two && find_parts(two, TOOL, &second) ? second.end : NULL;
    form->single = !behind || !find_parts(behind, TOOL2, &second);
    form->style = first.style;
    if (form->style == CALLS_PARAMETERS &&
        !(both && learn_parameters(p, form, &first, &second, both, &post)))
        return false;
    if (!form->single) {
        middle = second.before;
        take_begin(&middle, (size_t)(post.at - first.end)); /* the value's end */
    }
    cut_at_stop(p->chat, &post);
    size_t n_open = form->single ? before.n : common_end(before, middle);
    struct piece open = take_end(&before, n_open),
                 open2 = take_end(&middle, form->single ? 0 : n_open);
    size_t n_close = form->single ? post.n : common_begin(post, middle);
    struct piece close = take_begin(&post, n_close);
    take_begin(&middle, form->single ? 0 : n_close);
    if (before.n + open.n + close.n + middle.n > MAX_PIECE)
        return false;
    if (post.n > MAX_PIECE) /* instructions behind the end */
        post.n = strcspn(post.at, "<") < MAX_PIECE ? strcspn(post.at, "<") : 0;
    form->begin = with_holes(before, NULL, &failed);
    form->open = with_holes(open, form->single ? NULL : open2.at, &failed);
    bool same = !form->single && second.named.n == first.named.n;
    if (form->style == CALLS_JSON)
        form->named = with_holes(first.named, same ? second.named.at : NULL, &failed);
    form->close = with_holes(close, NULL, &failed);
    form->between = with_holes(middle, NULL, &failed);
    form->end = with_holes(post, NULL, &failed);
    if (form->style == CALLS_OBJECT) {
        form->name_key = with_holes(first.name_key, NULL, &failed);
        form->arguments_key = with_holes(first.arguments_key, NULL, &failed);
        if (first.object_begins.n) {
            const char *others[] = {same ? second.object_begins.at : NULL,
                                    same ? second.named.at : NULL,
                                    same ? second.object_ends.at : NULL};
            form->object_begins = with_holes(first.object_begins, others[0], &failed);
            form->named = with_holes(first.named, others[1], &failed);
            form->object_ends = with_holes(first.object_ends, others[2], &failed);
        }
    }
    if (form->style == CALLS_PARAMETERS && !failed)
        move_beginnings(form, &failed);
    p->short_of_memory |= failed;
    return !failed;
}

/* The mark around texts that numbers don't have, which begins and ends them within other values
 * too; NULL: none. */
static char *quote_of(struct chat_probe *p, const struct call_form *form)
{
    size_t n_text = strlen(form->text.key_ends), n_other = strlen(form->other.key_ends);
    if (n_text <= n_other || strncmp(form->text.key_ends, form->other.key_ends, n_other) != 0 ||
        strncmp(form->text.value_ends, form->text.key_ends + n_other, n_text - n_other) != 0)
        return NULL;
    char *quote = moe_strndup(form->text.key_ends + n_other, n_text - n_other, NULL);
    p->short_of_memory |= !quote;
    return quote;
}

/* Learns whether items of a list are elements. */
static void learn_elements(struct chat_probe *p, struct call_form *form)
{
    struct moe_buf list = {0}, item = {0};
    moe_buf_printf(&item, "%s" ITEM "%s" NUMBER, form->key_begins, form->other.key_ends);
    moe_buf_u8(&item, 0);
    p->short_of_memory |= item.failed;
    form->elements =
        !item.failed &&
        write_calls(p, call(p->chat, false, TEXT_AND_LIST, false), NULL, NULL, &list) &&
        strstr((const char *)list.data, (const char *)item.data);
    moe_buf_release(&list);
    moe_buf_release(&item);
}

/* ---- Forms that templates do not write ---- */

/* A preamble is what it says to the user before a call. */
static const char *const harmony_contents[] = {"<|channel|>final\5<|message|>",
                                               "<|channel|>commentary<|message|>", NULL};
/* openai/gpt-oss, the harmony format: what models write differs from the template's order. */
#define HARMONY(begins, goes_on)                                                                   \
    {                                                                                              \
        .style = CALLS_JSON, .begin = "", .open = begins, .named = goes_on "\5<|message|>",        \
        .close = "<|call|>", .between = "", .end = "", .contents = harmony_contents                \
    }

/* Forms of models whose templates have the mark, or another that goes with it, or whose tokenizers
 * have it as a token. beside: also where the template writes another form. */
static const struct known_form {
    const char *mark, *other;
    bool beside;
    struct call_form form;
} known[] = {
    {"<|channel|>", NULL, true, HARMONY("<|channel|>commentary to=functions.", "")},
    {"<|channel|>", NULL, true, HARMONY("<|channel|>analysis to=functions.", "")},
    {"<|channel|>", NULL, true, HARMONY(" to=functions.", "<|channel|>\6")},
    /* LiquidAI/LFM2: a list of Python's calls. */
    {"<|tool_call_start|>",
     "<|tool_list_start|>",
     false,
     {.style = CALLS_PARAMETERS,
      .begin = "<|tool_call_start|>[",
      .open = "",
      .named = "(",
      .key_begins = "",
      .text = {"=\"", "\""},
      .other = {"=", ""},
      .quote = "\"",
      .parameter_between = ", ",
      .close = ")",
      .between = ", ",
      .end = "]<|tool_call_end|>"}},
    /* ibm-granite/granite-3: a list of objects. */
    {"<|tool_call|>",
     NULL,
     false,
     {.style = CALLS_OBJECT,
      .begin = "<|tool_call|>[",
      .open = "",
      .name_key = "name",
      .arguments_key = "arguments",
      .object_begins = "{\"name\": \"",
      .named = "\", \"arguments\": ",
      .object_ends = "}",
      .close = "",
      .between = ", ",
      .end = "]"}},
    /* Qwen2.5 and many others, described in the system text (SmolLM3). */
    {"<tool_call>",
     NULL,
     false,
     {.style = CALLS_OBJECT,
      .begin = "",
      .open = "<tool_call>\n",
      .name_key = "name",
      .arguments_key = "arguments",
      .object_begins = "{\"name\": \"",
      .named = "\", \"arguments\": ",
      .object_ends = "}",
      .close = "\n</tool_call>",
      .between = "\n",
      .end = ""}},
};

/* The last is also that of models whose template has no place for tools. */
static void add_known(struct chat_probe *p, const char *source, size_t n)
{
    struct moe_chat *chat = p->chat;
    const size_t last = sizeof known / sizeof known[0] - 1;
    for (size_t i = 0; i <= last; i++)
        if ((chat->n_calls == 0 || known[i].beside) && chat->n_calls < MAX_CALL_FORMS &&
            (memmem(source, n, known[i].mark, strlen(known[i].mark)) ||
             (known[i].other && memmem(source, n, known[i].other, strlen(known[i].other))) ||
             (!known[i].beside && moe_tokenizer_find(p->tok, known[i].mark) >= 0) ||
             (i == last && chat->forms.no_tools))) {
            chat->calls[chat->n_calls] = known[i].form;
            chat->calls[chat->n_calls++].borrowed = true;
        }
}

bool chat_texts_are_json(const struct call_form *form)
{
    return form->quote && strlen(form->quote) == 1;
}

/* Appends a piece of a form with its holes filled. */
static void fill(const char *piece, const char *name, const char *key, struct moe_buf *out)
{
    static const char *const fillings[] = {
        [CALL_ID] = "0", [CALL_NUMBER] = "0", [CALL_ANY] = "", [CALL_WORD] = "string"};
    for (; *piece; piece++) {
        if (*piece == CALL_NAME || *piece == CALL_KEY)
            moe_buf_text(out, *piece == CALL_NAME ? name : key);
        else if ((uint8_t)*piece <= CALL_WORD)
            moe_buf_text(out, fillings[(uint8_t)*piece]);
        else
            moe_buf_u8(out, (uint8_t)*piece);
    }
}

static void fill_value(const json_t *value, bool bare, struct moe_buf *out)
{
    char *text = bare ? NULL : moe_json_text(value, JSON_ENCODE_ANY);
    out->failed |= !bare && !text;
    moe_buf_text(out, bare ? json_string_value(value) : text ? text : "");
    free(text);
}

static void write_parameters(const struct call_form *f, const char *name, const json_t *arguments,
                             struct moe_buf *out)
{
    const char *key, *between = "";
    json_t *value;
    json_object_foreach((json_t *)arguments, key, value)
    {
        const bool text = json_is_string(value) && !chat_texts_are_json(f);
        fill(between, name, key, out);
        fill(f->key_begins, name, key, out);
        moe_buf_text(out, key);
        fill(text ? f->text.key_ends : f->other.key_ends, name, key, out);
        fill_value(value, text, out);
        fill(text ? f->text.value_ends : f->other.value_ends, name, key, out);
        between = f->parameter_between;
    }
}

static void write_call(const struct call_form *f, const char *name, const json_t *arguments,
                       struct moe_buf *out)
{
    const bool ordered = f->style != CALLS_OBJECT || f->object_begins;
    fill(f->open, name, "", out);
    if (!ordered)
        moe_buf_printf(out, "{\"%s\": \"", f->name_key);
    else if (f->style == CALLS_OBJECT)
        fill(f->object_begins, name, "", out);
    moe_buf_text(out, name);
    if (!ordered)
        moe_buf_printf(out, "\", \"%s\": ", f->arguments_key);
    else
        fill(f->named, name, "", out);
    if (f->style == CALLS_PARAMETERS)
        write_parameters(f, name, arguments, out);
    else
        fill_value(arguments, false, out);
    if (f->style == CALLS_OBJECT)
        fill(ordered ? f->object_ends : "}", name, "", out);
    fill(f->close, name, "", out);
}

void chat_write_calls(const struct call_form *f, const json_t *calls, struct moe_buf *out)
{
    size_t i;
    const json_t *call;
    fill(f->begin, "", "", out);
    json_array_foreach(calls, i, call)
    {
        const json_t *function = moe_chat_function(call),
                     *given = json_object_get(function, "arguments");
        const char *name = json_string_value(json_object_get(function, "name"));
        json_t *read = NULL;
        if (json_is_string(given) &&
            moe_json_parse_repeated(&read, "arguments", json_string_value(given),
                                    json_string_length(given), MOE_JSON_CONFIG_MEMORY,
                                    NULL) == MOE_ERR_MEMORY)
            out->failed = true;
        json_t *arguments = read                    ? read
                            : json_is_object(given) ? json_incref((json_t *)given)
                                                    : json_object();
        fill(i ? f->between : "", "", "", out);
        write_call(f, name ? name : "", arguments, out);
        json_decref(arguments);
    }
    fill(f->end, "", "", out);
}

/* ---- All of it ---- */

/* Finds what ends a thought before a call, where what ends one before a content is longer. */
static void learn_thought_end(struct chat_probe *p)
{
    struct moe_chat *chat = p->chat;
    const struct call_form *form = &chat->calls[0];
    const char *begin = *form->begin ? form->begin : form->open;
    struct moe_buf out = {0};
    if (!chat->thought_member || !*begin ||
        !write_calls(p, call(chat, false, TEXT_ONLY, false), NULL, THOUGHT, &out)) {
        moe_buf_release(&out);
        return;
    }
    const char *thought = strstr((const char *)out.data, THOUGHT),
               *at = thought ? thought + strlen(THOUGHT) : NULL;
    const char *call_at = at ? strstr(at, begin) : NULL;
    while (call_at && at < call_at && moe_is_blank(*at))
        at++;
    while (call_at && call_at > at && moe_is_blank(call_at[-1]))
        call_at--;
    if (call_at > at && call_at - at < MAX_PIECE) {
        const size_t n = (size_t)(call_at - at);
        char *ends = moe_strndup(at, n, NULL), *whole = chat->thought_ends;
        const bool only_calls = strstr(whole, TOOL); /* thoughts are written before calls only */
        const bool longer = !only_calls && strncmp(whole, at, n) == 0 && whole[n];
        p->short_of_memory |= !ends;
        if (ends && (longer || only_calls)) {
            chat->thought_ends = ends;
            chat->thought_ends_content = longer ? whole : NULL;
            ends = longer ? NULL : whole;
        }
        free(ends);
    }
    moe_buf_release(&out);
}

void chat_learn_calls(struct chat_probe *p, const char *source, size_t n)
{
    struct moe_chat *chat = p->chat;
    struct moe_buf prompt = {0}, answer = {0}, one = {0}, two = {0}, both = {0};
    bool named_ids = false;
    if (!chat->forms.no_calls && write_calls(p, NULL, NULL, NULL, &answer) &&
        write_prompt(p, &prompt) &&
        write_calls(p, call(chat, false, TEXT_ONLY, false), NULL, NULL, &one)) {
        const char *begin = begin_of_calls((const char *)one.data, (const char *)answer.data,
                                           (const char *)prompt.data);
        named_ids = !strstr(begin, TOOL) && strchr(begin, CALL_ID);
        bool written =
            !named_ids || write_calls(p, call(chat, false, TEXT_ONLY, true), NULL, NULL, &one);
        size_t at = (size_t)(begin - (const char *)one.data);
        bool has_two = written && write_calls(p, call(chat, false, TEXT_ONLY, named_ids),
                                              call(chat, true, TEXT_ONLY, named_ids), NULL, &two);
        bool has_both = written && write_calls(p, call(chat, false, TEXT_AND_NUMBER, named_ids),
                                               NULL, NULL, &both);
        struct call_form *form = &chat->calls[0];
        if (written &&
            learn_form(p, (const char *)one.data + at, has_two ? (const char *)two.data + at : NULL,
                       has_both ? (const char *)both.data + at : NULL, form)) {
            chat->n_calls = 1;
            if (form->style == CALLS_PARAMETERS) {
                form->quote = quote_of(p, form);
                learn_elements(p, form);
            }
            learn_thought_end(p);
        } else {
            chat_free_calls(form);
        }
    }
    add_known(p, source, n);
    moe_buf_release(&prompt);
    moe_buf_release(&answer);
    moe_buf_release(&one);
    moe_buf_release(&two);
    moe_buf_release(&both);
}

const char *moe_chat_call_stop(const struct moe_chat *chat, const char **then)
{
    const struct call_form *f = &chat->calls[0];
    const char *lead = chat->n_calls == 0 ? "" : *f->begin ? f->begin : f->open;
    for (char **stop = chat->stops; *lead && *stop; stop++) {
        const size_t n = strlen(*stop);
        *then = lead + n;
        if (strncmp(lead, *stop, n) == 0 && lead[n] && !strpbrk(lead, "\1\2\3\4\5\6"))
            return *stop;
    }
    return NULL;
}

void chat_free_calls(struct call_form *form)
{
    if (!form->borrowed) {
        char *const texts[] = {form->begin,
                               form->open,
                               form->named,
                               form->close,
                               form->between,
                               form->end,
                               form->name_key,
                               form->arguments_key,
                               form->object_begins,
                               form->object_ends,
                               form->key_begins,
                               form->text.key_ends,
                               form->text.value_ends,
                               form->other.key_ends,
                               form->other.value_ends,
                               form->parameter_between,
                               form->quote};
        for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
            free(texts[i]);
    }
    *form = (struct call_form){0};
}
