/* Opens the trace, or draws one. */
#include "plan_trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "cli.h"
#include "plan/synthesis.h"
#include "profile/document_split.h"
#include "profile/statistics.h"

/* Of a synthetic trace: enough decoded tokens for an error of two points in the hit rate. */
enum { SEQUENCES = 24, PROMPT_TOKENS = 32, DECODED_TOKENS = 112 };

static bool alike(const struct moe_trace_shape *a, const struct moe_inventory *b)
{
    return a->n_layers == b->n_layers && a->n_encoder == b->n_encoder &&
           a->n_experts == b->n_experts && a->top_k == b->top_k &&
           memcmp(a->is_static, b->is_static, a->n_layers) == 0;
}

static int refuse(const struct plan_inputs *in, struct moe_err *err)
{
    const struct moe_trace_shape *s = moe_trace_shape(in->trace);
    return moe_fail(err, MOE_ERR_USAGE,
                    "%s: a trace of %u layers of %u experts, %u a token; %s has %u of %u, %u",
                    in->options->trace, s->n_layers, s->n_experts, s->top_k, in->name,
                    in->inventory->n_layers, in->inventory->n_experts, in->inventory->top_k);
}

/* How experts are used: from statistics, else from a trace of another model, else as in the bundled
 * model. */
static int find_figures(struct plan_inputs *in, struct moe_routing_figures *out,
                        struct moe_err *err)
{
    bool known_accuracy;
    *out = moe_routing_figures_bundled;
    in->evidence.manner_known = in->statistics || in->trace;
    if (in->statistics)
        moe_routing_figures_of_statistics(out, in->statistics);
    else if (in->trace)
        return moe_routing_figures_of_trace(out, &known_accuracy, in->trace, err);
    return MOE_OK;
}

/* Of a model without weights nothing was ever counted: other texts are drawn in the same manner. */
static int begin_statistics(struct plan_inputs *in, struct moe_err *err)
{
    const struct moe_inventory *inv = in->inventory;
    const struct moe_statistics_shape shape = {
        .n_layers = inv->n_layers,
        .n_experts = inv->n_experts,
        .top_k = inv->top_k,
        .n_encoder = inv->n_encoder,
        .max_tokens = PROMPT_TOKENS + DECODED_TOKENS,
        .prompt_percent = 100 * PROMPT_TOKENS / (PROMPT_TOKENS + DECODED_TOKENS),
    };
    return inv->top_k <= MOE_STATISTICS_MAX_TOP_K ? moe_statistics_new(&in->statistics, &shape, err)
                                                  : MOE_OK;
}

static int write_drawn(struct plan_inputs *in, const struct moe_synthesis *synthesis,
                       const char *path, struct moe_err *err)
{
    struct moe_routing_figures reached;
    MOE_TRY(moe_synthesise(path, synthesis, &reached, err));
    return moe_trace_open(&in->trace, path, err);
}

/* ... into a file that has no name. */
static int write_nameless(struct plan_inputs *in, const struct moe_synthesis *synthesis,
                          struct moe_err *err)
{
    const char *dir = getenv("TMPDIR");
    char path[MOE_DESCRIPTOR_PATH];
    dir = dir && *dir ? dir : "/tmp";
    int fd = moe_file_nameless(dir, path, err);
    if (fd < 0)
        return fd;
    int status = write_drawn(in, synthesis, path, err);
    close(fd);
    if (status != MOE_OK)
        moe_err_rename(err, path, dir);
    return status;
}

/* Draws a trace. */
static int draw(struct plan_inputs *in, struct moe_err *err)
{
    const char *kept = in->options->drawn;
    struct moe_synthesis synthesis = {
        .shape = {.n_layers = in->inventory->n_layers,
                  .n_encoder = in->inventory->n_encoder,
                  .n_experts = in->inventory->n_experts,
                  .top_k = in->inventory->top_k},
        .sequences = SEQUENCES,
        .prompt_tokens = PROMPT_TOKENS,
        .decoded_tokens = DECODED_TOKENS,
        .seed = in->options->seed,
    };
    memcpy(synthesis.shape.is_static, in->inventory->is_static, in->inventory->n_layers);
    MOE_TRY(find_figures(in, &synthesis.figures, err));
    if (!in->statistics && in->options->shape)
        MOE_TRY(begin_statistics(in, err));
    synthesis.statistics = in->options->strategy.statistics ? NULL : in->statistics;
    moe_trace_close(in->trace);
    in->trace = NULL;
    MOE_TRY(kept ? write_drawn(in, &synthesis, kept, err) : write_nameless(in, &synthesis, err));
    cli_note("no trace of this model: drawing one at random that resembles %s",
             in->options->strategy.statistics ? in->options->strategy.statistics
             : in->options->trace             ? in->options->trace
                                              : "the bundled model");
    return MOE_OK;
}

/* Statistics of the trace's own documents would know what comes in it: those of every other
 * document then score the rest. */
static int split_documents(struct plan_inputs *in, struct moe_err *err)
{
    const struct moe_origins *trace = moe_trace_origins(in->trace);
    if (!in->statistics || !trace || !moe_split_shared(&in->statistics->origins, trace) ||
        in->inventory->n_encoder || moe_trace_totals(in->trace)->sequences < 2)
        return MOE_OK;
    const struct moe_excerpt counted = moe_split_counted(in->excerpt);
    in->excerpt = moe_split_judged(in->excerpt);
    cli_note("%s counts the documents of %s: every other one is simulated, by statistics of the "
             "rest",
             in->options->strategy.statistics, in->options->trace);
    return moe_split_count(&in->scoring, in->trace, counted, &in->statistics->shape, err);
}

/* The tokens of the trace that are used. */
static int count_tokens(struct plan_inputs *in, struct moe_err *err)
{
    const struct moe_trace_token *token;
    struct moe_plan_evidence *e = &in->evidence;
    int status = MOE_OK;
    in->excerpt = moe_excerpt_of(in->trace, in->options->max_tokens);
    status = split_documents(in, err);
    if (status != MOE_OK)
        return status;
    moe_excerpt_begin(in->trace, in->excerpt, 0);
    while ((status = moe_excerpt_next(in->trace, in->excerpt, &e->trace_tokens, &token, err)) ==
               MOE_OK &&
           token) {
        e->trace_prompt_tokens += token->prompt;
        e->trace_sequences += token->index == 0;
    }
    return status;
}

int plan_trace_open(struct plan_inputs *in, struct moe_err *err)
{
    const struct plan_options *o = in->options;
    if (o->trace && !in->trace)
        MOE_TRY(moe_trace_open(&in->trace, o->trace, err));
    bool own = in->trace && alike(moe_trace_shape(in->trace), in->inventory);
    if (in->trace && !own && !o->shape)
        return refuse(in, err);
    if (own && o->drawn)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: is a trace of this model, so there is none to draw (--draw-trace)",
                        o->trace);
    if (own)
        snprintf(in->evidence.trace, sizeof in->evidence.trace, "%s", o->trace);
    else
        MOE_TRY(draw(in, err));
    return count_tokens(in, err);
}
