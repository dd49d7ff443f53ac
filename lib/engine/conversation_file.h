/*
 * Conversations kept in context files (context_file.h): messages, context and the sampler's draws,
 * so that another session goes on as the one that saved them would have.
 */
#ifndef MOE_ENGINE_CONVERSATION_FILE_H
#define MOE_ENGINE_CONVERSATION_FILE_H

#include "engine/conversation.h"

/* way: how the session computes (moe_engine_way). */
int moe_conversation_save(const struct moe_conversation *c, const struct moe_sampler *sampler,
                          const char *way, const char *path, struct moe_err *err);
/* The conversation becomes the file's. On an error it stays, and is computed again where its
 * context was overwritten. MOE_ERR_LIMIT: it is longer than this session's context; MOE_ERR_USAGE:
 * it is of a chat and here is none; and as moe_context_open. */
int moe_conversation_load(struct moe_conversation *c, struct moe_sampler *sampler, const char *way,
                          const char *path, struct moe_err *err);

#endif
