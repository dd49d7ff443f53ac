/*
 * Requests: each line of the input as a line of --requests, and the whole as the body of either
 * API. What is accepted lies within its limits, and its reply is JSON, whatever the answer's bytes
 * are. An input that begins with RESULT is a file of results to be gone on with: what is accepted
 * stays, but for an unfinished last line.
 */
/* Readers: serve/request.c serve/lines_io.c */
#define _GNU_SOURCE
#include <jansson.h>
#include <math.h>

#include "mutate.h"
#include "prompt/chat_answer.h"
#include "serve/lines.h"
#include "serve/reply.h"
#include "serve/server.h"

#define RESULT "{\"id\":\"" LINES_RESULT_ID

enum { MOST_CHOICES = 4, MOST_LINES = 16 };

/* ---- Requests ---- */

static void check_limits(const struct moe_request *r)
{
    const struct moe_sampler_options *s = &r->sampling;
    /* What a request does not say is NAN, and the model's to say. */
    if (s->temperature < 0 || s->temperature > 2 || s->top_p < 0 || s->top_p > 1 || s->min_p < 0 ||
        s->min_p > 1 || s->repeat_penalty <= 0 || r->n < 1 || r->n > MOE_REQUEST_MAX_CHOICES ||
        r->n_stops > MOE_REQUEST_MAX_STOPS || r->n_fields > MOE_REQUEST_MAX_FIELDS ||
        r->top_logprobs > MOE_REQUEST_MAX_TOP_LOGPROBS || r->stops[r->n_stops])
        abort();
    struct moe_sampler_options complete = *s;
    moe_sampling_complete(&complete, NULL);
    if (moe_sampling_check(&complete, NULL) != MOE_OK || r->min_tokens > r->max_tokens ||
        r->n_biases > MOE_REQUEST_MAX_BIASES || r->n_stop_ids > MOE_REQUEST_MAX_STOP_IDS)
        abort();
    for (uint32_t i = 0; i < r->n_biases; i++)
        if (isnan(r->biases[i].token.bias) || r->biases[i].token.bias > 100)
            abort();
    for (uint32_t i = 0; i < r->n_stops; i++)
        if (!r->stops[i][0])
            abort(); /* would end every answer at once */
    if (r->kind == MOE_REQUEST_CHAT ? json_array_size(r->messages) == 0
                                    : !r->inputs[0].text == !r->inputs[0].ids)
        abort();
    if (json_object_size(r->variables) > MOE_REQUEST_MAX_VARIABLES + 1)
        abort(); /* with reasoning_effort */
    if (r->inputs && r->inputs[0].text && strlen(r->inputs[0].text) != r->inputs[0].n)
        abort();
    moe_request_field(r, "model");
    moe_request_field(r, "prompt");
    for (uint32_t i = 0; i < r->n_fields; i++)
        if (!moe_request_field(r, r->fields[i].name))
            abort();
}

/* An answer of these bytes, each a token. */
static void check_reply(const struct moe_request *r, const uint8_t *data, size_t n)
{
    const struct moe_server_result result = {.why = MOE_STOP_EOS, .n_prompt = 1, .model = "m"};
    struct moe_buf out = {0};
    struct moe_reply *reply;
    struct moe_err err;
    if (!fuzz_must(FUZZ_TRY(moe_reply_new(&reply, r, "tiny", &err))))
        return;
    for (uint32_t choice = 0; choice < r->n; choice++) {
        for (size_t i = 0; i < n && i < 64 && choice < MOST_CHOICES; i++) {
            struct moe_token_said said = {
                .token = {.bytes = data + i, .n_bytes = i % 3, .log_probability = -(double)i},
                .n_top = r->top_logprobs};
            if (i + said.token.n_bytes > n)
                said.token.n_bytes = 0;
            for (uint32_t t = 0; t < said.n_top; t++)
                said.top[t] = said.token;
            moe_reply_token(reply, choice, &said);
            moe_reply_part(reply, choice,
                           &(struct moe_answer_part){(enum moe_answer_part_kind)(data[i] % 6),
                                                     (const char *)data + i, 1, data[i] % 5 == 0,
                                                     data[i] % 7 == 0},
                           &out);
        }
        moe_reply_ended(reply, choice, &result, &out);
    }
    if (moe_reply_failed(reply) && !fuzz_failed)
        abort();
    if (!r->stream && !moe_reply_failed(reply))
        fuzz_check_json(&out);
    moe_reply_free(reply);
    moe_buf_release(&out);
}

