/* What moe-run reads: texts, templates, conversations as JSON; --show-prompt. */
#include "run_prompt.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/allowance.h"
#include "base/file.h"
#include "base/text.h"
#include "cli.h"
#include "engine/calls.h"
#include "engine/prompt.h"
#include "fmt/emit.h"
#include "fmt/json.h"

enum {
    MAX_PROMPT_BYTES = 256 << 20,
    MAX_TEMPLATE_BYTES = 4 << 20,
    PIECE = 65536,

    /* Of a prompt's text at most: itself, its turn, the conversation's rendering and the one before
     * it, in buffers that double. What one takes up to MARGIN is within every budget's margin. */
    COPIES = 8,
    MARGIN = 1 << 20,
    /* Shorter prompts are tokenized and counted for any context. */
    SHORT = 64 << 10,
};

static int too_long(const char *what, uint64_t n, uint64_t may_hold, struct moe_err *err)
{
    char size[32], room[32];
    if (n > MAX_PROMPT_BYTES)
        return moe_fail(err, MOE_ERR_USAGE, "%s: more than 256 MiB of text", what);
    return moe_fail(err, MOE_ERR_LIMIT,
                    "%s: %s of text or more do not fit the %s that the budget has for it (a larger "
                    "--memory holds more)",
                    what, moe_format_bytes(n, size), moe_format_bytes(may_hold, room));
}

static int read_stdin(uint64_t may_hold, struct moe_buf *out, struct moe_err *err)
{
    for (;;) {
        uint8_t *to = moe_buf_reserve(out, PIECE);
        if (!to)
            return moe_fail(err, MOE_ERR_MEMORY, "out of memory: the text on standard input");
        ssize_t n = read(STDIN_FILENO, to, PIECE);
        if (n < 0 && cli_may_retry(STDIN_FILENO, false))
            continue;
        if (n < 0) {
            char text[128];
            return moe_fail(err, MOE_ERR_IO, "standard input: %s",
                            moe_errno_text(errno, text, sizeof text));
        }
        if (n == 0)
            return MOE_OK;
        out->size += (uint64_t)n;
        if (out->size > MAX_PROMPT_BYTES || out->size > may_hold)
            return too_long("standard input", out->size, may_hold, err);
    }
}

static int read_file(struct prompt *p, const char *path, uint64_t may_hold, struct moe_err *err)
{
    uint64_t n = 0;
    int fd = moe_file_open(path, &n, err);
    if (fd < 0)
        return fd;
    close(fd);
    if (n > MAX_PROMPT_BYTES)
        return too_long(path, n, may_hold, err);
    if (n > may_hold) {
        p->unread = n;
        return MOE_OK;
    }
    return moe_file_read_all(path, MAX_PROMPT_BYTES, &p->text, err);
}

