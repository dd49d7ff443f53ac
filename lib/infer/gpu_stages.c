/*
 * The stages on a GPU: into and out of a pass, recorded layers, the head. Everything is asked of
 * its compute stream and happens there in order; the host waits for a router's choice
 * and for results. A decoded token whose experts all lie on the device needs nothing of the host
 * between its embedding and its logits: its layers are recorded once and started by one call.
 */
#include "infer/gpu_stages.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "infer/gpu_work.h"
#include "infer/router.h"
#include "infer/state.h"
#include "kern/kern.h"

_Static_assert(sizeof(struct moe_row) == sizeof(struct moe_gpu_row),
               "rows are uploaded as they are");

/* ---- Into and out of a pass ---- */

/* Tells the device which blocks of the KV cache sequences have now. */
static void upload_kv_table(struct gpu_work *g, const struct moe_kv_pool *pool)
{
    uint64_t n_bytes = (uint64_t)pool->n_sequences * pool->per_sequence * sizeof *pool->table;
    if (g->n_kv_changes == pool->n_changes)
        return;
    memcpy(g->host_kv_table, pool->table, n_bytes);
    moe_gpu_upload(g->gpu, MOE_GPU_COMPUTE, g->kv_table, g->host_kv_table, n_bytes);
    g->n_kv_changes = pool->n_changes;
}

/* A device that fails says so in the next pass. */
static void copy_block(struct moe_session *s, uint32_t from, uint32_t to)
{
    struct gpu_work *g = s->device;
    struct moe_kv_span spans[2];
    moe_kv_spans(&g->kv, &g->kv.whole, spans);
    for (int i = 0; i < 2; i++)
        moe_gpu_copy(g->gpu, MOE_GPU_COMPUTE, spans[i].at + to * spans[i].bytes,
                     spans[i].at + from * spans[i].bytes, spans[i].bytes);
}

static void copy_states(struct moe_session *s, uint32_t from, uint32_t to)
{
    const struct gpu_work *g = s->device;
    const struct moe_recurrent *r = &g->states;
    moe_gpu_copy(g->gpu, MOE_GPU_COMPUTE, r->memory + to * r->sequence,
                 r->memory + from * r->sequence, r->sequence * sizeof *r->memory);
}

static int enter(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
                 const float *hidden_in, struct moe_err *err)
{
    struct gpu_work *g = s->device;
    const struct moe_config *c = &s->model->config;
    /* Waits until the rows of the pass before, and the table, are on the device. */
    int status = moe_gpu_mark_wait(g->entered, err);
    if (status != MOE_OK)
        return status;
    memcpy(g->host_rows, rows, n_rows * sizeof *rows);
    g->n_rows = n_rows;
    g->normed_for = UINT32_MAX;
    g->end = 0;
    for (uint32_t i = 0; i < n_rows; i++)
        if (rows[i].position >= g->end)
            g->end = rows[i].position + 1;
    upload_kv_table(g, &s->kv_pool);
    moe_gpu_upload(g->gpu, MOE_GPU_COMPUTE, g->rows, g->host_rows, n_rows * sizeof *rows);
    moe_gpu_mark_set(g->entered, MOE_GPU_COMPUTE);
    for (uint32_t i = 0; hidden_in && i < n_rows; i++)
        moe_gpu_upload(g->gpu, MOE_GPU_COMPUTE, g->h + i * g->hidden_stride,
                       hidden_in + (uint64_t)i * c->hidden, c->hidden * sizeof(float));
    if (!hidden_in)
        moe_gpu_embed(g->gpu, &s->model->embed, g->rows, n_rows, c->embed_scale, g->h,
                      g->hidden_stride);
    return moe_gpu_status(g->gpu, err);
}

/* Where the clocks cannot be related, there are no spans. */
static void reached(struct moe_session *s, uint32_t layer, const char *part)
{
    struct gpu_work *g = s->device;
    if (!g->timing)
        gpu_timing_open(&g->timing, g->gpu, 3 * s->model->config.n_layers, NULL);
    if (g->timing)
        gpu_timing_add(g->timing, layer, part);
}

