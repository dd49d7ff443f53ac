#define _DEFAULT_SOURCE /* setpriority */
#include "grammar/constraint.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/mem.h"
#include "grammar/mask.h"

enum { NICE = 10 /* the model's threads come first where cores are few */ };

enum work {
    WORK_NONE,  /* nothing is known or asked */
    WORK_ASKED, /* the thread is to find out */
    WORK_KNOWN, /* `mask`, or `status` */
    WORK_QUIT,
};

struct moe_constraint {
    const struct moe_grammar *grammar;
    struct automaton *automaton;
    struct masks masks;
    uint64_t *ends;    /* bits of the ids that end an answer */
    uint64_t *allowed; /* the mask with these, as it is handed out */
    uint32_t place;
    bool begins;   /* nothing was said of a text by itself */
    bool complete; /* nothing can follow at the place */
    /* Who may touch what is above: the thread while WORK_ASKED, else the caller. */
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

/* The mask of the place. Where places have become too many, all but this are forgotten first. */
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
    /* Of this thread alone, on Linux; where it is refused it is as urgent as the model. */
    setpriority(PRIO_PROCESS, 0, NICE);
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

/* Waits for the thread where it works. */
static void settle(struct moe_constraint *c)
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

/* Looks, or has the thread look, what may come at the place. */
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

/* ---- For who draws ---- */

static void note_complete(struct moe_constraint *c)
{
    c->complete = c->status == MOE_OK && automaton_ends(c->automaton, c->place) &&
                  !automaton_goes_on(c->automaton, c->place);
}

void moe_constraint_restart(struct moe_constraint *c)
{
    settle(c);
    set_work(c, WORK_NONE);
    automaton_budget(c->automaton);
    c->status = automaton_start(c->automaton, &c->place);
    if (c->status == MOE_ERR_LIMIT) { /* none of the earlier places is wanted any more */
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
    settle(c);
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
    settle(c);
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
    settle(c);
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
