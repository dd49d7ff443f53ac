#include "model/family_common.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "fmt/json.h"

/* ---- config.json by tables ---- */

int family_read_keys(const char *path, const json_t *json, const struct family_key *keys, size_t n,
                     struct moe_err *err)
{
    int status = MOE_OK;
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        const struct family_key *k = &keys[i];
        double number;
        switch (k->value) {
        case FAMILY_U32:
            if (json_is_null(json_object_get(json, k->key)))
                *(uint32_t *)k->out = 0;
            status = moe_json_get_u32(path, json, k->key, k->max, k->required, k->out, err);
            break;
        case FAMILY_FLOAT:
            number = (double)*(float *)k->out;
            status = moe_json_get_double(path, json, k->key, k->required, &number, err);
            *(float *)k->out = (float)number;
            break;
        case FAMILY_BOOL:
            status = moe_json_get_bool(path, json, k->key, k->required, k->out, err);
            break;
        }
    }
    return status;
}

/* The value as it is usually written. */
static void value_text(const json_t *value, char *out, size_t room)
{
    if (json_is_string(value))
        snprintf(out, room, "%s", json_string_value(value));
    else if (json_is_boolean(value))
        snprintf(out, room, "%s", json_is_true(value) ? "true" : "false");
    else if (json_is_number(value))
        snprintf(out, room, "%.9g", json_number_value(value));
    else
        snprintf(out, room, "%s", json_is_array(value) ? "a list" : "an object");
}

int family_check_only(const char *path, const json_t *json, const struct family_only *only,
                      size_t n, struct moe_err *err)
{
    for (size_t i = 0; i < n; i++) {
        char text[64];
        const json_t *value = json_object_get(json, only[i].key);
        if (!value || json_is_null(value))
            continue;
        value_text(value, text, sizeof text);
        if (strcmp(text, only[i].value) != 0)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: '%s' is %s, only %s is implemented for this family", path,
                            only[i].key, text, only[i].value);
    }
    return MOE_OK;
}

/* ---- What Llama's descendants share ---- */

int family_read_llama(struct moe_config *c, const char *path, const json_t *json, uint32_t *ff,
                      struct moe_err *err)
{
    static const struct family_only only[] = {{"hidden_act", "silu"}};
    uint32_t unused;
    if (c->norm_eps == 0)
        c->norm_eps = 1e-6f;
    const struct family_key keys[] = {
        {"num_hidden_layers", FAMILY_U32, true, MOE_MAX_LAYERS, &c->n_layers},
        {"hidden_size", FAMILY_U32, true, MOE_MAX_DIM, &c->hidden},
        {"vocab_size", FAMILY_U32, true, MOE_MAX_DIM, &c->vocab},
        {"max_position_embeddings", FAMILY_U32, true, MOE_MAX_CONTEXT, &c->context_max},
        {"num_attention_heads", FAMILY_U32, true, MOE_MAX_HEADS, &c->n_heads},
        {"num_key_value_heads", FAMILY_U32, false, MOE_MAX_HEADS, &c->n_kv_heads},
        {"head_dim", FAMILY_U32, false, MOE_MAX_DIM, &c->head_dim},
        {"intermediate_size", FAMILY_U32, ff != NULL, MOE_MAX_DIM, ff ? ff : &unused},
        {"rms_norm_eps", FAMILY_FLOAT, false, 0, &c->norm_eps},
        {"tie_word_embeddings", FAMILY_BOOL, false, 0, &c->tied_head},
    };
    int status = FAMILY_CHECK(path, json, only, err);
    return status == MOE_OK ? FAMILY_READ(path, json, keys, err) : status;
}

int family_read_attention_bias(struct moe_config *c, const char *path, const json_t *json,
                               bool otherwise, struct moe_err *err)
{
    c->qkv_bias = otherwise;
    int status = moe_json_get_bool(path, json, "attention_bias", false, &c->qkv_bias, err);
    c->o_bias = c->qkv_bias;
    return status;
}

int family_read_rope(struct moe_config *c, const char *path, const json_t *json, double theta,
                     struct moe_err *err)
{
    struct moe_rope_settings settings;
    moe_rope_settings_init(&settings);
    settings.theta = theta;
    int status = moe_rope_read_hf(&settings, path, json, err);
    return status == MOE_OK ? moe_rope_apply(c, &settings, path, err) : status;
}

/* ---- Windows ---- */

