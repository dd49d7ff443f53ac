/* What running a pack takes, as text and as JSON. */
#include <inttypes.h>
#include <stdio.h>

#include "base/text.h"
#include "engine/memory.h"
#include "fmt/emit.h"
#include "show/draw.h"
#include "show/explain.h"
#include "show/show.h"

enum { CONTEXT = 4096, SMALL_BATCH = 16, MIB = 1 << 20 };

/* What a run reads, its prompt, has room too, as in moe-plan and moe-run. */
static uint64_t room_for_text(const void *ctx, const struct moe_model *model, uint32_t batch)
{
    uint32_t most = model->config.context_max;
    (void)ctx;
    (void)batch;
    return moe_engine_text_room(most < CONTEXT ? most : CONTEXT);
}

/* What running it takes at least, as moe-run does by itself, with small batches of a prompt. */
static int measure_pack(const char *path, struct moe_plan_memory *out, struct moe_err *err)
{
    const struct moe_engine_options options = {.memory_bytes = UINT64_MAX / 2,
                                               .session = {.n_sequences = 1, .batch = SMALL_BATCH},
                                               .context_cap = CONTEXT,
                                               .beside = room_for_text};
    struct moe_pack_fit *fit = NULL;
    struct moe_strategy usual;
    struct moe_fitted fitted;
    moe_strategy_find(MOE_DEFAULT_STRATEGY, &usual);
    int status;
    MOE_STEP(moe_strategy_settle(&usual, err));
    MOE_STEP(moe_pack_fit_open(&fit, path, &options, err));
    struct moe_fitter fitter = moe_pack_fit_fitter(fit);
    MOE_STEP(fitter.fit(fitter.ctx, &usual, NULL, &fitted, err));
    *out = fitted.memory;
out:
    moe_pack_fit_close(fit);
    return status;
}

static uint64_t all_in_memory(const struct moe_plan_memory *m)
{
    return m->program + m->dense + m->kv + m->work + m->all;
}

static void put_variants(const struct moe_pack_summary *s, const struct moe_pen *pen)
{
    char room[2][32];
    for (uint32_t v = 0; v < moe_pack_n_variants(s->pack); v++) {
        const struct moe_weight_sum *sum = &s->variants[v];
        const char *name = moe_show_variant_bits(s->pack, v);
        moe_say(pen, 2,
                "%" PRIu64 " experts at %s%s (%.2f with scales): %s in whole pages, %s each",
                sum->count, name, moe_bits_unit(name), moe_weight_sum_bits(sum),
                moe_format_bytes(sum->paged_bytes, room[0]),
                moe_format_bytes(sum->count ? sum->paged_bytes / sum->count : 0, room[1]));
    }
}

static void put_pack(const struct moe_pack_summary *s, const struct moe_plan_memory *m,
                     const char *path, const struct moe_pen *pen)
{
    const struct moe_config *c = &s->config;
    const struct moe_loop loop = moe_config_moe_loop(c);
    char room[3][32], visits[32] = "";
    uint64_t floor = (m->floor + MIB - 1) / MIB;
    if (c->loop.n)
        snprintf(visits, sizeof visits, " in %" PRIu32 " visits", c->n_layers);
    moe_say(pen, 0,
            "%s: %s, a model of %" PRIu32 " layers%s; %" PRIu32 " of them have %" PRIu32
            " experts (blocks of weights); a token uses %" PRIu32 "%s.",
            path, c->family, moe_loop_owners(&c->loop, c->n_layers), visits,
            moe_loop_owners(&loop, s->n_moe_layers), c->n_experts, c->top_k,
            c->loop.n ? " of them in each visit" : "");
    if (s->synthesized.is)
        moe_say(pen, 0,
                "Its weights were drawn (moe-quantize --synthesize)%s: it shows how such a model "
                "runs, what it says is no text.",
                s->synthesized.sparse ? ", and its experts are holes, which no disk is read for"
                                      : "");
    moe_buf_text(pen->out, "\nWhat is in it\n");
    moe_say(pen, 2, "weights outside experts, always in memory: %s",
            moe_format_bytes(s->dense.raw_bytes, room[0]));
    put_variants(s, pen);
    moe_buf_text(pen->out, "\nWhat running it takes\n");
    moe_say(
        pen, 2,
        "A token visits %s%" PRIu32
        " experts: %s of %s, %.1f%%. They may stay in memory or be loaded when they are needed.",
        c->loop.n ? "at most " : "", s->n_moe_layers * c->top_k,
        moe_format_bytes(m->token, room[0]), moe_format_bytes(m->all, room[1]),
        m->all ? 100 * (double)m->token / (double)m->all : 0);
    moe_say(pen, 2,
            "The smallest budget that works is %s (--memory %" PRIu64
            "M), with a context of %" PRIu32 " and prompts in batches of %" PRIu32
            "; all experts fit from %s on.",
            moe_format_bytes(m->floor, room[0]), floor, m->context, m->batch,
            moe_format_bytes(all_in_memory(m), room[1]));
    if (s->synthesized.is) /* texts say nothing of it */
        moe_buf_printf(pen->out,
                       "\nNext\n"
                       "  moe-plan %s --memory SIZE --draw-trace drawn.trace -o plan.yaml\n"
                       "  moe-run %s --plan plan.yaml --bench --follow drawn.trace\n",
                       path, path);
    else
        moe_buf_printf(pen->out,
                       "\nNext\n"
                       "  moe-profile %s %s -o stats.yaml --trace yours.trace\n"
                       "  moe-plan %s --memory SIZE --stats stats.yaml --trace yours.trace\n",
                       path, s->config.n_encoder ? "--pairs YOURS.jsonl" : "--text YOURS.txt",
                       path);
}

