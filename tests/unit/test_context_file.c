#define _DEFAULT_SOURCE /* mkdtemp */
/*
 * Context files: what goes on from one computes what it would have computed, bit for bit, in a
 * session of another context, batch and number of threads; and nothing but the whole of what was
 * written, for the same pack and way of computing, is taken.
 */
#include "engine/context_file.h"

#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/par.h"
#include "kern/kern.h"
#include "random_model.h"

#include "../make_pack.h"
#include "../scratch_dir.h"

enum { N_IDS = 75, N_AFTER = 5, N_MODELS = 40, BATCH = 128 };

static char pack[300];

static int set_up(void **state)
{
    struct moe_err err = {0};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    if (make_dir(state) != 0)
        return -1;
    snprintf(pack, sizeof pack, "%s", in_dir("m.moe"));
    return 0;
}

static int tear_down(void **state)
{
    unlink(pack);
    return remove_dir(state);
}

/* ---- Helpers ---- */

struct opened {
    struct moe_model *model;
    struct moe_experts *experts;
    struct moe_session *session;
};

static void open_pack(struct opened *o, const char *path, uint32_t context, uint16_t kind)
{
    struct moe_err err = {0};
    const struct moe_session_options options = {
        .context = context, .n_sequences = 1, .batch = BATCH, .kv_kind = kind};
    assert_ok(moe_model_open(&o->model, path, context, NULL, &err), &err);
    assert_ok(moe_experts_open_resident(&o->experts, o->model->pack, 0, NULL, NULL, &err), &err);
    assert_ok(moe_session_open(&o->session, o->model, o->experts, &options, &err), &err);
}

static void close_pack(struct opened *o)
{
    moe_session_close(o->session);
    moe_experts_close(o->experts);
    moe_model_close(o->model);
}

/* Computes positions [first, end) of a text of N_IDS + N_AFTER, `part` to a pass; the last one's
 * logits to `logits`. */
static void compute(struct moe_session *s, const uint32_t *ids, uint32_t first, uint32_t end,
                    uint32_t part, float *logits)
{
    struct moe_err err = {0};
    while (first < end) {
        struct moe_row rows[BATCH];
        uint32_t n = end - first < part ? end - first : part;
        for (uint32_t i = 0; i < n; i++)
            rows[i] = (struct moe_row){0, first + i, ids[first + i], N_IDS + N_AFTER};
        assert_ok(
            moe_forward(s, MOE_PREFILL, rows, n, 0, s->model->config.n_layers, NULL, NULL, &err),
            &err);
        assert_ok(moe_logits(s, n - 1, 1, logits, &err), &err);
        first += n;
    }
}

static struct moe_context context_of(uint32_t *ids, uint32_t n)
{
    return (struct moe_context){.ids = {.ids = ids, .n = n}, .n_done = n};
}

/* A random model that contexts of can be kept; its pack. From N_MODELS on one with layers of two
 * kinds of heads, of which keys and values take another number of bytes. */
static void draw_pack(uint64_t seed, uint32_t ids[N_IDS + N_AFTER])
{
    struct random_model m;
    uint64_t random = seed + 5;
    random_model_draw(&m, seed);
    if (seed >= N_MODELS) {
        const struct moe_convert_options options = pack_options("8", 8);
        make_pack(pack, DRAWN "/gemma4-a", &options);
        m.c.vocab = 260;
    } else {
        random_model_write(&m, 8, pack);
    }
    for (int i = 0; i < N_IDS + N_AFTER; i++)
        ids[i] = random_below(&random, m.c.vocab);
    random_model_free(&m);
}

/* ---- Going on ---- */

