/* GGUF files whose matrices have the block types that a test wants: the Mixtral fixture's metadata
 * for a model of 256 hidden units, which K-quants need, and random blocks. Needs scratch_dir.h. */
#ifndef TESTS_FORGE_GGUF_H
#define TESTS_FORGE_GGUF_H

#include "base/buf.h"
#include "base/bytes.h"
#include "base/float16.h"
#include "base/mem.h"
#include "quant/ggml.h"

#include "scratch_dir.h"

enum { FORGED_HIDDEN = 256, FORGED_FF = 256, FORGED_EXPERTS = 4, FORGED_LAYERS = 2 };

/* Types of each layer's matrices. */
struct forged_types {
    uint32_t attention, gate, up, down;
};

struct forged_tensor {
    char name[64];
    uint32_t type;
    uint64_t dims[3]; /* innermost first; 0: no such dimension */
};

/* Where what follows the key begins: the value's type. */
static inline uint8_t *after_key(uint8_t *data, uint64_t n, const char *key)
{
    uint64_t length = strlen(key), at = 8;
    while (at + length + 8 <= n &&
           (moe_get_u32(data + at - 8) != length || memcmp(data + at, key, length) != 0))
        at++;
    assert_true(at + length + 8 <= n);
    return data + at + length;
}

static inline void set_u32_key(uint8_t *data, uint64_t n, const char *key, uint32_t value)
{
    moe_put_u32(after_key(data, n, key) + 4, value);
}

/* Of an array with elements of 4 bytes; before them stand two types and their number. */
static inline void set_u32_item(uint8_t *data, uint64_t n, const char *key, uint32_t item,
                                uint32_t value)
{
    moe_put_u32(after_key(data, n, key) + 16 + 4 * item, value);
}

/* Random codes; scales small enough for f16 whatever they are multiplied with. */
static inline void forge_blocks(struct moe_buf *out, uint32_t number, uint64_t n_items,
                                uint64_t *seed)
{
    const struct moe_ggml_type *type = moe_ggml_find(number);
    assert_non_null(type);
    const uint32_t bytes = type->bytes - (type->factor ? 4 : 0);
    for (uint64_t b = 0; b < n_items / type->items; b++) {
        uint8_t block[MOE_GGML_MAX_BLOCK_BYTES];
        uint8_t factor[4] = {0, 0x1c, 0, 0x3b}; /* of f16 2^-8, of f32 0.0019; a row is a block */
        double d = 0.001 + 0.001 * (double)(test_random(seed) % 100) / 100;
        for (uint32_t i = 0; i < type->bytes; i++)
            block[i] = (uint8_t)test_random(seed);
        if (number == MOE_GGML_F32)
            moe_put_u32(block, moe_f32_bits((float)(test_random(seed) % 255) / 256));
        else if (number == MOE_GGML_Q6_K)
            moe_put_u16(block + 208, moe_f32_to_f16((float)d / 100));
        else if (number == MOE_GGML_Q3_K)
            moe_put_u16(block + 108, moe_f32_to_f16((float)d));
        else if (number == MOE_GGML_TQ1_0 || number == MOE_GGML_TQ2_0)
            moe_put_u16(block + type->bytes - 2, moe_f32_to_f16((float)d));
        else if (number == MOE_GGML_IQ1_M) /* 2^-8, four bits in each of four numbers */
            for (int i = 0; i < 4; i++)
                block[49 + 2 * i] =
                    (uint8_t)((block[49 + 2 * i] & 15) | (0x1c00 >> 4 * i & 15) << 4);
        else
            moe_put_u16(block, moe_f32_to_f16((float)d));
        if (number == MOE_GGML_Q4_K)
            moe_put_u16(block + 2, moe_f32_to_f16((float)d));
        moe_buf_append(out, factor, type->factor);
        moe_buf_append(out, block, bytes);
    }
}

static inline void forge_gguf(const char *name, const struct forged_types types[FORGED_LAYERS])
{
    static struct forged_tensor tensors[2 + 10 * FORGED_LAYERS];
    enum { H = FORGED_HIDDEN, F = FORGED_FF, E = FORGED_EXPERTS, KV = H / 2, F32 = MOE_GGML_F32 };
    struct moe_err err = {0};
    struct moe_buf fixture = {0}, out = {0}, data = {0};
    uint64_t seed = 11, first = 24;
    int n = 0;
    assert_ok(moe_file_read_all("tests/fixtures/gguf/mixtral.gguf", 1 << 20, &fixture, &err), &err);
    while (memcmp(fixture.data + first, "token_embd.weight", 17) != 0)
        first++;
    first -= 8; /* the name's length */
    set_u32_key(fixture.data, first, "llama.embedding_length", H);
    set_u32_key(fixture.data, first, "llama.feed_forward_length", F);

    tensors[n++] = (struct forged_tensor){"token_embd.weight", types[0].attention, {H, 259}};
    tensors[n++] = (struct forged_tensor){"output_norm.weight", F32, {H}};
    for (int layer = 0; layer < FORGED_LAYERS; layer++) {
        const struct forged_types *t = &types[layer];
        const struct forged_tensor layers[] = {
            {"attn_norm", F32, {H}},           {"ffn_norm", F32, {H}},
            {"attn_q", t->attention, {H, H}},  {"attn_k", t->attention, {H, KV}},
            {"attn_v", t->attention, {H, KV}}, {"attn_output", t->attention, {H, H}},
            {"ffn_gate_inp", F32, {H, E}},     {"ffn_gate_exps", t->gate, {H, F, E}},
            {"ffn_up_exps", t->up, {H, F, E}}, {"ffn_down_exps", t->down, {F, H, E}},
        };
        for (size_t i = 0; i < N_ITEMS(layers); i++, n++) {
            tensors[n] = layers[i];
            snprintf(tensors[n].name, sizeof tensors[n].name, "blk.%d.%.40s.weight", layer,
                     layers[i].name);
        }
    }
    moe_buf_append(&out, fixture.data, first);
    moe_put_u64(out.data + 8, (uint64_t)n);
    for (int i = 0; i < n; i++) {
        const struct forged_tensor *t = &tensors[i];
        uint32_t n_dims = t->dims[2] ? 3 : t->dims[1] ? 2 : 1;
        uint64_t items = 1;
        moe_buf_u64(&out, strlen(t->name));
        moe_buf_text(&out, t->name);
        moe_buf_u32(&out, n_dims);
        for (uint32_t d = 0; d < n_dims; d++) {
            moe_buf_u64(&out, t->dims[d]);
            items *= t->dims[d];
        }
        moe_buf_u32(&out, t->type);
        moe_buf_u64(&out, data.size);
        forge_blocks(&data, t->type, items, &seed);
        while (data.size % 32)
            moe_buf_u8(&data, 0);
    }
    while (out.size % 32)
        moe_buf_u8(&out, 0);
    moe_buf_append(&out, data.data, data.size);
    assert_false(out.failed);
    write_in_dir(name, out.data, out.size);
    moe_buf_release(&fixture);
    moe_buf_release(&out);
    moe_buf_release(&data);
}

#endif
