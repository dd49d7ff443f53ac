/* The model description (config.h): defaults, layers by kind, and which members must agree. */
#include "model/config.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>

#include "quant/layout.h"

/* ---- Defaults ---- */

void moe_config_init(struct moe_config *config)
{
    *config = (struct moe_config){
        .embed_scale = 1,
        .residual_scale = 1,
        .stream_scale = 1,
        .stream_magnitude = 2,
        .latent_scale = 1,
        .global_latent_scale = 1,
        .global_attn_scale = 1,
        .index_eps = 1e-6f,
        .logit_scale = 1,
        .routed_scale = 1,
        .score_scale = 1,
        .moe_scale = 1,
        .rope_scale = 1,
        .rope_scale_long = 1,
        .global_rope_scale = 1,
        .value_scale = 1,
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
    if (c->n_groups <= 1) /* all experts in one group are in none */
        c->n_groups = c->top_groups = 0;
    moe_config_number_layers(c);
}

/* ---- Layers ---- */

void moe_config_number_layers(struct moe_config *c)
{
    struct moe_layer_desc n = {0};
    for (uint32_t i = 0; i <= MOE_MAX_LAYERS; i++) {
        struct moe_layer_desc *l = &c->layers[i];
        if (i == c->n_layers)
            c->n_moe_layers = n.moe_index;
        l->moe_index = n.moe_index;
        l->attention_index = n.attention_index;
        l->recurrent_index = n.recurrent_index;
        l->state_index = n.state_index;
        n.moe_index += l->moe;
        n.attention_index += moe_config_keeps_keys(c, i);
        n.recurrent_index += c->state_heads && l->recurrent && !l->elsewhere;
        n.state_index += moe_config_keeps_state(c, i);
    }
}

/* Whether all that the layer's attention needs of a text is what comes into it and its own keys and
 * values, without an end to them. */
static bool attends_alone(const struct moe_config *c, uint32_t layer)
{
    bool alone = moe_config_keeps_keys(c, layer) && !c->layers[layer].windowed &&
                 !moe_config_keeps_state(c, layer) && !moe_config_sees_choice(c, layer) &&
                 !c->out_groups && !c->own_inputs && !c->n_encoder && !c->prefix_lm &&
                 !c->rope_learnt && c->positions != MOE_POSITIONS_BUCKETS;
    for (uint32_t i = layer + 1; i < c->n_layers; i++)
        alone &= !c->layers[i].shares_keys || moe_config_keys_of(c, i) != layer;
    return alone;
}

uint32_t moe_config_share_attention(struct moe_config *c, uint32_t self, uint32_t n_ranks)
{
    uint32_t n = 0, n_own = 0;
    for (uint32_t i = 0; i < moe_config_all_layers(c); i++)
        c->layers[i].elsewhere = 0; /* it may have been shared out otherwise */
    for (uint32_t i = 0; i < c->n_layers; i++)
        n += attends_alone(c, i);
    for (uint32_t i = 0, at = 0; i < moe_config_all_layers(c); i++) {
        const bool shared = i < c->n_layers && attends_alone(c, i);
        const uint32_t rank = shared ? at++ * n_ranks / n : 0;
        c->layers[i].elsewhere = (uint8_t)(rank == self ? 0 : 1 + rank);
        n_own += shared && rank == self;
    }
    moe_config_number_layers(c);
    return n_own;
}

int moe_config_check_shared(const struct moe_config *c, const char *name, struct moe_err *err)
{
    return moe_config_count_layers(c, MOE_LAYER(elsewhere)) > 0
               ? MOE_OK
               : moe_fail(err, MOE_ERR_UNSUPPORTED,
                          "%s: has no two layers whose attention could be on different ranks: it "
                          "takes layers that see a whole text and keep nothing but keys and values",
                          name);
}

uint32_t moe_config_share_layers(struct moe_config *c, uint32_t self, const uint8_t *owners)
{
    uint32_t n_own = 0;
    for (uint32_t i = 0; i < moe_config_all_layers(c); i++) {
        struct moe_layer_desc *l = &c->layers[i];
        const uint32_t rank = i >= c->n_layers ? 0 : owners ? owners[i] : UINT8_MAX;
        l->away = rank != self;
        l->elsewhere = (uint8_t)(!l->away ? 0 : rank < UINT8_MAX ? 1 + rank : rank);
        n_own += i < c->n_layers && !l->away;
    }
    moe_config_number_layers(c);
    return n_own;
}

bool moe_config_parts_at(const struct moe_config *c, uint32_t layer)
{
    bool apart = !c->extra_positions || layer > c->extra_positions, chosen = false;
    if (moe_loop_has(&c->loop, layer) && layer > c->loop.begin)
        return false; /* visits share weights */
    for (uint32_t i = layer; i < c->n_layers && apart; i++) {
        chosen |= moe_config_has_indexer(c, i);
        apart = !c->layers[i].ngrams && (chosen || !c->layers[i].shares_choice) &&
                moe_config_keys_of(c, i) >= layer;
    }
    return apart;
}

int moe_config_check_parts(const struct moe_config *c, uint32_t n_ranks, const char *name,
                           struct moe_err *err)
{
    const char *why = c->n_encoder || c->prefix_lm ? "texts that see all of themselves"
                      : c->positions == MOE_POSITIONS_BUCKETS || c->rope_learnt
                          ? "positions whose weights its layers share"
                      : c->layer_embed     ? "embeddings in each layer"
                      : c->drafter.n_heads ? "a head that drafts from several layers"
                                           : NULL;
    uint32_t n = 1;
    if (why)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: has %s, so that its layers stay together: start without "
                        "--share-layers",
                        name, why);
    for (uint32_t layer = 1; layer < c->n_layers; layer++)
        n += moe_config_parts_at(c, layer);
    return n >= n_ranks ? MOE_OK
                        : moe_fail(err, MOE_ERR_UNSUPPORTED,
                                   "%s: its layers can be those of %u rank%s, not of %u: start "
                                   "fewer, or without --share-layers",
                                   name, n, n == 1 ? "" : "s", n_ranks);
}

void moe_config_set_ahead(struct moe_config *c, uint32_t n)
{
    c->n_ahead = n;
    moe_config_set_layers(c, MOE_LAYER(moe), c->n_layers, c->n_layers + n, 1);
    moe_config_number_layers(c);
}

/* What a head of n layers needs of its model: one stream, whose layers leave nothing else to the
 * next. */
static int check_drafts_for(const struct moe_config *c, uint32_t n, const char *name,
                            struct moe_err *err)
{
    if (c->n_layers + n <= MOE_MAX_LAYERS && c->n_encoder == 0 && !c->prefix_lm &&
        c->n_streams == 0 && c->norm_place != MOE_NORM_STREAM && !c->late_experts &&
        c->router_dim == 0 && c->out_groups == 0 && c->index_top == 0 &&
        c->state_kind != MOE_STATE_CCA)
        return MOE_OK;
    return moe_fail(err, MOE_ERR_UNSUPPORTED,
                    "%s: heads that draft are implemented for decoders with one stream and without "
                    "compressed or sparse attention",
                    name);
}

int moe_config_take_drafter(struct moe_config *c, struct moe_config *head, const char *name,
                            const char *head_name, struct moe_err *err)
{
    const uint32_t usual[] = {2, c->n_layers / 2, c->n_layers - 3};
    uint32_t most = 0;
    MOE_TRY(check_drafts_for(c, head->n_layers, name, err));
    if (head->drafter_kind == MOE_DRAFTS_EAGLE3 &&
        head->reads[0] + head->reads[1] + head->reads[2] == 0) {
        if (c->n_layers < sizeof usual / sizeof usual[0])
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: does not say which layers of its model it reads "
                            "('eagle_aux_hidden_state_layer_ids'), and %s has too few for the "
                            "usual ones: %" PRIu32,
                            head_name, name, c->n_layers);
        memcpy(head->reads, usual, sizeof usual);
    }
    for (uint32_t i = 0; i < head->n_reads; i++)
        most = head->reads[i] > most ? head->reads[i] : most;
    if (head->hidden != c->hidden || head->vocab != c->vocab || most > c->n_layers)
        return moe_fail(
            err, MOE_ERR_FORMAT,
            "%s: drafts for another model than %s: one of a width of %" PRIu32 ", %" PRIu32
            " tokens and %" PRIu32 " layers or more, not %" PRIu32 ", %" PRIu32 " and %" PRIu32,
            head_name, name, head->hidden, head->vocab, most, c->hidden, c->vocab, c->n_layers);
    c->n_drafting = head->n_layers;
    c->drafter = (struct moe_drafter_sizes){
        .n_heads = head->n_heads,
        .n_kv_heads = head->n_kv_heads,
        .head_dim = head->head_dim,
        .value_dim = head->value_dim,
        .dense_ff = head->dense_ff,
        .n_reads = head->n_reads,
        .kv_rank = head->kv_rank,
        .q_rank = head->q_rank,
        .rope_dim = head->rope_dim,
        .block = head->draft_block + head->from_anchor,
        .markov_rank = head->markov_rank,
    };
    for (uint32_t i = 0; i < c->n_drafting; i++)
        c->layers[c->n_layers + i] = (struct moe_layer_desc){0};
    moe_config_number_layers(c);
    return MOE_OK;
}

