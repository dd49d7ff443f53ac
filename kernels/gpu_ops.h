/*
 * Operations of the GPU: the stages of a forward pass, each given to a device's compute stream
 * (gpu.h: they return nothing, failures are kept). gpu_states.h has those of recurrent states and
 * gates.
 *
 * Every operation means the same as on the processor (kern/kern.h, quant/layout.h,
 * infer/cpu_attention.c), to the bit: the same roundings in the same order. Sums down the columns
 * of a row are one chain, block by block; the integer sums inside a block may be spread over
 * threads, since they are exact; reductions over a vector use 16 running sums and the fixed tree.
 * So an expert gives the same output here and on the processor, and a row's result does not depend
 * on how many rows are computed with it. The one exception has to be requested: moe_gpu_set_math.
 *
 * All pointers in these structs are addresses of the device unless noted; the structs themselves
 * lie on the host and are read before the call returns. Vectors are f32. Strides are in floats;
 * rows that products write have room for whole panels (16). Callers validate arguments. NULL stands
 * for a missing option.
 */
#ifndef MOE_KERNELS_GPU_OPS_H
#define MOE_KERNELS_GPU_OPS_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu.h"
#include "kern/kern.h" /* MOE_ATTENTION_CHUNK */
#include "model/kinds.h"
#include "quant/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Inputs of products ("activations") in the forms that weights need: plain rows for float layouts,
 * signed bytes with a scale and a sum per block (kern.h, quantize) for quantized ones, by the
 * blocks of 32 or of 64 columns that the layout has. A row's bytes follow each other, padded with
 * zeros to whole blocks.
 */
enum { MOE_GPU_BLOCK_32, MOE_GPU_BLOCK_64, MOE_GPU_N_BLOCKS };

struct moe_gpu_bytes {
    int8_t *q;    /* [n][cols rounded up to the block], 16-byte aligned; NULL: not in this form */
    float *s, *z; /* [n][blocks] */
};

struct moe_gpu_act {
    uint32_t cols;
    float *x; /* [n][x_stride] */
    uint64_t x_stride;
    struct moe_gpu_bytes bytes[MOE_GPU_N_BLOCKS];
};

/* Fills the byte forms of `act` that have room. Its input p * n + i is the `act->cols` values at x
 * + i * stride + p * part_stride, for i < n and p < n_parts (parts: a row's heads; else 1). Does
 * not read act->x. */
void moe_gpu_prepare(struct moe_gpu *g, const float *x, uint64_t stride, uint32_t n,
                     uint32_t n_parts, uint32_t part_stride, const struct moe_gpu_act *act);

/* ---- Rows ---- */

/* One of [n] rows to compute. */
struct moe_gpu_row {
    uint32_t sequence, position, token;
    uint32_t length; /* of its text, for the rotary table; 0: position + 1 */
};

/* h[i] = scale * row rows[i].token of the embedding. */
void moe_gpu_embed(struct moe_gpu *g, const struct moe_mat *embed, const struct moe_gpu_row *rows,
                   uint32_t n, float scale, float *h, uint64_t h_stride);

/* Adding to the residual stream, its norm, and the norm in the forms that products need. */
struct moe_gpu_norm {
    float *h; /* [n][h_stride] */
    uint64_t h_stride;
    uint32_t cols;
    /* First, unless add is NULL: h = fma(add_scale, add + add_bias, h). */
    const float *add; /* [n][add_stride] */
    uint64_t add_stride;
    const float *add_bias; /* [cols] */
    float add_scale;
    /* Then, unless weights is NULL: out.x = norm(h), kern.h's rms_norm or layer_norm, and out's
     * other forms where they have room. out.x may be h only when out.x_stride is h_stride. */
    bool layer; /* layer_norm */
    const float *weights, *bias;
    float eps;
    struct moe_gpu_act out;
};
void moe_gpu_add_norm(struct moe_gpu *g, const struct moe_gpu_norm *norm, uint32_t n);

/* ---- Products ---- */

struct moe_gpu_router; /* below */

/* y[i] = w times input `rows[i]`, or first + i without rows, of act, plus `bias`, for i < n. */
struct moe_gpu_product {
    struct moe_mat w;
    const struct moe_gpu_act *act; /* on the host; in the form that w's layout needs */
    const uint32_t *rows;
    uint32_t first, n;
    float *y;
    uint64_t y_stride;
    const float *bias; /* [w.rows] */
    /* Heads: 0, or as many products for inputs [0, n). Part p uses rows [p * w.rows, (p + 1) *
     * w.rows) of the matrix, whole panels; its inputs are p * n + i of act's bytes, or begin at x +
     * p * in_part; its results are at y + p * y_part. No bias. */
    uint32_t n_parts, in_part, y_part;
};
/* Products that do not depend on each other, started together: one launch for those with few
 * inputs, one for each kind of the others. */
