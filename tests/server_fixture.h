/*
 * Requests to a server and what they hear, and what the same model says alone: shared by the tests
 * of servers on the processor and on a device.
 */
#ifndef TESTS_SERVER_FIXTURE_H
#define TESTS_SERVER_FIXTURE_H

#include "engine/engine.h"
#include "engine/generate.h"
#include "engine/prompt.h"
#include "prompt/chat_answer.h"
#include "serve/server.h"

#include "base/clock.h"
#include "test.h"

/* ---- Asking ---- */

struct asked {
    char json[1024];
    struct moe_buf text;
    struct moe_server_result result;
    struct moe_err err;
    uint64_t id;
    int n_ended;
    double ended_at;
};

static inline void hear(void *ctx, uint32_t choice, const struct moe_answer_part *part)
{
    struct asked *a = ctx;
    assert_int_equal(choice, 0);
    assert_int_equal(a->n_ended, 0);
    assert_int_equal(part->kind, MOE_PART_CONTENT);
    moe_buf_append(&a->text, part->bytes, part->n);
}

static inline void end(void *ctx, uint32_t choice, const struct moe_server_result *result)
{
    struct asked *a = ctx;
    assert_int_equal(choice, 0);
    a->n_ended++;
    a->ended_at = moe_seconds();
    a->result = *result;
    if (result->err)
        a->err = *result->err;
}

static inline struct moe_request *request_of(const struct asked *a)
{
    struct moe_request *r;
    struct moe_err err;
    assert_ok(moe_request_parse(&r, MOE_REQUEST_TEXT, a->json, strlen(a->json), NULL, &err), &err);
    return r;
}

/* `who`: client and owner of the request. */
static inline void submit_as(struct moe_server *s, struct asked *a, uint64_t who)
{
    const struct moe_server_events events = {
        .ctx = a, .client = who, .owner = who, .part = hear, .ended = end};
    struct moe_err err;
    a->n_ended = 0;
    moe_buf_clear(&a->text);
    assert_ok(moe_server_submit(s, request_of(a), &events, &a->id, &err), &err);
}

static inline void submit(struct moe_server *s, struct asked *a)
{
    submit_as(s, a, 0);
}

/* ---- Alone ---- */

static inline int append(void *ctx, const char *bytes, uint64_t n)
{
    moe_buf_append(ctx, bytes, n);
    return MOE_OK;
}

static inline void answer_alone(const struct moe_engine *e, const struct moe_request *r,
                                struct moe_buf *text)
{
    const struct moe_generate_options o = {
        .max_tokens = r->max_tokens, .text = append, .ctx = text};
    struct moe_sampler_options sampling = r->sampling;
    struct moe_sampler *sampler;
    struct moe_ids ids = {0};
    enum moe_stop_reason why;
    struct moe_err err;
    sampling.seed = moe_request_seed(r, 0);
    moe_sampling_complete(&sampling, &e->model->sampling);
    assert_ok(moe_sampler_new(&sampler, &sampling, e->model->config.vocab, &err), &err);
    assert_ok(moe_prompt_plain(e->model, r->inputs[0].text, r->inputs[0].n, &ids, &err), &err);
    assert_ok(moe_generate(e->session, sampler, &ids, &o, &why, &err), &err);
    moe_ids_release(&ids);
    moe_sampler_free(sampler);
}

#endif
