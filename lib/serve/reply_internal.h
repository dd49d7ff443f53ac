/*
 * A reply under way, and how the APIs write theirs.
 */
#ifndef MOE_SERVE_REPLY_INTERNAL_H
#define MOE_SERVE_REPLY_INTERNAL_H

#include <jansson.h>

#include "base/buf.h"
#include "engine/answer.h"
#include "prompt/chat_answer.h"
#include "serve/reply.h"

/* A choice's log probabilities in its reply's form: for /v1/chat/completions an object for each
 * token, for /v1/completions four lists. Begins with zeroes. */
struct reply_logprobs {
    enum moe_request_kind kind;
    bool with_top;           /* TEXT: the likeliest are wanted */
    uint64_t offset;         /* TEXT: characters before the next token */
    struct moe_buf lists[4]; /* JSON, not closed; CHAT: one */
};

/* A call of a tool: what is not sent yet. */
struct call {
    char id[40]; /* "" once it was sent */
    struct moe_buf name, arguments;
    bool fails, left_out; /* it is content; or not even that */
};

struct choice {
    struct moe_buf text, thought; /* not sent yet */
    struct call *calls;           /* [n_calls]; of a stream only the last has anything */
    uint32_t n_calls, n_whole;
    bool short_of_memory, has_text; /* content was said */
    bool cut_call;                  /* ... which ends with a call that was cut off */
    struct reply_logprobs logprobs;
    double log_sum; /* of the probabilities of its tokens so far, n_said */
    uint64_t n_said;
    bool begun;         /* a part was sent */
    const char *finish; /* NULL: it continues */
    enum moe_stop_reason why;
    const struct moe_server_result *result; /* while the answer ends */
};

struct moe_reply {
    enum moe_request_kind kind;
    bool stream, stream_usage, logprobs;
    char id[40], *model;
    int64_t created;
    uint64_t n_begun;    /* tokens of the prompt that is being answered */
    uint32_t n_left_out; /* messages that it lacks */
    uint64_t n_prompt, n_tokens, n_cached, n_drafted, n_accepted;
    uint32_t n, n_each, n_shown, n_ended; /* as of struct moe_request */
    bool failed;
    struct moe_err why;
    /* Other APIs (reply_api). */
    const struct moe_reply_api *api; /* NULL: OpenAI's completions */
    char *asked;                     /* JSON, members that the reply gives back; NULL: none */
    bool begun;                      /* the stream's first events are written */
    int open; /* kind of the item that goes on, enum moe_answer_part_kind; -1: none */
    uint32_t n_items, n_events;
    uint64_t n_vectors_bytes; /* of embeddings, as text */
    char item_id[40];
    struct moe_buf item, items; /* text of the open item; what was written of the others */
    struct choice choices[];
};

/* An API other than OpenAI's completions: its requests as chats, its replies, of one choice. */
struct moe_reply_api {
    /* Makes the body of a chat completion, or with "prompt" of a text completion; *chat is released
     * with moe_json_free. May set what such a body cannot say. */
    int (*to_chat)(struct moe_request *r, struct json_t **chat, const struct json_t *body,
                   struct moe_err *err);
    const char *const *keys; /* that it reads of a body; NULL-terminated */
    /* Where an error names a chat's key, what is put in its place; ended by NULL. */
    const char *const (*renamed)[2];
    const char *id, *call_id; /* what the ids of replies and calls begin with */
    bool lines;               /* a stream is JSON lines, not server-sent events */
    bool apart;               /* thoughts and texts with others between them are not joined */
    /* More of the answer, which the choice has noted already. `out`: a stream's events. NULL, as
     * `fail`: there are no answers. */
    void (*part)(struct moe_reply *r, const struct moe_answer_part *part, struct moe_buf *out);
    /* A choice has ended, of an API with several; NULL: there is nothing to note. */
    void (*choice)(struct moe_reply *r, struct choice *c);
    /* The answer is complete: a stream's last events, or the whole reply. */
    void (*end)(struct moe_reply *r, struct moe_buf *out);
    /* An error's body (NULL: as of completions), and as a stream's last event. */
    void (*error)(struct moe_buf *out, unsigned http_status, const struct moe_err *why);
    void (*fail)(struct moe_reply *r, struct moe_buf *out);
    /* Appends the response, and the conversation with its answer, both as JSON; called when the
     * answer is complete. NULL: responses are not kept. */
    bool (*keep)(struct moe_reply *r, const char *conversation, struct moe_buf *response,
                 struct moe_buf *out);
};
extern const struct moe_reply_api reply_messages, reply_count, reply_responses, reply_tokenize,
    reply_detokenize, reply_completion, reply_infill, reply_ollama_chat, reply_ollama_generate,
    reply_embeddings, reply_ollama_embed, reply_ollama_embeddings;

