/* Sources: their rows, and what an encoder makes of one. */
#include "engine/encode.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/mem.h"
#include "infer/forward.h"

int moe_check_source(const struct moe_session *s, uint64_t n, struct moe_err *err)
{
    if (n == 0)
        return moe_fail(err, MOE_ERR_USAGE, "the source is empty");
    if (n > s->source_context)
        return moe_fail(err, MOE_ERR_LIMIT,
                        "the source of %" PRIu64 " tokens does not fit the context of %" PRIu32, n,
                        s->source_context);
    return MOE_OK;
}

void moe_source_rows(struct moe_row *rows, uint32_t source, const uint32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct moe_row){source, i, ids[i], n};
}

/* The rows of a pass and its output from the arena, or only counted. */
static void take_encoding(struct moe_arena *arena, const struct moe_config *c, uint32_t n,
                          struct moe_row **rows, float **output)
{
    *rows = moe_arena_take(arena, n, sizeof **rows);
    *output = moe_arena_take(arena, (uint64_t)n * c->hidden, sizeof **output);
}

uint64_t moe_encode_bytes(const struct moe_config *config, uint32_t batch)
{
    struct moe_arena arena = {0};
    struct moe_row *rows;
    float *output;
    take_encoding(&arena, config, batch, &rows, &output);
    return arena.used;
}

static void pool(const float *output, uint32_t n, uint32_t hidden, enum moe_pooling pooling,
                 float *out)
{
    uint32_t first = pooling == MOE_POOL_LAST ? n - 1 : 0;
    uint32_t end = pooling == MOE_POOL_FIRST ? 1 : n;
    for (uint32_t i = 0; i < hidden; i++) {
        double sum = 0;
        for (uint32_t row = first; row < end; row++)
            sum += output[(uint64_t)row * hidden + i];
        out[i] = (float)(sum / (end - first));
    }
}

int moe_encode_pooled(struct moe_session *s, const uint32_t *ids, uint64_t n,
                      enum moe_pooling pooling, float *out, struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    struct moe_row *rows;
    float *output;
    MOE_TRY(moe_check_source(s, n, err));
    struct moe_arena arena = {.size = moe_encode_bytes(c, (uint32_t)n)};
    if (!(arena.base = moe_alloc(1, arena.size, err)))
        return MOE_ERR_MEMORY;
    take_encoding(&arena, c, (uint32_t)n, &rows, &output);
    moe_source_rows(rows, 0, ids, (uint32_t)n);
    int status = moe_encode(s, rows, (uint32_t)n, output, err);
    s->stats.prompt_tokens += n;
    if (status == MOE_OK)
        pool(output, (uint32_t)n, c->hidden, pooling, out);
    free(arena.base);
    return status;
}
