#define _DEFAULT_SOURCE /* mkdtemp */
/* safetensors checkpoints: what opens, what is read, and damaged headers. */
#include "../scratch_dir.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/float16.h"
#include "fmt/checkpoint.h"

/* ---- A directory to break things in ---- */

/* A safetensors file: header text, then n_data bytes counting 0, 1, 2 ... */
static void write_tensors(const char *name, const char *header, uint64_t n_data)
{
    struct moe_buf file = {0};
    moe_buf_u64(&file, strlen(header));
    moe_buf_text(&file, header);
    for (uint64_t i = 0; i < n_data; i++)
        moe_buf_u8(&file, (uint8_t)i);
    write_in_dir(name, file.data, file.size);
    moe_buf_release(&file);
}

static void expect_refused(int status, const char *words)
{
    struct moe_err err = {0};
    struct moe_checkpoint *ck = NULL;
    assert_fails(moe_checkpoint_open(&ck, dir, &err), status, words, &err);
    assert_null(ck);
}

static struct moe_checkpoint *expect_opened(void)
{
    struct moe_err err = {0};
    struct moe_checkpoint *ck = NULL;
    assert_ok(moe_checkpoint_open(&ck, dir, &err), &err);
    return ck;
}

/* ---- Sound files ---- */

static void tiny_model_opens(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_checkpoint *ck;
    assert_ok(moe_checkpoint_open(&ck, BUNDLED "/tiny-moe", &err), &err);
    assert_string_equal(moe_checkpoint_dir(ck), BUNDLED "/tiny-moe");
    const struct moe_tensor *t;
    assert_ok(
        moe_checkpoint_get(ck, "model.embed_tokens.weight", 2, (uint64_t[]){4096, 192}, &t, &err),
        &err);
    assert_int_equal(t->dtype, MOE_DTYPE_BF16);
    assert_fails(
        moe_checkpoint_get(ck, "model.embed_tokens.weight", 2, (uint64_t[]){192, 4096}, &t, &err),
        MOE_ERR_FORMAT, "has the shape [4096][192], expected [192][4096]", &err);
    assert_fails(moe_checkpoint_get(ck, "model.none", 1, (uint64_t[]){192}, &t, &err),
                 MOE_ERR_FORMAT, "'model.none' [192] is missing", &err);
    for (uint64_t i = 1; i < moe_checkpoint_n_tensors(ck); i++)
        assert_true(strcmp(moe_checkpoint_at(ck, i - 1)->name, moe_checkpoint_at(ck, i)->name) < 0);

    /* Reading in pieces gives what reading at once gives. */
    enum { N = 192 * 8 };
    float whole[N], pieces[N];
    assert_ok(moe_checkpoint_read(ck, t, 192 * 5, N, whole, &err), &err);
    for (int i = 0; i < N; i += 96)
        assert_ok(moe_checkpoint_read(ck, t, 192 * 5 + (uint64_t)i, 96, pieces + i, &err), &err);
    assert_memory_equal(whole, pieces, sizeof whole);
    assert_fails(moe_checkpoint_read(ck, t, t->n_items, 1, whole, &err), MOE_ERR_USAGE, "cannot",
                 &err);
    moe_checkpoint_close(ck);
}

