/* How an engine's experts are shared out among ranks. */
#include "engine/engine_ranks.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/memory.h"
#include "infer/rank_worker.h"
#include "ranks/ranks.h"

enum { MOST_ROWS = 512 /* of a pass, until rank 0 has said how many */ };

static int refuse_with_ranks(const struct moe_engine_options *o, struct moe_err *err)
{
    const char *what = o->device.cuda || o->device.test ? "--device other than cpu"
                       : o->plan                        ? "--plan"
                       : o->follows                     ? "--follow"
                       : o->lockstep                    ? "--lockstep"
                       : o->learn                       ? "--learn"
                                                        : NULL;
    return what
               ? moe_fail(err, MOE_ERR_UNSUPPORTED,
                          "several ranks do not go with %s: start one process without mpirun", what)
               : MOE_OK;
}

/* Bytes that this rank's budget leaves for experts. */
static int room_for_experts(uint64_t *room, const struct moe_model *model,
                            const struct moe_engine_options *own, struct moe_err *err)
{
    struct moe_engine_options o = *own;
    struct moe_memory m;
    struct moe_err small;
    o.strategy = (struct moe_strategy){0};
    o.survey = NULL;
    if (o.experts_only)
        o.session.batch = MOST_ROWS;
    int status = moe_memory_of(&m, model, NULL, &o, &small);
    if (status != MOE_OK && status != MOE_ERR_LIMIT) {
        if (err)
            *err = small;
        return status;
    }
    const struct moe_plan_memory *host = &m.budget.host;
    const uint64_t beside = host->program + host->dense + host->kv + host->work;
    *room = host->total > beside ? host->total - beside : 0;
    if (o.expert_memory_bytes && o.expert_memory_bytes < *room)
        *room = o.expert_memory_bytes;
    return MOE_OK;
}

static int divide(struct moe_ranks *ranks, const struct moe_model *model,
                  const struct moe_statistics *statistics, struct moe_err *err)
{
    struct moe_inventory inventory;
    uint64_t *frequency = NULL;
    int status;
    MOE_STEP(moe_inventory_of_pack(&inventory, model->pack, model->config.top_k, err));
    moe_inventory_set_model(&inventory, &model->config);
    if (statistics && !moe_model_fits_statistics(model, statistics))
        MOE_STEP(moe_fail(err, MOE_ERR_USAGE, "the statistics are of another model than %s",
                          moe_pack_path(model->pack)));
    if (statistics) { /* of no layers that draft */
        const uint64_t known = (uint64_t)statistics->shape.n_layers * statistics->shape.n_experts;
        frequency = moe_alloc(moe_inventory_n_keys(&inventory), sizeof *frequency, err);
        MOE_STEP(frequency ? MOE_OK : MOE_ERR_MEMORY);
        memcpy(frequency, moe_statistics_placement(statistics), known * sizeof *frequency);
    }
    MOE_STEP(moe_ranks_divide(ranks, &inventory, frequency, err));
out:
    free(frequency);
    moe_inventory_release(&inventory);
    return status;
}

int moe_engine_join_ranks(struct moe_model *model, struct moe_engine_options *own,
                          struct moe_err *err)
{
    struct moe_ranks *ranks = own->ranks;
    const uint32_t rank = moe_ranks_wire(ranks)->rank;
    uint64_t room = 0;
    MOE_TRY(refuse_with_ranks(own, err));
    if (model->config.n_experts == 0)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s has no experts to share out among ranks: start one process without "
                        "mpirun",
                        moe_pack_path(model->pack));
    MOE_TRY(room_for_experts(&room, model, own, err));
    MOE_TRY(moe_ranks_meet(ranks, moe_pack_fingerprint(model->pack), room, err));
    if (rank == 0) {
        MOE_TRY(divide(ranks, model, own->statistics, err));
    } else {
        struct moe_rank_shape shape = moe_rank_shape_of(model, 0);
        MOE_TRY(moe_ranks_share(ranks, &shape, err));
        own->session.batch = shape.batch;
    }
    moe_pack_keep_own(model->pack, moe_ranks_owners(ranks), (uint8_t)rank);
    return MOE_OK;
}
