#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"
#include "fmt/checkpoint.h"
#include "model/chat.h"
#include "model/convert_parts.h"
#include "model/family.h"
#include "model/tokenizer.h"

enum { N_EXPERT_PARTS = 3 };

/* What one conversion holds besides the shared state. */
struct source {
    struct moe_checkpoint *checkpoint;
    const struct moe_family *family;
    struct moe_config config;
    bool *used; /* per tensor of the checkpoint */
};

/* ---- Names and shapes ------------------------------------------------------------------------ */

/* Puts layer and expert into a family's name: the first "%u" is the layer, the second the expert.
 * By hand, since the format is data. */
static void expand_name(const char *format, uint32_t layer, uint32_t expert, char out[256])
{
    uint32_t numbers[2] = {layer, expert};
    int next = 0;
    size_t at = 0;
    for (const char *p = format; *p && at < 240; p++) {
        if (p[0] == '%' && p[1] == 'u' && next < 2) {
            at += (size_t)snprintf(out + at, 256 - at, "%" PRIu32, numbers[next++]);
            p++;
        } else {
            out[at++] = *p;
        }
    }
    out[at] = '\0';
}

static int get_tensor(const struct source *s, const char *name, bool is_vector, uint32_t rows,
                      uint32_t cols, const struct moe_tensor **out, struct moe_err *err)
{
    uint64_t dims[2] = {rows, cols};
    return moe_checkpoint_get(s->checkpoint, name, is_vector ? 1 : 2, dims, out, err);
}

static int get_dense(const struct source *s, enum moe_tensor_role role, uint32_t layer,
                     uint32_t rows, uint32_t cols, const struct moe_tensor **out,
                     struct moe_err *err)
{
    char name[256];
    const struct moe_source *from = &s->family->hf[0]->dense[role];
    if (!from->name)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: family %s has no tensor '%s'",
                        moe_checkpoint_dir(s->checkpoint), s->family->name,
                        moe_tensor_spec(role)->pack_name);
    expand_name(from->name, layer, 0, name);
    return get_tensor(s, name, moe_tensor_spec(role)->kind == MOE_KIND_VECTOR, rows, cols, out,
                      err);
}

static void expert_shape(const struct moe_config *config, int part, uint32_t *rows, uint32_t *cols)
{
    *rows = part == 2 ? config->hidden : config->expert_ff;
    *cols = part == 2 ? config->expert_ff : config->hidden;
}

static int get_expert(const struct source *s, uint32_t layer, uint32_t expert, int part,
                      const struct moe_tensor **out, struct moe_err *err)
{
    char name[256];
    uint32_t rows, cols;
    expert_shape(&s->config, part, &rows, &cols);
    expand_name(s->family->hf[0]->expert[part].name, layer, expert, name);
    return get_tensor(s, name, false, rows, cols, out, err);
}

/* ---- First pass: everything is there ----------------------------------------------------------
 */

static void mark(struct converter *c, struct source *s, const struct moe_tensor *t)
{
    s->used[moe_checkpoint_index(s->checkpoint, t)] = true;
    c->total += t->bytes;
}

/* A tensor without a place in the model means that the model computes something we do not. */
static int check_unused(const struct source *s, struct moe_err *err)
{
    for (uint64_t i = 0; i < moe_checkpoint_n_tensors(s->checkpoint); i++) {
        const char *name = moe_checkpoint_at(s->checkpoint, i)->name;
        size_t n = strlen(name);
        /* Buffers that old writers stored with the weights, and a tied head stored all the same. */
        bool harmless = (n > 9 && strcmp(name + n - 9, ".inv_freq") == 0) ||
                        (s->config.tied_head && s->family->hf[0]->dense[MOE_T_HEAD].name &&
                         strcmp(name, s->family->hf[0]->dense[MOE_T_HEAD].name) == 0);
        if (!s->used[i] && !harmless)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: tensor '%.200s' has no place in a %s model as config.json "
                            "describes it",
                            moe_checkpoint_dir(s->checkpoint), name, s->family->name);
    }
    return MOE_OK;
}

/* Calls fn for every dense tensor the model has, in the order of the pack. */
static int walk_dense(struct converter *c, struct source *s,
                      int (*fn)(struct converter *c, struct source *s, enum moe_tensor_role role,
                                uint32_t layer, uint32_t rows, uint32_t cols, struct moe_err *err),
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
                status = fn(c, s, role, layer, rows, cols, err);
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
                       uint32_t layer, uint32_t rows, uint32_t cols, struct moe_err *err)
{
    const struct moe_tensor *t;
    int status = get_dense(s, role, layer, rows, cols, &t, err);
    if (status == MOE_OK)
        mark(c, s, t);
    return status;
}

