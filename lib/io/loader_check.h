/*
 * One request's stored bytes verified and, where they are compressed, decoded: in small steps, so
 * that whoever takes them can turn to something else in between. Internal to io/.
 *
 * A step is CHECK_HASH_BYTES of checksum or one block of a zstd frame: 32 KiB of raw bytes in packs
 * of ours, at most 128 KiB by the format (some 40 and 150 microseconds). Blocks are decoded to
 * their place directly, there is no second copy. Different checks share nothing: several threads
 * may each take steps of their own.
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

    /* The request at work. */
    const uint8_t *stored;
    uint64_t stored_bytes, raw_bytes, checksum;
    void *to;
    bool verifying, decoding; /* still to do */
    uint64_t hashed;
    ZSTD_inBuffer in;
    ZSTD_outBuffer out;
    size_t wanted; /* input that the decoder asks for next */

    /* What came of it. */
    const char *problem; /* NULL: none so far */
    double verify_seconds, decode_seconds;
};

/* decodes: compressed requests will come. MOE_ERR_MEMORY. Later calls allocate nothing. */
int loader_check_open(struct loader_check *c, bool decodes, struct moe_err *err);
void loader_check_close(struct loader_check *c);

/* Begins with a request whose stored bytes are at `stored`, both borrowed until it is over. What
 * was begun before is given up. */
void loader_check_begin(struct loader_check *c, const struct moe_load *load, const uint8_t *stored,
                        bool verify);
bool loader_check_over(const struct loader_check *c);
/* The next step of one that is not over. */
void loader_check_step(struct loader_check *c);

#endif
