/*
 * MiniCPM: MiniCPM-MoE-8x2B and the dense MiniCPM-2B, the model type "minicpm" of the code
 * published with them. Llama's layers with scales at the embedding, at what layers add, and at the
 * head; the chosen weights are divided by their sum. Keys and defaults are those of its
 * MiniCPMConfig.
 */
#include <jansson.h>
#include <math.h>

#include "model/family_common.h"
#include "model/family_gguf.h"

/* MiniCPM4 can attend to a selection of blocks. */
static const struct family_only only[] = {{"sparse_config", "null"}};

static int read_hf(struct moe_config *c, const char *path, const json_t *json, struct moe_err *err)
{
    float depth = 1, base = 1;
    c->tied_head = true;
    c->norm_topk = true;
    const struct family_key keys[] = {
        {"num_experts", FAMILY_U32, false, MOE_MAX_EXPERTS, &c->n_experts},
        {"num_experts_per_tok", FAMILY_U32, false, MOE_MAX_TOP_K, &c->top_k},
        {"scale_emb", FAMILY_FLOAT, false, 0, &c->embed_scale},
        {"scale_depth", FAMILY_FLOAT, false, 0, &depth},
        {"dim_model_base", FAMILY_FLOAT, false, 0, &base},
    };
    int status = FAMILY_CHECK(path, json, only, err);
    if (status == MOE_OK)
        status = family_read_llama(c, path, json, &c->dense_ff, err);
    if (status == MOE_OK)
        status = FAMILY_READ(path, json, keys, err);
    if (status == MOE_OK)
        status = family_read_attention_bias(c, path, json, false, err);
    if (status == MOE_OK)
        status = family_read_rope(c, path, json, 10000, err);
    if (status != MOE_OK)
        return status;
    c->residual_scale = depth / sqrtf((float)c->n_layers);
    c->logit_scale = base / (float)c->hidden;
    if (c->n_experts) {
        c->expert_ff = c->dense_ff;
        c->dense_ff = 0;
        family_all_moe(c);
    }
    return MOE_OK;
}

/* Files older than the keys of the three scales are of models with these. */
static int read_gguf(struct moe_config *c, const struct moe_gguf *gguf,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    (void)rope;
    if (!moe_gguf_has(gguf, moe_gguf_arch_key(gguf, "embedding_scale").text)) {
        c->embed_scale = 12;
        c->residual_scale = 1.4f / sqrtf((float)c->n_layers);
        c->logit_scale = 256.0f / (float)c->hidden;
    }
    return moe_gguf_read_norm_topk(c, gguf, true, err);
}

#define MLP "model.layers.%u.mlp."

static const struct moe_source_names names = {
    .expert =
        {
            [MOE_E_GATE] = {.name = MLP "experts.%u.w1.weight"},
            [MOE_E_UP] = {.name = MLP "experts.%u.w3.weight"},
            [MOE_E_DOWN] = {.name = MLP "experts.%u.w2.weight"},
        },
};

const struct moe_family moe_family_minicpm = {
    .name = "minicpm",
    .describe = "MiniCPM (MoE-8x2B; dense 1B, 2B)",
    .read_hf = read_hf,
    .hf = {&names, &family_names_llama},
    .gguf_arch = "minicpm",
    .gguf_paired = true,
    .read_gguf = read_gguf,
    .gguf = {&moe_gguf_names, &moe_gguf_names_other, &moe_gguf_names_old},
};
