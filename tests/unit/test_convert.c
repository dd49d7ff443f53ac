#define _GNU_SOURCE /* mkdtemp, memmem */
/* Checkpoints become packs: weights, bits, methods, refusals, and what a full disk leaves. */
#include "../make_pack.h"
#include "../scratch_dir.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/float16.h"
#include "base/mem.h"
#include "base/par.h"
#include "fmt/checkpoint.h"
#include "infer/session.h"
#include "pack/pack.h"
#include "show/show.h"

static int tear_down(void **state)
{
    moe_par_set_threads(1);
    return remove_dir(state);
}

static void repack(const char *from, const char *to, const char *experts, int dense_bits, int zstd)
{
    struct moe_err err = {0};
    struct moe_convert_report report;
    struct moe_convert_options options = pack_options(experts, dense_bits);
    options.zstd_level = zstd;
    assert_ok(moe_convert_pack(from, to, &options, &report, &err), &err);
}

static struct moe_pack *open_pack(const char *path)
{
    struct moe_err err = {0};
    struct moe_pack *pack;
    assert_ok(moe_pack_open(&pack, path, &err), &err);
    assert_ok(moe_pack_verify(pack, NULL, NULL, &err), &err);
    return pack;
}

static void assert_same_file(const char *a, const char *b)
{
    struct moe_err err = {0};
    struct moe_buf x = {0}, y = {0};
    assert_ok(moe_file_read_all(a, 1 << 28, &x, &err), &err);
    assert_ok(moe_file_read_all(b, 1 << 28, &y, &err), &err);
    assert_int_equal(x.size, y.size);
    assert_memory_equal(x.data, y.data, x.size);
    moe_buf_release(&x);
    moe_buf_release(&y);
}

/* The raw bytes of an expert's segment; free() them. */
static uint8_t *read_segment(const struct moe_pack *pack, uint32_t layer, uint32_t expert,
                             uint32_t variant, uint32_t segment, uint64_t *n)
{
    struct moe_err err = {0};
    const struct moe_expert_extent *e = moe_pack_expert(pack, layer, expert, variant);
    assert_true(e->present);
    *n = e->segments[segment].raw_bytes;
    uint8_t *raw = moe_alloc(*n, 1, &err);
    assert_ok(moe_pack_read(pack, &e->segments[segment], raw, "segment", &err), &err);
    return raw;
}

static void assert_same_experts(const struct moe_pack *a, uint32_t variant_a,
                                const struct moe_pack *b, uint32_t variant_b)
{
    for (uint32_t layer = 0; layer < moe_pack_n_layers(a); layer += 5)
        for (uint32_t e = 0; e < moe_pack_n_experts(a); e += 7)
            for (uint32_t s = 0; s < 2; s++) {
                uint64_t n, m;
                uint8_t *x = read_segment(a, layer, e, variant_a, s, &n);
                uint8_t *y = read_segment(b, layer, e, variant_b, s, &m);
                assert_int_equal(n, m);
                assert_memory_equal(x, y, n);
                free(x);
                free(y);
            }
}

/* ---- The bundled model ---- */

/* A float matrix in a pack holds exactly the checkpoint's numbers. */
static void assert_exact(const struct moe_checkpoint *ck, const char *hf_name,
                         const struct moe_mat *mat)
{
    struct moe_err err = {0};
    const struct moe_tensor *t = moe_checkpoint_find(ck, hf_name);
    assert_non_null(t);
    assert_int_equal(t->n_items, (uint64_t)mat->rows * mat->cols);
    float *stored = moe_alloc(mat->cols, sizeof *stored, &err);
    float *expected = moe_alloc(mat->cols, sizeof *expected, &err);
    for (uint32_t row = 0; row < mat->rows; row++) {
        assert_ok(moe_checkpoint_read(ck, t, (uint64_t)row * mat->cols, mat->cols, expected, &err),
                  &err);
        moe_layout_load_row(mat, row, stored);
        assert_memory_equal(stored, expected, mat->cols * sizeof *stored);
    }
    free(stored);
    free(expected);
}

