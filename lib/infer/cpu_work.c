/* The memory that a session on the processor computes in, carved from two blocks: what grows with
 * the rows of a pass is given back after large ones where it was borrowed. */
#define _DEFAULT_SOURCE /* sysconf */
#include "infer/cpu_stages.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/par.h"
#include "infer/router.h"

/* ---- Sizes: one function carves, counting or for real ---- */

/* Of what passes use of their rows, row by row from the first on; and of all else. */
struct carving {
    struct moe_arena rows, other;
};

/* Inputs of products of n heads, or groups of them, by themselves. */
static void carve_heads(struct cpu_attention *a, struct carving *to, uint32_t n, uint32_t batch,
                        uint32_t width)
{
    a->head_products = moe_arena_take(&to->other, n, sizeof *a->head_products);
    a->head_acts = moe_arena_take(&to->other, n, sizeof *a->head_acts);
    for (uint32_t i = 0; i < n; i++) {
        struct moe_act measure;
        moe_act_carve(a->head_acts ? &a->head_acts[i] : &measure, &to->rows, batch, width);
    }
}

/* What latent attention needs in addition. */
static void carve_latent(struct cpu_attention *a, struct carving *to, const struct moe_config *c,
                         uint32_t batch)
{
    uint32_t width = 0, heads = 0;
    for (uint32_t layer = 0; layer <= c->n_layers; layer++) { /* the last: one that drafts */
        uint32_t rank = moe_config_kv_rank(c, layer), head = moe_config_head_dim(c, layer);
        if (rank == 0) /* the model's and a head's that drafts need not both be latent */
            continue;
        width = (uint32_t)moe_larger(width, moe_larger(head - moe_config_rotated(c, layer), rank));
        heads = (uint32_t)moe_larger(heads, moe_config_heads(c, layer));
    }
    a->q_down = moe_arena_take(&to->rows, batch * a->stride.q_down, sizeof(float));
    a->queries = moe_arena_take(&to->rows, batch * a->stride.queries, sizeof(float));
    a->attended = moe_arena_take(&to->rows, batch * a->stride.attended, sizeof(float));
    moe_inputs_carve(&a->from_q_down, &to->rows, batch, (uint32_t)a->stride.q_down);
    carve_heads(a, to, heads, batch, width);
}

/* ... and shared keys: what groups of heads take in, and what the last matrix does. */
static void carve_shared_keys(struct cpu_attention *a, struct carving *to,
                              const struct moe_config *c, uint32_t batch)
{
    a->q_down = moe_arena_take(&to->rows, batch * a->stride.q_down, sizeof(float));
    a->low_stride = moe_padded(c->out_groups * c->out_rank);
    a->low = moe_arena_take(&to->rows, batch * a->low_stride, sizeof(float));
    moe_inputs_carve(&a->from_q_down, &to->rows, batch, c->q_rank);
    moe_inputs_carve(&a->from_low, &to->rows, batch, c->out_groups * c->out_rank);
    carve_heads(a, to, c->out_groups, batch, c->n_heads * c->head_dim / c->out_groups);
}

