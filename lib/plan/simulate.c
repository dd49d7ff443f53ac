/*
 * The simulator: passes of a trace through the driver of a pass (sched/pass.h), on a modelled link.
 */
#include "plan/simulate.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cache/learnt.h"
#include "cache/link.h"
#include "profile/device.h"
#include "sched/host_places.h"
#include "sched/pass.h"

/*
 * The simulator's channel: segments of experts on a modelled link (cache/link.h), or on two in
 * series: from storage into places of the host's memory, and from there into a device's slots, as
 * infer/experts_tiers.h moves them, by the same transfers (sched/host_places.h).
 */
/* A segment under way. */
struct simulate_cargo {
    uint32_t slot, segment;
    struct moe_simulated_phase *phase; /* which counted its bytes */
    uint64_t bytes;
};

struct simulate_link {
    const struct moe_inventory *inventory;
    const struct moe_store *store;     /* set once there is one, before the first load */
    struct moe_simulated_phase *phase; /* which counts the bytes */
    struct moe_link link;
    struct moe_link_item *items;
    struct simulate_cargo *cargo; /* [n_items] */
    uint32_t *free_items, n_free, n_items;
    double stalled; /* seconds waited so far */

    /* What lies behind: without it (tiers false) everything is where the link begins. */
    bool tiers;
    struct moe_host_places places;
    struct moe_transfers transfers;
    struct moe_link storage;
    struct moe_link_item *storage_items;
};

/* The scheduler's options have their pools. */
static int simulate_link_open(struct simulate_link *l, const struct moe_simulation *in,
                              struct moe_err *err);
static void simulate_link_close(struct simulate_link *l);
static struct moe_channel simulate_link_channel(struct simulate_link *l);
/* Computation took `seconds`: loads went on meanwhile. */
static void simulate_link_advance(struct simulate_link *l, double seconds);

/* Another machine: the experts that it has, on a clock of its own. */
struct other {
    struct simulator *simulator; /* its scheduler, link and clock */
    struct moe_wire_pace wire;
    double asked, due; /* when it has been asked, and has computed what it was asked for */
    uint64_t n_rows;   /* ... of outputs */
    bool begun;        /* it was asked in this pass */
    double pass_began, stalled_before;
    uint64_t loads_before;
    struct moe_simulated counted;
};

struct simulator {
    const struct moe_simulation *in;
    const struct moe_inventory *inventory;
    struct moe_replay *replay; /* NULL: of another machine, which has no whole layers */
    uint32_t batch;
    struct moe_scheduler *scheduler;
    struct moe_pass pass;
    struct moe_layer_request request;
    void *block; /* memory of the pass and the request */
    struct simulate_link channel;

    struct moe_simulated_phase *phase;
    struct moe_simulated uncounted;     /* sequences that only fill caches */
    uint64_t decoded_before;            /* tokens of other simulations that count, too */
    struct moe_simulated_layer *layers; /* NULL, or of the passes that count in it */
    bool counts_layers, counts_work;
    struct moe_counts counts_before; /* of the layer at work */
    double stall_before;
    double link_seen, worked_seen, storage_seen;
    double predict_seconds; /* of this machine: nobody wants them */

    struct other *others;            /* [in->n_ranks] */
    double sends_until, takes_until; /* this machine's network is busy so long */
};

/* ---- Operations of a pass ---- */

static void took(void *ctx, double seconds)
{
    simulate_link_advance(&((struct simulator *)ctx)->channel, seconds);
}

static double clock_now(void *ctx)
{
    return ((struct simulator *)ctx)->channel.link.clock;
}

static int choose_recorded(void *ctx, uint32_t layer, struct moe_err *err)
{
    struct simulator *s = ctx;
    s->counts_before = s->phase->experts;
    s->stall_before = s->channel.stalled;
    moe_replay_chosen(s->replay, s->pass.moe, s->request.chosen, s->request.weights);
    return MOE_OK;
}

static int route_recorded(void *ctx, uint32_t layer, struct moe_err *err)
{
    struct simulator *s = ctx;
    return s->inventory->routes_early ? MOE_OK : choose_recorded(s, layer, err);
}

/* A layer is over: adds to its figures. */
static int count_layer(void *ctx, uint32_t layer, struct moe_err *err)
{
    struct simulator *s = ctx;
    const struct moe_counts *now = &s->phase->experts, *before = &s->counts_before;
    if (!s->counts_layers)
        return MOE_OK;
    struct moe_simulated_layer *l = &s->layers[s->pass.moe];
    l->activations += now->activations - before->activations;
    l->hits += now->cache_hits - before->cache_hits + now->prefetch_hits - before->prefetch_hits;
    l->predicted += now->predicted - before->predicted;
    l->predicted_right += now->predicted_right - before->predicted_right;
    l->stall_seconds += s->channel.stalled - s->stall_before;
    return MOE_OK;
}

/* ---- Other machines ---- */

enum {
    HEAD_BYTES = 128,         /* of a message */
    ROWS_WITHIN = 16,         /* more of them have a message of their own (ranks/message.h) */
    ANSWER_BYTES = 512 << 10, /* of rows in one answer, which has 16 to 64 of them */
    LEAST_ANSWERED = 16,
    MOST_ANSWERED = 64,
    /* A longer message sets out when the other end has answered (ranks/mpi/wire_mpi.c). */
    LONG_BYTES = 1 << 20,
};

/* From the first byte's departure to the last one's arrival. */
static double message_seconds(const struct moe_wire_pace *w, double bytes)
{
    return (bytes > LONG_BYTES ? 3 : 1) * w->latency + bytes * w->byte;
}

