/*
 * An expert pack. Packs are mostly padding and refuse a wrong checksum at once, so the input is
 * squeezed and the checksums are put right: a sequence of pages of 4096 bytes, each as a u16 with
 * the number of bytes that follow, the rest zeros. make_fuzz_seeds writes such inputs. With
 * AS_IT_STANDS added to the first number the checksums are not put right.
 */
/* Readers: fmt/pack.c fmt/pack_bits.c fmt/pack_open.c fmt/pack_tables.c */
/* Readers: fmt/pack_verify.c */
#define _GNU_SOURCE
#include "../pack_forge.h"
#include "fmt/pack.h"
#include "mutate.h"
#include "show/show_pack.h"

enum { PAGE = 4096, MAX_PAGES = 64, AS_IT_STANDS = 1 << 15 };

/* Returns the number of pages made. */
static uint64_t expand(const uint8_t *data, size_t n, uint8_t *pages)
{
    struct moe_cursor c = moe_cursor_over(data, n);
    uint64_t n_pages = 0;
    while (n_pages < MAX_PAGES && moe_cursor_left(&c) >= 2) {
        uint64_t bytes = moe_cursor_u16(&c) % AS_IT_STANDS % (PAGE + 1);
        if (bytes > moe_cursor_left(&c))
            bytes = moe_cursor_left(&c);
        uint8_t *page = pages + n_pages++ * PAGE;
        memset(page, 0, PAGE);
        if (bytes)
            memcpy(page, moe_cursor_take(&c, bytes), bytes);
    }
    return n_pages;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static uint8_t pages[MAX_PAGES * PAGE];
    static struct moe_pack_summary summary;
    uint64_t bytes = expand(data, n, pages) * PAGE;
    if (n < 2 || moe_get_u16(data) < AS_IT_STANDS)
        pack_forge(pages, bytes);
    struct moe_err err;
    struct moe_pack *pack;
    if (moe_pack_open(&pack, fuzz_file(pages, bytes), &err) != MOE_OK)
        return 0;
    struct moe_buf text = {0};
    if (moe_pack_verify(pack, NULL, NULL, &err) == MOE_OK &&
        moe_pack_summarize(pack, &summary, &err) == MOE_OK) {
        moe_show_pack(pack, &summary, true, &text);
        moe_show_pack_bits(pack, &summary, true, &text);
        moe_show_pack_json(pack, &summary, true, &text, &err);
    }
    moe_buf_release(&text);
    moe_pack_close(pack);
    return 0;
}

FUZZ_MUTATE_PIECES(.head = 2, .length_bytes = 2)
