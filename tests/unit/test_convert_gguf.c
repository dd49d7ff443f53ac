/* Packs made of GGUF files: what is carried over has the values of the file. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "../forge_gguf.h"

#include <math.h>
#include <unistd.h>

#include "base/par.h"
#include "fmt/checkpoint.h"
#include "model/config.h"
#include "model/read.h"
#include "pack/convert.h"
#include "pack/pack.h"
#include "show/show.h"

#define QWEN "tests/fixtures/gguf/qwen2moe.gguf"
#define MIXTRAL "tests/fixtures/gguf/mixtral.gguf"
#define GEMMA4 DRAWN "/gemma4-a/model.gguf"
#define AFMOE DRAWN "/afmoe-a/model.gguf"
#define LLAMA4 DRAWN "/llama4-gguf/model.gguf"

enum { LAYERS = 2, EXPERTS = 4, HIDDEN = 64, FF = 32, HEADS = 2, HEAD_DIM = 32 };

static int tear_down(void **state)
{
    moe_par_set_threads(1);
    return remove_dir(state);
}

static struct moe_convert_report convert(const char *source, const char *out, const char *experts,
                                         int dense_bits)
{
    struct moe_convert_options o = {
        .n_experts = 1,
        .dense_bits = dense_bits,
        .method = moe_quant_method_find("hqq"),
        .group = 64,
    };
    struct moe_convert_report report;
    struct moe_err err = {0};
    assert_true(moe_parse_bits(experts, &o.experts[0]));
    assert_ok(moe_convert_checkpoint(source, out, &o, &report, &err), &err);
    return report;
}

/* ---- Values: the pack's against the file's ---- */

static struct moe_checkpoint *ck;
static struct moe_pack *pack;

static void open_both(const char *source, const char *path)
{
    struct moe_err err = {0};
    assert_ok(moe_checkpoint_open(&ck, source, &err), &err);
    assert_ok(moe_pack_open(&pack, path, &err), &err);
}

static void close_both(void)
{
    moe_checkpoint_close(ck);
    moe_pack_close(pack);
}

/* Row r of the pack is line line_of(r) of the tensor, beginning at item `first`. */
static void expect_rows(const struct moe_mat *mat, const char *name, uint64_t first,
                        uint32_t (*line_of)(uint32_t))
{
    struct moe_err err = {0};
    const struct moe_tensor *t = moe_checkpoint_find(ck, name);
    float expected[HIDDEN], got[HIDDEN];
    assert_non_null(t);
    assert_true(mat->cols <= HIDDEN);
    for (uint32_t row = 0; row < mat->rows; row++) {
        uint64_t at = first + (uint64_t)(line_of ? line_of(row) : row) * mat->cols;
        assert_ok(moe_checkpoint_read(ck, t, at, mat->cols, expected, &err), &err);
        moe_layout_load_row(mat, row, got);
        for (uint32_t i = 0; i < mat->cols; i++)
            if (got[i] != expected[i])
                fail_msg("%s: row %u column %u: %.9g became %.9g", name, row, i,
                         (double)expected[i], (double)got[i]);
    }
}

static void expect_dense(const char *pack_name, const char *name, uint16_t kind,
                         uint32_t (*line_of)(uint32_t))
{
    struct moe_err err = {0};
    const struct moe_pack_tensor *t = moe_pack_tensor_find(pack, pack_name);
    assert_non_null(t);
    assert_int_equal(t->layout.kind, kind);
    assert_int_equal(t->layout.group, moe_layout_is_float(kind) ? 0 : 32);
    uint8_t *raw = moe_alloc(t->extent.raw_bytes, 1, NULL);
    assert_ok(moe_pack_read(pack, &t->extent, raw, pack_name, &err), &err);
    struct moe_mat mat = {raw, t->layout, t->rows, t->cols};
    expect_rows(&mat, name, 0, line_of);
    free(raw);
}

