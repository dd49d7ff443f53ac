#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/par.h"
#include "convert/convert_repack.h"
#include "fmt/json_scan.h"
#include "model/config.h"
#include "model/tensor_roles.h"
#include "pack/pack_bits.h"

/* ---- Dense tensors ---- */

/* Whether the tensor is of a layer that is left out. */
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
        char name[MOE_PACK_NAME_BYTES];
        moe_tensor_pack_name(out->role, out->layer, name);
        if (strcmp(name, t->name) == 0)
            return moe_tensor_spec(out->role)->kind == MOE_KIND_DENSE;
    }
    return false;
}

/* The rows of a dense matrix, and its layout at --dense bits. */
static int dense_source(struct converter *c, const char *name, const struct moe_mat *mat,
                        struct row_source *source, struct moe_layout *layout, struct moe_err *err)
{
    int status = repack_source(c, name, mat, c->options->dense_bits, source, err);
    if (status == MOE_OK)
        *layout = convert_layout(c, c->options->dense_bits, source->float16_kind);
    return status;
}

int moe_convert_matrix(const struct moe_mat *mat, const char *path,
                       const struct moe_matrix_name *name,
                       const struct moe_convert_options *options, uint8_t *out,
                       struct moe_layout *layout, struct moe_err *err)
{
    char text[MOE_PACK_NAME_BYTES];
    moe_tensor_pack_name(name->role, name->layer, text);
    struct moe_convert_report report = {0};
    struct converter c = {
        .report = &report, .source_path = path, .out_path = path, .n_layers = UINT32_MAX};
    struct row_source source;
    int status = convert_start(&c, options, false, err);
    if (status == MOE_OK)
        status = dense_source(&c, text, mat, &source, layout, err);
    if (status == MOE_OK)
        status = convert_find_inputs(&c, name, options->dense_bits, &source, err);
    struct row_target target = {.layout = *layout, .out = out};
    if (status == MOE_OK)
        status = convert_rows(&c, &source, &target, 1, err);
    convert_release(&c);
    return status;
}

static int encode_tensor(struct converter *c, const struct moe_pack_tensor *t,
                         const struct moe_matrix_name *matrix, const uint8_t *raw,
                         struct moe_err *err)
{
    struct moe_mat mat = {raw, t->layout, t->rows, t->cols};
    struct row_source source;
    struct moe_pack_tensor entry = *t;
    int status = dense_source(c, t->name, &mat, &source, &entry.layout, err);
    if (status == MOE_OK)
        status = convert_find_inputs(c, matrix, c->options->dense_bits, &source, err);
    return status == MOE_OK ? convert_put_matrix(c, &source, &entry, err) : status;
}

/* Whether the tensor stays as it is: it has the bits asked for, or none are. *matrix says which it
 * is. */
static bool is_copied(const struct converter *c, const struct moe_pack_tensor *t,
                      struct moe_matrix_name *matrix)
{
    int bits = c->options->dense_bits;
    return !follows_dense_bits(t, matrix) || bits == 0 || bits == moe_layout_bits(t->layout.kind);
}

static int put_tensor(struct converter *c, const struct repack *r, const struct moe_pack_tensor *t,
                      struct moe_err *err)
{
    char what[MOE_PACK_NAME_BYTES + 16];
    snprintf(what, sizeof what, "tensor '%s'", t->name);
    int bits = c->options->dense_bits, has = moe_layout_bits(t->layout.kind);
    struct moe_matrix_name matrix = {0};
    bool copy = is_copied(c, t, &matrix);
    if (!copy && bits > has)
        return repack_refuse_more_bits(c, what, has, bits, err);
    uint8_t *raw = moe_alloc(t->extent.raw_bytes, 1, err);
    if (!raw)
        return MOE_ERR_MEMORY;
    int status = moe_pack_read(r->pack, &t->extent, raw, what, err);
    if (status == MOE_OK && copy) {
        c->done += t->extent.raw_bytes;
        c->report->source_bytes += t->extent.raw_bytes;
        status = moe_pack_put_tensor(c->writer, t, raw, err);
    } else if (status == MOE_OK) {
        status = encode_tensor(c, t, &matrix, raw, err);
    }
    c->report->dense_weights += (uint64_t)t->rows * t->cols;
    free(raw);
    return status;
}

/* ---- The conversion ---- */

