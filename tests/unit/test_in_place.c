/* Checkpoints opened in place: what is read of them is what the packs made of them hold. */
#define _DEFAULT_SOURCE /* mkdtemp, glob */
#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/float16.h"
#include "base/mem.h"
#include "base/par.h"
#include "fmt/checkpoint.h"
#include "infer/experts.h"
#include "infer/session.h"
#include "io/loader.h"
#include "kern/kern.h"
#include "pack/pack.h"
#include "text/tokenizer.h"

#include "../make_pack.h"
#include "../scratch_dir.h"

#define QWEN "tests/fixtures/gguf/qwen2moe.gguf"

/* ---- Against the pack ---- */

/* The pack that conversion makes without rounding anything. */
static struct moe_pack *open_converted(const char *checkpoint)
{
    struct moe_convert_options o = pack_options("32", 32);
    struct moe_pack *pack;
    struct moe_err err = {0};
    o.own_experts = o.own_dense = true;
    make_pack(in_dir("x.moe"), checkpoint, &o);
    assert_ok(moe_pack_open(&pack, in_dir("x.moe"), &err), &err);
    return pack;
}

/* Two matrices are the same bytes in the same layout, or the same values, where one is F32. */
static void assert_same_matrix(const struct moe_mat *a, const struct moe_mat *b)
{
    assert_int_equal(a->rows, b->rows);
    assert_int_equal(a->cols, b->cols);
    if (a->layout.kind == b->layout.kind) {
        assert_int_equal(a->layout.group, b->layout.group);
        assert_memory_equal(a->data, b->data, moe_layout_bytes(a->layout, a->rows, a->cols));
        return;
    }
    float *x = calloc(2 * (size_t)a->cols, sizeof *x);
    assert_true(moe_layout_is_float(a->layout.kind) && moe_layout_is_float(b->layout.kind));
    for (uint32_t row = 0; row < a->rows; row++) {
        moe_layout_load_row(a, row, x);
        moe_layout_load_row(b, row, x + a->cols);
        assert_memory_equal(x, x + a->cols, a->cols * sizeof *x);
    }
    free(x);
}

static uint8_t *read_extent(const struct moe_pack *pack, const struct moe_extent *x)
{
    struct moe_err err = {0};
    uint8_t *bytes = moe_pages_alloc(moe_round_up(x->raw_bytes, MOE_PACK_ALIGN), &err);
    assert_non_null(bytes);
    assert_ok(moe_pack_read(pack, x, bytes, "an extent", &err), &err);
    return bytes;
}

static void assert_same_tensors(const struct moe_pack *a, const struct moe_pack *b)
{
    for (uint32_t i = 0; i < moe_pack_n_tensors(b); i++) {
        const struct moe_pack_tensor *y = moe_pack_tensor_at(b, i);
        const struct moe_pack_tensor *x = moe_pack_tensor_find(a, y->name);
        assert_non_null(x);
        uint8_t *of_x = read_extent(a, &x->extent), *of_y = read_extent(b, &y->extent);
        assert_int_equal(x->is_vector, y->is_vector);
        if (x->is_vector)
            assert_memory_equal(of_x, of_y, x->extent.raw_bytes);
        else
            assert_same_matrix(&(struct moe_mat){of_x, x->layout, x->rows, x->cols},
                               &(struct moe_mat){of_y, y->layout, y->rows, y->cols});
        moe_pages_free(of_x, moe_round_up(x->extent.raw_bytes, MOE_PACK_ALIGN));
        moe_pages_free(of_y, moe_round_up(y->extent.raw_bytes, MOE_PACK_ALIGN));
    }
}