static void carve_attention(struct cpu_attention *a, struct carving *to, const struct moe_config *c,
                            const struct moe_session_options *o, int n_threads)
{
    const uint32_t n = o->batch;
    uint64_t batch = n;
    a->stride = moe_attention_strides(c);
    a->q = moe_arena_take(&to->rows, batch * a->stride.q, sizeof(float));
    a->out = moe_arena_take(&to->rows, batch * a->stride.out, sizeof(float));
    a->k = moe_arena_take(&to->rows, batch * a->stride.k, sizeof(float));
    a->v = moe_arena_take(&to->rows, batch * a->stride.v, sizeof(float));
    if (c->attn_gate)
        a->gate = moe_arena_take(&to->rows, batch * a->stride.out, sizeof(float));
    a->rel_stride =
        moe_padded((uint64_t)c->rel_dim * moe_larger(c->n_heads, moe_config_global_heads(c)));
    a->rel = moe_arena_take(&to->rows, batch * a->rel_stride, sizeof(float));
    if (c->own_sinks) {
        a->sinks_stride = moe_padded(moe_larger(c->n_heads, moe_config_global_heads(c)));
        a->own_sinks = moe_arena_take(&to->rows, batch * a->sinks_stride, sizeof(float));
    }
    if (c->own_taps) {
        a->taps_stride =
            moe_padded((uint64_t)c->conv_width * moe_larger(c->n_kv_heads, c->global_kv_heads));
        a->own_taps = moe_arena_take(&to->rows, batch * a->taps_stride, sizeof(float));
    }
    if (c->own_inputs) {
        a->own_in = moe_arena_take(&to->rows, batch * moe_padded(c->hidden), sizeof(float));
        moe_inputs_carve(&a->from_own, &to->rows, n, c->hidden);
    }
    a->queries = a->q;
    a->attended = a->out;
    if (c->out_groups)
        carve_shared_keys(a, to, c, n);
    if (c->kv_rank || c->drafter.kv_rank)
        carve_latent(a, to, c, n);
    if (c->attn_experts) {
        uint64_t n_chosen = batch * (c->n_heads / c->n_kv_heads);
        a->scores_stride = moe_padded(c->attn_experts);
        a->expert_scores = moe_arena_take(&to->rows, batch * a->scores_stride, sizeof(float));
        a->expert_weights = moe_arena_take(&to->rows, n_chosen, sizeof(float));
        a->expert_chosen = moe_arena_take(&to->rows, n_chosen, sizeof(uint32_t));
        a->expert_rows = moe_arena_take(&to->rows, batch, sizeof(uint32_t));
        moe_inputs_carve(&a->from_rows, &to->rows, n, c->hidden);
    }
    if (c->state_heads && c->state_kind == MOE_STATE_CCA)
        carve_heads(a, to, c->n_heads + c->n_kv_heads, n, 2 * c->head_dim);
    a->tiles = moe_arena_take(&to->rows, moe_attention_max_tiles(c, n), sizeof *a->tiles);
    a->scratch_floats = moe_attention_scratch_floats(c, o->kv_kind);
    a->scratch = moe_arena_take(&to->other, (uint64_t)n_threads * a->scratch_floats, sizeof(float));
    const uint64_t out = moe_larger(c->n_heads * c->value_dim,
                                    moe_config_global_heads(c) * moe_config_global_value(c));
    moe_inputs_carve(&a->from_out, &to->rows, n,
                     moe_larger(out, c->drafter.n_heads * c->drafter.value_dim));
}

static void carve_index(struct cpu_index *x, struct carving *to, const struct moe_config *c,
                        const struct moe_session_options *o)
{
    uint64_t batch = o->batch, n_tiles = (c->index_heads + MOE_TILE - 1) / MOE_TILE;
    x->q_stride = moe_padded((uint64_t)c->index_heads * c->index_dim);
    x->k_stride = moe_padded(c->index_dim) << c->index_pooled;
    x->weights_stride = moe_padded(c->index_heads);
    x->q = moe_arena_take(&to->rows, batch * x->q_stride, sizeof(float));
    x->k = moe_arena_take(&to->rows, batch * x->k_stride, sizeof(float));
    x->weights = moe_arena_take(&to->rows, batch * x->weights_stride, sizeof(float));
    if (c->index_means)
        x->cells = moe_arena_take(
            &to->other, (uint64_t)moe_par_threads() * c->index_block * moe_config_index_cell(c),
            sizeof(float));
    x->seen = moe_config_index_sees(c);
    x->top = o->context > x->seen ? c->index_top : 0;
    if (!x->top)
        return;
    uint64_t per_thread = (uint64_t)MOE_TILE * MOE_ATTENTION_CHUNK;
    x->tiles = moe_arena_take(&to->other, n_tiles * c->index_dim * MOE_TILE, sizeof(float));
    x->scores_stride = moe_padded(o->context);
    x->scores = moe_arena_take(&to->other, x->scores_stride * (c->index_block ? c->index_heads : 1),
                               sizeof(float));
    x->scratch =
        moe_arena_take(&to->other, (uint64_t)moe_par_threads() * per_thread, sizeof(float));
    x->places_stride = c->index_means   ? x->top / c->index_block + 1
                       : c->index_block ? (uint64_t)c->index_heads * (x->top / c->index_block)
                                        : x->top;
    x->places = moe_arena_take(&to->rows, batch * x->places_stride, sizeof *x->places);
    x->of = moe_arena_take(&to->rows, batch, sizeof *x->of);
    x->chosen = moe_kv_chosen_shape(c, o, x->seen);
    x->table = moe_arena_take(&to->other, x->chosen.per_sequence, sizeof *x->table);
    x->chosen.whole.keys = moe_arena_take(&to->other, x->chosen.bytes, 1);
}

