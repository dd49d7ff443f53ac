/* Requests of OpenAI's API: what is read, what a missing key means, what is refused and how. */
#include "../test.h"

#include <jansson.h>
#include <math.h>

#include "prompt/chat.h"
#include "serve/request.h"

static struct moe_request *parse(enum moe_request_kind kind, const char *json)
{
    struct moe_request *r;
    struct moe_err err;
    assert_ok(moe_request_parse(&r, kind, json, strlen(json), NULL, &err), &err);
    return r;
}

static void refused(enum moe_request_kind kind, const char *json, const char *words)
{
    struct moe_err err = {0};
    struct moe_request *r = (struct moe_request *)(void *)&err;
    assert_fails(moe_request_parse(&r, kind, json, strlen(json), NULL, &err), MOE_ERR_FORMAT, words,
                 &err);
    assert_null(r);
}

#define HELLO "\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]"

static void missing_keys_mean_what_the_api_says(void **state)
{
    (void)state;
    struct moe_request *chat = parse(MOE_REQUEST_CHAT, "{" HELLO "}");
    assert_int_equal(chat->kind, MOE_REQUEST_CHAT);
    assert_null(chat->model);
    assert_null(chat->id);
    assert_int_equal(json_array_size(chat->messages), 1);
    assert_true(moe_chat_has_role(json_array_get(chat->messages, 0), "user"));
    assert_string_equal(moe_chat_text(json_array_get(chat->messages, 0)), "Hello");
    assert_null(chat->tools);
    assert_null(chat->variables);
    struct moe_sampling_value v; /* nothing is asked for: the model decides */
    for (int i = 0; moe_sampling_value(&chat->sampling, NULL, i, &v); i++)
        assert_int_equal(v.origin, MOE_SAMPLING_DEFAULT);
    assert_true(chat->max_tokens == UINT64_MAX);
    assert_int_equal(chat->n, 1);
    assert_int_equal(chat->n_stops, 0);
    assert_null(chat->stops[0]);
    assert_false(chat->stream || chat->stream_usage || chat->logprobs || chat->ignore_eos ||
                 chat->echo || !chat->draft);
    struct moe_request *text = parse(MOE_REQUEST_TEXT, "{\"prompt\": \"Once\"}");
    assert_string_equal(text->inputs[0].text, "Once");
    assert_int_equal(text->inputs[0].n, 4);
    assert_true(text->max_tokens == 16);
    /* Two without a seed differ. */
    assert_true(text->sampling.seed != chat->sampling.seed);
    moe_request_free(chat);
    moe_request_free(text);
    moe_request_free(NULL);
}

static void every_key_is_read(void **state)
{
    (void)state;
    struct moe_request *r = parse(
        MOE_REQUEST_CHAT,
        "{\"model\": \"a\", \"messages\": ["
        "{\"role\": \"system\", \"content\": \"Be kind.\"},"
        "{\"role\": \"developer\", \"content\": \"Be brief.\"},"
        "{\"role\": \"user\", \"name\": \"Eva\", \"content\": ["
        "{\"type\": \"text\", \"text\": \"One \"}, {\"type\": \"text\", \"text\": \"two\"}]},"
        "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": null},"
        "{\"role\": \"user\", \"content\": \"Three \\u00e9\\ud83d\\ude00\"}],"
        "\"temperature\": 0.5, \"top_p\": 0.25, \"top_k\": 7, \"min_p\": 0.125,"
        "\"repeat_penalty\": 1.5, \"seed\": -1, \"max_completion_tokens\": 12, \"max_tokens\": 12,"
        "\"stop\": [\"x\", \"\", \"yz\"], \"n\": 3, \"stream\": true,"
        "\"stream_options\": {\"include_usage\": true}, \"logprobs\": true, \"top_logprobs\": 4,"
        "\"ignore_eos\": true, \"draft\": false, \"metadata\": {\"topic\": \"law\", \"model\": "
        "\"b\"},"
        "\"user\": \"somebody\", \"no_such_key\": {\"a\": [1]}}");
    assert_string_equal(r->model, "a");
    assert_int_equal(json_array_size(r->messages), 5);
    const struct json_t *user = json_array_get(r->messages, 2);
    assert_string_equal(json_string_value(json_object_get(user, "name")), "Eva");
    assert_int_equal(json_array_size(json_object_get(user, "content")), 2);
    assert_true(moe_chat_has_role(json_array_get(r->messages, 1), "developer"));
    assert_true(r->chat_bytes > 1000);
    assert_true(r->sampling.temperature == 0.5);
    assert_true(r->sampling.top_p == 0.25);
    assert_int_equal(r->sampling.top_k, 7);
    assert_true(r->sampling.min_p == 0.125);
    assert_true(r->sampling.repeat_penalty == 1.5);
    assert_true(moe_request_seed(r, 0) == UINT64_MAX);
    assert_true(moe_request_seed(r, 2) == 1);
    assert_true(r->max_tokens == 12);
    assert_int_equal(r->n_stops, 2);
    assert_string_equal(r->stops[0], "x");
    assert_string_equal(r->stops[1], "yz");
    assert_null(r->stops[2]);
    assert_int_equal(r->n, 3);
    assert_true(r->stream && r->stream_usage && r->logprobs && r->ignore_eos && !r->draft);
    assert_int_equal(r->top_logprobs, 4);
    assert_string_equal(moe_request_field(r, "topic"), "law");
    assert_string_equal(moe_request_field(r, "model"), "a");
    assert_string_equal(moe_request_field(r, "prompt"), "Three \xc3\xa9\xf0\x9f\x98\x80");
    assert_null(moe_request_field(r, "colour"));
    moe_request_free(r);
}

