/* What GGUF files say layer by layer. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "family/family_gguf.h"
#include "family/family_settings.h"

const struct moe_tensor *family_gguf_tensor(const struct moe_checkpoint *ck, const char *format,
                                            uint32_t layer)
{
    char name[128];
    const char *mark = strstr(format, "%u");
    if (!mark)
        return moe_checkpoint_find(ck, format);
    snprintf(name, sizeof name, "%.*s%" PRIu32 "%s", (int)(mark - format), format, layer, mark + 2);
    return moe_checkpoint_find(ck, name);
}

static int take_number(const struct moe_gguf *gguf, const char *key,
                       const struct moe_gguf_array *array, uint64_t i, uint32_t most, uint32_t *out,
                       struct moe_err *err)
{
    double value = moe_gguf_array_number(array, i);
    if (!(value >= 0 && value <= most) || value != floor(value))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: key '%.100s' is %.17g for layer %" PRIu64 ", 0 to %" PRIu32
                        " is possible",
                        moe_gguf_path(gguf), key, value, i, most);
    *out = (uint32_t)value;
    return MOE_OK;
}

bool family_gguf_is_list(const struct moe_gguf *gguf, const char *name)
{
    struct moe_gguf_array array;
    return moe_gguf_get_array(gguf, moe_gguf_arch_key(gguf, name).text, true, &array, NULL) ==
               MOE_OK &&
           !moe_gguf_array_is_text(&array);
}

int family_gguf_by_layer(const struct moe_config *c, const struct moe_gguf *gguf, const char *name,
                         uint32_t most, uint32_t out[MOE_MAX_LAYERS], struct moe_err *err)
{
    struct moe_gguf_key key = moe_gguf_arch_key(gguf, name);
    struct moe_gguf_array array = {0};
    uint32_t all = 0;
    if (!moe_gguf_has(gguf, key.text))
        return MOE_OK;
    bool listed = family_gguf_is_list(gguf, name);
    int status = listed ? moe_gguf_get_array(gguf, key.text, true, &array, err)
                        : moe_gguf_get_u32(gguf, key.text, most, true, &all, err);
    if (status == MOE_OK && listed &&
        (array.n < c->n_layers || array.n > c->n_layers + c->n_beyond))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: key '%.100s' has %" PRIu64 " numbers for %" PRIu32 " layers",
                        moe_gguf_path(gguf), key.text, array.n, c->n_layers);
    for (uint32_t i = 0; i < c->n_layers && status == MOE_OK; i++)
        if (listed)
            status = take_number(gguf, key.text, &array, i, most, &out[i], err);
        else
            out[i] = all;
    return status;
}

int family_gguf_largest(const struct moe_gguf *gguf, const char *name, uint32_t most, uint32_t *out,
                        struct moe_err *err)
{
    struct moe_gguf_key key = moe_gguf_arch_key(gguf, name);
    struct moe_gguf_array array;
    int status = moe_gguf_get_array(gguf, key.text, true, &array, err);
    *out = 0;
    for (uint64_t i = 0; i < array.n && status == MOE_OK; i++) {
        uint32_t number = 0;
        status = take_number(gguf, key.text, &array, i, most, &number, err);
        *out = number > *out ? number : *out;
    }
    return status;
}

int family_gguf_windows(struct moe_config *c, const struct moe_gguf *gguf, uint32_t every,
                        struct moe_err *err)
{
    const char *name = "attention.sliding_window_pattern";
    struct moe_gguf_key key = moe_gguf_arch_key(gguf, name);
    uint32_t windowed[MOE_MAX_LAYERS];
    bool listed = family_gguf_is_list(gguf, name);
    int status = listed ? family_gguf_by_layer(c, gguf, name, 1, windowed, err)
                        : moe_gguf_get_u32(gguf, key.text, MOE_MAX_LAYERS, every == 0, &every, err);
    if (status == MOE_OK && !listed && every == 0)
        status = moe_fail(err, MOE_ERR_FORMAT, "%s: key '%.100s' 0 makes no sense",
                          moe_gguf_path(gguf), key.text);
    for (uint32_t i = 0; i < c->n_layers && status == MOE_OK; i++)
        c->layer_is_windowed[i] = listed ? windowed[i] != 0 : (i + 1) % every != 0;
    return status;
}
