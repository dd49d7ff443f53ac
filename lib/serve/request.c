/* Reads requests in the forms of OpenAI's API. */
#define _DEFAULT_SOURCE /* getentropy */

#include "serve/request.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "fmt/json.h"
#include "grammar/constraint.h"
#include "grammar/grammar.h"
#include "prompt/chat.h"
#include "prompt/chat_answer.h"
#include "serve/reply_internal.h"

/* Begins error texts. */
#define REQUEST "the request"

enum {
    MALLOC_BYTES = 32,       /* of a small block, beside its contents */
    SOME_LOGITS = 256 << 10, /* of the answering model, not known yet */
    CALLS_BYTES = 256 << 10  /* a usual grammar of calls */
};

/* ---- Numbers and switches, by tables ---- */

/* Checks that a value is a text without NULs. `where` names it in the error. */
static int check_text(const json_t *text, const char *where, struct moe_err *err)
{
    if (!json_is_string(text))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": %s is not a text", where);
    if (memchr(json_string_value(text), 0, json_string_length(text)))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": %s has a NUL character inside", where);
    return MOE_OK;
}

static int copy_text(char **out, const json_t *text, const char *where, struct moe_err *err)
{
    MOE_TRY(check_text(text, where, err));
    *out = moe_strndup(json_string_value(text), json_string_length(text), err);
    return *out ? MOE_OK : MOE_ERR_MEMORY;
}

/* ... one that answers are searched for, at each token. */
static int copy_short(char **out, const json_t *text, const char *where, int most,
                      struct moe_err *err)
{
    if (json_string_length(text) > (size_t)most)
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": %s has %zu bytes, %d at most are allowed",
                        where, json_string_length(text), most);
    return copy_text(out, text, where, err);
}

enum { BOTH = -1, TEXT_MAX_TOKENS = 16 };

static bool is_given(const json_t *value)
{
    return value && !json_is_null(value);
}

/* ---- Numbers ---- */

#define OWN(member) offsetof(struct moe_request, member)

enum { MOST_TEMPERATURE = 2 };

/* Reads the value of a key, where it is given. */
static int read_value(struct moe_request *r, const json_t *body, int i, const char *key,
                      struct moe_err *err)
{
    double value = (double)NAN;
    MOE_TRY(moe_json_get_double(REQUEST, body, key, false, &value, err));
    if (strcmp(key, "temperature") == 0 && value > MOST_TEMPERATURE)
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": '%s' is %g, expected 0 to %d", key, value,
                        MOST_TEMPERATURE);
    return isnan(value) ? MOE_OK : moe_sampling_take(&r->sampling, i, REQUEST, key, value, err);
}

static int read_sampling(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    const struct moe_sampling_field *f;
    for (int i = 0; (f = moe_sampling_field(i)) != NULL; i++) {
        if (f->alias)
            MOE_TRY(read_value(r, body, i, f->alias, err));
        MOE_TRY(read_value(r, body, i, f->key, err));
    }
    return MOE_OK;
}

/* A token's id, as a number or, as JSON's keys are, in decimal digits, with a sign where it is
 * wrong; else a text. */
static int read_biased(struct moe_request_bias *out, const json_t *id, const char *key,
                       struct moe_err *err)
{
    uint64_t n = UINT64_MAX;
    const char *digits = key ? key + (*key == '-' || *key == '+') : "";
    if (json_is_integer(id) && json_integer_value(id) >= 0)
        n = (uint64_t)json_integer_value(id);
    else if (id && !json_is_string(id))
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": 'logit_bias' has what is neither a token's id nor a text");
    else if (id)
        return copy_text(&out->text, id, "a text of 'logit_bias'", err);
    else if (!moe_parse_u64(key, &n) && (!*digits || digits[strspn(digits, "0123456789")])) {
        out->text = moe_strndup(key, strlen(key), err);
        return out->text ? MOE_OK : MOE_ERR_MEMORY;
    }
    if (n > UINT32_MAX)
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'logit_bias': %.40s is not a token's id",
                        key ? key : "a number");
    out->token.id = (uint32_t)n;
    return MOE_OK;
}

static int read_bias(struct moe_request *r, const json_t *id, const char *key, const json_t *bias,
                     struct moe_err *err)
{
    struct moe_request_bias *to = &r->biases[r->n_biases];
    const double value = json_is_false(bias) ? -INFINITY : json_number_value(bias);
    if (!json_is_false(bias) && !(json_is_number(bias) && fabs(value) <= 100))
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": 'logit_bias' has a bias that is neither -100 to 100 nor false");
    r->n_biases++;
    to->token.bias = (float)value;
    return read_biased(to, id, key, err);
}

/* {"15043": -1}, as OpenAI's API has it; llama.cpp's server takes texts too, [[15043, -1], ["Once",
 * false]], and false for tokens that are never drawn. */
static int read_biases(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    json_t *biases = json_object_get(body, "logit_bias"), *bias;
    const size_t n = json_is_array(biases) ? json_array_size(biases) : json_object_size(biases);
    const char *key;
    size_t i, n_bytes = 0;
    if (is_given(biases) && !json_is_array(biases) && !json_is_object(biases))
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": 'logit_bias' is neither an object nor a list");
    if (n > MOE_REQUEST_MAX_BIASES)
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": 'logit_bias' has %zu biases, %d at most are allowed", n,
                        MOE_REQUEST_MAX_BIASES);
    if (n && !(r->biases = moe_alloc(n, sizeof *r->biases, err)))
        return MOE_ERR_MEMORY;
    if (json_is_object(biases))
        json_object_foreach(biases, key, bias) MOE_TRY(read_bias(r, NULL, key, bias, err));
    else
        json_array_foreach(biases, i, bias)
        {
            if (json_array_size(bias) != 2)
                return moe_fail(err, MOE_ERR_FORMAT,
                                REQUEST ": 'logit_bias[%zu]' is not a token and its bias", i);
            MOE_TRY(read_bias(r, json_array_get(bias, 0), NULL, json_array_get(bias, 1), err));
        }
    for (i = 0; i < n; i++)
        n_bytes += r->biases[i].text ? strlen(r->biases[i].text) : 0;
    return n_bytes <= MOE_REQUEST_MAX_BIASED_BYTES
               ? MOE_OK
               : moe_fail(err, MOE_ERR_FORMAT,
                          REQUEST ": 'logit_bias' has texts of %zu bytes, %d at most are allowed",
                          n_bytes, MOE_REQUEST_MAX_BIASED_BYTES);
}

