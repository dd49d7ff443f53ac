/*
 * Attention over the cache: the same bits as its definition (the head of infer/cpu_attention.c)
 * written out sequentially, and near to plain softmax attention in double precision; random shapes,
 * at every level of kernels this machine has.
 */
#include "../kv_fixture.h"
#include "../test.h"

#include <math.h>

#include "base/float16.h"
#include "base/par.h"
#include "infer/cpu_stages.h"

enum { LAYER = 1, MOST_ROWS = 24, CHUNK = 256 };

/* A session with a filled cache, and what was put into it. */
struct world {
    struct moe_model model;
    struct moe_layer layers[2];
    struct moe_session *s;
    float *sinks;   /* [heads] */
    float *scratch; /* in place of the session's: allocated to the byte */
    float *k, *v;   /* [sequence][position][kv head][width], as the cells hold them: codes turned */
    struct moe_row *rows;
    uint32_t n_rows;
    uint64_t random;
};

static uint32_t below(struct world *w, uint32_t n)
{
    return (uint32_t)(test_random(&w->random) % n);
}

static void *take(uint64_t n, uint64_t item_bytes)
{
    void *p = calloc(n, item_bytes);
    assert_non_null(p);
    return p;
}

static void random_shape(struct world *w)
{
    static const uint32_t widths[] = {6, 16, 20, 40, 64};
    struct moe_config *c = &w->model.config;
    moe_config_init(c);
    c->n_layers = 2;
    c->hidden = c->vocab = 16;
    c->n_kv_heads = 1 + below(w, 3);
    c->n_heads = c->n_kv_heads * (1 + below(w, 9));
    c->head_dim = widths[below(w, N_ITEMS(widths))];
    c->value_dim = widths[below(w, N_ITEMS(widths))];
    if (below(w, 3) == 0) {
        c->kv_rank = 16 * (1 + below(w, 5));
        c->value_dim = 16;
        c->rope_dim = 2 + 2 * below(w, 5);
        c->head_dim = c->rope_dim + 5;
        c->n_kv_heads = c->n_heads;
    }
    c->attn_scale = 0.05f + 2 * fabsf(test_uniform(&w->random));
    c->window = below(w, 2) ? 1 + below(w, 700) : 0;
    c->layers[LAYER].windowed = c->window > 0;
    moe_config_complete(c);
    w->model.layers = w->layers;
    w->model.rope_positions = MOE_MAX_CONTEXT;
}

static struct cpu_attention *work_of(const struct world *w)
{
    return &((struct cpu_work *)w->s->device)->attention;
}

static const struct moe_kv *kv_of(const struct world *w)
{
    return &((const struct cpu_work *)w->s->device)->kv;
}

/* The number times scale that is nearest to x: of 4 bits by the table, by x / scale, of two the
 * lesser. */
static float nearest(bool eight, float x, float scale)
{
    float at = scale == 0 ? 0 : x / scale, best = moe_iq4_numbers[0];
    if (eight)
        return fminf(fmaxf(rintf(at), -127), 127) * scale;
    for (int i = 1; i < 16; i++)
        if (fabsf(moe_iq4_numbers[i] - at) < fabsf(best - at))
            best = moe_iq4_numbers[i];
    return best * scale;
}