/* The experts' matrices of a layer; `parts` says which. */
static void expect_experts(uint32_t layer, const char *parts, uint16_t kind)
{
    static const char *const names[] = {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"};
    struct moe_err err = {0};
    for (uint32_t e = 0; e < EXPERTS; e++) {
        const struct moe_expert_extent *x = moe_pack_expert(pack, layer, e, 0);
        const struct moe_expert_class *c = moe_pack_class_at(pack, x->class_index);
        uint8_t *segments[MOE_PACK_MAX_SEGMENTS] = {NULL};
        for (uint32_t s = 0; s < c->n_segments; s++) {
            segments[s] = moe_alloc(c->segment_bytes[s], 1, NULL);
            assert_ok(moe_pack_read(pack, &x->segments[s], segments[s], "segment", &err), &err);
        }
        for (uint32_t i = 0; i < c->n_matrices; i++) {
            const struct moe_class_matrix *m = &c->matrices[i];
            char name[64];
            if (!strchr(parts, "gud"[i]))
                continue;
            assert_int_equal(m->layout.kind, kind);
            assert_int_equal(m->layout.group, 32);
            struct moe_mat mat = {segments[m->segment] + m->offset, m->layout, m->rows, m->cols};
            snprintf(name, sizeof name, "blk.%u.%s.weight", layer, names[i]);
            expect_rows(&mat, name, (uint64_t)e * m->rows * m->cols, NULL);
        }
        for (uint32_t s = 0; s < c->n_segments; s++)
            free(segments[s]);
    }
}

static void codes_that_fit_are_carried_exactly(void **state)
{
    (void)state;
    const char *path = in_dir("8.moe");
    for (int threads = 1; threads <= 3; threads += 2) {
        moe_par_set_threads(threads);
        struct moe_convert_report report = convert(QWEN, path, "8", 8);
        const uint64_t experts = LAYERS * EXPERTS * 3 * HIDDEN * FF;
        /* Of the dense part all but blk.*.attn_v, which is F16. */
        const uint64_t dense = 259 * HIDDEN + LAYERS * (2 * HIDDEN * HIDDEN + HEAD_DIM * HIDDEN) +
                               LAYERS * 3 * HIDDEN * FF;
        assert_int_equal(report.carried, experts + dense);
        assert_int_equal(report.requantized, 0);
        assert_true(report.error[0].sum_squared_error == 0);
        assert_true(report.error[0].sum_squared_weight > 0);
        open_both(QWEN, path);
        assert_string_equal(moe_pack_variant_at(pack, 0)->method, "carried");
        expect_dense("embed", "token_embd.weight", MOE_LAYOUT_Q4, NULL);
        expect_dense("layers.0.attn.q", "blk.0.attn_q.weight", MOE_LAYOUT_Q8_0, NULL);
        expect_dense("layers.1.attn.k", "blk.1.attn_k.weight", MOE_LAYOUT_Q4, NULL);
        expect_dense("layers.1.attn.o", "blk.1.attn_output.weight", MOE_LAYOUT_Q5, NULL);
        expect_dense("layers.0.shared.down", "blk.0.ffn_down_shexp.weight", MOE_LAYOUT_Q5, NULL);
        expect_dense("layers.0.router", "blk.0.ffn_gate_inp.weight", MOE_LAYOUT_F32, NULL);
        expect_experts(0, "g", MOE_LAYOUT_Q8_0);
        expect_experts(0, "u", MOE_LAYOUT_Q5);
        expect_experts(0, "d", MOE_LAYOUT_Q5_0);
        expect_experts(1, "g", MOE_LAYOUT_Q4_0);
        expect_experts(1, "u", MOE_LAYOUT_Q4);
        expect_experts(1, "d", MOE_LAYOUT_IQ4_NL);
        close_both();
    }
}

static void what_does_not_fit_is_quantized_again(void **state)
{
    (void)state;
    const char *path = in_dir("4.moe");
    struct moe_convert_report report = convert(QWEN, path, "4", 4);
    const uint64_t matrix = EXPERTS * HIDDEN * FF;
    assert_int_equal(report.carried, 3 * matrix + 259 * HIDDEN + LAYERS * (HEAD_DIM + FF) * HIDDEN);
    assert_int_equal(report.requantized,
                     3 * matrix + LAYERS * (2 * HIDDEN * HIDDEN + 2 * HIDDEN * FF));
    double error = sqrt(report.error[0].sum_squared_error / report.error[0].sum_squared_weight);
    assert_true(error > 0 && error < 0.2);
    open_both(QWEN, path);
    assert_string_equal(moe_pack_variant_at(pack, 0)->method, "hqq");
    expect_experts(1, "g", MOE_LAYOUT_Q4_0);
    expect_experts(1, "u", MOE_LAYOUT_Q4);
    expect_experts(1, "d", MOE_LAYOUT_IQ4_NL);
    expect_dense("layers.0.attn.k", "blk.0.attn_k.weight", MOE_LAYOUT_Q4, NULL);
    close_both();
}

/* ---- Without bits asked for: a quantized file's own ---- */

static struct moe_convert_report convert_own(const char *source, const char *out)
{
    const struct moe_convert_options o = {
        .experts = {{4, 4}},
        .n_experts = 1,
        .dense_bits = 8,
        .method = moe_quant_method_find("hqq"),
        .group = 64,
        .own_experts = true,
        .own_dense = true,
    };
    struct moe_convert_report report;
    struct moe_err err = {0};
    assert_ok(moe_convert_checkpoint(source, out, &o, &report, &err), &err);
    return report;
}

static void expect_bits(uint32_t layer, int gate_up, int down)
{
    for (uint32_t e = 0; e < EXPERTS; e++) {
        const struct moe_expert_extent *x = moe_pack_expert(pack, layer, e, 0);
        struct moe_bits bits;
        assert_true(moe_class_bits(moe_pack_class_at(pack, x->class_index), &bits));
        assert_int_equal(bits.gate_up, gate_up);
        assert_int_equal(bits.down, down);
    }
}

static void expect_lines(const struct moe_convert_report *report, const char *expected)
{
    struct moe_buf lines = {0};
    moe_show_source(report, "x", &lines);
    moe_buf_u8(&lines, 0);
    assert_string_equal((const char *)lines.data, expected);
    moe_buf_release(&lines);
}

/* Every matrix at the fewest bits that hold its codes: the experts of the second layer differ from
 * those of the first, so that each has its own. */
static void without_bits_nothing_is_rounded(void **state)
{
    (void)state;
    const char *path = in_dir("own.moe");
    struct moe_convert_report report = convert_own(QWEN, path);
    assert_true(report.kept_experts && report.kept_dense);
    assert_int_equal(report.requantized, 0);
    assert_true(report.error[0].sum_squared_error == 0);
    assert_true(report.dense_error.sum_squared_error == 0);
    expect_lines(&report,
                 "x: of the source's quantized weights 98496 carried over, 0 quantized again\n");
    open_both(QWEN, path);
    assert_string_equal(moe_pack_variant_at(pack, 0)->name, "map");
    assert_string_equal(moe_pack_variant_at(pack, 0)->method, "carried");
    expect_bits(0, 8, 5); /* gate and up have one width: the wider one's */
    expect_bits(1, 4, 4);
    expect_experts(0, "g", MOE_LAYOUT_Q8_0);
    expect_experts(0, "u", MOE_LAYOUT_Q5);
    expect_experts(0, "d", MOE_LAYOUT_Q5_0);
    expect_experts(1, "u", MOE_LAYOUT_Q4);
    expect_experts(1, "d", MOE_LAYOUT_IQ4_NL);
    expect_dense("embed", "token_embd.weight", MOE_LAYOUT_Q4, NULL);
    expect_dense("layers.0.attn.q", "blk.0.attn_q.weight", MOE_LAYOUT_Q8_0, NULL);
    expect_dense("layers.0.attn.k", "blk.0.attn_k.weight", MOE_LAYOUT_Q4, NULL);
    expect_dense("layers.1.attn.v", "blk.1.attn_v.weight", MOE_LAYOUT_F16, NULL);
    close_both();
    /* Re-packed, it stays that. */
    struct moe_convert_options again = {.method = moe_quant_method_find("hqq"), .group = 64};
    struct moe_err err = {0};
    assert_ok(moe_convert_pack(path, in_dir("again.moe"), &again, &report, &err), &err);
    open_both(QWEN, in_dir("again.moe"));
    expect_experts(1, "g", MOE_LAYOUT_Q4_0);
    expect_experts(1, "d", MOE_LAYOUT_IQ4_NL);
    close_both();

    report = convert_own(MIXTRAL, path);
    assert_int_equal(report.requantized, 0);
    open_both(MIXTRAL, path);
    assert_string_equal(moe_pack_variant_at(pack, 0)->name, "4");
    close_both();
}

static void an_unquantized_source_gets_the_bits_asked_for(void **state)
{
    (void)state;
    const char *path = in_dir("own.moe");
    struct moe_convert_report report = convert_own(DRAWN "/mixtral-a", path);
    assert_false(report.kept_experts || report.kept_dense);
    struct moe_buf lines = {0};
    moe_show_source(&report, "x", &lines);
    assert_int_equal(lines.size, 0);
    open_both(DRAWN "/mixtral-a", path);
    assert_string_equal(moe_pack_variant_at(pack, 0)->name, "4");
    close_both();
}

/* The relative error of an expert matrix in the pack, over all experts of a layer. */
static double error_of(uint32_t layer, uint32_t matrix, const char *name)
{
    struct moe_err err = {0};
    const struct moe_tensor *t = moe_checkpoint_find(ck, name);
    double squared = 0, weight = 0;
    assert_non_null(t);
    for (uint32_t e = 0; e < FORGED_EXPERTS; e++) {
        const struct moe_expert_extent *x = moe_pack_expert(pack, layer, e, 0);
        const struct moe_expert_class *c = moe_pack_class_at(pack, x->class_index);
        const struct moe_class_matrix *m = &c->matrices[matrix];
        uint8_t *segment = moe_alloc(c->segment_bytes[m->segment], 1, NULL);
        assert_ok(moe_pack_read(pack, &x->segments[m->segment], segment, "segment", &err), &err);
        const struct moe_mat mat = {segment + m->offset, m->layout, m->rows, m->cols};
        for (uint32_t row = 0; row < m->rows; row++) {
            float expected[FORGED_HIDDEN], got[FORGED_HIDDEN];
            uint64_t at = ((uint64_t)e * m->rows + row) * m->cols;
            assert_ok(moe_checkpoint_read(ck, t, at, m->cols, expected, &err), &err);
            moe_layout_load_row(&mat, row, got);
            for (uint32_t i = 0; i < m->cols; i++) {
                double difference = (double)got[i] - (double)expected[i];
                squared += difference * difference;
                weight += (double)expected[i] * (double)expected[i];
            }
        }
        free(segment);
    }
    return sqrt(squared / weight);
}

static const uint32_t low_types[] = {
    MOE_GGML_IQ1_S,   MOE_GGML_IQ1_M,   MOE_GGML_IQ2_XXS, MOE_GGML_IQ2_XS, MOE_GGML_IQ2_S,
    MOE_GGML_IQ3_XXS, MOE_GGML_IQ3_S,   MOE_GGML_TQ1_0,   MOE_GGML_Q1_0,   MOE_GGML_Q2_0,
    MOE_GGML_IQ2_K,   MOE_GGML_IQ2_KS,  MOE_GGML_IQ3_K,   MOE_GGML_IQ3_KS, MOE_GGML_IQ4_K,
    MOE_GGML_IQ4_KS,  MOE_GGML_IQ4_KSS, MOE_GGML_IQ5_K,   MOE_GGML_IQ5_KS, MOE_GGML_IQ6_K,
    MOE_GGML_IQ1_KT,  MOE_GGML_IQ2_KT,  MOE_GGML_IQ3_KT,  MOE_GGML_IQ4_KT, MOE_GGML_IQ2_KL,
    MOE_GGML_Q6_0};

/* A model of each type of few bits has the file's values. */
static void types_of_few_bits_are_carried(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof low_types / sizeof *low_types; i++) {
        const struct forged_types types = {low_types[i], low_types[i], low_types[i], low_types[i]};
        const struct forged_types layers[FORGED_LAYERS] = {types, types};
        const char *source = in_dir("few.gguf"), *path = in_dir("few.moe");
        forge_gguf("few.gguf", layers);
        struct moe_convert_report report = convert_own(source, path);
        assert_int_equal(report.n_roundings + report.requantized, 0);
        open_both(source, path);
        assert_true(error_of(0, 0, "blk.0.ffn_gate_exps.weight") == 0);
        assert_true(error_of(1, 2, "blk.1.ffn_down_exps.weight") == 0);
        close_both();
    }
}

