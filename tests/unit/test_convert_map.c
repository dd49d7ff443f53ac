#define _DEFAULT_SOURCE /* mkdtemp */
/* Packs by a bit map: each expert at its own bits, the same from checkpoints and from packs. */
#include "../make_pack.h"
#include "../scratch_dir.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "pack/convert.h"
#include "pack/pack.h"
#include "show/show.h"

enum { N_LAYERS = 12, N_EXPERTS = 32, N = N_LAYERS * N_EXPERTS };

static uint64_t fingerprint; /* of the bundled model */

static struct moe_bits bits_of(const char *name)
{
    struct moe_bits bits = {0};
    assert_true(moe_parse_variant(name, &bits));
    return bits;
}

/* Options for "map,2" and the like; dense_bits 0 when re-packing. */
static struct moe_convert_options options_for(const char *experts, int dense_bits,
                                              const struct moe_expert_map *map)
{
    struct moe_convert_options o = {
        .dense_bits = dense_bits, .method = moe_quant_method_find("rtn"), .group = 64, .map = map};
    char text[64], *word, *rest = text;
    strcpy(text, experts);
    while ((word = strtok_r(rest, ",", &rest)) != NULL)
        o.experts[o.n_experts++] = bits_of(word);
    return o;
}

static void convert(const char *to, const char *experts, const struct moe_expert_map *map)
{
    struct moe_err err = {0};
    struct moe_convert_report report;
    struct moe_convert_options o = options_for(experts, 8, map);
    assert_ok(moe_convert_checkpoint(TINY_MOE, in_dir(to), &o, &report, &err), &err);
}

static void repack(const char *from, const char *to, const char *experts,
                   const struct moe_expert_map *map)
{
    struct moe_err err = {0};
    struct moe_convert_report report;
    struct moe_convert_options o = options_for(experts, 0, map);
    assert_ok(moe_convert_pack(in_dir(from), in_dir(to), &o, &report, &err), &err);
}

static struct moe_pack *open_pack(const char *name)
{
    struct moe_err err = {0};
    struct moe_pack *pack;
    assert_ok(moe_pack_open(&pack, in_dir(name), &err), &err);
    assert_ok(moe_pack_verify(pack, NULL, NULL, &err), &err);
    return pack;
}

static void assert_variants(const struct moe_pack *pack, const char *expected)
{
    char text[256] = "";
    for (uint32_t v = 0; v < moe_pack_n_variants(pack); v++) {
        const struct moe_pack_variant *variant = moe_pack_variant_at(pack, v);
        size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, "%s%s %s", v ? ", " : "", variant->name,
                 variant->method);
    }
    assert_string_equal(text, expected);
}

static uint32_t variant_of(const struct moe_pack *pack, const char *name)
{
    uint32_t v = 0;
    while (v < moe_pack_n_variants(pack) && strcmp(moe_pack_variant_at(pack, v)->name, name) != 0)
        v++;
    assert_true(v < moe_pack_n_variants(pack));
    return v;
}

/* Segments have their bytes' hash: the same classes and hashes are the same weights. */
static void assert_same_expert(const struct moe_pack *a, uint32_t variant_a,
                               const struct moe_pack *b, uint32_t variant_b, uint32_t layer,
                               uint32_t expert)
{
    const struct moe_expert_extent *x = moe_pack_expert(a, layer, expert, variant_a);
    const struct moe_expert_extent *y = moe_pack_expert(b, layer, expert, variant_b);
    assert_true(x->present && y->present);
    assert_memory_equal(moe_pack_class_at(a, x->class_index), moe_pack_class_at(b, y->class_index),
                        sizeof(struct moe_expert_class));
    for (uint32_t s = 0; s < moe_pack_class_at(a, x->class_index)->n_segments; s++) {
        assert_int_equal(x->segments[s].stored_bytes, y->segments[s].stored_bytes);
        assert_int_equal(x->segments[s].checksum, y->segments[s].checksum);
    }
}

static void assert_same_file(const char *a, const char *b)
{
    struct moe_err err = {0};
    struct moe_buf x = {0}, y = {0};
    assert_ok(moe_file_read_all(in_dir(a), 1 << 28, &x, &err), &err);
    assert_ok(moe_file_read_all(in_dir(b), 1 << 28, &y, &err), &err);
    assert_int_equal(x.size, y.size);
    assert_memory_equal(x.data, y.data, x.size);
    moe_buf_release(&x);
    moe_buf_release(&y);
}

