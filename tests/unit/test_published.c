/*
 * Published models' config.json: the settings that decide the sizes, arranged here, against the
 * parameters that are published; and what tests/FAMILIES.md says of all architectures. Quotes are
 * single ones.
 */
#include <math.h>

#include "fmt/json.h"
#include "model/family.h"
#include "model/read.h"
#include "model/shape.h"

#include "../test.h"

/* So many of them, with commas between. */
#define R3(x) x ", " x ", " x
#define R4(x) R3(x) ", " x
#define R5(x) R4(x) ", " x
#define R8(x) R4(x) ", " R4(x)
#define R9(x) R8(x) ", " x
#define R12(x) R3(R4(x))
#define R13(x) R12(x) ", " x
#define R32(x) R4(R8(x))
/* Kinds of layers. */
#define S "'sliding_attention'"
#define F "'full_attention'"
#define A "'attention'"
#define M "'mamba'"
#define C "'conv'"
#define SSSF R3(S) ", " F

#define SIZES(layers, hidden, heads, kv, vocab)                                                    \
    "'num_hidden_layers': " #layers ", 'hidden_size': " #hidden ", 'num_attention_heads': " #heads \
    ", 'num_key_value_heads': " #kv ", 'vocab_size': " #vocab ", "
#define WIDTHS(dense, expert)                                                                      \
    "'intermediate_size': " #dense ", 'moe_intermediate_size': " #expert ", "
#define EXPERTS(n, chosen) "'num_experts': " #n ", 'num_experts_per_tok': " #chosen ", "
#define ROUTED(n, shared, chosen)                                                                  \
    "'n_routed_experts': " #n ", 'n_shared_experts': " #shared ", 'num_experts_per_tok': " #chosen \
    ", "
#define LATENT_HEADS(q, plain, rotated, values)                                                    \
    "'q_lora_rank': " #q ", 'kv_lora_rank': 512, 'qk_nope_head_dim': " #plain                      \
    ", 'qk_rope_head_dim': " #rotated ", 'v_head_dim': " #values ", "

#define LING                                                                                       \
    "'model_type': 'bailing_moe', 'architectures': ['BailingMoeV2ForCausalLM'], "                  \
    "'first_k_dense_replace': 1, 'num_shared_experts': 1, 'n_group': 8, 'topk_group': 4, "         \
    "'head_dim': 128, 'use_qk_norm': true, 'partial_rotary_factor': 0.5, "                         \
    "'score_function': 'sigmoid', 'norm_topk_prob': true, 'routed_scaling_factor': 2.5, "          \
    "'moe_router_enable_expert_bias': true, 'rope_theta': 600000"
#define TRINITY                                                                                    \
    "'model_type': 'afmoe', 'head_dim': 128, 'num_shared_experts': 1, 'score_func': 'sigmoid', "   \
    "'route_norm': true, 'route_scale': 2.826, 'n_group': 1, 'topk_group': 1, "                    \
    "'num_expert_groups': 1, 'num_limited_groups': 1, 'global_attn_every_n_layers': 4, "           \
    "'mup_enabled': true, 'tie_word_embeddings': false, 'sliding_window': "
#define GRANITE_H                                                                                  \
    "'model_type': 'granitemoehybrid', 'mamba_d_state': 128, 'mamba_d_conv': 4, "                  \
    "'mamba_d_head': 64, 'mamba_expand': 2, 'mamba_n_groups': 1, 'mamba_proj_bias': false, "       \
    "'position_embedding_type': 'nope', 'normalization_function': 'rmsnorm', "                     \
    "'tie_word_embeddings': true, 'embedding_multiplier': 12, 'layer_types': [" R5(                \
        M) ", " A ", " R9(M) ", " A ", " R9(M) ", " A ", " R9(M) ", " A ", " R4(M) "], "
#define LLAMA_4                                                                                    \
    "'model_type': 'llama4', 'text_config': {'model_type': 'llama4_text', "                        \
    "'intermediate_size': 8192, 'intermediate_size_mlp': 16384, 'head_dim': 128, "                 \
    "'attention_chunk_size': 8192, 'num_experts_per_tok': 1, "
#define GLM                                                                                        \
    "'model_type': 'glm4_moe', 'head_dim': 128, 'attention_bias': true, "                          \
    "'partial_rotary_factor': 0.5, 'num_nextn_predict_layers': 1, 'n_group': 1, 'topk_group': 1, "

/* What a published number of active parameters leaves out. */
enum apart { NOTHING, EMBEDDING, HEAD_TOO };

/* Parameters in billions, as published; where that is coarser than one in a hundred, the unit, or
 * twice that of a number that is cut off rather than rounded. */
