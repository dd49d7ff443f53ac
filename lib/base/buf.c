/* Growable byte buffers. */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

void moe_buf_release(struct moe_buf *b)
{
    free(b->data);
    *b = (struct moe_buf){0};
}

void moe_buf_clear(struct moe_buf *b)
{
    b->size = 0;
    b->failed = false;
    if (b->data)
        b->data[0] = '\0';
}

uint64_t moe_buf_room(uint64_t n)
{
    uint64_t room = 64;
    while (room < n + 1)
        room *= 2;
    return room;
}

uint8_t *moe_buf_reserve(struct moe_buf *b, uint64_t n)
{
    if (b->failed || n > SIZE_MAX / 4 - b->size) {
        b->failed = true;
        return NULL;
    }
    if (b->size + n + 1 > b->room) {
        uint64_t room = moe_buf_room(b->size + n);
        uint8_t *data = realloc(b->data, room);
        if (!data) {
            b->failed = true;
            return NULL;
        }
        b->data = data;
        b->room = room;
    }
    return b->data + b->size;
}

void moe_buf_append(struct moe_buf *b, const void *data, uint64_t n)
{
    uint8_t *end = moe_buf_reserve(b, n);
    if (!end)
        return;
    if (n)
        memcpy(end, data, n);
    b->size += n;
    b->data[b->size] = '\0';
}

void moe_buf_text(struct moe_buf *b, const char *text)
{
    moe_buf_append(b, text, strlen(text));
}

void moe_buf_printf(struct moe_buf *b, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    uint8_t *end = n < 0 ? NULL : moe_buf_reserve(b, (uint64_t)n);
    if (end) {
        vsnprintf((char *)end, (size_t)n + 1, format, again);
        b->size += (uint64_t)n;
    } else {
        b->failed = true;
    }
    va_end(again);
    va_end(args);
}

void moe_buf_u8(struct moe_buf *b, uint8_t v)
{
    moe_buf_append(b, &v, 1);
}

void moe_buf_u16(struct moe_buf *b, uint16_t v)
{
    uint8_t bytes[2];
    moe_put_u16(bytes, v);
    moe_buf_append(b, bytes, sizeof bytes);
}

void moe_buf_u32(struct moe_buf *b, uint32_t v)
{
    uint8_t bytes[4];
    moe_put_u32(bytes, v);
    moe_buf_append(b, bytes, sizeof bytes);
}

void moe_buf_u64(struct moe_buf *b, uint64_t v)
{
    uint8_t bytes[8];
    moe_put_u64(bytes, v);
    moe_buf_append(b, bytes, sizeof bytes);
}

void moe_buf_f32(struct moe_buf *b, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    moe_buf_u32(b, bits);
}

void moe_buf_f64(struct moe_buf *b, double v)
{
    uint8_t bytes[8];
    moe_put_f64(bytes, v);
    moe_buf_append(b, bytes, sizeof bytes);
}
