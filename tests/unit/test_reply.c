/* Replies in the forms of OpenAI's API: whole, streamed, with usage and log probabilities, and
 * errors. Ids and dates are replaced before they are compared. */
#include "../test.h"

#include <jansson.h>

#include "prompt/chat_answer.h"
#include "serve/reply.h"
#include "serve/server.h"

static struct moe_request *request(enum moe_request_kind kind, const char *json)
{
    struct moe_request *r;
    struct moe_err err;
    assert_ok(moe_request_parse(&r, kind, json, strlen(json), NULL, &err), &err);
    return r;
}

static struct moe_reply *reply_to(enum moe_request_kind kind, const char *json)
{
    struct moe_reply *reply;
    struct moe_err err;
    struct moe_request *r = request(kind, json);
    assert_ok(moe_reply_new(&reply, r, "tiny", &err), &err);
    moe_request_free(r); /* it has what it needs */
    return reply;
}

/* What was written, with ID and 0 for the id and the date; free() it. */
static char *plain(struct moe_buf *out, const struct moe_reply *reply)
{
    const char *id = moe_reply_id(reply);
    struct moe_buf text = {0};
    assert_false(out->failed);
    for (const char *p = out->size ? (const char *)out->data : ""; *p;) {
        if (strncmp(p, id, strlen(id)) == 0) {
            moe_buf_text(&text, "ID");
            p += strlen(id);
        } else if (strncmp(p, "\"created\":", 10) == 0) {
            moe_buf_text(&text, "\"created\":0");
            for (p += 10; *p >= '0' && *p <= '9'; p++)
                ;
        } else {
            moe_buf_append(&text, p++, 1);
        }
    }
    moe_buf_release(out);
    moe_buf_u8(&text, 0);
    return (char *)text.data;
}

static void add_text(struct moe_reply *r, uint32_t choice, const char *bytes, uint64_t n,
                     struct moe_buf *out)
{
    moe_reply_part(r, choice, &(struct moe_answer_part){MOE_PART_CONTENT, bytes, n, false, false},
                   out);
}

static void check_written(struct moe_buf *out, const struct moe_reply *reply, const char *want)
{
    char *text = plain(out, reply);
    assert_string_equal(text, want);
    free(text);
}

#define CHAT "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]"
#define HEAD(object, model)                                                                        \
    "{\"id\":\"ID\",\"object\":\"" object "\",\"created\":0,\"model\":\"" model                    \
    "\",\"system_fingerprint\":\"moe-toolkit-" MOE_VERSION "\",\"choices\":["
#define USAGE(prompt, answer, both, cached)                                                        \
    "\"usage\":{\"prompt_tokens\":" prompt ",\"completion_tokens\":" answer                        \
    ",\"total_tokens\":" both ",\"prompt_tokens_details\":{\"cached_tokens\":" cached "}}"

static const struct moe_server_result stopped = {
    .why = MOE_STOP_EOS, .n_prompt = 5, .n_tokens = 2, .n_cached = 4, .model = "math"};
static const struct moe_server_result cut_off = {
    .why = MOE_STOP_LENGTH, .n_prompt = 5, .n_tokens = 3, .model = "math"};