/* What templates see beside the texts. */
static void chats_keep_all_members(void **state)
{
    (void)state;
    struct moe_request *r = parse(
        MOE_REQUEST_CHAT,
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"},"
        "{\"type\": \"text\", \"text\": \"b\"}]}, {\"role\": \"assistant\", \"content\": null,"
        "\"reasoning_content\": \"hm\", \"tool_calls\": [{\"id\": \"1\"}]},"
        "{\"role\": \"tool\", \"tool_call_id\": \"1\", \"content\": \"3\"}],"
        "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}], \"tool_choice\": "
        "\"auto\","
        "\"reasoning_effort\": \"high\", \"chat_template_kwargs\": {\"enable_thinking\": false}}");
    const struct json_t *answer = json_array_get(r->messages, 1);
    assert_string_equal(json_string_value(json_object_get(answer, "reasoning_content")), "hm");
    assert_int_equal(json_array_size(json_object_get(answer, "tool_calls")), 1);
    assert_true(moe_chat_has_role(json_array_get(r->messages, 2), "tool"));
    assert_int_equal(json_array_size(r->tools), 1);
    assert_true(json_is_false(json_object_get(r->variables, "enable_thinking")));
    assert_string_equal(json_string_value(json_object_get(r->variables, "reasoning_effort")),
                        "high");
    assert_string_equal(moe_request_field(r, "prompt"), "ab");
    moe_request_free(r);
    r = parse(MOE_REQUEST_CHAT, "{" HELLO ", \"reasoning_effort\": \"none\", \"n_predict\": 0}");
    assert_true(r->no_thought);
    assert_true(r->max_tokens == 0);
    moe_request_free(r);
    r = parse(MOE_REQUEST_CHAT, "{" HELLO ", \"thinking\": {\"type\": \"disabled\"}}");
    assert_true(r->no_thought);
    moe_request_free(r);
    r = parse(MOE_REQUEST_CHAT, "{" HELLO ", \"enable_thinking\": false, "
                                "\"chat_template_kwargs\": {\"enable_thinking\": true}}");
    assert_false(r->no_thought);
    moe_request_free(r);
    r = parse(MOE_REQUEST_CHAT, "{" HELLO ", \"thinking\": true}");
    assert_true(json_is_true(json_object_get(r->variables, "enable_thinking")));
    moe_request_free(r);
    r = parse(MOE_REQUEST_CHAT, "{" HELLO ", \"tools\": [{\"type\": \"function\", \"function\": "
                                "{\"name\": \"f\"}}], \"tool_choice\": \"none\"}");
    assert_false(r->no_thought);
    assert_null(r->tools);
    assert_null(r->variables);
    moe_request_free(r);
}

static void prompts_come_in_each_form(void **state)
{
    (void)state;
    static const char *const texts[] = {"{\"prompt\": \"Once\"}", "{\"prompt\": [\"Once\"]}"};
    static const char *const ids[] = {"{\"prompt\": [5, 0, 4294967295]}",
                                      "{\"prompt\": [[5, 0, 4294967295]]}"};
    for (int i = 0; i < 2; i++) {
        struct moe_request *r = parse(MOE_REQUEST_TEXT, texts[i]);
        assert_string_equal(r->inputs[0].text, "Once");
        assert_string_equal(moe_request_field(r, "prompt"), "Once");
        assert_null(r->inputs[0].ids);
        moe_request_free(r);
        r = parse(MOE_REQUEST_TEXT, ids[i]);
        assert_null(r->inputs[0].text);
        assert_null(moe_request_field(r, "prompt"));
        assert_int_equal(r->inputs[0].n, 3);
        assert_int_equal(r->inputs[0].ids[0], 5);
        assert_int_equal(r->inputs[0].ids[2], UINT32_MAX);
        moe_request_free(r);
    }
    struct moe_request *r = parse(
        MOE_REQUEST_TEXT, "{\"prompt\": \"\", \"logprobs\": 0, \"stop\": \"end\", \"top_k\": -1,"
                          "\"repetition_penalty\": 2, \"max_tokens\": 0}");
    assert_true(r->logprobs);
    assert_int_equal(r->top_logprobs, 0);
    assert_string_equal(r->stops[0], "end");
    assert_int_equal(r->sampling.top_k, 0);
    assert_true(r->sampling.repeat_penalty == 2);
    assert_true(r->max_tokens == 0);
    moe_request_free(r);
    r = parse(MOE_REQUEST_TEXT, "{\"prompt\": \"a\", \"prefix_text\": \"before\"}");
    assert_string_equal(r->prefix_text, "before");
    moe_request_free(r);
    r = parse(MOE_REQUEST_TEXT, "{\"prompt\": [\"a\", \"b\"], \"source_language\": \"eng_Latn\", "
                                "\"target_language\": \"fra_Latn\"}");
    assert_string_equal(r->source_language, "eng_Latn");
    assert_string_equal(r->target_language, "fra_Latn");
    moe_request_free(r);
    r = parse(MOE_REQUEST_TEXT, "{\"prompt\": [1], \"source_language\": null, "
                                "\"target_language\": null}");
    assert_true(!r->source_language && !r->target_language);
    moe_request_free(r);
    r = parse(MOE_REQUEST_TEXT, "{\"prompt\": [\"a\", \"b\"], \"suffix\": \"behind\"}");
    assert_string_equal(r->suffix, "behind");
    moe_request_free(r);
    r = parse(MOE_REQUEST_TEXT, "{\"prompt\": \"a\", \"echo\": true}");
    assert_true(r->echo);
    moe_request_free(r);
}

