/* Helpers of JSON schemas: places, GBNF text, references. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "fmt/json.h"
#include "grammar/schema.h"

/* ---- Where ---- */

static int refuse(const struct schema *s, const char *key, const char *format, va_list args)
{
    char why[256];
    vsnprintf(why, sizeof why, format, args);
    return moe_fail(s->err, MOE_ERR_UNSUPPORTED, "%s: #%.*s%s%s: %s", s->name, (int)s->path.size,
                    s->path.data ? (const char *)s->path.data : "", key ? "/" : "", key ? key : "",
                    why);
}

int schema_refuse(const struct schema *s, const char *key, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int status = refuse(s, key, format, args);
    va_end(args);
    return status;
}

int schema_refuse_all(struct schema *s, const char *key, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int status = refuse(s, key, format, args);
    va_end(args);
    s->none = true;
    return status;
}

int schema_if_any(struct schema *s, const json_t *schema, bool *none, struct moe_buf *to)
{
    const uint64_t path = s->path.size, size = to->size;
    const uint32_t depth = s->depth;
    const unsigned types = s->types;
    int status = s->value(s, schema, to);
    *none = status != MOE_OK && s->none;
    if (*none) {
        s->path.size = path;
        s->depth = depth;
        s->types = types;
        to->size = size;
        s->none = false;
        status = schema_step(s, NULL, 1);
    }
    return status;
}

void schema_note(struct schema *s, const char *key, const char *format, ...)
{
    enum { MOST_NOTES = 1000 }; /* bytes */
    char what[200];
    va_list args;
    if (!s->notes || s->notes->size > MOST_NOTES)
        return;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    moe_buf_printf(s->notes, "%s#%.*s/%s: %s", s->notes->size ? "; " : "", (int)s->path.size,
                   s->path.data ? (const char *)s->path.data : "", key, what);
}

int schema_step(struct schema *s, const struct moe_buf *to, uint64_t n)
{
    struct moe_allowance *b = s->allowance;
    moe_allowance_step(b, n);
    if (s->rules.room > s->counted) {
        moe_allowance_take(b, s->rules.room - s->counted);
        s->counted = s->rules.room;
    }
    if (b->status == MOE_OK && to && to->room > b->max_bytes / 4)
        moe_allowance_take(b, b->max_bytes);
    return b->status == MOE_OK ? MOE_OK : moe_allowance_say(b, s->name, s->err);
}

uint64_t schema_enter(struct schema *s, const char *key)
{
    uint64_t from = s->path.size;
    moe_buf_text(&s->path, "/");
    for (; *key; key++) {
        if (*key == '~' || *key == '/')
            moe_buf_text(&s->path, *key == '~' ? "~0" : "~1");
        else
            moe_buf_append(&s->path, key, 1);
    }
    return from;
}

uint64_t schema_enter_item(struct schema *s, const char *key, uint64_t item)
{
    uint64_t from = s->path.size;
    moe_buf_printf(&s->path, "/%s/%llu", key, (unsigned long long)item);
    return from;
}

void schema_leave(struct schema *s, uint64_t from)
{
    s->path.size = from;
}

const json_t *schema_get(const json_t *schema, const char *key)
{
    const json_t *value = json_object_get(schema, key);
    return value && !json_is_null(value) ? value : NULL;
}

bool schema_is_nothing(const json_t *schema)
{
    const json_t *denied = json_object_get(schema, "not");
    return json_is_false(schema) || json_is_true(denied) ||
           (json_is_object(denied) && json_object_size(denied) == 0);
}

int schema_count(const struct schema *s, const json_t *schema, const char *key, uint64_t *n)
{
    const json_t *value = schema_get(schema, key);
    if (!value)
        return MOE_OK;
    double count;
    if (!moe_json_number(value, &count) || !(count >= 0) || count != floor(count))
        return schema_refuse(s, key, "a count was expected");
    if (count > SCHEMA_MAX_COUNT && strncmp(key, "max", 3) == 0)
        return MOE_OK;
    if (count > SCHEMA_MAX_COUNT)
        return schema_refuse(s, key, "at most %d was expected", SCHEMA_MAX_COUNT);
    *n = (uint64_t)count;
    return MOE_OK;
}

/* ---- Writing ---- */

void schema_literal(struct moe_buf *to, const void *text, uint64_t n)
{
    const uint8_t *bytes = text;
    moe_buf_text(to, "\"");
    for (uint64_t i = 0; i < n; i++) {
        if (bytes[i] == '"' || bytes[i] == '\\')
            moe_buf_printf(to, "\\%c", bytes[i]);
        else if (bytes[i] < 0x20 || bytes[i] == 0x7f)
            moe_buf_printf(to, "\\x%02X", bytes[i]);
        else
            moe_buf_append(to, &bytes[i], 1);
    }
    moe_buf_text(to, "\"");
}

size_t schema_end_length(const struct schema *s)
{
    size_t n = s->until ? strcspn(s->until, "\1\2\3\4\5\6") : 0;
    while (n > 0 && strchr(" \t\r\n", s->until[n - 1]))
        n--;
    return n;
}

void schema_quote(const struct schema *s, struct moe_buf *to)
{
    moe_buf_text(to, s->until ? "" : "\"\\\"\"");
}

