/* The model description (config.h): defaults, and what must agree in it. */
#include "model/config.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>

#include "model/config_check.h"
#include "quant/layout.h"

/* ---- Defaults ---- */

void moe_config_init(struct moe_config *config)
{
    *config = (struct moe_config){
        .embed_scale = 1,
        .residual_scale = 1,
        .logit_scale = 1,
        .routed_scale = 1,
        .moe_scale = 1,
        .rope_scale = 1,
        .rope_scale_long = 1,
    };
}

void moe_config_complete(struct moe_config *c)
{
    if (c->n_kv_heads == 0)
        c->n_kv_heads = c->n_heads;
    if (c->head_dim == 0 && c->n_heads > 0)
        c->head_dim = c->hidden / c->n_heads;
    if (c->value_dim == 0)
        c->value_dim = c->head_dim;
    if (c->rope_dim == 0 && c->positions == MOE_POSITIONS_ROTARY)
        c->rope_dim = c->head_dim;
    if (c->attn_scale == 0 && c->head_dim > 0)
        c->attn_scale = 1.0f / sqrtf((float)c->head_dim);
}

/* ---- Checks ---- */

static int check_router(const struct moe_config *c, const char *name, struct moe_err *err)
{
    if (c->n_groups &&
        (c->n_experts % c->n_groups != 0 || c->top_groups == 0 || c->top_groups > c->n_groups ||
         c->top_k > c->n_experts / c->n_groups * c->top_groups))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " experts in %" PRIu32 " groups, %" PRIu32
                        " of them for a token, cannot give %" PRIu32 " experts",
                        name, c->n_experts, c->n_groups, c->top_groups, c->top_k);
    bool single = c->router_kind == MOE_ROUTER_SIGMOID || c->router_kind == MOE_ROUTER_SOFTPLUS;
    if (c->n_groups && single && c->n_experts == c->n_groups)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: groups of one expert: this router ranks them by their two best", name);
    if (c->choice_bias && c->router_kind != MOE_ROUTER_SOFTMAX && !single)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: a bias for the choice alone is implemented for routers that choose by "
                        "a softmax or by sigmoids",
                        name);
    if (c->weigh_inputs && (c->expert_bias || c->expert_capacity || c->expert_scale ||
                            c->expert_act != MOE_ACT_SWIGLU))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: weights of what experts take in are implemented for swiglu without "
                        "biases, capacities and scales of experts",
                        name);
    if (c->router_kind == MOE_ROUTER_SPARSEMIXER && (c->top_k != 2 || c->n_experts < 2))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: sparsemixer routing is implemented for two experts per token", name);
    if (c->expert_act == MOE_ACT_SWIGLU_CLAMPED && !(c->act_limit > 0 && c->act_alpha > 0))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: a clamped activation needs limit and alpha",
                        name);
    if (c->expert_act == MOE_ACT_SWIGLU_LIMITED && !(c->act_limit > 0))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: a limited activation needs a limit", name);
    return MOE_OK;
}

/* Of several streams. */
static int check_streams(const struct moe_config *c, const char *name, struct moe_err *err)
{
    if (c->n_streams == 0)
        return MOE_OK;
    if (c->n_streams < 2 || c->stream_rounds == 0 || !(c->stream_eps > 0 && c->stream_eps < 1))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " streams mixed by %" PRIu32
                        " rounds with an epsilon of %g make no sense",
                        name, c->n_streams, c->stream_rounds, (double)c->stream_eps);
    if ((uint64_t)c->n_streams * c->hidden > MOE_MAX_DIM || c->n_encoder || c->prefix_lm ||
        c->norm_place != MOE_NORM_BEFORE || c->norm_kind != MOE_NORM_RMS || c->parallel_blocks ||
        c->router_early || c->own_norms || c->layer_scale || c->soft_bypass || c->n_ahead ||
        c->last_projection || c->residual_scale != 1 || c->positions != MOE_POSITIONS_ROTARY ||
        moe_config_has_halves(c))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: several residual streams are implemented for decoders whose blocks "
                        "follow norms that only scale, with rotary positions and without layers "
                        "that draft",
                        name);
    return MOE_OK;
}

static int check_parallel(const struct moe_config *c, const char *name, struct moe_err *err)
{
    bool early = c->router_early || c->n_experts == 0;
    if (!c->parallel_blocks ||
        (early && c->norm_place == MOE_NORM_BEFORE && c->n_encoder == 0 && !c->prefix_lm &&
         c->state_heads == 0 && c->n_ahead == 0 && !c->own_norms && !moe_config_has_halves(c)))
        return MOE_OK;
    return moe_fail(err, MOE_ERR_UNSUPPORTED,
                    "%s: attention and feed-forward that take in one norm are implemented for "
                    "decoders whose layers have both, and routers that know it before attention",
                    name);
}

