/*
 * Model families against their public implementations: the parity fixtures in tests/fixtures, from
 * Hugging Face directories and from GGUF, at full precision (32 bits), prompts and single tokens
 * alike, experts resident and behind a cache of a few slots.
 */
#include <jansson.h>
#include <math.h>

#include "model_fixture.h"

enum { MAX_POSITIONS = 256 };

/* Under sanitizers the longest prompt does, which goes through all of a layer's chunks and windows,
 * and the cached way, which is more code. */
enum { FEW = 8 };

struct family_case {
    const char *fixture; /* directory in tests/fixtures */
    const char *file;    /* in it: "" the directory itself, "/model.gguf" */
};

struct family_fixture {
    struct fixture run;
    json_t *reference;
    /* The prompt being compared. */
    const json_t *experts; /* [MoE layer][position]; NULL: not compared */
    uint32_t length;       /* of the text that the prompt is said to be a part of */
    uint32_t n_compared;
    double worst_logit, worst_weight; /* relative to the largest; absolute */
};

static void convert(struct family_fixture *f, const struct family_case *c)
{
    char path[300];
    json_error_t error;
    *f = (struct family_fixture){0};
    snprintf(path, sizeof path, DRAWN "/%s%s", c->fixture, c->file);
    snprintf(f->run.path, sizeof f->run.path, "/tmp/moe-family-%d.moe", (int)getpid());
    const struct moe_convert_options options = pack_options("32", 32);
    make_pack(f->run.path, path, &options);
    snprintf(path, sizeof path, DRAWN "/%s/reference.json", c->fixture);
    f->reference = json_load_file(path, 0, &error);
    assert_non_null(f->reference);
    f->length = (uint32_t)json_integer_value(json_object_get(f->reference, "context"));
}

/* With so many slots. */
static void open_cached(struct family_fixture *f, uint32_t n_slots)
{
    struct moe_err err = {0};
    const struct moe_pack *pack = f->run.model->pack;
    const struct moe_cache_options cache = {
        .config = &f->run.model->config,
        .cache_bytes = n_slots * moe_cache_slot_bytes(pack, 0),
        .n_working = 2,
        .loader = {.verify = true},
    };
    assert_ok(moe_experts_open_cached(&f->run.experts, pack, f->run.model->config.top_k, &cache,
                                      NULL, &err),
              &err);
}

static void check_experts(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                          const float *gate_input, uint64_t hidden_stride,
                          const float *probabilities, uint64_t router_stride,
                          const uint32_t *chosen, const float *weights)
{
    struct family_fixture *f = ctx;
    const struct moe_config *c = &f->run.model->config;
    uint32_t moe_layer = 0;
    for (uint32_t i = 0; i < layer; i++)
        moe_layer += c->layers[i].moe;
    for (uint32_t i = 0; f->experts && i < n_rows; i++) {
        const json_t *want =
            json_array_get(json_array_get(f->experts, moe_layer), rows[i].position);
        assert_int_equal(json_array_size(want), c->top_k);
        for (uint32_t k = 0; k < c->top_k; k++) {
            const json_t *pair = json_array_get(want, k);
            assert_int_equal(chosen[i * c->top_k + k], json_integer_value(json_array_get(pair, 0)));
            double weight = json_number_value(json_array_get(pair, 1));
            f->worst_weight =
                fmax(f->worst_weight, fabs((double)weights[i * c->top_k + k] - weight));
            f->n_compared++;
        }
    }
}

/* Computes ids[first..n) in one pass; logits of the last. */
static void forward(struct family_fixture *f, const uint32_t *ids, uint32_t first, uint32_t n,
                    float *logits)
{
    struct moe_err err = {0};
    struct moe_row rows[MAX_POSITIONS];
    for (uint32_t i = first; i < n; i++)
        rows[i - first] = (struct moe_row){0, i, ids[i], f->length};
    assert_ok(moe_forward(f->run.session, MOE_PREFILL, rows, n - first, 0,
                          f->run.model->config.n_layers, NULL, NULL, &err),
              &err);
    assert_ok(moe_logits(f->run.session, n - first - 1, 1, logits, &err), &err);
}

