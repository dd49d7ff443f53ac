#include "experts/expert_load.h"

struct moe_load moe_expert_load(const struct moe_pack *pack, const struct moe_expert_segment *s)
{
    const struct moe_extent *x =
        &moe_pack_expert(pack, s->layer, s->expert, s->variant)->segments[s->segment];
    return (struct moe_load){.offset = x->offset,
                             .stored_bytes = x->stored_bytes,
                             .raw_bytes = x->raw_bytes,
                             .checksum = x->checksum};
}

int moe_expert_load_failed(struct moe_err *err, int status, const struct moe_pack *pack,
                           const struct moe_expert_segment *s, const char *why)
{
    return moe_fail(err, status, "layer %u expert %u variant %s segment %u: %s", s->layer,
                    s->expert, moe_pack_variant_at(pack, s->variant)->name, s->segment, why);
}
