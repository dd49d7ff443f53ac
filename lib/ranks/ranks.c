/* Ranks: how they meet, what rank 0 asks of the others, and what they answer. */
#define _GNU_SOURCE /* gethostname, nanosleep, RUSAGE_THREAD in C11 mode */
#include "ranks/ranks.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/par.h"
#include "base/text.h"
#include "sched/share.h"

enum {
    SPINS = 1000,        /* of looking again, where processors are spare */
    CROWDED_WAITS = 256, /* that are not spent awake after a sign that processors are not spare */
    SHORT_NAPS = 200,    /* of 20 microseconds; then of 200 */
    SAID_EVERY = 2,      /* seconds between signs of a rank that loads, or computes */
    HEARD_OUT = 10,      /* seconds without a sign of a rank that loads and is to end */
};

/* Seconds that collecting waits at a time: then loads are looked after. */
static const double MOMENT = 200e-6;

/* Another rank, as rank 0 knows it. */
struct peer {
    struct moe_rank_said said; /* last, before the first pass */
    uint8_t *answer;           /* [answer_room] */
    uint32_t n_due;            /* rows of outputs that are to come */
    bool listens;              /* an answer is being received */
    bool hears;                /* `said` is */
    bool wants_rows, has_rows; /* of the request, where they have messages of their own */
    bool loads;                /* its experts */
    struct moe_rank_budget budget;
    double sign; /* when it last gave one, or was asked */
    struct moe_rank_report report;
};

struct moe_ranks {
    struct moe_wire *wire;
    struct moe_rank_shape shape;
    uint8_t *holders; /* [n_keys][MOE_HOLDERS] */
    uint8_t *owners;  /* [shape.n_whole] of layers; NULL: none is shared out */
    uint32_t n_keys;
    double said_at; /* this rank's last sign while it loads, or computes */
    uint64_t pass, request;
    uint64_t collected;     /* the request whose outputs are being collected */
    uint64_t told_changes;  /* of the table, + 1; 0: it was told to nobody */
    uint32_t n_told;        /* messages TABLE, COPY and STATES */
    bool gone;              /* a rank does not answer */
    bool spins;             /* the wait at hand may be spent awake */
    uint32_t crowded_waits; /* more that may not */
    long preempted;         /* involuntary switches of this thread so far */
    struct moe_err failure; /* what one has failed with; status MOE_OK: none has */
    /* Of another rank, while it loads. */
    uint8_t stop[MOE_ALIGN]; /* the message that ends that */
    bool hears_stop, stopped;
    /* Of rank 0. */
    struct peer *peers; /* [n_ranks] */
    uint8_t *block;     /* holds what follows, and the peers' answers */
    uint8_t *ask, *hint;
    struct moe_rank_head head; /* of the pass */
    uint64_t activations;      /* of whole layers elsewhere, not taken yet */
    const float *rows;         /* of the request, where they have messages of their own */
    uint64_t rows_bytes;
    uint32_t rows_to;                       /* the rank that gets them, or (0) none */
    uint64_t handed_messages, handed_bytes; /* of the request, from each rank to the next */
};

/* ---- Waiting ---- */

/* Whether this thread had to leave its processor to others since it was last looked at, or not long
 * before: who waits awake then keeps from it what is waited for. */
static bool is_crowded(struct moe_ranks *r)
{
    struct rusage u;
    if (getrusage(RUSAGE_THREAD, &u) == 0 && u.ru_nivcsw != r->preempted) {
        r->preempted = u.ru_nivcsw;
        r->crowded_waits = CROWDED_WAITS;
    }
    if (r->crowded_waits > 0)
        r->crowded_waits--;
    return r->crowded_waits > 0;
}

void moe_ranks_nap(struct moe_ranks *r, uint32_t *naps)
{
    const uint32_t n = (*naps)++;
    if (n == 0)
        r->spins = r->wire->may_spin && !is_crowded(r);
    if (r->spins && n < SPINS)
        return;
    /* A yield would leave the processor, where another process wants it, until a tick of a
     * millisecond or more; who sleeps is back when the sleep ends. */
    const struct timespec t = {.tv_nsec = n < SHORT_NAPS + SPINS ? 20000 : 200000};
    nanosleep(&t, NULL);
}

int moe_ranks_status(const struct moe_ranks *r, struct moe_err *err)
{
    if (err && r->failure.status != MOE_OK)
        *err = r->failure;
    return r->failure.status;
}

static int lost(struct moe_ranks *r, uint32_t rank, struct moe_err *err)
{
    const char *host = r->peers && r->peers[rank].said.host[0] ? r->peers[rank].said.host : "";
    const bool handed_on = r->owners && r->peers && rank > 1 && r->peers[rank].n_due > 0;
    char before[64] = "";
    r->gone = true;
    if (handed_on)
        snprintf(before, sizeof before, ", or rank %u does not hand rows on to it", rank - 1);
    moe_fail(&r->failure, MOE_ERR_IO,
             "rank %u%s%s has not answered for %g s: it has ended, or the network between it and "
             "rank %u is down%s",
             rank, host[0] ? " on " : "", host, r->wire->patience, r->wire->rank, before);
    return moe_ranks_status(r, err);
}

/* Waits until the last message to a rank is sent, at most that many seconds. */
static int wait_sent_within(struct moe_ranks *r, uint32_t to, enum moe_wire_lane lane,
                            double seconds, struct moe_err *err)
{
    const struct moe_wire_ops *ops = r->wire->ops;
    const double began = moe_seconds();
    bool done = false;
    for (uint32_t naps = 0;;) {
        MOE_TRY(ops->sent(r->wire, to, lane, &done, err));
        if (done)
            return MOE_OK;
        if (moe_seconds() - began > seconds)
            return lost(r, to, err);
        moe_ranks_nap(r, &naps);
    }
}

static int wait_sent(struct moe_ranks *r, uint32_t to, enum moe_wire_lane lane, struct moe_err *err)
{
    return wait_sent_within(r, to, lane, r->wire->patience, err);
}

int moe_ranks_wait_sent(struct moe_ranks *r, struct moe_err *err)
{
    return wait_sent(r, 0, MOE_LANE_TALK, err);
}

int moe_ranks_wait_handed_on(struct moe_ranks *r, uint32_t to, struct moe_err *err)
{
    MOE_TRY(wait_sent(r, to, MOE_LANE_TALK, err));
    return wait_sent(r, to, MOE_LANE_ROWS, err);
}

/* ... until one has come from it, for which it is being listened. forever: it takes its time. */
static int wait_heard(struct moe_ranks *r, uint32_t from, bool forever, uint64_t *bytes,
                      struct moe_err *err)
{
    const struct moe_wire_ops *ops = r->wire->ops;
    const double began = moe_seconds();
    bool done = false;
    for (uint32_t naps = 0;;) {
        MOE_TRY(ops->arrived(r->wire, from, MOE_LANE_TALK, &done, bytes, err));
        if (done)
            return MOE_OK;
        if (!forever && moe_seconds() - began > r->wire->patience)
            return lost(r, from, err);
        moe_ranks_nap(r, &naps);
    }
}

static int send_to(struct moe_ranks *r, uint32_t to, enum moe_wire_lane lane, const void *data,
                   uint64_t bytes, struct moe_err *err)
{
    MOE_TRY(r->wire->ops->send(r->wire, to, lane, data, bytes, err));
    if (r->peers) {
        r->peers[to].report.messages++;
        r->peers[to].report.bytes_sent += bytes;
    }
    return MOE_OK;
}

/* ---- Opening, closing ---- */

