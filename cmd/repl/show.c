/* /stats, /memory, /strategy: what the program tells of itself. */
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/text.h"
#include "cli.h"
#include "commands.h"
#include "show/explain.h"
#include "show/show_run.h"

static void print(struct moe_buf *text)
{
    cli_fit(STDERR_FILENO, text);
    fputs(text->failed ? "out of memory\n" : text->data ? (const char *)text->data : "", stderr);
    moe_buf_release(text);
}

int command_stats(struct console *c, const char *arg, struct moe_err *err)
{
    struct moe_buf text = {0};
    struct moe_stats total = *c->r->total;
    moe_engine_finish_stats(c->r->engine, &total);
    moe_show_run(&total, &text);
    print(&text);
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
        talk->history.n, talk->session->context);
    print(&text);
    return 0;
}

int command_strategy(struct console *c, const char *arg, struct moe_err *err)
{
    const struct moe_engine *e = c->r->engine;
    if (*arg)
        console_tell(c, "the strategy is fixed when moe-run starts (--strategy)");
    struct moe_buf text = {0};
    moe_buf_printf(&text, "%s\n%s\n", e->strategy.name, e->strategy.describe);
    if (!e->strategy.resident)
        moe_buf_printf(&text, "%s\n", e->parts);
    if (e->fallback)
        moe_buf_printf(&text, "%s\n", e->fallback);
    if (moe_strategy_boundary_from(&e->strategy))
        moe_buf_printf(&text, "shallow:%u (%s)\n", e->strategy.boundary,
                       moe_strategy_boundary_from(&e->strategy));
    moe_explain_exactness(&e->exactness, &text);
    moe_buf_u8(&text, '\n');
    print(&text);
    return 0;
}
