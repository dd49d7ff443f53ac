/* Reads answers: thoughts, content and calls of tools, as they come. */
#define _GNU_SOURCE /* memmem */

#include "prompt/chat_answer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/text.h"
#include "fmt/emit.h"
#include "fmt/json.h"
#include "prompt/chat_internal.h"
#include "text/tokenizer.h"

/* XML's way to write a text with marks. */
#define CDATA "<![CDATA["
#define CDATA_ENDS "]]>"

enum {
    MAX_NAME = MOE_CHAT_MAX_TOOL_NAME + 1,
    MAX_ANY = 200,
    MAX_VALUE_DEPTH = 64,
    MAX_OBJECT = 1 << 20,
    ARGUMENTS_MEMORY = 64 << 20
};

enum state {
    BEGIN,   /* nothing but blanks so far */
    THOUGHT, /* in it */
    BEHIND,  /* after a thought: blanks are not content */
    CONTENT,
    ARGUMENTS, /* of a call: in the JSON object */
    MEMBERS,   /* ... after them, in the object that has them */
    PARAMETER, /* before a key, or the end of them */
    VALUE,     /* in a text */
    LATER,     /* before another value, which is read whole */
    CLOSE,     /* after the arguments */
    BETWEEN,   /* after a call */
};

struct moe_answer_reader {
    const struct moe_chat *chat;
    const json_t *tools;
    int (*on_part)(void *ctx, const struct moe_answer_part *part);
    void *ctx;
    enum state state;
    bool final, split;      /* no more bytes come; a thought or a call was read */
    bool cut, called;       /* a limit has ended it; a call was whole */
    bool cut_call;          /* a limit has ended it behind a call's mark, before its name */
    bool next;              /* a message has ended, and nothing of the next one was handed on */
    unsigned said;          /* kinds of texts that were, as bits */
    struct moe_buf pending; /* not handed on yet */
    uint64_t n_before;      /* bytes of it that were there before the last came */
    uint64_t passed;        /* bytes of the answer before it */
    uint64_t looked_at;     /* place in the answer of what was last looked for an end */
    uint64_t done;          /* bytes of it that are */
    uint64_t thought_end;   /* place in the answer behind the thought and what blanks follow it */
    bool ending;            /* a thought's last bytes may begin its end */
    const struct call_form *form;
    struct moe_buf call;      /* all that the answer has of the call */
    struct moe_buf arguments; /* as handed on */
    struct moe_buf scratch;
    char name[MAX_NAME], key[MAX_NAME];
    bool behind_thought;     /* nothing but blanks has followed one */
    bool first, first_bytes; /* parameter of the call; bytes of its value, or of the thought */
    struct json_walk walk;
    struct moe_err *err;
};

/* Results of looking at text that may go on. */
enum match { NO, MORE, YES }; /* MORE: it may become one */

/* ---- Bytes ---- */

static bool is_hole(char c)
{
    return c >= CALL_ID && c <= CALL_WORD;
}

static bool names(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.' || c == '/';
}

/* How far a hole reaches; next: what follows it in the piece. */
static uint64_t hole_end(char hole, const char *next, const char *text, uint64_t n)
{
    uint64_t i = 0;
    size_t n_next = strcspn(next, " \t\r\n\1\2\3\4\5\6");
    while (i < n &&
           (hole == CALL_NUMBER ? text[i] >= '0' && text[i] <= '9'
            : hole == CALL_WORD ? text[i] >= 'a' && text[i] <= 'z'
            : hole == CALL_ANY  ? n - i < n_next || memcmp(text + i, next, n_next) != 0
                                : text[i] != *next && !(hole == CALL_ID && moe_is_blank(text[i]))))
        i++;
    return i;
}

/* Whether text begins with a piece; *used: its bytes. key: what its holes for keys hold; NULL: any.
 */
static enum match begins_with_key(const char *piece, const char *key, const char *text, uint64_t n,
                                  uint64_t *used)
{
    const size_t n_key = key ? strlen(key) : 0;
    uint64_t at = 0;
    for (size_t i = 0; piece[i]; i++) {
        if (moe_is_blank(piece[i]) ||
            ((i == 0 || strchr(">]}),", piece[i - 1])) && strchr("<[{", piece[i])))
            while (at < n && moe_is_blank(text[at]))
                at++;
        if (moe_is_blank(piece[i]))
            continue;
        if (at == n)
            return MORE;
        if (piece[i] == CALL_KEY && key) {
            if (memcmp(text + at, key, n - at < n_key ? n - at : n_key) != 0)
                return NO;
            if (n - at < n_key)
                return MORE;
            at += n_key;
        } else if (is_hole(piece[i])) {
            uint64_t end = at + hole_end(piece[i], piece + i + 1, text + at, n - at);
            if (end - at > MAX_ANY || (end == at && piece[i] != CALL_ANY && end < n))
                return NO;
            if (end == n)
                return MORE;
            at = end;
        } else if (text[at++] != piece[i]) {
            return NO;
        }
    }
    *used = at;
    return YES;
}

static enum match begins_with(const char *piece, const char *text, uint64_t n, uint64_t *used)
{
    return begins_with_key(piece, NULL, text, n, used);
}

static const char *without_blanks(const char *piece)
{
    while (moe_is_blank(*piece))
        piece++;
    return piece;
}

static const char *rest(const struct moe_answer_reader *r, uint64_t *n)
{
    *n = r->pending.size - r->done;
    return r->pending.data ? (const char *)r->pending.data + r->done : "";
}

/* Whether the end of what begins at text is to be looked for: not where it was before, and none of
 * the bytes with which it ends has come since. */
static bool may_end(struct moe_answer_reader *r, const char *ends, const char *text, uint64_t n)
{
    const char *fresh = (const char *)r->pending.data + r->n_before;
    const uint64_t place = r->passed + (uint64_t)(text - (const char *)r->pending.data);
    bool may = place != r->looked_at || fresh <= text;
    for (r->looked_at = place; *ends && !may; ends++)
        may = memchr(fresh, *ends, (size_t)(text + n - fresh));
    return may;
}

/* ---- Handing on ---- */

static int hand_on(struct moe_answer_reader *r, enum moe_answer_part_kind kind, const void *bytes,
                   uint64_t n)
{
    const struct moe_answer_part part = {
        .kind = kind, .bytes = bytes ? bytes : "", .n = n, .cut_call = r->cut_call};
    return r->on_part ? r->on_part(r->ctx, &part) : MOE_OK;
}

/* The next n bytes are handled; those of a call are kept. */
static void pass_over(struct moe_answer_reader *r, uint64_t n, bool of_call)
{
    if (of_call)
        moe_buf_append(&r->call, r->pending.data + r->done, n);
    r->done += n;
}

/* Hands on n bytes of text as they are. */
static int hand_text(struct moe_answer_reader *r, enum moe_answer_part_kind kind, uint64_t n)
{
    const struct moe_answer_part line = {.kind = kind, .bytes = "\n\n", .n = 2, .joins = true};
    if (n == 0)
        return MOE_OK;
    if (r->next && r->said & 1u << kind && r->on_part)
        MOE_TRY(r->on_part(r->ctx, &line));
    r->next = false;
    r->said |= 1u << kind;
    int status = hand_on(r, kind, r->pending.data + r->done, n);
    r->done += n;
    return status;
}

