/* Re-packing: the stored form that each expert of each variant is made of. */
#include "convert/convert_repack.h"

#include <stdio.h>
#include <string.h>

#include "base/par.h"
#include "pack/pack_bits.h"

/* ---- An expert ---- */

struct repack_origin repack_best(const struct moe_pack *pack, uint32_t layer, uint32_t expert)
{
    struct repack_origin best = {0};
    int most = -1;
    for (uint32_t v = 0; v < moe_pack_n_variants(pack); v++) {
        const struct moe_expert_extent *e = moe_pack_expert(pack, layer, expert, v);
        struct moe_bits bits = {0};
        if (!e->present)
            continue;
        const struct moe_expert_class *class_ = moe_pack_class_at(pack, e->class_index);
        moe_class_bits(class_, &bits);
        int sum = moe_bits_sum(bits, moe_class_has_gate(class_));
        if (sum <= most)
            continue;
        most = sum;
        best = (struct repack_origin){e, v, false};
    }
    return best;
}

/* Whether a variant of these bits must be made again: its method did not know the inputs that are
 * given now. */
static bool is_outdated(const struct converter *c, const struct moe_pack *pack, uint32_t variant,
                        struct moe_bits bits)
{
    return c->options->inputs && (bits.gate_up < 16 || bits.down < 16) &&
           strcmp(moe_pack_variant_at(pack, variant)->method, c->options->method->name) != 0;
}

/* Whether the expert is stored in floats or affine codes, as variants are made. MXFP4 has four bits
 * too, but only comes with checkpoints. */
static bool is_ordinary(const struct moe_expert_class *class_)
{
    for (uint32_t i = 0; i < class_->n_matrices; i++)
        if (class_->matrices[i].layout.kind == MOE_LAYOUT_MXFP4)
            return false;
    return true;
}

/* A stored form of the expert with these bits: in the variant of their name, else in any. */
static struct repack_origin stored_at(const struct converter *c, const struct moe_pack *pack,
                                      uint32_t layer, uint32_t expert, struct moe_bits bits)
{
    struct repack_origin found = {0};
    for (uint32_t v = 0; v < moe_pack_n_variants(pack); v++) {
        const struct moe_expert_extent *e = moe_pack_expert(pack, layer, expert, v);
        struct moe_bits has, named;
        const struct moe_expert_class *class_ =
            e->present ? moe_pack_class_at(pack, e->class_index) : NULL;
        if (!class_ || !is_ordinary(class_) || !moe_class_bits(class_, &has) ||
            !moe_bits_equal(has, bits) || is_outdated(c, pack, v, bits))
            continue;
        if (!found.extent ||
            (moe_variant_bits(moe_pack_variant_at(pack, v), &named) && moe_bits_equal(named, bits)))
            found = (struct repack_origin){e, v, true};
    }
    return found;
}

struct repack_origin repack_origin(const struct converter *c, const struct repack *r,
                                   uint32_t layer, uint32_t expert, int variant)
{
    if (r->from[variant] >= 0) {
        uint32_t from = (uint32_t)r->from[variant];
        const struct moe_expert_extent *e = moe_pack_expert(r->pack, layer, expert, from);
        /* An expert that lacks the variant will lack it in the copy. */
        return (struct repack_origin){e->present ? e : NULL, from, true};
    }
    struct moe_bits bits = convert_bits(c, variant, layer, expert);
    if (bits.down == 0)
        return (struct repack_origin){0}; /* the map leaves it out */
    struct repack_origin found = stored_at(c, r->pack, layer, expert, bits);
    return found.extent ? found : repack_best(r->pack, layer, expert);
}

/* ---- The variants ---- */

/* The variant that is named after these bits, zeros for a map's; -1: none. */
static int find_variant(const struct moe_pack *pack, struct moe_bits bits)
{
    struct moe_bits named;
    for (uint32_t v = 0; v < moe_pack_n_variants(pack); v++)
        if (moe_variant_bits(moe_pack_variant_at(pack, v), &named) && moe_bits_equal(named, bits))
            return (int)v;
    return -1;
}

/* Adds a method to the description of a variant: "copy" yields to any, two others are "mixed". */
static void mix_methods(char sum[16], const char *method)
{
    if (sum[0] == '\0' || strcmp(sum, "copy") == 0)
        snprintf(sum, 16, "%s", method);
    else if (strcmp(method, "copy") != 0 && strcmp(method, sum) != 0)
        strcpy(sum, "mixed");
}

/* Describes a variant that the pack does not have, by what its experts are made of. */
static void describe_new(const struct converter *c, struct repack *r, int v,
                         struct moe_pack_variant *out)
{
    struct moe_pack_variant quantized;
    convert_describe_variant(c, v, &quantized);
    *out = quantized;
    out->method[0] = '\0';
    for (uint32_t layer = 0; layer < moe_pack_n_layers(r->pack); layer++)
        for (uint32_t e = 0; e < moe_pack_n_experts(r->pack); e++) {
            struct repack_origin from = repack_origin(c, r, layer, e, v);
            if (!from.extent)
                continue;
            r->encodes |= !from.copied;
            mix_methods(out->method, from.copied
                                         ? moe_pack_variant_at(r->pack, from.variant)->method
                                         : quantized.method);
        }
    if (out->method[0] == '\0')
        *out = quantized;
}

