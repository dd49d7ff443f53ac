/*
 * The kinds of a model's operations, for its description (config.h) and for the kernels that
 * compute them (kernels/gpu_ops.h).
 */
#ifndef MOE_MODEL_KINDS_H
#define MOE_MODEL_KINDS_H

enum moe_norm_kind {
    MOE_NORM_RMS,
    MOE_NORM_LAYER, /* mean subtracted, weights and biases */
};

/* Norms of queries and keys before rope. */
enum moe_qk_norm {
    MOE_QK_NORM_NONE,
    MOE_QK_NORM_HEAD, /* RMS over each head; weights [head_dim] */
    MOE_QK_NORM_FULL, /* RMS over all heads together; weights [heads * head_dim] */
};

/* From the router's scores to experts and weights. */
enum moe_router_kind {
    MOE_ROUTER_SOFTMAX,      /* softmax over all experts, then the top k of it */
    MOE_ROUTER_TOPK_SOFTMAX, /* the top k scores, then softmax over these */
    MOE_ROUTER_SPARSEMIXER,  /* Phi-3.5-MoE's top 2: each weight is a softmax over the scores near
                                its own winner (within router_jitter) */
};

enum moe_act_kind {
    MOE_ACT_SWIGLU,         /* silu(gate) * up */
    MOE_ACT_SWIGLU_CLAMPED, /* gpt-oss: g = min(gate, limit), u = clamp(up, -limit, limit),
                               g * sigmoid(alpha * g) * (u + 1) */
};

#endif
