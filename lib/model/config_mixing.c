/* What must agree in how layers look at other tokens (config_check.h). */
#include "model/config_check.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>

#include "model/config_states.h"
#include "quant/layout.h"

enum { MAX_KV_RANK = 1 << 14 };

int moe_config_check_ranges(const char *name, const struct moe_range *ranges, size_t n,
                            struct moe_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (ranges[i].value < ranges[i].low || ranges[i].value > ranges[i].high)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: %s is %" PRIu32 ", expected %" PRIu32 " to %" PRIu32, name,
                            ranges[i].key, ranges[i].value, ranges[i].low, ranges[i].high);
    return MOE_OK;
}

static int check_freqs(const char *name, const double *freqs, uint32_t n, uint32_t pairs,
                       double scale, struct moe_err *err)
{
    if (n != 0 && n != pairs)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " rotary frequencies for %" PRIu32 " pairs", name, n, pairs);
    for (uint32_t i = 0; i < n; i++)
        if (!(fabs(freqs[i]) <= 1e6))
            return moe_fail(err, MOE_ERR_FORMAT, "%s: a rotary frequency of %g makes no sense",
                            name, freqs[i]);
    if (!(scale > 0 && scale < 1e6))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: a rotary scale of %g makes no sense", name,
                        scale);
    return MOE_OK;
}

/* One key for all heads, and layers that compress. */
static int check_shared_keys(const struct moe_config *c, const char *name, struct moe_err *err)
{
    bool all = false, chosen = false;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        all |= c->layer_compresses[i] == MOE_COMPRESS_ALL;
        chosen |= c->layer_compresses[i] == MOE_COMPRESS_CHOSEN;
        if (!c->layer_is_windowed[i])
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: layer %" PRIu32 " has no window: shared keys are implemented for "
                            "layers that all have one",
                            name, i);
    }
    const struct moe_range ranges[] = {
        {"the number of key/value heads", c->n_kv_heads, 1, 1},
        {"the rank of queries", c->q_rank, 1, MOE_MAX_DIM},
        {"the rank of outputs", c->out_rank, 1, MOE_MAX_DIM / c->out_groups},
        {"the positions of a group", all ? c->all_ratio : 1, 1, MOE_MAX_RATIO},
        {"the positions of a chosen group", chosen ? c->chosen_ratio : 1, 1, MOE_MAX_RATIO},
        {"the number of the indexer's heads", chosen ? c->index_heads : 1, 1, MOE_MAX_HEADS},
        {"the width of the indexer's heads", chosen ? c->index_dim : c->rope_dim, c->rope_dim,
         MOE_MAX_HEAD_DIM},
        {"the number of chosen groups", chosen ? c->index_top : 1, 1, MOE_MAX_CONTEXT},
    };
    int status = moe_config_check_ranges(name, ranges, sizeof ranges / sizeof ranges[0], err);
    if (status != MOE_OK)
        return status;
    if (c->n_heads % c->out_groups != 0 || c->value_dim != c->head_dim ||
        (uint64_t)c->n_heads * c->head_dim > MOE_MAX_DIM)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " heads of %" PRIu32 " cannot put out in %" PRIu32 " groups",
                        name, c->n_heads, c->head_dim, c->out_groups);
    if (c->out_rank % MOE_PANEL_ROWS != 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: outputs of %" PRIu32 " values a group: multiples of %d are "
                        "implemented",
                        name, c->out_rank, MOE_PANEL_ROWS);
    if (c->kv_rank || c->qkv_bias || c->o_bias || c->clip_qkv > 0 || c->attn_gate ||
        c->qk_norm != MOE_QK_NORM_NONE || c->window_chunks || c->value_norm || c->rope_in_windows ||
        c->n_encoder || c->prefix_lm || c->state_heads || c->global_head_dim || c->rope_original ||
        c->n_ahead || c->positions != MOE_POSITIONS_ROTARY || c->rope_scale != 1)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: shared keys are implemented for decoders with plain rotary positions, "
                        "without biases, gates, other norms, recurrent states and layers that "
                        "draft",
                        name);
    uint32_t pairs = all || chosen ? c->rope_dim / 2 : 0;
    if (c->n_global_freqs != pairs)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " rotary frequencies for %" PRIu32
                        " pairs of layers that compress",
                        name, c->n_global_freqs, pairs);
    return check_freqs(name, c->global_freqs, pairs, pairs, 1, err);
}

