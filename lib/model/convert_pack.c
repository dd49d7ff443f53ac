#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/par.h"
#include "fmt/json.h"
#include "model/convert_parts.h"
#include "model/family.h"

/* A pack being re-packed. */
struct repack {
    struct moe_pack *pack;
    /* Per variant to write: the pack's variant it is copied from, or -1: quantized anew. */
    int from[CONVERT_MAX_VARIANTS];
};

/* ---- Rows out of a pack ---------------------------------------------------------------------- */

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

static int source_of(struct converter *c, const char *name, const struct moe_mat *mat, int bits,
                     struct row_source *out, struct moe_err *err)
{
    *out = (struct row_source){
        .name = name,
        .rows = mat->rows,
        .cols = mat->cols,
        .bytes = moe_layout_bytes(mat->layout, mat->rows, mat->cols),
        .float16_kind = mat->layout.kind == MOE_LAYOUT_F16 ? MOE_LAYOUT_F16 : MOE_LAYOUT_BF16,
        .read = read_rows,
        .tensor = mat,
    };
    return bits == 16 && mat->layout.kind == MOE_LAYOUT_F32
               ? convert_choose_float16(c, out, &out->float16_kind, err)
               : MOE_OK;
}

static int refuse_more_bits(const struct converter *c, const char *what, int has, int wanted,
                            struct moe_err *err)
{
    return moe_fail(err, MOE_ERR_USAGE,
                    "%s: %s has %d bits, %d cannot be made of them; convert the checkpoint again",
                    c->source_path, what, has, wanted);
}

/* ---- Dense tensors --------------------------------------------------------------------------- */

/* True when the tensor follows --dense: a dense matrix of the model, no router, no vector. */
static bool follows_dense_bits(const struct moe_pack_tensor *t)
{
    uint32_t layer = 0;
    if (t->is_vector)
        return false;
    if (strncmp(t->name, "layers.", 7) == 0)
        layer = (uint32_t)strtoul(t->name + 7, NULL, 10);
    for (int role = 0; role < MOE_T_N_ROLES; role++) {
        char name[MOE_PACK_NAME_BYTES];
        moe_tensor_pack_name(role, layer, name);
        if (strcmp(name, t->name) == 0)
            return moe_tensor_spec(role)->kind == MOE_KIND_DENSE;
    }
    return false;
}

static int encode_tensor(struct converter *c, const struct moe_pack_tensor *t, const uint8_t *raw,
                         struct moe_err *err)
{
    struct moe_mat mat = {raw, t->layout, t->rows, t->cols};
    struct row_source source;
    int status = source_of(c, t->name, &mat, c->options->dense_bits, &source, err);
    if (status != MOE_OK)
        return status;
    struct moe_pack_tensor entry = *t;
    entry.layout = convert_layout(c, c->options->dense_bits, source.float16_kind);
    struct row_target target = {entry.layout, NULL, &c->report->dense_error};
    target.out = moe_alloc(moe_layout_bytes(entry.layout, t->rows, t->cols), 1, err);
    if (!target.out)
        return MOE_ERR_MEMORY;
    status = convert_rows(c, &source, &target, 1, err);
    if (status == MOE_OK)
        status = moe_pack_put_tensor(c->writer, &entry, target.out, err);
    free(target.out);
    return status;
}

static int put_tensor(struct converter *c, const struct repack *r, const struct moe_pack_tensor *t,
                      struct moe_err *err)
{
    char what[MOE_PACK_NAME_BYTES + 16];
    snprintf(what, sizeof what, "tensor '%s'", t->name);
    int bits = c->options->dense_bits, has = moe_layout_bits(t->layout.kind);
    bool copy = bits == 0 || bits == has || !follows_dense_bits(t);
    if (!copy && bits > has)
        return refuse_more_bits(c, what, has, bits, err);
    uint8_t *raw = moe_alloc(t->extent.raw_bytes, 1, err);
    if (!raw)
        return MOE_ERR_MEMORY;
    int status = moe_pack_read(r->pack, &t->extent, raw, what, err);
    if (status == MOE_OK && copy) {
        c->done += t->extent.raw_bytes;
        c->report->source_bytes += t->extent.raw_bytes;
        status = moe_pack_put_tensor(c->writer, t, raw, err);
    } else if (status == MOE_OK) {
        status = encode_tensor(c, t, raw, err);
    }
    c->report->dense_weights += (uint64_t)t->rows * t->cols;
    free(raw);
    return status;
}

