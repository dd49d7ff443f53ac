/*
 * Model families: one file and one row in the table each.
 *
 * A family is data: how its config.json or GGUF metadata map to struct moe_config, and what its
 * tensors are called. A tensor of the model has a role and, in layers, a layer number; experts have
 * theirs too.
 */
#ifndef MOE_MODEL_FAMILY_H
#define MOE_MODEL_FAMILY_H

#include "base/err.h"
#include "model/config.h"
#include "quant/layout.h"

struct json_t;
struct moe_gguf;
struct moe_rope_settings;

/* Every dense tensor a model can have. */
enum moe_tensor_role {
    MOE_T_EMBED,           /* [vocab][hidden] */
    MOE_T_FINAL_NORM,      /* [hidden] */
    MOE_T_FINAL_NORM_BIAS, /* [hidden] */
    MOE_T_HEAD,            /* [vocab][hidden]; absent when tied */
    MOE_T_HEAD_BIAS,       /* [vocab] */
    MOE_T_ATTN_NORM,       /* [hidden] */
    MOE_T_ATTN_NORM_BIAS,  /* [hidden] */
    MOE_T_Q_DOWN,          /* [q_rank][hidden] */
    MOE_T_Q_DOWN_NORM,     /* [q_rank] */
    MOE_T_Q,               /* [heads * head_dim][hidden, or q_rank] */
    MOE_T_K,               /* [kv_heads * head_dim][hidden] */
    MOE_T_V,               /* [kv_heads * head_dim][hidden] */
    MOE_T_Q_BIAS,
    MOE_T_K_BIAS,
    MOE_T_V_BIAS,
    MOE_T_Q_NORM, /* [head_dim], or [heads * head_dim] */
    MOE_T_K_NORM, /* [head_dim], or [kv_heads * head_dim] */
    /* Latent attention. KV_DOWN's rows: the latent vector, then what is rotated. K_UP is, head by
     * head, the transpose of what makes keys: it carries queries into the latent space. */
    MOE_T_KV_DOWN,      /* [kv_rank + rope_dim][hidden] */
    MOE_T_KV_DOWN_NORM, /* [kv_rank] */
    MOE_T_K_UP,         /* [heads * kv_rank][head_dim - rope_dim] */
    MOE_T_V_UP,         /* [heads * value_dim][kv_rank] */
    MOE_T_SINKS,        /* [heads] */
    MOE_T_O,            /* [hidden][heads * value_dim] */
    MOE_T_O_BIAS,       /* [hidden] */
    MOE_T_FFN_NORM,     /* [hidden] */
    MOE_T_FFN_NORM_BIAS,
    MOE_T_GATE, /* dense layers' feed-forward: gate and up [dense_ff][hidden], down */
    MOE_T_UP,
    MOE_T_DOWN,
    MOE_T_ROUTER,      /* [n_experts][hidden] */
    MOE_T_ROUTER_BIAS, /* [n_experts] */
    MOE_T_SHARED_GATE_PROJ,
    MOE_T_SHARED_UP,
    MOE_T_SHARED_DOWN,
    MOE_T_SHARED_GATE, /* [1][hidden] */
    MOE_T_N_ROLES
};

/* The parts of an expert, in the order of a pack's roles. */
enum moe_expert_part {
    MOE_E_GATE, /* [expert_ff][hidden] */
    MOE_E_UP,   /* [expert_ff][hidden] */
    MOE_E_DOWN, /* [hidden][expert_ff] */
    MOE_E_GATE_BIAS,
    MOE_E_UP_BIAS,
    MOE_E_DOWN_BIAS,
    MOE_E_N_PARTS
};

/* How a tensor may be stored. */
enum moe_tensor_kind {
    MOE_KIND_VECTOR, /* plain f32: norms, biases */
    MOE_KIND_DENSE,  /* a matrix stored at --dense bits */
    MOE_KIND_ROUTER, /* a matrix that decides routing: kept at 16 bits or better */
};