static int leave(struct moe_session *s, uint32_t n_rows, float *hidden_out, struct moe_err *err)
{
    const struct gpu_work *g = s->device;
    uint32_t hidden = s->model->config.hidden;
    int status = s->timeline && g->timing ? gpu_timing_write(g->timing, s->timeline, err)
                                          : moe_gpu_status(g->gpu, err);
    if (status != MOE_OK || !hidden_out)
        return status;
    for (uint32_t i = 0; i < n_rows; i++)
        moe_gpu_download(g->gpu, MOE_GPU_COMPUTE, hidden_out + (uint64_t)i * hidden,
                         g->h + i * g->hidden_stride, hidden * sizeof(float));
    return moe_gpu_wait(g->gpu, MOE_GPU_COMPUTE, err);
}

/* ---- Recorded layers ---- */

/* The positions that a recording for `end` reaches: a power of two of chunks, so that a context of
 * n chunks needs log n recordings. */
static uint32_t reach(const struct moe_session *s, uint32_t end)
{
    uint64_t positions = MOE_ATTENTION_CHUNK;
    while (positions < end)
        positions *= 2;
    return positions < s->context ? (uint32_t)positions : s->context;
}

static void record(struct moe_session *s, struct gpu_graph *recording)
{
    struct gpu_work *g = s->device;
    const struct moe_row *rows = (const struct moe_row *)g->host_rows;
    moe_gpu_graph_begin(g->gpu);
    for (uint32_t layer = 0; layer < s->model->config.n_layers; layer++) {
        stages_gpu_attend(s, layer, rows, 1, NULL);
        if (!s->model->layers[layer].is_moe && !s->model->config.layers[layer].no_ffn)
            stages_gpu_dense(s, layer, 1, NULL);
        else if (s->model->layers[layer].is_moe)
            stages_gpu_alone(s, layer, 1);
    }
    g->normed_for = UINT32_MAX; /* whether this is replayed or not, nothing was computed */
    recording->refused = moe_gpu_graph_end(g->gpu, &recording->graph, NULL) != MOE_OK;
}

/* The recording that reaches that far, or room for it; NULL: there is none. */
static struct gpu_graph *find_recording(struct gpu_residents *g, uint32_t end)
{
    for (uint32_t i = 0; i < g->n_graphs; i++)
        if (g->graphs[i].end == end)
            return &g->graphs[i];
    if (g->n_graphs == GPU_MAX_GRAPHS)
        return NULL;
    g->graphs[g->n_graphs] = (struct gpu_graph){.end = end};
    return &g->graphs[g->n_graphs++];
}

static bool replay(struct moe_session *s, uint32_t n_rows, uint32_t layer_begin, uint32_t layer_end)
{
    struct gpu_work *g = s->device;
    if (!g->residents.recordable || s->strategy || s->timeline || n_rows != 1 || layer_begin != 0 ||
        layer_end != s->model->config.n_layers)
        return false;
    uint32_t end = reach(s, g->end);
    struct gpu_graph *recording = find_recording(&g->residents, end);
    if (!recording)
        return false;
    g->end = end;
    /* The first row goes layer by layer: kernels are loaded when they first run, which must not
     * happen while recording. */
    if (!recording->has_run) {
        recording->has_run = true;
        return false;
    }
    if (!recording->graph && !recording->refused)
        record(s, recording);
    if (!recording->graph)
        return false;
    moe_gpu_graph_run(g->gpu, recording->graph);
    moe_recurrent_set(s, g->host_rows->sequence, g->host_rows->position + 1);
    return true;
}

/* ---- The head ---- */

