/* Chats: what is found out about templates, and what becomes of messages. Tokens are the bundled
 * model's: <|im_start|>, <|im_end|> and <|endoftext|> are its special ones. */
#define _GNU_SOURCE /* strcasestr */
#include "model_fixture.h"

#include <jansson.h>

#include "fmt/json.h"
#include "prompt/chat.h"
#include "prompt/chat_answer.h"

static struct fixture fixture;

static int open_all(void **state)
{
    struct moe_err err = {0};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    fixture_open(&fixture, 16, 1, 64);
    return 0;
}

static int close_all(void **state)
{
    fixture_close(&fixture);
    return 0;
}

/* ---- Helpers ---- */

static struct moe_chat *open_chat(const char *source)
{
    struct moe_chat *chat;
    struct moe_err err = {0};
    assert_ok(moe_chat_open(&chat, "t", source, strlen(source), fixture.model->tokenizer, &err),
              &err);
    return chat;
}

/* The status; what was written in `out`, or the error's words. */
static int render(const struct moe_chat *chat, const char *messages, const char *tools, char *out,
                  size_t room)
{
    struct moe_buf text = {0};
    struct moe_err err = {0};
    json_t *list, *tool_list = NULL;
    assert_ok(moe_json_parse(&list, "m", messages, strlen(messages), 4 << 20, &err), &err);
    if (tools)
        assert_ok(moe_json_parse(&tool_list, "t", tools, strlen(tools), 1 << 20, &err), &err);
    const struct moe_chat_input in = {
        .messages = list, .tools = tool_list, .add_generation_prompt = true};
    int status = moe_chat_render(chat, &in, &text, NULL, &err);
    moe_buf_u8(&text, 0);
    snprintf(out, room, "%s", status == MOE_OK ? (const char *)text.data : err.text);
    moe_buf_release(&text);
    json_decref(list);
    json_decref(tool_list);
    return status;
}

static void check_stops(const char *source, const char *first, const char *second)
{
    struct moe_chat *chat = open_chat(source);
    const char *const *stops = moe_chat_stops(chat);
    if (!stops[0] || strcmp(stops[0], first) != 0)
        fail_msg("%s: stops at %s", source, stops[0] ? stops[0] : "nothing");
    if (second ? !stops[1] || strcmp(stops[1], second) != 0 : stops[1] != NULL)
        fail_msg("%s: stops at %s", source, stops[1] ? stops[1] : "one alone");
    moe_chat_free(chat);
}

#define EACH(body) "{% for m in messages %}" body "{% endfor %}"
#define PROMPT(text) "{% if add_generation_prompt %}" text "{% endif %}"

/* ---- Answers ---- */

static void templates_tell_how_answers_end(void **state)
{
    check_stops(EACH("<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n")
                    PROMPT("<|im_start|>assistant\n"),
                "<|im_end|>", NULL);
    /* The next question's mark, where the answer has none of its own. */
    check_stops(EACH("{{ '<|im_start|>' if m.role == 'user' else '<|im_end|>' }}{{ m.content }}")
                    PROMPT("<|im_end|>"),
                "<|im_start|>", NULL);
    /* No special token: the text that begins the next line. */
    check_stops(EACH("\n\n### {{ m.role }}:\n{{ m.content }}") PROMPT("\n\n### assistant:\n"),
                "\n### user:", NULL);
    /* Behind the last answer it may be another than within, and behind a call another again. */
    check_stops(
        EACH("{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments"
             "|tojson }}<|endoftext|>{% elif m.role == 'assistant' %}"
             "{{ '<|im_end|>' if loop.last else '<|im_start|>' }}{% endif %}") "{% if tools %}{{ "
                                                                               "tools|tojson }}{% "
                                                                               "endif %}" PROMPT(
                                                                                   "!"),
        "<|im_end|>", "<|endoftext|>");
}

struct parts {
    struct moe_buf thought, content;
};

static int take_part(void *ctx, const struct moe_answer_part *part)
{
    struct parts *parts = ctx;
    moe_buf_append(part->kind == MOE_PART_THOUGHT ? &parts->thought : &parts->content, part->bytes,
                   part->n);
    return MOE_OK;
}

