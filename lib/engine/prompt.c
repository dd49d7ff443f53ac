/* Prompts: ids of chats and of plain text, and whether they fit. */
#include "engine/prompt.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "infer/forward.h"

enum {
    ANSWER_ROOM = 256,  /* tokens of a context for the answer, at least */
    CONTEXT_STEP = 256, /* contexts that are named are multiples of it */
    LOOK = 4,           /* contexts of a text that is too long are looked at, for its length */
};

int moe_prompt_open_chat(struct moe_chat **out, const struct moe_model *model, const char *name,
                         const char *template, uint64_t n, struct moe_err *err)
{
    *out = NULL;
    if (!template) {
        template = model->chat_template;
        n = strlen(template);
        if (!n)
            return MOE_OK;
    }
    return moe_chat_open(out, name, template, n, model->tokenizer, err);
}

int moe_prompt_encode(const struct moe_model *model, const struct moe_buf *rendered,
                      const struct moe_buf *words, uint64_t known, struct moe_ids *ids,
                      struct moe_err *err)
{
    struct moe_span *spans = (struct moe_span *)(void *)words->data;
    uint64_t n = words->size / sizeof *spans, kept = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t from = spans[i].at > known ? spans[i].at : known, to = spans[i].at + spans[i].n;
        if (to > from)
            spans[kept++] = (struct moe_span){from - known, to - from};
    }
    return moe_tokenizer_encode_chat(model->tokenizer, (const char *)rendered->data + known,
                                     rendered->size - known, spans, kept, ids, err);
}

int moe_prompt_too_long(const struct moe_config *config, uint64_t n, bool least, uint64_t context,
                        struct moe_err *err)
{
    char way[96];
    uint64_t larger = moe_round_up(n + (least ? 1 : ANSWER_ROOM), CONTEXT_STEP);
    if (n < config->context_max)
        snprintf(way, sizeof way, "-c %" PRIu64 "%s",
                 larger < config->context_max ? larger : config->context_max,
                 least ? " or more" : " would hold it");
    else
        snprintf(way, sizeof way, "the model's own is %" PRIu32, config->context_max);
    return moe_fail(err, MOE_ERR_LIMIT,
                    "the prompt of %s%" PRIu64 " tokens does not fit the context of %" PRIu64
                    " (%s)",
                    least ? "at least " : "", n, context, way);
}

/* words: of a chat, whose special tokens are such outside of them; NULL: plain text. */
static int check_length(const struct moe_model *model, const char *text, uint64_t n,
                        const struct moe_buf *words, uint64_t context, uint64_t most_bytes,
                        struct moe_err *err)
{
    struct moe_tokenizer_survey look;
    const struct moe_tokenizer *tok = model->tokenizer;
    const struct moe_span *spans = words ? (const struct moe_span *)(void *)words->data : NULL;
    /* no more tokens than bytes */
    if (n <= context && moe_tokenizer_memory(tok, n, n) <= most_bytes)
        return MOE_OK;
    MOE_TRY(words ? moe_tokenizer_look_chat(tok, text, n, spans, words->size / sizeof *spans,
                                            LOOK * context, &look, err)
                  : moe_tokenizer_look(tok, text, n, LOOK * context, &look, err));
    if (look.least_ids > context)
        return moe_prompt_too_long(&model->config, look.least_ids, true, context, err);
    return moe_tokenizer_memory(tok, n, look.longest_piece) <= most_bytes
               ? MOE_OK
               : moe_fail(err, MOE_ERR_LIMIT,
                          "making tokens of the prompt's %" PRIu64 " bytes, of which the longest "
                          "word has %" PRIu64 ", takes more than %" PRIu64 " KiB of memory",
                          n, look.longest_piece, most_bytes >> 10);
}

int moe_prompt_check_length(const struct moe_model *model, const char *text, uint64_t n,
                            uint64_t context, uint64_t most_bytes, struct moe_err *err)
{
    return check_length(model, text, n, NULL, context, most_bytes, err);
}

