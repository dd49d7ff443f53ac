/*
 * The planner: what is in a plan is what the simulator says, and an engine that follows it in
 * lockstep makes exactly the decisions that the plan was made from.
 */
#include <math.h>

#include "base/par.h"
#include "lockstep_fixture.h"
#include "plan/planner.h"
#include "show/explain_figures.h"

enum { BATCH = 16 };

static struct strategies fixture;
static struct moe_trace *trace;
static struct moe_lookups *lookups;
static char trace_path[128];

static int open_all(void **state)
{
    struct moe_err err = {0};
    strategies_set_up(&fixture, "planner", 4);
    snprintf(trace_path, sizeof trace_path, "/tmp/moe-planner-%d.trace", (int)getpid());
    lockstep_write_trace(&fixture, trace_path, moe_trace_default_keep(EXPERTS, TOP_K), 50);
    assert_ok(moe_trace_open(&trace, trace_path, &err), &err);
    assert_ok(moe_lookups_read(&lookups, trace, (struct moe_excerpt){0}, &err), &err);
    return 0;
}

static int close_all(void **state)
{
    moe_lookups_free(lookups);
    moe_trace_close(trace);
    unlink(trace_path);
    strategies_tear_down(&fixture);
    return 0;
}

/* ---- Planning ---- */

struct planning {
    struct moe_engine_options options;
    struct moe_pace pace;
    struct moe_pack_fit *fit;
    struct moe_planner planner;
};

static void begin(struct planning *p, const char *words, double demand, double ratio)
{
    struct moe_err err = {0};
    *p = (struct planning){.options = strategies_options(&fixture, words, demand),
                           .pace = lockstep_pace((double)fixture.slot_bytes, ratio)};
    p->options.session.batch = BATCH;
    assert_ok(moe_pack_fit_open(&p->fit, fixture.pack, &p->options, &err), &err);
    p->planner = (struct moe_planner){
        .inventory = moe_pack_fit_inventory(p->fit),
        .fitter = moe_pack_fit_fitter(p->fit),
        .trace = trace,
        .lookups = lookups,
        .statistics = fixture.statistics,
        .pace = &p->pace,
        .seed = 5,
    };
}

static void end(struct planning *p)
{
    moe_pack_fit_close(p->fit);
}

static struct moe_plan *make(struct planning *p)
{
    struct moe_err err = {0};
    struct moe_plan *plan = NULL;
    assert_ok(moe_plan_new(&plan, LAYERS, EXPERTS, TOP_K, &err), &err);
    plan->pack_fingerprint = moe_pack_fingerprint(moe_pack_fit_model(p->fit)->pack);
    snprintf(plan->pack, sizeof plan->pack, "tiny");
    assert_ok(moe_planner_make(&p->planner, &p->options.strategy, plan, &err), &err);
    return plan;
}

static struct moe_plan *round_trip(const struct moe_plan *plan)
{
    struct moe_err err = {0};
    struct moe_buf text = {0};
    struct moe_plan *read = NULL;
    assert_ok(moe_plan_write(plan, false, &text, &err), &err);
    assert_ok(moe_record_parse(&moe_plan_format, &read, "plan", text.data, text.size, &err), &err);
    moe_buf_release(&text);
    return read;
}

static struct moe_trial_run try_strategy(const struct planning *p, const struct moe_strategy *s,
                                         struct moe_simulated_layer *layers)
{
    struct moe_err err = {0};
    struct moe_trial_run t;
    assert_ok(moe_planner_try(&p->planner, s, 0, 0, &t, layers, &err), &err);
    return t;
}

static const char *const rows[] = {
    "ondemand",
    "lru",
    "lru cache=random alloc=per-layer",
    "lru cache=lfu alloc=frequency init=frequency",
    "lru cache=arc alloc=shallow:2 init=layerwise",
    "prefetch",
    "prefetch predict=gate-ahead:3",
    "prefetch prefetch=percentile:75,slack",
    "eap prefill=popularity",
    "edgemoe",
    "fate prefill=popularity",
    "hobbit on-miss=load skip-below=0 low-pool=0",
};

static void close_to(const char *what, double got, double expected)
{
    if (!(fabs(got - expected) <= 1e-9 * fmax(1, fabs(expected))))
        fail_msg("%s: %.12g, expected %.12g", what, got, expected);
}

/* ---- The tests ---- */

static void check_figures(const struct planning *p, const struct moe_plan *plan)
{
    struct moe_simulated_layer layers[LAYERS];
    const struct moe_trial_run t = try_strategy(p, &p->options.strategy, layers);
    const struct moe_simulated_phase *d = &t.simulated.decode;
    const struct moe_plan_expected *e = &plan->expected;
    double n = (double)d->tokens, uses = (double)d->experts.activations, hits = 0, stall = 0;
    assert_int_equal(d->tokens, N_DOCUMENTS * N_ALL / 2);
    close_to("tokens/s", e->decode_tokens_per_second, n / d->seconds);
    close_to("hit rate", e->hit_rate,
             (double)(d->experts.cache_hits + d->experts.prefetch_hits) / uses);
    close_to("bytes", e->bytes_per_token, (double)d->bytes / n);
    close_to("parts", e->compute_seconds + e->stall_seconds + e->host_seconds,
             1 / e->decode_tokens_per_second);
    close_to("link", e->link_seconds, d->link_seconds / n);
    for (uint32_t l = 0; l < LAYERS; l++) {
        hits += plan->layers[l].hit_rate / LAYERS;
        stall += plan->layers[l].stall_seconds;
    }
    close_to("hit rate by layer", hits, e->hit_rate);
    close_to("stall by layer", stall, e->stall_seconds);
    assert_true(e->compute_limit_seconds <= e->compute_seconds + 1e-12);
    bool plain = !plan->strategy.predict && !plan->n_contents;
    assert_true(!plain || e->hit_rate <= e->optimal_hit_rate + 1e-12);
    assert_true(!plain || e->link_limit_seconds <= e->link_seconds + 1e-12);
    /* T, t_expert and n of Fate 4.3. */
    close_to("T", plan->layer_seconds, moe_pace_layer(&p->pace, 0, TOP_K));
    assert_int_equal(plan->slack_loads, plan->layer_seconds / plan->load_seconds);
}

