/*
 * Working memory of a session whose stages run on the processor (stages_cpu*.c): the buffers of one
 * pass, the KV cache and that of sources. Private to these stages.
 *
 * Widths are rounded up to whole panels (16) or cache lines, so that kernels may write whole
 * panels;
 * `*_stride` is the distance in floats from one row to the next.
 */
#ifndef MOE_CPU_CPU_WORK_H
#define MOE_CPU_CPU_WORK_H

#include "kern/inputs.h"
#include "layer/compressed.h"
#include "layer/kv.h"
#include "layer/recurrent.h"
#include "layer/session.h"

/* A column tile of attention: up to 8 (row, head) pairs of one sequence that share a kv head. */
struct moe_attn_tile {
    uint32_t first_row; /* of its run of rows */
    uint32_t first, n;  /* columns: row = first_row + column / group, head = column % group */
};

/* What attention computes, from its inputs to its output. */
struct cpu_attention {
    struct moe_attention_strides stride;
    float *q_down;   /* [batch][q_rank] */
    float *q;        /* [batch][heads * head_dim] */
    float *k, *v;    /* [batch][cache heads * key or value width]; latent attention also puts
                        kv_down's output into v, so rows of v are wider there */
    float *queries;  /* [batch][heads * key width]: q, except in latent attention */
    float *attended; /* [batch][heads * cached value width]: out, except in latent attention */
    float *out;      /* [batch][heads * value_dim] */
    float *gate;     /* [batch][heads * value_dim], where outputs have one */
    struct moe_inputs from_q_down; /* q_down */
    struct moe_inputs from_out;    /* out */
    float *low; /* [batch][low_stride] of shared keys: what groups of heads put out */
    uint64_t low_stride;
    struct moe_inputs from_low;   /* low */
    struct moe_act *head_acts;    /* [heads] of latent attention: inputs of k_up, then of v_up; of
                                     shared keys [out_groups] inputs of out_down */
    struct moe_mm *head_products; /* as many */
    struct moe_attn_tile *tiles;
    float *scratch; /* [threads][scratch_floats] */
    uint64_t scratch_floats;
};

/* Of layers whose rows see what an indexer chooses (sparse.c). */
struct cpu_index {
    uint64_t q_stride, k_stride, weights_stride;
    float *q;       /* [batch][index_heads * index_dim] its queries */
    float *k;       /* [batch][index_dim] */
    float *weights; /* [batch][index_heads] how much each head counts */
    /* Where the context is longer than what a row sees: */
    uint32_t top;         /* positions that a row sees; 0: all */
    float *tiles;         /* [index_heads / 8][index_dim][8] a row's queries side by side */
    float *scores;        /* [context] of one row */
    float *scratch;       /* [threads][8][chunk] */
    uint32_t *places;     /* [batch][top] the positions that a row of the pass sees, rising */
    struct moe_row *of;   /* [batch] the rows that these are of */
    struct moe_kv chosen; /* keys and values of one row's */
    uint32_t *table;      /* its */
};

/* A feed-forward's, from the router to the outputs before they are added. */
struct cpu_feed_forward {
    uint64_t stride, router_stride;
    float *probabilities;        /* [batch][router_stride] */
    uint32_t *seen_chosen;       /* [batch][top_k] of a router before attention, as it chose: */
    float *seen_weights;         /* ... for observers; not without one */
    float *router_scratch;       /* [threads][2 * router_stride] */
    float *shared_scale;         /* [batch][16] */
    float *bypass;               /* [batch][states' stride] its products; not unless soft_bypass */
    float *gate, *up;            /* [max(batch, top_k)][stride] */
    struct moe_inputs gathered;  /* the states' xn of an expert's rows */
    struct moe_inputs from_gate; /* gate, after the activation */
    struct moe_inputs *single;   /* [top_k] one expert's feed-forward each, in decode */
};

/* Of a layer with a recurrent state. */
struct cpu_recurrent {
    uint64_t values_stride, heads_stride, decay_stride, low_stride;
    float *mixed;      /* [batch][states.stride] queries, keys, values */
    float *gate, *out; /* [batch][values_stride] */
    float *beta;       /* [batch][heads_stride]; of Mamba-2 steps */
    float *decay;      /* [batch][decay_stride], by head, of KDA by key, of Mamba by value */
    float *low[2];     /* [batch][low_stride] of KDA and Mamba: what gates and decays are made of */
    struct moe_inputs from_low[2];
    struct moe_inputs from_out; /* out */
};

/* Of a layer that compresses. */
struct cpu_entries {
    uint64_t made_stride, queries_stride, weights_stride, scratch_stride;
    float *made;         /* [batch][made_stride] as struct moe_compressed_row says */
    float *queries;      /* [batch][queries_stride] the indexer's */
    float *weights;      /* [batch][weights_stride] what each head of them counts */
    float *scratch;      /* [threads][scratch_stride] of a row's choice */
    uint32_t *chosen;    /* [batch][index_top] by rising number */
    uint32_t *n_chosen;  /* [batch] */
    uint32_t *completed; /* [batch] rows that complete a group */
};

/* Of several streams. */
struct cpu_streams {
    uint64_t stride, mix_stride;
    float *streams;             /* [batch][n_streams][hidden], rows stride apart */
    float *normed;              /* the same under a norm */
    float *mix;                 /* [batch][mix_stride] in, out, each into each */
    struct moe_inputs from_all; /* normed */
};

enum { CPU_JOINED_ROWS = 32 }; /* joined at a time */

struct cpu_work {
    uint8_t *block; /* everything but the KV caches, the session's states included */
    uint64_t block_bytes;
    struct moe_kv kv, source_kv;
    struct moe_recurrent states;
    struct cpu_recurrent recurrent;
    struct moe_compressed compressed;
    struct cpu_entries entries;
    struct cpu_streams streams;
    uint32_t *source_table; /* [n_sources][source_kv.per_sequence] */
    /* [CPU_JOINED_ROWS][joined_stride] of a layer that drafts; where there is one */
    float *joined;
    uint64_t joined_stride;
    struct moe_inputs from_joined;
    float *sum; /* [batch][states' stride] a block's output before it is added to the stream */
    struct cpu_attention attention;
    struct cpu_index index;
    struct cpu_feed_forward ff;
    double reached_at; /* for the timeline: where the last span ended */
};

static inline struct cpu_feed_forward *cpu_feed_forward(const struct moe_session *s)
{
    return &((struct cpu_work *)s->device)->ff;
}

/* Bytes that it takes, KV caches included; UINT64_MAX on overflow. o: complete (no member 0 that
 * has a default). */
uint64_t cpu_work_bytes(const struct moe_config *config, const struct moe_session_options *o);
/* Also carves the session's states. The sizes do not overflow. */
int cpu_work_open(struct cpu_work **out, struct moe_states *states, const struct moe_config *config,
                  const struct moe_session_options *o, struct moe_err *err);
void cpu_work_close(struct cpu_work *w); /* NULL is fine */

#endif
