/* Conversion of a checkpoint to a pack: every tensor found, then written. */
#define _POSIX_C_SOURCE 200809L /* posix_fadvise */
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"
#include "fmt/checkpoint.h"
#include "fmt/gguf.h"
#include "model/family.h"
#include "model/read.h"
#include "model/routes.h"
#include "model/sampling.h"
#include "pack/convert_internal.h"
#include "pack/pack_internal.h"
#include "prompt/chat.h"
#include "text/vocab.h"

/*
 * Converts the weights of a checkpoint, one matrix or one expert at a time.
 */
/* A checkpoint being converted. */
struct checkpoint_source {
    struct moe_checkpoint *checkpoint;
    const struct moe_gguf *gguf; /* its metadata; NULL for a directory */
    const struct moe_family *family;
    struct moe_config config;
    struct convert_source from; /* where the model's tensors lie in the checkpoint */
    struct stacked_part stacked[MOE_E_N_PARTS];
    bool *used; /* per tensor of the checkpoint */
    /* for each variant: all expert matrices can keep their codes */
    bool carried[CONVERT_MAX_VARIANTS];
    bool quantized;                  /* some matrix is */
    struct moe_tokenizer *tokenizer; /* NULL once it was taken */
    struct moe_expert_map own; /* the bits that keep the precision of each expert; owns them */
};

/* ---- First pass: everything is there, and how precise it is ---- */

static void mark_used(struct converter *c, struct checkpoint_source *s,
                      const struct row_source *source)
{
    s->used[moe_checkpoint_index(s->checkpoint, source->tensor)] = true;
    for (uint32_t i = 1; i < source->n_shards; i++)
        s->used[moe_checkpoint_index(s->checkpoint, convert_shard(source, i))] = true;
    if (source->times)
        s->used[moe_checkpoint_index(s->checkpoint, source->times)] = true;
    c->total += source->bytes;
}

/* Refuses tensors without a place in the model: it would compute something that we do not. */
static int check_unused(const struct converter *c, const struct checkpoint_source *s,
                        struct moe_err *err)
{
    int status = MOE_OK;
    for (uint64_t i = 0; i < moe_checkpoint_n_tensors(s->checkpoint) && status == MOE_OK; i++) {
        const struct moe_tensor *tensor = moe_checkpoint_at(s->checkpoint, i);
        const char *name = tensor->name;
        /* A model without shared experts may have them with width 0. */
        bool known = s->used[i] || tensor->n_items == 0 || convert_may_ignore(&s->from, name);
        status = known ? MOE_OK : convert_check_copy(&s->from, tensor, &known, err);
        c->report->n_beyond +=
            !s->used[i] && convert_is_beyond(&s->from, name) && !convert_is_shared(&s->from, name);
        c->report->n_visual += convert_sees_images(&s->from, name);
        if (status == MOE_OK && !known)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: tensor '%.200s' has no place in the %s model that %s describes",
                            moe_checkpoint_dir(s->checkpoint), name, s->family->name,
                            s->gguf ? "its metadata" : "config.json");
    }
    return status;
}

/* Calls fn for every dense tensor the model has, in the order of the pack. */
static int walk_dense(struct converter *c, struct checkpoint_source *s,
                      int (*fn)(struct converter *c, struct checkpoint_source *s,
                                enum moe_tensor_role role, uint32_t layer, struct moe_err *err),
                      struct moe_err *err)
{
    int status = MOE_OK;
    for (int per_layer = 0; per_layer < 2; per_layer++)
        for (uint32_t layer = 0; layer < (per_layer ? moe_config_all_layers(&s->config) : 1);
             layer++)
            for (int role = 0; role < MOE_T_N_ROLES; role++) {
                uint32_t rows, cols;
                if (moe_tensor_spec(role)->per_layer != per_layer ||
                    !moe_tensor_shape(&s->config, role, layer, &rows, &cols))
                    continue;
                c->ahead = layer >= s->config.n_layers;
                status = fn(c, s, role, layer, err);
                if (status != MOE_OK)
                    return status;
            }
    return MOE_OK;
}

/* Calls fn for every expert, layer by layer. */
static int walk_experts(struct converter *c, struct checkpoint_source *s,
                        int (*fn)(struct converter *c, struct checkpoint_source *s, uint32_t layer,
                                  uint32_t expert, struct moe_err *err),
                        struct moe_err *err)
{
    int status = MOE_OK;
    for (uint32_t layer = 0; layer < moe_config_all_layers(&s->config); layer++)
        for (uint32_t e = 0; s->config.layers[layer].moe && moe_config_owns(&s->config, layer) &&
                             e < s->config.n_experts;
             e++) {
            c->ahead = layer >= s->config.n_layers;
            status = fn(c, s, layer, e, err);
            if (status != MOE_OK)
                return status;
        }
    return MOE_OK;
}

static int see_dense(struct converter *c, struct checkpoint_source *s, enum moe_tensor_role role,
                     uint32_t layer, struct moe_err *err)
{
    struct row_source source;
    MOE_TRY(convert_find_dense(&s->from, role, layer, &source, err));
    mark_used(c, s, &source);
    if (moe_tensor_spec(role)->kind == MOE_KIND_DENSE)
        s->quantized |= moe_dtype_block(source.tensor->dtype)->items > 1;
    c->quantized |= source.quantized;
    return MOE_OK;
}

