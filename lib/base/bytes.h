/*
 * Bytes: little-endian access and a cursor over untrusted bytes.
 *
 * No structure is ever laid over file bytes. A cursor reads forward through a block; the first read
 * past its end makes it fail, every later read then gives zeros, and one test at the end suffices.
 */
#ifndef MOE_BASE_BYTES_H
#define MOE_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t moe_get_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t moe_get_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t moe_get_u64(const uint8_t *p)
{
    return moe_get_u32(p) | (uint64_t)moe_get_u32(p + 4) << 32;
}

static inline double moe_get_f64(const uint8_t *p)
{
    uint64_t bits = moe_get_u64(p);
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static inline void moe_put_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static inline void moe_put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

static inline void moe_put_u64(uint8_t *p, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

static inline void moe_put_f64(uint8_t *p, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    moe_put_u64(p, bits);
}

struct moe_cursor {
    const uint8_t *data;
    uint64_t size;   /* bytes at data */
    uint64_t offset; /* the position of the next read */
    bool failed;     /* a read went past the end; sticky */
};

static inline struct moe_cursor moe_cursor_over(const void *data, uint64_t size)
{
    return (struct moe_cursor){.data = data, .size = size};
}

static inline uint64_t moe_cursor_left(const struct moe_cursor *c)
{
    return c->failed ? 0 : c->size - c->offset;
}

/* The next n bytes as a borrowed view, or NULL (and failed) when fewer are left. */
static inline const uint8_t *moe_cursor_take(struct moe_cursor *c, uint64_t n)
{
    if (c->failed || n > c->size - c->offset) {
        c->failed = true;
        return NULL;
    }
    const uint8_t *p = c->data + c->offset;
    c->offset += n;
    return p;
}

static inline uint8_t moe_cursor_u8(struct moe_cursor *c)
{
    const uint8_t *p = moe_cursor_take(c, 1);
    return p ? *p : 0;
}

static inline uint16_t moe_cursor_u16(struct moe_cursor *c)
{
    const uint8_t *p = moe_cursor_take(c, 2);
    return p ? moe_get_u16(p) : 0;
}

static inline uint32_t moe_cursor_u32(struct moe_cursor *c)
{
    const uint8_t *p = moe_cursor_take(c, 4);
    return p ? moe_get_u32(p) : 0;
}

static inline uint64_t moe_cursor_u64(struct moe_cursor *c)
{
    const uint8_t *p = moe_cursor_take(c, 8);
    return p ? moe_get_u64(p) : 0;
}

static inline double moe_cursor_f64(struct moe_cursor *c)
{
    const uint8_t *p = moe_cursor_take(c, 8);
    return p ? moe_get_f64(p) : 0;
}

#endif
