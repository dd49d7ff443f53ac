#include "serve/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/par.h"
#include "base/text.h"

enum {
    THREAD_BYTES = 512 << 10, /* of an executor's threads, beside its team's */
    LEAST_QUEUE_BYTES = 1 << 20,
    MOST_QUEUE_BYTES = 64 << 20,
    QUEUE_PART = 32,         /* of the budget is for requests that wait */
    SMALL_BATCH = 16,        /* rows of the smallest pass that is chosen */
    DEFAULT_BATCH = 256,     /* ... and of the largest */
    FREE_SHARE_PERCENT = 90, /* of what is free, when no budget is named */
    FLOOR_SLACK = 1 << 20,
};
#define CASUAL_SHARE 0.75 /* of an executor's memory, for models (5.1) */

/* ---- What models take ---- */

/* Models of one description share an entry. */
static uint32_t kind_of(struct moe_server *s, const struct moe_engine_needs *needs)
{
    uint32_t i = 0;
    while (i < s->n_kinds && memcmp(&s->needs[i].config, &needs->config, sizeof needs->config) != 0)
        i++;
    if (i == s->n_kinds)
        s->needs[s->n_kinds++] = *needs;
    else if (needs->pass_bytes > s->needs[i].pass_bytes)
        s->needs[i].pass_bytes = needs->pass_bytes;
    return i;
}

static int survey_one(struct moe_server *s, struct model *m, struct moe_engine_needs *needs,
                      struct moe_err *err)
{
    struct moe_err why;
    int status = moe_engine_needs_of(needs, m->path, &s->options.engine, &why);
    if (status == MOE_OK) {
        m->kind = kind_of(s, needs);
        m->all = needs->all;
        m->least = needs->least;
        m->directory = needs->directory;
        m->file_bytes = needs->file_bytes;
        return MOE_OK;
    }
    if (!s->own && status != MOE_ERR_MEMORY) {
        m->broken_status = status;
        m->broken = moe_strndup(why.text, strlen(why.text), err);
        return m->broken ? MOE_OK : MOE_ERR_MEMORY;
    }
    if (err)
        *err = why;
    return status;
}

