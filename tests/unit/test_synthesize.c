/* Packs of drawn weights: of every family, of the sizes of other packs, marked, and verified. */
#define _GNU_SOURCE /* mkdtemp */
#include "../make_pack.h"
#include "../scratch_dir.h"

#include <math.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/par.h"
#include "engine/engine.h"
#include "infer/forward.h"
#include "pack/pack.h"
#include "pack/synthesize.h"
#include "tune/bench.h"

static const char *const shapes[] = {
    TINY_MOE "/config.json",
    BUNDLED "/tiny-switch/config.json",
    "tests/fixtures/deepseek/config.json",
    "tests/fixtures/deepseek-v2-a/config.json",
    "tests/fixtures/deepseek-v2-c/config.json",
    "tests/fixtures/gpt-oss-a/config.json",
    "tests/fixtures/gptsan-a/config.json",
    "tests/fixtures/granitemoe/config.json",
    "tests/fixtures/llama/config.json",
    "tests/fixtures/minicpm/config.json",
    "tests/fixtures/mixtral-a/config.json",
    "tests/fixtures/olmoe-a/config.json",
    "tests/fixtures/phimoe-long/config.json",
    "tests/fixtures/qwen2/config.json",
    "tests/fixtures/qwen2-moe-a/config.json",
    "tests/fixtures/qwen3/config.json",
    "tests/fixtures/qwen3-moe-a/config.json",
    "tests/fixtures/switch-a/config.json",
};

static void place(const char *name, char path[160])
{
    snprintf(path, 160, "%.159s", in_dir(name));
}

static void synthesize(const char *shape, const char *path, const char *experts, uint64_t seed,
                       bool sparse)
{
    struct moe_err err = {0};
    struct moe_convert_report report;
    const struct moe_convert_options convert = pack_options(experts, 8);
    const struct moe_synthesize_options options = {&convert, seed, sparse};
    assert_ok(moe_synthesize(shape, path, &options, &report, &err), &err);
}

static struct moe_pack *open_pack(const char *path)
{
    struct moe_err err = {0};
    struct moe_pack *pack;
    assert_ok(moe_pack_open(&pack, path, &err), &err);
    assert_ok(moe_pack_verify(pack, NULL, NULL, &err), &err);
    return pack;
}

/* Opens, computes a prompt and some tokens; the logits must be numbers. */
static void compute(const char *path)
{
    struct moe_err err = {0};
    struct moe_engine *e;
    struct moe_engine_options o = {.measures = true, .session = {.context = 24, .n_sequences = 1}};
    struct moe_bench bench;
    const struct moe_bench_options bo = {.prompt_tokens = 12, .decode_tokens = 4, .n_runs = 1};
    assert_ok(moe_engine_open(&e, path, &o, NULL, &err), &err);
    assert_ok(moe_bench(e->session, &bo, &bench, &err), &err);
    float *logits = malloc(moe_logits_stride(&e->model->config) * sizeof *logits);
    assert_ok(moe_logits(e->session, 0, 1, logits, &err), &err);
    for (uint32_t i = 0; i < e->model->config.vocab; i++)
        assert_true(isfinite(logits[i]));
    assert_true(logits[0] != logits[1]);
    free(logits);
    moe_engine_finish_stats(e, &e->session->stats);
    assert_true(e->session->stats.synthesized);
    moe_engine_close(e);
}

static void every_family_computes(void **state)
{
    char path[160];
    place("drawn.moe", path);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        synthesize(shapes[i], path, "4", 1, false);
        moe_pack_close(open_pack(path));
        compute(path);
    }
}

/* Tensor by tensor and expert by expert as the bundled model's own pack. */
static void sizes_are_those_of_a_conversion(void **state)
{
    char drawn[160], made[160];
    const struct moe_convert_options options = pack_options("8,4d8,2", 8);
    place("drawn.moe", drawn);
    place("made.moe", made);
    synthesize(TINY_MOE "/config.json", drawn, "8,4d8,2", 1, false);
    make_pack(made, TINY_MOE, &options);
    struct moe_pack *a = open_pack(drawn), *b = open_pack(made);
    assert_int_equal(moe_pack_n_tensors(a), moe_pack_n_tensors(b));
    for (uint32_t i = 0; i < moe_pack_n_tensors(a); i++) {
        const struct moe_pack_tensor *x = moe_pack_tensor_at(a, i), *y = moe_pack_tensor_at(b, i);
        assert_string_equal(x->name, y->name);
        assert_int_equal(x->layout.kind, y->layout.kind);
        assert_int_equal(x->extent.raw_bytes, y->extent.raw_bytes);
    }
    assert_int_equal(moe_pack_n_variants(a), 3);
    for (uint32_t v = 0; v < 3; v++) {
        const struct moe_expert_extent *x = moe_pack_expert(a, 5, 3, v);
        const struct moe_expert_extent *y = moe_pack_expert(b, 5, 3, v);
        assert_string_equal(moe_pack_variant_at(a, v)->name, moe_pack_variant_at(b, v)->name);
        assert_int_equal(x->segments[0].raw_bytes, y->segments[0].raw_bytes);
        assert_int_equal(x->segments[1].raw_bytes, y->segments[1].raw_bytes);
    }
    moe_pack_close(a);
    moe_pack_close(b);
}

static void read_file(const char *path, struct moe_buf *out)
{
    struct moe_err err = {0};
    assert_ok(moe_file_read_all(path, 1 << 28, out, &err), &err);
}

