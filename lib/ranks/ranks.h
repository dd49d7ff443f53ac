/*
 * Ranks: the processes of one run, each with a share of the experts, or of the layers, in its own
 * budget of memory. Rank 0 runs the model; the others compute theirs for it (infer/rank_worker.h).
 *
 *     meet         each says who it is; another pack is refused
 *     begin        rank 0 says what passes will be like
 *     say_room     each says how much room it has
 *     divide       rank 0 gives each expert to a rank
 *     share        ... and tells the others, who load what is theirs, from their disks or from rank
 *                  0's (give, fetch)
 *     wait_ready   until they have
 *     for each pass: begin_pass; for each layer whose attention is elsewhere, or each rank with
 *                  layers: tell_table, begin_rows, send_rows, collect; for each layer with experts
 *                  elsewhere: ask, hint, collect
 *     close        the others end
 *
 * An expert's outputs have the same bits wherever it is computed, and rank 0 adds them in the
 * router's order: tokens are those of one process. Nothing is allocated after `share`; nothing
 * waits for ever: a rank that gives no sign for wire->patience seconds is an error.
 */
#ifndef MOE_RANKS_RANKS_H
#define MOE_RANKS_RANKS_H

#include "base/buf.h"
#include "base/progress.h"
#include "ranks/message.h"
#include "ranks/wire.h"
#include "sched/layer_request.h"
#include "sched/select.h"

struct moe_ranks;

/* Those that this process was started with; *out is NULL where it runs alone. As moe_wire_open. */
int moe_ranks_find(struct moe_ranks **out, struct moe_err *err);
/* Takes over the wire. */
int moe_ranks_open(struct moe_ranks **out, struct moe_wire *wire, struct moe_err *err);
/* NULL is fine. On rank 0 the others end, too: those that load stop. Where one does not answer any
 * more, all are ended at once, this process as well, with that exit status: the last call of a
 * program. */
void moe_ranks_close(struct moe_ranks *r, int exit_status);

struct moe_wire *moe_ranks_wire(const struct moe_ranks *r);
/* On rank 0: the name of a rank's machine, empty until the rank has said something. */
const char *moe_ranks_host(const struct moe_ranks *r, uint32_t rank);
/* Threads that compute here; 0: one for each processor that is this rank's. */
void moe_ranks_set_threads(struct moe_ranks *r, int n_threads);

/* Memory that rank 0 takes for the messages of n_ranks, but for what the wire takes. */
uint64_t moe_ranks_bytes(const struct moe_rank_shape *shape, uint32_t n_ranks);

/* ---- Before the first pass ---- */

/* Rank 0: waits for the hello of all. Another: says it. The pack's fingerprint; this rank's budget;
 * options: "--OPTION VALUE\n" of those that must be the same on all ranks, where both have a line
 * of it; VALUE is yes or no where there is none. MOE_ERR_USAGE: another pack, other options, or
 * another program; MOE_ERR_IO: no answer; or what another rank failed with. */
int moe_ranks_meet(struct moe_ranks *r, uint64_t fingerprint, const struct moe_rank_budget *budget,
                   const char *options, struct moe_err *err);
/* Rank 0: a rank's budget, its own too. */
const struct moe_rank_budget *moe_ranks_budget(const struct moe_ranks *r, uint32_t rank);
/* Rank 0, before it says any shape: moe_ranks_shape is this one, for sums of what others will take.
 */
void moe_ranks_suppose(struct moe_ranks *r, const struct moe_rank_shape *shape);
/* Rank 0: tells the others the shape of passes, but for their rows. Another: waits for that and
 * sets *shape, where its own model's layers and experts are. MOE_ERR_INTERRUPTED: rank 0 has ended.
 */
int moe_ranks_begin(struct moe_ranks *r, struct moe_rank_shape *shape, struct moe_err *err);
/* Says how many bytes of memory there are for experts; rank 0: waits until all have. */
int moe_ranks_say_room(struct moe_ranks *r, uint64_t room, struct moe_err *err);
/* ... and then: the bytes that a rank has said, its own too. */
uint64_t moe_ranks_room(const struct moe_ranks *r, uint32_t rank);
/* Rank 0: sets whose experts are whose, [n_keys][MOE_HOLDERS], and whose layers, [n_layers], or
 * NULL: none are shared out as a whole. Copies both. MOE_ERR_MEMORY. */