static void types_are_converted_exactly(void **state)
{
    (void)state;
    write_tensors("model.safetensors",
                  "{\"__metadata__\":{\"format\":\"pt\"},"
                  "\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[0,6]},"
                  "\"h\":{\"dtype\":\"F16\",\"shape\":[1,3],\"data_offsets\":[6,12]},"
                  "\"f\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12,20]},"
                  "\"scalar\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[20,24]}}",
                  24);
    struct moe_err err = {0};
    struct moe_checkpoint *ck = expect_opened();
    const struct moe_tensor *t;
    float v[3];
    assert_int_equal(moe_checkpoint_n_tensors(ck), 4);
    assert_ok(moe_checkpoint_get(ck, "b", 1, (uint64_t[]){3}, &t, &err), &err);
    assert_ok(moe_checkpoint_read(ck, t, 0, 3, v, &err), &err);
    assert_true(v[0] == moe_bf16_to_f32(0x0100) && v[2] == moe_bf16_to_f32(0x0504));
    assert_ok(moe_checkpoint_get(ck, "h", 2, (uint64_t[]){1, 3}, &t, &err), &err);
    assert_ok(moe_checkpoint_read(ck, t, 1, 2, v, &err), &err);
    assert_true(v[0] == moe_f16_to_f32(0x0908) && v[1] == moe_f16_to_f32(0x0b0a));
    assert_ok(moe_checkpoint_get(ck, "f", 1, (uint64_t[]){2}, &t, &err), &err);
    assert_ok(moe_checkpoint_read(ck, t, 1, 1, v, &err), &err);
    assert_true(v[0] == moe_bits_f32(0x13121110));
    assert_ok(moe_checkpoint_get(ck, "scalar", 1, (uint64_t[]){1}, &t, &err), &err);
    moe_checkpoint_close(ck);
}

/* A matrix [3][5] whose codes count 0, 1, 2 ..., and 8 bytes for its scales after it. */
#define FP8 "{\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":[3,5],\"data_offsets\":[0,15]}"
#define SCALES(name, dtype, shape, end)                                                            \
    ",\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[15," end "]}}"

/* The value of a code from 0 to 0x7e. */
static double fp8_value(int code)
{
    return code < 8 ? ldexp(code, -9) : ldexp(8 + code % 8, code / 8 - 10);
}

/* Reads the matrix whole and from each of its items on; wants these factors for its items. */
static void expect_fp8(const char *header, const float factors[15])
{
    struct moe_err err = {0};
    const struct moe_tensor *t;
    float values[15], rest[15];
    write_tensors("model.safetensors", header, 32);
    struct moe_checkpoint *ck = expect_opened();
    assert_int_equal(moe_checkpoint_n_tensors(ck), 1);
    assert_ok(moe_checkpoint_get(ck, "w", 2, (uint64_t[]){3, 5}, &t, &err), &err);
    assert_int_equal(t->dtype, MOE_DTYPE_F32);
    assert_ok(moe_checkpoint_read(ck, t, 0, 15, values, &err), &err);
    for (int i = 0; i < 15; i++) {
        assert_true(values[i] == (float)fp8_value(i) * factors[i]);
        assert_ok(moe_checkpoint_read(ck, t, (uint64_t)i, (uint64_t)(15 - i), rest, &err), &err);
        assert_memory_equal(rest, values + i, (size_t)(15 - i) * sizeof *rest);
    }
    moe_checkpoint_close(ck);
}

static void expect_fp8_refused(const char *header, const char *words)
{
    struct moe_err err = {0};
    const struct moe_tensor *t;
    write_tensors("model.safetensors", header, 40);
    struct moe_checkpoint *ck = expect_opened();
    assert_fails(moe_checkpoint_get(ck, "w", 2, (uint64_t[]){3, 5}, &t, &err), MOE_ERR_FORMAT,
                 words, &err);
    moe_checkpoint_close(ck);
}

