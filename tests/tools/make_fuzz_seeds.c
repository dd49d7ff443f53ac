/*
 * Writes the seeds of fuzz_pack: small packs with one of everything, squeezed as that target wants
 * them. Run it in tests/fuzz/corpus/pack.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "pack/pack.h"

enum { PAGE = 4096, HEADER_USED = 64 + 8 * 32 }; /* header without its zeros and checksum */

/* Replaces the pack by its squeezed form. */
static int squeeze(const char *path, struct moe_err *err)
{
    struct moe_buf pack = {0}, seed = {0};
    int status = moe_file_read_all(path, 1 << 20, &pack, err);
    for (uint64_t at = 0; status == MOE_OK && at + PAGE <= pack.size; at += PAGE) {
        uint16_t n = PAGE;
        while (n > 0 && pack.data[at + n - 1] == 0)
            n--;
        if (at == 0)
            n = HEADER_USED; /* its checksum, at the end, is made again */
        moe_buf_u16(&seed, n);
        moe_buf_append(&seed, pack.data + at, n);
    }
    if (status == MOE_OK)
        status = moe_file_write_all(path, seed.data, seed.size, err);
    moe_buf_release(&pack);
    moe_buf_release(&seed);
    return status;
}

static int put_tensor(struct moe_pack_writer *w, const char *name, bool is_vector,
                      struct moe_layout layout, uint32_t rows, uint32_t cols, struct moe_err *err)
{
    struct moe_pack_tensor t = {
        .is_vector = is_vector, .layout = layout, .rows = rows, .cols = cols};
    snprintf(t.name, sizeof t.name, "%s", name);
    uint64_t n = is_vector ? 4 * (uint64_t)rows : moe_layout_bytes(layout, rows, cols);
    uint8_t *raw = moe_alloc(n, 1, err);
    if (!raw)
        return MOE_ERR_MEMORY;
    memset(raw, 1, n / 8);
    int status = moe_pack_put_tensor(w, &t, raw, err);
    free(raw);
    return status;
}

static int put_expert(struct moe_pack_writer *w, uint32_t layer, uint32_t expert, uint32_t variant,
                      uint16_t kind, struct moe_err *err)
{
    struct moe_layout layout = {kind, 32};
    uint64_t n = moe_layout_bytes(layout, 16, 32);
    struct moe_expert_class c = {
        .n_segments = 2,
        .n_matrices = 4,
        .segment_bytes = {2 * n, n + 64},
        .matrices = {{MOE_ROLE_GATE, 0, layout, 16, 32, 0},
                     {MOE_ROLE_UP, 0, layout, 16, 32, n},
                     {MOE_ROLE_DOWN, 1, layout, 16, 32, 0},
                     {MOE_ROLE_DOWN_BIAS, 1, {MOE_LAYOUT_F32, 0}, 16, 1, n}},
    };
    uint32_t index;
    uint8_t *raw = moe_alloc(2 * n + 64, 1, err);
    if (!raw)
        return MOE_ERR_MEMORY;
    raw[0] = (uint8_t)expert;
    const void *segments[2] = {raw, raw};
    int status = moe_pack_put_class(w, &c, &index, err);
    if (status == MOE_OK)
        status = moe_pack_put_expert(w, layer, expert, variant, index, segments, err);
    free(raw);
    return status;
}

static const char model[] =
    "{\"family\":\"qwen2_moe\",\"n_layers\":2,\"hidden\":32,\"vocab\":16,\"context_max\":64,"
    "\"n_heads\":2,\"n_kv_heads\":1,\"head_dim\":16,\"qkv_bias\":true,\"rope_theta\":10000,"
    "\"norm_eps\":1e-6,\"tied_head\":true,\"dense_ff\":32,\"n_experts\":2,\"top_k\":1,"
    "\"expert_ff\":16,\"shared_ff\":0,\"shared_gate\":false,\"norm_topk\":false,"
    "\"moe_layers\":[1],\"eos\":[0]}";

static int make(const char *path, uint32_t n_variants, int zstd_level, struct moe_err *err)
{
    static const struct moe_pack_variant variants[] = {{"8", "rtn"}, {"2", "hqq"}};
    struct moe_layout q4 = {MOE_LAYOUT_Q4, 32}, f32 = {MOE_LAYOUT_F32, 0};
    struct moe_pack_writer *w;
    int status = moe_pack_create(&w, path, 2, 2, variants, n_variants, 7, zstd_level, err);
    if (status != MOE_OK)
        return status;
    status = moe_pack_put_section(w, MOE_PACK_MODEL, model, strlen(model), err);
    if (status == MOE_OK)
        status = moe_pack_put_section(w, MOE_PACK_PROVENANCE, "{}", 2, err);
    if (status == MOE_OK)
        status = put_tensor(w, "final_norm", true, f32, 32, 1, err);
    if (status == MOE_OK)
        status = put_tensor(w, "embed", false, q4, 16, 32, err);
    for (uint32_t v = 0; v < n_variants && status == MOE_OK; v++)
        for (uint32_t e = 0; e < 2 - v && status == MOE_OK; e++)
            status = put_expert(w, 1, e, v, v ? MOE_LAYOUT_Q2 : MOE_LAYOUT_Q8, err);
    if (status != MOE_OK) {
        moe_pack_abort(w);
        return status;
    }
    status = moe_pack_commit(w, err);
    return status == MOE_OK ? squeeze(path, err) : status;
}

int main(void)
{
    struct moe_err err;
    if (make("dense", 0, 0, &err) != MOE_OK || make("two-variants", 2, 0, &err) != MOE_OK ||
        make("zstd", 1, 3, &err) != MOE_OK) {
        fprintf(stderr, "make_fuzz_seeds: %s\n", err.text);
        return 1;
    }
    return 0;
}
