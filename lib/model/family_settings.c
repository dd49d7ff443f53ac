/* Settings and switches of families (family.h): reading them, and lists and numbers that several
 * families have. */
#include "model/family_internal.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "fmt/json.h"
#include "model/config_fields.h"

void family_set_constants(struct moe_config *config, const struct moe_setting *settings)
{
    for (; settings && settings->member; settings++)
        if (!settings->key)
            moe_config_field_set(config, moe_config_field(settings->member), settings->value);
}

/* Applies the setting's use to the member, which holds the number read or a default. `old`: the
 * member's value before. */
static int use_value(struct moe_config *config, const struct moe_setting *s,
                     const struct moe_config_field *field, double old, const char *path,
                     const char *key, struct moe_err *err)
{
    double value = moe_config_field_get(config, field);
    if (s->use == MOE_AS_IS || (s->use == MOE_UNLESS_ZERO && value != 0))
        return MOE_OK;
    if (s->use == MOE_UNLESS_ZERO)
        moe_config_field_set(config, field, old);
    else if (value == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' is 0, expected another number", path, key);
    else if (s->use == MOE_RECIPROCAL)
        moe_config_field_set(config, field, (double)(1 / (float)value));
    return MOE_OK;
}

int family_read_json(struct moe_config *config, const struct moe_setting *settings,
                     const char *path, const json_t *json, struct moe_err *err)
{
    for (const struct moe_setting *s = settings; s && s->member; s++) {
        if (!s->key)
            continue;
        const struct moe_config_field *field = moe_config_field(s->member);
        double old = moe_config_field_get(config, field);
        if (s->value != 0)
            moe_config_field_set(config, field, s->value);
        if (field->kind == MOE_FIELD_U32 && json_is_null(json_object_get(json, s->key)))
            moe_config_field_set(config, field, 0);
        MOE_TRY(moe_config_field_read(config, field, path, json, s->key, s->required, err));
        MOE_TRY(use_value(config, s, field, old, path, s->key, err));
    }
    return MOE_OK;
}

/* A choice is never read: GGUF has none. */
static int read_gguf_field(struct moe_config *config, const struct moe_config_field *field,
                           const struct moe_gguf *gguf, const char *key, bool required,
                           struct moe_err *err)
{
    char *at = (char *)config + field->offset;
    double value = moe_config_field_get(config, field);
    if (field->kind == MOE_FIELD_U32)
        return moe_gguf_get_u32(gguf, key, field->max, required, (uint32_t *)at, err);
    if (field->kind == MOE_FIELD_BOOL)
        return moe_gguf_get_bool(gguf, key, required, (bool *)at, err);
    MOE_TRY(moe_gguf_get_double(gguf, key, required, &value, err));
    moe_config_field_set(config, field, value);
    return MOE_OK;
}

int family_read_gguf(struct moe_config *config, const struct moe_setting *settings,
                     const struct moe_gguf *gguf, struct moe_err *err)
{
    for (const struct moe_setting *s = settings; s && s->member; s++) {
        if (!s->key)
            continue;
        const struct moe_config_field *field = moe_config_field(s->member);
        struct moe_gguf_key key = moe_gguf_arch_key(gguf, s->key);
        double old = moe_config_field_get(config, field);
        if (s->value != 0)
            moe_config_field_set(config, field, s->value);
        MOE_TRY(read_gguf_field(config, field, gguf, key.text, s->required, err));
        MOE_TRY(use_value(config, s, field, old, moe_gguf_path(gguf), key.text, err));
    }
    return MOE_OK;
}

/* The value as it is usually written. */
static void value_text(const json_t *value, char *out, size_t room)
{
    if (json_is_string(value))
        snprintf(out, room, "%s", json_string_value(value));
    else if (json_is_boolean(value))
        snprintf(out, room, "%s", json_is_true(value) ? "true" : "false");
    else if (json_is_number(value))
        snprintf(out, room, "%.9g", json_number_value(value));
    else
        snprintf(out, room, "%s", json_is_array(value) ? "a list" : "an object");
}

bool family_is_one_of(const char *text, const char *names)
{
    for (size_t n; *names; names += names[n] ? n + 1 : n) {
        n = strcspn(names, "|");
        if (strlen(text) == n && memcmp(text, names, n) == 0)
            return true;
    }
    return false;
}

static int refuse_setting(const struct moe_only *only, const char *path, const char *key,
                          const char *text, struct moe_err *err)
{
    return moe_fail(err, MOE_ERR_UNSUPPORTED,
                    "%s: '%s' is %s, only %.*s is implemented for this family", path, key, text,
                    (int)strcspn(only->value, "|"), only->value);
}

int family_check_only(const struct moe_only *only, const char *path, const json_t *json,
                      struct moe_err *err)
{
    for (; only && only->key; only++) {
        char text[64];
        const json_t *value = json_object_get(json, only->key);
        if (!value || json_is_null(value))
            continue;
        value_text(value, text, sizeof text);
        if (!family_is_one_of(text, only->value))
            return refuse_setting(only, path, only->key, text, err);
    }
    return MOE_OK;
}

int family_check_only_gguf(const struct moe_only *only, const struct moe_gguf *gguf,
                           struct moe_err *err)
{
    for (; only && only->key; only++) {
        char text[64] = "a list";
        const char *said;
        double number;
        bool truth;
        struct moe_gguf_key key = moe_gguf_arch_key(gguf, only->key);
        if (!moe_gguf_has(gguf, key.text))
            continue;
        if (moe_gguf_get_double(gguf, key.text, true, &number, NULL) == MOE_OK)
            snprintf(text, sizeof text, "%.9g", number);
        else if (moe_gguf_get_bool(gguf, key.text, true, &truth, NULL) == MOE_OK)
            snprintf(text, sizeof text, "%s", truth ? "true" : "false");
        else if (moe_gguf_get_text(gguf, key.text, true, &said, NULL) == MOE_OK)
            snprintf(text, sizeof text, "%s", said);
        if (!family_is_one_of(text, only->value))
            return refuse_setting(only, moe_gguf_path(gguf), key.text, text, err);
    }
    return MOE_OK;
}

struct moe_gguf_key moe_gguf_arch_key(const struct moe_gguf *gguf, const char *name)
{
    struct moe_gguf_key key;
    const char *arch = "?";
    moe_gguf_get_text(gguf, "general.architecture", false, &arch, NULL);
    snprintf(key.text, sizeof key.text, "%.60s.%.60s", arch, name);
    return key;
}

void moe_windows_apply(struct moe_config *config, enum moe_window_layers layers,
                       uint32_t max_layers)
{
    /* gpt-oss has windows in any case: moe_config_check refuses one of no width. */
    if (config->window == 0 && layers != MOE_WINDOW_EVEN)
        return;
    for (uint32_t i = 0; i < config->n_layers; i++) {
        bool even = i % 2 == 0;
        config->layers[i].windowed = layers == MOE_WINDOW_ALL ||
                                     (layers == MOE_WINDOW_EVEN && even) ||
                                     (layers == MOE_WINDOW_FROM && i >= max_layers) ||
                                     (layers == MOE_WINDOW_EVEN_BELOW && even && i < max_layers);
    }
}

/* ---- What families read in the same way ---- */

const json_t *family_given(const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);
    return json_is_null(value) ? NULL : value;
}

