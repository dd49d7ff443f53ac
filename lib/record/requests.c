#include "record/requests.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static uint64_t numbers_of_one(const struct moe_requests *r)
{
    return (uint64_t)r->n_layers * r->n_experts;
}

uint64_t moe_requests_bytes(uint32_t n_layers, uint32_t n_experts)
{
    return MOE_REQUESTS_KEPT *
           (sizeof(uint64_t) + (uint64_t)n_layers * n_experts * sizeof(uint32_t));
}

int moe_requests_init(struct moe_requests *r, uint32_t n_layers, uint32_t n_experts,
                      struct moe_err *err)
{
    *r = (struct moe_requests){.n_layers = n_layers, .n_experts = n_experts};
    r->hashes = moe_alloc(MOE_REQUESTS_KEPT, sizeof *r->hashes, err);
    r->counts = moe_alloc(MOE_REQUESTS_KEPT * numbers_of_one(r), sizeof *r->counts, err);
    return r->hashes && r->counts ? MOE_OK : MOE_ERR_MEMORY;
}

void moe_requests_release(struct moe_requests *r)
{
    free(r->hashes);
    free(r->counts);
    *r = (struct moe_requests){0};
}

uint32_t *moe_requests_add(struct moe_requests *r, uint64_t hash)
{
    uint32_t at = r->n;
    if (r->n == MOE_REQUESTS_KEPT && hash >= r->hashes[r->n - 1])
        return NULL;
    while (at > 0 && r->hashes[at - 1] > hash)
        at--;
    if (r->n < MOE_REQUESTS_KEPT)
        r->n++;
    uint64_t one = numbers_of_one(r), behind = r->n - 1 - at;
    memmove(r->hashes + at + 1, r->hashes + at, behind * sizeof *r->hashes);
    memmove(r->counts + (at + 1) * one, r->counts + at * one, behind * one * sizeof *r->counts);
    r->hashes[at] = hash;
    return memset(r->counts + at * one, 0, one * sizeof *r->counts);
}

void moe_requests_merge(struct moe_requests *sum, const struct moe_requests *part)
{
    for (uint32_t i = 0; i < part->n; i++) {
        uint32_t *to = moe_requests_add(sum, part->hashes[i]);
        if (to)
            memcpy(to, moe_requests_at(part, i, 0), numbers_of_one(part) * sizeof *to);
    }
}
