/* The model description as JSON: one table of its members for writing and reading. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "fmt/emit.h"
#include "fmt/json.h"
#include "model/config.h"
#include "model/config_fields.h"
#include "quant/layout.h"

/* ---- The table ---- */

static const char *const norm_names[] = {"rms", "layer", "centred", NULL};
static const char *const qk_norm_names[] = {"none", "head",  "full", "rotated",
                                            "bare", "plain", "clip", NULL};
static const char *const router_names[] = {"softmax", "topk-softmax", "sparsemixer",
                                           "sigmoid", "softplus",     NULL};
static const char *const act_names[] = {"swiglu",         "swiglu-clamped", "geglu", "reglu",
                                        "swiglu-limited", "swiglu-clipped", "situ",  "relu",
                                        "silu",           "relu2",          NULL};
static const char *const norm_places[] = {"before", "after", "both", "stream", NULL};
static const char *const position_names[] = {"rotary",    "buckets", "learnt",
                                             "sinusoids", "none",    NULL};
static const char *const state_names[] = {"delta", "convolution", "kda",  "scan", "select",
                                          "fade",  "cca",         "taps", NULL};
static const char *const residual_names[] = {"sum", "kept", "weighed", "mean", NULL};
static const char *const drafter_names[] = {"none", "eagle3", "dflash", NULL};

#define FIELD(key, kind, optional, max, choices)                                                   \
    {                                                                                              \
#key, kind, optional, offsetof(struct moe_config, key), max, choices                       \
    }
#define NEEDED_U32(key, max) FIELD(key, MOE_FIELD_U32, false, max, NULL)
#define OPTIONAL_U32(key, max) FIELD(key, MOE_FIELD_U32, true, max, NULL)
#define NEEDED(key, kind) FIELD(key, kind, false, 0, NULL)
#define OPTIONAL(key, kind) FIELD(key, kind, true, 0, NULL)
#define CHOICE(key, names) FIELD(key, MOE_FIELD_CHOICE, true, 0, names)
#define LOOP(key)                                                                                  \
    {                                                                                              \
        "loop_" #key, MOE_FIELD_U32, true, offsetof(struct moe_config, loop.key), MOE_MAX_LAYERS,  \
            NULL                                                                                   \
    }

