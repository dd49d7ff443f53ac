/*
 * GGUF files: metadata. Versions 2 and 3, little-endian; a model split over several files
 * ("name-00001-of-00005.gguf") is opened by any of its parts. Layout and meaning of the fields:
 * ggml's published GGUF specification. checkpoint.h gives access to the tensors.
 */
#ifndef MOE_FMT_GGUF_H
#define MOE_FMT_GGUF_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct moe_gguf;

/* Opens and checks the headers of all parts. Errors: MOE_ERR_IO, MOE_ERR_FORMAT (what, where in the
 * file), MOE_ERR_VERSION (version 1, big-endian). */
int moe_gguf_open(struct moe_gguf **out, const char *path, struct moe_err *err);
void moe_gguf_close(struct moe_gguf *gguf);
/* Whether the file begins as GGUF files do; false if it cannot be read. */
bool moe_gguf_is(const char *path);
const char *moe_gguf_path(const struct moe_gguf *gguf); /* the first part's */

/*
 * Values by key. Each returns MOE_OK with *out set; a missing key is MOE_ERR_FORMAT when required,
 * else leaves *out unchanged; a value of a wrong type or range is always MOE_ERR_FORMAT. Whole
 * numbers of any width serve as whole numbers; these and both kinds of float as numbers. From an
 * array with one element per layer, all equal, moe_gguf_get_u32 takes that number.
 */
bool moe_gguf_has(const struct moe_gguf *gguf, const char *key);
int moe_gguf_get_u32(const struct moe_gguf *gguf, const char *key, uint32_t max, bool required,
                     uint32_t *out, struct moe_err *err);
int moe_gguf_get_double(const struct moe_gguf *gguf, const char *key, bool required, double *out,
                        struct moe_err *err);
int moe_gguf_get_bool(const struct moe_gguf *gguf, const char *key, bool required, bool *out,
                      struct moe_err *err);
/* Borrowed, terminated; a text with an embedded NUL is refused. */
int moe_gguf_get_text(const struct moe_gguf *gguf, const char *key, bool required, const char **out,
                      struct moe_err *err);

/* An array, checked when the file was opened; borrowed. */
struct moe_gguf_array {
    uint32_t type; /* GGUF's number for the element type */
    uint64_t n;
    const uint8_t *data;     /* n numbers, little-endian, unaligned; or the base of the offsets */
    const uint64_t *offsets; /* of texts: n + 1 places; element i ends 8 bytes (its successor's
                                length) before offsets[i + 1]; else NULL */
};
/* *out is zeroed (n 0, no texts) where a key that is not required is missing. */
int moe_gguf_get_array(const struct moe_gguf *gguf, const char *key, bool required,
                       struct moe_gguf_array *out, struct moe_err *err);
/* Element i as a number (booleans as 0 and 1), or as a text: not terminated, may hold any byte. The
 * array must have that type (moe_gguf_array_is_text). */
bool moe_gguf_array_is_text(const struct moe_gguf_array *array);
double moe_gguf_array_number(const struct moe_gguf_array *array, uint64_t i);
/* Element i where it is a whole number, not negative, exactly; else false. */
bool moe_gguf_array_whole(const struct moe_gguf_array *array, uint64_t i, uint64_t *out);
const char *moe_gguf_array_text(const struct moe_gguf_array *array, uint64_t i, uint64_t *n);

#endif