/* Reads "dry_sequence_breakers", a list of texts. */
static int read_breakers(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    const json_t *breakers = json_object_get(body, "dry_sequence_breakers");
    const size_t n = json_array_size(breakers);
    if (!is_given(breakers))
        return MOE_OK;
    if (!json_is_array(breakers) || n > MOE_REQUEST_MAX_BREAKERS)
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": 'dry_sequence_breakers' is not a list of at most %d texts",
                        MOE_REQUEST_MAX_BREAKERS);
    if (!(r->breakers = moe_alloc(n + 1, sizeof *r->breakers, err)))
        return MOE_ERR_MEMORY;
    for (size_t i = 0; i < n; i++)
        MOE_TRY(copy_short((char **)&r->breakers[i], json_array_get(breakers, i),
                           "a text of 'dry_sequence_breakers'", MOE_REQUEST_MAX_BREAKER_BYTES,
                           err));
    r->sampling.dry_breakers = r->breakers;
    return MOE_OK;
}

/* Reads a list of tokens' ids. */
static int read_id_list(const json_t *list, const char *key, uint32_t *out, struct moe_err *err)
{
    const json_t *id;
    size_t i;
    json_array_foreach(list, i, id)
    {
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > UINT32_MAX)
            return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": '%s[%zu]' is not a token's id", key, i);
        out[i] = (uint32_t)json_integer_value(id);
    }
    return MOE_OK;
}

static int read_stop_ids(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    const json_t *ids = json_object_get(body, "stop_token_ids");
    const size_t n = json_array_size(ids);
    if ((is_given(ids) && !json_is_array(ids)) || n > MOE_REQUEST_MAX_STOP_IDS)
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": 'stop_token_ids' is not a list of at most %d tokens' ids",
                        MOE_REQUEST_MAX_STOP_IDS);
    if (n && !(r->stop_ids = moe_alloc(n, sizeof *r->stop_ids, err)))
        return MOE_ERR_MEMORY;
    r->n_stop_ids = (uint32_t)n;
    return read_id_list(ids, "stop_token_ids", r->stop_ids, err);
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
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++) {
        if (switches[i].kind == BOTH || switches[i].kind == (int)r->kind)
            MOE_TRY(moe_json_get_bool(REQUEST, body, switches[i].key, false,
                                      (bool *)((char *)r + switches[i].at), err));
    }
    return MOE_OK;
}

/* Whether `word` is one of `words`. */
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

static int read_choices(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    MOE_TRY(
        moe_json_get_between(REQUEST, body, "n", 1, MOE_REQUEST_MAX_CHOICES, false, &r->n, err));
    r->n_each = r->n_shown = r->n;
    const json_t *best = json_object_get(body, "best_of");
    if (!best || !asks_for_something(best, "", 1))
        return MOE_OK;
    if (r->kind == MOE_REQUEST_CHAT)
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'best_of' needs a completion, not a chat");
    MOE_TRY(moe_json_get_between(REQUEST, body, "best_of", 1, MOE_REQUEST_MAX_CHOICES, false,
                                 &r->n_each, err));
    if (r->n_each < r->n)
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'best_of' is %u, fewer than 'n'",
                        r->n_each);
    if (r->n_each > r->n && (r->stream || (r->echo && r->logprobs)))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'best_of' excludes %s",
                        r->stream ? "'stream'" : "'echo' with 'logprobs'");
    r->n = r->n_each;
    return MOE_OK;
}

/* Reads logprobs: /v1/completions has a number, /v1/chat/completions a switch and a number. */
static int read_logprobs(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    bool chat = r->kind == MOE_REQUEST_CHAT;
    const char *key = chat ? "top_logprobs" : "logprobs";
    MOE_TRY(moe_json_get_u32(REQUEST, body, key, MOE_REQUEST_MAX_TOP_LOGPROBS, false,
                             &r->top_logprobs, err));
    if (!chat)
        r->logprobs = is_given(json_object_get(body, key));
    else if (r->top_logprobs && !r->logprobs)
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'top_logprobs' needs 'logprobs': true");
    return MOE_OK;
}

static int read_max_tokens(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    /* llama.cpp's n_predict has -2, too: until the context is full. */
    static const char *const keys[] = {"max_tokens", "max_completion_tokens", "n_predict"};
    const char *given = NULL;
    r->max_tokens = r->kind == MOE_REQUEST_TEXT ? TEXT_MAX_TOKENS : UINT64_MAX;
    r->thought_tokens = UINT64_MAX;
    for (int i = 0; i < 3; i++) {
        uint32_t n = 0;
        const json_t *value = json_object_get(body, keys[i]);
        const double number = json_number_value(value);
        const bool none = number == -1 || (number == -2 && i == 2);
        if (!is_given(value))
            continue;
        if (number < 0 && !none)
            return moe_fail(err, MOE_ERR_FORMAT,
                            REQUEST ": '%s' is %.17g, expected -1%s, for no limit, or 0 to %u",
                            keys[i], number, i == 2 ? " or -2" : "", UINT32_MAX);
        if (none && !given)
            r->max_tokens = UINT64_MAX;
        if (none)
            continue;
        MOE_TRY(moe_json_get_u32(REQUEST, body, keys[i], UINT32_MAX, false, &n, err));
        if (given && n != r->max_tokens)
            return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": '%s' and '%s' differ", keys[i], given);
        r->max_tokens = n;
        given = keys[i];
    }
    MOE_TRY(moe_json_get_u32(REQUEST, body, "min_tokens", UINT32_MAX, false, &r->min_tokens, err));
    return r->min_tokens <= r->max_tokens
               ? MOE_OK
               : moe_fail(err, MOE_ERR_FORMAT,
                          REQUEST ": 'min_tokens' is %u, more than the most tokens allowed",
                          r->min_tokens);
}

static int read_seed(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    const json_t *seed = json_object_get(body, "seed");
    const char *digits = moe_json_digits(seed);
    double number = json_is_real(seed) ? json_real_value(seed) : 0.5;
    if (digits && moe_parse_u64(digits, &r->sampling.seed))
        return MOE_OK;
    if (json_is_integer(seed))
        r->sampling.seed = (uint64_t)json_integer_value(seed);
    else if (number == floor(number) && fabs(number) < 0x1p63) /* 42.0 is 42 */
        r->sampling.seed = (uint64_t)(int64_t)number;
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
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'stream_options' needs 'stream': true");
    return moe_json_get_bool(REQUEST ": 'stream_options'", options, "include_usage", false,
                             &r->stream_usage, err);
}

