/*
 * Checkpoints whose tensors have names of their own for each stack, as packs: every tensor of the
 * fixtures is there with its values, and at every precision the pack is a model.
 */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "../make_pack.h"
#include "../scratch_dir.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "fmt/checkpoint.h"
#include "infer/experts.h"
#include "infer/model.h"

static struct moe_checkpoint *checkpoint;
static struct moe_model *model;

/* ---- Where a tensor of the checkpoint is in the pack ---- */

struct place {
    char name[MOE_NAME_BYTES]; /* of a dense tensor; "": an expert's */
    uint32_t layer, expert;
    uint16_t role;
};

/* What follows a layer's number, and what it is in packs. "mlp" stands for what each stack has
 * before its feed-forward. */
static const struct {
    const char *suffix, *name;
} parts[] = {
    {"layer.0.layer_norm.weight", "attn.norm"},
    {"layer.0.SelfAttention.q.weight", "attn.q"},
    {"layer.0.SelfAttention.k.weight", "attn.k"},
    {"layer.0.SelfAttention.v.weight", "attn.v"},
    {"layer.0.SelfAttention.o.weight", "attn.o"},
    {"layer.0.SelfAttention.relative_attention_bias.weight", "attn.positions"},
    {"layer.1.EncDecAttention.q.weight", "cross.q"},
    {"layer.1.EncDecAttention.k.weight", "cross.k"},
    {"layer.1.EncDecAttention.v.weight", "cross.v"},
    {"layer.1.EncDecAttention.o.weight", "cross.o"},
    {"FF.layer_norm.weight", "ffn.norm"},
    {"FF.mlp.wi.weight", "ffn.up"},
    {"FF.mlp.wo.weight", "ffn.down"},
    {"FF.mlp.router.classifier.weight", "router"},
    {"FF.mlp.router.classifier.bias", "router.bias"},
    {"layer.1.layer_norm.weight", "cross.norm"}, /* of the decoder: after its "FF" is tried */
};

static const struct {
    const char *name, *pack_name;
} wholes[] = {
    {"shared.weight", "embed"},
    {"encoder.final_layer_norm.weight", "encoder_norm"},
    {"decoder.final_layer_norm.weight", "final_norm"},
    {"lm_head.weight", "head"},
};

/* False for a tensor that is another once more. */
static bool place_of(const char *name, const struct moe_config *c, struct place *out)
{
    unsigned layer, expert;
    char suffix[128], rest[128], matrix;
    *out = (struct place){.name = ""};
    for (size_t i = 0; i < N_ITEMS(wholes); i++)
        if (strcmp(name, wholes[i].name) == 0) {
            snprintf(out->name, sizeof out->name, "%s", wholes[i].pack_name);
            return true;
        }
    bool encoder = strncmp(name, "encoder.", 8) == 0;
    if (sscanf(name + 8, "block.%u.%127s", &layer, rest) != 2) {
        assert_non_null(strstr(name, ".embed_tokens.weight"));
        return false;
    }
    out->layer = encoder ? layer : c->n_encoder + layer;
    const char *ffn = encoder ? "layer.1." : "layer.2.";
    if (strncmp(rest, ffn, 8) == 0)
        snprintf(suffix, sizeof suffix, "FF.%.100s", rest + 8);
    else
        snprintf(suffix, sizeof suffix, "%.120s", rest);
    if (sscanf(suffix, "FF.mlp.experts.expert_%u.w%c.weight", &expert, &matrix) == 2) {
        out->expert = expert;
        out->role = matrix == 'i' ? MOE_ROLE_UP : MOE_ROLE_DOWN;
        return true;
    }
    for (size_t i = 0; i < N_ITEMS(parts); i++)
        if (strcmp(suffix, parts[i].suffix) == 0) {
            snprintf(out->name, sizeof out->name, "layers.%u.%s", out->layer, parts[i].name);
            return true;
        }
    fail_msg("%s has no place", name);
    return false;
}

static const struct {
    const char *suffix, *name;
} gptsan_parts[] = {
    {"self_attn.norm.weight", "attn.norm"},
    {"self_attn.norm.bias", "attn.norm.bias"},
    {"self_attn.self_attn.q_proj.weight", "attn.q"},
    {"self_attn.self_attn.k_proj.weight", "attn.k"},
    {"self_attn.self_attn.v_proj.weight", "attn.v"},
    {"self_attn.self_attn.out_proj.weight", "attn.o"},
    {"feed_forward.norm.weight", "ffn.norm"},
    {"feed_forward.norm.bias", "ffn.norm.bias"},
    {"feed_forward.mlp.wi.weight", "ffn.up"},
    {"feed_forward.mlp.wi.bias", "ffn.up.bias"},
    {"feed_forward.mlp.wo.weight", "ffn.down"},
    {"feed_forward.mlp.wo.bias", "ffn.down.bias"},
    {"feed_forward.mlp.router.classifier.weight", "router"},
    {"feed_forward.soft_bypass_mlp.weight", "bypass"},
};

