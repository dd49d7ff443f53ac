#define _DEFAULT_SOURCE /* mkdtemp, truncate */
/* Packs written and read back; damage of any part is named. */
#include "../scratch_dir.h"

#include <sys/wait.h>
#include <unistd.h>

#include "../pack_forge.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "pack/pack.h"

/* ---- A small pack that has one of everything ---- */

enum { N_LAYERS = 2, N_EXPERTS = 2, HIDDEN = 64, WIDTH = 32 };

static char path[128];      /* of the pack */
static struct moe_buf pack; /* its bytes */

static const struct moe_layout f32 = {MOE_LAYOUT_F32, 0};
static const struct moe_layout q4 = {MOE_LAYOUT_Q4, 64};
static const struct moe_layout q8 = {MOE_LAYOUT_Q8, 64};

static struct moe_expert_class make_class(struct moe_layout layout)
{
    uint64_t bytes = moe_layout_bytes(layout, WIDTH, HIDDEN);
    uint64_t down_bytes = moe_layout_bytes(layout, HIDDEN, WIDTH);
    return (struct moe_expert_class){
        .n_segments = 2,
        .n_matrices = 4,
        .segment_bytes = {2 * bytes, down_bytes + 4 * HIDDEN},
        .matrices = {{MOE_ROLE_GATE, 0, layout, WIDTH, HIDDEN, 0},
                     {MOE_ROLE_UP, 0, layout, WIDTH, HIDDEN, bytes},
                     {MOE_ROLE_DOWN, 1, layout, HIDDEN, WIDTH, 0},
                     {MOE_ROLE_DOWN_BIAS, 1, f32, HIDDEN, 1, down_bytes}},
    };
}

/* Bytes that differ from piece to piece; halves of zeros, so that zstd finds something to do. */
static void fill(uint8_t *p, uint64_t n, uint64_t seed)
{
    memset(p, 0, n);
    for (uint64_t i = 0; i < n / 2; i++)
        p[i] = (uint8_t)test_random(&seed);
}

static void put_tensor(struct moe_pack_writer *w, const char *name, bool is_vector,
                       struct moe_layout layout, uint32_t rows, uint32_t cols)
{
    struct moe_err err = {0};
    struct moe_pack_tensor t = {
        .is_vector = is_vector, .layout = layout, .rows = rows, .cols = cols};
    strcpy(t.name, name);
    uint64_t n = pack_tensor_raw_bytes(&t);
    uint8_t *raw = moe_alloc(n, 1, &err);
    fill(raw, n, rows);
    assert_ok(moe_pack_put_tensor(w, &t, raw, &err), &err);
    free(raw);
}

static void put_expert(struct moe_pack_writer *w, uint32_t layer, uint32_t expert, uint32_t variant)
{
    struct moe_err err = {0};
    struct moe_expert_class class_ = make_class(variant == 0 ? q8 : q4);
    uint32_t index;
    assert_ok(moe_pack_put_class(w, &class_, &index, &err), &err);
    assert_int_equal(index, variant);
    void *segments[2];
    for (int s = 0; s < 2; s++) {
        segments[s] = moe_alloc(class_.segment_bytes[s], 1, &err);
        fill(segments[s], class_.segment_bytes[s], 1000 * layer + 100 * expert + 10 * variant + s);
    }
    assert_ok(
        moe_pack_put_expert(w, layer, expert, variant, index, (const void *const *)segments, &err),
        &err);
    free(segments[0]);
    free(segments[1]);
}

/* Layer 0 is dense; layer 1 has both experts, the second one only in the first variant. */
static const char *sampling = ""; /* the optional sections */
static struct moe_buf maps;

static struct moe_pack_writer *start_pack(int zstd_level)
{
    struct moe_err err = {0};
    struct moe_pack_writer *w;
    static const struct moe_pack_variant variants[] = {{"8", "rtn"}, {"4", "hqq"}};
    assert_ok(moe_pack_create(&w, path, N_LAYERS, N_EXPERTS, variants, 2, 0, zstd_level, &err),
              &err);
    moe_pack_set_source_fingerprint(w, 0x1234);
    assert_ok(moe_pack_put_section(w, MOE_PACK_MODEL, "{}", 2, &err), &err);
    assert_ok(moe_pack_put_section(w, MOE_PACK_TOKENIZER, "tokens", 6, &err), &err);
    assert_ok(moe_pack_put_section(w, MOE_PACK_PROVENANCE, "{ }", 3, &err), &err);
    assert_ok(moe_pack_put_section(w, MOE_PACK_SAMPLING, sampling, strlen(sampling), &err), &err);
    assert_ok(moe_pack_put_section(w, MOE_PACK_MAPS, maps.data, maps.size, &err), &err);
    put_tensor(w, "norm", true, f32, HIDDEN, 1);
    put_tensor(w, "embed", false, q8, 40, HIDDEN);
    put_expert(w, 1, 1, 0);
    put_expert(w, 1, 0, 0);
    put_expert(w, 1, 0, 1);
    return w;
}