/* Files of each type with bytes changed or missing, DAMAGED (5) of them: converted, or refused with
 * one line. */
static void damaged_types_are_refused_or_read(void **state)
{
    (void)state;
    const char *wanted = getenv("DAMAGED");
    const int n = wanted ? atoi(wanted) : 5;
    const struct moe_convert_options o = {.experts = {{4, 4}},
                                          .n_experts = 1,
                                          .dense_bits = 8,
                                          .method = moe_quant_method_find("hqq"),
                                          .group = 64,
                                          .own_experts = true,
                                          .own_dense = true};
    uint64_t seed = 45;
    for (size_t i = 0; i < sizeof low_types / sizeof *low_types; i++) {
        const struct forged_types types = {low_types[i], low_types[i], low_types[i], low_types[i]};
        const struct forged_types layers[FORGED_LAYERS] = {types, types};
        int refused = 0;
        for (int k = 0; k < n; k++) {
            struct moe_convert_report report;
            struct moe_err err = {0};
            forge_gguf("bad.gguf", layers);
            const char *source = in_dir("bad.gguf"), *path = in_dir("bad.moe");
            FILE *f = fopen(source, "r+b");
            assert_non_null(f);
            assert_int_equal(fseek(f, 0, SEEK_END), 0);
            const uint64_t bytes = (uint64_t)ftell(f), head = k % 2 ? bytes : 4096;
            for (int j = 0; j < 1 + k % 8; j++) {
                assert_int_equal(fseek(f, (long)(test_random(&seed) % head), SEEK_SET), 0);
                fputc((int)(test_random(&seed) & 255), f);
            }
            assert_int_equal(fclose(f), 0);
            if (k % 5 == 4)
                assert_int_equal(truncate(source, (off_t)(test_random(&seed) % bytes)), 0);
            if (moe_convert_checkpoint(source, path, &o, &report, &err) == MOE_OK)
                continue;
            refused++;
            assert_true(err.text[0] && !strchr(err.text, '\n'));
        }
        assert_true(refused > 0 && refused < n);
        if (wanted)
            print_message("# %s: %d files damaged, %d refused\n", moe_ggml_find(low_types[i])->name,
                          n, refused);
    }
}

