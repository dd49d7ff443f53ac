/*
 * Reading tokenizer.json: shared by the readers of its parts. Internal to the tokenizer.
 *
 * Every part is either implemented or refused by name: a tokenizer that is nearly right gives wrong
 * answers that nobody can trace.
 */
#ifndef MOE_VOCAB_HF_H
#define MOE_VOCAB_HF_H

#include <jansson.h>

#include "fmt/json.h"
#include "text/tokenizer_impl.h"
#include "vocab/vocab.h"

struct moe_hf_reader {
    const char *name; /* of the file, for error texts */
    struct moe_tokenizer *tok;
    struct moe_err *err;
    bool byte_level;    /* the pre-tokenizer maps bytes to characters */
    const char *prefix; /* the token that the post-processor puts first, or NULL */
    const char *suffix; /* ... and last */
    uint32_t drops;     /* what the decoder leaves out: of enum moe_tokenizer_flag */
};

/* "NAME: WHAT 'WHICH' is not implemented"; which may be NULL. */
static inline int moe_hf_unsupported(struct moe_hf_reader *r, const char *what, const char *which)
{
    return moe_fail(r->err, MOE_ERR_UNSUPPORTED, "%s: %s%s%s%s is not implemented", r->name, what,
                    which ? " '" : "", which ? which : "", which ? "'" : "");
}

/* "NAME: WHAT" */
static inline int moe_hf_damaged(struct moe_hf_reader *r, const char *what)
{
    return moe_fail(r->err, MOE_ERR_FORMAT, "%s: %s", r->name, what);
}

static inline bool moe_hf_absent(const json_t *value)
{
    return !value || json_is_null(value);
}

/* An optional member; *out stays as it was where there is none. */
static inline int moe_hf_bool(struct moe_hf_reader *r, const json_t *object, const char *key,
                              bool *out)
{
    return moe_json_get_bool(r->name, object, key, false, out, r->err);
}

static inline int moe_hf_text(struct moe_hf_reader *r, const json_t *object, const char *key,
                              const char **out)
{
    return moe_json_get_text(r->name, object, key, false, out, r->err);
}

/* Normalizer, pre-tokenizer, decoder and post-processor of the file, in this order. */
int moe_hf_read_steps(struct moe_hf_reader *r, const json_t *root);
/* Vocabulary, added tokens and merges; after the steps, which say how tokens are spelled. */
int moe_hf_read_model(struct moe_hf_reader *r, const json_t *root);

#endif