static int check_expert(struct converter *c, struct source *s, uint32_t layer, uint32_t expert,
                        struct moe_err *err)
{
    int status = MOE_OK;
    for (int part = 0; part < N_EXPERT_PARTS && status == MOE_OK; part++) {
        const struct moe_tensor *t;
        status = get_expert(s, layer, expert, part, &t, err);
        if (status == MOE_OK)
            mark(c, s, t);
    }
    return status;
}

/* ---- Second pass: the weights -----------------------------------------------------------------
 */

static int read_rows(const struct row_source *source, uint32_t first, uint32_t n, float *out,
                     struct moe_err *err)
{
    return moe_checkpoint_read(source->container, source->tensor, (uint64_t)first * source->cols,
                               (uint64_t)n * source->cols, out, err);
}

/* `bits` decides whether an f32 tensor has to be looked through for its 16-bit type. */
static int source_of(struct converter *c, const struct source *s, const struct moe_tensor *t,
                     bool sixteen, struct row_source *out, struct moe_err *err)
{
    *out = (struct row_source){
        .name = t->name,
        .rows = (uint32_t)t->dims[0],
        .cols = t->n_dims == 2 ? (uint32_t)t->dims[1] : 1,
        .bytes = t->bytes,
        .float16_kind = t->dtype == MOE_DTYPE_F16 ? MOE_LAYOUT_F16 : MOE_LAYOUT_BF16,
        .hashed = true,
        .read = read_rows,
        .container = s->checkpoint,
        .tensor = t,
    };
    return sixteen && t->dtype == MOE_DTYPE_F32
               ? convert_choose_float16(c, out, &out->float16_kind, err)
               : MOE_OK;
}

/* A vector is a plain array of f32, not panels. */
static int put_vector(struct converter *c, const struct source *s, const struct moe_tensor *t,
                      const struct moe_pack_tensor *entry, struct moe_err *err)
{
    float *values = moe_alloc(entry->rows, sizeof *values, err);
    if (!values)
        return MOE_ERR_MEMORY;
    int status = moe_checkpoint_read(s->checkpoint, t, 0, entry->rows, values, err);
    if (status == MOE_OK) {
        c->fingerprint = moe_hash64_chain(c->fingerprint, values, 4 * (uint64_t)entry->rows);
        c->done += t->bytes;
        c->report->source_bytes += t->bytes;
        status = moe_pack_put_tensor(c->writer, entry, values, err);
    }
    free(values);
    return status;
}

static int put_dense(struct converter *c, struct source *s, enum moe_tensor_role role,
                     uint32_t layer, uint32_t rows, uint32_t cols, struct moe_err *err)
{
    const struct moe_tensor *t;
    struct moe_pack_tensor entry = {.rows = rows, .cols = cols};
    enum moe_tensor_kind kind = moe_tensor_spec(role)->kind;
    moe_tensor_pack_name(role, layer, entry.name);
    int status = get_dense(s, role, layer, rows, cols, &t, err);
    if (status != MOE_OK)
        return status;
    c->report->dense_weights += t->n_items;
    if (kind == MOE_KIND_VECTOR) {
        entry.is_vector = true;
        entry.layout.kind = MOE_LAYOUT_F32;
        return put_vector(c, s, t, &entry, err);
    }
    int bits = c->options->dense_bits;
    if (kind == MOE_KIND_ROUTER)
        bits = t->dtype == MOE_DTYPE_F32 ? 32 : 16;
    struct row_source source;
    status = source_of(c, s, t, bits == 16, &source, err);
    if (status != MOE_OK)
        return status;
    entry.layout = convert_layout(c, bits, source.float16_kind);
    struct row_target target = {entry.layout, NULL, &c->report->dense_error};
    target.out = moe_alloc(moe_layout_bytes(entry.layout, rows, cols), 1, err);
    if (!target.out)
        return MOE_ERR_MEMORY;
    status = convert_rows(c, &source, &target, 1, err);
    if (status == MOE_OK)
        status = moe_pack_put_tensor(c->writer, &entry, target.out, err);
    free(target.out);
    return status;
}

static const uint16_t part_roles[N_EXPERT_PARTS] = {MOE_ROLE_GATE, MOE_ROLE_UP, MOE_ROLE_DOWN};

