#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/mem.h"
#include "fmt/gguf_file.h"

enum {
    READ_AHEAD = 1 << 20,
    MAX_HEADER_BYTES = 512 << 20, /* half a million texts take about 20 MiB */
    MAX_KEYS = 1 << 16,
    MAX_TEXTS = 1 << 24,   /* of an array: vocabularies have a million */
    MAX_KEY_BYTES = 65535, /* the specification's limit */
};

/* ---- Reading forward ---- */

int gguf_fail(struct gguf_reader *r, uint64_t at, const char *format, ...)
{
    char text[384];
    va_list args;
    if (r->status != MOE_OK)
        return r->status;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    r->status = moe_fail(r->err, MOE_ERR_FORMAT, "%s: byte %" PRIu64 ": %s", r->path, at, text);
    return r->status;
}

/* Reads on until the buffer holds `end` bytes of the file, which has them. */
static bool fill(struct gguf_reader *r, uint64_t end)
{
    uint64_t have = r->buf.size, want = end - have;
    if (want < READ_AHEAD)
        want = r->file_bytes - have < READ_AHEAD ? r->file_bytes - have : READ_AHEAD;
    uint8_t *to = moe_buf_reserve(&r->buf, want);
    if (!to)
        r->status = moe_fail(r->err, MOE_ERR_MEMORY,
                             "%s: out of memory: a header of over %" PRIu64 " bytes", r->path, end);
    else
        r->status = moe_file_pread(r->fd, r->path, to, want, have, r->err);
    if (r->status == MOE_OK)
        r->buf.size += want;
    return r->status == MOE_OK;
}

uint64_t gguf_take(struct gguf_reader *r, uint64_t n, const char *what)
{
    uint64_t at = r->at;
    if (r->status != MOE_OK)
        return UINT64_MAX;
    if (n > r->file_bytes - at) {
        gguf_fail(r, at, "%s of %" PRIu64 " bytes goes past the end of the file (cut short?)", what,
                  n);
        return UINT64_MAX;
    }
    if (n > MAX_HEADER_BYTES || at + n > MAX_HEADER_BYTES) {
        gguf_fail(r, at, "%s of %" PRIu64 " bytes: no header is that long", what, n);
        return UINT64_MAX;
    }
    if (at + n > r->buf.size && !fill(r, at + n))
        return UINT64_MAX;
    r->at += n;
    return at;
}

uint32_t gguf_take_u32(struct gguf_reader *r, const char *what)
{
    uint64_t at = gguf_take(r, 4, what);
    return at == UINT64_MAX ? 0 : moe_get_u32(r->buf.data + at);
}

uint64_t gguf_take_u64(struct gguf_reader *r, const char *what)
{
    uint64_t at = gguf_take(r, 8, what);
    return at == UINT64_MAX ? 0 : moe_get_u64(r->buf.data + at);
}

uint64_t gguf_take_text(struct gguf_reader *r, uint64_t max, const char *what, uint64_t *n)
{
    uint64_t at = r->at;
    *n = gguf_take_u64(r, what);
    if (r->status == MOE_OK && *n > max)
        gguf_fail(r, at, "%s of %" PRIu64 " bytes is longer than any can be (%" PRIu64 ")", what,
                  *n, max);
    return gguf_take(r, *n, what);
}

/* ---- Values ---- */

