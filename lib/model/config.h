/*
 * Model description: the numbers and switches of a model, the same for all families.
 *
 * A family's table (family.h) fills it from a checkpoint; a pack carries it as JSON
 * (moe_config_write, moe_config_read), every key known and checked. The forward pass reads this
 * and never a family's name.
 */
#ifndef MOE_MODEL_CONFIG_H
#define MOE_MODEL_CONFIG_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/loop.h"
#include "model/kinds.h"

struct json_t;
struct moe_checkpoint;

enum {
    MOE_MAX_LAYERS = 1024,
    MOE_MAX_EXPERTS = 4096, /* per layer */
    MOE_MAX_TOP_K = 64,
    MOE_MAX_VARIANTS = 8,  /* stored precisions of an expert */
    MOE_NAME_BYTES = 64,   /* of a tensor or variant name, with its NUL */
    MOE_METHOD_BYTES = 16, /* of the name of a variant's method, with its NUL */
    MOE_MAX_EOS = 8,
    MOE_MAX_HEADS = 1024,
    MOE_MAX_HEAD_DIM = 1 << 12,
    MOE_MAX_CONTEXT = 1 << 24,
    MOE_MAX_ROPE_PAIRS = 512,
    MOE_MAX_BUCKETS = 1 << 12,
    MOE_MAX_SELECTED = 1 << 8, /* keys of MOE_STATE_SELECT */
    MOE_MAX_AHEAD = 1,
    MOE_MAX_READS = 16,
    MOE_MAX_BLOCK = 64, /* tokens that a head drafts at once */
    MOE_MAX_STREAMS = 16,
    MOE_MAX_NGRAM = 8,
    MOE_MAX_NGRAM_HEADS = 64,
    MOE_MAX_RATIO = 1 << 10, /* positions that compressed attention makes one entry of */
};

/* One layer. All 0: attention over the whole text and a dense feed-forward. */
struct moe_layer_desc {
    bool windowed; /* attention sees a sliding window */
    bool
        shares_choice; /* without an indexer: sees what the nearest earlier indexer chose (GLM-5) */
    bool sees_all;     /* without an indexer, beside layers that have one: attention over the whole
                          text (MiniMax-M3) */
    bool shares_keys;  /* sees the keys and values of the nearest earlier layer that has some, and
                          a window or a rotation as it has (Gemma-4) */
    bool unrotated; /* latent attention without a rotated part: heads are all of the latent vector
                       (Mistral-Large-4) */
    bool wide_ffn;  /* its dense feed-forward is twice as wide */
    uint8_t compression; /* enum moe_compression: what it sees beside its window */
    bool recurrent;      /* a recurrent state, in place of attention or beside it */
    bool no_attention;   /* half a layer: a feed-forward only (Nemotron-H) */
    bool no_ffn;         /* half a layer: attention or a state only */
    bool moe;            /* the feed-forward is made of experts */
    bool static_routing; /* a table chooses experts by the token (model/routes.h) */
    bool ngrams; /* embeddings of the last tokens are added to the streams before it (Qwen4) */
    uint8_t elsewhere; /* 1 + the rank that computes its attention and keeps its keys, values and
                          states (moe_config_share_attention); 0: this process */
    bool away;         /* ... and computes all else of it (moe_config_share_layers) */
    float expert_limit, dense_limit; /* MOE_ACT_SWIGLU_CLIPPED's; the latter of dense layers and
                                        shared experts, too. 0: none */

    /* How many earlier layers are of a kind: the layer's index among them. Set by
     * moe_config_number_layers. */
    uint16_t moe_index;
    uint16_t attention_index; /* of layers with keys and values */
    uint16_t recurrent_index;
    uint16_t state_index; /* of layers that moe_config_keeps_state is true for */
};

/* The layers of a head that drafts for a model, and follow its layers: n_heads 0 where there are
 * none. */
struct moe_drafter_sizes {
    uint32_t n_heads, n_kv_heads, head_dim, value_dim, dense_ff, n_reads;
    uint32_t kv_rank, q_rank, rope_dim; /* of latent attention */
    uint32_t block; /* of one that drafts a block at once, one more than it drafts; else 0 */
    uint32_t markov_rank;
};

/* A model. A switch that is off, or a scale of 1, is what moe_config_init sets, and packs leave it
 * out. */
struct moe_config {
    char family[32]; /* its name, for people */

    /* ---- Stacks, stream, head ---- */

