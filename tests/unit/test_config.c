/*
 * config.json of every family: what is read from it, the defaults of missing members, and the
 * refusal of what is not implemented.
 */
#define _POSIX_C_SOURCE 200809L /* mkdtemp */
#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <unistd.h>

#include "base/file.h"
#include "fmt/json.h"
#include "model/family.h"
#include "model/read.h"

#include "../test.h"
#include "model/config_fields.h"

static struct moe_config config;

static int read_text(const char *text, struct moe_err *err)
{
    struct json_t *json;
    assert_ok(moe_json_parse(&json, "config.json", text, strlen(text), MOE_JSON_CONFIG_MEMORY, err),
              err);
    int status = moe_config_read_hf_json(&config, "config.json", json, err);
    moe_json_free(json);
    return status;
}

static void read_ok(const char *text)
{
    struct moe_err err = {0};
    assert_ok(read_text(text, &err), &err);
}

static void assert_near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-6 * fabs(want)))
        fail_msg("%.9g, expected %.9g", got, want);
}

/* Layers as texts: M with experts, w windowed. */
static void assert_layers(const char *moe, const char *windowed)
{
    assert_int_equal(config.n_layers, strlen(moe));
    for (uint32_t i = 0; i < config.n_layers; i++) {
        assert_int_equal(config.layers[i].moe, moe[i] == 'M');
        assert_int_equal(config.layers[i].windowed, windowed[i] == 'w');
    }
}

/* What all the small models here have: 4 layers of width 64, 4 heads. */
#define SMALL                                                                                      \
    "\"num_hidden_layers\": 4, \"hidden_size\": 64, \"vocab_size\": 100, "                         \
    "\"num_attention_heads\": 4, \"max_position_embeddings\": 4096, \"intermediate_size\": 96"
#define MODEL(type, ...) "{\"model_type\": \"" type "\", " SMALL __VA_ARGS__ "}"

static void qwen_families(void **state)
{
    (void)state;
    read_ok(MODEL("qwen2_moe", ", \"num_experts\": 8, \"num_experts_per_tok\": 2, "
                               "\"num_key_value_heads\": 2, \"moe_intermediate_size\": 32, "
                               "\"shared_expert_intermediate_size\": 48, \"mlp_only_layers\": [3],"
                               "\"use_sliding_window\": true, \"sliding_window\": 16"));
    assert_layers("MMMd", "w-w-");
    assert_int_equal(config.dense_ff, 96);
    assert_int_equal(config.shared_ff, 48);
    assert_true(config.qkv_bias && !config.o_bias && config.shared_gate && !config.norm_topk);
    assert_near(config.norm_eps, 1e-6);

    read_ok(MODEL("qwen3_moe", ", \"num_local_experts\": 8, \"num_experts_per_tok\": 2, "
                               "\"head_dim\": 32, \"norm_topk_prob\": true, "
                               "\"decoder_sparse_step\": 2"));
    assert_layers("dMdM", "----");
    assert_int_equal(config.n_experts, 8);
    assert_int_equal(config.n_kv_heads, 4);
    assert_int_equal(config.head_dim, 32);
    assert_int_equal(config.qk_norm, MOE_QK_NORM_HEAD);
    assert_near(config.attn_scale, 1 / sqrt(32));

    read_ok(MODEL("qwen3_next", ", \"num_experts\": 8, \"num_experts_per_tok\": 2, "
                                "\"partial_rotary_factor\": 0.5"));
    assert_layers("MMMM", "----");
    assert_layers_have(config, recurrent, "1110");
    assert_int_equal(config.rope_dim, 128);
    assert_int_equal(config.state_heads, 32);
    assert_int_equal(config.shared_ff, 512);
    assert_true(config.attn_gate && config.shared_gate && config.norm_topk);
    read_ok(
        MODEL("qwen3_next",
              ", \"head_dim\": null, \"linear_num_value_heads\": 48, \"linear_num_key_heads\": 8, "
              "\"linear_key_head_dim\": 24, \"linear_value_head_dim\": 40, "
              "\"linear_conv_kernel_dim\": 3, \"layer_types\": [\"full_attention\", "
              "\"linear_attention\", \"full_attention\", \"linear_attention\"]"));
    assert_layers_have(config, recurrent, "0101");
    assert_int_equal(config.rope_dim, 4);
    assert_int_equal(moe_config_state_channels(&config), 2 * 8 * 24 + 48 * 40);
    assert_int_equal(config.conv_width, 3);

    read_ok(
        "{\"model_type\": \"qwen3_5_moe\", \"tie_word_embeddings\": true, \"text_config\": " MODEL(
            "qwen3_5_moe_text",
            ", \"num_experts\": 9, \"attn_output_gate\": true, "
            "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1e7, "
            "\"partial_rotary_factor\": 0.25, \"mrope_section\": [11, 11, 10]}") "}");
    assert_layers("MMMM", "----");
    assert_layers_have(config, recurrent, "1110");
    assert_int_equal(config.n_experts, 9);
    assert_int_equal(config.rope_dim, 64);
    assert_true(config.tied_head && config.norm_topk && config.rope_theta == 1e7);

    /* As Qwen3-Coder's checkpoints write it. */
    read_ok(MODEL("qwen3_moe",
                  ", \"num_key_value_heads\": 2, \"head_dim\": 24, \"num_experts\": 8, "
                  "\"num_experts_per_tok\": 3, \"moe_intermediate_size\": 32, "
                  "\"norm_topk_prob\": true, \"decoder_sparse_step\": 1, "
                  "\"mlp_only_layers\": [], \"qkv_bias\": false, "
                  "\"shared_expert_intermediate_size\": 0, \"use_qk_norm\": true, "
                  "\"use_sliding_window\": false, \"sliding_window\": null, "
                  "\"max_window_layers\": 28, \"rope_theta\": 10000000"));
    assert_layers("MMMM", "----");
    assert_int_equal(config.shared_ff, 0);
    assert_true(config.norm_topk && !config.qkv_bias && config.rope_theta == 1e7);

    read_ok("{\"model_type\": \"qwen3_vl_moe\", \"tie_word_embeddings\": false, "
            "\"eos_token_id\": [7, 8], \"text_config\": " MODEL(
                "qwen3_vl_moe_text",
                ", \"num_key_value_heads\": 2, \"num_experts\": 9, \"head_dim\": 24, "
                "\"eos_token_id\": 9, "
                "\"norm_topk_prob\": true, "
                "\"rope_theta\": 5000000, \"rope_scaling\": {\"mrope_interleaved\": true, "
                "\"mrope_section\": [4, 4, 4], \"rope_type\": \"default\"}") "}");
    assert_layers("MMMM", "----");
    assert_int_equal(config.n_experts, 9);
    assert_int_equal(config.rope_dim, 24);
    assert_int_equal(config.qk_norm, MOE_QK_NORM_HEAD);
    assert_true(config.norm_topk && !config.tied_head && config.rope_theta == 5e6);
    assert_true(config.n_eos == 3 && config.eos[0] == 7 && config.eos[2] == 9);

    read_ok(MODEL("lfm2_moe", ", \"num_key_value_heads\": 2, \"num_dense_layers\": 1, "
                              "\"conv_L_cache\": 4, \"norm_eps\": 1e-4, "
                              "\"use_expert_bias\": false, \"layer_types\": [\"conv\", "
                              "\"full_attention\", \"conv\", \"conv\"]"));
    assert_layers("dMMM", "----");
    assert_layers_have(config, recurrent, "1011");
    assert_int_equal(moe_config_state_channels(&config), config.hidden);
    assert_int_equal(config.state_kind, MOE_STATE_CONV);
    assert_true(config.conv_width == 4 && config.norm_eps == 1e-4f);
    assert_true(config.norm_topk && config.tied_head && !config.choice_bias);

    read_ok(MODEL("qwen2", ", \"num_key_value_heads\": 2, \"use_sliding_window\": true, "
                           "\"max_window_layers\": 3, \"sliding_window\": 16"));
    assert_layers("dddd", "---w");
    assert_int_equal(config.window, 16);

    read_ok(MODEL("qwen3", ", \"num_key_value_heads\": null, \"use_sliding_window\": false, "
                           "\"sliding_window\": 16, \"attention_bias\": true"));
    assert_layers("dddd", "----");
    assert_int_equal(config.n_kv_heads, 4);
    assert_int_equal(config.head_dim, 128);
    assert_true(config.qkv_bias && config.o_bias);
}

static void llama_mistral_mixtral_olmoe(void **state)
{
    (void)state;
    read_ok(MODEL("llama", ", \"tie_word_embeddings\": true, \"rope_scaling\": "
                           "{\"rope_type\": \"linear\", \"factor\": 2}"));
    assert_layers("dddd", "----");
    assert_true(config.tied_head);
    assert_int_equal(config.n_kv_heads, 4);
    assert_int_equal(config.n_rope_freqs, 8);

    read_ok(MODEL("mistral", ", \"num_key_value_heads\": 2"));
    assert_layers("dddd", "wwww");
    assert_int_equal(config.window, 4096);

    read_ok(MODEL("mixtral", ", \"num_key_value_heads\": 2, \"sliding_window\": null"));
    assert_layers("MMMM", "----");
    assert_int_equal(config.expert_ff, 96);
    assert_int_equal(config.dense_ff, 0);
    assert_int_equal(config.n_experts, 8);
    assert_true(config.norm_topk);
    assert_near(config.rope_theta, 1e6);

    read_ok(MODEL("olmoe", ", \"clip_qkv\": 8.0"));
    assert_int_equal(config.qk_norm, MOE_QK_NORM_FULL);
    assert_int_equal(config.n_experts, 64);
    assert_int_equal(config.top_k, 8);
    assert_near(config.clip_qkv, 8);
    assert_near(config.norm_eps, 1e-5);
    read_ok(MODEL("olmoe", ", \"clip_qkv\": null"));
    assert_true(config.clip_qkv == 0);
}

static void deepseek_families(void **state)
{
    (void)state;
    read_ok(MODEL("deepseek", ", \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, "
                              "\"n_shared_experts\": 2, \"moe_intermediate_size\": 32, "
                              "\"first_k_dense_replace\": 1, \"moe_layer_freq\": 2"));
    assert_layers("ddMd", "----");
    assert_int_equal(config.shared_ff, 64);
    assert_true(!config.shared_gate && !config.norm_topk);

    read_ok(MODEL("deepseek_v2",
                  ", \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"kv_lora_rank\": 48, "
                  "\"q_lora_rank\": null, \"qk_nope_head_dim\": 16, \"qk_rope_head_dim\": 8, "
                  "\"v_head_dim\": 16, \"first_k_dense_replace\": 1, \"n_group\": 4, "
                  "\"topk_group\": 2, \"topk_method\": \"group_limited_greedy\", "
                  "\"routed_scaling_factor\": 16.0, \"moe_intermediate_size\": 32, "
                  "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, \"mscale\": 0.707, "
                  "\"mscale_all_dim\": 0.707, \"original_max_position_embeddings\": 4096}"));
    assert_layers("dMMM", "----");
    assert_int_equal(config.head_dim, 24);
    assert_int_equal(config.rope_dim, 8);
    assert_int_equal(config.value_dim, 16);
    assert_int_equal(config.q_rank, 0);
    assert_int_equal(config.kv_rank, 48);
    assert_int_equal(config.n_groups, 4);
    assert_int_equal(config.top_groups, 2);
    assert_int_equal(config.shared_ff, 64);
    assert_int_equal(config.n_rope_freqs, 4);
    assert_near(config.routed_scale, 16);
    assert_near(config.rope_scale, 1);
    /* yarn_apply_mscale of the public implementation: (0.0707 ln 40 + 1)^2 / sqrt(24). */
    assert_near(config.attn_scale, 1.5896262 / sqrt(24));

    read_ok(
        "{\"model_type\": \"kimi_k25\", \"tie_word_embeddings\": false, \"text_config\": " MODEL(
            "kimi_k2", ", \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"n_group\": 1, "
                       "\"topk_group\": 1, \"first_k_dense_replace\": 1") "}");
    assert_string_equal(config.family, "kimi_k25");
    assert_layers("dMMM", "----");
    assert_true(config.n_groups == 0 && config.q_rank == 1536 && config.choice_bias);

    read_ok(MODEL("deepseek_v2", ", \"num_experts_per_tok\": 2, \"n_group\": 3, "
                                 "\"topk_group\": 1, \"q_lora_rank\": 20"));
    assert_layers("MMMM", "----");
    assert_int_equal(config.n_groups, 0); /* greedy */
    assert_int_equal(config.q_rank, 20);
    assert_int_equal(config.shared_ff, 2 * 1407);
    assert_near(config.attn_scale, 1 / sqrt(192));
}

