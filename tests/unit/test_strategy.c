/*
 * The table of strategies against the papers, texts of parts in and out, what goes together and
 * what does not.
 */
#include "sched/strategy.h"

#include "../test.h"
#include "random_strategy.h"

/* ---- Helpers ---- */

static struct moe_strategy strategy(const char *name)
{
    struct moe_strategy s;
    assert_true(moe_strategy_find(name, &s));
    return s;
}

static void set(struct moe_strategy *s, enum moe_part part, const char *text)
{
    struct moe_err why;
    if (!moe_strategy_set(s, part, text, &why))
        fail_msg("--%s '%s' %s", moe_strategy_part_at(part)->name, text, why.text);
}

/* Applies a line of options to *s, as --strategy NAME, --flag or --option argument. */
static void apply(struct moe_strategy *s, const char *line, uint32_t *named)
{
    char copy[1024], *next = copy, *word;
    snprintf(copy, sizeof copy, "%s", line);
    while ((word = strtok(next, " ")) != NULL) {
        enum moe_part part;
        next = NULL;
        assert_int_equal(strncmp(word, "--", 2), 0);
        if (strcmp(word, "--strategy") == 0) {
            *s = strategy(strtok(NULL, " "));
            continue;
        }
        if (!moe_strategy_part_find(word + 2, &part))
            fail_msg("%s is not a part", word);
        set(s, part, moe_strategy_part_at(part)->arg ? strtok(NULL, " ") : "on");
        *named |= 1u << part;
    }
}

static void describe(const struct moe_strategy *s, char out[1024])
{
    struct moe_buf text = {0};
    moe_strategy_describe(s, &text);
    assert_false(text.failed);
    snprintf(out, 1024, "%s", (const char *)text.data);
    moe_buf_release(&text);
}

/* ---- The table ---- */

static const struct {
    const char *name, *parts;
    bool profile, low, host, inexact;
} expected[] = {
    {"resident", "--strategy resident", 0, 0, 0, 0},
    {"ondemand", "--cache none", 0, 0, 0, 0},
    {"lru", "--cache lru", 0, 0, 0, 0},
    {"prefetch", "--predict gate-next --prefetch all,measured --cache learned --prefill popularity",
     0, 0, 0, 0},
    /* DAOP III and V: Fiddler calibrates a popularity of experts and computes missing ones on the
     * CPU. */
    {"host", "--cache pinned --init frequency --on-miss compute-host,or-load", 1, 0, 1, 0},
    {"eap",
     "--predict path --prefetch percentile:75,slack --cache arc --alloc shallow "
     "--cache-bits 4 --prefill hybrid:25%,or-popularity",
     1, 0, 0, 1},
    {"edgemoe",
     "--predict path --prefetch until-router --cache edgemoe --init encoder-first --buffer 10", 1,
     0, 0, 0},
    {"sti", "--stream --cache pinned --init layerwise --buffer 10", 0, 0, 0, 0},
    {"moe-infinity", "--predict requests:3 --prefetch until-router --cache infinity", 0, 0, 0, 0},
    {"moe-offloading", "--predict gate-next --prefetch count:2,all --cache lru --alloc per-layer",
     0, 0, 0, 0},
    {"adapmoe", "--predict gate-next --prefetch all --cache lru --gate-below 20%", 0, 0, 0, 1},
    {"fate",
     "--predict gate-next --prefetch percentile:75,slack --cache arc --alloc shallow "
     "--cache-bits 4 --prefill hybrid:25%,or-popularity",
     0, 0, 0, 1},
    {"hobbit",
     "--predict gate-ahead:3 --prefetch all --protect --cache hobbit "
     "--on-miss load-low:auto --skip-below auto --host-decodes-only",
     0, 1, 0, 1},
    {"daop",
     "--predict gate-next --cache pinned --alloc frequency --init frequency "
     "--on-miss compute-host --prefill-swap --precalculate --degrade",
     1, 0, 1, 1},
};

