#include "show/explain_parts.h"

#include <stdio.h>
#include <string.h>

char *moe_show_speed(double tokens_per_second, char room[32])
{
    if (!(tokens_per_second >= 0))
        return strcpy(room, "?");
    snprintf(room, 32, tokens_per_second < 10 ? "%.2f" : "%.1f", tokens_per_second);
    return room;
}

char *moe_show_percent(double share, char room[32])
{
    if (!(share >= 0))
        return strcpy(room, "?");
    snprintf(room, 32, "%.1f%%", 100 * share);
    return room;
}

char *moe_show_rate(double bytes_per_second, char room[32])
{
    if (bytes_per_second >= 1e9)
        snprintf(room, 32, "%.2f GB/s", bytes_per_second * 1e-9);
    else
        snprintf(room, 32, "%.1f MB/s", bytes_per_second * 1e-6);
    return room;
}

struct moe_explain_slots moe_explain_slots(const struct moe_plan *plan)
{
    struct moe_explain_slots s = {.n_experts = (uint64_t)plan->n_layers * plan->n_experts};
    for (uint32_t i = 0; i < plan->n_pools; i++) {
        const struct moe_plan_pool *pool = &plan->pools[i];
        s.n_cache += pool->n_cache;
        s.n_working += pool->n_working;
        s.cache_bytes += pool->n_cache * pool->slot_bytes;
        s.working_bytes += pool->n_working * pool->slot_bytes;
    }
    s.share = s.n_experts ? (double)s.n_cache / (double)s.n_experts : 0;
    s.tokens = plan->memory.token ? (double)s.cache_bytes / (double)plan->memory.token : 0;
    return s;
}

/* Adds x, where it is known, to a mean. */
static void mean_add(double x, double *sum, uint32_t *n)
{
    if (!(x >= 0))
        return;
    *sum += x;
    ++*n;
}

struct moe_explain_layers moe_explain_layers(const struct moe_plan *plan, uint32_t first,
                                             uint32_t n)
{
    struct moe_explain_layers l = {0};
    uint32_t n_hit = 0, n_accuracy = 0, n_stall = 0;
    for (uint32_t i = 0; i < plan->n_pools; i++)
        for (uint32_t k = 0; k < n && plan->pools[i].per_layer; k++) {
            l.own_slots = true;
            l.slots += plan->pools[i].per_layer[first + k];
        }
    for (uint32_t i = 0; i < plan->n_contents; i++) {
        uint32_t layer = plan->contents[i] / plan->n_experts;
        l.filled += layer >= first && layer < first + n;
    }
    for (uint32_t k = 0; k < n; k++) {
        mean_add(plan->layers[first + k].hit_rate, &l.hit_rate, &n_hit);
        mean_add(plan->layers[first + k].accuracy, &l.accuracy, &n_accuracy);
        mean_add(plan->layers[first + k].stall_seconds, &l.stall_seconds, &n_stall);
    }
    l.hit_rate = n_hit ? l.hit_rate / n_hit : -1;
    l.accuracy = n_accuracy ? l.accuracy / n_accuracy : -1;
    return l;
}