static struct moe_rank_said said_of_self(void)
{
    struct moe_rank_said said = {.protocol = MOE_RANKS_PROTOCOL};
    snprintf(said.program, sizeof said.program, "%s", MOE_VERSION);
    if (gethostname(said.host, sizeof said.host - 1) != 0)
        said.host[0] = 0;
    return said;
}

int moe_ranks_open(struct moe_ranks **out, struct moe_wire *wire, struct moe_err *err)
{
    struct moe_ranks *r = moe_alloc(1, sizeof *r, err);
    *out = NULL;
    int status = r ? MOE_OK : MOE_ERR_MEMORY;
    if (status == MOE_OK && wire->rank == 0) {
        r->peers = moe_alloc(wire->n_ranks, sizeof *r->peers, err);
        status = r->peers ? MOE_OK : MOE_ERR_MEMORY;
    }
    if (status != MOE_OK) {
        free(r);
        moe_wire_close(wire);
        return status;
    }
    r->wire = wire;
    if (r->peers)
        r->peers[0].said = said_of_self();
    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0); /* naps of this thread end within a microsecond */
    moe_ranks_set_threads(r, moe_par_threads());
    *out = r;
    return MOE_OK;
}

int moe_ranks_find(struct moe_ranks **out, struct moe_err *err)
{
    struct moe_wire *wire;
    *out = NULL;
    MOE_TRY(moe_wire_open(&wire, err));
    return wire ? moe_ranks_open(out, wire, err) : MOE_OK;
}

void moe_ranks_set_threads(struct moe_ranks *r, int n_threads)
{
    const int own = r->wire->cores < 1 ? 1 : (int)r->wire->cores, most = moe_default_threads();
    if (n_threads == 0)
        n_threads = own < most ? own : most;
    moe_par_set_threads(n_threads);
    r->wire->may_spin = n_threads <= r->wire->cores;
}

struct moe_wire *moe_ranks_wire(const struct moe_ranks *r)
{
    return r->wire;
}

const char *moe_ranks_host(const struct moe_ranks *r, uint32_t rank)
{
    return r->peers[rank].said.host;
}

/* Takes in what is still to come, which nobody wants any more. */
static int drain(struct moe_ranks *r, uint32_t rank, struct moe_err *err);
/* Whether a rank that was told to stop loading comes to where it waits for what rank 0 says. */
static bool hear_out(struct moe_ranks *r, uint32_t rank);

/* Tells ranks that load to stop: hints are all that they listen to. */
static void stop_loads(struct moe_ranks *r)
{
    static const struct {
        struct moe_rank_head head;
        uint8_t none[MOE_ALIGN - sizeof(struct moe_rank_head)];
    } stop = {.head.kind = MOE_RANK_HINT};
    struct moe_err ignored;
    for (uint32_t i = 1; r->peers && i < r->wire->n_ranks && !r->gone; i++)
        r->gone = r->peers[i].loads &&
                  send_to(r, i, MOE_LANE_HINT, &stop, sizeof stop, &ignored) != MOE_OK;
}

void moe_ranks_close(struct moe_ranks *r, int exit_status)
{
    struct moe_rank_head end = {.kind = MOE_RANK_END};
    struct moe_err ignored;
    if (!r)
        return;
    stop_loads(r);
    for (uint32_t i = 1; r->peers && i < r->wire->n_ranks && !r->gone; i++)
        r->gone = !hear_out(r, i);
    for (uint32_t i = 1; r->peers && i < r->wire->n_ranks && !r->gone; i++)
        r->gone = drain(r, i, &ignored) != MOE_OK ||
                  wait_sent(r, i, MOE_LANE_TALK, &ignored) != MOE_OK ||
                  wait_sent(r, i, MOE_LANE_ROWS, &ignored) != MOE_OK ||
                  wait_sent(r, i, MOE_LANE_HINT, &ignored) != MOE_OK ||
                  send_to(r, i, MOE_LANE_TALK, &end, sizeof end, &ignored) != MOE_OK;
    for (uint32_t i = 1; r->peers && i < r->wire->n_ranks && !r->gone; i++)
        r->gone = wait_sent(r, i, MOE_LANE_TALK, &ignored) != MOE_OK;
    if (r->block)
        moe_pages_free(r->block, moe_ranks_bytes(&r->shape, r->wire->n_ranks));
    if (r->gone)
        r->wire->ops->abort(r->wire, exit_status ? exit_status : EXIT_FAILURE);
    moe_wire_close(r->wire);
    free(r->peers);
    free(r->holders);
    free(r->owners);
    free(r);
}

/* ---- Meeting ---- */

/* The message is small: it is sent before the next one is made. */
static int say(struct moe_ranks *r, struct moe_rank_said *said, struct moe_err *err)
{
    MOE_TRY(send_to(r, 0, MOE_LANE_TALK, said, sizeof *said, err));
    return wait_sent(r, 0, MOE_LANE_TALK, err);
}

void moe_ranks_say_state(struct moe_ranks *r, enum moe_rank_kind kind, uint64_t done,
                         uint64_t total)
{
    const double now = moe_seconds();
    struct moe_err ignored;
    if (kind == MOE_RANK_LOADING && now - r->said_at < SAID_EVERY)
        return;
    struct moe_rank_said said = said_of_self();
    r->said_at = now;
    said.head.kind = kind;
    said.done = done;
    said.total = total;
    say(r, &said, &ignored);
}

bool moe_ranks_stopped(struct moe_ranks *r)
{
    struct moe_err ignored;
    uint64_t bytes;
    if (!r->hears_stop)
        r->hears_stop = r->wire->ops->receive(r->wire, 0, MOE_LANE_HINT, r->stop, sizeof r->stop,
                                              &ignored) == MOE_OK;
    if (r->hears_stop && !r->stopped &&
        r->wire->ops->arrived(r->wire, 0, MOE_LANE_HINT, &r->stopped, &bytes, &ignored) != MOE_OK)
        r->stopped = true;
    return r->stopped;
}

void moe_ranks_fail(struct moe_ranks *r, const struct moe_err *why)
{
    struct moe_rank_said said = said_of_self();
    struct moe_rank_head end = {0};
    struct moe_err ignored;
    uint64_t bytes;
    said.head.kind = MOE_RANK_FAILED;
    said.status = why->status;
    snprintf(said.text, sizeof said.text, "%s", why->text);
    if (say(r, &said, &ignored) == MOE_OK &&
        r->wire->ops->receive(r->wire, 0, MOE_LANE_TALK, &end, sizeof end, &ignored) == MOE_OK)
        wait_heard(r, 0, true, &bytes, &ignored);
}

static int refuse(const struct moe_rank_said *said, uint32_t rank, struct moe_err *err)
{
    return moe_fail(err, said->status < 0 ? said->status : MOE_ERR_IO, "rank %u on %.63s: %.400s",
                    rank, said->host, said->text);
}

/* What a rank has said before the first pass: texts are ended, what it fails with is returned. */
static int check_said(struct moe_rank_said *said, uint32_t rank, uint64_t bytes,
                      struct moe_err *err)
{
    said->host[sizeof said->host - 1] = said->text[sizeof said->text - 1] = 0;
    said->program[sizeof said->program - 1] = 0;
    said->budget.strategy[sizeof said->budget.strategy - 1] = 0;
    if (bytes != sizeof *said || said->protocol != MOE_RANKS_PROTOCOL)
        return moe_fail(err, MOE_ERR_VERSION,
                        "rank %u speaks otherwise: every rank must run the same version (this is "
                        "%s)",
                        rank, MOE_VERSION);
    return said->status == MOE_OK ? MOE_OK : refuse(said, rank, err);
}