static void goes_on_bit_for_bit(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < N_MODELS + 3; seed++) {
        struct moe_err err = {0};
        struct opened a, b;
        struct moe_context_file file;
        uint32_t ids[N_IDS + N_AFTER], n = 1 + (uint32_t)(seed * 13 % N_IDS);
        static const char *const kinds[] = {"f16", "f32", "q8", "q4", "q8,q4"};
        uint16_t kind = moe_kv_kind_find(kinds[seed % N_ITEMS(kinds)]);
        draw_pack(seed, ids);
        moe_par_set_threads(2);
        open_pack(&a, pack, N_IDS + N_AFTER, kind);
        uint64_t stride = moe_logits_stride(&a.model->config);
        float *want = calloc(2 * stride, sizeof *want), *got = want + stride;
        compute(a.session, ids, 0, n, BATCH, want);
        struct moe_context c = context_of(ids, n);
        assert_ok(moe_context_write(in_dir("c"), a.session, 0, &c, &err), &err);
        compute(a.session, ids, n, n + N_AFTER, BATCH, want);
        /* Blocks of another size, where the context is below 256. */
        moe_par_set_threads(1);
        open_pack(&b, pack, a.model->rope_positions < 300 ? N_IDS + N_AFTER + 16 : 300, kind);
        assert_ok(moe_context_open(&file, in_dir("c"), b.session, "", &err), &err);
        assert_int_equal(file.context.ids.n, n);
        assert_memory_equal(file.context.ids.ids, ids, n * sizeof *ids);
        assert_int_equal(file.context.n_done, n);
        assert_int_equal(file.context.far, a.session->sequences[0].far);
        assert_ok(moe_context_put(&file, b.session, 0, n, &err), &err);
        assert_int_equal(b.session->sequences[0].far, a.session->sequences[0].far);
        compute(b.session, ids, n, n + N_AFTER, 1 + (uint32_t)(seed % 3), got);
        if (memcmp(want, got, a.model->config.vocab * sizeof *want) != 0)
            fail_msg("seed %d: other logits", (int)seed);
        /* The file of a loaded context is the file. */
        moe_context_close(&file);
        close_pack(&b);
        free(want);
        close_pack(&a);
    }
}

/* A part of a file is enough for a part of its text; what lay in the cache beside it is not in the
 * file. */
static void a_part_is_taken(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct opened a, b;
    struct moe_context_file file;
    struct moe_buf first = {0}, second = {0};
    uint32_t ids[N_IDS + N_AFTER];
    draw_pack(3, ids);
    open_pack(&a, pack, N_IDS + N_AFTER, MOE_LAYOUT_F32);
    open_pack(&b, pack, N_IDS + N_AFTER, MOE_LAYOUT_F32);
    uint64_t stride = moe_logits_stride(&a.model->config);
    float *want = calloc(2 * stride, sizeof *want), *got = want + stride;
    compute(a.session, ids, 0, N_IDS, BATCH, want);
    struct moe_context c = context_of(ids, N_IDS);
    assert_ok(moe_context_write(in_dir("c"), a.session, 0, &c, &err), &err);
    assert_ok(moe_context_open(&file, in_dir("c"), b.session, "", &err), &err);
    assert_ok(moe_context_put(&file, b.session, 0, 33, &err), &err);
    moe_context_close(&file);
    ids[33] = (ids[33] + 1) % a.model->config.vocab;
    compute(b.session, ids, 33, 40, 3, got);
    compute(a.session, ids, 33, 40, BATCH, want);
    assert_memory_equal(want, got, a.model->config.vocab * sizeof *want);
    c = context_of(ids, 40);
    assert_ok(moe_context_write(in_dir("c"), b.session, 0, &c, &err), &err);
    assert_ok(moe_file_read_all(in_dir("c"), 1 << 24, &first, &err), &err);
    c = context_of(ids, 40); /* it has computed more */
    assert_ok(moe_context_write(in_dir("c"), a.session, 0, &c, &err), &err);
    assert_ok(moe_file_read_all(in_dir("c"), 1 << 24, &second, &err), &err);
    assert_int_equal(first.size, second.size);
    assert_memory_equal(first.data, second.data, first.size);
    moe_buf_release(&first);
    moe_buf_release(&second);
    free(want);
    close_pack(&a);
    close_pack(&b);
}

/* ---- Refusing ---- */

static int take(const char *path, struct moe_session *s, const char *way, struct moe_err *err)
{
    struct moe_context_file file;
    int status = moe_context_open(&file, path, s, way, err);
    if (status != MOE_OK)
        return status;
    status = moe_context_put(&file, s, 0, file.context.n_done, err);
    moe_context_close(&file);
    return status;
}

