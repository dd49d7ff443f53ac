#include "text/unigram.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"

void moe_unigram_release(struct moe_unigram *u)
{
    moe_trie_release(&u->trie);
    free(u->scores);
    *u = (struct moe_unigram){0};
}

void moe_unigram_scratch_release(struct moe_unigram_scratch *scratch)
{
    free(scratch->places);
    *scratch = (struct moe_unigram_scratch){0};
}

uint64_t moe_unigram_scratch_bytes(uint64_t n)
{
    return (n + 1) * sizeof(struct moe_unigram_place);
}

static int scratch_grow(struct moe_unigram_scratch *scratch, uint64_t n, struct moe_err *err)
{
    if (n < scratch->room)
        return MOE_OK;
    if (n >= UINT32_MAX)
        return moe_fail(err, MOE_ERR_LIMIT, "a piece of text has 4 GiB or more");
    moe_unigram_scratch_release(scratch);
    scratch->places = moe_alloc(n + 1, sizeof *scratch->places, err);
    scratch->room = scratch->places ? n + 1 : 0;
    return scratch->places ? MOE_OK : MOE_ERR_MEMORY;
}

/* A token that begins at `from` and would end at `to`: the first of equals stays. */
static void offer(struct moe_unigram_place *to, uint32_t from, uint32_t token, double score)
{
    if (to->other == MOE_UNIGRAM_UNKNOWN || score > to->score)
        *to = (struct moe_unigram_place){score, from, token};
}

/* Offers every token that begins at `at`, the shortest first, and the character alone where it is
 * no token. */
static void offer_all(const struct moe_unigram *u, struct moe_unigram_place *places,
                      const uint8_t *text, uint64_t n, uint64_t at, int length)
{
    double score = places[at].score;
    bool alone = false;
    for (uint32_t node = 0, i = 0; i < n - at; i++) {
        node = moe_trie_child(&u->trie, node, text[at + i]);
        if (node == 0)
            break;
        uint32_t token = moe_trie_token(&u->trie, node);
        if (token == MOE_UNIGRAM_UNKNOWN)
            continue;
        offer(&places[at + i + 1], (uint32_t)at, token, u->scores[token] + score);
        alone = alone || i + 1 == (uint32_t)length;
    }
    if (!alone)
        offer(&places[at + (uint64_t)length], (uint32_t)at, MOE_UNIGRAM_UNKNOWN,
              u->unknown + score);
}

/* From the end back to the start: each place of the way gets what begins there. */
static void turn_round(struct moe_unigram_place *places, uint64_t n)
{
    struct moe_unigram_place last = places[n];
    for (uint64_t end = n; end > 0;) {
        uint32_t start = last.other;
        struct moe_unigram_place before = places[start];
        places[start].other = (uint32_t)end;
        places[start].token = last.token;
        last = before;
        end = start;
    }
}

int moe_unigram_best(const struct moe_unigram *u, struct moe_unigram_scratch *scratch,
                     const uint8_t *text, uint64_t n, double *score, struct moe_err *err)
{
    int length, status = scratch_grow(scratch, n, err);
    if (status != MOE_OK)
        return status;
    struct moe_unigram_place *places = scratch->places;
    for (uint64_t i = 0; i <= n; i++)
        places[i] = (struct moe_unigram_place){.other = MOE_UNIGRAM_UNKNOWN};
    places[0].score = *score;
    for (uint64_t at = 0; at < n; at += (uint64_t)length) {
        moe_utf8_decode(text + at, n - at, &length);
        offer_all(u, places, text, n, at, length);
    }
    *score = places[n].score;
    turn_round(places, n);
    return MOE_OK;
}