static int hand_arguments(struct moe_answer_reader *r, const void *bytes, uint64_t n)
{
    moe_buf_append(&r->arguments, bytes, n);
    if (r->arguments.failed || r->call.failed || r->scratch.failed)
        return moe_fail(r->err, MOE_ERR_MEMORY, "out of memory: a call's arguments");
    return n ? hand_on(r, MOE_PART_ARGUMENTS, bytes, n) : MOE_OK;
}

/* The call is over: whole, or not. */
static int end_call(struct moe_answer_reader *r, bool whole)
{
    json_t *arguments = NULL;
    struct moe_err err;
    if (!whole && r->final)
        pass_over(r, r->pending.size - r->done, true);
    int status = whole ? moe_json_parse_repeated(&arguments, "arguments", r->arguments.data,
                                                 r->arguments.size, ARGUMENTS_MEMORY, &err)
                       : MOE_ERR_FORMAT;
    bool is_object = json_is_object(arguments);
    moe_json_free(arguments);
    if (status == MOE_ERR_MEMORY || r->arguments.failed || r->call.failed || r->scratch.failed)
        return moe_fail(r->err, MOE_ERR_MEMORY, "out of memory: a call's arguments");
    r->state = is_object ? BETWEEN : CONTENT;
    r->called |= is_object;
    if (is_object)
        return hand_on(r, MOE_PART_CALL_ENDS, NULL, 0);
    if (!whole && r->cut && r->called)
        return hand_on(r, MOE_PART_CALL_FAILS, NULL, 0);
    r->said |= 1u << MOE_PART_CONTENT; /* which the next message's is apart from */
    r->next = false;
    return hand_on(r, MOE_PART_CALL_FAILS, r->call.data, r->call.size);
}

/* ---- Tools ---- */

static const json_t *tool_named(const struct moe_answer_reader *r, const char *name, uint64_t n)
{
    size_t i;
    const json_t *tool;
    json_array_foreach(r->tools, i, tool)
    {
        const json_t *own = json_object_get(moe_chat_function(tool), "name");
        if (json_string_length(own) == n && memcmp(json_string_value(own), name, n) == 0)
            return moe_chat_function(tool);
    }
    return NULL;
}

/* Finds the tool whose name text begins with: the longest one. */
static enum match begins_with_tool(const struct moe_answer_reader *r, const char *text, uint64_t n,
                                   uint64_t *used)
{
    size_t i;
    const json_t *tool;
    *used = 0;
    json_array_foreach(r->tools, i, tool)
    {
        const json_t *name = json_object_get(moe_chat_function(tool), "name");
        const size_t length = json_string_length(name);
        if (!length || memcmp(text, json_string_value(name), length < n ? length : n) != 0)
            continue;
        if (length >= n)
            return MORE;
        *used = length > *used && !names(text[length]) ? length : *used;
    }
    return *used ? YES : NO;
}

/* The parameters of the tool that is called. */
static const json_t *parameters_of(const struct moe_answer_reader *r)
{
    return json_object_get(tool_named(r, r->name, strlen(r->name)), "parameters");
}

/* What a schema says of a member, or of items (key NULL). */
static const json_t *schema_within(const json_t *parameters, const json_t *schema, const char *key)
{
    const json_t *target = chat_referenced(parameters, schema);
    const json_t *own = json_object_get(json_object_get(target, "properties"), key);
    return !key  ? json_object_get(target, "items")
           : own ? own
                 : json_object_get(target, "additionalProperties");
}

/* Which kinds of values the parameter takes. */
static unsigned values_taken(const struct moe_answer_reader *r)
{
    const json_t *parameters = parameters_of(r);
    return moe_chat_values(parameters, schema_within(parameters, parameters, r->key));
}

/* ---- Values ---- */

struct value_reader {
    const char *text, *quote; /* a mark around texts beside " and '; NULL: none */
    uint64_t n, at;
    struct moe_buf *out;
};

static void skip_blanks(struct value_reader *v)
{
    while (v->at < v->n && moe_is_blank(v->text[v->at]))
        v->at++;
}

static bool at_quote(const struct value_reader *v)
{
    size_t n = v->quote ? strlen(v->quote) : 0;
    return n && v->n - v->at >= n && memcmp(v->text + v->at, v->quote, n) == 0;
}

/* The four digits of an escape, as in \u00e9; UINT32_MAX: there are none. */
static uint32_t escaped_unit(const struct value_reader *v, uint64_t at)
{
    uint32_t unit = 0;
    if (v->n < at + 6 || v->text[at] != '\\' || v->text[at + 1] != 'u')
        return UINT32_MAX;
    for (uint64_t i = at + 2; i < at + 6; i++) {
        static const char digits[] = "0123456789abcdef";
        const char *digit = strchr(digits, v->text[i] | (v->text[i] > '9' ? 32 : 0));
        if (!digit || !*digit)
            return UINT32_MAX;
        unit = unit * 16 + (uint32_t)(digit - digits);
    }
    return unit;
}

/* Appends the character of an escape, or of two that are one; false: there is none. */
static bool take_escaped(struct value_reader *v, struct moe_buf *plain)
{
    uint32_t c = escaped_unit(v, v->at), low;
    uint8_t bytes[4];
    if (c == UINT32_MAX)
        return false;
    v->at += 6;
    if (c >= 0xD800 && c < 0xDC00 && (low = escaped_unit(v, v->at)) >= 0xDC00 && low < 0xE000) {
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
        v->at += 6;
    }
    moe_buf_append(plain, bytes,
                   (uint64_t)moe_utf8_encode(c >= 0xD800 && c < 0xE000 ? 0xFFFD : c, bytes));
    return true;
}

static enum match read_text(struct value_reader *v)
{
    bool marked = at_quote(v) && strlen(v->quote) > 1;
    const char end[2] = {v->text[v->at], 0};
    struct moe_buf plain = {0};
    enum match found = MORE;
    v->at += marked ? strlen(v->quote) : 1;
    while (v->at < v->n && found == MORE) {
        char c = v->text[v->at];
        if (marked ? at_quote(v) : c == end[0]) {
            v->at += marked ? strlen(v->quote) : 1;
            found = YES;
        } else if (!marked && take_escaped(v, &plain)) {
            continue;
        } else if (!marked && c == '\\' && v->at + 1 < v->n) {
            char e = v->text[v->at + 1];
            static const char from[] = "nrtbf\\\"'/", to[] = "\n\r\t\b\f\\\"'/";
            const char *is = e ? strchr(from, e) : NULL;
            moe_buf_text(&plain, is ? "" : "\\"); /* of what is no escape it is a part */
            moe_buf_u8(&plain, is ? (uint8_t)to[is - from] : (uint8_t)e);
            v->at += 2;
        } else {
            moe_buf_u8(&plain, (uint8_t)c);
            v->at++;
        }
    }
    if (found == YES)
        moe_scalar_bytes(v->out, plain.data, plain.size);
    v->out->failed |= plain.failed;
    moe_buf_release(&plain);
    return found;
}

