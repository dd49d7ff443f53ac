/*
 * What is inside a pack, for people and scripts: figures, a table, JSON. The library never prints:
 * texts go to a buffer.
 */
#ifndef MOE_MODEL_SUMMARY_H
#define MOE_MODEL_SUMMARY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "fmt/pack.h"
#include "model/config.h"

/* Weights and the bytes they take: raw is what memory needs, stored what the file holds. */
struct moe_weight_sum {
    uint64_t count;   /* tensors, or experts */
    uint64_t weights; /* numbers */
    uint64_t raw_bytes, stored_bytes;
};

struct moe_summary {
    struct moe_config config;
    uint32_t n_moe_layers;
    struct moe_weight_sum variants[MOE_PACK_MAX_VARIANTS]; /* as the pack numbers them */
    struct moe_weight_sum dense;
    uint64_t tokenizer_bytes;
    bool has_chat_template;
};

/* Reads the pack's directory only. */
int moe_summarize(const struct moe_pack *pack, struct moe_summary *out, struct moe_err *err);

/* Bits per weight with scales and padding, uncompressed; 0 for no weights. */
double moe_sum_bits(const struct moe_weight_sum *sum);

/* Appends "12 layers, 384 experts at 4 bits (4.50 bits/weight), dense 8.49 bits/weight". */
void moe_summary_line(const struct moe_pack *pack, const struct moe_summary *s,
                      struct moe_buf *out);
/* Appends a table for people, several lines; with every tensor when asked for. */
void moe_summary_text(const struct moe_pack *pack, const struct moe_summary *s, bool tensors,
                      struct moe_buf *out);
/* Appends one JSON object and a newline. */
int moe_summary_json(const struct moe_pack *pack, const struct moe_summary *s, bool tensors,
                     struct moe_buf *out, struct moe_err *err);

#endif
