/*
 * Model description: the numbers and switches of a model, normalised over all families.
 *
 * It comes from a checkpoint through its family's table entry (family.h) and travels in a pack as
 * JSON (moe_config_write / moe_config_read), with every key known and checked. The forward pass
 * reads only this, never a family's name.
 */
#ifndef MOE_MODEL_CONFIG_H
#define MOE_MODEL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "model/kinds.h"

struct json_t;
struct moe_checkpoint;

enum {
    MOE_MAX_LAYERS = 1024,
    MOE_MAX_EXPERTS = 4096, /* per layer */
    MOE_MAX_TOP_K = 64,
    MOE_MAX_VARIANTS = 8, /* stored precisions of an expert */
    MOE_NAME_BYTES = 64,  /* of a tensor or variant name, NUL included */
    MOE_MAX_EOS = 8,
    MOE_MAX_HEADS = 1024,
    MOE_MAX_HEAD_DIM = 1 << 12,
    MOE_MAX_CONTEXT = 1 << 24,
    MOE_MAX_ROPE_PAIRS = 512,
    MOE_MAX_BUCKETS = 1 << 12,
    MOE_MAX_SELECTED = 1 << 8, /* keys of MOE_STATE_SELECT */
    MOE_MAX_AHEAD = 1,
    MOE_MAX_STREAMS = 16,
    MOE_MAX_RATIO = 1 << 10, /* positions of a group that an entry is made of */
};

/* Where a switch is off or a scale is 1 the value is the zero or one that moe_config_init sets;
 * then it does not stand in the pack either. */
struct moe_config {
    char family[32]; /* the family's name, for people */

    uint32_t n_layers;
    /* The first of them are the encoder's, which computes a source once, every row seeing all of
     * it; the others are the decoder's, and attend to the encoder's output as well. 0: a decoder
     * alone. */
    uint32_t n_encoder;
    uint32_t decoder_start; /* the decoder's first token, where there is an encoder */
    bool prefix_lm;         /* rows of the prompt see all of the prompt */
    uint32_t hidden;        /* width of the residual stream */
    uint32_t vocab;         /* rows of the embedding; the tokenizer may know fewer or more */
    uint32_t context_max;   /* positions the model was made for */
    enum moe_norm_kind norm_kind;
    enum moe_norm_place norm_place;
    /* Attention and feed-forward of a layer take in one norm of the stream, and both are added to
     * it; routers are early ones (Command-A). */
    bool parallel_blocks;
    /* In place of the final norm stands a matrix with biases, of whose output the head takes silu
     * (GPTSAN). */
    bool last_projection;
    float norm_eps;
    float embed_scale;    /* of an embedded token */
    float residual_scale; /* of the outputs of attention and feed-forward */
    float logit_scale;    /* of the head's output */
    float logit_cap;      /* then logits are cap * tanh(logit / cap); 0: not */
    bool tied_head;       /* the output head is the embedding */
    bool head_bias;

    uint32_t n_heads, n_kv_heads;
    uint32_t head_dim;  /* of a query and a key */
    uint32_t value_dim; /* of a value; head_dim unless attention is latent */
    bool qkv_bias, o_bias;
    enum moe_qk_norm qk_norm;
    float clip_qkv;   /* queries, keys and values are clamped to +-this; 0: not */
    float attn_scale; /* of the scores; 1 / sqrt(head_dim) as a rule */
    bool attn_sinks;  /* a learnt score per head that joins the softmax and has no value */
    uint32_t window;  /* positions that windowed layers attend to, the row's own included */
    /* Windows do not move with the row: a row sees its own part of the text, of `window` positions
     * from a multiple of it on, up to itself (Llama-4). */
    bool window_chunks;
    uint8_t layer_is_windowed[MOE_MAX_LAYERS];
    /* Layers without a window may have heads of another shape than those with one (Gemma-4: global
     * and local layers); 0: they have not. Their values may be their keys before norm and rotation,
     * and they then rotate all of a head by frequencies of their own. */
    uint32_t global_head_dim, global_kv_heads;
    bool global_keys_are_values;
    uint32_t n_global_freqs; /* global_head_dim / 2, of layers that compress rope_dim / 2; or 0 */
    double global_freqs[MOE_MAX_ROPE_PAIRS];
    bool rope_in_windows; /* only layers with a window rotate queries and keys (AFMoE) */
    bool rope_in_dense;   /* ... and those without experts (Command-A) */
    /* Of the other layers, queries at position p are multiplied by 1 + query_scale * log(1 +
     * floor((p + 1) / query_step)) (Llama-4); query_step 0: not. */
    uint32_t query_step;
    float query_scale;
    bool value_norm; /* a head's values are divided by their root mean square */
    /* Latent attention (DeepSeek-V2, MLA): keys and values come from a normalised vector of
     * kv_rank and from rope_dim rotated values that all heads share. head_dim = rope_dim + the part
     * that is not rotated. kv_rank and value_dim are multiples of 16. */
    uint32_t kv_rank; /* 0: ordinary attention */
    uint32_t q_rank;  /* queries come through a normalised vector of this width; 0: directly */
    float latent_eps; /* of the norms of both; 0: norm_eps */
    /* Sparse attention (DeepSeek-V3.2): a row sees the index_top positions that an indexer scores
     * highest for it, or all where there are no more (infer/cpu_sparse.c). The indexer has queries
     * of index_heads heads, out of the vector of q_rank, and one key of index_dim values a
     * position, both with their first rope_dim values rotated. */
    uint32_t index_top; /* 0: rows see all positions */
    uint32_t index_heads, index_dim;
    /* Layers without an indexer of their own: they see what the last layer before them that has one
     * chose (GLM-5). */
    uint8_t layer_shares_choice[MOE_MAX_LAYERS];

