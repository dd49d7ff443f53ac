#include "model/family_gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/rope.h"

/* ---- Keys
 * ---------------------------------------------------------------------------------------- */

struct moe_gguf_key moe_gguf_arch_key(const struct moe_gguf *gguf, const char *name)
{
    struct moe_gguf_key key;
    const char *arch = "?";
    moe_gguf_get_text(gguf, "general.architecture", false, &arch, NULL);
    snprintf(key.text, sizeof key.text, "%.60s.%.60s", arch, name);
    return key;
}

int moe_gguf_arch_u32(const struct moe_gguf *gguf, const char *name, uint32_t max, bool required,
                      uint32_t *out, struct moe_err *err)
{
    return moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, name).text, max, required, out, err);
}

static int arch_double(const struct moe_gguf *gguf, const char *name, double *out,
                       struct moe_err *err)
{
    return moe_gguf_get_double(gguf, moe_gguf_arch_key(gguf, name).text, false, out, err);
}

int moe_gguf_arch_float(const struct moe_gguf *gguf, const char *name, float *out,
                        struct moe_err *err)
{
    double value = (double)*out;
    int status = arch_double(gguf, name, &value, err);
    *out = (float)value;
    return status;
}

int moe_gguf_read_norm_topk(struct moe_config *config, const struct moe_gguf *gguf, bool otherwise,
                            struct moe_err *err)
{
    config->norm_topk = otherwise;
    return moe_gguf_get_bool(gguf, moe_gguf_arch_key(gguf, "expert_weights_norm").text, false,
                             &config->norm_topk, err);
}

/* Switches of an architecture that change what is computed and that nothing here computes. */
static int refuse_switches(const struct moe_gguf *gguf, struct moe_err *err)
{
    static const char *const keys[] = {
        "attn_logit_softcapping",      "final_logit_softcapping", "attention.max_alibi_bias",
        "attention.temperature_scale", "use_parallel_residual",   "tensor_data_layout",
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        struct moe_gguf_key key = moe_gguf_arch_key(gguf, keys[i]);
        double value = 1;
        if (moe_gguf_has(gguf, key.text) &&
            !(moe_gguf_get_double(gguf, key.text, true, &value, NULL) == MOE_OK && value == 0))
            return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: setting '%s' is not implemented",
                            moe_gguf_path(gguf), key.text);
    }
    uint32_t gating = 0;
    int status = moe_gguf_arch_u32(gguf, "expert_gating_func", UINT32_MAX, false, &gating, err);
    if (status == MOE_OK && gating != 0 && gating != 1 && gating != 3)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: experts chosen by function %" PRIu32
                        " ('expert_gating_func') are not implemented; softmax is",
                        moe_gguf_path(gguf), gating);
    return status;
}

static int read_numbers(struct moe_config *c, const struct moe_gguf *gguf, struct moe_err *err)
{
    uint32_t kv_heads = 0;
    const struct {
        const char *name;
        uint32_t *out, max;
        bool required;
    } numbers[] = {
        {"block_count", &c->n_layers, MOE_MAX_LAYERS, true},
        {"embedding_length", &c->hidden, MOE_MAX_DIM, true},
        {"context_length", &c->context_max, MOE_MAX_CONTEXT, true},
        {"attention.head_count", &c->n_heads, MOE_MAX_HEADS, true},
        {"attention.head_count_kv", &kv_heads, MOE_MAX_HEADS, false},
        {"attention.key_length", &c->head_dim, MOE_MAX_DIM, false},
        {"attention.value_length", &c->value_dim, MOE_MAX_DIM, false},
        {"rope.dimension_count", &c->rope_dim, MOE_MAX_DIM, false},
        {"feed_forward_length", &c->dense_ff, MOE_MAX_DIM, false},
        {"expert_count", &c->n_experts, MOE_MAX_EXPERTS, false},
        {"expert_used_count", &c->top_k, MOE_MAX_TOP_K, false},
    };
    int status = MOE_OK;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && status == MOE_OK; i++)
        status = moe_gguf_arch_u32(gguf, numbers[i].name, numbers[i].max, numbers[i].required,
                                   numbers[i].out, err);
    c->n_kv_heads = kv_heads;
    return status;
}