static enum match read_word(struct value_reader *v)
{
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                                           {"true", "true"}, {"false", "false"}, {"null", "null"}};
    uint64_t from = v->at;
    while (v->at < v->n && (names(v->text[v->at]) || v->text[v->at] == '+'))
        v->at++;
    uint64_t n = v->at - from;
    if (v->at == v->n)
        return MORE;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strlen(words[i][0]) == n && memcmp(words[i][0], v->text + from, n) == 0) {
            moe_buf_text(v->out, words[i][1]);
            return YES;
        }
    if (n == 0 || !(v->text[from] == '-' || (v->text[from] >= '0' && v->text[from] <= '9')))
        return NO;
    moe_buf_append(v->out, v->text + from, n);
    return YES;
}

static enum match read_value(struct value_reader *v, uint32_t depth);

/* A member's key, in quotes or bare. */
static enum match read_key(struct value_reader *v)
{
    skip_blanks(v);
    if (v->at < v->n && (at_quote(v) || v->text[v->at] == '"' || v->text[v->at] == '\''))
        return read_text(v);
    uint64_t from = v->at;
    while (v->at < v->n && v->text[v->at] != ':' && !moe_is_blank(v->text[v->at]))
        v->at++;
    if (v->at == v->n)
        return MORE;
    moe_scalar_bytes(v->out, v->text + from, v->at - from);
    return v->at > from ? YES : NO;
}

static enum match read_items(struct value_reader *v, char end, uint32_t depth)
{
    moe_buf_u8(v->out, (uint8_t)v->text[v->at++]);
    for (bool first = true;; first = false) {
        enum match found = YES;
        skip_blanks(v);
        if (v->at == v->n)
            return MORE;
        if (v->text[v->at] == end) {
            moe_buf_u8(v->out, (uint8_t)v->text[v->at++]);
            return YES;
        }
        if (!first) {
            if (v->text[v->at] != ',')
                return NO;
            v->at++;
            moe_buf_u8(v->out, ',');
        }
        if (end == '}') {
            if ((found = read_key(v)) != YES)
                return found;
            skip_blanks(v);
            if (v->at == v->n)
                return MORE;
            if (v->text[v->at++] != ':')
                return NO;
            moe_buf_u8(v->out, ':');
        }
        if ((found = read_value(v, depth + 1)) != YES)
            return found;
    }
}

/* A value as JSON, Python or Gemma write it; appends JSON. */
static enum match read_value(struct value_reader *v, uint32_t depth)
{
    skip_blanks(v);
    if (v->at == v->n)
        return MORE;
    char c = v->text[v->at];
    if (depth > MAX_VALUE_DEPTH)
        return NO;
    if (at_quote(v) || c == '"' || c == '\'')
        return read_text(v);
    if (v->quote && strncmp(v->quote, v->text + v->at,
                            v->n - v->at < strlen(v->quote) ? v->n - v->at : strlen(v->quote)) == 0)
        return MORE;
    if (c == '{' || c == '[')
        return read_items(v, c == '{' ? '}' : ']', depth);
    return read_word(v);
}

/* ---- Where a call begins ---- */

/* Reads a call's object from text as far as its name; *used: the bytes before the arguments' value.
 * Where the arguments come first it must be whole: then *used ends with it, and the arguments are
 * in scratch. */
static enum match object_begins(struct moe_answer_reader *r, const struct call_form *form,
                                const char *text, uint64_t n, uint64_t *used, struct moe_span *name,
                                bool *whole)
{
    uint64_t at = 0;
    struct json_walk walk = {0};
    while (at < n && moe_is_blank(text[at]))
        at++;
    if (at == n)
        return MORE;
    if (text[at] != '{')
        return NO;
    *whole = false;
    char pattern[2 * MAX_NAME];
    snprintf(pattern, sizeof pattern, "{ \"%s\" : \"", form->name_key);
    uint64_t head, tail;
    enum match found = begins_with(pattern, text + at, n - at, &head);
    if (found == MORE)
        return MORE;
    if (found == YES) {
        uint64_t end = at + head;
        while (end < n && end - at - head < MAX_NAME && !strchr("\"\\", text[end]))
            end++;
        *name = (struct moe_span){at + head, end - at - head};
        snprintf(pattern, sizeof pattern, "\" , \"%s\" :", form->arguments_key);
        found = begins_with(pattern, text + end, n - end, &tail);
        if (found == YES) {
            while (end + tail < n && moe_is_blank(text[end + tail]))
                tail++;
            if (end + tail == n)
                return MORE;
            if (text[end + tail] == '{') {
                *used = end + tail;
                return YES;
            }
        } else if (found == MORE) {
            return MORE;
        }
    }
    if (!may_end(r, "}]", text + at, n - at))
        return n < MAX_OBJECT ? MORE : NO;
    for (uint64_t i = at; i < n; i++)
        if (chat_json_walk(&walk, text[i])) {
            *used = i + 1;
            *whole = true;
            return YES;
        }
    return MORE;
}

/* What a text that may be a call's beginning has told. */
struct beginning {
    const struct call_form *form;
    uint64_t used; /* bytes up to the arguments */
    struct moe_span name;
    bool whole; /* an object that was read whole */
};

/* Whether text begins with a call that `lead` leads to: of one of the tools. */
static enum match call_begins(struct moe_answer_reader *r, const struct call_form *form,
                              const char *lead, const char *lead2, const char *text, uint64_t n,
                              struct beginning *out)
{
    uint64_t used = 0, more = 0, end;
    enum match found = begins_with(lead, text, n, &used);
    if (found == YES)
        found = begins_with(lead2, text + used, n - used, &more);
    if (found != YES)
        return found;
    used += more;
    *out = (struct beginning){.form = form};
    if (form->style == CALLS_OBJECT) {
        found = object_begins(r, form, text + used, n - used, &more, &out->name, &out->whole);
        out->name.at += used;
        out->used = used + more;
        if (found == YES && !out->whole && !tool_named(r, text + out->name.at, out->name.n))
            return NO;
        return found;
    }
    found = begins_with_tool(r, text + used, n - used, &end);
    if (found != YES)
        return found;
    out->name = (struct moe_span){used, end};
    end += used;
    found = begins_with(form->named, text + end, n - end, &more);
    while (found == YES && form->style == CALLS_JSON && end + more < n &&
           moe_is_blank(text[end + more]))
        more++;
    if (found == YES && form->style == CALLS_JSON)
        found = end + more == n ? MORE : text[end + more] == '{' ? YES : NO;
    out->used = end + more;
    return found;
}

/* Whether a form's text begins with a mark that no content has. */
static bool has_mark(const char *piece)
{
    piece = without_blanks(piece);
    return *piece && !(*piece == '{' || (*piece == '[' && !(piece[1] >= 'A' && piece[1] <= 'Z')));
}