static void compare_logits(struct family_fixture *f, const float *got, const json_t *want)
{
    uint32_t vocab = f->run.model->config.vocab;
    double worst = 0, largest = 0;
    assert_int_equal(json_array_size(want), vocab);
    for (uint32_t i = 0; i < vocab; i++) {
        double w = json_number_value(json_array_get(want, i));
        largest = fmax(largest, fabs(w));
        worst = fmax(worst, fabs((double)got[i] - w));
    }
    assert_true(largest > 0.1);
    f->worst_logit = fmax(f->worst_logit, worst / largest);
}

/* n_greedy: of the tokens that follow in the reference, how many are compared. */
static void check_prompt(struct family_fixture *f, const json_t *prompt, size_t n_greedy)
{
    const struct moe_config *c = &f->run.model->config;
    const json_t *id_list = json_object_get(prompt, "ids");
    const json_t *greedy = json_object_get(prompt, "greedy");
    uint32_t ids[MAX_POSITIONS], n = (uint32_t)json_array_size(id_list);
    float *logits = calloc(moe_logits_stride(c), sizeof *logits);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(id_list, i));
    f->experts = json_object_get(prompt, "experts");
    for (uint32_t i = 0; i < n; i++) /* a token at a time, then all at once */
        forward(f, ids, i, i + 1, logits);
    compare_logits(f, logits, json_object_get(prompt, "logits"));
    forward(f, ids, 0, n, logits);
    compare_logits(f, logits, json_object_get(prompt, "logits"));
    f->experts = NULL;
    for (size_t k = 0; k < n_greedy && k < json_array_size(greedy); k++) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < c->vocab; i++)
            best = logits[i] > logits[best] ? i : best;
        assert_int_equal(best, json_integer_value(json_array_get(greedy, k)));
        ids[n++] = best;
        forward(f, ids, n - 1, n, logits);
    }
    free(logits);
}

/* Positions that sessions have room for. */
static uint32_t context_of(const struct family_fixture *f)
{
    return f->length ? f->length : MAX_POSITIONS;
}

/* Opens a session over f->run.experts, compares every prompt, closes both. */
static void check_prompts(struct family_fixture *f, const struct family_case *c, const char *how,
                          size_t n_greedy)
{
    struct moe_err err = {0};
    const struct moe_session_options options = {.context = context_of(f)};
    const json_t *prompts = json_object_get(f->reference, "prompts");
    size_t first = SANITIZED ? json_array_size(prompts) - 1 : 0;
    assert_ok(moe_session_open(&f->run.session, f->run.model, f->run.experts, &options, &err),
              &err);
    f->run.session->observer.ctx = f;
    f->run.session->observer.routed = check_experts;
    f->worst_logit = f->worst_weight = f->n_compared = 0;
    for (size_t i = first; i < json_array_size(prompts); i++)
        check_prompt(f, json_array_get(prompts, i), n_greedy);
    print_message("# %s%s, %s: logits within %.2g of the largest, %u experts, weights within "
                  "%.2g\n",
                  c->fixture, c->file, how, f->worst_logit, f->n_compared, f->worst_weight);
    assert_true(f->worst_logit < 1e-3);
    assert_true(f->worst_weight < 1e-4);
    assert_true(f->n_compared > 100 || f->run.model->config.n_experts == 0);
    moe_session_close(f->run.session);
    moe_experts_close(f->run.experts);
    f->run.session = NULL;
    f->run.experts = NULL;
}

/* Where layers are visited several times and all experts have room, each is loaded once, and every
 * visit is counted. */