static void write_pack(int zstd_level)
{
    struct moe_err err = {0};
    assert_ok(moe_pack_commit(start_pack(zstd_level), &err), &err);
    moe_buf_clear(&pack);
    assert_ok(moe_file_read_all(path, 1 << 24, &pack, &err), &err);
}

static int set_up(void **state)
{
    int status = make_dir(state);
    strcpy(path, in_dir("x.moe"));
    return status;
}

static int tear_down(void **state)
{
    moe_buf_release(&pack);
    return remove_dir(state);
}

/* Opens the bytes in `pack` and reads everything; MOE_OK or the first failure. */
static int try_pack(struct moe_err *err)
{
    struct moe_pack *p;
    FILE *f = fopen(path, "wb"); /* not moe_file_write_all: thousands of fsyncs take a minute */
    if (!f || fwrite(pack.data, 1, pack.size, f) != pack.size || fclose(f) != 0)
        fail_msg("cannot write %s", path);
    int status = moe_pack_open(&p, path, err);
    if (status == MOE_OK) {
        status = moe_pack_verify(p, NULL, NULL, err);
        moe_pack_close(p);
    }
    return status;
}

/* ---- Round trip ---- */

static void check_expert(const struct moe_pack *p, uint32_t layer, uint32_t expert,
                         uint32_t variant)
{
    struct moe_err err = {0};
    const struct moe_expert_extent *e = moe_pack_expert(p, layer, expert, variant);
    assert_true(e->present);
    const struct moe_expert_class *class_ = moe_pack_class_at(p, e->class_index);
    uint8_t *segments[2], *expected = moe_alloc(1 << 16, 1, &err);
    for (uint32_t s = 0; s < 2; s++) {
        segments[s] = moe_alloc(e->segments[s].raw_bytes, 1, &err);
        assert_ok(moe_pack_read(p, &e->segments[s], segments[s], "segment", &err), &err);
        fill(expected, class_->segment_bytes[s], 1000 * layer + 100 * expert + 10 * variant + s);
        assert_memory_equal(segments[s], expected, class_->segment_bytes[s]);
    }
    struct moe_mat m;
    const uint8_t *const views[2] = {segments[0], segments[1]};
    assert_true(moe_class_matrix_view(class_, MOE_ROLE_UP, views, &m));
    assert_ptr_equal(m.data, segments[0] + moe_layout_bytes(m.layout, WIDTH, HIDDEN));
    assert_int_equal(m.rows, WIDTH);
    assert_int_equal(m.cols, HIDDEN);
    assert_true(moe_class_matrix_view(class_, MOE_ROLE_DOWN_BIAS, views, &m));
    assert_false(moe_class_matrix_view(class_, MOE_ROLE_GATE_BIAS, views, &m));
    free(segments[0]);
    free(segments[1]);
    free(expected);
}

static void round_trip(int zstd_level)
{
    struct moe_err err = {0};
    write_pack(zstd_level);
    assert_int_equal(n_files_in_dir(), 1);
    struct moe_pack *p;
    assert_ok(moe_pack_open(&p, path, &err), &err);
    assert_int_equal(moe_pack_file_bytes(p), pack.size);
    assert_int_equal(moe_pack_source_fingerprint(p), 0x1234);
    assert_string_equal(moe_pack_path(p), path);
    uint64_t n;
    assert_memory_equal(moe_pack_section(p, MOE_PACK_TOKENIZER, &n), "tokens", 6);
    assert_int_equal(n, 6);
    assert_non_null(moe_pack_section(p, MOE_PACK_CHAT, &n));
    assert_int_equal(n, 0);

    assert_int_equal(moe_pack_n_tensors(p), 2);
    const struct moe_pack_tensor *t = moe_pack_tensor_find(p, "embed");
    assert_ptr_equal(t, moe_pack_tensor_at(p, 1));
    assert_false(t->is_vector);
    assert_int_equal(t->layout.kind, MOE_LAYOUT_Q8);
    assert_int_equal(t->layout.group, 64);
    assert_int_equal(t->extent.stored_bytes<t->extent.raw_bytes, zstd_level> 0);
    assert_true(moe_pack_tensor_find(p, "norm")->is_vector);
    assert_null(moe_pack_tensor_find(p, "nothing"));

    assert_int_equal(moe_pack_n_layers(p), N_LAYERS);
    assert_int_equal(moe_pack_n_experts(p), N_EXPERTS);
    assert_int_equal(moe_pack_n_variants(p), 2);
    assert_string_equal(moe_pack_variant_at(p, 1)->name, "4");
    assert_string_equal(moe_pack_variant_at(p, 1)->method, "hqq");
    assert_int_equal(moe_pack_n_classes(p), 2);
    assert_false(moe_pack_expert(p, 0, 0, 0)->present);
    assert_false(moe_pack_expert(p, 1, 1, 1)->present);
    assert_false(moe_pack_expert(p, 9, 9, 9)->present);
    check_expert(p, 1, 0, 0);
    check_expert(p, 1, 0, 1);
    check_expert(p, 1, 1, 0);
    uint64_t bytes = 0;
    assert_ok(moe_pack_verify(p, NULL, &bytes, &err), &err);
    assert_int_equal(bytes, pack.size);
    moe_pack_close(p);

    /* The same calls give the same bytes. */
    struct moe_buf first = pack;
    pack = (struct moe_buf){0};
    write_pack(zstd_level);
    assert_int_equal(pack.size, first.size);
    assert_memory_equal(pack.data, first.data, first.size);
    moe_buf_release(&first);
}