/* Of first answers: what each text of the trace takes by itself. A cache that knows earlier texts
 * has no fewer hits, where what was used last stays. */
static void check_first(const struct planning *p, const struct moe_plan *plan)
{
    struct planning one = *p;
    double tokens = 0, seconds = 0;
    for (uint32_t i = 0; i < N_DOCUMENTS; i++) {
        one.planner.excerpt = (struct moe_excerpt){.first = i, .every = N_DOCUMENTS};
        const struct moe_trial_run t = try_strategy(&one, &p->options.strategy, NULL);
        tokens += (double)t.simulated.decode.tokens;
        seconds += t.simulated.decode.seconds;
    }
    close_to("first tokens/s", plan->first.decode_tokens_per_second, tokens / seconds);
    assert_true(plan->first.prefill_tokens_per_second < 0);
    if (plan->strategy.cache == &moe_policy_lru && !plan->strategy.predict && !plan->n_contents)
        assert_true(plan->first.hit_rate <= plan->expected.hit_rate);
}

static void check_slots(const struct moe_plan *plan)
{
    uint64_t room = 0;
    for (uint32_t c = 0; c < plan->n_pools; c++) {
        const struct moe_plan_pool *pool = &plan->pools[c];
        uint64_t sum = 0;
        for (uint32_t l = 0; pool->per_layer && l < LAYERS; l++)
            sum += pool->per_layer[l];
        assert_true(!pool->per_layer || sum == pool->n_cache);
        room += pool->n_cache;
    }
    assert_true(plan->n_contents <= room);
    uint32_t of_layer[LAYERS] = {0};
    for (uint32_t i = 0; i < plan->n_contents; i++) {
        of_layer[plan->contents[i] / EXPERTS]++;
        for (uint32_t j = 0; j < i; j++)
            assert_int_not_equal(plan->contents[i], plan->contents[j]);
    }
    for (uint32_t l = 0; l < LAYERS; l++)
        assert_true(!plan->pools[0].per_layer || of_layer[l] <= plan->pools[0].per_layer[l]);
}

static void check_steps(const struct moe_plan *plan)
{
    bool in_memory = false, in_rates = false;
    double speed = plan->expected.decode_tokens_per_second;
    assert_true(plan->n_memory_steps > 1 && plan->n_rate_steps == 6);
    for (uint32_t i = 0; i < plan->n_memory_steps; i++) {
        const struct moe_plan_step *s = &plan->memory_steps[i];
        assert_true(i == 0 || s->amount > s[-1].amount);
        in_memory |= s->decode_tokens_per_second == speed && s->hit_rate == plan->expected.hit_rate;
    }
    close_to("all in memory", plan->memory_steps[plan->n_memory_steps - 1].hit_rate, 1);
    for (uint32_t i = 0; i < plan->n_rate_steps; i++)
        in_rates |= plan->rate_steps[i].amount == plan->pace.load_rate &&
                    plan->rate_steps[i].decode_tokens_per_second == speed;
    if (!in_memory || !in_rates)
        fail_msg("%s: %.9g tokens/s is not among the steps of %s", plan->strategy.name, speed,
                 in_memory ? "rates" : "memory");
}

/* The fastest of all candidates. */
static void check_boundary(const struct planning *p, const struct moe_plan *plan)
{
    uint32_t n_cache = plan->pools[0].n_cache, best = 0;
    double speed = 0;
    if (!plan->strategy.cache) {
        assert_int_equal(plan->boundary_stall, UINT32_MAX);
        return;
    }
    for (uint32_t l = 0; l < LAYERS && l * EXPERTS <= n_cache; l++) {
        struct moe_strategy s = p->options.strategy;
        s.alloc = l ? MOE_ALLOC_SHALLOW : MOE_ALLOC_PER_LAYER;
        s.boundary = l;
        const struct moe_trial_run t = try_strategy(p, &s, NULL);
        if (moe_trial_tokens_per_second(&t) > speed) {
            speed = moe_trial_tokens_per_second(&t);
            best = l;
        }
    }
    assert_int_equal(plan->boundary_stall, best);
    assert_true(plan->boundary_accuracy < LAYERS);
}

static void check_same(const struct moe_plan *a, const struct moe_plan *b)
{
    struct moe_err err = {0};
    struct moe_buf first = {0}, second = {0};
    assert_ok(moe_plan_write(a, false, &first, &err), &err);
    assert_ok(moe_plan_write(b, false, &second, &err), &err);
    assert_true(first.size == second.size && memcmp(first.data, second.data, first.size) == 0);
    moe_buf_release(&first);
    moe_buf_release(&second);
}

