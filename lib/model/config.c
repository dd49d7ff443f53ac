#include "model/config.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "fmt/json.h"
#include "model/family.h"

/* ---- The description as JSON: one table for writing and reading ------------------------------ */

enum field_kind { FIELD_U32, FIELD_BOOL, FIELD_DOUBLE, FIELD_FLOAT };

struct field {
    const char *key;
    enum field_kind kind;
    size_t offset;
    uint32_t max; /* of FIELD_U32 */
};

#define FIELD(key, kind, max)                                                                      \
    {                                                                                              \
#key, kind, offsetof(struct moe_config, key), max                                          \
    }

enum { MAX_WIDTH = 1 << 24 };

static const struct field fields[] = {
    FIELD(n_layers, FIELD_U32, MOE_MAX_LAYERS),
    FIELD(hidden, FIELD_U32, MAX_WIDTH),
    FIELD(vocab, FIELD_U32, MAX_WIDTH),
    FIELD(context_max, FIELD_U32, MOE_MAX_CONTEXT),
    FIELD(n_heads, FIELD_U32, MOE_MAX_HEADS),
    FIELD(n_kv_heads, FIELD_U32, MOE_MAX_HEADS),
    FIELD(head_dim, FIELD_U32, 1 << 12),
    FIELD(qkv_bias, FIELD_BOOL, 0),
    FIELD(rope_theta, FIELD_DOUBLE, 0),
    FIELD(norm_eps, FIELD_FLOAT, 0),
    FIELD(tied_head, FIELD_BOOL, 0),
    FIELD(dense_ff, FIELD_U32, MAX_WIDTH),
    FIELD(n_experts, FIELD_U32, MOE_MAX_EXPERTS),
    FIELD(top_k, FIELD_U32, MOE_MAX_TOP_K),
    FIELD(expert_ff, FIELD_U32, MAX_WIDTH),
    FIELD(shared_ff, FIELD_U32, MAX_WIDTH),
    FIELD(shared_gate, FIELD_BOOL, 0),
    FIELD(norm_topk, FIELD_BOOL, 0),
};

enum { N_FIELDS = sizeof fields / sizeof fields[0] };

static void write_field(const struct moe_config *config, const struct field *f, struct moe_buf *out)
{
    const char *at = (const char *)config + f->offset;
    moe_buf_printf(out, ",\"%s\":", f->key);
    switch (f->kind) {
    case FIELD_U32:
        moe_buf_printf(out, "%" PRIu32, *(const uint32_t *)at);
        break;
    case FIELD_BOOL:
        moe_buf_text(out, *(const bool *)at ? "true" : "false");
        break;
    case FIELD_DOUBLE:
        moe_buf_printf(out, "%.17g", *(const double *)at);
        break;
    case FIELD_FLOAT:
        moe_buf_printf(out, "%.9g", (double)*(const float *)at);
        break;
    }
}

void moe_config_write(const struct moe_config *config, struct moe_buf *out)
{
    moe_buf_printf(out, "{\"family\":\"%s\"", config->family);
    for (int i = 0; i < N_FIELDS; i++)
        write_field(config, &fields[i], out);
    moe_buf_text(out, ",\"moe_layers\":[");
    const char *comma = "";
    for (uint32_t i = 0; i < config->n_layers; i++) {
        if (!config->layer_is_moe[i])
            continue;
        moe_buf_printf(out, "%s%" PRIu32, comma, i);
        comma = ",";
    }
    moe_buf_text(out, "],\"eos\":[");
    for (uint32_t i = 0; i < config->n_eos; i++)
        moe_buf_printf(out, "%s%" PRIu32, i ? "," : "", config->eos[i]);
    moe_buf_text(out, "]}");
}

static int read_field(struct moe_config *config, const struct field *f, const char *name,
                      const json_t *json, struct moe_err *err)
{
    char *at = (char *)config + f->offset;
    double value = 0;
    switch (f->kind) {
    case FIELD_U32:
        return moe_json_get_u32(name, json, f->key, f->max, true, (uint32_t *)at, err);
    case FIELD_BOOL:
        return moe_json_get_bool(name, json, f->key, true, (bool *)at, err);
    case FIELD_DOUBLE:
        return moe_json_get_double(name, json, f->key, true, (double *)at, err);
    case FIELD_FLOAT: {
        int status = moe_json_get_double(name, json, f->key, true, &value, err);
        *(float *)at = (float)value;
        return status;
    }
    }
    return MOE_OK;
}

