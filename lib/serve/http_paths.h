/*
 * The table of routes: which paths there are, how each is asked and in whose form it answers.
 */
#ifndef MOE_SERVE_HTTP_PATHS_H
#define MOE_SERVE_HTTP_PATHS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "serve/request.h"

enum moe_http_route {
    MOE_HTTP_PAGE,
    MOE_HTTP_HEALTH,
    MOE_HTTP_METRICS,
    MOE_HTTP_MODELS,
    MOE_HTTP_MODEL,
    MOE_HTTP_CHAT,
    MOE_HTTP_TEXT,
    MOE_HTTP_MESSAGES,
    MOE_HTTP_COUNT,
    MOE_HTTP_RESPONSES,
    MOE_HTTP_RESPONSE_ITEMS,
    MOE_HTTP_RESPONSE,
    MOE_HTTP_TOKENIZE,
    MOE_HTTP_DETOKENIZE,
    MOE_HTTP_COMPLETION,
    MOE_HTTP_INFILL,
    MOE_HTTP_PROPS,
    MOE_HTTP_SLOTS,
    MOE_HTTP_OLLAMA_CHAT,
    MOE_HTTP_OLLAMA_GENERATE,
    MOE_HTTP_EMBEDDINGS,
    MOE_HTTP_OLLAMA_EMBED,
    MOE_HTTP_OLLAMA_EMBEDDINGS,
    MOE_HTTP_OLLAMA_TAGS,
    MOE_HTTP_OLLAMA_PS,
    MOE_HTTP_OLLAMA_SHOW,
    MOE_HTTP_OLLAMA_VERSION,
    MOE_HTTP_STUDIO_MODELS,
    MOE_HTTP_ELSEWHERE, /* no route */
    MOE_HTTP_ROUTES,
};

enum moe_http_how {
    MOE_HTTP_READ,   /* GET */
    MOE_HTTP_ANSWER, /* POST that a model answers */
    MOE_HTTP_SHOW,   /* POST that is read at once */
    MOE_HTTP_KEPT,   /* GET or DELETE */
};

struct moe_http_path {
    const char *path; /* "other" for none; {id} is any text there */
    enum moe_http_how how;
    enum moe_request_kind kind; /* of ANSWER; else in whose form errors are */
    bool open;                  /* without a key */
};
extern const struct moe_http_path moe_http_paths[MOE_HTTP_ROUTES];

/* The route of a path; `item` gets what it has in the place of {id}, decoded. */
enum moe_http_route moe_http_find(const char *url, char *item, size_t room);
/* In whose form errors at a path without a route are. */
enum moe_request_kind moe_http_form_of(const char *path);
/* Says that there is nothing at a path, and what was probably meant. */
void moe_http_refuse(const char *path, struct moe_err *why);

#endif
