#include "show/explain.h"

#include <inttypes.h>
#include <stdio.h>

static void say_shallow(const struct moe_strategy *s, uint64_t n_slots, uint32_t n_experts,
                        struct moe_buf *out)
{
    char first[48] = "layer, which is";
    if (s->boundary > 1)
        snprintf(first, sizeof first, "%" PRIu32 " layers, which are", s->boundary);
    if (s->boundary == 0)
        moe_buf_text(out, ", as many for each layer: the first are no harder to guess");
    else if (n_slots < (uint64_t)s->boundary * n_experts)
        moe_buf_printf(out,
                       ", as far as they go for the first %s the hardest to guess, none for "
                       "the rest",
                       first);
    else
        moe_buf_printf(out,
                       ", enough for all experts of the first %s the hardest to guess, the "
                       "rest in equal parts",
                       first);
    if (moe_strategy_boundary_from(s))
        moe_buf_printf(out, " (%s)", moe_strategy_boundary_from(s));
}

static void say_cache(const struct moe_strategy *s, uint64_t n_slots, uint32_t n_experts,
                      struct moe_buf *out)
{
    if (!s->cache || n_slots == 0) {
        moe_buf_text(out, "No expert is kept once its layer is computed.");
        return;
    }
    moe_buf_printf(out, "%" PRIu64 " slots keep experts", n_slots);
    switch (s->alloc) {
    case MOE_ALLOC_GLOBAL:
        moe_buf_text(out, ", shared by all layers: those that use theirs more hold more");
        break;
    case MOE_ALLOC_PER_LAYER:
        moe_buf_text(out, ", as many for each layer");
        break;
    case MOE_ALLOC_SHALLOW:
        say_shallow(s, n_slots, n_experts, out);
        break;
    case MOE_ALLOC_FREQUENCY:
        moe_buf_text(out,
                     ", in equal parts, and what remains for the layers with the busiest experts");
        break;
    }
    moe_buf_printf(out, ". When they are full: %s.", s->cache->describe);
}

static void say_init(const struct moe_strategy *s, struct moe_buf *out)
{
    if (!s->cache || s->init == MOE_INIT_EMPTY)
        return;
    static const char *const words[] = {
        [MOE_INIT_FREQUENCY] =
            " At the start they hold the experts that the statistics saw most often.",
        [MOE_INIT_LAYERWISE] = " At the start they are filled layer by layer.",
        [MOE_INIT_ENCODER] =
            " At the start they hold an encoder's experts, layer by layer, and then "
            "those that the statistics saw most often.",
    };
    moe_buf_text(out, words[s->init]);
}

static void say_source(const struct moe_strategy *s, struct moe_buf *out)
{
    switch (s->predict) {
    case MOE_PREDICT_BY_NOTHING:
        break;
    case MOE_PREDICT_BY_PREVIOUS:
        moe_buf_text(out, "the experts of the token before are expected again");
        break;
    case MOE_PREDICT_BY_TOKEN:
        moe_buf_text(out, "a token's experts are expected to be those of its last use, and a new "
                          "token's those of the token before");
        break;
    case MOE_PREDICT_BY_PATH:
        moe_buf_text(out, "the next layer's experts are predicted from this layer's, by how often "
                          "they followed each other in the statistics");
        break;
    case MOE_PREDICT_BY_KEYS:
        moe_buf_text(out, "the next layer's experts are predicted from the best ones of the last "
                          "two layers, by the statistics");
        break;
    case MOE_PREDICT_BY_REQUESTS:
        moe_buf_text(out, "later layers' experts are predicted to be those of the earlier request "
                          "that is most like this one");
        break;
    case MOE_PREDICT_BY_GATE:
        moe_buf_text(out, "the next layer's router runs early, on this layer's input");
        break;
    case MOE_PREDICT_BY_RESIDUAL:
        moe_buf_text(out,
                     "the next layer's router runs early, on the residual stream as it is now");
        break;
    case MOE_PREDICT_BY_ATTENTION:
        moe_buf_text(out, "a layer's router runs before its attention, on the attention's input");
        break;
    case MOE_PREDICT_BY_ATTENTION_BEFORE:
        moe_buf_text(out, "the next layer's router runs early, on this layer's attention input");
        break;
    }
    if (s->first_by_token)
        moe_buf_text(out, ", and the first layer's experts are expected to be those of the token's "
                          "last use");
    if (s->depth > 1)
        moe_buf_printf(out, ", up to %" PRIu32 " layers ahead", s->depth);
}

