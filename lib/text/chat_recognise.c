/*
 * Recognises the format of a Jinja template. The template is brought into one spelling (spell()
 * below), then searched for the marks of each format: the whole expressions that print its turns,
 * and expressions that must be absent because they would print something else.
 */
#include <ctype.h>
#include <string.h>

#include "text/chat.h"

/* ---- One spelling ----
 *
 * Inside {{ }} and {% %}: no white space, no white space control, texts in single quotes with their
 * escapes resolved, x['y'] as x.y, and texts that are joined by + as one. {# #} is dropped. The
 * text between is as it is printed: white space control is applied, also that of the settings
 * trim_blocks and lstrip_blocks, which checkpoints' templates are written for.
 */

/* Copies the quoted text at `in` and returns what follows it; NULL when it does not end. */
static const char *spell_quoted(const char *in, struct moe_buf *out)
{
    char quote = *in++;
    moe_buf_u8(out, '\'');
    for (; *in && *in != quote; in++) {
        char c = *in;
        if (c == '\\' && in[1]) {
            c = *++in;
            c = c == 'n' ? '\n' : c == 't' ? '\t' : c;
        }
        moe_buf_u8(out, (uint8_t)c);
    }
    moe_buf_u8(out, '\'');
    return *in ? in + 1 : NULL;
}

/* An index ['name'] at `in`: copies it as .name and returns what follows; else NULL. */
static const char *spell_index(const char *in, struct moe_buf *out)
{
    size_t n = 0;
    if (in[0] != '[' || (in[1] != '\'' && in[1] != '"'))
        return NULL;
    while (isalnum((unsigned char)in[2 + n]) || in[2 + n] == '_')
        n++;
    if (n == 0 || in[2 + n] != in[1] || in[3 + n] != ']')
        return NULL;
    moe_buf_u8(out, '.');
    moe_buf_append(out, in + 2, n);
    return in + n + 4;
}

/* Removes the closing quote and plus before a text that is joined to the one before. */
static void join_texts(struct moe_buf *out, uint64_t begin)
{
    if (begin >= 2 && out->data[begin - 1] == '+' && out->data[begin - 2] == '\'') {
        memmove(out->data + begin - 2, out->data + begin + 1, out->size - begin - 1);
        out->size -= 3;
    }
}

/* Copies the statement or expression at `in`, closed by `closing` and a brace, up to its closing;
 * returns where that or its '-' stands, NULL when it does not end. */
static const char *spell_block(const char *in, char closing, struct moe_buf *out)
{
    while (in && *in && !out->failed) {
        if (in[*in == '-' || *in == '+'] == closing && in[(*in == '-' || *in == '+') + 1] == '}')
            return in;
        const char *index = spell_index(in, out);
        uint64_t begin = out->size;
        if (index) {
            in = index;
        } else if (*in == '\'' || *in == '"') {
            in = spell_quoted(in, out);
            if (in && !out->failed)
                join_texts(out, begin);
        } else {
            if (!isspace((unsigned char)*in))
                moe_buf_u8(out, (uint8_t)*in);
            in++;
        }
    }
    return NULL;
}

/* Drops white space from the end of the text that began at `from`: all of it, or what indents a
 * line. */
static void strip_end(struct moe_buf *out, uint64_t from, bool from_line_start, bool all)
{
    uint64_t n = out->size;
    while (n > from && (all ? isspace(out->data[n - 1]) != 0
                            : out->data[n - 1] == ' ' || out->data[n - 1] == '\t'))
        n--;
    if (all || (n > from ? out->data[n - 1] == '\n' : from_line_start))
        out->size = n;
}

/* False when the template does not end properly or memory is short. */
static bool spell(const char *in, struct moe_buf *out)
{
    uint64_t text = 0;      /* where the text printed as it stands began */
    bool line_start = true; /* ... and whether a line began there */
    while (in && *in && !out->failed) {
        if (in[0] != '{' || !strchr("{%#", in[1]) || !in[1]) {
            moe_buf_u8(out, (uint8_t)*in++);
            continue;
        }
        char kind = in[1];
        if (in[2] == '-' || (kind != '{' && in[2] != '+'))
            strip_end(out, text, line_start, in[2] == '-');
        in += in[2] == '-' || in[2] == '+' ? 3 : 2;
        if (kind == '#') {
            in = strstr(in, "#}");
            in = in && in[-1] == '-' ? in - 1 : in;
        } else {
            moe_buf_u8(out, '{');
            moe_buf_u8(out, (uint8_t)kind);
            in = spell_block(in, kind == '{' ? '}' : kind, out);
            moe_buf_u8(out, kind == '{' ? '}' : (uint8_t)kind);
            moe_buf_u8(out, '}');
        }
        if (in && *in == '-')
            in += 3 + strspn(in + 3, " \t\r\n");
        else if (in)
            in += *in == '+' ? 3 : kind != '{' && in[2] == '\n' ? 3 : 2;
        text = out->size;
        line_start = in && in[-1] == '\n';
    }
    moe_buf_u8(out, 0);
    return in && !out->failed;
}

