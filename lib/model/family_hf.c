/* Reading the model description from a Hugging Face directory, by the family that config.json
 * names. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "fmt/json.h"
#include "model/family_internal.h"
#include "model/read.h"
#include "model/rope.h"
#include "model/routes.h"
#include "quant/layout.h"

enum { MAX_CONFIG_BYTES = 16 << 20 };

/* ---- Types ---- */

/* Members of config.json that families read by hand, with the types allowed. Numbers, switches and
 * texts that are read one by one are checked there (fmt/json.h). */
static const struct {
    const char *key;
    unsigned types;
} parts[] = {
    {"architectures", MOE_JSON_IS_LIST},
    {"model_type", MOE_JSON_IS_TEXT},
    {"text_config", MOE_JSON_IS_OBJECT},
    {"thinker_config", MOE_JSON_IS_OBJECT},
    {"quantization_config", MOE_JSON_IS_OBJECT},
    {"quantization", MOE_JSON_IS_OBJECT},
    {"rope_parameters", MOE_JSON_IS_OBJECT},
    {"rope_scaling", MOE_JSON_IS_OBJECT},
    {"rope_theta", MOE_JSON_IS_NUMBER | MOE_JSON_IS_LIST},
    {"layer_types", MOE_JSON_IS_LIST},
    {"eagle_config", MOE_JSON_IS_OBJECT},
    {"dflash_config", MOE_JSON_IS_OBJECT},
    {"transformer_layer_config", MOE_JSON_IS_OBJECT},
    {"eagle_aux_hidden_state_layer_ids", MOE_JSON_IS_LIST},
    {"mlp_layer_types", MOE_JSON_IS_LIST},
    {"mlp_only_layers", MOE_JSON_IS_LIST},
    {"indexer_types", MOE_JSON_IS_LIST},
    {"ple_layer_ids", MOE_JSON_IS_LIST},
    {"no_rope_layers", MOE_JSON_IS_LIST},
    {"kv_source_layers", MOE_JSON_IS_LIST},
    {"linear_attn_config", MOE_JSON_IS_OBJECT},
    {"sparse_attention_config", MOE_JSON_IS_OBJECT},
    {"attn_config", MOE_JSON_IS_OBJECT},
    {"ffn_config", MOE_JSON_IS_OBJECT},
    {"per_layer_config", MOE_JSON_IS_OBJECT},
    {"attention_other_setting", MOE_JSON_IS_OBJECT},
    {"compress_rates", MOE_JSON_IS_OBJECT},
    {"attn_temperature_tuning", MOE_JSON_IS_NUMBER | MOE_JSON_IS_SWITCH},
    {"gating", MOE_JSON_IS_TEXT | MOE_JSON_IS_SWITCH},
    {"moe_layers", MOE_JSON_IS_LIST},
    {"moe_layers_enum", MOE_JSON_IS_TEXT},
    {"partial_rotary_factors", MOE_JSON_IS_LIST},
    {"layer_rope_theta", MOE_JSON_IS_LIST},
    /* Within others. */
    {"quant_method", MOE_JSON_IS_TEXT},
    {"full_attention", MOE_JSON_IS_OBJECT},
    {"sliding_attention", MOE_JSON_IS_OBJECT},
    {"indexed_attention", MOE_JSON_IS_OBJECT},
    {"compress", MOE_JSON_IS_OBJECT},
    {"hybrid", MOE_JSON_IS_OBJECT},
    {"main", MOE_JSON_IS_OBJECT},
};

static int check_types(const char *path, const json_t *json, struct moe_err *err)
{
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        MOE_TRY(moe_json_check_type(path, json, parts[i].key, parts[i].types, err));
    return MOE_OK;
}

static int check_all_types(const char *path, const json_t *json, struct moe_err *err)
{
    static const char *const within[] = {"rope_parameters", "rope_scaling", "quantization_config",
                                         "eagle_config"};
    MOE_TRY(check_types(path, json, err));
    for (size_t i = 0; i < sizeof within / sizeof within[0]; i++)
        MOE_TRY(check_types(path, json_object_get(json, within[i]), err));
    return MOE_OK;
}

/* ---- What Llama's descendants share ---- */

