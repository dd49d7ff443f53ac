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

family_own_hf family_deepseek_v4_hf, family_deepseek_v2_hf, family_deepseek_v3_hf,
    family_deepseek_v32_hf, family_glm_dsa_hf, family_sigmoid_hf, family_bailing_moe_hf,
    family_hy_v3_hf, family_minimax_m2_hf, family_ernie4_5_moe_hf, family_hunyuan_hf,
    family_minicpm_hf, family_gpt_oss_hf, family_switch_hf, family_qwen3_next_hf,
    family_lfm2_moe_hf, family_granite_hybrid_hf, family_nemotron_h_hf, family_kimi_linear_hf,
    family_jamba_hf, family_llama4_hf, family_exaone_moe_hf, family_afmoe_hf, family_gemma4_hf,
    family_smallthinker_hf, family_cohere2_moe_hf, family_gptsan_hf;
family_own_gguf family_deepseek_v2_gguf, family_glm_dsa_gguf, family_deepseek_v4_gguf,
    family_deepseek_v3_gguf, family_sigmoid_gguf, family_minicpm_gguf, family_gpt_oss_gguf,
    family_qwen3_next_gguf, family_qwen3_5_moe_gguf, family_lfm2_moe_gguf,
    family_granite_hybrid_gguf, family_nemotron_h_gguf, family_kimi_linear_gguf, family_jamba_gguf,
    family_llama4_gguf, family_exaone_moe_gguf, family_afmoe_gguf, family_gemma4_gguf,
    family_smallthinker_gguf, family_cohere2_moe_gguf;

/* DeepSeek-V4, of both: clears the settings of kinds of layers that the model has none of; puts the
 * rotation of compressing layers, *rope, into config, and leaves the other layers', with base
 * theta, in it. */
void family_deepseek_v4_drop(struct moe_config *config);
int family_deepseek_v4_rotary(struct moe_config *config, struct moe_rope_settings *rope,
                              double theta, const char *name, struct moe_err *err);

/* Sets the width of n shared experts, each as wide as a routed one. MOE_ERR_FORMAT: too wide. */
int family_set_shared(struct moe_config *config, uint32_t n, const char *path, struct moe_err *err);

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
/* Sets a member of each layer (MOE_LAYER) by a list of words. MOE_ERR_FORMAT unless there is one
 * for each layer, or, with `longer`, more; MOE_ERR_UNSUPPORTED for any other word. */
int family_read_words(struct moe_config *config, size_t member, const char *path,
                      const struct json_t *list, const char *key, const struct family_word *words,
                      bool longer, struct moe_err *err);

/* The value of a key that is there and not null, else NULL. */
const struct json_t *family_given(const struct json_t *json, const char *key);

/*
 * The words that the tables of families are written in (families_*.c).
 */

#define SETTINGS(...) ((const struct moe_setting[]){__VA_ARGS__, {.member = 0}})
#define ONLY(...) ((const struct moe_only[]){__VA_ARGS__, {NULL, NULL}})
/* What a member is without being asked for, or where one of the shared keys is absent. */
#define SET(name, number)                                                                          \
    {                                                                                              \
        .member = MOE_MEMBER(name), .value = (number)                                              \
    }
#define NEED(text, name)                                                                           \
    {                                                                                              \
        .key = (text), .member = MOE_MEMBER(name), .required = true                                \
    }
#define KEY(text, name, number)                                                                    \
    {                                                                                              \
        .key = (text), .member = MOE_MEMBER(name), .value = (number)                               \
    }
#define USE(text, name, number, how)                                                               \
    {                                                                                              \
        .key = (text), .member = MOE_MEMBER(name), .value = (number), .use = (how)                 \
    }
#define PART_EITHER(path, what)                                                                    \
    {                                                                                              \
        .name = (path), .take = MOE_TAKE_##what, .transposed = true, .either = true                \
    }
#define PART_COLUMNS(path, what)                                                                   \
    {                                                                                              \
        .name = (path), .take = MOE_TAKE_##what, .transposed = true                                \
    }

/* Keys that several families have. */
#define LOCAL_EXPERTS(number) KEY("num_local_experts", n_experts, number)
#define EXPERTS(number) KEY("num_experts", n_experts, number)
#define TOP_K(number) KEY("num_experts_per_tok", top_k, number)
#define NORM_TOPK KEY("norm_topk_prob", norm_topk, false)
#define ATTENTION_BIAS(otherwise)                                                                  \
    KEY("attention_bias", qkv_bias, otherwise), KEY("attention_bias", o_bias, otherwise)
#define DENSE_FF NEED("intermediate_size", dense_ff)
#define EXPERT_FF NEED("intermediate_size", expert_ff)
#define CONTEXT(number) SET(context_max, number)
#define GGUF_NORM_TOPK(otherwise) KEY("expert_weights_norm", norm_topk, otherwise)

#define GROUPS(of, used) KEY("n_group", n_groups, of), KEY("topk_group", top_groups, used)
#define GGUF_GROUPS                                                                                \
    KEY("expert_group_count", n_groups, 0), KEY("expert_group_used_count", top_groups, 0)
/* MLA: the values of a head that do not rotate, those that do, and a head's values; the rotated
 * ones are added to head_dim. */
#define LATENT(q, kv, plain, rotated, values)                                                      \
    KEY("q_lora_rank", q_rank, q), KEY("kv_lora_rank", kv_rank, kv),                               \
        KEY("qk_nope_head_dim", head_dim, plain), KEY("qk_rope_head_dim", rope_dim, rotated),      \
        KEY("v_head_dim", value_dim, values)