static void strategies_have_the_papers_parts(void **state)
{
    struct moe_err err = {0};
    char text[1024];
    for (size_t i = 0; i < N_ITEMS(expected); i++) {
        struct moe_strategy s = strategy(expected[i].name);
        assert_string_equal(moe_strategy_name_at((int)i), expected[i].name);
        assert_string_equal(s.name, expected[i].name);
        assert_true(s.describe && strlen(s.describe) <= 68);
        assert_ok(moe_strategy_settle(&s, &err), &err);
        assert_int_equal(s.needs_profile, expected[i].profile);
        assert_int_equal(s.needs_low, expected[i].low);
        assert_int_equal(s.needs_host, expected[i].host);
        assert_int_equal(may_change(&s), expected[i].inexact);
        describe(&s, text);
        assert_string_equal(text, expected[i].parts);
    }
    assert_null(moe_strategy_name_at((int)N_ITEMS(expected)));
    assert_null(moe_strategy_name_at(-1));
    struct moe_strategy s;
    assert_false(moe_strategy_find("auto", &s));
    assert_false(moe_strategy_find("", &s));
}

/* Fate 5.1: EAP has "a caching strategy identical to Fate", here its precisions, too, so that a
 * comparison of the two is one of predictions. */
static void eap_is_fate_but_for_prediction(void **state)
{
    struct moe_strategy fate = strategy("fate"), eap = strategy("eap");
    char ours[MOE_PART_TEXT_BYTES], theirs[MOE_PART_TEXT_BYTES];
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++) {
        moe_strategy_part_text(&fate, part, theirs);
        moe_strategy_part_text(&eap, part, ours);
        if ((strcmp(ours, theirs) == 0) != (part != MOE_PART_PREDICT))
            fail_msg("--%s: fate %s, eap %s", moe_strategy_part_at(part)->name, theirs, ours);
    }
}

/* Nothing in the table is dropped: what it says of a strategy is what the strategy does. */
static void strategies_hold_nothing_idle(void **state)
{
    struct moe_err err = {0};
    for (int i = 0; moe_strategy_name_at(i); i++) {
        struct moe_strategy s = strategy(moe_strategy_name_at(i)), kept = s;
        assert_ok(moe_strategy_settle(&s, &err), &err);
        kept = s;
        moe_strategy_drop_idle(&s, 0);
        assert_same(&s, &kept);
    }
}

/* ---- Texts ---- */

static void descriptions_read_back(struct moe_strategy *s)
{
    struct moe_err err = {0};
    struct moe_strategy back = strategy("lru");
    char text[1024];
    uint32_t named = 0;
    assert_ok(moe_strategy_settle(s, &err), &err);
    describe(s, text);
    apply(&back, text, &named);
    assert_ok(moe_strategy_settle(&back, &err), &err);
    assert_same(s, &back);
}

static void strategies_read_back(void **state)
{
    for (int i = 0; moe_strategy_name_at(i); i++) {
        struct moe_strategy s = strategy(moe_strategy_name_at(i));
        descriptions_read_back(&s);
    }
}

static void random_strategies_read_back(void **state)
{
    uint64_t seed = 5;
    for (int i = 0; i < 5000; i++) {
        struct moe_strategy s = random_strategy(&seed);
        moe_strategy_drop_idle(&s, 0);
        descriptions_read_back(&s);
    }
}