/* A model without experts: every token uses all of its weights, and there is nothing to plan. */
static void put_dense(const struct moe_pack_summary *s, const struct moe_plan_memory *m,
                      const char *path, const struct moe_pen *pen)
{
    const struct moe_config *c = &s->config;
    char room[2][32];
    moe_say(pen, 0,
            "%s: %s, a dense model of %" PRIu32
            " layers: every token uses all of its weights, so all of them stay in memory. There is "
            "nothing to plan.",
            path, c->family, c->n_layers);
    moe_buf_text(pen->out, "\nWhat running it takes\n");
    moe_say(pen, 2,
            "The smallest budget that works is %s (--memory %" PRIu64
            "M), %s of it weights, with a context of %" PRIu32 " and prompts in batches of %" PRIu32
            ".",
            moe_format_bytes(m->floor, room[0]), (m->floor + MIB - 1) / MIB,
            moe_format_bytes(s->dense.raw_bytes, room[1]), m->context, m->batch);
    moe_buf_printf(pen->out, "\nNext\n  moe-run %s\n", path);
}

static void put_pack_json(const struct moe_pack_summary *s, const struct moe_plan_memory *m,
                          struct moe_buf *out)
{
    struct moe_emit e;
    moe_emit_begin_json(&e, out, MOE_EMIT_LINE);
    if (s->synthesized.is)
        moe_emit_bool(&e, "synthesized", true);
    moe_emit_u64(&e, "layers", s->config.n_layers);
    const bool dense = s->config.n_experts == 0;
    if (!dense) {
        moe_emit_u64(&e, "moe_layers", s->n_moe_layers);
        moe_emit_u64(&e, "experts", s->config.n_experts);
        moe_emit_u64(&e, "experts_per_token", s->config.top_k);
    }
    moe_emit_u64(&e, "dense_bytes", s->dense.raw_bytes);
    if (!dense)
        moe_emit_open_list(&e, "variants");
    for (uint32_t v = 0; v < moe_pack_n_variants(s->pack); v++) {
        moe_emit_open_map(&e, NULL);
        moe_emit_text(&e, "name", moe_pack_variant_at(s->pack, v)->name);
        moe_emit_u64(&e, "experts", s->variants[v].count);
        moe_emit_u64(&e, "bytes", s->variants[v].raw_bytes);
        moe_emit_rounded(&e, "bits_per_weight", 9, moe_weight_sum_bits(&s->variants[v]));
        moe_emit_close(&e);
    }
    if (!dense) {
        moe_emit_close(&e);
        moe_emit_u64(&e, "token_bytes", m->token);
        moe_emit_u64(&e, "all_expert_bytes", m->all);
    }
    moe_emit_u64(&e, "context", m->context);
    moe_emit_u64(&e, "batch", m->batch);
    moe_emit_u64(&e, "smallest_bytes", m->floor);
    moe_emit_u64(&e, "all_in_memory_bytes", all_in_memory(m));
    moe_emit_end(&e, NULL); /* the caller looks at the buffer */
}

int moe_explain_pack(const char *path, bool json, struct moe_screen screen, struct moe_buf *out,
                     struct moe_err *err)
{
    const struct moe_pen pen = {out, screen};
    struct moe_pack_summary *s;
    struct moe_plan_memory memory = {0};
    int status;
    MOE_STEP(moe_pack_summary_open(&s, path, err));
    MOE_STEP(measure_pack(path, &memory, err));
    if (json)
        put_pack_json(s, &memory, out);
    else
        (s->config.n_experts ? put_pack : put_dense)(s, &memory, path, &pen);
out:
    moe_pack_summary_close(s);
    return status;
}