static void whole_answers(void **state)
{
    (void)state;
    struct moe_buf out = {0};
    struct moe_reply *r = reply_to(MOE_REQUEST_CHAT, CHAT ", \"n\": 2}");
    assert_int_equal(strncmp(moe_reply_id(r), "chatcmpl-", 9), 0);
    add_text(r, 1, "two\n\"2\"", 7, &out);
    add_text(r, 0, "on", 2, &out);
    moe_reply_ended(r, 1, &cut_off, &out);
    add_text(r, 0, "e \xc3\xa9\xff\0.", 7, &out);
    assert_int_equal(out.size, 0);
    moe_reply_ended(r, 0, &stopped, &out);
    assert_null(moe_reply_failed(r));
    check_written(
        &out, r,
        HEAD("chat.completion", "math") "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content"
                                        "\":\"one \xc3\xa9\xef\xbf\xbd\\u0000.\",\"refusal\":null},"
                                        "\"logprobs\":null,\"finish_reason\":\"stop\"},"
                                        "{\"index\":1,\"message\":{\"role\":\"assistant\",\"content"
                                        "\":\"two\\u000a\\\"2\\\"\",\"refusal\":null},"
                                        "\"logprobs\":null,\"finish_reason\":\"length\"}]," USAGE(
                                            "5", "5", "10", "4") "}");
    moe_reply_free(r);
    moe_reply_free(reply_to(MOE_REQUEST_TEXT, "{\"prompt\": [5, 6], \"echo\": true}"));
    r = reply_to(MOE_REQUEST_TEXT, "{\"prompt\": \"Once\", \"echo\": true, \"model\": \"m\"}");
    assert_int_equal(strncmp(moe_reply_id(r), "cmpl-", 5), 0);
    add_text(r, 0, " upon", 5, &out);
    moe_reply_ended(r, 0, &stopped, &out);
    check_written(&out, r,
                  HEAD("text_completion",
                       "math") "{\"text\":\"Once upon\",\"index\":0,\"logprobs\""
                               ":null,\"finish_reason\":\"stop\"}]," USAGE("5", "2", "7", "4") "}");
    moe_reply_free(r);
    moe_reply_free(NULL);
}

/* Of three choices of each prompt the two likeliest by token, whatever their length and order. */
static void the_best_of_several(void **state)
{
    static const struct {
        const char *text;
        uint32_t n_tokens;
        double each;
    } choices[6] = {{"short", 1, -2}, {"long", 4, -1}, {"none", 0, 0},
                    {"c", 2, -0.5},   {"a", 1, -0.25}, {"b", 3, -0.25}};
    (void)state;
    struct moe_buf out = {0};
    struct moe_reply *r =
        reply_to(MOE_REQUEST_TEXT, "{\"prompt\": [\"x\", \"y\"], \"n\": 2, \"best_of\": 3}");
    for (uint32_t i = 6; i-- > 0;) {
        const struct moe_token_said said = {.token = {.log_probability = choices[i].each}};
        for (uint32_t k = 0; k < choices[i].n_tokens; k++)
            assert_false(moe_reply_token(r, i, &said)); /* it counts, and is not shown */
        add_text(r, i, choices[i].text, strlen(choices[i].text), &out);
        moe_reply_ended(r, i, &stopped, &out);
    }
#define SHOWN(text, index)                                                                         \
    "{\"text\":\"" text "\",\"index\":" index ",\"logprobs\":null,\"finish_reason\":\"stop\"}"
    check_written(&out, r,
                  HEAD("text_completion", "math")
                      SHOWN("long", "0") "," SHOWN("short", "1") "," SHOWN("a", "2") "," SHOWN(
                          "b", "3") "]," USAGE("10", "12", "22", "4") "}");
#undef SHOWN
    moe_reply_free(r);
}

#define CHUNK(model) "data: " HEAD("chat.completion.chunk", model)

static void streams(void **state)
{
    (void)state;
    struct moe_buf out = {0};
    struct moe_reply *r =
        reply_to(MOE_REQUEST_CHAT,
                 CHAT ", \"stream\": true, \"stream_options\": {\"include_usage\": true}}");
    add_text(r, 0, "a", 1, &out);
    check_written(&out, r,
                  CHUNK("tiny") "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"a\"},"
                                "\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n");
    add_text(r, 0, "b", 1, &out);
    check_written(&out, r,
                  CHUNK("tiny") "{\"index\":0,\"delta\":{\"content\":\"b\"},"
                                "\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n");
    moe_reply_ended(r, 0, &cut_off, &out);
    check_written(
        &out, r,
        CHUNK("math") "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}],"
                      "\"usage\":null}\n\n" CHUNK("math") "]," USAGE("5", "3", "8",
                                                                     "0") "}\n\ndata: [DONE]\n\n");
    moe_reply_free(r);
    r = reply_to(MOE_REQUEST_TEXT, "{\"prompt\": \"x\", \"stream\": true, \"n\": 2}");
    moe_reply_ended(r, 1, &stopped, &out);
    add_text(r, 0, "a", 1, &out);
    check_written(&out, r,
                  "data: " HEAD("text_completion",
                                "math") "{\"text\":\"\",\"index\":1,\"logprobs\""
                                        ":null,\"finish_reason\":\"stop\"}]}\n\n"
                                        "data: " HEAD("text_completion",
                                                      "math") "{\"text\":\"a\",\"index\":0,"
                                                              "\"logprobs\":null,\"finish_reason\":"
                                                              "null}]}\n\n");
    moe_reply_ended(r, 0, &stopped, &out);
    check_written(&out, r,
                  "data: " HEAD("text_completion", "math") "{\"text\":\"\",\"index\":0,\"logprobs\""
                                                           ":null,\"finish_reason\":\"stop\"}]}\n\n"
                                                           "data: [DONE]\n\n");
    moe_reply_free(r);
}

