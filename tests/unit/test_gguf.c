#define _DEFAULT_SOURCE /* mkdtemp */
/* GGUF files: values of every type, metadata, split files, and damage that is named. */
#include "../scratch_dir.h"

#include <math.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/float16.h"
#include "base/mem.h"
#include "fmt/checkpoint.h"
#include "fmt/gguf.h"
#include "quant/ggml.h"
#include "quant/quantize.h"

#define FIXTURES "tests/fixtures/gguf/"

static struct moe_checkpoint *open_checkpoint(const char *path)
{
    struct moe_err err = {0};
    struct moe_checkpoint *ck = NULL;
    assert_ok(moe_checkpoint_open(&ck, path, &err), &err);
    return ck;
}

static const struct moe_tensor *get(const struct moe_checkpoint *ck, const char *name)
{
    const struct moe_tensor *t = moe_checkpoint_find(ck, name);
    assert_non_null(t);
    return t;
}

static float *read_tensor(const struct moe_checkpoint *ck, const struct moe_tensor *t)
{
    struct moe_err err = {0};
    float *values = moe_alloc(t->n_items, sizeof *values, NULL);
    assert_non_null(values);
    assert_ok(moe_checkpoint_read(ck, t, 0, t->n_items, values, &err), &err);
    return values;
}

/* Every readable tensor, by name, has the values in the file, bit for bit. */
static void expect_values(const struct moe_checkpoint *ck, const char *path)
{
    struct moe_err err = {0};
    struct moe_buf file = {0};
    uint64_t at = 0;
    assert_ok(moe_file_read_all(path, 1 << 20, &file, &err), &err);
    for (uint64_t i = 0; i < moe_checkpoint_n_tensors(ck); i++) {
        const struct moe_tensor *t = moe_checkpoint_at(ck, i);
        if (t->dtype == MOE_DTYPE_OTHER)
            continue;
        assert_true(at + 4 * t->n_items <= file.size);
        float *values = read_tensor(ck, t);
        if (memcmp(values, file.data + at, 4 * t->n_items) != 0)
            fail_msg("tensor '%s' is not what it should be", t->name);
        at += 4 * t->n_items;
        free(values);
    }
    assert_int_equal(at, file.size);
    moe_buf_release(&file);
}

/* ---- Values of tensors
 * --------------------------------------------------------------------------- */

static void every_type_decodes_as_the_gguf_package_does(void **state)
{
    (void)state;
    struct moe_checkpoint *ck = open_checkpoint(FIXTURES "types.gguf");
    assert_string_equal(moe_checkpoint_dir(ck), FIXTURES "types.gguf");
    expect_values(ck, FIXTURES "types.f32");
    enum { TYPES = 200 };
    bool seen[TYPES] = {false};
    for (uint64_t i = 0; i < moe_checkpoint_n_tensors(ck); i++) {
        const struct moe_ggml_type *type = moe_dtype_block(moe_checkpoint_at(ck, i)->dtype);
        seen[type ? type->number : TYPES - 1] = true;
    }
    for (uint32_t number = 0; number < TYPES - 1; number++) {
        const struct moe_ggml_type *type = moe_ggml_find(number);
        assert_int_equal(seen[number], type && type->kind);
    }
    assert_true(seen[TYPES - 1]);

    /* Rows first; a type that is only known by its size is refused by name. */
    struct moe_err err = {0};
    const struct moe_tensor *t;
    assert_ok(moe_checkpoint_get(ck, "experts", 3, (uint64_t[]){2, 3, 64}, &t, &err), &err);
    assert_int_equal(t->bytes, 2 * 3 * 2 * 34);
    assert_fails(moe_checkpoint_get(ck, "whole", 2, (uint64_t[]){2, 3}, &t, &err),
                 MOE_ERR_UNSUPPORTED, "'whole' [2][3] is of type I32", &err);
    float value;
    assert_fails(moe_checkpoint_read(ck, get(ck, "whole"), 0, 1, &value, &err), MOE_ERR_USAGE,
                 "cannot be read", &err);
    moe_checkpoint_close(ck);
}