/* ---- What an answer may be ---- */

/* {"type": "text" | "json_object" | "json_schema", "json_schema": {"schema": {...}}}; llama.cpp's
 * server takes {"type": "json_object", "schema": {...}} too. */
static int read_format(struct moe_request *r, const json_t *format, struct moe_allowance *allowance,
                       struct moe_err *err)
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
                        REQUEST
                        ": 'response_format' is not of type text, json_object or json_schema");
    }
    return is_given(schema) ? moe_grammar_of_schema(&r->grammar, REQUEST ": 'response_format'",
                                                    schema, allowance, err)
                            : moe_grammar_of_objects(&r->grammar, err);
}

static int read_constraints(struct moe_request *r, const json_t *body,
                            struct moe_allowance *allowance, struct moe_err *err)
{
    const json_t *format = json_object_get(body, "response_format");
    const json_t *schema = json_object_get(body, "json_schema");
    const json_t *grammar = json_object_get(body, "grammar");
    if (json_string_length(grammar) == 0 && (!is_given(grammar) || json_is_string(grammar)))
        grammar = NULL;
    if (is_given(format))
        MOE_TRY(read_format(r, format, allowance, err));
    if ((r->grammar != NULL) + is_given(schema) + (grammar != NULL) > 1)
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": 'response_format', 'json_schema' and 'grammar' exclude each "
                                "other");
    if (is_given(schema))
        return moe_grammar_of_schema(&r->grammar, REQUEST ": 'json_schema'", schema, allowance,
                                     err);
    if (grammar && !json_is_string(grammar))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'grammar' is not a text");
    return grammar
               ? moe_grammar_parse(&r->grammar, REQUEST ": 'grammar'", json_string_value(grammar),
                                   json_string_length(grammar), allowance, err)
               : MOE_OK;
}

/* Reads the grammar; one that is too large or not supported is the request's fault too. */
static int read_grammar(struct moe_request *r, const json_t *body, struct moe_allowance *allowance,
                        struct moe_err *err)
{
    struct moe_err why;
    int status = read_constraints(r, body, allowance, &why);
    const char *notes = r->grammar ? moe_grammar_notes(r->grammar) : NULL;
    if (status == MOE_OK && notes)
        moe_request_ignore(r->ignored, "schema ", notes);
    if (status == MOE_OK)
        return MOE_OK;
    bool ours = status == MOE_ERR_MEMORY || status == MOE_ERR_INTERRUPTED;
    return moe_fail(err, ours ? status : MOE_ERR_FORMAT, "%s", why.text);
}

/* ---- What is refused ---- */

/* Values that ask for nothing: null, false, 0, "" and empty ones; and, by key, these words,
 * separated by blanks, and this number. */
static const struct {
    const char *key, *words;
    double number;
} not_done[] = {
    {"functions", "", 0},
    {"function_call", "none auto", 0},
    {"audio", "", 0},
    {"verbosity", "", 0},
    {"web_search_options", "", 0},
    /* From other servers. */
    {"allowed_token_ids", "", 0},
    {"bad_words", "", 0},
    {"chat_template", "", 0},
    {"guided_choice", "", 0},
    {"guided_grammar", "", 0},
    {"guided_json", "", 0},
    {"guided_regex", "", 0},
    {"length_penalty", "", 1},
    {"prompt_logprobs", "", 0},
    {"structured_outputs", "", 0},
    {"tfs_z", "", 1},
    {"use_beam_search", "", 0},
};

/* Accepts a list of only "text", or nothing. */
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
                        REQUEST ": '%s' is not supported by this server; leave it out", key);
    return MOE_OK;
}

/* Reads numbers and switches; refuses what this server does not do. */
static int read_options(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    static int (*const parts[])(struct moe_request *, const json_t *, struct moe_err *) = {
        read_sampling, read_biases,     read_breakers, read_switches, read_logprobs,
        read_choices,  read_max_tokens, read_stop_ids, read_seed,     read_stream_options,
    };
    moe_sampling_unsaid(&r->sampling);
    r->n = r->n_each = r->n_shown = 1;
    r->draft = true;
    MOE_TRY(refuse_what_is_not_done(body, err));
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        MOE_TRY(parts[i](r, body, err));
    return MOE_OK;
}

/* ---- Messages ---- */

/* Copies a value of the body. */
static int copy_value(struct moe_request *r, json_t **out, const json_t *value, struct moe_err *err)
{
    r->chat_bytes += moe_json_bytes(value);
    return moe_json_copy(out, value, err);
}

static int check_part(const json_t *part, size_t i, size_t k, struct moe_err *err)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    char where[80];
    snprintf(where, sizeof where, "'messages[%zu].content[%zu].text'", i, k);
    if (!type || strcmp(type, "text") != 0)
        return moe_fail(
            err, MOE_ERR_FORMAT,
            REQUEST
            ": 'messages[%zu].content[%zu]' is a part of type %s: only text parts are supported",
            i, k, type ? type : "unknown");
    return check_text(json_object_get(part, "text"), where, err);
}

/* Checks that a content is a text or parts; beside tool calls it may be missing. */
static int check_content(const json_t *message, size_t i, struct moe_err *err)
{
    static const char *const others[] = {"function_call", "audio", "refusal"};
    const json_t *content = json_object_get(message, "content"), *part;
    char where[48];
    size_t k;
    int status = MOE_OK;
    for (k = 0; k < sizeof others / sizeof others[0]; k++)
        if (json_object_get(message, others[k]) &&
            asks_for_something(json_object_get(message, others[k]), "", 0))
            return moe_fail(err, MOE_ERR_FORMAT,
                            REQUEST ": 'messages[%zu].%s': only text messages are supported", i,
                            others[k]);
    bool own = moe_chat_has_role(message, "assistant"); /* an answer comes back as it was */
    if (own && (!is_given(content) || json_is_string(content)))
        return MOE_OK;
    snprintf(where, sizeof where, "'messages[%zu].content'", i);
    if (!json_is_array(content))
        return check_text(content, where, err);
    json_array_foreach(content, k, part)
    {
        if (status == MOE_OK)
            status = check_part(part, i, k, err);
    }
    return status;
}

