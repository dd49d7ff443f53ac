/* Conversations written by a model's own template. */
#define _POSIX_C_SOURCE 200809L /* localtime_r, gmtime_r */

#include "prompt/chat.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "fmt/gguf.h"
#include "fmt/json.h"
#include "prompt/chat_internal.h"
#include "text/tokenizer.h"

/* ---- Opening ---- */

/* A special token's text, or "". */
static json_t *token_text(const struct moe_tokenizer *tok, int64_t id)
{
    uint32_t n = 0;
    const uint8_t *bytes = id >= 0 ? moe_tokenizer_bytes(tok, (uint32_t)id, &n) : NULL;
    json_t *text = json_stringn(n ? (const char *)bytes : "", n);
    return text ? text : json_string(""); /* the text was not UTF-8 */
}

static bool mentions(const char *source, uint64_t n, const char *word)
{
    uint64_t length = strlen(word);
    for (uint64_t i = 0; i + length <= n; i++)
        if (memcmp(source + i, word, length) == 0)
            return true;
    return false;
}

static int open_chat(struct moe_chat *chat, const char *name, const char *source, uint64_t n,
                     const struct moe_tokenizer *tok, struct moe_err *err)
{
    if (!(chat->name = moe_strndup(name, strlen(name), err)))
        return MOE_ERR_MEMORY;
    chat->bos = token_text(tok, moe_tokenizer_bos(tok));
    chat->eos = token_text(tok, moe_tokenizer_eos(tok));
    if (!chat->bos || !chat->eos)
        return moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", name);
    chat->forms.no_developer = !mentions(source, n, "developer");
    MOE_TRY(chat_parse(chat, source, n, err));
    MOE_TRY(chat_probe_all(chat, tok, source, n, err));
    return chat_find_marks(chat, tok, err);
}

int moe_chat_open(struct moe_chat **out, const char *name, const char *source, uint64_t n,
                  const struct moe_tokenizer *tok, struct moe_err *err)
{
    *out = NULL;
    struct moe_chat *chat = moe_alloc(1, sizeof *chat, err);
    if (!chat)
        return MOE_ERR_MEMORY;
    int status = open_chat(chat, name, source, n, tok, err);
    if (status == MOE_OK)
        *out = chat;
    else
        moe_chat_free(chat);
    return status;
}

void moe_chat_free(struct moe_chat *chat)
{
    if (!chat)
        return;
    for (char **stop = chat->stops; stop && *stop; stop++)
        free(*stop);
    free(chat->stops);
    free(chat->thought_begins);
    free(chat->thought_ends);
    free(chat->lead);
    free(chat->thought_ends_content);
    free(chat->own_system);
    for (uint32_t i = 0; i < chat->n_calls; i++)
        chat_free_calls(&chat->calls[i]);
    moe_ids_release(&chat->marks);
    free(chat->name);
    json_decref(chat->bos);
    json_decref(chat->eos);
    moe_jinja_free(chat->plain);
    moe_jinja_free(chat->with_tools);
    free(chat);
}

const char *const *moe_chat_stops(const struct moe_chat *chat)
{
    return (const char *const *)chat->stops;
}

/* ---- Rendering ---- */

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

int moe_chat_render(const struct moe_chat *chat, const struct moe_chat_input *input,
                    struct moe_buf *out, struct moe_buf *words, struct moe_err *err)
{
    json_t *adapted = NULL;
    struct moe_chat_input in = *input;
    int status = chat_adapt(chat, input->messages, input->tools, &adapted, err);
    if (adapted)
        in.messages = adapted;
    if (status == MOE_OK)
        status = chat_write(chat, &in, NULL, out, words, err);
    json_decref(adapted);
    return status;
}

/* ---- Answers ---- */

/* Whether text[0..*n) ends with the mark, which *n is then without, as without the blanks before.
 */
static bool take_end(const char *text, uint64_t *n, const char *mark)
{
    const uint64_t length = mark ? strlen(mark) : UINT64_MAX;
    while (*n && moe_is_blank(text[*n - 1]))
        (*n)--;
    const bool ends = *n >= length && memcmp(text + *n - length, mark, length) == 0;
    *n -= ends ? length : 0;
    return ends;
}

enum moe_chat_thought moe_chat_thought_before(const struct moe_chat *chat, const void *rendered,
                                              uint64_t n)
{
    const char *text = rendered;
    if (!chat->thought_member)
        return MOE_THOUGHT_NONE;
    if (take_end(text, &n, chat->thought_begins))
        return MOE_THOUGHT_OPEN;
    if (take_end(text, &n, chat->thought_ends_content))
        return MOE_THOUGHT_OVER;
    /* What is between any messages ends one that was empty. */
    return take_end(text, &n, chat->thought_ends) &&
                   (!chat->thought_ends_content || take_end(text, &n, chat->thought_begins))
               ? MOE_THOUGHT_OVER
               : MOE_THOUGHT_NONE;
}