static void phimoe_minicpm_granite(void **state)
{
    (void)state;
    read_ok(MODEL("phimoe", ", \"num_key_value_heads\": 2, \"lm_head_bias\": true, "
                            "\"attention_bias\": true, \"sliding_window\": 2048"));
    assert_layers("MMMM", "wwww");
    assert_int_equal(config.norm_kind, MOE_NORM_LAYER);
    assert_int_equal(config.router_kind, MOE_ROUTER_SPARSEMIXER);
    assert_int_equal(config.n_experts, 16);
    assert_near(config.router_jitter, 0.01);
    assert_true(config.head_bias && config.qkv_bias && config.o_bias);

    read_ok(MODEL("minicpm", ", \"num_experts\": 8, \"num_experts_per_tok\": 2, "
                             "\"scale_emb\": 12, \"scale_depth\": 1.4, \"dim_model_base\": 16"));
    assert_layers("MMMM", "----");
    assert_near(config.embed_scale, 12);
    assert_near(config.residual_scale, 0.7);
    assert_near(config.logit_scale, 0.25);
    assert_int_equal(config.expert_ff, 96);
    assert_true(config.norm_topk && config.tied_head);
    read_ok(MODEL("minicpm", ", \"tie_word_embeddings\": false"));
    assert_layers("dddd", "----");
    assert_int_equal(config.dense_ff, 96);

    read_ok(MODEL("granitemoe", ", \"embedding_multiplier\": 12.0, \"logits_scaling\": 8.0, "
                                "\"residual_multiplier\": 0.22, \"attention_multiplier\": 0.0625"));
    assert_layers("MMMM", "----");
    assert_int_equal(config.router_kind, MOE_ROUTER_TOPK_SOFTMAX);
    assert_near(config.embed_scale, 12);
    assert_near(config.residual_scale, 0.22);
    assert_near(config.logit_scale, 0.125);
    assert_near(config.attn_scale, 0.0625);
    read_ok(MODEL("granitemoeshared", ", \"shared_intermediate_size\": 40"));
    assert_int_equal(config.shared_ff, 40);
    assert_near(config.attn_scale, 1);

    /* As published, and as newer writers put it. */
    read_ok(MODEL("granitemoehybrid",
                  ", \"mamba_n_heads\": 16, \"mamba_d_head\": 8, \"position_embedding_type\": "
                  "\"nope\", \"rope_theta\": 10000, \"layer_types\": [\"mamba\", \"attention\", "
                  "\"mamba\", \"mamba\"]"));
    assert_layers("MMMM", "----");
    assert_layers_have(config, recurrent, "1011");
    assert_int_equal(config.state_kind, MOE_STATE_SCAN);
    assert_int_equal(config.positions, MOE_POSITIONS_NONE);
    assert_int_equal(config.rope_dim, 0);
    assert_int_equal(moe_config_state_channels(&config), 2 * 256 + 128);
    assert_true(config.conv_bias && config.shared_ff == 1024);
    read_ok(MODEL("granitemoehybrid",
                  ", \"num_local_experts\": 0, \"mamba_n_heads\": 4, \"mamba_n_groups\": 2, "
                  "\"mamba_d_head\": \"auto\", \"mamba_expand\": 3, \"mamba_conv_bias\": false, "
                  "\"time_step_limit\": [0.0, {\"__float__\": \"Infinity\"}], "
                  "\"position_embedding_type\": \"rope\", \"layer_types\": [\"linear_attention\", "
                  "\"full_attention\", \"full_attention\", \"full_attention\"]"));
    assert_layers("dddd", "----");
    assert_int_equal(config.state_value_dim, 48);
    assert_int_equal(config.dense_ff, 1024);
    assert_int_equal(config.rope_dim, 16);
    assert_true(!config.conv_bias && config.n_experts == 0 && config.rope_theta == 1e4);

    read_ok(
        MODEL("kimi_linear",
              ", \"head_dim\": 72, \"num_experts\": 8, \"num_experts_per_token\": 3, "
              "\"num_shared_experts\": 2, \"moe_renormalize\": true, \"model_max_length\": 512, "
              "\"linear_attn_config\": {\"full_attn_layers\": [4], \"kda_layers\": [1, 2, 3], "
              "\"head_dim\": 24, \"num_heads\": 3, \"short_conv_kernel_size\": 3}"));
    assert_layers("dMMM", "----");
    assert_layers_have(config, recurrent, "1110");
    assert_int_equal(config.state_kind, MOE_STATE_KDA);
    assert_int_equal(moe_config_state_channels(&config), 3 * 3 * 24);
    assert_int_equal(config.positions, MOE_POSITIONS_NONE);
    assert_int_equal(config.head_dim, 128 + 64);
    assert_int_equal(config.shared_ff, 2 * 1024);
    assert_int_equal(config.top_k, 3);
    assert_int_equal(config.conv_width, 3);
    assert_true(config.rope_dim == 64 && config.kv_rank == 512 && config.context_max == 512);
    assert_true(config.norm_topk && config.choice_bias && config.n_groups == 0);
    read_ok(MODEL("kimi_linear",
                  ", \"n_shared_experts\": 1, \"layer_types\": [\"full_attention\", "
                  "\"linear_attention\", \"full_attention\", \"full_attention\"], "
                  "\"mlp_layer_types\": [\"sparse\", \"dense\", \"sparse\", \"sparse\"], "
                  "\"linear_num_heads\": 5, \"linear_head_dim\": 12"));
    assert_layers("MdMM", "----");
    assert_layers_have(config, recurrent, "0100");
    assert_int_equal(config.state_heads, 5);
    assert_near(config.routed_scale, 2.446);

    read_ok(MODEL("jamba", ", \"num_key_value_heads\": 2, \"attn_layer_period\": 4, "
                           "\"attn_layer_offset\": 1, \"mamba_dt_rank\": \"auto\""));
    assert_layers("dMdM", "----");
    assert_layers_have(config, recurrent, "1011");
    assert_int_equal(config.state_kind, MOE_STATE_SELECT);
    assert_int_equal(config.state_step_rank, 4);
    assert_int_equal(moe_config_state_channels(&config), 128);
    assert_int_equal(config.dense_ff, 96);
    assert_int_equal(config.expert_ff, 96);
    assert_true(config.n_experts == 16 && !config.norm_topk && config.rope_dim == 0);
    read_ok(MODEL("jamba", ", \"num_key_value_heads\": 2, \"num_experts\": 1, "
                           "\"attn_layer_offset\": 0, \"mamba_dt_rank\": 9"));
    assert_layers("dddd", "----");
    assert_int_equal(config.state_step_rank, 9);

    read_ok(MODEL("afmoe",
                  ", \"num_experts\": 8, \"num_experts_per_tok\": 2, \"mup_enabled\": true, "
                  "\"head_dim\": 24, \"num_shared_experts\": 1"));
    assert_layers("dMMM", "www-");
    assert_true(config.rope_in_windows && config.attn_gate && config.choice_bias);
    assert_int_equal(config.norm_place, MOE_NORM_BOTH);
    assert_true(config.shared_ff == 1408 && config.dense_ff == 96 && config.window == 1024);
    assert_near(config.embed_scale, 8);
    assert_near(config.norm_eps, 1e-5);
    read_ok(MODEL("llama4", ", \"intermediate_size_mlp\": 50, \"head_dim\": 24, "
                            "\"attn_temperature_tuning\": 4, \"interleave_moe_layer_step\": 2"));
    assert_layers("dMdM", "www-");
    assert_true(config.weigh_inputs && config.window_chunks && config.rope_in_windows);
    assert_int_equal(config.qk_norm, MOE_QK_NORM_BARE);
    assert_true(config.expert_ff == 96 && config.shared_ff == 96 && config.dense_ff == 50);
    assert_true(config.window == 8192 && config.query_step == 8192);
    assert_near(config.query_scale, 0.1);
    read_ok(MODEL("llama4_text",
                  ", \"no_rope_layers\": [0, 1, 1, 1], \"moe_layers\": [0], \"head_dim\": 24, "
                  "\"attention_chunk_size\": null, \"attn_temperature_tuning\": false, "
                  "\"use_qk_norm\": false"));
    assert_layers("Mddd", "-www");
    assert_true(config.window == config.context_max && config.query_step == 0);
    assert_int_equal(config.qk_norm, MOE_QK_NORM_NONE);
    read_ok(MODEL("llama4_text", ", \"no_rope_layers\": [0, 0, 0, 0], \"head_dim\": 24"));
    assert_layers("MMMM", "----"); /* none rotates */
    assert_true(config.rope_in_windows && !config.window_chunks && config.window == 0);

#define EXAONE ", \"num_experts\": 8, \"num_experts_per_tok\": 2, \"head_dim\": 24"
    read_ok(MODEL("exaone_moe", EXAONE ", \"sliding_window_pattern\": \"LLGL\""));
    assert_layers("dMMM", "ww--");
    assert_true(config.rope_in_windows && config.choice_bias && config.shared_ff == 1024);
    read_ok(MODEL("exaone_moe", EXAONE ", \"is_moe_layer\": [true, false, true, false]"));
    assert_layers("MdMd", "www-");
    read_ok(MODEL("exaone_moe", EXAONE ", \"sliding_window\": null, \"num_shared_experts\": 2"));
    assert_layers("dMMM", "----");
    assert_true(!config.rope_in_windows && config.shared_ff == 2048);

#define LING ", \"architectures\": [\"BailingMoeV2ForCausalLM\"], \"head_dim\": 24"
    read_ok(MODEL("bailing_moe", LING));
    assert_layers("dMMM", "----");
    assert_true(config.n_experts == 256 && config.top_k == 8 && config.shared_ff == 512);
    assert_true(config.n_groups == 8 && config.top_groups == 4 && config.norm_topk);
    assert_true(config.rope_dim == 12 && config.choice_bias);
    assert_int_equal(config.qk_norm, MOE_QK_NORM_HEAD);

    read_ok(MODEL("hy_v3", ", \"num_key_value_heads\": 2, \"num_shared_experts\": 2"));
    assert_layers("dMMM", "----");
    assert_true(config.n_experts == 192 && config.shared_ff == 3072 && config.norm_topk);
    assert_true(config.choice_bias && config.n_groups == 0 && !config.qkv_bias);
    assert_int_equal(config.qk_norm, MOE_QK_NORM_HEAD);

    read_ok(MODEL("cohere2_moe", ", \"first_k_dense_replace\": 1, \"num_shared_experts\": 2, "
                                 "\"sliding_window_pattern\": 2"));
    assert_layers("dMMM", "-w-w");
    assert_true(config.parallel_blocks && config.router_early && config.rope_in_dense);
    assert_true(config.shared_ff == 192 && config.moe_scale == 0.5f && config.dense_ff == 96);
    assert_true(config.router_kind == MOE_ROUTER_TOPK_SOFTMAX && config.tied_head);
    assert_true(config.logit_scale == 0.0625f && config.norm_kind == MOE_NORM_CENTRED);
    assert_near(config.norm_eps, 1e-5);
    read_ok(MODEL("cohere2_moe", ", \"rms_norm_eps\": 1e-6, \"expert_selection_fn\": \"sigmoid\", "
                                 "\"prefix_dense_sliding_window_pattern\": 3, "
                                 "\"first_k_dense_replace\": 3"));
    assert_layers("dddM", "ww-w");
    assert_true(!config.rope_in_dense && config.moe_scale == 1 && config.norm_topk);
    assert_true(config.norm_kind == MOE_NORM_RMS && config.router_kind == MOE_ROUTER_SIGMOID);

    read_ok(MODEL("minimax_m3_vl_text",
                  ", \"hidden_act\": \"swigluoai\", \"moe_layer_freq\": [0, 1, 1, 1], "
                  "\"num_key_value_heads\": 2, \"rotary_dim\": 16, "
                  "\"sparse_attention_config\": {\"sparse_topk_blocks\": 4, "
                  "\"sparse_attention_freq\": [0, 1, 1, 1], \"sparse_num_index_heads\": 2, "
                  "\"sparse_block_size\": 32}, \"index_topk_blocks\": 2"));
    assert_layers("dMMM", "----");
    assert_true(config.index_top == 128 && config.dense_ff == 12288 && config.shared_ff == 3072);
    assert_true(config.index_block == 32 && config.index_local == 1 && config.context_max > 2048);
    assert_int_equal(config.dense_act, MOE_ACT_SWIGLU_CLAMPED);
    read_ok(MODEL("minimax_m3_vl_text",
                  ", \"layer_types\": [\"full_attention\", \"full_attention\", "
                  "\"full_attention\", \"full_attention\"]"));
    assert_layers("MMMM", "----");
    assert_true(config.context_max > 2048);

#define LOOPED                                                                                     \
    "\"num_key_value_heads\": 2, \"n_layers_per_attn_res_block\": 2, "                             \
    "\"loop_layer_index_start\": "
    read_ok(MODEL("inkling2_loop_text", ", " LOOPED "2, \"loop_layer_index_end\": 4"));
    assert_layers("MMMMMMMM", "wwwwwwww");
    assert_true(config.loop.begin == 2 && config.loop.n == 2 && config.loop.passes == 3);
    assert_true(config.loop_rank == 64 && config.n_streams == 3);
    assert_int_equal(moe_config_stored_layer(&config, 7), 3);
    read_ok(MODEL("inkling2_loop_text",
                  ", " LOOPED "9, \"loop_config\": {\"core_start\": 2, \"core_end\": 4, "
                  "\"num_passes\": 2, \"gate_rank\": 5}"));
    assert_layers("MMMMMM", "wwwwww");
    assert_int_equal(config.loop_rank, 5);
    read_ok(MODEL("inkling2_loop_text",
                  ", " LOOPED "2, \"loop_layer_index_end\": 4, \"loop_num_passes\": 1"));
    assert_true(config.n_layers == 4 && config.loop.n == 0 && config.loop_rank == 0);
    read_ok(MODEL("inkling_text", ", \"num_key_value_heads\": 2, \"embedding_multiplier\": 8"));
    assert_near(config.logit_scale, 0.125);
    read_ok(
        MODEL("inkling_text", ", \"num_key_value_heads\": 2, \"logits_mup_width_multiplier\": 4"));
    assert_near(config.logit_scale, 0.25);

#define SMALLTHINKER ", \"head_dim\": 24, \"rope_layout\": "
    read_ok(MODEL("smallthinker", SMALLTHINKER "[0, 1, 1, 1], "
                                               "\"sliding_window_layout\": [0, 1, 1, 1]"));
    assert_layers("MMMM", "-www");
    assert_true(config.n_experts == 32 && config.top_k == 4 && config.expert_ff == 768);
    assert_true(config.router_early && config.rope_in_windows && config.window == 4096);
    assert_true(config.router_kind == MOE_ROUTER_SIGMOID && config.norm_topk && config.tied_head);
    assert_int_equal(config.expert_act, MOE_ACT_REGLU);
    read_ok(MODEL("smallthinker", SMALLTHINKER "[1, 1, 1, 1], \"sliding_window_size\": 9, "
                                               "\"sliding_window_layout\": [0, 1, 0, 1]"));
    assert_layers("MMMM", "-w-w");
    assert_true(!config.rope_in_windows && config.window == 9);
    read_ok(MODEL("smallthinker", SMALLTHINKER "[0, 1, 1, 0], \"sliding_window_layout\": null"));
    assert_layers("MMMM", "-ww-");
    assert_true(config.rope_in_windows && config.window == config.context_max);
    read_ok(MODEL("smallthinker", ", \"moe_primary_router_apply_softmax\": true"));
    assert_layers("MMMM", "----");
    assert_true(!config.rope_in_windows && config.window == 0 && config.head_dim == 128);
    assert_int_equal(config.router_kind, MOE_ROUTER_TOPK_SOFTMAX);

    read_ok(MODEL("solar_open", ", \"num_key_value_heads\": 2, \"attention_bias\": true"));
    assert_layers("MMMM", "----");
    assert_true(config.expert_ff == 1280 && config.shared_ff == 1280 && config.head_dim == 128);
    assert_true(config.qkv_bias && !config.o_bias && config.n_groups == 0);
    assert_int_equal(config.qk_norm, MOE_QK_NORM_NONE);

#define GEMMA "\"hidden_size_per_layer_input\": 0, \"head_dim\": 24, \"global_head_dim\": 40"
    read_ok(MODEL("gemma4",
                  ", \"enable_moe_block\": true, \"num_experts\": 8, \"top_k_experts\": 2, "
                  "\"moe_intermediate_size\": 32, \"num_key_value_heads\": 2, "
                  "\"num_global_key_value_heads\": 1, \"attention_k_eq_v\": true, "
                  "\"final_logit_softcapping\": 30.0, " GEMMA));
    assert_layers("MMMM", "www-");
    assert_int_equal(config.norm_place, MOE_NORM_BOTH);
    assert_int_equal(config.dense_act, MOE_ACT_GEGLU);
    assert_true(config.own_norms && config.expert_scale && config.layer_scale);
    assert_true(config.global_keys_are_values && config.tied_head && config.value_norm);
    assert_int_equal(moe_config_kv_heads(&config, 2), 2);
    assert_int_equal(moe_config_kv_heads(&config, 3), 1);
    assert_int_equal(moe_config_head_dim(&config, 2), 24);
    assert_int_equal(moe_config_head_dim(&config, 3), 40);
    assert_true(config.shared_ff == 96 && config.dense_ff == 0 && config.window == 512);
    assert_near(config.attn_scale, 1);
    assert_near(config.logit_cap, 30);
    assert_near(config.embed_scale, 8);
    assert_near(config.rope_theta, 1e4);
    assert_int_equal(config.n_global_freqs, 20);
    assert_near(config.global_freqs[4], pow(1e6, -4.0 / 20));
    assert_true(config.global_freqs[5] == 0);
    read_ok(MODEL("gemma4_text", ", " GEMMA));
    assert_layers("dddd", "www-");
    assert_true(config.n_experts == 0 && !config.own_norms && config.dense_ff == 96);
    assert_int_equal(moe_config_kv_heads(&config, 3), moe_config_kv_heads(&config, 0));

    read_ok(MODEL("nemotron_h",
                  ", \"hybrid_override_pattern\": \"ME*-M\", \"time_step_limit\": [0.0, 1e30], "
                  "\"num_key_value_heads\": 2"));
    assert_int_equal(config.n_layers, 5);
    assert_layers_have(config, recurrent, "10001");
    assert_layers_have(config, moe, "01000");
    assert_layers_have(config, no_attention, "01010");
    assert_layers_have(config, no_ffn, "10101");
    assert_int_equal(config.router_kind, MOE_ROUTER_SIGMOID);
    assert_int_equal(config.expert_act, MOE_ACT_RELU2);
    assert_int_equal(config.layers[5].attention_index, 1);
    assert_true(config.choice_bias && config.head_dim == 128 && config.rope_dim == 0);
    read_ok(MODEL("nemotron_h", ", \"layers_block_type\": [\"attention\", \"mlp\", \"mamba\"], "
                                "\"hybrid_override_pattern\": \"M\", \"num_key_value_heads\": 2"));
    assert_layers_have(config, no_ffn, "101");
    assert_int_equal(config.n_experts, 0);
}

