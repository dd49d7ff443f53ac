/*
 * A chat's parsed template, its variables, and what rendering probes found out about it.
 */
#ifndef MOE_PROMPT_CHAT_INTERNAL_H
#define MOE_PROMPT_CHAT_INTERNAL_H

#include "prompt/chat.h"
#include "prompt/jinja.h"

/* How a template treats the forms that a conversation may have. */
struct chat_forms {
    bool parts_only;        /* a content must be a list of parts */
    bool texts_only;        /* ... a text */
    bool arguments_as_text; /* of tool calls; else as an object */
    bool writes_none;       /* for a null content */
    bool no_system;         /* it leaves out a system text */
    bool no_tools;          /* ... or tools */
    bool no_developer;      /* it does not name the role */
};

struct moe_chat {
    char *name;
    struct moe_jinja *plain, *with_tools; /* with_tools NULL: the same */
    struct json_t *bos, *eos;             /* texts, "" for none */
    struct chat_forms forms;
    char **stops; /* NULL-terminated */
    /* Thoughts, without surrounding blanks; NULL: the template writes none. lead: text before the
     * content of an answer without thought. */
    const char *thought_member;
    char *thought_begins, *thought_ends, *lead;
};

/* Parses the source (chat.h: moe_chat_open) into an empty chat. */
int chat_parse(struct moe_chat *chat, const char *source, uint64_t n, struct moe_err *err);
/* Renders the input as given, within limits (NULL: the defaults). */
int chat_write(const struct moe_chat *chat, const struct moe_chat_input *input,
               const struct moe_jinja_limits *limits, struct moe_buf *out, struct moe_buf *words,
               struct moe_err *err);

/* Finds forms, stops and marks of a parsed chat. Fails only with MOE_ERR_MEMORY; a probe that the
 * template refuses leaves its answer unknown. */
int chat_probe(struct moe_chat *chat, const struct moe_tokenizer *tok, struct moe_err *err);

/* *out: the messages in forms that the template accepts; NULL: they already are. */
int chat_adapt(const struct moe_chat *chat, const struct json_t *messages, struct json_t **out,
               struct moe_err *err);

#endif
