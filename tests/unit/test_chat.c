#define _DEFAULT_SOURCE /* mkdtemp */
#include "../test.h"

#include <stdbool.h>

#include "base/file.h"
#include "model/chat.h"
#include "model/tokenizer.h"

/* Recognition marks in their surroundings, and what Jinja2 3.1 with transformers' settings
 * (trim_blocks, lstrip_blocks) renders from the families' templates for the conversations below,
 * bos "<B>" and eos "<E>". */
static const struct {
    const char *name;
    const char *mark; /* a piece of the template that is enough to recognise it, or NULL */
    const char *plain, *with_system;
} CASES[] = {
    {"chatml",
     "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}",
     "<|im_start|>user\n Hi\n<|im_end|>\n<|im_start|>assistant\nYo <|im_end|>\n"
     "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
     "<|im_start|>system\nBe kind<|im_end|>\n<|im_start|>user\n Hi\n<|im_end|>\n"
     "<|im_start|>assistant\nYo <|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
     "<|im_start|>assistant\n"},
    {"qwen2",
     "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}"
     "{{'<|im_start|>' + message['role'] + '\\n'",
     "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
     "<|im_start|>user\n Hi\n<|im_end|>\n<|im_start|>assistant\nYo <|im_end|>\n"
     "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
     "<|im_start|>system\nBe kind<|im_end|>\n<|im_start|>user\n Hi\n<|im_end|>\n"
     "<|im_start|>assistant\nYo <|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
     "<|im_start|>assistant\n"},
    /* This template refuses a system turn; ours goes where the later one puts it. */
    {"mistral",
     "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
     "{{ message['content'] + eos_token}}",
     "<B>[INST]  Hi\n [/INST]Yo <E>[INST] Bye [/INST]",
     "<B>[INST] Be kind\n\n Hi\n [/INST]Yo <E>[INST] Bye [/INST]"},
    {"mistral-spaced", "{{- \" [INST] \" + message[\"content\"] + \" [/INST]\" }}",
     "<B> [INST]  Hi\n [/INST] Yo <E> [INST] Bye [/INST]",
     "<B> [INST] Be kind\n\n Hi\n [/INST] Yo <E> [INST] Bye [/INST]"},
    {"llama2",
     "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
     "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}",
     "<B>[INST] Hi [/INST] Yo <E><B>[INST] Bye [/INST]",
     "<B>[INST] <<SYS>>\nBe kind\n<</SYS>>\n\n Hi [/INST] Yo <E><B>[INST] Bye [/INST]"},
    {"llama3",
     "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ "
     "message['content'] | trim + '<|eot_id|>' %}",
     "<B><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
     "<|start_header_id|>assistant<|end_header_id|>\n\nYo<|eot_id|>"
     "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
     "<|start_header_id|>assistant<|end_header_id|>\n\n",
     "<B><|start_header_id|>system<|end_header_id|>\n\nBe kind<|eot_id|>"
     "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
     "<|start_header_id|>assistant<|end_header_id|>\n\nYo<|eot_id|>"
     "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
     "<|start_header_id|>assistant<|end_header_id|>\n\n"},
    {"phi3", "{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{{'<|assistant|>\\n' + ",
     "<|user|>\n Hi\n<|end|>\n<|assistant|>\nYo <|end|>\n<|user|>\nBye<|end|>\n<|assistant|>\n",
     "<|system|>\nBe kind<|end|>\n<|user|>\n Hi\n<|end|>\n<|assistant|>\nYo <|end|>\n"
     "<|user|>\nBye<|end|>\n<|assistant|>\n"},
    {"deepseek",
     "{{ 'User: ' + message['content'] + '\\n\\n' }}{{ 'Assistant: ' + message['content'] + "
     "eos_token }}",
     "<B>User:  Hi\n\n\nAssistant: Yo <E>User: Bye\n\nAssistant:",
     "<B>Be kind\n\nUser:  Hi\n\n\nAssistant: Yo <E>User: Bye\n\nAssistant:"},
    {"zephyr",
     "{{ '<|user|>\\n' + message['content'] + eos_token }}\n"
     "{{ '<|assistant|>\\n'  + message['content'] + eos_token }}",
     "<|user|>\n Hi\n<E>\n<|assistant|>\nYo <E>\n<|user|>\nBye<E>\n<|assistant|>\n",
     "<|system|>\nBe kind<E>\n<|user|>\n Hi\n<E>\n<|assistant|>\nYo <E>\n<|user|>\nBye<E>\n"
     "<|assistant|>\n"},
    {"tulu",
     "{{ bos_token }}{{ '<|user|>\\n' + message['content'] }}\n"
     "{{ '<|assistant|>\\n'  + message['content'] + eos_token }}",
     "<B><|user|>\n Hi\n\n<|assistant|>\nYo <E>\n<|user|>\nBye\n<|assistant|>\n",
     "<B><|system|>\nBe kind\n<|user|>\n Hi\n\n<|assistant|>\nYo <E>\n<|user|>\nBye\n"
     "<|assistant|>\n"},
};