static struct moe_token_chance chance(const char *bytes, double log_probability)
{
    return (struct moe_token_chance){.bytes = (const uint8_t *)bytes,
                                     .n_bytes = (uint32_t)strlen(bytes),
                                     .log_probability = log_probability};
}

static void log_probabilities_in_both_forms(void **state)
{
    (void)state;
    struct moe_buf out = {0};
    struct moe_token_said a = {.token = chance("\xc3\xa9x", -0.5), .n_top = 2},
                          b = {.token = chance("\xe2\x80", -1e30), .n_top = 2};
    a.top[0] = chance("y", -0.25);
    a.top[1] = a.token;
    b.top[0] = chance("y", -0.125);
    b.top[1] = chance("y", -0.25);
    struct moe_reply *r =
        reply_to(MOE_REQUEST_CHAT, CHAT ", \"logprobs\": true, \"top_logprobs\": 2, \"stream\": "
                                        "true}");
    moe_reply_token(r, 0, &a);
    add_text(r, 0, "\xc3\xa9x", 3, &out);
    check_written(
        &out, r,
        CHUNK("tiny") "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\xc3\xa9x\"},"
                      "\"logprobs\":{\"content\":[{\"token\":\"\xc3\xa9x\",\"logprob\":-0.5,"
                      "\"bytes\":[195,169,120],\"top_logprobs\":[{\"token\":\"y\",\"logprob\":"
                      "-0.25,\"bytes\":[121]},{\"token\":\"\xc3\xa9x\",\"logprob\":-0.5,\"bytes\":"
                      "[195,169,120]}]}],\"refusal\":null},\"finish_reason\":null}]}\n\n");
    b.n_top = 0;
    moe_reply_token(r, 0, &b);
    moe_reply_ended(r, 0, &stopped, &out);
    check_written(
        &out, r,
        CHUNK("math") "{\"index\":0,\"delta\":{},\"logprobs\":{\"content\":[{\"token\":"
                      "\"\xef\xbf\xbd\xef\xbf\xbd\",\"logprob\":-9999,\"bytes\":[226,128],"
                      "\"top_logprobs\":[]}],\"refusal\":null},\"finish_reason\":\"stop\"}]}\n\n"
                      "data: [DONE]\n\n");
    moe_reply_free(r);
    b.n_top = 2;
    r = reply_to(MOE_REQUEST_TEXT, "{\"prompt\": \"x\", \"logprobs\": 2}");
    moe_reply_token(r, 0, &a);
    add_text(r, 0, "\xc3\xa9x", 3, &out);
    moe_reply_token(r, 0, &b);
    moe_reply_token(r, 0, &a);
    moe_reply_ended(r, 0, &stopped, &out);
    check_written(
        &out, r,
        HEAD("text_completion",
             "math") "{\"text\":\"\xc3\xa9x\",\"index\":0,\"logprobs\":{\"tokens\":[\"\xc3\xa9x\","
                     "\"bytes:\\\\xe2\\\\x80\",\"\xc3\xa9x\"],\"token_logprobs\":[-0.5,-9999,-0.5],"
                     "\"top_logprobs\":[{\"y\":-0.25,\"\xc3\xa9x\":-0.5},{\"y\":-0.125,"
                     "\"bytes:\\\\xe2\\\\x80\":-9999},{\"y\":-0.25,\"\xc3\xa9x\":-0.5}],"
                     "\"text_offset\":[0,2,3]},\"finish_reason\":\"stop\"}]," USAGE("5", "2", "7",
                                                                                    "4") "}");
    moe_reply_free(r);
    r = reply_to(MOE_REQUEST_TEXT, "{\"prompt\": \"x\", \"logprobs\": 0}");
    moe_reply_ended(r, 0, &stopped, &out);
    check_written(
        &out, r,
        HEAD("text_completion", "math") "{\"text\":\"\",\"index\":0,\"logprobs\":{"
                                        "\"tokens\":[],\"token_logprobs\":[],\"top_"
                                        "logprobs\":null,\"text_offset\":[]},\"finish_"
                                        "reason\":\"stop\"}]," USAGE("5", "2", "7", "4") "}");
    moe_reply_free(r);
    /* Not asked for. */
    r = reply_to(MOE_REQUEST_TEXT, "{\"prompt\": \"x\", \"stream\": true}");
    moe_reply_token(r, 0, &a);
    add_text(r, 0, "z", 1, &out);
    check_written(&out, r,
                  "data: " HEAD("text_completion", "tiny") "{\"text\":\"z\",\"index\":0,"
                                                           "\"logprobs\":null,\"finish_reason\":"
                                                           "null}]}\n\n");
    /* A character whose bytes come apart, as behind a prompt of ids; and one that is not ended. */
    add_text(r, 0, "\xe2\x82", 2, &out);
    assert_int_equal(out.size, 0);
    add_text(r, 0, "\xac\xe2", 2, &out);
    check_written(&out, r,
                  "data: " HEAD("text_completion", "tiny") "{\"text\":\"\xe2\x82\xac\",\"index\":0,"
                                                           "\"logprobs\":null,\"finish_reason\":"
                                                           "null}]}\n\n");
    moe_reply_ended(r, 0, &stopped, &out);
    moe_buf_u8(&out, 0);
    assert_non_null(strstr((char *)out.data, "{\"text\":\"\xef\xbf\xbd\",\"index\":0,"));
    moe_buf_release(&out);
    moe_reply_free(r);
}