uint32_t moe_config_count_layers(const struct moe_config *c, size_t member)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_layers && i < MOE_MAX_LAYERS; i++)
        n += ((const uint8_t *)&c->layers[i])[member] != 0;
    return n;
}

void moe_config_set_layers(struct moe_config *c, size_t member, uint32_t begin, uint32_t end,
                           uint8_t value)
{
    for (uint32_t i = begin; i < end && i < MOE_MAX_LAYERS; i++)
        ((uint8_t *)&c->layers[i])[member] = value;
}

uint32_t moe_config_ngrams_joined(const struct moe_config *c)
{
    uint32_t n = 1;
    while (c->ngram_rows / n > MOE_MAX_DIM && c->ngram_rows % (2 * n) == 0)
        n *= 2;
    return n;
}

/* ---- Checks: how layers mix tokens ---- */

enum { MAX_KV_RANK = 1 << 14 };

struct range {
    const char *key;
    uint32_t value, low, high;
};

/* Refuses the first value outside its range. `name` begins the error, here and below. */
static int check_ranges(const char *name, const struct range *ranges, size_t n, struct moe_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (ranges[i].value < ranges[i].low || ranges[i].value > ranges[i].high)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: %s is %" PRIu32 ", expected %" PRIu32 " to %" PRIu32, name,
                            ranges[i].key, ranges[i].value, ranges[i].low, ranges[i].high);
    return MOE_OK;
}

/* What a model does not have together. */
struct rule {
    bool broken;
    int status;
    const char *text;
};

/* Refuses by the first rule that is broken. */
static int check_rules(const char *name, const struct rule *rules, size_t n, struct moe_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (rules[i].broken)
            return moe_fail(err, rules[i].status, "%s: %s", name, rules[i].text);
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
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: a rotary frequency of %g, expected -1e6 to 1e6", name, freqs[i]);
    if (!(scale > 0 && scale < 1e6))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: a rotary scale of %g, expected above 0 and below 1e6", name, scale);
    return MOE_OK;
}

/* Compressed attention. */
static int check_shared_keys(const struct moe_config *c, const char *name, struct moe_err *err)
{
    bool all = false, chosen = false;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        all |= c->layers[i].compression == MOE_COMPRESS_ALL;
        chosen |= c->layers[i].compression == MOE_COMPRESS_CHOSEN;
        if (!c->layers[i].windowed)
            return moe_fail(
                err, MOE_ERR_UNSUPPORTED,
                "%s: layer %" PRIu32
                " has no window: compressed attention is implemented if all layers have one",
                name, i);
    }
    const struct range ranges[] = {
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
    MOE_TRY(check_ranges(name, ranges, sizeof ranges / sizeof ranges[0], err));
    if (c->n_heads % c->out_groups != 0 || c->value_dim != c->head_dim ||
        (uint64_t)c->n_heads * c->head_dim > MOE_MAX_DIM)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " heads of %" PRIu32
                        " values cannot be divided into %" PRIu32 " output groups",
                        name, c->n_heads, c->head_dim, c->out_groups);
    if (c->out_rank % MOE_PANEL_ROWS != 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: outputs of %" PRIu32 " values a group: multiples of %d are "
                        "implemented",
                        name, c->out_rank, MOE_PANEL_ROWS);
    if (c->kv_rank || c->qkv_bias || c->o_bias || c->clip_qkv > 0 || c->attn_gate ||
        c->qk_norm != MOE_QK_NORM_NONE || c->window_chunks || c->value_norm || c->rope_in_windows ||
        c->n_encoder || c->prefix_lm || c->state_heads || c->global_head_dim || c->rope_original ||
        c->n_ahead || c->positions != MOE_POSITIONS_ROTARY || c->rope_scale != 1 ||
        c->attn_cap != 0)
        return moe_fail(
            err, MOE_ERR_UNSUPPORTED,
            "%s: compressed attention is implemented for decoders with plain rotary positions, "
            "without biases, gates, other norms, recurrent states and layers that draft",
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
    bool windowed = moe_config_count_layers(c, MOE_LAYER(windowed)) > 0;
    uint32_t widest = c->dense_ff > c->expert_ff ? c->dense_ff : c->expert_ff;
    const struct rule rules[] = {
        {c->norm_gate_rank > widest || (c->norm_gate_rank && moe_config_has_halves(c)),
         MOE_ERR_UNSUPPORTED,
         "gates of norms are implemented for whole layers, no wider than feed-forwards"},
        {c->q_twice && !(c->q_rank && c->kv_rank && c->attn_gate), MOE_ERR_UNSUPPORTED,
         "queries of two vectors are implemented for latent attention with gates"},
        {windowed && c->window == 0, MOE_ERR_FORMAT, "windowed layers need a window"},
        {c->window_chunks && (!windowed || c->n_encoder || c->prefix_lm), MOE_ERR_UNSUPPORTED,
         "chunked attention is implemented for decoders with windows"},
        {c->query_step && (c->out_groups || !(c->query_scale >= 0 && c->query_scale < 1e6)),
         MOE_ERR_UNSUPPORTED,
         "queries scaled by their position are implemented without compressed attention, by 0 to "
         "1e6"},
        {c->query_power && !c->query_step, MOE_ERR_FORMAT,
         "queries scaled by a power of their position need its step"},
        {c->attn_gate ? c->n_encoder != 0 : c->gate_by_head || c->gate_softplus || c->gate_bias,
         MOE_ERR_UNSUPPORTED,
         "a gate of attention's outputs is implemented for decoders, and its kinds need one"},
        {!c->kv_rank && c->value_dim != c->head_dim &&
             (c->n_encoder || c->value_norm || c->global_keys_are_values ||
              (c->global_head_dim && c->global_head_dim != c->head_dim)),
         MOE_ERR_UNSUPPORTED,
         "values of another width than keys are implemented for decoders without norms of values, "
         "where all keys are of one width and no values are keys"},
    };
    MOE_TRY(check_rules(name, rules, sizeof rules / sizeof rules[0], err));
    if (c->out_groups)
        return check_shared_keys(c, name, err);
    if (!c->kv_rank)
        return c->q_rank || c->out_rank || moe_config_count_layers(c, MOE_LAYER(compression))
                   ? moe_fail(err, MOE_ERR_FORMAT,
                              "%s: only latent and compressed attention have low-rank queries or "
                              "compression",
                              name)
                   : MOE_OK;
    const uint32_t ranks[] = {c->kv_rank, c->global_kv_rank},
                   widths[] = {c->head_dim, c->global_head_dim};
    const uint32_t heads[] = {c->n_heads, moe_config_global_heads(c)};
    for (int i = 0; i < (c->global_head_dim ? 2 : 1); i++) {
        if ((uint64_t)heads[i] * ranks[i] + c->rope_dim > MOE_MAX_DIM)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: a latent vector of %" PRIu32 " values for %" PRIu32
                            " heads is too wide",
                            name, ranks[i], heads[i]);
        if (c->rope_dim >= widths[i])
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: latent attention rotates %" PRIu32 " of %" PRIu32
                            " values of a head: at least one must stay unrotated",
                            name, c->rope_dim, widths[i]);
        if (ranks[i] == 0 || ranks[i] > MAX_KV_RANK || ranks[i] % MOE_PANEL_ROWS != 0)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: latent attention of rank %" PRIu32
                            ": multiples of %d up to %d are implemented",
                            name, ranks[i], MOE_PANEL_ROWS, MAX_KV_RANK);
    }
    /* Heads are blocks of rows of k_up and v_up, and each must begin at a panel. */
    if (c->value_dim % MOE_PANEL_ROWS != 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: latent attention with values of %" PRIu32
                        ": multiples of %d are implemented",
                        name, c->value_dim, MOE_PANEL_ROWS);
    if (c->qkv_bias || c->qk_norm != MOE_QK_NORM_NONE || c->clip_qkv > 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: latent attention with biases, norms or clipping of queries and keys "
                        "is not implemented",
                        name);
    return MOE_OK;
}

