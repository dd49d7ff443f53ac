/*
 * Choice: which experts step down, and how many (EdgeMoE III-B). Steps come from the importances
 * (plan/tuning.h). Their number K is found by bisection, each K tried being measured as a whole,
 * for each bitwidth of the dense part. The fewest bytes win. With a target K is the first with no
 * more bytes, and the least loss wins.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/text.h"
#include "plan/tuning.h"
#include "tune/calibrate_internal.h"

/* What the search works on. */
struct search {
    struct calibration *c;
    uint32_t upper;
    uint64_t n_experts; /* of all layers */
    uint64_t *bytes;    /* [n_experts][n_variants] */
    double *loss;       /* the same, in nats or changed tokens of the texts */
    double *weight;     /* [n_experts] */
    struct moe_step *steps;
    uint64_t n_steps;
    uint8_t *variants; /* [n_experts] */
};

/* The best found for one bitwidth of the dense part. */
struct found {
    uint64_t k, bytes;
    struct moe_loss loss;
    double expected;
    bool there;
};

/* ---- Steps ---- */

/* The share of the lowest variant's loss that a variant above it has, with all experts at it, in
 * the metric, or in changed tokens where nats do not rise. From 0 to 1, and 1 where the uniform
 * bitwidths show no difference. */
static double share_of_loss(const struct calibration *c, uint32_t upper, uint32_t variant)
{
    const struct moe_uniform *u = c->map->uniform;
    const struct moe_loss *top = &u[upper].loss, *low = &u[c->map->importances.lower].loss;
    const bool in_nats = c->map->metric == MOE_METRIC_NLL && low->nll_percent > top->nll_percent;
    const enum moe_metric metric = in_nats ? MOE_METRIC_NLL : MOE_METRIC_TOP1;
    const double all = moe_loss_in(low, metric) - moe_loss_in(top, metric);
    const double part = moe_loss_in(&u[variant].loss, metric) - moe_loss_in(top, metric);
    if (variant == c->map->importances.lower || all <= 0 || part >= all)
        return 1;
    return part > 0 ? part / all : 0;
}

/* What turns importances into the metric's losses: 1, or of estimates, which are nats, the changed
 * tokens of all experts at the lowest variant for each nat of their sum. */
static double losses_per_nat(const struct search *s)
{
    const struct moe_map *map = s->c->map;
    const struct moe_importances *m = &map->importances;
    const struct moe_loss *low = &map->uniform[m->lower].loss;
    double nats = 0;
    if (map->metric == MOE_METRIC_NLL || m->exact)
        return 1;
    for (uint64_t e = 0; e < s->n_experts; e++)
        nats += m->nats[e];
    const double points = low->top1_points - map->uniform[s->upper].loss.top1_points;
    return nats > 0 && points > 0 ? points / 100 * (double)low->tokens / nats : 1;
}

static void fill_points(struct search *s)
{
    const struct moe_map *map = s->c->map;
    const struct moe_importances *m = &map->importances;
    const double *figures = s->c->figures;
    const double unit = losses_per_nat(s);
    for (uint64_t e = 0; e < s->n_experts; e++) {
        bool in_nats = map->metric == MOE_METRIC_NLL || !m->exact;
        double lowest = unit * (figures   ? figures[e]
                                : in_nats ? m->nats[e]
                                          : (double)m->changed[e]);
        for (uint32_t v = 0; v < map->n_variants; v++) {
            uint64_t at = e * map->n_variants + v;
            s->bytes[at] = calibrate_expert_bytes(s->c, (uint32_t)(e / map->n_experts),
                                                  (uint32_t)(e % map->n_experts), v, 1);
            s->loss[at] = v == s->upper ? 0 : lowest * share_of_loss(s->c, s->upper, v);
        }
    }
}

/* Bytes of popular experts count by how often they are loaded: by their share of the activations,
 * 1 on average (EdgeMoE III-B: "how much the lower-bitwidth quantization could boost inference
 * speed"). An expert that was never used counts a little, so that its bytes are saved too.
 */
