#include "run/host_jobs.h"

#include "layer/lockstep.h"

/* Jobs of a layer, one for each activation at most, and those for the next layer. */
static struct moe_host_shape host_shape(const struct moe_config *c, uint32_t batch,
                                        uint32_t n_threads)
{
    return (struct moe_host_shape){
        .max_rows = batch,
        .max_jobs = c->n_experts + c->top_k,
        .max_rows_under_way = ((uint64_t)batch + 1) * c->top_k,
        .n_threads = n_threads,
    };
}

uint64_t moe_host_jobs_bytes(const struct moe_config *c, uint32_t batch, uint32_t n_threads)
{
    const struct moe_host_shape shape = host_shape(c, batch, n_threads);
    return moe_host_bytes(c, &shape);
}

int moe_host_jobs_open(struct moe_host_jobs *jobs, struct moe_session *session, double slowdown,
                       uint32_t n_threads, struct moe_err *err)
{
    const struct moe_config *c = &session->model->config;
    const struct moe_host_shape shape = host_shape(c, session->batch, n_threads);
    *jobs = (struct moe_host_jobs){.session = session};
    return moe_host_open(&jobs->host, c, &shape, slowdown, err);
}

void moe_host_jobs_close(struct moe_host_jobs *jobs)
{
    moe_host_close(jobs->host);
}

int moe_host_jobs_begin(struct moe_host_jobs *jobs, const struct moe_expert_view *view,
                        const struct moe_host_rows *rows, struct moe_host_ticket *ticket,
                        struct moe_err *err)
{
    const struct moe_session *s = jobs->session;
    const struct moe_host_job job = {
        .view = *view,
        .x = s->states.xn,
        .x_stride = s->states.stride,
        .rows = rows->rows,
        .scales = rows->scales,
        .n = rows->n,
        .out = rows->out,
        .out_stride = s->states.stride,
    };
    int status = moe_host_submit(jobs->host, &job, &ticket->ticket, err);
    if (status != MOE_OK)
        return status;
    jobs->any = true;
    jobs->last_ticket = ticket->ticket;
    if (s->pace)
        ticket->due = jobs->free_at = moe_pace_host(s->pace, moe_experts_clock(s->experts),
                                                    jobs->free_at, view->variant, rows->n);
    return MOE_OK;
}

double moe_host_jobs_wait(struct moe_host_jobs *jobs, const struct moe_host_ticket *ticket)
{
    struct moe_session *s = jobs->session;
    double waited = moe_host_wait(jobs->host, ticket->ticket);
    if (!s->pace)
        return waited;
    waited = ticket->due - moe_experts_clock(s->experts);
    if (waited <= 0)
        return 0;
    moe_lockstep_took(s, waited);
    return waited;
}

void moe_host_jobs_wait_all(struct moe_host_jobs *jobs)
{
    if (jobs->any)
        moe_host_wait(jobs->host, jobs->last_ticket);
    jobs->any = false;
}