/* Whether a call begins at text; models leave out marks of those before the first call. */
static enum match any_call_begins(struct moe_answer_reader *r, bool at_begin, const char *text,
                                  uint64_t n, struct beginning *out)
{
    enum match best = NO;
    for (uint32_t i = 0; i < r->chat->n_calls && r->tools; i++) {
        const struct call_form *form = &r->chat->calls[i];
        const char *begin = without_blanks(form->begin), *open = without_blanks(form->open);
        enum match found = NO;
        if (at_begin && !has_mark(*begin ? begin : open))
            found = call_begins(r, form, begin, *begin ? form->open : open, text, n, out);
        for (; begin && *begin && found != YES; begin = chat_next_mark(begin)) {
            enum match is = at_begin || has_mark(begin)
                                ? call_begins(r, form, begin, form->open, text, n, out)
                                : NO;
            found = is > found ? is : found;
        }
        if (found != YES && has_mark(open)) {
            enum match is = call_begins(r, form, "", open, text, n, out);
            found = is > found ? is : found;
        }
        if (found == YES)
            return YES;
        best = found > best ? found : best;
    }
    return best;
}

/* ---- States ---- */

static int begin_arguments(struct moe_answer_reader *r)
{
    r->first = true;
    r->walk = (struct json_walk){0};
    r->state = r->form->style == CALLS_PARAMETERS ? PARAMETER : ARGUMENTS;
    return r->state == PARAMETER ? hand_arguments(r, "{", 1) : MOE_OK;
}

/* Reads an object that has come whole: name and arguments in any order, arguments also as a text.
 */
static int take_object(struct moe_answer_reader *r, const struct beginning *b, const char *text,
                       bool *is)
{
    json_t *object = NULL;
    struct moe_err err;
    uint64_t from = b->used;
    const char *open = memchr(text, '{', b->used);
    from = open ? (uint64_t)(open - text) : 0;
    int status = moe_json_parse_repeated(&object, "call", text + from, b->used - from,
                                         ARGUMENTS_MEMORY, &err);
    const json_t *name = json_object_get(object, b->form->name_key);
    const json_t *arguments = json_object_get(object, b->form->arguments_key);
    const bool is_object = json_is_object(arguments) && !moe_json_digits(arguments);
    char *written = is_object ? moe_json_text(arguments, 0) : NULL;
    if (is_object && !written)
        status = MOE_ERR_MEMORY;
    const char *said = written                     ? written
                       : json_is_string(arguments) ? json_string_value(arguments)
                                                   : "{}";
    *is = status == MOE_OK && json_is_string(name) && json_string_length(name) < MAX_NAME &&
          tool_named(r, json_string_value(name), json_string_length(name)) &&
          (written || json_is_string(arguments) || !arguments);
    if (*is) {
        r->split = true;
        snprintf(r->name, sizeof r->name, "%s", json_string_value(name));
        moe_buf_clear(&r->call);
        moe_buf_clear(&r->arguments);
        pass_over(r, b->used, true);
        status = hand_on(r, MOE_PART_CALL, r->name, strlen(r->name));
        if (status == MOE_OK)
            status = hand_arguments(r, said, strlen(said));
        r->state = CLOSE;
    } else if (status != MOE_ERR_MEMORY) {
        status = MOE_OK;
    }
    free(written);
    moe_json_free(object);
    return status;
}

/* Begins the call at the text that is next; *is: it turned out to be one. */
static int take_call(struct moe_answer_reader *r, const struct beginning *b, bool *is)
{
    uint64_t n;
    const char *text = rest(r, &n);
    *is = true;
    r->form = b->form;
    if (b->whole)
        return take_object(r, b, text, is);
    r->split = true;
    snprintf(r->name, sizeof r->name, "%.*s", (int)b->name.n, text + b->name.at);
    moe_buf_clear(&r->call);
    moe_buf_clear(&r->arguments);
    pass_over(r, b->used, true);
    MOE_TRY(hand_on(r, MOE_PART_CALL, r->name, strlen(r->name)));
    return begin_arguments(r);
}

/* A message has ended, in an answer of several. */
static void begin_message(struct moe_answer_reader *r)
{
    r->split = r->next = true;
    r->behind_thought = false;
    r->state = BEGIN;
}

/* How much of the n bytes with which an answer ends, and which may begin several marks, is text:
 * nothing, where a '>' or ']' says that the first of these marks is whole. */
static uint64_t cut_text(const char *text, uint64_t n)
{
    return memchr(text, '>', n) || memchr(text, ']', n) ? 0 : n;
}

/* The same of a thought, which never ends so by itself: nor two bytes of a mark that no word has.
 */
static uint64_t cut_thought(const char *text, uint64_t n)
{
    uint64_t marks = 0;
    for (uint64_t i = 0; i < n; i++)
        marks += !moe_is_blank(text[i]) && !((text[i] | 32) >= 'a' && (text[i] | 32) <= 'z');
    return marks < 2 ? cut_text(text, n) : 0;
}

/* Hands on content up to where a call, another message or nothing certain follows. */
static int read_content(struct moe_answer_reader *r)
{
    const char *const end = r->chat->thought_ends_content ? r->chat->thought_ends : NULL;
    uint64_t n, i = 0, blanks, used = 0;
    const char *text = rest(r, &n);
    struct beginning b;
    enum match found = NO, ends = NO;
    for (; i < n && found == NO && ends == NO; i++)
        if (!moe_is_blank(text[i])) {
            found = any_call_begins(r, false, text + i, n - i, &b);
            ends = end && found == NO ? begins_with(end, text + i, n - i, &used) : NO;
        }
    i -= found != NO || ends != NO;
    if (r->final && (found == MORE || ends == MORE)) {
        r->cut_call = r->cut && !r->called && found == MORE && !cut_text(text + i, n - i);
        i = ends == MORE ? i + cut_text(text + i, n - i) : r->cut && r->called ? i : n;
        found = ends = NO;
    }
    for (blanks = i; blanks > 0 && moe_is_blank(text[blanks - 1]); blanks--)
        ;
    /* Blanks before a call or behind the content are none of it. */
    MOE_TRY(hand_text(r, MOE_PART_CONTENT, r->final && found == NO && !r->split ? i : blanks));
    if (ends == YES) {
        r->done += i - blanks + used;
        begin_message(r);
    }
    if (found != YES) {
        if (r->final && ends != YES)
            r->done = r->pending.size;
        return MOE_OK;
    }
    bool is;
    r->done += i - blanks;
    MOE_TRY(take_call(r, &b, &is));
    if (is)
        return MOE_OK;
    r->done -= i - blanks;
    return hand_text(r, MOE_PART_CONTENT, i - blanks + 1);
}

/* What leads to a content behind the end that a thought has before anything. */
static const char *content_begins(const struct moe_chat *chat)
{
    return chat->thought_ends_content ? chat->thought_ends_content + strlen(chat->thought_ends)
                                      : NULL;
}

/* Whether a content begins at text. */
static enum match lead_begins(const struct moe_answer_reader *r, const char *text, uint64_t n,
                              uint64_t *used)
{
    const char *const learnt[] = {r->chat->lead, content_begins(r->chat)};
    enum match found = NO;
    for (size_t i = 0; i < 2 && found != YES; i++) {
        const enum match is = learnt[i] ? begins_with(learnt[i], text, n, used) : NO;
        found = is > found ? is : found;
    }
    for (uint32_t i = 0; i < r->chat->n_calls; i++)
        for (const char *const *lead = r->chat->calls[i].contents; lead && *lead; lead++) {
            const enum match is = found != YES ? begins_with(*lead, text, n, used) : YES;
            found = is > found ? is : found;
        }
    return found;
}