/* As llama.cpp's Q4_K_M: the down projections of some layers have six bits. Each type keeps its
 * bits, and its bytes. */
static void mixed_files_keep_what_each_layer_has(void **state)
{
    (void)state;
    static const struct forged_types q4_k_m[FORGED_LAYERS] = {
        {MOE_GGML_Q4_K, MOE_GGML_Q4_K, MOE_GGML_Q4_K, MOE_GGML_Q6_K},
        {MOE_GGML_Q4_K, MOE_GGML_Q4_K, MOE_GGML_Q3_K, MOE_GGML_Q4_K},
    };
    const char *source = in_dir("q4_k_m.gguf"), *path = in_dir("own.moe");
    forge_gguf("q4_k_m.gguf", q4_k_m);
    struct moe_convert_report report = convert_own(source, path);
    open_both(source, path);
    assert_string_equal(moe_pack_variant_at(pack, 0)->name, "map");
    assert_string_equal(moe_pack_variant_at(pack, 0)->method, "carried");
    expect_bits(0, 4, 6);
    expect_bits(1, 4, 4);
    assert_true(error_of(0, 0, "blk.0.ffn_gate_exps.weight") == 0);
    assert_true(error_of(0, 2, "blk.0.ffn_down_exps.weight") == 0);
    assert_true(error_of(1, 1, "blk.1.ffn_up_exps.weight") == 0);
    assert_true(error_of(1, 2, "blk.1.ffn_down_exps.weight") == 0);
    uint64_t bytes = 0, of_file = moe_checkpoint_find(ck, "blk.0.ffn_gate_exps.weight")->bytes * 2 +
                                  moe_checkpoint_find(ck, "blk.0.ffn_down_exps.weight")->bytes;
    for (uint32_t e = 0; e < FORGED_EXPERTS; e++)
        for (int segment = 0; segment < 2; segment++)
            bytes += moe_pack_expert(pack, 0, e, 0)->segments[segment].raw_bytes;
    assert_true(bytes >= of_file && bytes <= of_file + of_file / 100);
    close_both();
    assert_int_equal(report.n_roundings + report.requantized, 0);

    /* Asked for, the same bits cost what they cost, and that is said. */
    report = convert(source, path, "4", 8);
    open_both(source, path);
    double six = error_of(0, 2, "blk.0.ffn_down_exps.weight");
    assert_true(six > 0.02);
    assert_int_equal(report.n_roundings, 1);
    assert_string_equal(report.roundings[0].from, "Q6_K");
    assert_int_equal(moe_layout_bits(report.roundings[0].kind), 4);
    double said = sqrt(report.roundings[0].error.sum_squared_error /
                       report.roundings[0].error.sum_squared_weight);
    assert_true(fabs(said - six) < 1e-6 * six);
    close_both();
}