/* Nothing of what stands beside such a router elsewhere is implemented with it. */
static int check_early(const struct moe_config *c, const char *name, struct moe_err *err)
{
    if (!c->router_early ||
        (c->n_experts > 0 && c->n_encoder == 0 && !c->prefix_lm && !c->own_norms &&
         c->n_ahead == 0 && c->extra_positions == 0 && !moe_config_has_halves(c)))
        return MOE_OK;
    return moe_fail(err, MOE_ERR_UNSUPPORTED,
                    "%s: routers before attention are implemented for decoders whose layers have "
                    "both halves, without norms of the router's own and layers that draft",
                    name);
}

static int check_static(const struct moe_config *c, const char *name, struct moe_err *err)
{
    for (uint32_t i = 0; i < c->n_layers; i++) {
        if (!c->layer_is_static[i])
            continue;
        if (!c->layer_is_moe[i])
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: layer %" PRIu32 " is said to choose experts by the token, and has "
                            "none",
                            name, i);
        if ((uint64_t)c->vocab * c->top_k > MOE_MAX_DIM)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: a table of %" PRIu32 " experts for each of %" PRIu32
                            " tokens is too large: up to %d numbers are implemented",
                            name, c->top_k, c->vocab, MOE_MAX_DIM);
    }
    return MOE_OK;
}

static int check_norms(const struct moe_config *c, const char *name, struct moe_err *err)
{
    bool both = c->norm_place == MOE_NORM_BOTH;
    if ((both && (c->n_encoder || c->norm_kind != MOE_NORM_RMS)) ||
        (c->own_norms && (!both || c->shared_ff == 0 || c->shared_gate || c->soft_bypass)) ||
        ((c->value_norm || c->rope_in_windows) && c->kv_rank) ||
        (c->layer_scale && moe_config_has_halves(c)))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: norms on both sides of a block, of values and of a layer's parts, and "
                        "rotation in windows alone, are implemented without an encoder, latent "
                        "attention, biases and halves",
                        name);
    return MOE_OK;
}

static int check_halves(const struct moe_config *c, const char *name, struct moe_err *err)
{
    for (uint32_t i = 0; i < c->n_layers; i++)
        if ((c->layer_no_attention[i] && (c->layer_no_ffn[i] || c->layer_is_recurrent[i])) ||
            (c->layer_no_ffn[i] && c->layer_is_moe[i]))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: layer %" PRIu32 " is said to have a half, and not to have it",
                            name, i);
    if (moe_config_attending_layers(c, c->n_layers) == 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: models without a layer of attention are not implemented", name);
    if (moe_config_has_halves(c) && (c->n_encoder || c->norm_place != MOE_NORM_BEFORE))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: layers that are halves are implemented without an encoder and with "
                        "norms before them",
                        name);
    return MOE_OK;
}

/* Layers that draft are like the last of these. */
static int check_ahead(const struct moe_config *c, const char *name, struct moe_err *err)
{
    if (c->n_ahead == 0 || (c->n_layers + c->n_ahead <= MOE_MAX_LAYERS && c->n_experts > 0 &&
                            c->n_encoder == 0 && !c->prefix_lm && !c->last_projection &&
                            c->positions == MOE_POSITIONS_ROTARY && c->norm_kind == MOE_NORM_RMS &&
                            c->norm_place == MOE_NORM_BEFORE && !moe_config_has_halves(c)))
        return MOE_OK;
    return moe_fail(
        err, MOE_ERR_UNSUPPORTED,
        "%s: a layer that drafts is implemented behind decoders of experts, with rotary "
        "positions and norms before blocks that only scale",
        name);
}