static void what_cannot_be_is_refused_by_its_key(void **state)
{
    (void)state;
    static const struct {
        const char *rest, *words;
    } chats[] = {
        {"\"temperature\": 2.5", "'temperature' is 2.5, expected 0 to 2"},
        {"\"temperature\": -1", "'temperature' is -1"},
        {"\"temperature\": \"hot\"", "'temperature' is a text, a number was expected"},
        {"\"top_p\": 1.5", "'top_p' is 1.5"},
        {"\"min_p\": -0.5", "'min_p' is -0.5"},
        {"\"repeat_penalty\": 0", "'repeat_penalty' is 0"},
        {"\"top_k\": -2", "'top_k' is -2"},
        {"\"top_k\": 1.5", "'top_k' is 1.5"},
        {"\"n\": 0", "'n' is 0, expected 1 to 128"},
        {"\"n\": 129", "'n' is 129, expected 1 to 128"},
        {"\"max_tokens\": -2", "'max_tokens' is -2, expected -1, for no limit, or 0 to 4294967295"},
        {"\"top_k\": 2e6", "'top_k' is 2000000, expected a whole number, -1 to 1000000"},
        {"\"logit_bias\": {\"-1\": 5}", "'logit_bias': -1 is not a token's id"},
        {"\"logit_bias\": {\"99999999999999999999999\": 5}",
         "'logit_bias': 99999999999999999999999 is not a token's id"},
        {"\"n\": 129", "'n' is 129"},
        {"\"seed\": 1.5", "'seed' is not a whole number"},
        {"\"seed\": 1e30", "'seed' is not a whole number"},
        {"\"seed\": 18446744073709551616", "'seed' is not a whole number"},
        {"\"max_tokens\": 18446744073709551616",
         "'max_tokens' is 1.8446744073709552e+19, expected"},
        {"\"stop\": 18446744073709551616", "'stop' is neither"},
        {"\"stream\": 1", "'stream' is a number, true or false was expected"},
        {"\"stream_options\": {\"include_usage\": true}", "'stream_options' needs 'stream'"},
        {"\"stream\": true, \"stream_options\": 3", "'stream_options': an object"},
        {"\"logprobs\": 3", "'logprobs' is a number"},
        {"\"logprobs\": true, \"top_logprobs\": 21", "'top_logprobs' is 21, expected 0 to 20"},
        {"\"top_logprobs\": 2", "'top_logprobs' needs 'logprobs'"},
        {"\"max_tokens\": -2", "'max_tokens' is -2"},
        {"\"max_tokens\": 1, \"max_completion_tokens\": 2", "'max_completion_tokens' and 'max_"},
        {"\"n_predict\": -5", "'n_predict' is -5, expected -1 or -2, for no limit, or 0 to 42"},
        {"\"n_predict\": 1, \"max_completion_tokens\": 2", "'n_predict' and 'max_completion_"},
        {"\"stop\": 3", "'stop' is neither a text nor a list"},
        {"\"stop\": [1]", "'stop[0]' is not a text"},
        {"\"stop\": \"a\\u0000b\"", "'stop' has a NUL"},
        {"\"stop\": [\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\","
         "\"\",\"\"]",
         "'stop' has 17 texts, 16"},
        {"\"model\": 7", "'model' is not a text"},
        {"\"metadata\": [1]", "'metadata' is not an object"},
        {"\"metadata\": {\"a\": \"\\u0000\"}", "'metadata.a' has a NUL"},
        {"\"tools\": {\"type\": \"function\"}", "'tools' is not a list"},
        {"\"tools\": [\"get_weather\"]", "'tools[0]' is not an object"},
        {"\"tool_choice\": \"required\"", "'tool_choice' wants a call, but there are no 'tools'"},
        {"\"tool_choice\": {\"type\": \"function\"}", "'tool_choice' names no function"},
        {"\"chat_template_kwargs\": [1]", "'chat_template_kwargs' is not an object"},
        {"\"reasoning_effort\": 3", "'reasoning_effort' is not a text"},
        {"\"thinking\": {\"budget\": 3}", "'thinking' is neither true, false nor an object with"},
        {"\"thinking\": {\"type\": \"on\"}", "'thinking.type' is none of enabled, adaptive, "},
        {"\"thinking_budget\": 1.5", "'thinking_budget' is not a whole number"},
        {"\"thinking_budget\": 5, \"thinking\": {\"type\": \"enabled\", \"budget_tokens\": 6}",
         "'thinking_budget' and 'thinking.budget_tokens' are two different budgets"},
        {"\"thinking\": {\"type\": \"enabled\", \"budget_tokens\": \"9\"}",
         "'thinking.budget_tokens' is not a whole number"},
        {"\"enable_thinking\": 1", "'enable_thinking' is a number, true or false was expected"},
        {"\"logit_bias\": 1", "'logit_bias' is neither an object nor a list"},
        {"\"logit_bias\": {\"1\": -101}", "'logit_bias' has a bias that is neither -100 to 100"},
        {"\"logit_bias\": {\"1\": true}", "'logit_bias' has a bias that is neither -100 to 100"},
        {"\"logit_bias\": [[1]]", "'logit_bias[0]' is not a token and its bias"},
        {"\"logit_bias\": [[1.5, 1]]", "'logit_bias' has what is neither a token's id nor a text"},
        {"\"logit_bias\": [[-1, 1]]", "'logit_bias' has what is neither a token's id nor a text"},
        {"\"logit_bias\": {\"4294967296\": 1}", "'logit_bias': 4294967296 is not a token's id"},
        {"\"presence_penalty\": 2.5", "'presence_penalty' is 2.5, expected -2 to 2"},
        {"\"frequency_penalty\": -2.5", "'frequency_penalty' is -2.5, expected -2 to 2"},
        {"\"mirostat\": 1", "'mirostat' is 1, which is not supported"},
        {"\"typical_p\": -1", "'typical_p' is -1, expected 0 to 1"},
        {"\"dry_base\": 0.5", "'dry_base' is 0.5, expected 1 to 100"},
        {"\"dry_sequence_breakers\": \"x\"", "'dry_sequence_breakers' is not a list"},
        {"\"dry_sequence_breakers\": [1]", "'dry_sequence_breakers' is not a text"},
        {"\"repeat_last_n\": -2", "'repeat_last_n' is -2, expected a whole number, -1 to 1000000"},
        {"\"min_tokens\": 3, \"max_tokens\": 2", "'min_tokens' is 3, more than"},
        {"\"stop_token_ids\": 3", "'stop_token_ids' is not a list"},
        {"\"stop_token_ids\": [-3]", "'stop_token_ids[0]' is not a token's id"},
        {"\"response_format\": {\"type\": \"json\"}", "'response_format'"},
        {"\"response_format\": {\"type\": \"json_schema\"}", "'response_format'"},
        {"\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": "
         "{\"properties\": {\"a/b\": {\"not\": {\"minLength\": 1}}}}}}",
         "'response_format': #/properties/a~1b/not: "},
        {"\"response_format\": \"text\"", "'response_format'"},
        {"\"json_schema\": {\"type\": \"strin\"}", "'json_schema': #/type: "},
        {"\"grammar\": \"root ::= x\"", "'grammar': line 1, column 10: "},
        {"\"grammar\": 1", "'grammar'"},
        {"\"grammar\": \"root ::= \\\"x\\\"\", \"json_schema\": {}", "exclude each other"},
        {"\"modalities\": [\"text\", \"audio\"]", "'modalities'"},
        {"\"modalities\": true", "'modalities'"},
        {"\"guided_regex\": \"a+\"", "'guided_regex'"},
        {"\"use_beam_search\": true", "'use_beam_search'"},
        {"\"n\": 1, \"n\": 2", "duplicate"},
    };
    static const struct {
        const char *json, *words;
    } whole[] = {
        {"", "the request: line 1 column 0"},
        {"[]", "is not a JSON object"},
        {"{\"messages\": []", "the request: line 1"},
        {"{}", "'messages' is missing"},
        {"{\"messages\": []}", "'messages' is empty"},
        {"{\"messages\": \"Hi\"}", "'messages' is not a list"},
        {"{\"messages\": [3]}", "'messages[0].role' is not a string"},
        {"{\"messages\": [{\"role\": \"tool\"}]}", "'messages[0].content' is not a text"},
        {"{\"messages\": [{\"role\": \"user\"}]}", "'messages[0].content' is not a text"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"\\u0000\"}]}",
         "'messages[0].content' has a NUL"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\"}]}",
         "unable to decode byte 0xff"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}",
         "'messages[0].content[0]' is a part of type image_url"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]}",
         "'messages[0].content[0].text' is not a text"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": 1, \"tool_calls\": []}]}",
         "'messages[0].content' is not a text"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"\", \"audio\": {\"id\": \"1\"}}]}",
         "'messages[0].audio'"},
    };
    static const struct {
        const char *json, *words;
    } texts[] = {
        {"{}", "'prompt' is missing"},
        {"{\"prompt\": null}", "'prompt' is missing"},
        {"{\"prompt\": 3}", "'prompt' is not a text"},
        {"{\"prompt\": []}", "'prompt' is an empty list"},
        {"{\"prompt\": [\"a\", \"b\"], \"n\": 65}", "2 prompts with 65 choices each"},
        {"{\"prompt\": [[1], [-2]]}", "'prompt[0]' is not a token's id"},
        {"{\"prompt\": [1, \"a\"]}", "'prompt[1]' is not a token's id"},
        {"{\"prompt\": [-1]}", "'prompt[0]' is not a token's id"},
        {"{\"prompt\": [4294967296]}", "'prompt[0]' is not a token's id"},
        {"{\"prompt\": \"a\", \"logprobs\": true}", "'logprobs' is a truth value"},
        {"{\"prompt\": [1], \"prefix_text\": \"a\"}", "'prefix_text' needs one text prompt"},
        {"{\"prompt\": \"a\", \"prefix_text\": 1}", "'prefix_text' is not a text"},
        {"{\"prompt\": [1], \"target_language\": \"a\"}", "languages need prompts that are texts"},
        {"{\"prompt\": \"a\", \"source_language\": 1}", "'source_language' is not a text"},
        {"{\"prompt\": \"a\", \"prefix_text\": \"b\", \"target_language\": \"c\"}",
         "'prefix_text' excludes languages"},
        {"{\"prompt\": \"a\", \"n\": 3, \"best_of\": 2}", "'best_of' is 2, fewer than 'n'"},
        {"{\"prompt\": \"a\", \"best_of\": 2, \"stream\": true}", "'best_of' excludes 'stream'"},
        {"{\"prompt\": \"a\", \"best_of\": 2, \"echo\": true, \"logprobs\": 1}",
         "'best_of' excludes 'echo' with 'logprobs'"},
        {"{\"prompt\": \"a\", \"best_of\": 1000}", "'best_of'"},
        {"{\"prompt\": [\"a\", \"b\"], \"best_of\": 65}", "2 prompts with 65 choices each"},
        {"{\"prompt\": [1], \"suffix\": \"b\"}", "'suffix' needs prompts that are texts"},
        {"{\"prompt\": \"a\", \"suffix\": 1}", "'suffix' is not a text"},
        {"{\"prompt\": \"a\", \"suffix\": \"b\", \"prefix_text\": \"c\"}",
         "'suffix' excludes 'prefix_text'"},
        {"{\"prompt\": \"a\", \"suffix\": \"b\", \"echo\": true, \"logprobs\": 1}",
         "'suffix' excludes 'echo' with 'logprobs'"},
    };
    for (size_t i = 0; i < N_ITEMS(chats); i++) {
        char json[512];
        snprintf(json, sizeof json, "{" HELLO ", %s}", chats[i].rest);
        refused(MOE_REQUEST_CHAT, json, chats[i].words);
    }
    for (size_t i = 0; i < N_ITEMS(whole); i++)
        refused(MOE_REQUEST_CHAT, whole[i].json, whole[i].words);
    for (size_t i = 0; i < N_ITEMS(texts); i++)
        refused(MOE_REQUEST_TEXT, texts[i].json, texts[i].words);
}