/* A pack's own codes are named too when they are rounded again. */
static void repacking_names_what_it_rounds(void **state)
{
    (void)state;
    const char *path = in_dir("8.moe");
    struct moe_convert_report report = convert(DRAWN "/mixtral-a", path, "8", 8);
    const struct moe_convert_options o = {
        .experts = {{4, 4}}, .n_experts = 1, .method = moe_quant_method_find("hqq"), .group = 64};
    struct moe_err err = {0};
    assert_ok(moe_convert_pack(path, in_dir("4.moe"), &o, &report, &err), &err);
    char expected[128];
    assert_int_equal(report.n_roundings, 1);
    snprintf(expected, sizeof expected,
             "x: 15 expert gate, 15 expert up, 15 expert down: q8 -> 4 bits, error %.2g%%\n",
             100 * sqrt(report.error[0].sum_squared_error / report.error[0].sum_squared_weight));
    expect_lines(&report, expected);
    /* Layouts of as many bits, by their names. */
    struct moe_convert_options two = o;
    two.experts[two.n_experts++] = (struct moe_bits){moe_parse_width("iq4_ks"), 4};
    assert_ok(moe_convert_pack(path, in_dir("both.moe"), &two, &report, &err), &err);
    assert_int_equal(report.n_roundings, 2);
    struct moe_buf text = {0};
    moe_show_source(&report, "x", &text);
    assert_non_null(strstr((char *)text.data, "15 expert down: q8 -> q4, error "));
    assert_non_null(
        strstr((char *)text.data, "x: 15 expert gate, 15 expert up: q8 -> iq4_ks, error "));
    moe_buf_release(&text);
}

