/* What a bit map says of strategies. */
#include "sched/calibration.h"

#include <math.h>
#include <string.h>

/* Thresholds are compared at about the precision of the scores. */
static const double ALIKE = 1e-7;

struct finding {
    bool there;
    uint32_t high, low; /* variants of the map */
    const struct moe_loss *loss;
    const char *what;
};

static struct finding find_finding(const struct moe_map *map, enum moe_finding which)
{
    const struct moe_map_hobbit *h = &map->hobbit;
    const struct moe_map_fate *f = &map->fate;
    const struct moe_map_routing *r = &map->routing;
    switch (which) {
    case MOE_FOUND_ON_MISS:
        return (struct finding){h->there, h->high, h->low, &h->loss, "thresholds for --on-miss"};
    case MOE_FOUND_PREFILL:
        return (struct finding){f->there, f->high, f->low, &f->loss, "share for --prefill"};
    default: /* only at the best precision */
        return (struct finding){r->there, 0, 0, &r->loss, "lambda for --prefer-cached"};
    }
}

enum moe_part moe_finding_part(enum moe_finding which)
{
    static const enum moe_part parts[MOE_N_FINDINGS] = {
        [MOE_FOUND_ON_MISS] = MOE_PART_ON_MISS,
        [MOE_FOUND_PREFILL] = MOE_PART_PREFILL,
        [MOE_FOUND_ROUTING] = MOE_PART_PREFER_CACHED,
    };
    return parts[which];
}

/* ---- Applying ---- */

/* 1 - T2, without the rounding error of the subtraction. */
static double skip_below(const struct moe_map_hobbit *h)
{
    return round((1 - h->t2) * 1e9) / 1e9;
}

static void apply_hobbit(const struct moe_map_hobbit *h, uint32_t named, struct moe_strategy *s)
{
    bool takes_low = s->miss_precision == MOE_MISS_BY_SCORE;
    if (takes_low && s->skip_below > 0 &&
        (s->skip_by_scores || !(named >> MOE_PART_SKIP_BELOW & 1)))
        s->skip_below = skip_below(h);
    if (takes_low && (s->by_scores || !(named >> MOE_PART_ON_MISS & 1)))
        s->high_up_to = fmin(h->t1, 1 - s->skip_below);
    if (takes_low) /* "where no calibration is given" */
        s->by_scores = s->skip_by_scores = false;
    if (takes_low && h->weighed && s->cache && !(named >> MOE_PART_LOW_POOL & 1))
        s->low_pool = h->low_pool;
    if (h->weighed && s->cache == &moe_policy_hobbit && !(named >> MOE_PART_CACHE_WEIGHTS & 1))
        memcpy(s->weights, h->weights, sizeof s->weights);
}

/* "auto" is what was found; other values are those of the user. */
static void apply_routing(const struct moe_map_routing *r, struct moe_strategy *s)
{
    if (!s->prefer_by_map)
        return;
    s->prefer = r->lambda;
    s->prefer_keeps = r->lambda > 0 ? r->keeps : 0;
    s->prefer_by_map = false;
}

void moe_calibration_apply(const struct moe_map *map, uint32_t named, struct moe_strategy *s)
{
    if (s->resident)
        return;
    if (map->hobbit.there)
        apply_hobbit(&map->hobbit, named, s);
    if (map->routing.there)
        apply_routing(&map->routing, s);
    if (!map->fate.there || s->prefill != MOE_PREFILL_HYBRID || named >> MOE_PART_PREFILL & 1)
        return;
    s->low_share = map->fate.share;
    if (s->low_share == 0) {
        s->prefill = MOE_PREFILL_POPULARITY;
        s->prefill_falls_back = false;
    }
}

/* ---- What was measured ---- */