static void carve_feed_forward(struct cpu_feed_forward *f, struct carving *to,
                               const struct moe_config *c, uint32_t batch, int n_threads)
{
    uint32_t dense = c->dense_ff << (moe_config_count_layers(c, MOE_LAYER(wide_ffn)) > 0);
    uint32_t width = moe_larger(moe_larger(dense, c->expert_ff), c->shared_ff);
    width = moe_larger(moe_larger(width, c->layer_embed), c->adjugate_ff);
    width = moe_larger(width, c->drafter.dense_ff);
    uint64_t n_rows = moe_larger(batch, c->top_k);
    f->stride = moe_padded(width);
    f->router_stride = moe_router_stride(c);
    f->gate = moe_arena_take(&to->rows, n_rows * f->stride, sizeof(float));
    f->up = moe_arena_take(&to->rows, n_rows * f->stride, sizeof(float));
    f->probabilities = moe_arena_take(&to->rows, batch * f->router_stride, sizeof(float));
    if (c->router_early) {
        uint64_t n = (uint64_t)batch * c->top_k;
        f->seen_chosen = moe_arena_take(&to->rows, n, sizeof *f->seen_chosen);
        f->seen_weights = moe_arena_take(&to->rows, n, sizeof *f->seen_weights);
    }
    moe_router_room_carve(&f->router, &to->rows, c, batch);
    f->router_scratch =
        moe_arena_take(&to->other, (uint64_t)n_threads * 2 * f->router_stride, sizeof(float));
    f->shared_scale = moe_arena_take(&to->rows, (uint64_t)batch * MOE_PANEL_ROWS, sizeof(float));
    f->bypass = moe_arena_take(&to->rows, c->soft_bypass ? batch * moe_padded(c->hidden) : 0,
                               sizeof(float));
    moe_inputs_carve(&f->gathered, &to->rows, batch, c->hidden);
    moe_inputs_carve(&f->from_gate, &to->rows, batch, width);
    f->single = moe_arena_take(&to->other, moe_larger(c->top_k, 1), sizeof *f->single);
    for (uint32_t i = 0; i < moe_larger(c->top_k, 1); i++) {
        struct moe_inputs measure = {0};
        moe_inputs_carve(f->single ? &f->single[i] : &measure, &to->other, 1,
                         moe_larger(moe_larger(c->expert_ff, c->adjugate_ff), 1));
    }
}

