/* The dense part at fewer bits in memory: byte by byte what re-packing stores. */
#include "model_fixture.h"
#include "tune/dense_bits.h"
#include "tune/inputs_seen.h"

enum { GROUP = 64 };

static char path16[128], drawn16[128];
static struct moe_model *model16, *model_drawn;
static struct moe_dense_rounding hqq = {NULL, GROUP, NULL};

static void pack_path(char path[128], const char *name)
{
    snprintf(path, 128, "/tmp/moe-test-dense-%s-%d.moe", name, (int)getpid());
}

/* The pack again, with its dense part at `bits`; opened. */
static struct moe_model *repack(const char *from, int bits)
{
    struct moe_err err = {0};
    struct moe_convert_report report;
    struct moe_model *model;
    char path[128];
    const struct moe_convert_options options = {
        .dense_bits = bits, .method = hqq.method, .group = GROUP};
    pack_path(path, "repacked");
    assert_ok(moe_convert_pack(from, path, &options, &report, &err), &err);
    assert_ok(moe_model_open(&model, path, 0, NULL, &err), &err);
    unlink(path);
    return model;
}

/* What the pack says of its dense part. */
static uint32_t said(const struct moe_pack *pack)
{
    struct moe_err err = {0};
    uint32_t bits = 0;
    assert_ok(moe_dense_bits_of_pack(pack, &bits, &err), &err);
    return bits;
}

static struct moe_model *derive(const struct moe_model *from, uint32_t bits)
{
    struct moe_err err = {0};
    struct moe_model *model;
    assert_ok(moe_dense_derive(&model, from, &hqq, bits, &err), &err);
    return model;
}

static void make_pack_of(const char *checkpoint, int dense_bits, char path[128], const char *name)
{
    const struct moe_convert_options options = pack_options("4", dense_bits);
    pack_path(path, name);
    make_pack(path, checkpoint, &options);
}

static int group_setup(void **state)
{
    struct moe_err err = {0};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    hqq.method = moe_quant_method_find("hqq");
    make_pack_of(TINY_MOE, 16, path16, "16");
    assert_ok(moe_model_open(&model16, path16, 0, NULL, &err), &err);
    make_pack_of(DRAWN "/qwen2-moe-a", 16, drawn16, "drawn");
    assert_ok(moe_model_open(&model_drawn, drawn16, 0, NULL, &err), &err);
    return 0;
}

static int group_teardown(void **state)
{
    moe_model_close(model16);
    unlink(path16);
    moe_model_close(model_drawn);
    unlink(drawn16);
    return 0;
}

/* ---- Comparing ---- */

/* Every matrix has the other's layout and bytes. Returns how many there are. */
static uint32_t assert_same_matrices(const struct moe_model *a, const struct moe_model *b)
{
    uint32_t n = 0;
    for (uint32_t layer = 0; layer < a->config.n_layers; layer++)
        for (int role = 0; role < MOE_T_N_ROLES; role++) {
            uint32_t rows, cols;
            const struct moe_tensor_spec *spec = moe_tensor_spec(role);
            if (spec->kind == MOE_KIND_VECTOR || (!spec->per_layer && layer > 0) ||
                !moe_tensor_shape(&a->config, role, layer, &rows, &cols))
                continue;
            const struct moe_mat *x = moe_model_matrix(a, role, layer);
            const struct moe_mat *y = moe_model_matrix(b, role, layer);
            assert_int_equal(x->layout.kind, y->layout.kind);
            assert_int_equal(x->layout.group, y->layout.group);
            assert_int_equal(x->rows, rows);
            assert_int_equal(x->cols, cols);
            assert_memory_equal(x->data, y->data, moe_layout_bytes(x->layout, rows, cols));
            n++;
        }
    return n;
}

/* Bytes of the tensors in the model's pack. */
static uint64_t stored_bytes(const struct moe_model *m)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < moe_pack_n_tensors(m->pack); i++)
        sum += moe_pack_tensor_at(m->pack, i)->extent.raw_bytes;
    return sum;
}

