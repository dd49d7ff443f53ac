/*
 * Every family that has a parity fixture, on a device: the same logits as the processor's, bit for
 * bit, for prompts in one batch, in odd batches, token by token, for several sequences at once,
 * with KV caches of both kinds, and with experts resident or behind a cache on the device.
 */
#include "engine_fixture.h"

enum { PROMPT = 21, CONTEXT = 128 };

struct family_case {
    const char *fixture;  /* directory in tests/fixtures */
    struct moe_bits bits; /* of experts */
    int dense;
    uint32_t context; /* 0: CONTEXT */
};

/* All at once, where experts are resident; again in odd batches; then token by token. */
static void check_one_sequence(struct pair *p, bool cached)
{
    static const uint32_t batches[] = {1, 2, 7, 4, 5, 2};
    struct moe_row rows[PROMPT];
    pair_rows(p, rows, 0, 0, PROMPT);
    if (!cached)
        pair_forward(p, rows, PROMPT, PROMPT, "one batch");
    for (uint32_t at = 0, i = 0, n; at < PROMPT; at += n, i++) {
        n = batches[i % N_ITEMS(batches)];
        n = n < PROMPT - at ? n : PROMPT - at;
        pair_forward(p, rows + at, n, n, "odd batches");
    }
    for (uint32_t i = 0; i < 3; i++) {
        pair_rows(p, rows, 0, PROMPT + i, 1);
        pair_forward(p, rows, 1, 1, "token by token");
    }
}

/* What a draft in vain has changed is taken back; then another sequence goes on from there. */
static void check_copies(struct pair *p)
{
    struct moe_err err = {0};
    const uint32_t at = PROMPT + 3;
    struct moe_row rows[2];
    for (struct side *s = p->sides; s < p->sides + N_SIDES; s++)
        moe_sequence_keep(s->session, 0);
    pair_rows(p, rows, 0, at, 2);
    pair_forward(p, rows, 2, 2, "a draft");
    for (struct side *s = p->sides; s < p->sides + N_SIDES; s++)
        assert_int_equal(moe_sequence_rewind(s->session, 0, at), at);
    pair_rows(p, rows, 0, at, 1);
    pair_forward(p, rows, 1, 1, "after a draft in vain");
    for (struct side *s = p->sides; s < p->sides + N_SIDES; s++)
        assert_ok(moe_sequence_fork(s->session, 0, 1, at + 1, &err), &err);
    pair_rows(p, rows, 1, at + 1, 1);
    pair_rows(p, rows + 1, 0, at + 1, 1);
    pair_forward(p, rows, 2, 2, "a text that went on twice");
    /* Another text begins at a snapshot. */
    for (struct side *s = p->sides; s < p->sides + N_SIDES && s->session->state_ends; s++) {
        const struct moe_kv_pool *pool = &s->session->kv_pool;
        uint32_t ids[PROMPT + 8] = {0}, n = 0;
        memcpy(ids, pool->ids + (uint64_t)pool->table[0] * pool->block_positions,
               (at + 2) * sizeof *ids);
        moe_sequence_snapshot(s->session, 0, true);
        moe_sequence_rewind(s->session, 1, 0);
        assert_ok(moe_sequence_sync(s->session, 1, ids, at + 3, at + 3, &n, &err), &err);
        assert_int_equal(n, at + 2);
    }
    if (p->sides[0].session->state_ends) {
        pair_rows(p, rows, 1, at + 2, 1);
        pair_forward(p, rows, 1, 1, "after a snapshot");
    }
}

/* Two prompts of different lengths in one batch, their rows mixed, then a token of each. */
static void check_two_sequences(struct pair *p)
{
    enum { FIRST = 11, SECOND = 6 };
    struct moe_row rows[FIRST + SECOND], first[FIRST], second[SECOND];
    uint32_t a = 0, b = 0;
    pair_rows(p, first, 0, 0, FIRST);
    pair_rows(p, second, 1, 0, SECOND);
    for (uint32_t i = 0; i < FIRST + SECOND; i++)
        rows[i] = b < SECOND && i % 2 ? second[b++] : a < FIRST ? first[a++] : second[b++];
    pair_forward(p, rows, FIRST + SECOND, FIRST + SECOND, "two prompts");
    for (uint32_t i = 0; i < 3; i++) {
        pair_rows(p, rows, 1, SECOND + i, 1);
        pair_rows(p, rows + 1, 0, FIRST + i, 1);
        pair_forward(p, rows, 2, 2, "two tokens");
    }
}

