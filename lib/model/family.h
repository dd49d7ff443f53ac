/*
 * Model families, one table entry each (families.c).
 *
 * A family is data: which keys of config.json or of GGUF metadata set which members of struct
 * moe_config, their defaults, which switches are refused, which layers have experts or windows,
 * and which tensors have unusual names (tensor_roles.h). What has to be worked out beyond that is
 * a function in family_own.c or family_gguf_own.c.
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
    MOE_UNLESS_ZERO /* 0 means: not given */
};

/* A member of struct moe_config that a family sets. */
struct moe_setting {
    const char *key; /* of config.json, or of GGUF under the architecture's name; NULL: none */
    size_t member;   /* its offset; 0 ends a list */
    /* Without a key, the member's value, set before any key is read. With one, its value if the key
     * is absent, where 0 leaves it as it was. A whole number that is null in config.json becomes 0,
     * which moe_config_complete fills in. */
    double value;
    bool required;
    enum moe_setting_use use;
};

#define MOE_MEMBER(name) offsetof(struct moe_config, name)

/* A switch of config.json or GGUF with one implemented value: text, a number as it is usually
 * written, "true" or "false"; alternatives follow after '|'. Absent or null is accepted, anything
 * else is MOE_ERR_UNSUPPORTED. */
struct moe_only {
    const char *key, *value; /* key NULL ends a list */
};

/* ---- Layers ---- */

/* Which layers have experts. */
enum moe_expert_layers {
    MOE_LAYERS_NONE,
    MOE_LAYERS_ALL,
    MOE_LAYERS_STEP,  /* every "decoder_sparse_step"-th, except "mlp_only_layers" */
    MOE_LAYERS_AFTER, /* every "moe_layer_freq"-th from "first_k_dense_replace" on, or those that
                         "mlp_layer_types" lists; shared experts are together "n_shared_experts"
                         times as wide as a routed one */
};

/* Which layers have a sliding window. */
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
    bool listed;    /* "layer_types", if there is one, lists them */
    uint32_t from;  /* "max_window_layers" where that is absent; 0: 28 */
};

/* Sets which layers are windowed by a rule; max_layers: "max_window_layers". */
void moe_windows_apply(struct moe_config *config, enum moe_window_layers layers,
                       uint32_t max_layers);

/* ---- Families ---- */

/* A family's own names for some of the tensors. */
struct moe_source_names {
    struct moe_source dense[MOE_T_N_ROLES];
    struct moe_source expert[MOE_E_N_PARTS];
};

enum { MOE_MAX_OWN_NAMES = 4 };

struct moe_family_tensors {
    /* Tried in this order, before the usual names: a tensor that a table has no name for, or that
     * is not in the checkpoint under that name, is looked for in the next one. */
    const struct moe_source_names *names[MOE_MAX_OWN_NAMES];
    /* Rotated values are stored as pairs (0, 1), (2, 3), ...: reading rearranges the rows of
     * queries and keys into halves. With MLA they are also the last values of a head. */
    bool paired;
    bool index_paired;  /* the same for an indexer's queries and keys */
    bool in_halves;     /* names count two layers as one, and say which of them it is */
    bool index_last;    /* whose last values rotate, not their first */
    bool image_experts; /* behind the others, as many, there are experts for images */
    bool bare;          /* names may lack their "model.": of a model that was saved without head */
    /* Names that are tried in place of names[0] in an encoder's layers, where there is an encoder
     * (layers of both stacks then count from 0), and in second halves. */
    const struct moe_source_names *others;
    /* Further copies of the embedding that may be there; NULL ends them. */
    const char *copies[5];
    /* Tensors of what is not implemented, with '*' for any ending; NULL ends them. */
    const char *ignored[9];
};

enum { MOE_MAX_BY_LAYER = 4 };

struct moe_family {
    const char *name;                    /* as config.json's "model_type" has it */
    const char *also;                    /* other spellings of it, between '|'; NULL: none */
    const struct moe_setting *constants; /* of config.json and GGUF alike */

    struct {
        const char *architecture; /* or several, between '|': names the family, whatever
                                     "model_type" says */
        const struct moe_only *only;
        const struct moe_setting *settings; /* read after the keys that Llama's descendants share */
        bool own_keys;                      /* not such a descendant: those keys are not read */
        double rope_theta;                  /* where the file has none */
        const char *rope_of;                /* the kind of layer whose "rope_parameters" are read */
        double partial_rotary; /* if "partial_rotary_factor" is absent; 0: it must be 1 */
        enum moe_expert_layers expert_layers;
        /* For MOE_LAYERS_AFTER, if "n_shared_experts", "first_k_dense_replace" are absent. */
        uint32_t n_shared, n_dense;
        /* Another key for the number of shared experts, n_shared if it is absent; NULL: none. */
        const char *shared_key;
        struct moe_windows windows;
        /* The checkpoint may be of a model that also sees images: then its "text_config" describes
         * the family (perhaps in a "thinker_config"), and tensors are "model.language_model.*" or
         * the like (pack/convert_source.c). */
        bool in_text_config;
        bool reads_mxfp4; /* "quantization_config" may be MXFP4 experts */
        /* What has to be worked out (NULL: nothing), after all keys are read and before *rope is
         * applied. */
        int (*own)(struct moe_config *config, const char *path, const struct json_t *json,
                   struct moe_rope_settings *rope, struct moe_err *err);
    } hf;

    struct {
        const char *arch; /* general.architecture; NULL: this family has none */
        bool dense;       /* of several families with this architecture, the one without experts */
        bool sigmoid;     /* the one whose router takes sigmoids */
        bool says_router; /* "expert_gating_func" says sigmoid or softmax */
        const struct moe_only *only;        /* keys under the architecture's name */
        const struct moe_setting *settings; /* read after the keys that all architectures share */
        /* Shared keys that may differ by layer: `own` reads them, and the member is the largest.
         * NULL ends them. */
        const char *by_layer[MOE_MAX_BY_LAYER];
        bool windowed;            /* by hf.windows, unless "attention.sliding_window" is 0 */
        enum moe_qk_norm qk_norm; /* if the norms' weights are there */
        /* The same, after all keys are read and tensors looked at; *rope is what holds where the
         * file has no rotary settings. */
        int (*own)(struct moe_config *config, const struct moe_checkpoint *ck,
                   struct moe_rope_settings *rope, struct moe_err *err);
    } gguf;

    struct moe_family_tensors tensors[MOE_N_NAMINGS];
};

const struct moe_family *moe_family_find(const char *name); /* NULL: unknown */
/* The family that config.json may name only by this architecture. */
const struct moe_family *moe_family_find_architecture(const char *name);
/* The family of a GGUF architecture; where several share it, the one with or without experts, with
 * sigmoids or without. */
const struct moe_family *moe_family_find_gguf(const char *arch, bool has_experts, bool sigmoid);
const struct moe_family *moe_family_at(int i); /* NULL past the end */
/* What a model type or an architecture that is no family needs and is not implemented; NULL: not
 * known. */
const char *moe_family_left_out(const char *name);

#endif
