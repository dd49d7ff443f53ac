/* A fault of moe_loader_options that is none: a quarter of the reads take up to 0.2 ms longer. */
#ifndef TESTS_LOAD_DELAY_H
#define TESTS_LOAD_DELAY_H

#include <time.h>

#include "test.h"

/* ctx: a uint64_t that the delays are drawn from. */
static inline int delay(void *ctx, uint64_t offset, uint64_t n_bytes)
{
    uint64_t random = *(const uint64_t *)ctx ^ offset;
    const struct timespec pause = {0, (long)(test_random(&random) % 200000)};
    (void)n_bytes;
    if (test_random(&random) % 4 == 0)
        nanosleep(&pause, NULL);
    return 0;
}

#endif