void moe_gpu_matmul(struct moe_gpu *g, const struct moe_gpu_product *list, uint32_t n_list);

/* Matrices and biases of a feed-forward: an expert, a dense or a shared one. gate.data is NULL if
 * the activation uses only up. */
struct moe_gpu_gated {
    struct moe_mat gate, up, down;
    const float *gate_bias, *up_bias, *down_bias; /* [rows] */
};

/* The activation between its products: MOE_ACT_SWIGLU, _SWIGLU_CLAMPED or _RELU2. */
struct moe_gpu_activation {
    enum moe_act_kind kind;
    float alpha, limit;
};

/* A feed-forward for some rows: inputs rows[first .. first + n) of the batch, results in rows first
 * .. first + n. */
struct moe_gpu_job {
    struct moe_gpu_gated weights;
    uint32_t first, n;
};

struct moe_gpu_experts {
    const struct moe_gpu_act *in; /* of the host; the batch */
    const uint32_t *rows;         /* NULL: row i of the batch is input i */
    struct moe_gpu_activation activation;
    float *gate, *up; /* [activations][ff_stride] scratch; gate receives any activation */
    uint64_t ff_stride;
    const struct moe_gpu_act *mid; /* of the host; cols: the feed-forward's width; x is gate */
    float *out;                    /* [activations][out_stride] */
    uint64_t out_stride;
};
/* mid[first + i] = activation of gate and up times the job's input i, in the forms that have room.
 * The jobs' layouts may differ. */
void moe_gpu_experts_in(struct moe_gpu *g, const struct moe_gpu_experts *e,
                        const struct moe_gpu_job *jobs, uint32_t n_jobs);
/* out[first + i] = down times mid[first + i] + down_bias. */
void moe_gpu_experts_out(struct moe_gpu *g, const struct moe_gpu_experts *e,
                         const struct moe_gpu_job *jobs, uint32_t n_jobs);

/* How products with many inputs are computed. */
enum moe_gpu_math {
    MOE_GPU_MATH_EXACT,    /* as all others */
    MOE_GPU_MATH_BF16,     /* where that pays: weights and inputs rounded to bf16, cuBLAS: other
                              results, which depend on the number of rows */
    MOE_GPU_MATH_PORTABLE, /* exact, without the tensor cores: what devices before compute
                              capability 8.0 do anyway; for comparison */
};
/* A product goes through bf16 from this many inputs on (each weight moves about five bytes to
 * memory and back first, in which time a GPU multiplies it exactly with about a hundred inputs),
 * and from this much work on, inputs times weights (it takes three separate launches, some ten
 * microseconds, where exact products share theirs). Both follow from data sheets; no GPU was timed.
 * The rule ignores the device and its load, so that results are the same on all. */
enum { MOE_GPU_BF16_ROWS = 128, MOE_GPU_BF16_WORK = 1 << 28 };
/* Sets another rule, for tests and benchmarks. */
void moe_gpu_set_bf16_rule(struct moe_gpu *g, uint32_t rows, uint64_t work);
/* cuBLAS's own room in the scratch: what NVIDIA advises for compute capability 9.0, the most that
 * it advises for any. */
enum { MOE_GPU_BLAS_BYTES = 32 << 20 };
/* scratch: of moe_gpu_math_bytes, for BF16; borrowed while that math is in use; products that it is
 * too small for are exact. MOE_ERR_USAGE: the device has no tensor cores for bf16 (before
 * compute capability 8.0). MOE_ERR_DEVICE: no cuBLAS. */
int moe_gpu_set_math(struct moe_gpu *g, enum moe_gpu_math math, void *scratch,
                     uint64_t scratch_bytes, struct moe_err *err);
/* Room for cuBLAS and products of matrices of up to max_weights weights with up to max_inputs input
 * values (rows x cols). */
uint64_t moe_gpu_math_bytes(uint64_t max_weights, uint64_t max_inputs);
/* Rows (of inputs, times matrices) that went through bf16 so far. */
uint64_t moe_gpu_bf16_rows(const struct moe_gpu *g);

/* ---- Attention ---- */