static bool known_key(const char *key)
{
    for (int i = 0; i < N_FIELDS; i++)
        if (strcmp(key, fields[i].key) == 0)
            return true;
    return strcmp(key, "family") == 0 || strcmp(key, "moe_layers") == 0 || strcmp(key, "eos") == 0;
}

/* Reads array `key` of whole numbers below `limit`; `take` is called for each. */
static int read_numbers(struct moe_config *config, const char *name, const json_t *json,
                        const char *key, uint32_t limit, uint32_t max_count,
                        void (*take)(struct moe_config *config, uint32_t value),
                        struct moe_err *err)
{
    const json_t *array = json_object_get(json, key);
    if (!json_is_array(array) || json_array_size(array) > max_count)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' must be a list of at most %" PRIu32 " items",
                        name, key, max_count);
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *item = json_array_get(array, i);
        if (!json_is_integer(item) || json_integer_value(item) < 0 ||
            json_integer_value(item) >= (json_int_t)limit)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: '%s' item %zu must be a whole number below %" PRIu32, name, key, i,
                            limit);
        take(config, (uint32_t)json_integer_value(item));
    }
    return MOE_OK;
}

static void take_moe_layer(struct moe_config *config, uint32_t layer)
{
    config->layer_is_moe[layer] = 1;
}

static void take_eos(struct moe_config *config, uint32_t id)
{
    for (uint32_t i = 0; i < config->n_eos; i++)
        if (config->eos[i] == id)
            return;
    if (config->n_eos < MOE_MAX_EOS)
        config->eos[config->n_eos++] = id;
}

int moe_config_read(struct moe_config *config, const char *name, const void *text, uint64_t n,
                    struct moe_err *err)
{
    *config = (struct moe_config){0};
    json_t *json = moe_json_parse(name, text, n, err);
    if (!json)
        return MOE_ERR_FORMAT;
    int status = MOE_OK;
    const char *family = NULL, *key;
    json_t *value;
    if (!json_is_object(json)) {
        status = moe_fail(err, MOE_ERR_FORMAT, "%s: the model description is not an object", name);
        goto done;
    }
    json_object_foreach(json, key, value)
    {
        if (!known_key(key)) {
            status = moe_fail(err, MOE_ERR_VERSION,
                              "%s: unknown key '%s' (made by a newer version?)", name, key);
            goto done;
        }
    }
    status = moe_json_get_text(name, json, "family", true, &family, err);
    if (status == MOE_OK)
        snprintf(config->family, sizeof config->family, "%s", family);
    for (int i = 0; i < N_FIELDS && status == MOE_OK; i++)
        status = read_field(config, &fields[i], name, json, err);
    if (status == MOE_OK)
        status = read_numbers(config, name, json, "moe_layers", config->n_layers, config->n_layers,
                              take_moe_layer, err);
    if (status == MOE_OK)
        status = read_numbers(config, name, json, "eos", MAX_WIDTH, MOE_MAX_EOS, take_eos, err);
    if (status == MOE_OK)
        status = moe_config_check(config, name, err);
done:
    moe_json_free(json);
    return status;
}

/* ---- Checks ---------------------------------------------------------------------------------- */

struct range {
    const char *key;
    uint32_t value, low, high;
};

static int check_ranges(const char *name, const struct range *ranges, size_t n, struct moe_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (ranges[i].value < ranges[i].low || ranges[i].value > ranges[i].high)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: %s is %" PRIu32 ", expected %" PRIu32 " to %" PRIu32, name,
                            ranges[i].key, ranges[i].value, ranges[i].low, ranges[i].high);
    return MOE_OK;
}

