/*
 * Probes a template: renders short conversations of words that no template contains; the text
 * around them shows how answers end and where thoughts go.
 */
#define _GNU_SOURCE /* memmem */
#include <ctype.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fmt/json.h"
#include "prompt/chat_internal.h"
#include "text/tokenizer.h"

#define USER2 "uz5Tn8Hd"
#define THOUGHT "tB8Pz3Jm"
#define SYSTEM "sK6Yc1Gf"
#define TOOL "fD2Mq7Se"
#define KEY "kH9Wj4Zu"
#define VALUE "vC3Rx6Ly"

enum { MAX_MARK = 256, MAX_STOPS = 4 };

/* ---- Rendering ---- */

static const char *text_of(const struct moe_buf *b)
{
    return (const char *)b->data;
}

static bool template_writes(struct chat_probe *p, json_t *messages, json_t *tools, const char *word)
{
    struct moe_buf out = {0};
    bool found = probe_write(p, messages, tools, true, &out) && strstr(text_of(&out), word);
    moe_buf_release(&out);
    return found;
}

/* The place after the last `word`, or NULL. */
static const char *behind_last(const char *text, const char *word)
{
    const char *found = NULL;
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word))
        found = at + strlen(word);
    return found;
}

/* ---- Conversations ---- */

static json_t *message(const struct chat_probe *p, const char *role, const char *text)
{
    return json_pack("{s:s,s:o}", "role", role, "content", probe_content(p, text));
}

static json_t *question(const struct chat_probe *p)
{
    return json_pack("[o]", message(p, "user", PROBE_USER));
}

static json_t *answered(const struct chat_probe *p, json_t *next)
{
    return json_pack("[o,o,o*]", message(p, "user", PROBE_USER),
                     message(p, "assistant", PROBE_ANSWER), next);
}

static json_t *tools(void)
{
    return json_pack("[{s:s,s:{s:s,s:s,s:{s:s,s:{s:{s:s,s:s}},s:[s]}}}]", "type", "function",
                     "function", "name", TOOL, "description", "", "parameters", "type", "object",
                     "properties", KEY, "type", "string", "description", "", "required", KEY);
}

/* An answer that ends with a call and has no content. */
static json_t *answer_calling(const struct chat_probe *p, bool as_text, json_t *answer_content)
{
    json_t *arguments =
        as_text ? json_string("{\"" KEY "\": \"" VALUE "\"}") : json_pack("{s:s}", KEY, VALUE);
    return json_pack("[o,{s:s,s:o,s:[{s:s,s:s,s:{s:s,s:o}}]}]", message(p, "user", PROBE_USER),
                     "role", "assistant", "content", answer_content, "tool_calls", "id",
                     "abcdefgh1", "type", "function", "function", "name", TOOL, "arguments",
                     arguments);
}

/* An answer with a thought in `member`, and perhaps a call. */
static json_t *thought(const struct chat_probe *p, const char *member, bool calling)
{
    json_t *messages = calling ? answer_calling(p, p->chat->forms.arguments_as_text,
                                                probe_content(p, PROBE_ANSWER))
                               : answered(p, NULL);
    json_object_set_new(json_array_get(messages, 1), member, json_string(THOUGHT));
    return messages;
}

/* ---- Forms ---- */

static json_t *in_parts(void)
{
    return json_pack("[{s:s,s:[{s:s,s:s}]}]", "role", "user", "content", "type", "text", "text",
                     PROBE_USER);
}

/* Whether parts are understood, not printed as a list. */
static bool takes_parts(struct chat_probe *p)
{
    struct moe_buf out = {0};
    bool takes = probe_write(p, in_parts(), NULL, true, &out) &&
                 strstr(text_of(&out), PROBE_USER) && !strstr(text_of(&out), "'" PROBE_USER "'") &&
                 !strstr(text_of(&out), "\"" PROBE_USER "\"");
    moe_buf_release(&out);
    return takes;
}

