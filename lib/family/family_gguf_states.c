/* What families with recurrent states compute of their own from GGUF metadata (family_own.h): which
 * layers have them, and how wide they are. */
#include <inttypes.h>
#include <string.h>

#include "family/family_own.h"
#include "family/family_settings.h"
#include "fmt/checkpoint.h"
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

/* ---- Qwen3-Next and its successors ---- */

/* "attention.recurrent_layers", or every "full_attention_interval"-th layer attends. */
static int read_delta_layers(struct moe_config *c, const struct moe_gguf *gguf, struct moe_err *err)
{
    struct moe_gguf_array array;
    struct moe_gguf_key key = moe_gguf_arch_key(gguf, "attention.recurrent_layers");
    uint32_t interval = 4;
    int status = moe_gguf_get_array(gguf, key.text, false, &array, err);
    if (status == MOE_OK)
        status = moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, "full_attention_interval").text,
                                  MOE_MAX_LAYERS, false, &interval, err);
    if (status == MOE_OK && interval == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'full_attention_interval' must be at least 1",
                        moe_gguf_path(gguf));
    if (status == MOE_OK && array.n > 0 &&
        (array.n < c->n_layers || moe_gguf_array_is_text(&array)))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' does not say which of %" PRIu32 " layers",
                        moe_gguf_path(gguf), key.text, c->n_layers);
    for (uint32_t i = 0; i < c->n_layers && status == MOE_OK; i++)
        c->layer_is_recurrent[i] =
            array.n ? moe_gguf_array_number(&array, i) != 0 : (i + 1) % interval != 0;
    return status;
}

int family_qwen3_next_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                           struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    (void)rope;
    int status = read_values(c, gguf, err);
    return status == MOE_OK ? read_delta_layers(c, gguf, err) : status;
}

/* Heads that share keys do not follow each other: llama.cpp has put the first of each key head
 * first, then the second ones. The product behind them has its columns in that order. */
int family_qwen3_5_moe_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                            struct moe_rope_settings *rope, struct moe_err *err)
{
    c->state_keys_in_turn = c->state_heads != c->state_key_heads;
    return family_qwen3_next_gguf(c, ck, rope, err);
}
