#include "bench/coe_samples.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "bench/coe_lines.h"
#include "engine/prompt.h"

struct reading {
    struct moe_coe_samples *out;
    const struct moe_coe_collection *collection;
    const struct moe_model *model;
    struct moe_chat *chat; /* NULL: it has none */
    const char *path;
    uint64_t n_answers;
    bool *unknown; /* [n_models] follows results whose shares are not known */
};

/* ---- Usage ---- */

/* Whether results of an expert go on by shares; *tested: some rule looks at them. */
static bool has_shares(const struct moe_coe_collection *c, uint32_t expert, bool *tested)
{
    bool shares = true;
    *tested = false;
    for (uint32_t i = 0; i < c->n_follows; i++) {
        const struct moe_coe_follow *f = &c->follows[i];
        if (f->from != expert)
            continue;
        shares = shares && f->share >= 0;
        *tested = *tested || f->test.equals[0] || f->test.matches[0];
    }
    return shares;
}

/* A request, or the part of it that comes this far, uses an expert. There are no circles. */
static void use(struct reading *r, uint32_t expert, double part)
{
    const struct moe_coe_collection *c = r->collection;
    bool tested;
    r->out->usage[expert] += part;
    bool shares = has_shares(c, expert, &tested);
    for (uint32_t i = 0; i < c->n_follows; i++) {
        const struct moe_coe_follow *f = &c->follows[i];
        if (f->from != expert)
            continue;
        if (!shares && tested) {
            r->unknown[f->to] = true;
            continue;
        }
        use(r, f->to, shares ? part * f->share : part);
        if (!shares) /* the first rule takes them all */
            return;
    }
}

/* What follows an expert that is not known is not known either. */
static void spread_unknown(struct reading *r)
{
    const struct moe_coe_collection *c = r->collection;
    for (bool more = true; more;) {
        more = false;
        for (uint32_t i = 0; i < c->n_follows; i++)
            if (r->unknown[c->follows[i].from] && !r->unknown[c->follows[i].to])
                more = r->unknown[c->follows[i].to] = true;
    }
}

/* ---- Requests ---- */

static const char *field(void *ctx, const char *name)
{
    return moe_request_field(ctx, name);
}

static int add_ids(struct reading *r, const struct moe_request *q, struct moe_err *err)
{
    struct moe_ids *ids = &r->out->prompts;
    int status = MOE_OK;
    if (q->prompt)
        return moe_prompt_prefixed(r->model, q->prefix_text, q->prompt, q->n_prompt, ids, err);
    const struct moe_chat_input input = {.messages = q->messages,
                                         .tools = q->tools,
                                         .variables = q->variables,
                                         .add_generation_prompt = true,
                                         .now = moe_chat_today()};
    if (q->kind == MOE_REQUEST_CHAT && r->chat)
        return moe_prompt_chat(r->model, r->chat, &input, UINT64_MAX - 1, ids, err);
    for (size_t i = 0; i < json_array_size(q->messages) && status == MOE_OK; i++) {
        const char *text = moe_chat_text(json_array_get(q->messages, i));
        status = text ? moe_prompt_plain(r->model, text, strlen(text), ids, err) : MOE_OK;
    }
    for (uint64_t i = 0; i < q->n_ids && status == MOE_OK; i++)
        status = moe_ids_push(ids, q->ids[i], err);
    return status;
}

static int add_request(void *ctx, uint64_t line, struct moe_request **request, struct moe_err *err)
{
    struct reading *r = ctx;
    struct moe_request *q = *request;
    const struct moe_coe_collection *c = r->collection;
    uint32_t expert = q->model ? moe_coe_find(c, q->model) : MOE_COE_NONE;
    if (expert == MOE_COE_NONE && q->model && strcmp(q->model, "auto") != 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: line %" PRIu64 ": there is no expert '%s'",
                        r->path, line, q->model);
    if (expert == MOE_COE_NONE)
        expert = c->n_models == 1 ? 0 : moe_coe_route(c, field, q);
    if (expert == MOE_COE_NONE)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: line %" PRIu64 ": no rule takes this request",
                        r->path, line);
    use(r, expert, 1);
    r->out->n++;
    if (q->max_tokens != UINT64_MAX) {
        r->out->mean_answer += (double)q->max_tokens;
        r->n_answers++;
    }
    return add_ids(r, q, err);
}

int moe_coe_samples_read(struct moe_coe_samples *out, const struct moe_coe_collection *collection,
                         const struct moe_model *model, const char *path,
                         const struct moe_progress *progress, struct moe_err *err)
{
    struct reading r = {.out = out, .collection = collection, .model = model, .path = path};
    *out = (struct moe_coe_samples){0};
    out->usage = moe_alloc(collection->n_models, sizeof *out->usage, err);
    r.unknown = moe_alloc(collection->n_models, sizeof *r.unknown, err);
    int status = out->usage && r.unknown ? MOE_OK : MOE_ERR_MEMORY;
    if (status == MOE_OK && model)
        status = moe_prompt_open_chat(&r.chat, model, "the chat template", NULL, 0, err);
    if (status == MOE_OK)
        status = moe_coe_each_sample(path, add_request, &r, progress, err);
    if (status == MOE_OK) {
        spread_unknown(&r);
        for (uint32_t i = 0; i < collection->n_models; i++)
            out->usage[i] = r.unknown[i] ? -1 : out->usage[i] / (double)out->n;
        out->mean_prompt = (double)out->prompts.n / (double)out->n;
        out->mean_answer /= r.n_answers ? (double)r.n_answers : 1;
    }
    free(r.unknown);
    moe_chat_free(r.chat);
    return status;
}

void moe_coe_samples_release(struct moe_coe_samples *s)
{
    free(s->usage);
    moe_ids_release(&s->prompts);
    *s = (struct moe_coe_samples){0};
}
