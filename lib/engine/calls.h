/*
 * Calls: the grammar of an answer that calls tools, of the form that the model's template writes
 * calls in (prompt/chat_answer.h) and of the schemas of the tools' parameters.
 */
#ifndef MOE_ENGINE_CALLS_H
#define MOE_ENGINE_CALLS_H

#include "base/allowance.h"
#include "base/err.h"
#include "prompt/chat_answer.h"

struct moe_grammar;

/*
 * *out: holds the answer as wanted; NULL where it need not be held and cannot be. Arguments follow
 * the schema of the tool's parameters. Where a schema cannot be held to, calls of a "strict" tool
 * and those that must come are refused with MOE_ERR_UNSUPPORTED, others take any object. Also
 * MOE_ERR_UNSUPPORTED: the template has no form for calls that must come, or a form that cannot
 * write the name of a parameter; errors of reading a grammar (grammar/grammar.h).
 */
int moe_calls_grammar(struct moe_grammar **out, const struct moe_chat *chat,
                      const struct moe_calls_wanted *wanted, struct moe_allowance *allowance,
                      struct moe_err *err);

#endif
