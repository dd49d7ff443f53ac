#define _DEFAULT_SOURCE /* mkdtemp */
/*
 * EdgeMoE on a router that chooses one expert, as its paper has them: profiled, its dictionary
 * written and read back, and run. What it predicts is counted again here from the choices alone.
 */
#include "../scratch_dir.h"

#include <math.h>

#include "engine/engine.h"
#include "kern/kern.h"
#include "tune/probe.h"

#include "random_model.h"

enum { N_DOCUMENTS = 6, N_IDS = 48, N_PROMPT = 8, LAYERS = RANDOM_MAX_LAYERS };

/* One expert of a document's token in each layer. */
struct choices {
    uint32_t at[N_IDS][LAYERS];
};

static struct {
    char pack[128], statistics[128];
    struct random_model m;
    uint32_t ids[N_DOCUMENTS + 1][N_IDS]; /* the last one is run */
    struct choices seen[N_DOCUMENTS];
    /* The dictionary (III-C): how often an expert followed those of the two layers before; in layer
     * 1, which has one before, the first index is 0. */
    uint32_t keys[LAYERS][RANDOM_MAX_EXPERTS][RANDOM_MAX_EXPERTS][RANDOM_MAX_EXPERTS];
    uint32_t pairs[LAYERS][RANDOM_MAX_EXPERTS][RANDOM_MAX_EXPERTS];
    uint32_t all[LAYERS][RANDOM_MAX_EXPERTS];
} f;

/* ---- Choices ---- */

static void note_choices(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                         const float *gate_input, uint64_t hidden_stride,
                         const float *probabilities, uint64_t router_stride, const uint32_t *chosen,
                         const float *weights)
{
    struct choices *c = ctx;
    for (uint32_t i = 0; i < n_rows; i++)
        c->at[rows[i].position][layer] = chosen[i];
}

static void run_rows(struct moe_session *s, const uint32_t *ids, uint32_t first, uint32_t n)
{
    struct moe_err err = {0};
    struct moe_row rows[N_IDS];
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct moe_row){0, first + i, ids[first + i], N_IDS};
    assert_ok(
        moe_forward(s, n > 1 ? MOE_PREFILL : MOE_DECODE, rows, n, 0, LAYERS, NULL, NULL, &err),
        &err);
}

static struct moe_engine *open_engine(const char *strategy, const struct moe_statistics *statistics)
{
    struct moe_err err = {0};
    struct moe_engine *e = NULL;
    struct moe_engine_options o = {.statistics = statistics,
                                   .session = {.context = N_IDS, .batch = N_IDS}};
    assert_true(moe_strategy_find(strategy, &o.strategy));
    assert_ok(moe_engine_open(&e, f.pack, &o, NULL, &err), &err);
    return e;
}

/* ---- The dictionary ---- */

static void count_keys(void)
{
    for (int d = 0; d < N_DOCUMENTS; d++)
        for (int t = 0; t < N_IDS; t++) {
            const uint32_t *at = f.seen[d].at[t];
            for (int l = 0; l < LAYERS; l++) {
                f.all[l][at[l]]++;
                if (l > 0)
                    f.pairs[l][at[l - 1]][at[l]]++;
                if (l > 0)
                    f.keys[l][l > 1 ? at[l - 2] : 0][at[l - 1]][at[l]]++;
            }
        }
}

/* The most frequent expert, the first among equals; -1: none was seen. */
static int most_frequent(const uint32_t *counts)
{
    int best = -1;
    for (uint32_t e = 0; e < f.m.c.n_experts; e++)
        if (counts[e] > (best < 0 ? 0 : counts[best]))
            best = (int)e;
    return best;
}

/* What the dictionary says of a layer, given the experts of those before; where it has no such key,
 * the expert before alone, and then the layer. *keyed: whether it has. */
static int predicted(const uint32_t *at, int layer, bool *keyed)
{
    int best = most_frequent(f.keys[layer][layer > 1 ? at[layer - 2] : 0][at[layer - 1]]);
    *keyed = best >= 0;
    if (best < 0)
        best = most_frequent(f.pairs[layer][at[layer - 1]]);
    return best < 0 ? most_frequent(f.all[layer]) : best;
}

/* ---- A model, its profile ---- */

static void draw_model(void)
{
    const struct moe_config *c = &f.m.c;
    uint64_t seed = 1;
    random_model_draw(&f.m, seed);
    while (c->n_layers != LAYERS || c->n_experts < 8 || c->layers[LAYERS].moe_index != LAYERS ||
           c->router_kind == MOE_ROUTER_SPARSEMIXER || c->n_groups) {
        random_model_free(&f.m);
        random_model_draw(&f.m, ++seed);
    }
    f.m.c.top_k = 1; /* as "num_experts_per_tok": 1 says */
    random_model_write(&f.m, 32, f.pack);
    for (int d = 0; d <= N_DOCUMENTS; d++)
        for (int t = 0; t < N_IDS; t++)
            f.ids[d][t] = random_below(&seed, c->vocab);
}