/* Reads an expert's segments with the loader. */
static void load_segments(struct moe_loader *loader, const struct moe_pack *pack, uint32_t layer,
                          uint32_t expert, uint8_t *const *segments)
{
    const struct moe_expert_class *class_ =
        moe_pack_class_at(pack, moe_pack_expert(pack, layer, expert, 0)->class_index);
    struct moe_load_done done;
    struct moe_err err = {0};
    uint32_t handle;
    for (uint32_t s = 0; s < class_->n_segments; s++) {
        const struct moe_expert_segment which = {layer, expert, 0, s};
        struct moe_load load = moe_expert_load(pack, &which);
        load.to = segments[s];
        assert_ok(moe_loader_submit(loader, &load, &handle, &err), &err);
    }
    for (uint32_t s = 0; s < class_->n_segments; s++) {
        assert_int_equal(moe_loader_wait(loader, &done, 1), 1);
        if (done.status != MOE_OK)
            print_error("%s\n", moe_loader_error(loader));
        assert_int_equal(done.status, MOE_OK);
    }
}

static int open_loader(struct moe_loader **out, const struct moe_pack *pack, struct moe_err *err)
{
    const struct moe_arranger *arranger = moe_pack_arranger(pack);
    const struct moe_loader_options o = {.path = moe_pack_path(pack),
                                         .n_requests = 8,
                                         .piece_bytes = 4096,
                                         .verify = true,
                                         .arranger = arranger,
                                         .compressed_bytes = 2 * arranger->most_bytes};
    return moe_loader_open(out, &o, err);
}

/* Every matrix of every expert, read at once and by the loader. */
static void assert_same_experts(const struct moe_pack *a, const struct moe_pack *b)
{
    struct moe_loader *loader;
    struct moe_err err = {0};
    assert_int_equal(moe_pack_n_experts(a), moe_pack_n_experts(b));
    if (moe_pack_n_experts(a) == 0)
        return;
    assert_ok(open_loader(&loader, a, &err), &err);
    for (uint32_t layer = 0; layer < moe_pack_n_layers(a); layer++)
        for (uint32_t e = 0; e < moe_pack_n_experts(a); e++) {
            const struct moe_expert_extent *x = moe_pack_expert(a, layer, e, 0);
            const struct moe_expert_extent *y = moe_pack_expert(b, layer, e, 0);
            assert_int_equal(x->present, y->present);
            if (!x->present)
                continue;
            const struct moe_expert_class *of_a = moe_pack_class_at(a, x->class_index);
            const struct moe_expert_class *of_b = moe_pack_class_at(b, y->class_index);
            uint8_t *read[4] = {0}, *expected[4] = {0}, *loaded[4] = {0};
            for (uint32_t s = 0; s < of_a->n_segments; s++) {
                read[s] = read_extent(a, &x->segments[s]);
                expected[s] = read_extent(b, &y->segments[s]);
                loaded[s] = read_extent(a, &x->segments[s]);
                memset(loaded[s], 0xa5, of_a->segment_bytes[s]);
            }
            load_segments(loader, a, layer, e, loaded);
            for (uint32_t i = 0; i < of_a->n_matrices; i++) {
                const struct moe_class_matrix *m = &of_a->matrices[i], *w = &of_b->matrices[i];
                struct moe_mat mat[3];
                assert_int_equal(m->role, w->role);
                moe_class_matrix_view(of_a, m->role, (const uint8_t *const *)read, &mat[0]);
                moe_class_matrix_view(of_a, m->role, (const uint8_t *const *)loaded, &mat[1]);
                moe_class_matrix_view(of_b, m->role, (const uint8_t *const *)expected, &mat[2]);
                if (m->role >= MOE_ROLE_GATE_BIAS) {
                    assert_memory_equal(mat[0].data, mat[2].data, 4 * (uint64_t)m->rows);
                    assert_memory_equal(mat[1].data, mat[2].data, 4 * (uint64_t)m->rows);
                    continue;
                }
                assert_same_matrix(&mat[0], &mat[2]);
                assert_same_matrix(&mat[1], &mat[2]);
            }
            for (uint32_t s = 0; s < of_a->n_segments; s++) {
                moe_pages_free(read[s], moe_round_up(of_a->segment_bytes[s], MOE_PACK_ALIGN));
                moe_pages_free(loaded[s], moe_round_up(of_a->segment_bytes[s], MOE_PACK_ALIGN));
                moe_pages_free(expected[s], moe_round_up(of_b->segment_bytes[s], MOE_PACK_ALIGN));
            }
        }
    moe_loader_close(loader);
}

