#include "grammar/mask.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum {
    MASK_BYTES = 1 << 20, /* of all masks, but never fewer than LEAST */
    LEAST = 4,
    MOST = 256,
    OF_PLACE = 8192,
    LONGEST_WALK = 4096 + 1,
};

/* ---- Memory ---- */

static uint32_t n_words(uint32_t n_logits)
{
    return (n_logits + 63) / 64;
}

static uint32_t n_masks(uint32_t n_logits)
{
    uint32_t n = MASK_BYTES / (8 * n_words(n_logits) + 8);
    return n < LEAST ? LEAST : n < MOST ? n : MOST;
}

uint64_t masks_bytes(uint32_t n_logits)
{
    return (uint64_t)n_masks(n_logits) * (sizeof(struct mask) + 8 * (uint64_t)n_words(n_logits)) +
           (OF_PLACE + LONGEST_WALK) * sizeof(uint32_t);
}

int masks_open(struct masks *m, const struct moe_vocabulary *vocabulary, struct moe_err *err)
{
    *m = (struct masks){.vocabulary = vocabulary,
                        .n = n_masks(vocabulary->n_logits),
                        .words = n_words(vocabulary->n_logits)};
    m->masks = moe_alloc(m->n, sizeof *m->masks, err);
    m->bits = moe_alloc((uint64_t)m->n * m->words, sizeof *m->bits, err);
    m->of_place = moe_alloc(OF_PLACE, sizeof *m->of_place, err);
    m->at = moe_alloc(vocabulary->longest + 1, sizeof *m->at, err);
    if (!m->masks || !m->bits || !m->of_place || !m->at)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < m->n; i++)
        m->masks[i].bits = m->bits + (uint64_t)i * m->words;
    return MOE_OK;
}

void masks_close(struct masks *m)
{
    free(m->masks);
    free(m->bits);
    free(m->of_place);
    free(m->at);
    *m = (struct masks){0};
}

void masks_forget(struct masks *m)
{
    for (uint32_t i = 0; i < m->n; i++)
        m->masks[i].place = PLACE_DEAD;
}

const struct mask *masks_find(const struct masks *m, uint32_t place)
{
    uint32_t i = m->of_place[place % OF_PLACE];
    return i && m->masks[i - 1].place == place ? &m->masks[i - 1] : NULL;
}

/* ---- Making one ---- */

static void allow(struct mask *mask, uint32_t id)
{
    mask->bits[id / 64] |= (uint64_t)1 << id % 64;
    mask->n_allowed++;
}

/* Tokens in the order of their bytes: each goes on from where it parts from the one before, and
 * those that begin as one that led nowhere are passed over. */
static int walk(struct masks *m, struct automaton *a, uint32_t place, struct mask *mask)
{
    const struct moe_vocabulary *v = m->vocabulary;
    uint32_t alive = 0; /* bytes of the last token that lead somewhere */
    m->at[0] = place;
    for (uint32_t i = 0; i < v->n; i++) {
        if (v->shared[i] > alive)
            continue;
        uint32_t n, next = PLACE_DEAD;
        const uint8_t *bytes = moe_tokenizer_bytes(v->tokenizer, v->ids[i], &n);
        for (alive = v->shared[i]; alive < n; alive++) {
            int status = automaton_step(a, m->at[alive], bytes[alive], &next);
            if (status != MOE_OK)
                return status;
            if (next == PLACE_DEAD)
                break;
            m->at[alive + 1] = next;
        }
        if (alive == n)
            allow(mask, v->ids[i]);
    }
    return MOE_OK;
}

/* The same of an answer's first token, which may lose a blank: one by one. */
static int try_each(struct masks *m, struct automaton *a, uint32_t place, struct mask *mask)
{
    const struct moe_vocabulary *v = m->vocabulary;
    for (uint32_t i = 0; i < v->n; i++) {
        bool first = true;
        uint32_t n, at = place;
        const uint8_t *bytes = moe_tokenizer_said(v->tokenizer, v->ids[i], &first, &n);
        for (uint32_t b = 0; b < n && at != PLACE_DEAD; b++) {
            int status = automaton_step(a, at, bytes[b], &at);
            if (status != MOE_OK)
                return status;
        }
        if (n > 0 && at != PLACE_DEAD)
            allow(mask, v->ids[i]);
    }
    return MOE_OK;
}

int masks_make(struct masks *m, struct automaton *a, uint32_t place, bool first,
               const struct mask **out)
{
    struct mask *mask = &m->masks[m->next];
    mask->place = PLACE_DEAD;
    mask->n_allowed = 0;
    memset(mask->bits, 0, m->words * sizeof *mask->bits);
    automaton_budget(a);
    int status = first ? try_each(m, a, place, mask) : walk(m, a, place, mask);
    if (status != MOE_OK)
        return status;
    m->of_place[place % OF_PLACE] = ++m->next;
    m->next %= m->n;
    mask->place = first ? PLACE_DEAD : place; /* that of the first token is no other's */
    *out = mask;
    return MOE_OK;
}
