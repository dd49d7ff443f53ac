/*
 * What lib/model's readers of checkpoints share: functions of single families (family.h: hf.own,
 * gguf.own), the words that tables of families are written in, and reading settings.
 */
#ifndef MOE_MODEL_FAMILY_INTERNAL_H
#define MOE_MODEL_FAMILY_INTERNAL_H

#include "base/err.h"
#include "fmt/checkpoint.h"
#include "fmt/gguf.h"
#include "model/config.h"
#include "model/family.h"
#include "model/rope.h"

typedef int family_own_hf(struct moe_config *config, const char *path, const struct json_t *json,
                          struct moe_rope_settings *rope, struct moe_err *err);
typedef int family_own_gguf(struct moe_config *config, const struct moe_checkpoint *ck,
                            struct moe_rope_settings *rope, struct moe_err *err);

family_own_hf family_minimax_hf, family_topk_method_hf, family_flint_hf, family_dbrx_hf,
    family_granite_swa_hf, family_deepseek_v4_hf, family_deepseek_v2_hf, family_deepseek_v3_hf,
    family_deepseek_v32_hf, family_glm_dsa_hf, family_hy_v4_hf, family_longcat_hf,
    family_kolibri_hf, family_beam_hf, family_lara_hf, family_sigmoid_hf, family_bailing_moe_hf,
    family_minimax_m2_hf, family_ernie4_5_moe_hf, family_ernie4_5_vl_hf, family_hunyuan_hf,
    family_minicpm_hf, family_gpt_oss_hf, family_switch_hf, family_qwen3_next_hf,
    family_lfm2_moe_hf, family_granite_hybrid_hf, family_nemotron_h_hf, family_kimi_linear_hf,
    family_jamba_hf, family_llama4_hf, family_exaone_moe_hf, family_afmoe_hf, family_gemma4_hf,
    family_smallthinker_hf, family_cohere2_moe_hf, family_gptsan_hf, family_two_rotations_hf,
    family_laguna_hf, family_mimo_v2_hf, family_mistral4_hf, family_ministral3_hf,
    family_mistral_large4_hf, family_dots3_hf, family_bailing_hybrid_hf, family_smollm3_hf,
    family_gemma2_hf, family_gemma3_hf, family_step3p5_hf, family_minimax_m3_hf, family_arctic_hf,
    family_grok_hf, family_kimi_k3_hf, family_glm5_next_hf, family_zaya_hf, family_jetmoe_hf,
    family_muse_spark_hf, family_qwen4_hf, family_inkling_hf, family_inkling2_hf,
    family_inkling2_loop_hf, family_nllb_hf, family_eagle3_hf, family_eagle3_deepseek_hf,
    family_dflash_hf;
family_own_gguf family_minimax_gguf, family_granite_swa_gguf, family_deepseek_ocr_gguf,
    family_deepseek_v2_gguf, family_glm_dsa_gguf, family_hy_v4_gguf, family_deepseek_v4_gguf,
    family_deepseek_v3_gguf, family_minicpm_gguf, family_gpt_oss_gguf, family_qwen3_next_gguf,
    family_qwen3_5_moe_gguf, family_lfm2_moe_gguf, family_granite_hybrid_gguf,
    family_nemotron_h_gguf, family_kimi_linear_gguf, family_jamba_gguf, family_llama4_gguf,
    family_exaone_moe_gguf, family_afmoe_gguf, family_gemma4_gguf, family_smallthinker_gguf,
    family_cohere2_moe_gguf, family_two_kinds_gguf, family_laguna_gguf, family_mimo_v2_gguf,
    family_mistral4_gguf, family_ministral3_gguf, family_dots3_gguf, family_smollm3_gguf,
    family_exaone4_gguf, family_gemma2_gguf, family_gemma3_gguf, family_step3p5_gguf,
    family_bailing_hybrid_gguf, family_minimax_m3_gguf, family_maple_gguf, family_arctic_gguf,
    family_grok_gguf, family_kimi_k3_gguf, family_qwen4_gguf, family_glm5_next_gguf,
    family_eagle3_gguf, family_dflash_gguf;

