/* Answers judged: Rouge, accuracy, what they lose over the reference's answers. */
#include "tune/answers.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/par.h"
#include "kern/kern.h"

/* The words of a text, as hashes: two that differ with the same one are not met in practice. */
struct words {
    uint64_t *hashes;
    uint64_t n;
};

/* A letter or digit in lower case, 0: it separates words; *more: further bytes that it has. `text`
 * ends with a NUL. */
static char letter(const char *text, uint64_t *more)
{
    char c = text[0];
    *more = 0;
    if (strncmp(text, "\xe2\x84\xaa", 3) == 0) {
        *more = 2;
        return 'k';
    }
    if (strncmp(text, "\xc4\xb0", 2) == 0)
        return 'i';
    if (c >= 'A' && c <= 'Z')
        return (char)(c - 'A' + 'a');
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ? c : 0;
}

static int split_words(struct words *w, const char *text, struct moe_err *err)
{
    uint64_t n = strlen(text), length = 0, more = 0;
    char *word = moe_alloc(n + 1, 1, err);
    *w = (struct words){.hashes = moe_alloc(n / 2 + 1, sizeof *w->hashes, err)};
    for (uint64_t i = 0; word && w->hashes && i <= n; i += 1 + more) {
        char c = letter(text + i, &more);
        if (c)
            word[length++] = c;
        else if (length > 0)
            w->hashes[w->n++] = moe_hash64(word, length);
        length = c ? length : 0;
    }
    int status = word && w->hashes ? MOE_OK : MOE_ERR_MEMORY;
    free(word);
    return status;
}

static int compare_hashes(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Makes the sorted runs of n words out of the words. */
static void take_runs(struct words *w, uint32_t n)
{
    uint64_t n_runs = w->n >= n ? w->n - n + 1 : 0;
    for (uint64_t i = 0; i < n_runs; i++)
        w->hashes[i] = moe_hash64(w->hashes + i, n * sizeof *w->hashes);
    w->n = n_runs;
    qsort(w->hashes, w->n, sizeof *w->hashes, compare_hashes);
}

/* How many runs both have. */
static uint64_t n_common(const struct words *a, const struct words *b)
{
    uint64_t n = 0;
    for (uint64_t i = 0, k = 0; i < a->n && k < b->n;) {
        bool same = a->hashes[i] == b->hashes[k], less = a->hashes[i] < b->hashes[k];
        n += same;
        i += same || less;
        k += same || !less;
    }
    return n;
}

static double share(uint64_t part, uint64_t of)
{
    return (double)part / (double)(of ? of : 1);
}

int moe_rouge_n(struct moe_rouge *out, const char *reference, const char *answer, uint32_t n,
                struct moe_err *err)
{
    struct words r = {0}, a = {0};
    *out = (struct moe_rouge){0};
    int status;
    MOE_STEP(split_words(&r, reference, err));
    MOE_STEP(split_words(&a, answer, err));
    take_runs(&r, n);
    take_runs(&a, n);
    uint64_t common = n_common(&r, &a);
    double p = share(common, a.n), q = share(common, r.n);
    *out = (struct moe_rouge){p, q, p + q > 0 ? 2 * p * q / (p + q) : 0};
out:
    free(r.hashes);
    free(a.hashes);
    return status;
}

/* ---- Scores ---- */

enum { LOGITS_BYTES = 4 << 20, FEWEST_ROWS = 8 };

struct job {
    float *logits;
    uint64_t stride;
    uint32_t vocab;
    const uint32_t *targets;
    double *nats;
    uint32_t *best;
};

/* -log softmax(logits)[target], and the likeliest token; overwrites the logits. By way of the
 * likeliest token's probability, which is never too small for a float. */
static double cost(float *logits, uint32_t n, uint32_t target, uint32_t *best)
{
    uint32_t top = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[top])
            top = i;
    double gap = (double)logits[top] - logits[target];
    moe_kern.softmax(logits, n);
    *best = top;
    return gap - log(logits[top]);
}

