/* /show, /stats, /memory, /strategy: what the program tells of itself. */
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/text.h"
#include "cli.h"
#include "commands.h"
#include "show/explain.h"
#include "show/show.h"

static void print_text(struct moe_buf *text)
{
    cli_fit(STDERR_FILENO, text);
    fputs(text->failed ? "out of memory\n" : text->data ? (const char *)text->data : "", stderr);
    moe_buf_release(text);
}

/* Positions in use: the last token of an answer that filled the context has none. */
static uint64_t in_use(const struct moe_conversation *talk)
{
    uint64_t context = talk->session->context;
    return talk->history.n < context ? talk->history.n : context;
}

/* Appends "PATH: qwen2_moe, 12 layers, ..." and the lines below it. */
static int say_model(const struct console *c, struct moe_buf *out, struct moe_err *err)
{
    const struct moe_conversation *talk = c->r->conversation;
    const struct moe_model *m = talk->session->model;
    struct moe_pack_summary summary;
    char now[32], budget[32];
    MOE_TRY(moe_pack_summarize(m->pack, &summary, err));
    moe_buf_printf(out, "model    %s: %s\nweights  ", c->r->pack, m->config.family);
    moe_show_pack_line(&summary, out);
    moe_buf_printf(out, "\ntemplate %s\n",
                   !talk->chat           ? (m->chat_template[0] ? "none (--raw): plain continuation"
                                                                : "none: plain continuation")
                   : c->r->template_file ? c->r->template_file
                                         : "the model's own");
    moe_buf_printf(out, "context  %" PRIu64 " of %" PRIu32 " tokens in use (-c; the model's: %u)\n",
                   in_use(talk), talk->session->context, m->config.context_max);
    uint64_t total = c->r->engine->budget.host.total;
    moe_buf_printf(out, "memory   %s of %s%s in use; /memory says where it goes\n",
                   moe_format_bytes(moe_rss_bytes(), now),
                   total == UINT64_MAX ? "what is free" : moe_format_bytes(total, budget),
                   cli_given("memory") ? " (--memory)" : "");
    moe_buf_text(out, "sampling ");
    if (c->r->beams.n)
        moe_buf_printf(out, "none: the best of %" PRIu32 " beams", c->r->beams.n);
    else
        moe_show_sampling(c->r->sampling, &m->sampling, out);
    moe_buf_text(out, "\n");
    return MOE_OK;
}

int command_show(struct console *c, const char *arg, struct moe_err *err)
{
    struct moe_buf text = {0};
    if (say_model(c, &text, err) != MOE_OK)
        cli_error(err);
    print_text(&text);
    return 0;
}

int command_stats(struct console *c, const char *arg, struct moe_err *err)
{
    struct moe_buf text = {0};
    struct moe_stats total = *c->r->total;
    moe_engine_finish_stats(c->r->engine, &total);
    if (!c->r->beams.n) {
        total.asked = c->r->sampling;
        total.published = &c->r->conversation->session->model->sampling;
    }
    moe_show_run(&total, &text);
    print_text(&text);
    return 0;
}

int command_memory(struct console *c, const char *arg, struct moe_err *err)
{
    const struct moe_conversation *talk = c->r->conversation;
    struct moe_buf text = {0};
    char now[32], peak[32];
    moe_budget_write_text(&c->r->engine->budget, &text);
    moe_buf_printf(
        &text,
        "process  %s now, %s at its peak; %" PRIu64 " of %" PRIu32 " tokens of context in use\n",
        moe_format_bytes(moe_rss_bytes(), now), moe_format_bytes(moe_peak_rss_bytes(), peak),
        in_use(talk), talk->session->context);
    print_text(&text);
    return 0;
}

int command_strategy(struct console *c, const char *arg, struct moe_err *err)
{
    const struct moe_engine *e = c->r->engine;
    if (*arg)
        console_tell(c, "the strategy is fixed when moe-run starts (--strategy)");
    struct moe_buf text = {0};
    if (c->r->conversation->session->model->config.n_experts)
        moe_buf_printf(&text, "%s\n%s\n", e->strategy.name, e->strategy.describe);
    else
        moe_buf_text(&text, "a dense model: all of it stays in memory\n");
    if (!e->strategy.resident)
        moe_buf_printf(&text, "%s\n", e->parts);
    if (e->fallback)
        moe_buf_printf(&text, "%s\n", e->fallback);
    if (moe_strategy_boundary_from(&e->strategy))
        moe_buf_printf(&text, "shallow:%u (%s)\n", e->strategy.boundary,
                       moe_strategy_boundary_from(&e->strategy));
    if (moe_strategy_thresholds_from(&e->strategy))
        moe_buf_printf(&text, "thresholds %s\n", moe_strategy_thresholds_from(&e->strategy));
    moe_explain_exactness(&e->exactness, &text);
    moe_buf_u8(&text, '\n');
    print_text(&text);
    return 0;
}
