#define _DEFAULT_SOURCE /* mkdtemp, setenv */
#include "../test.h"

#include <jansson.h>
#include <stdbool.h>

#include "base/file.h"
#include "text/chat.h"
#include "text/tokenizer.h"

/* The day of the expected texts. */
static const struct moe_chat_facts FACTS = {
    "<B>", "<E>", {.tm_year = 126, .tm_mon = 1, .tm_mday = 3}};

static const struct moe_chat_turn TURNS[] = {{MOE_CHAT_SYSTEM, "Be kind"},
                                             {MOE_CHAT_USER, " Hi\n"},
                                             {MOE_CHAT_ASSISTANT, "Yo "},
                                             {MOE_CHAT_USER, "Bye"}};

static void check_render(const char *name, const struct moe_chat_turn *turns, int n, bool prompt,
                         const char *want)
{
    struct moe_buf out = {0};
    const struct moe_chat_format *format = moe_chat_find(name);
    if (!format)
        fail_msg("there is no format '%s'", name);
    moe_chat_render(format, turns, n, prompt, &FACTS, &out, NULL);
    assert_false(out.failed);
    assert_string_equal(out.data ? (char *)out.data : "", want);
    moe_buf_release(&out);
}

static enum moe_chat_role role_of(const char *name)
{
    return *name == 's' ? MOE_CHAT_SYSTEM : *name == 'u' ? MOE_CHAT_USER : MOE_CHAT_ASSISTANT;
}

/* One conversation of the expected texts; false where the template refuses it. */
static bool check_text(const char *name, const json_t *conversation, const json_t *text)
{
    struct moe_chat_turn turns[8];
    const json_t *turn;
    size_t i;
    json_array_foreach(conversation, i, turn)
    {
        assert_true(i < N_ITEMS(turns));
        turns[i].role = role_of(json_string_value(json_object_get(turn, "role")));
        turns[i].text = json_string_value(json_object_get(turn, "content"));
    }
    if (json_is_null(text))
        return false;
    check_render(name, turns, (int)json_array_size(conversation), true, json_string_value(text));
    return true;
}

/* tests/fixtures/make_chat.py: what the published templates rendered. */
static void formats_render_as_their_templates(void **state)
{
    json_t *all = json_load_file("tests/fixtures/chat/expected.json", 0, NULL);
    const json_t *formats = json_object_get(all, "formats"), *format;
    const json_t *conversations = json_object_get(all, "conversations"), *conversation;
    size_t i, j, n_refused = 0;
    json_array_foreach(formats, i, format)
    {
        const char *name = json_string_value(json_object_get(format, "name"));
        const json_t *texts = json_object_get(format, "texts");
        assert_int_equal(json_array_size(texts), json_array_size(conversations));
        json_array_foreach(conversations, j, conversation) n_refused +=
            !check_text(name, conversation, json_array_get(texts, j));
    }
    /* Two templates refuse the six conversations with a system text. */
    assert_int_equal(n_refused, 2 * 6);
    for (int at = 0; moe_chat_at(at); at++) {
        bool found = false;
        json_array_foreach(formats, i, format) found |=
            strcmp(json_string_value(json_object_get(format, "name")),
                   moe_chat_name(moe_chat_at(at))) == 0;
        if (!found)
            fail_msg("no expected texts for %s", moe_chat_name(moe_chat_at(at)));
    }
    json_decref(all);
}

/* Where a template refuses a system text, it goes where a later one of the family puts it. */
static void a_refused_system_text_has_a_place(void **state)
{
    check_render("mistral", TURNS, 4, true,
                 "<B>[INST] Be kind\n\n Hi\n [/INST]Yo <E>[INST] Bye [/INST]");
    check_render("mistral-8x22b", TURNS, 2, true, "<B> [INST] Be kind\n\n Hi\n [/INST]");
}

