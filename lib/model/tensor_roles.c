/* The table of tensors (tensor_roles.h): names, kinds, shapes, and which models have each. */
#include "model/tensor_roles.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "model/config.h"

/*
 * The words of the table: widths and conditions that a model's description answers.
 */
enum width {
    ONE,
    VOCAB,
    HEAD_ROWS,
    DRAFT_VOCAB,
    MARKOV_RANK,
    HIDDEN,
    MIXED_INPUT, /* the input of attention: the stream, of a head that drafts a token beside it */
    READS_WIDTH, /* all streams that it reads */
    TWICE_HIDDEN,
    HEADS,
    QUERIES,   /* all heads', of attn_experts those of all */
    ALL_HEADS, /* with keys */
    HEAD_TAPS,
    KEY_HEADS,
    ATTN_EXPERTS,
    OUT_ROWS,    /* of the output matrix: the stream, of attn_experts each one's */
    KEYS,        /* all key/value heads' keys */
    KEY_VALUES,  /* ... values, of ordinary attention */
    VALUES,      /* all heads' outputs */
    GATES,       /* ... and what gates them */
    QUERY_INPUT, /* the input of queries: MIXED_INPUT, or the vector of q_rank, or two */
    GATE_INPUT,
    NORM_GATE,
    QUERY_NORM, /* a norm over a head, or over all heads */
    KEY_NORM,   /* the same for keys */
    Q_RANK,     /* MLA, here and below */
    OUTPUTS,    /* the input of the output matrix: VALUES, or with compressed attention */
    OUT_DOWN,   /* this, computed from */
    OUT_GROUP,  /* these values of a group of heads */
    ENTRIES,    /* the input of entries: twice as wide where groups overlap */
    ENTRY,      /* one entry, */
    ENTRY_BIAS, /* and its biases; the same three for the indexer */
    INDEX_ENTRIES,
    INDEX_ENTRY,
    INDEX_BIAS,
    STREAMS,     /* hyper-connections: all streams, */
    STREAM_MIX,  /* the numbers that mix them, */
    STREAM_ENDS, /* or, after the last layer, one per stream */
    STREAM_SCALES,
    STREAM_RANK,
    ADJUGATES,     /* rows of all of them, of gates */
    ADJUGATES_OUT, /* or of what they put out */
    ADJUGATE_FF,
    NGRAM_ROWS,
    NGRAM_COLS,
    NGRAM_WIDTH,
    NGRAM_CONV,
    KV_RANK,     /* the latent vector */
    KV_DOWN,     /* latent vector and rotated values */
    LATENT_KEYS, /* all heads' queries in the latent space */
    NOT_ROTATED, /* the part of a head that does not rotate */
    INDEX_INPUT, /* the input of an indexer's queries */
    INDEX_HEADS, /* the indexer, here and below */
    INDEX_QUERIES,
    INDEX_KEY,
    DENSE_FF,
    LAYER_EMBEDS, /* of all layers, */
    ONE_EMBED,    /* or of one */
    EXPERTS,
    CHOICES, /* and those that give back what they take in */
    SCORED,  /* and shared ones that are scored, too */
    ROUTER_DIM,
    ROUTER_INPUT,
    SHARED_FF,
    EXPERT_FF,
    EXPERT_DIM,
    RELATIVE,
    PROFILES,
    TAPS_OF_KEYS,
    TAPS_OF_HEADS,
    TAPS_OF_VALUES,
    TAPS_OF_STREAM,
    LOOP_RANK,
    POSITION_BIAS,
    CONTEXT,
    ROUTES,
    ROTATED_PAIRS,
    STATE_KEYS, /* a recurrent state's, all heads together, here and below */
    STATE_VALUES,
    STATE_HEADS,
    STATE_CONV,
    STATE_CHANNELS,
    STATE_CONV_KEYS,
    STATE_GATE_INPUT, /* the input of gates and decays: the stream, or a vector of STATE_LOW */
    STATE_LOW,
    STATE_KEY,
    STATE_RATES,
    STATE_SKIPS,
    STATE_KEY_INPUT, /* the input of keys and queries: the stream, or values */
    STATE_DECAY_INPUT,
    STATE_DECAYS, /* per head, or per key */
    STATE_NORM,   /* over one head's values, or all */
    N_WIDTHS
};

enum condition {
    ALWAYS,
    EMBEDS, /* tokens, by a matrix of its own */
    UNTIED,
    HEAD_BIAS,
    LAYER_NORM,
    MIXES_BOTH, /* with norms before and after */
    MIXES_KEPT, /* with a residual of vectors, */
    MIXES_WEIGHED,
    FEEDS_KEPT,
    FEEDS_KEPT_BIAS,
    FEEDS_WEIGHED,
    FEEDS_BIAS,
    EMBEDS_WEIGHED,
    EMBEDS_BIASED,
    CCA,        /* with convolutions of heads */
    TAPS_HEADS, /* of keys and values, */
    TAPS,       /* and of what blocks put out */
    BIASED,     /* with biases by distance, */
    BIASES_CLIPPED,
    TAPS_OWN, /* with weights of convolutions that tokens make, */
    ROW_SINKS,
    KEYS_MIXED, /* mixtures of streams for keys and values, */
    KEYS_INPUT, /* and their norms */
    LOOPED,     /* with messages from a pass before */
    MIXES_SCORED,
    FFN_FACTOR,
    ATTN_CHOOSES, /* with experts in it */
    MIXES_GATED,  /* with a gate of the norm */
    EXPERTS_GATED,
    FEEDS_BOTH,
    LAYER_SCALE,
    LAYER_EMBED,
    MIXES, /* a layer with attention or a state */
    FEEDS, /* ... with a norm of its feed-forward */
    FFN_LAYER_NORM,
    ATTENDS, /* ... of attention */
    SHARED_KEYS,
    KEY_NORMED,
    COMPRESSES, /* ... with entries, */
    CHOOSES,    /* and chooses among them */
    MANY_STREAMS,
    MIXES_STREAMS,
    MIXES_LAST,
    GATED_STREAMS,
    NGRAMS, /* embeddings of them */
    ADJUGATE,
    KEEPS_STREAMS, /* residual attention */
    ATTN_GATE,
    ATTN_GATE_BIAS,
    RECURRENT, /* a layer with a recurrent state */
    STATE,     /* with a matrix per head, */
    DECAYS,    /* ... whose decay is computed, */
    CONVOLVED, /* with a convolution, */
    BETA,      /* by the gated delta rule: DeltaNet's */
    KDA,       /* or this, */
    KDA_LOW,   /* ... whose gates and decays pass a vector */
    SELECT,    /* Mamba's, */
    SKIPS,     /* or Mamba-2's */
    DECAY_DOWN,
    STATE_NORMED,
    SHORT_CONV, /* with only the inputs of a convolution */
    CONV_BIAS,
    ORDINARY,   /* attention without MLA */
    HAS_VALUES, /* ... with a matrix for values */
    VALUES_BIAS,
    LATENT,
    LATENT_KEPT,    /* ... that keeps a vector of its own */
    LATENT_Q,       /* with queries from a low-rank vector */
    INDEXED,        /* with an indexer for positions */
    INDEXED_INPUT,  /* ... whose queries are made of the layer's input */
    INDEXED_BLOCKS, /* ... that chooses blocks of them */
    INDEX_WEIGHED,  /* ... or one by one, or blocks that it pools */
    INDEX_POOLS,    /* whose keys, or entries, gates weigh */
    SCORES,         /* with an indexer for positions or entries */
    SCORES_WEIGHED, /* ... whose heads have weights */
    TEMPERED,       /* with queries scaled by head */
    INDEX_TEMPERED,
    QKV_BIAS,
    QK_NORM,
    SINKS,
    O_BIAS,
    POSITION_BUCKETS, /* the first layer of a stack */
    LEARNT,
    LEARNT_MORE,
    LEARNT_ROTATION,
    FINAL_NORM,
    FINAL_LAYER_NORM,
    LAST_PROJECTION,
    ENCODER, /* the model has one */
    ENCODER_LAYER_NORM,
    CROSS, /* attention to its output */
    CROSS_LAYER_NORM,
    CROSS_QKV_BIAS,
    CROSS_O_BIAS,
    DENSE_LAYER,
    DENSE_GATE,
    DENSE_BIAS,
    ROUTED, /* a layer with experts and a router */
    ROUTER_BIAS,
    ROUTER_DEEP, /* with layers before it */
    ROUTER_KEEPS,
    OWN_NORMS,
    EXPERT_SCALE,
    CHOICE_BIAS,
    NARROW,      /* with experts in a space of their own, */
    NARROW_NORM, /* with a norm there */
    NARROW_START,
    EXPERTS_WEIGHED,
    STATIC, /* ... and a table in its place */
    SHARED,
    SHARED_HAS_GATE, /* a matrix, of its feed-forward */
    SHARED_GATE,
    BYPASS,
    AHEAD,  /* a layer that drafts */
    DRAFTS, /* a head that drafts, */
    DRAFTS_NORMED,
    DRAFTS_SOME,  /* ... some of the model's tokens */
    DRAFTS_CHAIN, /* ... tokens that depend on the ones before them */
    EXPERT_GATE,
    EXPERT_BIAS,
    EXPERT_GATE_BIAS,
    N_CONDITIONS
};

enum { MOE_NO_LAYER = MOE_MAX_LAYERS }; /* of experts, in any layer */

/* A width, and whether a condition holds, for a layer or for none (MOE_NO_LAYER). */
static uint32_t tensor_width(const struct moe_config *c, enum width which, uint32_t layer);
static bool tensor_holds(const struct moe_config *c, enum condition condition, uint32_t layer,
                         bool elsewhere);

/* The beginning of an entry: name in packs, kind, whether it is per layer. */
#define MODEL(name, kind) name, MOE_KIND_##kind, false
#define LAYER(name, kind) "layers.%u." name, MOE_KIND_##kind, true
/* The end of an entry: names in Hugging Face's files and in GGUF, or parts of a tensor. */
#define NAMES(hf, gguf) .names = {{MOE_ALL(hf)}, {MOE_ALL(gguf)}}
#define HF(...) .names[MOE_NAMING_HF] = {__VA_ARGS__}
#define GGUF(...) .names[MOE_NAMING_GGUF] = {__VA_ARGS__}
/* Queries, keys or values of a recurrent state: with the gates, or separate. */
#define STATE_PART                                                                                 \
    HF(MOE_PART(L "linear_attn.in_proj_qkvz.weight", STATE_HEADS),                                 \
       MOE_PART(L "linear_attn.in_proj_qkv.weight", STATE_ROWS)),                                  \
        GGUF(MOE_PART(B "attn_qkv.weight", STATE_ROWS), MOE_PART(B "ssm_in.weight", STATE_HEADS))