/* Before content: a thought, or what leads to the content. */
static int read_begin(struct moe_answer_reader *r)
{
    const char *const thought = r->chat->thought_begins;
    uint64_t n, used, blanks = 0;
    const char *text = rest(r, &n);
    struct beginning b;
    while (blanks < n && moe_is_blank(text[blanks]))
        blanks++;
    if (blanks == n && (n == 0 || !r->final))
        return MOE_OK;
    text += blanks;
    n -= blanks;
    enum match is_thought = thought ? begins_with(thought, text, n, &used) : NO;
    if (is_thought == YES) {
        r->done += blanks + used;
        r->split = r->first_bytes = true;
        r->state = THOUGHT;
        return MOE_OK;
    }
    enum match is_call = any_call_begins(r, true, text, n, &b);
    bool is = false;
    if (is_call == YES) {
        r->done += blanks;
        MOE_TRY(take_call(r, &b, &is));
        if (is)
            return MOE_OK;
        r->done -= blanks;
    }
    enum match is_lead = lead_begins(r, text, n, &used);
    const bool text_may = n && (is_thought == MORE || is_lead == MORE);
    if (is_lead == YES) {
        r->done += blanks + used;
        r->split = r->behind_thought = true;
        r->state = BEHIND;
    } else if (r->final && text_may && (r->next || !cut_text(text, n))) {
        r->done = r->pending.size; /* what a limit has left of marks */
    } else if (r->final || (!text_may && is_call != MORE)) {
        r->state = CONTENT;
    }
    return MOE_OK;
}

/* In a thought: hands it on without the blanks around it. */
static int read_thought(struct moe_answer_reader *r)
{
    const char *const end = r->chat->thought_ends;
    struct beginning b;
    uint64_t n, used = 0, i = 0;
    const char *text = rest(r, &n);
    enum match found = NO;
    if (r->first_bytes) {
        while (n && moe_is_blank(*text))
            text++, n--, r->done++;
        enum match call =
            any_call_begins(r, true, text, n, &b); /* the model does without a thought */
        bool is = call == YES;
        if (is)
            MOE_TRY(take_call(r, &b, &is));
        if (is || (call == MORE && !r->final))
            return MOE_OK;
    }
    for (; i < n && found == NO; i++)
        if (end && !moe_is_blank(text[i]))
            found = begins_with(end, text + i, n - i, &used);
    i -= found != NO;
    r->ending = found == MORE;
    if (found == MORE && r->final) {
        i += cut_thought(text + i, n - i);
        found = NO;
    }
    uint64_t blanks = i;
    while (blanks > 0 && moe_is_blank(text[blanks - 1]))
        blanks--;
    r->first_bytes = r->first_bytes && blanks == 0;
    MOE_TRY(hand_text(r, MOE_PART_THOUGHT, blanks));
    if (found == YES) {
        r->done += i - blanks + used;
        r->thought_end = r->passed + r->done;
        if (r->chat->thought_ends_content) {
            begin_message(r);
        } else {
            r->state = BEHIND;
            r->behind_thought = true;
        }
    } else if (r->final) {
        r->done = r->pending.size;
    }
    return MOE_OK;
}

static int read_arguments(struct moe_answer_reader *r)
{
    uint64_t n, i = 0;
    const char *text = rest(r, &n);
    bool ends = false;
    while (i < n && !ends)
        ends = chat_json_walk(&r->walk, text[i++]);
    MOE_TRY(hand_arguments(r, text, i));
    pass_over(r, i, true);
    if (ends) {
        r->state = r->form->style == CALLS_OBJECT ? MEMBERS : CLOSE;
        r->walk = (struct json_walk){.depth = 1};
    }
    return !ends && r->final ? end_call(r, false) : MOE_OK;
}

/* What the object has behind the arguments. */
static int read_members(struct moe_answer_reader *r)
{
    uint64_t n, i = 0;
    const char *text = rest(r, &n);
    bool ends = false;
    while (i < n && !ends)
        ends = chat_json_walk(&r->walk, text[i++]);
    pass_over(r, i, true);
    if (ends)
        r->state = CLOSE;
    return !ends && r->final ? end_call(r, true) : MOE_OK;
}

/* Whether a value begins at text: the mark behind a key, with the blanks that it has at its end and
 * no others. */
static enum match key_ends(const char *mark, const char *text, uint64_t n, uint64_t *used)
{
    char core[256];
    size_t length = strlen(mark), blanks = 0;
    while (blanks < length && moe_is_blank(mark[length - 1 - blanks]))
        blanks++;
    snprintf(core, sizeof core, "%.*s", (int)(length - blanks), mark);
    enum match found = begins_with(core, text, n, used);
    if (found != YES || blanks == 0)
        return found;
    size_t same = 0;
    while (same < blanks && *used + same < n && text[*used + same] == mark[length - blanks + same])
        same++;
    if (same < blanks && *used + same == n)
        return MORE;
    *used += same == blanks ? blanks : 0;
    return YES;
}

const char *moe_chat_key_fault(const struct moe_chat *chat, const char *key)
{
    const struct call_form *f = &chat->calls[0];
    const char *const marks[] = {f->text.key_ends, f->other.key_ends};
    const uint64_t n = strlen(key);
    uint64_t used;
    if (n == 0)
        return "it is empty";
    if (n >= MAX_NAME - 1)
        return "it is too long";
    for (uint64_t i = 0; i < 2 * n; i++)
        if (key_ends(marks[i % 2], key + i / 2, n - i / 2, &used) != NO)
            return "it holds what ends a name there";
    return NULL;
}

/* A key, or the end of the parameters. */
static int read_parameter(struct moe_answer_reader *r)
{
    const struct call_form *f = r->form;
    uint64_t n, used = 0, more = 0, end, ends_text = 0, ends_other = 0;
    const char *text = rest(r, &n);
    enum match closes = begins_with(f->close, text, n, &used);
    if (closes == YES) {
        pass_over(r, used, true);
        MOE_TRY(hand_arguments(r, "}", 1));
        return end_call(r, true);
    }
    enum match opens = r->first ? YES : begins_with(f->parameter_between, text, n, &used);
    used = r->first || opens != YES ? 0 : used;
    if (opens == YES)
        opens = begins_with(f->key_begins, text + used, n - used, &more);
    used += more;
    for (end = used; opens == YES && end < n && end - used < MAX_NAME - 1; end++) {
        enum match is_text = key_ends(f->text.key_ends, text + end, n - end, &ends_text);
        enum match is_other = key_ends(f->other.key_ends, text + end, n - end, &ends_other);
        if (is_text == MORE || is_other == MORE)
            opens = MORE;
        if (opens == MORE || is_text == YES || is_other == YES) {
            ends_text = is_text == YES ? ends_text : 0;
            ends_other = is_other == YES ? ends_other : 0;
            break;
        }
    }
    if (opens == YES && end == n)
        opens = MORE;
    if (opens == NO || (opens == YES && end == used) || end - used == MAX_NAME - 1 ||
        (r->final && opens == MORE)) {
        if (closes == MORE && !r->final)
            return MOE_OK;
        bool whole = closes == MORE && opens == NO; /* within the last mark */
        if (whole) {
            pass_over(r, n, true);
            MOE_TRY(hand_arguments(r, "}", 1));
        }
        return end_call(r, whole);
    }
    if (opens == MORE)
        return MOE_OK;
    snprintf(r->key, sizeof r->key, "%.*s", (int)(end - used), text + used);
    moe_buf_clear(&r->scratch);
    if (!r->first)
        moe_buf_text(&r->scratch, ", ");
    moe_scalar_bytes(&r->scratch, r->key, strlen(r->key));
    moe_buf_text(&r->scratch, ": ");
    bool marks_differ = strcmp(f->text.key_ends, f->other.key_ends) != 0;
    /* A mark of texts is not believed where the schema has none and both kinds end alike. */
    const unsigned taken = values_taken(r);
    const bool may_be_text =
        taken & MOE_VALUE_TEXT || strcmp(f->text.value_ends, f->other.value_ends) != 0;
    bool is_text =
        !f->quote && (marks_differ ? ends_text > 0 && may_be_text : taken == MOE_VALUE_TEXT);
    r->first = false;
    r->state = is_text ? VALUE : LATER;
    r->first_bytes = true;
    if (is_text)
        moe_buf_u8(&r->scratch, '"');
    pass_over(r, end + (f->quote || (marks_differ && !ends_text) ? ends_other : ends_text), true);
    return hand_arguments(r, r->scratch.data, r->scratch.size);
}