static const struct {
    const char *name, *text;
    double total, unit, active, active_unit; /* active 0: not published */
    enum apart apart;
    uint32_t n_windowed, n_recurrent, rope_dim;
    double routed_scale;
} models[] = {
    {"DeepSeek-V3",
     SIZES(61, 7168, 128, 128, 129280) WIDTHS(18432, 2048) ROUTED(256, 1, 8) LATENT_HEADS(
         1536, 128, 64,
         128) "'model_type': 'deepseek_v3', 'n_group': 8, "
              "'topk_group': 4, 'first_k_dense_replace': 3, 'num_nextn_predict_layers': 1, "
              "'scoring_func': 'sigmoid', 'topk_method': 'noaux_tc', 'routed_scaling_factor': 2.5",
     671, 1, 37, 1, EMBEDDING, 0, 0, 64, 2.5},
    {"Kimi-K2",
     SIZES(61, 7168, 64, 64, 163840) WIDTHS(18432, 2048) ROUTED(384, 1, 8) LATENT_HEADS(
         1536, 128, 64,
         128) "'model_type': 'kimi_k2', 'n_group': 1, "
              "'topk_group': 1, 'first_k_dense_replace': 1, 'num_nextn_predict_layers': 0, "
              "'scoring_func': 'sigmoid', 'topk_method': 'noaux_tc', 'routed_scaling_factor': "
              "2.827",
     1000, 100, 32, 1, EMBEDDING, 0, 0, 64, 2.827},
    {"Kimi-K2.5",
     "'model_type': 'kimi_k25', 'text_config': {" SIZES(61, 7168, 64, 64, 163840)
         WIDTHS(18432, 2048) ROUTED(384, 1, 8) LATENT_HEADS(
             1536, 128, 64, 128) "'model_type': 'kimi_k2', 'n_group': 1, 'topk_group': 1, "
                                 "'first_k_dense_replace': 1, "
                                 "'quantization_config': {'quant_method': 'compressed-tensors', "
                                 "'format': 'pack-quantized', "
                                 "'config_groups': {'group_0': {'weights': {'num_bits': 4, 'type': "
                                 "'int', 'symmetric': true, "
                                 "'strategy': 'group', 'group_size': 32, 'actorder': null}}}}, "
                                 "'routed_scaling_factor': 2.827}",
     1000, 100, 32, 1, EMBEDDING, 0, 0, 64, 2.827},
    {"Moonlight-16B-A3B",
     SIZES(27, 2048, 16, 16, 163840) WIDTHS(11264, 1408) ROUTED(64, 2, 6) LATENT_HEADS(
         null, 128, 64,
         128) "'model_type': 'deepseek_v3', 'n_group': 1, "
              "'topk_group': 1, 'first_k_dense_replace': 1, 'routed_scaling_factor': 2.446",
     16, 1, 2.24, 0.01, HEAD_TOO, 0, 0, 64, 2.446},
    {"Kimi-Linear-48B-A3B",
     SIZES(27, 2304, 32, 32, 163840) WIDTHS(9216, 1024) LATENT_HEADS(
         null, 128, 64,
         128) "'model_type': 'kimi_linear', 'num_experts': 256, 'num_experts_per_token': 8, "
              "'num_shared_experts': 1, 'head_dim': 72, 'mla_use_nope': true, 'moe_renormalize': "
              "true, "
              "'moe_router_activation_func': 'sigmoid', 'routed_scaling_factor': 2.446, "
              "'first_k_dense_replace': 1, 'use_grouped_topk': true, 'num_expert_group': 1, "
              "'topk_group': 1, 'linear_attn_config': {'num_heads': 32, 'head_dim': 128, "
              "'short_conv_kernel_size': 4, 'kda_layers': [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, "
              "15, 17, "
              "18, 19, 21, 22, 23, 25, 26], 'full_attn_layers': [4, 8, 12, 16, 20, 24, 27]}",
     49.123, 0, 3, 1, EMBEDDING, 0, 20, 64, 2.446},
    {"GLM-4.5",
     SIZES(92, 5120, 96, 8, 151552) WIDTHS(12288, 1536) ROUTED(160, 1, 8) GLM
     "'first_k_dense_replace': 3, 'use_qk_norm': true, 'routed_scaling_factor': 2.5",
     355, 1, 32, 1, HEAD_TOO, 0, 0, 64, 2.5},
    {"GLM-4.5-Air",
     SIZES(46, 4096, 96, 8, 151552) WIDTHS(10944, 1408) ROUTED(128, 1, 8) GLM
     "'first_k_dense_replace': 1, 'use_qk_norm': false, 'routed_scaling_factor': 1.0",
     106, 1, 12, 1, HEAD_TOO, 0, 0, 64, 1},
    {"GLM-5",
     SIZES(78, 6144, 64, 64, 154880) WIDTHS(12288, 2048) ROUTED(256, 1, 8) LATENT_HEADS(
         2048, 192, 64,
         256) "'model_type': 'glm_moe_dsa', 'n_group': 1, 'topk_group': 1, 'head_dim': 64, "
              "'index_topk': 2048, 'index_head_dim': 128, 'index_n_heads': 32, "
              "'indexer_rope_interleave': true, 'first_k_dense_replace': 3, 'moe_layer_freq': 1, "
              "'num_nextn_predict_layers': 1, 'scoring_func': 'sigmoid', 'topk_method': "
              "'noaux_tc', 'rope_parameters': {'rope_theta': 1000000, 'rope_type': 'default'}, "
              "'routed_scaling_factor': 2.5",
     744, 1, 40, 2, EMBEDDING, 0, 0, 64, 2.5},
    {"GLM-5.3-Flash",
     SIZES(45, 4096, 64, 64, 154880) WIDTHS(12288, 2048) ROUTED(288, 1, 8) LATENT_HEADS(
         1536, 256, 0,
         256) "'model_type': 'glm5_next_text', 'first_k_dense_replace': 3, 'hc_mult': 4, "
              "'linear_attn_config': {'num_heads': 64, 'head_dim': 128, 'short_conv_kernel_size': "
              "4, 'gate_lower_bound': -5.0}, 'index_topk': 2048, 'index_kpool': 16, "
              "'index_n_heads': 32, 'index_head_dim': 128, 'routed_scaling_factor': 2.5",
     320 - 7.3, 1, 18 - 0.4, 1, NOTHING, 0, 34, 0, 2.5}, /* less the layer that drafts */
    {"GLM-4.7-Flash",
     SIZES(47, 2048, 20, 20, 154880) WIDTHS(10240, 1536) ROUTED(64, 1, 4) LATENT_HEADS(
         768, 192, 64,
         256) "'model_type': 'glm4_moe_lite', 'n_group': 1, "
              "'topk_group': 1, 'partial_rotary_factor': 1.0, 'first_k_dense_replace': 1, "
              "'num_nextn_predict_layers': 1, 'routed_scaling_factor': 1.8",
     30, 1, 3, 1, HEAD_TOO, 0, 0, 64, 1.8},
    {"Ling-mini-2.0", SIZES(20, 2048, 16, 4, 157184) WIDTHS(5120, 512) EXPERTS(256, 8) LING, 16, 1,
     0.789, 0.001, HEAD_TOO, 0, 0, 64, 2.5},
    {"Ling-flash-2.0", SIZES(32, 4096, 32, 4, 157184) WIDTHS(9216, 1024) EXPERTS(256, 8) LING, 103,
     1, 6.1, 0.1, NOTHING, 0, 0, 64, 2.5},
    {"Solar-Open-100B",
     SIZES(48, 4096, 64, 8, 196608) WIDTHS(10240, 1280) ROUTED(
         128, 1, 8) "'model_type': 'solar_open', 'partial_rotary_factor': 1.0, 'head_dim': 128, "
                    "'first_k_dense_replace': 0, 'rope_scaling': {'type': 'yarn', 'factor': 2.0, "
                    "'original_max_position_embeddings': 65536}",
     102, 1, 12, 1, NOTHING, 0, 0, 128, 1},
    {"Hy3",
     SIZES(80, 4096, 64, 8, 120832) WIDTHS(13312, 1536)
         EXPERTS(192, 8) "'model_type': 'hy_v3', 'head_dim': 128, 'expert_hidden_dim': 1536, "
                         "'num_shared_experts': 1, "
                         "'first_k_dense_replace': 1, 'qk_norm': true, 'route_norm': true, "
                         "'moe_router_use_sigmoid': true, 'moe_router_enable_expert_bias': true, "
                         "'router_scaling_factor': 2.826, 'enable_lm_head_fp32': true, "
                         "'rope_parameters': {'rope_theta': 11158840.0, 'rope_type': 'default'}",
     295, 1, 21, 1, NOTHING, 0, 0, 128, 2.826},
    {"dots.llm1",
     SIZES(62, 4096, 32, 32, 152064) WIDTHS(10944, 1408) ROUTED(
         128, 2, 6) "'model_type': 'dots1', 'first_k_dense_replace': 1, 'norm_topk_prob': true, "
                    "'scoring_func': 'sigmoid', 'n_group': null, 'topk_group': null, "
                    "'routed_scaling_factor': 2.5",
     142, 1, 14, 1, NOTHING, 0, 0, 128, 2.5},
    {"MiniMax-M2.5",
     SIZES(62, 3072, 48, 8, 200064) "'model_type': 'minimax_m2', 'intermediate_size': 1536, "
                                    "'num_local_experts': 256, 'num_experts_per_tok': 8, "
                                    "'head_dim': 128, 'rotary_dim': 64, "
                                    "'shared_intermediate_size': 0, 'use_routing_bias': true, "
                                    "'scoring_func': 'sigmoid', "
                                    "'use_qk_norm': true, 'qk_norm_type': 'per_layer', 'use_mtp': "
                                    "true, 'num_mtp_modules': 3",
     229, 1, 10, 1, EMBEDDING, 0, 0, 64, 1},
    {"MiniMax-M3",
     "'model_type': 'minimax_m3_vl', 'text_config': {" SIZES(
         60, 6144, 64, 4,
         200064) "'model_type': 'minimax_m3_vl_text', 'intermediate_size': 3072, "
                 "'dense_intermediate_size': 12288, 'shared_intermediate_size': 3072, "
                 "'num_local_experts': 128, 'num_experts_per_tok': 4, 'head_dim': 128, "
                 "'rotary_dim': 64, "
                 "'partial_rotary_factor': 0.5, 'rope_theta': 5000000, 'hidden_act': 'swigluoai', "
                 "'scoring_func': 'sigmoid', 'qk_norm_type': 'per_head', 'use_gemma_norm': true, "
                 "'routed_scaling_factor': 2.0, 'moe_layer_freq': [0, 0, 0, " R4(R13("1")) ", " R5(
                     "1") "], 'sparse_attention_config': {'sparse_topk_blocks': 16, "
                          "'sparse_num_index_heads': 4, 'sparse_index_dim': 128, "
                          "'sparse_block_size': 128, 'sparse_attention_freq': [0, 0, 0, " R4(
                              R13("1")) ", " R5("1") "]}}",
     428, 2, 23, 2, HEAD_TOO, 0, 0, 64, 2}, /* 23.5 with its indexers, 23.3 without */
    {"ERNIE-4.5-21B-A3B",
     SIZES(28, 2560, 20, 4, 103424)
         WIDTHS(12288, 1536) "'model_type': 'ernie4_5_moe', 'moe_num_experts': 64, 'moe_k': 6, "
                             "'moe_num_shared_experts': 2, 'moe_layer_start_index': 1, "
                             "'moe_layer_end_index': 27, "
                             "'moe_layer_interval': 1, 'moe_gate': 'topk', 'moe_gate_act': null, "
                             "'use_bias': false, "
                             "'moe_use_aux_free': true, 'tie_word_embeddings': true, "
                             "'num_nextn_predict_layers': 1",
     21.8, 0.1, 3, 1, EMBEDDING, 0, 0, 128, 1},
    {"ERNIE-4.5-300B-A47B",
     SIZES(54, 8192, 64, 8, 103424) WIDTHS(
         28672,
         3584) "'model_type': 'ernie4_5_moe', 'moe_num_experts': 64, 'moe_k': 8, "
               "'moe_num_shared_experts': 0, 'moe_layer_start_index': 3, 'moe_layer_end_index': "
               "53, "
               "'moe_layer_interval': 1, 'moe_gate': 'topk_fused', 'tie_word_embeddings': true",
     300, 1, 47, 1, NOTHING, 0, 0, 128, 1},
    {"Hunyuan-A13B",
     SIZES(32, 4096, 32, 8,
           128167) "'model_type': 'hunyuan', 'intermediate_size': 3072, "
                   "'architectures': ['HunYuanMoEV1ForCausalLM'], 'attention_head_dim': 128, "
                   "'num_experts': 64, 'moe_topk': [" R32("8") "], 'num_shared_expert': [" R32(
                       "1") "], "
                            "'moe_intermediate_size': [" R32(
                                "3072") "], 'use_mixed_mlp_moe': true, 'use_cla': false, "
                                        "'use_qk_norm': true, 'moe_layer_num_skipped': 0, "
                                        "'tie_word_embeddings': true, "
                                        "'rope_scaling': {'type': 'dynamic', 'alpha': 1000.0, "
                                        "'factor': 1.0}",
     80, 1, 13, 1, NOTHING, 0, 0, 128, 1},
    {"Qwen3-Coder-480B-A35B",
     SIZES(62, 6144, 96, 8, 151936) WIDTHS(8192, 2560)
         EXPERTS(160, 8) "'model_type': 'qwen3_moe', 'head_dim': 128, 'norm_topk_prob': true",
     480, 1, 35, 1, NOTHING, 0, 0, 128, 1},
    {"Qwen3-VL-30B-A3B",
     "'model_type': 'qwen3_vl_moe', 'tie_word_embeddings': false, 'text_config': {" SIZES(
         48, 2048, 32, 4, 151936) WIDTHS(6144, 768)
         EXPERTS(128, 8) "'model_type': 'qwen3_vl_moe_text', 'head_dim': 128, 'rope_scaling': "
                         "{'mrope_interleaved': "
                         "true, 'mrope_section': [24, 20, 20], 'rope_type': 'default'}}",
     30.5, 0.1, 3, 1, NOTHING, 0, 0, 128, 1},
    {"Qwen3-Next-80B-A3B",
     SIZES(48, 2048, 16, 2, 151936) WIDTHS(5120, 512) EXPERTS(
         512,
         10) "'model_type': 'qwen3_next', 'head_dim': 256, 'shared_expert_intermediate_size': 512, "
             "'full_attention_interval': 4, 'partial_rotary_factor': 0.25, 'linear_num_key_heads': "
             "16, "
             "'linear_num_value_heads': 32, 'linear_key_head_dim': 128, 'linear_value_head_dim': "
             "128, "
             "'linear_conv_kernel_dim': 4, 'decoder_sparse_step': 1, 'mlp_only_layers': []",
     80, 1, 3, 1, HEAD_TOO, 0, 36, 64, 1},
    {"Qwen3.5-397B-A17B",
     "'model_type': 'qwen3_5_moe', 'text_config': {" SIZES(60, 4096, 32, 2, 248320) EXPERTS(
         512,
         10) "'model_type': 'qwen3_5_moe_text', 'moe_intermediate_size': 1024, "
             "'shared_expert_intermediate_size': 1024, 'head_dim': 256, 'full_attention_interval': "
             "4, "
             "'linear_num_key_heads': 16, 'linear_num_value_heads': 64, 'linear_key_head_dim': "
             "128, "
             "'linear_value_head_dim': 128, 'mtp_num_hidden_layers': 1, 'attn_output_gate': true, "
             "'rope_parameters': {'partial_rotary_factor': 0.25, 'rope_theta': 10000000, "
             "'mrope_section': [11, 11, 10], 'mrope_interleaved': true, 'rope_type': 'default'}}",
     397, 1, 17, 1, NOTHING, 0, 45, 64, 1},
    {"Granite-4.0-H-Small",
     SIZES(40, 4096, 32, 8, 100352) GRANITE_H
     "'intermediate_size': 768, 'num_local_experts': 72, 'num_experts_per_tok': 10, "
     "'shared_intermediate_size': 1536, 'mamba_n_heads': 128",
     32.207, 0, 9, 1, NOTHING, 0, 36, 0, 1},
    {"Granite-4.0-H-Tiny",
     SIZES(40, 1536, 12, 4, 100352) GRANITE_H
     "'intermediate_size': 512, 'num_local_experts': 64, 'num_experts_per_tok': 6, "
     "'shared_intermediate_size': 1024, 'mamba_n_heads': 48",
     7, 1, 1, 1, NOTHING, 0, 36, 0, 1},
    {"Granite-3.1-3B-A800M",
     SIZES(32, 1536, 24, 8,
           49155) "'model_type': 'granitemoe', 'intermediate_size': 512, "
                  "'num_local_experts': 40, 'num_experts_per_tok': 8, 'tie_word_embeddings': true",
     3.3, 0, 0.8, 0.1, EMBEDDING, 0, 0, 64, 1},
    {"LFM2-8B-A1B",
     SIZES(24, 2048, 32, 8, 65536) WIDTHS(7168, 1792)
         EXPERTS(32, 4) "'model_type': 'lfm2_moe', 'num_dense_layers': 2, 'norm_eps': 1e-5, "
                        "'conv_bias': false, "
                        "'conv_L_cache': 3, 'use_expert_bias': true, 'layer_types': [" C ", " C
                        ", " F ", " R3(C) ", " F ", " R3(C) ", " F ", " R3(C) ", " F ", " R3(
                            C) ", " F ", " C ", " C ", " F ", " C ", " C "]",
     8.3, 0, 1.5, 0.2, NOTHING, 0, 18, 64, 1},
    {"Llama-4-Scout",
     LLAMA_4 SIZES(
         48, 5120,
         40, 8,
         202048) "'num_local_experts': 16, 'use_qk_norm': true, "
                 "'interleave_moe_layer_step': 1, 'no_rope_layers': [], 'rope_scaling': "
                 "{'rope_type': "
                 "'llama3', 'factor': 16.0, 'low_freq_factor': 1.0, 'high_freq_factor': 1.0, "
                 "'original_max_position_embeddings': 8192}}",
     107.8, 0, 17, 1, NOTHING, 36, 0, 128, 1},
    {"Llama-4-Maverick",
     LLAMA_4 SIZES(48, 5120, 40, 8, 202048) "'num_local_experts': 128, 'use_qk_norm': false, "
                                            "'interleave_moe_layer_step': 2, 'rope_scaling': null}",
     400, 1, 17, 1, NOTHING, 36, 0, 128, 1},
    {"Gemma-4-26B-A4B",
     "'model_type': 'gemma4', 'text_config': {" SIZES(30, 2816, 16, 8, 262144) WIDTHS(
         2112,
         704) "'model_type': 'gemma4_text', 'num_experts': 128, 'top_k_experts': 8, 'head_dim': "
              "256, "
              "'global_head_dim': 512, 'num_global_key_value_heads': 2, 'attention_k_eq_v': true, "
              "'enable_moe_block': true, 'hidden_size_per_layer_input': 0, 'num_kv_shared_layers': "
              "0, "
              "'sliding_window': 1024, 'use_bidirectional_attention': 'vision', "
              "'hidden_activation': 'gelu_pytorch_tanh', 'layer_types': [" R5(
                  R5(S) ", " F) "], "
                                "'rope_parameters': {'full_attention': {'partial_rotary_factor': "
                                "0.25, 'rope_theta': "
                                "1000000.0, 'rope_type': 'proportional'}, 'sliding_attention': "
                                "{'rope_theta': 10000.0, "
                                "'rope_type': 'default'}}}",
     25.2, 0.1, 3.8, 0.1, NOTHING, 25, 0, 256, 1},
    {"K-EXAONE-236B-A23B",
     SIZES(48, 6144, 64, 8, 153600) WIDTHS(18432, 2048) EXPERTS(
         128,
         8) "'model_type': 'exaone_moe', 'head_dim': 128, 'num_shared_experts': 1, 'n_group': 1, "
            "'topk_group': 1, 'scoring_func': 'sigmoid', 'topk_method': 'noaux_tc', "
            "'first_last_k_dense_replace': 1, 'sliding_window': 128, 'sliding_window_pattern': "
            "'LLLG', "
            "'is_moe_layer': [false, " R32("true") ", " R12("true") ", " R3(
                "true") "], "
                        "'layer_types': [" R12(SSSF) "], 'routed_scaling_factor': 2.5",
     236, 1, 23, 1, EMBEDDING, 36, 0, 128, 2.5},
    {"North-Mini-Code-30B-A3B",
     SIZES(49, 2048, 32, 4, 262144) EXPERTS(
         128,
         8) "'model_type': 'cohere2_moe', 'intermediate_size': 768, 'head_dim': 128, "
            "'prefix_dense_intermediate_size': 3072, 'num_shared_experts': 0, "
            "'first_k_dense_replace': 1, 'prefix_dense_sliding_window_pattern': 1, "
            "'expert_selection_fn': 'sigmoid', 'norm_topk_prob': false, 'sliding_window': 4096, "
            "'use_parallel_block': true, 'use_qk_norm': false, 'rms_norm_eps': 1e-6, "
            "'layer_norm_eps': 1e-5, 'layer_types': [" R12(F ", " R3(S)) ", " F "]",
     30, 1, 3, 1, NOTHING, 36, 0, 128, 1},
    {"Trinity-Nano",
     SIZES(56, 1024, 8, 2, 200192) WIDTHS(3072, 256) EXPERTS(128, 8) TRINITY
     "2048, 'num_dense_layers': 2",
     6, 1, 1, 1, NOTHING, 42, 0, 128, 2.826},
    {"Trinity-Mini",
     SIZES(32, 2048, 32, 4, 200192) WIDTHS(6144, 1024) EXPERTS(128, 8) TRINITY
     "2048, 'num_dense_layers': 2",
     26, 1, 3, 1, NOTHING, 24, 0, 128, 2.826},
    {"Trinity-Large",
     SIZES(60, 3072, 48, 8, 200192) WIDTHS(12288, 3072) EXPERTS(256, 4) TRINITY
     "4096, 'num_dense_layers': 6",
     398, 1, 13, 1, NOTHING, 45, 0, 128, 2.826},
    {"SmallThinker-4B-A0.6B",
     SIZES(32, 1536, 12, 2,
           151936) "'model_type': 'smallthinker', 'head_dim': 128, "
                   "'moe_num_primary_experts': 32, 'moe_num_active_primary_experts': 4, "
                   "'moe_ffn_hidden_size': 768, 'sliding_window_size': 4096, "
                   "'tie_word_embeddings': true, "
                   "'rope_layout': [" R32("1") "], 'sliding_window_layout': [" R32("0") "]",
     4, 1, 0.6, 0.1, EMBEDDING, 0, 0, 128, 1},
    {"SmallThinker-21B-A3B", /* without "model_type"; its widths were not read, they give its size
                              */
     SIZES(52, 2560, 28, 4,
           151936) "'architectures': ['SmallThinkerForCausalLM'], "
                   "'moe_num_primary_experts': 64, 'moe_num_active_primary_experts': 6, "
                   "'head_dim': 128, "
                   "'moe_ffn_hidden_size': 768, 'sliding_window_size': 4096, "
                   "'tie_word_embeddings': false, "
                   "'rope_layout': [" R13("0, 1, 1, 1") "], 'sliding_window_layout': [" R13(
                       "0, 1, 1, 1") "]",
     21.507, 0, 3, 1, EMBEDDING, 39, 0, 128, 1},
    {"Nemotron-3-Nano-30B-A3B",
     SIZES(52, 2688, 32, 2, 131072) WIDTHS(1856, 1856) ROUTED(
         128, 1,
         6) "'model_type': 'nemotron_h', 'moe_shared_expert_intermediate_size': 3712, 'n_group': "
            "1, "
            "'topk_group': 1, 'n_groups': 8, 'head_dim': 128, 'mamba_num_heads': 64, "
            "'mamba_head_dim': 64, 'ssm_state_size': 128, 'conv_kernel': 4, 'use_conv_bias': true, "
            "'hybrid_override_pattern': 'MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME', "
            "'mlp_hidden_act': 'relu2', 'sliding_window': null, 'norm_topk_prob': true, "
            "'rope_theta': 10000, 'partial_rotary_factor': 1.0, 'routed_scaling_factor': 2.5",
     31.6, 0.1, 3.2, 0.1, EMBEDDING, 0, 23, 0, 2.5},
    {"Nemotron-3-Super-120B-A12B",
     SIZES(88, 4096, 32, 2, 131072) WIDTHS(2688, 2688) ROUTED(
         512, 1,
         22) "'model_type': 'nemotron_h', 'moe_shared_expert_intermediate_size': 5376, "
             "'moe_latent_size': 1024, 'n_group': 1, 'topk_group': 1, 'n_groups': 8, "
             "'head_dim': 128, 'mamba_num_heads': 128, 'mamba_head_dim': 64, "
             "'ssm_state_size': 128, 'conv_kernel': 4, 'hybrid_override_pattern': "
             "'MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM"
             "*EMEMEMEME', 'mlp_hidden_act': 'relu2', 'norm_topk_prob': true, "
             "'routed_scaling_factor': 5.0",
     120.6, 0.1, 12.7, 0.1, NOTHING, 0, 40, 0, 5},
    {"Jamba-1.5-Mini",
     SIZES(32, 4096, 32, 8, 65536) EXPERTS(
         16, 2) "'model_type': 'jamba', 'intermediate_size': 14336, 'attn_layer_period': 8, "
                "'attn_layer_offset': 4, 'expert_layer_period': 2, 'expert_layer_offset': 1, "
                "'mamba_d_state': 16, 'mamba_d_conv': 4, 'mamba_dt_rank': 256, 'mamba_expand': 2, "
                "'mamba_conv_bias': true, 'mamba_proj_bias': false",
     51.6, 0.1, 12, 1, NOTHING, 0, 28, 0, 1},
    {"Phi-3.5-MoE",
     SIZES(32, 4096, 32, 8,
           32064) "'model_type': 'phimoe', 'intermediate_size': 6400, "
                  "'num_local_experts': 16, 'num_experts_per_tok': 2, 'attention_bias': true, "
                  "'lm_head_bias': true, 'sliding_window': 131072",
     41.9, 0.1, 6.6, 0.1, NOTHING, 32, 0, 128, 1},
    {"Phi-tiny-MoE",
     SIZES(
         32, 4096, 16, 4,
         32064) "'model_type': 'phimoe', 'intermediate_size': 448, "
                "'moe_intermediate_size': 448, 'num_local_experts': 16, 'num_experts_per_tok': 2, "
                "'head_dim': 128, 'attention_bias': true, 'lm_head_bias': true, 'sliding_window': "
                "2047",
     3.8, 0.1, 1.1, 0.2, EMBEDDING, 32, 0, 128, 1},
    {"gpt-oss-120b",
     SIZES(36, 2880, 64, 8, 201088) "'model_type': 'gpt_oss', 'intermediate_size': 2880, "
                                    "'num_local_experts': 128, 'num_experts_per_tok': 4, "
                                    "'head_dim': 64, 'sliding_window': 128, "
                                    "'layer_types': [" R9(S ", " F) ", " R9(S ", " F) "]",
     116.8, 0.1, 5.13, 0, EMBEDDING, 18, 0, 64, 1},
    {"MiMo-V2-Flash",
     SIZES(48, 4096, 64, 4, 152576) WIDTHS(16384, 2048) ROUTED(
         256, null,
         8) "'model_type': 'mimo_v2_flash', 'head_dim': 192, 'v_head_dim': 128, 'n_group': 1, "
            "'topk_group': 1, 'scoring_func': 'sigmoid', 'topk_method': 'noaux_tc', "
            "'sliding_window': 128, "
            "'sliding_window_size': 128, 'swa_num_key_value_heads': 8, 'swa_head_dim': 192, "
            "'swa_v_head_dim': 128, 'swa_num_attention_heads': 64, 'rope_theta': 5000000, "
            "'swa_rope_theta': 10000, 'partial_rotary_factor': 0.334, 'attention_value_scale': "
            "0.707, "
            "'layernorm_epsilon': 1e-05, 'routed_scaling_factor': null",
     309, 1, 15, 1, NOTHING, 39, 0, 64, 1},
    {"Step-3.5-Flash",
     "'num_hidden_layers': 45, 'hidden_size': 4096, 'num_attention_heads': 64, "
     "'num_attention_groups': 8, 'vocab_size': 128896, " WIDTHS(
         11264,
         1280) "'model_type': 'step3p5', 'head_dim': 128, 'moe_num_experts': 288, "
               "'moe_top_k': 8, 'share_expert_dim': 1280, 'moe_router_scaling_factor': 3.0, "
               "'norm_expert_weight': true, 'sliding_window': 512, "
               "'num_nextn_predict_layers': 3, "
               "'attention_other_setting': {'num_attention_heads': 96, "
               "'num_attention_groups': 8, 'head_dim': "
               "128}, 'layer_types': [" R12(F ", " R3(S)) "], 'rope_theta': [" R12(
                   "5000000.0, 10000.0, 10000.0, 10000.0") "], 'partial_rotary_factors': "
                                                           "[" R12(
                                                               "0.5, 1.0, 1.0, 1.0") "],"
                                                                                     " '"
                                                                                     "sw"
                                                                                     "ig"
                                                                                     "lu"
                                                                                     "_l"
                                                                                     "im"
                                                                                     "it"
                                                                                     "s_"
                                                                                     "sh"
                                                                                     "ar"
                                                                                     "ed"
                                                                                     "':"
                                                                                     " "
                                                                                     "[" R12(
                                                                                         "0, 0, 0, "
                                                                                         "0") "]",
     196, 1, 11, 1, EMBEDDING, 33, 0, 128, 3},
    {"Laguna-XS.2",
     SIZES(40, 2048, 48, 8, 100352) WIDTHS(8192, 512) EXPERTS(
         256, 8) "'model_type': 'laguna', 'head_dim': 128, "
                 "'shared_expert_intermediate_size': 512, "
                 "'gating': "
                 "true, 'sliding_window': 512, 'moe_routed_scaling_factor': 1.0, "
                 "'num_attention_heads_per_layer': [" R5(
                     "48, 64, 64, 64, 48, 64, 64, "
                     "64") "], 'layer_types': [" R5(F
                                                    ", " R3(S) ", " F ", " R3(
                                                        S)) "], 'rope_parameters': "
                                                            "{'full_attention': {'rope_type': "
                                                            "'default', "
                                                            "'rope_theta': 500000, "
                                                            "'partial_rotary_factor': 0.5}, "
                                                            "'sliding_attention': {'rope_type': "
                                                            "'default', "
                                                            "'rope_theta': 10000, "
                                                            "'partial_rotary_factor': 1.0}}",
     33, 1, 3, 1, NOTHING, 30, 0, 128, 1},
    {"Mistral-Small-4",
     "'model_type': 'mistral3', 'text_config': {" SIZES(36, 4096, 32, 32, 131072) WIDTHS(12288,
                                                                                         2048)
         ROUTED(128, 1,
                4) "'model_type': 'mistral4', 'q_lora_rank': 1024, "
                   "'kv_lora_rank': 256, 'qk_nope_head_dim': 64, 'qk_rope_head_dim': 64, "
                   "'v_head_dim': 128, "
                   "'n_group': 1, 'topk_group': 1, 'first_k_dense_replace': 0, "
                   "'routed_scaling_factor': 1.0, "
                   "'rope_parameters': {'type': 'yarn', 'rope_theta': 10000.0, 'factor': 128.0, "
                   "'original_max_position_embeddings': 8192, 'beta_fast': 32.0, 'beta_slow': 1.0, "
                   "'mscale': "
                   "1.0, 'mscale_all_dim': 1.0, 'llama_4_scaling_beta': 0.1}}",
     119, 1, 6, 1, EMBEDDING, 0, 0, 64, 1},
    {"Mistral-Large-4-1T-A52B",
     "'model_type': 'mistral_large4', 'text_config': {" SIZES(72, 6144, 64, 64, 204800)
         WIDTHS(24576, 6144)
             ROUTED(128, 1, 4) "'model_type': 'mistral_large4_text', 'kv_lora_rank': 512, "
                               "'qk_nope_head_dim': 64, 'qk_rope_head_dim': 64, 'v_head_dim': 128, "
                               "'index_topk': 2048, 'index_head_dim': 128, 'index_n_heads': 32, "
                               "'first_k_dense_replace': 1}",
     1000, 200, 52, 1, EMBEDDING, 0, 0, 64, 1},
    {"Qwen3.8-Flash-Next",
     "'model_type': 'qwen4_exp_text', 'num_hidden_layers': 48, 'hidden_size': 2560, 'vocab_size': "
     "248320, 'num_attention_heads': 24, 'num_key_value_heads': 2, 'head_dim': 256, 'num_experts': "
     "512, 'num_experts_per_tok': 10, 'moe_intermediate_size': 640, "
     "'shared_expert_intermediate_size': 640, 'linear_num_key_heads': 16, "
     "'linear_num_value_heads': 48, 'linear_key_head_dim': 128, 'linear_value_head_dim': 128, "
     "'hc_count': 4, 'hc_lowrank': 320, 'ple_layer_ids': [2], 'ple_embed_dim': 2560, "
     "'ple_conv_kernel_size': 4, 'ngram_size': 3, 'heads_per_ngram': 8, 'ngram_vocab_size_base': "
     "20000000, 'eos_token_id': 248044, 'indexer_budget': 2048, 'indexer_compress_ratio': 4, "
     "'tie_word_embeddings': false, 'rope_parameters': {'rope_type': 'default', 'rope_theta': "
     "10000000, 'partial_rotary_factor': 0.25}",
     176, 1, 6, 1, HEAD_TOO, 0, 36, 64, 1},
    /* 3.14 to 3.28 billion are active, by how many experts share an adjugate one. */
    {"GroveMoE-33B-A3B",
     "'architectures': ['GroveMoeForCausalLM'], " SIZES(48, 2048, 32, 4, 151936) WIDTHS(6144, 768)
         EXPERTS(128, 8) "'head_dim': 128, 'norm_topk_prob': true",
     33, 1, 3.28, 0.14, EMBEDDING, 0, 0, 128, 1},
    {"Ling-3.0-flash",
     SIZES(42, 2560, 32, 32, 157184) WIDTHS(6144, 768) LATENT_HEADS(
         null, 128, 64,
         128) "'model_type': 'bailing_hybrid', 'num_experts': 512, 'num_experts_per_tok': 8, "
              "'head_dim': 128, "
              "'num_shared_experts': 1, 'n_group': 8, 'topk_group': 4, 'first_k_dense_replace': 2, "
              "'norm_topk_prob': true, 'routed_scaling_factor': 2.5, 'short_conv_kernel_size': 4, "
              "'layer_group_size': 6, 'kda_safe_gate': true, 'kda_lower_bound': -5.0, "
              "'no_kda_lora': true, "
              "'gated_attention_proj_granularity_type': 'head_wise', 'rope_theta': 6000000, "
              "'num_nextn_predict_layers': 1",
     124, 1, 5.1, 0.1, EMBEDDING, 0, 35, 64, 2.5},
    {"OLMoE-1B-7B",
     SIZES(16, 2048, 16, 16, 50304)
         EXPERTS(64, 8) "'model_type': 'olmoe', 'intermediate_size': 1024, 'clip_qkv': null",
     6.9, 0.1, 1.3, 0.1, NOTHING, 0, 0, 128, 1},
    {"DBRX",
     "'model_type': 'dbrx', 'd_model': 6144, 'n_heads': 48, 'n_layers': 40, 'vocab_size': 100352, "
     "'attn_config': {'kv_n_heads': 8, 'clip_qkv': 8, 'rope_theta': 500000}, 'ffn_config': "
     "{'ffn_hidden_size': 10752, 'moe_num_experts': 16, 'moe_top_k': 4, "
     "'moe_normalize_expert_weights': 1}",
     132, 1, 36, 1, NOTHING, 0, 0, 128, 1},
    {"MiniMax-Text-01",
     SIZES(80, 6144, 64, 8,
           200064) "'model_type': 'minimax_text_01', 'head_dim': 128, 'intermediate_size': 9216, "
                   "'num_local_experts': 32, 'num_experts_per_tok': 2, 'postnorm': true, "
                   "'shared_intermediate_size': 0, 'rotary_dim': 64, 'rope_theta': 10000000, "
                   "'layernorm_full_attention_alpha': 3.5565588200778455, "
                   "'layernorm_linear_attention_alpha': 3.5565588200778455, "
                   "'layernorm_mlp_alpha': 3.5565588200778455, "
                   "'layernorm_full_attention_beta': 1.0, 'layernorm_linear_attention_beta': 1.0, "
                   "'layernorm_mlp_beta': 1.0, 'attn_type_list': [" R5(
                       "0, 0, 0, 0, 0, 0, 0, 1") ", " R5("0, 0, 0, 0, 0, 0, 0, 1") "]",
     456, 1, 45.9, 0.1, HEAD_TOO, 0, 70, 64, 1},
    {"Ling-lite",
     SIZES(28, 2048, 16, 4, 126464) WIDTHS(5632, 1408)
         EXPERTS(64, 6) "'model_type': 'bailing_moe', 'architectures': ['BailingMoeForCausalLM'], "
                        "'first_k_dense_replace': 0, 'num_shared_experts': 2, "
                        "'norm_topk_prob': true, 'rope_theta': 600000",
     16.8, 0.1, 2.75, 0.01, NOTHING, 0, 0, 128, 1},
    {"DeepSeek-OCR-2, the part that writes text",
     "'model_type': 'deepseek_ocr2', 'text_config': {" SIZES(12, 1280, 10, 10, 129280)
         WIDTHS(6848, 896) ROUTED(64, 2, 6) "'first_k_dense_replace': 1, "
                                            "'max_position_embeddings': 8192}",
     3, 1, 0.57, 0.01, EMBEDDING, 0, 0, 128, 1},
    {"Sarvam-105B",
     SIZES(32, 4096, 64, 64, 262144) WIDTHS(16384, 2048) LATENT_HEADS(null, 128, 64, 128)
         EXPERTS(128, 8) "'model_type': 'sarvam_mla', 'num_shared_experts': 1, 'n_group': 1, "
                         "'topk_group': 1, 'first_k_dense_replace': 1, "
                         "'routed_scaling_factor': 2.5",
     105, 1, 10.3, 0.1, HEAD_TOO, 0, 0, 64, 2.5},
    {"A.X-K1",
     SIZES(61, 7168, 64, 64, 163840) WIDTHS(18432, 2048) LATENT_HEADS(1536, 128, 64, 128)
         ROUTED(192, 1, 8) "'model_type': 'axk1', 'n_group': 8, 'topk_group': 4, "
                           "'first_k_dense_replace': 1, 'routed_scaling_factor': 2.5",
     519, 1, 33, 1, NOTHING, 0, 0, 64, 2.5},
    {"JetMoE-8B",
     "'model_type': 'jetmoe', 'num_hidden_layers': 24, 'hidden_size': 2048, 'vocab_size': 32000, "
     "'num_key_value_heads': 16, 'kv_channels': 128, 'intermediate_size': 5632, "
     "'num_local_experts': 8, 'num_experts_per_tok': 2",
     8, 2, 2.2, 0.2, EMBEDDING, 0, 0, 128, 1},
    {"Muse-Spark-816B-A42B",
     SIZES(62, 8192, 128, 16, 202048) WIDTHS(16384, 4096) "'model_type': 'muse_spark_text', "
                                                          "'head_dim': 64, 'moe_hidden_size': "
                                                          "4096, 'num_local_experts': 256, "
                                                          "'num_experts_per_tok': 8, "
                                                          "'sliding_window': 2048",
     816, 1, 42, 2, HEAD_TOO, 46, 0, 64, 1},
    {"Mixtral-8x22B",
     SIZES(56, 6144, 48, 8,
           32000) "'model_type': 'mixtral', 'intermediate_size': 16384, "
                  "'num_local_experts': 8, 'num_experts_per_tok': 2, 'sliding_window': null",
     140.6, 0.1, 39, 1, NOTHING, 0, 0, 128, 1},
    {"NLLB-MoE-54B",
     "'model_type': 'nllb-moe', 'd_model': 2048, 'encoder_layers': 24, 'decoder_layers': 24, "
     "'encoder_ffn_dim': 8192, 'decoder_ffn_dim': 8192, 'num_experts': 128, 'vocab_size': 256206",
     54.5, 0.1, 0, 0, NOTHING, 0, 0, 0, 0.8},
};

