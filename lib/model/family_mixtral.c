/*
 * Mixtral: 8x7B, 8x22B. Softmax over all experts, the chosen weights divided by their sum. Keys and
 * defaults are those of the public MixtralConfig.
 */
#include <jansson.h>

#include "model/family_common.h"
#include "model/family_gguf.h"

static int read_hf(struct moe_config *c, const char *path, const json_t *json, struct moe_err *err)
{
    c->norm_eps = 1e-5f;
    c->norm_topk = true;
    c->n_kv_heads = 8;
    c->n_experts = 8;
    c->top_k = 2;
    const struct family_key keys[] = {
        {"num_local_experts", FAMILY_U32, false, MOE_MAX_EXPERTS, &c->n_experts},
        {"num_experts_per_tok", FAMILY_U32, false, MOE_MAX_TOP_K, &c->top_k},
    };
    int status = family_read_llama(c, path, json, &c->expert_ff, err);
    if (status == MOE_OK)
        status = FAMILY_READ(path, json, keys, err);
    if (status == MOE_OK)
        status = family_read_window(c, path, json, 0, err);
    if (status == MOE_OK)
        status = family_read_rope(c, path, json, 1e6, err);
    family_all_moe(c);
    return status;
}

static int read_gguf(struct moe_config *c, const struct moe_gguf *gguf,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    (void)rope;
    return moe_gguf_read_norm_topk(c, gguf, true, err);
}

#define MOE "model.layers.%u.block_sparse_moe."

static const struct moe_source_names names = {
    .dense = {[MOE_T_ROUTER] = {.name = MOE "gate.weight"}},
    .expert =
        {
            [MOE_E_GATE] = {.name = MOE "experts.%u.w1.weight"},
            [MOE_E_UP] = {.name = MOE "experts.%u.w3.weight"},
            [MOE_E_DOWN] = {.name = MOE "experts.%u.w2.weight"},
        },
};

const struct moe_family moe_family_mixtral = {
    .name = "mixtral",
    .describe = "Mixtral (8x7B, 8x22B)",
    .read_hf = read_hf,
    .hf = {&names, &family_names_llama, &family_names_fused},
    .gguf_arch = "llama",
    .gguf_paired = true,
    .read_gguf = read_gguf,
    .gguf = {&moe_gguf_names, &moe_gguf_names_other, &moe_gguf_names_old},
};
