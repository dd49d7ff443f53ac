/* Answers: thoughts, contents and calls, read by what templates tell. CHAT_TEMPLATES=DIR: published
 * ones too. */
#define _GNU_SOURCE /* strdup, scandir */
#include "model_fixture.h"

#include <dirent.h>
#include <jansson.h>

#include "base/file.h"
#include "engine/calls.h"
#include "grammar/constraint.h"
#include "grammar/grammar.h"
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

/* What was read, as one text: "thought|content|name(arguments)|..."; of a failed call "!text". */
struct said {
    struct moe_buf text;
    int last;
};

static int note_part(void *ctx, const struct moe_answer_part *part)
{
    static const char *const begins[] = {"T:", "C:", "", "(", ")", "!"};
    struct said *s = ctx;
    if (s->last != (int)part->kind)
        moe_buf_printf(&s->text, "%s%s", s->last >= 0 && part->kind <= MOE_PART_CALL ? "|" : "",
                       begins[part->kind]);
    moe_buf_append(&s->text, part->bytes, part->n);
    s->last = (int)part->kind;
    return MOE_OK;
}

static const char *read_bytes(const struct moe_chat *chat, const json_t *tools, bool opened,
                              const char *answer, size_t n, size_t step, bool cut,
                              struct moe_buf *out)
{
    struct moe_answer_reader *r;
    struct moe_err err = {0};
    struct said said = {.last = -1};
    assert_ok(moe_answer_reader_new(&r, chat, tools, opened, note_part, &said, &err), &err);
    for (size_t i = 0; i < n; i += step)
        assert_ok(moe_answer_reader_add(r, answer + i, n - i < step ? n - i : step, &err), &err);
    assert_ok(moe_answer_reader_end(r, cut, &err), &err);
    moe_answer_reader_free(r);
    moe_buf_u8(&said.text, 0);
    moe_buf_release(out);
    *out = said.text;
    return (const char *)out->data;
}

static const char *read_answer(const struct moe_chat *chat, const json_t *tools, bool opened,
                               const char *answer, size_t step, struct moe_buf *out)
{
    return read_bytes(chat, tools, opened, answer, strlen(answer), step, false, out);
}

/* Wherever a limit cuts off calls, nothing of them is content behind a whole one. */
static bool cuts_are_no_content(const struct moe_chat *chat, const json_t *tools, bool opened,
                                const char *answer, const char *name)
{
    struct moe_buf got = {0};
    bool ok = true;
    for (size_t n = strlen(answer); ok && n > 0; n--) {
        const char *said = read_bytes(chat, tools, opened, answer, n, n, true, &got);
        const char *whole = strstr(said, ")"), *fails = whole ? strchr(whole, '!') : NULL;
        ok = !whole || (!strstr(whole, "|C:") && (!fails || !fails[1]));
        if (!ok)
            print_message("%s: %.*s\n  reads %s\n", name, (int)n, answer, said);
    }
    moe_buf_release(&got);
    return ok;
}

/* ---- Published templates ---- */

static json_t *a_call(const char *name, json_t *arguments, const char *id)
{
    return json_pack("{s:s,s:s,s:{s:s,s:o}}", "id", id, "type", "function", "function", "name",
                     name, "arguments", arguments);
}

/* Whether texts of note_part say the same, their arguments as JSON. */
static bool same_calls(const char *a, const char *b)
{
    bool same = true;
    while (same && *a && *b) {
        size_t n = strcspn(a, "("), m = strcspn(b, "(");
        same = n == m && memcmp(a, b, n) == 0;
        a += n + (a[n] == '(');
        b += m + (b[m] == '(');
        if (!*a && !*b)
            break;
        size_t end_a = 0, end_b = 0;
        json_error_t e;
        json_t *left = json_loads(a, JSON_DISABLE_EOF_CHECK, &e);
        end_a = left ? (size_t)e.position : 0;
        json_t *right = json_loads(b, JSON_DISABLE_EOF_CHECK, &e);
        end_b = right ? (size_t)e.position : 0;
        same = same && left && json_equal(left, right);
        a += end_a;
        b += end_b;
        json_decref(left);
        json_decref(right);
    }
    return same && *a == *b;
}

/* How many bytes of the answer the grammar of calls takes. */
static size_t grammar_takes(const struct moe_chat *chat, const json_t *tools, bool must,
                            enum moe_chat_thought thought, bool no_thought, const char *answer)
{
    const struct moe_calls_wanted wanted = {.tools = tools,
                                            .must = must,
                                            .parallel = true,
                                            .thought = thought,
                                            .no_thought = no_thought};
    struct moe_allowance allowance = moe_allowance_usual();
    struct moe_grammar *g;
    struct moe_err err = {0};
    struct moe_vocabulary *v;
    struct moe_constraint *c;
    assert_ok(moe_calls_grammar(&g, chat, &wanted, &allowance, &err), &err);
    assert_non_null(g);
    assert_ok(
        moe_vocabulary_new(&v, fixture.model->tokenizer, fixture.model->config.vocab, NULL, &err),
        &err);
    assert_ok(moe_constraint_new(&c, g, v, &err), &err);
    size_t n = 0;
    while (answer[n] && moe_constraint_take(c, (const uint8_t *)answer + n, 1, &err) == MOE_OK)
        n++;
    moe_constraint_free(c);
    moe_vocabulary_free(v);
    moe_grammar_free(g);
    return n;
}