static const struct {
    const char *name;
    uint32_t bytes;
} types[GGUF_N_TYPES] = {
    [GGUF_U8] = {"u8", 1},       [GGUF_I8] = {"i8", 1},     [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},     [GGUF_U32] = {"u32", 4},   [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4},     [GGUF_BOOL] = {"bool", 1}, [GGUF_TEXT] = {"text", 0},
    [GGUF_ARRAY] = {"array", 0}, [GGUF_U64] = {"u64", 8},   [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

uint32_t gguf_type_bytes(uint32_t type)
{
    return type < GGUF_N_TYPES ? types[type].bytes : 0;
}

const char *gguf_type_name(uint32_t type)
{
    return type < GGUF_N_TYPES ? types[type].name : "unknown";
}

/* n numbers of one type. */
static void read_numbers(struct gguf_reader *r, struct gguf_value *v, uint32_t type, uint64_t n)
{
    uint64_t bytes;
    if (!moe_mul_u64(n, gguf_type_bytes(type), &bytes)) {
        gguf_fail(r, r->at, "key '%.100s': an array of %" PRIu64 " elements is impossible", v->key,
                  n);
        return;
    }
    v->at = gguf_take(r, bytes, "a value");
    for (uint64_t i = 0; type == GGUF_BOOL && r->status == MOE_OK && i < n; i++)
        if (r->buf.data[v->at + i] > 1)
            gguf_fail(r, v->at + i, "key '%.100s': %d is neither true nor false", v->key,
                      r->buf.data[v->at + i]);
}

static void read_texts(struct gguf_reader *r, struct gguf_value *v)
{
    uint64_t n = v->n;
    if (n > (r->file_bytes - r->at) / 8) { /* each has its length */
        gguf_fail(r, r->at, "key '%.100s': %" PRIu64 " texts do not fit into the file (cut short?)",
                  v->key, n);
        return;
    }
    if (n > MAX_TEXTS) { /* a sparse file costs nothing, what is kept of them does */
        gguf_fail(r, r->at, "key '%.100s': %" PRIu64 " texts: no file has that many", v->key, n);
        return;
    }
    v->at = 0;
    v->offsets = moe_alloc(n + 1, sizeof *v->offsets, r->err);
    if (!v->offsets)
        r->status = MOE_ERR_MEMORY;
    for (uint64_t i = 0; i < n && r->status == MOE_OK; i++) {
        uint64_t bytes;
        v->offsets[i] = gguf_take_text(r, MAX_HEADER_BYTES, "a text", &bytes);
    }
    if (r->status == MOE_OK)
        v->offsets[n] = r->at + 8;
}

static void read_array(struct gguf_reader *r, struct gguf_value *v)
{
    uint64_t at = r->at;
    v->element_type = gguf_take_u32(r, "an array's type");
    v->n = gguf_take_u64(r, "an array's length");
    if (r->status != MOE_OK)
        return;
    if (v->element_type == GGUF_ARRAY)
        gguf_fail(r, at, "key '%.100s': arrays of arrays are not read", v->key);
    else if (v->element_type >= GGUF_N_TYPES)
        gguf_fail(r, at, "key '%.100s': unknown type %" PRIu32 " of an array's elements", v->key,
                  v->element_type);
    else if (v->element_type == GGUF_TEXT)
        read_texts(r, v);
    else
        read_numbers(r, v, v->element_type, v->n);
}

static void read_value(struct gguf_reader *r, struct gguf_value *v)
{
    uint64_t begin = r->at, bytes;
    uint64_t at = gguf_take_text(r, MAX_KEY_BYTES, "a key", &bytes);
    if (r->status != MOE_OK)
        return;
    const char *key = (const char *)r->buf.data + at;
    if (bytes == 0 || memchr(key, '\0', bytes)) {
        gguf_fail(r, begin, "a key is empty or has a zero byte");
        return;
    }
    if (!(v->key = moe_strndup(key, bytes, r->err))) {
        r->status = MOE_ERR_MEMORY;
        return;
    }
    at = r->at;
    v->type = gguf_take_u32(r, "a value's type");
    if (r->status != MOE_OK)
        return;
    if (v->type >= GGUF_N_TYPES) {
        gguf_fail(r, at, "key '%.100s': unknown type %" PRIu32 " of a value", v->key, v->type);
    } else if (v->type == GGUF_ARRAY) {
        read_array(r, v);
    } else if (v->type == GGUF_TEXT) {
        at = gguf_take_text(r, MAX_HEADER_BYTES, "a text", &v->text_bytes);
        if (r->status != MOE_OK)
            return;
        v->text = moe_strndup((const char *)r->buf.data + at, v->text_bytes, r->err);
        if (!v->text)
            r->status = MOE_ERR_MEMORY;
    } else {
        read_numbers(r, v, v->type, 1);
    }
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(((const struct gguf_value *)a)->key, ((const struct gguf_value *)b)->key);
}

int gguf_read_meta(struct gguf_reader *r, struct gguf_meta *meta, uint64_t n)
{
    if (r->status == MOE_OK && n > MAX_KEYS)
        gguf_fail(r, r->at, "%" PRIu64 " keys: no file has that many", n);
    if (r->status != MOE_OK)
        return r->status;
    meta->values = moe_alloc(n, sizeof *meta->values, r->err);
    if (!meta->values)
        return MOE_ERR_MEMORY;
    while (meta->n < n && r->status == MOE_OK)
        read_value(r, &meta->values[meta->n++]);
    if (r->status != MOE_OK)
        return r->status;
    if (n)
        qsort(meta->values, n, sizeof *meta->values, compare_keys);
    for (uint64_t i = 1; i < n && r->status == MOE_OK; i++)
        if (compare_keys(&meta->values[i - 1], &meta->values[i]) == 0)
            gguf_fail(r, r->at, "key '%.100s' is there twice", meta->values[i].key);
    return r->status;
}

void gguf_meta_release(struct gguf_meta *meta)
{
    for (uint64_t i = 0; i < meta->n; i++) {
        free(meta->values[i].key);
        free(meta->values[i].text);
        free(meta->values[i].offsets);
    }
    free(meta->values);
    moe_buf_release(&meta->buf);
    *meta = (struct gguf_meta){0};
}
