/*
 * Conversation: messages on top of a session's context.
 *
 * With a chat, questions and answers are written as the model's template has them; what is in the
 * context already is not computed again, up to the first token in which the new text differs (a
 * template may drop the thoughts of earlier answers, or move a system text). Without one the model
 * continues plain text: every question starts a new text, and an answer can be continued. A model
 * with an encoder reads every question as a source of its own, and remembers none.
 *
 * A conversation borrows its session, whose sequence 0 is its own, and belongs to one thread.
 * Start from moe_conversation_init; moe_conversation_release drops everything.
 */
#ifndef MOE_ENGINE_CONVERSATION_H
#define MOE_ENGINE_CONVERSATION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "engine/generate.h"
#include "engine/prompt.h"
#include "engine/sampler.h"
#include "infer/session.h"
#include "prompt/chat.h"
#include "prompt/chat_answer.h"
#include "text/tokenizer.h"

struct json_t;

struct moe_conversation {
    struct moe_session *session;
    const struct moe_chat *chat;    /* NULL: plain continuation */
    const char *prefix;             /* of every text, borrowed (moe_prompt_prefixed); NULL: none */
    struct moe_languages languages; /* of sources and their answers; borrowed */
    struct moe_ids history;         /* the context's tokens */
    struct moe_ids source;          /* what the encoder reads next, and then nothing */
    /* Chat: what was said (prompt/chat.h), never NULL; message 0 is the system's if any. An
     * answer's thought is in the member that the template takes it from, apart from its content. */
    struct json_t *messages;
    const struct json_t *tools, *variables; /* of the template; NULL: none; borrowed */
    /* Answers' constraint is one of calls, and of thoughts before them. */
    bool held_to_calls;
    /* Chat: gets what an answer says, read as it comes (prompt/chat_answer.h), in place of its
     * text. NULL: nobody does, and the text is handed on as it is. The message has thoughts and
     * calls of the tools apart in either case. */
    int (*on_part)(void *part_ctx, const struct moe_answer_part *part);
    void *part_ctx;
    struct tm now;      /* for templates that show it: when the conversation began */
    uint64_t answer_at; /* where in `history` the last answer begins */
    bool undone;        /* ... and is none of the messages any more */
    bool cut;           /* ... and has lost its beginning to a full context */
    bool in_thought;    /* ... and whether what precedes it opens the thought */
    /* The context ends exactly where the messages' text and the last answer end. */
    bool in_step;
    uint64_t again;       /* private: of the context, that the next turn begins with */
    struct moe_buf turns; /* private: where answers end in the context, for when what follows one is
                             taken back */
};

/* Fails only with MOE_ERR_MEMORY; release it then, too. */
int moe_conversation_init(struct moe_conversation *c, struct moe_session *session,
                          const struct moe_chat *chat, struct moe_err *err);
void moe_conversation_release(struct moe_conversation *c);

/* Forgets all messages but the system's. */
void moe_conversation_reset(struct moe_conversation *c);
/* Forgets all messages and sets the system's (NULL: none). MOE_ERR_USAGE without a chat. */
int moe_conversation_system(struct moe_conversation *c, const char *text, struct moe_err *err);
/* The system's text, borrowed; NULL: none. */
const char *moe_conversation_system_text(const struct moe_conversation *c);
/* Takes copies of these messages (an array) in place of all; the last may be a
 * question that moe_conversation_answer answers. MOE_ERR_USAGE without a chat. */
int moe_conversation_set(struct moe_conversation *c, const struct json_t *messages,
                         struct moe_err *err);
uint64_t moe_conversation_n(const struct moe_conversation *c); /* messages */
/* Forgets all messages from number n on. Where the last of the others is an answer that the context
 * holds token by token, it keeps these tokens; else it finds out what it holds of them when the
 * next question is asked. */
void moe_conversation_keep(struct moe_conversation *c, uint64_t n);

/* The last message is an answer and the context ends with it: after moe_conversation_keep it does
 * again. */
