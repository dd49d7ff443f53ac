/*
 * Answer: what becomes of its tokens as they are drawn. Text leaves as soon as it is certain, and
 * the answer ends by itself, by its length, by a stop text, or with the context.
 */
#ifndef MOE_ENGINE_ANSWER_H
#define MOE_ENGINE_ANSWER_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/progress.h"
#include "engine/sampler.h"
#include "grammar/constraint.h"
#include "infer/model.h"
#include "infer/run_stats.h"
#include "prompt/chat_answer.h"
#include "text/tokenizer.h"

enum moe_stop_reason {
    MOE_STOP_EOS,     /* the model ended its text, or its grammar did */
    MOE_STOP_LENGTH,  /* as many tokens as asked for */
    MOE_STOP_CONTEXT, /* the context is full */
    MOE_STOP_TEXT,    /* a stop text appeared (it is not shown) */
    MOE_STOP_USER,    /* *stop was set */
};

/* When a search with beams ends before the length does, as Hugging Face's generation has it. */
enum moe_early_stopping {
    MOE_EARLY_NO,    /* when the best unfinished one, at its length, is worse than all finished */
    MOE_EARLY_YES,   /* with as many finished as there are beams */
    MOE_EARLY_NEVER, /* when it could not become better at any length */
};

struct moe_beam_options {
    uint32_t n;            /* 0: the tokens are the sampler's */
    double length_penalty; /* a text's score is divided by its length to this power */
    enum moe_early_stopping early;
};

/* A thought with which an answer may begin. */
struct moe_thought_options {
    const struct moe_chat *chat; /* as whose answers it is read (prompt/chat_answer.h); borrowed;
                                    NULL: it is not looked for */
    const struct json_t *tools;  /* whose calls are told; NULL: calls are content; borrowed */
    bool opened;                 /* the prompt has the mark that begins it */
    const struct moe_buf *said;  /* what an answer that goes on has, with marks, and where that is;
                                    borrowed; NULL: it begins */
    struct moe_thought_at at;
    bool apart;    /* ... and the constraint holds what follows it, after blanks */
    uint64_t most; /* tokens of it, behind which its end is written; UINT64_MAX: any */
    /* The end that is written, and the stop text with which it begins, which ends no answer where
     * the rest of the end follows; NULL: there is none (moe_chat_thought_end). */
    const char *end, *stop;
};

struct moe_generate_options {
    struct moe_beam_options beams; /* with them `text` is called at the end, `token` is not */
    /* With an encoder: the ids that it reads before the decoder begins; NULL: what it read last
     * still holds. */
    const uint32_t *source;
    uint64_t n_source;
    /* The answer follows it, from where it is (moe_constraint_restart); borrowed; NULL: any does.
     * Not with beams. */
    struct moe_constraint *constraint;
    struct moe_thought_options thought;
    uint64_t max_tokens; /* UINT64_MAX: until something else stops it */
    uint64_t min_tokens; /* until then only its grammar ends it, or its caller */
    /* Tokens that are drafted at most (engine/draft.h), up to MOE_DRAFT_MOST; the answer is the
     * same without; 0: none. Not with beams. */
    uint32_t draft;
    bool draft_ahead; /* ... by the model's layer that drafts (engine.h, ahead) */
    bool ignore_eos;
    const uint32_t *stop_ids; /* [n_stop_ids] tokens that end it as the model's own do, which are
                                 ignored with ignore_eos, these not */
    uint32_t n_stop_ids;
    const char *const *stop_texts;       /* NULL-terminated; NULL: none */
    const char *call_stop, *call_then;   /* the stop text that ends nothing where this follows it
                                            (moe_chat_call_stop), and is shown; NULL: none */
    const struct moe_ids *marks;         /* special tokens that are shown, ascending; NULL: none */
    const volatile sig_atomic_t *stop;   /* set by a signal handler; may be NULL */
    const struct moe_progress *progress; /* of a prompt's passes; its `stop` is not used; may be
                                            NULL */
    double started;                      /* moe_seconds() when the request came; for ttft */
    /* With recurrent states: how many ids of the prompt the next one of the conversation begins
     * with; 0: not known, and the prompt is none that comes again. */
    uint64_t again;
    bool goes_on; /* where a prompt sees all of itself: the text has that of the text before, and
                     is not a prompt itself */
    /* Bytes of the answer as they are certain: whole UTF-8 characters, never part of a stop text.
     * Bytes that begin no character come as they are, and so does one unfinished at the end. A
     * negative result ends the answer with that status. */
    int (*text)(void *ctx, const char *bytes, uint64_t n);
    /* Every token that counts, before its text; NULL: not wanted, and costs nothing. One that ends
     * the answer by itself does not count, one that completes a stop text does. A negative result
     * as of `text`. */
    int (*token)(void *ctx, const struct moe_token_said *said);
    /* The context is full: may drop some of moe_generate's history, so that the answer goes on
     * (*more). NULL: the answer ends with the context. */
    int (*full)(void *full_ctx, bool *more, struct moe_err *err);
    void *full_ctx;
    /* With recurrent states, when all of the prompt but its last token is computed: it can be saved
     * now (context_file.h), and not later. NULL: not wanted. */
    int (*read)(void *read_ctx, struct moe_err *err);
    void *read_ctx;
    /* The states of the prompt's tokens behind the last norm, [hidden], in order; after a pause
     * they may begin again with the first. The whole prompt is computed. NULL: not wanted.
     * MOE_ERR_UNSUPPORTED with an encoder, and on devices that keep them. */
    void (*state)(void *ctx, uint32_t position, const float *state);
    /* `token` gets the prompt's tokens first (of moe_generator; nothing of them is taken over from
     * another text), the first one with a log probability that is no number; and a token that ends
     * the answer by itself. */
    bool scores;
    uint32_t n_top; /* that it gets of the likeliest, at most MOE_MAX_TOP_TOKENS */
    void *ctx;
};