/* Rows of outputs in one message. */
static double rows_of_answer(const struct simulator *s)
{
    return fmax(LEAST_ANSWERED, fmin(MOST_ANSWERED, ANSWER_BYTES / (double)s->in->row_bytes));
}

/* A machine waits for another until then; its loads go on. */
static double sleep_until(struct simulator *s, double clock)
{
    return moe_link_sleep(&s->channel.link, clock);
}

static void end_pass_of_other(struct other *o)
{
    struct simulator *s = o->simulator;
    const double seconds = s->channel.link.clock - o->pass_began;
    if (o->begun)
        moe_scheduler_end_tokens(
            s->scheduler, false, seconds, s->channel.stalled - o->stalled_before,
            s->channel.link.busy_seconds - s->link_seen, s->phase->experts.loads - o->loads_before);
    s->link_seen = s->channel.link.busy_seconds;
    o->begun = false;
}

static void begin_pass_of_other(const struct simulator *s, struct other *o)
{
    struct simulator *x = o->simulator;
    const bool prompt = !s->pass.decode;
    x->phase = x->channel.phase = s->counts_work ? &o->counted.decode : &x->uncounted.decode;
    moe_scheduler_begin_tokens(x->scheduler, s->pass.n_rows, prompt, &x->phase->experts);
    const struct moe_pass_rows rows = {.n = s->pass.n_rows,
                                       .at_once = s->in->owners ? s->pass.at_once : 1,
                                       .decode = !prompt,
                                       .positions = s->pass.positions};
    moe_pass_begin(&x->pass, &rows, &x->phase->experts, &x->phase->host_seconds,
                   &x->predict_seconds);
    o->begun = true;
    o->pass_began = x->channel.link.clock;
    o->stalled_before = x->channel.stalled;
    o->loads_before = x->phase->experts.loads;
}

/* Of a request with all rows, and of one's answers to it. */
static double asked_bytes(const struct simulator *s)
{
    return HEAD_BYTES + s->pass.n_rows * (s->in->row_bytes + 8.0 * s->request.top_k + 4);
}

static double answered_bytes(const struct simulator *s, const struct other *o)
{
    return HEAD_BYTES + (double)o->n_rows * (double)s->in->row_bytes;
}

/* Has one compute its experts of the request that arrives then. */
static int ask_other(struct simulator *s, struct other *o, double arrives, struct moe_err *err)
{
    struct simulator *x = o->simulator;
    const struct moe_layer_request *q = &s->request;
    const uint64_t pairs = (uint64_t)s->pass.n_rows * q->top_k;
    sleep_until(x, arrives);
    if (!o->begun)
        begin_pass_of_other(s, o);
    const double began = x->channel.link.clock;
    o->asked = arrives;
    took(x, (asked_bytes(s) + answered_bytes(s, o)) * o->wire.handling_byte);
    memcpy(x->request.chosen, q->chosen, pairs * sizeof *q->chosen);
    memcpy(x->request.weights, q->weights, pairs * sizeof *q->weights);
    memcpy(x->request.sequences, q->sequences, s->pass.n_rows * sizeof *q->sequences);
    MOE_TRY(moe_pass_own_experts(&x->pass, s->pass.moe, err));
    o->due = x->channel.link.clock;
    x->phase->seconds += o->due - began;
    return MOE_OK;
}

/* Another's attention is waited for: inputs go there, and what it puts out comes back in pieces. */
static int attend(void *ctx, uint32_t layer, struct moe_err *err)
{
    struct simulator *s = ctx;
    const uint32_t rank = s->in->attends ? s->in->attends[layer] : 0;
    const uint64_t n_rows = s->pass.n_rows, there = HEAD_BYTES + n_rows * (s->in->row_bytes + 12),
                   back = HEAD_BYTES + n_rows * (s->in->row_bytes + 4);
    MOE_TRY(moe_pass_poll(&s->pass, err));
    if (rank > 0) {
        const struct moe_wire_pace *w = &s->others[rank - 1].wire;
        const double part = fmin((double)back, rows_of_answer(s) * (double)s->in->row_bytes),
                     waited = message_seconds(w, (double)there) + message_seconds(w, part);
        took(s, (double)(there + back) * w->handling_byte);
        s->phase->host_seconds += sleep_until(s, clock_now(s) + waited);
    }
    if (rank > 0 && s->counts_work && s->in->work) {
        struct moe_simulated_work *work = &s->in->work[rank - 1];
        work->messages += n_rows > ROWS_WITHIN ? 2 : 1;
        work->bytes_sent += there;
        work->bytes_received += back;
    }
    return moe_pass_poll(&s->pass, err);
}

/* Messages of the request go out one after the other; each is answered when its experts are
 * computed. Rows that do not lie in them go to the next rank when the one before has said that it
 * has them. */
static int begin_elsewhere(void *ctx, struct moe_err *err)
{
    struct simulator *s = ctx;
    const struct moe_layer_request *q = &s->request;
    const uint64_t n_rows = s->pass.n_rows;
    const double bytes = asked_bytes(s);
    uint32_t n_asked = 0;
    for (uint32_t i = 0; i < s->in->n_ranks; i++)
        s->others[i].n_rows = 0;
    for (uint32_t i = 0; i < q->n_entries; i++)
        if (q->kinds[i] == MOE_ENTRY_ELSEWHERE)
            s->others[q->ranks[i] - 1].n_rows += q->n_rows[i];
    for (uint32_t i = 0; i < s->in->n_ranks; i++) {
        struct other *o = &s->others[i];
        if (o->n_rows == 0)
            continue;
        took(s, bytes * o->wire.handling_byte + (n_asked++ ? o->wire.handling : 0));
        const double from = fmax(clock_now(s), s->sends_until);
        const double arrives = from + message_seconds(&o->wire, bytes);
        s->sends_until =
            n_rows > ROWS_WITHIN ? arrives + o->wire.latency : from + bytes * o->wire.byte;
        MOE_TRY(ask_other(s, o, arrives, err));
        if (s->counts_work && s->in->work) {
            s->in->work[i].messages += n_rows > ROWS_WITHIN ? 2 : 1;
            s->in->work[i].bytes_sent += (uint64_t)bytes;
        }
    }
    return MOE_OK;
}

