#include "text/alphabet.h"

#include "base/text.h"

/* Printable Latin-1 stands for itself, U+0100 and on for the other bytes in order: 0 to 32, 127 to
 * 160 and 173. */
static bool is_printable(uint32_t byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* The byte that a character stands for, or -1. */
static int byte_of(uint32_t c)
{
    if (c <= 255)
        return is_printable(c) ? (int)c : -1;
    uint32_t i = c - 0x100;
    if (i > 67)
        return -1;
    return i <= 32 ? (int)i : i <= 66 ? (int)i + 94 : 173;
}

static uint32_t character_of(uint8_t byte)
{
    if (is_printable(byte))
        return byte;
    return 0x100u + (byte <= 32 ? byte : byte <= 160 ? byte - 94u : 67u);
}

void moe_alphabet_write(const char *text, uint64_t n, struct moe_buf *out)
{
    uint8_t bytes[4];
    for (uint64_t i = 0; i < n; i++)
        moe_buf_append(out, bytes,
                       (uint64_t)moe_utf8_encode(character_of((uint8_t)text[i]), bytes));
}

bool moe_alphabet_read(const char *text, uint64_t n, struct moe_buf *out)
{
    uint64_t before = out->size;
    int length;
    for (uint64_t at = 0; at < n; at += (uint64_t)length) {
        int byte = byte_of(moe_utf8_decode((const uint8_t *)text + at, n - at, &length));
        if (byte < 0) {
            out->size = before;
            return false;
        }
        moe_buf_u8(out, (uint8_t)byte);
    }
    return true;
}
