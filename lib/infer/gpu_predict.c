/*
 * Predictions of a session on a GPU: the routers of layers ahead are asked there, with the layer's
 * own, or by the host, to which their inputs travel with the router's choice. Both give the same
 * bits; which is faster depends on the machine and is measured. The device knows only
 * predictions by a softmax: routers that choose otherwise are asked by the host.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "infer/gpu_stages.h"
#include "infer/layer_predictor.h"
#include "infer/router.h"

/* ---- With a layer's router ---- */

/* Where the host asks, it needs the gate's inputs, which are there already where it computes
 * experts, or the stream. */
static void bring_inputs(struct moe_session *s, uint32_t n_rows)
{
    const struct gpu_work *g = s->device;
    struct moe_states *states = &s->states;
    uint64_t n_bytes = n_rows * g->hidden_stride * sizeof(float);
    if (g->prediction.residual) {
        moe_gpu_download(g->gpu, MOE_GPU_COMPUTE, states->h, g->h, n_bytes);
        return;
    }
    if (!g->needs_rows)
        moe_gpu_download(g->gpu, MOE_GPU_COMPUTE, states->xn, g->hidden.x, n_bytes);
    moe_inputs_set(&states->inputs, states->xn, states->stride, NULL, n_rows,
                   s->model->config.hidden);
}

/* The stream under the norm of a layer ahead. */
static struct moe_gpu_act norm_stream(struct moe_session *s, const struct moe_layer *l,
                                      uint32_t n_rows)
{
    struct gpu_work *g = s->device;
    const struct moe_gpu_act *room = &g->prediction.input;
    struct moe_gpu_act in = gpu_act_plain(room, s->model->config.hidden);
    gpu_act_want(&in, room, l->router.layout);
    const struct moe_gpu_norm norm = stages_gpu_norm(s, l->ffn_norm, l->ffn_norm_bias, in);
    moe_gpu_add_norm(g->gpu, &norm, n_rows);
    return in;
}

void stages_gpu_ask_ahead(struct moe_session *s, uint32_t layer, uint32_t n_rows)
{
    struct gpu_work *g = s->device;
    struct gpu_prediction *p = &g->prediction;
    uint32_t ahead[MOE_MAX_DEPTH];
    uint64_t stride = g->ff.router_stride, each = (uint64_t)s->batch * stride;
    p->n_layers = stages_gpu_layers_ahead(s, layer, ahead);
    if (p->n_layers > 0 && n_rows <= p->host_rows) {
        bring_inputs(s, n_rows);
        return;
    }
    for (uint32_t d = 0; d < p->n_layers; d++) {
        const struct moe_layer *l = &s->model->layers[ahead[d]];
        float *probabilities = p->probabilities + d * each;
        const struct moe_gpu_act in =
            p->residual ? norm_stream(s, l, n_rows) : stages_gpu_ffn_inputs(s, layer);
        const struct moe_gpu_product product =
            stages_gpu_product(l->router, &in, n_rows, probabilities, stride);
        moe_gpu_matmul(g->gpu, &product, 1);
        moe_gpu_softmax(g->gpu, probabilities, stride, n_rows, s->model->config.n_experts,
                        l->router_bias);
        moe_gpu_download(g->gpu, MOE_GPU_COMPUTE, p->on_host + d * each, probabilities,
                         n_rows * stride * sizeof(float));
    }
}

bool stages_gpu_predict(struct moe_session *s, uint32_t n, uint32_t n_rows, float *probabilities,
                        uint64_t layer_stride)
{
    const struct gpu_work *g = s->device;
    const struct gpu_prediction *p = &g->prediction;
    uint64_t stride = g->ff.router_stride;
    if (n_rows <= p->host_rows)
        return false;
    assert(n <= p->n_layers);
    for (uint32_t d = 0; d < n; d++)
        memcpy(probabilities + d * layer_stride, p->on_host + (uint64_t)d * s->batch * stride,
               n_rows * stride * sizeof(float));
    return true;
}

/* ---- The choice of the device ---- */

enum { N_TIMES = 7 }; /* after one that does not count: kernels are loaded when they first run */

