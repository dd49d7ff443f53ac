#define _POSIX_C_SOURCE 200809L /* posix_fadvise */
#include "bench/coe_loads.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "gpu.h"

/* What of the file the system keeps in memory goes. */
static int forget_file(const char *path, struct moe_err *err)
{
    uint64_t size;
    int fd = moe_file_open(path, &size, err);
    if (fd < 0)
        return fd;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    return MOE_OK;
}

int moe_coe_measure_load(struct moe_coe_load *out, const char *path,
                         const struct moe_engine_options *options,
                         const struct moe_progress *progress, struct moe_err *err)
{
    struct moe_engine_options o = *options;
    struct moe_pack_image image = {NULL, 0};
    *out = (struct moe_coe_load){0};
    struct moe_gpu_info info = {.unified = true};
    if (o.device.cuda)
        moe_gpu_describe(o.device.index, &info);
    bool apart = !info.unified;
    int status = forget_file(path, err);
    double began = moe_seconds(), read = began, opened;
    if (status == MOE_OK && apart) {
        status = moe_pack_image_read(&image, path, UINT64_MAX, NULL, NULL, err);
        read = moe_seconds();
        o.image = &image;
    }
    for (int i = 0; i < (apart ? 2 : 1) && status == MOE_OK; i++) {
        struct moe_engine *e = NULL;
        double from = moe_seconds();
        status = moe_engine_open(&e, path, &o, progress, err);
        opened = moe_seconds() - from;
        if (status == MOE_OK)
            out->bytes = e->gpu ? e->budget.gpu.dense + e->budget.gpu.experts
                                : e->budget.dense + e->budget.experts;
        *(i ? &out->host : &out->disk) = opened + (i ? 0 : read - began);
        moe_engine_close(e);
    }
    moe_pack_image_free(&image);
    return status;
}