    uint32_t n_layers;
    uint32_t n_encoder; /* the first layers, an encoder, which computes a source once, all rows
                           seeing each other; later layers also attend to its output. 0: a
                           decoder only */
    /* Layers that are visited several times (base/loop.h): n_layers and all layers count visits. A
     * later pass begins with the streams that were there before the loop, and layers take in
     * messages from the pass before (infer/cpu_streams.c), through gates of a vector of this width
     * (Inkling-2 Mini). */
    struct moe_loop loop;
    uint32_t loop_rank;
    uint32_t decoder_start; /* the decoder's first token; only with an encoder */
    uint32_t answer_start; /* ... and what an answer begins with behind it where its language is not
                              asked for; 0: the model chooses */
    bool prefix_lm;        /* rows of the prompt see the whole prompt */
    uint32_t hidden;       /* width of the residual stream */
    uint32_t vocab;        /* rows of the embedding; the tokenizer may have fewer or more */
    uint32_t context_max;  /* positions the model was trained for */
    enum moe_norm_kind norm_kind;
    enum moe_norm_place norm_place;
    bool parallel_blocks; /* attention and feed-forward share one norm and are both added to the
                             stream; routers are early (Command-A) */
    bool last_projection; /* a matrix with biases and silu in place of the final norm (GPTSAN) */
    float norm_eps;
    float end_eps;  /* of norms behind blocks, and behind single experts; 0: norm_eps */
    float last_eps; /* of the norm before the head; 0: norm_eps (JetMoE) */
    /* What attention, and what a layer's experts take in, is multiplied by the sigmoid of what two
     * matrices make of it, with silu between, through a vector of this width (A.X-K2). 0: not. */
    uint32_t norm_gate_rank;
    float embed_scale;  /* of an embedded token */
    bool embed_norm;    /* an embedded token is divided by its root mean square */
    bool embed_weighed; /* ... and multiplied value by value (Inkling) */
    enum moe_residual_kind residual;
    float residual_scale; /* of the outputs of attention and feed-forward */
    float stream_scale;   /* of MOE_NORM_STREAM */
    float logit_scale;
    float logit_cap; /* logits become cap * tanh(logit / cap); 0: no cap */
    bool tied_head;  /* the output head is the embedding */
    bool head_bias;
    /* Hyper-connections (DeepSeek-V4): n_streams residual streams. A block reads a mixture of them
     * and writes to each, stream_magnitude times a gate; a matrix made doubly stochastic in
     * stream_rounds rounds mixes them, or with 0 rounds nothing does (Hy4). 0: one plain stream. */
    uint32_t n_streams, stream_rounds;
    float stream_eps, stream_magnitude;
    /* Residual attention (Kimi-K3): every stream_layers layers the stream is kept, and a new one
     * begins with what attention gives. A block takes in a mixture of the kept ones and the present
     * one, by a softmax of what its vector of scores makes of each under a norm. n_streams is what
     * the last layer has of them. 0: not this. */
    uint32_t stream_layers;
    /* ... of the streams under a norm without weights, by scores divided by the root of hidden
     * (Inkling-2). */
    bool stream_normed;
    /* Keys and values of layers without a window take in mixtures and norms of their own. */
    bool own_inputs;
    bool stream_mean; /* of hyper-connections: the head takes in the streams' mean (GLM-5.3) */
    /* Gated streams (Qwen4): what a block takes in of each stream, under a norm, has a gate for
     * each value, which two matrices make of all through a vector of this width; no other norm
     * stands before blocks and head. Nothing mixes streams (stream_rounds 0). 0: not this. */
    uint32_t stream_rank;
    /* Embeddings of the last tokens, of 2 to `ngrams` of them (infer/cpu_ngrams.c): of each length
     * ngram_heads, each of ngram_dim values, a row of a table of ngram_rows that is found by
     * ngram_factors, within ngram_sizes[head] rows of the head's own. Behind ngram_end a text
     * begins anew. Their convolution has ngram_taps, `ngrams` positions apart. 0: none. */
    uint32_t ngrams, ngram_heads, ngram_dim, ngram_rows, ngram_taps, ngram_end;
    uint64_t ngram_factors[MOE_MAX_NGRAM];     /* [ngrams] */
    uint32_t ngram_sizes[MOE_MAX_NGRAM_HEADS]; /* [(ngrams - 1) * ngram_heads] */
    uint32_t layer_embed; /* width of the embedding of a token that each layer has for itself
                             (Gemma-4 E2B); 0: none */
    bool layer_scale;     /* the stream is multiplied by a number after each layer */

    /* ---- Attention ---- */

    uint32_t n_heads, n_kv_heads;
    uint32_t head_dim;  /* of queries and keys */
    uint32_t value_dim; /* of values */
    bool qkv_bias, o_bias;
    enum moe_qk_norm qk_norm;
    bool value_norm; /* values are divided by their root mean square, head by head */
    bool out_norm;   /* ... and so are outputs, before their gate (Muse Spark) */
    /* Experts that make queries, and outputs, of n_kv_heads heads each (JetMoE): top_k of them for
     * a token, of its own router, so that n_heads is their product. A head of keys and values
     * serves those of the same number. 0: not this. */
    uint32_t attn_experts;
    float value_scale;     /* values are multiplied by it */
    float clip_qkv;        /* queries, keys and values are clamped to +-this; 0: not */
    float attn_scale;      /* of scores; 1 / sqrt(head_dim) unless set */
    float attn_cap;        /* scores become cap * tanh(score / cap) (Gemma-2); 0: no cap */
    bool attn_sinks;       /* attention sinks: a learnt score per head joins the softmax, without a
                              value */
    bool own_sinks;        /* ... or each row's own, which a matrix makes of the layer's input */
    bool sinks_in_windows; /* ... only in layers with a window (MiMo-V2) */
    bool attn_gate;        /* outputs are multiplied by sigmoid(gate . x), each value by its own */
    bool gate_by_head;     /* ... or all values of a head by one */
    bool gate_softplus;    /* ... by softplus(gate . x) (Laguna) */
    bool gate_bias;        /* a bias of each head is added to its gates (Beam) */
    uint32_t window;       /* positions that windowed layers see, the row's own included */
    bool window_chunks;    /* chunked attention: windows begin at multiples of `window` and do not
                              slide (Llama-4) */
    /* Global layers, those without a window, may have heads of their own number, shape and rotation
     * (Gemma-4, Mellum); global_head_dim 0: they have the others'. Their values may be their keys
     * before norm and rotation; their width is moe_config_global_value. The first
     * 2 * n_global_freqs values of a head rotate, by global_freqs; cosine and sine are multiplied
     * by global_rope_scale. */
    uint32_t global_head_dim, global_kv_heads;
    uint32_t global_heads; /* 0: n_heads */
    bool global_keys_are_values;
    uint32_t n_global_freqs; /* of compressing layers rope_dim / 2 */
    double global_freqs[MOE_MAX_ROPE_PAIRS];
    double global_rope_scale;
    bool rope_in_windows; /* only windowed layers rotate queries and keys (AFMoE) */
    bool rope_in_dense;   /* ... and those without experts (Command-A) */
    /* Attention temperature: layers without rotation, or all where all rotate (Mistral-4), multiply
     * queries at position p by 1 + query_scale * log(1 + floor((p + 1) / query_step)) (Llama-4), or
     * with p in place of p + 1; query_step 0: not. */
    uint32_t query_step;
    bool query_from_zero;
    bool query_power; /* by (1 + (p + 1) / query_step) to the power of query_scale (Beam) */
    float query_scale;
    /* The same of global layers, and of what makes their biases: 1 + query_scale * log((p + 1) /
     * query_floor) at positions beyond that many (Inkling). 0: not. */
    uint32_t query_floor;
    bool tempered_heads; /* queries of a head, an indexer's too, at position p are multiplied by its
                            slope * log(p + 1) + base (Mistral-Large-4) */

