/* What the front door says of models: lists and descriptions, in the forms of the APIs that clients
 * know. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/hash.h"
#include "fmt/emit.h"
#include "serve/http_internal.h"
#include "serve/server.h"

/* When models leave memory: not by the clock. In seconds since 1970, the year 2100. */
#define NEVER 4102444800

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

/* ---- llama.cpp's /props ---- */

void http_write_props(struct moe_server *s, struct moe_buf *out)
{
    struct moe_server_model m;
    struct moe_sampler_options nothing;
    struct moe_sampling_value v;
    struct moe_buf template = {0};
    struct moe_emit e;
    moe_server_describe(s, 0, &m);
    moe_server_template(s, m.name, &template);
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    moe_emit_open_map(&e, "default_generation_settings");
    moe_emit_u64(&e, "n_ctx", m.context);
    moe_emit_open_map(&e, "params");
    moe_sampling_unsaid(&nothing);
    for (int i = 0; moe_sampling_value(&nothing, m.sampling, i, &v); i++)
        moe_emit_rounded(&e, v.field->key, 7, v.value);
    moe_emit_close(&e);
    moe_emit_close(&e);
    moe_emit_u64(&e, "total_slots", moe_server_sequences(s));
    moe_emit_text(&e, "model_alias", m.name);
    moe_emit_text(&e, "model_path", m.name); /* where it lies is nobody's business */
    moe_emit_bytes(&e, "chat_template", template.data, template.size);
    moe_emit_open_map(&e, "modalities");
    moe_emit_bool(&e, "vision", false);
    moe_emit_bool(&e, "audio", false);
    moe_emit_close(&e);
    moe_emit_text(&e, "build_info", "moe-toolkit " MOE_VERSION);
    moe_emit_end_item(&e, NULL);
    out->failed |= template.failed;
    moe_buf_release(&template);
}

bool http_write_slots(struct moe_server *s, struct moe_buf *out)
{
    struct moe_server_counts counts;
    struct moe_server_model m;
    const uint32_t n = moe_server_sequences(s);
    moe_server_describe(s, 0, &m);
    moe_server_count(s, &counts);
    for (uint32_t i = 0; i < n; i++)
        moe_buf_printf(out, "%s{\"id\":%u,\"n_ctx\":%u,\"is_processing\":%s}", i ? "," : "[", i,
                       m.context, i < counts.running ? "true" : "false");
    moe_buf_text(out, "]\n");
    return counts.running < n;
}

/* ---- LM Studio ---- */

void http_write_studio_models(struct moe_server *s, struct moe_buf *out)
{
    struct moe_server_model m;
    struct moe_emit e;
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    moe_emit_text(&e, "object", "list");
    moe_emit_open_list(&e, "data");
    for (uint32_t i = 0; moe_server_describe(s, i, &m); i++) {
        moe_emit_open_map(&e, NULL);
        moe_emit_text(&e, "id", m.name);
        moe_emit_text(&e, "object", "model");
        moe_emit_text(&e, "type", "llm");
        moe_emit_text(&e, "publisher", "");
        moe_emit_text(&e, "arch", m.family);
        moe_emit_text(&e, "compatibility_type", "gguf"); /* clients know this and mlx */
        moe_emit_text(&e, "quantization", m.weights);
        moe_emit_text(&e, "state", m.loaded ? "loaded" : "not-loaded");
        moe_emit_u64(&e, "max_context_length", m.context);
        moe_emit_u64(&e, "loaded_context_length", m.context);
        moe_emit_open_list(&e, "capabilities");
        if (m.calls)
            moe_emit_text(&e, NULL, "tool_use");
        moe_emit_close(&e);
        moe_emit_close(&e);
    }
    moe_emit_close(&e);
    moe_emit_end_item(&e, NULL);
}

/* ---- Ollama ---- */

