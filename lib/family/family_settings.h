/*
 * Reading a family's settings (family.h) from config.json and from GGUF metadata. Internal to
 * lib/family.
 */
#ifndef MOE_FAMILY_FAMILY_SETTINGS_H
#define MOE_FAMILY_FAMILY_SETTINGS_H

#include "family/family.h"
#include "fmt/gguf.h"

/* Sets the members of settings without keys. A list may be NULL, here and below. */
void family_set_constants(struct moe_config *config, const struct moe_setting *settings);

/* Reads the settings with keys. Errors name file and key. */
int family_read_json(struct moe_config *config, const struct moe_setting *settings,
                     const char *path, const struct json_t *json, struct moe_err *err);
int family_read_gguf(struct moe_config *config, const struct moe_setting *settings,
                     const struct moe_gguf *gguf, struct moe_err *err);

/* Refuses what a config.json or a GGUF file has and the family does not implement. */
int family_check_only(const struct moe_only *only, const char *path, const struct json_t *json,
                      struct moe_err *err);
int family_check_only_gguf(const struct moe_only *only, const struct moe_gguf *gguf,
                           struct moe_err *err);

/* "ARCH.NAME", for the moe_gguf_get functions; room for any key we ask for. */
struct moe_gguf_key {
    char text[128];
};
struct moe_gguf_key moe_gguf_arch_key(const struct moe_gguf *gguf, const char *name);

/* Refuses quantized checkpoints whose weights are not read: they are where they are FP8 or packed
 * INT4 (fmt/checkpoint.h has the ways of it), or MXFP4 and the family is published so.
 * MOE_ERR_UNSUPPORTED. */
int family_check_quantization(const char *path, const struct json_t *json,
                              const struct moe_family *family, struct moe_err *err);

#endif
