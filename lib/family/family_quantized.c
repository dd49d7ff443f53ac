/*
 * Checkpoints that are quantized already, as their config.json says.
 */
#include <jansson.h>
#include <string.h>

#include "family/family_settings.h"

/* Whether what compressed-tensors packs is what is read of it: symmetric INT4, in one group of
 * tensors and in their order. */
static bool packs_int4(const json_t *quantization)
{
    const json_t *groups = json_object_get(quantization, "config_groups");
    const json_t *weights = json_object_get(json_object_get(groups, "group_0"), "weights");
    const char *type = json_string_value(json_object_get(weights, "type"));
    const json_t *order = json_object_get(weights, "actorder");
    return json_object_size(groups) == 1 && type && strcmp(type, "int") == 0 &&
           json_integer_value(json_object_get(weights, "num_bits")) == 4 &&
           json_is_true(json_object_get(weights, "symmetric")) &&
           (!order || json_is_null(order) || json_is_false(order));
}

int family_check_quantization(const char *path, const json_t *json, const struct moe_family *family,
                              struct moe_err *err)
{
    const json_t *quantization = json_object_get(json, "quantization_config");
    const char *method = json_string_value(json_object_get(quantization, "quant_method"));
    const char *format = json_string_value(json_object_get(quantization, "format"));
    if (!quantization || json_is_null(quantization))
        return MOE_OK;
    if (method &&
        ((family->hf.reads_mxfp4 && strcmp(method, "mxfp4") == 0) || strcmp(method, "fp8") == 0 ||
         (strcmp(method, "compressed-tensors") == 0 && format &&
          (strcmp(format, "float-quantized") == 0 ||
           (strcmp(format, "pack-quantized") == 0 && packs_int4(quantization))))))
        return MOE_OK;
    if (format && strcmp(format, "pack-quantized") == 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: the checkpoint's weights are packed in another way than symmetric "
                        "INT4 in their own order ('config_groups' in 'quantization_config'), which "
                        "alone is read; use the original 16-bit one",
                        path);
    return moe_fail(err, MOE_ERR_UNSUPPORTED,
                    "%s: the checkpoint is already quantized ('quantization_config', %.60s); use "
                    "the original 16-bit one",
                    path, method ? method : "by an unnamed method");
}
