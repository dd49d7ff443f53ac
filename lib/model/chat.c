#include "model/chat.h"

#include <string.h>

#include "model/tokenizer.h"

/* In the texts below: the bos and eos tokens. */
#define BOS "\1"
#define EOS "\2"

/* What surrounds a turn of one role. */
struct frame {
    const char *before, *after;
};

struct moe_chat_format {
    const char *name;
    const char *start; /* before the first turn */
    struct frame user, assistant, system;
    /* The system text goes into the user turn behind it, in this frame; system is then unused. */
    bool folds_system;
    /* White space at the ends of what a turn holds is dropped. */
    bool trims;
    bool skips_empty_system;
    const char *default_system; /* where the conversation has no system turn first; or NULL */
    const char *prompt;         /* opens the assistant's answer */
    const char *stops[4];
};

/* Each as the family's published template renders it (tulu: as open-instruct's does; OLMoE's own
 * file was not at hand). Recognition is below the table. */
static const struct moe_chat_format FORMATS[] = {
    {.name = "chatml", /* Qwen3 and many others */
     .start = "",
     .user = {"<|im_start|>user\n", "<|im_end|>\n"},
     .assistant = {"<|im_start|>assistant\n", "<|im_end|>\n"},
     .system = {"<|im_start|>system\n", "<|im_end|>\n"},
     .prompt = "<|im_start|>assistant\n",
     .stops = {"<|im_end|>", "<|endoftext|>"}},
    {.name = "mistral", /* Mixtral-8x7B-Instruct-v0.1 as first published */
     .start = BOS,
     .user = {"[INST] ", " [/INST]"},
     .assistant = {"", EOS},
     .system = {"", "\n\n"},
     .folds_system = true,
     .prompt = ""},
    {.name = "llama2",
     .start = "",
     .user = {BOS "[INST] ", " [/INST]"},
     .assistant = {" ", " " EOS},
     .system = {"<<SYS>>\n", "\n<</SYS>>\n\n"},
     .folds_system = true,
     .trims = true,
     .prompt = ""},
    {.name = "llama3",
     .start = BOS,
     .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
     .assistant = {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"},
     .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
     .trims = true,
     .prompt = "<|start_header_id|>assistant<|end_header_id|>\n\n",
     .stops = {"<|eot_id|>", "<|end_of_text|>"}},
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
    {.name = "qwen2", /* Qwen1.5-MoE-Chat, Qwen2-57B-A14B-Instruct */
     .start = "",
     .user = {"<|im_start|>user\n", "<|im_end|>\n"},
     .assistant = {"<|im_start|>assistant\n", "<|im_end|>\n"},
     .system = {"<|im_start|>system\n", "<|im_end|>\n"},
     .default_system = "You are a helpful assistant.",
     .prompt = "<|im_start|>assistant\n",
     .stops = {"<|im_end|>", "<|endoftext|>"}},
    {.name = "mistral-spaced", /* Mixtral-8x7B-Instruct-v0.1 as published later */
     .start = BOS,
     .user = {" [INST] ", " [/INST]"},
     .assistant = {" ", EOS},
     .system = {"", "\n\n"},
     .folds_system = true,
     .prompt = ""},
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

/* ---- Recognising ------------------------------------------------------------------------------
 */

static bool has(const char *jinja, const char *mark)
{
    return strstr(jinja, mark) != NULL;
}

/* Zephyr ends a user's turn with eos, Tulu only the assistant's. */
static bool user_turn_has_eos(const char *jinja)
{
    const char *user = strstr(jinja, "<|user|>");
    const char *close = user ? strstr(user, "}}") : NULL;
    const char *eos = user ? strstr(user, "eos_token") : NULL;
    return close && eos && eos < close;
}

static const char *recognise_inst(const char *jinja)
{
    if (has(jinja, "<<SYS>>"))
        return "llama2";
    /* Without the space it is the third version, which puts the system text into the last turn;
     * with one behind eos it is Mistral-7B-v0.1's. */
    if ((!has(jinja, "' [/INST]'") && !has(jinja, "\" [/INST]\"")) || has(jinja, "eos_token + ' '"))
        return NULL;
    bool spaced = has(jinja, "' [INST] '") || has(jinja, "\" [INST] \"");
    return spaced ? "mistral-spaced" : "mistral";
}

static const char *recognise_name(const char *jinja)
{
    if (has(jinja, "<|start_header_id|>") && has(jinja, "<|eot_id|>"))
        return "llama3";
    if (has(jinja, "<|im_start|>")) {
        /* Phi-4 and SmolVLM use the mark for formats of their own. */
        if (has(jinja, "<|im_sep|>") || has(jinja, "<end_of_utterance>"))
            return NULL;
        /* Inside a Jinja text a newline is written \n; a real one says the same. */
        bool helpful = has(jinja, "<|im_start|>system\\nYou are a helpful assistant.<|im_end|>") ||
                       has(jinja, "<|im_start|>system\nYou are a helpful assistant.<|im_end|>");
        return helpful ? "qwen2" : "chatml";
    }
    if (has(jinja, "[INST]"))
        return recognise_inst(jinja);
    if (has(jinja, "<|user|>") && has(jinja, "<|assistant|>")) {
        if (has(jinja, "<|end|>"))
            return "phi3";
        if (user_turn_has_eos(jinja))
            return has(jinja, "bos_token") ? NULL : "zephyr";
        return has(jinja, "bos_token") && has(jinja, "eos_token") ? "tulu" : NULL;
    }
    if (has(jinja, "'User: '") && has(jinja, "'Assistant: '"))
        return "deepseek";
    return NULL;
}

const struct moe_chat_format *moe_chat_recognise(const char *jinja)
{
    const char *name = recognise_name(jinja);
    return name ? moe_chat_find(name) : NULL;
}

/* ---- Rendering --------------------------------------------------------------------------------
 */

struct render {
    const struct moe_chat_format *format;
    const char *bos, *eos;
    struct moe_buf *out, *words;
};

static void put(const struct render *r, const char *text)
{
    for (; *text; text++) {
        if (*text == BOS[0])
            moe_buf_text(r->out, r->bos);
        else if (*text == EOS[0])
            moe_buf_text(r->out, r->eos);
        else
            moe_buf_u8(r->out, (uint8_t)*text);
    }
}

static bool is_white(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void put_turn(const struct render *r, const struct frame *frame, const char *text)
{
    size_t n = strlen(text);
    while (r->format->trims && n && is_white(text[n - 1]))
        n--;
    while (r->format->trims && n && is_white(*text)) {
        text++;
        n--;
    }
    put(r, frame->before);
    struct moe_span span = {r->out->size, n};
    if (n && r->words)
        moe_buf_append(r->words, &span, sizeof span);
    moe_buf_append(r->out, text, n);
    put(r, frame->after);
}

/* A user turn with the system text before it: one text, trimmed as one. It counts as words as a
 * whole, since what frames a folded system text is no special token in any of these families. */
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
        put_turn(r, &f->user, both.data ? (const char *)both.data : "");
    moe_buf_release(&both);
}

void moe_chat_render(const struct moe_chat_format *format, const struct moe_chat_turn *turns, int n,
                     int first, bool add_prompt, const char *bos, const char *eos,
                     struct moe_buf *out, struct moe_buf *words)
{
    struct render r = {.format = format, .bos = bos, .eos = eos, .out = out, .words = words};
    if (first == 0)
        put(&r, format->start);
    if (first == 0 && n > 0 && format->default_system && turns[0].role != MOE_CHAT_SYSTEM)
        put_turn(&r, &format->system, format->default_system);
    for (int i = first; i < n; i++) {
        const char *text = turns[i].text;
        bool behind_system = i > 0 && turns[i - 1].role == MOE_CHAT_SYSTEM;
        switch (turns[i].role) {
        case MOE_CHAT_SYSTEM:
            if (!format->folds_system && !(format->skips_empty_system && !*text))
                put_turn(&r, &format->system, text);
            break;
        case MOE_CHAT_USER:
            if (format->folds_system && behind_system)
                put_folded(&r, turns[i - 1].text, text);
            else
                put_turn(&r, &format->user, text);
            break;
        case MOE_CHAT_ASSISTANT:
            put_turn(&r, &format->assistant, text);
            break;
        }
    }
    if (add_prompt)
        put(&r, format->prompt);
}