static const struct {
    const char *name, *pack_name;
} gptsan_wholes[] = {
    {"model.embed_tokens.weight", "embed"},
    {"model.position_embeddings.weight", "positions"},
    {"model.extra_position_embeddings.weight", "positions.extra"},
    {"model.last_project.weight", "last"},
    {"model.last_project.bias", "last.bias"},
    {"final_logits_bias", "head.bias"},
};

/* False for the spout's. */
static bool gptsan_place_of(const char *name, const struct moe_config *c, struct place *out)
{
    unsigned layer, expert;
    char rest[128], matrix;
    (void)c;
    *out = (struct place){.name = ""};
    for (size_t i = 0; i < N_ITEMS(gptsan_wholes); i++)
        if (strcmp(name, gptsan_wholes[i].name) == 0) {
            snprintf(out->name, sizeof out->name, "%s", gptsan_wholes[i].pack_name);
            return true;
        }
    if (sscanf(name, "model.blocks.%u.%127s", &layer, rest) != 2) {
        assert_int_equal(strncmp(name, "model.spout.", 12), 0);
        return false;
    }
    out->layer = layer;
    if (sscanf(rest, "feed_forward.mlp.experts.expert_%u.w%c.weight", &expert, &matrix) == 2) {
        out->expert = expert;
        out->role = matrix == 'i' ? MOE_ROLE_UP : MOE_ROLE_DOWN;
        return true;
    }
    for (size_t i = 0; i < N_ITEMS(gptsan_parts); i++)
        if (strcmp(rest, gptsan_parts[i].suffix) == 0) {
            snprintf(out->name, sizeof out->name, "layers.%u.%s", layer, gptsan_parts[i].name);
            return true;
        }
    fail_msg("%s has no place", name);
    return false;
}

/* ---- Reading back ---- */

static float *read_source(const struct moe_tensor *t)
{
    struct moe_err err = {0};
    float *values = moe_alloc(t->n_items, sizeof *values, &err);
    assert_ok(moe_checkpoint_read(checkpoint, t, 0, t->n_items, values, &err), &err);
    return values;
}

static void compare(const struct moe_tensor *t, const struct moe_mat *mat)
{
    float *want = read_source(t), *got = calloc(mat->cols, sizeof *got);
    assert_int_equal(t->n_items, (uint64_t)mat->rows * mat->cols);
    for (uint32_t r = 0; r < mat->rows; r++) {
        moe_layout_load_row(mat, r, got);
        assert_memory_equal(got, want + (uint64_t)r * mat->cols, mat->cols * sizeof *got);
    }
    free(want);
    free(got);
}

static void compare_dense(const struct moe_tensor *t, const char *name)
{
    struct moe_err err = {0};
    const struct moe_pack_tensor *p = moe_pack_tensor_find(model->pack, name);
    if (!p)
        fail_msg("%s: there is no %s", t->name, name);
    uint8_t *raw = moe_alloc(p->extent.raw_bytes, 1, &err);
    assert_ok(moe_pack_read(model->pack, &p->extent, raw, name, &err), &err);
    if (p->is_vector) {
        float *want = read_source(t);
        assert_int_equal(p->rows, t->n_items);
        assert_memory_equal(raw, want, t->n_items * sizeof *want);
        free(want);
    } else {
        struct moe_mat mat = {raw, p->layout, p->rows, p->cols};
        compare(t, &mat);
    }
    free(raw);
}

static void compare_expert(const struct moe_tensor *t, const struct place *at)
{
    struct moe_err err = {0};
    struct moe_expert_view view = {.layer = at->layer, .expert = at->expert};
    struct moe_arena arena = {0};
    assert_ok(moe_expert_view_read(&view, model->pack, &arena, &err), &err);
    arena = (struct moe_arena){.base = moe_alloc(arena.used, 1, &err), .size = arena.used};
    void *block = arena.base;
    assert_ok(moe_expert_view_read(&view, model->pack, &arena, &err), &err);
    assert_null(view.gate.data);
    compare(t, at->role == MOE_ROLE_UP ? &view.up : &view.down);
    free(block);
}

/* ---- The fixtures ---- */

static void open_both(const char *dir_of, const char *experts, int dense, const char *method)
{
    struct moe_err err = {0};
    struct moe_convert_options options = pack_options(experts, dense);
    options.method = moe_quant_method_find(method);
    if (options.method->per_row)
        options.group = 0;
    make_pack(in_dir("x.moe"), dir_of, &options);
    assert_ok(moe_model_open(&model, in_dir("x.moe"), 0, NULL, &err), &err);
    assert_ok(moe_pack_verify(model->pack, NULL, NULL, &err), &err);
    assert_ok(moe_checkpoint_open(&checkpoint, dir_of, &err), &err);
}

static void close_both(void)
{
    moe_checkpoint_close(checkpoint);
    moe_model_close(model);
}

static const char *const fixtures[] = {DRAWN "/switch-a", DRAWN "/switch-b", DRAWN "/switch-c"};