/* What the papers and the toolkit's own parts are called, and what comes of it. */
static void texts_mean_what_they_say(void **state)
{
    struct moe_strategy s = {0};
    set(&s, MOE_PART_PREDICT, "gate-ahead");
    assert_true(s.predict == MOE_PREDICT_BY_GATE && s.depth == 3);
    set(&s, MOE_PART_PREDICT, "gate-ahead:1");
    assert_true(s.predict == MOE_PREDICT_BY_GATE && s.depth == 1);
    set(&s, MOE_PART_PREDICT, "gate-residual:2");
    assert_true(s.predict == MOE_PREDICT_BY_RESIDUAL && s.depth == 2);
    set(&s, MOE_PART_PREDICT, "gate-attention");
    assert_true(s.predict == MOE_PREDICT_BY_ATTENTION && s.depth == 1);
    set(&s, MOE_PART_PREDICT, "gate-attention-before");
    assert_true(s.predict == MOE_PREDICT_BY_ATTENTION_BEFORE && s.depth == 1);
    set(&s, MOE_PART_PREDICT, "keys");
    assert_true(s.predict == MOE_PREDICT_BY_KEYS && s.depth == 1);
    set(&s, MOE_PART_PREFETCH, "count:3,percentile:62.5");
    assert_true(s.prefetch.count == 3 && s.prefetch.percentile == 62.5 && !s.prefetch.slack);
    set(&s, MOE_PART_PREFETCH, "slack");
    assert_true(s.prefetch.slack && s.prefetch.slack_least == 0);
    set(&s, MOE_PART_PREFETCH, "slack:2,all");
    assert_true(s.prefetch.slack && s.prefetch.slack_least == 2 && s.prefetch.top_k);
    set(&s, MOE_PART_PREFETCH, "measured");
    assert_true(s.prefetch.count == 0 && s.prefetch.measured);
    set(&s, MOE_PART_ALLOC, "shallow:3");
    assert_true(s.alloc == MOE_ALLOC_SHALLOW && s.boundary == 3);
    set(&s, MOE_PART_ALLOC, "shallow");
    assert_int_equal(s.boundary, MOE_SHALLOW_AUTO);
    set(&s, MOE_PART_ALLOC, "shallow:0"); /* none is shallow */
    assert_true(s.alloc == MOE_ALLOC_SHALLOW && s.boundary == 0);
    set(&s, MOE_PART_ALLOC, "shallow:auto");
    assert_true(s.boundary == MOE_SHALLOW_AUTO && s.boundary_from == MOE_DECIDED_BY_NAME);
    set(&s, MOE_PART_ON_MISS, "load-low");
    assert_true(s.miss_precision == MOE_MISS_BY_SCORE && s.high_up_to == 0.6 && s.by_scores);
    set(&s, MOE_PART_ON_MISS, "emergency");
    assert_true(s.miss_precision == MOE_MISS_EMERGENCY && s.high_up_to == 0);
    assert_true(s.miss_place == MOE_MISS_LOAD);
    set(&s, MOE_PART_ON_MISS, "compute-host,load-low");
    assert_true(s.miss_place == MOE_MISS_COMPUTE_HOST && s.miss_precision == MOE_MISS_BY_SCORE);
    assert_true(s.high_up_to == 0.6 && !s.host_falls_back);
    set(&s, MOE_PART_ON_MISS, "compute-host,or-load");
    assert_true(s.miss_place == MOE_MISS_COMPUTE_HOST && s.miss_precision == MOE_MISS_BEST);
    assert_true(s.high_up_to == 0 && s.host_falls_back);
    set(&s, MOE_PART_PREFILL, "hybrid");
    assert_true(s.low_share == 0.25 && !s.prefill_falls_back);
    set(&s, MOE_PART_PREFILL, "hybrid:0.5,or-popularity");
    assert_true(s.low_share == 0.5 && s.prefill_falls_back);
    set(&s, MOE_PART_PREFILL, "popularity");
    assert_true(s.prefill == MOE_PREFILL_POPULARITY && s.low_share == 0 && !s.prefill_falls_back);
    set(&s, MOE_PART_CACHE_WEIGHTS, "4,2,1,1");
    const double *w = moe_strategy_weights(&s);
    assert_true(w[MOE_WEIGHT_LRU] == 0.5 && w[MOE_WEIGHT_LFU] == 0.25);
    assert_true(w[MOE_WEIGHT_LHU] == 0.125 && w[MOE_WEIGHT_FLD] == 0.125);
    set(&s, MOE_PART_CACHE_WEIGHTS, "default");
    assert_null(moe_strategy_weights(&s));
    set(&s, MOE_PART_SKIP_BELOW, "10%");
    assert_true(s.skip_below == 0.1 && !s.skip_by_scores);
}