/* Each text in messages or tools: a conversation with one that is too long is not even written. */
static int check_texts(const struct moe_model *model, const json_t *json, uint64_t context,
                       uint64_t most_bytes, struct moe_err *err)
{
    const char *key;
    json_t *item;
    size_t i;
    if (json_is_string(json))
        return moe_prompt_check_length(model, json_string_value(json), json_string_length(json),
                                       context, most_bytes, err);
    json_array_foreach(json, i, item)
    {
        MOE_TRY(check_texts(model, item, context, most_bytes, err));
    }
    json_object_foreach((json_t *)json, key, item)
    {
        MOE_TRY(check_texts(model, item, context, most_bytes, err));
    }
    return MOE_OK;
}

/* Renders the chat as it is when another question has come. */
static int render_next(const struct moe_chat *chat, const struct moe_chat_input *input,
                       struct moe_buf *out, struct moe_err *err)
{
    struct moe_chat_input next = *input;
    json_t *messages = json_copy((json_t *)input->messages);
    int status = messages ? MOE_OK : moe_fail(err, MOE_ERR_MEMORY, "out of memory: messages");
    for (int i = 0; i < 2 && status == MOE_OK; i++) {
        json_t *message = moe_chat_message(i ? "user" : "assistant", "x", 1, err);
        if (!message || json_array_append_new(messages, message) != 0)
            status = MOE_ERR_MEMORY;
    }
    next.messages = messages;
    next.allowance = NULL;
    if (status == MOE_OK)
        status = moe_chat_render(chat, &next, out, NULL, err);
    json_decref(messages);
    return status;
}

uint64_t moe_prompt_again(const struct moe_model *model, const struct moe_chat *chat,
                          const struct moe_chat_input *input, const struct moe_buf *rendered,
                          const struct moe_ids *ids)
{
    struct moe_buf next = {0};
    struct moe_err refused;
    uint64_t n = ids->n, same = 0, end = rendered->size;
    if (model->config.layers[model->config.n_layers].state_index == 0)
        return 0;
    if (render_next(chat, input, &next, &refused) != MOE_OK) /* then as if nothing changed */
        same = end;
    while (same < end && same < next.size && rendered->data[same] == next.data[same])
        same++;
    for (uint32_t n_bytes; n > 0 && end > same; n--) {
        moe_tokenizer_bytes(model->tokenizer, ids->ids[n - 1], &n_bytes);
        end -= n_bytes < end ? n_bytes : end;
    }
    /* What follows may make another token of the last one. */
    if (n > 1 && !moe_tokenizer_is_special(model->tokenizer, ids->ids[n - 1]))
        n--;
    moe_buf_release(&next);
    return n;
}

/* Ends what was rendered where the last message's text ends, with the blanks at that end or, as
 * templates may drop them, without. */
static int end_behind_text(const struct moe_chat_input *input, struct moe_buf *all,
                           struct moe_buf *words, struct moe_err *err)
{
    struct moe_buf text = {0};
    moe_chat_append_content(json_array_get(input->messages, json_array_size(input->messages) - 1),
                            &text);
    uint64_t n = text.size, end = 0, kept = 0;
    for (bool trimmed = false; !text.failed && end == 0 && n > 0; trimmed = true) {
        for (uint64_t at = all->size; at >= n && end == 0; at--)
            end = memcmp(all->data + at - n, text.data, n) == 0 ? at : 0;
        if (trimmed)
            break;
        while (n > 0 && strchr(" \t\r\n", text.data[n - 1]))
            n--;
    }
    const bool failed = text.failed;
    const uint64_t text_bytes = text.size;
    moe_buf_release(&text);
    if (failed)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: a message");
    if (end == 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        text_bytes ? "the chat template does not write the last message's text as "
                                     "it is: it cannot be continued"
                                   : "the last message has no text that could be continued");
    struct moe_span *spans = (struct moe_span *)(void *)words->data;
    for (uint64_t i = 0; i < words->size / sizeof *spans; i++)
        if (spans[i].at < end) {
            spans[kept] = spans[i];
            if (spans[kept].n > end - spans[kept].at)
                spans[kept].n = end - spans[kept].at;
            kept++;
        }
    words->size = kept * sizeof *spans;
    all->size = end;
    return MOE_OK;
}

