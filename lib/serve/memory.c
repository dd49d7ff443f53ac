#include "serve/memory.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/par.h"

/* ---- What models take ---- */

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Models of one description share an entry. */
static uint32_t kind_of(struct moe_server *s, const struct moe_engine_needs *needs)
{
    uint32_t i = 0;
    while (i < s->n_kinds && memcmp(&s->needs[i].config, &needs->config, sizeof needs->config) != 0)
        i++;
    if (i == s->n_kinds)
        s->needs[s->n_kinds++] = *needs;
    struct moe_engine_needs *kind = &s->needs[i];
    kind->pass_bytes = larger(kind->pass_bytes, needs->pass_bytes);
    kind->gpu.pass_bytes = larger(kind->gpu.pass_bytes, needs->gpu.pass_bytes);
    return i;
}

static int survey_one(struct moe_server *s, struct model *m, struct moe_engine_needs *needs,
                      struct moe_err *err)
{
    struct moe_err why;
    int status = moe_engine_needs_of(needs, m->path, &s->options.engine, s->gpu, &why);
    if (status == MOE_OK) {
        m->kind = kind_of(s, needs);
        m->all = needs->all;
        m->least = needs->least;
        m->directory = needs->directory;
        m->file_bytes = needs->file_bytes;
        m->resident = needs->resident;
        m->sampling = needs->sampling;
        m->gpu = needs->gpu;
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

/* Complete but for what there is room for. */
static struct moe_session_options session_of(const struct moe_server *s,
                                             const struct moe_engine_needs *needs, bool on_gpu)
{
    struct moe_session_options o = s->options.engine.session;
    o.context = context_of(s, needs);
    o.n_sequences = s->options.sequences;
    o.gpu = on_gpu ? s->gpu : NULL;
    if (o.kv_kind == MOE_LAYOUT_NONE)
        o.kv_kind = MOE_LAYOUT_F32;
    return o;
}

uint64_t memory_of_model(const struct executor *x, const struct model *m)
{
    uint64_t all = x->options.device.cuda ? m->gpu.all : m->all;
    return all < x->expert_bytes ? all : x->expert_bytes;
}

bool memory_is_whole(const struct executor *x, const struct model *m)
{
    bool cuda = x->options.device.cuda;
    return (cuda ? m->gpu.resident : m->resident) &&
           (cuda ? m->gpu.all : m->all) <= x->expert_bytes;
}

int memory_session(const struct executor *x, const struct model *m, struct moe_session_options *o,
                   struct moe_err *err)
{
    const struct moe_engine_needs *needs = &x->server->needs[m->kind];
    bool cuda = x->options.device.cuda;
    const struct moe_session_room room = {cuda ? x->host_batch_bytes : x->batch_bytes,
                                          cuda ? x->batch_bytes : 0};
    struct moe_session_room least;
    int before = moe_par_set_team(x->options.n_threads); /* sessions have scratch for each thread */
    *o = session_of(x->server, needs, cuda);
    int status = moe_engine_fit_session(o, needs, !memory_is_whole(x, m), room, &least, err);
    moe_par_set_team(before);
    return status;
}

void memory_of_batches(const struct moe_server *s, bool on_gpu, struct moe_session_room *least,
                       struct moe_session_room *full)
{
    const struct moe_session_room unlimited = {UINT64_MAX, UINT64_MAX};
    *least = *full = (struct moe_session_room){0, 0};
    for (uint32_t i = 0; i < s->n_kinds; i++) {
        const struct moe_engine_needs *needs = &s->needs[i];
        struct moe_session_options o = session_of(s, needs, on_gpu);
        struct moe_session_room one;
        moe_engine_fit_session(&o, needs, true, unlimited, &one, NULL);
        least->host = larger(least->host, one.host);
        least->gpu = larger(least->gpu, one.gpu);
        full->host = larger(full->host, moe_engine_session_bytes(needs, &o, true));
        full->gpu = larger(full->gpu, moe_session_gpu_bytes(&needs->config, &o));
    }
}
