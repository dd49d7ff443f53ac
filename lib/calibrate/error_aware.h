/*
 * Conversion with error-aware rounding: moe_convert_pack with the inputs that matrices see on given
 * texts (calibrate/inputs_seen.h). A checkpoint becomes a pack of 16 bits first, a file without a
 * name beside the output, since only packs can be run.
 */
#ifndef MOE_CALIBRATE_ERROR_AWARE_H
#define MOE_CALIBRATE_ERROR_AWARE_H

#include "base/buf.h"
#include "calibrate/inputs_seen.h"

/* As moe_convert_checkpoint and moe_convert_pack, with a method that compensates; the options'
 * `inputs` are set here. note (may be NULL) gets a line appended, without its newline: how many
 * tokens were seen, and which experts saw too few. */
int moe_convert_error_aware(const char *source, bool is_checkpoint, const char *out_path,
                            const struct moe_convert_options *options,
                            const struct moe_inputs_options *inputs,
                            struct moe_convert_report *report, struct moe_buf *note,
                            struct moe_err *err);

#endif
