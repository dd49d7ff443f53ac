/*
 * The public interface over the engine: what moe-run does with one conversation, without a
 * terminal.
 */
#include "api/moe.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/par.h"
#include "engine/conversation.h"
#include "engine/engine.h"
#include "engine/prompt.h"
#include "profile/statistics.h"
#include "show/show.h"

_Static_assert(MOE_ERROR_USAGE == (int)MOE_ERR_USAGE && MOE_ERROR_IO == (int)MOE_ERR_IO &&
                   MOE_ERROR_FORMAT == (int)MOE_ERR_FORMAT &&
                   MOE_ERROR_VERSION == (int)MOE_ERR_VERSION &&
                   MOE_ERROR_UNSUPPORTED == (int)MOE_ERR_UNSUPPORTED &&
                   MOE_ERROR_LIMIT == (int)MOE_ERR_LIMIT &&
                   MOE_ERROR_MEMORY == (int)MOE_ERR_MEMORY &&
                   MOE_ERROR_DEVICE == (int)MOE_ERR_DEVICE &&
                   MOE_ERROR_CALLER == (int)MOE_ERR_INTERRUPTED,
               "errors pass through as they are");
_Static_assert(MOE_END_MODEL == (int)MOE_STOP_EOS && MOE_END_LENGTH == (int)MOE_STOP_LENGTH &&
                   MOE_END_CONTEXT == (int)MOE_STOP_CONTEXT && MOE_END_STOP == (int)MOE_STOP_TEXT,
               "so do ends");

enum { CONTEXT_CAP = 4096 };

struct moe {
    struct moe_engine *engine;
    struct moe_chat *chat; /* NULL: texts are continued */
    struct moe_conversation talk;
    bool has_talk;
    struct moe_statistics *statistics;
    struct moe_plan *plan;
};

int moe_api(void)
{
    return MOE_API;
}

const char *moe_version(void)
{
    return MOE_VERSION;
}

void moe_free(void *memory)
{
    free(memory);
}

static int tell(int status, const struct moe_err *err, struct moe_error *error)
{
    if (status != MOE_OK && error) {
        error->kind = status;
        memcpy(error->text, err->text, sizeof error->text);
    }
    return status;
}

/* ---- A model ---- */

/* The engine's options, with what their files hold in *m. */
static int read_options(struct moe *m, const struct moe_options *o, struct moe_engine_options *out,
                        struct moe_err *err)
{
    struct moe_err why;
    uint32_t named = 0;
    int status = MOE_OK;
    *out = (struct moe_engine_options){.memory_bytes = o->memory_bytes,
                                       .exact = o->exact,
                                       .context_cap = CONTEXT_CAP,
                                       .first_token_first = true,
                                       .session = {.context = o->context, .n_sources = 1}};
    if (o->device && !moe_device_parse(o->device, &out->device, &why))
        status = moe_fail(err, MOE_ERR_USAGE, "device: '%s' %s", o->device, why.text);
    if (status == MOE_OK && o->strategy && strcmp(o->strategy, "auto") != 0) {
        status = moe_strategy_parse(o->strategy, &out->strategy, &named, err);
        moe_strategy_drop_idle(&out->strategy, named);
    }
    if (status == MOE_OK && o->statistics)
        status = moe_statistics_read(&m->statistics, o->statistics, err);
    if (status == MOE_OK && o->plan)
        status = moe_plan_read(&m->plan, o->plan, err);
    out->statistics = m->statistics;
    out->plan = m->plan;
    out->pace = m->plan ? &m->plan->pace : NULL;
    return status;
}