static void assert_tensor_exact(const struct moe_checkpoint *ck, const struct moe_pack *pack,
                                const char *hf_name, const char *name, uint16_t kind)
{
    struct moe_err err = {0};
    const struct moe_pack_tensor *t = moe_pack_tensor_find(pack, name);
    assert_non_null(t);
    assert_int_equal(t->layout.kind, kind);
    uint8_t *raw = moe_alloc(t->extent.raw_bytes, 1, &err);
    assert_ok(moe_pack_read(pack, &t->extent, raw, name, &err), &err);
    struct moe_mat mat = {raw, t->layout, t->rows, t->cols};
    assert_exact(ck, hf_name, &mat);
    free(raw);
}

static void sixteen_bits_are_exact(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_convert_options options = pack_options("16", 16);
    make_pack(in_dir("x.moe"), TINY_MOE, &options);
    struct moe_pack *pack = open_pack(in_dir("x.moe"));
    struct moe_checkpoint *ck;
    assert_ok(moe_checkpoint_open(&ck, TINY_MOE, &err), &err);
    assert_tensor_exact(ck, pack, "model.embed_tokens.weight", "embed", MOE_LAYOUT_BF16);
    assert_tensor_exact(ck, pack, "model.layers.3.self_attn.k_proj.weight", "layers.3.attn.k",
                        MOE_LAYOUT_BF16);
    assert_tensor_exact(ck, pack, "model.layers.11.mlp.gate.weight", "layers.11.router",
                        MOE_LAYOUT_BF16);
    assert_true(moe_pack_tensor_find(pack, "final_norm")->is_vector);
    assert_string_equal(moe_pack_variant_at(pack, 0)->method, "copy");

    uint64_t n;
    const struct moe_expert_extent *e = moe_pack_expert(pack, 7, 30, 0);
    uint8_t *segments[2] = {read_segment(pack, 7, 30, 0, 0, &n),
                            read_segment(pack, 7, 30, 0, 1, &n)};
    const uint8_t *const views[2] = {segments[0], segments[1]};
    const struct moe_expert_class *class_ = moe_pack_class_at(pack, e->class_index);
    struct moe_mat mat;
    assert_true(moe_class_matrix_view(class_, MOE_ROLE_UP, views, &mat));
    assert_exact(ck, "model.layers.7.mlp.experts.30.up_proj.weight", &mat);
    assert_true(moe_class_matrix_view(class_, MOE_ROLE_DOWN, views, &mat));
    assert_exact(ck, "model.layers.7.mlp.experts.30.down_proj.weight", &mat);
    free(segments[0]);
    free(segments[1]);
    moe_checkpoint_close(ck);
    moe_pack_close(pack);
}

static void output_is_reproducible(void **state)
{
    (void)state;
    struct moe_convert_options options = pack_options("2,4d8", 8);
    options.method = moe_quant_method_find("hqq");
    make_pack(in_dir("a.moe"), TINY_MOE, &options);
    moe_par_set_threads(3);
    make_pack(in_dir("b.moe"), "./" TINY_MOE "//", &options);
    assert_same_file(in_dir("a.moe"), in_dir("b.moe"));
    struct moe_pack *pack = open_pack(in_dir("a.moe"));
    assert_string_equal(moe_pack_variant_at(pack, 0)->name, "4d8"); /* best first */
    assert_string_equal(moe_pack_variant_at(pack, 1)->name, "2");
    uint64_t n;
    const char *made = (const char *)moe_pack_section(pack, MOE_PACK_PROVENANCE, &n);
    assert_non_null(strstr(made, "\"source\":\"tiny-moe\""));
    assert_null(strchr(made, '/'));
    moe_pack_close(pack);
}