int moe_config_check(const struct moe_config *c, const char *name, struct moe_err *err)
{
    uint32_t n_moe = 0;
    for (uint32_t i = 0; i < c->n_layers && i < MOE_MAX_LAYERS; i++)
        n_moe += c->layer_is_moe[i];
    const struct range basic[] = {
        {"the number of layers", c->n_layers, 1, MOE_MAX_LAYERS},
        {"the hidden width", c->hidden, 1, MAX_WIDTH},
        {"the vocabulary", c->vocab, 1, MAX_WIDTH},
        {"the context length", c->context_max, 1, MOE_MAX_CONTEXT},
        {"the number of attention heads", c->n_heads, 1, MOE_MAX_HEADS},
        {"the number of key/value heads", c->n_kv_heads, 1, c->n_heads},
        {"the head width", c->head_dim, 2, 1 << 12},
    };
    int status = check_ranges(name, basic, sizeof basic / sizeof basic[0], err);
    if (status != MOE_OK)
        return status;
    if (c->n_heads % c->n_kv_heads != 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " attention heads cannot share %" PRIu32 " key/value heads",
                        name, c->n_heads, c->n_kv_heads);
    if (c->head_dim % 2 != 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: the head width %" PRIu32 " is odd", name,
                        c->head_dim);
    if (!(c->norm_eps > 0 && c->norm_eps < 1) || !(c->rope_theta > 1 && c->rope_theta < 1e12))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: norm epsilon %g or rope theta %g makes no sense",
                        name, (double)c->norm_eps, c->rope_theta);
    if (n_moe) {
        const struct range moe[] = {
            {"the number of experts", c->n_experts, 1, MOE_MAX_EXPERTS},
            {"the experts per token", c->top_k, 1,
             c->n_experts < MOE_MAX_TOP_K ? c->n_experts : MOE_MAX_TOP_K},
            {"an expert's width", c->expert_ff, 1, MAX_WIDTH},
        };
        status = check_ranges(name, moe, sizeof moe / sizeof moe[0], err);
        if (status != MOE_OK)
            return status;
    }
    if (n_moe < c->n_layers && c->dense_ff == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: a dense layer needs a feed-forward width", name);
    return MOE_OK;
}

/* ---- From a Hugging Face directory ----------------------------------------------------------- */

enum { MAX_CONFIG_BYTES = 16 << 20 };

/* "eos_token_id": a number or a list of numbers. */
static int read_hf_eos(struct moe_config *config, const char *path, const json_t *json,
                       struct moe_err *err)
{
    const json_t *eos = json_object_get(json, "eos_token_id");
    if (!eos || json_is_null(eos))
        return MOE_OK;
    if (json_is_array(eos))
        return read_numbers(config, path, json, "eos_token_id", MAX_WIDTH, MOE_MAX_EOS, take_eos,
                            err);
    if (!json_is_integer(eos) || json_integer_value(eos) < 0 ||
        json_integer_value(eos) >= MAX_WIDTH)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'eos_token_id' is not a token id", path);
    take_eos(config, (uint32_t)json_integer_value(eos));
    return MOE_OK;
}

static int read_generation_config(struct moe_config *config, const char *dir, struct moe_err *err)
{
    char *path = moe_path_join(dir, "generation_config.json", err);
    if (!path)
        return MOE_ERR_MEMORY;
    int status = MOE_OK;
    if (moe_path_exists(path)) {
        json_t *json = moe_json_read(path, MAX_CONFIG_BYTES, err);
        status = json ? read_hf_eos(config, path, json, err) : MOE_ERR_FORMAT;
        moe_json_free(json);
    }
    free(path);
    return status;
}

static int unknown_family(const char *path, const char *type, struct moe_err *err)
{
    struct moe_buf known = {0};
    const struct moe_family *family;
    for (int i = 0; (family = moe_family_at(i)) != NULL; i++)
        moe_buf_printf(&known, "%s%s", i ? ", " : "", family->name);
    int status =
        moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: model type '%s' is not implemented (known: %s)",
                 path, type, known.data ? (const char *)known.data : "");
    moe_buf_release(&known);
    return status;
}

int moe_config_read_hf(struct moe_config *config, const char *dir, struct moe_err *err)
{
    *config = (struct moe_config){0};
    char *path = moe_path_join(dir, "config.json", err);
    if (!path)
        return MOE_ERR_MEMORY;
    int status = MOE_ERR_FORMAT;
    const char *type = NULL;
    json_t *json = moe_json_read(path, MAX_CONFIG_BYTES, err);
    if (!json)
        goto done;
    status = moe_json_get_text(path, json, "model_type", true, &type, err);
    if (status != MOE_OK)
        goto done;
    const struct moe_family *family = moe_family_find(type);
    if (!family) {
        status = unknown_family(path, type, err);
        goto done;
    }
    if (json_object_get(json, "quantization_config")) {
        status = moe_fail(err, MOE_ERR_UNSUPPORTED,
                          "%s: the checkpoint is already quantized ('quantization_config'); use "
                          "the original 16-bit one",
                          path);
        goto done;
    }
    snprintf(config->family, sizeof config->family, "%s", family->name);
    status = family->read_hf(config, path, json, err);
    /* generation_config.json knows more ends of text than config.json: its come first. */
    if (status == MOE_OK)
        status = read_generation_config(config, dir, err);
    if (status == MOE_OK)
        status = read_hf_eos(config, path, json, err);
    if (status == MOE_OK)
        status = moe_config_check(config, path, err);
done:
    moe_json_free(json);
    free(path);
    return status;
}