static void check_read(const struct moe_chat *chat, const char *prompt, const char *answer,
                       const char *thought, const char *content)
{
    const bool opened = moe_chat_thought_before(chat, prompt, strlen(prompt)) == MOE_THOUGHT_OPEN;
    struct parts parts = {0};
    struct moe_answer_reader *reader;
    struct moe_err err = {0};
    assert_ok(moe_answer_reader_new(&reader, chat, NULL, opened, take_part, &parts, &err), &err);
    assert_ok(moe_answer_reader_add(reader, answer, strlen(answer), &err), &err);
    assert_ok(moe_answer_reader_end(reader, false, &err), &err);
    moe_answer_reader_free(reader);
    moe_buf_u8(&parts.thought, 0);
    moe_buf_u8(&parts.content, 0);
    assert_string_equal((const char *)parts.thought.data, thought);
    assert_string_equal((const char *)parts.content.data, content);
    moe_buf_release(&parts.thought);
    moe_buf_release(&parts.content);
}

static void thoughts_are_told_from_contents(void **state)
{
    struct moe_chat *chat = open_chat(
        EACH("<{{ m.role }}>{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n"
             "</think>\n\n{% endif %}{{ m.content }}<|im_end|>") PROMPT("<assistant>"));
    assert_string_equal(moe_chat_thought_member(chat), "reasoning_content");
    check_read(chat, "<assistant>", "<think>\nhm\n</think>\n\n4", "hm", "4");
    check_read(chat, "<assistant>", "4", "", "4");
    check_read(chat, "<assistant>", "<think>\nhm", "hm", "");
    check_read(chat, "<assistant><think>\n", "hm</think>4", "hm", "4");
    check_read(chat, "<assistant><think>\n", "4", "4", "");
    moe_chat_free(chat);
    /* Where what opens an answer closes the thought, the marks begin alike. */
    chat = open_chat(EACH("<{{ m.role }}>{% if m.reasoning_content %}<think>{{ m.reasoning_content "
                          "}}</think>{% endif %}{{ m.content }}<|im_end|>")
                         PROMPT("<assistant></think>"));
    check_read(chat, "", "<think>hm</think>4", "hm", "4");
    moe_chat_free(chat);
    /* Channels: all that is between thought and content is the mark. */
    chat = open_chat(EACH("[{{ m.role }}{% if m.thinking and loop.last %}|analysis]"
                          "{{ m.thinking }}[end][assistant{% endif %}"
                          "{{ '|final' if m.role == 'assistant' }}]{{ m.content }}<|im_end|>")
                         PROMPT("[assistant"));
    assert_string_equal(moe_chat_thought_member(chat), "thinking");
    check_read(chat, "[assistant", "|analysis]hm[end][assistant|final]4", "hm", "4");
    check_read(chat, "[assistant", "|final]4", "", "4");
    moe_chat_free(chat);
    /* Where they are written if they are asked for, and where they are taken out of what comes. */
    chat = open_chat(EACH("<{{ m.role }}>{% if thinking and m.reasoning %}<hm>{{ m.reasoning }}"
                          "</hm>{% endif %}{{ m.content }}<|im_end|>") PROMPT("<assistant>"));
    assert_string_equal(moe_chat_thought_member(chat), "reasoning");
    check_read(chat, "<assistant>", "<hm>a</hm>4", "a", "4");
    moe_chat_free(chat);
    /* The end's mark is none without the beginning's, which is too long here. */
#define LONG "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    const char *stop = "";
    chat = open_chat(
        EACH("{% if m.role == 'user' %}" LONG LONG LONG LONG "{{ m.content }}{% else %} I:"
             "{{ m.reasoning_content }} ANSWER IS: {{ m.content }}\n{% endif %}") PROMPT(" I:"));
#undef LONG
    assert_null(moe_chat_thought_end(chat, false, &stop));
    assert_null(stop);
    moe_chat_free(chat);
    chat = open_chat(EACH("<{{ m.role }}>{{ m.content.split('</think>')[-1] }}<|im_end|>")
                         PROMPT("<assistant>"));
    check_read(chat, "<assistant>", "<think>hm</think>4", "hm", "4");
    check_read(chat, "<assistant><think>\n", "hm</think>4", "hm", "4");
    moe_chat_free(chat);
    /* Where they are written before calls only, and the content behind these (Gemma 4). */
    chat = open_chat("{{ tools|tojson if tools }}" EACH(
        "<{{ m.role }}>{% if m.reasoning_content and m.tool_calls %}[hm]{{ m.reasoning_content }}"
        "[/hm]{% endif %}{% for c in m.tool_calls %}<call>{\"name\": \"{{ c.function.name }}\", "
        "\"arguments\": {{ c.function.arguments|tojson }}}</call>{% endfor %}{{ m.content }}"
        "<|im_end|>") PROMPT("<assistant>"));
    assert_string_equal(moe_chat_thought_end(chat, false, &stop), "[/hm]");
    assert_string_equal(moe_chat_thought_end(chat, true, &stop), "[/hm]");
    check_read(chat, "<assistant>", "[hm]a[/hm]4", "a", "4");
    moe_chat_free(chat);
    chat = open_chat(EACH("{{ m.content }}"));
    check_read(chat, "", "<think>hm</think>4", "", "<think>hm</think>4");
    moe_chat_free(chat);
}

