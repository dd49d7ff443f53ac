/*
 * The mark of a pack whose weights were drawn: the member "synthesized" of its provenance, an
 * object. What is not sound JSON marks nothing: a pack is sound without a provenance.
 */
#include <string.h>

#include "fmt/json_scan.h"
#include "pack/pack.h"

/* The object's members. */
static void read_mark(struct moe_json_scan *s, struct moe_pack_synthesized *out)
{
    struct moe_buf key = {0};
    moe_json_scan_enter(s);
    while (moe_json_scan_next(s, &key)) {
        uint64_t n;
        const char *value = moe_json_scan_raw(s, &n);
        if (strcmp((const char *)key.data, "sparse") == 0 && value)
            out->sparse = n == 4 && memcmp(value, "true", 4) == 0;
    }
    moe_buf_release(&key);
}

struct moe_pack_synthesized moe_pack_synthesized(const struct moe_pack *pack)
{
    struct moe_pack_synthesized out = {0};
    struct moe_json_scan s;
    struct moe_err ignored;
    struct moe_buf key = {0};
    uint64_t n;
    const uint8_t *text = moe_pack_section(pack, MOE_PACK_PROVENANCE, &n);
    if (n == 0 || text[0] != '{')
        return out;
    moe_json_scan_begin(&s, moe_pack_path(pack), text, n, false, &ignored);
    moe_json_scan_enter(&s);
    while (moe_json_scan_next(&s, &key)) {
        out.is |= strcmp((const char *)key.data, "synthesized") == 0;
        if (strcmp((const char *)key.data, "synthesized") == 0 &&
            moe_json_scan_peek(&s) == MOE_JSON_OBJECT)
            read_mark(&s, &out);
        else
            moe_json_scan_skip(&s);
    }
    moe_buf_release(&key);
    moe_json_scan_end(&s);
    return out;
}

int moe_pack_check_meant(const struct moe_pack *pack, struct moe_err *err)
{
    if (!moe_pack_synthesized(pack).is)
        return MOE_OK;
    return moe_fail(
        err, MOE_ERR_USAGE,
        "%s: its weights were drawn by moe-quantize --synthesize, so what it says is no "
        "text; moe-run --bench measures how it runs",
        moe_pack_path(pack));
}
