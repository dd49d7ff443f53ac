/*
 * Verifies the stored bytes of one request and, if they are compressed, decodes them: in small
 * steps, so that the caller can do something else in between. Internal to io/.
 *
 * A step is CHECK_HASH_BYTES of checksum or one block of a zstd frame: 32 KiB of raw bytes in packs
 * of ours, at most 128 KiB by the format (about 40 and 150 microseconds). Blocks are decoded
 * directly to their place, without a second copy. Checks share nothing: each may be stepped by
 * another thread.
 */
#ifndef MOE_IO_LOADER_CHECK_H
#define MOE_IO_LOADER_CHECK_H

#include <stdbool.h>
#include <stdint.h>
#include <zstd.h>

#include "base/err.h"
#include "base/hash.h"
#include "io/loader.h"

enum {
    CHECK_HASH_BYTES = 256 * 1024,
    /* zstd 1.5: 94 KiB of tables, 128 KiB of input buffer, and the rest. */
    CHECK_DECODER_BYTES = 288 * 1024,
};

struct loader_check {
    struct moe_hasher *hasher;
    ZSTD_DCtx *decoder; /* NULL: no compressed requests */

    /* The present request. */
    const uint8_t *stored;
    uint64_t stored_bytes, raw_bytes, checksum;
    void *to;
    bool verifying, decoding; /* not finished */
    uint64_t hashed;
    ZSTD_inBuffer in;
    ZSTD_outBuffer out;
    size_t wanted; /* bytes of input that the decoder asks for next */

    /* The outcome. */
    const char *problem; /* NULL: none so far */
    double verify_seconds, decode_seconds;
};

/* decodes: whether compressed requests will come. MOE_ERR_MEMORY. Later calls allocate nothing. */
int loader_check_open(struct loader_check *c, bool decodes, struct moe_err *err);
void loader_check_close(struct loader_check *c);

/* Begins with a request whose stored bytes are at `stored`, both borrowed until it is over. Drops
 * what was begun before. */
void loader_check_begin(struct loader_check *c, const struct moe_load *load, const uint8_t *stored,
                        bool verify);
bool loader_check_over(const struct loader_check *c);
/* The next step of one that is not over. */
void loader_check_step(struct loader_check *c);

#endif
