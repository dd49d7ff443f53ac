/* A model description: a pack's, or (with "model_type") a Hugging Face config.json. */
/* Readers: model/config.c model/config_json.c model/rope.c */
/* Readers: model/family_hf.c model/family_own.c model/family_settings.c */
#define _GNU_SOURCE
#include "model/config.h"
#include "model/read.h"
#include "mutate.h"

/* What was accepted must come back the same after writing and reading. */
static void check_round_trip(const struct moe_config *config)
{
    static struct moe_config again;
    struct moe_buf first = {0}, second = {0};
    struct moe_err err;
    moe_config_write(config, &first);
    if (moe_config_read(&again, "fuzz", first.data, first.size, &err) != MOE_OK)
        abort();
    moe_config_write(&again, &second);
    fuzz_same(&first, &second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct moe_config config;
    struct moe_err err;
    n = fuzz_begin(data, n);
    if (FUZZ_TRY(moe_config_read(&config, "fuzz", data, n, &err)) == MOE_OK)
        check_round_trip(&config);
    struct json_t *json;
    if (moe_json_parse(&json, "fuzz", data, n, MOE_JSON_CONFIG_MEMORY, &err) == MOE_OK &&
        FUZZ_TRY(moe_config_read_hf_json(&config, "fuzz", json, &err)) == MOE_OK)
        check_round_trip(&config);
    moe_json_free(json);
    return 0;
}

FUZZ_MUTATE_TEXT