static struct moe_config config;

static void read_model(const char *name, const char *text)
{
    char json_text[8192];
    struct moe_err err = {0};
    struct json_t *json;
    int n = snprintf(json_text, sizeof json_text, "{%s, 'max_position_embeddings': 131072}", text);
    assert_in_range(n, 1, sizeof json_text - 1);
    for (char *p = json_text; *p; p++)
        if (*p == '\'')
            *p = '"';
    assert_ok(moe_json_parse(&json, name, json_text, (size_t)n, MOE_JSON_CONFIG_MEMORY, &err),
              &err);
    assert_ok(moe_config_read_hf_json(&config, name, json, &err), &err);
    moe_json_free(json);
}

/* Parameters that a token uses: all but those of experts that are not chosen. */
static double active_of(const struct moe_config *c, double parameters)
{
    double matrices = moe_act_is_gated(c->expert_act) ? 3 : 2;
    double expert = matrices * moe_config_expert_dim(c) * c->expert_ff;
    double attention = 2.0 * c->n_kv_heads * c->head_dim * c->hidden; /* of attn_experts */
    if (c->attn_experts)
        parameters -= attention * c->n_layers * (c->attn_experts - c->n_heads / c->n_kv_heads);
    if (c->adjugate_of) /* each of a token's experts has another one */
        parameters -= 3.0 * c->hidden * c->adjugate_ff * c->n_moe_layers *
                      (c->n_experts / c->adjugate_of - c->top_k);
    parameters -= (double)c->ngram_rows * c->ngram_dim;
    return parameters - expert * c->n_moe_layers * (c->n_experts - c->top_k);
}

