/* What families with local and global layers compute of their own from GGUF files. */
#include <inttypes.h>
#include <math.h>

#include "family/family_gguf.h"
#include "family/family_own.h"
#include "family/family_settings.h"
#include "fmt/checkpoint.h"
#include "quant/layout.h"

static void every_fourth_global(struct moe_config *c)
{
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layer_is_windowed[i] = (i + 1) % 4 != 0;
}

static int needs_window(const struct moe_config *c, const struct moe_checkpoint *ck,
                        struct moe_err *err)
{
    if (c->window > 0)
        return MOE_OK;
    return moe_fail(err, MOE_ERR_UNSUPPORTED,
                    "%s: 'attention.sliding_window' 0 is not implemented for this family",
                    moe_checkpoint_dir(ck));
}

/* ---- SmallThinker ---- */

/* Files with a window are of models whose layers 0, 4, 8, ... have none and do not rotate. */
int family_smallthinker_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                             struct moe_rope_settings *rope, struct moe_err *err)
{
    (void)ck, (void)rope, (void)err;
    c->rope_in_windows = c->window > 0;
    for (uint32_t i = 0; i < c->n_layers && c->window > 0; i++)
        c->layer_is_windowed[i] = i % 4 != 0;
    return MOE_OK;
}

/* ---- Gemma-4 ---- */

/* The file's widths of heads are those of global layers; local ones have keys of their own. Numbers
 * of heads are by layer: the same for each of a kind. */
static int gemma4_heads(struct moe_config *c, const struct moe_gguf *gguf, struct moe_err *err)
{
    uint32_t kv_heads[MOE_MAX_LAYERS] = {0}, of_kind[2] = {0};
    c->global_head_dim = c->head_dim;
    if (c->rope_dim != c->global_head_dim)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: global heads of %" PRIu32 " values of which %" PRIu32
                        " are rotated ('rope.dimension_count') are not implemented; all are",
                        moe_gguf_path(gguf), c->global_head_dim, c->rope_dim);
    int status =
        family_gguf_by_layer(c, gguf, "attention.head_count_kv", MOE_MAX_HEADS, kv_heads, err);
    if (status == MOE_OK)
        status = moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, "attention.key_length_swa").text,
                                  MOE_MAX_HEAD_DIM, true, &c->head_dim, err);
    if (status == MOE_OK)
        status = moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, "rope.dimension_count_swa").text,
                                  MOE_MAX_HEAD_DIM, true, &c->rope_dim, err);
    for (uint32_t i = 0; i < c->n_layers && status == MOE_OK; i++) {
        uint32_t *n = &of_kind[c->layer_is_windowed[i]];
        if (*n != 0 && *n != kv_heads[i])
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: 'attention.head_count_kv' differs for layer %" PRIu32
                            " from that of others which are %s as well",
                            moe_gguf_path(gguf), i, c->layer_is_windowed[i] ? "local" : "global");
        *n = kv_heads[i];
    }
    c->global_kv_heads = of_kind[0] ? of_kind[0] : of_kind[1];
    c->n_kv_heads = of_kind[1] ? of_kind[1] : of_kind[0];
    c->value_dim = 0; /* as keys */
    return status;
}

/* Global layers without a matrix of values take their keys for them. */
static int gemma4_values(struct moe_config *c, const struct moe_checkpoint *ck, struct moe_err *err)
{
    uint32_t n_global = 0, n_with = 0;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        n_global += !c->layer_is_windowed[i];
        n_with += !c->layer_is_windowed[i] && family_gguf_tensor(ck, "blk.%u.attn_v.weight", i);
    }
    if (n_with != 0 && n_with != n_global)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: %" PRIu32 " of %" PRIu32 " global layers have values of their own; "
                        "all or none is implemented",
                        moe_checkpoint_dir(ck), n_with, n_global);
    c->global_keys_are_values = n_with == 0;
    return MOE_OK;
}

int family_gemma4_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                       struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    (void)rope;
    c->embed_scale = sqrtf((float)c->hidden);
    int status = family_gguf_windows(c, gguf, 0, err);
    if (status == MOE_OK)
        status = gemma4_heads(c, gguf, err);
    if (status == MOE_OK)
        status = gemma4_values(c, ck, err);
    if (status == MOE_OK && c->n_experts > 0) {
        c->own_norms = c->expert_scale = true;
        /* What else is a dense layer's is the shared expert beside the others. */
        status = moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, "feed_forward_length").text,
                                  MOE_MAX_DIM, true, &c->shared_ff, err);
    }
    return status;
}

/* ---- Llama-4 ---- */

/* Files say neither which layers see a part nor, as a rule, how long parts are nor how queries are
 * scaled: these are as published, and so in llama.cpp. The model with 128 experts has no norms of
 * queries and keys; some files say so. */
int family_llama4_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                       struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    bool norm = c->n_experts != 128;
    (void)rope;
    c->window = 8192;
    every_fourth_global(c);
    c->query_step = 8192;
    c->query_scale = 0.1f;
    int status =
        moe_gguf_get_bool(gguf, moe_gguf_arch_key(gguf, "use_qk_norm").text, false, &norm, err);
    c->qk_norm = norm ? MOE_QK_NORM_BARE : MOE_QK_NORM_NONE;
    return status;
}

/* ---- AFMoE ---- */

/* Every fourth layer is global, and embeddings are scaled, without a word of it in the file. */
int family_afmoe_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                      struct moe_rope_settings *rope, struct moe_err *err)
{
    (void)rope;
    every_fourth_global(c);
    if (!moe_gguf_has(moe_checkpoint_gguf(ck),
                      moe_gguf_arch_key(moe_checkpoint_gguf(ck), "embedding_scale").text))
        c->embed_scale = sqrtf((float)c->hidden);
    return needs_window(c, ck, err);
}

/* ---- EXAONE-MoE ---- */

int family_exaone_moe_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                           struct moe_rope_settings *rope, struct moe_err *err)
{
    int status = needs_window(c, ck, err);
    if (status == MOE_OK)
        status = family_gguf_windows(c, moe_checkpoint_gguf(ck), 4, err);
    return status == MOE_OK ? family_sigmoid_gguf(c, ck, rope, err) : status;
}

/* ---- Command-A with experts ---- */

/* The epsilon's key says which norm it is. Layers without experts rotate in any case; the shared
 * experts are averaged with the others. */
int family_cohere2_moe_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                            struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    double eps = 0;
    (void)rope;
    int status = needs_window(c, ck, err);
    if (status == MOE_OK)
        status = moe_gguf_get_double(
            gguf, moe_gguf_arch_key(gguf, "attention.layer_norm_rms_epsilon").text, false, &eps,
            err);
    if (status == MOE_OK && eps != 0)
        c->norm_kind = MOE_NORM_RMS;
    c->rope_in_dense = true;
    c->moe_scale = c->shared_ff ? 0.5f : 1;
    return status == MOE_OK ? family_gguf_windows(c, gguf, 0, err) : status;
}
