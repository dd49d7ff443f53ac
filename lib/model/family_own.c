/* What single families work out from their config.json (family.h: hf.own), and the GGUF functions
 * of DeepSeek, MiniCPM and gpt-oss, which are short. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fmt/checkpoint.h"
#include "fmt/json.h"
#include "model/config.h"
#include "model/family_internal.h"
#include "model/rope.h"
#include "quant/layout.h"

/* ---- DeepSeek-V2 and V3: MLA, groups of experts ---- */

/* On entry head_dim is the part that does not rotate. */
int family_deepseek_v3_hf(struct moe_config *c, const char *path, const json_t *json,
                          struct moe_rope_settings *rope, struct moe_err *err)
{
    bool rotates = c->positions == MOE_POSITIONS_ROTARY;
    if (c->kv_rank == 0 || c->head_dim == 0 || (rotates && c->rope_dim == 0))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: latent attention with %" PRIu32 " shared, %" PRIu32
                        " plain and %" PRIu32 " rotated values, expected some of each",
                        path, c->kv_rank, c->head_dim, c->rope_dim);
    if (c->n_kv_heads != 0 && c->n_kv_heads != c->n_heads)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: latent attention with 'num_key_value_heads' %" PRIu32 " for %" PRIu32
                        " heads is not implemented",
                        path, c->n_kv_heads, c->n_heads);
    c->head_dim += c->rope_dim;
    double mscale = moe_rope_mscale(c, rope);
    c->attn_scale = (float)(mscale * mscale / sqrt(c->head_dim));
    return MOE_OK;
}

int family_topk_method_hf(struct moe_config *c, const char *path, const json_t *json,
                          struct moe_rope_settings *rope, struct moe_err *err)
{
    const char *method = "greedy";
    MOE_TRY(moe_json_get_text(path, json, "topk_method", false, &method, err));
    if (strcmp(method, "greedy") == 0) {
        c->n_groups = c->top_groups = 0;
        return MOE_OK;
    }
    if (strcmp(method, "group_limited_greedy") != 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: 'topk_method' %.60s is not implemented",
                        path, method);
    if (c->n_groups == 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'topk_method' %s needs 'n_group' and 'topk_group'", path, method);
    return MOE_OK;
}

int family_deepseek_v2_hf(struct moe_config *c, const char *path, const json_t *json,
                          struct moe_rope_settings *rope, struct moe_err *err)
{
    MOE_TRY(family_deepseek_v3_hf(c, path, json, rope, err));
    return family_topk_method_hf(c, path, json, rope, err);
}

/* All of a head rotates, whatever "rope.dimension_count" says. */
int family_deepseek_ocr_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                             struct moe_rope_settings *rope, struct moe_err *err)
{
    c->rope_dim = 0;
    return MOE_OK;
}

static int latent_attention_of_gguf(struct moe_config *c, const struct moe_gguf *gguf,
                                    struct moe_err *err)
{
    c->n_kv_heads = 0; /* 1 in files that count what is cached */
    bool rotates = c->positions == MOE_POSITIONS_ROTARY;
    if (c->kv_rank == 0 || (rotates && c->rope_dim == 0) || c->head_dim <= c->rope_dim)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: latent attention with %" PRIu32 " shared, %" PRIu32
                        " rotated of %" PRIu32
                        " values, expected some of each and fewer rotated than all",
                        moe_gguf_path(gguf), c->kv_rank, c->rope_dim, c->head_dim);
    return MOE_OK;
}

int family_deepseek_v2_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                            struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    MOE_TRY(latent_attention_of_gguf(c, gguf, err));
    if (fabsf(c->norm_eps - 1e-6f) > 1e-9f) /* like the norms in attention */
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: a norm epsilon of %g, only 1e-06 is implemented for this family",
                        moe_gguf_path(gguf), (double)c->norm_eps);
    return MOE_OK;
}

/* ---- DeepSeek-V3 and others with its router ---- */

int family_deepseek_v3_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                            struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    MOE_TRY(latent_attention_of_gguf(c, gguf, err));
    /* Files older than the group keys are of V3 and R1, which have these. */
    if (!moe_gguf_has(gguf, moe_gguf_arch_key(gguf, "expert_group_count").text) &&
        c->n_experts == 256 && c->n_layers == 61) {
        c->n_groups = 8;
        c->top_groups = 4;
    }
    return MOE_OK;
}

/* Files that scale queries and do not say by which steps have those of llama.cpp. */
static void complete_query_steps(struct moe_config *c)
{
    if (c->query_scale == 0)
        c->query_step = 0;
    else if (c->query_step == 0)
        c->query_step = 8192;
    c->query_from_zero = c->query_step != 0;
}

/* YaRN's magnitude is of rotated values only. */
int family_ministral3_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                           struct moe_rope_settings *rope, struct moe_err *err)
{
    complete_query_steps(c);
    if (c->attn_scale == 0)
        c->attn_scale = 1 / sqrtf((float)(c->head_dim ? c->head_dim : c->hidden / c->n_heads));
    return MOE_OK;
}

int family_mistral4_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                         struct moe_rope_settings *rope, struct moe_err *err)
{
    complete_query_steps(c);
    return family_deepseek_v3_gguf(c, ck, rope, err);
}

/* "use_qk_norm" is a key of GLM's. */
int family_sigmoid_hf(struct moe_config *c, const char *path, const json_t *json,
                      struct moe_rope_settings *rope, struct moe_err *err)
{
    bool norm = c->qk_norm != MOE_QK_NORM_NONE;
    MOE_TRY(moe_json_get_bool(path, json, "use_qk_norm", false, &norm, err));
    if (c->qk_norm == MOE_QK_NORM_NONE || !norm)
        c->qk_norm = norm ? MOE_QK_NORM_HEAD : MOE_QK_NORM_NONE;
    return MOE_OK;
}

int family_bailing_moe_hf(struct moe_config *c, const char *path, const json_t *json,
                          struct moe_rope_settings *rope, struct moe_err *err)
{
    const json_t *list = json_object_get(json, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    if (!name || strcmp(name, "BailingMoeV2ForCausalLM") != 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: 'architectures' is %.60s: of this model type BailingMoeForCausalLM "
                        "(Ling 1) and BailingMoeV2ForCausalLM (Ling and Ring 2.0) are implemented",
                        path, name ? name : "absent");
    return MOE_OK;
}

/* "attn_type_list": 1 for ordinary attention. */
int family_minimax_m2_hf(struct moe_config *c, const char *path, const json_t *json,
                         struct moe_rope_settings *rope, struct moe_err *err)
{
    const json_t *types = json_object_get(json, "attn_type_list"), *type;
    size_t i;
    json_array_foreach(types, i, type)
    {
        if (json_integer_value(type) != 1)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: 'attn_type_list' item %zu is not 1; other attention is not "
                            "implemented for this family",
                            path, i);
    }
    return MOE_OK;
}

/* ---- ERNIE-4.5: which layers have experts ---- */

/* Every "moe_layer_interval"-th from "moe_layer_start_index" to "moe_layer_end_index", -1 the last.
 */
int family_ernie4_5_moe_hf(struct moe_config *c, const char *path, const json_t *json,
                           struct moe_rope_settings *rope, struct moe_err *err)
{
    const json_t *end = json_object_get(json, "moe_layer_end_index");
    uint32_t first = 1, last = MOE_MAX_LAYERS, step = 1;
    bool to_end = json_is_integer(end) && json_integer_value(end) == -1;
    const struct family_number numbers[] = {
        {"moe_layer_start_index", &first, MOE_MAX_LAYERS},
        {"moe_layer_interval", &step, MOE_MAX_LAYERS},
        {to_end ? "" : "moe_layer_end_index", &last, MOE_MAX_LAYERS},
    };
    MOE_TRY(family_read_numbers(path, json, numbers, sizeof numbers / sizeof numbers[0], err));
    if (step == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'moe_layer_interval' 0, expected 1 or more",
                        path);
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].moe = i >= first && i <= last && (i + 1) % step == 0;
    return MOE_OK;
}

/* "moe_intermediate_size": of experts for text, which shared ones are as wide as, and for images.
 */
int family_ernie4_5_vl_hf(struct moe_config *c, const char *path, const json_t *json,
                          struct moe_rope_settings *rope, struct moe_err *err)
{
    const json_t *widths = family_given(json, "moe_intermediate_size");
    json_int_t width = widths ? json_integer_value(json_array_get(widths, 0)) : c->expert_ff;
    uint32_t n_shared = 2;
    if (width < 1 || width > MOE_MAX_DIM || (widths && json_array_size(widths) != 2))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'moe_intermediate_size' must be a list of two numbers, of experts for "
                        "text and for images",
                        path);
    c->expert_ff = (uint32_t)width;
    MOE_TRY(moe_json_get_u32(path, json, "moe_num_shared_experts", MOE_MAX_EXPERTS, false,
                             &n_shared, err));
    return family_set_shared(c, n_shared, path, err);
}

/* ---- Hunyuan: numbers, or lists of one for each layer ---- */

/* A number up to `most`, or a list with that number for every layer. Absent or null leaves it as it
 * was. */
static int read_same_everywhere(const struct moe_config *c, const char *path, const json_t *json,
                                const char *key, uint32_t most, uint32_t *out, struct moe_err *err)
{
    const json_t *list = json_object_get(json, key);
    if (!json_is_array(list))
        return moe_json_get_u32(path, json, key, most, false, out, err);
    json_int_t first = json_integer_value(json_array_get(list, 0));
    bool whole = json_array_size(list) == c->n_layers && first >= 0 && first <= most;
    for (uint32_t i = 0; i < c->n_layers && whole; i++) {
        const json_t *item = json_array_get(list, i);
        whole = json_is_integer(item);
        if (whole && json_integer_value(item) != first)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: '%s' differs by layer, which is not implemented", path, key);
    }
    if (!whole)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' must be a list of %" PRIu32 " numbers", path,
                        key, c->n_layers);
    *out = (uint32_t)first;
    return MOE_OK;
}

int family_hunyuan_hf(struct moe_config *c, const char *path, const json_t *json,
                      struct moe_rope_settings *rope, struct moe_err *err)
{
    const char *name = json_string_value(json_array_get(json_object_get(json, "architectures"), 0));
    uint32_t n_shared = 1, width = c->expert_ff;
    const struct family_number numbers[] = {
        {"moe_topk", &c->top_k, MOE_MAX_EXPERTS},
        {"num_experts", &c->n_experts, MOE_MAX_EXPERTS},
        {"num_shared_expert", &n_shared, MOE_MAX_EXPERTS},
        {"moe_intermediate_size", &width, MOE_MAX_DIM},
    };
    if (name && strcmp(name, "HunYuanMoEV1ForCausalLM") != 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: 'architectures' is %.60s: of this model type only "
                        "HunYuanMoEV1ForCausalLM (Hunyuan-A13B) is implemented",
                        path, name);
    c->n_experts = c->top_k = 1;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        MOE_TRY(read_same_everywhere(c, path, json, numbers[i].key, numbers[i].max, numbers[i].out,
                                     err));
    if (n_shared != 1 || width != c->expert_ff)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: %" PRIu32 " shared experts beside others of width %" PRIu32
                        ", only one, of the width of all ('intermediate_size'), is implemented",
                        path, n_shared, width);
    c->shared_ff = c->expert_ff;
    return MOE_OK;
}

/* ---- Local and global layers that rotate differently: Mellum, Laguna, MiMo-V2, Gemma-3 ---- */

/* On entry *rope is global layers' rotation; afterwards it is that of the layers that config's own
 * frequencies are for: of local ones, which "rope_parameters" has as well, or older files by the
 * base alone. */
int family_two_rotations_hf(struct moe_config *c, const char *path, const json_t *json,
                            struct moe_rope_settings *rope, struct moe_err *err)
{
    static const char *const bases[] = {"rope_local_base_freq", "swa_rope_theta"};
    const json_t *both = json_object_get(json, "rope_parameters");
    const json_t *local = json_object_get(both, "sliding_attention");
    double partial = rope->partial;
    uint32_t n_local = moe_config_count_layers(c, MOE_LAYER(windowed));
    if (n_local == 0) {
        c->window = 0;
        return MOE_OK;
    }
    if (n_local < c->n_layers) {
        c->global_head_dim = c->head_dim;
        if (c->global_kv_heads == 0)
            c->global_kv_heads = c->n_kv_heads;
        MOE_TRY(moe_rope_apply_global(c, rope, path, err));
    }
    moe_rope_settings_init(rope);
    rope->partial = local && partial != 0 ? 1 : partial;
    for (size_t i = 0; i < sizeof bases / sizeof bases[0]; i++)
        MOE_TRY(moe_json_get_double(path, json, bases[i], false, &rope->theta, err));
    return json_is_object(local) ? moe_rope_read_object(rope, path, local, err) : MOE_OK;
}

/* ---- dots3-note: latent attention of two shapes ---- */

/* Refuses a "per_layer_config" that is not of the local layers and the same for all of them. */
static int check_dots3_layers(const struct moe_config *c, const char *path, const json_t *json,
                              struct moe_err *err)
{
    const json_t *layers = family_given(json, "per_layer_config"), *of, *first = NULL;
    bool fits = true;
    uint32_t n = 0;
    for (uint32_t i = 0; layers && i < c->n_layers; i++) {
        char number[16];
        snprintf(number, sizeof number, "%" PRIu32, i);
        of = family_given(layers, number);
        first = first ? first : of;
        n += of != NULL;
        fits &= c->layers[i].windowed ? of && json_equal(of, first) : !of;
    }
    return !layers || json_object_size(layers) == 0 || (fits && n == json_object_size(layers))
               ? MOE_OK
               : moe_fail(
                     err, MOE_ERR_UNSUPPORTED,
                     "%s: 'per_layer_config' of other layers than those with a window, or that "
                     "differs among these, is not implemented",
                     path);
}

/* Local layers' numbers: under "swa_", or as transformers saves them, of a layer what differs from
 * global ones. On entry they are these. */
static int dots3_local(struct moe_config *c, uint32_t *q_rank, uint32_t *rope_dim,
                       uint32_t *value_dim, const char *path, const json_t *json,
                       struct moe_err *err)
{
    char number[16];
    uint32_t first = 0, head = 0;
    while (!c->layers[first].windowed)
        first++;
    snprintf(number, sizeof number, "%" PRIu32, first);
    const json_t *layers = json_object_get(json, "per_layer_config");
    const json_t *saved = family_given(layers, number);
    MOE_TRY(moe_json_check_type(path, layers, number, MOE_JSON_IS_OBJECT, err));
    const struct {
        const char *key;
        uint32_t *out, max, otherwise;
    } numbers[] = {
        {"swa_num_attention_heads", &c->n_heads, MOE_MAX_HEADS, 64},
        {"swa_q_lora_rank", q_rank, MOE_MAX_DIM, 1024},
        {"swa_kv_lora_rank", &c->kv_rank, MOE_MAX_DIM, 1024},
        {"swa_qk_nope_head_dim", &c->head_dim, MOE_MAX_HEAD_DIM, 192},
        {"swa_v_head_dim", value_dim, MOE_MAX_HEAD_DIM, 128},
        {"swa_head_dim", &head, MOE_MAX_HEAD_DIM, 256},
        {"swa_qk_rope_head_dim", rope_dim, MOE_MAX_HEAD_DIM, 0},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        const char *key = numbers[i].key + (saved ? strlen("swa_") : 0);
        if (!saved)
            *numbers[i].out = numbers[i].otherwise;
        MOE_TRY(moe_json_get_u32(path, saved ? saved : json, key, numbers[i].max, false,
                                 numbers[i].out, err));
    }
    if (*rope_dim == 0)
        *rope_dim = head - c->head_dim;
    return MOE_OK;
}

/* On entry the numbers of layers are global ones' and head_dim is the part that does not rotate.
 * Vectors under a norm are scaled, those of queries by way of the scores. Layers for further tokens
 * are not counted. */
