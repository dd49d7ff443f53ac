/* What families with recurrent states compute of their own from GGUF metadata (family_own.h): which
 * layers have them, and how wide they are. */
#include <inttypes.h>
#include <string.h>

#include "family/family_gguf.h"
#include "family/family_own.h"
#include "family/family_settings.h"
#include "quant/layout.h"

/* "ssm.inner_size": the values of all heads. */
static int read_values(struct moe_config *c, const struct moe_gguf *gguf, struct moe_err *err)
{
    uint32_t all = 0;
    int status = moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, "ssm.inner_size").text, MOE_MAX_DIM,
                                  true, &all, err);
    if (status == MOE_OK && (c->state_heads == 0 || all % c->state_heads != 0))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " heads of a state cannot share %" PRIu32 " values",
                        moe_gguf_path(gguf), c->state_heads, all);
    if (status == MOE_OK)
        c->state_value_dim = all / c->state_heads;
    return status;
}

/* Layers without key heads have states; n_kv_heads is what the others have, which must be the same.
 */
static int read_layers(struct moe_config *c, const struct moe_gguf *gguf, struct moe_err *err)
{
    uint32_t heads[MOE_MAX_LAYERS] = {0};
    int status =
        family_gguf_by_layer(c, gguf, "attention.head_count_kv", MOE_MAX_HEADS, heads, err);
    for (uint32_t i = 0; i < c->n_layers && status == MOE_OK; i++) {
        c->layer_is_recurrent[i] = heads[i] == 0;
        if (heads[i] != 0 && heads[i] != c->n_kv_heads)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: layers with %" PRIu32 " and with %" PRIu32
                            " key heads ('head_count_kv') are not implemented for this family",
                            moe_gguf_path(gguf), c->n_kv_heads, heads[i]);
    }
    return status;
}

/* Whether convolutions have biases. */
static void find_biases(struct moe_config *c, const struct moe_checkpoint *ck)
{
    c->conv_bias = false;
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->conv_bias |= family_gguf_tensor(ck, "blk.%u.ssm_conv1d.bias", i) != NULL;
}

/* ---- Qwen3-Next and its successors ---- */

/* "attention.recurrent_layers", or every "full_attention_interval"-th layer attends. */
static int read_recurrent(struct moe_config *c, const struct moe_gguf *gguf,
                          uint32_t recurrent[MOE_MAX_LAYERS], struct moe_err *err)
{
    uint32_t interval = 4;
    int status = moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, "full_attention_interval").text,
                                  MOE_MAX_LAYERS, false, &interval, err);
    if (status == MOE_OK && interval == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'full_attention_interval' must be at least 1",
                        moe_gguf_path(gguf));
    for (uint32_t i = 0; i < c->n_layers && status == MOE_OK; i++)
        recurrent[i] = (i + 1) % interval != 0;
    if (status == MOE_OK)
        status = family_gguf_by_layer(c, gguf, "attention.recurrent_layers", 1, recurrent, err);
    return status;
}

/* Files made by ollama have key heads listed by layer as well, perhaps alone: where something else
 * is said, both must agree. */
static int check_listed_heads(const struct moe_config *c, const struct moe_gguf *gguf,
                              const uint32_t recurrent[MOE_MAX_LAYERS], struct moe_err *err)
{
    if (!moe_gguf_has(gguf, moe_gguf_arch_key(gguf, "full_attention_interval").text) &&
        !moe_gguf_has(gguf, moe_gguf_arch_key(gguf, "attention.recurrent_layers").text))
        return MOE_OK;
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (c->layer_is_recurrent[i] != recurrent[i])
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: layer %" PRIu32 " has %s by 'head_count_kv', by other keys not",
                            moe_gguf_path(gguf), i, recurrent[i] ? "key heads" : "a state");
    return MOE_OK;
}

/* Heads that share keys follow each other, or the first of each key head come first, then the
 * second ones, and so on: then the product behind them has its columns in that order. llama.cpp
 * orders them so for Qwen3.5 alone; ollama says which. */
static int read_delta(struct moe_config *c, const struct moe_gguf *gguf, bool in_turn,
                      struct moe_err *err)
{
    uint32_t recurrent[MOE_MAX_LAYERS];
    bool listed = family_gguf_is_list(gguf, "attention.head_count_kv");
    int status = read_values(c, gguf, err);
    if (status == MOE_OK)
        status = moe_gguf_get_bool(gguf, moe_gguf_arch_key(gguf, "ssm.v_head_reordered").text,
                                   false, &in_turn, err);
    c->state_keys_in_turn = in_turn && c->state_heads != c->state_key_heads;
    if (status == MOE_OK)
        status = read_recurrent(c, gguf, recurrent, err);
    if (status == MOE_OK && listed)
        status = read_layers(c, gguf, err);
    if (status == MOE_OK && listed)
        return check_listed_heads(c, gguf, recurrent, err);
    for (uint32_t i = 0; i < c->n_layers && status == MOE_OK; i++)
        c->layer_is_recurrent[i] = recurrent[i] != 0;
    return status;
}