static void a_plan_says_what_the_simulator_does(void **state)
{
    for (size_t i = 0; i < 2 * N_ITEMS(rows); i++) {
        struct planning p;
        begin(&p, rows[i / 2], i % 2 ? 3 : 1.5, i % 2 ? 0.3 : 1.2);
        struct moe_plan *plan = make(&p);
        check_figures(&p, plan);
        check_first(&p, plan);
        check_slots(plan);
        check_steps(plan);
        check_boundary(&p, plan);
        struct moe_plan *read = round_trip(plan);
        check_same(plan, read);
        moe_plan_free(read);
        moe_plan_free(plan);
        end(&p);
    }
}

/* Trials on few tokens, here one short text of two, say nearly the same of what is near the plan,
 * and of the plan itself nothing else. */
static const double NEARLY = 0.15;

static void fewer_tokens_say_nearly_the_same(void **state)
{
    struct planning p;
    begin(&p, "prefetch", 3, 0.3);
    struct moe_plan *all = make(&p);
    p.planner.trial_tokens = moe_trace_totals(trace)->tokens / 2;
    struct moe_plan *few = make(&p);
    assert_memory_equal(&few->expected, &all->expected, sizeof all->expected);
    assert_memory_equal(&few->first, &all->first, sizeof all->first);
    assert_int_equal(few->n_memory_steps, all->n_memory_steps);
    assert_int_equal(few->n_alternatives, all->n_alternatives);
    assert_int_equal(few->n_doubts, all->n_doubts);
    check_steps(few);
    uint32_t n_other = 0;
    for (uint32_t i = 0; i < few->n_memory_steps; i++) {
        const struct moe_plan_step *a = &all->memory_steps[i], *b = &few->memory_steps[i];
        assert_true(a->amount == b->amount);
        assert_true(fabs(b->decode_tokens_per_second / a->decode_tokens_per_second - 1) < NEARLY);
        assert_true(fabs(b->hit_rate - a->hit_rate) < NEARLY);
        n_other += b->hit_rate != a->hit_rate;
    }
    assert_true(n_other > 0);
    for (uint32_t i = 0; i < few->n_alternatives; i++) {
        const struct moe_plan_alternative *a = &all->alternatives[i], *b = &few->alternatives[i];
        assert_true(a->decode_tokens_per_second < 0 ||
                    fabs(b->decode_tokens_per_second / a->decode_tokens_per_second - 1) < NEARLY);
        assert_true(a->bytes_per_token <= 0 || fabs(b->bytes_per_token - a->bytes_per_token) <
                                                   NEARLY * all->expected.bytes_per_token);
    }
    moe_plan_free(few);
    moe_plan_free(all);
    end(&p);
}

/* Within a budget of the whole process. */
static void a_budget_has_steps_too(void **state)
{
    struct moe_err err = {0};
    struct planning p;
    struct moe_fitted f;
    begin(&p, "prefetch", 0, 1);
    p.options.memory_bytes = (uint64_t)1 << 40;
    moe_pack_fit_close(p.fit);
    assert_ok(moe_pack_fit_open(&p.fit, fixture.pack, &p.options, &err), &err);
    p.planner.fitter = moe_pack_fit_fitter(p.fit);
    p.planner.inventory = moe_pack_fit_inventory(p.fit);
    assert_ok(p.planner.fitter.fit(p.planner.fitter.ctx, &p.options.strategy, NULL, &f, &err),
              &err);
    uint64_t budget = f.memory.floor + 2 * fixture.token_bytes;
    moe_pack_fit_close(p.fit);
    p.options.memory_bytes = budget;
    assert_ok(moe_pack_fit_open(&p.fit, fixture.pack, &p.options, &err), &err);
    p.planner.fitter = moe_pack_fit_fitter(p.fit);
    p.planner.inventory = moe_pack_fit_inventory(p.fit);
    struct moe_plan *plan = make(&p);
    assert_int_equal(plan->memory.total, budget);
    check_slots(plan);
    bool present = false;
    for (uint32_t i = 0; i < plan->n_memory_steps; i++)
        present |= plan->memory_steps[i].amount == (double)budget &&
                   plan->memory_steps[i].decode_tokens_per_second ==
                       plan->expected.decode_tokens_per_second;
    assert_true(present);
    moe_plan_free(plan);
    end(&p);
}

/* ---- Batch ---- */

/* What a prompt of p's length and the trace's answers take. */
struct taken {
    double prompt, answers;
    struct moe_fitted fitted;
};

static struct taken time_of(const struct planning *p)
{
    struct moe_err err = {0};
    struct moe_simulated_phase prompt;
    uint32_t n;
    const struct moe_trial_run t = try_strategy(p, &p->options.strategy, NULL);
    assert_ok(
        moe_planner_try_prompt(&p->planner, &p->options.strategy, 0, 0, &t, &prompt, &n, &err),
        &err);
    assert_int_equal(n,
                     p->planner.prompt_tokens ? p->planner.prompt_tokens : t.fitted.memory.context);
    assert_int_equal(prompt.tokens, n);
    return (struct taken){prompt.seconds, t.simulated.decode.seconds, t.fitted};
}