    /* Biases by distance (Inkling): of each head rel_dim numbers are projected from the layer's
     * input, and the score of a position d before a row's gets the sum of these times the layer's
     * profiles at d. Profiles are as long as a layer's window, of global layers rel_extent; beyond
     * them there is no bias. 0: not this. */
    uint32_t rel_dim, rel_extent;
    /* Lengths that heads of queries and keys, or those numbers times weights, do not exceed. */
    float qk_clip, rel_clip;

    /* MLA, multi-head latent attention (DeepSeek-V2): keys and values are projected from a
     * normalized vector of kv_rank, and all heads share a rotated key of rope_dim. head_dim is
     * rope_dim plus the part that does not rotate. kv_rank and value_dim are multiples of 16. */
    uint32_t kv_rank;        /* 0: ordinary attention */
    uint32_t global_kv_rank; /* of global layers with heads of their own (dots3-note) */
    bool latent_key_norm;    /* the shared key has a norm before its rotation (dots3-note) */
    uint32_t q_rank; /* queries are projected from a normalized vector of this width; 0: directly */
    bool q_twice;    /* queries, and gates of outputs, are projected from that vector beside what it
                        was    before its norm (A.X-K2) */
    float latent_eps;                             /* of both vectors' norms; 0: norm_eps */
    float latent_scale;                           /* of the normalized vector of kv_rank */
    float global_latent_scale, global_attn_scale; /* of global_kv_rank's layers */
    /* Sparse attention (DeepSeek-V3.2): a row sees the index_top positions that its layer's indexer
     * scores highest (infer/cpu_sparse.c). The indexer has index_heads queries, projected from the
     * vector of q_rank, or without one from the layer's input under a layer norm, and one key a
     * position, both of index_dim values whose first rope_dim rotate where the layer's heads do.
     * Layers with a window have none. Or it chooses blocks of index_block positions (MiniMax-M3),
     * of ordinary attention: each of its heads, which are as many as heads of keys, for one of
     * these, index_top positions' at most, the index_local last ones among them; its queries come
     * from the layer's input, each head's under a norm. With index_means (Qwen4) it chooses among
     * complete blocks, by the mean of their keys, for all heads of the layer; rows see the
     * incomplete one beside these. With index_pooled (GLM-5.3) as well, latent attention's indexer
     * with its queries and weights does, by means that gates and a bias for each place weigh. */
    uint32_t index_top; /* 0: rows see all positions */
    uint32_t index_heads, index_dim;
    uint32_t index_block, index_local; /* 0: it chooses positions one by one */
    bool index_means, index_pooled;
    float index_eps; /* of the norm of its keys */

    /* Compressed attention (DeepSeek-V4): one normalized vector is key and value of all heads.
     * Queries are projected from a normalized vector of q_rank and divided, head by head, by their
     * root mean square. The last rope_dim values of a head rotate, as pairs of neighbours, and
     * those of outputs are rotated back. Outputs pass, in out_groups groups of heads, through
     * out_rank values each (a multiple of 16). */
    uint32_t out_groups, out_rank; /* 0: not this */
    /* Compressing layers see, beside their window, one entry per complete group of all_ratio or
     * chosen_ratio positions; those of MOE_COMPRESS_CHOSEN see the index_top entries that
     * index_heads heads of index_dim score highest. They rotate by global_freqs. */
    uint32_t all_ratio, chosen_ratio;

    /* ---- Recurrent states ---- */

    /* Per head a matrix [state_key_dim][state_value_dim] that each token changes. state_heads /
     * state_key_heads neighbouring heads share a head of queries and keys; with state_keys_in_turn
     * heads take these in turn. Queries, keys and values pass a causal convolution over conv_width
     * tokens.
     *
     * MOE_STATE_KDA: decays and output gates pass a vector of state_key_dim, unless state_direct,
     * or of gates gate_direct. MOE_STATE_SCAN: Mamba-2's x are the values, B the keys, C the
     * queries; outputs are gated before a norm over the heads that share keys. MOE_STATE_SELECT:
     * one head; only values are convolved, and keys, queries and the step of each value (through a
     * vector of state_step_rank) are projected from them. MOE_STATE_CONV: one head of hidden
     * values, no keys: the product of two projections is convolved and multiplied by a third.
     * MOE_STATE_CCA: one head, as wide as queries, keys and half of the values together. Two
     * convolutions of conv_width, one by channel and one by head, are added to queries and keys,
     * each mixed with the other; queries and keys become unit vectors. The second half of the
     * values is the one of the token before.
     * MOE_STATE_TAPS: keys, values, and what attention and feed-forward put out each get their
     * convolution over conv_width tokens added.
     * MOE_STATE_FADE: no convolution; queries, keys and values are silu of their products, outputs
     * have a norm over all heads (its epsilon latent_eps), then gates. */
    enum moe_state_kind state_kind;
    uint32_t state_heads, state_key_heads, state_key_dim, state_value_dim, conv_width;
    uint32_t state_step_rank;
    bool state_keys_in_turn;
    bool state_direct, gate_direct;
    bool state_sigmoid; /* MOE_STATE_DELTA: outputs are gated by sigmoids, not by silu (Qwen4) */
    float decay_floor;  /* MOE_STATE_KDA: logarithms of decays are this, below 0, times a sigmoid
                           (Ling-3); 0: as in Kimi-Linear */
    bool conv_bias;
    /* MOE_STATE_TAPS: sums are divided by the root of conv_width + 1, or of twice that less 1 where
     * each token adds to the weights of a head's keys or values, in layers without a window
     * (Inkling-2). */
    bool own_taps;

