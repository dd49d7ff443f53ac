/*
 * Messages of ranks: what rank 0 asks of another, and what that answers. All begin with the same
 * head; numbers are as the machine has them (a rank whose machine has them otherwise is refused
 * when it says hello). Plain layouts, for ranks.c and the rank that answers (infer/rank_worker.c).
 */
#ifndef MOE_RANKS_MESSAGE_H
#define MOE_RANKS_MESSAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"
#include "sched/strategy.h"

enum { MOE_RANKS_PROTOCOL = 0x4d4f4507 }; /* also tells byte orders apart */

enum moe_rank_kind {
    /* From rank 0. */
    MOE_RANK_BEGIN = 1, /* what a pass is like, but for its rows */
    MOE_RANK_SHARE,     /* which experts, or layers, are whose, and what a pass is like */
    MOE_RANK_TABLE,     /* the blocks of the KV cache that sequences have */
    MOE_RANK_COPY,      /* a block of it receives the cells of another */
    MOE_RANK_STATES,    /* recurrent states receive those of others */
    MOE_RANK_ATTEND,    /* inputs of a layer's attention: compute it */
    MOE_RANK_LAYERS,    /* what comes into your layers: compute them, and hand on what leaves them
                           to the rank with the next ones; also from rank to rank */
    MOE_RANK_ASK,       /* a layer's choices and their inputs: compute those of your experts */
    MOE_RANK_HINT,      /* predictions for layers to come */
    MOE_RANK_TELL,      /* what have you done so far? */
    MOE_RANK_DESCRIBE,  /* measure your machine, and send what it is like */
    MOE_RANK_ECHO,      /* send this message back */
    MOE_RANK_PIECE,     /* bytes of rank 0's file that were asked for */
    MOE_RANK_END,
    /* To rank 0. */
    MOE_RANK_HELLO,
    MOE_RANK_ROOM,    /* for experts */
    MOE_RANK_FETCH,   /* send bytes of your file; 0: no more */
    MOE_RANK_LOADING, /* n of total bytes */
    MOE_RANK_READY,
    MOE_RANK_OUTPUTS, /* of layers that were handed on, without rows */
    MOE_RANK_ALIVE,   /* at work on what was asked */
    MOE_RANK_FAILED,
    MOE_RANK_FIGURES,
};

struct moe_rank_head {
    uint32_t kind;
    uint32_t moe;           /* the layer, among those with experts; ATTEND, LAYERS: of all; COPY,
                               STATES: from */
    uint32_t n_rows;        /* ASK, ATTEND, LAYERS: of the pass; OUTPUTS: of outputs; SHARE: at
                               most in a pass */
    uint32_t n_over;        /* ASK: of the layer request; LAYERS: messages TABLE, COPY and STATES
                               that came before it */
    uint32_t n;             /* HINT: predictions; SHARE: experts; TABLE: entries; COPY, STATES: to;
                               LAYERS: the end of all these; OUTPUTS, of LAYERS: activations */
    uint32_t n_pass;        /* ASK: rows that the pass began with */
    uint64_t pass, request; /* their numbers; OUTPUTS: of what they answer */
    uint8_t prefill, first; /* ASK, LAYERS: the pass is of a prompt; its sequence begins */
    uint8_t spare[6];
};

/* What a rank may take, in bytes. */
struct moe_rank_budget {
    uint64_t total;                    /* 0: not known */
    uint64_t experts;                  /* named for these; 0: what the total leaves */
    uint32_t n_threads;                /* that compute there */
    char strategy[MOE_STRATEGY_BRIEF]; /* by which it has them; empty: none is named */
};

/* What a rank says of itself, behind the head of HELLO, ROOM, FETCH, LOADING, READY, FAILED. */
struct moe_rank_said {
    struct moe_rank_head head;
    uint32_t protocol;
    int32_t status;                /* MOE_OK, or why it cannot go on: `text` */
    uint64_t fingerprint;          /* of its pack */
    uint64_t room;                 /* ROOM: bytes that it has for experts */
    uint64_t done, total;          /* LOADING, FETCH: bytes */
    uint64_t offset, bytes;        /* FETCH: at most MOE_RANK_PIECE_BYTES */
    struct moe_rank_budget budget; /* HELLO */
    char program[16], host[64];
    char text[1024]; /* HELLO: its options, "--OPTION VALUE" a line; FAILED: why */
};

/* Behind the head of PIECE; the bytes follow. */
struct moe_rank_piece {
    struct moe_rank_head head;
    uint64_t file_bytes, directory; /* of rank 0's file; where its directory begins */
};

