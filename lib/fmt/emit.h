/*
 * Writes documents, texts and numbers as YAML and JSON.
 */
#ifndef MOE_FMT_EMIT_H
#define MOE_FMT_EMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

/* Appends a text in double quotes, or in YAML plain if it is a word that reads as just that text.
 * Bytes that are not UTF-8 become '?'. */
void moe_scalar_text(struct moe_buf *out, const char *text, bool json);
/* Appends n bytes in JSON's quotes: NULs are characters, and bytes that are not UTF-8 become
 * U+FFFD. */
void moe_scalar_bytes(struct moe_buf *out, const void *bytes, uint64_t n);
/* Appends a finite double with the fewest digits that give it back exactly; whole numbers below a
 * million in full. */
void moe_scalar_double(struct moe_buf *out, double value);

/*
 * Emitter: one description of a document, written as YAML for people (blocks, except for members
 * marked as a line) or as JSON for programs. Members are written in the order of the calls; errors
 * are reported at the end.
 *
 *     begin; for each member a value, or open, its members, close; end
 *
 * In a mapping every member has a key; in a list `key` is NULL.
 */

enum { MOE_EMIT_MAX_DEPTH = 16 };

struct moe_emit {
    struct moe_buf *out;
    bool json;
    /* Private. */
    bool spaced; /* JSON for people's eyes too: ", " and ": ", and line breaks outside of line maps
                  */
    bool first;  /* no member yet in the innermost mapping or list */
    bool dashed; /* a list item's "- " has been written: the first key follows it */
    int depth;   /* open mappings and lists */
    int line;    /* depth at which a line began; 0: in a block; -1: everything is one line */
    char closing[MOE_EMIT_MAX_DEPTH];
    const char *key;        /* the last one */
    const char *not_finite; /* key of a number that could not be written */
};

/* Begins a file with `format: FORMAT` and `version:`; YAML after the comment "# COMMENT". */
void moe_emit_begin(struct moe_emit *e, struct moe_buf *out, bool json, const char *comment,
                    const char *format, uint32_t version);
/* Begins a JSON object that none of our programs reads back, without these two. */
enum moe_emit_style {
    MOE_EMIT_COMPACT = 0, /* without blanks */
    MOE_EMIT_LINE,        /* one line: {"a": 1, "b": [2, 3]} */
    MOE_EMIT_INDENTED,    /* one member a line, except within a line map or list */
};
void moe_emit_begin_json(struct moe_emit *e, struct moe_buf *out, enum moe_emit_style style);
/* MOE_ERR_MEMORY: the buffer is incomplete. MOE_ERR_USAGE: a number was not finite. */
int moe_emit_end(struct moe_emit *e, struct moe_err *err);
/* The same for an object within other text: does not end the line. */
int moe_emit_end_item(struct moe_emit *e, struct moe_err *err);

/* Opens a mapping or list that YAML writes as a block; it must not stay empty ... */
void moe_emit_open_map(struct moe_emit *e, const char *key);
void moe_emit_open_list(struct moe_emit *e, const char *key);
/* ... or in one line, with everything in it. */
void moe_emit_open_line_map(struct moe_emit *e, const char *key);
void moe_emit_open_line_list(struct moe_emit *e, const char *key);
void moe_emit_close(struct moe_emit *e);

/* UTF-8; other bytes become '?'. */
void moe_emit_text(struct moe_emit *e, const char *key, const char *text);
/* JSON: n bytes as a text; those that are not UTF-8 become U+FFFD. */
void moe_emit_bytes(struct moe_emit *e, const char *key, const void *bytes, uint64_t n);
void moe_emit_u64(struct moe_emit *e, const char *key, uint64_t value);
void moe_emit_i64(struct moe_emit *e, const char *key, int64_t value);
/* Reads back exactly; 0, and an error at the end, if not finite. */
void moe_emit_double(struct moe_emit *e, const char *key, double value);
/* With `decimals` decimals; with `digits` significant digits, and null if not finite. */
void moe_emit_fixed(struct moe_emit *e, const char *key, int decimals, double value);
void moe_emit_rounded(struct moe_emit *e, const char *key, int digits, double value);
/* The same, but never looks like a whole number: 8.0, 1e6. */
void moe_emit_real(struct moe_emit *e, const char *key, int digits, double value);
void moe_emit_null(struct moe_emit *e, const char *key);
/* Copies a value that is already JSON; characters that texts of ours escape are escaped. */
void moe_emit_json(struct moe_emit *e, const char *key, const void *json, uint64_t n);
void moe_emit_bool(struct moe_emit *e, const char *key, bool value);
/* 16 hexadecimal digits, as a text. */
void moe_emit_fingerprint(struct moe_emit *e, const char *key, uint64_t value);
/* A list in one line. */
void moe_emit_u32s(struct moe_emit *e, const char *key, const uint32_t *values, uint32_t n);
void moe_emit_doubles(struct moe_emit *e, const char *key, const double *values, uint32_t n);

#endif
