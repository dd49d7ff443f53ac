/*
 * JSON reading with our error model, over jansson. Duplicate keys are refused, nesting is bounded,
 * and a number must fit what it is asked for. `json_t` stays opaque to callers that only pass it
 * on.
 */
#ifndef MOE_FMT_JSON_H
#define MOE_FMT_JSON_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct json_t;

/* Parses n bytes; `name` (a path) begins error texts, which give line and column. The result is
 * released with moe_json_free. NULL on failure. */
struct json_t *moe_json_parse(const char *name, const void *text, uint64_t n, struct moe_err *err);
/* Reads and parses a file of at most max_bytes. */
struct json_t *moe_json_read(const char *path, uint64_t max_bytes, struct moe_err *err);
void moe_json_free(struct json_t *json);

/*
 * Members of an object. Each returns MOE_OK with *out set; a missing (or null) member is
 * MOE_ERR_FORMAT when required, else leaves *out as it was; a member of a wrong type or range is
 * always MOE_ERR_FORMAT. `name` begins the error text.
 */
int moe_json_get_u32(const char *name, const struct json_t *object, const char *key, uint32_t max,
                     bool required, uint32_t *out, struct moe_err *err);
int moe_json_get_double(const char *name, const struct json_t *object, const char *key,
                        bool required, double *out, struct moe_err *err);
int moe_json_get_bool(const char *name, const struct json_t *object, const char *key, bool required,
                      bool *out, struct moe_err *err);
/* *out borrows from the object. Texts with an embedded NUL are refused. */
int moe_json_get_text(const char *name, const struct json_t *object, const char *key, bool required,
                      const char **out, struct moe_err *err);

#endif
