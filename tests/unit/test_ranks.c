/*
 * Ranks: several processes that share out a model's experts give the bits of one, whatever each
 * keeps; what one of them fails with, another pack, and one that is silent are errors of rank 0.
 * The ranks are threads here, and the wire is queues in memory.
 */
#define _DEFAULT_SOURCE /* mkdtemp */
#include <pthread.h>

#include "base/clock.h"
#include "ranks/ranks.h"
#include "sched/share.h"

#include "simulated_fixture.h"

enum { MOST_RANKS = 4 };

/* ---- A wire in memory ---- */

struct message {
    struct message *next;
    uint64_t bytes;
    uint8_t data[];
};

struct hub {
    pthread_mutex_t lock;
    struct message *first[MOST_RANKS][MOST_RANKS][MOE_N_LANES]; /* [from][to] */
    uint32_t n_ranks;
    uint64_t piece_bytes;                                                     /* of rank 0's file */
    uint64_t messages[MOST_RANKS][MOST_RANKS], bytes[MOST_RANKS][MOST_RANKS]; /* [from][to] */
    uint32_t loads_long; /* a rank that loads until it is told to stop */
    uint64_t at_once;    /* bytes of messages that are said to lie unread */
    bool aborted;
};

struct test_wire {
    struct moe_wire base;
    struct hub *hub;
    struct {
        void *buffer;
        uint64_t room;
    } expected[MOST_RANKS][MOE_N_LANES];
};

/* A load of half a minute, which is longer than any that rank 0 waits for without a sign. */
static void wait_for_stop(struct hub *hub, uint32_t rank)
{
    const double began = moe_seconds();
    for (bool told = false; !told && moe_seconds() - began < 30;) {
        usleep(1000);
        pthread_mutex_lock(&hub->lock);
        told = hub->first[0][rank][MOE_LANE_HINT] != NULL;
        pthread_mutex_unlock(&hub->lock);
    }
}

static int send_message(struct moe_wire *wire, uint32_t to, enum moe_wire_lane lane,
                        const void *data, uint64_t bytes, struct moe_err *err)
{
    struct test_wire *w = (struct test_wire *)wire;
    struct message *m = malloc(sizeof *m + bytes), **end;
    assert_non_null(m);
    if (wire->rank && wire->rank == w->hub->loads_long &&
        *(const uint32_t *)data == MOE_RANK_LOADING)
        wait_for_stop(w->hub, wire->rank);
    *m = (struct message){.bytes = bytes};
    memcpy(m->data, data, bytes);
    pthread_mutex_lock(&w->hub->lock);
    if (*(const uint32_t *)data == MOE_RANK_PIECE)
        w->hub->piece_bytes += bytes - sizeof(struct moe_rank_piece);
    w->hub->messages[wire->rank][to]++;
    w->hub->bytes[wire->rank][to] += bytes;
    end = &w->hub->first[wire->rank][to][lane];
    while (*end)
        end = &(*end)->next;
    *end = m;
    pthread_mutex_unlock(&w->hub->lock);
    return MOE_OK;
}

static int was_sent(struct moe_wire *wire, uint32_t to, enum moe_wire_lane lane, bool *done,
                    struct moe_err *err)
{
    *done = true;
    return MOE_OK;
}

static int receive_message(struct moe_wire *wire, uint32_t from, enum moe_wire_lane lane,
                           void *buffer, uint64_t room, struct moe_err *err)
{
    struct test_wire *w = (struct test_wire *)wire;
    w->expected[from][lane].buffer = buffer;
    w->expected[from][lane].room = room;
    return MOE_OK;
}

static int has_arrived(struct moe_wire *wire, uint32_t from, enum moe_wire_lane lane, bool *done,
                       uint64_t *bytes, struct moe_err *err)
{
    struct test_wire *w = (struct test_wire *)wire;
    assert_non_null(w->expected[from][lane].buffer);
    pthread_mutex_lock(&w->hub->lock);
    struct message *m = w->hub->first[from][wire->rank][lane];
    if (m)
        w->hub->first[from][wire->rank][lane] = m->next;
    pthread_mutex_unlock(&w->hub->lock);
    *done = m != NULL;
    if (!m)
        return MOE_OK;
    assert_true(m->bytes <= w->expected[from][lane].room);
    memcpy(w->expected[from][lane].buffer, m->data, m->bytes);
    w->expected[from][lane].buffer = NULL;
    *bytes = m->bytes;
    free(m);
    return MOE_OK;
}

static void abort_all(struct moe_wire *wire, int exit_status)
{
    ((struct test_wire *)wire)->hub->aborted = true;
}

static void close_wire(struct moe_wire *wire)
{
    free(wire);
}

static const struct moe_wire_ops test_ops = {
    .name = "queues",
    .send = send_message,
    .sent = was_sent,
    .receive = receive_message,
    .arrived = has_arrived,
    .abort = abort_all,
    .close = close_wire,
};

static struct moe_ranks *open_rank(struct hub *hub, uint32_t rank, double patience)
{
    struct moe_err err = {0};
    struct moe_ranks *ranks;
    struct test_wire *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->hub = hub;
    w->base = (struct moe_wire){.ops = &test_ops,
                                .rank = rank,
                                .n_ranks = hub->n_ranks,
                                .n_here = hub->n_ranks,
                                .cores = 0.5, /* nobody spins */
                                .at_once = hub->at_once,
                                .patience = patience};
    assert_ok(moe_ranks_open(&ranks, &w->base, &err), &err);
    return ranks;
}

static void open_hub(struct hub *hub, uint32_t n_ranks)
{
    *hub = (struct hub){.n_ranks = n_ranks};
    pthread_mutex_init(&hub->lock, NULL);
}

static void close_hub(struct hub *hub)
{
    for (uint32_t i = 0; i < MOST_RANKS * MOST_RANKS * MOE_N_LANES; i++) {
        struct message *m = (&hub->first[0][0][0])[i], *next;
        for (; m; m = next) {
            next = m->next;
            free(m);
        }
    }
    pthread_mutex_destroy(&hub->lock);
}

/* ---- Ranks ---- */

static const double PATIENCE = 60;

struct helper {
    struct hub *hub;
    uint32_t rank;
    char *pack, *spread;
    const char *strategy;
    uint64_t expert_bytes;
    struct moe_err err;
    int status;
    pthread_t thread;
};

/* Options of other ranks than 0. */
static struct others {
    const char *draft, *low, *follows;
    uint32_t staging;
    const struct moe_statistics *statistics;
    bool share_attention;
} others;

static bool drafts;      /* models have the layer that drafts, or */
static const char *head; /* a head in its place; NULL: none */

/* What ranks share out beside experts. */
enum shares { ONLY_EXPERTS, ATTENTION_TOO, WHOLE_LAYERS };
static enum shares all_share;                   /* on all ranks */
static const struct moe_statistics *statistics; /* ... have these; NULL: none */
static uint64_t budget;                         /* ... have this, bytes; 0: what is free */