static void repacking_copies_bit_for_bit(void **state)
{
    (void)state;
    struct moe_convert_options options = pack_options("4,2", 8);
    make_pack(in_dir("a.moe"), TINY_MOE, &options);
    repack(in_dir("a.moe"), in_dir("z.moe"), "", 0, 3);
    repack(in_dir("z.moe"), in_dir("b.moe"), "", 0, 0);
    assert_same_file(in_dir("a.moe"), in_dir("b.moe"));

    repack(in_dir("z.moe"), in_dir("2.moe"), "2", 0, 0);
    struct moe_pack *both = open_pack(in_dir("a.moe")), *one = open_pack(in_dir("2.moe"));
    assert_int_equal(moe_pack_n_variants(one), 1);
    assert_same_experts(both, 1, one, 0);
    assert_int_equal(moe_pack_source_fingerprint(both), moe_pack_source_fingerprint(one));
    assert_true(moe_pack_fingerprint(both) != moe_pack_fingerprint(one));
    moe_pack_close(both);
    moe_pack_close(one);
}

/* Quantizing the exact 16 bits in a pack is quantizing the checkpoint. */
static void new_variants_come_from_the_best(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_convert_report report;
    struct moe_convert_options options = pack_options("4d8", 8);
    make_pack(in_dir("direct.moe"), TINY_MOE, &options);
    options = pack_options("16", 16);
    make_pack(in_dir("16.moe"), TINY_MOE, &options);
    repack(in_dir("16.moe"), in_dir("new.moe"), "16,4d8", 8, 0);
    struct moe_pack *direct = open_pack(in_dir("direct.moe")), *made = open_pack(in_dir("new.moe"));
    assert_same_experts(direct, 0, made, 1);
    assert_int_equal(moe_pack_tensor_find(made, "embed")->extent.checksum,
                     moe_pack_tensor_find(direct, "embed")->extent.checksum);
    assert_int_equal(moe_pack_tensor_find(made, "layers.0.router")->layout.kind, MOE_LAYOUT_BF16);
    assert_int_equal(moe_pack_source_fingerprint(direct), moe_pack_source_fingerprint(made));
    moe_pack_close(direct);
    moe_pack_close(made);

    options = pack_options("16", 0);
    assert_fails(moe_convert_pack(in_dir("direct.moe"), in_dir("no.moe"), &options, &report, &err),
                 MOE_ERR_USAGE, "cannot be made of them", &err);
    options = pack_options("", 16);
    assert_fails(moe_convert_pack(in_dir("direct.moe"), in_dir("no.moe"), &options, &report, &err),
                 MOE_ERR_USAGE, "'embed' has 8 bits", &err);
    assert_int_equal(n_files_in_dir(), 3);
}

static void summaries_add_up(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_convert_options options = pack_options("4", 8);
    make_pack(in_dir("a.moe"), TINY_MOE, &options);
    struct moe_pack *pack = open_pack(in_dir("a.moe"));
    struct moe_pack_summary *s = moe_alloc(1, sizeof *s, &err);
    assert_ok(moe_pack_summarize(pack, s, &err), &err);
    assert_int_equal(s->variants[0].count, 12 * 32);
    assert_int_equal(s->variants[0].weights, 12 * 32 * 3 * 192 * 64);
    assert_true(moe_weight_sum_bits(&s->variants[0]) == 4.5); /* and two f16 for every 64 weights */
    struct moe_buf text = {0};
    assert_ok(moe_show_pack_json(s, true, &text, &err), &err);
    assert_non_null(strstr((char *)text.data, "\"bits_per_weight\": 4.5"));
    moe_show_pack(s, true, &text);
    moe_show_pack_line(s, &text);
    assert_non_null(strstr((char *)text.data, "384 experts at 4 bits (4.50 bits/weight)"));
    moe_buf_release(&text);
    free(s);
    moe_pack_close(pack);
}

/* ---- Refusals ---- */

