/*
 * Jinja: renders the chat templates of checkpoints as Hugging Face's tokenizers do.
 *
 * The language is Jinja 3 (https://jinja.palletsprojects.com/en/stable/templates/) as the chat
 * templates' environment sets it up: blocks are trimmed (trim_blocks, lstrip_blocks), there are
 * `break`, `continue` and `{% generation %}`, methods cannot change values, and `raise_exception`,
 * `strftime_now` and a `tojson` that escapes nothing are added. Constructs without meaning there
 * are refused: templates that include, import or extend others, blocks, translations.
 *
 * Templates are untrusted: a render's computing, output and nesting are bounded, and what it cannot
 * do ends in one sentence with the template's line and column.
 *
 * A render tracks which bytes of its output come from the caller's texts and which from the
 * template, so that a special token that a user spells stays plain text.
 */
#ifndef MOE_PROMPT_JINJA_H
#define MOE_PROMPT_JINJA_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "base/buf.h"
#include "base/err.h"

struct json_t;
struct moe_jinja; /* a parsed template; immutable */

/* Parses n bytes of UTF-8; `name` begins error texts and is borrowed while the template lives.
 * Release *out with moe_jinja_free. MOE_ERR_FORMAT: not a template; MOE_ERR_UNSUPPORTED: uses a
 * refused construct; MOE_ERR_LIMIT: larger, or nested deeper, than any chat template. */
int moe_jinja_parse(struct moe_jinja **out, const char *name, const char *source, uint64_t n,
                    struct moe_err *err);
void moe_jinja_free(struct moe_jinja *template); /* NULL is fine */

/* 0: the default given in the comment. */
struct moe_jinja_limits {
    uint64_t steps;  /* 8 million: expressions, statements, and items that functions visit */
    uint64_t output; /* 64 MiB, in bytes */
    uint64_t memory; /* 512 MiB of values, freed at the end */
    uint32_t depth;  /* 100: nested calls and their expressions */
    const atomic_bool *cancelled; /* NULL: never; MOE_ERR_INTERRUPTED once it is set */
};

struct moe_jinja_variable {
    const char *name;
    const struct json_t *value;
    bool caller; /* its strings are the caller's texts, not the template's */
};

/* A render's input. */
struct moe_jinja_input {
    const struct moe_jinja_variable
        *variables; /* a later one hides an earlier one of the same name */
    uint32_t n_variables;
    struct tm now;                  /* for strftime_now */
    struct moe_jinja_limits limits; /* zeros: the defaults */
};

/* Appends the template's output for the input. words: NULL, or receives a struct moe_span for each
 * piece of the caller's texts, in order. MOE_ERR_USAGE: the template refused the input
 * (raise_exception), with its words in err; MOE_ERR_FORMAT: it did what Jinja does not allow;
 * MOE_ERR_LIMIT: it exceeded the limits. */
int moe_jinja_render(const struct moe_jinja *template, const struct moe_jinja_input *input,
                     struct moe_buf *out, struct moe_buf *words, struct moe_err *err);

#endif