/* Begins to receive what it says next, unless that has begun. */
static int begin_hearing(struct moe_ranks *r, uint32_t rank, struct moe_err *err)
{
    struct peer *p = &r->peers[rank];
    if (!p->hears)
        MOE_TRY(r->wire->ops->receive(r->wire, rank, MOE_LANE_TALK, &p->said, sizeof p->said, err));
    p->hears = true;
    return MOE_OK;
}

/* The next that it says. */
static int hear_said(struct moe_ranks *r, uint32_t rank, struct moe_err *err)
{
    struct peer *p = &r->peers[rank];
    uint64_t bytes;
    MOE_TRY(begin_hearing(r, rank, err));
    MOE_TRY(wait_heard(r, rank, false, &bytes, err));
    p->hears = false;
    return check_said(&p->said, rank, bytes, err);
}

static bool hear_out(struct moe_ranks *r, uint32_t rank)
{
    struct peer *p = &r->peers[rank];
    struct moe_err ignored;
    uint64_t bytes;
    bool done;
    double sign = moe_seconds();
    for (uint32_t naps = 0; p->loads && moe_seconds() - sign < HEARD_OUT;) {
        if (begin_hearing(r, rank, &ignored) != MOE_OK ||
            r->wire->ops->arrived(r->wire, rank, MOE_LANE_TALK, &done, &bytes, &ignored) != MOE_OK)
            break;
        if (!done) {
            moe_ranks_nap(r, &naps);
            continue;
        }
        const struct moe_rank_said *said = &p->said;
        sign = moe_seconds();
        p->hears = false;
        p->loads = check_said(&p->said, rank, bytes, &ignored) == MOE_OK &&
                   (said->head.kind == MOE_RANK_LOADING ||
                    (said->head.kind == MOE_RANK_FETCH && said->bytes == 0));
    }
    return !p->loads;
}

/* "with --draft ngram", "without --draft", of a line "--OPTION VALUE". */
static void say_option(const char *line, char out[320])
{
    const int n = (int)strcspn(line, "\n"), n_name = (int)strcspn(line, " ");
    const char *value = line + n_name + 1;
    const bool no = n == n_name + 3 && strncmp(value, "no", 2) == 0;
    const bool yes = n == n_name + 4 && strncmp(value, "yes", 3) == 0;
    snprintf(out, 320, "%s %.*s", no ? "without" : "with", no || yes ? n_name : n, line);
}

static int refuse_options(const struct moe_rank_said *said, uint32_t rank, const char *its,
                          const char *own, struct moe_err *err)
{
    char theirs[320], ours[320];
    say_option(its, theirs);
    say_option(own, ours);
    return moe_fail(err, MOE_ERR_USAGE,
                    "rank %u on %s was started %s, rank 0 %s: give all ranks the same options",
                    rank, said->host, theirs, ours);
}

/* Compares the options that all ranks must have alike: lines of the same order, each of which only
 * one of both may lack. */
static int check_options(const struct moe_rank_said *said, uint32_t rank, const char *own,
                         struct moe_err *err)
{
    for (const char *end; (end = strchr(own, '\n')); own = end + 1) {
        const int n_name = (int)(strcspn(own, " \n")) + 1;
        for (const char *its = said->text, *its_end; (its_end = strchr(its, '\n'));
             its = its_end + 1)
            if (strncmp(its, own, n_name) == 0 &&
                (its_end - its != end - own || strncmp(its, own, end - own) != 0))
                return refuse_options(said, rank, its, own, err);
    }
    return MOE_OK;
}

static int check_hello(struct moe_ranks *r, uint32_t rank, const struct moe_rank_said *own,
                       struct moe_err *err)
{
    const struct moe_rank_said *said = &r->peers[rank].said;
    if (said->head.kind == MOE_RANK_FETCH)
        return refuse_options(said, rank, "--spread yes", "--spread no", err);
    if (strcmp(said->program, MOE_VERSION) != 0)
        return moe_fail(err, MOE_ERR_VERSION,
                        "rank %u on %s is version %s, rank 0 is %s: every rank must run the same",
                        rank, said->host, said->program, MOE_VERSION);
    MOE_TRY(check_options(said, rank, own->text, err));
    if (said->fingerprint != own->fingerprint)
        return moe_fail(err, MOE_ERR_USAGE,
                        "rank %u on %s has another pack than rank 0 under that name (fingerprints "
                        "%016" PRIx64 " and %016" PRIx64 "): copy the pack there",
                        rank, said->host, said->fingerprint, own->fingerprint);
    return MOE_OK;
}

/* Says it, or on rank 0 hears it of all before one is refused: so none is left talking to nobody.
 * Rank 0 may take its time: it reads its prompt, which people type. */
static int say_or_hear(struct moe_ranks *r, struct moe_rank_said *said, struct moe_err *err)
{
    struct moe_err first = {0};
    if (!r->peers) {
        MOE_TRY(send_to(r, 0, MOE_LANE_TALK, said, sizeof *said, err));
        return wait_sent_within(r, 0, MOE_LANE_TALK, INFINITY, err);
    }
    r->peers[0].said = *said;
    for (uint32_t i = 1; i < r->wire->n_ranks && !r->gone; i++) {
        struct moe_err why = {0};
        int status = hear_said(r, i, &why);
        if (status == MOE_OK && said->head.kind == MOE_RANK_HELLO)
            status = check_hello(r, i, said, &why);
        if (status != MOE_OK && first.status == MOE_OK)
            first = why;
    }
    if (first.status != MOE_OK && err)
        *err = first;
    return first.status;
}

int moe_ranks_meet(struct moe_ranks *r, uint64_t fingerprint, const struct moe_rank_budget *budget,
                   const char *options, struct moe_err *err)
{
    struct moe_rank_said hello = said_of_self();
    hello.head.kind = MOE_RANK_HELLO;
    hello.fingerprint = fingerprint;
    hello.budget = *budget;
    snprintf(hello.text, sizeof hello.text, "%s", options);
    MOE_TRY(say_or_hear(r, &hello, err));
    for (uint32_t i = 0; r->peers && i < r->wire->n_ranks; i++)
        r->peers[i].budget = r->peers[i].said.budget;
    return MOE_OK;
}

const struct moe_rank_budget *moe_ranks_budget(const struct moe_ranks *r, uint32_t rank)
{
    return &r->peers[rank].budget;
}

void moe_ranks_suppose(struct moe_ranks *r, const struct moe_rank_shape *shape)
{
    r->shape = *shape;
}

int moe_ranks_say_room(struct moe_ranks *r, uint64_t room, struct moe_err *err)
{
    struct moe_rank_said said = said_of_self();
    said.head.kind = MOE_RANK_ROOM;
    said.room = room;
    return say_or_hear(r, &said, err);
}

uint64_t moe_ranks_room(const struct moe_ranks *r, uint32_t rank)
{
    return r->peers[rank].said.room;
}

/* holders: of n_keys; owners: of layers, n_whole or none. */
static int take_shares(struct moe_ranks *r, const uint8_t *holders, uint32_t n_keys,
                       const uint8_t *owners, uint32_t n_whole, struct moe_err *err)
{
    r->n_keys = n_keys;
    r->holders = moe_alloc(n_keys, MOE_HOLDERS, err);
    r->owners = n_whole ? moe_alloc(n_whole, 1, err) : NULL;
    if (!r->holders || (n_whole && !r->owners))
        return MOE_ERR_MEMORY;
    memcpy(r->holders, holders, (uint64_t)MOE_HOLDERS * n_keys);
    if (n_whole)
        memcpy(r->owners, owners, n_whole);
    return MOE_OK;
}

int moe_ranks_divide(struct moe_ranks *r, const uint8_t *holders, uint32_t n_keys,
                     const uint8_t *owners, uint32_t n_layers, struct moe_err *err)
{
    return take_shares(r, holders, n_keys, owners, owners ? n_layers : 0, err);
}