/* Sparse attention. */
static int check_indexer(const struct moe_config *c, const char *name, struct moe_err *err)
{
    bool sharing = moe_config_count_layers(c, MOE_LAYER(shares_choice)) > 0;
    if (!c->index_top || c->out_groups)
        return (!c->out_groups && (c->index_heads || c->index_dim || c->index_block)) || sharing
                   ? moe_fail(err, MOE_ERR_FORMAT,
                              "%s: an indexer, or layers that share its choice, without a number "
                              "of positions to choose",
                              name)
                   : MOE_OK;
    const bool pools = c->index_pooled;
    if ((!c->kv_rank && !c->index_block) || (c->state_heads && !c->index_means) ||
        c->rope_original || c->positions != (pools ? MOE_POSITIONS_NONE : MOE_POSITIONS_ROTARY))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: an indexer that chooses positions is implemented for latent attention "
                        "with rotary positions, without states and LongRoPE",
                        name);
    if (pools && (!c->index_means || !c->q_rank || c->q_twice))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: an indexer that pools keys is implemented for the means of blocks and "
                        "low-rank queries",
                        name);
    if ((c->index_block || c->index_means) &&
        ((c->kv_rank && !pools) || c->global_head_dim || c->window || c->n_ahead || c->n_encoder ||
         c->prefix_lm || c->tempered_heads || (sharing && !pools) ||
         (!c->index_means && c->index_heads != c->n_kv_heads) || c->index_block == 0 ||
         c->index_top % c->index_block || moe_config_count_layers(c, MOE_LAYER(shares_keys))))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: an indexer that chooses blocks is implemented for ordinary attention "
                        "of decoders without windows, with a head for each head of keys where it "
                        "chooses for each",
                        name);
    const bool last = c->index_block && !c->index_means;
    const struct range ranges[] = {
        {"the positions that an indexer chooses", c->index_top, 1, MOE_MAX_CONTEXT},
        {"the number of an indexer's heads", c->index_heads, 1, MOE_MAX_HEADS},
        {"the width of an indexer's head", c->index_dim, c->rope_dim, MOE_MAX_HEAD_DIM},
        {"the positions of a block", c->index_means ? c->index_block : 1, 1, MOE_MAX_RATIO},
        {"the number of last blocks that are always chosen", last ? c->index_local : 1, 1,
         last ? c->index_top / c->index_block : 1},
    };
    MOE_TRY(check_ranges(name, ranges, sizeof ranges / sizeof ranges[0], err));
    if (c->layers[0].shares_choice)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: the first layer has no choice of positions to share", name);
    for (uint32_t i = 1; i < c->n_layers; i++)
        if (c->layers[i].shares_choice && !moe_config_attends(c, i - 1))
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: layer %" PRIu32 " shares a choice of positions across a layer "
                            "without attention, which is not implemented",
                            name, i);
    if (moe_config_indexers(c, c->n_layers) == 0 ||
        (sharing && (moe_config_count_layers(c, MOE_LAYER(windowed)) > 0 ||
                     moe_config_count_layers(c, MOE_LAYER(sees_all)) > 0)))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: positions that no layer's indexer chooses, or choices that are shared "
                        "beside layers that see others, are not implemented",
                        name);
    return MOE_OK;
}

/* Bucketed positions: an encoder halves the buckets by direction; half of the rest are exact. */
static int check_buckets(const struct moe_config *c, const char *name, struct moe_err *err)
{
    uint32_t least = c->n_encoder ? 4 : 2, exact = c->n_buckets / 2;
    if (c->positions != MOE_POSITIONS_BUCKETS ||
        (c->n_buckets >= least && c->n_buckets <= MOE_MAX_BUCKETS && c->bucket_distance > exact))
        return MOE_OK;
    return moe_fail(err, MOE_ERR_FORMAT,
                    "%s: %" PRIu32 " buckets for distances up to %" PRIu32 ", expected %" PRIu32
                    " to %d buckets and a distance above half of them",
                    name, c->n_buckets, c->bucket_distance, least, MOE_MAX_BUCKETS);
}

/* What only GPTSAN has. */
static int check_after(const struct moe_config *c, const char *name, struct moe_err *err)
{
    bool learnt = c->positions == MOE_POSITIONS_LEARNT;
    if (c->extra_positions && (!learnt || c->extra_positions >= c->n_layers))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: more learnt positions before layer %" PRIu32
                        ", expected a layer below %" PRIu32 " of a model with learnt positions",
                        name, c->extra_positions, c->n_layers);
    const struct rule rules[] = {
        {c->n_encoder &&
             (learnt || c->norm_place == MOE_NORM_AFTER || c->last_projection || c->soft_bypass),
         MOE_ERR_UNSUPPORTED,
         "an encoder is implemented with norms before blocks and without learnt positions, "
         "bypasses and last projections"},
        {c->positions == MOE_POSITIONS_SINUSOIDS ? c->hidden < 4 || c->hidden % 2 != 0
                                                 : c->first_position != 0,
         MOE_ERR_FORMAT, "sinusoids for positions need an even width, others no first position"},
        {c->overflow_passes && !c->expert_capacity, MOE_ERR_FORMAT,
         "'overflow_passes' without a capacity of experts"},
        {c->dense_bias && (moe_act_is_gated(c->dense_act) || c->shared_ff), MOE_ERR_UNSUPPORTED,
         "biases of dense layers are implemented without gates and shared experts"},
    };
    return check_rules(name, rules, sizeof rules / sizeof rules[0], err);
}

/* What an encoder or a prefix needs of the rest. */
static int check_stacks(const struct moe_config *c, const char *name, struct moe_err *err)
{
    bool sees_all = c->n_encoder || c->prefix_lm;
    if (c->n_encoder && c->n_encoder >= c->n_layers)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: an encoder of %" PRIu32 " of %" PRIu32 " layers leaves no decoder",
                        name, c->n_encoder, c->n_layers);
    const struct rule rules[] = {
        {sees_all && (c->kv_rank || c->window || c->attn_sinks || c->rope_original),
         MOE_ERR_UNSUPPORTED,
         "encoders and prefixes are implemented for ordinary attention without windows, sinks and "
         "LongRoPE"},
        {c->n_encoder && c->norm_kind == MOE_NORM_CENTRED, MOE_ERR_UNSUPPORTED,
         "an encoder is implemented with RMS norms and layer norms with biases"},
        {c->n_encoder && (c->decoder_start >= c->vocab || c->prefix_lm), MOE_ERR_FORMAT,
         "a decoder with an encoder needs a first token and no prefix"},
        {c->answer_start && (!c->n_encoder || c->answer_start >= c->vocab), MOE_ERR_FORMAT,
         "what answers begin with (forced_bos_token_id) needs an encoder and is a token"},
        {c->expert_capacity && !sees_all, MOE_ERR_UNSUPPORTED,
         "capacities of experts need an encoder or a prefix"},
    };
    MOE_TRY(check_rules(name, rules, sizeof rules / sizeof rules[0], err));
    MOE_TRY(check_buckets(c, name, err));
    return check_after(c, name, err);
}

static int check_rope(const struct moe_config *c, const char *name, struct moe_err *err)
{
    if (c->positions != MOE_POSITIONS_ROTARY)
        return (c->rope_dim || c->kv_rank) && !(c->positions == MOE_POSITIONS_NONE && c->kv_rank)
                   ? moe_fail(err, MOE_ERR_FORMAT,
                              "%s: rotated values, but positions that are not rotary", name)
                   : MOE_OK;
    if (!(c->rope_theta > 1 && c->rope_theta < 1e12))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: rope theta %g, expected above 1 and below 1e12",
                        name, c->rope_theta);
    uint32_t pairs = c->rope_dim / 2;
    MOE_TRY(check_freqs(name, c->rope_freqs, c->n_rope_freqs, pairs, c->rope_scale, err));
    MOE_TRY(check_freqs(name, c->rope_freqs_long, c->n_rope_freqs_long, pairs, c->rope_scale_long,
                        err));
    if (c->rope_original && !c->n_rope_freqs_long)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: rotary frequencies for long contexts are missing",
                        name);
    return MOE_OK;
}

/* Recurrent states. Conversion transposes the convolution's weights, hence the limit on them
 * (pack/convert_source.c). */
