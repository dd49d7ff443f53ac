/*
 * A chat's parsed template, its variables, and what rendering probes found out about it.
 */
#ifndef MOE_PROMPT_CHAT_INTERNAL_H
#define MOE_PROMPT_CHAT_INTERNAL_H

#include "prompt/chat.h"
#include "prompt/jinja.h"
#include "text/tokenizer.h"

/* How a template treats the forms that a conversation may have. */
struct chat_forms {
    bool parts_only;        /* a content must be a list of parts */
    bool texts_only;        /* ... a text */
    bool arguments_as_text; /* of tool calls; else as an object */
    bool needs_content;     /* it writes "None" for a null content, or fails */
    bool no_system;         /* it refuses or leaves out a system text: it begins the question */
    bool no_tools;          /* it leaves out tools: they are told in words */
    bool no_calls;          /* ... or calls in answers: they are written into the content */
    bool lists_tools;       /* it goes through the tools also where there are none */
    bool no_results;        /* ... or what tools said: it becomes a question */
    bool no_developer;      /* it does not name the role */
    bool one_system;        /* it takes one system text, not several */
    bool early_system;      /* ... and none behind a question */
    bool one_user;          /* it takes no two questions in a row */
    bool one_text;          /* it refuses a thought beside a content in an answer with calls */
};

/*
 * How an answer calls tools: the texts around names and arguments. In them a blank is any blanks or
 * none, and some bytes are holes. A form that a template writes owns its texts.
 */
enum {
    CALL_ID = 1,     /* any text without blanks, up to what follows */
    CALL_NUMBER = 2, /* digits */
    CALL_NAME = 3,   /* the function's name once more */
    CALL_KEY = 4,    /* the parameter's */
    CALL_ANY = 5,    /* any text up to what follows */
    CALL_WORD = 6,   /* a word of small letters */
    MAX_CALL_FORMS = 4,
};

enum call_style {
    CALLS_OBJECT,     /* an object with the name and the arguments: between open and close */
    CALLS_JSON,       /* open NAME named OBJECT close */
    CALLS_PARAMETERS, /* open NAME named (key_begins KEY key_ends VALUE value_ends) ... close */
};

struct call_form {
    enum call_style style;
    bool single;                                        /* one call an answer */
    bool borrowed;                                      /* the texts are constants */
    char *begin, *open, *named, *close, *between, *end; /* begin CALL between CALL end */
    /* OBJECT: the keys; what is before the name, between, and behind the arguments, NULL where
     * these come first. */
    char *name_key, *arguments_key, *object_begins, *object_ends;
    /* PARAMETERS: around texts, and around other values; quote: the mark that makes the difference,
     * NULL: none does. */
    char *key_begins, *parameter_between, *quote;
    bool elements; /* lists and objects are written in the same way, items by the name "item" */
    const char *const *contents; /* what leads to content beside calls; constants; NULL: nothing */
    struct {
        char *key_ends, *value_ends;
    } text, other;
};

/* What items of a list are called where they are elements. */
#define ITEM "item"

/* Follows a JSON object through its bytes. */
struct json_walk {
    uint32_t depth;
    bool in_text, escaped;
};
/* Whether this byte ends the object. */
bool chat_json_walk(struct json_walk *walk, char c);

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
    /* The longer end before a content; then an answer is any messages, thoughts, contents and
     * calls, with thought_ends between them (gpt-oss). NULL: the end is the same. */
    char *thought_ends_content;
    char *own_system; /* moe_chat_own_system */
    struct call_form calls[MAX_CALL_FORMS];
    uint32_t n_calls;
    struct moe_ids marks; /* chat_answer.h: moe_chat_marks */
};

/* Parses the source (chat.h: moe_chat_open) into an empty chat. */
int chat_parse(struct moe_chat *chat, const char *source, uint64_t n, struct moe_err *err);
/* Renders the input as given, within limits (NULL: the defaults). */
int chat_write(const struct moe_chat *chat, const struct moe_chat_input *input,
               const struct moe_jinja_limits *limits, struct moe_buf *out, struct moe_buf *words,
               struct moe_err *err);

/* Finds forms, stops and marks of a parsed chat. Fails only with MOE_ERR_MEMORY; a probe that the
 * template refuses leaves its answer unknown. */
int chat_probe_all(struct moe_chat *chat, const struct moe_tokenizer *tok, const char *source,
                   uint64_t n, struct moe_err *err);

/* ---- Probing ---- */

struct chat_probe {
    struct moe_chat *chat;
    const struct moe_tokenizer *tok;
    struct moe_err *err;
    bool thinks;          /* the template is told that thoughts are wanted */
    bool short_of_memory; /* sticky */
};

#define PROBE_USER "uq7Lk2Vw"
#define PROBE_ANSWER "aN4Xw9Rb"

/* Renders messages, and releases them; false: the template refuses them. A NUL ends the text. */
bool probe_write(struct chat_probe *p, struct json_t *messages, struct json_t *tools, bool prompt,
                 struct moe_buf *out);
/* A content in the form that the template accepts. */
struct json_t *probe_content(const struct chat_probe *p, const char *text);
/* Finds the forms of calls (chat_calls.c); source: the template. */
void chat_learn_calls(struct chat_probe *p, const char *source, uint64_t n);
void chat_free_calls(struct call_form *form);
/* Whether parameters that are texts can be written as in JSON: their quote is one byte. */
bool chat_texts_are_json(const struct call_form *form);
/* Appends an answer's calls, a message's "tool_calls", as the form has them. */
void chat_write_calls(const struct call_form *form, const struct json_t *calls,
                      struct moe_buf *out);
/* What the schema of one of the parameters refers to, or itself; NULL: it is not there. */
const struct json_t *chat_referenced(const struct json_t *parameters, const struct json_t *schema);
/* The next mark within a piece, behind its first byte; NULL: there is none. */
const char *chat_next_mark(const char *piece);
/* Finds the special tokens in marks. */
int chat_find_marks(struct moe_chat *chat, const struct moe_tokenizer *tok, struct moe_err *err);

/* *out: the messages in forms that the template accepts, with the tools in words where it has no
 * place for them; NULL: they already are. */
int chat_adapt(const struct moe_chat *chat, const struct json_t *messages,
               const struct json_t *tools, struct json_t **out, struct moe_err *err);

#endif