    /* Shared keys (DeepSeek-V4): one vector, under a norm, is key and value of all heads. Queries
     * come through a normalised vector of q_rank and are divided, head by head, by their root mean
     * square. The last rope_dim values of a head rotate, in pairs of neighbours, and those of
     * outputs are turned back. Outputs go, in out_groups groups of heads, through out_rank values
     * each. out_rank is a multiple of 16. */
    uint32_t out_groups, out_rank; /* 0: not so */
    /* Layers of it that compress see, beside their window, an entry for each complete group of
     * all_ratio or chosen_ratio positions; MOE_COMPRESS_CHOSEN the index_top best of them by the
     * scores of index_heads heads of index_dim. They rotate by global_freqs. */
    uint32_t all_ratio, chosen_ratio;
    uint8_t layer_compresses[MOE_MAX_LAYERS]; /* enum moe_compression */

    /* Hyper-connections (DeepSeek-V4): the residual stream is n_streams side by side. A block takes
     * in a mixture of them, and puts out into each; they are mixed among each other by a matrix
     * that stream_rounds rounds make doubly stochastic. 0: one stream. */
    uint32_t n_streams, stream_rounds;
    float stream_eps;

    bool attn_gate; /* outputs are scaled by sigmoid(gate . x), each value by its own */

    /* Layers with a recurrent state in the place of keys and values: of each of state_heads heads a
     * matrix [state_key_dim][state_value_dim], which a token's keys and values change; as many
     * heads after each other share one of the state_key_heads heads of queries and keys, or with
     * state_keys_in_turn take these in turn. All three come through a causal convolution over
     * conv_width tokens.
     *
     * MOE_STATE_KDA makes decays, and gates of outputs, through a vector of state_key_dim.
     * MOE_STATE_SCAN calls values x, keys B and queries C; a head's output is gated before a norm
     * over all heads that share keys.
     * MOE_STATE_SELECT has one head; values alone are convolved, and give keys, queries and the
     * steps of each value, these through a vector of state_step_rank. MOE_STATE_CONV has one head
     * of hidden values and no keys: the product of two projections, value by value, is convolved
     * and scaled by a third one. */
    enum moe_state_kind state_kind;
    uint32_t state_heads, state_key_heads, state_key_dim, state_value_dim, conv_width;
    uint32_t state_step_rank;
    bool state_keys_in_turn;
    bool conv_bias; /* a number for each channel is added to the convolution */
    uint8_t layer_is_recurrent[MOE_MAX_LAYERS];

    /* Layers that are halves (Nemotron-H): a feed-forward with neither attention nor a state before
     * it, or one of these alone. */
    uint8_t layer_no_attention[MOE_MAX_LAYERS], layer_no_ffn[MOE_MAX_LAYERS];

    enum moe_position_kind positions;
    /* MOE_POSITIONS_BUCKETS: the bias of a distance is that of its bucket, one for each head; half
     * of the buckets are one distance wide, the others grow up to bucket_distance, beyond which the
     * last one goes on. The encoder uses one half of all for each direction. */
    uint32_t n_buckets, bucket_distance;
    /* MOE_POSITIONS_LEARNT: the layer whose input other learnt vectors are added to, beside those
     * added to the embedding; 0: there are none. */
    uint32_t extra_positions;