/* The fewest bits that hold the values; for blocks that lie across rows 8 or, if they are to be
 * exact, 16; of scaled kinds 32. */
static int needed_bits(const struct row_source *source, bool exact)
{
    const struct moe_ggml_type *type = moe_dtype_block(source->tensor->dtype);
    if (type->items == 1 || source->block)
        return moe_ggml_bits(type);
    if (moe_kind_is_scaled(type->kind))
        return 32;
    return exact ? 16 : 8;
}

static int see_expert(struct converter *c, struct checkpoint_source *s, uint32_t layer,
                      uint32_t expert, struct moe_err *err)
{
    struct moe_bits *own = &s->own.bits[(uint64_t)layer * s->config.n_experts + expert];
    for (int part = 0; part < MOE_E_N_PARTS; part++) {
        struct row_source source;
        uint32_t rows, cols;
        if (!moe_expert_part_shape(&s->config, part, &rows, &cols))
            continue;
        MOE_TRY(convert_find_expert(&s->from, layer, expert, part, &source, err));
        mark_used(c, s, &source);
        if (moe_expert_part_is_bias(part))
            continue;
        const struct moe_ggml_type *type = moe_dtype_block(source.tensor->dtype);
        int *bits = moe_expert_part_is_down(part) ? &own->down : &own->gate_up;
        int needed = needed_bits(&source, c->options->exact_experts);
        *bits = needed > *bits ? needed : *bits;
        s->quantized |= type->items > 1;
        c->quantized |= source.quantized;
    }
    return MOE_OK;
}

/* The one variant that keeps every expert's precision. */
static void choose_own_variant(const struct checkpoint_source *s,
                               struct moe_convert_options *options)
{
    const struct moe_bits *first = NULL;
    bool same = true;
    for (uint64_t i = 0; i < (uint64_t)s->own.n_layers * s->own.n_experts; i++) {
        const struct moe_bits *bits = &s->own.bits[i];
        if (bits->down == 0)
            continue;
        first = first ? first : bits;
        same = same && moe_bits_equal(*bits, *first);
    }
    if (!first)
        return; /* no experts */
    options->n_experts = 1;
    options->experts[0] = same ? *first : (struct moe_bits){0};
    options->map = same ? NULL : &s->own;
}

/* Finds every tensor, and replaces own_experts and own_dense by what they mean for this source. */
static int survey_source(struct converter *c, struct checkpoint_source *s,
                         struct moe_convert_options *options, struct moe_err *err)
{
    s->own = (struct moe_expert_map){.name = moe_checkpoint_dir(s->checkpoint),
                                     .n_layers = moe_config_all_layers(&s->config),
                                     .n_experts = s->config.n_experts};
    s->own.bits = moe_alloc((uint64_t)s->own.n_layers * s->own.n_experts, sizeof *s->own.bits, err);
    if (!s->own.bits)
        return MOE_ERR_MEMORY;
    MOE_TRY(walk_dense(c, s, see_dense, err));
    MOE_TRY(walk_experts(c, s, see_expert, err));
    c->report->kept_experts = (s->quantized || c->in_place) && options->own_experts;
    c->report->kept_dense = (s->quantized || c->in_place) && options->own_dense;
    if (c->report->kept_experts)
        choose_own_variant(s, options);
    return MOE_OK;
}

/* ---- What is carried over ---- */

static int check_carried(struct converter *c, struct checkpoint_source *s, uint32_t layer,
                         uint32_t expert, struct moe_err *err)
{
    for (int part = 0; part < MOE_E_N_PARTS; part++) {
        struct row_source source;
        uint32_t rows, cols;
        if (moe_expert_part_is_bias(part) || !moe_expert_part_shape(&s->config, part, &rows, &cols))
            continue;
        MOE_TRY(convert_find_expert(&s->from, layer, expert, part, &source, err));
        for (int v = 0; v < c->n_variants; v++) {
            int bits = convert_part_bits(convert_bits(c, v, layer, expert), part);
            if (convert_own_layout(&source, bits).kind == MOE_LAYOUT_NONE)
                s->carried[v] = false;
        }
    }
    return MOE_OK;
}

/* ---- Weights: every matrix of every layer ---- */

static bool is_quantized(enum moe_dtype dtype)
{
    return moe_dtype_block(dtype)->items > 1;
}

/* The bits that a dense matrix needs to keep its precision: 16 are enough for most of those that
 * checkpoints have in F32. */
static int own_bits(struct converter *c, struct row_source *source, int *bits, struct moe_err *err)
{
    bool exact = true;
    *bits = needed_bits(source, c->options->exact_dense);
    if (*bits != 32 || c->in_place)
        return MOE_OK;
    MOE_TRY(convert_choose_float16(c, source, &exact, err));
    *bits = exact ? 16 : 32;
    return MOE_OK;
}

