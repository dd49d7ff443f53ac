/*
 * Trace (moe-trace(5)): what routers chose and what was predicted, token by token, so that any
 * strategy can be replayed without the model.
 *
 * A trace holds sequences (documents, or turns of a conversation), each a run of tokens: first
 * those of the prompt, then the decoded ones. For each token and MoE layer there are the chosen
 * experts with their weights; where scores are kept, also the router's next-best experts and each
 * predictor's best ones, with their probabilities. What follows from the choices (the token
 * before, paths) is not stored.
 *
 * Where the model has an encoder the prompt is the source: its tokens have only the encoder's
 * layers, those of the target only the decoder's.
 *
 * Written front to back, read front to back with memory for one frame of tokens. Layers are MoE
 * layers, numbered from 0.
 */
#ifndef MOE_PROFILE_TRACE_H
#define MOE_PROFILE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "model/config.h"
#include "profile/statistics.h"

enum {
    MOE_TRACE_VERSION = 1,
};

/* Those that apply a router to something: as a mask of 1 << enum moe_predictor. */
enum {
    MOE_TRACE_PREDICTORS = 1 << MOE_PREDICT_GATE_1 | 1 << MOE_PREDICT_GATE_2 |
                           1 << MOE_PREDICT_GATE_3 | 1 << MOE_PREDICT_ATTN |
                           1 << MOE_PREDICT_ATTN_1 | 1 << MOE_PREDICT_RESIDUAL_1 |
                           1 << MOE_PREDICT_RESIDUAL_2 | 1 << MOE_PREDICT_RESIDUAL_3
};

struct moe_trace_shape {
    uint32_t n_layers, n_experts, top_k;
    uint32_t keep;       /* scores kept of the router and of each predictor; 0: choices only */
    uint32_t predictors; /* mask; 0 where keep is 0 */
    uint32_t n_variants; /* precisions of experts, best first; 0: sizes are not known */
    char variants[MOE_MAX_VARIANTS][MOE_NAME_BYTES];
    /* [n_variants][n_layers][n_experts] bytes of an expert in memory; 0: no such variant */
    const uint64_t *expert_bytes;
    uint64_t source_fingerprint; /* of the model (pack/pack.h); 0: not one of ours */
    uint32_t n_encoder; /* of the layers, the encoder's, the first ones; 0: there is none */
    /* [n_layers] layers that choose experts by the token, which are known when the token is:
     * nothing predicts them. */
    uint8_t is_static[MOE_MAX_LAYERS];
    bool has_ids;         /* of tokens; imported and synthesized traces have none */
    struct moe_loop loop; /* of the layers, which are visits (base/loop.h) */
};

struct moe_trace_totals {
    uint64_t sequences, tokens, prompt_tokens;
};

/* Scores deep enough for every strategy: twice top_k, and the quarter of the experts that is
 * above the 75th percentile. */
uint32_t moe_trace_default_keep(uint32_t n_experts, uint32_t top_k);
/* Whether it predicts a layer: there are as many before it in its encoder or decoder, and it has a
 * router. */
bool moe_trace_predicts(const struct moe_trace_shape *shape, enum moe_predictor predictor,
                        uint32_t layer);
static inline uint64_t moe_trace_expert_bytes(const struct moe_trace_shape *shape, uint32_t variant,
                                              uint32_t layer, uint32_t expert)
{
    return shape
        ->expert_bytes[((uint64_t)variant * shape->n_layers + layer) * shape->n_experts + expert];
}

/* ---- Writing ----
 * create; for each sequence begin, then add and put by turns; commit or abort. Saved on the way, a
 * trace survives the process and can be continued.
 */
struct moe_trace_writer;
struct moe_trace;

/* `shape` is copied. Nothing is at `path` before the commit. MOE_ERR_USAGE: a shape that no trace
 * can have. */
int moe_trace_create(struct moe_trace_writer **out, const char *path,
                     const struct moe_trace_shape *shape, struct moe_err *err);
/* Bytes that a writer takes when at most `most` tokens are added at once, if moe_trace_reserve
 * allocates everything before. */