const uint8_t *moe_ranks_owners(const struct moe_ranks *r)
{
    return r->owners;
}

const uint8_t *moe_ranks_holders(const struct moe_ranks *r)
{
    return r->holders;
}

/* Rank 0's messages, and the answers of the others. */
static void carve(struct moe_ranks *r, struct moe_arena *arena)
{
    const struct moe_rank_shape *s = &r->shape;
    r->ask = moe_arena_take(arena, moe_rank_ask_room(s), 1);
    r->hint = moe_arena_take(arena, moe_rank_hints_room(s), 1);
    for (uint32_t i = 1; i < r->wire->n_ranks; i++)
        r->peers[i].answer = moe_arena_take(arena, moe_rank_answer_room(s), 1);
}

uint64_t moe_ranks_bytes(const struct moe_rank_shape *shape, uint32_t n_ranks)
{
    struct moe_wire wire = {.n_ranks = n_ranks};
    struct peer peers[MOE_MAX_RANKS];
    struct moe_ranks r = {.wire = &wire, .shape = *shape, .peers = peers};
    struct moe_arena arena = {0};
    carve(&r, &arena);
    return arena.overflowed ? UINT64_MAX : arena.used;
}

/* The message by which ranks learn of passes and of their share: a head, the shape, and of a share
 * the holders and the owners of layers. */
struct share {
    struct moe_rank_head head;
    struct moe_rank_shape shape;
    uint8_t holders[];
};

/* The same to all, which have it then. */
static int tell_all(struct moe_ranks *r, const void *message, uint64_t bytes, struct moe_err *err)
{
    int status = MOE_OK;
    for (uint32_t i = 1; i < r->wire->n_ranks && status == MOE_OK; i++)
        status = send_to(r, i, MOE_LANE_TALK, message, bytes, err);
    for (uint32_t i = 1; i < r->wire->n_ranks && status == MOE_OK; i++)
        status = wait_sent(r, i, MOE_LANE_TALK, err);
    return status;
}

static int tell_shares(struct moe_ranks *r, const struct moe_rank_shape *shape, struct moe_err *err)
{
    const uint64_t holders = (uint64_t)MOE_HOLDERS * r->n_keys,
                   bytes = sizeof(struct share) + holders + shape->n_whole;
    r->shape = *shape;
    uint64_t room = moe_ranks_bytes(shape, r->wire->n_ranks);
    r->block = moe_pages_alloc(room, err);
    struct share *message = r->block ? moe_alloc(bytes, 1, err) : NULL;
    if (!message)
        return MOE_ERR_MEMORY;
    struct moe_arena arena = {.base = r->block, .size = room};
    carve(r, &arena);
    message->head = (struct moe_rank_head){.kind = MOE_RANK_SHARE, .n = r->n_keys};
    message->shape = *shape;
    memcpy(message->holders, r->holders, holders);
    if (shape->n_whole)
        memcpy(message->holders + holders, r->owners, shape->n_whole);
    int status = tell_all(r, message, bytes, err);
    for (uint32_t i = 1; i < r->wire->n_ranks; i++)
        r->peers[i].loads = true;
    for (uint32_t key = 0; key < r->n_keys; key++)
        for (uint32_t h = 0; h < MOE_HOLDERS; h++)
            if (r->holders[MOE_HOLDERS * key + h] < r->wire->n_ranks)
                r->peers[r->holders[MOE_HOLDERS * key + h]].report.figures.n_experts++;
    free(message);
    return status;
}

/* Such a message of that kind and length, of the model whose shape this rank has. */
static int hear_shape(struct moe_ranks *r, enum moe_rank_kind kind, struct share *message,
                      uint64_t room, struct moe_rank_shape *shape, struct moe_err *err)
{
    uint64_t bytes = 0;
    MOE_TRY(r->wire->ops->receive(r->wire, 0, MOE_LANE_TALK, message, room, err));
    MOE_TRY(wait_heard(r, 0, true, &bytes, err));
    if (message->head.kind == MOE_RANK_END)
        return moe_fail(err, MOE_ERR_INTERRUPTED, "rank 0 has ended");
    return bytes != room || message->head.kind != kind ||
                   message->shape.n_layers != shape->n_layers ||
                   message->shape.n_experts != shape->n_experts || message->shape.stride == 0
               ? moe_fail(err, MOE_ERR_FORMAT, "rank 0 shares another model")
               : MOE_OK;
}

int moe_ranks_begin(struct moe_ranks *r, struct moe_rank_shape *shape, struct moe_err *err)
{
    struct share message = {.head = {.kind = MOE_RANK_BEGIN}, .shape = *shape};
    if (r->peers)
        return tell_all(r, &message, sizeof message, err);
    MOE_TRY(hear_shape(r, MOE_RANK_BEGIN, &message, sizeof message, shape, err));
    r->shape = *shape = message.shape;
    return MOE_OK;
}

const struct moe_rank_shape *moe_ranks_shape(const struct moe_ranks *r)
{
    return &r->shape;
}

/* n_keys: those of this rank's own pack. Whether layers are shared out was said before. */
static int hear_share(struct moe_ranks *r, struct moe_rank_shape *shape, struct moe_err *err)
{
    const uint64_t n_keys = (uint64_t)shape->n_layers * shape->n_experts,
                   n_whole = r->shape.n_whole, holders = MOE_HOLDERS * n_keys,
                   room = sizeof(struct share) + holders + n_whole;
    struct share *message = moe_alloc(room, 1, err);
    if (!message)
        return MOE_ERR_MEMORY;
    int status = hear_shape(r, MOE_RANK_SHARE, message, room, shape, err);
    if (status == MOE_OK && message->shape.batch == 0)
        status = moe_fail(err, MOE_ERR_FORMAT, "rank 0 shares passes of no rows");
    if (status == MOE_OK)
        status = take_shares(r, message->holders, (uint32_t)n_keys, message->holders + holders,
                             (uint32_t)n_whole, err);
    if (status == MOE_OK)
        r->shape = *shape = message->shape;
    free(message);
    return status;
}

int moe_ranks_share(struct moe_ranks *r, struct moe_rank_shape *shape, struct moe_err *err)
{
    return r->peers ? tell_shares(r, shape, err) : hear_share(r, shape, err);
}

/* ---- A pack's file ---- */

/* A message with what a rank asks for. */
static int send_piece(struct moe_ranks *r, uint32_t rank, const struct moe_pack *pack,
                      struct moe_rank_piece *piece, struct moe_err *err)
{
    const struct moe_rank_said *said = &r->peers[rank].said;
    const uint64_t size = moe_pack_file_bytes(pack);
    if (said->bytes > MOE_RANK_PIECE_BYTES || said->offset > size ||
        said->bytes > size - said->offset)
        return moe_fail(err, MOE_ERR_FORMAT, "rank %u on %s asks for what %s does not have", rank,
                        said->host, moe_pack_path(pack));
    MOE_TRY(wait_sent(r, rank, MOE_LANE_TALK, err)); /* the piece before: it has come */
    *piece = (struct moe_rank_piece){.head = {.kind = MOE_RANK_PIECE},
                                     .file_bytes = size,
                                     .directory = moe_pack_directory_offset(pack)};
    MOE_TRY(moe_file_pread(moe_pack_fd(pack), moe_pack_path(pack), piece + 1, said->bytes,
                           said->offset, err));
    /* Not counted among the messages of passes. */
    return r->wire->ops->send(r->wire, rank, MOE_LANE_TALK, piece, sizeof *piece + said->bytes,
                              err);
}

