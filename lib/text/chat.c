#define _POSIX_C_SOURCE 200809L /* localtime_r, gmtime_r */
#include "text/chat.h"

#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "text/tokenizer.h"

/* Stand-ins in the texts below: the bos and eos tokens, and the date in three spellings. */
#define BOS "\1"
#define EOS "\2"
#define DATE_ISO "\3"   /* 2026-02-03 */
#define DATE_LONG "\4"  /* February 03, 2026 */
#define DATE_SHORT "\5" /* 03 Feb 2026 */

/* What surrounds a turn of one role. */
struct frame {
    const char *before, *after;
};

/* Where the system text goes; in a user turn it stands in the system frame. */
enum system_place { OWN_TURN, IN_NEXT_USER, IN_LAST_USER };

/* In which turns white space at the ends of the text is dropped. */
enum trim { TRIM_NONE, TRIM_ANSWERS, TRIM_ALL };

struct moe_chat_format {
    const char *name;
    const char *start; /* before the first turn */
    struct frame user, assistant, system;
    enum system_place system_place;
    enum trim trim;
    bool skips_empty_system;
    bool drops_thoughts;        /* of an answer, what comes before its last </think> */
    const char *default_system; /* where the conversation has no system turn first; or NULL */
    const char *prompt;         /* opens the assistant's answer */
    const char *stops[4];
};

#define IM_START "<|im_start|>"
#define IM_END "<|im_end|>\n"
#define CHATML                                                                                     \
    .start = "", .user = {IM_START "user\n", IM_END},                                              \
    .assistant = {IM_START "assistant\n", IM_END}, .system = {IM_START "system\n", IM_END},        \
    .prompt = IM_START "assistant\n", .stops = {"<|im_end|>", "<|endoftext|>"}

#define HEADER(role) "<|start_header_id|>" role "<|end_header_id|>\n\n"
#define LLAMA3                                                                                     \
    .start = BOS, .user = {HEADER("user"), "<|eot_id|>"},                                          \
    .assistant = {HEADER("assistant"), "<|eot_id|>"}, .trim = TRIM_ALL,                            \
    .prompt = HEADER("assistant"), .stops = {"<|eot_id|>", "<|end_of_text|>"}
#define LLAMA3_SYSTEM(date)                                                                        \
    .default_system = "",                                                                          \
    .system = {HEADER("system") "Cutting Knowledge Date: December 2023\nToday Date: " date "\n\n", \
               "<|eot_id|>"}

#define ROLE(role) "<|start_of_role|>" role "<|end_of_role|>"
#define ROLE_END "<|end_of_text|>\n"
#define GRANITE                                                                                    \
    .start = "", .user = {ROLE("user"), ROLE_END}, .assistant = {ROLE("assistant"), ROLE_END},     \
    .system = {ROLE("system"), ROLE_END}, .prompt = ROLE("assistant"),                             \
    .stops = {"<|end_of_text|>"}