static const struct moe_config_field fields[] = {
    NEEDED_U32(n_layers, MOE_MAX_LAYERS),
    OPTIONAL_U32(n_encoder, MOE_MAX_LAYERS),
    LOOP(begin),
    LOOP(n),
    LOOP(passes),
    OPTIONAL_U32(loop_rank, MOE_MAX_DIM),
    OPTIONAL_U32(decoder_start, MOE_MAX_DIM),
    OPTIONAL_U32(answer_start, MOE_MAX_DIM),
    OPTIONAL(prefix_lm, MOE_FIELD_BOOL),
    NEEDED_U32(hidden, MOE_MAX_DIM),
    NEEDED_U32(vocab, MOE_MAX_DIM),
    NEEDED_U32(context_max, MOE_MAX_CONTEXT),
    CHOICE(norm_kind, norm_names),
    CHOICE(norm_place, norm_places),
    OPTIONAL(parallel_blocks, MOE_FIELD_BOOL),
    OPTIONAL(last_projection, MOE_FIELD_BOOL),
    NEEDED(norm_eps, MOE_FIELD_FLOAT),
    OPTIONAL(end_eps, MOE_FIELD_FLOAT),
    OPTIONAL(last_eps, MOE_FIELD_FLOAT),
    OPTIONAL_U32(norm_gate_rank, MOE_MAX_DIM),
    OPTIONAL(embed_scale, MOE_FIELD_FLOAT),
    OPTIONAL(embed_norm, MOE_FIELD_BOOL),
    OPTIONAL(embed_weighed, MOE_FIELD_BOOL),
    CHOICE(residual, residual_names),
    OPTIONAL(residual_scale, MOE_FIELD_FLOAT),
    OPTIONAL(stream_scale, MOE_FIELD_FLOAT),
    OPTIONAL(logit_scale, MOE_FIELD_FLOAT),
    OPTIONAL(logit_cap, MOE_FIELD_FLOAT),
    NEEDED(tied_head, MOE_FIELD_BOOL),
    OPTIONAL(head_bias, MOE_FIELD_BOOL),
    NEEDED_U32(n_heads, MOE_MAX_HEADS),
    NEEDED_U32(n_kv_heads, MOE_MAX_HEADS),
    NEEDED_U32(head_dim, MOE_MAX_HEAD_DIM),
    OPTIONAL_U32(value_dim, MOE_MAX_HEAD_DIM),
    NEEDED(qkv_bias, MOE_FIELD_BOOL),
    OPTIONAL(o_bias, MOE_FIELD_BOOL),
    CHOICE(qk_norm, qk_norm_names),
    OPTIONAL(clip_qkv, MOE_FIELD_FLOAT),
    OPTIONAL(attn_scale, MOE_FIELD_FLOAT),
    OPTIONAL(attn_cap, MOE_FIELD_FLOAT),
    OPTIONAL(attn_sinks, MOE_FIELD_BOOL),
    OPTIONAL_U32(out_groups, MOE_MAX_HEADS),
    OPTIONAL_U32(out_rank, MOE_MAX_DIM),
    OPTIONAL_U32(all_ratio, MOE_MAX_RATIO),
    OPTIONAL_U32(chosen_ratio, MOE_MAX_RATIO),
    OPTIONAL_U32(n_streams, MOE_MAX_STREAMS),
    OPTIONAL_U32(stream_rounds, MOE_MAX_DIM),
    OPTIONAL(stream_eps, MOE_FIELD_FLOAT),
    OPTIONAL_U32(stream_layers, MOE_MAX_LAYERS),
    OPTIONAL(stream_mean, MOE_FIELD_BOOL),
    OPTIONAL(stream_normed, MOE_FIELD_BOOL),
    OPTIONAL(own_inputs, MOE_FIELD_BOOL),
    OPTIONAL(own_sinks, MOE_FIELD_BOOL),
    OPTIONAL(own_taps, MOE_FIELD_BOOL),
    OPTIONAL(qk_clip, MOE_FIELD_FLOAT),
    OPTIONAL(rel_clip, MOE_FIELD_FLOAT),
    OPTIONAL_U32(stream_rank, MOE_MAX_DIM),
    OPTIONAL_U32(ngrams, MOE_MAX_NGRAM),
    OPTIONAL_U32(ngram_heads, MOE_MAX_NGRAM_HEADS),
    OPTIONAL_U32(ngram_dim, MOE_MAX_HEAD_DIM),
    OPTIONAL_U32(ngram_rows, UINT32_MAX),
    OPTIONAL_U32(ngram_taps, MOE_MAX_HEAD_DIM),
    OPTIONAL_U32(ngram_end, MOE_MAX_DIM),
    OPTIONAL(sinks_in_windows, MOE_FIELD_BOOL),
    OPTIONAL(stream_magnitude, MOE_FIELD_FLOAT),
    OPTIONAL(attn_gate, MOE_FIELD_BOOL),
    OPTIONAL(gate_by_head, MOE_FIELD_BOOL),
    OPTIONAL(gate_softplus, MOE_FIELD_BOOL),
    OPTIONAL(gate_bias, MOE_FIELD_BOOL),
    OPTIONAL_U32(state_heads, MOE_MAX_HEADS),
    OPTIONAL_U32(state_key_heads, MOE_MAX_HEADS),
    OPTIONAL_U32(state_key_dim, MOE_MAX_HEAD_DIM),
    OPTIONAL_U32(state_value_dim, MOE_MAX_DIM),
    OPTIONAL_U32(conv_width, MOE_MAX_HEAD_DIM),
    CHOICE(state_kind, state_names),
    OPTIONAL_U32(state_step_rank, MOE_MAX_DIM),
    OPTIONAL(state_keys_in_turn, MOE_FIELD_BOOL),
    OPTIONAL(state_direct, MOE_FIELD_BOOL),
    OPTIONAL(gate_direct, MOE_FIELD_BOOL),
    OPTIONAL(state_sigmoid, MOE_FIELD_BOOL),
    OPTIONAL(decay_floor, MOE_FIELD_FLOAT),
    OPTIONAL(conv_bias, MOE_FIELD_BOOL),
    OPTIONAL_U32(window, MOE_MAX_CONTEXT),
    OPTIONAL(window_chunks, MOE_FIELD_BOOL),
    OPTIONAL_U32(query_step, MOE_MAX_CONTEXT),
    OPTIONAL(query_from_zero, MOE_FIELD_BOOL),
    OPTIONAL(query_power, MOE_FIELD_BOOL),
    OPTIONAL(query_scale, MOE_FIELD_FLOAT),
    OPTIONAL_U32(query_floor, MOE_MAX_CONTEXT),
    OPTIONAL_U32(rel_dim, MOE_MAX_HEAD_DIM),
    OPTIONAL_U32(rel_extent, MOE_MAX_CONTEXT),
    OPTIONAL(tempered_heads, MOE_FIELD_BOOL),
    OPTIONAL_U32(global_head_dim, MOE_MAX_HEAD_DIM),
    OPTIONAL_U32(global_kv_heads, MOE_MAX_HEADS),
    OPTIONAL_U32(global_heads, MOE_MAX_HEADS),
    OPTIONAL(global_rope_scale, MOE_FIELD_DOUBLE),
    OPTIONAL(global_keys_are_values, MOE_FIELD_BOOL),
    OPTIONAL(rope_in_windows, MOE_FIELD_BOOL),
    OPTIONAL(rope_in_dense, MOE_FIELD_BOOL),
    OPTIONAL(value_norm, MOE_FIELD_BOOL),
    OPTIONAL(out_norm, MOE_FIELD_BOOL),
    OPTIONAL_U32(attn_experts, MOE_MAX_EXPERTS),
    OPTIONAL(value_scale, MOE_FIELD_FLOAT),
    OPTIONAL_U32(kv_rank, MOE_MAX_DIM),
    OPTIONAL_U32(q_rank, MOE_MAX_DIM),
    OPTIONAL(q_twice, MOE_FIELD_BOOL),
    OPTIONAL(latent_eps, MOE_FIELD_FLOAT),
    OPTIONAL(latent_scale, MOE_FIELD_FLOAT),
    OPTIONAL_U32(global_kv_rank, MOE_MAX_DIM),
    OPTIONAL(global_latent_scale, MOE_FIELD_FLOAT),
    OPTIONAL(global_attn_scale, MOE_FIELD_FLOAT),
    OPTIONAL(latent_key_norm, MOE_FIELD_BOOL),
    OPTIONAL_U32(index_top, MOE_MAX_CONTEXT),
    OPTIONAL_U32(index_heads, MOE_MAX_HEADS),
    OPTIONAL_U32(index_dim, MOE_MAX_HEAD_DIM),
    OPTIONAL_U32(index_block, MOE_MAX_CONTEXT),
    OPTIONAL_U32(index_local, MOE_MAX_CONTEXT),
    OPTIONAL(index_means, MOE_FIELD_BOOL),
    OPTIONAL(index_pooled, MOE_FIELD_BOOL),
    OPTIONAL(index_eps, MOE_FIELD_FLOAT),
    CHOICE(positions, position_names),
    OPTIONAL_U32(n_buckets, MOE_MAX_BUCKETS),
    OPTIONAL_U32(bucket_distance, MOE_MAX_CONTEXT),
    OPTIONAL_U32(extra_positions, MOE_MAX_LAYERS),
    OPTIONAL_U32(first_position, MOE_MAX_CONTEXT),
    OPTIONAL_U32(rope_dim, 2 * MOE_MAX_ROPE_PAIRS),
    NEEDED(rope_theta, MOE_FIELD_DOUBLE),
    OPTIONAL(rope_scale, MOE_FIELD_DOUBLE),
    OPTIONAL(rope_learnt, MOE_FIELD_BOOL),
    OPTIONAL_U32(rope_original, MOE_MAX_CONTEXT),
    OPTIONAL(rope_scale_long, MOE_FIELD_DOUBLE),
    NEEDED_U32(dense_ff, MOE_MAX_DIM),
    CHOICE(dense_act, act_names),
    OPTIONAL(dense_bias, MOE_FIELD_BOOL),
    NEEDED_U32(n_experts, MOE_MAX_EXPERTS),
    NEEDED_U32(top_k, MOE_MAX_TOP_K),
    NEEDED_U32(expert_ff, MOE_MAX_DIM),
    OPTIONAL_U32(expert_dim, MOE_MAX_DIM),
    OPTIONAL(narrow_norm, MOE_FIELD_BOOL),
    OPTIONAL(narrow_start_norm, MOE_FIELD_BOOL),
    OPTIONAL_U32(n_zero, MOE_MAX_EXPERTS),
    OPTIONAL(zero_skips, MOE_FIELD_BOOL),
    OPTIONAL_U32(adjugate_ff, MOE_MAX_DIM),
    OPTIONAL_U32(adjugate_of, MOE_MAX_EXPERTS),
    OPTIONAL(adjugate_scale, MOE_FIELD_FLOAT),
    OPTIONAL(late_experts, MOE_FIELD_BOOL),
    CHOICE(expert_act, act_names),
    OPTIONAL(act_alpha, MOE_FIELD_FLOAT),
    OPTIONAL(act_limit, MOE_FIELD_FLOAT),
    OPTIONAL(expert_bias, MOE_FIELD_BOOL),
    NEEDED_U32(shared_ff, MOE_MAX_DIM),
    NEEDED(shared_gate, MOE_FIELD_BOOL),
    OPTIONAL_U32(shared_sinks, MOE_MAX_TOP_K),
    OPTIONAL(ffn_scale, MOE_FIELD_BOOL),
    OPTIONAL(moe_scale, MOE_FIELD_FLOAT),
    CHOICE(router_kind, router_names),
    OPTIONAL(router_bias, MOE_FIELD_BOOL),
    OPTIONAL_U32(router_dim, MOE_MAX_DIM),
    OPTIONAL(score_scale, MOE_FIELD_FLOAT),
    OPTIONAL(router_early, MOE_FIELD_BOOL),
    OPTIONAL(choice_bias, MOE_FIELD_BOOL),
    OPTIONAL(choice_of_scores, MOE_FIELD_BOOL),
    OPTIONAL_U32(expert_capacity, MOE_MAX_CONTEXT),
    OPTIONAL(overflow_passes, MOE_FIELD_BOOL),
    OPTIONAL(own_norms, MOE_FIELD_BOOL),
    OPTIONAL(moe_norm, MOE_FIELD_BOOL),
    OPTIONAL(moe_bias, MOE_FIELD_BOOL),
    OPTIONAL(weighed_outputs, MOE_FIELD_BOOL),
    OPTIONAL(expert_scale, MOE_FIELD_BOOL),
    OPTIONAL(layer_scale, MOE_FIELD_BOOL),
    OPTIONAL_U32(layer_embed, MOE_MAX_DIM),
    OPTIONAL(soft_bypass, MOE_FIELD_BOOL),
    NEEDED(norm_topk, MOE_FIELD_BOOL),
    OPTIONAL(static_weighed, MOE_FIELD_BOOL),
    OPTIONAL(weigh_inputs, MOE_FIELD_BOOL),
    OPTIONAL(topk_eps, MOE_FIELD_FLOAT),
    OPTIONAL(routed_scale, MOE_FIELD_FLOAT),
    OPTIONAL(router_jitter, MOE_FIELD_FLOAT),
    OPTIONAL_U32(n_groups, MOE_MAX_EXPERTS),
    OPTIONAL_U32(top_groups, MOE_MAX_EXPERTS),
    OPTIONAL_U32(n_ahead, MOE_MAX_AHEAD),
    CHOICE(drafter_kind, drafter_names),
    OPTIONAL_U32(draft_block, MOE_MAX_BLOCK),
    OPTIONAL_U32(mask_token, MOE_MAX_DIM),
    OPTIONAL_U32(markov_rank, MOE_MAX_DIM),
    OPTIONAL(from_anchor, MOE_FIELD_BOOL),
    OPTIONAL(causal_block, MOE_FIELD_BOOL),
    OPTIONAL(causal_windows, MOE_FIELD_BOOL),
    OPTIONAL(reads_norm, MOE_FIELD_BOOL),
    OPTIONAL(normed_stream, MOE_FIELD_BOOL),
    OPTIONAL(own_embed, MOE_FIELD_BOOL),
    OPTIONAL(own_head, MOE_FIELD_BOOL),
    OPTIONAL_U32(draft_vocab, MOE_MAX_DIM),
};

