/*
 * A chat template (Jinja), rendered within small limits for conversations with a system text,
 * tools, calls and thoughts. What is written lies within the limits, and the pieces that are the
 * caller's lie in it, in order; asked again it is the same.
 */
/* Readers: prompt/jinja_lex.c prompt/jinja_parse.c */
/* Readers: prompt/jinja_render.c prompt/jinja_evaluate.c */
#define _GNU_SOURCE
#include <jansson.h>

#include "mutate.h"
#include "prompt/jinja.h"

enum { STEPS = 100 * 1000, MEMORY = 16 << 20, OUTPUT = 1 << 20, N_CONVERSATIONS = 2 };

static const char *const conversations[N_CONVERSATIONS] = {
    "[{\"role\":\"system\",\"content\":\" Be brief. "
    "\"},{\"role\":\"user\",\"content\":\"2+2?\\n\"},"
    "{\"role\":\"assistant\",\"content\":\"4\",\"reasoning_content\":\"hm\"},"
    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"\\u00e9\\ud83d\\ude00<s>\"}]}]",
    "[{\"role\":\"user\",\"content\":\"weather?\"},{\"role\":\"assistant\",\"content\":null,"
    "\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
    "\"arguments\":"
    "{\"city\":\"Ulm\",\"n\":-2.5}}}]},{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"{}"
    "\"}]",
};
static const char tool_list[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":"
    "{\"properties\":{\"city\":{\"type\":\"string\"}}}}}]";

static json_t *messages[N_CONVERSATIONS], *tools, *bos;

static void load(void)
{
    for (int i = 0; i < N_CONVERSATIONS && !messages[i]; i++)
        messages[i] = json_loads(conversations[i], 0, NULL);
    tools = tools ? tools : json_loads(tool_list, 0, NULL);
    bos = bos ? bos : json_string("<s>");
}

static void check_words(const struct moe_buf *text, const struct moe_buf *words)
{
    uint64_t at = 0;
    for (uint64_t i = 0; i < words->size / sizeof(struct moe_span); i++) {
        struct moe_span span;
        memcpy(&span, words->data + i * sizeof span, sizeof span);
        if (span.at < at || span.n == 0 || span.at + span.n > text->size)
            abort();
        at = span.at + span.n;
    }
}

static void render(const struct moe_jinja *template, const json_t *conversation)
{
    const struct moe_jinja_variable variables[] = {
        {"bos_token", bos, false},
        {"messages", conversation, true},
        {"tools", tools, true},
        {"add_generation_prompt", json_true(), false},
    };
    const struct moe_jinja_input in = {
        .variables = variables,
        .n_variables = sizeof variables / sizeof variables[0],
        .now = {.tm_year = 126, .tm_mon = 1, .tm_mday = 3},
        .limits = {.steps = STEPS, .memory = MEMORY, .output = OUTPUT}};
    struct moe_buf text = {0}, again = {0}, words = {0};
    struct moe_err err;
    int status = FUZZ_TRY(moe_jinja_render(template, &in, &text, &words, &err));
    if (status == MOE_ERR_MEMORY
            ? !fuzz_failed
            : status != MOE_OK && status != MOE_ERR_USAGE && status != MOE_ERR_FORMAT &&
                  status != MOE_ERR_LIMIT && status != MOE_ERR_UNSUPPORTED)
        abort();
    if (status == MOE_OK) {
        if (text.size > OUTPUT || moe_jinja_render(template, &in, &again, NULL, &err) != MOE_OK)
            abort();
        check_words(&text, &words);
        fuzz_same(&text, &again);
    } else {
        moe_buf_release(&text);
    }
    moe_buf_release(&words);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct moe_jinja *template;
    struct moe_err err;
    load();
    n = fuzz_begin(data, n);
    int status = FUZZ_TRY(moe_jinja_parse(&template, "fuzz", (const char *)data, n, &err));
    for (int i = 0; i < N_CONVERSATIONS && status == MOE_OK; i++)
        render(template, messages[i]);
    if (status != MOE_OK && template)
        abort();
    moe_jinja_free(template);
    return 0;
}

FUZZ_MUTATE_TEXT
