/* What the steps of a calibration measure with. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "calibrate/calibrate_private.h"
#include "calibrate/importance.h"
#include "calibrate/inputs_seen.h"
#include "engine/engine.h"

/* What a process takes beyond what is counted: stacks, buffers of the heap, maps being written. */
enum {
    SLACK = 8 << 20,
    FLOOR_ROOM = 2 << 20, /* the program's own size varies a little; a whole MiB is named */
};

/* ---- The dense part ---- */

int calibrate_choose_rounding(struct calibration *c, struct moe_err *err)
{
    const struct moe_calibrate_options *o = c->options;
    int status = moe_dense_rounding_of(c->model->pack, &c->dense, err);
    if (status != MOE_OK)
        return status;
    if (o->method)
        c->dense.method = o->method;
    for (uint32_t i = 0; i < o->n_dense_bits; i++)
        if (o->dense_bits[i] != moe_dense_bits(c->model)) {
            snprintf(c->map->dense_method, sizeof c->map->dense_method, "%s",
                     c->dense.method->name);
            c->map->dense_group = c->dense.method->per_row ? 0 : c->dense.group;
        }
    return MOE_OK;
}

/* ---- Bytes ---- */

uint64_t calibrate_expert_bytes(const struct calibration *c, uint32_t layer, uint32_t expert,
                                uint32_t variant)
{
    const struct moe_expert_extent *e =
        moe_pack_expert(c->model->pack, c->map->model_layer[layer], expert, variant);
    uint64_t bytes = 0;
    for (uint32_t s = 0; e->present && s < MOE_PACK_MAX_SEGMENTS; s++)
        bytes += e->segments[s].stored_bytes;
    return bytes;
}

uint64_t calibrate_all_bytes(const struct calibration *c, uint32_t variant)
{
    uint64_t bytes = 0;
    for (uint32_t layer = 0; layer < c->map->n_layers; layer++)
        for (uint32_t e = 0; e < c->map->n_experts; e++) {
            uint32_t usable =
                moe_pack_usable_variant(c->model->pack, c->map->model_layer[layer], e, variant);
            bytes += calibrate_expert_bytes(c, layer, e, usable);
        }
    return bytes;
}

uint64_t calibrate_dense_bytes(const struct calibration *c, uint32_t bits)
{
    return moe_dense_bytes(c->model, &c->dense, bits);
}

/* ---- Rules ---- */

/* A table for moe_rule_of_table: [model layers][n_experts] from variants[MoE layers][n_experts];
 * NULL: all at `variant`. free() it; NULL: out of memory. */
static uint8_t *make_table(const struct calibration *c, const uint8_t *variants, uint32_t variant,
                           struct moe_err *err)
{
    uint64_t n = c->map->n_experts;
    uint8_t *table = moe_alloc(c->model->config.n_layers, n, err);
    for (uint32_t layer = 0; table && layer < c->map->n_layers; layer++) {
        uint8_t *to = table + c->map->model_layer[layer] * n;
        if (variants)
            memcpy(to, variants + layer * n, n);
        else
            memset(to, (int)variant, n);
    }
    return table;
}

/* ---- Models to measure ---- */

/* The model with its dense part at fewer bits. A method that compensates is given the inputs that
 * the matrices see on the texts to choose on, as moe-quantize --text would. */
static int derive(struct moe_model **out, const struct calibration *c, uint32_t bits,
                  struct moe_err *err)
{
    const struct moe_calibrate_options *o = c->options;
    const struct moe_inputs_options texts = {o->texts,       o->n_texts,  o->max_tokens,
                                             o->max_windows, o->progress, NULL};
    struct moe_dense_rounding how = c->dense;
    struct moe_inputs_seen *seen = NULL;
    int status = MOE_OK;
    if (how.method->compensates)
        status = moe_inputs_seen_open(&seen, moe_pack_path(c->model->pack), &texts, err);
    if (status == MOE_OK) {
        how.inputs = seen ? moe_inputs_seen_of(seen) : NULL;
        status = moe_dense_derive(out, c->model, &how, bits, err);
    }
    moe_inputs_seen_close(seen);
    return status;
}