int family_dots3_hf(struct moe_config *c, const char *path, const json_t *json,
                    struct moe_rope_settings *rope, struct moe_err *err)
{
    static const struct family_word kinds[] = {
        {"sliding_attention", 1}, {"full_attention", 0}, {"indexed_attention", 0}, {NULL}};
    const json_t *types = family_given(json, "layer_types");
    const json_t *both = json_object_get(json, "rope_parameters");
    bool slides = true, own_base = family_given(json, "swa_rope_theta") ||
                                   json_object_get(both, "sliding_attention");
    const uint32_t heads = c->n_heads, rank = c->kv_rank, plain = c->head_dim;
    uint32_t q_rank = c->q_rank, rope_dim = c->rope_dim, value_dim = c->value_dim, width = 1536;
    if (c->n_kv_heads != 0 && c->n_kv_heads != heads)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: latent attention with 'num_key_value_heads' %" PRIu32 " for %" PRIu32
                        " heads is not implemented",
                        path, c->n_kv_heads, heads);
    MOE_TRY(moe_json_check_type(path, json, "rope_theta", MOE_JSON_IS_NUMBER, err));
    MOE_TRY(moe_json_get_bool(path, json, "use_sliding_window", false, &slides, err));
    for (uint32_t i = 2; slides && i < c->n_layers; i++)
        c->layers[i].windowed = i % 4 != 1;
    if (types)
        MOE_TRY(family_read_words(c, MOE_LAYER(windowed), path, types, "layer_types", kinds, true,
                                  err));
    MOE_TRY(check_dots3_layers(c, path, json, err));
    const struct family_number numbers[] = {
        {"sliding_window_size", &c->window, MOE_MAX_CONTEXT},
        {"sliding_window", &c->window, MOE_MAX_CONTEXT},
        {"moe_shared_expert_intermediate_size", &width, MOE_MAX_DIM},
        {"shared_experts_intermediate_size", &width, MOE_MAX_DIM},
    };
    c->window = 512;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (family_given(json, numbers[i].key))
            MOE_TRY(family_read_numbers(path, json, &numbers[i], 1, err));
    uint32_t n_local = moe_config_count_layers(c, MOE_LAYER(windowed));
    uint64_t shared = c->expert_ff ? (uint64_t)c->shared_ff / c->expert_ff * width : 0;
    c->n_beyond = c->n_beyond ? c->n_beyond : 1;
    c->n_kv_heads = 0;
    if (n_local)
        MOE_TRY(dots3_local(c, &q_rank, &rope_dim, &value_dim, path, json, err));
    if (q_rank == 0 || q_rank != c->q_rank || rope_dim != c->rope_dim ||
        value_dim != c->value_dim || rank == 0 || c->kv_rank == 0 || shared > MOE_MAX_DIM)
        return moe_fail(
            err, MOE_ERR_UNSUPPORTED,
            "%s: local layers with ranks of queries, rotated values or widths of values "
            "other than global ones', or without ranks, are not implemented",
            path);
    c->shared_ff = (uint32_t)shared;
    c->head_dim += c->rope_dim;
    MOE_TRY(family_two_rotations_hf(c, path, json, rope, err));
    if (n_local && !own_base)
        rope->theta = 5e4;
    if (n_local == c->n_layers)
        c->index_top = c->index_heads = c->index_dim = 0;
    const double queries = c->hidden / (double)c->q_rank;
    c->latent_scale = (float)sqrt(c->hidden / (double)c->kv_rank);
    c->attn_scale = (float)sqrt(queries / c->head_dim);
    if (!c->global_head_dim)
        return MOE_OK;
    c->global_heads = c->global_kv_heads = heads;
    c->global_kv_rank = rank;
    c->global_head_dim = plain + c->rope_dim;
    c->global_latent_scale = (float)sqrt(c->hidden / (double)rank);
    c->global_attn_scale = (float)sqrt(queries / c->global_head_dim);
    return MOE_OK;
}

/* "num_attention_heads_per_layer": the same for all layers of a kind. */
static int laguna_heads(struct moe_config *c, const char *path, const json_t *json,
                        struct moe_err *err)
{
    const char *key = "num_attention_heads_per_layer";
    const json_t *list = family_given(json, key);
    uint32_t heads[MOE_MAX_LAYERS], of_kind[2];
    if (!list)
        return MOE_OK;
    bool whole = json_array_size(list) == c->n_layers && c->n_layers <= MOE_MAX_LAYERS;
    for (uint32_t i = 0; whole && i < c->n_layers; i++) {
        json_int_t n = json_integer_value(json_array_get(list, i)); /* 0 for what is no number */
        whole = n > 0 && n <= MOE_MAX_HEADS;
        heads[i] = (uint32_t)n;
    }
    if (!whole)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: '%s' must be a list of %" PRIu32 " numbers from 1 to %d", path, key,
                        c->n_layers, MOE_MAX_HEADS);
    MOE_TRY(family_by_kind(c, heads, path, key, of_kind, err));
    c->n_heads = of_kind[1] ? of_kind[1] : of_kind[0];
    c->global_heads = of_kind[1] && of_kind[0] ? of_kind[0] : 0;
    return MOE_OK;
}

/* Without "layer_types" all layers are global. */
int family_laguna_hf(struct moe_config *c, const char *path, const json_t *json,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    const json_t *gates = family_given(json, "gating");
    const char *each = json_string_value(gates);
    if (!family_given(json, "layer_types"))
        moe_config_set_layers(c, MOE_LAYER(windowed), 0, c->n_layers, 0);
    c->gate_by_head = !gates || json_is_true(gates) || (each && strcmp(each, "per-head") == 0);
    if (!c->gate_by_head && !(each && strcmp(each, "per-element") == 0))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: 'gating' is %.60s: true, 'per-head' and 'per-element' are implemented",
                        path, each ? each : "of another kind");
    c->shared_ff = 512;
    MOE_TRY(moe_json_get_u32(path, json, "shared_expert_intermediate_size", MOE_MAX_DIM, false,
                             &c->shared_ff, err));
    MOE_TRY(laguna_heads(c, path, json, err));
    return family_two_rotations_hf(c, path, json, rope, err);
}

/* ---- Step-3.5 and 3.7: lists with an entry for each layer, and for those that draft ---- */

/* The layers with experts: "mlp_layer_types", or their numbers, in a list or in a text with commas;
 * without either, all but the first three. */
static int step_experts(struct moe_config *c, const char *path, const json_t *json,
                        struct moe_err *err)
{
    static const struct family_word words[] = {{"sparse", 1}, {"dense", 0}, {NULL}};
    const json_t *types = family_given(json, "mlp_layer_types");
    const json_t *numbers = family_given(json, "moe_layers_enum");
    const char *text = json_string_value(numbers);
    if (types)
        return family_read_words(c, MOE_LAYER(moe), path, types, "mlp_layer_types", words, true,
                                 err);
    moe_config_set_layers(c, MOE_LAYER(moe), 3, numbers ? 0 : c->n_layers, 1);
    for (size_t i = 0; i < json_array_size(numbers); i++) {
        json_int_t layer = json_integer_value(json_array_get(numbers, i));
        if (layer >= 0 && layer < (json_int_t)c->n_layers) /* others draft */
            c->layers[layer].moe = true;
    }
    for (char *end; text && *text; text = *end == ',' ? end + 1 : end) {
        unsigned long layer = strtoul(text, &end, 10);
        if (end == text || (*end && *end != ','))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: 'moe_layers_enum' is '%.60s', expected numbers with commas", path,
                            json_string_value(numbers));
        if (layer < c->n_layers)
            c->layers[layer].moe = true;
    }
    return MOE_OK;
}

/* A number of "rope_theta" or "partial_rotary_factors", lists by layer: what the first layer of a
 * kind has; a number is for all. */
static void step_number(const struct moe_config *c, const json_t *json, const char *key,
                        bool windowed, double *out)
{
    const json_t *list = json_object_get(json, key);
    for (uint32_t i = c->n_layers; i-- > 0;)
        if (c->layers[i].windowed == windowed && json_is_number(json_array_get(list, i)))
            *out = json_number_value(json_array_get(list, i));
    if (json_is_number(list))
        *out = json_number_value(list);
}

/* Local layers have heads of their own number. */
static int step_heads(struct moe_config *c, const char *path, const json_t *json,
                      struct moe_err *err)
{
    const json_t *local = json_object_get(json, "attention_other_setting");
    uint32_t heads = c->n_heads, kv_heads = c->n_kv_heads, width = c->head_dim;
    uint32_t n_local = moe_config_count_layers(c, MOE_LAYER(windowed));
    const struct family_number saved[] = {
        {"num_sliding_attention_heads", &heads, MOE_MAX_HEADS},
    };
    const struct family_number numbers[] = {
        {"num_attention_heads", &heads, MOE_MAX_HEADS},
        {"num_attention_groups", &kv_heads, MOE_MAX_HEADS},
        {"head_dim", &width, MOE_MAX_HEAD_DIM},
    };
    if (json_is_object(local))
        MOE_TRY(family_read_numbers(path, local, numbers, sizeof numbers / sizeof numbers[0], err));
    if (family_given(json, saved[0].key))
        MOE_TRY(family_read_numbers(path, json, saved, 1, err));
    if (width != c->head_dim)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: 'attention_other_setting' gives local layers heads of %" PRIu32
                        " values beside others of %" PRIu32 ", which is not implemented",
                        path, width, c->head_dim);
    if (n_local == 0)
        return MOE_OK;
    if (n_local < c->n_layers) {
        c->global_heads = c->n_heads;
        c->global_kv_heads = c->n_kv_heads;
    }
    c->n_heads = heads;
    c->n_kv_heads = kv_heads;
    return MOE_OK;
}

int family_step3p5_hf(struct moe_config *c, const char *path, const json_t *json,
                      struct moe_rope_settings *rope, struct moe_err *err)
{
    static const struct family_word kinds[] = {
        {"sliding_attention", 1}, {"full_attention", 0}, {NULL}};
    const json_t *types = family_given(json, "layer_types");
    const json_t *both = family_given(json, "rope_parameters");
    double scalar = c->head_dim;
    if (types)
        MOE_TRY(family_read_words(c, MOE_LAYER(windowed), path, types, "layer_types", kinds, true,
                                  err));
    MOE_TRY(step_experts(c, path, json, err));
    MOE_TRY(step_heads(c, path, json, err));
    MOE_TRY(
        moe_json_get_u32(path, json, "sliding_window", MOE_MAX_CONTEXT, false, &c->window, err));
    MOE_TRY(family_read_limits(c, MOE_LAYER(expert_limit), path, json, "swiglu_limits", err));
    MOE_TRY(family_read_limits(c, MOE_LAYER(dense_limit), path, json, "swiglu_limits_shared", err));
    MOE_TRY(moe_json_get_double(path, json, "query_pre_attn_scalar", false, &scalar, err));
    c->attn_scale = (float)(1 / sqrt(scalar));
    c->shared_ff = 1280;
    MOE_TRY(
        moe_json_get_u32(path, json, "share_expert_dim", MOE_MAX_DIM, false, &c->shared_ff, err));
    if (both)
        return family_two_rotations_hf(c, path, json, rope, err);
    step_number(c, json, "rope_theta", false, &rope->theta);
    step_number(c, json, "partial_rotary_factors", false, &rope->partial);
    MOE_TRY(family_two_rotations_hf(c, path, json, rope, err));
    if (moe_config_count_layers(c, MOE_LAYER(windowed)) > 0) {
        step_number(c, json, "rope_theta", true, &rope->theta);
        step_number(c, json, "partial_rotary_factors", true, &rope->partial);
    }
    return MOE_OK;
}

/* ---- Mistral-4 and Ministral-3: queries scaled by their position ---- */

int family_ministral3_hf(struct moe_config *c, const char *path, const json_t *json,
                         struct moe_rope_settings *rope, struct moe_err *err)
{
    const json_t *settings = json_object_get(json, "rope_parameters");
    double scale = 0;
    if (settings)
        MOE_TRY(moe_json_get_double(path, settings, "llama_4_scaling_beta", false, &scale, err));
    if (scale == 0)
        return MOE_OK;
    if (!(rope->original_context >= 1 && rope->original_context <= MOE_MAX_CONTEXT))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'llama_4_scaling_beta' %g with an 'original_max_position_embeddings' "
                        "of %g, expected 1 to %d",
                        path, scale, rope->original_context, MOE_MAX_CONTEXT);
    c->query_scale = (float)scale;
    c->query_step = (uint32_t)rope->original_context;
    c->query_from_zero = true;
    return MOE_OK;
}

/* ... with MLA. */
int family_mistral4_hf(struct moe_config *c, const char *path, const json_t *json,
                       struct moe_rope_settings *rope, struct moe_err *err)
{
    MOE_TRY(family_deepseek_v3_hf(c, path, json, rope, err));
    return family_ministral3_hf(c, path, json, rope, err);
}

/* ---- MiniCPM: scales by depth and width ---- */

int family_minicpm_hf(struct moe_config *c, const char *path, const json_t *json,
                      struct moe_rope_settings *rope, struct moe_err *err)
{
    c->residual_scale /= sqrtf((float)c->n_layers); /* was "scale_depth" */
    c->logit_scale /= (float)c->hidden;             /* was "dim_model_base" */
    if (c->n_experts) {                             /* dense models have */
        c->expert_ff = c->dense_ff;
        c->dense_ff = 0;
        moe_config_set_layers(c, MOE_LAYER(moe), 0, c->n_layers, 1);
    }
    return MOE_OK;
}

/* Files without the keys of the three scales are of models with these. */
int family_minicpm_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                        struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    if (!moe_gguf_has(gguf, moe_gguf_arch_key(gguf, "embedding_scale").text)) {
        c->embed_scale = 12;
        c->residual_scale = 1.4f / sqrtf((float)c->n_layers);
        c->logit_scale = 256.0f / (float)c->hidden;
    }
    return MOE_OK;
}

/* ---- gpt-oss: YaRN by default ---- */

/* Without rotary settings, the published models' hold. */
int family_gpt_oss_hf(struct moe_config *c, const char *path, const json_t *json,
                      struct moe_rope_settings *rope, struct moe_err *err)
{
    if (!json_is_object(json_object_get(json, "rope_scaling")) &&
        !json_is_object(json_object_get(json, "rope_parameters"))) {
        rope->kind = MOE_ROPE_YARN;
        rope->factor = 32;
        rope->truncate = false;
        if (!json_object_get(json, "original_max_position_embeddings"))
            rope->original_context = 4096;
    }
    return MOE_OK;
}

int family_gpt_oss_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                        struct moe_rope_settings *rope, struct moe_err *err)
{
    rope->truncate = false;
    return MOE_OK;
}

/* ---- Flint ---- */

/* Without lists, the first two layers are dense, and they, every fourth and the last one global. */
int family_flint_hf(struct moe_config *c, const char *path, const json_t *json,
                    struct moe_rope_settings *rope, struct moe_err *err)
{
    if (!family_given(json, "mlp_only_layers"))
        moe_config_set_layers(c, MOE_LAYER(moe), 0, 2, 0);
    if (!family_given(json, "layer_types"))
        for (uint32_t i = 0; i < c->n_layers; i++)
            c->layers[i].windowed = i >= 2 && i % 4 != 1 && i + 1 < c->n_layers;
    return MOE_OK;
}

/* ---- DBRX: attention and experts in objects of their own ---- */

int family_dbrx_hf(struct moe_config *c, const char *path, const json_t *json,
                   struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_setting attention[] = {
        {"kv_n_heads", MOE_MEMBER(n_kv_heads), .value = 1},
        {"clip_qkv", MOE_MEMBER(clip_qkv), .value = 0},
        {.member = 0},
    };
    const struct moe_setting experts[] = {
        {"ffn_hidden_size", MOE_MEMBER(expert_ff), .value = 3584},
        {"moe_num_experts", MOE_MEMBER(n_experts), .value = 4},
        {"moe_top_k", MOE_MEMBER(top_k), .value = 1},
        {.member = 0},
    };
    const struct moe_only only[] = {{"moe_normalize_expert_weights", "1"}, {NULL, NULL}};
    const json_t *attn = json_object_get(json, "attn_config");
    const json_t *ffn = json_object_get(json, "ffn_config"), *key = NULL;
    const char *act =
        json_string_value(json_object_get(json_object_get(ffn, "ffn_act_fn"), "name"));
    MOE_TRY(family_read_json(c, attention, path, attn, err));
    MOE_TRY(family_read_json(c, experts, path, ffn, err));
    MOE_TRY(family_check_only(only, path, ffn, err));
    key = json_object_get(ffn, "moe_normalize_expert_weights");
    c->norm_topk = !json_is_null(key);
    if (act && strcmp(act, "silu") != 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: activation '%.60s' is not implemented", path,
                        act);
    if (!family_given(json, "rope_parameters"))
        MOE_TRY(moe_json_get_double(path, attn, "rope_theta", false, &rope->theta, err));
    return MOE_OK;
}

/* ---- Granite with windows ---- */