static void nonsense_is_refused(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_convert_report r;
    const char *out = in_dir("x.moe");
    struct moe_convert_options o = pack_options("4,2,4", 8);
    assert_fails(moe_convert_checkpoint(TINY_MOE, out, &o, &r, &err), MOE_ERR_USAGE, "twice", &err);
    o = pack_options("4", 8);
    o.group = 48;
    assert_fails(moe_convert_checkpoint(TINY_MOE, out, &o, &r, &err), MOE_ERR_USAGE, "groups of 48",
                 &err);
    o = pack_options("", 8);
    assert_fails(moe_convert_checkpoint(TINY_MOE, out, &o, &r, &err), MOE_ERR_USAGE, "bits", &err);
    o = pack_options("4", 8);
    assert_fails(moe_convert_checkpoint("tests/data", out, &o, &r, &err), MOE_ERR_FORMAT,
                 "not a checkpoint", &err);
    assert_fails(moe_convert_checkpoint(TINY_MOE, "/nonexistent/x.moe", &o, &r, &err), MOE_ERR_IO,
                 "/nonexistent/x.moe", &err);
    assert_fails(moe_convert_checkpoint(TINY_MOE, TINY_MOE "/config.json", &o, &r, &err),
                 MOE_ERR_USAGE, "overwritten", &err);
    assert_int_equal(mkfifo(in_dir("pipe"), 0600), 0);
    assert_fails(moe_convert_checkpoint(TINY_MOE, in_dir("pipe"), &o, &r, &err), MOE_ERR_IO,
                 "not a regular file", &err);
    unlink(in_dir("pipe"));
    make_pack(out, TINY_MOE, &o);
    assert_fails(moe_convert_pack(out, out, &o, &r, &err), MOE_ERR_USAGE, "overwritten", &err);
    assert_fails(moe_convert_pack(TINY_MOE "/config.json", in_dir("y.moe"), &o, &r, &err),
                 MOE_ERR_FORMAT, "not an expert pack", &err);
    assert_int_equal(n_files_in_dir(), 1);
    struct moe_bits bits;
    static const char *const bad[] = {"",       "7",  "4d",   "d8",    "4d8 ",  "44",
                                      "4d8d8",  "-4", "164",  "q4_kd", "dq4_k", "Q4_K",
                                      "iq2_xs", "q4", "bf16", "q4_k8"};
    for (size_t i = 0; i < N_ITEMS(bad); i++)
        assert_false(moe_parse_bits(bad[i], &bits));
    static const char *const good[] = {"4", "16d8", "q4_k", "iq4_xsd8", "8dq6_k", "iq3_ktdiq4_ks"};
    for (size_t i = 0; i < N_ITEMS(good); i++) {
        char again[MOE_BITS_BYTES];
        assert_true(moe_parse_bits(good[i], &bits));
        moe_format_bits(bits, again);
        assert_string_equal(again, good[i]);
    }
    char kinds[MOE_BITS_KINDS_BYTES], *next, *rest = moe_format_bits_kinds(kinds);
    int n = 0, n_kinds = 0;
    for (; (next = strtok_r(rest, ", ", &rest)); n++)
        assert_true(moe_bits_kind(moe_parse_width(next)));
    for (int kind = 0; kind < MOE_BITS_KIND; kind++)
        n_kinds += moe_bits_names((uint16_t)kind);
    assert_int_equal(n, n_kinds);
    static const char *const units[][2] = {
        {"4", " bits"}, {"1", " bit"},    {"4d8", " bits"}, {"16,4", " bits"}, {"a map's", " bits"},
        {"q6_k", ""},   {"iq4_xsd8", ""}, {"8dq6_k", ""},   {"4,iq3_kt", ""},  {"iq3_kt,1", " bit"},
    };
    for (size_t i = 0; i < N_ITEMS(units); i++)
        assert_string_equal(moe_bits_unit(units[i][0]), units[i][1]);
}

static void stop_later(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    (void)what;
    assert_true(done <= total);
    if (done > total / 2)
        *(volatile sig_atomic_t *)ctx = 1;
}

static void an_interrupt_leaves_nothing(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_convert_report report;
    volatile sig_atomic_t stop = 0;
    struct moe_progress progress = {stop_later, (void *)&stop, &stop};
    struct moe_convert_options options = pack_options("4", 8);
    make_pack(in_dir("a.moe"), TINY_MOE, &options);
    options.progress = &progress;
    assert_fails(moe_convert_checkpoint(TINY_MOE, in_dir("b.moe"), &options, &report, &err),
                 MOE_ERR_INTERRUPTED, "stopped", &err);
    stop = 0;
    assert_fails(moe_convert_pack(in_dir("a.moe"), in_dir("b.moe"), &options, &report, &err),
                 MOE_ERR_INTERRUPTED, "stopped", &err);
    assert_int_equal(n_files_in_dir(), 1);
}