static void flex_olmo_ernie(void **state)
{
    (void)state;
    struct moe_err err = {0};
    read_ok(MODEL("flex_olmo", ", \"num_experts\": 6, \"num_experts_per_tok\": 3"));
    assert_layers("MMMM", "----");
    assert_int_equal(config.norm_place, MOE_NORM_AFTER);
    assert_int_equal(config.qk_norm, MOE_QK_NORM_FULL);
    assert_int_equal(config.n_experts, 6);
    assert_near(config.rope_theta, 5e5);
    assert_fails(moe_config_check_gpu(&config, "flex", &err), MOE_ERR_UNSUPPORTED, "norms after",
                 &err);

    read_ok(MODEL("ernie4_5_moe", ""));
    assert_layers("dMMM", "----");
    assert_int_equal(config.n_experts, 64);
    assert_int_equal(config.top_k, 6);
    assert_int_equal(config.shared_ff, 2 * 1536);
    assert_int_equal(config.router_kind, MOE_ROUTER_SOFTMAX);
    assert_true(config.choice_bias && config.norm_topk && config.tied_head);
    read_ok(MODEL("beam", ", \"num_key_value_heads\": 2"));
    assert_layers("dddM", "www-");
    assert_int_equal(config.residual, MOE_RESIDUAL_MEAN);
    assert_true(config.gate_bias && config.query_power && config.logit_cap == 30);
    read_ok(MODEL("beam", ", \"num_key_value_heads\": 2, \"final_logit_softcapping\": null"));
    assert_true(config.logit_cap == 0);
    read_ok(MODEL("ernie4_5_vl_moe_text", ", \"moe_intermediate_size\": [96, 40]"));
    assert_layers("dMMM", "----");
    assert_int_equal(config.n_experts, 64);
    assert_int_equal(config.expert_ff, 96);
    assert_int_equal(config.shared_ff, 2 * 96);
    assert_true(config.choice_bias && config.norm_topk && config.tied_head);
    read_ok(MODEL("ernie4_5_moe",
                  ", \"moe_layer_start_index\": 0, \"moe_layer_interval\": 2, "
                  "\"moe_layer_end_index\": 2, \"moe_num_shared_experts\": 0, \"moe_k\": 2"));
    assert_layers("dMdd", "----");
    assert_int_equal(config.shared_ff, 0);
}

