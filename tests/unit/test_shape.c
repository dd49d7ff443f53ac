/* What a model weighs by its description: against packs that the converter made, and by hand. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "../make_pack.h"
#include "../scratch_dir.h"

#include <unistd.h>

#include "infer/session.h"
#include "model/shape.h"
#include "pack/pack.h"
#include "show/show.h"

/* ---- Against packs ---- */

/* The layer's tensors [with this prefix] in the pack: raw bytes. */
static uint64_t tensors_with(const struct moe_pack *pack, const char *prefix)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < moe_pack_n_tensors(pack); i++) {
        const struct moe_pack_tensor *t = moe_pack_tensor_at(pack, i);
        if (strncmp(t->name, prefix, strlen(prefix)) == 0)
            bytes += t->extent.raw_bytes;
    }
    return bytes;
}

static void within(uint64_t got, uint64_t expected, double share)
{
    if ((double)got < (1 - share) * (double)expected ||
        (double)got > (1 + share) * (double)expected)
        fail_msg("%llu, expected %llu", (unsigned long long)got, (unsigned long long)expected);
}

static struct moe_bits bits_of(const char *text)
{
    struct moe_bits bits;
    assert_true(moe_parse_bits(text, &bits));
    return bits;
}

static void compare(const char *expert_bits, int dense_bits, uint32_t group)
{
    struct moe_err err = {0};
    struct moe_pack *pack;
    struct moe_pack_summary summary;
    struct moe_shape_bytes shape;
    struct moe_convert_options options = pack_options(expert_bits, dense_bits);
    const char *path = in_dir("x.moe");
    options.group = group;
    options.method = moe_quant_method_find("blocks");
    bundled_pack(path, &options);
    assert_ok(moe_pack_open(&pack, path, &err), &err);
    assert_ok(moe_pack_summarize(pack, &summary, &err), &err);
    assert_ok(moe_shape_bytes(&shape, &summary.config, bits_of(expert_bits), (uint32_t)dense_bits,
                              group, &err),
              &err);

    const struct moe_expert_extent *expert = moe_pack_expert(pack, 3, 5, 0);
    const struct moe_expert_class *class_ = moe_pack_class_at(pack, expert->class_index);
    assert_int_equal(class_->n_segments, 2);
    assert_int_equal(shape.expert_segments[0], class_->segment_bytes[0]);
    assert_int_equal(shape.expert_segments[1], class_->segment_bytes[1]);
    assert_int_equal(shape.expert * summary.variants[0].count, summary.variants[0].raw_bytes);

    within(shape.dense, summary.dense.raw_bytes, 0.02);
    within(shape.attention,
           tensors_with(pack, "layers.0.attn.") + tensors_with(pack, "layers.0.ffn.") +
               tensors_with(pack, "layers.0.router"),
           0.02);
    within(shape.router, tensors_with(pack, "layers.0.router"), 0.02);
    within(shape.shared, tensors_with(pack, "layers.0.shared."), 0.02);
    within(shape.head, tensors_with(pack, "embed") + tensors_with(pack, "final_norm"), 0.02);
    assert_int_equal(shape.dense_ff, 0);
    moe_pack_close(pack);
    unlink(path);
}

static void packs_weigh_what_is_said(void **state)
{
    compare("4", 8, 64);
    compare("4d8", 4, 32);
    compare("2", 16, 64);
    compare("16", 3, 128);
    compare("iq4_xsdq5_k", 8, 64); /* iq4_xs is not for rows as narrow as these */
}

/* ---- By hand ---- */

/* Two layers, the first without experts; every size a multiple of what layouts pad to. */
static struct moe_config small(void)
{
    struct moe_config c;
    moe_config_init(&c);
    c.n_layers = 2;
    c.hidden = 64;
    c.vocab = 160;
    c.n_heads = 4;
    c.n_kv_heads = 2;
    c.head_dim = c.value_dim = 16;
    c.dense_ff = 128;
    c.n_experts = 16;
    c.top_k = 2;
    c.expert_ff = 64;
    c.shared_ff = 32;
    c.layers[1].moe = 1;
    moe_config_number_layers(&c);
    return c;
}