static bool round_trip(const char *name, const char *source, const json_t *tools)
{
    struct moe_chat *chat;
    struct moe_err err = {0};
    struct moe_buf prompt = {0}, whole = {0}, got = {0};
    if (moe_chat_open(&chat, name, source, strlen(source), fixture.model->tokenizer, &err)) {
        print_message("%-60s does not open: %s\n", name, err.text);
        return false;
    }
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "Question?");
    struct moe_chat_input in = {.messages = messages, .tools = tools};
    json_t *calls = json_pack(
        "[o,o]",
        a_call("get_weather", json_pack("{s:s,s:i}", "city", "S\xc3\xa3o \"P\" <b>", "days", 3),
               "abcdefgh1"),
        a_call("find_file", json_pack("{s:s,s:[i,i]}", "path", "/a b/c.txt", "lines", 4, 5),
               "abcdefgh2"));
    const char *want = NULL;
    int n_calls = 2;
    for (; n_calls > 0; n_calls--) {
        json_t *some = json_array();
        for (int i = 0; i < n_calls; i++)
            json_array_append(some, json_array_get(calls, i));
        json_t *all = json_deep_copy(messages);
        json_array_append_new(all, json_pack("{s:s,s:s,s:o}", "role", "assistant", "content", "",
                                             "tool_calls", some));
        in.messages = all;
        in.add_generation_prompt = false;
        moe_buf_clear(&whole);
        int status = moe_chat_render(chat, &in, &whole, NULL, &err);
        json_decref(all);
        moe_buf_u8(&whole, 0);
        const char *question = status == MOE_OK ? strstr((char *)whole.data, "Question?") : NULL;
        for (const char *next = question; next && (next = strstr(next + 1, "Question?"));)
            question = next;
        if (question && strstr(question, n_calls > 1 ? "/a b/" : "days"))
            break;
    }
    in.messages = messages;
    in.add_generation_prompt = true;
    int status = moe_chat_render(chat, &in, &prompt, NULL, &err);
    bool ok = false;
    if (n_calls == 0 || status != MOE_OK) {
        print_message("%-60s no calls (%d): %s\n", name, status, err.text);
    } else {
        size_t same = 0;
        bool opened = moe_chat_thought_before(chat, prompt.data, prompt.size) == MOE_THOUGHT_OPEN;
        const char *text = (const char *)whole.data;
        while (same < prompt.size && prompt.data[same] == whole.data[same])
            same++;
        if (same < prompt.size) /* the prompt opens a thought, say */
            while (same && !strchr("<[\n", text[same]))
                same--;
        /* Once more, after the prompt (DeepSeek-V3.2, Command R+). */
        static const char *const twice[] = {"</think>", "<|CHATBOT_TOKEN|>"};
        for (int i = 0; i < 2; i++) {
            const size_t m = strlen(twice[i]);
            if (prompt.size > m && strncmp(text + same, twice[i], m) == 0 &&
                memcmp(prompt.data + prompt.size - m, twice[i], m) == 0)
                same += m;
        }
        char *answer = strdup(text + same);
        static const char turn[] = "<|START_OF_TURN_TOKEN|>"; /* behind what Command R+ writes */
        const char *then, *call_stop = moe_chat_call_stop(chat, &then);
        for (const char *const *stop = moe_chat_stops(chat); *stop; stop++) {
            char *at = strstr(answer + (*stop == call_stop), *stop);
            if (at)
                *at = 0;
        }
        if (strstr(answer, turn))
            *strstr(answer, turn) = 0;
        want = n_calls > 1 ? "get_weather({\"city\": \"S\xc3\xa3o \\\"P\\\" <b>\", \"days\": "
                             "3})|find_file({\"path\": \"/a b/c.txt\", \"lines\": [4, 5]})"
                           : "get_weather({\"city\": \"S\xc3\xa3o \\\"P\\\" <b>\", \"days\": 3})";
        ok = true;
        for (size_t step = 1; step <= 7 && ok; step++) {
            const char *said = read_answer(chat, tools, opened, answer, step, &got);
            ok = same_calls(said, want);
            if (!ok)
                print_message("%-60s step %zu reads %s\n   of %s\n", name, step, said, answer);
        }
        ok = ok && cuts_are_no_content(chat, tools, opened, answer, name);
        size_t taken =
            ok ? grammar_takes(chat, tools, true, opened ? MOE_THOUGHT_OPEN : MOE_THOUGHT_NONE,
                               false, answer)
               : 0;
        if (ok && answer[taken] && !strstr(name, "gemma") &&
            !strstr(name, "MiniMax-M3")) { /* one sorts parameters, one writes lists as elements */
            print_message("%-60s its grammar takes %.*s\n  and then not %s\n", name, (int)taken,
                          answer, answer + taken);
            ok = false;
        }
        free(answer);
    }
    json_decref(calls);
    json_decref(messages);
    moe_buf_release(&prompt);
    moe_buf_release(&whole);
    moe_buf_release(&got);
    moe_chat_free(chat);
    return ok;
}

static json_t *the_tools(void)
{
    return json_loads(
        "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"description\":"
        "\"Weather\","
        "\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\","
        "\"description\":\"c\"},"
        "\"days\":{\"type\":\"integer\",\"description\":\"d\"}},\"required\":[\"city\"]}}},"
        "{\"type\":\"function\",\"function\":{\"name\":\"find_file\",\"description\":\"Files\","
        "\"parameters\":{\"type\":\"object\",\"properties\":{\"path\":{\"type\":\"string\","
        "\"description\":\"c\"},"
        "\"lines\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"description\":\"d\"}},"
        "\"required\":[\"path\"]}}}]",
        0, NULL);
}

/* Published templates (llama.cpp's models/templates) whose calls are not read, and why. */
static const char *const not_read[][2] = {
    {"LFM2.5-Instruct", "writes no calls, whose mark is a token of its own tokenizer"},
};

static void published_templates_read_their_own_calls(void **state)
{
    const char *dir = getenv("CHAT_TEMPLATES");
    if (!dir)
        skip();
    json_t *tools = the_tools();
    struct dirent **list;
    int n = scandir(dir, &list, NULL, alphasort), wrong = 0, n_read = 0;
    for (int i = 0; i < n; i++) {
        char path[1024];
        struct moe_buf source = {0};
        struct moe_err err;
        const char *why = NULL;
        for (size_t k = 0; k < sizeof not_read / sizeof not_read[0]; k++)
            if (strstr(list[i]->d_name, not_read[k][0]))
                why = not_read[k][1];
        snprintf(path, sizeof path, "%s/%s", dir, list[i]->d_name);
        if (strstr(path, ".jinja") && moe_file_read_all(path, 1 << 20, &source, &err) == MOE_OK) {
            moe_buf_u8(&source, 0);
            bool has_tools = strstr((char *)source.data, "tool") != NULL;
            bool reads = has_tools && round_trip(list[i]->d_name, (char *)source.data, tools);
            wrong += has_tools && reads != !why;
            n_read += reads;
        }
        moe_buf_release(&source);
        free(list[i]);
    }
    free(list);
    json_decref(tools);
    print_message("%d templates read their own calls\n", n_read);
    assert_int_equal(wrong, 0);
    assert_true(n_read > 0);
}

/* ---- Forms ---- */

#define EACH(body) "{% for m in messages %}" body "{% endfor %}"
#define TOOLS "{% if tools %}{{ tools|tojson }}{% endif %}"
#define TURN(calls)                                                                                \
    TOOLS EACH("<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>\n{{ "                \
               "m.reasoning_content }}\n</think>\n\n"                                              \
               "{% endif %}{{ m.content }}{% if m.tool_calls %}" calls                             \
               "{% endif %}<|im_end|>\n") "{% if add_generation_prompt "                           \
                                          "%}<|im_start|>assistant\n{% endif %}"
#define FOR_CALLS(one) "{% for c in m.tool_calls %}" one "{% endfor %}"
#define HERMES                                                                                     \
    TURN(FOR_CALLS("{% if loop.index > 1 %}\n{% endif %}<tool_call>\n{\"name\": \"{{ "             \
                   "c.function.name }}\", \"arguments\": "                                         \
                   "{{ c.function.arguments|tojson }}}\n</tool_call>"))
#define CODER                                                                                      \
    TURN(FOR_CALLS(                                                                                \
        "<tool_call>\n<function={{ c.function.name }}>\n{% for k, v in "                           \
        "c.function.arguments|items %}"                                                            \
        "<parameter={{ k }}>\n{{ v if v is string else v|tojson }}\n</parameter>\n{% endfor %}"    \
        "</function>\n</tool_call>\n"))
#define SECTION                                                                                    \
    TURN("<|begin|>" FOR_CALLS("<|call|>functions.{{ c.function.name }}:{{ loop.index0 }}<|args|>" \
                               "{{ c.function.arguments|tojson }}<|done|>") "<|end|>")
