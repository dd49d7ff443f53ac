#include "run/predict_device.h"

#include "base/clock.h"
#include "gpu.h"
#include "run/gpu_work.h"
#include "run/stages_gpu.h"

enum { N_TIMES = 7 }; /* after one that does not count: kernels are loaded when they first run */

struct stopwatch {
    struct moe_gpu_mark *from, *to;
};

/* Seconds that one row's predictions take behind the first router: of the device's stream, which
 * computes them or brings their inputs, and of the host, which takes them over or computes them. */
static int time_once(struct moe_session *s, struct moe_layer_predictor *f,
                     const struct stopwatch *watch, double *seconds, struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_prediction *predictions;
    uint32_t layer = 0;
    while (!c->layer_is_moe[layer])
        layer++;
    moe_gpu_mark_set(watch->from, MOE_GPU_COMPUTE);
    stages_gpu_look_ahead(s, layer, 1);
    moe_gpu_mark_set(watch->to, MOE_GPU_COMPUTE);
    int status = moe_gpu_mark_wait(watch->to, err);
    if (status != MOE_OK)
        return status;
    double began = moe_seconds();
    moe_predict_layers(f, layer, 1, s->look_depth, &predictions);
    double host = moe_seconds() - began, stream = moe_gpu_mark_seconds(watch->from, watch->to);
    if (stream < 0)
        return moe_fail(err, MOE_ERR_DEVICE, "CUDA device: it does not tell what a step took");
    *seconds = stream + host;
    return MOE_OK;
}

/* The median where passes of up to host_rows rows are the host's. */
static int time_place(struct moe_session *s, struct moe_layer_predictor *f,
                      const struct stopwatch *watch, uint32_t host_rows, double *median,
                      struct moe_err *err)
{
    double sorted[N_TIMES], seconds;
    s->predict_device.host_rows = host_rows;
    int status = time_once(s, f, watch, &seconds, err);
    for (int n = 0, at; n < N_TIMES && status == MOE_OK; n++) {
        status = time_once(s, f, watch, &seconds, err);
        for (at = n; at > 0 && sorted[at - 1] > seconds; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = seconds;
    }
    if (status == MOE_OK)
        *median = sorted[N_TIMES / 2];
    return status;
}

int moe_predict_device_choose(struct moe_session *s, struct moe_layer_predictor *f,
                              struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    struct moe_predict_device *place = &s->predict_device;
    struct stopwatch watch = {0};
    if (s->look_depth == 0 || moe_config_moe_layers(c, c->n_layers) < 2)
        return MOE_OK;
    int status = moe_gpu_mark_open(&watch.from, s->gpu_work->gpu, true, err);
    if (status == MOE_OK)
        status = moe_gpu_mark_open(&watch.to, s->gpu_work->gpu, true, err);
    if (status == MOE_OK)
        status = time_place(s, f, &watch, 0, &place->gpu_seconds, err);
    if (status == MOE_OK)
        status = time_place(s, f, &watch, 1, &place->host_seconds, err);
    moe_gpu_mark_close(watch.from);
    moe_gpu_mark_close(watch.to);
    bool faster = place->host_seconds < place->gpu_seconds;
    place->host_rows = place->named == MOE_PREDICT_ON_HOST   ? UINT32_MAX
                       : place->named == MOE_PREDICT_ON_AUTO ? faster
                                                             : 0;
    return status;
}

const char *moe_predict_device_name(const struct moe_predict_device *place)
{
    return place->gpu_seconds == 0 ? "" : place->host_rows ? "host" : "gpu";
}
