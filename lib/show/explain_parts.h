/* What several explanations say in the same way. Internal to explain*.c. */
#ifndef MOE_SHOW_EXPLAIN_PARTS_H
#define MOE_SHOW_EXPLAIN_PARTS_H

#include "show/explain.h"

/* "39.5", "3.95"; "70.0%"; "?" for what is not known (below 0); "1.20 GB/s", "16.0 MB/s". Return
 * `room`. */
char *moe_show_speed(double tokens_per_second, char room[32]);
char *moe_show_percent(double share, char room[32]);
char *moe_show_rate(double bytes_per_second, char room[32]);

/* Slots of all pools. */
struct moe_explain_slots {
    uint64_t n_cache, n_working, cache_bytes, working_bytes;
    uint64_t n_experts; /* of all layers */
    double share;       /* n_cache / n_experts */
    double tokens;      /* cache_bytes / bytes of the experts that one token visits */
};
struct moe_explain_slots moe_explain_slots(const struct moe_plan *plan);

/* Layers [first, first + n): sums of slots, filled ones and waiting, means of the shares that are
 * known (below 0: none is). */
struct moe_explain_layers {
    bool own_slots; /* some pool shares its slots out among layers */
    uint64_t slots, filled;
    double hit_rate, accuracy, stall_seconds;
};
struct moe_explain_layers moe_explain_layers(const struct moe_plan *plan, uint32_t first,
                                             uint32_t n);

#endif