/* ---- Experts --------------------------------------------------------------------------------- */

static int bits_for(struct moe_bits bits, uint16_t role)
{
    switch (role) {
    case MOE_ROLE_GATE:
    case MOE_ROLE_UP:
        return bits.gate_up;
    case MOE_ROLE_DOWN:
        return bits.down;
    default:
        return 0; /* a bias: stays as it is */
    }
}

/* The best stored form of an expert; NULL when it is stored in none. */
static const struct moe_expert_extent *best_of(const struct moe_pack *pack, uint32_t layer,
                                               uint32_t expert)
{
    for (uint32_t v = 0; v < moe_pack_n_variants(pack); v++) {
        const struct moe_expert_extent *e = moe_pack_expert(pack, layer, expert, v);
        if (e->present)
            return e;
    }
    return NULL;
}

/* Reads an expert's segments into fresh memory; free() *block. */
static int read_expert(const struct repack *r, const struct moe_expert_extent *e, uint32_t layer,
                       uint32_t expert, uint8_t **block, uint8_t *segments[MOE_PACK_MAX_SEGMENTS],
                       struct moe_err *err)
{
    const struct moe_expert_class *class_ = moe_pack_class_at(r->pack, e->class_index);
    int status = convert_alloc_segments(class_, block, segments, err);
    for (uint32_t s = 0; s < class_->n_segments && status == MOE_OK; s++) {
        char what[80];
        snprintf(what, sizeof what, "layer %" PRIu32 " expert %" PRIu32 " segment %" PRIu32, layer,
                 expert, s);
        status = moe_pack_read(r->pack, &e->segments[s], segments[s], what, err);
    }
    return status;
}

static int put_segments(struct converter *c, uint32_t layer, uint32_t expert, int variant,
                        const struct moe_expert_class *class_, uint8_t *const *segments,
                        struct moe_err *err)
{
    uint32_t index;
    int status = moe_pack_put_class(c->writer, class_, &index, err);
    if (status == MOE_OK)
        status = moe_pack_put_expert(c->writer, layer, expert, (uint32_t)variant, index,
                                     (const void *const *)segments, err);
    return status;
}

static int copy_expert(struct converter *c, const struct repack *r, uint32_t layer, uint32_t expert,
                       int variant, struct moe_err *err)
{
    const struct moe_expert_extent *e =
        moe_pack_expert(r->pack, layer, expert, (uint32_t)r->from[variant]);
    uint8_t *block = NULL, *segments[MOE_PACK_MAX_SEGMENTS];
    if (!e->present)
        return MOE_OK; /* a variant that not every expert has stays so */
    const struct moe_expert_class *class_ = moe_pack_class_at(r->pack, e->class_index);
    int status = read_expert(r, e, layer, expert, &block, segments, err);
    if (status == MOE_OK)
        status = put_segments(c, layer, expert, variant, class_, segments, err);
    for (uint32_t s = 0; s < class_->n_segments; s++) {
        c->done += class_->segment_bytes[s];
        c->report->source_bytes += class_->segment_bytes[s];
    }
    free(block);
    return status;
}

/* One matrix of a new variant from the same matrix of the best stored one. */
static int encode_matrix(struct converter *c, int variant, const struct moe_class_matrix *from,
                         const uint8_t *from_data, const struct moe_class_matrix *to,
                         uint8_t *to_data, const struct row_source *source, struct moe_err *err)
{
    if (bits_for(c->variants[variant].bits, from->role) == 0) {
        memcpy(to_data, from_data, 4 * (uint64_t)from->rows);
        return MOE_OK;
    }
    struct row_target target = {to->layout, to_data,
                                &c->report->error[c->variants[variant].option]};
    return convert_rows(c, source, &target, 1, err);
}

