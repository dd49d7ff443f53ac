#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"
#include "convert/convert_parts.h"
#include "convert/convert_source.h"
#include "fmt/checkpoint.h"
#include "fmt/gguf.h"
#include "model/family.h"
#include "text/chat.h"
#include "text/tokenizer.h"

/* What one conversion holds besides the shared state. */
struct source {
    struct moe_checkpoint *checkpoint;
    const struct moe_gguf *gguf; /* its metadata; NULL for a directory */
    const struct moe_family *family;
    struct moe_config config;
    struct convert_source from; /* where the model's tensors lie in the checkpoint */
    bool *used;                 /* per tensor of the checkpoint */
    /* Per variant: the source's codes have a layout of that many bits, in every expert matrix. */
    bool carried[CONVERT_MAX_VARIANTS];
};

static bool is_bias(int part)
{
    return moe_expert_part_spec(part)->kind == MOE_KIND_VECTOR;
}

static int part_bits(struct moe_bits bits, int part)
{
    return moe_expert_part_is_down(part) ? bits.down : bits.gate_up;
}

static bool is_quantized(enum moe_dtype dtype)
{
    return moe_dtype_block(dtype)->items > 1;
}

/* ---- First pass: everything is there ---- */

static void mark(struct converter *c, struct source *s, const struct convert_view *view)
{
    s->used[moe_checkpoint_index(s->checkpoint, view->tensor)] = true;
    c->total += convert_view_bytes(view);
}

/* A tensor without a place in the model means that the model computes something we do not. */
static int check_unused(const struct source *s, struct moe_err *err)
{
    for (uint64_t i = 0; i < moe_checkpoint_n_tensors(s->checkpoint); i++) {
        const char *name = moe_checkpoint_at(s->checkpoint, i)->name;
        if (!s->used[i] && !convert_may_ignore(&s->from, name))
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: tensor '%.200s' has no place in a %s model as %s describes it",
                            moe_checkpoint_dir(s->checkpoint), name, s->family->name,
                            s->gguf ? "its metadata" : "config.json");
    }
    return MOE_OK;
}

/* Calls fn for every dense tensor the model has, in the order of the pack. */
static int walk_dense(struct converter *c, struct source *s,
                      int (*fn)(struct converter *c, struct source *s, enum moe_tensor_role role,
                                uint32_t layer, struct moe_err *err),
                      struct moe_err *err)
{
    int status = MOE_OK;
    for (int per_layer = 0; per_layer < 2; per_layer++)
        for (uint32_t layer = 0; layer < (per_layer ? s->config.n_layers : 1); layer++)
            for (int role = 0; role < MOE_T_N_ROLES; role++) {
                uint32_t rows, cols;
                if (moe_tensor_spec(role)->per_layer != per_layer ||
                    !moe_tensor_shape(&s->config, role, layer, &rows, &cols))
                    continue;
                status = fn(c, s, role, layer, err);
                if (status != MOE_OK)
                    return status;
            }
    return MOE_OK;
}

/* Calls fn for every expert, layer by layer. */
static int walk_experts(struct converter *c, struct source *s,
                        int (*fn)(struct converter *c, struct source *s, uint32_t layer,
                                  uint32_t expert, struct moe_err *err),
                        struct moe_err *err)
{
    int status = MOE_OK;
    for (uint32_t layer = 0; layer < s->config.n_layers; layer++)
        for (uint32_t e = 0; s->config.layer_is_moe[layer] && e < s->config.n_experts; e++) {
            status = fn(c, s, layer, e, err);
            if (status != MOE_OK)
                return status;
        }
    return MOE_OK;
}

static int check_dense(struct converter *c, struct source *s, enum moe_tensor_role role,
                       uint32_t layer, struct moe_err *err)
{
    struct convert_view view;
    int status = convert_view_dense(&s->from, role, layer, &view, err);
    if (status == MOE_OK)
        mark(c, s, &view);
    return status;
}

static bool has_part(const struct moe_config *config, int part)
{
    uint32_t rows, cols;
    return moe_expert_part_shape(config, part, &rows, &cols);
}

