/* A bit map, or two with a form feed between them, which are merged. What is accepted must come
 * back the same from YAML and from JSON. */
/* Readers: pack/map.c fmt/record.c */
#define _GNU_SOURCE
#include "mutate.h"
#include "pack/map.h"

/* Written, or NULL where an allocation failed. */
static uint8_t *write_map(const struct moe_map *map, bool json, struct moe_buf *out)
{
    struct moe_err err;
    if (fuzz_must(FUZZ_TRY(moe_map_write(map, json, out, &err))))
        return out->data;
    moe_buf_release(out);
    return NULL;
}

static void check_round_trip(const struct moe_map *map, bool json)
{
    struct moe_err err;
    struct moe_buf first = {0}, second = {0};
    struct moe_map *again = NULL;
    if (write_map(map, json, &first) &&
        fuzz_must(FUZZ_TRY(
            moe_record_parse(&moe_map_format, &again, "fuzz", first.data, first.size, &err))) &&
        write_map(again, json, &second)) {
        if (json)
            fuzz_check_json(&first);
        if (moe_map_adopt(again, map, &err) != MOE_OK)
            abort();
        fuzz_same(&first, &second);
    }
    moe_map_free(again);
    moe_buf_release(&first);
}

/* Only every other importance, from h on; NULL where an allocation failed. */
static struct moe_map *half_of(const uint8_t *data, size_t n, uint64_t h)
{
    struct moe_err err;
    struct moe_map *half;
    if (!fuzz_must(FUZZ_TRY(moe_record_parse(&moe_map_format, &half, "fuzz", data, n, &err))))
        return NULL;
    struct moe_importances *i = &half->importances;
    moe_shards_release(&i->shards);
    if (!fuzz_must(FUZZ_TRY(moe_shards_set(&i->shards, (uint32_t)h, 2, &err)))) {
        moe_map_free(half);
        return NULL;
    }
    for (uint64_t e = 0; i->there && e < (uint64_t)half->n_layers * half->n_experts; e++)
        i->known[e] = i->known[e] && e % 2 == h;
    return half;
}

/* Two halves of what it knows of importances are the whole again. */
static void check_merge(const struct moe_map *map, const uint8_t *data, size_t n)
{
    struct moe_err err;
    struct moe_map *halves[] = {half_of(data, n, 0), half_of(data, n, 1)}, *alike = NULL;
    struct moe_buf first = {0}, second = {0};
    /* What can be read can be made. */
    fuzz_must(FUZZ_TRY(moe_map_new(&alike, map->n_layers, map->n_experts, map->top_k, &err)));
    moe_map_free(alike);
    moe_map_check_whole(map, &err);
    moe_map_check_finished(map, &err);
    volatile double sum = 0;
    for (enum moe_metric metric = 0; metric < MOE_N_METRICS; metric++)
        sum += moe_loss_in(&map->choice.loss, metric) + moe_loss_error(&map->choice.loss, metric);
    sum += moe_map_loss(map, &map->choice.loss) + moe_map_loss_error(map, &map->choice.loss);
    const struct moe_importances *i = &map->importances;
    if (halves[0] && halves[1] && i->there &&
        fuzz_must(FUZZ_TRY(moe_map_merge(halves[0], halves[1], &err))) && i->shards.n == 1 &&
        i->adaptive.estimated == 0) {
        if (moe_map_write(map, false, &first, &err) != MOE_OK ||
            moe_map_write(halves[0], false, &second, &err) != MOE_OK)
            abort();
        fuzz_same(&first, &second);
    }
    moe_map_free(halves[0]);
    moe_map_free(halves[1]);
}

static void merge_two(const uint8_t *data, size_t n, const uint8_t *other, size_t n_other)
{
    struct moe_err err;
    struct moe_map *sum, *part;
    struct moe_buf text = {0};
    if (FUZZ_TRY(moe_record_parse(&moe_map_format, &sum, "fuzz", data, n, &err)) != MOE_OK)
        return;
    if (FUZZ_TRY(moe_record_parse(&moe_map_format, &part, "fuzz", other, n_other, &err)) ==
        MOE_OK) {
        bool adopts = n_other % 2 && FUZZ_TRY(moe_map_adopt(sum, part, &err)) == MOE_OK;
        if (!adopts && FUZZ_TRY(moe_map_merge(sum, part, &err)) == MOE_OK)
            moe_map_check_finished(sum, &err);
        moe_map_check_whole(sum, &err);
        fuzz_must(FUZZ_TRY(moe_map_write(sum, false, &text, &err)));
        moe_map_free(part);
    }
    moe_buf_release(&text);
    moe_map_free(sum);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct moe_err err;
    struct moe_map *map;
    n = fuzz_begin(data, n);
    const uint8_t *between = memchr(data, '\f', n);
    if (between) {
        size_t first = (size_t)(between - data);
        merge_two(data, first, between + 1, n - first - 1);
        return 0;
    }
    if (FUZZ_TRY(moe_record_parse(&moe_map_format, &map, "fuzz", data, n, &err)) == MOE_OK) {
        check_round_trip(map, false);
        check_round_trip(map, true);
        check_merge(map, data, n);
        moe_map_free(map);
    }
    return 0;
}

FUZZ_MUTATE_TEXT
