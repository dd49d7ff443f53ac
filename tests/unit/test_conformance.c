/*
 * Which members of requests work, are refused or have no effect: what the server does with each,
 * and that moe-serve(1) says so. CONFORMANCE_WRITE=1 writes it there.
 */
#include "../test.h"

#include <jansson.h>
#include <math.h>

#include "base/file.h"
#include "serve/request.h"

#define PAGE "man/moe-serve.1"
#define BEGINS ".\\\" What test_conformance found begins.\n"
#define ENDS ".\\\" What test_conformance found ends.\n"

/* A member, and how a request has it. */
struct field {
    const char *name, *json;
    const char *beside; /* what must be there with it; NULL: nothing */
};

static const struct field fields_chat[] = {
    {"model", "\"model\": \"m\"", NULL},
    {"max_tokens", "\"max_tokens\": 3", NULL},
    {"max_completion_tokens", "\"max_completion_tokens\": 3", NULL},
    {"n_predict", "\"n_predict\": 3", NULL},
    {"n", "\"n\": 2", NULL},
    {"seed", "\"seed\": 7", NULL},
    {"stop", "\"stop\": [\"a\"]", NULL},
    {"stream", "\"stream\": true", NULL},
    {"stream_options", "\"stream_options\": {\"include_usage\": true}, \"stream\": true", NULL},
    {"logprobs", "\"logprobs\": true", NULL},
    {"top_logprobs", "\"top_logprobs\": 2, \"logprobs\": true", NULL},
    {"response_format", "\"response_format\": {\"type\": \"json_object\"}", NULL},
    {"tools", "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]", NULL},
    {"tool_choice",
     "\"tool_choice\": \"required\", \"tools\": [{\"type\": \"function\", "
     "\"function\": {\"name\": \"f\"}}]",
     NULL},
    {"tool_choice.allowed_tools",
     "\"tool_choice\": {\"type\": \"allowed_tools\", \"allowed_tools\": {\"mode\": \"auto\", "
     "\"tools\": []}}, \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]",
     "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]"},
    {"parallel_tool_calls",
     "\"parallel_tool_calls\": false, \"tools\": [{\"type\": \"function\", "
     "\"function\": {\"name\": \"f\"}}]",
     NULL},
    {"reasoning_effort", "\"reasoning_effort\": \"low\"", NULL},
    {"thinking", "\"thinking\": {\"type\": \"disabled\"}", NULL},
    {"enable_thinking", "\"enable_thinking\": false", NULL},
    {"thinking_budget_tokens", "\"thinking_budget_tokens\": 9", NULL},
    {"thinking_token_budget", "\"thinking_token_budget\": 9", NULL},
    {"thinking_budget", "\"thinking_budget\": 9", NULL},
    {"chat_template_kwargs", "\"chat_template_kwargs\": {\"a\": 1}", NULL},
    {"metadata", "\"metadata\": {\"a\": \"b\"}", NULL},
    {"ignore_eos", "\"ignore_eos\": true", NULL},
    {"json_schema", "\"json_schema\": {\"type\": \"object\"}", NULL},
    {"functions", "\"functions\": [{\"name\": \"f\"}]", NULL},
    {"function_call", "\"function_call\": {\"name\": \"f\"}", NULL},
    {"modalities", "\"modalities\": [\"audio\"]", NULL},
    {"audio", "\"audio\": {\"voice\": \"a\"}", NULL},
    {"prediction", "\"prediction\": {\"type\": \"content\", \"content\": \"x\"}", NULL},
    {"verbosity", "\"verbosity\": \"low\"", NULL},
    {"web_search_options", "\"web_search_options\": {\"search_context_size\": \"low\"}", NULL},
    {"user", "\"user\": \"me\"", NULL},
    {"store", "\"store\": true", NULL},
    {"service_tier", "\"service_tier\": \"auto\"", NULL},
    {"safety_identifier", "\"safety_identifier\": \"a\"", NULL},
    {"prompt_cache_key", "\"prompt_cache_key\": \"a\"", NULL},
    {"cache_prompt", "\"cache_prompt\": true", NULL},
    {"id_slot", "\"id_slot\": 0", NULL},
    {"samplers", "\"samplers\": [\"top_k\"]", NULL},
    {"continue_final_message",
     "\"continue_final_message\": true, \"messages\": [{\"role\": \"user\", \"content\": \"x\"}, "
     "{\"role\": \"assistant\", \"content\": \"y\"}]",
     NULL},
    {0},
};
static const struct field fields_text[] = {
    {"model", "\"model\": \"m\"", NULL},
    {"max_tokens", "\"max_tokens\": 3", NULL},
    {"n_predict", "\"n_predict\": 3", NULL},
    {"n", "\"n\": 2", NULL},
    {"seed", "\"seed\": 7", NULL},
    {"stop", "\"stop\": \"a\"", NULL},
    {"stream", "\"stream\": true", NULL},
    {"stream_options", "\"stream_options\": {\"include_usage\": true}, \"stream\": true", NULL},
    {"logprobs", "\"logprobs\": 2", NULL},
    {"echo", "\"echo\": true", NULL},
    {"best_of", "\"best_of\": 2", NULL},
    {"suffix", "\"suffix\": \"a\"", NULL},
    {"response_format", "\"response_format\": {\"type\": \"json_object\"}", NULL},
    {"user", "\"user\": \"me\"", NULL},
    {0},
};
static const struct field fields_messages[] = {
    {"model", "\"model\": \"m\"", NULL},
    {"system", "\"system\": \"a\"", NULL},
    {"stop_sequences", "\"stop_sequences\": [\"a\"]", NULL},
    {"stream", "\"stream\": true", NULL},
    {"tools", "\"tools\": [{\"name\": \"f\", \"input_schema\": {\"type\": \"object\"}}]", NULL},
    {"tool_choice", "\"tool_choice\": {\"type\": \"any\"}, \"tools\": [{\"name\": \"f\"}]", NULL},
    {"thinking", "\"thinking\": {\"type\": \"enabled\"}", NULL},
    {"thinking.budget_tokens", "\"thinking\": {\"type\": \"enabled\", \"budget_tokens\": 9}",
     "\"thinking\": {\"type\": \"enabled\"}"},
    {"thinking.display", "\"thinking\": {\"type\": \"adaptive\", \"display\": \"omitted\"}",
     "\"thinking\": {\"type\": \"adaptive\"}"},
    {"output_config.effort", "\"output_config\": {\"effort\": \"high\"}", NULL},
    {"output_config",
     "\"output_config\": {\"format\": {\"type\": \"json_schema\", \"schema\": "
     "{\"type\": \"object\"}}}",
     NULL},
    {"metadata", "\"metadata\": {\"user_id\": \"a\"}", NULL},
    {"service_tier", "\"service_tier\": \"auto\"", NULL},
    {"container", "\"container\": \"a\"", NULL},
    {"mcp_servers", "\"mcp_servers\": [{\"name\": \"a\"}]", NULL},
    {"context_management", "\"context_management\": {\"edits\": []}", NULL},
    {"inference_geo", "\"inference_geo\": \"us\"", NULL},
    {0},
};
static const struct field fields_responses[] = {
    {"model", "\"model\": \"m\"", NULL},
    {"instructions", "\"instructions\": \"a\"", NULL},
    {"max_output_tokens", "\"max_output_tokens\": 3", NULL},
    {"stream", "\"stream\": true", NULL},
    {"tools", "\"tools\": [{\"type\": \"function\", \"name\": \"f\"}]", NULL},
    {"tool_choice",
     "\"tool_choice\": \"required\", \"tools\": [{\"type\": \"function\", \"name\": \"f\"}]", NULL},
    {"tool_choice.tools",
     "\"tool_choice\": {\"type\": \"allowed_tools\", \"mode\": \"auto\", \"tools\": []}, "
     "\"tools\": [{\"type\": \"function\", \"name\": \"f\"}]",
     "\"tools\": [{\"type\": \"function\", \"name\": \"f\"}]"},
    {"parallel_tool_calls",
     "\"parallel_tool_calls\": false, \"tools\": [{\"type\": \"function\", \"name\": \"f\"}]",
     NULL},
    {"reasoning", "\"reasoning\": {\"effort\": \"low\"}", NULL},
    {"reasoning.summary", "\"reasoning\": {\"summary\": \"auto\"}", NULL},
    {"text", "\"text\": {\"format\": {\"type\": \"json_object\"}}", NULL},
    {"text.verbosity", "\"text\": {\"verbosity\": \"low\"}", NULL},
    {"metadata", "\"metadata\": {\"a\": \"b\"}", NULL},
    {"previous_response_id", "\"previous_response_id\": \"resp_1\"", NULL},
    {"store", "\"store\": false", NULL},
    {"background", "\"background\": true", NULL},
    {"conversation", "\"conversation\": \"c\"", NULL},
    {"prompt", "\"prompt\": {\"id\": \"a\"}", NULL},
    {"include", "\"include\": [\"a\"]", NULL},
    {"truncation", "\"truncation\": \"auto\"", NULL},
    {"client_metadata", "\"client_metadata\": {\"a\": \"b\"}", NULL},
    {"max_tool_calls", "\"max_tool_calls\": 3", NULL},
    {"top_logprobs", "\"top_logprobs\": 3", NULL},
    {"stream_options", "\"stream_options\": {\"include_obfuscation\": true}", NULL},
    {"user", "\"user\": \"me\"", NULL},
    {"safety_identifier", "\"safety_identifier\": \"a\"", NULL},
    {"prompt_cache_key", "\"prompt_cache_key\": \"a\"", NULL},
    {"service_tier", "\"service_tier\": \"auto\"", NULL},
    {0},
};
static const struct field fields_embeddings[] = {
    {"model", "\"model\": \"m\"", NULL},
    {"encoding_format", "\"encoding_format\": \"base64\"", NULL},
    {"dimensions", "\"dimensions\": 9", NULL},
    {"pooling", "\"pooling\": \"last\"", NULL},
    {"user", "\"user\": \"me\"", NULL},
    {0},
};
static const struct field fields_ollama_chat[] = {
    {"tools", "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]", NULL},
    {"format", "\"format\": \"json\"", NULL},
    {"stream", "\"stream\": false", NULL},
    {"truncate", "\"truncate\": true", NULL},
    {"think", "\"think\": \"low\"", NULL},
    {"keep_alive", "\"keep_alive\": \"5m\"", NULL},
    {"logprobs", "\"logprobs\": true", NULL},
    {"messages.images",
     "\"messages\": [{\"role\": \"user\", \"content\": \"x\", \"images\": [\"aGk=\"]}]", NULL},
    {"options.num_predict", "\"options\": {\"num_predict\": 3}", NULL},
    {"options.seed", "\"options\": {\"seed\": 7}", NULL},
    {"options.stop", "\"options\": {\"stop\": [\"a\"]}", NULL},
    {"options.num_ctx", "\"options\": {\"num_ctx\": 9}", NULL},
    {"options.num_keep", "\"options\": {\"num_keep\": 9}", NULL},
    {"options.num_batch", "\"options\": {\"num_batch\": 9}", NULL},
    {"options.num_gpu", "\"options\": {\"num_gpu\": 9}", NULL},
    {"options.num_thread", "\"options\": {\"num_thread\": 9}", NULL},
    {0},
};
static const struct field fields_ollama_generate[] = {
    {"system", "\"system\": \"a\"", NULL},
    {"format", "\"format\": \"json\"", NULL},
    {"stream", "\"stream\": false", NULL},
    {"raw", "\"raw\": true", NULL},
    {"think", "\"think\": true", NULL},
    {"keep_alive", "\"keep_alive\": \"5m\"", NULL},
    {"suffix", "\"suffix\": \"a\"", NULL},
    {"images", "\"images\": [\"aGk=\"]", NULL},
    {"template", "\"template\": \"a\"", NULL},
    {"context", "\"context\": [1]", NULL},
    {0},
};
static const struct field fields_ollama_embed[] = {
    {"dimensions", "\"dimensions\": 9", NULL},
    {"truncate", "\"truncate\": true", NULL},
    {"keep_alive", "\"keep_alive\": \"5m\"", NULL},
    {"options", "\"options\": {\"a\": 1}", NULL},
    {0},
};

