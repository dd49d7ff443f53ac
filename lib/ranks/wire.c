/* Whether this process is one of several, and the shared object through which it talks to them. */
#define _DEFAULT_SOURCE /* dlfcn.h in C11 mode */
#include "ranks/wire.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "base/text.h"

static bool read_number(const char *name, uint32_t *out)
{
    const char *text = getenv(name);
    uint64_t value;
    if (!text || !moe_parse_u64(text, &value) || value > UINT32_MAX)
        return false;
    *out = (uint32_t)value;
    return true;
}

bool moe_wire_started(uint32_t *rank, uint32_t *n_ranks)
{
    static const struct {
        const char *rank, *n_ranks;
    } names[] = {
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, /* mpirun of Open MPI */
        {"PMI_RANK", "PMI_SIZE"},                         /* ... of MPICH; srun --mpi=pmi2 */
        {"PMIX_RANK", "SLURM_STEP_NUM_TASKS"},            /* srun --mpi=pmix */
    };
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++)
        if (read_number(names[i].rank, rank) && read_number(names[i].n_ranks, n_ranks))
            return *n_ranks > 1;
    return false;
}

int moe_wire_open(struct moe_wire **out, struct moe_err *err)
{
    uint32_t rank, n_ranks;
    *out = NULL;
    if (!moe_wire_started(&rank, &n_ranks))
        return MOE_OK;
    if (n_ranks > MOE_MAX_RANKS)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "%u ranks: at most %d run a model together",
                        n_ranks, MOE_MAX_RANKS);
    /* It stays open: MPI cannot be unloaded. */
    void *object = dlopen(MOE_WIRE_OBJECT, RTLD_NOW | RTLD_GLOBAL);
    void *opener = object ? dlsym(object, MOE_WIRE_SYMBOL) : NULL;
    if (!opener)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "rank %u of %u: %s: install Open MPI and build again (libopenmpi-dev), or "
                        "start one process without mpirun",
                        rank, n_ranks, dlerror());
    return (*(moe_wire_opener **)(void *)&opener)(out, err);
}

void moe_wire_close(struct moe_wire *wire)
{
    if (wire)
        wire->ops->close(wire);
}
