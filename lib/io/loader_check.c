#include "io/loader_check.h"

#include "base/clock.h"

/* Makes the decoder allocate its input buffer now, which it does with the first frame that comes
 * piece by piece: decodes a frame of one byte, with the window that a block of 128 KiB needs. */
static size_t prime(ZSTD_DCtx *decoder)
{
    static const uint8_t frame[] = {0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38, 0x0b, 0x00, 0x00, 0x00};
    uint8_t byte;
    ZSTD_inBuffer in = {frame, sizeof frame, 0};
    ZSTD_outBuffer out = {&byte, 1, 0};
    return ZSTD_decompressStream(decoder, &out, &in);
}

static ZSTD_DCtx *new_decoder(void)
{
    ZSTD_DCtx *decoder = ZSTD_createDCtx();
    if (!decoder)
        return NULL;
    /* A frame compressed in one call has a window as large as its contents. Any size is allowed,
     * for it costs no memory when blocks are decoded to their place (experimental parameter 2: the
     * output buffer stays the same). */
    ZSTD_bounds window = ZSTD_dParam_getBounds(ZSTD_d_windowLogMax);
    if (ZSTD_isError(ZSTD_DCtx_setParameter(decoder, ZSTD_d_windowLogMax, window.upperBound)) ||
        ZSTD_isError(ZSTD_DCtx_setParameter(decoder, ZSTD_d_experimentalParam2, 1)) ||
        prime(decoder) != 0) {
        ZSTD_freeDCtx(decoder);
        return NULL;
    }
    return decoder;
}

int loader_check_open(struct loader_check *c, bool decodes, struct moe_err *err)
{
    *c = (struct loader_check){.hasher = moe_hasher_new()};
    if (decodes)
        c->decoder = new_decoder();
    if (c->hasher && (!decodes || c->decoder))
        return MOE_OK;
    loader_check_close(c);
    return moe_fail(err, MOE_ERR_MEMORY, "out of memory for a decoder");
}

void loader_check_close(struct loader_check *c)
{
    moe_hasher_free(c->hasher);
    ZSTD_freeDCtx(c->decoder);
    *c = (struct loader_check){0};
}

void loader_check_begin(struct loader_check *c, const struct moe_load *load, const uint8_t *stored,
                        bool verify)
{
    *c = (struct loader_check){
        .hasher = c->hasher,
        .decoder = c->decoder,
        .stored = stored,
        .stored_bytes = load->stored_bytes,
        .raw_bytes = load->raw_bytes,
        .checksum = load->checksum,
        .to = load->to,
        .verifying = verify,
        .decoding = load->stored_bytes != load->raw_bytes,
    };
    if (verify)
        moe_hasher_begin(c->hasher);
}

bool loader_check_over(const struct loader_check *c)
{
    return c->problem || (!c->verifying && !c->decoding);
}

static void verify_some(struct loader_check *c)
{
    uint64_t left = c->stored_bytes - c->hashed;
    uint64_t n = left < CHECK_HASH_BYTES ? left : CHECK_HASH_BYTES;
    moe_hasher_add(c->hasher, c->stored + c->hashed, n);
    c->hashed += n;
    if (n < left)
        return;
    c->verifying = false;
    if (moe_hasher_end(c->hasher) != c->checksum)
        c->problem = "checksum mismatch";
}

/* Begins a frame, if it is the only one and of the size that the directory states. */
static void begin_frame(struct loader_check *c)
{
    if (ZSTD_getFrameContentSize(c->stored, c->stored_bytes) != c->raw_bytes ||
        ZSTD_findFrameCompressedSize(c->stored, c->stored_bytes) != c->stored_bytes)
        c->problem = "its zstd frame has another size than the directory says";
    c->in = (ZSTD_inBuffer){c->stored, 0, 0};
    c->out = (ZSTD_outBuffer){c->to, c->raw_bytes, 0};
    c->wanted = ZSTD_initDStream(c->decoder);
}

/* The next block. The decoder gets only what it asks for: given more, it would decode all of it. */
static void decode_block(struct loader_check *c)
{
    uint64_t left = c->stored_bytes - c->in.pos;
    size_t before = c->out.pos;
    while (c->wanted > 0 && left > 0 && c->out.pos == before) {
        c->in.size = c->in.pos + (c->wanted < left ? c->wanted : left);
        c->wanted = ZSTD_decompressStream(c->decoder, &c->out, &c->in);
        if (ZSTD_isError(c->wanted))
            break;
        left = c->stored_bytes - c->in.pos;
    }
    if (c->wanted > 0 && (left > 0 && !ZSTD_isError(c->wanted)))
        return;
    c->decoding = false;
    if (c->wanted != 0 || left > 0 || c->out.pos != c->raw_bytes)
        c->problem = "its zstd frame cannot be decompressed";
}

void loader_check_step(struct loader_check *c)
{
    double start = moe_seconds();
    if (c->verifying) {
        verify_some(c);
        c->verify_seconds += moe_seconds() - start;
        return;
    }
    if (!c->in.src)
        begin_frame(c);
    if (!c->problem)
        decode_block(c);
    c->decode_seconds += moe_seconds() - start;
}