static int read_scales(struct moe_config *c, const struct moe_gguf *gguf, struct moe_err *err)
{
    float divisor = 1, routed = 0;
    const struct {
        const char *name;
        float *out;
    } numbers[] = {
        {"attention.layer_norm_epsilon", &c->norm_eps},
        {"attention.layer_norm_rms_epsilon", &c->norm_eps},
        {"attention.clamp_kqv", &c->clip_qkv},
        {"attention.scale", &c->attn_scale},
        {"embedding_scale", &c->embed_scale},
        {"residual_scale", &c->residual_scale},
        {"logit_scale", &divisor},
        {"expert_weights_scale", &routed},
    };
    int status = MOE_OK;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && status == MOE_OK; i++)
        status = moe_gguf_arch_float(gguf, numbers[i].name, numbers[i].out, err);
    c->logit_scale = 1 / divisor;
    if (routed != 0)
        c->routed_scale = routed;
    return status;
}

/* ---- What tensors show
 * --------------------------------------------------------------------------- */

static const struct moe_tensor *find(const struct moe_checkpoint *ck, const char *format,
                                     uint32_t layer)
{
    char name[128];
    const char *mark = strstr(format, "%u");
    if (!mark)
        return moe_checkpoint_find(ck, format);
    snprintf(name, sizeof name, "%.*s%" PRIu32 "%s", (int)(mark - format), format, layer, mark + 2);
    return moe_checkpoint_find(ck, name);
}

/* Columns of the tensor, should it be there. */
static void take_width(const struct moe_tensor *t, uint32_t *width)
{
    if (t && t->dims[t->n_dims - 1] <= MOE_MAX_DIM)
        *width = (uint32_t)t->dims[t->n_dims - 1];
}

static int read_tensors(struct moe_config *c, const struct moe_checkpoint *ck, struct moe_err *err)
{
    const struct moe_tensor *embed = find(ck, "token_embd.weight", 0);
    if (!embed || embed->n_dims != 2 || embed->dims[0] > MOE_MAX_DIM)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: tensor 'token_embd.weight' is missing or no matrix",
                        moe_checkpoint_dir(ck));
    c->vocab = (uint32_t)embed->dims[0];
    c->tied_head = !find(ck, "output.weight", 0);
    c->head_bias = find(ck, "output.bias", 0) != NULL;
    c->qkv_bias = find(ck, "blk.%u.attn_q.bias", 0) != NULL;
    c->o_bias = find(ck, "blk.%u.attn_output.bias", 0) != NULL;
    bool dense = false;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        c->layer_is_moe[i] = c->n_experts && find(ck, "blk.%u.ffn_gate_inp.weight", i);
        dense = dense || !c->layer_is_moe[i];
        if (!c->layer_is_moe[i])
            continue;
        /* Widths of experts, from the matrices whose columns they are. */
        take_width(find(ck, "blk.%u.ffn_down.0.weight", i), &c->expert_ff);
        take_width(find(ck, "blk.%u.ffn_down_exps.weight", i), &c->expert_ff);
        take_width(find(ck, "blk.%u.ffn_down_shexp.weight", i), &c->shared_ff);
        c->shared_gate = find(ck, "blk.%u.ffn_gate_inp_shexp.weight", i) != NULL;
    }
    if (!dense)
        c->dense_ff = 0; /* the key may be there all the same: an expert's width, or nobody's */
    return MOE_OK;
}

/* ---- Rotary positions
 * ----------------------------------------------------------------------------- */

/* A vector of one factor per pair. */
static int read_factors(const struct moe_checkpoint *ck, const char *name, double *out, uint32_t *n,
                        struct moe_err *err)
{
    float values[MOE_MAX_ROPE_PAIRS];
    const struct moe_tensor *t = find(ck, name, 0);
    *n = 0;
    if (!t)
        return MOE_OK;
    if (t->n_dims != 1 || t->n_items > MOE_MAX_ROPE_PAIRS)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: tensor '%s' is no vector of at most %d values",
                        moe_checkpoint_dir(ck), name, MOE_MAX_ROPE_PAIRS);
    int status = moe_checkpoint_get(ck, name, 1, t->dims, &t, err);
    if (status == MOE_OK)
        status = moe_checkpoint_read(ck, t, 0, t->n_items, values, err);
    for (uint64_t i = 0; i < t->n_items && status == MOE_OK; i++) {
        if (!(values[i] > 0) || !isfinite(values[i]))
            return moe_fail(err, MOE_ERR_FORMAT, "%s: tensor '%s': a factor of %g makes no sense",
                            moe_checkpoint_dir(ck), name, (double)values[i]);
        out[i] = (double)values[i];
    }
    *n = (uint32_t)t->n_items;
    return status;
}