#define ELEMENTS                                                                                   \
    "{% macro xml(v) %}{% if v is mapping %}{% for k, w in v|items %}<|e|><{{ k }}>{{ xml(w) }}"   \
    "<|e|></{{ k }}>{% endfor %}{% elif v is string or v is number %}{{ v }}{% else %}"            \
    "{% for w in v %}<|e|><item>{{ xml(w) }}<|e|></item>{% endfor %}{% endif %}{% endmacro "       \
    "%}" TURN(FOR_CALLS(                                                                           \
        "<|e|><call {{ c.function.name }}>{{ xml(c.function.arguments) }}<|e|></call>\n"))
#define QUOTES                                                                                     \
    TURN(FOR_CALLS("<|call>{{ c.function.name }}{% raw %}{{% endraw %}{% for k, v in "             \
                   "c.function.arguments|items %}"                                                 \
                   "{% if loop.index > 1 %},{% endif %}{{ k }}:{% if v is string %}<|q|>{{ v "     \
                   "}}<|q|>{% else %}"                                                             \
                   "{{ v }}{% endif %}{% endfor %}}<call|>"))
/* A list of Python's calls. */
#define PYTHON                                                                                     \
    TURN("<|call>[" FOR_CALLS(                                                                     \
        "{% if loop.index > 1 %}, {% endif %}{{ c.function.name }}({% for k, v in "                \
        "c.function.arguments|items %}{% if loop.index > 1 %}, {% endif %}{{ k }}={% if v is "     \
        "string %}'{{ v }}'{% else %}{{ v }}{% endif %}{% endfor %})") "]<call|>")
#define LIST                                                                                       \
    TURN("[TOOL_CALLS] [" FOR_CALLS(                                                               \
        "{% if loop.index > 1 %}, {% endif %}{\"name\": \"{{ c.function.name }}\", "               \
        "\"arguments\": {{ c.function.arguments|tojson }}, \"id\": \"{{ c.id }}\"}") "]")
#define TYPED                                                                                      \
    TURN(FOR_CALLS("<call {{ c.function.name }}>{% for k, v in c.function.arguments|items %}"      \
                   "<p name=\"{{ k }}\" type=\"{{ 'string' if v is string else 'number' }}\">"     \
                   "{{ v if v is string else v|tojson }}</p>{% endfor %}</call>"))
#define OTHER_ROLE                                                                                 \
    TOOLS EACH("{{ m.role }}<|role|>\n{{ m.content }}<|sep|>\n\n{% if m.tool_calls %}"             \
               "function call<|role|>\n{\"name\": \"{{ m.tool_calls[0].function.name }}\", "       \
               "\"arguments\": {{ m.tool_calls[0].function.arguments|tojson }}}<|sep|>\n\n"        \
               "{% endif %}") "{% if add_generation_prompt %}assistant<|role|>\n{% endif %}"
/* Two ends of a thought, of which one begins the other. */
#define CHANNELS                                                                                   \
    TOOLS EACH("<s>{{ m.role }}{% if m.reasoning_content %}<hm>{{ m.reasoning_content }}<e><s>"    \
               "assistant{% endif %}{% if m.tool_calls %}<call>{{ m.tool_calls[0].function.name "  \
               "}}:{{ m.tool_calls[0].function.arguments|tojson }}{% else %}<say>{{ m.content }}"  \
               "{% endif %}<e>") "{% if add_generation_prompt %}<s>assistant{% endif %}"
/* An answer is several messages. */
#define HARMONY                                                                                    \
    TOOLS EACH(                                                                                    \
        "<|start|>{{ m.role }}{% if m.thinking and (m.tool_calls or loop.last) %}<|channel|>"      \
        "analysis<|message|>{{ m.thinking }}<|end|><|start|>assistant{% endif %}{% if "            \
        "m.tool_calls %} to=functions.{{ m.tool_calls[0].function.name }}<|channel|>"              \
        "commentary json<|message|>{{ m.tool_calls[0].function.arguments|tojson }}<|call|>"        \
        "{% else %}{{ '<|channel|>final' if m.role == 'assistant' }}<|message|>{{ m.content "      \
        "}}<|end|>{% endif %}") "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
#define NEXT "<|end|><|start|>assistant"
#define SAYS(channel, text) "<|channel|>" channel "<|message|>" text
#define BARE                                                                                       \
    TURN("{\"name\": \"{{ m.tool_calls[0].function.name }}\", \"parameters\": "                    \
         "{{ m.tool_calls[0].function.arguments|tojson }}}")