int schema_json(struct schema *s, const json_t *value, struct moe_buf *to)
{
    char *text = moe_json_text(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (!text)
        return moe_fail(s->err, MOE_ERR_MEMORY, "out of memory: a value of a schema");
    schema_literal(to, text, strlen(text));
    free(text);
    return MOE_OK;
}

/* The rule that was written for an expression; NULL: none. */
static const char *rule_written(const struct schema *s, const char *key,
                                const struct moe_buf *expression)
{
    const json_t *place = json_object_get(s->written, key);
    if (!place)
        return NULL;
    const char *rule = (const char *)s->rules.data + json_integer_value(place);
    const char *text = strchr(rule, '=') + 2;
    bool same = strncmp(text, (const char *)expression->data, expression->size) == 0 &&
                text[expression->size] == '\n';
    return same ? rule : NULL;
}

void schema_make_rule(struct schema *s, struct moe_buf *expression)
{
    char key[24];
    snprintf(key, sizeof key, "%016llx",
             (unsigned long long)moe_hash64(expression->data, expression->size));
    const char *rule = s->rules.failed ? NULL : rule_written(s, key, expression);
    if (rule) {
        moe_buf_clear(expression);
        moe_buf_append(expression, rule, strcspn(rule, " "));
        return;
    }
    json_object_set_new(s->written, key, json_integer((json_int_t)s->rules.size));
    moe_allowance_take(s->allowance, SCHEMA_MEMBER);
    uint32_t number = s->n_rules++;
    moe_buf_printf(&s->rules, "r%u ::= ", number);
    moe_buf_append(&s->rules, expression->data, expression->size);
    moe_buf_text(&s->rules, "\n");
    s->rules.failed |= expression->failed;
    moe_buf_clear(expression);
    moe_buf_printf(expression, "r%u", number);
}

/* The bytes that the first and the last of sorted texts share from `at` on, in whole characters. */
static size_t shared_bytes(const char *first, const char *last, size_t at)
{
    size_t n = at;
    while (first[n] && first[n] == last[n])
        n++;
    while (n > at && ((uint8_t)first[n] & 0xc0) == 0x80)
        n--;
    return n - at;
}

/* Whether the next character of both texts is the same. */
static bool begin_alike(const char *a, const char *b, size_t at)
{
    do {
        if (a[at] != b[at])
            return false;
        at++;
    } while (((uint8_t)a[at] & 0xc0) == 0x80 || ((uint8_t)b[at] & 0xc0) == 0x80);
    return true;
}

int schema_choice(struct schema *s, char **texts, size_t n, size_t at, int depth,
                  struct moe_buf *to)
{
    enum { GROUPS = 50 }; /* nested, before a rule of its own */
    struct moe_buf own = {0}, *all = depth == GROUPS ? &own : to;
    size_t shared = shared_bytes(texts[0], texts[n - 1], at), next;
    MOE_TRY(schema_step(s, to, n + shared / 8));
    if (shared > 0)
        schema_literal(all, texts[0] + at, shared);
    at += shared;
    int status = MOE_OK;
    moe_buf_text(all, n > 1 ? " ( " : "");
    for (size_t i = 0; i < n && n > 1 && status == MOE_OK; i = next) {
        moe_buf_text(all, i ? " | " : "");
        if (!texts[i][at]) {
            moe_buf_text(all, "\"\"");
            next = i + 1;
            continue;
        }
        for (next = i + 1; next < n && texts[next][at]; next++)
            if (!begin_alike(texts[i], texts[next], at))
                break;
        status = schema_choice(s, texts + i, next - i, at, depth == GROUPS ? 0 : depth + 1, all);
    }
    moe_buf_text(all, n > 1 ? " )" : "");
    if (all == &own) {
        schema_make_rule(s, &own);
        moe_buf_append(to, own.data, own.size);
        to->failed |= own.failed;
        moe_buf_release(&own);
    }
    return status;
}

/* ---- References ---- */

/* Decodes one step of a pointer: ~0 and ~1 and URI escapes. */
static void unescape(struct moe_buf *to, const char *from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char c = from[i], hex[3] = "";
        if (c == '%' && i + 2 < n) {
            memcpy(hex, from + i + 1, 2);
            char *end;
            long value = strtol(hex, &end, 16);
            if (end == hex + 2 && value > 0) {
                c = (char)value;
                i += 2;
            }
        } else if (c == '~' && i + 1 < n) {
            c = from[++i] == '1' ? '/' : '~';
        }
        moe_buf_append(to, &c, 1);
    }
}

const json_t *schema_find(const struct schema *s, const char *reference)
{
    const json_t *at = s->root;
    struct moe_buf step = {0};
    if (*reference++ != '#' || (*reference && *reference != '/'))
        return NULL;
    while (at && *reference == '/') {
        size_t n = strcspn(++reference, "/");
        moe_buf_clear(&step);
        unescape(&step, reference, n);
        moe_buf_u8(&step, 0);
        const char *key = step.failed ? "" : (const char *)step.data;
        at = json_is_array(at) ? json_array_get(at, strtoul(key, NULL, 10))
                               : json_object_get(at, key);
        reference += n;
    }
    moe_buf_release(&step);
    return at;
}

const json_t *schema_follow(const struct schema *s, const json_t *schema)
{
    for (int i = 0; i < SCHEMA_MAX_REFERENCES && schema; i++) {
        const char *reference = json_string_value(json_object_get(schema, "$ref"));
        if (!reference)
            break;
        schema = schema_find(s, reference);
    }
    return schema;
}