/* In place: whether the layout holds what the source does, value for value. */
static int check_kept(const struct converter *c, const struct row_source *source,
                      struct moe_layout layout, struct moe_err *err)
{
    const struct moe_tensor *t = source->tensor;
    /* Values that are products of codes and scales come as F32. */
    bool is_product = t->dtype == MOE_DTYPE_F32 && t->bytes != 4 * t->n_items;
    bool kept = convert_carries(source, layout) || layout.kind == MOE_LAYOUT_F32 ||
                (layout.kind == MOE_LAYOUT_F16 && t->dtype == MOE_DTYPE_F16) ||
                (layout.kind == MOE_LAYOUT_BF16 && t->dtype == MOE_DTYPE_BF16);
    if (!c->in_place || (kept && !is_product && !source->n_shards))
        return MOE_OK;
    return moe_fail(err, MOE_ERR_UNSUPPORTED,
                    "%s: tensor '%s' of %s cannot be used as it lies in the file; make a pack with "
                    "'moe-quantize %s'",
                    c->source_path, t->name, is_product ? "codes and scales" : source->type,
                    c->source_path);
}

/* Refuses values that are not finite: vectors stay f32 and pass no encoder that would see it. */
static int check_finite(const struct converter *c, const struct row_source *source,
                        const float *values, struct moe_err *err)
{
    for (uint32_t i = 0; i < source->rows; i++)
        if (!isfinite(values[i]))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: tensor '%s': the weight at %" PRIu64
                            " is %s (damaged checkpoint?)",
                            c->source_path, source->tensor->name, convert_source_line(source, i),
                            isnan(values[i]) ? "not a number" : "infinite");
    return MOE_OK;
}

/* Reads whole numbers; those that make sense, of experts and tokens, are small: f32 holds them. */
static int read_numbers(const struct row_source *source, float *out, struct moe_err *err)
{
    int64_t *numbers = moe_alloc(source->rows, sizeof *numbers, err);
    if (!numbers)
        return MOE_ERR_MEMORY;
    int status = moe_checkpoint_read_numbers(source->checkpoint, source->tensor, 0, source->rows,
                                             numbers, err);
    for (uint32_t i = 0; status == MOE_OK && i < source->rows; i++)
        out[i] = (float)numbers[i];
    free(numbers);
    return status;
}

/* Multiplies values by those of another tensor. */
static int multiply_values(const struct row_source *source, float *values, struct moe_err *err)
{
    float *factors = moe_alloc(source->rows, sizeof *factors, err);
    if (!factors)
        return MOE_ERR_MEMORY;
    int status =
        moe_checkpoint_read(source->checkpoint, source->times, 0, source->rows, factors, err);
    for (uint32_t i = 0; status == MOE_OK && i < source->rows; i++)
        values[i] *= factors[i];
    free(factors);
    return status;
}

/* Values as the model computes with them. */
static int change_values(const struct converter *c, const struct row_source *source, float *values,
                         struct moe_err *err)
{
    for (uint32_t i = 0; source->stored == MOE_STORED_LESS_ONE && i < source->rows; i++)
        values[i] += 1;
    for (uint32_t i = 0; source->stored == MOE_STORED_LESS_PLACE && i < source->rows; i++)
        values[i] += (float)i;
    for (uint32_t i = 0; source->stored >= MOE_STORED_GATE && i < source->rows; i++) {
        double b = 1 / (1 + exp(-(double)values[i] / 0.3)), rest = fmax((1 - b) * (1 + b), 1e-3);
        values[i] = (float)(source->stored == MOE_STORED_GATE ? b : sqrt(rest));
    }
    bool negative = source->stored == MOE_STORED_NEGATIVE_EXP,
         exponential = negative || source->stored == MOE_STORED_EXP;
    for (uint32_t i = 0; exponential && i < source->rows; i++) {
        double value = negative ? -(double)values[i] : (double)values[i];
        if (!(value > 0))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: tensor '%s': a value is %g, only %s ones make sense",
                            c->source_path, source->tensor->name, (double)values[i],
                            negative ? "negative" : "positive");
        values[i] = (float)log(value);
    }
    return MOE_OK;
}

/* Reads a vector: plain f32, not panels. `out` has room for its rows. role: its place in a model of
 * this description. */
static int read_vector(struct converter *c, const struct row_source *source,
                       const struct moe_config *config, enum moe_tensor_role role, float *out,
                       struct moe_err *err)
{
    MOE_TRY(source->numbers ? read_numbers(source, out, err)
                            : convert_read_rows(source, 0, source->rows, out, err));
    if (source->times)
        MOE_TRY(multiply_values(source, out, err));
    MOE_TRY(check_finite(c, source, out, err));
    MOE_TRY(change_values(c, source, out, err));
    MOE_TRY(moe_routes_check_numbers(config, role, out, c->source_path, source->tensor->name, err));
    if (!c->ahead)
        c->fingerprint = moe_hash64_chain(c->fingerprint, out, 4 * (uint64_t)source->rows);
    c->done += source->bytes;
    c->report->source_bytes += source->bytes;
    return MOE_OK;
}

