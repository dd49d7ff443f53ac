/*
 * Profiling texts: every document through the model under a probe, in shards, resumable.
 */
#ifndef MOE_TUNE_PROFILE_H
#define MOE_TUNE_PROFILE_H

#include "base/err.h"
#include "base/progress.h"
#include "engine/engine.h"
#include "infer/session.h"
#include "profile/statistics.h"
#include "profile/trace.h"
#include "tune/documents.h"

/* As many scores as moe_trace_default_keep says. */
#define MOE_TRACE_KEEP_ENOUGH UINT32_MAX

struct moe_profile_options {
    const char *const *texts; /* paths */
    bool pairs;               /* of files of pairs (documents.h): for models with an encoder */
    uint32_t n_texts;
    uint32_t max_tokens;     /* of a document or window (documents.h); <= the session's context */
    uint32_t max_windows;    /* of a document; 0: all */
    uint32_t prompt_percent; /* of a document's tokens that count as its prompt */
    /* Documents and windows shard, shard + n_shards, ... counted over all texts. */
    uint32_t shard, n_shards;
    const struct moe_statistics *prior;  /* path statistics to try; borrowed, may be NULL */
    const char *partial;                 /* file for what is done so far; NULL: none */
    const char *trace;                   /* file for the trace; NULL: none */
    uint32_t trace_keep;                 /* scores kept in it, see MOE_TRACE_KEEP_ENOUGH */
    bool resume;                         /* go on from `partial` where it exists */
    const struct moe_progress *progress; /* may be NULL */
    struct moe_left_out *left_out;       /* of all texts, of every shard; may be NULL */

    /* Set by moe_profile_survey. */
    uint64_t text_bytes;  /* of the longest document */
    uint64_t paths_bytes; /* the most that the tables of paths may take */
};

/* Looks at the texts (engine.h, survey). Tables of paths grow with them: what they can take at most
 * is counted, but no more than a quarter of the budget. */
int moe_profile_survey(struct moe_profile_options *options, const struct moe_model *model,
                       const struct moe_engine_room *room, struct moe_err *err);
/* Bytes that profiling takes beside a session of this batch: statistics, probe, trace, texts. */
uint64_t moe_profile_bytes(const struct moe_profile_options *options, const struct moe_model *model,
                           uint32_t batch);
/* Runs the documents through the session and counts; the session's observer is replaced meanwhile.
 * *out is the caller's to free. The documents counted so far are saved in the partial file now and
 * then, when it fails or is stopped (MOE_ERR_INTERRUPTED), and once all are counted: the caller
 * removes it when what it makes of *out is in its place. The trace grows in TRACE.part beside TRACE
 * and is saved just before the statistics, so that a run that was killed at any moment goes on from
 * both files; it is renamed when all is counted. MOE_ERR_USAGE: the texts, settings or model are
 * not those that the partial file was made with. MOE_ERR_LIMIT: the tables of paths outgrow
 * paths_bytes; what was counted is in the partial file. */
int moe_profile_texts(struct moe_session *session, const struct moe_profile_options *options,
                      struct moe_statistics **out, struct moe_err *err);

#endif
