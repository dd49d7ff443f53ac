/* The pieces of a layer, timed in the forward pass itself. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "infer/forward.h"
#include "model/config.h"
#include "tune/bench.h"
#include "tune/device_bench.h"
#include "tune/device_internal.h"

/* ---- The provider ---- */

static int begin_experts(struct moe_experts *self, const struct moe_layer_request *request,
                         struct moe_phase_stats *phase, struct moe_err *err)
{
    struct device_experts *e = (struct device_experts *)self;
    e->request = request;
    e->n_given = e->n_experts = e->n_rows = 0;
    e->seconds = e->first = 0;
    e->began = moe_seconds();
    return MOE_OK;
}

static int next_of_none(struct moe_experts *self, uint32_t max, uint32_t *which,
                        struct moe_expert_view *views, uint32_t *n, struct moe_err *err)
{
    struct device_experts *e = (struct device_experts *)self;
    for (*n = 0; *n < max && e->n_given < e->request->n_entries; ++*n, e->n_given++) {
        which[*n] = e->n_given;
        views[*n] = e->views[e->at];
        e->at = (e->at + 1) % e->n;
    }
    e->last = moe_seconds();
    e->first = e->first > 0 ? e->first : e->last;
    return MOE_OK;
}

static int poll(struct moe_experts *self, struct moe_err *err)
{
    struct device_experts *e = (struct device_experts *)self;
    return e->loads ? moe_device_loads_poll(e->loads, err) : MOE_OK;
}

static void release_expert(struct moe_experts *self, uint32_t which)
{
    struct device_experts *e = (struct device_experts *)self;
    double now = moe_seconds();
    e->seconds += now - e->last;
    e->last = now;
    e->n_experts++;
    e->n_rows += e->request->needs[which].n_rows;
}

static void close_nothing(struct moe_experts *self)
{
}

static const struct moe_experts_ops ops = {
    .name = "in turn",
    .begin = begin_experts,
    .next = next_of_none,
    .release = release_expert,
    .poll = poll,
    .close = close_nothing,
};

/* ---- The experts ---- */

/* Points the views at every step-th expert that has the variant; returns how many. */
static uint32_t choose_expert(const struct moe_pack *pack, uint32_t variant, uint32_t step,
                              struct moe_expert_view *views, uint32_t max)
{
    uint32_t n_layers = moe_pack_n_layers(pack), n_experts = moe_pack_n_experts(pack);
    uint32_t n = 0, seen = 0;
    for (uint32_t layer = 0; layer < n_layers; layer++)
        for (uint32_t expert = 0; expert < n_experts; expert++) {
            if (!moe_pack_expert(pack, layer, expert, variant)->present || seen++ % step != 0)
                continue;
            if (views && n < max)
                views[n] =
                    (struct moe_expert_view){.layer = layer, .expert = expert, .variant = variant};
            n++;
        }
    return n;
}

static int read_views(struct device_experts *e, const struct moe_pack *pack,
                      struct moe_arena *arena, struct moe_err *err)
{
    for (uint32_t i = 0; i < e->n; i++)
        MOE_TRY(moe_expert_view_read(&e->views[i], pack, arena, err));
    if (arena->overflowed)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: the experts' size overflows");
    return MOE_OK;
}

static int open_experts(struct device_experts *e, const struct moe_pack *pack, uint32_t variant,
                        uint32_t top_k, struct moe_err *err)
{
    *e = (struct device_experts){.base.ops = &ops, .loads = NULL};
    uint32_t all = choose_expert(pack, variant, 1, NULL, 0);
    if (all == 0)
        return MOE_OK;
    uint64_t slot = moe_cache_slot_bytes(pack, variant);
    uint64_t want = moe_cold_bytes() / slot + 1, least = 2 * (uint64_t)top_k;
    want = want < least ? least : want;
    want = want > all ? all : want;
    uint32_t step = (uint32_t)(all / want);
    e->views = moe_alloc(want, sizeof *e->views, err);
    if (!e->views)
        return MOE_ERR_MEMORY;
    choose_expert(pack, variant, step, e->views, (uint32_t)want);
    e->n = (uint32_t)want;
    struct moe_arena arena = {0};
    int status = read_views(e, pack, &arena, err);
    e->memory_bytes = arena.used;
    if (status == MOE_OK) {
        e->memory = moe_pages_alloc(arena.used, err);
        status = e->memory ? MOE_OK : MOE_ERR_MEMORY;
    }
    arena = (struct moe_arena){.base = e->memory, .size = e->memory_bytes};
    if (status == MOE_OK)
        status = read_views(e, pack, &arena, err);
    if (status != MOE_OK)
        moe_device_experts_close(e);
    return status;
}

