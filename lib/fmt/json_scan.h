/*
 * JSON reader that works in place, value by value, in memory that does not grow with the text: for
 * headers and indexes, which may be large while the caller wants little of them. It skips the rest.
 *
 *     begin; enter the object; while (next key) read or skip its value; end
 *
 * Strict: UTF-8, escapes with their surrogates, JSON's numbers, nesting to MOE_JSON_SCAN_DEPTH. The
 * first error ends the reading: from then on there is no next member and no value, and the end
 * returns its status. The caller must notice duplicate keys.
 */
#ifndef MOE_FMT_JSON_SCAN_H
#define MOE_FMT_JSON_SCAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

enum {
    MOE_JSON_SCAN_DEPTH = 2048,
    MOE_JSON_SCAN_TEXT_MAX = 1 << 16, /* bytes of a key or text that is read */
};

enum moe_json_kind {
    MOE_JSON_NONE = 0, /* after an error */
    MOE_JSON_OBJECT,
    MOE_JSON_ARRAY,
    MOE_JSON_TEXT,
    MOE_JSON_NUMBER,
    MOE_JSON_TRUTH,
    MOE_JSON_NULL,
    MOE_JSON_NOT_FINITE, /* NaN, Infinity, -Infinity */
};

struct moe_json_scan {
    int status; /* the first error's; MOE_OK so far */
    /* Private. */
    struct moe_err *err;
    const char *name;
    const uint8_t *text, *at, *end;
    bool python; /* accepts numbers that are not finite */
    bool first;  /* nothing of the innermost object or array has been read */
    uint32_t depth;
    uint8_t objects[MOE_JSON_SCAN_DEPTH / 8]; /* a bit for each level: an object, not an array */
};

/* Begins reading n bytes at `text`, which must outlive the reading; `name` (a path) begins error
 * texts, which give line and column. `python`: accepts NaN and the infinities, as Python's json
 * writes them. */
void moe_json_scan_begin(struct moe_json_scan *s, const char *name, const void *text, uint64_t n,
                         bool python, struct moe_err *err);
/* Whether the n bytes are one JSON value. */
bool moe_json_is_sound(const void *text, uint64_t n);
/* The status of the whole; only blanks may follow what was read. */
int moe_json_scan_end(struct moe_json_scan *s);

/* The kind of the next value, without reading it. */
enum moe_json_kind moe_json_scan_peek(struct moe_json_scan *s);
/* "an object", "a number" ... for error texts. */
const char *moe_json_kind_name(enum moe_json_kind kind);

/* Enters the object or array that comes next (peek says which). */
void moe_json_scan_enter(struct moe_json_scan *s);
/* Whether another member or item follows, whose value comes next; otherwise leaves the object or
 * array. `key` receives an object's key, which holds no NUL, in a buffer that may be reused; NULL:
 * skipped. */
bool moe_json_scan_next(struct moe_json_scan *s, struct moe_buf *key);

/* Reads past the next value, of any kind. */
void moe_json_scan_skip(struct moe_json_scan *s);
/* Reads past the next value and returns its *n bytes as written. */
const char *moe_json_scan_raw(struct moe_json_scan *s, uint64_t *n);
/* Reads the next value, a text: `out` gets its bytes and a NUL. It may hold NULs. */
void moe_json_scan_text(struct moe_json_scan *s, struct moe_buf *out);
/* Reads the next value if it is a whole number from 0 to 2^63 - 1, written as one; else false. */
bool moe_json_scan_u64(struct moe_json_scan *s, uint64_t *out);

/* Fails at the current place: "NAME: line L column C: TEXT". Returns MOE_ERR_FORMAT. */
int moe_json_scan_fail(struct moe_json_scan *s, const char *format, ...) MOE_PRINTF(2, 3);

#endif