static const struct field fields_completion[] = {
    {"model", "\"model\": \"m\"", NULL},
    {"n_predict", "\"n_predict\": 3", NULL},
    {"seed", "\"seed\": 7", NULL},
    {"stop", "\"stop\": [\"a\"]", NULL},
    {"stream", "\"stream\": true", NULL},
    {"json_schema", "\"json_schema\": {\"type\": \"object\"}", NULL},
    {"ignore_eos", "\"ignore_eos\": true", NULL},
    {"response_fields", "\"response_fields\": [\"content\"]", NULL},
    {"n_probs", "\"n_probs\": 3", NULL},
    {"return_tokens", "\"return_tokens\": true", NULL},
    {"lora", "\"lora\": [{\"id\": 0, \"scale\": 1}]", NULL},
    {"cache_prompt", "\"cache_prompt\": false", NULL},
    {"samplers", "\"samplers\": [\"top_k\"]", NULL},
    {"id_slot", "\"id_slot\": 0", NULL},
    {"n_indent", "\"n_indent\": 2", NULL},
    {"n_keep", "\"n_keep\": 2", NULL},
    {"t_max_predict_ms", "\"t_max_predict_ms\": 500", NULL},
    {"t_max_prompt_ms", "\"t_max_prompt_ms\": 500", NULL},
    {0},
};
static const struct field fields_infill[] = {
    {"input_extra", "\"input_extra\": [{\"filename\": \"a\", \"text\": \"b\"}]", NULL},
    {"prompt", "\"prompt\": \"b\"", NULL},
    {"n_predict", "\"n_predict\": 3", NULL},
    {"stop", "\"stop\": [\"a\"]", NULL},
    {"t_max_predict_ms", "\"t_max_predict_ms\": 500", NULL},
    {0},
};