static void use(struct moe_request *r, const uint8_t *data, size_t n)
{
    check_limits(r);
    check_reply(r, data, n);
    moe_request_free(r);
}

static void try_line(const char *line, uint64_t n)
{
    struct moe_request *r;
    struct moe_err err;
    char *id;
    bool known = fuzz_must(FUZZ_TRY(lines_read_id(&id, line, n, &err)));
    int status = FUZZ_TRY(lines_read_request(&r, line, n, NULL, &err));
    if (status == MOE_OK) {
        if (r->stream || (known && (!r->id != !id || (id && strcmp(id, r->id) != 0))))
            abort();
        use(r, (const uint8_t *)line, n);
    } else if (status == MOE_ERR_MEMORY ? !fuzz_failed : status != MOE_ERR_FORMAT) {
        abort();
    } else {
        struct moe_buf out = {0};
        moe_reply_error(&out, NULL, moe_reply_http_status(&err), &err);
        fuzz_check_json(&out);
        moe_buf_release(&out);
    }
    free(id);
}

/* Where lines come from beside files. */
static void try_sources(void)
{
    static const char *const paths[] = {"-", "/dev/null", "/none", "/"};
    struct lines_input in;
    struct moe_err err;
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        bool open = FUZZ_TRY(lines_input_open(&in, paths[i], &err)) == MOE_OK;
        if (moe_lines_bytes(paths[i]) == 0 || (open && i > 1))
            abort();
        lines_input_close(&in);
    }
}

static void try_lines(const uint8_t *data, size_t n)
{
    struct lines_input in;
    struct moe_err err;
    const char *line;
    uint64_t length;
    moe_lines_bytes(fuzz_file(data, n));
    bool open = fuzz_must(FUZZ_TRY(lines_input_open(&in, fuzz_file(data, n), &err)));
    while (open && in.n_lines < MOST_LINES &&
           FUZZ_TRY(lines_input_next(&in, NULL, &line, &length, &err)) == LINES_INPUT_LINE)
        try_line(line, length);
    lines_input_close(&in);
}

/* ---- Results ---- */

static void try_results(const uint8_t *data, size_t n)
{
    static const char more[] = RESULT "1\",\"custom_id\":null}\n";
    struct moe_buf line = {0}, now = {0};
    struct lines_output out;
    struct moe_err err;
    char path[96];
    bool has;
    fuzz_path("out", path);
    fuzz_put_file(path, data, n);
    const struct moe_lines_options o = {.output = path, .resume = true};
    int status = FUZZ_TRY(lines_output_open(&out, &o, &err));
    if (status == MOE_OK) {
        uint64_t size = out.size;
        for (uint64_t i = 0; i < 16; i++)
            lines_output_has(&out, i, i % 2 ? NULL : "\"a\"", &has, &err);
        moe_buf_text(&line, more);
        if (size > n || (size && data[size - 1] != '\n') || memchr(data + size, '\n', n - size) ||
            lines_output_put(&out, &line, &err) != MOE_OK ||
            lines_output_close(&out, MOE_OK, &err) != MOE_OK ||
            moe_file_read_all(path, UINT64_MAX, &now, &err) != MOE_OK ||
            now.size != size + line.size || (size && memcmp(now.data, data, size) != 0))
            abort();
        if (lines_output_open(&out, &o, &err) != MOE_OK || out.size != now.size)
            abort();
        lines_output_close(&out, MOE_OK, &err);
    } else if (status == MOE_ERR_MEMORY ? !fuzz_failed : status != MOE_ERR_FORMAT) {
        abort();
    }
    unlink(path);
    moe_buf_release(&line);
    moe_buf_release(&now);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct moe_request *r;
    struct moe_err err;
    n = fuzz_begin(data, n);
    if (n >= sizeof RESULT - 1 && memcmp(data, RESULT, sizeof RESULT - 1) == 0) {
        try_results(data, n);
        return 0;
    }
    if (n == 0)
        try_sources();
    try_lines(data, n);
    for (int kind = MOE_REQUEST_CHAT; kind <= MOE_REQUEST_TEXT; kind++)
        if (FUZZ_TRY(moe_request_parse(&r, (enum moe_request_kind)kind, data, n, NULL, &err)) ==
            MOE_OK)
            use(r, data, n);
    return 0;
}

FUZZ_MUTATE_TEXT
