/*
 * The texts of a strategy's parts that are more than a flag or a number, private to sched/: what
 * each option's argument means, and back. Reader and writer of a part stand side by side.
 */
#ifndef MOE_SCHED_STRATEGY_VALUES_H
#define MOE_SCHED_STRATEGY_VALUES_H

#include "sched/strategy.h"

struct moe_part_codec {
    /* false: the text is none of its; *s is as it was. */
    bool (*parse)(const char *text, struct moe_strategy *s);
    /* An argument that `parse` turns into exactly the same; at most `size` bytes with NUL. */
    void (*write)(const struct moe_strategy *s, char *out, size_t size);
};

extern const struct moe_part_codec moe_part_predict, moe_part_prefetch, moe_part_cache,
    moe_part_cache_weights, moe_part_alloc, moe_part_init, moe_part_on_miss, moe_part_prefill;

/* A whole number in least..most; false leaves *out untouched. */
bool moe_part_count(const char *text, uint32_t least, uint32_t most, uint32_t *out);
/* A share as moe_parse_share reads it back exactly: "25%", or "0.123456789" where percents are not
 * exact. */
void moe_part_share_text(double share, char *out, size_t size);

#endif