static struct moe_engine_options options_of(const char *strategy, uint64_t expert_bytes)
{
    struct moe_err err = {0};
    uint32_t named;
    struct moe_engine_options o = {.memory_bytes = budget,
                                   .expert_memory_bytes = expert_bytes,
                                   .ahead = drafts,
                                   .drafter = head,
                                   .share_attention = all_share == ATTENTION_TOO,
                                   .share_layers = all_share == WHOLE_LAYERS,
                                   .statistics = statistics,
                                   .session = {.batch = 2 * N_IDS}};
    assert_ok(moe_strategy_parse(strategy, &o.strategy, &named, &err), &err);
    moe_strategy_drop_idle(&o.strategy, named);
    assert_ok(moe_strategy_settle(&o.strategy, &err), &err);
    return o;
}

static void *help(void *ctx)
{
    struct helper *h = ctx;
    struct moe_engine_options o = options_of(h->strategy, h->expert_bytes);
    o.ranks = open_rank(h->hub, h->rank, PATIENCE);
    o.spread = h->spread;
    o.draft = others.draft;
    o.low_variant = others.low;
    o.staging = others.staging;
    o.follows_name = others.follows;
    o.statistics = others.statistics ? others.statistics : o.statistics;
    o.share_attention |= others.share_attention;
    h->status = moe_engine_serve_rank(h->pack, &o, &h->err);
    moe_ranks_close(o.ranks, 0);
    return NULL;
}

static void start(struct helper *h, struct hub *hub, uint32_t rank, const char *pack,
                  const char *strategy, uint64_t expert_bytes)
{
    *h = (struct helper){.hub = hub,
                         .rank = rank,
                         .pack = strdup(in_dir(pack)),
                         .strategy = strategy,
                         .expert_bytes = expert_bytes};
    assert_int_equal(pthread_create(&h->thread, NULL, help, h), 0);
}

static void join(struct helper *h)
{
    pthread_join(h->thread, NULL);
    free(h->pack);
}

/* Logits of the ids: those of run(), all of them as one prompt, and what is drafted after that. */
static float *run_both(struct moe_session *s, const uint32_t *ids, uint32_t part)
{
    struct moe_err err = {0};
    struct moe_row rows[N_IDS];
    const uint64_t stride = moe_logits_stride(&s->model->config);
    float *logits = run(s, ids, part);
    logits = realloc(logits, 3 * N_IDS * stride * sizeof *logits);
    memset(logits + 2 * N_IDS * stride, 0, N_IDS * stride * sizeof *logits);
    for (uint32_t i = 0; i < N_IDS; i++)
        rows[i] = (struct moe_row){0, i, ids[i], N_IDS};
    assert_ok(
        moe_forward(s, MOE_PREFILL, rows, N_IDS, 0, s->model->config.n_layers, NULL, NULL, &err),
        &err);
    assert_ok(moe_logits(s, 0, N_IDS, logits + N_IDS * stride, &err), &err);
    if (!drafts)
        return logits;
    for (uint32_t i = 0; i < N_IDS; i++)
        rows[i].token = ids[(i + 1) % N_IDS];
    assert_ok(moe_ahead(s, rows, N_IDS, NULL, &err), &err);
    if (s->model->config.drafter.block)
        assert_ok(moe_ahead_block(s, rows, N_IDS, &err), &err);
    assert_ok(moe_logits(s, 0, N_IDS, logits + 2 * N_IDS * stride, &err), &err);
    return logits;
}

/* ---- The same bits ---- */

/* Statistics of x.moe in which nothing was counted. */
static struct moe_statistics *any_statistics(void)
{
    struct moe_err err = {0};
    struct moe_statistics *s;
    struct moe_model *model;
    assert_ok(moe_model_open_image(&model, in_dir("x.moe"), NULL, &err), &err);
    struct moe_statistics_shape shape = moe_model_statistics_shape(model);
    shape.max_tokens = N_IDS;
    assert_ok(moe_statistics_new(&s, &shape, &err), &err);
    moe_model_close(model);
    return s;
}

/* Computes what a sequence lacks of the first n of its ids. */
static void bring(struct moe_session *s, uint32_t sequence, const uint32_t *ids, uint32_t n)
{
    struct moe_err err = {0};
    struct moe_row rows[N_IDS];
    uint32_t n_done;
    assert_ok(moe_sequence_sync(s, sequence, ids, n + 1, N_IDS, &n_done, &err), &err);
    for (uint32_t i = n_done; i < n; i++)
        rows[i - n_done] = (struct moe_row){sequence, i, ids[i], N_IDS};
    if (n_done < n)
        assert_ok(moe_forward(s, MOE_PREFILL, rows, n - n_done, 0, s->model->config.n_layers, NULL,
                              NULL, &err),
                  &err);
}

/* What sequences compute that begin alike, side by side: one has gone back to its states, one is
 * forked from it, one finds what the first knows, or begins from its snapshot. Logits of a row of
 * each; free() them. */
static float *run_alike(struct moe_session *s, const uint32_t *ids)
{
    enum { KNOWN = 20 };
    struct moe_err err = {0};
    struct moe_row rows[3];
    uint32_t part[N_IDS];
    const uint32_t n_layers = s->model->config.n_layers;
    float *logits = calloc(3 * moe_logits_stride(&s->model->config), sizeof *logits);
    assert_non_null(logits);
    memcpy(part, ids, sizeof part);
    part[KNOWN - 1] ^= 1; /* a block that is equal in part is copied */
    bring(s, 0, ids, KNOWN - 1);
    moe_sequence_snapshot(s, 0, true);
    bring(s, 0, ids, KNOWN);
    moe_sequence_keep(s, 0);
    bring(s, 0, ids, KNOWN + 2);
    bring(s, 0, ids, KNOWN);
    assert_ok(moe_sequence_fork(s, 0, 1, KNOWN, &err), &err);
    bring(s, 2, part, KNOWN);
    for (uint32_t i = 0; i < 3; i++)
        rows[i] = (struct moe_row){i, KNOWN, ids[KNOWN + i], N_IDS};
    assert_ok(moe_forward(s, MOE_DECODE, rows, 3, 0, n_layers, NULL, NULL, &err), &err);
    assert_ok(moe_logits(s, 0, 3, logits, &err), &err);
    return logits;
}

/* Sequences of a session that goes back and begins from snapshots. */
static struct moe_session_options three_texts(void)
{
    return (struct moe_session_options){
        .batch = 2 * N_IDS, .n_sequences = 3, .takes_back = true, .n_snapshots = 2};
}

