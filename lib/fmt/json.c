/* JSON files as jansson's trees, with our error model and a bound on memory. */
#define _GNU_SOURCE /* memmem, strcasestr */
#include "fmt/json.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/text.h"

/*
 * Estimates, never too low, of what a text's tree takes in memory: measured with jansson 2.14 on 64
 * bits, an empty object takes 234 bytes, an array 136, a text 48 to 80 (and its characters), a
 * number 32, a place in an array 8 to 16, a member 96.
 */
enum { OBJECT = 240, ARRAY = 144, TEXT = 80, MEMBER = 32, ITEM = 48 };

static uint64_t tree_bytes(const uint8_t *text, uint64_t n)
{
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t from = i;
        bytes += !moe_is_blank((char)text[i]);
        bytes += text[i] == '{'   ? OBJECT
                 : text[i] == '[' ? ARRAY
                 : text[i] == '"' ? TEXT
                 : text[i] == ':' ? MEMBER
                 : text[i] == ',' ? ITEM
                                  : 0;
        if (text[i] == '"')
            while (++i < n && text[i] != '"')
                i += text[i] == '\\';
        bytes += i - from;
    }
    return bytes;
}

/*
 * Records failed allocations. jansson ignores some: it then keeps what it could of a key or number,
 * or writes an object without a key, and reports wrong syntax or nothing at all. A result is not
 * used if one failed meanwhile.
 */
static _Thread_local bool ran_short;