static void check_loads(struct family_fixture *f)
{
    enum { N = 40 };
    const struct moe_config *c = &f->run.model->config;
    const struct moe_session_options options = {.context = N};
    const uint32_t n_owners = moe_loop_owners(&c->loop, c->n_layers);
    float *logits = calloc(moe_logits_stride(c), sizeof *logits);
    uint32_t ids[N];
    struct moe_err err = {0};
    open_cached(f, n_owners * c->n_experts);
    assert_ok(moe_session_open(&f->run.session, f->run.model, f->run.experts, &options, &err),
              &err);
    for (uint32_t i = 0; i < N; i++) {
        ids[i] = i * 31 % 250;
        forward(f, ids, i, i + 1, logits);
    }
    const struct moe_counts n = moe_stats_all(&f->run.session->stats).experts;
    assert_int_equal(n.activations, N * c->n_layers * c->top_k);
    assert_true(n.loads > n_owners * c->top_k && n.loads <= n_owners * c->n_experts);
    assert_int_equal(n.evictions, 0);
    free(logits);
    moe_session_close(f->run.session);
    moe_experts_close(f->run.experts);
    f->run.session = NULL;
    f->run.experts = NULL;
}

static void fixture_equals_its_reference(void **state)
{
    const struct family_case *c = *state;
    struct family_fixture f;
    struct moe_err err = {0};
    convert(&f, c);
    assert_ok(moe_model_open(&f.run.model, f.run.path, context_of(&f), NULL, &err), &err);
    assert_ok(moe_experts_open_resident(&f.run.experts, f.run.model->pack, 0, NULL, NULL, &err),
              &err);
    bool dense = f.run.model->config.n_experts == 0;
    if (!SANITIZED || dense)
        check_prompts(&f, c, "resident", SANITIZED ? FEW : SIZE_MAX);
    else
        moe_experts_close(f.run.experts);
    if (!dense) { /* the prompts came a token at a time as well; most of what is asked for is not
                     there */
        open_cached(&f, 2);
        check_prompts(&f, c, "offloaded", FEW);
    }
    if (f.run.model->config.loop.n)
        check_loads(&f);
    json_decref(f.reference);
    fixture_close(&f.run);
}

#define HF(name)                                                                                   \
    {                                                                                              \
        name, ""                                                                                   \
    }
#define GGUF(name)                                                                                 \
    {                                                                                              \
        name, "/model.gguf"                                                                        \
    }
