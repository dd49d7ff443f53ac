/*
 * A batch's members: the requests that wait, the sequences that run, and how one becomes the other.
 * Internal to the batch.
 */
#ifndef MOE_ENGINE_BATCH_MEMBERS_H
#define MOE_ENGINE_BATCH_MEMBERS_H

#include "engine/batch.h"
#include "engine/drafting.h"

/* A request, waiting or running. */
struct member {
    struct member *next; /* while it waits */
    uint64_t id;
    struct moe_batch_request request; /* without its prompt, which is in `history` */
    struct moe_ids source;            /* where there is an encoder */
    struct moe_ids history;
    struct moe_answer answer;
    uint64_t n_prompt;
    uint64_t n_done;   /* ids of the history that are computed */
    uint32_t n_again;  /* ... and of those behind it, that were: their states were taken back */
    uint64_t n_cached; /* of the prompt: found computed */
    uint64_t n_drafted, n_accepted; /* tokens; of these, that were right */
    struct moe_drafting drafting;
    uint32_t to_draft; /* while the layer that drafts is at work, tokens of its next draft */
    double ttft_seconds;
    bool has_run;
    bool waits_for_source; /* it runs, and its source is not encoded */
    bool far;              /* LongRoPE: they were computed for a text beyond the original context */
};

struct moe_batch {
    struct moe_session *session; /* borrowed */
    uint32_t prompt_rows;
    uint64_t n_added;
    struct moe_batch_state state;
    struct member **running;      /* [n_sequences] by sequence; NULL: it is free */
    struct member *first, **last; /* those that wait */
    struct moe_row *rows;         /* [batch] */
    struct member **of_row;       /* [batch] */
    uint32_t *from;               /* [batch] states that the layer that drafts goes on from */
    float *logits;                /* [LOGITS_ROWS][moe_logits_stride] */
    uint8_t *block;               /* holds these arrays */
};

enum { BATCH_LOGITS_ROWS = 8 }; /* at a time */

/* Whether all of its text but the last token is computed, or was: a step draws its next one. */
bool batch_is_decoding(const struct member *m);
/* What has failed in a pass ends everyone who has one of the first n_rows. */
void batch_fail_rows(struct moe_batch *b, uint32_t n_rows, int status, const struct moe_err *err);

/* Frees a member that neither waits nor runs. NULL is fine. */
void batch_free_member(struct member *m);
/* The sequence gives back what it has; its member, which is returned, runs no more. */
struct member *batch_stop_running(struct moe_batch *b, uint32_t sequence);
/* ... and waits in front of all others: what was computed of it may have to be computed again. */
void batch_begin_again(struct moe_batch *b, uint32_t sequence);
/* The youngest that runs begins again. */
void batch_make_room(struct moe_batch *b);
/* Tells how it ended, and frees a member that neither waits nor runs. */
void batch_finish(struct member *m, int status, const struct moe_err *err);
/* ... that it was the user who ended it. */
void batch_finish_by_user(struct member *m);
/* Those whose time has come begin to run, as far as there are sequences and room for their text and
 * a token more. */
void batch_admit(struct moe_batch *b);

#endif
