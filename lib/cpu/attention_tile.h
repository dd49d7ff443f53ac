/*
 * A tile of attention (attention.c): up to 8 queries that share keys, at work on one chunk after
 * the other. Internal to the files of attention.
 */
#ifndef MOE_CPU_ATTENTION_TILE_H
#define MOE_CPU_ATTENTION_TILE_H

#include "cpu/stages_cpu.h"
#include "kern/kern.h"

enum { CHUNK = MOE_ATTENTION_CHUNK };

struct attend {
    const struct moe_kv *kv;
    const struct cpu_attention *work;
    float scale;
    uint32_t layer, group; /* heads that share a kv head */
    uint32_t window;       /* 0: all positions */
    bool window_chunks;    /* it begins at its multiples */
    const float *sinks;    /* [heads] or NULL */
    const struct moe_row *rows;
    uint32_t first;                   /* the row of the pass that rows[0] is */
    bool encoder;                     /* rows see their source */
    const struct moe_prompt *prompts; /* of sequences, whose prefixes are seen; NULL: none */
    const float *bias;    /* of distance 0 and head 0, or NULL; distances lie side by side */
    uint64_t bias_stride; /* from head to head */
    /* Attention to sources: the one of each sequence, whose keys they are; NULL: to the text. */
    const uint32_t *attends;
    const struct moe_encoded *sources;
    const struct moe_compressed *compressed; /* of a layer that compresses, or NULL */
    const struct cpu_entries *chosen;        /* ... of which rows chose some, or NULL */
};

/* Positions [begin, end), or places in a chunk; empty: 0, 0. */
struct span {
    uint32_t begin, end;
};

/* A head of a row, and its chunks joined so far. */
struct column {
    uint32_t row, head;
    float largest, sum; /* M, S; sum 0: no chunk yet */
};

/* Columns that share keys, at work. */
struct tile {
    uint32_t n, nt; /* columns; with those that fill it up and see nothing */
    struct column cols[MOE_TILE];
    struct span sees[MOE_TILE]; /* positions */
    uint32_t sequence, kv_head;
    float *query;  /* [key_dim][nt] */
    float *scores; /* [nt][CHUNK] */
    float *shares; /* [CHUNK][nt] e, from the first panel that a column sees on; nt > 1 */
    float *part;   /* [nt][value_padded] a chunk's o */
    float *out;    /* [nt][value_padded] O */
};

/* A chunk's keys, in panels of 16 positions, and values, in panels of 16 dimensions whose rows are
 * value_stride bytes apart. */
struct chunk {
    const uint8_t *keys, *values;
    uint64_t value_stride;
};

/* The logarithm of the smallest power of two that is at least n. */
int moe_tile_log2(uint32_t n);
/* The smallest span that covers those that are not empty. */
struct span moe_span_hull(const struct span *spans, uint32_t n);

/* Joins a chunk of a column, its o at `part`, to what was joined to `out` before. */
void moe_attend_join(struct column *col, float largest, float sum, float *part, uint32_t n,
                     float *out);
/* Joins a chunk to what the tile's columns have. base: the position of its first place; seen: [nt]
 * the places that each column sees. */
void moe_attend_chunk(const struct attend *a, struct tile *tile, const struct chunk *chunk,
                      uint32_t base, const struct span *seen);
/* The part of `sees` in the chunk that starts at position `base`, as places in it. */
struct span moe_span_in_chunk(struct span sees, uint32_t base);

/* Joins the entries that rows of a layer that compresses see (attention_entries.c). scratch: of
 * moe_attend_entries_floats. */
void moe_attend_entries(const struct attend *a, struct tile *tile, float *scratch);
uint64_t moe_attend_entries_floats(const struct moe_config *c);

#endif