/* Copies the text that routing rules look at. */
static int copy_question(struct moe_request *r, struct moe_err *err)
{
    const json_t *last = NULL, *message;
    struct moe_buf text = {0};
    size_t i;
    json_array_foreach(r->messages, i, message)
    {
        if (moe_chat_has_role(message, "user"))
            last = message;
    }
    if (!last)
        return MOE_OK;
    moe_chat_append_content(last, &text);
    if (!text.failed)
        r->question = moe_strndup((const char *)text.data, text.size, err);
    else
        moe_fail(err, MOE_ERR_MEMORY, "out of memory: a message");
    moe_buf_release(&text);
    return r->question ? MOE_OK : MOE_ERR_MEMORY;
}

static int read_messages(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    const json_t *messages = json_object_get(body, "messages"), *message;
    size_t i;
    int status = moe_chat_check_messages(REQUEST, messages, err);
    json_array_foreach(messages, i, message)
    {
        if (status == MOE_OK)
            status = check_content(message, i, err);
    }
    if (status == MOE_OK)
        status = copy_value(r, &r->messages, messages, err);
    return status == MOE_OK ? copy_question(r, err) : status;
}

/* ---- Variables of templates ---- */

/* Takes those of the tools that a list of functions names, and leaves out what OpenAI's servers
 * run. NULL: all. */
static int take_callable(struct moe_request *r, const json_t *named, struct moe_err *err)
{
    size_t i;
    const json_t *one, *found;
    const char *name;
    json_t *tool, *names = json_object(); /* each: whether there is such a tool */
    int status = MOE_OK, failed = !(r->callable = json_array()) || !names;
    json_array_foreach(named, i, one)
    {
        const char *type = chat_text_of(one, "type");
        name = chat_text_of(moe_chat_function(one), "name");
        if (*type && strcmp(type, "function") != 0)
            continue;
        if (!*name)
            MOE_STEP(moe_fail(err, MOE_ERR_FORMAT,
                              REQUEST ": 'tool_choice.allowed_tools.tools[%zu]' names no function",
                              i));
        failed |= json_object_set_new(names, name, json_false());
    }
    json_array_foreach(r->tools, i, tool)
    {
        name = chat_text_of(moe_chat_function(tool), "name");
        if (named && !json_object_get(names, name))
            continue;
        failed |= json_array_append(r->callable, tool);
        failed |= json_object_set_new(names, name, json_true());
    }
    json_object_foreach(names, name, found)
    {
        if (json_is_false(found))
            MOE_STEP(moe_fail(err, MOE_ERR_FORMAT,
                              REQUEST ": 'tool_choice' names '%.64s', which is none of the 'tools'",
                              name));
    }
    if (failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: the request");
out:
    json_decref(names);
    return status;
}

static int read_tools(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    const json_t *tools = json_object_get(body, "tools");
    const json_t *choice = json_object_get(body, "tool_choice");
    const json_t *named = json_object_get(json_object_get(choice, "function"), "name"),
                 *allowed = json_object_get(choice, "allowed_tools"),
                 *mode = json_object_get(allowed, "mode"),
                 *list = json_object_get(allowed, "tools");
    const json_t *kind = json_object_get(choice, "type");
    const char *type = is_given(kind) ? chat_text_of(choice, "type")
                       : allowed      ? "allowed_tools"
                                      : "function";
    const bool allows = json_is_object(choice) && strcmp(type, "allowed_tools") == 0;
    const char *how = allows                   ? json_string_value(mode)
                      : json_is_string(choice) ? json_string_value(choice)
                      : is_given(choice)       ? NULL
                                               : "auto";
    const bool any = how && strcmp(how, "required") == 0,
               one = json_is_object(choice) && strcmp(type, "function") == 0,
               free = how && (strcmp(how, "auto") == 0 || (!allows && strcmp(how, "none") == 0));
    if (allows && !json_is_object(allowed))
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": 'tool_choice.allowed_tools' is not an object");
    if (allows && !any && !free)
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": 'tool_choice.allowed_tools.mode' is neither auto nor required");
    if (allows && !json_is_array(list))
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": 'tool_choice.allowed_tools.tools' is not a list");
    if (one && !json_string_length(named))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'tool_choice' names no function");
    const char *unknown = chat_text_of(choice, "type");
    if (!any && !one && !free)
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": 'tool_choice'%s%.40s%s must be auto, none, required, or an "
                                "object of type function or allowed_tools",
                        *unknown ? " of type '" : "", unknown, *unknown ? "'" : "");
    MOE_TRY(moe_chat_check_tools(REQUEST, tools, err));
    if (json_array_size(tools) == 0 && (any || one))
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": 'tool_choice' wants a call, but there are no 'tools'");
    if (json_array_size(tools) == 0 || (how && strcmp(how, "none") == 0))
        return MOE_OK;
    r->must_call = any || one;
    if (r->must_call && (is_given(json_object_get(body, "response_format")) ||
                         is_given(json_object_get(body, "grammar")) ||
                         is_given(json_object_get(body, "json_schema"))))
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": 'tool_choice' wants a call, and another key holds the answer "
                                "to something else: leave one out");
    r->parallel_calls = !one;
    MOE_TRY(
        moe_json_get_bool(REQUEST, body, "parallel_tool_calls", false, &r->parallel_calls, err));
    MOE_TRY(copy_value(r, &r->tools, tools, err));
    json_t *only = one ? json_pack("[O]", choice) : json_incref((json_t *)list);
    int status = take_callable(r, only, err);
    json_decref(only);
    if (status == MOE_OK && !json_array_size(r->callable)) {
        json_decref(r->callable);
        r->callable = NULL;
    }
    if (status == MOE_OK && r->must_call && !r->callable)
        status = moe_fail(err, MOE_ERR_FORMAT,
                          REQUEST ": 'tool_choice' wants a call, and allows no function");
    return status;
}

/* Whether a thought is wanted, as the APIs of some makers have it; NULL: it is not said. */
static json_t *wanted_thought(const json_t *body)
{
    const json_t *thinking = json_object_get(body, "thinking"),
                 *type = json_object_get(thinking, "type");
    const json_t *own =
        json_is_boolean(thinking) ? thinking : json_object_get(body, "enable_thinking");
    return json_is_boolean(own)   ? json_boolean(json_is_true(own))
           : json_is_string(type) ? json_boolean(strcmp(json_string_value(type), "disabled") != 0)
                                  : NULL;
}