/* DeepSeek-V4, of both: clears the settings of kinds of layers that the model has none of; puts the
 * rotation of compressing layers, *rope, into config, and leaves the other layers', with base
 * theta, in it. */
void family_deepseek_v4_drop(struct moe_config *config);
/* Sets the widths of MiniMax-01's states, which are those of its heads; none without a layer of
 * them. */
void family_minimax_states(struct moe_config *config);
int family_deepseek_v4_rotary(struct moe_config *config, struct moe_rope_settings *rope,
                              double theta, const char *name, struct moe_err *err);

/* Sets the width of n shared experts, each as wide as a routed one. MOE_ERR_FORMAT: too wide. */
int family_set_shared(struct moe_config *config, uint32_t n, const char *path, struct moe_err *err);

/* Sets the streams of residual attention, none without layers to keep them after. */
void family_keep_streams(struct moe_config *config);

/* Makes two layers of each: the first of them has experts. MOE_ERR_FORMAT: too many. */
int family_halve_layers(struct moe_config *config, const char *path, struct moe_err *err);
/* The same of Arctic, whose first halves are nothing but experts. */
int family_arctic_halves(struct moe_config *config, const char *path, struct moe_err *err);

/* Refuses a head that drafts and reads streams of another width than its own, or one layer three
 * times: the first, which is how a description says that the file has no list (`listed`). */
int family_check_drafter(const struct moe_config *config, uint32_t width, bool listed,
                         const char *path, struct moe_err *err);

/* Numbers of config.json that may be absent. */
struct family_number {
    const char *key;
    uint32_t *out, max;
};
int family_read_numbers(const char *path, const struct json_t *json,
                        const struct family_number *numbers, size_t n, struct moe_err *err);

/* What a word says of a layer. A NULL word ends a list of them. */
struct family_word {
    const char *word;
    uint8_t value;
};
/* Sets a limit of activations (MOE_LAYER of a float) of each layer by a list of numbers, null for
 * none, which may be absent, or longer than there are layers. MOE_ERR_FORMAT. */
int family_read_limits(struct moe_config *config, size_t member, const char *path,
                       const struct json_t *json, const char *key, struct moe_err *err);

/* Sets a member of each layer (MOE_LAYER) by a list of words. MOE_ERR_FORMAT unless there is one
 * for each layer, or, with `longer`, more; MOE_ERR_UNSUPPORTED for any other word. */
int family_read_words(struct moe_config *config, size_t member, const char *path,
                      const struct json_t *list, const char *key, const struct family_word *words,
                      bool longer, struct moe_err *err);

/* Sets a member to `value` for the layers whose numbers are in a list. MOE_ERR_FORMAT: one is not a
 * layer. */
int family_read_layers(struct moe_config *config, size_t member, uint8_t value, const char *path,
                       const struct json_t *list, const char *key, struct moe_err *err);

/* From numbers by layer those of global and of local layers (of_kind[windowed]); 0: there is no
 * such layer. MOE_ERR_UNSUPPORTED: they differ between layers of a kind. */
int family_by_kind(const struct moe_config *config, const uint32_t *numbers, const char *path,
                   const char *key, uint32_t of_kind[2], struct moe_err *err);

/* Sets the embeddings of n-grams that one layer has; none: the model has none of them. Refuses more
 * than one. */
int family_set_ngrams(struct moe_config *config, uint32_t n_layers, const char *path,
                      struct moe_err *err);

/* The numbers of an indexer that chooses blocks (config.h), in this order; where sees_all is set
 * for all layers, there is none. */
enum {
    FAMILY_INDEX_HEADS,
    FAMILY_INDEX_DIM,
    FAMILY_INDEX_BLOCK,
    FAMILY_INDEX_TOP, /* blocks */
    FAMILY_INDEX_LOCAL,
    FAMILY_N_INDEX
};
void family_index_blocks(struct moe_config *config, const uint32_t numbers[FAMILY_N_INDEX]);
/* One that pools keys, whose numbers are set, and its layers with states: these share nothing. */
int family_index_pools(struct moe_config *config, const char *path, struct moe_err *err);
/* One that chooses by means of `ratio` keys, `budget` positions; its heads are set. None where any
 * of these is 0, or no layer attends. */