/* The ranges hold the turns' texts, one after another, and nothing of the template. */
static void words_are_told_from_marks(void **state)
{
    struct moe_buf out = {0}, words = {0};
    moe_chat_render(moe_chat_find("chatml"), TURNS, 4, true, &FACTS, &out, &words);
    const struct moe_span *spans = (const struct moe_span *)(void *)words.data;
    assert_int_equal(words.size, 4 * sizeof *spans);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(spans[i].n, strlen(TURNS[i].text));
        assert_memory_equal(out.data + spans[i].at, TURNS[i].text, spans[i].n);
    }
    moe_buf_clear(&out);
    moe_buf_clear(&words);
    /* Folded and trimmed: the system text goes with the question. */
    moe_chat_render(moe_chat_find("llama2"), TURNS, 4, true, &FACTS, &out, &words);
    static const char *const want[] = {"<<SYS>>\nBe kind\n<</SYS>>\n\n Hi", "Yo", "Bye"};
    spans = (const struct moe_span *)(void *)words.data;
    assert_int_equal(words.size, 3 * sizeof *spans);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(spans[i].n, strlen(want[i]));
        assert_memory_equal(out.data + spans[i].at, want[i], spans[i].n);
    }
    moe_buf_release(&out);
    moe_buf_release(&words);
}

