#define _POSIX_C_SOURCE 200809L
/*
 * Exactness in both of its judgements (sched/exactness.h), over random strategies, plans, packs and
 * budgets: what --exact accepts gives the logits of experts in memory, bit for bit, and counts no
 * change; what counts a change gives others; and what a plan's explanation says is what --exact
 * does.
 */
#include "base/par.h"
#include "engine/engine.h"
#include "engine/memory.h"
#include "kern/kern.h"
#include "plan/planner.h"
#include "tune/probe.h"

#include "random_model.h"
#include "random_strategy.h"

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { N_CASES = 100 };
#else
enum { N_CASES = 500 };
#endif

enum { N_PROMPT = 7, N_DECODE = 5, N_ALL = N_PROMPT + N_DECODE, N_DOCUMENTS = 3, BATCH = 8 };

/* ---- Packs ---- */

/* Variants of a pack, best first. A map's is the best there is of its experts, whatever they have
 * in variants after it. */
static const struct {
    struct random_variant variants[4];
    uint32_t n;
} kinds[] = {
    {{{"4", 4, 0}}, 1},
    {{{"4", 4, 0}, {"2", 2, 0}}, 2},
    {{{"8", 8, 0}, {"4", 4, 0}, {"2", 2, 0}}, 3},
    {{{"8", 8, 0}, {"map", 4, 3}, {"2", 2, 0}}, 3},
    {{{"map", 8, 3}, {"4", 4, 0}, {"2", 2, 0}}, 3},
};

static struct pack {
    char path[64], trace_path[64];
    struct moe_config config;
    uint32_t ids[N_DOCUMENTS][N_ALL];
    struct moe_statistics *statistics;
    struct moe_trace *trace;
    struct moe_lookups *lookups;
    float *expected; /* [N_ALL] logits of the first document, from experts in memory */
    uint64_t logits_bytes, slot_bytes, all_bytes;
} packs[N_ITEMS(kinds)];

/* The first document: a prompt in one pass, then token by token. */
static void run_document(struct moe_session *s, const uint32_t *ids, float *logits)
{
    struct moe_err err = {0};
    struct moe_row rows[N_ALL];
    const struct moe_config *c = &s->model->config;
    uint64_t stride = moe_logits_stride(c);
    for (uint32_t first = 0, n; first < N_ALL; first += n) {
        n = first == 0 ? N_PROMPT : 1;
        for (uint32_t i = 0; i < n; i++)
            rows[i] = (struct moe_row){0, first + i, ids[first + i], 0};
        assert_ok(moe_forward(s, first == 0 ? MOE_PREFILL : MOE_DECODE, rows, n, 0, c->n_layers,
                              NULL, NULL, &err),
                  &err);
        assert_ok(moe_logits(s, 0, n, logits + first * stride, &err), &err);
    }
}

/* Statistics and a trace of all documents. */
static void observe(struct pack *p, struct moe_engine *e)
{
    struct moe_err err = {0};
    struct moe_probe *probe = NULL;
    struct moe_trace_writer *w = NULL;
    struct moe_statistics_shape shape = moe_model_statistics_shape(e->model);
    shape.max_tokens = N_ALL;
    shape.prompt_percent = 50;
    const struct moe_trace_shape traced = {.n_layers = shape.n_layers,
                                           .n_experts = shape.n_experts,
                                           .top_k = shape.top_k,
                                           .keep = shape.n_experts,
                                           .predictors = MOE_TRACE_PREDICTORS};
    assert_ok(moe_statistics_new(&p->statistics, &shape, &err), &err);
    assert_ok(moe_trace_create(&w, p->trace_path, &traced, &err), &err);
    assert_ok(moe_probe_open(&probe, e->session, p->statistics, &err), &err);
    moe_probe_set_trace(probe, w);
    for (int i = 0; i < N_DOCUMENTS; i++)
        assert_ok(moe_probe_document(probe, p->ids[i], N_ALL, &err), &err);
    moe_probe_close(probe);
    assert_ok(moe_trace_commit(w, &err), &err);
    assert_ok(moe_trace_open(&p->trace, p->trace_path, &err), &err);
    assert_ok(moe_lookups_read(&p->lookups, p->trace, (struct moe_excerpt){0}, &err), &err);
}

