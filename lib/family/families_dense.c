/* Dense models: the case without experts. */
#include "family/family_table.h"

const struct moe_family moe_families_dense[] = {
    {
        .name = "llama",
        .hf = {.only = ONLY({"mlp_bias", "false"}),
               .settings = SETTINGS(CONTEXT(2048), DENSE_FF, ATTENTION_BIAS(false)),
               .rope_theta = 1e4},
        .gguf = {.arch = "llama", .dense = true},
        .tensors[MOE_NAMING_GGUF].paired = true,
    },
    {
        .name = "mistral",
        .hf = {.settings = SETTINGS(CONTEXT(131072), SET(n_kv_heads, 8), DENSE_FF),
               .rope_theta = 1e4,
               .windows = {MOE_WINDOW_ALL, 4096}},
    },
    {
        .name = "qwen2",
        .hf = {.settings =
                   SETTINGS(CONTEXT(32768), SET(qkv_bias, true), SET(n_kv_heads, 32), DENSE_FF),
               .rope_theta = 1e4,
               .windows = {MOE_WINDOW_FROM, 4096, .if_used = true, .listed = true}},
        .gguf = {.arch = "qwen2"},
    },
    {
        .name = "qwen3",
        .constants = SETTINGS(SET(qk_norm, MOE_QK_NORM_HEAD)),
        .hf = {.settings = SETTINGS(CONTEXT(32768), SET(n_kv_heads, 32), SET(head_dim, 128),
                                    DENSE_FF, ATTENTION_BIAS(false)),
               .rope_theta = 1e4,
               .windows = {MOE_WINDOW_FROM, 4096, .if_used = true, .listed = true}},
        .gguf = {.arch = "qwen3"},
    },
    {.name = NULL},
};
