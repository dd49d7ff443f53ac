/* What happens to a request when its reads have ended: checksum, decoding, the report. */
#include <inttypes.h>

#include "base/clock.h"
#include "base/par.h"
#include "io/loader_state.h"

/* ---- Jobs ---- */

static void job_free(struct moe_loader *l, struct loader_job *job)
{
    l->stats.verify_seconds += job->check.verify_seconds;
    l->stats.decode_seconds += job->check.decode_seconds;
    job->item = MOE_LINK_NONE;
    l->n_busy--;
}

static struct loader_job *job_of(struct moe_loader *l, uint32_t item)
{
    struct loader_job *job = l->jobs;
    while (job->item != item)
        job++;
    return job;
}

void loader_finish_abandon(struct moe_loader *l, uint32_t item)
{
    if (l->requests[item].state == REQUEST_CHECKING)
        job_free(l, job_of(l, item));
    else
        loader_request_unready(l, item);
}

bool loader_finish_pending(const struct moe_loader *l)
{
    return l->n_busy > 0 || l->first_ready != MOE_LINK_NONE;
}

static bool is_demand(const struct moe_loader *l, uint32_t item)
{
    return l->requests[item].load.priority == MOE_LOAD_DEMAND;
}

/* The first demand among the ready requests that have not failed, else the first; MOE_LINK_NONE. */
static uint32_t next_ready(const struct moe_loader *l)
{
    uint32_t found = MOE_LINK_NONE;
    for (uint32_t i = l->first_ready; i != MOE_LINK_NONE; i = l->requests[i].next) {
        if (l->requests[i].status != MOE_OK)
            continue;
        if (is_demand(l, i))
            return i;
        if (found == MOE_LINK_NONE)
            found = i;
    }
    return found;
}

/* A job for the request: a free one or, for a demand, one that works on a prefetch, which then
 * starts again later. NULL: none. */
static struct loader_job *job_for(struct moe_loader *l, uint32_t item)
{
    struct loader_job *found = NULL;
    for (uint32_t i = 0; i < l->n_jobs; i++) {
        struct loader_job *job = &l->jobs[i];
        if (job->item == MOE_LINK_NONE)
            return job;
        if (is_demand(l, item) && !is_demand(l, job->item))
            found = job;
    }
    if (found) {
        uint32_t put_off = found->item;
        job_free(l, found);
        loader_request_ready(l, put_off);
    }
    return found;
}

/* Gives ready requests to jobs. */
static void start_jobs(struct moe_loader *l)
{
    uint32_t item;
    struct loader_job *job;
    while ((item = next_ready(l)) != MOE_LINK_NONE && (job = job_for(l, item))) {
        struct loader_request *r = &l->requests[item];
        loader_request_unready(l, item);
        r->state = REQUEST_CHECKING;
        job->item = item;
        l->n_busy++;
        loader_check_begin(&job->check, &r->load, r->stored, l->options.verify);
    }
}

static void work_until(struct loader_job *job, double until)
{
    while (!loader_check_over(&job->check)) {
        loader_check_step(&job->check);
        if (moe_seconds() >= until)
            break;
    }
}

struct shift {
    struct moe_loader *l;
    double seconds;
};

/* Each job gets its full time, even if there are fewer threads than jobs. */
static void work_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct shift *s = ctx;
    for (int64_t i = begin; i < end; i++)
        if (s->l->jobs[i].item != MOE_LINK_NONE)
            work_until(&s->l->jobs[i], moe_seconds() + s->seconds);
}

static void work_alone(struct moe_loader *l, double until)
{
    for (int demands = 1; demands >= 0; demands--)
        for (uint32_t i = 0; i < l->n_jobs && moe_seconds() < until; i++)
            if (l->jobs[i].item != MOE_LINK_NONE && is_demand(l, l->jobs[i].item) == demands)
                work_until(&l->jobs[i], until);
}

/* ---- Reports ---- */

/* Memory, the page cache or the transfer may be at fault rather than the file: reads once more,
 * from the disk. */
static void read_again(struct moe_loader *l, uint32_t item)
{
    struct loader_request *r = &l->requests[item];
    if (!l->stats.direct)
        loader_file_forget(&l->file, r->load.offset, loader_read_bytes(&r->load));
    r->n_rereads++;
    l->stats.rereads++;
    loader_request_read(l, item, moe_seconds());
}

static void report(struct moe_loader *l, uint32_t item, struct moe_load_done *done)
{
    const struct loader_request *r = &l->requests[item];
    *done = (struct moe_load_done){.tag = r->load.tag, .status = r->status};
    loader_request_free(l, item);
}

/* Reports requests that failed or were cancelled: there is nothing to check. */
static uint32_t report_failed(struct moe_loader *l, struct moe_load_done *done, uint32_t max)
{
    uint32_t n = 0, after;
    for (uint32_t i = l->first_ready; i != MOE_LINK_NONE && n < max; i = after) {
        after = l->requests[i].next;
        if (l->requests[i].status != MOE_OK) {
            loader_request_unready(l, i);
            report(l, i, &done[n++]);
        }
    }
    return n;
}

/* Reports a job that is over. False: its bytes were damaged and are being read again. */
static bool report_checked(struct moe_loader *l, struct loader_job *job, struct moe_load_done *done)
{
    uint32_t item = job->item;
    struct loader_request *r = &l->requests[item];
    const char *problem = job->check.problem;
    job_free(l, job);
    if (problem && r->n_rereads == 0) {
        read_again(l, item);
        return false;
    }
    if (problem)
        r->status = moe_fail(&l->error, MOE_ERR_FORMAT,
                             "%s: %" PRIu64 " bytes at offset %" PRIu64
                             ": %s (file damaged? run moe-quantize --verify)",
                             l->options.path, r->load.stored_bytes, r->load.offset, problem);
    report(l, item, done);
    return true;
}

uint32_t loader_finish_some(struct moe_loader *l, struct moe_load_done *done, uint32_t max,
                            double seconds, bool together)
{
    struct shift s = {l, seconds};
    uint32_t n = report_failed(l, done, max);
    start_jobs(l);
    if (together && l->n_busy > 1)
        moe_par_for(l->n_jobs, 1, work_range, &s);
    else
        work_alone(l, moe_seconds() + seconds);
    for (uint32_t i = 0; i < l->n_jobs && n < max; i++) {
        struct loader_job *job = &l->jobs[i];
        if (job->item != MOE_LINK_NONE && loader_check_over(&job->check))
            n += report_checked(l, job, &done[n]);
    }
    return n;
}
