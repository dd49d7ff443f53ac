/* Requests: numbers and switches of the body, by tables. */
#define _DEFAULT_SOURCE /* getentropy */
#include <math.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "fmt/json.h"
#include "grammar/grammar.h"
#include "serve/request_parts.h"

enum { BOTH = -1, TEXT_MAX_TOKENS = 16 };

static bool is_given(const json_t *value)
{
    return value && !json_is_null(value);
}

/* ---- Numbers ---- */

#define SAMPLING(member) offsetof(struct moe_request, sampling.member)
#define OWN(member) offsetof(struct moe_request, member)

/* A later key sets what an earlier one has set. */
static const struct {
    const char *key;
    size_t at; /* in struct moe_request */
    double low, high;
} reals[] = {
    {"temperature", SAMPLING(temperature), 0, 2},
    {"top_p", SAMPLING(top_p), 0, 1},
    {"min_p", SAMPLING(min_p), 0, 1},
    {"repetition_penalty", SAMPLING(repeat_penalty), 0.1, 10},
    {"repeat_penalty", SAMPLING(repeat_penalty), 0.1, 10},
};

static int read_reals(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++) {
        double *to = (double *)(void *)((char *)r + reals[i].at);
        int status = moe_json_get_double(REQUEST, body, reals[i].key, false, to, err);
        if (status != MOE_OK)
            return status;
        if (!isnan(*to) && !(*to >= reals[i].low && *to <= reals[i].high))
            return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": '%s' is %g, expected %g to %g",
                            reals[i].key, *to, reals[i].low, reals[i].high);
    }
    return MOE_OK;
}

static const struct {
    const char *key;
    int kind; /* enum moe_request_kind, or BOTH */
    size_t at;
} switches[] = {
    {"stream", BOTH, OWN(stream)},         {"ignore_eos", BOTH, OWN(ignore_eos)},
    {"draft", BOTH, OWN(draft)},           {"logprobs", MOE_REQUEST_CHAT, OWN(logprobs)},
    {"echo", MOE_REQUEST_TEXT, OWN(echo)},
};

static int read_switches(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    int status = MOE_OK;
    for (size_t i = 0; i < sizeof switches / sizeof switches[0] && status == MOE_OK; i++)
        if (switches[i].kind == BOTH || switches[i].kind == (int)r->kind)
            status = moe_json_get_bool(REQUEST, body, switches[i].key, false,
                                       (bool *)((char *)r + switches[i].at), err);
    return status;
}

static int read_top_k(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    const json_t *top_k = json_object_get(body, "top_k");
    if (json_is_integer(top_k) && json_integer_value(top_k) == -1) {
        r->sampling.top_k = 0; /* as some servers write "all" */
        return MOE_OK;
    }
    return moe_json_get_u32(REQUEST, body, "top_k", 1000000, false, &r->sampling.top_k, err);
}

static int read_choices(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    int status = moe_json_get_u32(REQUEST, body, "n", MOE_REQUEST_MAX_CHOICES, false, &r->n, err);
    if (status == MOE_OK && r->n == 0)
        status = moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'n' is 0, expected 1 to %d",
                          MOE_REQUEST_MAX_CHOICES);
    return status;
}

/* /v1/completions wants a number where /v1/chat/completions has a switch and a number. */
static int read_logprobs(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    bool chat = r->kind == MOE_REQUEST_CHAT;
    const char *key = chat ? "top_logprobs" : "logprobs";
    int status = moe_json_get_u32(REQUEST, body, key, MOE_REQUEST_MAX_TOP_LOGPROBS, false,
                                  &r->top_logprobs, err);
    if (!chat)
        r->logprobs = is_given(json_object_get(body, key));
    else if (status == MOE_OK && r->top_logprobs && !r->logprobs)
        status =
            moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'top_logprobs' goes with 'logprobs': true");
    if (status == MOE_OK && r->logprobs && r->echo)
        status = moe_fail(err, MOE_ERR_FORMAT,
                          REQUEST ": 'echo' with 'logprobs', those of the prompt, is not done");
    return status;
}