    /* ---- Positions ---- */

    enum moe_position_kind positions;
    /* MOE_POSITIONS_BUCKETS: a bias per head and bucket of distances; half of the buckets are one
     * distance wide, the others grow up to bucket_distance, and the last one holds all beyond. An
     * encoder uses one half of the buckets for each direction. */
    uint32_t n_buckets, bucket_distance;
    /* MOE_POSITIONS_SINUSOIDS: of position p + first_position the first half of a vector are sines,
     * the second one cosines, of frequencies that fall geometrically from 1 to 1e-4. */
    uint32_t first_position;
    uint32_t extra_positions; /* MOE_POSITIONS_LEARNT: the layer before which learnt vectors are
                                 added a second time; 0: none */

    /* RoPE: pairs (i, i + rope_dim/2) of a head's first rope_dim values rotate by
     * p * rope_freqs[i]; cosine and sine are multiplied by rope_scale. model/rope.h computes the
     * frequencies. */
    uint32_t rope_dim; /* even; 0 without rotary positions, but with MLA always the width of the
                          key that heads share */
    double rope_theta; /* frequencies are theta^(-2i/rope_dim) where none are listed */
    double rope_scale;
    bool rope_learnt;      /* frequencies are multiplied by e to a vector of the model's */
    uint32_t n_rope_freqs; /* rope_dim / 2, or 0 */
    double rope_freqs[MOE_MAX_ROPE_PAIRS];
    /* LongRoPE: these hold at every position of a text of more than rope_original positions, also
     * of one that was shorter when it began (struct moe_row, infer/state.h), as in the code that
     * Phi-3.5-MoE was published with. */
    uint32_t rope_original; /* 0: never */
    double rope_scale_long;
    uint32_t n_rope_freqs_long;
    double rope_freqs_long[MOE_MAX_ROPE_PAIRS];

    /* ---- Feed-forward ---- */

    uint32_t dense_ff;           /* width in dense layers; 0: there are none */
    enum moe_act_kind dense_act; /* theirs and the shared expert's */
    bool dense_bias;             /* on up and down of dense layers, then without a gate */
    uint32_t n_experts;          /* per MoE layer; 0: a dense model */
    uint32_t top_k;
    uint32_t expert_ff; /* width of an expert */
    /* What routed experts take in and put out (Nemotron-3-Super): a product of their input, and a
     * product of their sum is added to the stream. 0: both are the stream's. */
    uint32_t expert_dim;
    bool narrow_norm;       /* their sum has a norm in that space (Kimi-K3) */
    bool narrow_start_norm; /* what they take in has one */
    /* Experts behind the n_experts that give back what they take in (LongCat-Flash). What routed
     * experts put out may be late: it is added to the stream behind the next layer. */
    uint32_t n_zero;
    bool zero_skips; /* ... or nothing (ZAYA) */
    bool late_experts;
    enum moe_act_kind expert_act;
    float act_alpha, act_limit; /* of MOE_ACT_SWIGLU_CLAMPED and _SITU; _LIMITED has a limit only */
    /* Adjugate experts (GroveMoE), one of this width for each adjugate_of experts: they take in the
     * sum of what a row's experts put out, and chosen as these are add adjugate_scale times what
     * they make of it. They are part of the layer, not loaded. 0: none. */
    uint32_t adjugate_ff, adjugate_of;
    float adjugate_scale;
    bool expert_bias;   /* gate, up and down have biases */
    bool ffn_scale;     /* a dense layer's output, or the weights of all experts, are multiplied by
                           a number of the layer (Inkling) */
    uint32_t shared_ff; /* width of all shared experts together; 0: none */
    bool shared_gate;   /* their output is multiplied by sigmoid(shared_gate . x) */
    /* Shared experts that the router scores behind the others, as sinks: weights are divided by the
     * sum of theirs and the chosen ones', and each weighs what goes into its down matrix (Inkling).
     * 0: not. */
    uint32_t shared_sinks;
    float moe_scale; /* of the sum of routed and shared experts */
    bool own_norms;  /* router, shared and routed experts have a norm each of what they take in (the
                        router's scaled by 1 / sqrt(hidden)), and shared and routed ones of what
                        they put out (Gemma-4) */
    bool moe_norm;   /* their sum has a norm of its own, other blocks' outputs none (A.X-K1) */
    bool moe_bias;   /* ... and a bias (JetMoE) */
    bool weighed_outputs; /* feed-forwards' outputs are multiplied value by value before their norm,
                             and so are those of each expert, which have a norm without weights
                             (Muse Spark) */
    bool soft_bypass;     /* tanh(bypass . x) is added to a MoE layer's output (GPTSAN) */

