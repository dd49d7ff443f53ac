/*
 * Jinja: renders the chat templates that checkpoints bring, as Hugging Face's tokenizers do.
 *
 * The language is that of Jinja 3 (https://jinja.palletsprojects.com/en/stable/templates/) as the
 * chat templates' environment sets it up: blocks are trimmed (trim_blocks, lstrip_blocks), there
 * are `break`, `continue` and `{% generation %}`, values cannot be changed by their methods, and
 * `raise_exception`, `strftime_now` and a `tojson` that escapes nothing are added. What has no
 * meaning there is refused: templates that include, import or extend others, blocks, translations.
 *
 * A template is data from elsewhere: what a render may compute, write and nest is bounded, and what
 * it cannot do ends in one sentence with the template's line and column.
 *
 * A render keeps track of which bytes of its output come from the caller's texts and which from the
 * template, so that a special token that a user spells stays plain text.
 */
#ifndef MOE_PROMPT_JINJA_H
#define MOE_PROMPT_JINJA_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "base/buf.h"
#include "base/err.h"

struct json_t;
struct moe_jinja; /* a parsed template; immutable */

/* Parses n bytes of UTF-8; `name` begins error texts and is borrowed while the template lives.
 * Release *out with moe_jinja_free. MOE_ERR_FORMAT: it is not a template; MOE_ERR_UNSUPPORTED: it
 * asks for what is refused; MOE_ERR_LIMIT: it is larger, or nested deeper, than any chat template.
 */
int moe_jinja_parse(struct moe_jinja **out, const char *name, const char *source, uint64_t n,
                    struct moe_err *err);
void moe_jinja_free(struct moe_jinja *template); /* NULL is fine */

/* 0: the default that stands beside it. */
struct moe_jinja_limits {
    uint64_t steps;  /* 20 million: expressions, statements, and items that functions look at */
    uint64_t output; /* 64 MiB, in bytes */
    uint64_t memory; /* 512 MiB, of values, given back at the end */
    uint32_t depth;  /* 100: calls within calls, and what they compute */
};

struct moe_jinja_variable {
    const char *name;
    const struct json_t *value;
    bool caller; /* its strings are the caller's texts, and not the template's own */
};

/* What a template sees. */
struct moe_jinja_input {
    const struct moe_jinja_variable *variables; /* a later one hides an earlier of its name */
    uint32_t n_variables;
    struct tm now;                  /* of strftime_now */
    struct moe_jinja_limits limits; /* zeros: the defaults */
};

/* Appends what the template makes of the input. words: NULL, or receives a struct moe_span for
 * each piece of the caller's texts, in order.
 * MOE_ERR_USAGE: the template refused the input (raise_exception): err has its words;
 * MOE_ERR_FORMAT: it did what Jinja does not allow; MOE_ERR_LIMIT: beyond the limits. */
int moe_jinja_render(const struct moe_jinja *template, const struct moe_jinja_input *input,
                     struct moe_buf *out, struct moe_buf *words, struct moe_err *err);

#endif
