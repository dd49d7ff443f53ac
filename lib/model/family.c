#include "model/family.h"

#include <stdio.h>
#include <string.h>

#include "fmt/pack.h"

static const struct moe_family *const families[] = {
    &moe_family_qwen2_moe,  &moe_family_qwen3_moe,
    &moe_family_mixtral,    &moe_family_olmoe,
    &moe_family_deepseek,   &moe_family_deepseek_v2,
    &moe_family_phimoe,     &moe_family_minicpm,
    &moe_family_granitemoe, &moe_family_granitemoeshared,
    &moe_family_gpt_oss,    &moe_family_llama,
    &moe_family_mistral,    &moe_family_qwen2,
    &moe_family_qwen3,
};

const struct moe_family *moe_family_at(int i)
{
    return i >= 0 && (size_t)i < sizeof families / sizeof families[0] ? families[i] : NULL;
}

const struct moe_family *moe_family_find(const char *name)
{
    const struct moe_family *family;
    for (int i = 0; (family = moe_family_at(i)) != NULL; i++)
        if (strcmp(family->name, name) == 0)
            return family;
    return NULL;
}

const struct moe_family *moe_family_find_gguf(const char *arch, bool has_experts)
{
    const struct moe_family *family, *found = NULL;
    for (int i = 0; (family = moe_family_at(i)) != NULL; i++)
        if (family->gguf_arch && strcmp(family->gguf_arch, arch) == 0 &&
            (!found || family->gguf_dense == !has_experts))
            found = family;
    return found;
}

static const struct moe_tensor_spec specs[MOE_T_N_ROLES] = {
    [MOE_T_EMBED] = {"embed", MOE_KIND_DENSE, false},
    [MOE_T_FINAL_NORM] = {"final_norm", MOE_KIND_VECTOR, false},
    [MOE_T_FINAL_NORM_BIAS] = {"final_norm.bias", MOE_KIND_VECTOR, false},
    [MOE_T_HEAD] = {"head", MOE_KIND_DENSE, false},
    [MOE_T_HEAD_BIAS] = {"head.bias", MOE_KIND_VECTOR, false},
    [MOE_T_ATTN_NORM] = {"layers.%u.attn.norm", MOE_KIND_VECTOR, true},
    [MOE_T_ATTN_NORM_BIAS] = {"layers.%u.attn.norm.bias", MOE_KIND_VECTOR, true},
    [MOE_T_Q_DOWN] = {"layers.%u.attn.q_down", MOE_KIND_DENSE, true},
    [MOE_T_Q_DOWN_NORM] = {"layers.%u.attn.q_down.norm", MOE_KIND_VECTOR, true},
    [MOE_T_Q] = {"layers.%u.attn.q", MOE_KIND_DENSE, true},
    [MOE_T_K] = {"layers.%u.attn.k", MOE_KIND_DENSE, true},
    [MOE_T_V] = {"layers.%u.attn.v", MOE_KIND_DENSE, true},
    [MOE_T_Q_BIAS] = {"layers.%u.attn.q.bias", MOE_KIND_VECTOR, true},
    [MOE_T_K_BIAS] = {"layers.%u.attn.k.bias", MOE_KIND_VECTOR, true},
    [MOE_T_V_BIAS] = {"layers.%u.attn.v.bias", MOE_KIND_VECTOR, true},
    [MOE_T_Q_NORM] = {"layers.%u.attn.q.norm", MOE_KIND_VECTOR, true},
    [MOE_T_K_NORM] = {"layers.%u.attn.k.norm", MOE_KIND_VECTOR, true},
    [MOE_T_KV_DOWN] = {"layers.%u.attn.kv_down", MOE_KIND_DENSE, true},
    [MOE_T_KV_DOWN_NORM] = {"layers.%u.attn.kv_down.norm", MOE_KIND_VECTOR, true},
    [MOE_T_K_UP] = {"layers.%u.attn.k_up", MOE_KIND_DENSE, true},
    [MOE_T_V_UP] = {"layers.%u.attn.v_up", MOE_KIND_DENSE, true},
    [MOE_T_SINKS] = {"layers.%u.attn.sinks", MOE_KIND_VECTOR, true},
    [MOE_T_O] = {"layers.%u.attn.o", MOE_KIND_DENSE, true},
    [MOE_T_O_BIAS] = {"layers.%u.attn.o.bias", MOE_KIND_VECTOR, true},
    [MOE_T_FFN_NORM] = {"layers.%u.ffn.norm", MOE_KIND_VECTOR, true},
    [MOE_T_FFN_NORM_BIAS] = {"layers.%u.ffn.norm.bias", MOE_KIND_VECTOR, true},
    [MOE_T_GATE] = {"layers.%u.ffn.gate", MOE_KIND_DENSE, true},
    [MOE_T_UP] = {"layers.%u.ffn.up", MOE_KIND_DENSE, true},
    [MOE_T_DOWN] = {"layers.%u.ffn.down", MOE_KIND_DENSE, true},
    [MOE_T_ROUTER] = {"layers.%u.router", MOE_KIND_ROUTER, true},
    [MOE_T_ROUTER_BIAS] = {"layers.%u.router.bias", MOE_KIND_VECTOR, true},
    [MOE_T_SHARED_GATE_PROJ] = {"layers.%u.shared.gate", MOE_KIND_DENSE, true},
    [MOE_T_SHARED_UP] = {"layers.%u.shared.up", MOE_KIND_DENSE, true},
    [MOE_T_SHARED_DOWN] = {"layers.%u.shared.down", MOE_KIND_DENSE, true},
    [MOE_T_SHARED_GATE] = {"layers.%u.shared.scale", MOE_KIND_ROUTER, true},
};