/* Adds up what will be read, for progress: an expert once per variant. */
static void count_total(struct converter *c, const struct repack *r)
{
    for (uint32_t i = 0; i < moe_pack_n_tensors(r->pack); i++)
        if (!is_left_out(c, moe_pack_tensor_at(r->pack, i)))
            c->total += moe_pack_tensor_at(r->pack, i)->extent.raw_bytes;
    for (uint32_t layer = 0; layer < moe_pack_n_layers(r->pack); layer++)
        for (uint32_t e = 0; e < moe_pack_n_experts(r->pack); e++)
            for (int v = 0; v < c->n_variants; v++) {
                const struct moe_expert_extent *x = repack_origin(c, r, layer, e, v).extent;
                for (uint32_t s = 0; x && s < MOE_PACK_MAX_SEGMENTS; s++)
                    c->total += x->segments[s].raw_bytes;
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

/* Whether a member of the old pack stays as it is. */
static bool stays(const struct converter *c, bool requantized, enum member member)
{
    switch (member) {
    case DENSE:
        return c->options->dense_bits == 0;
    case REQUANTIZED:
        return !requantized;
    case INPUTS:
        return !c->options->inputs;
    case MAP: /* a map's variant without a map is copied from the pack */
        return convert_writes_map(c) && !c->options->map;
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
        moe_emit_i64(e, "dense", c->options->dense_bits);
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

/* The old object's members, each where it was; `done`: those that this conversion set there. */
static int emit_old(const struct converter *c, const void *old, uint64_t n, bool requantized,
                    struct moe_emit *e, bool done[N_MEMBERS], struct moe_err *err)
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
        if (member == N_MEMBERS || stays(c, requantized, member)) {
            moe_emit_json(e, name, value, bytes);
        } else if (!done[member]) {
            emit_member(c, member, e);
            done[member] = true;
        }
    }
    moe_buf_release(&key);
    return moe_json_scan_end(&s);
}

/* The pack's own provenance with what this conversion changes. */
static int put_provenance(struct converter *c, const struct repack *r, struct moe_err *err)
{
    uint64_t n;
    const uint8_t *old = moe_pack_section(r->pack, MOE_PACK_PROVENANCE, &n);
    bool requantized = r->encodes, done[N_MEMBERS] = {false};
    struct moe_buf text = {0};
    struct moe_emit e;
    int status = MOE_OK;
    for (uint32_t i = 0; i < moe_pack_n_tensors(r->pack); i++) {
        struct moe_matrix_name matrix;
        requantized |= !is_left_out(c, moe_pack_tensor_at(r->pack, i)) &&
                       !is_copied(c, moe_pack_tensor_at(r->pack, i), &matrix);
    }
    moe_emit_begin_json(&e, &text, MOE_EMIT_COMPACT);
    if (n > 0 && old[0] == '{' && moe_json_is_sound(old, n)) {
        status = emit_old(c, old, n, requantized, &e, done, err);
    } else { /* another tool's; the pack is sound without it */
        moe_emit_text(&e, "tool", "moe-quantize");
        moe_emit_text(&e, "source", "?");
    }
    for (enum member m = 0; m < N_MEMBERS; m++)
        if (!done[m] && !stays(c, requantized, m))
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

static int copy_sections(struct converter *c, const struct repack *r, struct moe_err *err)
{
    static const enum moe_pack_section ids[] = {MOE_PACK_TOKENIZER, MOE_PACK_CHAT,
                                                MOE_PACK_SAMPLING};
    int status = put_model(c, r, err);
    for (size_t i = 0; i < sizeof ids / sizeof ids[0] && status == MOE_OK; i++) {
        uint64_t n;
        const uint8_t *data = moe_pack_section(r->pack, ids[i], &n);
        status = moe_pack_put_section(c->writer, ids[i], data, n, err);
    }
    return status;
}

int moe_convert_pack(const char *pack_path, const char *out_path,
                     const struct moe_convert_options *options, struct moe_convert_report *report,
                     struct moe_err *err)
{
    struct converter c = {.report = report, .source_path = pack_path, .out_path = out_path};
    struct repack r = {0};
    struct moe_convert_options wanted = *options;
    int status = moe_pack_open(&r.pack, pack_path, err);
    if (status == MOE_OK) {
        c.n_layers = moe_pack_n_layers(r.pack);
        if (!options->no_ahead)
            moe_pack_take_ahead(r.pack);
    }
    for (uint32_t i = 0; status == MOE_OK && i < moe_pack_n_classes(r.pack); i++)
        c.no_gate |= !moe_class_has_gate(moe_pack_class_at(r.pack, i));
    if (status == MOE_OK)
        status = repack_take_map(&r, &wanted, err);
    if (status == MOE_OK)
        status = convert_start(&c, &wanted, false, err);
    *report = (struct moe_convert_report){0};
    if (status == MOE_OK)
        status = convert_check_output(&c, err);
    if (status == MOE_OK)
        status = repack_check_map(&c, &r, err);
    if (status == MOE_OK)
        status = repack_choose(&c, &r, err);
    if (status == MOE_OK) {
        count_total(&c, &r);
        status = moe_pack_create(&c.writer, out_path, c.n_layers, moe_pack_n_experts(r.pack),
                                 c.described, (uint32_t)c.n_variants,
                                 moe_pack_source_fingerprint(r.pack), options->zstd_level, err);
        if (status == MOE_OK)
            status = moe_pack_put_ahead(c.writer, moe_pack_n_layers(r.pack) - c.n_layers, err);
    }
    if (status == MOE_OK)
        status = copy_sections(&c, &r, err);
    for (uint32_t i = 0; status == MOE_OK && i < moe_pack_n_tensors(r.pack); i++) {
        status = convert_check_stop(&c, err);
        if (status == MOE_OK && !is_left_out(&c, moe_pack_tensor_at(r.pack, i)))
            status = put_tensor(&c, &r, moe_pack_tensor_at(r.pack, i), err);
        moe_progress_report(options->progress, "packing", c.done, c.total);
    }
    if (status == MOE_OK)
        status = repack_put_experts(&c, &r, err);
    if (status == MOE_OK)
        status = put_provenance(&c, &r, err);
    if (status == MOE_OK)
        status = convert_commit(&c, err);
    moe_pack_abort(c.writer);
    convert_release(&c);
    free(r.own.bits);
    moe_pack_close(r.pack);
    return status;
}
