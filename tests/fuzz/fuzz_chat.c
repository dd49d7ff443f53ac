/*
 * A chat template (Jinja), or (where the input begins with a byte below 64, the format's number) a
 * conversation, a turn to a line, each after its role. What opens the answer follows the turns, and
 * the pieces that are the turns' words lie in order.
 */
/* Readers: text/chat_recognise.c text/chat.c */
#define _GNU_SOURCE
#include <time.h>

#include "mutate.h"
#include "text/chat.h"
#include "text/tokenizer.h"

static void render(const struct moe_chat_format *format, const struct moe_chat_turn *turns, int n)
{
    const struct moe_chat_facts facts = {
        "<s>", "</s>", {.tm_year = 126, .tm_mon = 1, .tm_mday = 3}};
    struct moe_buf with = {0}, without = {0}, prompt = {0}, words = {0};
    moe_chat_render(format, turns, n, false, &facts, &with, &words);
    moe_chat_render(format, turns, n, false, &facts, &without, NULL);
    moe_chat_render(format, turns, n, true, &facts, &prompt, NULL);
    if (prompt.size < with.size || (with.size && memcmp(prompt.data, with.data, with.size) != 0))
        abort(); /* what opens the answer follows the turns */
    uint64_t at = 0;
    for (uint64_t i = 0; i < words.size / sizeof(struct moe_span); i++) {
        struct moe_span span;
        memcpy(&span, words.data + i * sizeof span, sizeof span);
        if (span.at < at || span.n == 0 || span.at + span.n > with.size)
            abort();
        at = span.at + span.n;
    }
    fuzz_same(&with, &without);
    moe_buf_release(&prompt);
    moe_buf_release(&words);
    for (const char *const *stop = moe_chat_stops(format); *stop; stop++)
        if (!**stop)
            abort();
}

static void converse(const uint8_t *data, size_t n)
{
    enum { MOST = 8 };
    struct moe_chat_turn turns[MOST];
    const struct moe_chat_format *format = moe_chat_at(data[0]);
    int n_turns = 0;
    if (!format)
        return;
    char *text = fuzz_text(data + 1, n - 1);
    for (char *rest = text, *line; n_turns < MOST && (line = strsep(&rest, "\n"));) {
        enum moe_chat_role role = (enum moe_chat_role)((uint8_t)line[0] % 3);
        turns[n_turns++] = (struct moe_chat_turn){role, line[0] ? line + 1 : line};
    }
    render(format, turns, n_turns);
    free(text);
}

static void recognise(const uint8_t *data, size_t n)
{
    static const struct moe_chat_turn turns[] = {{MOE_CHAT_SYSTEM, " Be brief. "},
                                                 {MOE_CHAT_USER, "Who?\n"},
                                                 {MOE_CHAT_ASSISTANT, "<think>m</think>\nI."},
                                                 {MOE_CHAT_USER, ""}};
    char *jinja = fuzz_text(data, n);
    const struct moe_chat_format *format = moe_chat_recognise(jinja);
    if (format) {
        if (moe_chat_find(moe_chat_name(format)) != format)
            abort();
        render(format, turns, 4);
    }
    free(jinja);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    moe_chat_today();
    if (n && data[0] < 64 && data[0] != '\n' && data[0] != ' ')
        converse(data, n);
    else
        recognise(data, n);
    return 0;
}

FUZZ_MUTATE_TEXT
