/* A plan as a page: what its text says (show/explain_plan.c), with pictures. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/text.h"
#include "html/pages.h"
#include "html/pictures.h"
#include "show/explain.h"
#include "show/explain_figures.h"

static const struct moe_screen unicode = {.columns = MOE_USUAL_COLUMNS, .blocks = true};

static void put_head(struct moe_page *p, const struct moe_plan *plan)
{
    struct moe_buf answer = {0}, speed = {0}, prompt = {0};
    char room[32];
    moe_explain_answer(plan, &answer);
    moe_explain_speed(plan, false, &speed);
    moe_explain_speed(plan, true, &prompt);
    p->out->failed |= answer.failed || speed.failed || prompt.failed;
    if (!p->out->failed) {
        moe_page_answer(p, (const char *)answer.data);
        moe_page_say(
            p, "%s in %s%s%s, simulated. An answer: %s. A prompt: %s.",
            plan->pack[0] ? plan->pack : "A model",
            moe_format_about_bytes(
                (double)(plan->memory.total ? plan->memory.total : plan->memory.experts), room),
            plan->evidence.device[0] ? ", on " : "", plan->evidence.device,
            (const char *)speed.data, (const char *)prompt.data);
    }
    moe_buf_release(&answer);
    moe_buf_release(&speed);
    moe_buf_release(&prompt);
}

static void put_parts(struct moe_page *p, const char *title, const char *caption,
                      const struct moe_explained_part *from, uint32_t n,
                      char *(*format)(double, char[32]), const char *note)
{
    struct moe_page_part parts[MOE_EXPLAINED_PARTS];
    if (n == 0)
        return;
    for (uint32_t i = 0; i < n; i++)
        parts[i] = (struct moe_page_part){from[i].name, from[i].amount};
    moe_page_open_section(p, title);
    moe_page_parts(p, parts, n, caption, format);
    moe_page_note(p, note);
    moe_page_close_section(p);
}

static void put_memory(struct moe_page *p, const struct moe_plan *plan)
{
    struct moe_explained_part parts[MOE_EXPLAINED_PARTS];
    char note[256];
    snprintf(note, sizeof note,
             "Experts are blocks of weights: each of %" PRIu32 " layers has %" PRIu32
             ", a token uses %" PRIu32 " of them. Those that have no room are read when they are "
             "needed.",
             plan->n_layers, plan->n_experts, plan->top_k);
    put_parts(p, "Where the memory goes", "The memory of the plan", parts,
              moe_explain_memory(plan, &plan->memory, parts), moe_format_about_bytes, note);
    if (plan->host.total)
        put_parts(p, "Where main memory goes", "The memory beside the GPU's", parts,
                  moe_explain_memory(plan, &plan->host, parts), moe_format_about_bytes,
                  "Experts here wait to be brought to the GPU.");
}

static void put_time(struct moe_page *p, const struct moe_plan *plan)
{
    const struct moe_plan_bounds b = moe_plan_bounds(plan);
    struct moe_explained_part parts[MOE_EXPLAINED_PARTS];
    char title[64], room[32];
    if (b.total <= 0)
        return;
    snprintf(title, sizeof title, "Where a token's time goes, %s",
             moe_format_about_seconds(b.total, room));
    put_parts(p, title, "The time of a token, by cause", parts, moe_explain_time(plan, parts),
              moe_format_about_seconds,
              "Computing: what it would take with every expert in memory. Nobody could avoid: what "
              "must be read even if the cache knew the text, as long as it reads nothing ahead. A "
              "perfect guess: the rest, if it were known what the text will use.");
}

static void put_layers(struct moe_page *p, const struct moe_plan *plan)
{
    struct moe_table t;
    if (!moe_explain_layers(plan, MOE_TABLE_ROWS - 1, &t))
        return;
    moe_page_open_section(p, "Layers with experts");
    moe_page_table(p, &t);
    moe_page_note(p, "In memory: of the experts that a layer's tokens use. Waits: for the others, "
                     "for each token. Guessed: before the layer's router has chosen; that can be "
                     "read ahead.");
    moe_page_close_section(p);
}

/* A curve, with the table of its points. */
static void put_steps(struct moe_page *p, const char *title, struct moe_page_curve curve,
                      const struct moe_plan_step *steps, uint32_t n, bool known,
                      const struct moe_table *t, const char *note)
{
    double x[MOE_PLAN_MAX_STEPS], y[MOE_PLAN_MAX_STEPS];
    if (!known)
        return;
    for (uint32_t i = 0; i < n; i++) {
        x[i] = steps[i].amount;
        y[i] = steps[i].decode_tokens_per_second;
    }
    curve.n = n;
    curve.x = x;
    curve.y = y;
    curve.y_name = "tokens/s of an answer";
    moe_page_open_section(p, title);
    moe_page_curve(p, &curve);
    moe_page_table(p, t);
    moe_page_note(p, note);
    moe_page_close_section(p);
}

