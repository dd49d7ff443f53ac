#include "study/answers.h"

#include <string.h>

#include "study/rouge.h"

void moe_answers_carve(struct moe_answers *a, struct moe_arena *arena, uint32_t n, uint32_t limit)
{
    *a = (struct moe_answers){.limit = limit};
    a->ids = moe_arena_take(arena, (uint64_t)n * limit, sizeof *a->ids);
    a->lengths = moe_arena_take(arena, n, sizeof *a->lengths);
    a->active = moe_arena_take(arena, n, sizeof *a->active);
    a->rows = moe_arena_take(arena, n, sizeof *a->rows);
    a->last = moe_arena_take(arena, n, sizeof *a->last);
    a->best = moe_arena_take(arena, n, sizeof *a->best);
    a->nats = moe_arena_take(arena, n, sizeof *a->nats);
}

void moe_answers_release(struct moe_answers *a)
{
    moe_buf_release(&a->text);
}

/* Takes the likeliest token of each that goes on; those that it ends, or that are full, go on no
 * more. */
static void take_tokens(struct moe_answers *a, const struct moe_model *m)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->n_active; i++) {
        uint32_t s = a->active[i], token = a->best[i];
        if (moe_config_is_eos(&m->config, token) || moe_tokenizer_ends_answer(m->tokenizer, token))
            continue;
        a->ids[(uint64_t)s * a->limit + a->lengths[s]++] = token;
        if (a->lengths[s] == a->limit)
            continue;
        a->last[n] = token;
        a->active[n++] = s;
    }
    a->n_active = n;
}

int moe_answers_write(struct moe_answers *a, struct moe_scores *scores, uint32_t n,
                      struct moe_err *err)
{
    struct moe_session *s = scores->s;
    const struct moe_config *c = &s->model->config;
    int status = MOE_OK;
    for (uint32_t i = 0; i < n; i++) {
        a->lengths[i] = 0;
        a->active[i] = i;
        a->last[i] = c->decoder_start;
    }
    a->n_active = a->limit ? n : 0;
    while (a->n_active && status == MOE_OK) {
        for (uint32_t i = 0; i < a->n_active; i++)
            a->rows[i] = (struct moe_row){.sequence = a->active[i],
                                          .position = a->lengths[a->active[i]],
                                          .token = a->last[i]};
        status = moe_forward(s, MOE_DECODE, a->rows, a->n_active, c->n_encoder, c->n_layers, NULL,
                             NULL, err);
        if (status == MOE_OK)
            status = moe_score_rows(scores, 0, a->n_active, a->last, a->nats, a->best, err);
        if (status == MOE_OK)
            take_tokens(a, s->model);
    }
    return status;
}

/* Whether two texts are the same but for blanks around them. */
static bool same_answer(const char *a, const char *b)
{
    static const char blanks[] = " \t\r\n";
    a += strspn(a, blanks);
    b += strspn(b, blanks);
    size_t n = strlen(a), m = strlen(b);
    while (n > 0 && strchr(blanks, a[n - 1]))
        n--;
    while (m > 0 && strchr(blanks, b[m - 1]))
        m--;
    return n == m && memcmp(a, b, n) == 0;
}

int moe_answers_judge(struct moe_answers *a, const struct moe_tokenizer *tokenizer,
                      uint32_t sequence, const char *target, struct moe_answer_quality *out,
                      struct moe_err *err)
{
    struct moe_rouge rouge = {0};
    moe_buf_clear(&a->text);
    int status = moe_tokenizer_decode(tokenizer, a->ids + (uint64_t)sequence * a->limit,
                                      a->lengths[sequence], &a->text, err);
    moe_buf_u8(&a->text, 0);
    if (status == MOE_OK && a->text.failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: an answer");
    const char *text = (const char *)a->text.data;
    if (status == MOE_OK)
        status = moe_rouge_n(&rouge, target, text, 2, err);
    if (status == MOE_OK)
        *out = (struct moe_answer_quality){rouge.f1, same_answer(target, text)};
    return status;
}
