#include "coe/task.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/random.h"

/* Where requests begin: running sums of weights, and the expert of each. */
struct beginnings {
    uint32_t n;
    double *sums;
    uint32_t *experts;
};

static double draw(uint64_t *random)
{
    return (double)(moe_random_next(random) >> 11) * 0x1p-53;
}

static void add(struct beginnings *b, uint32_t expert, double weight)
{
    if (weight <= 0)
        return;
    b->sums[b->n] = weight + (b->n ? b->sums[b->n - 1] : 0);
    b->experts[b->n++] = expert;
}

static int find_beginnings(struct beginnings *b, const struct moe_coe_collection *c,
                           const struct moe_coe_experts *all, struct moe_err *err)
{
    uint64_t most = (uint64_t)c->n_routes + all->n;
    bool quantities = c->n_scores == 0;
    b->sums = moe_alloc(most, sizeof *b->sums, err);
    b->experts = moe_alloc(most, sizeof *b->experts, err);
    if (!b->sums || !b->experts)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < c->n_routes; i++)
        quantities = quantities && c->routes[i].quantity >= 0;
    for (uint32_t i = 0; i < c->n_routes && quantities; i++)
        add(b, c->routes[i].to, c->routes[i].quantity);
    for (uint32_t i = 0; i < all->n && !quantities; i++)
        if (!moe_coe_follows(all, i))
            add(b, i, all->experts[i].probability);
    return b->n ? MOE_OK
                : moe_fail(err, MOE_ERR_USAGE,
                           "no task can be drawn: neither do all routes say their quantity nor are "
                           "probabilities of the experts known");
}

static uint32_t begin(const struct beginnings *b, uint64_t *random)
{
    double x = draw(random) * b->sums[b->n - 1];
    uint32_t low = 0, high = b->n - 1;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (x < b->sums[middle])
            high = middle;
        else
            low = middle + 1;
    }
    return b->experts[low];
}

static uint32_t go_on(const struct moe_coe_collection *c, uint32_t expert, uint64_t *random)
{
    double x = draw(random);
    for (uint32_t i = 0; i < c->n_follows; i++) {
        const struct moe_coe_follow *f = &c->follows[i];
        if (f->from != expert)
            continue;
        if (f->share < 0 || x < f->share)
            return f->to;
        x -= f->share;
    }
    return MOE_COE_NONE;
}

/* Draws all paths; without `steps` only counts what they take. */
static uint64_t draw_paths(struct moe_coe_task *t, const struct beginnings *b,
                           const struct moe_coe_collection *c, uint64_t seed)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        if (t->steps)
            t->arrivals[i].path = &t->steps[at];
        for (uint32_t expert = begin(b, &seed);; expert = go_on(c, expert, &seed)) {
            if (t->steps)
                t->steps[at] = expert;
            at++;
            if (expert == MOE_COE_NONE)
                break;
        }
    }
    return at;
}

int moe_coe_task_draw(struct moe_coe_task *t, const struct moe_coe_collection *c,
                      const struct moe_coe_experts *all, uint32_t n, double interval, uint64_t seed,
                      struct moe_err *err)
{
    struct beginnings b = {0};
    *t = (struct moe_coe_task){.n = n};
    int status = find_beginnings(&b, c, all, err);
    if (status == MOE_OK) {
        uint64_t steps = draw_paths(t, &b, c, seed);
        t->arrivals = moe_alloc(n, sizeof *t->arrivals, err);
        t->steps = moe_alloc(steps, sizeof *t->steps, err);
        status = t->arrivals && t->steps ? MOE_OK : MOE_ERR_MEMORY;
    }
    for (uint32_t i = 0; i < n && status == MOE_OK; i++)
        t->arrivals[i].at = i * interval;
    if (status == MOE_OK)
        draw_paths(t, &b, c, seed);
    else
        moe_coe_task_release(t);
    free(b.sums);
    free(b.experts);
    return status;
}

void moe_coe_task_release(struct moe_coe_task *t)
{
    free(t->arrivals);
    free(t->steps);
    *t = (struct moe_coe_task){0};
}