struct moe_rerun_options calibrate_rerun_options(const struct calibration *c, bool keeps_states)
{
    const struct moe_calibrate_options *o = c->options;
    uint32_t context = c->model->config.context_max;
    uint32_t tokens = o->max_tokens < context ? o->max_tokens : context;
    return (struct moe_rerun_options){
        .keeps_states = keeps_states,
        .answer_tokens = o->judge == MOE_JUDGE_NATS ? 0 : tokens,
        .n_variants = moe_pack_n_variants(c->model->pack),
        .progress = o->progress,
    };
}

int calibrate_open_bench(struct bench_model *b, struct calibration *c, uint32_t dense_bits,
                         struct moe_err *err)
{
    const struct moe_rerun_options options = calibrate_rerun_options(c, false);
    *b = c->own;
    if (dense_bits == c->own.dense_bits)
        return MOE_OK;
    *b = (struct bench_model){
        .dense_bits = dense_bits,
        .dense_bytes = calibrate_dense_bytes(c, dense_bits),
    };
    int status = derive(&b->derived, c, dense_bits, err);
    b->model = b->derived;
    if (status == MOE_OK)
        status = moe_rerun_open(&b->rerun, b->model, c->experts, c->corpus, &options, err);
    if (status == MOE_OK && c->check)
        status = moe_rerun_open(&b->check_rerun, b->model, c->experts, c->check, &options, err);
    if (status != MOE_OK)
        calibrate_close_bench(b, c);
    return status;
}

void calibrate_close_bench(struct bench_model *b, const struct calibration *c)
{
    if (b->rerun != c->own.rerun)
        moe_rerun_close(b->rerun);
    if (b->check_rerun != c->own.check_rerun)
        moe_rerun_close(b->check_rerun);
    moe_dense_release(b->derived);
    *b = (struct bench_model){0};
}

int calibrate_measure(struct calibration *c, const struct bench_model *b, bool check,
                      const struct moe_rule *rule, struct moe_loss *loss,
                      struct moe_quality *quality, struct moe_err *err)
{
    const struct moe_quality *reference = check ? &c->check_reference : &c->reference;
    struct moe_quality q;
    int status = moe_quality_measure(&q, check ? b->check_rerun : b->rerun, rule, reference, err);
    if (status != MOE_OK)
        return status;
    moe_quality_loss(&q, reference, 0, q.corpus->n_documents, loss);
    if (quality)
        *quality = q;
    else
        moe_quality_release(&q);
    return MOE_OK;
}

int calibrate_measure_variants(struct calibration *c, const struct bench_model *b, bool check,
                               const uint8_t *variants, uint32_t variant, struct moe_loss *loss,
                               struct moe_quality *quality, struct moe_err *err)
{
    uint8_t *table = make_table(c, variants, variant, err);
    struct moe_rule_table at = {table, c->map->n_experts, c->map->top_k};
    const struct moe_rule rule = moe_rule_of_table(&at);
    int status = table ? calibrate_measure(c, b, check, &rule, loss, quality, err) : MOE_ERR_MEMORY;
    free(table);
    return status;
}

int calibrate_reference(struct calibration *c, struct moe_rerun *rerun, uint32_t variant,
                        struct moe_quality *out, struct moe_err *err)
{
    uint8_t *table = make_table(c, NULL, variant, err);
    struct moe_rule_table at = {table, c->map->n_experts, c->map->top_k};
    const struct moe_rule rule = moe_rule_of_table(&at);
    int status = table ? moe_quality_measure(out, rerun, &rule, NULL, err) : MOE_ERR_MEMORY;
    free(table);
    return status;
}

/* ---- The budget ---- */