enum { MOE_RANK_PIECE_BYTES = 1 << 20 };

/* ... of what it has done, behind that of FIGURES. */
struct moe_rank_figures {
    struct moe_rank_head head;
    uint64_t activations, hits, misses, loads, bytes_read; /* as struct moe_counts has them */
    uint64_t resident_bytes, peak_rss_bytes;
    uint64_t n_experts;           /* that it has */
    uint64_t n_attends, n_layers; /* layers whose attention it has, or all of which */
    uint64_t kv_bytes;            /* of their KV cache */
    double busy_seconds;          /* it computed, or waited for its disk */
};

/* What sizes depend on. */
struct moe_rank_shape {
    uint32_t n_layers, n_experts, top_k, batch;
    uint64_t stride; /* floats of a row */
    /* The KV cache, where layers are shared out: entries of its table, 0 where they are not, and
     * the last of these, which say where windows of blocks lie; blocks, positions, sequences. */
    uint32_t n_table, n_slots, kv_blocks, context, n_sequences, kv_kind;
    uint32_t n_whole;                 /* layers that are shared out as a whole: the model's, or 0 */
    uint32_t n_snapshots, takes_back; /* of recurrent states */
    uint32_t spare;
};

enum {
    MOE_RANK_ROWS_WITHIN = 16, /* rows of a pass that come in the message; more have their lane */
    MOE_RANK_HINTS = 4,        /* predictions at a time */
    MOE_RANK_OUTPUT_BYTES = 512 << 10, /* of a message of outputs, about */
};

/* Where the parts of an ASK begin, from its head on. */
struct moe_rank_ask {
    uint32_t *chosen, *sequences; /* [n_rows][top_k], [n_rows] */
    float *weights;               /* [n_rows][top_k] */
    uint8_t *over;                /* [n_rows][top_k], where n_over > 0 */
    float *x;                     /* [n_rows][stride]; NULL: it comes by itself */
    uint64_t bytes;               /* of the message */
};

static inline struct moe_rank_ask moe_rank_ask_at(void *message, const struct moe_rank_shape *s,
                                                  uint32_t n_rows, bool has_over)
{
    struct moe_arena arena = {.base = message,
                              .size = UINT64_MAX >> 1,
                              .used = sizeof(struct moe_rank_head),
                              .packed = true};
    struct moe_rank_ask a;
    const uint64_t pairs = (uint64_t)n_rows * s->top_k;
    arena.used = moe_round_up(arena.used, MOE_ALIGN);
    a.chosen = moe_arena_take(&arena, pairs, sizeof *a.chosen);
    a.weights = moe_arena_take(&arena, pairs, sizeof *a.weights);
    a.sequences = moe_arena_take(&arena, n_rows, sizeof *a.sequences);
    a.over = moe_arena_take(&arena, has_over ? pairs : 0, 1);
    a.x = n_rows <= MOE_RANK_ROWS_WITHIN ? moe_arena_take(&arena, n_rows * s->stride, sizeof *a.x)
                                         : NULL;
    a.bytes = arena.used;
    return a;
}

/* The same for an ATTEND, or LAYERS. */
struct moe_rank_row {
    uint32_t sequence, position, length, token; /* as struct moe_row has them */
};
struct moe_rank_attend {
    struct moe_rank_row *rows; /* [n_rows] */
    float *x;                  /* [n_rows][stride]; NULL: it comes by itself */
    uint64_t bytes;
};

static inline struct moe_rank_attend
moe_rank_attend_at(void *message, const struct moe_rank_shape *s, uint32_t n_rows)
{
    struct moe_arena arena = {.base = message,
                              .size = UINT64_MAX >> 1,
                              .used = moe_round_up(sizeof(struct moe_rank_head), MOE_ALIGN),
                              .packed = true};
    struct moe_rank_attend a = {.rows = moe_arena_take(&arena, n_rows, sizeof *a.rows)};
    a.x = n_rows <= MOE_RANK_ROWS_WITHIN ? moe_arena_take(&arena, n_rows * s->stride, sizeof *a.x)
                                         : NULL;
    a.bytes = arena.used;
    return a;
}

/* The same for outputs, of experts, attention or layers: the rows' places among the request's, and
 * the rows. */
struct moe_rank_outputs {
    uint32_t *places;
    float *rows; /* [n][stride] */
    uint64_t bytes;
};

