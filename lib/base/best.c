#include "base/best.h"

#include <string.h>

void moe_best(const float *values, uint32_t n, uint32_t k, uint32_t *best)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (found == 0 || !(values[i] > values[best[found - 1]])) {
            if (found < k)
                best[found++] = i;
            continue;
        }
        /* It goes after all that are not smaller: bisected without unpredictable branches. */
        uint32_t at = 0;
        for (uint32_t left = found; left > 0;) {
            uint32_t half = left / 2, after = !(values[i] > values[best[at + half]]);
            at += after * (half + 1);
            left = half - after * (1 - left % 2);
        }
        found += found < k;
        memmove(best + at + 1, best + at, (found - 1 - at) * sizeof *best);
        best[at] = i;
    }
}
