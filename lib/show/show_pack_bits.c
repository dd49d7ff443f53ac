/* Which bits each expert has, as a picture and as a list. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "convert/convert.h"
#include "pack/pack_bits.h"
#include "show/show_pack.h"

enum {
    PER_LINE = 64, /* experts; with their gaps and the layer's number a line has 79 columns, */
    MOST_PER_LINE = 128, /* or 151 */
    PER_GROUP = 8,
    MAX_KINDS = 36, /* of bits: six by six */
};

/* The bits that occur, best first, and how each is drawn: a bitwidth of one digit as itself, others
 * as letters. */
struct key {
    bool has_gate; /* the experts have one */
    int n;
    struct moe_bits bits[MAX_KINDS];
    uint64_t count[MAX_KINDS];
    char sign[MAX_KINDS];
};

static bool bits_at(const struct moe_pack *pack, uint32_t layer, uint32_t expert, uint32_t variant,
                    struct moe_bits *out)
{
    const struct moe_expert_extent *x = moe_pack_expert(pack, layer, expert, variant);
    return x->present && moe_class_bits(moe_pack_class_at(pack, x->class_index), out);
}

/* Where the bits stand in the key; key->n where they do not. */
static int find(const struct key *key, struct moe_bits bits)
{
    int i = 0;
    while (i < key->n && !moe_bits_equal(key->bits[i], bits))
        i++;
    return i;
}

static void add(struct key *key, struct moe_bits bits)
{
    int at = find(key, bits);
    if (at < key->n) {
        key->count[at]++;
        return;
    }
    if (key->n == MAX_KINDS)
        return;
    for (at = key->n++; at > 0 && moe_bits_sum(bits, key->has_gate) >
                                      moe_bits_sum(key->bits[at - 1], key->has_gate);
         at--) {
        key->bits[at] = key->bits[at - 1];
        key->count[at] = key->count[at - 1];
    }
    key->bits[at] = bits;
    key->count[at] = 1;
}

static void make_key(struct key *key, const struct moe_pack *pack, uint32_t variant)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJ";
    struct moe_bits bits;
    int n_letters = 0;
    *key = (struct key){.has_gate = true};
    for (uint32_t i = 0; i < moe_pack_n_classes(pack); i++)
        key->has_gate &= moe_class_has_gate(moe_pack_class_at(pack, i));
    for (uint32_t layer = 0; layer < moe_pack_n_layers(pack); layer++)
        for (uint32_t e = 0; e < moe_pack_n_experts(pack); e++)
            if (bits_at(pack, layer, e, variant, &bits))
                add(key, bits);
    for (int i = 0; i < key->n; i++) {
        char name[16];
        moe_format_bits(key->bits[i], name);
        key->sign[i] = strlen(name) == 1 ? name[0] : letters[n_letters++];
    }
}

/* ---- The picture ---- */

/* From warm to cold in the 256 colours of terminals, dark letters on them; the last for all that
 * follow. */
static const uint8_t shades[] = {209, 222, 151, 117, 147, 250};

static int shade_of(int kind)
{
    int n = sizeof shades;
    return shades[kind < n ? kind : n - 1];
}

static void draw_sign(struct moe_buf *out, const struct key *key, int kind,
                      struct moe_screen screen)
{
    char sign = kind < key->n ? key->sign[kind] : '.';
    if (screen.colour && kind < key->n)
        moe_buf_printf(out, "\033[30;48;5;%dm%c\033[0m", shade_of(kind), sign);
    else
        moe_buf_printf(out, "%c", sign);
}

static void draw_layer(struct moe_buf *out, const struct moe_pack *pack, uint32_t layer,
                       uint32_t variant, const struct key *key, struct moe_screen screen)
{
    uint32_t n = moe_pack_n_experts(pack),
             per_line = screen.columns >= 80 ? PER_LINE : PER_LINE / 2;
    if (n > PER_LINE && screen.columns > 151)
        per_line = MOST_PER_LINE;
    for (uint32_t first = 0; first < n; first += per_line) {
        if (first == 0)
            moe_buf_printf(out, "  %4" PRIu32 " ", layer);
        else
            moe_buf_printf(out, "  %4s ", "");
        for (uint32_t e = first; e < n && e < first + per_line; e++) {
            struct moe_bits bits;
            bool there = bits_at(pack, layer, e, variant, &bits);
            if (e % PER_GROUP == 0)
                moe_buf_text(out, " ");
            draw_sign(out, key, there ? find(key, bits) : key->n, screen);
        }
        moe_buf_text(out, "\n");
    }
}