/* Rotated rows come out of pairs: (0, 1), (2, 3), ... of the file are i and i + half of the
 * pack. */
static uint32_t paired(uint32_t row)
{
    uint32_t head = row / HEAD_DIM * HEAD_DIM, i = row % HEAD_DIM;
    return head + (i < HEAD_DIM / 2 ? 2 * i : 2 * (i - HEAD_DIM / 2) + 1);
}

static void rows_in_pairs_are_carried_in_halves(void **state)
{
    (void)state;
    const char *path = in_dir("mixtral.moe");
    struct moe_convert_report report = convert(MIXTRAL, path, "4", 8);
    assert_int_equal(report.requantized, 0);
    open_both(MIXTRAL, path);
    expect_dense("layers.1.attn.q", "blk.1.attn_q.weight", MOE_LAYOUT_Q8_0, paired);
    expect_dense("layers.0.attn.k", "blk.0.attn_k.weight", MOE_LAYOUT_Q5_0, paired);
    expect_dense("layers.0.attn.v", "blk.0.attn_v.weight", MOE_LAYOUT_Q4_0, NULL);
    expect_experts(0, "gd", MOE_LAYOUT_Q4_0);
    expect_experts(1, "u", MOE_LAYOUT_Q4);
    close_both();
}

/* MXFP4 has a layout of its own at 4 bits: nothing is lost, whatever the exponents. */
static void mxfp4_is_carried_whatever_its_exponents(void **state)
{
    (void)state;
    enum { ROWS = 19, COLS = 160, BLOCKS = ROWS * COLS / 32 };
    struct moe_err err = {0};
    const struct moe_ggml_type *mxfp4 = moe_ggml_find(MOE_GGML_MXFP4);
    struct moe_layout layout = moe_ggml_layout(mxfp4, 4);
    static uint8_t blocks[BLOCKS * 17];
    static float values[ROWS * COLS];
    float got[COLS];
    uint64_t seed = 9;
    for (int i = 0; i < BLOCKS * 17; i++)
        blocks[i] = i % 17 ? (uint8_t)test_random(&seed) : (uint8_t)(i / 17 * 5 % 254);
    moe_ggml_decode(mxfp4, blocks, BLOCKS, values);
    struct moe_quant_error error = {0};
    uint8_t *out = moe_alloc(moe_layout_bytes(layout, ROWS, COLS), 1, NULL);
    assert_int_equal(layout.kind, MOE_LAYOUT_MXFP4);
    assert_ok(moe_ggml_carry_matrix(mxfp4, blocks, ROWS, COLS, out, &error, &err), &err);
    assert_true(error.sum_squared_error == 0);
    struct moe_mat mat = {out, layout, ROWS, COLS};
    for (uint32_t row = 0; row < ROWS; row++) {
        moe_layout_load_row(&mat, row, got);
        assert_memory_equal(got, values + row * COLS, sizeof got);
    }
    blocks[17 * 7] = 255;
    assert_fails(moe_ggml_carry_matrix(mxfp4, blocks, ROWS, COLS, out, &error, &err),
                 MOE_ERR_FORMAT, "row 1, columns 64 to 95", &err);
    free(out);
}