static void weights_in_fp8_are_multiplied_by_their_scales(void **state)
{
    (void)state;
    static const char blocks[] = "{\"quantization_config\":{\"weight_block_size\":[2,3]}}";
    static const char not_blocks[] = "{\"quantization_config\":{\"weight_block_size\":[2,0]}}";
    float by_block[15], by_row[15], one[15], wide[15];
    for (int i = 0; i < 15; i++) { /* scales are the bytes from 15 on */
        int block = i / 10 * 2 + i % 5 / 3, row = i / 5;
        by_block[i] = ldexpf(1, 15 + block - 127);
        by_row[i] = moe_bf16_to_f32((uint16_t)((16 + 2 * row) << 8 | (15 + 2 * row)));
        one[i] = moe_bits_f32(0x1211100f);
        wide[i] = ldexpf(1, 15 - 127);
    }
    expect_fp8(FP8 SCALES("w_scale_inv", "F8_E8M0", "[1,1]", "16"), wide);
    expect_fp8(FP8 SCALES("w_scale", "BF16", "[3,1]", "21"), by_row);
    expect_fp8(FP8 SCALES("w_scale", "BF16", "[3]", "21"), by_row);
    expect_fp8(FP8 SCALES("w_scale", "F32", "[]", "19"), one);
    write_in_dir("config.json", blocks, strlen(blocks));
    expect_fp8(FP8 SCALES("w_scale_inv", "F8_E8M0", "[2,2]", "19"), by_block);
    expect_fp8_refused(FP8 "}", "its scales 'w_scale_inv' or 'w_scale' are missing");
    expect_fp8_refused(FP8 SCALES("w_scale_inv", "F32", "[2,3]", "39"),
                       "'w_scale_inv' [2][3], of type F32, does not fit 'w' [3][5]");
    expect_fp8_refused(FP8 SCALES("w_scale_inv", "I32", "[1]", "19"), "of type I32, does not fit");
    write_in_dir("config.json", not_blocks, strlen(not_blocks));
    expect_refused(MOE_ERR_FORMAT, "'weight_block_size'");
    unlink(in_dir("config.json"));
    expect_fp8_refused(FP8 SCALES("w_scale_inv", "F8_E8M0", "[2,2]", "19"), "block of 128 rows");
}

/* The matrix w [2][16] in words from the bytes 0, 1, 2, ... on; scales are the bytes from 16 on. */
#define INT4 "{\"w_packed\":{\"dtype\":\"I32\",\"shape\":[2,2],\"data_offsets\":[0,16]}"
#define BESIDE(name, dtype, shape, begin, end)                                                     \
    ",\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end  \
    "]}"

static void weights_in_int4_are_multiplied_by_their_scales(void **state)
{
    (void)state;
    static const char fitting[] = INT4 BESIDE("w_scale", "BF16", "[2,4]", "16", "32")
        BESIDE("w_shape", "I32", "[2]", "32", "40") "}";
    static const struct {
        const char *header, *words;
    } refused[] = {
        {INT4 "}", "its scales 'w_scale' are missing"},
        {INT4 BESIDE("w_scale", "BF16", "[2,3]", "16", "28") "}",
         "'w_scale' [2][3], of type BF16, does not fit 'w' [2][16]"},
        {INT4 BESIDE("w_scale", "BF16", "[1,4]", "16", "24") "}", "does not fit 'w'"},
        {INT4 BESIDE("w_scale", "I32", "[2,1]", "16", "24") "}", "of type I32, does not fit"},
        {INT4 BESIDE("w_scale", "BF16", "[2,4]", "16", "32")
             BESIDE("w_zero_point", "I32", "[1]", "32", "36") "}",
         "'w_zero_point' [1], of type I32, does not fit"},
        {INT4 BESIDE("w_scale", "BF16", "[2,4]", "16", "32")
             BESIDE("w_g_idx", "I32", "[1]", "32", "36") "}",
         "'w_g_idx' [1], of type I32, does not fit"},
    };
    struct moe_err err = {0};
    const struct moe_tensor *t;
    float values[32], rest[32];
    write_tensors("model.safetensors", fitting, 40);
    struct moe_checkpoint *ck = expect_opened();
    assert_int_equal(moe_checkpoint_n_tensors(ck), 1);
    assert_ok(moe_checkpoint_get(ck, "w", 2, (uint64_t[]){2, 16}, &t, &err), &err);
    assert_ok(moe_checkpoint_read(ck, t, 0, 32, values, &err), &err);
    for (int i = 0; i < 32; i++) {
        int scale = 16 + i / 4 * 2;
        float factor = moe_bf16_to_f32((uint16_t)((scale + 1) << 8 | scale));
        assert_true(values[i] == (float)((i % 2 ? i / 2 >> 4 : i / 2 & 15) - 8) * factor);
        for (int n = 1; n <= 32 - i; n++) {
            assert_ok(moe_checkpoint_read(ck, t, (uint64_t)i, (uint64_t)n, rest, &err), &err);
            assert_memory_equal(rest, values + i, (size_t)n * sizeof *rest);
        }
    }
    moe_checkpoint_close(ck);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        write_tensors("model.safetensors", refused[i].header, 40);
        ck = expect_opened();
        assert_fails(moe_checkpoint_get(ck, "w", 2, (uint64_t[]){2, 16}, &t, &err), MOE_ERR_FORMAT,
                     refused[i].words, &err);
        moe_checkpoint_close(ck);
    }
}