static void a_seed_gives_the_same_bytes(void **state)
{
    char path[3][160];
    struct moe_buf text[3] = {{0}};
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d.moe", i);
        place(name, path[i]);
        moe_par_set_threads(i + 1);
        synthesize(shapes[16], path[i], "4", i == 2 ? 2 : 1, false);
        read_file(path[i], &text[i]);
    }
    moe_par_set_threads(1);
    assert_int_equal(text[0].size, text[1].size);
    assert_memory_equal(text[0].data, text[1].data, text[0].size);
    assert_int_equal(text[0].size, text[2].size);
    assert_memory_not_equal(text[0].data, text[2].data, text[0].size);
    for (int i = 0; i < 3; i++)
        moe_buf_release(&text[i]);
}

/* Experts differ from each other: a disk or a compressor cannot serve them from one copy. */
static void experts_differ(void **state)
{
    char path[160];
    place("drawn.moe", path);
    synthesize(shapes[16], path, "8,4", 1, false);
    struct moe_pack *pack = open_pack(path);
    const struct moe_expert_extent *first = moe_pack_expert(pack, 0, 0, 0);
    for (uint32_t e = 1; e < moe_pack_n_experts(pack); e++)
        assert_true(moe_pack_expert(pack, 0, e, 0)->segments[0].checksum !=
                    first->segments[0].checksum);
    moe_pack_close(pack);
}

static void holes_take_no_room(void **state)
{
    char path[160], full[160];
    struct stat sparse, whole;
    place("sparse.moe", path);
    place("full.moe", full);
    synthesize(TINY_MOE "/config.json", path, "4", 1, true);
    synthesize(TINY_MOE "/config.json", full, "4", 1, false);
    struct moe_pack *pack = open_pack(path);
    assert_true(moe_pack_synthesized(pack).is && moe_pack_synthesized(pack).sparse);
    moe_pack_close(pack);
    assert_int_equal(stat(path, &sparse), 0);
    assert_int_equal(stat(full, &whole), 0);
    assert_int_equal(sparse.st_size, whole.st_size);
    assert_true(sparse.st_blocks < whole.st_blocks * 3 / 4);
    compute(path);
}

static void marks_stay(void **state)
{
    char path[160], again[160];
    struct moe_err err = {0};
    struct moe_convert_report report;
    struct moe_convert_options options = pack_options("2", 0);
    struct moe_engine *e;
    const struct moe_engine_options plain = {.session = {.context = 24}};
    place("drawn.moe", path);
    place("again.moe", again);
    synthesize(shapes[16], path, "4", 1, false);
    assert_ok(moe_convert_pack(path, again, &options, &report, &err), &err);
    struct moe_pack *pack = open_pack(again);
    assert_true(moe_pack_synthesized(pack).is && !moe_pack_synthesized(pack).sparse);
    moe_pack_close(pack);
    assert_fails(moe_engine_open(&e, again, &plain, NULL, &err), MOE_ERR_USAGE,
                 "its weights were drawn", &err);
    const struct moe_convert_options own = pack_options("4", 8);
    make_pack(path, TINY_MOE, &own);
    pack = open_pack(path);
    assert_false(moe_pack_synthesized(pack).is);
    moe_pack_close(pack);
}

static void damaged_shapes_are_refused(void **state)
{
    static const struct {
        const char *text, *words;
        int status;
    } bad[] = {
        {"", "", MOE_ERR_FORMAT},
        {"{\"model_type\":", "", MOE_ERR_FORMAT},
        {"{\"model_type\": \"unheard-of\"}", "unheard-of", MOE_ERR_UNSUPPORTED},
        {"{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": -3}", "", MOE_ERR_FORMAT},
    };
    char shape[160], path[160];
    place("shape.json", shape);
    place("drawn.moe", path);
    unlink(path);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct moe_err err = {0};
        struct moe_convert_report report;
        const struct moe_convert_options convert = pack_options("4", 8);
        const struct moe_synthesize_options options = {.convert = &convert};
        assert_ok(moe_file_write_all(shape, bad[i].text, strlen(bad[i].text), &err), &err);
        assert_fails(moe_synthesize(shape, path, &options, &report, &err), bad[i].status,
                     bad[i].words, &err);
        assert_false(moe_path_exists(path));
    }
}

/* A thousand layers of 4096 experts: said before the first byte is written. */
static void a_disk_without_room_is_named(void **state)
{
    static const char huge[] =
        "{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": 1024, \"hidden_size\": 65536, "
        "\"vocab_size\": 1000, \"max_position_embeddings\": 4096, \"num_attention_heads\": 64, "
        "\"num_key_value_heads\": 8, \"head_dim\": 128, \"intermediate_size\": 1024, "
        "\"num_experts\": 4096, \"num_experts_per_tok\": 8, \"moe_intermediate_size\": 65536, "
        "\"norm_topk_prob\": true, \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-6, "
        "\"rope_theta\": 1e6, \"tie_word_embeddings\": true}";
    char shape[160], path[160];
    struct moe_err err = {0};
    struct moe_convert_report report;
    const struct moe_convert_options convert = pack_options("4", 8);
    const struct moe_synthesize_options options = {.convert = &convert};
    place("shape.json", shape);
    place("drawn.moe", path);
    unlink(path);
    assert_ok(moe_file_write_all(shape, huge, strlen(huge), &err), &err);
    assert_fails(moe_synthesize(shape, path, &options, &report, &err), MOE_ERR_IO, "the disk has",
                 &err);
    assert_false(moe_path_exists(path));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_computes),
        cmocka_unit_test(sizes_are_those_of_a_conversion),
        cmocka_unit_test(a_seed_gives_the_same_bytes),
        cmocka_unit_test(experts_differ),
        cmocka_unit_test(holes_take_no_room),
        cmocka_unit_test(marks_stay),
        cmocka_unit_test(damaged_shapes_are_refused),
        cmocka_unit_test(a_disk_without_room_is_named),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