static int check_states(const struct moe_config *c, const char *name, struct moe_err *err)
{
    enum { MAX_CONV_WIDTH = 16, MAX_CONV_WEIGHTS = 1 << 18, MAX_VALUES = 1 << 16 };
    if (moe_config_count_layers(c, MOE_LAYER(recurrent)) == 0)
        return MOE_OK;
    bool short_conv = c->state_kind == MOE_STATE_CONV;
    bool select = c->state_kind == MOE_STATE_SELECT, fade = c->state_kind == MOE_STATE_FADE;
    bool cca = c->state_kind == MOE_STATE_CCA, taps = c->state_kind == MOE_STATE_TAPS;
    uint32_t keys = short_conv || cca || taps ? 0 : 1;
    if (select && (c->state_heads != 1 || c->state_key_dim > MOE_MAX_SELECTED ||
                   (uint64_t)c->state_key_dim * c->state_value_dim > MAX_CONV_WEIGHTS))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: Mamba's states are implemented with one head of up to %d keys", name,
                        MOE_MAX_SELECTED);
    const uint32_t values = c->n_kv_heads * c->value_dim / 2;
    if (cca &&
        (c->state_heads != 1 || c->conv_width != 2 || c->conv_bias || c->head_dim % 16 ||
         values % 16 || c->value_dim != c->head_dim || c->qkv_bias || c->kv_rank || c->out_groups ||
         c->global_head_dim || c->attn_experts || c->qk_norm != MOE_QK_NORM_NONE || c->n_ahead ||
         c->state_value_dim != (c->n_heads + c->n_kv_heads) * c->head_dim + values ||
         moe_config_count_layers(c, MOE_LAYER(recurrent)) < c->n_layers))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: convolutions of queries and keys are implemented over two tokens, in "
                        "all layers, for heads whose width is a multiple of 16 and ordinary "
                        "attention without biases and norms",
                        name);
    if (taps &&
        (c->state_heads != 1 || c->conv_bias || c->kv_rank || c->out_groups || c->attn_experts ||
         c->n_ahead || c->parallel_blocks || c->late_experts || c->soft_bypass || c->layer_embed ||
         moe_config_has_halves(c) ||
         moe_config_count_layers(c, MOE_LAYER(recurrent)) < c->n_layers ||
         (uint64_t)c->hidden * c->conv_width > MAX_CONV_WEIGHTS ||
         (uint64_t)c->n_kv_heads * c->head_dim * c->conv_width > MAX_CONV_WEIGHTS ||
         (uint64_t)c->global_kv_heads * c->global_head_dim * c->conv_width > MAX_CONV_WEIGHTS))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: convolutions of keys, values and outputs of blocks are implemented in "
                        "all layers, without biases, for ordinary attention",
                        name);
    if (short_conv && (c->state_heads != 1 || c->state_value_dim != c->hidden))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: a short convolution has one head, as wide as the stream", name);
    const struct range ranges[] = {
        {"the number of a state's heads", c->state_heads, 1, MOE_MAX_HEADS},
        {"the number of its key heads", c->state_key_heads, keys, keys ? c->state_heads : 0},
        {"the width of its keys", c->state_key_dim, keys, keys ? MOE_MAX_HEAD_DIM : 0},
        {"the width of its values", c->state_value_dim, !taps,
         taps     ? 0
         : select ? MAX_VALUES
                  : MOE_MAX_HEAD_DIM},
        {"the rank of its steps", c->state_step_rank, select, select ? MOE_MAX_DIM : 0},
        {"the width of a convolution", c->conv_width, 1, MAX_CONV_WIDTH},
    };
    MOE_TRY(check_ranges(name, ranges, sizeof ranges / sizeof ranges[0], err));
    if ((c->state_direct || c->gate_direct || c->decay_floor != 0) &&
        (c->state_kind != MOE_STATE_KDA || !(c->decay_floor <= 0 && c->decay_floor > -1e6f)))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: gates without a vector between, or a floor of decays of %g, expected "
                        "with KDA and at most 0",
                        name, (double)c->decay_floor);
    if ((c->state_kind == MOE_STATE_KDA || fade) && c->state_heads != c->state_key_heads)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: KDA and lightning attention need as many key heads as heads", name);
    if (fade && (c->conv_width != 1 || c->conv_bias))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: lightning attention has no convolution", name);
    if ((c->state_keys_in_turn || c->state_sigmoid) && c->state_kind != MOE_STATE_DELTA)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: heads that use key heads in turn, and sigmoids as gates, are "
                        "implemented for gated DeltaNet",
                        name);
    if (keys && c->state_heads % c->state_key_heads != 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " heads of a state cannot share %" PRIu32 " key heads", name,
                        c->state_heads, c->state_key_heads);
    if ((uint64_t)moe_config_state_channels(c) * c->conv_width > MAX_CONV_WEIGHTS)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: a convolution of %" PRIu32 " channels is too wide", name,
                        moe_config_state_channels(c));
    if (c->n_encoder || c->prefix_lm || c->rope_original ||
        (c->positions != MOE_POSITIONS_ROTARY && c->positions != MOE_POSITIONS_NONE) ||
        c->norm_kind != MOE_NORM_RMS ||
        (c->norm_place != MOE_NORM_BEFORE && c->norm_place != MOE_NORM_STREAM))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: recurrent states are implemented beside attention with rotary "
                        "positions or none, and RMS norms before blocks",
                        name);
    return MOE_OK;
}

/* Embeddings by layer, and keys and values that layers share. */
static int check_layer_embed(const struct moe_config *c, const char *name, struct moe_err *err)
{
    bool shares = moe_config_count_layers(c, MOE_LAYER(shares_keys)) > 0;
    bool wide = moe_config_count_layers(c, MOE_LAYER(wide_ffn)) > 0;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        uint32_t of = moe_config_keys_of(c, i);
        if (c->layers[i].shares_keys && !moe_config_same_keys(c, i, of))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: layer %" PRIu32 " has no earlier one whose keys it could share",
                            name, i);
    }
    if ((c->layer_embed || wide) && (uint64_t)c->n_layers * c->layer_embed > MOE_MAX_DIM / 2)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: embeddings by layer of %" PRIu32 " are too wide",
                        name, c->layer_embed);
    shares &= c->kv_rank == 0; /* check_latent_layers */
    return (shares || wide || c->layer_embed) &&
                   (c->kv_rank || c->out_groups || c->n_encoder || c->prefix_lm || c->n_streams ||
                    c->qkv_bias || c->n_ahead || c->parallel_blocks || c->state_heads ||
                    c->norm_kind != MOE_NORM_RMS || c->n_experts > 0)
               ? moe_fail(err, MOE_ERR_UNSUPPORTED,
                          "%s: embeddings by layer and layers that share keys are implemented for "
                          "dense decoders with ordinary attention, RMS norms and no biases",
                          name)
               : MOE_OK;
}

/* Local and global layers with different heads. */
static int check_global(const struct moe_config *c, const char *name, struct moe_err *err)
{
    uint32_t heads = moe_config_global_heads(c);
    const struct range ranges[] = {
        {"the number of global attention heads", heads, 1, MOE_MAX_HEADS},
        {"the number of global key/value heads", c->global_kv_heads, 1, heads},
        {"the width of a global head", c->global_head_dim, 2, 2 * MOE_MAX_ROPE_PAIRS},
    };
    if (!c->global_head_dim)
        return c->global_kv_heads || c->global_heads || c->global_keys_are_values ||
                       (c->n_global_freqs && !c->out_groups)
                   ? moe_fail(err, MOE_ERR_FORMAT, "%s: global heads without a width", name)
                   : MOE_OK;
    MOE_TRY(check_ranges(name, ranges, sizeof ranges / sizeof ranges[0], err));
    if (heads % c->global_kv_heads != 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " attention heads cannot share %" PRIu32
                        " global key/value heads",
                        name, heads, c->global_kv_heads);
    bool rotates = c->positions == MOE_POSITIONS_ROTARY;
    if (rotates && (!c->n_global_freqs || 2 * c->n_global_freqs > c->global_head_dim))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: global heads of %" PRIu32 " with %" PRIu32
                        " rotary frequencies, expected at least one, and at most one for two "
                        "values",
                        name, c->global_head_dim, c->n_global_freqs);
    MOE_TRY(check_freqs(name, c->global_freqs, c->n_global_freqs, c->n_global_freqs,
                        c->global_rope_scale, err));
    bool taps = c->state_kind == MOE_STATE_TAPS;
    if (c->n_encoder || (c->state_heads && !taps) || c->rope_original || c->rope_in_windows ||
        c->qk_norm == MOE_QK_NORM_FULL || (!rotates && (!c->rel_dim || c->n_global_freqs)))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: layers with heads of another shape are implemented for ordinary "
                        "attention with rotary positions, or biases by distance",
                        name);
    return MOE_OK;
}

