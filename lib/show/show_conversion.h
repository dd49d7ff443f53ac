/*
 * What a conversion did to the weights of a quantized source, for moe-quantize's closing lines.
 */
#ifndef MOE_SHOW_SHOW_CONVERSION_H
#define MOE_SHOW_SHOW_CONVERSION_H

#include "base/buf.h"
#include "convert/convert.h"

/* Appends whole lines that begin with "PATH: ": how many weights were carried over, then for each
 * type and bitwidth which matrices were rounded again, with the relative root of the mean squared
 * error: "PATH: 12 ffn_down_exps, 12 attn_v: Q6_K -> 8 bits, error 0.52%". Nothing for a source of
 * floats. */
void moe_show_source(const struct moe_convert_report *report, const char *path,
                     struct moe_buf *out);

#endif