static int put_vector(struct converter *c, const struct row_source *source,
                      const struct moe_config *config, enum moe_tensor_role role,
                      struct moe_pack_tensor *entry, struct moe_err *err)
{
    entry->is_vector = true;
    entry->layout.kind = MOE_LAYOUT_F32;
    if (c->in_place)
        return moe_pack_put_tensor(c->writer, entry, NULL, err);
    float *values = moe_alloc(source->rows, sizeof *values, err);
    if (!values)
        return MOE_ERR_MEMORY;
    int status = read_vector(c, source, config, role, values, err);
    if (status == MOE_OK)
        status = moe_pack_put_tensor(c->writer, entry, values, err);
    free(values);
    return status;
}

static int put_dense(struct converter *c, struct checkpoint_source *s, enum moe_tensor_role role,
                     uint32_t layer, struct moe_err *err)
{
    struct row_source source;
    enum moe_tensor_kind kind = moe_tensor_spec(role)->kind;
    MOE_TRY(convert_find_dense(&s->from, role, layer, &source, err));
    struct moe_pack_tensor entry = {.rows = source.rows, .cols = source.cols};
    moe_tensor_pack_name(role, layer, entry.name);
    c->report->dense_weights += (uint64_t)source.rows * source.cols;
    if (kind == MOE_KIND_VECTOR)
        return put_vector(c, &source, &s->config, role, &entry, err);
    int bits = c->options->dense_bits;
    if (kind == MOE_KIND_ROUTER)
        bits = source.is_f32 || is_quantized(source.tensor->dtype) ? 32 : 16;
    else if (c->report->kept_dense)
        MOE_TRY(own_bits(c, &source, &bits, err));
    else if (bits == 16 && source.is_f32)
        MOE_TRY(convert_choose_float16(c, &source, NULL, err));
    entry.layout = convert_source_layout(c, &source, bits);
    MOE_TRY(check_kept(c, &source, entry.layout, err));
    return convert_put_matrix(c, &source, &entry, err);
}

/* One expert being converted: its parts, in the order of the class's matrices. */
struct expert {
    int n_parts;
    int part[MOE_E_N_PARTS];
    struct row_source sources[MOE_E_N_PARTS];
    struct moe_bits bits[CONVERT_MAX_VARIANTS];
    struct moe_expert_class classes[CONVERT_MAX_VARIANTS];
    uint8_t *blocks[CONVERT_MAX_VARIANTS];
    uint8_t *segments[CONVERT_MAX_VARIANTS][MOE_PACK_MAX_SEGMENTS];
};

static bool wants_sixteen(const struct converter *c, const struct expert *e, int part)
{
    bool sixteen = false;
    for (int v = 0; v < c->n_variants; v++)
        sixteen |= convert_part_bits(e->bits[v], part) == 16;
    return sixteen;
}

static int find_parts(struct converter *c, struct checkpoint_source *s, uint32_t layer,
                      uint32_t number, struct expert *e, struct moe_err *err)
{
    for (int part = 0; part < MOE_E_N_PARTS; part++) {
        uint32_t rows, cols;
        if (!moe_expert_part_shape(&s->config, part, &rows, &cols))
            continue;
        int i = e->n_parts++;
        bool sixteen = wants_sixteen(c, e, part);
        struct row_source *source = &e->sources[i];
        e->part[i] = part;
        MOE_TRY(convert_find_expert(&s->from, layer, number, part, source, err));
        if (sixteen && source->is_f32)
            MOE_TRY(convert_choose_float16(c, source, NULL, err));
        c->report->expert_weights += (uint64_t)source->rows * source->cols;
    }
    return MOE_OK;
}

static void make_class(const struct converter *c, const struct expert *e, struct moe_bits bits,
                       struct moe_expert_class *out)
{
    *out = (struct moe_expert_class){.n_segments = 2, .n_matrices = (uint32_t)e->n_parts};
    for (int i = 0; i < e->n_parts; i++) {
        struct moe_class_matrix *m = &out->matrices[i];
        int part = e->part[i], part_width = convert_part_bits(bits, part);
        m->role = (uint16_t)(MOE_ROLE_GATE + part);
        m->segment = moe_expert_part_is_down(part);
        m->layout = convert_source_layout(c, &e->sources[i], part_width ? part_width : 32);
        m->rows = e->sources[i].rows;
        m->cols = e->sources[i].cols;
    }
    convert_place_matrices(out);
}

/* Reads part i once and encodes it for all variants. */
static int encode_part(struct converter *c, struct expert *e, int i, struct moe_err *err)
{
    struct row_target targets[CONVERT_MAX_VARIANTS];
    for (int v = 0; v < c->n_variants; v++) {
        const struct moe_class_matrix *m = &e->classes[v].matrices[i];
        targets[v] = (struct row_target){m->layout, e->segments[v][m->segment] + m->offset,
                                         &c->report->error[c->variants[v].option],
                                         convert_part_bits(e->bits[v], e->part[i])};
    }
    if (!moe_expert_part_is_bias(e->part[i]))
        return convert_rows(c, &e->sources[i], targets, c->n_variants, err);
    MOE_TRY(read_vector(c, &e->sources[i], NULL, MOE_T_N_ROLES, (float *)targets[0].out, err));
    for (int v = 1; v < c->n_variants; v++)
        memcpy(targets[v].out, targets[0].out, 4 * (uint64_t)e->sources[i].rows);
    return MOE_OK;
}