/* Logits of at most GPU_LOGITS_ROWS rows, on the device. */
static void head(struct moe_session *s, uint32_t first, uint32_t n)
{
    const struct moe_model *m = s->model;
    struct gpu_work *g = s->device;
    struct moe_gpu_act in = gpu_act_plain(&g->hidden, m->config.hidden);
    gpu_act_want(&in, &g->hidden, m->head.layout);
    struct moe_gpu_norm norm = stages_gpu_norm(s, m->final_norm, m->final_norm_bias, in);
    norm.h += first * g->hidden_stride;
    moe_gpu_add_norm(g->gpu, &norm, n);
    const struct moe_gpu_product p =
        stages_gpu_product(m->head, &in, n, g->logits, moe_logits_stride(&s->model->config));
    moe_gpu_matmul(g->gpu, &p, 1);
    if (m->head_bias || m->config.logit_scale != 1)
        moe_gpu_finish_logits(g->gpu, g->logits, moe_logits_stride(&s->model->config), n,
                              m->config.vocab, m->head_bias, m->config.logit_scale);
}

static int not_numbers(struct moe_err *err)
{
    return moe_fail(err, MOE_ERR_FORMAT, "the logits are not numbers (damaged weights?)");
}

static int logits_of(struct moe_session *s, uint32_t first, uint32_t n, float *logits,
                     struct moe_err *err)
{
    const struct gpu_work *g = s->device;
    const uint64_t stride = moe_logits_stride(&s->model->config);
    for (uint32_t i = 0, part; i < n; i += part) {
        part = n - i < GPU_LOGITS_ROWS ? n - i : GPU_LOGITS_ROWS;
        head(s, first + i, part);
        /* By way of page-locked memory: the driver takes longer to stage them. */
        moe_gpu_download(g->gpu, MOE_GPU_COMPUTE, g->host_logits, g->logits,
                         part * stride * sizeof(float));
        int status = moe_gpu_wait(g->gpu, MOE_GPU_COMPUTE, err);
        if (status != MOE_OK)
            return status;
        /* A NaN in the stream makes all logits of its row NaN. */
        for (uint32_t row = 0; g->residents.table && row < part; row++)
            if (isnan(g->host_logits[row * stride]))
                return not_numbers(err);
        memcpy(logits + i * stride, g->host_logits, part * stride * sizeof(float));
    }
    return MOE_OK;
}

static int greedy(struct moe_session *s, uint32_t row, uint32_t *token, struct moe_err *err)
{
    const struct gpu_work *g = s->device;
    head(s, row, 1);
    moe_gpu_argmax(g->gpu, g->logits, moe_logits_stride(&s->model->config), 1,
                   s->model->config.vocab, g->tokens);
    moe_gpu_download(g->gpu, MOE_GPU_COMPUTE, g->host_token, g->tokens, sizeof *token);
    int status = moe_gpu_wait(g->gpu, MOE_GPU_COMPUTE, err);
    if (status != MOE_OK)
        return status;
    *token = *g->host_token;
    return *token == UINT32_MAX ? not_numbers(err) : MOE_OK;
}

static void close_gpu(struct moe_session *s)
{
    gpu_work_close(s->device);
}

const struct moe_stages_ops moe_stages_gpu = {
    .name = "gpu",
    .host_bytes = gpu_work_host_bytes,
    .device_bytes = gpu_work_bytes,
    .open = gpu_work_open,
    .close = close_gpu,
    .copy_states = copy_states,
    .copy_block = copy_block,
    .enter = enter,
    .replay = replay,
    .attend = stages_gpu_attend,
    .dense = stages_gpu_dense,
    .alone = stages_gpu_alone,
    .route = stages_gpu_route,
    .grouped = stages_gpu_grouped,
    .beside = stages_gpu_beside,
    .at_once = stages_gpu_at_once,
    .experts = stages_gpu_experts,
    .take = stages_gpu_take,
    .combine = stages_gpu_combine,
    .reached = reached,
    .leave = leave,
    .logits = logits_of,
    .greedy = greedy,
    .predict = stages_gpu_predict,
    .choose_predict_device = stages_gpu_choose_predict_device,
    .add_stats = stages_gpu_add_stats,
};

/*
 * Routers on a GPU. The host has to know which experts a layer wants, and waits only for that: the
 * router's choice and the predictions travel together, and while they travel the device computes
 * what does not depend on them.
 */

/* How long the host polls for a router's choice, and keeps loads going, before it sleeps: the
 * device's part of a layer takes about as long. */
