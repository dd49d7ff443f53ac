/* From a checkpoint to a pack. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"
#include "chat/chat.h"
#include "convert/convert_weights.h"
#include "family/family.h"
#include "family/read.h"
#include "fmt/checkpoint.h"
#include "fmt/gguf.h"
#include "model/sampling.h"
#include "vocab/vocab.h"

/* ---- First pass: everything is there ---- */

static void mark(struct converter *c, struct checkpoint_source *s, const struct convert_view *view)
{
    s->used[moe_checkpoint_index(s->checkpoint, view->tensor)] = true;
    c->total += convert_view_bytes(view);
}

/* A tensor without a place in the model means that the model computes something that we do not. */
static int check_unused(const struct converter *c, const struct checkpoint_source *s,
                        struct moe_err *err)
{
    int status = MOE_OK;
    for (uint64_t i = 0; i < moe_checkpoint_n_tensors(s->checkpoint) && status == MOE_OK; i++) {
        const struct moe_tensor *tensor = moe_checkpoint_at(s->checkpoint, i);
        const char *name = tensor->name;
        /* Shared experts that a model has none of may be there, of width 0. */
        bool known = s->used[i] || tensor->n_items == 0 || convert_may_ignore(&s->from, name);
        status = known ? MOE_OK : convert_check_copy(&s->from, tensor, &known, err);
        c->report->n_beyond +=
            !s->used[i] && convert_is_beyond(&s->from, name) && !convert_is_shared(&s->from, name);
        c->report->n_visual += convert_sees_images(&s->from, name);
        if (status == MOE_OK && !known)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: tensor '%.200s' has no place in a %s model as %s describes it",
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
        for (uint32_t e = 0; s->config.layer_is_moe[layer] && e < s->config.n_experts; e++) {
            c->ahead = layer >= s->config.n_layers;
            status = fn(c, s, layer, e, err);
            if (status != MOE_OK)
                return status;
        }
    return MOE_OK;
}

static int check_dense(struct converter *c, struct checkpoint_source *s, enum moe_tensor_role role,
                       uint32_t layer, struct moe_err *err)
{
    struct convert_view view;
    int status = convert_view_dense(&s->from, role, layer, &view, err);
    if (status == MOE_OK)
        mark(c, s, &view);
    return status;
}

/* ---- The source's own precision ---- */

static int see_dense(struct converter *c, struct checkpoint_source *s, enum moe_tensor_role role,
                     uint32_t layer, struct moe_err *err)
{
    struct convert_view view;
    int status = convert_view_dense(&s->from, role, layer, &view, err);
    if (status == MOE_OK && moe_tensor_spec(role)->kind == MOE_KIND_DENSE)
        s->quantized |= moe_dtype_block(view.tensor->dtype)->items > 1;
    return status;
}

static int see_expert(struct converter *c, struct checkpoint_source *s, uint32_t layer,
                      uint32_t expert, struct moe_err *err)
{
    struct moe_bits *own = &s->own.bits[(uint64_t)layer * s->config.n_experts + expert];
    int status = MOE_OK;
    (void)c;
    for (int part = 0; part < MOE_E_N_PARTS && status == MOE_OK; part++) {
        struct convert_view view;
        uint32_t rows, cols;
        if (moe_expert_part_is_bias(part) || !moe_expert_part_shape(&s->config, part, &rows, &cols))
            continue;
        status = convert_view_expert(&s->from, layer, expert, part, &view, err);
        if (status != MOE_OK)
            break;
        const struct moe_ggml_type *type = moe_dtype_block(view.tensor->dtype);
        int *bits = moe_expert_part_is_down(part) ? &own->down : &own->gate_up;
        int needed = moe_ggml_bits(type);
        *bits = needed > *bits ? needed : *bits;
        s->quantized |= type->items > 1;
    }
    return status;
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

/* Replaces own_experts and own_dense by what they mean for this source. */
static int take_own(struct converter *c, struct checkpoint_source *s,
                    struct moe_convert_options *options, struct moe_err *err)
{
    s->own = (struct moe_expert_map){.name = moe_checkpoint_dir(s->checkpoint),
                                     .n_layers = moe_config_all_layers(&s->config),
                                     .n_experts = s->config.n_experts};
    s->own.bits = moe_alloc((uint64_t)s->own.n_layers * s->own.n_experts, sizeof *s->own.bits, err);
    int status = s->own.bits ? walk_dense(c, s, see_dense, err) : MOE_ERR_MEMORY;
    if (status == MOE_OK)
        status = walk_experts(c, s, see_expert, err);
    if (status != MOE_OK)
        return status;
    c->quantized = s->quantized;
    c->report->kept_experts = s->quantized && options->own_experts;
    c->report->kept_dense = s->quantized && options->own_dense;
    if (c->report->kept_experts)
        choose_own_variant(s, options);
    return MOE_OK;
}

/* ---- What is carried over ---- */

static void check_carried(const struct converter *c, struct checkpoint_source *s, uint32_t layer,
                          uint32_t expert, const struct convert_view *view, int part)
{
    const struct moe_ggml_type *type = moe_dtype_block(view->tensor->dtype);
    for (int v = 0; v < c->n_variants && !moe_expert_part_is_bias(part); v++)
        if (view->transposed || type->items == 1 ||
            moe_ggml_layout(type, convert_part_bits(convert_bits(c, v, layer, expert), part))
                    .kind == MOE_LAYOUT_NONE)
            s->carried[v] = false;
}

static int check_expert(struct converter *c, struct checkpoint_source *s, uint32_t layer,
                        uint32_t expert, struct moe_err *err)
{
    int status = MOE_OK;
    for (int part = 0; part < MOE_E_N_PARTS && status == MOE_OK; part++) {
        struct convert_view view;
        uint32_t rows, cols;
        if (!moe_expert_part_shape(&s->config, part, &rows, &cols))
            continue;
        status = convert_view_expert(&s->from, layer, expert, part, &view, err);
        if (status == MOE_OK) {
            mark(c, s, &view);
            check_carried(c, s, layer, expert, &view, part);
        }
    }
    return status;
}

/* ---- Sections ---- */

static int put_chat_template(struct converter *c, const struct checkpoint_source *s,
                             struct moe_err *err)
{
    struct moe_buf text = {0};
    int status = MOE_OK;
    if (s->gguf)
        status = moe_chat_read_gguf(s->gguf, &text, err);
    else
        status = moe_chat_read_template(moe_checkpoint_dir(s->checkpoint), &text, err);
    if (status == MOE_OK && text.failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", c->out_path);
    if (status == MOE_OK)
        status = moe_pack_put_section(c->writer, MOE_PACK_CHAT, text.data, text.size, err);
    moe_buf_release(&text);
    return status;
}

static int put_sampling(struct converter *c, const struct checkpoint_source *s, struct moe_err *err)
{
    struct moe_sampler_options published;
    struct moe_buf text = {0};
    int status = s->gguf ? moe_sampling_read_gguf(&published, s->gguf, err)
                         : moe_sampling_read_hf(&published, moe_checkpoint_dir(s->checkpoint), err);
    if (status == MOE_OK)
        status = moe_sampling_write(&published, &text, err);
    if (status == MOE_OK)
        status = moe_pack_put_section(c->writer, MOE_PACK_SAMPLING, text.data, text.size, err);
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
    moe_emit_text(&e, "tool", "moe-quantize");
    moe_emit_text(&e, "version", MOE_VERSION);
    moe_emit_text(&e, "source", printable ? name : "?");
    moe_emit_text(&e, "method", c->options->method->name);
    moe_emit_u64(&e, "group", c->options->group);
    if (c->report->kept_dense)
        moe_emit_text(&e, "dense", "own");
    else
        moe_emit_i64(&e, "dense", c->options->dense_bits);
    convert_emit_experts(c, &e);
    convert_emit_map(c, &e);
    int status = convert_put_provenance(c, &e, err);
    moe_buf_release(&text);
    return status;
}

/* The description as it is without layers that draft: a model is the same with and without. */
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
    int status = hash_description(c, s, err);
    if (status != MOE_OK)
        return status;
    c->fingerprint = moe_hash64_chain(c->fingerprint, tokenizer->data, tokenizer->size);
    status = moe_pack_put_section(c->writer, MOE_PACK_MODEL, model->data, model->size, err);
    if (status == MOE_OK)
        status = moe_pack_put_section(c->writer, MOE_PACK_TOKENIZER, tokenizer->data,
                                      tokenizer->size, err);
    if (status == MOE_OK)
        status = put_chat_template(c, s, err);
    if (status == MOE_OK)
        status = put_sampling(c, s, err);
    if (status == MOE_OK)
        status = put_provenance(c, dir, err);
    return status;
}

/* ---- The conversion ---- */

/* A directory's config.json is read before its weights are looked for: a model that is not known is
 * not helped by them. */
static int read_description(struct checkpoint_source *s, const char *dir, struct moe_err *err)
{
    int status = MOE_OK;
    char *config = moe_path_join(dir, "config.json", err);
    if (!config)
        return MOE_ERR_MEMORY;
    bool described = moe_path_exists(config);
    free(config);
    if (described)
        status = moe_config_read_hf(&s->config, dir, err);
    if (status == MOE_OK)
        status = moe_checkpoint_open(&s->checkpoint, dir, err);
    if (status != MOE_OK || described)
        return status;
    s->gguf = moe_checkpoint_gguf(s->checkpoint);
    return s->gguf ? moe_config_read_gguf(&s->config, s->checkpoint, err)
                   : moe_config_read_hf(&s->config, dir, err); /* for its error */
}

/* Takes a head that is there although it is said to be the embedding: with other values it is the
 * model's own, as transformers (5) loads such checkpoints, of all families; otherwise it is the
 * embedding once more. GGUF says that they are one by having no head. */
static int take_head(struct checkpoint_source *s, struct moe_err *err)
{
    const struct moe_tensor *head;
    bool same = true;
    int status = MOE_OK;
    if (!s->config.tied_head)
        return MOE_OK;
    status = convert_compare_head(&s->from, &head, &same, err);
    if (status == MOE_OK && head && same)
        s->used[moe_checkpoint_index(s->checkpoint, head)] = true;
    s->config.tied_head = same;
    return status;
}

static int open_source(struct checkpoint_source *s, const char *dir, struct moe_err *err)
{
    int status = read_description(s, dir, err);
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
    return s->used ? take_head(s, err) : MOE_ERR_MEMORY;
}

/* Whether the checkpoint has every tensor of a layer, but for its experts' after the first. */
static bool is_whole(const struct checkpoint_source *s, uint32_t layer)
{
    struct convert_view view;
    uint32_t rows, cols;
    bool whole = true;
    for (int role = 0; role < MOE_T_N_ROLES && whole; role++)
        if (moe_tensor_spec(role)->per_layer &&
            moe_tensor_shape(&s->config, role, layer, &rows, &cols))
            whole = convert_view_dense(&s->from, role, layer, &view, NULL) == MOE_OK;
    for (int part = 0; part < MOE_E_N_PARTS && whole; part++)
        if (moe_expert_part_shape(&s->config, part, &rows, &cols))
            whole = convert_view_expert(&s->from, layer, 0, part, &view, NULL) == MOE_OK;
    return whole;
}

/* A layer that drafts is taken where it is whole, behind a model that it is implemented for. */
static void find_ahead(struct checkpoint_source *s)
{
    uint32_t layer = s->config.n_layers;
    moe_config_set_ahead(&s->config, 1);
    if (moe_config_check(&s->config, "", NULL) == MOE_OK && is_whole(s, layer)) {
        s->config.n_drafting = 1;
        return;
    }
    if (layer < MOE_MAX_LAYERS)
        s->config.layer_is_moe[layer] = 0;
    moe_config_set_ahead(&s->config, 0);
}

/* What the pack will say of the model and its tokenizer, read as opening a pack reads it
 * (layer/model.c): what would be refused there is refused here, before anything is converted. */
static int check_sections(const struct checkpoint_source *s, const struct moe_buf *model,
                          const struct moe_buf *tokens, struct moe_err *err)
{
    const char *dir = moe_checkpoint_dir(s->checkpoint);
    struct moe_tokenizer *tokenizer = NULL;
    struct moe_config *config = NULL;
    if (model->failed || tokens->failed)
        return moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", dir);
    config = moe_alloc(1, sizeof *config, err);
    int status =
        config ? moe_config_read(config, dir, model->data, model->size, err) : MOE_ERR_MEMORY;
    if (status == MOE_OK)
        status = moe_tokenizer_read(&tokenizer, dir, tokens->data, tokens->size, err);
    moe_tokenizer_free(tokenizer);
    free(config);
    return status;
}

static int create_pack(struct converter *c, const struct checkpoint_source *s, struct moe_err *err)
{
    if (s->config.n_experts == 0)
        c->n_variants = 0; /* a dense model has nothing to store in variants */
    for (int v = 0; v < c->n_variants; v++) {
        convert_describe_variant(c, v, &c->described[v]);
        if (s->carried[v])
            strcpy(c->described[v].method, "carried");
    }
    int status =
        moe_pack_create(&c->writer, c->out_path, s->config.n_layers, s->config.n_experts,
                        c->described, (uint32_t)c->n_variants, 0, c->options->zstd_level, err);
    return status == MOE_OK ? moe_pack_put_ahead(c->writer, s->config.n_ahead, err) : status;
}

int moe_convert_checkpoint(const char *dir, const char *out_path,
                           const struct moe_convert_options *options,
                           struct moe_convert_report *report, struct moe_err *err)
{
    struct moe_convert_options wanted = *options;
    struct converter c = {.report = report, .source_path = dir, .out_path = out_path};
    struct checkpoint_source *s = NULL;
    struct moe_tokenizer *tokenizer = NULL;
    struct moe_buf model = {0}, tokens = {0};
    int status = convert_start(&c, &wanted, true, err);
    *report = (struct moe_convert_report){0};
    if (status == MOE_OK)
        status = convert_check_output(&c, err);
    if (status == MOE_OK && !(s = moe_alloc(1, sizeof *s, err)))
        status = MOE_ERR_MEMORY;
    if (status == MOE_OK)
        status = open_source(s, dir, err);
    if (status == MOE_OK) {
        c.n_layers = s->config.n_layers;
        if (!options->no_ahead)
            find_ahead(s);
        c.no_gate = !moe_act_is_gated(s->config.expert_act);
        status = take_own(&c, s, &wanted, err);
    }
    if (status == MOE_OK)
        status = convert_start(&c, &wanted, true, err);
    if (status == MOE_OK)
        status = convert_check_map(&c, s->config.n_experts, s->config.layer_is_moe, err);
    if (status == MOE_OK)
        status = s->gguf ? moe_tokenizer_read_gguf(&tokenizer, s->gguf, err)
                         : moe_tokenizer_read_hf(&tokenizer, dir, err);
    if (status == MOE_OK) {
        moe_config_write(&s->config, &model);
        moe_tokenizer_write(tokenizer, &tokens);
        status = check_sections(s, &model, &tokens, err);
    }
    if (status == MOE_OK)
        status = walk_dense(&c, s, check_dense, err);
    if (status == MOE_OK)
        status = walk_experts(&c, s, check_expert, err);
    if (status == MOE_OK)
        status = check_unused(&c, s, err);
    if (status == MOE_OK)
        status = create_pack(&c, s, err);
    if (status == MOE_OK)
        status = put_sections(&c, s, &model, &tokens, err);
    if (status == MOE_OK)
        status = walk_dense(&c, s, convert_put_dense, err);
    if (status == MOE_OK)
        status = walk_experts(&c, s, convert_put_expert, err);
    if (status == MOE_OK) {
        moe_pack_set_source_fingerprint(c.writer, c.fingerprint);
        s->own.source_fingerprint = c.fingerprint;
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
        free(s->own.bits);
    }
    free(s);
    return status;
}
