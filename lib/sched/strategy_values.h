/*
 * Values of a strategy's parts as text, of those that are more than a flag or a number: what each
 * text means, and back. The reader and the writer of a part stand side by side. Private to sched/.
 */
#ifndef MOE_SCHED_STRATEGY_VALUES_H
#define MOE_SCHED_STRATEGY_VALUES_H

#include "sched/strategy.h"

struct moe_part_codec {
    /* false: the text is not a value of the part; *s is unchanged. */
    bool (*parse)(const char *text, struct moe_strategy *s);
    /* A text that `parse` turns into exactly the same value; at most `size` bytes with NUL. */
    void (*write)(const struct moe_strategy *s, char *out, size_t size);
};

extern const struct moe_part_codec moe_part_predict, moe_part_prefetch, moe_part_cache,
    moe_part_cache_weights, moe_part_alloc, moe_part_init, moe_part_on_miss, moe_part_prefer_cached,
    moe_part_prefill;

/* A whole number in least..most; false leaves *out untouched. */
bool moe_part_count(const char *text, uint32_t least, uint32_t most, uint32_t *out);
/* A share as a text that moe_parse_share reads back exactly: "25%", or "0.123456789" where a
 * percentage is not exact. */
void moe_part_share_text(double share, char *out, size_t size);

#endif
