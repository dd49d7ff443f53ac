/* Bitwidths of experts, as command lines and files spell them. */
#include "quant/bits.h"

#include <stdio.h>
#include <string.h>

#include "quant/blocks.h"
#include "quant/layout.h"
#include "quant/trellis.h"

char *moe_format_width(int bits, char out[MOE_WIDTH_BYTES])
{
    const uint16_t kind = moe_bits_kind(bits);
    if (kind)
        snprintf(out, MOE_WIDTH_BYTES, "%s", moe_layout_name(kind));
    else
        snprintf(out, MOE_WIDTH_BYTES, "%d", bits);
    return out;
}

bool moe_bits_names(uint16_t kind)
{
    return moe_blocks_encodes(kind) || moe_trellis_encodes(kind);
}

char *moe_format_bits_kinds(char out[MOE_BITS_KINDS_BYTES])
{
    size_t n = 0;
    out[0] = '\0';
    for (int kind = 1; kind < MOE_BITS_KIND; kind++)
        if (moe_bits_names((uint16_t)kind) && n < MOE_BITS_KINDS_BYTES)
            n += (size_t)snprintf(out + n, MOE_BITS_KINDS_BYTES - n, "%s%s", n ? ", " : "",
                                  moe_layout_name((uint16_t)kind));
    return out;
}

int moe_bits_width(int bits)
{
    const uint16_t kind = moe_bits_kind(bits);
    return kind ? moe_layout_bits(kind) : bits;
}

bool moe_bits_match(int bits, uint16_t kind)
{
    const uint16_t named = moe_bits_kind(bits);
    return named ? kind == named : moe_layout_bits(kind) == bits;
}

/* Parses a bitwidth of n characters, 0 for anything else. */
static int parse_width(const char *text, size_t n)
{
    static const int known[] = {32, 16, 8, 6, 5, 4, 3, 2, 1};
    char word[MOE_WIDTH_BYTES];
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        moe_format_width(known[i], word);
        if (strlen(word) == n && memcmp(text, word, n) == 0)
            return known[i];
    }
    for (int kind = 1; kind < MOE_BITS_KIND; kind++) {
        const char *name = moe_layout_name((uint16_t)kind);
        if (strlen(name) == n && memcmp(text, name, n) == 0 && moe_bits_names((uint16_t)kind))
            return MOE_BITS_KIND + kind;
    }
    return 0;
}

int moe_parse_width(const char *text)
{
    return parse_width(text, strlen(text));
}

bool moe_parse_bits(const char *text, struct moe_bits *out)
{
    const size_t n = strcspn(text, "d"); /* no kind that is encoded has one in its name */
    struct moe_bits bits;
    bits.gate_up = bits.down = parse_width(text, n);
    if (text[n] == 'd')
        bits.down = moe_parse_width(text + n + 1);
    if (!bits.gate_up || !bits.down)
        return false;
    *out = bits;
    return true;
}

bool moe_parse_variant(const char *name, struct moe_bits *out)
{
    if (strcmp(name, MOE_MAP_VARIANT) != 0)
        return moe_parse_bits(name, out);
    *out = (struct moe_bits){0};
    return true;
}

const char *moe_bits_unit(const char *name)
{
    const char *comma = strrchr(name, ',');
    struct moe_bits bits;
    if (!moe_parse_bits(comma ? comma + 1 : name, &bits))
        return " bits";
    if (moe_bits_kind(bits.gate_up) || moe_bits_kind(bits.down))
        return "";
    return bits.gate_up == 1 && bits.down == 1 ? " bit" : " bits";
}

bool moe_bits_are(const char *name, int width)
{
    struct moe_bits bits;
    return moe_parse_bits(name, &bits) && moe_bits_width(bits.gate_up) == width &&
           moe_bits_width(bits.down) == width;
}

void moe_format_bits(struct moe_bits bits, char out[MOE_BITS_BYTES])
{
    char gate_up[MOE_WIDTH_BYTES], down[MOE_WIDTH_BYTES];
    moe_format_width(bits.gate_up, gate_up);
    moe_format_width(bits.down, down);
    if (bits.down == 0)
        snprintf(out, MOE_BITS_BYTES, "%s", MOE_MAP_VARIANT);
    else if (bits.gate_up == bits.down)
        snprintf(out, MOE_BITS_BYTES, "%s", down);
    else
        snprintf(out, MOE_BITS_BYTES, "%sd%s", gate_up, down);
}
