/*
 * Reading the model description from a GGUF file. Keys mean what they mean in the public gguf
 * package (constants.py) and in llama.cpp. Rotary settings are read in family_gguf_own.c.
 */

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "fmt/checkpoint.h"
#include "fmt/gguf.h"
#include "model/config_fields.h"
#include "model/family_internal.h"
#include "model/read.h"
#include "model/rope.h"
#include "quant/layout.h"

/* ---- Keys ---- */

/* Whether the family reads the key itself. */
static bool reads(const struct moe_family *family, const char *key)
{
    const struct moe_setting *s = family->gguf.settings;
    while (s && s->member && !(s->key && strcmp(s->key, key) == 0))
        s++;
    return s && s->member;
}

/* Refuses switches that change what is computed and are not implemented. */
static int refuse_switches(const struct moe_family *family, const struct moe_gguf *gguf,
                           struct moe_err *err)
{
    static const char *const keys[] = {
        "attn_logit_softcapping",      "final_logit_softcapping", "attention.max_alibi_bias",
        "attention.temperature_scale", "use_parallel_residual",   "tensor_data_layout",
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        struct moe_gguf_key key = moe_gguf_arch_key(gguf, keys[i]);
        double value = 1;
        if (moe_gguf_has(gguf, key.text) && !reads(family, keys[i]) &&
            !(moe_gguf_get_double(gguf, key.text, true, &value, NULL) == MOE_OK && value == 0))
            return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: setting '%s' is not implemented",
                            moe_gguf_path(gguf), key.text);
    }
    return family_check_only_gguf(family->gguf.only, gguf, err);
}

/* Values of "expert_gating_func": not given, softmax, sigmoid, softmax of the chosen scores, root
 * of softplus. */
enum { GATING_UNSAID, GATING_SOFTMAX, GATING_SIGMOID, GATING_CHOSEN, GATING_SOFTPLUS };

static int read_gating(const struct moe_gguf *gguf, uint32_t *gating, struct moe_err *err)
{
    *gating = GATING_UNSAID;
    return moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, "expert_gating_func").text, UINT32_MAX,
                            false, gating, err);
}

/* Hy3's files lack the last word of the usual name. */
static bool has_choice_bias(const struct moe_checkpoint *ck, uint32_t layer)
{
    return family_gguf_tensor(ck, "blk.%u.exp_probs_b.bias", layer) ||
           family_gguf_tensor(ck, "blk.%u.exp_probs_b", layer);
}

/* Whether routers take sigmoids. Files that do not say (GLM-4.7-Flash) have a bias for the choice,
 * which among families that share an architecture only the one with sigmoids has. */
static bool takes_sigmoids(const struct moe_checkpoint *ck, uint32_t gating)
{
    bool biased = false;
    for (uint32_t i = 0; i < MOE_MAX_LAYERS && gating == GATING_UNSAID && !biased; i++)
        biased = has_choice_bias(ck, i);
    return gating == GATING_SIGMOID || biased;
}

static int check_gating(const struct moe_config *c, const struct moe_gguf *gguf, uint32_t gating,
                        struct moe_err *err)
{
    bool sigmoid = gating == GATING_SIGMOID, softplus = gating == GATING_SOFTPLUS;
    if (gating == GATING_UNSAID || c->n_experts == 0 ||
        (gating <= GATING_SOFTPLUS && sigmoid == (c->router_kind == MOE_ROUTER_SIGMOID) &&
         softplus == (c->router_kind == MOE_ROUTER_SOFTPLUS)))
        return MOE_OK;
    return moe_fail(err, MOE_ERR_UNSUPPORTED,
                    "%s: experts chosen by function %" PRIu32
                    " ('expert_gating_func') are not implemented for family %s",
                    moe_gguf_path(gguf), gating, c->family);
}

/* Layers that predict further tokens are counted with the others, but may be absent: then the first
 * of their numbers is an ordinary layer's, as in the first files of DeepSeek-V4. */
static int read_beyond(struct moe_config *c, const struct moe_checkpoint *ck, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    MOE_TRY(moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, "nextn_predict_layers").text,
                             MOE_MAX_LAYERS, false, &c->n_beyond, err));
    if (c->n_beyond > 0 && c->n_beyond >= c->n_layers)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " layers, %" PRIu32 " of them for further tokens, make no "
                        "sense",
                        moe_gguf_path(gguf), c->n_layers, c->n_beyond);
    uint32_t first = c->n_layers - c->n_beyond;
    if (family_gguf_tensor(ck, "blk.%u.attn_norm.weight", first) &&
        !family_gguf_tensor(ck, "blk.%u.nextn.eh_proj.weight", first))
        c->n_beyond = 0;
    c->n_layers -= c->n_beyond;
    return MOE_OK;
}