static void hunyuan(void **state)
{
    (void)state;
    struct moe_err err = {0};
    read_ok(MODEL("hunyuan_v1_moe",
                  ", \"num_experts\": 8, \"moe_topk\": [3, 3, 3, 3], \"head_dim\": 16, "
                  "\"rope_scaling\": {\"type\": \"dynamic\", \"alpha\": 1000.0, "
                  "\"factor\": 1.0}"));
    assert_layers("MMMM", "----");
    assert_int_equal(config.top_k, 3);
    assert_int_equal(config.shared_ff, config.expert_ff);
    assert_int_equal(config.qk_norm, MOE_QK_NORM_ROTATED);
    assert_near(config.rope_theta, 1e4 * pow(1000, 16.0 / 14));
    assert_fails(moe_config_check_gpu(&config, "hunyuan", &err), MOE_ERR_UNSUPPORTED, "rotation",
                 &err);
}

static void deepseek_v4(void **state)
{
    (void)state;
    struct moe_err err = {0};
    read_ok(MODEL(
        "deepseek_v4",
        ", \"o_groups\": 2, \"compress_ratios\": [0, 128, 4, 4, 0], \"qk_rope_head_dim\": 32, "
        "\"num_hash_layers\": 1, \"num_nextn_predict_layers\": 1, \"rope_scaling\": "
        "{\"type\": \"yarn\", \"factor\": 16, "
        "\"original_max_position_embeddings\": 1024}"));
    assert_layers("MMMM", "wwww");
    assert_layers_have(config, compression, "01220");
    assert_layers_have(config, static_routing, "1000");
    assert_int_equal(config.head_dim, 512);
    assert_int_equal(config.n_kv_heads, 1);
    assert_int_equal(config.window, 128);
    assert_int_equal(config.all_ratio, 128);
    assert_int_equal(config.chosen_ratio, 4);
    assert_int_equal(config.index_heads, 64);
    assert_int_equal(config.n_streams, 4);
    assert_int_equal(config.shared_ff, 2048);
    assert_int_equal(config.router_kind, MOE_ROUTER_SOFTPLUS);
    assert_int_equal(config.n_global_freqs, 16);
    assert_near(config.rope_theta, 1e4);
    assert_near(config.global_freqs[1], pow(160000, -1.0 / 16)); /* the ramp begins behind it, */
    assert_near(config.global_freqs[15], pow(160000, -15.0 / 16) / 16); /* and ends before this */
    assert_true(config.n_rope_freqs == 0 && config.rope_scale == 1 && config.attn_sinks);
    assert_fails(moe_config_check_gpu(&config, "v4", &err), MOE_ERR_UNSUPPORTED,
                 "a GPU does not compute", &err);

    read_ok(
        MODEL("deepseek_v4",
              ", \"o_groups\": 2, \"layer_types\": [\"sliding_attention\", \"sliding_attention\", "
              "\"compressed_sparse_attention\", \"sliding_attention\"], "
              "\"compress_rates\": {\"compressed_sparse_attention\": 6}, "
              "\"mlp_layer_types\": [\"moe\", \"moe\", \"moe\", \"moe\"], "
              "\"rope_parameters\": {\"main\": {\"rope_type\": \"default\", \"rope_theta\": "
              "5e4}, \"compress\": {\"rope_type\": \"default\", \"rope_theta\": 7e4, "
              "\"partial_rotary_factor\": 0.25}}"));
    assert_layers_have(config, compression, "0020");
    assert_int_equal(config.chosen_ratio, 6);
    assert_int_equal(config.all_ratio, 0);
    assert_int_equal(config.rope_dim, 128);
    assert_near(config.rope_theta, 5e4);
    assert_near(config.global_freqs[1], pow(7e4, -1.0 / 64));
    assert_true(!config.static_weighed && !moe_config_has_static(&config, 0, 4));

    read_ok(MODEL("deepseek_v4", ", \"o_groups\": 2")); /* all that is not said */
    assert_layers_have(config, compression, "1112");
    assert_layers_have(config, static_routing, "1110");
    assert_int_equal(config.rope_dim, 64);
}

static void gpt_oss(void **state)
{
    (void)state;
    read_ok(MODEL("gpt_oss", ", \"num_key_value_heads\": 2, \"num_local_experts\": 8, "
                             "\"sliding_window\": 16, \"head_dim\": 16"));
    assert_layers("MMMM", "w-w-");
    assert_true(config.qkv_bias && config.o_bias && config.router_bias && config.expert_bias);
    assert_true(config.attn_sinks);
    assert_int_equal(config.window, 16);
    assert_int_equal(config.expert_act, MOE_ACT_SWIGLU_CLAMPED);
    assert_int_equal(config.router_kind, MOE_ROUTER_TOPK_SOFTMAX);
    assert_near(config.act_alpha, 1.702);
    assert_near(config.act_limit, 7);
    assert_near(config.rope_theta, 150000);
    assert_near(config.rope_scale, 1.3465735902799727); /* YaRN by 32 is the default */
    read_ok(MODEL("gpt_oss", ", \"num_key_value_heads\": 2, \"layer_types\": [\"full_attention\", "
                             "\"full_attention\", \"sliding_attention\", \"full_attention\"]"));
    assert_layers("MMMM", "--w-");
    assert_int_equal(config.window, 128);
}

/* 4 layers of the encoder and 3 of the decoder, as SwitchTransformersConfig writes it. */
#define SWITCH_OF(layers, ...)                                                                     \
    "{\"model_type\": \"switch_transformers\", \"vocab_size\": 100, \"num_heads\": 4, "            \
    "\"d_ff\": 96, " layers __VA_ARGS__ "}"
#define SWITCH(...)                                                                                \
    SWITCH_OF("\"num_layers\": 4, \"num_decoder_layers\": 3, \"d_model\": 64", __VA_ARGS__)
#define SWITCH_LAYERS(...) SWITCH_OF("\"d_model\": 64, ", __VA_ARGS__)

#define NLLB(...)                                                                                  \
    "{\"model_type\": \"nllb-moe\", \"vocab_size\": 100, \"d_model\": 64, "                        \
    "\"encoder_attention_heads\": 16, \"encoder_ffn_dim\": 96, \"encoder_layers\": "               \
    "4, " __VA_ARGS__ "}"

static void nllb_moe(void **state)
{
    (void)state;
    read_ok(NLLB("\"decoder_layers\": 3, \"decoder_ffn_dim\": 96, \"encoder_sparse_step\": 2, "
                 "\"decoder_sparse_step\": 1, \"num_experts\": 8, \"moe_token_dropout\": 0.25, "
                 "\"pad_token_id\": 4, \"decoder_start_token_id\": 7, \"router_bias\": true, "
                 "\"scale_embedding\": false, \"eos_token_id\": 2, "
                 "\"max_position_embeddings\": 300, \"moe_eval_capacity_token_fraction\": 1.0, "
                 "\"second_expert_policy\": \"all\""));
    assert_layers("dMdMMMM", "-------");
    assert_int_equal(config.n_encoder, 4);
    assert_int_equal(config.positions, MOE_POSITIONS_SINUSOIDS);
    assert_int_equal(config.first_position, 5);
    assert_int_equal(config.norm_kind, MOE_NORM_LAYER);
    assert_int_equal(config.decoder_start, 7);
    assert_int_equal(config.context_max, 300);
    assert_int_equal(config.top_k, 2);
    assert_int_equal(config.expert_ff, 96);
    assert_true(config.qkv_bias && config.o_bias && config.dense_bias && config.expert_bias);
    assert_true(config.router_bias && config.norm_topk && config.tied_head);
    assert_near(config.routed_scale, 0.75);
    assert_near(config.embed_scale, 1);
    assert_near(config.norm_eps, 1e-5);
    assert_int_equal(config.answer_start, 0);
    read_ok(NLLB("\"decoder_layers\": 8, \"decoder_ffn_dim\": 96, \"forced_bos_token_id\": 5"));
    assert_int_equal(config.answer_start, 5);
    read_ok(NLLB("\"decoder_layers\": 8, \"decoder_ffn_dim\": 96, \"forced_bos_token_id\": null"));
    assert_int_equal(config.answer_start, 0);

    /* The class's defaults. */
    read_ok(NLLB("\"decoder_layers\": 8, \"decoder_ffn_dim\": 96"));
    assert_layers("dddMdddMdddM", "------------");
    assert_int_equal(config.n_experts, 128);
    assert_int_equal(config.first_position, 2);
    assert_int_equal(config.decoder_start, 2);
    assert_int_equal(config.context_max, 1024);
    assert_true(!config.router_bias);
    assert_near(config.routed_scale, 0.8);
    assert_near(config.embed_scale, 8);
}

static void switch_transformers(void **state)
{
    (void)state;
    read_ok(SWITCH(", \"d_kv\": 8, \"num_experts\": 16, \"expert_capacity\": 20, "
                   "\"encoder_sparse_step\": 2, \"decoder_sparse_step\": 1, "
                   "\"num_sparse_encoder_layers\": 1, \"num_sparse_decoder_layers\": 1, "
                   "\"relative_attention_num_buckets\": 16, "
                   "\"relative_attention_max_distance\": 40, \"router_bias\": true, "
                   "\"router_ignore_padding_tokens\": true, \"layer_norm_epsilon\": 1e-5, "
                   "\"decoder_start_token_id\": 7, \"pad_token_id\": 3, \"eos_token_id\": 1, "
                   "\"is_gated_act\": false, \"feed_forward_proj\": \"relu\", "
                   "\"tie_word_embeddings\": false, \"n_positions\": 300, "
                   "\"router_dtype\": \"float32\", \"router_jitter_noise\": 0.01"));
    assert_layers("dMdMMMM", "-------");
    assert_int_equal(config.n_encoder, 4);
    assert_true(moe_config_in_encoder(&config, 3) && !moe_config_in_encoder(&config, 4));
    assert_int_equal(config.positions, MOE_POSITIONS_BUCKETS);
    assert_int_equal(config.n_buckets, 16);
    assert_int_equal(config.bucket_distance, 40);
    assert_int_equal(config.dense_act, MOE_ACT_RELU);
    assert_int_equal(config.expert_act, MOE_ACT_RELU);
    assert_int_equal(config.router_kind, MOE_ROUTER_SOFTMAX);
    assert_int_equal(config.n_experts, 16);
    assert_int_equal(config.top_k, 1);
    assert_int_equal(config.expert_capacity, 20);
    assert_int_equal(config.expert_ff, 96);
    assert_int_equal(config.dense_ff, 96);
    assert_int_equal(config.head_dim, 8);
    assert_int_equal(config.n_kv_heads, 4);
    assert_int_equal(config.rope_dim, 0);
    assert_int_equal(config.context_max, 300);
    assert_int_equal(config.decoder_start, 7);
    assert_int_equal(config.n_eos, 1);
    assert_int_equal(config.eos[0], 1);
    assert_true(config.router_bias && !config.norm_topk && !config.tied_head && !config.qkv_bias);
    assert_near(config.norm_eps, 1e-5);
    assert_near(config.attn_scale, 1);
    assert_near(config.logit_scale, 1);

    /* The class's defaults. Without steps they follow from the numbers of layers with experts;
     * "none of 4" gives one, as the class computes it. */
    read_ok(SWITCH(", \"num_sparse_encoder_layers\": 0, \"pad_token_id\": 3, "
                   "\"decoder_start_token_id\": null"));
    assert_layers("dMddMMM", "-------");
    assert_int_equal(config.n_experts, 8);
    assert_int_equal(config.expert_capacity, 64);
    assert_int_equal(config.head_dim, 64);
    assert_int_equal(config.n_buckets, 32);
    assert_int_equal(config.bucket_distance, 128);
    assert_int_equal(config.context_max, 512);
    assert_int_equal(config.decoder_start, 3);
    assert_near(config.norm_eps, 1e-6);
    assert_true(config.tied_head && !config.router_bias);
    assert_near(config.logit_scale, 1.0 / 8);

    read_ok(SWITCH_LAYERS(
        "\"num_layers\": 4, \"num_decoder_layers\": null, \"num_sparse_encoder_layers\": 2, "
        "\"num_sparse_decoder_layers\": 5"));
    assert_layers("dMdMdddd", "--------");
    assert_int_equal(config.decoder_start, 0);
    read_ok(
        SWITCH_LAYERS("\"num_layers\": 4, \"num_decoder_layers\": 6, \"encoder_sparse_step\": 0, "
                      "\"decoder_sparse_step\": 3"));
    assert_layers("dddddMddMd", "----------");
}

