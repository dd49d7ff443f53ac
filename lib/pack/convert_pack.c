/* Conversion of a pack to a pack: experts are copied, or encoded from their most precise form. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"
#include "fmt/json_scan.h"
#include "model/config.h"
#include "model/tensor_roles.h"
#include "pack/convert_internal.h"
#include "pack/pack.h"

/*
 * Re-packing: which stored form each variant of each expert is made from.
 */
struct repack {
    struct moe_pack *pack;
    /* Per variant to write: the pack's variant that it copies, or -1: each expert is copied from
     * any variant that stores it at the bits asked for, else quantized. */
    int from[CONVERT_MAX_VARIANTS];
    struct moe_expert_map own; /* the pack's variant "map", where no map was given */
    bool keeps_map;            /* that is copied */
    /* What options->mean_bits or target_bytes give experts, and matrices of the dense part, by
     * their place among the tensors; NULL: options->dense_bits. */
    struct moe_expert_map shared;
    int32_t *dense_bits;
    struct convert_kept *kept; /* of earlier runs; NULL: nothing */
    bool encodes;              /* some expert is quantized */
    bool calibrated;           /* the map was made on this pack, and chose options->dense_bits */
};

/* The stored form that an expert is made from. */
struct repack_origin {
    const struct moe_expert_extent *extent; /* NULL: there is none */
    uint32_t variant;                       /* the pack's */
    bool copied;                            /* false: quantized */
};

/* Re-packing: choosing the stored form that each expert of each variant is made from. */

/* Whether a quantized matrix that is to get these bits keeps its codes, since they are as good.
 * Where bits are shared out, only one that gets the most does (convert_bits.c). */
static bool keeps_codes(const struct converter *c, bool shared, uint16_t kind, int bits)
{
    const int width = moe_bits_width(bits);
    if (moe_layout_is_float(kind) || width > 8 || moe_layout_bits(kind) > width)
        return false;
    if (moe_bits_kind(bits) && moe_bits_kind(bits) != kind)
        return false;
    return shared ? bits == CONVERT_OWN_BITS : c->options->of_quantized;
}

/* ---- An expert ---- */

static bool keeps_part(const struct converter *c, const struct repack *r,
                       const struct moe_class_matrix *m, struct moe_bits bits)
{
    const int wanted = convert_part_bits(bits, convert_part_of(m->role));
    return keeps_codes(c, c->options->map == &r->shared, m->layout.kind, wanted);
}

/* Whether all matrices of the expert keep their codes. */
static bool keeps_all(const struct converter *c, const struct repack *r,
                      const struct moe_expert_class *class_, struct moe_bits bits)
{
    for (uint32_t i = 0; i < class_->n_matrices; i++)
        if (!moe_expert_part_is_bias(convert_part_of(class_->matrices[i].role)) &&
            !keeps_part(c, r, &class_->matrices[i], bits))
            return false;
    return true;
}

/* Finds the stored form of an expert with the most bits; which variant that is differs from expert
 * to expert where one is a map's. */
static struct repack_origin best_stored(const struct moe_pack *pack, uint32_t layer,
                                        uint32_t expert)
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
 * given now. A map of several methods has types, which name theirs. */
static bool is_outdated(const struct converter *c, const struct moe_pack *pack, uint32_t variant,
                        struct moe_bits bits)
{
    const struct moe_convert_options *o = c->options;
    const bool own = (o->of_quantized || (o->inputs && o->inputs->bundled)) && o->mean_bits == 0 &&
                     !o->target_bytes;
    const char *has = moe_pack_variant_at(pack, variant)->method;
    char method[MOE_METHOD_BYTES] = "";
    convert_add_methods(c, bits, method);
    if (bits.down == 0 && strcmp(method, "copy") != 0 && strcmp(has, "mixed") != 0)
        snprintf(method, sizeof method, "%s", o->method->name);
    return o->inputs && !own && strcmp(method, "copy") != 0 && strcmp(has, method) != 0;
}

/* Whether a matrix has the layout of a type that is asked for: of narrow rows that is another. */
static bool has_type(const struct converter *c, uint16_t kind, uint32_t cols, int bits)
{
    return kind == moe_bits_kind(bits) ||
           kind == convert_layout(c, bits, cols, MOE_LAYOUT_BF16).kind;
}

/* Whether the expert is stored at these bits; named: in the variant of their name. MXFP4 has four
 * bits too, but only comes with checkpoints. */
static bool has_bits(const struct converter *c, const struct moe_expert_class *class_,
                     struct moe_bits bits, bool named)
{
    struct moe_bits has;
    for (uint32_t i = 0; i < class_->n_matrices; i++) {
        const struct moe_class_matrix *m = &class_->matrices[i];
        const int wanted = convert_part_bits(bits, convert_part_of(m->role));
        const bool same = named ? has_type(c, m->layout.kind, m->cols, wanted)
                                : moe_bits_match(wanted, m->layout.kind);
        if (m->layout.kind == MOE_LAYOUT_MXFP4 || (moe_bits_kind(wanted) && !same))
            return false;
    }
    return moe_class_bits(class_, &has) && has.gate_up == moe_bits_width(bits.gate_up) &&
           has.down == moe_bits_width(bits.down);
}

/* A stored form of the expert with these bits: in the variant of their name, else in any. */
static struct repack_origin stored_at(const struct converter *c, const struct moe_pack *pack,
                                      uint32_t layer, uint32_t expert, struct moe_bits bits)
{
    struct repack_origin found = {0};
    for (uint32_t v = 0; v < moe_pack_n_variants(pack); v++) {
        const struct moe_expert_extent *e = moe_pack_expert(pack, layer, expert, v);
        struct moe_bits name;
        const bool named =
            moe_variant_bits(moe_pack_variant_at(pack, v), &name) && moe_bits_equal(name, bits);
        const struct moe_expert_class *class_ =
            e->present ? moe_pack_class_at(pack, e->class_index) : NULL;
        if (!class_ || !has_bits(c, class_, bits, named) || is_outdated(c, pack, v, bits))
            continue;
        if (!found.extent || named)
            found = (struct repack_origin){e, v, true};
    }
    return found;
}