int moe_config_check(const struct moe_config *c, const char *name, struct moe_err *err)
{
    uint32_t n_moe = 0, n_plain = 0;
    for (uint32_t i = 0; i < c->n_layers && i < MOE_MAX_LAYERS; i++)
        n_moe += c->layer_is_moe[i];
    const struct moe_range basic[] = {
        {"the number of layers", c->n_layers, 1, MOE_MAX_LAYERS},
        {"the hidden width", c->hidden, 1, MOE_MAX_DIM},
        {"the vocabulary", c->vocab, 1, MOE_MAX_DIM},
        {"the context length", c->context_max, 1, MOE_MAX_CONTEXT},
        {"the number of attention heads", c->n_heads, 1, MOE_MAX_HEADS},
        {"the number of key/value heads", c->n_kv_heads, 1, c->n_heads},
        {"the head width", c->head_dim, 2, MOE_MAX_HEAD_DIM},
        {"the width of a value", c->value_dim, 1, MOE_MAX_HEAD_DIM},
        {"the rotated width", c->rope_dim, c->positions == MOE_POSITIONS_ROTARY ? 2 : 0,
         c->head_dim < 2 * MOE_MAX_ROPE_PAIRS ? c->head_dim : 2 * MOE_MAX_ROPE_PAIRS},
    };
    int status = moe_config_check_ranges(name, basic, sizeof basic / sizeof basic[0], err);
    if (status != MOE_OK)
        return status;
    if (c->n_heads % c->n_kv_heads != 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " attention heads cannot share %" PRIu32 " key/value heads",
                        name, c->n_heads, c->n_kv_heads);
    if (c->rope_dim % 2 != 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: the rotated width %" PRIu32 " is odd", name,
                        c->rope_dim);
    status = moe_config_check_mixing(c, name, err);
    if (status != MOE_OK)
        return status;
    if (c->dense_act == MOE_ACT_SWIGLU_CLAMPED)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: a clamped activation is implemented for experts alone", name);
    const float scales[] = {c->embed_scale,  c->residual_scale, c->logit_scale,
                            c->routed_scale, c->attn_scale,     c->moe_scale};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++)
        if (!isfinite(scales[i]) || scales[i] == 0)
            return moe_fail(err, MOE_ERR_FORMAT, "%s: a scale of %g makes no sense", name,
                            (double)scales[i]);
    const float limits[] = {c->clip_qkv,      c->act_alpha, c->act_limit,
                            c->router_jitter, c->topk_eps,  c->logit_cap};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        if (!(limits[i] >= 0) || !isfinite(limits[i]))
            return moe_fail(
                err, MOE_ERR_FORMAT,
                "%s: a limit of %g (clip_qkv, of the activation, the router or logits) makes "
                "no sense",
                name, (double)limits[i]);
    const float epsilons[] = {c->norm_eps, moe_config_latent_eps(c)};
    for (size_t i = 0; i < sizeof epsilons / sizeof epsilons[0]; i++)
        if (!(epsilons[i] > 0 && epsilons[i] < 1) || !(c->latent_eps >= 0))
            return moe_fail(err, MOE_ERR_FORMAT, "%s: norm epsilon %g makes no sense", name,
                            (double)epsilons[i]);
    if (n_moe) {
        const struct moe_range moe[] = {
            {"the number of experts", c->n_experts, 1, MOE_MAX_EXPERTS},
            {"the experts per token", c->top_k, 1,
             c->n_experts < MOE_MAX_TOP_K ? c->n_experts : MOE_MAX_TOP_K},
            {"an expert's width", c->expert_ff, 1, MOE_MAX_DIM},
        };
        status = moe_config_check_ranges(name, moe, sizeof moe / sizeof moe[0], err);
        if (status == MOE_OK)
            status = check_router(c, name, err);
        if (status != MOE_OK)
            return status;
    }
    status = check_streams(c, name, err);
    if (status == MOE_OK)
        status = check_static(c, name, err);
    if (status == MOE_OK)
        status = check_early(c, name, err);
    if (status == MOE_OK)
        status = check_parallel(c, name, err);
    if (status == MOE_OK)
        status = check_ahead(c, name, err);
    if (status != MOE_OK)
        return status;
    status = check_halves(c, name, err);
    if (status == MOE_OK)
        status = check_norms(c, name, err);
    if (status != MOE_OK)
        return status;
    for (uint32_t i = 0; i < c->n_layers; i++)
        n_plain += !c->layer_is_moe[i] && !c->layer_no_ffn[i];
    if (n_plain > 0 && c->dense_ff == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: a dense layer needs a feed-forward width", name);
    return MOE_OK;
}

static bool gpu_activates(enum moe_act_kind kind)
{
    return kind <= MOE_ACT_SWIGLU_CLAMPED || kind == MOE_ACT_RELU2;
}

int moe_config_check_gpu(const struct moe_config *c, const char *named, struct moe_err *err)
{
    bool by_order = c->positions == MOE_POSITIONS_ROTARY || c->positions == MOE_POSITIONS_NONE;
    bool computed = c->n_encoder == 0 && !c->prefix_lm && by_order && !c->index_top &&
                    c->norm_place == MOE_NORM_BEFORE && c->qk_norm < MOE_QK_NORM_ROTATED &&
                    !c->window_chunks && !c->query_step && !c->weigh_inputs &&
                    gpu_activates(c->dense_act) && gpu_activates(c->expert_act) &&
                    c->logit_cap == 0 && !c->rope_in_windows && !c->global_head_dim &&
                    !c->value_norm && !c->own_norms && !c->router_early && !c->parallel_blocks &&
                    c->norm_kind != MOE_NORM_CENTRED && c->moe_scale == 1 && !c->expert_scale &&
                    !c->layer_scale && !c->dense_bias &&
                    !moe_config_has_static(c, 0, c->n_layers) && !c->out_groups && !c->n_streams &&
                    c->router_kind <= MOE_ROUTER_SIGMOID;
    if (computed)
        return MOE_OK;
    return moe_fail(
        err, MOE_ERR_UNSUPPORTED,
        "%s: models of this kind (encoder, chosen or compressed positions, positions by distance "
        "or learnt, several streams, norms after blocks or rotation, layers of two shapes, windows "
        "that do not move, other activations, experts with weighed inputs or chosen by the token, "
        "routers before "
        "attention) "
        "are computed by the processor alone: take --device cpu",
        named);
}