/* How many tokens a thought may have, by the keys of several servers; a negative number: any. */
static int read_thought_tokens(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    const json_t *thinking = json_object_get(body, "thinking");
    const struct {
        const json_t *of;
        const char *key;
    } keys[] = {{body, "thinking_budget_tokens"},
                {body, "thinking_token_budget"},
                {body, "thinking_budget"},
                {thinking, "budget_tokens"}};
    const char *said = NULL; /* the key that has one */
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const json_t *value = json_object_get(keys[i].of, keys[i].key);
        const char *of = keys[i].of == body ? "" : "thinking.";
        if (!is_given(value))
            continue;
        const double n = json_is_number(value) ? json_number_value(value) : 0.5;
        const uint64_t tokens = n < 0 || n >= UINT32_MAX ? UINT64_MAX : (uint64_t)n;
        if (n != floor(n))
            return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": '%s%s' is not a whole number", of,
                            keys[i].key);
        if (said && tokens != r->thought_tokens)
            return moe_fail(err, MOE_ERR_FORMAT,
                            REQUEST ": '%s' and '%s%s' are two different budgets: leave one out",
                            said, of, keys[i].key);
        r->thought_tokens = tokens;
        said = keys[i].key;
    }
    return MOE_OK;
}

static int set_variable(struct moe_request *r, const char *name, json_t *value, struct moe_err *err)
{
    return json_object_set_new(r->variables, name, value) == 0
               ? MOE_OK
               : moe_fail(err, MOE_ERR_MEMORY, "out of memory: the request");
}

static int read_variables(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    const json_t *given = json_object_get(body, "chat_template_kwargs"),
                 *effort = json_object_get(body, "reasoning_effort"),
                 *thinking = json_object_get(body, "thinking");
    bool enabled;
    if (is_given(given) && !json_is_object(given))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'chat_template_kwargs' is not an object");
    if (json_object_size(given) > MOE_REQUEST_MAX_VARIABLES)
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": 'chat_template_kwargs' has %zu keys, %d at most are allowed",
                        json_object_size(given), MOE_REQUEST_MAX_VARIABLES);
    if (is_given(effort) && !json_is_string(effort))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'reasoning_effort' is not a text");
    if (is_given(thinking) && !json_is_boolean(thinking) &&
        !json_is_string(json_object_get(thinking, "type")))
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": 'thinking' is neither true, false nor an object with a 'type'");
    MOE_TRY(chat_check_thinking(thinking, err));
    MOE_TRY(moe_json_get_bool(REQUEST, body, "enable_thinking", false, &enabled, err));
    MOE_TRY(read_thought_tokens(r, body, err));
    json_t *wanted = wanted_thought(body), *none = is_given(given) ? NULL : json_object();
    int status = MOE_OK;
    if (json_object_size(given) || is_given(effort) || wanted)
        status = copy_value(r, &r->variables, is_given(given) ? given : none, err);
    if (status == MOE_OK && is_given(effort))
        status = set_variable(r, "reasoning_effort", json_string(json_string_value(effort)), err);
    if (status == MOE_OK && wanted && !json_object_get(given, "enable_thinking"))
        status = set_variable(r, "enable_thinking", json_incref(wanted), err);
    json_decref(none);
    json_decref(wanted);
    r->no_thought = moe_chat_no_thought(r->variables);
    return status;
}

/* An answer that was begun goes on. */
static int read_continues(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    static const char key[] = "continue_final_message";
    const json_t *last = json_array_get(r->messages, json_array_size(r->messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    MOE_TRY(moe_json_get_bool(REQUEST, body, key, false, &r->continues, err));
    if (r->continues && (!role || strcmp(role, "assistant") != 0 ||
                         !json_object_get(last, "content") || json_object_get(last, "tool_calls")))
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": '%s' needs an assistant's text as the last message", key);
    if (r->continues && r->must_call)
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": 'tool_choice' wants a call, and '%s' a text", key);
    if (r->continues && r->grammar)
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": an answer that was begun cannot be held to a format or grammar: "
                                "leave out its beginning");
    return MOE_OK;
}

static int read_chat(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    MOE_TRY(read_messages(r, body, err));
    MOE_TRY(read_tools(r, body, err));
    MOE_TRY(read_continues(r, body, err));
    return read_variables(r, body, err);
}

/* ---- Prompts ---- */

static int read_ids(struct moe_request_input *p, const json_t *list, struct moe_err *err)
{
    size_t n = json_array_size(list);
    if (!(p->ids = moe_alloc(n, sizeof *p->ids, err)))
        return MOE_ERR_MEMORY;
    p->n = n;
    return read_id_list(list, "prompt", p->ids, err);
}

/* Bytes of the prompts that come before answers. */
static uint64_t echo_bytes(const struct moe_request *r)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < r->n_inputs && r->echo; i++)
        bytes += r->inputs[i].text ? r->inputs[i].n * r->n_each : 0;
    return bytes;
}

/* Reads a text, a list of ids, or a list of these. */
static int read_prompts(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    const json_t *prompt = json_object_get(body, "prompt"), *first = json_array_get(prompt, 0);
    if (r->inputs) /* another API's */
        return MOE_OK;
    if (json_array_size(json_object_get(body, "tools")))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'tools' goes with messages");
    if (json_is_array(prompt) && json_array_size(prompt) == 0)
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'prompt' is an empty list");
    if (!is_given(prompt))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'prompt' is missing");
    bool list = json_is_string(first) || json_is_array(first);
    size_t n = list ? json_array_size(prompt) : 1;
    if (n > 1 && r->task != MOE_TASK_ANSWER)
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'prompt' has %zu texts, expected one", n);
    if (n > MOE_REQUEST_MAX_CHOICES / r->n)
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": %zu prompts with %u choices each ('n') are more than %d choices",
                        n, r->n, MOE_REQUEST_MAX_CHOICES);
    if (!(r->inputs = moe_alloc(n, sizeof *r->inputs, err)))
        return MOE_ERR_MEMORY;
    for (size_t i = 0; i < n; i++) {
        struct moe_request_input *p = &r->inputs[r->n_inputs++];
        const json_t *one = list ? json_array_get(prompt, i) : prompt;
        char where[32] = "'prompt'";
        if (n > 1)
            snprintf(where, sizeof where, "'prompt[%zu]'", i);
        MOE_TRY(json_is_array(one) ? read_ids(p, one, err) : copy_text(&p->text, one, where, err));
        p->n = p->text ? strlen(p->text) : p->n;
    }
    return echo_bytes(r) <= MOE_REQUEST_MAX_REPLY_BYTES
               ? MOE_OK
               : moe_fail(err, MOE_ERR_FORMAT,
                          REQUEST ": 'echo' of %u choices of each prompt takes more than %d MiB: "
                                  "leave it out, or ask for fewer at a time",
                          r->n, MOE_REQUEST_MAX_REPLY_BYTES >> 20);
}