/* Looks whether a rank asks for more, and sends it. *has_all: it asks for nothing. */
static int give_next(struct moe_ranks *r, uint32_t rank, const struct moe_pack *pack,
                     struct moe_rank_piece *piece, bool *any, bool *has_all, struct moe_err *err)
{
    const struct moe_wire_ops *ops = r->wire->ops;
    struct peer *p = &r->peers[rank];
    uint64_t bytes;
    bool done;
    MOE_TRY(ops->arrived(r->wire, rank, MOE_LANE_TALK, &done, &bytes, err));
    if (!done)
        return moe_seconds() - p->sign > r->wire->patience ? lost(r, rank, err) : MOE_OK;
    *any = true;
    p->hears = false;
    p->sign = moe_seconds();
    int status = check_said(&p->said, rank, bytes, err);
    p->loads = p->loads && status == MOE_OK;
    MOE_TRY(status);
    if (p->said.head.kind == MOE_RANK_HELLO)
        return refuse_options(&p->said, rank, "--spread no", "--spread yes", err);
    *has_all = p->said.head.kind == MOE_RANK_FETCH && p->said.bytes == 0;
    if (*has_all)
        return MOE_OK;
    if (p->said.head.kind == MOE_RANK_FETCH)
        MOE_TRY(send_piece(r, rank, pack, piece, err));
    return begin_hearing(r, rank, err);
}

int moe_ranks_give(struct moe_ranks *r, const struct moe_pack *pack,
                   const struct moe_progress *progress, struct moe_err *err)
{
    const uint32_t n = r->wire->n_ranks;
    const uint64_t room = moe_round_up(sizeof(struct moe_rank_piece) + MOE_RANK_PIECE_BYTES, 64);
    bool *has_all = moe_alloc(n, sizeof *has_all, err);
    uint8_t *pieces = moe_alloc(n, room, err);
    uint32_t n_left = n - 1;
    int status;
    MOE_STEP(has_all && pieces ? MOE_OK : MOE_ERR_MEMORY);
    for (uint32_t i = 1; i < n; i++) {
        struct peer *p = &r->peers[i];
        p->sign = moe_seconds();
        p->said = (struct moe_rank_said){0};
        MOE_STEP(begin_hearing(r, i, err));
    }
    for (uint32_t naps = 0; n_left > 0;) {
        uint64_t done = 0, total = 0;
        bool any = false;
        for (uint32_t i = 1; i < n; i++) {
            const bool had = has_all[i];
            if (!had)
                MOE_STEP(give_next(r, i, pack, (struct moe_rank_piece *)(void *)(pieces + i * room),
                                   &any, &has_all[i], err));
            n_left -= has_all[i] && !had;
            done += r->peers[i].said.done;
            total += r->peers[i].said.total;
        }
        moe_progress_report(progress, "ranks get experts", done, total);
        MOE_STEP(moe_progress_stopped(progress) ? moe_fail(err, MOE_ERR_INTERRUPTED, "stopped")
                                                : MOE_OK);
        if (any)
            naps = 0;
        else
            moe_ranks_nap(r, &naps);
    }
    for (uint32_t i = 1; i < n; i++)
        MOE_STEP(wait_sent(r, i, MOE_LANE_TALK, err));
out:
    if (status != MOE_OK) /* messages that are being sent lie in what is freed */
        for (uint32_t i = 1; pieces && i < n && !r->gone; i++)
            wait_sent(r, i, MOE_LANE_TALK, NULL);
    free(pieces);
    free(has_all);
    return status;
}

int moe_ranks_fetch(struct moe_ranks *r, void *to, uint64_t n, uint64_t offset, uint64_t done,
                    uint64_t total, struct moe_rank_piece *file, struct moe_err *err)
{
    struct moe_rank_said said = said_of_self();
    uint64_t bytes = 0;
    said.head.kind = MOE_RANK_FETCH;
    said.offset = offset;
    said.bytes = n;
    said.done = done;
    said.total = total;
    if (n == 0)
        return say(r, &said, err);
    struct moe_rank_piece *piece = moe_alloc(sizeof *piece + n, 1, err);
    int status;
    MOE_STEP(piece ? MOE_OK : MOE_ERR_MEMORY);
    MOE_STEP(r->wire->ops->receive(r->wire, 0, MOE_LANE_TALK, piece, sizeof *piece + n, err));
    MOE_STEP(say(r, &said, err));
    MOE_STEP(wait_heard(r, 0, true, &bytes, err));
    if (bytes != sizeof *piece + n || piece->head.kind != MOE_RANK_PIECE)
        MOE_STEP(moe_fail(err, MOE_ERR_INTERRUPTED, "rank 0 has ended"));
    memcpy(to, piece + 1, n);
    if (file)
        *file = *piece;
out:
    free(piece);
    return status;
}

/* Looks whether a rank that loads has said how far it is, or that it is ready. */
static int look_at_loading(struct moe_ranks *r, uint32_t rank, bool *any, struct moe_err *err)
{
    struct peer *p = &r->peers[rank];
    uint64_t bytes;
    bool done;
    MOE_TRY(r->wire->ops->arrived(r->wire, rank, MOE_LANE_TALK, &done, &bytes, err));
    if (!done)
        return moe_seconds() - p->sign > r->wire->patience ? lost(r, rank, err) : MOE_OK;
    *any = true;
    p->hears = false;
    p->sign = moe_seconds();
    int status = check_said(&p->said, rank, bytes, err);
    p->loads = status == MOE_OK && p->said.head.kind != MOE_RANK_READY;
    return p->loads ? begin_hearing(r, rank, err) : status;
}

int moe_ranks_wait_ready(struct moe_ranks *r, const struct moe_progress *progress,
                         struct moe_err *err)
{
    uint32_t n_loading = r->wire->n_ranks - 1;
    for (uint32_t i = 1; i < r->wire->n_ranks; i++) {
        r->peers[i].loads = true;
        r->peers[i].sign = moe_seconds();
        MOE_TRY(begin_hearing(r, i, err));
    }
    for (uint32_t naps = 0; n_loading > 0;) {
        uint64_t done = 0, total = 0;
        bool any = false;
        n_loading = 0;
        for (uint32_t i = 1; i < r->wire->n_ranks; i++) {
            if (r->peers[i].loads)
                MOE_TRY(look_at_loading(r, i, &any, err));
            n_loading += r->peers[i].loads;
            done += r->peers[i].said.done;
            total += r->peers[i].said.total;
        }
        moe_progress_report(progress, "other ranks load", done, total);
        if (moe_progress_stopped(progress))
            return moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
        if (any)
            naps = 0;
        else
            moe_ranks_nap(r, &naps);
    }
    for (uint32_t i = 1; i < r->wire->n_ranks; i++)
        memcpy(r->peers[i].report.host, r->peers[i].said.host, sizeof r->peers[i].report.host);
    return MOE_OK;
}

/* ---- Passes ---- */

void moe_ranks_begin_pass(struct moe_ranks *r, uint32_t n_rows, bool prefill, bool first)
{
    r->head = (struct moe_rank_head){
        .pass = ++r->pass, .n_pass = n_rows, .prefill = prefill, .first = first};
}

static int listen_to(struct moe_ranks *r, uint32_t rank, struct moe_err *err)
{
    struct peer *p = &r->peers[rank];
    MOE_TRY(r->wire->ops->receive(r->wire, rank, MOE_LANE_TALK, p->answer,
                                  moe_rank_answer_room(&r->shape), err));
    p->listens = true;
    return MOE_OK;
}

/* Rows of the request's outputs that each rank is to compute. */
static void count_due(struct moe_ranks *r, const struct moe_layer_request *q)
{
    for (uint32_t i = 0; i < q->n_entries; i++)
        if (q->kinds[i] == MOE_ENTRY_ELSEWHERE)
            r->peers[q->ranks[i]].n_due += q->n_rows[i];
}