static int put_expert(struct converter *c, struct checkpoint_source *s, uint32_t layer,
                      uint32_t number, struct moe_err *err)
{
    struct expert e = {0};
    for (int v = 0; v < c->n_variants; v++)
        e.bits[v] = convert_bits(c, v, layer, number);
    int status;
    MOE_STEP(find_parts(c, s, layer, number, &e, err));
    for (int v = 0; v < c->n_variants; v++) {
        make_class(c, &e, e.bits[v], &e.classes[v]);
        for (int i = 0; i < e.n_parts; i++) {
            if (!moe_expert_part_is_bias(e.part[i]))
                MOE_STEP(check_kept(c, &e.sources[i], e.classes[v].matrices[i].layout, err));
        }
        if (!c->in_place)
            MOE_STEP(convert_alloc_segments(&e.classes[v], &e.blocks[v], e.segments[v], err));
    }
    for (int i = 0; i < e.n_parts && !c->in_place; i++)
        MOE_STEP(encode_part(c, &e, i, err));
    for (int v = 0; v < c->n_variants; v++) {
        uint32_t index;
        MOE_STEP(moe_pack_put_class(c->writer, &e.classes[v], &index, err));
        MOE_STEP(moe_pack_put_expert(c->writer, layer, number, (uint32_t)v, index,
                                     (const void *const *)e.segments[v], err));
    }
out:
    for (int v = 0; v < c->n_variants; v++)
        free(e.blocks[v]);
    return status;
}

/* ---- Sections ---- */

