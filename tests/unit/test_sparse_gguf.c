/* What GGUF files say of sparse attention: which layers choose positions, which compress them. */
#define _DEFAULT_SOURCE /* mkdtemp */

#include <math.h>

#include "model/config.h"

#include "gguf_fixture.h"

static void indexers_are_read(void **state)
{
    (void)state;
    read_ok(FIXTURE("deepseek-v32-a"));
    assert_string_equal(config.family, "deepseek_v32");
    assert_true(config.index_heads == 9 && config.index_dim == 14 && config.index_top == 12);
    assert_true(config.n_layers == 3 && config.n_beyond == 1 && config.n_groups == 4);
    assert_true(config.head_dim == 22 && config.kv_rank == 32 && config.value_dim == 16);
    assert_layers_have(config, shares_choice, "000");
    read_ok(FIXTURE("glm5-a"));
    assert_string_equal(config.family, "glm_moe_dsa");
    assert_true(config.index_top == 17 && config.n_groups == 0 && config.rope_theta == 1e6f);
    assert_layers_have(config, shares_choice, "000");
}

/* By a list; without one by the context's length. */
static void layers_that_share_are_known(void **state)
{
    (void)state;
    const char *types = "glm-dsa.attention.indexer.types";
    const char *others = "glm-dsa.attention.indexer.typos";
    read_ok(FIXTURE("glm5-b"));
    assert_layers_have(config, shares_choice, "01101");
    read_ok(changed(FIXTURE("glm5-b"), types, -1, 0, others));
    assert_layers_have(config, shares_choice, "00000");
    read_ok(changed(in_dir("changed.gguf"), "glm-dsa.context_length", -1, 1 << 20, NULL));
    assert_layers_have(config, shares_choice, "00011");
}

static void compressing_layers_are_read(void **state)
{
    (void)state;
    read_ok(FIXTURE("deepseek-v4-a"));
    assert_string_equal(config.family, "deepseek_v4");
    assert_layers_have(config, compression, "0212"); /* enum moe_compression */
    assert_true(config.chosen_ratio == 4 && config.all_ratio == 8 && config.window == 7);
    assert_layers_have(config, static_routing, "1100");
    assert_true(config.static_weighed && config.choice_bias && config.norm_topk);
    assert_true(config.router_kind == MOE_ROUTER_SOFTPLUS && config.act_limit == 1.5f);
    assert_true(config.n_streams == 4 && config.stream_rounds == 20 && config.out_groups == 2);
    assert_true(config.n_global_freqs == 4 && config.n_rope_freqs == 0);
    assert_true(config.rope_theta == 1e4f && config.rope_scale == 1);
    /* The last pair is interpolated, four times slower than its base says. */
    assert_true(fabs(config.global_freqs[3] - pow(160000, -0.75) / 4) < 1e-9);
}

/* A file may name a layer for further tokens that it leaves out. */
static void further_layers_may_be_missing(void **state)
{
    (void)state;
    const char *named = changed(FIXTURE("deepseek-v4-a"), "deepseek4.embedding_length_out", -1, 0,
                                "deepseek4.nextn_predict_layers");
    read_ok(changed(named, "deepseek4.nextn_predict_layers", -1, 1, NULL));
    assert_true(config.n_layers == 4 && config.n_beyond == 0);
}

static void what_makes_no_sense_or_is_not_computed_is_refused(void **state)
{
    (void)state;
    static const struct refused_gguf cases[] = {
        {FIXTURE("deepseek-v32-a"), "deepseek32.attention.indexer.top_k", -1, 0, NULL,
         MOE_ERR_FORMAT, "'deepseek32.attention.indexer.top_k' is 0"},
        {FIXTURE("deepseek-v32-a"), "deepseek32.attention.indexer.top_k", -1, 0,
         "deepseek32.attention.indexer.top_n", MOE_ERR_FORMAT, "attention.indexer.top_k"},
        {FIXTURE("deepseek-v32-a"), "deepseek32.attention.indexer.key_length", -1, 3, NULL,
         MOE_ERR_FORMAT, "the width of an indexer's head"},
        {FIXTURE("deepseek-v32-a"), "deepseek32.expert_gating_func", -1, 4, NULL,
         MOE_ERR_UNSUPPORTED, "function 4"},
        {FIXTURE("glm5-a"), "glm-dsa.expert_gating_func", -1, 1, NULL, MOE_ERR_UNSUPPORTED,
         "function 1"},
        {FIXTURE("glm5-b"), "glm-dsa.attention.indexer.types", 0, 0, NULL, MOE_ERR_FORMAT,
         "the first layer has no choice of positions to share"},
        {FIXTURE("deepseek-v4-a"), "deepseek4.attention.compress_ratios", 3, 6, NULL,
         MOE_ERR_UNSUPPORTED, "'compress_ratios' of layer 3 is 6, which is not implemented"},
        {FIXTURE("deepseek-v4-a"), "deepseek4.attention.compress_ratios", 2, 1 << 20, NULL,
         MOE_ERR_UNSUPPORTED, "'compress_ratios' of layer 2 is 1048576"},
        {FIXTURE("deepseek-v4-a"), "deepseek4.swiglu_clamp_exp", 2, 0x40000000, NULL,
         MOE_ERR_UNSUPPORTED, "is 2 for layer 2 beside 1.5"},
        {FIXTURE("deepseek-v4-a"), "deepseek4.swiglu_clamp_shexp", 0, 0x40000000, NULL,
         MOE_ERR_UNSUPPORTED, "'deepseek4.swiglu_clamp_shexp' is 2 for layer 0 beside 1.5"},
        {FIXTURE("deepseek-v4-a"), "deepseek4.expert_gating_func", -1, 2, NULL, MOE_ERR_UNSUPPORTED,
         "function 2"},
        {FIXTURE("deepseek-v4-a"), "deepseek4.expert_shared_count", -1, 2, NULL,
         MOE_ERR_UNSUPPORTED, "'deepseek4.expert_shared_count' is 2, only 1"},
        {FIXTURE("deepseek-v4-a"), "deepseek4.attention.compress_rope_freq_base", -1, 0,
         "deepseek4.attention.compress_rope_freq_bass", MOE_ERR_FORMAT, "compress_rope_freq_base"},
    };
    assert_refused(cases, N_ITEMS(cases));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(indexers_are_read),
        cmocka_unit_test(layers_that_share_are_known),
        cmocka_unit_test(compressing_layers_are_read),
        cmocka_unit_test(further_layers_may_be_missing),
        cmocka_unit_test(what_makes_no_sense_or_is_not_computed_is_refused),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