#define SPIN_SECONDS 200e-6

static void ask_router(struct moe_session *s, uint32_t layer, uint32_t n_rows)
{
    const struct moe_gpu_act in = stages_gpu_ffn_inputs(s, layer);
    const struct moe_gpu_router router = stages_gpu_router(s, layer);
    struct moe_gpu_product list[2];
    uint32_t n = stages_gpu_list_routers(s, layer, &in, n_rows, list);
    moe_gpu_matmul(gpu_of(s), list, n);
    moe_gpu_route(gpu_of(s), &router, n_rows);
}

/* Waits until the router's choice is here; loads move on meanwhile. */
static int await_router(struct moe_session *s, struct moe_err *err)
{
    struct gpu_work *g = s->device;
    double started = moe_seconds();
    while (s->pass.scheduler && !moe_gpu_mark_passed(g->routed) &&
           moe_seconds() - started < SPIN_SECONDS)
        MOE_TRY(moe_pass_poll(&s->pass, err));
    return moe_gpu_mark_wait(g->routed, err);
}

int stages_gpu_route(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                     uint32_t n_rows, struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_layer_request *r = &s->request;
    struct gpu_work *g = s->device;
    uint64_t n = (uint64_t)n_rows * c->top_k;
    ask_router(s, layer, n_rows);
    moe_gpu_download(g->gpu, MOE_GPU_COMPUTE, r->chosen, g->ff.chosen, n * sizeof *r->chosen);
    moe_gpu_download(g->gpu, MOE_GPU_COMPUTE, r->weights, g->ff.weights, n * sizeof *r->weights);
    stages_gpu_ask_ahead(s, layer, n_rows);
    if (g->needs_rows)
        moe_gpu_download(g->gpu, MOE_GPU_COMPUTE, s->states.xn, g->hidden.x,
                         n_rows * g->hidden_stride * sizeof(float));
    moe_gpu_mark_set(g->routed, MOE_GPU_COMPUTE);
    stages_gpu_run_beside(s, layer, n_rows);
    int status = await_router(s, err);
    return status == MOE_OK ? moe_route_check(r, layer, n_rows, err) : status;
}

/*
 * Feed-forward on a GPU: dense layers, the shared expert, and experts from wherever their provider
 * has them. Where all of them lie on the device and nothing on the host depends on the choice, the
 * host is not asked.
 */

/* ---- Dense and shared ---- */

static struct moe_gpu_activation activation_of(const struct moe_config *c, enum moe_act_kind kind)
{
    return (struct moe_gpu_activation){kind, c->act_alpha, c->act_limit};
}

/* Inputs and outputs of a dense or shared feed-forward, with room in gate, up and `room`; the
 * result points at in and mid, which are filled. */
static struct moe_gpu_experts dense_of(const struct moe_session *s, uint32_t layer, float *gate,
                                       float *up, const struct moe_gpu_act *room,
                                       struct moe_gpu_act *in, struct moe_gpu_act *mid)
{
    const struct moe_layer *l = &s->model->layers[layer];
    const struct gpu_work *g = s->device;
    *in = stages_gpu_ffn_inputs(s, layer);
    *mid = gpu_act_plain(room, l->down.cols);
    mid->x_stride = moe_round_up(l->up.rows, MOE_PANEL_ROWS);
    gpu_act_want(mid, room, l->down.layout);
    return (struct moe_gpu_experts){
        .in = in,
        .activation = activation_of(&s->model->config, s->model->config.dense_act),
        .gate = gate,
        .up = up,
        .ff_stride = mid->x_stride,
        .mid = mid,
        .out = g->sum,
        .out_stride = g->hidden_stride,
    };
}

static struct moe_gpu_gated weights_of(const struct moe_layer *l)
{
    return (struct moe_gpu_gated){.gate = l->gate, .up = l->up, .down = l->down};
}

