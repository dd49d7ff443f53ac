/*
 * Values of command lines and UTF-8: each line of the input, the first few, is tried as every kind
 * of value. What is accepted comes back the same from the text that is written for it.
 */
/* Readers: base/text.c quant/bits.c sched/strategy.c */
#define _GNU_SOURCE
#include <math.h>

#include "base/cpu.h"
#include "base/text.h"
#include "mutate.h"
#include "quant/bits.h"
#include "sched/exactness.h"
#include "sched/strategy.h"

enum { MOST_LINES = 32 };

static void try_numbers(const char *text)
{
    uint64_t whole, again;
    double real;
    struct moe_bits bits, same;
    char out[32];
    if (moe_parse_bytes(text, &whole) && whole < UINT64_C(1) << 60) { /* no EiB */
        /* As people see it: within half of the last digit. */
        if (!moe_parse_bytes(text, &again) || again != whole)
            abort();
        char *blank = strchr(moe_format_bytes(whole, out), ' ');
        memmove(blank, blank + 1, strlen(blank));
        if (!moe_parse_bytes(out, &again) ||
            fabs((double)again - (double)whole) > 0.006 * (double)whole)
            abort();
    }
    if (moe_parse_rate(text, &real) && !(real > 0 && isfinite(real)))
        abort();
    if (moe_parse_share(text, &real) && !(real >= 0 && isfinite(real)))
        abort();
    if (moe_parse_double(text, &real) && !isfinite(real))
        abort();
    if (moe_parse_u64(text, &whole)) {
        snprintf(out, sizeof out, "%llu", (unsigned long long)whole);
        if (!moe_parse_u64(out, &again) || again != whole)
            abort();
    }
    if (moe_parse_variant(text, &bits)) {
        moe_format_bits(bits, out);
        if (!moe_parse_variant(out, &same) || !moe_bits_equal(bits, same))
            abort();
    }
    moe_cpu_level_parse(text);
}

/* A part as "PART=VALUE": what is accepted is written as a text that sets the same. */
static void try_part(struct moe_strategy *s, enum moe_part part, const char *value)
{
    struct moe_strategy again = {0};
    char text[MOE_PART_TEXT_BYTES], second[MOE_PART_TEXT_BYTES];
    if (!moe_strategy_set(s, part, value, NULL))
        return;
    moe_strategy_part_text(s, part, text);
    if (!moe_strategy_set(&again, part, text, NULL))
        abort();
    moe_strategy_part_text(&again, part, second);
    if (strcmp(text, second) != 0)
        abort();
    moe_strategy_has(s, part);
    moe_strategy_part_inexact(s, part);
}

static void try_strategy(const char *text)
{
    struct moe_strategy s = {0}, again;
    struct moe_err err;
    struct moe_buf options = {0};
    uint32_t named;
    char brief[MOE_STRATEGY_BRIEF], second[MOE_STRATEGY_BRIEF];
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++)
        try_part(&s, part, text);
    if (moe_strategy_parse(text, &s, &named, &err) != MOE_OK)
        return;
    moe_strategy_brief(&s, brief);
    if (strlen(brief) + 1 < sizeof brief) { /* not cut off */
        if (moe_strategy_parse(brief, &again, &named, &err) != MOE_OK)
            abort();
        moe_strategy_brief(&again, second);
        if (strcmp(brief, second) != 0)
            abort();
    }
    moe_strategy_describe(&s, &options);
    moe_strategy_drop_idle(&s, named);
    if (moe_strategy_settle(&s, &err) == MOE_OK) {
        moe_strategy_fall_back(&s);
        moe_strategy_load_instead(&s);
        moe_strategy_fit(&s, 24, NULL);
        if (moe_strategy_settle(&s, &err) != MOE_OK)
            abort(); /* stays settled */
    }
    moe_buf_release(&options);
}

/* Decoded and encoded again; whole characters are counted as they are decoded. */
static void try_utf8(const uint8_t *data, size_t n)
{
    uint8_t bytes[4];
    bool valid = true;
    int length;
    for (size_t at = 0; at < n; at += (size_t)length) {
        uint32_t c = moe_utf8_decode(data + at, n - at, &length);
        if (length < 1 || (size_t)length > n - at)
            abort();
        if (c == 0xfffd && length == 1)
            valid = false;
        else if (moe_utf8_encode(c, bytes) != length || memcmp(bytes, data + at, (size_t)length))
            abort();
    }
    if (moe_utf8_valid(data, n) != valid)
        abort();
    uint64_t complete = moe_utf8_complete(data, n);
    if (complete > n || n - complete > 3 || (valid && complete != n))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *text = fuzz_text(data, n);
    try_utf8(data, n);
    int lines = 0;
    for (char *rest = text, *line; lines++ < MOST_LINES && (line = strsep(&rest, "\n"));) {
        try_numbers(line);
        try_strategy(line);
    }
    free(text);
    return 0;
}

FUZZ_MUTATE_TEXT