int repack_take_map(struct repack *r, struct moe_convert_options *options, struct moe_err *err)
{
    int own = find_variant(r->pack, (struct moe_bits){0});
    bool wanted = false;
    for (int i = 0; i < options->n_experts; i++)
        wanted = wanted || options->experts[i].down == 0;
    if (options->map || own < 0 || !wanted)
        return MOE_OK;
    int status = convert_map_of_pack(&r->own, r->pack, (uint32_t)own, err);
    options->map = &r->own;
    return status;
}

int repack_choose(struct converter *c, struct repack *r, struct moe_err *err)
{
    struct moe_pack_variant *out = c->described;
    uint32_t n = moe_pack_n_variants(r->pack);
    if (c->n_variants > 0 && n == 0)
        return moe_fail(err, MOE_ERR_USAGE, "%s: has no experts to choose variants of",
                        c->source_path);
    if (c->n_variants == 0) {
        for (uint32_t v = 0; v < n; v++) {
            out[v] = *moe_pack_variant_at(r->pack, v);
            r->from[v] = (int)v;
            c->variants[v].option = (int)v; /* its bits stay 0: nothing is encoded for it */
        }
        c->n_variants = (int)n;
        return MOE_OK;
    }
    for (int v = 0; v < c->n_variants; v++) {
        bool other_map = c->variants[v].bits.down == 0 && c->options->map != &r->own;
        r->from[v] = other_map ? -1 : find_variant(r->pack, c->variants[v].bits);
        if (r->from[v] >= 0 && is_outdated(c, r->pack, (uint32_t)r->from[v], c->variants[v].bits)) {
            if (r->from[v] == 0)
                return moe_fail(err, MOE_ERR_USAGE,
                                "%s: its best variant has %s bits, method %s needs more to begin "
                                "with; convert the checkpoint",
                                c->source_path, moe_pack_variant_at(r->pack, 0)->name,
                                c->options->method->name);
            r->from[v] = -1;
        }
        if (r->from[v] >= 0)
            out[v] = *moe_pack_variant_at(r->pack, (uint32_t)r->from[v]);
        else
            describe_new(c, r, v, &out[v]);
    }
    return MOE_OK;
}

int repack_check_map(const struct converter *c, const struct repack *r, struct moe_err *err)
{
    uint8_t is_moe[MOE_PACK_MAX_LAYERS] = {0};
    if (c->options->map == &r->own)
        return MOE_OK;
    for (uint32_t layer = 0; layer < c->n_layers; layer++)
        is_moe[layer] = moe_pack_usable_variant(r->pack, layer, 0, 0) != UINT32_MAX;
    int status = convert_check_map_source(c, moe_pack_source_fingerprint(r->pack), err);
    return status != MOE_OK ? status
                            : convert_check_map(c, moe_pack_n_experts(r->pack), is_moe, err);
}

/* ---- Rows out of a pack ---- */

struct load_rows {
    const struct moe_mat *mat;
    uint32_t first;
    float *out;
};

static void load_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct load_rows *l = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        moe_layout_load_row(l->mat, l->first + (uint32_t)i, l->out + (uint64_t)i * l->mat->cols);
}

static int read_rows(const struct row_source *source, uint32_t first, uint32_t n, float *out,
                     struct moe_err *err)
{
    (void)err;
    struct load_rows l = {source->tensor, first, out};
    moe_par_for(n, MOE_PANEL_ROWS, load_range, &l);
    return MOE_OK;
}

int repack_source(struct converter *c, const char *name, const struct moe_mat *mat, int bits,
                  struct row_source *out, struct moe_err *err)
{
    bool quantized = !moe_layout_is_float(mat->layout.kind) || c->options->of_quantized;
    *out = (struct row_source){
        .name = name,
        .type = quantized ? moe_layout_name(mat->layout.kind) : NULL,
        .rows = mat->rows,
        .cols = mat->cols,
        .bytes = moe_layout_bytes(mat->layout, mat->rows, mat->cols),
        .float16_kind = mat->layout.kind == MOE_LAYOUT_F16 ? MOE_LAYOUT_F16 : MOE_LAYOUT_BF16,
        .read = read_rows,
        .tensor = mat,
    };
    return bits == 16 && mat->layout.kind == MOE_LAYOUT_F32
               ? convert_choose_float16(c, out, &out->float16_kind, NULL, err)
               : MOE_OK;
}

int repack_refuse_more_bits(const struct converter *c, const char *what, int has, int wanted,
                            struct moe_err *err)
{
    return moe_fail(err, MOE_ERR_USAGE,
                    "%s: %s has %d bits, %d cannot be made of them; convert the checkpoint again",
                    c->source_path, what, has, wanted);
}