static void fill_weights(struct search *s)
{
    const struct moe_statistics *statistics = s->c->options->statistics;
    const struct moe_map *map = s->c->map;
    double sum = 0;
    for (uint64_t e = 0; e < s->n_experts; e++) {
        uint32_t layer = (uint32_t)(e / map->n_experts);
        s->weight[e] = 1;
        if (statistics)
            s->weight[e] = 0.5 + (double)moe_series_at(statistics, MOE_S_ACTIVATIONS,
                                                       layer)[e % map->n_experts];
        sum += s->weight[e];
    }
    for (uint64_t e = 0; e < s->n_experts; e++)
        s->weight[e] *= (double)s->n_experts / sum;
}

static int make_steps(struct search *s, struct moe_err *err)
{
    const struct moe_map *map = s->c->map;
    uint64_t points = s->n_experts * map->n_variants;
    s->bytes = moe_alloc(points, sizeof *s->bytes, err);
    s->loss = moe_alloc(points, sizeof *s->loss, err);
    s->weight = moe_alloc(s->n_experts, sizeof *s->weight, err);
    s->variants = moe_alloc(s->n_experts, 1, err);
    if (!s->bytes || !s->loss || !s->weight || !s->variants)
        return MOE_ERR_MEMORY;
    fill_points(s);
    fill_weights(s);
    const struct moe_stairs stairs = {
        .n_experts = (uint32_t)s->n_experts,
        .n_variants = map->n_variants,
        .upper = s->upper,
        .bytes = s->bytes,
        .loss = s->loss,
        .weight = s->weight,
    };
    return moe_steps_make(&s->steps, &s->n_steps, &stairs, err);
}

static void search_release(struct search *s)
{
    free(s->bytes);
    free(s->loss);
    free(s->weight);
    free(s->variants);
    free(s->steps);
}

static uint64_t bytes_of(const struct search *s)
{
    uint64_t bytes = 0;
    for (uint64_t e = 0; e < s->n_experts; e++)
        bytes += s->bytes[e * s->c->map->n_variants + s->variants[e]];
    return bytes;
}

/* The file of the pack after the first k steps, which s->variants then are. */
static uint64_t file_bytes(struct search *s, const struct bench_model *b, uint64_t k)
{
    const uint32_t n = s->c->map->n_experts;
    uint64_t bytes = calibrate_file_bytes(s->c, b->dense_bits);
    moe_steps_take(s->steps, k, s->upper, (uint32_t)s->n_experts, s->variants);
    for (uint64_t e = 0; e < s->n_experts; e++)
        bytes += calibrate_expert_bytes(s->c, (uint32_t)(e / n), (uint32_t)(e % n), s->variants[e],
                                        MOE_PACK_ALIGN);
    return bytes;
}

/* ---- K ---- */

/* Measures the first k steps; s->variants are what they give. */
static int measure_steps(struct search *s, const struct bench_model *b, uint64_t k,
                         struct moe_loss *loss, double *steps_loss, struct moe_err *err)
{
    *steps_loss = moe_steps_take(s->steps, k, s->upper, (uint32_t)s->n_experts, s->variants);
    return calibrate_measure_variants(s->c, b, false, s->variants, 0, loss, NULL, err);
}

/* Finds the fewest steps after which the pack has no more bytes than the target; out->there is
 * false if it has more even after all of them. */
static int seek_target(struct search *s, const struct bench_model *b, struct found *out,
                       struct moe_err *err)
{
    const uint64_t target = s->c->options->target_bytes;
    uint64_t low = 0, high = s->n_steps;
    double steps_loss;
    *out = (struct found){0};
    while (low < high) {
        const uint64_t k = low + (high - low) / 2;
        if (file_bytes(s, b, k) <= target)
            high = k;
        else
            low = k + 1;
    }
    out->k = low;
    out->there = file_bytes(s, b, low) <= target;
    MOE_TRY(measure_steps(s, b, low, &out->loss, &steps_loss, err));
    out->bytes = bytes_of(s) + b->dense_bytes;
    out->expected = 100 * steps_loss / (double)out->loss.tokens /
                    (s->c->map->metric == MOE_METRIC_NLL ? out->loss.reference_nll : 1);
    return MOE_OK;
}

/* Finds by bisection the most steps whose measured loss is within the tolerance; out->there is
 * false if even none lose too much. */
