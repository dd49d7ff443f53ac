/* The best of many scores. */
#include "base/rank.h"

#include <string.h>

enum { FEW = 4, SOME = 8, MANY = 512 };

/* Maps a value to a number that is larger for a larger value and, among equal ones (0 and -0 are
 * equal), for a lower index. NaNs are the smallest. */
static uint64_t rank_key_of(float value, uint32_t index)
{
    uint32_t bits = 0;
    value += 0.0f; /* -0 becomes 0 */
    memcpy(&bits, &value, sizeof bits);
    bits = bits >> 31 ? ~bits : bits | UINT32_C(1) << 31;
    bits = value == value ? bits : 0;
    return (uint64_t)bits << 32 | (UINT32_MAX - index);
}

/* Passes every value, or those that are listed in rising order, through all `most` places, a number
 * the compiler knows, and orders each pair: no branch depends on the values, which no processor
 * could predict. */
static inline void best_of_few(const float *values, const uint16_t *listed, uint32_t n,
                               uint32_t most, uint32_t k, uint32_t *best)
{
    uint64_t found[SOME] = {0};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t index = listed ? listed[i] : i;
        uint64_t next = rank_key_of(values[index], index);
        for (uint32_t j = 0; j < most; j++) {
            uint64_t larger = found[j] > next ? found[j] : next;
            next = found[j] > next ? next : found[j];
            found[j] = larger;
        }
    }
    for (uint32_t j = 0; j < k; j++)
        best[j] = UINT32_MAX - (uint32_t)found[j];
}

/* Lists the values above 0, as few are where the others are not known; returns how many. */
static uint32_t list_positive(const float *values, uint32_t n, uint16_t *listed)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < n; i++) {
        listed[found] = (uint16_t)i;
        found += values[i] > 0;
    }
    return found;
}

static void best_of_many(const float *values, const uint16_t *listed, uint32_t n, uint32_t k,
                         uint32_t *best)
{
    uint32_t found = 0;
    for (uint32_t at_list = 0; at_list < n; at_list++) {
        uint32_t i = listed ? listed[at_list] : at_list;
        if (found == 0 || !(values[i] > values[best[found - 1]])) {
            if (found < k)
                best[found++] = i;
            continue;
        }
        /* Its place is after all that are not smaller: bisected without unpredictable branches. */
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

void moe_best(const float *values, uint32_t n, uint32_t k, uint32_t *best)
{
    uint16_t positive[MANY], *listed = NULL;
    if (k > 1 && n <= MANY) {
        uint32_t n_positive = list_positive(values, n, positive);
        if (n_positive >= k && n_positive <= n / 2) {
            listed = positive;
            n = n_positive;
        }
    }
    if (k > SOME || k <= 1 || n > 64 * k) /* few of many values change the best */
        best_of_many(values, listed, n, k, best);
    else if (k > FEW)
        best_of_few(values, listed, n, SOME, k, best);
    else
        best_of_few(values, listed, n, FEW, k, best);
}

/* Maps a value to a whole number of the same order. */
static uint32_t order_of(float value)
{
    uint32_t bits;
    value += 0.0f; /* -0 becomes 0 */
    memcpy(&bits, &value, sizeof bits);
    return bits >> 31 ? ~bits : bits | 1u << 31;
}

/* Finds the k-th largest number, highest byte first: counts the next byte of those that agree so
 * far. *n_equal: how many of its equals are among the k. */
static uint32_t kth_order(const float *values, uint32_t n, uint32_t k, uint32_t *n_equal)
{
    uint32_t found = 0, mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        uint32_t counts[256] = {0}, byte = 255;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t order = order_of(values[i]);
            if ((order & mask) == found)
                counts[order >> shift & 255]++;
        }
        for (; counts[byte] < k; byte--)
            k -= counts[byte];
        found |= byte << shift;
        mask |= 255u << shift;
    }
    *n_equal = k;
    return found;
}

void moe_best_places(const float *values, uint32_t n, uint32_t k, uint32_t *places)
{
    uint32_t n_equal, n_found = 0, least = kth_order(values, n, k, &n_equal);
    for (uint32_t i = 0; i < n && n_found < k; i++) {
        uint32_t order = order_of(values[i]);
        if (order < least || (order == least && n_equal == 0))
            continue;
        n_equal -= order == least;
        places[n_found++] = i;
    }
}
