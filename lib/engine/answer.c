/* Answers: tokens taken one by one, and their text on its way out. */
#define _GNU_SOURCE /* memmem */
#include "engine/answer.h"

#include <stdlib.h>
#include <string.h>

#include "base/text.h"

/* ---- Text on its way out ---- */

/* Length of the longest end of text[0..n) with which `stop` could begin. */
static uint64_t overlap(const uint8_t *text, uint64_t n, const char *stop)
{
    uint64_t most = strlen(stop) - 1;
    for (uint64_t k = most < n ? most : n; k > 0; k--)
        if (memcmp(text + n - k, stop, k) == 0)
            return k;
    return 0;
}

static int show(struct moe_answer *a, uint64_t n)
{
    int status = MOE_OK;
    if (n && a->options->text)
        status = a->options->text(a->options->ctx, (const char *)a->pending.data, n);
    memmove(a->pending.data, a->pending.data + n, a->pending.size - n);
    a->pending.size -= n;
    return status;
}

/* Whether a stop text ends nothing where the answer is: it begins the end of its thought. */
static bool is_within_thought(const struct moe_answer *a, const char *stop)
{
    const char *own = a->options->thought.stop;
    return own && a->thought.place == MOE_IN_THOUGHT && strcmp(stop, own) == 0;
}

/* Finds where a stop text is in what is pending, before byte *first, and how many bytes at the end
 * may become one. */
static void find_stop(struct moe_answer *a, const char *stop, uint64_t *first, uint64_t *keep)
{
    const struct moe_generate_options *o = a->options;
    const char *text = (const char *)a->pending.data,
               *then = o->call_stop && strcmp(stop, o->call_stop) == 0 ? o->call_then : NULL;
    const uint64_t n = strlen(stop), n_then = then ? strlen(then) : 0, size = a->pending.size;
    uint64_t most = overlap(a->pending.data, size, stop);
    for (uint64_t i = 0; i + n <= size && i < *first; i++) {
        const uint64_t left = size - i - n, led = left < n_then ? left : n_then;
        if (memcmp(text + i, stop, n) != 0)
            continue;
        if (!then || memcmp(text + i + n, then, led) != 0) {
            *first = i;
            a->stop_text = stop;
        } else if (led < n_then && size - i > most) {
            most = size - i;
        }
    }
    *keep = most > *keep ? most : *keep;
}

/* The same of the stop text that begins the end of the thought that the answer is in: it is kept
 * back while that end may come, and ends the answer where something else follows. */
static void find_own_stop(struct moe_answer *a, const char *stop, uint64_t *first, uint64_t *keep)
{
    const uint8_t *text = a->pending.data;
    const uint64_t size = a->pending.size;
    const uint8_t *at = memmem(text, size, stop, strlen(stop));
    const uint64_t kept = at ? size - (uint64_t)(at - text) : overlap(text, size, stop);
    if (at && !a->thought.ending && (uint64_t)(at - text) < *first) {
        *first = (uint64_t)(at - text);
        a->stop_text = stop;
    }
    *keep = kept > *keep ? kept : *keep;
}

/* Takes a token's bytes; shows what is certain. *stopped: a stop text appeared. */
static int take_bytes(struct moe_answer *a, const uint8_t *bytes, uint32_t n, bool *stopped,
                      struct moe_err *err)
{
    moe_buf_append(&a->pending, bytes, n);
    if (a->pending.failed)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: %u bytes of text", n);
    if (!a->pending.size)
        return MOE_OK;
    uint64_t keep = 0, first = UINT64_MAX;
    const bool may_stop = a->n_tokens >= a->options->min_tokens;
    const char *const *stop = may_stop ? a->options->stop_texts : NULL;
    for (; stop && *stop; stop++)
        if (**stop)
            (is_within_thought(a, *stop) ? find_own_stop : find_stop)(a, *stop, &first, &keep);
    *stopped = first != UINT64_MAX;
    if (*stopped) {
        int status = show(a, first);
        moe_buf_clear(&a->pending);
        return status;
    }
    uint64_t ready = moe_utf8_complete(a->pending.data, a->pending.size);
    if (ready > a->pending.size - keep) {
        /* Not in the middle of a character that a stop text begins with. */
        ready = moe_utf8_complete(a->pending.data, a->pending.size - keep);
    }
    return show(a, ready);
}