int prompt_read(struct prompt *p, const char *text, const char *file, uint64_t may_hold,
                struct moe_err *err)
{
    struct moe_buf *out = &p->text;
    int status = MOE_OK;
    if (text)
        moe_buf_text(out, text);
    else if (file && strcmp(file, "-") != 0)
        status = read_file(p, file, may_hold, err);
    else
        status = read_stdin(may_hold, out, err);
    if (status == MOE_OK && out->size && memchr(out->data, 0, out->size))
        status = moe_fail(err, MOE_ERR_FORMAT, "the prompt is not text: it contains NUL bytes");
    moe_buf_u8(out, 0);
    if (status == MOE_OK && out->failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: the prompt");
    return status;
}

int prompt_survey(struct prompt *p, const struct moe_model *model, uint64_t most_tokens, bool whole,
                  struct moe_err *err)
{
    const struct moe_tokenizer *tok = model->tokenizer;
    uint64_t n = p->unread ? p->unread : p->text.size - 1;
    struct moe_tokenizer_survey survey = {.longest_piece = UINT64_MAX};
    int status = p->unread ? MOE_OK
                           : moe_tokenizer_look(tok, (const char *)p->text.data, n, most_tokens + 1,
                                                &survey, err);
    if (status == MOE_OK && whole && n > SHORT && survey.least_ids > most_tokens)
        status = moe_prompt_check_length(model, (const char *)p->text.data, n, most_tokens,
                                         UINT64_MAX, err);
    uint64_t piece = survey.longest_piece < n ? survey.longest_piece : n;
    uint64_t ids = most_tokens < n ? most_tokens : n;
    p->bytes = (whole ? COPIES : 2) * n + moe_tokenizer_memory(tok, n, survey.longest_piece) +
               2 * (ids + piece) * sizeof(uint32_t);
    p->bytes -= p->bytes < MARGIN ? p->bytes : MARGIN;
    return status;
}

int prompt_check_read(const struct prompt *p, uint64_t may_hold, struct moe_err *err)
{
    return p->unread ? too_long("the prompt", p->unread, may_hold, err) : MOE_OK;
}

/* What to do where a template cannot be used; a message of a sentence has room for it. */
static int say_what_helps(int status, struct moe_err *err)
{
    struct moe_err first = *err;
    if (status != MOE_ERR_FORMAT && status != MOE_ERR_UNSUPPORTED && status != MOE_ERR_LIMIT)
        return status;
    return moe_fail(err, status,
                    "%s (--raw continues plain text, --template-file FILE takes another template)",
                    first.text);
}

int prompt_chat(const char *file, bool raw, const struct moe_model *model, const char *pack,
                struct moe_chat **chat, struct moe_err *err)
{
    struct moe_buf text = {0}, name = {0};
    int status = MOE_OK;
    *chat = NULL;
    if (raw)
        return MOE_OK;
    moe_buf_printf(&name, "%s%s", file ? file : pack, file ? "" : ": its chat template");
    if (file)
        status = moe_file_read_all(file, MAX_TEMPLATE_BYTES, &text, err);
    if (status == MOE_OK && (text.failed || name.failed))
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: the chat template");
    if (status == MOE_OK) {
        const char *template = text.data ? (const char *)text.data : "";
        status = moe_prompt_open_chat(chat, model, (const char *)name.data, file ? template : NULL,
                                      text.size, err);
        status = say_what_helps(status, err);
    }
    moe_buf_release(&text);
    moe_buf_release(&name);
    return status;
}

/* ---- Conversations that are read whole ---- */

enum { JSON_MEMORY = 256 << 20, MAX_TOOLS_BYTES = 16 << 20 };

int messages_take(struct moe_conversation *talk, const char *file, const struct moe_buf *text,
                  json_t **json, struct moe_err *err)
{
    *json = NULL;
    MOE_TRY(moe_json_parse(json, file, text->data, text->size - 1, JSON_MEMORY, err));
    bool whole = json_is_object(*json);
    const json_t *messages = whole ? json_object_get(*json, "messages") : *json;
    const json_t *tools = whole ? json_object_get(*json, "tools") : NULL;
    const json_t *variables = whole ? json_object_get(*json, "chat_template_kwargs") : NULL;
    MOE_TRY(moe_chat_check_messages(file, messages, err));
    MOE_TRY(moe_chat_check_tools(file, tools, err));
    if (variables && !json_is_null(variables) && !json_is_object(variables))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'chat_template_kwargs' is not an object", file);
    MOE_TRY(moe_conversation_set(talk, messages, err));
    talk->tools = tools;
    talk->variables = variables;
    return MOE_OK;
}

/* Refuses the choice of a function that is none of the tools. *one: it, in a list; NULL: any. */
static int check_choice(const json_t *tools, const char *choice, json_t **one, struct moe_err *err)
{
    static const char *const words[] = {"auto", "none", "required"};
    size_t i;
    const json_t *tool;
    *one = NULL;
    for (i = 0; i < 3; i++)
        if (strcmp(choice, words[i]) == 0)
            return MOE_OK;
    json_array_foreach(tools, i, tool)
    {
        if (strcmp(json_string_value(json_object_get(moe_chat_function(tool), "name")), choice) ==
            0)
            return (*one = json_pack("[O]", tool))
                       ? MOE_OK
                       : moe_fail(err, MOE_ERR_MEMORY, "out of memory: the tools");
    }
    return moe_fail(err, MOE_ERR_USAGE,
                    "option --tool-choice: '%s' is none of the tools, nor auto, none, required",
                    choice);
}

int tools_read(const char *file, const char *choice, json_t **out, struct moe_err *err)
{
    struct moe_buf text = {0};
    json_t *json = NULL, *one = NULL;
    int status = moe_file_read_all(file, MAX_TOOLS_BYTES, &text, err);
    if (status == MOE_OK)
        status = moe_json_parse(&json, file, text.data, text.size, JSON_MEMORY, err);
    moe_buf_release(&text);
    json_t *tools = json_is_object(json) ? json_object_get(json, "tools") : json;
    if (status == MOE_OK && !tools)
        status = moe_fail(err, MOE_ERR_FORMAT, "%s: 'tools' is missing", file);
    if (status == MOE_OK)
        status = moe_chat_check_tools(file, tools, err);
    if (status == MOE_OK && choice)
        status = check_choice(tools, choice, &one, err);
    json_decref(one);
    *out = status == MOE_OK ? json_incref(tools) : NULL;
    moe_json_free(json);
    return status;
}

/* What the prompt of an answer ends with. */
static enum moe_chat_thought thought_before(const struct moe_conversation *talk)
{
    struct moe_buf out = {0};
    struct moe_err refused;
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "?");
    const struct moe_chat_input input = {.messages = messages,
                                         .tools = talk->tools,
                                         .variables = talk->variables,
                                         .add_generation_prompt = true,
                                         .now = talk->now};
    enum moe_chat_thought thought = MOE_THOUGHT_NONE;
    if (messages && moe_chat_render(talk->chat, &input, &out, NULL, &refused) == MOE_OK)
        thought = moe_chat_thought_before(talk->chat, out.data, out.size);
    json_decref(messages);
    moe_buf_release(&out);
    return thought;
}

