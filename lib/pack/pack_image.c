/* A pack's file in memory. */
#define _POSIX_C_SOURCE 200809L /* posix_fadvise */
#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "pack/pack.h"

enum { PIECE_BYTES = 16 << 20 };

int moe_pack_image_read(struct moe_pack_image *out, const char *path, uint64_t most,
                        bool (*stops)(void *ctx), void *ctx, struct moe_err *err)
{
    *out = (struct moe_pack_image){NULL, 0};
    uint64_t n;
    int fd = moe_file_open(path, &n, err);
    if (fd < 0)
        return fd;
    int status = MOE_OK;
    uint8_t *bytes = NULL;
    if (n > most)
        status = moe_fail(err, MOE_ERR_FORMAT,
                          "%s: has %" PRIu64 " bytes, more than the %" PRIu64 " it had before",
                          path, n, most);
    else if (!(bytes = moe_pages_alloc(moe_round_up(n, MOE_PACK_ALIGN), err)))
        status = MOE_ERR_MEMORY;
    for (uint64_t at = 0; status == MOE_OK && at < n; at += PIECE_BYTES) {
        uint64_t some = n - at < PIECE_BYTES ? n - at : PIECE_BYTES;
        status = stops && stops(ctx) ? moe_fail(err, MOE_ERR_INTERRUPTED, "stopped")
                                     : moe_file_pread(fd, path, bytes + at, some, at, err);
        posix_fadvise(fd, (off_t)at, (off_t)some, POSIX_FADV_DONTNEED);
    }
    close(fd);
    *out = (struct moe_pack_image){bytes, n};
    if (status != MOE_OK)
        moe_pack_image_free(out);
    return status;
}

void moe_pack_image_free(struct moe_pack_image *image)
{
    moe_pages_free((void *)(uintptr_t)image->bytes, moe_round_up(image->n, MOE_PACK_ALIGN));
    *image = (struct moe_pack_image){NULL, 0};
}
