/* moe-quantize --synthesize: a pack with drawn weights, from a config.json. */
#include "pack/synthesize.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/text.h"
#include "model/read.h"
#include "pack/convert_internal.h"
#include "quant/drawn.h"
#include "text/vocab.h"

/* Biases and the like: small beside activations of about 1. */
#define SMALL 0x1p-6f

struct synthesis {
    struct converter c;
    struct moe_convert_options wanted;
    const struct moe_synthesize_options *options;
    struct moe_config config;
};

/* The seed of one tensor's numbers; expert and part as in the pack, or all ones. */
static uint64_t seed_of(const struct synthesis *s, uint32_t layer, int role, uint32_t expert,
                        int variant)
{
    const uint64_t key[] = {s->options->seed, layer, (uint64_t)role, expert, (uint64_t)variant};
    uint64_t state = 0;
    for (size_t i = 0; i < sizeof key / sizeof key[0]; i++) {
        state ^= key[i];
        state = moe_random_next(&state);
    }
    return state;
}

/* ---- The dense part ---- */

static bool is_norm(enum moe_tensor_role role)
{
    const char *name = moe_tensor_spec(role)->pack_name;
    size_t n = strlen(name);
    return n >= 4 && strcmp(name + n - 4, "norm") == 0;
}

/* Experts for every token: neighbours, from a drawn one on. */
static void draw_routes(const struct moe_config *c, uint64_t seed, float *out)
{
    for (uint32_t token = 0; token < c->vocab; token++) {
        uint32_t first = (uint32_t)(moe_random_next(&seed) % c->n_experts);
        for (uint32_t k = 0; k < c->top_k; k++)
            out[(uint64_t)token * c->top_k + k] = (float)((first + k) % c->n_experts);
    }
}

static void draw_vector(const struct synthesis *s, enum moe_tensor_role role, uint32_t rows,
                        uint64_t seed, float *out)
{
    if (role == MOE_T_ROUTES) {
        draw_routes(&s->config, seed, out);
        return;
    }
    moe_drawn_vector(rows, SMALL, seed, out);
    for (uint32_t i = 0; is_norm(role) && i < rows; i++)
        out[i] = 1;
}

/* Describes a dense tensor; false: the model has none such. */
static bool describe_tensor(const struct synthesis *s, enum moe_tensor_role role, uint32_t layer,
                            struct moe_pack_tensor *out)
{
    enum moe_tensor_kind kind = moe_tensor_spec(role)->kind;
    *out = (struct moe_pack_tensor){.is_vector = kind == MOE_KIND_VECTOR};
    if (!moe_tensor_shape(&s->config, role, layer, &out->rows, &out->cols))
        return false;
    moe_tensor_pack_name(role, layer, out->name);
    if (out->is_vector)
        out->layout.kind = MOE_LAYOUT_F32;
    else
        out->layout = convert_layout(&s->c, kind == MOE_KIND_ROUTER ? 16 : s->wanted.dense_bits,
                                     out->cols, MOE_LAYOUT_BF16);
    return true;
}

static uint64_t tensor_bytes(const struct moe_pack_tensor *t)
{
    return t->is_vector ? 4 * (uint64_t)t->rows : moe_layout_bytes(t->layout, t->rows, t->cols);
}

static int put_dense(struct synthesis *s, enum moe_tensor_role role, uint32_t layer,
                     const struct moe_pack_tensor *t, struct moe_err *err)
{
    uint64_t seed = seed_of(s, layer, role, UINT32_MAX, -1);
    uint8_t *data = moe_alloc(tensor_bytes(t), 1, err);
    int status;
    MOE_STEP(data ? MOE_OK : MOE_ERR_MEMORY);
    if (t->is_vector)
        draw_vector(s, role, t->rows, seed, (float *)(void *)data);
    else
        MOE_STEP(moe_drawn_matrix(t->layout, t->rows, t->cols, 1 / sqrt(t->cols), seed, data, err));
    MOE_STEP(moe_pack_put_tensor(s->c.writer, t, data, err));
out:
    free(data);
    s->c.report->dense_weights += (uint64_t)t->rows * t->cols;
    s->c.done += tensor_bytes(t);
    return status;
}