static void carve_recurrent(struct cpu_work *w, struct carving *to, const struct moe_config *c,
                            uint32_t n)
{
    struct cpu_recurrent *r = &w->recurrent;
    uint64_t batch = n;
    const struct moe_recurrent_strides strides = moe_recurrent_strides(c);
    r->values_stride = strides.values;
    r->heads_stride = strides.heads;
    r->decay_stride = strides.decay;
    r->low_stride = moe_padded(strides.low);
    r->mixed_stride = w->states.stride << (c->state_kind == MOE_STATE_CCA);
    r->mixed = moe_arena_take(&to->rows, batch * r->mixed_stride, sizeof(float));
    r->gate = moe_arena_take(&to->rows, batch * r->values_stride, sizeof(float));
    r->out = moe_arena_take(&to->rows, batch * r->values_stride, sizeof(float));
    r->beta = moe_arena_take(&to->rows, batch * r->heads_stride, sizeof(float));
    r->decay = moe_arena_take(&to->rows, batch * r->decay_stride, sizeof(float));
    for (int i = 0; i < 2 && strides.low; i++) {
        r->low[i] = moe_arena_take(&to->rows, batch * r->low_stride, sizeof(float));
        moe_inputs_carve(&r->from_low[i], &to->rows, n, strides.low);
    }
    moe_inputs_carve(&r->from_out, &to->rows, n, c->state_heads * c->state_value_dim);
}

static void carve_entries(struct cpu_entries *e, struct carving *to, const struct moe_config *c,
                          const struct moe_session_options *o, int n_threads)
{
    uint64_t batch = o->batch, n = 0;
    for (uint32_t layer = 0; layer < c->n_layers; layer++) {
        if (c->layers[layer].compression == MOE_COMPRESS_NOT)
            continue;
        uint64_t stride = moe_compressed_row(c, layer).stride;
        e->made_stride = stride > e->made_stride ? stride : e->made_stride;
        if (c->layers[layer].compression == MOE_COMPRESS_CHOSEN)
            n = moe_padded(o->context / c->chosen_ratio + 1);
    }
    e->queries_stride = moe_padded((uint64_t)c->index_heads * c->index_dim);
    e->weights_stride = moe_padded(c->index_heads);
    e->scratch_stride = moe_index_scratch_floats(c, n);
    e->made = moe_arena_take(&to->rows, batch * e->made_stride, sizeof *e->made);
    e->completed = moe_arena_take(&to->rows, batch, sizeof *e->completed);
    if (n == 0)
        return;
    e->queries = moe_arena_take(&to->rows, batch * e->queries_stride, sizeof *e->queries);
    e->weights = moe_arena_take(&to->rows, batch * e->weights_stride, sizeof *e->weights);
    e->scratch =
        moe_arena_take(&to->other, (uint64_t)n_threads * e->scratch_stride, sizeof *e->scratch);
    e->chosen = moe_arena_take(&to->rows, batch * c->index_top, sizeof *e->chosen);
    e->n_chosen = moe_arena_take(&to->rows, batch, sizeof *e->n_chosen);
}

static void carve_streams(struct cpu_streams *st, struct carving *to, const struct moe_config *c,
                          uint32_t batch)
{
    uint32_t width = c->n_streams * c->hidden, normed = c->stream_layers ? c->hidden : width;
    st->stride = moe_padded(moe_config_state_width(c));
    st->normed_stride = moe_padded(normed);
    st->mix_stride = moe_padded((2 + c->n_streams) * c->n_streams);
    st->streams = moe_arena_take(&to->rows, batch * st->stride, sizeof *st->streams);
    st->normed = moe_arena_take(&to->rows, batch * st->normed_stride, sizeof *st->normed);
    st->mix = moe_arena_take(&to->rows, batch * st->mix_stride, sizeof *st->mix);
    if (!c->stream_layers)
        moe_inputs_carve(&st->from_all, &to->rows, batch, width);
    if (c->loop_rank) {
        st->low_stride = moe_padded(c->loop_rank);
        st->both_stride = moe_padded(2 * c->hidden);
        st->low = moe_arena_take(&to->rows, batch * st->low_stride, sizeof *st->low);
        st->both = moe_arena_take(&to->rows, batch * st->both_stride, sizeof *st->both);
        st->message = moe_arena_take(&to->rows, batch * st->normed_stride, sizeof *st->message);
        st->forget = moe_arena_take(&to->rows, batch * st->normed_stride, sizeof *st->forget);
        st->gates = moe_arena_take(&to->rows, batch * st->normed_stride, sizeof *st->gates);
        moe_inputs_carve(&st->from_both, &to->rows, batch, 2 * c->hidden);
        moe_inputs_carve(&st->from_low, &to->rows, batch, c->loop_rank);
    }
    if (!c->stream_rank)
        return;
    st->low_stride = moe_padded(c->stream_rank);
    st->gates = moe_arena_take(&to->rows, batch * st->normed_stride, sizeof *st->gates);
    st->low = moe_arena_take(&to->rows, batch * st->low_stride, sizeof *st->low);
    moe_inputs_carve(&st->from_low, &to->rows, batch, c->stream_rank);
}

