/* What the files of this room share. */
#ifndef MOE_QUANT_INTERNAL_H
#define MOE_QUANT_INTERNAL_H

#include <stdint.h>

#include "quant/layout.h"

/* moe_layout_store_span for n_rows rows from `row` on, all in one panel: span number i of each. */
void moe_layout_store_spans(uint8_t *data, struct moe_layout layout, uint32_t cols, uint32_t row,
                            uint32_t n_rows, uint32_t i, const struct moe_span_codes *spans);

#endif