int moe_ranks_divide(struct moe_ranks *r, const uint8_t *holders, uint32_t n_keys,
                     const uint8_t *owners, uint32_t n_layers, struct moe_err *err);
/* Rank 0: tells the others, with the shape of passes. Another: as moe_ranks_begin. */
int moe_ranks_share(struct moe_ranks *r, struct moe_rank_shape *shape, struct moe_err *err);
/* On another rank, the shape that it was told last. */
const struct moe_rank_shape *moe_ranks_shape(const struct moe_ranks *r);
/* Who has each expert: [n_layers][n_experts][MOE_HOLDERS], once that is decided or known. */
const uint8_t *moe_ranks_holders(const struct moe_ranks *r);
/* Whose each layer of the model is, [n_layers]; NULL: none is shared out as a whole. */
const uint8_t *moe_ranks_owners(const struct moe_ranks *r);
/* Rank 0: sends the others what they ask for of the pack's file, until each says that it has all.
 * What one fails with is returned. */
int moe_ranks_give(struct moe_ranks *r, const struct moe_pack *pack,
                   const struct moe_progress *progress, struct moe_err *err);
/* Another, meanwhile: n <= MOE_RANK_PIECE_BYTES bytes at `offset` of that file, and what the file
 * is like (*file, which may be NULL). done, total: bytes that it has and will have, for people; n =
 * 0: it has all. MOE_ERR_INTERRUPTED: rank 0 has ended. */
int moe_ranks_fetch(struct moe_ranks *r, void *to, uint64_t n, uint64_t offset, uint64_t done,
                    uint64_t total, struct moe_rank_piece *file, struct moe_err *err);
/* Rank 0: waits until the others have loaded their experts. */
int moe_ranks_wait_ready(struct moe_ranks *r, const struct moe_progress *progress,
                         struct moe_err *err);

/* MOE_OK, or what failed because a rank does not answer: from then on all does. err may be NULL. */
int moe_ranks_status(const struct moe_ranks *r, struct moe_err *err);

/* ---- Passes, on rank 0 ---- */

/* A pass of n_rows begins; first: its sequence does. */
void moe_ranks_begin_pass(struct moe_ranks *r, uint32_t n_rows, bool prefill, bool first);
/* Asks for the outputs of the request's entries that are of kind MOE_ENTRY_ELSEWHERE, for rows
 * x[n_rows][stride], which stay until they are collected. */
int moe_ranks_ask(struct moe_ranks *r, const struct moe_layer_request *request, uint32_t n_rows,
                  const float *x, struct moe_err *err);
/* Tells the others, unless they know, the blocks of the KV cache that sequences have, and where
 * windows of blocks lie (NULL: in these): [shape.n_table] together, the same as long as n_changes
 * is. */
int moe_ranks_tell_table(struct moe_ranks *r, const uint32_t *table, const uint32_t *slots,
                         uint64_t n_changes, struct moe_err *err);
/* As moe_ranks_ask, for a layer's attention or for whole layers, in two steps. A message for n_rows
 * rows: its `rows` are to be filled in. Then it is sent to the rank that has layer `begin` of all,
 * with x[n_rows][stride], which has been sent when this returns. What these rows become is
 * collected: the layer's attention, or what leaves layer end - 1, from the rank that has that. */
int moe_ranks_begin_rows(struct moe_ranks *r, uint32_t n_rows, struct moe_rank_attend *message,
                         struct moe_err *err);
int moe_ranks_send_rows(struct moe_ranks *r, uint32_t rank, enum moe_rank_kind kind, uint32_t begin,
                        uint32_t end, uint32_t n_rows, const float *x, struct moe_err *err);
/* Has the others copy a block of the KV cache; or states of layers, whose errors come up in the
 * next pass. */