/* A run of several ranks against `want`, of run_both and run_alike. */
static void check_ranks(const char *what, uint32_t n_ranks, enum shares shares,
                        const char *strategy, uint64_t expert_bytes, const uint32_t *ids,
                        uint32_t part, float *want[2], uint64_t n_logits)
{
    struct moe_err err = {0};
    struct hub hub;
    struct helper helpers[MOST_RANKS];
    struct moe_engine *e;
    open_hub(&hub, n_ranks);
    struct moe_statistics *known = n_ranks % 2 ? any_statistics() : NULL;
    statistics = known; /* then some experts are on two ranks */
    all_share = shares;
    for (uint32_t i = 1; i < n_ranks; i++) /* of several sizes, the last with all in memory */
        start(&helpers[i], &hub, i, "x.moe", i + 1 == n_ranks ? "resident" : strategy,
              i + 1 == n_ranks ? 0 : expert_bytes / i);
    struct moe_engine_options o = options_of(strategy, expert_bytes);
    o.session = three_texts();
    o.ranks = open_rank(&hub, 0, PATIENCE);
    assert_ok(moe_engine_open(&e, in_dir("x.moe"), &o, NULL, &err), &err);
    float *got[2] = {run_both(e->session, ids, part), run_alike(e->session, ids)};
    if (memcmp(want[0], got[0], 3 * N_IDS * n_logits * sizeof **want) ||
        memcmp(want[1], got[1], 3 * n_logits * sizeof **want))
        fail_msg("%s, %u ranks%s, %s, parts of %u: logits differ", what, n_ranks,
                 shares == WHOLE_LAYERS    ? " with layers"
                 : shares == ATTENTION_TOO ? " with attention"
                                           : "",
                 strategy, part);
    free(got[0]);
    free(got[1]);
    struct moe_config whole = e->model->config; /* as if all layers were here */
    moe_config_set_layers(&whole, MOE_LAYER(elsewhere), 0, whole.n_layers, 0);
    moe_config_set_layers(&whole, MOE_LAYER(away), 0, whole.n_layers, 0);
    moe_config_number_layers(&whole);
    const uint64_t kv = moe_session_kv_bytes(&e->model->config, &o.session),
                   all_kv = moe_session_kv_bytes(&whole, &o.session);
    if (shares != WHOLE_LAYERS) /* which may have states */
        assert_int_equal(kv < all_kv, shares == ATTENTION_TOO);
    else
        assert_true(kv <= all_kv && moe_config_count_layers(&e->model->config, MOE_LAYER(away)));
    const struct moe_phase_stats all = moe_stats_all(&e->session->stats);
    uint64_t n_elsewhere = 0, n_layers = 0;
    for (uint32_t i = 1; i < n_ranks; i++) {
        struct moe_rank_report report;
        assert_ok(moe_ranks_report(o.ranks, i, &report, &err), &err);
        n_elsewhere += report.figures.activations;
        n_layers += report.figures.n_layers;
        const uint32_t next = i + 1 < n_ranks ? i + 1 : 0;
        assert_int_equal(report.messages_on, next ? hub.messages[i][next] : 0);
        assert_int_equal(report.bytes_on, next ? hub.bytes[i][next] : 0);
        assert_int_equal(report.messages_on > 0, shares == WHOLE_LAYERS && next);
        assert_int_equal(report.figures.activations, report.figures.hits + report.figures.misses);
    }
    assert_true(n_elsewhere > 0 || shares == WHOLE_LAYERS); /* which may have no experts */
    assert_int_equal(n_layers, moe_config_count_layers(&e->model->config, MOE_LAYER(away)));
    assert_int_equal(all.experts.elsewhere, n_elsewhere);
    assert_int_equal(all.experts.activations, all.experts.elsewhere + all.experts.cache_hits +
                                                  all.experts.prefetch_hits +
                                                  all.experts.prefetch_late + all.experts.misses);
    moe_engine_close(e);
    moe_ranks_close(o.ranks, 0);
    for (uint32_t i = 1; i < n_ranks; i++) {
        join(&helpers[i]);
        assert_ok(helpers[i].status, &helpers[i].err);
    }
    assert_false(hub.aborted);
    close_hub(&hub);
    statistics = NULL;
    all_share = ONLY_EXPERTS;
    moe_statistics_free(known);
}

static bool has_experts(const struct moe_config *c)
{
    return c->n_moe_layers > 0;
}

/* Layers whose attention another of two ranks can have. */
static uint32_t n_elsewhere(const struct moe_config *c)
{
    struct moe_config shared = *c;
    moe_config_share_attention(&shared, 0, 2);
    return moe_config_count_layers(&shared, MOE_LAYER(elsewhere));
}

/* Whether whole layers can be those of n ranks. */
static bool has_parts(const struct moe_config *c, uint32_t n)
{
    return moe_config_check_parts(c, n, "", NULL) == MOE_OK;
}

/* Some ranks with x.moe, against one process. */
static void check_model(const char *what, uint64_t seed, enum shares shares)
{
    static const char *const strategies[] = {"lru", "prefetch", "resident",
                                             "prefetch+predict=gate-ahead:2"};
    uint32_t ids[N_IDS];
    struct moe_err err = {0};
    struct moe_engine *e;
    struct moe_engine_options o = options_of("resident", 0);
    o.session = three_texts();
    assert_ok(moe_engine_open(&e, in_dir("x.moe"), &o, NULL, &err), &err);
    const struct moe_config c = e->model->config;
    const uint64_t slot = moe_cache_slot_bytes(e->model->pack, 0);
    draw_ids(&c, seed, ids);
    float *want[2] = {run_both(e->session, ids, N_IDS), run_alike(e->session, ids)};
    moe_engine_close(e);
    const char *strategy = strategies[seed % N_ITEMS(strategies)];
    check_ranks(what, 2 + seed % 3, shares, strategy,
                strcmp(strategy, "resident") == 0 ? 0 : (1 + seed % 3) * c.top_k * slot, ids,
                1 + seed % N_IDS, want, moe_logits_stride(&c));
    free(want[0]);
    free(want[1]);
}

static void ranks_give_the_bits_of_one_process(void **state)
{
    for (uint64_t seed = 1, n[3] = {0};
         n[ONLY_EXPERTS] < 8 || n[ATTENTION_TOO] < 8 || n[WHOLE_LAYERS] < 12; seed++) {
        char what[32];
        struct random_model m;
        random_static_draw(&m, seed);
        const bool any = has_experts(&m.c);
        const enum shares shares = n[WHOLE_LAYERS] < 12 && has_parts(&m.c, 2 + seed % 3)
                                       ? WHOLE_LAYERS
                                   : n[ATTENTION_TOO] < 8 && n_elsewhere(&m.c) > 0 ? ATTENTION_TOO
                                                                                   : ONLY_EXPERTS;
        if (any && (shares != ONLY_EXPERTS || n[ONLY_EXPERTS] < 8)) {
            n[shares]++;
            snprintf(what, sizeof what, "seed %u", (unsigned)seed);
            random_model_write(&m, seed % 2 ? 8 : 32, in_dir("x.moe"));
            check_model(what, seed, shares);
        }
        random_model_free(&m);
    }
}

/* Models whose experts do not take in what the stream's norm gives, or are several layers'. */
static void so_they_do_where_experts_are_narrow(void **state)
{
    static const char *const models[] = {DRAWN "/kimi-k3", DRAWN "/muse-spark-a",
                                         DRAWN "/nemotron-h-super", DRAWN "/inkling2-loop-a",
                                         DRAWN "/inkling2-loop-b"};
    const struct moe_convert_options options = pack_options("8", 8);
    for (size_t i = 0; i < N_ITEMS(models); i++) {
        make_pack(in_dir("x.moe"), models[i], &options);
        check_model(models[i], i, ONLY_EXPERTS);
    }
}

/* What layers hand on beside one stream: several, what an expert or a router left for the next
 * layer; and what is kept beside keys and values: windows, states, an indexer's choice, entries. */