static const struct {
    const char *template, *answer, *said;
} cases[] = {
    {HERMES,
     "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>",
     "get_weather({\"city\": \"Rome\"})"},
    {HERMES,
     "Let me see.\n\n<tool_call>{ \"name\" : \"get_weather\",\"arguments\" :{\"city\": "
     "\"}\\\"{\"}} </tool_call>\n",
     "C:Let me see.|get_weather({\"city\": \"}\\\"{\"})"},
    {HERMES, "<tool_call>{\"arguments\": {\"days\": 2}, \"name\": \"get_weather\"}</tool_call>",
     "get_weather({\"days\": 2})"},
    {HERMES,
     "<tool_call>{\"name\": \"get_weather\", \"arguments\": \"{\\\"days\\\": 2}\"}</tool_call>",
     "get_weather({\"days\": 2})"},
    /* Numbers keep their digits. */
    {HERMES,
     "<tool_call>{\"arguments\": {\"days\": 18446744073709551616, \"a\": [1, 0.1]}, \"name\": "
     "\"get_weather\"}</tool_call>",
     "get_weather({\"days\": 18446744073709551616, \"a\": [1, 0.1]})"},
    {HERMES,
     "<tool_call>{\"arguments\": 18446744073709551616, \"name\": \"find_file\"}</tool_call>",
     "C:<tool_call>{\"arguments\": 18446744073709551616, \"name\": \"find_file\"}</tool_call>"},
    {CODER,
     "<tool_call>\n<function=get_weather>\n<parameter=days>\n-98765432109876543210\n</parameter>\n"
     "</function>\n</tool_call>",
     "get_weather({\"days\": -98765432109876543210})"},
    /* A mark within a text of JSON does not end the value; one behind an open quote does. */
    {CODER,
     "<tool_call>\n<function=find_file>\n<parameter=lines>\n[1, {\"a\": "
     "\"\\\"\n</parameter>\n</function>\"}]\n</parameter>\n</function>\n</tool_call>",
     "find_file({\"lines\": \"[1, {\\\"a\\\": "
     "\\\"\\\\\\\"\\u000a</parameter>\\u000a</function>\\\"}]\"})"},
    {CODER,
     "<tool_call>\n<function=find_file>\n<parameter=lines>\n[1, {\"a\": "
     "\"\\\"</parameter>\"}]\n</parameter>\n</function>\n</tool_call>",
     "find_file({\"lines\": [1, {\"a\": \"\\\"</parameter>\"}]})"},
    {CODER,
     "<tool_call>\n<function=find_file>\n<parameter=lines>\n[\"a\n</parameter>\n</function>\n</"
     "tool_call>",
     "find_file({\"lines\": \"[\\\"a\"})"},
    {HERMES,
     "<think>\nhm <tool\n</think>\n\n<tool_call>\n{\"name\": \"find_file\", \"arguments\": "
     "{}}\n</tool_call>",
     "T:hm <tool|find_file({})"},
    {HERMES,
     "<tool_call>\n{\"name\": \"find_file\", \"arguments\": "
     "{}}\n</tool_call>\n<tool_call>\n{\"name\": \"find_file\", "
     "\"arguments\": {\"path\": \"a\"}}\n</tool_call>\nDone.",
     "find_file({})|find_file({\"path\": \"a\"})|C:Done."},
    /* What is no call is content, also where it begins like one. */
    {HERMES, "a < b, <tool_call>, {\"name\": \"find_file\"}",
     "C:a < b, <tool_call>, {\"name\": \"find_file\"}"},
    {HERMES, "<tool_call>\n{\"name\": \"unknown\", \"arguments\": {}}\n</tool_call>",
     "C:<tool_call>\n{\"name\": \"unknown\", \"arguments\": {}}\n</tool_call>"},
    {HERMES, "  kept blanks  ", "C:  kept blanks  "},
    /* An answer that ends within a call says all that it has of it once more. */
    {HERMES, "<tool_call>\n{\"name\": \"find_file\", \"arguments\": {\"path\": \"a",
     "find_file({\"path\": \"a!<tool_call>\n{\"name\": \"find_file\", \"arguments\": {\"path\": "
     "\"a"},
    {HERMES, "<tool_call>\n{\"name\": \"find_file\", \"arguments\": {\"path\": 1 2}}\n</tool_call>",
     "find_file({\"path\": 1 2}!<tool_call>\n{\"name\": \"find_file\", \"arguments\": {\"path\": 1 "
     "2}}\n</tool_call>"},
    {HERMES, "<tool_call>\n{\"name\": \"find_file\", \"arguments\": {\"path\": \"a\"}}",
     "find_file({\"path\": \"a\"})"},
    /* What a limit leaves of a mark is none of the content. */
    {HERMES, "<tool_call>\n{\"name\": \"find_file\", \"arguments\": {}}\n</tool_c",
     "find_file({})"},
    {HERMES, "<tool_call>\n{\"name\": \"find_file\", \"arguments\": {}}\n</tool_call>\n<tool_",
     "find_file({})"},
    {CODER,
     "<tool_call>\n<function=find_file>\n<parameter=path>\na\n</parameter>\n</function>\n</too",
     "find_file({\"path\": \"a\"})"},
    {SECTION, "<|begin|><|call|>functions.find_file:1<|args|>{}<|done|><|e", "find_file({})"},
    {CHANNELS, "<hm>a <e> b<e><s>assistant<say>c", "T:a <e> b|C:c"},
    {CHANNELS, "<hm>a<e><s>assistant<call>find_file:{}", "T:a|find_file({})"},
    {CHANNELS, "<hm>a<e><s>assistant<sad", "T:a|C:<sad"},
    {CHANNELS, "<hm>a<e><s>assistant<sa", "T:a"},
    /* What is left of several marks is none of the text, what may be some is. */
    {CHANNELS, "<hm>a<e><s>assis", "T:a"},
    {CHANNELS, "<say>a<e", "C:a<e"},
    {CHANNELS, "<say>a<e><s>assistant<say>b", "C:a\n\nb"},
    {HARMONY, SAYS("analysis", "hm") NEXT SAYS("final", "a <|end|> b") NEXT SAYS("final", "c"),
     "T:hm|C:a <|end|> b\n\nc"},
    {HARMONY,
     SAYS("commentary", "I look.") NEXT SAYS("analysis", "hm") NEXT SAYS("analysis", "hm?")
         NEXT SAYS("commentary to=functions.get_weather <|constrain|>json",
                   "{\"days\": 2}") "<|call|>",
     "C:I look.|T:hm\n\nhm?|get_weather({\"days\": 2})"},
    {HARMONY,
     SAYS("analysis", "hm") NEXT SAYS("commentary", "I look.") NEXT
     " to=functions.find_file" SAYS("commentary <|constrain|>json", "{}") NEXT SAYS(
         "analysis to=functions.find_file code", "{}") "<|call|><|start|>assistant" SAYS("fi"
                                                                                         "na"
                                                                                         "l",
                                                                                         "So"),
     "T:hm|C:I look.|find_file({})|find_file({})|C:\n\nSo"},
    {HARMONY,
     SAYS("analysis", "a") NEXT SAYS("commentary", "b") NEXT SAYS("analysis", "c")
         NEXT SAYS("final <|constrain|>json", "{}"),
     "T:a|C:b|T:\n\nc|C:\n\n{}"},
    {HARMONY, SAYS("commentary to=functions.other", "{}"),
     "C:" SAYS("commentary to=functions.other", "{}")},
    {HARMONY, SAYS("analysis", "") NEXT SAYS("final", "b") NEXT "<|channel|>comm", "C:b"},
    {HARMONY, SAYS("analysis", "hm") "<|end|><|st", "T:hm"},
    {HARMONY, SAYS("analysis", "hm") "<|", "T:hm"},
    {HARMONY, SAYS("analysis", "a <"), "T:a <"},
    {HARMONY, SAYS("final", "a <|"), "C:a <|"},
    {HERMES, "<think>hm</thi", "T:hm"},
    {HARMONY, " \n", "C: \n"},
    {HARMONY, "", ""},
    /* Content follows a failed call, which is content, as it follows another. */
    {HARMONY,
     SAYS("analysis", "hm") NEXT SAYS("commentary to=functions.find_file json", "{\"path\": x}")
         NEXT SAYS("final", "Sorry."),
     "T:hm|find_file({\"path\": x}!" SAYS("commentary to=functions.find_file json",
                                          "{\"path\": x}") "|C:\n\nSorry."},
    {HARMONY, "<|channel|>analy", ""},
    {HARMONY, "<|chan", "C:<|chan"},
    {HARMONY, SAYS("analysis", "hm") NEXT "<|channel|>commentary to=functions.fi",
     "T:hm|C:<|channel|>commentary to=functions.fi"},
    {LIST, "[TOOL_CALLS] [{\"name\": \"find_file\", \"arguments\": {}, \"id\": \"123456789\"},",
     "find_file({})"},
    {HERMES, "A tail <tool_", "C:A tail <tool_"},
    /* Texts and other values by the tool's schema; the blanks of a text are its own. */
    {CODER,
     "<tool_call>\n<function=get_weather>\n<parameter=city>\n  S\xc3\xa3o\n "
     "\"P\"\n</parameter>\n<parameter=days>\n3\n"
     "</parameter>\n</function>\n</tool_call>",
     "get_weather({\"city\": \"  S\xc3\xa3o\\u000a \\\"P\\\"\", \"days\": 3})"},
    {CODER,
     "<tool_call>\n<function=get_weather>\n<parameter=city>\n12\n</"
     "parameter>\n<parameter=days>\nmany\n</parameter>\n"
     "</function>\n</tool_call>",
     "get_weather({\"city\": \"12\", \"days\": \"many\"})"},
    {CODER, "<tool_call>\n<function=find_file>\n</function>\n</tool_call>\nand",
     "find_file({})|C:and"},
    {CODER, "<tool_call>\n<function=find_file>\n<parameter=path>\nab",
     "find_file({\"path\": \"a!<tool_call>\n<function=find_file>\n"
     "<parameter=path>\nab"},
    {SECTION,
     "Hm<|begin|><|call|>functions.get_weather:0<|args|>{\"city\": "
     "\"x\"}<|done|><|call|>functions.find_file:1<|args|>{}"
     "<|done|><|end|>",
     "C:Hm|get_weather({\"city\": \"x\"})|find_file({})"},
    {QUOTES, "<|call>get_weather{city:<|q|>a, b}<|q|>,days:3}<call|>",
     "get_weather({\"city\": \"a, b}\", \"days\": 3})"},
    {QUOTES, "<|call>find_file{path:<|q|>\\<|q|>,lines:[1,{a:<|q|>x<|q|>,b:true}]}<call|>ok",
     "find_file({\"path\": \"\\\\\", \"lines\": [1,{\"a\":\"x\",\"b\":true}]})|C:ok"},
    /* What is no escape is part of the text. */
    {PYTHON,
     "<|call>[find_file(path='it\\'s \\\\ \"\\d\"', lines=['\\n', \"'\"]), "
     "get_weather(days=3)]<call|>",
     "find_file({\"path\": \"it's \\\\ \\\"\\\\d\\\"\", \"lines\": "
     "[\"\\u000a\",\"'\"]})|get_weather({\"days\": 3})"},
    /* Lists and objects as elements, or as JSON within one. */
    {ELEMENTS,
     "<|e|><call find_file><|e|><path>a "
     "<b><|e|></path><|e|><lines><|e|><item>4<|e|></item><|e|><item>"
     "5<|e|></item><|e|></lines><|e|></call>\n<|e|><call "
     "get_weather><|e|><days>3<|e|></days><|e|></call>",
     "find_file({\"path\": \"a <b>\", \"lines\": [4, 5]})|get_weather({\"days\": 3})"},
    {ELEMENTS,
     "<|e|><call find_file><|e|><lines>[4, "
     "\"<|e|></lines>\"]<|e|></lines><|e|><more><|e|><a><|e|><item>x<|e|></item>"
     "<|e|></a><|e|><b>1<|e|></b><|e|></more><|e|><lines><|e|></lines><|e|></call>",
     "find_file({\"lines\": [4, \"<|e|></lines>\"], \"more\": {\"a\": [\"x\"], \"b\": 1}, "
     "\"lines\": []})"},
    {ELEMENTS, "<|e|><call find_file><|e|><lines><|e|><item>4",
     "find_file({\"lines\": !<|e|><call find_file><|e|><lines><|e|><item>4"},
    {LIST,
     "[TOOL_CALLS] [{\"name\": \"find_file\", \"arguments\": {}, \"id\": \"123456789\"}, "
     "{\"name\": \"get_weather\", "
     "\"arguments\": {\"days\": 1}, \"id\": \"123456780\"}]",
     "find_file({})|get_weather({\"days\": 1})"},
    /* The grammar of a call that must be made may leave out the first mark: the prompt may have it.
     */
    {LIST, "[{\"name\": \"find_file\", \"arguments\": {}, \"id\": \"123456789\"}]",
     "find_file({})"},
    /* An object that is read whole, since its name comes late; of a key twice the last counts. */
    {LIST,
     "[TOOL_CALLS] [{\"id\": \"123456789\", \"name\": \"find_file\", \"arguments\": "
     "{\"path\": \"a\", \"path\": \"b\"}}]",
     "find_file({\"path\": \"b\"})"},
    {LIST "{# </think> #}",
     "<think>hm</think>\n[{\"name\": \"find_file\", \"arguments\": {}, \"id\": \"123456789\"}]",
     "T:hm|find_file({})"},
    {OTHER_ROLE "{# Say [BEGIN FINAL RESPONSE] ... </thinking> #}",
     "Here are my reasoning steps:\nhm\n[BEGIN FINAL RESPONSE]\nSo.", "T:hm|C:So."},
    {LIST, "[{\"name\": \"other\"}, 1]", "C:[{\"name\": \"other\"}, 1]"},
    {LIST, "See [{\"name\": \"find_file\", \"arguments\": {}}]",
     "C:See [{\"name\": \"find_file\", \"arguments\": {}}]"},
    {BARE, "{\"name\": \"find_file\", \"parameters\": {\"path\": \"a\"}}",
     "find_file({\"path\": \"a\"})"},
    {BARE, "See {\"name\": \"find_file\", \"parameters\": {}}",
     "C:See {\"name\": \"find_file\", \"parameters\": {}}"},
    {BARE, "{\"path\": 1}", "C:{\"path\": 1}"},
    /* Texts have marks of their own, which are not believed of a value that is none. */
    {TYPED, "<call find_file><p name=\"path\" type=\"string\">4</p></call>",
     "find_file({\"path\": \"4\"})"},
    {TYPED, "<call find_file><p name=\"lines\" type=\"string\">[4]</p></call>",
     "find_file({\"lines\": [4]})"},
    /* A call is a message of another role. */
    {OTHER_ROLE, "Hm<|sep|>\n\nfunction call<|role|>\n{\"name\": \"find_file\", \"arguments\": {}}",
     "C:Hm|find_file({})"},
    /* Forms that the template does not write. */
    {TURN("") "{# <|tool_call_start|> #}",
     "<|tool_call_start|>[get_weather(city=\"a\\\"\", days=3), find_file(lines=[1, "
     "None])]<|tool_call_end|>ok",
     "get_weather({\"city\": \"a\\\"\", \"days\": 3})|find_file({\"lines\": [1,null]})|C:ok"},
    {TURN("") "{# <tool_call> #}",
     "<tool_call>{\"name\": \"find_file\", \"arguments\": {}}</tool_call>", "find_file({})"},
    {TURN("") "{# <|tool_call|> #}",
     "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"days\": 1}}, {\"name\": "
     "\"find_file\", \"arguments\": {}}]",
     "get_weather({\"days\": 1})|find_file({})"},
    {TURN(""), "<tool_call>{\"name\": \"find_file\", \"arguments\": {}}</tool_call>",
     "C:<tool_call>{\"name\": \"find_file\", \"arguments\": {}}</tool_call>"},
};

