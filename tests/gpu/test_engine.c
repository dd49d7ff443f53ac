/*
 * Sessions on a device beside those of the processor: the bundled model, recorded decode steps,
 * states into and out of the middle, greedy tokens, weights that are no numbers, prompts in bf16.
 * (Families and layouts: test_device_families.c.)
 */
#define _GNU_SOURCE /* setenv */
#include <math.h>

#include "engine_fixture.h"
#include "fmt/timeline.h"
#include "infer/gpu_work.h"

static const struct moe_bits full = {32, 32}, small = {4, 4};

static const struct gpu_residents *residents_of(const struct pair *p)
{
    const struct gpu_work *work = p->sides[GPU].session->device;
    return &work->residents;
}

/* Resident experts, or cached ones, and a session of one sequence. */
static void open_pair(struct pair *p, const char *checkpoint, struct moe_bits bits, int dense,
                      uint32_t context, bool cached)
{
    *p = (struct pair){.random = 9};
    pair_pack(p, checkpoint, bits, dense);
    pair_load(p, gpu, context);
    pair_experts(p, cached);
    pair_sessions(p, (struct moe_session_options){.context = context, .batch = MAX_ROWS});
}

static uint32_t argmax(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

static uint32_t greedy(struct side *s, uint32_t row)
{
    struct moe_err err = {0};
    uint32_t token;
    assert_ok(s->session->stages->greedy(s->session, row, &token, &err), &err);
    return token;
}

/* The bundled model: a prompt, then the likeliest tokens, which the device names itself. */
static void bundled_model(void **state)
{
    enum { PROMPT = 18, N = 4 };
    struct pair p;
    struct moe_row rows[PROMPT];
    open_pair(&p, BUNDLED "/tiny-moe", small, 8, 32, false);
    uint32_t vocab = p.sides[CPU].model->config.vocab;
    pair_rows(&p, rows, 0, 0, PROMPT);
    pair_forward(&p, rows, PROMPT, 1, "prompt");
    for (uint32_t i = 0; i < N; i++) {
        uint32_t token = argmax(p.sides[CPU].logits, vocab);
        assert_int_equal(greedy(&p.sides[GPU], i == 0 ? PROMPT - 1 : 0), token);
        rows[0] = (struct moe_row){0, PROMPT + i, token, 0};
        pair_forward(&p, rows, 1, 1, "a token");
    }
    for (struct side *s = p.sides; s < p.sides + N_SIDES; s++) {
        const struct moe_counts *prompt = &s->session->stats.prefill.experts;
        const struct moe_counts *tokens = &s->session->stats.decode.experts;
        assert_int_equal(prompt->activations, PROMPT * 12 * 4);
        assert_int_equal(prompt->cache_hits, prompt->activations);
        assert_int_equal(tokens->activations, N * 12 * 4);
        assert_int_equal(tokens->cache_hits, tokens->activations);
    }
    assert_int_equal(residents_of(&p)->n_graphs, 1);
    pair_close(&p);
}

/* Every row of a pass, also those after the first GPU_LOGITS_ROWS. */
static void greedy_of_any_row(void **state)
{
    enum { N = 11 };
    struct pair p;
    struct moe_row rows[N];
    open_pair(&p, DRAWN "/granitemoe", small, 8, 64, false);
    const struct moe_config *c = &p.sides[CPU].model->config;
    pair_rows(&p, rows, 0, 0, N);
    pair_forward(&p, rows, N, N, "prompt");
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(greedy(&p.sides[GPU], i),
                         argmax(p.sides[CPU].logits + i * moe_logits_stride(c), c->vocab));
    pair_close(&p);
}

/* ---- Recorded steps ---- */

/* A recording that the device refuses, or that the budget has no room for: the same tokens, kernel
 * by kernel. */
static void without_recordings(void **state)
{
    struct moe_gpu_info info;
    struct moe_err err = {0};
    if (moe_gpu_describe(0, &info) != 0 || strncmp(info.name, "shim", 4) != 0)
        skip();
    for (int of_memory = 0; of_memory < 2; of_memory++) {
        struct pair p;
        struct moe_row row;
        open_pair(&p, DRAWN "/qwen2-moe-a", small, 8, 64, false);
        uint64_t taken = moe_gpu_allocated_bytes(gpu);
        if (of_memory)
            moe_gpu_set_budget(gpu, MOE_GPU_OWN_BYTES + taken + MOE_GPU_NODE_BYTES);
        else
            setenv("MOE_SHIM_FAIL", "cudaGraphInstantiateWithFlags:1:once", 1);
        for (uint32_t i = 0; i < 4; i++) {
            pair_rows(&p, &row, 0, i, 1);
            pair_forward(&p, &row, 1, 1, "a token");
        }
        assert_int_equal(residents_of(&p)->n_graphs, 1);
        assert_true(residents_of(&p)->graphs[0].refused && !residents_of(&p)->graphs[0].graph);
        assert_int_equal(moe_gpu_allocated_bytes(gpu), taken);
        assert_ok(moe_gpu_status(gpu, &err), &err);
        unsetenv("MOE_SHIM_FAIL");
        moe_gpu_set_budget(gpu, 0);
        pair_close(&p);
    }
}

/* What a token costs in launches: the embedding and the first norm, then a handful a layer. */
static void launches_of_a_token(void **state)
{
    static const struct {
        const char *fixture;
        uint32_t dense, moe; /* a layer without and with experts */
    } cases[] = {
        {DRAWN "/qwen2-moe-a", 7, 9},
        {BUNDLED "/tiny-moe", 8, 10},
        {DRAWN "/gpt-oss-b", 8, 10},      /* heads end within 64 columns: their bytes apart */
        {DRAWN "/deepseek-v2-a", 11, 13}, /* latent attention */
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct pair p;
        struct moe_row row;
        struct moe_err err = {0};
        open_pair(&p, cases[i].fixture, small, 8, 64, false);
        struct side *device = &p.sides[GPU];
        const struct moe_config *c = &device->model->config;
        uint32_t n_moe = c->n_moe_layers;
        uint64_t want = 2 + (c->n_layers - n_moe) * cases[i].dense + n_moe * cases[i].moe;
        pair_rows(&p, &row, 0, 0, 1);
        uint64_t before = moe_gpu_launches(device->gpu);
        assert_ok(
            moe_forward(device->session, MOE_DECODE, &row, 1, 0, c->n_layers, NULL, NULL, &err),
            &err);
        assert_int_equal(moe_gpu_launches(device->gpu) - before, want);
        pair_close(&p);
    }
}

/* Steps over the positions of two chunks of attention, by recordings, by plain launches (as with a
 * timeline) and by the processor. */
static void recorded_steps(void **state)
{
    static const char *const fixtures[] = {DRAWN "/gpt-oss-b", DRAWN "/deepseek-v2-a"};
    enum { PROMPT = 252, STEPS = 8, CONTEXT = 512 };
    for (size_t i = 0; i < N_ITEMS(fixtures); i++) {
        struct pair p;
        struct moe_row rows[PROMPT + STEPS];
        struct moe_timeline timeline;
        open_pair(&p, fixtures[i], small, 8, CONTEXT, false);
        struct side *device = &p.sides[GPU];
        const struct gpu_residents *work = residents_of(&p);
        pair_rows(&p, rows, 0, 0, PROMPT + STEPS);
        for (uint32_t at = 0; at < PROMPT; at += MAX_ROWS)
            pair_forward(&p, rows + at, PROMPT - at < MAX_ROWS ? PROMPT - at : MAX_ROWS, 1,
                         "prompt");
        assert_int_equal(work->n_graphs, 0);
        for (uint32_t k = PROMPT; k < PROMPT + STEPS; k++)
            pair_forward(&p, rows + k, 1, 1, "recorded");
        assert_int_equal(work->n_graphs, 2);
        moe_timeline_init(&timeline);
        device->session->timeline = &timeline;
        for (uint32_t k = PROMPT; k < PROMPT + STEPS; k++)
            pair_forward(&p, rows + k, 1, 1, "plain");
        moe_buf_append(&timeline.events, "", 1);
        assert_non_null(strstr((char *)timeline.events.data, "layer 1 attention"));
        assert_non_null(strstr((char *)timeline.events.data, "layer 1 feed-forward"));
        device->session->timeline = NULL;
        moe_timeline_release(&timeline);
        for (uint32_t k = PROMPT + STEPS; k-- > PROMPT;) /* the later one first */
            pair_forward(&p, rows + k, 1, 1, "recorded before");
        assert_int_equal(work->n_graphs, 2);
        pair_close(&p);
    }
}

/* ---- States ---- */

/* Layers [0, 1), whose states go into [1, n), for a prompt and for a single row. */
static void states_in_the_middle(void **state)
{
    enum { N = 19 };
    for (int cached = 0; cached < 2; cached++) {
        struct pair p;
        struct moe_row rows[N + 1];
        struct moe_err err = {0};
        open_pair(&p, DRAWN "/qwen2-moe-a", small, 8, 64, cached);
        uint32_t hidden = p.sides[CPU].model->config.hidden,
                 n_layers = p.sides[CPU].model->config.n_layers;
        float *states[N_SIDES];
        for (int side = 0; side < N_SIDES; side++)
            states[side] = calloc(N, hidden * sizeof(float));
        assert_true(n_layers > 1 && states[CPU] && states[GPU]);
        pair_rows(&p, rows, 0, 0, N + 1);
        for (uint32_t pass = 0; pass < 2; pass++) {
            uint32_t n = pass ? 1 : N;
            enum moe_phase phase = pass ? MOE_DECODE : MOE_PREFILL;
            const struct moe_row *at = rows + pass * N;
            for (uint32_t first = 0; first < n_layers; first += n_layers - 1) {
                uint32_t end = first ? n_layers : n_layers - 1;
                for (int side = 0; side < N_SIDES; side++)
                    assert_ok(moe_forward(p.sides[side].session, phase, at, n, first, end,
                                          first ? states[side] : NULL, states[side], &err),
                              &err);
                same_rows(states[GPU], states[CPU], hidden, n, hidden, "states");
            }
            for (int side = 0; side < N_SIDES; side++)
                assert_ok(moe_logits(p.sides[side].session, 0, n, p.sides[side].logits, &err),
                          &err);
            same_rows(p.sides[GPU].logits, p.sides[CPU].logits,
                      moe_logits_stride(&p.sides[CPU].model->config), n,
                      p.sides[CPU].model->config.vocab, "their logits");
        }
        assert_int_equal(residents_of(&p)->n_graphs, 0);
        free(states[CPU]);
        free(states[GPU]);
        pair_close(&p);
    }
}

/* Experts of several layouts in one layer: nothing can be recorded, the host is asked. */
static void experts_of_several_layouts(void **state)
{
    enum { N = 9 };
    static const struct moe_bits some[] = {{4, 4}, {8, 8}, {4, 8}, {2, 2}};
    struct pair p = {.random = 3};
    struct moe_err err = {0};
    struct moe_model *model;
    struct moe_row rows[N + 2];
    struct moe_convert_report report;
    pair_pack(&p, DRAWN "/qwen3-moe-a", full, 32);
    assert_ok(moe_model_open_directory(&model, p.path, &err), &err);
    const struct moe_config *c = &model->config;
    struct moe_bits *bits = calloc((size_t)c->n_layers * c->n_experts, sizeof *bits);
    assert_non_null(bits);
    for (uint32_t i = 0; i < c->n_layers * c->n_experts; i++)
        if (c->layers[i / c->n_experts].moe)
            bits[i] = some[i % N_ITEMS(some)];
    const struct moe_expert_map map = {.name = "map",
                                       .source_fingerprint =
                                           moe_pack_source_fingerprint(model->pack),
                                       .n_layers = c->n_layers,
                                       .n_experts = c->n_experts,
                                       .bits = bits};
    const struct moe_convert_options options = {
        .experts = {{0, 0}},
        .n_experts = 1,
        .dense_bits = 8,
        .method = moe_quant_method_find("rtn"),
        .group = 64,
        .map = &map,
    };
    assert_ok(moe_convert_checkpoint(DRAWN "/qwen3-moe-a", p.path, &options, &report, &err), &err);
    moe_model_close(model);
    free(bits);
    pair_load(&p, gpu, 32);
    for (int cached = 0; cached < 2; cached++) {
        pair_experts(&p, cached);
        pair_sessions(&p, (struct moe_session_options){.context = 32, .batch = MAX_ROWS});
        pair_rows(&p, rows, 0, 0, N + 2);
        pair_forward(&p, rows, N, N, "prompt");
        pair_forward(&p, rows + N, 1, 1, "a token");
        pair_forward(&p, rows + N + 1, 1, 1, "another");
        assert_int_equal(residents_of(&p)->n_graphs, 0);
        pair_close_sessions(&p);
        pair_close_experts(&p);
    }
    pair_close(&p);
}

/* ---- Not numbers ---- */

static void spoil(struct side *s, const float *weight)
{
    struct moe_err err = {0};
    const float spoilt = NAN;
    moe_gpu_upload(s->gpu, MOE_GPU_COMPUTE, (void *)(uintptr_t)weight, &spoilt, sizeof spoilt);
    assert_ok(moe_gpu_finish(s->gpu, &err), &err);
}

/* Says so: where the host hears the router, in its layer, else with the logits. */
static void refuses(struct side *s, const struct moe_row *rows, uint32_t n, const char *words,
                    bool in_pass)
{
    struct moe_err err = {0};
    uint32_t token;
    int status = moe_forward(s->session, MOE_PREFILL, rows, n, 0, s->model->config.n_layers, NULL,
                             NULL, &err);
    assert_int_equal(status != MOE_OK, in_pass);
    if (in_pass) {
        assert_int_equal(status, MOE_ERR_FORMAT);
        assert_non_null(strstr(err.text, words));
        return;
    }
    assert_fails(moe_logits(s->session, n - 1, 1, s->logits, &err), MOE_ERR_FORMAT, words, &err);
    err = (struct moe_err){0};
    assert_fails(s->session->stages->greedy(s->session, n - 1, &token, &err), MOE_ERR_FORMAT, words,
                 &err);
}

static void weights_that_are_no_numbers(void **state)
{
    static const char router[] = "layer 1: the router's scores are not numbers";
    static const char logits[] = "the logits are not numbers (damaged weights?)";
    struct moe_row rows[6];
    for (int i = 0; i < 4; i++) {
        bool cached = i % 2;
        struct pair p;
        open_pair(&p, DRAWN "/mixtral-a", i < 2 ? full : small, i < 2 ? 32 : 8, 32, cached);
        struct side *s = &p.sides[GPU];
        pair_rows(&p, rows, 0, 0, 6);
        side_forward(s, rows, 6, 1);
        spoil(s, s->model->layers[1].ffn_norm);
        refuses(s, rows, 6, router, true); /* too many rows to do without the host */
        refuses(s, rows, 2, cached ? router : logits, cached);
        refuses(s, rows, 1, cached ? router : logits, cached);
        pair_close(&p);
    }
    struct pair p; /* after the last router */
    open_pair(&p, DRAWN "/mixtral-a", full, 32, 32, false);
    struct side *s = &p.sides[GPU];
    const struct moe_config *c = &s->model->config;
    pair_rows(&p, rows, 0, 0, 6);
    for (uint32_t e = 0; e < c->n_experts; e++)
        spoil(s, (const float *)moe_experts_resident_views(
                     s->experts)[(c->n_layers - 1) * c->n_experts + e]
                     .down.data);
    refuses(s, rows, 6, logits, false);
    refuses(s, rows, 1, logits, false);
    pair_close(&p);
}

/* ---- bf16 ---- */

/* Prompts by products in bf16 are counted, and as near the exact ones as eight bits of every factor
 * let expect: a twentieth of the largest logit at most. Single tokens stay exact, and so does the
 * next session. */
static void prompts_in_bf16(void **state)
{
    enum { N = 40 };
    struct pair p;
    struct moe_row rows[N];
    open_pair(&p, DRAWN "/qwen2-moe-a", full, 32, 64, false);
    const struct moe_config *c = &p.sides[CPU].model->config;
    pair_rows(&p, rows, 0, 0, N);
    uint64_t before = moe_gpu_bf16_rows(gpu);
    pair_forward(&p, rows, N, N, "exact");
    assert_int_equal(moe_gpu_bf16_rows(gpu), before);
    pair_close_sessions(&p);
    pair_sessions(&p,
                  (struct moe_session_options){.context = 64, .batch = MAX_ROWS, .gpu_bf16 = true});
    pair_forward(&p, rows, N, N, "exact, since matrices are small");
    assert_int_equal(moe_gpu_bf16_rows(gpu), before);
    moe_gpu_set_bf16_rule(gpu, 16, 0);
    for (struct side *s = p.sides; s < p.sides + N_SIDES; s++)
        side_forward(s, rows, N, 1);
    double worst = 0, largest = 0;
    for (uint32_t i = 0; i < c->vocab; i++) {
        worst = fmax(worst, fabs((double)p.sides[GPU].logits[i] - p.sides[CPU].logits[i]));
        largest = fmax(largest, fabs((double)p.sides[CPU].logits[i]));
    }
    print_message("# bf16 prompts: within %.2g of the largest logit\n", worst / largest);
    assert_true(worst > 0 && worst < 0.05 * largest);
    assert_true(moe_gpu_bf16_rows(gpu) >= before + N);
    before = moe_gpu_bf16_rows(gpu);
    pair_forward(&p, rows, 1, 1, "a token"); /* of position 0: nothing of the prompt is seen */
    assert_int_equal(moe_gpu_bf16_rows(gpu), before);
    moe_gpu_set_bf16_rule(gpu, MOE_GPU_BF16_ROWS, MOE_GPU_BF16_WORK);
    pair_close_sessions(&p);
    pair_sessions(&p, (struct moe_session_options){.context = 64, .batch = MAX_ROWS});
    pair_forward(&p, rows, N, N, "exact again");
    pair_close(&p);
}

/* A token takes nothing of memory that can be paged, and waits for no copy of an expert's. */
static void tokens_wait_for_themselves_alone(void **state)
{
    enum { BYTES = 1 << 20 };
    struct pair p;
    struct moe_row row;
    struct moe_gpu_info info;
    struct moe_err err = {0};
    struct moe_gpu_mark *mark;
    if (moe_gpu_describe(0, &info) != 0 || strncmp(info.name, "shim", 4) != 0)
        skip();
    open_pair(&p, DRAWN "/qwen3-moe-a", small, 8, 64, false);
    struct side *s = &p.sides[GPU];
    pair_rows(&p, &row, 0, 0, 1);
    uint8_t *host = moe_pages_alloc(BYTES, &err), *device = moe_gpu_alloc(gpu, BYTES, &err);
    assert_true(host && device);
    assert_ok(moe_gpu_pin(gpu, host, BYTES, &err), &err);
    assert_ok(moe_gpu_mark_open(&mark, gpu, false, &err), &err);
    setenv("MOE_SHIM_PINNED_ONLY", "1", 1);
    setenv("MOE_SHIM_COPY_RATE", "2000000", 1); /* half a second */
    moe_gpu_upload(gpu, MOE_GPU_COPY, device, host, BYTES);
    moe_gpu_mark_set(mark, MOE_GPU_COPY);
    side_forward(s, &row, 1, 1);
    greedy(s, 0);
    assert_false(moe_gpu_mark_passed(mark));
    unsetenv("MOE_SHIM_PINNED_ONLY");
    unsetenv("MOE_SHIM_COPY_RATE");
    moe_gpu_mark_close(mark);
    moe_gpu_unpin(gpu, host);
    moe_gpu_free(gpu, device, BYTES);
    moe_pages_free(host, BYTES);
    pair_close(&p);
}

/* Fewer bytes, other logits, and no context file, which says why. */
static void kinds_of_keys_and_values(void **state)
{
    static const char *const kinds[] = {"f32", "f16", "q8", "q4", "q8,q4"};
    enum { N = 20 };
    struct pair p;
    struct moe_row rows[N];
    struct moe_err err = {0};
    struct moe_kept kept;
    uint64_t bytes[N_ITEMS(kinds)];
    float *first = NULL;
    open_pair(&p, DRAWN "/qwen3-moe-a", small, 8, 64, false);
    const struct moe_config *c = &p.sides[CPU].model->config;
    pair_rows(&p, rows, 0, 0, N);
    for (size_t i = 0; i < N_ITEMS(kinds); i++) {
        pair_close_sessions(&p);
        pair_sessions(&p, (struct moe_session_options){
                              .context = 64,
                              .batch = MAX_ROWS,
                              .kv_kind = moe_kv_kind_find(kinds[i]),
                          });
        struct side *s = &p.sides[GPU];
        const struct gpu_work *work = s->session->device;
        bytes[i] = work->kv.bytes;
        pair_forward(&p, rows, N, 1, kinds[i]);
        if (i == 0) {
            first = malloc(c->vocab * sizeof *first);
            assert_non_null(first);
            memcpy(first, s->logits, c->vocab * sizeof *first);
        }
        assert_int_equal(memcmp(first, s->logits, c->vocab * sizeof *first) != 0, i > 0);
        assert_fails(moe_sequence_save(s->session, 0, N, &kept, &err), MOE_ERR_UNSUPPORTED,
                     "in the GPU's memory: take --device cpu", &err);
        err = (struct moe_err){0};
    }
    assert_int_equal(bytes[0], 2 * bytes[1]);
    assert_true(bytes[1] > bytes[2] && bytes[2] > bytes[4] && bytes[4] > bytes[3]);
    free(first);
    pair_close(&p);
}

/* A text that begins like one that was computed gets a copy of its block: what follows has the
 * logits that it has alone. */
static void a_text_that_begins_like_another(void **state)
{
    enum { PROMPT = 24, ALIKE = 20 };
    struct pair p = {.random = 3, .length = PROMPT};
    struct moe_row rows[PROMPT], other[PROMPT];
    uint32_t ids[PROMPT], n_known;
    struct moe_err err;
    pair_pack(&p, BUNDLED "/tiny-moe", small, 8);
    pair_load(&p, gpu, 48);
    pair_experts(&p, false);
    pair_sessions(&p,
                  (struct moe_session_options){.context = 48, .n_sequences = 3, .batch = MAX_ROWS});
    pair_rows(&p, rows, 0, 0, PROMPT);
    pair_forward(&p, rows, PROMPT, 1, "first text");
    pair_rows(&p, other, 1, 0, PROMPT);
    for (uint32_t i = 0; i < PROMPT; i++) {
        other[i].token = i < ALIKE ? rows[i].token : other[i].token ^ (other[i].token > 0);
        ids[i] = other[i].token;
    }
    other[ALIKE].token = ids[ALIKE] = rows[ALIKE].token ^ 1;
    for (struct side *s = p.sides; s < p.sides + N_SIDES; s++) {
        assert_ok(moe_sequence_sync(s->session, 1, ids, PROMPT, PROMPT, &n_known, &err), &err);
        assert_int_equal(n_known, ALIKE);
    }
    pair_forward(&p, other + ALIKE, PROMPT - ALIKE, 1, "the rest of another");
    uint32_t vocab = p.sides[CPU].model->config.vocab;
    float *got = malloc(vocab * sizeof *got);
    assert_non_null(got);
    memcpy(got, p.sides[GPU].logits, vocab * sizeof *got);
    for (uint32_t i = 0; i < PROMPT; i++)
        other[i].sequence = 2;
    pair_forward(&p, other, PROMPT, 1, "all of it");
    assert_memory_equal(got, p.sides[GPU].logits, vocab * sizeof *got);
    free(got);
    pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bundled_model),
        cmocka_unit_test(greedy_of_any_row),
        cmocka_unit_test(launches_of_a_token),
        cmocka_unit_test(without_recordings),
        cmocka_unit_test(recorded_steps),
        cmocka_unit_test(states_in_the_middle),
        cmocka_unit_test(experts_of_several_layouts),
        cmocka_unit_test(weights_that_are_no_numbers),
        cmocka_unit_test(prompts_in_bf16),
        cmocka_unit_test(tokens_wait_for_themselves_alone),
        cmocka_unit_test(kinds_of_keys_and_values),
        cmocka_unit_test(a_text_that_begins_like_another),
    };
    return cmocka_run_group_tests_name("engine", tests, open_gpu, close_gpu);
}
