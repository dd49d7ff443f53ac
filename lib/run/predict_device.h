/*
 * Where the routers ahead are asked of a session on a GPU: there, beside the layer's own, or by the
 * host, to which their inputs come with the router's word. Both give the same bits; which is faster
 * depends on the machine and is measured.
 */
#ifndef MOE_RUN_PREDICT_DEVICE_H
#define MOE_RUN_PREDICT_DEVICE_H

#include "run/layer_predictor.h"

/* Times both for one row, looking as far ahead as the strategy does, and settles the session's
 * predict_device by that, or by what its options say. The session has computed nothing yet. */
int moe_predict_device_choose(struct moe_session *s, struct moe_layer_predictor *f,
                              struct moe_err *err);

/* "gpu" or "host"; "" where there is nothing to choose. */
const char *moe_predict_device_name(const struct moe_predict_device *place);

#endif
