/*
 * Writes seeds of fuzz_config, packs' descriptions that each have one thing wrong, and of
 * fuzz_gguf, the smallest descriptions of families with settings of their own. Run it in
 * tests/fuzz/corpus.
 */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/file.h"

/* ---- A pack's ---- */

static const struct changed {
    const char *name, *of, *from, *to;
} changes[] = {
    {"values-without-latent", "pack", "\"head_dim\":16", "\"head_dim\":16,\"value_dim\":8"},
    {"latent-too-wide", "deepseek-v2-pack", "\"kv_rank\":32", "\"kv_rank\":1000000"},
    {"latent-all-rotated", "deepseek-v2-pack", "\"rope_dim\":8", "\"rope_dim\":24"},
    {"latent-biases", "deepseek-v2-pack", "\"qkv_bias\":false", "\"qkv_bias\":true"},
    {"few-frequencies", "deepseek-v2-pack", "\"rope_freqs\":[1,", "\"rope_freqs\":["},
    {"no-long-frequencies", "pack", "\"rope_theta\"", "\"rope_original\":64,\"rope_theta\""},
    {"sparsemixer-of-three", "phimoe-pack", "\"top_k\":2", "\"top_k\":3"},
    {"encoder-alone", "switch-pack", "\"n_encoder\":4", "\"n_encoder\":6"},
    {"start-beyond-vocabulary", "switch-pack", "\"decoder_start\":3", "\"decoder_start\":100"},
    {"encoder-and-prefix", "switch-pack", "\"n_encoder\":4", "\"n_encoder\":4,\"prefix_lm\":true"},
    {"encoder-of-layer-norms", "switch-pack", "\"norm_eps\"",
     "\"norm_kind\":\"layer\",\"norm_eps\""},
    {"capacity-without-source", "pack", "\"norm_topk\"", "\"expert_capacity\":4,\"norm_topk\""},
    {"buckets-too-near", "switch-pack", "\"bucket_distance\":40", "\"bucket_distance\":8"},
    {"buckets-rotated", "switch-pack", "\"rope_theta\"", "\"rope_dim\":8,\"rope_theta\""},
    {"dense-clamped", "switch-pack", "\"dense_act\":\"relu\"", "\"dense_act\":\"swiglu-clamped\""},
    {"capacity-of-none", "switch-hf", "\"expert_capacity\": 6", "\"expert_capacity\": 0"},
    {"too-many-layers", "switch-hf", "\"num_layers\": 4", "\"num_layers\": 1023"},
    {"no-decoder", "switch-hf", "\"num_decoder_layers\": 2", "\"num_decoder_layers\": 0"},
    {"symmetric-stacks", "switch-hf", "\"num_decoder_layers\": 2", "\"num_decoder_layers\": null"},
    {"bypass-of-stacks", "switch-pack", "\"norm_topk\"", "\"soft_bypass\":true,\"norm_topk\""},
    {"overflow-of-none", "gptsan-pack", "\"expert_capacity\":6,", ""},
    {"gated-biases", "gptsan-pack", "\"dense_act\":\"silu\",", ""},
    {"positions-too-late", "gptsan-pack", "\"extra_positions\":2", "\"extra_positions\":3"},
    {"heads-of-no-width", "gptsan-hf", "\"num_heads\": 4", "\"num_heads\": 5"},
    {"no-switch-layers", "gptsan-hf", "\"num_switch_layers\": 2", "\"num_switch_layers\": 0"},
    {"steps-from-counts", "switch-hf", "\"encoder_sparse_step\": 2",
     "\"num_sparse_encoder_layers\": 2"},
};