static void so_they_do_with_layers_of_all_kinds(void **state)
{
    static const char *const models[] = {
        DRAWN "/kimi-k3",        DRAWN "/nemotron-h-super", DRAWN "/gpt-oss-a",
        DRAWN "/deepseek-v4-a",  DRAWN "/glm5-a",           DRAWN "/qwen3-next-a",
        DRAWN "/granite4-a",     DRAWN "/deepseek-v32-a",   DRAWN "/minimax-m3",
        DRAWN "/zaya-a",         DRAWN "/inkling-b",        DRAWN "/gemma4-b",
        DRAWN "/jamba-b",        DRAWN "/qwen4-a",          DRAWN "/ling3-a",
        DRAWN "/inkling2-loop-a"};
    const struct moe_convert_options options = pack_options("8", 8);
    for (size_t i = 0; i < N_ITEMS(models); i++) {
        make_pack(in_dir("x.moe"), models[i], &options);
        check_model(models[i], 3 * i, WHOLE_LAYERS);
        check_model(models[i], 3 * i + 1, WHOLE_LAYERS);
    }
}

static void layers_that_draft_are_rank_0s(void **state)
{
    static const char *const models[] = {DRAWN "/ahead-deepseek", DRAWN "/ahead-qwen3-next"};
    const struct moe_convert_options options = pack_options("8", 8);
    drafts = true;
    for (size_t i = 0; i < N_ITEMS(models); i++) {
        make_pack(in_dir("x.moe"), models[i], &options);
        check_model(models[i], 3 * i, ONLY_EXPERTS);
        check_model(models[i], 3 * i + 3, WHOLE_LAYERS);
    }
    drafts = false;
}

/* A head in a file lies on rank 0 and has no experts. */
static void heads_that_draft_are_rank_0s(void **state)
{
    static const char *const heads[] = {DRAWN "/eagle3-a", DRAWN "/dflash-a"};
    const struct moe_convert_options options = pack_options("8", 8);
    drafts = true;
    make_pack(in_dir("x.moe"), DRAWN "/ahead-deepseek", &options);
    for (size_t i = 0; i < N_ITEMS(heads); i++) {
        head = heads[i];
        check_model(head, 3 * i, ONLY_EXPERTS);
        check_model(head, 3 * i, ATTENTION_TOO);
    }
    drafts = false;
    head = NULL;
}

/* ---- Who has what ---- */

static void count_shares(const struct moe_inventory *inv, const uint8_t *holders, uint32_t layer,
                         uint32_t counts[MOST_RANKS])
{
    memset(counts, 0, MOST_RANKS * sizeof *counts);
    for (uint32_t e = 0; e < inv->n_experts; e++)
        counts[holders[MOE_HOLDERS * moe_inventory_key(inv, layer, e)]]++;
}

static void experts_are_shared_by_room_and_work(void **state)
{
    enum { LAYERS = 12, EXPERTS = 32, PAGE = 4096 };
    static const char names[1][MOE_NAME_BYTES] = {"8"};
    static const uint64_t bytes[1] = {PAGE};
    const uint64_t all = (uint64_t)LAYERS * EXPERTS * PAGE;
    const uint64_t equal[] = {all, all, all}, few[] = {all / 8, all, all},
                   short_of[] = {all / 8, all / 4, all / 8};
    uint64_t frequency[LAYERS * EXPERTS];
    uint8_t holders[MOE_HOLDERS * LAYERS * EXPERTS];
    uint32_t counts[MOST_RANKS];
    struct moe_inventory inv;
    struct moe_err err = {0};
    assert_ok(moe_inventory_uniform(&inv, LAYERS, EXPERTS, 4, names, bytes, 1, &err), &err);
    uint32_t sums[3][3] = {0};
    for (int kind = 0; kind < 3; kind++) {
        const uint64_t *room = kind == 0 ? equal : kind == 1 ? few : short_of;
        assert_ok(moe_share_experts(&inv, room, 3, NULL, holders, &err), &err);
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            count_shares(&inv, holders, layer, counts);
            for (int r = 0; r < 3; r++)
                sums[kind][r] += counts[r];
            if (kind == 0)
                assert_true(counts[0] >= 10 && counts[1] >= 10 && counts[2] >= 10);
        }
    }
    for (int r = 0; r < 3; r++)
        assert_int_equal(sums[0][r], LAYERS * EXPERTS / 3);
    assert_true(sums[1][0] <= LAYERS * EXPERTS / 8 && sums[1][0] >= LAYERS * EXPERTS / 8 - 1);
    assert_in_range(sums[2][0], LAYERS * EXPERTS / 4 - 2, LAYERS * EXPERTS / 4 + 2);
    assert_in_range(sums[2][1], LAYERS * EXPERTS / 2 - 2, LAYERS * EXPERTS / 2 + 2);
    /* The two experts that do half of a layer's work are not on one rank. */
    for (uint32_t key = 0; key < LAYERS * EXPERTS; key++)
        frequency[key] = key % EXPERTS == 3 || key % EXPERTS == 9 ? 400 : 20 + key % 7;
    assert_ok(moe_share_experts(&inv, equal, 3, frequency, holders, &err), &err);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        assert_true(holders[MOE_HOLDERS * (layer * EXPERTS + 3)] !=
                    holders[MOE_HOLDERS * (layer * EXPERTS + 9)]);
    /* The most frequent half has a second rank where there is room, which takes no more than that;
     * without frequencies, or where not all fit, none has. */
    uint32_t n_twice = 0;
    for (uint32_t key = 0; key < LAYERS * EXPERTS; key++) {
        const uint8_t *h = holders + MOE_HOLDERS * key;
        n_twice += h[1] != MOE_NO_RANK;
        assert_true(h[0] < 3 && h[1] != h[0] && (h[1] < 3 || h[1] == MOE_NO_RANK));
    }
    assert_int_equal(n_twice, LAYERS * EXPERTS / 2);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        assert_true(holders[MOE_HOLDERS * (layer * EXPERTS + 3) + 1] != MOE_NO_RANK);
    const uint64_t tight[] = {all / 3 + 20 * PAGE, all / 3 + 20 * PAGE, all / 3 + 20 * PAGE};
    assert_ok(moe_share_experts(&inv, tight, 3, frequency, holders, &err), &err);
    for (uint8_t r = 0; r < 3; r++) {
        uint32_t n = 0;
        for (uint32_t key = 0; key < LAYERS * EXPERTS; key++)
            n += moe_rank_holds(holders, key, r);
        assert_in_range(n, LAYERS * EXPERTS / 3 + 1, LAYERS * EXPERTS / 3 + 20);
    }
    assert_ok(moe_share_experts(&inv, short_of, 3, frequency, holders, &err), &err);
    for (uint32_t key = 0; key < LAYERS * EXPERTS; key++)
        assert_int_equal(holders[MOE_HOLDERS * key + 1], MOE_NO_RANK);
    moe_inventory_release(&inv);
}