static void parts_of_blocks_are_read(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_checkpoint *ck = open_checkpoint(FIXTURES "types.gguf");
    for (uint64_t i = 0; i < moe_checkpoint_n_tensors(ck); i++) {
        const struct moe_tensor *t = moe_checkpoint_at(ck, i);
        const struct moe_ggml_type *type = moe_dtype_block(t->dtype);
        if (!type)
            continue;
        float *values = read_tensor(ck, t), some[700];
        static const uint64_t firsts[] = {0, 1, 3, 31, 32, 33, 255, 256, 300};
        for (size_t a = 0; a < N_ITEMS(firsts); a++)
            for (size_t b = 0; b < N_ITEMS(firsts); b++) {
                uint64_t first = firsts[a], n = firsts[b];
                if (first + n > t->n_items)
                    continue;
                some[n] = 12345;
                assert_ok(moe_checkpoint_read(ck, t, first, n, some, &err), &err);
                assert_memory_equal(some, values + first, 4 * n);
                assert_true(some[n] == 12345);
            }
        uint8_t blocks[2 * MOE_GGML_MAX_BLOCK_BYTES];
        uint64_t last = t->n_items / type->items - 2;
        assert_ok(moe_checkpoint_read_blocks(ck, t, last, 2, blocks, &err), &err);
        moe_ggml_decode(type, blocks, 2, some);
        assert_memory_equal(some, values + last * type->items, 8 * type->items);
        assert_fails(moe_checkpoint_read_blocks(ck, t, last + 1, 2, blocks, &err), MOE_ERR_USAGE,
                     "blocks", &err);
        free(values);
    }
    moe_checkpoint_close(ck);
}

static void pairs_of_bytes_are_mxfp4(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_checkpoint *ck = open_checkpoint(FIXTURES "mxfp4-pairs");
    const struct moe_tensor *t;
    assert_null(moe_checkpoint_gguf(ck));
    assert_ok(moe_checkpoint_get(ck, "experts.up", 3, (uint64_t[]){2, 6, 96}, &t, &err), &err);
    assert_int_equal(t->dtype, MOE_DTYPE_MXFP4);
    expect_values(ck, FIXTURES "mxfp4-pairs/values.f32");
    assert_null(moe_checkpoint_find(ck, "experts.up_blocks"));
    assert_null(moe_checkpoint_find(ck, "experts.up_scales"));
    assert_fails(moe_checkpoint_get(ck, "odd", 2, (uint64_t[]){1, 1}, &t, &err), MOE_ERR_FORMAT,
                 "'odd_scales'", &err);
    assert_int_equal(get(ck, "odd_scales")->dtype, MOE_DTYPE_OTHER);
    moe_checkpoint_close(ck);
}

/* ---- Carrying over
 * -------------------------------------------------------------------------------- */

/* In the layout of its type a matrix has the values that it has in the file. */
static void carried_blocks_keep_their_values(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_checkpoint *ck = open_checkpoint(FIXTURES "types.gguf");
    int n_carried = 0;
    for (uint64_t i = 0; i < moe_checkpoint_n_tensors(ck); i++) {
        const struct moe_tensor *t = moe_checkpoint_at(ck, i);
        const struct moe_ggml_type *type = moe_dtype_block(t->dtype);
        if (!type || type->items == 1 || t->n_dims != 2)
            continue;
        uint32_t rows = (uint32_t)t->dims[0], cols = (uint32_t)t->dims[1];
        const struct moe_layout layout = moe_ggml_layout(type, 8);
        struct moe_quant_error error = {0};
        float *values = read_tensor(ck, t), *row = moe_alloc(cols, sizeof *row, NULL);
        uint8_t *blocks = moe_alloc(t->n_items / type->items, type->bytes, NULL);
        uint8_t *data = moe_alloc(moe_layout_bytes(layout, rows, cols), 1, NULL);
        assert_int_equal(moe_layout_bits(layout.kind), moe_ggml_bits(type));
        assert_int_equal(moe_ggml_layout(type, moe_ggml_bits(type) - 1).kind, MOE_LAYOUT_NONE);
        assert_int_equal(moe_ggml_layout(type, 16).kind, MOE_LAYOUT_NONE);
        assert_ok(moe_checkpoint_read_blocks(ck, t, 0, t->n_items / type->items, blocks, &err),
                  &err);
        assert_ok(moe_ggml_carry_matrix(type, blocks, rows, cols, data, &error, &err), &err);
        const struct moe_mat mat = {data, layout, rows, cols};
        for (uint32_t r = 0; r < rows; r++) {
            moe_layout_load_row(&mat, r, row);
            for (uint32_t c = 0; c < cols; c++)
                if (row[c] != values[r * cols + c])
                    fail_msg("%s: row %u column %u: %g became %g", t->name, r, c,
                             (double)values[r * cols + c], (double)row[c]);
        }
        n_carried++;
        free(blocks);
        free(values);
        free(data);
        free(row);
    }
    assert_int_equal(n_carried, 41);
    moe_checkpoint_close(ck);
}

