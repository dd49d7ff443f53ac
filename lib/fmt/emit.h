/*
 * Emitting: a document in one description, written as YAML for people (blocks, with what is called
 * a line here kept on one) or as JSON for programs. Members come in the order of the calls; errors
 * are those of the buffer, told at the end.
 *
 *     begin; for each member a value, or open, its members, close; end
 *
 * In a mapping every member has a key; in a list `key` is NULL.
 */
#ifndef MOE_FMT_EMIT_H
#define MOE_FMT_EMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

enum { MOE_EMIT_MAX_DEPTH = 16 };

struct moe_emit {
    struct moe_buf *out;
    bool json;
    /* Private. */
    bool first;  /* of its mapping or list */
    bool dashed; /* the "- " of a list's item stands there: the first key follows it */
    int depth;   /* open mappings and lists */
    int line;    /* depth at which a line began; 0: in a block */
    char closing[MOE_EMIT_MAX_DEPTH];
};

/* `format: FORMAT` and `version:` in front; YAML after the comment "# COMMENT". */
void moe_emit_begin(struct moe_emit *e, struct moe_buf *out, bool json, const char *comment,
                    const char *format, uint32_t version);
/* MOE_ERR_MEMORY: the buffer is not whole. */
int moe_emit_end(struct moe_emit *e, struct moe_err *err);

/* YAML sets these in a block of their own, whose lists and mappings must not stay empty ... */
void moe_emit_open_map(struct moe_emit *e, const char *key);
void moe_emit_open_list(struct moe_emit *e, const char *key);
/* ... and these, with all they hold, in one line. */
void moe_emit_open_line_map(struct moe_emit *e, const char *key);
void moe_emit_open_line_list(struct moe_emit *e, const char *key);
void moe_emit_close(struct moe_emit *e);

/* UTF-8; bytes that are none come out as '?'. */
void moe_emit_text(struct moe_emit *e, const char *key, const char *text);
void moe_emit_u64(struct moe_emit *e, const char *key, uint64_t value);
/* Finite; reads back as exactly the same. */
void moe_emit_double(struct moe_emit *e, const char *key, double value);
void moe_emit_bool(struct moe_emit *e, const char *key, bool value);
/* 16 hexadecimal digits, as a text. */
void moe_emit_fingerprint(struct moe_emit *e, const char *key, uint64_t value);
/* A list in one line. */
void moe_emit_u32s(struct moe_emit *e, const char *key, const uint32_t *values, uint32_t n);
void moe_emit_doubles(struct moe_emit *e, const char *key, const double *values, uint32_t n);

#endif
