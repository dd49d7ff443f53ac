/*
 * The kinds of a model's operations, for its description (config.h) and for the kernels that
 * compute them (kernels/gpu_ops.h).
 */
#ifndef MOE_MODEL_KINDS_H
#define MOE_MODEL_KINDS_H

enum moe_norm_kind {
    MOE_NORM_RMS,
    MOE_NORM_LAYER,   /* mean subtracted, weights and biases */
    MOE_NORM_CENTRED, /* mean subtracted, only weights (Cohere) */
};

/* Where a layer has its norms. */
enum moe_norm_place {
    MOE_NORM_BEFORE, /* before attention and feed-forward */
    MOE_NORM_AFTER,  /* after each, before its output is added to the stream (GPTSAN) */
    MOE_NORM_BOTH,   /* before and after, with separate weights (Gemma-4, AFMoE) */
    MOE_NORM_STREAM, /* before, and the stream becomes what they give, times stream_scale
                        (MiniMax-01) */
};

/* What the stream, x, becomes of what a block puts out, y; vectors multiply value by value. */
enum moe_residual_kind {
    MOE_RESIDUAL_SUM,     /* x + y */
    MOE_RESIDUAL_KEPT,    /* keep * x + y (Muse Spark) */
    MOE_RESIDUAL_WEIGHED, /* keep * (x + keep_bias) + weight * (y + bias); embeddings are
                             weight * (x + bias) (ZAYA) */
    MOE_RESIDUAL_MEAN,    /* a sum of n outputs, the embedding among them, divided by the root of n
                             (Beam) */
};

/* What a description is of: a model, or the head of another one that drafts for it
 * (infer/forward.h). */
enum moe_drafter_kind {
    MOE_DRAFTS_NOT,    /* a model */
    MOE_DRAFTS_EAGLE3, /* a head that drafts one token after the other */
    MOE_DRAFTS_DFLASH, /* one that drafts a block of them at once */
};

/* How attention learns a token's position. */
enum moe_position_kind {
    MOE_POSITIONS_ROTARY,
    MOE_POSITIONS_BUCKETS,   /* T5: a learnt bias by distance is added to self-attention's scores */
    MOE_POSITIONS_LEARNT,    /* a learnt vector for each position is added to the embedding */
    MOE_POSITIONS_SINUSOIDS, /* as learnt, but sines and cosines (NLLB) */
    MOE_POSITIONS_NONE,      /* only through the order of what it sees: states, the causal mask */
};

/* What compressed attention sees beside its window (DeepSeek-V4): entries, one per complete group
 * of positions. */
enum moe_compression {
    MOE_COMPRESS_NOT,
    MOE_COMPRESS_ALL,    /* all of them */
    MOE_COMPRESS_CHOSEN, /* those that an indexer scores highest; groups overlap */
};

/* What a recurrent layer does with its state, token by token. */
enum moe_state_kind {
    MOE_STATE_DELTA,  /* gated DeltaNet: a key's value is corrected towards the token's */
    MOE_STATE_CONV,   /* no matrix: only the latest inputs of a convolution (LFM2) */
    MOE_STATE_KDA,    /* DELTA where each key decays at its own rate (Kimi-Linear) */
    MOE_STATE_SCAN,   /* Mamba-2: the state decays, and the token's values are added */
    MOE_STATE_SELECT, /* Mamba: SCAN where every cell decays at its own rate */
    MOE_STATE_FADE,   /* lightning attention (MiniMax-01): a head decays at a rate that only depends
                         on head and layer */
    MOE_STATE_CCA,    /* beside attention, no matrix: the latest inputs of the convolutions that
                         queries and keys pass, and half of the last values (ZAYA) */
    MOE_STATE_TAPS,   /* beside attention, no matrix: the latest inputs of the convolutions that
                         keys, values and what both blocks put out pass (Inkling) */
};

/* Whether a layer with such a state has attention, too. */
static inline int moe_state_is_beside(enum moe_state_kind kind)
{
    return kind >= MOE_STATE_CCA;
}

/* Norms of queries and keys; before RoPE unless it says after. */
enum moe_qk_norm {
    MOE_QK_NORM_NONE,
    MOE_QK_NORM_HEAD,    /* RMS over each head; weights [head_dim] */
    MOE_QK_NORM_FULL,    /* RMS over all heads together; weights [heads * head_dim] */
    MOE_QK_NORM_ROTATED, /* HEAD, after RoPE (Hunyuan) */
    MOE_QK_NORM_BARE,    /* ROTATED without weights, where queries and keys rotate (Llama-4) */
    MOE_QK_NORM_PLAIN,   /* HEAD without weights (Muse Spark) */
    MOE_QK_NORM_CLIP,    /* no norm: heads longer than qk_clip are made that long, queries after
                            weights [heads * head_dim] (Inkling-2) */
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
    MOE_ACT_SWIGLU_CLIPPED, /* min(silu(gate), limit) * clamp(up, -limit, limit), in layers that
                               have a limit, else SWIGLU (Step-3.5) */
    MOE_ACT_SITU, /* alpha * tanh(gate / alpha) * sigmoid(gate) * limit * tanh(up / limit); without
                     a limit * up (Kimi-K3) */
    /* Two matrices, up and down, without a gate. */
    MOE_ACT_RELU,  /* max(up, 0) */
    MOE_ACT_SILU,  /* silu(up) */
    MOE_ACT_RELU2, /* max(up, 0) squared */
};

/* Whether there is a gate beside up and down. */
static inline int moe_act_is_gated(enum moe_act_kind kind)
{
    return kind <= MOE_ACT_SITU;
}

#endif