struct stopwatch {
    struct moe_gpu_mark *from, *to;
};

/* Seconds that one row's predictions add to the first router: of the device's stream, which
 * computes them or brings their inputs, and of the host, which takes them over or computes them. */
static int time_once(struct moe_session *s, struct moe_layer_predictor *predictor,
                     const struct stopwatch *watch, double *seconds, struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    const struct gpu_work *g = s->device;
    const struct moe_prediction *predictions;
    uint32_t layer = 0;
    while (!c->layers[layer].moe)
        layer++;
    moe_gpu_mark_set(watch->from, MOE_GPU_COMPUTE);
    stages_gpu_ask_ahead(s, layer, 1);
    moe_gpu_mark_set(watch->to, MOE_GPU_COMPUTE);
    int status = moe_gpu_mark_wait(watch->to, err);
    if (status != MOE_OK)
        return status;
    double began = moe_seconds();
    moe_predict_layers(predictor, layer, 1, g->prediction.depth, &predictions);
    double host = moe_seconds() - began, stream = moe_gpu_mark_seconds(watch->from, watch->to);
    if (stream < 0)
        return moe_fail(err, MOE_ERR_DEVICE,
                        "CUDA device: the time of a prediction could not be measured");
    *seconds = stream + host;
    return MOE_OK;
}

/* The median where the host computes in passes of up to host_rows rows. */
static int time_device(struct moe_session *s, struct moe_layer_predictor *predictor,
                       const struct stopwatch *watch, uint32_t host_rows, double *median,
                       struct moe_err *err)
{
    struct gpu_work *g = s->device;
    double sorted[N_TIMES], seconds;
    g->prediction.host_rows = host_rows;
    int status = time_once(s, predictor, watch, &seconds, err);
    for (int n = 0, at; n < N_TIMES && status == MOE_OK; n++) {
        status = time_once(s, predictor, watch, &seconds, err);
        for (at = n; at > 0 && sorted[at - 1] > seconds; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = seconds;
    }
    if (status == MOE_OK)
        *median = sorted[N_TIMES / 2];
    return status;
}

int stages_gpu_choose_predict_device(struct moe_session *s, struct moe_layer_predictor *predictor,
                                     struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    struct gpu_work *g = s->device;
    struct gpu_prediction *p = &g->prediction;
    struct stopwatch watch = {0};
    if (p->depth == 0 || c->n_moe_layers < 2)
        return MOE_OK;
    if (!moe_router_is_softmax(c) || moe_layer_predictor_needs_scores(predictor)) {
        p->host_rows = UINT32_MAX;
        return p->named != MOE_PREDICT_ON_GPU
                   ? MOE_OK
                   : moe_fail(err, MOE_ERR_USAGE,
                              "option --predict-on gpu: this model's routers choose by more than "
                              "a softmax, and only the host predicts what they will choose");
    }
    int status;
    MOE_STEP(moe_gpu_mark_open(&watch.from, g->gpu, true, err));
    MOE_STEP(moe_gpu_mark_open(&watch.to, g->gpu, true, err));
    MOE_STEP(time_device(s, predictor, &watch, 0, &p->gpu_seconds, err));
    MOE_STEP(time_device(s, predictor, &watch, 1, &p->host_seconds, err));
out:
    moe_gpu_mark_close(watch.from);
    moe_gpu_mark_close(watch.to);
    bool faster = p->host_seconds < p->gpu_seconds;
    p->host_rows = p->named == MOE_PREDICT_ON_HOST   ? UINT32_MAX
                   : p->named == MOE_PREDICT_ON_AUTO ? faster
                                                     : 0;
    return status;
}

void stages_gpu_add_stats(const struct moe_session *s, struct moe_stats *stats)
{
    const struct gpu_work *g = s->device;
    const struct gpu_prediction *p = &g->prediction;
    stats->predict_gpu_seconds = p->gpu_seconds;
    stats->predict_host_seconds = p->host_seconds;
    snprintf(stats->predict_on, sizeof stats->predict_on, "%s",
             p->gpu_seconds == 0 ? ""
             : p->host_rows      ? "host"
                                 : "gpu");
}
