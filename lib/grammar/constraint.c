/* Constrains an answer: finds, beside the model's pass, which tokens a grammar allows next. */

#include "grammar/constraint.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "grammar/automaton_internal.h"

enum { LONGEST = 4096 /* bytes of a token; longer ones are never allowed */ };

struct token {
    const uint8_t *bytes;
    uint32_t n, id;
};

static int by_bytes(const void *a, const void *b)
{
    const struct token *x = a, *y = b;
    uint32_t n = x->n < y->n ? x->n : y->n;
    int order = memcmp(x->bytes, y->bytes, n);
    if (order == 0)
        order = (x->n > y->n) - (x->n < y->n);
    return order ? order : (x->id > y->id) - (x->id < y->id);
}

static uint16_t shared_bytes(const struct token *a, const struct token *b)
{
    uint16_t n = 0;
    while (n < a->n && n < b->n && a->bytes[n] == b->bytes[n])
        n++;
    return n;
}

uint64_t moe_vocabulary_bytes(uint32_t n_logits)
{
    return sizeof(struct moe_vocabulary) +
           (uint64_t)n_logits * (2 * sizeof(struct token) + sizeof(uint32_t) + sizeof(uint16_t));
}

int moe_vocabulary_new(struct moe_vocabulary **out, const struct moe_tokenizer *tokenizer,
                       uint32_t n_logits, const struct moe_ids *marks, struct moe_err *err)
{
    struct moe_vocabulary *v = *out = NULL;
    uint32_t n_ids = moe_tokenizer_n_tokens(tokenizer);
    n_ids = n_ids < n_logits ? n_ids : n_logits;
    struct token *tokens = moe_alloc(n_ids, sizeof *tokens, err);
    if (tokens && (v = moe_alloc(1, sizeof *v, err))) {
        v->ids = moe_alloc(n_ids, sizeof *v->ids, err);
        v->shared = moe_alloc(n_ids, sizeof *v->shared, err);
    }
    if (!v || !v->ids || !v->shared) {
        moe_vocabulary_free(v);
        free(tokens);
        return MOE_ERR_MEMORY;
    }
    v->tokenizer = tokenizer;
    v->n_logits = n_logits;
    uint64_t at_mark = 0; /* both ascend */
    for (uint32_t id = 0; id < n_ids; id++) {
        struct token t = {.id = id};
        t.bytes = moe_tokenizer_bytes(tokenizer, id, &t.n);
        bool is_mark = marks && at_mark < marks->n && marks->ids[at_mark] == id;
        at_mark += is_mark;
        if (t.n > 0 && t.n <= LONGEST && (is_mark || !moe_tokenizer_is_special(tokenizer, id)))
            tokens[v->n++] = t;
    }
    qsort(tokens, v->n, sizeof *tokens, by_bytes);
    for (uint32_t i = 0; i < v->n; i++) {
        v->ids[i] = tokens[i].id;
        v->shared[i] = i ? shared_bytes(&tokens[i - 1], &tokens[i]) : 0;
        v->longest = tokens[i].n > v->longest ? tokens[i].n : v->longest;
    }
    free(tokens);
    *out = v;
    return MOE_OK;
}

void moe_vocabulary_free(struct moe_vocabulary *v)
{
    if (!v)
        return;
    free(v->ids);
    free(v->shared);
    free(v);
}

/*
 * Masks: which tokens may come next at a place of the automaton. Kept by place, the latest that fit
 * into their memory.
 */

struct mask {
    uint64_t *bits;     /* one bit per id, as many as logits */
    uint32_t n_allowed; /* tokens with text */
    uint32_t place;     /* PLACE_DEAD: empty */
};

struct masks {
    const struct moe_vocabulary *vocabulary;
    struct mask *masks; /* [n] */
    uint64_t *bits;     /* [n][words] */
    uint32_t *of_place; /* [MAX_OF_PLACE]: mask + 1 by the place's number; checked */
    uint32_t *at;       /* [longest + 1]: places along a token */
    uint32_t n, next, words;
};

