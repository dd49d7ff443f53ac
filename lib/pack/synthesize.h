/*
 * Synthesis: a pack of a model's true sizes with weights that mean nothing, from its description,
 * to see how the model would run here before it is downloaded.
 */
#ifndef MOE_PACK_SYNTHESIZE_H
#define MOE_PACK_SYNTHESIZE_H

#include "pack/convert.h"

struct moe_synthesize_options {
    /* Variants, dense bits, group and progress count, and the method, which lays scales out; maps,
     * inputs and compression are not for drawn weights. */
    const struct moe_convert_options *convert;
    uint64_t seed;
    /* The experts are holes of the file: zeros that take no room, and that no disk is read for. */
    bool sparse;
};

/* The name of a model by its description: moe_convert_source_name without ".json". */
void moe_synthesize_name(const char *description, char out[MOE_SOURCE_NAME_BYTES]);

/*
 * description: a file config.json of Hugging Face's, whatever its name; a family that cannot be
 * converted is refused as there. Norms are 1, other vectors small, matrices of standard deviation
 * 1/sqrt(columns): each keeps the size of what it multiplies, so that activations stay finite
 * through any number of layers. The tokenizer is one of bytes (text/vocab.h). The provenance says
 * what the pack is (moe_pack_synthesized). The same description, options and seed give the same
 * bytes. Memory is that of the largest dense matrix or of one expert. MOE_ERR_IO before anything is
 * written: the disk has less room than the pack takes.
 */
int moe_synthesize(const char *description, const char *out_path,
                   const struct moe_synthesize_options *options, struct moe_convert_report *report,
                   struct moe_err *err);

#endif
