/*
 * Reading a model's description from a checkpoint, by the family that the checkpoint names.
 */
#ifndef MOE_MODEL_READ_H
#define MOE_MODEL_READ_H

#include "base/err.h"
#include "model/config.h"

struct json_t;
struct moe_checkpoint;

/* Reads DIR/config.json (and generation_config.json where there is one) of a Hugging Face
 * checkpoint through the family that its "model_type" names. An unknown family, or a switch that
 * the family does not implement, is MOE_ERR_UNSUPPORTED and named. */
int moe_config_read_hf(struct moe_config *config, const char *dir, struct moe_err *err);
/* The same from a config.json by itself, under any name. */
int moe_config_read_hf_file(struct moe_config *config, const char *path, struct moe_err *err);
/* The same from its parsed text; `name` begins error texts. */
int moe_config_read_hf_json(struct moe_config *config, const char *name, const struct json_t *json,
                            struct moe_err *err);

/* Fills config from a checkpoint in GGUF through the family that its "general.architecture" names;
 * completed and checked. The tensors show what the metadata does not say: vocabulary, biases,
 * widths of experts, which layers have them. An unknown architecture, or a setting that the family
 * does not implement, is MOE_ERR_UNSUPPORTED and named. */
int moe_config_read_gguf(struct moe_config *config, const struct moe_checkpoint *ck,
                         struct moe_err *err);

#endif