/* Any finite scale is carried; others are refused, with their place. */
static void scales_at_the_ends_of_f16(void **state)
{
    (void)state;
    struct moe_err err = {0};
    const struct moe_ggml_type *q8_0 = moe_ggml_find(MOE_GGML_Q8_0);
    const struct moe_layout layout = moe_ggml_layout(q8_0, 8);
    static const float scales[] = {0, 0x1p-24f, -0x1p-24f, 512, -512, 65504, INFINITY, NAN};
    for (size_t i = 0; i < N_ITEMS(scales); i++) {
        uint8_t blocks[2][34] = {{0}}, data[64 + 2 * 512] = {0};
        struct moe_quant_error error = {0};
        float row[64];
        moe_put_u16(blocks[1], moe_f32_to_f16(scales[i]));
        blocks[1][2] = 0x81; /* -127 */
        assert_int_equal(moe_layout_bytes(layout, 1, 64), sizeof data);
        int status = moe_ggml_carry_matrix(q8_0, blocks[0], 1, 64, data, &error, &err);
        if (!isfinite(scales[i])) {
            assert_fails(status, MOE_ERR_FORMAT, "row 0, columns 32 to 63 are not finite", &err);
            continue;
        }
        assert_ok(status, &err);
        const struct moe_mat mat = {data, layout, 1, 64};
        moe_layout_load_row(&mat, 0, row);
        assert_true(row[32] == -127 * scales[i] && row[33] == 0 && row[0] == 0);
    }
}

/* By hand: ik_llama.cpp's block has d, two high bits of columns i, 16 + i, 8 + i, 24 + i in byte i,
 * from low to high, and the low four of columns i and 16 + i. */
static void q6_0_by_hand(void **state)
{
    (void)state;
    struct moe_err err = {0};
    const struct moe_ggml_type *type = moe_ggml_find(133);
    uint8_t block[26] = {0}, data[32 + 12 * 64] = {0};
    struct moe_quant_error error = {0};
    float some[32], row[32];
    moe_put_u16(block, moe_f32_to_f16(0.5f));
    for (int c = 0; c < 32; c++) {
        const int code = c * 37 % 64, low = c % 16, quarter = c / 8;
        block[10 + low] |= (uint8_t)((code & 15) << (c / 16 * 4));
        block[2 + c % 8] |= (uint8_t)((code >> 4) << (quarter == 0   ? 0
                                                      : quarter == 2 ? 2
                                                      : quarter == 1 ? 4
                                                                     : 6));
    }
    assert_non_null(type);
    moe_ggml_decode(type, block, 1, some);
    const struct moe_layout layout = moe_ggml_layout(type, 6);
    assert_int_equal(layout.kind, MOE_LAYOUT_Q6_0);
    assert_true(moe_layout_bytes(layout, 1, 32) <= sizeof data);
    assert_ok(moe_ggml_carry_matrix(type, block, 1, 32, data, &error, &err), &err);
    moe_layout_load_row(&(struct moe_mat){data, layout, 1, 32}, 0, row);
    for (int c = 0; c < 32; c++)
        assert_true(some[c] == 0.5f * (float)(c * 37 % 64 - 32) && row[c] == some[c]);
}

/* ---- Metadata
 * -------------------------------------------------------------------------------------- */