static int seek(struct search *s, const struct bench_model *b, struct found *out,
                struct moe_err *err)
{
    struct moe_loss loss;
    double steps_loss, unit;
    uint64_t low = 0, high = s->n_steps, n_tried = 0;
    *out = (struct found){0};
    int status = measure_steps(s, b, 0, &loss, &steps_loss, err);
    if (status != MOE_OK || !calibrate_within(s->c, &loss))
        return status;
    /* Percent of the reference's nats, or points of the tokens, per unit of the steps' losses. */
    unit = s->c->map->metric == MOE_METRIC_NLL ? 100 / (loss.reference_nll * (double)loss.tokens)
                                               : 100 / (double)loss.tokens;
    double none = moe_loss_in(&loss, s->c->map->metric);
    *out = (struct found){.bytes = bytes_of(s), .loss = loss, .expected = none, .there = true};
    /* Tries all of them first: losses below the noise may rise and fall between. */
    for (uint64_t k = high; low < high; k = low + (high - low + 1) / 2) {
        status = measure_steps(s, b, k, &loss, &steps_loss, err);
        if (status != MOE_OK)
            return status;
        n_tried++;
        moe_progress_report(s->c->options->progress, "choosing bitwidths", n_tried,
                            n_tried + (uint64_t)log2((double)(high - low) + 1));
        if (calibrate_within(s->c, &loss)) {
            low = k;
            *out = (struct found){.k = k,
                                  .bytes = bytes_of(s),
                                  .loss = loss,
                                  .expected = none + unit * steps_loss,
                                  .there = true};
        } else {
            high = k - 1;
        }
    }
    out->bytes += b->dense_bytes;
    return MOE_OK;
}

/* Makes what was found the choice. */
static void settle(struct search *s, const struct bench_model *b, const struct found *found)
{
    struct moe_map_choice *choice = &s->c->map->choice;
    moe_steps_take(s->steps, found->k, s->upper, (uint32_t)s->n_experts, choice->variant);
    choice->there = true;
    choice->dense_bits = b->dense_bits;
    choice->dense_bytes = b->dense_bytes;
    choice->expert_bytes = found->bytes - b->dense_bytes;
    choice->expected = found->expected;
    choice->loss = found->loss;
}

/* ---- The final choice on each text ---- */

static void note_texts(struct moe_map *map, bool check, const struct moe_quality *q,
                       const struct moe_quality *reference)
{
    uint32_t i = 0;
    for (uint32_t t = 0; t < map->n_texts; t++) {
        if (map->texts[t].check != check)
            continue;
        const struct moe_corpus_text *text = &q->corpus->texts[i++];
        map->texts[t].known = true;
        moe_quality_loss(q, reference, text->first_document, text->n_documents,
                         &map->texts[t].loss);
    }
}

/* A tolerance that was kept on the texts and not on the checks: the first of its halves, quarters,
 * ... whose choice, found as this one was, is within the whole tolerance there. Small losses are
 * noise, so only measuring that choice tells. */
static int advise(struct calibration *c, const struct bench_model *b, struct moe_err *err)
{
    enum { MOST_HALVES = 5 };
    struct moe_calibrate_advice *a = c->options->advice;
    struct search s = {.c = c, .upper = c->upper};
    const double asked = c->map->tolerance;
    s.n_experts = (uint64_t)c->map->n_layers * c->map->n_experts;
    a->there = false;
    int status = make_steps(&s, err);
    for (int i = 1; i <= MOST_HALVES && status == MOE_OK && !a->there; i++) {
        struct found found;
        struct moe_loss check;
        c->map->tolerance = asked / (double)(1 << i);
        status = seek(&s, b, &found, err);
        *a = (struct moe_calibrate_advice){.tolerance = c->map->tolerance};
        c->map->tolerance = asked;
        if (status != MOE_OK || !found.there)
            break;
        moe_steps_take(s.steps, found.k, s.upper, (uint32_t)s.n_experts, s.variants);
        status = calibrate_measure_variants(c, b, true, s.variants, 0, &check, NULL, err);
        a->there = status == MOE_OK && calibrate_within(c, &check);
        a->check = status == MOE_OK ? moe_map_loss(c->map, &check) : 0;
    }
    search_release(&s);
    return status;
}