static void a_choice_that_fails_fails_the_reply(void **state)
{
    (void)state;
    struct moe_err why;
    struct moe_buf out = {0};
    moe_fail(&why, MOE_ERR_LIMIT, "the prompt of 9 tokens does not fit the context of 8");
    const struct moe_server_result failed = {.status = why.status, .err = &why};
    struct moe_reply *r = reply_to(MOE_REQUEST_CHAT, CHAT ", \"n\": 2}");
    moe_reply_ended(r, 0, &failed, &out);
    add_text(r, 1, "x", 1, &out);
    moe_reply_ended(r, 1, &stopped, &out);
    assert_int_equal(out.size, 0);
    assert_string_equal(moe_reply_failed(r)->text, why.text);
    moe_reply_free(r);
    r = reply_to(MOE_REQUEST_CHAT, CHAT ", \"stream\": true}");
    moe_reply_ended(r, 0, &failed, &out);
    check_written(&out, r,
                  "data: {\"error\":{\"message\":\"the prompt of 9 tokens does not fit the context "
                  "of 8\",\"type\":\"invalid_request_error\",\"param\":null,\"code\":"
                  "\"context_length_exceeded\"}}\n\n");
    moe_reply_free(r);
}

static void errors_have_the_apis_form(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *text;
        unsigned http_status;
        const char *type, *param, *code;
    } errors[] = {
        {MOE_ERR_FORMAT, "the request: 'top_p' is 2", 400, "invalid_request_error", "top_p", NULL},
        {MOE_ERR_FORMAT, "the request is no object", 400, "invalid_request_error", NULL, NULL},
        {MOE_ERR_USAGE, "the model 'x' is not served here", 404, "invalid_request_error", "model",
         "model_not_found"},
        {MOE_ERR_UNSUPPORTED, "the model 'x' has no chat template that is known", 400,
         "invalid_request_error", NULL, "no_chat_template"},
        {MOE_ERR_USAGE, "the prompt is empty", 400, "invalid_request_error", NULL, NULL},
        {MOE_ERR_MEMORY, "out of memory", 503, "server_error", NULL, NULL},
        {MOE_ERR_IO, "'disk'", 500, "server_error", NULL, NULL},
    };
    for (size_t i = 0; i < N_ITEMS(errors); i++) {
        struct moe_err why;
        struct moe_buf out = {0};
        moe_fail(&why, errors[i].status, "%s", errors[i].text);
        assert_int_equal(moe_reply_http_status(&why), errors[i].http_status);
        moe_reply_error(&out, NULL, errors[i].http_status, &why);
        json_t *json = json_loadb((char *)out.data, out.size, 0, NULL);
        const json_t *error = json_object_get(json, "error");
        const char *param = json_string_value(json_object_get(error, "param"));
        const char *code = json_string_value(json_object_get(error, "code"));
        assert_int_equal(json_object_size(error), 4);
        assert_string_equal(json_string_value(json_object_get(error, "message")), errors[i].text);
        assert_string_equal(json_string_value(json_object_get(error, "type")), errors[i].type);
        assert_string_equal(param ? param : "", errors[i].param ? errors[i].param : "");
        assert_string_equal(code ? code : "", errors[i].code ? errors[i].code : "");
        json_decref(json);
        moe_buf_release(&out);
    }
    struct moe_err why;
    struct moe_buf out = {0};
    moe_fail(&why, MOE_ERR_LIMIT, "the queue is full");
    moe_reply_error(&out, NULL, 429, &why);
    assert_non_null(strstr((char *)out.data, "\"rate_limit_exceeded\""));
    moe_buf_release(&out);
}