void moe_device_experts_close(struct device_experts *e)
{
    if (e->memory)
        moe_pages_free(e->memory, e->memory_bytes);
    free(e->views);
    *e = (struct device_experts){0};
}

/*
 * The pieces of a layer, timed in the forward pass itself: its observer and the provider of experts
 * take the time as the pass calls them.
 *
 * With an encoder, batches of several rows run through both stacks in turn, the encoder over a
 * source of as many positions as the batch has rows; a single row runs only through the decoder.
 */

enum {
    N_BATCHES = 3,
    HEAD_RUNS = 9,
    REST_NANOSECONDS = 2000 * 1000,
    FAR_POSITIONS = 512,
    FAR_LAYERS = 2, /* next to each other: models have layers of two kinds in turn */
};
static const double LOADING_SECONDS = 1.5, STRETCH_SECONDS = 0.25;

static const uint32_t batch_rows[N_BATCHES] = {64, 8, 1}; /* falling: the first fills the cache */

/* Sources: what the decoder's rows attend to, and what the encoder's layers are timed with. */
enum { ATTENDED, TIMED, N_SOURCES };

struct samples {
    double values[DEVICE_MAX_SAMPLES];
    uint32_t n;
};

struct batch_samples {
    struct samples attention, router, shared, combine, dense, expert_rows;
    struct samples experts[MOE_DEVICE_MAX_VARIANTS];
};

struct bench {
    struct moe_model *model;
    struct moe_session *session;
    struct device_experts experts;
    float *hidden, *logits;
    struct moe_row rows[64], source[64];
    uint32_t n_positions, n_far; /* n_far: a larger count, or 0 */
    uint32_t chosen_for;         /* rows whose choice of positions is known; 0: of other rows */
    double attended, routed;     /* timestamps from the last pass */
    double took;                 /* its seconds */
    struct batch_samples batches[N_BATCHES];
    const struct moe_progress *progress;
};

static void add_sample(struct samples *s, double value)
{
    if (s->n < DEVICE_MAX_SAMPLES)
        s->values[s->n++] = value;
}

static void on_attended(void *ctx, uint32_t layer, const float *output, uint64_t output_stride,
                        const float *norm, uint64_t norm_stride)
{
    ((struct bench *)ctx)->attended = moe_seconds();
}

static void on_routed(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                      const float *gate_input, uint64_t hidden_stride, const float *probabilities,
                      uint64_t router_stride, const uint32_t *chosen, const float *weights)
{
    ((struct bench *)ctx)->routed = moe_seconds();
}

/* Makes b->source the rows of a source. */
static void set_source(struct bench *b, uint32_t source, uint32_t n_rows)
{
    for (uint32_t i = 0; i < n_rows; i++)
        b->source[i] = (struct moe_row){source, i, b->rows[i].token, n_rows};
}

/* Chooses the positions that rows see in a layer that shares another layer's choice, unless the
 * last pass of these rows did. */
static int choose_positions(struct bench *b, uint32_t layer, const struct moe_row *rows,
                            uint32_t n_rows, struct moe_err *err)
{
    uint32_t from = moe_config_beginning(&b->model->config, layer), chosen_for = b->chosen_for;
    b->chosen_for = n_rows;
    if (from == layer || chosen_for == n_rows)
        return MOE_OK;
    return moe_forward(b->session, MOE_PREFILL, rows, n_rows, from, from + 1,
                       from == 0 ? NULL : b->hidden, b->hidden, err);
}

