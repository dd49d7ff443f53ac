/*
 * Model description: the numbers and switches of a model, normalised over all families.
 *
 * It comes from a checkpoint through its family's row (family.h) and travels in a pack as JSON
 * (moe_config_write / moe_config_read), with every key known and checked. The forward pass reads
 * only this, never a family's name.
 */
#ifndef MOE_MODEL_CONFIG_H
#define MOE_MODEL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

enum {
    MOE_MAX_LAYERS = 1024,
    MOE_MAX_EXPERTS = 4096, /* per layer */
    MOE_MAX_TOP_K = 64,
    MOE_MAX_EOS = 8,
    MOE_MAX_HEADS = 1024,
    MOE_MAX_CONTEXT = 1 << 24,
};

struct moe_config {
    char family[32]; /* the family's name, for people */

    uint32_t n_layers;
    uint32_t hidden;      /* width of the residual stream */
    uint32_t vocab;       /* rows of the embedding; the tokenizer may know fewer tokens */
    uint32_t context_max; /* positions the model was made for */

    uint32_t n_heads, n_kv_heads, head_dim;
    bool qkv_bias;
    double rope_theta;
    float norm_eps;
    bool tied_head; /* the output head is the embedding */

    uint32_t dense_ff;  /* width of dense layers' feed-forward; 0 when there are none */
    uint32_t n_experts; /* per MoE layer; 0: a dense model */
    uint32_t top_k;
    uint32_t expert_ff; /* width of an expert's feed-forward */
    uint32_t shared_ff; /* width of the shared expert; 0: none */
    bool shared_gate;   /* its output is scaled by sigmoid(shared_gate . x) */
    bool norm_topk;     /* the chosen weights are divided by their sum */
    uint8_t layer_is_moe[MOE_MAX_LAYERS];

    /* What the checkpoint suggests for generation. */
    uint32_t n_eos;
    uint32_t eos[MOE_MAX_EOS];
};

/* Ranges and agreements (heads divide, top_k <= n_experts, even head_dim, ...).
 * `name` begins the error text. */
int moe_config_check(const struct moe_config *config, const char *name, struct moe_err *err);

/* As JSON text, and back; reading refuses unknown, missing and duplicate keys. */
void moe_config_write(const struct moe_config *config, struct moe_buf *out);
int moe_config_read(struct moe_config *config, const char *name, const void *json, uint64_t n,
                    struct moe_err *err);

/* Reads DIR/config.json (and generation_config.json where there is one) of a Hugging Face
 * checkpoint through the family that its "model_type" names. An unknown family, or a switch that
 * the family does not implement, is MOE_ERR_UNSUPPORTED and named. */
int moe_config_read_hf(struct moe_config *config, const char *dir, struct moe_err *err);

#endif
