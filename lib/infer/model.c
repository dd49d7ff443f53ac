/* A model out of its pack: where each tensor belongs, reading the dense part, tables made at
 * loading. */
#include "infer/model.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/par.h"
#include "gpu.h"
#include "infer/arrivals.h"
#include "infer/experts.h"
#include "infer/state.h"
#include "kern/kern.h"
#include "model/rope.h"
#include "model/routes.h"
#include "model/tensor_roles.h"

/* ---- The dense part ---- */

/* Checks that the pack has the tensor as the description implies it. */
static int expect_tensor(const struct moe_model *m, enum moe_tensor_role role, uint32_t layer,
                         uint32_t rows, uint32_t cols, const struct moe_pack_tensor **out,
                         struct moe_err *err)
{
    char name[MOE_NAME_BYTES];
    moe_tensor_pack_name(role, layer, name);
    const struct moe_pack_tensor *t = moe_pack_tensor_find(m->pack, name);
    bool vector = moe_tensor_spec(role)->kind == MOE_KIND_VECTOR;
    if (!t)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: tensor '%s' is missing", moe_pack_path(m->pack),
                        name);
    if (t->rows != rows || t->cols != cols || t->is_vector != vector)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: tensor '%s' is %u x %u, expected %u x %u",
                        moe_pack_path(m->pack), name, t->rows, t->cols, rows, cols);
    *out = t;
    return MOE_OK;
}

/* Where a role's matrix (or, for a vector, its pointer) lies: in struct moe_layer for the roles of
 * a layer, in struct moe_model for the others. A layer has either a dense feed-forward or a shared
 * expert: these share places. */