/* Puts a call that fails behind the choice's content, with an empty line between. */
void reply_put_failed(struct choice *c, const struct moe_answer_part *part);

/* Ollama's errors (api_ollama.c). */
void reply_ollama_error(struct moe_buf *out, unsigned http_status, const struct moe_err *why);

/* ---- api_chat.c: requests of other APIs as chats ---- */

/* Makes a chat of a request; jansson fails only for lack of memory, which `failed` notes. */
struct chat_maker {
    struct moe_err *err;
    bool failed;
};

void chat_add(struct chat_maker *m, json_t *list, json_t *value);
/* Adds a thought, a text that it takes over, to those that the message has: a list, until
 * chat_join_thoughts makes one text of each message's, with empty lines between them. */
void chat_add_thought(struct chat_maker *m, json_t *message, json_t *text);
void chat_join_thoughts(struct chat_maker *m, json_t *messages);
/* Sets a member. */
void chat_put(struct chat_maker *m, json_t *object, const char *key, json_t *value);
/* Sets the member `as` to that of the body, if it has one that is not null. */
void chat_take(struct chat_maker *m, json_t *chat, const char *as, const json_t *body,
               const char *key);
/* A member's text; "" if it is none. */
const char *chat_text_of(const json_t *object, const char *key);

enum chat_type { CHAT_TEXT, CHAT_LIST, CHAT_OBJECT, CHAT_BOOL, CHAT_TEXT_OR_LIST };

/* What an object's members must be; null counts as missing. Ended by a NULL key. */
struct chat_member {
    const char *key;
    enum chat_type type;
    bool needed;
};

/* MOE_ERR_FORMAT where a member is missing or of another type, or `object` is none; `where` is the
 * path to it, "" at the top. */
int chat_check(struct chat_maker *m, const json_t *object, const char *where,
               const struct chat_member *members);
/* Notes the keys of an object that are none of `known` (NULL-terminated) as ignored, behind `path`
 * ("options."). */
void chat_ignore_others(struct moe_request *r, const json_t *object, const char *path,
                        const char *const *known);
/* Checks the type of a request's "thinking", where that is an object. */
int chat_check_thinking(const struct json_t *thinking, struct moe_err *err);
/* Whether a key says how tokens are drawn, which an answer may have or end with, or what the
 * template gets: every API takes those. */
bool chat_says_draws(const char *key);
/* Keeps the members named of a body, those that it has, for replies that give them back. */
void chat_keep(struct moe_request *r, struct chat_maker *m, const json_t *body,
               const char *const *keys);
/* MOE_ERR_MEMORY where memory was short. */
int chat_end(const struct chat_maker *m, int status);

/* ---- Streams ---- */

/* Begins a server-sent event with a name; its data is an object that reply_end_event ends. */
void reply_begin_event(struct moe_emit *e, struct moe_buf *out, const char *name);
void reply_end_event(struct moe_emit *e, struct moe_buf *out);
/* An item of those that the reply has at last (r->items), written into an empty list, which is
 * released. */
void reply_begin_item(struct moe_emit *e, struct moe_buf *list);
void reply_end_item(struct moe_reply *r, struct moe_emit *e, struct moe_buf *list);
/* An id of its own for a part of a reply: the prefix and 16 hexadecimal digits. */
void reply_draw_id(char id[40], const char *prefix);

#endif
