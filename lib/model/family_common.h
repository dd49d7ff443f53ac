/*
 * What families share: reading config.json by tables, the numbers that all descendants of Llama
 * have, and their tensors' names. Internal to family_*.c.
 */
#ifndef MOE_MODEL_FAMILY_COMMON_H
#define MOE_MODEL_FAMILY_COMMON_H

#include <stddef.h>

#include "model/family.h"
#include "model/rope.h"

/* ---- config.json by tables ---- */

enum family_value { FAMILY_U32, FAMILY_FLOAT, FAMILY_BOOL };

/* A member of the object and where it goes. What is absent leaves *out as it is, so that the caller
 * puts the default there; a whole number that is null becomes 0, which says "from the rest". */
struct family_key {
    const char *key;
    enum family_value value;
    bool required;
    uint32_t max; /* of FAMILY_U32 */
    void *out;    /* uint32_t, float or bool */
};
int family_read_keys(const char *path, const struct json_t *json, const struct family_key *keys,
                     size_t n, struct moe_err *err);
#define FAMILY_READ(path, json, keys, err)                                                         \
    family_read_keys(path, json, keys, sizeof(keys) / sizeof(keys)[0], err)

/* A switch of which one value is implemented: a text, a number as it is usually written, "true" or
 * "false". Absent or null is fine; anything else is MOE_ERR_UNSUPPORTED and named. */
struct family_only {
    const char *key, *value;
};
int family_check_only(const char *path, const struct json_t *json, const struct family_only *only,
                      size_t n, struct moe_err *err);
#define FAMILY_CHECK(path, json, only, err)                                                        \
    family_check_only(path, json, only, sizeof(only) / sizeof(only)[0], err)

/* ---- What Llama's descendants share ---- */

/* Layers, widths, heads, context, vocabulary, "rms_norm_eps", "tie_word_embeddings", and an
 * activation that must be silu. config holds the family's defaults (norm_eps 0: 1e-6). *ff (may be
 * NULL) gets "intermediate_size". */
int family_read_llama(struct moe_config *config, const char *path, const struct json_t *json,
                      uint32_t *ff, struct moe_err *err);
/* "attention_bias": query, key, value and output projections have one. */
int family_read_attention_bias(struct moe_config *config, const char *path,
                               const struct json_t *json, bool otherwise, struct moe_err *err);
/* Rotary settings, theta being what holds where the file names none. */
int family_read_rope(struct moe_config *config, const char *path, const struct json_t *json,
                     double theta, struct moe_err *err);

/* "sliding_window" for all layers; `otherwise` where the key is absent, 0: none. */
int family_read_window(struct moe_config *config, const char *path, const struct json_t *json,
                       uint32_t otherwise, struct moe_err *err);
/* "layer_types": which layers are windowed. Where there is no list, `otherwise` says so of each
 * layer. */
int family_read_layer_types(struct moe_config *config, const char *path, const struct json_t *json,
                            bool (*otherwise)(uint32_t layer), struct moe_err *err);
/* "use_sliding_window", "sliding_window", "layer_types" and "max_window_layers", as Qwen2 and its
 * successors have them: windowed is a layer from max_window_layers on. */
int family_read_qwen_window(struct moe_config *config, const char *path, const struct json_t *json,
                            struct moe_err *err);

/* Every layer has experts. */
void family_all_moe(struct moe_config *config);
/* "decoder_sparse_step" and "mlp_only_layers": every so manieth layer has experts, but for those.
 */
int family_read_sparse_layers(struct moe_config *config, const char *path,
                              const struct json_t *json, struct moe_err *err);
/* DeepSeek's experts: "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size",
 * "n_shared_experts" (config->shared_ff: as many as there are where the key is absent), and which
 * layers have them: every "moe_layer_freq"-th from "first_k_dense_replace" on. */
int family_read_deepseek_experts(struct moe_config *config, const char *path,
                                 const struct json_t *json, uint32_t shared_otherwise,
                                 struct moe_err *err);

/* ---- Names ---- */

/* "model.layers.%u.self_attn.q_proj.weight" and so on; experts as Qwen, OLMoE and DeepSeek have
 * them, a tensor each. */
extern const struct moe_source_names family_names_llama;
/* Shared experts as DeepSeek has them. */
extern const struct moe_source_names family_names_deepseek;
/* All experts of a layer in two tensors, "model.layers.%u.mlp.experts.gate_up_proj" and
 * "...down_proj", as newer writers store them. */
extern const struct moe_source_names family_names_fused;

#endif