int moe_calibration_serves(const struct moe_map *map, enum moe_finding which,
                           const struct moe_inventory *inventory, struct moe_err *err)
{
    const struct finding f = find_finding(map, which);
    if (!f.there)
        return moe_fail(err, MOE_ERR_USAGE, "the map has no %s", f.what);
    const char *high = map->variants[f.high], *low = map->variants[f.low];
    uint32_t h = moe_inventory_variant(inventory, high), l = moe_inventory_variant(inventory, low);
    bool one = f.high == f.low;
    if (h < inventory->n_variants && l < inventory->n_variants && (one || h < l))
        return MOE_OK;
    if (one)
        return moe_fail(err, MOE_ERR_USAGE,
                        "the map has a %s for experts at '%s': the pack lacks it", f.what, high);
    return moe_fail(err, MOE_ERR_USAGE,
                    "the map has %s for experts at '%s' and, lower, at '%s': the pack lacks one "
                    "of them",
                    f.what, high, low);
}

static bool changes_results(const struct moe_strategy *s, enum moe_finding which)
{
    return moe_strategy_part_inexact(s, moe_finding_part(which)) ||
           (which == MOE_FOUND_ON_MISS && s->skip_below > 0);
}

/* Whether it lowers precision or skips experts no more than was measured. */
static bool is_within(const struct moe_map *map, enum moe_finding which,
                      const struct moe_strategy *s)
{
    const struct moe_map_hobbit *h = &map->hobbit;
    if (which == MOE_FOUND_ROUTING)
        return s->prefer <= map->routing.lambda + ALIKE && s->prefer_keeps >= map->routing.keeps;
    if (which == MOE_FOUND_PREFILL)
        return s->low_share <= map->fate.share + ALIKE;
    return s->skip_below <= 1 - h->t2 + ALIKE &&
           (s->miss_precision == MOE_MISS_BEST ||
            (s->miss_precision == MOE_MISS_BY_SCORE && s->high_up_to >= h->t1 - ALIKE));
}

const struct moe_loss *moe_calibration_loss(const struct moe_map *map, enum moe_finding which,
                                            const struct moe_strategy *s, const char *high,
                                            const char *low)
{
    const struct finding f = find_finding(map, which);
    if (!f.there || f.loss->tokens == 0 || !changes_results(s, which) ||
        !is_within(map, which, s) || strcmp(map->variants[f.high], high) != 0 ||
        (f.low != f.high && strcmp(map->variants[f.low], low) != 0))
        return NULL;
    return f.loss;
}

/* ---- Ways to load less ---- */

/* A cache is like one that was measured up to this factor: what is absent, and so approximated,
 * depends on its size. */
static const double LIKE = 2;

/* Bits 1 << part: those that may change results. */
static uint32_t inexact_parts(const struct moe_strategy *s)
{
    uint32_t parts = 0;
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++)
        parts |= (uint32_t)moe_strategy_part_inexact(s, part) << part;
    return parts;
}

static bool approximate_alike(const struct moe_strategy *a, const struct moe_strategy *b)
{
    uint32_t parts = inexact_parts(a);
    bool alike = parts == inexact_parts(b);
    for (enum moe_part part = 0; part < MOE_N_PARTS && alike; part++) {
        char one[MOE_PART_TEXT_BYTES], other[MOE_PART_TEXT_BYTES];
        if (!(parts >> part & 1))
            continue;
        moe_strategy_part_text(a, part, one);
        moe_strategy_part_text(b, part, other);
        alike = strcmp(one, other) == 0;
    }
    return alike;
}

/* The measurements in the caches next to that size, below and above; NULL: in none like it. */
static void find_near(const struct moe_map *map, uint64_t cache_bytes,
                      const struct moe_map_savings *near[2])
{
    const double bytes = (double)cache_bytes;
    near[0] = near[1] = NULL;
    for (uint32_t i = 0; i < map->n_savings; i++) {
        const struct moe_map_savings *s = &map->savings[i];
        const double its = (double)s->cache_bytes;
        if (its <= bytes && its * LIKE >= bytes)
            near[0] = s;
        if (its >= bytes && its <= bytes * LIKE && !near[1])
            near[1] = s;
    }
}