static void metadata_of_every_type(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_checkpoint *ck = open_checkpoint(FIXTURES "types.gguf");
    const struct moe_gguf *g = moe_checkpoint_gguf(ck);
    assert_non_null(g);
    assert_string_equal(moe_gguf_path(g), FIXTURES "types.gguf");
    static const struct {
        const char *key;
        double value;
    } numbers[] = {
        {"t.u8", 200},
        {"t.i8", -100},
        {"t.u16", 60000},
        {"t.i16", -30000},
        {"t.u32", 4000000000},
        {"t.i32", -2000000000},
        {"t.u64", 1099511627776},
        {"t.i64", -1099511627776},
        {"t.f32", 0.5},
        {"t.f64", 1e-300},
    };
    for (size_t i = 0; i < N_ITEMS(numbers); i++) {
        double value = 0;
        uint32_t whole = 7;
        assert_ok(moe_gguf_get_double(g, numbers[i].key, true, &value, &err), &err);
        assert_true(value == numbers[i].value);
        bool fits = value >= 200 && value <= UINT32_MAX;
        int status = moe_gguf_get_u32(g, numbers[i].key, UINT32_MAX, true, &whole, &err);
        assert_int_equal(status, fits ? MOE_OK : MOE_ERR_FORMAT);
        assert_true(whole == (fits ? (uint32_t)value : 7));
    }
    uint32_t u = 7;
    assert_fails(moe_gguf_get_u32(g, "t.u8", 199, true, &u, &err), MOE_ERR_FORMAT,
                 "'t.u8' is 200, 0 to 199", &err);
    assert_fails(moe_gguf_get_u32(g, "t.text", 9, true, &u, &err), MOE_ERR_FORMAT,
                 "is of type text, a whole number was expected", &err);
    assert_ok(moe_gguf_get_u32(g, "t.same", 100, true, &u, &err), &err);
    assert_int_equal(u, 8);
    assert_fails(moe_gguf_get_u32(g, "t.i32s", 100, true, &u, &err), MOE_ERR_FORMAT,
                 "different numbers for different layers", &err);
    assert_ok(moe_gguf_get_u32(g, "t.none", 100, false, &u, &err), &err);
    assert_int_equal(u, 8);
    assert_fails(moe_gguf_get_u32(g, "t.none", 100, true, &u, &err), MOE_ERR_FORMAT,
                 "types.gguf: key 't.none' is missing", &err);
    assert_true(moe_gguf_has(g, "t.u8"));
    assert_false(moe_gguf_has(g, "t.none"));

    bool flag = false;
    assert_ok(moe_gguf_get_bool(g, "t.bool", true, &flag, &err), &err);
    assert_true(flag);
    assert_fails(moe_gguf_get_bool(g, "t.u8", true, &flag, &err), MOE_ERR_FORMAT, "true or false",
                 &err);
    const char *text = NULL;
    assert_ok(moe_gguf_get_text(g, "t.text", true, &text, &err), &err);
    assert_string_equal(text, "Grüße, 世界");
    assert_fails(moe_gguf_get_text(g, "t.zero", true, &text, &err), MOE_ERR_FORMAT, "zero byte",
                 &err);
    assert_fails(moe_gguf_get_text(g, "t.u8", true, &text, &err), MOE_ERR_FORMAT, "a text", &err);
    moe_checkpoint_close(ck);
}

static void expect_text(const struct moe_gguf_array *array, uint64_t i, const char *expected)
{
    uint64_t n;
    const char *text = moe_gguf_array_text(array, i, &n);
    assert_int_equal(n, strlen(expected));
    assert_memory_equal(text, expected, n);
}