static const struct route {
    enum moe_request_kind kind;
    const char *path, *least; /* the members that must be there */
    const struct field *fields;
} routes[] = {
    {MOE_REQUEST_CHAT, "/v1/chat/completions",
     "\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]", fields_chat},
    {MOE_REQUEST_TEXT, "/v1/completions", "\"prompt\": \"x\"", fields_text},
    {MOE_REQUEST_MESSAGES, "/v1/messages",
     "\"max_tokens\": 9, \"messages\": [{\"role\": \"user\", \"content\": \"x\"}]",
     fields_messages},
    {MOE_REQUEST_RESPONSES, "/v1/responses", "\"input\": \"x\"", fields_responses},
    {MOE_REQUEST_EMBEDDINGS, "/v1/embeddings", "\"input\": \"x\"", fields_embeddings},
    {MOE_REQUEST_COMPLETION, "/completion", "\"prompt\": \"x\"", fields_completion},
    {MOE_REQUEST_INFILL, "/infill", "\"input_prefix\": \"x\", \"input_suffix\": \"y\"",
     fields_infill},
    {MOE_REQUEST_OLLAMA_CHAT, "/api/chat",
     "\"model\": \"m\", \"messages\": [{\"role\": \"user\", \"content\": \"x\"}]",
     fields_ollama_chat},
    {MOE_REQUEST_OLLAMA_GENERATE, "/api/generate", "\"model\": \"m\", \"prompt\": \"x\"",
     fields_ollama_generate},
    {MOE_REQUEST_OLLAMA_EMBED, "/api/embed", "\"model\": \"m\", \"input\": \"x\"",
     fields_ollama_embed},
};