static void layers_are_shared_by_room_and_place(void **state)
{
    enum { N = 12, EACH = 4, PAGE = 4096, DENSE = 2 * PAGE, BYTES = EACH * PAGE + DENSE };
    static const char names[1][MOE_NAME_BYTES] = {"8"};
    static const uint64_t page[1] = {PAGE};
    static const struct {
        uint64_t room[4];   /* in tenths of a layer */
        uint32_t not_at[2]; /* no rank's layers begin with these; 0: all may */
        uint8_t first[4];   /* of each rank */
    } cases[] = {
        {{500, 500, 500, 500}, {0}, {0, 3, 6, 9}},
        {{20, 500, 500, 500}, {0}, {0, 2, 5, 9}},      /* where all fit: equal parts of the rest */
        {{26, 500, 500, 500}, {0}, {0, 2, 6, 9}},      /* ... and no more than there is room for */
        {{10, 20, 10, 20}, {0}, {0, 2, 6, 8}},         /* else in proportion */
        {{500, 500, 500, 500}, {3, 9}, {0, 4, 6, 10}}, /* what is short here comes next */
        {{0, 500, 500, 500}, {0}, {0, 1, 4, 8}},       /* each has one */
        {{40, 40, 0, 0}, {0}, {0, 6, 10, 11}},
    };
    struct moe_inventory inv;
    struct moe_err err = {0};
    assert_ok(moe_inventory_uniform(&inv, N, EACH, 2, names, page, 1, &err), &err);
    for (size_t k = 0; k < N_ITEMS(cases); k++) {
        uint64_t bytes[N], room[4];
        uint8_t owners[N], holders[N * EACH * MOE_HOLDERS];
        bool parts[N];
        for (uint32_t i = 0; i < N; i++) {
            bytes[i] = DENSE;
            parts[i] = i != cases[k].not_at[0] && i != cases[k].not_at[1];
        }
        for (uint32_t r = 0; r < 4; r++)
            room[r] = cases[k].room[r] * BYTES / 10;
        assert_ok(moe_share_layers(&inv, bytes, parts, N, room, 4, owners, holders, &err), &err);
        for (uint32_t i = 0, rank = 0; i < N; i++) {
            rank += rank < 3 && i == cases[k].first[rank + 1];
            if (owners[i] != rank)
                fail_msg("case %zu: layer %u is rank %u's", k, i, owners[i]);
            for (uint32_t e = 0; e < EACH; e++) {
                assert_int_equal(holders[MOE_HOLDERS * (i * EACH + e)], rank);
                assert_int_equal(holders[MOE_HOLDERS * (i * EACH + e) + 1], MOE_NO_RANK);
            }
        }
    }
    moe_inventory_release(&inv);
}

/* A rank's layers cannot begin with one that sees what another rank has. */
static void layers_part_where_they_need_nothing(void **state)
{
    static struct moe_config c; /* large */
    struct moe_err err = {0};
    moe_config_init(&c);
    c.n_layers = 8;
    c.n_heads = c.n_kv_heads = 2;
    c.hidden = c.head_dim = 16;
    c.index_top = 4;
    c.layers[2].shares_keys = true;   /* layer 1's */
    c.layers[5].shares_choice = true; /* of layer 4 */
    moe_config_complete(&c);
    static const bool want[] = {true, true, false, true, true, false, true, true};
    for (uint32_t i = 0; i < c.n_layers; i++)
        assert_int_equal(moe_config_parts_at(&c, i), want[i]);
    c.loop = (struct moe_loop){6, 1, 2}; /* the last one is layer 6 again */
    assert_true(moe_config_parts_at(&c, 6) && !moe_config_parts_at(&c, 7));
    c.loop = (struct moe_loop){0};
    c.layers[4].windowed = true; /* the choice is layer 3's then */
    assert_false(moe_config_parts_at(&c, 4));
    assert_ok(moe_config_check_parts(&c, 5, "x", &err), &err);
    assert_int_equal(moe_config_check_parts(&c, 6, "x", &err), MOE_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "its layers can be those of 5 ranks, not of 6"));
    c.layers[3].ngrams = true;
    assert_false(moe_config_parts_at(&c, 3));
    c.extra_positions = 6;
    assert_false(moe_config_parts_at(&c, 6));
    assert_true(moe_config_parts_at(&c, 7));
    c.prefix_lm = true;
    assert_int_equal(moe_config_check_parts(&c, 2, "x", &err), MOE_ERR_UNSUPPORTED);
}

/* Entries that one rank has come first, the others go where less is to do. */
static void a_request_is_spread(void **state)
{
    enum { NO = MOE_NO_RANK };
    static const uint8_t holders[] = {0, 1, 0, NO, 1, 0, 2, 0, 0, 2};
    uint32_t experts[] = {0, 1, 2, 3, 4}, n_rows[] = {1, 1, 1, 1, 1};
    static const uint8_t want[] = {1, 0, 1, 2, 0}, want_wide[] = {1, 0, 1, 2, 2};
    uint8_t ranks[5];
    struct moe_layer_request q = {
        .n_entries = 5, .experts = experts, .n_rows = n_rows, .ranks = ranks};
    moe_share_request(&q, holders);
    assert_memory_equal(ranks, want, sizeof want);
    n_rows[1] = 30;
    moe_share_request(&q, holders);
    assert_memory_equal(ranks, want_wide, sizeof want_wide);
}

/* ---- What goes wrong ---- */

static void write_model(uint64_t seed, const char *name)
{
    struct random_model m;
    for (random_static_draw(&m, seed); !has_experts(&m.c); random_static_draw(&m, seed += 100))
        random_model_free(&m);
    random_model_write(&m, 8, in_dir(name));
    random_model_free(&m);
}

static const char *spread_by_0; /* --spread of rank 0 */

/* Rank 1 has this pack; rank 0 says why they do not run together. */
static void refused(const char *pack, const char *strategy, enum shares shares, const char *text)
{
    struct moe_err err = {0};
    struct hub hub;
    struct helper helper;
    struct moe_engine *e;
    open_hub(&hub, 2);
    start(&helper, &hub, 1, pack, strategy, 0);
    struct moe_engine_options o = options_of("lru", 0);
    o.share_layers = shares == WHOLE_LAYERS;
    o.spread = spread_by_0;
    o.ranks = open_rank(&hub, 0, PATIENCE);
    assert_true(moe_engine_open(&e, in_dir("x.moe"), &o, NULL, &err) < 0);
    if (!strstr(err.text, text) || !strstr(err.text, "rank 1 on "))
        fail_msg("%s: %s", pack, err.text);
    moe_ranks_close(o.ranks, 0);
    join(&helper);
    assert_true(helper.status < 0);
    assert_false(hub.aborted);
    close_hub(&hub);
}

/* A copy of x.moe whose experts are damaged from that layer on. */
static void write_damaged(const char *name, uint32_t from_layer)
{
    struct moe_err err = {0};
    struct moe_buf file = {0};
    struct moe_pack *pack;
    assert_ok(moe_file_read_all(in_dir("x.moe"), UINT64_MAX, &file, &err), &err);
    assert_ok(moe_pack_open(&pack, in_dir("x.moe"), &err), &err);
    for (uint32_t layer = from_layer; layer < moe_pack_n_layers(pack); layer++)
        for (uint32_t e = 0; e < moe_pack_n_experts(pack); e++) {
            const struct moe_expert_extent *x = moe_pack_expert(pack, layer, e, 0);
            if (x->present)
                file.data[x->segments[0].offset] ^= 1;
        }
    moe_pack_close(pack);
    assert_ok(moe_file_write_all(in_dir(name), file.data, file.size, &err), &err);
    moe_buf_release(&file);
}