#define LATENT_GGUF                                                                                \
    KEY("attention.q_lora_rank", q_rank, 0), KEY("attention.kv_lora_rank", kv_rank, 0),            \
        KEY("attention.key_length_mla", head_dim, 0),                                              \
        KEY("attention.value_length_mla", value_dim, 0), GGUF_GROUPS, GGUF_NORM_TOPK(false)
/* An indexer: heads, their width, positions that it chooses. */
#define INDEXER(heads)                                                                             \
    USE("index_topk", index_top, 2048, MOE_NOT_ZERO), KEY("index_n_heads", index_heads, heads),    \
        KEY("index_head_dim", index_dim, 128)
#define INDEXER_GGUF                                                                               \
    NEED("attention.indexer.head_count", index_heads),                                             \
        NEED("attention.indexer.key_length", index_dim),                                           \
    {                                                                                              \
        .key = "attention.indexer.top_k", .member = MOE_MEMBER(index_top), .required = true,       \
        .use = MOE_NOT_ZERO                                                                        \
    }
/* Experts beside shared ones, with the keys of DeepSeek's descendants. */
#define ROUTED_EXPERTS(number, chosen, width, normalised, scale)                                   \
    KEY("n_routed_experts", n_experts, number), TOP_K(chosen),                                     \
        KEY("moe_intermediate_size", expert_ff, width),                                            \
        KEY("norm_topk_prob", norm_topk, normalised),                                              \
        KEY("routed_scaling_factor", routed_scale, scale)
/* DeepSeek-V3's other router keys in config.json, each with one implemented value. */
#define SIGMOIDS_ONLY                                                                              \
    {"scoring_func", "sigmoid"}, {"topk_method", "noaux_tc"},                                      \
    {                                                                                              \
        "moe_layer_freq", "1"                                                                      \
    }
/* DeepSeek-V3's router, without and with MLA, whose inner norms have an epsilon of 1e-6 whatever
 * the key says. */
#define SIGMOIDS SET(router_kind, MOE_ROUTER_SIGMOID), SET(choice_bias, true)
#define LATENT_SIGMOIDS SIGMOIDS, SET(latent_eps, 1e-6)

/* Recurrent states with several heads, in GGUF. */
#define STATES_GGUF                                                                                \
    KEY("ssm.conv_kernel", conv_width, 0), KEY("ssm.state_size", state_key_dim, 0),                \
        KEY("ssm.group_count", state_key_heads, 0), KEY("ssm.time_step_rank", state_heads, 0)

#define L "model.layers.%u."
#define B "blk.%u."

/* Tensors of a Mamba-2 layer. */
#define MAMBA(path)                                                                                \
    [MOE_T_STATE_Z] = MOE_PART(path "in_proj.weight", STATE_ROWS),                                 \
    [MOE_T_STATE_V] = MOE_PART(path "in_proj.weight", STATE_ROWS),                                 \
    [MOE_T_STATE_K] = MOE_PART(path "in_proj.weight", STATE_ROWS),                                 \
    [MOE_T_STATE_Q] = MOE_PART(path "in_proj.weight", STATE_ROWS),                                 \
    [MOE_T_STATE_DECAY] = MOE_PART(path "in_proj.weight", STATE_ROWS),                             \
    [MOE_T_STATE_STEP] = MOE_ALL(path "dt_bias"), [MOE_T_STATE_RATE] = MOE_ALL(path "A_log"),      \
    [MOE_T_STATE_SKIP] = MOE_ALL(path "D"),                                                        \
    [MOE_T_STATE_CONV] = MOE_PART(path "conv1d.weight", CONV),                                     \
    [MOE_T_STATE_CONV_BIAS] = MOE_ALL(path "conv1d.bias"),                                         \
    [MOE_T_STATE_NORM] = MOE_ALL(path "norm.weight"),                                              \
    [MOE_T_STATE_O] = MOE_ALL(path "out_proj.weight")

/* GGUF's name, by its place, of the norm before feed-forwards. */
extern const struct moe_source_names moe_placed_norm_names;
/* Tensors of a Mamba-2 layer in GGUF. */
extern const struct moe_source_names moe_mamba_gguf_names;
/* One shared expert beside routed ones with the usual names. */
extern const struct moe_source_names moe_qwen2_moe_names;

/* The tables of families; an entry without a name ends each. */
extern const struct moe_family moe_families_softmax[]; /* routers with a softmax */
extern const struct moe_family moe_families_granite[];
extern const struct moe_family moe_families_local[];    /* local and global layers */
extern const struct moe_family moe_families_states[];   /* recurrent states in most layers */
extern const struct moe_family moe_families_deepseek[]; /* and others with its router */
extern const struct moe_family moe_families_stacks[];   /* encoders, prefix LMs */
extern const struct moe_family moe_families_dense[];    /* models without experts */

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
 * name, is missing, `out` is left alone. MOE_ERR_FORMAT.
 */
int family_gguf_by_layer(const struct moe_config *config, const struct moe_gguf *gguf,
                         const char *name, uint32_t most, uint32_t out[MOE_MAX_LAYERS],
                         struct moe_err *err);

/* Whether the key is an array of numbers; its largest number. MOE_ERR_FORMAT. */
bool family_gguf_is_list(const struct moe_gguf *gguf, const char *name);
int family_gguf_largest(const struct moe_gguf *gguf, const char *name, uint32_t most, uint32_t *out,
                        struct moe_err *err);

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
