/* moe-serve: answers requests of many callers with one or many models. See man/moe-serve.1. */
#include <stdlib.h>

#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/text.h"
#include "join_ranks.h"
#include "serve/server.h"
#include "serve_options.h"
#include "show/show.h"

/* ---- The server ---- */

struct serve {
    const char *path;
    struct moe_statistics *statistics;
    struct moe_coe_collection *collection;
    struct moe_coe_costs *costs;
    struct moe_coe_plan *plan;
    char *directory;         /* of the collection */
    struct moe_ranks *ranks; /* this is rank 0; NULL: it runs alone */
    struct moe_server *server;
};

/* Sets the engine's options of the strategy; with none given the engine chooses. */
static int choose_strategy(struct serve *v, struct moe_err *err)
{
    struct moe_engine_options *e = &serve_opt.server.engine;
    const struct strategy_options *o = &serve_opt.strategy;
    struct moe_strategy strategy;
    bool automatic;
    MOE_TRY(strategy_options_apply(o, &strategy, &automatic, err));
    if (o->statistics)
        MOE_TRY(moe_statistics_read(&v->statistics, o->statistics, err));
    if (!automatic)
        e->strategy = strategy;
    e->exact = o->exact;
    e->statistics = v->statistics;
    e->low_variant = o->low;
    e->staging = o->staging;
    e->device = o->device;
    e->session.kv_kind = o->kv_kind;
    return MOE_OK;
}

/* The plan's schedule, where the options name none. */
static int follow_plan(const struct moe_coe_plan *plan, struct moe_err *err)
{
    struct moe_server_options *o = &serve_opt.server;
    o->plan = plan;
    if (!cli_given("schedule") && plan->schedule[0])
        o->schedule = moe_coe_schedule_find(plan->schedule);
    if (!cli_given("evict") && plan->evict[0] && !moe_coe_evict_find(plan->evict, &o->evict))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: there is no eviction '%s'", serve_opt.plan,
                        plan->evict);
    o->no_prefetch = o->no_prefetch || !plan->prefetch;
    return MOE_OK;
}

static int read_collection(struct serve *v, struct moe_err *err)
{
    struct moe_server_options *o = &serve_opt.server;
    MOE_TRY(moe_coe_collection_read(&v->collection, serve_opt.collection, err));
    if (!(v->directory = moe_path_directory(serve_opt.collection, err)))
        return MOE_ERR_MEMORY;
    if (serve_opt.costs)
        MOE_TRY(moe_coe_costs_read(&v->costs, serve_opt.costs, err));
    if (serve_opt.plan)
        MOE_TRY(moe_coe_plan_read(&v->plan, serve_opt.plan, err));
    if (v->plan)
        MOE_TRY(follow_plan(v->plan, err));
    o->collection = v->collection;
    o->directory = v->directory;
    o->costs = v->costs;
    return MOE_OK;
}

/* Notes a budget that this process cannot have; a little may be in other processes meanwhile. */
static void compare_with_free_memory(uint64_t budget)
{
    const uint64_t available = moe_available_bytes();
    char named[32], there[32];
    if (available < UINT64_MAX / 2 && budget / 16 * 15 > available + moe_rss_bytes())
        cli_note(
            "the machine and its control groups leave this process %s, not the %s of --memory: "
            "it may be killed once it takes more",
            moe_format_bytes(available + moe_rss_bytes(), there), moe_format_bytes(budget, named));
}

static void tell_of_prompts(const char *line)
{
    cli_note("%s", line);
}

/* On a rank other than 0, which computes its part of the experts for it. What fails is rank 0's to
 * say, once they have met. */
static int serve_rank(struct serve *v, struct moe_err *err)
{
    struct moe_engine_options *e = &serve_opt.server.engine;
    MOE_TRY(ranks_join(&v->ranks, err));
    e->ranks = v->ranks;
    int status = choose_strategy(v, err);
    if (status == MOE_OK && v->path)
        return moe_engine_serve_rank(v->path, e, err);
    if (status == MOE_OK)
        status = moe_fail(err, MOE_ERR_UNSUPPORTED, "several ranks serve no collection");
    moe_ranks_fail(v->ranks, err);
    return status;
}

static int open_server(struct serve *v, struct moe_err *err)
{
    struct moe_server_options *o = &serve_opt.server;
    MOE_TRY(ranks_join(&v->ranks, err));
    o->engine.ranks = v->ranks;
    int status = choose_strategy(v, err);
    if (status == MOE_OK && serve_opt.collection)
        status = read_collection(v, err);
    if (status != MOE_OK)
        return status;
    o->pack = v->path;
    o->beside_bytes = serve_opt.requests.input ? moe_lines_bytes(serve_opt.requests.input)
                                               : moe_http_bytes(&serve_opt.http.http);
    compare_with_free_memory(o->engine.memory_bytes);
    o->prompt_cache.tell = tell_of_prompts;
    status = moe_server_open(&v->server, o, cli_progress(), err);
    cli_progress_done();
    return status;
}

/* What the server did, also where it was interrupted. */
static int write_stats(const struct serve *v, int status, struct moe_err *err)
{
    struct moe_err why;
    struct moe_buf text = {0};
    struct moe_server_counts *counts = moe_alloc(1, sizeof *counts, &why);
    int written = counts ? MOE_OK : MOE_ERR_MEMORY;
    if (counts) {
        moe_server_count(v->server, counts);
        written = moe_show_server_json(counts, &text, &why);
    }
    written = cli_save(written, &text, serve_opt.stats_json, &why);
    free(counts);
    if (status == MOE_OK && written != MOE_OK)
        *err = why;
    return status == MOE_OK ? written : status;
}

static void close_serve(struct serve *v)
{
    moe_server_close(v->server);
    moe_statistics_free(v->statistics);
    moe_coe_collection_free(v->collection);
    moe_coe_costs_free(v->costs);
    moe_coe_plan_free(v->plan);
    free(v->directory);
}

int main(int argc, char **argv)
{
    struct moe_err err = {0};
    struct serve v = {0};
    const bool is_other_rank = ranks_begin();
    int listener = -1, status = serve_options_parse(argc, argv, &v.path);
    if (status >= 0)
        return ranks_leave(NULL, status);
    cli_catch_termination();
    status = is_other_rank ? serve_rank(&v, &err) : open_server(&v, &err);
    if (status == MOE_OK && v.server && serve_opt.requests.input)
        status = requests_serve(v.server, &serve_opt.requests, &err);
    else if (status == MOE_OK && v.server)
        status = serve_http(v.server, &serve_opt.http, v.ranks ? NULL : &listener, &err);
    if (v.server && serve_opt.strategy.exact)
        status = requests_check_exact(v.server, status, &err);
    if (v.server && serve_opt.stats_json)
        status = write_stats(&v, status, &err);
    close_serve(&v);
    if (status == MOE_OK && listener >= 0)
        status = serve_http_anew(argv, listener, &err);
    return ranks_leave(v.ranks, cli_finish(status == MOE_OK ? CLI_DONE : cli_error(&err)));
}