/* One pass of one layer; its times go to `to` unless that is NULL. */
static int run_layer(struct bench *b, uint32_t layer, uint32_t n_rows, struct batch_samples *to,
                     uint32_t variant, struct moe_err *err)
{
    const struct moe_layer *l = &b->model->layers[layer];
    const struct device_experts *e = &b->experts;
    uint32_t n_encoder = b->model->config.n_encoder;
    bool encode = layer < n_encoder, first = layer == 0 || layer == n_encoder;
    const struct moe_row *rows = encode ? b->source : b->rows + b->n_positions - n_rows;
    enum moe_phase phase = encode ? MOE_ENCODE : n_rows > 1 ? MOE_PREFILL : MOE_DECODE;
    if (encode)
        set_source(b, TIMED, n_rows);
    if (!encode)
        MOE_TRY(moe_sequence_load(b->session, rows[0].sequence, NULL, rows[0].position, false, NULL,
                                  NULL, err));
    MOE_TRY(choose_positions(b, layer, rows, n_rows, err));
    double began = moe_seconds();
    MOE_TRY(moe_forward(b->session, phase, rows, n_rows, layer, layer + 1, first ? NULL : b->hidden,
                        b->hidden, err));
    double end = moe_seconds();
    b->took = end - began;
    if (!to)
        return MOE_OK;
    add_sample(&to->attention, b->attended - began);
    if (!l->is_moe) {
        add_sample(&to->dense, end - b->attended);
        return MOE_OK;
    }
    /* Experts are asked for once the router has chosen; with early routers, attention's figure
     * includes both. */
    double asked = b->model->config.router_early ? b->routed : e->began;
    add_sample(&to->router, b->routed - b->attended);
    if (l->has_ffn)
        add_sample(&to->shared, e->first - asked);
    add_sample(&to->combine, asked - b->routed + end - e->last);
    add_sample(&to->experts[variant], e->seconds / e->n_experts);
    add_sample(&to->expert_rows, (double)e->n_rows / e->n_experts);
    return MOE_OK;
}

static bool has_layers(const struct bench *b, uint32_t first, bool is_moe)
{
    bool any = false;
    for (uint32_t i = first; i < b->model->config.n_layers; i++)
        any |= b->model->layers[i].is_moe == is_moe;
    return any;
}

