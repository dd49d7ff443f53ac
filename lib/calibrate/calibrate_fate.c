/*
 * Fate's hybrid share: in each layer of a prompt the least popular share p of the active experts
 * may be at the low precision (Fate 4.5). The curve takes them in both orders (fig. 10); p is the
 * largest share, in whole percents, within the tolerance. A document is one prompt, and of a pair
 * so are source and target each.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "calibrate/calibrate_private.h"
#include "sched/precision.h"

enum { CURVE_POINTS = 11 };

struct hybrid {
    uint32_t n_experts, top_k, n_encoder;
    uint32_t high, low;
    double share;
    bool popular_first;
    uint32_t *rows, *active; /* [n_experts] of the active experts */
    uint8_t *is_low;         /* [n_experts] likewise; then [n_experts] the variant of each expert */
};

static void assign_hybrid(void *ctx, uint32_t layer, const struct moe_job *job, uint32_t n_rows,
                          const uint32_t *chosen, const float *weights, uint8_t *variants)
{
    const struct hybrid *h = ctx;
    uint64_t n_pairs = (uint64_t)n_rows * h->top_k;
    uint8_t *variant_of = h->is_low + h->n_experts;
    uint32_t *counts = h->active; /* by expert first, then compacted */
    uint32_t n = 0;
    /* An answer is decoded, all of it at the high precision. */
    bool decoded = job->tag == MOE_TAG_ANSWER && layer >= h->n_encoder;
    memset(counts, 0, h->n_experts * sizeof *counts);
    for (uint64_t i = 0; i < n_pairs; i++)
        counts[chosen[i]]++;
    for (uint32_t e = 0; e < h->n_experts; e++) {
        if (counts[e] == 0)
            continue;
        h->rows[n] = h->popular_first ? UINT32_MAX - counts[e] : counts[e];
        h->active[n++] = e; /* n <= e: what is overwritten has been read */
    }
    moe_least_popular(h->rows, n, decoded ? 0 : h->share, h->is_low);
    for (uint32_t i = 0; i < n; i++)
        variant_of[h->active[i]] = (uint8_t)(h->is_low[i] ? h->low : h->high);
    for (uint64_t i = 0; i < n_pairs; i++)
        variants[i] = variant_of[chosen[i]];
}

static int measure_on(struct calibration *c, struct hybrid *h, bool check, double share,
                      bool popular_first, struct moe_loss *loss, struct moe_err *err)
{
    const struct moe_rule rule = {h, assign_hybrid};
    h->share = share;
    h->popular_first = popular_first;
    return calibrate_measure(c, &c->own, check, &rule, loss, NULL, err);
}

static int measure(struct calibration *c, struct hybrid *h, double share, bool popular_first,
                   struct moe_loss *loss, struct moe_err *err)
{
    return measure_on(c, h, false, share, popular_first, loss, err);
}

static int curve(struct calibration *c, struct hybrid *h, struct moe_err *err)
{
    struct moe_map_fate *fate = &c->map->fate;
    int status = MOE_OK;
    for (uint32_t i = 0; i < CURVE_POINTS && status == MOE_OK; i++) {
        struct moe_map_point *p = &fate->points[i];
        p->share = (double)i / (CURVE_POINTS - 1);
        status = measure(c, h, p->share, false, &p->unpopular, err);
        if (status == MOE_OK && (i == 0 || i + 1 == CURVE_POINTS))
            p->popular = p->unpopular; /* none or all of them: no order */
        else if (status == MOE_OK)
            status = measure(c, h, p->share, true, &p->popular, err);
        fate->n_points = i + 1;
        moe_progress_report(c->options->progress, "unpopular experts", i + 1, CURVE_POINTS);
    }
    return status;
}

/* Bisection over whole percents; 0 where no share is within the tolerance. */
static int seek(struct calibration *c, struct hybrid *h, struct moe_err *err)
{
    struct moe_map_fate *fate = &c->map->fate;
    uint32_t low = 0, high = 100;
    fate->loss = fate->points[0].unpopular;
    while (low < high) {
        uint32_t percent = low + (high - low + 1) / 2;
        struct moe_loss loss;
        int status = measure(c, h, percent / 100.0, false, &loss, err);
        if (status != MOE_OK)
            return status;
        if (calibrate_within(c, &loss)) {
            low = percent;
            fate->loss = loss;
        } else {
            high = percent - 1;
        }
    }
    fate->share = low / 100.0;
    return MOE_OK;
}

int calibrate_fate(struct calibration *c, struct moe_err *err)
{
    struct moe_map_fate *fate = &c->map->fate;
    uint32_t n = c->map->n_experts;
    struct hybrid h = {.n_experts = n,
                       .top_k = c->map->top_k,
                       .n_encoder = c->model->config.n_encoder,
                       .high = c->upper,
                       .low = c->lower};
    h.rows = moe_alloc(n, sizeof *h.rows, err);
    h.active = moe_alloc(n, sizeof *h.active, err);
    h.is_low = moe_alloc(2 * (uint64_t)n, 1, err);
    int status = h.rows && h.active && h.is_low ? curve(c, &h, err) : MOE_ERR_MEMORY;
    if (status == MOE_OK)
        status = seek(c, &h, err);
    if (status == MOE_OK && c->check)
        status = measure_on(c, &h, true, fate->share, false, &fate->check, err);
    fate->there = status == MOE_OK;
    fate->high = c->upper;
    fate->low = c->lower;
    free(h.rows);
    free(h.active);
    free(h.is_low);
    return status;
}