static void carve_ngrams(struct cpu_ngrams *g, struct carving *to, const struct moe_config *c,
                         uint32_t batch, int n_threads)
{
    uint64_t n = (uint64_t)(c->ngrams - 1) * c->ngram_heads;
    g->embeds_stride = moe_padded(n * c->ngram_dim);
    g->keys_stride = moe_padded((uint64_t)c->n_streams * c->hidden);
    g->value_stride = moe_padded(c->hidden);
    g->joined_stride =
        moe_padded(moe_larger(moe_config_ngrams_joined(c) * c->ngram_dim, c->hidden));
    g->rows = moe_arena_take(&to->rows, batch * n, sizeof *g->rows);
    g->joined = moe_arena_take(&to->other, (uint64_t)n_threads * g->joined_stride, sizeof(float));
    g->embeds = moe_arena_take(&to->rows, batch * g->embeds_stride, sizeof(float));
    g->keys = moe_arena_take(&to->rows, batch * g->keys_stride, sizeof(float));
    g->value = moe_arena_take(&to->rows, batch * g->value_stride, sizeof(float));
    g->weights = moe_arena_take(&to->rows, (uint64_t)batch * MOE_MAX_STREAMS, sizeof(float));
    moe_inputs_carve(&g->from_embeds, &to->rows, batch, (uint32_t)n * c->ngram_dim);
}

static void carve_joined(struct cpu_work *w, struct carving *to, const struct moe_config *c,
                         uint32_t batch)
{
    const bool drafter = moe_config_is_drafter(c, c->n_layers);
    uint32_t n = batch < CPU_JOINED_ROWS || drafter ? batch : CPU_JOINED_ROWS;
    if (c->drafter.block == 0) {
        w->joined_stride = moe_padded(2 * (uint64_t)c->hidden);
        w->joined = moe_arena_take(&to->rows, n * w->joined_stride, sizeof(float));
        moe_inputs_carve(&w->from_joined, &to->rows, n, 2 * c->hidden);
    }
    if (!drafter)
        return;
    w->reads_stride = moe_padded((uint64_t)c->drafter.n_reads * c->hidden);
    w->reads = moe_arena_take(&to->rows, batch * w->reads_stride, sizeof(float));
    moe_inputs_carve(&w->from_reads, &to->rows, batch, c->drafter.n_reads * c->hidden);
    if (c->drafter.markov_rank == 0)
        return;
    w->markov_stride = moe_padded(c->drafter.markov_rank);
    w->markov = moe_arena_take(&to->other, w->markov_stride, sizeof(float));
    w->followed = moe_arena_take(&to->other, moe_logits_stride(c), sizeof(float));
    moe_inputs_carve(&w->from_markov, &to->other, 1, c->drafter.markov_rank);
}