/* What says how tokens are drawn, beside the fields of model/sampling.h: the same for every route
 * that answers, of Ollama's within "options". */
static const struct field fields_shared[] = {
    {"logit_bias", "\"logit_bias\": {\"5\": 1}", NULL},
    {"dry_sequence_breakers", "\"dry_sequence_breakers\": [\"a\"]", NULL},
    {"min_tokens", "\"min_tokens\": 2", NULL},
    {"stop_token_ids", "\"stop_token_ids\": [5]", NULL},
    {"grammar", "\"grammar\": \"root ::= \\\"a\\\"\"", NULL},
    {0},
};

static void put_json(struct moe_buf *out, const json_t *value)
{
    char *text = value ? json_dumps(value, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    moe_buf_text(out, text ? text : "-");
    free(text);
}

static void put_text(struct moe_buf *out, const char *text)
{
    moe_buf_text(out, text ? text : "-");
}

/* All that a request asks for. */
static void fingerprint(const struct moe_request *r, struct moe_buf *out)
{
    moe_buf_append(out, &r->sampling, sizeof r->sampling);
    moe_buf_printf(out, "%d %d %d %d %d %llu %u %d %d %d %u %d %d %d %d ", r->kind, r->task,
                   r->bare, r->must_call, r->parallel_calls, (unsigned long long)r->max_tokens,
                   r->n_shown, r->stream, r->stream_usage, r->logprobs, r->top_logprobs,
                   r->ignore_eos, r->echo, r->draft, r->grammar != NULL);
    moe_buf_printf(out, "%u %u %u %u %u ", r->n, r->n_biases, r->n_stop_ids, r->n_fields,
                   (unsigned)r->min_tokens);
    moe_buf_printf(out, " %llu", (unsigned long long)r->thought_tokens);
    put_text(out, r->model);
    put_json(out, r->callable);
    put_text(out, r->before);
    put_text(out, r->suffix);
    moe_buf_u8(out, r->keeps);
    moe_buf_u8(out, r->truncates);
    for (uint32_t i = 0; i < r->n_inputs; i++) {
        const struct moe_request_input *input = &r->inputs[i];
        put_text(out, input->text);
        if (input->ids)
            moe_buf_append(out, input->ids, input->n * sizeof *input->ids);
    }
    for (uint32_t i = 0; i < r->n_files; i++)
        put_text(out, r->files[i].text);
    if (r->api != moe_request_api(MOE_REQUEST_RESPONSES)) /* which give back what had no effect */
        put_text(out, r->asked);
    put_json(out, r->messages);
    put_json(out, r->tools);
    put_json(out, r->variables);
    for (uint32_t i = 0; i < r->n_stops; i++)
        moe_buf_text(out, r->stops[i]);
    moe_buf_u8(out, 0);
}

enum outcome { WORKS, REFUSED, IGNORED, OUTCOMES };

/* Whether a name is in a list with ", " between. */
static bool is_listed(const char *list, const char *name)
{
    const size_t n = strlen(name);
    for (const char *at = list; (at = strstr(at, name)) != NULL; at += n)
        if ((at == list || at[-1] == ' ') && (at[n] == ',' || !at[n]))
            return true;
    return false;
}

static enum outcome try_field(const struct route *route, const struct field *f)
{
    struct moe_request *r, *least;
    struct moe_err err;
    char with[1024], without[1024];
    struct moe_buf a = {0}, b = {0};
    /* Without a random seed, unless it is asked for; a stream is not what is tried. */
    const char *options = strstr(f->json, "\"options\"") ? "" : ", \"options\": {\"seed\": 1}";
    const bool ollama = strncmp(route->path, "/api/", 5) == 0;
    const char *seed = ollama ? options : strstr(f->json, "\"seed\"") ? "" : ", \"seed\": 1";
    if (route->kind == MOE_REQUEST_EMBEDDINGS || route->kind == MOE_REQUEST_OLLAMA_EMBED)
        seed = "";
    bool again = strstr(f->json, "\"messages\"") != NULL;
    snprintf(with, sizeof with, "{%s%s%s%s}", again ? "\"model\": \"m\"" : route->least, seed, ", ",
             f->json);
    snprintf(without, sizeof without, "{%s%s%s%s}", route->least, seed, f->beside ? ", " : "",
             f->beside ? f->beside : "");
    assert_ok(moe_request_parse(&least, route->kind, without, strlen(without), NULL, &err), &err);
    if (moe_request_parse(&r, route->kind, with, strlen(with), NULL, &err) != MOE_OK) {
        assert_int_equal(err.status, MOE_ERR_FORMAT);
        moe_request_free(least);
        return REFUSED;
    }
    const char *name = f->name;
    bool ignored = is_listed(r->ignored, name);
    if (!strstr(f->json, "\"seed\""))
        r->sampling.seed = least->sampling.seed; /* drawn, where it is not named */
    fingerprint(r, &a);
    fingerprint(least, &b);
    bool same = a.size == b.size && memcmp(a.data, b.data, a.size) == 0;
    if (same != ignored)
        fail_msg("%s: '%s' %s", route->path, name,
                 same ? "has no effect, but is not named" : "is named as ignored, but works");
    moe_buf_release(&a);
    moe_buf_release(&b);
    moe_request_free(r);
    moe_request_free(least);
    return ignored ? IGNORED : WORKS;
}

/* Tries a member with every route that answers: it works. Writes it behind others. */
static void write_shared(const char *name, const char *json, struct moe_buf *out)
{
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        char within[256], named[64];
        const bool options = routes[i].kind == MOE_REQUEST_OLLAMA_CHAT ||
                             routes[i].kind == MOE_REQUEST_OLLAMA_GENERATE;
        if (routes[i].kind == MOE_REQUEST_EMBEDDINGS || routes[i].kind == MOE_REQUEST_OLLAMA_EMBED)
            continue;
        snprintf(within, sizeof within, "\"options\": {%s}", json);
        snprintf(named, sizeof named, "options.%s", name);
        const struct field f = {options ? named : name, options ? within : json, NULL};
        if (try_field(&routes[i], &f) != WORKS)
            fail_msg("%s: '%s' does not work", routes[i].path, f.name);
    }
    moe_buf_printf(out, "%s.Cm %s", out->size ? " ,\n" : "", name);
}