static void arrays(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_gguf *g = NULL;
    struct moe_gguf_array a;
    assert_ok(moe_gguf_open(&g, FIXTURES "types.gguf", &err), &err);
    assert_ok(moe_gguf_get_array(g, "t.texts", true, &a, &err), &err);
    assert_true(moe_gguf_array_is_text(&a));
    assert_int_equal(a.n, 4);
    expect_text(&a, 0, "");
    expect_text(&a, 1, "one");
    expect_text(&a, 2, "zwei");
    expect_text(&a, 3, "三");
    assert_ok(moe_gguf_get_array(g, "t.i32s", true, &a, &err), &err);
    assert_false(moe_gguf_array_is_text(&a));
    assert_int_equal(a.n, 3);
    assert_true(moe_gguf_array_number(&a, 1) == -2);
    assert_ok(moe_gguf_get_array(g, "t.f32s", true, &a, &err), &err);
    assert_true(moe_gguf_array_number(&a, 1) == -1.5);
    assert_ok(moe_gguf_get_array(g, "t.bools", true, &a, &err), &err);
    assert_true(moe_gguf_array_number(&a, 0) == 1 && moe_gguf_array_number(&a, 1) == 0);
    assert_ok(moe_gguf_get_array(g, "t.none", false, &a, &err), &err);
    assert_int_equal(a.n, 0);
    assert_fails(moe_gguf_get_array(g, "t.u8", true, &a, &err), MOE_ERR_FORMAT, "an array", &err);
    moe_gguf_close(g);
}

static void version_2_with_its_own_alignment(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_checkpoint *ck = open_checkpoint(FIXTURES "version2.gguf");
    const struct moe_tensor *a, *b;
    float value;
    assert_ok(moe_checkpoint_get(ck, "a", 2, (uint64_t[]){2, 4}, &a, &err), &err);
    assert_ok(moe_checkpoint_read(ck, a, 5, 1, &value, &err), &err);
    assert_true(value == 5);
    assert_ok(moe_checkpoint_get(ck, "b", 1, (uint64_t[]){1}, &b, &err), &err);
    assert_ok(moe_checkpoint_read(ck, b, 0, 1, &value, &err), &err);
    assert_true(value == 1.5f);
    struct moe_gguf_array none;
    assert_ok(moe_gguf_get_array(moe_checkpoint_gguf(ck), "t.none", true, &none, &err), &err);
    assert_true(moe_gguf_array_is_text(&none));
    assert_int_equal(none.n, 0);
    moe_checkpoint_close(ck);
}

/* ---- Split files
 * ------------------------------------------------------------------------------------ */

static void copy_to_dir(const char *from, const char *name)
{
    struct moe_err err = {0};
    struct moe_buf file = {0};
    assert_ok(moe_file_read_all(from, 1 << 20, &file, &err), &err);
    write_in_dir(name, file.data, file.size);
    moe_buf_release(&file);
}

static void expect_refused(const char *name, int status, const char *words)
{
    struct moe_err err = {0};
    struct moe_checkpoint *ck = NULL;
    assert_fails(moe_checkpoint_open(&ck, in_dir(name), &err), status, words, &err);
    assert_null(ck);
    assert_null(strchr(err.text, '\n'));
}

#define SPLIT_1 FIXTURES "split-00001-of-00003.gguf"
#define SPLIT_2 FIXTURES "split-00002-of-00003.gguf"
#define SPLIT_3 FIXTURES "split-00003-of-00003.gguf"

static void any_part_opens_the_whole(void **state)
{
    (void)state;
    struct moe_err err = {0};
    static const char *const parts[] = {SPLIT_1, SPLIT_2, SPLIT_3};
    for (size_t i = 0; i < N_ITEMS(parts); i++) {
        struct moe_checkpoint *ck = open_checkpoint(parts[i]);
        const char *text = NULL;
        assert_int_equal(moe_checkpoint_n_tensors(ck), 5);
        assert_ok(moe_gguf_get_text(moe_checkpoint_gguf(ck), "general.name", true, &text, &err),
                  &err);
        assert_string_equal(text, "three parts");
        assert_string_equal(moe_gguf_path(moe_checkpoint_gguf(ck)), SPLIT_1);
        expect_values(ck, FIXTURES "split.f32");
        moe_checkpoint_close(ck);
    }
}