static void put_details(struct moe_emit *e, const struct moe_server_model *m)
{
    char text[32];
    moe_emit_open_map(e, "details");
    moe_emit_text(e, "parent_model", m->model && strcmp(m->model, m->name) != 0 ? m->model : "");
    moe_emit_text(e, "format", m->format);
    moe_emit_text(e, "family", m->family);
    moe_emit_open_list(e, "families");
    moe_emit_text(e, NULL, m->family);
    moe_emit_close(e);
    snprintf(text, sizeof text, m->parameters < 1000000000 ? "%.1fM" : "%.1fB",
             (double)m->parameters / (m->parameters < 1000000000 ? 1e6 : 1e9));
    moe_emit_text(e, "parameter_size", text);
    moe_emit_text(e, "quantization_level", m->weights);
    moe_emit_close(e);
}

/* Writes 64 digits that tell models apart, as a SHA-256 would: the fingerprint and what follows
 * from it. */
static void put_digest(struct moe_emit *e, uint64_t fingerprint)
{
    char digest[65];
    for (int i = 0; i < 4; i++) {
        snprintf(digest + 16 * i, 17, "%016llx", (unsigned long long)fingerprint);
        fingerprint = moe_hash64_chain(fingerprint, &i, sizeof i);
    }
    moe_emit_text(e, "digest", digest);
}

void http_write_tags(struct moe_server *s, bool only_loaded, struct moe_buf *out)
{
    struct moe_server_model m;
    struct moe_emit e;
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    moe_emit_open_list(&e, "models");
    for (uint32_t i = 0; moe_server_describe(s, i, &m); i++) {
        if (only_loaded && !m.loaded)
            continue;
        moe_emit_open_map(&e, NULL);
        moe_emit_text(&e, "name", m.name);
        moe_emit_text(&e, "model", m.name);
        put_time(&e, only_loaded ? "expires_at" : "modified_at", only_loaded ? NEVER : m.modified);
        moe_emit_u64(&e, "size", m.file_bytes);
        put_digest(&e, m.fingerprint);
        put_details(&e, &m);
        if (only_loaded) {
            moe_emit_u64(&e, "size_vram", 0); /* not told apart here: /metrics has it */
            moe_emit_u64(&e, "context_length", m.context);
        }
        moe_emit_close(&e);
    }
    moe_emit_close(&e);
    moe_emit_end_item(&e, NULL);
}

/* A figure as GGUF names it: "family.context_length". */
static void put_info(struct moe_emit *e, const struct moe_server_model *m, const char *what,
                     uint64_t value)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", m->family, what);
    moe_emit_u64(e, key, value);
}

void http_write_show(struct moe_server *s, const struct moe_server_model *m, struct moe_buf *out)
{
    struct moe_buf template = {0};
    struct moe_emit e;
    char parameters[32];
    moe_server_template(s, m->name, &template);
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    moe_emit_text(&e, "license", "");
    moe_emit_text(&e, "modelfile", "");
    snprintf(parameters, sizeof parameters, m->context ? "num_ctx %u" : "", m->context);
    moe_emit_text(&e, "parameters", parameters);
    moe_emit_bytes(&e, "template", template.data, template.size);
    put_details(&e, m);
    moe_emit_open_map(&e, "model_info");
    moe_emit_text(&e, "general.architecture", m->family);
    moe_emit_u64(&e, "general.parameter_count", m->parameters);
    put_info(&e, m, "context_length", m->most_context);
    put_info(&e, m, "embedding_length", m->hidden);
    put_info(&e, m, "block_count", m->n_layers);
    moe_emit_close(&e);
    moe_emit_open_list(&e, "capabilities");
    moe_emit_text(&e, NULL, "completion");
    if (m->calls)
        moe_emit_text(&e, NULL, "tools");
    if (m->thinks)
        moe_emit_text(&e, NULL, "thinking");
    moe_emit_close(&e);
    put_time(&e, "modified_at", m->modified);
    moe_emit_end_item(&e, NULL);
    out->failed |= template.failed;
    moe_buf_release(&template);
}
