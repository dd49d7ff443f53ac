#include "engine/generate.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "run/stages.h"

/* ---- Text on its way out ---- */

/* Bytes not shown yet: an unfinished character, or what may become a stop text. */
struct outlet {
    const struct moe_generate_options *options;
    struct moe_buf pending;
};

/* Length of the longest end of text[0..n) with which `stop` could begin. */
static uint64_t overlap(const uint8_t *text, uint64_t n, const char *stop)
{
    uint64_t most = strlen(stop) - 1;
    for (uint64_t k = most < n ? most : n; k > 0; k--)
        if (memcmp(text + n - k, stop, k) == 0)
            return k;
    return 0;
}

static int show(struct outlet *o, uint64_t n)
{
    int status = MOE_OK;
    if (n && o->options->text)
        status = o->options->text(o->options->ctx, (const char *)o->pending.data, n);
    memmove(o->pending.data, o->pending.data + n, o->pending.size - n);
    o->pending.size -= n;
    return status;
}

/* Takes a token's bytes; shows what is certain. *stopped: a stop text appeared. */
static int outlet_take(struct outlet *o, const uint8_t *bytes, uint32_t n, bool *stopped,
                       struct moe_err *err)
{
    moe_buf_append(&o->pending, bytes, n);
    if (o->pending.failed)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: %u bytes of text", n);
    if (!o->pending.size)
        return MOE_OK;
    uint64_t keep = 0, first = UINT64_MAX;
    const char *text = (const char *)o->pending.data;
    for (const char *const *stop = o->options->stop_texts; stop && *stop; stop++) {
        if (!**stop)
            continue;
        for (uint64_t i = 0; i + strlen(*stop) <= o->pending.size && i < first; i++)
            if (memcmp(text + i, *stop, strlen(*stop)) == 0)
                first = i;
        uint64_t k = overlap(o->pending.data, o->pending.size, *stop);
        keep = k > keep ? k : keep;
    }
    *stopped = first != UINT64_MAX;
    if (*stopped) {
        int status = show(o, first);
        moe_buf_clear(&o->pending);
        return status;
    }
    uint64_t ready = moe_utf8_complete(o->pending.data, o->pending.size);
    if (ready > o->pending.size - keep) {
        /* Not in the middle of a character that a stop text begins with. */
        ready = moe_utf8_complete(o->pending.data, o->pending.size - keep);
    }
    return show(o, ready);
}

/* ---- Prompt ---- */

/* LongRoPE: a text that has grown beyond the original context has other frequencies than the rows
 * in the cache, and so has a shorter one after it: all of it is computed again, as the code
 * published with Phi-3.5-MoE does. So a token depends on the text before it alone. */
static void forget_other_rope(const struct moe_session *s, const struct moe_ids *history,
                              uint64_t *n_done)
{
    uint32_t original = s->model->config.rope_original;
    if (original && s->far != (history->n > original))
        *n_done = 0;
}

/* Computes history[*n_done..n) in batches; *last is the last token's row in the last batch. */
static int compute_pending(struct moe_session *s, const struct moe_ids *history, uint64_t *n_done,
                           const struct moe_generate_options *options, uint32_t *last,
                           struct moe_err *err)
{
    uint64_t n_new = history->n - *n_done;
    enum moe_phase phase = n_new > 1 || *n_done == 0 ? MOE_PREFILL : MOE_DECODE;
    struct moe_row *rows = moe_alloc(s->batch, sizeof *rows, err);
    if (!rows)
        return MOE_ERR_MEMORY;
    int status = MOE_OK;
    while (*n_done < history->n && status == MOE_OK) {
        uint64_t left = history->n - *n_done;
        uint32_t n = left < s->batch ? (uint32_t)left : s->batch;
        for (uint32_t i = 0; i < n; i++)
            rows[i] = (struct moe_row){0, (uint32_t)(*n_done + i), history->ids[*n_done + i],
                                       (uint32_t)history->n};
        if (options->stop && *options->stop)
            status = MOE_ERR_INTERRUPTED;
        else
            status = moe_forward(s, phase, rows, n, 0, s->model->config.n_layers, NULL, NULL, err);
        if (status == MOE_OK) {
            *n_done += n;
            *last = n - 1;
        }
    }
    free(rows);
    return status;
}

/* ---- Generation ---- */

