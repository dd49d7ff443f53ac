#include "text/charsmap.h"

#include <stdbool.h>
#include <string.h>
#include <utf8proc.h>

#include "base/bytes.h"
#include "base/text.h"

enum { GRAPHEME_BYTES = 6 /* from here on character by character */ };

/* ---- The trie's units: darts-clone's bits ---- */

#define UNIT_VALUE 0x80000000u /* the unit is a value: the lower bits */

static uint32_t unit_at(const struct moe_charsmap *map, uint32_t i)
{
    return moe_get_u32(map->units + 4 * (uint64_t)i);
}

static bool has_leaf(uint32_t unit)
{
    return unit >> 8 & 1;
}

static uint32_t label(uint32_t unit)
{
    return unit & (UNIT_VALUE | 0xff);
}

static uint32_t offset(uint32_t unit)
{
    return unit >> 10 << ((unit & 1u << 9) >> 6);
}

static uint64_t replacement_bytes(const struct moe_charsmap *map, uint64_t at)
{
    const char *end = memchr(map->texts + at, 0, map->n_text - at);
    return end ? (uint64_t)(end - map->texts) - at : map->n_text - at;
}

int moe_charsmap_open(struct moe_charsmap *map, const void *data, uint64_t n, struct moe_err *err)
{
    const uint8_t *bytes = data;
    uint64_t size = n >= 4 ? moe_get_u32(bytes) : 0;
    if (n < 8 || size < 4 || size % 4 || size > n - 4 || n > MOE_CHARSMAP_MAX)
        return moe_fail(err, MOE_ERR_FORMAT, "the precompiled map of characters is damaged");
    *map = (struct moe_charsmap){bytes + 4, (const char *)bytes + 4 + size, size / 4, n - 4 - size};
    if (!moe_utf8_valid((const uint8_t *)map->texts, map->n_text))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "the precompiled map of characters has replacements that are not UTF-8");
    /* Which units are values shows in the unit alone, so they are all checked here. */
    for (uint64_t i = 0; i < map->n_units; i++) {
        uint32_t unit = unit_at(map, (uint32_t)i), at = unit & ~UNIT_VALUE;
        if (unit & UNIT_VALUE && (at >= map->n_text || ((uint8_t)map->texts[at] & 0xc0) == 0x80))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "the precompiled map of characters names replacement %u, which does "
                            "not exist",
                            at);
    }
    return MOE_OK;
}

uint64_t moe_charsmap_longest(const struct moe_charsmap *map)
{
    uint64_t longest = 0;
    for (uint64_t at = 0; at < map->n_text;) {
        uint64_t n = replacement_bytes(map, at);
        longest = n > longest ? n : longest;
        at += n + 1;
    }
    return longest;
}

/* Appends the replacement of the shortest beginning that has one; false where none has. */
static bool replace(const struct moe_charsmap *map, const char *text, uint64_t n,
                    struct moe_buf *out)
{
    uint32_t node = offset(unit_at(map, 0));
    for (uint64_t i = 0; i < n && text[i]; i++) {
        uint8_t byte = (uint8_t)text[i];
        node ^= byte;
        if (node >= map->n_units || label(unit_at(map, node)) != byte)
            return false;
        uint32_t unit = unit_at(map, node);
        node ^= offset(unit);
        if (!has_leaf(unit))
            continue;
        uint32_t value = node < map->n_units ? unit_at(map, node) : 0;
        if (!(value & UNIT_VALUE)) /* damaged */
            return false;
        value &= ~UNIT_VALUE;
        moe_buf_append(out, map->texts + value, replacement_bytes(map, value));
        return true;
    }
    return false;
}

/* ---- Graphemes ---- */

/* Bytes of the first grapheme of n > 0. */
static uint64_t grapheme_bytes(const uint8_t *text, uint64_t n)
{
    int length;
    utf8proc_int32_t state = 0;
    if (text[0] < 0x80 && (n == 1 || (text[1] < 0x80 && text[1] != '\n')))
        return 1;
    uint32_t c = moe_utf8_decode(text, n, &length);
    uint64_t at = (uint64_t)length;
    while (at < n) {
        uint32_t next = moe_utf8_decode(text + at, n - at, &length);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)c, (utf8proc_int32_t)next, &state))
            break;
        c = next;
        at += (uint64_t)length;
    }
    return at;
}

void moe_charsmap_apply(const struct moe_charsmap *map, const char *text, uint64_t n,
                        struct moe_buf *out)
{
    int length;
    for (uint64_t at = 0; at < n;) {
        uint64_t end = at + grapheme_bytes((const uint8_t *)text + at, n - at);
        if (end - at < GRAPHEME_BYTES && replace(map, text + at, end - at, out))
            at = end;
        for (; at < end; at += (uint64_t)length) {
            moe_utf8_decode((const uint8_t *)text + at, end - at, &length);
            if (!replace(map, text + at, (uint64_t)length, out))
                moe_buf_append(out, text + at, (uint64_t)length);
        }
    }
}
