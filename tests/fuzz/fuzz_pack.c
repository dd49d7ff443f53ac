/*
 * An expert pack. Packs are mostly padding and refuse a wrong checksum at once, so the input is
 * squeezed and the checksums are put right: a sequence of pages of 4096 bytes, each as a u16 with
 * the number of bytes that follow, the rest zeros. make_fuzz_seeds writes such inputs. With
 * the bits below added to the first number a checksum is left wrong. An input without a page stands
 * for what is no pack by its name.
 */
/* Readers: pack/pack.c */
#define _GNU_SOURCE
#include "../pack_forge.h"
#include "mutate.h"
#include "pack/pack.h"
#include "show/show.h"

enum { PAGE = 4096, MAX_PAGES = 64 };
enum {
    WRONG_HEADER = 1 << 15,
    WRONG_SECTION = 1 << 14,
    WRONG_FINGERPRINT = 1 << 13,
    LENGTHS = 1 << 13
};

/* Returns the number of pages made. */
static uint64_t expand(const uint8_t *data, size_t n, uint8_t *pages)
{
    struct moe_cursor c = moe_cursor_over(data, n);
    uint64_t n_pages = 0;
    while (n_pages < MAX_PAGES && moe_cursor_left(&c) >= 2) {
        uint64_t bytes = moe_cursor_u16(&c) % LENGTHS % (PAGE + 1);
        if (bytes > moe_cursor_left(&c))
            bytes = moe_cursor_left(&c);
        uint8_t *page = pages + n_pages++ * PAGE;
        memset(page, 0, PAGE);
        if (bytes)
            memcpy(page, moe_cursor_take(&c, bytes), bytes);
    }
    return n_pages;
}

/* Puts the checksum of an extent right where the tables give its offset and sizes. */
static void forge_extent(const struct moe_extent *e, uint8_t *pages, uint64_t bytes)
{
    uint8_t key[24];
    moe_put_u64(key, e->offset);
    moe_put_u64(key + 8, e->stored_bytes);
    moe_put_u64(key + 16, e->raw_bytes);
    uint8_t *at = memmem(pages, bytes, key, sizeof key);
    if (at && at + 32 <= pages + bytes)
        moe_put_u64(at + 24, moe_hash64(pages + e->offset, e->stored_bytes));
}

/* Calls `use` with every extent of the pack. */
static void each_extent(const struct moe_pack *pack,
                        void (*use)(const struct moe_extent *e, uint8_t *data, uint64_t n),
                        uint8_t *data, uint64_t n)
{
    for (uint32_t i = 0; i < moe_pack_n_tensors(pack); i++)
        use(&moe_pack_tensor_at(pack, i)->extent, data, n);
    for (uint32_t layer = 0; layer < moe_pack_n_layers(pack); layer++)
        for (uint32_t e = 0; e < moe_pack_n_experts(pack); e++)
            for (uint32_t v = 0; v < moe_pack_n_variants(pack); v++) {
                const struct moe_expert_extent *x = moe_pack_expert(pack, layer, e, v);
                moe_pack_usable_variant(pack, layer, e, v);
                for (uint32_t s = 0;
                     x->present && s < moe_pack_class_at(pack, x->class_index)->n_segments; s++)
                    use(&x->segments[s], data, n);
            }
}

/* What verifies can be read, and by its name. */
static void read_tensors(const struct moe_pack *pack)
{
    static uint8_t room[1 << 16];
    struct moe_err err;
    struct moe_bits bits;
    for (uint32_t i = 0; i < moe_pack_n_tensors(pack); i++) {
        const struct moe_pack_tensor *t = moe_pack_tensor_at(pack, i);
        if (moe_pack_tensor_find(pack, t->name) != t ||
            (t->extent.raw_bytes <= sizeof room &&
             moe_pack_read(pack, &t->extent, room, t->name, &err) != MOE_OK))
            abort();
    }
    for (uint32_t v = 0; v < moe_pack_n_variants(pack); v++)
        moe_variant_bits(moe_pack_variant_at(pack, v), &bits);
    for (uint32_t c = 0; c < moe_pack_n_classes(pack); c++) {
        const uint8_t *segments[MOE_PACK_MAX_SEGMENTS] = {room, room};
        struct moe_mat matrix;
        for (uint16_t role = MOE_ROLE_GATE; role <= MOE_ROLE_DOWN_BIAS; role++)
            moe_class_matrix_view(moe_pack_class_at(pack, c), role, segments, &matrix);
    }
}

/* A directory, a checkpoint's weights, nothing at all. */
static void open_others(void)
{
    static const char *const names[] = {"", "x.safetensors", "missing"};
    struct moe_err err;
    struct moe_pack *pack;
    char weights[96], path[96];
    fuzz_path("x.safetensors", weights);
    fuzz_put_file(weights, "no pack", 7);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        fuzz_path(names[i], path);
        if (FUZZ_TRY(moe_pack_open(&pack, path, &err)) == MOE_OK)
            abort();
    }
    unlink(weights);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static uint8_t pages[MAX_PAGES * PAGE];
    static struct moe_pack_summary summary;
    n = fuzz_begin(data, n);
    uint64_t bytes = expand(data, n, pages) * PAGE;
    uint16_t wrong = n < 2 ? 0 : moe_get_u16(data);
    struct moe_err err;
    struct moe_pack *pack;
    if (bytes == 0)
        open_others();
    pack_forge(pages, bytes);
    if (wrong < LENGTHS) {
        if (moe_pack_open(&pack, fuzz_file(pages, bytes), &err) != MOE_OK)
            return 0;
        each_extent(pack, forge_extent, pages, bytes);
        pack_forge(pages, bytes);
        moe_pack_close(pack);
    } else if (bytes) {
        pages[PACK_TABLE_AT + 24] ^= (wrong & WRONG_SECTION) != 0;
        moe_put_u64(pages + 40, moe_hash64_chain(moe_get_u64(pages + 48), pages + PACK_TABLE_AT,
                                                 moe_get_u32(pages + 12) % (PACK_MAX_SECTIONS + 1) *
                                                     (uint64_t)PACK_SECTION_ENTRY_BYTES));
        pages[40] ^= (wrong & WRONG_FINGERPRINT) != 0;
        moe_put_u64(pages + PACK_CHECKSUM_AT, moe_hash64(pages, PACK_CHECKSUM_AT));
        pages[PACK_CHECKSUM_AT] ^= (wrong & WRONG_HEADER) != 0;
    }
    if (FUZZ_TRY(moe_pack_open(&pack, fuzz_file(pages, bytes), &err)) != MOE_OK)
        return 0;
    struct moe_buf text = {0};
    if (FUZZ_TRY(moe_pack_verify(pack, NULL, NULL, &err)) == MOE_OK &&
        FUZZ_TRY(moe_pack_summarize(pack, &summary, &err)) == MOE_OK) {
        read_tensors(pack);
        moe_show_pack(&summary, true, &text);
        moe_show_pack_bits(&summary, (struct moe_screen){200, true, true}, &text);
        moe_show_pack_json(&summary, true, &text, &err);
    }
    moe_buf_release(&text);
    moe_pack_close(pack);
    return 0;
}

FUZZ_MUTATE_PIECES(.head = 2, .length_bytes = 2)