static void wrong_texts_are_refused(void **state)
{
    static const struct {
        enum moe_part part;
        const char *text;
    } wrong[] = {
        {MOE_PART_PREDICT, ""},
        {MOE_PART_PREDICT, "gate"},
        {MOE_PART_PREDICT, "gate-next:1"},
        {MOE_PART_PREDICT, "gate-ahead:0"},
        {MOE_PART_PREDICT, "gate-ahead:9"},
        {MOE_PART_PREDICT, "gate-ahead:"},
        {MOE_PART_PREDICT, "gate-ahead:1x"},
        {MOE_PART_PREFETCH, ""},
        {MOE_PART_PREFETCH, "slack,"},
        {MOE_PART_PREFETCH, ",slack"},
        {MOE_PART_PREFETCH, "none,slack"},
        {MOE_PART_PREFETCH, "slack:0"},
        {MOE_PART_PREFETCH, "slack:"},
        {MOE_PART_PREFETCH, "all:1"},
        {MOE_PART_PREFETCH, "count"},
        {MOE_PART_PREFETCH, "count:0"},
        {MOE_PART_PREFETCH, "count:4294967296"},
        {MOE_PART_PREFETCH, "percentile:100"},
        {MOE_PART_PREFETCH, "percentile:nan"},
        {MOE_PART_CACHE, "LRU"},
        {MOE_PART_CACHE, ""},
        {MOE_PART_CACHE_WEIGHTS, "1,2,3"},
        {MOE_PART_CACHE_WEIGHTS, "1,2,3,4,5"},
        {MOE_PART_CACHE_WEIGHTS, "1,2,3,4,"},
        {MOE_PART_CACHE_WEIGHTS, "0,0,0,0"},
        {MOE_PART_CACHE_WEIGHTS, "1,1,1,-1"},
        {MOE_PART_CACHE_WEIGHTS, "1e308,1e308,1e308,1e308"},
        {MOE_PART_ALLOC, "shallow:4294967295"},
        {MOE_PART_ALLOC, "shallow:"},
        {MOE_PART_ALLOC, "per-layer:auto"},
        {MOE_PART_ALLOC, "global:1"},
        {MOE_PART_INIT, "full"},
        {MOE_PART_INIT, "empty:1"},
        {MOE_PART_ON_MISS, "load:0.5"},
        {MOE_PART_ON_MISS, "load-low:1.5"},
        {MOE_PART_ON_MISS, "load-low:-0.5"},
        {MOE_PART_ON_MISS, "load,or-load"},
        {MOE_PART_ON_MISS, "compute-host,"},
        {MOE_PART_ON_MISS, "compute-host:0.5"},
        {MOE_PART_ON_MISS, "compute-host,load"},
        {MOE_PART_ON_MISS, "compute-host,load-low:2"},
        {MOE_PART_ON_MISS, "compute-host,compute-host"},
        {MOE_PART_ON_MISS, "load-low,emergency"},
        {MOE_PART_ON_MISS, "load-low,or-load"},
        {MOE_PART_ON_MISS, "or-load"},
        {MOE_PART_PREFILL, "hybrid:2"},
        {MOE_PART_PREFILL, "hybrid,"},
        {MOE_PART_PREFILL, "hybrid,or"},
        {MOE_PART_PREFILL, "popularity:1"},
        {MOE_PART_PREFILL, "popularity,or-popularity"},
        {MOE_PART_LOW_POOL, "101%"},
        {MOE_PART_SKIP_BELOW, "-1"},
        {MOE_PART_BUFFER, "ten"},
        {MOE_PART_PRECALCULATE_FROM, "4294967296"},
        {MOE_PART_DEGRADE, "yes"},
    };
    uint64_t seed = 7;
    for (size_t i = 0; i < N_ITEMS(wrong); i++) {
        struct moe_strategy s = random_strategy(&seed), kept = s;
        char values[MOE_PART_TEXT_BYTES];
        struct moe_err why;
        if (moe_strategy_set(&s, wrong[i].part, wrong[i].text, &why))
            fail_msg("--%s '%s' was taken", moe_strategy_part_at(wrong[i].part)->name,
                     wrong[i].text);
        moe_strategy_part_values(wrong[i].part, values);
        assert_int_equal(strncmp(why.text, "is not ", 7), 0);
        assert_string_equal(why.text + 7, values); /* none is cut off */
        assert_same(&s, &kept);
    }
}