/* Each renders as the published template of the models named. */
static const struct moe_chat_format FORMATS[] = {
    {.name = "chatml", CHATML}, /* many, without a default system text */
    /* Qwen1.5-Chat as first published */
    {.name = "qwen1.5", CHATML, .default_system = "You are a helpful assistant"},
    /* Qwen1.5-MoE-A2.7B-Chat, Qwen2-57B-A14B-Instruct, Qwen2-Instruct */
    {.name = "qwen2", CHATML, .default_system = "You are a helpful assistant."},
    {.name = "qwen2.5",
     CHATML,
     .default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
    /* Qwen3-30B-A3B, Qwen3-235B-A22B and their Instruct-2507 */
    {.name = "qwen3", CHATML, .drops_thoughts = true},
    {.name = "qwen3-thinking", /* Thinking-2507: the prompt opens the thoughts */
     .start = "",
     .user = {IM_START "user\n", IM_END},
     .assistant = {IM_START "assistant\n", IM_END},
     .system = {IM_START "system\n", IM_END},
     .drops_thoughts = true,
     .prompt = IM_START "assistant\n<think>\n",
     .stops = {"<|im_end|>", "<|endoftext|>"}},
    {.name = "mistral", /* Mixtral-8x7B-Instruct-v0.1 as first published */
     .start = BOS,
     .user = {"[INST] ", " [/INST]"},
     .assistant = {"", EOS},
     .system = {"", "\n\n"},
     .system_place = IN_NEXT_USER,
     .prompt = ""},
    {.name = "mistral-spaced", /* Mixtral-8x7B-Instruct-v0.1 as published later */
     .start = BOS,
     .user = {" [INST] ", " [/INST]"},
     .assistant = {" ", EOS},
     .system = {"", "\n\n"},
     .system_place = IN_NEXT_USER,
     .prompt = ""},
    {.name = "mistral-8x22b", /* Mixtral-8x22B-Instruct-v0.1 as first published */
     .start = BOS,
     .user = {" [INST] ", " [/INST]"},
     .assistant = {" ", " " EOS},
     .system = {"", "\n\n"},
     .system_place = IN_NEXT_USER,
     .prompt = ""},
    {.name = "mistral-v3", /* the third version of the tokenizer: Mixtral-8x22B later */
     .start = BOS,
     .user = {"[INST] ", "[/INST]"},
     .assistant = {" ", EOS},
     .system = {"", "\n\n"},
     .system_place = IN_LAST_USER,
     .trim = TRIM_ANSWERS,
     .prompt = ""},
    {.name = "llama2",
     .start = "",
     .user = {BOS "[INST] ", " [/INST]"},
     .assistant = {" ", " " EOS},
     .system = {"<<SYS>>\n", "\n<</SYS>>\n\n"},
     .system_place = IN_NEXT_USER,
     .trim = TRIM_ALL,
     .prompt = ""},
    {.name = "llama3", LLAMA3, .system = {HEADER("system"), "<|eot_id|>"}},
    {.name = "llama3.1", LLAMA3, LLAMA3_SYSTEM("26 Jul 2024")}, /* 3.1 and 3.3 */
    {.name = "llama3.2", LLAMA3, LLAMA3_SYSTEM(DATE_SHORT)},
    {.name = "phi3", /* Phi-3.5-MoE-instruct */
     .start = "",
     .user = {"<|user|>\n", "<|end|>\n"},
     .assistant = {"<|assistant|>\n", "<|end|>\n"},
     .system = {"<|system|>\n", "<|end|>\n"},
     .skips_empty_system = true,
     .prompt = "<|assistant|>\n",
     .stops = {"<|end|>", "<|endoftext|>"}},
    {.name = "deepseek", /* DeepSeek-MoE-16b-chat, DeepSeek-V2-Chat */
     .start = BOS,
     .user = {"User: ", "\n\n"},
     .assistant = {"Assistant: ", EOS},
     .system = {"", "\n\n"},
     .prompt = "Assistant:"},
    {.name = "minicpm", /* MiniCPM-MoE-8x2B; the template has no bos */
     .start = "",
     .user = {"<用户>", "<AI>"},
     .assistant = {"", ""},
     .system = {"", ""},
     .trim = TRIM_ALL,
     .prompt = ""},
    {.name = "granite-3.0", GRANITE},
    {.name = "granite-3.1",
     GRANITE,
     .default_system = "Knowledge Cutoff Date: April 2024.\nToday's Date: " DATE_LONG
                       ".\nYou are Granite, developed by IBM. You are a helpful AI assistant."},
    {.name = "gpt-oss", /* the user's system text is the developer's there */
     .start = "<|start|>system<|message|>You are ChatGPT, a large language model trained by "
              "OpenAI.\nKnowledge cutoff: 2024-06\nCurrent date: " DATE_ISO
              "\n\nReasoning: medium\n\n# Valid channels: analysis, commentary, final. Channel "
              "must be included for every message.<|end|>",
     .user = {"<|start|>user<|message|>", "<|end|>"},
     .assistant = {"<|start|>assistant<|channel|>final<|message|>", "<|end|>"},
     .system = {"<|start|>developer<|message|># Instructions\n\n", "\n\n<|end|>"},
     .skips_empty_system = true,
     .prompt = "<|start|>assistant",
     .stops = {"<|return|>", "<|call|>"}},
    {.name = "zephyr",
     .start = "",
     .user = {"<|user|>\n", EOS "\n"},
     .assistant = {"<|assistant|>\n", EOS "\n"},
     .system = {"<|system|>\n", EOS "\n"},
     .prompt = "<|assistant|>\n"},
    {.name = "tulu", /* OLMoE-1B-7B-Instruct */
     .start = BOS,
     .user = {"<|user|>\n", "\n"},
     .assistant = {"<|assistant|>\n", EOS "\n"},
     .system = {"<|system|>\n", "\n"},
     .prompt = "<|assistant|>\n"},
};

enum { N_FORMATS = sizeof FORMATS / sizeof *FORMATS };

const struct moe_chat_format *moe_chat_at(int i)
{
    return i >= 0 && i < N_FORMATS ? &FORMATS[i] : NULL;
}

const struct moe_chat_format *moe_chat_find(const char *name)
{
    for (int i = 0; i < N_FORMATS; i++) {
        if (strcmp(FORMATS[i].name, name) == 0)
            return &FORMATS[i];
    }
    return NULL;
}

const char *moe_chat_name(const struct moe_chat_format *format)
{
    return format->name;
}

const char *const *moe_chat_stops(const struct moe_chat_format *format)
{
    return format->stops;
}

/* ---- The date ---- */

struct tm moe_chat_today(void)
{
    const char *epoch = getenv("SOURCE_DATE_EPOCH");
    struct tm today = {.tm_mday = 1};
    uint64_t seconds;
    time_t now = time(NULL);
    if (epoch && moe_parse_u64(epoch, &seconds) && seconds < (uint64_t)1 << 40) {
        now = (time_t)seconds;
        gmtime_r(&now, &today);
    } else {
        localtime_r(&now, &today);
    }
    return today;
}

/* strftime would use the locale's language. */
static void put_date(struct moe_buf *out, char spelling, const struct tm *t)
{
    static const char *const months[] = {"January",   "February", "March",    "April",
                                         "May",       "June",     "July",     "August",
                                         "September", "October",  "November", "December"};
    const char *month = months[t->tm_mon % 12];
    int year = t->tm_year + 1900;
    if (spelling == DATE_ISO[0])
        moe_buf_printf(out, "%d-%02d-%02d", year, t->tm_mon + 1, t->tm_mday);
    else if (spelling == DATE_LONG[0])
        moe_buf_printf(out, "%s %02d, %d", month, t->tm_mday, year);
    else
        moe_buf_printf(out, "%02d %.3s %d", t->tm_mday, month, year);
}

/* ---- Rendering ---- */

struct render {
    const struct moe_chat_format *format;
    const struct moe_chat_facts *facts;
    struct moe_buf *out, *words;
};

/* The template's own text. */
static void put(const struct render *r, const char *text)
{
    for (; *text; text++) {
        if (*text == BOS[0])
            moe_buf_text(r->out, r->facts->bos);
        else if (*text == EOS[0])
            moe_buf_text(r->out, r->facts->eos);
        else if (*text >= DATE_ISO[0] && *text <= DATE_SHORT[0])
            put_date(r->out, *text, &r->facts->today);
        else
            moe_buf_u8(r->out, (uint8_t)*text);
    }
}

/* White space as Jinja's trim and strip() see it. */
static bool is_white(uint32_t c)
{
    return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f) || c == 0x85 ||
           c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

/* Narrows text[0..*n) to what lies between white space; returns its beginning. */
static const char *trim(const char *text, size_t *n)
{
    size_t end = 0;
    const char *begin = text + *n;
    for (size_t at = 0; at < *n;) {
        int length;
        if (!is_white(moe_utf8_decode((const uint8_t *)text + at, *n - at, &length))) {
            begin = end ? begin : text + at;
            end = at + (size_t)length;
        }
        at += (size_t)length;
    }
    *n = end ? (size_t)(text + end - begin) : 0;
    return begin;
}

/* The text after the last </think>, without line ends at its beginning; all of it where there is no
 * </think>. */
static const char *after_thoughts(const char *text)
{
    static const char mark[] = "</think>";
    const char *after = NULL;
    for (const char *at = text; (at = strstr(at, mark)); at += sizeof mark - 1)
        after = at + sizeof mark - 1;
    return after ? after + strspn(after, "\n") : text;
}

static void put_turn(const struct render *r, const struct frame *frame, bool trims,
                     const char *text)
{
    size_t n = strlen(text);
    if (trims)
        text = trim(text, &n);
    put(r, frame->before);
    struct moe_span span = {r->out->size, n};
    if (n && r->words)
        moe_buf_append(r->words, &span, sizeof span);
    moe_buf_append(r->out, text, n);
    put(r, frame->after);
}

/* A user turn with the system text before it: one text, trimmed as one. All of it counts as words:
 * in none of these families is the frame of a folded system text a special token. */
static void put_folded(const struct render *r, const char *system, const char *text)
{
    const struct moe_chat_format *f = r->format;
    struct moe_buf both = {0};
    moe_buf_text(&both, f->system.before);
    moe_buf_text(&both, system);
    moe_buf_text(&both, f->system.after);
    moe_buf_text(&both, text);
    if (both.failed)
        r->out->failed = true;
    else
        put_turn(r, &f->user, f->trim == TRIM_ALL, both.data ? (const char *)both.data : "");
    moe_buf_release(&both);
}

/* The system text that goes into user turn `i`, or NULL. */
static const char *folded_system(const struct moe_chat_format *f, const struct moe_chat_turn *turns,
                                 int n, int i)
{
    int from = f->system_place == IN_LAST_USER ? 0 : i - 1;
    bool here = f->system_place == IN_LAST_USER ? i == n - 1 : f->system_place == IN_NEXT_USER;
    return here && from >= 0 && turns[from].role == MOE_CHAT_SYSTEM ? turns[from].text : NULL;
}

void moe_chat_render(const struct moe_chat_format *format, const struct moe_chat_turn *turns, int n,
                     bool add_prompt, const struct moe_chat_facts *facts, struct moe_buf *out,
                     struct moe_buf *words)
{
    const struct render r = {.format = format, .facts = facts, .out = out, .words = words};
    put(&r, format->start);
    if (n > 0 && format->default_system && turns[0].role != MOE_CHAT_SYSTEM) {
        put(&r, format->system.before);
        put(&r, format->default_system);
        put(&r, format->system.after);
    }
    for (int i = 0; i < n; i++) {
        const char *text = turns[i].text, *system;
        switch (turns[i].role) {
        case MOE_CHAT_SYSTEM:
            if (format->system_place == OWN_TURN && !(format->skips_empty_system && !*text))
                put_turn(&r, &format->system, format->trim == TRIM_ALL, text);
            break;
        case MOE_CHAT_USER:
            system = folded_system(format, turns, n, i);
            if (system)
                put_folded(&r, system, text);
            else
                put_turn(&r, &format->user, format->trim == TRIM_ALL, text);
            break;
        case MOE_CHAT_ASSISTANT:
            put_turn(&r, &format->assistant, format->trim != TRIM_NONE,
                     format->drops_thoughts ? after_thoughts(text) : text);
            break;
        }
    }
    if (add_prompt)
        put(&r, format->prompt);
}