/* Keys that all architectures share. */
static const struct moe_setting shared_settings[] = {
    {"block_count", MOE_MEMBER(n_layers), .required = true},
    {"embedding_length", MOE_MEMBER(hidden), .required = true},
    {"context_length", MOE_MEMBER(context_max), .required = true},
    {"attention.head_count", MOE_MEMBER(n_heads), .required = true},
    {"attention.head_count_kv", MOE_MEMBER(n_kv_heads), .value = 0},
    {"attention.key_length", MOE_MEMBER(head_dim), .value = 0},
    {"attention.value_length", MOE_MEMBER(value_dim), .value = 0},
    {"rope.dimension_count", MOE_MEMBER(rope_dim), .value = 0},
    {"feed_forward_length", MOE_MEMBER(dense_ff), .value = 0},
    {"expert_count", MOE_MEMBER(n_experts), .value = 0},
    {"expert_used_count", MOE_MEMBER(top_k), .value = 0},
    {"attention.layer_norm_epsilon", MOE_MEMBER(norm_eps), .value = 0},
    {"attention.layer_norm_rms_epsilon", MOE_MEMBER(norm_eps), .value = 0},
    {"attention.clamp_kqv", MOE_MEMBER(clip_qkv), .value = 0},
    {"attention.scale", MOE_MEMBER(attn_scale), .value = 0},
    {"embedding_scale", MOE_MEMBER(embed_scale), .value = 0},
    {"residual_scale", MOE_MEMBER(residual_scale), .value = 0},
    {"logit_scale", MOE_MEMBER(logit_scale), .use = MOE_RECIPROCAL},
    {"expert_weights_scale", MOE_MEMBER(routed_scale), .use = MOE_UNLESS_ZERO},
    {.member = 0},
};

/* Whether the key is a list by layer, which the family must allow. */
static bool differs(const struct moe_family *family, const struct moe_gguf *gguf, const char *key)
{
    const char *const *by_layer = family->gguf.by_layer;
    int i = 0;
    while (i < MOE_MAX_BY_LAYER && by_layer[i] && strcmp(by_layer[i], key) != 0)
        i++;
    return i < MOE_MAX_BY_LAYER && by_layer[i] && family_gguf_is_list(gguf, key);
}

static int read_shared(struct moe_config *c, const struct moe_family *family,
                       const struct moe_gguf *gguf, struct moe_err *err)
{
    for (const struct moe_setting *s = shared_settings; s->member; s++) {
        const struct moe_config_field *field = moe_config_field(s->member);
        const struct moe_setting one[] = {*s, {.member = 0}};
        uint32_t largest = 0;
        if (!differs(family, gguf, s->key)) {
            MOE_TRY(family_read_gguf(c, one, gguf, err));
        } else {
            MOE_TRY(family_gguf_largest(gguf, s->key, field->max, &largest, err));
            moe_config_field_set(c, field, largest);
        }
    }
    return MOE_OK;
}

static int read_windows(struct moe_config *c, const struct moe_family *family,
                        const struct moe_gguf *gguf, struct moe_err *err)
{
    const struct moe_setting width[] = {
        {"attention.sliding_window", MOE_MEMBER(window), .value = family->hf.windows.width},
        {.member = 0}};
    if (!family->gguf.windowed)
        return MOE_OK;
    MOE_TRY(family_read_gguf(c, width, gguf, err));
    moe_windows_apply(c, family->hf.windows.layers, 0);
    return MOE_OK;
}

/* ---- What tensors show ---- */

/* Takes the tensor's columns as a width, if there is such a tensor. */
static void take_width(const struct moe_tensor *t, uint32_t *width)
{
    if (t && t->dims[t->n_dims - 1] <= MOE_MAX_DIM)
        *width = (uint32_t)t->dims[t->n_dims - 1];
}

static int read_tensors(struct moe_config *c, const struct moe_checkpoint *ck, struct moe_err *err)
{
    const struct moe_tensor *embed = family_gguf_tensor(ck, "token_embd.weight", 0);
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    if (c->drafter_kind) { /* its model embeds tokens */
        const struct moe_gguf_key key = moe_gguf_arch_key(gguf, "vocab_size");
        struct moe_gguf_array tokens = {0};
        if (moe_gguf_has(gguf, key.text))
            return moe_gguf_get_u32(gguf, key.text, MOE_MAX_DIM, true, &c->vocab, err);
        MOE_TRY(moe_gguf_get_array(gguf, "tokenizer.ggml.tokens", true, &tokens, err));
        c->vocab = tokens.n <= MOE_MAX_DIM ? (uint32_t)tokens.n : 0;
        return MOE_OK;
    }
    if (!embed || embed->n_dims != 2 || embed->dims[0] > MOE_MAX_DIM)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: tensor 'token_embd.weight' is missing or not a matrix",
                        moe_checkpoint_dir(ck));
    c->vocab = (uint32_t)embed->dims[0];
    c->tied_head = !family_gguf_tensor(ck, "output.weight", 0);
    c->head_bias = family_gguf_tensor(ck, "output.bias", 0) != NULL;
    c->qkv_bias = c->o_bias = false;
    bool dense = false, choice_bias = c->choice_bias;
    c->choice_bias = false;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        c->qkv_bias |= family_gguf_tensor(ck, "blk.%u.attn_q.bias", i) != NULL;
        c->o_bias |= family_gguf_tensor(ck, "blk.%u.attn_output.bias", i) != NULL;
        c->layers[i].moe = c->n_experts && family_gguf_tensor(ck, "blk.%u.ffn_gate_inp.weight", i);
        dense = dense || !c->layers[i].moe;
        if (!c->layers[i].moe)
            continue;
        /* The widths of experts are the columns of these matrices. */
        take_width(family_gguf_tensor(ck, "blk.%u.ffn_down.0.weight", i), &c->expert_ff);
        take_width(family_gguf_tensor(ck, "blk.%u.ffn_down_exps.weight", i), &c->expert_ff);
        take_width(family_gguf_tensor(ck, "blk.%u.ffn_down_shexp.weight", i), &c->shared_ff);
        c->shared_gate = family_gguf_tensor(ck, "blk.%u.ffn_gate_inp_shexp.weight", i) != NULL;
        c->choice_bias |= choice_bias && has_choice_bias(ck, i);
    }
    if (!dense)
        c->dense_ff = 0; /* the key may still be there, as an expert's width or unused */
    return MOE_OK;
}