static void *watched_malloc(size_t n)
{
    void *p = malloc(n);
    ran_short |= !p;
    return p;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void watch_allocations(void)
{
    json_set_alloc_funcs(watched_malloc, free);
}

static json_t *load_json(const void *text, uint64_t n, size_t flags, json_error_t *error)
{
    pthread_once(&once, watch_allocations);
    ran_short = false;
    json_t *json = json_loadb(n ? text : "", n, flags, error);
    if (ran_short) {
        json_decref(json);
        return NULL;
    }
    return json;
}

/* ---- Whole numbers beyond 64 bits ---- */

/* The key of the one member, a text of digits, that such a number is in a tree: U+FDD0, which is no
 * character. */
#define DIGITS "\xEF\xB7\x90"
#define KEY "\"" DIGITS "\":"
#define BLANKS " \n"

enum { SAFE_DIGITS = 18 /* any number of so many digits fits 64 bits */ };

static uint64_t number_end(const uint8_t *text, uint64_t n, uint64_t at)
{
    while (at < n && text[at] && strchr("+-.0123456789eE", text[at]))
        at++;
    return at;
}

/* Where a text ends that begins at a quote: behind the closing one. */
static uint64_t text_end(const uint8_t *text, uint64_t n, uint64_t at)
{
    for (at++; at < n && text[at] != '"'; at++)
        at += text[at] == '\\';
    return at < n ? at + 1 : n;
}

static bool is_large(const uint8_t *token, uint64_t n)
{
    const bool negative = n && *token == '-';
    uint64_t digits = negative;
    while (digits < n && token[digits] >= '0' && token[digits] <= '9')
        digits++;
    return digits == n && n - negative > SAFE_DIGITS && token[negative] != '0';
}

/* Copies the text with large numbers as trees have them. False: it has that key already. */
static bool wrap_large(const uint8_t *text, uint64_t n, struct moe_buf *out)
{
    for (uint64_t i = 0, end; i < n; i = end) {
        end = text[i] == '"' ? text_end(text, n, i) : number_end(text, n, i);
        const bool large = end > i && text[i] != '"' && is_large(text + i, end - i);
        end += end == i;
        moe_buf_text(out, large ? "{" KEY "\"" : "");
        moe_buf_append(out, text + i, end - i);
        moe_buf_text(out, large ? "\"}" : "");
    }
    moe_buf_u8(out, 0);
    return !out->failed && !memmem(text, n, DIGITS, strlen(DIGITS)) &&
           !strcasestr((const char *)out->data, "\\ufdd0");
}

/* Puts numbers back into written JSON, in place: digits without what is around them, doubles in no
 * more digits than they need. */
static void restore_numbers(char *text)
{
    const uint64_t n = strlen(text), n_key = strlen(KEY);
    const uint8_t *from = (const uint8_t *)text;
    char *to = text;
    for (uint64_t i = 0, end; i < n; i = end) {
        const char *token = text + i;
        char shorter[32] = "";
        const uint64_t key = *token == '{' ? 1 + strspn(token + 1, BLANKS) : 0;
        if (key && strncmp(token + key, KEY, n_key) == 0) {
            const uint64_t digits = i + key + n_key + strspn(token + key + n_key, BLANKS "\""),
                           digits_end = number_end(from, n, digits);
            if (is_large(from + digits, digits_end - digits)) {
                to =
                    (char *)memmove(to, text + digits, digits_end - digits) + (digits_end - digits);
                end = digits_end + strcspn(text + digits_end, "}") + 1;
                continue;
            }
        }
        end = *token == '"' ? text_end(from, n, i) : number_end(from, n, i);
        end += end == i;
        const double number = end - i > 15 && *token != '"' ? strtod(token, NULL) : 0;
        for (int digits = 15; number != 0 && digits < 17 && strtod(shorter, NULL) != number;
             digits++)
            snprintf(shorter, sizeof shorter, "%.*g", digits, number);
        const bool is_shorter = strpbrk(shorter, ".e") && strlen(shorter) < end - i &&
                                strtod(shorter, NULL) == number && memchr(token, '.', end - i);
        const uint64_t n_token = is_shorter ? strlen(shorter) : end - i;
        memmove(to, is_shorter ? shorter : token, n_token);
        to += n_token;
    }
    *to = 0;
}

const char *moe_json_digits(const struct json_t *value)
{
    const json_t *text = json_object_size(value) == 1 ? json_object_get(value, DIGITS) : NULL;
    const char *digits = json_string_value(text);
    return digits && is_large((const uint8_t *)digits, json_string_length(text)) ? digits : NULL;
}

bool moe_json_number(const struct json_t *value, double *out)
{
    const char *digits = moe_json_digits(value);
    *out = digits ? strtod(digits, NULL) : json_number_value(value);
    return digits || json_is_number(value);
}

/* ---- Parsing and writing ---- */

/* Parses a text again whose large numbers jansson refused: published configurations
 * (model_max_length as 10^30), arguments and schemas hold some. A text that has the key of digits
 * has doubles instead. */
static struct json_t *load_large(const void *text, uint64_t n, size_t flags, uint64_t max_memory,
                                 json_error_t *error)
{
    struct moe_buf wrapped = {0};
    const bool wraps =
        wrap_large(text, n, &wrapped) && tree_bytes(wrapped.data, wrapped.size) <= max_memory;
    json_t *json = wraps ? load_json(wrapped.data, wrapped.size - 1, flags, error) : NULL;
    if ((!wraps && !wrapped.failed) || moe_json_digits(json)) { /* no document is a number */
        json_decref(json);
        json = load_json(text, n, flags | JSON_DECODE_INT_AS_REAL, error);
    }
    ran_short |= wrapped.failed;
    moe_buf_release(&wrapped);
    return json;
}

static int parse_json(struct json_t **out, const char *name, const void *text, uint64_t n,
                      size_t flags, uint64_t max_memory, struct moe_err *err)
{
    json_error_t error;
    char size[32], most[32];
    uint64_t needed = tree_bytes(text, n);
    *out = NULL;
    if (needed > max_memory)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: its values would take %s of memory, more than the %s that they may",
                        name, moe_format_bytes(needed, size), moe_format_bytes(max_memory, most));
    /* The parser would skip a NUL after a number. */
    const void *nul = n ? memchr(text, 0, n) : NULL;
    if (nul)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: byte %zu is zero, which is not JSON", name,
                        (size_t)((const char *)nul - (const char *)text) + 1);
    *out = load_json(text, n, flags, &error);
    if (!*out && !ran_short && json_error_code(&error) == json_error_numeric_overflow)
        *out = load_large(text, n, flags, max_memory, &error);
    if (*out)
        return MOE_OK;
    if (ran_short)
        return moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", name);
    return moe_fail(err, MOE_ERR_FORMAT, "%s: line %d column %d: %s", name, error.line,
                    error.column, error.text);
}