/* left_out: tensors that the pack does not have, or has under another name. */
static void compare_all(bool (*place)(const char *name, const struct moe_config *c,
                                      struct place *out),
                        uint64_t left_out)
{
    uint64_t dense = 0, experts = 0, others = 0;
    const struct moe_config *c = &model->config;
    for (uint64_t i = 0; i < moe_checkpoint_n_tensors(checkpoint); i++) {
        const struct moe_tensor *t = moe_checkpoint_at(checkpoint, i);
        struct place at;
        if (!place(t->name, c, &at)) {
            others++;
        } else if (at.name[0]) {
            compare_dense(t, at.name);
            dense++;
        } else {
            compare_expert(t, &at);
            experts++;
        }
    }
    assert_int_equal(dense, moe_pack_n_tensors(model->pack));
    assert_int_equal(experts, 2 * (uint64_t)c->n_moe_layers * c->n_experts);
    assert_int_equal(others, left_out);
}

static void every_tensor_comes_back(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_ITEMS(fixtures); f++) {
        open_both(fixtures[f], "32", 32, "rtn");
        compare_all(place_of, f == 0 ? 2 : 0);
        close_both();
    }
}

static void copy_file(const char *from, const char *name)
{
    struct moe_err err = {0};
    struct moe_buf bytes = {0};
    assert_ok(moe_file_read_all(from, 1 << 24, &bytes, &err), &err);
    assert_ok(moe_file_write_all(in_dir(name), bytes.data, bytes.size, &err), &err);
    moe_buf_release(&bytes);
}

/* With another model's tokenizer: what text is does not matter here. */
static void every_tensor_of_gptsan_comes_back(void **state)
{
    (void)state;
    copy_file("tests/fixtures/gptsan-a/config.json", "config.json");
    copy_file(DRAWN "/gptsan-a/model.safetensors", "model.safetensors");
    copy_file(DRAWN "/switch-a/tokenizer.json", "tokenizer.json");
    copy_file(DRAWN "/switch-a/tokenizer_config.json", "tokenizer_config.json");
    open_both(dir, "32", 32, "rtn");
    compare_all(gptsan_place_of, 9);
    close_both();
    open_both(dir, "8,4d8", 8, "hqq");
    assert_int_equal(moe_pack_n_variants(model->pack), 2);
    close_both();
}

/* Up and down have bits of their own: segment 0 is up alone. */
static void every_precision_is_a_model(void **state)
{
    (void)state;
    static const struct {
        const char *experts, *method;
        int dense, n;
    } cases[] = {
        {"16", "rtn", 16, 1},      {"8,4,2", "hqq", 8, 3}, {"4d8,2", "rtn", 4, 2},
        {"8,4d8", "linear", 8, 2}, {"3", "hqq", 8, 1},
    };
    for (size_t f = 0; f < N_ITEMS(fixtures); f++)
        for (size_t i = 0; i < N_ITEMS(cases); i++) {
            open_both(fixtures[f], cases[i].experts, cases[i].dense, cases[i].method);
            assert_int_equal(moe_pack_n_variants(model->pack), cases[i].n);
            for (uint32_t k = 0; k < moe_pack_n_classes(model->pack); k++) {
                const struct moe_expert_class *class_ = moe_pack_class_at(model->pack, k);
                assert_int_equal(class_->n_matrices, 2);
                assert_int_equal(class_->n_segments, 2);
                assert_int_equal(class_->matrices[0].role, MOE_ROLE_UP);
                assert_int_equal(class_->matrices[0].segment, 0);
                assert_int_equal(class_->matrices[1].role, MOE_ROLE_DOWN);
                assert_int_equal(class_->matrices[1].segment, 1);
            }
            close_both();
        }
}

/* The precision of an expert is that of its matrices: 2 and 16 bits are more than 8 and 8 where
 * there is no gate, and fewer than three times 8 where there is one. */
static void variants_are_ordered_by_the_matrices_there_are(void **state)
{
    (void)state;
    static const struct {
        const char *from, *best;
    } cases[] = {{DRAWN "/switch-b", "2d16"}, {DRAWN "/qwen3-moe-a", "8"}};
    struct moe_err err = {0};
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        const struct moe_convert_options o = pack_options("8,2d16", 16);
        struct moe_convert_report report;
        struct moe_pack *pack;
        make_pack(in_dir("x.moe"), cases[i].from, &o);
        assert_ok(moe_convert_pack(in_dir("x.moe"), in_dir("y.moe"), &o, &report, &err), &err);
        for (int again = 0; again < 2; again++) {
            assert_ok(moe_pack_open(&pack, in_dir(again ? "y.moe" : "x.moe"), &err), &err);
            assert_string_equal(moe_pack_variant_at(pack, 0)->name, cases[i].best);
            moe_pack_close(pack);
        }
        unlink(in_dir("x.moe"));
        unlink(in_dir("y.moe"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_tensor_comes_back, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(every_tensor_of_gptsan_comes_back, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(every_precision_is_a_model, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(variants_are_ordered_by_the_matrices_there_are, make_dir,
                                        remove_dir),
    };
    return cmocka_run_group_tests_name("convert stacks", tests, NULL, NULL);
}