/* What each token costs, and what replies hold, does not grow with texts of any length. */
static void long_texts_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *before, *after; /* of a text that is as long as may be, and then longer */
        int most;
        const char *words;
    } longs[] = {
        {"\"stop\": \"", "\"", MOE_REQUEST_MAX_STOP_BYTES, "'stop' has 1025 bytes, 1024 at most"},
        {"\"stop\": [\"b\", \"", "\"]", MOE_REQUEST_MAX_STOP_BYTES, "'stop[1]' has 1025 bytes"},
        {"\"dry_sequence_breakers\": [\"", "\"]", MOE_REQUEST_MAX_BREAKER_BYTES,
         "a text of 'dry_sequence_breakers' has 65 bytes"},
        {"\"logit_bias\": {\"5\": 1, \"b\": 2, \"", "\": 1}", MOE_REQUEST_MAX_BIASED_BYTES - 1,
         "'logit_bias' has texts of 16385 bytes, 16384 at most"},
        {"\"logit_bias\": [[\"b\", 1], [\"", "\", 1]]", MOE_REQUEST_MAX_BIASED_BYTES - 1,
         "'logit_bias' has texts of 16385 bytes"},
        {"\"echo\": true, \"n\": 64, \"prompt\": \"", "\"", MOE_REQUEST_MAX_REPLY_BYTES / 64,
         "'echo' of 64 choices of each prompt takes more than 4 MiB"},
        {"\"echo\": true, \"best_of\": 64, \"prompt\": [\"", "\"]",
         MOE_REQUEST_MAX_REPLY_BYTES / 64, "'echo' of 64 choices"},
    };
    for (size_t i = 0; i < N_ITEMS(longs); i++)
        for (int more = 0; more < 2; more++) {
            struct moe_buf body = {0};
            moe_buf_printf(&body, "{%s", longs[i].before);
            for (int k = 0; k < longs[i].most + more; k++)
                moe_buf_u8(&body, 'a');
            moe_buf_printf(&body, "%s%s}", longs[i].after,
                           strstr(longs[i].before, "prompt") ? "" : ", \"prompt\": \"x\"");
            moe_buf_u8(&body, 0);
            if (more)
                refused(MOE_REQUEST_TEXT, (const char *)body.data, longs[i].words);
            else
                moe_request_free(parse(MOE_REQUEST_TEXT, (const char *)body.data));
            moe_buf_release(&body);
        }
}

/* What a conversation that goes on costs grows with its length, not with its square, and what is
 * kept of it counts as its request's memory. */
static void a_long_conversation_goes_on(void **state)
{
    (void)state;
    enum { N = 20000 };
    struct moe_err err;
    struct moe_buf before = {0};
    for (int i = 0; i < N; i++)
        moe_buf_printf(&before, "%c{\"role\":\"user\",\"content\":\"%d\"}", i ? ',' : '[', i);
    moe_buf_u8(&before, ']');
    struct moe_request *r =
        parse(MOE_REQUEST_RESPONSES, "{\"instructions\": \"Be brief\", \"input\": \"x\"}");
    const uint64_t bytes = moe_request_bytes(r);
    assert_ok(moe_request_go_on(r, before.data, before.size, &err), &err);
    assert_int_equal(json_array_size(r->messages), N + 2);
    assert_true(moe_chat_has_role(json_array_get(r->messages, 0), "system"));
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(r->messages, N), "content")), "19999");
    const uint64_t longer = moe_request_bytes(r);
    assert_true(longer > bytes + before.size);
    uint32_t n;
    char *conversation = moe_request_conversation(r, &n);
    assert_int_equal(n, N + 1);
    assert_int_equal(strncmp(conversation, (const char *)before.data, before.size - 1), 0);
    assert_true(moe_request_bytes(r) >= longer + strlen(conversation));
    free(conversation);
    moe_buf_release(&before);
    moe_request_free(r);
}

