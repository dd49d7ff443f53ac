/* What the steps of a calibration measure with. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "study/calibrate_private.h"
#include "study/inputs_seen.h"

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
    const struct moe_inputs_options texts = {o->texts, o->n_texts, o->max_tokens, o->progress};
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

int calibrate_open_bench(struct bench_model *b, struct calibration *c, uint32_t dense_bits,
                         struct moe_err *err)
{
    const struct moe_rerun_options options = {.n_variants = c->map->n_variants,
                                              .progress = c->options->progress};
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
