/*
 * log2 and 2^x by their own definition: additions, multiplications and divisions in this order, so
 * that decisions based on them are the same on every machine; C libraries differ in the last bit.
 * Compilers vectorize loops over the single-precision ones.
 */
#ifndef MOE_CACHE_EXACT_MATH_H
#define MOE_CACHE_EXACT_MATH_H

#include <stdint.h>
#include <string.h>

/* log2 of a positive normal number, with an error of 3e-7 relative to it or to 1. */
static inline float moe_exact_log2(float x)
{
    int32_t bits, exponent;
    float m;
    memcpy(&bits, &x, sizeof bits);
    exponent = (bits - 0x3f3504f3) >> 23; /* exponent of the nearest power of two by ratio */
    bits -= (int32_t)((uint32_t)exponent << 23);
    memcpy(&m, &bits, sizeof m); /* sqrt(1/2) to sqrt(2) */
    /* log2 m = 2 / ln 2 (t + t^3/3 + t^5/5 + ...) */
    float t = (m - 1.0f) / (m + 1.0f), s = t * t;
    float series = 2.88539008f + s * (0.961796694f + s * (0.577078016f + s * 0.412198583f));
    return (float)exponent + t * series;
}

/* 2^x, relative error 2e-7; x is clamped to -126 and 127. */
static inline float moe_exact_exp2(float x)
{
    float limited = x < -126.0f ? -126.0f : x > 127.0f ? 127.0f : x;
    int32_t whole = (int32_t)(limited + 127.5f) - 127; /* the nearest integer */
    int32_t bits = (int32_t)((uint32_t)(whole + 127) << 23);
    float f = limited - (float)whole, power;
    memcpy(&power, &bits, sizeof power);
    float series =
        0.693147181f +
        f * (0.240226507f + f * (0.0555041087f + f * (0.00961812911f +
                                                      f * (0.00133335581f + f * 0.000154035304f))));
    return power * (1.0f + f * series);
}

/* The same in double precision, with an error of 3e-16. */
static inline double moe_exact_log2_double(double x)
{
    static const double unit = 2.8853900817779268; /* 2 / ln 2 */
    int64_t bits, exponent;
    double m;
    memcpy(&bits, &x, sizeof bits);
    exponent = (bits - INT64_C(0x3fe6a09e667f3bcd)) >> 52;
    bits -= (int64_t)((uint64_t)exponent << 52);
    memcpy(&m, &bits, sizeof m);
    double t = (m - 1) / (m + 1), s = t * t, series = unit / 21;
    for (int n = 19; n > 0; n -= 2)
        series = unit / n + s * series;
    return (double)exponent + t * series;
}

/* Relative error 3e-16; x is clamped to -1022 and 1023. */
static inline double moe_exact_exp2_double(double x)
{
    double limited = x < -1022 ? -1022 : x > 1023 ? 1023 : x, power, series = 1;
    int64_t whole = (int64_t)(limited + 1023.5) - 1023;
    int64_t bits = (int64_t)((uint64_t)(whole + 1023) << 52);
    double y = (limited - (double)whole) * 0.69314718055994531;
    memcpy(&power, &bits, sizeof power);
    for (int n = 13; n > 0; n--) /* e^y = 1 + y (1 + y/2 (1 + y/3 (...))) */
        series = 1 + y * series / n;
    return power * series;
}

#endif
