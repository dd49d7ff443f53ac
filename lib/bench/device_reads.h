/*
 * Where the loads of the device bench come from and go to: whole experts of a pack, or a scratch
 * file; buffers as a run's slots are.
 */
#ifndef MOE_BENCH_DEVICE_READS_H
#define MOE_BENCH_DEVICE_READS_H

#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"
#include "io/loader.h"
#include "pack/pack.h"

enum { DEVICE_IN_FLIGHT = 8 }; /* loads at a time, at most */

struct device_place {
    uint64_t offset, n_bytes;
};

struct device_reads {
    int fd;
    bool own_fd;
    const char *path;
    struct device_place *places;
    uint64_t n, largest, random;
    uint8_t *buffers; /* n_buffers of `largest` bytes, used in turn */
    uint64_t n_buffers, next_buffer;
    struct moe_loader *loader; /* of DEVICE_IN_FLIGHT requests, which checks nothing */
};

/* Of the pack's experts; of a scratch file in `dir` where there is none, or `dir` is given. *r is
 * zero but for fd, -1. Whatever it returns, device_reads_close releases. */
int device_reads_open(struct device_reads *r, const struct moe_pack *pack, const char *dir,
                      const struct moe_progress *progress, struct moe_err *err);
void device_reads_close(struct device_reads *r);

/* On average over the places. */
uint64_t device_reads_mean_bytes(const struct device_reads *r);
/* The next buffer: of `largest` bytes, not used again before many others. */
uint8_t *device_reads_buffer(struct device_reads *r);
/* Requests a random place, or its first n_bytes, as load `number` of those in flight: tag's upper
 * 16 bits, the lower are how many bytes. */
int device_reads_submit(struct device_reads *r, uint32_t number, uint64_t n_bytes,
                        struct moe_err *err);
/* Waits for n loads of `l`; *first, if not NULL: when one of them had come. */
int device_reads_wait(struct device_reads *r, struct moe_loader *l, uint32_t n, double *first,
                      struct moe_err *err);

#endif