static int encode_expert(struct converter *c, const struct repack *r, uint32_t layer,
                         uint32_t expert, int variant, struct moe_err *err)
{
    const struct moe_expert_extent *e = best_of(r->pack, layer, expert);
    if (!e)
        return MOE_OK;
    const struct moe_expert_class *class_ = moe_pack_class_at(r->pack, e->class_index);
    struct moe_expert_class new_class = *class_;
    struct moe_mat mats[MOE_PACK_MAX_MATRICES];
    struct row_source sources[MOE_PACK_MAX_MATRICES];
    uint8_t *block = NULL, *new_block = NULL;
    uint8_t *segments[MOE_PACK_MAX_SEGMENTS], *new_segments[MOE_PACK_MAX_SEGMENTS];
    char name[64];
    snprintf(name, sizeof name, "layer %" PRIu32 " expert %" PRIu32, layer, expert);
    int status = read_expert(r, e, layer, expert, &block, segments, err);
    for (uint32_t i = 0; i < class_->n_matrices && status == MOE_OK; i++) {
        const struct moe_class_matrix *m = &class_->matrices[i];
        int bits = bits_for(c->variants[variant].bits, m->role);
        int has = moe_layout_bits(m->layout.kind);
        mats[i] = (struct moe_mat){segments[m->segment] + m->offset, m->layout, m->rows, m->cols};
        if (bits == 0)
            continue;
        if (bits > has)
            status = refuse_more_bits(c, name, has, bits, err);
        else
            status = source_of(c, name, &mats[i], bits, &sources[i], err);
        if (status == MOE_OK)
            new_class.matrices[i].layout = convert_layout(c, bits, sources[i].float16_kind);
    }
    if (status == MOE_OK) {
        convert_place_matrices(&new_class);
        status = convert_alloc_segments(&new_class, &new_block, new_segments, err);
    }
    for (uint32_t i = 0; i < class_->n_matrices && status == MOE_OK; i++) {
        const struct moe_class_matrix *to = &new_class.matrices[i];
        status = encode_matrix(c, variant, &class_->matrices[i], mats[i].data, to,
                               new_segments[to->segment] + to->offset, &sources[i], err);
    }
    if (status == MOE_OK)
        status = put_segments(c, layer, expert, variant, &new_class, new_segments, err);
    free(block);
    free(new_block);
    return status;
}

static void count_expert(struct converter *c, const struct repack *r, uint32_t layer,
                         uint32_t expert)
{
    const struct moe_expert_extent *e = best_of(r->pack, layer, expert);
    const struct moe_expert_class *class_ = e ? moe_pack_class_at(r->pack, e->class_index) : NULL;
    for (uint32_t i = 0; class_ && i < class_->n_matrices; i++)
        c->report->expert_weights += (uint64_t)class_->matrices[i].rows * class_->matrices[i].cols;
}

static int put_experts(struct converter *c, const struct repack *r, struct moe_err *err)
{
    int status = MOE_OK;
    for (uint32_t layer = 0; layer < moe_pack_n_layers(r->pack); layer++)
        for (uint32_t e = 0; e < moe_pack_n_experts(r->pack) && status == MOE_OK; e++) {
            count_expert(c, r, layer, e);
            for (int v = 0; v < c->n_variants && status == MOE_OK; v++) {
                status = convert_check_stop(c, err);
                if (status == MOE_OK)
                    status = r->from[v] >= 0 ? copy_expert(c, r, layer, e, v, err)
                                             : encode_expert(c, r, layer, e, v, err);
                moe_progress_report(c->options->progress, "packing", c->done, c->total);
            }
        }
    return status;
}

/* ---- The conversion -------------------------------------------------------------------------- */

static int find_variant(const struct moe_pack *pack, const char *name)
{
    for (uint32_t v = 0; v < moe_pack_n_variants(pack); v++)
        if (strcmp(moe_pack_variant_at(pack, v)->name, name) == 0)
            return (int)v;
    return -1;
}

/* Which of the pack's variants each wanted one is; with none wanted, all of the pack's. */
static int choose_variants(struct converter *c, struct repack *r, struct moe_err *err)
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
            c->variants[v].option = (int)v;
            /* A name that is no bitwidth (a map's) keeps zeros: nothing is encoded for it. */
            moe_parse_bits(out[v].name, &c->variants[v].bits);
        }
        c->n_variants = (int)n;
        return MOE_OK;
    }
    for (int v = 0; v < c->n_variants; v++) {
        convert_describe_variant(c, c->variants[v].bits, &out[v]);
        r->from[v] = find_variant(r->pack, out[v].name);
        if (r->from[v] >= 0)
            out[v] = *moe_pack_variant_at(r->pack, (uint32_t)r->from[v]);
    }
    return MOE_OK;
}