/* "layer_rope_theta": the base of each layer, where 0 rotates nothing. */
int family_granite_swa_hf(struct moe_config *c, const char *path, const json_t *json,
                          struct moe_rope_settings *rope, struct moe_err *err)
{
    const json_t *bases = family_given(json, "layer_rope_theta");
    bool rotates_windows = true, rotates_all = true;
    if (!family_given(json, "layer_types"))
        for (uint32_t i = 0; i < c->n_layers; i++)
            c->layers[i].windowed = i % 4 != 0;
    if (!bases)
        return MOE_OK;
    if (json_array_size(bases) != c->n_layers)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'layer_rope_theta' must be a list of %" PRIu32 " numbers", path,
                        c->n_layers);
    rope->theta = 0;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        double base = json_number_value(json_array_get(bases, i));
        rotates_windows &= (base != 0) == c->layers[i].windowed;
        rotates_all &= base != 0;
        if (base != 0 && rope->theta != 0 && base != rope->theta)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: 'layer_rope_theta' has %g and %g: one base for all layers that "
                            "rotate is implemented",
                            path, rope->theta, base);
        rope->theta = base != 0 ? base : rope->theta;
    }
    if (rope->theta == 0)
        c->positions = MOE_POSITIONS_NONE;
    else if (!rotates_windows && !rotates_all)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: 'layer_rope_theta' is 0 for other layers than those without a "
                        "window, which is not implemented",
                        path);
    c->rope_in_windows = rope->theta != 0 && !rotates_all;
    return MOE_OK;
}

/* ---- GPTSAN: dense layers behind those with experts ---- */

int family_gptsan_hf(struct moe_config *c, const char *path, const json_t *json,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    uint32_t n_moe = c->n_layers, n_dense = 0;
    MOE_TRY(moe_json_get_u32(path, json, "num_ext_layers", MOE_MAX_LAYERS, false, &n_dense, err));
    if (n_moe == 0 || n_moe + n_dense > MOE_MAX_LAYERS)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " layers with experts and %" PRIu32
                        " without: at least 1 with experts and at most %d in all are possible",
                        path, n_moe, n_dense, MOE_MAX_LAYERS);
    c->n_layers += n_dense;
    moe_config_set_layers(c, MOE_LAYER(moe), 0, n_moe, 1);
    if (n_dense > 0) {
        c->extra_positions = n_moe;
        c->dense_bias = true;
    } else {
        c->dense_ff = 0;
    }
    if (c->n_heads > 0 && c->hidden % c->n_heads != 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: a width of %" PRIu32 " cannot be shared by %" PRIu32 " heads", path,
                        c->hidden, c->n_heads);
    return MOE_OK;
}

/* ---- AFMoE ---- */

int family_afmoe_hf(struct moe_config *c, const char *path, const json_t *json,
                    struct moe_rope_settings *rope, struct moe_err *err)
{
    uint32_t n_dense = 1, every = 4;
    bool scaled = false;
    const struct family_number numbers[] = {
        {"num_dense_layers", &n_dense, MOE_MAX_LAYERS},
        {"global_attn_every_n_layers", &every, MOE_MAX_LAYERS},
    };
    MOE_TRY(moe_json_get_bool(path, json, "mup_enabled", false, &scaled, err));
    MOE_TRY(family_read_numbers(path, json, numbers, sizeof numbers / sizeof numbers[0], err));
    if (every == 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'global_attn_every_n_layers' 0, expected 1 or more", path);
    if (scaled)
        c->embed_scale = sqrtf((float)c->hidden);
    bool listed = json_is_array(json_object_get(json, "layer_types"));
    for (uint32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].moe = i >= n_dense;
        if (!listed)
            c->layers[i].windowed = (i + 1) % every != 0;
    }
    return MOE_OK;
}

/* ---- EXAONE-MoE ---- */

/* "sliding_window_pattern": every n-th layer is global; or letters "L" and "G", repeated, the last
 * layer global anyway. */
static int exaone_pattern(struct moe_config *c, const char *path, const json_t *json,
                          struct moe_err *err)
{
    const json_t *pattern = json_object_get(json, "sliding_window_pattern");
    const char *letters = json_string_value(pattern);
    uint32_t every = 4;
    if (letters ? strspn(letters, "LG") != strlen(letters) || !letters[0]
                : pattern && !json_is_integer(pattern))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: a 'sliding_window_pattern' that is neither a number nor letters L and "
                        "G is not implemented",
                        path);
    if (!letters)
        MOE_TRY(moe_json_get_u32(path, json, "sliding_window_pattern", MOE_MAX_LAYERS, false,
                                 &every, err));
    if (every == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'sliding_window_pattern' 0, expected 1 or more",
                        path);
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].windowed = letters ? letters[i % strlen(letters)] == 'L' && i + 1 < c->n_layers
                                        : (i + 1) % every != 0;
    return MOE_OK;
}

/* "is_moe_layer", in published files instead of "mlp_layer_types": whether each layer has
 * experts. */
static int exaone_experts(struct moe_config *c, const char *path, const json_t *json,
                          struct moe_err *err)
{
    const json_t *list = json_object_get(json, "is_moe_layer");
    if (!list || json_is_null(list) || json_is_array(json_object_get(json, "mlp_layer_types")))
        return MOE_OK;
    bool whole = json_array_size(list) == c->n_layers;
    for (uint32_t i = 0; i < c->n_layers && whole; i++) {
        const json_t *item = json_array_get(list, i);
        whole = json_is_boolean(item);
        c->layers[i].moe = json_is_true(item);
    }
    return whole ? MOE_OK
                 : moe_fail(err, MOE_ERR_FORMAT,
                            "%s: 'is_moe_layer' must say true or false for %" PRIu32 " layers",
                            path, c->n_layers);
}

int family_exaone_moe_hf(struct moe_config *c, const char *path, const json_t *json,
                         struct moe_rope_settings *rope, struct moe_err *err)
{
    MOE_TRY(exaone_experts(c, path, json, err));
    c->rope_in_windows = c->window > 0; /* else all layers rotate and see everything */
    if (c->window > 0 && !json_is_array(json_object_get(json, "layer_types")))
        MOE_TRY(exaone_pattern(c, path, json, err));
    return family_sigmoid_hf(c, path, json, rope, err);
}

/* ---- SmallThinker ---- */

/* A list with 0 or 1 for each layer; if absent or null, all are `otherwise`. */
static int read_layout(const struct moe_config *c, const char *path, const json_t *json,
                       const char *key, uint8_t otherwise, uint8_t *out, struct moe_err *err)
{
    const json_t *list = json_object_get(json, key);
    bool listed = list && !json_is_null(list);
    if (listed && json_array_size(list) != c->n_layers)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' must be a list of %" PRIu32 " layers", path,
                        key, c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const json_t *item = json_array_get(list, i);
        json_int_t value = json_is_integer(item) ? json_integer_value(item) : -1;
        if (listed && value != 0 && value != 1)
            return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' item %" PRIu32 " is neither 0 nor 1",
                            path, key, i);
        out[i] = listed ? value == 1 : otherwise;
    }
    return MOE_OK;
}

/* All layers rotate; or those with a window; or, where none has a window, some: these then get a
 * window as wide as the context. */
static int smallthinker_layers(struct moe_config *c, const char *path, const json_t *json,
                               struct moe_err *err)
{
    uint8_t rotates[MOE_MAX_LAYERS], windowed[MOE_MAX_LAYERS];
    uint32_t n_rotating = 0, n_windowed = 0, n_other = 0, other = 0;
    MOE_TRY(c->n_layers <= MOE_MAX_LAYERS
                ? read_layout(c, path, json, "rope_layout", 1, rotates, err)
                : moe_fail(err, MOE_ERR_FORMAT, "%s: too many layers", path));
    MOE_TRY(read_layout(c, path, json, "sliding_window_layout", 0, windowed, err));
    c->window = 4096;
    MOE_TRY(moe_json_get_u32(path, json, "sliding_window_size", MOE_MAX_CONTEXT, false, &c->window,
                             err));
    for (uint32_t i = 0; i < c->n_layers; i++) {
        n_rotating += rotates[i];
        n_windowed += windowed[i];
        if (rotates[i] != windowed[i] && n_other++ == 0)
            other = i;
    }
    c->rope_in_windows = n_rotating < c->n_layers;
    if (c->rope_in_windows && n_windowed > 0 && n_other > 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: 'rope_layout' says that layer %" PRIu32
                        " %s, 'sliding_window_layout' that it %s: where not all layers rotate, "
                        "only those with a window may",
                        path, other, rotates[other] ? "rotates" : "does not rotate",
                        windowed[other] ? "has a window" : "has none");
    bool everything = c->rope_in_windows && n_windowed == 0;
    if (everything || n_windowed == 0)
        c->window = everything ? c->context_max : 0;
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].windowed = everything ? rotates[i] : windowed[i];
    return MOE_OK;
}

/* Which layers have experts: a list of words, or, in published files, of 0 and 1; otherwise all
 * from layer `first`. */
static int listed_experts(struct moe_config *c, uint32_t first, const char *path,
                          const json_t *json, struct moe_err *err)
{
    static const struct family_word words[] = {{"sparse", 1}, {"dense", 0}, {NULL}};
    const json_t *types = family_given(json, "mlp_layer_types");
    uint8_t moe[MOE_MAX_LAYERS];
    if (c->n_layers > MOE_MAX_LAYERS)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: too many layers", path);
    MOE_TRY(read_layout(c, path, json, "moe_layer_freq", 1, moe, err));
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].moe = family_given(json, "moe_layer_freq") ? moe[i] : i >= first;
    return types ? family_read_words(c, MOE_LAYER(moe), path, types, "mlp_layer_types", words,
                                     false, err)
                 : MOE_OK;
}

/* ---- MiniMax-M3 ---- */

/* An indexer for blocks, which some layers have: those that do not see all. */
void family_index_blocks(struct moe_config *c, const uint32_t numbers[FAMILY_N_INDEX])
{
    if (moe_config_count_layers(c, MOE_LAYER(sees_all)) == c->n_layers) {
        moe_config_set_layers(c, MOE_LAYER(sees_all), 0, c->n_layers, 0);
        return;
    }
    c->index_heads = numbers[FAMILY_INDEX_HEADS];
    c->index_dim = numbers[FAMILY_INDEX_DIM];
    c->index_block = numbers[FAMILY_INDEX_BLOCK];
    c->index_local = numbers[FAMILY_INDEX_LOCAL];
    uint64_t seen = (uint64_t)numbers[FAMILY_INDEX_TOP] * c->index_block;
    c->index_top = seen < UINT32_MAX ? (uint32_t)seen : UINT32_MAX;
}

int family_index_means(struct moe_config *c, const char *path, uint32_t budget, uint32_t ratio,
                       struct moe_err *err)
{
    bool any = budget && ratio && c->index_heads &&
               moe_config_count_layers(c, MOE_LAYER(recurrent)) < c->n_layers;
    if (any && budget < ratio)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: an indexer's budget of %" PRIu32
                        " positions is less than its blocks of "
                        "%" PRIu32,
                        path, budget, ratio);
    c->index_means = any;
    c->index_block = any ? ratio : 0;
    c->index_top = any ? budget / ratio * ratio : 0;
    if (!any)
        c->index_heads = c->index_dim = 0;
    return MOE_OK;
}

int family_minimax_m3_hf(struct moe_config *c, const char *path, const json_t *json,
                         struct moe_rope_settings *rope, struct moe_err *err)
{
    static const struct family_word kinds[] = {
        {"minimax_m3_sparse", 0}, {"full_attention", 1}, {NULL}};
    const json_t *index = family_given(json, "sparse_attention_config");
    const json_t *types = family_given(json, "layer_types");
    uint32_t n[FAMILY_N_INDEX] = {4, 128, 128, 16, 1};
    const struct family_number numbers[FAMILY_N_INDEX] = {
        {"index_n_heads", &n[FAMILY_INDEX_HEADS], MOE_MAX_HEADS},
        {"index_head_dim", &n[FAMILY_INDEX_DIM], MOE_MAX_HEAD_DIM},
        {"index_block_size", &n[FAMILY_INDEX_BLOCK], MOE_MAX_DIM},
        {"index_topk_blocks", &n[FAMILY_INDEX_TOP], MOE_MAX_DIM},
        {"index_local_blocks", &n[FAMILY_INDEX_LOCAL], MOE_MAX_DIM},
    };
    const struct family_number published[FAMILY_N_INDEX] = {
        {"sparse_num_index_heads", &n[FAMILY_INDEX_HEADS], MOE_MAX_HEADS},
        {"sparse_index_dim", &n[FAMILY_INDEX_DIM], MOE_MAX_HEAD_DIM},
        {"sparse_block_size", &n[FAMILY_INDEX_BLOCK], MOE_MAX_DIM},
        {"sparse_topk_blocks", &n[FAMILY_INDEX_TOP], MOE_MAX_DIM},
        {"sparse_local_block", &n[FAMILY_INDEX_LOCAL], MOE_MAX_DIM},
    };
    uint8_t chooses[MOE_MAX_LAYERS] = {0};
    MOE_TRY(listed_experts(c, 0, path, json, err));
    MOE_TRY(family_read_numbers(path, json, numbers, FAMILY_N_INDEX, err));
    if (index) {
        MOE_TRY(family_read_numbers(path, index, published, FAMILY_N_INDEX, err));
        MOE_TRY(read_layout(c, path, index, "sparse_attention_freq", 0, chooses, err));
    }
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].sees_all = !chooses[i];
    if (types)
        MOE_TRY(family_read_words(c, MOE_LAYER(sees_all), path, types, "layer_types", kinds, false,
                                  err));
    family_index_blocks(c, n);
    return MOE_OK;
}

/* ---- MiMo-V2 ---- */

/* Which layers are local: in published files a list of 0 and 1. */
static int mimo_windows(struct moe_config *c, const char *path, const json_t *json,
                        struct moe_err *err)
{
    uint8_t local[MOE_MAX_LAYERS];
    bool listed = family_given(json, "layer_types") != NULL;
    bool by_number = family_given(json, "hybrid_layer_pattern") != NULL;
    MOE_TRY(read_layout(c, path, json, "hybrid_layer_pattern", 0, local, err));
    for (uint32_t i = 0; i < c->n_layers && !listed; i++)
        c->layers[i].windowed = by_number ? local[i] : i != 0 && (i + 1) % 6 != 0;
    return MOE_OK;
}

/* Local layers have key/value heads of their own number, and see one position more than
 * "sliding_window_size" says. */
int family_mimo_v2_hf(struct moe_config *c, const char *path, const json_t *json,
                      struct moe_rope_settings *rope, struct moe_err *err)
{
    uint32_t size = 0, heads = c->n_heads, keys = c->head_dim, values = c->value_dim;
    uint32_t local_kv = 2 * c->n_kv_heads;
    const struct family_number numbers[] = {
        {"sliding_window_size", &size, MOE_MAX_CONTEXT},
        {"swa_num_attention_heads", &heads, MOE_MAX_HEADS},
        {"swa_num_key_value_heads", &local_kv, MOE_MAX_HEADS},
        {"swa_head_dim", &keys, MOE_MAX_HEAD_DIM},
        {"swa_v_head_dim", &values, MOE_MAX_HEAD_DIM},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (family_given(json, numbers[i].key))
            MOE_TRY(family_read_numbers(path, json, &numbers[i], 1, err));
    if (heads != c->n_heads || keys != c->head_dim || values != c->value_dim)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: local layers with %" PRIu32 " heads of %" PRIu32 " and %" PRIu32
                        " values beside global ones with %" PRIu32 " of %" PRIu32 " and %" PRIu32
                        " are not implemented",
                        path, heads, keys, values, c->n_heads, c->head_dim, c->value_dim);
    if (size)
        c->window = size + 1;
    MOE_TRY(listed_experts(c, 1, path, json, err));
    MOE_TRY(mimo_windows(c, path, json, err));
    if (moe_config_count_layers(c, MOE_LAYER(windowed)) == 0) {
        c->attn_sinks = c->sinks_in_windows = false;
    } else {
        if (moe_config_count_layers(c, MOE_LAYER(windowed)) < c->n_layers)
            c->global_kv_heads = c->n_kv_heads;
        c->n_kv_heads = local_kv;
    }
    if (json_is_null(json_object_get(json, "attention_value_scale")))
        c->value_scale = 1;
    if (c->n_experts == 0 || moe_config_count_layers(c, MOE_LAYER(moe)) == 0)
        c->n_experts = c->top_k = c->expert_ff = 0;
    return family_two_rotations_hf(c, path, json, rope, err);
}

