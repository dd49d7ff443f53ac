/*
 * What reading costs: schemas, GBNF, patterns, templates, requests and chat histories, each within
 * a small allowance. However an input is made, reading it ends soon and holds little memory, by the
 * processor's clock and by what is allocated, not only by what it counts itself.
 *
 * The first byte says what the rest is. Short inputs become long ones: the byte REPEAT, a number of
 * times (u16) and a number of bytes (u8) stand for as many repetitions of the bytes before them, in
 * which '%' is the number of the repetition.
 */
/* Readers: grammar/schema*.c grammar/gbnf.c prompt/jinja_*.c serve/request.c */
#define _GNU_SOURCE
#include <jansson.h>
#include <time.h>

#include "grammar/grammar.h"
#include "mutate.h"
#include "prompt/jinja.h"
#include "serve/request.h"

enum {
    REPEAT = 0x1e,
    /* A tenth of a server's: what has no bound passes these too, and more inputs are tried. */
    MOST_TEXT = 32 << 10,
    STEPS = 20 * 1000,
    BYTES = 512 << 10,
    /* Beside its allowance: the text's tree, and tables of a fixed size. Each byte of a template
     * may be a sign: a node of 160 bytes and a token of 48, held up to four times while their array
     * grows within the parser's heap, which is bounded too (256 MiB, for 4 MiB of template). */
    OF_BYTE = 96,
    OF_TEMPLATES_BYTE = 160 + 4 * 48,
    FIXED = 4 << 20,
};
/* Of a processor, far above what any machine takes, sanitized or not: what has no bound takes more.
 */
enum { MOST_MILLISECONDS = 500 };

static uint8_t text[MOST_TEXT + 1];

static size_t expand(const uint8_t *data, size_t n)
{
    size_t at = 0;
    for (size_t i = 0; i < n && at < MOST_TEXT; i++) {
        if (data[i] != REPEAT || i + 3 >= n) {
            text[at++] = data[i];
            continue;
        }
        size_t times = data[i + 1] * 256u + data[i + 2], length = data[i + 3];
        uint8_t piece[256];
        i += 3;
        length = length < at ? length : at;
        at -= length;
        memcpy(piece, text + at, length);
        for (size_t k = 0; k < times && at + length + 8 < MOST_TEXT; k++)
            for (size_t b = 0; b < length && at + 8 < MOST_TEXT; b++)
                if (piece[b] == '%')
                    at += (size_t)snprintf((char *)text + at, 8, "%zu", k);
                else
                    text[at++] = piece[b];
    }
    text[at] = '\0';
    return at;
}

/* ---- Each kind ---- */

static struct moe_allowance allowance(void)
{
    return (struct moe_allowance){.max_steps = STEPS, .max_bytes = BYTES};
}

static void read_schema(size_t n)
{
    struct moe_allowance a = allowance();
    struct moe_grammar *g;
    struct json_t *schema;
    struct moe_err err;
    if (moe_json_parse(&schema, "fuzz", text, n, 32 << 20, &err) != MOE_OK)
        return;
    if (moe_grammar_of_schema(&g, "fuzz", schema, &a, &err) == MOE_OK)
        moe_grammar_free(g);
    moe_json_free(schema);
}

static void read_gbnf(size_t n)
{
    struct moe_allowance a = allowance();
    struct moe_grammar *g;
    struct moe_err err;
    if (moe_grammar_parse(&g, "fuzz", text, n, &a, &err) == MOE_OK)
        moe_grammar_free(g);
}

static void read_pattern(size_t n)
{
    struct moe_allowance a = allowance();
    struct moe_grammar *g;
    struct moe_err err;
    json_t *schema = json_pack("{s:s%}", "pattern", (const char *)text, n);
    if (schema && moe_grammar_of_schema(&g, "fuzz", schema, &a, &err) == MOE_OK)
        moe_grammar_free(g);
    json_decref(schema);
}

static void read_request(size_t n)
{
    struct moe_allowance a = allowance();
    struct moe_request *r;
    struct moe_err err;
    enum moe_request_kind kind = n % 2 ? MOE_REQUEST_CHAT : MOE_REQUEST_TEXT;
    if (moe_request_parse(&r, kind, text, n, &a, &err) == MOE_OK)
        moe_request_free(r);
}

