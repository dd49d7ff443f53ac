#include "engine/drafting.h"

#include <stdlib.h>

#include "base/mem.h"
#include "infer/forward.h"

/* With recurrent states a draft in vain has its pass computed again with the next one, from the
 * mark on. After so many tokens a pass has none, so that the states are marked further on. */
enum { MOST_AGAIN = 3 };

int moe_drafting_check(const struct moe_session *s, const struct moe_generate_options *options,
                       struct moe_err *err)
{
    if (options->draft && s->stands && !s->marked)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "this session's recurrent states take no token back: no drafts here");
    if (options->draft_ahead && s->model->config.n_drafting == 0)
        return moe_fail(err, MOE_ERR_USAGE, "the model was opened without a layer that drafts");
    return MOE_OK;
}

uint64_t moe_drafting_room(const struct moe_answer *answer, const struct moe_ids *history,
                           uint32_t rows, uint32_t n_again, bool far)
{
    uint64_t n = history->n, left = answer->context - n;
    uint64_t room = n_again <= MOST_AGAIN && n_again < rows ? rows - 1 - n_again : 0;
    uint64_t wanted = answer->options->max_tokens - answer->n_tokens;
    uint32_t original = answer->model->config.rope_original;
    room = left < room ? left : room;
    room = wanted - 1 < room ? wanted - 1 : room;
    if (original && !far && original - n < room)
        room = original - n;
    return room;
}

void moe_drafting_begin(struct moe_drafting *d, uint32_t most, bool ahead)
{
    moe_draft_begin(&d->draft, most);
    d->ahead = ahead;
    if (ahead && most) /* layers that draft are made for one token */
        d->draft.next = 1;
}

int moe_drafting_read(struct moe_session *s, const struct moe_ids *history, uint64_t n_done,
                      uint32_t *n_read, struct moe_err *err)
{
    const struct moe_passed passed = s->passed;
    uint64_t known = history->n ? history->n - 1 : 0, end = n_done < known ? n_done : known;
    *n_read = 0;
    if (s->model->config.n_drafting == 0 || passed.n == 0 || passed.first >= end)
        return MOE_OK;
    uint32_t n = end - passed.first < passed.n ? (uint32_t)(end - passed.first) : passed.n;
    struct moe_row *rows = moe_alloc(n, sizeof *rows, err);
    if (!rows)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct moe_row){0, passed.first + i, history->ids[passed.first + i + 1], 0};
    int status = moe_ahead(s, rows, n, NULL, err);
    free(rows);
    *n_read = status == MOE_OK ? n : 0;
    return status;
}

uint32_t moe_drafting_likeliest(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* Draws the layer's tokens one by one, each from its own state of the one before. */
static int draft_ahead(struct moe_draft *d, struct moe_session *s, const struct moe_ids *history,
                       uint32_t most, float *logits, struct moe_err *err)
{
    uint32_t n_read, n = 0;
    uint64_t at = s->passed.first;
    int status = moe_drafting_read(s, history, history->n - 1, &n_read, err);
    if (status != MOE_OK || n_read == 0 || at + n_read + 1 != history->n)
        return status; /* the last pass was something else's */
    for (uint32_t row = n_read - 1; n < most && status == MOE_OK;) {
        if (n > 0) {
            const struct moe_row next = {0, (uint32_t)history->n - 2 + n, d->ids[n - 1], 0};
            status = moe_ahead(s, &next, 1, &row, err);
            row = 0;
        }
        if (status == MOE_OK)
            status = moe_logits(s, row, 1, logits, err);
        if (status == MOE_OK)
            d->ids[n++] = moe_drafting_likeliest(logits, s->model->config.vocab);
    }
    if (status == MOE_OK)
        d->made = d->n = n;
    return status;
}

int moe_drafting_make(struct moe_drafting *d, struct moe_session *s, const struct moe_ids *history,
                      uint64_t room, float *logits, struct moe_err *err)
{
    struct moe_draft *draft = &d->draft;
    uint32_t most = room < draft->next ? (uint32_t)room : draft->next, n_read;
    draft->n = draft->made = 0;
    if (draft->most && d->ahead && most)
        return draft_ahead(draft, s, history, most, logits, err);
    if (draft->most && most)
        moe_draft_make(draft, history->ids, history->n, most);
    return moe_drafting_read(s, history, history->n - 1, &n_read, err);
}

/* ---- Computing ---- */

int moe_drafting_compute(struct moe_drafting *d, struct moe_session *s,
                         const struct moe_ids *history, uint64_t *n_done, uint32_t *last,
                         struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    const uint32_t n_old = (uint32_t)(history->n - *n_done), n = n_old + d->draft.n;
    const uint32_t length = (uint32_t)history->n + d->draft.n;
    struct moe_row rows[1 + 2 * MOE_DRAFT_MOST];
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct moe_row){0, (uint32_t)(*n_done + i),
                                   i < n_old ? history->ids[*n_done + i] : d->draft.ids[i - n_old],
                                   length};
    if (d->draft.n)
        moe_sequence_mark(s, 0, (uint32_t)*n_done);
    int status = moe_forward(s, MOE_DECODE, rows, n, c->n_encoder, c->n_layers, NULL, NULL, err);
    if (status != MOE_OK)
        return status;
    *n_done = history->n;
    *last = n_old - 1;
    s->stats.drafted_tokens += d->draft.n;
    /* Those drafted count when they are right, the others have been counted. */
    s->stats.decode.tokens -= n - 1;
    return MOE_OK;
}
