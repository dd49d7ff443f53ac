/* The arithmetic of a tile of attention, as attention.c defines it. */
#include "cpu/attention_tile.h"

#include <math.h>
#include <string.h>

#include "kern/kern_math.h"

int moe_tile_log2(uint32_t n)
{
    int log2 = 0;
    while (1u << log2 < n)
        log2++;
    return log2;
}

struct span moe_span_hull(const struct span *spans, uint32_t n)
{
    struct span all = {0, 0};
    for (uint32_t i = 0; i < n; i++) {
        if (spans[i].end == 0)
            continue;
        all.begin = all.end == 0 || spans[i].begin < all.begin ? spans[i].begin : all.begin;
        all.end = spans[i].end > all.end ? spans[i].end : all.end;
    }
    return all;
}

struct span moe_span_in_chunk(struct span sees, uint32_t base)
{
    uint32_t begin = sees.begin > base ? sees.begin - base : 0;
    uint32_t end = sees.end > base ? sees.end - base : 0;
    end = end < CHUNK ? end : CHUNK;
    return begin < end ? (struct span){begin, end} : (struct span){0, 0};
}

void moe_attend_join(struct column *col, float largest, float sum, float *part, uint32_t n,
                     float *out)
{
    if (col->sum == 0) {
        memcpy(out, part, n * sizeof *out);
        col->sum = sum;
        col->largest = largest;
    } else if (largest > col->largest) {
        float a = moe_expf(col->largest - largest);
        moe_kern.axpy(a, out, n, part);
        memcpy(out, part, n * sizeof *out);
        col->sum = fmaf(col->sum, a, sum);
        col->largest = largest;
    } else {
        float b = moe_expf(largest - col->largest);
        moe_kern.axpy(b, part, n, out);
        col->sum = fmaf(sum, b, col->sum);
    }
}

/* Replaces the scores that a column sees by e, those that only others see by 0; returns the sum. */
static float exp_seen(float *scores, struct span seen, struct span any, float *largest)
{
    if (seen.end == 0) {
        memset(scores + any.begin, 0, (any.end - any.begin) * sizeof *scores);
        return 0;
    }
    memset(scores + any.begin, 0, (seen.begin - any.begin) * sizeof *scores);
    memset(scores + seen.end, 0, (any.end - seen.end) * sizeof *scores);
    return moe_kern.exp_sum(scores, seen.begin, seen.end, largest);
}

/* To the scores that a column sees of the chunk at `base`. */
static void add_bias(const struct attend *a, const struct column *col, uint32_t base,
                     struct span seen, float *scores)
{
    int64_t distance = (int64_t)base + seen.begin - a->rows[col->row].position;
    const float *bias = a->bias + col->head * a->bias_stride + distance;
    moe_kern.add(bias, seen.end - seen.begin, scores + seen.begin);
}

/* n columns' e side by side, position by position, so that what is written lies together. */
static inline void put_shares(const struct tile *tile, struct span any, uint32_t n)
{
    const float *from = tile->scores + any.begin, *end = tile->scores + any.end;
    for (float *share = tile->shares; from < end; from++, share += n)
        for (uint32_t t = 0; t < n; t++)
            share[t] = from[t * CHUNK];
}

void moe_attend_chunk(const struct attend *a, struct tile *tile, const struct chunk *chunk,
                      uint32_t base, const struct span *seen)
{
    const struct moe_kv *kv = a->kv;
    int form = moe_kern_layout_index(kv->layout.kind), log2 = moe_tile_log2(tile->nt);
    float largest[MOE_TILE], sum[MOE_TILE];
    struct span any = moe_span_hull(seen, tile->n);
    if (any.end == 0)
        return;
    any.begin -= any.begin % MOE_PANEL_ROWS;

    struct moe_tile in = {.x = tile->query};
    for (uint32_t p = any.begin; p < any.end; p += MOE_PANEL_ROWS)
        moe_kern.panel[form][log2](chunk->keys + (uint64_t)p * kv->key_dim * kv->item_bytes,
                                   kv->layout, kv->key_dim, &in, tile->scores + p, CHUNK);

    for (uint32_t t = 0; t < tile->nt; t++) {
        float *s = tile->scores + t * CHUNK;
        if (a->bias && seen[t].end)
            add_bias(a, &tile->cols[t], base, seen[t], s);
        sum[t] = exp_seen(s, seen[t], any, &largest[t]);
    }
    if (tile->nt == MOE_TILE) /* a number that the compiler knows: it shuffles registers */
        put_shares(tile, any, MOE_TILE);
    else if (tile->nt > 1)
        put_shares(tile, any, tile->nt);

    in.x = tile->nt > 1 ? tile->shares : tile->scores + any.begin;
    for (uint32_t c = 0; c < kv->value_padded; c += MOE_PANEL_ROWS) {
        const uint8_t *values = chunk->values + c / MOE_PANEL_ROWS * chunk->value_stride;
        moe_kern.panel[form][log2](values + (uint64_t)any.begin * 16 * kv->item_bytes, kv->layout,
                                   any.end - any.begin, &in, tile->part + c, kv->value_padded);
    }
    for (uint32_t t = 0; t < tile->n; t++)
        if (seen[t].end)
            moe_attend_join(&tile->cols[t], largest[t], sum[t], tile->part + t * kv->value_padded,
                            kv->value_padded, tile->out + t * kv->value_padded);
}
