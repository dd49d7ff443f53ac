/*
 * Adaptive exactness: all importances estimated, then those measured that decide (adaptive.h).
 * First a sample; then, twice, bitwidths are chosen by what is known and the experts measured that
 * are nearest to the boundary between the steps taken and those that were not, as far as a share of
 * the experts goes that may be measured. What is chosen last stands.
 *
 * Which experts are measured follows from figures alone. A run that goes on from what another one
 * measured decides all of it again and only measures less.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "calibrate/adaptive.h"
#include "calibrate/calibrate_private.h"

enum { ROUNDS = 2, SAMPLE_OF = 4 /* the sample is a quarter of what may be measured */ };

struct adaptive {
    struct calibration *c;
    struct moe_map *proxy; /* the estimates */
    uint64_t n, most;      /* experts; that may be measured */
    uint8_t *asked;        /* [n] */
    double *figures;       /* [n] measured, or on the line */
    double *distances;     /* [n] */
    struct moe_importance_line line;
    uint64_t open; /* experts that could have another bitwidth */
};

static int allocate(struct adaptive *a, struct moe_err *err)
{
    const struct moe_map *map = a->c->map;
    int status = moe_map_new(&a->proxy, map->n_layers, map->n_experts, map->top_k, err);
    if (status != MOE_OK)
        return status;
    memcpy(a->proxy->model_layer, map->model_layer, map->n_layers * sizeof *map->model_layer);
    a->proxy->n_variants = map->n_variants;
    a->asked = moe_alloc(a->n, sizeof *a->asked, err);
    a->figures = moe_alloc(a->n, sizeof *a->figures, err);
    a->distances = moe_alloc(a->n, sizeof *a->distances, err);
    return a->asked && a->figures && a->distances ? MOE_OK : MOE_ERR_MEMORY;
}

static uint64_t count(const uint8_t *bytes, uint64_t n)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += bytes[i];
    return sum;
}

/* The experts of the first measurements; with those that no document visits, which cost nothing. */
static int begin(struct adaptive *a, struct moe_err *err)
{
    uint64_t sample = a->most / SAMPLE_OF;
    int status = moe_importance_sample(a->asked, a->proxy->importances.nats, a->n,
                                       sample > 8 ? sample : 8, err);
    for (uint64_t i = 0; i < a->n; i++)
        if (a->proxy->importances.visited[i] == 0 && !a->asked[i]) {
            a->asked[i] = 1;
            a->most++;
        }
    return status;
}

/* The bitwidths by what was measured and, of the other experts, what the line says. */
static int choose(struct adaptive *a, struct moe_err *err)
{
    const struct moe_importances *m = &a->c->map->importances;
    const double *estimates = a->proxy->importances.nats;
    a->line = moe_importance_fit(estimates, m->nats, m->error, a->asked, a->n);
    for (uint64_t i = 0; i < a->n; i++)
        a->figures[i] = a->asked[i] ? m->nats[i] : moe_importance_on_line(&a->line, estimates[i]);
    a->c->figures = a->figures;
    int status = calibrate_choose(a->c, a->distances, err);
    a->c->figures = NULL;
    a->open =
        moe_importance_open(a->asked, a->distances, a->n, MOE_ADAPTIVE_SPREADS * a->line.spread);
    return status;
}

/* Asks for the nearest that are open; false: there are none, or no more may be. */
static bool ask(struct adaptive *a, uint32_t round, int *status, struct moe_err *err)
{
    uint64_t measured = count(a->asked, a->n);
    uint64_t room = a->most > measured ? a->most - measured : 0;
    if (a->open == 0 || round == ROUNDS || room == 0)
        return false;
    uint64_t more = (room + ROUNDS - round - 1) / (ROUNDS - round);
    *status = moe_importance_ask(a->asked, a->distances, a->n,
                                 MOE_ADAPTIVE_SPREADS * a->line.spread, more, err);
    return *status == MOE_OK;
}

/* Estimates go into the map beside the measurements; what an earlier run measured that was not
 * asked for goes, as if it had not. */
static void settle(struct adaptive *a)
{
    struct moe_importances *m = &a->c->map->importances;
    for (uint64_t i = 0; i < a->n; i++) {
        m->estimated[i] = !a->asked[i];
        if (a->asked[i])
            continue;
        m->known[i] = 1;
        m->nats[i] = a->figures[i];
        m->error[i] = a->figures[i] * a->line.spread;
        m->changed[i] = 0;
        m->visited[i] = a->proxy->importances.visited[i];
    }
    m->adaptive = (struct moe_adaptive){
        .measured = count(a->asked, a->n),
        .estimated = a->n - count(a->asked, a->n),
        .open = a->open,
        .spread = a->line.spread,
    };
}

int calibrate_adaptive(struct calibration *c, const struct moe_quality *base,
                       const struct moe_importance_options *options, struct moe_err *err)
{
    struct adaptive a = {.c = c, .n = (uint64_t)c->map->n_layers * c->map->n_experts};
    struct moe_importance_options of_asked = *options;
    a.most = (uint64_t)ceil(c->options->measured_share * (double)a.n);
    int status = allocate(&a, err);
    of_asked.asked = a.asked;
    if (status == MOE_OK)
        status = moe_importance_proxy(a.proxy, c->own.rerun, base, options, err);
    if (status == MOE_OK)
        status = begin(&a, err);
    for (uint32_t round = 0; status == MOE_OK; round++) {
        status = moe_importance_exact(c->map, c->own.rerun, base, &of_asked, err);
        if (status == MOE_OK)
            status = choose(&a, err);
        if (status != MOE_OK || !ask(&a, round, &status, err))
            break;
    }
    if (status == MOE_OK)
        settle(&a);
    moe_map_free(a.proxy);
    free(a.asked);
    free(a.figures);
    free(a.distances);
    return status;
}