/* A limit on file sizes stands for a full disk: the same write fails, with another errno. */
static void a_failed_write_leaves_nothing(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_convert_report report;
    struct moe_convert_options options = pack_options("4", 8);
    struct rlimit old, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_IGN);
    limit = (struct rlimit){3 << 20, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    int status = moe_convert_checkpoint(TINY_MOE, in_dir("a.moe"), &options, &report, &err);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_fails(status, MOE_ERR_IO, "a.moe: cannot write", &err);
    assert_int_equal(n_files_in_dir(), 0);
}

/* ---- A made-up checkpoint of f32 ---- */

enum { HIDDEN = 32, VOCAB = 4096 };

/* Header and data of a safetensors file in the making. */
struct maker {
    struct moe_buf header, data;
    uint64_t seed;
};

/* Values that f32 alone, bf16 or f16 can hold. */
enum values { ANY, IN_BF16, IN_F16, WITH_NAN };

static void add_tensor(struct maker *m, const char *name, uint32_t rows, uint32_t cols,
                       enum values values)
{
    uint64_t n = (uint64_t)rows * (cols ? cols : 1), begin = m->data.size;
    for (uint64_t i = 0; i < n; i++) {
        float v = test_uniform(&m->seed);
        if (values == IN_BF16)
            v = moe_bf16_to_f32(moe_f32_to_bf16(v));
        if (values == IN_F16)
            v = moe_f16_to_f32(moe_f32_to_f16(v));
        if (values == WITH_NAN && i == n - 1)
            v = moe_bits_f32(0x7fc00000);
        moe_buf_f32(&m->data, v);
    }
    moe_buf_printf(&m->header, "%c\"%s\":{\"dtype\":\"F32\",\"shape\":[%u",
                   m->header.size ? ',' : '{', name, rows);
    if (cols)
        moe_buf_printf(&m->header, ",%u", cols);
    moe_buf_printf(&m->header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin,
                   (unsigned long long)m->data.size);
}