void moe_conversation_note_turn(struct moe_conversation *c);

/* Asks and streams the answer, as moe_generate does with these options (the chat's stop texts are
 * added). A question that does not fit the context, that the template refuses, or that fails, is
 * taken back. */
int moe_conversation_ask(struct moe_conversation *c, const char *text, struct moe_sampler *sampler,
                         const struct moe_generate_options *options, enum moe_stop_reason *why,
                         struct moe_err *err);
/* The same of the messages that there are. MOE_ERR_USAGE when there are none. */
int moe_conversation_answer(struct moe_conversation *c, struct moe_sampler *sampler,
                            const struct moe_generate_options *options, enum moe_stop_reason *why,
                            struct moe_err *err);

/* Takes a text as the result of the first call of the last answer that has none yet. *open: calls
 * that still have none; where there are none the conversation can be answered. MOE_ERR_USAGE: all
 * calls have one. */
int moe_conversation_result(struct moe_conversation *c, const char *text, uint64_t *open,
                            struct moe_err *err);
/* Whether the last message is such a result. */
bool moe_conversation_has_result(const struct moe_conversation *c);

/* Goes on where the last answer stopped; MOE_ERR_USAGE when there is nothing to continue. */
int moe_conversation_continue(struct moe_conversation *c, struct moe_sampler *sampler,
                              const struct moe_generate_options *options, enum moe_stop_reason *why,
                              struct moe_err *err);

/* Replaces the context by `ids`, which are taken over. */
void moe_conversation_adopt(struct moe_conversation *c, struct moe_ids *ids);

/* Appends what would be fed for an answer to the messages, exactly, and its ids. */
int moe_conversation_preview(const struct moe_conversation *c, struct moe_buf *text,
                             struct moe_ids *ids, struct moe_err *err);

/*
 * Turns dropped: the last one, or the oldest of a full context.
 *
 * Context shift: a full context loses its oldest part, and the answer goes on.
 *
 * Of a chat whole turns go, the oldest first and never the system's text; when a single one is
 * left, the older half of the answer so far. Of plain text the older half goes. What stays is
 * computed again where it has moved: the next token is the one that would come had the conversation
 * begun without what was dropped. That is another one than with a longer context, so it is counted
 * (moe_stats) and never done unasked.
 */

/* As moe_conversation_ask, or with a text of NULL moe_conversation_continue; of a question that
 * does not fit as many of the oldest turns are dropped as it takes. MOE_ERR_UNSUPPORTED: the model
 * has an encoder, or its prompts see all of themselves. */
int moe_conversation_shifting(struct moe_conversation *c, const char *text,
                              struct moe_sampler *sampler,
                              const struct moe_generate_options *options, enum moe_stop_reason *why,
                              struct moe_err *err);

/* How many tokens a question takes with only the system's text, when all turns are dropped. */
int moe_conversation_alone(struct moe_conversation *c, const char *text, uint64_t *n,
                           struct moe_err *err);

/* Drops the last question with all behind it, and appends its text to `question` (NULL: not
 * wanted). False: there is none. */
bool moe_conversation_undo(struct moe_conversation *c, struct moe_buf *question);

/*
 * Conversations kept in context files (context_file.h): messages, context and the sampler's draws,
 * so that another session goes on as the one that saved them would have.
 */

/* method: how the session computes (moe_engine_method). */
int moe_conversation_save(const struct moe_conversation *c, const struct moe_sampler *sampler,
                          const char *method, const char *path, struct moe_err *err);
/* The conversation becomes the file's. On an error it stays, and is computed again where its
 * context was overwritten. MOE_ERR_LIMIT: it is longer than this session's context; MOE_ERR_USAGE:
 * it is of a chat and here is none; and as moe_context_open. */
int moe_conversation_load(struct moe_conversation *c, struct moe_sampler *sampler,
                          const char *method, const char *path, struct moe_err *err);

#endif