static int put_chat_template(struct converter *c, const struct checkpoint_source *s,
                             struct moe_err *err)
{
    struct moe_buf text = {0};
    int status = MOE_OK;
    if (s->gguf)
        MOE_STEP(moe_chat_read_gguf(s->gguf, &text, err));
    else
        MOE_STEP(moe_chat_read_template(moe_checkpoint_dir(s->checkpoint), &text, err));
    if (text.failed)
        MOE_STEP(moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", c->out_path));
    MOE_STEP(moe_pack_put_section(c->writer, MOE_PACK_CHAT, text.data, text.size, err));
out:
    moe_buf_release(&text);
    return status;
}

static int put_sampling(struct converter *c, const struct checkpoint_source *s, struct moe_err *err)
{
    struct moe_sampler_options published;
    struct moe_buf text = {0};
    int status;
    MOE_STEP(s->gguf ? moe_sampling_read_gguf(&published, s->gguf, err)
                     : moe_sampling_read_hf(&published, moe_checkpoint_dir(s->checkpoint), err));
    MOE_STEP(moe_sampling_write(&published, &text, err));
    MOE_STEP(moe_pack_put_section(c->writer, MOE_PACK_SAMPLING, text.data, text.size, err));
out:
    moe_buf_release(&text);
    return status;
}

static int put_provenance(struct converter *c, const char *dir, struct moe_err *err)
{
    char name[MOE_SOURCE_NAME_BYTES];
    moe_convert_source_name(dir, name);
    bool printable = moe_utf8_valid((const uint8_t *)name, strlen(name));
    struct moe_buf text = {0};
    struct moe_emit e;
    moe_emit_begin_json(&e, &text, MOE_EMIT_COMPACT);
    if (c->in_place) { /* nothing that a copy under another name would have otherwise */
        moe_emit_bool(&e, "in_place", true);
        int ended = convert_put_provenance(c, &e, err);
        moe_buf_release(&text);
        return ended;
    }
    moe_emit_text(&e, "tool", "moe-quantize");
    moe_emit_text(&e, "version", MOE_VERSION);
    moe_emit_text(&e, "source", printable ? name : "?");
    moe_emit_text(&e, "method", c->options->method->name);
    moe_emit_u64(&e, "group", c->options->group);
    if (c->report->kept_dense)
        moe_emit_text(&e, "dense", "own");
    else
        convert_emit_dense(c, &e);
    convert_emit_experts(c, &e);
    convert_emit_map(c, &e);
    int status = convert_put_provenance(c, &e, err);
    moe_buf_release(&text);
    return status;
}

/* Hashes the description without layers that draft: a model counts as the same with and without
 * them. */
static int hash_description(struct converter *c, struct checkpoint_source *s, struct moe_err *err)
{
    uint32_t n_ahead = s->config.n_ahead;
    struct moe_buf plain = {0};
    s->config.n_ahead = 0;
    moe_config_write(&s->config, &plain);
    s->config.n_ahead = n_ahead;
    c->fingerprint = moe_hash64_chain(c->fingerprint, plain.data, plain.size);
    int status =
        plain.failed ? moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", c->out_path) : MOE_OK;
    moe_buf_release(&plain);
    return status;
}

static int put_sections(struct converter *c, struct checkpoint_source *s,
                        const struct moe_buf *model, const struct moe_buf *tokenizer,
                        struct moe_err *err)
{
    const char *dir = moe_checkpoint_dir(s->checkpoint);
    MOE_TRY(hash_description(c, s, err));
    c->fingerprint = moe_hash64_chain(c->fingerprint, tokenizer->data, tokenizer->size);
    MOE_TRY(moe_pack_put_section(c->writer, MOE_PACK_MODEL, model->data, model->size, err));
    MOE_TRY(
        moe_pack_put_section(c->writer, MOE_PACK_TOKENIZER, tokenizer->data, tokenizer->size, err));
    MOE_TRY(put_chat_template(c, s, err));
    MOE_TRY(put_sampling(c, s, err));
    return put_provenance(c, dir, err);
}

/* ---- The conversion ---- */

/* Reads a directory's config.json before it looks for weights, which would not help an unknown
 * model. */
static int read_description(struct checkpoint_source *s, const char *dir, struct moe_err *err)
{
    char *config = moe_path_join(dir, "config.json", err);
    if (!config)
        return MOE_ERR_MEMORY;
    bool described = moe_path_exists(config);
    free(config);
    if (described)
        MOE_TRY(moe_config_read_hf(&s->config, dir, err));
    MOE_TRY(moe_checkpoint_open(&s->checkpoint, dir, err));
    if (described)
        return MOE_OK;
    s->gguf = moe_checkpoint_gguf(s->checkpoint);
    return s->gguf ? moe_config_read_gguf(&s->config, s->checkpoint, err)
                   : moe_config_read_hf(&s->config, dir, err); /* for its error */
}

/* Takes a head that is there although the description ties it to the embedding. With other values
 * it is a head of its own, as transformers 5 loads such checkpoints; otherwise it repeats the
 * embedding. GGUF files without a head tie it. In place no weights are read to compare: it is used.
 */
static int take_head(struct checkpoint_source *s, bool in_place, struct moe_err *err)
{
    const struct moe_tensor *head;
    bool same = true;
    if (!s->config.tied_head)
        return MOE_OK;
    MOE_TRY(convert_compare_head(&s->from, &head, in_place ? NULL : &same, err));
    if (head && in_place)
        same = false;
    if (head && same)
        s->used[moe_checkpoint_index(s->checkpoint, head)] = true;
    s->config.tied_head = same;
    return MOE_OK;
}

/* What a head that drafts has of its own, and not of its model. */
static void look_at_drafter(struct checkpoint_source *s)
{
    struct moe_config *c = &s->config;
    c->own_embed = convert_look_for(&s->from, MOE_T_EMBED) != NULL;
    c->own_head = convert_look_for(&s->from, MOE_T_HEAD) != NULL;
    const struct moe_tensor *follows = convert_look_for(&s->from, MOE_T_MARKOV_FROM);
    if (c->drafter_kind == MOE_DRAFTS_DFLASH && follows && follows->n_dims == 2 &&
        follows->dims[1] <= MOE_MAX_DIM)
        c->markov_rank = (uint32_t)follows->dims[1];
    c->from_anchor &= c->markov_rank > 0;
    if (c->draft_vocab == c->vocab && !convert_look_for(&s->from, MOE_T_DRAFT_TOKENS))
        c->draft_vocab = 0;
}

static int open_source(struct checkpoint_source *s, const char *dir, bool in_place,
                       struct moe_err *err)
{
    MOE_TRY(read_description(s, dir, err));
    s->family = moe_family_find(s->config.family);
    if (!s->family)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: unknown family '%s'", dir, s->config.family);
    s->from = (struct convert_source){.stacked = s->stacked,
                                      .checkpoint = s->checkpoint,
                                      .config = &s->config,
                                      .family = s->family,
                                      .naming = s->gguf ? MOE_NAMING_GGUF : MOE_NAMING_HF};
    for (int v = 0; v < CONVERT_MAX_VARIANTS; v++)
        s->carried[v] = true;
    s->used = moe_alloc(moe_checkpoint_n_tensors(s->checkpoint), sizeof *s->used, err);
    if (s->config.drafter_kind)
        look_at_drafter(s);
    return s->used ? take_head(s, in_place, err) : MOE_ERR_MEMORY;
}

/* Whether the checkpoint has every tensor of a layer; of its experts only the first is looked for.
 */
static bool is_whole(const struct checkpoint_source *s, uint32_t layer)
{
    struct row_source source;
    uint32_t rows, cols;
    bool whole = true;
    for (int role = 0; role < MOE_T_N_ROLES && whole; role++)
        if (moe_tensor_spec(role)->per_layer &&
            moe_tensor_shape(&s->config, role, layer, &rows, &cols))
            whole = convert_find_dense(&s->from, role, layer, &source, NULL) == MOE_OK;
    for (int part = 0; part < MOE_E_N_PARTS && whole; part++)
        if (moe_expert_part_shape(&s->config, part, &rows, &cols))
            whole = convert_find_expert(&s->from, layer, 0, part, &source, NULL) == MOE_OK;
    return whole;
}

/* Keeps a layer that drafts where the checkpoint has all of it and the model supports it. */
static void find_ahead(struct checkpoint_source *s)
{
    uint32_t layer = s->config.n_layers;
    moe_config_set_ahead(&s->config, 1);
    if (moe_config_check(&s->config, "", NULL) == MOE_OK && is_whole(s, layer)) {
        s->config.n_drafting = 1;
        return;
    }
    if (layer < MOE_MAX_LAYERS)
        s->config.layers[layer].moe = 0;
    moe_config_set_ahead(&s->config, 0);
}

/* Reads what the pack will say of model and tokenizer as opening a pack does (infer/model.c), so
 * that it is refused before anything is converted; in place the tokenizer itself is handed on. */
static int check_sections(const struct converter *c, const struct checkpoint_source *s,
                          const struct moe_buf *model, const struct moe_buf *tokens,
                          struct moe_err *err)
{
    const char *dir = moe_checkpoint_dir(s->checkpoint);
    struct moe_tokenizer *tokenizer = NULL;
    struct moe_config *config = NULL;
    if (model->failed || tokens->failed)
        return moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", dir);
    config = moe_alloc(1, sizeof *config, err);
    int status =
        config ? moe_config_read(config, dir, model->data, model->size, err) : MOE_ERR_MEMORY;
    if (status == MOE_OK && !c->in_place && s->tokenizer)
        status = moe_tokenizer_read(&tokenizer, dir, tokens->data, tokens->size, err);
    moe_tokenizer_free(tokenizer);
    free(config);
    return status;
}

static int create_pack(struct converter *c, const struct checkpoint_source *s, struct moe_err *err)
{
    if (s->config.n_experts == 0)
        c->n_variants = 0; /* a dense model has no experts to store */
    for (int v = 0; v < c->n_variants; v++) {
        convert_describe_variant(c, v, &c->described[v]);
        if (s->carried[v] || (c->report->kept_experts && c->options->exact_experts))
            strcpy(c->described[v].method, "carried");
    }
    uint32_t n_variants = (uint32_t)c->n_variants;
    MOE_TRY(c->in_place
                ? pack_create_directory(&c->writer, c->source_path, s->config.n_layers,
                                        s->config.n_experts, c->described, n_variants, err)
                : moe_pack_create(&c->writer, c->out_path, s->config.n_layers, s->config.n_experts,
                                  c->described, n_variants, 0, c->options->zstd_level, err));
    return moe_pack_put_ahead(c->writer, s->config.n_ahead, err);
}

enum { SAMPLES = 256, SAMPLE = 64 /* numbers of each */ };

/* Blocks [*first, *first + *n) of tensor i are one of the samples that stand for all weights. */
static bool is_sampled(const struct moe_checkpoint *ck, uint64_t i, uint64_t *first, uint64_t *n)
{
    const struct moe_tensor *t = moe_checkpoint_at(ck, i);
    const struct moe_ggml_type *type = moe_dtype_block(t->dtype);
    const uint64_t n_tensors = moe_checkpoint_n_tensors(ck);
    if (!type || (n_tensors > SAMPLES && i * SAMPLES / n_tensors == (i + 1) * SAMPLES / n_tensors))
        return false;
    const uint64_t blocks = t->n_items / type->items, some = SAMPLE / type->items + 1;
    *n = some < blocks ? some : blocks;
    *first = (blocks - *n) / 2;
    return true;
}

/* Has the system read all samples, side by side. */
static void expect_samples(const struct checkpoint_source *s)
{
    for (uint64_t i = 0, first, n; i < moe_checkpoint_n_tensors(s->checkpoint); i++) {
        struct moe_file_range where[2];
        const char *path;
        if (!is_sampled(s->checkpoint, i, &first, &n))
            continue;
        const struct moe_tensor *t = moe_checkpoint_at(s->checkpoint, i);
        for (int k = moe_checkpoint_locate(s->checkpoint, t, first, n, where); k-- > 0;)
            posix_fadvise(moe_checkpoint_file(s->checkpoint, (int)where[k].file, &path),
                          (off_t)where[k].offset, (off_t)where[k].bytes, POSIX_FADV_WILLNEED);
    }
}

/* Adds to the fingerprint what stands for the weights where these are not read: names and shapes,
 * and a few bytes of some. */
static int hash_samples(struct converter *c, const struct checkpoint_source *s, struct moe_err *err)
{
    for (uint64_t i = 0, first, n; i < moe_checkpoint_n_tensors(s->checkpoint); i++) {
        const struct moe_tensor *t = moe_checkpoint_at(s->checkpoint, i);
        const uint64_t shape[] = {t->dtype, t->n_items, t->bytes};
        uint8_t sample[SAMPLE * MOE_GGML_MAX_BLOCK_BYTES];
        c->fingerprint = moe_hash64_chain(c->fingerprint, t->name, strlen(t->name));
        c->fingerprint = moe_hash64_chain(c->fingerprint, shape, sizeof shape);
        if (!is_sampled(s->checkpoint, i, &first, &n))
            continue;
        MOE_TRY(moe_checkpoint_read_blocks(s->checkpoint, t, first, n, sample, err));
        c->fingerprint =
            moe_hash64_chain(c->fingerprint, sample, n * moe_dtype_block(t->dtype)->bytes);
    }
    return MOE_OK;
}

void convert_close_source(struct checkpoint_source *s)
{
    if (!s)
        return;
    moe_checkpoint_close(s->checkpoint);
    moe_tokenizer_free(s->tokenizer);
    free(s->used);
    free(s->own.bits);
    free(s);
}

const struct convert_source *convert_source_of(const struct checkpoint_source *s)
{
    return &s->from;
}

/* Opens the checkpoint, checks that all of it is there, and converts it into c->writer. */
static int convert(struct converter *c, struct checkpoint_source **source, const char *dir,
                   struct moe_convert_options *wanted, struct moe_err *err)
{
    struct moe_buf model = {0}, tokens = {0};
    struct checkpoint_source *s = *source = moe_alloc(1, sizeof **source, err);
    int status;
    MOE_STEP(s ? open_source(s, dir, c->in_place, err) : MOE_ERR_MEMORY);
    c->n_layers = s->config.n_layers;
    if (!wanted->no_ahead)
        find_ahead(s);
    c->no_gate = !moe_act_is_gated(s->config.expert_act);
    MOE_STEP(survey_source(c, s, wanted, err));
    MOE_STEP(convert_start(c, wanted, true, err));
    MOE_STEP(convert_check_map(c, s->config.n_experts, s->config.layers, err));
    if (c->in_place)
        expect_samples(s);
    if (!s->config.drafter_kind) { /* a head has its model's */
        MOE_STEP(s->gguf ? moe_tokenizer_read_gguf(&s->tokenizer, s->gguf, err)
                         : moe_tokenizer_read_hf(&s->tokenizer, dir, err));
        moe_tokenizer_write(s->tokenizer, &tokens);
    }
    moe_config_write(&s->config, &model);
    MOE_STEP(check_sections(c, s, &model, &tokens, err));
    MOE_STEP(walk_experts(c, s, check_carried, err));
    MOE_STEP(check_unused(c, s, err));
    MOE_STEP(create_pack(c, s, err));
    MOE_STEP(put_sections(c, s, &model, &tokens, err));
    MOE_STEP(walk_dense(c, s, put_dense, err));
    MOE_STEP(walk_experts(c, s, put_expert, err));
    if (c->in_place)
        MOE_STEP(hash_samples(c, s, err));
    moe_pack_set_source_fingerprint(c->writer, c->fingerprint);
    s->own.source_fingerprint = c->fingerprint;
    MOE_STEP(convert_check_map_source(c, c->fingerprint, err));
out:
    moe_buf_release(&model);
    moe_buf_release(&tokens);
    return status;
}

int moe_convert_checkpoint(const char *dir, const char *out_path,
                           const struct moe_convert_options *options,
                           struct moe_convert_report *report, struct moe_err *err)
{
    struct moe_convert_options wanted = *options;
    struct converter c = {.report = report, .source_path = dir, .out_path = out_path};
    struct checkpoint_source *s = NULL;
    int status = convert_start(&c, &wanted, true, err);
    *report = (struct moe_convert_report){0};
    if (status == MOE_OK)
        status = convert_check_output(&c, err);
    if (status == MOE_OK)
        status = convert(&c, &s, dir, &wanted, err);
    if (status == MOE_OK)
        status = convert_commit(&c, err);
    moe_pack_abort(c.writer);
    convert_release(&c);
    convert_close_source(s);
    return status;
}

int convert_plan_in_place(struct checkpoint_source **out, const char *path, int *fd,
                          uint64_t *file_bytes, struct moe_err *err)
{
    struct moe_convert_options wanted = {.experts = {{16, 16}},
                                         .n_experts = 1,
                                         .dense_bits = 16,
                                         .own_experts = true,
                                         .own_dense = true,
                                         .method = moe_quant_method_find("rtn"),
                                         .group = MOE_GGML_GROUP};
    struct moe_convert_report report = {0};
    struct converter c = {.options = &wanted,
                          .report = &report,
                          .source_path = path,
                          .out_path = path,
                          .in_place = true};
    int status = convert(&c, out, path, &wanted, err);
    if (status == MOE_OK) {
        status = pack_end_directory(c.writer, fd, file_bytes, err);
        c.writer = NULL;
        moe_checkpoint_drop_metadata((*out)->checkpoint);
        (*out)->gguf = NULL;
    }
    moe_pack_abort(c.writer);
    convert_release(&c);
    if (status != MOE_OK) {
        convert_close_source(*out);
        *out = NULL;
    }
    return status;
}

struct moe_tokenizer *convert_take_tokenizer(struct checkpoint_source *s)
{
    struct moe_tokenizer *taken = s->tokenizer;
    s->tokenizer = NULL;
    return taken;
}

int convert_read_vector(const struct checkpoint_source *s, enum moe_tensor_role role,
                        const struct row_source *source, float *out, struct moe_err *err)
{
    struct moe_convert_report report = {0};
    struct converter c = {.report = &report,
                          .source_path = moe_checkpoint_dir(s->checkpoint),
                          .ahead = true /* no fingerprint */};
    return read_vector(&c, source, &s->config, role, out, err);
}