/* NULL where there is no template, too. */
static int open_chat(struct moe *m, const char *path, bool plain, struct moe_err *err)
{
    const struct moe_model *model = m->engine->model;
    struct moe_buf name = {0};
    int status = MOE_OK;
    moe_buf_printf(&name, "%s: its chat template", path);
    if (name.failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: the chat template");
    else if (!plain && model->config.n_encoder == 0)
        status = moe_prompt_open_chat(&m->chat, model, (const char *)name.data, NULL, 0, err);
    moe_buf_release(&name);
    return status;
}

/* Whether a model was opened before: the first one decides how many threads compute, and later ones
 * that name a number. */
static atomic_flag threads_are_set = ATOMIC_FLAG_INIT;

int moe_open(struct moe **out, const char *path, const struct moe_options *options,
             struct moe_error *error)
{
    static const struct moe_options none = {0};
    const struct moe_options *o = options ? options : &none;
    struct moe_engine_options engine;
    struct moe_err err = {0};
    *out = NULL;
    struct moe *m = moe_alloc(1, sizeof *m, &err);
    if (!m)
        return tell(MOE_ERR_MEMORY, &err, error);
    bool is_first = !atomic_flag_test_and_set(&threads_are_set);
    if (o->threads > 0 || is_first)
        moe_par_set_threads(o->threads > 0 ? o->threads : moe_default_threads());
    int status;
    MOE_STEP(read_options(m, o, &engine, &err));
    MOE_STEP(moe_engine_open(&m->engine, path, &engine, NULL, &err));
    MOE_STEP(open_chat(m, path, o->plain, &err));
    MOE_STEP(moe_conversation_init(&m->talk, m->engine->session, m->chat, &err));
out:
    m->has_talk = status == MOE_OK;
    if (status == MOE_OK)
        *out = m;
    else
        moe_close(m);
    return tell(status, &err, error);
}

void moe_close(struct moe *m)
{
    if (!m)
        return;
    if (m->has_talk)
        moe_conversation_release(&m->talk);
    moe_chat_free(m->chat);
    moe_engine_close(m->engine);
    moe_plan_free(m->plan);
    moe_statistics_free(m->statistics);
    free(m);
}

void moe_facts(const struct moe *m, struct moe_facts *out)
{
    const struct moe_config *c = &m->engine->model->config;
    const struct moe_budget *b = &m->engine->budget;
    *out = (struct moe_facts){
        .context = m->engine->session->context,
        .vocabulary = c->vocab,
        .layers = c->n_layers,
        .experts = c->n_experts,
        .experts_per_token = c->top_k,
        .chats = m->chat != NULL,
        .memory_bytes = b->host.total,
        .least_bytes = b->host.floor,
        .expert_bytes = b->host.experts,
        .model_bytes = b->all,
    };
}

/* ---- Answers ---- */

struct moe_answering moe_answering_default(void)
{
    struct moe_sampler_options s;
    moe_sampling_unsaid(&s);
    return (struct moe_answering){
        .temperature = s.temperature,
        .top_k = s.top_k,
        .top_p = s.top_p,
        .min_p = s.min_p,
        .repeat_penalty = s.repeat_penalty,
    };
}

int moe_system(struct moe *m, const char *text, struct moe_error *error)
{
    struct moe_err err = {0};
    return tell(moe_conversation_system(&m->talk, text, &err), &err, error);
}

void moe_forget(struct moe *m)
{
    moe_conversation_reset(&m->talk);
}

static int pass_text(void *ctx, const char *bytes, uint64_t n)
{
    const struct moe_answering *how = ctx;
    return how->text && how->text(how->ctx, bytes, n) != 0 ? MOE_ERR_INTERRUPTED : MOE_OK;
}

int moe_ask(struct moe *m, const char *text, const struct moe_answering *how, enum moe_end *end,
            struct moe_error *error)
{
    struct moe_err err = {0};
    struct moe_sampler_options sampling;
    struct moe_sampler *sampler = NULL;
    struct moe_answering copy = *how;
    enum moe_stop_reason why = MOE_STOP_EOS;
    const struct moe_generate_options go = {
        .max_tokens = how->max_tokens ? how->max_tokens : UINT64_MAX,
        .stop_texts = how->stop,
        .started = moe_seconds(),
        .text = pass_text,
        .ctx = &copy,
    };
    moe_sampling_unsaid(&sampling);
    sampling.temperature = how->temperature;
    sampling.top_k = how->top_k;
    sampling.top_p = how->top_p;
    sampling.min_p = how->min_p;
    sampling.repeat_penalty = how->repeat_penalty;
    sampling.seed = how->seed;
    moe_sampling_complete(&sampling, &m->engine->model->sampling);
    int status = moe_sampler_new(&sampler, &sampling, m->engine->model->config.vocab, &err);
    if (status == MOE_OK)
        status = moe_conversation_ask(&m->talk, text, sampler, &go, &why, &err);
    if (status == MOE_ERR_INTERRUPTED)
        moe_fail(&err, status, "the answer was ended by the caller");
    if (status == MOE_OK && end)
        *end = (enum moe_end)why;
    moe_sampler_free(sampler);
    return tell(status, &err, error);
}

/* ---- Tokens ---- */

int moe_tokenize(const struct moe *m, const char *text, size_t n, uint32_t **ids, size_t *n_ids,
                 struct moe_error *error)
{
    struct moe_err err = {0};
    struct moe_ids found = {0};
    int status = moe_tokenizer_encode(m->engine->model->tokenizer, text, n, false, &found, &err);
    if (status != MOE_OK)
        moe_ids_release(&found);
    *ids = found.ids;
    *n_ids = found.n;
    return tell(status, &err, error);
}

int moe_detokenize(const struct moe *m, const uint32_t *ids, size_t n_ids, char **text, size_t *n,
                   struct moe_error *error)
{
    struct moe_err err = {0};
    struct moe_buf out = {0};
    const uint32_t vocab = m->engine->model->config.vocab;
    int status = MOE_OK;
    for (size_t i = 0; i < n_ids && status == MOE_OK; i++)
        if (ids[i] >= vocab)
            status = moe_fail(&err, MOE_ERR_USAGE, "token %" PRIu32 ": the model has %" PRIu32,
                              ids[i], vocab);
    if (status == MOE_OK)
        status = moe_tokenizer_decode(m->engine->model->tokenizer, ids, n_ids, &out, &err);
    *n = out.size;
    moe_buf_u8(&out, 0);
    if (status == MOE_OK && out.failed)
        status = moe_fail(&err, MOE_ERR_MEMORY, "out of memory: the text of tokens");
    if (status != MOE_OK)
        moe_buf_release(&out);
    *text = (char *)out.data;
    return tell(status, &err, error);
}

/* ---- Statistics ---- */

int moe_statistics(const struct moe *m, char **json, struct moe_error *error)
{
    struct moe_err err = {0};
    struct moe_buf out = {0};
    struct moe_stats stats = m->engine->session->stats;
    int status = MOE_OK;
    moe_engine_finish_stats(m->engine, &stats);
    moe_show_run_json(&stats, &out);
    moe_buf_u8(&out, 0);
    if (out.failed) {
        status = moe_fail(&err, MOE_ERR_MEMORY, "out of memory: the statistics");
        moe_buf_release(&out);
    }
    *json = (char *)out.data;
    return tell(status, &err, error);
}