/* One layer, two experts, hidden 32; `without` is left out, `extra` is put in. */
static void make_checkpoint(const char *without, const char *extra, enum values up_values)
{
    static const char config[] =
        "{\"model_type\":\"qwen2_moe\",\"hidden_size\":32,\"num_hidden_layers\":1,"
        "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"intermediate_size\":32,"
        "\"moe_intermediate_size\":32,\"shared_expert_intermediate_size\":32,\"num_experts\":2,"
        "\"num_experts_per_tok\":1,\"vocab_size\":4096,\"max_position_embeddings\":64,"
        "\"tie_word_embeddings\":true,\"rms_norm_eps\":1e-6,\"eos_token_id\":4093}";
    struct tensor {
        const char *name;
        uint32_t rows, cols;
        enum values values;
    } tensors[] = {
        {"model.embed_tokens.weight", VOCAB, HIDDEN, ANY},
        {"model.norm.weight", HIDDEN, 0, ANY},
#define L "model.layers.0."
        {L "input_layernorm.weight", HIDDEN, 0, ANY},
        {L "post_attention_layernorm.weight", HIDDEN, 0, ANY},
        {L "self_attn.q_proj.weight", 32, HIDDEN, IN_BF16},
        {L "self_attn.k_proj.weight", 16, HIDDEN, IN_F16},
        {L "self_attn.v_proj.weight", 16, HIDDEN, ANY},
        {L "self_attn.q_proj.bias", 32, 0, ANY},
        {L "self_attn.k_proj.bias", 16, 0, ANY},
        {L "self_attn.v_proj.bias", 16, 0, ANY},
        {L "self_attn.o_proj.weight", HIDDEN, 32, ANY},
        {L "mlp.gate.weight", 2, HIDDEN, ANY},
        {L "mlp.shared_expert.gate_proj.weight", 32, HIDDEN, ANY},
        {L "mlp.shared_expert.up_proj.weight", 32, HIDDEN, ANY},
        {L "mlp.shared_expert.down_proj.weight", HIDDEN, 32, ANY},
        {L "mlp.shared_expert_gate.weight", 1, HIDDEN, ANY},
        {L "mlp.experts.0.gate_proj.weight", 32, HIDDEN, IN_BF16},
        {L "mlp.experts.0.up_proj.weight", 32, HIDDEN, up_values},
        {L "mlp.experts.0.down_proj.weight", HIDDEN, 32, IN_BF16},
        {L "mlp.experts.1.gate_proj.weight", 32, HIDDEN, IN_BF16},
        {L "mlp.experts.1.up_proj.weight", 32, HIDDEN, IN_BF16},
        {L "mlp.experts.1.down_proj.weight", HIDDEN, 32, IN_BF16},
#undef L
    };
    struct moe_err err = {0};
    struct maker m = {.seed = 5};
    for (size_t i = 0; i < N_ITEMS(tensors); i++)
        if (!without || !strstr(tensors[i].name, without))
            add_tensor(&m, tensors[i].name, tensors[i].rows, tensors[i].cols, tensors[i].values);
    if (extra)
        add_tensor(&m, extra, 4, 4, ANY);
    moe_buf_text(&m.header, "}");
    struct moe_buf file = {0}, tokenizer = {0};
    moe_buf_u64(&file, m.header.size);
    moe_buf_append(&file, m.header.data, m.header.size);
    moe_buf_append(&file, m.data.data, m.data.size);
    write_in_dir("model.safetensors", file.data, file.size);
    write_in_dir("config.json", config, strlen(config));
    assert_ok(moe_file_read_all(TINY_MOE "/tokenizer.json", 1 << 24, &tokenizer, &err), &err);
    write_in_dir("tokenizer.json", tokenizer.data, tokenizer.size);
    moe_buf_release(&m.header);
    moe_buf_release(&m.data);
    moe_buf_release(&file);
    moe_buf_release(&tokenizer);
}

static void f32_keeps_what_it_can(void **state)
{
    (void)state;
    make_checkpoint(NULL, "model.layers.0.self_attn.rotary_emb.inv_freq", IN_F16);
    struct moe_convert_options options = pack_options("32,16", 16);
    make_pack(in_dir("x.moe"), dir, &options);
    struct moe_pack *pack = open_pack(in_dir("x.moe"));
    static const struct {
        const char *name;
        uint16_t kind;
    } expected[] = {
        {"layers.0.attn.q", MOE_LAYOUT_BF16},   {"layers.0.attn.k", MOE_LAYOUT_F16},
        {"layers.0.attn.v", MOE_LAYOUT_BF16},   {"layers.0.router", MOE_LAYOUT_F32},
        {"layers.0.attn.norm", MOE_LAYOUT_F32}, {"layers.0.shared.scale", MOE_LAYOUT_F32},
    };
    for (size_t i = 0; i < N_ITEMS(expected); i++) {
        const struct moe_pack_tensor *t = moe_pack_tensor_find(pack, expected[i].name);
        assert_non_null(t);
        assert_int_equal(t->layout.kind, expected[i].kind);
    }
    /* The two experts differ in one matrix's type, so 16 bits need two classes. */
    assert_int_equal(moe_pack_n_classes(pack), 3);
    const struct moe_expert_class *class_ =
        moe_pack_class_at(pack, moe_pack_expert(pack, 0, 0, 1)->class_index);
    assert_int_equal(class_->matrices[0].layout.kind, MOE_LAYOUT_BF16);
    assert_int_equal(class_->matrices[1].layout.kind, MOE_LAYOUT_F16);
    moe_pack_close(pack);
    /* 16 made of 32 in a pack follows the same rule. */
    repack(in_dir("x.moe"), in_dir("y.moe"), "16", 0, 0);
    options = pack_options("32", 16);
    make_pack(in_dir("32.moe"), dir, &options);
    repack(in_dir("32.moe"), in_dir("z.moe"), "16", 0, 0);
    struct moe_pack *a = open_pack(in_dir("y.moe")), *b = open_pack(in_dir("z.moe"));
    assert_same_experts(a, 0, b, 0);
    moe_pack_close(a);
    moe_pack_close(b);
}