static void raw_pack_round_trips(void **state)
{
    (void)state;
    round_trip(0);
}

static void compressed_pack_round_trips(void **state)
{
    (void)state;
    round_trip(3);
}

/* All of it is read from memory, until that is left: damage in the file or in the image is found
 * where it is read. */
static void packs_are_read_from_images(void **state)
{
    struct moe_err err = {0};
    struct moe_pack *p;
    (void)state;
    for (int zstd_level = 0; zstd_level <= 3; zstd_level += 3) {
        write_pack(zstd_level);
        const struct moe_pack_image image = {pack.data, pack.size};
        struct moe_buf zeros = {0};
        for (uint64_t i = 0; i < pack.size; i++)
            moe_buf_u8(&zeros, 0);
        assert_ok(moe_file_write_all(path, zeros.data, zeros.size, &err), &err);
        assert_fails(moe_pack_open_image(&p, path, NULL, &err), MOE_ERR_FORMAT, "zeros", &err);
        assert_ok(moe_pack_open_image(&p, path, &image, &err), &err);
        assert_ok(moe_pack_verify(p, NULL, NULL, &err), &err);
        check_expert(p, 1, 0, 1);
        const struct moe_expert_extent *e = moe_pack_expert(p, 1, 0, 1);
        struct moe_extent beyond = e->segments[0];
        uint8_t *raw = moe_alloc(beyond.raw_bytes, 1, &err);
        beyond.offset = pack.size - 1;
        assert_fails(moe_pack_read(p, &beyond, raw, "segment", &err), MOE_ERR_FORMAT,
                     "before what is read", &err);
        pack.data[e->segments[0].offset] ^= 1;
        assert_fails(moe_pack_read(p, &e->segments[0], raw, "segment", &err), MOE_ERR_FORMAT,
                     "checksum", &err);
        pack.data[e->segments[0].offset] ^= 1;
        assert_ok(moe_pack_read(p, &e->segments[0], raw, "segment", &err), &err);
        moe_pack_leave_image(p);
        assert_fails(moe_pack_read(p, &e->segments[0], raw, "segment", &err), MOE_ERR_FORMAT,
                     "checksum", &err);
        moe_pack_close(p);
        free(raw);
        const struct moe_pack_image cut = {pack.data, pack.size - MOE_PACK_ALIGN};
        assert_fails(moe_pack_open_image(&p, path, &cut, &err), MOE_ERR_FORMAT, "cut short", &err);
        moe_buf_release(&zeros);
    }
}

static void writer_refuses_nonsense(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_pack_writer *w;
    static const struct moe_pack_variant twins[] = {{"4", "rtn"}, {"4", "hqq"}};
    assert_fails(moe_pack_create(&w, path, 1, 1, twins, 2, 0, 0, &err), MOE_ERR_USAGE, "variant 1",
                 &err);
    assert_fails(moe_pack_create(&w, path, 1, 1, twins, 1, 0, 99, &err), MOE_ERR_USAGE, "zstd",
                 &err);
    assert_fails(moe_pack_create(&w, "/nonexistent/x.moe", 1, 1, twins, 1, 0, 0, &err), MOE_ERR_IO,
                 "cannot create", &err);

    w = start_pack(0);
    struct moe_expert_class class_ = make_class(q8);
    uint32_t index;
    class_.matrices[1].offset = 64;
    assert_fails(moe_pack_put_class(w, &class_, &index, &err), MOE_ERR_USAGE, "overlap", &err);
    class_.matrices[1].offset = class_.segment_bytes[0];
    assert_fails(moe_pack_put_class(w, &class_, &index, &err), MOE_ERR_USAGE, "inside", &err);
    const void *segments[2] = {"", ""};
    assert_fails(moe_pack_put_expert(w, 2, 0, 0, 0, segments, &err), MOE_ERR_USAGE, "range", &err);
    struct moe_pack_tensor t = {.layout = q8, .rows = 0, .cols = 1, .name = "x"};
    assert_fails(moe_pack_put_tensor(w, &t, "", &err), MOE_ERR_USAGE, "shape", &err);
    t.layout = (struct moe_layout){MOE_LAYOUT_F8, 0};
    t.rows = 16;
    t.cols = 40; /* not by 32 */
    assert_fails(moe_pack_put_tensor(w, &t, "", &err), MOE_ERR_USAGE, "shape", &err);
    put_expert(w, 1, 1, 0);
    assert_fails(moe_pack_commit(w, &err), MOE_ERR_USAGE, "twice", &err);
    w = start_pack(0);
    put_tensor(w, "norm", true, f32, HIDDEN, 1);
    assert_fails(moe_pack_commit(w, &err), MOE_ERR_USAGE, "norm", &err);
    moe_pack_abort(start_pack(0));
    moe_pack_abort(NULL);
    assert_int_equal(n_files_in_dir(), 0);
}

