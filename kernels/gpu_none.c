/* The GPU of a build without CUDA: no device, so most of this is never called. */
#include <stdlib.h>

#include "gpu.h"
#include "gpu_ops.h"
#include "gpu_states.h"

const char *moe_gpu_build(void)
{
    return "none";
}

int moe_gpu_count(void)
{
    return 0;
}

int moe_gpu_describe(int index, struct moe_gpu_info *info)
{
    return -1;
}

int moe_gpu_copy_seconds(int index, uint64_t n_bytes, int n_runs, double *seconds)
{
    return -1;
}

int moe_gpu_open(struct moe_gpu **out, int index, struct moe_err *err)
{
    return moe_fail(err, MOE_ERR_DEVICE, "this program was built without CUDA");
}

/* These accept NULL. */
void moe_gpu_close(struct moe_gpu *g)
{
}

void moe_gpu_free(struct moe_gpu *g, void *p, uint64_t n_bytes)
{
}

void moe_gpu_unpin(struct moe_gpu *g, void *p)
{
}

void moe_gpu_mark_close(struct moe_gpu_mark *m)
{
}

void moe_gpu_graph_close(struct moe_gpu_graph *graph)
{
}

uint64_t moe_gpu_math_bytes(uint64_t max_weights, uint64_t max_inputs)
{
    return 0;
}

/* ---- Functions of an open device ---- */

#define WITH_DEVICE(type, function, ...)                                                           \
    type function(__VA_ARGS__)                                                                     \
    {                                                                                              \
        abort();                                                                                   \
    }

typedef struct moe_gpu gpu;
typedef struct moe_gpu_mark mark;
typedef struct moe_gpu_graph graph;
typedef struct moe_err err;
typedef enum moe_gpu_stream stream;

WITH_DEVICE(const struct moe_gpu_info *, moe_gpu_info, const gpu *g)
WITH_DEVICE(void *, moe_gpu_alloc, gpu *g, uint64_t n, err *e)
WITH_DEVICE(uint64_t, moe_gpu_allocated_bytes, const gpu *g)
WITH_DEVICE(int, moe_gpu_pin, gpu *g, void *p, uint64_t n, err *e)
WITH_DEVICE(uint64_t, moe_gpu_unlocked_bytes, const gpu *g)
WITH_DEVICE(void, moe_gpu_upload, gpu *g, stream s, void *to, const void *from, uint64_t n)
WITH_DEVICE(void, moe_gpu_download, gpu *g, stream s, void *to, const void *from, uint64_t n)
WITH_DEVICE(void, moe_gpu_copy, gpu *g, stream s, void *to, const void *from, uint64_t n)
WITH_DEVICE(void, moe_gpu_zero, gpu *g, stream s, void *to, uint64_t n)
WITH_DEVICE(int, moe_gpu_mark_open, mark **out, gpu *g, bool timed, err *e)
WITH_DEVICE(void, moe_gpu_mark_set, mark *m, stream s)
WITH_DEVICE(bool, moe_gpu_mark_passed, mark *m)
WITH_DEVICE(int, moe_gpu_mark_wait, mark *m, err *e)
WITH_DEVICE(void, moe_gpu_stream_after, gpu *g, stream s, mark *m)
WITH_DEVICE(double, moe_gpu_mark_seconds, mark *from, mark *to)
WITH_DEVICE(uint64_t, moe_gpu_launches, const gpu *g)
WITH_DEVICE(int, moe_gpu_wait, gpu *g, stream s, err *e)
WITH_DEVICE(int, moe_gpu_finish, gpu *g, err *e)
WITH_DEVICE(int, moe_gpu_status, const gpu *g, err *e)
WITH_DEVICE(void, moe_gpu_set_budget, gpu *g, uint64_t n)
WITH_DEVICE(void, moe_gpu_graph_begin, gpu *g)
WITH_DEVICE(int, moe_gpu_graph_end, gpu *g, graph **out, err *e)
WITH_DEVICE(void, moe_gpu_graph_run, gpu *g, graph *recorded)

#define OPERATION(function, ...) WITH_DEVICE(void, function, gpu *g, __VA_ARGS__)

OPERATION(moe_gpu_prepare, const float *x, uint64_t stride, uint32_t n, uint32_t n_parts,
          uint32_t part_stride, const struct moe_gpu_act *act)
OPERATION(moe_gpu_embed, const struct moe_mat *embed, const struct moe_gpu_row *rows, uint32_t n,
          float scale, float *h, uint64_t h_stride)
OPERATION(moe_gpu_add_norm, const struct moe_gpu_norm *norm, uint32_t n)
OPERATION(moe_gpu_matmul, const struct moe_gpu_product *list, uint32_t n)
OPERATION(moe_gpu_experts_in, const struct moe_gpu_experts *e, const struct moe_gpu_job *jobs,
          uint32_t n)
OPERATION(moe_gpu_experts_out, const struct moe_gpu_experts *e, const struct moe_gpu_job *jobs,
          uint32_t n)
OPERATION(moe_gpu_finish_heads, const struct moe_gpu_heads *h, uint32_t n)
OPERATION(moe_gpu_finish_latent, const struct moe_gpu_latent *l, uint32_t n)
OPERATION(moe_gpu_attention, const struct moe_gpu_attention *a, uint32_t n)
OPERATION(moe_gpu_route, const struct moe_gpu_router *r, uint32_t n)
OPERATION(moe_gpu_softmax, float *x, uint64_t stride, uint32_t n, uint32_t cols, const float *bias)
OPERATION(moe_gpu_combine, const struct moe_gpu_combine *c, const struct moe_gpu_norm *norm,
          uint32_t n)
OPERATION(moe_gpu_moe, const struct moe_gpu_moe *m, uint32_t n)
OPERATION(moe_gpu_convolve, const struct moe_gpu_recurrent *r, uint32_t n)
OPERATION(moe_gpu_step_states, const struct moe_gpu_recurrent *r, uint32_t n)
OPERATION(moe_gpu_norm_parts, const struct moe_gpu_norm_parts *p, uint32_t n)
OPERATION(moe_gpu_gate, const struct moe_gpu_gate *gate, uint32_t n)
OPERATION(moe_gpu_finish_logits, float *logits, uint64_t stride, uint32_t n, uint32_t vocab,
          const float *bias, float scale)
OPERATION(moe_gpu_argmax, const float *logits, uint64_t stride, uint32_t n, uint32_t vocab,
          uint32_t *ids)
WITH_DEVICE(int, moe_gpu_set_math, gpu *g, enum moe_gpu_math math, void *scratch, uint64_t n,
            err *e)
WITH_DEVICE(void, moe_gpu_set_bf16_rule, gpu *g, uint32_t rows, uint64_t work)
WITH_DEVICE(uint64_t, moe_gpu_bf16_rows, const gpu *g)