static void assert_published(const char *name, const char *what, double got, double published,
                             double unit)
{
    if (fabs(got - published) > fmax(0.01 * published, 0.5 * unit))
        fail_msg("%s: %.4g billion %s parameters, published are %.4g", name, got, what, published);
}

static void sizes_are_those_published(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_ITEMS(models); i++) {
        struct moe_shape_bytes bytes;
        struct moe_err err = {0};
        const char *name = models[i].name;
        read_model(name, models[i].text);
        assert_ok(moe_shape_bytes(&bytes, &config, (struct moe_bits){4, 4}, 8, 64, &err), &err);
        double all = (double)bytes.parameters, active = active_of(&config, all);
        double embedding = (double)config.vocab * config.hidden;
        if (models[i].apart != NOTHING)
            active -= embedding * (models[i].apart == HEAD_TOO && !config.tied_head ? 2 : 1);
        assert_published(name, "", all / 1e9, models[i].total, models[i].unit);
        if (models[i].active > 0)
            assert_published(name, "active", active / 1e9, models[i].active, models[i].active_unit);
        if (moe_config_count_layers(&config, MOE_LAYER(windowed)) != models[i].n_windowed ||
            moe_config_count_layers(&config, MOE_LAYER(recurrent)) != models[i].n_recurrent)
            fail_msg("%s: %u layers with windows, %u with states", name,
                     moe_config_count_layers(&config, MOE_LAYER(windowed)),
                     moe_config_count_layers(&config, MOE_LAYER(recurrent)));
        if (config.rope_dim != models[i].rope_dim ||
            config.routed_scale != (float)models[i].routed_scale)
            fail_msg("%s: %u values are rotated, weights scaled by %g", name, config.rope_dim,
                     (double)config.routed_scale);
    }
}