    /* Rotary positions: pairs (i, i + rope_dim/2) of the first rope_dim values of a head. The
     * angle of pair i at position p is p * rope_freqs[i], cosine and sine are multiplied by
     * rope_scale. model/rope.h makes the frequencies from what checkpoints say. */
    uint32_t rope_dim; /* rotated values of a head, even; 0 without rotary positions; of latent
                          attention that knows none, the values that heads share all the same */
    double rope_theta; /* frequencies are theta^(-2i/rope_dim) when none are listed */
    double rope_scale;
    uint32_t n_rope_freqs; /* rope_dim / 2, or 0 */
    double rope_freqs[MOE_MAX_ROPE_PAIRS];
    /* LongRoPE: these replace the above at every position of a text of more than rope_original
     * positions, however it is computed (struct moe_row in infer/state.h). So does the code that
     * Phi-3.5-MoE was published with. */
    uint32_t rope_original; /* 0: never */
    double rope_scale_long;
    uint32_t n_rope_freqs_long;
    double rope_freqs_long[MOE_MAX_ROPE_PAIRS];

    uint32_t dense_ff;           /* width of dense layers' feed-forward; 0 when there are none */
    enum moe_act_kind dense_act; /* theirs, and the shared expert's */
    bool dense_bias;             /* on up and down of dense layers, which have no gate then */
    uint32_t n_experts;          /* per MoE layer; 0: a dense model */
    uint32_t top_k;
    uint32_t expert_ff; /* width of an expert's feed-forward */
    enum moe_act_kind expert_act;
    float act_alpha, act_limit; /* of MOE_ACT_SWIGLU_CLAMPED; limit alone of _LIMITED */
    bool expert_bias;           /* gate, up and down have biases */
    uint32_t shared_ff;         /* width of all shared experts together; 0: none */
    bool shared_gate;           /* their output is scaled by sigmoid(shared_gate . x) */
    float moe_scale;            /* of the sum of routed and shared experts' outputs */
    enum moe_router_kind router_kind;
    bool router_bias;
    /* The router takes in the stream as it comes into the layer, before attention and without a
     * norm (SmallThinker), or with parallel_blocks under theirs: what it chooses is known, and
     * asked for, before attention is computed. */
    bool router_early;
    /* A number for each expert that is added where experts and groups are chosen, and not in their
     * weights (DeepSeek-V3: it evens out how often experts are used). */
    bool choice_bias;
    /* Rows of a source, in their order, that an expert of the encoder takes (of a prompt with
     * prefix_lm); it adds nothing to those beyond. 0: there is no limit. */
    uint32_t expert_capacity;
    /* Instead of nothing, such a row gets what it brought, scaled by the weight of the expert that
     * had no room. */
    bool overflow_passes;
    /* In MoE layers the router, the shared expert and the routed ones take in the stream under a
     * norm each, the router's scaled by 1 / sqrt(hidden); behind the shared expert and behind the
     * sum of the others stands another norm each, before both are added (Gemma-4). */
    bool own_norms;
    bool expert_scale; /* a chosen weight is multiplied by a number of its expert */
    bool layer_scale;  /* the stream behind a layer is multiplied by a number */
    /* A MoE layer's output has tanh(bypass . x) added, before the norm that follows (GPTSAN). */
    bool soft_bypass;
    /* Weights multiply what experts take in and not what they put out: gate and up before the
     * activation (Llama-4). */
    bool weigh_inputs;
    bool norm_topk;      /* the chosen weights are divided by their sum */
    float topk_eps;      /* is added to that sum */
    float routed_scale;  /* of the chosen weights */
    float router_jitter; /* of MOE_ROUTER_SPARSEMIXER */
    /* Only experts of the top_groups best of n_groups equal groups can be chosen; a group is as
     * good as its best expert, or by MOE_ROUTER_SIGMOID as its two best together. 0: no groups. */
    uint32_t n_groups, top_groups;
    uint8_t layer_is_moe[MOE_MAX_LAYERS];
    /* Of these, the ones that choose experts by a row's token (static routing, model/routes.h): a
     * table stands in the place of their router, or beside one that only weighs what the table
     * chooses (DeepSeek-V4). */
    uint8_t layer_is_static[MOE_MAX_LAYERS];
    bool static_weighed;

    /* Layers behind these in a checkpoint, which predict tokens beyond the next one (MTP). */
    uint32_t n_beyond;
    /* Of them, those that packs have, for drafts (infer/forward.h): layer n_layers, a layer of
     * attention with experts like the others, or none. */
    uint32_t n_ahead;
    /* ... of which those that are computed: n_ahead where a model is opened for such drafts, else
     * 0. Not in packs. */
    uint32_t n_drafting;

