#include "engine/conversation_says.h"

#include <jansson.h>

void conversation_append_answer(const struct moe_conversation *c, struct moe_buf *out)
{
    const struct moe_tokenizer *tok = c->session->model->tokenizer;
    for (uint64_t i = c->answer_at; i < c->history.n; i++) {
        uint32_t n = 0;
        const uint8_t *bytes = moe_tokenizer_bytes(tok, c->history.ids[i], &n);
        moe_buf_append(out, bytes, n);
    }
}

/* Of an answer with the texts of special tokens, those left out that stand before byte `to`: where
 * that is in what was shown. */
static uint64_t shown_before(const struct moe_conversation *c, uint64_t to)
{
    const struct moe_tokenizer *tok = c->session->model->tokenizer;
    uint64_t at = 0, shown = 0;
    for (uint64_t i = c->answer_at; i < c->history.n && at < to; i++) {
        uint32_t n = 0;
        moe_tokenizer_bytes(tok, c->history.ids[i], &n);
        uint64_t part = at + n > to ? to - at : n;
        shown += moe_tokenizer_is_special(tok, c->history.ids[i]) ? 0 : part;
        at += n;
    }
    return shown;
}

/* The part of what was shown that stands there in the whole answer. */
static json_t *part_of(const struct moe_conversation *c, const struct moe_buf *shown,
                       struct moe_span in_all, struct moe_err *err)
{
    uint64_t from = shown_before(c, in_all.at), to = shown_before(c, in_all.at + in_all.n);
    to = to > shown->size ? shown->size : to; /* a stop text is not shown */
    from = from > to ? to : from;
    return moe_chat_message("assistant", (const char *)shown->data + from, to - from, err);
}

json_t *conversation_answer_message(const struct moe_conversation *c, const struct moe_buf *shown,
                                    struct moe_err *err)
{
    struct moe_buf all = {0};
    struct moe_chat_answer parts;
    conversation_append_answer(c, &all);
    moe_chat_split(c->chat, c->in_thought, (const char *)all.data, all.size, &parts);
    bool whole = c->cut || all.failed || (!parts.has_thought && parts.content.n == all.size);
    moe_buf_release(&all);
    if (whole)
        return moe_chat_message("assistant", (const char *)shown->data, shown->size, err);
    json_t *message = part_of(c, shown, parts.content, err);
    json_t *thought = message && parts.has_thought ? part_of(c, shown, parts.thought, err) : NULL;
    if (thought && json_object_set(message, moe_chat_thought_member(c->chat),
                                   json_object_get(thought, "content")) != 0) {
        moe_fail(err, MOE_ERR_MEMORY, "out of memory: a message");
        json_decref(message);
        message = NULL;
    }
    json_decref(thought);
    return message;
}

void conversation_append_shown(const struct moe_conversation *c, struct moe_buf *out)
{
    const struct moe_tokenizer *tok = c->session->model->tokenizer;
    const json_t *last = json_array_get(c->messages, json_array_size(c->messages) - 1);
    const char *member = moe_chat_thought_member(c->chat), *text = moe_chat_text(last);
    if (text && !(member && json_object_get(last, member))) {
        moe_buf_text(out, text);
        return;
    }
    for (uint64_t i = c->answer_at; i < c->history.n; i++) {
        uint32_t n = 0;
        const uint8_t *bytes = moe_tokenizer_bytes(tok, c->history.ids[i], &n);
        if (!moe_tokenizer_is_special(tok, c->history.ids[i]))
            moe_buf_append(out, bytes, n);
    }
}
