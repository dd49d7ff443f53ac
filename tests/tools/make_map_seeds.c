/*
 * Writes the seeds of fuzz_map: a map with every member under each metric, a shard, estimates, one
 * that knows nothing. Run it in tests/fuzz/corpus/map.
 */
#include "../map_fixture.h"
#include "base/file.h"

static int put(const char *name, struct moe_map *m, struct moe_err *err)
{
    struct moe_buf text = {0};
    int status = moe_map_write(m, &text, err);
    if (status == MOE_OK)
        status = moe_file_write_all(name, text.data, text.size, err);
    moe_buf_release(&text);
    moe_map_free(m);
    return status;
}

int main(void)
{
    struct moe_err err;
    int status = put("full-nll", full_map(2), &err);
    if (status == MOE_OK)
        status = put("full-top1", full_map(3), &err);
    if (status == MOE_OK)
        status = put("shard", shard_map(2, 0), &err);
    if (status == MOE_OK)
        status = put("estimated", estimated_map(2), &err);
    if (status == MOE_OK)
        status = put("empty", new_map(1, 1, 1), &err);
    if (status != MOE_OK)
        fprintf(stderr, "make_map_seeds: %s\n", err.text);
    return status != MOE_OK;
}