/* The marks of each template: a format is recognised by all of them, and by no fewer. */
static const struct {
    const char *name, *pieces[12];
} MARKS[] = {
    {"chatml",
     {"{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}",
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"}},
    {"qwen1.5",
     {"{{ '<|im_start|>system\nYou are a helpful assistant<|im_end|>\n' }}{% endif %}",
      "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}",
      "{{ '<|im_start|>assistant\n' }}"}},
    {"qwen1.5",
     {"{{ '<|im_start|>system\nYou are a helpful assistant<|im_end|>\n' }}{% endif %}",
      "{{'<|im_start|>' + message['role'] + '\n' + message['content']}}{% if (loop.last and "
      "add_generation_prompt) or not loop.last %}{{ '<|im_end|>' + '\n'}}{% endif %}",
      "{{ '<|im_start|>assistant\n' }}"}},
    {"qwen2",
     {"{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}",
      "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}",
      "{{ '<|im_start|>assistant\\n' }}"}},
    {"qwen2.5",
     {"{{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
      "assistant.<|im_end|>\\n' }}",
      "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}",
      "{{- '<|im_start|>assistant\\n' }}"}},
    {"qwen3",
     {"{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}",
      "{%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}",
      "{{- '<|im_start|>' + message.role + '\\n' + content }}", "{{- '<|im_start|>assistant\\n' }}",
      "{%- if enable_thinking is defined and enable_thinking is false %}"}},
    {"qwen3",
     {"{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}",
      "{%- set content = content.split('</think>')[-1].lstrip('\\n') %}",
      "{{- '<|im_start|>' + message.role + '\\n' + content }}",
      "{{- '<|im_start|>assistant\\n' }}"}},
    {"qwen3-thinking",
     {"{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}",
      "{%- set content = content.split('</think>')[-1].lstrip('\\n') %}",
      "{{- '<|im_start|>' + message.role + '\\n' + content }}",
      "{{- '<|im_start|>assistant\\n<think>\\n' }}"}},
    {"mistral",
     {"{{ bos_token }}", "{{ '[INST] ' + message['content'] + ' [/INST]' }}",
      "{{ message['content'] + eos_token}}"}},
    {"mistral-spaced",
     {"{{- bos_token }}",
      "{%- if loop.first and system_message is defined %}\n"
      "  {{- ' [INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}",
      "{{- ' [INST] ' + message['content'] + ' [/INST]' }}",
      "{{- ' ' + message['content'] + eos_token}}"}},
    {"mistral-8x22b",
     {"{{bos_token}}", "{{ ' [INST] ' + message['content'] + ' [/INST]' }}",
      "{{ ' ' + message['content'] + ' ' + eos_token}}"}},
    {"mistral-v3",
     {"{{- bos_token }}",
      "{%- if loop.last and system_message is defined %}\n"
      "  {{- \"[INST] \" + system_message + \"\\n\\n\" + message[\"content\"] + \"[/INST]\" }}",
      "{{- \"[INST] \" + message[\"content\"] + \"[/INST]\" }}",
      "{{- \" \" + message[\"content\"]|trim + eos_token}}"}},
    {"llama2",
     {"{% set system_message = false %}",
      "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] "
      "%}",
      "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}",
      "{{ ' '  + content.strip() + ' ' + eos_token }}"}},
    {"llama3",
     {"{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ "
      "message['content'] | trim + '<|eot_id|>' %}",
      "{% set content = bos_token + content %}",
      "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"}},
    {"llama3.1",
     {"{{- bos_token }}", "{%- set date_string = \"26 Jul 2024\" %}",
      "{%- set system_message = messages[0]['content']|trim %}",
      "{{- \"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}",
      "{{- \"Cutting Knowledge Date: December 2023\\n\" }}",
      "{{- \"Today Date: \" + date_string + \"\\n\\n\" }}",
      "{{- system_message }}\n{{- \"<|eot_id|>\" }}",
      "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ "
      "message['content'] | trim + '<|eot_id|>' }}",
      "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"}},
    {"llama3.2",
     {"{{- bos_token }}", "{%- set date_string = strftime_now(\"%d %b %Y\") %}",
      "{%- set system_message = messages[0]['content']|trim %}",
      "{{- \"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}",
      "{{- \"Cutting Knowledge Date: December 2023\\n\" }}",
      "{{- \"Today Date: \" + date_string + \"\\n\\n\" }}",
      "{{- system_message }}\n{{- \"<|eot_id|>\" }}",
      "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ "
      "message['content'] | trim + '<|eot_id|>' }}",
      "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"}},
    {"phi3",
     {"{% if message['role'] == 'system' and message['content'] %}"
      "{{'<|system|>\n' + message['content'] + '<|end|>\n'}}",
      "{{'<|user|>\n' + message['content'] + '<|end|>\n'}}",
      "{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}", "{{ '<|assistant|>\n' }}"}},
    {"deepseek",
     {"{{ bos_token }}", "{{ 'User: ' + message['content'] + '\\n\\n' }}",
      "{{ 'Assistant: ' + message['content'] + eos_token }}", "{{ message['content'] + '\\n\\n' }}",
      "{{ 'Assistant:' }}"}},
    {"minicpm",
     {"{{'<用户>' + message['content'].strip() + '<AI>'}}",
      "{% else %}{{message['content'].strip()}}"}},
    {"granite-3.0",
     {"{{- '<|start_of_role|>system<|end_of_role|>' + message['content'] + '<|end_of_text|>\n' }}",
      "{{- '<|start_of_role|>user<|end_of_role|>' + message['content'] + '<|end_of_text|>\n' }}",
      "{{- '<|start_of_role|>assistant<|end_of_role|>'  + message['content'] + "
      "'<|end_of_text|>\n' }}",
      "{{- '<|start_of_role|>assistant<|end_of_role|>' }}"}},
    {"granite-3.1",
     {"{%- set system_message = \"Knowledge Cutoff Date: April 2024.\nToday's Date: \" + "
      "strftime_now('%B %d, %Y') + \".\nYou are Granite, developed by IBM.\" %}",
      "{%- else %}\n{%- set system_message = system_message + \" You are a helpful AI "
      "assistant.\" %}",
      "{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\n' }}",
      "{{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + "
      "'<|end_of_text|>\n' }}",
      "{{- '<|start_of_role|>assistant' }}", "{{- '<|end_of_role|>' }}"}},
    {"gpt-oss",
     {"{%- set model_identity = \"You are ChatGPT, a large language model trained by OpenAI.\" %}"
      "{{- model_identity + \"\\n\" }}",
      "{{- \"Knowledge cutoff: 2024-06\\n\" }}",
      "{{- \"Current date: \" + strftime_now(\"%Y-%m-%d\") + \"\\n\\n\" }}",
      "{%- set reasoning_effort = \"medium\" %}",
      "{{- \"# Valid channels: analysis, commentary, final. Channel must be included for every "
      "message.\" }}",
      "{{- \"<|start|>system<|message|>\" }}", "{{- \"<|start|>developer<|message|>\" }}",
      "{{- \"# Instructions\\n\\n\" }}",
      "{{- \"<|start|>assistant<|channel|>final<|message|>\" + message.content + \"<|end|>\" }}",
      "{{- \"<|start|>user<|message|>\" + message.content + \"<|end|>\" }}"}},
    {"zephyr",
     {"{{ '<|user|>\n' + message['content'] + eos_token }}\n",
      "{{ '<|system|>\n' + message['content'] + eos_token }}\n",
      "{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n", "{{ '<|assistant|>' }}\n"}},
    {"tulu",
     {"{{ bos_token }}", "{{ '<|system|>\\n' + message['content'] + '\\n' }}",
      "{{ '<|user|>\\n' + message['content'] + '\\n' }}",
      "{{ '<|assistant|>\\n'  + message['content'] + eos_token + '\\n' }}",
      "{{ '<|assistant|>\\n' }}"}},
    {"tulu",
     {"{{ bos_token }}", "{{ '<|system|>\n' + message['content'] }}\n",
      "{{ '<|user|>\n' + message['content'] }}\n",
      "{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n", "{{ '<|assistant|>' }}\n"}},
};

/* The pieces of MARKS[m] but number `without`, in one text. */
static void join_marks(size_t m, int without, struct moe_buf *out)
{
    moe_buf_clear(out);
    moe_buf_text(out, "{% for message in messages %}\n");
    for (int i = 0; MARKS[m].pieces[i]; i++)
        if (i != without)
            moe_buf_text(out, MARKS[m].pieces[i]);
    moe_buf_text(out, "{% endfor %}");
    assert_false(out->failed);
}

static bool is_recognised_as(const struct moe_buf *jinja, const char *name)
{
    const struct moe_chat_format *format = moe_chat_recognise((const char *)jinja->data);
    return format && strcmp(moe_chat_name(format), name) == 0;
}

static void templates_are_recognised(void **state)
{
    struct moe_buf jinja = {0};
    for (size_t m = 0; m < N_ITEMS(MARKS); m++) {
        join_marks(m, -1, &jinja);
        if (!is_recognised_as(&jinja, MARKS[m].name))
            fail_msg("%s is not recognised: %s", MARKS[m].name, (char *)jinja.data);
        for (int i = 0; MARKS[m].pieces[i]; i++) {
            join_marks(m, i, &jinja);
            if (is_recognised_as(&jinja, MARKS[m].name))
                fail_msg("%s is recognised without %s", MARKS[m].name, MARKS[m].pieces[i]);
        }
    }
    for (int at = 0; moe_chat_at(at); at++) {
        size_t m = 0;
        while (m < N_ITEMS(MARKS) && strcmp(MARKS[m].name, moe_chat_name(moe_chat_at(at))) != 0)
            m++;
        if (m == N_ITEMS(MARKS))
            fail_msg("no marks for %s", moe_chat_name(moe_chat_at(at)));
    }
    moe_buf_release(&jinja);
}

/* Templates of other families, and known ones with changes. */
static void other_templates_are_not_guessed(void **state)
{
    static const char turn[] =
        "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}";
    static const char *const unknown[] = {
        "",
        "{{ message['content'] }}",
        /* Mistral-7B-Instruct-v0.1: a space after eos */
        "{{ bos_token }}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
        "{{ message['content'] + eos_token + ' ' }}",
        /* Phi-4 */
        "{{ '<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>' }}"
        "{{ '<|im_start|>assistant<|im_sep|>' }}",
        /* Phi-3-mini: bos, no system turn */
        "{{ bos_token }}{{'<|user|>\n' + message['content'] + '<|end|>\n<|assistant|>\n'}}"
        "{{message['content'] + '<|end|>\n'}}",
        /* GLM-4 */
        "[gMASK]<sop>{{ '<|user|>\\n' }}{{ '<|assistant|>\\n' }}",
        /* DeepSeek-V3 */
        "{{'<\xef\xbd\x9cUser\xef\xbd\x9c>' + message['content']}}",
        /* Unfinished Jinja */
        "{{",
        "{%",
        "{#",
        "{",
        "{{ '",
        "{{ 'a\\",
        "{{ x['",
        "{%- -",
        "{{-}",
        "{#-#",
    };
    static const char *const additions[] = {
        "{{ '<|im_start|>system\\nYou are Hermes.<|im_end|>\\n' }}",
        "{% set system_message = 'You are kind.' %}",
        "{{ bos_token }}",
        "{{ '<think>\\n' }}",
    };
    for (size_t i = 0; i < N_ITEMS(unknown); i++)
        if (moe_chat_recognise(unknown[i]))
            fail_msg("recognised: %s", unknown[i]);
    for (size_t i = 0; i < N_ITEMS(additions); i++) {
        struct moe_buf jinja = {0};
        moe_buf_printf(&jinja, "%s%s{{ '<|im_start|>assistant\\n' }}", additions[i], turn);
        if (moe_chat_recognise((char *)jinja.data))
            fail_msg("recognised: %s", (char *)jinja.data);
        moe_buf_release(&jinja);
    }
}

/* Two spellings of one template (zephyr's), and near misses that print something else. */
static void spelling_does_not_matter(void **state)
{
#define SYSTEM "{{'<|system|>\\n'+message.content+eos_token}}\n"
#define ASSISTANT "{{'<|assistant|>\\n'+message.content+eos_token}}\n"
    static const char *const same[] = {
        "{{'<|user|>\\n'+message.content+eos_token}}\n" SYSTEM ASSISTANT "{{'<|assistant|>'}}\n",
        "{# a comment -#}\n  {% if x %}\n"
        "{{ \"<|user|>\" + '\\n' + message[\"content\"] + eos_token }}\n  {% endif %}\n" SYSTEM
        "{%+ if x %}" ASSISTANT "{% set x = 1 -%}\n\n  {{ '<|assistant|>' }}\n  {% if x %}",
    };
    static const char *const other[] = {
        "{{'<|user|>\\n'+message.content+eos_token -}}\n" SYSTEM ASSISTANT "{{'<|assistant|>'}}\n",
        "{{'<|user|>\\n'+message.content+eos_token}} \n" SYSTEM ASSISTANT "{{'<|assistant|>'}}\n",
        "{{'<|user|>\\n'+message.content+eos_token}}\n" SYSTEM ASSISTANT
        "{{'<|assistant|>'}}{% if x %}\n{% endif %}",
        "{{'<|user|>\\n'+message.content+eos_token}}\n" SYSTEM ASSISTANT
        "{{'<|assistant|>'}}\n{%- if x %}",
        "{{'<|user|>\\\\n'+message.content+eos_token}}\n" SYSTEM ASSISTANT "{{'<|assistant|>'}}\n",
    };
#undef SYSTEM
#undef ASSISTANT
    for (size_t i = 0; i < N_ITEMS(same); i++) {
        const struct moe_chat_format *format = moe_chat_recognise(same[i]);
        assert_true(format && strcmp(moe_chat_name(format), "zephyr") == 0);
    }
    for (size_t i = 0; i < N_ITEMS(other); i++)
        assert_null(moe_chat_recognise(other[i]));
}

static void the_table_is_sound(void **state)
{
    const struct moe_chat_format *format;
    for (int n = 0; (format = moe_chat_at(n)); n++) {
        assert_ptr_equal(moe_chat_find(moe_chat_name(format)), format);
        int stops = 0;
        while (moe_chat_stops(format)[stops])
            assert_true(++stops < 4);
    }
    assert_null(moe_chat_at(-1));
    assert_null(moe_chat_find("chatml2"));
    assert_string_equal(moe_chat_stops(moe_chat_find("llama3"))[0], "<|eot_id|>");
}

static void odd_conversations(void **state)
{
    const struct moe_chat_turn empty[] = {{MOE_CHAT_SYSTEM, ""}, {MOE_CHAT_USER, ""}};
    check_render("phi3", empty, 2, true, "<|user|>\n<|end|>\n<|assistant|>\n");
    check_render("chatml", empty, 1, false, "<|im_start|>system\n<|im_end|>\n");
    check_render("llama3", empty, 0, false, "<B>");
    check_render("qwen2", empty, 0, true, "<|im_start|>assistant\n");
    /* A folded system text waits for its user turn. */
    check_render("mistral", empty, 1, true, "<B>");
    check_render("mistral-v3", empty, 1, true, "<B>");
    const struct moe_chat_turn white[] = {{MOE_CHAT_USER, " \n\t "}};
    check_render("llama2", white, 1, true, "<B>[INST]  [/INST]");
    check_render("llama2", empty, 2, true, "<B>[INST] <<SYS>>\n\n<</SYS>> [/INST]");
    /* Only answers hold thoughts; a byte that is no UTF-8 is not white. */
    const struct moe_chat_turn odd[] = {{MOE_CHAT_USER, "a</think>b"},
                                        {MOE_CHAT_ASSISTANT, " \xff c</think>"}};
    check_render("qwen3", odd, 2, false,
                 "<|im_start|>user\na</think>b<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n");
    check_render("minicpm", odd, 2, false, "<用户>a</think>b<AI>\xff c</think>");
}

static void the_date_can_be_given(void **state)
{
    assert_int_equal(setenv("SOURCE_DATE_EPOCH", "951782400", 1), 0);
    struct tm day = moe_chat_today();
    assert_int_equal(day.tm_year, 100);
    assert_int_equal(day.tm_mon, 1);
    assert_int_equal(day.tm_mday, 29);
    /* What is not a number counts as absent. */
    assert_int_equal(setenv("SOURCE_DATE_EPOCH", "yesterday", 1), 0);
    assert_true(moe_chat_today().tm_year >= 124);
    assert_int_equal(unsetenv("SOURCE_DATE_EPOCH"), 0);
    assert_true(moe_chat_today().tm_year >= 124);
}

static void chat_templates_are_found(void **state)
{
    struct moe_buf out = {0};
    struct moe_err err = {0};
    assert_ok(moe_chat_read_template("tests/fixtures/tokenizers/qwen2", &out, &err), &err);
    assert_string_equal((char *)out.data, "{{ '<|im_start|>' }}");
    moe_buf_clear(&out);
    assert_ok(moe_chat_read_template("tests/models/tiny-moe", &out, &err), &err);
    assert_int_equal(out.size, 0);

    char dir[] = "/tmp/moe-test-XXXXXX", config[64], jinja[64];
    assert_non_null(mkdtemp(dir));
    snprintf(config, sizeof config, "%s/tokenizer_config.json", dir);
    snprintf(jinja, sizeof jinja, "%s/chat_template.jinja", dir);
    assert_ok(moe_chat_read_template(dir, &out, &err), &err);
    assert_int_equal(out.size, 0);
    static const char list[] = "{\"chat_template\":[{\"name\":\"tool\",\"template\":\"T\"},"
                               "{\"name\":\"default\",\"template\":\"D\"}]}";
    assert_ok(moe_file_write_all(config, list, strlen(list), &err), &err);
    assert_ok(moe_chat_read_template(dir, &out, &err), &err);
    assert_string_equal((char *)out.data, "D");
    moe_buf_clear(&out);
    assert_ok(moe_file_write_all(jinja, "J", 1, &err), &err);
    assert_ok(moe_chat_read_template(dir, &out, &err), &err);
    assert_string_equal((char *)out.data, "J");
    remove(jinja);
    assert_ok(moe_file_write_all(config, "{", 1, &err), &err);
    assert_fails(moe_chat_read_template(dir, &out, &err), MOE_ERR_FORMAT, "tokenizer_config", &err);
    remove(config);
    remove(dir);
    moe_buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_render_as_their_templates),
        cmocka_unit_test(a_refused_system_text_has_a_place),
        cmocka_unit_test(words_are_told_from_marks),
        cmocka_unit_test(templates_are_recognised),
        cmocka_unit_test(other_templates_are_not_guessed),
        cmocka_unit_test(spelling_does_not_matter),
        cmocka_unit_test(the_table_is_sound),
        cmocka_unit_test(odd_conversations),
        cmocka_unit_test(the_date_can_be_given),
        cmocka_unit_test(chat_templates_are_found),
    };
    return cmocka_run_group_tests_name("chat", tests, NULL, NULL);
}