static struct moe_engine_options base_options(const struct pack *p)
{
    return (struct moe_engine_options){
        .statistics = p->statistics, .session = {.context = N_ALL, .batch = BATCH}, .seed = 1};
}

/* A model on which experts matter: several layers of them, several for a token. */
static void draw_model(struct random_model *m, uint64_t *seed)
{
    for (bool good = false; !good;) {
        random_model_draw(m, ++*seed);
        uint32_t n_layers = m->c.n_moe_layers;
        good = n_layers >= 3 && m->c.n_experts >= 8 && m->c.top_k >= 2;
        if (!good)
            random_model_free(m);
    }
}

static void open_pack(struct pack *p, size_t kind, uint64_t *seed)
{
    struct moe_err err = {0};
    struct random_model m;
    struct moe_engine *e = NULL;
    draw_model(&m, seed);
    p->config = m.c;
    snprintf(p->path, sizeof p->path, "/tmp/moe-exactness-%zu-%d.moe", kind, (int)getpid());
    snprintf(p->trace_path, sizeof p->trace_path, "/tmp/moe-exactness-%zu-%d.trace", kind,
             (int)getpid());
    random_model_write_variants(&m, &m.c, 16, kinds[kind].variants, kinds[kind].n, p->path);
    random_model_free(&m);
    for (uint32_t d = 0; d < N_DOCUMENTS; d++)
        for (uint32_t i = 0; i < N_ALL; i++)
            p->ids[d][i] = random_below(seed, p->config.vocab);
    struct moe_engine_options o = base_options(p);
    moe_strategy_find("resident", &o.strategy);
    assert_ok(moe_engine_open(&e, p->path, &o, NULL, &err), &err);
    p->logits_bytes = N_ALL * moe_logits_stride(&p->config) * sizeof(float);
    p->slot_bytes = moe_cache_slot_bytes(e->model->pack, 0);
    p->all_bytes = e->budget.all;
    p->expected = calloc(1, p->logits_bytes);
    run_document(e->session, p->ids[0], p->expected);
    observe(p, e);
    moe_engine_close(e);
}

static int open_packs(void **state)
{
    struct moe_err err = {0};
    uint64_t seed = 77;
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(1);
    for (size_t kind = 0; kind < N_ITEMS(kinds); kind++)
        open_pack(&packs[kind], kind, &seed);
    return 0;
}

static int close_packs(void **state)
{
    for (size_t kind = 0; kind < N_ITEMS(kinds); kind++) {
        struct pack *p = &packs[kind];
        moe_lookups_free(p->lookups);
        moe_trace_close(p->trace);
        moe_statistics_free(p->statistics);
        free(p->expected);
        unlink(p->path);
        unlink(p->trace_path);
    }
    return 0;
}

/* ---- Cases ---- */

static struct {
    uint32_t exact;     /* accepted by --exact */
    uint32_t acted;     /* may change results, and has */
    uint32_t idle;      /* may, and has not */
    uint32_t planned;   /* by plans */
    uint32_t kept;      /* experts at a lower precision than the best, which nothing else names */
    uint32_t on_host;   /* experts were computed on the host */
    uint32_t fell_back; /* accepted by --exact, which the strategy was not without it */
} seen;

/* The first document; whether its logits are those of experts in memory. */
static bool equals_resident(const struct pack *p, struct moe_engine *e, struct moe_stats *stats)
{
    float *logits = calloc(1, p->logits_bytes);
    run_document(e->session, p->ids[0], logits);
    moe_engine_finish_stats(e, &e->session->stats);
    *stats = e->session->stats;
    bool equal = memcmp(logits, p->expected, p->logits_bytes) == 0;
    free(logits);
    return equal;
}