/* Chooses the stored form that an expert of a new variant is made from. */
static struct repack_origin choose_stored(const struct converter *c, const struct repack *r,
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
    if (found.extent)
        return found;
    found = best_stored(r->pack, layer, expert);
    found.copied = found.extent &&
                   keeps_all(c, r, moe_pack_class_at(r->pack, found.extent->class_index), bits);
    return found;
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

/* Describes a variant that the pack does not have, by what its experts are made of. */
static int describe_new(const struct converter *c, struct repack *r, int v,
                        struct moe_pack_variant *out, struct moe_err *err)
{
    struct moe_pack_variant quantized;
    convert_describe_variant(c, v, &quantized);
    *out = quantized;
    out->method[0] = '\0';
    for (uint32_t layer = 0; layer < moe_pack_n_layers(r->pack); layer++)
        for (uint32_t e = 0; e < moe_pack_n_experts(r->pack); e++) {
            struct repack_origin from = choose_stored(c, r, layer, e, v);
            if (!from.extent)
                continue;
            if (!from.copied)
                MOE_TRY(convert_check_bits(c->options, convert_bits(c, v, layer, e), err));
            r->encodes |= !from.copied;
            if (from.copied)
                convert_mix_methods(out->method,
                                    moe_pack_variant_at(r->pack, from.variant)->method);
            else
                convert_add_methods(c, convert_bits(c, v, layer, e), out->method);
        }
    if (out->method[0] == '\0')
        *out = quantized;
    return MOE_OK;
}

/* Sets options->map to the pack's own where a variant asks for a map and none is given. free()
 * r->own.bits. */
static int take_own_map(struct repack *r, struct moe_convert_options *options, struct moe_err *err)
{
    int own = find_variant(r->pack, (struct moe_bits){0});
    bool wanted = false;
    for (int i = 0; i < options->n_experts; i++)
        wanted = wanted || options->experts[i].down == 0;
    if (options->map || own < 0 || !wanted)
        return MOE_OK;
    MOE_TRY(convert_map_of_pack(&r->own, r->pack, (uint32_t)own, err));
    options->map = &r->own;
    return MOE_OK;
}

/* Leaves a pack's own map the bitwidths of its types, which another method is to round to. */
static void forget_types(struct moe_expert_map *own)
{
    for (uint64_t i = 0; i < (uint64_t)own->n_layers * own->n_experts; i++)
        own->bits[i] = (struct moe_bits){moe_bits_width(own->bits[i].gate_up),
                                         moe_bits_width(own->bits[i].down)};
}

/* Sets r->from and c->described: which of the pack's variants each wanted one is, and how the new
 * pack describes it. With no variants wanted, all of the pack's are. */
static int choose_variants(struct converter *c, struct repack *r, struct moe_err *err)
{
    struct moe_pack_variant *out = c->described;
    uint32_t n = moe_pack_n_variants(r->pack);
    if (c->n_variants > 0 && n == 0)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: has no experts to choose variants of; --dense BITS rounds its "
                        "matrices",
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
                                "%s: its best variant is '%s', method %s needs a better one to "
                                "begin with; convert the checkpoint",
                                c->source_path, moe_pack_variant_at(r->pack, 0)->name,
                                c->options->method->name);
            r->from[v] = -1;
            if (c->variants[v].bits.down == 0)
                forget_types(&r->own);
        }
        if (r->from[v] >= 0) {
            out[v] = *moe_pack_variant_at(r->pack, (uint32_t)r->from[v]);
            r->keeps_map |= c->variants[v].bits.down == 0;
        } else {
            MOE_TRY(describe_new(c, r, v, &out[v], err));
        }
    }
    return MOE_OK;
}

/* Checks that a given map was made for this pack's model. */
static int check_map(const struct converter *c, const struct repack *r, struct moe_err *err)
{
    struct moe_layer_desc layers[MOE_MAX_LAYERS] = {0};
    if (c->options->map == &r->own || c->options->map == &r->shared)
        return MOE_OK;
    for (uint32_t layer = 0; layer < c->n_layers; layer++)
        layers[layer].moe = moe_pack_usable_variant(r->pack, layer, 0, 0) != UINT32_MAX;
    int status = convert_check_map_source(c, moe_pack_source_fingerprint(r->pack), err);
    return status != MOE_OK ? status
                            : convert_check_map(c, moe_pack_n_experts(r->pack), layers, err);
}

/* ---- Rows out of a pack ---- */

/* How often a matrix's bytes count in progress: a trellis takes so much longer than anything else
 * that the rest of the time is all that it takes. */
static uint32_t effort_of(const struct converter *c, int bits)
{
    return moe_quant_method_of(c->options->method, bits)->trellis &&
                   moe_bits_width(bits) < CONVERT_OWN_BITS
               ? 64
               : 1;
}

/* Makes a source of a stored matrix that is to get `bits`. mat is borrowed; `name` is for errors.
 */
static int stored_source(struct converter *c, const char *name, const struct moe_mat *mat, int bits,
                         struct row_source *out, struct moe_err *err)
{
    const bool quantized = !moe_layout_is_float(mat->layout.kind) || c->options->of_quantized;
    *out = (struct row_source){
        .name = name,
        .type = quantized ? moe_layout_name(mat->layout.kind) : NULL,
        .rows = mat->rows,
        .cols = mat->cols,
        .bytes = moe_layout_bytes(mat->layout, mat->rows, mat->cols),
        .effort = effort_of(c, bits),
        .float16_kind = mat->layout.kind == MOE_LAYOUT_F16 ? MOE_LAYOUT_F16 : MOE_LAYOUT_BF16,
        .quantized = c->options->of_quantized && !moe_layout_is_float(mat->layout.kind),
        .mat = mat,
    };
    c->quantized |= quantized;
    return bits == 16 && mat->layout.kind == MOE_LAYOUT_F32
               ? convert_choose_float16(c, out, NULL, err)
               : MOE_OK;
}

/* MOE_ERR_USAGE: more bits are wanted than `what` has, whose codes are not a checkpoint's own. */
static int check_more_bits(const struct converter *c, const char *what, int has, int wanted,
                           struct moe_err *err)
{
    const int width = moe_bits_width(wanted);
    if (width <= has || c->options->of_quantized)
        return MOE_OK;
    return moe_fail(err, MOE_ERR_USAGE,
                    "%s: %s has %d bits, %d cannot be made of them; convert the checkpoint again",
                    c->source_path, what, has, width);
}

/* ---- Dense tensors ---- */

/* Whether the tensor belongs to a layer that is left out. */
static bool is_left_out(const struct converter *c, const struct moe_pack_tensor *t)
{
    return c->options->no_ahead && strncmp(t->name, "layers.", 7) == 0 &&
           strtoul(t->name + 7, NULL, 10) >= c->n_layers;
}

/* Whether --dense applies to the tensor: a dense matrix of the model, neither router nor vector.
 * *out says which. */
static bool follows_dense_bits(const struct moe_pack_tensor *t, struct moe_matrix_name *out)
{
    *out = (struct moe_matrix_name){0};
    if (t->is_vector)
        return false;
    if (strncmp(t->name, "layers.", 7) == 0)
        out->layer = (uint32_t)strtoul(t->name + 7, NULL, 10);
    for (out->role = 0; out->role < MOE_T_N_ROLES; out->role++) {
        char name[MOE_NAME_BYTES];
        moe_tensor_pack_name(out->role, out->layer, name);
        if (strcmp(name, t->name) == 0)
            return moe_tensor_spec(out->role)->kind == MOE_KIND_DENSE;
    }
    return false;
}

/* The rows of a dense matrix, and its layout at these bits. */
static int dense_source(struct converter *c, const char *name, const struct moe_mat *mat, int bits,
                        struct row_source *source, struct moe_layout *layout, struct moe_err *err)
{
    MOE_TRY(stored_source(c, name, mat, bits, source, err));
    *layout = convert_layout(c, bits, mat->cols, source->float16_kind);
    return MOE_OK;
}

int moe_convert_matrix(const struct moe_mat *mat, const char *path,
                       const struct moe_matrix_name *name,
                       const struct moe_convert_options *options, uint8_t *out,
                       struct moe_layout *layout, struct moe_err *err)
{
    char text[MOE_NAME_BYTES];
    moe_tensor_pack_name(name->role, name->layer, text);
    struct moe_convert_report report = {0};
    struct converter c = {
        .report = &report, .source_path = path, .out_path = path, .n_layers = UINT32_MAX};
    struct row_source source;
    int status;
    MOE_STEP(convert_start(&c, options, false, err));
    MOE_STEP(dense_source(&c, text, mat, options->dense_bits, &source, layout, err));
    MOE_STEP(convert_find_inputs(&c, name, options->dense_bits, &source, err));
    struct row_target target = {.layout = *layout, .out = out, .bits = options->dense_bits};
    MOE_STEP(convert_rows(&c, &source, &target, 1, err));
out:
    convert_release(&c);
    return status;
}

/* The sums of an error that grew from `before` to `now`. */
static struct moe_quant_error error_since(const struct moe_quant_error *before,
                                          const struct moe_quant_error *now)
{
    return (struct moe_quant_error){
        .sum_squared_error = now->sum_squared_error - before->sum_squared_error,
        .sum_squared_weight = now->sum_squared_weight - before->sum_squared_weight,
        .output_plain = now->output_plain - before->output_plain,
        .output_improved = now->output_improved - before->output_improved};
}