uint64_t moe_trace_writer_bytes(const struct moe_trace_shape *shape, uint32_t most);
int moe_trace_reserve(struct moe_trace_writer *w, uint32_t most, struct moe_err *err);
/* A new sequence; one without tokens is not written. */
int moe_trace_begin(struct moe_trace_writer *w, struct moe_err *err);
/* n further tokens, the first n_prompt of them the prompt's (0 once tokens were decoded). Those
 * added before are complete and may be written. */
int moe_trace_add(struct moe_trace_writer *w, uint32_t n, uint32_t n_prompt, struct moe_err *err);
/* The ids of tokens [first, first + n) of the sequence, all of the last add; 0 until then. Nothing
 * where the shape has none. */
void moe_trace_put_ids(struct moe_trace_writer *w, uint32_t first, uint32_t n, const uint32_t *ids);
/* What `layer` did with tokens [first, first + n) of the sequence, all of the last add. Of `seen`
 * the choices, weights and (of all predictors that the shape names) predictions, scores before
 * softmax, are taken; `router`: probabilities [n][router_stride], needed where scores are kept. A
 * layer that is not put was not computed for the token, which imported traces have. */
void moe_trace_put(struct moe_trace_writer *w, uint32_t layer, uint32_t first, uint32_t n,
                   const struct moe_layer_observation *seen, const float *router,
                   uint64_t router_stride);
/* Between sequences: publishes those written as a trace at the writer's path, which stays whatever
 * happens from then on and grows with what is written further. */
int moe_trace_save(struct moe_trace_writer *w, struct moe_err *err);
/* Goes on with what moe_trace_save left, opened by moe_trace_open_part: its first sequences, as
 * many as `until` says, are checked, what lies behind them is cut off. It has its origins. After
 * success `from` may only be closed. MOE_ERR_USAGE: another shape, or it does not hold just these.
 */
int moe_trace_continue(struct moe_trace_writer **out, struct moe_trace *from,
                       const struct moe_trace_shape *shape, const struct moe_trace_totals *until,
                       struct moe_err *err);
/* Says what the trace is made from; before the first sequence. MOE_ERR_USAGE: more than a trace can
 * say. */
int moe_trace_set_origins(struct moe_trace_writer *w, const struct moe_origins *origins,
                          struct moe_err *err);
/* Both end the writer; NULL is fine for abort. */
int moe_trace_commit(struct moe_trace_writer *w, struct moe_err *err);
void moe_trace_abort(struct moe_trace_writer *w);

/* ---- Reading ---- */

/* Whether the file begins like a trace. */
bool moe_trace_is(const char *path);

/* Checks the header and the sizes of experts; the rest is checked as it is read. MOE_ERR_FORMAT:
 * damaged, cut off or not a trace; MOE_ERR_VERSION: of another version. */
int moe_trace_open(struct moe_trace **out, const char *path, struct moe_err *err);
/* The same of what moe_trace_save left, though more may follow, half-written. Only for origins and
 * shape, and for moe_trace_continue. */
int moe_trace_open_part(struct moe_trace **out, const char *path, struct moe_err *err);
/* Has frames of tokens stay in memory once they are read, as far as `bytes` go, for this reader and
 * those of moe_trace_another from now on: what is read again is not decompressed again. */
int moe_trace_keep(struct moe_trace *t, uint64_t bytes, struct moe_err *err);
/* Another reader of the same file, before its first token: for another thread. */
int moe_trace_another(struct moe_trace **out, const struct moe_trace *t, struct moe_err *err);
void moe_trace_close(struct moe_trace *t);

const struct moe_trace_shape *moe_trace_shape(const struct moe_trace *t);
const struct moe_trace_totals *moe_trace_totals(const struct moe_trace *t);
uint64_t moe_trace_file_bytes(const struct moe_trace *t);
/* None for imported and drawn traces. */
const struct moe_origins *moe_trace_origins(const struct moe_trace *t);

struct moe_trace_token {
    uint64_t sequence; /* from 0 */
    uint32_t index;    /* in the sequence, from 0 */
    uint32_t id;       /* in the vocabulary; 0 where the trace has none */
    bool prompt;
};

/* One layer of one token. Arrays are falling by score, the chosen experts in the router's order. */
struct moe_trace_step {
    /* The chosen [top_k], then (where scores are kept) the router's next best: max(keep, top_k) in
     * all. NULL: the layer was not computed for this token. */
    const uint16_t *experts;
    const float *weights; /* [top_k] as the model used them */
    const float *scores;  /* probabilities of `experts`; NULL where none are kept */
    struct {
        const uint16_t *experts; /* [keep]; NULL: not kept, or nothing to look back at */
        const float *scores;     /* [keep] probabilities */
    } predicted[MOE_N_PREDICTORS];
};

