/*
 * Conversation: turns of text on top of a session's context.
 *
 * With a chat format, questions and answers are rendered as the model's template would; what is in
 * the context already is not computed again. Without one the model continues plain text: every
 * question starts a new text, and an answer can be continued. A model with an encoder reads every
 * question as a source of its own, and remembers none.
 *
 * A conversation borrows its session (of which sequence 0 is its own) and belongs to one thread.
 * Start from moe_conversation_init; moe_conversation_release drops everything.
 */
#ifndef MOE_ENGINE_CONVERSATION_H
#define MOE_ENGINE_CONVERSATION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/generate.h"
#include "engine/sampler.h"
#include "run/session.h"
#include "text/chat.h"
#include "text/tokenizer.h"

struct moe_conversation {
    struct moe_session *session;
    const struct moe_chat_format *format; /* NULL: plain continuation */
    const char *prefix;          /* of every text, borrowed (moe_prompt_prefixed); NULL: none */
    struct moe_ids history;      /* the context's tokens */
    struct moe_ids source;       /* what the encoder reads next, and then nothing */
    uint64_t n_done;             /* of them already in the session */
    struct moe_chat_turn *turns; /* [room]; texts owned; turn 0 is the system's if any */
    int n_turns, room;
    struct tm today; /* for templates that show it: the day when the conversation began */
    /* The context ends exactly where the turns' rendering and the last answer end. */
    bool in_step;
};

void moe_conversation_init(struct moe_conversation *c, struct moe_session *session,
                           const struct moe_chat_format *format);
void moe_conversation_release(struct moe_conversation *c);

/* Forgets all turns but the system's. */
void moe_conversation_reset(struct moe_conversation *c);
/* Forgets all turns and sets the system's (NULL: none). MOE_ERR_USAGE without a chat format. */
int moe_conversation_system(struct moe_conversation *c, const char *text, struct moe_err *err);

/* Asks and streams the answer, as moe_generate does with these options (the format's stop texts are
 * added). A question that does not fit the context, or fails, is taken back. */
int moe_conversation_ask(struct moe_conversation *c, const char *text, struct moe_sampler *sampler,
                         const struct moe_generate_options *options, enum moe_stop_reason *why,
                         struct moe_err *err);

/* Goes on where the last answer stopped; MOE_ERR_USAGE when there is nothing to continue. */
int moe_conversation_continue(struct moe_conversation *c, struct moe_sampler *sampler,
                              const struct moe_generate_options *options, enum moe_stop_reason *why,
                              struct moe_err *err);

#endif