static bool wants_sixteen(const struct converter *c, int part)
{
    bool sixteen = false;
    for (int v = 0; v < c->n_variants; v++)
        sixteen |= (part == 2 ? c->variants[v].bits.down : c->variants[v].bits.gate_up) == 16;
    return sixteen;
}

static void make_class(const struct converter *c, const struct moe_config *config,
                       struct moe_bits bits, const struct row_source *sources,
                       struct moe_expert_class *out)
{
    *out = (struct moe_expert_class){.n_segments = 2, .n_matrices = N_EXPERT_PARTS};
    for (int part = 0; part < N_EXPERT_PARTS; part++) {
        struct moe_class_matrix *m = &out->matrices[part];
        m->role = part_roles[part];
        m->segment = part == 2;
        m->layout =
            convert_layout(c, part == 2 ? bits.down : bits.gate_up, sources[part].float16_kind);
        expert_shape(config, part, &m->rows, &m->cols);
    }
    convert_place_matrices(out);
}

/* Each matrix is read once and encoded for all variants. */
static int put_expert(struct converter *c, struct source *s, uint32_t layer, uint32_t expert,
                      struct moe_err *err)
{
    struct row_source sources[N_EXPERT_PARTS];
    struct moe_expert_class classes[CONVERT_MAX_VARIANTS];
    uint8_t *blocks[CONVERT_MAX_VARIANTS] = {NULL};
    uint8_t *segments[CONVERT_MAX_VARIANTS][MOE_PACK_MAX_SEGMENTS];
    int status = MOE_OK;
    for (int part = 0; part < N_EXPERT_PARTS && status == MOE_OK; part++) {
        const struct moe_tensor *t;
        status = get_expert(s, layer, expert, part, &t, err);
        if (status == MOE_OK)
            status = source_of(c, s, t, wants_sixteen(c, part), &sources[part], err);
        if (status == MOE_OK)
            c->report->expert_weights += t->n_items;
    }
    for (int v = 0; v < c->n_variants && status == MOE_OK; v++) {
        make_class(c, &s->config, c->variants[v].bits, sources, &classes[v]);
        status = convert_alloc_segments(&classes[v], &blocks[v], segments[v], err);
    }
    for (int part = 0; part < N_EXPERT_PARTS && status == MOE_OK; part++) {
        struct row_target targets[CONVERT_MAX_VARIANTS];
        for (int v = 0; v < c->n_variants; v++) {
            const struct moe_class_matrix *m = &classes[v].matrices[part];
            targets[v] = (struct row_target){m->layout, segments[v][m->segment] + m->offset,
                                             &c->report->error[c->variants[v].option]};
        }
        status = convert_rows(c, &sources[part], targets, c->n_variants, err);
    }
    for (int v = 0; v < c->n_variants && status == MOE_OK; v++) {
        uint32_t index;
        status = moe_pack_put_class(c->writer, &classes[v], &index, err);
        if (status == MOE_OK)
            status = moe_pack_put_expert(c->writer, layer, expert, (uint32_t)v, index,
                                         (const void *const *)segments[v], err);
    }
    for (int v = 0; v < c->n_variants; v++)
        free(blocks[v]);
    return status;
}

/* ---- Sections -------------------------------------------------------------------------------- */

static int put_chat_template(struct converter *c, const char *dir, struct moe_err *err)
{
    struct moe_buf text = {0};
    int status = moe_chat_read_template(dir, &text, err);
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
        status = put_chat_template(c, dir, err);
    if (status == MOE_OK)
        status = put_provenance(c, dir, err);
    return status;
}

/* ---- The conversion -------------------------------------------------------------------------- */

static int open_source(struct source *s, const char *dir, struct moe_err *err)
{
    int status = moe_checkpoint_open(&s->checkpoint, dir, err);
    if (status == MOE_OK)
        status = moe_config_read_hf(&s->config, dir, err);
    if (status != MOE_OK)
        return status;
    s->family = moe_family_find(s->config.family);
    if (!s->family)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: unknown family '%s'", dir, s->config.family);
    s->used = moe_alloc(moe_checkpoint_n_tensors(s->checkpoint), sizeof *s->used, err);
    return s->used ? MOE_OK : MOE_ERR_MEMORY;
}

static int create_pack(struct converter *c, const struct source *s, struct moe_err *err)
{
    if (s->config.n_experts == 0)
        c->n_variants = 0; /* a dense model has nothing to store in variants */
    for (int v = 0; v < c->n_variants; v++)
        convert_describe_variant(c, c->variants[v].bits, &c->described[v]);
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
        status = moe_tokenizer_read_hf(&tokenizer, dir, err);
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
        status = convert_commit(&c, err);
    }
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