/* A map of the bundled model that draws each expert's bits from `names`, "8,4,2". */
static struct moe_expert_map draw_map(const char *names, uint64_t seed, struct moe_bits bits[N])
{
    struct moe_bits kinds[8];
    int n = 0;
    char text[64], *word, *rest = text;
    strcpy(text, names);
    while ((word = strtok_r(rest, ",", &rest)) != NULL)
        kinds[n++] = bits_of(word);
    for (int i = 0; i < N; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        bits[i] = kinds[(seed >> 33) % (uint64_t)n];
    }
    return (struct moe_expert_map){.name = "map.yaml",
                                   .source_fingerprint = fingerprint,
                                   .n_layers = N_LAYERS,
                                   .n_experts = N_EXPERTS,
                                   .bits = bits};
}

/* ---- Packs ---- */

/* Each expert of `made` is the one that `from` has in the variant of its bits. */
static void assert_follows(const struct moe_pack *made, const struct moe_pack *from,
                           const struct moe_expert_map *map)
{
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        for (uint32_t e = 0; e < N_EXPERTS; e++) {
            char name[MOE_BITS_BYTES];
            moe_format_bits(map->bits[layer * N_EXPERTS + e], name);
            assert_same_expert(made, variant_of(made, "map"), from, variant_of(from, name), layer,
                               e);
        }
}

static void experts_get_their_own_bits(void **state)
{
    (void)state;
    static struct moe_bits bits[N];
    struct moe_expert_map map = draw_map("8,4,2,4d8", 1, bits);
    convert("all.moe", "8,4,2,4d8", NULL);
    repack("all.moe", "of-pack.moe", "map", &map);
    convert("of-checkpoint.moe", "map", &map);
    convert("again.moe", "map", &map);
    struct moe_pack *all = open_pack("all.moe"), *made = open_pack("of-pack.moe");
    assert_variants(made, "map rtn");
    assert_follows(made, all, &map);
    assert_int_equal(moe_pack_n_classes(made), 4);
    assert_int_equal(moe_pack_source_fingerprint(made), moe_pack_source_fingerprint(all));
    uint64_t n;
    const char *provenance = (const char *)moe_pack_section(made, MOE_PACK_PROVENANCE, &n);
    assert_non_null(strstr(provenance, "\"experts\":[\"map\"],\"map\":\""));
    assert_same_file("of-pack.moe", "of-checkpoint.moe");
    assert_same_file("of-checkpoint.moe", "again.moe");
    moe_pack_close(all);
    moe_pack_close(made);
}

static void a_map_stands_among_variants(void **state)
{
    (void)state;
    static struct moe_bits bits[N];
    struct moe_expert_map map = draw_map("8,3", 2, bits);
    convert("all.moe", "8,2", NULL);
    repack("all.moe", "made.moe", "2,map,8", &map);
    repack("all.moe", "three.moe", "3", NULL);
    struct moe_pack *made = open_pack("made.moe"), *three = open_pack("three.moe");
    struct moe_pack *all = open_pack("all.moe");
    assert_variants(made, "8 rtn, map rtn, 2 rtn");
    /* What is not stored is quantized from the best, as a variant of that name would be. */
    for (uint32_t i = 0; i < N; i++)
        if (bits[i].down == 3)
            assert_same_expert(made, 1, three, 0, i / N_EXPERTS, i % N_EXPERTS);
        else
            assert_same_expert(made, 1, all, 0, i / N_EXPERTS, i % N_EXPERTS);
    moe_pack_close(made);
    moe_pack_close(three);
    moe_pack_close(all);
}

static void floats_do_not_hide_the_method(void **state)
{
    (void)state;
    static struct moe_bits bits[N];
    struct moe_expert_map map = draw_map("16,4", 3, bits);
    convert("made.moe", "map", &map);
    struct moe_pack *made = open_pack("made.moe");
    assert_variants(made, "map rtn");
    moe_pack_close(made);
    struct moe_convert_report report;
    struct moe_err err = {0};
    struct moe_convert_options o = options_for("2", 0, NULL);
    o.method = moe_quant_method_find("hqq");
    assert_ok(moe_convert_pack(in_dir("made.moe"), in_dir("two.moe"), &o, &report, &err), &err);
    map = draw_map("4,2", 3, bits); /* the experts at 16 bits become 4 */
    o = options_for("map", 0, &map);
    o.method = moe_quant_method_find("hqq");
    assert_ok(moe_convert_pack(in_dir("made.moe"), in_dir("mixed.moe"), &o, &report, &err), &err);
    made = open_pack("mixed.moe");
    assert_variants(made, "map hqq");
    moe_pack_close(made);
    made = open_pack("two.moe");
    assert_variants(made, "2 hqq");
    moe_pack_close(made);
}