int family_index_means(struct moe_config *config, const char *path, uint32_t budget, uint32_t ratio,
                       struct moe_err *err);

/* Whether the text is one of the names between '|'. */
bool family_is_one_of(const char *text, const char *names);

/* The value of a key that is there and not null, else NULL. */
const struct json_t *family_given(const struct json_t *json, const char *key);

/*
 * Reading a family's settings (family.h) from config.json and GGUF metadata.
 */

/* Sets members by settings without keys. A list may be NULL, here and below. */
void family_set_constants(struct moe_config *config, const struct moe_setting *settings);

/* Reads settings with keys. Errors name file and key. */
int family_read_json(struct moe_config *config, const struct moe_setting *settings,
                     const char *path, const struct json_t *json, struct moe_err *err);
int family_read_gguf(struct moe_config *config, const struct moe_setting *settings,
                     const struct moe_gguf *gguf, struct moe_err *err);

/* Refuses switches that the family does not implement. */
int family_check_only(const struct moe_only *only, const char *path, const struct json_t *json,
                      struct moe_err *err);
int family_check_only_gguf(const struct moe_only *only, const struct moe_gguf *gguf,
                           struct moe_err *err);

/* "ARCH.NAME", for moe_gguf_get functions; room for any key. */
struct moe_gguf_key {
    char text[128];
};
struct moe_gguf_key moe_gguf_arch_key(const struct moe_gguf *gguf, const char *name);

/* MOE_ERR_UNSUPPORTED for a quantized checkpoint, unless it is FP8 or packed INT4
 * (fmt/checkpoint.h), or MXFP4 and the family is published that way. */
int family_check_quantization(const char *path, const struct json_t *json,
                              const struct moe_family *family, struct moe_err *err);

/*
 * Shared by the reader of GGUF files and the families' functions.
 */

/* The tensor of a layer, whose number replaces "%u"; NULL: there is none. */
const struct moe_tensor *family_gguf_tensor(const struct moe_checkpoint *ck, const char *format,
                                            uint32_t layer);

/*
 * Reads numbers (or truth values) by layer: an array with one for each layer, and perhaps for
 * layers that predict further tokens; or one number for all. If the key, under the architecture's
 * name, is missing, `out` stays as it is. MOE_ERR_FORMAT.
 */
int family_gguf_by_layer(const struct moe_config *config, const struct moe_gguf *gguf,
                         const char *name, uint32_t most, uint32_t out[MOE_MAX_LAYERS],
                         struct moe_err *err);

/* Whether the key is an array of numbers; its largest number. MOE_ERR_FORMAT. */
bool family_gguf_is_list(const struct moe_gguf *gguf, const char *name);
int family_gguf_largest(const struct moe_gguf *gguf, const char *name, uint32_t most, uint32_t *out,
                        struct moe_err *err);

/* The same as family_read_limits; a number is for all layers. */
int family_gguf_limits(struct moe_config *config, size_t member, const struct moe_gguf *gguf,
                       const char *name, struct moe_err *err);

/* Sets which layers have a window by "attention.sliding_window_pattern": a truth value per layer,
 * or a number n where every n-th has none. every: n if the key is missing; 0: it may not be.
 * MOE_ERR_FORMAT. */
int family_gguf_windows(struct moe_config *config, const struct moe_gguf *gguf, uint32_t every,
                        struct moe_err *err);

/* Reads the rotary settings into config, whose heads and widths are set. settings: what the family
 * has set before. MOE_ERR_FORMAT, MOE_ERR_UNSUPPORTED. */
int family_gguf_rotary(struct moe_config *config, const struct moe_checkpoint *ck,
                       struct moe_rope_settings *settings, struct moe_err *err);

#endif