/* NULs inside strings are accepted here and refused where a text is read, so that a member that is
 * never read cannot make a file unreadable. */
int moe_json_parse(struct json_t **out, const char *name, const void *text, uint64_t n,
                   uint64_t max_memory, struct moe_err *err)
{
    return parse_json(out, name, text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, max_memory, err);
}

int moe_json_parse_repeated(struct json_t **out, const char *name, const void *text, uint64_t n,
                            uint64_t max_memory, struct moe_err *err)
{
    return parse_json(out, name, text, n, JSON_ALLOW_NUL, max_memory, err);
}

char *moe_json_text(const struct json_t *json, size_t flags)
{
    pthread_once(&once, watch_allocations);
    ran_short = false;
    char *text = json_dumps(json, flags);
    if (text && !ran_short) {
        restore_numbers(text);
        return text;
    }
    free(text);
    return NULL;
}

int moe_json_copy(struct json_t **out, const struct json_t *json, struct moe_err *err)
{
    pthread_once(&once, watch_allocations);
    ran_short = false;
    *out = json_deep_copy(json);
    if (*out && !ran_short)
        return MOE_OK;
    json_decref(*out);
    *out = NULL;
    return moe_fail(err, MOE_ERR_MEMORY, "out of memory: a copy of JSON");
}

uint64_t moe_json_bytes(const struct json_t *json)
{
    uint64_t bytes = json_is_object(json) ? OBJECT : json_is_array(json) ? ARRAY : TEXT;
    const char *key;
    json_t *item;
    size_t i;
    bytes += json_string_length(json);
    json_array_foreach(json, i, item) bytes += ITEM + moe_json_bytes(item);
    json_object_foreach((json_t *)json, key, item) bytes +=
        TEXT + MEMBER + ITEM + strlen(key) + moe_json_bytes(item);
    return bytes;
}

/* Numbers that Python's json writes and JSON lacks. */
static const char *const not_finite[] = {"NaN", "Infinity", "-Infinity"};

/* Copies the text with each of these in quotes, outside of texts: as values they are wrong wherever
 * a number is read, and harmless elsewhere. Keeps lines. False: the text has none. */
static bool quote_not_finite(const uint8_t *text, uint64_t n, struct moe_buf *out)
{
    bool in_text = false, found = false;
    for (uint64_t i = 0, step; i < n; i += step) {
        step = in_text && text[i] == '\\' && i + 1 < n ? 2 : 1;
        in_text ^= text[i] == '"';
        for (size_t k = 0; k < sizeof not_finite / sizeof not_finite[0] && !in_text; k++) {
            uint64_t length = strlen(not_finite[k]);
            if (n - i < length || memcmp(text + i, not_finite[k], length) != 0)
                continue;
            moe_buf_printf(out, "\"%s\"", not_finite[k]);
            step = 0;
            i += length;
            found = true;
            break;
        }
        if (step)
            moe_buf_append(out, text + i, step);
    }
    return found;
}

int moe_json_parse_file(struct json_t **out, const char *path, const void *text, uint64_t n,
                        uint64_t max_memory, struct moe_err *err)
{
    int status = moe_json_parse(out, path, text, n, max_memory, err);
    const char *is = status == MOE_ERR_FORMAT ? moe_file_nature(text, n) : NULL;
    return is ? moe_fail(err, status, "%s: is %s", path, is) : status;
}

int moe_json_read(struct json_t **out, const char *path, uint64_t max_bytes, uint64_t max_memory,
                  struct moe_err *err)
{
    struct moe_buf text = {0}, quoted = {0};
    *out = NULL;
    int status = moe_file_read_all(path, max_bytes, &text, err);
    if (status == MOE_OK) {
        status = moe_json_parse_file(out, path, text.data, text.size, max_memory, err);
        if (status == MOE_ERR_FORMAT && quote_not_finite(text.data, text.size, &quoted))
            status = quoted.failed
                         ? moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", path)
                         : moe_json_parse(out, path, quoted.data, quoted.size, max_memory, err);
    }
    moe_buf_release(&text);
    moe_buf_release(&quoted);
    return status;
}

void moe_json_free(struct json_t *json)
{
    json_decref(json);
}