static void a_map_survives_repacking(void **state)
{
    (void)state;
    static struct moe_bits bits[N], fewer[N];
    struct moe_expert_map map = draw_map("8,4", 4, bits), other = draw_map("4,2", 4, fewer);
    convert("all.moe", "8,4,2", NULL);
    repack("all.moe", "map.moe", "map,2", &map);
    repack("map.moe", "same.moe", "", NULL);
    assert_same_file("map.moe", "same.moe");
    repack("map.moe", "alone.moe", "map", NULL);
    repack("all.moe", "alone-too.moe", "map", &map);
    assert_same_file("alone.moe", "alone-too.moe");
    /* One bitwidth of it again: copied where it has that, quantized where it has more. */
    repack("alone.moe", "4.moe", "4", NULL);
    repack("all.moe", "8.moe", "8", NULL);
    repack("8.moe", "4-of-8.moe", "4", NULL);
    /* Another map: the experts at 4 and at 2 that are there, the others from 8. */
    repack("map.moe", "other.moe", "map", &other);
    struct moe_pack *all = open_pack("all.moe"), *four = open_pack("4.moe");
    struct moe_pack *of_8 = open_pack("4-of-8.moe"), *made = open_pack("other.moe");
    assert_variants(four, "4 rtn");
    for (uint32_t i = 0; i < N; i++) {
        uint32_t layer = i / N_EXPERTS, e = i % N_EXPERTS;
        bool had_8 = bits[i].down == 8;
        assert_same_expert(four, 0, had_8 ? of_8 : all, had_8 ? 0 : 1, layer, e);
        if (fewer[i].down == 4)
            assert_same_expert(made, 0, had_8 ? of_8 : all, had_8 ? 0 : 1, layer, e);
        else
            assert_same_expert(made, 0, all, 2, layer, e);
    }
    moe_pack_close(all);
    moe_pack_close(four);
    moe_pack_close(of_8);
    moe_pack_close(made);
}

/* Types beside bitwidths, of two methods, in one pack and one map. */
static void types_are_asked_for_by_name(void **state)
{
    (void)state;
    static struct moe_bits bits[N];
    struct moe_expert_map map = draw_map("q6_k,iq4_ks,4,iq3_ktdq5_k", 5, bits);
    convert("all.moe", "q6_k,iq4_ks,4,iq3_ktdq5_k", NULL);
    repack("all.moe", "of-pack.moe", "map", &map);
    convert("made.moe", "map", &map);
    assert_same_file("of-pack.moe", "made.moe");
    struct moe_pack *all = open_pack("all.moe"), *made = open_pack("made.moe");
    /* By what they take. */
    assert_variants(all, "q6_k blocks, 4 rtn, iq4_ks trellis, iq3_ktdq5_k mixed");
    assert_variants(made, "map mixed");
    assert_follows(made, all, &map);
    for (uint32_t i = 0; i < N; i++) {
        const struct moe_expert_extent *x = moe_pack_expert(made, i / N_EXPERTS, i % N_EXPERTS, 0);
        const struct moe_expert_class *class_ = moe_pack_class_at(made, x->class_index);
        for (uint32_t m = 0; m < class_->n_matrices; m++) {
            const bool down = class_->matrices[m].role == MOE_ROLE_DOWN;
            assert_true(moe_bits_match(down ? bits[i].down : bits[i].gate_up,
                                       class_->matrices[m].layout.kind));
        }
    }
    moe_pack_close(made);
    /* A type is not made of another one of as many bits, a bitwidth is the best that there is. */
    struct moe_err err = {0};
    struct moe_convert_report report;
    struct moe_convert_options o = options_for("4", 8, NULL);
    repack("all.moe", "one.moe", "iq4_ks", NULL);
    repack("one.moe", "four.moe", "4", NULL);
    made = open_pack("four.moe");
    assert_variants(made, "4 trellis");
    assert_same_expert(made, 0, all, variant_of(all, "iq4_ks"), 3, 5);
    moe_pack_close(made);
    /* Rows that are too narrow for a type have hqq's layout, and its codes whatever the method. */
    convert("narrow.moe", "iq4_xs", NULL);
    o.method = moe_quant_method_find("hqq");
    assert_ok(moe_convert_checkpoint(TINY_MOE, in_dir("hqq.moe"), &o, &report, &err), &err);
    made = open_pack("narrow.moe");
    struct moe_pack *by_hqq = open_pack("hqq.moe");
    assert_same_expert(made, 0, by_hqq, 0, 3, 5);
    moe_pack_close(by_hqq);
    moe_pack_close(made);
    repack("all.moe", "of-six.moe", "iq4_xs", NULL);
    made = open_pack("of-six.moe");
    assert_variants(made, "iq4_xs blocks");
    moe_pack_close(made);
    assert_fails(moe_convert_pack(
                     in_dir("all.moe"), in_dir("no.moe"),
                     &(struct moe_convert_options){.experts = {bits_of("q6_k"), bits_of("q6_k")},
                                                   .n_experts = 2,
                                                   .method = o.method,
                                                   .group = 64},
                     &report, &err),
                 MOE_ERR_USAGE, "experts at q6_k are asked for twice", &err);
    moe_pack_close(all);
}