static const struct moe_chat_turn TURNS[] = {{MOE_CHAT_SYSTEM, "Be kind"},
                                             {MOE_CHAT_USER, " Hi\n"},
                                             {MOE_CHAT_ASSISTANT, "Yo "},
                                             {MOE_CHAT_USER, "Bye"}};

static void check_render(const char *name, const struct moe_chat_turn *turns, int n, int first,
                         bool prompt, const char *want)
{
    struct moe_buf out = {0};
    const struct moe_chat_format *format = moe_chat_find(name);
    assert_non_null(format);
    moe_chat_render(format, turns, n, first, prompt, "<B>", "<E>", &out, NULL);
    assert_false(out.failed);
    assert_string_equal(out.data ? (char *)out.data : "", want);
    moe_buf_release(&out);
}

static void formats_render_as_their_templates(void **state)
{
    for (size_t i = 0; i < N_ITEMS(CASES); i++) {
        check_render(CASES[i].name, TURNS + 1, 3, 0, true, CASES[i].plain);
        check_render(CASES[i].name, TURNS, 4, 0, true, CASES[i].with_system);
    }
}

/* What the turns from any one on add is what the whole has more than the turns before. */
static void continuing_gives_the_rest(void **state)
{
    const struct moe_chat_format *format;
    for (int i = 0; (format = moe_chat_at(i)); i++) {
        for (int from = 0; from <= 1; from++) {
            for (int first = 1; first < 4 - from; first++) {
                struct moe_buf joined = {0}, whole = {0};
                const struct moe_chat_turn *turns = TURNS + from;
                moe_chat_render(format, turns, first, 0, false, "<B>", "<E>", &joined, NULL);
                moe_chat_render(format, turns, 4 - from, first, true, "<B>", "<E>", &joined, NULL);
                moe_chat_render(format, turns, 4 - from, 0, true, "<B>", "<E>", &whole, NULL);
                assert_string_equal((char *)joined.data, (char *)whole.data);
                moe_buf_release(&joined);
                moe_buf_release(&whole);
            }
        }
    }
}

/* The ranges hold the turns' texts, one after another, and nothing of the template. */
static void words_are_told_from_marks(void **state)
{
    struct moe_buf out = {0}, words = {0};
    moe_chat_render(moe_chat_find("chatml"), TURNS, 4, 0, true, "<B>", "<E>", &out, &words);
    const struct moe_span *spans = (const struct moe_span *)(void *)words.data;
    assert_int_equal(words.size, 4 * sizeof *spans);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(spans[i].n, strlen(TURNS[i].text));
        assert_memory_equal(out.data + spans[i].at, TURNS[i].text, spans[i].n);
    }
    moe_buf_clear(&out);
    moe_buf_clear(&words);
    /* Folded and trimmed: the system text goes with the question. */
    moe_chat_render(moe_chat_find("llama2"), TURNS, 4, 0, true, "<B>", "<E>", &out, &words);
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