static void logits_of(struct moe_model *m, float *logits)
{
    struct moe_err err = {0};
    struct moe_experts *experts;
    struct moe_session *s;
    const struct moe_session_options options = {.context = 8};
    static const struct moe_row rows[] = {{0, 0, 0, 0}, {0, 1, 300, 0}, {0, 2, 41, 0}};
    assert_ok(moe_experts_open_resident(&experts, m->pack, 0, NULL, NULL, &err), &err);
    assert_ok(moe_session_open(&s, m, experts, &options, &err), &err);
    assert_ok(moe_forward(s, MOE_PREFILL, rows, 3, 0, m->config.n_layers, NULL, NULL, &err), &err);
    assert_ok(moe_logits(s, 2, 1, logits, &err), &err);
    moe_session_close(s);
    moe_experts_close(experts);
}

/* ---- Tests ---- */

static void assert_as_repacked(const struct moe_model *from, const char *path, int bits)
{
    struct moe_model *wanted = repack(path, bits), *derived = derive(from, (uint32_t)bits);
    assert_true(assert_same_matrices(derived, wanted) > 2 * from->config.n_layers);
    assert_int_equal(moe_dense_bits(derived), moe_bits_width(bits));
    assert_int_equal(moe_dense_bits(wanted), moe_bits_width(bits));
    assert_int_equal(said(wanted->pack), bits);
    assert_false(moe_dense_has(from, &hqq, (uint32_t)bits));
    assert_true(moe_dense_has(wanted, &hqq, (uint32_t)bits));
    assert_int_equal(moe_dense_bytes(from, &hqq, (uint32_t)bits, 1), stored_bytes(wanted));
    assert_int_equal(moe_dense_bytes(derived, &hqq, 16, 1), stored_bytes(wanted));
    assert_int_equal(moe_dense_bytes(from, &hqq, 16, 1), stored_bytes(from));
    moe_dense_release(derived);
    moe_model_close(wanted);
}

static void test_as_repacked(void **state)
{
    assert_int_equal(moe_dense_bits(model16), 16);
    assert_as_repacked(model16, path16, 8);
    assert_as_repacked(model16, path16, 4);
    assert_as_repacked(model16, path16, 2);
}

/* Types in place of bitwidths: those of blocks have another layout where rows are narrow. */
static void test_types(void **state)
{
    static const char *const types[] = {"q6_k", "iq4_xs", "iq3_kt"};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        assert_as_repacked(model_drawn, drawn16, moe_parse_width(types[i]));
    /* A type of as many bits as there are is another layout, if it is not the one that is there. */
    const uint32_t q5_k = (uint32_t)moe_parse_width("q5_k");
    struct moe_model *at5 = repack(drawn16, moe_parse_width("iq5_ks")),
                     *derived = derive(at5, q5_k);
    assert_false(moe_dense_has(at5, &hqq, q5_k));
    assert_true(moe_dense_has(derived, &hqq, q5_k));
    assert_true(moe_dense_has(derived, &hqq, 5));
    assert_int_equal(derived->embed.layout.kind, MOE_LAYOUT_Q5_K);
    moe_dense_release(derived);
    moe_model_close(at5);
}

static void test_logits(void **state)
{
    uint64_t stride = moe_logits_stride(&model16->config), bytes = stride * sizeof(float);
    float *wanted = malloc(bytes), *got = malloc(bytes), *before = malloc(bytes);
    struct moe_model *repacked = repack(path16, 4), *derived = derive(model16, 4);
    logits_of(repacked, wanted);
    logits_of(derived, got);
    logits_of(model16, before);
    assert_memory_equal(got, wanted, model16->config.vocab * sizeof(float));
    assert_true(memcmp(got, before, model16->config.vocab * sizeof(float)) != 0);
    moe_dense_release(derived);
    moe_model_close(repacked);
    free(wanted);
    free(got);
    free(before);
}

/* The bundled model's head is its embedding; it is quantized once and stays the same memory. */
static void test_tied(void **state)
{
    struct moe_model *derived = derive(model16, 8);
    assert_true(model16->config.tied_head);
    assert_ptr_equal(derived->head.data, derived->embed.data);
    assert_int_equal(derived->head.layout.kind, MOE_LAYOUT_Q8);
    assert_ptr_not_equal(derived->embed.data, model16->embed.data);
    assert_int_equal(model16->embed.layout.kind, MOE_LAYOUT_BF16);
    moe_dense_release(derived);
}

/* A head of its own, a shared expert with its gate, layers of both kinds. */
static void test_untied(void **state)
{
    assert_false(model_drawn->config.tied_head);
    assert_as_repacked(model_drawn, drawn16, 8);
    assert_as_repacked(model_drawn, drawn16, 3);
}