    /* ---- Router ---- */

    enum moe_router_kind router_kind;
    bool router_bias;
    /* Scores are made by two layers with biases and GELU, under a norm, of a vector of this width:
     * a product with a bias, and what the router before made, value by value (ZAYA). 0: by one
     * product. */
    uint32_t router_dim;
    float score_scale; /* of scores */
    bool router_early; /* reads the stream before attention, without a norm (SmallThinker) or, with
                          parallel_blocks, under theirs: experts are known before attention */
    bool choice_bias;  /* a number per expert is added where experts and groups are chosen, not in
                          the weights (DeepSeek-V3's load balancing) */
    bool choice_of_scores; /* ... to scores, not to sigmoids of them (Kolibri) */
    /* Only experts of the top_groups best of n_groups equal groups are candidates; a group is as
     * good as its best expert, or with MOE_ROUTER_SIGMOID as its best two. 0: no groups. */
    uint32_t n_groups, top_groups;
    bool norm_topk;      /* the chosen weights are divided by their sum */
    float topk_eps;      /* added to that sum */
    float routed_scale;  /* of the chosen weights */
    bool expert_scale;   /* a weight is multiplied by a number of its expert */
    bool weigh_inputs;   /* weights multiply the inputs of gate and up, not outputs (Llama-4) */
    float router_jitter; /* of MOE_ROUTER_SPARSEMIXER */
    bool static_weighed; /* a router weighs what static routing chooses (DeepSeek-V4) */
    uint32_t expert_capacity; /* rows of a source (or of a prefix_lm prompt) that an expert takes,
                                 in their order; it adds nothing to later ones. 0: no limit */
    bool overflow_passes;     /* a row beyond the capacity gets its input, times the weight */

    /* ---- Drafts, ends, layers ---- */

    uint32_t n_beyond;   /* layers after these in a checkpoint that predict further tokens (MTP) */
    uint32_t n_ahead;    /* of them, those that packs keep to draft with (infer/forward.h): layer
                            n_layers, attention with experts */
    uint32_t n_drafting; /* n_ahead where a model is opened for such drafts, else 0; not in packs */
    struct moe_drafter_sizes drafter; /* ... or the layers of a head that drafts; likewise */

    /* A head that drafts is described as a model of dense layers: for MOE_DRAFTS_EAGLE3 of one,
     * whose attention takes in twice the width, a token's embedding and a vector of the model's
     * streams, each under a norm. `reads` says which streams: those that come into these layers of
     * the model, n_layers being what the last one leaves. All 0: into layers 2, n_layers / 2 and
     * n_layers - 3. */
    enum moe_drafter_kind drafter_kind;
    uint32_t n_reads, reads[MOE_MAX_READS];
    uint32_t draft_block; /* of MOE_DRAFTS_DFLASH: tokens of a block, the first of which is known */
    uint32_t mask_token;  /* ... and what stands in the place of the others */
    /* Tokens of a block depend on the ones before them (DSpark): to a row's logits is added what a
     * matrix makes of the token's vector of this width. 0: not. */
    uint32_t markov_rank;
    bool from_anchor;     /* ... and the known token's row drafts, too: the one after it */
    bool causal_block;    /* rows of a block do not see those behind them, */
    bool causal_windows;  /* or this only in layers with a window */
    bool reads_norm;      /* the streams that it reads, side by side, have a norm */
    bool normed_stream;   /* what the layer adds to is the vector under its norm */
    bool own_embed;       /* it embeds tokens by itself, and not by the model's matrix */
    bool own_head;        /* likewise its output */
    uint32_t draft_vocab; /* tokens that its output knows, each the model's token that a list says;
                             0: all of them */

    uint32_t n_eos; /* tokens that end an answer, by the checkpoint */
    uint32_t eos[MOE_MAX_EOS];

    uint32_t n_moe_layers; /* set with the layers' indices */
    /* An array, not a pointer, so that assignment copies a description. Behind the model's layers
     * are those that draft; the entry behind the last layer has the totals as its indices. */
    struct moe_layer_desc layers[MOE_MAX_LAYERS + 1];
};

/* Sets everything to zero but the scales, which become 1. value_dim, attn_scale and rope_dim are
 * the readers' to set, or stay 0 for moe_config_complete. */
void moe_config_init(struct moe_config *config);
/* Fills what follows from the rest and is still 0 (n_kv_heads, head_dim, value_dim, attn_scale,
 * rope_dim), drops a single group of experts, and numbers the layers. */
void moe_config_complete(struct moe_config *config);

/* Sets the layers' indices and n_moe_layers; to be called again when the kind of a layer changes.
 */
void moe_config_number_layers(struct moe_config *config);

/* Adds n layers that draft, with experts. */
void moe_config_set_ahead(struct moe_config *config, uint32_t n);

/* The layers of a head that drafts follow the model's, and take the place of those that draft.
 * `head` gets the layers whose streams it reads where it does not say them. MOE_ERR_FORMAT: it
 * drafts for another model; MOE_ERR_UNSUPPORTED: this one can have none. */
int moe_config_take_drafter(struct moe_config *config, struct moe_config *head, const char *name,
                            const char *head_name, struct moe_err *err);

/* A member of struct moe_layer_desc that is no index: how many of the model's layers have it not 0;
 * setting it for layers [begin, end). */
#define MOE_LAYER(member) offsetof(struct moe_layer_desc, member)
uint32_t moe_config_count_layers(const struct moe_config *config, size_t member);
void moe_config_set_layers(struct moe_config *config, size_t member, uint32_t begin, uint32_t end,
                           uint8_t value);

