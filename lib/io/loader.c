/* The loader's interface: requests, polling and waiting. loader_open.c opens and closes. */
#include "io/loader.h"

#include <inttypes.h>
#include <math.h>

#include "base/clock.h"
#include "io/loader_state.h"

/* How long one poll verifies and decodes (and one step of loader_check.h), and how long one turn of
 * wait does before it looks at the reads again. */
static const double POLL_SECONDS = 20e-6, WAIT_SECONDS = 200e-6;

/* ---- Requests ---- */

static const char *load_problem(const struct moe_loader *l, const struct moe_load *load)
{
    bool to_gpu = l->options.gpu != NULL;
    if (to_gpu != (load->from != NULL))
        return "bytes in memory go to a GPU, bytes of a file to memory";
    if (!to_gpu &&
        (load->offset % MOE_LOAD_ALIGN != 0 || (uintptr_t)load->to % MOE_LOAD_ALIGN != 0))
        return "place in file or memory is no multiple of 4096";
    if (load->stored_bytes == 0 || load->stored_bytes > load->raw_bytes ||
        load->raw_bytes > INT64_MAX - MOE_LOAD_ALIGN ||
        load->offset > INT64_MAX - MOE_LOAD_ALIGN - load->stored_bytes)
        return "sizes make no sense";
    if (loader_is_compressed(load) && l->options.in_place)
        return "compressed bytes cannot stay in place";
    if (loader_is_compressed(load) && loader_read_bytes(load) > l->options.compressed_bytes)
        return "more compressed bytes than there is room for";
    return NULL;
}

int moe_loader_submit(struct moe_loader *l, const struct moe_load *load, uint32_t *handle,
                      struct moe_err *err)
{
    const char *problem = load_problem(l, load);
    if (problem)
        return moe_fail(err, MOE_ERR_USAGE, "%s: request at offset %" PRIu64 ": %s",
                        l->options.path, load->offset, problem);
    uint32_t item = l->free_request;
    if (item == MOE_LINK_NONE)
        return moe_fail(err, MOE_ERR_LIMIT, "%s: all %" PRIu32 " requests are under way",
                        l->options.path, l->options.n_requests);
    struct loader_request *r = &l->requests[item];
    l->free_request = r->next;
    l->n_requests++;
    l->stats.requests++;
    uint16_t generation = (uint16_t)(r->generation + 1);
    *r = (struct loader_request){.load = *load,
                                 .generation = generation ? generation : 1,
                                 .stored = loader_is_compressed(load) ? NULL : load->to,
                                 .next = MOE_LINK_NONE};
    *handle = (uint32_t)r->generation << 16 | item;
    if (l->options.lockstep) {
        r->state = REQUEST_MODELLED;
        moe_link_add(&l->model, item, loader_read_bytes(load), load->priority, load->score);
    } else {
        double began = moe_seconds();
        loader_request_read(l, item, began);
        if (!l->held)
            loader_read_pump(l);
        l->stats.work_seconds += moe_seconds() - began;
    }
    return MOE_OK;
}

void moe_loader_hold(struct moe_loader *l)
{
    l->held = true;
}

void moe_loader_let_go(struct moe_loader *l)
{
    l->held = false;
    if (l->options.lockstep || moe_link_first(&l->queue) == MOE_LINK_NONE)
        return;
    double began = moe_seconds();
    loader_read_pump(l);
    l->stats.work_seconds += moe_seconds() - began;
}

/* The request under way with that handle, or NULL. */
static struct loader_request *find(struct moe_loader *l, uint32_t handle, uint32_t *item)
{
    *item = handle & 0xffff;
    if (*item >= l->options.n_requests)
        return NULL;
    struct loader_request *r = &l->requests[*item];
    return r->state != REQUEST_FREE && r->generation == handle >> 16 ? r : NULL;
}

void moe_loader_promote(struct moe_loader *l, uint32_t handle, enum moe_load_priority priority,
                        float score)
{
    uint32_t item;
    struct loader_request *r = find(l, handle, &item);
    if (!r)
        return;
    r->load.priority = priority;
    r->load.score = score;
    if (r->state == REQUEST_MODELLED)
        moe_link_promote(&l->model, item, priority, score);
    else if (r->state == REQUEST_READING)
        moe_link_promote(&l->queue, item, priority, score);
}