const char *moe_chat_own_system(const struct moe_chat *chat)
{
    return chat->own_system;
}

const char *moe_chat_thought_end(const struct moe_chat *chat, bool can_call, const char **stop)
{
    const char *ends = chat->thought_ends;
    *stop = NULL;
    if (!chat->thought_member || !chat->thought_begins || !ends)
        return NULL;
    for (char **s = chat->stops; *s && !*stop; s++)
        if (strncmp(ends, *s, strlen(*s)) == 0)
            *stop = *s;
    return chat->thought_ends_content && !can_call ? chat->thought_ends_content : ends;
}

const char *moe_chat_thought_member(const struct moe_chat *chat)
{
    return chat->thought_member;
}

void moe_chat_can(const struct moe_chat *chat, bool *calls, bool *thinks)
{
    *calls = chat->n_calls > 0;
    *thinks = chat->thought_begins != NULL;
}

/* ---- Templates in checkpoints ---- */

enum { TEMPLATE_BYTES_MAX = 1 << 20, CONFIG_BYTES_MAX = 64 << 20 };

static void append_json(const json_t *value, struct moe_buf *out)
{
    char *text = moe_json_text(value, JSON_COMPACT);
    moe_buf_text(out, text ? text : "");
    out->failed |= !text;
    free(text);
}

/* Writes the template, or a list of both. */
static void write_templates(const char *template, const char *tool_use, struct moe_buf *out)
{
    if (!tool_use || !*tool_use) {
        moe_buf_text(out, template);
        return;
    }
    json_t *list = json_pack("[{s:s,s:s},{s:s,s:s}]", "name", "default", "template", template,
                             "name", "tool_use", "template", tool_use);
    append_json(list, out);
    json_decref(list);
}

static int read_config(const char *path, struct moe_buf *out, struct moe_err *err)
{
    json_t *config;
    MOE_TRY(moe_json_read(&config, path, CONFIG_BYTES_MAX, MOE_JSON_TOKENIZER_CONFIG_MEMORY, err));
    const json_t *value = json_object_get(config, "chat_template");
    if (json_is_string(value))
        moe_buf_append(out, json_string_value(value), json_string_length(value));
    else if (json_array_size(value))
        append_json(value, out);
    moe_json_free(config);
    return MOE_OK;
}

int moe_chat_read_gguf(const struct moe_gguf *gguf, struct moe_buf *out, struct moe_err *err)
{
    static const char key[] = "tokenizer.chat_template",
                      tools[] = "tokenizer.chat_template.tool_use";
    const char *template = "", *tool_use = "";
    MOE_TRY(moe_gguf_get_text(gguf, key, false, &template, err));
    MOE_TRY(moe_gguf_get_text(gguf, tools, false, &tool_use, err));
    write_templates(template, tool_use, out);
    return MOE_OK;
}

/* Reads the template files of newer checkpoints. */
static int read_files(const char *jinja, const char *dir, struct moe_buf *out, struct moe_err *err)
{
    struct moe_buf template = {0}, tool_use = {0};
    char *path = moe_path_join(dir, "additional_chat_templates/tool_use.jinja", err);
    int status;
    MOE_STEP(path ? moe_file_read_all(jinja, TEMPLATE_BYTES_MAX, &template, err) : MOE_ERR_MEMORY);
    if (moe_path_exists(path))
        MOE_STEP(moe_file_read_all(path, TEMPLATE_BYTES_MAX, &tool_use, err));
    write_templates(template.data ? (const char *)template.data : "", (const char *)tool_use.data,
                    out);
out:
    moe_buf_release(&template);
    moe_buf_release(&tool_use);
    free(path);
    return status;
}

int moe_chat_read_template(const char *dir, struct moe_buf *out, struct moe_err *err)
{
    int status = MOE_OK;
    char *jinja = moe_path_join(dir, "chat_template.jinja", err);
    char *config = jinja ? moe_path_join(dir, "tokenizer_config.json", err) : NULL;
    if (!config)
        status = MOE_ERR_MEMORY;
    else if (moe_path_exists(jinja)) /* it takes precedence */
        status = read_files(jinja, dir, out, err);
    else if (moe_path_exists(config))
        status = read_config(config, out, err);
    if (status == MOE_OK && out->failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory: the chat template", dir);
    free(jinja);
    free(config);
    return status;
}