/* Gives the attention of layers that see a whole text to n_ranks processes, by position and in
 * equal parts, the first of them to rank 0. `self`: this process. Returns how many of these layers
 * it has. Layers that keep more than keys and values, or see another layer's, stay with rank 0. */
uint32_t moe_config_share_attention(struct moe_config *config, uint32_t self, uint32_t n_ranks);
/* Of what that made for one of several. MOE_ERR_UNSUPPORTED: it has all of the attention. */
int moe_config_check_shared(const struct moe_config *config, const char *name, struct moe_err *err);

/* Gives whole layers to processes: owners, [n_layers], says whose each is; NULL: all are others'.
 * Those that draft are rank 0's. Returns how many of the model's layers `self` has. */
uint32_t moe_config_share_layers(struct moe_config *config, uint32_t self, const uint8_t *owners);
/* Whether another process can have the layers from this one on: of those before they need nothing
 * but what comes into them. */
bool moe_config_parts_at(const struct moe_config *config, uint32_t layer);
/* MOE_ERR_UNSUPPORTED: layers cannot be n_ranks processes'. */
int moe_config_check_parts(const struct moe_config *config, uint32_t n_ranks, const char *name,
                           struct moe_err *err);

/* ---- Which layers ---- */

/* The layers of an opened model: those that draft, if any, are the last. */
static inline uint32_t moe_config_all_layers(const struct moe_config *c)
{
    return c->n_layers + c->n_drafting;
}

/* Whether the layer's weights are its own, not those of an earlier visit. */
static inline bool moe_config_owns(const struct moe_config *c, uint32_t layer)
{
    return moe_loop_owner(&c->loop, layer) == layer;
}
/* The layer's number in a checkpoint, where layers stand once. */
static inline uint32_t moe_config_stored_layer(const struct moe_config *c, uint32_t layer)
{
    return moe_loop_owners(&c->loop, moe_loop_owner(&c->loop, layer));
}
/* Whether the layer takes in messages from a pass before. */
static inline bool moe_config_is_told(const struct moe_config *c, uint32_t layer)
{
    return moe_loop_pass(&c->loop, layer) > 0;
}
/* The loop among MoE layers. */
static inline struct moe_loop moe_config_moe_loop(const struct moe_config *c)
{
    const struct moe_loop *l = &c->loop;
    uint32_t begin = c->layers[l->begin].moe_index;
    return (struct moe_loop){l->n ? begin : 0, c->layers[l->begin + l->n].moe_index - begin,
                             l->passes};
}

/* Whether the layer is one of a head that drafts; and the layers without these. */
static inline bool moe_config_is_drafter(const struct moe_config *c, uint32_t layer)
{
    return c->drafter.n_heads && layer >= c->n_layers && layer < moe_config_all_layers(c);
}
static inline uint32_t moe_config_own_layers(const struct moe_config *c)
{
    return c->n_layers + (c->drafter.n_heads ? 0 : c->n_drafting);
}

/* Of a head that drafts blocks: whether rows see what is behind them in theirs. */
static inline bool moe_config_sees_block(const struct moe_config *c, uint32_t layer)
{
    return c->draft_block && !c->causal_block && !(c->causal_windows && c->layers[layer].windowed);
}

static inline bool moe_config_in_encoder(const struct moe_config *c, uint32_t layer)
{
    return layer < c->n_encoder;
}

/* The end of the layer's stack, encoder or decoder, as far as this process has its layers. */
static inline uint32_t moe_config_stack_end(const struct moe_config *c, uint32_t layer)
{
    const uint32_t end = layer < c->n_encoder ? c->n_encoder : c->n_layers;
    while (layer < end && !c->layers[layer].away)
        layer++;
    return layer < end ? layer : end;
}

/* Whether the layer has a recurrent state in place of attention. */
static inline bool moe_config_is_recurrent(const struct moe_config *c, uint32_t layer)
{
    return c->state_heads && c->layers[layer].recurrent && !moe_state_is_beside(c->state_kind);
}

/* Whether the layer has attention, and so keeps keys and values. */
static inline bool moe_config_attends(const struct moe_config *c, uint32_t layer)
{
    return !moe_config_is_recurrent(c, layer) && !c->layers[layer].no_attention;
}

/* Whether these are its own, whether this process keeps them, and the layer whose keys and values
 * it sees. */
static inline bool moe_config_has_keys(const struct moe_config *c, uint32_t layer)
{
    return moe_config_attends(c, layer) && !c->layers[layer].shares_keys;
}
static inline bool moe_config_keeps_keys(const struct moe_config *c, uint32_t layer)
{
    return moe_config_has_keys(c, layer) && !c->layers[layer].elsewhere;
}
static inline bool moe_config_same_keys(const struct moe_config *c, uint32_t layer, uint32_t of)
{
    const struct moe_layer_desc *a = &c->layers[layer], *b = &c->layers[of];
    return moe_config_has_keys(c, of) && a->windowed == b->windowed && a->unrotated == b->unrotated;
}
static inline uint32_t moe_config_keys_of(const struct moe_config *c, uint32_t layer)
{
    uint32_t of = layer;
    while (of > 0 && layer < c->n_layers && c->layers[layer].shares_keys &&
           !moe_config_same_keys(c, layer, of))
        of--;
    return of;
}

/* Whether a text can go on only from its last token: the layer keeps a recurrent state, or the
 * group that a compressor has not completed, here or elsewhere. */
static inline bool moe_config_keeps_state(const struct moe_config *c, uint32_t layer)
{
    const struct moe_layer_desc *l = &c->layers[layer];
    return (c->state_heads && l->recurrent) || l->compression;
}

/* The table's rows that are one of its matrix, which has at most MOE_MAX_DIM. */
uint32_t moe_config_ngrams_joined(const struct moe_config *config);

