/*
 * Heat maps: an amount for each expert, layers down, experts across, in shades of a usual amount.
 */
#ifndef MOE_SHOW_HEAT_H
#define MOE_SHOW_HEAT_H

#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "fmt/emit.h"
#include "show/draw.h"

struct moe_heat {
    uint32_t n_layers, n_experts;
    double *values; /* [n_layers][n_experts]; NAN: not known, drawn "?"; below 0: "-" */
    double usual;
    const uint32_t *names; /* [n_layers] how layers are called; NULL: from 0 on */
};

/* All values 0. Released with moe_heat_release, also after a failure. */
int moe_heat_init(struct moe_heat *heat, uint32_t n_layers, uint32_t n_experts,
                  struct moe_err *err);
void moe_heat_release(struct moe_heat *heat);
/* Of counts: each expert's share of its layer's activations; usual: all alike. */
int moe_heat_of_counts(struct moe_heat *heat, const uint64_t *counts, uint32_t n_layers,
                       uint32_t n_experts, struct moe_err *err);

/* How many experts a column and layers a line hold on this screen: a cell is the mean of its known
 * values. A map has at most MOE_HEAT_LINES lines. */
enum { MOE_HEAT_LINES = 96 };
uint32_t moe_heat_experts(const struct moe_heat *heat, struct moe_screen screen);
uint32_t moe_heat_layers(const struct moe_heat *heat);
/* The mean of the known values of so many layers and experts from the first on; NAN: none is. */
double moe_heat_cell(const struct moe_heat *heat, uint32_t layer, uint32_t n_layers,
                     uint32_t expert, uint32_t n_experts);
/* With the colours of a terminal, from cold to warm, where it has any. */
void moe_draw_heat(const struct moe_heat *heat, struct moe_screen screen, struct moe_buf *out);
/* A list of the layers' lists; null for what is not known. */
void moe_heat_json(struct moe_emit *e, const char *key, const struct moe_heat *heat);

#endif