/* Whether arguments may be text: they must not come out as a JSON text with escaped quotes. */
static bool takes_arguments_as_text(struct chat_probe *p)
{
    struct moe_buf out = {0};
    bool takes = probe_write(p, answer_calling(p, true, json_string("")), tools(), false, &out) &&
                 strstr(text_of(&out), VALUE) && !strstr(text_of(&out), "\\\"" VALUE);
    moe_buf_release(&out);
    return takes;
}

/* Whether a conversation is written with both words. */
static bool writes_both(struct chat_probe *p, json_t *messages, const char *one, const char *other)
{
    struct moe_buf out = {0};
    bool both = probe_write(p, messages, NULL, true, &out) && strstr(text_of(&out), one) &&
                strstr(text_of(&out), other);
    moe_buf_release(&out);
    return both;
}

/* Finds which messages must be joined, or be questions, or have another role: a template may refuse
 * two of a kind, or leave one out. What it refuses of simpler conversations too is left to it. */
static void find_order(struct chat_probe *p)
{
    struct chat_forms *f = &p->chat->forms;
    json_t *asked = message(p, "user", PROBE_USER), *first = message(p, "system", SYSTEM);
    const bool takes_system = writes_both(p, json_pack("[O,O]", first, asked), SYSTEM, PROBE_USER);
    const bool takes_turns =
        writes_both(p, answered(p, message(p, "user", USER2)), PROBE_ANSWER, USER2);
    f->no_system = !takes_system && template_writes(p, question(p), NULL, PROBE_USER);
    if (takes_system && !f->no_developer)
        f->no_developer = !writes_both(
            p, json_pack("[O,o,O]", first, message(p, "developer", USER2), asked), SYSTEM, USER2);
    f->one_system = takes_system &&
                    !writes_both(p, json_pack("[O,o,O]", first, message(p, "system", USER2), asked),
                                 SYSTEM, USER2);
    f->early_system =
        takes_turns && !writes_both(p,
                                    json_pack("[O*,O,o,o,O]", takes_system ? first : NULL, asked,
                                              message(p, "assistant", PROBE_ANSWER),
                                              message(p, "system", USER2), asked),
                                    takes_system ? SYSTEM : USER2, USER2);
    f->one_user =
        takes_turns &&
        !writes_both(p, json_pack("[o,O]", message(p, "user", USER2), asked), USER2, PROBE_USER);
    json_decref(asked);
    json_decref(first);
}

/* Finds what stands where a system text would, without one. */
static void find_own_system(struct chat_probe *p)
{
    struct moe_buf with = {0}, own = {0};
    if (!p->chat->forms.no_system &&
        probe_write(
            p, json_pack("[o,o]", message(p, "system", SYSTEM), message(p, "user", PROBE_USER)),
            NULL, true, &with) &&
        probe_write(p, question(p), NULL, true, &own)) {
        const char *at = strstr(text_of(&with), SYSTEM), *text = text_of(&own);
        const size_t before = at ? (size_t)(at - text_of(&with)) : 0,
                     behind = at ? strlen(at + strlen(SYSTEM)) : 0, n = strlen(text);
        if (at && n > before + behind && memcmp(text, text_of(&with), before) == 0 &&
            strcmp(text + n - behind, at + strlen(SYSTEM)) == 0) {
            p->chat->own_system = moe_strndup(text + before, n - before - behind, NULL);
            p->short_of_memory |= !p->chat->own_system;
        }
    }
    moe_buf_release(&with);
    moe_buf_release(&own);
}

/* A call, or an answer where none can be written, and what the tool said. */
static json_t *with_result(const struct chat_probe *p)
{
    const struct chat_forms *f = &p->chat->forms;
    json_t *messages = f->no_calls ? answered(p, NULL)
                                   : answer_calling(p, f->arguments_as_text, probe_content(p, ""));
    json_array_append_new(messages,
                          json_pack("{s:s,s:s,s:s,s:o}", "role", "tool", "tool_call_id",
                                    "abcdefgh1", "name", TOOL, "content", probe_content(p, USER2)));
    return messages;
}

