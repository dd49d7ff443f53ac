/*
 * moe-run with a stand-in for the engine's refusal: under --exact it lets everything through, so
 * that what moe-run checks when a run is over can be tested (tests/cli/exact.sh).
 */
#define moe_engine_open open_unchecked
#define requests_open open_requests_unchecked
#include "../../cmd/moe-run.c"
#undef moe_engine_open
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
    return moe_engine_open(out, path, &o, progress, err);
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
