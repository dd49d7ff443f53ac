/*
 * The members of struct moe_config that are one number or switch, as a table: packs name them as
 * they are named here, config.json and GGUF by keys of theirs (family_internal.h). For lib/model
 * only.
 */
#ifndef MOE_MODEL_CONFIG_FIELDS_H
#define MOE_MODEL_CONFIG_FIELDS_H

#include <stddef.h>

#include "model/config.h"

struct json_t;

enum moe_field_kind {
    MOE_FIELD_U32,
    MOE_FIELD_BOOL,
    MOE_FIELD_DOUBLE,
    MOE_FIELD_FLOAT,
    MOE_FIELD_CHOICE
};

struct moe_config_field {
    const char *name; /* of the member, and its key in packs */
    enum moe_field_kind kind;
    bool optional; /* not written where it is what moe_config_init sets */
    size_t offset;
    uint32_t max;               /* of MOE_FIELD_U32 */
    const char *const *choices; /* of MOE_FIELD_CHOICE, by value; NULL ends them */
};

/* The field at an offset, where there must be one. */
const struct moe_config_field *moe_config_field(size_t offset);

double moe_config_field_get(const struct moe_config *config, const struct moe_config_field *field);
void moe_config_field_set(struct moe_config *config, const struct moe_config_field *field,
                          double value);

/* Reads member `key` of an object into the field, as moe_json_get_u32 does. */
int moe_config_field_read(struct moe_config *config, const struct moe_config_field *field,
                          const char *name, const struct json_t *json, const char *key,
                          bool required, struct moe_err *err);

#endif
