#include "coe/coe_shares.h"

#include <math.h>
#include <stdlib.h>

static bool runs_on(const struct moe_coe_experts *all, uint32_t expert, uint32_t on)
{
    return !(all->experts[expert].not_on >> on & 1);
}

/* ---- Experts on processors ---- */

void moe_coe_shares_set(struct moe_coe_shares *m, uint32_t on, struct moe_coe_plan_executors *plan)
{
    struct moe_coe_cost table[MOE_COE_MAX_KINDS];
    struct moe_coe_share *s = &m->of[on];
    double seconds = 0, weights = 0;
    uint32_t at_a_time;
    *s = (struct moe_coe_share){.executors = plan};
    if (!plan)
        return;
    moe_coe_costs_teams(m->costs, on, plan->number, &plan->threads, &at_a_time);
    moe_coe_costs_table(m->costs, on, plan->threads, table);
    for (uint32_t i = 0; i < m->all->n; i++) {
        const struct moe_coe_expert *e = &m->all->experts[i];
        const struct moe_coe_cost *cost = &table[e->kind];
        if (!runs_on(m->all, i, on))
            continue;
        uint64_t batch = cost->request_bytes * cost->max_batch;
        double weight = e->probability + 1e-9; /* none may be known */
        s->largest = e->bytes > s->largest ? e->bytes : s->largest;
        s->request = cost->request_bytes > s->request ? cost->request_bytes : s->request;
        s->batch = batch > s->batch ? batch : s->batch;
        seconds += weight * moe_coe_batch_seconds(cost, cost->max_batch) / cost->max_batch;
        weights += weight;
    }
    s->speed = weights > 0 ? at_a_time * weights / fmax(seconds, 1e-9) : 0;
}

int moe_coe_shares_open(struct moe_coe_shares *s, struct moe_err *err)
{
    s->ranked = moe_coe_rank(s->all, err);
    return s->ranked ? MOE_OK : MOE_ERR_MEMORY;
}

void moe_coe_shares_close(struct moe_coe_shares *s)
{
    free(s->ranked);
    s->ranked = NULL;
}

uint64_t moe_coe_shares_bytes_of(const struct moe_coe_shares *s, uint32_t on, uint32_t n)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->all->n && n > 0; i++)
        if (runs_on(s->all, s->ranked[i], on)) {
            bytes += s->all->experts[s->ranked[i]].bytes;
            n--;
        }
    return bytes;
}

uint32_t moe_coe_shares_fit(const struct moe_coe_shares *s, uint32_t on, uint64_t bytes)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->all->n; i++) {
        uint64_t wanted = s->all->experts[s->ranked[i]].bytes;
        if (!runs_on(s->all, s->ranked[i], on))
            continue;
        if (wanted > bytes)
            break;
        bytes -= wanted;
        n++;
    }
    return n;
}

/* ---- Memory ---- */

static uint64_t own_bytes(const struct moe_coe_shares *s, uint32_t on)
{
    uint64_t own = s->costs->processors[on].memory_bytes;
    return own && s->device_bytes ? s->device_bytes : own;
}

/* Two experts, one to compute while the next is loaded, and a request, for each executor. */
static uint64_t least_bytes(const struct moe_coe_share *s)
{
    return s->executors->number * (2 * s->largest + s->request);
}

void moe_coe_shares_divide(struct moe_coe_shares *m, uint64_t *tier, uint64_t *whole)
{
    uint64_t host = m->memory_bytes ? m->memory_bytes : m->costs->memory_bytes;
    uint64_t left = host, needed = 0;
    double speed = 0;
    bool apart = false;
    *whole = host;
    for (uint32_t on = 0; on < m->costs->n_processors; on++) {
        struct moe_coe_share *s = &m->of[on];
        s->bytes = s->executors ? own_bytes(m, on) : 0;
        *whole += s->bytes;
        apart = apart || s->bytes;
        speed += s->executors ? s->speed : 0;
        needed += s->executors && !s->bytes ? least_bytes(s) : 0;
    }
    for (uint32_t on = 0; on < m->costs->n_processors; on++) {
        struct moe_coe_share *s = &m->of[on];
        if (!s->executors || s->bytes)
            continue;
        uint64_t least = least_bytes(s), others = needed - least;
        uint64_t part = (uint64_t)((double)host * (s->speed / speed));
        part = part < least ? least : part;
        s->bytes = host >= others + part ? part : host > others ? host - others : 0;
        left -= s->bytes < left ? s->bytes : left;
    }
    *tier = apart ? left : 0;
}

void moe_coe_shares_split(struct moe_coe_shares *m, uint32_t on, uint64_t expert_bytes)
{
    struct moe_coe_share *s = &m->of[on];
    struct moe_coe_plan_executors *e = s->executors;
    e->expert_bytes = (expert_bytes + e->number - 1) / e->number;
    if (e->expert_bytes < s->largest)
        e->expert_bytes = s->largest;
    uint64_t taken = e->expert_bytes * e->number;
    e->batch_bytes = taken < s->bytes ? (s->bytes - taken) / e->number : 0;
    e->experts = moe_coe_shares_fit(m, on, taken);
}
