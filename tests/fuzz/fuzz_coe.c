/*
 * A collection of experts, its costs or a plan for it: the format in the file says which. What is
 * accepted must come back the same from YAML and from JSON; requests are routed by a collection,
 * and a task is drawn from it; costs meet a collection of their own models; a plan is shown.
 */
/* Readers: serve/coe_collection.c serve/coe_costs.c serve/coe_plan.c serve/coe_dispatch.c */
/* Readers: fmt/record.c */
#define _GNU_SOURCE
#include "mutate.h"
#include "serve/coe_plan.h"
#include "serve/coe_simulate.h"
#include "show/explain.h"

enum { MAX_TASK = 64 };

static const char *field(void *ctx, const char *name)
{
    return name[0] == 'n' ? NULL : ctx;
}

static void route(const struct moe_coe_collection *c)
{
    static const char result[] = "fine: a \xff text";
    char value[] = "code";
    double p[MOE_COE_MAX_MODELS];
    uint32_t first = moe_coe_route(c, field, value);
    if (first != MOE_COE_NONE && moe_coe_find(c, c->models[first].name) != first)
        abort();
    for (uint32_t i = 0; i < c->n_models && i < MAX_TASK; i++)
        moe_coe_next_expert(c, i, result, sizeof result - 1);
    moe_coe_probabilities(c, p);
    for (uint32_t i = 0; i < c->n_models; i++)
        if (!(p[i] >= 0 && p[i] <= 1))
            abort();
}

/* A task of the collection's experts, whose costs are all the same. */
static void draw(const struct moe_coe_collection *c)
{
    struct moe_coe_expert *experts = calloc(c->n_models, sizeof *experts);
    const struct moe_coe_experts all = {c->n_models, 1, experts, NULL};
    struct moe_coe_task task;
    double *p = calloc(c->n_models, sizeof *p);
    if (!experts || !p)
        abort();
    moe_coe_probabilities(c, p);
    for (uint32_t i = 0; i < c->n_models; i++)
        experts[i].probability = p[i];
    if (moe_coe_task_draw(&task, c, &all, MAX_TASK, 0.004, 1, NULL) == MOE_OK) {
        for (uint32_t i = 0; i < MAX_TASK; i++)
            for (const uint32_t *e = task.arrivals[i].path; *e != MOE_COE_NONE; e++)
                if (*e >= c->n_models)
                    abort();
        moe_coe_task_release(&task);
    }
    free(experts);
    free(p);
}

static void check_collection(const uint8_t *data, size_t n)
{
    struct moe_coe_collection *c, *again;
    struct moe_err err;
    if (moe_coe_collection_read(&c, fuzz_file(data, n), &err) != MOE_OK)
        return;
    route(c);
    draw(c);
    for (int json = 0; json < 2; json++) {
        struct moe_buf first = {0}, second = {0};
        if (moe_coe_collection_write(c, json, &first, &err) != MOE_OK ||
            moe_record_parse(&moe_coe_collection_format, &again, "fuzz", first.data, first.size,
                             &err) != MOE_OK ||
            moe_coe_collection_write(again, json, &second, &err) != MOE_OK)
            abort();
        if (json)
            fuzz_check_json(&first);
        moe_coe_collection_free(again);
        fuzz_same(&first, &second);
    }
    moe_coe_collection_free(c);
}

/* A collection of the models that the costs name, each after the first from the one before; then
 * with a device and an architecture that they may not have. */