/* Of measuring on texts: re-runs, references kept, and a few other measurements at a time. */
static uint64_t bench_bytes(const struct calibration *c, const struct moe_corpus *corpus,
                            const struct moe_rerun_options *rerun, uint64_t n_references)
{
    enum { MEASUREMENTS = 8 };
    uint64_t n_benches = c->options->n_dense_bits > 1 ? 2 : 1;
    return n_benches * moe_rerun_bytes(&c->model->config, corpus, rerun) +
           n_references * moe_quality_bytes(corpus, true) +
           MEASUREMENTS * moe_quality_bytes(corpus, false);
}

struct moe_documents calibrate_documents(const struct calibration *c)
{
    return (struct moe_documents){
        .tokenizer = c->model->tokenizer,
        .max_tokens = c->options->max_tokens,
        .max_windows = c->options->max_windows,
        .pairs = c->options->pairs,
        .decoder_start = c->model->config.decoder_start,
        .progress = c->options->progress,
    };
}

int calibrate_survey(struct calibration *c, const struct moe_rerun_options *rerun, uint32_t context,
                     uint64_t directory, struct calibration_need *need, struct moe_err *err)
{
    const struct moe_calibrate_options *o = c->options;
    const struct moe_model *m = c->model;
    struct moe_corpus corpus, check;
    uint64_t bytes = 0, check_bytes = 0, reading = 0, check_reading = 0;
    uint64_t free_bytes = moe_available_bytes();
    need->budget = o->memory_bytes            ? o->memory_bytes
                   : free_bytes == UINT64_MAX ? UINT64_MAX
                                              : free_bytes + moe_rss_bytes();
    uint64_t may_hold = moe_engine_room_of(need->budget, context).may_hold;
    moe_experts_every_bytes(m->pack, &need->least, &need->all);
    need->taken = moe_rss_bytes() + moe_model_load_bytes(m, context) + SLACK;
    const struct moe_documents documents = calibrate_documents(c);
    int status = moe_corpus_survey(&corpus, &bytes, &reading, &documents, o->texts, o->n_texts,
                                   may_hold, err);
    if (status == MOE_OK && o->n_checks)
        status = moe_corpus_survey(&check, &check_bytes, &check_reading, &documents, o->checks,
                                   o->n_checks, may_hold, err);
    if (status != MOE_OK)
        return status;
    need->reading =
        need->taken + bytes + check_bytes + (reading > check_reading ? reading : check_reading);
    need->taken += bytes + bench_bytes(c, &corpus, rerun, 2);
    need->taken +=
        moe_importance_bytes(&m->config, &corpus, moe_rerun_rows(&corpus, rerun), need->least);
    uint64_t routing = calibrate_routing_bytes(c, &corpus),
             check_routing = o->n_checks ? calibrate_routing_bytes(c, &check) : 0;
    need->taken += routing > check_routing ? routing : check_routing;
    if (o->n_checks)
        need->taken += check_bytes + bench_bytes(c, &check, rerun, 1);
    if (o->n_dense_bits > 1)
        need->taken += m->weights_bytes;
    struct moe_dense_rounding rounding;
    status = moe_dense_rounding_of(m->pack, &rounding, err);
    if (status != MOE_OK)
        return status;
    const struct moe_quant_method *method = o->method ? o->method : rounding.method;
    if (o->n_dense_bits > 0 && method->compensates)
        need->taken += moe_inputs_seen_bytes(m, &corpus) + bytes + reading + directory;
    return MOE_OK;
}

uint64_t calibrate_floor(const struct calibration_need *need)
{
    uint64_t floor = need->taken + need->least;
    return floor > need->reading ? floor : need->reading;
}

int calibrate_check_budget(const struct calibration *c, const struct calibration_need *need,
                           struct moe_err *err)
{
    char have[32], wanted[32];
    uint64_t floor = calibrate_floor(need);
    if (need->budget >= floor)
        return MOE_OK;
    return moe_fail(err, MOE_ERR_LIMIT,
                    "%s: a budget of %s is too small: the smallest that works is %s (--memory "
                    "%" PRIu64 "M; shorter or fewer texts need less)",
                    moe_pack_path(c->model->pack), moe_format_bytes(need->budget, have),
                    moe_format_bytes(floor, wanted), (floor + FLOOR_ROOM) >> 20);
}