bool moe_loader_cancel(struct moe_loader *l, uint32_t handle)
{
    uint32_t item;
    struct loader_request *r = find(l, handle, &item);
    if (!r || r->status == MOE_ERR_INTERRUPTED)
        return !r;
    bool gone = true;
    if (r->status == MOE_OK) {
        l->stats.cancelled++;
        l->stats.cancelled_bytes += r->bytes_in;
    }
    if (r->state == REQUEST_READING) {
        r->status = MOE_ERR_INTERRUPTED;
        gone = loader_read_abandon(l, item);
    } else if (r->state != REQUEST_MODELLED) {
        loader_finish_abandon(l, item);
    } else { /* the modelled link has moved its bytes for nothing */
        uint64_t moved = l->model.items[item].started;
        l->stats.cancelled_bytes += moved;
        l->stats.bytes_read += moved;
        moe_link_drop(&l->model, item);
    }
    if (gone)
        loader_request_free(l, item);
    return gone;
}

/* ---- Lockstep ---- */

/* Reads a whole request whose modelled time has come. */
static void fetch(struct moe_loader *l, uint32_t item, struct moe_load_done *done)
{
    loader_request_read(l, item, moe_seconds());
    do {
        loader_read_pump(l);
        if (!loader_finish_pending(l))
            loader_read_sleep(l, INFINITY);
    } while (loader_finish_some(l, done, 1, WAIT_SECONDS, false) == 0);
}

static uint32_t poll_lockstep(struct moe_loader *l, struct moe_load_done *done, uint32_t max)
{
    uint32_t n = 0, item;
    while (n < max && (item = moe_link_take_arrived(&l->model)) != MOE_LINK_NONE)
        fetch(l, item, &done[n++]);
    l->stats.read_seconds = l->model.busy_seconds;
    l->stats.work_seconds = l->model.worked_seconds;
    return n;
}

double moe_loader_advance(struct moe_loader *l, double seconds)
{
    if (!l->options.lockstep)
        return 0;
    moe_link_advance(&l->model, seconds);
    l->stats.work_seconds = l->model.worked_seconds;
    return l->model.clock;
}

double moe_loader_next_piece(const struct moe_loader *l)
{
    return l->options.lockstep ? moe_link_next_piece(&l->model) : 0;
}

/* ---- Polling and waiting ---- */

/* Takes reads in and starts others, works on those that have ended, reports. */
static uint32_t attend(struct moe_loader *l, struct moe_load_done *done, uint32_t max,
                       double seconds, bool together)
{
    loader_read_pump(l);
    if (!loader_finish_pending(l) || max == 0)
        return 0;
    uint32_t n = loader_finish_some(l, done, max, seconds, together);
    loader_read_pump(l); /* the queue has emptied; room for compressed bytes may be free */
    return n;
}

uint32_t moe_loader_poll(struct moe_loader *l, struct moe_load_done *done, uint32_t max)
{
    if (l->options.lockstep)
        return poll_lockstep(l, done, max);
    double started = moe_seconds();
    uint32_t n = attend(l, done, max, POLL_SECONDS, false);
    double seconds = moe_seconds() - started;
    l->stats.work_seconds += seconds;
    if (seconds > l->stats.longest_poll_seconds)
        l->stats.longest_poll_seconds = seconds;
    return n;
}

static uint32_t wait_lockstep(struct moe_loader *l, struct moe_load_done *done, uint32_t max)
{
    uint32_t n = poll_lockstep(l, done, max);
    while (n == 0 && max > 0 && l->n_requests > 0) {
        double before = l->model.clock, worked = l->model.worked_seconds;
        double passed = moe_link_wait(&l->model) - before;
        l->stats.wait_seconds += passed - (l->model.worked_seconds - worked);
        n = poll_lockstep(l, done, max);
    }
    return n;
}

uint32_t moe_loader_wait(struct moe_loader *l, struct moe_load_done *done, uint32_t max)
{
    if (l->options.lockstep)
        return wait_lockstep(l, done, max);
    return moe_loader_wait_for(l, done, max, INFINITY);
}

uint32_t moe_loader_wait_for(struct moe_loader *l, struct moe_load_done *done, uint32_t max,
                             double seconds)
{
    if (l->options.lockstep)
        return poll_lockstep(l, done, max);
    uint32_t n;
    double slept = l->stats.wait_seconds;
    l->waiting_since = moe_seconds();
    double began = l->waiting_since, until = began + seconds;
    while ((n = attend(l, done, max, WAIT_SECONDS, true)) == 0 && max > 0 && l->n_requests > 0) {
        double before = moe_seconds();
        if (before >= until)
            break;
        if (loader_finish_pending(l))
            continue;
        loader_read_sleep(l, until);
        l->stats.wait_seconds += moe_seconds() - before;
    }
    double now = moe_seconds();
    l->stats.work_seconds += now - began - (l->stats.wait_seconds - slept);
    l->waited = loader_waited(l, now);
    l->waiting_since = 0;
    return n;
}

const char *moe_loader_error(const struct moe_loader *l)
{
    return l->error.text;
}

const struct moe_loader_stats *moe_loader_stats(const struct moe_loader *l)
{
    return &l->stats;
}