/* What will be read, for progress: an expert once per variant. */
static void count_total(struct converter *c, const struct repack *r)
{
    for (uint32_t i = 0; i < moe_pack_n_tensors(r->pack); i++)
        c->total += moe_pack_tensor_at(r->pack, i)->extent.raw_bytes;
    for (uint32_t layer = 0; layer < moe_pack_n_layers(r->pack); layer++)
        for (uint32_t e = 0; e < moe_pack_n_experts(r->pack); e++)
            for (int v = 0; v < c->n_variants; v++) {
                const struct moe_expert_extent *x =
                    r->from[v] >= 0 ? moe_pack_expert(r->pack, layer, e, (uint32_t)r->from[v])
                                    : best_of(r->pack, layer, e);
                for (uint32_t s = 0; x && s < MOE_PACK_MAX_SEGMENTS; s++)
                    c->total += x->segments[s].raw_bytes;
            }
}

/* The pack's own provenance with what this conversion changes. */
static int put_provenance(struct converter *c, const struct repack *r, struct moe_err *err)
{
    uint64_t n;
    const uint8_t *old = moe_pack_section(r->pack, MOE_PACK_PROVENANCE, &n);
    json_t *json = moe_json_parse(c->source_path, old, n, NULL);
    if (!json_is_object(json)) { /* some other tool's; the pack is sound without */
        json_decref(json);
        json = json_pack("{s:s, s:s}", "tool", "moe-quantize", "source", "?");
    }
    bool requantized = c->options->dense_bits != 0;
    for (int v = 0; v < c->n_variants; v++)
        requantized |= r->from[v] < 0;
    json_object_set_new(json, "version", json_string(MOE_VERSION));
    json_object_set_new(json, "experts", convert_variant_names(c->described, c->n_variants));
    if (c->options->dense_bits)
        json_object_set_new(json, "dense", json_integer(c->options->dense_bits));
    if (requantized)
        json_object_set_new(json, "requantized",
                            json_pack("{s:s, s:i}", "method", c->options->method->name, "group",
                                      (int)c->options->group));
    return convert_put_provenance(c, json, err);
}

static int copy_sections(struct converter *c, const struct repack *r, struct moe_err *err)
{
    static const enum moe_pack_section ids[] = {MOE_PACK_MODEL, MOE_PACK_TOKENIZER, MOE_PACK_CHAT};
    int status = MOE_OK;
    for (size_t i = 0; i < sizeof ids / sizeof ids[0] && status == MOE_OK; i++) {
        uint64_t n;
        const uint8_t *data = moe_pack_section(r->pack, ids[i], &n);
        status = moe_pack_put_section(c->writer, ids[i], data, n, err);
    }
    if (status == MOE_OK)
        status = put_provenance(c, r, err);
    return status;
}

int moe_convert_pack(const char *pack_path, const char *out_path,
                     const struct moe_convert_options *options, struct moe_convert_report *report,
                     struct moe_err *err)
{
    struct converter c;
    struct repack r = {0};
    int status = convert_start(&c, options, false, err);
    *report = (struct moe_convert_report){0};
    c.report = report;
    c.source_path = pack_path;
    c.out_path = out_path;
    if (status == MOE_OK)
        status = convert_check_output(&c, err);
    if (status == MOE_OK)
        status = moe_pack_open(&r.pack, pack_path, err);
    if (status == MOE_OK)
        status = choose_variants(&c, &r, err);
    if (status == MOE_OK) {
        count_total(&c, &r);
        status = moe_pack_create(&c.writer, out_path, moe_pack_n_layers(r.pack),
                                 moe_pack_n_experts(r.pack), c.described, (uint32_t)c.n_variants,
                                 moe_pack_source_fingerprint(r.pack), options->zstd_level, err);
    }
    if (status == MOE_OK)
        status = copy_sections(&c, &r, err);
    for (uint32_t i = 0; status == MOE_OK && i < moe_pack_n_tensors(r.pack); i++) {
        status = convert_check_stop(&c, err);
        if (status == MOE_OK)
            status = put_tensor(&c, &r, moe_pack_tensor_at(r.pack, i), err);
        moe_progress_report(options->progress, "packing", c.done, c.total);
    }
    if (status == MOE_OK)
        status = put_experts(&c, &r, err);
    if (status == MOE_OK)
        status = convert_commit(&c, err);
    moe_pack_abort(c.writer);
    convert_release(&c);
    moe_pack_close(r.pack);
    return status;
}