/* As GPTSanJapaneseConfig writes it. */
#define GPTSAN(...)                                                                                \
    "{\"model_type\": \"gptsan-japanese\", \"vocab_size\": 100, \"d_model\": 64, \"num_heads\": "  \
    "4, "                                                                                          \
    "\"d_ff\": 96" __VA_ARGS__ "}"

static void gptsan(void **state)
{
    (void)state;
    read_ok(GPTSAN(", \"num_switch_layers\": 3, \"num_ext_layers\": 2, \"d_ext\": 80, "
                   "\"d_spout\": 16, \"num_experts\": 8, \"expert_capacity\": 12, "
                   "\"max_position_embeddings\": 200, \"layer_norm_epsilon\": 1e-6, "
                   "\"router_bias\": true, \"eos_token_id\": 99, \"separator_token_id\": 98, "
                   "\"num_layers\": 5, \"router_dtype\": \"float32\""));
    assert_layers("MMMdd", "-----");
    assert_int_equal(config.n_encoder, 0);
    assert_int_equal(config.positions, MOE_POSITIONS_LEARNT);
    assert_int_equal(config.extra_positions, 3);
    assert_int_equal(config.norm_kind, MOE_NORM_LAYER);
    assert_int_equal(config.norm_place, MOE_NORM_AFTER);
    assert_int_equal(config.dense_act, MOE_ACT_SILU);
    assert_int_equal(config.expert_act, MOE_ACT_RELU);
    assert_int_equal(config.n_experts, 8);
    assert_int_equal(config.top_k, 1);
    assert_int_equal(config.expert_capacity, 12);
    assert_int_equal(config.expert_ff, 96);
    assert_int_equal(config.dense_ff, 80);
    assert_int_equal(config.head_dim, 16);
    assert_int_equal(config.context_max, 200);
    assert_int_equal(config.eos[0], 99);
    assert_true(config.prefix_lm && config.last_projection && config.tied_head);
    assert_true(config.head_bias && config.dense_bias && config.overflow_passes);
    assert_true(config.soft_bypass && config.router_bias);
    assert_true(!config.qkv_bias && !config.o_bias && !config.expert_bias && !config.norm_topk);
    assert_near(config.norm_eps, 1e-6);
    assert_near(config.attn_scale, 0.25);
    assert_near(config.logit_scale, 1);

    read_ok("{\"model_type\": \"gptsan_japanese\", \"vocab_size\": 100, \"d_model\": 64, "
            "\"num_heads\": 4, \"d_ff\": 96, \"num_switch_layers\": 1}");
    assert_string_equal(config.family, "gptsan-japanese");
    read_ok(GPTSAN(", \"num_switch_layers\": 2"));
    assert_layers("MM", "--");
    assert_int_equal(config.n_experts, 16);
    assert_int_equal(config.expert_capacity, 128);
    assert_int_equal(config.context_max, 1280);
    assert_int_equal(config.extra_positions, 0);
    assert_int_equal(config.dense_ff, 0);
    assert_false(config.dense_bias);
    assert_near(config.norm_eps, 1e-5);
}

/* As the public configuration classes have it. */
static void contexts_are_the_families_own_where_none_is_said(void **state)
{
    (void)state;
    static const struct {
        const char *type, *more;
        uint32_t context;
    } cases[] = {
        {"qwen2_moe",
         ", \"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 32, "
         "\"shared_expert_intermediate_size\": 48, \"num_key_value_heads\": 2",
         32768},
        {"qwen3_moe", "", 32768},
        {"mixtral", ", \"num_key_value_heads\": 2", 131072},
        {"olmoe", "", 4096},
        {"deepseek", "", 2048},
        {"phimoe", ", \"num_key_value_heads\": 2", 131072},
        {"minicpm", "", 2048},
        {"granitemoe", "", 2048},
        {"gpt_oss", ", \"num_key_value_heads\": 2", 131072},
        {"llama", "", 2048},
        {"mistral", ", \"num_key_value_heads\": 2", 131072},
        {"qwen2", ", \"num_key_value_heads\": 2", 32768},
        {"qwen3", ", \"num_key_value_heads\": 2", 32768},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        char text[600];
        snprintf(text, sizeof text,
                 "{\"model_type\": \"%s\", \"num_hidden_layers\": 4, \"hidden_size\": 64, "
                 "\"vocab_size\": 100, \"num_attention_heads\": 4, \"intermediate_size\": 96, "
                 "\"hidden_act\": \"swish\"%s}",
                 cases[i].type, cases[i].more);
        read_ok(text);
        assert_int_equal(config.context_max, cases[i].context);
    }
}