/* Whether any layer is half a layer. */
static inline bool moe_config_has_halves(const struct moe_config *c)
{
    return moe_config_count_layers(c, MOE_LAYER(no_attention)) ||
           moe_config_count_layers(c, MOE_LAYER(no_ffn));
}

/* Whether one of layers [begin, end) has static routing. */
static inline bool moe_config_has_static(const struct moe_config *c, uint32_t begin, uint32_t end)
{
    bool has = false;
    for (uint32_t i = begin; i < end; i++)
        has |= c->layers[i].static_routing;
    return has;
}

/* Writes for each MoE layer whether it has static routing. */
static inline void moe_config_static_layers(const struct moe_config *c, uint8_t *is_static)
{
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (c->layers[i].moe)
            is_static[c->layers[i].moe_index] = c->layers[i].static_routing;
}

/* ---- Sparse and compressed attention ---- */

/* Whether indexers choose among positions (and not among entries). */
static inline bool moe_config_picks_positions(const struct moe_config *c)
{
    return c->index_top && !c->out_groups;
}
/* How many positions a row sees at most where an indexer chooses. */
static inline uint32_t moe_config_index_sees(const struct moe_config *c)
{
    return c->index_top + (c->index_means ? c->index_block - 1 : 0);
}
/* Whether an indexer's queries come from the layer's input, under a norm, and count alike. */
static inline bool moe_config_index_plain(const struct moe_config *c)
{
    return c->index_block && !c->index_pooled;
}
/* What an indexer keeps of a position: a key, and with index_pooled its gates. */
static inline uint32_t moe_config_index_cell(const struct moe_config *c)
{
    return c->index_dim << c->index_pooled;
}
/* Whether this layer's rows see what an indexer chose, its own or an earlier one's. */
static inline bool moe_config_sees_choice(const struct moe_config *c, uint32_t layer)
{
    const struct moe_layer_desc *l = &c->layers[layer];
    return moe_config_picks_positions(c) && !(layer < c->n_layers && (l->windowed || l->sees_all));
}
static inline bool moe_config_has_indexer(const struct moe_config *c, uint32_t layer)
{
    return moe_config_sees_choice(c, layer) && moe_config_attends(c, layer) &&
           !(layer < c->n_layers && c->layers[layer].shares_choice);
}
/* How many of the first `layer` layers have an indexer. */
static inline uint32_t moe_config_indexers(const struct moe_config *c, uint32_t layer)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < layer; i++)
        n += moe_config_has_indexer(c, i);
    return n;
}
/* The nearest layer, this one or before it, at which a pass can begin: one that uses no choice of
 * an earlier layer. */
static inline uint32_t moe_config_beginning(const struct moe_config *c, uint32_t layer)
{
    while (layer > 0 && layer < c->n_layers && c->layers[layer].shares_choice)
        layer--;
    return layer;
}

/* Positions per entry of a compressing layer, or per block that an indexer pools. */
static inline uint32_t moe_config_ratio(const struct moe_config *c, uint32_t layer)
{
    if (c->index_pooled)
        return c->index_block;
    return c->layers[layer].compression == MOE_COMPRESS_CHOSEN ? c->chosen_ratio : c->all_ratio;
}

/* ---- Heads ---- */

static inline float moe_config_last_eps(const struct moe_config *c)
{
    return c->last_eps > 0 ? c->last_eps : c->norm_eps;
}
static inline float moe_config_end_eps(const struct moe_config *c)
{
    return c->end_eps > 0 ? c->end_eps : c->norm_eps;
}

static inline float moe_config_latent_eps(const struct moe_config *c)
{
    return c->latent_eps > 0 ? c->latent_eps : c->norm_eps;
}

/* Whether the layer is a global one whose heads have a shape of their own. */
static inline bool moe_config_is_global(const struct moe_config *c, uint32_t layer)
{
    bool known = layer < c->n_layers && layer < MOE_MAX_LAYERS;
    return c->global_head_dim && known && !c->layers[layer].windowed;
}
/* Heads of global layers and the width of their values: as wide as their keys, unless that is the
 * width of all keys, or with MLA. 0: no layer is such a one. */
static inline uint32_t moe_config_global_heads(const struct moe_config *c)
{
    return !c->global_head_dim ? 0 : c->global_heads ? c->global_heads : c->n_heads;
}
static inline uint32_t moe_config_global_value(const struct moe_config *c)
{
    return c->kv_rank || c->global_head_dim == c->head_dim ? c->value_dim : c->global_head_dim;
}
static inline uint32_t moe_config_heads(const struct moe_config *c, uint32_t layer)
{
    if (moe_config_is_drafter(c, layer))
        return c->drafter.n_heads;
    return moe_config_is_global(c, layer) ? moe_config_global_heads(c) : c->n_heads;
}
static inline uint32_t moe_config_value_dim(const struct moe_config *c, uint32_t layer)
{
    if (moe_config_is_drafter(c, layer))
        return c->drafter.value_dim;
    return moe_config_is_global(c, layer) ? moe_config_global_value(c) : c->value_dim;
}
static inline uint32_t moe_config_head_dim(const struct moe_config *c, uint32_t layer)
{
    if (moe_config_is_drafter(c, layer))
        return c->drafter.head_dim;
    return moe_config_is_global(c, layer) ? c->global_head_dim : c->head_dim;
}
static inline uint32_t moe_config_kv_heads(const struct moe_config *c, uint32_t layer)
{
    if (moe_config_is_drafter(c, layer))
        return c->drafter.n_kv_heads;
    return moe_config_is_global(c, layer) ? c->global_kv_heads : c->n_kv_heads;
}