enum {
    MASK_BYTES = 1 << 20, /* of all masks, but at least LEAST masks */
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

/* their upper bound */
static uint64_t masks_bytes(uint32_t n_logits)
{
    return (uint64_t)n_masks(n_logits) * (sizeof(struct mask) + 8 * (uint64_t)n_words(n_logits)) +
           (OF_PLACE + LONGEST_WALK) * sizeof(uint32_t);
}

static int masks_open(struct masks *m, const struct moe_vocabulary *vocabulary, struct moe_err *err)
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

static void masks_close(struct masks *m)
{
    free(m->masks);
    free(m->bits);
    free(m->of_place);
    free(m->at);
    *m = (struct masks){0};
}

/* Forgets all masks after places were renumbered. */
static void masks_forget(struct masks *m)
{
    for (uint32_t i = 0; i < m->n; i++)
        m->masks[i].place = PLACE_DEAD;
}

/* The mask kept for a place; NULL: none. */
static const struct mask *masks_find(const struct masks *m, uint32_t place)
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

/* Tries tokens in the order of their bytes: each continues where it departs from the one before,
 * and tokens with a dead beginning are skipped. */
static int walk_tokens(struct masks *m, struct automaton *a, uint32_t place, struct mask *mask)
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

/* The same for an answer's first token, which may lose a blank: tries each one. */
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

/* Makes the mask of a place. first: the answer has not begun, and its text starts anew
 * (moe_tokenizer_said). Statuses as for automaton_step. */
static int masks_make(struct masks *m, struct automaton *a, uint32_t place, bool first,
                      const struct mask **out)
{
    struct mask *mask = &m->masks[m->next];
    mask->place = PLACE_DEAD;
    mask->n_allowed = 0;
    memset(mask->bits, 0, m->words * sizeof *mask->bits);
    automaton_budget(a);
    MOE_TRY(first ? try_each(m, a, place, mask) : walk_tokens(m, a, place, mask));
    m->of_place[place % OF_PLACE] = ++m->next;
    m->next %= m->n;
    mask->place = first ? PLACE_DEAD : place; /* the first token's mask fits no other place */
    *out = mask;
    return MOE_OK;
}

/* ---- The constraint of an answer ---- */

enum work {
    WORK_NONE,  /* nothing is known or asked */
    WORK_ASKED, /* the thread should find out */
    WORK_KNOWN, /* `mask` or `status` is known */
    WORK_QUIT,
};

struct moe_constraint {
    const struct moe_grammar *grammar;
    struct automaton *automaton;
    struct masks masks;
    uint64_t *ends;    /* bits of the ids that end an answer */
    uint64_t *allowed; /* the mask with these, as returned */
    uint32_t place;
    bool begins;   /* the answer has not begun, and its text starts anew */
    bool complete; /* nothing can follow at the place */
    /* Ownership of the members above: the thread's while WORK_ASKED, else the caller's. */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t thread;
    bool has_thread;
    enum work work;
    const struct mask *mask;
    int status;
    double seconds; /* of the last work */
    struct moe_constraint_figures figures;
};

/* ---- Life ---- */

uint64_t moe_constraint_bytes(uint32_t n_logits)
{
    return sizeof(struct moe_constraint) + automaton_bytes() + masks_bytes(n_logits) +
           2 * ((uint64_t)n_logits / 8 + 8);
}

int moe_constraint_new(struct moe_constraint **out, const struct moe_grammar *g,
                       const struct moe_vocabulary *v, struct moe_err *err)
{
    *out = NULL;
    struct moe_constraint *c = moe_alloc(1, sizeof *c, err);
    if (!c)
        return MOE_ERR_MEMORY;
    pthread_mutex_init(&c->mutex, NULL);
    pthread_cond_init(&c->changed, NULL);
    c->grammar = g;
    int status = automaton_new(&c->automaton, g, err);
    if (status == MOE_OK)
        status = masks_open(&c->masks, v, err);
    if (status == MOE_OK && (!(c->ends = moe_alloc(c->masks.words, sizeof *c->ends, err)) ||
                             !(c->allowed = moe_alloc(c->masks.words, sizeof *c->allowed, err))))
        status = MOE_ERR_MEMORY;
    if (status != MOE_OK) {
        moe_constraint_free(c);
        return status;
    }
    moe_constraint_restart(c);
    *out = c;
    return MOE_OK;
}

void moe_constraint_free(struct moe_constraint *c)
{
    if (!c)
        return;
    if (c->has_thread) {
        pthread_mutex_lock(&c->mutex);
        while (c->work == WORK_ASKED)
            pthread_cond_wait(&c->changed, &c->mutex);
        c->work = WORK_QUIT;
        pthread_cond_broadcast(&c->changed);
        pthread_mutex_unlock(&c->mutex);
        pthread_join(c->thread, NULL);
    }
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->mutex);
    masks_close(&c->masks);
    automaton_free(c->automaton);
    free(c->ends);
    free(c->allowed);
    free(c);
}