/* ---- Damage ---- */

static void truncations_are_refused(void **state)
{
    (void)state;
    struct moe_err err = {0};
    write_pack(3);
    uint64_t size = pack.size;
    for (uint64_t n = 0; n < size; n += n % 4096 == 0 ? 1 : n % 4096 == 1 ? 4094 : 1) {
        pack.size = n;
        assert_int_equal(try_pack(&err), MOE_ERR_FORMAT);
    }
    for (uint64_t n = 0; n < size; n += 997) {
        pack.size = n;
        assert_int_equal(try_pack(&err), MOE_ERR_FORMAT);
    }
    pack.size = size;
    moe_buf_append(&pack, "x", 1);
    assert_fails(try_pack(&err), MOE_ERR_FORMAT, "appended", &err);
}

/* Header, directory and weights: every byte that is not zero, and a good part of those that are. */
static void flipped_bits(int zstd_level)
{
    struct moe_err err = {0};
    write_pack(zstd_level);
    assert_ok(try_pack(&err), &err);
    for (uint64_t i = 0; i < pack.size; i++) {
        if (pack.data[i] == 0 && i % 53 != 0)
            continue;
        pack.data[i] ^= (uint8_t)(1 << i % 8);
        int status = try_pack(&err);
        if (status != MOE_ERR_FORMAT && status != MOE_ERR_VERSION)
            fail_msg("bit %d of byte %llu flipped: status %d", (int)(i % 8), (unsigned long long)i,
                     status);
        pack.data[i] ^= (uint8_t)(1 << i % 8);
    }
    assert_ok(try_pack(&err), &err);
}

static void flipped_bits_are_found_raw(void **state)
{
    (void)state;
    flipped_bits(0);
}

static void flipped_bits_are_found_compressed(void **state)
{
    (void)state;
    flipped_bits(3);
}

/* Where a section of the directory lies in `pack`. */
static uint8_t *section_at(uint32_t id)
{
    return pack.data +
           moe_get_u64(pack.data + PACK_TABLE_AT + (id - 1) * PACK_SECTION_ENTRY_BYTES + 8);
}

static uint8_t *entry_of(uint32_t id)
{
    return pack.data + PACK_TABLE_AT + (id - 1) * PACK_SECTION_ENTRY_BYTES;
}

#define expect_forged(status, words)                                                               \
    do {                                                                                           \
        struct moe_err err_ = {0};                                                                 \
        pack_forge(pack.data, pack.size);                                                          \
        assert_fails(try_pack(&err_), status, words, &err_);                                       \
        write_pack(0);                                                                             \
    } while (0)

/* Sections of hundreds of MiB, in a file that has them as holes: refused by their size, before any
 * memory is taken for them. */
static void sparse_sections_are_refused(void **state)
{
    (void)state;
    static const struct {
        uint32_t id;
        uint64_t bytes;
        const char *words;
    } cases[] = {
        {PACK_ID_MODEL, 1 << 30, "section 1 of 1073741824 bytes: none is that large"},
        {PACK_ID_TOKENIZER, 1 << 30, "section 2 of 1073741824 bytes: none is that large"},
        {PACK_ID_CHAT, 1 << 30, "section 3 of 1073741824 bytes: none is that large"},
        {PACK_ID_PROVENANCE, 1 << 30, "section 4 of 1073741824 bytes: none is that large"},
        {PACK_ID_TENSORS, 100 << 20, "section 5 of 104857600 bytes, more than its 0 entries take"},
        {PACK_ID_VARIANTS, 1 << 30, "section 6 of 1073741824 bytes: none is that large"},
        {PACK_ID_CLASSES, 16 << 20, "section 7 of 16777216 bytes, more than its 0 entries take"},
        {PACK_ID_EXPERTS, 100 << 20, "section 8 of 104857600 bytes, more than its 0 entries take"},
        {PACK_ID_EXPERTS, 1 << 30, "section 8 of 1073741824 bytes: none is that large"},
    };
    write_pack(0);
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_err err = {0};
        struct moe_pack *opened = NULL;
        uint64_t at = moe_round_up(pack.size, MOE_PACK_ALIGN), size = at + cases[i].bytes;
        moe_put_u64(pack.data + 16, size);
        moe_put_u64(entry_of(cases[i].id) + 8, at);
        moe_put_u64(entry_of(cases[i].id) + 16, cases[i].bytes);
        pack_forge(pack.data, pack.size);
        write_in_dir("sparse.moe", pack.data, pack.size);
        assert_int_equal(truncate(in_dir("sparse.moe"), (off_t)size), 0);
        assert_fails(moe_pack_open(&opened, in_dir("sparse.moe"), &err), MOE_ERR_FORMAT,
                     cases[i].words, &err);
        write_pack(0);
    }
    unlink(in_dir("sparse.moe"));
}