/* ---- Messages ---- */

#define PARTS                                                                                      \
    "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\","      \
    "\"text\":\"b\"}]}]"
#define CALL(arguments)                                                                            \
    "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":null,"             \
    "\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":" arguments "}}]}]"

static void messages_take_the_templates_form(void **state)
{
    char got[256];
    struct moe_chat *texts = open_chat(EACH("{{ m.role }}:{{ m.content }};"));
    assert_int_equal(render(texts, PARTS, NULL, got, sizeof got), MOE_OK);
    assert_string_equal(got, "user:ab;");
    assert_int_equal(
        render(texts, "[{\"role\":\"developer\",\"content\":\"d\"}]", NULL, got, sizeof got),
        MOE_OK);
    assert_string_equal(got, "system:d;");
    moe_chat_free(texts);
    struct moe_chat *parts =
        open_chat(EACH("{{ m.role }}:{% for p in m.content %}{{ p.text }},{% endfor %};"));
    assert_int_equal(
        render(parts, "[{\"role\":\"user\",\"content\":\"x\"}]", NULL, got, sizeof got), MOE_OK);
    assert_string_equal(got, "user:x,;");
    assert_int_equal(render(parts, PARTS, NULL, got, sizeof got), MOE_OK);
    assert_string_equal(got, "user:a,b,;");
    moe_chat_free(parts);
    struct moe_chat *objects =
        open_chat(EACH("{{ m.content }}{% for c in m.tool_calls %}{{ c.function.arguments|tojson }}"
                       "{% endfor %}"));
    assert_int_equal(render(objects, CALL("\"{\\\"k\\\": 1}\""), NULL, got, sizeof got), MOE_OK);
    assert_string_equal(got, "q{\"k\": 1}"); /* no None, and no text in JSON */
    assert_int_equal(render(objects, CALL("\"{\\\"k\\\": [18446744073709551616, 0.1, 7]}\""), NULL,
                            got, sizeof got),
                     MOE_OK);
    assert_string_equal(got, "q{\"k\": [18446744073709551616, 0.1, 7]}");
    assert_int_equal(render(objects, CALL("\"{\\\"k\\\":1,\\\"k\\\":2}\""), NULL, got, sizeof got),
                     MOE_OK);
    assert_string_equal(got, "q{\"k\": 2}"); /* as models may write them */
    moe_chat_free(objects);
    struct moe_chat *values = open_chat(EACH(
        "{{ m.content }}{% for c in m.tool_calls %}{% for k, v in c.function.arguments|items %}"
        "{{ k }}={{ v if v is string else v|tojson }} {{ v }} {{ v is number and v is integer }} "
        "{{ v == v }} {{ (v ~ '') is string }}{% endfor %}{% endfor %}"));
    assert_int_equal(render(values, CALL("{\"k\":-98765432109876543210}"), NULL, got, sizeof got),
                     MOE_OK);
    assert_string_equal(got, "qk=-98765432109876543210 -98765432109876543210 True True True");
    moe_chat_free(values);
    struct moe_chat *as_text = open_chat(
        EACH("{{ m.content or '' }}{% for c in m.tool_calls %}{{ '=' + c.function.arguments }}"
             "{% endfor %}"));
    assert_int_equal(render(as_text, CALL("{\"k\":1}"), NULL, got, sizeof got), MOE_OK);
    assert_string_equal(got, "q={\"k\": 1}");
    assert_int_equal(
        render(as_text, CALL("{\"k\":[18446744073709551616,0.1]}"), NULL, got, sizeof got), MOE_OK);
    assert_string_equal(got, "q={\"k\": [18446744073709551616, 0.1]}");
    moe_chat_free(as_text);
    /* It adds the content to other texts: null would make it fail. */
    struct moe_chat *adds = open_chat(EACH("{{ m.role + m.content }}") "{{ tools }}");
    assert_int_equal(render(adds, CALL("\"\""), NULL, got, sizeof got), MOE_OK);
    assert_string_equal(got, "userqassistantNone");
    assert_int_equal(render(adds, "[{\"role\":\"assistant\"}]", NULL, got, sizeof got), MOE_OK);
    assert_string_equal(got, "assistantNone");
    moe_chat_free(adds);
    struct moe_chat *thinks =
        open_chat(EACH("{% if m.thinking %}[{{ m.thinking }}]{% endif %}{{ m.content }}"));
    assert_int_equal(render(thinks,
                            "[{\"role\":\"assistant\",\"content\":\"a\",\"reasoning\":\"t\"}]",
                            NULL, got, sizeof got),
                     MOE_OK);
    assert_string_equal(got, "[t]a");
    moe_chat_free(thinks);
}