int moe_ranks_copy_block(struct moe_ranks *r, uint32_t from, uint32_t to, struct moe_err *err);
void moe_ranks_copy_states(struct moe_ranks *r, uint32_t from, uint32_t to);
/* Activations that others say they computed in whole layers, since this was last asked. */
uint64_t moe_ranks_take_activations(struct moe_ranks *r);
/* Hands predictions on. One that would have to wait is left out. */
int moe_ranks_hint(struct moe_ranks *r, const struct moe_prediction *predictions, uint32_t n,
                   struct moe_err *err);
/* Takes in outputs that have come: each where the request has its place in out[][stride]. *all: of
 * the request. Waits a moment where none has. */
int moe_ranks_collect(struct moe_ranks *r, float *out, bool *all, struct moe_err *err);
/* Lets what is being sent go on; on another rank, which computes for longer, gives a sign of it. */
int moe_ranks_go_on(struct moe_ranks *r, struct moe_err *err);
/* Another's sign at once: it has rows that had a message of their own. */
int moe_ranks_say_alive(struct moe_ranks *r, struct moe_err *err);

/* What was sent to a rank, came from it, and what it says of itself. */
struct moe_rank_report {
    char host[64];
    uint64_t messages, bytes_sent, bytes_received;
    uint64_t messages_on, bytes_on; /* that it handed on to the next rank */
    double waited_seconds; /* rank 0 had nothing to do while this one's outputs were missing */
    struct moe_rank_figures figures;
};
/* Of rank `rank` > 0, what rank 0 knows: no figures but how many experts it has. */
void moe_ranks_glance(const struct moe_ranks *r, uint32_t rank, struct moe_rank_report *out);
/* ... and what it says of itself; asks it. */
int moe_ranks_report(struct moe_ranks *r, uint32_t rank, struct moe_rank_report *out,
                     struct moe_err *err);

/* ---- Measuring, in the place of all this ---- */

/* Rank 0: has another make a text about its machine. */
int moe_ranks_ask_text(struct moe_ranks *r, uint32_t rank, const struct moe_progress *progress,
                       struct moe_buf *out, struct moe_err *err);
/* Rank 0: *seconds: half the median of some round trips of messages of `bytes`, to a rank, or (0)
 * to all of them at once, until all are back. bytes: at most MOE_RANKS_MOST_TIMED. */
enum { MOE_RANKS_MOST_TIMED = 64 << 20 };
int moe_ranks_time_message(struct moe_ranks *r, uint32_t rank, uint64_t bytes, double *seconds,
                           struct moe_err *err);
/* Rank 0: *seconds: what a message of `bytes` to a rank or from it takes of this processor, to send
 * it, or to take it in once it is there and to copy it. trip: of such a message, as above. */
int moe_ranks_time_handling(struct moe_ranks *r, uint32_t rank, uint64_t bytes, double trip,
                            double *seconds, struct moe_err *err);
/* Another: answers these until rank 0 ends. */
int moe_ranks_be_measured(struct moe_ranks *r,
                          int (*describe)(void *ctx, struct moe_buf *out, struct moe_err *err),
                          void *ctx, struct moe_err *err);

/* ---- On the others ---- */

/* Waits until the last message to rank 0 is sent; those to another rank, with rows, are. */
int moe_ranks_wait_sent(struct moe_ranks *r, struct moe_err *err);
int moe_ranks_wait_handed_on(struct moe_ranks *r, uint32_t to, struct moe_err *err);
/* LOADING, now and then, or READY. Errors of saying it come up when something else is said. */
void moe_ranks_say_state(struct moe_ranks *r, enum moe_rank_kind kind, uint64_t done,
                         uint64_t total);
/* Whether rank 0 has ended while this rank loads: asked now and then. */
bool moe_ranks_stopped(struct moe_ranks *r);
/* Tells rank 0 why this rank cannot go on, and waits until it has ended. */
void moe_ranks_fail(struct moe_ranks *r, const struct moe_err *why);
/* Gives the processor away for a moment, a longer one the more often it is called in a row. */
void moe_ranks_nap(struct moe_ranks *r, uint32_t *naps);

#endif
