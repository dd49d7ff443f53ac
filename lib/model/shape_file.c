/* Reading shape files, and sizes by them (shape_file.h). */
#include "model/shape_file.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "fmt/json.h"
#include "model/read.h"
#include "quant/quantize.h"

enum { MAX_BYTES = 16 << 20, MAX_VALUES = 1 << 28 };
#define MAX_PARAMETERS 1e12

/* ---- Reading ---- */

static int read_text(const char *name, const json_t *from, const char *key, bool required,
                     char out[MOE_SHAPE_TEXT], struct moe_err *err)
{
    const char *text = NULL;
    MOE_TRY(moe_json_get_text(name, from, key, required, &text, err));
    if (text && strlen(text) >= MOE_SHAPE_TEXT)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' must be shorter than %d bytes", name, key,
                        MOE_SHAPE_TEXT);
    if (text)
        strcpy(out, text);
    return MOE_OK;
}

static int read_parameters(const char *name, const json_t *from, const char *key, bool required,
                           double *out, struct moe_err *err)
{
    MOE_TRY(moe_json_get_double(name, from, key, required, out, err));
    if (!(*out >= 0 && *out <= MAX_PARAMETERS))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' must be from 0 to %g", name, key,
                        MAX_PARAMETERS);
    return MOE_OK;
}

static int read_layers(const char *name, const json_t *from, struct moe_shape_layers *out,
                       struct moe_err *err)
{
    double parameters = 0;
    MOE_TRY(read_text(name, from, "kind", true, out->kind, err));
    MOE_TRY(moe_json_get_u32(name, from, "count", MOE_MAX_LAYERS, true, &out->count, err));
    MOE_TRY(read_parameters(name, from, "attention_parameters", true, &parameters, err));
    MOE_TRY(moe_json_get_u32(name, from, "kv_values", MAX_VALUES, true, &out->kv_values, err));
    MOE_TRY(moe_json_get_u32(name, from, "window", MOE_MAX_CONTEXT, false, &out->window, err));
    MOE_TRY(
        moe_json_get_u32(name, from, "state_values", MAX_VALUES, false, &out->state_values, err));
    out->attention_parameters = (uint64_t)parameters;
    return MOE_OK;
}

static int read_kinds(struct moe_shape_file *out, const char *name, const json_t *list,
                      struct moe_err *err)
{
    uint64_t layers = 0;
    if (!json_is_array(list) || json_array_size(list) > MOE_SHAPE_MAX_KINDS)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'layers' must be a list of at most %d kinds",
                        name, MOE_SHAPE_MAX_KINDS);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_object(item))
            return moe_fail(err, MOE_ERR_FORMAT, "%s: 'layers' must be a list of objects", name);
        MOE_TRY(read_layers(name, item, &out->kinds[out->n_kinds], err));
        layers += out->kinds[out->n_kinds++].count;
    }
    if (out->n_kinds && layers != out->config.n_layers)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'layers' are %" PRIu64 " in all, the model has %" PRIu32, name, layers,
                        out->config.n_layers);
    if (out->n_kinds && out->config.n_encoder)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'layers' of a model with an encoder", name);
    return MOE_OK;
}

/* Reads the settings, or those given as a substitute for an unknown family's. */
static int read_config(struct moe_shape_file *out, const char *name, json_t *json, json_t *settings,
                       struct moe_err *err)
{
    json_t *merged = NULL;
    if (!settings)
        return moe_config_read_hf_json(&out->config, name, json, err);
    if (!json_is_object(settings))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'as' must be an object", name);
    int status;
    MOE_STEP(moe_json_copy(&merged, json, err));
    if (json_object_update(merged, settings) != 0)
        MOE_STEP(moe_fail(err, MOE_ERR_MEMORY, "out of memory"));
    MOE_STEP(moe_config_read_hf_json(&out->config, name, merged, err));
out:
    moe_json_free(merged);
    return status;
}