/* ---- Experts ---- */

/* The class of a variant's experts. */
static void make_class(const struct synthesis *s, int variant, struct moe_expert_class *out)
{
    struct moe_bits bits = s->c.variants[variant].bits;
    *out = (struct moe_expert_class){.n_segments = 2};
    for (int part = 0; part < MOE_E_N_PARTS; part++) {
        struct moe_class_matrix *m = &out->matrices[out->n_matrices];
        if (!moe_expert_part_shape(&s->config, part, &m->rows, &m->cols))
            continue;
        int width = convert_part_bits(bits, part);
        m->role = (uint16_t)(MOE_ROLE_GATE + part);
        m->segment = moe_expert_part_is_down(part);
        m->layout = convert_layout(&s->c, width ? width : 32, m->cols, MOE_LAYOUT_BF16);
        out->n_matrices++;
    }
    convert_place_matrices(out);
}

static uint64_t class_bytes(const struct moe_expert_class *class_)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < class_->n_segments; i++)
        bytes += class_->segment_bytes[i];
    return bytes;
}

/* Every bias and every code. */
static int draw_expert(const struct synthesis *s, uint32_t layer, uint32_t expert, int variant,
                       const struct moe_expert_class *class_, uint8_t *const *segments,
                       struct moe_err *err)
{
    for (uint32_t i = 0; i < class_->n_segments; i++)
        memset(segments[i], 0, class_->segment_bytes[i]);
    for (uint32_t i = 0; i < class_->n_matrices; i++) {
        const struct moe_class_matrix *m = &class_->matrices[i];
        uint64_t seed = seed_of(s, layer, MOE_T_N_ROLES + m->role, expert, variant);
        uint8_t *at = segments[m->segment] + m->offset;
        if (moe_expert_part_is_bias(convert_part_of(m->role)))
            moe_drawn_vector(m->rows, SMALL, seed, (float *)(void *)at);
        else
            MOE_TRY(
                moe_drawn_matrix(m->layout, m->rows, m->cols, 1 / sqrt(m->cols), seed, at, err));
    }
    return MOE_OK;
}

static int put_variant(struct synthesis *s, uint32_t layer, uint32_t expert, int variant,
                       uint8_t *const *segments, struct moe_err *err)
{
    struct moe_expert_class class_;
    uint32_t index;
    make_class(s, variant, &class_);
    MOE_TRY(moe_pack_put_class(s->c.writer, &class_, &index, err));
    s->c.done += class_bytes(&class_);
    if (s->options->sparse)
        return moe_pack_put_hole(s->c.writer, layer, expert, (uint32_t)variant, index, err);
    MOE_TRY(draw_expert(s, layer, expert, variant, &class_, segments, err));
    return moe_pack_put_expert(s->c.writer, layer, expert, (uint32_t)variant, index,
                               (const void *const *)segments, err);
}

/* All variants of all experts of a layer; segments: room for one expert of each variant. */
static int put_layer(struct synthesis *s, uint32_t layer,
                     uint8_t *segments[][MOE_PACK_MAX_SEGMENTS], struct moe_err *err)
{
    int status = MOE_OK;
    const bool own = s->config.layers[layer].moe && moe_config_owns(&s->config, layer);
    for (uint32_t e = 0; own && e < s->config.n_experts; e++) {
        for (int v = 0; v < s->c.n_variants && status == MOE_OK; v++)
            status = put_variant(s, layer, e, v, segments[v], err);
        if (status == MOE_OK)
            status = convert_check_stop(&s->c, err);
        if (status != MOE_OK)
            return status;
        moe_progress_report(s->wanted.progress, "drawing", s->c.done, s->c.total);
    }
    return MOE_OK;
}

