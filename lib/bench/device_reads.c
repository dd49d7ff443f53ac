#include "bench/device_reads.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "bench/read_rate.h"
#include "io/scratch.h"

enum {
    DEFAULT_READ = 4 << 20, /* where no pack says how large an expert is */
    SCRATCH_READS = 32,
    SCRATCH_LEAST = 64 << 20,
};

/* ---- Places ---- */

/* Every expert of the pack at the best variant it has: segments that follow each other. */
static int find_experts(struct device_reads *r, const struct moe_pack *pack, struct moe_err *err)
{
    uint32_t n_layers = moe_pack_n_layers(pack), n_experts = moe_pack_n_experts(pack);
    r->places = moe_alloc((uint64_t)n_layers * n_experts, sizeof *r->places, err);
    if (!r->places)
        return MOE_ERR_MEMORY;
    for (uint32_t layer = 0; layer < n_layers; layer++)
        for (uint32_t expert = 0; expert < n_experts; expert++) {
            uint32_t variant = moe_pack_usable_variant(pack, layer, expert, 0);
            if (variant == UINT32_MAX)
                continue;
            const struct moe_expert_extent *e = moe_pack_expert(pack, layer, expert, variant);
            uint32_t last = moe_pack_class_at(pack, e->class_index)->n_segments - 1;
            uint64_t end = moe_round_up(e->segments[last].offset + e->segments[last].stored_bytes,
                                        MOE_PACK_ALIGN);
            r->places[r->n++] =
                (struct device_place){e->segments[0].offset, end - e->segments[0].offset};
        }
    r->fd = moe_pack_fd(pack);
    r->path = moe_pack_path(pack);
    return MOE_OK;
}

static int make_scratch(struct device_reads *r, const char *dir, uint64_t n_bytes,
                        const struct moe_progress *progress, struct moe_err *err)
{
    r->n = SCRATCH_LEAST / n_bytes > SCRATCH_READS ? SCRATCH_LEAST / n_bytes : SCRATCH_READS;
    r->places = moe_alloc(r->n, sizeof *r->places, err);
    if (!r->places)
        return MOE_ERR_MEMORY;
    for (uint64_t i = 0; i < r->n; i++)
        r->places[i] = (struct device_place){i * n_bytes, n_bytes};
    r->fd = moe_scratch_open(dir, r->n * n_bytes, NULL, 0, progress, err);
    r->own_fd = r->fd >= 0;
    r->path = dir;
    return r->fd < 0 ? r->fd : MOE_OK;
}

uint64_t device_reads_mean_bytes(const struct device_reads *r)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < r->n; i++)
        sum += r->places[i].n_bytes;
    return r->n ? sum / r->n : 0;
}

int device_reads_open(struct device_reads *r, const struct moe_pack *pack, const char *dir,
                      const struct moe_progress *progress, struct moe_err *err)
{
    uint64_t unit = DEFAULT_READ;
    int status = MOE_OK;
    if (pack && moe_pack_n_experts(pack)) {
        status = find_experts(r, pack, err);
        unit = r->n ? moe_round_up(device_reads_mean_bytes(r), MOE_PACK_ALIGN) : unit;
    }
    if (status == MOE_OK && (dir || r->n == 0)) {
        free(r->places);
        r->places = NULL;
        status = make_scratch(r, dir ? dir : ".", unit, progress, err);
    }
    if (status != MOE_OK)
        return status;
    /* What is read at a time must fit in memory, however large an expert is. */
    uint64_t most =
        (moe_available_bytes() / 4 / DEVICE_IN_FLIGHT) & ~(uint64_t)(MOE_LOAD_ALIGN - 1);
    for (uint64_t i = 0; i < r->n; i++) {
        struct device_place *p = &r->places[i];
        p->n_bytes = p->n_bytes > most && most > 0 ? most : p->n_bytes;
        r->largest = p->n_bytes > r->largest ? p->n_bytes : r->largest;
    }
    /* As many as the caches do not hold, in huge pages as a run's slots: reads into small pages
     * have more places to fill and may take twice as long. */
    r->n_buffers = DEVICE_IN_FLIGHT + moe_cold_bytes() / r->largest;
    r->buffers = moe_pages_alloc(r->n_buffers * r->largest, err);
    if (!r->buffers)
        return MOE_ERR_MEMORY;
    memset(r->buffers, 0, r->n_buffers * r->largest); /* the pages are there */
    const struct moe_loader_options options = {
        .fd = r->fd, .path = r->path, .n_requests = DEVICE_IN_FLIGHT};
    return moe_loader_open(&r->loader, &options, err);
}

uint8_t *device_reads_buffer(struct device_reads *r)
{
    return r->buffers + r->next_buffer++ % r->n_buffers * r->largest;
}

void device_reads_close(struct device_reads *r)
{
    moe_loader_close(r->loader);
    moe_pages_free(r->buffers, r->n_buffers * r->largest);
    free(r->places);
    if (r->own_fd)
        close(r->fd);
}

/* ---- Loads ---- */

int device_reads_submit(struct device_reads *r, uint32_t number, uint64_t n_bytes,
                        struct moe_err *err)
{
    /* Knuth's MMIX constants. */
    r->random = r->random * 6364136223846793005u + 1442695040888963407u;
    const struct device_place *p = &r->places[(r->random >> 33) % r->n];
    uint64_t n = n_bytes ? n_bytes : p->n_bytes;
    uint32_t handle;
    const struct moe_load load = {
        .offset = p->offset,
        .stored_bytes = n,
        .raw_bytes = n,
        .to = device_reads_buffer(r),
        .priority = MOE_LOAD_DEMAND,
        .tag = (uint64_t)number << 48 | n,
    };
    return moe_loader_submit(r->loader, &load, &handle, err);
}

int device_reads_wait(struct device_reads *r, struct moe_loader *l, uint32_t n, double *first,
                      struct moe_err *err)
{
    struct moe_load_done done[DEVICE_IN_FLIGHT];
    int status = MOE_OK;
    for (uint32_t n_done = 0; status == MOE_OK && n_done < n;) {
        uint32_t more = moe_loader_wait(l, done, DEVICE_IN_FLIGHT);
        if (n_done == 0 && first)
            *first = moe_seconds();
        n_done += more;
        for (uint32_t i = 0; i < more && status == MOE_OK; i++)
            if (done[i].status != MOE_OK)
                status = moe_fail(err, done[i].status, "%s: %s", r->path, moe_loader_error(l));
    }
    return status;
}