/* What checksums cannot catch: files that were written so, by hostility or by a broken writer. */
static void forged_headers_are_refused(void **state)
{
    (void)state;
    struct moe_err err = {0};
    write_pack(0);
    pack_forge(pack.data, pack.size); /* changes nothing in a sound pack */
    assert_ok(try_pack(&err), &err);
    pack.data[0] = 'X';
    expect_forged(MOE_ERR_FORMAT, "not an expert pack");
    memcpy(pack.data, "GGUF", 4);
    expect_forged(MOE_ERR_VERSION, "GGUF version 1");
    moe_put_u32(pack.data + 4, 2);
    expect_forged(MOE_ERR_VERSION, "version 2");
    moe_put_u32(pack.data + 8, 8192);
    expect_forged(MOE_ERR_FORMAT, "impossible header");
    moe_put_u32(pack.data + 12, 7);
    expect_forged(MOE_ERR_FORMAT, "impossible header");
    moe_put_u32(pack.data + 12, 9);
    expect_forged(MOE_ERR_FORMAT, "order");
    moe_put_u32(pack.data + 12, 0xffffffff);
    expect_forged(MOE_ERR_FORMAT, "impossible header");
    moe_put_u64(pack.data + 24, 6);
    expect_forged(MOE_ERR_VERSION, "features 0x4");
    moe_put_u64(pack.data + 56, 1);
    expect_forged(MOE_ERR_FORMAT, "impossible header");
    pack.data[3000] = 1;
    expect_forged(MOE_ERR_FORMAT, "reserved");
    moe_put_u32(entry_of(2), 3);
    expect_forged(MOE_ERR_FORMAT, "order");
    moe_put_u64(entry_of(5) + 8, 0);
    expect_forged(MOE_ERR_FORMAT, "inside the file");
    moe_put_u64(entry_of(5) + 8, UINT64_C(0xfffffffffffff000));
    expect_forged(MOE_ERR_FORMAT, "inside the file");
    moe_put_u64(entry_of(5) + 16, pack.size);
    expect_forged(MOE_ERR_FORMAT, "inside the file");
    moe_put_u64(entry_of(5) + 8, moe_get_u64(entry_of(5) + 8) + 1);
    expect_forged(MOE_ERR_FORMAT, "inside the file");
    moe_put_u64(entry_of(1) + 8, moe_get_u64(entry_of(2) + 8));
    expect_forged(MOE_ERR_FORMAT, "overlap or a gap");
    /* Optional features and sections beyond the known ones are a newer writer's business. */
    moe_put_u64(pack.data + 32, ~UINT64_C(0));
    pack_forge(pack.data, pack.size);
    assert_ok(try_pack(&err), &err);
    moe_put_u32(pack.data + 12, 9);
    moe_put_u32(entry_of(9), 77);
    pack_forge(pack.data, pack.size);
    assert_ok(try_pack(&err), &err);
}

/* A pack has it or not; one without is what it was before there was such a section. */
static void the_optional_section(void **state)
{
    struct moe_err err = {0};
    struct moe_pack *p;
    uint64_t n, without;
    (void)state;
    write_pack(0);
    without = pack.size;
    assert_int_equal(moe_get_u32(pack.data + 12), PACK_N_IDS);
    assert_ok(moe_pack_open(&p, path, &err), &err);
    moe_pack_section(p, MOE_PACK_SAMPLING, &n);
    assert_int_equal(n, 0);
    moe_pack_close(p);
    sampling = "{\"top_k\":7}";
    write_pack(0);
    assert_int_equal(pack.size, without + MOE_PACK_ALIGN);
    assert_ok(moe_pack_open(&p, path, &err), &err);
    assert_memory_equal(moe_pack_section(p, MOE_PACK_SAMPLING, &n), sampling, strlen(sampling));
    assert_int_equal(n, strlen(sampling));
    moe_pack_close(p);
    assert_ok(try_pack(&err), &err);
    pack.data[moe_get_u64(entry_of(PACK_ID_SAMPLING) + 8)] ^= 1;
    assert_fails(try_pack(&err), MOE_ERR_FORMAT, "section 9: checksum mismatch", &err);
    moe_put_u64(entry_of(PACK_ID_SAMPLING) + 16, 2 << 20);
    expect_forged(MOE_ERR_FORMAT, "inside the file");
    sampling = "";
}