/* Rounds tensor `index`, or takes what an earlier run has made of it. */
static int encode_tensor(struct converter *c, const struct repack *r, uint32_t index,
                         const struct moe_matrix_name *matrix, int bits, const uint8_t *raw,
                         struct moe_err *err)
{
    const struct moe_pack_tensor *t = moe_pack_tensor_at(r->pack, index);
    const struct moe_quant_error before = c->report->dense_error;
    const struct moe_mat mat = {raw, t->layout, t->rows, t->cols};
    struct convert_kept_expert had = {0};
    struct row_source source;
    struct moe_pack_tensor entry = *t;
    MOE_TRY(dense_source(c, t->name, &mat, bits, &source, &entry.layout, err));
    struct row_target target = {
        .layout = entry.layout, .error = &c->report->dense_error, .bits = bits};
    const struct moe_expert_class whole = {
        .n_segments = 1, .segment_bytes = {moe_layout_bytes(entry.layout, t->rows, t->cols)}};
    target.out = moe_alloc(whole.segment_bytes[0], 1, err);
    int status = target.out ? MOE_OK : MOE_ERR_MEMORY;
    MOE_STEP(status);
    if (convert_kept_has(r->kept, CONVERT_TENSORS, index, 0)) {
        MOE_STEP(
            convert_kept_read(r->kept, CONVERT_TENSORS, index, 0, &whole, &target.out, &had, err));
        convert_add_error(target.error, &had.error);
        c->report->n_kept_matrices++;
    } else {
        MOE_STEP(convert_find_inputs(c, matrix, bits, &source, err));
        MOE_STEP(convert_rows(c, &source, &target, 1, err));
        had.error = error_since(&before, target.error);
        MOE_STEP(
            convert_kept_put(r->kept, CONVERT_TENSORS, index, 0, &whole, &target.out, &had, err));
    }
    MOE_STEP(moe_pack_put_tensor(c->writer, &entry, target.out, err));
out:
    free(target.out);
    return status;
}

/* The bits asked for of tensor i, if --dense applies to it; 0: none are. */
static int dense_bits(const struct converter *c, const struct repack *r, uint32_t i)
{
    return r->dense_bits ? r->dense_bits[i] : c->options->dense_bits;
}

/* Whether tensor i stays as it is: it has the bits that are asked for, or none are. *matrix says
 * which it is. */
static bool is_copied(const struct converter *c, const struct repack *r, uint32_t i,
                      struct moe_matrix_name *matrix)
{
    const struct moe_pack_tensor *t = moe_pack_tensor_at(r->pack, i);
    const int bits = dense_bits(c, r, i);
    const bool shared = r->dense_bits != NULL;
    if (!follows_dense_bits(t, matrix) || bits == 0 || keeps_codes(c, shared, t->layout.kind, bits))
        return true;
    if (r->calibrated && moe_layout_bits(t->layout.kind) < moe_bits_width(bits))
        return true;
    return (moe_bits_kind(bits) ? has_type(c, t->layout.kind, t->cols, bits)
                                : moe_layout_bits(t->layout.kind) == bits) &&
           (!shared || bits == 16 || bits == 32);
}

static int put_tensor(struct converter *c, const struct repack *r, uint32_t index,
                      struct moe_err *err)
{
    const struct moe_pack_tensor *t = moe_pack_tensor_at(r->pack, index);
    char what[MOE_NAME_BYTES + 16];
    snprintf(what, sizeof what, "tensor '%s'", t->name);
    int bits = dense_bits(c, r, index), has = moe_layout_bits(t->layout.kind);
    struct moe_matrix_name matrix = {0};
    const bool copy = is_copied(c, r, index, &matrix);
    if (!copy)
        MOE_TRY(check_more_bits(c, what, has, bits, err));
    uint8_t *raw = moe_alloc(t->extent.raw_bytes, 1, err);
    if (!raw)
        return MOE_ERR_MEMORY;
    int status;
    MOE_STEP(moe_pack_read(r->pack, &t->extent, raw, what, err));
    if (copy) {
        c->done += t->extent.raw_bytes;
        c->report->source_bytes += t->extent.raw_bytes;
        MOE_STEP(moe_pack_put_tensor(c->writer, t, raw, err));
        if (c->options->of_quantized && !moe_layout_is_float(t->layout.kind))
            c->report->carried += (uint64_t)t->rows * t->cols;
    } else {
        MOE_STEP(encode_tensor(c, r, index, &matrix, bits, raw, err));
    }
out:
    c->report->dense_weights += (uint64_t)t->rows * t->cols;
    free(raw);
    return status;
}

/* ---- The conversion ---- */

/* Whether an expert belongs to another shard. */
static bool is_elsewhere(const struct converter *c, const struct repack *r, uint32_t layer,
                         uint32_t expert)
{
    const struct moe_convert_options *o = c->options;
    const uint64_t n_experts = moe_pack_n_experts(r->pack),
                   n = moe_pack_n_layers(r->pack) * n_experts, at = layer * n_experts + expert;
    return o->n_shards &&
           (at < n * (o->shard - 1) / o->n_shards || at >= n * o->shard / o->n_shards);
}

/* Whether an expert of a variant was rounded by an earlier run. */
static bool is_kept(const struct converter *c, const struct repack *r, uint32_t layer,
                    uint32_t expert, int variant)
{
    return convert_kept_has(r->kept, layer, expert, (uint32_t)c->variants[variant].option);
}

/* What making an expert of a variant counts. */
static uint64_t work_of(const struct converter *c, const struct repack *r,
                        const struct repack_origin *from, struct moe_bits wanted)
{
    const struct moe_expert_class *class_ = moe_pack_class_at(r->pack, from->extent->class_index);
    uint64_t work = 0;
    for (uint32_t s = 0; from->copied && s < class_->n_segments; s++)
        work += class_->segment_bytes[s];
    for (uint32_t i = 0; !from->copied && i < class_->n_matrices; i++) {
        const struct moe_class_matrix *m = &class_->matrices[i];
        const int bits = convert_part_bits(wanted, convert_part_of(m->role));
        if (bits)
            work += moe_layout_bytes(m->layout, m->rows, m->cols) *
                    (keeps_part(c, r, m, wanted) ? 1 : effort_of(c, bits));
    }
    return work;
}

/* Adds up what will be read and worked on, for progress: an expert once per variant. */
static void count_total(struct converter *c, const struct repack *r)
{
    const bool shard = c->options->n_shards > 0;
    struct moe_matrix_name ignored;
    for (uint32_t i = 0; !shard && i < moe_pack_n_tensors(r->pack); i++)
        if (!is_left_out(c, moe_pack_tensor_at(r->pack, i)) &&
            !convert_kept_has(r->kept, CONVERT_TENSORS, i, 0))
            c->total += moe_pack_tensor_at(r->pack, i)->extent.raw_bytes *
                        (is_copied(c, r, i, &ignored) ? 1 : effort_of(c, dense_bits(c, r, i)));
    for (uint32_t layer = 0; layer < moe_pack_n_layers(r->pack); layer++)
        for (uint32_t e = 0; e < moe_pack_n_experts(r->pack); e++)
            for (int v = 0; v < c->n_variants && !is_elsewhere(c, r, layer, e); v++) {
                const struct repack_origin from = choose_stored(c, r, layer, e, v);
                if (from.copied ? shard : is_kept(c, r, layer, e, v))
                    continue;
                if (from.extent)
                    c->total += work_of(c, r, &from, convert_bits(c, v, layer, e));
            }
}

/* ---- Provenance ---- */

/* What error-aware rounding knew: the texts, and the experts seen too rarely. */
static void emit_inputs(const struct moe_convert_inputs *inputs, struct moe_emit *e)
{
    moe_emit_open_line_map(e, "inputs");
    moe_emit_u64(e, "tokens", inputs->n_tokens);
    moe_emit_fingerprint(e, "texts", inputs->hash);
    moe_emit_u64(e, "least_tokens", inputs->least_tokens);
    moe_emit_open_line_list(e, "rare");
    for (uint32_t i = 0; i < inputs->n_rare; i++) {
        const struct moe_convert_rare *rare = &inputs->rare[i];
        const uint32_t item[] = {rare->layer, rare->expert, rare->n_tokens};
        moe_emit_u32s(e, NULL, item, 3);
    }
    moe_emit_close(e);
    moe_emit_close(e);
}