/* Codes with scales that layouts do not hold come as F32 from conversion, and are refused here. */
static bool is_refused(const char *checkpoint)
{
    struct moe_pack *pack;
    struct moe_err err = {0};
    if (moe_pack_open(&pack, checkpoint, &err) == MOE_OK) {
        moe_pack_close(pack);
        return false;
    }
    if (err.status != MOE_ERR_UNSUPPORTED || !strstr(err.text, "make a pack with 'moe-quantize "))
        print_error("%s\n", err.text);
    assert_int_equal(err.status, MOE_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "make a pack with 'moe-quantize "));
    return true;
}

/* The tokenizer that opening hands on, once, and the one that is read from the pack. */
static void assert_same_tokenizer(struct moe_pack *in_place, const struct moe_pack *pack)
{
    static const char text[] = "It's 1 + 1 =  2, <s>na\xc3\xafve\xe2\x9c\x93</s>\n\tdef f(x):";
    uint64_t n;
    const void *section = moe_pack_section(pack, MOE_PACK_TOKENIZER, &n);
    struct moe_tokenizer *handed = moe_pack_take_tokenizer(in_place), *read;
    struct moe_buf written = {0};
    struct moe_ids of_handed = {0}, of_read = {0};
    struct moe_err err = {0};
    assert_ok(moe_tokenizer_read(&read, "the pack", section, n, &err), &err);
    assert_non_null(handed);
    assert_null(moe_pack_take_tokenizer(in_place));
    moe_tokenizer_write(handed, &written);
    assert_int_equal(written.size, n);
    assert_memory_equal(written.data, section, n);
    for (int special = 0; special < 2; special++) {
        int status = moe_tokenizer_encode(read, text, sizeof text - 1, special, &of_read, &err);
        assert_int_equal(
            moe_tokenizer_encode(handed, text, sizeof text - 1, special, &of_handed, &err), status);
    }
    assert_int_equal(of_handed.n, of_read.n);
    if (of_read.n)
        assert_memory_equal(of_handed.ids, of_read.ids, of_read.n * sizeof *of_read.ids);
    assert_int_equal(moe_tokenizer_eos(handed), moe_tokenizer_eos(read));
    moe_buf_release(&written);
    moe_ids_release(&of_handed);
    moe_ids_release(&of_read);
    moe_tokenizer_free(handed);
    moe_tokenizer_free(read);
}

static void assert_same_as_pack(const char *checkpoint)
{
    struct moe_pack *in_place;
    struct moe_err err = {0};
    assert_ok(moe_pack_open(&in_place, checkpoint, &err), &err);
    struct moe_pack *pack = open_converted(checkpoint);
    uint64_t n;
    moe_pack_section(pack, MOE_PACK_TOKENIZER, &n);
    if (n) /* heads that draft have their model's */
        assert_same_tokenizer(in_place, pack);
    assert_same_tensors(in_place, pack);
    assert_same_experts(in_place, pack);
    moe_pack_close(in_place);
    moe_pack_close(pack);
}

static void families_are_as_in_their_packs(void **state)
{
    static const char *const patterns[] = {DRAWN "/*/config.json", DRAWN "/*/model.gguf",
                                           "tests/fixtures/gguf/[mq]*.gguf"};
    uint32_t n = 0, n_refused = 0;
    (void)state;
    for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++) {
        glob_t found;
        assert_int_equal(glob(patterns[p], 0, NULL, &found), 0);
        for (size_t i = 0; i < found.gl_pathc; i++, n++) {
            char *path = found.gl_pathv[i], *config = strstr(path, "/config.json");
            if (config)
                *config = '\0';
            if (getenv("VERBOSE"))
                print_message("%s\n", path);
            bool refused = is_refused(path);
            n_refused += refused;
            if (!refused)
                assert_same_as_pack(path);
        }
        globfree(&found);
    }
    assert_true(n > 100);
    assert_true(n_refused < 9);
}

/* ---- Codes in several tensors ---- */