struct moe_tensor_spec {
    const char *pack_name; /* "layers.%u.attn.q": "%u" is the layer */
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
/* Whether the model's experts have this part, and its shape; biases have *cols = 1. */
bool moe_expert_part_shape(const struct moe_config *config, enum moe_expert_part part,
                           uint32_t *rows, uint32_t *cols);

/* ---- Where tensors lie in a checkpoint ---- */

/* Which part of a checkpoint's tensor a matrix [rows][cols] (a vector: cols 1, one dimension less)
 * is. Where the tensor of an expert has no "%u" for the expert it holds all of them: n_experts is
 * then its first dimension, before those named here. */
enum moe_take {
    MOE_TAKE_ALL = 0,     /* the tensor is [rows][cols]; the rows may lie in several dimensions */
    MOE_TAKE_EXPERT,      /* [rows][cols], behind n_experts */
    MOE_TAKE_FIRST_HALF,  /* [2 * rows][cols]: its first rows */
    MOE_TAKE_SECOND_HALF, /* ... its last rows */
    MOE_TAKE_EVEN,        /* [2 * rows][cols]: rows 0, 2, 4, ... */
    MOE_TAKE_ODD,         /* ... rows 1, 3, 5, ... */
    MOE_TAKE_KEYS, /* [heads * (nope + value_dim)][kv_rank], per head the keys' rows: transposed */
    MOE_TAKE_VALUES, /* ... per head the values' rows */
};

/* The first "%u" of a name is the layer, the second the expert. */
struct moe_source {
    const char *name; /* NULL: never there */
    enum moe_take take;
    /* The last two dimensions are [cols][rows] (before halves are taken). Not so for types that
     * quantize blocks of columns. */
    bool transposed;
};

struct moe_source_names {
    struct moe_source dense[MOE_T_N_ROLES];
    struct moe_source expert[MOE_E_N_PARTS];
    /* Further tensors that may be there and are not needed; NULL ends them. Layer numbers as
     * above. */
    const char *const *ignored;
};

enum { MOE_MAX_SOURCES = 4 };

struct moe_family {
    const char *name;     /* as config.json's "model_type" has it */
    const char *describe; /* for people: "Qwen2-MoE (Qwen1.5-MoE-A2.7B, ...)" */

    /* Fills config from config.json; everything the family does not compute is refused. The caller
     * has called moe_config_init, and completes and checks what comes back. */
    int (*read_hf)(struct moe_config *config, const char *path, const struct json_t *json,
                   struct moe_err *err);
    /* Tables in the order they are tried: a tensor that the first has no name for, or that the
     * checkpoint has not under that name, is looked for in the next. */
    const struct moe_source_names *hf[MOE_MAX_SOURCES];
    /* Rotated values are stored as pairs (0, 1), (2, 3), ...: rows of queries and keys are put into
     * halves as they are read. With latent attention they also stand last in a head. */
    bool hf_paired;
    bool hf_reads_mxfp4; /* "quantization_config" with MXFP4 experts is fine */

    /* The same for GGUF: general.architecture; NULL: this family has none. read_gguf is called when
     * moe_config_read_gguf (family_gguf.h) has read what all architectures share, but for the
     * rotary settings: *rope is what holds where the file says nothing, and the family may change
     * it. */
    const char *gguf_arch;
    bool gguf_dense; /* of two families of one architecture, the one without experts */
    int (*read_gguf)(struct moe_config *config, const struct moe_gguf *gguf,
                     struct moe_rope_settings *rope, struct moe_err *err);
    const struct moe_source_names *gguf[MOE_MAX_SOURCES];
    bool gguf_paired;
};

const struct moe_family *moe_family_find(const char *name); /* NULL: unknown */
/* The family of an architecture, for models with or without experts where two share it. */
const struct moe_family *moe_family_find_gguf(const char *arch, bool has_experts);
const struct moe_family *moe_family_at(int i); /* NULL past the end */

extern const struct moe_family moe_family_qwen2_moe, moe_family_qwen3_moe, moe_family_mixtral,
    moe_family_olmoe, moe_family_deepseek, moe_family_deepseek_v2, moe_family_phimoe,
    moe_family_minicpm, moe_family_granitemoe, moe_family_granitemoeshared, moe_family_gpt_oss,
    moe_family_llama, moe_family_mistral, moe_family_qwen2, moe_family_qwen3;

#endif