static void put_outlook(struct moe_page *p, const struct moe_plan *plan)
{
    struct moe_table t;
    bool known = moe_explain_memory_steps(plan, MOE_PLAN_MAX_STEPS, &t);
    const struct moe_page_curve memory = {
        .caption = "Tokens per second over memory",
        .x_name = plan->memory.total ? "memory of the process" : "memory for experts",
        .now_name = "planned",
        .now = (double)(plan->memory.total ? plan->memory.total : plan->memory.experts),
        .format_x = moe_format_about_bytes};
    put_steps(p, "More memory or less", memory, plan->memory_steps, plan->n_memory_steps, known, &t,
              "In memory: of the experts that a token uses, when they are needed.");
    known = moe_explain_link_steps(plan, MOE_PLAN_MAX_STEPS, &t);
    const struct moe_page_curve link = {
        .caption = "Tokens per second over the rate at which experts are read",
        .x_name = "experts are read at (each mark: twice as fast)",
        .now_name = "planned",
        .now = plan->pace.load_rate,
        .logarithmic = true,
        .format_x = moe_format_rate};
    put_steps(p,
              plan->host.total ? "A faster bus or a slower one" : "A faster disk or a slower one",
              link, plan->rate_steps, plan->n_rate_steps, known, &t,
              "What else limits the speed shows where the curve becomes flat.");
}

static void put_alternatives(struct moe_page *p, const struct moe_plan *plan)
{
    struct moe_table t;
    struct moe_buf same = {0};
    if (plan->n_alternatives == 0)
        return;
    moe_page_open_section(p, "What if one thing were different");
    if (moe_explain_alternatives(plan, &t, &same))
        moe_page_table(p, &t);
    if (same.size && !same.failed)
        moe_page_say(p, "No difference: %s.", (const char *)same.data);
    p->out->failed |= same.failed;
    moe_page_note(p, "Prompt: tokens/s of one. Reads: by a token of an answer. Found: experts in "
                     "memory when they are "
                     "needed. -: less memory than the smallest that works. (*) Fewer bits change "
                     "what the model says; moe-calibrate measures by how much.");
    moe_buf_release(&same);
    moe_page_close_section(p);
}

static void put_assumptions(struct moe_page *p, const struct moe_plan *plan)
{
    enum moe_assumption what[MOE_N_ASSUMPTIONS];
    uint32_t n = moe_plan_assumptions(plan, what);
    moe_page_open_section(p, "What it assumes, the weakest first");
    for (uint32_t i = 0; i < n; i++) {
        struct moe_buf text = {0};
        moe_explain_assumption(plan, what[i], unicode, &text);
        p->out->failed |= text.failed;
        if (!text.failed)
            moe_page_say(p, "%" PRIu32 ". %s", i + 1, (const char *)text.data);
        moe_buf_release(&text);
    }
    moe_page_close_section(p);
}

static void put_words(struct moe_page *p, const struct moe_plan *plan)
{
    struct moe_buf text = {0};
    moe_explain_plan(plan, unicode, &text);
    if (!text.failed && text.size)
        moe_page_lines(p, "The same in words, and how it works", (const char *)text.data);
    p->out->failed |= text.failed;
    moe_buf_release(&text);
}

int page_plan(struct moe_page *p, const char *path, struct moe_err *err)
{
    struct moe_plan *plan = NULL;
    int status = moe_plan_read(&plan, path, err);
    if (status == MOE_OK) {
        put_head(p, plan);
        put_memory(p, plan);
        put_time(p, plan);
        put_outlook(p, plan);
        put_alternatives(p, plan);
        put_layers(p, plan);
        put_assumptions(p, plan);
        put_words(p, plan);
    }
    moe_plan_free(plan);
    return status;
}