/* Biases by distance that queries make. */
static int check_own_biases(const struct moe_config *c, const char *name, struct moe_err *err)
{
    uint32_t windowed = moe_config_count_layers(c, MOE_LAYER(windowed));
    const struct rule rules[] = {
        {c->own_taps && c->state_kind != MOE_STATE_TAPS, MOE_ERR_FORMAT,
         "weights of convolutions that tokens make, without convolutions of keys and values"},
        {c->own_sinks && !(c->attn_sinks && !c->sinks_in_windows && c->rel_dim), MOE_ERR_FORMAT,
         "sinks that rows make are implemented in all layers, beside biases by distance"},
        {(c->stream_normed || c->own_inputs) &&
             (!c->stream_layers || !c->rel_dim || !(c->stream_eps > 0 && c->stream_eps < 1)),
         MOE_ERR_FORMAT,
         "mixtures of streams under norms, or for keys and values, are implemented for residual "
         "attention beside biases by distance"},
        {(c->qk_norm == MOE_QK_NORM_CLIP) != (c->qk_clip > 0) || !isfinite(c->qk_clip) ||
             (c->qk_clip > 0 && !c->rel_dim),
         MOE_ERR_FORMAT, "heads are limited to a length that is no positive number"},
        {c->query_floor && !(c->query_scale >= 0 && c->query_scale < 1e6), MOE_ERR_UNSUPPORTED,
         "queries scaled by their position are implemented by 0 to 1e6"},
    };
    MOE_TRY(check_rules(name, rules, sizeof rules / sizeof rules[0], err));
    if (!c->rel_dim)
        return c->rel_extent || c->query_floor || c->rel_clip != 0
                   ? moe_fail(err, MOE_ERR_FORMAT,
                              "%s: biases by distance need the number of values that make them",
                              name)
                   : MOE_OK;
    uint32_t global_heads = moe_config_global_heads(c);
    uint32_t n_heads = c->n_heads > global_heads ? c->n_heads : global_heads;
    const struct range ranges[] = {
        {"the numbers of a bias by distance", c->rel_dim, 1, MOE_MAX_HEAD_DIM},
        {"the distance that global layers have biases for", c->rel_extent, 1,
         MOE_MAX_DIM / c->rel_dim},
        {"the distance that local layers have biases for", windowed ? c->window : 1, 1,
         MOE_MAX_DIM / c->rel_dim},
        {"the heads that have biases", n_heads, 1, MOE_MAX_DIM / c->rel_dim},
    };
    MOE_TRY(check_ranges(name, ranges, sizeof ranges / sizeof ranges[0], err));
    return c->positions != MOE_POSITIONS_NONE || c->kv_rank || c->out_groups || c->index_top ||
                   !(c->rel_clip >= 0 && isfinite(c->rel_clip)) || c->window_chunks ||
                   c->n_encoder || c->prefix_lm || c->query_step || c->n_ahead ||
                   moe_config_count_layers(c, MOE_LAYER(shares_keys))
               ? moe_fail(err, MOE_ERR_UNSUPPORTED,
                          "%s: biases by distance that queries make are implemented for ordinary "
                          "attention of decoders without rotation",
                          name)
               : MOE_OK;
}

/* What only some layers of latent attention have, or only some models'. */
static int check_latent_layers(const struct moe_config *c, const char *name, struct moe_err *err)
{
    bool still = moe_config_count_layers(c, MOE_LAYER(unrotated)) > 0, alone = false;
    for (uint32_t i = 0; c->kv_rank && i < c->n_layers; i++)
        alone |= c->layers[i].shares_keys && moe_config_has_indexer(c, i);
    const struct rule rules[] = {
        {(still || c->tempered_heads || c->global_kv_rank || c->latent_key_norm) &&
             (!c->kv_rank || c->positions != MOE_POSITIONS_ROTARY || c->n_ahead),
         MOE_ERR_UNSUPPORTED,
         "layers of latent attention with several shapes, norms of keys or scales of heads are "
         "implemented for rotary positions, without layers that draft"},
        {c->rope_learnt && (c->positions != MOE_POSITIONS_ROTARY || c->rope_original),
         MOE_ERR_UNSUPPORTED, "learnt rotary frequencies are implemented without LongRoPE"},
        {still && (c->global_head_dim || c->latent_key_norm), MOE_ERR_UNSUPPORTED,
         "layers that rotate nothing are implemented beside others of one shape"},
        {c->kv_rank && c->global_head_dim &&
             (2 * c->n_global_freqs != c->rope_dim || c->global_keys_are_values ||
              c->global_kv_heads != moe_config_global_heads(c)),
         MOE_ERR_UNSUPPORTED,
         "latent attention of two shapes is implemented where both rotate as many values"},
        {alone, MOE_ERR_UNSUPPORTED,
         "a layer of latent attention that shares another one's vectors and has an indexer of its "
         "own is not implemented"},
    };
    return check_rules(name, rules, sizeof rules / sizeof rules[0], err);
}

/* Attention, positions, windows, encoders, recurrent states. */
static int check_mixing(const struct moe_config *c, const char *name, struct moe_err *err)
{
    MOE_TRY(check_attention(c, name, err));
    MOE_TRY(check_indexer(c, name, err));
    MOE_TRY(check_latent_layers(c, name, err));
    MOE_TRY(check_own_biases(c, name, err));
    MOE_TRY(check_states(c, name, err));
    MOE_TRY(check_rope(c, name, err));
    MOE_TRY(check_stacks(c, name, err));
    MOE_TRY(check_layer_embed(c, name, err));
    return check_global(c, name, err);
}

/* ---- Checks: router, stream, layers ---- */

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
    const struct rule rules[] = {
        {c->n_groups && single && c->n_experts == c->n_groups, MOE_ERR_FORMAT,
         "groups of one expert: this router ranks them by their two best"},
        {c->choice_of_scores && (c->router_kind != MOE_ROUTER_SIGMOID || c->n_groups),
         MOE_ERR_UNSUPPORTED,
         "a bias of scores used only to choose is implemented for sigmoids without groups"},
        {c->router_dim && (c->router_dim > c->hidden || c->router_early || c->own_norms ||
                           c->late_experts || c->n_streams || c->n_encoder || c->n_ahead ||
                           moe_config_has_static(c, 0, c->n_layers)),
         MOE_ERR_UNSUPPORTED,
         "routers that see what earlier ones made are implemented for one stream, without an "
         "encoder, late experts and norms of their own"},
        {c->zero_skips && !c->n_zero, MOE_ERR_FORMAT, "experts that give nothing, without any"},
        {c->shared_sinks && (c->shared_ff == 0 || c->shared_ff % c->shared_sinks != 0),
         MOE_ERR_FORMAT, "shared experts that the router scores, of no equal widths"},
        {c->shared_sinks && (!single || !c->norm_topk || c->n_groups || c->n_zero ||
                             c->shared_gate || c->router_bias || c->router_early || c->router_dim ||
                             c->own_norms || c->choice_of_scores || c->weigh_inputs ||
                             c->expert_capacity || moe_config_has_static(c, 0, c->n_layers)),
         MOE_ERR_UNSUPPORTED,
         "shared experts that the router scores are implemented beside sigmoids whose weights are "
         "normalized, without groups and biases"},
        {c->choice_bias && c->router_kind != MOE_ROUTER_SOFTMAX && !single, MOE_ERR_UNSUPPORTED,
         "a bias used only to choose is implemented for routers with a softmax or sigmoids"},
        {c->weigh_inputs && (c->expert_bias || c->expert_capacity || c->expert_scale ||
                             c->expert_act != MOE_ACT_SWIGLU),
         MOE_ERR_UNSUPPORTED,
         "weights of experts' inputs are implemented for swiglu without biases, capacities and "
         "scales of experts"},
        {c->router_kind == MOE_ROUTER_SPARSEMIXER && (c->top_k != 2 || c->n_experts < 2),
         MOE_ERR_UNSUPPORTED, "sparsemixer routing is implemented for two experts per token"},
        {(c->expert_act == MOE_ACT_SWIGLU_CLAMPED || c->dense_act == MOE_ACT_SWIGLU_CLAMPED) &&
             !(c->act_limit > 0 && c->act_alpha > 0),
         MOE_ERR_FORMAT, "a clamped activation needs limit and alpha"},
        {c->expert_act == MOE_ACT_SWIGLU_LIMITED && !(c->act_limit > 0), MOE_ERR_FORMAT,
         "a limited activation needs a limit"},
        {(c->expert_act == MOE_ACT_SITU || c->dense_act == MOE_ACT_SITU) && !(c->act_alpha > 0),
         MOE_ERR_FORMAT, "a SiTU activation needs its beta"},
    };
    return check_rules(name, rules, sizeof rules / sizeof rules[0], err);
}