static int read_shape(struct moe_shape_file *out, const char *name, json_t *json,
                      struct moe_err *err)
{
    json_t *shape = json_object_get(json, "moe_shape"), *settings, *kinds;
    if (shape && !json_is_object(shape))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'moe_shape' must be an object", name);
    settings = json_object_get(shape, "as");
    kinds = json_object_get(shape, "layers");
    MOE_TRY(read_config(out, name, json, settings, err));
    MOE_TRY(shape ? read_text(name, shape, "name", false, out->name, err) : MOE_OK);
    if (shape)
        MOE_TRY(read_text(name, shape, "why", false, out->why, err));
    if (shape)
        MOE_TRY(read_parameters(name, shape, "parameters", false, &out->parameters, err));
    if (shape)
        MOE_TRY(moe_json_get_bool(name, shape, "runs", false, &out->runs, err));
    if (out->runs && (settings || kinds))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: '%s' is for models that do not run ('runs' must be false)", name,
                        settings ? "as" : "layers");
    if (!out->runs && !out->why[0])
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'runs' is false, and 'why' is missing", name);
    if (kinds)
        MOE_TRY(read_kinds(out, name, kinds, err));
    return MOE_OK;
}

int moe_shape_file_read(struct moe_shape_file *out, const char *path, struct moe_err *err)
{
    json_t *json = NULL;
    *out = (struct moe_shape_file){.runs = true};
    int status = moe_json_read(&json, path, MAX_BYTES, MOE_JSON_CONFIG_MEMORY, err);
    if (status == MOE_OK)
        status = read_shape(out, path, json, err);
    moe_json_free(json);
    return status;
}

/* ---- What follows ---- */

/* Bytes of this many weights in matrices as wide as the model. */
static uint64_t weights_bytes(const struct moe_config *c, uint64_t parameters, uint32_t bits,
                              uint32_t group)
{
    struct moe_layout layout = moe_quant_layout_of(moe_quant_method_find("blocks"), (int)bits,
                                                   c->hidden, group, MOE_LAYOUT_BF16);
    return moe_layout_bytes(layout, (uint32_t)(parameters / c->hidden), c->hidden);
}

int moe_shape_file_bytes(struct moe_shape_bytes *out, const struct moe_shape_file *shape,
                         struct moe_bits bits, uint32_t dense_bits, uint32_t group,
                         struct moe_err *err)
{
    const struct moe_config *c = &shape->config;
    int status = moe_shape_bytes(out, c, bits, dense_bits, group, err);
    if (status != MOE_OK || shape->n_kinds == 0)
        return status;
    uint64_t theirs = out->attention - out->router, own = 0, state = 0;
    uint64_t standing = c->n_layers * out->attention_parameters;
    for (uint32_t i = 0; i < shape->n_kinds; i++) {
        const struct moe_shape_layers *k = &shape->kinds[i];
        own += k->count * weights_bytes(c, k->attention_parameters, dense_bits, group);
        state += k->count * 2 * sizeof(float) * (uint64_t)k->state_values;
        out->parameters += k->count * k->attention_parameters;
    }
    out->parameters -= standing;
    out->dense = out->dense - c->n_layers * theirs + own;
    /* A layer takes as long as the mean of all. */
    out->attention = out->router + (own + state) / c->n_layers;
    out->attention_parameters = 0;
    for (uint32_t i = 0; i < shape->n_kinds; i++)
        out->attention_parameters += shape->kinds[i].count * shape->kinds[i].attention_parameters;
    out->attention_parameters /= c->n_layers;
    out->kv_position = moe_shape_file_kv_bytes(shape, 1, sizeof(float));
    return MOE_OK;
}

uint64_t moe_shape_file_kv_bytes(const struct moe_shape_file *shape, uint32_t positions,
                                 double cell_bytes)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < shape->n_kinds; i++) {
        const struct moe_shape_layers *k = &shape->kinds[i];
        uint64_t kept = k->window && k->window < positions ? k->window : positions;
        uint64_t cells = (uint64_t)ceil((double)(kept * k->kv_values) * cell_bytes);
        bytes += k->count * (cells + k->state_values * sizeof(float));
    }
    return bytes;
}