/* Special tokens are not shown, so a stop text that is one ("<|im_end|>") is looked for here. */
static bool is_stop_token(const struct moe_tokenizer *tok, const char *const *stops, uint32_t id)
{
    uint32_t n = 0;
    const uint8_t *bytes = moe_tokenizer_bytes(tok, id, &n);
    if (!moe_tokenizer_is_special(tok, id))
        return false;
    for (; stops && *stops; stops++)
        if (n && strlen(*stops) == n && memcmp(*stops, bytes, n) == 0)
            return true;
    return false;
}

/* The token after row `last` of the pass. */
static int next_token(struct moe_session *s, struct moe_sampler *sampler,
                      const struct moe_ids *history, uint32_t last, float *logits, uint32_t *id,
                      struct moe_err *err)
{
    if (s->stages->greedy && moe_sampler_is_greedy(sampler))
        return s->stages->greedy(s, last, id, err);
    int status = moe_logits(s, last, 1, logits, err);
    if (status == MOE_OK)
        *id = moe_sampler_next(sampler, logits, history->ids, history->n);
    return status;
}

/* Samples until something stops it; the next logits are those of row `last` of the pass. */
static int generate_loop(struct moe_session *s, struct moe_sampler *sampler,
                         struct moe_ids *history, uint64_t *n_done,
                         const struct moe_generate_options *options, struct outlet *outlet,
                         float *logits, uint32_t last, enum moe_stop_reason *why,
                         struct moe_err *err)
{
    for (uint64_t n = 0;; n++) {
        if (n >= options->max_tokens) {
            *why = MOE_STOP_LENGTH;
            return MOE_OK;
        }
        uint32_t id;
        int status = next_token(s, sampler, history, last, logits, &id, err);
        if (status != MOE_OK)
            return status;
        if (n == 0)
            s->stats.ttft_seconds = moe_seconds() - options->started;
        if (!options->ignore_eos && (moe_config_is_eos(&s->model->config, id) ||
                                     is_stop_token(s->model->tokenizer, options->stop_texts, id))) {
            *why = MOE_STOP_EOS;
            return MOE_OK;
        }
        status = moe_ids_push(history, id, err);
        if (status != MOE_OK)
            return status;
        s->stats.generated_tokens++;
        uint32_t n_bytes = 0;
        bool stopped = false;
        const uint8_t *bytes = moe_tokenizer_bytes(s->model->tokenizer, id, &n_bytes);
        if (!moe_tokenizer_is_special(s->model->tokenizer, id))
            status = outlet_take(outlet, bytes, n_bytes, &stopped, err);
        if (status != MOE_OK || stopped) {
            *why = MOE_STOP_TEXT;
            return status;
        }
        if (options->stop && *options->stop) {
            *why = MOE_STOP_USER;
            return MOE_OK;
        }
        if (n + 1 >= options->max_tokens)
            continue;
        if (*n_done >= s->context) {
            *why = MOE_STOP_CONTEXT;
            return MOE_OK;
        }
        forget_other_rope(s, history, n_done);
        status = compute_pending(s, history, n_done, options, &last, err);
        if (status == MOE_ERR_INTERRUPTED) {
            *why = MOE_STOP_USER;
            return MOE_OK;
        }
        if (status != MOE_OK)
            return status;
    }
}

int moe_generate(struct moe_session *s, struct moe_sampler *sampler, struct moe_ids *history,
                 uint64_t *n_done, const struct moe_generate_options *options,
                 enum moe_stop_reason *why, struct moe_err *err)
{
    if (history->n <= *n_done)
        return moe_fail(err, MOE_ERR_USAGE, "the prompt is empty");
    if (history->n > s->context)
        return moe_fail(err, MOE_ERR_LIMIT,
                        "the prompt of %llu tokens does not fit the context of %u",
                        (unsigned long long)history->n, s->context);
    struct outlet outlet = {.options = options};
    uint32_t last = 0;
    forget_other_rope(s, history, n_done);
    float *logits = moe_alloc(moe_logits_stride(&s->model->config), sizeof *logits, err);
    if (!logits)
        return MOE_ERR_MEMORY;
    s->stats.prompt_tokens += history->n - *n_done;
    int status = compute_pending(s, history, n_done, options, &last, err);
    if (status == MOE_ERR_INTERRUPTED) {
        *why = MOE_STOP_USER;
        status = MOE_OK;
    } else if (status == MOE_OK) {
        status =
            generate_loop(s, sampler, history, n_done, options, &outlet, logits, last, why, err);
        /* No stop text can complete what was held back: the answer has ended. */
        int shown = outlet.pending.size ? show(&outlet, outlet.pending.size) : MOE_OK;
        status = status == MOE_OK ? shown : status;
    }
    moe_buf_release(&outlet.pending);
    free(logits);
    return status;
}