static void how_tokens_are_drawn_is_read(void **state)
{
    (void)state;
    struct moe_request *r = parse(
        MOE_REQUEST_CHAT,
        "{" HELLO ", \"presence_penalty\": 1.5, \"frequency_penalty\": -0.5, \"mirostat\": 2, "
        "\"mirostat_tau\": 3, \"mirostat_eta\": 0.2, \"repeat_last_n\": -1, \"typical_p\": 0.9,"
        "\"dry_multiplier\": 0.8, \"dry_base\": 2, \"dry_allowed_length\": 3,"
        "\"dry_penalty_last_n\": 50, \"dry_sequence_breakers\": [\"a\", \"\"],"
        "\"top_n_sigma\": 1.5, \"xtc_probability\": 0.5, \"xtc_threshold\": 0.2,"
        "\"dynatemp_range\": 0.4, \"dynatemp_exponent\": 2, \"min_tokens\": 4,"
        "\"stop_token_ids\": [7, 9], \"logit_bias\": [[5, -1], [\"Once\", false]]}");
    const struct moe_sampler_options *s = &r->sampling;
    assert_true(s->presence_penalty == 1.5 && s->frequency_penalty == -0.5);
    assert_true(s->mirostat == 2 && s->mirostat_tau == 3 && s->mirostat_eta == 0.2);
    assert_true(s->repeat_window == 1000000 && s->typical_p == 0.9);
    assert_true(s->dry_multiplier == 0.8 && s->dry_base == 2 && s->dry_allowed_length == 3);
    assert_int_equal(s->dry_window, 50);
    assert_string_equal(s->dry_breakers[0], "a");
    assert_string_equal(s->dry_breakers[1], "");
    assert_null(s->dry_breakers[2]);
    assert_true(s->top_n_sigma == 1.5 && s->xtc_probability == 0.5 && s->xtc_threshold == 0.2);
    assert_true(s->dynatemp_range == 0.4 && s->dynatemp_exponent == 2);
    assert_int_equal(r->min_tokens, 4);
    assert_true(r->n_stop_ids == 2 && r->stop_ids[0] == 7 && r->stop_ids[1] == 9);
    assert_int_equal(r->n_biases, 2);
    assert_true(!r->biases[0].text && r->biases[0].token.id == 5 && r->biases[0].token.bias == -1);
    assert_string_equal(r->biases[1].text, "Once");
    assert_true(isinf(r->biases[1].token.bias) && r->biases[1].token.bias < 0);
    moe_request_free(r);
    r = parse(MOE_REQUEST_TEXT, "{\"prompt\": \"x\", \"logit_bias\": {\"8\": 1, \"a b\": -2}}");
    assert_int_equal(r->n_biases, 2);
    for (int i = 0; i < 2; i++) { /* in any order */
        if (r->biases[i].text)
            assert_string_equal(r->biases[i].text, "a b");
        else
            assert_int_equal(r->biases[i].token.id, 8);
        assert_true(r->biases[i].token.bias == (r->biases[i].text ? -2 : 1));
    }
    moe_request_free(r);
}

static void what_asks_for_nothing_is_taken(void **state)
{
    (void)state;
    moe_request_free(parse(
        MOE_REQUEST_CHAT,
        "{" HELLO
        ", \"tools\": [], \"tool_choice\": \"none\", \"functions\": null, \"function_call\": "
        "\"auto\", \"logit_bias\": {}, \"presence_penalty\": 0, \"frequency_penalty\": 0.0,"
        "\"response_format\": {\"type\": \"text\"}, \"modalities\": [\"text\"], \"best_of\": 1,"
        "\"suffix\": \"\", \"typical_p\": 1.0, \"use_beam_search\": false, \"stop\": null,"
        "\"temperature\": null, \"stream_options\": null, \"metadata\": null, \"seed\": null,"
        "\"n\": null, \"stream\": null, \"model\": null, \"logprobs\": null}"));
}

/* What clients send that is not quite the API's. */
static void near_misses_are_taken(void **state)
{
    (void)state;
    struct moe_request *r =
        parse(MOE_REQUEST_CHAT,
              "\xEF\xBB\xBF{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"},"
              "{\"role\": \"assistant\", \"content\": null, \"refusal\": \"\"},"
              "{\"role\": \"assistant\", \"content\": \"a\\u0000b\", \"refusal\": null},"
              "{\"role\": \"assistant\"}], \"seed\": 42.0, \"max_tokens\": -1, \"top_k\": -1.0,"
              "\"n\": 2.0, \"metadata\": {\"turn\": 3, \"tags\": [\"a\"], \"none\": null}}");
    assert_true(r->sampling.seed == 42);
    assert_true(r->max_tokens == UINT64_MAX);
    assert_int_equal(r->n, 2);
    assert_string_equal(moe_request_field(r, "turn"), "3");
    assert_string_equal(moe_request_field(r, "tags"), "[\"a\"]");
    moe_request_free(r);
    /* A number beyond 64 bits leaves the others what they are. */
    r = parse(MOE_REQUEST_TEXT,
              "{\"prompt\": [7, 8], \"seed\": 18446744073709551615, \"metadata\": "
              "{\"large\": 98765432109876543210}}");
    assert_true(r->inputs[0].n == 2 && r->sampling.seed == UINT64_MAX);
    assert_string_equal(r->fields[0].text, "98765432109876543210");
    moe_request_free(r);
    r = parse(MOE_REQUEST_TEXT, "{\"prompt\": [\"a\", [7, 8]], \"n\": 2, \"seed\": 5}");
    assert_int_equal(r->n_inputs, 2);
    assert_int_equal(r->n, 4);
    assert_string_equal(r->inputs[0].text, "a");
    assert_int_equal(r->inputs[1].ids[1], 8);
    assert_true(moe_request_seed(r, 2) == 5 && moe_request_seed(r, 3) == 6);
    moe_request_free(r);
    r = parse(MOE_REQUEST_TEXT, "{\"prompt\": \"a\", \"max_tokens\": -1}");
    assert_true(r->max_tokens == UINT64_MAX);
    moe_request_free(r);
}

/* A body of few bytes cannot take much memory. */
static void values_are_bounded(void **state)
{
    (void)state;
    struct moe_err err;
    struct moe_request *r;
    const uint64_t n = 3 * (MOE_REQUEST_MEMORY / 240);
    char *json = malloc(n + 32);
    assert_non_null(json);
    uint64_t at = (uint64_t)sprintf(json, "{\"metadata\": [");
    while (at < n)
        at += (uint64_t)sprintf(json + at, "{},");
    at += (uint64_t)sprintf(json + at, "{}]}");
    assert_fails(moe_request_parse(&r, MOE_REQUEST_TEXT, json, at, NULL, &err), MOE_ERR_FORMAT,
                 "of memory", &err);
    free(json);
}