static int read_prefix(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    const json_t *prefix = json_object_get(body, "prefix_text");
    if (!is_given(prefix))
        return MOE_OK;
    if (r->n_inputs != 1 || !r->inputs[0].text)
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'prefix_text' needs one text prompt");
    return copy_text(&r->prefix_text, prefix, "'prefix_text'", err);
}

static int read_languages(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    const struct {
        const char *key, *name;
        char **to;
    } languages[] = {{"source_language", "'source_language'", &r->source_language},
                     {"target_language", "'target_language'", &r->target_language}};
    for (size_t i = 0; i < sizeof languages / sizeof languages[0]; i++) {
        const json_t *value = json_object_get(body, languages[i].key);
        if (is_given(value))
            MOE_TRY(copy_text(languages[i].to, value, languages[i].name, err));
    }
    const bool given = r->source_language || r->target_language;
    if (given && r->prefix_text)
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'prefix_text' excludes languages");
    for (uint32_t i = 0; given && i < r->n_inputs; i++)
        if (!r->inputs[i].text)
            return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": languages need prompts that are texts");
    return MOE_OK;
}

static int read_suffix(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    const json_t *suffix = json_object_get(body, "suffix");
    if (!suffix || !asks_for_something(suffix, "", 0))
        return MOE_OK;
    if (r->kind == MOE_REQUEST_CHAT)
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'suffix' needs a completion, not a chat");
    for (uint32_t i = 0; i < r->n_inputs; i++)
        if (!r->inputs[i].text)
            return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'suffix' needs prompts that are texts");
    if (r->prefix_text || (r->echo && r->logprobs))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'suffix' excludes %s",
                        r->prefix_text ? "'prefix_text'" : "'echo' with 'logprobs'");
    return copy_text(&r->suffix, suffix, "'suffix'", err);
}

/* Reads messages, or a prompt. */
static int read_text(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    MOE_TRY(r->kind == MOE_REQUEST_CHAT ? read_chat(r, body, err) : read_prompts(r, body, err));
    MOE_TRY(read_prefix(r, body, err));
    MOE_TRY(read_languages(r, body, err));
    return read_suffix(r, body, err);
}

/* ---- Stop texts and fields ---- */

/* Reads stop texts. */
static int read_stops(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    const json_t *stop = json_object_get(body, "stop");
    bool one = json_is_string(stop);
    size_t n = one ? 1 : json_array_size(stop);
    int status = MOE_OK;
    if (is_given(stop) && !one && !json_is_array(stop))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'stop' is neither a text nor a list");
    if (n > MOE_REQUEST_MAX_STOPS)
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": 'stop' has %zu texts, %d at most are allowed", n,
                        MOE_REQUEST_MAX_STOPS);
    if (!(r->stops = moe_alloc(n + 1, sizeof *r->stops, err)))
        return MOE_ERR_MEMORY;
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        char *text = NULL, where[32];
        snprintf(where, sizeof where, "'stop[%zu]'", i);
        status = copy_short(&text, one ? stop : json_array_get(stop, i), one ? "'stop'" : where,
                            MOE_REQUEST_MAX_STOP_BYTES, err);
        if (status == MOE_OK && text[0])
            r->stops[r->n_stops++] = text;
        else
            free(text);
    }
    return status;
}

static int read_fields(struct moe_request *r, const json_t *body, struct moe_err *err)
{
    json_t *metadata = json_object_get(body, "metadata"), *value;
    const char *key;
    size_t n = json_object_size(metadata);
    if (is_given(metadata) && !json_is_object(metadata))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST ": 'metadata' is not an object");
    if (n > MOE_REQUEST_MAX_FIELDS)
        return moe_fail(err, MOE_ERR_FORMAT,
                        REQUEST ": 'metadata' has %zu keys, %d at most are allowed", n,
                        MOE_REQUEST_MAX_FIELDS);
    if (n && !(r->fields = moe_alloc(n, sizeof *r->fields, err)))
        return MOE_ERR_MEMORY;
    json_object_foreach(metadata, key, value)
    {
        struct moe_request_field *f = &r->fields[r->n_fields++];
        char where[64];
        snprintf(where, sizeof where, "'metadata.%.40s'", key);
        if (!(f->name = moe_strndup(key, strlen(key), err)))
            return MOE_ERR_MEMORY;
        if (json_is_string(value))
            MOE_TRY(copy_text(&f->text, value, where, err));
        else if (!(f->text = moe_json_text(value, JSON_ENCODE_ANY)))
            return moe_fail(err, MOE_ERR_MEMORY, "out of memory: the request");
    }
    return MOE_OK;
}

/* ---- Keys that have no effect ---- */

/* Keys that are read, beside those of the tables above. */
static const struct {
    const char *key;
    int kind; /* enum moe_request_kind, or BOTH */
} others[] = {
    {"model", BOTH},
    {"n", BOTH},
    {"best_of", BOTH},
    {"max_tokens", BOTH},
    {"max_completion_tokens", BOTH},
    {"n_predict", BOTH},
    {"seed", BOTH},
    {"stop", BOTH},
    {"stream_options", BOTH},
    {"response_format", BOTH},
    {"json_schema", BOTH},
    {"grammar", BOTH},
    {"metadata", BOTH},
    {"modalities", BOTH},
    {"tools", BOTH},
    {"top_logprobs", MOE_REQUEST_CHAT},
    {"messages", MOE_REQUEST_CHAT},
    {"tool_choice", MOE_REQUEST_CHAT},
    {"parallel_tool_calls", MOE_REQUEST_CHAT},
    {"continue_final_message", MOE_REQUEST_CHAT},
    {"chat_template_kwargs", MOE_REQUEST_CHAT},
    {"reasoning_effort", MOE_REQUEST_CHAT},
    {"enable_thinking", MOE_REQUEST_CHAT},
    {"thinking", MOE_REQUEST_CHAT},
    {"thinking_budget_tokens", MOE_REQUEST_CHAT},
    {"thinking_token_budget", MOE_REQUEST_CHAT},
    {"thinking_budget", MOE_REQUEST_CHAT},
    {"logprobs", MOE_REQUEST_TEXT},
    {"prompt", MOE_REQUEST_TEXT},
    {"suffix", BOTH},
    {"prefix_text", MOE_REQUEST_TEXT},
    {"source_language", MOE_REQUEST_TEXT},
    {"target_language", MOE_REQUEST_TEXT},
};