static void carve_cpu_work(struct cpu_work *w, struct moe_states *states, struct carving *to,
                           const struct moe_config *c, const struct moe_session_options *o)
{
    uint64_t batch = o->batch;
    int n_threads = moe_par_threads();
    states->stride = moe_padded(c->hidden);
    states->h = moe_arena_take(&to->rows, batch * states->stride, sizeof(float));
    states->xn = moe_arena_take(&to->rows, batch * states->stride, sizeof(float));
    states->expert_out =
        moe_arena_take(&to->rows, batch * moe_larger(c->top_k, 1) * states->stride, sizeof(float));
    moe_inputs_carve(&states->inputs, &to->rows, o->batch, c->hidden);
    states->expert_in = states->xn;
    if (c->expert_dim) {
        states->expert_in = moe_arena_take(&to->rows, batch * states->stride, sizeof(float));
        moe_inputs_carve(&states->narrow_inputs, &to->rows, o->batch, c->expert_dim);
    }
    w->sum = moe_arena_take(&to->rows, batch * states->stride, sizeof(float));
    if (c->late_experts)
        w->late = moe_arena_take(&to->rows, batch * states->stride, sizeof(float));
    if (c->router_dim)
        states->routed = moe_arena_take(&to->rows, batch * states->stride, sizeof(float));
    w->layer_stride = moe_padded((uint64_t)c->n_layers * c->layer_embed);
    w->of_layers = moe_arena_take(&to->rows, batch * w->layer_stride, sizeof(float));
    w->own_embeds =
        moe_arena_take(&to->other, (uint64_t)n_threads * w->layer_stride, sizeof(float));
    carve_attention(&w->attention, to, c, o, n_threads);
    if (moe_config_picks_positions(c))
        carve_index(&w->index, to, c, o);
    carve_feed_forward(&w->ff, to, c, o->batch, n_threads);
    w->states = moe_recurrent_shape(c, moe_session_states(o));
    if (w->states.n_layers && c->state_kind != MOE_STATE_TAPS)
        carve_recurrent(w, to, c, o->batch);
    w->compressed = moe_compressed_shape(c, o);
    if (w->compressed.bytes)
        carve_entries(&w->entries, to, c, o, n_threads);
    if (c->n_streams)
        carve_streams(&w->streams, to, c, o->batch);
    if (c->ngrams)
        carve_ngrams(&w->ngrams, to, c, o->batch, n_threads);
    if (c->n_drafting)
        carve_joined(w, to, c, o->batch);
    w->source_kv = o->n_sources ? moe_kv_source_shape(c, o) : (struct moe_kv){0};
    w->source_table = moe_arena_take(&to->other, (uint64_t)o->n_sources * w->source_kv.per_sequence,
                                     sizeof *w->source_table);
}

uint64_t cpu_work_bytes(const struct moe_config *c, const struct moe_session_options *o)
{
    struct cpu_work w = {0};
    struct moe_states states = {0};
    struct carving sizes = {0};
    carve_cpu_work(&w, &states, &sizes, c, o);
    struct moe_kv kv = moe_kv_shape(c, o);
    /* Where memory is given back, the first rows of each array end in a page of their own, and so
     * do the keys and the values of each block. */
    uint64_t sum, n_ends = o->own_rows ? sizes.rows.n_taken : 0;
    n_ends += o->kv_grows ? 2 * (uint64_t)kv.whole.n_blocks : 0;
    const uint64_t ends = n_ends * (uint64_t)sysconf(_SC_PAGESIZE);
    bool fits =
        !sizes.rows.overflowed && !sizes.other.overflowed &&
        moe_add_u64(sizes.rows.used, sizes.other.used, &sum) && moe_add_u64(sum, ends, &sum) &&
        moe_add_u64(sum, kv.bytes, &sum) && moe_add_u64(sum, w.source_kv.bytes, &sum) &&
        moe_add_u64(sum, w.states.bytes, &sum) && moe_add_u64(sum, w.compressed.bytes, &sum);
    return fits ? sum : UINT64_MAX;
}

uint64_t cpu_work_rows_bytes(const struct moe_config *c, const struct moe_session_options *o,
                             uint32_t n_rows)
{
    struct cpu_work w = {0};
    struct moe_states states = {0};
    struct carving sizes = {0};
    struct moe_session_options few = *o;
    few.batch = n_rows;
    carve_cpu_work(&w, &states, &sizes, c, &few);
    return sizes.rows.overflowed ? UINT64_MAX : sizes.rows.used;
}

/* ---- Open and close ---- */

static int allocate_kv(struct moe_kv *kv, struct moe_err *err)
{
    uint8_t *memory = moe_pages_alloc(kv->bytes, err);
    if (!memory)
        return MOE_ERR_MEMORY;
    moe_kv_place(kv, memory);
    return MOE_OK;
}