static void parts_that_do_not_fit_together(void **state)
{
    (void)state;
    make_dir(NULL);
    copy_to_dir(SPLIT_1, "a-00001-of-00003.gguf");
    copy_to_dir(SPLIT_2, "a-00002-of-00003.gguf");
    expect_refused("a-00001-of-00003.gguf", MOE_ERR_IO, "a-00003-of-00003.gguf: missing: part 3");
    copy_to_dir(SPLIT_2, "a-00003-of-00003.gguf");
    expect_refused("a-00002-of-00003.gguf", MOE_ERR_FORMAT,
                   "a-00003-of-00003.gguf: is not part 3 of 3");
    copy_to_dir(FIXTURES "types.gguf", "a-00003-of-00003.gguf");
    expect_refused("a-00001-of-00003.gguf", MOE_ERR_FORMAT, "is not part 3 of 3");
    copy_to_dir(SPLIT_1, "model.gguf");
    expect_refused("model.gguf", MOE_ERR_FORMAT,
                   "is part 1 of a GGUF file split into 3 but is not");
    remove_dir(NULL);
}

/* ---- Damaged files
 * ----------------------------------------------------------------------------------- */

/* Files are put together from these. */
static void put_text(struct moe_buf *b, const char *text)
{
    moe_buf_u64(b, strlen(text));
    moe_buf_text(b, text);
}

static void put_head(struct moe_buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_keys)
{
    moe_buf_clear(b);
    moe_buf_text(b, "GGUF");
    moe_buf_u32(b, version);
    moe_buf_u64(b, n_tensors);
    moe_buf_u64(b, n_keys);
}

static void put_key(struct moe_buf *b, const char *key, uint32_t type)
{
    put_text(b, key);
    moe_buf_u32(b, type);
}

/* A tensor [rows][cols]. */
static void put_tensor(struct moe_buf *b, const char *name, uint64_t rows, uint64_t cols,
                       uint32_t type, uint64_t offset)
{
    put_text(b, name);
    moe_buf_u32(b, 2);
    moe_buf_u64(b, cols);
    moe_buf_u64(b, rows);
    moe_buf_u32(b, type);
    moe_buf_u64(b, offset);
}

static void put_data(struct moe_buf *b, uint64_t n)
{
    while (b->size % 32)
        moe_buf_u8(b, 0);
    for (uint64_t i = 0; i < n; i++)
        moe_buf_u8(b, 0);
}

static void expect_file_refused(const struct moe_buf *b, int status, const char *words)
{
    assert_false(b->failed);
    write_in_dir("x", b->data, b->size);
    expect_refused("x", status, words);
}

static void expect_file_fine(const struct moe_buf *b)
{
    write_in_dir("x", b->data, b->size);
    moe_checkpoint_close(open_checkpoint(in_dir("x")));
}

static void damaged_headers(void **state)
{
    (void)state;
    struct moe_buf b = {0};
    static const struct {
        uint32_t version;
        const char *words;
    } versions[] = {{1, "GGUF version 1; versions 2 and 3"},
                    {4, "version 4"},
                    {0, "version 0"},
                    {0x03000000, "big-endian"},
                    {0x02000000, "big-endian"}};
    for (size_t i = 0; i < N_ITEMS(versions); i++) {
        put_head(&b, versions[i].version, 0, 0);
        expect_file_refused(&b, MOE_ERR_VERSION, versions[i].words);
    }
    put_head(&b, 3, 0, 0);
    expect_file_fine(&b);
    b.size = 20;
    expect_file_refused(&b, MOE_ERR_FORMAT, "past the end of the file");
    b.size = 4;
    expect_file_refused(&b, MOE_ERR_FORMAT, "byte 4: the version of 4 bytes goes past the end");
    b.size = 3;
    expect_file_refused(&b, MOE_ERR_FORMAT, "not a checkpoint");
    put_head(&b, 3, UINT64_MAX, 0);
    expect_file_refused(&b, MOE_ERR_FORMAT, "18446744073709551615 tensors");
    put_head(&b, 3, 0, UINT64_MAX);
    expect_file_refused(&b, MOE_ERR_FORMAT, "18446744073709551615 keys");
    moe_buf_release(&b);
}

