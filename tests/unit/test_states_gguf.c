/* What GGUF files say of recurrent states: which layers have them, how wide they are, and rates. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include <unistd.h>

#include "convert/convert.h"

#include "../make_pack.h"
#include "gguf_fixture.h"

static void layers_and_widths_are_read(void **state)
{
    (void)state;
    read_ok(FIXTURE("qwen3.5-moe"));
    assert_string_equal(config.family, "qwen3_5_moe_text");
    assert_memory_equal(config.layer_is_recurrent, "\1\1\1\0", 4);
    assert_true(config.state_heads == 6 && config.state_key_heads == 2);
    assert_true(config.state_key_dim == 10 && config.state_value_dim == 14);
    assert_true(config.conv_width == 4 && config.rope_dim == 6 && config.attn_gate);
    assert_true(config.state_keys_in_turn);
    assert_int_equal(moe_config_state_key_head(&config, 3), 1);
    read_ok(FIXTURE("qwen3-next-a"));
    assert_string_equal(config.family, "qwen3_next");
    assert_true(config.norm_topk && !config.state_keys_in_turn);
    assert_int_equal(moe_config_state_key_head(&config, 3), 1);
    assert_int_equal(moe_config_state_key_head(&config, 1), 0);
    read_ok(changed(FIXTURE("qwen3-next-a"), "qwen3next.full_attention_interval", -1, 2, NULL));
    assert_memory_equal(config.layer_is_recurrent, "\1\0\1\0", 4);
    read_ok(FIXTURE("lfm2-moe-a"));
    assert_memory_equal(config.layer_is_recurrent, "\1\1\0\1", 4);
    assert_memory_equal(config.layer_is_moe, "\0\1\1\1", 4);
    assert_true(config.choice_bias && config.norm_topk && config.n_kv_heads == 2);
    read_ok(FIXTURE("granite4-a"));
    assert_memory_equal(config.layer_is_recurrent, "\1\1\0\1", 4);
    assert_true(config.positions == MOE_POSITIONS_NONE && config.conv_bias);
    assert_true(config.state_heads == 8 && config.state_value_dim == 10);
    read_ok(FIXTURE("granite4-b"));
    assert_true(config.positions == MOE_POSITIONS_ROTARY && !config.conv_bias && config.qkv_bias);
    assert_int_equal(config.state_key_heads, 2);
    read_ok(FIXTURE("granite4-dense"));
    assert_true(config.n_experts == 0 && config.dense_ff == 22);
    read_ok(FIXTURE("nemotron-h-b"));
    assert_memory_equal(config.layer_is_recurrent, "\0\0\1\0", 4);
    assert_memory_equal(config.layer_no_attention, "\0\1\0\1", 4);
    assert_memory_equal(config.layer_no_ffn, "\1\0\1\0", 4);
    assert_true(config.n_groups == 4 && config.top_groups == 2 && !config.norm_topk);
    read_ok(FIXTURE("kimi-linear-a"));
    assert_memory_equal(config.layer_is_recurrent, "\1\1\0\1", 4);
    assert_true(config.head_dim == 22 && config.kv_rank == 32 && config.state_key_dim == 18);
    assert_true(config.norm_topk && config.n_kv_heads == 3);
    read_ok(FIXTURE("jamba-a"));
    assert_memory_equal(config.layer_is_recurrent, "\1\1\0\1\1", 5);
    assert_memory_equal(config.layer_is_moe, "\0\1\0\1\0", 5);
    assert_true(config.state_step_rank == 3 && config.state_value_dim == 72);
}

static void what_makes_no_sense_or_is_not_computed_is_refused(void **state)
{
    (void)state;
    static const struct refused_gguf cases[] = {
        {FIXTURE("qwen3.5-moe"), "qwen35moe.full_attention_interval", -1, 0, NULL, MOE_ERR_FORMAT,
         "must be at least 1"},
        {FIXTURE("qwen3.5-moe"), "qwen35moe.ssm.inner_size", -1, 85, NULL, MOE_ERR_FORMAT,
         "6 heads of a state cannot share 85 values"},
        {FIXTURE("qwen3.5-moe"), "qwen35moe.ssm.time_step_rank", -1, 0, NULL, MOE_ERR_FORMAT,
         "0 heads of a state cannot share 84"},
        {FIXTURE("qwen3.5-moe"), "qwen35moe.ssm.group_count", -1, 4, NULL, MOE_ERR_FORMAT,
         "6 heads of a state cannot share 4 key"},
        {FIXTURE("lfm2-moe-a"), "lfm2moe.attention.head_count_kv", 0, 4, NULL, MOE_ERR_UNSUPPORTED,
         "layers with 4 and with 2 key heads"},
        {FIXTURE("nemotron-h-b"), "nemotron_h_moe.attention.head_count_kv", 1, 2, NULL,
         MOE_ERR_FORMAT, "layer 1 has key heads and a feed-forward"},
        {FIXTURE("nemotron-h-b"), "nemotron_h_moe.ssm.conv_kernel", -1, 0,
         "nemotron_h_moe.moe_latent_size", MOE_ERR_UNSUPPORTED,
         "'nemotron_h_moe.moe_latent_size' is 3, only 0"},
        {FIXTURE("kimi-linear-a"), "kimi-linear.ssm.conv_kernel", -1, 0,
         "kimi-linear.moe_latent_size", MOE_ERR_UNSUPPORTED,
         "'kimi-linear.moe_latent_size' is 4, only 0"},
    };
    assert_refused(cases, N_ITEMS(cases));
}

/* They are -exp of what is computed with. */
static void rates_are_negative(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_checkpoint *ck = NULL;
    struct moe_convert_report report;
    const struct moe_convert_options options = pack_options("4", 8);
    const char *path =
        changed(FIXTURE("qwen3.5-moe"), "qwen35moe.full_attention_interval", -1, 4, NULL);
    assert_ok(moe_checkpoint_open(&ck, path, &err), &err);
    const struct moe_tensor *t = moe_checkpoint_find(ck, "blk.1.ssm_a");
    assert_non_null(t);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)(t->offset + 2 * sizeof(float)), SEEK_SET), 0);
    assert_int_equal(fwrite(&(float){0.5f}, sizeof(float), 1, file), 1);
    assert_int_equal(fclose(file), 0);
    moe_checkpoint_close(ck);
    assert_fails(moe_convert_checkpoint(path, in_dir("x.moe"), &options, &report, &err),
                 MOE_ERR_FORMAT, "'blk.1.ssm_a': a value is 0.5, only negative ones", &err);
    assert_true(access(in_dir("x.moe"), F_OK) != 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_and_widths_are_read),
        cmocka_unit_test(what_makes_no_sense_or_is_not_computed_is_refused),
        cmocka_unit_test(rates_are_negative),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