static const struct moe_setting shared[] = {
    {NULL, MOE_MEMBER(norm_eps), .value = 1e-6},
    {"num_hidden_layers", MOE_MEMBER(n_layers), .required = true},
    {"hidden_size", MOE_MEMBER(hidden), .required = true},
    {"vocab_size", MOE_MEMBER(vocab), .required = true, .use = MOE_NOT_ZERO},
    {"max_position_embeddings", MOE_MEMBER(context_max), .value = 0},
    {"num_attention_heads", MOE_MEMBER(n_heads), .required = true},
    {"num_key_value_heads", MOE_MEMBER(n_kv_heads), .value = 0},
    {"head_dim", MOE_MEMBER(head_dim), .value = 0},
    {"rms_norm_eps", MOE_MEMBER(norm_eps), .value = 0},
    {"tie_word_embeddings", MOE_MEMBER(tied_head), .value = 0},
    {.member = 0},
};

static const struct moe_only shared_only[] = {{"hidden_act", "silu|swish"}, {NULL, NULL}};

static int read_settings(struct moe_config *c, const struct moe_family *family, const char *path,
                         const json_t *json, struct moe_err *err)
{
    bool shares = !family->hf.own_keys;
    family_set_constants(c, shared);
    family_set_constants(c, family->constants);
    family_set_constants(c, family->hf.settings);
    MOE_TRY(family_check_only(family->hf.only, path, json, err));
    const struct moe_only *own = family->hf.only;
    while (own && own->key && strcmp(own->key, shared_only->key) != 0)
        own++;
    if (shares) {
        if (!own || !own->key)
            MOE_TRY(family_check_only(shared_only, path, json, err));
        MOE_TRY(family_read_json(c, shared, path, json, err));
    }
    return family_read_json(c, family->hf.settings, path, json, err);
}

/* ---- Windows ---- */

static int read_windows(struct moe_config *c, const struct moe_windows *windows, const char *path,
                        const json_t *json, struct moe_err *err)
{
    static const struct family_word kinds[] = {
        {"sliding_attention", 1}, {"full_attention", 0}, {NULL}};
    const struct moe_setting width[] = {
        {"sliding_window", MOE_MEMBER(window), .value = windows->width}, {.member = 0}};
    bool bounded = windows->layers == MOE_WINDOW_FROM || windows->layers == MOE_WINDOW_EVEN_BELOW;
    const json_t *list = family_given(json, "layer_types");
    uint32_t max_layers = windows->from ? windows->from : 28;
    bool used = windows->layers != MOE_WINDOW_NONE && !windows->if_used;
    if (windows->if_used)
        MOE_TRY(moe_json_get_bool(path, json, "use_sliding_window", false, &used, err));
    if (used || bounded)
        MOE_TRY(family_read_json(c, width, path, json, err));
    if (bounded)
        MOE_TRY(
            moe_json_get_u32(path, json, "max_window_layers", UINT32_MAX, false, &max_layers, err));
    if (!used)
        c->window = 0;
    if (windows->listed && list)
        return family_read_words(c, MOE_LAYER(windowed), path, list, "layer_types", kinds, false,
                                 err);
    if (used)
        moe_windows_apply(c, windows->layers, max_layers);
    return MOE_OK;
}

static int read_step(struct moe_config *c, const char *path, const json_t *json,
                     struct moe_err *err)
{
    const json_t *dense = family_given(json, "mlp_only_layers");
    uint32_t step = 1;
    MOE_TRY(moe_json_get_u32(path, json, "decoder_sparse_step", MOE_MAX_LAYERS, false, &step, err));
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].moe = c->n_experts > 0 && step > 0 && (i + 1) % step == 0;
    if (dense && !json_is_array(dense))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'mlp_only_layers' is not a list", path);
    return family_read_layers(c, MOE_LAYER(moe), 0, path, dense, "mlp_only_layers", err);
}

static int read_after(struct moe_config *c, uint32_t n_shared, uint32_t first, const char *path,
                      const json_t *json, struct moe_err *err)
{
    static const struct family_word kinds[] = {{"sparse", 1}, {"dense", 0}, {NULL}};
    uint32_t step = 1;
    const json_t *types = family_given(json, "mlp_layer_types");
    const struct family_number numbers[] = {
        {"n_shared_experts", &n_shared, MOE_MAX_EXPERTS},
        {"first_k_dense_replace", &first, MOE_MAX_LAYERS},
        {"moe_layer_freq", &step, MOE_MAX_LAYERS},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (json_is_null(json_object_get(json, numbers[i].key)))
            *numbers[i].out = 0;
        MOE_TRY(family_read_numbers(path, json, &numbers[i], 1, err));
    }
    MOE_TRY(family_set_shared(c, n_shared, path, err));
    if (step == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'moe_layer_freq' 0, expected 1 or more", path);
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].moe = c->n_experts > 0 && i >= first && i % step == 0;
    return types ? family_read_words(c, MOE_LAYER(moe), path, types, "mlp_layer_types", kinds,
                                     false, err)
                 : MOE_OK;
}

