/*
 * Writes seeds of fuzz_config, packs' descriptions that each have one thing wrong, and of
 * fuzz_gguf, the smallest descriptions of families with settings of their own; and of both, those
 * of some fixtures. Run it in tests/fuzz/corpus.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/float16.h"
#include "fmt/json.h"
#include "model/config.h"
#include "model/read.h"

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
    {"sinusoids-of-odd-width", "nllb-a-pack", "\"hidden\":28", "\"hidden\":27"},
    {"first-of-no-sinusoids", "nllb-a-pack", "\"positions\":\"sinusoids\",", ""},
    {"no-pools", "glm5.3-pack", "\"index_pooled\":true,", ""},
    {"blocks-of-none", "minimax-m3-pack", "\"index_block\":16", "\"index_block\":0"},
    {"ngrams-of-one", "qwen4-a-pack", "\"ngrams\":3", "\"ngrams\":1"},
    {"block-of-one", "dspark-a-pack", "\"draft_block\":5", "\"draft_block\":1"},
    {"reads-nothing", "dflash-b-pack", "\"reads\":[2]", "\"reads\":[]"},
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

enum {
    U32 = 4,
    I32 = 5,
    F32 = 6,
    BOOL = 7,
    TEXT = 8,
    LIST = 9,
    U64 = 10,
    HIDDEN = 64,
    VOCAB = 4,
    ALIGNMENT = 32
};

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

/* The one tensor, an embedding, behind n keys, as a file of the corpus. */
static int finish_gguf(const struct moe_buf *keys, uint64_t n_keys, const char *name,
                       struct moe_err *err)
{
    char path[64];
    struct moe_buf out = {0};
    moe_buf_text(&out, "GGUF");
    moe_buf_u32(&out, 3);
    moe_buf_u64(&out, 1);
    moe_buf_u64(&out, n_keys);
    moe_buf_append(&out, keys->data, keys->size);
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
    snprintf(path, sizeof path, "gguf/%s", name);
    int status = moe_file_write_all(path, out.data, out.size, err);
    moe_buf_release(&out);
    return status;
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
    struct moe_buf keys = {0};
    put_key(&keys, "general", "architecture", TEXT);
    put_text(&keys, arch);
    put_key(&keys, arch, "attention.layer_norm_rms_epsilon", F32);
    moe_buf_u32(&keys, 0x3727c5ac); /* 1e-5 */
    for (int i = 0; i < N_NUMBERS; i++) {
        put_key(&keys, arch, numbers[i].key, U32);
        moe_buf_u32(&keys, numbers[i].value);
    }
    int status = finish_gguf(&keys, N_NUMBERS + 2, arch, err);
    moe_buf_release(&keys);
    return status;
}

/* ---- Of fixtures ---- */

/* A value of drawn.txt in its type of GGUF. */
static void put_value(struct moe_buf *out, uint32_t kind, const char *text)
{
    if (kind == F32)
        moe_buf_u32(out, moe_f32_bits(strtof(text, NULL)));
    else if (kind == BOOL)
        moe_buf_u8(out, *text == '1');
    else if (kind == U64)
        moe_buf_u64(out, strtoull(text, NULL, 10));
    else
        moe_buf_u32(out, (uint32_t)strtoll(text, NULL, 10));
}

/* Appends "KEY KIND VALUE..." of a line; false: of a kind, or about tokens, that is left out. */
static bool put_line(struct moe_buf *out, char *line)
{
    static const struct {
        const char *name;
        uint32_t kind;
    } kinds[] = {{"u32", U32},   {"i32", I32}, {"f32", F32},
                 {"bool", BOOL}, {"u64", U64}, {"string", TEXT}};
    char *key = strtok(line, " "), *kind = strtok(NULL, " "), *value = strtok(NULL, "");
    if (!key || !kind || !value || strncmp(key, "tokenizer", 9) == 0 || *value == '<')
        return false;
    bool list = strstr(kind, "[]") != NULL;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strncmp(kind, kinds[i].name, strlen(kinds[i].name)) != 0)
            continue;
        struct moe_buf items = {0};
        uint64_t n = 0;
        put_text(out, key);
        moe_buf_u32(out, list ? LIST : kinds[i].kind);
        if (kinds[i].kind == TEXT)
            put_text(out, value);
        for (char *item = kinds[i].kind == TEXT ? NULL : strtok(value, " "); item;
             item = strtok(NULL, " "), n++)
            put_value(&items, kinds[i].kind, item);
        if (list) {
            moe_buf_u32(out, kinds[i].kind);
            moe_buf_u64(out, n);
        }
        moe_buf_append(out, items.data, items.size);
        moe_buf_release(&items);
        return true;
    }
    return false;
}

/* The keys of a fixture's GGUF file. */
static int make_fixture_gguf(const char *fixture, struct moe_err *err)
{
    char path[96];
    struct moe_buf text = {0}, keys = {0};
    uint64_t n = 0;
    snprintf(path, sizeof path, "../../fixtures/%s/drawn.txt", fixture);
    int status = moe_file_read_all(path, 1 << 20, &text, err);
    moe_buf_u8(&text, 0);
    for (char *at = status == MOE_OK ? (char *)text.data : NULL, *end; at; at = end) {
        end = strchr(at, '\n');
        if (end)
            *end++ = '\0';
        if (strncmp(at, "kv ", 3) == 0)
            n += put_line(&keys, at + 3);
    }
    if (status == MOE_OK)
        status = finish_gguf(&keys, n, fixture, err);
    moe_buf_release(&text);
    moe_buf_release(&keys);
    return status;
}

/* Its config.json, and that model's description in a pack. */
static int make_fixture_config(const char *fixture, struct moe_err *err)
{
    static struct moe_config config;
    char path[96];
    struct moe_buf text = {0}, pack = {0};
    struct json_t *json = NULL;
    int status;
    snprintf(path, sizeof path, "../../fixtures/%s/config.json", fixture);
    MOE_STEP(moe_file_read_all(path, 1 << 16, &text, err));
    MOE_STEP(moe_json_parse(&json, path, text.data, text.size, MOE_JSON_CONFIG_MEMORY, err));
    MOE_STEP(moe_config_read_hf_json(&config, path, json, err));
    moe_config_write(&config, &pack);
    snprintf(path, sizeof path, "config/%s-hf", fixture);
    MOE_STEP(moe_file_write_all(path, text.data, text.size, err));
    snprintf(path, sizeof path, "config/%s-pack", fixture);
    MOE_STEP(moe_file_write_all(path, pack.data, pack.size, err));
out:
    moe_json_free(json);
    moe_buf_release(&text);
    moe_buf_release(&pack);
    return status;
}

int main(void)
{
    static const char *const fixtures[] = {"glm5.3", "minimax-m3", "qwen4-a",
                                           "nllb-a", "dflash-b",   "dspark-a"};
    static const char *const with_gguf[] = {"glm5.3", "minimax-m3", "qwen4-a", "dspark-a"};
    struct moe_err err;
    int status = MOE_OK;
    for (size_t i = 0; i < sizeof fixtures / sizeof fixtures[0] && status == MOE_OK; i++)
        status = make_fixture_config(fixtures[i], &err);
    for (size_t i = 0; i < sizeof with_gguf / sizeof with_gguf[0] && status == MOE_OK; i++)
        status = make_fixture_gguf(with_gguf[i], &err);
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