/* ---- The whole ---- */

static int read_eos(struct moe_config *c, const struct moe_gguf *gguf, struct moe_err *err)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        uint32_t id = UINT32_MAX;
        MOE_TRY(moe_gguf_get_u32(gguf, keys[i], UINT32_MAX, false, &id, err));
        bool known = id == UINT32_MAX; /* absent, or "none" */
        for (uint32_t k = 0; k < c->n_eos; k++)
            known = known || c->eos[k] == id;
        if (known)
            continue;
        if (id >= c->vocab)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: key '%s' is %" PRIu32 " of %" PRIu32 " tokens",
                            moe_gguf_path(gguf), keys[i], id, c->vocab);
        c->eos[c->n_eos++] = id;
    }
    return MOE_OK;
}

/* Lists the architectures, "qwen2moe, llama, ...". */
static void list_architectures(struct moe_buf *out)
{
    const struct moe_family *family;
    for (int i = 0; (family = moe_family_at(i)) != NULL; i++)
        if (family->gguf.arch && moe_family_find_gguf(family->gguf.arch, true, false) == family)
            moe_buf_printf(out, "%s%s", out->size ? ", " : "", family->gguf.arch);
}

static int find_family(const struct moe_gguf *gguf, bool has_experts, bool sigmoid,
                       const struct moe_family **family, struct moe_err *err)
{
    const char *arch = NULL;
    MOE_TRY(moe_gguf_get_text(gguf, "general.architecture", true, &arch, err));
    *family = moe_family_find_gguf(arch, has_experts, sigmoid);
    if (*family)
        return MOE_OK;
    const char *why = moe_family_left_out(arch);
    if (why)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: architecture '%.60s' is not implemented: %s",
                        moe_gguf_path(gguf), arch, why);
    struct moe_buf known = {0};
    list_architectures(&known);
    int status = moe_fail(err, MOE_ERR_UNSUPPORTED,
                          "%s: architecture '%.60s' is not implemented (known: %s)",
                          moe_gguf_path(gguf), arch, known.data ? (const char *)known.data : "");
    moe_buf_release(&known);
    return status;
}

int moe_config_read_gguf(struct moe_config *config, const struct moe_checkpoint *ck,
                         struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    const struct moe_family *family = NULL;
    uint32_t gating = GATING_UNSAID;
    struct moe_rope_settings rope;
    moe_config_init(config);
    moe_rope_settings_init(&rope);
    MOE_TRY(moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, "expert_count").text, MOE_MAX_EXPERTS,
                             false, &config->n_experts, err));
    MOE_TRY(read_gating(gguf, &gating, err));
    MOE_TRY(find_family(gguf, config->n_experts > 0, takes_sigmoids(ck, gating), &family, err));
    snprintf(config->family, sizeof config->family, "%s", family->name);
    family_set_constants(config, family->constants);
    if (family->gguf.says_router)
        config->router_kind = gating == GATING_SIGMOID ? MOE_ROUTER_SIGMOID : MOE_ROUTER_SOFTMAX;
    MOE_TRY(refuse_switches(family, gguf, err));
    MOE_TRY(check_gating(config, gguf, gating, err));
    MOE_TRY(read_shared(config, family, gguf, err));
    MOE_TRY(read_beyond(config, ck, err));
    if (config->n_heads == 0 || config->n_layers == 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: a model without heads or layers, expected one of each at least",
                        moe_gguf_path(gguf));
    MOE_TRY(read_tensors(config, ck, err));
    MOE_TRY(family_read_gguf(config, family->gguf.settings, gguf, err));
    if (family->gguf.qk_norm && family_gguf_tensor(ck, "blk.%u.attn_q_norm.weight", 0))
        config->qk_norm = family->gguf.qk_norm;
    MOE_TRY(read_windows(config, family, gguf, err));
    if (family->gguf.own)
        MOE_TRY(family->gguf.own(config, ck, &rope, err));
    MOE_TRY(family_gguf_rotary(config, ck, &rope, err));
    MOE_TRY(read_eos(config, gguf, err));
    moe_config_complete(config);
    return moe_config_check(config, moe_gguf_path(gguf), err);
}
