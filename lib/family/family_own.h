/*
 * What single families compute of their own from their settings (family.h: hf.own, gguf.own).
 * Internal to lib/family.
 */
#ifndef MOE_FAMILY_FAMILY_OWN_H
#define MOE_FAMILY_FAMILY_OWN_H

#include "family/family.h"

int family_deepseek_v4_hf(struct moe_config *config, const char *path, const struct json_t *json,
                          struct moe_rope_settings *rope, struct moe_err *err);
int family_deepseek_v2_hf(struct moe_config *config, const char *path, const struct json_t *json,
                          struct moe_rope_settings *rope, struct moe_err *err);
int family_deepseek_v2_gguf(struct moe_config *config, const struct moe_checkpoint *ck,
                            struct moe_rope_settings *rope, struct moe_err *err);
int family_deepseek_v3_hf(struct moe_config *config, const char *path, const struct json_t *json,
                          struct moe_rope_settings *rope, struct moe_err *err);
/* ... with an indexer in every layer, and of GLM-5, where layers may share what one chose. */
int family_deepseek_v32_hf(struct moe_config *config, const char *path, const struct json_t *json,
                           struct moe_rope_settings *rope, struct moe_err *err);
int family_glm_dsa_hf(struct moe_config *config, const char *path, const struct json_t *json,
                      struct moe_rope_settings *rope, struct moe_err *err);
int family_glm_dsa_gguf(struct moe_config *config, const struct moe_checkpoint *ck,
                        struct moe_rope_settings *rope, struct moe_err *err);
int family_deepseek_v4_gguf(struct moe_config *config, const struct moe_checkpoint *ck,
                            struct moe_rope_settings *rope, struct moe_err *err);
/* What both have of DeepSeek-V4: drops what belongs to kinds of layers that there are none of;
 * takes *rope, which is that of layers that compress, into config and leaves that of the others,
 * whose base is theta, in it. */
void family_deepseek_v4_drop(struct moe_config *config);
int family_deepseek_v4_rotary(struct moe_config *config, struct moe_rope_settings *rope,
                              double theta, const char *name, struct moe_err *err);
int family_deepseek_v3_gguf(struct moe_config *config, const struct moe_checkpoint *ck,
                            struct moe_rope_settings *rope, struct moe_err *err);
/* Of families with DeepSeek-V3's router and ordinary attention. */
int family_sigmoid_hf(struct moe_config *config, const char *path, const struct json_t *json,
                      struct moe_rope_settings *rope, struct moe_err *err);
int family_sigmoid_gguf(struct moe_config *config, const struct moe_checkpoint *ck,
                        struct moe_rope_settings *rope, struct moe_err *err);
int family_bailing_moe_hf(struct moe_config *config, const char *path, const struct json_t *json,
                          struct moe_rope_settings *rope, struct moe_err *err);
int family_hy_v3_hf(struct moe_config *config, const char *path, const struct json_t *json,
                    struct moe_rope_settings *rope, struct moe_err *err);
/* Sets the width of shared experts by "num_shared_experts"; n: where that is absent. */
int family_shared_experts(struct moe_config *config, uint32_t n, const char *path,
                          const struct json_t *json, struct moe_err *err);
int family_minimax_m2_hf(struct moe_config *config, const char *path, const struct json_t *json,
                         struct moe_rope_settings *rope, struct moe_err *err);
int family_ernie4_5_moe_hf(struct moe_config *config, const char *path, const struct json_t *json,
                           struct moe_rope_settings *rope, struct moe_err *err);
int family_hunyuan_hf(struct moe_config *config, const char *path, const struct json_t *json,
                      struct moe_rope_settings *rope, struct moe_err *err);
int family_minicpm_hf(struct moe_config *config, const char *path, const struct json_t *json,
                      struct moe_rope_settings *rope, struct moe_err *err);
int family_minicpm_gguf(struct moe_config *config, const struct moe_checkpoint *ck,
                        struct moe_rope_settings *rope, struct moe_err *err);
int family_gpt_oss_hf(struct moe_config *config, const char *path, const struct json_t *json,
                      struct moe_rope_settings *rope, struct moe_err *err);
int family_gpt_oss_gguf(struct moe_config *config, const struct moe_checkpoint *ck,
                        struct moe_rope_settings *rope, struct moe_err *err);