static void templates_are_recognised_by_their_marks(void **state)
{
    for (size_t i = 0; i < N_ITEMS(CASES); i++) {
        const struct moe_chat_format *format = moe_chat_recognise(CASES[i].mark);
        if (!format)
            fail_msg("%s is not recognised", CASES[i].name);
        assert_string_equal(moe_chat_name(format), CASES[i].name);
    }
    static const char *const unknown[] = {
        "",
        "{{ message['content'] }}",
        /* Mistral's third version: no space before [/INST], system text in the last turn */
        "{{- \"[INST] \" + message[\"content\"] + \"[/INST]\" }}",
        /* Mistral-7B-Instruct-v0.1: a space behind eos */
        "{{ '[INST] ' + message['content'] + ' [/INST]' }}{{ message['content'] + eos_token + ' ' "
        "}}",
        /* Phi-4 */
        "{{ '<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>' }}",
        /* GLM-4 */
        "[gMASK]<sop>{{ '<|user|>\\n' }}{{ '<|assistant|>\\n' }}",
        /* DeepSeek-V3 */
        "{{'<\xef\xbd\x9cUser\xef\xbd\x9c>' + message['content']}}",
    };
    for (size_t i = 0; i < N_ITEMS(unknown); i++)
        assert_null(moe_chat_recognise(unknown[i]));
}

static void the_table_is_sound(void **state)
{
    static const char *const promised[] = {"chatml", "mistral",  "llama2", "llama3",
                                           "phi3",   "deepseek", "zephyr"};
    const struct moe_chat_format *format;
    int n = 0;
    for (; (format = moe_chat_at(n)); n++) {
        assert_ptr_equal(moe_chat_find(moe_chat_name(format)), format);
        int stops = 0;
        while (moe_chat_stops(format)[stops])
            assert_true(++stops < 4);
    }
    assert_int_equal(n, N_ITEMS(CASES));
    assert_null(moe_chat_at(-1));
    assert_null(moe_chat_find("chatml2"));
    for (size_t i = 0; i < N_ITEMS(promised); i++)
        assert_non_null(moe_chat_find(promised[i]));
    assert_string_equal(moe_chat_stops(moe_chat_find("llama3"))[0], "<|eot_id|>");
}

static void odd_conversations(void **state)
{
    const struct moe_chat_turn empty[] = {{MOE_CHAT_SYSTEM, ""}, {MOE_CHAT_USER, ""}};
    check_render("phi3", empty, 2, 0, true, "<|user|>\n<|end|>\n<|assistant|>\n");
    check_render("chatml", empty, 1, 0, false, "<|im_start|>system\n<|im_end|>\n");
    check_render("llama3", empty, 0, 0, false, "<B>");
    check_render("qwen2", empty, 0, 0, true, "<|im_start|>assistant\n");
    /* A folded system text waits for its user turn. */
    check_render("mistral", empty, 1, 0, true, "<B>");
    const struct moe_chat_turn white[] = {{MOE_CHAT_USER, " \n\t "}};
    check_render("llama2", white, 1, 0, true, "<B>[INST]  [/INST]");
    check_render("llama2", white, 1, 1, true, "");
    check_render("llama2", empty, 2, 0, true, "<B>[INST] <<SYS>>\n\n<</SYS>> [/INST]");
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
        cmocka_unit_test(continuing_gives_the_rest),
        cmocka_unit_test(words_are_told_from_marks),
        cmocka_unit_test(templates_are_recognised_by_their_marks),
        cmocka_unit_test(the_table_is_sound),
        cmocka_unit_test(odd_conversations),
        cmocka_unit_test(chat_templates_are_found),
    };
    return cmocka_run_group_tests_name("chat", tests, NULL, NULL);
}