static int check_attention(const struct moe_config *c, const char *name, struct moe_err *err)
{
    bool windowed = false;
    for (uint32_t i = 0; i < c->n_layers; i++)
        windowed |= c->layer_is_windowed[i];
    if (windowed && c->window == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: windowed layers need a window", name);
    if (c->window_chunks && (!windowed || c->n_encoder || c->prefix_lm))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: windows that do not move are implemented for decoders with windows",
                        name);
    if (c->query_step && (!c->rope_in_windows || !(c->query_scale >= 0 && c->query_scale < 1e6)))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: queries scaled by their position are implemented for layers that do "
                        "not rotate them, beside others that do",
                        name);
    if (c->out_groups)
        return check_shared_keys(c, name, err);
    if (!c->kv_rank)
        return c->q_rank || c->value_dim != c->head_dim || c->out_rank ||
                       moe_config_compressing_layers(c, c->n_layers)
                   ? moe_fail(err, MOE_ERR_FORMAT,
                              "%s: only latent attention and shared keys have low-rank queries, "
                              "values of another width or compression",
                              name)
                   : MOE_OK;
    if ((uint64_t)c->n_heads * c->kv_rank + c->rope_dim > MOE_MAX_DIM)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: a latent vector of %" PRIu32 " values for %" PRIu32
                        " heads is too wide",
                        name, c->kv_rank, c->n_heads);
    if (c->rope_dim >= c->head_dim)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: latent attention rotates %" PRIu32 " of %" PRIu32
                        " values of a head: at least one must stay unrotated",
                        name, c->rope_dim, c->head_dim);
    /* Heads are blocks of rows of k_up and v_up: each must begin at a panel. */
    if (c->kv_rank > MAX_KV_RANK || c->kv_rank % MOE_PANEL_ROWS != 0 ||
        c->value_dim % MOE_PANEL_ROWS != 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: latent attention of rank %" PRIu32 " with values of %" PRIu32
                        ": multiples of %d, ranks up to %d, are implemented",
                        name, c->kv_rank, c->value_dim, MOE_PANEL_ROWS, MAX_KV_RANK);
    if (c->qkv_bias || c->qk_norm != MOE_QK_NORM_NONE || c->clip_qkv > 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: latent attention with biases, norms or clipping of queries and keys "
                        "is not implemented",
                        name);
    return MOE_OK;
}

/* Rows that see what an indexer chooses. */
static int check_indexer(const struct moe_config *c, const char *name, struct moe_err *err)
{
    uint32_t sharing = 0;
    for (uint32_t i = 0; i < c->n_layers; i++)
        sharing += c->layer_shares_choice[i];
    if (!c->index_top || c->out_groups)
        return (!c->out_groups && (c->index_heads || c->index_dim)) || sharing
                   ? moe_fail(err, MOE_ERR_FORMAT, "%s: an indexer chooses no positions", name)
                   : MOE_OK;
    if (!c->kv_rank || !c->q_rank || c->window || c->attn_sinks || c->state_heads ||
        c->rope_original || c->positions != MOE_POSITIONS_ROTARY)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: an indexer that chooses positions is implemented for latent attention "
                        "with low-rank queries and rotary positions, without windows, sinks, "
                        "states and LongRoPE",
                        name);
    const struct moe_range ranges[] = {
        {"the positions that an indexer chooses", c->index_top, 1, MOE_MAX_CONTEXT},
        {"the number of an indexer's heads", c->index_heads, 1, MOE_MAX_HEADS},
        {"the width of an indexer's head", c->index_dim, c->rope_dim, MOE_MAX_HEAD_DIM},
    };
    int status = moe_config_check_ranges(name, ranges, sizeof ranges / sizeof ranges[0], err);
    if (status == MOE_OK && c->layer_shares_choice[0])
        status = moe_fail(err, MOE_ERR_FORMAT,
                          "%s: the first layer has no choice of positions to share", name);
    return status;
}

/* Relative positions: the encoder halves the buckets by direction, and each half again. */
static int check_buckets(const struct moe_config *c, const char *name, struct moe_err *err)
{
    uint32_t least = c->n_encoder ? 4 : 2, exact = c->n_buckets / 2;
    if (c->positions != MOE_POSITIONS_BUCKETS ||
        (c->n_buckets >= least && c->n_buckets <= MOE_MAX_BUCKETS && c->bucket_distance > exact))
        return MOE_OK;
    return moe_fail(err, MOE_ERR_FORMAT,
                    "%s: %" PRIu32 " buckets for distances up to %" PRIu32 " make no sense", name,
                    c->n_buckets, c->bucket_distance);
}