/* Where a value's text ends; *used: the mark's bytes behind it. Without the mark *end is how far it
 * goes at least. json: a mark within a text of JSON, with which the value begins, is part of that.
 */
static enum match value_ends(const char *piece, const char *key, const char *text, uint64_t n,
                             bool json, uint64_t *end, uint64_t *used)
{
    const char *core = without_blanks(piece);
    const char first = *core == CALL_KEY ? *key : *core;
    uint64_t blanks = (uint64_t)(core - piece), i;
    struct json_walk walk = {0};
    bool begun = false;
    for (i = 0; i < n; i++) {
        enum match found = text[i] == first && !walk.in_text
                               ? begins_with_key(core, key, text + i, n - i, used)
                               : NO;
        begun |= !moe_is_blank(text[i]);
        json = json && (!begun || walk.depth || walk.in_text || text[i] == '"' || text[i] == '{' ||
                        text[i] == '[');
        if (json && begun) {
            chat_json_walk(&walk, text[i]);
            json = walk.depth || walk.in_text;
        }
        if (found == NO)
            continue;
        *end = i >= blanks && memcmp(text + i - blanks, piece, blanks) == 0 ? i - blanks : i;
        *used += i - *end;
        return found;
    }
    *end = n > blanks ? n - blanks : 0;
    *end = moe_utf8_complete((const uint8_t *)text, *end);
    return NO;
}

/* In a text between marks, which is handed on as JSON. */
static int read_text_value(struct moe_answer_reader *r)
{
    uint64_t n, end, used = 0;
    const char *text = rest(r, &n);
    enum match found = value_ends(r->form->text.value_ends, r->key, text, n, false, &end, &used);
    if (r->first_bytes && found != YES && !r->final &&
        strncmp(text, CDATA, n < strlen(CDATA) ? n : strlen(CDATA)) == 0)
        return MOE_OK;
    if (r->first_bytes && found == YES && end >= strlen(CDATA CDATA_ENDS) &&
        memcmp(text, CDATA, strlen(CDATA)) == 0 &&
        memcmp(text + end - strlen(CDATA_ENDS), CDATA_ENDS, strlen(CDATA_ENDS)) == 0) {
        pass_over(r, strlen(CDATA), true);
        text += strlen(CDATA);
        end -= strlen(CDATA CDATA_ENDS);
        used += strlen(CDATA_ENDS);
    }
    r->first_bytes = r->first_bytes && end == 0;
    moe_buf_clear(&r->scratch);
    moe_scalar_bytes(&r->scratch, text, end);
    const bool any = !r->scratch.failed && r->scratch.size > 2; /* without its quotes */
    MOE_TRY(hand_arguments(r, any ? r->scratch.data + 1 : NULL, any ? r->scratch.size - 2 : 0));
    pass_over(r, end, true);
    if (found == YES) {
        pass_over(r, used, true);
        r->state = PARAMETER;
        return hand_arguments(r, "\"", 1);
    }
    return r->final ? end_call(r, false) : MOE_OK;
}

/* Whether a value is JSON, and not a text by the parameter's schema: it is one in a list. */
static int look_at_json(struct moe_answer_reader *r, unsigned taken, const char *text, uint64_t n,
                        bool *is)
{
    struct moe_buf list = {0};
    json_t *value = NULL;
    struct moe_err err;
    moe_buf_text(&list, "[");
    moe_buf_append(&list, text, n);
    moe_buf_text(&list, "]");
    int status = list.failed ? MOE_ERR_MEMORY
                             : moe_json_parse_repeated(&value, "value", list.data, list.size,
                                                       ARGUMENTS_MEMORY, &err);
    *is = json_array_size(value) == 1 &&
          (!(taken & MOE_VALUE_TEXT) || moe_chat_value_kind(json_array_get(value, 0)) & taken);
    moe_json_free(value);
    moe_buf_release(&list);
    return status == MOE_ERR_MEMORY ? moe_fail(r->err, status, "out of memory: a call's arguments")
                                    : MOE_OK;
}

/* ---- Values as elements ---- */

struct element_reader {
    struct moe_answer_reader *r;
    const json_t *parameters;
    const char *text;
    uint64_t n, at;
    int status;
};

static enum match read_element(struct element_reader *e, const char *key, const json_t *schema,
                               uint32_t depth);

/* Whether an element begins at text: as a parameter, the first or a further one. */
static enum match element_opens(const struct call_form *f, const char *text, uint64_t n,
                                uint64_t *used)
{
    uint64_t more = 0;
    enum match found = begins_with(f->parameter_between, text, n, used);
    if (found == YES)
        found = begins_with(f->key_begins, text + *used, n - *used, &more);
    *used += more;
    return found == NO ? begins_with(f->key_begins, text, n, used) : found;
}

/* The name of an element, behind its opening mark. */
static enum match read_element_key(struct element_reader *e, char key[MAX_NAME])
{
    const struct call_form *f = e->r->form;
    uint64_t used = 0, from;
    enum match found = element_opens(f, e->text + e->at, e->n - e->at, &used);
    if (found != YES)
        return found;
    for (from = e->at += used; e->at < e->n && e->at - from < MAX_NAME - 1; e->at++) {
        found = key_ends(f->other.key_ends, e->text + e->at, e->n - e->at, &used);
        if (found == MORE)
            return MORE;
        if (found == YES) {
            snprintf(key, MAX_NAME, "%.*s", (int)(e->at - from), e->text + from);
            e->at += used;
            return *key == '/' ? NO : YES;
        }
    }
    return e->at == e->n ? MORE : NO;
}

