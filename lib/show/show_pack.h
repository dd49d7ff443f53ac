/*
 * What is inside a pack: figures, a table for people, JSON for scripts.
 */
#ifndef MOE_SHOW_SHOW_PACK_H
#define MOE_SHOW_SHOW_PACK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "fmt/emit.h"
#include "model/config.h"
#include "model/sampling.h"
#include "pack/pack.h"
#include "show/draw.h"

/* Weights and the bytes they take: raw is what memory needs, stored what the file holds. */
struct moe_weight_sum {
    uint64_t count;   /* tensors, or experts */
    uint64_t weights; /* numbers */
    uint64_t raw_bytes, stored_bytes;
    uint64_t code_bits; /* of the numbers alone, without scales and padding */
};

struct moe_pack_summary {
    struct moe_config config;
    uint32_t n_moe_layers;
    struct moe_weight_sum variants[MOE_MAX_VARIANTS]; /* as the pack numbers them */
    bool mixed[MOE_MAX_VARIANTS]; /* its experts do not all have the same bits */
    struct moe_weight_sum dense;
    struct moe_weight_sum ahead; /* tensors and experts of layers that draft, in no other sum */
    uint64_t tokenizer_bytes;
    bool has_chat_template;
    struct moe_sampler_options sampling; /* as the model's makers published it */
    struct moe_pack_synthesized synthesized;
};

/* Reads the pack's directory only. */
int moe_pack_summarize(const struct moe_pack *pack, struct moe_pack_summary *out,
                       struct moe_err *err);

/* Bits per weight with scales and padding, uncompressed; 0 for no weights. */
double moe_weight_sum_bits(const struct moe_weight_sum *sum);
/* ... of the codes alone. */
double moe_weight_sum_nominal_bits(const struct moe_weight_sum *sum);

/* "4", "4d8" or "a map's", before "bits"; borrowed. */
const char *moe_show_variant_bits(const struct moe_pack *pack, uint32_t variant);
/* Appends "12 layers"; of a model with an encoder "6 + 6 layers (encoder + decoder)". n: all, or
 * all of a kind; n_encoder: those of the encoder. */
void moe_show_layer_count(const struct moe_config *config, uint32_t n, uint32_t n_encoder,
                          struct moe_buf *out);
/* Appends "12 layers, 384 experts at 4 bits (4.50 bits/weight), dense 8.49 bits/weight". */
void moe_show_pack_line(const struct moe_pack *pack, const struct moe_pack_summary *s,
                        struct moe_buf *out);
/* Appends a table of several lines; `tensors`: with every tensor. */
void moe_show_pack(const struct moe_pack *pack, const struct moe_pack_summary *s, bool tensors,
                   struct moe_buf *out);
/* Appends the bits of each expert of every mixed variant: a line for each MoE layer, a character
 * for each expert, then what the characters mean. With more than MOE_SHOW_DRAWN experts to a layer,
 * how many have which bits. Nothing for packs without mixed variants. In colour: with terminal
 * sequences, warmer for more bits. */
enum { MOE_SHOW_DRAWN = 256 };
void moe_show_pack_bits(const struct moe_pack *pack, const struct moe_pack_summary *s,
                        struct moe_screen screen, struct moe_buf *out);
/* The same as member "map", a list of {"layer": 3, "bits": ["4", "2", ...]}; null for a variant
 * that is not mixed. */
void moe_show_pack_bits_json(const struct moe_pack *pack, const struct moe_pack_summary *s,
                             uint32_t variant, struct moe_emit *e);
/* Appends one JSON object and a newline. */
int moe_show_pack_json(const struct moe_pack *pack, const struct moe_pack_summary *s, bool tensors,
                       struct moe_buf *out, struct moe_err *err);

#endif