static void device_equals_processor(void **state)
{
    const struct family_case *c = *state;
    struct pair p = {.random = 5, .length = c->context};
    char path[128];
    uint32_t context = c->context ? c->context : CONTEXT;
    snprintf(path, sizeof path, DRAWN "/%s", c->fixture);
    pair_pack(&p, path, c->bits, c->dense);
    pair_load(&p, gpu, context);
    bool has_experts = p.sides[CPU].model->config.n_experts > 0;
    for (int cached = 0; cached < 1 + has_experts; cached++) {
        pair_experts(&p, cached);
        for (int f16 = 0; f16 < 2 - cached; f16++) {
            const struct moe_session_options options = {
                .context = context,
                .n_sequences = 2,
                .batch = MAX_ROWS,
                .kv_kind = f16 ? MOE_LAYOUT_F16 : MOE_LAYOUT_F32,
                .takes_back = true,
                .n_snapshots = 2,
                .gpu = gpu,
            };
            uint64_t before = moe_gpu_allocated_bytes(gpu);
            pair_sessions(&p, options);
            /* What plans book, recurrent states included, is what is taken. */
            assert_int_equal(moe_gpu_allocated_bytes(gpu) - before,
                             moe_session_gpu_bytes(&p.sides[GPU].model->config, &options));
            if (!f16) {
                check_one_sequence(&p, cached);
                check_copies(&p);
            } else {
                check_two_sequences(&p);
            }
            const struct moe_stats *on[N_SIDES] = {&p.sides[CPU].session->stats,
                                                   &p.sides[GPU].session->stats};
            assert_int_equal(on[GPU]->prefill.experts.activations,
                             on[CPU]->prefill.experts.activations);
            assert_int_equal(on[GPU]->decode.experts.activations,
                             on[CPU]->decode.experts.activations);
            pair_close_sessions(&p);
        }
        pair_close_experts(&p);
    }
    assert_true(p.n_compared > 60);
    pair_close(&p);
}

/* At full precision, or as quantized as a pack is by default; experts of gpt-oss-b stay the MXFP4
 * that they are. */
/* clang-format off */
#define FULL(name) {name, {32, 32}, 32, 0}
#define SMALL(name) {name, {4, 4}, 8, 0}
/* clang-format on */
static struct family_case cases[] = {
    FULL("qwen2-moe-c"),
    SMALL("qwen3-moe-a"),
    FULL("mixtral-a"),
    SMALL("olmoe-a"),
    SMALL("deepseek"),
    FULL("deepseek-v2-a"),
    SMALL("deepseek-v2-a"),
    FULL("deepseek-v2-b"),
    SMALL("deepseek-v2-b"),
    FULL("phimoe-short"),
    {"phimoe-long", {32, 32}, 32, 300},
    FULL("phimoe-mixer"),
    SMALL("phimoe-mixer"),
    SMALL("granitemoe"),
    SMALL("ernie4.5-moe-a"),
    FULL("gpt-oss-a"),
    SMALL("gpt-oss-a"),
    SMALL("gpt-oss-b"),
    SMALL("minicpm"),
    FULL("llama"),
    SMALL("qwen2"),
    SMALL("qwen3"),
    FULL("ministral3"),
    SMALL("ministral3"),
    FULL("qwen2-moe-b"),
    SMALL("qwen3-moe-b"),
    FULL("mixtral-b"),
    /* Recurrent states. */
    FULL("qwen3-next-a"),
    SMALL("qwen3-next-b"),
    SMALL("qwen3.5-moe"),
    SMALL("qwen3.5-moe/model.gguf"),
    FULL("lfm2-moe-a"),
    SMALL("lfm2-moe-b"),
    SMALL("granite4-a"),
    FULL("granite4-b"),
    SMALL("granite4-dense"),
    FULL("kimi-linear-a"),
    SMALL("kimi-linear-b"),
    SMALL("jamba-a"),
    FULL("jamba-b"),
    FULL("nemotron-h-a"),
    SMALL("nemotron-h-b"),
    /* Every layout that experts have. */
    {"qwen2-moe-a", {16, 16}, 16, 0},
    {"qwen2-moe-a", {8, 8}, 4, 0},
    {"mixtral-a", {3, 3}, 3, 0},
    {"mixtral-a", {2, 2}, 2, 0},
    {"qwen2-moe-a", {4, 8}, 8, 0},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

/* Sanitizers take six times as long: every third case. */
enum { STEP = SANITIZED ? 3 : 1 };

int main(void)
{
    struct CMUnitTest tests[N_CASES];
    char names[N_CASES][64];
    size_t n = 0;
    for (int i = 0; i < N_CASES; i += STEP) {
        snprintf(names[i], sizeof names[i], "%s, experts %dd%d, dense %d", cases[i].fixture,
                 cases[i].bits.gate_up, cases[i].bits.down, cases[i].dense);
        tests[n++] = (struct CMUnitTest){
            .name = names[i], .test_func = device_equals_processor, .initial_state = &cases[i]};
    }
    return _cmocka_run_group_tests("families on a device", tests, n, open_gpu, close_gpu);
}
