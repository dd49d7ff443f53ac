/* What GGUF files say of recurrent states: which layers have them, how wide they are, and rates. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include <unistd.h>

#include "pack/convert.h"

#include "../make_pack.h"
#include "gguf_fixture.h"

static void layers_and_widths_are_read(void **state)
{
    (void)state;
    read_ok(FIXTURE("qwen3.5-moe"));
    assert_string_equal(config.family, "qwen3_5_moe_text");
    assert_layers_have(config, recurrent, "1110");
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
    assert_layers_have(config, recurrent, "1010");
    read_ok(FIXTURE("lfm2-moe-a"));
    assert_layers_have(config, recurrent, "1101");
    assert_layers_have(config, moe, "0111");
    assert_true(config.choice_bias && config.norm_topk && config.n_kv_heads == 2);
    read_ok(FIXTURE("granite4-a"));
    assert_layers_have(config, recurrent, "1101");
    assert_true(config.positions == MOE_POSITIONS_NONE && config.conv_bias);
    assert_true(config.state_heads == 8 && config.state_value_dim == 10);
    read_ok(FIXTURE("granite4-b"));
    assert_true(config.positions == MOE_POSITIONS_ROTARY && !config.conv_bias && config.qkv_bias);
    assert_int_equal(config.state_key_heads, 2);
    read_ok(FIXTURE("granite4-dense"));
    assert_true(config.n_experts == 0 && config.dense_ff == 22);
    read_ok(FIXTURE("nemotron-h-b"));
    assert_layers_have(config, recurrent, "0010");
    assert_layers_have(config, no_attention, "0101");
    assert_layers_have(config, no_ffn, "1010");
    assert_true(config.n_groups == 4 && config.top_groups == 2 && !config.norm_topk);
    read_ok(FIXTURE("kimi-linear-a"));
    assert_layers_have(config, recurrent, "1101");
    assert_true(config.head_dim == 22 && config.kv_rank == 32 && config.state_key_dim == 18);
    assert_true(config.norm_topk && config.n_kv_heads == 3);
    read_ok(FIXTURE("jamba-a"));
    assert_layers_have(config, recurrent, "11011");
    assert_layers_have(config, moe, "01010");
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

/* ---- As ollama's converter writes them ---- */

static void put_text(struct moe_buf *out, const char *text)
{
    moe_buf_u64(out, strlen(text));
    moe_buf_text(out, text);
}

/* Copies what is before the text with its length, and skips both. */
static void copy_up_to(struct moe_buf *out, const struct moe_buf *file, uint64_t *at,
                       const char *text)
{
    uint64_t end = (uint64_t)(after_key(file->data, file->size, text) - file->data);
    uint64_t begin = end - strlen(text) - 8;
    assert_true(begin >= *at);
    moe_buf_append(out, file->data + *at, begin - *at);
    *at = end;
}

/* The fixture with key heads by layer and steps under ollama's name, with a key of its own, and
 * vectors of these names behind the others. A note that nobody reads keeps what follows metadata
 * aligned. */
static const char *as_ollama(const uint32_t heads[4], const char *const *extra, int n_extra,
                             const char *key, uint8_t flag)
{
    struct moe_err err = {0};
    struct moe_buf file = {0}, out = {0};
    struct moe_checkpoint *ck = NULL;
    uint64_t at = 0, data = UINT64_MAX;
    assert_ok(moe_checkpoint_open(&ck, FIXTURE("qwen3.5-moe"), &err), &err);
    for (uint64_t i = 0; i < moe_checkpoint_n_tensors(ck); i++)
        if (moe_checkpoint_at(ck, i)->offset < data)
            data = moe_checkpoint_at(ck, i)->offset;
    moe_checkpoint_close(ck);
    assert_ok(moe_file_read_all(FIXTURE("qwen3.5-moe"), 1 << 28, &file, &err), &err);
    uint64_t n_tensors = moe_get_u32(file.data + 8), n_keys = moe_get_u32(file.data + 16);

    copy_up_to(&out, &file, &at, "qwen35moe.attention.head_count_kv");
    at += 8; /* a type and a number */
    put_text(&out, "qwen35moe.attention.head_count_kv");
    moe_buf_u32(&out, 9); /* a list of u32 */
    moe_buf_u32(&out, 4);
    moe_buf_u64(&out, 4);
    for (int i = 0; i < 4; i++)
        moe_buf_u32(&out, heads[i]);
    put_text(&out, key);
    moe_buf_u32(&out, 7); /* bool */
    moe_buf_append(&out, &flag, 1);
    put_text(&out, "general.note");
    moe_buf_u32(&out, 8); /* text */
    moe_buf_u64(&out, 0);
    uint64_t note = out.size;

    copy_up_to(&out, &file, &at, "output.weight");
    for (int i = 0; i < n_extra; i++) {
        put_text(&out, extra[i]);
        moe_buf_u32(&out, 1);
        moe_buf_u64(&out, 8);
        moe_buf_u32(&out, MOE_GGML_F32);
        moe_buf_u64(&out, file.size - data + 32 * (uint64_t)i);
    }
    put_text(&out, "output.weight");
    for (int layer = 0; layer < 3; layer++) {
        char name[32];
        snprintf(name, sizeof name, "blk.%d.ssm_dt.bias", layer);
        copy_up_to(&out, &file, &at, name);
        name[strlen(name) - strlen(".bias")] = '\0';
        put_text(&out, name);
    }
    assert_int_equal(file.size % 32, 0);
    moe_buf_append(&out, file.data + at, file.size - at);
    for (int i = 0; i < 8 * n_extra; i++)
        moe_buf_u32(&out, moe_f32_bits(1));
    assert_false(out.failed);

    static const uint8_t zeros[32];
    uint64_t size = file.size + 32 * (uint64_t)n_extra, pad = (size - out.size) % 32;
    struct moe_buf whole = {0};
    moe_put_u32(out.data + 8, (uint32_t)n_tensors + (uint32_t)n_extra);
    moe_put_u32(out.data + 16, (uint32_t)n_keys + 2);
    moe_put_u32(out.data + note - 8, (uint32_t)pad);
    moe_buf_append(&whole, out.data, note);
    moe_buf_append(&whole, zeros, pad);
    moe_buf_append(&whole, out.data + note, out.size - note);
    write_in_dir("model.gguf", whole.data, whole.size);
    moe_buf_release(&file);
    moe_buf_release(&out);
    moe_buf_release(&whole);
    return in_dir("model.gguf");
}

