/*
 * Growable byte buffer with a sticky failure: append freely, test `failed` once at the end.
 * Start from a zeroed struct; moe_buf_release drops the contents.
 */
#ifndef MOE_BASE_BUF_H
#define MOE_BASE_BUF_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct moe_buf {
    uint8_t *data; /* NULL while empty; a NUL always follows the last byte once allocated */
    uint64_t size; /* bytes in use */
    uint64_t room; /* bytes allocated */
    bool failed;   /* out of memory at some append; sticky */
};

/* A range of a text's bytes. */
struct moe_span {
    uint64_t at, n;
};

void moe_buf_release(struct moe_buf *b);
/* Empties the buffer and keeps its memory. */
void moe_buf_clear(struct moe_buf *b);

/* Bytes that a buffer allocates for a text of n. */
uint64_t moe_buf_room(uint64_t n);
/* Makes room for n more bytes at the end; returns where they go (size does not change) or NULL. */
uint8_t *moe_buf_reserve(struct moe_buf *b, uint64_t n);

void moe_buf_append(struct moe_buf *b, const void *data, uint64_t n);
void moe_buf_text(struct moe_buf *b, const char *text); /* without its NUL */
void moe_buf_printf(struct moe_buf *b, const char *format, ...) MOE_PRINTF(2, 3);
void moe_buf_u8(struct moe_buf *b, uint8_t v);
void moe_buf_u16(struct moe_buf *b, uint16_t v); /* little-endian, as all below */
void moe_buf_u32(struct moe_buf *b, uint32_t v);
void moe_buf_u64(struct moe_buf *b, uint64_t v);
void moe_buf_f32(struct moe_buf *b, float v);
void moe_buf_f64(struct moe_buf *b, double v);

#endif
