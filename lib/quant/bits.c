/* Bitwidths of experts, as command lines and files spell them. */
#include "quant/bits.h"

#include <stdio.h>
#include <string.h>

/* Parses 32, 16, 8, 6, 5, 4, 3, 2 or 1 at *text and moves past it; returns 0 for anything else. */
static int take_bits(const char **text)
{
    static const struct {
        const char *text;
        int bits;
    } known[] = {{"32", 32}, {"16", 16}, {"8", 8}, {"6", 6}, {"5", 5},
                 {"4", 4},   {"3", 3},   {"2", 2}, {"1", 1}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        size_t n = strlen(known[i].text);
        if (strncmp(*text, known[i].text, n) == 0) {
            *text += n;
            return known[i].bits;
        }
    }
    return 0;
}

bool moe_parse_bits(const char *text, struct moe_bits *out)
{
    struct moe_bits bits;
    bits.gate_up = bits.down = take_bits(&text);
    if (bits.gate_up && *text == 'd') {
        text++;
        bits.down = take_bits(&text);
    }
    if (!bits.gate_up || !bits.down || *text != '\0')
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

void moe_format_bits(struct moe_bits bits, char out[16])
{
    if (bits.down == 0)
        snprintf(out, 16, "%s", MOE_MAP_VARIANT);
    else if (bits.gate_up == bits.down)
        snprintf(out, 16, "%d", bits.down);
    else
        snprintf(out, 16, "%dd%d", bits.gate_up, bits.down);
}