/* Wrong types are refused by the names that the API's own clients know. */
static void other_apis_name_their_keys(void **state)
{
    (void)state;
    static const struct {
        enum moe_request_kind kind;
        const char *json, *words;
    } cases[] = {
#define M MOE_REQUEST_MESSAGES, "{\"max_tokens\": 9, " HELLO ", "
        {M "\"system\": 7}", "'system' is not a text or a list"},
        {M "\"stop_sequences\": \"x\"}", "'stop_sequences' is not a list"},
        {M "\"stop_sequences\": [\"x\", 7]}", "'stop_sequences[1]' is not a text"},
        {M "\"tools\": {}}", "'tools' is not a list"},
        {M "\"tools\": [7]}", "'tools[0]' is not an object"},
        {M "\"tools\": [{}]}", "'tools[0].name' is missing"},
        {M "\"tools\": [{\"name\": \"\"}]}", "'tools[0].name' is not 1 to 128 bytes"},
        {M "\"tools\": [{\"name\": \"f\", \"input_schema\": []}]}",
         "'tools[0].input_schema' is not"},
        {M "\"tool_choice\": \"auto\"}", "'tool_choice' is not an object"},
        {M "\"tool_choice\": {\"type\": \"one\"}}",
         "'tool_choice.type' is 'one', expected auto, any, tool or none"},
        {M "\"thinking\": true}", "'thinking' is not an object"},
        {M "\"thinking\": {\"type\": \"on\"}}", "'thinking.type' is none of"},
        {M "\"mcp_servers\": [{}]}", "'mcp_servers' is not supported"},
        {M "\"output_config\": {\"format\": {\"type\": \"json_schema\"}}}",
         "'output_config.format.schema' is missing"},
        {MOE_REQUEST_MESSAGES, "{" HELLO ", \"max_tokens\": true}", "'max_tokens' is "},
        {MOE_REQUEST_MESSAGES, "{\"max_tokens\": 9, \"messages\": {}}", "'messages' is not a list"},
        {MOE_REQUEST_MESSAGES,
         "{\"max_tokens\": 9, \"messages\": [{\"role\": \"user\", \"content\": [{\"type\": "
         "\"tool_result\", \"content\": \"x\"}]}]}",
         "'messages[0].content[0].tool_use_id' is missing"},
        {MOE_REQUEST_MESSAGES,
         "{\"max_tokens\": 9, \"messages\": [{\"role\": \"assistant\", \"content\": [{\"type\": "
         "\"tool_use\", \"id\": \"a\", \"name\": \"f\", \"input\": \"{}\"}]}]}",
         "'messages[0].content[0].input' is not an object"},
#define R MOE_REQUEST_RESPONSES, "{\"input\": \"x\", "
#define TOOLS                                                                                      \
    "\"tools\": [{\"type\": \"function\", \"name\": \"f\"}, {\"type\": \"function\", \"name\": "   \
    "\"g\"}], \"tool_choice\": "
        {R "\"max_output_tokens\": \"many\"}", "'max_output_tokens' is "},
        {R "\"instructions\": 7}", "'instructions' is not a text"},
        {R "\"reasoning\": \"high\"}", "'reasoning' is not an object"},
        {R "\"reasoning\": {\"effort\": 7}}", "'reasoning.effort' is not a text"},
        {R "\"text\": {\"format\": {\"type\": \"xml\"}}}", "'text.format' is not of type"},
        {R "\"tools\": [{\"type\": \"function\"}]}", "'tools[0].name' is not 1 to 128 bytes"},
        {R "\"tools\": [{\"type\": \"function\", \"name\": \"f\", \"parameters\": 7}]}",
         "'tools[0].parameters' is not an object"},
        {R "\"tool_choice\": {\"type\": \"mcp\"}}", "'tool_choice' of type 'mcp' must be auto"},
        {R "\"tool_choice\": {\"type\": 5}}", "'tool_choice' must be auto, none, required"},
        {R "\"tool_choice\": {}}", "'tool_choice' names no function"},
        {R "\"tool_choice\": \"find\"}", "'tool_choice' must be auto, none, required"},
        {MOE_REQUEST_CHAT,
         "{" HELLO ", \"tool_choice\": {\"type\": \"custom\", \"custom\": {\"name\": \"f\"}}}",
         "'tool_choice' of type 'custom' must be auto"},
        {MOE_REQUEST_CHAT,
         "{" HELLO ", \"tool_choice\": {\"type\": \"function\", \"allowed_tools\": {}}}",
         "'tool_choice' names no function"},
        {MOE_REQUEST_RESPONSES, "{\"input\": [{\"id\": null, \"type\": null}]}",
         "'input[0].role' is missing"},
        {MOE_REQUEST_RESPONSES, "{\"input\": [{\"id\": \"x\", \"type\": 5}]}",
         "'input[0].type' is not a text"},
        {MOE_REQUEST_RESPONSES, "{\"input\": [5]}", "'input[0]' is not an object"},
        {R "\"tool_choice\": {\"type\": \"allowed_tools\", \"mode\": \"none\", \"tools\": []}}",
         "'tool_choice.mode' is neither auto nor required"},
        {R "\"tool_choice\": {\"type\": \"allowed_tools\", \"mode\": \"auto\"}}",
         "'tool_choice.tools' is not a list"},
        {R "\"tool_choice\": {\"type\": \"function\"}}", "'tool_choice' names no function"},
        {R TOOLS "{\"type\": \"allowed_tools\", \"mode\": \"auto\", \"tools\": [{\"type\": "
                 "\"function\"}]}}",
         "'tool_choice.tools[0]' names no function"},
        {MOE_REQUEST_CHAT,
         "{" HELLO ", \"tool_choice\": {\"type\": \"allowed_tools\", \"allowed_tools\": null}}",
         "'tool_choice.allowed_tools' is not an object"},
        {MOE_REQUEST_MESSAGES,
         "{" HELLO ", \"max_tokens\": 1, \"tool_choice\": {\"type\": \"tool\"}}",
         "'tool_choice' names no function"},
        {MOE_REQUEST_MESSAGES,
         "{" HELLO ", \"max_tokens\": 1, \"thinking_budget_tokens\": 3, \"thinking\": {\"type\": "
         "\"enabled\", \"budget_tokens\": 9}}",
         "'thinking_budget_tokens' and 'thinking.budget_tokens' are two different budgets"},
        {MOE_REQUEST_RESPONSES, "{\"input\": [{\"role\": \"item_reference\", \"content\": \"x\"}]}",
         "'input[0].role' is none of user, assistant, system, developer"},
        {R TOOLS
         "{\"type\": \"allowed_tools\", \"mode\": \"auto\", \"tools\": [{\"name\": \"h\"}]}}",
         "'tool_choice' names 'h', which is none of the 'tools'"},
        {R TOOLS "{\"type\": \"allowed_tools\", \"mode\": \"required\", \"tools\": []}}",
         "'tool_choice' wants a call, and allows no function"},
        {R "\"background\": true}", "'background' is not supported"},
        {MOE_REQUEST_RESPONSES, "{}", "'input' is missing"},
        {MOE_REQUEST_RESPONSES, "{\"input\": []}", "'input' is empty"},
        {MOE_REQUEST_RESPONSES, "{\"input\": [{\"role\": \"user\"}]}",
         "'input[0].content' is missing"},
        {MOE_REQUEST_RESPONSES,
         "{\"input\": [{\"type\": \"function_call\", \"call_id\": \"a\", \"name\": \"f\", "
         "\"arguments\": {}}]}",
         "'input[0].arguments' is not a text"},
#undef M
#undef R
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        refused(cases[i].kind, cases[i].json, cases[i].words);
}

/* Of the tools that the template shows only some may be called. */
static void tools_are_allowed_by_name(void **state)
{
    (void)state;
    struct moe_request *r = parse(
        MOE_REQUEST_RESPONSES,
        "{\"input\": \"x\", " TOOLS "{\"type\": \"allowed_tools\", \"mode\": \"required\", "
        "\"tools\": [{\"type\": \"web_search\"}, {\"type\": \"function\", \"name\": \"g\"}]}}");
    assert_int_equal(json_array_size(r->tools), 2);
    assert_int_equal(json_array_size(r->callable), 1);
    assert_ptr_equal(json_array_get(r->callable, 0), json_array_get(r->tools, 1));
    assert_true(r->must_call && r->parallel_calls);
    moe_request_free(r);
    r = parse(MOE_REQUEST_CHAT, "{" HELLO ", \"tools\": [{\"function\": {\"name\": \"f\"}}], "
                                "\"tool_choice\": {\"type\": \"allowed_tools\", \"allowed_tools\": "
                                "{\"mode\": \"auto\", \"tools\": []}}}");
    assert_int_equal(json_array_size(r->tools), 1);
    assert_null(r->callable);
    moe_request_free(r);
#undef TOOLS
}

static bool find_item(void *ctx, const char *item, struct moe_buf *response)
{
    (void)ctx;
    moe_buf_text(response, "{\"output\": [{\"type\": \"reasoning\", \"id\": \"rs_1\", \"content\": "
                           "[{\"type\": \"reasoning_text\", \"text\": \"Hm\"}]}, {\"type\": "
                           "\"function_call\", \"id\": \"fc_1\", \"call_id\": \"a\", \"name\": "
                           "\"f\", \"arguments\": \"{}\"}]}");
    return strcmp(item, "rs_1") == 0 || strcmp(item, "fc_1") == 0;
}

/* Items that are referred to are what they would be if they were sent. */
static void items_are_found_again(void **state)
{
    static const char sent[] =
        "{\"input\": [{\"role\": \"user\", \"content\": \"x\"}, %s, %s, {\"type\": "
        "\"function_call\", \"call_id\": \"b\", \"name\": \"f\", \"arguments\": \"{}\"}, "
        "{\"type\": "
        "\"function_call_output\", \"call_id\": \"a\", \"output\": \"1\"}, {\"role\": "
        "\"assistant\", \"content\": \"y\"}]}";
    static const char thought[] = "{\"type\": \"reasoning\", \"summary\": [{\"type\": "
                                  "\"summary_text\", \"text\": \"Hm\"}]}",
                      call[] = "{\"type\": \"function_call\", \"call_id\": \"a\", \"name\": "
                               "\"f\", \"arguments\": \"{}\"}",
                      refers[] = "{\"type\": \"item_reference\", \"id\": \"%s\"}";
    char text[2048], one[64], two[64];
    struct moe_err err;
    (void)state;
    snprintf(text, sizeof text, sent, thought, call);
    struct moe_request *r, *whole = parse(MOE_REQUEST_RESPONSES, text);
    assert_false(whole->refers);
    snprintf(one, sizeof one, refers, "rs_1");
    snprintf(two, sizeof two, refers, "fc_1");
    const char *const as[][2] = {{one, two},
                                 {thought, two},
                                 {one, call},
                                 {"{\"id\": \"rs_1\"}", "{\"id\": \"fc_1\", \"type\": null}"}};
    for (size_t i = 0; i < 4; i++) {
        snprintf(text, sizeof text, sent, as[i][0], as[i][1]);
        r = parse(MOE_REQUEST_RESPONSES, text);
        assert_true(r->refers);
        assert_ok(moe_request_refer(r, find_item, NULL, &err), &err);
        assert_true(json_equal(r->messages, whole->messages));
        moe_request_free(r);
    }
    /* Messages that stand by themselves do so beside references too. */
    snprintf(text, sizeof text,
             "{\"input\": [{\"role\": \"user\", \"content\": \"x\"}, %s, {\"role\": \"assistant\", "
             "\"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}, {\"type\": "
             "\"reasoning\", \"summary\": [{\"type\": \"summary_text\", \"text\": \"c\"}]}]}",
             one);
    r = parse(MOE_REQUEST_RESPONSES, text);
    assert_ok(moe_request_refer(r, find_item, NULL, &err), &err);
    assert_int_equal(json_array_size(r->messages), 3);
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(r->messages, 1), "reasoning_content")),
        "Hm");
    moe_request_free(r);
    snprintf(one, sizeof one, refers, "rs_2");
    snprintf(text, sizeof text, sent, one, call);
    r = parse(MOE_REQUEST_RESPONSES, text);
    assert_int_equal(moe_request_refer(r, find_item, NULL, &err), MOE_ERR_FORMAT);
    assert_non_null(strstr(err.text, "there is no item 'rs_2' here"));
    moe_request_free(r);
    moe_request_free(whole);
}