int moe_prompt_chat(const struct moe_model *model, const struct moe_chat *chat,
                    const struct moe_chat_input *input, uint64_t context, struct moe_ids *ids,
                    uint64_t *again, struct moe_err *err)
{
    struct moe_buf all = {0}, words = {0};
    const uint64_t most = input->allowance ? input->allowance->max_bytes : UINT64_MAX;
    if (model->config.n_encoder)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "the model's encoder reads a source by itself, and no chat: ask for a "
                        "completion of text");
    int status;
    MOE_STEP(check_texts(model, input->messages, context, most, err));
    MOE_STEP(check_texts(model, input->tools, context, most, err));
    MOE_STEP(moe_chat_render(chat, input, &all, &words, err));
    if (input->continues)
        MOE_STEP(end_behind_text(input, &all, &words, err));
    MOE_STEP(check_length(model, (const char *)all.data, all.size, &words, context, most, err));
    MOE_STEP(moe_prompt_encode(model, &all, &words, 0, ids, err));
    if (again)
        *again = input->continues ? ids->n : moe_prompt_again(model, chat, input, &all, ids);
out:
    moe_buf_release(&all);
    moe_buf_release(&words);
    return status;
}

/* ---- The end of a conversation ---- */

static bool is_system(const json_t *message)
{
    return moe_chat_has_role(message, "system") || moe_chat_has_role(message, "developer");
}

/* Writes to `cuts`, ascending, where the conversation may begin: with a question, or behind the
 * last question with an answer. The last question is the messages from *asked until *answered.
 * Returns how many cuts there are. */
static size_t find_cuts(const json_t *messages, size_t *cuts, size_t *asked, size_t *answered)
{
    const size_t n_messages = json_array_size(messages);
    size_t n = 0, n_kept = 0;
    bool before = false; /* the message before is a question */
    *asked = *answered = 0;
    for (size_t i = 0; i < n_messages; i++) {
        const bool is = moe_chat_has_role(json_array_get(messages, i), "user");
        if (is && !before)
            *asked = i;
        if (is)
            *answered = i + 1;
        before = is;
    }
    before = false;
    for (size_t i = 0; i < n_messages; i++) {
        const json_t *message = json_array_get(messages, i);
        const bool is = moe_chat_has_role(message, "user");
        if (n_kept &&
            ((is && !before) || (i > *answered && moe_chat_has_role(message, "assistant"))))
            cuts[n++] = i;
        n_kept += !is_system(message);
        before = is;
    }
    return n;
}

/* The messages from `cut` on, with the system texts and the last question before it; NULL: out of
 * memory. */
static json_t *end_of(const json_t *messages, size_t cut, size_t asked, size_t answered)
{
    json_t *kept = json_array(), *message;
    size_t i;
    int failed = !kept;
    json_array_foreach((json_t *)messages, i, message)
    {
        if (i >= cut || is_system(message) || (i >= asked && i < answered))
            failed |= json_array_append(kept, message);
    }
    if (!failed)
        return kept;
    json_decref(kept);
    return NULL;
}

