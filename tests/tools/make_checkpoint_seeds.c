/*
 * Writes the seeds of fuzz_checkpoint: directories of files in the form that target wants. Run it
 * in tests/fuzz/corpus/checkpoint.
 */
#include <stdio.h>
#include <string.h>

#include "base/file.h"

enum { INDEX, MODEL, SHARD_A, SHARD_B, CONFIG, GENERATION, TEMPLATE, TOKENIZER_CONFIG, TOKENIZER };
enum { AS_IT_STANDS = 128, TORCH = 9, GGUF };

#define TENSOR(name, dtype, shape, begin, end)                                                     \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" begin "," end \
    "]}"
#define FP8(name, shape, begin, end) TENSOR(name, "F8_E4M3", shape, begin, end)
#define BLOCKS TENSOR("x_blocks", "U8", "2,1,16", "0", "32")
#define SCALES TENSOR("x_scales", "U8", "2,1", "32", "34")
#define CONFIG_TEXT                                                                                \
    "{\"model_type\":\"mixtral\",\"num_hidden_layers\":1,\"hidden_size\":32,\"vocab_size\":16,"    \
    "\"max_position_embeddings\":64,\"num_attention_heads\":2,\"num_key_value_heads\":1,"          \
    "\"intermediate_size\":32,\"num_local_experts\":2,\"num_experts_per_tok\":1,"                  \
    "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"model_max_length\":Infinity}"