/* Appends a tensor to a safetensors file. */
static void put_tensor(struct moe_buf *header, struct moe_buf *data, const char *name,
                       const char *type, uint64_t rows, uint64_t cols, const void *bytes,
                       uint64_t n)
{
    moe_buf_printf(header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%llu", header->size ? "," : "{",
                   name, type, (unsigned long long)rows);
    if (cols)
        moe_buf_printf(header, ",%llu", (unsigned long long)cols);
    moe_buf_printf(header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)data->size,
                   (unsigned long long)(data->size + n));
    moe_buf_append(data, bytes, n);
}

/* Drawn codes of 4 bits and scales of 32 columns for a matrix, as compressed-tensors names them. */
static void put_codes(struct moe_buf *header, struct moe_buf *data, const struct moe_tensor *t,
                      uint32_t *random)
{
    uint64_t rows = t->dims[0], cols = t->dims[1];
    uint8_t *codes = malloc(rows * cols / 2), *scales = malloc(rows * cols / 32 * 2);
    char name[256];
    for (uint64_t i = 0; i < rows * cols / 2; i++)
        codes[i] = (uint8_t)((*random = *random * 1664525 + 1013904223) >> 24);
    for (uint64_t i = 0; i < rows * cols / 32; i++) /* 2^-4 and a little more */
        moe_put_u16(scales + 2 * i, (uint16_t)(0x3d80 + (codes[i] & 15)));
    snprintf(name, sizeof name, "%s_packed", t->name);
    put_tensor(header, data, name, "I32", rows, cols / 8, codes, rows * cols / 2);
    snprintf(name, sizeof name, "%s_scale", t->name);
    put_tensor(header, data, name, "BF16", rows, cols / 32, scales, rows * cols / 32 * 2);
    free(codes);
    free(scales);
}

/* The same of FP8, with scales for 16 rows and 32 columns. */
static void put_fp8(struct moe_buf *header, struct moe_buf *data, const struct moe_tensor *t,
                    uint32_t *random)
{
    uint64_t rows = t->dims[0], cols = t->dims[1], n = (rows + 15) / 16 * ((cols + 31) / 32);
    uint8_t *codes = malloc(rows * cols), *scales = malloc(4 * n);
    char name[256];
    for (uint64_t i = 0; i < rows * cols; i++) /* 0x7f is no number */
        codes[i] = (uint8_t)((*random = *random * 1664525 + 1013904223) >> 24 & 0xbf);
    for (uint64_t i = 0; i < n; i++)
        moe_put_u32(scales + 4 * i, moe_f32_bits(0.01f + (float)i * 1e-5f));
    put_tensor(header, data, t->name, "F8_E4M3", rows, cols, codes, rows * cols);
    snprintf(name, sizeof name, "%s_scale_inv", t->name);
    put_tensor(header, data, name, "F32", (rows + 15) / 16, (cols + 31) / 32, scales, 4 * n);
    free(codes);
    free(scales);
}