static uint64_t n_changes(const struct moe_stats *s)
{
    const struct moe_counts *a = &s->prefill.experts, *b = &s->decode.experts;
    return a->low_precision + a->skipped + a->precalculated + a->substituted + b->low_precision +
           b->skipped + b->precalculated + b->substituted;
}

/* What must hold of every run: it changed results if and only if it counted that, which it did only
 * if it was asked for what may. Returns whether it changed them. */
static bool check_run(const struct pack *p, struct moe_engine *e, const char *text)
{
    struct moe_stats stats;
    struct moe_err err = {0};
    bool equal = equals_resident(p, e, &stats), counted = n_changes(&stats) > 0;
    if (equal == counted)
        fail_msg("%s: logits %s, %llu changes counted (%llu low, %llu left out, %llu early, %llu "
                 "others)",
                 text, equal ? "of resident" : "differ", (unsigned long long)n_changes(&stats),
                 (unsigned long long)(stats.prefill.experts.low_precision +
                                      stats.decode.experts.low_precision),
                 (unsigned long long)(stats.prefill.experts.skipped + stats.decode.experts.skipped),
                 (unsigned long long)stats.decode.experts.precalculated,
                 (unsigned long long)stats.decode.experts.substituted);
    if (counted && e->exactness.exact)
        fail_msg("%s: exact as asked, and counts changes", text);
    assert_int_equal(moe_stats_exact(&stats), !counted);
    assert_int_equal(moe_stats_check_exact(&stats, &err), counted ? MOE_ERR_LIMIT : MOE_OK);
    assert_string_equal(stats.inexact, e->exactness.why);
    seen.on_host += stats.decode.experts.host_computed > 0;
    return counted;
}

/* Runs as asked, then with --exact; explained: what a plan's explanation says, NULL: no plan.
 * False: it cannot run here, whether exact or not. */
static bool check_case(const struct pack *p, const struct moe_engine_options *options,
                       const struct moe_exactness *explained, const char *text)
{
    struct moe_engine_options o = *options;
    struct moe_engine *e = NULL, *strict = NULL;
    struct moe_err err = {0};
    if (moe_engine_open(&e, p->path, &o, NULL, &err) != MOE_OK) {
        if (explained || strstr(err.text, "--exact"))
            fail_msg("%s: %s", text, err.text);
        return false;
    }
    bool exact = e->exactness.exact;
    if (explained && explained->exact != exact)
        fail_msg("%s: explained as '%s', runs as '%s'", text, explained->why, e->exactness.why);
    bool changed = check_run(p, e, text);
    moe_engine_close(e);

    o.exact = true;
    int status = moe_engine_open(&strict, p->path, &o, NULL, &err);
    if (status != MOE_OK && (status != MOE_ERR_USAGE || !strstr(err.text, "--exact forbids")))
        fail_msg("%s: %s", text, err.text);
    bool accepted = status == MOE_OK;
    if (exact && !accepted)
        fail_msg("%s: exact, but refused: %s", text, err.text);
    if (accepted && !exact) { /* only where something could fall back */
        struct moe_strategy fallen = o.strategy;
        if (explained || !moe_strategy_make_exact(&fallen))
            fail_msg("%s: accepted, though it may change results", text);
        seen.fell_back++;
    }
    if (accepted && (!strict->exactness.exact || check_run(p, strict, text)))
        fail_msg("%s: accepted by --exact, and changed results", text);
    moe_engine_close(strict);
    seen.exact += accepted;
    seen.acted += changed;
    seen.idle += !exact && !changed;
    seen.planned += explained != NULL;
    return true;
}

/* Switches off the parts that may change results, but for one, if one is to be spared. */
static void calm(struct moe_strategy *s, bool spare, uint64_t *random)
{
    enum moe_part parts[MOE_N_PARTS];
    uint32_t n = 0;
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++)
        if (moe_strategy_part_inexact(s, part))
            parts[n++] = part;
    uint32_t spared = spare && n ? random_below(random, n) : n;
    for (uint32_t i = 0; i < n; i++)
        if (i != spared)
            moe_strategy_set(s, parts[i], moe_strategy_part_at(parts[i])->off, NULL);
}

