/*
 * Model families: one entry in one of the tables (families_*.c) each.
 *
 * A family is data: which keys of config.json or of GGUF metadata set which members of struct
 * moe_config, what they default to, which switches are refused, which layers have experts or
 * windows, and what its tensors are called where not as usual (tensor_roles.h). What a family
 * computes of its own from its settings is a function in a file of its own, family_NAME.c.
 */
#ifndef MOE_MODEL_FAMILY_H
#define MOE_MODEL_FAMILY_H

#include <stddef.h>

#include "base/err.h"
#include "model/config.h"
#include "model/tensor_roles.h"

struct json_t;
struct moe_checkpoint;
struct moe_rope_settings;

/* ---- Settings ---- */

enum moe_setting_use {
    MOE_AS_IS,
    MOE_NOT_ZERO,   /* 0 is refused */
    MOE_RECIPROCAL, /* the member is 1 / the number, which may not be 0 */
    MOE_UNLESS_ZERO /* 0 says nothing */
};

/* A member of struct moe_config that a family sets. */
struct moe_setting {
    const char *key; /* of config.json, or of GGUF under the architecture's name; NULL: none */
    size_t member;   /* its offset; 0 ends a list */
    /* Without a key, what the member is (set before any key is read); with one, what it is where
     * the key is absent, 0 leaving it as it was. A whole number that is null in config.json becomes
     * 0, which says "from the rest" (moe_config_complete). */
    double value;
    bool required;
    enum moe_setting_use use;
};

#define MOE_MEMBER(name) offsetof(struct moe_config, name)

/* A switch of config.json, or of GGUF, of which one value is implemented: a text, a number as it is
 * usually written, "true" or "false"; other names of it follow after '|'. Absent or null is fine;
 * anything else is MOE_ERR_UNSUPPORTED. */
struct moe_only {
    const char *key, *value; /* key NULL ends a list */
};

/* ---- Layers ---- */

/* Which layers have experts. */
enum moe_expert_layers {
    MOE_LAYERS_NONE,
    MOE_LAYERS_ALL,
    MOE_LAYERS_STEP,  /* every "decoder_sparse_step"-th, except "mlp_only_layers" */
    MOE_LAYERS_AFTER, /* every "moe_layer_freq"-th from "first_k_dense_replace" on; the width of
                         shared experts is "n_shared_experts" times that of a routed one;
                         "mlp_layer_types", where it is there, says which layers */
};

/* Which layers attend to a window. */
enum moe_window_layers {
    MOE_WINDOW_NONE,
    MOE_WINDOW_ALL,
    MOE_WINDOW_EVEN,       /* layers 0, 2, ... */
    MOE_WINDOW_FROM,       /* from "max_window_layers" on */
    MOE_WINDOW_EVEN_BELOW, /* layers 0, 2, ... below "max_window_layers" */
};

struct moe_windows {
    enum moe_window_layers layers;
    uint32_t width; /* where "sliding_window" is absent; 0: none */
    bool if_used;   /* only where "use_sliding_window" is true */
    bool listed;    /* "layer_types", where it is there, says which layers */
    uint32_t from;  /* "max_window_layers" where that is absent; 0: 28 */
};

/* Sets which layers are windowed by a rule; max_layers: "max_window_layers". */
void moe_windows_apply(struct moe_config *config, enum moe_window_layers layers,
                       uint32_t max_layers);

/* ---- Families ---- */

/* Names of its own for some of the tensors. */
struct moe_source_names {
    struct moe_source dense[MOE_T_N_ROLES];
    struct moe_source expert[MOE_E_N_PARTS];
};

enum { MOE_MAX_OWN_NAMES = 3 };

struct moe_family_tensors {
    /* In the order they are tried, before the usual names: a tensor that a table has no name for,
     * or that the checkpoint does not have under that name, is looked for in the next. */
    const struct moe_source_names *names[MOE_MAX_OWN_NAMES];
    /* Rotated values are stored as pairs (0, 1), (2, 3), ...: rows of queries and keys are put into
     * halves as they are read. With latent attention they also stand last in a head. */
    bool paired;
    bool index_paired; /* the same of an indexer's queries and keys */
    /* Names of the encoder's layers, which are tried in place of names[0], where there is one. The
     * layers of both stacks are then counted from 0. */
    const struct moe_source_names *encoder;
    /* Tensors that may be there as the embedding once more; NULL ends them. */
    const char *copies[4];
    /* Tensors that compute what is not asked for here, '*' at the end for any end; NULL ends them.
     */
    const char *ignored[2];
};

enum { MOE_MAX_BY_LAYER = 4 };

struct moe_family {
    const char *name;                    /* as config.json's "model_type" has it */
    const char *also;                    /* another spelling of it; NULL: none */
    const struct moe_setting *constants; /* of config.json and GGUF alike */

    struct {
        const char *architecture; /* says which family it is where there is no "model_type" */
        const struct moe_only *only;
        const struct moe_setting *settings; /* what Llama's descendants share is read before */
        bool own_keys;                      /* it is no such descendant: that is not read */
        double rope_theta;                  /* where the file has none */
        const char *rope_of;   /* "rope_parameters" are by kind of layer: that of most */
        double partial_rotary; /* where "partial_rotary_factor" is absent; 0: it must be 1 */
        enum moe_expert_layers expert_layers;
        /* Of MOE_LAYERS_AFTER: where "n_shared_experts", "first_k_dense_replace" are absent. */
        uint32_t n_shared, n_dense;
        struct moe_windows windows;
        /* A checkpoint may be of a model that sees images as well: the family is then described in
         * its "text_config", and its tensors are "model.language_model.*". */
        bool in_text_config;
        bool reads_mxfp4; /* "quantization_config" with MXFP4 experts is fine */
        /* What it computes beyond that (NULL: nothing): all keys are read, *rope is not applied
         * yet. */
        int (*own)(struct moe_config *config, const char *path, const struct json_t *json,
                   struct moe_rope_settings *rope, struct moe_err *err);
    } hf;

    struct {
        const char *arch; /* general.architecture; NULL: this family has none */
        bool dense;       /* of several families of one architecture, the one without experts */
        bool sigmoid;     /* ... the one whose router takes sigmoids */
        bool says_router; /* "expert_gating_func" says whether it does, or takes a softmax */
        const struct moe_only *only;        /* of keys under the architecture's name */
        const struct moe_setting *settings; /* what all architectures share is read before */
        /* Of the shared keys those that may differ by layer: own looks at them, and the member is
         * the largest. NULL ends them. */
        const char *by_layer[MOE_MAX_BY_LAYER];
        bool windowed;            /* by hf.windows, where "attention.sliding_window" is not 0 */
        enum moe_qk_norm qk_norm; /* where the norms' weights are there */
        /* As above: all keys are read, and what tensors show; *rope is what holds where the file
         * says nothing of its rotary settings. */
        int (*own)(struct moe_config *config, const struct moe_checkpoint *ck,
                   struct moe_rope_settings *rope, struct moe_err *err);
    } gguf;

    struct moe_family_tensors tensors[MOE_N_NAMINGS];
};

const struct moe_family *moe_family_find(const char *name); /* NULL: unknown */
/* The family whose config.json may have this architecture alone. */
const struct moe_family *moe_family_find_architecture(const char *name);
/* The family of a GGUF architecture, for models with or without experts, with one router or the
 * other, where several share it. */
const struct moe_family *moe_family_find_gguf(const char *arch, bool has_experts, bool sigmoid);
const struct moe_family *moe_family_at(int i); /* NULL past the end */

#endif