/* One line of FAMILIES.md's lists of architectures, `names` | what becomes of them. Returns how
 * many it names. */
static int check_listed(char *line, bool gguf)
{
    int n = 0;
    char *said = strstr(line + 2, " | ");
    assert_non_null(said);
    bool runs = strncmp(said, " | runs |", 9) == 0;
    for (char *name = strchr(line, '`'); name && name < said; n++) {
        char *end = strchr(name + 1, '`');
        assert_non_null(end);
        *end = '\0';
        const char *why = moe_family_left_out(name + 1);
        bool known = gguf ? moe_family_find_gguf(name + 1, true, false) != NULL
                          : moe_family_find(name + 1) != NULL;
        if (runs != known || (!runs && why && !strstr(said, why)) || (known && why))
            fail_msg("tests/FAMILIES.md says of '%s'%s, which is %sa family", name + 1, said,
                     known ? "" : "not ");
        name = strchr(end + 1, '`');
        /* the sentence names it again */
        if (!runs)
            return n + 1;
    }
    return n;
}

/* fixtures/list_families.py wrote what the page says of all architectures with routed experts. */
static void architectures_are_as_listed(void **state)
{
    (void)state;
    char line[4096];
    int n[2] = {0}, table = -1;
    FILE *page = fopen("tests/FAMILIES.md", "r");
    assert_non_null(page);
    while (fgets(line, sizeof line, page)) {
        if (strncmp(line, "| Model types of", 16) == 0)
            table = 0;
        else if (strncmp(line, "| Architectures of", 18) == 0)
            table = 1;
        else if (strncmp(line, "| `", 3) == 0 && table >= 0)
            n[table] += check_listed(line, table == 1);
        else if (line[0] != '|')
            table = -1;
    }
    fclose(page);
    assert_true(n[0] > 60 && n[1] > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_those_published),
        cmocka_unit_test(architectures_are_as_listed),
    };
    return cmocka_run_group_tests_name("published", tests, NULL, NULL);
}