int moe_prompt_chat_end(const struct moe_model *model, const struct moe_chat *chat,
                        const struct moe_chat_input *input, uint64_t context, uint64_t room,
                        struct moe_ids *ids, uint64_t *again, uint32_t *n_left_out,
                        struct moe_err *err)
{
    const size_t n_messages = json_array_size(input->messages);
    struct moe_allowance allowance = input->allowance ? *input->allowance : moe_allowance_usual();
    struct moe_chat_input in = *input;
    struct moe_ids tried = {0};
    size_t asked, answered, *cuts;
    uint64_t next;
    *n_left_out = 0;
    int status = moe_prompt_chat(model, chat, input, context, ids, again, err);
    if (status == MOE_OK && ids->n > context)
        status = moe_prompt_too_long(&model->config, ids->n, false, context, err);
    const bool fits = status == MOE_OK;
    if (fits ? ids->n + room <= context : status != MOE_ERR_LIMIT)
        return status;
    if (!(cuts = moe_alloc(n_messages, sizeof *cuts, err)))
        return MOE_ERR_MEMORY;
    /* Those from `high` on leave enough, or have no shorter one; those before `low` do not. The
     * shortest are tried first, so that no try is much longer than what fits; together they have
     * what one conversation may cost. */
    const size_t n_cuts = find_cuts(input->messages, cuts, &asked, &answered);
    size_t low = 0, high = n_cuts, step = 1;
    in.allowance = &allowance;
    while (low < high) {
        const size_t at = low ? low + (high - low) / 2 : high - (step < high ? step : high);
        json_t *kept = end_of(input->messages, cuts[at], asked, answered);
        in.messages = kept;
        tried.n = 0;
        allowance.bytes = 0;
        allowance.status = MOE_OK;
        status = kept ? moe_prompt_chat(model, chat, &in, context, &tried, &next, err)
                      : moe_fail(err, MOE_ERR_MEMORY, "out of memory: messages");
        if (status == MOE_OK && tried.n + (at + 1 < n_cuts ? room : 0) > context)
            status = moe_prompt_too_long(&model->config, tried.n, false, context, err);
        if (status == MOE_OK) {
            struct moe_ids shorter = tried;
            tried = *ids;
            *ids = shorter;
            high = at;
            *n_left_out = (uint32_t)(n_messages - json_array_size(kept));
            if (again)
                *again = next;
        } else {
            low = at + 1;
        }
        json_decref(kept);
        step *= 2;
        if (status != MOE_OK && status != MOE_ERR_LIMIT)
            break;
    }
    if (status == MOE_ERR_LIMIT && (*n_left_out || fits))
        status = MOE_OK;
    if (status == MOE_ERR_LIMIT && n_cuts)
        moe_err_prefix(err, "the last question and the system texts are too long even without what "
                            "is before and behind them");
    free(cuts);
    moe_ids_release(&tried);
    return status;
}

int moe_prompt_plain(const struct moe_model *model, const char *text, uint64_t n,
                     struct moe_ids *ids, struct moe_err *err)
{
    return moe_tokenizer_encode_whole(model->tokenizer, text, n, false, ids, err);
}

int moe_prompt_language(const struct moe_model *model, const char *name, uint32_t *id,
                        struct moe_err *err)
{
    const struct moe_tokenizer *tok = model->tokenizer;
    if (!model->config.n_encoder || !moe_tokenizer_adds_bos(tok))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "the model's texts begin with no language: '%s' is for one that translates",
                        name);
    const int64_t found = moe_tokenizer_language(tok, name);
    if (found <= 0)
        return moe_fail(err, MOE_ERR_USAGE,
                        "the model has no language '%s': they are called as its tokenizer calls "
                        "them, eng_Latn or the like",
                        name);
    *id = (uint32_t)found;
    return MOE_OK;
}

int moe_prompt_source(const struct moe_model *model, const struct moe_languages *languages,
                      const char *text, uint64_t n, struct moe_ids *ids, uint32_t *target,
                      struct moe_err *err)
{
    const uint64_t first = ids->n;
    uint32_t source = 0;
    *target = model->config.answer_start;
    if (languages->target)
        MOE_TRY(moe_prompt_language(model, languages->target, target, err));
    if (languages->source)
        MOE_TRY(moe_prompt_language(model, languages->source, &source, err));
    MOE_TRY(moe_prompt_plain(model, text, n, ids, err));
    if (languages->source)
        ids->ids[first] = source;
    return MOE_OK;
}

int moe_prompt_prefixed(const struct moe_model *model, const char *prefix, const char *text,
                        uint64_t n, struct moe_ids *ids, struct moe_err *err)
{
    if (!prefix)
        return moe_prompt_plain(model, text, n, ids, err);
    if (!model->config.prefix_lm)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "the model sees no prefix as a whole: put it before the text itself");
    MOE_TRY(moe_prompt_plain(model, prefix, strlen(prefix), ids, err));
    return moe_tokenizer_encode(model->tokenizer, text, n, false, ids, err);
}

/* ---- Between two texts ---- */