static void check_carried(const struct converter *c, struct source *s, uint32_t layer,
                          uint32_t expert, const struct convert_view *view, int part)
{
    const struct moe_ggml_type *type = moe_dtype_block(view->tensor->dtype);
    for (int v = 0; v < c->n_variants && !is_bias(part); v++)
        if (view->transposed || type->items == 1 ||
            moe_ggml_layout(type, part_bits(convert_bits(c, v, layer, expert), part)).kind ==
                MOE_LAYOUT_NONE)
            s->carried[v] = false;
}

static int check_expert(struct converter *c, struct source *s, uint32_t layer, uint32_t expert,
                        struct moe_err *err)
{
    int status = MOE_OK;
    for (int part = 0; part < MOE_E_N_PARTS && status == MOE_OK; part++) {
        struct convert_view view;
        if (!has_part(&s->config, part))
            continue;
        status = convert_view_expert(&s->from, layer, expert, part, &view, err);
        if (status == MOE_OK) {
            mark(c, s, &view);
            check_carried(c, s, layer, expert, &view, part);
        }
    }
    return status;
}

/* ---- Second pass: the weights ---- */

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

/* What 16 bits are closest to the type's values: f16 has more digits, MXFP4 needs bf16's range. */
static uint16_t float16_of(enum moe_dtype dtype)
{
    bool f16 = dtype == MOE_DTYPE_F16 || (is_quantized(dtype) && dtype != MOE_DTYPE_MXFP4);
    return f16 ? MOE_LAYOUT_F16 : MOE_LAYOUT_BF16;
}

/* The view's rows; it must stay. `sixteen`: 16 bits are wanted, so an f32 tensor has to be looked
 * through for which 16. */
static int source_of(struct converter *c, const struct convert_view *view, bool sixteen,
                     struct row_source *out, struct moe_err *err)
{
    enum moe_dtype dtype = view->tensor->dtype;
    bool quantized = is_quantized(dtype);
    *out = (struct row_source){
        .name = view->tensor->name,
        .rows = view->rows,
        .cols = view->cols,
        .bytes = convert_view_bytes(view),
        .float16_kind = float16_of(dtype),
        .hashed = true,
        .read = read_rows,
        .tensor = view,
        .block = quantized && !view->transposed ? moe_dtype_block(dtype) : NULL,
        .read_blocks = read_row_blocks,
    };
    return sixteen && dtype == MOE_DTYPE_F32
               ? convert_choose_float16(c, out, &out->float16_kind, err)
               : MOE_OK;
}

/* Reads a vector: plain f32, not panels. `out` has room for its rows. */
static int read_vector(struct converter *c, const struct convert_view *view, float *out,
                       struct moe_err *err)
{
    int status = convert_view_read(view, 0, view->rows, out, err);
    if (status != MOE_OK)
        return status;
    c->fingerprint = moe_hash64_chain(c->fingerprint, out, 4 * (uint64_t)view->rows);
    c->done += convert_view_bytes(view);
    c->report->source_bytes += convert_view_bytes(view);
    return MOE_OK;
}

static int put_vector(struct converter *c, const struct convert_view *view,
                      struct moe_pack_tensor *entry, struct moe_err *err)
{
    float *values = moe_alloc(view->rows, sizeof *values, err);
    if (!values)
        return MOE_ERR_MEMORY;
    entry->is_vector = true;
    entry->layout.kind = MOE_LAYOUT_F32;
    int status = read_vector(c, view, values, err);
    if (status == MOE_OK)
        status = moe_pack_put_tensor(c->writer, entry, values, err);
    free(values);
    return status;
}

static int put_dense(struct converter *c, struct source *s, enum moe_tensor_role role,
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
        return put_vector(c, &view, &entry, err);
    int bits = c->options->dense_bits;
    if (kind == MOE_KIND_ROUTER)
        bits = view.tensor->dtype == MOE_DTYPE_F32 || is_quantized(view.tensor->dtype) ? 32 : 16;
    status = source_of(c, &view, bits == 16, &source, err);
    if (status != MOE_OK)
        return status;
    entry.layout = convert_source_layout(c, &source, bits);
    struct row_target target = {entry.layout, NULL, &c->report->dense_error};
    target.out = moe_alloc(moe_layout_bytes(entry.layout, view.rows, view.cols), 1, err);
    if (!target.out)
        return MOE_ERR_MEMORY;
    status = convert_rows(c, &source, &target, 1, err);
    if (status == MOE_OK)
        status = moe_pack_put_tensor(c->writer, &entry, target.out, err);
    free(target.out);
    return status;
}