/* The members that a conversion sets, in the order of those that were not there. */
enum member { VERSION, EXPERTS, DENSE, REQUANTIZED, INPUTS, MAP, N_MEMBERS };
static const char *const member_names[N_MEMBERS] = {"version",     "experts", "dense",
                                                    "requantized", "inputs",  "map"};

/* Whether a member of the old pack stays as it is; requantized: some value is rounded. */
static bool stays(const struct converter *c, const struct repack *r, bool requantized,
                  enum member member)
{
    switch (member) {
    case DENSE:
        return c->options->dense_bits == 0 && !c->options->target_bytes;
    case REQUANTIZED:
        return !requantized;
    case INPUTS:
        return !c->options->inputs;
    case MAP: /* all variants are the pack's, or this one is */
        return convert_writes_map(c) && (!c->options->map || r->keeps_map);
    default:
        return false;
    }
}

static void emit_member(const struct converter *c, enum member member, struct moe_emit *e)
{
    switch (member) {
    case VERSION:
        moe_emit_text(e, "version", MOE_VERSION);
        break;
    case EXPERTS:
        convert_emit_experts(c, e);
        break;
    case DENSE:
        if (c->options->dense_bits)
            convert_emit_dense(c, e);
        else
            moe_emit_text(e, "dense", "shared out");
        break;
    case REQUANTIZED:
        moe_emit_open_line_map(e, "requantized");
        moe_emit_text(e, "method", c->options->method->name);
        moe_emit_u64(e, "group", c->options->group);
        moe_emit_close(e);
        break;
    case INPUTS:
        emit_inputs(c->options->inputs, e);
        break;
    default:
        convert_emit_map(c, e);
    }
}

/* Writes the old object's members in their order; `done`: those that this conversion has set. */
static int emit_old(const struct converter *c, const struct repack *r, const void *old, uint64_t n,
                    bool requantized, struct moe_emit *e, bool done[N_MEMBERS], struct moe_err *err)
{
    struct moe_json_scan s;
    struct moe_buf key = {0};
    moe_json_scan_begin(&s, c->source_path, old, n, false, err);
    moe_json_scan_enter(&s);
    while (moe_json_scan_next(&s, &key)) {
        int member = 0;
        uint64_t bytes;
        const char *name = (const char *)key.data, *value = moe_json_scan_raw(&s, &bytes);
        while (member < N_MEMBERS && strcmp(name, member_names[member]) != 0)
            member++;
        if (member == N_MEMBERS || stays(c, r, requantized, member)) {
            moe_emit_json(e, name, value, bytes);
        } else if (!done[member]) {
            emit_member(c, member, e);
            done[member] = true;
        }
    }
    moe_buf_release(&key);
    return moe_json_scan_end(&s);
}

/* Whether any value is rounded; variants are chosen. */
static bool rounds(const struct converter *c, const struct repack *r)
{
    bool any = r->encodes;
    for (uint32_t i = 0; i < moe_pack_n_tensors(r->pack) && !any; i++) {
        struct moe_matrix_name matrix;
        any = !is_left_out(c, moe_pack_tensor_at(r->pack, i)) && !is_copied(c, r, i, &matrix);
    }
    return any;
}

/* The pack's own provenance with what this conversion changes. */
static int put_provenance(struct converter *c, const struct repack *r, struct moe_err *err)
{
    uint64_t n;
    const uint8_t *old = moe_pack_section(r->pack, MOE_PACK_PROVENANCE, &n);
    bool requantized = rounds(c, r), done[N_MEMBERS] = {false};
    struct moe_buf text = {0};
    struct moe_emit e;
    int status = MOE_OK;
    moe_emit_begin_json(&e, &text, MOE_EMIT_COMPACT);
    if (n > 0 && old[0] == '{' && moe_json_is_sound(old, n)) {
        status = emit_old(c, r, old, n, requantized, &e, done, err);
    } else { /* another tool's; the pack is sound without it */
        moe_emit_text(&e, "tool", "moe-quantize");
        moe_emit_text(&e, "source", "?");
    }
    for (enum member m = 0; m < N_MEMBERS; m++)
        if (!done[m] && !stays(c, r, requantized, m))
            emit_member(c, m, &e);
    if (status == MOE_OK)
        status = convert_put_provenance(c, &e, err);
    moe_buf_release(&text);
    return status;
}

/* The description, without layers that are left out. */
static int put_model(struct converter *c, const struct repack *r, struct moe_err *err)
{
    uint64_t n;
    const uint8_t *data = moe_pack_section(r->pack, MOE_PACK_MODEL, &n);
    if (!c->options->no_ahead || moe_pack_n_ahead(r->pack) == 0)
        return moe_pack_put_section(c->writer, MOE_PACK_MODEL, data, n, err);
    struct moe_buf text = {0};
    struct moe_config *config = moe_alloc(1, sizeof *config, err);
    int status = config ? moe_config_read(config, c->source_path, data, n, err) : MOE_ERR_MEMORY;
    if (status == MOE_OK) {
        config->n_ahead = 0;
        moe_config_write(config, &text);
        status = text.failed
                     ? moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", c->out_path)
                     : moe_pack_put_section(c->writer, MOE_PACK_MODEL, text.data, text.size, err);
    }
    moe_buf_release(&text);
    free(config);
    return status;
}

/* The maps that are given, else the pack's own where all of its variants stay. */
static int put_maps(struct converter *c, const struct repack *r, struct moe_err *err)
{
    struct moe_buf made = {0};
    uint64_t n;
    const uint8_t *own = moe_pack_section(r->pack, MOE_PACK_MAPS, &n);
    int status = MOE_OK;
    if (c->options->n_maps)
        status = convert_maps(&made, c->options->maps, c->options->n_maps, r->pack, err);
    else if (c->options->n_experts == 0 && (!c->options->no_ahead || !moe_pack_n_ahead(r->pack)))
        moe_buf_append(&made, own, n);
    if (status == MOE_OK)
        status = made.failed
                     ? moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", c->out_path)
                     : moe_pack_put_section(c->writer, MOE_PACK_MAPS, made.data, made.size, err);
    moe_buf_release(&made);
    return status;
}

static int copy_sections(struct converter *c, const struct repack *r, struct moe_err *err)
{
    static const enum moe_pack_section ids[] = {MOE_PACK_TOKENIZER, MOE_PACK_CHAT,
                                                MOE_PACK_SAMPLING};
    MOE_TRY(put_model(c, r, err));
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        uint64_t n;
        const uint8_t *data = moe_pack_section(r->pack, ids[i], &n);
        MOE_TRY(moe_pack_put_section(c->writer, ids[i], data, n, err));
    }
    return put_maps(c, r, err);
}

/* Re-packing experts: each is copied, or quantized from its most precise stored form. */

/* Reads an expert's segments into memory of its own; free() *block. */
static int read_expert(const struct repack *r, const struct moe_expert_extent *e, uint32_t layer,
                       uint32_t expert, uint8_t **block, uint8_t *segments[MOE_PACK_MAX_SEGMENTS],
                       struct moe_err *err)
{
    const struct moe_expert_class *class_ = moe_pack_class_at(r->pack, e->class_index);
    MOE_TRY(convert_alloc_segments(class_, block, segments, err));
    for (uint32_t s = 0; s < class_->n_segments; s++) {
        char what[80];
        snprintf(what, sizeof what, "layer %" PRIu32 " expert %" PRIu32 " segment %" PRIu32, layer,
                 expert, s);
        MOE_TRY(moe_pack_read(r->pack, &e->segments[s], segments[s], what, err));
    }
    return MOE_OK;
}