/* Rows of these experts are narrower than spans of blocks: such a type is hqq's layout of as many
 * bits, which is stored at that type all the same. */
static void types_of_narrow_rows_are_copied(void **state)
{
    (void)state;
    static struct moe_bits bits[N];
    struct moe_expert_map map = draw_map("q6_k,iq4_xs,q3_kd8", 7, bits);
    convert("all.moe", "q6_k,iq4_xs,q3_kd8,4", NULL);
    repack("all.moe", "of-pack.moe", "map", &map);
    convert("made.moe", "map", &map);
    assert_same_file("of-pack.moe", "made.moe");
    repack("made.moe", "again.moe", "map", NULL);
    assert_same_file("again.moe", "made.moe");
    struct moe_pack *all = open_pack("all.moe"), *made = open_pack("made.moe");
    assert_variants(all, "q6_k blocks, q3_kd8 mixed, 4 rtn, iq4_xs blocks");
    assert_follows(made, all, &map);
    moe_pack_close(made);
    moe_pack_close(all);
    struct moe_err err = {0};
    struct moe_convert_report report;
    struct moe_convert_options o = options_for("", moe_parse_width("iq4_xs"), NULL);
    assert_ok(moe_convert_pack(in_dir("made.moe"), in_dir("dense.moe"), &o, &report, &err), &err);
    assert_ok(moe_convert_pack(in_dir("dense.moe"), in_dir("same.moe"), &o, &report, &err), &err);
    assert_same_file("dense.moe", "same.moe");
    /* A map keeps its place among variants: it is by types that it takes more than the other. */
    map = draw_map("q6_k,q6_k,q6_k,q6_k,q6_k,q5_k", 8, bits);
    convert("both.moe", "map,q6_kdq5_k", &map);
    repack("both.moe", "again.moe", "map,q6_kdq5_k", NULL);
    assert_same_file("again.moe", "both.moe");
}

/* ---- Refusals ---- */

static void refuse(const struct moe_expert_map *map, const char *experts, int status,
                   const char *what)
{
    struct moe_err err = {0};
    struct moe_convert_report report;
    int before = n_files_in_dir();
    struct moe_convert_options o = options_for(experts, 8, map);
    assert_fails(moe_convert_checkpoint(TINY_MOE, in_dir("no.moe"), &o, &report, &err), status,
                 what, &err);
    o.dense_bits = 0;
    assert_fails(moe_convert_pack(in_dir("all.moe"), in_dir("no.moe"), &o, &report, &err), status,
                 what, &err);
    assert_int_equal(n_files_in_dir(), before);
}

