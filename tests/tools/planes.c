/*
 * Keeps the weights of the bundled models small: planes pack FROM TO, planes unpack FROM TO. All
 * even bytes of the file, then all odd ones, as one frame of zstd: of 16-bit numbers the halves
 * with their exponents compress to a third, and those with the rest of their bits not at all.
 */
#include <stdio.h>
#include <string.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "base/buf.h"
#include "base/file.h"

enum { LEVEL = 17, WINDOW = 16, MOST_BYTES = 256 << 20 };

/* Even bytes to the first half, or back. */
static void exchange(const uint8_t *from, uint8_t *to, uint64_t n, bool back)
{
    for (uint64_t i = 0; i < n; i++) {
        uint64_t half = i / 2 + (i % 2 ? (n + 1) / 2 : 0);
        to[back ? i : half] = from[back ? half : i];
    }
}

/* The level and the window that make these weights smallest. */
static size_t compress(void *to, size_t room, const void *from, size_t n)
{
    ZSTD_CCtx *c = ZSTD_createCCtx();
    if (!c)
        return (size_t)-ZSTD_error_memory_allocation;
    ZSTD_CCtx_setParameter(c, ZSTD_c_compressionLevel, LEVEL);
    ZSTD_CCtx_setParameter(c, ZSTD_c_windowLog, WINDOW);
    n = ZSTD_compress2(c, to, room, from, n);
    ZSTD_freeCCtx(c);
    return n;
}

static int convert(const char *how, const char *from, const char *to, struct moe_err *err)
{
    const bool unpack = strcmp(how, "unpack") == 0;
    struct moe_buf in = {0}, planes = {0}, out = {0};
    int status = moe_file_read_all(from, MOST_BYTES, &in, err);
    uint64_t bytes = unpack ? ZSTD_getFrameContentSize(in.data, in.size) : in.size;
    uint64_t room = unpack ? bytes : ZSTD_compressBound(bytes);
    if (status == MOE_OK && bytes > MOST_BYTES)
        status = moe_fail(err, MOE_ERR_FORMAT, "%s: not a file that planes packed", from);
    if (status == MOE_OK && (!moe_buf_reserve(&planes, bytes) || !moe_buf_reserve(&out, room)))
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    if (status == MOE_OK) {
        size_t n;
        if (!unpack)
            exchange(in.data, planes.data, bytes, false);
        n = unpack ? ZSTD_decompress(planes.data, bytes, in.data, in.size)
                   : compress(out.data, room, planes.data, bytes);
        if (unpack)
            exchange(planes.data, out.data, bytes, true);
        status = ZSTD_isError(n)
                     ? moe_fail(err, MOE_ERR_FORMAT, "%s: %s", from, ZSTD_getErrorName(n))
                     : moe_file_write_all(to, out.data, n, err);
    }
    moe_buf_release(&in);
    moe_buf_release(&planes);
    moe_buf_release(&out);
    return status;
}

int main(int argc, char **argv)
{
    struct moe_err err;
    if (argc != 4 || (strcmp(argv[1], "pack") != 0 && strcmp(argv[1], "unpack") != 0)) {
        fprintf(stderr, "usage: planes pack|unpack FROM TO\n");
        return 2;
    }
    int status = convert(argv[1], argv[2], argv[3], &err);
    if (status != MOE_OK)
        fprintf(stderr, "planes: %s\n", err.text);
    return status == MOE_OK ? 0 : 1;
}