/* ---- Tokens ---- */

static bool has_text(const struct moe_tokenizer *tok, uint32_t id, const char *text)
{
    uint32_t n = 0;
    const uint8_t *bytes = moe_tokenizer_bytes(tok, id, &n);
    return n && strlen(text) == n && memcmp(text, bytes, n) == 0;
}

/* Special tokens are not shown, so a stop text that is one ("<|im_end|>") is looked for here. */
static bool is_stop_token(const struct moe_answer *a, uint32_t id)
{
    const struct moe_tokenizer *tok = a->model->tokenizer;
    const char *const *stop = a->options->stop_texts;
    if (!moe_tokenizer_is_special(tok, id))
        return false;
    for (; stop && *stop; stop++)
        if (!is_within_thought(a, *stop) && has_text(tok, id, *stop))
            return true;
    return false;
}

static void stop(struct moe_answer *a, enum moe_stop_reason why)
{
    a->ended = true;
    a->why = why;
}

/* Whether a constraint that holds what follows a thought waits for its end. */
static bool is_free(const struct moe_answer *a)
{
    return a->options->thought.apart && a->thought.place != MOE_BEHIND_THOUGHT;
}

static bool ends_answer(const void *ctx, uint32_t id)
{
    return moe_answer_is_end(ctx, id);
}

void moe_answer_begin(struct moe_answer *a, const struct moe_model *model, uint32_t context,
                      const struct moe_generate_options *options)
{
    *a = (struct moe_answer){
        .model = model,
        .options = options,
        .context = context,
        .begins = options->source != NULL,
        .thought.place = MOE_BEHIND_THOUGHT, /* where a constraint is that will hold */
    };
    if (options->max_tokens == 0)
        stop(a, MOE_STOP_LENGTH);
    else if (options->constraint && !options->thought.apart &&
             moe_constraint_is_complete(options->constraint))
        stop(a, MOE_STOP_EOS);
    else if (options->constraint)
        moe_constraint_prepare(options->constraint, a->begins, ends_answer, a);
    if (options->thought.chat && options->thought.said)
        a->thought = options->thought.at;
    else if (options->thought.chat)
        a->thought.place = options->thought.opened ? MOE_IN_THOUGHT : MOE_BEFORE_THOUGHT;
}

int moe_answer_say(const struct moe_answer *a, uint32_t id, const float *logits)
{
    struct moe_token_said said;
    const struct moe_model *m = a->model;
    moe_token_say(&said, m->tokenizer, logits, m->config.vocab, id, a->options->n_top);
    return a->options->token(a->options->ctx, &said);
}

bool moe_answer_is_end(const struct moe_answer *a, uint32_t id)
{
    const struct moe_generate_options *o = a->options;
    for (uint32_t i = 0; i < o->n_stop_ids; i++)
        if (o->stop_ids[i] == id)
            return true;
    if (o->call_stop && has_text(a->model->tokenizer, id, o->call_stop))
        return false; /* what follows it tells */
    return !o->ignore_eos && (moe_config_is_eos(&a->model->config, id) || is_stop_token(a, id));
}