static void maps_of_others_are_refused(void **state)
{
    (void)state;
    static struct moe_bits bits[N];
    struct moe_expert_map map = draw_map("4,2", 5, bits);
    convert("all.moe", "4", NULL);
    map.source_fingerprint ^= 1;
    refuse(&map, "map", MOE_ERR_FORMAT, "map.yaml: made for another model (source");
    map = draw_map("4,2", 5, bits);
    map.n_layers = N_LAYERS - 1;
    refuse(&map, "map", MOE_ERR_FORMAT, "than this one's 12 and 32");
    map.n_layers = 2 * N_LAYERS;
    map.n_experts = N_EXPERTS / 2;
    refuse(&map, "map", MOE_ERR_FORMAT, "map.yaml: made for a model with other layers");
    map = draw_map("4,2", 5, bits);
    bits[77] = (struct moe_bits){0};
    refuse(&map, "map", MOE_ERR_FORMAT, "map.yaml: made for a model with other layers");
    map = draw_map("4,2", 5, bits);
    refuse(&map, "4", MOE_ERR_USAGE, "do not name 'map'");
    refuse(NULL, "map", MOE_ERR_USAGE, "no map is given");
    refuse(&map, "map,map", MOE_ERR_USAGE, "twice");
    bits[5].gate_up = 5;
    refuse(&map, "map", MOE_ERR_USAGE, "5 bits");

    struct moe_err err = {0};
    struct moe_convert_report report;
    map = draw_map("8,2", 5, bits);
    struct moe_convert_options o = options_for("map", 0, &map);
    assert_fails(moe_convert_pack(in_dir("all.moe"), in_dir("no.moe"), &o, &report, &err),
                 MOE_ERR_USAGE, "has 4 bits, 8 cannot be made of them", &err);
    assert_int_equal(n_files_in_dir(), 1);
}

/* ---- From moe-map(5) ---- */

static void choices_become_bits(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_map *map;
    struct moe_expert_map out;
    assert_ok(moe_map_new(&map, 2, 3, 1, &err), &err);
    map->source_fingerprint = 17;
    map->n_variants = 2;
    strcpy(map->variants[0], "4d8");
    strcpy(map->variants[1], "2");
    map->model_layer[0] = 1; /* of a model whose layers 0 and 2 are dense */
    map->model_layer[1] = 3;
    assert_fails(moe_map_bits(&out, map, "x.yaml", &err), MOE_ERR_FORMAT,
                 "x.yaml: has importances but no choice of variants", &err);
    map->choice.there = true;
    map->choice.variant[0 * 3 + 2] = 1;
    map->choice.variant[1 * 3 + 0] = 1;
    assert_ok(moe_map_bits(&out, map, "x.yaml", &err), &err);
    static const struct moe_bits expected[4][3] = {
        {{0}}, {{4, 8}, {4, 8}, {2, 2}}, {{0}}, {{2, 2}, {4, 8}, {4, 8}}};
    assert_int_equal(out.n_layers, 4);
    assert_int_equal(out.n_experts, 3);
    assert_int_equal(out.source_fingerprint, 17);
    assert_memory_equal(out.bits, expected, sizeof expected);
    free(out.bits);
    strcpy(map->variants[1], "map");
    assert_fails(moe_map_bits(&out, map, "x.yaml", &err), MOE_ERR_FORMAT,
                 "'map', which is neither a bitwidth nor a type", &err);
    moe_map_free(map);
}

/* ---- Pictures ---- */

static void expect(const struct moe_buf *text, const char *part)
{
    if (!strstr((const char *)text->data, part))
        fail_msg("no '%s' in\n%s", part, (const char *)text->data);
}

static void maps_are_drawn(void **state)
{
    (void)state;
    static struct moe_bits bits[N];
    struct moe_err err = {0};
    struct moe_expert_map map = draw_map("4", 0, bits);
    bits[0] = (struct moe_bits){2, 2};
    bits[9] = (struct moe_bits){4, 8};
    bits[11 * N_EXPERTS + 31] = (struct moe_bits){2, 2};
    convert("made.moe", "map,4", &map);
    struct moe_pack *pack = open_pack("made.moe");
    struct moe_pack_summary *s = moe_alloc(1, sizeof *s, &err);
    struct moe_buf text = {0};
    assert_ok(moe_pack_summarize(pack, s, &err), &err);
    assert_true(!s->mixed[variant_of(pack, "4")] && s->mixed[variant_of(pack, "map")]);
    assert_true(moe_weight_sum_nominal_bits(&s->variants[variant_of(pack, "4")]) == 4);
    double mean = (4.0 * (N - 3) + 2 * 2.0 + 16.0 / 3) / N;
    double nominal = moe_weight_sum_nominal_bits(&s->variants[variant_of(pack, "map")]);
    assert_true(nominal > mean - 1e-12 && nominal < mean + 1e-12);
    moe_show_pack_bits(s, MOE_PLAIN_SCREEN, &text);
    expect(&text, "\n  experts map: bits of each, by layer\n"
                  "     0  24444444 4a444444 44444444 44444444\n"
                  "     1  44444444 44444444 44444444 44444444\n");
    expect(&text, "    11  44444444 44444444 44444444 44444442\n"
                  "  bits  a = 4d8: 1 expert, 4: 381 experts, 2: 2 experts\n");
    moe_buf_release(&text);
    moe_show_pack_bits(s, (struct moe_screen){80, false, true}, &text);
    expect(&text, "\033[30;48;5;151m2\033[0m");
    moe_buf_release(&text);
    moe_show_pack_line(s, &text);
    expect(&text, "and a map's bits (4.49)");
    moe_buf_release(&text);
    assert_ok(moe_show_pack_json(s, false, &text, &err), &err);
    expect(&text, "\"nominal_bits_per_weight\": 4.0");
    expect(&text, "\"map\": null");
    expect(&text, "\"4d8\"");
    moe_buf_release(&text);
    free(s);
    moe_pack_close(pack);
}