static void pieces_add_up_by_hand(void **state)
{
    struct moe_err err = {0};
    struct moe_shape_bytes s;
    struct moe_config c = small();
    assert_ok(moe_shape_bytes(&s, &c, bits_of("8"), 16, 64, &err), &err);
    /* Norms of 64 in f32; q and o 64 x 64, k and v 32 x 64, router 16 x 64 in 16 bits. */
    uint64_t plain = 2 * 64 * 4 + 2 * (2 * 64 * 64 + 2 * 32 * 64), router = 2 * 16 * 64;
    assert_int_equal(s.router, router);
    assert_int_equal(s.attention, plain + router);
    assert_int_equal(s.shared, 2 * 3 * 32 * 64);
    assert_int_equal(s.dense_ff, 2 * 3 * 128 * 64);
    assert_int_equal(s.head, 64 * 4 + 2 * 160 * 64);
    assert_int_equal(s.dense, 2 * 160 * 64 + s.head + 2 * plain + router + s.shared + s.dense_ff);
    /* A row of 64 at 8 bits has a group: 64 codes, d and m in f16. */
    assert_int_equal(s.expert_segments[0], 2 * 64 * (64 + 4));
    assert_int_equal(s.expert_segments[1], 64 * (64 + 4));
    assert_int_equal(s.expert, s.expert_segments[0] + s.expert_segments[1]);
    assert_int_equal(s.kv_position, 4 * 2 * 2 * (16 + 16));

    c.expert_bias = true; /* 64 values in f32 for each of the three */
    c.tied_head = true;
    uint64_t untied = s.dense;
    assert_ok(moe_shape_bytes(&s, &c, bits_of("4d8"), 16, 64, &err), &err);
    assert_int_equal(s.expert_segments[0], 2 * 64 * (32 + 4) + 2 * 256);
    assert_int_equal(s.expert_segments[1], 64 * (64 + 4) + 256);
    assert_int_equal(s.head, 64 * 4 + 2 * 160 * 64);
    assert_int_equal(s.dense, untied - 2 * 160 * 64);

    c.n_experts = 0;
    c.layers[1].moe = 0;
    moe_config_number_layers(&c);
    assert_ok(moe_shape_bytes(&s, &c, bits_of("4"), 16, 64, &err), &err);
    assert_int_equal(s.attention, plain);
    assert_int_equal(s.router + s.shared + s.expert, 0);
}

/* Two layers of an encoder before two of a decoder, with two matrices to a feed-forward. */
static void stacks_by_hand(void **state)
{
    struct moe_err err = {0};
    struct moe_shape_bytes s;
    struct moe_config c = small();
    c.n_layers = 4;
    c.n_encoder = 2;
    c.positions = MOE_POSITIONS_BUCKETS;
    c.n_buckets = 8;
    c.dense_act = c.expert_act = MOE_ACT_RELU;
    c.shared_ff = 0;
    c.layers[3].moe = 1;
    moe_config_number_layers(&c);
    assert_ok(moe_shape_bytes(&s, &c, bits_of("4d8"), 16, 64, &err), &err);
    uint64_t self = 2 * 64 * 4 + 2 * (2 * 64 * 64 + 2 * 32 * 64), router = 2 * 16 * 64;
    uint64_t cross = 64 * 4 + 2 * (2 * 64 * 64 + 2 * 32 * 64), table = 8 * 4 * 4;
    assert_int_equal(s.attention, self + cross + router);
    assert_int_equal(s.dense_ff, 2 * 2 * 128 * 64);
    assert_int_equal(s.head, 64 * 4 + 2 * 160 * 64);
    assert_int_equal(s.dense, 2 * 160 * 64 + s.head + 64 * 4 + 4 * self + 2 * cross + 2 * table +
                                  2 * router + 2 * s.dense_ff);
    assert_int_equal(s.expert_segments[0], 64 * (32 + 4));
    assert_int_equal(s.expert_segments[1], 64 * (64 + 4));
    assert_int_equal(s.kv_position, 2 * 4 * 2 * 2 * (16 + 16));
}

static void a_position_takes_what_a_session_takes(void **state)
{
    struct moe_err err = {0};
    struct moe_shape_bytes s;
    struct moe_config c = small();
    const struct moe_session_options options = {.context = 160};
    for (int i = 0; i < 4; i++) {
        if (i == 1) { /* latent attention */
            c.kv_rank = 48;
            c.rope_dim = 8;
        } else if (i == 2) { /* values that do not fill their panels */
            c.kv_rank = 0;
            c.value_dim = 24;
        } else if (i == 3) { /* the decoder's, of a text and of a source as long */
            c.n_encoder = 1;
            c.positions = MOE_POSITIONS_BUCKETS;
        }
        assert_ok(moe_shape_bytes(&s, &c, bits_of("4"), 8, 64, &err), &err);
        assert_int_equal(s.kv_position * 160, moe_session_kv_bytes(&c, &options));
    }
}

static void bits_that_cannot_be_are_refused(void **state)
{
    struct moe_err err = {0};
    struct moe_shape_bytes s;
    struct moe_config c = small();
    struct moe_bits bits;
    assert_false(moe_parse_bits("7", &bits) || moe_parse_bits("4,2", &bits));
    assert_fails(moe_shape_bytes(&s, &c, (struct moe_bits){1, 1}, 8, 64, &err), MOE_ERR_USAGE,
                 "1 bits in groups of 64 cannot be stored", &err);
    assert_fails(moe_shape_bytes(&s, &c, bits_of("4"), 7, 64, &err), MOE_ERR_USAGE,
                 "7 bits in groups of 64 cannot be stored", &err);
    assert_fails(moe_shape_bytes(&s, &c, bits_of("4"), 16, 48, &err), MOE_ERR_USAGE,
                 "4 bits in groups of 48", &err);
    assert_fails(moe_shape_bytes(&s, &c, bits_of("16d3"), 16, 48, &err), MOE_ERR_USAGE,
                 "3 bits in groups of 48", &err);
    assert_ok(moe_shape_bytes(&s, &c, bits_of("16"), 16, 48, &err), &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(packs_weigh_what_is_said, make_dir, remove_empty_dir),
        cmocka_unit_test(pieces_add_up_by_hand),
        cmocka_unit_test(stacks_by_hand),
        cmocka_unit_test(a_position_takes_what_a_session_takes),
        cmocka_unit_test(bits_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