static void answers_are_read_in_any_pieces(void **state)
{
    json_t *tools = the_tools();
    struct moe_buf got = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct moe_chat *chat;
        struct moe_err err = {0};
        assert_ok(moe_chat_open(&chat, "t", cases[i].template, strlen(cases[i].template),
                                fixture.model->tokenizer, &err),
                  &err);
        for (size_t step = 1; step < 9; step++)
            if (strcmp(read_answer(chat, tools, false, cases[i].answer, step, &got),
                       cases[i].said) != 0)
                fail_msg("case %zu, pieces of %zu: %s\n  reads as   %s\n  instead of %s", i, step,
                         cases[i].answer, (const char *)got.data, cases[i].said);
        moe_chat_free(chat);
    }
    moe_buf_release(&got);
    json_decref(tools);
}

static void calls_that_are_cut_off_are_no_content(void **state)
{
    json_t *tools = the_tools();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct moe_chat *chat;
        struct moe_err err = {0};
        const char *said = cases[i].said, *second = strstr(said, ")|");
        if (!second || strchr("CT!", second[2]) || said[strlen(said) - 1] != ')')
            continue;
        assert_ok(moe_chat_open(&chat, "t", cases[i].template, strlen(cases[i].template),
                                fixture.model->tokenizer, &err),
                  &err);
        assert_true(cuts_are_no_content(chat, tools, false, cases[i].answer, "a case"));
        moe_chat_free(chat);
    }
    json_decref(tools);
}