static void all_is_off_in_a_strategy_of_zeros(void **state)
{
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++) {
        const struct moe_strategy_part *p = moe_strategy_part_at(part);
        struct moe_strategy zero = {0}, s = {0};
        enum moe_part found;
        assert_true(moe_strategy_part_find(p->name, &found) && found == part);
        assert_false(moe_strategy_has(&zero, part));
        set(&s, part, p->off);
        assert_same(&s, &zero);
    }
    enum moe_part part;
    assert_false(moe_strategy_part_find("strategy", &part));
}

static void what_may_change_results_stands_in_the_table(void **state)
{
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++) {
        const struct moe_strategy_part *p = moe_strategy_part_at(part);
        char list[64], *next = list, *value;
        struct moe_strategy s = {0};
        assert_false(moe_strategy_part_inexact(&s, part));
        snprintf(list, sizeof list, "%s", p->inexact ? p->inexact : "");
        if (strcmp(list, "any") == 0)
            snprintf(list, sizeof list, "%s",
                     !p->arg                       ? "on"
                     : part == MOE_PART_CACHE_BITS ? "4"
                                                   : "0.5");
        for (; (value = strtok(next, ",")) != NULL; next = NULL) {
            set(&s, part, value);
            assert_true(moe_strategy_part_inexact(&s, part));
        }
    }
    struct moe_strategy s = {0};
    set(&s, MOE_PART_ON_MISS, "load-low:0.5");
    assert_true(moe_strategy_part_inexact(&s, MOE_PART_ON_MISS));
    set(&s, MOE_PART_ON_MISS, "compute-host,or-load");
    assert_false(moe_strategy_part_inexact(&s, MOE_PART_ON_MISS));
    set(&s, MOE_PART_ON_MISS, "compute-host,or-load,load-low:0.5");
    assert_true(moe_strategy_part_inexact(&s, MOE_PART_ON_MISS));
    set(&s, MOE_PART_ON_MISS, "compute-host,emergency");
    assert_true(moe_strategy_part_inexact(&s, MOE_PART_ON_MISS));
    set(&s, MOE_PART_PREFILL, "hybrid:25%,or-popularity");
    assert_true(moe_strategy_part_inexact(&s, MOE_PART_PREFILL));
    set(&s, MOE_PART_PREFILL, "popularity");
    assert_false(moe_strategy_part_inexact(&s, MOE_PART_PREFILL));
}

/* ---- What goes together ---- */

static void nonsense_is_refused(void **state)
{
    static const struct {
        const char *options, *why;
    } cases[] = {
        {"--strategy resident --cache arc", "--cache has no effect here: every expert"},
        {"--strategy resident --prefill popularity", "--prefill has no effect"},
        {"--strategy resident --skip-below 0.1", "--skip-below has no effect"},
        {"--strategy lru --predict previous", "nothing uses the prediction"},
        {"--strategy lru --prefetch all", "nothing is predicted"},
        {"--strategy lru --protect", "--protect has no effect"},
        {"--strategy lru --cache-weights 1,0,0,0", "only --cache hobbit has weights"},
        {"--strategy ondemand --alloc per-layer", "--alloc has no effect here: nothing is kept"},
        {"--strategy ondemand --init frequency", "--init has no effect"},
        {"--strategy ondemand --buffer 3", "--buffer has no effect"},
        {"--strategy ondemand --keep-records", "--keep-records has no effect"},
        {"--strategy lru --low-pool 10%", "no low-precision experts are kept"},
        {"--strategy ondemand --on-miss load-low --low-pool 10%", "--low-pool has no effect"},
        {"--strategy lru --prefill-swap", "--prefill-swap has no effect"},
        {"--strategy lru --degrade-most 1",
         "--degrade-most has no effect here: it needs --degrade"},
        {"--strategy lru --degrade", "--degrade has no effect here: it needs --precalculate"},
        {"--strategy lru --precalculate-from 2", "--precalculate-from has no effect"},
        {"--strategy edgemoe --precalculate", "--precalculate has no effect here: it needs a"},
        {"--strategy hobbit --on-miss load-low:0.95 --skip-below 0.1",
         "load-low:0.95 and --skip-below 0.1"},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_strategy s = {0};
        struct moe_err err = {0};
        uint32_t named = 0;
        apply(&s, cases[i].options, &named);
        moe_strategy_drop_idle(&s, named);
        assert_fails(moe_strategy_settle(&s, &err), MOE_ERR_USAGE, cases[i].why, &err);
    }
}