/* Far more experts than a terminal has columns: a made-up pack of one-panel experts. */
static void write_wide_pack(uint32_t n_experts)
{
    struct moe_err err = {0};
    struct moe_pack_writer *w;
    const struct moe_pack_variant variant = {"map", "rtn"};
    static const uint8_t zeros[4096];
    const void *const segments[1] = {zeros};
    assert_ok(moe_pack_create(&w, in_dir("wide.moe"), 2, n_experts, &variant, 1, 1, 0, &err), &err);
    for (uint32_t e = 0; e < n_experts; e++) {
        struct moe_layout layout =
            moe_quant_layout(moe_quant_method_find("rtn"), e % 3 ? 4 : 2, 64, MOE_LAYOUT_BF16);
        uint64_t bytes = moe_round_up(moe_layout_bytes(layout, 16, 64), 64);
        struct moe_expert_class class_ = {.n_segments = 1,
                                          .n_matrices = 2,
                                          .segment_bytes = {2 * bytes},
                                          .matrices = {{MOE_ROLE_UP, 0, layout, 16, 64, 0},
                                                       {MOE_ROLE_DOWN, 0, layout, 16, 64, bytes}}};
        uint32_t index;
        assert_true(2 * bytes <= sizeof zeros);
        assert_ok(moe_pack_put_class(w, &class_, &index, &err), &err);
        assert_ok(moe_pack_put_expert(w, 1, e, 0, index, segments, &err), &err);
    }
    assert_ok(moe_pack_commit(w, &err), &err);
}

static void wide_maps_wrap_or_are_counted(void **state)
{
    (void)state;
    struct moe_pack_summary s = {.mixed = {true}};
    struct moe_buf text = {0};
    write_wide_pack(72);
    struct moe_pack *pack = s.pack = open_pack("wide.moe");
    moe_show_pack_bits(&s, MOE_PLAIN_SCREEN, &text);
    assert_string_equal((const char *)text.data,
                        "\n  experts map: bits of each, by layer\n"
                        "     1  24424424 42442442 44244244 24424424 42442442 44244244 24424424 "
                        "42442442\n"
                        "        44244244\n"
                        "  bits  4: 48 experts, 2: 24 experts\n");
    moe_buf_release(&text);
    moe_pack_close(pack);
    write_wide_pack(MOE_SHOW_DRAWN + 2);
    pack = s.pack = open_pack("wide.moe");
    moe_show_pack_bits(&s, MOE_PLAIN_SCREEN, &text);
    assert_string_equal((const char *)text.data, "\n  experts map: bits of each, by layer\n"
                                                 "     1  172 at 4, 86 at 2\n"
                                                 "  bits  4: 172 experts, 2: 86 experts\n");
    moe_buf_release(&text);
    moe_pack_close(pack);
}

static int learn_fingerprint(void **state)
{
    make_dir(state);
    convert("all.moe", "2", NULL);
    struct moe_pack *pack = open_pack("all.moe");
    fingerprint = moe_pack_source_fingerprint(pack);
    moe_pack_close(pack);
    return remove_dir(state);
}

#define in_fresh_dir(test) cmocka_unit_test_setup_teardown(test, make_dir, remove_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_fresh_dir(experts_get_their_own_bits),      in_fresh_dir(a_map_stands_among_variants),
        in_fresh_dir(floats_do_not_hide_the_method),   in_fresh_dir(a_map_survives_repacking),
        in_fresh_dir(maps_of_others_are_refused),      in_fresh_dir(types_are_asked_for_by_name),
        cmocka_unit_test(choices_become_bits),         in_fresh_dir(maps_are_drawn),
        in_fresh_dir(types_of_narrow_rows_are_copied), in_fresh_dir(wide_maps_wrap_or_are_counted),
    };
    return cmocka_run_group_tests(tests, learn_fingerprint, NULL);
}