static bool is_read(const char *key, int kind)
{
    bool is = false, listed = false;
    for (size_t i = 0; i < sizeof not_done / sizeof not_done[0]; i++)
        is = is || strcmp(not_done[i].key, key) == 0;
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++)
        is = is || ((switches[i].kind == BOTH || switches[i].kind == kind) &&
                    strcmp(switches[i].key, key) == 0);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(others[i].key, key) == 0) {
            listed = true;
            is = is || others[i].kind == BOTH || others[i].kind == kind;
        }
    return is || (!listed && chat_says_draws(key));
}

/* Notes keys that are neither among `known`, of another API, nor of draws; NULL: not of ours. */
static void note_ignored(struct moe_request *r, const json_t *body, const char *const *known)
{
    json_t *value;
    const char *key;
    json_object_foreach((json_t *)body, key, value)
    {
        const char *const *k = known;
        while (k && *k && strcmp(*k, key) != 0)
            k++;
        if (!json_is_null(value) && !(k ? *k || chat_says_draws(key) : is_read(key, (int)r->kind)))
            moe_request_ignore(r->ignored, "", key);
    }
}

/* A chat made of another API's body takes over what it says of draws, and what its own API says in
 * no other way. */
static int take_draws(json_t *chat, const json_t *body, struct moe_err *err)
{
    json_t *value;
    const char *key;
    json_object_foreach((json_t *)body, key, value)
    {
        json_t *own = json_object_get(chat, key);
        if (chat_says_draws(key) && (is_given(value) || !own) &&
            (json_is_object(own) && json_is_object(value) ? json_object_update_missing(own, value)
                                                          : json_object_set(chat, key, value)) != 0)
            return moe_fail(err, MOE_ERR_MEMORY, "out of memory: the request");
    }
    return MOE_OK;
}

/* ---- The whole ---- */

static int read_body(struct moe_request *r, const json_t *body, struct moe_allowance *allowance,
                     struct moe_err *err)
{
    const json_t *model = json_object_get(body, "model");
    if (model && !json_is_null(model))
        MOE_TRY(copy_text(&r->model, model, "'model'", err));
    MOE_TRY(read_options(r, body, err));
    MOE_TRY(read_grammar(r, body, allowance, err));
    MOE_TRY(read_text(r, body, err));
    MOE_TRY(read_stops(r, body, err));
    return read_fields(r, body, err);
}

const struct moe_reply_api *moe_request_api(enum moe_request_kind kind)
{
    static const struct moe_reply_api *const apis[MOE_REQUEST_KINDS] = {
        [MOE_REQUEST_MESSAGES] = &reply_messages,
        [MOE_REQUEST_COUNT] = &reply_count,
        [MOE_REQUEST_RESPONSES] = &reply_responses,
        [MOE_REQUEST_TOKENIZE] = &reply_tokenize,
        [MOE_REQUEST_DETOKENIZE] = &reply_detokenize,
        [MOE_REQUEST_COMPLETION] = &reply_completion,
        [MOE_REQUEST_INFILL] = &reply_infill,
        [MOE_REQUEST_OLLAMA_CHAT] = &reply_ollama_chat,
        [MOE_REQUEST_OLLAMA_GENERATE] = &reply_ollama_generate,
        [MOE_REQUEST_EMBEDDINGS] = &reply_embeddings,
        [MOE_REQUEST_OLLAMA_EMBED] = &reply_ollama_embed,
        [MOE_REQUEST_OLLAMA_EMBEDDINGS] = &reply_ollama_embeddings,
    };
    return apis[kind];
}

/* Puts this API's names into an error that names a chat's key. */
static void rename_key(const struct moe_reply_api *api, struct moe_err *err)
{
    static const char begins[] = REQUEST ": '";
    char *key = err ? err->text + sizeof begins - 1 : NULL;
    if (!key || strncmp(err->text, begins, sizeof begins - 1) != 0)
        return;
    for (const char *const(*r)[2] = api->renamed; (*r)[0]; r++) {
        struct moe_err was = *err;
        char *at = strstr(key, (*r)[0]);
        if (!at || at >= key + strcspn(key, "'"))
            continue;
        const char *rest = was.text + (at - err->text) + strlen((*r)[0]);
        snprintf(at, sizeof err->text - (size_t)(at - err->text), "%s%s", (*r)[1], rest);
    }
}

int moe_request_read(struct moe_request **out, enum moe_request_kind kind,
                     const struct json_t *body, struct moe_allowance *allowance,
                     struct moe_err *err)
{
    struct moe_allowance usual = moe_allowance_usual();
    *out = NULL;
    if (!json_is_object(body))
        return moe_fail(err, MOE_ERR_FORMAT, REQUEST " is not a JSON object");
    struct moe_request *r = moe_alloc(1, sizeof *r, err);
    if (!r)
        return MOE_ERR_MEMORY;
    json_t *chat = NULL;
    int status = MOE_OK;
    r->kind = kind;
    r->api = moe_request_api(kind);
    if (r->api) {
        note_ignored(r, body, r->api->keys);
        status = r->api->to_chat(r, &chat, body, err);
        if (status == MOE_OK)
            status = take_draws(chat, body, err);
        body = chat;
        r->kind = json_object_get(body, "prompt") ? MOE_REQUEST_TEXT : MOE_REQUEST_CHAT;
    }
    note_ignored(r, body, NULL);
    if (status == MOE_OK) {
        status = read_body(r, body, allowance ? allowance : &usual, err);
        if (status != MOE_OK && r->api)
            rename_key(r->api, err);
    }
    moe_json_free(chat);
    if (r->inputs)
        r->n = r->n_inputs * r->n_each;
    if (status == MOE_OK)
        *out = r;
    else
        moe_request_free(r);
    return status;
}