static json_malloc_t plain_malloc;
static uint64_t n_allocated; /* bytes */

static void *counted_malloc(size_t n)
{
    n_allocated += n;
    return plain_malloc(n);
}

/* Bytes that reading a request allocates, with n copies of a part after its beginning. */
static uint64_t bytes_read(enum moe_request_kind kind, const char *begins, const char *part,
                           const char *ends, int n)
{
    struct moe_buf text = {0};
    struct moe_err err;
    json_free_t plain_free;
    moe_buf_text(&text, begins);
    for (int i = 0; i < n; i++)
        moe_buf_printf(&text, "%s%s", i ? "," : "", part);
    moe_buf_text(&text, ends);
    json_get_alloc_funcs(&plain_malloc, &plain_free);
    json_set_alloc_funcs(counted_malloc, plain_free);
    n_allocated = 0;
    struct moe_request *r = parse(kind, (const char *)text.data);
    if (r->refers)
        assert_ok(moe_request_refer(r, find_item, NULL, &err), &err);
    json_set_alloc_funcs(plain_malloc, plain_free);
    moe_request_free(r);
    moe_buf_release(&text);
    return n_allocated;
}

/* Twice the parts take twice the work: others wait while a request is read. */
static void many_parts_take_time_in_proportion(void **state)
{
    static const struct {
        enum moe_request_kind kind;
        const char *begins, *part, *ends;
    } cases[] = {
        {MOE_REQUEST_MESSAGES,
         "{\"max_tokens\": 1, \"messages\": [{\"role\": \"assistant\", \"content\": [",
         "{\"type\": \"thinking\", \"thinking\": \"x\"}",
         "]}, {\"role\": \"user\", \"content\": \"x\"}]}"},
        {MOE_REQUEST_RESPONSES, "{\"input\": [",
         "{\"type\": \"reasoning\", \"content\": [{\"text\": \"x\"}]}", "]}"},
        {MOE_REQUEST_RESPONSES, "{\"input\": [", "{\"id\": \"rs_1\"}", "]}"},
        {MOE_REQUEST_RESPONSES, "{\"input\": [",
         "{\"id\": \"rs_1\"}, {\"type\": \"reasoning\", \"content\": [{\"text\": \"x\"}]}", "]}"},
        {MOE_REQUEST_CHAT,
         "{" HELLO ", \"tools\": [{\"function\": {\"name\": \"f\"}}, {\"function\": {\"name\": "
         "\"f\"}}], \"tool_choice\": {\"type\": \"allowed_tools\", \"allowed_tools\": {\"mode\": "
         "\"auto\", \"tools\": [",
         "{\"name\": \"f\"}", "]}}}"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t once =
                     bytes_read(cases[i].kind, cases[i].begins, cases[i].part, cases[i].ends, 1000),
                 twice =
                     bytes_read(cases[i].kind, cases[i].begins, cases[i].part, cases[i].ends, 2000);
        if (twice * 2 > once * 5)
            fail_msg("case %zu: %llu bytes, and %llu for twice the parts", i,
                     (unsigned long long)once, (unsigned long long)twice);
    }
}

/* The thoughts of a message are one text. */
static void thoughts_are_joined(void **state)
{
    (void)state;
    struct moe_request *r = parse(
        MOE_REQUEST_MESSAGES,
        "{\"max_tokens\": 1, \"messages\": [{\"role\": \"assistant\", \"content\": [{\"type\": "
        "\"thinking\", \"thinking\": \"a\"}, {\"type\": \"text\", \"text\": \"x\"}, {\"type\": "
        "\"thinking\", \"thinking\": \"\"}, {\"type\": \"thinking\", \"thinking\": \"b\"}]}]}");
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(r->messages, 0), "reasoning_content")),
        "a\n\nb");
    moe_request_free(r);
    r = parse(MOE_REQUEST_RESPONSES,
              "{\"input\": [{\"type\": \"reasoning\", \"content\": [{\"text\": \"a\"}]}, {\"id\": "
              "\"rs_1\"}, {\"type\": \"reasoning\", \"summary\": [{\"text\": \"b\"}]}]}");
    struct moe_err err;
    assert_ok(moe_request_refer(r, find_item, NULL, &err), &err);
    assert_int_equal(json_array_size(r->messages), 1);
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(r->messages, 0), "reasoning_content")),
        "a\n\nHm\n\nb");
    moe_request_free(r);
}