static void messages_take_the_templates_order(void **state)
{
    static const char talk[] =
        "[{\"role\":\"system\",\"content\":\"a\"},{\"role\":\"developer\",\"content\":"
        "[{\"type\":\"text\",\"text\":\"b\"}]},{\"role\":\"user\",\"content\":\"c\"},"
        "{\"role\":\"user\",\"content\":\"d\"},{\"role\":\"assistant\",\"content\":\"e\"},"
        "{\"role\":\"system\",\"content\":\"f\"},{\"role\":\"user\",\"content\":\"g\"}]";
    static const struct {
        const char *template, *text;
    } cases[] = {
        {EACH("{{ m.role[0] }}:{{ m.content }};"), "s:a;s:b;u:c;u:d;a:e;s:f;u:g;"},
        /* One system text, at the beginning; turns take turns. */
        {EACH("{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif "
              "%}"
              "{% if not loop.first and m.role == messages[loop.index0 - 1].role %}"
              "{{ raise_exception('again') }}{% endif %}{{ m.role[0] }}:{{ m.content }};"),
         "s:a\n\nb;u:c\n\nd;a:e;u:f\n\ng;"},
        /* Later ones are left out. */
        {EACH("{% if m.role != 'system' or loop.first %}{{ m.role[0] }}:{{ m.content }};{% endif "
              "%}"),
         "s:a\n\nb;u:c;u:d;a:e;u:f;u:g;"},
        /* Contents are parts. */
        {EACH("{% if m.role != 'system' or loop.first %}{% for p in m.content %}{{ p.text }},"
              "{% endfor %};{% endif %}"),
         "a\n\nb,;c,;d,;e,;f,;g,;"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char got[256];
        struct moe_chat *chat = open_chat(cases[i].template);
        assert_int_equal(render(chat, talk, NULL, got, sizeof got), MOE_OK);
        assert_string_equal(got, cases[i].text);
        moe_chat_free(chat);
    }
}

static json_malloc_t plain_malloc;
static uint64_t n_allocated; /* bytes */

static void *counted_malloc(size_t n)
{
    n_allocated += n;
    return plain_malloc(n);
}

/* Twice the messages that become one take twice the work. */
static void many_messages_are_joined_at_once(void **state)
{
    enum { N = 1000 };
    struct moe_chat *chat =
        open_chat(EACH("{% if not loop.first and m.role == messages[loop.index0 - 1].role %}"
                       "{{ raise_exception('again') }}{% endif %}{{ m.content }};"));
    static char got[16 * N];
    uint64_t taken[3] = {0};
    json_free_t plain_free;
    (void)state;
    json_get_alloc_funcs(&plain_malloc, &plain_free);
    json_set_alloc_funcs(counted_malloc, plain_free);
    for (int times = 1; times <= 2; times++) {
        struct moe_buf talk = {0};
        for (int i = 0; i < times * N; i++)
            moe_buf_printf(&talk, "%c{\"role\":\"user\",\"content\":\"abcd\"}", i ? ',' : '[');
        moe_buf_text(&talk, "]");
        n_allocated = 0;
        assert_int_equal(render(chat, (const char *)talk.data, NULL, got, sizeof got), MOE_OK);
        taken[times] = n_allocated;
        assert_int_equal(strlen(got), times * N * 6 - 1);
        assert_memory_equal(got, "abcd\n\nabcd\n\nabcd\n\n", 18);
        moe_buf_release(&talk);
    }
    json_set_alloc_funcs(plain_malloc, plain_free);
    if (taken[2] * 2 > taken[1] * 5)
        fail_msg("%llu bytes, and %llu for twice the messages", (unsigned long long)taken[1],
                 (unsigned long long)taken[2]);
    moe_chat_free(chat);
}

static void system_texts_begin_questions(void **state)
{
    static const char system[] =
        "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"u\"}]";
    static const char *const templates[] = {
        EACH("{% if m.role == 'user' %}{{ m.content }}{% endif %}"),
        "{% if messages[0].role == 'system' %}{{ raise_exception('No system') }}{% endif %}" EACH(
            "{{ m.content }}")};
    for (int i = 0; i < 2; i++) {
        char got[512];
        struct moe_chat *chat = open_chat(templates[i]);
        assert_int_equal(render(chat, system, NULL, got, sizeof got), MOE_OK);
        assert_string_equal(got, "s\n\nu");
        moe_chat_free(chat);
    }
}

static void what_a_template_refuses_is_said(void **state)
{
    char got[512];
    struct moe_chat *chat =
        open_chat("{% if messages[0].content == 'x' %}\n{{ raise_exception('No x') }}{% endif %}");
    assert_int_equal(render(chat, "[{\"role\":\"user\",\"content\":\"x\"}]", NULL, got, sizeof got),
                     MOE_ERR_USAGE);
    assert_non_null(strstr(got, "t, line 2, column"));
    assert_non_null(strstr(got, "the template refuses this: No x"));
    moe_chat_free(chat);
}

#define TOOLS_TOLD                                                                                 \
    "# Tools\n\nYou may call these functions, each with arguments by the JSON schema of its "      \
    "parameters:\n<tools>\n{\"name\": \"f\"}\n</tools>\n\nTo call one, write:\n"

/* Where a template has no place for tools, calls or their results, these are told in words. */
static void tools_are_told_in_words(void **state)
{
#define TOLD(name, key)                                                                            \
    "<tool_call>\n{\"name\": \"" name "\", \"arguments\": {" key "}}\n</tool_call>"
#define OWN(name, key) "<calls><call>" name "<sep>{" key "}</call></calls>"
#define USUAL TOLD("NAME", "\"PARAMETER\": \"VALUE\"")
    static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]";
    static const char called[] = "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\","
                                 "\"content\":null,\"tool_calls\":"
                                 "[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":"
                                 "\"f\",\"arguments\":\"{\\\"a\\\":1}\"}}]},"
                                 "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"r\"}]";
    static const struct {
        const char *template, *text;
    } cases[] = {
        /* Contents of the three roles alone; then no system text either, and turns that alternate.
         */
        {EACH("{% if m.role != 'tool' %}[{{ m.role }}]{{ m.content }}{% endif %}"),
         "[system]" TOOLS_TOLD USUAL
         "[user]u[assistant]" TOLD("f", "\"a\": 1") "[user]<tool_response>\nr\n</tool_response>"},
        {EACH("{% if m.role == 'system' or (m.role == 'user') != (loop.index0 % 2 == 0) %}"
              "{{ raise_exception('No') }}{% endif %}[{{ m.role }}]{{ m.content }}"),
         "[user]" TOOLS_TOLD USUAL
         "\n\nu[assistant]" TOLD("f", "\"a\": 1") "[user]<tool_response>\nr\n</tool_response>"},
        /* Calls and results have a form of their own. */
        {EACH("[{{ m.role }}]{{ m.content }}{% if m.tool_calls %}<calls>{% for c in m.tool_calls "
              "%}<call>"
              "{{ c.function.name }}<sep>{{ c.function.arguments | tojson }}</call>{% endfor "
              "%}</calls>{% endif %}") PROMPT("[assistant]"),
         "[system]" TOOLS_TOLD OWN("NAME", "\"PARAMETER\": \"VALUE\"") "[user]u[assistant]" OWN(
             "f", "\"a\": 1") "[tool]r[assistant]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char got[1024];
        bool calls, thinks;
        struct moe_chat *chat = open_chat(cases[i].template);
        moe_chat_can(chat, &calls, &thinks);
        assert_true(calls);
        assert_int_equal(render(chat, called, tools, got, sizeof got), MOE_OK);
        assert_string_equal(got, cases[i].text);
        moe_chat_free(chat);
    }
}

static void texts_become_utf8(void **state)
{
    struct moe_err err = {0};
    json_t *m = moe_chat_message("user", "a\xff\0\xc3\xa9", 5, &err);
    assert_string_equal(moe_chat_text(m), "a\xEF\xBF\xBD\xEF\xBF\xBD\xc3\xa9");
    json_decref(m);
}

/* ---- Templates by name ---- */

static void lists_have_a_template_for_tools(void **state)
{
    char got[64];
    static const char tools[] = "[{\"function\":{\"name\":\"f\"}}]";
    static const char user[] = "[{\"role\":\"user\",\"content\":\"u\"}]";
    static const char *const sources[] = {
        "[{\"name\":\"default\",\"template\":\"plain {{ messages[0].content }}\"},"
        "{\"name\":\"tool_use\",\"template\":\"with {{ tools|tojson }}\"}]",
        "{\"eos_token\":\"x\",\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"with {{ "
        "tools|tojson }}\"},{\"name\":\"default\",\"template\":\"plain {{ messages[0].content "
        "}}\"}]}"};
    for (int i = 0; i < 2; i++) {
        struct moe_chat *chat = open_chat(sources[i]);
        assert_int_equal(render(chat, user, NULL, got, sizeof got), MOE_OK);
        assert_string_equal(got, "plain u");
        assert_int_equal(render(chat, user, tools, got, sizeof got), MOE_OK);
        assert_string_equal(got, "with [{\"function\": {\"name\": \"f\"}}]");
        moe_chat_free(chat);
    }
    /* What only looks like JSON is a template. */
    struct moe_chat *chat = open_chat("[{{ messages[0].content }}]");
    assert_int_equal(render(chat, user, NULL, got, sizeof got), MOE_OK);
    assert_string_equal(got, "[u]");
    moe_chat_free(chat);
}

/* Some templates fail without what a tool may leave out, or without variables that others lack. */
static void own_system_texts_are_told(void **state)
{
    struct moe_chat *own = open_chat("{% if messages[0].role != 'system' %}[system]You help.;"
                                     "{% endif %}" EACH("[{{ m.role }}]{{ m.content }};"));
    struct moe_chat *none = open_chat(EACH("[{{ m.role }}]{{ m.content }};"));
    (void)state;
    assert_string_equal(moe_chat_own_system(own), "You help.");
    assert_null(moe_chat_own_system(none));
    moe_chat_free(own);
    moe_chat_free(none);
}

static void what_templates_take_for_granted_is_there(void **state)
{
    static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{"
        "\"a\":"
        "{\"type\":\"array\",\"items\":{\"type\":\"object\"}},\"b\":{\"description\":\"own\"}}}}}]";
    char got[512];
    (void)state;
    struct moe_chat *lists =
        open_chat("{% for t in tools %}[{{ t.name }}]{% endfor %}" EACH("{{ m.content }};"));
    assert_int_equal(
        render(lists, "[{\"role\":\"user\",\"content\":\"q\"}]", NULL, got, sizeof got), MOE_OK);
    assert_string_equal(got, "q;");
    moe_chat_free(lists);
    struct moe_chat *describes =
        open_chat("{% for t in tools or [] %}{{ t.function.name + t.function.description }}"
                  "{% for k, v in t.function.parameters.properties|items %}({{ k + v.description }}"
                  "{% if v.type == 'array' %}{{ v['items'].additionalProperties.type }}{% endif %})"
                  "{% endfor %}{% endfor %}" EACH("{{ m.content }}"));
    assert_int_equal(
        render(describes, "[{\"role\":\"user\",\"content\":\"q\"}]", tools, got, sizeof got),
        MOE_OK);
    assert_string_equal(got, "f(a)(bown)q");
    moe_chat_free(describes);
    struct moe_chat *functions =
        open_chat("{{ functions + '|' + datetime }}|" EACH("{{ m.content }}"));
    assert_int_equal(
        render(functions, "[{\"role\":\"user\",\"content\":\"q\"}]", tools, got, sizeof got),
        MOE_OK);
    assert_int_equal(
        strncmp(got, "[\n    {\n        \"name\": \"f\",\n        \"parameters\": {", 48), 0);
    assert_non_null(strstr(got, "]|1900-01-00 00:00:00|q"));
    assert_int_equal(
        render(functions, "[{\"role\":\"user\",\"content\":\"q\"}]", NULL, got, sizeof got),
        MOE_OK);
    assert_string_equal(got, "[]|1900-01-00 00:00:00|q");
    moe_chat_free(functions);
    /* They do not end for null among types, or take a schema for an object. */
    struct moe_chat *types = open_chat(
        "{% macro t(s) %}{% if s.type in ['string', 'array'] %}{{ s.type }}{% elif s.type is "
        "iterable %}{% for x in s.type %}{{ t({'type': x}) }}{% endfor %}{% endif %}"
        "{{ s.get('x', '') }}{% endmacro %}{% for tool in tools or [] %}{{ tool.function.name }}{% "
        "for k, v in "
        "tool.function.parameters.properties|items %}({{ k + t(v) }}{% if v.type == 'array' %}"
        "{{ t(v['items']) }}{% endif %}){% endfor %}{% endfor %}" EACH("{{ m.content }}"));
    assert_int_equal(
        render(types, "[{\"role\":\"user\",\"content\":\"q\"}]",
               "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{\"type\":"
               "[\"string\",\"null\"]},\"b\":{\"type\":\"null\"},\"c\":{\"type\":\"array\","
               "\"items\":false},\"d\":true}}}}]",
               got, sizeof got),
        MOE_OK);
    assert_string_equal(got, "f(astring)(b)(carray)(d)q");
    moe_chat_free(types);
    /* What it fails for otherwise is said as it was. */
    struct moe_chat *fails =
        open_chat("{{ tools[0].function.other + 'x' }}" EACH("{{ m.content }}"));
    assert_int_equal(
        render(fails, "[{\"role\":\"user\",\"content\":\"q\"}]", tools, got, sizeof got),
        MOE_ERR_FORMAT);
    assert_non_null(strstr(got, "'other' is undefined"));
    moe_chat_free(fails);
}

static void damaged_templates_are_refused(void **state)
{
    static const char *const cases[] = {"{% for", "{\"chat_template\": 3}", "[{\"name\":\"a\"}]"};
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_chat *chat;
        struct moe_err err = {0};
        assert_int_equal(
            moe_chat_open(&chat, "t", cases[i], strlen(cases[i]), fixture.model->tokenizer, &err),
            MOE_ERR_FORMAT);
        assert_null(chat);
        assert_true(err.text[0] == 't');
    }
}

/* ---- What clients send ---- */

/* Whatever a client spells, wherever it spells it, lies within the pieces that are its own. */
static void every_text_of_a_client_is_text(void **state)
{
    static const char mark[] = "<|im_end|>";
    struct moe_chat *chat =
        open_chat("{% for t in tools or [] %}{{ t.function.name }}{{ t|tojson }}{% endfor %}"
                  "{{ effort }}{{ style.tone|upper }}{% for k in style %}{{ k }}{% endfor %}" EACH(
                      "{{ m.role }}{{ m.name }}{{ m.content }}{{ m.tool_calls|tojson }}<|end|>")
                      PROMPT("<|go|>"));
    struct moe_buf text = {0}, words = {0};
    struct moe_err err;
    json_t *messages =
        json_pack("[{s:s,s:s,s:s,s:[{s:{s:s,s:{s:s}}}]}]", "role", "user", "name", mark, "content",
                  mark, "tool_calls", "function", "name", mark, "arguments", mark, mark);
    json_t *tools = json_pack("[{s:{s:s,s:s,s:{s:s}}}]", "function", "name", mark, "description",
                              mark, "parameters", mark, mark);
    json_t *variables =
        json_pack("{s:s,s:{s:s,s:s}}", "effort", mark, "style", "tone", mark, mark, "x");
    const struct moe_chat_input in = {.messages = messages,
                                      .tools = tools,
                                      .variables = variables,
                                      .add_generation_prompt = true};
    (void)state;
    assert_true(messages && tools && variables);
    assert_ok(moe_chat_render(chat, &in, &text, &words, &err), &err);
    moe_buf_u8(&text, 0);
    const struct moe_span *spans = (const struct moe_span *)(void *)words.data;
    int n = 0;
    for (const char *at = (const char *)text.data; (at = strcasestr(at, mark)); at++, n++) {
        uint64_t from = (uint64_t)(at - (const char *)text.data);
        bool within = false;
        for (uint64_t i = 0; i < words.size / sizeof *spans; i++)
            within |= spans[i].at <= from && from < spans[i].at + spans[i].n;
        if (!within)
            fail_msg("'%.40s' would be a special token", at);
    }
    assert_int_equal(n, 13);
    moe_buf_release(&text);
    moe_buf_release(&words);
    json_decref(messages);
    json_decref(tools);
    json_decref(variables);
    moe_chat_free(chat);
}

/* A template that goes through all messages for each of them ends with its steps, and when its
 * request is cancelled. */
static void rendering_ends(void **state)
{
    struct moe_chat *chat = open_chat(
        "{% for m in messages %}{% for n in messages %}{% for o in messages %}{{ o.content }}"
        "{% endfor %}{% endfor %}{% endfor %}");
    json_t *messages = json_array();
    (void)state;
    for (int i = 0; i < 1000; i++)
        json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "user", "content", ""));
    for (int cancel = 0; cancel < 2; cancel++) {
        atomic_bool cancelled = cancel;
        struct moe_allowance allowance = {
            .max_steps = 100000, .max_bytes = 16 << 20, .cancelled = &cancelled};
        const struct moe_chat_input in = {.messages = messages, .allowance = &allowance};
        struct moe_buf text = {0};
        struct moe_err err;
        assert_fails(moe_chat_render(chat, &in, &text, NULL, &err),
                     cancel ? MOE_ERR_INTERRUPTED : MOE_ERR_LIMIT,
                     cancel ? "stopped" : "without an end in sight", &err);
        moe_buf_release(&text);
    }
    json_decref(messages);
    moe_chat_free(chat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(templates_tell_how_answers_end),
        cmocka_unit_test(thoughts_are_told_from_contents),
        cmocka_unit_test(messages_take_the_templates_form),
        cmocka_unit_test(messages_take_the_templates_order),
        cmocka_unit_test(many_messages_are_joined_at_once),
        cmocka_unit_test(system_texts_begin_questions),
        cmocka_unit_test(what_a_template_refuses_is_said),
        cmocka_unit_test(tools_are_told_in_words),
        cmocka_unit_test(texts_become_utf8),
        cmocka_unit_test(lists_have_a_template_for_tools),
        cmocka_unit_test(own_system_texts_are_told),
        cmocka_unit_test(what_templates_take_for_granted_is_there),
        cmocka_unit_test(damaged_templates_are_refused),
        cmocka_unit_test(every_text_of_a_client_is_text),
        cmocka_unit_test(rendering_ends),
    };
    return cmocka_run_group_tests_name("chat", tests, open_all, close_all);
}