int family_smallthinker_hf(struct moe_config *c, const char *path, const json_t *json,
                           struct moe_rope_settings *rope, struct moe_err *err)
{
    bool softmax = false;
    MOE_TRY(
        moe_json_get_bool(path, json, "moe_primary_router_apply_softmax", false, &softmax, err));
    if (softmax) {
        c->router_kind = MOE_ROUTER_TOPK_SOFTMAX;
        c->norm_topk = false; /* their sum is 1 */
    }
    return smallthinker_layers(c, path, json, err);
}

/* ---- Command-A with experts ---- */

/* Without "layer_types" every n-th layer is global: the dense ones, which come first, by a pattern
 * of their own, the others counted from behind them. */
static int cohere2_layers(struct moe_config *c, const char *path, const json_t *json,
                          struct moe_err *err)
{
    uint32_t every = 4, every_dense = 1, n_dense = 0;
    const struct family_number numbers[] = {
        {"sliding_window_pattern", &every, MOE_MAX_LAYERS},
        {"prefix_dense_sliding_window_pattern", &every_dense, MOE_MAX_LAYERS},
        {"first_k_dense_replace", &n_dense, MOE_MAX_LAYERS},
    };
    MOE_TRY(family_read_numbers(path, json, numbers, sizeof numbers / sizeof numbers[0], err));
    if (every == 0 || every_dense == 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: a sliding window pattern of 0, expected 1 or more", path);
    c->rope_in_dense = every_dense == 1;
    bool listed = json_is_array(json_object_get(json, "layer_types"));
    for (uint32_t i = 0; i < c->n_layers && !listed && c->window; i++)
        c->layers[i].windowed =
            i < n_dense ? (i + 1) % every_dense != 0 : (i - n_dense + 1) % every != 0;
    return MOE_OK;
}

/* "expert_selection_fn", and how shared experts are added. */
static int cohere2_experts(struct moe_config *c, const char *path, const json_t *json,
                           struct moe_err *err)
{
    const char *selects = "softmax", *adds = "average";
    MOE_TRY(moe_json_get_text(path, json, "expert_selection_fn", false, &selects, err));
    MOE_TRY(moe_json_get_text(path, json, "shared_expert_combination_strategy", false, &adds, err));
    bool softmax = strcmp(selects, "softmax") == 0, average = strcmp(adds, "average") == 0;
    if (!softmax && strcmp(selects, "sigmoid") != 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: 'expert_selection_fn' %.60s is not implemented", path, selects);
    if (!average && strcmp(adds, "sum") != 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: 'shared_expert_combination_strategy' %.60s is not implemented", path,
                        adds);
    c->router_kind = softmax ? MOE_ROUTER_TOPK_SOFTMAX : MOE_ROUTER_SIGMOID;
    c->norm_topk = c->norm_topk && !softmax; /* the sum of a softmax is 1 */
    c->moe_scale = c->shared_ff && average ? 0.5f : 1;
    return MOE_OK;
}

int family_cohere2_moe_hf(struct moe_config *c, const char *path, const json_t *json,
                          struct moe_rope_settings *rope, struct moe_err *err)
{
    double eps = 0;
    if (family_given(json, "rms_norm_eps"))
        MOE_TRY(moe_json_get_double(path, json, "rms_norm_eps", true, &eps, err));
    if (eps != 0) {
        c->norm_kind = MOE_NORM_RMS;
        c->norm_eps = (float)eps;
    }
    if (c->dense_ff == 0)
        c->dense_ff = c->expert_ff;
    MOE_TRY(cohere2_layers(c, path, json, err));
    return cohere2_experts(c, path, json, err);
}

/* ---- DeepSeek-V3.2 and GLM-5: which layers have an indexer, and which share a choice ---- */

/* "layer_types", if there is one, has the same word for every layer. */
static int check_layer_types(const struct moe_config *c, const char *path, const json_t *json,
                             struct moe_err *err)
{
    const json_t *list = json_object_get(json, "layer_types"), *type;
    size_t i;
    json_array_foreach(list, i, type)
    {
        const char *text = json_string_value(type);
        if (!text ||
            !family_is_one_of(text, "indexed_attention|sparse_attention|deepseek_sparse_attention"))
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: 'layer_types' item %zu is '%.60s', which is not implemented for "
                            "this family",
                            path, i, text ? text : "?");
    }
    return MOE_OK;
}

int family_deepseek_v32_hf(struct moe_config *c, const char *path, const json_t *json,
                           struct moe_rope_settings *rope, struct moe_err *err)
{
    MOE_TRY(check_layer_types(c, path, json, err));
    return family_deepseek_v3_hf(c, path, json, rope, err);
}

/* A letter for each layer: F (has an indexer) or S (shares). */
static int read_pattern(struct moe_config *c, const char *path, const char *pattern,
                        struct moe_err *err)
{
    if (strlen(pattern) != c->n_layers || strspn(pattern, "FS") != c->n_layers)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'index_topk_pattern' must be %" PRIu32 " letters F or S", path,
                        c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].shares_choice = pattern[i] == 'S';
    return MOE_OK;
}

/* The first offset layers choose, then every freq-th. */
static int read_step(struct moe_config *c, const char *path, const json_t *json,
                     struct moe_err *err)
{
    uint32_t freq = 1, offset = 2;
    MOE_TRY(moe_json_get_u32(path, json, "index_topk_freq", MOE_MAX_LAYERS, false, &freq, err));
    MOE_TRY(moe_json_get_u32(path, json, "index_skip_topk_offset", MOE_MAX_LAYERS, false, &offset,
                             err));
    for (uint32_t i = 0; i < c->n_layers && freq > 1; i++)
        c->layers[i].shares_choice = i + 1 > offset && (i + 1 - offset) % freq != 0;
    return MOE_OK;
}

static int read_sharing(struct moe_config *c, const char *path, const json_t *json,
                        struct moe_err *err)
{
    static const struct family_word kinds[] = {{"full", 0}, {"shared", 1}, {NULL}};
    const json_t *types = family_given(json, "indexer_types");
    const json_t *pattern = family_given(json, "index_topk_pattern");
    if (types)
        return family_read_words(c, MOE_LAYER(shares_choice), path, types, "indexer_types", kinds,
                                 false, err);
    if (json_is_string(pattern))
        return read_pattern(c, path, json_string_value(pattern), err);
    if (pattern)
        return family_read_words(c, MOE_LAYER(shares_choice), path, pattern, "index_topk_pattern",
                                 kinds, false, err);
    return read_step(c, path, json, err);
}

int family_glm_dsa_hf(struct moe_config *c, const char *path, const json_t *json,
                      struct moe_rope_settings *rope, struct moe_err *err)
{
    MOE_TRY(family_deepseek_v32_hf(c, path, json, rope, err));
    return read_sharing(c, path, json, err);
}

/* Layers that rotate nothing, by a list of ones and zeros or every fourth, and those that see the
 * latent vectors of the last earlier one like them, by a list of these. */
static int read_latent_layers(struct moe_config *c, const char *path, const json_t *json,
                              struct moe_err *err)
{
    const json_t *rotate = family_given(json, "no_rope_layers"), *item;
    const json_t *sources = family_given(json, "kv_source_layers");
    uint32_t every = 4;
    size_t i;
    MOE_TRY(
        moe_json_get_u32(path, json, "no_rope_layer_interval", MOE_MAX_LAYERS, false, &every, err));
    for (uint32_t layer = 0; !rotate && every && layer < c->n_layers; layer++)
        c->layers[layer].unrotated = (layer + 1) % every == 0;
    if ((rotate && json_array_size(rotate) < c->n_layers) ||
        (sources && json_array_size(sources) != c->n_layers))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'no_rope_layers' and 'kv_source_layers' need a number for each of "
                        "%" PRIu32 " layers",
                        path, c->n_layers);
    json_array_foreach(rotate, i, item)
    {
        if (!json_is_integer(item) || (json_integer_value(item) | 1) != 1)
            return moe_fail(err, MOE_ERR_FORMAT, "%s: 'no_rope_layers' item %zu is not 0 or 1",
                            path, i);
        if (i < c->n_layers)
            c->layers[i].unrotated = json_integer_value(item) == 0;
    }
    json_array_foreach(sources, i, item)
    {
        json_int_t source = json_is_integer(item) ? json_integer_value(item) : -1;
        c->layers[i].shares_keys = source != (json_int_t)i;
        if (source < 0 || source != (json_int_t)moe_config_keys_of(c, (uint32_t)i))
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: 'kv_source_layers' item %zu is no layer, or not the last one "
                            "before it that has vectors and rotates as it does: this is not "
                            "implemented",
                            path, i);
    }
    return MOE_OK;
}

/* Without rotary settings it is YaRN from 512 positions on. */
int family_mistral_large4_hf(struct moe_config *c, const char *path, const json_t *json,
                             struct moe_rope_settings *rope, struct moe_err *err)
{
    if (!family_given(json, "rope_parameters") && !family_given(json, "rope_scaling")) {
        rope->kind = MOE_ROPE_YARN;
        rope->factor = 2048;
        rope->original_context = 512;
        rope->attention_factor = 1;
    }
    MOE_TRY(read_latent_layers(c, path, json, err));
    return family_glm_dsa_hf(c, path, json, rope, err);
}

/* "indexer_types", or the first layer and every fourth from the second on. */
int family_hy_v4_hf(struct moe_config *c, const char *path, const json_t *json,
                    struct moe_rope_settings *rope, struct moe_err *err)
{
    static const struct family_word kinds[] = {{"full", 0}, {"shared", 1}, {NULL}};
    const json_t *types = family_given(json, "indexer_types");
    c->n_kv_heads = 0;
    c->index_eps = c->norm_eps;
    for (uint32_t i = 1; i < c->n_layers; i++)
        c->layers[i].shares_choice = i % 4 != 1;
    if (types)
        MOE_TRY(family_read_words(c, MOE_LAYER(shares_choice), path, types, "indexer_types", kinds,
                                  true, err));
    return family_deepseek_v32_hf(c, path, json, rope, err);
}

/* ---- Kolibri ---- */

int family_kolibri_hf(struct moe_config *c, const char *path, const json_t *json,
                      struct moe_rope_settings *rope, struct moe_err *err)
{
    if (!family_given(json, "layer_types"))
        for (uint32_t i = 0; i < c->n_layers; i++)
            c->layers[i].windowed = (i + 1) % 5 != 0;
    return MOE_OK;
}

/* ---- Beam ---- */

/* "layer_types", or windows in all layers but every sixth and the last. */
int family_beam_hf(struct moe_config *c, const char *path, const json_t *json,
                   struct moe_rope_settings *rope, struct moe_err *err)
{
    const json_t *rotary = family_given(json, "rope_parameters");
    if (rotary &&
        (!family_given(rotary, "sliding_attention") || family_given(rotary, "full_attention")))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: 'rope_parameters' in which layers with a window do not rotate, or "
                        "others do, are not implemented",
                        path);
    if (json_is_null(json_object_get(json, "final_logit_softcapping")))
        c->logit_cap = 0;
    if (!family_given(json, "layer_types"))
        for (uint32_t i = 0; i < c->n_layers; i++)
            c->layers[i].windowed = (i + 1) % 6 != 0 && i + 1 < c->n_layers;
    return MOE_OK;
}

/* ---- Grok ---- */

/* Scores are scaled as usual unless "attn_output_multiplier" says otherwise. */
int family_grok_hf(struct moe_config *c, const char *path, const json_t *json,
                   struct moe_rope_settings *rope, struct moe_err *err)
{
    bool beside = false;
    MOE_TRY(moe_json_get_bool(path, json, "residual_moe", false, &beside, err));
    if (beside) {
        MOE_TRY(moe_json_get_u32(path, json, "intermediate_size", MOE_MAX_DIM, true, &c->shared_ff,
                                 err));
        c->moe_scale = sqrtf(0.5f);
    }
    return MOE_OK;
}

/* ---- Arctic and LongCat-Flash: two layers in one ---- */

int family_halve_layers(struct moe_config *c, const char *path, struct moe_err *err)
{
    if (c->n_layers > MOE_MAX_LAYERS / 2)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " layers of two parts, expected at "
                        "most %d",
                        path, c->n_layers, MOE_MAX_LAYERS / 2);
    c->n_layers *= 2;
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].moe = i % 2 == 0;
    return MOE_OK;
}

/* Dense feed-forwards are as wide as the stream. */
int family_arctic_halves(struct moe_config *c, const char *path, struct moe_err *err)
{
    MOE_TRY(family_halve_layers(c, path, err));
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].no_attention = i % 2 == 0;
    c->dense_ff = c->hidden;
    return MOE_OK;
}

int family_arctic_hf(struct moe_config *c, const char *path, const json_t *json,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    return family_arctic_halves(c, path, err);
}

int family_longcat_hf(struct moe_config *c, const char *path, const json_t *json,
                      struct moe_rope_settings *rope, struct moe_err *err)
{
    MOE_TRY(family_halve_layers(c, path, err));
    MOE_TRY(family_deepseek_v3_hf(c, path, json, rope, err));
    if (c->q_rank == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'q_lora_rank' must be at least 1", path);
    c->attn_scale *= sqrtf((float)c->hidden / (float)c->q_rank);
    c->latent_scale = sqrtf((float)c->hidden / (float)c->kv_rank);
    return MOE_OK;
}

/* ---- Recurrent states: which layers have them ---- */

/* "layer_types": attention, or a recurrent state, which has one of two names. */
static int read_layer_types(struct moe_config *c, const char *path, const json_t *json,
                            const char *name, const char *also, struct moe_err *err)
{
    const struct family_word kinds[] = {
        {"full_attention", 0}, {"attention", 0}, {name, 1}, {also, 1}, {NULL}};
    return family_read_words(c, MOE_LAYER(recurrent), path, json_object_get(json, "layer_types"),
                             "layer_types", kinds, false, err);
}

/* Clears the settings of states if all layers attend. */
static void drop_unused_states(struct moe_config *c)
{
    if (c->state_heads && moe_config_count_layers(c, MOE_LAYER(recurrent)) > 0)
        return;
    c->state_heads = c->state_key_heads = c->state_key_dim = c->state_value_dim = c->conv_width = 0;
    c->state_step_rank = 0;
    c->conv_bias = false;
}

/* ---- Qwen3-Next: gated DeltaNet beside attention ---- */

/* "layer_types", or every "full_attention_interval"-th layer attends. */
int family_qwen3_next_hf(struct moe_config *c, const char *path, const json_t *json,
                         struct moe_rope_settings *rope, struct moe_err *err)
{
    uint32_t interval = 4;
    MOE_TRY(moe_json_get_u32(path, json, "full_attention_interval", MOE_MAX_LAYERS, false,
                             &interval, err));
    if (interval == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'full_attention_interval' must be at least 1",
                        path);
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].recurrent = (i + 1) % interval != 0;
    if (family_given(json, "layer_types"))
        MOE_TRY(read_layer_types(c, path, json, "linear_attention", NULL, err));
    drop_unused_states(c);
    return MOE_OK;
}

/* ---- Lara ---- */

/* "layer_types", or by turns of five. */
int family_lara_hf(struct moe_config *c, const char *path, const json_t *json,
                   struct moe_rope_settings *rope, struct moe_err *err)
{
    static const struct family_word states[] = {
        {"linear_attention", 1}, {"sliding_attention", 0}, {"full_attention", 0}, {NULL}};
    static const struct family_word windows[] = {
        {"linear_attention", 0}, {"sliding_attention", 1}, {"full_attention", 0}, {NULL}};
    const json_t *types = family_given(json, "layer_types");
    for (uint32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].recurrent = i % 5 == 0 || i % 5 == 2;
        c->layers[i].windowed = i % 5 == 1 || i % 5 == 4;
    }
    c->window = 512;
    MOE_TRY(
        moe_json_get_u32(path, json, "sliding_window", MOE_MAX_CONTEXT, false, &c->window, err));
    if (types) {
        MOE_TRY(family_read_words(c, MOE_LAYER(recurrent), path, types, "layer_types", states,
                                  false, err));
        MOE_TRY(family_read_words(c, MOE_LAYER(windowed), path, types, "layer_types", windows,
                                  false, err));
    }
    if (moe_config_count_layers(c, MOE_LAYER(windowed)) == 0)
        c->window = 0;
    drop_unused_states(c);
    return MOE_OK;
}

/* ---- MiniMax-01 ---- */