static int read_rope_kind(struct moe_rope_settings *s, const struct moe_gguf *gguf,
                          struct moe_err *err)
{
    static const struct {
        const char *name;
        enum moe_rope_kind kind;
    } kinds[] = {
        {"none", MOE_ROPE_PLAIN},
        {"linear", MOE_ROPE_LINEAR},
        {"yarn", MOE_ROPE_YARN},
        {"longrope", MOE_ROPE_LONGROPE},
    };
    const char *type = "none";
    int status = moe_gguf_get_text(gguf, moe_gguf_arch_key(gguf, "rope.scaling.type").text, false,
                                   &type, err);
    if (status != MOE_OK)
        return status;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(type, kinds[i].name) == 0) {
            s->kind = kinds[i].kind;
            return MOE_OK;
        }
    return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: rotary scaling '%.60s' is not implemented",
                    moe_gguf_path(gguf), type);
}

static int read_rope_settings(struct moe_rope_settings *s, const struct moe_gguf *gguf,
                              struct moe_err *err)
{
    double log_mul = 0, extrapolation = 1, linear = 0, attention = 1;
    const struct {
        const char *name;
        double *out;
    } numbers[] = {
        {"rope.freq_base", &s->theta},
        {"rope.scaling.factor", &s->factor},
        {"rope.scale_linear", &linear},
        {"rope.scaling.original_context_length", &s->original_context},
        {"rope.scaling.attn_factor", &attention},
        {"rope.scaling.yarn_attn_factor", &attention},
        {"rope.scaling.yarn_ext_factor", &extrapolation},
        {"rope.scaling.yarn_beta_fast", &s->beta_fast},
        {"rope.scaling.yarn_beta_slow", &s->beta_slow},
        {"rope.scaling.yarn_log_multiplier", &log_mul},
    };
    int status = read_rope_kind(s, gguf, err);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && status == MOE_OK; i++)
        status = arch_double(gguf, numbers[i].name, numbers[i].out, err);
    if (status != MOE_OK)
        return status;
    if (s->kind == MOE_ROPE_PLAIN && linear != 0 && linear != 1) { /* as older files say it */
        s->kind = MOE_ROPE_LINEAR;
        s->factor = linear;
    }
    if (s->kind == MOE_ROPE_YARN && (extrapolation != 1 || attention != 1))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: YaRN with an extrapolation factor of %g and an attention factor of %g "
                        "is not implemented; 1 is",
                        moe_gguf_path(gguf), extrapolation, attention);
    if (s->kind == MOE_ROPE_LONGROPE && attention != 1)
        s->attention_factor = attention;
    if (log_mul != 0) /* a tenth of DeepSeek's "mscale_all_dim", which is its "mscale" too */
        s->mscale = s->mscale_all_dim = 10 * log_mul;
    return MOE_OK;
}

/* Frequencies divided by a factor each, as Llama 3's are stored. */
static int apply_factors(struct moe_config *c, const struct moe_checkpoint *ck, struct moe_err *err)
{
    double factors[MOE_MAX_ROPE_PAIRS];
    uint32_t n, dim = c->rope_dim ? c->rope_dim : c->head_dim;
    if (dim == 0)
        dim = c->hidden / c->n_heads;
    int status = read_factors(ck, "rope_freqs.weight", factors, &n, err);
    if (status != MOE_OK || n == 0)
        return status;
    if (n != dim / 2)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: %" PRIu32 " rotary factors for %" PRIu32 " pairs",
                        moe_checkpoint_dir(ck), n, dim / 2);
    for (uint32_t i = 0; i < n; i++) {
        double freq = c->n_rope_freqs ? c->rope_freqs[i] : pow(c->rope_theta, -(double)i / n);
        c->rope_freqs[i] = freq / factors[i];
    }
    c->n_rope_freqs = n;
    return MOE_OK;
}

static int read_rope(struct moe_config *c, const struct moe_checkpoint *ck,
                     struct moe_rope_settings *s, struct moe_err *err)
{
    uint32_t n_long = 0;
    int status = read_rope_settings(s, moe_checkpoint_gguf(ck), err);
    if (status == MOE_OK && s->kind == MOE_ROPE_PLAIN && find(ck, "rope_factors_long.weight", 0))
        s->kind = MOE_ROPE_LONGROPE; /* some files have the factors and name no kind */
    if (status == MOE_OK && s->kind == MOE_ROPE_LONGROPE) {
        status =
            read_factors(ck, "rope_factors_short.weight", s->short_factors, &s->n_factors, err);
        if (status == MOE_OK)
            status = read_factors(ck, "rope_factors_long.weight", s->long_factors, &n_long, err);
        if (status == MOE_OK && n_long != s->n_factors)
            status = moe_fail(err, MOE_ERR_FORMAT,
                              "%s: %" PRIu32 " short and %" PRIu32 " long rotary factors",
                              moe_checkpoint_dir(ck), s->n_factors, n_long);
    }
    if (status == MOE_OK)
        status = moe_rope_apply(c, s, moe_checkpoint_dir(ck), err);
    if (status == MOE_OK)
        status = apply_factors(c, ck, err);
    if (status == MOE_OK && s->mscale_all_dim != 0 && c->attn_scale == 0) {
        double mscale = moe_rope_mscale(c, s);
        c->attn_scale = (float)(mscale * mscale / sqrt(c->head_dim));
    }
    return status;
}