enum { N_FIELDS = sizeof fields / sizeof fields[0] };

/* Lists of the layers that have a value in a member. */
static const struct layer_list {
    const char *key;
    size_t member;
    uint8_t value;
} lists[] = {
    {"windowed_layers", MOE_LAYER(windowed), 1},
    {"recurrent_layers", MOE_LAYER(recurrent), 1},
    {"sharing_layers", MOE_LAYER(shares_choice), 1},
    {"all_seeing_layers", MOE_LAYER(sees_all), 1},
    {"key_sharing_layers", MOE_LAYER(shares_keys), 1},
    {"unrotated_layers", MOE_LAYER(unrotated), 1},
    {"wide_ffn_layers", MOE_LAYER(wide_ffn), 1},
    {"compressing_layers", MOE_LAYER(compression), MOE_COMPRESS_ALL},
    {"choosing_layers", MOE_LAYER(compression), MOE_COMPRESS_CHOSEN},
    {"no_attention_layers", MOE_LAYER(no_attention), 1},
    {"no_ffn_layers", MOE_LAYER(no_ffn), 1},
    {"moe_layers", MOE_LAYER(moe), 1},
    {"static_layers", MOE_LAYER(static_routing), 1},
    {"ngram_layers", MOE_LAYER(ngrams), 1},
};