/* MLA: the width of a layer's latent vector, of what heads rotate, and of the room that keys have
 * for it. */
static inline uint32_t moe_config_kv_rank(const struct moe_config *c, uint32_t layer)
{
    if (moe_config_is_drafter(c, layer))
        return c->drafter.kv_rank;
    return moe_config_is_global(c, layer) ? c->global_kv_rank : c->kv_rank;
}
static inline uint32_t moe_config_latent_rope(const struct moe_config *c, uint32_t layer)
{
    return moe_config_is_drafter(c, layer) ? c->drafter.rope_dim : c->rope_dim;
}
static inline uint32_t moe_config_rotated(const struct moe_config *c, uint32_t layer)
{
    bool still = layer < c->n_layers && c->layers[layer].unrotated;
    return still ? 0 : moe_config_latent_rope(c, layer);
}

/* What the KV cache keeps of a position in a layer: heads, and the values of a key and of a value.
 * MLA caches the latent vector: one head with a key of [rotated | latent] and a value of [latent];
 * where nothing rotates, zeros stand in its place. */
static inline uint32_t moe_config_cache_heads(const struct moe_config *c, uint32_t layer)
{
    return moe_config_kv_rank(c, layer) ? 1 : moe_config_kv_heads(c, layer);
}
static inline uint32_t moe_config_cache_key(const struct moe_config *c, uint32_t layer)
{
    uint32_t latent = moe_config_kv_rank(c, layer);
    return latent ? moe_config_latent_rope(c, layer) + latent : moe_config_head_dim(c, layer);
}
static inline uint32_t moe_config_cache_value(const struct moe_config *c, uint32_t layer)
{
    uint32_t latent = moe_config_kv_rank(c, layer);
    return latent ? latent : moe_config_value_dim(c, layer);
}

/* ---- States ---- */

/* The head of queries and keys that a head of a recurrent state uses. */
static inline uint32_t moe_config_state_key_head(const struct moe_config *c, uint32_t head)
{
    return c->state_keys_in_turn ? head % c->state_key_heads
                                 : head / (c->state_heads / c->state_key_heads);
}

/* Channels of a state's convolution: queries, keys, values (MOE_STATE_SCAN: values, keys, queries;
 * MOE_STATE_SELECT: values). */
static inline uint32_t moe_config_state_channels(const struct moe_config *c)
{
    uint32_t values = c->state_heads * c->state_value_dim;
    bool only_values = c->state_kind == MOE_STATE_SELECT || c->state_kind == MOE_STATE_CCA;
    return (only_values ? 0 : 2 * c->state_key_heads * c->state_key_dim) + values;
}

/* What a convolution of MOE_STATE_TAPS is multiplied by; own: tokens add to its weights. */
static inline float moe_config_taps_scale(const struct moe_config *c, bool own)
{
    return c->own_taps ? 1 / sqrtf((float)(c->conv_width * (own ? 2 : 1) + 1)) : 1;
}

/* How far back a layer has biases by distance. */
static inline uint32_t moe_config_rel_extent(const struct moe_config *c, uint32_t layer)
{
    return layer < c->n_layers && c->layers[layer].windowed ? c->window : c->rel_extent;
}

/* Streams that a pass through a loop leaves to the next one. */
static inline uint32_t moe_config_told_streams(const struct moe_config *c)
{
    return c->loop.n ? c->loop.n / c->stream_layers : 0;
}
/* Values of a row between layers, in all its streams, and behind them those of a pass before. */
static inline uint32_t moe_config_state_width(const struct moe_config *c)
{
    return c->hidden * (c->n_streams ? c->n_streams + moe_config_told_streams(c)
                        : c->late_experts || c->router_dim ? 2
                                                           : 1);
}

/* Streams that are there before a block: of layer i attention's is the 2i-th, its feed-forward's
 * the next, and the last one + 1 is what the head takes in. */
static inline uint32_t moe_config_streams_before(const struct moe_config *c, uint32_t block)
{
    uint32_t layer = moe_config_stored_layer(c, block / 2), every = c->stream_layers;
    if (every == 0)
        return c->n_streams;
    return block % 2 ? layer / every + 2 : (layer + every - 1) / every + 1;
}
/* Whether what the block gives begins a stream. */
static inline bool moe_config_begins_stream(const struct moe_config *c, uint32_t block)
{
    return c->stream_layers && block % 2 == 0 &&
           moe_config_stored_layer(c, block / 2) % c->stream_layers == 0;
}

/* Whether the token ends an answer. */
static inline bool moe_config_is_eos(const struct moe_config *c, uint32_t id)
{
    for (uint32_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id)
            return true;
    return false;
}

/* ---- Checks and JSON ---- */

/* The width of what a routed expert takes in and puts out. */
static inline uint32_t moe_config_expert_dim(const struct moe_config *c)
{
    return c->expert_dim ? c->expert_dim : c->hidden;
}

/* Refuses values out of range and members that disagree (heads that do not divide, top_k above
 * n_experts, ...). `name` begins the error. */
int moe_config_check(const struct moe_config *config, const char *name, struct moe_err *err);

/* MOE_ERR_UNSUPPORTED where a GPU's stages (gpu_stages.h) cannot compute the model. `name` begins
 * the error. */
int moe_config_check_gpu(const struct moe_config *config, const char *name, struct moe_err *err);

/* As JSON text, and back. Reading refuses unknown, missing and duplicate keys. */
void moe_config_write(const struct moe_config *config, struct moe_buf *out);
int moe_config_read(struct moe_config *config, const char *name, const void *json, uint64_t n,
                    struct moe_err *err);

#endif