int moe_request_parse(struct moe_request **out, enum moe_request_kind kind, const void *json,
                      uint64_t n, struct moe_allowance *allowance, struct moe_err *err)
{
    struct moe_allowance usual = moe_allowance_usual();
    struct json_t *body;
    *out = NULL;
    allowance = allowance ? allowance : &usual;
    /* The body's values, the copies kept of them, and a grammar share what there is. */
    uint64_t most = allowance->max_bytes / 2;
    most = most < MOE_REQUEST_MEMORY ? most : MOE_REQUEST_MEMORY;
    static const char mark[] = "\xEF\xBB\xBF"; /* some editors begin UTF-8 with it */
    uint64_t skip = n >= 3 && memcmp(json, mark, 3) == 0 ? 3 : 0;
    int status = moe_json_parse(&body, REQUEST, (const char *)json + skip, n - skip, most, err);
    if (status == MOE_OK) {
        moe_allowance_take(allowance, moe_json_bytes(body));
        status = moe_request_read(out, kind, body, allowance, err);
    }
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
    for (uint32_t i = 0; i < r->n_biases; i++)
        free(r->biases[i].text);
    for (uint32_t i = 0; r->breakers && r->breakers[i]; i++)
        free((char *)r->breakers[i]);
    for (uint32_t i = 0; r->inputs && i < r->n_inputs; i++) {
        free(r->inputs[i].text);
        free(r->inputs[i].ids);
    }
    free(r->inputs);
    for (uint32_t i = 0; i < r->n_files; i++) {
        free(r->files[i].name);
        free(r->files[i].text);
    }
    free(r->files);
    moe_json_free(r->messages);
    moe_json_free(r->tools);
    json_decref(r->callable);
    moe_json_free(r->variables);
    free(r->biases);
    free(r->breakers);
    free(r->stop_ids);
    free(r->question);
    free(r->stops);
    free(r->fields);
    free(r->source_language);
    free(r->target_language);
    free(r->prefix_text);
    free(r->suffix);
    moe_grammar_free(r->grammar);
    free(r->asked);
    free(r->before);
    free(r->model);
    free(r->id);
    free(r);
}

int moe_request_go_on(struct moe_request *r, const void *conversation, uint64_t n,
                      struct moe_err *err)
{
    json_t *before;
    MOE_TRY(
        moe_json_parse(&before, "the earlier response", conversation, n, MOE_REQUEST_MEMORY, err));
    json_t *all = json_array();
    int failed = !all;
    for (size_t i = 0; i < r->n_instructions; i++)
        failed |= json_array_append(all, json_array_get(r->messages, i));
    failed |= json_array_extend(all, before);
    for (size_t i = r->n_instructions; i < json_array_size(r->messages); i++)
        failed |= json_array_append(all, json_array_get(r->messages, i));
    r->chat_bytes += moe_json_bytes(before);
    moe_json_free(before);
    moe_json_free(r->messages);
    r->messages = all;
    return failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory: the earlier response") : MOE_OK;
}

char *moe_request_conversation(struct moe_request *r, uint32_t *n)
{
    json_t *list = json_array();
    int failed = 0;
    for (size_t i = r->n_instructions; i < json_array_size(r->messages); i++)
        failed |= json_array_append(list, json_array_get(r->messages, i));
    char *text = failed ? NULL : moe_json_text(list, JSON_COMPACT);
    *n = (uint32_t)json_array_size(list);
    r->chat_bytes += text ? strlen(text) + MALLOC_BYTES : 0;
    json_decref(list);
    return text;
}

uint64_t moe_request_bytes(const struct moe_request *r)
{
    uint64_t bytes = sizeof *r + r->chat_bytes + echo_bytes(r) + r->n_fields * sizeof *r->fields;
    for (uint32_t i = 0; i < r->n_stops; i++)
        bytes += strlen(r->stops[i]) + MALLOC_BYTES;
    for (uint32_t i = 0; i < r->n_fields; i++)
        bytes += strlen(r->fields[i].name) + strlen(r->fields[i].text) + 2 * MALLOC_BYTES;
    for (uint32_t i = 0; i < r->n_inputs; i++)
        bytes += sizeof *r->inputs + r->inputs[i].n * (r->inputs[i].ids ? sizeof(uint32_t) : 1) +
                 MALLOC_BYTES;
    const char *const around[] = {r->prefix_text, r->suffix, r->source_language,
                                  r->target_language};
    for (size_t i = 0; i < sizeof around / sizeof around[0]; i++)
        bytes += around[i] ? strlen(around[i]) + MALLOC_BYTES : 0;
    for (uint32_t i = 0; i < r->n_files; i++)
        bytes += sizeof *r->files + strlen(r->files[i].name) + strlen(r->files[i].text) +
                 2 * MALLOC_BYTES;
    if (r->asked)
        bytes += 2 * (strlen(r->asked) + MALLOC_BYTES); /* the reply's copy, too */
    /* A text has as many tokens as bytes at most; each choice has them all. */
    for (uint32_t i = 0; i < r->n_biases; i++)
        bytes +=
            sizeof *r->biases + r->n * sizeof r->biases->token +
            (r->biases[i].text
                 ? strlen(r->biases[i].text) * (1 + r->n * sizeof r->biases->token) + MALLOC_BYTES
                 : 0);
    for (uint32_t i = 0; r->breakers && r->breakers[i]; i++)
        bytes += strlen(r->breakers[i]) + MALLOC_BYTES + sizeof *r->breakers;
    bytes += r->n_stop_ids * sizeof *r->stop_ids;
    if (r->tools)
        bytes += r->n * (moe_constraint_bytes(SOME_LOGITS) + CALLS_BYTES);
    if (r->grammar)
        bytes += moe_grammar_bytes(r->grammar) + r->n * moe_constraint_bytes(SOME_LOGITS);
    return bytes;
}

uint64_t moe_request_seed(const struct moe_request *r, uint32_t choice)
{
    return r->sampling.seed + choice % r->n_each;
}

const char *moe_request_field(const struct moe_request *r, const char *name)
{
    if (strcmp(name, "model") == 0)
        return r->model;
    if (strcmp(name, "prompt") == 0)
        return r->kind == MOE_REQUEST_CHAT ? r->question : r->inputs[0].text;
    for (uint32_t i = 0; i < r->n_fields; i++)
        if (strcmp(r->fields[i].name, name) == 0)
            return r->fields[i].text;
    return NULL;
}