static inline uint32_t moe_rank_output_rows(const struct moe_rank_shape *s)
{
    uint64_t n = MOE_RANK_OUTPUT_BYTES / (s->stride * sizeof(float));
    return n < 16 ? 16 : n > 64 ? 64 : (uint32_t)n;
}

static inline struct moe_rank_outputs
moe_rank_outputs_at(void *message, const struct moe_rank_shape *s, uint32_t n)
{
    const uint64_t places = moe_round_up(sizeof(struct moe_rank_head), MOE_ALIGN);
    const uint64_t rows = places + moe_round_up(moe_rank_output_rows(s) * 4, MOE_ALIGN);
    struct moe_rank_outputs o = {.bytes = rows + n * s->stride * sizeof *o.rows};
    if (message) { /* else it is measured */
        o.places = (uint32_t *)(void *)((uint8_t *)message + places);
        o.rows = (float *)(void *)((uint8_t *)message + rows);
    }
    return o;
}

/* ... and for predictions, one after the other. */
struct moe_rank_hint {
    uint32_t *of;                 /* [2] the layer among those with experts, and the rows */
    float *scores, *unimportance; /* [n_experts] */
};

static inline uint64_t moe_rank_hint_bytes(const struct moe_rank_shape *s)
{
    return MOE_ALIGN + 2 * moe_round_up(s->n_experts * sizeof(float), MOE_ALIGN);
}

static inline struct moe_rank_hint moe_rank_hint_at(void *message, const struct moe_rank_shape *s,
                                                    uint32_t i)
{
    uint8_t *at = (uint8_t *)message + moe_round_up(sizeof(struct moe_rank_head), MOE_ALIGN) +
                  i * moe_rank_hint_bytes(s);
    struct moe_rank_hint h = {.of = (uint32_t *)(void *)at};
    h.scores = (float *)(void *)(at + MOE_ALIGN);
    h.unimportance =
        (float *)(void *)(at + MOE_ALIGN + moe_round_up(s->n_experts * sizeof(float), MOE_ALIGN));
    return h;
}

static inline uint64_t moe_rank_table_bytes(const struct moe_rank_shape *s)
{
    return moe_round_up(sizeof(struct moe_rank_head), MOE_ALIGN) +
           (uint64_t)s->n_table * sizeof(uint32_t);
}

/* Room for the largest message of a lane to a rank, and of an answer. */
static inline uint64_t moe_rank_ask_room(const struct moe_rank_shape *s)
{
    const uint32_t few = s->batch < MOE_RANK_ROWS_WITHIN ? s->batch : MOE_RANK_ROWS_WITHIN;
    const uint64_t most = moe_rank_ask_at(NULL, s, s->batch, true).bytes;
    const uint64_t with_rows = moe_rank_ask_at(NULL, s, few, true).bytes;
    const uint64_t ask = most > with_rows ? most : with_rows;
    if (s->n_table == 0)
        return ask;
    const uint64_t sizes[] = {ask, moe_rank_table_bytes(s),
                              moe_rank_attend_at(NULL, s, s->batch).bytes,
                              moe_rank_attend_at(NULL, s, few).bytes};
    uint64_t room = 0;
    for (int i = 0; i < 4; i++)
        room = sizes[i] > room ? sizes[i] : room;
    return room;
}

static inline uint64_t moe_rank_hints_room(const struct moe_rank_shape *s)
{
    return MOE_ALIGN + MOE_RANK_HINTS * moe_rank_hint_bytes(s);
}

static inline uint64_t moe_rank_answer_room(const struct moe_rank_shape *s)
{
    const uint64_t outputs = moe_rank_outputs_at(NULL, s, moe_rank_output_rows(s)).bytes;
    const uint64_t said = sizeof(struct moe_rank_said);
    return moe_round_up(outputs > said ? outputs : said, MOE_ALIGN);
}

/* What a pass's outputs take in the wire at rank 0 until it looks for them: all of them, where the
 * wire sends messages of their length, at most at_once bytes, before that. Other ranks listen
 * before something is sent to them. */
static inline uint64_t moe_rank_unread_bytes(const struct moe_rank_shape *s, uint64_t at_once)
{
    const uint64_t n = (uint64_t)s->batch * (s->n_whole ? 1 : s->top_k);
    const uint64_t each = moe_rank_output_rows(s);
    const uint64_t message = moe_rank_outputs_at(NULL, s, (uint32_t)each).bytes;
    return message <= at_once ? (n + each - 1) / each * message : 0;
}

#endif
