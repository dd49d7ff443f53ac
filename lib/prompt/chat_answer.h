/*
 * What an answer says, read while it is written: thoughts, content, calls of tools. The marks are
 * those of the model's template (prompt/chat.h), found by rendering conversations with thoughts and
 * calls.
 *
 * Nothing of an answer is lost or said twice: what is not a thought or a call of one of the given
 * tools is content. A text is handed on as soon as it cannot become a mark any more.
 */
#ifndef MOE_PROMPT_CHAT_ANSWER_H
#define MOE_PROMPT_CHAT_ANSWER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "prompt/chat.h"

struct json_t;
struct moe_ids;

enum moe_answer_part_kind {
    MOE_PART_THOUGHT,
    MOE_PART_CONTENT,
    MOE_PART_CALL,       /* a call begins: its function's name */
    MOE_PART_ARGUMENTS,  /* more of its arguments: pieces of one JSON object */
    MOE_PART_CALL_ENDS,  /* the arguments are whole, and JSON */
    MOE_PART_CALL_FAILS, /* ... are not, or the answer ended before: all that the answer has of the
                            call; nothing, where a limit cut it off behind whole ones */
};

struct moe_answer_part {
    enum moe_answer_part_kind kind;
    const char *bytes; /* not terminated */
    uint64_t n;
    bool joins; /* none of the answer's text: an empty line between two thoughts or contents of it,
                   for those who write them as one */
    bool cut_call; /* content that ends with a call that a limit cut off before its name */
};

struct moe_answer_reader;

/*
 * Reads an answer to a conversation with these tools (NULL: calls are content). The chat and the
 * tools are borrowed. opened: the prompt opens a thought (moe_chat_thought_before). on_part gets
 * the parts in order; a negative result ends the reading with that status. NULL: nothing does.
 */
int moe_answer_reader_new(struct moe_answer_reader **out, const struct moe_chat *chat,
                          const struct json_t *tools, bool opened,
                          int (*on_part)(void *ctx, const struct moe_answer_part *part), void *ctx,
                          struct moe_err *err);
void moe_answer_reader_free(struct moe_answer_reader *reader); /* NULL is fine */
/* n more bytes of the answer, with the texts of the special tokens that are marks (moe_chat_marks).
 */
int moe_answer_reader_add(struct moe_answer_reader *reader, const char *bytes, uint64_t n,
                          struct moe_err *err);
/* The answer is over; cut: by a limit. What that has left of a call behind whole ones is no
 * content.
 */
int moe_answer_reader_end(struct moe_answer_reader *reader, bool cut, struct moe_err *err);

/* Where an answer is with its thought. */
struct moe_thought_at {
    enum moe_thought_place { MOE_BEFORE_THOUGHT, MOE_IN_THOUGHT, MOE_BEHIND_THOUGHT } place;
    bool ending;      /* in it: its last bytes may begin what ends it */
    bool again;       /* another may follow */
    const char *rest; /* where it has ended as before a call: the bytes that would make this the end
                         before a content; NULL: anything else */
    uint64_t behind;  /* bytes of the answer that have followed it, after blanks */
};
/* Where it would be after n more bytes. Copies what is not handed on yet: with n 0 nothing. */
int moe_answer_reader_thought(const struct moe_answer_reader *reader, const void *bytes, uint64_t n,
                              struct moe_thought_at *out, struct moe_err *err);

/* ---- Calls that must come, or must be well formed ---- */

struct moe_calls_wanted {
    const struct json_t *tools; /* an array of those that can be called */
    bool must; /* the answer is calls, after a thought; else any text up to a call's first mark */
    bool parallel;                 /* several calls */
    enum moe_chat_thought thought; /* before the answer */
    bool no_thought;               /* none: one that the prompt opens ends at once */
};

/*
 * Appends the grammar (GBNF) of an answer that calls tools as the template writes calls. It leaves
 * rules to the caller, by the number I of the tool: arguments-I, an object by the tool's
 * parameters, or where the form writes each parameter by itself (moe_chat_text_ends is not NULL),
 * of property J what moe_chat_parameter says: value-I-J, its values as JSON, and bare-I-J, its
 * texts without quotes. For these there are the rules `any` and `more` (grammar/grammar.h). False:
 * answers can not be held to the form, or it has no mark that must be (wanted->must); `out` is then
 * to be dropped.
 */
bool moe_chat_write_calls(const struct moe_chat *chat, const struct moe_calls_wanted *wanted,
                          struct moe_buf *out);
/* What texts of parameters do not hold: what ends them, without what the parameter's name makes of
 * it. NULL: parameters are members of an object. */
const char *moe_chat_text_ends(const struct moe_chat *chat);
/* How a parameter is written. */
struct moe_chat_parameter {
    bool text, held; /* texts without quotes; the schema says more of them */
    bool json;       /* values as JSON: all, or where there are such texts all others */
};
struct moe_chat_parameter moe_chat_parameter(const struct moe_chat *chat,
                                             const struct json_t *parameters,
                                             const struct json_t *schema);
/* Kinds of values, as bits, that the schema of one of the parameters allows, as far as types, enums
 * and references to the parameters' definitions tell; all of them if it says nothing. */
enum {
    MOE_VALUE_TEXT = 1,
    MOE_VALUE_NUMBER = 2,
    MOE_VALUE_BOOLEAN = 4,
    MOE_VALUE_NULL = 8,
    MOE_VALUE_LIST = 16,
    MOE_VALUE_OBJECT = 32,
    MOE_VALUE_ANY = 63,
};
unsigned moe_chat_values(const struct json_t *parameters, const struct json_t *schema);
unsigned moe_chat_value_kind(const struct json_t *value);
/* Why no parameter that is written by itself can have this name; NULL: it can. */
const char *moe_chat_key_fault(const struct moe_chat *chat, const char *key);
enum { MOE_CHAT_MAX_TOOL_NAME = 128 };
/* Checks the tools of a file or request: an array of functions with a name and perhaps a schema of
 * their parameters, in OpenAI's form; NULL or null: none.
 * MOE_ERR_FORMAT; `name` begins the error text. */
int moe_chat_check_tools(const char *name, const struct json_t *tools, struct moe_err *err);
/* What a tool of the list describes: its "function", or itself. */
const struct json_t *moe_chat_function(const struct json_t *tool);

/* The special tokens whose texts are part of marks around thoughts or calls, ascending; borrowed.
 */
const struct moe_ids *moe_chat_marks(const struct moe_chat *chat);

#endif