/* Writes a checkpoint like the fixture, its experts of 4 bits, or with its attention of FP8. */
static void write_coded(const char *fixture, bool fp8)
{
    static const char how_fp8[] =
        "\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[16,32]},";
    static const char how[] =
        "\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":"
        "\"pack-quantized\",\"config_groups\":{\"group_0\":{\"weights\":{\"num_bits\":4,\"type\":"
        "\"int\",\"symmetric\":true,\"strategy\":\"group\",\"group_size\":32}}}},";
    struct moe_buf header = {0}, data = {0}, config = {0};
    struct moe_checkpoint *ck;
    struct moe_err err = {0};
    uint32_t random = 1;
    char path[256];
    uint8_t length[8];
    assert_ok(moe_checkpoint_open(&ck, fixture, &err), &err);
    for (uint64_t i = 0; i < moe_checkpoint_n_tensors(ck); i++) {
        const struct moe_tensor *t = moe_checkpoint_at(ck, i);
        const struct moe_ggml_type *type = moe_dtype_block(t->dtype);
        uint8_t *raw = malloc(t->bytes);
        assert_int_equal(type->items, 1);
        if (fp8 && (strstr(t->name, ".experts.") || strstr(t->name, "_proj.")) && t->n_dims == 2)
            put_fp8(&header, &data, t, &random);
        else if (strstr(t->name, ".experts."))
            put_codes(&header, &data, t, &random);
        else {
            assert_ok(moe_checkpoint_read_blocks(ck, t, 0, t->n_items, raw, &err), &err);
            put_tensor(&header, &data, t->name, type->name, t->dims[0],
                       t->n_dims > 1 ? t->dims[1] : 0, raw, t->bytes);
        }
        free(raw);
    }
    moe_checkpoint_close(ck);
    moe_buf_text(&header, "}");
    moe_put_u64(length, header.size);
    moe_buf_append(&header, data.data, data.size);
    moe_buf_append(&config, length, sizeof length);
    moe_buf_append(&config, header.data, header.size);
    write_in_dir("model.safetensors", config.data, config.size);
    moe_buf_clear(&config);
    snprintf(path, sizeof path, "%s/config.json", fixture);
    assert_ok(moe_file_read_all(path, 16 << 20, &config, &err), &err);
    moe_buf_clear(&header);
    moe_buf_printf(&header, "{%s%s", fp8 ? how_fp8 : how,
                   strchr((const char *)config.data, '{') + 1);
    write_in_dir("config.json", header.data, header.size);
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "tokenizer_config.json" : "tokenizer.json";
        snprintf(path, sizeof path, "%s/%s", fixture, name);
        moe_buf_clear(&config);
        assert_ok(moe_file_read_all(path, 16 << 20, &config, &err), &err);
        write_in_dir(name, config.data, config.size);
    }
    moe_buf_release(&header);
    moe_buf_release(&data);
    moe_buf_release(&config);
}

/* Logits of a text from the checkpoint in the directory of tests: all weights arrive behind the
 * first passes, or at most a quarter of the experts is in memory. */
static void logits_of(bool streamed, float *out)
{
    enum { N = 24 };
    struct moe_model *model;
    struct moe_experts *experts;
    struct moe_session *s;
    struct moe_err err = {0};
    struct moe_row rows[N];
    const struct moe_session_options so = {.batch = N};
    assert_ok(moe_model_open_directory(&model, dir, &err), &err);
    assert_ok(streamed ? moe_model_load(model, 0, NULL, NULL, &err)
                       : moe_model_load_behind(model, 0, NULL, NULL, &err),
              &err);
    const struct moe_config *c = &model->config;
    const struct moe_cache_options o = {.cache_bytes = moe_cache_slot_bytes(model->pack, 0) *
                                                       c->n_layers * c->n_experts / 4,
                                        .n_working = 2};
    assert_ok(streamed ? moe_experts_open_cached(&experts, model->pack, c->top_k, &o, NULL, &err)
                       : moe_experts_open_arriving(&experts, model->pack, 0, NULL, &err),
              &err);
    assert_ok(moe_session_open(&s, model, experts, &so, &err), &err);
    for (uint32_t i = 0; i < N; i++)
        rows[i] = (struct moe_row){0, i, 7 + 31 * i, 0};
    assert_ok(moe_forward(s, MOE_PREFILL, rows, N / 2, 0, c->n_layers, NULL, NULL, &err), &err);
    for (uint32_t i = N / 2; i < N; i++)
        assert_ok(moe_forward(s, MOE_DECODE, rows + i, 1, 0, c->n_layers, NULL, NULL, &err), &err);
    assert_ok(moe_logits(s, 0, 1, out, &err), &err);
    assert_true((s->stats.decode.experts.loads > 0) == streamed);
    moe_session_close(s);
    moe_experts_close(experts);
    moe_model_close(model);
}

static void assert_streams_as_it_is(void)
{
    float *resident = calloc(2 * 8192, sizeof *resident), *streamed = resident + 8192;
    logits_of(false, resident);
    logits_of(true, streamed);
    assert_true(resident[0] != 0 && resident[0] - resident[0] == 0);
    assert_memory_equal(resident, streamed, 8192 * sizeof *resident);
    free(resident);
}

