#include "engine/prompt.h"

#include <string.h>

#include "base/mem.h"
#include "run/source.h"

/* A special token's text for the templates, "" where the model has none. */
static void token_text(const struct moe_tokenizer *tok, int64_t id, struct moe_buf *out)
{
    uint32_t n = 0;
    const uint8_t *bytes = id >= 0 ? moe_tokenizer_bytes(tok, (uint32_t)id, &n) : NULL;
    moe_buf_append(out, bytes, n);
    moe_buf_u8(out, 0);
}

int moe_prompt_render(const struct moe_model *model, const struct moe_chat_format *format,
                      const struct moe_chat_turn *turns, int n_turns, struct tm today,
                      struct moe_buf *out, struct moe_buf *words, struct moe_err *err)
{
    const struct moe_tokenizer *tok = model->tokenizer;
    struct moe_buf bos = {0}, eos = {0};
    token_text(tok, moe_tokenizer_bos(tok), &bos);
    token_text(tok, moe_tokenizer_eos(tok), &eos);
    if (!bos.failed && !eos.failed) {
        const struct moe_chat_facts facts = {(const char *)bos.data, (const char *)eos.data, today};
        moe_chat_render(format, turns, n_turns, true, &facts, out, words);
    }
    bool failed = bos.failed || eos.failed || out->failed || (words && words->failed);
    moe_buf_release(&bos);
    moe_buf_release(&eos);
    return failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory: the conversation's text")
                  : MOE_OK;
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

int moe_prompt_chat(const struct moe_model *model, const struct moe_chat_format *format,
                    const struct moe_chat_turn *turns, int n_turns, struct moe_ids *ids,
                    struct moe_err *err)
{
    struct moe_buf all = {0}, words = {0};
    if (model->config.n_encoder)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "the model's encoder reads a source by itself, and no chat: ask for a "
                        "completion of text");
    int status =
        moe_prompt_render(model, format, turns, n_turns, moe_chat_today(), &all, &words, err);
    if (status == MOE_OK)
        status = moe_prompt_encode(model, &all, &words, 0, ids, err);
    moe_buf_release(&all);
    moe_buf_release(&words);
    return status;
}

int moe_prompt_plain(const struct moe_model *model, const char *text, uint64_t n,
                     struct moe_ids *ids, struct moe_err *err)
{
    if (model->config.n_encoder || model->config.prefix_lm)
        return moe_prompt_source(model, text, n, ids, err);
    int64_t bos = moe_tokenizer_bos(model->tokenizer);
    int status = bos >= 0 ? moe_ids_push(ids, (uint32_t)bos, err) : MOE_OK;
    if (status == MOE_OK)
        status = moe_tokenizer_encode(model->tokenizer, text, n, false, ids, err);
    return status;
}

int moe_prompt_prefixed(const struct moe_model *model, const char *prefix, const char *text,
                        uint64_t n, struct moe_ids *ids, struct moe_err *err)
{
    if (!prefix)
        return moe_prompt_plain(model, text, n, ids, err);
    if (!model->config.prefix_lm)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "the model sees no prefix as a whole: put it before the text itself");
    int status = moe_prompt_source(model, prefix, strlen(prefix), ids, err);
    return status == MOE_OK ? moe_tokenizer_encode(model->tokenizer, text, n, false, ids, err)
                            : status;
}

int moe_prompt_source(const struct moe_model *model, const char *text, uint64_t n,
                      struct moe_ids *ids, struct moe_err *err)
{
    return moe_tokenizer_encode_source(model->tokenizer, text, n, false, ids, err);
}

void moe_prompt_mark(struct moe_session *s, uint32_t sequence, const uint32_t *ids, uint64_t n)
{
    int64_t separator = moe_tokenizer_tail(s->model->tokenizer);
    uint32_t prefix = 0;
    while (prefix < n && ids[prefix] != separator)
        prefix++;
    moe_sequence_prompt(s, sequence, (uint32_t)n, prefix);
}

const char **moe_prompt_stops(const char *const *stops, const struct moe_chat_format *format,
                              struct moe_err *err)
{
    const char *const *lists[2] = {stops, format ? moe_chat_stops(format) : NULL};
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
