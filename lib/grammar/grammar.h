/*
 * Grammar: which texts an answer may be. Read from GBNF as llama.cpp's users write it, or made from
 * a JSON schema; see moe-grammar(5). A grammar is immutable, and several threads may use it at
 * once.
 *
 * Grammars are untrusted: reading one costs no more than its allowance of steps and bytes
 * (base/allowance.h; NULL: the usual one), and ends when the allowance is cancelled.
 */
#ifndef MOE_GRAMMAR_GRAMMAR_H
#define MOE_GRAMMAR_GRAMMAR_H

#include <stdint.h>

#include "base/allowance.h"
#include "base/buf.h"
#include "base/err.h"

struct json_t;
struct moe_grammar;

enum {
    MOE_GRAMMAR_MAX_BYTES = 4 << 20,  /* of a file */
    MOE_GRAMMAR_MAX_STATES = 1 << 21, /* with repetitions written out; 12 bytes each */
    MOE_GRAMMAR_MAX_RULES = 1 << 17,
};

/* Parses n bytes of GBNF; `name` (a path) begins error texts, which give line and column. The rule
 * `root` is the whole answer. MOE_ERR_FORMAT: not GBNF; MOE_ERR_UNSUPPORTED: left recursion, or
 * tokens by name; MOE_ERR_LIMIT: too large, or beyond the allowance; MOE_ERR_INTERRUPTED:
 * cancelled.
 */
int moe_grammar_parse(struct moe_grammar **out, const char *name, const void *text, uint64_t n,
                      struct moe_allowance *allowance, struct moe_err *err);
/* From a JSON schema: every answer is JSON that the schema accepts, but for what moe_grammar_notes
 * says. What cannot be guaranteed is refused with its JSON pointer, as MOE_ERR_UNSUPPORTED. */
int moe_grammar_of_schema(struct moe_grammar **out, const char *name, const struct json_t *schema,
                          struct moe_allowance *allowance, struct moe_err *err);
/* What of its schemas is kept in a wider sense, as "#/POINTER: WHAT; ..."; NULL: nothing. */
const char *moe_grammar_notes(const struct moe_grammar *g);
/* Adds such notes; as many as there is memory for. */
void moe_grammar_note(struct moe_grammar *g, const struct moe_buf *notes);
/* Appends the schema's GBNF: of all its values, or (until not NULL) of its texts alone, or of all
 * but those. Texts alone are written as they are, without quotes, and do not hold `until`, or where
 * more than 256 of their characters are counted its first two characters, or where they follow a
 * pattern its first; the rule `any`, a text that does not hold it, is left to the caller. No value:
 * the rule takes nothing. notes (or NULL): what is kept in a wider sense is appended. */
enum moe_schema_values { MOE_SCHEMA_ALL, MOE_SCHEMA_TEXTS, MOE_SCHEMA_OTHERS };
int moe_grammar_write_schema(struct moe_buf *out, const char *name, const struct json_t *schema,
                             enum moe_schema_values values, const char *until,
                             struct moe_buf *notes, struct moe_allowance *allowance,
                             struct moe_err *err);
/* Accepts any JSON object. */
int moe_grammar_of_objects(struct moe_grammar **out, struct moe_err *err);
/* From files. */
int moe_grammar_read(struct moe_grammar **out, const char *path, struct moe_err *err);
int moe_grammar_read_schema(struct moe_grammar **out, const char *path, struct moe_err *err);

void moe_grammar_free(struct moe_grammar *g);            /* NULL is fine */
uint64_t moe_grammar_bytes(const struct moe_grammar *g); /* its memory */

#endif