static int put_experts(struct synthesis *s, struct moe_err *err)
{
    uint8_t *blocks[CONVERT_MAX_VARIANTS] = {NULL};
    uint8_t *segments[CONVERT_MAX_VARIANTS][MOE_PACK_MAX_SEGMENTS] = {{NULL}};
    int status = MOE_OK;
    for (int v = 0; v < s->c.n_variants; v++) {
        struct moe_expert_class class_;
        make_class(s, v, &class_);
        MOE_STEP(convert_alloc_segments(&class_, &blocks[v], segments[v], err));
    }
    for (uint32_t layer = 0; layer < s->config.n_layers; layer++)
        MOE_STEP(put_layer(s, layer, segments, err));
out:
    for (int v = 0; v < s->c.n_variants; v++)
        free(blocks[v]);
    return status;
}

/* ---- The whole ---- */

/* Calls put_dense for every dense tensor, in the order of other packs; only adds up without a
 * writer. */
static int walk_dense(struct synthesis *s, struct moe_err *err)
{
    for (int per_layer = 0; per_layer < 2; per_layer++)
        for (uint32_t layer = 0; layer < (per_layer ? s->config.n_layers : 1); layer++)
            for (int role = 0; role < MOE_T_N_ROLES; role++) {
                struct moe_pack_tensor t;
                if (moe_tensor_spec(role)->per_layer != per_layer ||
                    !describe_tensor(s, role, layer, &t))
                    continue;
                s->c.total += s->c.writer ? 0 : moe_round_up(tensor_bytes(&t), MOE_PACK_ALIGN);
                int status = s->c.writer ? put_dense(s, role, layer, &t, err) : MOE_OK;
                if (status == MOE_OK)
                    status = convert_check_stop(&s->c, err);
                if (status != MOE_OK)
                    return status;
            }
    return MOE_OK;
}

static int check_room(struct synthesis *s, struct moe_err *err)
{
    struct statvfs fs;
    struct moe_expert_class class_;
    const struct moe_loop loop = moe_config_moe_loop(&s->config);
    uint64_t n_moe = moe_loop_owners(&loop, s->config.n_moe_layers), experts = 0;
    int status = walk_dense(s, err);
    for (int v = 0; v < s->c.n_variants; v++) {
        make_class(s, v, &class_);
        for (uint32_t i = 0; i < class_.n_segments; i++)
            experts +=
                n_moe * s->config.n_experts * moe_round_up(class_.segment_bytes[i], MOE_PACK_ALIGN);
    }
    uint64_t needed = s->c.total + (s->options->sparse ? 0 : experts);
    s->c.total += experts;
    char *directory = status == MOE_OK ? moe_path_directory(s->c.out_path, err) : NULL;
    if (status != MOE_OK || !directory)
        return status != MOE_OK ? status : MOE_ERR_MEMORY;
    char needs[32], has[32];
    if (statvfs(directory, &fs) == 0 && needed / fs.f_frsize > fs.f_bavail)
        status = moe_fail(err, MOE_ERR_IO, "%s: needs %s, the disk has %s%s", s->c.out_path,
                          moe_format_bytes(needed, needs),
                          moe_format_bytes((uint64_t)fs.f_bavail * fs.f_frsize, has),
                          s->options->sparse ? "" : " (--sparse leaves the experts out)");
    free(directory);
    return status;
}

void moe_synthesize_name(const char *description, char out[MOE_SOURCE_NAME_BYTES])
{
    moe_convert_source_name(description, out);
    size_t n = strlen(out);
    if (n > 5 && strcmp(out + n - 5, ".json") == 0)
        out[n - 5] = '\0';
}

