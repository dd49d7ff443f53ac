/* Values by key: what gguf.h says of them. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/float16.h"
#include "fmt/gguf_file.h"

/* ---- Numbers ---- */

static int64_t sign_extended(uint64_t bits, uint32_t bytes)
{
    uint64_t sign = (uint64_t)1 << (8 * bytes - 1);
    return (int64_t)((bits ^ sign) - sign);
}

/* A number as a file stores it: whole, or a double. */
struct number {
    bool whole, negative;
    uint64_t value; /* of a whole one that is not negative */
    double real;
};

static struct number number_at(const uint8_t *p, uint32_t type)
{
    uint32_t bytes = gguf_type_bytes(type);
    uint64_t bits = 0;
    for (uint32_t i = 0; i < bytes; i++)
        bits |= (uint64_t)p[i] << 8 * i;
    struct number n = {.whole = true, .value = bits, .real = (double)bits};
    switch (type) {
    case GGUF_I8:
    case GGUF_I16:
    case GGUF_I32:
    case GGUF_I64:
        n.real = (double)sign_extended(bits, bytes);
        n.negative = n.real < 0;
        break;
    case GGUF_F32:
        n.whole = false;
        n.real = (double)moe_bits_f32((uint32_t)bits);
        break;
    case GGUF_F64:
        n.whole = false;
        memcpy(&n.real, &bits, sizeof n.real);
        break;
    }
    return n;
}

static bool is_number(uint32_t type)
{
    return gguf_type_bytes(type) > 0 && type != GGUF_BOOL;
}

bool gguf_whole(const struct gguf_meta *meta, const struct gguf_value *v, uint64_t *out)
{
    if (!is_number(v->type))
        return false;
    struct number n = number_at(meta->buf.data + v->at, v->type);
    *out = n.value;
    return n.whole && !n.negative;
}

/* ---- By key ---- */

const struct gguf_value *gguf_find(const struct gguf_meta *meta, const char *key)
{
    uint64_t low = 0, high = meta->n;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        int order = strcmp(meta->values[middle].key, key);
        if (order == 0)
            return &meta->values[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

const char *moe_gguf_path(const struct moe_gguf *gguf)
{
    return gguf->files.files[0].path;
}

bool moe_gguf_has(const struct moe_gguf *gguf, const char *key)
{
    return gguf_find(&gguf->meta, key) != NULL;
}

/* The value, or NULL with *status set: missing where it must be there, or may be missing. */
static const struct gguf_value *get(const struct moe_gguf *gguf, const char *key, bool required,
                                    int *status, struct moe_err *err)
{
    const struct gguf_value *v = gguf_find(&gguf->meta, key);
    *status = MOE_OK;
    if (!v && required)
        *status =
            moe_fail(err, MOE_ERR_FORMAT, "%s: key '%.100s' is missing", moe_gguf_path(gguf), key);
    return v;
}

static int fail_type(const struct moe_gguf *gguf, const struct gguf_value *v, const char *expected,
                     struct moe_err *err)
{
    return moe_fail(err, MOE_ERR_FORMAT, "%s: key '%.100s' is of type %s%s, %s was expected",
                    moe_gguf_path(gguf), v->key, gguf_type_name(v->type),
                    v->type == GGUF_ARRAY && v->n == 0 ? " (empty)" : "", expected);
}

int moe_gguf_get_u32(const struct moe_gguf *gguf, const char *key, uint32_t max, bool required,
                     uint32_t *out, struct moe_err *err)
{
    int status;
    const struct gguf_value *v = get(gguf, key, required, &status, err);
    if (!v)
        return status;
    bool list = v->type == GGUF_ARRAY && v->n > 0;
    uint32_t type = list ? v->element_type : v->type;
    if (!is_number(type) || type == GGUF_F32 || type == GGUF_F64)
        return fail_type(gguf, v, "a whole number", err);
    const uint8_t *data = gguf->meta.buf.data + v->at;
    uint32_t bytes = gguf_type_bytes(type);
    for (uint64_t i = 1; list && i < v->n; i++)
        if (memcmp(data, data + i * bytes, bytes) != 0)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: key '%.100s' has different numbers for different layers",
                            moe_gguf_path(gguf), key);
    struct number n = number_at(data, type);
    if (n.negative || n.value > max)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: key '%.100s' is %.17g, 0 to %" PRIu32 " is possible",
                        moe_gguf_path(gguf), key, n.real, max);
    *out = (uint32_t)n.value;
    return MOE_OK;
}

int moe_gguf_get_double(const struct moe_gguf *gguf, const char *key, bool required, double *out,
                        struct moe_err *err)
{
    int status;
    const struct gguf_value *v = get(gguf, key, required, &status, err);
    if (!v)
        return status;
    if (!is_number(v->type))
        return fail_type(gguf, v, "a number", err);
    struct number n = number_at(gguf->meta.buf.data + v->at, v->type);
    if (!isfinite(n.real))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: key '%.100s' is no finite number",
                        moe_gguf_path(gguf), key);
    *out = n.real;
    return MOE_OK;
}

int moe_gguf_get_bool(const struct moe_gguf *gguf, const char *key, bool required, bool *out,
                      struct moe_err *err)
{
    int status;
    const struct gguf_value *v = get(gguf, key, required, &status, err);
    if (!v)
        return status;
    if (v->type != GGUF_BOOL)
        return fail_type(gguf, v, "true or false", err);
    *out = gguf->meta.buf.data[v->at] != 0;
    return MOE_OK;
}

int moe_gguf_get_text(const struct moe_gguf *gguf, const char *key, bool required, const char **out,
                      struct moe_err *err)
{
    int status;
    const struct gguf_value *v = get(gguf, key, required, &status, err);
    if (!v)
        return status;
    if (v->type != GGUF_TEXT)
        return fail_type(gguf, v, "a text", err);
    if (memchr(v->text, '\0', v->text_bytes))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: key '%.100s': its text has a zero byte",
                        moe_gguf_path(gguf), key);
    *out = v->text;
    return MOE_OK;
}

/* ---- Arrays ---- */

int moe_gguf_get_array(const struct moe_gguf *gguf, const char *key, bool required,
                       struct moe_gguf_array *out, struct moe_err *err)
{
    int status;
    const struct gguf_value *v = get(gguf, key, required, &status, err);
    *out = (struct moe_gguf_array){0};
    if (!v)
        return status;
    if (v->type != GGUF_ARRAY)
        return fail_type(gguf, v, "an array", err);
    *out = (struct moe_gguf_array){v->element_type, v->n, gguf->meta.buf.data + v->at, v->offsets};
    return MOE_OK;
}

bool moe_gguf_array_is_text(const struct moe_gguf_array *array)
{
    return array->type == GGUF_TEXT;
}

double moe_gguf_array_number(const struct moe_gguf_array *array, uint64_t i)
{
    return number_at(array->data + i * gguf_type_bytes(array->type), array->type).real;
}

const char *moe_gguf_array_text(const struct moe_gguf_array *array, uint64_t i, uint64_t *n)
{
    *n = array->offsets[i + 1] - 8 - array->offsets[i];
    return (const char *)array->data + array->offsets[i];
}