/* Flips a bit of every byte, or of some, and adds or leaves out bytes at the end. */
static void damage(struct moe_session *s, struct moe_buf *file, uint64_t n_head, uint64_t step)
{
    struct moe_err err = {0};
    for (uint64_t i = 0; i < file->size; i += i < n_head ? 1 : step) {
        FILE *f = fopen(in_dir("d"), "wb"); /* not moe_file_write_all: an fsync each */
        file->data[i] ^= 1 << i % 8;
        assert_int_equal(fwrite(file->data, 1, file->size, f), file->size);
        fclose(f);
        int status = take(in_dir("d"), s, "", &err);
        if (status != MOE_ERR_FORMAT && status != MOE_ERR_VERSION)
            fail_msg("byte %d: status %d", (int)i, status);
        file->data[i] ^= 1 << i % 8;
    }
    const uint64_t sizes[] = {0, 3, 103, 104, 150, file->size - 1};
    for (size_t i = 0; i < N_ITEMS(sizes); i++) {
        assert_ok(moe_file_write_all(in_dir("d"), file->data, sizes[i], &err), &err);
        assert_fails(take(in_dir("d"), s, "", &err), MOE_ERR_FORMAT, "context file", &err);
    }
    moe_buf_u8(file, 0);
    assert_ok(moe_file_write_all(in_dir("d"), file->data, file->size, &err), &err);
    assert_fails(take(in_dir("d"), s, "", &err), MOE_ERR_FORMAT, "its size", &err);
    file->size--;
}

/* Also of files that have states, or entries. */
static void damage_is_refused(void **state)
{
    (void)state;
    static const char *const checkpoints[] = {NULL, DRAWN "/deepseek-v4-a", DRAWN "/qwen3-next-a"};
    for (size_t i = 0; i < N_ITEMS(checkpoints); i++) {
        struct moe_err err = {0};
        struct opened a;
        struct moe_buf file = {0};
        uint32_t ids[N_IDS + N_AFTER];
        const struct moe_convert_options options = pack_options("8", 8);
        draw_pack(1, ids);
        if (checkpoints[i])
            make_pack(pack, checkpoints[i], &options);
        open_pack(&a, pack, N_IDS + N_AFTER, MOE_LAYOUT_F32);
        float *logits = calloc(moe_logits_stride(&a.model->config), sizeof *logits);
        for (int id = 0; id < N_IDS; id++)
            ids[id] %= a.model->config.vocab;
        compute(a.session, ids, 0, 20, BATCH, logits);
        struct moe_context c = context_of(ids, 20);
        moe_buf_text(&c.text, "{\"messages\":[]}");
        c.has_draws = true;
        c.draws.random[2] = 7;
        assert_ok(moe_context_write(in_dir("c"), a.session, 0, &c, &err), &err);
        assert_ok(take(in_dir("c"), a.session, "", &err), &err);
        assert_ok(moe_file_read_all(in_dir("c"), 1 << 24, &file, &err), &err);
        damage(a.session, &file, 300, checkpoints[i] ? file.size / 90 : 97);
        unlink(in_dir("d"));
        moe_buf_release(&file);
        moe_buf_release(&c.text);
        free(logits);
        close_pack(&a);
    }
}

/* With right checksums: an infinite key or entry, a version to come. */
static void cells_are_finite(void **state)
{
    (void)state;
    static const char *const checkpoints[] = {NULL, DRAWN "/deepseek-v4-a"};
    for (size_t i = 0; i < N_ITEMS(checkpoints); i++) {
        struct moe_err err = {0};
        struct opened a;
        struct moe_kept p;
        struct moe_buf file = {0};
        uint32_t ids[N_IDS + N_AFTER] = {0};
        const struct moe_convert_options options = pack_options("8", 8);
        draw_pack(1, ids);
        if (checkpoints[i])
            make_pack(pack, checkpoints[i], &options);
        memset(ids, 0, sizeof ids);
        open_pack(&a, pack, N_IDS + N_AFTER, MOE_LAYOUT_F32);
        float *logits = calloc(moe_logits_stride(&a.model->config), sizeof *logits);
        compute(a.session, ids, 0, 20, BATCH, logits);
        const struct moe_context c = context_of(ids, 20);
        assert_ok(moe_context_write(in_dir("c"), a.session, 0, &c, &err), &err);
        assert_ok(moe_file_read_all(in_dir("c"), 1 << 24, &file, &err), &err);
        assert_ok(moe_sequence_save(a.session, 0, 20, &p, &err), &err);
        uint64_t bytes, n = moe_kept_count(&p, &bytes), at = 104 + 80;
        uint64_t check = moe_get_u64(file.data + 88);
        assert_int_equal(file.size, at + bytes + 8 * n);
        for (uint64_t piece = 0; piece < n; piece++) { /* one cell of each piece in turn */
            uint64_t size = moe_kept_at(&p, piece).bytes;
            uint8_t *cell = file.data + at + piece % (size / 4) * 4;
            uint32_t was = moe_get_u32(cell);
            uint64_t checked = moe_get_u64(file.data + at + size);
            moe_put_u32(cell, 0x7f800000);
            moe_put_u64(file.data + at + size, moe_hash64_chain(check, file.data + at, size));
            FILE *f = fopen(in_dir("d"), "wb");
            assert_int_equal(fwrite(file.data, 1, file.size, f), file.size);
            fclose(f);
            assert_fails(take(in_dir("d"), a.session, "", &err), MOE_ERR_FORMAT,
                         moe_kept_at(&p, piece).kind == MOE_KEPT_KEYS
                             ? "a cell of its keys and values is not finite"
                             : "a cell of its entries is not finite",
                         &err);
            moe_put_u32(cell, was);
            moe_put_u64(file.data + at + size, checked);
            check = checked;
            at += size + 8;
        }
        moe_put_u32(file.data + 4, 2);
        assert_ok(moe_file_write_all(in_dir("d"), file.data, file.size, &err), &err);
        assert_fails(take(in_dir("d"), a.session, "", &err), MOE_ERR_VERSION, "version 2", &err);
        unlink(in_dir("d"));
        moe_buf_release(&file);
        free(logits);
        close_pack(&a);
    }
}