static void what_ranks_fail_with_is_said_by_rank_0(void **state)
{
    write_model(3, "x.moe");
    write_model(4, "other.moe");
    write_damaged("damaged.moe", 0);
    refused("other.moe", "lru", ONLY_EXPERTS, "has another pack than rank 0");
    refused("absent.moe", "lru", ONLY_EXPERTS, "absent.moe");
    refused("damaged.moe", "resident", ONLY_EXPERTS, "damaged");
    refused("x.moe", "prefetch", ONLY_EXPERTS,
            "was started with --strategy prefetch, rank 0 with --strategy lru: give");
    refused("x.moe", "resident", WHOLE_LAYERS,
            "was started without --share-layers, rank 0 with --share-layers: give");
    struct moe_statistics *any = any_statistics();
    const struct {
        struct others has;
        const char *text;
    } cases[] = {
        {{.draft = "ngram"}, "was started with --draft ngram, rank 0 without --draft: give"},
        {{.low = "4"}, "was started with --low 4, rank 0 without --low: give"},
        {{.staging = 5}, "was started with --staging 5, rank 0 without --staging: give"},
        {{.statistics = any}, "was started with --statistics, rank 0 without --statistics: give"},
        {{.share_attention = true},
         "was started with --share-attention, rank 0 without --share-attention: give"},
        {{.follows = "a trace"}, "several ranks do not go with --follow"},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        others = cases[i].has;
        refused("x.moe", "lru", ONLY_EXPERTS, cases[i].text);
    }
    others = (struct others){0};
    spread_by_0 = "parts";
    refused("x.moe", "lru", ONLY_EXPERTS,
            "was started without --spread, rank 0 with --spread: give");
    spread_by_0 = NULL;
    moe_statistics_free(any);
}

/* One fails while another loads, which stops then: all end in order. */
static void who_loads_ends_in_order(void **state)
{
    struct moe_err err = {0};
    struct hub hub;
    struct helper helpers[2];
    struct moe_engine *e;
    write_model(3, "x.moe");
    write_damaged("damaged.moe", 0);
    open_hub(&hub, 3);
    hub.loads_long = 2;
    start(&helpers[0], &hub, 1, "damaged.moe", "resident", 0);
    start(&helpers[1], &hub, 2, "x.moe", "resident", 0);
    struct moe_engine_options o = options_of("lru", 0);
    o.ranks = open_rank(&hub, 0, PATIENCE);
    assert_true(moe_engine_open(&e, in_dir("x.moe"), &o, NULL, &err) < 0);
    assert_non_null(strstr(err.text, "rank 1 on "));
    moe_ranks_close(o.ranks, 0);
    assert_false(hub.aborted);
    join(&helpers[0]);
    join(&helpers[1]);
    assert_true(helpers[0].status < 0);
    assert_int_equal(helpers[1].status, MOE_ERR_INTERRUPTED);
    close_hub(&hub);
}

/* One that fails while it computes is an error of that pass, and of those that follow. */
static void a_rank_that_fails_later(void **state)
{
    struct moe_err err = {0};
    struct hub hub;
    struct helper helper;
    struct moe_engine *e;
    int status = MOE_OK;
    write_model(3, "x.moe");
    write_damaged("damaged.moe", 0);
    open_hub(&hub, 2);
    start(&helper, &hub, 1, "damaged.moe", "lru+init=empty", 0);
    struct moe_engine_options o = options_of("lru+init=empty", 0);
    o.ranks = open_rank(&hub, 0, PATIENCE);
    assert_ok(moe_engine_open(&e, in_dir("x.moe"), &o, NULL, &err), &err);
    for (uint32_t i = 0; i < N_IDS && status == MOE_OK; i++) {
        const struct moe_row row = {0, i, i, N_IDS};
        status = moe_forward(e->session, MOE_DECODE, &row, 1, 0, e->model->config.n_layers, NULL,
                             NULL, &err);
    }
    assert_int_equal(status, MOE_ERR_FORMAT);
    assert_non_null(strstr(err.text, "rank 1 on "));
    const struct moe_row row = {0, 0, 1, N_IDS};
    for (uint32_t i = 0; i < N_IDS && status == MOE_ERR_FORMAT; i++)
        if (moe_forward(e->session, MOE_DECODE, &row, 1, 0, e->model->config.n_layers, NULL, NULL,
                        &err) == MOE_ERR_FORMAT)
            status = MOE_OK;
    assert_int_equal(status, MOE_OK);
    moe_engine_close(e);
    moe_ranks_close(o.ranks, 0);
    join(&helper);
    assert_int_equal(helper.status, MOE_ERR_FORMAT);
    assert_false(hub.aborted);
    close_hub(&hub);
}

/* One that says nothing is given up, and all are ended. */
static void a_silent_rank_is_given_up(void **state)
{
    struct moe_err err = {0};
    struct hub hub;
    struct moe_engine *e;
    write_model(3, "x.moe");
    open_hub(&hub, 2);
    struct moe_engine_options o = options_of("lru", 0);
    o.ranks = open_rank(&hub, 0, 0.05);
    assert_int_equal(moe_engine_open(&e, in_dir("x.moe"), &o, NULL, &err), MOE_ERR_IO);
    assert_non_null(strstr(err.text, "rank 1 has not answered for 0.05 s"));
    moe_ranks_close(o.ranks, 0);
    assert_true(hub.aborted);
    close_hub(&hub);
}

/* Says it as a rank that loads does. */
static void say_to_rank_0(struct moe_ranks *ranks, enum moe_rank_kind kind, int status)
{
    struct moe_err err = {0};
    struct moe_wire *wire = moe_ranks_wire(ranks);
    const struct moe_rank_said said = {.head.kind = kind,
                                       .protocol = MOE_RANKS_PROTOCOL,
                                       .status = status,
                                       .host = "b",
                                       .text = "its disk is gone"};
    assert_ok(wire->ops->send(wire, 0, MOE_LANE_TALK, &said, sizeof said, &err), &err);
}

/* What one says is heard while another has nothing to say yet. */
static void ranks_that_load_are_heard_side_by_side(void **state)
{
    struct moe_err err = {0};
    struct hub hub;
    struct moe_ranks *ranks[3];
    open_hub(&hub, 3);
    for (uint32_t i = 0; i < 3; i++)
        ranks[i] = open_rank(&hub, i, 2);
    say_to_rank_0(ranks[2], MOE_RANK_FAILED, MOE_ERR_IO);
    assert_int_equal(moe_ranks_wait_ready(ranks[0], NULL, &err), MOE_ERR_IO);
    assert_string_equal(err.text, "rank 2 on b: its disk is gone");
    say_to_rank_0(ranks[1], MOE_RANK_READY, MOE_OK); /* it would be waited for */
    for (uint32_t i = 0; i < 3; i++)
        moe_ranks_close(ranks[i], 1);
    close_hub(&hub);
}

static void what_does_not_go_with_ranks(void **state)
{
    static const char *const strategies[] = {"daop", "hobbit"};
    struct moe_err err = {0};
    write_model(3, "x.moe");
    for (size_t i = 0; i < N_ITEMS(strategies); i++) {
        struct hub hub;
        struct helper helper;
        struct moe_engine *e;
        open_hub(&hub, 2);
        start(&helper, &hub, 1, "x.moe", "resident", 0);
        struct moe_engine_options o = options_of(strategies[i], 0);
        o.ranks = open_rank(&hub, 0, PATIENCE);
        assert_true(moe_engine_open(&e, in_dir("x.moe"), &o, NULL, &err) < 0);
        moe_ranks_close(o.ranks, 0);
        join(&helper);
        assert_int_equal(helper.status, MOE_ERR_INTERRUPTED);
        close_hub(&hub);
    }
}