static void find_forms(struct chat_probe *p)
{
    struct chat_forms *f = &p->chat->forms;
    struct moe_buf out = {0};
    bool parts = takes_parts(p), texts = template_writes(p, question(p), NULL, PROBE_USER);
    if (!parts && !texts) {
        f->lists_tools = true;
        parts = takes_parts(p), texts = template_writes(p, question(p), NULL, PROBE_USER);
        f->lists_tools = parts || texts;
    }
    f->parts_only = parts && !texts;
    f->texts_only = !parts;
    if (probe_write(p, question(p), tools(), true, &out))
        f->no_tools = !strstr(text_of(&out), TOOL);
    f->arguments_as_text =
        !template_writes(p, answer_calling(p, false, json_string("")), tools(), VALUE) &&
        takes_arguments_as_text(p);
    f->needs_content = !probe_write(p, answer_calling(p, f->arguments_as_text, json_null()),
                                    tools(), false, &out) ||
                       strstr(text_of(&out), "None");
    const bool calls = probe_write(p, answer_calling(p, f->arguments_as_text, probe_content(p, "")),
                                   tools(), false, &out);
    f->no_calls = calls ? !strstr(text_of(&out), VALUE) : f->no_tools;
    f->no_results = f->no_tools && !template_writes(p, with_result(p), tools(), USER2);
    moe_buf_release(&out);
}

/* ---- How answers end ---- */

static void add_stop(struct chat_probe *p, const char *text, uint64_t n)
{
    char **stops = p->chat->stops;
    int i = 0;
    for (; stops[i]; i++)
        if (strlen(stops[i]) == n && memcmp(stops[i], text, n) == 0)
            return;
    if (i == MAX_STOPS || n == 0 || n > MAX_MARK)
        return;
    stops[i] = moe_strndup(text, n, NULL);
    p->short_of_memory |= !stops[i];
}

/* Adds the first (or last) special token in n bytes of text; false: none. */
static bool add_special(struct chat_probe *p, const char *text, uint64_t n, bool last)
{
    struct moe_ids ids = {0};
    struct moe_err err;
    int64_t found = -1;
    int status = moe_tokenizer_encode(p->tok, text, n, true, &ids, &err);
    for (uint64_t i = 0; status == MOE_OK && i < ids.n && (last || found < 0); i++)
        if (moe_tokenizer_is_special(p->tok, ids.ids[i]))
            found = ids.ids[i];
    p->short_of_memory |= status == MOE_ERR_MEMORY;
    moe_ids_release(&ids);
    uint32_t length = 0;
    const uint8_t *bytes =
        found >= 0 ? moe_tokenizer_bytes(p->tok, (uint32_t)found, &length) : NULL;
    add_stop(p, (const char *)bytes, length);
    return found >= 0;
}

/* Adds the text itself if it has no special token, from its line's beginning. */
static void add_text(struct chat_probe *p, const char *text, uint64_t n)
{
    while (n && strchr(" \t\r\n", text[n - 1]))
        n--;
    while (n > 1 && strchr(" \t\r\n", text[0]) && !(text[0] == '\n' && text[1] != '\n'))
        text++, n--;
    if (n > 1)
        add_stop(p, text, n);
}

/* Whether the template heeds add_generation_prompt: the conversation ends differently without an
 * answer to follow. */
static bool heeds_prompt(struct chat_probe *p)
{
    struct moe_buf with = {0}, without = {0};
    bool heeds = probe_write(p, question(p), NULL, true, &with) &&
                 probe_write(p, question(p), NULL, false, &without) && with.size > without.size;
    moe_buf_release(&with);
    moe_buf_release(&without);
    return heeds;
}

/* Finds the end of an answer: after the last answer of a conversation, else between an answer and
 * the next question. */