static void open_budget(struct planning *p, uint64_t bytes)
{
    struct moe_err err = {0};
    p->options.memory_bytes = bytes;
    p->options.session.batch = 0;
    moe_pack_fit_close(p->fit);
    assert_ok(moe_pack_fit_open(&p->fit, fixture.pack, &p->options, &err), &err);
    p->planner.fitter = moe_pack_fit_fitter(p->fit);
    p->planner.inventory = moe_pack_fit_inventory(p->fit);
    p->planner.batch = 0;
}

/* With the batch that is found neither a prompt nor an answer is slower than without a plan, nor
 * are both together with more memory than with less: of least recently used experts a larger cache
 * holds all that a smaller one does. Its batch is smaller only for prompts that are. */
static void more_memory_is_never_slower(void **state)
{
    static const struct {
        const char *words;
        uint32_t prompt;
    } cases[] = {{"lru", 0}, {"prefetch", 0}, {"lru", 24}, {"prefetch", 24}};
    for (size_t r = 0; r < N_ITEMS(cases); r++) {
        struct moe_err err = {0};
        struct planning p;
        struct taken before = {.prompt = INFINITY, .answers = INFINITY};
        uint32_t n_better = 0, n_smaller = 0;
        begin(&p, cases[r].words, 0, 1);
        p.planner.prompt_tokens = cases[r].prompt;
        open_budget(&p, (uint64_t)1 << 40);
        const uint64_t floor = time_of(&p).fitted.memory.floor;
        for (uint32_t i = 0; i < 8; i++) {
            open_budget(&p, floor + i * fixture.token_bytes);
            const struct taken own = time_of(&p);
            assert_int_equal(own.fitted.memory.floor, floor);
            assert_ok(moe_planner_search_batch(&p.planner, &p.options.strategy, &err), &err);
            const struct taken found = time_of(&p);
            const struct moe_fitted *f = &found.fitted;
            assert_int_equal(f->memory.floor, floor);
            assert_true(!p.planner.batch || f->memory.batch == p.planner.batch);
            assert_true(f->memory.batch >= own.fitted.memory.batch ||
                        f->memory.batch >= (cases[r].prompt ? cases[r].prompt : f->memory.context));
            n_better += found.prompt + found.answers < own.prompt + own.answers;
            n_smaller += f->memory.batch < own.fitted.memory.batch;
            bool rises =
                found.prompt + found.answers > (before.prompt + before.answers) * (1 + 1e-9);
            if (found.prompt > own.prompt || found.answers > own.answers ||
                (strcmp(cases[r].words, "lru") == 0 && rises))
                fail_msg("%s, step %d: %g + %g s, %g + %g without a choice, %g + %g with less "
                         "memory",
                         cases[r].words, (int)i, found.prompt, found.answers, own.prompt,
                         own.answers, before.prompt, before.answers);
            before = found;
        }
        assert_true(n_better > 0);
        assert_true(n_smaller > 0 || !cases[r].prompt);
        /* A batch that the user names stays. */
        p.options.session.batch = 0;
        p.planner.batch_named = true;
        p.planner.batch = 0;
        assert_ok(moe_planner_search_batch(&p.planner, &p.options.strategy, &err), &err);
        assert_int_equal(p.planner.batch, 0);
        end(&p);
    }
}

/* What planning takes at this budget: the fastest strategy with the batch found for it. */
static struct moe_fitted planned_at(struct planning *p, uint64_t bytes)
{
    struct moe_err err = {0};
    struct moe_plan *plan = NULL;
    struct moe_strategy best;
    open_budget(p, bytes);
    assert_ok(moe_plan_new(&plan, LAYERS, EXPERTS, TOP_K, &err), &err);
    assert_ok(moe_planner_search(&p->planner, plan, &best, &err), &err);
    assert_ok(moe_planner_search_batch(&p->planner, &best, &err), &err);
    moe_plan_free(plan);
    p->options.strategy = best;
    return time_of(p).fitted;
}

/* The last step of a plan's curve is the smallest budget in which planning finds all experts in
 * memory, whatever batch this plan has; and no step is slower than one with less memory, or than
 * the strategy is there by itself. */
static void curves_end_where_all_experts_fit(void **state)
{
    enum { HALF_MIB = 1 << 19 };
    struct planning p;
    begin(&p, "lru", 0, 1);
    p.planner.exact = true; /* as moe-plan searches: fewer experts are faster than all */
    const struct moe_strategy lru = p.options.strategy;
    open_budget(&p, (uint64_t)1 << 40);
    const struct moe_fitted most = time_of(&p).fitted;
    const uint64_t floor = most.memory.floor;
    const uint64_t budgets[] = {floor + fixture.token_bytes, floor + 2 * fixture.token_bytes,
                                (uint64_t)1 << 30};
    for (size_t b = 0; b < N_ITEMS(budgets); b++) {
        struct moe_err err = {0};
        p.options.strategy = lru;
        if (budgets[b] == (uint64_t)1 << 30)
            moe_strategy_find("resident", &p.options.strategy);
        open_budget(&p, budgets[b]);
        assert_ok(moe_planner_search_batch(&p.planner, &p.options.strategy, &err), &err);
        struct moe_plan *plan = make(&p);
        const uint32_t n = plan->n_memory_steps;
        assert_true(n > 0);
        assert_true(plan->strategy.resident == (n == 1));
        for (uint32_t i = 0; i + 1 < n; i++) {
            const struct moe_plan_step *step = &plan->memory_steps[i];
            assert_true(step[1].decode_tokens_per_second >= step->decode_tokens_per_second);
            open_budget(&p, (uint64_t)step->amount);
            const struct moe_trial_run own = try_strategy(&p, &lru, NULL);
            assert_true(step->decode_tokens_per_second >= moe_trial_tokens_per_second(&own));
        }
        const uint64_t all = (uint64_t)plan->memory_steps[n - 1].amount;
        assert_true(plan->memory_steps[n - 1].hit_rate == 1);
        assert_true(planned_at(&p, all).strategy.resident);
        assert_false(planned_at(&p, all - HALF_MIB).strategy.resident);
        moe_plan_free(plan);
    }
    end(&p);
}