    /* Tokens that end an answer, as the checkpoint suggests. */
    uint32_t n_eos;
    uint32_t eos[MOE_MAX_EOS];
};

/* Everything zero except the scales, which are one. value_dim, attn_scale and rope_dim stay 0:
 * readers set them or leave them to moe_config_complete. */
void moe_config_init(struct moe_config *config);
/* Fills what follows from the rest where it is still 0: n_kv_heads, head_dim, value_dim,
 * attn_scale, rope_dim. */
void moe_config_complete(struct moe_config *config);

/* The description gets n layers that draft: as the model's others with experts. */
static inline void moe_config_set_ahead(struct moe_config *c, uint32_t n)
{
    c->n_ahead = n;
    for (uint32_t i = c->n_layers; i < MOE_MAX_LAYERS && i < c->n_layers + n; i++)
        c->layer_is_moe[i] = 1;
}

/* MoE layers among the first `layer` layers: the index of a MoE layer among MoE layers, and, for
 * n_layers, their number. */
static inline uint32_t moe_config_moe_layers(const struct moe_config *c, uint32_t layer)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < layer; i++)
        n += c->layer_is_moe[i] != 0;
    return n;
}

/* Layers that are loaded and have keys and values: those that draft are the last. */
static inline uint32_t moe_config_all_layers(const struct moe_config *c)
{
    return c->n_layers + c->n_drafting;
}

/* Layers with a recurrent state among the first `layer` layers, counted likewise. */
static inline uint32_t moe_config_recurrent_layers(const struct moe_config *c, uint32_t layer)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < layer && c->state_heads; i++)
        n += c->layer_is_recurrent[i] != 0;
    return n;
}

/* Layers of attention, which keep keys and values, counted likewise. */
static inline bool moe_config_attends(const struct moe_config *c, uint32_t layer)
{
    return !(c->state_heads && c->layer_is_recurrent[layer]) && !c->layer_no_attention[layer];
}
static inline uint32_t moe_config_attending_layers(const struct moe_config *c, uint32_t layer)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < layer; i++)
        n += moe_config_attends(c, i);
    return n;
}

/* Layers with an indexer, which keep its keys, counted likewise. */
static inline bool moe_config_picks_positions(const struct moe_config *c)
{
    return c->index_top && c->kv_rank;
}
static inline bool moe_config_has_indexer(const struct moe_config *c, uint32_t layer)
{
    bool shares = layer < c->n_layers && c->layer_shares_choice[layer];
    return moe_config_picks_positions(c) && moe_config_attends(c, layer) && !shares;
}
static inline uint32_t moe_config_indexers(const struct moe_config *c, uint32_t layer)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < layer; i++)
        n += moe_config_has_indexer(c, i);
    return n;
}
/* The last layer up to this one that a pass can begin with: it needs nothing that layers before it
 * chose. */
static inline uint32_t moe_config_beginning(const struct moe_config *c, uint32_t layer)
{
    while (layer > 0 && layer < c->n_layers && c->layer_shares_choice[layer])
        layer--;
    return layer;
}

/* Whether there are layers that are halves. */
static inline bool moe_config_has_halves(const struct moe_config *c)
{
    bool has = false;
    for (uint32_t i = 0; i < c->n_layers; i++)
        has |= c->layer_no_attention[i] || c->layer_no_ffn[i];
    return has;
}

/* The head of queries and keys that a state's head takes. */
static inline uint32_t moe_config_state_key_head(const struct moe_config *c, uint32_t head)
{
    return c->state_keys_in_turn ? head % c->state_key_heads
                                 : head / (c->state_heads / c->state_key_heads);
}

/* Whether one of layers [begin, end) chooses experts by the token. */
static inline bool moe_config_has_static(const struct moe_config *c, uint32_t begin, uint32_t end)
{
    bool has = false;
    for (uint32_t i = begin; i < end; i++)
        has |= c->layer_is_static[i] != 0;
    return has;
}

/* For each MoE layer whether it chooses experts by the token. */
static inline void moe_config_static_layers(const struct moe_config *c, uint8_t *is_static)
{
    for (uint32_t i = 0, n = 0; i < c->n_layers; i++)
        if (c->layer_is_moe[i])
            is_static[n++] = c->layer_is_static[i];
}

static inline bool moe_config_in_encoder(const struct moe_config *c, uint32_t layer)
{
    return layer < c->n_encoder;
}