/* ---- The model's description
 * ---------------------------------------------------------------------- */

static void metadata_and_tensors_describe_the_model(void **state)
{
    (void)state;
    struct moe_err err = {0};
    static struct moe_config c;
    assert_ok(moe_checkpoint_open(&ck, QWEN, &err), &err);
    assert_ok(moe_config_read_gguf(&c, ck, &err), &err);
    assert_string_equal(c.family, "qwen2_moe");
    assert_int_equal(c.vocab, 259);
    assert_int_equal(c.head_dim, HEAD_DIM);
    assert_int_equal(c.expert_ff, FF);
    assert_int_equal(c.shared_ff, FF);
    assert_true(c.tied_head && c.qkv_bias && c.shared_gate && !c.norm_topk && !c.o_bias);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos[1], 257);
    moe_checkpoint_close(ck);
    assert_ok(moe_checkpoint_open(&ck, MIXTRAL, &err), &err);
    assert_ok(moe_config_read_gguf(&c, ck, &err), &err);
    assert_string_equal(c.family, "mixtral");
    assert_true(c.tied_head && !c.qkv_bias && c.norm_topk && c.shared_ff == 0);
    moe_checkpoint_close(ck);
    assert_ok(moe_checkpoint_open(&ck, "tests/fixtures/gguf/types.gguf", &err), &err);
    assert_fails(moe_config_read_gguf(&c, ck, &err), MOE_ERR_UNSUPPORTED,
                 "architecture 'test' is not implemented (known: qwen2moe,", &err);
    moe_checkpoint_close(ck);
}