static int compare_ids(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

const uint8_t *moe_answer_bytes(const struct moe_model *model, const struct moe_ids *marks,
                                uint32_t id, bool *begins, uint32_t *n)
{
    const struct moe_tokenizer *tok = model->tokenizer;
    if (*begins)
        return moe_tokenizer_said(tok, id, begins, n);
    const uint8_t *bytes = moe_tokenizer_bytes(tok, id, n);
    if (moe_tokenizer_is_special(tok, id) &&
        !(marks && marks->n && bsearch(&id, marks->ids, marks->n, sizeof id, compare_ids)))
        *n = 0;
    return bytes;
}

/* ---- Thoughts ---- */

struct moe_thought_options moe_thought_options_of(const struct moe_chat *chat,
                                                  const struct json_t *tools, bool opened,
                                                  bool can_call)
{
    struct moe_thought_options t = {.opened = opened, .tools = tools, .most = UINT64_MAX};
    t.end = moe_chat_thought_end(chat, can_call, &t.stop);
    t.chat = t.end ? chat : NULL;
    return t;
}

/* Whether a token of the end of a thought that is written comes next. */
static bool writes_end(const struct moe_answer *a)
{
    return a->n_thought_end < a->thought_end.n;
}

/* Chooses the next token where the end of a thought is written: one that is long enough, or the
 * rest of one before a call where there can be none. One that may be ending by itself is let, for
 * as many tokens as the end has bytes. Behind one more thought a content comes, lest the model
 * think again. *written: it is chosen, or there was no room for the end in the answer or the
 * context, n of whose tokens are taken, and the answer ended. */
static int end_thought(struct moe_answer *a, uint64_t n, uint32_t *id, bool *written,
                       struct moe_err *err)
{
    const struct moe_thought_options *t = &a->options->thought;
    const bool begun = writes_end(a);
    const char *end = NULL, *stop_text;
    if (t->apart && a->thought.rest)
        end = a->thought.rest;
    else if (a->thought.place == MOE_IN_THOUGHT && a->n_thought >= t->most &&
             (!a->thought.ending || a->n_thought - t->most >= strlen(t->end)))
        end = a->wrote_end ? moe_chat_thought_end(t->chat, false, &stop_text) : t->end;
    *written = begun || end;
    if (!begun && end && a->thought_end.n) { /* it is there, though its bytes were not */
        a->thought.place = MOE_BEHIND_THOUGHT;
        *written = false;
    } else if (!begun && end) {
        MOE_TRY(moe_tokenizer_encode(a->model->tokenizer, end, strlen(end), true, &a->thought_end,
                                     err));
        a->wrote_end = end != a->thought.rest;
        if (a->thought_end.n > a->options->max_tokens - a->n_tokens)
            stop(a, MOE_STOP_LENGTH);
        else if (n + a->thought_end.n > a->context + UINT64_C(1))
            stop(a, MOE_STOP_CONTEXT);
    }
    if (*written && !a->ended)
        *id = a->thought_end.ids[a->n_thought_end];
    return MOE_OK;
}

/* Follows the thought through a token's bytes; *rest: what is behind its end, without blanks. */
static int follow_thought(struct moe_answer *a, const uint8_t *bytes, uint32_t n,
                          const uint8_t **rest, uint32_t *n_rest, struct moe_err *err)
{
    const struct moe_thought_options *t = &a->options->thought;
    const bool within = a->thought.place == MOE_IN_THOUGHT;
    *rest = bytes;
    *n_rest = n;
    if (a->thought.place == MOE_BEHIND_THOUGHT && !a->thought.again)
        return MOE_OK;
    a->n_thought_end += a->n_thought_end < a->thought_end.n;
    if (n == 0)
        return MOE_OK;
    if (!a->reader) {
        MOE_TRY(moe_answer_reader_new(&a->reader, t->chat, t->apart ? NULL : t->tools, t->opened,
                                      NULL, NULL, err));
        if (t->said)
            MOE_TRY(
                moe_answer_reader_add(a->reader, (const char *)t->said->data, t->said->size, err));
    }
    MOE_TRY(moe_answer_reader_add(a->reader, (const char *)bytes, n, err));
    MOE_TRY(moe_answer_reader_thought(a->reader, NULL, 0, &a->thought, err));
    a->n_thought += within;
    a->thought.again &= !t->apart;
    const bool ended = within && a->thought.place != MOE_IN_THOUGHT;
    if (ended || a->thought.place == MOE_BEHIND_THOUGHT) {
        *n_rest = a->thought.behind < n ? (uint32_t)a->thought.behind : n;
        *rest = bytes + n - *n_rest;
    }
    if (within != (a->thought.place == MOE_IN_THOUGHT))
        a->knows_ends = false; /* what ends a thought ends an answer elsewhere */
    if (a->thought.place != MOE_IN_THOUGHT && a->thought.again && !writes_end(a))
        a->thought_end.n = a->n_thought_end = 0; /* the next one has an end of its own */
    return MOE_OK;
}

/* Whether a token ends the thought and goes on in a way that the constraint does not take. */
static int breaks_constraint(const struct moe_answer *a, uint32_t id, bool *breaks,
                             struct moe_err *err)
{
    struct moe_thought_at after;
    uint32_t n = 0;
    const uint8_t *bytes = moe_tokenizer_bytes(a->model->tokenizer, id, &n);
    *breaks = false;
    if (!a->reader || n < 2)
        return MOE_OK;
    MOE_TRY(moe_answer_reader_thought(a->reader, bytes, n, &after, err));
    if (after.place == MOE_BEHIND_THOUGHT && after.behind && after.behind < n)
        *breaks =
            !moe_constraint_fits(a->options->constraint, bytes + n - after.behind, after.behind);
    return MOE_OK;
}

/* ---- Draws and constraints ---- */

/* Finds the tokens that an answer may not have yet, once. */
static int find_ends(struct moe_answer *a, struct moe_err *err)
{
    int status = MOE_OK;
    if (a->knows_ends)
        return MOE_OK;
    a->ends.n = 0;
    for (uint32_t id = 0; id < a->model->config.vocab && status == MOE_OK; id++)
        if (moe_answer_is_end(a, id))
            status = moe_ids_push(&a->ends, id, err);
    a->knows_ends = status == MOE_OK;
    return status;
}

/* Draws a token of a thought that a constraint waits for the end of. */
static int draw_free(struct moe_answer *a, struct moe_sampler *sampler, const float *logits,
                     const struct moe_drawn_after *after, uint32_t *id, struct moe_err *err)
{
    const uint64_t n_ends = a->ends.n;
    bool breaks = true;
    int status = MOE_OK;
    while (breaks && status == MOE_OK && a->ends.n <= a->model->config.vocab) {
        *id = moe_sampler_draw(sampler, logits, after);
        MOE_STEP(breaks_constraint(a, *id, &breaks, err));
        if (breaks)
            status = moe_ids_push(&a->ends, *id, err);
    }
out:
    a->ends.n = n_ends;
    return status;
}

int moe_answer_draw(struct moe_answer *a, struct moe_sampler *sampler, const float *logits,
                    const struct moe_ids *history, uint32_t *id, struct moe_err *err)
{
    struct moe_allowed allowed;
    struct moe_drawn_after after = {
        .recent = history->ids,
        .n_recent = history->n,
        .tokenizer = a->model->tokenizer,
    };
    bool written = false;
    MOE_TRY(end_thought(a, history->n, id, &written, err));
    if (written)
        return MOE_OK;
    struct moe_constraint *c = is_free(a) ? NULL : a->options->constraint;
    if (a->n_tokens < a->options->min_tokens || is_free(a)) {
        MOE_TRY(find_ends(a, err));
        after.without = &a->ends;
    }
    if (c) {
        MOE_TRY(moe_constraint_allowed(c, &allowed, err));
        after.allowed = allowed.bits;
    }
    if (is_free(a))
        return draw_free(a, sampler, logits, &after, id, err);
    if (!c || allowed.n > 0)
        *id = moe_sampler_draw(sampler, logits, &after);
    else if (allowed.may_end)
        stop(a, MOE_STOP_EOS);
    else
        return moe_fail(err, MOE_ERR_LIMIT,
                        "the grammar cannot be continued after %llu tokens: no token of the "
                        "vocabulary fits, and the answer may not end there",
                        (unsigned long long)a->n_tokens);
    return MOE_OK;
}

void moe_answer_count(const struct moe_answer *a, struct moe_stats *stats)
{
    if (!a->options->constraint)
        return;
    struct moe_constraint_figures f = moe_constraint_count(a->options->constraint);
    stats->grammar_tokens += f.tokens;
    stats->grammar_masks += f.masks;
    stats->grammar_seconds += f.seconds;
    stats->grammar_wait_seconds += f.waited;
}

/* The constraint learns what the answer goes on with; *complete: that is all. */
static int constrain(const struct moe_answer *a, const uint8_t *bytes, uint32_t n, bool *complete,
                     struct moe_err *err)
{
    struct moe_constraint *c = a->options->constraint;
    int status = c ? moe_constraint_take(c, bytes, n, err) : MOE_OK;
    *complete = c && status == MOE_OK && moe_constraint_is_complete(c);
    return status;
}

int moe_answer_take(struct moe_answer *a, uint32_t id, const float *logits, struct moe_ids *history,
                    struct moe_err *err)
{
    const struct moe_generate_options *o = a->options;
    if (moe_answer_is_end(a, id)) {
        stop(a, MOE_STOP_EOS);
        return o->scores && o->token ? moe_answer_say(a, id, logits) : MOE_OK;
    }
    int status = moe_ids_push(history, id, err);
    if (status != MOE_OK)
        return status;
    a->n_tokens++;
    if (o->token && (status = moe_answer_say(a, id, logits)) != MOE_OK)
        return status;
    uint32_t n_bytes = 0, n_token = 0, n_rest;
    bool stopped = false, complete = false;
    const bool was_free = is_free(a), written = writes_end(a),
               within = a->thought.place == MOE_IN_THOUGHT;
    const uint8_t *bytes = moe_answer_bytes(a->model, o->marks, id, &a->begins, &n_bytes);
    const uint8_t *token = moe_tokenizer_bytes(a->model->tokenizer, id, &n_token), *rest;
    status = follow_thought(a, token, n_token, &rest, &n_rest, err);
    if (status == MOE_OK && !is_free(a))
        status = constrain(a, was_free ? rest : bytes, was_free ? n_rest : n_bytes, &complete, err);
    if (status == MOE_OK && (written || (within && a->thought.place != MOE_IN_THOUGHT))) {
        /* No stop text is looked for in what ended the thought. */
        const uint32_t n_mark = written && a->thought.place != MOE_BEHIND_THOUGHT ? n_bytes
                                : n_bytes > n_rest                                ? n_bytes - n_rest
                                                                                  : 0;
        moe_buf_append(&a->pending, bytes, n_mark);
        status = a->pending.size ? show(a, a->pending.size) : MOE_OK;
        bytes += n_mark;
        n_bytes -= n_mark;
    }
    if (n_bytes && status == MOE_OK)
        status = take_bytes(a, bytes, n_bytes, &stopped, err);
    if (stopped)
        stop(a, MOE_STOP_TEXT);
    else if (o->stop && *o->stop)
        stop(a, MOE_STOP_USER);
    else if (complete)
        stop(a, MOE_STOP_EOS);
    else if (a->n_tokens >= o->max_tokens)
        stop(a, MOE_STOP_LENGTH);
    else if (history->n > a->context)
        stop(a, MOE_STOP_CONTEXT);
    return status;
}

int moe_answer_end(struct moe_answer *a, int status)
{
    /* The text with which a call, or the end of a thought, might have begun. */
    const char *stop =
        a->thought.place == MOE_IN_THOUGHT ? a->options->thought.stop : a->options->call_stop;
    const uint8_t *at = stop && a->pending.size
                            ? memmem(a->pending.data, a->pending.size, stop, strlen(stop))
                            : NULL;
    if (at) /* it has not followed */
        a->pending.size = (uint64_t)(at - a->pending.data);
    int shown = a->pending.size ? show(a, a->pending.size) : MOE_OK;
    moe_buf_release(&a->pending);
    moe_ids_release(&a->ends);
    moe_ids_release(&a->thought_end);
    moe_answer_reader_free(a->reader);
    return status == MOE_OK ? shown : status;
}