static void unfit_checkpoints_are_refused(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_convert_report report;
    struct moe_convert_options options = pack_options("4", 8);
    make_checkpoint("experts.1.down_proj", NULL, ANY);
    assert_fails(moe_convert_checkpoint(dir, in_dir("x.moe"), &options, &report, &err),
                 MOE_ERR_FORMAT, "mlp.experts.1.down_proj.weight' [32][32] is missing", &err);
    make_checkpoint(NULL, "model.layers.0.self_attn.q_norm.weight", ANY);
    assert_fails(moe_convert_checkpoint(dir, in_dir("x.moe"), &options, &report, &err),
                 MOE_ERR_UNSUPPORTED, "q_norm.weight' has no place", &err);
    make_checkpoint(NULL, "model.layers.0.self_attn.masked_bias", ANY);
    make_pack(in_dir("x.moe"), dir, &options);
    unlink(in_dir("x.moe"));
    make_checkpoint(NULL, NULL, WITH_NAN);
    assert_fails(moe_convert_checkpoint(dir, in_dir("x.moe"), &options, &report, &err),
                 MOE_ERR_FORMAT, "mlp.experts.0.up_proj.weight", &err);
    assert_int_equal(n_files_in_dir(), 3);
}

/* ---- Weights that are no numbers ---- */

static void copy_to_dir(const char *from, const char *name)
{
    struct moe_err err = {0};
    struct moe_buf file = {0};
    assert_ok(moe_file_read_all(from, 1 << 28, &file, &err), &err);
    write_in_dir(name, file.data, file.size);
    moe_buf_release(&file);
}

