/*
 * DeepSeek-V2 and V2-Lite: latent attention with YaRN, experts as in DeepSeekMoE, chosen within the
 * best groups of them. Keys and defaults are those of the public DeepseekV2Config.
 */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "fmt/json.h"
#include "model/family_common.h"
#include "model/family_gguf.h"

/* Where the code published with the model and the public class compute different things, or one of
 * them has a switch alone, the value that both compute is the only one. The norms inside attention
 * have an epsilon of 1e-6 whatever the key says. */
static const struct family_only only[] = {
    {"attention_bias", "false"}, {"mlp_bias", "false"},   {"scoring_func", "softmax"},
    {"norm_topk_prob", "false"}, {"moe_layer_freq", "1"}, {"rms_norm_eps", "1e-06"},
};

static int read_attention(struct moe_config *c, const char *path, const json_t *json,
                          struct moe_err *err)
{
    uint32_t nope = 128;
    c->q_rank = 1536;
    c->kv_rank = 512;
    c->rope_dim = 64;
    c->value_dim = 128;
    const struct family_key keys[] = {
        {"q_lora_rank", FAMILY_U32, false, MOE_MAX_DIM, &c->q_rank},
        {"kv_lora_rank", FAMILY_U32, false, MOE_MAX_DIM, &c->kv_rank},
        {"qk_nope_head_dim", FAMILY_U32, false, MOE_MAX_DIM, &nope},
        {"qk_rope_head_dim", FAMILY_U32, false, MOE_MAX_DIM, &c->rope_dim},
        {"v_head_dim", FAMILY_U32, false, MOE_MAX_DIM, &c->value_dim},
    };
    int status = FAMILY_READ(path, json, keys, err);
    c->head_dim = nope + c->rope_dim;
    if (status == MOE_OK && (c->kv_rank == 0 || nope == 0 || c->rope_dim == 0))
        status = moe_fail(err, MOE_ERR_FORMAT,
                          "%s: latent attention with %" PRIu32 " shared, %" PRIu32
                          " plain and %" PRIu32 " rotated values makes no sense",
                          path, c->kv_rank, nope, c->rope_dim);
    if (status == MOE_OK && c->n_kv_heads != 0 && c->n_kv_heads != c->n_heads)
        status = moe_fail(err, MOE_ERR_UNSUPPORTED,
                          "%s: latent attention with 'num_key_value_heads' %" PRIu32 " for %" PRIu32
                          " heads is not implemented",
                          path, c->n_kv_heads, c->n_heads);
    return status;
}

static int read_rope(struct moe_config *c, const char *path, const json_t *json,
                     struct moe_err *err)
{
    struct moe_rope_settings settings;
    moe_rope_settings_init(&settings);
    int status = moe_rope_read_hf(&settings, path, json, err);
    if (status == MOE_OK)
        status = moe_rope_apply(c, &settings, path, err);
    double mscale = moe_rope_mscale(c, &settings);
    c->attn_scale = (float)(mscale * mscale / sqrt(c->head_dim));
    return status;
}

static int read_groups(struct moe_config *c, const char *path, const json_t *json,
                       struct moe_err *err)
{
    const char *method = "greedy";
    const struct family_key keys[] = {
        {"n_group", FAMILY_U32, false, MOE_MAX_EXPERTS, &c->n_groups},
        {"topk_group", FAMILY_U32, false, MOE_MAX_EXPERTS, &c->top_groups},
        {"routed_scaling_factor", FAMILY_FLOAT, false, 0, &c->routed_scale},
    };
    int status = moe_json_get_text(path, json, "topk_method", false, &method, err);
    if (status == MOE_OK)
        status = FAMILY_READ(path, json, keys, err);
    if (status != MOE_OK)
        return status;
    if (strcmp(method, "greedy") == 0) {
        c->n_groups = c->top_groups = 0;
        return MOE_OK;
    }
    if (strcmp(method, "group_limited_greedy") != 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: 'topk_method' %.60s is not implemented",
                        path, method);
    return c->n_groups
               ? MOE_OK
               : moe_fail(err, MOE_ERR_FORMAT,
                          "%s: 'topk_method' %s needs 'n_group' and 'topk_group'", path, method);
}