/* ---- The smallest budget ---- */

static uint64_t text_bytes; /* that rank 0 needs beside the session, once it has looked at texts */

static int look_at_texts(void *ctx, const struct moe_model *model,
                         const struct moe_engine_room *room, struct moe_err *err)
{
    (void)model, (void)room, (void)err;
    text_bytes = *(uint64_t *)ctx;
    return MOE_OK;
}

static uint64_t beside(const void *ctx, const struct moe_model *model, uint32_t batch)
{
    (void)ctx, (void)model, (void)batch;
    return text_bytes;
}

/* With `budget` on each of n ranks; *named: what is named as the smallest that works, MiB. */
static int open_in_budget(uint32_t n, uint64_t *named)
{
    uint64_t texts = 5 << 20;
    struct moe_err err = {0};
    struct hub hub;
    struct helper helpers[2];
    struct moe_engine *e;
    open_hub(&hub, n);
    for (uint32_t i = 1; i < n; i++)
        start(&helpers[i - 1], &hub, i, "x.moe", "lru", 0);
    struct moe_engine_options o = options_of("lru", 0);
    o.ranks = open_rank(&hub, 0, PATIENCE);
    o.survey = look_at_texts;
    o.beside = beside;
    o.beside_ctx = &texts;
    text_bytes = 0;
    int status = moe_engine_open(&e, in_dir("x.moe"), &o, NULL, &err);
    const char *at = strstr(err.text, "--memory ");
    *named = at ? strtoull(at + strlen("--memory "), NULL, 10) : 0;
    if (status == MOE_OK)
        moe_engine_close(e);
    moe_ranks_close(o.ranks, 0);
    for (uint32_t i = 1; i < n; i++)
        join(&helpers[i - 1]);
    close_hub(&hub);
    return status;
}

static void the_smallest_budget_that_is_named_works(void **state)
{
    const struct moe_convert_options options = pack_options("8", 8);
    make_pack(in_dir("x.moe"), DRAWN "/qwen3-moe-a", &options);
    for (uint32_t n = 2; n < 4; n++)
        for (all_share = ONLY_EXPERTS; all_share <= WHOLE_LAYERS; all_share++) {
            uint64_t named, again;
            budget = 1 << 20;
            assert_int_equal(open_in_budget(n, &named), MOE_ERR_LIMIT);
            budget = (named - 1) << 20;
            assert_int_equal(open_in_budget(n, &again), MOE_ERR_LIMIT);
            assert_int_equal(again, named);
            budget = named << 20;
            assert_int_equal(open_in_budget(n, &again), MOE_OK);
        }
    all_share = ONLY_EXPERTS;
    budget = 0;
}

/* What rank 0 counts for everything but weights, keys and values, and experts. */
static uint64_t work_where(uint64_t at_once, struct moe_rank_shape *shape)
{
    struct moe_err err = {0};
    struct hub hub;
    struct helper helper;
    struct moe_engine *e;
    open_hub(&hub, 2);
    hub.at_once = at_once;
    start(&helper, &hub, 1, "x.moe", "lru", 0);
    struct moe_engine_options o = options_of("lru", 0);
    o.ranks = open_rank(&hub, 0, PATIENCE);
    assert_ok(moe_engine_open(&e, in_dir("x.moe"), &o, NULL, &err), &err);
    *shape = *moe_ranks_shape(o.ranks);
    const uint64_t work = e->budget.host.work;
    moe_engine_close(e);
    moe_ranks_close(o.ranks, 0);
    join(&helper);
    close_hub(&hub);
    return work;
}

static void outputs_that_lie_unread_are_counted(void **state)
{
    const struct moe_convert_options options = pack_options("8", 8);
    make_pack(in_dir("x.moe"), DRAWN "/qwen3-moe-a", &options);
    for (all_share = ONLY_EXPERTS; all_share <= WHOLE_LAYERS; all_share++) {
        struct moe_rank_shape s;
        const uint64_t none = work_where(0, &s), all = work_where(1 << 20, &s);
        const uint64_t rows = (uint64_t)s.batch * (all_share == WHOLE_LAYERS ? 1 : s.top_k);
        const uint64_t message = moe_rank_outputs_at(NULL, &s, moe_rank_output_rows(&s)).bytes;
        assert_in_range(all - none, rows * s.stride * sizeof(float),
                        rows * s.stride * sizeof(float) + 2 * message);
        assert_int_equal(work_where(message - 1, &s), none);
    }
    all_share = ONLY_EXPERTS;
}

/* ---- Files from rank 0 ---- */

static bool spreads = true; /* rank 0 does */

/* A run of two ranks, of which the other has only what is in that directory. Sets the bytes that
 * came from rank 0's file, and returns rank 0's status; one that is refused says `text`. */
static int run_spread(const char *directory, const char *strategy, uint64_t *bytes,
                      const char *text)
{
    struct moe_err err = {0};
    struct hub hub;
    struct helper helper = {.hub = &hub,
                            .rank = 1,
                            .pack = strdup("elsewhere/x.moe"),
                            .spread = strdup(in_dir(directory)),
                            .strategy = strategy};
    struct moe_engine *e;
    open_hub(&hub, 2);
    assert_int_equal(pthread_create(&helper.thread, NULL, help, &helper), 0);
    struct moe_engine_options o = options_of(strategy, 0);
    o.ranks = open_rank(&hub, 0, PATIENCE);
    o.spread = spreads ? helper.spread : NULL;
    int status = moe_engine_open(&e, in_dir("x.moe"), &o, NULL, &err);
    if (status == MOE_OK) {
        const struct moe_row row = {0, 0, 1, N_IDS};
        assert_ok(moe_forward(e->session, MOE_DECODE, &row, 1, 0, e->model->config.n_layers, NULL,
                              NULL, &err),
                  &err);
        moe_engine_close(e);
    } else if (!strstr(err.text, text) || !strstr(err.text, "rank 1 on ")) {
        fail_msg("%s: %s", directory, err.text);
    }
    moe_ranks_close(o.ranks, 0);
    join(&helper);
    free(helper.spread);
    *bytes = hub.piece_bytes;
    close_hub(&hub);
    return status;
}

/* Overwrites a byte of the file, at its end where `at` is UINT64_MAX. */
static void damage(const char *name, uint64_t at)
{
    struct moe_err err = {0};
    struct moe_buf file = {0};
    assert_ok(moe_file_read_all(in_dir(name), UINT64_MAX, &file, &err), &err);
    file.data[at == UINT64_MAX ? file.size - 1 : at] ^= 1;
    assert_ok(moe_file_write_all(in_dir(name), file.data, file.size, &err), &err);
    moe_buf_release(&file);
}

static uint64_t bytes_of(const struct moe_pack *pack, const struct moe_expert_extent *x)
{
    uint64_t sum = 0;
    for (uint32_t s = 0; s < moe_pack_class_at(pack, x->class_index)->n_segments; s++)
        sum += x->segments[s].stored_bytes;
    return sum;
}