/* Layers that are visited several times. */
static int check_loop(const struct moe_config *c, const char *name, struct moe_err *err)
{
    const struct moe_loop *l = &c->loop;
    const uint64_t end = l->begin + (uint64_t)l->n * l->passes;
    if (l->begin == 0 && l->n == 0 && l->passes == 0 && c->loop_rank == 0)
        return MOE_OK;
    if (l->begin == 0 || l->n == 0 || l->passes < 2 || end > c->n_layers || c->loop_rank == 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " layers from %" PRIu32 " on are passed through %" PRIu32
                        " times, of %" PRIu32 " visits, with gates of %" PRIu32,
                        name, l->n, l->begin, l->passes, c->n_layers, c->loop_rank);
    bool fits = c->own_inputs && c->stream_normed && c->stream_layers &&
                l->begin % c->stream_layers == 0 && l->n % c->stream_layers == 0 &&
                c->n_ahead == 0 && c->n_beyond == 0 && !moe_config_has_static(c, 0, c->n_layers);
    for (uint32_t i = l->begin; i < end; i++) {
        const struct moe_layer_desc *a = &c->layers[i], *b = &c->layers[moe_loop_owner(l, i)];
        fits &= a->moe == b->moe && a->windowed == b->windowed && a->recurrent == b->recurrent &&
                !a->no_attention && !a->no_ffn;
    }
    return fits ? MOE_OK
                : moe_fail(err, MOE_ERR_UNSUPPORTED,
                           "%s: layers that are passed through several times are implemented for "
                           "whole blocks of residual attention with mixtures for keys and values",
                           name);
}

/* Hyper-connections. */
static int check_streams(const struct moe_config *c, const char *name, struct moe_err *err)
{
    if (c->n_streams == 0 && c->stream_layers == 0)
        return MOE_OK;
    if (c->stream_layers && c->n_streams != moe_config_streams_before(c, 2 * c->n_layers - 1))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " streams, expected %" PRIu32 " where one is kept every "
                        "%" PRIu32 " layers",
                        name, c->n_streams, moe_config_streams_before(c, 2 * c->n_layers - 1),
                        c->stream_layers);
    if (c->n_streams < 2 ||
        (!c->stream_layers && !c->stream_rank && !(c->stream_eps > 0 && c->stream_eps < 1)))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " streams with an epsilon of %g, expected at least 2 "
                        "streams and an epsilon between 0 and 1",
                        name, c->n_streams, (double)c->stream_eps);
    if ((uint64_t)c->n_streams * c->hidden > MOE_MAX_DIM || c->n_encoder || c->prefix_lm ||
        c->norm_place != MOE_NORM_BEFORE || c->norm_kind != MOE_NORM_RMS || c->parallel_blocks ||
        c->router_early || c->own_norms || c->layer_scale || c->soft_bypass || c->n_ahead ||
        c->last_projection || c->residual_scale != 1 ||
        (c->positions != MOE_POSITIONS_ROTARY && c->positions != MOE_POSITIONS_NONE) ||
        moe_config_has_halves(c))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: several streams are implemented for decoders with RMS norms before "
                        "blocks and rotary positions or none, without layers that draft",
                        name);
    return MOE_OK;
}

/* Residuals that are no sums, and what else is weighed value by value. */
static int check_residual(const struct moe_config *c, const char *name, struct moe_err *err)
{
    bool weighed = c->residual == MOE_RESIDUAL_WEIGHED, ends = c->norm_place == MOE_NORM_BOTH;
    bool plain = c->norm_kind == MOE_NORM_RMS && !c->n_encoder && !c->prefix_lm && !c->n_streams &&
                 !c->late_experts && !c->parallel_blocks && !c->layer_embed && !c->n_ahead &&
                 !moe_config_has_halves(c);
    const struct rule rules[] = {
        {c->embed_weighed && (weighed || !c->embed_norm), MOE_ERR_FORMAT,
         "embeddings are weighed behind their norm"},
        {c->ffn_scale && (c->moe_norm || c->moe_bias || c->layer_embed || c->own_norms),
         MOE_ERR_UNSUPPORTED,
         "a scale of feed-forwards is implemented without other scales and norms of them"},
        {c->embed_norm && c->n_streams && !c->stream_layers, MOE_ERR_UNSUPPORTED,
         "a norm of embeddings is implemented for one stream, or those that are kept"},
        {(c->residual != MOE_RESIDUAL_SUM || c->weighed_outputs || c->moe_bias ||
          (c->embed_norm && !c->n_streams) || c->ffn_scale || c->end_eps != 0 ||
          c->last_eps != 0) &&
             !plain,
         MOE_ERR_UNSUPPORTED,
         "residuals and outputs that are weighed value by value are implemented for decoders of "
         "whole layers with RMS norms and one stream"},
        {(weighed && c->norm_place != MOE_NORM_BEFORE) || (c->end_eps != 0 && !ends) ||
             (c->weighed_outputs && (!ends || !c->expert_dim)),
         MOE_ERR_UNSUPPORTED,
         "residuals with weights and biases are implemented for norms before blocks, weighed "
         "outputs for norms on both sides and experts in a space of their own"},
        {c->residual == MOE_RESIDUAL_MEAN && c->residual_scale != 1, MOE_ERR_UNSUPPORTED,
         "a scale of residuals is implemented for sums"},
        {c->moe_bias && weighed, MOE_ERR_UNSUPPORTED,
         "a bias of experts is implemented without one of residuals"},
        {c->out_norm && (!c->attn_gate || c->kv_rank || c->out_groups || c->global_head_dim),
         MOE_ERR_UNSUPPORTED,
         "a norm of outputs is implemented for ordinary attention with gates and heads of one "
         "shape"},
        {c->narrow_start_norm && !c->expert_dim, MOE_ERR_FORMAT,
         "a norm in experts' own space, which there is not"},
    };
    MOE_TRY(check_rules(name, rules, sizeof rules / sizeof rules[0], err));
    return c->attn_experts &&
                   (c->n_heads % c->n_kv_heads || c->n_heads / c->n_kv_heads > MOE_MAX_TOP_K ||
                    c->n_heads / c->n_kv_heads > c->attn_experts ||
                    (uint64_t)c->attn_experts * c->hidden > MOE_MAX_DIM ||
                    (uint64_t)c->attn_experts * c->n_kv_heads * c->head_dim > MOE_MAX_DIM ||
                    c->kv_rank || c->out_groups || c->global_head_dim || c->qkv_bias ||
                    c->attn_gate || c->n_ahead || c->n_encoder || c->state_heads ||
                    c->hidden % 16 || c->n_kv_heads * c->head_dim % 16 ||
                    c->value_dim != c->head_dim || c->qk_norm == MOE_QK_NORM_FULL ||
                    c->qk_norm == MOE_QK_NORM_HEAD)
               ? moe_fail(err, MOE_ERR_UNSUPPORTED,
                          "%s: attention made of %" PRIu32 " experts, of which %" PRIu32
                          " heads are chosen: implemented for ordinary attention without gates, "
                          "biases and norms, and widths that are multiples of 16",
                          name, c->attn_experts, c->n_heads)
               : MOE_OK;
}

/* Gated streams, and embeddings of n-grams beside them. */
static int check_ngrams(const struct moe_config *c, const char *name, struct moe_err *err)
{
    uint32_t n = moe_config_count_layers(c, MOE_LAYER(ngrams)), heads = c->ngrams - 1;
    uint64_t rows = 0;
    if (c->stream_rank &&
        (c->stream_rounds || c->stream_layers || c->stream_mean || !c->n_streams ||
         c->stream_rank > MOE_MAX_DIM || c->norm_gate_rank || c->moe_norm))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: gated streams are implemented without mixtures and other norms", name);
    if (!c->ngrams)
        return n ? moe_fail(err, MOE_ERR_FORMAT, "%s: layers have n-grams of no length", name)
                 : MOE_OK;
    const struct range ranges[] = {
        {"the layers with n-grams", n, 1, 1},
        {"the tokens of an n-gram", c->ngrams, 2, MOE_MAX_NGRAM},
        {"the embeddings of an n-gram", c->ngram_heads, 1,
         MOE_MAX_NGRAM_HEADS / (heads ? heads : 1)},
        {"the width of an n-gram's embedding", c->ngram_dim, 1, MOE_MAX_HEAD_DIM},
        {"the taps of n-grams", c->ngram_taps, 1, 16},
        {"the token behind which n-grams begin anew", c->ngram_end, 0, c->vocab - 1},
    };
    MOE_TRY(check_ranges(name, ranges, sizeof ranges / sizeof ranges[0], err));
    for (uint32_t i = 0; i < heads * c->ngram_heads; i++) {
        if (c->ngram_sizes[i] == 0)
            return moe_fail(err, MOE_ERR_FORMAT, "%s: an n-gram's embedding has no rows", name);
        rows += c->ngram_sizes[i];
    }
    uint32_t joined = moe_config_ngrams_joined(c);
    if (rows > c->ngram_rows || c->ngram_rows / joined > MOE_MAX_DIM ||
        (uint64_t)joined * c->ngram_dim > MOE_MAX_DIM)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: a table of %" PRIu32 " rows for n-grams, of which %" PRIu64
                        " are used",
                        name, c->ngram_rows, rows);
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (c->layers[i].ngrams && !(c->stream_rank && c->state_heads && c->layers[i].recurrent))
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: n-grams are implemented for layers with a recurrent state and "
                            "gated streams",
                            name);
    return MOE_OK;
}