static int read_expert_layers(struct moe_config *c, const struct moe_family *family,
                              const char *path, const json_t *json, struct moe_err *err)
{
    switch (family->hf.expert_layers) {
    case MOE_LAYERS_NONE:
        break;
    case MOE_LAYERS_ALL:
        moe_config_set_layers(c, MOE_LAYER(moe), 0, c->n_layers, 1);
        break;
    case MOE_LAYERS_STEP:
        return read_step(c, path, json, err);
    case MOE_LAYERS_AFTER:
        return read_after(c, family->hf.n_shared, family->hf.n_dense, path, json, err);
    }
    return MOE_OK;
}

/* ---- Tokens that begin and end a text ---- */

/* Adds a token that ends a text, unless it is there already. */
static int add_eos(struct moe_config *config, const char *path, const json_t *id,
                   struct moe_err *err)
{
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= MOE_MAX_DIM)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'eos_token_id' is not a token id", path);
    uint32_t token = (uint32_t)json_integer_value(id);
    for (uint32_t i = 0; i < config->n_eos; i++)
        if (config->eos[i] == token)
            return MOE_OK;
    if (config->n_eos < MOE_MAX_EOS)
        config->eos[config->n_eos++] = token;
    return MOE_OK;
}

/* "eos_token_id": a number or a list of numbers. */
static int read_hf_eos(struct moe_config *config, const char *path, const json_t *json,
                       struct moe_err *err)
{
    const json_t *eos = json_object_get(json, "eos_token_id");
    if (!eos || json_is_null(eos))
        return MOE_OK;
    if (!json_is_array(eos))
        return add_eos(config, path, eos, err);
    if (json_array_size(eos) > MOE_MAX_EOS)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'eos_token_id' lists more than %d tokens", path,
                        MOE_MAX_EOS);
    for (size_t i = 0; i < json_array_size(eos); i++)
        MOE_TRY(add_eos(config, path, json_array_get(eos, i), err));
    return MOE_OK;
}

/* A token of a decoder's beginning, if this file has it. */
static int read_hf_start(const char *path, const json_t *json, const char *key, uint32_t least,
                         uint32_t *out, struct moe_err *err)
{
    if (json_is_null(json_object_get(json, key)))
        return MOE_OK;
    return moe_json_get_between(path, json, key, least, MOE_MAX_DIM, false, out, err);
}

static int read_generation_config(struct moe_config *config, const char *dir, struct moe_err *err)
{
    char *path = moe_path_join(dir, "generation_config.json", err);
    if (!path)
        return MOE_ERR_MEMORY;
    int status = MOE_OK;
    if (moe_path_exists(path)) {
        json_t *json;
        status = moe_json_read(&json, path, MAX_CONFIG_BYTES, MOE_JSON_CONFIG_MEMORY, err);
        if (status == MOE_OK)
            status = read_hf_eos(config, path, json, err);
        config->answer_start = 0; /* config.json's counts only without this file */
        if (status == MOE_OK && config->n_encoder)
            status =
                read_hf_start(path, json, "decoder_start_token_id", 0, &config->decoder_start, err);
        if (status == MOE_OK && config->n_encoder)
            status =
                read_hf_start(path, json, "forced_bos_token_id", 1, &config->answer_start, err);
        moe_json_free(json);
    }
    free(path);
    return status;
}

/* ---- The whole ---- */

static int unknown_family(const char *path, const char *type, struct moe_err *err)
{
    struct moe_buf known = {0};
    const struct moe_family *family;
    const char *why = moe_family_left_out(type);
    if (why)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: model type '%s' is not implemented: %s",
                        path, type, why);
    for (int i = 0; (family = moe_family_at(i)) != NULL; i++)
        moe_buf_printf(&known, "%s%s", i ? ", " : "", family->name);
    int status =
        moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: model type '%s' is not implemented (known: %s)",
                 path, type, known.data ? (const char *)known.data : "");
    moe_buf_release(&known);
    return status;
}