int family_read_window(struct moe_config *c, const char *path, const json_t *json,
                       uint32_t otherwise, struct moe_err *err)
{
    c->window = otherwise;
    const struct family_key key = {"sliding_window", FAMILY_U32, false, MOE_MAX_CONTEXT,
                                   &c->window};
    int status = family_read_keys(path, json, &key, 1, err);
    for (uint32_t i = 0; i < c->n_layers && status == MOE_OK; i++)
        c->layer_is_windowed[i] = c->window > 0;
    return status;
}

int family_read_layer_types(struct moe_config *c, const char *path, const json_t *json,
                            bool (*otherwise)(uint32_t layer), struct moe_err *err)
{
    const json_t *list = json_object_get(json, "layer_types");
    if (!list || json_is_null(list)) {
        for (uint32_t i = 0; i < c->n_layers; i++)
            c->layer_is_windowed[i] = otherwise(i);
        return MOE_OK;
    }
    if (!json_is_array(list) || json_array_size(list) != c->n_layers)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'layer_types' must be a list of %" PRIu32 " layers", path,
                        c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const char *type = json_string_value(json_array_get(list, i));
        c->layer_is_windowed[i] = type && strcmp(type, "sliding_attention") == 0;
        if (!c->layer_is_windowed[i] && (!type || strcmp(type, "full_attention") != 0))
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: 'layer_types' item %" PRIu32 " is '%.60s', which is not "
                            "implemented",
                            path, i, type ? type : "?");
    }
    return MOE_OK;
}

static bool never(uint32_t layer)
{
    (void)layer;
    return false;
}

int family_read_qwen_window(struct moe_config *c, const char *path, const json_t *json,
                            struct moe_err *err)
{
    bool windowed = false;
    uint32_t from = 28, window = 4096;
    const struct family_key keys[] = {
        {"use_sliding_window", FAMILY_BOOL, false, 0, &windowed},
        {"sliding_window", FAMILY_U32, false, MOE_MAX_CONTEXT, &window},
        {"max_window_layers", FAMILY_U32, false, UINT32_MAX, &from},
    };
    int status = FAMILY_READ(path, json, keys, err);
    if (status != MOE_OK)
        return status;
    c->window = windowed ? window : 0;
    const json_t *list = json_object_get(json, "layer_types");
    if (c->window == 0 || json_is_array(list))
        return family_read_layer_types(c, path, json, never, err);
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layer_is_windowed[i] = i >= from;
    return MOE_OK;
}

/* ---- Which layers have experts ---- */

void family_all_moe(struct moe_config *c)
{
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layer_is_moe[i] = 1;
}

int family_read_sparse_layers(struct moe_config *c, const char *path, const json_t *json,
                              struct moe_err *err)
{
    uint32_t step = 1;
    int status =
        moe_json_get_u32(path, json, "decoder_sparse_step", MOE_MAX_LAYERS, false, &step, err);
    if (status != MOE_OK)
        return status;
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layer_is_moe[i] = c->n_experts > 0 && step > 0 && (i + 1) % step == 0;
    const json_t *dense = json_object_get(json, "mlp_only_layers"), *item;
    if (!dense || json_is_null(dense))
        return MOE_OK;
    if (!json_is_array(dense))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'mlp_only_layers' is not a list", path);
    size_t i;
    json_array_foreach(dense, i, item)
    {
        json_int_t layer = json_is_integer(item) ? json_integer_value(item) : -1;
        if (layer < 0 || layer >= (json_int_t)c->n_layers)
            return moe_fail(err, MOE_ERR_FORMAT, "%s: 'mlp_only_layers' names no layer at item %zu",
                            path, i);
        c->layer_is_moe[layer] = 0;
    }
    return MOE_OK;
}