static void experts_of_codes_are_as_in_their_pack(void **state)
{
    struct moe_pack *pack;
    struct moe_err err = {0};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    for (int fp8 = 0; fp8 < 2; fp8++) {
        write_coded(TINY_MOE, fp8);
        assert_ok(moe_pack_open(&pack, dir, &err), &err);
        assert_int_equal(moe_pack_class_at(pack, 0)->matrices[0].layout.kind,
                         fp8 ? MOE_LAYOUT_F8_B : MOE_LAYOUT_Q4_Z);
        moe_pack_close(pack);
        assert_same_as_pack(dir);
        assert_streams_as_it_is();
    }
}

static void reading_can_be_stopped(void **state)
{
    const volatile sig_atomic_t stop = 1;
    struct moe_pack *pack;
    struct moe_err err = {0};
    assert_ok(moe_pack_open(&pack, QWEN, &err), &err);
    const struct moe_extent *x = &moe_pack_expert(pack, 0, 0, 0)->segments[0];
    uint8_t *to = calloc(1, x->raw_bytes);
    moe_pack_stop_with(pack, &stop);
    assert_fails(moe_pack_read(pack, x, to, "x", &err), MOE_ERR_INTERRUPTED, "stopped", &err);
    moe_pack_stop_with(pack, NULL);
    assert_ok(moe_pack_read(pack, x, to, "x", &err), &err);
    moe_pack_close(pack);
    free(to);
}

/* Dense weights and experts are read at the same time, by all threads and by one that waits. */
static void all_that_read_at_once_have_room(void **state)
{
    for (int threads = 1; threads <= 3; threads++) {
        struct moe_pack *pack;
        struct moe_err err = {0};
        uint32_t dense = 0, expert = 0;
        moe_par_set_threads(threads);
        assert_ok(moe_pack_open(&pack, QWEN, &err), &err);
        for (uint32_t i = 0; i < moe_pack_n_tensors(pack); i++) {
            const struct moe_pack_tensor *t = moe_pack_tensor_at(pack, i);
            dense = !t->is_vector && t->cols > dense ? t->cols : dense;
        }
        const struct moe_expert_class *class_ = moe_pack_class_at(pack, 0);
        for (uint32_t i = 0; i < class_->n_matrices; i++)
            expert = class_->matrices[i].cols > expert ? class_->matrices[i].cols : expert;
        assert_true(dense > 0 && expert > 0);
        assert_true(moe_pack_staging_bytes(pack) >=
                    (uint64_t)(threads + 1) * MOE_PANEL_ROWS * (dense + expert) * sizeof(float));
        moe_pack_close(pack);
    }
    moe_par_set_threads(2);
}

/* ---- What is around it ---- */

static void copy_file(const char *from, const char *to)
{
    struct moe_buf bytes = {0};
    struct moe_err err = {0};
    assert_ok(moe_file_read_all(from, 1 << 20, &bytes, &err), &err);
    assert_ok(moe_file_write_all(to, bytes.data, bytes.size, &err), &err);
    moe_buf_release(&bytes);
}

static struct moe_pack *open_copy(const char *name)
{
    struct moe_pack *pack;
    struct moe_err err = {0};
    copy_file(QWEN, in_dir(name));
    assert_ok(moe_pack_open(&pack, in_dir(name), &err), &err);
    return pack;
}

static void a_gguf_file_names_the_type_of_most_weights(void **state)
{
    struct moe_pack *in_place, *pack = open_converted(QWEN);
    struct moe_err err = {0};
    (void)state;
    assert_ok(moe_pack_open(&in_place, "tests/fixtures/gguf/mixtral.gguf", &err), &err);
    assert_string_equal(moe_pack_gguf_type(in_place), "Q4_0");
    assert_null(moe_pack_gguf_type(pack));
    moe_pack_close(in_place);
    moe_pack_close(pack);
}