/* Which of the predicted experts are read ahead; nothing of limits that there are not. */
static void say_limits(const struct moe_prefetch_limits *l, struct moe_buf *out)
{
    moe_buf_text(out, "; those that are absent are read ahead");
    if (l->percentile > 0)
        moe_buf_printf(out, ", of all experts' scores only those above %.3g%% of them",
                       l->percentile);
    if (l->count)
        moe_buf_printf(out, ", %" PRIu32 " a layer at most", l->count);
    if (l->slack)
        moe_buf_text(out, ", as many as can be read while a layer computes");
    if (l->slack && l->slack_least)
        moe_buf_printf(out, " but %" PRIu32 " in any case", l->slack_least);
    if (l->until_router)
        moe_buf_text(out, ", one after the other until the router has chosen");
    if (l->measured)
        moe_buf_text(out, ", as long as that is measured to gain");
}

static void say_prefetch(const struct moe_strategy *s, struct moe_buf *out)
{
    if (s->stream) {
        moe_buf_text(out, " Every layer is loaded whole, one after the other, whatever its router "
                          "chooses; the next one comes while a layer computes.");
        return;
    }
    if (s->predict == MOE_PREDICT_BY_NOTHING) {
        moe_buf_text(out, " Nothing is read ahead.");
        return;
    }
    moe_buf_text(out, " While a layer computes, ");
    say_source(s, out);
    if (moe_strategy_has(s, MOE_PART_PREFETCH))
        say_limits(&s->prefetch, out);
    moe_buf_text(out, ".");
    if (s->precalculate)
        moe_buf_text(out,
                     " Predicted experts that are absent are computed early on the host, from the "
                     "input of the layer before.");
}

static void say_miss(const struct moe_strategy *s, struct moe_buf *out)
{
    bool host = s->miss_place == MOE_MISS_COMPUTE_HOST;
    if (host)
        moe_buf_text(out, s->host_falls_back
                              ? " An absent expert is computed on the host, or, without a device "
                                "beside it, loaded and dropped"
                              : " An absent expert is computed on the host, where it lies");
    switch (s->miss_precision) {
    case MOE_MISS_BEST:
        moe_buf_text(out, host ? "." : " A layer waits for its absent experts.");
        break;
    case MOE_MISS_BY_SCORE:
        moe_buf_text(out, host ? ", at the low precision if it matters little."
                               : " An absent expert that matters little is loaded at the low "
                                 "precision.");
        break;
    case MOE_MISS_EMERGENCY:
        moe_buf_text(out, host ? ", at the low precision."
                               : " An absent expert is loaded at the low precision.");
        break;
    }
    if (s->skip_below > 0)
        moe_buf_printf(out, " Absent ones in the last %.3g%% of the weight are left out.",
                       100 * s->skip_below);
    if (s->gate_below > 0)
        moe_buf_printf(out,
                       " A decoded token does without the experts in the last %.3g%% of its "
                       "weight.",
                       100 * s->gate_below);
    if (s->prefer > 0)
        moe_buf_printf(out,
                       " A decoded token's routers choose by scores that are %.3g spreads higher "
                       "for experts in the cache; their strongest %u stay.",
                       s->prefer, s->prefer_keeps);
}

static void say_prefill(const struct moe_strategy *s, struct moe_buf *out)
{
    if (s->prefill == MOE_PREFILL_POPULARITY)
        moe_buf_text(out, " In a prompt the experts that most tokens use come first.");
    if (s->prefill == MOE_PREFILL_HYBRID)
        moe_buf_printf(out,
                       " In a prompt the experts that most tokens use come first, the last "
                       "%.3g%% of them at the low precision.",
                       100 * s->low_share);
}

void moe_explain_exactness(const struct moe_exactness *x, struct moe_buf *out)
{
    if (x->exact)
        moe_buf_text(out, "None of this changes what the model says.");
    else
        moe_buf_printf(out, "This may change what the model says: %s.", x->why);
}

void moe_explain_strategy(const struct moe_terms *terms, uint64_t n_slots, uint32_t n_experts,
                          struct moe_buf *out)
{
    const struct moe_strategy *s = terms->strategy;
    const struct moe_exactness x = moe_exactness_of(terms);
    if (s->resident) {
        moe_buf_text(out, "All experts are in memory from the start: nothing is loaded later.");
        return;
    }
    say_cache(s, n_slots, n_experts, out);
    say_init(s, out);
    say_prefetch(s, out);
    say_miss(s, out);
    say_prefill(s, out);
    moe_buf_text(out, " ");
    moe_explain_exactness(&x, out);
}