int messages_hold_calls(struct moe_conversation *talk, struct moe_engine *engine,
                        const char *choice, struct moe_grammar **grammar,
                        struct moe_constraint **constraint, struct moe_err *err)
{
    choice = choice ? choice : "auto";
    bool must = strcmp(choice, "auto") != 0;
    json_t *one;
    if (strcmp(choice, "none") == 0)
        talk->tools = NULL;
    if (!talk->chat || json_array_size(talk->tools) == 0)
        return MOE_OK;
    MOE_TRY(check_choice(talk->tools, choice, &one, err));
    struct moe_allowance allowance = moe_allowance_usual();
    const struct moe_calls_wanted wanted = {.tools = one ? one : talk->tools,
                                            .must = must,
                                            .parallel = !one,
                                            .thought = thought_before(talk),
                                            .no_thought = moe_chat_no_thought(talk->variables)};
    int status = moe_calls_grammar(grammar, talk->chat, &wanted, &allowance, err);
    json_decref(one);
    MOE_TRY(status);
    if (*grammar && moe_grammar_notes(*grammar))
        cli_note("%s", moe_grammar_notes(*grammar));
    talk->held_to_calls = *grammar != NULL;
    return *grammar
               ? moe_engine_constrain(engine, *grammar, moe_chat_marks(talk->chat), constraint, err)
               : MOE_OK;
}

int messages_print_answer(const struct moe_conversation *talk, enum moe_stop_reason why,
                          struct moe_err *err)
{
    json_t *message = json_array_get(talk->messages, json_array_size(talk->messages) - 1);
    const char *ended = json_object_get(message, "tool_calls")        ? "tool_calls"
                        : why == MOE_STOP_EOS || why == MOE_STOP_TEXT ? "stop"
                                                                      : "length";
    char *written = moe_json_text(message, 0);
    if (!written)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: the answer");
    struct moe_buf text = {0};
    struct moe_emit e;
    moe_emit_begin_json(&e, &text, MOE_EMIT_LINE);
    moe_emit_json(&e, "message", written, strlen(written));
    moe_emit_text(&e, "finish_reason", ended);
    free(written);
    return cli_print(moe_emit_end(&e, err), &text, err);
}

/* What would be fed, with the question where there is one. */
static int preview(struct moe_conversation *talk, const char *text, struct moe_buf *out,
                   struct moe_ids *ids, struct moe_err *err)
{
    if (!talk->chat) {
        uint32_t target;
        moe_buf_text(out, text);
        if (talk->languages.source || talk->languages.target)
            return moe_prompt_source(talk->session->model, &talk->languages, text, strlen(text),
                                     ids, &target, err);
        return moe_prompt_prefixed(talk->session->model, talk->prefix, text, strlen(text), ids,
                                   err);
    }
    json_t *question = text ? moe_chat_message("user", text, strlen(text), err) : NULL;
    if (text && !question)
        return MOE_ERR_MEMORY;
    if (question && json_array_append_new(talk->messages, question) != 0)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: a message");
    return moe_conversation_preview(talk, out, ids, err);
}

int messages_show_prompt(struct moe_conversation *talk, const char *text, struct moe_err *err)
{
    struct moe_buf out = {0};
    struct moe_ids ids = {0};
    int status = preview(talk, text, &out, &ids, err);
    moe_buf_text(&out, "\nids:");
    for (uint64_t i = 0; i < ids.n; i++)
        moe_buf_printf(&out, " %" PRIu32, ids.ids[i]);
    moe_buf_u8(&out, '\n');
    if (status == MOE_OK && out.failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: the prompt");
    if (status == MOE_OK) {
        cli_write(out.data, out.size);
        status = cli_flush(err);
    }
    moe_buf_release(&out);
    moe_ids_release(&ids);
    return status;
}