static void find_end_of_text(struct chat_probe *p, bool heeds)
{
    struct moe_buf last = {0}, inner = {0};
    const char *end = NULL, *between = NULL, *next = NULL;
    if (probe_write(p, answered(p, NULL), NULL, false, &last))
        end = behind_last(text_of(&last), PROBE_ANSWER);
    if (probe_write(p, answered(p, message(p, "user", USER2)), NULL, false, &inner)) {
        between = behind_last(text_of(&inner), PROBE_ANSWER);
        next = between ? strstr(between, USER2) : NULL;
    }
    uint64_t n_between = next ? (uint64_t)(next - between) : 0;
    bool last_counts = end && (heeds || n_between == 0);
    if (!(last_counts && add_special(p, end, strlen(end), false)) &&
        !(n_between && add_special(p, between, n_between, false))) {
        if (last_counts && end[strspn(end, " \t\r\n")])
            add_text(p, end, strlen(end));
        else if (n_between)
            add_text(p, between, n_between);
    }
    moe_buf_release(&last);
    moe_buf_release(&inner);
}

/* Finds the tokens that close a call; they come before the one that ends the answer. */
static void find_end_of_call(struct chat_probe *p)
{
    struct moe_buf out = {0};
    if (!p->chat->forms.no_calls &&
        probe_write(p, answer_calling(p, p->chat->forms.arguments_as_text, json_string("")),
                    tools(), false, &out)) {
        const char *end = behind_last(text_of(&out), VALUE);
        if (end)
            add_special(p, end, strlen(end), true);
    }
    moe_buf_release(&out);
}

/* ---- Thoughts ---- */

/* text[0..n) without surrounding blanks; NULL if empty or long. */
static char *trimmed_mark(struct chat_probe *p, const char *text, uint64_t n)
{
    while (n && strchr(" \t\r\n", text[n - 1]))
        n--;
    while (n && strchr(" \t\r\n", *text))
        text++, n--;
    if (n == 0 || n > MAX_MARK)
        return NULL;
    char *copy = moe_strndup(text, n, NULL);
    p->short_of_memory |= !copy;
    return copy;
}

/* The beginning of the last mark in an answer's opening: after another mark, or with its line. A
 * word is part of the mark before it ("<|channel>thought"). */
static uint64_t last_mark(const char *text, uint64_t n)
{
    while (n && strchr(" \t\r\n", text[n - 1]))
        n--;
    const bool is_word = n && isalpha((unsigned char)text[n - 1]);
    n -= n > 0;
    while (n && text[n - 1] != '\n' && text[n - 1] != '>')
        n--;
    if (is_word && n && text[n - 1] == '>')
        while (n && text[n] != '<')
            n--;
    return n;
}

/* Takes a thought's marks in the place of others, where there are both. */
static void set_marks(struct chat_probe *p, char *begins, char *ends, const char *member)
{
    free(p->chat->thought_begins);
    free(p->chat->thought_ends);
    p->chat->thought_begins = begins;
    p->chat->thought_ends = ends;
    if (begins && ends)
        p->chat->thought_member = member;
}

/* Finds the marks around THOUGHT in `text`, whose answer begins after `opening`, n bytes. */
static void take_marks(struct chat_probe *p, const char *opening, uint64_t n, const char *text,
                       const char *member)
{
    const char *at = strstr(text, THOUGHT), *after = at ? at + strlen(THOUGHT) : NULL;
    const char *answer = after ? strstr(after, PROBE_ANSWER) : NULL;
    uint64_t same = 0;
    if (!answer)
        return;
    while (same < n && text + same < at && opening[same] == text[same])
        same++;
    while (same && text[same - 1] == '<') /* "<think>" and "</think>" begin alike */
        same--;
    char *begins = trimmed_mark(p, text + same, (uint64_t)(at - text) - same),
         *ends = trimmed_mark(p, after, (uint64_t)(answer - after));
    if (!begins) /* what else the prompt opens the answer with, or ends an empty thought with */
        begins = trimmed_mark(p, opening + same, n - same);
    if (begins && ends && strncmp(ends, begins, strlen(begins)) == 0) {
        free(begins);
        begins = NULL;
    }
    if (!begins) { /* the answer's opening contains it */
        uint64_t open = last_mark(text, same);
        begins = trimmed_mark(p, text + open, same - open);
    }
    set_marks(p, begins, ends, member);
}

