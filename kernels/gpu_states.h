/*
 * GPU operations of layers with recurrent states, and of gated outputs: more of the kind that
 * gpu_ops.h describes, with the meaning of infer/cpu_recurrent.c, to the bit.
 *
 * A token's row changes the state of the row before it. Channels of the convolution, and values of
 * a state, are independent: a thread has one and takes the rows one after the other.
 */
#ifndef MOE_KERNELS_GPU_STATES_H
#define MOE_KERNELS_GPU_STATES_H

#include "gpu_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The states of all sequences, laid out as on the processor (infer/recurrent.h); in floats. */
struct moe_gpu_states {
    float *memory;
    uint32_t n_taps, n_panels;
    uint64_t keys_at, values_at, stride; /* of a row of the convolution */
    uint64_t panel, layer, sequence;     /* each one's size */
};

/* A layer with such states. A sequence's rows are in order. */
struct moe_gpu_recurrent {
    enum moe_state_kind kind;
    uint32_t n_heads, n_key_heads, key_dim, value_dim;
    bool keys_in_turn; /* heads take the key heads in turn (config.h) */
    struct moe_gpu_states states;
    uint32_t layer; /* its number among such layers */
    const struct moe_gpu_row *rows;
    float *mixed;      /* [n][states.stride] queries, keys, values */
    float *gate, *out; /* [n][values_stride] */
    float *beta;       /* [n][heads_stride] */
    float *decay;      /* [n][decay_stride] */
    uint64_t values_stride, heads_stride, decay_stride;
    /* Weights; those that a kind does not have are NULL. */
    const float *conv, *conv_bias, *conv_q, *conv_k; /* conv_q NULL: one convolution for all */
    const float *step, *rate, *skip;
};
/* Queries, keys and values (for MOE_STATE_SELECT only these) become silu of their convolution over
 * the last tokens. For MOE_STATE_CONV values are first scaled by `out`, and `out` becomes their
 * convolution scaled by the gate. */
void moe_gpu_convolve(struct moe_gpu *g, const struct moe_gpu_recurrent *r, uint32_t n);
/* After that, for the other kinds: out = what queries read from the states, each changed by its
 * row. For MOE_STATE_SELECT it is already gated. */
void moe_gpu_step_states(struct moe_gpu *g, const struct moe_gpu_recurrent *r, uint32_t n);

/* x = kern.h's rms_norm of each of n_parts parts of a row, of `cols` values each. */
struct moe_gpu_norm_parts {
    float *x; /* [n][stride] */
    uint64_t stride;
    uint32_t n_parts, cols;
    const float *weights; /* [cols], or [n_parts][cols]: */
    bool weights_of_parts;
    float eps;
};
void moe_gpu_norm_parts(struct moe_gpu *g, const struct moe_gpu_norm_parts *p, uint32_t n);

/* x = silu(gate) * x, or x * sigmoid(gate), and the byte forms of x where act has room. */
struct moe_gpu_gate {
    float *x;
    const float *gate;
    uint64_t x_stride, gate_stride;
    bool silu;
    struct moe_gpu_act act; /* act.cols values of a row; act.x is not read */
};
void moe_gpu_gate(struct moe_gpu *g, const struct moe_gpu_gate *gate, uint32_t n);

#ifdef __cplusplus
}
#endif

#endif