static int read_family(struct moe_config *c, const struct moe_family *family, const char *path,
                       const json_t *json, struct moe_err *err)
{
    uint32_t n_shared = family->hf.n_shared;
    struct moe_rope_settings rope;
    moe_rope_settings_init(&rope);
    rope.theta = family->hf.rope_theta;
    rope.partial = family->hf.partial_rotary;
    rope.of = family->hf.rope_of;
    snprintf(c->family, sizeof c->family, "%s", family->name);
    MOE_TRY(read_settings(c, family, path, json, err));
    MOE_TRY(read_windows(c, &family->hf.windows, path, json, err));
    MOE_TRY(read_expert_layers(c, family, path, json, err));
    if (family->hf.shared_key && (family->hf.expert_layers != MOE_LAYERS_AFTER ||
                                  family_given(json, family->hf.shared_key))) {
        MOE_TRY(moe_json_get_u32(path, json, family->hf.shared_key, MOE_MAX_EXPERTS, false,
                                 &n_shared, err));
        MOE_TRY(family_set_shared(c, n_shared, path, err));
    }
    MOE_TRY(moe_json_get_u32(path, json, "num_nextn_predict_layers", MOE_MAX_LAYERS, false,
                             &c->n_beyond, err));
    if (c->positions == MOE_POSITIONS_ROTARY)
        MOE_TRY(moe_rope_read_hf(&rope, path, json, err));
    if (family->hf.own)
        MOE_TRY(family->hf.own(c, path, json, &rope, err));
    MOE_TRY(moe_routes_read_hf(c, path, json, err));
    return c->positions == MOE_POSITIONS_ROTARY ? moe_rope_apply(c, &rope, path, err) : MOE_OK;
}

/* Finds the family by the first of "architectures", or by "model_type". Of a type that many models
 * with images have ("mistral3"), the text part names the family. */
static int find_family(const struct moe_family **family, const char *path, const json_t *json,
                       struct moe_err *err)
{
    const json_t *list = json_object_get(json, "architectures");
    const json_t *text = json_object_get(json, "text_config");
    const char *type = NULL, *architecture = json_string_value(json_array_get(list, 0));
    const char *part = json_string_value(json_object_get(text, "model_type"));
    MOE_TRY(moe_json_get_text(path, json, "model_type", !architecture, &type, err));
    const char *why = architecture ? moe_family_left_out(architecture) : NULL;
    if (why)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: architecture '%s' is not implemented: %s",
                        path, architecture, why);
    *family = architecture ? moe_family_find_architecture(architecture) : NULL;
    /* Some heads that draft name Llama's architecture. */
    if (!*family && family_given(json, "draft_vocab_size"))
        *family = moe_family_find("eagle3");
    if (!*family && type)
        *family = moe_family_find(type);
    if (!*family && part) {
        *family = moe_family_find(part);
        *family = *family && (*family)->hf.in_text_config ? *family : NULL;
    }
    return *family ? MOE_OK : unknown_family(path, type ? type : architecture, err);
}

/* dir: where the checkpoint's other files are; NULL: there are none. */
static int read_plain(struct moe_config *config, const char *path, const char *dir,
                      const json_t *json, struct moe_err *err)
{
    const struct moe_family *family;
    moe_config_init(config);
    MOE_TRY(check_all_types(path, json, err));
    const json_t *outer = family_given(json, "thinker_config");
    const json_t *text = family_given(outer ? outer : json, "text_config");
    MOE_TRY(check_all_types(path, text, err));
    MOE_TRY(find_family(&family, path, json, err));
    bool nested = family->hf.in_text_config && json_is_object(text);
    MOE_TRY(family_check_quantization(path, json, family, err));
    if (nested)
        MOE_TRY(family_check_quantization(path, text, family, err));
    MOE_TRY(read_family(config, family, path, nested ? text : json, err));
    if (nested)
        MOE_TRY(
            moe_json_get_bool(path, json, "tie_word_embeddings", false, &config->tied_head, err));
    if (config->n_encoder)
        MOE_TRY(read_hf_start(path, json, "forced_bos_token_id", 1, &config->answer_start, err));
    /* generation_config.json lists more end tokens than config.json, so its come first. */
    if (dir)
        MOE_TRY(read_generation_config(config, dir, err));
    MOE_TRY(read_hf_eos(config, path, json, err));
    if (nested)
        MOE_TRY(read_hf_eos(config, path, text, err));
    moe_config_complete(config);
    return moe_config_check(config, path, err);
}

