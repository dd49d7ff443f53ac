/*
 * Qwen3-MoE: Qwen3-30B-A3B, Qwen3-235B-A22B. As Qwen2-MoE, with norms of queries and keys, and
 * without shared experts. Keys and defaults are those of the public Qwen3MoeConfig.
 */
#include <jansson.h>

#include "fmt/json.h"
#include "model/family_common.h"
#include "model/family_gguf.h"

static int read_window(struct moe_config *c, const char *path, const json_t *json,
                       struct moe_err *err)
{
    bool windowed = false;
    int status = moe_json_get_bool(path, json, "use_sliding_window", false, &windowed, err);
    return status == MOE_OK && windowed ? family_read_window(c, path, json, 4096, err) : status;
}

static int read_hf(struct moe_config *c, const char *path, const json_t *json, struct moe_err *err)
{
    c->qk_norm = MOE_QK_NORM_HEAD;
    c->n_kv_heads = 4;
    c->n_experts = 128;
    c->top_k = 8;
    c->expert_ff = 768;
    const struct family_key keys[] = {
        {"num_local_experts", FAMILY_U32, false, MOE_MAX_EXPERTS, &c->n_experts},
        {"num_experts", FAMILY_U32, false, MOE_MAX_EXPERTS, &c->n_experts},
        {"num_experts_per_tok", FAMILY_U32, false, MOE_MAX_TOP_K, &c->top_k},
        {"moe_intermediate_size", FAMILY_U32, false, MOE_MAX_DIM, &c->expert_ff},
        {"norm_topk_prob", FAMILY_BOOL, false, 0, &c->norm_topk},
    };
    int status = family_read_llama(c, path, json, &c->dense_ff, err);
    if (status == MOE_OK)
        status = FAMILY_READ(path, json, keys, err);
    if (status == MOE_OK)
        status = family_read_attention_bias(c, path, json, false, err);
    if (status == MOE_OK)
        status = read_window(c, path, json, err);
    if (status == MOE_OK)
        status = family_read_rope(c, path, json, 10000, err);
    if (status == MOE_OK)
        status = family_read_sparse_layers(c, path, json, err);
    return status;
}

static int read_gguf(struct moe_config *c, const struct moe_gguf *gguf,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    c->qk_norm = MOE_QK_NORM_HEAD;
    (void)rope;
    return moe_gguf_read_norm_topk(c, gguf, true, err);
}

const struct moe_family moe_family_qwen3_moe = {
    .name = "qwen3_moe",
    .describe = "Qwen3-MoE (Qwen3-30B-A3B, Qwen3-235B-A22B)",
    .read_hf = read_hf,
    .hf = {&family_names_llama, &family_names_fused},
    .gguf_arch = "qwen3moe",
    .read_gguf = read_gguf,
    .gguf = {&moe_gguf_names, &moe_gguf_names_other, &moe_gguf_names_old},
};