/* Puts two bytes into a tensor, in its place in the file. */
static void poke(const char *source, const char *name, const char *tensor, uint64_t at,
                 const uint8_t bytes[2])
{
    struct moe_err err = {0};
    struct moe_checkpoint *ck;
    assert_ok(moe_checkpoint_open(&ck, source, &err), &err);
    const struct moe_tensor *t = moe_checkpoint_find(ck, tensor);
    assert_non_null(t);
    FILE *file = fopen(in_dir(name), "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)(t->offset + at), SEEK_SET), 0);
    assert_int_equal(fwrite(bytes, 1, 2, file), 2);
    assert_int_equal(fclose(file), 0);
    moe_checkpoint_close(ck);
}

static void weights_that_are_no_numbers_are_refused(void **state)
{
    (void)state;
#define HF DRAWN "/gpt-oss-b/"
    static const uint8_t nan[] = {0xc0, 0x7f}, infinity[] = {0x80, 0xff}; /* bf16 */
    static const uint8_t nan_f32[] = {0xff, 0x7f};
    static const uint8_t huge_mxfp4[] = {0xfe, 0x77}; /* 2^127 times 6 */
    static const struct {
        const char *source, *tensor;
        uint64_t at;
        const uint8_t *bytes;
        const char *words;
    } cases[] = {
        {HF, "model.norm.weight", 2 * 63, nan, "norm.weight': the weight at 63 is not a number"},
        {HF, "model.layers.0.self_attn.q_proj.bias", 2 * 5, infinity,
         "q_proj.bias': the weight at 5 is infinite"},
        {HF, "model.layers.0.self_attn.sinks", 0, nan, "sinks': the weight at 0 is not"},
        {HF, "model.layers.1.mlp.router.bias", 2 * 4, nan, "router.bias': the weight at 4 is"},
        {HF, "model.layers.1.mlp.router.weight", 2 * 64, nan,
         "router.weight': the weight at row 1"},
        {HF, "model.layers.1.mlp.experts.down_proj_bias", 2 * (64 + 3), infinity,
         "down_proj_bias': the weight at 67 is infinite"},
        {HF, "model.embed_tokens.weight", 2 * 64 * 9, nan,
         "embed_tokens.weight': the weight at row 9, column 0 is not a number"},
        {HF "model.gguf", "output_norm.weight", 4 * 7 + 2, nan_f32,
         "output_norm.weight': the weight at 7 is not a number"},
        {HF "model.gguf", "blk.1.ffn_up_exps.bias", 4 * 3 + 2, nan_f32,
         "ffn_up_exps.bias': the weight at 3 is not a number"},
        {HF "model.gguf", "blk.0.ffn_down_exps.weight", 0, huge_mxfp4,
         "ffn_down_exps.weight': the weights at row 0, columns 0 to 31 are not finite"},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        bool gguf = strstr(cases[i].source, ".gguf") != NULL;
        const char *source = gguf ? in_dir("model.gguf") : dir;
        struct moe_err err = {0};
        struct moe_convert_report report;
        struct moe_convert_options options = pack_options("4", 8);
        copy_to_dir(HF "config.json", "config.json");
        copy_to_dir(HF "tokenizer.json", "tokenizer.json");
        copy_to_dir(gguf ? HF "model.gguf" : HF "model.safetensors",
                    gguf ? "model.gguf" : "model.safetensors");
        if (!gguf)
            unlink(in_dir("model.gguf"));
        poke(source, gguf ? "model.gguf" : "model.safetensors", cases[i].tensor, cases[i].at,
             cases[i].bytes);
        assert_fails(moe_convert_checkpoint(source, in_dir("x.moe"), &options, &report, &err),
                     MOE_ERR_FORMAT, cases[i].words, &err);
        assert_true(access(in_dir("x.moe"), F_OK) != 0);
    }
#undef HF
}

/* ---- Tokens that the model has no embedding for ---- */

static void a_tokenizer_may_know_more_than_the_model(void **state)
{
    (void)state;
    enum { N_TOKENS = 259, VOCAB_BYTES_AFTER = 4 + 8 };
    struct moe_err err = {0};
    struct moe_convert_options options = pack_options("4", 8);
    struct moe_buf file = {0};
    assert_ok(moe_file_read_all("tests/fixtures/gguf/qwen2moe.gguf", 1 << 28, &file, &err), &err);
    /* The embedding's last row is cut off: its shape in the list of tensors says how many. */
    uint8_t *name = memmem(file.data, file.size, "token_embd.weight", 17);
    assert_non_null(name);
    uint8_t *rows = name + 17 + VOCAB_BYTES_AFTER;
    assert_int_equal(rows[0] + 256 * rows[1], N_TOKENS);
    rows[0]--;
    write_in_dir("x.gguf", file.data, file.size);
    moe_buf_release(&file);
    make_pack(in_dir("x.moe"), in_dir("x.gguf"), &options);
    struct moe_model *model;
    assert_ok(moe_model_open(&model, in_dir("x.moe"), 16, NULL, &err), &err);
    assert_int_equal(model->config.vocab, N_TOKENS - 1);
    assert_int_equal(moe_tokenizer_n_tokens(model->tokenizer), N_TOKENS);
    const uint32_t ids[] = {3, N_TOKENS - 2, N_TOKENS - 1};
    assert_ok(moe_check_ids(model, ids, 2, &err), &err);
    assert_fails(moe_check_ids(model, ids, 3, &err), MOE_ERR_FORMAT,
                 "the text has token 258, and the model embeds only 258", &err);
    moe_model_close(model);
}

#define in_fresh_dir(test) cmocka_unit_test_setup_teardown(test, make_dir, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_fresh_dir(sixteen_bits_are_exact),
        in_fresh_dir(output_is_reproducible),
        in_fresh_dir(repacking_copies_bit_for_bit),
        in_fresh_dir(new_variants_come_from_the_best),
        in_fresh_dir(summaries_add_up),
        in_fresh_dir(nonsense_is_refused),
        in_fresh_dir(an_interrupt_leaves_nothing),
        in_fresh_dir(a_failed_write_leaves_nothing),
        in_fresh_dir(f32_keeps_what_it_can),
        in_fresh_dir(unfit_checkpoints_are_refused),
        in_fresh_dir(weights_that_are_no_numbers_are_refused),
        in_fresh_dir(a_tokenizer_may_know_more_than_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
