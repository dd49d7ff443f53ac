#include "engine/beams_step.h"

#include <math.h>
#include <string.h>

#include "base/best.h"
#include "sample/sampler.h"

uint32_t beams_n_kept(const struct moe_config *c, uint32_t n)
{
    return (c->n_eos > 1 ? 1 + c->n_eos : 2) * n;
}

/* ---- Texts of beams ---- */

void beams_write_path(const struct search *b, uint32_t n, struct node last)
{
    for (; n > 0; n--) {
        b->path[n - 1] = last.token;
        if (n > 1)
            last = b->nodes[(uint64_t)(n - 2) * b->options->n + last.parent];
    }
}

/* Whether a stop text has appeared with the last of n tokens. */
static int has_stop_text(const struct search *b, uint32_t n, struct node last, bool *has,
                         struct moe_err *err)
{
    const struct moe_model *m = b->session->model;
    const char *const *stops = b->answer->options->stop_texts;
    uint64_t longest = 0, n_before = 0;
    uint32_t first = n - 1, n_bytes;
    struct moe_buf text = {0};
    *has = false;
    for (const char *const *stop = stops; stop && *stop; stop++)
        longest = strlen(*stop) > longest ? strlen(*stop) : longest;
    if (longest == 0)
        return MOE_OK;
    beams_write_path(b, n, last);
    bool inside = false;
    while (first > 0 && n_before < longest) {
        moe_answer_bytes(m, b->path[--first], &inside, &n_bytes);
        n_before += n_bytes;
    }
    bool begins = first == 0 && b->answer->begins;
    for (uint32_t i = first; i < n; i++) {
        const uint8_t *bytes = moe_answer_bytes(m, b->path[i], &begins, &n_bytes);
        moe_buf_append(&text, bytes, n_bytes);
    }
    moe_buf_u8(&text, 0);
    bool failed = text.failed;
    for (const char *const *stop = stops; !failed && *stop; stop++)
        for (uint64_t i = 0; **stop && i + strlen(*stop) < text.size; i++)
            *has = *has || memcmp(text.data + i, *stop, strlen(*stop)) == 0;
    moe_buf_release(&text);
    return failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory: a beam's text") : MOE_OK;
}

/* ---- A step ---- */

/* Takes a candidate, if it is among the best. They come in the order in which equals are ranked. */
static void consider(struct search *b, struct candidate c)
{
    uint32_t at = b->n_candidates;
    if (at == b->n_kept && !(c.score > b->candidates[--at].score))
        return;
    b->n_candidates = at + 1;
    for (; at > 0 && b->candidates[at - 1].score < c.score; at--)
        b->candidates[at] = b->candidates[at - 1];
    b->candidates[at] = c;
}

int beams_consider(struct search *b, uint32_t beam, uint32_t row, struct moe_err *err)
{
    uint32_t vocab = b->session->model->config.vocab, likeliest;
    int status = moe_logits(b->session, row, 1, b->logits, err);
    if (status != MOE_OK)
        return status;
    for (uint32_t id = 0; id < vocab; id++)
        b->logits[id] = moe_logit_sane(b->logits[id]);
    moe_best(b->logits, vocab, 1, &likeliest);
    const struct moe_logit_scale scale = moe_logit_scale_of(b->logits, vocab, likeliest);
    double before = b->live[beam].score - scale.largest - scale.log_sum;
    for (uint32_t id = 0; id < vocab; id++)
        consider(b, (struct candidate){before + b->logits[id], {beam, id}});
    return MOE_OK;
}

/* Keeps a finished text, if it is among the best. */
static void finish(struct search *b, const struct candidate *c)
{
    uint32_t n = b->options->n, at = b->n_finished;
    struct hypothesis h = {.n_tokens = b->n_steps + 1, .last = c->node};
    h.score = c->score / pow(h.n_tokens, b->options->length_penalty);
    if (at == n && !(h.score > b->finished[--at].score))
        return;
    b->n_finished = at + 1;
    for (; at > 0 && b->finished[at - 1].score < h.score; at--)
        b->finished[at] = b->finished[at - 1];
    b->finished[at] = h;
}

int beams_part(struct search *b, struct moe_err *err)
{
    uint32_t n = b->options->n;
    int status = MOE_OK;
    b->n_next = 0;
    for (uint32_t i = 0; i < b->n_candidates && status == MOE_OK; i++) {
        const struct candidate *c = &b->candidates[i];
        bool ends = moe_answer_is_end(b->answer, c->node.token) || b->n_steps + 1 == b->n_most;
        if (!ends)
            status = has_stop_text(b, b->n_steps + 1, c->node, &ends, err);
        if (ends && i < n)
            finish(b, c);
        else if (!ends && b->n_next < n)
            b->next[b->n_next++] = (struct beam){.score = c->score, .node = c->node};
    }
    return status;
}

bool beams_are_over(const struct search *b)
{
    const struct moe_beam_options *o = b->options;
    if (b->n_next == 0)
        return true;
    if (b->n_finished < o->n)
        return false;
    bool longest = o->early == MOE_EARLY_NEVER && o->length_penalty > 0;
    double length = longest ? b->n_most : b->n_steps + 1;
    return o->early == MOE_EARLY_YES || b->next[0].score / pow(length, o->length_penalty) <=
                                            b->finished[b->n_finished - 1].score;
}