/* ---- Calls that must be well formed ---- */

static const struct {
    const char *template, *answer;
    bool must;
    const char *taken; /* NULL: all of it */
} held[] = {
    {HERMES,
     "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\", \"days\": "
     "3}}\n</tool_call>",
     true, NULL},
    {HERMES, "<think>\nany</thing\n</think>\n\n<tool_call>\n{\"name\": \"find_file\"", true, NULL},
    {HERMES, "<tool_call>\n{\"name\": \"other", true, "<tool_call>\n{\"name\": \""},
    {HERMES, "<tool_call>\n{\"name\": \"find_file\", \"arguments\": {\"path\": 3", true,
     "<tool_call>\n{\"name\": \"find_file\", \"arguments\": {\"path\": "},
    {HERMES, "Hello", true, ""},
    {HERMES,
     "Hello, <tool> <tool_call>\n{\"name\": \"find_file\", \"arguments\": {\"path\": "
     "\"a\"}}\n</tool_call>\n<tool_call>\n",
     false, NULL},
    {HERMES, "Hello, <tool_call>!", false, "Hello, <tool_call>"},
    {CODER,
     "<tool_call>\n<function=get_weather>\n<parameter=city>\n</para "
     "</paramet\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
     "</function>\n</tool_call>\n",
     true, NULL},
    {CODER,
     "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</"
     "parameter>\n<parameter=days>\nmany",
     true,
     "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</"
     "parameter>\n<parameter=days>\n"},
    {CODER, "<tool_call>\n<function=find_file>\n</function>", true,
     "<tool_call>\n<function=find_file>\n<"},
    {SECTION,
     "<|begin|><|call|>functions.get_weather:0<|args|>{\"city\": "
     "\"x\"}<|done|><|call|>functions.find_file:1<|args|>"
     "{\"path\": \"\"}<|done|><|end|>",
     true, NULL},
    {QUOTES, "<|call>get_weather{city:<|q|>a, b}<|q|>,days:3}<call|>", true, NULL},
    {LIST,
     "[TOOL_CALLS] [{\"name\": \"find_file\", \"arguments\": {\"path\": \"\"}, \"id\": "
     "\"123456789\"}]",
     true, NULL},
    {BARE, "{\"name\": \"find_file\", \"parameters\": {\"path\": \"a\"}}", true, NULL},
    {OTHER_ROLE,
     "<|sep|>\n\nfunction call<|role|>\n{\"name\": \"find_file\", \"arguments\": {\"path\": "
     "\"a\"}}",
     true, NULL},
    {OTHER_ROLE, "Hm<|sep|>\n\nuser<|role|>\nHm", false, NULL},
    /* Any thoughts and texts before a call that must come. */
    {HARMONY,
     SAYS("analysis", "a") NEXT SAYS("commentary", "b <|end|>") NEXT SAYS("analysis", "c") NEXT
     " to=functions.find_file<|channel|>commentary json<|message|>{\"path\": \"a\"}"
     "<|call|>",
     true, NULL},
    {HARMONY, SAYS("analysis", "a") NEXT SAYS("final", "b"), true,
     SAYS("analysis", "a") NEXT "<|channel|>"},
    {HARMONY, " to=functions.other", true, " to=functions."},
    /* One that may: however it begins. */
    {HARMONY, SAYS("analysis", "to=functions.other") NEXT SAYS("final", "b to=functions.x"), false,
     NULL},
    {HARMONY, "anything to=functions.x", false, NULL},
    {HARMONY,
     SAYS("analysis", "a") NEXT
     "<|channel|>commentary to=functions.find_file <|constrain|>json<|message|>{\"path\": "
     "\"a\"}<|call|>",
     false, NULL},
    {HARMONY, SAYS("commentary to=functions.find_file", "{\"path\": 7}"), false,
     SAYS("commentary to=functions.find_file", "{\"path\": ")},
    {HARMONY, SAYS("commentary to=functions.other", "{}"), false,
     "<|channel|>commentary to=functions."},
    {HARMONY, SAYS("commentary", "a") NEXT " to=functions.other", false,
     SAYS("commentary", "a") NEXT " to=functions."},
    {HARMONY, " to=functions.other", false, " to=functions."},
    {OTHER_ROLE, "Hm<|sep|>\n\nfunction call<|role|>\n{\"name\": \"other", false,
     "Hm<|sep|>\n\nfunction call<|role|>\n{\"name\": \""},
};

static void calls_are_held_to_form_and_schema(void **state)
{
    json_t *tools = the_tools();
    for (size_t i = 0; i < sizeof held / sizeof held[0]; i++) {
        struct moe_chat *chat;
        struct moe_err err = {0};
        const char *wanted = held[i].taken ? held[i].taken : held[i].answer;
        assert_ok(moe_chat_open(&chat, "t", held[i].template, strlen(held[i].template),
                                fixture.model->tokenizer, &err),
                  &err);
        size_t n =
            grammar_takes(chat, tools, held[i].must, MOE_THOUGHT_NONE, false, held[i].answer);
        if (n != strlen(wanted))
            fail_msg("case %zu: %s\n  is taken up to %.*s", i, held[i].answer, (int)n,
                     held[i].answer);
        moe_chat_free(chat);
    }
    /* A thought that the prompt opens and nobody wants ends at once. */
    struct moe_chat *chat;
    struct moe_err err = {0};
    static const char thinks[] = "Hm\n</think>\n\n<tool_call>\n",
                      ends[] = "</think>\n\n<tool_call>\n{\"name\": \"find_file\"";
    assert_ok(moe_chat_open(&chat, "t", HERMES, strlen(HERMES), fixture.model->tokenizer, &err),
              &err);
    assert_int_equal(grammar_takes(chat, tools, true, MOE_THOUGHT_OPEN, true, ends), strlen(ends));
    assert_int_equal(grammar_takes(chat, tools, true, MOE_THOUGHT_OPEN, true, thinks), 0);
    assert_int_equal(grammar_takes(chat, tools, true, MOE_THOUGHT_NONE, true, "<think>"), 2);
    assert_int_equal(grammar_takes(chat, tools, true, MOE_THOUGHT_OPEN, false, thinks),
                     strlen(thinks));
    moe_chat_free(chat);
    json_decref(tools);
}