/* What GPTSAN alone computes. */
static int check_after(const struct moe_config *c, const char *name, struct moe_err *err)
{
    bool learnt = c->positions == MOE_POSITIONS_LEARNT;
    if (c->extra_positions && (!learnt || c->extra_positions >= c->n_layers))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: more learnt positions before layer %" PRIu32 " make no sense", name,
                        c->extra_positions);
    if (c->n_encoder && (learnt || c->norm_place == MOE_NORM_AFTER || c->last_projection ||
                         c->soft_bypass || c->dense_bias))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: an encoder is implemented with norms before blocks and without learnt "
                        "positions, biases of dense layers, bypasses and last projections",
                        name);
    if (c->overflow_passes && !c->expert_capacity)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: rows beyond an expert's capacity, and there is no capacity", name);
    if (c->dense_bias && (moe_act_is_gated(c->dense_act) || c->shared_ff))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: biases of dense layers are implemented without gates and shared "
                        "experts",
                        name);
    return MOE_OK;
}

/* What the rest of the description must be where there is an encoder, or a prefix. */
static int check_stacks(const struct moe_config *c, const char *name, struct moe_err *err)
{
    bool sees_all = c->n_encoder || c->prefix_lm;
    if (c->n_encoder && c->n_encoder >= c->n_layers)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: an encoder of %" PRIu32 " of %" PRIu32 " layers leaves no decoder",
                        name, c->n_encoder, c->n_layers);
    if (sees_all && (c->kv_rank || c->window || c->attn_sinks || c->rope_original))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: rows that see all of a text are implemented for ordinary attention "
                        "without windows, sinks and LongRoPE",
                        name);
    if (c->n_encoder && c->norm_kind != MOE_NORM_RMS)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: an encoder is implemented with norms that only scale", name);
    if (c->n_encoder && (c->decoder_start >= c->vocab || c->prefix_lm))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: a decoder with an encoder needs a first token and no prefix", name);
    if (c->expert_capacity && !sees_all)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: an expert's capacity is counted over a source, and there is none",
                        name);
    int status = check_buckets(c, name, err);
    return status == MOE_OK ? check_after(c, name, err) : status;
}

static int check_rope(const struct moe_config *c, const char *name, struct moe_err *err)
{
    if (c->positions != MOE_POSITIONS_ROTARY)
        return (c->rope_dim || c->kv_rank) && !(c->positions == MOE_POSITIONS_NONE && c->kv_rank)
                   ? moe_fail(err, MOE_ERR_FORMAT,
                              "%s: positions that are not rotary rotate nothing", name)
                   : MOE_OK;
    if (!(c->rope_theta > 1 && c->rope_theta < 1e12))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: rope theta %g makes no sense", name,
                        c->rope_theta);
    uint32_t pairs = c->rope_dim / 2;
    int status = check_freqs(name, c->rope_freqs, c->n_rope_freqs, pairs, c->rope_scale, err);
    if (status == MOE_OK)
        status = check_freqs(name, c->rope_freqs_long, c->n_rope_freqs_long, pairs,
                             c->rope_scale_long, err);
    if (status == MOE_OK && c->rope_original && !c->n_rope_freqs_long)
        status = moe_fail(err, MOE_ERR_FORMAT,
                          "%s: rotary frequencies for long contexts are missing", name);
    return status;
}