/* ---- Following a plan ---- */

static struct moe_engine_options following(const struct planning *p, const struct moe_plan *plan)
{
    struct moe_engine_options o = {
        .plan = plan,
        .statistics = fixture.statistics,
        .pack_copy = fixture.copy,
        .pack_copy_bytes = fixture.copy_bytes,
        .lockstep = true,
        .link_rate = p->pace.load_rate,
        .pace = &p->pace,
        .seed = p->planner.seed,
    };
    return o;
}

static void an_engine_does_as_planned(void **state)
{
    for (size_t i = 0; i < 2 * N_ITEMS(rows); i++) {
        struct planning p;
        begin(&p, rows[i / 2], i % 2 ? 1 : 2.5, i % 2 ? 0.8 : 0.3);
        struct moe_plan *made = make(&p), *plan = round_trip(made);
        const struct moe_trial_run t = try_strategy(&p, &p.options.strategy, NULL);
        const struct moe_simulated_phase *s = &t.simulated.decode;
        const struct moe_engine_options o = following(&p, plan);
        struct moe_engine *e = strategies_open(&fixture, &o);
        lockstep_run(e, &fixture, BATCH, N_ALL / 2);
        const struct moe_phase_stats *r = &e->session->stats.decode;
        const struct moe_counts *a = &r->experts, *b = &s->experts;
        if (a->cache_hits != b->cache_hits || a->prefetch_hits != b->prefetch_hits ||
            a->prefetch_late != b->prefetch_late || a->misses != b->misses ||
            a->loads != b->loads || a->prefetches != b->prefetches)
            fail_msg("%s: the run has %d+%d hits, %d late, %d misses, %d loads; planned were "
                     "%d+%d, %d, %d, %d",
                     rows[i / 2], (int)a->cache_hits, (int)a->prefetch_hits, (int)a->prefetch_late,
                     (int)a->misses, (int)a->loads, (int)b->cache_hits, (int)b->prefetch_hits,
                     (int)b->prefetch_late, (int)b->misses, (int)b->loads);
        assert_int_equal(r->bytes_read, s->bytes);
        close_to(rows[i / 2], (double)r->tokens / r->seconds,
                 plan->expected.decode_tokens_per_second);
        close_to("stall", r->stall_seconds / (double)r->tokens, plan->expected.stall_seconds);
        moe_engine_close(e);
        moe_plan_free(plan);
        moe_plan_free(made);
        end(&p);
    }
}

static void everything_may_be_resident(void **state)
{
    struct planning p;
    begin(&p, "resident", 0, 1);
    p.pace.loads.interruptions = 1.3;
    struct moe_plan *made = make(&p), *plan = round_trip(made);
    const struct moe_plan_bounds b = moe_plan_bounds(plan);
    assert_true(plan->strategy.resident && plan->n_pools == 0 && plan->n_contents == 0);
    assert_true(plan->expected.hit_rate == 1 && plan->expected.stall_seconds == 0);
    close_to("compute", plan->expected.compute_seconds, plan->expected.compute_limit_seconds);
    assert_true(b.seconds[MOE_BOUND_PREDICTION] <= 1e-12 * b.total); /* nothing is read */
    assert_true(plan->n_memory_steps == 1 && plan->n_rate_steps == 0);
    assert_int_equal(plan->memory.experts, plan->memory.all);
    const struct moe_engine_options o = following(&p, plan);
    struct moe_engine *e = strategies_open(&fixture, &o);
    assert_true(e->strategy.resident && e->budget.n_slots == 0);
    moe_engine_close(e);
    moe_plan_free(plan);
    moe_plan_free(made);
    end(&p);
}

static void plans_of_others_are_refused(void **state)
{
    struct moe_err err = {0};
    struct moe_engine *e = NULL;
    struct planning p;
    begin(&p, "lru", 2, 0.5);
    struct moe_plan *plan = make(&p);
    const struct moe_engine_options o = following(&p, plan);
    plan->pack_fingerprint++;
    assert_fails(moe_engine_open(&e, fixture.pack, &o, NULL, &err), MOE_ERR_FORMAT,
                 "the plan was made for another pack, tiny, not for", &err);
    plan->pack_fingerprint--;
    plan->pools[0].slot_bytes += 4096;
    assert_fails(moe_engine_open(&e, fixture.pack, &o, NULL, &err), MOE_ERR_FORMAT,
                 "the plan's slots are not those of", &err);
    plan->pools[0].slot_bytes -= 4096;
    plan->high[0] ^= 1;
    assert_fails(moe_engine_open(&e, fixture.pack, &o, NULL, &err), MOE_ERR_FORMAT,
                 "the plan's slots are not those of", &err);
    plan->high[0] ^= 1;
    plan->n_pools--;
    assert_fails(moe_engine_open(&e, fixture.pack, &o, NULL, &err), MOE_ERR_FORMAT,
                 "the plan's slots are not those of", &err);
    plan->n_pools++;
    assert_ok(moe_engine_open(&e, fixture.pack, &o, NULL, &err), &err);
    moe_engine_close(e);
    moe_plan_free(plan);
    end(&p);
}