/* Measures the choice on the texts, and on the checks, text by text. */
static int judge_choice(struct calibration *c, struct moe_err *err)
{
    struct bench_model b;
    struct moe_quality q;
    struct moe_map_choice *choice = &c->map->choice;
    int status = calibrate_open_bench(&b, c, choice->dense_bits, err);
    if (status != MOE_OK)
        return status;
    status = calibrate_measure_variants(c, &b, false, choice->variant, 0, &choice->loss, &q, err);
    if (status == MOE_OK) {
        note_texts(c->map, false, &q, &c->reference);
        moe_quality_release(&q);
    }
    if (status == MOE_OK && c->check)
        status =
            calibrate_measure_variants(c, &b, true, choice->variant, 0, &choice->check, &q, err);
    if (status == MOE_OK && c->check) {
        note_texts(c->map, true, &q, &c->check_reference);
        moe_quality_release(&q);
        if (c->options->advice && !c->options->target_bytes && !calibrate_within(c, &choice->check))
            status = advise(c, &b, err);
    }
    calibrate_close_bench(&b, c);
    return status;
}

/* ---- Distances ---- */

static double slope_of(const struct moe_step *step)
{
    return step->loss / step->bytes;
}

/* An expert's losses, and so the slopes of its steps, grow with its figure: one of its steps
 * changes sides where the figure grows or falls by as much as the slope differs from that between
 * the first k steps and the others. */
static void measure_distances(const struct search *s, uint64_t k, double *distances)
{
    double last = k > 0 ? slope_of(&s->steps[k - 1]) : 0;
    double next = k < s->n_steps ? slope_of(&s->steps[k]) : last;
    double between = last > 0 ? sqrt(last * next) : next;
    for (uint64_t e = 0; e < s->n_experts; e++)
        distances[e] = HUGE_VAL;
    for (uint64_t i = 0; i < s->n_steps && between > 0; i++) {
        double *d = &distances[s->steps[i].expert], slope = slope_of(&s->steps[i]);
        if (slope > 0 && fabs(log(slope / between)) < *d)
            *d = fabs(log(slope / between));
    }
}

int calibrate_check_target(const struct calibration *c, struct moe_err *err)
{
    const struct moe_calibrate_options *o = c->options;
    const struct moe_map *map = c->map;
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < (o->n_dense_bits ? o->n_dense_bits : 1); i++) {
        const uint64_t bytes = calibrate_file_bytes(c, calibrate_dense_bits(c, i));
        least = bytes < least ? bytes : least;
    }
    for (uint32_t layer = 0; layer < map->n_layers; layer++)
        for (uint32_t e = 0; e < map->n_experts; e++) {
            uint64_t fewest = UINT64_MAX;
            for (uint32_t v = 0; v < map->n_variants; v++) {
                const uint64_t bytes = calibrate_expert_bytes(c, layer, e, v, MOE_PACK_ALIGN);
                fewest = bytes < fewest ? bytes : fewest;
            }
            least += fewest;
        }
    if (!o->target_bytes || least <= o->target_bytes)
        return MOE_OK;
    char takes[32], wanted[32];
    return moe_fail(err, MOE_ERR_LIMIT, "a pack takes %s at least, more than the %s of --target",
                    moe_format_at_least(least, takes), moe_format_bytes(o->target_bytes, wanted));
}