/* Expert 0 at 4 bits, expert 1 at 8, the only ones it has. */
static void maps_for_tolerances(void **state)
{
    static const uint8_t variants[2][N_LAYERS * N_EXPERTS] = {{255, 255, 0, 0}, {255, 255, 1, 0}};
    const struct moe_pack_map two[] = {{.tolerance = 1, .variants = variants[0]},
                                       {.tolerance = 5,
                                        .loss = 4.5,
                                        .points = true,
                                        .checked = true,
                                        .check = 4.75,
                                        .variants = variants[1]}};
    const uint64_t head = 16, each = 32 + N_LAYERS * N_EXPERTS;
    const struct {
        uint64_t at;
        uint8_t byte;
    } damage[] = {{0, 0},
                  {0, 3},
                  {4, 1},
                  {8, 3},
                  {12, 1},
                  {head + 24, 4},
                  {head + 28, 1},
                  {head + 7, 0x80},
                  {head + 32, 0},
                  {head + 34, 2},
                  {head + 35, 1},
                  {head + each + 34, 255},
                  {head + 7, 0x41 /* above the next one's tolerance */}};
    struct moe_err err = {0};
    struct moe_pack *p;
    uint64_t n;
    (void)state;
    for (int with = 0; with < 2; with++) { /* alone, and behind the other optional section */
        sampling = with ? "{\"top_k\":7}" : "";
        moe_buf_clear(&maps);
        moe_pack_put_maps(&maps, two, 2, N_LAYERS, N_EXPERTS);
        write_pack(0);
        assert_ok(try_pack(&err), &err);
        assert_ok(moe_pack_open(&p, path, &err), &err);
        moe_pack_section(p, MOE_PACK_SAMPLING, &n);
        assert_int_equal(n, strlen(sampling));
        assert_int_equal(moe_pack_n_maps(p), 2);
        assert_true(moe_pack_map_at(p, 1).check == 4.75 && !moe_pack_map_at(p, 0).checked);
        assert_true(moe_pack_map_at(p, 1).points && !moe_pack_map_at(p, 0).points);
        assert_int_equal(moe_pack_map_taken(p), UINT32_MAX);
        const uint64_t bytes = moe_pack_map_bytes(p, 1),
                       fingerprint = moe_pack_map_fingerprint(p, 1);
        assert_true(moe_pack_map_bytes(p, 0) == moe_pack_map_bytes(p, UINT32_MAX));
        assert_true(bytes < moe_pack_map_bytes(p, 0));
        moe_pack_take_map(p, 1);
        assert_int_equal(moe_pack_map_taken(p), 1);
        assert_true(moe_pack_fingerprint(p) == fingerprint);
        assert_int_equal(moe_pack_n_variants(p), 2);
        assert_string_equal(moe_pack_variant_at(p, 0)->name, "map");
        assert_string_equal(moe_pack_variant_at(p, 1)->name, "4");
        assert_int_equal(moe_pack_expert(p, 1, 0, 0)->class_index, 1);
        assert_int_equal(moe_pack_expert(p, 1, 1, 0)->class_index, 0);
        assert_false(moe_pack_expert(p, 1, 0, 1)->present || moe_pack_expert(p, 1, 1, 1)->present);
        assert_int_equal(moe_pack_map_bytes(p, UINT32_MAX), bytes);
        moe_pack_close(p);
        for (size_t i = 0; i < sizeof damage / sizeof damage[0]; i++) {
            moe_buf_clear(&maps);
            moe_pack_put_maps(&maps, two, 2, N_LAYERS, N_EXPERTS);
            maps.data[damage[i].at] = damage[i].byte;
            write_pack(0);
            assert_fails(try_pack(&err), MOE_ERR_FORMAT, "its maps are not for its experts", &err);
        }
        maps.size = 3;
        write_pack(0);
        assert_fails(try_pack(&err), MOE_ERR_FORMAT, "its maps are not for its experts", &err);
    }
    sampling = "";
    moe_buf_release(&maps);
}