/* Keeps a group of numbers by a scale; returns the sum of squared errors. */
static float keep_by(bool eight, const float *x, uint32_t n, float scale, float *kept)
{
    float lane[16] = {0};
    scale = moe_f16_to_f32(moe_f32_to_f16(scale));
    for (uint32_t i = 0; i < n; i++) {
        kept[i] = nearest(eight, x[i], scale);
        float error = x[i] - kept[i]; /* kept is exact: one rounding, as of an fma */
        lane[i % 16] = fmaf(error, error, lane[i % 16]);
    }
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

/* What cells of a layout keep of n numbers, by the words of kern_math.h. */
static void keep(uint16_t layout, const float *x, uint32_t n, float *kept)
{
    const bool eight = layout == MOE_LAYOUT_Q8;
    float turned[128], other[32];
    if (!moe_kv_has_scales(layout)) {
        for (uint32_t i = 0; i < n; i++)
            kept[i] = layout == MOE_LAYOUT_F16 ? moe_f16_to_f32(moe_f32_to_f16(x[i])) : x[i];
        return;
    }
    memcpy(turned, x, n * sizeof *x);
    moe_kern.turn(turned, n);
    for (uint32_t first = 0; first < n; first += 32) {
        const uint32_t width = n - first < 32 ? n - first : 32;
        const float *from = turned + first;
        float largest = 0;
        for (uint32_t i = 0; i < width; i++)
            largest = fabsf(from[i]) > fabsf(largest) ? from[i] : largest;
        float scale = eight ? fabsf(largest) / 127 : largest / -127;
        float error = keep_by(eight, from, width, scale, kept + first);
        if (!eight && keep_by(false, from, width, largest / -134, other) < error)
            memcpy(kept + first, other, width * sizeof *other);
    }
}

/* Draws the widths of n heads, and what the cache keeps of them. */
static void draw_heads(struct world *w, uint16_t layout, uint32_t n, uint32_t dim, float *x,
                       float *kept)
{
    for (uint32_t head = 0; head < n; head++, x += dim, kept += dim) {
        float size = below(w, 8) ? 1 : below(w, 2) ? 0 : 1e-6f;
        for (uint32_t c = 0; c < dim; c++)
            x[c] = test_uniform(&w->random) * size;
        keep(layout, x, dim, kept);
    }
}

/* Puts every position of a sequence into the cache, in batches. */
static void fill_sequence(struct world *w, uint32_t sequence)
{
    struct cpu_attention *work = work_of(w);
    const struct moe_kv *kv = kv_of(w);
    uint32_t n_k = kv->n_heads * kv->key_dim, n_v = kv->n_heads * kv->value_dim;
    for (uint32_t first = 0, n; first < w->s->context; first += n) {
        n = w->s->context - first < MOST_ROWS ? w->s->context - first : MOST_ROWS;
        for (uint32_t i = 0; i < n; i++) {
            uint64_t at = (uint64_t)sequence * w->s->context + first + i;
            w->rows[i] = (struct moe_row){.sequence = sequence, .position = first + i};
            draw_heads(w, kv->keys_as, kv->n_heads, kv->key_dim, work->k + i * work->stride.k,
                       w->k + at * n_k);
            draw_heads(w, kv->values_as, kv->n_heads, kv->value_dim, work->v + i * work->stride.v,
                       w->v + at * n_v);
        }
        stages_cpu_store(w->s, LAYER, w->rows, n);
    }
}

/* Runs of neighbouring rows, as prompts have them, rows apart, and more than one sequence. */
static void random_rows(struct world *w)
{
    w->n_rows = 1 + below(w, MOST_ROWS);
    for (uint32_t i = 0; i < w->n_rows; i++) {
        struct moe_row *row = &w->rows[i];
        row->sequence = i && below(w, 4) ? w->rows[i - 1].sequence : below(w, w->s->n_sequences);
        row->position = i && below(w, 8) ? w->rows[i - 1].position + 1 : below(w, w->s->context);
        row->position %= w->s->context;
    }
    struct cpu_attention *work = work_of(w);
    for (uint64_t i = 0; i < w->n_rows * work->stride.queries; i++)
        work->queries[i] = 2 * test_uniform(&w->random);
}

static struct world *world_new(uint64_t seed)
{
    static const char *const kinds[] = {"f32", "f16", "q8", "q4", "q8,q4", "q4,f16", "f32,q8"};
    struct world *w = take(1, sizeof *w);
    struct moe_err err;
    w->random = seed;
    random_shape(w);
    const struct moe_config *c = &w->model.config;
    struct moe_session_options o = {
        .context = 1 + below(w, below(w, 2) ? 1100 : 40),
        .n_sequences = 1 + below(w, 3),
        .batch = MOST_ROWS,
        .kv_kind = moe_kv_kind_find(kinds[below(w, N_ITEMS(kinds))]),
    };
    assert_ok(moe_session_open(&w->s, &w->model, NULL, &o, &err), &err);
    scatter_blocks(w->s, &w->random);
    struct cpu_attention *work = work_of(w);
    w->scratch = take((uint64_t)w->s->n_threads * work->scratch_floats, sizeof *w->scratch);
    work->scratch = w->scratch;
    uint64_t positions = (uint64_t)o.n_sequences * o.context * kv_of(w)->n_heads;
    w->k = take(positions * kv_of(w)->key_dim, sizeof *w->k);
    w->v = take(positions * kv_of(w)->value_dim, sizeof *w->v);
    w->rows = take(MOST_ROWS, sizeof *w->rows);
    w->sinks = take(c->n_heads, sizeof *w->sinks);
    for (uint32_t h = 0; h < c->n_heads; h++)
        w->sinks[h] = 8 * test_uniform(&w->random);
    if (below(w, 2))
        w->layers[LAYER].sinks = w->sinks;
    for (uint32_t i = 0; i < o.n_sequences; i++)
        fill_sequence(w, i);
    random_rows(w);
    return w;
}

static void world_free(struct world *w)
{
    moe_session_close(w->s);
    free(w->sinks);
    free(w->scratch);
    free(w->k);
    free(w->v);
    free(w->rows);
    free(w);
}

/* ---- What one head of one row is about ---- */

struct head {
    uint32_t begin, end;                 /* positions it sees */
    uint32_t key_dim, value_dim, stride; /* stride: kv heads */
    float query[128];                    /* turned, where keys are codes */
    const float *k, *v; /* of position 0; those of p lie p * stride * width further */
    const float *sink;  /* or NULL */
    float scale;
    bool turned; /* values are codes: so are outputs until they are turned back */
};

static struct head head_of(const struct world *w, uint32_t i, uint32_t h)
{
    const struct moe_config *c = &w->model.config;
    const struct moe_kv *kv = kv_of(w);
    uint32_t kv_head = h / (c->n_heads / kv->n_heads), end = w->rows[i].position + 1;
    uint64_t first = (uint64_t)w->rows[i].sequence * w->s->context * kv->n_heads + kv_head;
    struct head head = {
        .begin = c->window && end > c->window ? end - c->window : 0,
        .end = end,
        .key_dim = kv->key_dim,
        .value_dim = kv->value_dim,
        .stride = kv->n_heads,
        .k = w->k + first * kv->key_dim,
        .v = w->v + first * kv->value_dim,
        .sink = w->layers[LAYER].sinks ? &w->sinks[h] : NULL,
        .scale = c->attn_scale,
        .turned = moe_kv_has_scales(kv->values_as),
    };
    memcpy(head.query, work_of(w)->queries + i * work_of(w)->stride.queries + h * kv->key_dim,
           kv->key_dim * sizeof *head.query);
    if (moe_kv_has_scales(kv->keys_as))
        moe_kern.turn(head.query, kv->key_dim);
    return head;
}

static const float *key_at(const struct head *h, uint32_t p)
{
    return h->k + (uint64_t)p * h->stride * h->key_dim;
}

static const float *value_at(const struct head *h, uint32_t p)
{
    return h->v + (uint64_t)p * h->stride * h->value_dim;
}

/* ---- The definition, one step after the other ---- */

struct joined {
    float largest, sum, out[128];
    bool any;
};

static void join(struct joined *j, float m, float sum, const float *o, uint32_t n)
{
    bool rises = j->any && m > j->largest;
    float factor = !j->any ? 0 : rises ? moe_expf(j->largest - m) : moe_expf(m - j->largest);
    for (uint32_t d = 0; d < n; d++)
        j->out[d] = !j->any ? o[d]
                    : rises ? fmaf(j->out[d], factor, o[d])
                            : fmaf(o[d], factor, j->out[d]);
    j->sum = !j->any ? sum : rises ? fmaf(j->sum, factor, sum) : fmaf(sum, factor, j->sum);
    j->largest = !j->any || rises ? m : j->largest;
    j->any = true;
}

static void join_chunk(struct joined *j, const struct head *h, uint32_t chunk)
{
    float s[CHUNK], lane[16] = {0}, o[128] = {0}, m = -INFINITY;
    uint32_t from = chunk * CHUNK < h->begin ? h->begin : chunk * CHUNK;
    uint32_t to = (chunk + 1) * CHUNK < h->end ? (chunk + 1) * CHUNK : h->end;
    for (uint32_t p = from; p < to; p++) {
        float sum = 0;
        for (uint32_t c = 0; c < h->key_dim; c++)
            sum = fmaf(key_at(h, p)[c], h->query[c] * h->scale, sum);
        s[p - from] = sum;
        m = sum > m ? sum : m;
    }
    for (uint32_t p = from; p < to; p++) {
        float e = moe_expf(s[p - from] - m);
        lane[p % CHUNK % 16] += e;
        for (uint32_t d = 0; d < h->value_dim; d++)
            o[d] = fmaf(value_at(h, p)[d], e, o[d]);
    }
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    join(j, m, lane[0], o, h->value_dim);
}

static void by_definition(const struct head *h, float *out)
{
    static const float nothing[128];
    struct joined j = {0};
    for (uint32_t chunk = h->begin / CHUNK; chunk * CHUNK < h->end; chunk++)
        join_chunk(&j, h, chunk);
    if (h->sink)
        join(&j, *h->sink, 1, nothing, h->value_dim);
    for (uint32_t d = 0; d < h->value_dim; d++)
        out[d] = j.out[d] / j.sum;
    if (h->turned)
        moe_kern.turn(out, h->value_dim);
}

static void compare_bits(const struct world *w, const char *level)
{
    const struct cpu_attention *work = work_of(w);
    uint32_t n_heads = w->model.config.n_heads;
    for (uint32_t i = 0; i < w->n_rows; i++)
        for (uint32_t h = 0; h < n_heads; h++) {
            struct head head = head_of(w, i, h);
            float want[128];
            by_definition(&head, want);
            const float *got = work->attended + i * work->stride.attended + h * head.value_dim;
            if (memcmp(got, want, head.value_dim * sizeof *want) != 0)
                fail_msg("%s: row %u of %u, position %u, head %u of %u, key %u, value %u, window "
                         "%u: first %a, should be %a",
                         level, i, w->n_rows, w->rows[i].position, h, n_heads, head.key_dim,
                         head.value_dim, w->model.config.window, (double)got[0], (double)want[0]);
        }
}

enum { N_WORLDS = 40 };

static void test_bits_of_the_definition(void **state)
{
    (void)state;
    struct moe_err err;
    enum moe_cpu_level before = moe_kern.level;
    int threads = moe_par_threads();
    for (uint64_t seed = 1; seed <= N_WORLDS; seed++) {
        moe_par_set_threads(2);
        struct world *w = world_new(seed);
        for (int level = 0; level < MOE_CPU_N_LEVELS; level++) {
            if (!moe_cpu_supports((enum moe_cpu_level)level))
                continue;
            assert_ok(moe_kern_select((enum moe_cpu_level)level, &err), &err);
            moe_par_set_threads(1 + level % 2);
            memset(work_of(w)->attended, 0xff,
                   w->n_rows * work_of(w)->stride.attended * sizeof(float));
            moe_attention(w->s, LAYER, w->rows, w->n_rows);
            compare_bits(w, moe_cpu_level_name((enum moe_cpu_level)level));
        }
        world_free(w);
    }
    assert_ok(moe_kern_select(before, &err), &err);
    moe_par_set_threads(threads);
}

/* ---- Plain softmax attention in double precision ---- */

static void by_softmax(const struct head *h, double *out)
{
    double *s = take(h->end, sizeof *s), largest = h->sink ? *h->sink : -INFINITY;
    for (uint32_t p = h->begin; p < h->end; p++) {
        for (uint32_t c = 0; c < h->key_dim; c++)
            s[p] += (double)key_at(h, p)[c] * h->query[c] * h->scale;
        largest = s[p] > largest ? s[p] : largest;
    }
    double sum = h->sink ? exp(*h->sink - largest) : 0;
    memset(out, 0, h->value_dim * sizeof *out);
    for (uint32_t p = h->begin; p < h->end; p++) {
        double e = exp(s[p] - largest);
        sum += e;
        for (uint32_t d = 0; d < h->value_dim; d++)
            out[d] += e * value_at(h, p)[d];
    }
    for (uint32_t d = 0; d < h->value_dim; d++)
        out[d] /= sum;
    free(s);
}

/* Outputs lie within +-1. The roundings of scores, of up to 80 terms, weigh most: a score's error
 * shifts its share by as much. The largest difference seen is a quarter of this. */
#define TOLERANCE 1e-5

static void test_near_plain_softmax(void **state)
{
    (void)state;
    double worst = 0;
    for (uint64_t seed = 1; seed <= N_WORLDS; seed++) {
        struct world *w = world_new(seed);
        const struct cpu_attention *work = work_of(w);
        moe_attention(w->s, LAYER, w->rows, w->n_rows);
        for (uint32_t i = 0; i < w->n_rows; i++)
            for (uint32_t h = 0; h < w->model.config.n_heads; h++) {
                struct head head = head_of(w, i, h);
                double want[128];
                float got[128];
                by_softmax(&head, want);
                memcpy(got, work->attended + i * work->stride.attended + h * head.value_dim,
                       head.value_dim * sizeof *got);
                if (head.turned)
                    moe_kern.turn(got, head.value_dim); /* as the cells are */
                for (uint32_t d = 0; d < head.value_dim; d++) {
                    double error = fabs(got[d] - want[d]);
                    assert_true(error <= TOLERANCE);
                    worst = error > worst ? error : worst;
                }
            }
        world_free(w);
    }
    printf("# largest difference %.3g\n", worst);
}

/* A row of NaNs spoils nothing but itself, in its own head. */
static void test_nan_stays_in_its_head(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct world *w = world_new(seed);
        struct cpu_attention *work = work_of(w);
        uint32_t width = kv_of(w)->value_dim, n_heads = w->model.config.n_heads;
        uint32_t row = below(w, w->n_rows), head = below(w, n_heads);
        work->queries[row * work->stride.queries + head * kv_of(w)->key_dim] = NAN;
        moe_attention(w->s, LAYER, w->rows, w->n_rows);
        for (uint32_t i = 0; i < w->n_rows; i++)
            for (uint32_t d = 0; d < n_heads * width; d++)
                assert_true(isnan(work->attended[i * work->stride.attended + d]) ==
                            (i == row && d / width == head));
        world_free(w);
    }
}

