#include "convert/convert_weights.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "fmt/checkpoint.h"
#include "model/routes.h"

static bool is_quantized(enum moe_dtype dtype)
{
    return moe_dtype_block(dtype)->items > 1;
}

static int read_rows(const struct row_source *source, uint32_t first, uint32_t n, float *out,
                     struct moe_err *err)
{
    return convert_view_read(source->tensor, first, n, out, err);
}

static int read_row_blocks(const struct row_source *source, uint32_t first, uint32_t n,
                           uint8_t *out, struct moe_err *err)
{
    return convert_view_read_blocks(source->tensor, first, n, out, err);
}

/* The 16-bit layout closest to the type's values: F16 has more digits, MXFP4 needs BF16's range. */
static uint16_t float16_of(enum moe_dtype dtype)
{
    bool f16 = dtype == MOE_DTYPE_F16 || (is_quantized(dtype) && dtype != MOE_DTYPE_MXFP4);
    return f16 ? MOE_LAYOUT_F16 : MOE_LAYOUT_BF16;
}

/* The view's rows; it must stay valid. `sixteen`: 16 bits are wanted, so that an f32 tensor is read
 * once to choose which. */
static int source_of(struct converter *c, const struct convert_view *view, bool sixteen,
                     struct row_source *out, struct moe_err *err)
{
    enum moe_dtype dtype = view->tensor->dtype;
    bool quantized = is_quantized(dtype);
    *out = (struct row_source){
        .name = view->tensor->name,
        .type = c->quantized ? moe_dtype_block(dtype)->name : NULL,
        .rows = view->rows,
        .cols = view->cols,
        .bytes = convert_view_bytes(view),
        .float16_kind = float16_of(dtype),
        .hashed = !c->ahead,
        .read = read_rows,
        .tensor = view,
        .block = quantized && !view->transposed ? moe_dtype_block(dtype) : NULL,
        .read_blocks = read_row_blocks,
    };
    return sixteen && dtype == MOE_DTYPE_F32
               ? convert_choose_float16(c, out, &out->float16_kind, NULL, err)
               : MOE_OK;
}

/* The bits that a dense matrix needs to keep its precision: 16 are enough for most of those that
 * checkpoints have in F32. */
static int own_bits(struct converter *c, const struct convert_view *view,
                    const struct row_source *source, int *bits, struct moe_err *err)
{
    uint16_t kind;
    bool exact;
    *bits = moe_ggml_bits(moe_dtype_block(view->tensor->dtype));
    if (*bits != 32)
        return MOE_OK;
    int status = convert_choose_float16(c, source, &kind, &exact, err);
    *bits = exact ? 16 : 32;
    return status;
}

/* A vector stays f32, which an encoder would not look at (quant/quantize.h). */
static int check_finite(const struct converter *c, const struct convert_view *view,
                        const float *values, struct moe_err *err)
{
    for (uint32_t i = 0; i < view->rows; i++)
        if (!isfinite(values[i]))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: tensor '%s': the weight at %" PRIu64
                            " is %s (damaged checkpoint?)",
                            c->source_path, view->tensor->name, convert_view_line(view, i),
                            isnan(values[i]) ? "not a number" : "infinite");
    return MOE_OK;
}

/* Reads the experts of every token. */
static int read_routes(const struct moe_config *config, const struct convert_view *view, float *out,
                       struct moe_err *err)
{
    uint32_t *numbers = moe_alloc(view->rows, sizeof *numbers, err);
    if (!numbers)
        return MOE_ERR_MEMORY;
    int status =
        moe_checkpoint_read_numbers(view->checkpoint, view->tensor, 0, view->rows, numbers, err);
    for (uint32_t i = 0; i < view->rows && status == MOE_OK; i++)
        out[i] = (float)numbers[i]; /* of experts that there are exactly */
    free(numbers);
    return status == MOE_OK ? moe_routes_check(config, out, moe_checkpoint_dir(view->checkpoint),
                                               view->tensor->name, err)
                            : status;
}

/* Values as the model computes with them. */
static int change_values(const struct converter *c, const struct convert_view *view, float *values,
                         struct moe_err *err)
{
    for (uint32_t i = 0; view->stored == MOE_STORED_LESS_ONE && i < view->rows; i++)
        values[i] += 1;
    for (uint32_t i = 0; view->stored == MOE_STORED_NEGATIVE_EXP && i < view->rows; i++) {
        if (!(values[i] < 0))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: tensor '%s': a value is %g, only negative ones make sense",
                            c->source_path, view->tensor->name, (double)values[i]);
        values[i] = (float)log(-(double)values[i]);
    }
    return MOE_OK;
}

/* Reads a vector: plain f32, not panels. `out` has room for its rows. routes: it is a table of
 * experts in a model of this description; NULL: it is not. */
static int read_vector(struct converter *c, const struct convert_view *view,
                       const struct moe_config *routes, float *out, struct moe_err *err)
{
    int status = routes ? read_routes(routes, view, out, err)
                        : convert_view_read(view, 0, view->rows, out, err);
    if (status == MOE_OK)
        status = check_finite(c, view, out, err);
    if (status != MOE_OK)
        return status;
    status = change_values(c, view, out, err);
    if (status != MOE_OK)
        return status;
    if (!c->ahead)
        c->fingerprint = moe_hash64_chain(c->fingerprint, out, 4 * (uint64_t)view->rows);
    c->done += convert_view_bytes(view);
    c->report->source_bytes += convert_view_bytes(view);
    return MOE_OK;
}