/* Finds the text before the content of an answer without thought. */
static void find_lead(struct chat_probe *p, const char *opening, uint64_t n)
{
    struct moe_buf out = {0};
    if (probe_write(p, answered(p, NULL), NULL, false, &out)) {
        const char *answer = strstr(text_of(&out), PROBE_ANSWER);
        uint64_t before = answer ? (uint64_t)(answer - text_of(&out)) : 0;
        if (before > n && memcmp(text_of(&out), opening, n) == 0)
            p->chat->lead = trimmed_mark(p, text_of(&out) + n, before - n);
    }
    moe_buf_release(&out);
}

/* Marks of models whose templates leave thoughts out of what they write, and look for their end;
 * what ends their answers. Apriel-1.5 is told them in words, but for how it begins. */
static void take_known_marks(struct chat_probe *p, const char *source, uint64_t n)
{
    static const char *const known[][3] = {
        {"Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]"},
        {"<think>", "</think>", ""},
        {"[THINK]", "[/THINK]", ""},
        {"<thinking>", "</thinking>", ""},
        {"<|START_THINKING|>", "<|END_THINKING|>", ""}};
    for (size_t i = 0; i < sizeof known / sizeof known[0] && !p->chat->thought_member; i++) {
        const char *begins = known[i][0], *ends = known[i][1];
        if (!memmem(source, n, ends, strlen(ends)))
            continue;
        set_marks(p, trimmed_mark(p, begins, strlen(begins)), trimmed_mark(p, ends, strlen(ends)),
                  "reasoning_content");
        add_stop(p, known[i][2], strlen(known[i][2]));
    }
}

static void look_for_thoughts(struct chat_probe *p)
{
    static const char *const members[] = {"reasoning_content", "thinking", "reasoning"};
    struct moe_buf prompt = {0}, out = {0};
    if (probe_write(p, question(p), NULL, true, &prompt)) {
        uint64_t n = prompt.size - 1;
        for (int i = 0; i < 6 && !p->chat->thought_member; i++) /* some only where a call follows */
            if (probe_write(p, thought(p, members[i % 3], i >= 3), NULL, false, &out))
                take_marks(p, text_of(&prompt), n, text_of(&out), members[i % 3]);
        if (p->chat->thought_member)
            find_lead(p, text_of(&prompt), n);
    }
    moe_buf_release(&prompt);
    moe_buf_release(&out);
}

static void find_thoughts(struct chat_probe *p, const char *source, uint64_t n)
{
    look_for_thoughts(p);
    p->thinks = !p->chat->thought_member; /* some write them only where they are told to */
    if (p->thinks)
        look_for_thoughts(p);
    p->thinks = false;
    take_known_marks(p, source, n);
}

/* Finds whether an answer with a call may have a thought and a content. */
static void find_texts(struct chat_probe *p)
{
    struct chat_forms *f = &p->chat->forms;
    struct moe_buf out = {0};
    f->one_text = p->chat->thought_member && !f->no_calls &&
                  !probe_write(p, thought(p, p->chat->thought_member, true), tools(), false, &out);
    moe_buf_release(&out);
}

int chat_probe_all(struct moe_chat *chat, const struct moe_tokenizer *tok, const char *source,
                   uint64_t n, struct moe_err *err)
{
    struct chat_probe p = {.chat = chat, .tok = tok};
    chat->stops = moe_alloc(MAX_STOPS + 1, sizeof *chat->stops, err);
    if (!chat->stops)
        return MOE_ERR_MEMORY;
    find_forms(&p);
    find_order(&p);
    find_own_system(&p);
    find_end_of_text(&p, heeds_prompt(&p));
    find_end_of_call(&p);
    find_thoughts(&p, source, n);
    find_texts(&p);
    chat_learn_calls(&p, source, n);
    return p.short_of_memory ? moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", chat->name)
                             : MOE_OK;
}