int family_qwen3_next_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                           struct moe_rope_settings *rope, struct moe_err *err)
{
    (void)rope;
    return read_delta(c, moe_checkpoint_gguf(ck), false, err);
}

/* ollama names Qwen3-Next so as well, and does not reorder its heads. Its products of two parts
 * ("ssm_ba") show it. */
int family_qwen3_5_moe_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                            struct moe_rope_settings *rope, struct moe_err *err)
{
    (void)rope;
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (family_gguf_tensor(ck, "blk.%u.ssm_ba.weight", i))
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: a model of Qwen3-Next's tensors under Qwen3.5's architecture is "
                            "not implemented",
                            moe_checkpoint_dir(ck));
    return read_delta(c, moe_checkpoint_gguf(ck), true, err);
}

/* ---- LFM2 with experts ---- */

int family_lfm2_moe_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                         struct moe_rope_settings *rope, struct moe_err *err)
{
    (void)rope;
    c->state_heads = 1;
    c->state_value_dim = c->hidden;
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->choice_bias |= family_gguf_tensor(ck, "blk.%u.exp_probs_b.bias", i) != NULL;
    return read_layers(c, moe_checkpoint_gguf(ck), err);
}

/* ---- Granite-4 H, Nemotron-H ---- */

/* Rotary positions, where "rope.scaling.finetuned" says so; without experts what is left is the
 * shared one. */
int family_granite_hybrid_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                               struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    const char *shared = c->n_experts ? "" : "expert_shared_feed_forward_length";
    bool rotates = true;
    (void)rope;
    int status = read_values(c, gguf, err);
    if (status == MOE_OK)
        status = read_layers(c, gguf, err);
    if (status == MOE_OK)
        status = moe_gguf_get_bool(gguf, moe_gguf_arch_key(gguf, "rope.scaling.finetuned").text,
                                   false, &rotates, err);
    if (status == MOE_OK)
        status = moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, shared).text, MOE_MAX_DIM, false,
                                  &c->dense_ff, err);
    c->positions = rotates ? MOE_POSITIONS_ROTARY : MOE_POSITIONS_NONE;
    if (!rotates)
        c->rope_dim = 0;
    if (c->n_experts == 0)
        c->top_k = 0;
    find_biases(c, ck);
    return status;
}

/* A layer without key heads and without a feed-forward has a state. */
int family_nemotron_h_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                           struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    uint32_t widths[MOE_MAX_LAYERS] = {0};
    int status = family_sigmoid_gguf(c, ck, rope, err);
    if (status == MOE_OK)
        status = read_values(c, gguf, err);
    if (status == MOE_OK)
        status = read_layers(c, gguf, err);
    if (status == MOE_OK)
        status = family_gguf_by_layer(c, gguf, "feed_forward_length", MOE_MAX_DIM, widths, err);
    for (uint32_t i = 0; i < c->n_layers && status == MOE_OK; i++) {
        if (widths[i] > 0 && !c->layer_is_recurrent[i])
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: layer %" PRIu32 " has key heads and a feed-forward, it must have "
                            "one of them",
                            moe_gguf_path(gguf), i);
        c->layer_is_recurrent[i] &= widths[i] == 0;
        c->layer_no_attention[i] = widths[i] > 0;
        c->layer_no_ffn[i] = widths[i] == 0;
    }
    find_biases(c, ck);
    return status;
}

/* ---- Kimi-Linear ---- */

int family_kimi_linear_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                            struct moe_rope_settings *rope, struct moe_err *err)
{
    c->state_heads = c->state_key_heads = c->n_heads;
    c->state_value_dim = c->state_key_dim;
    int status = read_layers(c, moe_checkpoint_gguf(ck), err);
    return status == MOE_OK ? family_deepseek_v3_gguf(c, ck, rope, err) : status;
}

/* ---- Jamba ---- */

int family_jamba_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                      struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    (void)rope;
    c->state_heads = c->state_key_heads = 1;
    if (moe_config_moe_layers(c, c->n_layers) == 0) /* one is none */
        c->n_experts = c->top_k = 0;
    find_biases(c, ck);
    int status = read_values(c, gguf, err);
    return status == MOE_OK ? read_layers(c, gguf, err) : status;
}