static int put_provenance(struct synthesis *s, struct moe_err *err)
{
    char name[MOE_SOURCE_NAME_BYTES];
    moe_synthesize_name(s->c.source_path, name);
    struct moe_buf text = {0};
    struct moe_emit e;
    moe_emit_begin_json(&e, &text, MOE_EMIT_COMPACT);
    moe_emit_text(&e, "tool", "moe-quantize");
    moe_emit_text(&e, "version", MOE_VERSION);
    moe_emit_text(&e, "source", moe_utf8_valid((const uint8_t *)name, strlen(name)) ? name : "?");
    moe_emit_text(&e, "method", s->wanted.method->name);
    moe_emit_u64(&e, "group", s->wanted.group);
    convert_emit_dense(&s->c, &e);
    convert_emit_experts(&s->c, &e);
    moe_emit_open_line_map(&e, "synthesized");
    moe_emit_u64(&e, "seed", s->options->seed);
    moe_emit_bool(&e, "sparse", s->options->sparse);
    moe_emit_close(&e);
    int status = convert_put_provenance(&s->c, &e, err);
    moe_buf_release(&text);
    return status;
}

static int put_sections(struct synthesis *s, struct moe_err *err)
{
    const uint64_t kind[] = {s->options->seed, s->options->sparse};
    struct moe_tokenizer *tokenizer = NULL;
    struct moe_buf model = {0}, tokens = {0};
    int status;
    MOE_STEP(moe_tokenizer_of_bytes(&tokenizer, err));
    moe_config_write(&s->config, &model);
    moe_tokenizer_write(tokenizer, &tokens);
    if (model.failed || tokens.failed)
        MOE_STEP(moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", s->c.out_path));
    MOE_STEP(moe_pack_put_section(s->c.writer, MOE_PACK_MODEL, model.data, model.size, err));
    MOE_STEP(moe_pack_put_section(s->c.writer, MOE_PACK_TOKENIZER, tokens.data, tokens.size, err));
    moe_pack_set_source_fingerprint(
        s->c.writer, moe_hash64_chain(moe_hash64(model.data, model.size), kind, sizeof kind));
    MOE_STEP(put_provenance(s, err));
out:
    moe_buf_release(&model);
    moe_buf_release(&tokens);
    moe_tokenizer_free(tokenizer);
    return status;
}

static int create_pack(struct synthesis *s, struct moe_err *err)
{
    struct converter *c = &s->c;
    for (int v = 0; v < c->n_variants; v++) {
        convert_describe_variant(c, v, &c->described[v]);
        strcpy(c->described[v].method, "drawn");
    }
    return moe_pack_create(&c->writer, c->out_path, s->config.n_layers, s->config.n_experts,
                           c->described, (uint32_t)c->n_variants, 0, 0, err);
}

static int synthesize(struct synthesis *s, struct moe_err *err)
{
    MOE_TRY(convert_start(&s->c, &s->wanted, true, err));
    MOE_TRY(convert_check_output(&s->c, err));
    MOE_TRY(moe_config_read_hf_file(&s->config, s->c.source_path, err));
    if (s->config.drafter_kind)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: describes a head that only drafts, which is nothing without its model",
                        s->c.source_path);
    if (s->config.n_experts == 0)
        s->c.n_variants = 0; /* a dense model has nothing to store in variants */
    s->c.no_gate = !moe_act_is_gated(s->config.expert_act);
    MOE_TRY(check_room(s, err));
    MOE_TRY(create_pack(s, err));
    MOE_TRY(put_sections(s, err));
    MOE_TRY(walk_dense(s, err));
    MOE_TRY(put_experts(s, err));
    return convert_commit(&s->c, err);
}

int moe_synthesize(const char *description, const char *out_path,
                   const struct moe_synthesize_options *options, struct moe_convert_report *report,
                   struct moe_err *err)
{
    struct synthesis *s = moe_alloc(1, sizeof *s, err);
    *report = (struct moe_convert_report){0};
    if (!s)
        return MOE_ERR_MEMORY;
    s->options = options;
    s->wanted = *options->convert;
    s->c = (struct converter){.report = report, .source_path = description, .out_path = out_path};
    int status = synthesize(s, err);
    moe_pack_abort(s->c.writer);
    convert_release(&s->c);
    free(s);
    return status;
}