enum { N_LISTS = sizeof lists / sizeof lists[0] };

/* Lists of a number for each layer, of any layer that has one other than 0. */
static const struct number_list {
    const char *key;
    size_t member;
} number_lists[] = {
    {"expert_limits", MOE_LAYER(expert_limit)},
    {"dense_limits", MOE_LAYER(dense_limit)},
};

enum { N_NUMBER_LISTS = sizeof number_lists / sizeof number_lists[0] };

static float *number_of(struct moe_layer_desc *layer, const struct number_list *list)
{
    return (float *)(void *)((char *)layer + list->member);
}

const struct moe_config_field *moe_config_field(size_t offset)
{
    for (int i = 0; i < N_FIELDS; i++)
        if (fields[i].offset == offset)
            return &fields[i];
    return NULL;
}

double moe_config_field_get(const struct moe_config *config, const struct moe_config_field *field)
{
    const char *at = (const char *)config + field->offset;
    switch (field->kind) {
    case MOE_FIELD_U32:
        return *(const uint32_t *)at;
    case MOE_FIELD_BOOL:
        return *(const bool *)at;
    case MOE_FIELD_DOUBLE:
        return *(const double *)at;
    case MOE_FIELD_FLOAT:
        return (double)*(const float *)at;
    case MOE_FIELD_CHOICE:
        return *(const int *)at;
    }
    return 0;
}