/* ---- Searching ---- */

static void the_search_finds_the_fastest(void **state)
{
    for (int exact = 0; exact < 2; exact++) {
        struct moe_err err = {0};
        struct moe_plan *plan = NULL;
        struct moe_strategy best;
        struct planning p;
        uint32_t n_inexact = 0;
        begin(&p, "lru", 1.5, 0.6);
        p.planner.exact = exact;
        assert_ok(moe_plan_new(&plan, LAYERS, EXPERTS, TOP_K, &err), &err);
        assert_ok(moe_planner_search(&p.planner, plan, &best, &err), &err);
        const struct moe_trial_run t = try_strategy(&p, &best, NULL);
        double speed = moe_trial_tokens_per_second(&t);
        assert_true(plan->n_tried > 20);
        for (uint32_t i = 1; i < plan->n_tried; i++)
            assert_true(plan->tried[i].decode_tokens_per_second <=
                        plan->tried[i - 1].decode_tokens_per_second);
        for (uint32_t i = 0; i < plan->n_tried; i++) {
            struct moe_strategy s;
            uint32_t named;
            assert_ok(moe_strategy_parse(plan->tried[i].strategy, &s, &named, &err), &err);
            assert_ok(moe_strategy_settle(&s, &err), &err);
            moe_strategy_make_exact(&s);
            const struct moe_terms terms = {.strategy = &s, .any_pack = true};
            n_inexact += !moe_exactness_of(&terms).exact;
        }
        if (exact != (n_inexact == 0))
            fail_msg("%u of %u may change results", n_inexact, plan->n_tried);
        for (int i = 0; moe_strategy_name_at(i); i++) {
            struct moe_strategy row;
            struct moe_trial_run r;
            moe_strategy_find(moe_strategy_name_at(i), &row);
            if (moe_planner_try(&p.planner, &row, 0, 0, &r, NULL, &err) == MOE_OK)
                assert_true(moe_trial_tokens_per_second(&r) <= speed);
        }
        /* Parts are no longer changed where that gains less than this. */
        assert_true(plan->tried[0].decode_tokens_per_second <= 1.003 * speed);
        moe_plan_free(plan);
        end(&p);
    }
}

/* A plan's text, searched for with trials of so many threads; 0: one after the other, forgotten. */
static void plan_by(int threads, struct moe_buf *text)
{
    struct moe_err err = {0};
    struct moe_plan *plan = NULL;
    struct moe_strategy best;
    struct planning p;
    begin(&p, "lru", 1.5, 0.6);
    assert_ok(moe_plan_new(&plan, LAYERS, EXPERTS, TOP_K, &err), &err);
    if (threads) {
        int before = moe_par_set_team(threads);
        assert_ok(moe_trials_open(&p.planner.trials, &p.planner, &err), &err);
        moe_par_set_team(before);
    }
    assert_ok(moe_planner_search(&p.planner, plan, &best, &err), &err);
    assert_ok(moe_planner_search_batch(&p.planner, &best, &err), &err);
    assert_ok(moe_planner_make(&p.planner, &best, plan, &err), &err);
    assert_ok(moe_plan_write(plan, false, text, &err), &err);
    moe_trials_close(p.planner.trials);
    moe_plan_free(plan);
    end(&p);
}

static void threads_do_not_change_a_plan(void **state)
{
    struct moe_buf alone = {0};
    plan_by(0, &alone);
    for (int threads = 1; threads <= 3; threads += 2) {
        struct moe_buf text = {0};
        plan_by(threads, &text);
        assert_int_equal(text.size, alone.size);
        assert_memory_equal(text.data, alone.data, alone.size);
        moe_buf_release(&text);
    }
    moe_buf_release(&alone);
}

/* What was simulated ahead is what is asked for later, and each thread has read for itself. */
static void trials_ahead_are_those_asked_for(void **state)
{
    enum { N = 3 };
    struct moe_err err = {0};
    struct planning p;
    struct moe_strategy s[N];
    struct moe_trial trials[N + 1];
    struct moe_trial_run alone[N], t;
    begin(&p, "lru", 1.5, 0.6);
    for (int i = 0; i < N; i++) {
        moe_strategy_find(i == 0 ? "lru" : i == 1 ? "prefetch" : "ondemand", &s[i]);
        trials[i] = moe_trial_of(&p.planner, &s[i], 0, 0);
        assert_ok(moe_planner_try(&p.planner, &s[i], 0, 0, &alone[i], NULL, &err), &err);
    }
    trials[N] = trials[0]; /* asked for twice */
    int before = moe_par_set_team(2);
    assert_ok(moe_trials_open(&p.planner.trials, &p.planner, &err), &err);
    moe_par_set_team(before);
    assert_ok(moe_trials_ahead(&p.planner, trials, N + 1, NULL, 0, 0, &err), &err);
    /* Nothing is simulated any more: only what is remembered can be told. */
    const volatile sig_atomic_t stop = 1;
    const struct moe_progress stopped = {.stop = &stop};
    p.planner.progress = &stopped;
    for (int i = 0; i < N; i++) {
        assert_ok(moe_planner_try(&p.planner, &s[i], 0, 0, &t, NULL, &err), &err);
        assert_memory_equal(&t.simulated, &alone[i].simulated, sizeof t.simulated);
        assert_true(t.optimal_hit_rate == alone[i].optimal_hit_rate);
    }
    assert_fails(moe_planner_try(&p.planner, &s[0], 0, 1e6, &t, NULL, &err), MOE_ERR_INTERRUPTED,
                 "stopped", &err);
    moe_trials_close(p.planner.trials);
    end(&p);
}