/* Ollama's lines have calls whole; a call that is malformed is text. */
static void ollamas_streams_are_lines(void **state)
{
    (void)state;
    struct moe_reply *r = reply_to(MOE_REQUEST_OLLAMA_CHAT, "{\"model\": \"tiny\", \"messages\": "
                                                            "[{\"role\": \"user\", "
                                                            "\"content\": \"x\"}]}");
    static const struct moe_answer_part parts[] = {
        {MOE_PART_THOUGHT, "Hm", 2, false, false},
        {MOE_PART_CONTENT, "So:", 3, false, false},
        {MOE_PART_CALL, "find", 4, false, false},
        {MOE_PART_ARGUMENTS, "{\"a\":", 5, false, false},
        {MOE_PART_ARGUMENTS, "1}", 2, false, false},
        {MOE_PART_CALL_ENDS, "", 0, false, false},
        {MOE_PART_CALL, "find", 4, false, false},
        {MOE_PART_ARGUMENTS, "{", 1, false, false},
        {MOE_PART_CALL_FAILS, "<call>{", 7, false, false},
    };
    struct moe_buf out = {0};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        moe_reply_part(r, 0, &parts[i], &out);
    const struct moe_server_result result = {.why = MOE_STOP_EOS,
                                             .n_prompt = 3,
                                             .n_tokens = 9,
                                             .queue_seconds = 0.5,
                                             .ttft_seconds = 1,
                                             .seconds = 3,
                                             .model = "tiny"};
    moe_reply_ended(r, 0, &result, &out);
    assert_true(moe_reply_is_lines(r));
    moe_buf_u8(&out, 0);
    static const char *const lines[] = {
        "\"message\":{\"role\":\"assistant\",\"content\":\"\",\"thinking\":\"Hm\"},\"done\":false}",
        "\"message\":{\"role\":\"assistant\",\"content\":\"So:\"},\"done\":false}",
        "\"function\":{\"index\":0,\"name\":\"find\",\"arguments\":{\"a\":1}}}]},\"done\":false}",
        "\"content\":\"\\u000a\\u000a<call>{\"},\"done\":false}",
        "\"content\":\"\"},\"done\":true,\"done_reason\":\"stop\",\"total_duration\":3000000000,"
        "\"load_duration\":500000000,\"prompt_eval_count\":3,\"prompt_eval_duration\":500000000,"
        "\"eval_count\":9,\"eval_duration\":2000000000}",
    };
    char *line = strtok((char *)out.data, "\n");
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++, line = strtok(NULL, "\n")) {
        json_t *object = line ? json_loads(line, 0, NULL) : NULL;
        assert_non_null(object);
        assert_non_null(strstr(line, lines[i]));
        json_decref(object);
    }
    assert_null(line);
    moe_buf_release(&out);
    moe_reply_free(r);
}