static void write_all_shared(struct moe_buf *out)
{
    const struct moe_sampling_field *s;
    struct moe_buf list = {0};
    for (int i = 0; (s = moe_sampling_field(i)) != NULL; i++) {
        const double value = s->whole ? 2 : (s->low + fmin(s->high, s->low + 2)) / 2;
        const char *const keys[] = {s->key, s->alias};
        char json[96];
        for (int k = 0; k < 2 && keys[k]; k++) {
            snprintf(json, sizeof json, "\"%s\": %g", keys[k], value);
            write_shared(keys[k], json, &list);
        }
    }
    for (const struct field *f = fields_shared; f->name; f++)
        write_shared(f->name, f->json, &list);
    moe_buf_text(out, ".It All that answer\nWorks, of Ollama's API within\n.Cm options :\n");
    moe_buf_append(out, list.data, list.size);
    moe_buf_text(out, " .\n");
    moe_buf_release(&list);
}

/* Writes a route's members by what becomes of them. */
static void write_route(const struct route *route, struct moe_buf *out)
{
    static const char *const words[OUTCOMES] = {"Works", "Refused", "Without effect"};
    enum outcome found[64];
    uint32_t n = 0;
    for (const struct field *f = route->fields; f->name; f++)
        found[n++] = try_field(route, f);
    moe_buf_printf(out, ".It Pa %s\n", route->path);
    for (int o = 0; o < OUTCOMES; o++) {
        bool begun = false;
        for (uint32_t i = 0; i < n; i++)
            if (found[i] == (enum outcome)o) {
                moe_buf_printf(out, "%s%s.Cm %s", begun ? " ," : words[o], begun ? "\n" : ":\n",
                               route->fields[i].name);
                begun = true;
            }
        if (begun)
            moe_buf_text(out, " .\n");
    }
}