/* Keys without effect are named, and no others. */
static void ignored_keys_are_named(void **state)
{
    (void)state;
    struct moe_request *r =
        parse(MOE_REQUEST_CHAT, "{" HELLO ", \"user\": \"me\", \"top_k\": 1, \"echo\": true, "
                                "\"store\": null, \"a\\nb\\u00e9\": 1}");
    assert_string_equal(r->ignored, "user, echo, a?b??");
    moe_request_free(r);
    r = parse(MOE_REQUEST_MESSAGES,
              "{" HELLO ", \"max_tokens\": 1, \"service_tier\": \"auto\", \"thinking\": {\"type\": "
              "\"enabled\", \"budget_tokens\": 9}}");
    assert_string_equal(r->ignored, "service_tier");
    moe_request_free(r);
    r = parse(MOE_REQUEST_TEXT, "{\"prompt\": \"x\", \"thinking_budget_tokens\": 9, \"min_p\": 0, "
                                "\"chat_template_kwargs\": {}}");
    assert_string_equal(r->ignored, "thinking_budget_tokens, chat_template_kwargs");
    moe_request_free(r);
    /* What another API says is not taken away by a null of the same name. */
    r = parse(MOE_REQUEST_MESSAGES,
              "{" HELLO
              ", \"max_tokens\": 1, \"temperature\": null, \"chat_template_kwargs\": null, "
              "\"thinking_budget_tokens\": null, \"thinking\": {\"type\": \"adaptive\", "
              "\"budget_tokens\": 9}}");
    assert_int_equal(r->thought_tokens, 9);
    assert_true(json_is_true(json_object_get(r->variables, "enable_thinking")));
    moe_request_free(r);
    r = parse(MOE_REQUEST_RESPONSES,
              "{\"input\": \"x\", \"user\": \"me\", \"tools\": [{\"type\": \"web_search\"}], "
              "\"text\": {\"verbosity\": \"low\"}}");
    assert_string_equal(r->ignored, "user, tools[0], text.verbosity");
    moe_request_free(r);
    /* So is what a schema does not hold. */
    r = parse(MOE_REQUEST_TEXT,
              "{\"prompt\": \"x\", \"user\": \"me\", \"json_schema\": {\"oneOf\": "
              "[{\"type\": \"integer\"}, {\"type\": \"number\"}]}}");
    assert_string_equal(r->ignored,
                        "user, schema #/oneOf: kept as anyOf: 0 and 1 may both take a value");
    moe_request_free(r);
    char many[4096] = "{\"prompt\": \"x\"";
    for (int i = 0; i < 60; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many), ", \"unknown-%d\": 1", i);
    strcat(many, "}");
    r = parse(MOE_REQUEST_TEXT, many);
    assert_true(strlen(r->ignored) > 200 && strlen(r->ignored) < sizeof r->ignored);
    assert_string_equal(r->ignored + strlen(r->ignored) - 3, "...");
    moe_request_free(r);
    /* One that is longer is cut. */
    strcpy(many, "{\"prompt\": \"x\", \"json_schema\": {\"properties\": {");
    for (int i = 0; i < 6; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many),
                 "%s\"p%d\": {\"oneOf\": [{\"type\": \"string\"}, {\"minLength\": 1}]}",
                 i ? ", " : "", i);
    strcat(many, "}}}");
    r = parse(MOE_REQUEST_TEXT, many);
    assert_int_equal(strncmp(r->ignored, "schema #/properties/p0/oneOf: kept", 34), 0);
    assert_int_equal(strlen(r->ignored), sizeof r->ignored - 1);
    assert_string_equal(r->ignored + strlen(r->ignored) - 3, "...");
    moe_request_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_keys_mean_what_the_api_says),
        cmocka_unit_test(other_apis_name_their_keys),
        cmocka_unit_test(tools_are_allowed_by_name),
        cmocka_unit_test(items_are_found_again),
        cmocka_unit_test(many_parts_take_time_in_proportion),
        cmocka_unit_test(thoughts_are_joined),
        cmocka_unit_test(ignored_keys_are_named),
        cmocka_unit_test(every_key_is_read),
        cmocka_unit_test(chats_keep_all_members),
        cmocka_unit_test(prompts_come_in_each_form),
        cmocka_unit_test(what_cannot_be_is_refused_by_its_key),
        cmocka_unit_test(how_tokens_are_drawn_is_read),
        cmocka_unit_test(long_texts_are_refused),
        cmocka_unit_test(a_long_conversation_goes_on),
        cmocka_unit_test(what_asks_for_nothing_is_taken),
        cmocka_unit_test(near_misses_are_taken),
        cmocka_unit_test(values_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