static int put_segments(struct converter *c, uint32_t layer, uint32_t expert, int variant,
                        const struct moe_expert_class *class_, uint8_t *const *segments,
                        struct moe_err *err)
{
    uint32_t index;
    MOE_TRY(moe_pack_put_class(c->writer, class_, &index, err));
    return moe_pack_put_expert(c->writer, layer, expert, (uint32_t)variant, index,
                               (const void *const *)segments, err);
}

static int copy_expert(struct converter *c, const struct repack *r,
                       const struct moe_expert_extent *e, uint32_t layer, uint32_t expert,
                       int variant, struct moe_err *err)
{
    uint8_t *block = NULL, *segments[MOE_PACK_MAX_SEGMENTS];
    const struct moe_expert_class *class_ = moe_pack_class_at(r->pack, e->class_index);
    int status = read_expert(r, e, layer, expert, &block, segments, err);
    if (status == MOE_OK)
        status = put_segments(c, layer, expert, variant, class_, segments, err);
    for (uint32_t i = 0; c->options->of_quantized && i < class_->n_matrices; i++)
        if (!moe_layout_is_float(class_->matrices[i].layout.kind))
            c->report->carried += (uint64_t)class_->matrices[i].rows * class_->matrices[i].cols;
    for (uint32_t s = 0; s < class_->n_segments; s++) {
        c->done += class_->segment_bytes[s];
        c->report->source_bytes += class_->segment_bytes[s];
    }
    free(block);
    return status;
}

/* One matrix of a new variant from the same matrix of the best stored one; without a source it is
 * the same. */
static int encode_matrix(struct converter *c, int variant, const struct moe_class_matrix *from,
                         const uint8_t *from_data, const struct moe_class_matrix *to,
                         uint8_t *to_data, const struct row_source *source, int bits,
                         struct moe_err *err)
{
    if (moe_expert_part_is_bias(convert_part_of(from->role))) {
        memcpy(to_data, from_data, 4 * (uint64_t)from->rows);
        return MOE_OK;
    }
    if (!source->mat) {
        const uint64_t n = (uint64_t)from->rows * from->cols,
                       bytes = moe_layout_bytes(from->layout, from->rows, from->cols);
        memcpy(to_data, from_data, bytes);
        c->done += bytes;
        c->report->source_bytes += bytes;
        c->report->carried += c->options->of_quantized ? n : 0;
        return MOE_OK;
    }
    struct row_target target = {to->layout, to_data, &c->report->error[c->variants[variant].option],
                                bits};
    return convert_rows(c, source, &target, 1, err);
}

/* Takes an expert that an earlier run has rounded. */
static int take_kept(struct converter *c, const struct repack *r, uint32_t layer, uint32_t expert,
                     int variant, const struct moe_expert_class *class_, uint8_t *const *segments,
                     struct moe_err *err)
{
    const struct moe_convert_inputs *inputs = c->options->inputs;
    struct convert_kept_expert had;
    MOE_TRY(convert_kept_read(r->kept, layer, expert, (uint32_t)c->variants[variant].option, class_,
                              segments, &had, err));
    convert_add_error(&c->report->error[c->variants[variant].option], &had.error);
    c->report->n_kept_experts++;
    if (had.rare && inputs)
        inputs->note_rare(inputs->ctx, layer, expert, had.rare - 1);
    return MOE_OK;
}

/* Keeps an expert that was rounded; the sums of its error are those since `before`. */
static int keep_expert(const struct converter *c, const struct repack *r, uint32_t layer,
                       uint32_t expert, int variant, const struct moe_quant_error *before,
                       const struct moe_expert_class *class_, uint8_t *const *segments,
                       struct moe_err *err)
{
    const struct moe_convert_inputs *inputs = c->options->inputs;
    const int option = c->variants[variant].option;
    struct convert_kept_expert e = {.error = error_since(before, &c->report->error[option])};
    const struct moe_convert_rare *last =
        inputs && inputs->n_rare ? &inputs->rare[inputs->n_rare - 1] : NULL;
    if (last && last->layer == layer && last->expert == expert)
        e.rare = last->n_tokens + 1;
    return convert_kept_put(r->kept, layer, expert, (uint32_t)option, class_, segments, &e, err);
}

static int encode_expert(struct converter *c, const struct repack *r,
                         const struct moe_expert_extent *e, uint32_t layer, uint32_t expert,
                         int variant, struct moe_err *err)
{
    const struct moe_quant_error before = c->report->error[c->variants[variant].option];
    const bool kept = is_kept(c, r, layer, expert, variant);
    const struct moe_expert_class *class_ = moe_pack_class_at(r->pack, e->class_index);
    struct moe_expert_class new_class = *class_;
    struct moe_mat mats[MOE_PACK_MAX_MATRICES];
    struct row_source sources[MOE_PACK_MAX_MATRICES] = {0};
    uint8_t *block = NULL, *new_block = NULL;
    uint8_t *segments[MOE_PACK_MAX_SEGMENTS], *new_segments[MOE_PACK_MAX_SEGMENTS];
    const struct moe_bits wanted = convert_bits(c, variant, layer, expert);
    char name[64];
    snprintf(name, sizeof name, "layer %" PRIu32 " expert %" PRIu32, layer, expert);
    int status;
    MOE_STEP(read_expert(r, e, layer, expert, &block, segments, err));
    for (uint32_t i = 0; i < class_->n_matrices; i++) {
        const struct moe_class_matrix *m = &class_->matrices[i];
        int bits = convert_part_bits(wanted, convert_part_of(m->role));
        int has = moe_layout_bits(m->layout.kind);
        mats[i] = (struct moe_mat){segments[m->segment] + m->offset, m->layout, m->rows, m->cols};
        if (bits == 0 || keeps_part(c, r, m, wanted))
            continue;
        MOE_STEP(check_more_bits(c, name, has, bits, err));
        MOE_STEP(stored_source(c, name, &mats[i], bits, &sources[i], err));
        sources[i].part = moe_expert_part_spec(convert_part_of(m->role))->pack_name;
        new_class.matrices[i].layout = convert_layout(c, bits, m->cols, sources[i].float16_kind);
    }
    convert_place_matrices(&new_class);
    MOE_STEP(convert_alloc_segments(&new_class, &new_block, new_segments, err));
    if (kept)
        MOE_STEP(take_kept(c, r, layer, expert, variant, &new_class, new_segments, err));
    for (uint32_t i = 0; !kept && i < class_->n_matrices; i++) {
        const struct moe_class_matrix *to = &new_class.matrices[i];
        const struct moe_matrix_name matrix = {layer, true, convert_part_of(to->role), expert};
        int bits = convert_part_bits(wanted, convert_part_of(to->role));
        if (sources[i].mat)
            MOE_STEP(convert_find_inputs(c, &matrix, bits, &sources[i], err));
        MOE_STEP(encode_matrix(c, variant, &class_->matrices[i], mats[i].data, to,
                               new_segments[to->segment] + to->offset, &sources[i], bits, err));
    }
    c->report->n_missing += !kept && c->options->n_joined;
    if (!kept)
        MOE_STEP(keep_expert(c, r, layer, expert, variant, &before, &new_class, new_segments, err));
    if (c->writer)
        MOE_STEP(put_segments(c, layer, expert, variant, &new_class, new_segments, err));
out:
    free(block);
    free(new_block);
    return status;
}

static void count_expert(struct converter *c, const struct repack *r, uint32_t layer,
                         uint32_t expert)
{
    const struct moe_expert_extent *e = best_stored(r->pack, layer, expert).extent;
    const struct moe_expert_class *class_ = e ? moe_pack_class_at(r->pack, e->class_index) : NULL;
    for (uint32_t i = 0; class_ && i < class_->n_matrices; i++)
        c->report->expert_weights += (uint64_t)class_->matrices[i].rows * class_->matrices[i].cols;
}

/*
 * A mean of bits, or the bytes of a pack, shared out (convert_bits.c) among gate and up, and down,
 * of all experts, and matrices of the dense part.
 */