int family_read_deepseek_experts(struct moe_config *c, const char *path, const json_t *json,
                                 uint32_t shared_otherwise, struct moe_err *err)
{
    uint32_t shared = shared_otherwise, first = 0, step = 1;
    const struct family_key keys[] = {
        {"n_routed_experts", FAMILY_U32, false, MOE_MAX_EXPERTS, &c->n_experts},
        {"num_experts_per_tok", FAMILY_U32, false, MOE_MAX_TOP_K, &c->top_k},
        {"moe_intermediate_size", FAMILY_U32, false, MOE_MAX_DIM, &c->expert_ff},
        {"n_shared_experts", FAMILY_U32, false, MOE_MAX_EXPERTS, &shared},
        {"first_k_dense_replace", FAMILY_U32, false, MOE_MAX_LAYERS, &first},
        {"moe_layer_freq", FAMILY_U32, false, MOE_MAX_LAYERS, &step},
    };
    int status = FAMILY_READ(path, json, keys, err);
    if (status != MOE_OK)
        return status;
    uint64_t shared_ff = (uint64_t)shared * c->expert_ff;
    if (step == 0 || shared_ff > MOE_MAX_DIM)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " shared experts of width %" PRIu32
                        ", experts in every %" PRIu32 "th layer make no sense",
                        path, shared, c->expert_ff, step);
    c->shared_ff = (uint32_t)shared_ff;
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layer_is_moe[i] = c->n_experts > 0 && i >= first && i % step == 0;
    return MOE_OK;
}

/* ---- Names ---- */

#define L "model.layers.%u."

const struct moe_source_names family_names_llama = {
    .dense =
        {
            [MOE_T_EMBED] = {.name = "model.embed_tokens.weight"},
            [MOE_T_FINAL_NORM] = {.name = "model.norm.weight"},
            [MOE_T_FINAL_NORM_BIAS] = {.name = "model.norm.bias"},
            [MOE_T_HEAD] = {.name = "lm_head.weight"},
            [MOE_T_HEAD_BIAS] = {.name = "lm_head.bias"},
            [MOE_T_ATTN_NORM] = {.name = L "input_layernorm.weight"},
            [MOE_T_ATTN_NORM_BIAS] = {.name = L "input_layernorm.bias"},
            [MOE_T_Q] = {.name = L "self_attn.q_proj.weight"},
            [MOE_T_K] = {.name = L "self_attn.k_proj.weight"},
            [MOE_T_V] = {.name = L "self_attn.v_proj.weight"},
            [MOE_T_Q_BIAS] = {.name = L "self_attn.q_proj.bias"},
            [MOE_T_K_BIAS] = {.name = L "self_attn.k_proj.bias"},
            [MOE_T_V_BIAS] = {.name = L "self_attn.v_proj.bias"},
            [MOE_T_Q_NORM] = {.name = L "self_attn.q_norm.weight"},
            [MOE_T_K_NORM] = {.name = L "self_attn.k_norm.weight"},
            [MOE_T_O] = {.name = L "self_attn.o_proj.weight"},
            [MOE_T_O_BIAS] = {.name = L "self_attn.o_proj.bias"},
            [MOE_T_FFN_NORM] = {.name = L "post_attention_layernorm.weight"},
            [MOE_T_FFN_NORM_BIAS] = {.name = L "post_attention_layernorm.bias"},
            [MOE_T_GATE] = {.name = L "mlp.gate_proj.weight"},
            [MOE_T_UP] = {.name = L "mlp.up_proj.weight"},
            [MOE_T_DOWN] = {.name = L "mlp.down_proj.weight"},
            [MOE_T_ROUTER] = {.name = L "mlp.gate.weight"},
        },
    .expert =
        {
            [MOE_E_GATE] = {.name = L "mlp.experts.%u.gate_proj.weight"},
            [MOE_E_UP] = {.name = L "mlp.experts.%u.up_proj.weight"},
            [MOE_E_DOWN] = {.name = L "mlp.experts.%u.down_proj.weight"},
        },
    /* Buffers that old writers stored with the weights. */
    .ignored = (const char *const[]){L "self_attn.rotary_emb.inv_freq", NULL},
};

const struct moe_source_names family_names_deepseek = {
    .dense =
        {
            [MOE_T_SHARED_GATE_PROJ] = {.name = L "mlp.shared_experts.gate_proj.weight"},
            [MOE_T_SHARED_UP] = {.name = L "mlp.shared_experts.up_proj.weight"},
            [MOE_T_SHARED_DOWN] = {.name = L "mlp.shared_experts.down_proj.weight"},
        },
};

const struct moe_source_names family_names_fused = {
    .expert =
        {
            [MOE_E_GATE] = {.name = L "mlp.experts.gate_up_proj", .take = MOE_TAKE_FIRST_HALF},
            [MOE_E_UP] = {.name = L "mlp.experts.gate_up_proj", .take = MOE_TAKE_SECOND_HALF},
            [MOE_E_DOWN] = {.name = L "mlp.experts.down_proj", .take = MOE_TAKE_EXPERT},
        },
};