/* ---- Marks ---- */

#define C "message.content"
#define IM_TURN "{{'<|im_start|>'+message.role+'\n'+" C "+'<|im_end|>\n'}}"
#define IM_PROMPT "{{'<|im_start|>assistant\n'}}"
#define IM_SYSTEM(text) "'<|im_start|>system\n" text "<|im_end|>\n'"
#define QWEN3                                                                                      \
    "{{'<|im_start|>system\n'+messages[0].content+'<|im_end|>\n'}}",                               \
        "content=content.split('</think>')[-1].lstrip('\n')",                                      \
        "{{'<|im_start|>'+message.role+'\n'+content}}"
#define LLAMA3_TURN                                                                                \
    "'<|start_header_id|>'+message.role+'<|end_header_id|>\n\n'+" C "|trim+'<|eot_id|>'"
#define LLAMA3_PROMPT "{{'<|start_header_id|>assistant<|end_header_id|>\n\n'}}"
#define LLAMA3_DATED                                                                               \
    LLAMA3_TURN, LLAMA3_PROMPT, "{{bos_token}}", "system_message=messages[0].content|trim",        \
        "{{'<|start_header_id|>system<|end_header_id|>\n\n'}}",                                    \
        "{{'Cutting Knowledge Date: December 2023\n'}}", "{{'Today Date: '+date_string+'\n\n'}}",  \
        "{{system_message}}{{'<|eot_id|>'}}"

struct rule {
    const char *name;
    const char *has[12], *lacks[8];
};

