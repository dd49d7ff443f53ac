/* What a model's description answers to the words of the table of tensors (tensor_words.h). */
#include "model/tensor_words.h"
#include "model/config_states.h"

uint32_t moe_tensor_width(const struct moe_config *c, enum width which, uint32_t layer)
{
    bool all_heads = c->qk_norm == MOE_QK_NORM_FULL;
    uint32_t head = moe_config_head_dim(c, layer), queries = c->n_heads * head;
    uint32_t keys = moe_config_kv_heads(c, layer) * head;
    uint32_t values = c->state_heads * c->state_value_dim;
    uint32_t state_keys = c->state_key_heads * c->state_key_dim;
    bool kda = c->state_kind == MOE_STATE_KDA, select = c->state_kind == MOE_STATE_SELECT;
    bool chooses = layer < MOE_NO_LAYER && c->layer_compresses[layer] == MOE_COMPRESS_CHOSEN;
    uint32_t ratio = layer < MOE_NO_LAYER ? moe_config_ratio(c, layer) : 0, twice = 1 + chooses;
    const uint32_t widths[N_WIDTHS] = {
        [ONE] = 1,
        [VOCAB] = c->vocab,
        [HIDDEN] = c->hidden,
        [TWICE_HIDDEN] = 2 * c->hidden,
        [HEADS] = c->n_heads,
        [QUERIES] = queries,
        [KEYS] = keys,
        [VALUES] = c->n_heads * (moe_config_is_global(c, layer) ? head : c->value_dim),
        [QUERY_INPUT] = c->q_rank ? c->q_rank : c->hidden,
        [QUERY_NORM] = all_heads ? queries : head,
        [KEY_NORM] = all_heads ? keys : head,
        [Q_RANK] = c->q_rank,
        [OUTPUTS] = c->out_groups
                        ? c->out_groups * c->out_rank
                        : c->n_heads * (moe_config_is_global(c, layer) ? head : c->value_dim),
        [OUT_DOWN] = c->out_groups * c->out_rank,
        [OUT_GROUP] = c->out_groups ? queries / c->out_groups : 0,
        [ENTRIES] = twice * head,
        [ENTRY] = head,
        [ENTRY_BIAS] = ratio * twice * head,
        [INDEX_ENTRIES] = twice * c->index_dim,
        [INDEX_ENTRY] = c->index_dim,
        [INDEX_BIAS] = ratio * twice * c->index_dim,
        [STREAMS] = c->n_streams * c->hidden,
        [STREAM_MIX] = (2 + c->n_streams) * c->n_streams,
        [STREAM_ENDS] = c->n_streams,
        [THREE] = 3,
        [KV_RANK] = c->kv_rank,
        [KV_DOWN] = c->kv_rank + c->rope_dim,
        [LATENT_KEYS] = c->n_heads * c->kv_rank,
        [NOT_ROTATED] = c->head_dim - c->rope_dim,
        [INDEX_HEADS] = c->index_heads,
        [INDEX_QUERIES] = c->index_heads * c->index_dim,
        [INDEX_KEY] = c->index_dim,
        [DENSE_FF] = c->dense_ff,
        [EXPERTS] = c->n_experts,
        [SHARED_FF] = c->shared_ff,
        [EXPERT_FF] = c->expert_ff,
        [POSITION_BIAS] = c->n_buckets * c->n_heads,
        [CONTEXT] = c->context_max,
        [ROUTES] = c->vocab * c->top_k,
        [STATE_KEYS] = state_keys,
        [STATE_VALUES] = values,
        [STATE_HEADS] = c->state_heads,
        [STATE_CONV] = (kda ? values : moe_config_state_channels(c)) * c->conv_width,
        [STATE_CONV_KEYS] = state_keys * c->conv_width,
        [STATE_GATE_INPUT] = kda ? c->state_key_dim : c->hidden,
        [STATE_LOW] = select ? c->state_step_rank : c->state_key_dim,
        [STATE_KEY] = c->state_key_dim,
        [STATE_DECAYS] = kda      ? state_keys
                         : select ? values
                                  : c->state_heads,
        [STATE_RATES] = select ? state_keys * values : c->state_heads,
        [STATE_SKIPS] = select ? values : c->state_heads,
        [STATE_KEY_INPUT] = select ? values : c->hidden,
        [STATE_DECAY_INPUT] = kda      ? c->state_key_dim
                              : select ? c->state_step_rank
                                       : c->hidden,
        [STATE_CHANNELS] = moe_config_state_channels(c),
        [STATE_NORM] = c->state_kind == MOE_STATE_SCAN ? values : c->state_value_dim,
    };
    return widths[which];
}

