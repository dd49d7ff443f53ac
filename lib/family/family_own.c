#include "family/family_own.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "family/family_settings.h"
#include "fmt/checkpoint.h"
#include "fmt/json.h"
#include "model/rope.h"
#include "quant/layout.h"

/* ---- DeepSeek-V2: latent attention, groups of experts ---- */

/* head_dim is still that of the part which is not rotated. */
static int latent_attention_of_hf(struct moe_config *c, const char *path, struct moe_err *err)
{
    if (c->kv_rank == 0 || c->head_dim == 0 || c->rope_dim == 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: latent attention with %" PRIu32 " shared, %" PRIu32
                        " plain and %" PRIu32 " rotated values makes no sense",
                        path, c->kv_rank, c->head_dim, c->rope_dim);
    if (c->n_kv_heads != 0 && c->n_kv_heads != c->n_heads)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: latent attention with 'num_key_value_heads' %" PRIu32 " for %" PRIu32
                        " heads is not implemented",
                        path, c->n_kv_heads, c->n_heads);
    c->head_dim += c->rope_dim;
    return MOE_OK;
}

int family_deepseek_v2_hf(struct moe_config *c, const char *path, const json_t *json,
                          struct moe_rope_settings *rope, struct moe_err *err)
{
    const char *method = "greedy";
    int status = latent_attention_of_hf(c, path, err);
    if (status == MOE_OK)
        status = moe_json_get_text(path, json, "topk_method", false, &method, err);
    if (status != MOE_OK)
        return status;
    double mscale = moe_rope_mscale(c, rope);
    c->attn_scale = (float)(mscale * mscale / sqrt(c->head_dim));
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

/* One group of all is none. */
static void drop_single_group(struct moe_config *c)
{
    if (c->n_groups <= 1)
        c->n_groups = c->top_groups = 0;
}

static int latent_attention_of_gguf(struct moe_config *c, const struct moe_gguf *gguf,
                                    struct moe_err *err)
{
    c->n_kv_heads = 0; /* 1 where the file counts what is cached */
    drop_single_group(c);
    if (c->kv_rank == 0 || c->rope_dim == 0 || c->head_dim <= c->rope_dim)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: latent attention with %" PRIu32 " shared, %" PRIu32
                        " rotated of %" PRIu32 " values makes no sense",
                        moe_gguf_path(gguf), c->kv_rank, c->rope_dim, c->head_dim);
    return MOE_OK;
}

int family_deepseek_v2_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                            struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    int status = latent_attention_of_gguf(c, gguf, err);
    if (status == MOE_OK && fabsf(c->norm_eps - 1e-6f) > 1e-9f) /* as of the norms in attention */
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: a norm epsilon of %g, only 1e-06 is implemented for this family",
                        moe_gguf_path(gguf), (double)c->norm_eps);
    return status;
}

/* ---- DeepSeek-V3 and others with its router ---- */

int family_deepseek_v3_hf(struct moe_config *c, const char *path, const json_t *json,
                          struct moe_rope_settings *rope, struct moe_err *err)
{
    drop_single_group(c);
    int status = latent_attention_of_hf(c, path, err);
    double mscale = moe_rope_mscale(c, rope);
    if (status == MOE_OK)
        c->attn_scale = (float)(mscale * mscale / sqrt(c->head_dim));
    return status;
}

int family_deepseek_v3_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                            struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    int status = latent_attention_of_gguf(c, gguf, err);
    /* Files older than the keys of groups are of models with these: V3, R1. */
    if (!moe_gguf_has(gguf, moe_gguf_arch_key(gguf, "expert_group_count").text) &&
        c->n_experts == 256 && c->n_layers == 61) {
        c->n_groups = 8;
        c->top_groups = 4;
    }
    return status;
}

/* "use_qk_norm" is GLM's. */
int family_sigmoid_hf(struct moe_config *c, const char *path, const json_t *json,
                      struct moe_rope_settings *rope, struct moe_err *err)
{
    bool norm = c->qk_norm != MOE_QK_NORM_NONE;
    drop_single_group(c);
    int status = moe_json_get_bool(path, json, "use_qk_norm", false, &norm, err);
    if (c->qk_norm == MOE_QK_NORM_NONE || !norm)
        c->qk_norm = norm ? MOE_QK_NORM_HEAD : MOE_QK_NORM_NONE;
    return status;
}

int family_sigmoid_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                        struct moe_rope_settings *rope, struct moe_err *err)
{
    drop_single_group(c);
    return MOE_OK;
}

int family_shared_experts(struct moe_config *c, uint32_t n, const char *path, const json_t *json,
                          struct moe_err *err)
{
    int status =
        moe_json_get_u32(path, json, "num_shared_experts", MOE_MAX_EXPERTS, false, &n, err);
    if (status == MOE_OK && (uint64_t)n * c->expert_ff > MOE_MAX_DIM)
        status = moe_fail(err, MOE_ERR_FORMAT,
                          "%s: %" PRIu32 " shared experts of width %" PRIu32 " make no sense", path,
                          n, c->expert_ff);
    if (status == MOE_OK)
        c->shared_ff = n * c->expert_ff;
    return status;
}