/* The end of the layers that a layer is one of: the encoder's or the decoder's. */
static inline uint32_t moe_config_stack_end(const struct moe_config *c, uint32_t layer)
{
    return layer < c->n_encoder ? c->n_encoder : c->n_layers;
}

/* Whether the token ends an answer. */
static inline bool moe_config_is_eos(const struct moe_config *c, uint32_t id)
{
    for (uint32_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id)
            return true;
    return false;
}

static inline float moe_config_latent_eps(const struct moe_config *c)
{
    return c->latent_eps > 0 ? c->latent_eps : c->norm_eps;
}

/* Whether the layer has the heads of layers without a window. */
static inline bool moe_config_is_global(const struct moe_config *c, uint32_t layer)
{
    bool known = layer < c->n_layers && layer < MOE_MAX_LAYERS;
    return c->global_head_dim && known && !c->layer_is_windowed[layer];
}
static inline uint32_t moe_config_head_dim(const struct moe_config *c, uint32_t layer)
{
    return moe_config_is_global(c, layer) ? c->global_head_dim : c->head_dim;
}
static inline uint32_t moe_config_kv_heads(const struct moe_config *c, uint32_t layer)
{
    return moe_config_is_global(c, layer) ? c->global_kv_heads : c->n_kv_heads;
}
static inline uint32_t moe_config_widest_head(const struct moe_config *c)
{
    return c->global_head_dim > c->head_dim ? c->global_head_dim : c->head_dim;
}

/* The KV cache of one position: heads, and the values of a key and of a value (of layers that are
 * not global; those have moe_config_kv_heads and moe_config_head_dim of both). Latent attention
 * keeps the shared vector: one head with a key of [rotated | latent] and a value of [latent]. */
static inline uint32_t moe_config_cache_heads(const struct moe_config *c)
{
    return c->kv_rank ? 1 : c->n_kv_heads;
}
static inline uint32_t moe_config_cache_key(const struct moe_config *c)
{
    return c->kv_rank ? c->rope_dim + c->kv_rank : c->head_dim;
}
static inline uint32_t moe_config_cache_value(const struct moe_config *c)
{
    return c->kv_rank ? c->kv_rank : c->value_dim;
}

/* Ranges and agreements (heads divide, top_k <= n_experts, even head_dim, ...).
 * `name` begins the error text. */
int moe_config_check(const struct moe_config *config, const char *name, struct moe_err *err);

/* As JSON text, and back; reading refuses unknown, missing and duplicate keys. */
void moe_config_write(const struct moe_config *config, struct moe_buf *out);
int moe_config_read(struct moe_config *config, const char *name, const void *json, uint64_t n,
                    struct moe_err *err);

/* Whether a GPU's stages (gpu_stages.h) compute all that the description asks for; else
 * MOE_ERR_UNSUPPORTED, named is what the sentence begins with. */
int moe_config_check_gpu(const struct moe_config *c, const char *named, struct moe_err *err);

/*
 * What a description says of the states of a text: those that layers keep of it, and those of its
 * rows between layers.
 */

/* Layers of which a text goes on from its last token alone: with a recurrent state, or entries of
 * groups that are open; counted likewise. */
static inline bool moe_config_keeps_state(const struct moe_config *c, uint32_t layer)
{
    return (c->state_heads && c->layer_is_recurrent[layer]) || c->layer_compresses[layer];
}
static inline uint32_t moe_config_state_layers(const struct moe_config *c, uint32_t layer)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < layer; i++)
        n += moe_config_keeps_state(c, i);
    return n;
}
static inline uint32_t moe_config_compressing_layers(const struct moe_config *c, uint32_t layer)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < layer; i++)
        n += c->layer_compresses[i] != MOE_COMPRESS_NOT;
    return n;
}
static inline uint32_t moe_config_ratio(const struct moe_config *c, uint32_t layer)
{
    return c->layer_compresses[layer] == MOE_COMPRESS_CHOSEN ? c->chosen_ratio : c->all_ratio;
}

/* Values of a row's state between layers: of all its streams. */
static inline uint32_t moe_config_state_width(const struct moe_config *c)
{
    return c->hidden * (c->n_streams ? c->n_streams : 1);
}

/* Channels of the convolution: queries, keys, values (of MOE_STATE_SCAN values, keys, queries). */
static inline uint32_t moe_config_state_channels(const struct moe_config *c)
{
    uint32_t values = c->state_heads * c->state_value_dim;
    bool values_alone = c->state_kind == MOE_STATE_SELECT;
    return (values_alone ? 0 : 2 * c->state_key_heads * c->state_key_dim) + values;
}

#endif
