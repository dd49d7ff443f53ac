/* What families with sparse attention compute of their own from GGUF metadata (family_own.h): which
 * layers share a choice of positions (GLM-5), which compress them and how (DeepSeek-V4). */
#include <inttypes.h>
#include <math.h>

#include "family/family_gguf.h"
#include "family/family_own.h"
#include "family/family_settings.h"

/* ---- GLM-5 ---- */

/* "attention.indexer.types": 1 where a layer chooses, 0 where it shares. Files older than the key
 * say nothing: all layers of GLM-5 and 5.1 choose, of 5.2, whose context is longer, the first three
 * and then every fourth. */
int family_glm_dsa_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                        struct moe_rope_settings *rope, struct moe_err *err)
{
    enum { CONTEXT_OF_5_2 = 1 << 20 };
    uint32_t chooses[MOE_MAX_LAYERS];
    for (uint32_t i = 0; i < c->n_layers; i++)
        chooses[i] = c->context_max < CONTEXT_OF_5_2 || i < 2 || i % 4 == 2;
    int status = family_gguf_by_layer(c, moe_checkpoint_gguf(ck), "attention.indexer.types", 1,
                                      chooses, err);
    for (uint32_t i = 0; i < c->n_layers && status == MOE_OK; i++)
        c->layer_shares_choice[i] = !chooses[i];
    return status == MOE_OK ? family_deepseek_v3_gguf(c, ck, rope, err) : status;
}

/* ---- DeepSeek-V4 ---- */

/* All layers of a kind compress groups of one size. */
static int take_ratio(uint32_t *all, uint32_t ratio, uint32_t layer, const char *path,
                      struct moe_err *err)
{
    if (ratio > MOE_MAX_RATIO || (*all != 0 && *all != ratio))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: 'compress_ratios' of layer %" PRIu32 " is %" PRIu32 ", which is not "
                        "implemented beside %" PRIu32,
                        path, layer, ratio, *all);
    *all = ratio;
    return MOE_OK;
}

/* "attention.compress_ratios": the positions of a group, 0 where a layer sees a window alone, for
 * each layer and, perhaps, those for further tokens, which the file need not have. Which of the
 * others choose, their indexers show: in the published models those of 4 positions. */
static int read_ratios(struct moe_config *c, const struct moe_checkpoint *ck, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    struct moe_gguf_key key = moe_gguf_arch_key(gguf, "attention.compress_ratios");
    struct moe_gguf_array ratios;
    int status = moe_gguf_get_array(gguf, key.text, true, &ratios, err);
    if (status == MOE_OK && (ratios.n < c->n_layers || moe_gguf_array_is_text(&ratios)))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: key '%.100s' has %" PRIu64 " numbers for %" PRIu32 " layers",
                        moe_gguf_path(gguf), key.text, ratios.n, c->n_layers);
    for (uint32_t i = 0; i < c->n_layers && status == MOE_OK; i++) {
        double number = moe_gguf_array_number(&ratios, i);
        if (!(number >= 0 && number <= UINT32_MAX) || number != floor(number))
            return moe_fail(err, MOE_ERR_FORMAT, "%s: key '%.100s' is %.17g for layer %" PRIu32,
                            moe_gguf_path(gguf), key.text, number, i);
        bool chooses = family_gguf_tensor(ck, "blk.%u.indexer.attn_q_b.weight", i) != NULL;
        uint32_t ratio = (uint32_t)number;
        if (ratio == 0)
            continue;
        c->layer_compresses[i] = chooses ? MOE_COMPRESS_CHOSEN : MOE_COMPRESS_ALL;
        status = take_ratio(chooses ? &c->chosen_ratio : &c->all_ratio, ratio, i,
                            moe_gguf_path(gguf), err);
    }
    return status;
}

/* Limits of activations are by layer, of routed experts and of shared ones; one for all is
 * implemented. */
static int read_limit(struct moe_config *c, const struct moe_gguf *gguf, const char *name,
                      bool required, struct moe_err *err)
{
    struct moe_gguf_key key = moe_gguf_arch_key(gguf, name);
    struct moe_gguf_array list;
    double limit = c->act_limit;
    bool listed = family_gguf_is_list(gguf, name);
    int status = listed ? moe_gguf_get_array(gguf, key.text, true, &list, err)
                        : moe_gguf_get_double(gguf, key.text, required, &limit, err);
    if (status == MOE_OK && listed && list.n < c->n_layers)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: key '%.100s' has %" PRIu64 " numbers for %" PRIu32 " layers",
                        moe_gguf_path(gguf), key.text, list.n, c->n_layers);
    for (uint32_t i = 0; i < c->n_layers && status == MOE_OK; i++) {
        double of_layer = listed ? moe_gguf_array_number(&list, i) : limit;
        if (c->act_limit == 0)
            c->act_limit = (float)of_layer;
        if ((float)of_layer != c->act_limit)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: '%.100s' is %g for layer %" PRIu32
                            " beside %g; limits that differ "
                            "are not implemented",
                            moe_gguf_path(gguf), key.text, of_layer, i, (double)c->act_limit);
    }
    return status;
}

int family_deepseek_v4_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                            struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    uint32_t n_static = 0;
    (void)rope;
    int status = moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, "hash_layer_count").text,
                                  MOE_MAX_LAYERS, true, &n_static, err);
    if (status == MOE_OK)
        status = read_ratios(c, ck, err);
    c->act_limit = 0;
    if (status == MOE_OK)
        status = read_limit(c, gguf, "swiglu_clamp_exp", true, err);
    if (status == MOE_OK)
        status = read_limit(c, gguf, "swiglu_clamp_shexp", false, err);
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layer_is_static[i] = i < n_static;
    family_deepseek_v4_drop(c);
    return status;
}