/* The next token, NULL after the last. Tokens come sequence by sequence in order. Allocates
 * nothing. After a failure only rewind and close are allowed. */
int moe_trace_next(struct moe_trace *t, const struct moe_trace_token **token, struct moe_err *err);
/* A layer of the token that moe_trace_next gave. Pointers hold until moe_trace_next. */
struct moe_trace_step moe_trace_step(const struct moe_trace *t, uint32_t layer);
/* Before the first token again, and everything is wanted. */
void moe_trace_rewind(struct moe_trace *t);

/* Reads all of it, and rewinds. */
int moe_trace_check(struct moe_trace *t, struct moe_err *err);

/* What is wanted from here to the next rewind; the rest is neither decoded nor checked, which saves
 * most of the time that reading takes. parts: predictors as a mask of 1 << enum moe_predictor, and
 * MOE_TRACE_NEXT_BEST; of others steps have none. Sequences: each `every`-th from `first` on (every
 * 0: all), and only their tokens are given. */
#define MOE_TRACE_NEXT_BEST (1u << 31) /* the router's next best, and its scores */
void moe_trace_want(struct moe_trace *t, uint32_t parts, uint64_t first, uint32_t every);

/* ---- Merging ---- */

/* Writes to `to` the sequences of several traces: of shards of one run (without `partial` all of
 * them) in the order of that run, or of whole runs over different texts one after the other. The
 * sum of all shards is byte by byte the trace of the run had it never been cut. Each is read and
 * checked first; all are open at once, with memory for one frame. MOE_ERR_USAGE names the one that
 * does not belong to the others, would count twice, is unfinished, or does not say what it is. */
int moe_trace_merge(const char *const *paths, uint32_t n, const char *to, bool partial,
                    struct moe_err *err);

/* ---- Importing ---- */

/* Reads a routing trace of another engine (moe-trace(5) names the formats) and writes it to `to`.
 * MOE_ERR_FORMAT gives its line. */
int moe_trace_import(const char *from, const char *to, struct moe_err *err);

/*
 * Excerpts: which tokens of a trace are used where all of them would take too long. Sequences are
 * whole and from all over the trace, for texts of one kind are often next to each other.
 */

struct moe_excerpt {
    uint32_t every;      /* 3: every third sequence, from the first one on; 0: all */
    uint64_t max_tokens; /* most tokens; 0: all */
    uint64_t first;      /* the sequence to begin with */
    uint32_t cut;        /* most tokens of a sequence; 0: all */
    uint64_t warm;       /* its first sequences, as many, only fill caches */
    uint32_t cold;   /* a simulation replays as many of its sequences, from all over it, each from
                        the cache's first contents; 0: all, one after the other */
    uint32_t prompt; /* a replay makes one prompt of this length of it, text after text, repeated if
                        it is too short, and decodes nothing; 0: as recorded */
};

/* Whether a sequence of the excerpt only fills caches. */
static inline bool moe_excerpt_warms(struct moe_excerpt e, uint64_t sequence)
{
    return (sequence - e.first) / (e.every ? e.every : 1) < e.warm;
}

/* Returns an excerpt of at most max_tokens; 0: all. */
struct moe_excerpt moe_excerpt_of(const struct moe_trace *trace, uint64_t max_tokens);

/* The i-th sequence by itself of those that e.cold asks for; false: there are not as many. */
bool moe_excerpt_one(const struct moe_trace *trace, struct moe_excerpt e, uint32_t i,
                     struct moe_excerpt *one);

/* Call it before the first token; parts: what to read of each token (moe_trace_want). */
void moe_excerpt_begin(struct moe_trace *trace, struct moe_excerpt excerpt, uint32_t parts);
/* Like moe_trace_next, of the excerpt. *taken counts its tokens; begin with 0. */
int moe_excerpt_next(struct moe_trace *trace, struct moe_excerpt excerpt, uint64_t *taken,
                     const struct moe_trace_token **token, struct moe_err *err);

#endif
