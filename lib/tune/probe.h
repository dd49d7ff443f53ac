/*
 * Probe: what predictors would have predicted in a pass, and what the routers really chose, into
 * statistics and a trace.
 *
 * Attached to a session, it watches every pass: it keeps the inputs of the last layers' gates and
 * attentions, applies each layer's router to them once that router has chosen, and feeds the
 * statistics (profile/statistics.h). The session's passes must then be documents:
 * positions of sequence 0 from 0 on, as moe_probe_document runs them.
 */
#ifndef MOE_TUNE_PROBE_H
#define MOE_TUNE_PROBE_H

#include "base/err.h"
#include "infer/session.h"
#include "profile/statistics.h"
#include "profile/trace.h"

struct moe_probe;

/* Bytes that a probe of a session with this batch takes. */
uint64_t moe_probe_bytes(const struct moe_config *config, uint32_t batch);
/* Becomes the session's observer. `statistics` is borrowed and has the model's shape. */
int moe_probe_open(struct moe_probe **out, struct moe_session *session,
                   struct moe_statistics *statistics, struct moe_err *err);
void moe_probe_close(struct moe_probe *probe); /* NULL is fine */

/* The documents that follow also go to a trace, each a sequence. `trace` is borrowed; its shape is
 * the model's, its predictors are any of MOE_TRACE_PREDICTORS. */
void moe_probe_set_trace(struct moe_probe *probe, struct moe_trace_writer *trace);

/* Runs a pair as generation computes it: the source through the encoder once, then the target's
 * tokens but the last through the decoder, which predict the others. The texts' lengths as
 * below; statistics know the pair by its hash. */
uint64_t moe_probe_pair_hash(const uint32_t *source, uint32_t n_source, const uint32_t *target,
                             uint32_t n_target);
int moe_probe_pair(struct moe_probe *probe, const uint32_t *source, uint32_t n_source,
                   const uint32_t *target, uint32_t n_target, struct moe_err *err);

/* Runs ids[0..n) as one document through the session and counts it. n <= the statistics' max_tokens
 * and the session's context. */
int moe_probe_document(struct moe_probe *probe, const uint32_t *ids, uint32_t n,
                       struct moe_err *err);

#endif
