/*
 * An answer, read for thoughts and calls of tools (prompt/chat_answer.h), by templates of each form
 * of calls. The first byte chooses the template, the second how long the pieces are. In pieces it
 * says the same as whole; where it holds neither a thought nor a call it is content, byte for byte;
 * and no more is handed on than it has.
 */
/* Readers: prompt/chat_answer.c prompt/chat_calls.c */
#define _GNU_SOURCE
#include <jansson.h>

#include "mutate.h"
#include "prompt/chat.h"
#include "prompt/chat_answer.h"
#include "text/vocab.h"

#define HEAD                                                                                       \
    "{% if tools %}{{ tools|tojson }}{% endif %}{% for m in messages %}<{{ m.role }}>{% if "       \
    "m.reasoning_content %}<think>"                                                                \
    "{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
#define TAIL "<end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
#define CALLS(one) HEAD "{% for c in m.tool_calls %}" one "{% endfor %}" TAIL

static const char *const templates[] = {
    CALLS("<tool_call>{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ "
          "c.function.arguments|tojson }}}</tool_call>"),
    CALLS("<call><f={{ c.function.name }}>{% for k, v in c.function.arguments|items %}<p={{ k }}>\n"
          "{{ v if v is string else v|tojson }}\n</p>{% endfor %}</f></call>"),
    CALLS("<call>{{ c.function.name }}({% for k, v in c.function.arguments|items %}{% if "
          "loop.index > 1 %}, {% endif %}{{ k }}="
          "{% if v is string %}'{{ v }}'{% else %}{{ v }}{% endif %}{% endfor %})</call>"),
    HEAD "{% if m.tool_calls %}<calls>{% for c in m.tool_calls %}<c>{{ c.function.name }}:{{ "
         "loop.index0 }}<a>"
         "{{ c.function.arguments|tojson }}</c>{% endfor %}</calls>{% endif %}" TAIL,
    HEAD "{% if m.tool_calls %}{\"name\": \"{{ m.tool_calls[0].function.name }}\", \"parameters\": "
         "{{ m.tool_calls[0].function.arguments|tojson }}}{% endif %}" TAIL,
    HEAD TAIL,
    "{% if tools %}{{ tools|tojson }}{% endif %}{% for m in messages %}<{{ m.role }}>{% if "
    "m.reasoning_content %}<think>{{ m.reasoning_content }}</think><s>{% endif %}{% if "
    "m.tool_calls %}<c>{{ m.tool_calls[0].function.name }}:{{ m.tool_calls[0].function.arguments"
    "|tojson }}{% else %}<say>{{ m.content }}{% endif %}" TAIL,
    "{% macro xml(v) %}{% if v is mapping %}{% for k, w in v|items %}[<{{ k }}>{{ xml(w) }}[</{{ k "
    "}}>"
    "{% endfor %}{% elif v is string or v is number %}{{ v }}{% else %}{% for w in v %}[<item>"
    "{{ xml(w) }}[</item>{% endfor %}{% endif %}{% endmacro %}" CALLS(
        "<call {{ c.function.name }}>{{ xml(c.function.arguments) }}</call>"),
};
enum { N_TEMPLATES = sizeof templates / sizeof templates[0] };

static struct moe_chat *chats[N_TEMPLATES];
static json_t *tools;

static void load(void)
{
    static const char tokens[] =
        "{\"added_tokens\":[{\"id\":0,\"content\":\"<end>\",\"special\":true}],\"pre_tokenizer\":"
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"model\":{\"type\":\"BPE\",\"vocab\":"
        "{\"a\":1},\"merges\":[]}}";
    char dir[] = "/tmp/fuzz-answer-XXXXXX", path[64];
    struct moe_tokenizer *tok;
    struct moe_err err;
    if (tools)
        return;
    tools = json_loads(
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{"
        "\"properties\":{\"a\":{\"type\":"
        "\"string\"},\"b\":{\"type\":\"integer\"},\"c\":{\"type\":[\"array\",\"object\"]}}}}}]",
        0, NULL);
    if (!tools || !mkdtemp(dir))
        abort();
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    FILE *file = fopen(path, "w");
    if (!file || fputs(tokens, file) < 0 || fclose(file) != 0 ||
        moe_tokenizer_read_hf(&tok, dir, &err) != MOE_OK)
        abort();
    unlink(path);
    rmdir(dir);
    for (int i = 0; i < N_TEMPLATES; i++)
        if (moe_chat_open(&chats[i], "t", templates[i], strlen(templates[i]), tok, &err) != MOE_OK)
            abort();
    moe_tokenizer_free(tok);
}

/* All parts, adjacent ones of a kind as one; and how many bytes those hold that are the answer's
 * own. */
struct said {
    struct moe_buf text;
    int kind;
    uint64_t own;
    bool only_content;
};

static int note_part(void *ctx, const struct moe_answer_part *part)
{
    struct said *s = ctx;
    if (s->kind != (int)part->kind)
        moe_buf_printf(&s->text, "\1%d", (int)part->kind);
    moe_buf_append(&s->text, part->bytes, part->n);
    s->kind = (int)part->kind;
    s->only_content &= part->kind == MOE_PART_CONTENT;
    if (part->kind <= MOE_PART_CALL || part->kind == MOE_PART_CALL_FAILS)
        s->own += part->n;
    return s->text.failed ? MOE_ERR_MEMORY : MOE_OK;
}

static int read_answer(const struct moe_chat *chat, bool opened, const uint8_t *data, size_t n,
                       size_t step, struct said *said)
{
    struct moe_answer_reader *r;
    struct moe_err err;
    *said = (struct said){.kind = -1, .only_content = true};
    int status = moe_answer_reader_new(&r, chat, tools, opened, note_part, said, &err);
    for (size_t i = 0; i < n && status == MOE_OK; i += step)
        status =
            moe_answer_reader_add(r, (const char *)data + i, n - i < step ? n - i : step, &err);
    if (status == MOE_OK)
        status = moe_answer_reader_end(r, false, &err);
    moe_answer_reader_free(r);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct said whole, pieces;
    load();
    n = fuzz_begin(data, n);
    if (n < 2)
        return 0;
    const struct moe_chat *chat = chats[data[0] % N_TEMPLATES];
    bool opened = data[0] & 0x80;
    size_t step = 1 + data[1] % 16;
    data += 2;
    n -= 2;
    int status = FUZZ_TRY(read_answer(chat, opened, data, n, n + 1, &whole));
    int in_pieces = FUZZ_TRY(read_answer(chat, opened, data, n, step, &pieces));
    if ((status != MOE_OK || in_pieces != MOE_OK) && !fuzz_failed)
        abort();
    if (status == MOE_OK && in_pieces == MOE_OK) {
        bool same = whole.text.size == pieces.text.size &&
                    (whole.text.size == 0 ||
                     memcmp(whole.text.data, pieces.text.data, whole.text.size) == 0);
        if (!same || whole.own > 2 * n)
            abort();
        if (whole.only_content && !opened && whole.own != n && whole.own > 0 &&
            !memmem(data, n, "<think>", 7) && !memmem(data, n, "</think><s>", 11))
            abort();
    }
    moe_buf_release(&whole.text);
    moe_buf_release(&pieces.text);
    return 0;
}

FUZZ_MUTATE_TEXT
