/* Replies: the list of models. */
#include <time.h>

#include "fmt/emit.h"
#include "serve/reply.h"
#include "serve/server.h"

void moe_reply_models(struct moe_buf *out, const struct moe_server *server)
{
    struct moe_emit e;
    struct moe_sampler_options nothing;
    const char *name;
    moe_sampling_unsaid(&nothing);
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    moe_emit_text(&e, "object", "list");
    moe_emit_open_list(&e, "data");
    for (uint32_t i = 0; (name = moe_server_model(server, i)) != NULL; i++) {
        moe_emit_open_map(&e, NULL);
        moe_emit_text(&e, "id", name);
        moe_emit_text(&e, "object", "model");
        moe_emit_i64(&e, "created", (int64_t)time(NULL));
        moe_emit_text(&e, "owned_by", "moe-serve");
        const struct moe_sampler_options *published = moe_server_sampling(server, i);
        if (published)
            moe_sampling_emit(&e, "sampling", &nothing, published);
        moe_emit_close(&e);
    }
    moe_emit_close(&e);
    moe_emit_end_item(&e, NULL);
}