static void damaged_metadata(void **state)
{
    (void)state;
    struct moe_buf b = {0};
    put_head(&b, 3, 0, 1);
    moe_buf_u64(&b, UINT64_MAX);
    expect_file_refused(&b, MOE_ERR_FORMAT, "a key of 18446744073709551615 bytes is longer");
    put_head(&b, 3, 0, 1);
    put_text(&b, "");
    expect_file_refused(&b, MOE_ERR_FORMAT, "a key is empty");
    put_head(&b, 3, 0, 1);
    put_key(&b, "k", 13);
    expect_file_refused(&b, MOE_ERR_FORMAT, "key 'k': unknown type 13");
    put_head(&b, 3, 0, 1);
    put_key(&b, "k", 7);
    moe_buf_u8(&b, 2);
    expect_file_refused(&b, MOE_ERR_FORMAT, "key 'k': 2 is neither true nor false");
    put_head(&b, 3, 0, 1);
    put_key(&b, "k", 8);
    moe_buf_u64(&b, (uint64_t)1 << 40);
    expect_file_refused(&b, MOE_ERR_FORMAT, "longer than any can be");

    put_head(&b, 3, 0, 1);
    put_key(&b, "k", 9);
    moe_buf_u32(&b, 9);
    moe_buf_u64(&b, 1);
    expect_file_refused(&b, MOE_ERR_FORMAT, "key 'k': arrays of arrays");
    static const struct {
        uint32_t type;
        uint64_t n;
        const char *words;
    } arrays_[] = {{12, UINT64_MAX, "an array of 18446744073709551615 elements is impossible"},
                   {12, UINT64_MAX / 8, "past the end of the file"},
                   {0, 1000, "past the end of the file"},
                   {8, UINT64_MAX, "texts do not fit into the file"},
                   {8, 1, "texts do not fit into the file"},
                   {99, 1, "unknown type 99"}};
    for (size_t i = 0; i < N_ITEMS(arrays_); i++) {
        put_head(&b, 3, 0, 1);
        put_key(&b, "k", 9);
        moe_buf_u32(&b, arrays_[i].type);
        moe_buf_u64(&b, arrays_[i].n);
        expect_file_refused(&b, MOE_ERR_FORMAT, arrays_[i].words);
    }

    put_head(&b, 3, 0, 2);
    for (int i = 0; i < 2; i++) {
        put_key(&b, "k", 0);
        moe_buf_u8(&b, 1);
    }
    expect_file_refused(&b, MOE_ERR_FORMAT, "key 'k' occurs twice");

    static const uint32_t alignments[] = {0, 4, 24, 1u << 31};
    for (size_t i = 0; i < N_ITEMS(alignments); i++) {
        put_head(&b, 3, 0, 1);
        put_key(&b, "general.alignment", 4);
        moe_buf_u32(&b, alignments[i]);
        expect_file_refused(&b, MOE_ERR_FORMAT, "'general.alignment' is not a power of 2");
    }
    moe_buf_release(&b);
}

/* Texts of no bytes that lie in a hole: the file is large enough for them and takes no room. */
static void texts_of_a_sparse_file(void **state)
{
    (void)state;
    struct moe_buf b = {0};
    struct moe_gguf *g;
    struct moe_err err;
    char path[64] = "/tmp/moe-sparse-XXXXXX";
    int fd = mkstemp(path);
    put_head(&b, 3, 0, 1);
    put_key(&b, "k", 9);
    moe_buf_u32(&b, 8);
    moe_buf_u64(&b, (uint64_t)1 << 33);
    assert_true(fd >= 0 && write(fd, b.data, b.size) == (ssize_t)b.size);
    assert_int_equal(ftruncate(fd, (off_t)1 << 37), 0);
    assert_fails(moe_gguf_open(&g, path, &err), MOE_ERR_FORMAT,
                 "key 'k': 8589934592 texts: no file has that many", &err);
    close(fd);
    unlink(path);
    moe_buf_release(&b);
}