bool moe_tensor_holds(const struct moe_config *c, enum condition condition, uint32_t layer)
{
    bool moe_layer = layer < MOE_NO_LAYER && c->layer_is_moe[layer];
    bool is_static = moe_layer && c->layer_is_static[layer];
    bool routed = moe_layer && (!is_static || c->static_weighed);
    bool shared = moe_layer && c->shared_ff > 0;
    bool dense_gate = moe_act_is_gated(c->dense_act), expert_gate = moe_act_is_gated(c->expert_act);
    bool first = layer == 0 || layer == c->n_encoder;
    bool mixes = layer >= MOE_NO_LAYER || !c->layer_no_attention[layer];
    bool recurrent = layer < MOE_NO_LAYER && c->layer_is_recurrent[layer];
    bool attends = mixes && !recurrent;
    bool kda = c->state_kind == MOE_STATE_KDA, select = c->state_kind == MOE_STATE_SELECT;
    bool keys_only = c->global_keys_are_values && moe_config_is_global(c, layer);
    bool both = c->norm_place == MOE_NORM_BOTH;
    bool normed = c->qk_norm != MOE_QK_NORM_NONE && c->qk_norm != MOE_QK_NORM_BARE;
    bool indexed = layer < MOE_NO_LAYER && moe_config_has_indexer(c, layer);
    uint32_t compression = layer < MOE_NO_LAYER ? c->layer_compresses[layer] : MOE_COMPRESS_NOT;
    bool plain = !moe_layer && !(layer < MOE_NO_LAYER && c->layer_no_ffn[layer]);
    const bool conditions[N_CONDITIONS] = {
        [ALWAYS] = true,
        [UNTIED] = !c->tied_head,
        [HEAD_BIAS] = c->head_bias,
        [LAYER_NORM] = c->norm_kind == MOE_NORM_LAYER,
        [FFN_LAYER_NORM] = c->norm_kind == MOE_NORM_LAYER && !c->parallel_blocks,
        [MIXES] = mixes,
        [MIXES_BOTH] = mixes && both,
        [FEEDS_BOTH] = (moe_layer || plain) && both,
        [LAYER_SCALE] = c->layer_scale,
        [FEEDS] = (moe_layer || plain) && !c->parallel_blocks,
        [ATTENDS] = attends,
        [SHARED_KEYS] = attends && c->out_groups,
        [KEY_NORMED] = attends && (c->out_groups || normed),
        [COMPRESSES] = compression != MOE_COMPRESS_NOT,
        [CHOOSES] = compression == MOE_COMPRESS_CHOSEN,
        [MANY_STREAMS] = c->n_streams > 0,
        [ATTN_GATE] = attends && c->attn_gate,
        [RECURRENT] = recurrent,
        [STATE] = recurrent && c->state_kind != MOE_STATE_CONV,
        [BETA] = recurrent && (c->state_kind == MOE_STATE_DELTA || kda),
        [KDA] = recurrent && kda,
        [SELECT] = recurrent && select,
        [SKIPS] = recurrent && (select || c->state_kind == MOE_STATE_SCAN),
        [DECAY_DOWN] = recurrent && (select || kda),
        [STATE_NORMED] = recurrent && c->state_kind != MOE_STATE_CONV && !select,
        [SHORT_CONV] = recurrent && c->state_kind == MOE_STATE_CONV,
        [CONV_BIAS] = recurrent && c->conv_bias,
        [ORDINARY] = attends && c->kv_rank == 0,
        [HAS_VALUES] = attends && c->kv_rank == 0 && !keys_only && !c->out_groups,
        [VALUES_BIAS] = attends && c->qkv_bias && !keys_only,
        [LATENT] = attends && c->kv_rank > 0,
        [LATENT_Q] = attends && c->q_rank > 0,
        [INDEXED] = indexed,
        [SCORES] = indexed || compression == MOE_COMPRESS_CHOSEN,
        [QKV_BIAS] = attends && c->qkv_bias,
        [QK_NORM] = attends && normed,
        [SINKS] = attends && c->attn_sinks,
        [O_BIAS] = attends && c->o_bias,
        [POSITION_BUCKETS] = c->positions == MOE_POSITIONS_BUCKETS && first,
        [LEARNT] = c->positions == MOE_POSITIONS_LEARNT,
        [LEARNT_MORE] = c->extra_positions > 0,
        [FINAL_NORM] = !c->last_projection,
        [FINAL_LAYER_NORM] = !c->last_projection && c->norm_kind == MOE_NORM_LAYER,
        [LAST_PROJECTION] = c->last_projection,
        [ENCODER] = c->n_encoder > 0,
        [CROSS] = c->n_encoder > 0 && layer >= c->n_encoder,
        [DENSE_LAYER] = plain,
        [DENSE_GATE] = plain && dense_gate,
        [DENSE_BIAS] = plain && c->dense_bias,
        [ROUTED] = routed,
        [ROUTER_BIAS] = routed && c->router_bias,
        [OWN_NORMS] = moe_layer && c->own_norms,
        [EXPERT_SCALE] = routed && c->expert_scale,
        [CHOICE_BIAS] = moe_layer && !is_static && c->choice_bias,
        [STATIC] = is_static,
        [SHARED] = shared,
        [SHARED_HAS_GATE] = shared && dense_gate,
        [SHARED_GATE] = shared && c->shared_gate,
        [BYPASS] = moe_layer && c->soft_bypass,
        [AHEAD] = layer >= c->n_layers && layer < c->n_layers + c->n_ahead,
        [EXPERT_GATE] = expert_gate,
        [EXPERT_BIAS] = c->expert_bias,
        [EXPERT_GATE_BIAS] = c->expert_bias && expert_gate,
    };
    return conditions[condition];
}