static const struct moe_map_saving *find_way(const struct moe_map_savings *at,
                                             const struct moe_strategy *s)
{
    struct moe_strategy way;
    struct moe_err ignored;
    uint32_t named;
    for (uint32_t i = 0; i < at->n_ways; i++)
        if (moe_strategy_parse(at->ways[i].strategy, &way, &named, &ignored) == MOE_OK &&
            approximate_alike(s, &way))
            return &at->ways[i];
    return NULL;
}

/* The worse of two, where NULL is none. */
static const struct moe_loss *worse(const struct moe_map *map, const struct moe_loss *a,
                                    const struct moe_loss *b)
{
    return a && moe_loss_in(a, map->metric) >= moe_loss_in(b, map->metric) ? a : b;
}

const struct moe_loss *moe_calibration_saving(const struct moe_map *map,
                                              const struct moe_strategy *s, uint64_t cache_bytes,
                                              const char *high, const char *low, bool *on_checks)
{
    const struct moe_map_savings *near[2];
    const struct moe_loss *loss = NULL;
    bool ignored;
    on_checks = on_checks ? on_checks : &ignored;
    find_near(map, cache_bytes, near);
    if (inexact_parts(s) == 0 || strcmp(high, map->variants[0]) != 0)
        return NULL;
    for (int i = 0; i < 2; i++) {
        const struct moe_map_saving *way = near[i] ? find_way(near[i], s) : NULL;
        if (!near[i])
            continue;
        if (!way || (s->needs_low && strcmp(low, map->variants[near[i]->low]) != 0))
            return NULL;
        if ((loss = worse(map, loss, &way->loss)) == &way->loss)
            *on_checks = false;
        if (way->check.tokens && (loss = worse(map, loss, &way->check)) == &way->check)
            *on_checks = true;
    }
    return loss;
}

static bool is_tolerable(const struct moe_calibration *c, const struct moe_loss *loss)
{
    return loss && moe_loss_in(loss, c->map->metric) <= c->tolerance;
}

int moe_calibration_ways(const struct moe_calibration *c, const struct moe_inventory *inventory,
                         uint64_t cache_bytes, struct moe_strategy ways[MOE_MAX_WAYS], uint32_t *n,
                         struct moe_err *err)
{
    const struct moe_map_savings *near[2];
    double bytes[MOE_MAX_WAYS];
    find_near(c->map, cache_bytes, near);
    const struct moe_map_savings *at = near[0] ? near[0] : near[1];
    *n = 0;
    for (uint32_t i = 0; at && i < at->n_ways; i++) {
        const struct moe_map_saving *saving = &at->ways[i];
        struct moe_strategy way;
        uint32_t named, kind = 0;
        MOE_TRY(moe_strategy_parse(saving->strategy, &way, &named, err));
        MOE_TRY(moe_strategy_settle(&way, err));
        if (!is_tolerable(c,
                          moe_calibration_saving(c->map, &way, cache_bytes, inventory->variants[0],
                                                 c->map->variants[at->low], NULL)))
            continue;
        while (kind < *n && inexact_parts(&ways[kind]) != inexact_parts(&way))
            kind++;
        if (kind == MOE_MAX_WAYS || (kind < *n && bytes[kind] <= saving->bytes_per_token))
            continue;
        ways[kind] = way;
        bytes[kind] = saving->bytes_per_token;
        *n += kind == *n;
    }
    return MOE_OK;
}

void moe_calibration_take(struct moe_strategy *s, const struct moe_strategy *way)
{
    uint32_t parts = inexact_parts(s) | inexact_parts(way);
    char text[MOE_PART_TEXT_BYTES];
    if (way->needs_low)
        parts |= 1u << MOE_PART_LOW_POOL;
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++) {
        if (!(parts >> part & 1))
            continue;
        moe_strategy_part_text(way, part, text);
        moe_strategy_set(s, part, text, NULL);
    }
    moe_strategy_drop_idle(s, 0);
}

/* ---- Checking ---- */