static struct family_case cases[] = {
    HF("qwen2-moe-c"),
    GGUF("qwen2-moe-c"),
    HF("qwen3-moe-a"),
    GGUF("qwen3-moe-a"),
    HF("mixtral-a"),
    GGUF("mixtral-a"),
    HF("olmoe-a"),
    GGUF("olmoe-a"),
    HF("deepseek"),
    GGUF("deepseek"),
    HF("deepseek-v2-a"),
    GGUF("deepseek-v2-a"),
    HF("deepseek-v2-b"),
    GGUF("deepseek-v2-b"),
    HF("phimoe-short"),
    GGUF("phimoe-short"),
    HF("phimoe-long"),
    GGUF("phimoe-long"),
    HF("minicpm"),
    GGUF("minicpm"),
    HF("granitemoe"),
    GGUF("granitemoe"),
    HF("gpt-oss-a"),
    GGUF("gpt-oss-a"),
    HF("gpt-oss-b"),
    GGUF("gpt-oss-b"),
    HF("llama"),
    GGUF("llama"),
    HF("ministral3"),
    GGUF("ministral3"),
    HF("qwen2"),
    GGUF("qwen2"),
    HF("qwen3"),
    GGUF("qwen3"),
    HF("qwen2-moe-a"),
    HF("qwen2-moe-b"),
    HF("qwen3-moe-b"),
    HF("mixtral-b"),
    HF("olmoe-b"),
    HF("deepseek-v2-c"),
    HF("phimoe-mixer"),
    HF("qwen3-next-a"),
    GGUF("qwen3-next-a"),
    HF("qwen3-next-b"),
    HF("deepseek-v3-a"),
    GGUF("deepseek-v3-a"),
    HF("deepseek-v3-b"),
    GGUF("deepseek-v3-b"),
    HF("deepseek-v3-c"),
    HF("fp8-blocks"),
    HF("fp8-rows"),
    HF("int4-groups"),
    HF("kimi-k2.5"),
    HF("kimi-k2.5-b"),
    HF("glm4-moe-a"),
    GGUF("glm4-moe-a"),
    HF("glm4-moe-b"),
    HF("dots1-a"),
    GGUF("dots1-a"),
    HF("dots1-b"),
    HF("minimax-m2"),
    GGUF("minimax-m2"),
    HF("minimax-m3"),
    GGUF("minimax-m3"),
    HF("minimax-m3-b"),
    GGUF("minimax-m3-b"),
    HF("minimax-m3-c"),
    HF("deepseek-v32-a"),
    GGUF("deepseek-v32-a"),
    HF("deepseek-v32-b"),
    HF("glm5-a"),
    GGUF("glm5-a"),
    HF("glm5-b"),
    GGUF("glm5-b"),
    HF("glm4-moe-lite"),
    GGUF("glm4-moe-lite"),
    HF("qwen3.5-moe"),
    HF("qwen3.5-moe-b"),
    GGUF("qwen3.5-moe"),
    HF("qwen4-a"),
    GGUF("qwen4-a"),
    HF("qwen4-b"),
    HF("qwen4-c"),
    GGUF("qwen4-c"),
    HF("granitemoe-shared"),
    GGUF("granitemoe-shared"),
    HF("phimoe-tiny"),
    HF("qwen3-vl-moe"),
    HF("qwen3-vl-moe-b"),
    GGUF("qwen3-vl-moe"),
    HF("flex-olmo-a"),
    HF("flex-olmo-b"),
    HF("hunyuan-a"),
    GGUF("hunyuan-a"),
    HF("hunyuan-b"),
    HF("ernie4.5-moe-a"),
    GGUF("ernie4.5-moe-a"),
    HF("ernie4.5-moe-b"),
    GGUF("ernie4.5-moe-b"),
    HF("lfm2-moe-a"),
    GGUF("lfm2-moe-a"),
    HF("lfm2-moe-b"),
    HF("granite4-a"),
    GGUF("granite4-a"),
    HF("granite4-b"),
    GGUF("granite4-b"),
    HF("granite4-dense"),
    GGUF("granite4-dense"),
    HF("nemotron-h-a"),
    HF("nemotron-h-b"),
    GGUF("nemotron-h-b"),
    HF("nemotron-h-super"),
    GGUF("nemotron-h-super"),
    HF("kimi-linear-a"),
    GGUF("kimi-linear-a"),
    HF("kimi-linear-b"),
    HF("jamba-a"),
    GGUF("jamba-a"),
    HF("jamba-b"),
    HF("gemma4-dense"),
    GGUF("gemma4-dense"),
    HF("gemma4-a"),
    GGUF("gemma4-a"),
    HF("gemma4-b"),
    HF("gemma4-e-a"),
    GGUF("gemma4-e-a"),
    HF("gemma4-e-b"),
    HF("llama4-a"),
    HF("llama4-b"),
    HF("llama4-gguf"),
    GGUF("llama4-gguf"),
    HF("ling2-a"),
    GGUF("ling2-a"),
    HF("ling2-b"),
    HF("solar-open-a"),
    GGUF("solar-open-a"),
    HF("solar-open-b"),
    HF("hy3-a"),
    GGUF("hy3-a"),
    HF("hy3-b"),
    HF("exaone-moe-a"),
    GGUF("exaone-moe-a"),
    HF("exaone-moe-b"),
    HF("afmoe-a"),
    GGUF("afmoe-a"),
    HF("afmoe-b"),
    HF("cohere2-moe-a"),
    HF("cohere2-moe-b"),
    HF("cohere2-moe-gguf"),
    GGUF("cohere2-moe-gguf"),
    HF("deepseek-v4-a"),
    GGUF("deepseek-v4-a"),
    HF("deepseek-v4-b"),
    HF("smallthinker-a"),
    GGUF("smallthinker-a"),
    HF("smallthinker-b"),
    HF("qwen3-omni-moe"),
    HF("flint-a"),
    HF("flint-b"),
    HF("dbrx-a"),
    GGUF("dbrx-a"),
    HF("aria-a"),
    HF("aria-b"),
    HF("deepseek-ocr2"),
    GGUF("deepseek-ocr2"),
    HF("axk1"),
    HF("longcat"),
    HF("lara"),
    HF("zaya-a"),
    HF("zaya-b"),
    HF("beam-a"),
    HF("beam-b"),
    HF("jetmoe-a"),
    HF("jetmoe-b"),
    HF("muse-spark-a"),
    HF("muse-spark-b"),
    HF("inkling-a"),
    HF("inkling-b"),
    HF("inkling2-a"),
    HF("inkling2-b"),
    HF("inkling2-loop-a"),
    HF("inkling2-loop-b"),
    HF("kolibri-a"),
    HF("kolibri-b"),
    HF("ernie4.5-vl-moe-a"),
    HF("ernie4.5-vl-moe-b"),
    HF("hy4-a"),
    GGUF("hy4-a"),
    HF("hy4-b"),
    HF("hy4-vl-a"),
    HF("hy4-vl-b"),
    HF("sarvam-mla"),
    HF("sarvam-moe-a"),
    HF("sarvam-moe-b"),
    HF("glm4v-moe"),
    GGUF("glm4v-moe"),
    HF("ling1-a"),
    GGUF("ling1-a"),
    HF("ling1-b"),
    HF("granitemoe-swa-a"),
    GGUF("granitemoe-swa-a"),
    HF("granitemoe-swa-b"),
    HF("granite-swa"),
    GGUF("granite-swa"),
    HF("minimax-01-a"),
    GGUF("minimax-01-a"),
    GGUF("smallthinker-b"),
    HF("grovemoe"),
    GGUF("grovemoe"),
    HF("maple"),
    GGUF("maple"),
    HF("arctic"),
    GGUF("arctic"),
    HF("grok-a"),
    GGUF("grok-a"),
    HF("grok-b"),
    GGUF("grok-b"),
    HF("kimi-k3"),
    GGUF("kimi-k3"),
    HF("glm5.3"),
    GGUF("glm5.3"),
    HF("axk2-a"),
    HF("axk2-b"),
    HF("mellum-a"),
    GGUF("mellum-a"),
    HF("mellum-b"),
    HF("mistral4-a"),
    GGUF("mistral4-a"),
    HF("mistral4-b"),
    HF("dots3-note-a"),
    HF("dots3-note-b"),
    HF("dots3-note-c"),
    GGUF("dots3-note-c"),
    HF("mistral-large4-a"),
    HF("mistral-large4-b"),
    HF("laguna-a"),
    GGUF("laguna-a"),
    HF("laguna-b"),
    HF("mimo-v2-a"),
    GGUF("mimo-v2-a"),
    HF("mimo-v2-b"),
    HF("step3.5-a"),
    GGUF("step3.5-a"),
    HF("step3.5-b"),
    HF("ling3-a"),
    GGUF("ling3-a"),
    HF("ling3-b"),
    HF("olmo2"),
    GGUF("olmo2"),
    HF("phi3"),
    GGUF("phi3"),
    HF("granite"),
    GGUF("granite"),
    HF("glm4"),
    GGUF("glm4"),
    HF("ernie4.5"),
    GGUF("ernie4.5"),
    HF("seed-oss"),
    GGUF("seed-oss"),
    HF("cohere"),
    GGUF("cohere"),
    HF("smollm3"),
    GGUF("smollm3"),
    HF("exaone4"),
    GGUF("exaone4"),
    HF("cohere2"),
    GGUF("cohere2"),
    HF("gemma2"),
    GGUF("gemma2"),
    HF("gemma3-a"),
    GGUF("gemma3-a"),
    HF("gemma3-b"),
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

int main(void)
{
    struct CMUnitTest tests[N_CASES];
    char names[N_CASES][64];
    struct moe_err err = {0};
    for (int i = 0; i < N_CASES; i++) {
        snprintf(names[i], sizeof names[i], "%s%s equals its reference", cases[i].fixture,
                 cases[i].file);
        tests[i] = (struct CMUnitTest){.name = names[i],
                                       .test_func = fixture_equals_its_reference,
                                       .initial_state = &cases[i]};
    }
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    return cmocka_run_group_tests_name("families", tests, NULL, NULL);
}
