/*
 * tokenizer.json: shared by the readers of its parts.
 *
 * Every part is either implemented or refused by name: a nearly right tokenizer gives wrong answers
 * that nobody can trace.
 */
#ifndef MOE_TEXT_VOCAB_HF_H
#define MOE_TEXT_VOCAB_HF_H

#include <jansson.h>
#include <string.h>

#include "fmt/json.h"
#include "text/internal.h"
#include "text/vocab.h"

struct moe_hf_reader {
    const char *name; /* the file's name, for error texts */
    /* The files beside it, NULL if missing: tokenizer_config.json, added_tokens.json,
     * special_tokens_map.json. */
    json_t *config, *added, *special_map;
    const char *config_name, *added_name;
    const json_t *only; /* the pre-tokenizer, unless it is a Sequence */
    struct moe_tokenizer *tok;
    struct moe_err *err;
    bool byte_level;    /* the pre-tokenizer maps bytes to characters */
    bool spelled;       /* ... and more steps follow */
    const char *prefix; /* the token that the post-processor puts first, or NULL */
    const char *suffix; /* ... and last */
    uint32_t drops;     /* what the decoder leaves out (enum moe_tokenizer_flag) */
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

/* Reads an optional member; keeps *out if it is missing. */
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

/* A part's "type". */
static inline const char *moe_hf_type(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    return type ? type : "?";
}

static inline bool moe_hf_is_type(const json_t *part, const char *type)
{
    return strcmp(moe_hf_type(part), type) == 0;
}

static inline int moe_hf_too_many(struct moe_hf_reader *r)
{
    return moe_hf_damaged(r, "too many normalizer or pre-tokenizer steps");
}

static inline int moe_hf_add_step(struct moe_hf_reader *r, struct moe_steps *steps, uint8_t kind,
                                  struct moe_step **out)
{
    *out = moe_steps_add(steps, kind);
    return *out ? MOE_OK : moe_hf_too_many(r);
}

#endif
