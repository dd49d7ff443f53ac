/* Computes Belady's optimum over the lookups of a trace. */
#include "plan/optimal.h"

#include <stdlib.h>

#include "base/buf.h"
#include "base/mem.h"

/* From the step of one lookup of an expert to that of its next; `to` is 0 if a hit there would not
 * count, or there is no next. */
struct interval {
    uint32_t from, to;
};

struct moe_lookups {
    struct interval *intervals; /* [n_intervals] that end with a hit that counts, by `from` */
    uint64_t n_intervals, decoded;
    uint32_t n_steps; /* steps are 1..n_steps */
};

/* ---- Reading ---- */

struct reader {
    const struct moe_trace_shape *shape;
    struct moe_buf intervals; /* one from each lookup */
    uint32_t *latest; /* [layers][experts] 1 + the interval from its latest lookup; 0: none */
    uint32_t n_steps;
    uint64_t n_lookups, decoded;
};

/* Each layer of a token is a step. */
static void look_up(struct reader *r, const struct moe_trace *t, bool decoded)
{
    for (uint32_t layer = 0; layer < r->shape->n_layers; layer++) {
        uint32_t *latest =
            r->latest + (uint64_t)moe_loop_owner(&r->shape->loop, layer) * r->shape->n_experts;
        const uint16_t *experts = moe_trace_step(t, layer).experts;
        uint32_t n = experts ? r->shape->top_k : 0;
        r->n_steps += n > 0;
        r->decoded += decoded ? n : 0;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t *before = &latest[experts[i]];
            struct interval *intervals = (struct interval *)r->intervals.data;
            if (decoded && *before && !r->intervals.failed)
                intervals[*before - 1].to = r->n_steps;
            moe_buf_append(&r->intervals, &(struct interval){.from = r->n_steps},
                           sizeof *intervals);
            *before = (uint32_t)++r->n_lookups;
        }
    }
}

/* Whether there was memory for all lookups, and numbers for those of one more token. */
static int check(const struct reader *r, struct moe_err *err)
{
    if (r->intervals.failed)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for a trace's lookups");
    if (r->n_lookups > UINT32_MAX - (uint64_t)r->shape->n_layers * r->shape->top_k)
        return moe_fail(err, MOE_ERR_LIMIT,
                        "the trace is too long to find the optimum: take fewer of its tokens");
    return MOE_OK;
}

/* Hands over the intervals that end with a hit that counts. */
static void keep_hits(struct moe_lookups *l, struct reader *r)
{
    l->intervals = (struct interval *)r->intervals.data;
    for (uint64_t i = 0; i < r->n_lookups; i++)
        if (l->intervals[i].to)
            l->intervals[l->n_intervals++] = l->intervals[i];
    l->decoded = r->decoded;
    l->n_steps = r->n_steps;
    r->intervals = (struct moe_buf){0};
}

int moe_lookups_read(struct moe_lookups **out, struct moe_trace *trace, struct moe_excerpt excerpt,
                     struct moe_err *err)
{
    const struct moe_trace_token *token = NULL;
    struct reader r = {.shape = moe_trace_shape(trace)};
    struct moe_lookups *l = moe_alloc(1, sizeof *l, err);
    r.latest = moe_alloc((uint64_t)r.shape->n_layers * r.shape->n_experts, sizeof *r.latest, err);
    int status = l && r.latest ? MOE_OK : MOE_ERR_MEMORY;
    moe_excerpt_begin(trace, excerpt, 0);
    for (uint64_t taken = 0; status == MOE_OK;) {
        status = moe_excerpt_next(trace, excerpt, &taken, &token, err);
        if (status != MOE_OK || !token)
            break;
        look_up(&r, trace, !token->prompt && !moe_excerpt_warms(excerpt, token->sequence));
        status = check(&r, err);
    }
    if (status == MOE_OK) {
        keep_hits(l, &r);
        *out = l;
    } else {
        free(l);
    }
    moe_buf_release(&r.intervals);
    free(r.latest);
    return status;
}

void moe_lookups_free(struct moe_lookups *l)
{
    if (!l)
        return;
    free(l->intervals);
    free(l);
}

uint64_t moe_lookups_decoded(const struct moe_lookups *l)
{
    return l->decoded;
}

/* ---- The optimum ---- */

/* Into a heap of n, the largest on top. */
static void heap_push(uint32_t *heap, uint64_t n, uint32_t value)
{
    uint64_t at = n;
    for (; at > 0 && heap[(at - 1) / 2] < value; at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = value;
}

/* Out of a heap of n. */
static uint32_t heap_pop(uint32_t *heap, uint64_t n)
{
    uint32_t top = heap[0], last = heap[n - 1];
    uint64_t at = 0;
    for (uint64_t child; (child = 2 * at + 1) < n - 1; at = child) {
        child += child + 1 < n - 1 && heap[child + 1] > heap[child];
        if (heap[child] <= last)
            break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return top;
}

int moe_optimal_hits(const struct moe_lookups *l, uint64_t capacity, uint64_t *hits,
                     struct moe_err *err)
{
    uint32_t *ends = moe_alloc(l->n_intervals, sizeof *ends, err); /* heap of the kept ones' ends */
    uint32_t *ending = moe_alloc((uint64_t)l->n_steps + 1, sizeof *ending, err); /* kept, by end */
    int status = ends && ending ? MOE_OK : MOE_ERR_MEMORY;
    uint64_t n_ends = 0, open = 0, kept = 0;
    uint32_t now = 0;
    for (uint64_t i = 0; i < l->n_intervals && status == MOE_OK; i++) {
        const struct interval *next = &l->intervals[i];
        while (now < next->from)
            open -= ending[++now];
        heap_push(ends, n_ends++, next->to);
        ending[next->to]++;
        open++;
        kept++;
        if (open > capacity) { /* one at least is open, so that the top has not ended yet */
            ending[heap_pop(ends, n_ends--)]--;
            open--;
            kept--;
        }
    }
    free(ends);
    free(ending);
    if (status == MOE_OK)
        *hits = kept;
    return status;
}
