/*
 * A pack being written, shared by pack_write.c and pack_directory.c. Internal to pack/.
 */
#ifndef MOE_PACK_PACK_WRITER_H
#define MOE_PACK_PACK_WRITER_H

#include <zstd.h>

#include "base/file.h"
#include "pack/pack_format.h"

struct moe_pack_writer {
    struct moe_outfile file;
    uint64_t at; /* where the next extent goes */
    int zstd_level;
    ZSTD_CCtx *zstd;      /* NULL when zstd_level is 0 */
    struct moe_buf frame; /* the extent being compressed */
    uint64_t features, source_fingerprint;

    uint32_t n_layers, n_experts, n_variants;
    uint32_t n_ahead; /* of the layers, the last */
    struct moe_pack_variant variants[MOE_PACK_MAX_VARIANTS];
    struct moe_buf sections[MOE_PACK_N_SECTIONS];
    struct moe_pack_tensor *tensors;
    uint64_t n_tensors, tensors_room;
    struct moe_expert_class *classes;
    uint64_t n_classes, classes_room;
    struct pack_expert *experts;
    uint64_t n_stored, experts_room;
};

/* MOE_ERR_USAGE, "PATH: NAME: WHAT". */
int pack_wrong_use(const struct moe_pack_writer *w, struct moe_err *err, const char *what,
                   const char *name);
/* Writes bytes at the next free place and zeros up to the one after. */
int pack_write_padded(struct moe_pack_writer *w, const void *data, uint64_t n, struct moe_err *err);
/* Writes the directory and the header. MOE_ERR_USAGE: a tensor or an expert was put twice. */
int pack_write_directory(struct moe_pack_writer *w, struct moe_err *err);

#endif