static void what_is_not_computed_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int status;
        const char *words;
    } cases[] = {
#define REFUSED(type, members, words) {MODEL(type, ", " members), MOE_ERR_UNSUPPORTED, words}
#define WRONG(type, members, words)                                                                \
    {                                                                                              \
        MODEL(type, ", " members), MOE_ERR_FORMAT, words                                           \
    }
        REFUSED("llama", "\"hidden_act\": \"gelu\"", "'hidden_act' is gelu, only silu is"),
        REFUSED("dots3_note_text", "\"per_layer_config\": {\"0\": {\"head_dim\": 8}}",
                "'per_layer_config' of other layers"),
        REFUSED("inkling_text", "\"shared_expert_sink\": false", "'shared_expert_sink' is false"),
        WRONG("inkling_text", "\"local_layer_ids\": 3", "'local_layer_ids' is not a list"),
        WRONG("inkling_text", "\"swa_num_key_value_heads\": 0", "'swa_num_key_value_heads' must"),
        WRONG("glm5_next_text", "\"index_topk\": 100, \"q_lora_rank\": 16", "in pools of 16"),
        REFUSED("glm5_next_text", "\"index_kpool_always_select_tail\": false",
                "'index_kpool_always_select_tail' is false"),
        REFUSED("glm5_next_text",
                "\"layer_types\": [\"full_attention\", \"linear_attention\", "
                "\"full_attention\", \"full_attention\"], "
                "\"index_topk_pattern\": \"FFSF\"",
                "layer 2 shares a choice of positions across"),
        WRONG("inkling_text", "\"d_rel\": 4096, \"rel_extent\": 1048577",
              "the distance that global layers have biases for"),
        REFUSED("llama", "\"architectures\": [\"Gemma4DSparkModel\"]",
                "architecture 'Gemma4DSparkModel' is not implemented: a head that drafts blocks"),
        REFUSED("llama",
                "\"architectures\": [\"Qwen3DSparkModel\"], \"markov_head_type\": \"gated\"",
                "'markov_head_type' is gated, only vanilla is"),
        WRONG("llama", "\"architectures\": [\"DFlashDraftModel\"]",
              "does not say which layers of its model it reads ('target_layer_ids')"),
        WRONG("llama", "\"architectures\": [\"DFlashDraftModel\"], \"target_layer_ids\": [1]",
              "does not say which token is a mask ('mask_token_id')"),
        WRONG("llama",
              "\"architectures\": [\"DFlashDraftModel\"], \"dflash_config\": "
              "{\"target_layer_ids\": [1], \"mask_token_id\": 31, \"block_size\": 1}, "
              "\"num_key_value_heads\": 1",
              "some of 2 to 64 tokens"),
        WRONG("llama",
              "\"architectures\": [\"DFlashDraftModel\"], \"dflash_config\": "
              "{\"target_layer_ids\": [1], \"mask_token_id\": 10000000}, "
              "\"num_key_value_heads\": 1",
              "one of its tokens as a mask"),
        REFUSED("llama",
                "\"architectures\": [\"DFlashDraftModel\"], \"dflash_config\": "
                "{\"target_layer_ids\": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]}",
                "no list of up to 16 layers"),
        REFUSED("llama", "\"architectures\": [\"Eagle3DeepseekV2ForCausalLM\"], \"fc_norm\": true",
                "'fc_norm' is true, only false is"),
        REFUSED("llama", "\"draft_vocab_size\": 32, \"norm_output\": true",
                "'norm_output' is true, only false is"),
        REFUSED("llama", "\"draft_vocab_size\": 32", "implemented as one dense layer"),
        REFUSED("llama", "\"draft_vocab_size\": 32, \"target_hidden_size\": 7",
                "that reads streams of 7 is not implemented"),
        REFUSED("llama", "\"draft_vocab_size\": 32, \"eagle_aux_hidden_state_layer_ids\": [1, 2]",
                "lists 2 layers, expected 3"),
        REFUSED("llama",
                "\"draft_vocab_size\": 32, \"eagle_aux_hidden_state_layer_ids\": [0, 0, 0]",
                "layer 0 three times is not implemented"),
        WRONG("llama",
              "\"draft_vocab_size\": 32, \"eagle_config\": "
              "{\"eagle_aux_hidden_state_layer_ids\": [1, 2, -1]}",
              "'eagle_aux_hidden_state_layer_ids' item 2 is not a layer"),
        WRONG(
            "inkling2_loop_text", LOOPED "6, \"loop_layer_index_end\": 8",
            "layers 6 to 8 are passed through 3 times, expected layers behind the first one of 4"),
        WRONG("inkling2_loop_text", LOOPED "0, \"loop_layer_index_end\": 2", "layers 0 to 2"),
        WRONG("inkling2_loop_text", LOOPED "1, \"loop_layer_index_end\": 4",
              "whole blocks of 2, at least once"),
        WRONG("inkling2_loop_text",
              LOOPED "2, \"loop_config\": {\"core_end\": 4, \"num_passes\": 0}",
              "layers 2 to 4 are passed through 0 times"),
        {MODEL("inkling2_loop_text",
               ", " LOOPED "2, \"loop_layer_index_end\": 4, \"loop_num_passes\": 1000"),
         MOE_ERR_LIMIT, "more than 1024 layers are not implemented"},
        REFUSED("llama", "\"hidden_act\": \"sil\"", "'hidden_act' is sil, only silu is"),
        WRONG("llama", "\"rms_norm_eps\": \"NaN\"", "'rms_norm_eps' is NaN"),
        REFUSED("llama", "\"mlp_bias\": true", "'mlp_bias' is true"),
        WRONG("llama", "\"rope_scaling\": {\"type\": \"dynamic\", \"alpha\": -1}", "'dynamic'"),
        REFUSED("mistral", "\"hidden_act\": \"relu\"", "hidden_act"),
        REFUSED("qwen2",
                "\"layer_types\": [\"full_attention\", \"full_attention\", "
                "\"full_attention\", \"linear_attention\"]",
                "'layer_types' item 3 is 'linear_attention'"),
        WRONG("qwen2", "\"layer_types\": [\"full_attention\"]", "list of 4 layers"),
        WRONG("qwen2",
              "\"layer_types\": [\"full_attention\", \"full_attention\", "
              "\"full_attention\", \"sliding_attention\"], \"num_key_value_heads\": 2",
              "windowed layers need a window"),
        REFUSED("qwen3", "\"rope_scaling\": {\"rope_type\": \"mrope\"}", "'mrope'"),
        REFUSED("qwen2_moe", "\"hidden_act\": \"gelu\"", "hidden_act"),
        WRONG("qwen3_moe", "\"mlp_only_layers\": [4]", "mlp_only_layers"),
        REFUSED("qwen3", "\"rope_parameters\": {\"partial_rotary_factor\": 0.5}",
                "'partial_rotary_factor' 0.5 is not implemented"),
        REFUSED("qwen3_next", "\"attention_bias\": true", "'attention_bias' is true"),
        REFUSED("qwen3_next", "\"full_attention_interval\": 5", "without a layer of attention"),
        REFUSED("qwen3_next",
                "\"layer_types\": [\"full_attention\", \"mamba\", \"full_attention\", "
                "\"full_attention\"]",
                "'layer_types' item 1 is 'mamba'"),
        WRONG("qwen3_next", "\"layer_types\": [\"full_attention\"]", "list of 4 layers"),
        WRONG("qwen3_next", "\"full_attention_interval\": 0", "at least 1"),
        WRONG("qwen3_next", "\"partial_rotary_factor\": 2", "'partial_rotary_factor' 2"),
        WRONG("qwen3_next", "\"linear_num_value_heads\": 33", "33 heads of a state"),
        WRONG("qwen3_next", "\"linear_conv_kernel_dim\": 0", "convolution is 0"),
        REFUSED("qwen3_next", "\"linear_value_head_dim\": 4096", "channels is too wide"),
        WRONG("mixtral", "\"num_experts_per_tok\": 9, \"num_key_value_heads\": 2",
              "experts per token"),
        REFUSED("mixtral", "\"hidden_act\": \"gelu_new\"", "gelu_new"),
        WRONG("olmoe", "\"clip_qkv\": -1", "a limit of -1"),
        WRONG("gpt_oss", "\"swiglu_alpha\": 1e300, \"num_key_value_heads\": 2", "a limit of inf"),
        REFUSED("deepseek", "\"scoring_func\": \"sigmoid\"", "'scoring_func' is sigmoid"),
        WRONG("deepseek", "\"n_routed_experts\": 8, \"moe_layer_freq\": 0", "'moe_layer_freq' 0"),
        REFUSED("deepseek_v2", "\"topk_method\": \"noaux_tc\"", "'topk_method' noaux_tc"),
        REFUSED("deepseek_v2", "\"scoring_func\": \"sigmoid\"", "scoring_func"),
        REFUSED("deepseek_v2", "\"norm_topk_prob\": true", "norm_topk_prob"),
        REFUSED("deepseek_v2", "\"attention_bias\": true", "attention_bias"),
        REFUSED("deepseek_v2", "\"moe_layer_freq\": 2", "'moe_layer_freq' is 2"),
        REFUSED("deepseek_v2", "\"rms_norm_eps\": 1e-05", "'rms_norm_eps' is 1e-05"),
        REFUSED("deepseek_v2", "\"num_key_value_heads\": 2", "num_key_value_heads"),
        WRONG("deepseek_v2", "\"topk_method\": \"group_limited_greedy\"", "'n_group'"),
        WRONG("deepseek_v2", "\"kv_lora_rank\": null", "latent attention with 0 shared"),
        WRONG("deepseek_v2", "\"kv_lora_rank\": 16777216", "too wide"),
        REFUSED("deepseek_v4", "\"scoring_func\": \"sigmoid\"", "'scoring_func' is sigmoid"),
        REFUSED("deepseek_v4", "\"expert_dtype\": \"fp4\"", "'expert_dtype' is fp4"),
        REFUSED("deepseek_v4", "\"o_groups\": 2, \"compress_ratios\": [0, 4, 128, 64]",
                "'compress_ratios' item 3 is not"),
        WRONG("deepseek_v4", "\"o_groups\": 2, \"compress_ratios\": [0, 4]",
              "must be a list of 4 layers"),
        REFUSED("deepseek_v4",
                "\"o_groups\": 2, \"mlp_layer_types\": [\"moe\", \"moe\", \"dense\", \"moe\"]",
                "item 2 is 'dense'"),
        REFUSED("deepseek_v4", "\"o_groups\": 2, \"o_lora_rank\": 24", "outputs of 24 values"),
        WRONG("deepseek_v4", "\"o_groups\": 2, \"num_key_value_heads\": 2", "key/value heads is 2"),
        WRONG("deepseek_v4", "\"o_groups\": 3", "divided into 3 output groups"),
        WRONG("deepseek_v4", "\"o_groups\": 2, \"hc_mult\": 1", "1 streams with an epsilon"),
        WRONG("deepseek_v4", "\"o_groups\": 2, \"index_head_dim\": 32", "indexer's heads is 32"),
        REFUSED("deepseek_v4",
                "\"o_groups\": 2, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, "
                "\"attention_factor\": 1.1}",
                "'attention_factor' of 1.1"),
        REFUSED("phimoe", "\"num_experts_per_tok\": 4, \"num_key_value_heads\": 2",
                "sparsemixer routing is implemented for two"),
        REFUSED("minicpm", "\"rope_scaling\": {\"type\": \"mrope\", \"factor\": 2}", "mrope"),
        REFUSED("minicpm", "\"hidden_act\": \"fatrelu\"", "fatrelu"),
        REFUSED("minicpm", "\"sparse_config\": {\"topk\": 64}", "'sparse_config' is an object"),
        WRONG("granitemoe", "\"logits_scaling\": 0", "'logits_scaling' is 0"),
        WRONG("granitemoeshared", "\"num_local_experts\": 0", "the number of experts is 0"),
        WRONG("granitemoehybrid", "\"layer_types\": [\"mamba\"]", "must be a list of 4 layers"),
#define GRANITE_4(members)                                                                         \
    "\"layer_types\": [\"mamba\", \"mamba\", \"mamba\", \"attention\"], " members
        WRONG("granitemoehybrid", GRANITE_4("\"mamba_d_head\": 64"),
              "128 heads of 64 values are not 2 times the width of 64"),
        WRONG("granitemoehybrid", GRANITE_4("\"mamba_n_heads\": 0"), "heads is 0, expected 1"),
        WRONG("granitemoehybrid", GRANITE_4("\"mamba_n_groups\": 3"), "cannot share 3 key heads"),
        REFUSED("granitemoehybrid", GRANITE_4("\"mamba_proj_bias\": true"), "'mamba_proj_bias'"),
        REFUSED("granitemoehybrid", GRANITE_4("\"position_embedding_type\": \"learned\""),
                "'position_embedding_type' is learned"),
        REFUSED("granitemoehybrid", GRANITE_4("\"time_step_limit\": [0.001, 0.1]"),
                "'time_step_limit' other than 0 to infinity"),
#undef GRANITE_4
#define KIMI(kda, members)                                                                         \
    "\"linear_attn_config\": {\"full_attn_layers\": [4], \"kda_layers\": " kda "}, " members
        WRONG("kimi_linear", KIMI("[1, 2]", "\"x\": 0"), "layer 3 is neither in 'kda_layers'"),
        WRONG("kimi_linear", KIMI("[1, 2, 3, 4]", "\"x\": 0"), "'full_attn_layers' item 0"),
        WRONG("kimi_linear", KIMI("[0]", "\"x\": 0"), "'kda_layers' item 0 is no layer"),
        REFUSED("kimi_linear", KIMI("[1, 2, 3]", "\"mla_use_nope\": false"), "'mla_use_nope'"),
        REFUSED("kimi_linear", KIMI("[1, 2, 3]", "\"num_key_value_heads\": 2"),
                "num_key_value_heads"),
#undef KIMI
        WRONG("jamba", "\"expert_layer_offset\": 2", "experts in 2 of 2"),
        WRONG("jamba", "\"num_key_value_heads\": 2, \"mamba_dt_rank\": 0",
              "rank of its steps is 0"),
        REFUSED("jamba", "\"num_key_value_heads\": 2, \"mamba_d_state\": 300", "up to 256 keys"),
        REFUSED("jamba", "\"mamba_inner_layernorms\": false", "'mamba_inner_layernorms' is false"),
        REFUSED("afmoe", "\"score_func\": \"softmax\"", "'score_func' is softmax"),
        REFUSED("afmoe", "\"n_group\": 2", "'n_group' is 2"),
        WRONG("afmoe", "\"global_attn_every_n_layers\": 0", "'global_attn_every_n_layers' 0"),
        WRONG("llama4", "\"no_rope_layers\": [1, 1]", "'no_rope_layers' must be"),
        WRONG("llama4", "\"no_rope_layers\": [1, 1, 2, 0]", "neither 0 nor 1"),
        WRONG("llama4", "\"moe_layers\": [4]", "'moe_layers' names no layer"),
        WRONG("llama4", "\"interleave_moe_layer_step\": 0", "'interleave_moe_layer_step' 0"),
        REFUSED("llama4",
                "\"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\", "
                "\"full_attention\"]",
                "'layer_types' item 0 is 'full_attention'"),
        REFUSED("exaone_moe", "\"sliding_window_pattern\": \"LX\"", "letters L and G"),
        WRONG("exaone_moe", "\"is_moe_layer\": [true, true]", "'is_moe_layer' must say"),
        WRONG("exaone_moe", "\"is_moe_layer\": [true, true, 1, true]", "'is_moe_layer' must say"),
        REFUSED("bailing_moe", "\"x\": 0", "'architectures' is absent"),
        REFUSED("bailing_moe", "\"architectures\": [\"BailingMoeLinearForCausalLM\"]",
                "Ling and Ring 2.0"),
        REFUSED("bailing_moe", "\"norm_topk_prob\": false", "'norm_topk_prob' is false"),
        REFUSED("hy_v3", "\"route_norm\": false", "'route_norm' is false"),
        REFUSED("hy_v3", "\"moe_router_use_sigmoid\": false", "'moe_router_use_sigmoid' is false"),
        REFUSED("cohere2_moe", "\"expert_selection_fn\": \"topk\"", "'expert_selection_fn' topk"),
        REFUSED("cohere2_moe", "\"use_parallel_block\": false", "'use_parallel_block' is false"),
        REFUSED("cohere2_moe", "\"shared_expert_combination_strategy\": \"max\"",
                "'shared_expert_combination_strategy' max"),
        REFUSED("smallthinker", "\"moe_enable_early_router\": false",
                "'moe_enable_early_router' is false"),
        REFUSED("smallthinker", "\"moe_enable_secondary_experts\": true",
                "'moe_enable_secondary_experts' is true"),
        REFUSED("smallthinker",
                "\"rope_layout\": [1, 1, 0, 1], \"sliding_window_layout\": [0, 1, 0, 1]",
                "layer 0 rotates, 'sliding_window_layout' that it has none"),
        REFUSED("solar_open", "\"first_k_dense_replace\": 1", "'first_k_dense_replace' is 1"),
        REFUSED("mellum", "\"rope_parameters\": {\"sliding_attention\": {\"rope_theta\": 1e4}}",
                "rotary settings that differ by layer"),
        REFUSED("mistral4", "\"n_group\": 2", "'n_group' is 2"),
        WRONG("mistral4",
              "\"rope_parameters\": {\"rope_type\": \"yarn\", \"llama_4_scaling_beta\": 0.1}",
              "'llama_4_scaling_beta' 0.1 with an 'original_max_position_embeddings' of 0"),
        REFUSED("minimax_m3_vl", "\"use_gemma_norm\": false", "'use_gemma_norm' is false"),
        REFUSED("minimax_m3_vl", "\"qk_norm_type\": \"per_layer\"", "'qk_norm_type' is per_layer"),
        WRONG("minimax_m3_vl", "\"moe_layer_freq\": [0, 1]", "must be a list of 4 layers"),
        REFUSED("laguna", "\"gating\": \"none\"", "'gating' is none"),
        REFUSED("laguna", "\"moe_router_logit_softcapping\": 5", "softcapping' is 5"),
        WRONG("laguna", "\"num_attention_heads_per_layer\": [4, 4]", "list of 4 numbers from 1"),
        REFUSED("laguna", "\"num_attention_heads_per_layer\": [4, 8, 8, 8]",
                "'num_attention_heads_per_layer' differs between layer 1 and other global"),
        REFUSED("mimo_v2_flash", "\"swa_head_dim\": 64", "local layers with 4 heads of 64"),
        REFUSED("mimo_v2_flash", "\"add_full_attention_sink_bias\": true",
                "'add_full_attention_sink_bias' is true"),
        WRONG("mimo_v2_flash", "\"hybrid_layer_pattern\": [0, 1]", "must be a list of 4 layers"),
        WRONG("bailing_hybrid", "\"expert_swiglu_limit_list\": [null, 0, -7.0, null]",
              "'expert_swiglu_limit_list' item 2 is neither null nor a limit"),
        WRONG("step3p5", "\"swiglu_limits\": [7, 7]", "'swiglu_limits' must be a list of 4"),
        WRONG("step3p5", "\"moe_layers_enum\": \"1,x\"", "'moe_layers_enum' is '1,x'"),
        REFUSED("step3p5",
                "\"num_key_value_heads\": 2, \"attention_other_setting\": {\"head_dim\": 64}",
                "heads of 64 values beside others of 128"),
        REFUSED("step3p5", "\"norm_expert_weight\": false", "'norm_expert_weight' is false"),
        REFUSED("bailing_hybrid", "\"no_kda_lora\": false", "'no_kda_lora' is false"),
        WRONG("bailing_hybrid", "\"layer_group_size\": 0", "'layer_group_size' must be"),
        REFUSED("cohere", "\"use_qk_norm\": true", "'use_qk_norm' is true"),
        REFUSED("smollm3", "\"use_sliding_window\": true", "'use_sliding_window' is true"),
        WRONG("gemma2", "\"query_pre_attn_scalar\": 0", "'query_pre_attn_scalar' 0"),
        WRONG("gemma3", "\"sliding_window_pattern\": 0", "'sliding_window_pattern' 0"),
        REFUSED("exaone_moe", "\"scoring_func\": \"softmax\"", "'scoring_func' is softmax"),
        REFUSED("gemma4",
                "\"num_experts\": 4, \"enable_moe_block\": true, \"top_k_experts\": 2, "
                "\"moe_intermediate_size\": 16",
                "embeddings by layer"),
        WRONG("gemma4", GEMMA ", \"num_kv_shared_layers\": 2", "layer 3 has no earlier one"),
        REFUSED("gemma4", GEMMA ", \"use_bidirectional_attention\": \"all\"", "is all"),
        REFUSED("gemma4", GEMMA ", \"hidden_activation\": \"silu\"", "'hidden_activation'"),
        REFUSED("gemma4",
                GEMMA ", \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"yarn\"}, "
                      "\"sliding_attention\": {}}",
                "'yarn' of global layers"),
        REFUSED("gemma4", GEMMA ", \"per_layer_config\": {\"0\": {\"head_dim\": 32}}",
                "gives layer 0 other heads"),
        WRONG("nemotron_h", "\"x\": 0", "'hybrid_override_pattern', must name 1 to 1024 layers"),
        REFUSED("nemotron_h", "\"hybrid_override_pattern\": \"M*X\"", "layer 2 is 'X'"),
        REFUSED("nemotron_h", "\"layers_block_type\": [\"mamba\", \"conv\"]", "layer 1 is 'conv'"),
        REFUSED("nemotron_h", "\"hybrid_override_pattern\": \"ME\", \"num_key_value_heads\": 2",
                "without a layer of attention"),
        REFUSED("nemotron_h", "\"hybrid_override_pattern\": \"E-\", \"num_key_value_heads\": 2",
                "without a layer of attention"),
        REFUSED("nemotron_h",
                "\"hybrid_override_pattern\": \"M*E\", \"num_key_value_heads\": 2, "
                "\"moe_latent_size\": 65536",
                "no wider than the stream"),
        REFUSED("nemotron_h", "\"mlp_hidden_act\": \"silu\"", "'mlp_hidden_act' is silu"),
        WRONG("ernie4_5_moe", "\"moe_layer_interval\": 0", "'moe_layer_interval' 0"),
        WRONG("ernie4_5_moe", "\"moe_num_shared_experts\": 4096, \"moe_intermediate_size\": 65536",
              "4096 shared experts"),
        WRONG("ernie4_5_moe", "\"moe_layer_end_index\": -2", "'moe_layer_end_index'"),
        WRONG("ernie4_5_moe", "\"moe_k\": 65", "'moe_k' is 65"),
        WRONG("ernie4_5_vl_moe_text", "\"moe_intermediate_size\": [96]", "a list of two numbers"),
        WRONG("ernie4_5_vl_moe_text", "\"moe_intermediate_size\": 96", "a list of two numbers"),
        WRONG("ernie4_5_vl_moe_text", "\"moe_intermediate_size\": [0, 40]",
              "a list of two numbers"),
        WRONG("hunyuan_v1_moe", "\"moe_topk\": [2, 2]", "'moe_topk' must be a list of 4"),
        WRONG("hunyuan_v1_moe", "\"moe_topk\": [2, 2, \"x\", 2]", "'moe_topk' must be a list"),
        REFUSED("hunyuan_v1_moe", "\"moe_topk\": [2, 2, 1, 2]", "'moe_topk' differs by layer"),
        REFUSED("hunyuan_v1_moe", "\"num_shared_expert\": 2", "2 shared experts"),
        REFUSED("hunyuan_v1_moe", "\"use_cla\": true", "'use_cla' is true"),
        REFUSED("hunyuan", "\"architectures\": [\"HunYuanForCausalLM\"]", "Hunyuan-A13B"),
        REFUSED("hunyuan", "\"use_mixed_mlp_moe\": false", "'use_mixed_mlp_moe' is false"),
        WRONG("hunyuan_v1_moe", "\"rope_scaling\": {\"type\": \"dynamic\", \"alpha\": 1e10}",
              "'dynamic'"),
        REFUSED("beam", "\"rope_parameters\": {\"sliding_attention\": null}", "do not rotate"),
        REFUSED("beam", "\"attention_bias\": true", "'attention_bias' is true"),
        REFUSED("ernie4_5_vl_moe_text", "\"use_bias\": true", "'use_bias' is true"),
        REFUSED("ernie4_5_moe", "\"use_bias\": true", "'use_bias' is true"),
        REFUSED("ernie4_5_moe", "\"moe_use_aux_free\": false", "'moe_use_aux_free' is false"),
        REFUSED("ernie4_5_moe", "\"moe_gate\": \"top2_fused\"", "'moe_gate' is top2_fused"),
        REFUSED("ernie4_5_moe", "\"moe_gate_act\": \"sigmoid\"", "'moe_gate_act' is sigmoid"),
        REFUSED("qwen3_vl_moe", "\"norm_topk_prob\": false", "'norm_topk_prob' is false"),
        WRONG("flex_olmo", "\"num_experts_per_tok\": 9", "experts per token"),
        REFUSED("gpt_oss", "\"hidden_act\": \"gelu\"", "hidden_act"),
        WRONG("gpt_oss", "\"swiglu_limit\": 0, \"num_key_value_heads\": 2", "limit"),
#define SWITCH_CASE(status, members, words) {SWITCH(", " members), MOE_ERR_##status, words}
#define LAYERS_CASE(members, words)                                                                \
    {                                                                                              \
        SWITCH_LAYERS(members), MOE_ERR_FORMAT, words                                              \
    }
        SWITCH_CASE(UNSUPPORTED, "\"dense_act_fn\": \"gated-gelu\"",
                    "'dense_act_fn' is gated-gelu, only relu is"),
        SWITCH_CASE(UNSUPPORTED, "\"feed_forward_proj\": \"gated-gelu\"", "feed_forward_proj"),
        SWITCH_CASE(UNSUPPORTED, "\"is_gated_act\": true", "'is_gated_act' is true"),
        SWITCH_CASE(UNSUPPORTED, "\"router_dtype\": \"bfloat16\"",
                    "'router_dtype' is bfloat16, only float32 is"),
        SWITCH_CASE(UNSUPPORTED, "\"router_type\": \"experts_masked\"", "router_type"),
        SWITCH_CASE(UNSUPPORTED, "\"batch_prioritized_routing\": true", "prioritized"),
        SWITCH_CASE(UNSUPPORTED, "\"is_encoder_decoder\": false", "is_encoder_decoder"),
        SWITCH_CASE(FORMAT, "\"expert_capacity\": 0", "'expert_capacity' is 0"),
        LAYERS_CASE("\"num_layers\": 4, \"num_decoder_layers\": 0", "a decoder of 0 layers"),
        LAYERS_CASE("\"num_layers\": 0", "an encoder of 0"),
        LAYERS_CASE("\"num_layers\": 1022, \"num_decoder_layers\": 3",
                    "both together at most 1024"),
        LAYERS_CASE("\"num_layers\": 5000", "num_layers"),
        SWITCH_CASE(FORMAT, "\"encoder_sparse_step\": -1", "encoder_sparse_step"),
        SWITCH_CASE(FORMAT, "\"num_sparse_decoder_layers\": \"x\"", "num_sparse_decoder_layers"),
        SWITCH_CASE(FORMAT, "\"relative_attention_num_buckets\": 3", "3 buckets"),
        SWITCH_CASE(FORMAT, "\"relative_attention_max_distance\": 16", "distances up to 16"),
        SWITCH_CASE(FORMAT, "\"decoder_start_token_id\": 100", "needs a first token"),
        SWITCH_CASE(FORMAT, "\"d_kv\": 1", "the head width is 1"),
        {SWITCH_OF("\"num_layers\": 4, ", "\"d_model\": 0"), MOE_ERR_FORMAT,
         "the hidden width is 0"},
        SWITCH_CASE(FORMAT, "\"num_experts\": 0", "the number of experts is 0"),
        {"{\"model_type\": \"switch_transformers\", \"num_layers\": 4}", MOE_ERR_FORMAT, "d_model"},
        {NLLB("\"decoder_ffn_dim\": 96, \"forced_bos_token_id\": 100"), MOE_ERR_FORMAT,
         "what answers begin with (forced_bos_token_id)"},
        {NLLB("\"decoder_ffn_dim\": 96, \"forced_bos_token_id\": 0"), MOE_ERR_FORMAT,
         "'forced_bos_token_id'"},
        {NLLB("\"decoder_ffn_dim\": 90"), MOE_ERR_UNSUPPORTED, "other widths of feed-forwards"},
        {NLLB("\"decoder_ffn_dim\": 96, \"decoder_attention_heads\": 8"), MOE_ERR_UNSUPPORTED,
         "other numbers of heads"},
        {NLLB("\"moe_eval_capacity_token_fraction\": 0.25"), MOE_ERR_UNSUPPORTED,
         "'moe_eval_capacity_token_fraction' is 0.25, only 1 is implemented"},
        {NLLB("\"second_expert_policy\": \"sampling\""), MOE_ERR_UNSUPPORTED,
         "'second_expert_policy' is sampling, only all is implemented"},
        {NLLB("\"decoder_ffn_dim\": 96, \"moe_token_dropout\": 1"), MOE_ERR_FORMAT,
         "expected 0 or more and below 1"},
        {NLLB("\"decoder_ffn_dim\": 96, \"decoder_layers\": 0"), MOE_ERR_FORMAT,
         "a decoder of 0 layers"},
#define GPTSAN_CASE(status, members, words) {GPTSAN(", " members), MOE_ERR_##status, words}
        GPTSAN_CASE(FORMAT, "\"num_ext_layers\": 1", "num_switch_layers"),
        GPTSAN_CASE(FORMAT, "\"num_switch_layers\": 0", "at least 1 with experts"),
        GPTSAN_CASE(FORMAT, "\"num_switch_layers\": 1000, \"num_ext_layers\": 25",
                    "at most 1024 in all"),
        GPTSAN_CASE(FORMAT, "\"num_switch_layers\": 1, \"expert_capacity\": 0",
                    "'expert_capacity' is 0"),
        GPTSAN_CASE(FORMAT, "\"num_switch_layers\": 1, \"num_experts\": 0",
                    "the number of experts is 0"),
        GPTSAN_CASE(FORMAT, "\"num_switch_layers\": 1, \"num_ext_layers\": 1, \"d_ext\": 0",
                    "a dense layer needs a feed-forward width"),
        GPTSAN_CASE(UNSUPPORTED, "\"num_switch_layers\": 1, \"router_dtype\": \"bfloat16\"",
                    "'router_dtype' is bfloat16"),
        GPTSAN_CASE(UNSUPPORTED, "\"num_switch_layers\": 1, \"tie_word_embeddings\": false",
                    "'tie_word_embeddings' is false"),
        {"{\"model_type\": \"gptsan-japanese\", \"vocab_size\": 100, \"d_model\": 64, "
         "\"num_heads\": 5, \"d_ff\": 96, \"num_switch_layers\": 1}",
         MOE_ERR_FORMAT, "a width of 64 cannot be shared by 5 heads"},
#undef GPTSAN_CASE
#undef SWITCH_CASE
#undef LAYERS_CASE
#undef REFUSED
#undef WRONG
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_err err = {0};
        assert_fails(read_text(cases[i].text, &err), cases[i].status, cases[i].words, &err);
    }
}