/* Bits that are being shared out: first by sizes only, to refuse what even the fewest bits exceed
 * before the texts are run, then by what these say. */
struct sharing {
    struct convert_sharer *sharers; /* [layer][expert][2], then [tensor] */
    uint64_t n, n_of_experts;
    bool (*classes)[CONVERT_RUNGS][CONVERT_RUNGS]; /* [the pack's class] chosen for one of its */
    bool sizes_only;
    /* Matrices of the dense part and experts that no earlier run has looked at, for progress. */
    uint64_t n_tensors, n_experts, looked;
};

/* What the texts say of a matrix of the pack; zeros of a layer that drafts, which they do not run.
 */
static int see_stored(const struct converter *c, const struct moe_mat *mat,
                      const struct moe_matrix_name *name, struct convert_seen *out,
                      struct moe_err *err)
{
    const struct moe_convert_inputs *inputs = c->options->inputs;
    const double *factor = NULL;
    double *seen = moe_alloc(mat->cols, sizeof(double) + sizeof(float), err);
    int status = seen ? MOE_OK : MOE_ERR_MEMORY;
    if (status == MOE_OK && inputs && name->layer < c->n_layers)
        status = inputs->factor(inputs->ctx, name, &factor, err);
    if (status == MOE_OK)
        convert_see_matrix(mat, factor, (float *)(seen + mat->cols), seen, out);
    free(seen);
    return status;
}

/* What the texts say of an expert's matrices. */
static int look_at_expert(const struct converter *c, const struct repack *r,
                          const struct moe_expert_extent *e, uint32_t layer, uint32_t expert,
                          struct convert_seen *seen, struct moe_err *err)
{
    const struct moe_expert_class *class_ = moe_pack_class_at(r->pack, e->class_index);
    uint8_t *block = NULL, *segments[MOE_PACK_MAX_SEGMENTS];
    int status;
    MOE_STEP(read_expert(r, e, layer, expert, &block, segments, err));
    for (uint32_t i = 0; i < class_->n_matrices; i++) {
        const struct moe_class_matrix *m = &class_->matrices[i];
        const struct moe_mat mat = {segments[m->segment] + m->offset, m->layout, m->rows, m->cols};
        const struct moe_matrix_name name = {layer, true, convert_part_of(m->role), expert};
        if (!moe_expert_part_is_bias(name.role))
            MOE_STEP(see_stored(c, &mat, &name, &seen[i], err));
    }
    MOE_STEP(convert_kept_put_seen(r->kept, layer, expert, seen, class_->n_matrices, err));
out:
    free(block);
    return status;
}

static int see_expert(const struct converter *c, const struct repack *r, struct sharing *s,
                      uint32_t layer, uint32_t expert, struct convert_sharer two[2],
                      struct moe_err *err)
{
    const struct moe_convert_options *o = c->options;
    const struct moe_expert_extent *e = best_stored(r->pack, layer, expert).extent;
    const bool kept = convert_kept_has(r->kept, layer, expert, CONVERT_SEEN);
    struct convert_seen seen[MOE_PACK_MAX_MATRICES] = {0};
    if (!e)
        return MOE_OK;
    const struct moe_expert_class *class_ = moe_pack_class_at(r->pack, e->class_index);
    if (s->sizes_only) {
        s->n_experts += !kept;
    } else if (kept) {
        MOE_TRY(convert_kept_read_seen(r->kept, layer, expert, seen, class_->n_matrices, err));
    } else {
        moe_progress_report(o->progress, "choosing bits, rounding follows", s->looked++,
                            s->n_experts);
        MOE_TRY(look_at_expert(c, r, e, layer, expert, seen, err));
    }
    for (uint32_t i = 0; i < class_->n_matrices; i++) {
        const struct moe_class_matrix *m = &class_->matrices[i];
        const struct moe_mat mat = {NULL, m->layout, m->rows, m->cols};
        const enum moe_expert_part part = convert_part_of(m->role);
        struct convert_sharer *to = &two[moe_expert_part_is_down(part)];
        if (!moe_expert_part_is_bias(part))
            convert_add_matrix(&mat, &seen[i], o, to);
        for (int rung = 0; moe_expert_part_is_bias(part) && rung < CONVERT_RUNGS; rung++)
            to->bytes[rung] += o->target_bytes ? moe_round_up(4 * (uint64_t)m->rows, MOE_ALIGN) : 0;
    }
    for (int i = 0; i < 2 && o->target_bytes; i++)
        convert_pad_sharer(&two[i]);
    return MOE_OK;
}

static bool has_head(const struct moe_pack *pack)
{
    char name[MOE_NAME_BYTES];
    bool found = false;
    moe_tensor_pack_name(MOE_T_HEAD, 0, name);
    for (uint32_t i = 0; i < moe_pack_n_tensors(pack); i++)
        found |= strcmp(moe_pack_tensor_at(pack, i)->name, name) == 0;
    return found;
}

/* What the texts say of a matrix of the dense part. */
static int look_at_tensor(const struct converter *c, const struct repack *r, uint32_t index,
                          const struct moe_matrix_name *name, struct convert_seen *seen,
                          struct moe_err *err)
{
    const struct moe_pack_tensor *t = moe_pack_tensor_at(r->pack, index);
    uint8_t *raw = moe_alloc(t->extent.raw_bytes, 1, err);
    const struct moe_mat mat = {raw, t->layout, t->rows, t->cols};
    int status = raw ? MOE_OK : MOE_ERR_MEMORY;
    MOE_STEP(status);
    MOE_STEP(moe_pack_read(r->pack, &t->extent, raw, t->name, err));
    MOE_STEP(see_stored(c, &mat, name, seen, err));
    MOE_STEP(convert_kept_put_seen(r->kept, CONVERT_TENSORS, index, seen, 1, err));
out:
    free(raw);
    return status;
}

/* A dense matrix counts as a layer's experts do together; the head as all that adds to what it
 * sees.
 */
static int see_tensor(const struct converter *c, const struct repack *r, struct sharing *s,
                      uint32_t index, const struct moe_matrix_name *name, struct convert_sharer *to,
                      struct moe_err *err)
{
    const struct moe_pack_tensor *t = moe_pack_tensor_at(r->pack, index);
    const struct moe_mat mat = {NULL, t->layout, t->rows, t->cols};
    const bool kept = convert_kept_has(r->kept, CONVERT_TENSORS, index, CONVERT_SEEN);
    struct convert_seen seen = {0};
    if (s->sizes_only) {
        s->n_tensors += !kept;
    } else if (kept) {
        MOE_TRY(convert_kept_read_seen(r->kept, CONVERT_TENSORS, index, &seen, 1, err));
    } else {
        moe_progress_report(c->options->progress, "choosing bits (dense), rounding follows",
                            s->looked++, s->n_tensors);
        MOE_TRY(look_at_tensor(c, r, index, name, &seen, err));
    }
    convert_add_matrix(&mat, &seen, c->options, to);
    convert_pad_sharer(to);
    if (!to->known)
        to->weight = 1;
    if (name->role == MOE_T_HEAD || (name->role == MOE_T_EMBED && !has_head(r->pack)))
        to->weight *= 2 * c->n_layers;
    return MOE_OK;
}

/* What an expert loses counts by its output among its layer's; one that too few tokens saw counts
 * as little as the least of the others; where all are such, they count alike. */
static void weigh_layer(struct convert_sharer (*experts)[2], uint32_t n)
{
    double all = 0, least = INFINITY;
    for (uint32_t e = 0; e < n; e++)
        all += experts[e][1].energy;
    for (uint32_t e = 0; e < n; e++)
        for (int i = 0; i < 2; i++) {
            experts[e][i].weight *= all > 0 ? experts[e][1].energy / all : 0;
            if (experts[e][i].known && experts[e][i].weight < least)
                least = experts[e][i].weight;
        }
    for (uint32_t e = 0; e < n; e++)
        for (int i = 0; i < 2; i++)
            if (!experts[e][i].known)
                experts[e][i].weight = isfinite(least) ? least : 1 / (double)n;
}