void moe_config_field_set(struct moe_config *config, const struct moe_config_field *field,
                          double value)
{
    char *at = (char *)config + field->offset;
    switch (field->kind) {
    case MOE_FIELD_U32:
        *(uint32_t *)at = (uint32_t)value;
        break;
    case MOE_FIELD_BOOL:
        *(bool *)at = value != 0;
        break;
    case MOE_FIELD_DOUBLE:
        *(double *)at = value;
        break;
    case MOE_FIELD_FLOAT:
        *(float *)at = (float)value;
        break;
    case MOE_FIELD_CHOICE:
        *(int *)at = (int)value;
        break;
    }
}

/* ---- Writing ---- */

static void write_field(struct moe_emit *e, const struct moe_config_field *f, double value)
{
    switch (f->kind) {
    case MOE_FIELD_U32:
        moe_emit_u64(e, f->name, (uint64_t)value);
        break;
    case MOE_FIELD_BOOL:
        moe_emit_bool(e, f->name, value != 0);
        break;
    case MOE_FIELD_DOUBLE:
        moe_emit_rounded(e, f->name, 17, value);
        break;
    case MOE_FIELD_FLOAT:
        moe_emit_rounded(e, f->name, 9, value);
        break;
    case MOE_FIELD_CHOICE:
        moe_emit_text(e, f->name, f->choices[(int)value]);
        break;
    }
}

static void write_layers(struct moe_emit *e, const struct moe_config *c, const struct layer_list *l)
{
    moe_emit_open_list(e, l->key);
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (((const uint8_t *)&c->layers[i])[l->member] == l->value)
            moe_emit_u64(e, NULL, i);
    moe_emit_close(e);
}

