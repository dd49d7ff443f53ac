/* The model description from a Hugging Face directory: through the family that config.json names.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "fmt/json.h"
#include "model/config.h"
#include "model/family.h"

enum { MAX_CONFIG_BYTES = 16 << 20 };

/* A token that ends a text, unless it is listed already. */
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
    int status = MOE_OK;
    for (size_t i = 0; i < json_array_size(eos) && status == MOE_OK; i++)
        status = add_eos(config, path, json_array_get(eos, i), err);
    return status;
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

/* Weights that are quantized already are read where they are MXFP4 and the family has such. */
static int check_quantization(const char *path, const json_t *json, const struct moe_family *family,
                              struct moe_err *err)
{
    const json_t *quantization = json_object_get(json, "quantization_config");
    const char *method = json_string_value(json_object_get(quantization, "quant_method"));
    if (!quantization || json_is_null(quantization) ||
        (family->hf_reads_mxfp4 && method && strcmp(method, "mxfp4") == 0))
        return MOE_OK;
    return moe_fail(err, MOE_ERR_UNSUPPORTED,
                    "%s: the checkpoint is already quantized ('quantization_config', %.60s); use "
                    "the original 16-bit one",
                    path, method ? method : "by an unnamed method");
}

/* dir: where the checkpoint's other files are; NULL: there are none. */
static int read_config(struct moe_config *config, const char *path, const char *dir,
                       struct moe_err *err)
{
    moe_config_init(config);
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
    status = check_quantization(path, json, family, err);
    if (status != MOE_OK)
        goto done;
    snprintf(config->family, sizeof config->family, "%s", family->name);
    status = family->read_hf(config, path, json, err);
    /* generation_config.json knows more ends of text than config.json: its come first. */
    if (status == MOE_OK && dir)
        status = read_generation_config(config, dir, err);
    if (status == MOE_OK)
        status = read_hf_eos(config, path, json, err);
    if (status == MOE_OK) {
        moe_config_complete(config);
        status = moe_config_check(config, path, err);
    }
done:
    moe_json_free(json);
    return status;
}

int moe_config_read_hf(struct moe_config *config, const char *dir, struct moe_err *err)
{
    char *path = moe_path_join(dir, "config.json", err);
    int status = path ? read_config(config, path, dir, err) : MOE_ERR_MEMORY;
    free(path);
    return status;
}

int moe_config_read_hf_file(struct moe_config *config, const char *path, struct moe_err *err)
{
    return read_config(config, path, NULL, err);
}