static void odd_tensors_are_refused_only_when_asked_for(void **state)
{
    (void)state;
    write_tensors("model.safetensors",
                  "{\"ids\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[0,16]},"
                  "\"new\":{\"dtype\":\"F4_NEW\",\"shape\":[3],\"data_offsets\":[16,18]},"
                  "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[18,18]},"
                  "\"deep\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1],\"data_offsets\":[20,24]},"
                  "\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[24,28]}}",
                  28);
    struct moe_err err = {0};
    struct moe_checkpoint *ck = expect_opened();
    const struct moe_tensor *t;
    assert_ok(moe_checkpoint_get(ck, "x", 1, (uint64_t[]){1}, &t, &err), &err);
    assert_fails(moe_checkpoint_get(ck, "ids", 1, (uint64_t[]){2}, &t, &err), MOE_ERR_UNSUPPORTED,
                 "type I64", &err);
    assert_fails(moe_checkpoint_get(ck, "new", 1, (uint64_t[]){3}, &t, &err), MOE_ERR_UNSUPPORTED,
                 "type F4_NEW", &err);
    assert_fails(moe_checkpoint_get(ck, "empty", 2, (uint64_t[]){0, 7}, &t, &err),
                 MOE_ERR_UNSUPPORTED, "'empty'", &err);
    assert_int_not_equal(moe_checkpoint_get(ck, "deep", 4, (uint64_t[]){1, 1, 1, 1}, &t, &err),
                         MOE_OK);
    moe_checkpoint_close(ck);
}

/* ---- Damaged files ---- */

static void damaged_headers_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *header, *words;
    } cases[] = {
        {"", "whole safetensors file"},
        {"[]", "not a JSON object"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}", "line"},
        {"{\"a\":7}", "an object"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", "'dtype' is missing"},
        {"{\"a\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", "'dtype' is a number"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", "'shape'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", "impossible"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", "impossible"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]}}",
         "impossible"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}",
         "do not fit"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", "'data_offsets'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", "rising"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", "'data_offsets'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}", "do not fit"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,32]}}", "cut short"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],"
         "\"data_offsets\":[9223372036854775803,9223372036854775807]}}",
         "cut short"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
         "overlap"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         "line 1 column 59: duplicate key 'a'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"shape\":[1]}}",
         "duplicate key 'shape'"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", "duplicate key '__metadata__'"},
        {"{\"a\":{\"dtype\":null,\"shape\":[1],\"data_offsets\":[0,4]}}", "'dtype' is missing"},
        {"{\"a\":{\"dtype\":\"F\\u0000\",\"shape\":[1],\"data_offsets\":[0,4]}}", "NUL"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]}}", "two rising"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":[{]}}", "line 1"},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        write_tensors("model.safetensors", cases[i].header, 16);
        expect_refused(MOE_ERR_FORMAT, cases[i].words);
    }
}

static void every_truncation_is_refused(void **state)
{
    (void)state;
    static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
    struct moe_buf file = {0};
    moe_buf_u64(&file, strlen(header));
    moe_buf_text(&file, header);
    moe_buf_append(&file, "12345678", 8);
    for (uint64_t n = 0; n < file.size; n++) {
        write_in_dir("model.safetensors", file.data, n);
        expect_refused(MOE_ERR_FORMAT, "model.safetensors");
    }
    write_in_dir("model.safetensors", file.data, file.size);
    moe_checkpoint_close(expect_opened());
    for (int byte = 0; byte < 8; byte++) { /* absurd lengths of the header */
        file.data[byte] ^= 0x80;
        write_in_dir("model.safetensors", file.data, file.size);
        expect_refused(MOE_ERR_FORMAT, "model.safetensors");
        file.data[byte] ^= 0x80;
    }
    moe_buf_release(&file);
}

