/* The table of routes, and how the route of a path is found. */
#include "serve/http_paths.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

const struct moe_http_path moe_http_paths[MOE_HTTP_ROUTES] = {
    [MOE_HTTP_PAGE] = {"/", .open = true},
    [MOE_HTTP_HEALTH] = {"/health", .open = true},
    [MOE_HTTP_METRICS] = {"/metrics"},
    [MOE_HTTP_MODELS] = {"/v1/models"},
    [MOE_HTTP_MODEL] = {"/v1/models/{id}"},
    [MOE_HTTP_CHAT] = {"/v1/chat/completions", MOE_HTTP_ANSWER, MOE_REQUEST_CHAT},
    [MOE_HTTP_TEXT] = {"/v1/completions", MOE_HTTP_ANSWER, MOE_REQUEST_TEXT},
    [MOE_HTTP_MESSAGES] = {"/v1/messages", MOE_HTTP_ANSWER, MOE_REQUEST_MESSAGES},
    [MOE_HTTP_COUNT] = {"/v1/messages/count_tokens", MOE_HTTP_ANSWER, MOE_REQUEST_COUNT},
    [MOE_HTTP_RESPONSES] = {"/v1/responses", MOE_HTTP_ANSWER, MOE_REQUEST_RESPONSES},
    [MOE_HTTP_RESPONSE_ITEMS] = {"/v1/responses/{id}/input_items", .kind = MOE_REQUEST_RESPONSES},
    [MOE_HTTP_RESPONSE] = {"/v1/responses/{id}", MOE_HTTP_KEPT, MOE_REQUEST_RESPONSES},
    [MOE_HTTP_TOKENIZE] = {"/tokenize", MOE_HTTP_ANSWER, MOE_REQUEST_TOKENIZE},
    [MOE_HTTP_DETOKENIZE] = {"/detokenize", MOE_HTTP_ANSWER, MOE_REQUEST_DETOKENIZE},
    [MOE_HTTP_COMPLETION] = {"/completion", MOE_HTTP_ANSWER, MOE_REQUEST_COMPLETION},
    [MOE_HTTP_INFILL] = {"/infill", MOE_HTTP_ANSWER, MOE_REQUEST_INFILL},
    [MOE_HTTP_PROPS] = {"/props"},
    [MOE_HTTP_SLOTS] = {"/slots"},
    [MOE_HTTP_OLLAMA_CHAT] = {"/api/chat", MOE_HTTP_ANSWER, MOE_REQUEST_OLLAMA_CHAT},
    [MOE_HTTP_OLLAMA_GENERATE] = {"/api/generate", MOE_HTTP_ANSWER, MOE_REQUEST_OLLAMA_GENERATE},
    [MOE_HTTP_EMBEDDINGS] = {"/v1/embeddings", MOE_HTTP_ANSWER, MOE_REQUEST_EMBEDDINGS},
    [MOE_HTTP_OLLAMA_EMBED] = {"/api/embed", MOE_HTTP_ANSWER, MOE_REQUEST_OLLAMA_EMBED},
    [MOE_HTTP_OLLAMA_EMBEDDINGS] = {"/api/embeddings", MOE_HTTP_ANSWER,
                                    MOE_REQUEST_OLLAMA_EMBEDDINGS},
    [MOE_HTTP_OLLAMA_TAGS] = {"/api/tags", .kind = MOE_REQUEST_OLLAMA_CHAT},
    [MOE_HTTP_OLLAMA_PS] = {"/api/ps", .kind = MOE_REQUEST_OLLAMA_CHAT},
    [MOE_HTTP_OLLAMA_SHOW] = {"/api/show", MOE_HTTP_SHOW, MOE_REQUEST_OLLAMA_CHAT},
    [MOE_HTTP_OLLAMA_VERSION] = {"/api/version", .kind = MOE_REQUEST_OLLAMA_CHAT},
    [MOE_HTTP_STUDIO_MODELS] = {"/api/v0/models"},
    [MOE_HTTP_ELSEWHERE] = {"other"},
};

