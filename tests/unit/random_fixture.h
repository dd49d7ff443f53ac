/*
 * Random small models as packs, one at a time, opened with all experts in memory, and their choices
 * compared with those of the naive model.
 */
#ifndef TESTS_RANDOM_FIXTURE_H
#define TESTS_RANDOM_FIXTURE_H

#include "base/par.h"
#include "infer/session.h"
#include "kern/kern.h"

#include "naive_model.h"

static char path[128]; /* of the pack */

static inline int set_up(void **state)
{
    struct moe_err err = {0};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    snprintf(path, sizeof path, "/tmp/moe-random-%d.moe", (int)getpid());
    return 0;
}

static inline int tear_down(void **state)
{
    unlink(path);
    return 0;
}

/* A few words about a model, for messages. */
static inline const char *describe(const struct moe_config *c, uint64_t seed)
{
    static char text[600];
    struct moe_buf json = {0};
    moe_config_write(c, &json);
    snprintf(text, sizeof text, "seed %llu: %.*s", (unsigned long long)seed, 500,
             (const char *)json.data);
    moe_buf_release(&json);
    return text;
}

struct opened {
    struct moe_model *model;
    struct moe_experts *experts;
    struct moe_session *session;
};

static inline void open_session(struct opened *o, const struct moe_session_options *how)
{
    struct moe_err err = {0};
    assert_ok(moe_session_open(&o->session, o->model, o->experts, how, &err), &err);
}

/* rope_context: as of moe_model_open. */
static inline void open_pack(struct opened *o, uint32_t rope_context,
                             const struct moe_session_options *how)
{
    struct moe_err err = {0};
    assert_ok(moe_model_open(&o->model, path, rope_context, NULL, &err), &err);
    assert_ok(moe_experts_open_resident(&o->experts, o->model->pack, 0, NULL, NULL, &err), &err);
    open_session(o, how);
}

static inline void close_opened(struct opened *o)
{
    moe_session_close(o->session);
    moe_experts_close(o->experts);
    moe_model_close(o->model);
}

/* An observer's context. */
struct watched {
    const struct naive *want;     /* by sequence, or by source in an encoder's layers */
    const struct naive *decoders; /* by sequence; NULL: there is no encoder */
    uint32_t n_differing, n_over; /* choices so far: that are others, beyond a capacity */
};

static inline void compare_choices(void *ctx, uint32_t layer, const struct moe_row *rows,
                                   uint32_t n_rows, const float *gate_input, uint64_t hidden_stride,
                                   const float *probabilities, uint64_t router_stride,
                                   const uint32_t *chosen, const float *weights)
{
    struct watched *w = ctx;
    const struct moe_config *c = &w->want->m->c;
    bool decodes = w->decoders && !moe_config_in_encoder(c, layer);
    for (uint32_t i = 0; i < n_rows; i++) {
        const struct naive *t = &(decodes ? w->decoders : w->want)[rows[i].sequence];
        const struct naive_choice *want = &t->choices[layer * t->n + rows[i].position];
        for (uint32_t k = 0; k < c->top_k; k++) {
            float weight = weights[i * c->top_k + k];
            w->n_differing += chosen[i * c->top_k + k] != want->experts[k] ||
                              fabs((double)weight - want->weights[k]) > 1e-4 ||
                              (c->expert_capacity && (weight == 0) != (want->weights[k] == 0));
            w->n_over += c->expert_capacity && weight == 0;
        }
        for (uint32_t e = 0; e < c->n_experts; e++)
            w->n_differing +=
                fabs((double)probabilities[i * router_stride + e] - want->probabilities[e]) > 1e-4;
    }
}

#endif