/* What a session has beside the KV cache and the list of its blocks. */
static uint64_t other_bytes(const struct moe_config *c, uint32_t context)
{
    const struct moe_session_options o = {
        .context = context, .n_sequences = 1, .batch = 16, .kv_kind = MOE_LAYOUT_F32};
    struct moe_arena lists = {0};
    struct moe_kv_pool pool = moe_kv_pool_shape(c, &o);
    moe_kv_pool_carve(&pool, &lists);
    return moe_session_bytes(c, &o) - moe_session_kv_bytes(c, &o) - lists.used;
}

static void test_scratch_does_not_grow_with_the_context(void **state)
{
    (void)state;
    struct world *w = world_new(1);
    const struct moe_config *c = &w->model.config;
    assert_int_equal(other_bytes(c, 16) / 1024, other_bytes(c, 1 << 20) / 1024);
    world_free(w);
}

int main(void)
{
    struct moe_err err;
    if (moe_kern_select(moe_cpu_detect(), &err) != MOE_OK)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_of_the_definition),
        cmocka_unit_test(test_near_plain_softmax),
        cmocka_unit_test(test_nan_stays_in_its_head),
        cmocka_unit_test(test_scratch_does_not_grow_with_the_context),
    };
    return cmocka_run_group_tests_name("attention", tests, NULL, NULL);
}