/* Copies what a path has in the place of {id}, up to `end`; its escapes are decoded, those of
 * slashes too, which names of models may have. False: it is empty, too long or has control
 * characters. */
static bool copy_item(const char *from, const char *end, char *to, size_t room)
{
    size_t n = 0;
    for (; from < end && n + 1 < room; from++) {
        unsigned code = (unsigned char)*from;
        if (*from == '%' && isxdigit((unsigned char)from[1]) && isxdigit((unsigned char)from[2])) {
            sscanf(from + 1, "%2x", &code);
            from += 2;
        }
        if (code < ' ')
            return false;
        to[n++] = (char)code;
    }
    to[n] = 0;
    return n > 0 && from >= end;
}

/* Of LM Studio's API, whose routes are OpenAI's otherwise. */
#define STUDIO "/api/v0/"

/* The route of a path, and what it has in the place of {id}. */
enum moe_http_route moe_http_find(const char *url, char *item, size_t room)
{
    for (int i = 0; i < MOE_HTTP_ELSEWHERE; i++) {
        const char *path = moe_http_paths[i].path, *id = strstr(path, "{id}");
        const char *rest = id ? id + strlen("{id}") : "";
        const size_t n = id ? (size_t)(id - path) : strlen(path), length = strlen(url);
        if (strncmp(path, url, n) == 0 &&
            (id ? moe_ends_with(url + n, rest) &&
                      copy_item(url + n, url + length - strlen(rest), item, room)
                : !url[n]))
            return (enum moe_http_route)i;
    }
    if (strncmp(url, STUDIO, strlen(STUDIO)) == 0) { /* it has all of OpenAI's besides */
        char same[1024];
        int n = snprintf(same, sizeof same, "/v1/%s", url + strlen(STUDIO));
        return n < (int)sizeof same ? moe_http_find(same, item, room) : MOE_HTTP_ELSEWHERE;
    }
    return MOE_HTTP_ELSEWHERE;
}

/* In whose form errors at a path without a route are: another's that has such paths. */
enum moe_request_kind moe_http_form_of(const char *path)
{
    if (strncmp(path, "/v1/messages", strlen("/v1/messages")) == 0)
        return MOE_REQUEST_MESSAGES;
    return strncmp(path, "/api/", 5) == 0 && strncmp(path, STUDIO, strlen(STUDIO)) != 0
               ? MOE_REQUEST_OLLAMA_CHAT
               : MOE_REQUEST_CHAT;
}

/* Says that there is nothing, and what was probably meant: a base URL has too much or too little
 * before a route. */
void moe_http_refuse(const char *path, struct moe_err *why)
{
    static const char *const ollama[] = {"/api/pull", "/api/push",   "/api/create",
                                         "/api/copy", "/api/delete", "/api/blobs"};
    const char *meant = NULL;
    for (size_t i = 0; i < sizeof ollama / sizeof ollama[0]; i++)
        if (strncmp(path, ollama[i], strlen(ollama[i])) == 0) {
            moe_fail(why, MOE_ERR_USAGE,
                     "'%.200s' is not supported by this server: its models are those that it was "
                     "started with",
                     path);
            return;
        }
    for (int i = MOE_HTTP_PAGE + 1; i < MOE_HTTP_ELSEWHERE; i++) {
        const char *route = moe_http_paths[i].path;
        if (strlen(path) > 1 && (moe_ends_with(route, path) || moe_ends_with(path, route)) &&
            (!meant || strlen(route) < strlen(meant)))
            meant = route;
    }
    moe_fail(why, MOE_ERR_USAGE, "there is nothing at '%.200s'%s%s%s", path,
             meant ? "; did you mean '" : "", meant ? meant : "", meant ? "'?" : "");
}