static uint64_t write_ask(struct moe_ranks *r, const struct moe_layer_request *q, uint32_t n_rows,
                          const float *x)
{
    const struct moe_rank_shape *s = &r->shape;
    const struct moe_rank_ask a = moe_rank_ask_at(r->ask, s, n_rows, q->n_over > 0);
    const uint64_t pairs = (uint64_t)n_rows * s->top_k;
    r->head.kind = MOE_RANK_ASK;
    r->head.moe = q->moe;
    r->head.n_rows = n_rows;
    r->head.n_over = q->n_over;
    r->head.request = ++r->request;
    memcpy(r->ask, &r->head, sizeof r->head);
    memcpy(a.chosen, q->chosen, pairs * sizeof *a.chosen);
    memcpy(a.weights, q->weights, pairs * sizeof *a.weights);
    memcpy(a.sequences, q->sequences, n_rows * sizeof *a.sequences);
    if (q->n_over)
        memcpy(a.over, q->over, pairs);
    if (a.x)
        memcpy(a.x, x, n_rows * s->stride * sizeof *x);
    return a.bytes;
}

/* Rows of a large pass go to one rank after the other, to the next once it says that they are
 * there: all at once they would share the network, and all ranks begin late. So the first compute
 * and answer while the next receive. */
static int send_rows(struct moe_ranks *r, struct moe_err *err)
{
    if (r->rows_to && !r->peers[r->rows_to].has_rows)
        return MOE_OK;
    for (r->rows_to = 1; r->rows_to < r->wire->n_ranks; r->rows_to++)
        if (r->peers[r->rows_to].wants_rows) {
            r->peers[r->rows_to].wants_rows = r->peers[r->rows_to].has_rows = false;
            MOE_TRY(send_to(r, r->rows_to, MOE_LANE_ROWS, r->rows, r->rows_bytes, err));
            return wait_sent(r, r->rows_to, MOE_LANE_ROWS, err);
        }
    r->rows_to = 0;
    return MOE_OK;
}

/* Nothing is under way to a rank, or to come from it: of a pass that ended in an error something
 * may be, and the ranks share the message. */
static int wait_idle(struct moe_ranks *r, struct moe_err *err)
{
    MOE_TRY(moe_ranks_status(r, err));
    for (uint32_t i = 1; i < r->wire->n_ranks; i++) {
        MOE_TRY(drain(r, i, err));
        MOE_TRY(wait_sent(r, i, MOE_LANE_TALK, err));
        MOE_TRY(wait_sent(r, i, MOE_LANE_ROWS, err));
    }
    return MOE_OK;
}

/* Sends the message, with rows that do not lie in it. */
static int ask_rank(struct moe_ranks *r, uint32_t rank, uint64_t bytes, uint32_t n_rows,
                    const float *x, struct moe_err *err)
{
    struct peer *p = &r->peers[rank];
    p->sign = moe_seconds();
    p->wants_rows = n_rows > MOE_RANK_ROWS_WITHIN;
    r->rows = x;
    r->rows_bytes = n_rows * r->shape.stride * sizeof *x;
    MOE_TRY(listen_to(r, rank, err));
    MOE_TRY(send_to(r, rank, MOE_LANE_TALK, r->ask, bytes, err));
    return send_rows(r, err);
}

int moe_ranks_ask(struct moe_ranks *r, const struct moe_layer_request *q, uint32_t n_rows,
                  const float *x, struct moe_err *err)
{
    uint64_t bytes = 0;
    MOE_TRY(wait_idle(r, err));
    count_due(r, q);
    for (uint32_t i = 1; i < r->wire->n_ranks; i++) {
        if (r->peers[i].n_due == 0)
            continue;
        if (bytes == 0)
            bytes = write_ask(r, q, n_rows, x);
        MOE_TRY(ask_rank(r, i, bytes, n_rows, x, err));
    }
    return MOE_OK;
}

/* Tells all others what r->ask says of memory. */
static int tell_memory(struct moe_ranks *r, uint64_t bytes, struct moe_err *err)
{
    r->n_told++;
    return tell_all(r, r->ask, bytes, err);
}

int moe_ranks_tell_table(struct moe_ranks *r, const uint32_t *table, const uint32_t *slots,
                         uint64_t n_changes, struct moe_err *err)
{
    const struct moe_rank_shape *s = &r->shape;
    const struct moe_rank_head head = {.kind = MOE_RANK_TABLE, .n = s->n_table};
    const uint64_t bytes = moe_rank_table_bytes(s), each = sizeof *table;
    if (r->told_changes == n_changes + 1)
        return MOE_OK;
    MOE_TRY(wait_idle(r, err));
    memcpy(r->ask, &head, sizeof head);
    memcpy(r->ask + bytes - s->n_table * each, table, (s->n_table - s->n_slots) * each);
    if (slots)
        memcpy(r->ask + bytes - s->n_slots * each, slots, s->n_slots * each);
    MOE_TRY(tell_memory(r, bytes, err));
    r->told_changes = n_changes + 1;
    return MOE_OK;
}

int moe_ranks_begin_rows(struct moe_ranks *r, uint32_t n_rows, struct moe_rank_attend *message,
                         struct moe_err *err)
{
    MOE_TRY(wait_idle(r, err));
    *message = moe_rank_attend_at(r->ask, &r->shape, n_rows);
    return MOE_OK;
}

int moe_ranks_send_rows(struct moe_ranks *r, uint32_t rank, enum moe_rank_kind kind, uint32_t begin,
                        uint32_t end, uint32_t n_rows, const float *x, struct moe_err *err)
{
    const struct moe_rank_attend a = moe_rank_attend_at(r->ask, &r->shape, n_rows);
    const uint32_t last = kind == MOE_RANK_LAYERS ? r->owners[end - 1] : rank;
    struct moe_rank_head head = r->head;
    head.kind = kind;
    head.moe = begin;
    head.n = end;
    head.n_rows = n_rows;
    head.n_over = r->n_told;
    head.request = ++r->request;
    memcpy(r->ask, &head, sizeof head);
    if (a.x)
        memcpy(a.x, x, n_rows * r->shape.stride * sizeof *x);
    r->handed_messages = a.x ? 1 : 2;
    r->handed_bytes = a.bytes + (a.x ? 0 : n_rows * r->shape.stride * sizeof *x);
    for (uint32_t i = rank; i <= last; i++)
        r->peers[i].n_due = i == last ? n_rows : 1; /* or it has handed them on */
    for (uint32_t i = rank + 1; i <= last; i++)
        MOE_TRY(listen_to(r, i, err));
    return ask_rank(r, rank, a.bytes, n_rows, x, err);
}

int moe_ranks_copy_block(struct moe_ranks *r, uint32_t from, uint32_t to, struct moe_err *err)
{
    const struct moe_rank_head head = {.kind = MOE_RANK_COPY, .moe = from, .n = to};
    MOE_TRY(wait_idle(r, err));
    memcpy(r->ask, &head, sizeof head);
    return tell_memory(r, sizeof head, err);
}

void moe_ranks_copy_states(struct moe_ranks *r, uint32_t from, uint32_t to)
{
    const struct moe_rank_head head = {.kind = MOE_RANK_STATES, .moe = from, .n = to};
    struct moe_err why = {0};
    int status = wait_idle(r, &why);
    if (status == MOE_OK) {
        memcpy(r->ask, &head, sizeof head);
        status = tell_memory(r, sizeof head, &why);
    }
    if (status != MOE_OK && r->failure.status == MOE_OK)
        r->failure = why;
}