/* In the order they are tried. */
static const struct rule RULES[] = {
    {"qwen2.5",
     {IM_TURN, IM_PROMPT,
      IM_SYSTEM("You are Qwen, created by Alibaba Cloud. You are a helpful assistant.")},
     {"think>", "bos_token", "eos_token", "strip(", "|trim"}},
    {"qwen2",
     {IM_TURN, IM_PROMPT, IM_SYSTEM("You are a helpful assistant.")},
     {"think>", "bos_token", "eos_token", "strip(", "|trim"}},
    {"qwen1.5",
     {IM_TURN, IM_PROMPT, IM_SYSTEM("You are a helpful assistant")},
     {"think>", "bos_token", "eos_token", "strip(", "|trim"}},
    {"qwen1.5",
     {"{{'<|im_start|>'+message.role+'\n'+" C "}}"
      "{%if(loop.lastandadd_generation_prompt)ornotloop.last%}{{'<|im_end|>\n'}}{%endif%}",
      IM_PROMPT, IM_SYSTEM("You are a helpful assistant")},
     {"think>", "bos_token", "eos_token", "strip(", "|trim"}},
    {"qwen3", {QWEN3, IM_PROMPT}, {"bos_token", "eos_token", "You are a", "You are Q"}},
    {"qwen3",
     {"content=message.content.split('</think>')[-1].lstrip('\n')",
      "{{'<|im_start|>system\n'+messages[0].content+'<|im_end|>\n'}}",
      "{{'<|im_start|>'+message.role+'\n'+content}}", IM_PROMPT,
      "{%ifenable_thinkingisdefinedandenable_thinkingisfalse%}"},
     {"bos_token", "eos_token", "You are a", "You are Q"}},
    {"qwen3-thinking",
     {QWEN3, "{{'<|im_start|>assistant\n<think>\n'}}"},
     {"bos_token", "eos_token", "You are a", "You are Q"}},
    {"chatml",
     {IM_TURN, IM_PROMPT},
     {"<|im_start|>system", "think>", "bos_token", "eos_token", "strip(", "|trim", "You are"}},
    {"llama2",
     {"'<<SYS>>\n'+system_message+'\n<</SYS>>\n\n'+" C, "system_message=false",
      "{{bos_token+'[INST] '+content.strip()+' [/INST]'}}",
      "{{' '+content.strip()+' '+eos_token}}"},
     {"'<<SYS>>'", "system_message='"}},
    {"mistral",
     {"{{bos_token}}", "{{'[INST] '+" C "+' [/INST]'}}", "{{" C "+eos_token}}"},
     {"system_message", "<<SYS>>"}},
    {"mistral-spaced",
     {"{{bos_token}}",
      "loop.firstandsystem_messageisdefined%}{{' [INST] '+system_message+'\n\n'+" C "+' [/INST]'}}",
      "{{' [INST] '+" C "+' [/INST]'}}", "{{' '+" C "+eos_token}}"},
     {"<<SYS>>", "system_message='"}},
    {"mistral-8x22b",
     {"{{bos_token}}", "{{' [INST] '+" C "+' [/INST]'}}", "{{' '+" C "+' '+eos_token}}"},
     {"system_message", "<<SYS>>"}},
    {"mistral-v3",
     {"{{bos_token}}",
      "loop.lastandsystem_messageisdefined%}{{'[INST] '+system_message+'\n\n'+" C "+'[/INST]'}}",
      "{{'[INST] '+" C "+'[/INST]'}}", "{{' '+" C "|trim+eos_token}}"},
     {"<<SYS>>", "system_message='"}},
    {"llama3", {LLAMA3_TURN, LLAMA3_PROMPT, "bos_token"}, {"Cutting Knowledge", "date", "You are"}},
    {"llama3.1", {LLAMA3_DATED, "date_string='26 Jul 2024'"}, {"strftime_now"}},
    {"llama3.2", {LLAMA3_DATED, "date_string=strftime_now('%d %b %Y')"}, {NULL}},
    {"phi3",
     {"message.role=='system'and" C "%}{{'<|system|>\n'+" C "+'<|end|>\n'}}",
      "{{'<|user|>\n'+" C "+'<|end|>\n'}}", "{{'<|assistant|>\n'+" C "+'<|end|>\n'}}",
      "{{'<|assistant|>\n'}}"},
     {"bos_token"}},
    {"deepseek",
     {"{{bos_token}}", "{{'User: '+" C "+'\n\n'}}", "{{'Assistant: '+" C "+eos_token}}",
      "{{" C "+'\n\n'}}", "{{'Assistant:'}}"},
     {NULL}},
    {"minicpm",
     {"{{'<用户>'+" C ".strip()+'<AI>'}}", "{%else%}{{" C ".strip()}}"},
     {"bos_token", "eos_token"}},
    {"granite-3.0",
     {"{{'<|start_of_role|>system<|end_of_role|>'+" C "+'<|end_of_text|>\n'}}",
      "{{'<|start_of_role|>user<|end_of_role|>'+" C "+'<|end_of_text|>\n'}}",
      "{{'<|start_of_role|>assistant<|end_of_role|>'+" C "+'<|end_of_text|>\n'}}",
      "{{'<|start_of_role|>assistant<|end_of_role|>'}}"},
     {"system_message", "strftime_now", "bos_token"}},
    {"granite-3.1",
     {"system_message='Knowledge Cutoff Date: April 2024.\nToday's Date: '+strftime_now("
      "'%B %d, %Y')+'.\nYou are Granite, developed by IBM.'",
      "{%else%}{%setsystem_message=system_message+' You are a helpful AI assistant.'%}",
      "{{'<|start_of_role|>system<|end_of_role|>'+system_message+'<|end_of_text|>\n'}}",
      "{{'<|start_of_role|>'+message.role+'<|end_of_role|>'+" C "+'<|end_of_text|>\n'}}",
      "{{'<|start_of_role|>assistant'}}", "{{'<|end_of_role|>'}}"},
     {"bos_token"}},
    {"gpt-oss",
     {"{{'<|start|>system<|message|>'}}", "model_identity+'\n'",
      "'You are ChatGPT, a large language model trained by OpenAI.'",
      "{{'Knowledge cutoff: 2024-06\n'}}", "{{'Current date: '+strftime_now('%Y-%m-%d')+'\n\n'}}",
      "reasoning_effort='medium'",
      "{{'# Valid channels: analysis, commentary, final. Channel must be included for every "
      "message.'}}",
      "{{'<|start|>developer<|message|>'}}", "{{'# Instructions\n\n'}}",
      "{{'<|start|>assistant<|channel|>final<|message|>'+" C "+'<|end|>'}}",
      "{{'<|start|>user<|message|>'+" C "+'<|end|>'}}"},
     {"bos_token"}},
    {"zephyr",
     {"{{'<|user|>\n'+" C "+eos_token}}\n", "{{'<|system|>\n'+" C "+eos_token}}\n",
      "{{'<|assistant|>\n'+" C "+eos_token}}\n", "{{'<|assistant|>'}}\n"},
     {"bos_token"}},
    {"tulu",
     {"{{bos_token}}", "{{'<|system|>\n'+" C "+'\n'}}", "{{'<|user|>\n'+" C "+'\n'}}",
      "{{'<|assistant|>\n'+" C "+eos_token+'\n'}}", "{{'<|assistant|>\n'}}"},
     {NULL}},
    {"tulu",
     {"{{bos_token}}", "{{'<|system|>\n'+" C "}}\n", "{{'<|user|>\n'+" C "}}\n",
      "{{'<|assistant|>\n'+" C "+eos_token}}\n", "{{'<|assistant|>'}}\n"},
     {NULL}},
};

static bool fits(const struct rule *rule, const char *text)
{
    for (const char *const *mark = rule->has; *mark; mark++)
        if (!strstr(text, *mark))
            return false;
    for (const char *const *mark = rule->lacks; *mark; mark++)
        if (strstr(text, *mark))
            return false;
    return true;
}

const struct moe_chat_format *moe_chat_recognise(const char *jinja)
{
    const struct moe_chat_format *format = NULL;
    struct moe_buf text = {0};
    if (spell(jinja, &text)) {
        for (size_t i = 0; i < sizeof RULES / sizeof *RULES && !format; i++)
            if (fits(&RULES[i], (const char *)text.data))
                format = moe_chat_find(RULES[i].name);
    }
    moe_buf_release(&text);
    return format;
}