/* By every method, as re-packing with it, of a model that is soon rounded; gptq is given the inputs
 * that re-packing finds. */
static void test_methods(void **state)
{
    static const char *const text = "tests/data/math.calib.txt";
    const struct moe_inputs_options texts = {&text, 1, 12, 1, NULL, NULL, false};
    struct moe_err err = {0};
    for (int i = 0; moe_quant_method_at(i); i++) {
        struct moe_dense_rounding how = {moe_quant_method_at(i), 32, NULL};
        const struct moe_convert_options options = {
            .dense_bits = 4, .method = how.method, .group = how.group};
        struct moe_convert_report report;
        struct moe_inputs_seen *seen = NULL;
        struct moe_model *wanted, *derived;
        char path[128];
        pack_path(path, "method");
        if (how.method->compensates) {
            assert_ok(moe_convert_error_aware(drawn16, false, path, &options, &texts, &report, NULL,
                                              &err),
                      &err);
            assert_ok(moe_inputs_seen_open(&seen, drawn16, &texts, &err), &err);
            how.inputs = moe_inputs_seen_of(seen);
        } else {
            assert_ok(moe_convert_pack(drawn16, path, &options, &report, &err), &err);
        }
        assert_ok(moe_model_open(&wanted, path, 0, NULL, &err), &err);
        assert_ok(moe_dense_derive(&derived, model_drawn, &how, 4, &err), &err);
        assert_true(assert_same_matrices(derived, wanted) > 0);
        assert_int_equal(moe_dense_bytes(model_drawn, &how, 4, 1), stored_bytes(wanted));
        /* The pack says how it was made. */
        struct moe_dense_rounding said;
        assert_ok(moe_dense_rounding_of(wanted->pack, &said, &err), &err);
        assert_ptr_equal(said.method, how.method);
        assert_int_equal(said.group, how.group);
        moe_dense_release(derived);
        moe_model_close(wanted);
        moe_inputs_seen_close(seen);
        unlink(path);
    }
    struct moe_dense_rounding own;
    assert_ok(moe_dense_rounding_of(model_drawn->pack, &own, &err), &err);
    assert_string_equal(own.method->name, "rtn");
}

/* 32 bits to 16: the values decide which kind of 16. */
static void test_float32(void **state)
{
    struct moe_err err = {0};
    struct moe_model *model;
    char path[128];
    make_pack_of(TINY_MOE, 32, path, "32");
    assert_ok(moe_model_open(&model, path, 0, NULL, &err), &err);
    assert_int_equal(moe_dense_bits(model), 32);
    struct moe_model *wanted = repack(path, 16), *derived = derive(model, 16);
    assert_same_matrices(derived, wanted);
    assert_int_equal(derived->embed.layout.kind, MOE_LAYOUT_BF16);
    moe_dense_release(derived);
    moe_model_close(wanted);
    moe_model_close(model);
    unlink(path);
}

static void test_same_bits(void **state)
{
    struct moe_model *derived = derive(model16, 16);
    assert_ptr_equal(derived->embed.data, model16->embed.data);
    assert_same_matrices(derived, model16);
    moe_dense_release(derived);
}

static void test_refused(void **state)
{
    struct moe_err err = {0};
    struct moe_model *out;
    const struct moe_dense_rounding narrow = {hqq.method, 48, NULL};
    assert_fails(moe_dense_derive(&out, model16, &hqq, 32, &err), MOE_ERR_USAGE,
                 "has 16 bits, 32 cannot be made", &err);
    assert_null(out);
    assert_fails(moe_dense_derive(&out, model16, &hqq, 5, &err), MOE_ERR_USAGE,
                 "cannot be rounded to 5 bits by hqq", &err);
    assert_fails(moe_dense_derive(&out, model16, &narrow, 4, &err), MOE_ERR_USAGE, "groups of 48",
                 &err);
    struct moe_model *at8 = derive(model16, 8);
    assert_fails(moe_dense_derive(&out, at8, &hqq, 16, &err), MOE_ERR_USAGE,
                 "has 8 bits, 16 cannot be made", &err);
    moe_dense_release(at8);
    moe_dense_release(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_repacked), cmocka_unit_test(test_types),
        cmocka_unit_test(test_logits),      cmocka_unit_test(test_tied),
        cmocka_unit_test(test_untied),      cmocka_unit_test(test_methods),
        cmocka_unit_test(test_float32),     cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
