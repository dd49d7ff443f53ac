/*
 * The words that the table of tensors is written in (tensor_roles.c): widths and conditions, each a
 * question that a model's description answers. Internal to lib/model.
 */
#ifndef MOE_MODEL_TENSOR_WORDS_H
#define MOE_MODEL_TENSOR_WORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "model/config.h"

enum width {
    ONE,
    VOCAB,
    HIDDEN,
    TWICE_HIDDEN,
    HEADS,
    QUERIES,     /* all heads' */
    KEYS,        /* all key/value heads' keys; values of ordinary attention are as wide */
    VALUES,      /* all heads' outputs */
    QUERY_INPUT, /* what queries are made of: the stream, or the vector of q_rank */
    QUERY_NORM,  /* of a norm over a head, or over all of them */
    KEY_NORM,    /* ... the same of keys */
    Q_RANK,      /* of latent attention, here and below */
    OUTPUTS,     /* what the output's matrix takes in: VALUES, or with shared keys */
    OUT_DOWN,    /* ... this, which is made of */
    OUT_GROUP,   /* ... these values of a group of heads */
    ENTRIES,     /* what entries are made of: of a layer whose groups overlap twice as wide */
    ENTRY,       /* ... one, */
    ENTRY_BIAS,  /* ... and its biases; the same three of the indexer */
    INDEX_ENTRIES,
    INDEX_ENTRY,
    INDEX_BIAS,
    STREAMS,     /* what mixes streams: all of them, */
    STREAM_MIX,  /* ... by these numbers, */
    STREAM_ENDS, /* ... or behind the last layer by one each */
    THREE,
    KV_RANK,     /* the latent vector */
    KV_DOWN,     /* latent vector and rotated values */
    LATENT_KEYS, /* all heads' queries in the latent space */
    NOT_ROTATED, /* the part of a head that is not */
    INDEX_HEADS, /* of an indexer, here and below */
    INDEX_QUERIES,
    INDEX_KEY,
    DENSE_FF,
    EXPERTS,
    SHARED_FF,
    EXPERT_FF,
    POSITION_BIAS,
    CONTEXT,
    ROUTES,
    STATE_KEYS, /* all heads', of a recurrent state, here and below */
    STATE_VALUES,
    STATE_HEADS,
    STATE_CONV,
    STATE_CHANNELS,
    STATE_CONV_KEYS,
    STATE_GATE_INPUT, /* what gates and decays are made of: the stream, or a vector of STATE_LOW */
    STATE_LOW,
    STATE_KEY,
    STATE_RATES,
    STATE_SKIPS,
    STATE_KEY_INPUT, /* what keys and queries are made of: the stream, or values */
    STATE_DECAY_INPUT,
    STATE_DECAYS, /* one for each head, or for each key */
    STATE_NORM,   /* of one head's values, or of all */
    N_WIDTHS
};

enum condition {
    ALWAYS,
    UNTIED,
    HEAD_BIAS,
    LAYER_NORM,
    MIXES_BOTH, /* norms stand on both sides of it */
    FEEDS_BOTH,
    LAYER_SCALE,
    MIXES, /* a layer with attention, or a state in its place */
    FEEDS, /* ... with a norm of its feed-forward */
    FFN_LAYER_NORM,
    ATTENDS, /* ... of attention */
    SHARED_KEYS,
    KEY_NORMED,
    COMPRESSES, /* ... with entries, */
    CHOOSES,    /* ... of which it chooses */
    MANY_STREAMS,
    ATTN_GATE,
    RECURRENT, /* a layer with a state in its place */
    STATE,     /* ... that is a matrix of each head, */
    BETA,      /* by the gated delta rule: DeltaNet's */
    KDA,       /* or this, */
    SELECT,    /* Mamba's, */
    SKIPS,     /* or Mamba-2's */
    DECAY_DOWN,
    STATE_NORMED,
    SHORT_CONV, /* ... that is the inputs of a convolution */
    CONV_BIAS,
    ORDINARY,   /* attention that is not latent */
    HAS_VALUES, /* ... with a matrix for values */
    VALUES_BIAS,
    LATENT,
    LATENT_Q, /* ... with queries out of a vector of their own */
    INDEXED,  /* ... to positions that the layer chooses */
    SCORES,   /* ... or entries */
    QKV_BIAS,
    QK_NORM,
    SINKS,
    O_BIAS,
    POSITION_BUCKETS, /* the first layer of a stack */
    LEARNT,
    LEARNT_MORE,
    FINAL_NORM,
    FINAL_LAYER_NORM,
    LAST_PROJECTION,
    ENCODER, /* there is one */
    CROSS,   /* attention to its output */
    DENSE_LAYER,
    DENSE_GATE,
    DENSE_BIAS,
    ROUTED, /* a layer with experts and a router */
    ROUTER_BIAS,
    OWN_NORMS,
    EXPERT_SCALE,
    CHOICE_BIAS,
    STATIC, /* ... and a table in its place */
    SHARED,
    SHARED_HAS_GATE, /* a matrix, of its feed-forward */
    SHARED_GATE,
    BYPASS,
    AHEAD, /* a layer that drafts */
    EXPERT_GATE,
    EXPERT_BIAS,
    EXPERT_GATE_BIAS,
    N_CONDITIONS
};

enum { MOE_NO_LAYER = MOE_MAX_LAYERS }; /* of what is an expert's, of any layer */

/* The width, and whether the condition holds; of a layer, or of none (MOE_NO_LAYER). */
uint32_t moe_tensor_width(const struct moe_config *c, enum width which, uint32_t layer);
bool moe_tensor_holds(const struct moe_config *c, enum condition condition, uint32_t layer);

#endif