static int allocate_cpu_work(struct cpu_work *w, struct moe_states *states,
                             const struct moe_config *c, const struct moe_session_options *o,
                             struct moe_err *err)
{
    struct carving to = {0};
    carve_cpu_work(w, states, &to, c, o);
    w->rows_bytes = to.rows.used;
    w->other_bytes = to.other.used;
    w->rows = moe_pages_alloc(w->rows_bytes, err);
    w->other = moe_pages_alloc(w->other_bytes, err);
    if (!w->rows || !w->other)
        return MOE_ERR_MEMORY;
    w->own_rows = o->own_rows;
    if (w->own_rows) /* huge pages would take more than the rows in use */
        moe_pages_drop(w->rows, w->rows_bytes);
    to.rows = (struct moe_arena){.base = w->rows, .size = w->rows_bytes};
    to.other = (struct moe_arena){.base = w->other, .size = w->other_bytes};
    carve_cpu_work(w, states, &to, c, o);
    w->kv = moe_kv_shape(c, o);
    if (w->index.top) {
        moe_kv_source_table(&w->index.chosen, 1, w->index.table);
        w->index.chosen.table = w->index.table;
        moe_kv_place(&w->index.chosen, w->index.chosen.whole.keys);
    }
    MOE_TRY(allocate_kv(&w->kv, err));
    if (o->kv_grows) /* as above, blocks */
        moe_pages_drop(w->kv.whole.keys, (uint64_t)(w->kv.windows.keys - w->kv.whole.keys));
    if (w->states.n_layers) {
        w->states.memory = (float *)(void *)moe_pages_alloc(w->states.bytes, err);
        if (!w->states.memory)
            return MOE_ERR_MEMORY;
    }
    if (w->compressed.bytes) {
        w->compressed.memory = moe_pages_alloc(w->compressed.bytes, err);
        if (!w->compressed.memory)
            return MOE_ERR_MEMORY;
    }
    if (o->n_sources == 0)
        return MOE_OK;
    moe_kv_source_table(&w->source_kv, o->n_sources, w->source_table);
    w->source_kv.table = w->source_table;
    return allocate_kv(&w->source_kv, err);
}

int cpu_work_open(struct cpu_work **out, struct moe_states *states, const struct moe_config *c,
                  const struct moe_session_options *o, struct moe_err *err)
{
    *out = moe_alloc(1, sizeof **out, err);
    int status = *out ? allocate_cpu_work(*out, states, c, o, err) : MOE_ERR_MEMORY;
    if (status != MOE_OK) {
        cpu_work_close(*out);
        *out = NULL;
    }
    return status;
}

void cpu_work_give_back(struct cpu_work *w, uint32_t n_rows)
{
    if (w->own_rows && w->used_rows > w->own_rows && w->used_rows > n_rows) {
        moe_pages_drop(w->rows, w->rows_bytes);
        w->used_rows = 0;
    }
    w->used_rows = moe_larger(w->used_rows, n_rows);
}

void cpu_work_hold_block(struct cpu_work *w, uint32_t block, bool held)
{
    struct moe_kv_span spans[2];
    moe_kv_spans(&w->kv, &w->kv.whole, spans);
    for (int i = 0; i < 2; i++)
        (held ? moe_pages_take_back : moe_pages_drop)(spans[i].at + block * spans[i].bytes,
                                                      spans[i].bytes);
}

void cpu_work_close(struct cpu_work *w)
{
    if (!w)
        return;
    moe_pages_free(w->rows, w->rows_bytes);
    moe_pages_free(w->other, w->other_bytes);
    moe_pages_free(w->kv.whole.keys, w->kv.bytes);
    moe_pages_free(w->states.memory, w->states.bytes);
    moe_pages_free(w->compressed.memory, w->compressed.bytes);
    moe_pages_free(w->source_kv.whole.keys, w->source_kv.bytes);
    free(w);
}
