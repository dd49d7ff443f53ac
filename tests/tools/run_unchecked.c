/*
 * moe-run with a stand-in for the engine's refusals: under --exact it lets everything through, so
 * that what moe-run checks when a run is over can be tested (tests/cli/exact.sh), and drawn weights
 * write tokens, so that these can be compared (tests/bench/ranks.sh).
 */
#define moe_engine_open open_unchecked
#define moe_engine_serve_rank serve_rank_unchecked
#define requests_open open_requests_unchecked
#include "../../cmd/moe-run.c"
#undef moe_engine_open
#undef moe_engine_serve_rank
#undef requests_open

int moe_engine_open(struct moe_engine **out, const char *path,
                    const struct moe_engine_options *options, const struct moe_progress *progress,
                    struct moe_err *err);

int open_unchecked(struct moe_engine **out, const char *path,
                   const struct moe_engine_options *options, const struct moe_progress *progress,
                   struct moe_err *err)
{
    struct moe_engine_options o = *options;
    o.exact = false;
    o.measures = true;
    return moe_engine_open(out, path, &o, progress, err);
}

int moe_engine_serve_rank(const char *path, const struct moe_engine_options *options,
                          struct moe_err *err);

int serve_rank_unchecked(const char *path, const struct moe_engine_options *options,
                         struct moe_err *err)
{
    struct moe_engine_options o = *options;
    o.measures = true;
    return moe_engine_serve_rank(path, &o, err);
}

int requests_open(struct moe_server **out, const struct requests_options *o,
                  const struct moe_server_options *server, struct moe_err *err);

int open_requests_unchecked(struct moe_server **out, const struct requests_options *o,
                            const struct moe_server_options *server, struct moe_err *err)
{
    struct moe_server_options so = *server;
    so.engine.exact = false;
    return requests_open(out, o, &so, err);
}