static void the_page_says_what_is_done(void **state)
{
    struct moe_buf page = {0}, found = {0}, whole = {0};
    struct moe_err err;
    (void)state;
    moe_buf_text(&found, ".Bl -tag -width Ds\n");
    write_all_shared(&found);
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++)
        write_route(&routes[i], &found);
    moe_buf_text(&found, ".El\n");
    assert_ok(moe_file_read_all(PAGE, 1 << 20, &page, &err), &err);
    moe_buf_u8(&page, 0);
    char *begins = strstr((char *)page.data, BEGINS);
    char *ends = strstr((char *)page.data, ENDS);
    assert_true(begins && ends && begins < ends);
    begins += strlen(BEGINS);
    bool same =
        (uint64_t)(ends - begins) == found.size && memcmp(begins, found.data, found.size) == 0;
    if (!same && getenv("CONFORMANCE_WRITE")) {
        moe_buf_append(&whole, page.data, (uint64_t)(begins - (char *)page.data));
        moe_buf_append(&whole, found.data, found.size);
        moe_buf_text(&whole, ends);
        FILE *file = fopen(PAGE, "w");
        assert_non_null(file);
        assert_int_equal(fwrite(whole.data, 1, whole.size, file), whole.size);
        assert_int_equal(fclose(file), 0);
    } else if (!same) {
        fail_msg("%s says something else (CONFORMANCE_WRITE=1 writes what is so)", PAGE);
    }
    moe_buf_release(&page);
    moe_buf_release(&found);
    moe_buf_release(&whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_page_says_what_is_done),
    };
    return cmocka_run_group_tests_name("conformance", tests, NULL, NULL);
}