static void count_layer(struct moe_buf *out, const struct moe_pack *pack, uint32_t layer,
                        uint32_t variant, const struct key *key)
{
    moe_buf_printf(out, "  %4" PRIu32 " ", layer);
    for (int kind = 0; kind < key->n; kind++) {
        struct moe_bits bits;
        uint32_t n = 0;
        char name[16];
        for (uint32_t e = 0; e < moe_pack_n_experts(pack); e++)
            n += bits_at(pack, layer, e, variant, &bits) && moe_bits_equal(bits, key->bits[kind]);
        moe_format_bits(key->bits[kind], name);
        moe_buf_printf(out, "%s%" PRIu32 " at %s", kind ? ", " : " ", n, name);
    }
    moe_buf_text(out, "\n");
}

static void draw_key(struct moe_buf *out, const struct key *key, bool signs,
                     struct moe_screen screen)
{
    moe_buf_text(out, "  bits  ");
    for (int kind = 0; kind < key->n; kind++) {
        char name[16];
        moe_format_bits(key->bits[kind], name);
        if (kind > 0)
            moe_buf_text(out, ", ");
        if (signs)
            draw_sign(out, key, kind, screen);
        if (!signs || strlen(name) > 1)
            moe_buf_printf(out, "%s%s", signs ? " = " : "", name);
        moe_buf_printf(out, ": %" PRIu64 " expert%s", key->count[kind],
                       key->count[kind] == 1 ? "" : "s");
    }
    moe_buf_text(out, "\n");
}

void moe_show_pack_bits(const struct moe_pack *pack, const struct moe_pack_summary *s,
                        struct moe_screen screen, struct moe_buf *out)
{
    bool drawn = moe_pack_n_experts(pack) <= MOE_SHOW_DRAWN;
    for (uint32_t v = 0; v < moe_pack_n_variants(pack); v++) {
        struct key key;
        if (!s->mixed[v])
            continue;
        make_key(&key, pack, v);
        moe_buf_printf(out, "\n  experts %s: bits of each, by layer\n",
                       moe_pack_variant_at(pack, v)->name);
        for (uint32_t layer = 0; layer < moe_pack_n_layers(pack); layer++) {
            if (s->config.n_encoder && (layer == 0 || layer == s->config.n_encoder))
                moe_buf_printf(out, "  %s\n", layer ? "decoder" : "encoder");
            if (moe_pack_usable_variant(pack, layer, 0, v) == UINT32_MAX)
                continue;
            if (drawn)
                draw_layer(out, pack, layer, v, &key, screen);
            else
                count_layer(out, pack, layer, v, &key);
        }
        draw_key(out, &key, drawn, screen);
    }
}

/* ---- For scripts ---- */

void moe_show_pack_bits_json(const struct moe_pack *pack, const struct moe_pack_summary *s,
                             uint32_t variant, struct moe_emit *e)
{
    if (!s->mixed[variant]) {
        moe_emit_null(e, "map");
        return;
    }
    moe_emit_open_list(e, "map");
    for (uint32_t layer = 0; layer < moe_pack_n_layers(pack); layer++) {
        if (moe_pack_usable_variant(pack, layer, 0, variant) == UINT32_MAX)
            continue;
        moe_emit_open_map(e, NULL);
        moe_emit_u64(e, "layer", layer);
        moe_emit_open_list(e, "bits");
        for (uint32_t i = 0; i < moe_pack_n_experts(pack); i++) {
            struct moe_bits bits;
            char name[16];
            if (bits_at(pack, layer, i, variant, &bits)) {
                moe_format_bits(bits, name);
                moe_emit_text(e, NULL, name);
            } else {
                moe_emit_null(e, NULL);
            }
        }
        moe_emit_close(e);
        moe_emit_close(e);
    }
    moe_emit_close(e);
}