void family_minimax_states(struct moe_config *c)
{
    c->state_heads = c->state_key_heads = c->n_heads;
    c->state_key_dim = c->head_dim ? c->head_dim : c->n_heads ? c->hidden / c->n_heads : 0;
    c->state_value_dim = c->state_key_dim;
    if (moe_config_count_layers(c, MOE_LAYER(recurrent)) == 0)
        c->state_heads = c->state_key_heads = c->state_key_dim = c->state_value_dim =
            c->conv_width = 0;
}

/* Scales of three kinds of blocks, under one of two names each: all or none are there, and the
 * same. */
static int minimax_scale(const char *path, const json_t *json, const char *const names[6],
                         float *out, struct moe_err *err)
{
    int n = 0;
    for (int i = 0; i < 6; i++) {
        double scale = 1;
        if (!family_given(json, names[i]))
            continue;
        MOE_TRY(moe_json_get_double(path, json, names[i], true, &scale, err));
        if (n++ > 0 && (float)scale != *out)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: '%s' is %g beside %g of other blocks: one scale for all is "
                            "implemented",
                            path, names[i], scale, (double)*out);
        *out = (float)scale;
    }
    return n % 3 == 0 ? MOE_OK
                      : moe_fail(err, MOE_ERR_UNSUPPORTED,
                                 "%s: '%s' and its like must be given for all kinds of blocks",
                                 path, names[0]);
}

/* "layer_types", or "attn_type_list": 1 for ordinary attention; without either every other layer
 * from the first on has it. */
int family_minimax_hf(struct moe_config *c, const char *path, const json_t *json,
                      struct moe_rope_settings *rope, struct moe_err *err)
{
    static const char *const alphas[] = {"full_attn_alpha_factor",
                                         "linear_attn_alpha_factor",
                                         "mlp_alpha_factor",
                                         "layernorm_full_attention_alpha",
                                         "layernorm_linear_attention_alpha",
                                         "layernorm_mlp_alpha"};
    static const char *const betas[] = {
        "full_attn_beta_factor",         "linear_attn_beta_factor",         "mlp_beta_factor",
        "layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta"};
    const json_t *list = family_given(json, "attn_type_list");
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].recurrent =
            list ? json_integer_value(json_array_get(list, i)) != 1 : i % 2 != 0;
    if (list && json_array_size(list) != c->n_layers)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'attn_type_list' must be a list of %" PRIu32 " layers", path,
                        c->n_layers);
    if (family_given(json, "layer_types"))
        MOE_TRY(read_layer_types(c, path, json, "linear_attention", NULL, err));
    MOE_TRY(minimax_scale(path, json, alphas, &c->stream_scale, err));
    MOE_TRY(minimax_scale(path, json, betas, &c->residual_scale, err));
    family_minimax_states(c);
    return MOE_OK;
}

/* ---- LFM2 with experts: short convolutions beside attention ---- */

int family_lfm2_moe_hf(struct moe_config *c, const char *path, const json_t *json,
                       struct moe_rope_settings *rope, struct moe_err *err)
{
    uint32_t n_dense = 2;
    MOE_TRY(moe_json_get_u32(path, json, "num_dense_layers", MOE_MAX_LAYERS, false, &n_dense, err));
    MOE_TRY(read_layer_types(c, path, json, "conv", NULL, err));
    moe_config_set_layers(c, MOE_LAYER(moe), n_dense, c->n_layers, 1);
    c->state_heads = 1;
    c->state_value_dim = c->hidden;
    drop_unused_states(c);
    return MOE_OK;
}

/* ---- Mamba-2 ---- */

/* "time_step_limit", if there is one, must be from 0 to a number that no step reaches. */
static int check_steps(const char *path, const json_t *json, struct moe_err *err)
{
    const json_t *limit = json_object_get(json, "time_step_limit");
    const json_t *least = json_array_get(limit, 0), *most = json_array_get(limit, 1);
    bool none = !limit || json_is_null(limit) ||
                (json_array_size(limit) == 2 && json_number_value(least) == 0 &&
                 (!json_is_number(most) || json_number_value(most) >= 1e9));
    return none ? MOE_OK
                : moe_fail(err, MOE_ERR_UNSUPPORTED,
                           "%s: 'time_step_limit' other than 0 to infinity is not implemented",
                           path);
}

/* ---- Granite-4 ---- */

/* "mamba_d_head": a number, or "auto" for the stream's width times "mamba_expand", divided by the
 * heads. */
static int read_head_width(struct moe_config *c, const char *path, const json_t *json,
                           struct moe_err *err)
{
    uint32_t expand = 2, width = 0;
    const char *text = json_string_value(json_object_get(json, "mamba_d_head"));
    bool given = json_object_get(json, "mamba_d_head") && !(text && strcmp(text, "auto") == 0);
    MOE_TRY(moe_json_get_u32(path, json, "mamba_expand", MOE_MAX_DIM, false, &expand, err));
    if (given)
        MOE_TRY(moe_json_get_u32(path, json, "mamba_d_head", MOE_MAX_HEAD_DIM, true, &width, err));
    uint64_t values = (uint64_t)expand * c->hidden;
    if (!given && c->state_heads)
        width = (uint32_t)(values / c->state_heads);
    if ((uint64_t)width * c->state_heads != values)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " heads of %" PRIu32 " values are not %" PRIu32
                        " times the width of %" PRIu32,
                        path, c->state_heads, width, expand, c->hidden);
    c->state_value_dim = width;
    return MOE_OK;
}

int family_granite_hybrid_hf(struct moe_config *c, const char *path, const json_t *json,
                             struct moe_rope_settings *rope, struct moe_err *err)
{
    const char *positions = json_string_value(json_object_get(json, "position_embedding_type"));
    MOE_TRY(check_steps(path, json, err));
    MOE_TRY(read_layer_types(c, path, json, "mamba", "linear_attention", err));
    if (c->state_heads && moe_config_count_layers(c, MOE_LAYER(recurrent)) > 0)
        MOE_TRY(read_head_width(c, path, json, err));
    if (positions && strcmp(positions, "rope") == 0) {
        c->positions = MOE_POSITIONS_ROTARY;
        MOE_TRY(moe_rope_read_hf(rope, path, json, err));
    }
    if (c->n_experts == 0) {
        c->dense_ff = c->shared_ff;
        c->expert_ff = c->shared_ff = c->top_k = 0;
        moe_config_set_layers(c, MOE_LAYER(moe), 0, c->n_layers, 0);
    }
    drop_unused_states(c);
    return MOE_OK;
}

/* ---- Nemotron-H: every layer is a half ---- */

enum half { MAMBA, ATTENTION, MOE, MLP, N_HALVES };

/* The half that a letter of "hybrid_override_pattern" or a word of "layers_block_type" names. */
static int half_of(const char *letter, const char *word)
{
    static const char *const names[N_HALVES][3] = {
        [MAMBA] = {"M", "mamba", "linear_attention"},
        [ATTENTION] = {"*", "attention", "full_attention"},
        [MOE] = {"E", "moe", "moe"},
        [MLP] = {"-", "mlp", "mlp"},
    };
    for (int i = 0; i < N_HALVES; i++)
        if (letter ? names[i][0][0] == *letter
                   : strcmp(names[i][1], word) == 0 || strcmp(names[i][2], word) == 0)
            return i;
    return N_HALVES;
}

/* These lists give the number of layers, whatever "num_hidden_layers" says. */
static int read_halves(struct moe_config *c, const char *path, const json_t *json,
                       struct moe_err *err)
{
    const json_t *list = json_object_get(json, "layers_block_type");
    const char *pattern = json_string_value(json_object_get(json, "hybrid_override_pattern"));
    bool listed = json_is_array(list);
    size_t n = listed ? json_array_size(list) : pattern ? strlen(pattern) : 0;
    if (n == 0 || n > MOE_MAX_LAYERS)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'layers_block_type', or 'hybrid_override_pattern', must name 1 to %d "
                        "layers",
                        path, MOE_MAX_LAYERS);
    c->n_layers = (uint32_t)n;
    for (uint32_t i = 0; i < n; i++) {
        const char *word = json_string_value(json_array_get(list, i));
        int half = half_of(listed ? NULL : pattern + i, word ? word : "?");
        if (half == N_HALVES)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: layer %" PRIu32 " is '%.60s', which is not implemented", path, i,
                            !listed ? pattern + i
                            : word  ? word
                                    : "?");
        c->layers[i].recurrent = half == MAMBA;
        c->layers[i].moe = half == MOE;
        c->layers[i].no_attention = half == MOE || half == MLP;
        c->layers[i].no_ffn = half == MAMBA || half == ATTENTION;
    }
    return MOE_OK;
}

int family_nemotron_h_hf(struct moe_config *c, const char *path, const json_t *json,
                         struct moe_rope_settings *rope, struct moe_err *err)
{
    MOE_TRY(check_steps(path, json, err));
    MOE_TRY(read_halves(c, path, json, err));
    if (moe_config_count_layers(c, MOE_LAYER(moe)) == 0)
        c->n_experts = c->top_k = c->expert_ff = c->expert_dim = c->shared_ff = 0;
    drop_unused_states(c);
    return MOE_OK;
}

/* ---- Kimi-Linear: KDA beside latent attention ---- */

/* Sets whether layers are recurrent from a list of their numbers, which begin at 1. listed: layers
 * met so far. */
static int read_numbered(struct moe_config *c, const char *path, const json_t *from,
                         const char *key, bool recurrent, uint8_t *listed, struct moe_err *err)
{
    const json_t *list = json_object_get(from, key), *item;
    size_t i;
    json_array_foreach(list, i, item)
    {
        json_int_t layer = json_is_integer(item) ? json_integer_value(item) : 0;
        if (layer < 1 || layer > (json_int_t)c->n_layers || listed[layer - 1])
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: '%s' item %zu is no layer, or one that is listed already", path,
                            key, i);
        listed[layer - 1] = 1;
        c->layers[layer - 1].recurrent = recurrent;
    }
    return MOE_OK;
}

/* "linear_attn_config" numbers all layers in two lists. */
static int read_numbered_layers(struct moe_config *c, const char *path, const json_t *from,
                                struct moe_err *err)
{
    uint8_t listed[MOE_MAX_LAYERS] = {0};
    MOE_TRY(read_numbered(c, path, from, "kda_layers", true, listed, err));
    MOE_TRY(read_numbered(c, path, from, "full_attn_layers", false, listed, err));
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (!listed[i])
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: layer %" PRIu32 " is neither in 'kda_layers' nor in "
                            "'full_attn_layers'",
                            path, i + 1);
    return MOE_OK;
}

/* Published files have KDA's numbers in an object of their own, newer ones beside the rest. */
int family_kimi_linear_hf(struct moe_config *c, const char *path, const json_t *json,
                          struct moe_rope_settings *rope, struct moe_err *err)
{
    const json_t *own = json_object_get(json, "linear_attn_config");
    bool nested = json_is_object(own);
    uint32_t width = 128, n_shared = 1;
    const struct family_number states[] = {
        {nested ? "num_heads" : "linear_num_heads", &c->state_heads, MOE_MAX_HEADS},
        {nested ? "head_dim" : "linear_head_dim", &width, MOE_MAX_HEAD_DIM},
        {nested ? "short_conv_kernel_size" : "linear_conv_kernel_dim", &c->conv_width,
         MOE_MAX_HEAD_DIM},
    };
    const struct family_number shared[] = {
        {"n_shared_experts", &n_shared, MOE_MAX_EXPERTS},
        {"num_shared_experts", &n_shared, MOE_MAX_EXPERTS},
    };
    MOE_TRY(family_deepseek_v3_hf(c, path, json, rope, err));
    MOE_TRY(family_read_numbers(path, nested ? own : json, states, sizeof states / sizeof states[0],
                                err));
    MOE_TRY(family_read_numbers(path, json, shared, sizeof shared / sizeof shared[0], err));
    MOE_TRY(family_set_shared(c, n_shared, path, err));
    c->state_key_heads = c->state_heads;
    c->state_key_dim = c->state_value_dim = width;
    MOE_TRY(nested ? read_numbered_layers(c, path, own, err)
                   : read_layer_types(c, path, json, "linear_attention", NULL, err));
    drop_unused_states(c);
    return MOE_OK;
}

/* ---- Kimi-K3 ---- */

void family_keep_streams(struct moe_config *c)
{
    c->n_streams = c->stream_layers ? moe_config_streams_before(c, 2 * c->n_layers - 1) : 0;
}

int family_kimi_k3_hf(struct moe_config *c, const char *path, const json_t *json,
                      struct moe_rope_settings *rope, struct moe_err *err)
{
    double floor = 0;
    MOE_TRY(family_kimi_linear_hf(c, path, json, rope, err));
    MOE_TRY(moe_json_get_double(path, json_object_get(json, "linear_attn_config"),
                                "gate_lower_bound", false, &floor, err));
    c->decay_floor = (float)floor;
    c->narrow_norm = c->expert_dim > 0;
    family_keep_streams(c);
    return MOE_OK;
}

/* ---- GLM-5.3 ---- */

int family_index_pools(struct moe_config *c, const char *path, struct moe_err *err)
{
    if (c->index_block == 0 || c->index_top % c->index_block != 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: an indexer that chooses %" PRIu32 " positions in pools of %" PRIu32,
                        path, c->index_top, c->index_block);
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].shares_choice &= !c->layers[i].recurrent;
    return MOE_OK;
}

/* Published files have KDA's numbers in an object of their own. Three of four layers have states
 * where no list says which. */
int family_glm5_next_hf(struct moe_config *c, const char *path, const json_t *json,
                        struct moe_rope_settings *rope, struct moe_err *err)
{
    static const struct family_word kinds[] = {
        {"linear_attention", 1}, {"indexed_attention", 0}, {"full_attention", 0}, {NULL}};
    const json_t *own = family_given(json, "linear_attn_config");
    const json_t *types = family_given(json, "layer_types"), *from = own ? own : json;
    const char *key = own ? "gate_lower_bound" : "linear_lower_bound";
    uint32_t width = 128;
    double floor = -5;
    const struct family_number states[] = {
        {own ? "num_heads" : "linear_num_heads", &c->state_heads, MOE_MAX_HEADS},
        {own ? "head_dim" : "linear_head_dim", &width, MOE_MAX_HEAD_DIM},
        {own ? "short_conv_kernel_size" : "linear_conv_kernel_dim", &c->conv_width,
         MOE_MAX_HEAD_DIM},
    };
    MOE_TRY(family_deepseek_v3_hf(c, path, json, rope, err));
    MOE_TRY(family_read_numbers(path, from, states, sizeof states / sizeof states[0], err));
    if (!json_is_null(json_object_get(from, key)))
        MOE_TRY(moe_json_get_double(path, from, key, false, &floor, err));
    else if (!own)
        floor = 0;
    MOE_TRY(read_sharing(c, path, json, err));
    c->decay_floor = (float)floor;
    c->state_key_heads = c->state_heads;
    c->state_key_dim = c->state_value_dim = width;
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].recurrent = i % 4 != 3;
    if (types)
        MOE_TRY(family_read_words(c, MOE_LAYER(recurrent), path, types, "layer_types", kinds, false,
                                  err));
    drop_unused_states(c);
    return family_index_pools(c, path, err);
}

/* ---- Qwen4: n-grams, gated streams ---- */

static uint64_t split_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

static bool is_prime(uint64_t n)
{
    bool prime = n == 2 || (n > 2 && n % 2 != 0);
    for (uint64_t i = 3; prime && i * i <= n; i += 2)
        prime = n % i != 0;
    return prime;
}

int family_set_ngrams(struct moe_config *c, uint32_t n_layers, const char *path,
                      struct moe_err *err)
{
    if (n_layers > 1)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: embeddings of n-grams in %" PRIu32 " layers: one is implemented", path,
                        n_layers);
    if (n_layers == 0)
        c->ngrams = c->ngram_heads = c->ngram_dim = c->ngram_rows = c->ngram_taps = c->ngram_end =
            0;
    return MOE_OK;
}

/* What finds a row of the table: factors out of "seed", and prime numbers of rows from
 * "ngram_vocab_size_base" on, as transformers' class computes them. */
