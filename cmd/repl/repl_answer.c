/* Answers in the interactive prompt, and the notes around them. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "cli.h"
#include "console.h"
#include "engine/conversation.h"
#include "engine/prompt.h"
#include "show/show.h"

/* ---- Shared with moe-run -p ---- */

int repl_stream(void *ctx, const char *bytes, uint64_t n)
{
    (void)ctx;
    cli_progress_over();
    return cli_write(bytes, n) ? MOE_OK : MOE_ERR_IO;
}

static void set_dim(struct repl_said *s, bool dim)
{
    if (s->dim != dim && cli_may_colour(STDOUT_FILENO)) {
        FILE *terminal = cli_terminal(STDOUT_FILENO);
        fputs(dim ? "\033[2m" : "\033[0m", terminal);
        fflush(terminal);
    }
    s->dim = dim;
}

/* A piece of a thought on stderr, where notes may be. */
static void say_apart(const struct moe_answer_part *part, bool begins)
{
    if (cli_quiet)
        return;
    fputs(begins ? "thought: " : "", stderr);
    fwrite(part->bytes, 1, part->n, stderr);
}

int repl_say_part(void *said, const struct moe_answer_part *part)
{
    struct repl_said *s = said;
    bool thinks = part->kind == MOE_PART_THOUGHT, calls = part->kind == MOE_PART_CALL,
         begins = !s->some || s->last != part->kind;
    const char *before = "", *name = "", *after = "";
    s->thinks = thinks;
    cli_progress_over();
    if (s->hidden || (part->joins && begins)) /* they are apart already */
        return MOE_OK;
    if (s->apart && (thinks || s->thought)) {
        if (thinks)
            say_apart(part, !s->thought);
        else if (!cli_quiet)
            fputc('\n', stderr);
        s->thought = thinks;
        if (thinks)
            return MOE_OK;
    }
    if (calls)
        before = !s->some ? "-> " : s->last == MOE_PART_CALL_ENDS ? "\n-> " : "\n\n-> ";
    else if ((thinks || part->kind == MOE_PART_CONTENT) && s->some && begins)
        before = "\n\n";
    if (thinks && begins && !cli_may_colour(STDOUT_FILENO))
        name = "thought: ";
    if (calls)
        after = "(";
    else if (part->kind == MOE_PART_CALL_ENDS)
        after = ")";
    else if (part->kind == MOE_PART_CALL_FAILS)
        after = "  [not a whole call]";
    set_dim(s, thinks);
    s->some = true;
    s->last = part->kind;
    bool shown = part->kind != MOE_PART_CALL_FAILS; /* its text was shown as it came */
    return cli_write(before, strlen(before)) && cli_write(name, strlen(name)) &&
                   cli_write(part->bytes, shown ? part->n : 0) && cli_write(after, strlen(after))
               ? MOE_OK
               : MOE_ERR_IO;
}

bool repl_end_said(struct repl_said *s)
{
    const bool thinks = s->thinks;
    set_dim(s, false);
    if (s->thought && !cli_quiet)
        fputc('\n', stderr);
    s->some = s->thought = s->thinks = false;
    return thinks;
}

void repl_explain_stop(enum moe_stop_reason why, bool thinks, uint32_t context)
{
    if (thinks && why != MOE_STOP_USER)
        cli_note("the answer ended within its thought");
    if (why == MOE_STOP_CONTEXT)
        cli_note("the context of %u tokens is full: the answer stops here", context);
}

void repl_explain_shift(const struct moe_stats *stats)
{
    if (stats->context_shifts)
        cli_note("the context was full: its oldest %llu tokens were dropped (--context-shift)",
                 (unsigned long long)stats->dropped_tokens);
}

/* ---- Talking ---- */

void console_print(const char *text)
{
    struct moe_buf lines = {0};
    moe_buf_printf(&lines, "%s\n", text);
    cli_fit(STDERR_FILENO, &lines);
    if (!lines.failed)
        fputs((const char *)lines.data, stderr);
    moe_buf_release(&lines);
}

void console_tell(const struct console *c, const char *format, ...)
{
    FILE *terminal = c->colour ? cli_terminal(STDERR_FILENO) : NULL;
    va_list args;
    char line[1024];
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (terminal)
        fputs("\033[2m", terminal);
    console_print(line);
    if (terminal)
        fputs("\033[0m", terminal);
}

bool console_has_encoder(const struct console *c)
{
    return c->r->conversation->session->model->config.n_encoder > 0;
}

/* ---- Answers ---- */

int console_new_sampler(struct console *c, struct moe_err *err)
{
    const struct moe_model *model = c->r->conversation->session->model;
    struct moe_sampler_options sampling = *c->r->sampling;
    struct moe_sampler *fresh;
    moe_sampling_complete(&sampling, &model->sampling);
    MOE_TRY(moe_sampler_new(&fresh, &sampling, model->config.vocab, err));
    moe_sampler_free(c->sampler);
    c->sampler = fresh;
    return MOE_OK;
}

static void footer(const struct console *c)
{
    if (cli_quiet)
        return;
    struct moe_buf line = {0};
    moe_show_run_line(&c->r->conversation->session->stats, cli_width(STDERR_FILENO), &line);
    if (!line.failed)
        console_tell(c, "%s", (const char *)line.data);
    moe_buf_release(&line);
}

static void tell_full(const struct console *c)
{
    console_tell(c, console_has_encoder(c) ? "-c sets a longer context"
                                           : "/reset empties the context; -c sets a longer one");
}