/* Layer after layer, over and over, for `seconds` and until each kind has had its runs. */
static int run_batch(struct bench *b, uint32_t i, uint32_t variant, double seconds,
                     struct moe_err *err)
{
    uint32_t n_rows = b->n_positions < batch_rows[i] ? b->n_positions : batch_rows[i];
    uint32_t first = n_rows == 1 ? b->model->config.n_encoder : 0;
    uint32_t wanted[2] = {has_layers(b, first, false) ? DEVICE_RUNS : 0,
                          has_layers(b, first, true) ? DEVICE_RUNS : 0};
    uint32_t n_done = 0, n_layers = b->model->config.n_layers;
    int status = run_layer(b, first, n_rows, NULL, variant, err); /* touches the memory */
    double began = moe_seconds();
    for (uint32_t layer = first; status == MOE_OK && n_done < DEVICE_MAX_SAMPLES;
         layer = layer + 1 < n_layers ? layer + 1 : first) {
        bool over = moe_seconds() - began > seconds, is_moe = b->model->layers[layer].is_moe;
        if (over && wanted[0] + wanted[1] == 0)
            break;
        if (over && wanted[is_moe] == 0)
            continue;
        wanted[is_moe] -= wanted[is_moe] > 0;
        status = run_layer(b, layer, n_rows, &b->batches[i], variant, err);
        n_done++;
        if (status == MOE_OK && moe_progress_stopped(b->progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    return status;
}

/* ---- Attention to more positions ---- */

/* Times one row of a layer at the far position; its cache of keys is filled. */
static int run_far(struct bench *b, uint32_t layer, struct samples *to, struct moe_err *err)
{
    struct moe_row row = b->rows[b->n_positions - 1];
    row.position = b->n_far - 1;
    row.length = b->n_far;
    int status =
        moe_sequence_load(b->session, row.sequence, NULL, row.position, false, NULL, NULL, err);
    double began = moe_seconds();
    if (status == MOE_OK)
        status = moe_forward(b->session, MOE_DECODE, &row, 1, layer, layer + 1,
                             layer == 0 ? NULL : b->hidden, b->hidden, err);
    add_sample(to, b->attended - began);
    return status;
}

static int measure_far(struct bench *b, struct moe_device_model *out, struct moe_err *err)
{
    struct samples s = {.n = 0};
    const struct moe_config *c = &b->model->config;
    uint32_t n_layers = c->n_layers, first = moe_config_beginning(c, n_layers / 2);
    uint32_t last = first + FAR_LAYERS < n_layers ? first + FAR_LAYERS : n_layers;
    b->chosen_for = 0;
    for (uint32_t layer = first; b->n_far && layer < last; layer++) {
        if (moe_config_beginning(c, layer) != layer)
            continue; /* the choice of positions is that of other rows */
        for (uint32_t at = 0; at < b->n_far; at += b->n_positions) {
            struct moe_row rows[64];
            uint32_t n = b->n_far - at < b->n_positions ? b->n_far - at : b->n_positions;
            moe_bench_rows(NULL, b->model->config.vocab, at, rows, n);
            MOE_TRY(moe_forward(b->session, MOE_PREFILL, rows, n, layer, layer + 1,
                                layer == 0 ? NULL : b->hidden, b->hidden, err));
        }
        for (int i = 0; i <= DEVICE_RUNS; i++) {
            s.n -= i == 1; /* the first does not count */
            MOE_TRY(run_far(b, layer, &s, err));
        }
    }
    if (s.n) {
        out->far_positions = b->n_far;
        moe_bench_set_figure(&out->far_attention, s.values, s.n);
    }
    return MOE_OK;
}

/* ---- Computing beside loads ---- */

/* Times a stretch of layers, one after the other, with loads beside them or not. */
struct stretch {
    double seconds;    /* computing: without what loads and sleeps take */
    double layers;     /* of these from each layer's beginning to its end */
    double steal;      /* share of all processors' time that the machine's host kept */
    double late;       /* by which sleeps took too long */
    uint32_t first, n; /* layers */
};

struct comparison {
    struct stretch quiet[DEVICE_MAX_SAMPLES], rested[DEVICE_MAX_SAMPLES];
    struct samples slowdown, steal, late;
    uint32_t n;
    struct samples *layers; /* of each layer, quietly; allocated */
    double *medians;        /* of these; allocated */
};

static uint32_t next_moe_layer(const struct bench *b, uint32_t layer)
{
    do
        layer = layer + 1 < b->model->config.n_layers ? layer + 1 : b->model->config.n_encoder;
    while (!b->model->layers[layer].is_moe);
    return layer;
}

/* Sleeps for about as long as a load takes; returns by how much too long. */
static double rest(void)
{
    const double until = moe_seconds() + 1e-9 * REST_NANOSECONDS;
    nanosleep(&(struct timespec){.tv_nsec = REST_NANOSECONDS}, NULL);
    return fmax(0, moe_seconds() - until);
}

/* Runs one row through MoE layers in turn from `layer` on, for `seconds`, but at least one layer
 * and at most `most`. The first pass is of the same kind and not timed: threads that slept while
 * loads ended would make the quiet stretch the slowest. samples: of each layer, or NULL. */
static int time_stretch(struct bench *b, uint32_t layer, enum device_loading how, uint32_t most,
                        double seconds, struct stretch *to, struct samples *samples,
                        struct moe_err *err)
{
    struct device_loads *l = b->experts.loads;
    int status = moe_device_loads_set(l, how, err);
    if (status == MOE_OK)
        status = run_layer(b, layer, 1, NULL, 0, err);
    const struct moe_ticks before = moe_ticks_now();
    double others = moe_device_loads_seconds(l), began = moe_seconds();
    *to = (struct stretch){.first = layer};
    while (status == MOE_OK && to->n < most && (to->n == 0 || moe_seconds() - began < seconds)) {
        if (how == DEVICE_RESTED)
            to->late += rest();
        status = run_layer(b, layer, 1, NULL, 0, err);
        to->layers += b->took;
        to->n++;
        if (samples)
            add_sample(&samples[layer], b->took);
        layer = next_moe_layer(b, layer);
    }
    to->seconds = moe_seconds() - began - (moe_device_loads_seconds(l) - others);
    const struct moe_ticks after = moe_ticks_now();
    if (after.all > before.all)
        to->steal = (after.stolen - before.stolen) / (after.all - before.all);
    return status;
}

/* The same layers quietly, beside loads, and after sleeps, stretch after stretch. Stretches are
 * long enough to include rare long interruptions, such as a hypervisor's while it serves the loads:
 * of single layers few would include one, and the median would miss them. They are shorter where
 * `seconds`, for all of them, are less than LOADING_SECONDS. */
static int compare_loading(struct bench *b, double seconds, struct comparison *c,
                           struct moe_err *err)
{
    uint32_t layer = b->model->config.n_encoder;
    double share = seconds < LOADING_SECONDS ? seconds / LOADING_SECONDS : 1;
    double stretch = share * STRETCH_SECONDS, began = moe_seconds(), took = 0;
    if (!b->model->layers[layer].is_moe)
        layer = next_moe_layer(b, layer);
    while (c->n < DEVICE_MAX_SAMPLES && (c->n < DEVICE_RUNS || took < share * LOADING_SECONDS)) {
        struct stretch *quiet = &c->quiet[c->n], *rested = &c->rested[c->n], beside;
        MOE_TRY(time_stretch(b, layer, DEVICE_QUIET, UINT32_MAX, stretch, quiet, c->layers, err));
        MOE_TRY(time_stretch(b, layer, DEVICE_BACKGROUND, quiet->n, INFINITY, &beside, NULL, err));
        MOE_TRY(time_stretch(b, layer, DEVICE_RESTED, quiet->n, stretch, rested, NULL, err));
        for (uint32_t i = 0; i < quiet->n; i++)
            layer = next_moe_layer(b, layer);
        add_sample(&c->slowdown, beside.seconds / quiet->seconds);
        add_sample(&c->steal, beside.steal);
        add_sample(&c->late, rested->late / rested->n);
        c->n++;
        took = moe_seconds() - began;
        if (moe_progress_stopped(b->progress))
            return moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    return MOE_OK;
}

static double median_of(const struct samples *s)
{
    struct samples sorted = *s;
    return s->n ? moe_bench_summarize(sorted.values, sorted.n).median : 0;
}

/* What the stretch's layers take if each takes its median. */
static double by_medians(const struct bench *b, const struct comparison *c, const struct stretch *s)
{
    double sum = 0;
    uint32_t layer = s->first;
    for (uint32_t i = 0; i < s->n; i++, layer = next_moe_layer(b, layer))
        sum += c->medians[layer];
    return sum;
}

/* How many times as long the quiet stretches took as by medians, and what a sleep added to a layer.
 */
static void compare_with_medians(const struct bench *b, struct comparison *c,
                                 struct samples *interruptions, struct samples *wake)
{
    for (uint32_t layer = 0; layer < b->model->config.n_layers; layer++)
        c->medians[layer] = median_of(&c->layers[layer]);
    for (uint32_t i = 0; i < c->n; i++) {
        const struct stretch *quiet = &c->quiet[i], *rested = &c->rested[i];
        add_sample(interruptions, quiet->layers / by_medians(b, c, quiet));
        add_sample(wake, (rested->layers - by_medians(b, c, rested)) / rested->n);
    }
}

/* Sets a figure from samples if their median is above zero. Samples near zero can be negative
 * and count as zero, which keeps the median. */
static void set_above_zero(struct moe_figure *f, struct samples *s)
{
    static const double nothing = 1e-9;
    struct samples sorted = *s;
    if (s->n < DEVICE_RUNS || moe_bench_summarize(sorted.values, sorted.n).median <= nothing)
        return;
    for (uint32_t i = 0; i < s->n; i++)
        s->values[i] = s->values[i] < nothing ? nothing : s->values[i];
    moe_bench_set_figure(f, s->values, s->n);
}

/* For the best variant, whose experts are open. */
static int measure_loading(struct bench *b, double seconds, struct moe_device_model *out,
                           struct moe_err *err)
{
    const struct moe_config *config = &b->model->config;
    struct samples interruptions = {.n = 0}, wake = {.n = 0};
    struct comparison *c = NULL;
    int status = MOE_OK;
    if (config->n_experts == 0 || b->experts.n == 0 || !has_layers(b, config->n_encoder, true))
        return MOE_OK;
    MOE_STEP(moe_device_loads_open(&b->experts.loads, b->model->pack, 0, config->top_k, err));
    if (!b->experts.loads)
        return MOE_OK;
    c = moe_alloc(1, sizeof *c, err);
    if (c) {
        c->layers = moe_alloc(config->n_layers, sizeof *c->layers, err);
        c->medians = moe_alloc(config->n_layers, sizeof *c->medians, err);
    }
    MOE_STEP(c && c->layers && c->medians ? compare_loading(b, seconds, c, err) : MOE_ERR_MEMORY);
    compare_with_medians(b, c, &interruptions, &wake);
    moe_bench_set_figure(&out->interruptions, interruptions.values, interruptions.n);
    if (out->interruptions.value <= 1)
        out->interruptions = (struct moe_figure){.value = 0};
    set_above_zero(&out->loading_slowdown, &c->slowdown);
    set_above_zero(&out->loading_steal, &c->steal);
    set_above_zero(&out->late, &c->late);
    set_above_zero(&out->wake, &wake);
out:
    moe_device_loads_close(b->experts.loads);
    b->experts.loads = NULL;
    if (c) {
        free(c->layers);
        free(c->medians);
    }
    free(c);
    return status;
}

/* The head, each time after the pass of a layer, which fills the caches. */
static int run_head(struct bench *b, struct moe_figure *out, struct moe_err *err)
{
    struct samples s = {.n = 0};
    for (int i = 0; i <= HEAD_RUNS; i++) {
        MOE_TRY(run_layer(b, b->model->config.n_layers - 1, 1, NULL, 0, err));
        double began = moe_seconds();
        MOE_TRY(moe_logits(b->session, 0, 1, b->logits, err));
        if (i > 0)
            add_sample(&s, moe_seconds() - began);
    }
    moe_bench_set_figure(out, s.values, s.n);
    return MOE_OK;
}

/* What the decoder's rows attend to. */
static int encode_source(struct bench *b, struct moe_err *err)
{
    if (b->model->config.n_encoder == 0)
        return MOE_OK;
    set_source(b, ATTENDED, b->n_positions);
    return moe_encode(b->session, b->source, b->n_positions, NULL, err);
}

static int run_variant(struct bench *b, uint32_t variant, uint32_t n_variants, double seconds,
                       struct moe_figure *head, struct moe_err *err)
{
    const struct moe_config *c = &b->model->config;
    int status = open_experts(&b->experts, b->model->pack, variant, c->top_k, err);
    if (c->n_experts && b->experts.n == 0) /* a variant that no expert has */
        return status;
    if (status == MOE_OK)
        status = encode_source(b, err);
    for (uint32_t i = 0; i < N_BATCHES && status == MOE_OK; i++) {
        moe_progress_report(b->progress, "computing", variant * N_BATCHES + i,
                            n_variants * N_BATCHES);
        status = run_batch(b, i, variant, seconds / (n_variants * N_BATCHES), err);
    }
    if (status == MOE_OK && head->value <= 0)
        status = run_head(b, head, err);
    return status;
}

static void set_figure(struct moe_figure *f, struct samples *s)
{
    if (s->n)
        moe_bench_set_figure(f, s->values, s->n);
}

static void set_batches(struct bench *b, struct moe_device_model *out)
{
    uint32_t before = 0;
    for (uint32_t i = N_BATCHES; i-- > 0;) {
        struct batch_samples *s = &b->batches[i];
        struct moe_device_batch *to = &out->batches[out->n_batches];
        to->rows = b->n_positions < batch_rows[i] ? b->n_positions : batch_rows[i];
        if (to->rows == before) /* a model of very few positions */
            continue;
        before = to->rows;
        set_figure(&to->attention, &s->attention);
        set_figure(&to->router, &s->router);
        set_figure(&to->shared, &s->shared);
        set_figure(&to->combine, &s->combine);
        set_figure(&to->dense, &s->dense);
        set_figure(&to->expert_rows, &s->expert_rows);
        for (uint32_t v = 0; v < out->n_variants; v++)
            set_figure(&to->experts[v], &s->experts[v]);
        to->n_experts = out->n_variants;
        out->n_batches++;
    }
}

/* What a load of an expert at the variant reads, on average over those that have it. */
static void set_variants(const struct moe_pack *pack, struct moe_device_model *out)
{
    out->n_variants = moe_pack_n_experts(pack) ? moe_pack_n_variants(pack) : 0;
    for (uint32_t v = 0; v < out->n_variants; v++) {
        double sum = 0, n = 0;
        for (uint32_t l = 0; l < moe_pack_n_layers(pack); l++)
            for (uint32_t e = 0; e < moe_pack_n_experts(pack); e++) {
                const struct moe_expert_extent *x = moe_pack_expert(pack, l, e, v);
                if (!x->present)
                    continue;
                n++;
                for (uint32_t i = 0; i < moe_pack_class_at(pack, x->class_index)->n_segments; i++)
                    sum += (double)moe_round_up(x->segments[i].stored_bytes, MOE_PACK_ALIGN);
            }
        memcpy(out->variants[v].name, moe_pack_variant_at(pack, v)->name, MOE_NAME_BYTES);
        out->variants[v].bytes.value = n > 0 ? (double)(uint64_t)(sum / n + 0.5) : 0;
    }
}

static int open_session(struct bench *b, const char *pack, struct moe_err *err)
{
    MOE_TRY(moe_model_open_directory(&b->model, pack, err));
    const struct moe_config *c = &b->model->config;
    b->n_positions = c->context_max < batch_rows[0] ? c->context_max : batch_rows[0];
    b->n_far = c->context_max < FAR_POSITIONS ? c->context_max : FAR_POSITIONS;
    if (c->n_encoder || b->n_far <= b->n_positions)
        b->n_far = 0;
    const struct moe_session_options options = {.context = b->n_far ? b->n_far : b->n_positions,
                                                .n_sequences = 1,
                                                .batch = b->n_positions,
                                                .source_context = b->n_positions,
                                                .n_sources = N_SOURCES};
    moe_bench_rows(NULL, c->vocab, 0, b->rows, b->n_positions);
    b->hidden = moe_alloc((uint64_t)b->n_positions * moe_config_state_width(c), sizeof(float), err);
    b->logits = moe_alloc(moe_logits_stride(c), sizeof(float), err);
    if (!b->hidden || !b->logits)
        return MOE_ERR_MEMORY;
    MOE_TRY(moe_model_load(b->model, b->n_far ? b->n_far : b->n_positions, NULL, b->progress, err));
    MOE_TRY(moe_session_open(&b->session, b->model, &b->experts.base, &options, err));
    b->session->observer =
        (struct moe_observer){.ctx = b, .attended = on_attended, .routed = on_routed};
    return MOE_OK;
}

int moe_device_measure_model(struct moe_device_model *out, const char *pack, double seconds,
                             const struct moe_progress *progress, struct moe_err *err)
{
    struct bench *b = moe_alloc(1, sizeof *b, err);
    if (!b)
        return MOE_ERR_MEMORY;
    b->progress = progress;
    int status;
    MOE_STEP(open_session(b, pack, err));
    const struct moe_config *c = &b->model->config;
    set_variants(b->model->pack, out);
    out->source_fingerprint = moe_pack_source_fingerprint(b->model->pack);
    out->layers = c->n_layers;
    out->moe_layers = c->n_moe_layers;
    out->experts_per_token = c->top_k;
    out->positions = b->n_positions;
    const uint32_t n_variants = out->n_variants ? out->n_variants : 1;
    for (uint32_t v = n_variants; v-- > 0;) { /* ends with the best */
        moe_device_experts_close(&b->experts);
        MOE_STEP(run_variant(b, v, n_variants, seconds, &out->head_seconds, err));
    }
    MOE_STEP(measure_far(b, out, err));
    MOE_STEP(measure_loading(b, seconds, out, err));
    set_batches(b, out);
out:
    moe_session_close(b->session);
    moe_device_experts_close(&b->experts);
    moe_model_close(b->model);
    free(b->hidden);
    free(b->logits);
    free(b);
    return status;
}