static void forged_tables_are_refused(void **state)
{
    (void)state;
    write_pack(0);
    uint8_t *p;
#define at(id, offset) (p = section_at(id) + (offset))
    /* Variants. */
    moe_put_u32(at(PACK_ID_VARIANTS, 0), 1 << 30);
    expect_forged(MOE_ERR_FORMAT, "table of variants");
    moe_put_u32(at(PACK_ID_VARIANTS, 8), 3);
    expect_forged(MOE_ERR_FORMAT, "table of variants");
    memcpy(at(PACK_ID_VARIANTS, 16), "4", 1);
    expect_forged(MOE_ERR_FORMAT, "two variants");
    memset(at(PACK_ID_VARIANTS, 16), 'x', 64);
    expect_forged(MOE_ERR_FORMAT, "proper name");
    moe_put_u32(at(PACK_ID_VARIANTS, 0), 1);
    expect_forged(MOE_ERR_FORMAT, "out of range");
    /* Tensors. */
    moe_put_u32(at(PACK_ID_TENSORS, 0), 3);
    expect_forged(MOE_ERR_FORMAT, "table of tensors");
    moe_put_u32(at(PACK_ID_TENSORS, 0), 0xffffffff);
    expect_forged(MOE_ERR_FORMAT, "table of tensors");
    memcpy(at(PACK_ID_TENSORS, 8), "embed", 5);
    expect_forged(MOE_ERR_FORMAT, "occurs twice");
    memcpy(at(PACK_ID_TENSORS, 8), "a\033[2J", 5);
    expect_forged(MOE_ERR_FORMAT, "name");
    *at(PACK_ID_TENSORS, 8 + 40) = 'x';
    expect_forged(MOE_ERR_FORMAT, "name");
    moe_put_u16(at(PACK_ID_TENSORS, 8 + 64), 99);
    expect_forged(MOE_ERR_VERSION, "layout");
    *at(PACK_ID_TENSORS, 8 + 66) = 2;
    expect_forged(MOE_ERR_VERSION, "layout");
    *at(PACK_ID_TENSORS, 8 + 67) = 2;
    expect_forged(MOE_ERR_FORMAT, "reserved");
    moe_put_u32(at(PACK_ID_TENSORS, 8 + 112 + 68), 63);
    expect_forged(MOE_ERR_FORMAT, "group");
    moe_put_u32(at(PACK_ID_TENSORS, 8 + 72), 0);
    expect_forged(MOE_ERR_FORMAT, "shape");
    moe_put_u32(at(PACK_ID_TENSORS, 8 + 72), 0xffffffff);
    expect_forged(MOE_ERR_FORMAT, "shape");
    moe_put_u32(at(PACK_ID_TENSORS, 8 + 76), 2);
    expect_forged(MOE_ERR_FORMAT, "vector");
    moe_put_u32(at(PACK_ID_TENSORS, 8 + 112 + 72), 1 << 24);
    expect_forged(MOE_ERR_FORMAT, "size");
    moe_put_u64(at(PACK_ID_TENSORS, 8 + 80), UINT64_C(0xfffffffffffff000));
    expect_forged(MOE_ERR_FORMAT, "size");
    moe_put_u64(at(PACK_ID_TENSORS, 8 + 80), 4097);
    expect_forged(MOE_ERR_FORMAT, "size");
    moe_put_u64(at(PACK_ID_TENSORS, 8 + 88), 0);
    expect_forged(MOE_ERR_FORMAT, "size");
    moe_put_u64(at(PACK_ID_TENSORS, 8 + 88), 1 << 20);
    expect_forged(MOE_ERR_FORMAT, "size");
    moe_put_u64(at(PACK_ID_TENSORS, 8 + 80), 8192);
    expect_forged(MOE_ERR_FORMAT, "overlap");
    moe_put_u64(at(PACK_ID_TENSORS, 8 + 104), 1);
    expect_forged(MOE_ERR_FORMAT, "tensor 'norm': checksum");
    /* A "compressed" extent that is no frame at all. */
    moe_put_u64(at(PACK_ID_TENSORS, 8 + 88), 100);
    moe_put_u64(at(PACK_ID_TENSORS, 8 + 104), moe_hash64(pack.data + 4096, 100));
    memset(pack.data + 4096 + 100, 0, 156);
    expect_forged(MOE_ERR_FORMAT, "zstd");
    /* Classes: counts, segment sizes, then matrix records of 32 bytes from byte 32 on. */
    moe_put_u32(at(PACK_ID_CLASSES, 0), 0x10000);
    expect_forged(MOE_ERR_FORMAT, "expert classes");
    moe_put_u32(at(PACK_ID_CLASSES, 0), 1);
    expect_forged(MOE_ERR_FORMAT, "bytes after");
    moe_put_u32(at(PACK_ID_CLASSES, 8), 5);
    expect_forged(MOE_ERR_VERSION, "more parts");
    moe_put_u32(at(PACK_ID_CLASSES, 8), 0);
    expect_forged(MOE_ERR_VERSION, "");
    moe_put_u64(at(PACK_ID_CLASSES, 16), 64);
    expect_forged(MOE_ERR_FORMAT, "inside its segment");
    moe_put_u64(at(PACK_ID_CLASSES, 16), moe_get_u64(section_at(PACK_ID_CLASSES) + 16) + 1);
    expect_forged(MOE_ERR_FORMAT, "multiple of 64");
    moe_put_u64(at(PACK_ID_CLASSES, 16), moe_get_u64(section_at(PACK_ID_CLASSES) + 16) + 64);
    expect_forged(MOE_ERR_FORMAT, "place or size");
    moe_put_u16(at(PACK_ID_CLASSES, 32), 9);
    expect_forged(MOE_ERR_VERSION, "parts");
    moe_put_u16(at(PACK_ID_CLASSES, 32), MOE_ROLE_UP);
    expect_forged(MOE_ERR_FORMAT, "same role");
    moe_put_u16(at(PACK_ID_CLASSES, 32), MOE_ROLE_UP_BIAS);
    expect_forged(MOE_ERR_FORMAT, "bias");
    moe_put_u16(at(PACK_ID_CLASSES, 34), 2);
    expect_forged(MOE_ERR_FORMAT, "inside its segment");
    moe_put_u16(at(PACK_ID_CLASSES, 36), 5);
    expect_forged(MOE_ERR_VERSION, "parts");
    moe_put_u16(at(PACK_ID_CLASSES, 38), 1);
    expect_forged(MOE_ERR_FORMAT, "reserved");
    moe_put_u64(at(PACK_ID_CLASSES, 56), UINT64_C(0xffffffffffffffc0));
    expect_forged(MOE_ERR_FORMAT, "inside its segment");
    moe_put_u64(at(PACK_ID_CLASSES, 56), 64);
    expect_forged(MOE_ERR_FORMAT, "overlap");
    /* Experts: records of 16 + 2 * 32 bytes. */
    moe_put_u32(at(PACK_ID_EXPERTS, 0), 0xffffffff);
    expect_forged(MOE_ERR_FORMAT, "table of experts");
    moe_put_u32(at(PACK_ID_EXPERTS, 0), 2);
    expect_forged(MOE_ERR_FORMAT, "table of experts");
    moe_put_u32(at(PACK_ID_EXPERTS, 8), 2);
    expect_forged(MOE_ERR_FORMAT, "out of range");
    moe_put_u32(at(PACK_ID_EXPERTS, 8 + 8), 1);
    expect_forged(MOE_ERR_FORMAT, "twice");
    moe_put_u32(at(PACK_ID_EXPERTS, 8 + 12), 7);
    expect_forged(MOE_ERR_FORMAT, "out of range");
    moe_put_u32(at(PACK_ID_EXPERTS, 8 + 12), 1);
    expect_forged(MOE_ERR_FORMAT, "layer 1 expert 0 variant 8 segment 0");
    moe_put_u64(at(PACK_ID_EXPERTS, 8 + 48), moe_get_u64(section_at(PACK_ID_EXPERTS) + 24));
    expect_forged(MOE_ERR_FORMAT, "segment 1");
    moe_put_u64(at(PACK_ID_EXPERTS, 8 + 40), 1);
    expect_forged(MOE_ERR_FORMAT, "layer 1 expert 0 variant 8 segment 0: checksum");
#undef at
}