/* The ablations of the papers: what a strategy loses with one of its parts. */
static void what_has_no_effect_is_dropped(void **state)
{
    static const struct {
        const char *options, *left;
    } cases[] = {
        {"--strategy fate --predict none",
         "--cache arc --alloc shallow --cache-bits 4 --prefill hybrid:25%,or-popularity"},
        {"--strategy fate --prefetch none",
         "--cache arc --alloc shallow --cache-bits 4 --prefill hybrid:25%,or-popularity"},
        {"--strategy fate --cache none", "--predict gate-next --prefetch percentile:75,slack "
                                         "--cache none --prefill hybrid:25%,or-popularity"},
        {"--strategy hobbit --on-miss load --skip-below 0",
         "--predict gate-ahead:3 --prefetch all --protect --cache hobbit --host-decodes-only"},
        {"--strategy hobbit --predict none",
         "--cache hobbit --on-miss load-low:auto --skip-below auto "
         "--host-decodes-only"},
        {"--strategy daop --predict none", "--cache pinned --alloc frequency --init frequency "
                                           "--on-miss compute-host --prefill-swap"},
        {"--strategy daop --on-miss load", "--predict gate-next --cache pinned --alloc frequency "
                                           "--init frequency --precalculate --degrade"},
    };
    char text[1024];
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_strategy s = {0};
        struct moe_err err = {0};
        uint32_t named = 0;
        apply(&s, cases[i].options, &named);
        moe_strategy_drop_idle(&s, named);
        assert_ok(moe_strategy_settle(&s, &err), &err);
        describe(&s, text);
        assert_string_equal(text, cases[i].left);
    }
}

static void a_strategy_falls_back_and_a_named_part_does_not(void **state)
{
    struct moe_err err = {0};
    struct moe_strategy s = strategy("fate");
    set(&s, MOE_PART_LOW_POOL, "20%");
    assert_ok(moe_strategy_settle(&s, &err), &err);
    assert_true(may_change(&s) && !s.needs_low);
    moe_strategy_fall_back(&s);
    assert_true(s.prefill == MOE_PREFILL_POPULARITY && s.low_pool == 0 && s.cache_bits == 4);
    assert_true(may_change(&s)); /* where memory does not hold all experts at their best */
    assert_non_null(moe_strategy_make_exact(&s));
    assert_true(s.cache_bits == 0 && !may_change(&s));
    assert_null(moe_strategy_make_exact(&s));
    assert_ok(moe_strategy_settle(&s, &err), &err);

    s = strategy("fate");
    set(&s, MOE_PART_PREFILL, "hybrid");
    assert_ok(moe_strategy_settle(&s, &err), &err);
    moe_strategy_fall_back(&s);
    assert_true(s.prefill == MOE_PREFILL_HYBRID && may_change(&s) && s.needs_low);
    moe_strategy_make_exact(&s);
    assert_true(s.prefill == MOE_PREFILL_HYBRID && may_change(&s));
}

static void layers_follow_the_model(void **state)
{
    static const struct {
        uint32_t n, boundary, from;
    } cases[] = {
        {24, 3, 4},             /* Qwen1.5-MoE: L = 3 (Fate 4.4); 3.75 */
        {32, 4, 5},             /* Mixtral-8x7B: from 5 of 32 (DAOP's public code) */
        {26, 4, 5},             /* 3.25; 4.06 */
        {1, 1, 1},  {16, 2, 3}, /* 2.5 */
        {48, 6, 8},             /* 7.5 */
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_strategy fate = strategy("fate"), daop = strategy("daop"), lru = strategy("lru");
        moe_strategy_fit(&fate, cases[i].n, NULL);
        moe_strategy_fit(&daop, cases[i].n, NULL);
        moe_strategy_fit(&lru, cases[i].n, NULL);
        assert_int_equal(fate.boundary, cases[i].boundary);
        assert_int_equal(fate.precalculate_from, 0);
        assert_int_equal(daop.precalculate_from, cases[i].from);
        assert_int_equal(lru.boundary + lru.precalculate_from, 0);
    }
    struct moe_strategy s = strategy("daop");
    set(&s, MOE_PART_PRECALCULATE_FROM, "9");
    set(&s, MOE_PART_ALLOC, "shallow:2");
    moe_strategy_fit(&s, 32, NULL);
    assert_true(s.precalculate_from == 9 && s.boundary == 2);
}