static const struct {
    const char *name;
    struct {
        int which;
        const char *text;
    } files[6];
} seeds[] = {
    {"single",
     {{MODEL,
       "{\"__metadata__\":{\"format\":\"pt\"}," TENSOR("a", "F32", "2,2", "0", "16") "," TENSOR(
           "b", "BF16", "3", "16", "22") "," TENSOR("c", "I64", "", "24",
                                                    "32") "," TENSOR("e", "F16", "0", "40",
                                                                     "40") "}"},
      {CONFIG, CONFIG_TEXT},
      {GENERATION, "{\"eos_token_id\":[1,2]}"},
      {TEMPLATE, "{% for message in messages %}{{ message }}{% endfor %}"}}},
    {"shards",
     {{INDEX, "{\"metadata\":{\"total_size\":34},\"weight_map\":{\"x_blocks\":\"a.safetensors\","
              "\"x_scales\":\"b.safetensors\"}}"},
      {SHARD_A, "{" BLOCKS "}"},
      {SHARD_B, "{" TENSOR("x_scales", "U8", "2,1", "0", "2") "}"},
      {TOKENIZER_CONFIG, "{\"chat_template\":[{\"name\":\"default\",\"template\":\"{{bos}}\"}],"
                         "\"bos_token\":{\"content\":\"a\"}}"}}},
    {"pair", {{MODEL, "{" BLOCKS "," SCALES "}"}}},
    {"no-pair",
     {{MODEL, "{" BLOCKS "," TENSOR("x_scales", "U8", "3,1", "32",
                                    "35") "," TENSOR("x", "U8", "1", "40", "41") "}"}}},
    {"fp8",
     {{MODEL,
       "{" FP8("a", "3,5", "0", "15") "," TENSOR("a_scale_inv", "F32", "2,2", "15", "31") "," FP8(
           "b", "2,4", "31",
           "39") "," TENSOR("b_scale", "F8_E8M0", "2,1", "39",
                            "41") "," FP8("c", "2", "41",
                                          "43") "," TENSOR("c_scale", "BF16", "1", "43",
                                                           "45") "," FP8("d", "1,2", "45",
                                                                         "47") "}"},
      {CONFIG, "{\"quantization_config\":{\"weight_block_size\":[2,3]}}"}}},
    {"fp8-structure",
     {{MODEL,
       "{" FP8("a", "2,2,2", "0", "8") "," TENSOR("a_scale", "BF16", "2,1,2", "8", "16") "," FP8(
           "b", "2,4", "31", "39") "," TENSOR("b_scale", "F16", "", "39", "41") "}"},
      {CONFIG, "{\"quantization_config\":{\"config_groups\":{\"group_0\":{\"weights\":"
               "{\"block_structure\":[2,1]}}}}}"}}},
    {"fp8-no-blocks",
     {{MODEL, "{" FP8("a", "3,5", "0", "15") "}"},
      {CONFIG, "{\"quantization_config\":{\"weight_block_size\":[2]}}"}}},
    {"int4",
     {{MODEL,
       "{" TENSOR("a_packed", "I32", "2,1", "0", "8") "," TENSOR(
           "a_scale", "BF16", "2,2", "8",
           "16") "," TENSOR("a_shape", "I32", "2", "16",
                            "24") "," TENSOR("b_packed", "I32", "1,1", "24",
                                             "28") "," TENSOR("b_scale", "BF16", "1,1", "28",
                                                              "30") "," TENSOR("b_g_idx", "U8", "1",
                                                                               "30", "31") "}"}}},
    {"gptq",
     {{MODEL, "{" TENSOR("a.qweight", "I32", "4,8", "0", "128") "," TENSOR(
                  "a.qzeros", "I32", "1,1", "128",
                  "132") "," TENSOR("a.scales", "F16", "1,8", "132",
                                    "148") "," TENSOR("a.g_idx", "I32", "32", "148", "276") "}"},
      {CONFIG, "{\"quantization_config\":{\"bits\":4,\"group_size\":32,\"desc_act\":true}}"}}},
    {"awq",
     {{MODEL, "{" TENSOR("a.qweight", "I32", "32,1", "0", "128") "," TENSOR(
                  "a.qzeros", "I32", "1,1", "128", "132") "," TENSOR("a.scales", "BF16", "1,8",
                                                                     "132", "148") "}"}}},
    {"nvfp4",
     {{MODEL, "{" TENSOR("a", "U8", "1,32", "0", "32") "," TENSOR(
                  "a_scale", "F8_E4M3", "1,4", "32", "36") "," TENSOR("a_scale_2", "F32", "", "36",
                                                                      "40") "}"}}},
    {"int-bytes",
     {{MODEL, "{" TENSOR("a", "I8", "2,32", "0", "64") "," TENSOR(
                  "a_scale", "BF16", "2,1", "64", "68") "," TENSOR("a_zero_point", "I8", "2,1",
                                                                   "68", "70") "}"}}},
    {"bnb",
     {{MODEL, "{" TENSOR("a", "U8", "32,1", "0", "32") "," TENSOR(
                  "a.absmax", "F32", "1", "32",
                  "36") "," TENSOR("a.quant_map", "F32", "16", "36",
                                   "100") "," TENSOR("a.quant_state.bitsandbytes__nf4", "U8", "9",
                                                     "100", "109") "}"}}},
    {"overlap",
     {{MODEL, "{" TENSOR("a", "U8", "4", "0", "4") "," TENSOR("b", "U8", "4", "2", "6") "}"}}},
    {"long-shape", {{MODEL, "{" TENSOR("a", "F32", "1,1,1,1,1", "0", "4") "}"}}},
    {"elsewhere",
     {{INDEX, "{\"weight_map\":{\"a\":\"a.safetensors\",\"b\":\"a.safetensors\"}}"},
      {SHARD_A, "{" TENSOR("a", "U8", "1", "0", "1") "," TENSOR("b", "U8", "1", "1", "2") "}"},
      {TOKENIZER_CONFIG, "{\"chat_template\":\"{{ bos_token }}\",\"x\":NaN}"}}},
    {"not-in-index",
     {{INDEX, "{\"weight_map\":{\"a\":\"a.safetensors\"}}"},
      {SHARD_A, "{" TENSOR("a", "U8", "1", "0", "1") "," TENSOR("b", "U8", "1", "1", "2") "}"}}},
    {"missing-tensor",
     {{INDEX, "{\"weight_map\":{\"a\":\"a.safetensors\",\"b\":\"a.safetensors\"}}"},
      {SHARD_A, "{" TENSOR("a", "U8", "1", "0", "1") "}"}}},
    {"missing-shard", {{INDEX, "{\"weight_map\":{\"a\":\"c.safetensors\"}}"}}},
    {"outside", {{INDEX, "{\"weight_map\":{\"a\":\"../a\"}}"}}},
    {"empty-map", {{INDEX, "{\"weight_map\":{}}"}}},
    {"number-in-map", {{INDEX, "{\"weight_map\":{\"a\":1}}"}}},
    {"no-json", {{INDEX, "{\"weight_map\""}}},
    {"twice",
     {{INDEX, "{\"weight_map\":{\"a\":\"a.safetensors\",\"b\":\"b.safetensors\"}}"},
      {SHARD_A, "{" TENSOR("a", "U8", "1", "0", "1") "}"},
      {SHARD_B, "{" TENSOR("a", "U8", "1", "0", "1") "}"}}},
    {"tokenizer",
     {{TOKENIZER, "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},"
                  "\"merges\":[\"a b\"]},\"pre_tokenizer\":{\"type\":\"ByteLevel\"},"
                  "\"decoder\":{\"type\":\"ByteLevel\"}}"},
      {TOKENIZER_CONFIG, "{\"bos_token\":{\"content\":\"a\"},\"eos_token\":\"b\","
                         "\"add_bos_token\":true}"}}},
    {"short", {{MODEL | AS_IT_STANDS, "abc"}}},
    {"long-header", {{MODEL | AS_IT_STANDS, "abcdefghijkl"}}},
    {"torch", {{CONFIG, "{}"}, {TORCH, ""}}},
    {"gguf", {{GGUF, ""}}},
    {"others", {{SHARD_A, "{}"}}},
    {"config-only", {{CONFIG, CONFIG_TEXT}}},
};

int main(void)
{
    struct moe_err err;
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) {
        struct moe_buf seed = {0};
        for (int f = 0; f < 6 && seeds[i].files[f].text; f++) {
            const char *text = seeds[i].files[f].text;
            moe_buf_u8(&seed, (uint8_t)seeds[i].files[f].which);
            moe_buf_u16(&seed, (uint16_t)strlen(text));
            moe_buf_text(&seed, text);
        }
        int status = moe_file_write_all(seeds[i].name, seed.data, seed.size, &err);
        moe_buf_release(&seed);
        if (status != MOE_OK) {
            fprintf(stderr, "make_checkpoint_seeds: %s\n", err.text);
            return 1;
        }
    }
    return 0;
}
