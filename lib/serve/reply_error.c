/* Replies: errors. */
#include <string.h>

#include "fmt/emit.h"
#include "serve/reply.h"

/* How sentences about a request begin (request_parts.h), and one about its model. */
#define OF_REQUEST "the request: '"
#define OF_MODEL "the model '"

static bool begins_with(const char *text, const char *words)
{
    return strncmp(text, words, strlen(words)) == 0;
}

unsigned moe_reply_http_status(const struct moe_err *why)
{
    switch (why->status) {
    case MOE_ERR_USAGE:
        return begins_with(why->text, OF_MODEL) ? 404 : 400;
    case MOE_ERR_FORMAT:
    case MOE_ERR_UNSUPPORTED:
    case MOE_ERR_LIMIT:
        return 400;
    case MOE_ERR_MEMORY:
    case MOE_ERR_INTERRUPTED:
        return 503;
    default:
        return 500;
    }
}

static const struct {
    unsigned http_status;
    const char *type, *code;
} kinds[] = {
    {401, "invalid_request_error", "invalid_api_key"},
    {403, "permission_error", NULL},
    {404, "invalid_request_error", "not_found"},
    {413, "invalid_request_error", "request_too_large"},
    {429, "rate_limit_error", "rate_limit_exceeded"},
};

static void put_or_null(struct moe_emit *e, const char *key, const char *text)
{
    if (text)
        moe_emit_text(e, key, text);
    else
        moe_emit_null(e, key);
}

void moe_reply_emit_error(struct moe_emit *e, unsigned http_status, const struct moe_err *why)
{
    const char *type = http_status < 500 ? "invalid_request_error" : "server_error", *code = NULL;
    char param[64] = "";
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (kinds[i].http_status == http_status) {
            type = kinds[i].type;
            code = kinds[i].code;
        }
    if (begins_with(why->text, OF_REQUEST)) {
        const char *key = why->text + strlen(OF_REQUEST);
        size_t n = strcspn(key, "'");
        memcpy(param, key, n < sizeof param ? n : 0);
    } else if (http_status == 404 && begins_with(why->text, OF_MODEL)) {
        strcpy(param, "model");
        code = "model_not_found";
    } else if (why->status == MOE_ERR_UNSUPPORTED && begins_with(why->text, OF_MODEL)) {
        code = "no_chat_template"; /* nothing else is missing of models (job.c) */
    } else if (http_status == 400 && why->status == MOE_ERR_LIMIT) {
        code = "context_length_exceeded";
    }
    moe_emit_open_map(e, "error");
    moe_emit_text(e, "message", why->text);
    moe_emit_text(e, "type", type);
    put_or_null(e, "param", param[0] ? param : NULL);
    put_or_null(e, "code", code);
    moe_emit_close(e);
}

void moe_reply_error(struct moe_buf *out, unsigned http_status, const struct moe_err *why)
{
    struct moe_emit e;
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    moe_reply_emit_error(&e, http_status, why);
    moe_emit_end_item(&e, NULL);
}