static void damaged_tensors(void **state)
{
    (void)state;
    struct moe_buf b = {0};
    static const struct {
        uint64_t rows, cols;
        uint32_t type;
        uint64_t offset;
        int status;
        const char *words;
    } one[] = {
        {2, 4, 0, 8, MOE_ERR_FORMAT, "'t' begins at 8, not a multiple of 32"},
        {2, 4, 0, 64, MOE_ERR_FORMAT, "(32 bytes at 64) goes past the end of the data of 64"},
        {2, 4, 0, (uint64_t)1 << 63, MOE_ERR_FORMAT, "goes past the end"},
        {1, 48, 8, 0, MOE_ERR_FORMAT, "rows of 48 are no whole Q8_0 blocks of 32"},
        {1, 32, 99, 0, MOE_ERR_UNSUPPORTED, "unknown type, number 99"},
        {(uint64_t)1 << 40, (uint64_t)1 << 40, 0, 0, MOE_ERR_FORMAT, "impossible shape"},
        {(uint64_t)1 << 31, (uint64_t)1 << 32, 0, 0, MOE_ERR_FORMAT, "impossible shape"},
    };
    put_head(&b, 3, 1, 0);
    put_tensor(&b, "t", 2, 4, 0, 32);
    put_data(&b, 64);
    expect_file_fine(&b);
    for (size_t i = 0; i < N_ITEMS(one); i++) {
        put_head(&b, 3, 1, 0);
        put_tensor(&b, "t", one[i].rows, one[i].cols, one[i].type, one[i].offset);
        put_data(&b, 64);
        expect_file_refused(&b, one[i].status, one[i].words);
    }
    put_head(&b, 3, 2, 0);
    put_tensor(&b, "t", 2, 4, 0, 0);
    put_tensor(&b, "u", 3, 4, 0, 0);
    put_data(&b, 64);
    expect_file_refused(&b, MOE_ERR_FORMAT, "tensors 't' and 'u' overlap");
    put_head(&b, 3, 2, 0);
    put_tensor(&b, "t", 2, 4, 0, 0);
    put_tensor(&b, "t", 2, 4, 0, 32);
    put_data(&b, 64);
    expect_file_refused(&b, MOE_ERR_FORMAT, "tensor 't' occurs twice");
    put_head(&b, 3, 1, 0);
    put_text(&b, "");
    put_data(&b, 64);
    expect_file_refused(&b, MOE_ERR_FORMAT, "name is empty");
    put_head(&b, 3, 1, 0);
    put_text(&b, "t");
    moe_buf_u32(&b, 5);
    put_data(&b, 64);
    expect_file_refused(&b, MOE_ERR_FORMAT, "has 5 dimensions");

    /* An empty tensor may be there; reading it is refused. */
    struct moe_err err = {0};
    const struct moe_tensor *t;
    put_head(&b, 3, 1, 0);
    put_tensor(&b, "t", 0, 4, 0, 0);
    put_data(&b, 0);
    expect_file_fine(&b);
    struct moe_checkpoint *ck = open_checkpoint(in_dir("x"));
    assert_fails(moe_checkpoint_get(ck, "t", 2, (uint64_t[]){0, 4}, &t, &err), MOE_ERR_UNSUPPORTED,
                 "'t'", &err);
    moe_checkpoint_close(ck);
    moe_buf_release(&b);
}

/* Cut anywhere, a file is refused with one line. */
static void cut_short_anywhere(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_buf file = {0};
    assert_ok(moe_file_read_all(FIXTURES "types.gguf", 1 << 20, &file, &err), &err);
    uint64_t whole = file.size;
    for (uint64_t n = 4; n < whole - 32; n += n < 2500 ? 7 : 97) {
        file.size = n;
        expect_file_refused(&file, MOE_ERR_FORMAT, "cut short?");
    }
    moe_buf_release(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_decodes_as_the_gguf_package_does),
        cmocka_unit_test(parts_of_blocks_are_read),
        cmocka_unit_test(pairs_of_bytes_are_mxfp4),
        cmocka_unit_test(carried_blocks_keep_their_values),
        cmocka_unit_test(scales_at_the_ends_of_f16),
        cmocka_unit_test(q6_0_by_hand),
        cmocka_unit_test(metadata_of_every_type),
        cmocka_unit_test(arrays),
        cmocka_unit_test(version_2_with_its_own_alignment),
        cmocka_unit_test(any_part_opens_the_whole),
        cmocka_unit_test(parts_that_do_not_fit_together),
        cmocka_unit_test_setup_teardown(damaged_headers, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(damaged_metadata, make_dir, remove_dir),
        cmocka_unit_test(texts_of_a_sparse_file),
        cmocka_unit_test_setup_teardown(damaged_tensors, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(cut_short_anywhere, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