static void write_numbers(struct moe_emit *e, const struct moe_config *c,
                          const struct number_list *list)
{
    struct moe_layer_desc layer;
    bool any = false;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        layer = c->layers[i];
        any |= *number_of(&layer, list) != 0;
    }
    if (!any)
        return;
    moe_emit_open_list(e, list->key);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        layer = c->layers[i];
        moe_emit_rounded(e, NULL, 9, (double)*number_of(&layer, list));
    }
    moe_emit_close(e);
}

static void write_doubles(struct moe_emit *e, const char *key, const double *values, uint32_t n)
{
    if (n == 0)
        return;
    moe_emit_open_list(e, key);
    for (uint32_t i = 0; i < n; i++)
        moe_emit_rounded(e, NULL, 17, values[i]);
    moe_emit_close(e);
}

/* Whether lists of the member are written. */
static bool says_layers(const struct moe_config *c, size_t member)
{
    switch (member) {
    case MOE_LAYER(windowed):
        return c->window;
    case MOE_LAYER(recurrent):
        return c->state_heads && moe_config_count_layers(c, member);
    case MOE_LAYER(no_attention):
    case MOE_LAYER(no_ffn):
        return moe_config_has_halves(c);
    case MOE_LAYER(moe):
        return true;
    default:
        return moe_config_count_layers(c, member);
    }
}

void moe_config_write(const struct moe_config *config, struct moe_buf *out)
{
    struct moe_config usual;
    struct moe_emit e;
    moe_config_init(&usual);
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    moe_emit_text(&e, "family", config->family);
    for (int i = 0; i < N_FIELDS; i++) {
        const struct moe_config_field *f = &fields[i];
        double value = moe_config_field_get(config, f);
        if (!f->optional || value != moe_config_field_get(&usual, f))
            write_field(&e, f, value);
    }
    write_doubles(&e, "rope_freqs", config->rope_freqs, config->n_rope_freqs);
    write_doubles(&e, "rope_freqs_long", config->rope_freqs_long, config->n_rope_freqs_long);
    write_doubles(&e, "global_freqs", config->global_freqs, config->n_global_freqs);
    for (size_t i = 0; i < N_LISTS; i++)
        if (says_layers(config, lists[i].member))
            write_layers(&e, config, &lists[i]);
    for (size_t i = 0; i < N_NUMBER_LISTS; i++)
        write_numbers(&e, config, &number_lists[i]);
    if (config->ngrams) {
        moe_emit_open_list(&e, "ngram_factors");
        for (uint32_t i = 0; i < config->ngrams; i++)
            moe_emit_u64(&e, NULL, config->ngram_factors[i]);
        moe_emit_close(&e);
        moe_emit_u32s(&e, "ngram_sizes", config->ngram_sizes,
                      (config->ngrams - 1) * config->ngram_heads);
    }
    if (config->n_reads)
        moe_emit_u32s(&e, "reads", config->reads, config->n_reads);
    moe_emit_u32s(&e, "eos", config->eos, config->n_eos);
    moe_emit_end_item(&e, NULL); /* the caller looks at the buffer */
}

/* ---- Reading ---- */

static int read_choice(const struct moe_config_field *f, const char *name, const json_t *json,
                       const char *key, int *out, struct moe_err *err)
{
    const char *text = NULL;
    int status = moe_json_get_text(name, json, key, false, &text, err);
    if (status != MOE_OK || !text)
        return status;
    for (int i = 0; f->choices[i]; i++)
        if (strcmp(f->choices[i], text) == 0) {
            *out = i;
            return MOE_OK;
        }
    return moe_fail(err, MOE_ERR_VERSION, "%s: unknown %s '%s' (made by a newer version?)", name,
                    key, text);
}

