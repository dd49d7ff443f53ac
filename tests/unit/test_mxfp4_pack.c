/* A pack whose experts are MXFP4: copied bit for bit, and the source of variants with fewer bits.
 */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "../scratch_dir.h"

#include "base/mem.h"
#include "pack/convert.h"
#include "pack/pack.h"

enum { HIDDEN = 96, WIDTH = 160, N_EXPERTS = 2 };

static const struct moe_layout mxfp4 = {MOE_LAYOUT_MXFP4, 32};

/* Gate and up in segment 0, down in segment 1, as moe-quantize(1) places them. */
static struct moe_expert_class make_class(void)
{
    uint64_t up = moe_layout_bytes(mxfp4, WIDTH, HIDDEN);
    uint64_t down = moe_layout_bytes(mxfp4, HIDDEN, WIDTH);
    return (struct moe_expert_class){.n_segments = 2,
                                     .n_matrices = 3,
                                     .segment_bytes = {2 * up, down},
                                     .matrices = {{MOE_ROLE_GATE, 0, mxfp4, WIDTH, HIDDEN, 0},
                                                  {MOE_ROLE_UP, 0, mxfp4, WIDTH, HIDDEN, up},
                                                  {MOE_ROLE_DOWN, 1, mxfp4, HIDDEN, WIDTH, 0}}};
}

static void fill(uint8_t *data, uint32_t rows, uint32_t cols, uint64_t *seed)
{
    uint8_t codes[32];
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t b = 0; b * 32 < cols; b++) {
            for (int c = 0; c < 32; c++)
                codes[c] = (uint8_t)(test_random(seed) % 16);
            uint8_t e = (uint8_t)(118 + test_random(seed) % 8);
            assert_true(moe_layout_store_mxfp4(data, cols, row, b, e, codes));
        }
}

static void write_pack(const char *path)
{
    static const struct moe_pack_variant variant = {"mxfp4", "copy"};
    struct moe_err err = {0};
    struct moe_pack_writer *w;
    uint64_t seed = 1;
    assert_ok(moe_pack_create(&w, path, 1, N_EXPERTS, &variant, 1, 7, 0, &err), &err);
    assert_ok(moe_pack_put_section(w, MOE_PACK_MODEL, "{}", 2, &err), &err);
    assert_ok(moe_pack_put_section(w, MOE_PACK_PROVENANCE, "{}", 2, &err), &err);
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        struct moe_expert_class class_ = make_class();
        void *segments[2];
        uint32_t index;
        for (int s = 0; s < 2; s++)
            segments[s] = moe_alloc(class_.segment_bytes[s], 1, &err);
        for (int m = 0; m < 3; m++) {
            const struct moe_class_matrix *mat = &class_.matrices[m];
            fill((uint8_t *)segments[mat->segment] + mat->offset, mat->rows, mat->cols, &seed);
        }
        assert_ok(moe_pack_put_class(w, &class_, &index, &err), &err);
        assert_ok(moe_pack_put_expert(w, 0, e, 0, index, (const void *const *)segments, &err),
                  &err);
        free(segments[0]);
        free(segments[1]);
    }
    assert_ok(moe_pack_commit(w, &err), &err);
}

static int repack(const char *from, const char *to, int bits, struct moe_err *err)
{
    struct moe_convert_report report;
    struct moe_convert_options options = {.method = moe_quant_method_find("rtn"), .group = 64};
    if (bits)
        options.experts[options.n_experts++] = (struct moe_bits){bits, bits};
    return moe_convert_pack(from, to, &options, &report, err);
}

/* A segment of expert 1; free() it. */
static uint8_t *read_segment(const struct moe_pack *pack, uint32_t s, uint64_t *n)
{
    struct moe_err err = {0};
    const struct moe_extent *extent = &moe_pack_expert(pack, 0, 1, 0)->segments[s];
    uint8_t *raw = moe_alloc(extent->raw_bytes, 1, &err);
    assert_ok(moe_pack_read(pack, extent, raw, "segment", &err), &err);
    *n = extent->raw_bytes;
    return raw;
}

static void copies_bit_for_bit(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_pack *a, *b;
    write_pack(in_dir("a.moe"));
    assert_ok(repack(in_dir("a.moe"), in_dir("b.moe"), 0, &err), &err);
    assert_ok(moe_pack_open(&a, in_dir("a.moe"), &err), &err);
    assert_ok(moe_pack_open(&b, in_dir("b.moe"), &err), &err);
    assert_string_equal(moe_pack_variant_at(b, 0)->name, "mxfp4");
    for (uint32_t s = 0; s < 2; s++) {
        uint64_t n, m;
        uint8_t *x = read_segment(a, s, &n), *y = read_segment(b, s, &m);
        assert_int_equal(n, m);
        assert_memory_equal(x, y, n);
        free(x);
        free(y);
    }
    moe_pack_close(a);
    moe_pack_close(b);
}

/* Down of expert 1 in 4 and 2 affine bits is what the quantizer makes of the decoded rows. */
static void gives_variants_of_fewer_bits(void **state)
{
    (void)state;
    struct moe_err err = {0};
    write_pack(in_dir("a.moe"));
    for (int bits = 4; bits > 0; bits -= 2) {
        struct moe_pack *from, *to;
        uint64_t n, m;
        assert_ok(repack(in_dir("a.moe"), in_dir("b.moe"), bits, &err), &err);
        assert_ok(moe_pack_open(&from, in_dir("a.moe"), &err), &err);
        assert_ok(moe_pack_open(&to, in_dir("b.moe"), &err), &err);
        uint8_t *down = read_segment(from, 1, &n), *got = read_segment(to, 1, &m);
        struct moe_mat mat = {down, mxfp4, HIDDEN, WIDTH};
        struct moe_layout layout = {moe_layout_kind_of_bits(bits), 64};
        float *w = moe_alloc(HIDDEN * WIDTH, sizeof *w, &err);
        for (uint32_t row = 0; row < HIDDEN; row++)
            moe_layout_load_row(&mat, row, w + row * WIDTH);
        assert_int_equal(m, moe_layout_bytes(layout, HIDDEN, WIDTH));
        uint8_t *want = moe_alloc(m, 1, &err);
        assert_ok(moe_quantize_matrix(moe_quant_method_find("rtn"), layout, NULL, w, HIDDEN, WIDTH,
                                      want, NULL, &err),
                  &err);
        assert_memory_equal(got, want, m);
        free(down);
        free(got);
        free(want);
        free(w);
        moe_pack_close(from);
        moe_pack_close(to);
        assert_int_equal(remove(in_dir("b.moe")), 0);
    }
    assert_fails(repack(in_dir("a.moe"), in_dir("b.moe"), 8, &err), MOE_ERR_USAGE,
                 "cannot be made of them", &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(copies_bit_for_bit, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(gives_variants_of_fewer_bits, make_dir, remove_dir),
    };
    return cmocka_run_group_tests_name("mxfp4_pack", tests, NULL, NULL);
}