static int put_vector(struct converter *c, const struct convert_view *view,
                      const struct moe_config *routes, struct moe_pack_tensor *entry,
                      struct moe_err *err)
{
    float *values = moe_alloc(view->rows, sizeof *values, err);
    if (!values)
        return MOE_ERR_MEMORY;
    entry->is_vector = true;
    entry->layout.kind = MOE_LAYOUT_F32;
    int status = read_vector(c, view, routes, values, err);
    if (status == MOE_OK)
        status = moe_pack_put_tensor(c->writer, entry, values, err);
    free(values);
    return status;
}

int convert_put_dense(struct converter *c, struct checkpoint_source *s, enum moe_tensor_role role,
                      uint32_t layer, struct moe_err *err)
{
    struct convert_view view;
    struct row_source source;
    enum moe_tensor_kind kind = moe_tensor_spec(role)->kind;
    int status = convert_view_dense(&s->from, role, layer, &view, err);
    if (status != MOE_OK)
        return status;
    struct moe_pack_tensor entry = {.rows = view.rows, .cols = view.cols};
    moe_tensor_pack_name(role, layer, entry.name);
    c->report->dense_weights += (uint64_t)view.rows * view.cols;
    if (kind == MOE_KIND_VECTOR)
        return put_vector(c, &view, role == MOE_T_ROUTES ? &s->config : NULL, &entry, err);
    int bits = c->options->dense_bits;
    if (kind == MOE_KIND_ROUTER)
        bits = view.tensor->dtype == MOE_DTYPE_F32 || is_quantized(view.tensor->dtype) ? 32 : 16;
    else if (c->report->kept_dense)
        status = source_of(c, &view, false, &source, err);
    if (kind != MOE_KIND_ROUTER && c->report->kept_dense && status == MOE_OK)
        status = own_bits(c, &view, &source, &bits, err);
    if (status == MOE_OK)
        status = source_of(c, &view, bits == 16, &source, err);
    if (status != MOE_OK)
        return status;
    entry.layout = convert_source_layout(c, &source, bits);
    return convert_put_matrix(c, &source, &entry, err);
}

/* One expert being converted: its parts, in the order of the class's matrices. */
struct expert {
    int n_parts;
    int part[MOE_E_N_PARTS];
    struct convert_view views[MOE_E_N_PARTS];
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
    int status = MOE_OK;
    for (int part = 0; part < MOE_E_N_PARTS && status == MOE_OK; part++) {
        uint32_t rows, cols;
        if (!moe_expert_part_shape(&s->config, part, &rows, &cols))
            continue;
        int i = e->n_parts++;
        bool sixteen = wants_sixteen(c, e, part);
        e->part[i] = part;
        status = convert_view_expert(&s->from, layer, number, part, &e->views[i], err);
        if (status == MOE_OK)
            status = source_of(c, &e->views[i], sixteen, &e->sources[i], err);
        if (status == MOE_OK)
            c->report->expert_weights += (uint64_t)e->views[i].rows * e->views[i].cols;
    }
    return status;
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
        m->rows = e->views[i].rows;
        m->cols = e->views[i].cols;
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
                                         &c->report->error[c->variants[v].option]};
    }
    if (!moe_expert_part_is_bias(e->part[i]))
        return convert_rows(c, &e->sources[i], targets, c->n_variants, err);
    int status = read_vector(c, &e->views[i], NULL, (float *)targets[0].out, err);
    for (int v = 1; v < c->n_variants && status == MOE_OK; v++)
        memcpy(targets[v].out, targets[0].out, 4 * (uint64_t)e->views[i].rows);
    return status;
}

int convert_put_expert(struct converter *c, struct checkpoint_source *s, uint32_t layer,
                       uint32_t number, struct moe_err *err)
{
    struct expert e = {0};
    for (int v = 0; v < c->n_variants; v++)
        e.bits[v] = convert_bits(c, v, layer, number);
    int status = find_parts(c, s, layer, number, &e, err);
    for (int v = 0; v < c->n_variants && status == MOE_OK; v++) {
        make_class(c, &e, e.bits[v], &e.classes[v]);
        status = convert_alloc_segments(&e.classes[v], &e.blocks[v], e.segments[v], err);
    }
    for (int i = 0; i < e.n_parts && status == MOE_OK; i++)
        status = encode_part(c, &e, i, err);
    for (int v = 0; v < c->n_variants && status == MOE_OK; v++) {
        uint32_t index;
        status = moe_pack_put_class(c->writer, &e.classes[v], &index, err);
        if (status == MOE_OK)
            status = moe_pack_put_expert(c->writer, layer, number, (uint32_t)v, index,
                                         (const void *const *)e.segments[v], err);
    }
    for (int v = 0; v < c->n_variants; v++)
        free(e.blocks[v]);
    return status;
}