static void a_copy_has_the_same_fingerprints(void **state)
{
    struct moe_pack *a = open_copy("a.gguf"), *b = open_copy("b.gguf"), *c;
    struct moe_err err = {0};
    uint8_t byte;
    (void)state;
    assert_true(moe_pack_fingerprint(a) == moe_pack_fingerprint(b));
    assert_true(moe_pack_source_fingerprint(a) == moe_pack_source_fingerprint(b));
    /* The middle of the last tensor of the file is looked at. */
    int fd = open(in_dir("b.gguf"), O_RDWR);
    struct stat st;
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    for (off_t at = st.st_size - 4096; at < st.st_size; at++) {
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    close(fd);
    assert_ok(moe_pack_open(&c, in_dir("b.gguf"), &err), &err);
    assert_true(moe_pack_fingerprint(a) != moe_pack_fingerprint(c));
    moe_pack_close(a);
    moe_pack_close(b);
    moe_pack_close(c);
}

static void a_file_that_changes_is_refused_at_the_next_read(void **state)
{
    struct moe_pack *pack = open_copy("changes.gguf");
    const struct moe_expert_segment which = {0, 1, 0, 0};
    struct moe_load load = moe_expert_load(pack, &which);
    struct moe_loader *loader;
    struct moe_err err = {0};
    uint8_t *to = read_extent(pack, &moe_pack_expert(pack, 0, 1, 0)->segments[0]);
    uint32_t handle;
    (void)state;
    assert_ok(open_loader(&loader, pack, &err), &err);
    int fd = open(in_dir("changes.gguf"), O_WRONLY | O_APPEND);
    assert_int_equal(write(fd, "x", 1), 1);
    close(fd);
    load.to = to;
    assert_fails(moe_loader_submit(loader, &load, &handle, &err), MOE_ERR_IO,
                 "changes.gguf: has changed since it was opened", &err);
    assert_fails(moe_pack_read(pack, &moe_pack_tensor_at(pack, 0)->extent, to, "x", &err),
                 MOE_ERR_IO, "changes.gguf: has changed since it was opened", &err);
    moe_loader_close(loader);
    moe_pages_free(to, moe_round_up(load.raw_bytes, MOE_PACK_ALIGN));
    moe_pack_close(pack);
}

/* The image that a server keeps, and what a rehearsed link is served from. */
static void an_image_is_the_pack_that_would_be(void **state)
{
    struct moe_pack_image image;
    struct moe_pack *a, *b;
    struct moe_err err = {0};
    (void)state;
    assert_ok(moe_pack_image_read(&image, QWEN, UINT64_MAX, NULL, NULL, &err), &err);
    assert_ok(moe_pack_open(&a, QWEN, &err), &err);
    assert_int_equal(image.n, moe_pack_file_bytes(a));
    assert_ok(moe_pack_open_image(&b, QWEN, &image, &err), &err);
    assert_same_tensors(a, b);
    for (uint32_t e = 0; e < moe_pack_n_experts(a); e++) {
        const struct moe_extent *x = &moe_pack_expert(a, 1, e, 0)->segments[1];
        uint8_t *of_a = read_extent(a, x), *of_b = read_extent(b, x);
        assert_memory_equal(of_a, of_b, x->raw_bytes);
        assert_memory_equal(of_a, image.bytes + x->offset, x->raw_bytes);
        moe_pages_free(of_a, moe_round_up(x->raw_bytes, MOE_PACK_ALIGN));
        moe_pages_free(of_b, moe_round_up(x->raw_bytes, MOE_PACK_ALIGN));
    }
    assert_fails(moe_pack_verify(a, NULL, NULL, &err), MOE_ERR_USAGE, "no checksums", &err);
    moe_pack_close(a);
    moe_pack_close(b);
    moe_pack_image_free(&image);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_are_as_in_their_packs),
        cmocka_unit_test(experts_of_codes_are_as_in_their_pack),
        cmocka_unit_test(reading_can_be_stopped),
        cmocka_unit_test(all_that_read_at_once_have_room),
        cmocka_unit_test(a_gguf_file_names_the_type_of_most_weights),
        cmocka_unit_test(a_copy_has_the_same_fingerprints),
        cmocka_unit_test(a_file_that_changes_is_refused_at_the_next_read),
        cmocka_unit_test(an_image_is_the_pack_that_would_be),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
