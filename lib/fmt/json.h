/*
 * JSON trees with our error model, over jansson. Duplicate keys are refused, nesting is bounded,
 * and a number must fit its use. Whole numbers beyond 64 bits keep their digits
 * (moe_json_digits). `json_t` stays opaque to callers that only pass it on.
 */
#ifndef MOE_FMT_JSON_H
#define MOE_FMT_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct json_t;

/*
 * What the values of a text may take in memory. Its bytes do not bound that: 3 bytes, "{},", become
 * 240. Above the limit nothing is parsed. Published files need: config.json                     a
 * few thousand values: under 1 MiB tokenizer_config.json, each added token described (6,400 of
 * Gemma): 10 MiB tokenizer.json, 262,144 tokens and 515,000 merges as pairs (Gemma 3): 290 MiB
 */
enum {
    MOE_JSON_CONFIG_MEMORY = 16 << 20,
    MOE_JSON_TOKENIZER_CONFIG_MEMORY = 64 << 20,
    MOE_JSON_TOKENIZER_MEMORY = 512 << 20,
};

/*
 * Parses n bytes; `name` (a path) begins error texts, which give line and column. *out is released
 * with moe_json_free, and NULL on failure: MOE_ERR_FORMAT (damaged, or its values would take more
 * than max_memory bytes) or MOE_ERR_MEMORY.
 */
int moe_json_parse(struct json_t **out, const char *name, const void *text, uint64_t n,
                   uint64_t max_memory, struct moe_err *err);
/* The same of a whole file's bytes: one that is no JSON is called what it is instead, if that is
 * known (moe_file_nature). */
int moe_json_parse_file(struct json_t **out, const char *path, const void *text, uint64_t n,
                        uint64_t max_memory, struct moe_err *err);
/* moe_json_parse where an object may have a member twice: its last value holds. For what models
 * write. */
int moe_json_parse_repeated(struct json_t **out, const char *name, const void *text, uint64_t n,
                            uint64_t max_memory, struct moe_err *err);
/* Reads and parses a file of at most max_bytes. NaN and the infinities, which Python writes, are
 * accepted where no number is read. */
int moe_json_read(struct json_t **out, const char *path, uint64_t max_bytes, uint64_t max_memory,
                  struct moe_err *err);
void moe_json_free(struct json_t *json);
/* A deep copy; fails only with MOE_ERR_MEMORY, *out NULL then. */
int moe_json_copy(struct json_t **out, const struct json_t *json, struct moe_err *err);
/* The value as text, by jansson's flags for writing; the caller frees it with free. Numbers have no
 * more digits than tell them apart. NULL: out of memory. */
char *moe_json_text(const struct json_t *json, size_t flags);
/* The digits, with a sign, of a whole number beyond 64 bits; NULL: the value is none. jansson takes
 * such a number for an object of one member. */
const char *moe_json_digits(const struct json_t *value);
/* *out: the nearest double to a number of any size. False: the value is no number. */
bool moe_json_number(const struct json_t *value, double *out);
/* An estimate, never too low, of what a value takes in memory. */
uint64_t moe_json_bytes(const struct json_t *json);

/*
 * Members of an object. Each returns MOE_OK with *out set; a missing (or null) member is
 * MOE_ERR_FORMAT when required, else leaves *out unchanged; a member of a wrong type or range is
 * always MOE_ERR_FORMAT. `name` begins the error text.
 */
int moe_json_get_u32(const char *name, const struct json_t *object, const char *key, uint32_t max,
                     bool required, uint32_t *out, struct moe_err *err);
/* The same, min to max. */
int moe_json_get_between(const char *name, const struct json_t *object, const char *key,
                         uint32_t min, uint32_t max, bool required, uint32_t *out,
                         struct moe_err *err);
int moe_json_get_double(const char *name, const struct json_t *object, const char *key,
                        bool required, double *out, struct moe_err *err);
int moe_json_get_bool(const char *name, const struct json_t *object, const char *key, bool required,
                      bool *out, struct moe_err *err);
/* Whether a member that is there and not null is of one of these types. */
enum moe_json_type {
    MOE_JSON_IS_LIST = 1,
    MOE_JSON_IS_OBJECT = 2,
    MOE_JSON_IS_TEXT = 4,
    MOE_JSON_IS_NUMBER = 8,
    MOE_JSON_IS_SWITCH = 16
};
int moe_json_check_type(const char *name, const struct json_t *object, const char *key,
                        unsigned types, struct moe_err *err);
/* *out borrows from the object. Texts with an embedded NUL are refused. */
int moe_json_get_text(const char *name, const struct json_t *object, const char *key, bool required,
                      const char **out, struct moe_err *err);

#endif