#define QUANTIZED(method, more)                                                                    \
    MODEL("mixtral", ", \"quantization_config\": {\"quant_method\": \"" method "\"" more "}")

/* From a directory: the checks that come before the family's. */
static void directories_of_others_are_refused(void **state)
{
    (void)state;
    char dir[] = "/tmp/moe-config-XXXXXX", path[64];
    static const struct {
        const char *text, *words;
    } cases[] = {
        {MODEL("gpt2", ""), "model type 'gpt2' is not implemented (known: qwen2_moe, "},
        {"{\"architectures\": [\"GPT2LMHeadModel\"]}", "'GPT2LMHeadModel' is not implemented"},
        {"{\"model_type\": \"gemma4\", \"text_config\": {\"quantization_config\": "
         "{\"quant_method\": \"hqq\"}}}",
         "hqq"},
        {QUANTIZED("mxfp4", ""), "mxfp4"},
        {QUANTIZED("gptq", ", \"checkpoint_format\": \"marlin\""), "gptq"},
        {QUANTIZED("awq", ", \"version\": \"gemv\""), "awq"},
        {QUANTIZED("compressed-tensors", ", \"format\": \"marlin-24\""), "compressed-tensors"},
        {MODEL("qwen3_moe", ", \"quantization\": {\"group_size\": 64, \"bits\": 4}"), "MLX"},
        {QUANTIZED("fbgemm_fp8", ""), "fbgemm_fp8"},
        {MODEL("gpt_oss", ", \"quantization_config\": {}"), "unnamed"},
    };
    static const char mxfp4[] = MODEL("gpt_oss", ", \"num_key_value_heads\": 2, "
                                                 "\"quantization_config\": "
                                                 "{\"quant_method\": \"mxfp4\"}");
    struct moe_err err = {0};
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        assert_ok(moe_file_write_all(path, cases[i].text, strlen(cases[i].text), &err), &err);
        assert_fails(moe_config_read_hf(&config, dir, &err), MOE_ERR_UNSUPPORTED, cases[i].words,
                     &err);
    }
    assert_ok(moe_file_write_all(path, mxfp4, strlen(mxfp4), &err), &err);
    assert_ok(moe_config_read_hf(&config, dir, &err), &err);
    assert_string_equal(config.family, "gpt_oss");
    unlink(path);
    rmdir(dir);
}