static bool draw_strategy(struct moe_strategy *s, uint64_t *random)
{
    static const uint32_t bits[] = {0, 8, 4, 2};
    struct moe_err err = {0};
    if (random_below(random, 4) == 0) { /* one of the table */
        uint32_t n = 0;
        while (moe_strategy_name_at((int)n))
            n++;
        moe_strategy_find(moe_strategy_name_at((int)random_below(random, n)), s);
    } else {
        *s = random_strategy(random);
        s->name = "lru";
        s->cache_bits = bits[random_below(random, N_ITEMS(bits))];
    }
    uint32_t calmed = random_below(random, 8);
    if (calmed < 6)
        calm(s, calmed < 5, random);
    moe_strategy_drop_idle(s, 0);
    return moe_strategy_settle(s, &err) == MOE_OK;
}

/* Keeps few bits where memory is short, and changes nothing else: no plan says so but by these. */
static bool keep_bits(struct moe_strategy *s, uint64_t *random)
{
    struct moe_err err = {0};
    calm(s, false, random);
    if (s->resident || !s->cache)
        moe_strategy_find("lru", s);
    s->cache_bits = random_below(random, 2) ? 4 : 2;
    moe_strategy_drop_idle(s, 0);
    return moe_strategy_settle(s, &err) == MOE_OK;
}

static struct moe_engine_options draw_options(const struct pack *p, uint64_t *random)
{
    struct moe_engine_options o = base_options(p);
    double share = (double)random_below(random, 120) / 100;
    o.expert_memory_bytes =
        p->slot_bytes * p->config.top_k + (uint64_t)(share * (double)p->all_bytes);
    o.seed = test_random(random);
    o.staging = random_below(random, 4);
    if (random_below(random, 3) == 0)
        o.device = (struct moe_device_choice){
            .test = true, .speed = 1 + random_below(random, 2), .link_rate = 8e9};
    o.lockstep = random_below(random, 4) == 0;
    o.link_rate = o.lockstep ? 2e9 : 0;
    return o;
}

/* A machine on which loads and layers take about as long as each other. */
static struct moe_pace pace_of(const struct pack *p, uint32_t n_variants)
{
    struct moe_pace pace = {.n_variants = n_variants,
                            .head = 1e-5,
                            .load_rate = (double)p->slot_bytes / 1e-5,
                            .host_slowdown = 2};
    for (int piece = 0; piece < MOE_PIECE_DENSE; piece++)
        pace.pieces[piece] = (struct moe_line){2, {1, 8}, {1e-5, 4e-5}};
    for (uint32_t v = 0; v < n_variants; v++)
        pace.experts[v] = (struct moe_line){2, {1, 8}, {4e-6, 9e-6}};
    return pace;
}

/* The planner's plan for the options, as it comes back from its file; NULL: none can be made. */
static struct moe_plan *plan_of(const struct pack *p, const struct moe_engine_options *o)
{
    struct moe_err err = {0};
    struct moe_pack_fit *fit = NULL;
    struct moe_plan *made = NULL, *read = NULL;
    struct moe_buf text = {0};
    assert_ok(moe_pack_fit_open(&fit, p->path, o, &err), &err);
    const struct moe_inventory *inventory = moe_pack_fit_inventory(fit);
    const struct moe_pace pace = pace_of(p, inventory->n_variants);
    const struct moe_planner planner = {
        .inventory = inventory,
        .fitter = moe_pack_fit_fitter(fit),
        .trace = p->trace,
        .lookups = p->lookups,
        .statistics = p->statistics,
        .pace = &pace,
        .exact = o->exact,
        .seed = 5,
    };
    assert_ok(
        moe_plan_new(&made, inventory->n_layers, inventory->n_experts, inventory->top_k, &err),
        &err);
    made->pack_fingerprint = moe_pack_fingerprint(moe_pack_fit_model(fit)->pack);
    if (moe_planner_make(&planner, &o->strategy, made, &err) == MOE_OK) {
        assert_ok(moe_plan_write(made, false, &text, &err), &err);
        assert_ok(moe_record_parse(&moe_plan_format, &read, "plan", text.data, text.size, &err),
                  &err);
    }
    moe_buf_release(&text);
    moe_plan_free(made);
    moe_pack_fit_close(fit);
    return read;
}