static int make_ngrams(struct moe_config *c, const char *path, const json_t *json,
                       struct moe_err *err)
{
    uint32_t width = c->hidden, size = 20000000, divisor = 128, seed = 1234;
    const struct family_number numbers[] = {
        {"ple_embed_dim", &width, MOE_MAX_DIM},
        {"ngram_vocab_size_base", &size, 1 << 30},
        {"make_ngram_vocab_size_divisible_by", &divisor, 1 << 20},
        {"seed", &seed, INT32_MAX},
    };
    const json_t *end = json_object_get(json, "eos_token_id");
    uint32_t n = (c->ngrams - 1) * c->ngram_heads;
    uint64_t rows = 0, most = INT64_MAX / c->vocab / 2, prime;
    MOE_TRY(family_read_numbers(path, json, numbers, sizeof numbers / sizeof numbers[0], err));
    end = json_is_array(end) ? json_array_get(end, 0) : end;
    if (c->ngrams < 2 || c->ngrams > MOE_MAX_NGRAM || n == 0 || n > MOE_MAX_NGRAM_HEADS ||
        width % n != 0 || divisor == 0 || !json_is_integer(end) || json_integer_value(end) < 0 ||
        json_integer_value(end) >= (json_int_t)c->vocab)
        return moe_fail(
            err, MOE_ERR_FORMAT,
            "%s: 'ngram_size', 'heads_per_ngram', 'ple_embed_dim' and 'eos_token_id' do "
            "not describe embeddings of n-grams",
            path);
    c->ngram_end = (uint32_t)json_integer_value(end);
    c->ngram_dim = width / n;
    for (uint32_t i = 0; i < c->ngrams; i++)
        c->ngram_factors[i] = 2 * (split_mix(seed + 0x9e3779b97f4a7c15 * (i + 1)) % most) + 1;
    prime = size ? size - 1 : 0;
    for (uint32_t i = 0; i < n; i++) {
        do
            prime++;
        while (!is_prime(prime));
        c->ngram_sizes[i] = (uint32_t)prime;
        rows += prime;
    }
    rows = (rows + divisor - 1) / divisor * divisor;
    c->ngram_rows = rows < UINT32_MAX ? (uint32_t)rows : UINT32_MAX;
    return MOE_OK;
}

int family_qwen4_hf(struct moe_config *c, const char *path, const json_t *json,
                    struct moe_rope_settings *rope, struct moe_err *err)
{
    static const struct family_word kinds[] = {
        {"linear_attention", 1}, {"full_attention", 0}, {"indexed_attention", 0}, {NULL}};
    const json_t *types = family_given(json, "layer_types");
    const json_t *layers = family_given(json, "ple_layer_ids");
    const char *gate = "silu";
    uint32_t budget = 0, ratio = 1, interval = 4;
    const struct family_number numbers[] = {{"indexer_n_heads", &c->index_heads, MOE_MAX_HEADS},
                                            {"indexer_head_dim", &c->index_dim, MOE_MAX_HEAD_DIM},
                                            {"indexer_budget", &budget, MOE_MAX_CONTEXT},
                                            {"indexer_compress_ratio", &ratio, MOE_MAX_CONTEXT},
                                            {"full_attention_interval", &interval, MOE_MAX_LAYERS}};
    MOE_TRY(family_read_numbers(path, json, numbers, sizeof numbers / sizeof numbers[0], err));
    if (family_given(json, "output_gate_type"))
        MOE_TRY(moe_json_get_text(path, json, "output_gate_type", false, &gate, err));
    if (ratio == 0 || interval == 0 || !family_is_one_of(gate, "silu|swish|sigmoid"))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'indexer_compress_ratio' or 'full_attention_interval' is 0, or "
                        "'output_gate_type' is neither silu nor sigmoid",
                        path);
    c->state_sigmoid = strcmp(gate, "sigmoid") == 0;
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].recurrent = (i + 1) % interval != 0;
    if (types)
        MOE_TRY(family_read_words(c, MOE_LAYER(recurrent), path, types, "layer_types", kinds, false,
                                  err));
    for (size_t i = 0; i < json_array_size(layers); i++) { /* counted from 1 */
        const json_t *item = json_array_get(layers, i);
        json_int_t at = json_is_integer(item) ? json_integer_value(item) : 0;
        if (at < 1 || at > (json_int_t)c->n_layers)
            return moe_fail(err, MOE_ERR_FORMAT, "%s: 'ple_layer_ids' lists what is no layer",
                            path);
        c->layers[at - 1].ngrams = true;
    }
    uint32_t n = moe_config_count_layers(c, MOE_LAYER(ngrams));
    MOE_TRY(family_set_ngrams(c, n, path, err));
    if (n)
        MOE_TRY(make_ngrams(c, path, json, err));
    drop_unused_states(c);
    if (!c->state_heads)
        c->state_sigmoid = false;
    return family_index_means(c, path, budget, ratio, err);
}

/* ---- Ling-3: KDA beside latent attention with gates ---- */

/* "layer_types", or every "layer_group_size"-th layer attends. Files that transformers saves have
 * the widths of states under other names, and "head_dim" for something else. */
int family_bailing_hybrid_hf(struct moe_config *c, const char *path, const json_t *json,
                             struct moe_rope_settings *rope, struct moe_err *err)
{
    uint32_t group = 6, width = 128;
    bool limited = true;
    double floor = -5;
    const struct family_number numbers[] = {
        {"layer_group_size", &group, MOE_MAX_LAYERS},
        {"head_dim", &width, MOE_MAX_HEAD_DIM},
        {"linear_head_dim", &width, MOE_MAX_HEAD_DIM},
    };
    MOE_TRY(family_deepseek_v3_hf(c, path, json, rope, err));
    MOE_TRY(family_read_limits(c, MOE_LAYER(expert_limit), path, json, "expert_swiglu_limit_list",
                               err));
    MOE_TRY(family_read_limits(c, MOE_LAYER(dense_limit), path, json,
                               "share_expert_swiglu_limit_list", err));
    MOE_TRY(family_read_numbers(path, json, numbers, sizeof numbers / sizeof numbers[0], err));
    MOE_TRY(moe_json_get_bool(path, json, "kda_safe_gate", false, &limited, err));
    MOE_TRY(moe_json_get_double(path, json, "kda_lower_bound", false, &floor, err));
    if (group == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'layer_group_size' must be at least 1", path);
    c->state_heads = c->state_key_heads = c->n_heads;
    c->state_key_dim = c->state_value_dim = width;
    c->decay_floor = limited ? (float)floor : 0;
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].recurrent = (i + 1) % group != 0;
    if (family_given(json, "layer_types"))
        MOE_TRY(read_layer_types(c, path, json, "linear_attention", NULL, err));
    if (moe_config_count_layers(c, MOE_LAYER(recurrent)) == 0) {
        c->state_direct = false;
        c->decay_floor = 0;
    }
    drop_unused_states(c);
    return MOE_OK;
}

/* ---- Jamba: Mamba, with experts in every other layer ---- */

int family_jamba_hf(struct moe_config *c, const char *path, const json_t *json,
                    struct moe_rope_settings *rope, struct moe_err *err)
{
    uint32_t attends[2] = {8, 4}, experts[2] = {2, 1}, expand = 2, rank = (c->hidden + 15) / 16;
    const char *text = json_string_value(json_object_get(json, "mamba_dt_rank"));
    bool automatic = text && strcmp(text, "auto") == 0;
    const struct family_number numbers[] = {
        {"attn_layer_period", &attends[0], MOE_MAX_LAYERS},
        {"attn_layer_offset", &attends[1], MOE_MAX_LAYERS},
        {"expert_layer_period", &experts[0], MOE_MAX_LAYERS},
        {"expert_layer_offset", &experts[1], MOE_MAX_LAYERS},
        {"mamba_expand", &expand, MOE_MAX_HEADS},
        {automatic ? "" : "mamba_dt_rank", &rank, MOE_MAX_DIM},
    };
    MOE_TRY(family_read_numbers(path, json, numbers, sizeof numbers / sizeof numbers[0], err));
    if (attends[1] >= attends[0] || experts[1] >= experts[0] ||
        (uint64_t)expand * c->hidden > MOE_MAX_DIM)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: attention in layer %" PRIu32 " of %" PRIu32 ", experts in %" PRIu32
                        " of %" PRIu32 ", states %" PRIu32
                        " times as wide as the stream, expected layers below their periods and "
                        "states of at most %d values",
                        path, attends[1], attends[0], experts[1], experts[0], expand, MOE_MAX_DIM);
    c->state_heads = c->state_key_heads = 1;
    c->state_value_dim = expand * c->hidden;
    c->state_step_rank = rank;
    c->dense_ff = c->expert_ff;
    if (c->n_experts <= 1)
        c->n_experts = c->top_k = c->expert_ff = 0;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].recurrent = i % attends[0] != attends[1];
        c->layers[i].moe = c->n_experts > 0 && i % experts[0] == experts[1];
    }
    drop_unused_states(c);
    return MOE_OK;
}

/* ---- DeepSeek-V4: layers that compress, static routing, two rotations ---- */

static const struct family_word compressions[] = {
    {"sliding_attention", MOE_COMPRESS_NOT},
    {"heavily_compressed_attention", MOE_COMPRESS_ALL},
    {"compressed_sparse_attention", MOE_COMPRESS_CHOSEN},
    {NULL},
};

/* "layer_types" names each layer's attention; published files have "compress_ratios", the positions
 * per entry, instead. Without either, the first two layers see all entries, then every second layer
 * chooses. */
static int read_compressed_layers(struct moe_config *c, const char *path, const json_t *json,
                                  struct moe_err *err)
{
    static const json_int_t ratios[] = {[MOE_COMPRESS_ALL] = 128, [MOE_COMPRESS_CHOSEN] = 4};
    enum { N_KINDS = sizeof ratios / sizeof ratios[0] };
    const json_t *types = family_given(json, "layer_types");
    const json_t *list = family_given(json, "compress_ratios");
    if (types)
        return family_read_words(c, MOE_LAYER(compression), path, types, "layer_types",
                                 compressions, true, err);
    if (list && json_array_size(list) < c->n_layers)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'compress_ratios' must be a list of %" PRIu32 " layers", path,
                        c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const json_t *item = json_array_get(list, i);
        uint8_t kind = list ? 0 : i < 2 || i % 2 == 0 ? MOE_COMPRESS_ALL : MOE_COMPRESS_CHOSEN;
        while (list && kind < N_KINDS &&
               !(json_is_integer(item) && json_integer_value(item) == ratios[kind]))
            kind++;
        if (kind == N_KINDS)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: 'compress_ratios' item %" PRIu32 " is not implemented: 0, 128 and "
                            "4 are",
                            path, i);
        c->layers[i].compression = kind;
    }
    return MOE_OK;
}

static int read_ratios(struct moe_config *c, const char *path, const json_t *json,
                       struct moe_err *err)
{
    const json_t *rates = json_object_get(json, "compress_rates");
    const struct family_number named[] = {
        {"heavily_compressed_attention", &c->all_ratio, MOE_MAX_RATIO},
        {"compressed_sparse_attention", &c->chosen_ratio, MOE_MAX_RATIO},
    };
    const struct family_number numbers[] = {
        {"compress_rate_hca", &c->all_ratio, MOE_MAX_RATIO},
        {"compress_rate_csa", &c->chosen_ratio, MOE_MAX_RATIO},
    };
    c->all_ratio = 128;
    c->chosen_ratio = 4;
    if (json_is_object(rates))
        MOE_TRY(family_read_numbers(path, rates, named, sizeof named / sizeof named[0], err));
    return family_read_numbers(path, json, numbers, sizeof numbers / sizeof numbers[0], err);
}

/* Clears the settings of kinds of layers that the model has none of. */
void family_deepseek_v4_drop(struct moe_config *c)
{
    bool has[MOE_COMPRESS_CHOSEN + 1] = {false};
    for (uint32_t i = 0; i < c->n_layers; i++)
        has[c->layers[i].compression] = true;
    if (!has[MOE_COMPRESS_ALL])
        c->all_ratio = 0;
    if (!has[MOE_COMPRESS_CHOSEN])
        c->chosen_ratio = c->index_heads = c->index_dim = c->index_top = 0;
    if (!moe_config_has_static(c, 0, c->n_layers))
        c->static_weighed = false;
}

/* "mlp_layer_types", or the first "num_hash_layers". */
static int read_static(struct moe_config *c, const char *path, const json_t *json,
                       struct moe_err *err)
{
    static const struct family_word kinds[] = {{"hash_moe", 1}, {"moe", 0}, {NULL}};
    const json_t *types = family_given(json, "mlp_layer_types");
    uint32_t n = 3;
    MOE_TRY(moe_json_get_u32(path, json, "num_hash_layers", MOE_MAX_LAYERS, false, &n, err));
    if (types)
        return family_read_words(c, MOE_LAYER(static_routing), path, types, "mlp_layer_types",
                                 kinds, true, err);
    moe_config_set_layers(c, MOE_LAYER(static_routing), 0, n < c->n_layers ? n : c->n_layers, 1);
    return MOE_OK;
}

int family_deepseek_v4_rotary(struct moe_config *c, struct moe_rope_settings *rope, double theta,
                              const char *name, struct moe_err *err)
{
    if (c->rope_dim < 2 || c->rope_dim > 2 * MOE_MAX_ROPE_PAIRS)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: %" PRIu32 " rotated values, expected 2 to %d",
                        name, c->rope_dim, 2 * MOE_MAX_ROPE_PAIRS);
    if (rope->kind == MOE_ROPE_YARN && rope->attention_factor == 0)
        rope->attention_factor = 1;
    MOE_TRY(moe_rope_apply_global(c, rope, name, err));
    if (c->global_rope_scale != 1)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: a rotary 'attention_factor' of %g is not implemented", name,
                        c->global_rope_scale);
    if (moe_config_count_layers(c, MOE_LAYER(compression)) == 0)
        c->n_global_freqs = 0;
    moe_rope_settings_init(rope);
    rope->theta = theta;
    return MOE_OK;
}

/* Reads the compressing layers' rotation into *rope (except its base, if the file has both
 * rotations), and leaves the other layers' in it, which is not extended. */
static int read_rope(struct moe_config *c, const char *path, const json_t *json,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    const json_t *both = json_object_get(json, "rope_parameters");
    const json_t *main = json_object_get(both, "main");
    double theta = 1e4;
    const char *type = "default";
    MOE_TRY(moe_json_get_double(path, json, "rope_theta", false, &theta, err));
    if (json_is_object(main)) {
        MOE_TRY(moe_json_get_double(path, main, "rope_theta", false, &theta, err));
        MOE_TRY(moe_json_get_text(path, main, "rope_type", false, &type, err));
    } else {
        rope->theta = 160000;
        MOE_TRY(moe_json_get_double(path, json, "compress_rope_theta", false, &rope->theta, err));
    }
    if (strcmp(type, "default") != 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: 'rope_type' %.60s of layers that see only a window is not implemented",
                        path, type);
    if (c->rope_dim == 0)
        c->rope_dim = (uint32_t)(c->head_dim * rope->partial);
    return family_deepseek_v4_rotary(c, rope, theta, path, err);
}

int family_deepseek_v4_hf(struct moe_config *c, const char *path, const json_t *json,
                          struct moe_rope_settings *rope, struct moe_err *err)
{
    c->shared_ff = c->expert_ff;
    MOE_TRY(read_compressed_layers(c, path, json, err));
    MOE_TRY(read_ratios(c, path, json, err));
    MOE_TRY(read_static(c, path, json, err));
    family_deepseek_v4_drop(c);
    return read_rope(c, path, json, rope, err);
}

/* ---- Gemma-2 and 3: Gemma-4 without experts, with heads of one shape ---- */

/* Caps are those that the file has; null is none. */
int family_gemma2_hf(struct moe_config *c, const char *path, const json_t *json,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    double scalar = 256;
    MOE_TRY(moe_json_get_double(path, json, "query_pre_attn_scalar", false, &scalar, err));
    if (!(scalar > 0))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'query_pre_attn_scalar' %g, expected a number above 0", path, scalar);
    if (json_is_null(json_object_get(json, "attn_logit_softcapping")))
        c->attn_cap = 0;
    if (json_is_null(json_object_get(json, "final_logit_softcapping")))
        c->logit_cap = 0;
    c->embed_scale = sqrtf((float)c->hidden);
    c->attn_scale = (float)(1 / sqrt(scalar));
    return MOE_OK;
}

int family_gemma3_hf(struct moe_config *c, const char *path, const json_t *json,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    uint32_t every = 6;
    MOE_TRY(family_gemma2_hf(c, path, json, rope, err));
    MOE_TRY(
        moe_json_get_u32(path, json, "sliding_window_pattern", MOE_MAX_LAYERS, false, &every, err));
    if (every == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'sliding_window_pattern' 0, expected 1 or more",
                        path);
    for (uint32_t i = 0; i < c->n_layers && !family_given(json, "layer_types"); i++)
        c->layers[i].windowed = (i + 1) % every != 0;
    return family_two_rotations_hf(c, path, json, rope, err);
}