/* Any byte of header and directory may hold anything: no crash, and no acceptance of a pack whose
 * weights would then be read from outside the file. */
static void forged_bytes_never_crash(void **state)
{
    (void)state;
    struct moe_err err = {0};
    write_pack(3);
    uint64_t begin = moe_get_u64(entry_of(PACK_ID_TENSORS) + 8);
    uint8_t *keep = malloc(pack.size);
    memcpy(keep, pack.data, pack.size);
    for (uint64_t i = 0; i < pack.size; i++) {
        if ((i >= MOE_PACK_HEADER_BYTES && i < begin) || (pack.data[i] == 0 && i % 31 != 0))
            continue;
        static const uint8_t values[] = {0x01, 0x80, 0xff};
        pack.data[i] ^= values[i % 3];
        pack_forge(pack.data, pack.size);
        (void)try_pack(&err);
        memcpy(pack.data, keep, pack.size);
    }
    free(keep);
}

static void other_files_are_explained(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_pack *p;
    assert_fails(moe_pack_open(&p, dir, &err), MOE_ERR_FORMAT, "not a checkpoint", &err);
    assert_fails(moe_pack_open(&p, BUNDLED "/tiny-moe/config.json", &err), MOE_ERR_FORMAT,
                 "not an expert pack", &err);
    assert_fails(moe_pack_open(&p, path, &err), MOE_ERR_IO, "cannot open", &err);
}

#define in_fresh_dir(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_fresh_dir(raw_pack_round_trips),        in_fresh_dir(compressed_pack_round_trips),
        in_fresh_dir(writer_refuses_nonsense),     in_fresh_dir(truncations_are_refused),
        in_fresh_dir(flipped_bits_are_found_raw),  in_fresh_dir(flipped_bits_are_found_compressed),
        in_fresh_dir(sparse_sections_are_refused), in_fresh_dir(forged_headers_are_refused),
        in_fresh_dir(maps_for_tolerances),         in_fresh_dir(the_optional_section),
        in_fresh_dir(forged_tables_are_refused),   in_fresh_dir(forged_bytes_never_crash),
        in_fresh_dir(other_files_are_explained),   in_fresh_dir(packs_are_read_from_images),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
