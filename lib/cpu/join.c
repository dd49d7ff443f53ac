/* What a layer that drafts takes in (run/ahead.h): the next token and the state, joined. */
#include "base/par.h"
#include "cpu/stages_cpu.h"
#include "kern/kern.h"
#include "layer/router.h"

struct join {
    struct moe_session *s;
    const struct moe_layer *layer;
    const struct moe_row *rows;
    const float *last_norm; /* of what has left the states */
    const uint32_t *from;   /* rows of h that they are made of; NULL: the same */
    uint32_t first;         /* of all rows, that is the first here */
};

/* Rows of `joined`: both halves, each under its norm. */
static void join_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct join *j = ctx;
    const struct moe_model *m = j->s->model;
    const struct moe_config *c = &m->config;
    const struct moe_states *states = &j->s->states;
    const struct cpu_work *w = j->s->device;
    for (int64_t i = begin; i < end; i++) {
        float *spare = states->xn + (uint64_t)i * states->stride;
        float *joined = w->joined + (uint64_t)i * w->joined_stride;
        moe_layout_load_row(&m->embed, j->rows[i].token, spare);
        if (c->embed_scale != 1)
            moe_kern.scale(c->embed_scale, c->hidden, spare);
        moe_norm_row(c, spare, j->layer->ahead_token_norm, NULL, joined);
        const uint64_t row = j->first + (uint64_t)i, state = j->from ? j->from[row] : row;
        moe_norm_row(c, states->h + state * states->stride, j->last_norm, NULL, spare);
        moe_norm_row(c, spare, j->layer->ahead_state_norm, NULL, joined + c->hidden);
    }
}

int stages_cpu_join(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                    uint32_t n_rows, const uint32_t *from, struct moe_err *err)
{
    struct cpu_work *w = s->device;
    const struct moe_model *m = s->model;
    const struct moe_layer *l = &m->layers[layer];
    const struct moe_states *states = &s->states;
    (void)err;
    /* Some rows at a time. Their products take the place of states that were read: row i is never
     * behind the row that it is made of. */
    for (uint32_t at = 0; at < n_rows; at += CPU_JOINED_ROWS) {
        uint32_t n = n_rows - at < CPU_JOINED_ROWS ? n_rows - at : CPU_JOINED_ROWS;
        struct join j = {s, l, rows + at, s->drafts ? l->ahead_norm : m->final_norm, from, at};
        moe_par_for(n, 1, join_rows, &j);
        moe_inputs_set(&w->from_joined, w->joined, w->joined_stride, NULL, n, 2 * m->config.hidden);
        struct moe_mm mm = moe_inputs_mm(&w->from_joined, l->ahead_join,
                                         states->h + at * states->stride, states->stride);
        moe_matmul(&mm, 1);
    }
    return MOE_OK;
}
