/* What happens to a request when its reads are over: checksum, decoding, the report. */
#include <inttypes.h>

#include "base/clock.h"
#include "base/hash.h"
#include "io/loader_state.h"

void loader_ready_put(struct moe_loader *l, uint32_t item)
{
    struct loader_request *r = &l->requests[item];
    r->state = REQUEST_READY;
    r->next = MOE_LINK_NONE;
    if (l->first_ready == MOE_LINK_NONE)
        l->first_ready = item;
    else
        l->requests[l->last_ready].next = item;
    l->last_ready = item;
}

void loader_ready_remove(struct moe_loader *l, uint32_t item)
{
    uint32_t before = MOE_LINK_NONE;
    for (uint32_t i = l->first_ready; i != item; i = l->requests[i].next)
        before = i;
    if (before == MOE_LINK_NONE)
        l->first_ready = l->requests[item].next;
    else
        l->requests[before].next = l->requests[item].next;
    if (l->last_ready == item)
        l->last_ready = before;
}

void loader_forget(struct moe_loader *l, uint32_t item)
{
    struct loader_request *r = &l->requests[item];
    if (!l->stats.direct && r->bytes_in > 0)
        loader_file_forget(&l->file, r->load.offset, loader_read_bytes(&r->load));
    if (r->stored && loader_is_compressed(&r->load))
        staging_give(&l->staging, item);
    r->state = REQUEST_FREE;
    r->next = l->free_request;
    l->free_request = item;
    l->n_requests--;
}

/* ---- Checking and decoding ------------------------------------------------------------------- */

/* NULL, or what is wrong with the stored bytes of a zstd frame; then raw bytes are in place. One
 * frame and nothing behind it, of the size that the directory says. */
static const char *decode(struct moe_loader *l, const struct loader_request *r)
{
    const struct moe_load *load = &r->load;
    if (ZSTD_getFrameContentSize(r->stored, load->stored_bytes) != load->raw_bytes ||
        ZSTD_findFrameCompressedSize(r->stored, load->stored_bytes) != load->stored_bytes)
        return "its zstd frame has another size than the directory says";
    size_t got =
        ZSTD_decompressDCtx(l->decoder, load->to, load->raw_bytes, r->stored, load->stored_bytes);
    if (ZSTD_isError(got) || got != load->raw_bytes)
        return "its zstd frame cannot be decompressed";
    return NULL;
}

/* NULL when the raw bytes are in place and right. */
static const char *check(struct moe_loader *l, const struct loader_request *r)
{
    const char *problem = NULL;
    double start = moe_seconds();
    if (l->options.verify) {
        if (moe_hash64(r->stored, r->load.stored_bytes) != r->load.checksum)
            problem = "checksum mismatch";
        double now = moe_seconds();
        l->stats.verify_seconds += now - start;
        start = now;
    }
    if (!problem && loader_is_compressed(&r->load)) {
        problem = decode(l, r);
        l->stats.decode_seconds += moe_seconds() - start;
    }
    return problem;
}

/* Memory, the page cache or the transfer may be to blame rather than the file: once more, and from
 * the disk. */
static void read_again(struct moe_loader *l, uint32_t item)
{
    struct loader_request *r = &l->requests[item];
    if (!l->stats.direct)
        loader_file_forget(&l->file, r->load.offset, loader_read_bytes(&r->load));
    r->n_rereads++;
    l->stats.rereads++;
    loader_read_begin(l, item, moe_seconds());
}

bool loader_finish(struct moe_loader *l, uint32_t item, struct moe_load_done *done)
{
    struct loader_request *r = &l->requests[item];
    const char *problem = r->status == MOE_OK ? check(l, r) : NULL;
    loader_ready_remove(l, item);
    if (problem && r->n_rereads == 0) {
        read_again(l, item);
        return false;
    }
    if (problem)
        r->status = moe_fail(&l->error, MOE_ERR_FORMAT,
                             "%s: %" PRIu64 " bytes at offset %" PRIu64
                             ": %s (file damaged? run moe-quantize --verify)",
                             l->options.path, r->load.stored_bytes, r->load.offset, problem);
    *done = (struct moe_load_done){.tag = r->load.tag, .status = r->status};
    loader_forget(l, item);
    return true;
}

/* The first ready demand, else (if `any`) the first ready request; compressed ones only if
 * `decoding`. */
static uint32_t next_ready(const struct moe_loader *l, bool any, bool decoding)
{
    uint32_t found = MOE_LINK_NONE;
    for (uint32_t i = l->first_ready; i != MOE_LINK_NONE; i = l->requests[i].next) {
        const struct loader_request *r = &l->requests[i];
        if (!decoding && r->status == MOE_OK && loader_is_compressed(&r->load))
            continue;
        if (r->load.priority == MOE_LOAD_DEMAND)
            return i;
        if (any && found == MOE_LINK_NONE)
            found = i;
    }
    return found;
}

uint32_t loader_finish_some(struct moe_loader *l, struct moe_load_done *done, uint32_t max)
{
    uint32_t n = 0, item;
    bool any = true, decoding = true;
    while (n < max && (item = next_ready(l, any, decoding)) != MOE_LINK_NONE) {
        const struct loader_request *r = &l->requests[item];
        bool demand = r->load.priority == MOE_LOAD_DEMAND;
        if (r->status == MOE_OK && loader_is_compressed(&r->load))
            decoding = false;
        if (loader_finish(l, item, &done[n])) {
            n++;
            if (demand) /* do not keep it waiting for the checksums of prefetches */
                any = false;
        }
    }
    return n;
}
