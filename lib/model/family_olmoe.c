/*
 * OLMoE: OLMoE-1B-7B. Norms over all queries and over all keys of a position, clipping behind them.
 * Keys and defaults are those of the public OlmoeConfig.
 */
#include <jansson.h>

#include "model/family_common.h"
#include "model/family_gguf.h"

static int read_hf(struct moe_config *c, const char *path, const json_t *json, struct moe_err *err)
{
    c->norm_eps = 1e-5f;
    c->qk_norm = MOE_QK_NORM_FULL;
    c->n_experts = 64;
    c->top_k = 8;
    const struct family_key keys[] = {
        {"num_local_experts", FAMILY_U32, false, MOE_MAX_EXPERTS, &c->n_experts},
        {"num_experts", FAMILY_U32, false, MOE_MAX_EXPERTS, &c->n_experts},
        {"num_experts_per_tok", FAMILY_U32, false, MOE_MAX_TOP_K, &c->top_k},
        {"norm_topk_prob", FAMILY_BOOL, false, 0, &c->norm_topk},
        {"clip_qkv", FAMILY_FLOAT, false, 0, &c->clip_qkv},
    };
    int status = family_read_llama(c, path, json, &c->expert_ff, err);
    if (status == MOE_OK)
        status = FAMILY_READ(path, json, keys, err);
    if (status == MOE_OK)
        status = family_read_attention_bias(c, path, json, false, err);
    if (status == MOE_OK)
        status = family_read_rope(c, path, json, 10000, err);
    family_all_moe(c);
    return status;
}

static int read_gguf(struct moe_config *c, const struct moe_gguf *gguf,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    c->qk_norm = MOE_QK_NORM_FULL;
    (void)rope;
    return moe_gguf_read_norm_topk(c, gguf, false, err);
}

const struct moe_family moe_family_olmoe = {
    .name = "olmoe",
    .describe = "OLMoE (OLMoE-1B-7B)",
    .read_hf = read_hf,
    .hf = {&family_names_llama, &family_names_fused},
    .gguf_arch = "olmoe",
    .read_gguf = read_gguf,
    .gguf = {&moe_gguf_names, &moe_gguf_names_other, &moe_gguf_names_old},
};