/* Recurrent states. The convolution's weights are turned as they are converted (convert_view.c). */
static int check_states(const struct moe_config *c, const char *name, struct moe_err *err)
{
    enum { MAX_CONV_WIDTH = 16, MAX_CONV_WEIGHTS = 1 << 18, MAX_VALUES = 1 << 16 };
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_layers; i++)
        n += c->layer_is_recurrent[i] != 0;
    if (c->attn_gate && (c->kv_rank || c->n_encoder))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: a gate of attention's outputs is implemented for ordinary attention",
                        name);
    if (n == 0)
        return MOE_OK;
    bool short_conv = c->state_kind == MOE_STATE_CONV;
    bool select = c->state_kind == MOE_STATE_SELECT;
    uint32_t keys = short_conv ? 0 : 1;
    if (select && (c->state_heads != 1 || c->state_key_dim > MOE_MAX_SELECTED ||
                   (uint64_t)c->state_key_dim * c->state_value_dim > MAX_CONV_WEIGHTS))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: states of Mamba are implemented with one head of up to %d keys", name,
                        MOE_MAX_SELECTED);
    if (short_conv && (c->state_heads != 1 || c->state_value_dim != c->hidden))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: a short convolution has one head, as wide as the stream", name);
    const struct moe_range ranges[] = {
        {"the number of a state's heads", c->state_heads, 1, MOE_MAX_HEADS},
        {"the number of its key heads", c->state_key_heads, keys, keys ? c->state_heads : 0},
        {"the width of its keys", c->state_key_dim, keys, keys ? MOE_MAX_HEAD_DIM : 0},
        {"the width of its values", c->state_value_dim, 1, select ? MAX_VALUES : MOE_MAX_HEAD_DIM},
        {"the rank of its steps", c->state_step_rank, select, select ? MOE_MAX_DIM : 0},
        {"the width of a convolution", c->conv_width, 1, MAX_CONV_WIDTH},
    };
    int status = moe_config_check_ranges(name, ranges, sizeof ranges / sizeof ranges[0], err);
    if (status != MOE_OK)
        return status;
    if (c->state_kind == MOE_STATE_KDA && c->state_heads != c->state_key_heads)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: of KDA each head has keys of its own", name);
    if (c->state_keys_in_turn && c->state_kind != MOE_STATE_DELTA)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: heads that take keys in turn are implemented for gated DeltaNet",
                        name);
    if (!short_conv && c->state_heads % c->state_key_heads != 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " heads of a state cannot share %" PRIu32 " key heads", name,
                        c->state_heads, c->state_key_heads);
    if ((uint64_t)moe_config_state_channels(c) * c->conv_width > MAX_CONV_WEIGHTS)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: a convolution of %" PRIu32 " channels is too wide", name,
                        moe_config_state_channels(c));
    if (c->n_encoder || c->prefix_lm || c->rope_original ||
        (c->positions != MOE_POSITIONS_ROTARY && c->positions != MOE_POSITIONS_NONE) ||
        c->norm_kind != MOE_NORM_RMS || c->norm_place != MOE_NORM_BEFORE)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: recurrent states are implemented beside layers of attention with "
                        "rotary positions or none, and norms before blocks that only scale",
                        name);
    return MOE_OK;
}

/* Layers of two kinds of attention, and norms and scales that come with them. */
static int check_global(const struct moe_config *c, const char *name, struct moe_err *err)
{
    const struct moe_range ranges[] = {
        {"the number of global key/value heads", c->global_kv_heads, 1, c->n_heads},
        {"the width of a global head", c->global_head_dim, 2, 2 * MOE_MAX_ROPE_PAIRS},
    };
    if (!c->global_head_dim)
        return c->global_kv_heads || c->global_keys_are_values ||
                       (c->n_global_freqs && !c->out_groups)
                   ? moe_fail(err, MOE_ERR_FORMAT, "%s: global heads have no width", name)
                   : MOE_OK;
    int status = moe_config_check_ranges(name, ranges, sizeof ranges / sizeof ranges[0], err);
    if (status == MOE_OK && c->n_heads % c->global_kv_heads != 0)
        status = moe_fail(err, MOE_ERR_FORMAT,
                          "%s: %" PRIu32 " attention heads cannot share %" PRIu32
                          " global key/value heads",
                          name, c->n_heads, c->global_kv_heads);
    if (status == MOE_OK && (c->global_head_dim % 2 || !c->n_global_freqs))
        status = moe_fail(err, MOE_ERR_FORMAT,
                          "%s: global heads of %" PRIu32 " with %" PRIu32
                          " rotary frequencies make no sense",
                          name, c->global_head_dim, c->n_global_freqs);
    if (status == MOE_OK)
        status =
            check_freqs(name, c->global_freqs, c->n_global_freqs, c->global_head_dim / 2, 1, err);
    if (status == MOE_OK &&
        (c->kv_rank || c->n_encoder || c->state_heads || c->attn_gate || c->rope_original ||
         c->rope_in_windows || c->qk_norm == MOE_QK_NORM_FULL ||
         c->positions != MOE_POSITIONS_ROTARY))
        status = moe_fail(err, MOE_ERR_UNSUPPORTED,
                          "%s: layers with heads of another shape are implemented for ordinary "
                          "attention with rotary positions",
                          name);
    return status;
}

int moe_config_check_mixing(const struct moe_config *c, const char *name, struct moe_err *err)
{
    int status = check_attention(c, name, err);
    if (status == MOE_OK)
        status = check_indexer(c, name, err);
    if (status == MOE_OK)
        status = check_states(c, name, err);
    if (status == MOE_OK)
        status = check_rope(c, name, err);
    if (status == MOE_OK)
        status = check_stacks(c, name, err);
    return status == MOE_OK ? check_global(c, name, err) : status;
}