/* The KV cache, laid out as the processor's, in blocks (infer/kv.h). */
struct moe_gpu_kv {
    uint8_t *keys, *values;
    const uint32_t *table;           /* [sequences][per_sequence] the blocks of each */
    uint16_t keys_as, values_as;     /* layouts: both floats of a kind, or both codes */
    uint64_t key_bytes, value_bytes; /* of 16 positions of a head */
    uint32_t block_positions; /* MOE_ATTENTION_CHUNK, or the whole context where that is less */
    uint32_t per_sequence;
    uint32_t key_dim, value_dim, value_padded, n_heads, n_layers;
};

/* Ordinary attention's queries, keys and values, fresh from their products: biases, norms,
 * clipping, rotary positions, factors by position (infer/cpu_projections.c). Queries stay where
 * they are, keys and values go into the cache; where this has codes, they are finished where they
 * are before. */
struct moe_gpu_heads {
    float *q, *k, *v; /* [n][stride] each */
    uint64_t q_stride, k_stride, v_stride;
    const float *q_bias, *k_bias, *v_bias;
    enum moe_qk_norm qk_norm;
    const float *q_norm, *k_norm;
    float eps;
    float clip;        /* 0: not */
    const float *rope; /* [rows][rope_dim / 2][cos, sin], by moe_math_rope_row */
    uint32_t rope_dim, rope_original;
    const float
        *q_factors; /* [positions] queries are multiplied by them at last; NULL: they are not */
    uint32_t n_heads, n_kv_heads, head_dim; /* values are head_dim wide, too */
    const struct moe_gpu_row *rows;
    struct moe_gpu_kv kv;
    uint32_t layer;
};
void moe_gpu_finish_heads(struct moe_gpu *g, const struct moe_gpu_heads *h, uint32_t n);

/* Latent attention's: v holds [latent | shared part] of each row; the cache receives [rotated |
 * latent] as key and the latent as value; the queries' rotated parts, from q, go beside what k_up
 * has made of the rest (infer/cpu_projections.c, finish_latent_rows). */
struct moe_gpu_latent {
    const float *q; /* [n][heads * head_dim] */
    float *v;       /* [n][kv_rank + rope_dim]; finished there, where the cache has codes */
    float *queries; /* [n][heads * (rope_dim + kv_rank)] */
    uint64_t q_stride, v_stride, queries_stride;
    const float *kv_norm; /* [kv_rank] */
    float eps;
    const float *rope; /* NULL: the rotated parts are not rotated */
    uint32_t rope_dim, rope_original, n_heads, head_dim, kv_rank;
    const struct moe_gpu_row *rows;
    struct moe_gpu_kv kv;
    uint32_t layer;
    /* Of the host; NULL: not needed. The byte forms of what k_up multiplies, as
     * moe_gpu_prepare(g, q + rope_dim, q_stride, n, n_heads, head_dim, nope) fills them. */
    const struct moe_gpu_act *nope;
};
void moe_gpu_finish_latent(struct moe_gpu *g, const struct moe_gpu_latent *l, uint32_t n);

/* Attention over the cache, as infer/cpu_attention.c defines it: by chunks of MOE_ATTENTION_CHUNK
 * positions. What comes before and after it can be asked for with it: results are those of the
 * functions called one after the other, in as few launches as possible (a decoded row: one). */
struct moe_gpu_attention {
    const float *queries; /* [n][heads * key_dim]; where the cache has codes, turned afterwards */
    float *attended;      /* [n][heads * value_dim] */
    uint64_t queries_stride, attended_stride;
    struct moe_gpu_kv kv;
    uint32_t layer, n_heads;
    float scale;
    uint32_t window;    /* 0: all positions */
    const float *sinks; /* [heads] */
    const struct moe_gpu_row *rows;
    uint32_t end;  /* above every row's position: at most the context */
    void *scratch; /* of moe_gpu_attention_bytes, 16-byte aligned */
    uint64_t scratch_bytes;
    /* Of the host; NULL: that was done before. Else moe_gpu_finish_heads comes first, of these
     * rows, this layer and cache, with `queries` as its q, which is left either as it was or
     * finished. */
    const struct moe_gpu_heads *fresh;
    /* Of the host; NULL: not needed. Else afterwards moe_gpu_prepare(g, attended, attended_stride,
     * n, out_parts, value_dim, out): out_parts is 1, or n_heads for products head by head. */
    const struct moe_gpu_act *out;
    uint32_t out_parts;
};
void moe_gpu_attention(struct moe_gpu *g, const struct moe_gpu_attention *a, uint32_t n);
/* Scratch for up to MOE_GPU_SPLIT_ROWS rows at a time, whose chunks are spread over blocks. Passes
 * over more rows take their chunks one after the other and need none; so do smaller ones that have
 * too little. Results are the same. */