static void render(const char *template, size_t n, const json_t *messages)
{
    const struct moe_jinja_variable variables[] = {
        {"messages", messages, true},
        {"tools", messages, true},
        {"add_generation_prompt", json_true(), false},
    };
    const struct moe_jinja_input in = {.variables = variables,
                                       .n_variables = sizeof variables / sizeof variables[0],
                                       .limits = {.steps = STEPS, .memory = BYTES}};
    struct moe_jinja *t;
    struct moe_buf out = {0}, words = {0};
    struct moe_err err;
    if (moe_jinja_parse(&t, "fuzz", template, n, &err) != MOE_OK)
        return;
    moe_jinja_render(t, &in, &out, &words, &err);
    moe_buf_release(&out);
    moe_buf_release(&words);
    moe_jinja_free(t);
}

/* A template, rendered for a conversation of 64 messages. */
static void read_template(size_t n)
{
    static json_t *messages;
    if (!messages) {
        messages = json_array();
        for (int i = 0; i < 64; i++)
            json_array_append_new(messages,
                                  json_pack("{s:s,s:s}", "role", i % 2 ? "assistant" : "user",
                                            "content", "What is <b>1 + 1</b>?\n\n Two. "));
    }
    render((const char *)text, n, messages);
}

/* A history, rendered by what templates do with one. */
static void read_history(size_t n)
{
    static const char template[] =
        "{%- set ns = namespace(last=messages|length - 1, text='') %}"
        "{%- for m in messages[::-1] %}{%- if m.role == 'user' and not m.content is none %}"
        "{%- set ns.last = messages|length - 1 - loop.index0 %}{%- endif %}{%- endfor %}"
        "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
        "{%- if m.content is string %}{%- set c = m.content.split('</think>')[-1].lstrip('\\n') %}"
        "{{ c | trim | replace('\\n\\n', '\\n') }}{%- set ns.text = ns.text + c %}"
        "{%- elif m.content is iterable %}{%- for p in m.content %}{{ p.text }}{%- endfor %}"
        "{%- endif %}{%- for call in m.tool_calls or [] %}{{ call.function.name | upper }}"
        "{{ call | tojson(indent=2) }}{%- for k, v in (call.function.arguments or {}) | items %}"
        "<parameter={{ k }}>{{ v if v is string else v | tojson }}</parameter>{%- endfor %}"
        "{%- endfor %}{%- if m.content in ns.text %}x{%- endif %}<|im_end|>\n{%- endfor %}"
        "{{ messages | map(attribute='role') | unique | list | join(', ') }}"
        "{{ messages | selectattr('role', 'equalto', 'tool') | list | length }}"
        "{{ tools | tojson }}{{ messages | groupby('role') | list | length }}";
    struct json_t *messages;
    struct moe_err err;
    if (moe_json_parse(&messages, "fuzz", text, n, 32 << 20, &err) != MOE_OK)
        return;
    render(template, sizeof template - 1, messages);
    moe_json_free(messages);
}

static void (*const kinds[])(size_t n) = {read_schema,   read_gbnf,    read_pattern,
                                          read_template, read_request, read_history};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

/* ---- Cost ---- */

static double thread_milliseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    n = fuzz_begin(data, n);
    if (n == 0)
        return 0;
    size_t length = expand(data + 1, n - 1);
    double began = thread_milliseconds();
    uint64_t held = fuzz_bytes;
    fuzz_peak = fuzz_bytes;
    kinds[data[0] % N_KINDS](length);
    double took = thread_milliseconds() - began;
    bool is_template = kinds[data[0] % N_KINDS] == read_template;
    uint64_t peak = fuzz_peak - held;
    uint64_t most = BYTES + FIXED + (is_template ? OF_TEMPLATES_BYTE : OF_BYTE) * (uint64_t)length;
    if (took > MOST_MILLISECONDS || peak > most) {
        fprintf(stderr, "kind %d, %zu bytes: %.0f ms (%d), %llu bytes at a time (%llu)\n",
                data[0] % N_KINDS, length, took, MOST_MILLISECONDS, (unsigned long long)peak,
                (unsigned long long)most);
        abort();
    }
    return 0;
}

FUZZ_MUTATE_TEXT
