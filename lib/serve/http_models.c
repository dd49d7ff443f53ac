/* What the front door says of models: lists and descriptions, in the forms of the APIs that clients
 * know. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "fmt/emit.h"
#include "serve/http_internal.h"
#include "serve/server.h"

/* Writes a time as APIs have it: "2026-11-22T08:00:00Z". */
static void put_time(struct moe_emit *e, const char *key, int64_t seconds)
{
    char text[32];
    struct tm utc;
    time_t at = (time_t)seconds;
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&at, &utc));
    moe_emit_text(e, key, text);
}

/* ---- /v1/models ---- */

/* Writes a model's members: those of OpenAI and Anthropic, and the context by the names that
 * clients look for (OpenRouter's, vLLM's, LM Studio's, llama.cpp's). */
static void put_model(struct moe_emit *e, const struct moe_server_model *m)
{
    struct moe_sampler_options nothing;
    moe_emit_text(e, "id", m->name);
    moe_emit_text(e, "object", "model");
    moe_emit_i64(e, "created", m->modified);
    moe_emit_text(e, "owned_by", "moe-serve");
    moe_emit_text(e, "type", "model");
    moe_emit_text(e, "display_name", m->name);
    put_time(e, "created_at", m->modified);
    if (m->model)
        moe_emit_text(e, "root", m->model);
    if (m->context) {
        moe_emit_u64(e, "context_length", m->context);
        moe_emit_u64(e, "max_model_len", m->context);
        moe_emit_u64(e, "max_context_length", m->context);
        moe_emit_open_map(e, "meta");
        moe_emit_u64(e, "n_ctx", m->context);
        moe_emit_u64(e, "n_ctx_train", m->most_context);
        moe_emit_u64(e, "n_vocab", m->vocab);
        moe_emit_u64(e, "n_embd", m->hidden);
        if (m->parameters)
            moe_emit_u64(e, "n_params", m->parameters);
        moe_emit_u64(e, "size", m->file_bytes);
        moe_emit_close(e);
    }
    moe_sampling_unsaid(&nothing);
    if (m->sampling)
        moe_sampling_emit(e, "sampling", &nothing, m->sampling);
}

void http_write_models(struct moe_server *s, struct moe_buf *out)
{
    struct moe_server_model m;
    struct moe_emit e;
    const char *first = moe_server_model(s, 0), *last = first;
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    moe_emit_text(&e, "object", "list");
    moe_emit_open_list(&e, "data");
    for (uint32_t i = 0; moe_server_describe(s, i, &m); i++) {
        moe_emit_open_map(&e, NULL);
        put_model(&e, &m);
        moe_emit_close(&e);
        last = m.name;
    }
    moe_emit_close(&e);
    moe_emit_bool(&e, "has_more", false);
    moe_emit_text(&e, "first_id", first);
    moe_emit_text(&e, "last_id", last);
    moe_emit_end_item(&e, NULL);
}

void http_write_model(const struct moe_server_model *m, struct moe_buf *out)
{
    struct moe_emit e;
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    put_model(&e, m);
    moe_emit_end_item(&e, NULL);
}