/* Bytes of the file beside what is shared out, with the rungs that are chosen: the header, the
 * directory, sections, other tensors. Experts that are made from one class become a class for each
 * pair of rungs. The provenance is not written yet and may take less. */
static uint64_t fixed_bytes(const struct converter *c, const struct repack *r,
                            const struct sharing *s)
{
    static const enum moe_pack_section ids[] = {MOE_PACK_MODEL, MOE_PACK_TOKENIZER, MOE_PACK_CHAT,
                                                MOE_PACK_SAMPLING};
    enum { CHANGED = 512, RARE = 16 /* of the provenance, and of a rare expert in it */ };
    const struct convert_sharer *dense = s->sharers + s->n_of_experts;
    uint64_t bytes = 0, n_tensors = 0, class_bytes = 0, n_experts = 0, n_segments = 0, n_rare = 0,
             n;
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        moe_pack_section(r->pack, ids[i], &n);
        bytes += moe_round_up(n, MOE_PACK_ALIGN);
    }
    for (uint32_t i = 0; i < moe_pack_n_tensors(r->pack); i++) {
        const struct moe_pack_tensor *t = moe_pack_tensor_at(r->pack, i);
        struct moe_matrix_name ignored;
        if (is_left_out(c, t))
            continue;
        n_tensors++;
        if (!dense[i].there)
            bytes += moe_round_up(is_copied(c, r, i, &ignored)
                                      ? t->extent.raw_bytes
                                      : moe_layout_bytes(convert_layout(c, dense_bits(c, r, i),
                                                                        t->cols, MOE_LAYOUT_BF16),
                                                         t->rows, t->cols),
                                  MOE_PACK_ALIGN);
    }
    memset(s->classes, 0, moe_pack_n_classes(r->pack) * sizeof *s->classes);
    for (uint64_t i = 0; i < s->n_of_experts / 2; i++) {
        const struct convert_sharer *two = &s->sharers[2 * i];
        const uint32_t per_layer = moe_pack_n_experts(r->pack);
        if (!two[0].there && !two[1].there)
            continue;
        const uint32_t from =
            best_stored(r->pack, (uint32_t)(i / per_layer), (uint32_t)(i % per_layer))
                .extent->class_index;
        const struct moe_expert_class *class_ = moe_pack_class_at(r->pack, from);
        bool *met = &s->classes[from][two[0].rung][two[1].rung];
        class_bytes += *met ? 0 : moe_pack_class_entry_bytes(class_);
        *met = true;
        n_experts++;
        n_segments += class_->n_segments;
        n_rare += !two[0].known;
    }
    moe_pack_section(r->pack, MOE_PACK_PROVENANCE, &n);
    return bytes + moe_round_up(n + CHANGED + RARE * n_rare, MOE_PACK_ALIGN) +
           moe_pack_tables_bytes(n_tensors, class_bytes, n_experts, n_segments);
}

/* Shares options->target_bytes out. What the directory takes depends on what is chosen: it is given
 * a page more until that fits. Returns what the file takes, which is more than the target only
 * where even the fewest bits are. */
static uint64_t share_target(const struct converter *c, const struct repack *r, struct sharing *s)
{
    const uint64_t target = c->options->target_bytes;
    uint64_t file = convert_share_out(s->sharers, s->n, 0), beside = fixed_bytes(c, r, s);
    file += beside;
    for (bool fits = file > target; !fits; beside += MOE_PACK_ALIGN) {
        file = convert_share_out(s->sharers, s->n, (double)target - (double)beside);
        file += fixed_bytes(c, r, s);
        fits = file <= target;
    }
    return file;
}

static int share_among(const struct converter *c, const struct repack *r, struct sharing *s,
                       struct moe_err *err)
{
    const struct moe_convert_options *o = c->options;
    char least[32], wanted[32];
    uint64_t weights = 0;
    for (uint64_t i = 0; i < s->n; i++)
        weights += s->sharers[i].n_weights;
    if (o->target_bytes) {
        const uint64_t file = share_target(c, r, s);
        return file <= o->target_bytes
                   ? MOE_OK
                   : moe_fail(err, MOE_ERR_USAGE,
                              "%s: takes %s at least, more than the %s of --target",
                              moe_pack_path(r->pack), moe_format_at_least(file, least),
                              moe_format_bytes(o->target_bytes, wanted));
    }
    const double most = o->mean_bits * (double)weights / 8,
                 takes = (double)convert_share_out(s->sharers, s->n, most);
    if (takes > most)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: its experts take %.2f bits a weight at least, %.2f are asked for",
                        moe_pack_path(r->pack), ceil(takes * 800 / (double)weights) / 100,
                        o->mean_bits);
    return MOE_OK;
}

/* Looks at all matrices that get a share, or only at their sizes. */
static int see_all(const struct converter *c, const struct repack *r, struct sharing *s,
                   struct moe_err *err)
{
    const uint64_t n_experts = moe_pack_n_experts(r->pack);
    struct convert_sharer(*experts)[2] = (struct convert_sharer(*)[2])s->sharers;
    memset(s->sharers, 0, s->n * sizeof *s->sharers);
    s->looked = 0;
    for (uint32_t i = 0; r->dense_bits && i < moe_pack_n_tensors(r->pack); i++) {
        const struct moe_pack_tensor *t = moe_pack_tensor_at(r->pack, i);
        struct moe_matrix_name name;
        MOE_TRY(convert_check_stop(c, err));
        if (!is_left_out(c, t) && follows_dense_bits(t, &name))
            MOE_TRY(see_tensor(c, r, s, i, &name, &s->sharers[s->n_of_experts + i], err));
    }
    s->looked = 0;
    for (uint32_t layer = 0; layer < moe_pack_n_layers(r->pack); layer++) {
        for (uint32_t e = 0; e < n_experts; e++) {
            MOE_TRY(convert_check_stop(c, err));
            MOE_TRY(see_expert(c, r, s, layer, e, experts[layer * n_experts + e], err));
        }
        weigh_layer(experts + layer * n_experts, (uint32_t)n_experts);
    }
    return MOE_OK;
}

/* Sets the map and the bits of the dense part from the bits of each sharer. */
static void take_shared(struct repack *r, const int32_t *bits, uint64_t n_experts,
                        struct moe_convert_options *options)
{
    for (uint64_t i = 0; i < n_experts; i++)
        r->shared.bits[i] = (struct moe_bits){bits[2 * i], bits[2 * i + 1]};
    for (uint32_t i = 0; r->dense_bits && i < moe_pack_n_tensors(r->pack); i++)
        r->dense_bits[i] = bits[2 * n_experts + i];
    options->n_experts = 0;
    if (n_experts == 0)
        return;
    options->map = &r->shared;
    options->experts[0] = (struct moe_bits){0};
    options->n_experts = 1;
}

/* Makes a map of what options->mean_bits or target_bytes give each expert, the only variant then.
 * free() r->shared.bits, r->dense_bits. */