/* ---- The whole
 * ------------------------------------------------------------------------------------ */

static int read_eos(struct moe_config *c, const struct moe_gguf *gguf, struct moe_err *err)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        uint32_t id = UINT32_MAX;
        int status = moe_gguf_get_u32(gguf, keys[i], UINT32_MAX, false, &id, err);
        if (status != MOE_OK)
            return status;
        bool known = id == UINT32_MAX; /* not there, or "none" */
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

/* "qwen2moe, llama, ...": each once. */
static void list_architectures(char *out, size_t room)
{
    const struct moe_family *family;
    size_t at = 0;
    out[0] = '\0';
    for (int i = 0; (family = moe_family_at(i)) != NULL; i++) {
        if (!family->gguf_arch || moe_family_find_gguf(family->gguf_arch, true) != family)
            continue;
        int n = snprintf(out + at, room - at, "%s%s", at ? ", " : "", family->gguf_arch);
        if (n < 0 || (size_t)n >= room - at)
            return;
        at += (size_t)n;
    }
}

static int find_family(const struct moe_gguf *gguf, bool has_experts,
                       const struct moe_family **family, struct moe_err *err)
{
    const char *arch = NULL;
    int status = moe_gguf_get_text(gguf, "general.architecture", true, &arch, err);
    if (status != MOE_OK)
        return status;
    *family = moe_family_find_gguf(arch, has_experts);
    if (*family)
        return MOE_OK;
    char known[256];
    list_architectures(known, sizeof known);
    return moe_fail(err, MOE_ERR_UNSUPPORTED,
                    "%s: architecture '%.60s' is not implemented (known: %s)", moe_gguf_path(gguf),
                    arch, known);
}

int moe_config_read_gguf(struct moe_config *config, const struct moe_checkpoint *ck,
                         struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    const struct moe_family *family = NULL;
    struct moe_rope_settings rope;
    moe_config_init(config);
    moe_rope_settings_init(&rope);
    int status =
        moe_gguf_arch_u32(gguf, "expert_count", MOE_MAX_EXPERTS, false, &config->n_experts, err);
    if (status == MOE_OK)
        status = find_family(gguf, config->n_experts > 0, &family, err);
    if (status != MOE_OK)
        return status;
    snprintf(config->family, sizeof config->family, "%s", family->name);
    status = refuse_switches(gguf, err);
    if (status == MOE_OK)
        status = read_numbers(config, gguf, err);
    if (status == MOE_OK && (config->n_heads == 0 || config->n_layers == 0))
        status = moe_fail(err, MOE_ERR_FORMAT, "%s: a model without heads or layers makes no sense",
                          moe_gguf_path(gguf));
    if (status == MOE_OK)
        status = read_scales(config, gguf, err);
    if (status == MOE_OK)
        status = read_tensors(config, ck, err);
    if (status == MOE_OK)
        status = family->read_gguf(config, gguf, &rope, err);
    if (status == MOE_OK)
        status = read_rope(config, ck, &rope, err);
    if (status == MOE_OK)
        status = read_eos(config, gguf, err);
    if (status != MOE_OK)
        return status;
    moe_config_complete(config);
    return moe_config_check(config, moe_gguf_path(gguf), err);
}

/* ---- Names
 * ---------------------------------------------------------------------------------------- */

#define L "blk.%u."