/* Files that people have in place of weights: what they are, in a directory and by themselves. */
static void what_downloads_leave_is_named(void **state)
{
    (void)state;
    static const char zeros[64] = {0};
    static const struct {
        const char *begin;
        uint64_t n; /* 0: a text */
        const char *words;
    } cases[] = {
        {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", 0, "git lfs pull"},
        {"\n<!DOCTYPE html><html><body>Not found</body></html>", 0, "a page in HTML or XML"},
        {"<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code></Error>", 0, "in HTML or XML"},
        {"{\"error\":\"Invalid username or password.\"}", 0, "a server's error message?"},
        {"Entry not found, whatever it was", 0, "a server's error message?"},
        {"PK\3\4\0\0\10\10\0\0\0\0\0\0\0\0", 16, "PyTorch file"},
        {"\200\2\212\12l\374\234F\371 j\250P\31.", 14, "pickle"},
        {"\37\213\10\0\0\0\0\0\0\0", 10, "gzip"},
        {"", 0, "is empty"},
        {zeros, sizeof zeros, "is zeros at its beginning"},
    };
    struct moe_err err = {0};
    struct moe_checkpoint *ck;
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        uint64_t n = cases[i].n ? cases[i].n : strlen(cases[i].begin);
        write_in_dir("model.safetensors", cases[i].begin, n);
        expect_refused(MOE_ERR_FORMAT, cases[i].words);
        write_in_dir("x.gguf", cases[i].begin, n);
        assert_fails(moe_checkpoint_open(&ck, in_dir("x.gguf"), &err), MOE_ERR_FORMAT,
                     cases[i].words, &err);
    }
    write_in_dir("x.gguf.part", "GGUF\3\0\0\0", 8);
    assert_fails(moe_checkpoint_open(&ck, in_dir("x.gguf.part"), &err), MOE_ERR_FORMAT,
                 "is a download that has not finished", &err);
}

static void other_things_than_checkpoints_are_explained(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_checkpoint *ck;
    expect_refused(MOE_ERR_FORMAT, "no config.json");
    write_in_dir("config.json", "{}", 2);
    expect_refused(MOE_ERR_FORMAT, "no weights");
    write_in_dir("x.gguf", "GGUFxxxxxx", 10);
    expect_refused(MOE_ERR_UNSUPPORTED, "give that file itself");
    write_in_dir("pytorch_model.bin", "x", 1);
    expect_refused(MOE_ERR_UNSUPPORTED, "safetensors is needed");
    write_tensors("weights.safetensors", "{}", 0);
    expect_refused(MOE_ERR_FORMAT, "index.json");
    assert_fails(moe_checkpoint_open(&ck, in_dir("x.gguf"), &err), MOE_ERR_VERSION, "GGUF version",
                 &err);
    assert_fails(moe_checkpoint_open(&ck, in_dir("weights.safetensors"), &err), MOE_ERR_FORMAT,
                 "give the directory", &err);
    assert_fails(moe_checkpoint_open(&ck, in_dir("config.json"), &err), MOE_ERR_FORMAT,
                 "not a checkpoint", &err);
    assert_fails(moe_checkpoint_open(&ck, in_dir("none"), &err), MOE_ERR_IO, "cannot open", &err);
    assert_int_equal(mkdir(in_dir("model.safetensors"), 0777), 0);
    expect_refused(MOE_ERR_FORMAT, "is a directory");
}

/* ---- Shards ---- */

static void write_index(const char *text)
{
    write_in_dir("model.safetensors.index.json", text, strlen(text));
}