static bool is_one_of(const struct moe_buf *line, const char *const *words)
{
    while (*words && !(line->size == strlen(*words) &&
                       strncasecmp((const char *)line->data, *words, line->size) == 0))
        words++;
    return *words;
}

/* Whether the oldest turns may go, which then they may for good. A line that is neither yes nor no
 * was meant for the model: it is the next input. */
static bool offer_shift(struct console *c)
{
    static const char *const yes[] = {"y", "yes", NULL}, *const no[] = {"", "n", "no", NULL};
    const struct moe_config *m = &c->r->conversation->session->model->config;
    struct moe_buf *answer = &c->next;
    if (c->r->context_shift || c->r->exact || c->r->beams.n || m->n_encoder || m->prefix_lm)
        return false;
    moe_buf_clear(answer);
    c->next_pasted = (struct pasted){0};
    enum reading got =
        editor_read(c->editor, "the context is full: drop the oldest turns from now on? [y/n] ",
                    answer, &c->next_pasted);
    bool read = got == READ_LINE && !answer->failed;
    c->r->context_shift = read && is_one_of(answer, yes);
    c->has_next = read && !c->r->context_shift && !is_one_of(answer, no);
    if (c->has_next)
        console_tell(c, "(no; that line is taken as the next input)");
    return c->r->context_shift;
}

/* Whether the question fits once all turns before it are dropped; where it does not, err says so.
 */
static bool would_fit(const struct console *c, const char *text, struct moe_err *err)
{
    struct moe_conversation *talk = c->r->conversation;
    struct moe_err why;
    uint64_t n, context = talk->session->context;
    if (!talk->chat) /* it was alone */
        return false;
    if (moe_conversation_alone(talk, text, &n, &why) != MOE_OK || n <= context)
        return true;
    moe_prompt_too_long(&talk->session->model->config, n, false, context, err);
    return false;
}

/* Asks or continues; a full context is offered to lose its oldest turns. */
static int generate(struct console *c, const char *text, const struct moe_generate_options *options,
                    enum moe_stop_reason *why, struct moe_err *err)
{
    struct moe_conversation *talk = c->r->conversation;
    int status;
    if (c->r->context_shift && (text || !moe_conversation_has_result(talk)))
        return moe_conversation_shifting(talk, text, c->sampler, options, why, err);
    status = text ? moe_conversation_ask(talk, text, c->sampler, options, why, err)
             : moe_conversation_has_result(talk)
                 ? moe_conversation_answer(talk, c->sampler, options, why, err)
                 : moe_conversation_continue(talk, c->sampler, options, why, err);
    cli_progress_done();
    if (status == MOE_ERR_LIMIT && text && talk->chat && moe_conversation_n(talk) > 0 &&
        would_fit(c, text, err) && offer_shift(c)) {
        struct moe_generate_options now = *options;
        now.started = moe_seconds(); /* not while it waited for a yes */
        return moe_conversation_shifting(talk, text, c->sampler, &now, why, err);
    }
    if (status == MOE_OK && *why == MOE_STOP_CONTEXT) {
        cli_write("\n", 1);
        if (offer_shift(c)) {
            double ttft = talk->session->stats.ttft_seconds; /* the answer began before */
            status = moe_conversation_shifting(talk, NULL, c->sampler, options, why, err);
            talk->session->stats.ttft_seconds = ttft;
        }
    }
    return status;
}

int console_answer(struct console *c, const char *text, struct moe_err *err)
{
    struct repl *r = c->r;
    struct moe_session *s = r->conversation->session;
    struct moe_generate_options o = {
        .beams = r->beams,
        .constraint = r->constraint,
        .max_tokens = r->max_tokens,
        .min_tokens = r->min_tokens,
        .stop_ids = r->stop_ids->ids,
        .n_stop_ids = (uint32_t)r->stop_ids->n,
        .draft = r->draft,
        .draft_ahead = r->draft_ahead,
        .ignore_eos = r->ignore_eos,
        .stop_texts = r->stop_texts,
        .stop = &cli_stop,
        .progress = cli_progress(),
        .started = moe_seconds(),
        .text = repl_stream,
    };
    enum moe_stop_reason why = MOE_STOP_EOS;
    s->stats = (struct moe_stats){0};
    cli_start_over();
    err->text[0] = 0;
    int status = generate(c, text, &o, &why, err);
    bool thinks = r->conversation->on_part && repl_end_said(r->conversation->part_ctx);
    cli_start_over();
    cli_progress_done();
    if (status != MOE_OK && !err->text[0])
        return cli_flush(err) != MOE_OK ? MOE_ERR_IO : moe_fail(err, status, "the answer failed");
    if (status != MOE_OK) {
        cli_error(err);
        if (status == MOE_ERR_LIMIT && (!text || console_has_encoder(c) || would_fit(c, text, err)))
            tell_full(c);
        return MOE_OK;
    }
    putchar('\n');
    if (cli_flush(err) != MOE_OK)
        return MOE_ERR_IO;
    moe_engine_finish_stats(r->engine, &s->stats);
    moe_stats_add(r->total, &s->stats);
    repl_explain_stop(why, thinks && why != MOE_STOP_LENGTH, s->context); /* that is told below */
    repl_explain_shift(&s->stats);
    if (why == MOE_STOP_CONTEXT)
        tell_full(c);
    if (why == MOE_STOP_LENGTH)
        console_tell(c, "(stopped after -n tokens; /continue resumes)");
    if (why == MOE_STOP_USER)
        console_tell(c, "(stopped)");
    footer(c);
    return MOE_OK;
}
