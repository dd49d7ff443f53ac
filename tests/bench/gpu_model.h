/* A model's tokens per second by the share of its experts in the GPU's memory. Of bench_gpu.c. */
#ifndef TESTS_BENCH_GPU_MODEL_H
#define TESTS_BENCH_GPU_MODEL_H

#include "base/file.h"
#include "engine/engine.h"
#include "gpu_bench.h"
#include "infer/gpu_work.h"
#include "sched/inventory.h"

struct model_bench {
    const char *pack, *statistics_path, *text_path;
    struct moe_statistics *statistics;
    struct moe_ids text;
    uint64_t all_bytes; /* of all experts */
    uint32_t n_prompt, n_decode;
};

/* ---- What is needed first ---- */

static int read_text(struct model_bench *m, const struct moe_model *model, struct moe_err *err)
{
    struct moe_buf text = {0};
    if (!m->text_path)
        return MOE_OK;
    int status = moe_file_read_all(m->text_path, 1 << 24, &text, err);
    if (status == MOE_OK)
        status = moe_tokenizer_encode(model->tokenizer, (const char *)text.data, text.size, true,
                                      &m->text, err);
    moe_buf_release(&text);
    return status;
}

static int look_at_model(struct model_bench *m, struct moe_err *err)
{
    struct moe_model *model = NULL;
    struct moe_inventory inventory = {0};
    int status = moe_model_open_directory(&model, m->pack, err);
    if (status == MOE_OK)
        status = read_text(m, model, err);
    if (status == MOE_OK)
        status = moe_inventory_of_pack(&inventory, model->pack, model->config.top_k, NULL, err);
    if (status == MOE_OK)
        m->all_bytes = moe_inventory_all_bytes(&inventory, 0);
    if (status == MOE_OK && m->statistics_path)
        status = moe_statistics_read(&m->statistics, m->statistics_path, err);
    moe_inventory_release(&inventory);
    moe_model_close(model);
    return status;
}

/* ---- Strategies ---- */

static void print_row(struct bench *b, const char *name, double share, const struct moe_engine *e,
                      const struct moe_bench *speed)
{
    const struct moe_phase_stats *p = &e->session->stats.decode;
    double tokens = (double)p->tokens, all = (double)p->experts.activations;
    double hits = (double)(p->experts.cache_hits + p->experts.prefetch_hits);
    printf("%-18s %4.0f%% %8.0f MB | %9.1f %9.1f +-%2.0f%% | %5.1f%% %8.1f %7llu %5.1f%%\n", name,
           100 * share, (double)e->budget.gpu.experts * 1e-6, figure(b, speed->prefill.median),
           figure(b, speed->decode.median), spread(speed->decode), all > 0 ? 100 * hits / all : 0,
           (double)p->bytes_uploaded / tokens * 1e-6, (unsigned long long)p->disk_loads,
           100 * p->stall_seconds / p->seconds);
}

/* A strategy with that share of the experts in the GPU's memory; why it cannot run here is printed
 * and is no failure. */
static void bench_strategy(struct bench *b, const struct model_bench *m, const char *name,
                           double share, bool recorded)
{
    struct moe_err err = {0};
    struct moe_engine *e = NULL;
    struct moe_bench speed;
    struct moe_engine_options o = {
        .device = {.cuda = true},
        .statistics = m->statistics,
        .expert_memory_bytes = share < 1 ? (uint64_t)(share * (double)m->all_bytes) : 0,
        .session = {.context = m->n_prompt + m->n_decode},
    };
    const struct moe_bench_options bo = {.prompt_tokens = m->n_prompt,
                                         .decode_tokens = m->n_decode,
                                         .n_runs = b->n_runs < 3 ? 1 : 3,
                                         .text = &m->text};
    moe_strategy_find(name, &o.strategy);
    if (share >= 1 && !o.strategy.resident)
        o.expert_memory_bytes = m->all_bytes;
    int status = moe_engine_open(&e, m->pack, &o, NULL, &err);
    if (status == MOE_OK && !recorded)
        ((struct gpu_work *)e->session->device)->residents.recordable = false;
    if (status == MOE_OK)
        status = moe_bench(e->session, &bo, &speed, &err);
    if (status == MOE_OK)
        print_row(b,
                  o.strategy.resident ? recorded ? "resident, graph" : "resident, launches" : name,
                  share, e, &speed);
    else
        printf("%-18s %4.0f%% does not run: %s\n", name, 100 * share, err.text);
    moe_engine_close(e);
}

static int bench_model(struct bench *b, struct model_bench *m, struct moe_err *err)
{
    static const char *const strategies[] = {"ondemand", "fate", "hobbit", "daop", "prefetch"};
    static const double shares[] = {0.1, 0.25, 0.5, 1};
    int status = look_at_model(m, err);
    if (status == MOE_OK) {
        section(b, "a model: by strategy and share of its experts in GPU memory");
        printf("%s: experts of %.0f MB, prompts of %u tokens, %u decoded\n", m->pack,
               (double)m->all_bytes * 1e-6, m->n_prompt, m->n_decode);
        printf("                    in GPU memory   | tokens/s:  prompt    decode       |  hits  "
               "MB/token   disk  stall\n");
        bench_strategy(b, m, "resident", 1, true);
        bench_strategy(b, m, "resident", 1, false);
        for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++)
            for (size_t k = 0; k < sizeof shares / sizeof *shares; k += b->smoke ? 3 : 1)
                bench_strategy(b, m, strategies[i], shares[k], true);
    }
    moe_statistics_free(m->statistics);
    moe_ids_release(&m->text);
    return status;
}

#endif
