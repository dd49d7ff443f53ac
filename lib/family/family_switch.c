/* What Switch Transformers compute of their own from their settings. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>

#include "family/family_own.h"
#include "fmt/json.h"
#include "quant/layout.h"

/* A number that may be null; *found says whether it is there. */
static int read_number(const char *path, const json_t *json, const char *key, uint32_t max,
                       uint32_t *out, bool *found, struct moe_err *err)
{
    const json_t *value = json_object_get(json, key);
    *found = value && !json_is_null(value);
    return *found ? moe_json_get_u32(path, json, key, max, false, out, err) : MOE_OK;
}

/* Which layers of a stack have experts: layer 1 and every `step`-th from there on, all with a step
 * of 1. Published files have the step as well as the number of such layers, from which
 * SwitchTransformersConfig derives it; the step counts. */
static int read_stack(struct moe_config *c, const char *path, const json_t *json,
                      const char *step_key, const char *count_key, uint32_t first, uint32_t n,
                      struct moe_err *err)
{
    uint32_t step = 0, count = 3;
    bool found;
    int status = read_number(path, json, step_key, MOE_MAX_LAYERS, &step, &found, err);
    if (status == MOE_OK && !found) {
        status = read_number(path, json, count_key, MOE_MAX_LAYERS, &count, &found, err);
        step = count > 0 ? n / count : n;
    }
    for (uint32_t i = 0; i < n; i++)
        c->layer_is_moe[first + i] = step > 0 && (step == 1 || i % step == 1);
    return status;
}

/* The decoder has as many layers as the encoder where nothing is said. */
static int read_layers(struct moe_config *c, const char *path, const json_t *json,
                       struct moe_err *err)
{
    uint32_t n_decoder = c->n_encoder;
    bool found;
    int status =
        read_number(path, json, "num_decoder_layers", MOE_MAX_LAYERS, &n_decoder, &found, err);
    if (status != MOE_OK)
        return status;
    if (c->n_encoder == 0 || n_decoder == 0 || c->n_encoder + n_decoder > MOE_MAX_LAYERS)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: an encoder of %" PRIu32 " and a decoder of %" PRIu32
                        " layers: each has at least 1, both together at most %d",
                        path, c->n_encoder, n_decoder, MOE_MAX_LAYERS);
    c->n_layers = c->n_encoder + n_decoder;
    status = read_stack(c, path, json, "encoder_sparse_step", "num_sparse_encoder_layers", 0,
                        c->n_encoder, err);
    if (status == MOE_OK)
        status = read_stack(c, path, json, "decoder_sparse_step", "num_sparse_decoder_layers",
                            c->n_encoder, n_decoder, err);
    return status;
}

int family_switch_hf(struct moe_config *c, const char *path, const json_t *json,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    bool found;
    (void)rope;
    int status = read_layers(c, path, json, err);
    if (status == MOE_OK)
        status = read_number(path, json, "decoder_start_token_id", MOE_MAX_DIM, &c->decoder_start,
                             &found, err);
    /* T5's decoders begin with padding. */
    if (status == MOE_OK && !found)
        status =
            read_number(path, json, "pad_token_id", MOE_MAX_DIM, &c->decoder_start, &found, err);
    if (c->tied_head && c->hidden > 0)
        c->logit_scale = 1 / sqrtf((float)c->hidden);
    return status;
}