static void use_costs(const struct moe_coe_costs *c)
{
    struct moe_coe_model models[MAX_TASK + 1] = {0};
    struct moe_coe_route route = {.to = 0, .quantity = 1};
    struct moe_coe_score score = {.to = 0};
    struct moe_coe_follow follows[2 * MAX_TASK] = {0};
    struct moe_coe_cost table[MOE_COE_MAX_KINDS];
    struct moe_coe_collection own = {.n_routes = 1,
                                     .n_scores = 1,
                                     .models = models,
                                     .routes = &route,
                                     .scores = &score,
                                     .follows = follows};
    struct moe_coe_experts *all;
    bool probable;
    for (uint32_t i = 0; i < c->n_processors; i++)
        for (uint32_t n = 1; n < 70; n *= 2) {
            uint32_t threads, at_a_time;
            moe_coe_costs_teams(c, i, n, &threads, &at_a_time);
            if (at_a_time == 0 || (threads == 0) != (c->processors[i].threads == 0))
                abort();
            moe_coe_costs_table(c, i, threads, table);
        }
    for (uint32_t i = 0; i < c->n_models && i < MAX_TASK; i++) {
        models[i].probability = -1;
        memcpy(models[i].name, c->models[i].name, sizeof models[i].name);
        for (uint32_t k = 0; i > 0 && k < 2; k++) /* two rules from the same expert */
            follows[own.n_follows++] =
                (struct moe_coe_follow){.from = i - 1, .to = i, .share = 0.5};
        own.n_models = i + 1;
    }
    if (own.n_models == 0)
        return;
    if (moe_coe_costs_experts(&all, c, &own, &probable, NULL) != MOE_OK)
        abort(); /* every architecture has costs */
    for (uint32_t i = 0; i < all->n; i++)
        if (all->experts[i].kind >= all->n_kinds || all->experts[i].bytes == 0 ||
            all->experts[i].n_before != (i > 0))
            abort();
    moe_coe_experts_free(all);
    snprintf(models[0].device, sizeof models[0].device, "cuda");
    if (moe_coe_costs_experts(&all, c, &own, NULL, NULL) == MOE_OK)
        moe_coe_experts_free(all);
    for (int named = 0; named < 2; named++) {
        struct moe_coe_model *m = &models[own.n_models];
        *m = (struct moe_coe_model){.name = "", .probability = -1};
        snprintf(m->architecture, sizeof m->architecture, "%s", named ? "\xff" : "");
        own.n_models++;
        if (moe_coe_costs_experts(&all, c, &own, NULL, NULL) == MOE_OK)
            abort(); /* names that are read are not empty, and UTF-8 */
        own.n_models--;
    }
    moe_coe_experts_free(NULL);
}

static void check_costs(const uint8_t *data, size_t n)
{
    struct moe_coe_costs *c, *again;
    struct moe_err err;
    if (moe_coe_costs_read(&c, fuzz_file(data, n), &err) != MOE_OK)
        return;
    use_costs(c);
    for (int json = 0; json < 2; json++) {
        struct moe_buf first = {0}, second = {0};
        if (moe_coe_costs_write(c, json, &first, &err) != MOE_OK ||
            moe_record_parse(&moe_coe_costs_format, &again, "fuzz", first.data, first.size, &err) !=
                MOE_OK ||
            moe_coe_costs_write(again, json, &second, &err) != MOE_OK)
            abort();
        if (json)
            fuzz_check_json(&first);
        moe_coe_costs_free(again);
        fuzz_same(&first, &second);
    }
    moe_coe_costs_free(c);
}

static void check_plan(const uint8_t *data, size_t n)
{
    struct moe_coe_plan *p, *again;
    struct moe_buf text = {0};
    struct moe_err err;
    if (moe_coe_plan_read(&p, fuzz_file(data, n), &err) != MOE_OK)
        return;
    moe_explain_coe_plan(p, MOE_PLAIN_SCREEN, &text);
    moe_buf_release(&text);
    if (moe_coe_plan_new(&again, &err) != MOE_OK)
        abort();
    for (uint32_t i = 0; i <= p->n_reasons; i++)
        moe_coe_plan_because(again, p->schedule, "%s", i ? p->reasons[i - 1].text : p->evict);
    moe_coe_plan_free(again);
    for (int json = 0; json < 2; json++) {
        struct moe_buf first = {0}, second = {0};
        if (moe_coe_plan_write(p, json, &first, &err) != MOE_OK ||
            moe_record_parse(&moe_coe_plan_format, &again, "fuzz", first.data, first.size, &err) !=
                MOE_OK ||
            moe_coe_plan_write(again, json, &second, &err) != MOE_OK)
            abort();
        if (json)
            fuzz_check_json(&first);
        moe_coe_plan_free(again);
        fuzz_same(&first, &second);
    }
    moe_coe_plan_free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    check_collection(data, n);
    check_costs(data, n);
    check_plan(data, n);
    return 0;
}

FUZZ_MUTATE_TEXT