int moe_config_field_read(struct moe_config *config, const struct moe_config_field *field,
                          const char *name, const json_t *json, const char *key, bool required,
                          struct moe_err *err)
{
    char *at = (char *)config + field->offset;
    switch (field->kind) {
    case MOE_FIELD_U32:
        return moe_json_get_u32(name, json, key, field->max, required, (uint32_t *)at, err);
    case MOE_FIELD_BOOL:
        return moe_json_get_bool(name, json, key, required, (bool *)at, err);
    case MOE_FIELD_DOUBLE:
        return moe_json_get_double(name, json, key, required, (double *)at, err);
    case MOE_FIELD_FLOAT: {
        double value = (double)*(float *)at;
        MOE_TRY(moe_json_get_double(name, json, key, required, &value, err));
        *(float *)at = (float)value;
        return MOE_OK;
    }
    case MOE_FIELD_CHOICE:
        return read_choice(field, name, json, key, (int *)at, err);
    }
    return MOE_OK;
}

static bool known_key(const char *key)
{
    static const char *const others[] = {
        "family",       "rope_freqs",    "rope_freqs_long", "eos",
        "global_freqs", "ngram_factors", "ngram_sizes",     "reads",
    };
    for (int i = 0; i < N_FIELDS; i++)
        if (strcmp(key, fields[i].name) == 0)
            return true;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(key, others[i]) == 0)
            return true;
    for (size_t i = 0; i < N_LISTS; i++)
        if (strcmp(key, lists[i].key) == 0)
            return true;
    for (size_t i = 0; i < N_NUMBER_LISTS; i++)
        if (strcmp(key, number_lists[i].key) == 0)
            return true;
    return false;
}

/* Reads array `key` of at most max_count whole numbers below `limit`. */
static int read_numbers(const char *name, const json_t *json, const char *key, uint32_t limit,
                        uint32_t max_count, uint32_t *out, uint32_t *n, struct moe_err *err)
{
    const json_t *array = json_object_get(json, key);
    if (!json_is_array(array) || json_array_size(array) > max_count)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' must be a list of at most %" PRIu32 " items",
                        name, key, max_count);
    for (*n = 0; *n < json_array_size(array); ++*n) {
        const json_t *item = json_array_get(array, *n);
        if (!json_is_integer(item) || json_integer_value(item) < 0 ||
            json_integer_value(item) >= (json_int_t)limit)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: '%s' item %" PRIu32 " must be a whole number below %" PRIu32, name,
                            key, *n, limit);
        out[*n] = (uint32_t)json_integer_value(item);
    }
    return MOE_OK;
}

/* Reads array `key` of at most `most` numbers, where it is there. */
static int read_doubles(const char *name, const json_t *json, const char *key, uint32_t most,
                        double *out, uint32_t *n, struct moe_err *err)
{
    const json_t *array = json_object_get(json, key);
    *n = 0;
    if (!array)
        return MOE_OK;
    if (!json_is_array(array) || json_array_size(array) > most)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: '%s' must be a list of at most %" PRIu32 " numbers", name, key, most);
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *item = json_array_get(array, i);
        if (!json_is_number(item) || !isfinite(json_number_value(item)))
            return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' item %zu is not a number", name, key, i);
        out[(*n)++] = json_number_value(item);
    }
    return MOE_OK;
}

/* Every list may be missing but that of MoE layers. */
static int read_layers(struct moe_config *config, const char *name, const json_t *json,
                       const struct layer_list *list, struct moe_err *err)
{
    uint32_t layers[MOE_MAX_LAYERS], n = 0;
    if (list->member != MOE_LAYER(moe) && !json_object_get(json, list->key))
        return MOE_OK;
    MOE_TRY(
        read_numbers(name, json, list->key, config->n_layers, config->n_layers, layers, &n, err));
    for (uint32_t i = 0; i < n; i++)
        moe_config_set_layers(config, list->member, layers[i], layers[i] + 1, list->value);
    return MOE_OK;
}

static int read_eos(struct moe_config *config, const char *name, const json_t *json,
                    struct moe_err *err)
{
    uint32_t ids[MOE_MAX_EOS], n = 0;
    MOE_TRY(read_numbers(name, json, "eos", MOE_MAX_DIM, MOE_MAX_EOS, ids, &n, err));
    for (uint32_t i = 0; i < n; i++)
        if (!moe_config_is_eos(config, ids[i]))
            config->eos[config->n_eos++] = ids[i];
    return MOE_OK;
}