/* Layer l's experts are predicted with this accuracy, from layer 1 on. */
static struct moe_statistics *accuracies(uint32_t n_layers, const double *accuracy)
{
    const struct moe_statistics_shape shape = {
        .n_layers = n_layers, .n_experts = 8, .top_k = 2, .max_tokens = 16, .prompt_percent = 50};
    struct moe_statistics *s = NULL;
    struct moe_err err = {0};
    assert_ok(moe_statistics_new(&s, &shape, &err), &err);
    for (uint32_t layer = 1; accuracy && layer < n_layers; layer++) {
        uint64_t *n = moe_accuracy_at(s, layer, MOE_PREDICT_GATE_1);
        n[MOE_ACC_TOKENS] = 100;
        n[MOE_ACC_IN_K] = (uint64_t)(200 * accuracy[layer]);
    }
    return s;
}

static void expect_boundary(const char *name, const struct moe_statistics *s, uint32_t boundary,
                            enum moe_decided_by from)
{
    struct moe_strategy fitted = strategy(name);
    moe_strategy_fit(&fitted, 8, s);
    if (fitted.boundary != boundary || fitted.boundary_from != from)
        fail_msg("%s: %u layers are shallow (%d)", name, fitted.boundary,
                 (int)fitted.boundary_from);
}

/* Fate 4.4: "a boundary L between shallow and deep layers based on offline statistical analysis".
 */
static void the_boundary_follows_the_statistics(void **state)
{
    static const double rises[8] = {0, 0.5, 0.6, 0.95, 0.97, 0.97, 0.96, 0.98};
    struct moe_statistics *like_figure_7 = accuracies(8, rises), *empty = accuracies(8, NULL),
                          *of_another = accuracies(7, rises);
    expect_boundary("fate", like_figure_7, 3, MOE_DECIDED_BY_STATISTICS);
    expect_boundary("eap", like_figure_7, 3, MOE_DECIDED_BY_STATISTICS);
    expect_boundary("fate", NULL, 1, MOE_DECIDED_BY_PAPER);
    expect_boundary("fate", empty, 1, MOE_DECIDED_BY_PAPER);
    expect_boundary("fate", of_another, 1, MOE_DECIDED_BY_PAPER);
    struct moe_strategy s = strategy("fate");
    set(&s, MOE_PART_ALLOC, "shallow:2");
    moe_strategy_fit(&s, 8, like_figure_7);
    assert_int_equal(s.boundary, 2);
    assert_null(moe_strategy_boundary_from(&s));
    set(&s, MOE_PART_ALLOC, "shallow:auto");
    moe_strategy_fit(&s, 8, like_figure_7);
    assert_string_equal(moe_strategy_boundary_from(&s), "from statistics");
    moe_statistics_free(like_figure_7);
    moe_statistics_free(empty);
    moe_statistics_free(of_another);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strategies_have_the_papers_parts),
        cmocka_unit_test(eap_is_fate_but_for_prediction),
        cmocka_unit_test(strategies_hold_nothing_idle),
        cmocka_unit_test(strategies_read_back),
        cmocka_unit_test(random_strategies_read_back),
        cmocka_unit_test(texts_mean_what_they_say),
        cmocka_unit_test(wrong_texts_are_refused),
        cmocka_unit_test(all_is_off_in_a_strategy_of_zeros),
        cmocka_unit_test(what_may_change_results_stands_in_the_table),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(what_has_no_effect_is_dropped),
        cmocka_unit_test(a_strategy_falls_back_and_a_named_part_does_not),
        cmocka_unit_test(layers_follow_the_model),
        cmocka_unit_test(the_boundary_follows_the_statistics),
    };
    return cmocka_run_group_tests_name("strategy", tests, NULL, NULL);
}
