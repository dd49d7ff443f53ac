/*
 * DeepSeekMoE-16B: the model type "deepseek" of the code published with the model. Ordinary
 * attention, a dense first layer, fine experts and shared ones. Keys and defaults are those of its
 * DeepseekConfig.
 */
#include <jansson.h>

#include "model/family_common.h"
#include "model/family_gguf.h"

static int read_hf(struct moe_config *c, const char *path, const json_t *json, struct moe_err *err)
{
    static const struct family_only only[] = {{"scoring_func", "softmax"}};
    const struct family_key keys[] = {{"norm_topk_prob", FAMILY_BOOL, false, 0, &c->norm_topk}};
    int status = FAMILY_CHECK(path, json, only, err);
    if (status == MOE_OK)
        status = family_read_llama(c, path, json, &c->dense_ff, err);
    if (status == MOE_OK)
        status = FAMILY_READ(path, json, keys, err);
    if (status == MOE_OK)
        status = family_read_deepseek_experts(c, path, json, 0, err);
    if (status == MOE_OK)
        status = family_read_attention_bias(c, path, json, false, err);
    if (status == MOE_OK)
        status = family_read_rope(c, path, json, 10000, err);
    return status;
}

static int read_gguf(struct moe_config *c, const struct moe_gguf *gguf,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    (void)rope;
    return moe_gguf_read_norm_topk(c, gguf, false, err);
}

const struct moe_family moe_family_deepseek = {
    .name = "deepseek",
    .describe = "DeepSeekMoE (16B)",
    .read_hf = read_hf,
    .hf = {&family_names_deepseek, &family_names_llama, &family_names_fused},
    .gguf_arch = "deepseek",
    .gguf_paired = true,
    .read_gguf = read_gguf,
    .gguf = {&moe_gguf_names, &moe_gguf_names_other, &moe_gguf_names_old},
};