/* One expert on its way: the parts it has, in the order of the class's matrices. */
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
        sixteen |= part_bits(e->bits[v], part) == 16;
    return sixteen;
}

static int find_parts(struct converter *c, struct source *s, uint32_t layer, uint32_t number,
                      struct expert *e, struct moe_err *err)
{
    int status = MOE_OK;
    for (int part = 0; part < MOE_E_N_PARTS && status == MOE_OK; part++) {
        if (!has_part(&s->config, part))
            continue;
        int i = e->n_parts++;
        bool sixteen = !is_bias(part) && wants_sixteen(c, e, part);
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
        int part = e->part[i], part_width = is_bias(part) ? 32 : part_bits(bits, part);
        m->role = (uint16_t)(MOE_ROLE_GATE + part);
        m->segment = moe_expert_part_is_down(part);
        m->layout = convert_source_layout(c, &e->sources[i], part_width);
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
    if (!is_bias(e->part[i]))
        return convert_rows(c, &e->sources[i], targets, c->n_variants, err);
    int status = read_vector(c, &e->views[i], (float *)targets[0].out, err);
    for (int v = 1; v < c->n_variants && status == MOE_OK; v++)
        memcpy(targets[v].out, targets[0].out, 4 * (uint64_t)e->views[i].rows);
    return status;
}

static int put_expert(struct converter *c, struct source *s, uint32_t layer, uint32_t number,
                      struct moe_err *err)
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

/* ---- Sections ---- */

static int put_chat_template(struct converter *c, const struct source *s, struct moe_err *err)
{
    struct moe_buf text = {0};
    int status = MOE_OK;
    if (s->gguf) {
        const char *template = "";
        status = moe_gguf_get_text(s->gguf, "tokenizer.chat_template", false, &template, err);
        moe_buf_text(&text, template);
    } else {
        status = moe_chat_read_template(moe_checkpoint_dir(s->checkpoint), &text, err);
    }
    if (status == MOE_OK && text.failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", c->out_path);
    if (status == MOE_OK)
        status = moe_pack_put_section(c->writer, MOE_PACK_CHAT, text.data, text.size, err);
    moe_buf_release(&text);
    return status;
}

static int put_provenance(struct converter *c, const char *dir, struct moe_err *err)
{
    char name[MOE_SOURCE_NAME_BYTES];
    moe_convert_source_name(dir, name);
    bool printable = moe_utf8_valid((const uint8_t *)name, strlen(name));
    json_t *json =
        json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:o}", "tool", "moe-quantize", "version",
                  MOE_VERSION, "source", printable ? name : "?", "method", c->options->method->name,
                  "group", (int)c->options->group, "dense", c->options->dense_bits, "experts",
                  convert_variant_names(c->described, c->n_variants));
    return convert_put_provenance(c, json, err);
}

static int put_sections(struct converter *c, const struct source *s, const struct moe_buf *model,
                        const struct moe_buf *tokenizer, struct moe_err *err)
{
    const char *dir = moe_checkpoint_dir(s->checkpoint);
    if (model->failed || tokenizer->failed)
        return moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", c->out_path);
    c->fingerprint = moe_hash64_chain(c->fingerprint, model->data, model->size);
    c->fingerprint = moe_hash64_chain(c->fingerprint, tokenizer->data, tokenizer->size);
    int status = moe_pack_put_section(c->writer, MOE_PACK_MODEL, model->data, model->size, err);
    if (status == MOE_OK)
        status = moe_pack_put_section(c->writer, MOE_PACK_TOKENIZER, tokenizer->data,
                                      tokenizer->size, err);
    if (status == MOE_OK)
        status = put_chat_template(c, s, err);
    if (status == MOE_OK)
        status = put_provenance(c, dir, err);
    return status;
}

/* ---- The conversion ---- */