static int read_max_tokens(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    static const char *const keys[] = {"max_tokens", "max_completion_tokens"};
    bool given = false;
    r->max_tokens = r->kind == MOE_REQUEST_TEXT ? TEXT_MAX_TOKENS : UINT64_MAX;
    for (int i = 0; i < 2; i++) {
        uint32_t n = 0;
        if (!is_given(json_object_get(body, keys[i])))
            continue;
        int status = moe_json_get_u32(REQUEST, body, keys[i], UINT32_MAX, false, &n, err);
        if (status != MOE_OK)
            return status;
        if (given && n != r->max_tokens)
            return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": '%s' and '%s' differ", keys[1],
                            keys[0]);
        r->max_tokens = n;
        given = true;
    }
    return MOE_OK;
}

static int read_seed(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    const json_t *seed = json_object_get(body, "seed");
    if (json_is_integer(seed))
        r->sampling.seed = (uint64_t)json_integer_value(seed);
    else if (is_given(seed))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'seed' is not a whole number of 64 bits");
    else if (getentropy(&r->sampling.seed, sizeof r->sampling.seed) != 0)
        r->sampling.seed = (uint64_t)(moe_seconds() * 1e9);
    return MOE_OK;
}

static int read_stream_options(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    const json_t *options = json_object_get(body, "stream_options");
    if (!is_given(options))
        return MOE_OK;
    if (!r->stream)
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'stream_options' goes with 'stream': true");
    return moe_json_get_bool(REQUEST ": 'stream_options'", options, "include_usage", false,
                             &r->stream_usage, err);
}

/* ---- What an answer may be ---- */

/* {"type": "text" | "json_object" | "json_schema", "json_schema": {"schema": {...}}}; llama.cpp's
 * server takes {"type": "json_object", "schema": {...}} too. */
static int read_format(struct moe_request *r, const json_t *format, struct moe_err *err)
{
    const char *type = json_string_value(json_object_get(format, "type"));
    const json_t *schema = json_object_get(format, "schema");
    if (type && strcmp(type, "text") == 0)
        return MOE_OK;
    if (type && strcmp(type, "json_schema") == 0) {
        if (!is_given(schema))
            schema = json_object_get(json_object_get(format, "json_schema"), "schema");
        if (!is_given(schema))
            return moe_fail(err, MOE_ERR_FORMAT,
                            REQUEST ": 'response_format' of type json_schema has no "
                                    "json_schema.schema");
    } else if (!type || strcmp(type, "json_object") != 0) {
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": 'response_format' is none of the types text, json_object and "
                                "json_schema");
    }
    return is_given(schema)
               ? moe_grammar_of_schema(&r->grammar, REQUEST ": 'response_format'", schema, err)
               : moe_grammar_of_objects(&r->grammar, err);
}

static int read_constraints(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    const json_t *format = json_object_get(body, "response_format");
    const json_t *schema = json_object_get(body, "json_schema");
    const json_t *grammar = json_object_get(body, "grammar");
    int status = MOE_OK;
    if (json_string_length(grammar) == 0 && (!is_given(grammar) || json_is_string(grammar)))
        grammar = NULL;
    if (is_given(format))
        status = read_format(r, format, err);
    if (status != MOE_OK)
        return status;
    if ((r->grammar != NULL) + is_given(schema) + (grammar != NULL) > 1)
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": 'response_format', 'json_schema' and 'grammar' exclude each "
                                "other");
    if (is_given(schema))
        return moe_grammar_of_schema(&r->grammar, REQUEST ": 'json_schema'", schema, err);
    if (grammar && !json_is_string(grammar))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'grammar' is not a text");
    return grammar ? moe_grammar_parse(&r->grammar, REQUEST ": 'grammar'",
                                       json_string_value(grammar), json_string_length(grammar), err)
                   : MOE_OK;
}