/* A list or an object, up to the end of the element that it is in. */
static enum match read_elements(struct element_reader *e, const char *within, const json_t *schema,
                                unsigned taken, uint32_t depth)
{
    struct moe_buf *out = &e->r->scratch;
    const char *const piece = e->r->form->other.value_ends;
    enum match found = YES;
    bool list = false;
    for (uint32_t i = 0; found == YES; i++) {
        char key[MAX_NAME];
        uint64_t used = 0;
        while (e->at < e->n && moe_is_blank(e->text[e->at]))
            e->at++;
        const enum match closes =
            i ? begins_with_key(piece, within, e->text + e->at, e->n - e->at, &used) : NO;
        if (closes != NO) {
            e->at += used;
            if (closes == YES)
                moe_buf_u8(out, list ? ']' : '}');
            return closes;
        }
        if ((found = read_element_key(e, key)) != YES)
            break;
        if (i == 0) {
            list =
                !(taken & MOE_VALUE_OBJECT) || (taken & MOE_VALUE_LIST && strcmp(key, ITEM) == 0);
            moe_buf_u8(out, list ? '[' : '{');
        }
        moe_buf_text(out, i ? ", " : "");
        if (!list) {
            moe_scalar_bytes(out, key, strlen(key));
            moe_buf_text(out, ": ");
        }
        found = read_element(e, key, schema_within(e->parameters, schema, list ? NULL : key),
                             depth + 1);
    }
    return found;
}

/* The value of an element, and its end: elements, JSON, or else a text. */
static enum match read_element(struct element_reader *e, const char *key, const json_t *schema,
                               uint32_t depth)
{
    const struct call_form *f = e->r->form;
    const unsigned taken = moe_chat_values(e->parameters, schema),
                   parts = taken & (MOE_VALUE_LIST | MOE_VALUE_OBJECT);
    const char *text = e->text + e->at;
    const uint64_t n = e->n - e->at;
    struct moe_buf *out = &e->r->scratch;
    uint64_t used = 0, end;
    bool is_json = false;
    if (parts && depth < MAX_VALUE_DEPTH &&
        begins_with_key(f->other.value_ends, key, text, n, &used) == NO &&
        element_opens(f, text, n, &used) != NO)
        return read_elements(e, key, schema, taken, depth);
    enum match found = value_ends(f->other.value_ends, key, text, n, true, &end, &used);
    if (found == NO && e->r->final) /* an open quote is no text */
        found = value_ends(f->other.value_ends, key, text, n, false, &end, &used);
    if (found != YES)
        return MORE;
    e->at += end + used;
    if (end == 0 && parts && !(taken & MOE_VALUE_TEXT)) {
        moe_buf_text(out, taken & MOE_VALUE_LIST ? "[]" : "{}");
        return YES;
    }
    e->status = look_at_json(e->r, taken, text, end, &is_json);
    if (is_json)
        moe_buf_append(out, text, end);
    else
        moe_scalar_bytes(out, text, end);
    return e->status == MOE_OK ? YES : NO;
}

/* Bytes that can end the value at text, which is read whole; none of them: any byte can. */
static void last_bytes(const struct moe_answer_reader *r, const char *text, uint64_t n,
                       char ends[6])
{
    const struct call_form *f = r->form;
    const char *const mark = f->quote ? f->quote : f->other.value_ends;
    size_t i = strlen(mark);
    while (i && moe_is_blank(mark[i - 1]))
        i--;
    const char last = i ? mark[i - 1] : 0;
    while (n && moe_is_blank(*text))
        text++, n--;
    if (f->quote && n && strchr("\"'[{", *text))
        snprintf(ends, 6, "%c\"'}]", last);
    else
        snprintf(ends, 6, "%c",
                 f->quote           ? 0
                 : last == CALL_KEY ? r->key[strlen(r->key) - 1]
                                    : last);
}

/* A value that is read whole: JSON, or else a text. */
static int read_later_value(struct moe_answer_reader *r)
{
    const struct call_form *f = r->form;
    uint64_t n, end, used = 0;
    const char *text = rest(r, &n);
    enum match found;
    char ends[6];
    last_bytes(r, text, n, ends);
    if (!r->final && *ends && !is_hole(*ends) && !may_end(r, ends, text, n))
        return MOE_OK;
    moe_buf_clear(&r->scratch);
    if (f->quote) {
        struct value_reader v = {.text = text, .n = n, .quote = f->quote, .out = &r->scratch};
        found = read_value(&v, 0);
        end = v.at;
    } else if (f->elements) {
        struct element_reader e = {
            .r = r, .parameters = parameters_of(r), .text = text, .n = n, .status = MOE_OK};
        found = read_element(&e, r->key, schema_within(e.parameters, e.parameters, r->key), 0);
        MOE_TRY(e.status);
        end = e.at;
    } else {
        bool is_json = false;
        found = value_ends(f->other.value_ends, r->key, text, n, true, &end, &used);
        if (found == NO && r->final) /* an open quote is no text */
            found = value_ends(f->other.value_ends, r->key, text, n, false, &end, &used);
        if (found == YES)
            MOE_TRY(look_at_json(r, values_taken(r), text, end, &is_json));
        if (is_json)
            moe_buf_append(&r->scratch, text, end);
        else if (found == YES)
            moe_scalar_bytes(&r->scratch, text, end);
    }
    if (found == NO && !f->quote && !f->elements)
        found = MORE;
    if (found == NO || (found == MORE && r->final))
        return end_call(r, false);
    if (found == MORE)
        return MOE_OK;
    pass_over(r, end + used, true);
    r->state = PARAMETER;
    return hand_arguments(r, r->scratch.data, r->scratch.size);
}

static int read_close(struct moe_answer_reader *r)
{
    uint64_t n, used = 0;
    const char *text = rest(r, &n);
    enum match found = begins_with(r->form->close, text, n, &used);
    if (found == MORE && !r->final)
        return MOE_OK;
    if (found != NO) /* or what a limit has left of it */
        pass_over(r, found == YES ? used : n, true);
    return end_call(r, true);
}

/* Whether the answer ends within the marks before another call. */
static bool is_cut_mark(const struct call_form *f, const char *text, uint64_t n)
{
    uint64_t used = 0, more = 0;
    enum match found = begins_with(f->between, text, n, &used);
    if (found == YES)
        found = begins_with(f->open, text + used, n - used, &more);
    return found == MORE || (found == YES && used + more == n);
}

/* After a call: another, or the end of them. */
static int read_between(struct moe_answer_reader *r)
{
    const struct call_form *f = r->form;
    uint64_t n, used = 0;
    const char *text = rest(r, &n);
    struct beginning b;
    bool is = false;
    enum match another = call_begins(r, f, f->between, f->open, text, n, &b);
    if (another == YES)
        MOE_TRY(take_call(r, &b, &is));
    if (is)
        return MOE_OK;
    enum match ends = *without_blanks(f->end) ? begins_with(f->end, text, n, &used) : NO;
    /* What ends a call may stand for what ends a message. */
    const char *const next =
        r->chat->thought_ends_content ? chat_next_mark(r->chat->thought_ends) : NULL;
    enum match follows = next ? begins_with(next, text, n, &used) : NO;
    if (!r->final && (another == MORE || ends == MORE || follows == MORE))
        return MOE_OK;
    if (follows == YES) {
        r->done += used;
        begin_message(r);
        return MOE_OK;
    }
    if (ends == YES)
        r->done += used;
    else if (ends == MORE || is_cut_mark(f, text, n) || (another == MORE && r->cut))
        r->done += n;
    r->state = BEHIND;
    return MOE_OK;
}