int family_check_drafter(const struct moe_config *c, uint32_t width, bool listed, const char *path,
                         struct moe_err *err)
{
    if (width != c->hidden)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: a head of a width of %" PRIu32 " that reads streams of %" PRIu32
                        " is not implemented: both must be the same",
                        path, c->hidden, width);
    if (listed && c->reads[0] + c->reads[1] + c->reads[2] == 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: a head that reads what comes into layer 0 three times is not "
                        "implemented",
                        path);
    return MOE_OK;
}

int family_read_numbers(const char *path, const json_t *json, const struct family_number *numbers,
                        size_t n, struct moe_err *err)
{
    for (size_t i = 0; i < n; i++)
        MOE_TRY(moe_json_get_u32(path, json, numbers[i].key, numbers[i].max, false, numbers[i].out,
                                 err));
    return MOE_OK;
}

int family_read_words(struct moe_config *c, size_t member, const char *path, const json_t *list,
                      const char *key, const struct family_word *words, bool longer,
                      struct moe_err *err)
{
    size_t n = json_array_size(list);
    if (n < c->n_layers || (n > c->n_layers && !longer))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' must be a list of %" PRIu32 " layers", path,
                        key, c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const char *text = json_string_value(json_array_get(list, i));
        const struct family_word *word = words;
        while (word->word && !(text && strcmp(text, word->word) == 0))
            word++;
        if (!word->word)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: '%s' item %" PRIu32 " is '%.60s', which is not implemented", path,
                            key, i, text ? text : "?");
        moe_config_set_layers(c, member, i, i + 1, word->value);
    }
    return MOE_OK;
}

int family_read_limits(struct moe_config *c, size_t member, const char *path, const json_t *json,
                       const char *key, struct moe_err *err)
{
    const json_t *list = family_given(json, key);
    if (!list)
        return MOE_OK;
    if (json_array_size(list) < c->n_layers || c->n_layers > MOE_MAX_LAYERS)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' must be a list of %" PRIu32 " layers", path,
                        key, c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const json_t *limit = json_array_get(list, i);
        if (!json_is_null(limit) && !(json_is_number(limit) && json_number_value(limit) >= 0))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: '%s' item %" PRIu32 " is neither null nor a limit", path, key, i);
        *(float *)(void *)((char *)&c->layers[i] + member) = (float)json_number_value(limit);
    }
    return MOE_OK;
}

int family_read_layers(struct moe_config *c, size_t member, uint8_t value, const char *path,
                       const json_t *list, const char *key, struct moe_err *err)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        json_int_t layer = json_is_integer(item) ? json_integer_value(item) : -1;
        if (layer < 0 || layer >= (json_int_t)c->n_layers)
            return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' names no layer at item %zu", path, key,
                            i);
        moe_config_set_layers(c, member, (uint32_t)layer, (uint32_t)layer + 1, value);
    }
    return MOE_OK;
}

int family_set_shared(struct moe_config *c, uint32_t n, const char *path, struct moe_err *err)
{
    uint64_t width = (uint64_t)n * c->expert_ff;
    if (width > MOE_MAX_DIM)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " shared experts of width %" PRIu32
                        ", expected at most %d together",
                        path, n, c->expert_ff, MOE_MAX_DIM);
    c->shared_ff = (uint32_t)width;
    return MOE_OK;
}

int family_by_kind(const struct moe_config *c, const uint32_t *numbers, const char *path,
                   const char *key, uint32_t of_kind[2], struct moe_err *err)
{
    of_kind[0] = of_kind[1] = 0;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        uint32_t *n = &of_kind[c->layers[i].windowed];
        if (*n != 0 && *n != numbers[i])
            return moe_fail(
                err, MOE_ERR_UNSUPPORTED,
                "%s: '%s' differs between layer %" PRIu32 " and other %s layers (%" PRIu32
                " and %" PRIu32 "), which is not implemented",
                path, key, i, c->layers[i].windowed ? "local" : "global", numbers[i], *n);
        *n = numbers[i];
    }
    return MOE_OK;
}