/* The next answer of those that are still to come; NULL: all have. */
static struct other *next_answer(struct simulator *s)
{
    struct other *next = NULL;
    for (uint32_t i = 0; i < s->in->n_ranks; i++) {
        struct other *o = &s->others[i];
        if (o->n_rows > 0 && (!next || o->due < next->due))
            next = o;
    }
    return next;
}

/* Takes answers in as they come. One in several messages comes while the rank computes on: each
 * message leaves when its rows are computed, behind those before it. */
static int collect_elsewhere(void *ctx, bool *all, struct moe_err *err)
{
    struct simulator *s = ctx;
    struct other *o;
    uint32_t n_taken = 0;
    (void)err;
    while ((o = next_answer(s))) {
        const double bytes = answered_bytes(s, o);
        const double n_messages = ceil(o->n_rows / rows_of_answer(s));
        const double each = bytes / n_messages, first = o->asked + (o->due - o->asked) / n_messages;
        const double last = fmax(o->due, first + (bytes - each) * o->wire.byte);
        s->takes_until =
            fmax(last + message_seconds(&o->wire, each), s->takes_until + bytes * o->wire.byte);
        took(s, (bytes - each) * o->wire.handling_byte);
        s->phase->host_seconds += sleep_until(s, s->takes_until);
        took(s, each * o->wire.handling_byte + (n_messages - (n_taken++ == 0)) * o->wire.handling);
        if (s->counts_work && s->in->work)
            s->in->work[o - s->others].bytes_received += (uint64_t)bytes;
        o->n_rows = 0;
    }
    *all = true;
    return MOE_OK;
}

static int hint_others(void *ctx, const struct moe_prediction *predictions, uint32_t n,
                       struct moe_err *err)
{
    struct simulator *s = ctx;
    for (uint32_t i = 0; i < s->in->n_ranks; i++) {
        struct other *o = &s->others[i];
        sleep_until(o->simulator, clock_now(s) + o->wire.latency);
        if (o->begun && moe_pass_predicts(o->simulator->in->scheduler.strategy))
            MOE_TRY(moe_scheduler_predicted(o->simulator->scheduler, predictions, n, err));
    }
    return MOE_OK;
}

/* Rows go from one machine to another. Known is only the way from rank 0 to each. */
static double hop_seconds(const struct simulator *s, uint32_t from, uint32_t to, double bytes)
{
    const struct other *o = s->others;
    return fmax(from ? message_seconds(&o[from - 1].wire, bytes) : 0,
                to ? message_seconds(&o[to - 1].wire, bytes) : 0);
}

/* Whole layers of another machine, which goes through them as this one would once rows have come
 * from the one before, *from, which they have left at *left; these are set to its own. */
static int pass_on(struct simulator *s, uint32_t rank, uint32_t begin, uint32_t end, uint32_t *from,
                   double *left, struct moe_err *err)
{
    struct other *o = &s->others[rank - 1];
    struct simulator *x = o->simulator;
    const uint64_t n_rows = s->pass.n_rows, bytes = HEAD_BYTES + n_rows * (s->in->row_bytes + 16);
    sleep_until(x, *left + hop_seconds(s, *from, rank, (double)bytes));
    begin_pass_of_other(s, o);
    const double began = clock_now(x);
    took(x, 2 * (double)bytes * o->wire.handling_byte);
    MOE_TRY(moe_pass_expect(&x->pass, begin, end, err));
    MOE_TRY(moe_pass_layers(&x->pass, begin, end, err));
    *from = rank;
    *left = clock_now(x);
    x->phase->seconds += *left - began;
    if (s->counts_work && s->in->work) {
        s->in->work[rank - 1].messages += n_rows > ROWS_WITHIN ? 2 : 1;
        s->in->work[rank - 1].bytes_sent += bytes;
    }
    return MOE_OK;
}

/* Rows come back here from the last of the machines. */
static void come_back(struct simulator *s, uint32_t from, double left)
{
    const double n_rows = s->pass.n_rows,
                 bytes = HEAD_BYTES + n_rows * ((double)s->in->row_bytes + 4),
                 n_answers = ceil(n_rows / rows_of_answer(s));
    left += n_answers * hop_seconds(s, from, 0, bytes / n_answers);
    s->phase->host_seconds += sleep_until(s, left);
    if (s->counts_work && s->in->work)
        s->in->work[from - 1].bytes_received += (uint64_t)bytes;
}

/* Layers [begin, end). The last ones may be other machines'; the head is here. */
static int run_layers(struct simulator *s, uint32_t begin, uint32_t end, struct moe_err *err)
{
    const uint8_t *owners = s->in->owners;
    uint32_t own = begin, from = 0;
    while (own < end && !(owners && owners[own]))
        own++;
    MOE_TRY(moe_pass_expect(&s->pass, begin, own, err));
    MOE_TRY(moe_pass_layers(&s->pass, begin, own, err));
    double left = clock_now(s);
    for (uint32_t first = own, next = own; first < end; first = next) {
        while (next < end && owners[next] == owners[first])
            next++;
        MOE_TRY(pass_on(s, owners[first], first, next, &from, &left, err));
    }
    if (own == end)
        return MOE_OK;
    come_back(s, from, left);
    took(s, s->in->pace->head);
    return MOE_OK;
}