/* A looped layer's messages for what `of` takes in. */
#define MESSAGE(of, name)                                                                          \
    [MOE_T_##of##_TOLD_SCORES] = {LAYER(name ".told.scores", VECTOR), LOOPED, HIDDEN, ONE},        \
    [MOE_T_##of##_TOLD_DOWN] = {LAYER(name ".told.down", DENSE), LOOPED, LOOP_RANK, TWICE_HIDDEN}, \
    [MOE_T_##of##_FORGET] = {LAYER(name ".told.forget", ROUTER), LOOPED, HIDDEN, LOOP_RANK},       \
    [MOE_T_##of##_TOLD] = {LAYER(name ".told", ROUTER), LOOPED, HIDDEN, LOOP_RANK}
/* A tensor of a layer. */
#define L "model.layers.%u."
#define B "blk.%u."
#define C L "self_attn.compressor."
#define LAST_MIXER "model.hyper_connection_mixer."
#define NGRAM L "ple."

static const struct moe_tensor_spec roles[MOE_T_N_ROLES] = {
    [MOE_T_EMBED] = {MODEL("embed", DENSE), EMBEDS, VOCAB, HIDDEN,
                     NAMES("model.embed_tokens.weight", "token_embd.weight")},
    [MOE_T_EMBED_WEIGHT] = {MODEL("embed.weight", VECTOR), EMBEDS_WEIGHED, HIDDEN, ONE},
    [MOE_T_EMBED_BIAS] = {MODEL("embed.bias", VECTOR), EMBEDS_BIASED, HIDDEN, ONE},
    [MOE_T_POSITIONS] = {MODEL("positions", DENSE), LEARNT, CONTEXT, HIDDEN},
    [MOE_T_EXTRA_POSITIONS] = {MODEL("positions.extra", DENSE), LEARNT_MORE, CONTEXT, HIDDEN},
    [MOE_T_LAYER_EMBED] = {MODEL("layer_embed", DENSE), LAYER_EMBED, VOCAB, LAYER_EMBEDS,
                           NAMES("model.embed_tokens_per_layer.weight",
                                 "per_layer_token_embd.weight")},
    [MOE_T_LAYER_EMBED_MIX] = {MODEL("layer_embed.mix", DENSE), LAYER_EMBED, LAYER_EMBEDS, HIDDEN,
                               NAMES("model.per_layer_model_projection.weight",
                                     "per_layer_model_proj.weight")},
    [MOE_T_LAYER_EMBED_NORM] = {MODEL("layer_embed.norm", VECTOR), LAYER_EMBED, ONE_EMBED, ONE,
                                NAMES("model.per_layer_projection_norm.weight",
                                      "per_layer_proj_norm.weight")},
    [MOE_T_FINAL_NORM] = {MODEL("final_norm", VECTOR), FINAL_NORM, HIDDEN, ONE,
                          NAMES("model.norm.weight", "output_norm.weight")},
    [MOE_T_FINAL_NORM_BIAS] = {MODEL("final_norm.bias", VECTOR), FINAL_LAYER_NORM, HIDDEN, ONE,
                               NAMES("model.norm.bias", "output_norm.bias")},
    [MOE_T_LAST_PROJECTION] = {MODEL("last", DENSE), LAST_PROJECTION, HIDDEN, HIDDEN},
    [MOE_T_LAST_PROJECTION_BIAS] = {MODEL("last.bias", VECTOR), LAST_PROJECTION, HIDDEN, ONE},
    [MOE_T_ENCODER_NORM] = {MODEL("encoder_norm", VECTOR), ENCODER, HIDDEN, ONE},
    [MOE_T_ENCODER_NORM_BIAS] = {MODEL("encoder_norm.bias", VECTOR), ENCODER_LAYER_NORM, HIDDEN,
                                 ONE},
    [MOE_T_LAST_MIX] = {MODEL("streams.last", ROUTER), MIXES_LAST, STREAM_ENDS, STREAMS,
                        NAMES("model.hc_head.hc_fn", "output_hc_fn.weight")},
    [MOE_T_LAST_MIX_BIAS] = {MODEL("streams.last.bias", VECTOR), MIXES_LAST, STREAM_ENDS, ONE,
                             NAMES("model.hc_head.hc_base", "output_hc_base.weight")},
    [MOE_T_LAST_MIX_SCALE] = {MODEL("streams.last.scale", VECTOR), MIXES_LAST, ONE, ONE,
                              NAMES("model.hc_head.hc_scale", "output_hc_scale.weight")},
    [MOE_T_LAST_GATE_NORM] = {MODEL("streams.last.norm", VECTOR), GATED_STREAMS, STREAMS, ONE,
                              HF(MOE_PLUS_ONE(LAST_MIXER "hc_norm.weight")),
                              GGUF(MOE_ALL("output_hc_norm.weight"))},
    [MOE_T_LAST_GATE_DOWN] = {MODEL("streams.last.down", DENSE), GATED_STREAMS, STREAM_RANK,
                              STREAMS,
                              NAMES(LAST_MIXER "input_mix_weight_down.weight",
                                    "output_hc_down.weight")},
    [MOE_T_LAST_GATE_UP] = {MODEL("streams.last.up", DENSE), GATED_STREAMS, STREAMS, STREAM_RANK,
                            NAMES(LAST_MIXER "input_mix_weight_up.weight", "output_hc_up.weight")},
    [MOE_T_LAST_SCORES] = {MODEL("streams.last.scores", VECTOR), KEEPS_STREAMS, HIDDEN, ONE,
                           HF(MOE_TIMES("model.output_attn_res_proj.weight",
                                        "model.output_attn_res_norm.weight")),
                           GGUF(MOE_ALL("output_res_score.weight"))},
    [MOE_T_HEAD] = {MODEL("head", DENSE), UNTIED, HEAD_ROWS, HIDDEN,
                    NAMES("lm_head.weight", "output.weight")},
    [MOE_T_HEAD_BIAS] = {MODEL("head.bias", VECTOR), HEAD_BIAS, VOCAB, ONE,
                         NAMES("lm_head.bias", "output.bias")},
    [MOE_T_ATTN_NORM] = {LAYER("attn.norm", VECTOR), MIXES, HIDDEN, ONE,
                         NAMES(L "input_layernorm.weight", B "attn_norm.weight")},
    [MOE_T_ATTN_NORM_BIAS] = {LAYER("attn.norm.bias", VECTOR), LAYER_NORM, HIDDEN, ONE,
                              NAMES(L "input_layernorm.bias", B "attn_norm.bias")},
    [MOE_T_ATTN_NORM_DOWN] = {LAYER("attn.norm.down", DENSE), MIXES_GATED, NORM_GATE, HIDDEN,
                              HF(MOE_ALL(L "input_layernorm.W_down.weight"))},
    [MOE_T_ATTN_NORM_UP] = {LAYER("attn.norm.up", DENSE), MIXES_GATED, HIDDEN, NORM_GATE,
                            HF(MOE_ALL(L "input_layernorm.W_up.weight"))},
    [MOE_T_ATTN_END_NORM] = {LAYER("attn.end_norm", VECTOR), MIXES_BOTH, HIDDEN, ONE},
    [MOE_T_ATTN_KEEP] = {LAYER("attn.keep", VECTOR), MIXES_KEPT, HIDDEN, ONE},
    [MOE_T_ATTN_KEEP_BIAS] = {LAYER("attn.keep.bias", VECTOR), MIXES_WEIGHED, HIDDEN, ONE},
    [MOE_T_ATTN_WEIGHT] = {LAYER("attn.weight", VECTOR), MIXES_WEIGHED, HIDDEN, ONE},
    [MOE_T_ATTN_WEIGHT_BIAS] = {LAYER("attn.weight.bias", VECTOR), MIXES_WEIGHED, HIDDEN, ONE},
    [MOE_T_Q_DOWN] = {LAYER("attn.q_down", DENSE), LATENT_Q, Q_RANK, MIXED_INPUT,
                      NAMES(L "self_attn.q_a_proj.weight", B "attn_q_a.weight")},
    [MOE_T_Q_DOWN_NORM] = {LAYER("attn.q_down.norm", VECTOR), LATENT_Q, Q_RANK, ONE,
                           NAMES(L "self_attn.q_a_layernorm.weight", B "attn_q_a_norm.weight")},
    [MOE_T_Q] = {LAYER("attn.q", DENSE), ATTENDS, QUERIES, QUERY_INPUT,
                 HF(MOE_ALL(L "self_attn.q_proj.weight"), MOE_ALL(L "self_attn.q_b_proj.weight")),
                 GGUF(MOE_ALL(B "attn_q.weight"), MOE_ALL(B "attn_q_b.weight"))},
    [MOE_T_K] = {LAYER("attn.k", DENSE), ORDINARY, KEYS, MIXED_INPUT,
                 NAMES(L "self_attn.k_proj.weight", B "attn_k.weight")},
    [MOE_T_V] = {LAYER("attn.v", DENSE), HAS_VALUES, KEY_VALUES, MIXED_INPUT,
                 NAMES(L "self_attn.v_proj.weight", B "attn_v.weight")},
    [MOE_T_V_LATE] = {LAYER("attn.v.late", DENSE), CCA, KEY_VALUES, HIDDEN},
    [MOE_T_HEAD_CONV] = {LAYER("attn.conv", VECTOR), CCA, STATE_CONV, ONE},
    [MOE_T_HEAD_CONV_BIAS] = {LAYER("attn.conv.bias", VECTOR), CCA, ALL_HEADS, ONE},
    [MOE_T_HEAD_MIX] = {LAYER("attn.mix", ROUTER), CCA, ALL_HEADS, HEAD_TAPS},
    [MOE_T_HEAD_MIX_BIAS] = {LAYER("attn.mix.bias", VECTOR), CCA, ALL_HEADS, ONE},
    [MOE_T_KEY_SCALE] = {LAYER("attn.k.scale", VECTOR), CCA, KEY_HEADS, ONE},
    [MOE_T_ATTN_ROUTER] = {LAYER("attn.router", ROUTER), ATTN_CHOOSES, ATTN_EXPERTS, HIDDEN},
    /* Inkling's. */
    [MOE_T_REL] = {LAYER("attn.rel", DENSE), BIASED, RELATIVE, HIDDEN,
                   HF(MOE_ALL(L "self_attn.r_proj.weight"))},
    [MOE_T_REL_SCALE] = {LAYER("attn.rel.scale", VECTOR), BIASES_CLIPPED, RELATIVE, ONE},
    [MOE_T_TAPS_K_OWN] = {LAYER("attn.k.taps.own", ROUTER), TAPS_OWN, TAPS_OF_HEADS, HIDDEN},
    [MOE_T_TAPS_V_OWN] = {LAYER("attn.v.taps.own", ROUTER), TAPS_OWN, TAPS_OF_HEADS, HIDDEN},
    [MOE_T_OWN_SINKS] = {LAYER("attn.sinks.own", ROUTER), ROW_SINKS, HEADS, HIDDEN},
    [MOE_T_K_SCORES] = {LAYER("streams.k.scores", VECTOR), KEYS_MIXED, HIDDEN, ONE},
    [MOE_T_V_SCORES] = {LAYER("streams.v.scores", VECTOR), KEYS_MIXED, HIDDEN, ONE},
    [MOE_T_K_INPUT_NORM] = {LAYER("attn.k.input_norm", VECTOR), KEYS_INPUT, HIDDEN, ONE},
    [MOE_T_V_INPUT_NORM] = {LAYER("attn.v.input_norm", VECTOR), KEYS_INPUT, HIDDEN, ONE},
    MESSAGE(Q, "attn.q"),
    MESSAGE(K, "attn.k"),
    MESSAGE(V, "attn.v"),
    MESSAGE(FFN, "ffn"),
    [MOE_T_PROFILES] = {LAYER("attn.rel.profiles", VECTOR), BIASED, PROFILES, ONE,
                        HF(MOE_PART(L "self_attn.rel_logits_proj.proj", PROFILES))},
    [MOE_T_TAPS_K] = {LAYER("attn.k.taps", VECTOR), TAPS_HEADS, TAPS_OF_KEYS, ONE,
                      HF(MOE_PART(L "self_attn.k_sconv.conv1d.weight", CONV))},
    [MOE_T_TAPS_V] = {LAYER("attn.v.taps", VECTOR), TAPS_HEADS, TAPS_OF_VALUES, ONE,
                      HF(MOE_PART(L "self_attn.v_sconv.conv1d.weight", CONV))},
    [MOE_T_TAPS_ATTN] = {LAYER("attn.taps", VECTOR), TAPS, TAPS_OF_STREAM, ONE,
                         HF(MOE_PART(L "attn_sconv.conv1d.weight", CONV))},
    [MOE_T_TAPS_FFN] = {LAYER("ffn.taps", VECTOR), TAPS, TAPS_OF_STREAM, ONE,
                        HF(MOE_PART(L "mlp_sconv.conv1d.weight", CONV))},
    [MOE_T_FFN_FACTOR] = {LAYER("ffn.factor", VECTOR), FFN_FACTOR, ONE, ONE,
                          HF(MOE_ALL(L "mlp.global_scale"), MOE_ALL(L "mlp.gate.global_scale"))},
    [MOE_T_Q_BIAS] = {LAYER("attn.q.bias", VECTOR), QKV_BIAS, QUERIES, ONE,
                      NAMES(L "self_attn.q_proj.bias", B "attn_q.bias")},
    [MOE_T_K_BIAS] = {LAYER("attn.k.bias", VECTOR), QKV_BIAS, KEYS, ONE,
                      NAMES(L "self_attn.k_proj.bias", B "attn_k.bias")},
    [MOE_T_V_BIAS] = {LAYER("attn.v.bias", VECTOR), VALUES_BIAS, KEY_VALUES, ONE,
                      NAMES(L "self_attn.v_proj.bias", B "attn_v.bias")},
    [MOE_T_Q_NORM] = {LAYER("attn.q.norm", VECTOR), QK_NORM, QUERY_NORM, ONE,
                      NAMES(L "self_attn.q_norm.weight", B "attn_q_norm.weight")},
    [MOE_T_K_NORM] = {LAYER("attn.k.norm", VECTOR), KEY_NORMED, KEY_NORM, ONE,
                      NAMES(L "self_attn.k_norm.weight", B "attn_k_norm.weight")},
    [MOE_T_KV_DOWN] = {LAYER("attn.kv_down", DENSE), LATENT_KEPT, KV_DOWN, MIXED_INPUT,
                       NAMES(L "self_attn.kv_a_proj_with_mqa.weight", B "attn_kv_a_mqa.weight")},
    [MOE_T_KV_DOWN_NORM] = {LAYER("attn.kv_down.norm", VECTOR), LATENT_KEPT, KV_RANK, ONE,
                            NAMES(L "self_attn.kv_a_layernorm.weight", B "attn_kv_a_norm.weight")},
    /* Older GGUF files have keys and values in one tensor, like Hugging Face's. */
    [MOE_T_K_UP] = {LAYER("attn.k_up", DENSE), LATENT, LATENT_KEYS, NOT_ROTATED,
                    HF(MOE_PART(L "self_attn.kv_b_proj.weight", KEYS)),
                    GGUF(MOE_ALL(B "attn_k_b.weight"), MOE_PART(B "attn_kv_b.weight", KEYS))},
    [MOE_T_V_UP] = {LAYER("attn.v_up", DENSE), LATENT, VALUES, KV_RANK,
                    HF(MOE_PART(L "self_attn.kv_b_proj.weight", VALUES)),
                    GGUF(MOE_ALL(B "attn_v_b.weight"), MOE_PART(B "attn_kv_b.weight", VALUES))},
    /* Mistral-Large-4's. */
    [MOE_T_ROPE_LOGS] = {MODEL("rope.logs", VECTOR), LEARNT_ROTATION, ROTATED_PAIRS, ONE,
                         HF(MOE_ALL("model.rotary_emb.alpha"))},
    [MOE_T_HEAD_SLOPE] = {LAYER("attn.slope", VECTOR), TEMPERED, HEADS, ONE,
                          HF(MOE_ALL(L "self_attn.softmax_scaling.scale"))},
    [MOE_T_HEAD_BASE] = {LAYER("attn.base", VECTOR), TEMPERED, HEADS, ONE,
                         HF(MOE_ALL(L "self_attn.softmax_scaling.bias"))},
    [MOE_T_INDEX_SLOPE] = {LAYER("attn.index.slope", VECTOR), INDEX_TEMPERED, INDEX_HEADS, ONE,
                           HF(MOE_ALL(L "self_attn.indexer.softmax_scaling.scale"))},
    [MOE_T_INDEX_BASE] = {LAYER("attn.index.base", VECTOR), INDEX_TEMPERED, INDEX_HEADS, ONE,
                          HF(MOE_ALL(L "self_attn.indexer.softmax_scaling.bias"))},
    [MOE_T_INDEX_Q_NORM] = {LAYER("attn.index.q.norm", VECTOR), INDEXED_INPUT, HIDDEN, ONE,
                            HF(MOE_ALL(L "self_attn.indexer.q_input_norm.weight"))},
    [MOE_T_INDEX_Q_NORM_BIAS] = {LAYER("attn.index.q.norm.bias", VECTOR), INDEXED_INPUT, HIDDEN,
                                 ONE, HF(MOE_ALL(L "self_attn.indexer.q_input_norm.bias"))},
    [MOE_T_INDEX_Q] = {LAYER("attn.index.q", DENSE), SCORES, INDEX_QUERIES, INDEX_INPUT,
                       HF(MOE_ALL(L "self_attn.indexer.wq_b.weight"),
                          MOE_ALL(C "indexer.q_b_proj.weight")),
                       GGUF(MOE_ALL(B "indexer.attn_q_b.weight"))},
    [MOE_T_INDEX_HEAD_NORM] = {LAYER("attn.index.q.head_norm", VECTOR), INDEXED_BLOCKS, INDEX_KEY,
                               ONE, GGUF(MOE_ALL(B "indexer.q_norm.weight"))},
    [MOE_T_INDEX_K] = {LAYER("attn.index.k", DENSE), INDEXED, INDEX_KEY, HIDDEN,
                       NAMES(L "self_attn.indexer.wk.weight", B "indexer.attn_k.weight")},
    [MOE_T_INDEX_K_NORM] = {LAYER("attn.index.k.norm", VECTOR), INDEXED, INDEX_KEY, ONE,
                            NAMES(L "self_attn.indexer.k_norm.weight", B "indexer.k_norm.weight")},
    [MOE_T_INDEX_K_NORM_BIAS] = {LAYER("attn.index.k.norm.bias", VECTOR), INDEX_WEIGHED, INDEX_KEY,
                                 ONE,
                                 NAMES(L "self_attn.indexer.k_norm.bias", B "indexer.k_norm.bias")},
    [MOE_T_INDEX_WEIGHTS] = {LAYER("attn.index.weights", ROUTER), SCORES_WEIGHED, INDEX_HEADS,
                             HIDDEN,
                             HF(MOE_ALL(L "self_attn.indexer.weights_proj.weight"),
                                MOE_ALL(C "indexer.scorer.weights_proj.weight")),
                             GGUF(MOE_ALL(B "indexer.proj.weight"))},
    [MOE_T_SINKS] = {LAYER("attn.sinks", VECTOR), SINKS, HEADS, ONE,
                     NAMES(L "self_attn.sinks", B "attn_sinks.weight")},
    [MOE_T_O] = {LAYER("attn.o", DENSE), ATTENDS, OUT_ROWS, OUTPUTS,
                 NAMES(L "self_attn.o_proj.weight", B "attn_output.weight")},
    [MOE_T_O_BIAS] = {LAYER("attn.o.bias", VECTOR), O_BIAS, HIDDEN, ONE,
                      NAMES(L "self_attn.o_proj.bias", B "attn_output.bias")},
    /* Qwen3-Next's. */
    [MOE_T_ATTN_GATE] = {LAYER("attn.gate", DENSE), ATTN_GATE, GATES, GATE_INPUT,
                         HF(MOE_PART(L "self_attn.q_proj.weight", HEAD_GATE))},
    [MOE_T_ATTN_GATE_BIAS] = {LAYER("attn.gate.bias", VECTOR), ATTN_GATE_BIAS, HEADS, ONE,
                              HF(MOE_ALL(L "self_attn.gate_bias"))},
    /* DeepSeek-V4's. */
    [MOE_T_OUT_DOWN] = {LAYER("attn.o_down", DENSE), SHARED_KEYS, OUT_DOWN, OUT_GROUP,
                        NAMES(L "self_attn.o_a_proj.weight", B "attn_output_a.weight")},
    [MOE_T_ENTRY] = {LAYER("attn.entry", DENSE), COMPRESSES, ENTRIES, HIDDEN,
                     NAMES(C "kv_proj.weight", B "attn_compressor_kv.weight")},
    [MOE_T_ENTRY_GATE] = {LAYER("attn.entry.gate", DENSE), COMPRESSES, ENTRIES, HIDDEN,
                          NAMES(C "gate_proj.weight", B "attn_compressor_gate.weight")},
    [MOE_T_ENTRY_BIAS] = {LAYER("attn.entry.bias", VECTOR), COMPRESSES, ENTRY_BIAS, ONE,
                          HF(MOE_PART(C "position_bias", PLACES)),
                          GGUF(MOE_PART(B "attn_compressor_ape.weight", PLACES))},
    [MOE_T_ENTRY_NORM] = {LAYER("attn.entry.norm", VECTOR), COMPRESSES, ENTRY, ONE,
                          NAMES(C "kv_norm.weight", B "attn_compressor_norm.weight")},
    [MOE_T_INDEX_ENTRY] = {LAYER("attn.index.entry", DENSE), CHOOSES, INDEX_ENTRIES, HIDDEN,
                           NAMES(C "indexer.kv_proj.weight", B "indexer_compressor_kv.weight")},
    [MOE_T_INDEX_GATE] = {LAYER("attn.index.entry.gate", DENSE), INDEX_POOLS, INDEX_ENTRIES, HIDDEN,
                          NAMES(C "indexer.gate_proj.weight", B "indexer_compressor_gate.weight")},
    [MOE_T_INDEX_BIAS] = {LAYER("attn.index.entry.bias", VECTOR), INDEX_POOLS, INDEX_BIAS, ONE,
                          HF(MOE_PART(C "indexer.position_bias", PLACES)),
                          GGUF(MOE_PART(B "indexer_compressor_ape.weight", PLACES))},
    [MOE_T_INDEX_NORM] = {LAYER("attn.index.entry.norm", VECTOR), CHOOSES, INDEX_ENTRY, ONE,
                          NAMES(C "indexer.kv_norm.weight", B "indexer_compressor_norm.weight")},
    [MOE_T_ATTN_MIX] = {LAYER("streams.attn", ROUTER), MANY_STREAMS, STREAM_MIX, STREAMS,
                        HF(MOE_ALL(L "attn_hc.fn"),
                           MOE_ALL(L "attn_hyper_connection.block_inject_weight.weight")),
                        GGUF(MOE_ALL(B "hc_attn_fn.weight"), MOE_ALL(B "hc_attn_inject.weight"))},
    [MOE_T_ATTN_MIX_BIAS] = {LAYER("streams.attn.bias", VECTOR), MIXES_STREAMS, STREAM_MIX, ONE,
                             NAMES(L "attn_hc.base", B "hc_attn_base.weight")},
    [MOE_T_ATTN_MIX_SCALE] = {LAYER("streams.attn.scale", VECTOR), MIXES_STREAMS, STREAM_SCALES,
                              ONE, NAMES(L "attn_hc.scale", B "hc_attn_scale.weight")},
    [MOE_T_FFN_MIX] = {LAYER("streams.ffn", ROUTER), MANY_STREAMS, STREAM_MIX, STREAMS,
                       HF(MOE_ALL(L "ffn_hc.fn"),
                          MOE_ALL(L "mlp_hyper_connection.block_inject_weight.weight")),
                       GGUF(MOE_ALL(B "hc_ffn_fn.weight"), MOE_ALL(B "hc_ffn_inject.weight"))},
    [MOE_T_FFN_MIX_BIAS] = {LAYER("streams.ffn.bias", VECTOR), MIXES_STREAMS, STREAM_MIX, ONE,
                            NAMES(L "ffn_hc.base", B "hc_ffn_base.weight")},
    [MOE_T_FFN_MIX_SCALE] = {LAYER("streams.ffn.scale", VECTOR), MIXES_STREAMS, STREAM_SCALES, ONE,
                             NAMES(L "ffn_hc.scale", B "hc_ffn_scale.weight")},
    /* Kimi-K3's. */
    [MOE_T_ATTN_SCORES] = {LAYER("streams.attn.scores", VECTOR), MIXES_SCORED, HIDDEN, ONE,
                           HF(MOE_TIMES(L "self_attention_res_proj.weight",
                                        L "self_attention_res_norm.weight")),
                           GGUF(MOE_ALL(B "attn_res_score.weight"))},
    [MOE_T_FFN_SCORES] = {LAYER("streams.ffn.scores", VECTOR), KEEPS_STREAMS, HIDDEN, ONE,
                          HF(MOE_TIMES(L "mlp_res_proj.weight", L "mlp_res_norm.weight")),
                          GGUF(MOE_ALL(B "ffn_res_score.weight"))},
    /* Qwen4's. */
    [MOE_T_ATTN_GATE_NORM] = {LAYER("streams.attn.norm", VECTOR), GATED_STREAMS, STREAMS, ONE,
                              HF(MOE_PLUS_ONE(L "attn_hyper_connection.hc_norm.weight")),
                              GGUF(MOE_ALL(B "hc_attn_norm.weight"))},
    [MOE_T_ATTN_GATE_DOWN] = {LAYER("streams.attn.down", DENSE), GATED_STREAMS, STREAM_RANK,
                              STREAMS,
                              NAMES(L "attn_hyper_connection.input_mix_weight_down.weight",
                                    B "hc_attn_down.weight")},
    [MOE_T_ATTN_GATE_UP] = {LAYER("streams.attn.up", DENSE), GATED_STREAMS, STREAMS, STREAM_RANK,
                            NAMES(L "attn_hyper_connection.input_mix_weight_up.weight",
                                  B "hc_attn_up.weight")},
    [MOE_T_FFN_GATE_NORM] = {LAYER("streams.ffn.norm", VECTOR), GATED_STREAMS, STREAMS, ONE,
                             HF(MOE_PLUS_ONE(L "mlp_hyper_connection.hc_norm.weight")),
                             GGUF(MOE_ALL(B "hc_ffn_norm.weight"))},
    [MOE_T_FFN_GATE_DOWN] = {LAYER("streams.ffn.down", DENSE), GATED_STREAMS, STREAM_RANK, STREAMS,
                             NAMES(L "mlp_hyper_connection.input_mix_weight_down.weight",
                                   B "hc_ffn_down.weight")},
    [MOE_T_FFN_GATE_UP] = {LAYER("streams.ffn.up", DENSE), GATED_STREAMS, STREAMS, STREAM_RANK,
                           NAMES(L "mlp_hyper_connection.input_mix_weight_up.weight",
                                 B "hc_ffn_up.weight")},
    [MOE_T_NGRAMS] = {LAYER("ngrams", DENSE), NGRAMS, NGRAM_ROWS, NGRAM_COLS,
                      HF(MOE_PART(NGRAM "ple_embedding.ngram_embedding.weight", JOINED),
                         MOE_PART(NGRAM "ple_embedding.ngram_embedding.shard_0.weight", JOINED)),
                      GGUF(MOE_PART("per_layer_token_embd.weight", JOINED))},
    [MOE_T_NGRAM_KEY] = {LAYER("ngrams.key", DENSE), NGRAMS, STREAMS, NGRAM_WIDTH,
                         NAMES(NGRAM "key_proj.weight", B "ple_key.weight")},
    [MOE_T_NGRAM_VALUE] = {LAYER("ngrams.value", DENSE), NGRAMS, HIDDEN, NGRAM_WIDTH,
                           NAMES(NGRAM "value_proj.weight", B "ple_value.weight")},
    [MOE_T_NGRAM_KEY_NORM] = {LAYER("ngrams.key.norm", VECTOR), NGRAMS, STREAMS, ONE,
                              HF(MOE_PLUS_ONE(NGRAM "norm_key.weight")),
                              GGUF(MOE_ALL(B "ple_norm_key.weight"))},
    [MOE_T_NGRAM_QUERY_NORM] = {LAYER("ngrams.query.norm", VECTOR), NGRAMS, STREAMS, ONE,
                                HF(MOE_PLUS_ONE(NGRAM "norm_query.weight")),
                                GGUF(MOE_ALL(B "ple_norm_query.weight"))},
    [MOE_T_NGRAM_CONV_NORM] = {LAYER("ngrams.conv.norm", VECTOR), NGRAMS, STREAMS, ONE,
                               HF(MOE_PLUS_ONE(NGRAM "norm_conv.weight")),
                               GGUF(MOE_ALL(B "ple_norm_conv.weight"))},
    [MOE_T_NGRAM_CONV] = {LAYER("ngrams.conv", VECTOR), NGRAMS, NGRAM_CONV, ONE,
                          HF(MOE_PART(NGRAM "conv1d.weight", CONV)),
                          GGUF(MOE_PART(B "ple_conv1d.weight", CONV))},
    [MOE_T_STATE_Q] = {LAYER("state.q", DENSE), STATE, STATE_KEYS, STATE_KEY_INPUT, STATE_PART},
    [MOE_T_STATE_K] = {LAYER("state.k", DENSE), STATE, STATE_KEYS, STATE_KEY_INPUT, STATE_PART},
    [MOE_T_STATE_V] = {LAYER("state.v", DENSE), RECURRENT, STATE_VALUES, HIDDEN, STATE_PART},
    [MOE_T_STATE_Z] = {LAYER("state.gate", DENSE), RECURRENT, STATE_VALUES, STATE_GATE_INPUT,
                       HF(MOE_PART(L "linear_attn.in_proj_qkvz.weight", STATE_HEADS),
                          MOE_ALL(L "linear_attn.in_proj_z.weight")),
                       GGUF(MOE_ALL(B "attn_gate.weight"),
                            MOE_PART(B "ssm_in.weight", STATE_HEADS))},
    [MOE_T_STATE_Z_DOWN] = {LAYER("state.gate_down", DENSE), KDA_LOW, STATE_LOW, HIDDEN},
    [MOE_T_STATE_DECAY_DOWN] = {LAYER("state.decay_down", ROUTER), DECAY_DOWN, STATE_LOW,
                                STATE_KEY_INPUT},
    [MOE_T_STATE_DECAY_NORM] = {LAYER("state.decay.norm", VECTOR), SELECT, STATE_LOW, ONE},
    [MOE_T_STATE_K_NORM] = {LAYER("state.k.norm", VECTOR), SELECT, STATE_KEY, ONE},
    [MOE_T_STATE_Q_NORM] = {LAYER("state.q.norm", VECTOR), SELECT, STATE_KEY, ONE},
    [MOE_T_STATE_SCALE] = {LAYER("state.scale", DENSE), SHORT_CONV, STATE_VALUES, HIDDEN},
    [MOE_T_STATE_BETA] = {LAYER("state.beta", ROUTER), BETA, STATE_HEADS, HIDDEN,
                          HF(MOE_PART(L "linear_attn.in_proj_ba.weight", STATE_HEADS),
                             MOE_ALL(L "linear_attn.in_proj_b.weight")),
                          GGUF(MOE_PART(B "ssm_ba.weight", STATE_HEADS),
                               MOE_ALL(B "ssm_beta.weight"))},
    [MOE_T_STATE_DECAY] = {LAYER("state.decay", ROUTER), DECAYS, STATE_DECAYS, STATE_DECAY_INPUT,
                           HF(MOE_PART(L "linear_attn.in_proj_ba.weight", STATE_HEADS),
                              MOE_ALL(L "linear_attn.in_proj_a.weight")),
                           GGUF(MOE_PART(B "ssm_ba.weight", STATE_HEADS),
                                MOE_ALL(B "ssm_alpha.weight"))},
    [MOE_T_STATE_STEP] = {LAYER("state.decay.bias", VECTOR), DECAYS, STATE_DECAYS, ONE,
                          HF(MOE_ALL(L "linear_attn.dt_bias")),
                          GGUF(MOE_ALL(B "ssm_dt.bias"), MOE_ALL(B "ssm_dt"))}, /* ollama's */
    [MOE_T_STATE_RATE] = {LAYER("state.decay.rate", VECTOR), DECAYS, STATE_RATES, ONE,
                          HF(MOE_ALL(L "linear_attn.A_log")),
                          GGUF(MOE_NEGATIVE_EXP(B "ssm_a", ALL))},
    [MOE_T_STATE_SKIP] = {LAYER("state.skip", VECTOR), SKIPS, STATE_SKIPS, ONE,
                          GGUF(MOE_ALL(B "ssm_d"))},
    [MOE_T_STATE_CONV] = {LAYER("state.conv", VECTOR), CONVOLVED, STATE_CONV, ONE,
                          HF(MOE_PART(L "linear_attn.conv1d.weight", CONV)),
                          GGUF(MOE_PART(B "ssm_conv1d.weight", CONV))},
    [MOE_T_STATE_CONV_BIAS] = {LAYER("state.conv.bias", VECTOR), CONV_BIAS, STATE_CHANNELS, ONE,
                               GGUF(MOE_ALL(B "ssm_conv1d.bias"))},
    [MOE_T_STATE_CONV_Q] = {LAYER("state.conv.q", VECTOR), KDA, STATE_CONV_KEYS, ONE},
    [MOE_T_STATE_CONV_K] = {LAYER("state.conv.k", VECTOR), KDA, STATE_CONV_KEYS, ONE},
    [MOE_T_STATE_NORM] = {LAYER("state.norm", VECTOR), STATE_NORMED, STATE_NORM, ONE,
                          NAMES(L "linear_attn.norm.weight", B "ssm_norm.weight")},
    [MOE_T_STATE_O] = {LAYER("state.o", DENSE), RECURRENT, HIDDEN, STATE_VALUES,
                       NAMES(L "linear_attn.out_proj.weight", B "ssm_out.weight")},
    [MOE_T_POSITION_BIAS] = {LAYER("attn.positions", VECTOR), POSITION_BUCKETS, POSITION_BIAS, ONE},
    [MOE_T_CROSS_NORM] = {LAYER("cross.norm", VECTOR), CROSS, HIDDEN, ONE},
    [MOE_T_CROSS_Q] = {LAYER("cross.q", DENSE), CROSS, QUERIES, HIDDEN},
    [MOE_T_CROSS_K] = {LAYER("cross.k", DENSE), CROSS, KEYS, HIDDEN},
    [MOE_T_CROSS_V] = {LAYER("cross.v", DENSE), CROSS, KEYS, HIDDEN},
    [MOE_T_CROSS_O] = {LAYER("cross.o", DENSE), CROSS, HIDDEN, VALUES},
    [MOE_T_CROSS_NORM_BIAS] = {LAYER("cross.norm.bias", VECTOR), CROSS_LAYER_NORM, HIDDEN, ONE},
    [MOE_T_CROSS_Q_BIAS] = {LAYER("cross.q.bias", VECTOR), CROSS_QKV_BIAS, QUERIES, ONE},
    [MOE_T_CROSS_K_BIAS] = {LAYER("cross.k.bias", VECTOR), CROSS_QKV_BIAS, KEYS, ONE},
    [MOE_T_CROSS_V_BIAS] = {LAYER("cross.v.bias", VECTOR), CROSS_QKV_BIAS, KEYS, ONE},
    [MOE_T_CROSS_O_BIAS] = {LAYER("cross.o.bias", VECTOR), CROSS_O_BIAS, HIDDEN, ONE},
    [MOE_T_FFN_NORM] = {LAYER("ffn.norm", VECTOR), FEEDS, HIDDEN, ONE,
                        NAMES(L "post_attention_layernorm.weight", B "ffn_norm.weight")},
    [MOE_T_FFN_NORM_BIAS] = {LAYER("ffn.norm.bias", VECTOR), FFN_LAYER_NORM, HIDDEN, ONE,
                             NAMES(L "post_attention_layernorm.bias", B "ffn_norm.bias")},
    [MOE_T_FFN_NORM_DOWN] = {LAYER("ffn.norm.down", DENSE), EXPERTS_GATED, NORM_GATE, HIDDEN,
                             HF(MOE_ALL(L "post_attention_layernorm.W_down.weight"))},
    [MOE_T_FFN_NORM_UP] = {LAYER("ffn.norm.up", DENSE), EXPERTS_GATED, HIDDEN, NORM_GATE,
                           HF(MOE_ALL(L "post_attention_layernorm.W_up.weight"))},
    [MOE_T_FFN_END_NORM] = {LAYER("ffn.end_norm", VECTOR), FEEDS_BOTH, HIDDEN, ONE},
    [MOE_T_FFN_KEEP] = {LAYER("ffn.keep", VECTOR), FEEDS_KEPT, HIDDEN, ONE},
    [MOE_T_FFN_KEEP_BIAS] = {LAYER("ffn.keep.bias", VECTOR), FEEDS_KEPT_BIAS, HIDDEN, ONE},
    [MOE_T_FFN_WEIGHT] = {LAYER("ffn.weight", VECTOR), FEEDS_WEIGHED, HIDDEN, ONE},
    [MOE_T_FFN_WEIGHT_BIAS] = {LAYER("ffn.weight.bias", VECTOR), FEEDS_BIAS, HIDDEN, ONE},
    [MOE_T_LAYER_SCALE] = {LAYER("scale", VECTOR), LAYER_SCALE, ONE, ONE},
    [MOE_T_EMBED_GATE] = {LAYER("embed.gate", DENSE), LAYER_EMBED, ONE_EMBED, HIDDEN,
                          NAMES(L "per_layer_input_gate.weight", B "inp_gate.weight")},
    [MOE_T_EMBED_OUT] = {LAYER("embed.out", DENSE), LAYER_EMBED, HIDDEN, ONE_EMBED,
                         NAMES(L "per_layer_projection.weight", B "proj.weight")},
    [MOE_T_EMBED_NORM] = {LAYER("embed.norm", VECTOR), LAYER_EMBED, HIDDEN, ONE,
                          NAMES(L "post_per_layer_input_norm.weight", B "post_norm.weight")},
    [MOE_T_GATE] = {LAYER("ffn.gate", DENSE), DENSE_GATE, DENSE_FF, HIDDEN,
                    NAMES(L "mlp.gate_proj.weight", B "ffn_gate.weight")},
    [MOE_T_UP] = {LAYER("ffn.up", DENSE), DENSE_LAYER, DENSE_FF, HIDDEN,
                  NAMES(L "mlp.up_proj.weight", B "ffn_up.weight")},
    [MOE_T_DOWN] = {LAYER("ffn.down", DENSE), DENSE_LAYER, HIDDEN, DENSE_FF,
                    NAMES(L "mlp.down_proj.weight", B "ffn_down.weight")},
    [MOE_T_UP_BIAS] = {LAYER("ffn.up.bias", VECTOR), DENSE_BIAS, DENSE_FF, ONE},
    [MOE_T_DOWN_BIAS] = {LAYER("ffn.down.bias", VECTOR), DENSE_BIAS, HIDDEN, ONE},
    [MOE_T_ROUTER] = {LAYER("router", ROUTER), ROUTED, SCORED, ROUTER_INPUT,
                      NAMES(L "mlp.gate.weight", B "ffn_gate_inp.weight")},
    [MOE_T_ROUTER_BIAS] = {LAYER("router.bias", VECTOR), ROUTER_BIAS, CHOICES, ONE,
                           GGUF(MOE_ALL(B "ffn_gate_inp.bias"))},
    [MOE_T_ROUTER_NORM] = {LAYER("router.norm", VECTOR), OWN_NORMS, HIDDEN, ONE},
    [MOE_T_ROUTER_DOWN] = {LAYER("router.down", ROUTER), ROUTER_DEEP, ROUTER_DIM, HIDDEN},
    [MOE_T_ROUTER_DOWN_BIAS] = {LAYER("router.down.bias", VECTOR), ROUTER_DEEP, ROUTER_DIM, ONE},
    [MOE_T_ROUTER_KEEP] = {LAYER("router.keep", VECTOR), ROUTER_KEEPS, ROUTER_DIM, ONE},
    [MOE_T_ROUTER_DOWN_NORM] = {LAYER("router.down.norm", VECTOR), ROUTER_DEEP, ROUTER_DIM, ONE},
    [MOE_T_ROUTER_FIRST] = {LAYER("router.1", ROUTER), ROUTER_DEEP, ROUTER_DIM, ROUTER_DIM},
    [MOE_T_ROUTER_FIRST_BIAS] = {LAYER("router.1.bias", VECTOR), ROUTER_DEEP, ROUTER_DIM, ONE},
    [MOE_T_ROUTER_SECOND] = {LAYER("router.2", ROUTER), ROUTER_DEEP, ROUTER_DIM, ROUTER_DIM},
    [MOE_T_ROUTER_SECOND_BIAS] = {LAYER("router.2.bias", VECTOR), ROUTER_DEEP, ROUTER_DIM, ONE},
    [MOE_T_EXPERT_SCALE] = {LAYER("router.expert_scale", VECTOR), EXPERT_SCALE, EXPERTS, ONE},
    [MOE_T_CHOICE_BIAS] = {LAYER("router.choice", VECTOR), CHOICE_BIAS, CHOICES, ONE,
                           NAMES(L "mlp.gate.e_score_correction_bias", B "exp_probs_b.bias")},
    [MOE_T_EXPERTS_IN] = {LAYER("experts.in", DENSE), NARROW, EXPERT_DIM, HIDDEN,
                          GGUF(MOE_ALL(B "ffn_latent_down.weight"),
                               MOE_ALL(B "ffn_routed_down.weight"))},
    [MOE_T_EXPERTS_START_NORM] = {LAYER("experts.start_norm", VECTOR), NARROW_START, EXPERT_DIM,
                                  ONE},
    [MOE_T_EXPERTS_WEIGHT] = {LAYER("experts.weight", VECTOR), EXPERTS_WEIGHED, EXPERT_DIM, ONE},
    [MOE_T_EXPERTS_NORM] = {LAYER("experts.norm", VECTOR), NARROW_NORM, EXPERT_DIM, ONE,
                            GGUF(MOE_ALL(B "ffn_routed_norm.weight"))},
    [MOE_T_EXPERTS_OUT] = {LAYER("experts.out", DENSE), NARROW, HIDDEN, EXPERT_DIM,
                           GGUF(MOE_ALL(B "ffn_latent_up.weight"),
                                MOE_ALL(B "ffn_routed_up.weight"))},
    /* GroveMoE's. */
    [MOE_T_ADJUGATE_GATE] = {LAYER("adjugates.gate", DENSE), ADJUGATE, ADJUGATES, HIDDEN,
                             NAMES(L "mlp.chunk_experts.0.gate_proj.weight",
                                   B "ffn_gate_chexps.weight")},
    [MOE_T_ADJUGATE_UP] = {LAYER("adjugates.up", DENSE), ADJUGATE, ADJUGATES, HIDDEN,
                           NAMES(L "mlp.chunk_experts.0.up_proj.weight", B "ffn_up_chexps.weight")},
    [MOE_T_ADJUGATE_DOWN] = {LAYER("adjugates.down", DENSE), ADJUGATE, ADJUGATES_OUT, ADJUGATE_FF,
                             NAMES(L "mlp.chunk_experts.0.down_proj.weight",
                                   B "ffn_down_chexps.weight")},
    [MOE_T_ROUTES] = {LAYER("routes", VECTOR), STATIC, ROUTES, ONE,
                      HF(MOE_PART(L "mlp.routes", ROUTES)),
                      GGUF(MOE_PART(B "ffn_gate_tid2eid.weight", ROUTES))},
    /* DeepSeek's names. */
    [MOE_T_SHARED_GATE_PROJ] = {LAYER("shared.gate", DENSE), SHARED_HAS_GATE, SHARED_FF, HIDDEN,
                                NAMES(L "mlp.shared_experts.gate_proj.weight",
                                      B "ffn_gate_shexp.weight")},
    [MOE_T_SHARED_UP] = {LAYER("shared.up", DENSE), SHARED, SHARED_FF, HIDDEN,
                         NAMES(L "mlp.shared_experts.up_proj.weight", B "ffn_up_shexp.weight")},
    [MOE_T_SHARED_DOWN] = {LAYER("shared.down", DENSE), SHARED, HIDDEN, SHARED_FF,
                           NAMES(L "mlp.shared_experts.down_proj.weight",
                                 B "ffn_down_shexp.weight")},
    [MOE_T_SHARED_GATE] = {LAYER("shared.scale", ROUTER), SHARED_GATE, ONE, HIDDEN,
                           NAMES(L "mlp.shared_expert_gate.weight", B "ffn_gate_inp_shexp.weight")},
    [MOE_T_SHARED_NORM] = {LAYER("shared.norm", VECTOR), OWN_NORMS, HIDDEN, ONE},
    [MOE_T_SHARED_END_NORM] = {LAYER("shared.end_norm", VECTOR), OWN_NORMS, HIDDEN, ONE},
    [MOE_T_EXPERTS_END_NORM] = {LAYER("experts.end_norm", VECTOR), OWN_NORMS, HIDDEN, ONE},
    [MOE_T_BYPASS] = {LAYER("bypass", DENSE), BYPASS, HIDDEN, HIDDEN},
    /* DeepSeek's names, and llama.cpp's for them. */
    [MOE_T_AHEAD_TOKEN_NORM] = {LAYER("ahead.token_norm", VECTOR), AHEAD, HIDDEN, ONE,
                                NAMES(L "enorm.weight", B "nextn.enorm.weight")},
    [MOE_T_AHEAD_STATE_NORM] = {LAYER("ahead.state_norm", VECTOR), AHEAD, HIDDEN, ONE,
                                NAMES(L "hnorm.weight", B "nextn.hnorm.weight")},
    [MOE_T_AHEAD_JOIN] = {LAYER("ahead.join", DENSE), AHEAD, HIDDEN, TWICE_HIDDEN,
                          NAMES(L "eh_proj.weight", B "nextn.eh_proj.weight")},
    [MOE_T_AHEAD_NORM] = {LAYER("ahead.norm", VECTOR), AHEAD, HIDDEN, ONE,
                          NAMES(L "shared_head.norm.weight", B "nextn.shared_head_norm.weight")},
    /* SpecForge's names, and llama.cpp's. */
    [MOE_T_READS_NORM] = {MODEL("reads.norm", VECTOR), DRAFTS_NORMED, READS_WIDTH, ONE,
                          NAMES("input_norm.weight", "enc.output_norm.weight")},
    [MOE_T_READS_JOIN] = {MODEL("reads.join", DENSE), DRAFTS, HIDDEN, READS_WIDTH,
                          NAMES("fc.weight", "fc.weight")},
    [MOE_T_READ_NORM] = {MODEL("read.norm", VECTOR), DRAFTS, HIDDEN, ONE,
                         NAMES("midlayer.hidden_norm.weight", "blk.0.attn_norm_2.weight")},
    [MOE_T_DRAFT_TOKENS] =
        {MODEL("draft_tokens", VECTOR), DRAFTS_SOME, DRAFT_VOCAB, ONE,
         HF({.name = "d2t", .take = MOE_TAKE_NUMBERS, .stored = MOE_STORED_LESS_PLACE}),
         GGUF(MOE_PART("d2t", NUMBERS))},
    [MOE_T_MARKOV_FROM] = {MODEL("markov.from", DENSE), DRAFTS_CHAIN, VOCAB, MARKOV_RANK,
                           NAMES("model.markov_head.markov_w1.weight", "markov_w1.weight")},
    [MOE_T_MARKOV_TO] = {MODEL("markov.to", DENSE), DRAFTS_CHAIN, HEAD_ROWS, MARKOV_RANK,
                         NAMES("model.markov_head.markov_w2.weight", "markov_w2.weight")},
};

/* A tensor per expert, as in Qwen, OLMoE and DeepSeek, or all experts of a layer in two tensors, as
 * newer versions of transformers save them. GGUF has all experts of a layer in one tensor, gate and
 * up perhaps together; old files have a tensor per expert. */
static const struct moe_tensor_spec parts[MOE_E_N_PARTS] = {
    [MOE_E_GATE] = {"expert gate", MOE_KIND_EXPERT, true, EXPERT_GATE, EXPERT_FF, EXPERT_DIM,
                    HF(MOE_ALL(L "mlp.experts.%u.gate_proj.weight"),
                       MOE_PART(L "mlp.experts.gate_up_proj", FIRST_HALF)),
                    GGUF(MOE_PART(B "ffn_gate_exps.weight", EXPERT),
                         MOE_PART(B "ffn_gate_up_exps.weight", FIRST_HALF),
                         MOE_ALL(B "ffn_gate.%u.weight"))},
    [MOE_E_UP] = {"expert up", MOE_KIND_EXPERT, true, ALWAYS, EXPERT_FF, EXPERT_DIM,
                  HF(MOE_ALL(L "mlp.experts.%u.up_proj.weight"),
                     MOE_PART(L "mlp.experts.gate_up_proj", SECOND_HALF)),
                  GGUF(MOE_PART(B "ffn_up_exps.weight", EXPERT),
                       MOE_PART(B "ffn_gate_up_exps.weight", SECOND_HALF),
                       MOE_ALL(B "ffn_up.%u.weight"))},
    [MOE_E_DOWN] = {"expert down", MOE_KIND_EXPERT, true, ALWAYS, EXPERT_DIM, EXPERT_FF,
                    HF(MOE_ALL(L "mlp.experts.%u.down_proj.weight"),
                       MOE_PART(L "mlp.experts.down_proj", EXPERT)),
                    GGUF(MOE_PART(B "ffn_down_exps.weight", EXPERT),
                         MOE_ALL(B "ffn_down.%u.weight"))},
    [MOE_E_GATE_BIAS] = {"expert gate bias", MOE_KIND_VECTOR, true, EXPERT_GATE_BIAS, EXPERT_FF,
                         ONE, GGUF(MOE_PART(B "ffn_gate_exps.bias", EXPERT))},
    [MOE_E_UP_BIAS] = {"expert up bias", MOE_KIND_VECTOR, true, EXPERT_BIAS, EXPERT_FF, ONE,
                       GGUF(MOE_PART(B "ffn_up_exps.bias", EXPERT))},
    [MOE_E_DOWN_BIAS] = {"expert down bias", MOE_KIND_VECTOR, true, EXPERT_BIAS, HIDDEN, ONE,
                         GGUF(MOE_PART(B "ffn_down_exps.bias", EXPERT))},
};

const char *const moe_ignored_names[MOE_N_NAMINGS][8] = {
    /* Buffers that old files store with the weights: rotary frequencies, and masks, which
     * transformers ignores as well. */
    [MOE_NAMING_HF] = {L "self_attn.rotary_emb.*", "model.rotary_emb.*", L "self_attn.bias",
                       L "self_attn.masked_bias", L "attn.bias", L "attn.masked_bias", NULL},
    /* moe_config_read_gguf reads these. */
    [MOE_NAMING_GGUF] = {"rope_freqs.weight", "rope_factors_long.weight",
                         "rope_factors_short.weight", NULL},
};

const struct moe_tensor_spec *moe_tensor_spec(enum moe_tensor_role role)
{
    return &roles[role];
}

const struct moe_tensor_spec *moe_expert_part_spec(enum moe_expert_part part)
{
    return &parts[part];
}

void moe_tensor_pack_name(enum moe_tensor_role role, uint32_t layer, char *out)
{
    const char *format = roles[role].pack_name, *mark = strstr(format, "%u");
    if (!mark)
        snprintf(out, MOE_NAME_BYTES, "%s", format);
    else
        snprintf(out, MOE_NAME_BYTES, "%.*s%u%s", (int)(mark - format), format, layer, mark + 2);
}

static bool spec_shape(const struct moe_config *c, const struct moe_tensor_spec *spec,
                       uint32_t layer, uint32_t *rows, uint32_t *cols)
{
    const bool elsewhere = layer < MOE_NO_LAYER && c->layers[layer].elsewhere;
    if (elsewhere && spec->per_layer && c->layers[layer].away)
        return false;
    *rows = tensor_width(c, spec->rows, layer);
    *cols = tensor_width(c, spec->cols, layer);
    const bool owns = !spec->per_layer || layer >= MOE_NO_LAYER || moe_config_owns(c, layer);
    return owns && tensor_holds(c, spec->condition, layer, elsewhere) && *rows > 0;
}

bool moe_tensor_shape(const struct moe_config *config, enum moe_tensor_role role, uint32_t layer,
                      uint32_t *rows, uint32_t *cols)
{
    return spec_shape(config, &roles[role], layer, rows, cols);
}

bool moe_tensor_is_attention(const struct moe_config *config, enum moe_tensor_role role,
                             uint32_t layer)
{
    const enum condition condition = roles[role].condition;
    return tensor_holds(config, condition, layer, false) &&
           !tensor_holds(config, condition, layer, true);
}

bool moe_expert_part_shape(const struct moe_config *config, enum moe_expert_part part,
                           uint32_t *rows, uint32_t *cols)
{
    return spec_shape(config, &parts[part], MOE_NO_LAYER, rows, cols);
}

/* Answers of a model's description to the words of the table. */

static uint32_t tensor_width(const struct moe_config *c, enum width which, uint32_t layer)
{
    uint32_t mixed = c->hidden << (c->drafter_kind == MOE_DRAFTS_EAGLE3);
    bool all_heads = c->qk_norm == MOE_QK_NORM_FULL || c->qk_norm == MOE_QK_NORM_CLIP;
    uint32_t heads = moe_config_heads(c, layer), head = moe_config_head_dim(c, layer);
    uint32_t queries = heads * head, keys = moe_config_kv_heads(c, layer) * head;
    uint32_t value = moe_config_value_dim(c, layer);
    bool cca = c->state_kind == MOE_STATE_CCA;
    /* What an expert of attention has of heads. */
    uint32_t own = c->attn_experts ? c->n_kv_heads : heads,
             times = c->attn_experts ? c->attn_experts : 1;
    uint32_t values = c->state_heads * c->state_value_dim;
    uint32_t state_keys = c->state_key_heads * c->state_key_dim;
    bool kda = c->state_kind == MOE_STATE_KDA, select = c->state_kind == MOE_STATE_SELECT;
    bool low = kda && !c->state_direct;
    bool chooses = layer < MOE_NO_LAYER && c->layers[layer].compression == MOE_COMPRESS_CHOSEN;
    uint32_t ratio = layer < MOE_NO_LAYER ? moe_config_ratio(c, layer) : 0, twice = 1 + chooses;
    const uint32_t widths[N_WIDTHS] = {
        [ONE] = 1,
        [VOCAB] = c->vocab,
        [HEAD_ROWS] = c->draft_vocab ? c->draft_vocab : c->vocab,
        [DRAFT_VOCAB] = c->draft_vocab,
        [MARKOV_RANK] = c->markov_rank,
        [READS_WIDTH] = c->n_reads * c->hidden,
        [HIDDEN] = c->hidden,
        [TWICE_HIDDEN] = 2 * c->hidden,
        [HEADS] = heads,
        [QUERIES] = times * own * head,
        [ALL_HEADS] = queries + keys,
        [HEAD_TAPS] = c->conv_width * head,
        [KEY_HEADS] = c->n_kv_heads,
        [ATTN_EXPERTS] = c->attn_experts,
        [OUT_ROWS] = times * c->hidden,
        [KEYS] = keys,
        [KEY_VALUES] = moe_config_kv_heads(c, layer) * value / (1 + cca),
        [VALUES] = heads * value,
        [GATES] = heads * (c->gate_by_head ? 1 : value),
        [MIXED_INPUT] = mixed,
        [QUERY_INPUT] = c->q_rank ? c->q_rank << c->q_twice : mixed,
        [GATE_INPUT] = c->q_twice ? 2 * c->q_rank : c->hidden,
        [NORM_GATE] = c->norm_gate_rank,
        [QUERY_NORM] = all_heads ? queries : head,
        [KEY_NORM] = all_heads            ? keys
                     : c->latent_key_norm ? c->rope_dim
                                          : head,
        [Q_RANK] = c->q_rank,
        [OUTPUTS] = c->out_groups ? c->out_groups * c->out_rank : own * value,
        [OUT_DOWN] = c->out_groups * c->out_rank,
        [OUT_GROUP] = c->out_groups ? queries / c->out_groups : 0,
        [ENTRIES] = twice * head,
        [ENTRY] = head,
        [ENTRY_BIAS] = ratio * twice * head,
        [INDEX_ENTRIES] = twice * c->index_dim,
        [INDEX_ENTRY] = c->index_dim,
        [INDEX_BIAS] = ratio * twice * c->index_dim,
        [STREAMS] = c->n_streams * c->hidden,
        [STREAM_MIX] = c->stream_rank ? c->n_streams
                                      : (2 + (c->stream_rounds ? c->n_streams : 0)) * c->n_streams,
        [STREAM_RANK] = c->stream_rank,
        [ADJUGATES] = c->adjugate_of ? c->n_experts / c->adjugate_of * c->adjugate_ff : 0,
        [ADJUGATES_OUT] = c->adjugate_of ? c->n_experts / c->adjugate_of * c->hidden : 0,
        [ADJUGATE_FF] = c->adjugate_ff,
        [NGRAM_ROWS] = c->ngram_rows / moe_config_ngrams_joined(c),
        [NGRAM_COLS] = moe_config_ngrams_joined(c) * c->ngram_dim,
        [NGRAM_WIDTH] = (c->ngrams ? c->ngrams - 1 : 0) * c->ngram_heads * c->ngram_dim,
        [NGRAM_CONV] = c->n_streams * c->hidden * c->ngram_taps,
        [STREAM_ENDS] = c->n_streams,
        [STREAM_SCALES] = c->stream_rounds ? 3 : 2,
        [KV_RANK] = moe_config_kv_rank(c, layer),
        [KV_DOWN] = moe_config_kv_rank(c, layer) + moe_config_rotated(c, layer),
        [LATENT_KEYS] = heads * moe_config_kv_rank(c, layer),
        [NOT_ROTATED] = head - moe_config_rotated(c, layer),
        [INDEX_INPUT] = c->q_rank ? c->q_rank : c->hidden,
        [INDEX_HEADS] = c->index_heads,
        [INDEX_QUERIES] = c->index_heads * c->index_dim,
        [INDEX_KEY] = c->index_dim,
        [DENSE_FF] = c->dense_ff << (layer < MOE_NO_LAYER && c->layers[layer].wide_ffn),
        [LAYER_EMBEDS] = c->n_layers * c->layer_embed,
        [ONE_EMBED] = c->layer_embed,
        [EXPERTS] = c->n_experts,
        [CHOICES] = c->n_experts + c->n_zero,
        [SCORED] = c->n_experts + c->n_zero + c->shared_sinks,
        [ROUTER_DIM] = c->router_dim,
        [ROUTER_INPUT] = c->router_dim ? c->router_dim : c->hidden,
        [SHARED_FF] = c->shared_ff,
        [EXPERT_FF] = c->expert_ff,
        [EXPERT_DIM] = moe_config_expert_dim(c),
        [RELATIVE] = heads * c->rel_dim,
        [PROFILES] = c->rel_dim * moe_config_rel_extent(c, layer),
        [TAPS_OF_HEADS] = moe_config_kv_heads(c, layer) * c->conv_width,
        [TAPS_OF_KEYS] = keys * c->conv_width,
        [TAPS_OF_VALUES] = moe_config_kv_heads(c, layer) * value * c->conv_width,
        [TAPS_OF_STREAM] = c->hidden * c->conv_width,
        [LOOP_RANK] = c->loop_rank,
        [POSITION_BIAS] = c->n_buckets * c->n_heads,
        [CONTEXT] = c->context_max,
        [ROUTES] = c->vocab * c->top_k,
        [ROTATED_PAIRS] = c->rope_dim / 2,
        [STATE_KEYS] = state_keys,
        [STATE_VALUES] = values,
        [STATE_HEADS] = c->state_heads,
        [STATE_CONV] = (cca   ? queries + keys
                        : kda ? values
                              : moe_config_state_channels(c)) *
                       c->conv_width,
        [STATE_CONV_KEYS] = state_keys * c->conv_width,
        [STATE_GATE_INPUT] = low && !c->gate_direct ? c->state_key_dim : c->hidden,
        [STATE_LOW] = select ? c->state_step_rank : c->state_key_dim,
        [STATE_KEY] = c->state_key_dim,
        [STATE_DECAYS] = kda      ? state_keys
                         : select ? values
                                  : c->state_heads,
        [STATE_RATES] = select ? state_keys * values : c->state_heads,
        [STATE_SKIPS] = select ? values : c->state_heads,
        [STATE_KEY_INPUT] = select ? values : c->hidden,
        [STATE_DECAY_INPUT] = low      ? c->state_key_dim
                              : select ? c->state_step_rank
                                       : c->hidden,
        [STATE_CHANNELS] = moe_config_state_channels(c),
        [STATE_NORM] = c->state_kind == MOE_STATE_SCAN || c->state_kind == MOE_STATE_FADE
                           ? values
                           : c->state_value_dim,
    };
    return widths[which];
}

/* elsewhere: another process computes the layer's attention. */
static bool tensor_holds(const struct moe_config *c, enum condition condition, uint32_t layer,
                         bool elsewhere)
{
    bool moe_layer = layer < MOE_NO_LAYER && c->layers[layer].moe;
    bool is_static = moe_layer && c->layers[layer].static_routing;
    bool routed = moe_layer && (!is_static || c->static_weighed);
    bool shared = moe_layer && c->shared_ff > 0;
    bool dense_gate = moe_act_is_gated(c->dense_act), expert_gate = moe_act_is_gated(c->expert_act);
    bool first = layer == 0 || layer == c->n_encoder, drafts = c->drafter_kind != MOE_DRAFTS_NOT;
    bool cross = c->n_encoder > 0 && layer >= c->n_encoder;
    bool mixes = layer >= MOE_NO_LAYER || !c->layers[layer].no_attention;
    bool recurrent = layer < MOE_NO_LAYER && moe_config_is_recurrent(c, layer);
    bool attends = mixes && !recurrent && !elsewhere,
         windowed = layer < MOE_NO_LAYER && c->layers[layer].windowed;
    bool keys = attends && !(layer < MOE_NO_LAYER && c->layers[layer].shares_keys);
    bool kda = c->state_kind == MOE_STATE_KDA, select = c->state_kind == MOE_STATE_SELECT;
    bool taps = c->state_kind == MOE_STATE_TAPS;
    bool keys_only = c->global_keys_are_values && moe_config_is_global(c, layer);
    bool both = c->norm_place == MOE_NORM_BOTH;
    bool normed = c->qk_norm != MOE_QK_NORM_NONE && c->qk_norm < MOE_QK_NORM_BARE;
    bool weighed = c->residual == MOE_RESIDUAL_WEIGHED;
    bool kept = weighed || c->residual == MOE_RESIDUAL_KEPT;
    bool indexed = layer < MOE_NO_LAYER && moe_config_has_indexer(c, layer);
    bool plain_index = moe_config_index_plain(c);
    uint32_t compression = layer < MOE_NO_LAYER ? c->layers[layer].compression : MOE_COMPRESS_NOT;
    bool plain = !moe_layer && !(layer < MOE_NO_LAYER && c->layers[layer].no_ffn);
    const bool conditions[N_CONDITIONS] = {
        [ALWAYS] = true,
        [EMBEDS] = !drafts || c->own_embed,
        [UNTIED] = drafts ? c->own_head : !c->tied_head,
        [HEAD_BIAS] = c->head_bias,
        [LAYER_NORM] = c->norm_kind == MOE_NORM_LAYER,
        [FFN_LAYER_NORM] = c->norm_kind == MOE_NORM_LAYER && !c->parallel_blocks,
        [MIXES] = mixes && !c->stream_rank,
        [MIXES_BOTH] = mixes && both,
        [MIXES_GATED] = mixes && c->norm_gate_rank,
        [MIXES_KEPT] = mixes && kept,
        [MIXES_WEIGHED] = mixes && weighed,
        [FEEDS_KEPT] = (moe_layer || plain) && kept,
        [FEEDS_KEPT_BIAS] = (moe_layer || plain) && weighed,
        [FEEDS_WEIGHED] = (moe_layer || plain) && (weighed || c->weighed_outputs),
        [FEEDS_BIAS] = ((moe_layer || plain) && weighed) || (moe_layer && c->moe_bias),
        [EMBEDS_WEIGHED] = weighed || c->embed_weighed,
        [EMBEDS_BIASED] = weighed,
        [TAPS_HEADS] = attends && taps,
        [TAPS] = taps,
        [BIASED] = attends && c->rel_dim,
        [BIASES_CLIPPED] = attends && c->rel_clip > 0,
        [TAPS_OWN] = keys && taps && c->own_taps && !windowed,
        [ROW_SINKS] = attends && c->own_sinks,
        [KEYS_MIXED] = keys && c->own_inputs && !windowed && layer > 0,
        [KEYS_INPUT] = keys && c->own_inputs && !windowed,
        [LOOPED] = layer < MOE_NO_LAYER && moe_loop_has(&c->loop, layer),
        [MIXES_SCORED] = c->stream_layers > 0 && (layer > 0 || !c->stream_normed),
        [FFN_FACTOR] = (moe_layer || plain) && c->ffn_scale,
        [CCA] = attends && c->state_kind == MOE_STATE_CCA,
        [ATTN_CHOOSES] = attends && c->attn_experts,
        [EXPERTS_GATED] = moe_layer && c->norm_gate_rank,
        [FEEDS_BOTH] = ((moe_layer || plain) && both) || (moe_layer && c->moe_norm),
        [LAYER_SCALE] = c->layer_scale,
        [LAYER_EMBED] = c->layer_embed > 0,
        [FEEDS] = (moe_layer || plain) && !c->parallel_blocks && !c->stream_rank,
        [ATTENDS] = attends,
        [SHARED_KEYS] = attends && c->out_groups,
        [KEY_NORMED] = keys && (c->out_groups || normed || c->latent_key_norm),
        [COMPRESSES] = compression != MOE_COMPRESS_NOT,
        [CHOOSES] = compression == MOE_COMPRESS_CHOSEN,
        [MANY_STREAMS] = c->n_streams > 0 && !c->stream_layers,
        [MIXES_STREAMS] = c->n_streams > 0 && !c->stream_layers && !c->stream_rank,
        [MIXES_LAST] = c->n_streams > 0 && !c->stream_layers && !c->stream_mean && !c->stream_rank,
        [GATED_STREAMS] = c->stream_rank > 0,
        [ADJUGATE] = moe_layer && c->adjugate_ff,
        [NGRAMS] = layer < MOE_NO_LAYER && c->layers[layer].ngrams,
        [KEEPS_STREAMS] = c->stream_layers > 0,
        [ATTN_GATE] = attends && c->attn_gate,
        [ATTN_GATE_BIAS] = attends && c->gate_bias,
        [RECURRENT] = recurrent,
        [STATE] = recurrent && c->state_kind != MOE_STATE_CONV,
        [DECAYS] = recurrent && c->state_kind != MOE_STATE_CONV && c->state_kind != MOE_STATE_FADE,
        [CONVOLVED] = recurrent && c->state_kind != MOE_STATE_FADE,
        [BETA] = recurrent && (c->state_kind == MOE_STATE_DELTA || kda),
        [KDA] = recurrent && kda,
        [KDA_LOW] = recurrent && kda && !c->state_direct && !c->gate_direct,
        [SELECT] = recurrent && select,
        [SKIPS] = recurrent && (select || c->state_kind == MOE_STATE_SCAN),
        [DECAY_DOWN] = recurrent && (select || (kda && !c->state_direct)),
        [STATE_NORMED] = recurrent && c->state_kind != MOE_STATE_CONV && !select,
        [SHORT_CONV] = recurrent && c->state_kind == MOE_STATE_CONV,
        [CONV_BIAS] = recurrent && c->conv_bias,
        [ORDINARY] = keys && c->kv_rank == 0,
        [HAS_VALUES] = keys && c->kv_rank == 0 && !keys_only && !c->out_groups,
        [VALUES_BIAS] = attends && c->qkv_bias && !keys_only,
        [LATENT] = attends && c->kv_rank > 0,
        [LATENT_KEPT] = keys && c->kv_rank > 0,
        [LATENT_Q] = attends && c->q_rank > 0,
        [INDEXED] = indexed,
        [INDEXED_INPUT] = indexed && !c->q_rank && !plain_index,
        [INDEXED_BLOCKS] = indexed && plain_index,
        [INDEX_WEIGHED] = indexed && !plain_index,
        [INDEX_POOLS] = (indexed && c->index_pooled) || compression == MOE_COMPRESS_CHOSEN,
        [TEMPERED] = attends && c->tempered_heads,
        [INDEX_TEMPERED] = indexed && c->tempered_heads,
        [SCORES] = indexed || compression == MOE_COMPRESS_CHOSEN,
        [SCORES_WEIGHED] = (indexed && !plain_index) || compression == MOE_COMPRESS_CHOSEN,
        [QKV_BIAS] = attends && c->qkv_bias,
        [QK_NORM] = attends && (normed || c->qk_norm == MOE_QK_NORM_CLIP),
        [SINKS] = attends && c->attn_sinks && !c->own_sinks && (!c->sinks_in_windows || windowed),
        [O_BIAS] = attends && c->o_bias,
        [POSITION_BUCKETS] = c->positions == MOE_POSITIONS_BUCKETS && first,
        [LEARNT] = c->positions == MOE_POSITIONS_LEARNT,
        [LEARNT_MORE] = c->extra_positions > 0,
        [LEARNT_ROTATION] = c->rope_learnt,
        [FINAL_NORM] = !c->last_projection && !c->stream_rank,
        [FINAL_LAYER_NORM] = !c->last_projection && c->norm_kind == MOE_NORM_LAYER,
        [LAST_PROJECTION] = c->last_projection,
        [ENCODER] = c->n_encoder > 0,
        [ENCODER_LAYER_NORM] = c->n_encoder > 0 && c->norm_kind == MOE_NORM_LAYER,
        [CROSS] = cross,
        [CROSS_LAYER_NORM] = cross && c->norm_kind == MOE_NORM_LAYER,
        [CROSS_QKV_BIAS] = cross && c->qkv_bias,
        [CROSS_O_BIAS] = cross && c->o_bias,
        [DENSE_LAYER] = plain,
        [DENSE_GATE] = plain && dense_gate,
        [DENSE_BIAS] = plain && c->dense_bias,
        [ROUTED] = routed,
        [ROUTER_BIAS] = routed && c->router_bias,
        [ROUTER_DEEP] = routed && c->router_dim,
        [ROUTER_KEEPS] = routed && c->router_dim && c->layers[layer].moe_index > 0,
        [OWN_NORMS] = moe_layer && c->own_norms,
        [EXPERT_SCALE] = routed && c->expert_scale,
        [CHOICE_BIAS] = moe_layer && !is_static && c->choice_bias,
        [NARROW] = moe_layer && c->expert_dim,
        [NARROW_NORM] = moe_layer && c->narrow_norm,
        [NARROW_START] = moe_layer && c->narrow_start_norm,
        [EXPERTS_WEIGHED] = moe_layer && c->weighed_outputs,
        [STATIC] = is_static,
        [SHARED] = shared,
        [SHARED_HAS_GATE] = shared && dense_gate,
        [SHARED_GATE] = shared && c->shared_gate,
        [BYPASS] = moe_layer && c->soft_bypass,
        [AHEAD] = layer >= c->n_layers && layer < c->n_layers + c->n_ahead,
        [DRAFTS] = drafts,
        [DRAFTS_NORMED] = drafts && c->reads_norm,
        [DRAFTS_SOME] = drafts && c->draft_vocab,
        [DRAFTS_CHAIN] = drafts && c->markov_rank,
        [EXPERT_GATE] = expert_gate,
        [EXPERT_BIAS] = c->expert_bias,
        [EXPERT_GATE_BIAS] = c->expert_bias && expert_gate,
    };
    return conditions[condition];
}
