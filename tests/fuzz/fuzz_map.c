/* A bit map. What is accepted must come back the same from YAML and from JSON. */
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct moe_err err;
    struct moe_map *map;
    if (moe_map_parse(&map, "fuzz", data, n, &err) == MOE_OK) {
        check_round_trip(map, false);
        check_round_trip(map, true);
        moe_map_free(map);
    }
    return 0;
}

FUZZ_MUTATE_TEXT