static void run_dense(struct moe_session *s, uint32_t layer, uint32_t n_rows)
{
    struct gpu_work *g = s->device;
    struct moe_gpu_act in, mid;
    const struct moe_gpu_experts e =
        dense_of(s, layer, g->ff.gate, g->ff.up, &g->ff.mid, &in, &mid);
    const struct moe_gpu_job job = {.weights = weights_of(&s->model->layers[layer]), .n = n_rows};
    moe_gpu_experts_in(g->gpu, &e, &job, 1);
    moe_gpu_experts_out(g->gpu, &e, &job, 1);
}

int stages_gpu_dense(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err)
{
    struct gpu_work *g = s->device;
    struct moe_gpu_norm add = {
        .h = g->h, .h_stride = g->hidden_stride, .cols = s->model->config.hidden};
    run_dense(s, layer, n_rows);
    stages_gpu_next_norm(s, layer, &add);
    add.add = g->sum;
    add.add_stride = g->hidden_stride;
    add.add_scale = s->model->config.residual_scale;
    moe_gpu_add_norm(g->gpu, &add, n_rows);
    return moe_gpu_status(g->gpu, err);
}

void stages_gpu_run_beside(struct moe_session *s, uint32_t layer, uint32_t n_rows)
{
    if (s->model->layers[layer].has_ffn)
        run_dense(s, layer, n_rows);
}

/* It was asked for before the host waited for the router. */
int stages_gpu_beside(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err)
{
    return moe_gpu_status(gpu_of(s), err);
}

/* ---- Experts ---- */

void stages_gpu_grouped(struct moe_session *s, uint32_t n_rows)
{
    struct gpu_work *g = s->device;
    const struct moe_layer_request *r = &s->request;
    uint64_t n = (uint64_t)n_rows * s->model->config.top_k;
    moe_gpu_upload(g->gpu, MOE_GPU_COMPUTE, g->ff.rows, r->rows, n * sizeof(uint32_t));
    moe_gpu_upload(g->gpu, MOE_GPU_COMPUTE, g->ff.slot_of, r->slot_of, n * sizeof(uint32_t));
    if (s->strategy) /* it may have replaced the router's choice */
        moe_gpu_upload(g->gpu, MOE_GPU_COMPUTE, g->ff.weights, r->weights, n * sizeof(float));
}

uint32_t stages_gpu_at_once(const struct moe_session *s, uint32_t n_rows)
{
    return MOE_MAX_TOP_K;
}

/* Inputs and outputs of this batch's experts; the result points at in and mid, which are filled. */
static struct moe_gpu_experts experts_of(struct moe_session *s, uint32_t layer,
                                         struct moe_gpu_act *in, struct moe_gpu_act *mid)
{
    const struct moe_config *c = &s->model->config;
    struct gpu_work *g = s->device;
    *in = stages_gpu_ffn_inputs(s, layer);
    *mid = gpu_act_plain(&g->ff.mid, c->expert_ff);
    mid->x_stride = moe_round_up(c->expert_ff, MOE_PANEL_ROWS);
    gpu_act_want_experts(mid, &g->ff.mid, s->model->pack, true);
    return (struct moe_gpu_experts){
        .in = in,
        .rows = g->ff.rows,
        .activation = activation_of(c, c->expert_act),
        .gate = g->ff.gate,
        .up = g->ff.up,
        .ff_stride = mid->x_stride,
        .mid = mid,
        .out = g->ff.expert_out,
        .out_stride = g->hidden_stride,
    };
}

int stages_gpu_experts(struct moe_session *s, uint32_t n_rows, const uint32_t *which,
                       const struct moe_expert_view *views, uint32_t n, bool last,
                       struct moe_err *err)
{
    struct gpu_work *g = s->device;
    const struct moe_layer_request *r = &s->request;
    struct moe_gpu_job jobs[MOE_MAX_TOP_K];
    struct moe_gpu_act in, mid;
    const struct moe_gpu_experts e = experts_of(s, views[0].layer, &in, &mid);
    for (uint32_t i = 0; i < n; i++) {
        const struct moe_expert_view *v = &views[i];
        jobs[i] = (struct moe_gpu_job){
            .weights = {v->gate, v->up, v->down, v->gate_bias, v->up_bias, v->down_bias},
            .first = r->first[which[i]],
            .n = r->n_rows[which[i]],
        };
    }
    if (last)
        moe_gpu_experts_out(g->gpu, &e, jobs, n);
    else
        moe_gpu_experts_in(g->gpu, &e, jobs, n);
    return moe_gpu_status(g->gpu, err);
}