const struct moe_source_names moe_gguf_names = {
    .dense =
        {
            [MOE_T_EMBED] = {.name = "token_embd.weight"},
            [MOE_T_FINAL_NORM] = {.name = "output_norm.weight"},
            [MOE_T_FINAL_NORM_BIAS] = {.name = "output_norm.bias"},
            [MOE_T_HEAD] = {.name = "output.weight"},
            [MOE_T_HEAD_BIAS] = {.name = "output.bias"},
            [MOE_T_ATTN_NORM] = {.name = L "attn_norm.weight"},
            [MOE_T_ATTN_NORM_BIAS] = {.name = L "attn_norm.bias"},
            [MOE_T_Q_DOWN] = {.name = L "attn_q_a.weight"},
            [MOE_T_Q_DOWN_NORM] = {.name = L "attn_q_a_norm.weight"},
            [MOE_T_Q] = {.name = L "attn_q.weight"},
            [MOE_T_K] = {.name = L "attn_k.weight"},
            [MOE_T_V] = {.name = L "attn_v.weight"},
            [MOE_T_Q_BIAS] = {.name = L "attn_q.bias"},
            [MOE_T_K_BIAS] = {.name = L "attn_k.bias"},
            [MOE_T_V_BIAS] = {.name = L "attn_v.bias"},
            [MOE_T_Q_NORM] = {.name = L "attn_q_norm.weight"},
            [MOE_T_K_NORM] = {.name = L "attn_k_norm.weight"},
            [MOE_T_KV_DOWN] = {.name = L "attn_kv_a_mqa.weight"},
            [MOE_T_KV_DOWN_NORM] = {.name = L "attn_kv_a_norm.weight"},
            [MOE_T_K_UP] = {.name = L "attn_k_b.weight"},
            [MOE_T_V_UP] = {.name = L "attn_v_b.weight"},
            [MOE_T_SINKS] = {.name = L "attn_sinks.weight"},
            [MOE_T_O] = {.name = L "attn_output.weight"},
            [MOE_T_O_BIAS] = {.name = L "attn_output.bias"},
            [MOE_T_FFN_NORM] = {.name = L "ffn_norm.weight"},
            [MOE_T_FFN_NORM_BIAS] = {.name = L "ffn_norm.bias"},
            [MOE_T_GATE] = {.name = L "ffn_gate.weight"},
            [MOE_T_UP] = {.name = L "ffn_up.weight"},
            [MOE_T_DOWN] = {.name = L "ffn_down.weight"},
            [MOE_T_ROUTER] = {.name = L "ffn_gate_inp.weight"},
            [MOE_T_ROUTER_BIAS] = {.name = L "ffn_gate_inp.bias"},
            [MOE_T_SHARED_GATE_PROJ] = {.name = L "ffn_gate_shexp.weight"},
            [MOE_T_SHARED_UP] = {.name = L "ffn_up_shexp.weight"},
            [MOE_T_SHARED_DOWN] = {.name = L "ffn_down_shexp.weight"},
            [MOE_T_SHARED_GATE] = {.name = L "ffn_gate_inp_shexp.weight"},
        },
    .expert =
        {
            [MOE_E_GATE] = {.name = L "ffn_gate_exps.weight", .take = MOE_TAKE_EXPERT},
            [MOE_E_UP] = {.name = L "ffn_up_exps.weight", .take = MOE_TAKE_EXPERT},
            [MOE_E_DOWN] = {.name = L "ffn_down_exps.weight", .take = MOE_TAKE_EXPERT},
            [MOE_E_GATE_BIAS] = {.name = L "ffn_gate_exps.bias", .take = MOE_TAKE_EXPERT},
            [MOE_E_UP_BIAS] = {.name = L "ffn_up_exps.bias", .take = MOE_TAKE_EXPERT},
            [MOE_E_DOWN_BIAS] = {.name = L "ffn_down_exps.bias", .take = MOE_TAKE_EXPERT},
        },
    /* What moe_config_read_gguf reads. */
    .ignored = (const char *const[]){"rope_freqs.weight", "rope_factors_long.weight",
                                     "rope_factors_short.weight", NULL},
};

const struct moe_source_names moe_gguf_names_other = {
    .dense =
        {
            /* Of latent attention: queries out of their own latent vector, keys and values in one
             * tensor as older files have it. */
            [MOE_T_Q] = {.name = L "attn_q_b.weight"},
            [MOE_T_K_UP] = {.name = L "attn_kv_b.weight", .take = MOE_TAKE_KEYS},
            [MOE_T_V_UP] = {.name = L "attn_kv_b.weight", .take = MOE_TAKE_VALUES},
            /* gpt-oss calls it by its place. */
            [MOE_T_FFN_NORM] = {.name = L "post_attention_norm.weight"},
        },
    .expert =
        {
            [MOE_E_GATE] = {.name = L "ffn_gate_up_exps.weight", .take = MOE_TAKE_FIRST_HALF},
            [MOE_E_UP] = {.name = L "ffn_gate_up_exps.weight", .take = MOE_TAKE_SECOND_HALF},
        },
};

const struct moe_source_names moe_gguf_names_old = {
    .expert =
        {
            [MOE_E_GATE] = {.name = L "ffn_gate.%u.weight"},
            [MOE_E_UP] = {.name = L "ffn_up.%u.weight"},
            [MOE_E_DOWN] = {.name = L "ffn_down.%u.weight"},
        },
};