static int check_adjugates(const struct moe_config *c, const char *name, struct moe_err *err)
{
    if (!c->adjugate_ff)
        return MOE_OK;
    if (c->adjugate_of < 1 || c->n_experts % c->adjugate_of != 0 || !isfinite(c->adjugate_scale) ||
        (uint64_t)c->n_experts / c->adjugate_of * (c->hidden + (uint64_t)c->adjugate_ff) >
            MOE_MAX_DIM)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: adjugate experts for %" PRIu32 " experts each, with a scale of %g",
                        name, c->adjugate_of, (double)c->adjugate_scale);
    if (c->adjugate_ff % MOE_PANEL_ROWS || c->hidden % MOE_PANEL_ROWS ||
        c->router_kind != MOE_ROUTER_SOFTMAX || c->n_zero || c->n_groups || c->expert_dim ||
        c->late_experts || c->n_encoder || c->own_norms || c->shared_ff || c->expert_capacity)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: adjugate experts are implemented in widths that are multiples of %d, "
                        "for routers with a softmax and without shared experts",
                        name, MOE_PANEL_ROWS);
    return MOE_OK;
}

/* A head that drafts. */
static int check_drafter(const struct moe_config *c, const char *name, struct moe_err *err)
{
    const bool blocks = c->drafter_kind == MOE_DRAFTS_DFLASH;
    bool plain = (c->n_layers == 1 || blocks) && c->n_experts == 0 && c->n_ahead == 0 &&
                 c->n_encoder == 0 && !(c->kv_rank && blocks) && c->out_groups == 0 &&
                 c->index_top == 0 && !c->attn_gate && c->attn_experts == 0 &&
                 c->global_head_dim == 0 && !moe_config_count_layers(c, MOE_LAYER(unrotated)) &&
                 c->state_heads == 0 && c->n_streams == 0 && !c->tied_head &&
                 !moe_config_has_halves(c) && c->positions == MOE_POSITIONS_ROTARY &&
                 c->norm_kind == MOE_NORM_RMS && c->norm_place == MOE_NORM_BEFORE;
    const struct rule rules[] = {
        {!plain, MOE_ERR_UNSUPPORTED,
         "a head that drafts is implemented as one dense layer of ordinary or latent attention, "
         "or with blocks several of ordinary attention, with rotary positions, RMS norms before "
         "blocks and an output of its own or its model's"},
        {blocks ? c->n_reads == 0 : c->n_reads != 3, MOE_ERR_FORMAT,
         "a head that drafts reads three streams of its model, or with blocks one or more "
         "('reads')"},
        {blocks ? c->draft_block < 2 || c->draft_block > MOE_MAX_BLOCK || c->mask_token >= c->vocab
                : c->draft_block != 0,
         MOE_ERR_FORMAT,
         "a head that drafts blocks has some of 2 to 64 tokens, and one of its tokens as a mask"},
        {(c->markov_rank || c->from_anchor) && !blocks, MOE_ERR_FORMAT,
         "only tokens of a block depend on the ones before them ('markov_rank')"},
        {c->draft_vocab > c->vocab, MOE_ERR_FORMAT,
         "a head that drafts some tokens has an output for these, not for more than there are"},
        {c->draft_vocab && !c->own_head, MOE_ERR_FORMAT,
         "a head that drafts some tokens ('draft_vocab_size') has an output for these, which is "
         "missing ('lm_head.weight')"},
    };
    return c->drafter_kind ? check_rules(name, rules, sizeof rules / sizeof rules[0], err) : MOE_OK;
}

/* Limits of activations by layer. */
static int check_limits(const struct moe_config *c, const char *name, struct moe_err *err)
{
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const float limits[] = {c->layers[i].expert_limit, c->layers[i].dense_limit};
        const enum moe_act_kind acts[] = {c->expert_act, c->dense_act};
        for (int k = 0; k < 2; k++)
            if (limits[k] != 0 &&
                !(acts[k] == MOE_ACT_SWIGLU_CLIPPED && limits[k] > 0 && isfinite(limits[k])))
                return moe_fail(err, MOE_ERR_FORMAT,
                                "%s: layer %" PRIu32 " has a limit of activations of %g, expected "
                                "one above 0 with a clipped activation",
                                name, i, (double)limits[k]);
    }
    return MOE_OK;
}

static int check_static(const struct moe_config *c, const char *name, struct moe_err *err)
{
    for (uint32_t i = 0; i < c->n_layers; i++) {
        if (!c->layers[i].static_routing)
            continue;
        if (!c->layers[i].moe)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: layer %" PRIu32 " has static routing and no experts", name, i);
        if ((uint64_t)c->vocab * c->top_k > MOE_MAX_DIM)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: a table of %" PRIu32 " experts for each of %" PRIu32
                            " tokens is too large: up to %d numbers are implemented",
                            name, c->top_k, c->vocab, MOE_MAX_DIM);
    }
    return MOE_OK;
}

/* What layers have two halves of, and what is implemented with what. */
static int check_halves(const struct moe_config *c, const char *name, struct moe_err *err)
{
    bool halves = moe_config_has_halves(c), both = c->norm_place == MOE_NORM_BOTH;
    bool plain = c->n_encoder == 0 && !c->prefix_lm && !halves; /* a decoder of whole layers */
    bool stream = c->norm_place == MOE_NORM_STREAM;
    uint32_t n_attend = 0;
    bool late_fits = !c->layers[c->n_layers - 1].moe;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct moe_layer_desc *l = &c->layers[i];
        n_attend += moe_config_attends(c, i);
        late_fits &= i == 0 || !(c->layers[i - 1].moe && (l->moe || l->no_ffn));
        if ((l->no_attention && (l->no_ffn || l->recurrent)) || (l->no_ffn && l->moe))
            return moe_fail(err, MOE_ERR_FORMAT, "%s: layer %" PRIu32 " both has and lacks a half",
                            name, i);
    }
    const struct rule rules[] = {
        {c->router_early && !(plain && c->n_experts > 0 && !c->own_norms && c->n_ahead == 0 &&
                              c->extra_positions == 0),
         MOE_ERR_UNSUPPORTED,
         "routers before attention are implemented for decoders whose layers have both halves, "
         "without router norms and layers that draft"},
        {c->parallel_blocks && !(plain && (c->router_early || c->n_experts == 0) &&
                                 c->norm_place == MOE_NORM_BEFORE && c->state_heads == 0 &&
                                 c->n_ahead == 0 && !c->own_norms),
         MOE_ERR_UNSUPPORTED,
         "attention and feed-forward that share a norm are implemented for decoders whose layers "
         "have both and whose routers are early"},
        /* A layer that drafts is like the model's last layer. */
        {c->n_ahead && !(plain && c->n_layers + c->n_ahead <= MOE_MAX_LAYERS && c->n_experts > 0 &&
                         !c->last_projection && c->positions == MOE_POSITIONS_ROTARY &&
                         c->norm_kind == MOE_NORM_RMS && c->norm_place == MOE_NORM_BEFORE),
         MOE_ERR_UNSUPPORTED,
         "a layer that drafts is implemented for decoders with experts, rotary positions and RMS "
         "norms before blocks"},
        {stream ? !plain || c->router_early || c->own_norms || c->norm_kind != MOE_NORM_RMS
                : c->stream_scale != 1,
         MOE_ERR_UNSUPPORTED,
         "a stream that becomes its norm, and its scale, are implemented for decoders with RMS "
         "norms "
         "whose layers have both halves, without routers of their own inputs"},
        {c->moe_norm && (c->norm_place != MOE_NORM_BEFORE || c->norm_kind != MOE_NORM_RMS ||
                         c->soft_bypass || c->parallel_blocks),
         MOE_ERR_UNSUPPORTED,
         "a norm behind experts is implemented for decoders with RMS norms before blocks"},
        {c->narrow_norm && !c->expert_dim, MOE_ERR_FORMAT,
         "a norm in experts' own space, which there is not"},
        {c->expert_dim &&
             (c->expert_dim > c->hidden || c->n_experts == 0 || c->own_norms || c->router_early ||
              c->expert_capacity || c->expert_bias || c->weigh_inputs || c->n_encoder),
         MOE_ERR_UNSUPPORTED,
         "experts in a space of their own are implemented for one no wider than the stream, "
         "without biases, norms and capacities of experts"},
        {c->late_experts &&
             !(c->n_encoder == 0 && !c->prefix_lm && late_fits &&
               c->norm_place == MOE_NORM_BEFORE && c->norm_kind == MOE_NORM_RMS &&
               c->n_streams == 0 && c->n_ahead == 0 && !c->router_early && !c->parallel_blocks &&
               !c->own_norms && !c->moe_norm && !c->layer_scale && !c->soft_bypass &&
               c->moe_scale == 1 && c->residual_scale == 1),
         MOE_ERR_UNSUPPORTED,
         "late experts are implemented for decoders with RMS norms before blocks whose layers with "
         "experts are each followed by one without"},
        {c->n_zero && (c->router_kind != MOE_ROUTER_SOFTMAX || c->norm_topk || c->n_groups ||
                       c->expert_capacity || c->weigh_inputs || c->expert_scale || c->expert_dim ||
                       c->n_experts + (uint64_t)c->n_zero > MOE_MAX_EXPERTS),
         MOE_ERR_UNSUPPORTED,
         "experts that give back what they take in are implemented for routers with a softmax, "
         "without groups, capacities and weights that are normalized"},
        {n_attend == 0, MOE_ERR_UNSUPPORTED,
         "models without a layer of attention are not implemented"},
        {halves && (c->n_encoder || c->norm_place != MOE_NORM_BEFORE), MOE_ERR_UNSUPPORTED,
         "half layers are implemented without an encoder and with norms before them"},
        {(both && (c->n_encoder || c->norm_kind != MOE_NORM_RMS)) ||
             (c->own_norms && (!both || c->shared_ff == 0 || c->shared_gate || c->soft_bypass)) ||
             ((c->value_norm || c->rope_in_windows) && c->kv_rank) || (c->layer_scale && halves),
         MOE_ERR_UNSUPPORTED,
         "norms before and after blocks, of values and of a layer's parts, and rotation only in "
         "windows, are implemented without an encoder, latent attention, biases and halves"},
    };
    return check_rules(name, rules, sizeof rules / sizeof rules[0], err);
}