int family_bailing_moe_hf(struct moe_config *c, const char *path, const json_t *json,
                          struct moe_rope_settings *rope, struct moe_err *err)
{
    const json_t *list = json_object_get(json, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    (void)rope;
    if (!name || strcmp(name, "BailingMoeV2ForCausalLM") != 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: 'architectures' is %.60s: of this model type only "
                        "BailingMoeV2ForCausalLM (Ling and Ring 2.0) is implemented",
                        path, name ? name : "absent");
    drop_single_group(c);
    return family_shared_experts(c, 1, path, json, err);
}

int family_hy_v3_hf(struct moe_config *c, const char *path, const json_t *json,
                    struct moe_rope_settings *rope, struct moe_err *err)
{
    (void)rope;
    return family_shared_experts(c, 1, path, json, err);
}

/* "attn_type_list": 1 where a layer attends as usual. */
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
    uint32_t first = 1, last = MOE_MAX_LAYERS, step = 1, n_shared = 2;
    bool to_end = json_is_integer(end) && json_integer_value(end) == -1;
    const struct {
        const char *key;
        uint32_t *out, max;
    } numbers[] = {
        {"moe_layer_start_index", &first, MOE_MAX_LAYERS},
        {"moe_layer_interval", &step, MOE_MAX_LAYERS},
        {"moe_num_shared_experts", &n_shared, MOE_MAX_EXPERTS},
        {to_end ? "" : "moe_layer_end_index", &last, MOE_MAX_LAYERS},
    };
    int status = MOE_OK;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && status == MOE_OK; i++)
        status = moe_json_get_u32(path, json, numbers[i].key, numbers[i].max, false, numbers[i].out,
                                  err);
    uint64_t shared_ff = (uint64_t)n_shared * c->expert_ff;
    if (status == MOE_OK && (step == 0 || shared_ff > MOE_MAX_DIM))
        status = moe_fail(err, MOE_ERR_FORMAT,
                          "%s: %" PRIu32 " shared experts of width %" PRIu32
                          ", experts in every %" PRIu32 "th layer make no sense",
                          path, n_shared, c->expert_ff, step);
    if (status != MOE_OK)
        return status;
    c->shared_ff = (uint32_t)shared_ff;
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layer_is_moe[i] = i >= first && i <= last && (i + 1) % step == 0;
    return MOE_OK;
}

/* ---- Hunyuan: numbers, or lists of one for each layer ---- */

/* A number up to `most`, or a list of that number for each layer; absent or null: as it was. */
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
    const struct {
        const char *key;
        uint32_t *out, most;
    } numbers[] = {
        {"moe_topk", &c->top_k, MOE_MAX_EXPERTS},
        {"num_experts", &c->n_experts, MOE_MAX_EXPERTS},
        {"num_shared_expert", &n_shared, MOE_MAX_EXPERTS},
        {"moe_intermediate_size", &width, MOE_MAX_DIM},
    };
    int status = MOE_OK;
    (void)rope;
    if (name && strcmp(name, "HunYuanMoEV1ForCausalLM") != 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: 'architectures' is %.60s: of this model type only "
                        "HunYuanMoEV1ForCausalLM (Hunyuan-A13B) is implemented",
                        path, name);
    c->n_experts = c->top_k = 1;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && status == MOE_OK; i++)
        status = read_same_everywhere(c, path, json, numbers[i].key, numbers[i].most,
                                      numbers[i].out, err);
    if (status == MOE_OK && (n_shared != 1 || width != c->expert_ff))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: %" PRIu32 " shared experts beside others of width %" PRIu32
                        ", only one, of the width of all ('intermediate_size'), is implemented",
                        path, n_shared, width);
    c->shared_ff = c->expert_ff;
    return status;
}

/* ---- MiniCPM: scales by depth and width ---- */

int family_minicpm_hf(struct moe_config *c, const char *path, const json_t *json,
                      struct moe_rope_settings *rope, struct moe_err *err)
{
    c->residual_scale /= sqrtf((float)c->n_layers); /* "scale_depth" so far */
    c->logit_scale /= (float)c->hidden;             /* "dim_model_base" so far */
    if (c->n_experts) {                             /* the dense models have the same type */
        c->expert_ff = c->dense_ff;
        c->dense_ff = 0;
        memset(c->layer_is_moe, 1, c->n_layers);
    }
    return MOE_OK;
}

/* Files older than the keys of the three scales are of models with these. */
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

/* Without settings the rope is that of the published models. */
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

/* ---- GPTSAN: dense layers behind those with experts ---- */

int family_gptsan_hf(struct moe_config *c, const char *path, const json_t *json,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    uint32_t n_moe = c->n_layers, n_dense = 0;
    int status =
        moe_json_get_u32(path, json, "num_ext_layers", MOE_MAX_LAYERS, false, &n_dense, err);
    if (status != MOE_OK)
        return status;
    if (n_moe == 0 || n_moe + n_dense > MOE_MAX_LAYERS)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " layers with experts and %" PRIu32
                        " without: of the former there is at least 1, of both at most %d",
                        path, n_moe, n_dense, MOE_MAX_LAYERS);
    c->n_layers += n_dense;
    memset(c->layer_is_moe, 1, n_moe);
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