int family_switch_hf(struct moe_config *config, const char *path, const struct json_t *json,
                     struct moe_rope_settings *rope, struct moe_err *err);
int family_qwen3_next_hf(struct moe_config *config, const char *path, const struct json_t *json,
                         struct moe_rope_settings *rope, struct moe_err *err);
int family_qwen3_next_gguf(struct moe_config *config, const struct moe_checkpoint *ck,
                           struct moe_rope_settings *rope, struct moe_err *err);
int family_qwen3_5_moe_gguf(struct moe_config *config, const struct moe_checkpoint *ck,
                            struct moe_rope_settings *rope, struct moe_err *err);
int family_lfm2_moe_hf(struct moe_config *config, const char *path, const struct json_t *json,
                       struct moe_rope_settings *rope, struct moe_err *err);
int family_lfm2_moe_gguf(struct moe_config *config, const struct moe_checkpoint *ck,
                         struct moe_rope_settings *rope, struct moe_err *err);
int family_granite_hybrid_hf(struct moe_config *config, const char *path, const struct json_t *json,
                             struct moe_rope_settings *rope, struct moe_err *err);
int family_granite_hybrid_gguf(struct moe_config *config, const struct moe_checkpoint *ck,
                               struct moe_rope_settings *rope, struct moe_err *err);
int family_nemotron_h_hf(struct moe_config *config, const char *path, const struct json_t *json,
                         struct moe_rope_settings *rope, struct moe_err *err);
int family_nemotron_h_gguf(struct moe_config *config, const struct moe_checkpoint *ck,
                           struct moe_rope_settings *rope, struct moe_err *err);
int family_kimi_linear_hf(struct moe_config *config, const char *path, const struct json_t *json,
                          struct moe_rope_settings *rope, struct moe_err *err);
int family_kimi_linear_gguf(struct moe_config *config, const struct moe_checkpoint *ck,
                            struct moe_rope_settings *rope, struct moe_err *err);
int family_jamba_hf(struct moe_config *config, const char *path, const struct json_t *json,
                    struct moe_rope_settings *rope, struct moe_err *err);
int family_jamba_gguf(struct moe_config *config, const struct moe_checkpoint *ck,
                      struct moe_rope_settings *rope, struct moe_err *err);
int family_llama4_gguf(struct moe_config *config, const struct moe_checkpoint *ck,
                       struct moe_rope_settings *rope, struct moe_err *err);
int family_llama4_hf(struct moe_config *config, const char *path, const struct json_t *json,
                     struct moe_rope_settings *rope, struct moe_err *err);
int family_exaone_moe_gguf(struct moe_config *config, const struct moe_checkpoint *ck,
                           struct moe_rope_settings *rope, struct moe_err *err);
int family_exaone_moe_hf(struct moe_config *config, const char *path, const struct json_t *json,
                         struct moe_rope_settings *rope, struct moe_err *err);
int family_afmoe_gguf(struct moe_config *config, const struct moe_checkpoint *ck,
                      struct moe_rope_settings *rope, struct moe_err *err);
int family_afmoe_hf(struct moe_config *config, const char *path, const struct json_t *json,
                    struct moe_rope_settings *rope, struct moe_err *err);
int family_gemma4_hf(struct moe_config *config, const char *path, const struct json_t *json,
                     struct moe_rope_settings *rope, struct moe_err *err);
int family_gemma4_gguf(struct moe_config *config, const struct moe_checkpoint *ck,
                       struct moe_rope_settings *rope, struct moe_err *err);
int family_smallthinker_hf(struct moe_config *config, const char *path, const struct json_t *json,
                           struct moe_rope_settings *rope, struct moe_err *err);
int family_smallthinker_gguf(struct moe_config *config, const struct moe_checkpoint *ck,
                             struct moe_rope_settings *rope, struct moe_err *err);
int family_cohere2_moe_gguf(struct moe_config *config, const struct moe_checkpoint *ck,
                            struct moe_rope_settings *rope, struct moe_err *err);
int family_cohere2_moe_hf(struct moe_config *config, const char *path, const struct json_t *json,
                          struct moe_rope_settings *rope, struct moe_err *err);
int family_gptsan_hf(struct moe_config *config, const char *path, const struct json_t *json,
                     struct moe_rope_settings *rope, struct moe_err *err);

#endif