static int read_hf(struct moe_config *c, const char *path, const json_t *json, struct moe_err *err)
{
    c->n_experts = 64;
    c->expert_ff = 1407;
    int status = FAMILY_CHECK(path, json, only, err);
    if (status == MOE_OK)
        status = family_read_llama(c, path, json, &c->dense_ff, err);
    if (status == MOE_OK)
        status = read_attention(c, path, json, err);
    if (status == MOE_OK)
        status = family_read_deepseek_experts(c, path, json, 2, err);
    if (status == MOE_OK)
        status = read_groups(c, path, json, err);
    if (status == MOE_OK)
        status = read_rope(c, path, json, err);
    return status;
}

static int read_gguf(struct moe_config *c, const struct moe_gguf *gguf,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    (void)rope;
    uint32_t head = c->head_dim, value = c->value_dim;
    const struct {
        const char *name;
        uint32_t *out, max;
    } numbers[] = {
        {"attention.q_lora_rank", &c->q_rank, MOE_MAX_DIM},
        {"attention.kv_lora_rank", &c->kv_rank, MOE_MAX_DIM},
        {"attention.key_length_mla", &head, MOE_MAX_DIM},
        {"attention.value_length_mla", &value, MOE_MAX_DIM},
        {"expert_group_count", &c->n_groups, MOE_MAX_EXPERTS},
        {"expert_group_used_count", &c->top_groups, MOE_MAX_EXPERTS},
    };
    int status = moe_gguf_read_norm_topk(c, gguf, false, err);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && status == MOE_OK; i++)
        status =
            moe_gguf_arch_u32(gguf, numbers[i].name, numbers[i].max, false, numbers[i].out, err);
    if (status != MOE_OK)
        return status;
    c->head_dim = head;
    c->value_dim = value;
    c->n_kv_heads = 0; /* 1 where the file counts what is cached */
    if (c->n_groups <= 1)
        c->n_groups = c->top_groups = 0;
    if (c->kv_rank == 0 || c->rope_dim == 0 || head <= c->rope_dim)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: latent attention with %" PRIu32 " shared, %" PRIu32
                        " rotated of %" PRIu32 " values makes no sense",
                        moe_gguf_path(gguf), c->kv_rank, c->rope_dim, head);
    if (fabsf(c->norm_eps - 1e-6f) > 1e-9f) /* the norms inside attention have that one */
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: a norm epsilon of %g, only 1e-06 is "
                        "implemented for this family",
                        moe_gguf_path(gguf), (double)c->norm_eps);
    return MOE_OK;
}

#define ATTN "model.layers.%u.self_attn."

static const struct moe_source_names names = {
    .dense =
        {
            [MOE_T_Q_DOWN] = {.name = ATTN "q_a_proj.weight"},
            [MOE_T_Q_DOWN_NORM] = {.name = ATTN "q_a_layernorm.weight"},
            [MOE_T_Q] = {.name = ATTN "q_b_proj.weight"},
            [MOE_T_KV_DOWN] = {.name = ATTN "kv_a_proj_with_mqa.weight"},
            [MOE_T_KV_DOWN_NORM] = {.name = ATTN "kv_a_layernorm.weight"},
            [MOE_T_K_UP] = {.name = ATTN "kv_b_proj.weight", .take = MOE_TAKE_KEYS},
            [MOE_T_V_UP] = {.name = ATTN "kv_b_proj.weight", .take = MOE_TAKE_VALUES},
        },
};

const struct moe_family moe_family_deepseek_v2 = {
    .name = "deepseek_v2",
    .describe = "DeepSeek-V2 (V2-Lite, V2, Coder-V2)",
    .read_hf = read_hf,
    .hf = {&names, &family_names_deepseek, &family_names_llama, &family_names_fused},
    .hf_paired = true,
    .gguf_arch = "deepseek2",
    .gguf_paired = true,
    .read_gguf = read_gguf,
    .gguf = {&moe_gguf_names, &moe_gguf_names_other, &moe_gguf_names_old},
};