int memory_survey(struct moe_server *s, const struct moe_progress *progress, struct moe_err *err)
{
    struct moe_engine_needs *needs = moe_alloc(1, sizeof *needs, err);
    int status = needs ? MOE_OK : MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < s->n_models && status == MOE_OK; i++) {
        struct moe_engine_needs *more = realloc(s->needs, (s->n_kinds + 1) * sizeof *s->needs);
        if (!more) {
            status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: %u kinds of models", s->n_kinds);
            break;
        }
        s->needs = more;
        status = survey_one(s, &s->models[i], needs, err);
        moe_progress_report(progress, "looking at models", i + 1, s->n_models);
        if (moe_progress_stopped(progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    free(needs);
    if (status == MOE_OK && s->n_kinds == 0)
        status = moe_fail(err, s->models[0].broken_status, "no model can be opened: %.400s",
                          s->models[0].broken);
    return status;
}

/* ---- Sessions ---- */

static uint32_t context_of(const struct moe_server *s, const struct moe_engine_needs *needs)
{
    uint32_t wanted = s->options.engine.session.context, cap = s->options.engine.context_cap;
    uint32_t most = needs->config.context_max;
    if (!wanted)
        wanted = cap ? cap : most;
    return wanted < most ? wanted : most;
}

static struct moe_session_options session_of(const struct moe_server *s,
                                             const struct moe_engine_needs *needs)
{
    struct moe_session_options o = s->options.engine.session;
    o.context = context_of(s, needs);
    o.n_sequences = s->options.sequences;
    if (o.kv_kind == MOE_LAYOUT_NONE)
        o.kv_kind = MOE_LAYOUT_F32;
    return o;
}

uint64_t memory_of_model(const struct executor *x, const struct model *m)
{
    return m->all < x->expert_bytes ? m->all : x->expert_bytes;
}

int memory_session(const struct executor *x, const struct model *m, struct moe_session_options *o,
                   struct moe_err *err)
{
    const struct moe_engine_needs *needs = &x->server->needs[m->kind];
    bool cached = m->all > x->expert_bytes;
    uint64_t least;
    int before = moe_par_set_team(x->options.n_threads); /* sessions have scratch for each thread */
    *o = session_of(x->server, needs);
    int status = moe_engine_fit_session(o, needs, cached, x->batch_bytes, &least, err);
    moe_par_set_team(before);
    return status;
}

/* Of all kinds of models, in a team of this executor: the least that a session works with, and what
 * all sequences take with whole contexts. */
static void size_batches(const struct moe_server *s, uint64_t *least, uint64_t *full)
{
    struct moe_err err;
    *least = *full = 0;
    for (uint32_t i = 0; i < s->n_kinds; i++) {
        struct moe_session_options o = session_of(s, &s->needs[i]);
        uint64_t one, all;
        o.batch = o.batch ? o.batch : DEFAULT_BATCH;
        all = moe_engine_session_bytes(&s->needs[i], &o, true);
        o = session_of(s, &s->needs[i]);
        moe_engine_fit_session(&o, &s->needs[i], true, 0, &one, &err); /* nothing fits */
        *least = one > *least ? one : *least;
        *full = all > *full ? all : *full;
    }
}

/* ---- The budget ---- */

static uint64_t part(uint64_t whole, double share)
{
    return (uint64_t)((double)whole * share);
}

/* What belongs to no executor, waiting requests apart. */
static uint64_t process_bytes(const struct moe_server *s)
{
    const struct moe_server_options *o = &s->options;
    uint64_t program = o->engine.program_bytes ? o->engine.program_bytes : moe_rss_bytes();
    return program + moe_engine_process_bytes() + (uint64_t)s->n_executors * THREAD_BYTES +
           o->beside_bytes;
}

/* For requests that wait: a part of the budget, of which others need so much. */
static uint64_t queue_bytes(const struct moe_server *s, uint64_t others)
{
    uint64_t queue = s->memory_bytes / QUEUE_PART, left = s->memory_bytes - others;
    queue = queue < MOST_QUEUE_BYTES ? queue : MOST_QUEUE_BYTES;
    queue = queue < left ? queue : left;
    return queue > LEAST_QUEUE_BYTES ? queue : LEAST_QUEUE_BYTES;
}

static int refuse(const struct moe_server *s, struct moe_err *err)
{
    char have[32], need[32];
    return moe_fail(err, MOE_ERR_LIMIT,
                    "a budget of %s is too small: the smallest that works is %s (--memory %" PRIu64
                    "M; a shorter context -c needs less, and fewer executors do)",
                    moe_format_bytes(s->memory_bytes, have), moe_format_bytes(s->floor_bytes, need),
                    (s->floor_bytes + FLOOR_SLACK + (1 << 20) - 1) >> 20);
}

/* Splits an executor's memory: batches get what the share leaves, but no more than they can use,
 * and each side at least what it works with. */
static void split(struct executor *x, uint64_t bytes, uint64_t least_model, uint64_t all_models,
                  uint64_t least_batch, uint64_t full_batch)
{
    const struct moe_server_options *o = &x->server->options;
    double share = o->expert_share > 0 && o->expert_share < 1 ? o->expert_share : CASUAL_SHARE;
    uint64_t batch = bytes - part(bytes, share);
    if (bytes >= all_models && bytes - all_models > batch)
        batch = bytes - all_models; /* models need no more */
    batch = batch < full_batch ? batch : full_batch;
    batch = batch > least_batch ? batch : least_batch;
    if (bytes - batch < least_model)
        batch = bytes - least_model;
    x->batch_bytes = batch;
    x->expert_bytes = bytes - batch;
}

/* The executors of the plan have what it says; where all of it is more than `left`, which is what
 * the server itself leaves, each gives in proportion. */
static int follow_plan(struct moe_server *s, uint64_t left, uint64_t least_model,
                       uint64_t least_batch, struct moe_err *err)
{
    const struct moe_coe_plan *p = s->options.plan;
    uint64_t given = 0;
    for (uint32_t i = 0; i < p->n_executors; i++)
        given +=
            p->executors[i].number * (p->executors[i].expert_bytes + p->executors[i].batch_bytes);
    double share = given > left ? (double)left / (double)given : 1;
    for (uint32_t i = 0, k = 0; i < p->n_executors; i++)
        for (uint32_t n = 0; n < p->executors[i].number && k < s->n_executors; n++, k++) {
            struct executor *x = &s->executors[k];
            uint64_t bytes = part(p->executors[i].expert_bytes, share) +
                             part(p->executors[i].batch_bytes, share);
            if (bytes < least_model + least_batch)
                return moe_fail(err, MOE_ERR_LIMIT,
                                "the plan leaves an executor %" PRIu64 " bytes: at least %" PRIu64
                                " work (moe-plan --coe with fewer --executors)",
                                bytes, least_model + least_batch);
            x->batch_bytes = part(p->executors[i].batch_bytes, share);
            if (x->batch_bytes < least_batch)
                x->batch_bytes = least_batch;
            if (bytes - x->batch_bytes < least_model)
                x->batch_bytes = bytes - least_model;
            x->expert_bytes = bytes - x->batch_bytes;
        }
    return MOE_OK;
}

static int most_threads(const struct moe_server *s)
{
    int most = 1;
    for (uint32_t i = 0; i < s->n_executors; i++)
        most = s->executors[i].options.n_threads > most ? s->executors[i].options.n_threads : most;
    return most;
}

int memory_divide(struct moe_server *s, struct moe_err *err)
{
    uint64_t least_model = 0, all_models = 0, least, full, process;
    const struct moe_coe_plan *plan = s->options.plan;
    s->memory_bytes = s->options.engine.memory_bytes;
    if (!s->memory_bytes && plan)
        s->memory_bytes = plan->memory_bytes;
    if (!s->memory_bytes) {
        uint64_t free_bytes = moe_available_bytes();
        s->memory_bytes = free_bytes == UINT64_MAX
                              ? UINT64_MAX / 2
                              : free_bytes / 100 * FREE_SHARE_PERCENT + moe_rss_bytes();
    }
    for (uint32_t i = 0; i < s->n_models; i++) {
        const struct model *m = &s->models[i];
        least_model = m->least > least_model ? m->least : least_model;
        all_models += m->all;
    }
    int before = moe_par_set_team(most_threads(s));
    size_batches(s, &least, &full);
    process = process_bytes(s);
    moe_par_set_team(before);
    s->floor_bytes = process + s->n_executors * (least_model + least);
    s->floor_bytes += LEAST_QUEUE_BYTES;
    if (s->floor_bytes > s->memory_bytes)
        return refuse(s, err);
    s->request_bytes_max = queue_bytes(s, s->floor_bytes - LEAST_QUEUE_BYTES);
    process += s->request_bytes_max;
    if (plan)
        return follow_plan(s, s->memory_bytes - process, least_model, least, err);
    for (uint32_t i = 0; i < s->n_executors; i++)
        split(&s->executors[i], (s->memory_bytes - process) / s->n_executors, least_model,
              all_models, least, full);
    return MOE_OK;
}