static const struct moe_pass_ops pass_ops = {
    .attend = attend,
    .choose = choose_recorded,
    .route = route_recorded,
    .combine = count_layer,
    .begin_elsewhere = begin_elsewhere,
    .collect = collect_elsewhere,
    .hint = hint_others,
    .took = took,
    .clock = clock_now,
};

/* Another machine only computes. */
static const struct moe_pass_ops other_ops = {.took = took, .clock = clock_now};

/* ---- A pass ---- */

static int run_pass(struct simulator *s, struct moe_simulated *out,
                    const struct moe_replay_pass *pass, struct moe_err *err)
{
    const struct moe_inventory *inv = s->inventory;
    const bool encodes = inv->n_model_encoder > 0 && pass->prompt;
    /* A source goes through the layers of the encoder, each token of its target through the
     * decoder's; without an encoder every pass goes through all. */
    uint32_t begin = encodes ? 0 : inv->n_model_encoder;
    uint32_t end = encodes ? inv->n_model_encoder : inv->n_model_layers;
    struct moe_simulated *counted = pass->warms ? &s->uncounted : out;
    struct moe_simulated_phase *phase = pass->prompt ? &counted->prefill : &counted->decode;
    const struct moe_pass_rows rows = {
        .n = pass->n_rows,
        .at_once = pass->n_rows == 1 ? MOE_MAX_TOP_K : 1,
        .decode = !pass->prompt,
        .first = pass->first,
        .positions = moe_pace_positions(pass->position, pass->n_rows),
    };
    s->phase = s->channel.phase = phase;
    s->counts_work = rows.decode && !pass->warms;
    s->counts_layers = s->layers && s->counts_work;
    const struct moe_loan *loan = &s->in->scheduler.pools->loan;
    if (pass->first)
        moe_scheduler_begin_sequence(s->scheduler);
    if (!encodes)
        moe_scheduler_set_blocks(
            s->scheduler, moe_loan_blocks(loan, (uint64_t)pass->position + pass->n_rows), false);
    moe_scheduler_begin_tokens(s->scheduler, pass->n_rows, pass->prompt, &phase->experts);
    moe_pass_begin(&s->pass, &rows, &phase->experts, &phase->host_seconds, &s->predict_seconds);
    double started = s->channel.link.clock, host_before = phase->host_seconds;
    uint64_t loads_before = phase->experts.loads;
    double stalled_before = s->channel.stalled;
    MOE_TRY(run_layers(s, begin, end, err));
    for (uint32_t i = 0; i < s->in->n_ranks; i++)
        end_pass_of_other(&s->others[i]);
    double seconds = s->channel.link.clock - started;
    double stalled = s->channel.stalled - stalled_before;
    double worked = s->channel.link.worked_seconds - s->worked_seen;
    moe_scheduler_end_tokens(s->scheduler, rows.decode && phase->tokens > s->decoded_before,
                             seconds, stalled, s->channel.link.busy_seconds - s->link_seen,
                             phase->experts.loads - loads_before);
    phase->tokens += pass->n_rows;
    phase->seconds += seconds;
    phase->stall_seconds += stalled;
    phase->handling_seconds += worked;
    phase->positions += rows.positions;
    phase->compute_seconds +=
        moe_components_of(seconds, worked, stalled, phase->host_seconds - host_before)
            .seconds[MOE_COMPONENT_COMPUTE];
    s->worked_seen = s->channel.link.worked_seconds;
    phase->link_seconds += s->channel.link.busy_seconds - s->link_seen;
    s->link_seen = s->channel.link.busy_seconds;
    phase->storage_seconds += s->channel.storage.busy_seconds - s->storage_seen;
    s->storage_seen = s->channel.storage.busy_seconds;
    uint32_t n_layers = encodes ? inv->n_encoder : inv->n_layers - inv->n_encoder;
    out->token_layers += (uint64_t)pass->n_rows * n_layers;
    return MOE_OK;
}

/* ---- Opening ---- */

static void carve_pass(struct simulator *s, struct moe_arena *arena)
{
    const struct moe_request_shape shape = {
        .n_experts = s->inventory->n_experts, .top_k = s->inventory->top_k, .batch = s->batch};
    moe_pass_carve(&s->pass, arena);
    moe_layer_request_carve(&s->request, arena, &shape);
}

/* self: the rank whose experts it computes; holders NULL: it computes all of its layers. */
static int open_pass(struct simulator *s, const uint8_t *holders, uint8_t self, struct moe_err *err)
{
    const bool whole = self == 0 || !holders;
    const struct moe_inventory *inv = s->inventory;
    struct moe_arena arena = {0};
    s->pass = (struct moe_pass){
        .ops = whole ? &pass_ops : &other_ops,
        .ctx = s,
        .shape = {.n_layers = inv->n_layers,
                  .n_encoder = inv->n_encoder,
                  .loop = inv->loop,
                  .n_experts = inv->n_experts,
                  .top_k = inv->top_k,
                  .n_model_layers = self ? UINT32_MAX : inv->n_model_layers, /* others: no head */
                  .n_listed = inv->n_layers,
                  .model_layer = inv->model_layer,
                  .is_static = inv->is_static,
                  .routes_early = inv->routes_early},
        .request = &s->request,
        .pace = s->in->pace,
        .replay = s->replay,
        .log = s->in->log,
        .holders = holders,
        .self = self,
    };
    if (whole) /* it predicts; another is told */
        s->pass.strategy = *s->in->scheduler.strategy;
    carve_pass(s, &arena);
    s->block = moe_alloc(arena.used, 1, err);
    if (!s->block)
        return MOE_ERR_MEMORY;
    arena = (struct moe_arena){.base = s->block, .size = arena.used};
    carve_pass(s, &arena);
    return MOE_OK;
}

