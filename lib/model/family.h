/*
 * Model families: one file and one row in the table each.
 *
 * A family is data: how its config.json maps to struct moe_config, and what its tensors are called.
 * A tensor of the model has a role and, in layers, a layer number; experts have theirs too.
 */
#ifndef MOE_MODEL_FAMILY_H
#define MOE_MODEL_FAMILY_H

#include "base/err.h"
#include "model/config.h"
#include "quant/layout.h"

struct json_t;

/* Every dense tensor a model can have. The name is the one in a pack; "%u" is the layer. */
enum moe_tensor_role {
    MOE_T_EMBED,      /* [vocab][hidden] */
    MOE_T_FINAL_NORM, /* [hidden] */
    MOE_T_HEAD,       /* [vocab][hidden]; absent when tied */
    MOE_T_ATTN_NORM,  /* [hidden] */
    MOE_T_Q,
    MOE_T_K,
    MOE_T_V, /* [heads * head_dim][hidden] */
    MOE_T_Q_BIAS,
    MOE_T_K_BIAS,
    MOE_T_V_BIAS,
    MOE_T_O,        /* [hidden][heads * head_dim] */
    MOE_T_FFN_NORM, /* [hidden] */
    MOE_T_GATE,
    MOE_T_UP,
    MOE_T_DOWN,   /* dense layers' feed-forward */
    MOE_T_ROUTER, /* [n_experts][hidden] */
    MOE_T_SHARED_GATE_PROJ,
    MOE_T_SHARED_UP,
    MOE_T_SHARED_DOWN,
    MOE_T_SHARED_GATE, /* [1][hidden] */
    MOE_T_N_ROLES
};

/* How a tensor may be stored. */
enum moe_tensor_kind {
    MOE_KIND_VECTOR, /* plain f32: norms, biases */
    MOE_KIND_DENSE,  /* a matrix stored at --dense bits */
    MOE_KIND_ROUTER, /* a matrix that decides routing: kept at 16 bits or better */
};

struct moe_tensor_spec {
    const char *pack_name; /* "layers.%u.attn.q" */
    enum moe_tensor_kind kind;
    bool per_layer;
};

/* The role's name in packs, kind, and whether it is per layer. */
const struct moe_tensor_spec *moe_tensor_spec(enum moe_tensor_role role);
/* Whether the model has it (in this layer), and its shape; vectors have *cols = 1. */
bool moe_tensor_shape(const struct moe_config *config, enum moe_tensor_role role, uint32_t layer,
                      uint32_t *rows, uint32_t *cols);
/* Writes the pack name into out (MOE_PACK_NAME_BYTES of room). */
void moe_tensor_pack_name(enum moe_tensor_role role, uint32_t layer, char *out);

struct moe_family {
    const char *name;     /* as config.json's "model_type" has it */
    const char *describe; /* for people: "Qwen2-MoE (Qwen1.5-MoE-A2.7B, ...)" */
    /* Fills config from config.json; everything the family does not compute is refused. */
    int (*read_hf)(struct moe_config *config, const char *path, const struct json_t *json,
                   struct moe_err *err);
    const char *hf_names[MOE_T_N_ROLES]; /* printf formats with the layer; NULL: never there */
    const char *hf_expert_names[3];      /* gate, up, down, with layer and expert */
};

const struct moe_family *moe_family_find(const char *name); /* NULL: unknown */
const struct moe_family *moe_family_at(int i);              /* NULL past the end */

extern const struct moe_family moe_family_qwen2_moe;

#endif