/* The marks before a text, before what follows it, and before what is between, by families of
 * tokenizers. */
static const struct between {
    const char *text, *suffix, *middle; /* middle NULL: nothing but the text is before it */
    bool suffix_first;
} betweens[] = {
    /* Qwen from 2.5 on, Granite 4, CodeGemma */
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", false},
    /* StarCoder, Granite to 3 */
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", false},
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>", false},          /* SantaCoder */
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", false},    /* DeepSeek */
    {"▁<PRE>", "▁<SUF>", "▁<MID>", false},                            /* CodeLlama */
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", false}, /* GLM */
    {"<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", true},     /* Seed */
    {"[PREFIX]", "[SUFFIX]", NULL, true},                             /* Codestral */
};

/* What ends it: other files, other marks. */
static const char *const between_ends[] = {
    "<|fim_pad|>",        "<fim_pad>",     "<fim-pad>",   "<|file_sep|>", "<file_sep>",
    "<|file_separator|>", "<|repo_name|>", "<repo_name>", "▁<EOT>",       NULL,
};

static const struct between *find_between(const struct moe_tokenizer *tok)
{
    for (size_t i = 0; i < sizeof betweens / sizeof betweens[0]; i++) {
        const struct between *b = &betweens[i];
        if (moe_tokenizer_find(tok, b->text) >= 0 && moe_tokenizer_find(tok, b->suffix) >= 0 &&
            (!b->middle || moe_tokenizer_find(tok, b->middle) >= 0))
            return b;
    }
    return NULL;
}

int moe_prompt_between(const struct moe_model *model, const char *text, uint64_t n,
                       const char *suffix, struct moe_ids *ids, struct moe_err *err)
{
    const struct moe_tokenizer *tok = model->tokenizer;
    const struct between *b = find_between(tok);
    if (!b || model->config.n_encoder)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "the model has no tokens to fill in the middle: leave out the suffix");
    if (moe_tokenizer_adds_bos(tok) && moe_tokenizer_bos(tok) >= 0)
        MOE_TRY(moe_ids_push(ids, (uint32_t)moe_tokenizer_bos(tok), err));
    for (int i = 0; i < 2; i++) {
        bool last = (i == 1) != b->suffix_first;
        MOE_TRY(
            moe_ids_push(ids, (uint32_t)moe_tokenizer_find(tok, last ? b->suffix : b->text), err));
        MOE_TRY(moe_tokenizer_encode(tok, last ? suffix : text, last ? strlen(suffix) : n, false,
                                     ids, err));
    }
    return b->middle ? moe_ids_push(ids, (uint32_t)moe_tokenizer_find(tok, b->middle), err)
                     : MOE_OK;
}

/* The first of these tokens that there is; -1: none. */
static int64_t find_mark(const struct moe_tokenizer *tok, const char *const *marks)
{
    int64_t id = -1;
    for (; *marks && id < 0; marks++)
        id = moe_tokenizer_find(tok, *marks);
    return id;
}

/* Appends the mark, if there is one, and a text. */
static int append_marked(const struct moe_tokenizer *tok, int64_t mark, const char *text,
                         struct moe_ids *ids, struct moe_err *err)
{
    if (mark >= 0)
        MOE_TRY(moe_ids_push(ids, (uint32_t)mark, err));
    return moe_tokenizer_encode(tok, text, strlen(text), false, ids, err);
}

static int append_ids(const struct moe_ids *more, uint64_t from, struct moe_ids *ids,
                      struct moe_err *err)
{
    for (uint64_t i = from; i < more->n; i++)
        MOE_TRY(moe_ids_push(ids, more->ids[i], err));
    return MOE_OK;
}

/* Appends a file, below its name where there is a mark for that. */
static int append_file(const struct moe_tokenizer *tok, const struct moe_prompt_file *file,
                       int64_t mark, struct moe_ids *ids, struct moe_err *err)
{
    MOE_TRY(append_marked(tok, mark, mark < 0 ? "\n\n--- snippet ---\n\n" : file->name, ids, err));
    if (mark >= 0)
        MOE_TRY(append_marked(tok, -1, "\n", ids, err));
    return append_marked(tok, -1, file->text, ids, err);
}