/* Layers that the list does not reach have 0. */
static int read_layer_numbers(struct moe_config *c, const char *name, const json_t *json,
                              const struct number_list *list, struct moe_err *err)
{
    double numbers[MOE_MAX_LAYERS];
    uint32_t n = 0;
    MOE_TRY(read_doubles(name, json, list->key, c->n_layers, numbers, &n, err));
    for (uint32_t i = 0; i < n; i++)
        *number_of(&c->layers[i], list) = (float)numbers[i];
    return MOE_OK;
}

/* Where n-grams are. */
static int read_ngrams(struct moe_config *c, const char *name, const json_t *json,
                       struct moe_err *err)
{
    const json_t *factors = json_object_get(json, "ngram_factors");
    uint32_t n = 0;
    if (c->ngrams < 2)
        return MOE_OK;
    MOE_TRY(read_numbers(name, json, "ngram_sizes", UINT32_MAX, MOE_MAX_NGRAM_HEADS, c->ngram_sizes,
                         &n, err));
    bool whole = json_is_array(factors) && json_array_size(factors) == c->ngrams &&
                 n == (c->ngrams - 1) * c->ngram_heads;
    for (uint32_t i = 0; whole && i < c->ngrams; i++) {
        const json_t *item = json_array_get(factors, i);
        whole = json_is_integer(item) && json_integer_value(item) > 0;
        c->ngram_factors[i] = (uint64_t)json_integer_value(item);
    }
    return whole ? MOE_OK
                 : moe_fail(err, MOE_ERR_FORMAT,
                            "%s: 'ngram_factors' and 'ngram_sizes' must be lists of a whole number "
                            "for each token and each embedding of an n-gram",
                            name);
}

static int read_lists(struct moe_config *c, const char *name, const json_t *json,
                      struct moe_err *err)
{
    const struct {
        const char *key;
        double *out;
        uint32_t *n;
    } freqs[] = {
        {"rope_freqs", c->rope_freqs, &c->n_rope_freqs},
        {"rope_freqs_long", c->rope_freqs_long, &c->n_rope_freqs_long},
        {"global_freqs", c->global_freqs, &c->n_global_freqs},
    };
    for (size_t i = 0; i < sizeof freqs / sizeof freqs[0]; i++)
        MOE_TRY(read_doubles(name, json, freqs[i].key, MOE_MAX_ROPE_PAIRS, freqs[i].out, freqs[i].n,
                             err));
    for (size_t i = 0; i < N_NUMBER_LISTS; i++)
        MOE_TRY(read_layer_numbers(c, name, json, &number_lists[i], err));
    for (size_t i = 0; i < N_LISTS; i++)
        MOE_TRY(read_layers(c, name, json, &lists[i], err));
    MOE_TRY(read_ngrams(c, name, json, err));
    if (json_object_get(json, "reads"))
        MOE_TRY(read_numbers(name, json, "reads", MOE_MAX_LAYERS + 1, MOE_MAX_READS, c->reads,
                             &c->n_reads, err));
    return read_eos(c, name, json, err);
}

static int read_description(struct moe_config *config, const char *name, json_t *json,
                            struct moe_err *err)
{
    const char *family = NULL, *key;
    json_t *value;
    if (!json_is_object(json))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: the model description is not an object", name);
    json_object_foreach(json, key, value)
    {
        if (!known_key(key))
            return moe_fail(err, MOE_ERR_VERSION, "%s: unknown key '%s' (made by a newer version?)",
                            name, key);
    }
    MOE_TRY(moe_json_get_text(name, json, "family", true, &family, err));
    snprintf(config->family, sizeof config->family, "%s", family);
    for (int i = 0; i < N_FIELDS; i++)
        MOE_TRY(moe_config_field_read(config, &fields[i], name, json, fields[i].name,
                                      !fields[i].optional, err));
    MOE_TRY(read_lists(config, name, json, err));
    moe_config_set_ahead(config, config->n_ahead);
    moe_config_complete(config);
    return moe_config_check(config, name, err);
}

int moe_config_read(struct moe_config *config, const char *name, const void *text, uint64_t n,
                    struct moe_err *err)
{
    json_t *json;
    moe_config_init(config);
    MOE_TRY(moe_json_parse(&json, name, text, n, MOE_JSON_CONFIG_MEMORY, err));
    int status = read_description(config, name, json, err);
    moe_json_free(json);
    return status;
}