static int share_bits(struct converter *c, struct repack *r, struct moe_convert_options *options,
                      struct moe_err *err)
{
    const bool dense = options->target_bytes && !options->dense_bits;
    const uint32_t n_layers = moe_pack_n_layers(r->pack), n_experts = moe_pack_n_experts(r->pack),
                   n_tensors = options->target_bytes ? moe_pack_n_tensors(r->pack) : 0;
    const uint64_t n = (uint64_t)n_layers * n_experts;
    struct sharing s = {.n = 2 * n + n_tensors, .n_of_experts = 2 * n, .sizes_only = true};
    int32_t *bits = moe_alloc(s.n, sizeof *bits, err);
    bool kept;
    int status;
    c->options = options;
    s.sharers = moe_alloc(s.n, sizeof *s.sharers, err);
    s.classes = moe_alloc(moe_pack_n_classes(r->pack), sizeof *s.classes, err);
    r->shared = (struct moe_expert_map){.name = "the bits shared out",
                                        .source_fingerprint = moe_pack_source_fingerprint(r->pack),
                                        .n_layers = n_layers,
                                        .n_experts = n_experts,
                                        .bits = moe_alloc(n, sizeof(struct moe_bits), err)};
    r->dense_bits = dense ? moe_alloc(n_tensors, sizeof *r->dense_bits, err) : NULL;
    MOE_STEP(s.sharers && s.classes && bits && r->shared.bits && (r->dense_bits || !dense)
                 ? MOE_OK
                 : MOE_ERR_MEMORY);
    MOE_STEP(convert_kept_shared(r->kept, bits, s.n, &kept, err));
    if (!kept) {
        MOE_STEP(see_all(c, r, &s, err));
        MOE_STEP(share_among(c, r, &s, err));
        s.sizes_only = false;
        MOE_STEP(see_all(c, r, &s, err));
        MOE_STEP(share_among(c, r, &s, err));
        for (uint64_t i = 0; i < s.n; i++)
            bits[i] = s.sharers[i].there ? convert_sharer_bits(&s.sharers[i]) : 0;
        MOE_STEP(convert_kept_put_shared(r->kept, bits, s.n, err));
    }
    take_shared(r, bits, n, options);
out:
    free(s.sharers);
    free(s.classes);
    free(bits);
    return status;
}

/* Writes every expert in all variants; of a shard those that are rounded. */
static int put_experts(struct converter *c, const struct repack *r, struct moe_err *err)
{
    int status = MOE_OK;
    if (c->options->inputs)
        c->options->inputs->forget_rare(c->options->inputs->ctx);
    for (uint32_t layer = 0; layer < moe_pack_n_layers(r->pack); layer++)
        for (uint32_t e = 0; e < moe_pack_n_experts(r->pack) && status == MOE_OK; e++) {
            if (is_elsewhere(c, r, layer, e))
                continue;
            count_expert(c, r, layer, e);
            for (int v = 0; v < c->n_variants && status == MOE_OK; v++) {
                struct repack_origin from = choose_stored(c, r, layer, e, v);
                status = convert_check_stop(c, err);
                if (status == MOE_OK && from.extent && (c->writer || !from.copied))
                    status = (from.copied ? copy_expert : encode_expert)(c, r, from.extent, layer,
                                                                         e, v, err);
                moe_progress_report(c->options->progress, c->doing, c->done, c->total);
            }
        }
    return status;
}

/* A hash of all that decides how experts and matrices are rounded. */
static uint64_t kept_key(const struct converter *c, const struct repack *r)
{
    const struct moe_convert_options *o = c->options;
    struct moe_buf text = {0};
    moe_buf_printf(&text, "%016" PRIx64 " %s %" PRIu32 " %.17g %" PRIu64 " %d %d",
                   moe_pack_fingerprint(r->pack), o->method->name, o->group, o->mean_bits,
                   o->target_bytes, o->dense_bits, o->no_ahead);
    for (int i = 0; i < o->n_experts; i++)
        moe_buf_printf(&text, " %d,%d", o->experts[i].gate_up, o->experts[i].down);
    if (o->map) {
        char hash[17];
        convert_map_hash(o->map, hash);
        moe_buf_printf(&text, " %s", hash);
    }
    if (o->inputs)
        moe_buf_printf(&text, " %016" PRIx64 " %" PRIu64, o->inputs->hash, o->inputs->n_tokens);
    const uint64_t key = text.failed ? 0 : moe_hash64(text.data, text.size);
    moe_buf_release(&text);
    return key;
}

/* Writes the pack, whose variants are chosen. */
static int put_pack(struct converter *c, const struct repack *r, struct moe_err *err)
{
    MOE_TRY(moe_pack_create(&c->writer, c->out_path, c->n_layers, moe_pack_n_experts(r->pack),
                            c->described, (uint32_t)c->n_variants,
                            moe_pack_source_fingerprint(r->pack), c->options->zstd_level, err));
    MOE_TRY(moe_pack_put_ahead(c->writer, moe_pack_n_layers(r->pack) - c->n_layers, err));
    MOE_TRY(copy_sections(c, r, err));
    for (uint32_t i = 0; i < moe_pack_n_tensors(r->pack); i++) {
        MOE_TRY(convert_check_stop(c, err));
        if (!is_left_out(c, moe_pack_tensor_at(r->pack, i)))
            MOE_TRY(put_tensor(c, r, i, err));
        moe_progress_report(c->options->progress, c->doing, c->done, c->total);
    }
    MOE_TRY(put_experts(c, r, err));
    MOE_TRY(put_provenance(c, r, err));
    return convert_commit(c, err);
}

/* Opens the pack and what earlier runs have kept, and chooses how each variant is made. release()
 * it after a failure, too. */
static int begin(struct converter *c, struct repack *r, struct moe_convert_options *wanted,
                 struct moe_err *err)
{
    c->doing = wanted->inputs ? "rounding" : "packing";
    MOE_TRY(moe_pack_open(&r->pack, c->source_path, err));
    MOE_TRY(moe_convert_check_experts(c->source_path, moe_pack_n_experts(r->pack), wanted, err));
    c->n_layers = moe_pack_n_layers(r->pack);
    r->calibrated = wanted->dense_of_map && wanted->map &&
                    wanted->map->pack_fingerprint == moe_pack_fingerprint(r->pack);
    if (!wanted->no_ahead)
        moe_pack_take_ahead(r->pack);
    for (uint32_t i = 0; i < moe_pack_n_classes(r->pack); i++)
        c->no_gate |= !moe_class_has_gate(moe_pack_class_at(r->pack, i));
    MOE_TRY(convert_kept_open(&r->kept, c, kept_key(c, r), r->pack, err));
    if (wanted->mean_bits > 0 || wanted->target_bytes)
        MOE_TRY(share_bits(c, r, wanted, err));
    MOE_TRY(take_own_map(r, wanted, err));
    MOE_TRY(convert_start(c, wanted, false, err));
    *c->report = (struct moe_convert_report){0};
    MOE_TRY(convert_check_output(c, err));
    MOE_TRY(check_map(c, r, err));
    return choose_variants(c, r, err);
}

static int release(struct converter *c, struct repack *r, bool complete, int status,
                   struct moe_err *err)
{
    moe_pack_abort(c->writer);
    status = convert_kept_close(r->kept, complete, status, err);
    convert_release(c);
    free(r->own.bits);
    free(r->shared.bits);
    free(r->dense_bits);
    moe_pack_close(r->pack);
    return status;
}

int moe_convert_pack(const char *pack_path, const char *out_path,
                     const struct moe_convert_options *options, struct moe_convert_report *report,
                     struct moe_err *err)
{
    struct moe_convert_options wanted = *options;
    struct converter c = {
        .options = &wanted, .report = report, .source_path = pack_path, .out_path = out_path};
    struct repack r = {0};
    int status;
    MOE_STEP(begin(&c, &r, &wanted, err));
    count_total(&c, &r);
    MOE_STEP(options->n_shards ? put_experts(&c, &r, err) : put_pack(&c, &r, err));
out:
    return release(&c, &r, !options->n_shards, status, err);
}

int moe_convert_rounds(const char *pack_path, const char *out_path,
                       const struct moe_convert_options *options, bool *any, struct moe_err *err)
{
    struct moe_convert_options wanted = *options;
    struct moe_convert_report report;
    struct converter c = {
        .options = &wanted, .report = &report, .source_path = pack_path, .out_path = out_path};
    struct repack r = {0};
    wanted.keeps = false;
    wanted.n_shards = wanted.n_joined = 0;
    const int status = begin(&c, &r, &wanted, err);
    *any = status == MOE_OK && rounds(&c, &r);
    return release(&c, &r, false, status, err);
}
