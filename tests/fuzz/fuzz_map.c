/* A bit map, or two with a form feed between them, which are merged. What is accepted must come
 * back the same from YAML and from JSON. */
/* Readers: record/map*.c fmt/record.c */
#define _GNU_SOURCE
#include "mutate.h"
#include "record/map.h"

static void check_round_trip(const struct moe_map *map, bool json)
{
    int (*write)(const struct moe_map *m, struct moe_buf *out, struct moe_err *err) =
        json ? moe_map_write_json : moe_map_write;
    struct moe_err err;
    struct moe_buf first = {0}, second = {0};
    struct moe_map *again;
    if (write(map, &first, &err) != MOE_OK ||
        moe_map_parse(&again, "fuzz", first.data, first.size, &err) != MOE_OK ||
        write(again, &second, &err) != MOE_OK)
        abort();
    if (json)
        fuzz_check_json(&first);
    if (moe_map_adopt(again, map, &err) != MOE_OK)
        abort();
    moe_map_free(again);
    fuzz_same(&first, &second);
}

/* Two halves of what it knows of importances are the whole again. */
static void check_merge(const struct moe_map *map, const uint8_t *data, size_t n)
{
    struct moe_err err;
    struct moe_map *halves[2];
    struct moe_buf first = {0}, second = {0};
    for (int h = 0; h < 2; h++) {
        if (moe_map_parse(&halves[h], "fuzz", data, n, &err) != MOE_OK)
            abort();
        struct moe_importances *i = &halves[h]->importances;
        moe_shards_release(&i->shards);
        i->shards = (struct moe_shards){0};
        for (uint64_t e = 0; i->there && e < (uint64_t)map->n_layers * map->n_experts; e++)
            i->known[e] = i->known[e] && e % 2 == (uint64_t)h;
    }
    struct moe_map *alike;
    if (moe_map_new(&alike, map->n_layers, map->n_experts, map->top_k, &err) != MOE_OK)
        abort(); /* what can be read can be made */
    moe_map_free(alike);
    moe_map_check_whole(map, &err);
    moe_map_check_finished(map, &err);
    if (moe_map_merge(halves[0], halves[1], &err) != MOE_OK)
        abort();
    if (map->importances.shards.n == 0 && !moe_map_complete(map)) {
        if (moe_map_write(map, &first, &err) != MOE_OK ||
            moe_map_write(halves[0], &second, &err) != MOE_OK)
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
    if (moe_map_parse(&sum, "fuzz", data, n, &err) != MOE_OK)
        return;
    if (moe_map_parse(&part, "fuzz", other, n_other, &err) == MOE_OK) {
        if (moe_map_adopt(sum, part, &err) != MOE_OK)
            moe_map_merge(sum, part, &err);
        if (moe_map_write(sum, &text, &err) != MOE_OK)
            abort();
        moe_map_free(part);
    }
    moe_buf_release(&text);
    moe_map_free(sum);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct moe_err err;
    struct moe_map *map;
    const uint8_t *between = memchr(data, '\f', n);
    if (between) {
        size_t first = (size_t)(between - data);
        merge_two(data, first, between + 1, n - first - 1);
        return 0;
    }
    if (moe_map_parse(&map, "fuzz", data, n, &err) == MOE_OK) {
        check_round_trip(map, false);
        check_round_trip(map, true);
        check_merge(map, data, n);
        moe_map_free(map);
    }
    return 0;
}

FUZZ_MUTATE_TEXT