uint64_t moe_ranks_take_activations(struct moe_ranks *r)
{
    const uint64_t n = r->activations;
    r->activations = 0;
    return n;
}

int moe_ranks_hint(struct moe_ranks *r, const struct moe_prediction *predictions, uint32_t n,
                   struct moe_err *err)
{
    const struct moe_rank_shape *s = &r->shape;
    bool idle = true, done;
    for (uint32_t i = 1; i < r->wire->n_ranks; i++) {
        MOE_TRY(r->wire->ops->sent(r->wire, i, MOE_LANE_HINT, &done, err));
        idle &= done;
    }
    n = n < MOE_RANK_HINTS ? n : MOE_RANK_HINTS;
    if (!idle || n == 0)
        return MOE_OK;
    const struct moe_rank_head head = {.kind = MOE_RANK_HINT, .n = n, .pass = r->pass};
    memcpy(r->hint, &head, sizeof head);
    for (uint32_t i = 0; i < n; i++) {
        const struct moe_rank_hint h = moe_rank_hint_at(r->hint, s, i);
        h.of[0] = predictions[i].layer;
        h.of[1] = predictions[i].n_rows;
        memcpy(h.scores, predictions[i].scores, s->n_experts * sizeof *h.scores);
        memcpy(h.unimportance, predictions[i].unimportance, s->n_experts * sizeof *h.unimportance);
    }
    for (uint32_t i = 1; i < r->wire->n_ranks; i++)
        MOE_TRY(send_to(r, i, MOE_LANE_HINT, r->hint, MOE_ALIGN + n * moe_rank_hint_bytes(s), err));
    return MOE_OK;
}

/* What a rank has answered; out NULL: nobody wants it. */
static int take_answer(struct moe_ranks *r, uint32_t rank, uint64_t bytes, float *out,
                       struct moe_err *err)
{
    struct peer *p = &r->peers[rank];
    const struct moe_rank_head *head = (const struct moe_rank_head *)(const void *)p->answer;
    const struct moe_rank_shape *s = &r->shape;
    p->report.bytes_received += bytes;
    p->has_rows = true; /* any sign says so */
    if (bytes >= sizeof p->said && head->kind == MOE_RANK_FAILED) {
        memcpy(&p->said, p->answer, sizeof p->said);
        p->said.text[sizeof p->said.text - 1] = 0;
        p->n_due = 0;
        for (uint32_t i = rank + 1; r->owners && i < r->wire->n_ranks; i++) {
            r->peers[i].n_due = 0; /* nothing comes to it */
            r->peers[i].listens = false;
        }
        refuse(&p->said, rank, &r->failure);
        return moe_ranks_status(r, err);
    }
    if (bytes >= sizeof *head && head->kind == MOE_RANK_ALIVE)
        return listen_to(r, rank, err);
    const uint64_t slots = (uint64_t)s->batch * s->top_k;
    bool fits = bytes >= sizeof *head && head->kind == MOE_RANK_OUTPUTS &&
                head->n_rows <= p->n_due && head->n_rows <= moe_rank_output_rows(s) &&
                (head->n_rows > 0 || (r->owners && p->n_due == 1)) && head->request == r->request;
    const struct moe_rank_outputs o = moe_rank_outputs_at(p->answer, s, fits ? head->n_rows : 0);
    fits = fits && bytes == o.bytes;
    for (uint32_t i = 0; fits && i < head->n_rows; i++) {
        fits = o.places[i] < slots;
        if (fits && out)
            memcpy(out + o.places[i] * s->stride, o.rows + i * s->stride, s->stride * sizeof *out);
    }
    if (!fits) {
        r->gone = true;
        return moe_fail(err, MOE_ERR_FORMAT, "rank %u on %s answers what was not asked", rank,
                        p->said.host);
    }
    p->n_due -= head->n_rows ? head->n_rows : 1;
    if (head->n_rows == 0) { /* to the next rank went as much as comes from here */
        p->report.messages_on += r->handed_messages;
        p->report.bytes_on += r->handed_bytes;
    }
    r->activations += head->n;
    return p->n_due ? listen_to(r, rank, err) : MOE_OK;
}

/* Looks whether a rank that owes outputs has sent some. */
static int look_at(struct moe_ranks *r, uint32_t rank, float *out, bool *any, struct moe_err *err)
{
    struct peer *p = &r->peers[rank];
    uint64_t bytes;
    bool done;
    MOE_TRY(r->wire->ops->arrived(r->wire, rank, MOE_LANE_TALK, &done, &bytes, err));
    const double now = moe_seconds();
    if (!done)
        return now - p->sign > r->wire->patience ? lost(r, rank, err) : MOE_OK;
    for (uint32_t i = rank; i < r->wire->n_ranks && (i == rank || r->owners); i++)
        r->peers[i].sign = now; /* it is not later ones' turn */
    p->listens = false;
    *any = true;
    return take_answer(r, rank, bytes, out, err);
}

int moe_ranks_collect(struct moe_ranks *r, float *out, bool *all, struct moe_err *err)
{
    const double began = moe_seconds();
    double now = began;
    bool any = false;
    if (r->collected != r->request) { /* nobody has looked for a sign before */
        r->collected = r->request;
        for (uint32_t i = 1; i < r->wire->n_ranks; i++)
            r->peers[i].sign = began;
    }
    for (uint32_t naps = 0;; now = moe_seconds()) {
        MOE_TRY(send_rows(r, err));
        *all = true;
        for (uint32_t i = 1; i < r->wire->n_ranks; i++) {
            if (r->peers[i].n_due)
                MOE_TRY(look_at(r, i, out, &any, err));
            *all &= r->peers[i].n_due == 0;
        }
        if (*all || any || now - began > MOMENT)
            break;
        moe_ranks_nap(r, &naps);
    }
    for (uint32_t i = 1; i < r->wire->n_ranks; i++)
        if (r->peers[i].n_due)
            r->peers[i].report.waited_seconds += now - began;
    return MOE_OK;
}

/* A rank that says that it failed is done, too. */
static int drain(struct moe_ranks *r, uint32_t rank, struct moe_err *err)
{
    struct peer *p = &r->peers[rank];
    for (uint32_t naps = 0; p->listens;) {
        bool any = false;
        MOE_TRY(send_rows(r, err));
        int status = look_at(r, rank, NULL, &any, err);
        if (status != MOE_OK && (r->gone || p->listens))
            return status;
        if (!any)
            moe_ranks_nap(r, &naps);
    }
    return MOE_OK;
}

int moe_ranks_say_alive(struct moe_ranks *r, struct moe_err *err)
{
    static const struct moe_rank_head alive = {.kind = MOE_RANK_ALIVE};
    r->said_at = moe_seconds();
    MOE_TRY(wait_sent(r, 0, MOE_LANE_TALK, err));
    return send_to(r, 0, MOE_LANE_TALK, &alive, sizeof alive, err);
}

int moe_ranks_go_on(struct moe_ranks *r, struct moe_err *err)
{
    bool any;
    if (!r->peers && moe_seconds() - r->said_at >= SAID_EVERY)
        return moe_ranks_say_alive(r, err);
    if (!r->peers)
        return r->wire->ops->sent(r->wire, 0, MOE_LANE_TALK, &any, err);
    for (uint32_t i = 1; i < r->wire->n_ranks; i++)
        if (r->peers[i].n_due)
            MOE_TRY(r->wire->ops->sent(r->wire, i, MOE_LANE_TALK, &any, err));
    if (r->rows_to && !r->peers[r->rows_to].has_rows) /* its first sign has no outputs */
        MOE_TRY(look_at(r, r->rows_to, NULL, &any, err));
    return send_rows(r, err);
}