/* A call that was cut off is text, behind the one before it; a stream begins with what is known. */
static void messages_have_their_blocks_in_order(void **state)
{
    static const struct moe_answer_part parts[] = {
        {MOE_PART_CONTENT, "Hm", 2, false, false},
        {MOE_PART_CALL, "f", 1, false, false},
        {MOE_PART_ARGUMENTS, "{}", 2, false, false},
        {MOE_PART_CALL_ENDS, "", 0, false, false},
        {MOE_PART_CALL, "f", 1, false, false},
        {MOE_PART_ARGUMENTS, "{", 1, false, false},
        {MOE_PART_CALL_FAILS, "<call>{", 7, false, false},
    };
    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        struct moe_buf out = {0};
        struct moe_reply *r =
            reply_to(MOE_REQUEST_MESSAGES, stream ? CHAT ", \"max_tokens\": 9, \"stream\": true}"
                                                  : CHAT ", \"max_tokens\": 9}");
        moe_reply_begun(r, 5, 0);
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
            moe_reply_part(r, 0, &parts[i], &out);
        moe_reply_ended(r, 0, &cut_off, &out);
        char *text = plain(&out, r);
        const char *const order[] = {
            stream ? "\"input_tokens\":5" : "[{\"type\":\"text\",\"text\":\"Hm\"}",
            "\"type\":\"tool_use\"",
            stream ? "\"type\":\"tool_use\"" : "{\"type\":\"text\",\"text\":\"<call>{\"}]",
            "\"stop_reason\":\"max_tokens\"", "\"input_tokens\":5"};
        const char *at = text;
        for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
            at = strstr(at, order[i]);
            if (!at)
                fail_msg("%s is missing or too early: %s", order[i], text);
            at += strlen(order[i]);
        }
        free(text);
        moe_reply_free(r);
    }
}

static void infilled_texts_have_llamas_form(void **state)
{
    (void)state;
    struct moe_buf out = {0};
    struct moe_request *q =
        request(MOE_REQUEST_INFILL, "{\"input_prefix\": \"a\", \"prompt\": \"b\", "
                                    "\"input_suffix\": \"\", \"n_predict\": 3, \"input_extra\": "
                                    "[{\"filename\": \"x.c\", \"text\": \"int\"}, {\"text\": "
                                    "\"y\"}], \"cache_prompt\": true, \"top_k\": 40, "
                                    "\"samplers\": [\"top_k\"], \"response_fields\": [\"content\", "
                                    "\"stop_type\", \"timings/prompt_n\", \"/\", \"timings/\", "
                                    "\"timings//prompt_n\", \"/content\"]}");
    assert_string_equal(q->inputs[0].text, "ab");
    assert_string_equal(q->suffix, ""); /* nothing, but the middle is wanted */
    assert_int_equal(q->n_files, 2);
    assert_string_equal(q->files[0].name, "x.c");
    assert_string_equal(q->files[1].text, "y");
    assert_int_equal(q->max_tokens, 3);
    assert_string_equal(q->ignored, "samplers");
    struct moe_err err;
    struct moe_reply *r;
    assert_ok(moe_reply_new(&r, q, "tiny", &err), &err);
    moe_request_free(q);
    add_text(r, 0, "one", 3, &out);
    moe_reply_ended(r, 0, &cut_off, &out);
    check_written(&out, r,
                  "{\"content\":\"one\",\"stop_type\":\"limit\",\"timings/prompt_n\":5}\n");
    moe_reply_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_answers),
        cmocka_unit_test(the_best_of_several),
        cmocka_unit_test(streams),
        cmocka_unit_test(log_probabilities_in_both_forms),
        cmocka_unit_test(a_choice_that_fails_fails_the_reply),
        cmocka_unit_test(errors_have_the_apis_form),
        cmocka_unit_test(ollamas_streams_are_lines),
        cmocka_unit_test(messages_have_their_blocks_in_order),
        cmocka_unit_test(infilled_texts_have_llamas_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
