/*
 * Structure at every uniform bitwidth and with the chosen map, on the texts to judge on where there
 * are any, else on those to choose on (structure.h).
 */
#include <stdio.h>
#include <stdlib.h>

#include "study/calibrate_parts.h"
#include "study/structure.h"

enum { SEQUENCES = 16, NEW_TOKENS = 200 };

struct at {
    const uint8_t *table; /* [model layers][n_experts] */
    uint32_t n_experts, top_k;
};

static void assign(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                   const uint32_t *chosen, const float *weights, uint8_t *variants)
{
    const struct at *at = ctx;
    for (uint64_t i = 0; i < (uint64_t)n_rows * at->top_k; i++)
        variants[i] = at->table[(uint64_t)layer * at->n_experts + chosen[i]];
}

static int measure(struct calibration *c, struct moe_model *model, const uint8_t *table,
                   const char *name, struct moe_err *err)
{
    const struct moe_corpus *corpus = c->check ? c->check : c->corpus;
    struct at at = {table, c->map->n_experts, c->map->top_k};
    const struct moe_assigner assigner = {&at, assign};
    const struct moe_session_options session_options = {
        .context = model->rope_positions,
        .n_sequences = SEQUENCES,
        .batch = corpus->longest > SEQUENCES ? corpus->longest : SEQUENCES,
        .n_variants = c->map->n_variants,
    };
    const struct moe_structure_options options = {
        .documents = c->options->structure,
        .prompt_share = 0.5,
        .max_new = NEW_TOKENS,
        .progress = c->options->progress,
    };
    struct moe_session *session = NULL;
    int status = moe_session_open(&session, model, c->experts, &session_options, err);
    if (status == MOE_OK)
        session->assigner = &assigner;
    for (uint32_t t = 0; t < corpus->n_texts && status == MOE_OK; t++) {
        struct moe_map_structure *s = &c->map->structures[c->map->n_structures];
        if (c->map->n_structures == MOE_MAP_MAX_STRUCTURES)
            break;
        status = moe_structure_measure(session, corpus, t, &options, s, err);
        snprintf(s->experts, sizeof s->experts, "%s", name);
        c->map->n_structures += status == MOE_OK;
    }
    moe_session_close(session);
    return status;
}

static int measure_uniform(struct calibration *c, uint32_t variant, struct moe_err *err)
{
    uint8_t *table = calibrate_table(c, NULL, variant, err);
    int status =
        table ? measure(c, c->model, table, c->map->variants[variant], err) : MOE_ERR_MEMORY;
    free(table);
    return status;
}

static int measure_choice(struct calibration *c, struct moe_err *err)
{
    struct bench_model b;
    uint8_t *table = calibrate_table(c, c->map->choice.variant, 0, err);
    int status =
        table ? calibrate_open_bench(&b, c, c->map->choice.dense_bits, err) : MOE_ERR_MEMORY;
    if (status == MOE_OK) {
        status = measure(c, b.model, table, "map", err);
        calibrate_close_bench(&b, c);
    }
    free(table);
    return status;
}

/* The documents as they were written: what there is to be closed. */
static int measure_originals(struct calibration *c, struct moe_err *err)
{
    const struct moe_corpus *corpus = c->check ? c->check : c->corpus;
    int status = MOE_OK;
    for (uint32_t t = 0; t < corpus->n_texts && status == MOE_OK; t++) {
        struct moe_map_structure *s = &c->map->structures[c->map->n_structures];
        if (c->map->n_structures == MOE_MAP_MAX_STRUCTURES)
            break;
        status =
            moe_structure_originals(c->model->tokenizer, corpus, t, c->options->structure, s, err);
        snprintf(s->experts, sizeof s->experts, "text");
        c->map->n_structures += status == MOE_OK;
    }
    return status;
}

int calibrate_structure(struct calibration *c, struct moe_err *err)
{
    c->map->n_structures = 0;
    int status = measure_originals(c, err);
    for (uint32_t v = 0; v < c->map->n_variants && status == MOE_OK; v++)
        status = measure_uniform(c, v, err);
    if (status == MOE_OK && c->map->choice.there)
        status = measure_choice(c, err);
    return status;
}
