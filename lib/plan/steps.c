#include "plan/steps.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* ---- One expert's points ---- */

struct points {
    const uint64_t *bytes; /* [n_variants] */
    const double *loss;    /* [n_variants]; ignored at upper, which is the origin */
    uint32_t n, upper;
};

static double loss_at(const struct points *p, uint32_t v)
{
    return v == p->upper ? 0 : p->loss[v];
}

static bool dominated(const struct points *p, uint32_t v)
{
    for (uint32_t u = p->upper; u < v; u++)
        if (p->bytes[u] && p->bytes[u] <= p->bytes[v] && loss_at(p, u) <= loss_at(p, v))
            return true;
    return false;
}

/* The next corner of the hull after variant v: the one of least loss per byte saved, among equals
 * the smallest step; n: there is none. */
static uint32_t next_corner(const struct points *p, uint32_t v, double *slope)
{
    uint32_t best = p->n;
    for (uint32_t u = v + 1; u < p->n; u++) {
        if (p->bytes[u] == 0 || p->bytes[u] >= p->bytes[v] || dominated(p, u))
            continue;
        double s = (loss_at(p, u) - loss_at(p, v)) / (double)(p->bytes[v] - p->bytes[u]);
        if (best == p->n || s < *slope || (s == *slope && p->bytes[u] > p->bytes[best])) {
            best = u;
            *slope = s;
        }
    }
    return best;
}

/* ---- All steps ---- */

struct ranked {
    struct moe_step step;
    double slope;
    uint32_t number; /* among its expert's */
};

static int by_slope(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->slope != y->slope)
        return x->slope < y->slope ? -1 : 1;
    if (x->step.expert != y->step.expert)
        return x->step.expert < y->step.expert ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

/* Writes an expert's steps in their order; returns how many. */
static uint32_t descend(const struct points *p, uint32_t expert, double weight, struct ranked *out)
{
    uint32_t n = 0;
    double slope = 0, least = -INFINITY;
    if (weight == 0 || p->bytes[p->upper] == 0)
        return 0;
    for (uint32_t v = p->upper, next; (next = next_corner(p, v, &slope)) < p->n; v = next) {
        /* The slopes of a hull rise; rounding must not change the order of an expert's steps. */
        least = fmax(least, slope / weight);
        out[n] = (struct ranked){
            .step = {.expert = expert,
                     .variant = (uint8_t)next,
                     .loss = loss_at(p, next) - loss_at(p, v),
                     .bytes = weight * (double)(p->bytes[v] - p->bytes[next])},
            .slope = least,
            .number = n,
        };
        n++;
    }
    return n;
}

static int check(const struct moe_stairs *s, struct moe_err *err)
{
    if (s->n_variants > UINT8_MAX || s->upper >= s->n_variants)
        return moe_fail(err, MOE_ERR_USAGE, "steps from variant %u of %u cannot be", s->upper,
                        s->n_variants);
    for (uint32_t e = 0; e < s->n_experts; e++) {
        if (s->weight && !(s->weight[e] >= 0 && isfinite(s->weight[e])))
            return moe_fail(err, MOE_ERR_USAGE, "expert %u: a weight of %g cannot be", e,
                            s->weight[e]);
        for (uint32_t v = s->upper + 1; v < s->n_variants; v++) {
            uint64_t at = (uint64_t)e * s->n_variants + v;
            if (s->bytes[at] && !isfinite(s->loss[at]))
                return moe_fail(err, MOE_ERR_USAGE,
                                "expert %u: its loss at variant %u is no number", e, v);
        }
    }
    return MOE_OK;
}

int moe_steps_make(struct moe_step **steps, uint64_t *n, const struct moe_stairs *s,
                   struct moe_err *err)
{
    *steps = NULL;
    *n = 0;
    int status = check(s, err);
    if (status != MOE_OK)
        return status;
    uint64_t most = (uint64_t)s->n_experts * (s->n_variants - 1 - s->upper), made = 0;
    struct ranked *ranked = moe_alloc(most, sizeof *ranked, err);
    *steps = moe_alloc(most, sizeof **steps, err);
    if (!ranked || !*steps) {
        free(ranked);
        free(*steps);
        *steps = NULL;
        return MOE_ERR_MEMORY;
    }
    for (uint32_t e = 0; e < s->n_experts; e++) {
        uint64_t at = (uint64_t)e * s->n_variants;
        struct points p = {s->bytes + at, s->loss + at, s->n_variants, s->upper};
        made += descend(&p, e, s->weight ? s->weight[e] : 1, ranked + made);
    }
    qsort(ranked, made, sizeof *ranked, by_slope);
    for (uint64_t i = 0; i < made; i++)
        (*steps)[i] = ranked[i].step;
    *n = made;
    free(ranked);
    return MOE_OK;
}

double moe_steps_take(const struct moe_step *steps, uint64_t k, uint32_t upper, uint32_t n_experts,
                      uint8_t *variants)
{
    double loss = 0;
    memset(variants, (int)upper, n_experts);
    for (uint64_t i = 0; i < k; i++) {
        variants[steps[i].expert] = steps[i].variant;
        loss += steps[i].loss;
    }
    return loss;
}