/* ---- Gemma-4: local and global layers ---- */

/* Without a list, five local layers, then a global one; the last layer is always global. */
static void gemma4_layers(struct moe_config *c, const json_t *json)
{
    bool listed = json_is_array(json_object_get(json, "layer_types"));
    for (uint32_t i = 0; i < c->n_layers && !listed; i++)
        c->layers[i].windowed = (i + 1) % 6 != 0;
    if (c->n_layers > 0)
        c->layers[c->n_layers - 1].windowed = 0;
}

/* The last "num_kv_shared_layers" layers see keys of earlier ones, and may be twice as wide. */
static int gemma4_sharing(struct moe_config *c, const char *path, const json_t *json,
                          struct moe_err *err)
{
    uint32_t n = 0, tokens = c->vocab;
    bool wide = false;
    const struct family_number numbers[] = {
        {"num_kv_shared_layers", &n, c->n_layers},
        {c->layer_embed ? "vocab_size_per_layer_input" : "", &tokens, MOE_MAX_DIM},
    };
    MOE_TRY(family_read_numbers(path, json, numbers, sizeof numbers / sizeof numbers[0], err));
    MOE_TRY(moe_json_get_bool(path, json, "use_double_wide_mlp", false, &wide, err));
    if (tokens != c->vocab)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: 'vocab_size_per_layer_input' %" PRIu32 " beside 'vocab_size' %" PRIu32
                        " is not implemented: both must be the same",
                        path, tokens, c->vocab);
    moe_config_set_layers(c, MOE_LAYER(shares_keys), c->n_layers - n, c->n_layers, 1);
    if (wide)
        moe_config_set_layers(c, MOE_LAYER(wide_ffn), c->n_layers - n, c->n_layers, 1);
    return MOE_OK;
}

/* "per_layer_config", in newer files: the same for every global layer, and nothing for others. */
static int gemma4_by_layer(struct moe_config *c, const char *path, const json_t *json,
                           struct moe_err *err)
{
    const json_t *by_layer = json_object_get(json, "per_layer_config");
    uint32_t n_global = 0, wide = 0, heads = 0;
    for (uint32_t i = 0; i < c->n_layers && json_is_object(by_layer); i++) {
        char key[16];
        snprintf(key, sizeof key, "%" PRIu32, i);
        MOE_TRY(moe_json_check_type(path, by_layer, key, MOE_JSON_IS_OBJECT, err));
        const json_t *own = family_given(by_layer, key);
        uint32_t head_dim = c->head_dim, kv_heads = c->n_kv_heads;
        const struct family_number numbers[] = {
            {"head_dim", &head_dim, MOE_MAX_HEAD_DIM},
            {"num_key_value_heads", &kv_heads, MOE_MAX_HEADS},
        };
        if (own)
            MOE_TRY(
                family_read_numbers(path, own, numbers, sizeof numbers / sizeof numbers[0], err));
        bool global = !c->layers[i].windowed;
        if (global && n_global++ == 0) {
            wide = head_dim;
            heads = kv_heads;
        }
        if (head_dim != (global ? wide : c->head_dim) ||
            kv_heads != (global ? heads : c->n_kv_heads))
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: 'per_layer_config' gives layer %" PRIu32
                            " other heads: only global layers may have them, all the same ones",
                            path, i);
    }
    if (wide) {
        c->global_head_dim = wide;
        c->global_kv_heads = heads;
    }
    return MOE_OK;
}

/* "proportional": the part of a global head that rotates has the frequencies it would have if all
 * of it did; the other pairs have 0. */
static int gemma4_global_rope(struct moe_config *c, const char *path, const json_t *json,
                              struct moe_err *err)
{
    const json_t *all = json_object_get(json, "rope_parameters");
    const json_t *rope = json_object_get(all, "full_attention");
    double theta = 1e6, partial = 0.25;
    const char *type = "proportional";
    if (json_is_object(rope)) {
        type = "default";
        partial = 1;
    } else if (json_is_object(all)) {
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'rope_parameters' says nothing of 'full_attention'", path);
    }
    if (rope)
        MOE_TRY(moe_json_get_text(path, rope, "rope_type", false, &type, err));
    if (rope)
        MOE_TRY(moe_json_get_double(path, rope, "rope_theta", false, &theta, err));
    if (rope)
        MOE_TRY(moe_json_get_double(path, rope, "partial_rotary_factor", false, &partial, err));
    if (strcmp(type, "default") == 0)
        partial = 1;
    else if (strcmp(type, "proportional") != 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: rotary scaling '%.60s' of global layers is not implemented", path,
                        type);
    if (!(partial >= 0 && partial <= 1) || !(theta > 1) ||
        c->global_head_dim / 2 > MOE_MAX_ROPE_PAIRS)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: rotating %g of %" PRIu32
                        " values of a head by theta %g, expected a share from 0 to 1 of at most %d "
                        "values and a theta above 1",
                        path, partial, c->global_head_dim, theta, 2 * MOE_MAX_ROPE_PAIRS);
    uint32_t pairs = c->global_head_dim / 2;
    uint32_t turning = (uint32_t)(partial * c->global_head_dim / 2);
    c->n_global_freqs = pairs;
    for (uint32_t i = 0; i < pairs; i++)
        c->global_freqs[i] = i < turning ? pow(theta, -(double)i / pairs) : 0;
    return MOE_OK;
}

int family_gemma4_hf(struct moe_config *c, const char *path, const json_t *json,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    bool has_experts = false;
    MOE_TRY(moe_json_get_bool(path, json, "enable_moe_block", false, &has_experts, err));
    gemma4_layers(c, json);
    MOE_TRY(gemma4_sharing(c, path, json, err));
    c->embed_scale = sqrtf((float)c->hidden);
    if (c->global_head_dim == 0)
        c->global_head_dim = 512;
    if (c->global_kv_heads == 0 || !c->global_keys_are_values)
        c->global_kv_heads = c->n_kv_heads;
    MOE_TRY(gemma4_by_layer(c, path, json, err));
    MOE_TRY(gemma4_global_rope(c, path, json, err));
    if (has_experts) {
        moe_config_set_layers(c, MOE_LAYER(moe), 0, c->n_layers, 1);
        c->shared_ff = c->dense_ff;
        c->dense_ff = 0;
        c->own_norms = c->expert_scale = true;
    } else {
        c->n_experts = c->top_k = c->expert_ff = 0;
    }
    return MOE_OK;
}

/* ---- Llama-4: which layers rotate, see a chunk, have experts ---- */

/* "no_rope_layers": 0 for each layer that does not rotate; without it, every n-th does not. */
static int read_still_layers(struct moe_config *c, const char *path, const json_t *json,
                             struct moe_err *err)
{
    const json_t *list = json_object_get(json, "no_rope_layers");
    uint32_t every = 4;
    MOE_TRY(
        moe_json_get_u32(path, json, "no_rope_layer_interval", MOE_MAX_LAYERS, false, &every, err));
    bool listed = json_array_size(list) > 0;
    if (every == 0 || (listed && json_array_size(list) < c->n_layers))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'no_rope_layers' must be a list of %" PRIu32
                        " layers, or 'no_rope_layer_interval' 1 or more",
                        path, c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const json_t *item = json_array_get(list, i);
        if (listed && !(json_is_integer(item) && json_integer_value(item) >= 0 &&
                        json_integer_value(item) <= 1))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: 'no_rope_layers' item %" PRIu32 " is neither 0 nor 1", path, i);
        c->layers[i].windowed = listed ? json_integer_value(item) == 1 : (i + 1) % every != 0;
    }
    return MOE_OK;
}

/* Of SmolLM3, whose layers all see everything: those that rotate have a window as wide as the
 * context. */
int family_smollm3_hf(struct moe_config *c, const char *path, const json_t *json,
                      struct moe_rope_settings *rope, struct moe_err *err)
{
    MOE_TRY(read_still_layers(c, path, json, err));
    c->rope_in_windows = moe_config_count_layers(c, MOE_LAYER(windowed)) < c->n_layers;
    if (c->rope_in_windows)
        c->window = c->context_max;
    else
        moe_config_set_layers(c, MOE_LAYER(windowed), 0, c->n_layers, 0);
    return MOE_OK;
}

/* "layer_types", in newer files: "chunked_attention" for layers that rotate. */
static int check_chunked_layers(const struct moe_config *c, const char *path, const json_t *json,
                                struct moe_err *err)
{
    const json_t *list = json_object_get(json, "layer_types");
    for (uint32_t i = 0; i < c->n_layers && json_is_array(list); i++) {
        const char *type = json_string_value(json_array_get(list, i));
        bool part = c->layers[i].windowed;
        if (!type || strcmp(type, part ? "chunked_attention" : "full_attention") != 0)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: 'layer_types' item %" PRIu32
                            " is '%.60s' where 'no_rope_layers' has a layer that %s, which is not "
                            "implemented",
                            path, i, type ? type : "?", part ? "rotates" : "does not rotate");
    }
    return MOE_OK;
}

/* "attention_chunk_size"; null: rotating layers also see everything. */
static int read_parts(struct moe_config *c, const char *path, const json_t *json,
                      struct moe_err *err)
{
    const json_t *width = json_object_get(json, "attention_chunk_size");
    c->window = width && json_is_null(width) ? c->context_max : 8192;
    MOE_TRY(moe_json_get_u32(path, json, "attention_chunk_size", MOE_MAX_CONTEXT, false, &c->window,
                             err));
    c->window_chunks = moe_config_count_layers(c, MOE_LAYER(windowed)) > 0;
    if (!c->window_chunks) /* no layer rotates: all see everything */
        c->window = 0;
    return MOE_OK;
}

/* "attn_temperature_tuning": a truth value; a number in the first files. */
static int read_query_scale(struct moe_config *c, const char *path, const json_t *json,
                            struct moe_err *err)
{
    const json_t *tuned = json_object_get(json, "attn_temperature_tuning");
    bool on =
        !tuned || json_is_true(tuned) || (json_is_integer(tuned) && json_integer_value(tuned) != 0);
    double scale = 0.1;
    uint32_t step = 8192;
    MOE_TRY(moe_json_get_u32(path, json, "floor_scale", MOE_MAX_CONTEXT, false, &step, err));
    MOE_TRY(moe_json_get_double(path, json, "attn_scale", false, &scale, err));
    if (!on)
        return MOE_OK;
    if (step == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'floor_scale' 0, expected 1 or more", path);
    c->query_step = step;
    c->query_scale = (float)scale;
    return MOE_OK;
}

/* "moe_layers", or every "interleave_moe_layer_step"-th. */
static int read_moe_layers(struct moe_config *c, const char *path, const json_t *json,
                           struct moe_err *err)
{
    const json_t *list = json_object_get(json, "moe_layers");
    uint32_t step = 1;
    MOE_TRY(moe_json_get_u32(path, json, "interleave_moe_layer_step", MOE_MAX_LAYERS, false, &step,
                             err));
    if (step == 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'interleave_moe_layer_step' 0, expected 1 or more", path);
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].moe = !json_is_array(list) && (i + 1) % step == 0;
    return family_read_layers(c, MOE_LAYER(moe), 1, path, list, "moe_layers", err);
}

int family_llama4_hf(struct moe_config *c, const char *path, const json_t *json,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    bool norm = true;
    c->shared_ff = c->expert_ff;
    MOE_TRY(moe_json_get_bool(path, json, "use_qk_norm", false, &norm, err));
    c->qk_norm = norm ? MOE_QK_NORM_BARE : MOE_QK_NORM_NONE;
    MOE_TRY(read_still_layers(c, path, json, err));
    MOE_TRY(check_chunked_layers(c, path, json, err));
    MOE_TRY(read_parts(c, path, json, err));
    MOE_TRY(read_query_scale(c, path, json, err));
    return read_moe_layers(c, path, json, err);
}

/* ---- Switch Transformers: two stacks ---- */

/* A number that may be null; *found: it is there. */
static int read_number(const char *path, const json_t *json, const char *key, uint32_t max,
                       uint32_t *out, bool *found, struct moe_err *err)
{
    const json_t *value = json_object_get(json, key);
    *found = value && !json_is_null(value);
    return *found ? moe_json_get_u32(path, json, key, max, false, out, err) : MOE_OK;
}

/* Sets which layers of a stack have experts: layer 1 and every `step`-th after it; all, if the step
 * is 1. Published files have the step and the number of such layers, from which
 * SwitchTransformersConfig derives the step; the step counts. */
static int read_stack(struct moe_config *c, const char *path, const json_t *json,
                      const char *step_key, const char *count_key, uint32_t first, uint32_t n,
                      struct moe_err *err)
{
    uint32_t step = 0, count = 3;
    bool found;
    MOE_TRY(read_number(path, json, step_key, MOE_MAX_LAYERS, &step, &found, err));
    if (!found) {
        MOE_TRY(read_number(path, json, count_key, MOE_MAX_LAYERS, &count, &found, err));
        step = count > 0 ? n / count : n;
    }
    for (uint32_t i = 0; i < n; i++)
        c->layers[first + i].moe = step > 0 && (step == 1 || i % step == 1);
    return MOE_OK;
}

/* Sets the number of layers, whose first n_encoder are the encoder's. */
static int set_stacks(struct moe_config *c, uint32_t n_decoder, const char *path,
                      struct moe_err *err)
{
    if (c->n_encoder == 0 || n_decoder == 0 || c->n_encoder + n_decoder > MOE_MAX_LAYERS)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: an encoder of %" PRIu32 " and a decoder of %" PRIu32
                        " layers: each has at least 1, both together at most %d",
                        path, c->n_encoder, n_decoder, MOE_MAX_LAYERS);
    c->n_layers = c->n_encoder + n_decoder;
    return MOE_OK;
}

/* The decoder has as many layers as the encoder unless the file says otherwise. */
static int read_switch_layers(struct moe_config *c, const char *path, const json_t *json,
                              struct moe_err *err)
{
    uint32_t n_decoder = c->n_encoder;
    bool found;
    MOE_TRY(read_number(path, json, "num_decoder_layers", MOE_MAX_LAYERS, &n_decoder, &found, err));
    MOE_TRY(set_stacks(c, n_decoder, path, err));
    MOE_TRY(read_stack(c, path, json, "encoder_sparse_step", "num_sparse_encoder_layers", 0,
                       c->n_encoder, err));
    return read_stack(c, path, json, "decoder_sparse_step", "num_sparse_decoder_layers",
                      c->n_encoder, n_decoder, err);
}

int family_switch_hf(struct moe_config *c, const char *path, const json_t *json,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    bool found;
    MOE_TRY(read_switch_layers(c, path, json, err));
    MOE_TRY(read_number(path, json, "decoder_start_token_id", MOE_MAX_DIM, &c->decoder_start,
                        &found, err));
    if (!found) /* T5's decoders begin with padding */
        MOE_TRY(
            read_number(path, json, "pad_token_id", MOE_MAX_DIM, &c->decoder_start, &found, err));
    if (c->tied_head && c->hidden > 0)
        c->logit_scale = 1 / sqrtf((float)c->hidden);
    return MOE_OK;
}

/* ---- NLLB-MoE ---- */

/* Heads and feed-forwards of both stacks are alike. With room in an expert for as many rows as
 * there are ("moe_eval_capacity_token_fraction" 1), nothing is left out, in whatever order. */
int family_nllb_hf(struct moe_config *c, const char *path, const json_t *json,
                   struct moe_rope_settings *rope, struct moe_err *err)
{
    uint32_t n_decoder = 12, heads = 16, ff = 4096, padding = 1, steps[2] = {4, 4};
    double left_out = 0.2;
    bool scaled = true;
    c->decoder_start = 2;
    const struct family_number numbers[] = {
        {"decoder_layers", &n_decoder, MOE_MAX_LAYERS},
        {"decoder_attention_heads", &heads, MOE_MAX_HEADS},
        {"decoder_ffn_dim", &ff, MOE_MAX_DIM},
        {"encoder_sparse_step", &steps[0], MOE_MAX_LAYERS},
        {"decoder_sparse_step", &steps[1], MOE_MAX_LAYERS},
        {"pad_token_id", &padding, MOE_MAX_CONTEXT - 1},
        {"decoder_start_token_id", &c->decoder_start, MOE_MAX_DIM},
    };
    MOE_TRY(family_read_numbers(path, json, numbers, sizeof numbers / sizeof numbers[0], err));
    MOE_TRY(moe_json_get_bool(path, json, "scale_embedding", false, &scaled, err));
    MOE_TRY(moe_json_get_double(path, json, "moe_token_dropout", false, &left_out, err));
    if (heads != c->n_heads || ff != c->dense_ff)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: encoder and decoder with other numbers of heads or other widths of "
                        "feed-forwards are not implemented",
                        path);
    if (!(left_out >= 0 && left_out < 1))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'moe_token_dropout' is %g, expected 0 or more and below 1", path,
                        left_out);
    MOE_TRY(set_stacks(c, n_decoder, path, err));
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const bool decoder = i >= c->n_encoder;
        const uint32_t step = steps[decoder], at = i - (decoder ? c->n_encoder : 0);
        c->layers[i].moe = step > 0 && (at + 1) % step == 0;
    }
    c->first_position = padding + 1;
    c->routed_scale = (float)(1 - left_out);
    if (scaled)
        c->embed_scale = sqrtf((float)c->hidden);
    return MOE_OK;
}