/* vLLM's speculators describe their layer apart. */
static int read_config(struct moe_config *config, const char *path, const char *dir,
                       const json_t *json, struct moe_err *err)
{
    const json_t *layer = json_object_get(json, "transformer_layer_config");
    if (!json_is_object(layer))
        return read_plain(config, path, dir, json, err);
    json_t *all = json_copy((json_t *)(uintptr_t)layer);
    int status = all && json_object_update(all, (json_t *)(uintptr_t)json) == 0
                     ? read_plain(config, path, dir, all, err)
                     : moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", path);
    json_decref(all);
    return status;
}

static int read_file(struct moe_config *config, const char *path, const char *dir,
                     struct moe_err *err)
{
    json_t *json;
    int status = moe_json_read(&json, path, MAX_CONFIG_BYTES, MOE_JSON_CONFIG_MEMORY, err);
    if (status == MOE_OK)
        status = read_config(config, path, dir, json, err);
    moe_json_free(json);
    return status;
}

int moe_config_read_hf(struct moe_config *config, const char *dir, struct moe_err *err)
{
    char *path = moe_path_join(dir, "config.json", err);
    int status = path ? read_file(config, path, dir, err) : MOE_ERR_MEMORY;
    free(path);
    return status;
}

int moe_config_read_hf_file(struct moe_config *config, const char *path, struct moe_err *err)
{
    return read_file(config, path, NULL, err);
}

int moe_config_read_hf_json(struct moe_config *config, const char *name, const struct json_t *json,
                            struct moe_err *err)
{
    return read_config(config, name, NULL, json, err);
}

/*
 * Checkpoints that are already quantized, by their config.json.
 */

/* What a checkpoint's quantizer wrote and fmt/tensor_pairs.c reads: the method, and the beginning
 * of the format's name; NULL: none is said, or any will do. */
static const struct {
    const char *method, *key, *format;
} read_quantizations[] = {
    {"fp8", NULL, NULL},
    {"mxfp8", NULL, NULL},
    {"gptq", "checkpoint_format", "gptq"},
    {"awq", "version", "gemm"},
    {"auto-round", "packing_format", "auto_round"},
    {"compressed-tensors", "format", "float-quantized"},
    {"compressed-tensors", "format", "pack-quantized"},
    {"compressed-tensors", "format", "int-quantized"},
    {"compressed-tensors", "format", "naive-quantized"},
    {"compressed-tensors", "format", "nvfp4-pack-quantized"},
    {"compressed-tensors", "format", "mxfp4-pack-quantized"},
    {"compressed-tensors", "format", "mixed-precision"},
    {"modelopt", NULL, NULL},
    {"bitsandbytes", NULL, NULL},
};

static bool is_read(const json_t *quantization, const char *method)
{
    bool read = false;
    for (size_t i = 0; i < sizeof read_quantizations / sizeof *read_quantizations; i++) {
        const char *key = read_quantizations[i].key, *format = read_quantizations[i].format;
        const char *said = key ? json_string_value(json_object_get(quantization, key)) : NULL;
        if (strcmp(method, read_quantizations[i].method) == 0)
            read = read || !said || strncmp(said, format, strlen(format)) == 0;
    }
    return read;
}

int family_check_quantization(const char *path, const json_t *json, const struct moe_family *family,
                              struct moe_err *err)
{
    const json_t *quantization = json_object_get(json, "quantization_config");
    const json_t *mlx = json_object_get(json, "quantization");
    const char *method = json_string_value(json_object_get(quantization, "quant_method"));
    if (!method && json_object_get(mlx, "group_size")) {
        quantization = mlx;
        method = "MLX";
    }
    if (!quantization || json_is_null(quantization))
        return MOE_OK;
    if (method &&
        (is_read(quantization, method) || (family->hf.reads_mxfp4 && strcmp(method, "mxfp4") == 0)))
        return MOE_OK;
    return moe_fail(err, MOE_ERR_UNSUPPORTED,
                    "%s: the checkpoint is already quantized ('quantization_config', %.60s) in a "
                    "way that is not read: FP8, GPTQ, AWQ (gemm), AutoRound, compressed-tensors, "
                    "NVFP4 (modelopt) and bitsandbytes are; use one of these, or the "
                    "original 16-bit one",
                    path, method ? method : "by an unnamed method");
}