static int make_config(const struct changed *c, struct moe_err *err)
{
    char from[64], to[64];
    struct moe_buf base = {0}, text = {0};
    snprintf(from, sizeof from, "config/%s", c->of);
    snprintf(to, sizeof to, "config/%s", c->name);
    int status = moe_file_read_all(from, 1 << 16, &base, err);
    const char *whole = (const char *)base.data;
    const char *at = status == MOE_OK ? strstr(whole, c->from) : NULL;
    if (status == MOE_OK && !at)
        status = moe_fail(err, MOE_ERR_FORMAT, "%s: no %s", from, c->from);
    if (status == MOE_OK) {
        moe_buf_append(&text, whole, (uint64_t)(at - whole));
        moe_buf_text(&text, c->to);
        moe_buf_text(&text, at + strlen(c->from));
        status = moe_file_write_all(to, text.data, text.size, err);
    }
    moe_buf_release(&base);
    moe_buf_release(&text);
    return status;
}

/* ---- GGUF ---- */

enum { U32 = 4, F32 = 6, TEXT = 8, HIDDEN = 64, VOCAB = 4, ALIGNMENT = 32 };

static void put_text(struct moe_buf *out, const char *text)
{
    moe_buf_u64(out, strlen(text));
    moe_buf_text(out, text);
}

/* A family's key, its kind and, but for texts, its value. */
static void put_key(struct moe_buf *out, const char *arch, const char *key, uint32_t kind)
{
    char whole[96];
    snprintf(whole, sizeof whole, "%s.%s", arch, key);
    put_text(out, whole);
    moe_buf_u32(out, kind);
}

static int make_gguf(const char *arch, struct moe_err *err)
{
    static const struct {
        const char *key;
        uint32_t value;
    } numbers[] = {
        {"block_count", 2},
        {"context_length", 128},
        {"embedding_length", HIDDEN},
        {"feed_forward_length", 96},
        {"attention.head_count", 4},
        {"expert_count", 4},
        {"expert_used_count", 2},
        {"expert_feed_forward_length", 32},
        {"attention.sliding_window", 16},
        {"attention.key_length", 16},
        {"attention.value_length", 16},
    };
    enum { N_NUMBERS = sizeof numbers / sizeof numbers[0] };
    char path[64];
    struct moe_buf out = {0};
    moe_buf_text(&out, "GGUF");
    moe_buf_u32(&out, 3);
    moe_buf_u64(&out, 1);
    moe_buf_u64(&out, N_NUMBERS + 2);
    put_key(&out, "general", "architecture", TEXT);
    put_text(&out, arch);
    put_key(&out, arch, "attention.layer_norm_rms_epsilon", F32);
    moe_buf_u32(&out, 0x3727c5ac); /* 1e-5 */
    for (int i = 0; i < N_NUMBERS; i++) {
        put_key(&out, arch, numbers[i].key, U32);
        moe_buf_u32(&out, numbers[i].value);
    }
    put_text(&out, "token_embd.weight");
    moe_buf_u32(&out, 2);
    moe_buf_u64(&out, HIDDEN);
    moe_buf_u64(&out, VOCAB);
    moe_buf_u32(&out, 1); /* f16 */
    moe_buf_u64(&out, 0);
    while (out.size % ALIGNMENT)
        moe_buf_u8(&out, 0);
    for (int i = 0; i < HIDDEN * VOCAB; i++)
        moe_buf_u16(&out, 0);
    snprintf(path, sizeof path, "gguf/%s", arch);
    int status = moe_file_write_all(path, out.data, out.size, err);
    moe_buf_release(&out);
    return status;
}

int main(void)
{
    struct moe_err err;
    int status = MOE_OK;
    for (size_t i = 0; i < sizeof changes / sizeof changes[0] && status == MOE_OK; i++)
        status = make_config(&changes[i], &err);
    if (status == MOE_OK)
        status = make_gguf("minicpm", &err);
    if (status == MOE_OK)
        status = make_gguf("gpt-oss", &err);
    if (status != MOE_OK)
        fprintf(stderr, "make_config_seeds: %s\n", err.text);
    return status != MOE_OK;
}