/* Whether the page has the word, with nothing but a dot before it. */
static bool mentions(const struct moe_buf *page, const char *word)
{
    const char *begin = (const char *)page->data, *found = begin;
    size_t n = strlen(word);
    do
        found = strstr(found + (found != begin), word);
    while (found && (!strchr(" \n.", found[-1]) || !strchr(" \n", found[n])));
    return found != NULL;
}

/* moe-pack(5) lists the keys of a description, and the names of tensors. */
static void the_manual_page_has_every_name(void **state)
{
    struct moe_buf page = {0};
    struct moe_err err = {0};
    size_t n_fields = 0;
    moe_buf_text(&page, "\n");
    assert_ok(moe_file_read_all("man/moe-pack.5", 1 << 20, &page, &err), &err);
    moe_buf_u8(&page, 0);
    for (size_t at = 0; at < sizeof(struct moe_config); at++) {
        const struct moe_config_field *field = moe_config_field(at);
        if (field && !mentions(&page, field->name))
            fail_msg("man/moe-pack.5 does not mention '%s'", field->name);
        n_fields += field != NULL;
    }
    assert_true(n_fields > 100);
    for (int role = 0; role < MOE_T_N_ROLES; role++) {
        const char *name = moe_tensor_spec(role)->pack_name;
        if (!mentions(&page, strncmp(name, "layers.%u.", 10) == 0 ? name + 10 : name))
            fail_msg("man/moe-pack.5 does not mention '%s'", name);
    }
    moe_buf_release(&page);
}

/* ---- Types ---- */

/* The description as text, or NULL and the error. */
static char *described(const json_t *json, struct moe_err *err)
{
    struct moe_buf out = {0};
    if (moe_config_read_hf_json(&config, "config.json", json, err) != MOE_OK)
        return NULL;
    moe_config_write(&config, &out);
    moe_buf_append(&out, "", 1);
    return (char *)out.data;
}

/* Members that may be of the other type as well. */
static bool may_be(const char *key, const json_t *value)
{
    static const struct {
        const char *key;
        json_type type;
    } both[] = {
        {"eos_token_id", JSON_ARRAY},
        {"rope_theta", JSON_INTEGER},
        {"num_shared_expert", JSON_INTEGER},
        {"moe_intermediate_size", JSON_INTEGER},
        {"attn_temperature_tuning", JSON_INTEGER},
        {"gating", JSON_TRUE},
    };
    for (size_t i = 0; i < sizeof both / sizeof both[0]; i++)
        if (strcmp(both[i].key, key) == 0 && both[i].type == json_typeof(value))
            return true;
    return false;
}

/* Puts values of other types into each member of an object within `whole`: what is read of them
 * must be refused by the member's name. */
static void try_types(const char *file, json_t *whole, json_t *object, int *n)
{
    static const char *const wrong[] = {"3", "\"x\"", "true", "[]", "{}", "[[]]"};
    const char *key;
    json_t *value;
    void *next;
    struct moe_err err = {0};
    char *want = described(whole, &err);
    assert_non_null(want);
    json_object_foreach_safe(object, next, key, value)
    {
        if (json_is_null(value))
            continue;
        if (json_is_object(value))
            try_types(file, whole, value, n);
        json_t *kept = json_incref(value);
        for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
            json_t *other = json_loads(wrong[i], JSON_DECODE_ANY, NULL);
            bool same = json_typeof(other) == json_typeof(kept) ||
                        (json_is_number(other) && json_is_number(kept)) ||
                        (json_is_boolean(other) && json_is_boolean(kept));
            if (same || may_be(key, other)) {
                json_decref(other);
                continue;
            }
            json_object_set_new(object, key, other);
            char *got = described(whole, &err);
            (*n)++;
            if (got && strcmp(got, want) != 0)
                fail_msg("%s: '%s': %s is taken", file, key, wrong[i]);
            if (!got && !strstr(err.text, key))
                fail_msg("%s: '%s': %s: %s", file, key, wrong[i], err.text);
            free(got);
        }
        json_object_set_new(object, key, kept);
    }
    free(want);
}

static void values_of_other_types_are_refused_by_their_name(void **state)
{
    (void)state;
    DIR *dir = opendir("tests/fixtures");
    struct dirent *entry;
    int n = 0, at = 0;
    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        char file[512];
        snprintf(file, sizeof file, "tests/fixtures/%.200s/config.json", entry->d_name);
        if ((SANITIZED && at++ % 8) || access(file, R_OK) != 0)
            continue;
        json_t *json = json_load_file(file, 0, NULL);
        assert_non_null(json);
        try_types(file, json, json, &n);
        json_decref(json);
    }
    closedir(dir);
    print_message("# %d values of other types\n", n);
    assert_true(n > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qwen_families),
        cmocka_unit_test(llama_mistral_mixtral_olmoe),
        cmocka_unit_test(deepseek_families),
        cmocka_unit_test(phimoe_minicpm_granite),
        cmocka_unit_test(flex_olmo_ernie),
        cmocka_unit_test(hunyuan),
        cmocka_unit_test(deepseek_v4),
        cmocka_unit_test(gpt_oss),
        cmocka_unit_test(switch_transformers),
        cmocka_unit_test(nllb_moe),
        cmocka_unit_test(gptsan),
        cmocka_unit_test(the_manual_page_has_every_name),
        cmocka_unit_test(contexts_are_the_families_own_where_none_is_said),
        cmocka_unit_test(what_is_not_computed_is_refused),
        cmocka_unit_test(values_of_other_types_are_refused_by_their_name),
        cmocka_unit_test(directories_of_others_are_refused),
    };
    return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