/* Follows the plan of what was drawn. */
static bool check_plan_case(const struct pack *p, const struct moe_engine_options *drawn,
                            const char *text, uint64_t *random)
{
    struct moe_engine_options o = *drawn, follow = base_options(p);
    o.device = (struct moe_device_choice){0}; /* plans are made for one */
    o.exact = random_below(random, 4) == 0;
    o.lockstep = false;
    o.link_rate = 0;
    struct moe_plan *plan = plan_of(p, &o);
    if (!plan)
        return false;
    if (random_below(random, 2) == 0) /* by hand: the variant alone says what is kept */
        moe_strategy_set(&plan->strategy, MOE_PART_CACHE_BITS, "0", NULL);
    const struct moe_terms terms = moe_plan_terms(plan);
    const struct moe_exactness explained = moe_exactness_of(&terms);
    if (o.exact && !explained.exact)
        fail_msg("%s: planned with --exact, but %s", text, explained.why);
    follow.plan = plan;
    follow.lockstep = drawn->lockstep;
    follow.link_rate = drawn->link_rate;
    follow.pace = &plan->pace;
    seen.kept += terms.kept && !strchr(explained.why, '-');
    bool ran = check_case(p, &follow, &explained, text);
    moe_plan_free(plan);
    return ran;
}

/* One case drawn from the seed; false: it cannot run. */
static bool check_seed(uint64_t seed)
{
    uint64_t random = seed * 0x9e3779b97f4a7c15u + 1;
    const struct pack *p = &packs[random_below(&random, N_ITEMS(kinds))];
    char text[512];
    struct moe_buf parts = {0};
    struct moe_engine_options o = draw_options(p, &random);
    bool planned = random_below(&random, 3) == 0;
    if (!draw_strategy(&o.strategy, &random))
        return false;
    if (planned && random_below(&random, 3) == 0 && !keep_bits(&o.strategy, &random))
        return false;
    moe_strategy_describe(&o.strategy, &parts);
    snprintf(text, sizeof text, "seed %llu: %s%s, pack %d, %llu bytes of %llu, %s%s",
             (unsigned long long)seed, planned ? "a plan of " : "", (const char *)parts.data,
             (int)(p - packs), (unsigned long long)o.expert_memory_bytes,
             (unsigned long long)p->all_bytes, o.device.test ? "test device" : "cpu",
             o.lockstep ? ", lockstep" : "");
    moe_buf_release(&parts);
    bool ran = planned ? check_plan_case(p, &o, text, &random) : check_case(p, &o, NULL, text);
    moe_par_set_threads(1);
    return ran;
}

static void exact_is_what_changes_nothing(void **state)
{
    uint32_t n = 0;
    for (uint64_t seed = 1; n < N_CASES; seed++)
        n += check_seed(seed);
    print_message("# %u cases: %u accepted by --exact (%u fell back), %u changed results, %u might "
                  "have; %u by plans, %u for the variant alone, %u with a host\n",
                  n, seen.exact, seen.fell_back, seen.acted, seen.idle, seen.planned, seen.kept,
                  seen.on_host);
    assert_true(seen.exact >= N_CASES / 5 && seen.acted >= N_CASES / 5);
    assert_true(seen.idle >= N_CASES / 100 && seen.fell_back >= N_CASES / 100);
    assert_true(seen.planned >= N_CASES / 5 && seen.kept >= N_CASES / 100);
    assert_true(seen.on_host >= N_CASES / 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_is_what_changes_nothing),
    };
    return cmocka_run_group_tests_name("exactness", tests, open_packs, close_packs);
}