const struct moe_tensor_spec *moe_tensor_spec(enum moe_tensor_role role)
{
    return &specs[role];
}

void moe_tensor_pack_name(enum moe_tensor_role role, uint32_t layer, char *out)
{
    const char *format = specs[role].pack_name, *mark = strstr(format, "%u");
    if (!mark)
        snprintf(out, MOE_PACK_NAME_BYTES, "%s", format);
    else
        snprintf(out, MOE_PACK_NAME_BYTES, "%.*s%u%s", (int)(mark - format), format, layer,
                 mark + 2);
}

static bool shape(bool present, uint32_t n_rows, uint32_t n_cols, uint32_t *rows, uint32_t *cols)
{
    *rows = n_rows;
    *cols = n_cols;
    return present && n_rows > 0;
}

bool moe_tensor_shape(const struct moe_config *c, enum moe_tensor_role role, uint32_t layer,
                      uint32_t *rows, uint32_t *cols)
{
    bool moe = layer < c->n_layers && c->layer_is_moe[layer];
    bool layer_norm = c->norm_kind == MOE_NORM_LAYER, latent = c->kv_rank > 0;
    bool full_norm = c->qk_norm == MOE_QK_NORM_FULL, qk_norm = c->qk_norm != MOE_QK_NORM_NONE;
    uint32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    switch (role) {
    case MOE_T_EMBED:
        return shape(true, c->vocab, c->hidden, rows, cols);
    case MOE_T_HEAD:
        return shape(!c->tied_head, c->vocab, c->hidden, rows, cols);
    case MOE_T_HEAD_BIAS:
        return shape(c->head_bias, c->vocab, 1, rows, cols);
    case MOE_T_FINAL_NORM:
    case MOE_T_ATTN_NORM:
    case MOE_T_FFN_NORM:
        return shape(true, c->hidden, 1, rows, cols);
    case MOE_T_FINAL_NORM_BIAS:
    case MOE_T_ATTN_NORM_BIAS:
    case MOE_T_FFN_NORM_BIAS:
        return shape(layer_norm, c->hidden, 1, rows, cols);
    case MOE_T_Q_DOWN:
        return shape(latent && c->q_rank, c->q_rank, c->hidden, rows, cols);
    case MOE_T_Q_DOWN_NORM:
        return shape(latent && c->q_rank, c->q_rank, 1, rows, cols);
    case MOE_T_Q:
        return shape(true, q, latent && c->q_rank ? c->q_rank : c->hidden, rows, cols);
    case MOE_T_K:
    case MOE_T_V:
        return shape(!latent, kv, c->hidden, rows, cols);
    case MOE_T_Q_BIAS:
        return shape(c->qkv_bias, q, 1, rows, cols);
    case MOE_T_K_BIAS:
    case MOE_T_V_BIAS:
        return shape(c->qkv_bias, kv, 1, rows, cols);
    case MOE_T_Q_NORM:
        return shape(qk_norm, full_norm ? q : c->head_dim, 1, rows, cols);
    case MOE_T_K_NORM:
        return shape(qk_norm, full_norm ? kv : c->head_dim, 1, rows, cols);
    case MOE_T_KV_DOWN:
        return shape(latent, c->kv_rank + c->rope_dim, c->hidden, rows, cols);
    case MOE_T_KV_DOWN_NORM:
        return shape(latent, c->kv_rank, 1, rows, cols);
    case MOE_T_K_UP:
        return shape(latent, c->n_heads * c->kv_rank, c->head_dim - c->rope_dim, rows, cols);
    case MOE_T_V_UP:
        return shape(latent, c->n_heads * c->value_dim, c->kv_rank, rows, cols);
    case MOE_T_SINKS:
        return shape(c->attn_sinks, c->n_heads, 1, rows, cols);
    case MOE_T_O:
        return shape(true, c->hidden, c->n_heads * c->value_dim, rows, cols);
    case MOE_T_O_BIAS:
        return shape(c->o_bias, c->hidden, 1, rows, cols);
    case MOE_T_GATE:
    case MOE_T_UP:
        return shape(!moe, c->dense_ff, c->hidden, rows, cols);
    case MOE_T_DOWN:
        return shape(!moe, c->hidden, c->dense_ff, rows, cols);
    case MOE_T_ROUTER:
        return shape(moe, c->n_experts, c->hidden, rows, cols);
    case MOE_T_ROUTER_BIAS:
        return shape(moe && c->router_bias, c->n_experts, 1, rows, cols);
    case MOE_T_SHARED_GATE_PROJ:
    case MOE_T_SHARED_UP:
        return shape(moe && c->shared_ff, c->shared_ff, c->hidden, rows, cols);
    case MOE_T_SHARED_DOWN:
        return shape(moe && c->shared_ff, c->hidden, c->shared_ff, rows, cols);
    case MOE_T_SHARED_GATE:
        return shape(moe && c->shared_ff && c->shared_gate, 1, c->hidden, rows, cols);
    case MOE_T_N_ROLES:
        break;
    }
    return false;
}

bool moe_expert_part_shape(const struct moe_config *c, enum moe_expert_part part, uint32_t *rows,
                           uint32_t *cols)
{
    switch (part) {
    case MOE_E_GATE:
    case MOE_E_UP:
        return shape(true, c->expert_ff, c->hidden, rows, cols);
    case MOE_E_DOWN:
        return shape(true, c->hidden, c->expert_ff, rows, cols);
    case MOE_E_GATE_BIAS:
    case MOE_E_UP_BIAS:
        return shape(c->expert_bias, c->expert_ff, 1, rows, cols);
    case MOE_E_DOWN_BIAS:
        return shape(c->expert_bias, c->hidden, 1, rows, cols);
    case MOE_E_N_PARTS:
        break;
    }
    return false;
}