/* Blanks behind a thought or a call are no content; behind a thought an answer begins. */
static int read_behind(struct moe_answer_reader *r)
{
    struct beginning b;
    uint64_t n;
    const char *text = rest(r, &n);
    while (n && moe_is_blank(*text))
        text++, n--, r->done++;
    if (r->behind_thought)
        r->thought_end = r->passed + r->done;
    enum match call = n && r->behind_thought ? any_call_begins(r, true, text, n, &b) : NO;
    bool is = call == YES;
    if (is)
        MOE_TRY(take_call(r, &b, &is));
    if (n && !is && (call != MORE || r->final))
        r->state = CONTENT;
    r->behind_thought &= n == 0 || call == MORE;
    return MOE_OK;
}

static int read_state(struct moe_answer_reader *r)
{
    switch (r->state) {
    case BEGIN:
        return read_begin(r);
    case THOUGHT:
        return read_thought(r);
    case BEHIND:
        return read_behind(r);
    case CONTENT:
        return read_content(r);
    case ARGUMENTS:
        return read_arguments(r);
    case MEMBERS:
        return read_members(r);
    case PARAMETER:
        return read_parameter(r);
    case VALUE:
        return read_text_value(r);
    case LATER:
        return read_later_value(r);
    case CLOSE:
        return read_close(r);
    case BETWEEN:
        break;
    }
    return read_between(r);
}

/* Reads on until nothing changes. */
static int read_on(struct moe_answer_reader *r, struct moe_err *err)
{
    int status = MOE_OK;
    bool goes_on = true;
    r->err = err;
    while (status == MOE_OK && goes_on) {
        enum state state = r->state;
        uint64_t done = r->done;
        status = read_state(r);
        goes_on = r->state != state || r->done != done;
    }
    if (r->done)
        memmove(r->pending.data, r->pending.data + r->done, r->pending.size - r->done);
    r->pending.size -= r->done;
    r->passed += r->done;
    r->n_before = r->pending.size;
    r->done = 0;
    if (status == MOE_OK &&
        (r->pending.failed || r->call.failed || r->arguments.failed || r->scratch.failed))
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: an answer's text");
    return status;
}

/* ---- A reader ---- */

int moe_answer_reader_new(struct moe_answer_reader **out, const struct moe_chat *chat,
                          const json_t *tools, bool opened,
                          int (*on_part)(void *ctx, const struct moe_answer_part *part), void *ctx,
                          struct moe_err *err)
{
    struct moe_answer_reader *r = *out = moe_alloc(1, sizeof *r, err);
    if (!r)
        return MOE_ERR_MEMORY;
    r->chat = chat;
    r->tools = json_array_size(tools) ? tools : NULL;
    r->on_part = on_part;
    r->ctx = ctx;
    r->state = opened ? THOUGHT : BEGIN;
    r->looked_at = UINT64_MAX;
    r->split = opened;
    r->first_bytes = true;
    return MOE_OK;
}

void moe_answer_reader_free(struct moe_answer_reader *r)
{
    if (!r)
        return;
    moe_buf_release(&r->pending);
    moe_buf_release(&r->call);
    moe_buf_release(&r->arguments);
    moe_buf_release(&r->scratch);
    free(r);
}

int moe_answer_reader_add(struct moe_answer_reader *r, const char *bytes, uint64_t n,
                          struct moe_err *err)
{
    r->n_before = r->pending.size;
    moe_buf_append(&r->pending, bytes, n);
    if (r->pending.failed)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: an answer's text");
    return r->pending.size ? read_on(r, err) : MOE_OK;
}

int moe_answer_reader_end(struct moe_answer_reader *r, bool cut, struct moe_err *err)
{
    r->looked_at = UINT64_MAX;
    MOE_TRY(read_on(r, err)); /* what goes on behind a value that is none */
    r->final = true;
    r->cut = cut;
    return read_on(r, err);
}

static struct moe_thought_at thought_at(const struct moe_answer_reader *r)
{
    struct moe_thought_at at = {.place = r->state == BEGIN     ? MOE_BEFORE_THOUGHT
                                         : r->state == THOUGHT ? MOE_IN_THOUGHT
                                                               : MOE_BEHIND_THOUGHT,
                                .again = r->chat->thought_ends_content != NULL,
                                .behind = r->passed + r->pending.size - r->thought_end};
    at.ending = at.place == MOE_IN_THOUGHT && r->ending;
    if (at.place == MOE_BEFORE_THOUGHT && r->next && r->pending.size == 0)
        at.rest = content_begins(r->chat);
    return at;
}

int moe_answer_reader_thought(const struct moe_answer_reader *r, const void *bytes, uint64_t n,
                              struct moe_thought_at *out, struct moe_err *err)
{
    struct moe_answer_reader ahead = *r;
    int status = MOE_OK;
    *out = thought_at(r);
    if (n == 0)
        return MOE_OK;
    ahead.on_part = NULL;
    ahead.pending = ahead.call = ahead.arguments = ahead.scratch = (struct moe_buf){0};
    moe_buf_append(&ahead.pending, r->pending.data, r->pending.size);
    MOE_STEP(moe_answer_reader_add(&ahead, bytes, n, err));
    *out = thought_at(&ahead);
out:
    moe_buf_release(&ahead.pending);
    moe_buf_release(&ahead.call);
    moe_buf_release(&ahead.arguments);
    moe_buf_release(&ahead.scratch);
    return status;
}

/* ---- Marks ---- */

const struct moe_ids *moe_chat_marks(const struct moe_chat *chat)
{
    return &chat->marks;
}

static bool within(const char *text, const char *mark, uint64_t n)
{
    return text && memmem(text, strlen(text), mark, n);
}

static bool is_mark(const struct moe_chat *chat, const char *text, uint64_t n)
{
    bool is = within(chat->thought_begins, text, n) || within(chat->thought_ends, text, n) ||
              within(chat->thought_ends_content, text, n) || within(chat->lead, text, n);
    for (uint32_t i = 0; i < chat->n_calls && !is; i++) {
        const struct call_form *f = &chat->calls[i];
        const char *const pieces[] = {f->begin,
                                      f->open,
                                      f->named,
                                      f->close,
                                      f->between,
                                      f->end,
                                      f->key_begins,
                                      f->quote,
                                      f->parameter_between,
                                      f->text.key_ends,
                                      f->text.value_ends,
                                      f->other.key_ends,
                                      f->other.value_ends};
        for (size_t p = 0; p < sizeof pieces / sizeof pieces[0]; p++)
            is |= within(pieces[p], text, n);
        for (const char *const *lead = f->contents; lead && *lead; lead++)
            is |= within(*lead, text, n);
    }
    return is && n > 0;
}

int chat_find_marks(struct moe_chat *chat, const struct moe_tokenizer *tok, struct moe_err *err)
{
    for (uint32_t id = 0; id < moe_tokenizer_n_tokens(tok); id++) {
        uint32_t n = 0;
        const uint8_t *bytes =
            moe_tokenizer_is_special(tok, id) ? moe_tokenizer_bytes(tok, id, &n) : NULL;
        if (n && is_mark(chat, (const char *)bytes, n))
            MOE_TRY(moe_ids_push(&chat->marks, id, err));
    }
    return MOE_OK;
}