static const char shard_a[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
static const char shard_b[] = "{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                              "\"c\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}";

static void shards_are_joined(void **state)
{
    (void)state;
    struct moe_err err = {0};
    write_tensors("one.safetensors", shard_a, 4);
    write_tensors("two.safetensors", shard_b, 8);
    write_index(
        "{\"metadata\":{\"total_size\":12,\"loss\":NaN},\"weight_map\":{\"a\":\"one.safetensors\","
        "\"b\":\"two.safetensors\",\"c\":\"two.safetensors\"}}");
    struct moe_checkpoint *ck = expect_opened();
    assert_int_equal(moe_checkpoint_n_tensors(ck), 3);
    const struct moe_tensor *t;
    float v;
    assert_ok(moe_checkpoint_get(ck, "c", 1, (uint64_t[]){1}, &t, &err), &err);
    assert_ok(moe_checkpoint_read(ck, t, 0, 1, &v, &err), &err);
    assert_true(v == moe_bits_f32(0x07060504));
    moe_checkpoint_close(ck);
}

static void index_and_shards_must_agree(void **state)
{
    (void)state;
    static const struct {
        const char *index, *words;
    } cases[] = {
        {"{}", "weight_map"},
        {"{\"weight_map\":{}}", "weight_map"},
        {"{\"weight_map\":[\"one.safetensors\"]}", "weight_map"},
        {"{\"weight_map\":{\"a\":1}}", "file name"},
        {"{\"weight_map\":{\"a\":\"../one.safetensors\"}}", "plain file name"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "plain file name"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "plain file name"},
        {"{\"weight_map\":{\"a\":\"\"}}", "plain file name"},
        {"{\"weight_map\":{\"a\":\"one.safetensors\\u0000x\"}}", "file name"},
        {"{\"weight_map\":{\"a\":\"one.safetensors\",\"z\":\"one.safetensors\"}}", "'z' is not in"},
        {"{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}}", "'c' is in"},
        {"{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"one.safetensors\","
         "\"c\":\"two.safetensors\"}}",
         "'b' is in"},
        {"{\"weight_map\":{\"a\":\"one.safetensors\",\"x\":\"twice.safetensors\"}}", "both in"},
        {"{\"weight_map\":{\"a\":\"one.safetensors\"}", "line"},
        {"{\"weight_map\":{\"a\":\"one.safetensors\",\n\"a\":\"one.safetensors\"}}",
         "line 2 column 22: duplicate key 'a'"},
        {"{\"weight_map\":{\"a\":\"one.safetensors\"},\"weight_map\":{}}",
         "duplicate key 'weight_map'"},
        {"{\"weight_map\":{\"a\":\"one.safetensors\"},\"x\":[{]}", "line 1 column"},
    };
    write_tensors("one.safetensors", shard_a, 4);
    write_tensors("twice.safetensors", shard_a, 4);
    write_tensors("two.safetensors", shard_b, 8);
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        write_index(cases[i].index);
        expect_refused(MOE_ERR_FORMAT, cases[i].words);
    }
    write_index("{\"weight_map\":{\"a\":\"gone.safetensors\"}}");
    expect_refused(MOE_ERR_IO, "gone.safetensors");
    write_in_dir("gone.safetensors.incomplete", "x", 1);
    expect_refused(MOE_ERR_IO, "finish the download");
    write_index("{\"weight_map\":{\"a\":\"./one.safetensors\"}}");
    moe_checkpoint_close(expect_opened());
    write_index("{\"weight_map\":{\"a\":\"./../one.safetensors\"}}");
    expect_refused(MOE_ERR_FORMAT, "plain file name");
}

#define in_fresh_dir(test) cmocka_unit_test_setup_teardown(test, make_dir, remove_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_model_opens),
        in_fresh_dir(types_are_converted_exactly),
        in_fresh_dir(weights_in_fp8_are_multiplied_by_their_scales),
        in_fresh_dir(weights_in_int4_are_multiplied_by_their_scales),
        in_fresh_dir(odd_tensors_are_refused_only_when_asked_for),
        in_fresh_dir(damaged_headers_are_refused),
        in_fresh_dir(every_truncation_is_refused),
        in_fresh_dir(what_downloads_leave_is_named),
        in_fresh_dir(other_things_than_checkpoints_are_explained),
        in_fresh_dir(shards_are_joined),
        in_fresh_dir(index_and_shards_must_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
