/*
 * Randomness that is the same everywhere: splitmix64 (Steele, Lea and Flood). Small and fast; good
 * enough to draw test data and to seed larger generators, not for secrets.
 */
#ifndef MOE_BASE_RANDOM_H
#define MOE_BASE_RANDOM_H

#include <stdint.h>

/* The next 64 bits of the stream; it may begin with any state. */
static inline uint64_t moe_random_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* The next of xoshiro256++ (Blackman and Vigna), whose state is seeded by the above. */
static inline uint64_t moe_random_xoshiro(uint64_t s[4])
{
    uint64_t sum = s[0] + s[3], result = (sum << 23 | sum >> 41) + s[0], t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = s[3] << 45 | s[3] >> 19;
    return result;
}

#endif