static const char *const others[] = {"v.blk.0.attn_q.weight", "v.patch_embed.weight", "mm.0.weight",
                                     "mtp.fc.weight", "mtp.layers.0.mlp.experts.0.up_proj.weight"};

/* What is left of ollama's file is the same model, bit for bit. */
static void files_of_ollama_are_read(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_convert_report report;
    struct moe_buf packs[2] = {{0}};
    const struct moe_convert_options options = pack_options("4", 8);
    const char *path = as_ollama((const uint32_t[]){0, 0, 0, 2}, others, (int)N_ITEMS(others),
                                 "qwen35moe.ssm.v_head_reordered", 1);
    read_ok(path);
    assert_layers_have(config, recurrent, "1110");
    assert_true(config.n_kv_heads == 2 && config.state_keys_in_turn);
    assert_ok(moe_convert_checkpoint(path, in_dir("a.moe"), &options, &report, &err), &err);
    assert_true(report.n_visual == 3 && report.n_beyond == 2);
    make_pack(in_dir("b.moe"), FIXTURE("qwen3.5-moe"), &options);
    assert_ok(moe_file_read_all(in_dir("a.moe"), 1 << 28, &packs[0], &err), &err);
    assert_ok(moe_file_read_all(in_dir("b.moe"), 1 << 28, &packs[1], &err), &err);
    assert_int_equal(packs[0].size, packs[1].size);
    assert_memory_equal(packs[0].data, packs[1].data, packs[0].size);
    moe_buf_release(&packs[0]);
    moe_buf_release(&packs[1]);
}

static void files_of_ollama_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    static const char *const ba[] = {"blk.0.ssm_ba.weight"};
    static const char *const heard[] = {"a.blk.0.attn_q.weight"};
    static const uint32_t ordinary[] = {0, 0, 0, 2};
    const char *key = "qwen35moe.ssm.v_head_reordered";
    struct moe_err err = {0};
    struct moe_convert_report report;
    const struct moe_convert_options options = pack_options("4", 8);
    assert_fails(read_config(as_ollama((const uint32_t[]){0, 2, 0, 2}, NULL, 0, key, 1), &err),
                 MOE_ERR_FORMAT, "layer 1 has key heads by 'head_count_kv' and not by other keys",
                 &err);
    assert_fails(read_config(as_ollama((const uint32_t[]){0, 0, 0, 0}, NULL, 0, key, 1), &err),
                 MOE_ERR_FORMAT, "layer 3 has a state by 'head_count_kv' and not by other keys",
                 &err);
    assert_fails(read_config(as_ollama((const uint32_t[]){0, 0, 1, 2}, NULL, 0, key, 1), &err),
                 MOE_ERR_UNSUPPORTED, "layers with 2 and with 1 key heads", &err);
    assert_fails(read_config(as_ollama(ordinary, ba, 1, key, 1), &err), MOE_ERR_UNSUPPORTED,
                 "Qwen3-Next's tensors under Qwen3.5's architecture", &err);
    assert_fails(moe_convert_checkpoint(as_ollama(ordinary, heard, 1, key, 1), in_dir("x.moe"),
                                        &options, &report, &err),
                 MOE_ERR_UNSUPPORTED, "tensor 'a.blk.0.attn_q.weight' has no place", &err);
    /* The list alone says it, and the key in which order heads are. */
    const char *path = as_ollama((const uint32_t[]){2, 0, 2, 0}, NULL, 0, key, 0);
    read_ok(changed(path, "qwen35moe.full_attention_interval", -1, 0,
                    "qwen35moe.full_attention_intervel"));
    assert_layers_have(config, recurrent, "0101");
    assert_false(config.state_keys_in_turn);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_and_widths_are_read),
        cmocka_unit_test(what_makes_no_sense_or_is_not_computed_is_refused),
        cmocka_unit_test(rates_are_negative),
        cmocka_unit_test(files_of_ollama_are_read),
        cmocka_unit_test(files_of_ollama_that_make_no_sense_are_refused),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