/* ---- Finding out ---- */

/* Finds the mask of the place. If there are too many places, first forgets all but this one. */
static void find_mask(struct moe_constraint *c)
{
    double began = moe_seconds();
    c->status = masks_make(&c->masks, c->automaton, c->place, c->begins, &c->mask);
    if (c->status == MOE_ERR_LIMIT && !automaton_is_spent(c->automaton)) {
        masks_forget(&c->masks);
        c->status = automaton_keep(c->automaton, &c->place);
        if (c->status == MOE_OK)
            c->status = masks_make(&c->masks, c->automaton, c->place, c->begins, &c->mask);
    }
    c->seconds = moe_seconds() - began;
}

static void *find_masks(void *arg)
{
    struct moe_constraint *c = arg;
    pthread_mutex_lock(&c->mutex);
    for (;;) {
        while (c->work == WORK_NONE || c->work == WORK_KNOWN)
            pthread_cond_wait(&c->changed, &c->mutex);
        if (c->work == WORK_QUIT)
            break;
        pthread_mutex_unlock(&c->mutex);
        find_mask(c);
        pthread_mutex_lock(&c->mutex);
        c->work = WORK_KNOWN;
        pthread_cond_broadcast(&c->changed);
    }
    pthread_mutex_unlock(&c->mutex);
    return NULL;
}

/* Waits until the thread has finished. */
static void await_worker(struct moe_constraint *c)
{
    pthread_mutex_lock(&c->mutex);
    while (c->work == WORK_ASKED)
        pthread_cond_wait(&c->changed, &c->mutex);
    pthread_mutex_unlock(&c->mutex);
}

static void set_work(struct moe_constraint *c, enum work work)
{
    pthread_mutex_lock(&c->mutex);
    c->work = work;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->mutex);
}

/* Finds, or lets the thread find, what may come at the place. */
static void look_ahead(struct moe_constraint *c)
{
    c->mask = c->begins ? NULL : masks_find(&c->masks, c->place);
    c->status = MOE_OK;
    c->seconds = 0;
    if (c->mask) {
        set_work(c, WORK_KNOWN);
        return;
    }
    c->figures.masks++;
    if (!c->has_thread)
        c->has_thread = pthread_create(&c->thread, NULL, find_masks, c) == 0;
    if (c->has_thread) {
        set_work(c, WORK_ASKED);
    } else {
        find_mask(c);
        set_work(c, WORK_KNOWN);
    }
}

/* ---- For the sampler ---- */

static void note_complete(struct moe_constraint *c)
{
    c->complete = c->status == MOE_OK && automaton_ends(c->automaton, c->place) &&
                  !automaton_goes_on(c->automaton, c->place);
}

void moe_constraint_restart(struct moe_constraint *c)
{
    await_worker(c);
    set_work(c, WORK_NONE);
    automaton_budget(c->automaton);
    c->status = automaton_start(c->automaton, &c->place);
    if (c->status == MOE_ERR_LIMIT) { /* earlier places are no longer needed */
        masks_forget(&c->masks);
        c->place = PLACE_DEAD;
        automaton_keep(c->automaton, &c->place);
        c->status = automaton_start(c->automaton, &c->place);
    }
    note_complete(c);
}

