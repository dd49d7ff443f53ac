#include "serve/request.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fmt/json.h"
#include "grammar/constraint.h"
#include "serve/request_parts.h"

enum {
    MALLOC_BYTES = 32,      /* of a small block, beside what is in it */
    SOME_LOGITS = 256 << 10 /* of the model that will answer, which is not known yet */
};

static int read_body(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    const json_t *model = json_object_get(body, "model");
    int status = MOE_OK;
    if (model && !json_is_null(model))
        status = request_copy_text(&r->model, model, "'model'", err);
    if (status == MOE_OK)
        status = request_read_options(r, body, err);
    if (status == MOE_OK)
        status = request_read_text(r, body, err);
    if (status == MOE_OK)
        status = request_read_stops(r, body, err);
    if (status == MOE_OK)
        status = request_read_fields(r, body, err);
    return status;
}

int moe_request_read(struct moe_request **out, enum moe_request_kind kind,
                     const struct json_t *body, struct moe_err *err)
{
    *out = NULL;
    if (!json_is_object(body))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST " is not a JSON object");
    struct moe_request *r = moe_alloc(1, sizeof *r, err);
    if (!r)
        return MOE_ERR_MEMORY;
    r->kind = kind;
    int status = read_body(r, body, err);
    if (status == MOE_OK)
        *out = r;
    else
        moe_request_free(r);
    return status;
}

int moe_request_parse(struct moe_request **out, enum moe_request_kind kind, const void *json,
                      uint64_t n, struct moe_err *err)
{
    struct json_t *body;
    *out = NULL;
    int status = moe_json_parse(&body, REQUEST, json, n, MOE_REQUEST_MEMORY, err);
    if (status == MOE_OK)
        status = moe_request_read(out, kind, body, err);
    moe_json_free(body);
    return status;
}

void moe_request_free(struct moe_request *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; i < r->n_stops; i++)
        free((char *)r->stops[i]);
    for (uint32_t i = 0; i < r->n_fields; i++) {
        free(r->fields[i].name);
        free(r->fields[i].text);
    }
    moe_json_free(r->messages);
    moe_json_free(r->tools);
    moe_json_free(r->variables);
    free(r->question);
    free(r->stops);
    free(r->fields);
    free(r->prompt);
    free(r->prefix_text);
    free(r->ids);
    moe_grammar_free(r->grammar);
    free(r->model);
    free(r->id);
    free(r);
}

uint64_t moe_request_bytes(const struct moe_request *r)
{
    uint64_t bytes = sizeof *r + r->n_prompt + r->n_ids * sizeof *r->ids + r->chat_bytes +
                     r->n_fields * sizeof *r->fields;
    for (uint32_t i = 0; i < r->n_stops; i++)
        bytes += strlen(r->stops[i]) + MALLOC_BYTES;
    for (uint32_t i = 0; i < r->n_fields; i++)
        bytes += strlen(r->fields[i].name) + strlen(r->fields[i].text) + 2 * MALLOC_BYTES;
    if (r->grammar)
        bytes += moe_grammar_bytes(r->grammar) + r->n * moe_constraint_bytes(SOME_LOGITS);
    return bytes;
}

uint64_t moe_request_seed(const struct moe_request *r, uint32_t choice)
{
    return r->sampling.seed + choice;
}

const char *moe_request_field(const struct moe_request *r, const char *name)
{
    if (strcmp(name, "model") == 0)
        return r->model;
    if (strcmp(name, "prompt") == 0)
        return r->kind == MOE_REQUEST_CHAT ? r->question : r->prompt;
    for (uint32_t i = 0; i < r->n_fields; i++)
        if (strcmp(r->fields[i].name, name) == 0)
            return r->fields[i].text;
    return NULL;
}