#define IN_MODEL(member) offsetof(struct moe_model, member)
#define IN_LAYER(member) offsetof(struct moe_layer, member)
#define IN_MESSAGE(of, at)                                                                         \
    [MOE_T_##of##_TOLD_SCORES] = IN_LAYER(messages[at].scores),                                    \
    [MOE_T_##of##_TOLD_DOWN] = IN_LAYER(messages[at].down),                                        \
    [MOE_T_##of##_FORGET] = IN_LAYER(messages[at].forget),                                         \
    [MOE_T_##of##_TOLD] = IN_LAYER(messages[at].told)

static const size_t places[MOE_T_N_ROLES] = {
    [MOE_T_EMBED] = IN_MODEL(embed),
    [MOE_T_EMBED_WEIGHT] = IN_MODEL(embed_weight),
    [MOE_T_EMBED_BIAS] = IN_MODEL(embed_bias),
    [MOE_T_POSITIONS] = IN_MODEL(positions),
    [MOE_T_EXTRA_POSITIONS] = IN_MODEL(extra_positions),
    [MOE_T_LAYER_EMBED] = IN_MODEL(layer_embed),
    [MOE_T_LAYER_EMBED_MIX] = IN_MODEL(layer_embed_mix),
    [MOE_T_LAYER_EMBED_NORM] = IN_MODEL(layer_embed_norm),
    [MOE_T_FINAL_NORM] = IN_MODEL(final_norm),
    [MOE_T_FINAL_NORM_BIAS] = IN_MODEL(final_norm_bias),
    [MOE_T_LAST_PROJECTION] = IN_MODEL(last_projection),
    [MOE_T_LAST_PROJECTION_BIAS] = IN_MODEL(last_projection_bias),
    [MOE_T_ENCODER_NORM] = IN_MODEL(encoder_norm),
    [MOE_T_ENCODER_NORM_BIAS] = IN_MODEL(encoder_norm_bias),
    [MOE_T_LAST_MIX] = IN_MODEL(last_mix.of),
    [MOE_T_LAST_MIX_BIAS] = IN_MODEL(last_mix.bias),
    [MOE_T_LAST_MIX_SCALE] = IN_MODEL(last_mix.scale),
    [MOE_T_LAST_SCORES] = IN_MODEL(last_mix.scores),
    [MOE_T_LAST_GATE_NORM] = IN_MODEL(last_mix.norm),
    [MOE_T_LAST_GATE_DOWN] = IN_MODEL(last_mix.down),
    [MOE_T_LAST_GATE_UP] = IN_MODEL(last_mix.up),
    [MOE_T_HEAD] = IN_MODEL(head),
    [MOE_T_HEAD_BIAS] = IN_MODEL(head_bias),
    [MOE_T_ATTN_NORM] = IN_LAYER(attn_norm),
    [MOE_T_ATTN_NORM_BIAS] = IN_LAYER(attn_norm_bias),
    [MOE_T_ATTN_NORM_DOWN] = IN_LAYER(attn_norm_down),
    [MOE_T_ATTN_NORM_UP] = IN_LAYER(attn_norm_up),
    [MOE_T_FFN_NORM_DOWN] = IN_LAYER(ffn_norm_down),
    [MOE_T_FFN_NORM_UP] = IN_LAYER(ffn_norm_up),
    [MOE_T_EMBED_GATE] = IN_LAYER(embed_gate),
    [MOE_T_EMBED_OUT] = IN_LAYER(embed_out),
    [MOE_T_EMBED_NORM] = IN_LAYER(embed_norm),
    [MOE_T_Q_DOWN] = IN_LAYER(q_down),
    [MOE_T_Q_DOWN_NORM] = IN_LAYER(q_down_norm),
    [MOE_T_Q] = IN_LAYER(q),
    [MOE_T_K] = IN_LAYER(k),
    [MOE_T_V] = IN_LAYER(v),
    [MOE_T_Q_BIAS] = IN_LAYER(q_bias),
    [MOE_T_K_BIAS] = IN_LAYER(k_bias),
    [MOE_T_V_BIAS] = IN_LAYER(v_bias),
    [MOE_T_Q_NORM] = IN_LAYER(q_norm),
    [MOE_T_K_NORM] = IN_LAYER(k_norm),
    [MOE_T_KV_DOWN] = IN_LAYER(kv_down),
    [MOE_T_KV_DOWN_NORM] = IN_LAYER(kv_down_norm),
    [MOE_T_K_UP] = IN_LAYER(k_up),
    [MOE_T_V_UP] = IN_LAYER(v_up),
    [MOE_T_ROPE_LOGS] = IN_MODEL(rope_logs),
    [MOE_T_HEAD_SLOPE] = IN_LAYER(slope),
    [MOE_T_HEAD_BASE] = IN_LAYER(base),
    [MOE_T_INDEX_SLOPE] = IN_LAYER(index_slope),
    [MOE_T_INDEX_BASE] = IN_LAYER(index_base),
    [MOE_T_INDEX_Q_NORM] = IN_LAYER(index_q_norm),
    [MOE_T_INDEX_Q_NORM_BIAS] = IN_LAYER(index_q_norm_bias),
    [MOE_T_INDEX_Q] = IN_LAYER(index_q),
    [MOE_T_INDEX_HEAD_NORM] = IN_LAYER(index_head_norm),
    [MOE_T_INDEX_K] = IN_LAYER(index_k),
    [MOE_T_INDEX_K_NORM] = IN_LAYER(index_k_norm),
    [MOE_T_INDEX_K_NORM_BIAS] = IN_LAYER(index_k_norm_bias),
    [MOE_T_INDEX_WEIGHTS] = IN_LAYER(index_weights),
    [MOE_T_SINKS] = IN_LAYER(sinks),
    [MOE_T_O] = IN_LAYER(o),
    [MOE_T_O_BIAS] = IN_LAYER(o_bias),
    [MOE_T_ATTN_GATE] = IN_LAYER(attn_gate),
    [MOE_T_ATTN_GATE_BIAS] = IN_LAYER(attn_gate_bias),
    [MOE_T_OUT_DOWN] = IN_LAYER(out_down),
    [MOE_T_ENTRY] = IN_LAYER(entry),
    [MOE_T_ENTRY_GATE] = IN_LAYER(entry_gate),
    [MOE_T_ENTRY_BIAS] = IN_LAYER(entry_bias),
    [MOE_T_ENTRY_NORM] = IN_LAYER(entry_norm),
    [MOE_T_INDEX_ENTRY] = IN_LAYER(index_entry),
    [MOE_T_INDEX_GATE] = IN_LAYER(index_gate),
    [MOE_T_INDEX_BIAS] = IN_LAYER(index_bias),
    [MOE_T_INDEX_NORM] = IN_LAYER(index_norm),
    [MOE_T_ATTN_MIX] = IN_LAYER(attn_mix.of),
    [MOE_T_ATTN_MIX_BIAS] = IN_LAYER(attn_mix.bias),
    [MOE_T_ATTN_MIX_SCALE] = IN_LAYER(attn_mix.scale),
    [MOE_T_FFN_MIX] = IN_LAYER(ffn_mix.of),
    [MOE_T_FFN_MIX_BIAS] = IN_LAYER(ffn_mix.bias),
    [MOE_T_FFN_MIX_SCALE] = IN_LAYER(ffn_mix.scale),
    [MOE_T_ATTN_SCORES] = IN_LAYER(attn_mix.scores),
    [MOE_T_FFN_SCORES] = IN_LAYER(ffn_mix.scores),
    [MOE_T_ATTN_GATE_NORM] = IN_LAYER(attn_mix.norm),
    [MOE_T_ATTN_GATE_DOWN] = IN_LAYER(attn_mix.down),
    [MOE_T_ATTN_GATE_UP] = IN_LAYER(attn_mix.up),
    [MOE_T_FFN_GATE_NORM] = IN_LAYER(ffn_mix.norm),
    [MOE_T_FFN_GATE_DOWN] = IN_LAYER(ffn_mix.down),
    [MOE_T_FFN_GATE_UP] = IN_LAYER(ffn_mix.up),
    [MOE_T_NGRAMS] = IN_LAYER(ngrams.table),
    [MOE_T_NGRAM_KEY] = IN_LAYER(ngrams.key),
    [MOE_T_NGRAM_VALUE] = IN_LAYER(ngrams.value),
    [MOE_T_NGRAM_KEY_NORM] = IN_LAYER(ngrams.key_norm),
    [MOE_T_NGRAM_QUERY_NORM] = IN_LAYER(ngrams.query_norm),
    [MOE_T_NGRAM_CONV_NORM] = IN_LAYER(ngrams.conv_norm),
    [MOE_T_NGRAM_CONV] = IN_LAYER(ngrams.conv),
    [MOE_T_STATE_Q] = IN_LAYER(state_q),
    [MOE_T_STATE_K] = IN_LAYER(state_k),
    [MOE_T_STATE_V] = IN_LAYER(state_v),
    [MOE_T_STATE_Z] = IN_LAYER(state_z),
    [MOE_T_STATE_DECAY_NORM] = IN_LAYER(state_decay_norm),
    [MOE_T_STATE_K_NORM] = IN_LAYER(state_k_norm),
    [MOE_T_STATE_Q_NORM] = IN_LAYER(state_q_norm),
    [MOE_T_STATE_Z_DOWN] = IN_LAYER(state_z_down),
    [MOE_T_STATE_DECAY_DOWN] = IN_LAYER(state_decay_down),
    [MOE_T_STATE_SCALE] = IN_LAYER(state_scale),
    [MOE_T_STATE_BETA] = IN_LAYER(state_beta),
    [MOE_T_STATE_DECAY] = IN_LAYER(state_decay),
    [MOE_T_STATE_STEP] = IN_LAYER(state_step),
    [MOE_T_STATE_RATE] = IN_LAYER(state_rate),
    [MOE_T_STATE_SKIP] = IN_LAYER(state_skip),
    [MOE_T_STATE_CONV] = IN_LAYER(state_conv),
    [MOE_T_STATE_CONV_BIAS] = IN_LAYER(state_conv_bias),
    [MOE_T_STATE_CONV_Q] = IN_LAYER(state_conv_q),
    [MOE_T_STATE_CONV_K] = IN_LAYER(state_conv_k),
    [MOE_T_STATE_NORM] = IN_LAYER(state_norm),
    [MOE_T_STATE_O] = IN_LAYER(state_o),
    [MOE_T_POSITION_BIAS] = IN_LAYER(position_bias),
    [MOE_T_CROSS_NORM] = IN_LAYER(cross_norm),
    [MOE_T_CROSS_Q] = IN_LAYER(cross_q),
    [MOE_T_CROSS_K] = IN_LAYER(cross_k),
    [MOE_T_CROSS_V] = IN_LAYER(cross_v),
    [MOE_T_CROSS_O] = IN_LAYER(cross_o),
    [MOE_T_CROSS_NORM_BIAS] = IN_LAYER(cross_norm_bias),
    [MOE_T_CROSS_Q_BIAS] = IN_LAYER(cross_q_bias),
    [MOE_T_CROSS_K_BIAS] = IN_LAYER(cross_k_bias),
    [MOE_T_CROSS_V_BIAS] = IN_LAYER(cross_v_bias),
    [MOE_T_CROSS_O_BIAS] = IN_LAYER(cross_o_bias),
    [MOE_T_FFN_NORM] = IN_LAYER(ffn_norm),
    [MOE_T_FFN_NORM_BIAS] = IN_LAYER(ffn_norm_bias),
    [MOE_T_GATE] = IN_LAYER(gate),
    [MOE_T_UP] = IN_LAYER(up),
    [MOE_T_DOWN] = IN_LAYER(down),
    [MOE_T_UP_BIAS] = IN_LAYER(up_bias),
    [MOE_T_DOWN_BIAS] = IN_LAYER(down_bias),
    [MOE_T_ROUTER] = IN_LAYER(router),
    [MOE_T_ROUTER_BIAS] = IN_LAYER(router_bias),
    [MOE_T_CHOICE_BIAS] = IN_LAYER(choice_bias),
    [MOE_T_EXPERTS_IN] = IN_LAYER(experts_in),
    [MOE_T_EXPERTS_NORM] = IN_LAYER(experts_norm),
    [MOE_T_EXPERTS_OUT] = IN_LAYER(experts_out),
    [MOE_T_ADJUGATE_GATE] = IN_LAYER(adjugate_gate),
    [MOE_T_ADJUGATE_UP] = IN_LAYER(adjugate_up),
    [MOE_T_ADJUGATE_DOWN] = IN_LAYER(adjugate_down),
    [MOE_T_ROUTES] = IN_LAYER(routes),
    [MOE_T_SHARED_GATE_PROJ] = IN_LAYER(gate),
    [MOE_T_SHARED_UP] = IN_LAYER(up),
    [MOE_T_SHARED_DOWN] = IN_LAYER(down),
    [MOE_T_SHARED_GATE] = IN_LAYER(shared_gate),
    [MOE_T_BYPASS] = IN_LAYER(bypass),
    [MOE_T_AHEAD_TOKEN_NORM] = IN_LAYER(ahead_token_norm),
    [MOE_T_AHEAD_STATE_NORM] = IN_LAYER(ahead_state_norm),
    [MOE_T_AHEAD_JOIN] = IN_LAYER(ahead_join),
    [MOE_T_AHEAD_NORM] = IN_LAYER(ahead_norm),
    [MOE_T_READS_NORM] = IN_MODEL(reads_norm),
    [MOE_T_READS_JOIN] = IN_MODEL(reads_join),
    [MOE_T_READ_NORM] = IN_MODEL(read_norm),
    [MOE_T_DRAFT_TOKENS] = IN_MODEL(draft_tokens),
    [MOE_T_MARKOV_FROM] = IN_MODEL(markov_from),
    [MOE_T_MARKOV_TO] = IN_MODEL(markov_to),
    [MOE_T_ATTN_END_NORM] = IN_LAYER(attn_end_norm),
    [MOE_T_ATTN_KEEP] = IN_LAYER(attn_residual.keep),
    [MOE_T_ATTN_KEEP_BIAS] = IN_LAYER(attn_residual.keep_bias),
    [MOE_T_ATTN_WEIGHT] = IN_LAYER(attn_residual.weight),
    [MOE_T_ATTN_WEIGHT_BIAS] = IN_LAYER(attn_residual.bias),
    [MOE_T_FFN_KEEP] = IN_LAYER(ffn_residual.keep),
    [MOE_T_FFN_KEEP_BIAS] = IN_LAYER(ffn_residual.keep_bias),
    [MOE_T_FFN_WEIGHT] = IN_LAYER(ffn_residual.weight),
    [MOE_T_FFN_WEIGHT_BIAS] = IN_LAYER(ffn_residual.bias),
    [MOE_T_V_LATE] = IN_LAYER(v_late),
    [MOE_T_HEAD_CONV] = IN_LAYER(head_conv),
    [MOE_T_HEAD_CONV_BIAS] = IN_LAYER(head_conv_bias),
    [MOE_T_HEAD_MIX] = IN_LAYER(head_mix),
    [MOE_T_HEAD_MIX_BIAS] = IN_LAYER(head_mix_bias),
    [MOE_T_KEY_SCALE] = IN_LAYER(key_scale),
    [MOE_T_ATTN_ROUTER] = IN_LAYER(attn_router),
    [MOE_T_REL] = IN_LAYER(rel),
    [MOE_T_REL_SCALE] = IN_LAYER(rel_scale),
    [MOE_T_TAPS_K_OWN] = IN_LAYER(taps_k_own),
    [MOE_T_TAPS_V_OWN] = IN_LAYER(taps_v_own),
    [MOE_T_OWN_SINKS] = IN_LAYER(own_sinks),
    [MOE_T_K_SCORES] = IN_LAYER(k_scores),
    [MOE_T_V_SCORES] = IN_LAYER(v_scores),
    [MOE_T_K_INPUT_NORM] = IN_LAYER(k_input_norm),
    IN_MESSAGE(Q, MOE_TELLS_Q),
    IN_MESSAGE(K, MOE_TELLS_K),
    IN_MESSAGE(V, MOE_TELLS_V),
    IN_MESSAGE(FFN, MOE_TELLS_FFN),
    [MOE_T_V_INPUT_NORM] = IN_LAYER(v_input_norm),
    [MOE_T_PROFILES] = IN_LAYER(profiles),
    [MOE_T_TAPS_K] = IN_LAYER(taps_k),
    [MOE_T_TAPS_V] = IN_LAYER(taps_v),
    [MOE_T_TAPS_ATTN] = IN_LAYER(taps_attn),
    [MOE_T_TAPS_FFN] = IN_LAYER(taps_ffn),
    [MOE_T_FFN_FACTOR] = IN_LAYER(ffn_factor),
    [MOE_T_ROUTER_DOWN] = IN_LAYER(router_down),
    [MOE_T_ROUTER_DOWN_BIAS] = IN_LAYER(router_down_bias),
    [MOE_T_ROUTER_KEEP] = IN_LAYER(router_keep),
    [MOE_T_ROUTER_DOWN_NORM] = IN_LAYER(router_down_norm),
    [MOE_T_ROUTER_FIRST] = IN_LAYER(router_first),
    [MOE_T_ROUTER_FIRST_BIAS] = IN_LAYER(router_first_bias),
    [MOE_T_ROUTER_SECOND] = IN_LAYER(router_second),
    [MOE_T_ROUTER_SECOND_BIAS] = IN_LAYER(router_second_bias),
    [MOE_T_EXPERTS_START_NORM] = IN_LAYER(experts_start_norm),
    [MOE_T_EXPERTS_WEIGHT] = IN_LAYER(experts_weight),
    [MOE_T_FFN_END_NORM] = IN_LAYER(ffn_end_norm),
    [MOE_T_ROUTER_NORM] = IN_LAYER(router_norm),
    [MOE_T_SHARED_NORM] = IN_LAYER(shared_norm),
    [MOE_T_SHARED_END_NORM] = IN_LAYER(shared_end_norm),
    [MOE_T_EXPERTS_END_NORM] = IN_LAYER(experts_end_norm),
    [MOE_T_LAYER_SCALE] = IN_LAYER(scale),
    [MOE_T_EXPERT_SCALE] = IN_LAYER(expert_scale),
};

static void *place_of(const struct moe_model *m, enum moe_tensor_role role, uint32_t layer)
{
    char *whole = moe_tensor_spec(role)->per_layer ? (char *)&m->layers[layer] : (char *)m;
    return whole + places[role];
}

struct moe_mat *moe_model_matrix(const struct moe_model *m, enum moe_tensor_role role,
                                 uint32_t layer)
{
    return place_of(m, role, layer);
}

/* A tensor of the dense part, and where it goes. */
struct dense_tensor {
    const struct moe_pack_tensor *t;
    uint8_t *at;
    enum moe_tensor_role role;
    uint32_t layer, order, number; /* groups are read in rising order */
    uint64_t first;                /* of its parts, counted through all tensors */
};

/* The dense part as it is read: its tensors in that order. */
struct moe_dense {
    struct moe_arrivals *arrivals; /* of parts */
    uint64_t n_parts;
    uint32_t n;
    atomic_uint asked; /* tensors that the system was asked to read, the first */
    struct dense_tensor tensors[];
};

static enum moe_dense_group group_of(const struct moe_model *m, enum moe_tensor_role role)
{
    if (moe_tensor_spec(role)->kind != MOE_KIND_DENSE)
        return MOE_DENSE_READY;
    if (moe_tensor_spec(role)->per_layer)
        return MOE_DENSE_LAYER;
    switch (role) {
    case MOE_T_LAST_PROJECTION:
    case MOE_T_LAST_MIX:
    case MOE_T_LAST_GATE_DOWN:
    case MOE_T_LAST_GATE_UP:
        return MOE_DENSE_END;
    case MOE_T_HEAD:
        return MOE_DENSE_HEAD;
    case MOE_T_EMBED:
        return m->config.tied_head ? MOE_DENSE_HEAD : MOE_DENSE_TABLES;
    case MOE_T_LAYER_EMBED:
        return MOE_DENSE_TABLES;
    default:
        return MOE_DENSE_START;
    }
}

/* Where a group comes among all. */
static uint32_t order_of(const struct moe_model *m, enum moe_dense_group group, uint32_t layer)
{
    const uint32_t owner = moe_loop_owner(&m->config.loop, layer);
    return group < MOE_DENSE_LAYER
               ? group
               : group + (group == MOE_DENSE_LAYER ? owner : moe_config_all_layers(&m->config));
}

static void place_tensor(struct moe_model *m, const struct dense_tensor *d)
{
    void *place = place_of(m, d->role, d->layer);
    if (moe_tensor_spec(d->role)->kind == MOE_KIND_VECTOR)
        *(const float **)place = (const float *)(const void *)d->at;
    else
        *(struct moe_mat *)place = (struct moe_mat){d->at, d->t->layout, d->t->rows, d->t->cols};
}

/* Whether it is another rank's, though the description implies it. */
static bool is_others(const struct moe_model *m, enum moe_tensor_role role, uint32_t layer)
{
    if (m->whole_layers) /* which begin with a stream, and end with one */
        return !moe_tensor_spec(role)->per_layer;
    return m->attends && !moe_tensor_is_attention(&m->config, role, layer);
}

/* Walks over every tensor that the description implies: checks it; counts and measures all; lists
 * them in `list`, if that is not NULL. */
static int walk_tensors(struct moe_model *m, struct dense_tensor *list, struct moe_err *err)
{
    const struct moe_config *c = &m->config;
    struct moe_arena arena = {0};
    m->n_tensors = 0;
    for (uint32_t layer = 0; layer < moe_config_own_layers(c); layer++) {
        m->layers[layer].is_moe = c->layers[layer].moe;
        m->layers[layer].n_summed = c->residual == MOE_RESIDUAL_MEAN ? 2 * (layer + 1) : 0;
        for (int role = 0; role < MOE_T_N_ROLES; role++) {
            const struct moe_pack_tensor *t = NULL;
            uint32_t rows, cols;
            if ((!moe_tensor_spec(role)->per_layer && layer > 0) ||
                !moe_tensor_shape(c, role, layer, &rows, &cols) || is_others(m, role, layer))
                continue;
            MOE_TRY(expect_tensor(m, role, layer, rows, cols, &t, err));
            moe_arena_take(&arena, t->extent.raw_bytes, 1);
            if (t->extent.raw_bytes > m->largest_tensor_bytes)
                m->largest_tensor_bytes = t->extent.raw_bytes;
            if (list)
                list[m->n_tensors] = (struct dense_tensor){
                    .t = t,
                    .role = role,
                    .layer = layer,
                    .order = order_of(m, group_of(m, role), layer),
                    .number = m->n_tensors,
                };
            m->n_tensors++;
        }
    }
    m->weights_bytes = arena.used;
    return arena.overflowed
               ? moe_fail(err, MOE_ERR_FORMAT, "%s: the dense weights have an impossible size",
                          moe_pack_path(m->pack))
               : MOE_OK;
}

/* ---- Reading it ---- */

/* Rates of single cells are too many for each token. */
static void take_exponentials(float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = moe_expf(x[i]);
}

/* Profiles of distances become those of rising positions, as keys lie. */
static void turn_profiles(float *x, uint32_t n_profiles, uint32_t extent)
{
    for (; n_profiles > 0; n_profiles--, x += extent)
        for (uint32_t i = 0; i < extent / 2; i++) {
            float far = x[extent - 1 - i];
            x[extent - 1 - i] = x[i];
            x[i] = far;
        }
}

/* What is made of a vector that was read, and what its values must be. */
static int finish_tensor(const struct moe_model *m, const struct dense_tensor *d, uint8_t *here,
                         struct moe_err *err)
{
    float *values = (float *)(void *)here;
    if (d->role == MOE_T_STATE_RATE && m->config.state_kind == MOE_STATE_SELECT)
        take_exponentials(values, d->t->rows);
    if (d->role == MOE_T_PROFILES)
        turn_profiles(values, m->config.rel_dim, d->t->rows / m->config.rel_dim);
    return m->gpu ? MOE_OK
                  : moe_routes_check_numbers(&m->config, d->role, values, moe_pack_path(m->pack),
                                             d->t->name, err);
}

/* Has the system read the tensors that come next. */
static void read_ahead(const struct moe_model *m, uint32_t i)
{
    enum { AHEAD_BYTES = 32 << 20 };
    struct moe_dense *d = m->dense;
    uint32_t asked = atomic_load(&d->asked);
    for (uint64_t bytes = 0; i < d->n && bytes < AHEAD_BYTES; i++) {
        const struct moe_extent *x = &d->tensors[i].t->extent;
        bytes += x->stored_bytes;
        if (i >= asked && atomic_compare_exchange_strong(&d->asked, &asked, i + 1))
            moe_pack_read_ahead(m->pack, x);
    }
}

static int read_part(void *ctx, uint64_t which, uint64_t *bytes, struct moe_err *err)
{
    const struct moe_model *m = ctx;
    uint32_t low = 0, high = m->dense->n;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (m->dense->tensors[middle].first <= which)
            low = middle;
        else
            high = middle;
    }
    const struct dense_tensor *d = &m->dense->tensors[low];
    const uint32_t each = moe_pack_part_rows(m->pack, d->t);
    const uint32_t row = (uint32_t)(which - d->first) * each, left = d->t->rows - row;
    if (row == 0 && group_of(m, d->role) != MOE_DENSE_TABLES)
        read_ahead(m, low);
    MOE_TRY(moe_pack_read_part(m->pack, d->t, row, d->at, err));
    *bytes += d->t->extent.raw_bytes * (left < each ? left : each) / d->t->rows;
    return finish_tensor(m, d, d->at, err);
}

/* One by one, through memory of the host. */
static int send_to_gpu(struct moe_model *m, const struct moe_progress *progress,
                       struct moe_err *err)
{
    uint8_t *staging = moe_pages_alloc(m->largest_tensor_bytes, err);
    uint64_t sent = 0;
    int status;
    MOE_STEP(staging ? MOE_OK : MOE_ERR_MEMORY);
    for (uint32_t i = 0; i < m->dense->n; i++) {
        const struct dense_tensor *d = &m->dense->tensors[i];
        char what[MOE_NAME_BYTES + 16];
        snprintf(what, sizeof what, "tensor '%s'", d->t->name);
        read_ahead(m, i);
        MOE_STEP(moe_pack_read(m->pack, &d->t->extent, staging, what, err));
        MOE_STEP(finish_tensor(m, d, staging, err));
        moe_gpu_upload(m->gpu, MOE_GPU_COPY, d->at, staging, d->t->extent.raw_bytes);
        MOE_STEP(moe_gpu_finish(m->gpu, err)); /* staging is used again */
        moe_progress_report(progress, "loading", sent += d->t->extent.raw_bytes, m->weights_bytes);
        MOE_STEP(moe_progress_stopped(progress) ? moe_fail(err, MOE_ERR_INTERRUPTED, "stopped")
                                                : MOE_OK);
    }
out:
    moe_pages_free(staging, m->largest_tensor_bytes);
    return status;
}

static int compare_order(const void *a, const void *b)
{
    const struct dense_tensor *x = a, *y = b;
    if (x->order != y->order)
        return x->order < y->order ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

/* Gives every tensor its place in the order of reading, and in memory in that order: what is small
 * and there first lies together. */
static int place_dense_part(struct moe_model *m, struct moe_err *err)
{
    m->weights = m->gpu ? moe_gpu_alloc(m->gpu, m->weights_bytes, err)
                        : moe_pages_alloc(m->weights_bytes, err);
    m->dense = moe_alloc(sizeof *m->dense + m->n_tensors * sizeof *m->dense->tensors, 1, err);
    if (!m->weights || !m->dense)
        return MOE_ERR_MEMORY;
    struct moe_arena arena = {.base = m->weights, .size = m->weights_bytes};
    m->dense->n = m->n_tensors;
    MOE_TRY(walk_tensors(m, m->dense->tensors, err));
    qsort(m->dense->tensors, m->dense->n, sizeof *m->dense->tensors, compare_order);
    for (uint32_t i = 0; i < m->dense->n; i++) {
        struct dense_tensor *d = &m->dense->tensors[i];
        const uint32_t each = moe_pack_part_rows(m->pack, d->t);
        d->at = moe_arena_take(&arena, d->t->extent.raw_bytes, 1);
        d->first = m->dense->n_parts;
        m->dense->n_parts += (d->t->rows + each - 1) / each;
        place_tensor(m, d);
    }
    for (uint32_t i = 0; i < moe_config_own_layers(&m->config); i++)
        m->layers[i].has_ffn = m->layers[i].down.data != NULL;
    moe_model_repeat_layers(m);
    if (m->config.tied_head)
        m->head = m->embed;
    return MOE_OK;
}

void moe_model_repeat_layers(struct moe_model *m)
{
    for (uint32_t i = 0; i < m->config.n_layers; i++)
        m->layers[i] = m->layers[moe_loop_owner(&m->config.loop, i)];
}

static void forget_dense(struct moe_model *m)
{
    if (m->dense)
        moe_arrivals_close(m->dense->arrivals);
    free(m->dense);
    m->dense = NULL;
}

/* behind: what is small is there, and the rest is on its way. */
static int read_dense_part(struct moe_model *m, bool behind, const struct moe_progress *progress,
                           struct moe_err *err)
{
    MOE_TRY(place_dense_part(m, err));
    if (m->gpu) {
        int status = send_to_gpu(m, progress, err);
        forget_dense(m);
        return status;
    }
    MOE_TRY(moe_arrivals_open(&m->dense->arrivals, m->dense->n_parts, read_part, m, err));
    const bool compressed = moe_pack_is_compressed(m->pack);
    const int threads = compressed ? 1 : moe_par_threads();
    if (behind && !compressed) { /* and the thread that waits reads, too */
        MOE_TRY(moe_arrivals_begin(m->dense->arrivals, threads > 1 ? threads - 1 : 1, m->passes,
                                   "loading", m->weights_bytes, err));
        return moe_model_await(m, MOE_DENSE_READY, 0, err);
    }
    int status =
        moe_arrivals_read(m->dense->arrivals, threads, progress, "loading", m->weights_bytes, err);
    forget_dense(m);
    return status;
}

int moe_model_await(const struct moe_model *m, enum moe_dense_group group, uint32_t layer,
                    struct moe_err *err)
{
    const struct moe_dense *d = m->dense;
    if (!d || moe_arrivals_complete(d->arrivals))
        return MOE_OK;
    const uint32_t order = order_of(m, group, layer);
    uint32_t first = 0, end;
    while (first < d->n && d->tensors[first].order < order)
        first++;
    for (end = first; end < d->n && d->tensors[end].order == order;)
        end++;
    if (first == end)
        return MOE_OK;
    return moe_arrivals_await(d->arrivals, d->tensors[first].first,
                              end < d->n ? d->tensors[end].first : d->n_parts, err);
}

int moe_model_await_tokens(const struct moe_model *m, const struct moe_row *rows, uint32_t n_rows,
                           struct moe_err *err)
{
    const struct moe_dense *d = m->dense;
    if (!d || moe_arrivals_complete(d->arrivals))
        return MOE_OK;
    for (uint32_t i = 0; i < d->n; i++) {
        const struct dense_tensor *x = &d->tensors[i];
        if (x->role != MOE_T_EMBED && x->role != MOE_T_LAYER_EMBED)
            continue;
        for (uint32_t k = 0; k < n_rows; k++) {
            const uint64_t part = x->first + rows[k].token / moe_pack_part_rows(m->pack, x->t);
            MOE_TRY(moe_arrivals_await(d->arrivals, part, part + 1, err));
        }
    }
    return moe_model_await(m, MOE_DENSE_START, 0, err);
}

/* ---- The experts' shapes ---- */

/* Every expert of a MoE layer is there in at least one variant, and all have the model's shape. */
static int check_experts(const struct moe_model *m, struct moe_err *err)
{
    for (uint32_t i = 0; i < moe_pack_n_classes(m->pack); i++) {
        int status = moe_expert_class_check(moe_pack_class_at(m->pack, i), &m->config,
                                            moe_pack_path(m->pack), err);
        if (status != MOE_OK)
            return status;
    }
    for (uint32_t layer = 0; layer < moe_config_own_layers(&m->config); layer++) {
        const bool own = m->config.layers[layer].moe && moe_config_owns(&m->config, layer);
        for (uint32_t e = 0; own && e < m->config.n_experts; e++) {
            bool present = false;
            for (uint32_t v = 0; v < moe_pack_n_variants(m->pack); v++)
                present |= moe_pack_expert(m->pack, layer, e, v)->present;
            if (!present)
                return moe_fail(err, MOE_ERR_FORMAT, "%s: layer %u expert %u is missing",
                                moe_pack_path(m->pack), layer, e);
        }
    }
    return MOE_OK;
}

/* ---- The rest ---- */

uint32_t moe_model_rope_rows(const struct moe_config *c, uint32_t positions)
{
    return (uint32_t)moe_rope_rows(c, positions);
}

static int make_tables(struct moe_model *m, uint32_t positions, struct moe_err *err)
{
    struct moe_config *c = &m->config;
    uint32_t pairs = m->rope_logs ? c->rope_dim / 2 : 0;
    for (uint32_t i = 0; i < pairs; i++) {
        double freq = c->n_rope_freqs ? c->rope_freqs[i] : pow(c->rope_theta, -(double)i / pairs);
        c->rope_freqs[i] = freq * exp((double)m->rope_logs[i]);
    }
    if (pairs)
        c->n_rope_freqs = pairs;
    m->rope_positions = positions;
    m->rope = moe_alloc(moe_rope_rows(c, positions) * c->rope_dim, sizeof *m->rope, err);
    if (!m->rope)
        return MOE_ERR_MEMORY;
    moe_rope_fill(c, positions, m->rope);
    if (c->n_global_freqs) {
        m->global_rope =
            moe_alloc((uint64_t)positions * 2 * c->n_global_freqs, sizeof *m->rope, err);
        if (!m->global_rope)
            return MOE_ERR_MEMORY;
        moe_rope_global_fill(c, positions, m->global_rope);
    }
    for (int encoder = 0; encoder < 2 && !m->gpu; encoder++) {
        uint64_t n = moe_position_bias_floats(encoder, c, positions);
        const float *weights = m->layers[encoder ? 0 : c->n_encoder].position_bias;
        float *bias = n ? moe_alloc(n, sizeof *bias, err) : NULL;
        if (n && !bias)
            return MOE_ERR_MEMORY;
        if (bias)
            moe_position_bias_fill(encoder, c, positions, weights, bias);
        m->position_bias[encoder] = bias;
    }
    return MOE_OK;
}

const float *moe_model_position_bias(const struct moe_model *m, uint32_t layer, uint64_t *stride)
{
    bool encoder = moe_config_in_encoder(&m->config, layer);
    const float *bias = m->position_bias[encoder];
    *stride = moe_position_bias_stride(encoder, &m->config, m->rope_positions);
    return bias ? bias + moe_position_bias_zero(m->rope_positions) : NULL;
}

static int read_sections(struct moe_model *m, const char *path, struct moe_err *err)
{
    uint64_t n = 0;
    const uint8_t *bytes = moe_pack_section(m->pack, MOE_PACK_MODEL, &n);
    int status = moe_config_read(&m->config, path, bytes, n, err);
    if (status != MOE_OK)
        return status;
    if (moe_pack_n_layers(m->pack) != m->config.n_layers ||
        moe_pack_n_ahead(m->pack) != m->config.n_ahead ||
        moe_pack_n_experts(m->pack) != m->config.n_experts)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: the model has %u layers of %u experts, the directory %u of %u", path,
                        m->config.n_layers, m->config.n_experts, moe_pack_n_layers(m->pack),
                        moe_pack_n_experts(m->pack));
    bytes = moe_pack_section(m->pack, MOE_PACK_TOKENIZER, &n);
    if (!m->config.drafter_kind && !(m->tokenizer = moe_pack_take_tokenizer(m->pack)))
        MOE_TRY(moe_tokenizer_read(&m->tokenizer, path, bytes, n, err));
    bytes = moe_pack_section(m->pack, MOE_PACK_CHAT, &n);
    m->chat_template = moe_strndup((const char *)bytes, n, err);
    if (!m->chat_template)
        return MOE_ERR_MEMORY;
    bytes = moe_pack_section(m->pack, MOE_PACK_SAMPLING, &n);
    return moe_sampling_parse(&m->sampling, path, bytes, n, err);
}

/* drafts: it is a head that drafts, or else a model. */
static int open_image(struct moe_model **out, const char *path, const struct moe_pack_image *image,
                      bool drafts, struct moe_err *err)
{
    *out = NULL;
    struct moe_model *m = moe_alloc(1, sizeof *m, err);
    if (!m)
        return MOE_ERR_MEMORY;
    int status;
    MOE_STEP(moe_pack_open_image(&m->pack, path, image, err));
    MOE_STEP(read_sections(m, path, err));
    if (drafts != (m->config.drafter_kind != MOE_DRAFTS_NOT))
        MOE_STEP(moe_fail(err, MOE_ERR_UNSUPPORTED,
                          drafts ? "%s: is a model, and no head that drafts for another one"
                                 : "%s: is a head that only drafts: it goes with its model, as "
                                   "--draft HEAD",
                          path));
    m->layers = moe_alloc(m->config.n_layers + m->config.n_ahead, sizeof *m->layers, err);
    MOE_STEP(m->layers ? MOE_OK : MOE_ERR_MEMORY);
    MOE_STEP(check_experts(m, err));
    MOE_STEP(walk_tensors(m, NULL, err));
out:
    if (status != MOE_OK) {
        moe_model_close(m);
        return status;
    }
    *out = m;
    return MOE_OK;
}

int moe_model_open_image(struct moe_model **out, const char *path,
                         const struct moe_pack_image *image, struct moe_err *err)
{
    return open_image(out, path, image, false, err);
}

int moe_model_take_drafter(struct moe_model *m, const char *path, struct moe_err *err)
{
    MOE_TRY(open_image(&m->drafter, path, NULL, true, err));
    return moe_config_take_drafter(&m->config, &m->drafter->config, moe_pack_path(m->pack), path,
                                   err);
}

int moe_model_take_ahead(struct moe_model *m, struct moe_err *err)
{
    if (m->config.n_ahead == 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: has no layer that drafts (MTP): its checkpoint had none that "
                        "moe-quantize takes, or it was made with --no-mtp",
                        moe_pack_path(m->pack));
    m->config.n_drafting = m->config.n_ahead;
    moe_pack_take_ahead(m->pack);
    MOE_TRY(check_experts(m, err));
    return walk_tensors(m, NULL, err);
}

int moe_model_share_attention(struct moe_model *m, uint32_t rank, uint32_t n_ranks,
                              struct moe_err *err)
{
    const uint32_t n = moe_config_share_attention(&m->config, rank, n_ranks);
    if (rank == 0)
        MOE_TRY(moe_config_check_shared(&m->config, moe_pack_path(m->pack), err));
    m->attends = rank > 0 ? n : 0;
    return walk_tensors(m, NULL, err);
}

int moe_model_share_layers(struct moe_model *m, uint32_t rank, const uint8_t *owners,
                           struct moe_err *err)
{
    const uint32_t n = moe_config_share_layers(&m->config, rank, owners);
    m->attends = rank > 0 ? n : 0;
    m->whole_layers = rank > 0;
    return walk_tensors(m, NULL, err);
}

uint64_t moe_model_directory_bytes(const struct moe_model *m)
{
    /* Patterns, a normalizer's tables, the template as it is compiled, and what was freed again. */
    enum { BESIDE_TABLES = 384 << 10 };
    uint64_t tables = sizeof *m + (m->config.n_layers + m->config.n_ahead) * sizeof *m->layers +
                      moe_pack_directory_bytes(m->pack);
    tables += m->tokenizer ? moe_tokenizer_held_bytes(m->tokenizer) : 0;
    return tables + tables / 4 + BESIDE_TABLES +
           (m->drafter ? moe_model_directory_bytes(m->drafter) : 0);
}

static uint32_t context_or_all(const struct moe_model *m, uint32_t context)
{
    return context ? context : m->config.context_max;
}

static uint64_t table_bytes(const struct moe_model *m, uint32_t context)
{
    const struct moe_config *c = &m->config;
    uint32_t positions = context_or_all(m, context);
    return (moe_rope_rows(c, positions) * c->rope_dim +
            (uint64_t)positions * 2 * c->n_global_freqs +
            moe_position_bias_floats(false, c, positions) +
            moe_position_bias_floats(true, c, positions)) *
           sizeof(float);
}

uint64_t moe_model_load_bytes(const struct moe_model *m, uint32_t context)
{
    return m->weights_bytes + table_bytes(m, context) +
           (m->drafter ? moe_model_load_bytes(m->drafter, context_or_all(m, context)) : 0);
}

uint64_t moe_model_gpu_host_bytes(const struct moe_model *m, uint32_t context)
{
    return m->largest_tensor_bytes + table_bytes(m, context);
}

/* Loads the head that drafts, if there is one. What it has not by itself is the model's. */
static int load_drafter(struct moe_model *m, uint32_t context, const struct moe_progress *progress,
                        struct moe_err *err)
{
    struct moe_model *d = m->drafter;
    if (!d || m->attends) /* rank 0 drafts */
        return MOE_OK;
    MOE_TRY(moe_model_load(d, context_or_all(m, context), NULL, progress, err));
    if (!d->config.own_embed)
        d->embed = m->embed;
    if (!d->config.own_head)
        d->head = m->head;
    return MOE_OK;
}

int moe_model_load(struct moe_model *m, uint32_t context, struct moe_gpu *gpu,
                   const struct moe_progress *progress, struct moe_err *err)
{
    m->gpu = gpu;
    MOE_TRY(read_dense_part(m, false, progress, err));
    MOE_TRY(load_drafter(m, context, progress, err));
    return make_tables(m, context_or_all(m, context), err);
}

int moe_model_load_behind(struct moe_model *m, uint32_t context,
                          const struct moe_progress *progress, const struct moe_progress *passes,
                          struct moe_err *err)
{
    m->passes = passes;
    MOE_TRY(read_dense_part(m, true, progress, err));
    MOE_TRY(load_drafter(m, context, progress, err));
    return make_tables(m, context_or_all(m, context), err);
}

int moe_model_open(struct moe_model **out, const char *path, uint32_t context,
                   const struct moe_progress *progress, struct moe_err *err)
{
    int status = moe_model_open_directory(out, path, err);
    if (status == MOE_OK)
        status = moe_model_load(*out, context, NULL, progress, err);
    if (status != MOE_OK) {
        moe_model_close(*out);
        *out = NULL;
    }
    return status;
}

void moe_model_close(struct moe_model *m)
{
    if (!m)
        return;
    moe_model_close(m->drafter);
    forget_dense(m);
    if (m->gpu)
        moe_gpu_free(m->gpu, m->weights, m->weights_bytes);
    else
        moe_pages_free(m->weights, m->weights_bytes);
    moe_tokenizer_free(m->tokenizer);
    moe_pack_close(m->pack);
    free(m->chat_template);
    free(m->layers);
    free(m->rope);
    free(m->global_rope);
    free(m->position_bias[0]);
    free(m->position_bias[1]);
    free(m);
}

struct moe_statistics_shape moe_model_statistics_shape(const struct moe_model *model)
{
    const struct moe_config *c = &model->config;
    return (struct moe_statistics_shape){
        .n_layers = c->n_moe_layers,
        .n_encoder = c->layers[c->n_encoder].moe_index,
        .n_experts = c->n_experts,
        .top_k = c->top_k,
        .source_fingerprint = moe_pack_source_fingerprint(model->pack),
    };
}

bool moe_model_fits_statistics(const struct moe_model *model,
                               const struct moe_statistics *statistics)
{
    const struct moe_statistics_shape want = moe_model_statistics_shape(model);
    return moe_statistics_same_model(&statistics->shape, &want);
}