/* What caches learn of the same choices is found out once, and comes to the same figures. */
static void trials_share_what_caches_learn(void **state)
{
    static const char *const words[] = {
        "lru cache=learned",
        "lru cache=learned skip-below=0.3",
        "prefetch cache=learned",
        "prefetch predict=gate-ahead:3 cache=learned",
        "prefetch predict=gate-residual prefetch=all,measured cache=learned",
        "lru cache=learned prefer-cached=0.5",
        "lru cache=transition",
    };
    struct moe_err err = {0};
    struct planning p;
    begin(&p, "lru", 1.5, 0.6);
    struct moe_planner alone = p.planner;
    assert_ok(moe_trials_open(&p.planner.trials, &p.planner, &err), &err);
    for (int time = 0; time < 2; time++) {
        p.planner.batch = alone.batch = time ? 3 : 0;
        for (size_t i = 0; i < N_ITEMS(words); i++) {
            const struct moe_strategy s = strategies_options(&fixture, words[i], 1).strategy;
            for (uint32_t size = 1; size < 4; size++) {
                const uint64_t bytes = size * 5 * fixture.slot_bytes;
                struct moe_trial_run a, b;
                assert_ok(moe_planner_try(&alone, &s, bytes, 0, &a, NULL, &err), &err);
                assert_ok(moe_planner_try(&p.planner, &s, bytes, 0, &b, NULL, &err), &err);
                if (memcmp(&a.simulated, &b.simulated, sizeof a.simulated) != 0)
                    fail_msg("%s in %u slots comes to something else", words[i], size * 5);
            }
        }
    }
    moe_trials_close(p.planner.trials);
    end(&p);
}

static void nothing_runs_in_no_memory(void **state)
{
    struct moe_err err = {0};
    struct moe_plan *plan = NULL;
    struct moe_strategy best;
    struct planning p;
    begin(&p, "lru", 1, 1);
    moe_pack_fit_close(p.fit);
    p.options.memory_bytes = 1 << 20;
    assert_ok(moe_pack_fit_open(&p.fit, fixture.pack, &p.options, &err), &err);
    p.planner.fitter = moe_pack_fit_fitter(p.fit);
    p.planner.inventory = moe_pack_fit_inventory(p.fit);
    assert_ok(moe_plan_new(&plan, LAYERS, EXPERTS, TOP_K, &err), &err);
    assert_fails(moe_planner_search(&p.planner, plan, &best, &err), MOE_ERR_LIMIT,
                 "the smallest that works is", &err);
    assert_fails(moe_planner_make(&p.planner, &p.options.strategy, plan, &err), MOE_ERR_LIMIT,
                 "the smallest that works", &err);
    moe_plan_free(plan);
    end(&p);
}

static void what_may_change_results_is_refused(void **state)
{
    struct moe_err err = {0};
    struct moe_trial_run t;
    struct planning p;
    begin(&p, "hobbit", 1, 1);
    p.planner.exact = true;
    assert_fails(moe_planner_try(&p.planner, &p.options.strategy, 0, 0, &t, NULL, &err),
                 MOE_ERR_USAGE, "--exact forbids", &err);
    end(&p);
}

/* A map of the fixture's precisions that has measured `loss` percent of T1 and T2. */
static struct moe_map measured(const struct moe_inventory *inventory, double loss)
{
    struct moe_map map = {.n_variants = inventory->n_variants, .tolerance = 2};
    memcpy(map.variants, inventory->variants, sizeof map.variants);
    map.hobbit = (struct moe_map_hobbit){.there = true,
                                         .t1 = 0.4,
                                         .t2 = 0.9,
                                         .high = 0,
                                         .low = inventory->n_variants - 1,
                                         .loss = {.tokens = 77, .nll_percent = loss}};
    return map;
}

