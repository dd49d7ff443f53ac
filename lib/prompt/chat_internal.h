/*
 * A chat's template as it is parsed, with what it is given beside the conversation; and what was
 * found out about it by rendering.
 */
#ifndef MOE_PROMPT_CHAT_INTERNAL_H
#define MOE_PROMPT_CHAT_INTERNAL_H

#include "prompt/chat.h"
#include "prompt/jinja.h"

/* What a template does with the forms that a conversation may have. */
struct chat_forms {
    bool parts_only;        /* a content must be a list of parts */
    bool texts_only;        /* ... a text */
    bool arguments_as_text; /* of tool calls; else as an object */
    bool writes_none;       /* of a content that is null */
    bool no_system;         /* it leaves a system text out */
    bool no_tools;          /* ... and tools */
    bool no_developer;      /* the role is not named in it */
};

struct moe_chat {
    char *name;
    struct moe_jinja *plain, *with_tools; /* with_tools NULL: the same */
    struct json_t *bos, *eos;             /* texts, "" for none */
    struct chat_forms forms;
    char **stops; /* NULL-terminated */
    /* Of thoughts, without blanks around them; NULL: the template writes none. lead: what precedes
     * the content of an answer without thought. */
    const char *thought_member;
    char *thought_begins, *thought_ends, *lead;
};

/* Parses the source (chat.h: moe_chat_open) into an empty chat. */
int chat_parse(struct moe_chat *chat, const char *source, uint64_t n, struct moe_err *err);
/* Renders as it is given, within limits (NULL: the defaults). */
int chat_write(const struct moe_chat *chat, const struct moe_chat_input *input,
               const struct moe_jinja_limits *limits, struct moe_buf *out, struct moe_buf *words,
               struct moe_err *err);

/* Finds forms, stops and marks of a parsed chat. MOE_ERR_MEMORY alone; what a template refuses
 * leaves unknown what it would have told. */
int chat_probe(struct moe_chat *chat, const struct moe_tokenizer *tok, struct moe_err *err);

/* *out: the messages in the forms that the template takes; NULL: they are, as given. */
int chat_adapt(const struct moe_chat *chat, const struct json_t *messages, struct json_t **out,
               struct moe_err *err);

#endif