static int check_simulation(const struct moe_simulation *in, struct moe_err *err)
{
    const struct moe_trace_shape *t = moe_trace_shape(in->trace);
    const struct moe_inventory *inv = in->scheduler.inventory;
    if (t->n_layers != inv->n_layers || t->n_experts != inv->n_experts ||
        t->n_encoder != inv->n_encoder || t->top_k != inv->top_k ||
        memcmp(t->is_static, inv->is_static, inv->n_layers) != 0)
        return moe_fail(err, MOE_ERR_USAGE,
                        "the trace is of another model: %u layers of %u experts, %u a token, not "
                        "%u of %u, %u",
                        t->n_layers, t->n_experts, t->top_k, inv->n_layers, inv->n_experts,
                        inv->top_k);
    if (in->scheduler.strategy->needs_host && !(in->pace->host_slowdown >= 1))
        return moe_fail(err, MOE_ERR_USAGE,
                        "strategy %s computes experts beside the device: it needs a second device",
                        in->scheduler.strategy->name);
    return MOE_OK;
}

/* Has the cache go on with what the file says, where its policy learns. */
static int read_learnt(const struct simulator *s, struct moe_err *err)
{
    const struct moe_usage *u = moe_scheduler_usage(s->scheduler);
    const struct moe_trace_shape *t = moe_trace_shape(s->in->trace);
    const struct moe_learnt_origin of = {t->source_fingerprint, "the trace's", u->n_layers,
                                         u->n_experts, u->top_k};
    return s->in->learnt && u->follower && u->follower->learnt
               ? moe_learnt_read(s->in->learnt, &of, u->follower, err)
               : MOE_OK;
}

/* A machine, with its link and its first contents. */
static int open_machine(struct simulator *s, const uint8_t *holders, uint8_t self,
                        struct moe_err *err)
{
    const struct moe_simulation *in = s->in;
    s->inventory = in->scheduler.inventory;
    s->phase = s->channel.phase = &s->uncounted.prefill;
    MOE_TRY(simulate_link_open(&s->channel, in, err));
    MOE_TRY(open_pass(s, holders, self, err));
    struct moe_scheduler_options o = in->scheduler;
    o.n_requests = s->channel.n_items;
    o.channel = simulate_link_channel(&s->channel);
    MOE_TRY(moe_scheduler_open(&s->scheduler, &o, err));
    s->pass.scheduler = s->scheduler;
    s->channel.store = moe_scheduler_store(s->scheduler);
    MOE_TRY(read_learnt(s, err));
    int status = moe_scheduler_fill(s->scheduler, NULL, err);
    s->link_seen = s->channel.link.busy_seconds;
    s->worked_seen = s->channel.link.worked_seconds;
    s->storage_seen = s->channel.storage.busy_seconds;
    return status;
}

static int open_others(struct simulator *s, struct moe_err *err)
{
    const struct moe_simulation *in = s->in;
    s->others = moe_alloc(in->n_ranks, sizeof *s->others, err);
    if (!s->others)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < in->n_ranks; i++) {
        struct simulator *x = s->others[i].simulator = moe_alloc(1, sizeof *x, err);
        if (!x)
            return MOE_ERR_MEMORY;
        s->others[i].wire = in->ranks[i].wire;
        x->in = in->ranks[i].in;
        x->batch = s->batch;
        x->replay = in->owners ? s->replay : NULL;
        MOE_TRY(open_machine(x, in->owners ? NULL : in->holders, (uint8_t)(i + 1), err));
    }
    return MOE_OK;
}

static int open_simulator(struct simulator *s, struct moe_err *err)
{
    const struct moe_simulation *in = s->in;
    MOE_TRY(moe_replay_open(&s->replay, in->trace, in->excerpt, in->batch, in->scheduler.strategy,
                            in->statistics, err));
    s->batch = moe_replay_batch(s->replay);
    MOE_TRY(open_machine(s, in->owners ? NULL : in->holders, 0, err));
    return in->n_ranks ? open_others(s, err) : MOE_OK;
}

static void close_machine(struct simulator *s)
{
    moe_scheduler_close(s->scheduler);
    simulate_link_close(&s->channel);
    free(s->block);
}

static void close_simulator(struct simulator *s)
{
    for (uint32_t i = 0; s->others && i < s->in->n_ranks; i++) {
        if (s->others[i].simulator)
            close_machine(s->others[i].simulator);
        free(s->others[i].simulator);
    }
    free(s->others);
    close_machine(s);
    moe_replay_close(s->replay);
}

/* What the other machines did for decoded tokens. */
static void count_work(const struct simulator *s)
{
    for (uint32_t i = 0; s->in->work && i < s->in->n_ranks; i++) {
        const struct moe_simulated_phase *d = &s->others[i].counted.decode;
        struct moe_simulated_work *w = &s->in->work[i];
        w->activations += d->experts.activations - d->experts.elsewhere;
        w->hits += d->experts.cache_hits + d->experts.prefetch_hits;
        w->bytes += d->bytes;
        w->busy_seconds += d->seconds;
    }
}

/* ---- What simulations share ---- */

/* What the choices depend on, and what is remembered of them. Compared byte by byte. */
struct tape_key {
    const struct moe_policy_ops *cache;
    uint64_t max_tokens, first, warm; /* of the excerpt, and */
    uint32_t every, cut, cold, prompt;
    uint32_t n_tokens;
};