int moe_config_check(const struct moe_config *c, const char *name, struct moe_err *err)
{
    uint32_t n_plain = 0;
    const struct range basic[] = {
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
    MOE_TRY(check_ranges(name, basic, sizeof basic / sizeof basic[0], err));
    MOE_TRY(check_loop(c, name, err));
    if (c->n_heads % c->n_kv_heads != 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " attention heads cannot share %" PRIu32 " key/value heads",
                        name, c->n_heads, c->n_kv_heads);
    if (c->rope_dim % 2 != 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: the rotated width %" PRIu32 " is odd", name,
                        c->rope_dim);
    MOE_TRY(check_mixing(c, name, err));
    const float scales[] = {c->embed_scale,  c->residual_scale,      c->stream_scale,
                            c->logit_scale,  c->routed_scale,        c->attn_scale,
                            c->moe_scale,    c->value_scale,         c->score_scale,
                            c->latent_scale, c->global_latent_scale, c->global_attn_scale};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++)
        if (!isfinite(scales[i]) || scales[i] == 0)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: a scale of %g, expected a number other than 0", name,
                            (double)scales[i]);
    const float limits[] = {c->clip_qkv, c->act_alpha, c->act_limit, c->router_jitter,
                            c->topk_eps, c->logit_cap, c->attn_cap};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        if (!(limits[i] >= 0) || !isfinite(limits[i]))
            return moe_fail(
                err, MOE_ERR_FORMAT,
                "%s: a limit of %g (clip_qkv, of the activation, the router, scores or logits), "
                "expected 0 or more",
                name, (double)limits[i]);
    const float epsilons[] = {c->norm_eps, moe_config_latent_eps(c), moe_config_end_eps(c),
                              moe_config_last_eps(c)};
    for (size_t i = 0; i < sizeof epsilons / sizeof epsilons[0]; i++)
        if (!(epsilons[i] > 0 && epsilons[i] < 1) || !(c->latent_eps >= 0) || !(c->end_eps >= 0) ||
            !(c->last_eps >= 0))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: norm epsilon %g, expected above 0 and below 1", name,
                            (double)epsilons[i]);
    if (moe_config_count_layers(c, MOE_LAYER(moe)) > 0) {
        const struct range moe[] = {
            {"the number of experts", c->n_experts, 1, MOE_MAX_EXPERTS},
            {"the experts per token", c->top_k, 1,
             c->n_experts < MOE_MAX_TOP_K ? c->n_experts : MOE_MAX_TOP_K},
            {"an expert's width", c->expert_ff, 1, MOE_MAX_DIM},
        };
        MOE_TRY(check_ranges(name, moe, sizeof moe / sizeof moe[0], err));
        MOE_TRY(check_router(c, name, err));
    }
    MOE_TRY(check_streams(c, name, err));
    MOE_TRY(check_residual(c, name, err));
    MOE_TRY(check_ngrams(c, name, err));
    MOE_TRY(check_adjugates(c, name, err));
    MOE_TRY(check_static(c, name, err));
    MOE_TRY(check_drafter(c, name, err));
    MOE_TRY(check_limits(c, name, err));
    MOE_TRY(check_halves(c, name, err));
    for (uint32_t i = 0; i < c->n_layers; i++)
        n_plain += !c->layers[i].moe && !c->layers[i].no_ffn;
    if (n_plain > 0 && c->dense_ff == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: a dense layer needs a feed-forward width", name);
    return MOE_OK;
}

static bool gpu_activates(enum moe_act_kind kind)
{
    return kind <= MOE_ACT_SWIGLU_CLAMPED || kind == MOE_ACT_RELU2;
}

int moe_config_check_gpu(const struct moe_config *c, const char *name, struct moe_err *err)
{
    bool by_order = c->positions == MOE_POSITIONS_ROTARY || c->positions == MOE_POSITIONS_NONE;
    bool computed =
        c->n_encoder == 0 && !c->prefix_lm && by_order && !c->index_top &&
        c->norm_place == MOE_NORM_BEFORE && c->qk_norm < MOE_QK_NORM_ROTATED && !c->window_chunks &&
        !(c->query_step && c->kv_rank) && !c->weigh_inputs && gpu_activates(c->dense_act) &&
        gpu_activates(c->expert_act) && c->logit_cap == 0 && c->attn_cap == 0 &&
        !c->rope_in_windows && !c->global_head_dim && !c->value_norm && c->value_scale == 1 &&
        !c->gate_by_head && !c->gate_softplus && !(c->attn_gate && c->kv_rank) &&
        c->decay_floor == 0 && (c->kv_rank || c->value_dim == c->head_dim) && !c->own_norms &&
        !c->moe_norm && !c->expert_dim && !c->n_zero && !c->choice_of_scores && !c->late_experts &&
        c->latent_scale == 1 && !c->tempered_heads && !c->rope_learnt && !c->latent_key_norm &&
        !moe_config_count_layers(c, MOE_LAYER(unrotated)) && !c->layer_embed &&
        !c->norm_gate_rank && !c->narrow_norm && !c->gate_direct && !c->adjugate_ff &&
        !moe_config_count_layers(c, MOE_LAYER(shares_keys)) && c->state_kind < MOE_STATE_FADE &&
        c->residual == MOE_RESIDUAL_SUM && !c->router_dim && !c->weighed_outputs && !c->moe_bias &&
        !c->embed_norm && !c->ffn_scale && !c->rel_dim && !c->shared_sinks && !c->out_norm &&
        !c->attn_experts && c->score_scale == 1 && !c->router_early && !c->parallel_blocks &&
        c->norm_kind != MOE_NORM_CENTRED && c->moe_scale == 1 && !c->expert_scale &&
        !c->layer_scale && !c->dense_bias && !moe_config_has_static(c, 0, c->n_layers) &&
        !c->out_groups && !c->n_streams && c->router_kind <= MOE_ROUTER_SIGMOID;
    if (computed)
        return MOE_OK;
    return moe_fail(
        err, MOE_ERR_UNSUPPORTED,
        "%s: a GPU does not compute encoders, prefixes, sparse, compressed or chunked attention, "
        "learnt or bucketed positions, hyper-connections, norms after blocks or rotation, heads of "
        "two shapes, biases by distance, values of another width, gates of whole heads, caps of "
        "scores, floors of "
        "decays, convolutions and experts in attention, weighed residuals, routers before "
        "attention "
        "or of several layers, static routing, experts with weighed inputs and some activations: "
        "use --device cpu",
        name);
}