/* Parameters that are texts without saying so, or texts among others: written without quotes. */
static const struct {
    const char *template, *schema, *value;
    const char *said; /* NULL: the grammar does not take it */
} texts[] = {
    {CODER, "{\"enum\":[\"red\",\"green\"]}", "red", "\"red\""},
    {CODER, "{\"enum\":[\"red\",\"green\"]}", "\"red\"", NULL},
    {CODER, "{\"enum\":[\"red\",\"green\"]}", "blue", NULL},
    {CODER, "{\"const\":\"12\"}", "12", "\"12\""},
    {CODER, "{\"type\":[\"string\",\"null\"]}", "12", "\"12\""},
    {CODER, "{\"type\":[\"string\",\"null\"]}", "null", "null"},
    {CODER, "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", "a \"b\"",
     "\"a \\\"b\\\"\""},
    {CODER, "{\"anyOf\":[{\"const\":\"a\"},{\"type\":\"null\"}]}", "null", "null"},
    {CODER, "{\"anyOf\":[{\"const\":\"a\"},{\"type\":\"null\"}]}", "b", NULL},
    {CODER, "{\"$ref\":\"#/$defs/colour\"}", "red", "\"red\""},
    {CODER, "{\"$ref\":\"#/$defs/colour\"}", "re", NULL},
    {CODER, "{\"enum\":[\"a\",1,null]}", "1", "1"},
    {CODER, "{\"enum\":[\"a\",1,null]}", "a", "\"a\""},
    {CODER, "{\"type\":[\"string\",\"array\"]}", "[1]", "[1]"},
    {CODER, "{\"type\":\"integer\"}", "many", NULL},
    {CODER, "{\"type\":\"object\"}", "{\"x\":1,\"x\":2}", "{\"x\":1,\"x\":2}"},
    /* What a schema says of texts holds for those without quotes. */
    {CODER, "{\"type\":\"string\",\"pattern\":\"^[a-z]{2}\\\"?$\"}", "ab\"", "\"ab\\\"\""},
    {CODER, "{\"type\":\"string\",\"pattern\":\"^[a-z]{2}$\"}", "abc", NULL},
    {CODER, "{\"type\":\"string\",\"pattern\":\"^[^a]<?$\"}", "b<", "\"b<\""},
    {CODER, "{\"type\":\"string\",\"pattern\":\"b\"}", "abc", "\"abc\""},
    {CODER, "{\"type\":\"string\",\"pattern\":\"b\"}", "aac", NULL},
    {CODER, "{\"type\":\"string\",\"maxLength\":3}", "a<\xc3\xa9", "\"a<\xc3\xa9\""},
    {CODER, "{\"type\":\"string\",\"maxLength\":3}", "abcd", NULL},
    {CODER, "{\"type\":\"string\",\"maxLength\":30}", "a</b>", "\"a</b>\""},
    {CODER, "{\"type\":\"string\",\"maxLength\":300}", "a<b>", "\"a<b>\""},
    {CODER, "{\"type\":\"string\",\"maxLength\":300}", "a</b>", NULL},
    {CODER, "{\"type\":\"string\",\"pattern\":\"^[a-z]+\\\\.[a-z]+$\",\"maxLength\":4}", "a.bc",
     "\"a.bc\""},
    {CODER, "{\"type\":\"string\",\"pattern\":\"^[a-z]+\\\\.[a-z]+$\",\"maxLength\":4}", "a.bcd",
     NULL},
    {CODER, "{\"type\":\"string\",\"not\":{\"const\":\"ab\"}}", "ab", NULL},
    {CODER, "{\"type\":\"string\",\"not\":{\"const\":\"ab\"}}", "abc", "\"abc\""},
    {CODER, "{\"type\":\"string\",\"minLength\":2}", "a", NULL},
    {CODER, "{\"type\":\"string\",\"minLength\":2}", "a<b></b>", "\"a<b></b>\""},
    {CODER, "{\"type\":\"string\",\"minLength\":2}", "a<</b>", "\"a<</b>\""},
    {CODER, "{\"type\":\"string\",\"format\":\"date\"}", "2024-02-29", "\"2024-02-29\""},
    {CODER, "{\"type\":\"string\",\"format\":\"date\"}", "2024-02-30", NULL},
    {CODER, "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":2},{\"type\":\"null\"}]}", "null",
     "null"},
    {CODER, "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":2},{\"type\":\"null\"}]}", "abc", NULL},
    {CODER, "{\"anyOf\":[{\"$ref\":\"#/$defs/colour\"},{\"type\":\"integer\"}]}", "red", "\"red\""},
    {CODER, "{\"anyOf\":[{\"$ref\":\"#/$defs/colour\"},{\"type\":\"integer\"}]}", "12", "12"},
    {CODER, "{\"anyOf\":[{\"$ref\":\"#/$defs/colour\"},{\"type\":\"integer\"}]}", "blue", NULL},
    {CODER, "{\"allOf\":[{\"type\":\"string\"},{\"maxLength\":2}]}", "abc", NULL},
    {TYPED, "{\"type\":\"object\"}", "object\">{\"x\":1}", "{\"x\":1}"},
    {TYPED, "{\"type\":\"object\"}", "string\">{\"x\":1}", NULL},
    {TYPED, "{\"anyOf\":[{\"const\":\"a\"},{\"type\":\"integer\"}]}", "string\">a", "\"a\""},
    {TYPED, "{\"anyOf\":[{\"const\":\"a\"},{\"type\":\"integer\"}]}", "string\">12", NULL},
    {TYPED, "{\"anyOf\":[{\"const\":\"a\"},{\"type\":\"integer\"}]}", "str\">12", "12"},
    {TYPED, "{\"anyOf\":[{\"const\":\"a\"},{\"type\":\"integer\"}]}", "strings\">12", "12"},
    {TYPED, "{\"type\":\"integer\"}", "abcdefghijkl\">12", "12"},
    {TYPED, "{\"type\":\"integer\"}", "abcdefghijklm\">12", NULL},
    {TYPED, "{\"type\":\"integer\"}", "stringabcdefg\">12", NULL},
    {QUOTES, "{\"type\":\"string\",\"maxLength\":2}", "<|q|>ab<|q|>", "\"ab\""},
    {QUOTES, "{\"type\":\"string\",\"maxLength\":2}", "<|q|>abc<|q|>", NULL},
    {QUOTES, "{\"anyOf\":[{\"type\":\"string\",\"pattern\":\"^a$\"},{\"type\":\"integer\"}]}", "12",
     "12"},
    {QUOTES, "{\"anyOf\":[{\"type\":\"string\",\"pattern\":\"^a$\"},{\"type\":\"integer\"}]}",
     "<|q|>b<|q|>", NULL},
    {QUOTES, "{\"enum\":[\"red\",\"green\"]}", "<|q|>red<|q|>", "\"red\""},
    {QUOTES, "{\"enum\":[\"a\",1,null]}", "<|q|>1<|q|>", NULL},
    {QUOTES, "{\"enum\":[\"a\",1,null]}", "1", "1"},
    {QUOTES, "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}]}", "12", "12"},
    {QUOTES, "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}]}", "<|q|>12<|q|>",
     "\"12\""},
    /* Within a quote of one byte there are escapes. */
    {PYTHON, "{\"type\":\"string\"}", "'it\\'s'", "\"it's\""},
    {PYTHON, "{\"type\":\"string\"}", "'a\\\\'", "\"a\\\\\""},
    {PYTHON, "{\"type\":\"string\"}", "\"it's\"", "\"it's\""},
    {PYTHON, "{\"type\":\"string\",\"maxLength\":2}", "\"ab\"", "\"ab\""},
    {PYTHON, "{\"type\":\"string\",\"maxLength\":2}", "'abc'", NULL},
    {PYTHON, "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", "null", "null"},
};

