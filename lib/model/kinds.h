/*
 * The kinds of a model's operations, for its description (config.h) and for the kernels that
 * compute them (kernels/gpu_ops.h).
 */
#ifndef MOE_MODEL_KINDS_H
#define MOE_MODEL_KINDS_H

enum moe_norm_kind {
    MOE_NORM_RMS,
    MOE_NORM_LAYER,   /* mean subtracted, weights and biases */
    MOE_NORM_CENTRED, /* mean subtracted, weights alone (Cohere) */
};

/* Where a layer's norms stand. */
enum moe_norm_place {
    MOE_NORM_BEFORE, /* of what attention and feed-forward take in */
    MOE_NORM_AFTER,  /* of what they put out, before it is added to the stream (GPTSAN) */
    MOE_NORM_BOTH,   /* of both, each with weights of its own (Gemma-4, AFMoE) */
};

/* How attention knows where a token stands. */
enum moe_position_kind {
    MOE_POSITIONS_ROTARY,
    MOE_POSITIONS_BUCKETS, /* T5: a learnt bias by distance is added to self-attention's scores */
    MOE_POSITIONS_LEARNT,  /* a learnt vector for each position is added to the embedding */
    MOE_POSITIONS_NONE,    /* by the order of what it sees alone: states, the causal mask */
};

/* What a layer of compressed attention sees beside its window (DeepSeek-V4): entries made of groups
 * of positions that are complete. */
enum moe_compression {
    MOE_COMPRESS_NOT,
    MOE_COMPRESS_ALL,    /* all of them */
    MOE_COMPRESS_CHOSEN, /* those of the best scores by an indexer; groups overlap */
};

/* What a layer with a recurrent state does with it, token by token. */
enum moe_state_kind {
    MOE_STATE_DELTA,  /* gated DeltaNet: a key's value is corrected towards the token's */
    MOE_STATE_CONV,   /* the state is the inputs of a convolution alone (LFM2) */
    MOE_STATE_KDA,    /* as DELTA, and each key decays by a number of its own (Kimi-Linear) */
    MOE_STATE_SCAN,   /* Mamba-2: the token's values are added to what its decay left */
    MOE_STATE_SELECT, /* Mamba: as SCAN, every cell decays by a number of its own */
};

/* Norms of queries and keys, before rope but for one. */
enum moe_qk_norm {
    MOE_QK_NORM_NONE,
    MOE_QK_NORM_HEAD,    /* RMS over each head; weights [head_dim] */
    MOE_QK_NORM_FULL,    /* RMS over all heads together; weights [heads * head_dim] */
    MOE_QK_NORM_ROTATED, /* as HEAD, after rope (Hunyuan) */
    MOE_QK_NORM_BARE,    /* as ROTATED without weights, where queries and keys rotate (Llama-4) */
};

/* From the router's scores to experts and weights. */
enum moe_router_kind {
    MOE_ROUTER_SOFTMAX,      /* softmax over all experts, then the top k of it */
    MOE_ROUTER_TOPK_SOFTMAX, /* the top k scores, then softmax over these */
    MOE_ROUTER_SPARSEMIXER,  /* Phi-3.5-MoE's top 2: each weight is a softmax over the scores near
                                its own winner (within router_jitter) */
    MOE_ROUTER_SIGMOID,  /* DeepSeek-V3: each score's sigmoid, then the top k of these; a group is
                            as good as the sum of its two best experts */
    MOE_ROUTER_SOFTPLUS, /* DeepSeek-V4: as SIGMOID, by the roots of softplus of scores */
};

enum moe_act_kind {
    MOE_ACT_SWIGLU,         /* silu(gate) * up */
    MOE_ACT_SWIGLU_CLAMPED, /* gpt-oss: g = min(gate, limit), u = clamp(up, -limit, limit),
                               g * sigmoid(alpha * g) * (u + 1) */
    MOE_ACT_GEGLU,          /* gelu(gate) * up, gelu by a tanh (Gemma) */
    MOE_ACT_REGLU,          /* max(gate, 0) * up (SmallThinker) */
    MOE_ACT_SWIGLU_LIMITED, /* silu(min(gate, limit)) * clamp(up, -limit, limit) (DeepSeek-V4) */
    /* Of two matrices instead of three: there is no gate. */
    MOE_ACT_RELU,  /* max(up, 0) */
    MOE_ACT_SILU,  /* silu(up) */
    MOE_ACT_RELU2, /* max(up, 0) squared */
};

/* Whether there is a gate beside up and down. */
static inline int moe_act_is_gated(enum moe_act_kind kind)
{
    return kind <= MOE_ACT_SWIGLU_LIMITED;
}

#endif