void moe_constraint_prepare(struct moe_constraint *c, bool begins,
                            bool (*ends)(const void *ctx, uint32_t id), const void *ctx)
{
    await_worker(c);
    c->begins = begins;
    for (uint32_t id = 0; id < c->masks.vocabulary->n_logits; id++) {
        uint64_t bit = (uint64_t)1 << id % 64;
        c->ends[id / 64] = ends(ctx, id) ? c->ends[id / 64] | bit : c->ends[id / 64] & ~bit;
    }
    if (c->status == MOE_OK)
        look_ahead(c);
}

static int say_too_open(const struct moe_constraint *c, struct moe_err *err)
{
    if (automaton_is_spent(c->automaton))
        return moe_fail(err, MOE_ERR_LIMIT,
                        "the grammar takes too long: to see which tokens may come next, more than "
                        "%d of its states are visited",
                        MAX_VISITS);
    return moe_fail(err, MOE_ERR_LIMIT,
                    "the grammar leaves too many ways open, or is nested too deep here: more than "
                    "%d stacks, or %d of their members",
                    MAX_STACKS, MAX_NODES);
}

int moe_constraint_allowed(struct moe_constraint *c, struct moe_allowed *out, struct moe_err *err)
{
    double began = moe_seconds();
    await_worker(c);
    c->figures.waited += moe_seconds() - began;
    c->figures.seconds += c->seconds;
    c->figures.tokens++;
    c->seconds = 0;
    if (c->status != MOE_OK)
        return say_too_open(c, err);
    out->may_end = automaton_ends(c->automaton, c->place);
    out->bits = c->allowed;
    out->n = 0;
    for (uint32_t i = 0; i < c->masks.words; i++) {
        c->allowed[i] = (c->mask->bits[i] & ~c->ends[i]) | (out->may_end ? c->ends[i] : 0);
        out->n += (uint64_t)__builtin_popcountll(c->allowed[i]);
    }
    return MOE_OK;
}

int moe_constraint_take(struct moe_constraint *c, const uint8_t *bytes, uint64_t n,
                        struct moe_err *err)
{
    await_worker(c);
    automaton_budget(c->automaton);
    uint32_t at = c->place;
    int status = c->status;
    for (uint64_t i = 0; i < n && status == MOE_OK; i++) {
        status = automaton_step(c->automaton, at, bytes[i], &at);
        if (status == MOE_ERR_LIMIT && !automaton_is_spent(c->automaton)) {
            masks_forget(&c->masks);
            status = automaton_keep(c->automaton, &at);
            if (status == MOE_OK)
                status = automaton_step(c->automaton, at, bytes[i], &at);
        }
    }
    c->status = status;
    if (status != MOE_OK)
        return say_too_open(c, err);
    if (at == PLACE_DEAD)
        return moe_fail(err, MOE_ERR_USAGE, "the answer does not follow its grammar");
    c->place = at;
    c->begins = c->begins && n == 0;
    note_complete(c);
    if (!c->complete)
        look_ahead(c);
    return MOE_OK;
}

bool moe_constraint_fits(struct moe_constraint *c, const uint8_t *bytes, uint64_t n)
{
    await_worker(c);
    automaton_budget(c->automaton);
    uint32_t at = c->place;
    for (uint64_t i = 0; i < n && at != PLACE_DEAD; i++)
        if (automaton_step(c->automaton, at, bytes[i], &at) != MOE_OK)
            return false;
    return at != PLACE_DEAD;
}

bool moe_constraint_is_complete(const struct moe_constraint *c)
{
    return c->complete;
}

struct moe_constraint_figures moe_constraint_count(struct moe_constraint *c)
{
    struct moe_constraint_figures f = c->figures;
    c->figures = (struct moe_constraint_figures){0};
    return f;
}