static void texts_are_told_by_their_schemas(void **state)
{
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct moe_chat *chat;
        struct moe_err err = {0};
        struct moe_buf got = {0};
        char answer[256], said[128];
        json_t *tools = json_pack("[{s:s,s:{s:s,s:{s:s,s:{s:o},s:i,s:{s:{s:[s,s]}}}}}]", "type",
                                  "function", "function", "name", "f", "parameters", "type",
                                  "object", "properties", "a", json_loads(texts[i].schema, 0, NULL),
                                  "minProperties", 1, "$defs", "colour", "enum", "red", "green");
        assert_non_null(tools);
        assert_ok(moe_chat_open(&chat, "t", texts[i].template, strlen(texts[i].template),
                                fixture.model->tokenizer, &err),
                  &err);
        snprintf(answer, sizeof answer,
                 strcmp(texts[i].template, CODER) == 0
                     ? "<tool_call>\n<function=f>\n<parameter=a>\n%s\n</parameter>\n"
                       "</function>\n</tool_call>"
                 : strcmp(texts[i].template, TYPED) == 0
                     ? "<call f><p name=\"a\" type=\"%s</p></call>"
                 : strcmp(texts[i].template, PYTHON) == 0 ? "<|call>[f(a=%s)]<call|>"
                                                          : "<|call>f{a:%s}<call|>",
                 texts[i].value);
        size_t n = grammar_takes(chat, tools, true, MOE_THOUGHT_NONE, false, answer);
        snprintf(said, sizeof said, "f({\"a\": %s})", texts[i].said ? texts[i].said : "");
        if ((n == strlen(answer)) != (texts[i].said != NULL))
            fail_msg("case %zu: %s\n  is taken up to %.*s", i, answer, (int)n, answer);
        if (texts[i].said && strcmp(read_answer(chat, tools, false, answer, 3, &got), said) != 0)
            fail_msg("case %zu: %s\n  reads as %s", i, answer, (const char *)got.data);
        static const char none[] = "<tool_call>\n<function=f>\n</function>";
        if (strcmp(texts[i].template, CODER) == 0)
            assert_true(grammar_takes(chat, tools, true, MOE_THOUGHT_NONE, false, none) <
                        strlen(none));
        moe_buf_release(&got);
        moe_chat_free(chat);
        json_decref(tools);
    }
}

/* Names of parameters that a form cannot write are refused, where it writes each by itself. */
static void names_that_forms_cannot_write_are_refused(void **state)
{
    static const struct {
        const char *template, *name;
        const char *why; /* NULL: it can */
    } names[] = {
        {CODER, "a b/c-\"d\"", NULL},
        {CODER, "", "it is empty"},
        {CODER, "a>b", "it holds what ends a name there"},
        {CODER, "a>", "it holds what ends a name there"},
        {QUOTES, "a>b", NULL},
        {QUOTES, "a:b", "it holds what ends a name there"},
        {HERMES, "", NULL},
        {HERMES, "a>b", NULL},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct moe_chat *chat;
        struct moe_allowance allowance = moe_allowance_usual();
        struct moe_grammar *g;
        struct moe_err err = {0};
        json_t *tools =
            json_pack("[{s:{s:s,s:{s:s,s:{s:{s:s}}}}}]", "function", "name", "f", "parameters",
                      "type", "object", "properties", names[i].name, "type", "string");
        const struct moe_calls_wanted wanted = {.tools = tools, .must = i % 2};
        assert_ok(moe_chat_open(&chat, "t", names[i].template, strlen(names[i].template),
                                fixture.model->tokenizer, &err),
                  &err);
        int status = moe_calls_grammar(&g, chat, &wanted, &allowance, &err);
        if (names[i].why)
            assert_fails(status, MOE_ERR_UNSUPPORTED, names[i].why, &err);
        else
            assert_ok(status, &err);
        moe_grammar_free(g);
        moe_chat_free(chat);
        json_decref(tools);
    }
}

/* A mark that names its parameter is that of this name, whatever bytes it has. */
static void names_have_any_bytes(void **state)
{
    struct moe_chat *chat;
    struct moe_err err = {0};
    struct moe_buf got = {0};
    assert_ok(moe_chat_open(&chat, "t", ELEMENTS, strlen(ELEMENTS), fixture.model->tokenizer, &err),
              &err);
    for (char c = 1; c < 8; c++) {
        char name[] = {'n', c, ' ', '1', 0}, answer[160], said[80];
        json_t *tools =
            json_pack("[{s:{s:s,s:{s:s,s:{s:{s:s}}}}}]", "function", "name", "f", "parameters",
                      "type", "object", "properties", name, "type", "string");
        snprintf(answer, sizeof answer,
                 "<|e|><call f><|e|><%s>a <|e|></n1 1> b <|e|></n%c1> c<|e|></%s><|e|></call>",
                 name, c, name);
        snprintf(said, sizeof said, "f({\"n\\u%04x 1\": \"a <|e|></n1 1> b <|e|></n\\u%04x1> c\"})",
                 c, c);
        for (size_t step = 1; step < 8; step++)
            assert_string_equal(read_answer(chat, tools, false, answer, step, &got), said);
        json_decref(tools);
    }
    moe_buf_release(&got);
    moe_chat_free(chat);
}

/* A function may have any name that its tool has, also one that begins like another's. */
static void functions_have_any_names(void **state)
{
    static const struct {
        const char *template, *answer;
    } forms[] = {
        {HERMES, "<tool_call>\n{\"name\": \"%s\", \"arguments\": {}}\n</tool_call>"},
        {CODER, "<tool_call>\n<function=%s>\n</function>\n</tool_call>"},
        {SECTION, "<|begin|><|call|>functions.%s:0<|args|>{}<|done|><|end|>"},
    };
    static const char *const names[] = {"find", "find:all", "find.a", "mcp:d\xc3\xa9j\xc3\xa0"};
    json_t *tools = json_array();
    struct moe_buf got = {0};
    for (size_t k = 0; k < 4; k++)
        json_array_append_new(tools, json_pack("{s:{s:s}}", "function", "name", names[k]));
    for (size_t i = 0; i < 12; i++) {
        struct moe_chat *chat;
        struct moe_err err = {0};
        char answer[160], said[80];
        const char *template = forms[i % 3].template, *name = names[i / 3];
        assert_ok(
            moe_chat_open(&chat, "t", template, strlen(template), fixture.model->tokenizer, &err),
            &err);
        snprintf(answer, sizeof answer, forms[i % 3].answer, name);
        snprintf(said, sizeof said, "%s({})", name);
        for (size_t step = 1; step < 8; step++)
            assert_string_equal(read_answer(chat, tools, false, answer, step, &got), said);
        snprintf(answer, sizeof answer, forms[i % 3].answer, "findall");
        snprintf(said, sizeof said, "%.6s", read_answer(chat, tools, false, answer, 3, &got));
        assert_string_equal(said, i % 3 == 2 ? "C:<|be" : "C:<too");
        moe_chat_free(chat);
    }
    moe_buf_release(&got);
    json_decref(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_read_in_any_pieces),
        cmocka_unit_test(calls_that_are_cut_off_are_no_content),
        cmocka_unit_test(calls_are_held_to_form_and_schema),
        cmocka_unit_test(texts_are_told_by_their_schemas),
        cmocka_unit_test(names_that_forms_cannot_write_are_refused),
        cmocka_unit_test(names_have_any_bytes),
        cmocka_unit_test(functions_have_any_names),
        cmocka_unit_test(published_templates_read_their_own_calls),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