/* Options for answers of a chat with these tools (NULL: none); can_call: a call may come.
 * Without apart and most it is looked for because of its stop text. */
struct moe_thought_options moe_thought_options_of(const struct moe_chat *chat,
                                                  const struct json_t *tools, bool opened,
                                                  bool can_call);

struct moe_answer {
    const struct moe_model *model;              /* borrowed */
    const struct moe_generate_options *options; /* borrowed */
    uint32_t context;                           /* positions that there are */
    uint64_t n_tokens;                          /* so far; what ended it by itself is none */
    bool begins; /* a text by itself, no token of which has been shown */
    bool ended;
    enum moe_stop_reason why; /* when it has */
    const char *stop_text;    /* ... of MOE_STOP_TEXT: which of options->stop_texts */
    struct moe_ids ends;      /* tokens that end it, where it must have some first */
    bool knows_ends;          /* `ends` is made */
    struct moe_thought_at thought;
    struct moe_answer_reader *reader; /* decides where that is; NULL: nothing has come */
    uint64_t n_thought;               /* tokens of it */
    struct moe_ids thought_end;       /* ids of its end where that is written */
    uint64_t n_thought_end;           /* those that the answer has */
    bool wrote_end;                   /* one that was too long */
    struct moe_buf pending; /* bytes not shown yet: an unfinished character, or what may become a
                               stop text */
};

/* An answer without tokens; one that may have none has ended. */
void moe_answer_begin(struct moe_answer *a, const struct moe_model *model, uint32_t context,
                      const struct moe_generate_options *options);
/* Draws the next token by its logits, of those that the constraint allows; none may be left where
 * the answer may end: then it has ended, without a token. MOE_ERR_LIMIT: none is left, or what is
 * allowed was too much to find out. */
int moe_answer_draw(struct moe_answer *a, struct moe_sampler *sampler, const float *logits,
                    const struct moe_ids *history, uint32_t *id, struct moe_err *err);
/* Takes the next token: appends it to `history`, which holds the whole text, unless it ends the
 * answer by itself. logits: those that it was drawn from, where options->token is set. Errors of
 * memory, and what the caller's functions return. */
int moe_answer_take(struct moe_answer *a, uint32_t id, const float *logits, struct moe_ids *history,
                    struct moe_err *err);
/* Tells options->token of a token that these logits chose or might have. NULL: nothing did. */
int moe_answer_say(const struct moe_answer *a, uint32_t id, const float *logits);
/* Adds what the constraint has done since then to the statistics. */
void moe_answer_count(const struct moe_answer *a, struct moe_stats *stats);
/* Whether this token ends the answer by itself. */
bool moe_answer_is_end(const struct moe_answer *a, uint32_t id);
/* The bytes of an answer's token as they are shown: of a special one none, unless it is one of the
 * marks (NULL: there are none). *begins: the answer is a text by itself, and nothing of it was
 * shown; kept in step. */
const uint8_t *moe_answer_bytes(const struct moe_model *model, const struct moe_ids *marks,
                                uint32_t id, bool *begins, uint32_t *n);
/* Shows what was held back, since no stop text can complete it any more, and frees. Returns
 * `status`, or what `text` says where that is MOE_OK. */
int moe_answer_end(struct moe_answer *a, int status);

#endif
