/* A device profile. What is accepted is shown, and comes back the same after writing and reading.
 */
/* Readers: profile/device.c fmt/record.c */
#define _GNU_SOURCE
#include "mutate.h"
#include "profile/device.h"
#include "show/show.h"

static struct moe_device *read_again(const struct moe_buf *text)
{
    struct moe_device *d;
    if (moe_device_read(&d, fuzz_file(text->data, text->size), NULL) != MOE_OK)
        abort();
    return d;
}

static void use(const struct moe_device *d)
{
    struct moe_buf text = {0};
    volatile double sum = 0;
    moe_show_device(d, MOE_PLAIN_SCREEN, &text);
    for (enum moe_device_part part = MOE_DEVICE_ROUTE; part <= MOE_DEVICE_LAYER_MOE; part++) {
        struct moe_line line = moe_device_part_line(d, part);
        sum += moe_line_at(&line, 3);
    }
    for (uint32_t v = 0; v < d->model.n_variants; v++)
        sum += moe_device_expert_seconds(d, v, 2);
    sum += moe_device_layer_seconds(d, true, 1) + moe_device_layer_seconds(d, false, 1);
    sum += moe_device_head_seconds(d);
    for (int tier = MOE_TIER_STORAGE; tier <= MOE_TIER_HOST; tier++)
        sum += moe_device_load_rate(d, tier) + moe_device_load_seconds(d, tier, 1 << 20);
    moe_buf_release(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct moe_err err;
    struct moe_device *d;
    n = fuzz_begin(data, n);
    if (FUZZ_TRY(moe_device_read(&d, fuzz_file(data, n), &err)) != MOE_OK)
        return 0;
    use(d);
    struct moe_buf first = {0}, second = {0}, json = {0}, again_json = {0};
    if (moe_device_write(d, false, &first, NULL) != MOE_OK ||
        moe_device_write(d, true, &json, NULL) != MOE_OK)
        abort();
    fuzz_check_json(&json);
    struct moe_device *again = read_again(&first);
    struct moe_device *from_json = read_again(&json); /* a JSON object is YAML too */
    if (moe_device_write(again, false, &second, NULL) != MOE_OK ||
        moe_device_write(from_json, true, &again_json, NULL) != MOE_OK)
        abort();
    fuzz_same(&first, &second);
    fuzz_same(&json, &again_json);
    free(again);
    free(from_json);
    free(d);
    return 0;
}

FUZZ_MUTATE_TEXT