struct tape {
    struct tape *next;
    struct tape_key key;
    uint32_t batch, most_rows; /* of a pass, at most and in fact */
    struct moe_buf data;
    bool whole; /* another may read it */
};

struct moe_tapes {
    pthread_mutex_t lock;
    uint64_t room; /* bytes left */
    struct tape *first;
};

int moe_tapes_open(struct moe_tapes **out, uint64_t room, struct moe_err *err)
{
    *out = moe_alloc(1, sizeof **out, err);
    if (!*out)
        return MOE_ERR_MEMORY;
    pthread_mutex_init(&(*out)->lock, NULL);
    (*out)->room = room;
    return MOE_OK;
}

void moe_tapes_close(struct moe_tapes *t)
{
    if (!t)
        return;
    while (t->first) {
        struct tape *tape = t->first;
        t->first = tape->next;
        moe_buf_release(&tape->data);
        free(tape);
    }
    pthread_mutex_destroy(&t->lock);
    free(t);
}

/* Whether choices come in the same passes: a batch that no pass fills is as good as any that holds
 * them. */
static bool has_passes(const struct tape *tape, uint32_t batch)
{
    return batch == tape->batch ||
           (tape->whole && tape->most_rows < tape->batch && tape->most_rows <= batch);
}

/* A whole tape of that key and batch, or a new one, to be written, if it is the first and there is
 * room for `bytes`; else NULL. */
static struct tape *find_tape(struct moe_tapes *t, const struct tape_key *key, uint32_t batch,
                              uint64_t bytes)
{
    struct moe_err ignored;
    pthread_mutex_lock(&t->lock);
    struct tape *tape = t->first;
    while (tape && (memcmp(&tape->key, key, sizeof *key) != 0 || !has_passes(tape, batch)))
        tape = tape->next;
    const bool known = tape != NULL;
    if (known && !tape->whole)
        tape = NULL;
    if (!known && bytes <= t->room && (tape = moe_alloc(1, sizeof *tape, &ignored))) {
        tape->key = *key;
        tape->batch = batch;
        tape->next = t->first;
        t->first = tape;
        t->room -= bytes;
    }
    pthread_mutex_unlock(&t->lock);
    return tape;
}

/* Has the cache's record follow the tape of its choices, or write it. Routers choose what was
 * recorded, but where the strategy replaces that. */
static struct tape *share_record(const struct simulator *s)
{
    const struct moe_simulation *in = s->in;
    const struct moe_strategy *strategy = in->scheduler.strategy;
    const struct moe_excerpt *e = &in->excerpt;
    struct moe_follower *f = moe_scheduler_usage(s->scheduler)->follower;
    struct tape_key key;
    if (!in->tapes || !f || !f->share || strategy->prefer > 0 || strategy->precalculate)
        return NULL;
    memset(&key, 0, sizeof key);
    key.cache = strategy->cache;
    key.max_tokens = e->max_tokens;
    key.first = e->first;
    key.warm = e->warm;
    key.every = e->every;
    key.cut = e->cut;
    key.cold = e->cold;
    key.prompt = e->prompt;
    key.n_tokens = f->n_tokens;
    const uint64_t all = moe_trace_totals(in->trace)->tokens;
    const uint64_t n = e->max_tokens && e->max_tokens < all ? e->max_tokens : all;
    struct tape *tape =
        find_tape(in->tapes, &key, s->batch, n * s->inventory->n_layers * f->step_bytes);
    if (tape)
        f->share(f, &tape->data, tape->whole);
    return tape;
}

/* Once all is written. */
static void finish_tape(struct moe_tapes *t, struct tape *tape, uint32_t most_rows)
{
    pthread_mutex_lock(&t->lock);
    tape->most_rows = most_rows;
    tape->whole = !tape->data.failed;
    pthread_mutex_unlock(&t->lock);
}