/* What is too large, or not supported, is the request's fault too. */
static int read_grammar(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    struct moe_err why;
    int status = read_constraints(r, body, &why);
    if (status == MOE_OK)
        return MOE_OK;
    return moe_fail(err, status == MOE_ERR_MEMORY ? status : MOE_ERR_FORMAT, "%s", why.text);
}

/* ---- What is not done ---- */

/* Null, false, 0, "" and what is empty ask for nothing; nor do these words, apart by blanks, and
 * this number. */
static const struct {
    const char *key, *words;
    double number;
} not_done[] = {
    {"functions", "", 0},
    {"function_call", "none auto", 0},
    {"logit_bias", "", 0},
    {"presence_penalty", "", 0},
    {"frequency_penalty", "", 0},
    {"best_of", "", 1},
    {"suffix", "", 0},
    {"audio", "", 0},
    {"verbosity", "", 0},
    {"web_search_options", "", 0},
    /* Of other servers. */
    {"allowed_token_ids", "", 0},
    {"bad_words", "", 0},
    {"chat_template", "", 0},
    {"continue_final_message", "", 0},
    {"dry_multiplier", "", 0},
    {"dynatemp_range", "", 0},
    {"guided_choice", "", 0},
    {"guided_grammar", "", 0},
    {"guided_json", "", 0},
    {"guided_regex", "", 0},
    {"length_penalty", "", 1},
    {"min_tokens", "", 0},
    {"mirostat", "", 0},
    {"n_predict", "", 0},
    {"prompt_logprobs", "", 0},
    {"stop_token_ids", "", 0},
    {"structured_outputs", "", 0},
    {"tfs_z", "", 1},
    {"typical_p", "", 1},
    {"use_beam_search", "", 0},
    {"xtc_probability", "", 0},
};

/* Whether `word` is one of words. */
static bool is_among(const char *words, const char *word)
{
    size_t n = strlen(word), length;
    for (; *words; words += length + strspn(words + length, " ")) {
        length = strcspn(words, " ");
        if (length == n && memcmp(words, word, n) == 0)
            return true;
    }
    return false;
}

static bool asks_for_something(const json_t *value, const char *words, double number)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return json_object_size(value) > 0;
    case JSON_ARRAY:
        return json_array_size(value) > 0;
    case JSON_STRING:
        return json_string_length(value) > 0 && !is_among(words, json_string_value(value));
    case JSON_INTEGER:
    case JSON_REAL:
        return json_number_value(value) != 0 && json_number_value(value) != number;
    case JSON_TRUE:
        return true;
    case JSON_FALSE:
    case JSON_NULL:
        break;
    }
    return false;
}

/* A list of "text" alone, or nothing. */
static bool wants_other_modality(const json_t *body)
{
    const json_t *modalities = json_object_get(body, "modalities");
    for (size_t i = 0; i < json_array_size(modalities); i++) {
        const char *name = json_string_value(json_array_get(modalities, i));
        if (!name || strcmp(name, "text") != 0)
            return true;
    }
    return is_given(modalities) && !json_is_array(modalities);
}

static int refuse_what_is_not_done(const json_t *body, struct moe_err *err)
{
    const char *key = NULL;
    for (size_t i = 0; i < sizeof not_done / sizeof not_done[0] && !key; i++) {
        const json_t *value = json_object_get(body, not_done[i].key);
        if (value && asks_for_something(value, not_done[i].words, not_done[i].number))
            key = not_done[i].key;
    }
    if (!key && wants_other_modality(body))
        key = "modalities";
    if (key)
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": '%s' asks for what this server does not do; leave it out", key);
    return MOE_OK;
}

/* ---- All ---- */

int request_read_options(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    static int (*const parts[])(struct moe_request *, const json_t *, struct moe_err *) = {
        read_reals,      read_switches, read_top_k,          read_choices, read_logprobs,
        read_max_tokens, read_seed,     read_stream_options, read_grammar,
    };
    moe_sampling_unsaid(&r->sampling);
    r->n = 1;
    r->draft = true;
    int status = refuse_what_is_not_done(body, err);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && status == MOE_OK; i++)
        status = parts[i](r, body, err);
    return status;
}