/* Whether the strategy has the numbers of the map. */
static bool is_of_map(const struct moe_map *map, enum moe_finding which,
                      const struct moe_strategy *s)
{
    struct moe_strategy applied = *s;
    if (!find_finding(map, which).there || !changes_results(s, which))
        return false;
    moe_calibration_apply(map, 0, &applied);
    if (which == MOE_FOUND_ROUTING)
        return s->prefer == map->routing.lambda && s->prefer_keeps == map->routing.keeps;
    return which == MOE_FOUND_PREFILL
               ? applied.low_share == s->low_share
               : applied.high_up_to == s->high_up_to && applied.skip_below == s->skip_below;
}

static int check_finding(const struct moe_calibration *c, enum moe_finding which,
                         const struct moe_strategy *s, const char *high, const char *low,
                         struct moe_err *err)
{
    const struct moe_map *map = c->map;
    const struct finding f = find_finding(map, which);
    const struct moe_loss *loss = moe_calibration_loss(map, which, s, high, low);
    bool is_routing = which == MOE_FOUND_ROUTING;
    if (!loss && is_routing && (c->measured || is_of_map(map, which, s)))
        return moe_fail(err, MOE_ERR_USAGE, "the map has no %s where experts are at '%s'", f.what,
                        high);
    if (!loss && (c->measured || is_of_map(map, which, s)))
        return moe_fail(err, MOE_ERR_USAGE,
                        "the map has no %s where experts are at '%s' and, lower, at '%s'", f.what,
                        high, low);
    bool within =
        c->measured && (is_routing ? moe_loss_in(loss, map->metric) <= map->routing.tolerance
                                   : moe_map_loss(map, loss) <= map->tolerance);
    if (c->measured && !within)
        return moe_fail(err, MOE_ERR_USAGE, "the map's %s loses more than its tolerance", f.what);
    return MOE_OK;
}

/* Whether a part may change results that no calibration measures. Where experts are kept at a lower
 * precision, `high` says so. */
static bool is_beyond(const struct moe_strategy *s)
{
    const uint32_t judged = 1u << MOE_PART_ON_MISS | 1u << MOE_PART_SKIP_BELOW |
                            1u << MOE_PART_PREFILL | 1u << MOE_PART_CACHE_BITS |
                            1u << MOE_PART_PREFER_CACHED;
    bool beyond = false;
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++)
        beyond |= !(judged >> part & 1) && moe_strategy_part_inexact(s, part);
    return beyond;
}

static int check_tolerance(const struct moe_calibration *c, const struct moe_strategy *s,
                           uint64_t cache_bytes, const char *high, const char *low,
                           struct moe_err *err)
{
    if (is_tolerable(c, moe_calibration_saving(c->map, s, cache_bytes, high, low, NULL)))
        return MOE_OK;
    return moe_fail(err, MOE_ERR_USAGE,
                    "the map has no measurement within %g of what strategy %s approximates in such "
                    "a cache",
                    c->tolerance, s->name ? s->name : "none");
}

int moe_calibration_check(const struct moe_calibration *c, const struct moe_strategy *s,
                          const struct moe_inventory *inventory, uint64_t cache_bytes,
                          uint32_t high, uint32_t low, struct moe_err *err)
{
    uint32_t n = 0;
    int status = MOE_OK;
    if (c->tolerance > 0)
        return inexact_parts(s) == 0 && moe_inventory_is_best(inventory, high)
                   ? MOE_OK
                   : check_tolerance(c, s, cache_bytes, inventory->variants[high],
                                     inventory->variants[low], err);
    for (enum moe_finding which = 0; which < MOE_N_FINDINGS && status == MOE_OK; which++) {
        if (!changes_results(s, which))
            continue;
        status =
            check_finding(c, which, s, inventory->variants[high], inventory->variants[low], err);
        n++;
    }
    if (status != MOE_OK || !c->measured)
        return status;
    bool all_measured = n == 1 || (n == 0 && high == 0);
    if (!all_measured || is_beyond(s))
        status = moe_fail(err, MOE_ERR_USAGE,
                          "the map has no measurement of all that strategy %s approximates",
                          s->name ? s->name : "none");
    return status;
}