void stages_gpu_take(struct moe_session *s, uint32_t which)
{
    struct gpu_work *g = s->device;
    const struct moe_layer_request *r = &s->request;
    uint64_t at = r->first[which] * g->hidden_stride;
    uint64_t n_bytes = r->n_rows[which] * g->hidden_stride * sizeof(float);
    /* The host has room for outputs only where it computes some. */
    if (r->kinds[which] == MOE_ENTRY_SKIPPED)
        moe_gpu_zero(g->gpu, MOE_GPU_COMPUTE, g->ff.expert_out + at, n_bytes);
    else
        moe_gpu_upload(g->gpu, MOE_GPU_COMPUTE, g->ff.expert_out + at, s->states.expert_out + at,
                       n_bytes);
}

static struct moe_gpu_combine sum_of(const struct moe_session *s, uint32_t layer,
                                     const uint32_t *slot_of)
{
    const struct moe_config *c = &s->model->config;
    const struct gpu_work *g = s->device;
    return (struct moe_gpu_combine){
        .outputs = g->ff.expert_out,
        .out_stride = g->hidden_stride,
        .slot_of = slot_of,
        .weights = g->ff.weights,
        .top_k = c->top_k,
        .cols = c->hidden,
        .shared = c->shared_ff ? g->sum : NULL,
        .shared_stride = g->hidden_stride,
        .shared_scale = s->model->layers[layer].shared_gate.data ? g->ff.shared_scale : NULL,
        .h = g->h,
        .h_stride = g->hidden_stride,
        .residual_scale = c->residual_scale,
    };
}

int stages_gpu_combine(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err)
{
    struct gpu_work *g = s->device;
    const struct moe_gpu_combine sum = sum_of(s, layer, g->ff.slot_of);
    struct moe_gpu_norm norm;
    moe_gpu_combine(g->gpu, &sum, stages_gpu_next_norm(s, layer, &norm), n_rows);
    return moe_gpu_status(g->gpu, err);
}

/* ---- Without the host ---- */

bool stages_gpu_alone(struct moe_session *s, uint32_t layer, uint32_t n_rows)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_layer *l = &s->model->layers[layer];
    struct gpu_work *g = s->device;
    uint32_t m = c->layers[layer].moe_index;
    if (!g->residents.table || s->strategy || n_rows > MOE_GPU_JOINED_ROWS ||
        !g->residents.like[m].up.data)
        return false;
    struct moe_gpu_act in, mid, shared_in, shared_mid;
    struct moe_gpu_product routers[2];
    struct moe_gpu_experts routed = experts_of(s, layer, &in, &mid), shared;
    const struct moe_gpu_router router = stages_gpu_router(s, layer);
    const struct moe_gpu_combine sum = sum_of(s, layer, NULL);
    const struct moe_gpu_gated weights = weights_of(l);
    struct moe_gpu_norm norm;
    routed.rows = NULL;
    if (l->has_ffn)
        shared = dense_of(s, layer, g->ff.shared_gate, g->ff.shared_up, &g->ff.shared_mid,
                          &shared_in, &shared_mid);
    const struct moe_gpu_moe moe = {
        .routers = routers,
        .n_routers = stages_gpu_list_routers(s, layer, &in, n_rows, routers),
        .router = &router,
        .shared = l->has_ffn ? &shared : NULL,
        .shared_weights = &weights,
        .routed = &routed,
        .table = g->residents.table + (uint64_t)m * c->n_experts,
        .like = &g->residents.like[m],
        .combine = &sum,
        .norm = stages_gpu_next_norm(s, layer, &norm),
    };
    moe_gpu_moe(g->gpu, &moe, n_rows);
    return true;
}
