#include "study/rouge.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

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

static int split(struct words *w, const char *text, struct moe_err *err)
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

static int compare(const void *a, const void *b)
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
    qsort(w->hashes, w->n, sizeof *w->hashes, compare);
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
    int status = split(&r, reference, err);
    if (status == MOE_OK)
        status = split(&a, answer, err);
    if (status == MOE_OK) {
        take_runs(&r, n);
        take_runs(&a, n);
        uint64_t common = n_common(&r, &a);
        double p = share(common, a.n), q = share(common, r.n);
        *out = (struct moe_rouge){p, q, p + q > 0 ? 2 * p * q / (p + q) : 0};
    }
    free(r.hashes);
    free(a.hashes);
    return status;
}