void moe_ranks_glance(const struct moe_ranks *r, uint32_t rank, struct moe_rank_report *out)
{
    *out = r->peers[rank].report;
}

int moe_ranks_report(struct moe_ranks *r, uint32_t rank, struct moe_rank_report *out,
                     struct moe_err *err)
{
    static const struct moe_rank_head tell = {.kind = MOE_RANK_TELL};
    struct peer *p = &r->peers[rank];
    uint64_t bytes;
    MOE_TRY(drain(r, rank, err));
    MOE_TRY(wait_sent(r, rank, MOE_LANE_TALK, err));
    *out = p->report;
    MOE_TRY(listen_to(r, rank, err));
    MOE_TRY(send_to(r, rank, MOE_LANE_TALK, &tell, sizeof tell, err));
    MOE_TRY(wait_heard(r, rank, false, &bytes, err));
    p->listens = false;
    if (bytes != sizeof out->figures)
        return moe_fail(err, MOE_ERR_FORMAT, "rank %u on %s answers what was not asked", rank,
                        p->said.host);
    memcpy(&out->figures, p->answer, sizeof out->figures);
    return MOE_OK;
}

/* ---- Measuring ---- */

int moe_ranks_ask_text(struct moe_ranks *r, uint32_t rank, const struct moe_progress *progress,
                       struct moe_buf *out, struct moe_err *err)
{
    static const struct moe_rank_head describe = {.kind = MOE_RANK_DESCRIBE};
    const struct moe_rank_said *said = &r->peers[rank].said;
    char what[96];
    uint64_t bytes;
    MOE_TRY(send_to(r, rank, MOE_LANE_TALK, &describe, sizeof describe, err));
    MOE_TRY(wait_sent(r, rank, MOE_LANE_TALK, err));
    do {
        MOE_TRY(hear_said(r, rank, err));
        snprintf(what, sizeof what, "rank %u on %.63s measures", rank, said->host);
        moe_progress_report(progress, what, said->done, said->total);
    } while (said->head.kind == MOE_RANK_LOADING);
    uint8_t *text = said->done <= INT32_MAX ? moe_alloc(said->done + 1, 1, err) : NULL;
    if (!text)
        return MOE_ERR_MEMORY;
    int status;
    MOE_STEP(r->wire->ops->receive(r->wire, rank, MOE_LANE_TALK, text, said->done, err));
    MOE_STEP(wait_heard(r, rank, false, &bytes, err));
    moe_buf_append(out, text, bytes);
out:
    free(text);
    return status;
}

static int compare_seconds(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* There and back again, to each of the ranks. */
static int make_trip(struct moe_ranks *r, uint32_t first, uint32_t last, const void *message,
                     uint8_t *echoes, uint64_t bytes, struct moe_err *err)
{
    uint64_t came;
    for (uint32_t i = first; i <= last; i++) {
        MOE_TRY(r->wire->ops->receive(r->wire, i, MOE_LANE_TALK, echoes + (i - first) * bytes,
                                      bytes, err));
        MOE_TRY(send_to(r, i, MOE_LANE_TALK, message, bytes, err));
    }
    for (uint32_t i = first; i <= last; i++) {
        MOE_TRY(wait_heard(r, i, false, &came, err));
        MOE_TRY(wait_sent(r, i, MOE_LANE_TALK, err));
    }
    return MOE_OK;
}

enum { TRIPS = 25, WARM = 3 };

int moe_ranks_time_message(struct moe_ranks *r, uint32_t rank, uint64_t bytes, double *seconds,
                           struct moe_err *err)
{
    const uint32_t first = rank ? rank : 1, last = rank ? rank : r->wire->n_ranks - 1;
    double trips[TRIPS];
    struct moe_rank_head *message = moe_alloc(bytes, 1, err);
    uint8_t *echoes = moe_alloc(last - first + 1, bytes, err);
    int status;
    MOE_STEP(message && echoes ? MOE_OK : MOE_ERR_MEMORY);
    message->kind = MOE_RANK_ECHO;
    for (int i = -WARM; i < TRIPS; i++) {
        const double began = moe_seconds();
        MOE_STEP(make_trip(r, first, last, message, echoes, bytes, err));
        trips[i < 0 ? 0 : i] = moe_seconds() - began;
    }
    qsort(trips, TRIPS, sizeof *trips, compare_seconds);
    *seconds = trips[TRIPS / 2] / 2;
out:
    free(message);
    free(echoes);
    return status;
}

int moe_ranks_time_handling(struct moe_ranks *r, uint32_t rank, uint64_t bytes, double trip,
                            double *seconds, struct moe_err *err)
{
    const double pause = 4 * trip;
    const struct timespec until_there = {(time_t)pause,
                                         (long)(1e9 * (pause - (double)(time_t)pause))};
    double handled[TRIPS];
    uint64_t came;
    struct moe_rank_head *message = moe_alloc(bytes, 1, err);
    uint8_t *echo = moe_alloc(bytes, 1, err);
    int status;
    MOE_STEP(message && echo ? MOE_OK : MOE_ERR_MEMORY);
    message->kind = MOE_RANK_ECHO;
    for (int i = -WARM; i < TRIPS; i++) {
        MOE_STEP(r->wire->ops->receive(r->wire, rank, MOE_LANE_TALK, echo, bytes, err));
        const double began = moe_seconds();
        MOE_STEP(send_to(r, rank, MOE_LANE_TALK, message, bytes, err));
        MOE_STEP(wait_sent(r, rank, MOE_LANE_TALK, err));
        const double sent = moe_seconds();
        nanosleep(&until_there, NULL);
        const double there = moe_seconds();
        MOE_STEP(wait_heard(r, rank, false, &came, err));
        memcpy(message, echo, bytes);
        handled[i < 0 ? 0 : i] = sent - began + moe_seconds() - there;
    }
    qsort(handled, TRIPS, sizeof *handled, compare_seconds);
    *seconds = handled[TRIPS / 2] / 2;
out:
    free(message);
    free(echo);
    return status;
}

static int send_text(struct moe_ranks *r, const struct moe_buf *text, struct moe_err *err)
{
    moe_ranks_say_state(r, MOE_RANK_READY, text->size, text->size);
    MOE_TRY(send_to(r, 0, MOE_LANE_TALK, text->data, text->size, err));
    return wait_sent(r, 0, MOE_LANE_TALK, err);
}

int moe_ranks_be_measured(struct moe_ranks *r,
                          int (*describe)(void *ctx, struct moe_buf *out, struct moe_err *err),
                          void *ctx, struct moe_err *err)
{
    struct moe_rank_head *message = moe_alloc(MOE_RANKS_MOST_TIMED, 1, err);
    struct moe_buf text = {0};
    uint64_t bytes = 0;
    int status;
    MOE_STEP(message ? MOE_OK : MOE_ERR_MEMORY);
    for (;;) {
        MOE_STEP(
            r->wire->ops->receive(r->wire, 0, MOE_LANE_TALK, message, MOE_RANKS_MOST_TIMED, err));
        MOE_STEP(wait_heard(r, 0, true, &bytes, err));
        if (bytes < sizeof *message || message->kind == MOE_RANK_END)
            break;
        if (message->kind == MOE_RANK_DESCRIBE) {
            text.size = 0;
            MOE_STEP(describe(ctx, &text, err));
            MOE_STEP(send_text(r, &text, err));
            continue;
        }
        MOE_STEP(send_to(r, 0, MOE_LANE_TALK, message, bytes, err));
        MOE_STEP(wait_sent(r, 0, MOE_LANE_TALK, err));
    }
out:
    if (status != MOE_OK)
        moe_ranks_fail(r, err);
    moe_buf_release(&text);
    free(message);
    return status;
}