static const char *type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        for (size_t i = 0; i < sizeof not_finite / sizeof not_finite[0]; i++)
            if (strcmp(json_string_value(value), not_finite[i]) == 0)
                return not_finite[i];
        return "a text";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a truth value";
    case JSON_NULL:
        return "null";
    }
    return "something else";
}

/* Finds the member; *value is NULL when it is missing (or null) and not required. */
static int find_member(const char *name, const json_t *object, const char *key, bool required,
                       const json_t **value, struct moe_err *err)
{
    *value = NULL;
    if (!json_is_object(object))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: an object with '%s' was expected", name, key);
    const json_t *found = json_object_get(object, key);
    if (found && !json_is_null(found)) {
        *value = found;
        return MOE_OK;
    }
    if (required)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' is missing", name, key);
    return MOE_OK;
}

int moe_json_get_u32(const char *name, const struct json_t *object, const char *key, uint32_t max,
                     bool required, uint32_t *out, struct moe_err *err)
{
    return moe_json_get_between(name, object, key, 0, max, required, out, err);
}

int moe_json_get_between(const char *name, const struct json_t *object, const char *key,
                         uint32_t min, uint32_t max, bool required, uint32_t *out,
                         struct moe_err *err)
{
    const json_t *value;
    MOE_TRY(find_member(name, object, key, required, &value, err));
    if (!value)
        return MOE_OK;
    double number;
    if (!moe_json_number(value, &number))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' is %s, a whole number was expected", name,
                        key, type_name(value));
    if (json_is_real(value) && number != floor(number))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' is %g, a whole number was expected", name,
                        key, number);
    if (number < min || number > max)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' is %.17g, expected %" PRIu32 " to %" PRIu32,
                        name, key, number, min, max);
    *out = (uint32_t)number;
    return MOE_OK;
}

int moe_json_check_type(const char *name, const struct json_t *object, const char *key,
                        unsigned types, struct moe_err *err)
{
    static const char *const words[] = {"a list", "an object", "a text", "a number",
                                        "true or false"};
    const json_t *value = json_object_get(object, key);
    unsigned type = json_is_array(value)     ? MOE_JSON_IS_LIST
                    : json_is_object(value)  ? MOE_JSON_IS_OBJECT
                    : json_is_string(value)  ? MOE_JSON_IS_TEXT
                    : json_is_number(value)  ? MOE_JSON_IS_NUMBER
                    : json_is_boolean(value) ? MOE_JSON_IS_SWITCH
                                             : 0;
    if (type == 0 || (type & types))
        return MOE_OK;
    struct moe_buf expected = {0};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (types & 1U << i)
            moe_buf_printf(&expected, "%s%s", expected.size ? " or " : "", words[i]);
    int status =
        moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' is %s, %s was expected", name, key,
                 type_name(value), expected.data ? (const char *)expected.data : "another");
    moe_buf_release(&expected);
    return status;
}

int moe_json_get_double(const char *name, const struct json_t *object, const char *key,
                        bool required, double *out, struct moe_err *err)
{
    const json_t *value;
    MOE_TRY(find_member(name, object, key, required, &value, err));
    if (!value)
        return MOE_OK;
    double number;
    if (!moe_json_number(value, &number))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' is %s, a number was expected", name, key,
                        type_name(value));
    *out = number;
    return MOE_OK;
}

int moe_json_get_bool(const char *name, const struct json_t *object, const char *key, bool required,
                      bool *out, struct moe_err *err)
{
    const json_t *value;
    MOE_TRY(find_member(name, object, key, required, &value, err));
    if (!value)
        return MOE_OK;
    if (!json_is_boolean(value))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' is %s, true or false was expected", name,
                        key, type_name(value));
    *out = json_is_true(value);
    return MOE_OK;
}

int moe_json_get_text(const char *name, const struct json_t *object, const char *key, bool required,
                      const char **out, struct moe_err *err)
{
    const json_t *value;
    MOE_TRY(find_member(name, object, key, required, &value, err));
    if (!value)
        return MOE_OK;
    if (!json_is_string(value))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' is %s, a text was expected", name, key,
                        type_name(value));
    if (strlen(json_string_value(value)) != json_string_length(value))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' has a NUL character inside", name, key);
    *out = json_string_value(value);
    return MOE_OK;
}
