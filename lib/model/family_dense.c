/*
 * Dense models: Llama, Mistral, Qwen2 and Qwen3, the case without experts. Keys and defaults are
 * those of the public configuration classes.
 */
#include <jansson.h>

#include "model/family_common.h"
#include "model/family_gguf.h"

static int read_llama(struct moe_config *c, const char *path, const json_t *json,
                      struct moe_err *err)
{
    static const struct family_only only[] = {{"mlp_bias", "false"}};
    int status = FAMILY_CHECK(path, json, only, err);
    if (status == MOE_OK)
        status = family_read_llama(c, path, json, &c->dense_ff, err);
    if (status == MOE_OK)
        status = family_read_attention_bias(c, path, json, false, err);
    if (status == MOE_OK)
        status = family_read_rope(c, path, json, 10000, err);
    return status;
}

static int read_mistral(struct moe_config *c, const char *path, const json_t *json,
                        struct moe_err *err)
{
    c->n_kv_heads = 8;
    int status = family_read_llama(c, path, json, &c->dense_ff, err);
    if (status == MOE_OK)
        status = family_read_window(c, path, json, 4096, err);
    if (status == MOE_OK)
        status = family_read_rope(c, path, json, 10000, err);
    return status;
}

static int read_qwen2(struct moe_config *c, const char *path, const json_t *json,
                      struct moe_err *err)
{
    c->qkv_bias = true;
    c->n_kv_heads = 32;
    int status = family_read_llama(c, path, json, &c->dense_ff, err);
    if (status == MOE_OK)
        status = family_read_qwen_window(c, path, json, err);
    if (status == MOE_OK)
        status = family_read_rope(c, path, json, 10000, err);
    return status;
}

static int read_qwen3(struct moe_config *c, const char *path, const json_t *json,
                      struct moe_err *err)
{
    c->qk_norm = MOE_QK_NORM_HEAD;
    c->n_kv_heads = 32;
    c->head_dim = 128;
    int status = family_read_llama(c, path, json, &c->dense_ff, err);
    if (status == MOE_OK)
        status = family_read_attention_bias(c, path, json, false, err);
    if (status == MOE_OK)
        status = family_read_qwen_window(c, path, json, err);
    if (status == MOE_OK)
        status = family_read_rope(c, path, json, 10000, err);
    return status;
}

/* The shared keys and tensors say it all. */
static int gguf_as_shared(struct moe_config *c, const struct moe_gguf *gguf,
                          struct moe_rope_settings *rope, struct moe_err *err)
{
    (void)c;
    (void)gguf;
    (void)rope;
    (void)err;
    return MOE_OK;
}

static int gguf_qwen3(struct moe_config *c, const struct moe_gguf *gguf,
                      struct moe_rope_settings *rope, struct moe_err *err)
{
    (void)gguf;
    (void)rope;
    (void)err;
    c->qk_norm = MOE_QK_NORM_HEAD;
    return MOE_OK;
}

const struct moe_family moe_family_llama = {
    .name = "llama",
    .describe = "Llama (dense)",
    .read_hf = read_llama,
    .hf = {&family_names_llama},
    .gguf_arch = "llama",
    .gguf_dense = true,
    .gguf_paired = true,
    .read_gguf = gguf_as_shared,
    .gguf = {&moe_gguf_names},
};

const struct moe_family moe_family_mistral = {
    .name = "mistral",
    .describe = "Mistral (dense)",
    .read_hf = read_mistral,
    .hf = {&family_names_llama},
};

const struct moe_family moe_family_qwen2 = {
    .name = "qwen2",
    .describe = "Qwen2 (dense)",
    .read_hf = read_qwen2,
    .hf = {&family_names_llama},
    .gguf_arch = "qwen2",
    .read_gguf = gguf_as_shared,
    .gguf = {&moe_gguf_names},
};

const struct moe_family moe_family_qwen3 = {
    .name = "qwen3",
    .describe = "Qwen3 (dense)",
    .read_hf = read_qwen3,
    .hf = {&family_names_llama},
    .gguf_arch = "qwen3",
    .read_gguf = gguf_qwen3,
    .gguf = {&moe_gguf_names},
};