/* A fixture with one whole number changed: a key's, or that of one layer. */
static void describe_changed(const char *fixture, const char *key, int layer, uint32_t value,
                             const char *message)
{
    struct moe_buf file = {0};
    struct moe_err err = {0};
    static struct moe_config c;
    assert_ok(moe_file_read_all(fixture, 1 << 22, &file, &err), &err);
    if (layer < 0)
        set_u32_key(file.data, file.size, key, value);
    else
        set_u32_item(file.data, file.size, key, (uint32_t)layer, value);
    write_in_dir("changed.gguf", file.data, file.size);
    assert_ok(moe_checkpoint_open(&ck, in_dir("changed.gguf"), &err), &err);
    int status = moe_config_read_gguf(&c, ck, &err);
    assert_true(status == MOE_ERR_UNSUPPORTED || status == MOE_ERR_FORMAT);
    assert_non_null(strstr(err.text, message));
    moe_checkpoint_close(ck);
    moe_buf_release(&file);
}

static void what_is_not_computed_is_refused_by_its_key(void **state)
{
    (void)state;
    describe_changed(GEMMA4, "gemma4.attention.shared_kv_layers", -1, 2,
                     "layers that share keys are implemented for dense decoders");
    describe_changed(
        GEMMA4, "gemma4.embedding_length_per_layer_input", -1, 256,
        "embeddings by layer and layers that share keys are implemented for dense decoders");
    describe_changed(GEMMA4, "gemma4.attention.head_count_kv", 2, 4,
                     "'attention.head_count_kv' differs between layer 2");
    describe_changed(GEMMA4, "gemma4.attention.head_count_kv", 3, 1u << 31,
                     "is -2147483648 for layer 3");
    describe_changed(GEMMA4, "gemma4.rope.dimension_count", -1, 10,
                     "global heads of 20 values, 10 of them rotated");
    describe_changed(GEMMA4, "gemma4.block_count", -1, 5, "has 4 numbers for 5 layers");
    describe_changed(AFMOE, "afmoe.attention.sliding_window", -1, 0,
                     "'attention.sliding_window' 0 is not implemented");
    describe_changed(AFMOE, "afmoe.expert_group_count", -1, 2,
                     "'afmoe.expert_group_count' is 2, only 1 is implemented");
}

/* What Llama-4's files do not say, and no prompt of a fixture is long enough to show. */
static void unsaid_windows_are_as_published(void **state)
{
    (void)state;
    struct moe_err err = {0};
    static struct moe_config c;
    assert_ok(moe_checkpoint_open(&ck, LLAMA4, &err), &err);
    assert_ok(moe_config_read_gguf(&c, ck, &err), &err);
    assert_true(c.window == 8192 && c.window_chunks && c.rope_in_windows);
    assert_true(c.query_step == 8192 && fabsf(c.query_scale - 0.1f) < 1e-9f);
    assert_layers_have(c, windowed, "1110");
    moe_checkpoint_close(ck);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_that_fit_are_carried_exactly),
        cmocka_unit_test(what_does_not_fit_is_quantized_again),
        cmocka_unit_test(without_bits_nothing_is_rounded),
        cmocka_unit_test(an_unquantized_source_gets_the_bits_asked_for),
        cmocka_unit_test(mixed_files_keep_what_each_layer_has),
        cmocka_unit_test(types_of_few_bits_are_carried),
        cmocka_unit_test(damaged_types_are_refused_or_read),
        cmocka_unit_test(repacking_names_what_it_rounds),
        cmocka_unit_test(rows_in_pairs_are_carried_in_halves),
        cmocka_unit_test(mxfp4_is_carried_whatever_its_exponents),
        cmocka_unit_test(metadata_and_tensors_describe_the_model),
        cmocka_unit_test(what_is_not_computed_is_refused_by_its_key),
        cmocka_unit_test(unsaid_windows_are_as_published),
    };
    return cmocka_run_group_tests(tests, make_dir, tear_down);
}
