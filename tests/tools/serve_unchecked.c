/*
 * moe-serve with a stand-in for the engine's refusal, as run_unchecked.c of moe-run: what is
 * checked when the server is over can be tested (tests/cli/serve.sh).
 */
#define moe_server_open open_unchecked
#include "../../cmd/moe-serve.c"
#undef moe_server_open

int moe_server_open(struct moe_server **out, const struct moe_server_options *options,
                    const struct moe_progress *progress, struct moe_err *err);

int open_unchecked(struct moe_server **out, const struct moe_server_options *options,
                   const struct moe_progress *progress, struct moe_err *err)
{
    struct moe_server_options o = *options;
    o.engine.exact = false;
    return moe_server_open(out, &o, progress, err);
}