/* ---- ZAYA ---- */

/* All layers have convolutions of heads. */
int family_zaya_hf(struct moe_config *c, const char *path, const json_t *json,
                   struct moe_rope_settings *rope, struct moe_err *err)
{
    static const struct family_word kinds[] = {{"hybrid", 1}, {NULL}};
    const json_t *types = family_given(json, "layer_types");
    if (types)
        MOE_TRY(family_read_words(c, MOE_LAYER(recurrent), path, types, "layer_types", kinds, false,
                                  err));
    moe_config_set_layers(c, MOE_LAYER(recurrent), 0, c->n_layers, 1);
    c->state_heads = 1;
    c->state_value_dim =
        (c->n_heads + c->n_kv_heads) * c->head_dim + c->n_kv_heads * c->head_dim / 2;
    return MOE_OK;
}

/* ---- JetMoE ---- */

/* As many heads as the experts of attention that a token has; head_dim is "kv_channels". */
int family_jetmoe_hf(struct moe_config *c, const char *path, const json_t *json,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    if (c->n_kv_heads > MOE_MAX_HEADS || c->top_k > MOE_MAX_TOP_K)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: %u experts of %u heads for a token are too many",
                        path, c->top_k, c->n_kv_heads);
    c->n_heads = c->n_kv_heads * c->top_k;
    return MOE_OK;
}

/* ---- Muse Spark ---- */

/* Which layers have experts, which see a window, and which rotate: those that see one. The scale of
 * queries becomes the scores'. */
int family_muse_spark_hf(struct moe_config *c, const char *path, const json_t *json,
                         struct moe_rope_settings *rope, struct moe_err *err)
{
    static const struct family_word mlps[] = {{"sparse", 1}, {"dense", 0}, {NULL}};
    const json_t *types = family_given(json, "mlp_layer_types");
    const json_t *bases = family_given(json, "layer_rope_theta");
    moe_config_set_layers(c, MOE_LAYER(moe), 0, c->n_layers, 1);
    if (types)
        MOE_TRY(
            family_read_words(c, MOE_LAYER(moe), path, types, "mlp_layer_types", mlps, false, err));
    if (!family_given(json, "layer_types"))
        for (uint32_t i = 0; i < c->n_layers; i++)
            c->layers[i].windowed = (c->n_layers - 1 - i) % 4 != 0;
    for (uint32_t i = 0; bases && i < c->n_layers; i++) {
        const json_t *base = json_array_get(bases, i);
        if (!json_is_number(base) || (json_number_value(base) != 0) != c->layers[i].windowed)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: 'layer_rope_theta' of layer %u: rotation is implemented for "
                            "layers with a window and no others",
                            path, i);
    }
    if (c->attn_scale > 0 && c->head_dim > 0)
        c->attn_scale /= sqrtf((float)c->head_dim);
    return MOE_OK;
}

/* ---- Inkling ---- */

/* Heads of global layers are those of Llama's keys, of local ones "swa_*". */
static int read_inkling_heads(struct moe_config *c, uint32_t n_heads, uint32_t n_kv_heads,
                              uint32_t window, const char *path, const json_t *json,
                              struct moe_err *err)
{
    static const struct family_word kinds[] = {{"hybrid_sliding", 1}, {"hybrid", 0}, {NULL}};
    const json_t *types = family_given(json, "layer_types");
    if (c->n_heads == 0 || c->n_kv_heads == 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'num_attention_heads' and 'num_key_value_heads' must not be 0", path);
    c->global_heads = c->n_heads;
    c->global_kv_heads = c->n_kv_heads;
    c->global_head_dim = c->head_dim;
    c->n_heads = n_heads;
    c->n_kv_heads = n_kv_heads;
    c->head_dim = 128;
    c->window = window;
    const struct family_number numbers[] = {
        {"sliding_window_size", &c->window, MOE_MAX_CONTEXT},
        {"sliding_window", &c->window, MOE_MAX_CONTEXT},
        {"swa_num_attention_heads", &c->n_heads, MOE_MAX_HEADS},
        {"swa_num_key_value_heads", &c->n_kv_heads, MOE_MAX_HEADS},
        {"swa_head_dim", &c->head_dim, MOE_MAX_HEAD_DIM},
    };
    MOE_TRY(family_read_numbers(path, json, numbers, sizeof numbers / sizeof numbers[0], err));
    if (c->n_heads == 0 || c->n_kv_heads == 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'swa_num_attention_heads' and 'swa_num_key_value_heads' must not be 0",
                        path);
    moe_config_set_layers(c, MOE_LAYER(recurrent), 0, c->n_layers, 1);
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].windowed = (i + 1) % 6 != 0;
    return types ? family_read_words(c, MOE_LAYER(windowed), path, types, "layer_types", kinds,
                                     false, err)
                 : MOE_OK;
}

/* Where a file has a width of dense layers, "intermediate_size" is the experts'. */
int family_inkling_hf(struct moe_config *c, const char *path, const json_t *json,
                      struct moe_rope_settings *rope, struct moe_err *err)
{
    const json_t *local = family_given(json, "local_layer_ids");
    uint32_t n_shared = 2, n_dense = 0;
    const struct family_number numbers[] = {
        {"n_shared_experts", &n_shared, MOE_MAX_TOP_K},
        {"dense_mlp_idx", &n_dense, MOE_MAX_LAYERS},
    };
    MOE_TRY(read_inkling_heads(c, 64, 16, 512, path, json, err));
    MOE_TRY(family_read_numbers(path, json, numbers, sizeof numbers / sizeof numbers[0], err));
    if (family_given(json, "dense_intermediate_size"))
        MOE_TRY(moe_json_get_u32(path, json, "intermediate_size", MOE_MAX_DIM, true, &c->expert_ff,
                                 err));
    MOE_TRY(family_set_shared(c, n_shared, path, err));
    c->shared_sinks = n_shared;
    c->attn_scale = c->head_dim ? 1 / (float)c->head_dim : 0;
    c->global_attn_scale = c->global_head_dim ? 1 / (float)c->global_head_dim : 0;
    if (!family_given(json, "mlp_layer_types"))
        moe_config_set_layers(c, MOE_LAYER(moe), 0, n_dense < c->n_layers ? n_dense : c->n_layers,
                              0);
    if (local && !json_is_array(local))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'local_layer_ids' is not a list", path);
    if (!local || family_given(json, "layer_types"))
        return MOE_OK;
    moe_config_set_layers(c, MOE_LAYER(windowed), 0, c->n_layers, 0);
    return family_read_layers(c, MOE_LAYER(windowed), 1, path, local, "local_layer_ids", err);
}

int family_inkling2_hf(struct moe_config *c, const char *path, const json_t *json,
                       struct moe_rope_settings *rope, struct moe_err *err)
{
    family_keep_streams(c);
    MOE_TRY(read_inkling_heads(c, 48, 8, 1024, path, json, err));
    c->attn_scale = c->head_dim ? 1 / sqrtf((float)c->head_dim) : 0;
    c->global_attn_scale = c->global_head_dim ? 1 / sqrtf((float)c->global_head_dim) : 0;
    return MOE_OK;
}

/* Layers [begin, end) are visited `passes` times. */
static int loop_layers(struct moe_config *c, uint32_t begin, uint32_t end, uint32_t passes,
                       const char *path, struct moe_err *err)
{
    const uint32_t n = end > begin ? end - begin : 0, again = passes > 0 ? (passes - 1) * n : 0;
    const uint32_t every = c->stream_layers ? c->stream_layers : 1;
    if (passes == 0 || begin == 0 || begin > end || end > c->n_layers || begin % every != 0 ||
        end % every != 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: layers %" PRIu32 " to %" PRIu32 " are passed through %" PRIu32
                        " times, expected layers behind the first one of %" PRIu32
                        ", whole blocks of %" PRIu32 ", at least once",
                        path, begin, end, passes, c->n_layers, every);
    if (again == 0)
        return MOE_OK;
    if (passes > MOE_MAX_LAYERS || c->n_layers + (uint64_t)again > MOE_MAX_LAYERS)
        return moe_fail(err, MOE_ERR_LIMIT,
                        "%s: layers %" PRIu32 " to %" PRIu32 " are passed through %" PRIu32
                        " times: more than %d layers are not implemented",
                        path, begin, end, passes, MOE_MAX_LAYERS);
    memmove(c->layers + end + again, c->layers + end, (c->n_layers - end) * sizeof *c->layers);
    for (uint32_t i = end; i < end + again; i++)
        c->layers[i] = c->layers[i - n];
    c->n_layers += again;
    c->loop = (struct moe_loop){begin, n, passes};
    return MOE_OK;
}

int family_inkling2_loop_hf(struct moe_config *c, const char *path, const json_t *json,
                            struct moe_rope_settings *rope, struct moe_err *err)
{
    const json_t *loop = family_given(json, "loop_config");
    uint32_t begin = 6, end = 18, passes = 3, rank = 64;
    const struct family_number numbers[] = {
        {"loop_layer_index_start", &begin, MOE_MAX_LAYERS},
        {"loop_layer_index_end", &end, MOE_MAX_LAYERS},
        {"loop_num_passes", &passes, MOE_MAX_LAYERS},
        {"loop_gate_rank", &rank, MOE_MAX_DIM},
    };
    const struct family_number published[] = {
        {"core_start", &begin, MOE_MAX_LAYERS},
        {"core_end", &end, MOE_MAX_LAYERS},
        {"num_passes", &passes, MOE_MAX_LAYERS},
        {"gate_rank", &rank, MOE_MAX_DIM},
    };
    family_keep_streams(c);
    MOE_TRY(read_inkling_heads(c, 24, 8, 1024, path, json, err));
    MOE_TRY(family_read_numbers(path, json, numbers, sizeof numbers / sizeof numbers[0], err));
    if (loop)
        MOE_TRY(family_read_numbers(path, loop, published, sizeof published / sizeof published[0],
                                    err));
    c->attn_scale = c->head_dim ? 1 / sqrtf((float)c->head_dim) : 0;
    c->global_attn_scale = c->global_head_dim ? 1 / sqrtf((float)c->global_head_dim) : 0;
    MOE_TRY(loop_layers(c, begin, end, passes, path, err));
    c->loop_rank = c->loop.n ? rank : 0;
    return MOE_OK;
}

/* ---- Heads that draft ---- */

/* Reads which of its model's streams a head reads, by the layers that they come into, or with
 * `behind` 1 come out of. */
static int read_streams(struct moe_config *c, const char *path, const json_t *list, const char *key,
                        uint32_t behind, struct moe_err *err)
{
    if (list && (!json_is_array(list) || json_array_size(list) > MOE_MAX_READS))
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: '%s' is no list of up to %d layers", path,
                        key, MOE_MAX_READS);
    c->n_reads = (uint32_t)json_array_size(list);
    for (uint32_t i = 0; i < c->n_reads; i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_integer(item) || json_integer_value(item) < 0 ||
            json_integer_value(item) >= MOE_MAX_LAYERS)
            return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' item %" PRIu32 " is not a layer", path,
                            key, i);
        c->reads[i] = (uint32_t)json_integer_value(item) + behind;
    }
    return MOE_OK;
}

/* vLLM's speculators number the streams by the layer that they come into; SpecForge, whose list is
 * in "eagle_config", by the layer that they come out of (SGLang's set_eagle3_layers_to_capture). */
int family_eagle3_hf(struct moe_config *c, const char *path, const json_t *json,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    static const char key[] = "eagle_aux_hidden_state_layer_ids";
    const json_t *specforge = family_given(json, "eagle_config");
    const json_t *list = family_given(json, key), *within = family_given(specforge, key);
    uint32_t behind = !json_array_size(list) && json_array_size(within), width = c->hidden;
    list = behind ? within : list;
    (void)rope;
    c->tied_head = false;
    MOE_TRY(moe_json_get_u32(path, json, "target_hidden_size", MOE_MAX_DIM, false, &width, err));
    MOE_TRY(read_streams(c, path, list, key, behind, err));
    if (c->n_reads != 0 && c->n_reads != 3)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: '%s' lists %" PRIu32 " layers, expected 3",
                        path, key, c->n_reads);
    const bool listed = c->n_reads != 0;
    c->n_reads = 3;
    return family_check_drafter(c, width, listed, path, err);
}

int family_eagle3_deepseek_hf(struct moe_config *c, const char *path, const json_t *json,
                              struct moe_rope_settings *rope, struct moe_err *err)
{
    MOE_TRY(family_deepseek_v3_hf(c, path, json, rope, err));
    return family_eagle3_hf(c, path, json, rope, err);
}

/* Members are in "dflash_config" or on top, where vLLM's speculators number the streams by the
 * layer that they come into. What only scales logits leaves the likeliest token what it is, and is
 * not read. Layers with a window are causal unless a file says otherwise (z-lab's dflash/model.py).
 */
int family_dflash_hf(struct moe_config *c, const char *path, const json_t *json,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    const json_t *given = family_given(json, "dflash_config"), *within = given ? given : json;
    const json_t *const places[] = {json, within};
    const json_t *behind = NULL, *into = family_given(json, "aux_hidden_state_layer_ids");
    double value_scale = c->value_scale, embed_scale = c->embed_scale;
    uint32_t mask = UINT32_MAX;
    bool windows = false;
    (void)rope;
    c->tied_head = false;
    c->draft_block = 16;
    for (int i = 0; i < 2; i++) {
        const json_t *list = family_given(places[i], "target_layer_ids");
        const struct family_number numbers[] = {{"block_size", &c->draft_block, MOE_MAX_BLOCK},
                                                {"mask_token_id", &mask, MOE_MAX_DIM}};
        MOE_TRY(family_read_numbers(path, places[i], numbers, 2, err));
        MOE_TRY(moe_json_get_double(path, places[i], "input_embedding_scale", false, &embed_scale,
                                    err));
        MOE_TRY(moe_json_get_double(path, places[i], "attention_value_scale", false, &value_scale,
                                    err));
        behind = list ? list : behind;
    }
    MOE_TRY(behind ? read_streams(c, path, behind, "target_layer_ids", 1, err)
                   : read_streams(c, path, into, "aux_hidden_state_layer_ids", 0, err));
    if (c->n_reads == 0 || mask == UINT32_MAX)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: does not say %s", path,
                        c->n_reads ? "which token is a mask ('mask_token_id')"
                                   : "which layers of its model it reads ('target_layer_ids')");
    c->mask_token = mask;
    c->embed_scale = (float)embed_scale;
    c->value_scale = (float)value_scale;
    MOE_TRY(moe_json_get_bool(path, within, "use_swa", false, &windows, err));
    if (windows) {
        const struct family_number numbers[] = {{"sliding_window", &c->window, MOE_MAX_CONTEXT},
                                                {"swa_window_size", &c->window, MOE_MAX_CONTEXT}};
        MOE_TRY(family_read_numbers(path, json, numbers, 1, err));
        MOE_TRY(family_read_numbers(path, within, numbers + 1, 1, err));
        moe_config_set_layers(c, MOE_LAYER(windowed), 0, c->n_layers, 1);
    }
    c->from_anchor =
        !family_given(json, "transformer_layer_config") && into == NULL; /* unless it says so */
    MOE_TRY(moe_json_get_bool(path, json, "sample_from_anchor", false, &c->from_anchor, err));
    c->causal_windows = !family_given(json, "is_causal") && !family_given(within, "causal");
    MOE_TRY(moe_json_get_bool(path, within, "causal", false, &c->causal_block, err));
    return moe_json_get_bool(path, json, "is_causal", false, &c->causal_block, err);
}
