/* Plans for the tests of their file and the fuzzer's seeds. */
#ifndef TESTS_PLAN_FIXTURE_H
#define TESTS_PLAN_FIXTURE_H

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "plan/plan.h"

static inline struct moe_plan *new_plan(uint32_t n_layers, uint32_t n_experts, uint32_t top_k,
                                        const char *row)
{
    struct moe_err err;
    struct moe_plan *p;
    if (moe_plan_new(&p, n_layers, n_experts, top_k, &err) != MOE_OK ||
        !moe_strategy_find(row, &p->strategy) || moe_strategy_settle(&p->strategy, &err) != MOE_OK)
        abort();
    moe_strategy_fit(&p->strategy, n_layers, NULL);
    return p;
}

static inline uint32_t *copy_u32s(const uint32_t *values, uint32_t n)
{
    struct moe_err err;
    uint32_t *copy = moe_alloc(n, sizeof *copy, &err);
    if (!copy)
        abort();
    if (n)
        memcpy(copy, values, n * sizeof *copy);
    return copy;
}

static inline void fill_pace(struct moe_plan *p)
{
    static const struct moe_line line = {3, {1, 8.5, 64}, {1.0 / 3, 0.5, 7e-300}};
    strcpy(p->variants[0], "4d8");
    strcpy(p->variants[1], "2");
    p->pace.n_variants = 2;
    p->pace.experts[0] = line;
    for (int i = 0; i < MOE_N_PIECES; i++) {
        p->pace.pieces[i] = line;
        p->pace.pieces[i].y[0] = 0.25 * i;
    }
    p->pace.head = 1.1e-3;
    p->pace.predict = 2.2e-5;
    p->pace.load_rate = 1234567890.125;
    p->pace.host_slowdown = 3.7;
    p->pace.attend = 1.5e-8;
    p->pace.positions = 64;
    p->pace.joint = 6.5e-6;
    p->pace.storage_rate = 3.25e9;
    p->pace.storage_piece_seconds = 8e-5;
    p->pace.loads =
        (struct moe_link_costs){3.5e-6, 9e-5, 1e-5, 7.5e-11, 1.25, 4e-5, 2e-4, 1.5, 16, 4};
}

static inline void fill_outlook(struct moe_plan *p)
{
    struct moe_err err;
    p->n_memory_steps = 3;
    p->n_rate_steps = 2;
    for (uint32_t i = 0; i < 3; i++)
        p->memory_steps[i] = (struct moe_plan_step){(double)(UINT64_C(1) << (30 + i)),
                                                    10.0 + i / 3.0, 0.5 + i / 7.0};
    p->rate_steps[0] = (struct moe_plan_step){5e8, 9.5, 0.5};
    p->rate_steps[1] = (struct moe_plan_step){1e9, 12, -1};
    p->n_tried = 2;
    p->tried = moe_alloc(2, sizeof *p->tried, &err);
    if (!p->tried)
        abort();
    p->tried[0] = (struct moe_plan_tried){"fate+cache=lrfu", 11.5, 0.6};
    p->tried[1] = (struct moe_plan_tried){"lru", 9.25, 0.55};
}

static inline void fill_alternatives(struct moe_plan *p)
{
    p->n_alternatives = 3;
    p->alternatives[0] = (struct moe_plan_alternative){.what = MOE_ALTERNATIVE_MEMORY,
                                                       .amount = 200000,
                                                       .times = 2,
                                                       .strategy = "resident",
                                                       .decode_tokens_per_second = 17.25,
                                                       .prefill_tokens_per_second = 130,
                                                       .hit_rate = 1,
                                                       .bytes_per_token = 0};
    p->alternatives[1] = (struct moe_plan_alternative){.what = MOE_ALTERNATIVE_EXPERTS,
                                                       .amount = 1536,
                                                       .times = 0.375,
                                                       .precision = "3",
                                                       .decode_tokens_per_second = 14.5,
                                                       .prefill_tokens_per_second = 125,
                                                       .hit_rate = 0.8,
                                                       .bytes_per_token = 2048,
                                                       .loss_tokens = 999,
                                                       .loss_percent = -0.25,
                                                       .loss_error = 0.125};
    p->alternatives[2] = (struct moe_plan_alternative){.what = MOE_ALTERNATIVE_BATCH,
                                                       .amount = 128,
                                                       .times = 2,
                                                       .decode_tokens_per_second = -1,
                                                       .prefill_tokens_per_second = -1,
                                                       .hit_rate = -1,
                                                       .bytes_per_token = -1};
    p->n_doubts = 2;
    p->doubts[0] = (struct moe_plan_doubt){MOE_ASSUME_NOMINAL, 0.3, 9.5};
    p->doubts[1] = (struct moe_plan_doubt){MOE_ASSUME_ALIKE, 0.03, 11};
}

