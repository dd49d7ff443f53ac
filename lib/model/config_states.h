/*
 * What a description says of the states of a text: those that layers keep of it, and those of its
 * rows between layers.
 */
#ifndef MOE_MODEL_CONFIG_STATES_H
#define MOE_MODEL_CONFIG_STATES_H

#include "model/config.h"

/* Layers of which a text goes on from its last token alone: with a recurrent state, or entries of
 * groups that are open; counted likewise. */
static inline bool moe_config_keeps_state(const struct moe_config *c, uint32_t layer)
{
    return (c->state_heads && c->layer_is_recurrent[layer]) || c->layer_compresses[layer];
}
static inline uint32_t moe_config_state_layers(const struct moe_config *c, uint32_t layer)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < layer; i++)
        n += moe_config_keeps_state(c, i);
    return n;
}
static inline uint32_t moe_config_compressing_layers(const struct moe_config *c, uint32_t layer)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < layer; i++)
        n += c->layer_compresses[i] != MOE_COMPRESS_NOT;
    return n;
}
static inline uint32_t moe_config_ratio(const struct moe_config *c, uint32_t layer)
{
    return c->layer_compresses[layer] == MOE_COMPRESS_CHOSEN ? c->chosen_ratio : c->all_ratio;
}

/* Values of a row's state between layers: of all its streams. */
static inline uint32_t moe_config_state_width(const struct moe_config *c)
{
    return c->hidden * (c->n_streams ? c->n_streams : 1);
}

/* Channels of the convolution: queries, keys, values (of MOE_STATE_SCAN values, keys, queries). */
static inline uint32_t moe_config_state_channels(const struct moe_config *c)
{
    uint32_t values = c->state_heads * c->state_value_dim;
    bool values_alone = c->state_kind == MOE_STATE_SELECT;
    return (values_alone ? 0 : 2 * c->state_key_heads * c->state_key_dim) + values;
}

#endif