/* Of codes only scales can be other than finite: a piece ends with one. */
static void scales_are_finite(void **state)
{
    (void)state;
    static const char *const kinds[] = {"q8", "q4", "f32,q8"};
    for (size_t i = 0; i < N_ITEMS(kinds); i++) {
        struct moe_err err = {0};
        struct opened a;
        struct moe_kept p;
        struct moe_buf file = {0};
        uint32_t ids[N_IDS + N_AFTER];
        draw_pack(1, ids);
        open_pack(&a, pack, N_IDS + N_AFTER, moe_kv_kind_find(kinds[i]));
        float *logits = calloc(moe_logits_stride(&a.model->config), sizeof *logits);
        compute(a.session, ids, 0, 20, BATCH, logits);
        const struct moe_context c = context_of(ids, 20);
        assert_ok(moe_context_write(in_dir("c"), a.session, 0, &c, &err), &err);
        assert_ok(moe_file_read_all(in_dir("c"), 1 << 24, &file, &err), &err);
        assert_ok(moe_sequence_save(a.session, 0, 20, &p, &err), &err);
        uint8_t *piece = file.data + 104 + 80;
        uint64_t size = moe_kept_at(&p, 0).bytes;
        moe_put_u16(piece + size - 2, 0x7c00);
        moe_put_u64(piece + size, moe_hash64_chain(moe_get_u64(file.data + 88), piece, size));
        assert_ok(moe_file_write_all(in_dir("c"), file.data, file.size, &err), &err);
        assert_fails(take(in_dir("c"), a.session, "", &err), MOE_ERR_FORMAT,
                     "a cell of its keys and values is not finite", &err);
        moe_buf_release(&file);
        free(logits);
        close_pack(&a);
    }
}

static void others_files_are_refused(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct opened a, b, half;
    uint32_t ids[N_IDS + N_AFTER];
    draw_pack(2, ids);
    open_pack(&a, pack, N_IDS + N_AFTER, MOE_LAYOUT_F32);
    open_pack(&half, pack, N_IDS, MOE_LAYOUT_F16);
    float *logits = calloc(moe_logits_stride(&a.model->config), sizeof *logits);
    compute(a.session, ids, 0, N_IDS, BATCH, logits);
    struct moe_context c = context_of(ids, N_IDS);
    assert_ok(moe_context_write(in_dir("c"), a.session, 0, &c, &err), &err);
    assert_fails(take(in_dir("c"), half.session, "", &err), MOE_ERR_USAGE,
                 "kept as f32, and here as f16 (--kv f32)", &err);
    assert_fails(take(in_dir("c"), a.session, "skip=1", &err), MOE_ERR_USAGE,
                 "computed exactly, and this run computes by the inexact skip=1", &err);
    open_pack(&b, pack, 20, MOE_LAYOUT_F32);
    assert_fails(take(in_dir("c"), b.session, "", &err), MOE_ERR_USAGE, "out of range", &err);
    close_pack(&b);
    draw_pack(7, ids);
    open_pack(&b, pack, 20, MOE_LAYOUT_F32);
    assert_fails(take(in_dir("c"), b.session, "", &err), MOE_ERR_USAGE, "with another pack", &err);
    close_pack(&b);
    free(logits);
    close_pack(&a);
    close_pack(&half);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goes_on_bit_for_bit), cmocka_unit_test(a_part_is_taken),
        cmocka_unit_test(damage_is_refused),   cmocka_unit_test(cells_are_finite),
        cmocka_unit_test(scales_are_finite),   cmocka_unit_test(others_files_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