/* Every member has a value. */
static inline struct moe_plan *full_plan(void)
{
    static const uint32_t slots[] = {3, 2, 1}, contents[] = {7, 2, 0, 9, 4, 1};
    struct moe_plan *p = new_plan(3, 4, 2, "fate");
    strcpy(p->pack, "a \"pack\": caf\xc3\xa9.moe");
    p->pack_fingerprint = 0x0123456789abcdef;
    p->memory = (struct moe_plan_memory){100000, 10000, 20000, 3000,  4000, 50000, 700,
                                         300,    41000, 24576, 49152, 512,  64};
    p->host = (struct moe_plan_memory){.total = 90000,
                                       .program = 1000,
                                       .dense = 2000,
                                       .kv = 3,
                                       .work = 4000,
                                       .experts = 5000,
                                       .floor = 9000};
    strcpy(p->high, "4d8");
    strcpy(p->low, "2");
    p->n_pools = 2;
    p->pools[0] = (struct moe_plan_pool){4096, 6, 2, copy_u32s(slots, 3)};
    p->pools[1] = (struct moe_plan_pool){2048, 3, 1, NULL};
    p->n_contents = 6;
    p->contents = copy_u32s(contents, 6);
    p->layer_seconds = 0.01;
    p->load_seconds = 0.003;
    p->slack_loads = 3;
    p->boundary_accuracy = 1;
    p->boundary_stall = 2;
    fill_pace(p);
    p->evidence = (struct moe_plan_evidence){.trace = "tiny.trace",
                                             .trace_sequences = 12,
                                             .trace_tokens = 3456,
                                             .trace_prompt_tokens = 789,
                                             .statistics = "tiny.stats.yaml",
                                             .statistics_tokens = 5678,
                                             .device = "box",
                                             .times_measured = true,
                                             .times_stated = true,
                                             .link_stated = true,
                                             .loads_over_bus = true,
                                             .times_spread = 0.125,
                                             .manner_known = true,
                                             .calibration = "map.yaml",
                                             .calibration_texts = "a.txt, b.txt"};
    p->n_losses = 2;
    p->losses[0] = (struct moe_plan_loss){"on-miss", 777, 1.5, 0.25, 3.125, 0.5};
    p->losses[1] = (struct moe_plan_loss){"prefill", 778, -0.0625, 0, 0, 1.0 / 3};
    p->expected = (struct moe_plan_expected){11.5, 123.25, 0.6,    0.7,    0.8,    0.0625, 4096.5,
                                             0.05, 0.03,   0.01,   0.02,   0.04,   0.015,  0.005,
                                             3.5,  0.006,  0.0007, 0.0008, 0.0001, 0.75};
    p->first = p->expected;
    p->first.decode_tokens_per_second = 9.25;
    p->first.prefill_tokens_per_second = -1;
    p->evidence.threads = 4;
    for (uint32_t l = 0; l < 3; l++)
        p->layers[l] = (struct moe_plan_layer){l / 3.0, 1 - l / 3.0, l * 1e-3};
    fill_outlook(p);
    fill_alternatives(p);
    return p;
}

/* No more than a plan must have. */
static inline struct moe_plan *resident_plan(void)
{
    return new_plan(1, 1, 1, "resident");
}

/* About a model without weights: no pack, figures here and there. */
static inline struct moe_plan *shape_plan(void)
{
    struct moe_plan *p = new_plan(4, 8, 2, "prefetch");
    p->memory.experts = 1 << 20;
    strcpy(p->high, "4");
    p->n_pools = 1;
    p->pools[0] = (struct moe_plan_pool){65536, 10, 4, NULL};
    p->pace.load_rate = 1.6e10;
    p->expected.decode_tokens_per_second = 20;
    p->expected.stall_seconds = 0;
    p->layers[2].accuracy = 0.9;
    strcpy(p->evidence.device, "Jetson \xf0\x9f\x8c\x8d");
    return p;
}

#endif
