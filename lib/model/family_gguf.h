/*
 * What all architectures in GGUF share: the metadata keys that stand under the architecture's name
 * ("qwen2moe.block_count"), and the tensors' names. Keys, names and meanings are those of the
 * public gguf package (constants.py) and of llama.cpp's readers.
 */
#ifndef MOE_MODEL_FAMILY_GGUF_H
#define MOE_MODEL_FAMILY_GGUF_H

#include "base/err.h"
#include "fmt/checkpoint.h"
#include "fmt/gguf.h"
#include "model/family.h"

/* "ARCH.NAME", for the moe_gguf_get functions; room for any key we ask for. */
struct moe_gguf_key {
    char text[128];
};
struct moe_gguf_key moe_gguf_arch_key(const struct moe_gguf *gguf, const char *name);

/* Numbers under the architecture's name. What is absent leaves *out as it is. */
int moe_gguf_arch_u32(const struct moe_gguf *gguf, const char *name, uint32_t max, bool required,
                      uint32_t *out, struct moe_err *err);
int moe_gguf_arch_float(const struct moe_gguf *gguf, const char *name, float *out,
                        struct moe_err *err);

/* Whether the chosen experts' weights are divided by their sum: as "expert_weights_norm" says, else
 * as the architecture does without it. */
int moe_gguf_read_norm_topk(struct moe_config *config, const struct moe_gguf *gguf, bool otherwise,
                            struct moe_err *err);

/* Fills config from a checkpoint in GGUF through the family that its "general.architecture" names;
 * completed and checked. What the metadata does not say and the tensors show is taken from these:
 * vocabulary, biases, widths of experts, which layers have them. An unknown architecture, or a
 * setting that the family does not implement, is MOE_ERR_UNSUPPORTED and named. */
int moe_config_read_gguf(struct moe_config *config, const struct moe_checkpoint *ck,
                         struct moe_err *err);

/* Names that architectures share: fused experts ("blk.%u.ffn_gate_exps.weight") first; what some
 * have instead (gate and up in one tensor, keys and values of latent attention in one, ...); and a
 * tensor per expert, as old files have them. */
extern const struct moe_source_names moe_gguf_names, moe_gguf_names_other, moe_gguf_names_old;

#endif
