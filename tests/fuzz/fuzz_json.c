/*
 * Any JSON, read in place: what is skipped, what is walked and what jansson reads agree on whether
 * it is JSON, and on every member of it.
 */
/* Readers: fmt/json*.c */
#define _GNU_SOURCE
#include <jansson.h>

#include "fmt/json_scan.h"
#include "mutate.h"

static enum moe_json_kind kind_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return MOE_JSON_OBJECT;
    case JSON_ARRAY:
        return MOE_JSON_ARRAY;
    case JSON_STRING:
        return MOE_JSON_TEXT;
    case JSON_INTEGER:
    case JSON_REAL:
        return MOE_JSON_NUMBER;
    case JSON_NULL:
        return MOE_JSON_NULL;
    default:
        return MOE_JSON_TRUTH;
    }
}

/* The same value in both; tree NULL: it is only walked. */
static void walk(struct moe_json_scan *s, const json_t *tree, struct moe_buf *text)
{
    uint64_t whole;
    size_t n = 0;
    enum moe_json_kind kind = moe_json_scan_peek(s);
    moe_json_kind_name(kind);
    if (tree && kind != kind_of(tree) && !(kind == MOE_JSON_NUMBER && moe_json_digits(tree)))
        abort();
    switch (kind) {
    case MOE_JSON_OBJECT:
        for (moe_json_scan_enter(s); moe_json_scan_next(s, text); n++) {
            const json_t *member = tree ? json_object_get(tree, (const char *)text->data) : NULL;
            if (tree && !member)
                abort();
            walk(s, member, text);
        }
        if (tree && n != json_object_size(tree))
            abort();
        break;
    case MOE_JSON_ARRAY:
        for (moe_json_scan_enter(s); moe_json_scan_next(s, NULL); n++) {
            if (tree && n >= json_array_size(tree))
                abort();
            walk(s, tree ? json_array_get(tree, n) : NULL, text);
        }
        if (tree && n != json_array_size(tree))
            abort();
        break;
    case MOE_JSON_TEXT:
        moe_json_scan_text(s, text);
        if (tree && (text->size != json_string_length(tree) ||
                     memcmp(text->data, json_string_value(tree), text->size) != 0))
            abort();
        break;
    case MOE_JSON_NUMBER:
        if (!moe_json_scan_u64(s, &whole))
            break;
        if (tree && json_is_integer(tree) && (uint64_t)json_integer_value(tree) != whole)
            abort();
        break;
    default:
        moe_json_scan_skip(s);
    }
}

/* The members of an object asked for as every type. */
static void ask(const json_t *tree)
{
    const char *key, *text;
    json_t *value;
    uint32_t whole;
    double real;
    bool flag;
    struct moe_err err;
    json_object_foreach((json_t *)tree, key, value)
    {
        moe_json_get_u32("fuzz", tree, key, 1000, true, &whole, &err);
        moe_json_get_double("fuzz", tree, key, false, &real, &err);
        moe_json_get_bool("fuzz", tree, key, true, &flag, &err);
        moe_json_get_text("fuzz", tree, key, false, &text, &err);
        ask(value);
    }
    moe_json_get_u32("fuzz", tree, "missing", 1000, true, &whole, &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct moe_json_scan skipped, walked;
    struct moe_err err;
    struct moe_buf text = {0};
    json_error_t error = {0};
    size_t flags = JSON_ALLOW_NUL | JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL;
    struct json_t *own; /* refuses duplicate keys */
    moe_json_parse(&own, "fuzz", data, n, MOE_JSON_CONFIG_MEMORY, &err);
    json_t *any = json_loadb(n ? (const char *)data : "", n, flags, &error);
    /* A number beyond doubles; a NUL, which ends the text for jansson. */
    bool differs =
        (!any && json_error_code(&error) == json_error_numeric_overflow) || memchr(data, 0, n);
    moe_json_scan_begin(&skipped, "fuzz", data, n, false, &err);
    moe_json_scan_skip(&skipped);
    int status = moe_json_scan_end(&skipped);
    moe_json_scan_begin(&walked, "fuzz", data, n, false, &err);
    walk(&walked, own, &text);
    if (moe_json_scan_end(&walked) != status || (!differs && (any != NULL) != (status == MOE_OK)))
        abort();
    moe_json_scan_begin(&walked, "fuzz", data, n, true, &err);
    moe_json_scan_skip(&walked);
    if (moe_json_scan_end(&walked) != MOE_OK && status == MOE_OK)
        abort();
    json_decref(any);
    if (own)
        ask(own);
    char *written = own ? moe_json_text(own, 0) : NULL;
    struct json_t *again;
    if (written &&
        moe_json_parse(&again, "fuzz", written, strlen(written), UINT64_MAX, &err) == MOE_OK) {
        if (!json_equal(own, again))
            abort();
        moe_json_free(again);
    } else if (written && err.status != MOE_ERR_MEMORY) {
        abort();
    }
    free(written);
    moe_json_free(own);
    moe_json_read(&own, fuzz_file(data, n), UINT64_MAX, MOE_JSON_CONFIG_MEMORY, &err);
    moe_json_free(own);
    moe_buf_release(&text);
    return 0;
}

FUZZ_MUTATE_TEXT
