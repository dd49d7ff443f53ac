#define _GNU_SOURCE /* _SC_LEVEL3_CACHE_SIZE */
#include "bench/read_rate.h"

#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/par.h"

enum { COLD_LEAST = 64 << 20, COLD_MOST = 512 << 20 };

static volatile uint64_t sink; /* sums go here so that they are computed */

/* Items of 256 bytes, in 32 sums that do not wait for each other. */
static void read_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const uint64_t *data = ctx;
    uint64_t sums[32] = {0}, sum = 0;
    for (const uint64_t *p = data + begin * 32; p < data + end * 32; p += 32)
        for (int i = 0; i < 32; i++)
            sums[i] += p[i];
    for (int i = 0; i < 32; i++)
        sum += sums[i];
    sink = sum;
}

double moe_read_rate(const void *data, uint64_t n_bytes)
{
    double began = moe_seconds();
    moe_par_for((int64_t)(n_bytes / 256), 256, read_range, (void *)(uintptr_t)data);
    return (double)n_bytes / (moe_seconds() - began);
}

uint64_t moe_cold_bytes(void)
{
    long cache = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
    cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    uint64_t bytes = cache > 0 ? 3 * (uint64_t)cache : COLD_LEAST;
    uint64_t available = moe_available_bytes();
    bytes = bytes < COLD_LEAST ? COLD_LEAST : bytes > COLD_MOST ? COLD_MOST : bytes;
    return available / 4 < bytes ? available / 4 : bytes;
}