/* The search goes as far as was measured and not above the tolerance, and the plan says so. */
static void a_calibration_allows_what_it_measured(void **state)
{
    for (int within = 0; within < 2; within++) {
        struct moe_err err = {0};
        struct moe_plan *plan = NULL;
        struct moe_strategy best;
        struct planning p;
        begin(&p, "lru", 1.5, 3); /* loads take long */
        const struct moe_map map = measured(p.planner.inventory, within ? 1.5 : 2.5);
        const struct moe_calibration calibration = {.map = &map, .measured = true};
        p.planner.calibration = &calibration;
        assert_ok(moe_plan_new(&plan, LAYERS, EXPERTS, TOP_K, &err), &err);
        assert_ok(moe_planner_search(&p.planner, plan, &best, &err), &err);
        assert_ok(moe_planner_make(&p.planner, &best, plan, &err), &err);
        assert_int_equal(plan->strategy.miss_precision == MOE_MISS_BY_SCORE, within);
        const struct moe_terms terms = moe_plan_terms(plan);
        assert_int_equal(!moe_exactness_of(&terms).exact, within);
        assert_int_equal(plan->n_losses, within);
        if (within) {
            assert_true(plan->strategy.high_up_to == 0.4 && plan->strategy.skip_below <= 0.1);
            assert_string_equal(plan->losses[0].part, "on-miss");
            assert_true(plan->losses[0].tokens == 77 && plan->losses[0].nll_percent == 1.5);
        }
        for (uint32_t i = 0; i < plan->n_tried; i++) {
            struct moe_strategy s;
            uint32_t named;
            assert_ok(moe_strategy_parse(plan->tried[i].strategy, &s, &named, &err), &err);
            assert_ok(moe_strategy_settle(&s, &err), &err);
            bool allowed = within && s.prefill != MOE_PREFILL_HYBRID && s.high_up_to >= 0.4 &&
                           s.skip_below <= 0.1;
            const struct moe_terms tried = {.strategy = &s}; /* no bits but the best are kept */
            if (!moe_exactness_of(&tried).exact && !allowed)
                fail_msg("nobody measured %s", plan->tried[i].strategy);
        }
        moe_plan_free(plan);
        end(&p);
    }
}

/* Loads less as far as the map measured a loss within the tolerance in such a cache, is faster for
 * it, and says so. */
static void a_tolerance_is_used_up(void **state)
{
    double speed[3];
    for (int i = 0; i < 3; i++) {
        struct moe_err err = {0};
        struct moe_plan *plan = NULL;
        struct moe_strategy best;
        struct planning p;
        begin(&p, "lru", 1.5, 3); /* loads take long */
        struct moe_map map = measured(p.planner.inventory, 1.5);
        struct moe_calibration calibration = {.map = &map, .measured = true, .tolerance = 1};
        struct moe_fitted f;
        assert_ok(p.planner.fitter.fit(p.planner.fitter.ctx, &p.options.strategy, NULL, &f, &err),
                  &err);
        const uint64_t cached =
            f.pools.pools[0].n_cache * p.planner.inventory->classes[0].slot_bytes;
        map.n_savings = 1;
        map.savings[0] = (struct moe_map_savings){
            .cache_bytes = i == 2 ? 5 * cached : cached, .low = 1, .n_ways = 2};
        map.savings[0].ways[0] = (struct moe_map_saving){
            "lru+skip-below=0.3", 10, 0.5, {.tokens = 66, .nll_percent = i ? 0.9 : 1.1}, {0}};
        map.savings[0].ways[1] = (struct moe_map_saving){
            "lru+skip-below=0.5", 5, 0.7, {.tokens = 66, .nll_percent = 1.5}, {0}};
        p.planner.calibration = &calibration;
        assert_ok(moe_plan_new(&plan, LAYERS, EXPERTS, TOP_K, &err), &err);
        assert_ok(moe_planner_search(&p.planner, plan, &best, &err), &err);
        assert_ok(moe_planner_make(&p.planner, &best, plan, &err), &err);
        speed[i] = plan->expected.decode_tokens_per_second;
        const struct moe_terms terms = moe_plan_terms(plan);
        assert_int_equal(moe_exactness_of(&terms).exact, i != 1);
        assert_int_equal(plan->n_losses, i == 1);
        if (i == 1) {
            assert_true(plan->strategy.skip_below == 0.3 && plan->evidence.tolerance == 1);
            assert_string_equal(plan->losses[0].part, "skip-below");
            assert_true(plan->losses[0].tokens == 66 && plan->losses[0].nll_percent == 0.9);
            assert_true(plan->n_memory_steps > 1); /* speeds elsewhere are told all the same */
            struct moe_plan *again = round_trip(plan);
            assert_true(again->evidence.tolerance == 1 && again->strategy.skip_below == 0.3);
            moe_plan_free(again);
        }
        moe_plan_free(plan);
        end(&p);
    }
    assert_true(speed[1] > 1.05 * speed[0] && speed[2] == speed[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_says_what_the_simulator_does),
        cmocka_unit_test(fewer_tokens_say_nearly_the_same),
        cmocka_unit_test(a_budget_has_steps_too),
        cmocka_unit_test(more_memory_is_never_slower),
        cmocka_unit_test(curves_end_where_all_experts_fit),
        cmocka_unit_test(an_engine_does_as_planned),
        cmocka_unit_test(everything_may_be_resident),
        cmocka_unit_test(plans_of_others_are_refused),
        cmocka_unit_test(the_search_finds_the_fastest),
        cmocka_unit_test(threads_do_not_change_a_plan),
        cmocka_unit_test(trials_ahead_are_those_asked_for),
        cmocka_unit_test(trials_share_what_caches_learn),
        cmocka_unit_test(nothing_runs_in_no_memory),
        cmocka_unit_test(what_may_change_results_is_refused),
        cmocka_unit_test(a_calibration_allows_what_it_measured),
        cmocka_unit_test(a_tolerance_is_used_up),
    };
    return cmocka_run_group_tests_name("planner", tests, open_all, close_all);
}