static int set_up(void **state)
{
    struct moe_err err = {0};
    struct moe_statistics *s = NULL;
    struct moe_probe *probe = NULL;
    struct moe_buf text = {0};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    if (make_dir(state) != 0)
        return -1;
    snprintf(f.pack, sizeof f.pack, "%s/top1.moe", dir);
    snprintf(f.statistics, sizeof f.statistics, "%s/stats.yaml", dir);
    draw_model();
    struct moe_engine *e = open_engine("resident", NULL);
    for (int d = 0; d < N_DOCUMENTS; d++) {
        e->session->observer = (struct moe_observer){.ctx = &f.seen[d], .routed = note_choices};
        run_rows(e->session, f.ids[d], 0, N_IDS);
    }
    e->session->observer = (struct moe_observer){0};
    struct moe_statistics_shape shape = moe_model_statistics_shape(e->model);
    shape.max_tokens = N_IDS;
    shape.prompt_percent = 50;
    assert_ok(moe_statistics_new(&s, &shape, &err), &err);
    assert_ok(moe_origins_begin(&s->origins, 1, 0, 1, &err), &err);
    s->origins.items->documents = N_DOCUMENTS;
    s->origins.items->texts[s->origins.items->n_texts++] = 1;
    assert_ok(moe_probe_open(&probe, e->session, s, &err), &err);
    for (int d = 0; d < N_DOCUMENTS; d++)
        assert_ok(moe_probe_document(probe, f.ids[d], N_IDS, &err), &err);
    moe_probe_close(probe);
    assert_ok(moe_statistics_write(s, &text, &err), &err);
    assert_ok(moe_file_write_all(f.statistics, text.data, text.size, &err), &err);
    moe_buf_release(&text);
    moe_statistics_free(s);
    moe_engine_close(e);
    count_keys();
    return 0;
}

static int tear_down(void **state)
{
    random_model_free(&f.m);
    return remove_dir(state);
}

/* ---- Runs ---- */

/* The last document by this strategy: a prompt, then single tokens, each of which predicts what
 * `predict` says, right as often as that is. Returns how often the dictionary had the key. */
static uint32_t follow(const char *strategy)
{
    struct moe_err err = {0};
    struct moe_statistics *s = NULL;
    struct choices now;
    uint32_t n_keyed = 0;
    assert_ok(moe_statistics_read(&s, f.statistics, &err), &err);
    struct moe_engine *e = open_engine(strategy, s);
    e->session->observer = (struct moe_observer){.ctx = &now, .routed = note_choices};
    run_rows(e->session, f.ids[N_DOCUMENTS], 0, N_PROMPT);
    const struct moe_counts *n = &e->session->stats.decode.experts;
    for (uint32_t t = N_PROMPT; t < N_IDS; t++) {
        struct moe_counts before = *n;
        uint32_t right = 0;
        run_rows(e->session, f.ids[N_DOCUMENTS], t, 1);
        for (int l = 1; l < LAYERS; l++) {
            bool keyed;
            right += predicted(now.at[t], l, &keyed) == (int)now.at[t][l];
            n_keyed += keyed;
        }
        assert_int_equal(n->predicted - before.predicted, LAYERS - 1);
        assert_int_equal(n->predicted_right - before.predicted_right, right);
    }
    moe_engine_close(e);
    moe_statistics_free(s);
    return n_keyed;
}

static void edgemoe_predicts_by_its_dictionary(void **state)
{
    uint32_t n = (N_IDS - N_PROMPT) * (LAYERS - 1), n_keyed = follow("edgemoe");
    (void)state;
    assert_true(n_keyed > n / 4 && n_keyed < n); /* keys, and what stands in for them */
}

/* The dictionary of two layers says something else than that of one. */
static void keys_are_more_than_pairs(void **state)
{
    uint32_t n_other = 0;
    (void)state;
    for (int d = 0; d < N_DOCUMENTS; d++)
        for (int t = 0; t < N_IDS; t++)
            for (int l = 2; l < LAYERS; l++) {
                const uint32_t *at = f.seen[d].at[t];
                bool keyed;
                n_other += predicted(at, l, &keyed) != most_frequent(f.pairs[l][at[l - 1]]);
            }
    assert_true(n_other > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(edgemoe_predicts_by_its_dictionary),
        cmocka_unit_test(keys_are_more_than_pairs),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