static int open_source(struct source *s, const char *dir, struct moe_err *err)
{
    int status = moe_checkpoint_open(&s->checkpoint, dir, err);
    if (status != MOE_OK)
        return status;
    s->gguf = moe_checkpoint_gguf(s->checkpoint);
    status = s->gguf ? moe_config_read_gguf(&s->config, s->checkpoint, err)
                     : moe_config_read_hf(&s->config, dir, err);
    if (status != MOE_OK)
        return status;
    s->family = moe_family_find(s->config.family);
    if (!s->family)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: unknown family '%s'", dir, s->config.family);
    s->from = (struct convert_source){.checkpoint = s->checkpoint,
                                      .config = &s->config,
                                      .family = s->family,
                                      .naming = s->gguf ? MOE_NAMING_GGUF : MOE_NAMING_HF};
    for (int v = 0; v < CONVERT_MAX_VARIANTS; v++)
        s->carried[v] = true;
    s->used = moe_alloc(moe_checkpoint_n_tensors(s->checkpoint), sizeof *s->used, err);
    return s->used ? MOE_OK : MOE_ERR_MEMORY;
}

static int create_pack(struct converter *c, const struct source *s, struct moe_err *err)
{
    if (s->config.n_experts == 0)
        c->n_variants = 0; /* a dense model has nothing to store in variants */
    for (int v = 0; v < c->n_variants; v++) {
        convert_describe_variant(c, v, &c->described[v]);
        if (s->carried[v])
            strcpy(c->described[v].method, "carried");
    }
    return moe_pack_create(&c->writer, c->out_path, s->config.n_layers, s->config.n_experts,
                           c->described, (uint32_t)c->n_variants, 0, c->options->zstd_level, err);
}

int moe_convert_checkpoint(const char *dir, const char *out_path,
                           const struct moe_convert_options *options,
                           struct moe_convert_report *report, struct moe_err *err)
{
    struct converter c;
    struct source *s = NULL;
    struct moe_tokenizer *tokenizer = NULL;
    struct moe_buf model = {0}, tokens = {0};
    int status = convert_start(&c, options, true, err);
    *report = (struct moe_convert_report){0};
    c.report = report;
    c.source_path = dir;
    c.out_path = out_path;
    if (status == MOE_OK)
        status = convert_check_output(&c, err);
    if (status == MOE_OK && !(s = moe_alloc(1, sizeof *s, err)))
        status = MOE_ERR_MEMORY;
    if (status == MOE_OK)
        status = open_source(s, dir, err);
    if (status == MOE_OK)
        status = convert_check_map(&c, s->config.n_layers, s->config.n_experts,
                                   s->config.layer_is_moe, err);
    if (status == MOE_OK)
        status = s->gguf ? moe_tokenizer_read_gguf(&tokenizer, s->gguf, err)
                         : moe_tokenizer_read_hf(&tokenizer, dir, err);
    if (status == MOE_OK)
        status = walk_dense(&c, s, check_dense, err);
    if (status == MOE_OK)
        status = walk_experts(&c, s, check_expert, err);
    if (status == MOE_OK)
        status = check_unused(s, err);
    if (status == MOE_OK)
        status = create_pack(&c, s, err);
    if (status == MOE_OK) {
        moe_config_write(&s->config, &model);
        moe_tokenizer_write(tokenizer, &tokens);
        status = put_sections(&c, s, &model, &tokens, err);
    }
    if (status == MOE_OK)
        status = walk_dense(&c, s, put_dense, err);
    if (status == MOE_OK)
        status = walk_experts(&c, s, put_expert, err);
    if (status == MOE_OK) {
        moe_pack_set_source_fingerprint(c.writer, c.fingerprint);
        status = convert_check_map_source(&c, c.fingerprint, err);
    }
    if (status == MOE_OK)
        status = convert_commit(&c, err);
    moe_pack_abort(c.writer);
    convert_release(&c);
    moe_buf_release(&model);
    moe_buf_release(&tokens);
    moe_tokenizer_free(tokenizer);
    if (s) {
        moe_checkpoint_close(s->checkpoint);
        free(s->used);
    }
    free(s);
    return status;
}