int moe_prompt_files(const struct moe_model *model, const struct moe_prompt_file *files, uint32_t n,
                     uint64_t context, uint64_t most_bytes, struct moe_ids *ids,
                     struct moe_err *err)
{
    static const char *const between[] = {"<|file_sep|>", "<file_sep>", NULL}, *const begins[] = {
                                                                                   "<|repo_name|>",
                                                                                   "<repo_name>",
                                                                                   NULL};
    enum { MARKS = 16 }; /* ids around all files */
    const struct moe_tokenizer *tok = model->tokenizer;
    const int64_t mark = find_mark(tok, between), whole = find_mark(tok, begins);
    const uint64_t n_bos = moe_tokenizer_adds_bos(tok) && moe_tokenizer_bos(tok) >= 0;
    struct moe_ids all = {0}, taken = {0}, one = {0};
    bool fits = true;
    int status = MOE_OK;
    for (uint32_t i = n; i > 0 && fits; i--) {
        one.n = 0;
        fits = moe_prompt_check_length(model, files[i - 1].text, strlen(files[i - 1].text), context,
                                       most_bytes, NULL) == MOE_OK;
        if (fits)
            MOE_STEP(append_file(tok, &files[i - 1], mark, &one, err));
        fits = fits && ids->n + taken.n + one.n + MARKS <= context;
        if (fits) {
            MOE_STEP(append_ids(&taken, 0, &one, err));
            const struct moe_ids before = taken;
            taken = one;
            one = before;
        }
    }
    if (taken.n > 0) {
        for (uint64_t i = 0; i < n_bos; i++)
            MOE_STEP(moe_ids_push(&all, ids->ids[0], err));
        if (whole >= 0)
            MOE_STEP(
                append_marked(tok, whole, "myproject\n", &all, err)); /* as llama.cpp calls it */
        MOE_STEP(append_ids(&taken, 0, &all, err));
        if (mark >= 0)
            MOE_STEP(append_marked(tok, mark, "filename\n", &all, err));
        MOE_STEP(append_ids(ids, n_bos, &all, err));
        const struct moe_ids without = *ids;
        *ids = all;
        all = without;
    }
out:
    moe_ids_release(&all);
    moe_ids_release(&taken);
    moe_ids_release(&one);
    return status;
}

int moe_prompt_between_ends(const struct moe_model *model, struct moe_ids *ends,
                            struct moe_err *err)
{
    const struct between *b = find_between(model->tokenizer);
    const char *const marks[] = {b ? b->text : NULL, b ? b->suffix : NULL, b ? b->middle : NULL};
    for (size_t i = 0; i < 3 || between_ends[i - 3]; i++) {
        const char *name = i < 3 ? marks[i] : between_ends[i - 3];
        int64_t id = name ? moe_tokenizer_find(model->tokenizer, name) : -1;
        if (id >= 0)
            MOE_TRY(moe_ids_push(ends, (uint32_t)id, err));
    }
    return MOE_OK;
}

/* ---- What all of them have ---- */

void moe_prompt_mark(struct moe_session *s, uint32_t sequence, const uint32_t *ids, uint64_t n)
{
    int64_t separator = moe_tokenizer_tail(s->model->tokenizer);
    uint32_t prefix = 0;
    while (prefix < n && ids[prefix] != separator)
        prefix++;
    moe_sequence_prompt(s, sequence, (uint32_t)n, prefix);
}

const char **moe_prompt_stops(const char *const *stops, const struct moe_chat *chat,
                              struct moe_err *err)
{
    const char *const *lists[2] = {stops, chat ? moe_chat_stops(chat) : NULL};
    uint64_t n = 0;
    for (int i = 0; i < 2; i++)
        for (const char *const *text = lists[i]; text && *text; text++)
            n++;
    const char **all = moe_alloc(n + 1, sizeof *all, err);
    for (int i = 0, at = 0; all && i < 2; i++)
        for (const char *const *text = lists[i]; text && *text; text++)
            all[at++] = *text;
    return all;
}