/* What a rank's file has of the experts: their bytes; *largest: where the last begins. */
static uint64_t bytes_there(const char *name, struct moe_extent *last, uint64_t *last_bytes)
{
    struct moe_err err = {0};
    struct moe_pack *pack;
    uint64_t sum = 0;
    assert_ok(moe_pack_open(&pack, in_dir(name), &err), &err);
    for (uint32_t layer = 0; layer < moe_pack_n_layers(pack); layer++)
        for (uint32_t e = 0; e < moe_pack_n_experts(pack); e++) {
            const struct moe_expert_extent *x = moe_pack_expert(pack, layer, e, 0);
            uint8_t *raw = calloc(1, x->present ? x->segments[0].raw_bytes : 1);
            if (x->present && moe_pack_read(pack, &x->segments[0], raw, "", NULL) == MOE_OK) {
                sum += bytes_of(pack, x);
                *last = x->segments[0];
                *last_bytes = bytes_of(pack, x);
            }
            free(raw);
        }
    moe_pack_close(pack);
    return sum;
}

static void ranks_get_their_experts_once(void **state)
{
    uint64_t bytes, all, last_bytes = 0;
    struct moe_extent last = {0};
    struct moe_err err = {0};
    write_model(3, "x.moe");
    all = bytes_there("x.moe", &last, &last_bytes);
    assert_int_equal(run_spread("own", "lru", &bytes, NULL), MOE_OK);
    const uint64_t there = bytes_there("own/x.moe", &last, &last_bytes);
    assert_true(there > 0 && there < all);
    assert_true(bytes > there);
    const uint64_t directory = bytes - there;
    /* Again: nothing but the header. */
    assert_int_equal(run_spread("own", "resident", &bytes, NULL), MOE_OK);
    assert_int_equal(bytes, MOE_PACK_HEADER_BYTES);
    /* Nothing is noted, as after a killed run: what is whole stays, an expert that is not comes
     * again, and nothing else. */
    damage("own/x.moe", last.offset);
    assert_int_equal(unlink(in_dir("own/x.moe.have")), 0);
    assert_int_equal(run_spread("own", "resident", &bytes, NULL), MOE_OK);
    assert_int_equal(bytes, MOE_PACK_HEADER_BYTES + last_bytes);
    /* A note that is cut short, or of another pack, is not believed. */
    damage("own/x.moe", last.offset);
    damage("own/x.moe.have", 0);
    assert_int_equal(run_spread("own", "resident", &bytes, NULL), MOE_OK);
    assert_int_equal(bytes, MOE_PACK_HEADER_BYTES + last_bytes);
    damage("own/x.moe", last.offset);
    assert_int_equal(truncate(in_dir("own/x.moe.have"), 11), 0);
    assert_int_equal(run_spread("own", "resident", &bytes, NULL), MOE_OK);
    assert_int_equal(bytes, MOE_PACK_HEADER_BYTES + last_bytes);
    /* The header comes last: without it all comes again but the experts that are there. */
    struct moe_buf file = {0};
    assert_ok(moe_file_read_all(in_dir("own/x.moe"), UINT64_MAX, &file, &err), &err);
    memset(file.data, 0, MOE_PACK_HEADER_BYTES);
    assert_ok(moe_file_write_all(in_dir("own/x.moe"), file.data, file.size, &err), &err);
    moe_buf_release(&file);
    assert_int_equal(run_spread("own", "resident", &bytes, NULL), MOE_OK);
    assert_int_equal(bytes, directory);
    /* A file that was removed comes whole, whatever was noted of it. */
    assert_int_equal(unlink(in_dir("own/x.moe")), 0);
    assert_int_equal(run_spread("own", "resident", &bytes, NULL), MOE_OK);
    assert_int_equal(bytes, directory + there);
}

static void what_cannot_be_spread(void **state)
{
    uint64_t bytes;
    struct moe_err err = {0};
    struct moe_engine *e;
    write_model(3, "x.moe");
    assert_int_equal(run_spread("own", "resident", &bytes, NULL), MOE_OK);
    damage("own/x.moe", 40);
    assert_int_equal(run_spread("own", "resident", &bytes, "is no part of rank 0's x.moe"),
                     MOE_ERR_USAGE);
    assert_ok(moe_file_write_all(in_dir("own/x.moe"), "short", 5, &err), &err);
    assert_int_equal(run_spread("own", "resident", &bytes, "is no part of rank 0's x.moe"),
                     MOE_ERR_USAGE);
    assert_ok(moe_file_write_all(in_dir("file"), "", 0, &err), &err);
    assert_int_equal(run_spread("file", "resident", &bytes, "cannot be written"), MOE_ERR_IO);
    assert_int_equal(run_spread("file/own", "resident", &bytes, "cannot be made"), MOE_ERR_IO);
    spreads = false;
    assert_int_equal(run_spread("own", "resident", &bytes,
                                "was started with --spread, rank 0 without --spread: give"),
                     MOE_ERR_USAGE);
    spreads = true;
    /* Damage of rank 0's file is found by the rank that gets it, and is not kept; what came before
     * is. */
    write_damaged("x.moe", 0);
    assert_int_equal(run_spread("new", "lru+init=empty", &bytes, "rank 0's x.moe is damaged"),
                     MOE_ERR_FORMAT);
    assert_false(moe_path_exists(in_dir("new/x.moe"))); /* nothing came */
    write_model(3, "x.moe");
    write_damaged("x.moe", 1);
    assert_int_equal(run_spread("new", "lru+init=empty", &bytes, "rank 0's x.moe is damaged"),
                     MOE_ERR_FORMAT);
    assert_true(moe_path_exists(in_dir("new/x.moe.have")));
    struct moe_engine_options o = options_of("resident", 0);
    o.spread = in_dir("own");
    assert_int_equal(moe_engine_open(&e, in_dir("x.moe"), &o, NULL, &err), MOE_ERR_USAGE);
}

static int set_up(void **state)
{
    struct moe_err err = {0};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    return make_dir(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_give_the_bits_of_one_process),
        cmocka_unit_test(so_they_do_where_experts_are_narrow),
        cmocka_unit_test(so_they_do_with_layers_of_all_kinds),
        cmocka_unit_test(layers_that_draft_are_rank_0s),
        cmocka_unit_test(heads_that_draft_are_rank_0s),
        cmocka_unit_test(experts_are_shared_by_room_and_work),
        cmocka_unit_test(layers_are_shared_by_room_and_place),
        cmocka_unit_test(layers_part_where_they_need_nothing),
        cmocka_unit_test(a_request_is_spread),
        cmocka_unit_test(ranks_get_their_experts_once),
        cmocka_unit_test(what_cannot_be_spread),
        cmocka_unit_test(what_ranks_fail_with_is_said_by_rank_0),
        cmocka_unit_test(who_loads_ends_in_order),
        cmocka_unit_test(a_rank_that_fails_later),
        cmocka_unit_test(a_silent_rank_is_given_up),
        cmocka_unit_test(ranks_that_load_are_heard_side_by_side),
        cmocka_unit_test(what_does_not_go_with_ranks),
        cmocka_unit_test(the_smallest_budget_that_is_named_works),
        cmocka_unit_test(outputs_that_lie_unread_are_counted),
    };
    return cmocka_run_group_tests(tests, set_up, remove_dir);
}