enum { MOE_GPU_SPLIT_ROWS = 4 };
static inline uint64_t moe_gpu_attention_bytes(uint32_t n_heads, uint32_t value_dim,
                                               uint32_t context)
{
    /* Here, not beside the kernels: plans for a GPU are made without one, too. */
    uint64_t chunks = ((uint64_t)context + MOE_ATTENTION_CHUNK - 1) / MOE_ATTENTION_CHUNK;
    return MOE_GPU_SPLIT_ROWS * n_heads * chunks * (value_dim + 2) * sizeof(float);
}

/* ---- Routing, results ---- */

struct moe_gpu_router {
    enum moe_router_kind kind;
    uint32_t n_experts, top_k, n_groups, top_groups;
    bool norm_topk;
    float topk_eps; /* added by MOE_ROUTER_SIGMOID instead of the least sum; 0: the least sum */
    float routed_scale, jitter;
    const float *bias;        /* [n_experts] */
    const float *choice_bias; /* [n_experts] only for the choice; NULL: none */
    float *scores;            /* [n][stride] in: the router's products; out: probabilities */
    uint64_t stride;
    uint32_t *chosen; /* [n][top_k] by falling score */
    float *weights;   /* [n][top_k] */
};
/* As infer/router.c. Whatever the scores are, the chosen are top_k different experts; where the
 * processor refuses a row because a weight of it is NaN, a weight is NaN here, too (a score that is
 * NaN counts as the largest), and the caller checks. At most 4096 experts. */
void moe_gpu_route(struct moe_gpu *g, const struct moe_gpu_router *r, uint32_t n);

/* x[i] = softmax(x[i] + bias) of n rows of `cols`. */
void moe_gpu_softmax(struct moe_gpu *g, float *x, uint64_t stride, uint32_t n, uint32_t cols,
                     const float *bias);

/* The end of a MoE layer: h = fma(residual_scale, acc, h), acc the weighted outputs of the row's
 * experts added by rank, then the shared one's scaled by sigmoid(shared_scale). */
struct moe_gpu_combine {
    const float *outputs; /* [activations][out_stride] */
    uint64_t out_stride;
    const uint32_t *slot_of; /* [n][top_k] row of outputs; NULL: i * top_k + k */
    const float *weights;    /* [n][top_k] */
    uint32_t top_k, cols;
    const float *shared; /* [n][shared_stride] */
    uint64_t shared_stride;
    const float *shared_scale; /* [n][16], the first counts; NULL: 1 */
    float *h;
    uint64_t h_stride;
    float residual_scale;
};
/* Then moe_gpu_add_norm of these rows, whose h is the same; NULL: not. */
void moe_gpu_combine(struct moe_gpu *g, const struct moe_gpu_combine *c,
                     const struct moe_gpu_norm *norm, uint32_t n);

/* A MoE layer's feed-forward with experts that the device's own router chooses, from the norm of
 * the stream to the norm that the next layer needs: five launches. */
struct moe_gpu_moe {
    const struct moe_gpu_product *routers; /* the router's, and perhaps the shared expert's gate */
    uint32_t n_routers;                    /* 1 or 2 */
    const struct moe_gpu_router *router;
    const struct moe_gpu_experts *shared; /* NULL: none */
    const struct moe_gpu_gated *shared_weights;
    /* Activation a of the rows' n * top_k is expert table[chosen[a]] for row a / top_k of the
     * batch; its result lies in row a. All experts are laid out like `like`. */
    const struct moe_gpu_experts *routed;
    const struct moe_gpu_gated *table; /* [n_experts], on the device */
    const struct moe_gpu_gated *like;  /* of the host: layouts and shapes */
    const struct moe_gpu_combine *combine;
    const struct moe_gpu_norm *norm; /* NULL: none */
};
/* At most MOE_GPU_JOINED_ROWS rows: each activation reads its weights again. */
enum { MOE_GPU_JOINED_ROWS = 4 };
void moe_gpu_moe(struct moe_gpu *g, const struct moe_gpu_moe *m, uint32_t n);

/* logits = (logits + bias) * scale, in place. */
void moe_gpu_finish_logits(struct moe_gpu *g, float *logits, uint64_t stride, uint32_t n,
                           uint32_t vocab, const float *bias, float scale);
/* ids[i] = the largest of logits[i], the first of equals; UINT32_MAX when one of them is not a
 * number. */
void moe_gpu_argmax(struct moe_gpu *g, const float *logits, uint64_t stride, uint32_t n,
                    uint32_t vocab, uint32_t *ids);

#ifdef __cplusplus
}
#endif

#endif
