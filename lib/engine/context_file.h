/*
 * Context files: a context as it was computed, to go on from at once in another session. Format:
 * man/moe-context.5.
 *
 * It holds the context's ids, what the session has of those that were computed, keys and values,
 * recurrent states and entries (infer/recurrent.h), and a text of the file's user
 * (engine/conversation.h). It is of one pack and of one way to compute: with another, keys and
 * values would be others, so it is refused. Only where the processor computes; models without an
 * encoder and with prompts that do not see all of themselves.
 *
 * They are read and written a piece at a time, past nothing but a buffer of one layer's 16
 * positions or entries.
 */
#ifndef MOE_ENGINE_CONTEXT_FILE_H
#define MOE_ENGINE_CONTEXT_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "engine/sampler.h"
#include "infer/session.h"
#include "text/tokenizer.h"

enum { MOE_CONTEXT_METHOD = 512 };

struct moe_context {
    struct moe_ids ids;
    /* How many of them are computed, from the first on. A file has fewer where it lacks the
     * recurrent states at their end. */
    uint64_t n_done;
    bool far; /* read: they are of a text beyond rope_original */
    /* How they were computed: "" exactly, else a strategy's parts. */
    char method[MOE_CONTEXT_METHOD];
    bool has_draws;
    struct moe_sampler_draws draws; /* where the sampler's draws go on */
    struct moe_buf text;            /* the user's, any bytes */
};
void moe_context_release(struct moe_context *c);

/* Writes the context that is a sequence of the session, atomically. MOE_ERR_UNSUPPORTED: a model or
 * device whose contexts cannot be kept. */
int moe_context_write(const char *path, const struct moe_session *s, uint32_t sequence,
                      const struct moe_context *c, struct moe_err *err);

struct moe_context_file {
    struct moe_context context;
    /* Private. */
    int fd;
    char *path;
    uint64_t pieces_at, check; /* where the pieces begin, and what their checksums begin with */
};

/* Opens a file for this session and reads all but the pieces; method: how this session computes,
 * as in struct moe_context. MOE_ERR_FORMAT: it is damaged, of another kind or pack, or was computed
 * another way; MOE_ERR_VERSION: of another version. After success close it. */
int moe_context_open(struct moe_context_file *out, const char *path, const struct moe_session *s,
                     const char *method, struct moe_err *err);
/* How many positions that may be: n_done, or as many as the session has room for, with recurrent
 * states none then. */
uint64_t moe_context_most(const struct moe_context_file *f, const struct moe_session *s);
/* Has a sequence of the session begin with the file's first n positions, at most these; with
 * recurrent states n_done or 0. After an error the sequence has nothing. */
int moe_context_put(struct moe_context_file *f, struct moe_session *s, uint32_t sequence,
                    uint64_t n, struct moe_err *err);
void moe_context_close(struct moe_context_file *f); /* one of zeroes is fine */

#endif