static void score_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct job *j = ctx;
    for (int64_t i = begin; i < end; i++)
        j->nats[i] =
            cost(j->logits + (uint64_t)i * j->stride, j->vocab, j->targets[i], &j->best[i]);
}

static uint32_t rows_of(uint64_t row_bytes, uint32_t batch)
{
    uint64_t n = LOGITS_BYTES / row_bytes;
    return n < FEWEST_ROWS ? FEWEST_ROWS : n > batch ? batch : (uint32_t)n;
}

uint64_t moe_scores_bytes(const struct moe_config *config, uint32_t batch)
{
    uint64_t row_bytes = moe_logits_stride(config) * sizeof(float);
    return rows_of(row_bytes, batch) * row_bytes;
}

int moe_scores_open(struct moe_scores *out, struct moe_session *s, struct moe_err *err)
{
    uint64_t row_bytes = moe_logits_stride(&s->model->config) * sizeof(float);
    *out = (struct moe_scores){.s = s, .n_logits = rows_of(row_bytes, s->batch)};
    out->logits = moe_alloc(out->n_logits, row_bytes, err);
    return out->logits ? MOE_OK : MOE_ERR_MEMORY;
}

void moe_scores_close(struct moe_scores *scores)
{
    free(scores->logits);
    scores->logits = NULL;
}

int moe_score_rows(struct moe_scores *scores, uint32_t first, uint32_t n, const uint32_t *targets,
                   double *nats, uint32_t *best, struct moe_err *err)
{
    const struct moe_config *c = &scores->s->model->config;
    MOE_TRY(moe_check_ids(scores->s->model, targets, n, err));
    for (uint32_t i = 0, part; i < n; i += part) {
        part = n - i < scores->n_logits ? n - i : scores->n_logits;
        struct job j = {scores->logits, moe_logits_stride(c), c->vocab, targets + i, nats + i,
                        best + i};
        MOE_TRY(moe_logits(scores->s, first + i, part, scores->logits, err));
        if (scores->look)
            MOE_TRY(scores->look(scores->ctx, j.logits, j.stride, part, j.targets, err));
        moe_par_for(part, 4, score_range, &j);
    }
    return MOE_OK;
}

/* ---- Answers ---- */

void moe_answers_carve(struct moe_answers *a, struct moe_arena *arena, uint32_t n, uint32_t limit)
{
    *a = (struct moe_answers){.limit = limit};
    a->ids = moe_arena_take(arena, (uint64_t)n * limit, sizeof *a->ids);
    a->lengths = moe_arena_take(arena, n, sizeof *a->lengths);
    a->begins = moe_arena_take(arena, n, sizeof *a->begins);
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

uint32_t moe_answers_begin(const struct moe_tokenizer *tokenizer, const uint32_t *target,
                           uint64_t n_target)
{
    return moe_tokenizer_adds_bos(tokenizer) && n_target > 1 ? target[1] : 0;
}

/* Appends the likeliest token, or the first that it has to have, to each active answer; those that
 * it ends, or that are full, become inactive. */
static void take_tokens(struct moe_answers *a, const struct moe_model *m)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->n_active; i++) {
        uint32_t s = a->active[i];
        uint32_t token = a->lengths[s] || !a->begins[s] ? a->best[i] : a->begins[s];
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
    for (uint32_t i = 0; i < n; i++) {
        a->lengths[i] = 0;
        a->active[i] = i;
        a->last[i] = c->decoder_start;
    }
    a->n_active = a->limit ? n : 0;
    while (a->n_active) {
        for (uint32_t i = 0; i < a->n_active; i++)
            a->rows[i] = (struct moe_row){.sequence = a->active[i],
                                          .position = a->lengths[a->active[i]],
                                          .token = a->last[i]};
        MOE_TRY(moe_forward(s, MOE_DECODE, a->rows, a->n_active, c->n_encoder, c->n_layers, NULL,
                            NULL, err));
        MOE_TRY(moe_score_rows(scores, 0, a->n_active, a->last, a->nats, a->best, err));
        take_tokens(a, s->model);
    }
    return MOE_OK;
}

/* Whether two texts are equal, apart from blanks around them. */
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