int calibrate_choose(struct calibration *c, double *distances, struct moe_err *err)
{
    const struct moe_calibrate_options *o = c->options;
    struct search s = {.c = c, .upper = c->upper};
    uint32_t n_dense = o->n_dense_bits ? o->n_dense_bits : 1;
    uint64_t k = 0;
    double least = HUGE_VAL; /* bytes, or with a target loss */
    c->map->choice.there = c->chosen = false;
    s.n_experts = (uint64_t)c->map->n_layers * c->map->n_experts;
    int status = make_steps(&s, err);
    for (uint32_t i = 0; i < n_dense && status == MOE_OK; i++) {
        struct bench_model b;
        struct found found;
        status = calibrate_open_bench(&b, c, calibrate_dense_bits(c, i), err);
        if (status != MOE_OK)
            break;
        status = (o->target_bytes ? seek_target : seek)(&s, &b, &found, err);
        const double counts =
            o->target_bytes ? moe_map_loss(c->map, &found.loss) : (double)found.bytes;
        if (status == MOE_OK && found.there && counts < least) {
            least = counts;
            k = found.k;
            settle(&s, &b, &found);
        }
        calibrate_close_bench(&b, c);
    }
    if (status == MOE_OK && o->target_bytes)
        c->map->tolerance = least > 0 ? least : 0;
    if (status == MOE_OK && !c->map->choice.there)
        status = moe_fail(err, MOE_ERR_LIMIT,
                          "--tolerance %g%% cannot be met with the dense part at these bits",
                          c->map->tolerance);
    c->chosen = status == MOE_OK;
    if (status == MOE_OK && distances)
        measure_distances(&s, k, distances);
    search_release(&s);
    return status;
}

int calibrate_choice(struct calibration *c, struct moe_err *err)
{
    if (!c->chosen)
        MOE_TRY(calibrate_choose(c, NULL, err));
    return judge_choice(c, err);
}

/*
 * What every uniform bitwidth costs, and the two that bracket the tolerance (EdgeMoE III-B:
 * "enumerates through the available bitwidths for all experts").
 */

static int measure_one(struct calibration *c, const struct bench_model *b, uint32_t variant,
                       struct moe_err *err)
{
    struct moe_uniform *u = &c->map->uniform[c->map->n_uniform];
    int status = calibrate_measure_variants(c, b, false, NULL, variant, &u->loss, NULL, err);
    snprintf(u->experts, sizeof u->experts, "%s", c->map->variants[variant]);
    u->dense_bits = b->dense_bits;
    u->bytes = calibrate_all_bytes(c, variant) + b->dense_bytes;
    c->map->n_uniform += status == MOE_OK;
    return status;
}

int calibrate_uniform(struct calibration *c, struct moe_err *err)
{
    const struct moe_calibrate_options *o = c->options;
    uint64_t n = c->map->n_variants + o->n_dense_bits, done = 0;
    int status = MOE_OK;
    c->map->n_uniform = 0;
    for (uint32_t v = 0; v < c->map->n_variants && status == MOE_OK; v++) {
        status = measure_one(c, &c->own, v, err);
        moe_progress_report(o->progress, "uniform bitwidths", ++done, n);
    }
    for (uint32_t i = 0; i < o->n_dense_bits && status == MOE_OK; i++) {
        struct bench_model b;
        const uint32_t bits = calibrate_dense_bits(c, i);
        if (bits == c->own.dense_bits)
            continue;
        status = calibrate_open_bench(&b, c, bits, err);
        if (status != MOE_OK)
            break;
        status = measure_one(c, &b, 0, err);
        calibrate_close_bench(&b, c);
        moe_progress_report(o->progress, "uniform bitwidths", ++done, n);
    }
    return status;
}

int calibrate_bounds(struct calibration *c, struct moe_err *err)
{
    const struct moe_map *map = c->map;
    const struct moe_uniform *best = NULL;
    uint64_t fewest = UINT64_MAX;
    c->lower = 0;
    for (uint32_t v = 0; v < map->n_variants; v++) {
        uint64_t bytes = calibrate_all_bytes(c, v);
        bool within = map->tolerance < 0 || c->options->target_bytes ||
                      calibrate_within(c, &map->uniform[v].loss);
        if (bytes < fewest)
            c->lower = v;
        fewest = bytes < fewest ? bytes : fewest;
        if (within && (!best || map->uniform[v].bytes < best->bytes))
            best = &map->uniform[v];
    }
    if (!best)
        return moe_fail(
            err, MOE_ERR_LIMIT,
            "--tolerance %g%% cannot be met: not even the highest precision is within it",
            map->tolerance);
    c->upper = (uint32_t)(best - map->uniform);
    /* Nothing to choose, or by bytes: importances then compare the best with the lowest. */
    if (map->tolerance < 0 || c->upper == c->lower || c->options->target_bytes)
        c->upper = 0;
    return MOE_OK;
}