/* Adds what becomes of the excerpt, from the cache's first contents on. */
static int simulate(const struct moe_simulation *in, struct moe_simulated *out,
                    struct moe_simulated_layer *layers, struct moe_err *err)
{
    struct simulator s = {.in = in, .layers = layers, .decoded_before = out->decode.tokens};
    struct moe_replay_pass pass;
    int status = open_simulator(&s, err);
    struct tape *tape = status == MOE_OK ? share_record(&s) : NULL;
    uint32_t most_rows = 0;
    while (status == MOE_OK) {
        status = moe_replay_next(s.replay, &pass, err);
        if (status != MOE_OK || pass.n_rows == 0)
            break;
        most_rows = pass.n_rows > most_rows ? pass.n_rows : most_rows;
        status = run_pass(&s, out, &pass, err);
        if (status == MOE_OK && moe_progress_stopped(in->progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    if (status == MOE_OK) /* evictions at the end count for the last pass */
        moe_scheduler_begin_tokens(s.scheduler, 0, false, &s.uncounted.decode.experts);
    if (tape && status == MOE_OK)
        finish_tape(in->tapes, tape, most_rows);
    if (status == MOE_OK)
        count_work(&s);
    close_simulator(&s);
    return status;
}

int moe_simulate(const struct moe_simulation *in, struct moe_simulated *out,
                 struct moe_simulated_layer *layers, struct moe_err *err)
{
    struct moe_simulation one = *in;
    *out = (struct moe_simulated){0};
    if (layers)
        memset(layers, 0, in->scheduler.inventory->n_layers * sizeof *layers);
    MOE_TRY(check_simulation(in, err));
    if (!in->excerpt.cold)
        return simulate(in, out, layers, err);
    for (uint32_t i = 0; moe_excerpt_one(in->trace, in->excerpt, i, &one.excerpt); i++)
        MOE_TRY(simulate(&one, out, layers, err));
    return MOE_OK;
}

/* ---- From storage, through places ---- */

static bool read_cargo(void *ctx, uint32_t item)
{
    struct simulate_link *l = ctx;
    const struct simulate_cargo *x = &l->cargo[item];
    const struct moe_transfer *t = &l->transfers.transfers[item];
    x->phase->storage_bytes += x->bytes;
    moe_link_add(&l->storage, item, x->bytes, t->priority, t->score);
    return true;
}

static bool copy_cargo(void *ctx, uint32_t item)
{
    struct simulate_link *l = ctx;
    const struct moe_transfer *t = &l->transfers.transfers[item];
    moe_link_add(&l->link, item, l->cargo[item].bytes, t->priority, t->score);
    return true;
}

/* The link that a transfer's bytes are on. */
static struct moe_link *link_of(struct simulate_link *l, uint32_t item)
{
    bool reads = l->tiers && l->transfers.transfers[item].state == MOE_TRANSFER_READING;
    return reads ? &l->storage : &l->link;
}

static void promote_cargo(void *ctx, uint32_t item)
{
    moe_link_promote(link_of(ctx, item), item, MOE_LOAD_DEMAND, 0);
}

/* The bytes not moved yet are never moved. */
static bool drop_cargo(void *ctx, uint32_t item)
{
    struct simulate_link *l = ctx;
    struct moe_link *link = link_of(l, item);
    const struct simulate_cargo *x = &l->cargo[item];
    uint64_t moved = link->items[item].started;
    uint64_t *counted = link == &l->storage ? &x->phase->storage_bytes : &x->phase->bytes;
    *counted -= x->bytes - moved;
    x->phase->experts.prefetch_wasted_bytes += moved;
    moe_link_drop(link, item);
    return true;
}

static const struct moe_transfer_ops transfer_ops = {
    .read = read_cargo, .copy = copy_cargo, .drop = drop_cargo, .promote = promote_cargo};

static uint32_t low_variant(const struct moe_scheduler_options *o)
{
    return o->strategy->needs_low ? o->low : o->high;
}

/* The places hold what the host tier would be filled with. */
static int fill_places(struct simulate_link *l, const struct moe_scheduler_options *o,
                       struct moe_err *err)
{
    const struct moe_inventory *inv = l->inventory;
    struct moe_host_wish *wishes =
        moe_alloc(2 * (uint64_t)inv->n_layers * inv->n_experts, sizeof *wishes, err);
    if (!wishes)
        return MOE_ERR_MEMORY;
    uint32_t n =
        moe_host_places_assign(&l->places, inv, o->high, low_variant(o), o->frequency, wishes);
    for (uint32_t i = 0; i < n; i++) {
        struct moe_host_place *x = &l->places.places[l->places.of_copy[wishes[i].copy]];
        x->arrived = (1u << inv->classes[x->class_index].n_segments) - 1;
    }
    moe_host_places_settle(&l->places, wishes, n);
    free(wishes);
    return MOE_OK;
}

static int open_tiers(struct simulate_link *l, const struct moe_simulation *in, struct moe_err *err)
{
    const struct moe_scheduler_options *o = &in->scheduler;
    const struct moe_inventory *inv = l->inventory;
    struct moe_host_sizes sizes;
    moe_host_sizes_of(&sizes, inv, o->pools, o->high, low_variant(o), in->host_bytes);
    if (sizes.whole)
        return MOE_OK;
    l->tiers = true;
    l->transfers = (struct moe_transfers){
        .ops = &transfer_ops, .ctx = l, .inventory = inv, .places = &l->places};
    MOE_TRY(moe_transfers_open(&l->transfers, l->n_items, err));
    MOE_TRY(moe_host_places_open(&l->places, inv->n_layers * inv->n_experts * inv->n_variants,
                                 sizes.n, inv->n_classes, err));
    l->storage_items = moe_alloc(l->n_items, sizeof *l->storage_items, err);
    if (!l->storage_items)
        return MOE_ERR_MEMORY;
    moe_link_init(&l->storage, l->storage_items, l->n_items, l->link.piece_bytes,
                  in->pace->storage_rate);
    l->storage.costs.piece = in->pace->storage_piece_seconds;
    /* A device computes: loads take nothing of its time. Both links then have one clock. */
    l->link.costs =
        (struct moe_link_costs){.piece = in->pace->loads.piece, .latency = in->pace->loads.latency};
    return fill_places(l, o, err);
}

/* ---- Opening ---- */

static int simulate_link_open(struct simulate_link *l, const struct moe_simulation *in,
                              struct moe_err *err)
{
    l->inventory = in->scheduler.inventory;
    l->n_items = in->scheduler.pools->n_slots * MOE_PACK_MAX_SEGMENTS;
    if (in->scheduler.n_requests && l->n_items > in->scheduler.n_requests)
        l->n_items = in->scheduler.n_requests;
    l->items = moe_alloc(l->n_items, sizeof *l->items, err);
    l->cargo = moe_alloc(l->n_items, sizeof *l->cargo, err);
    l->free_items = moe_alloc(l->n_items, sizeof *l->free_items, err);
    if (!l->items || !l->cargo || !l->free_items)
        return MOE_ERR_MEMORY;
    while (l->n_free < l->n_items) {
        l->free_items[l->n_free] = l->n_items - 1 - l->n_free;
        l->n_free++;
    }
    moe_link_init(&l->link, l->items, l->n_items,
                  in->piece_bytes ? in->piece_bytes : MOE_LINK_PIECE_BYTES, in->pace->load_rate);
    l->link.costs = moe_strategy_loads(in->scheduler.strategy, in->pace->loads);
    return in->pace->storage_rate > 0 ? open_tiers(l, in, err) : MOE_OK;
}

static void simulate_link_close(struct simulate_link *l)
{
    free(l->items);
    free(l->cargo);
    free(l->free_items);
    free(l->storage_items);
    moe_transfers_close(&l->transfers);
    moe_host_places_close(&l->places);
}

/* What has come from storage goes on. */
static void take_in_reads(struct simulate_link *l)
{
    uint32_t item;
    while ((item = moe_link_take_arrived(&l->storage)) != MOE_LINK_NONE)
        moe_transfers_read(&l->transfers, item, true);
    moe_transfers_go_on(&l->transfers);
}

/* Advances both links to the end of the next piece from storage, or by `most`; returns how far. */
static double advance_piece(struct simulate_link *l, double most)
{
    double seconds = fmin(moe_link_next_piece(&l->storage), most);
    moe_link_advance(&l->storage, seconds);
    moe_link_advance(&l->link, seconds);
    return seconds;
}

static void simulate_link_advance(struct simulate_link *l, double seconds)
{
    if (!l->tiers) {
        moe_link_advance(&l->link, seconds);
        return;
    }
    while (seconds > 0) {
        seconds -= advance_piece(l, seconds);
        take_in_reads(l);
    }
}

/* Until something arrives in a slot, or nothing is under way. */
static void wait_for_arrival(struct simulate_link *l)
{
    if (!l->tiers) {
        moe_link_wait(&l->link);
        return;
    }
    take_in_reads(l);
    for (double next; (next = moe_link_next_piece(&l->link)) > 0; take_in_reads(l)) {
        if (isinf(next) && isinf(moe_link_next_piece(&l->storage)))
            return;
        advance_piece(l, next);
    }
}

/* ---- The channel ---- */

static int submit_segment(void *ctx, uint32_t slot, uint32_t segment,
                          enum moe_load_priority priority, float score, uint32_t *handle,
                          struct moe_err *err)
{
    struct simulate_link *l = ctx;
    const struct moe_slot *x = moe_store_slot(l->store, slot);
    if (l->n_free == 0)
        return moe_fail(err, MOE_ERR_LIMIT, "more loads under way than there is room for");
    uint32_t item = l->free_items[--l->n_free];
    uint64_t bytes = moe_inventory_load_bytes(l->inventory, x->key, x->variant, segment);
    uint32_t copy = moe_expert_copy(l->inventory->n_variants, x->key, x->variant);
    l->cargo[item] = (struct simulate_cargo){
        .slot = slot, .segment = segment, .phase = l->phase, .bytes = bytes};
    l->phase->bytes += bytes;
    *handle = item;
    if (!l->tiers) {
        moe_link_add(&l->link, item, bytes, priority, score);
        return MOE_OK;
    }
    if (segment == 0) {
        bool hit = moe_host_places_complete(&l->places, l->inventory, copy);
        l->phase->host_hits += hit;
        l->phase->disk_loads += !hit;
    }
    moe_transfers_add(&l->transfers, item, copy, segment, priority, score);
    return MOE_OK;
}

static void promote_item(void *ctx, uint32_t handle)
{
    struct simulate_link *l = ctx;
    if (l->tiers)
        moe_transfers_promote(&l->transfers, handle);
    else
        promote_cargo(l, handle);
}

static bool cancel_item(void *ctx, uint32_t handle)
{
    struct simulate_link *l = ctx;
    bool on_link = !l->tiers || l->transfers.transfers[handle].state == MOE_TRANSFER_COPYING;
    if (!on_link) /* what never came to it is not counted */
        l->cargo[handle].phase->bytes -= l->cargo[handle].bytes;
    if (l->tiers)
        moe_transfers_cancel(&l->transfers, handle);
    else
        drop_cargo(l, handle);
    l->free_items[l->n_free++] = handle;
    return true;
}

static uint32_t reap_items(void *ctx, bool wait, struct moe_arrival *done, uint32_t max)
{
    struct simulate_link *l = ctx;
    uint32_t n = 0, item;
    if (l->tiers)
        take_in_reads(l);
    if (wait) {
        double before = l->link.clock, worked = l->link.worked_seconds;
        wait_for_arrival(l);
        l->stalled += l->link.clock - before - (l->link.worked_seconds - worked);
    }
    while (n < max && (item = moe_link_take_arrived(&l->link)) != MOE_LINK_NONE) {
        done[n++] = (struct moe_arrival){l->cargo[item].slot, l->cargo[item].segment, MOE_OK};
        l->free_items[l->n_free++] = item;
        if (l->tiers)
            moe_transfers_copied(&l->transfers, item, true);
    }
    if (l->tiers)
        moe_transfers_go_on(&l->transfers);
    return n;
}

/* Nothing fails on a modelled link. */
static int fail_item(void *ctx, struct moe_err *err)
{
    return moe_fail(err, MOE_ERR_IO, "a modelled load failed");
}

static void limit_link(void *ctx, double bytes)
{
    moe_link_limit_prefetches(&((struct simulate_link *)ctx)->link, bytes);
}

static struct moe_channel simulate_link_channel(struct simulate_link *l)
{
    return (struct moe_channel){.ctx = l,
                                .submit = submit_segment,
                                .promote = promote_item,
                                .cancel = cancel_item,
                                .reap = reap_items,
                                .failure = fail_item,
                                .limit_prefetches = limit_link};
}
