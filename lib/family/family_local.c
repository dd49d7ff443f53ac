/* What families with local and global layers compute of their own from their settings. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "family/family_own.h"
#include "family/family_settings.h"
#include "fmt/json.h"
#include "model/rope.h"
#include "quant/layout.h"

/* ---- AFMoE ---- */

int family_afmoe_hf(struct moe_config *c, const char *path, const json_t *json,
                    struct moe_rope_settings *rope, struct moe_err *err)
{
    uint32_t n_dense = 1, n_shared = 2, every = 4;
    bool scaled = false;
    const struct {
        const char *key;
        uint32_t *out, most;
    } numbers[] = {
        {"num_dense_layers", &n_dense, MOE_MAX_LAYERS},
        {"num_shared_experts", &n_shared, MOE_MAX_EXPERTS},
        {"global_attn_every_n_layers", &every, MOE_MAX_LAYERS},
    };
    int status = moe_json_get_bool(path, json, "mup_enabled", false, &scaled, err);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && status == MOE_OK; i++)
        status = moe_json_get_u32(path, json, numbers[i].key, numbers[i].most, false,
                                  numbers[i].out, err);
    if (status != MOE_OK)
        return status;
    uint64_t shared_ff = (uint64_t)n_shared * c->expert_ff;
    if (every == 0 || shared_ff > MOE_MAX_DIM)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " shared experts of width %" PRIu32
                        ", a global layer after every %" PRIu32 " make no sense",
                        path, n_shared, c->expert_ff, every);
    c->shared_ff = (uint32_t)shared_ff;
    if (scaled)
        c->embed_scale = sqrtf((float)c->hidden);
    bool listed = json_is_array(json_object_get(json, "layer_types"));
    for (uint32_t i = 0; i < c->n_layers; i++) {
        c->layer_is_moe[i] = i >= n_dense;
        if (!listed)
            c->layer_is_windowed[i] = (i + 1) % every != 0;
    }
    return MOE_OK;
}

/* ---- EXAONE-MoE ---- */

/* "sliding_window_pattern": every n-th layer is global, or by letters "L" and "G", over and over,
 * the last one global anyway. */
static int exaone_pattern(struct moe_config *c, const char *path, const json_t *json,
                          struct moe_err *err)
{
    const json_t *pattern = json_object_get(json, "sliding_window_pattern");
    const char *letters = json_string_value(pattern);
    uint32_t every = 4;
    if (letters ? strspn(letters, "LG") != strlen(letters) || !letters[0]
                : pattern && !json_is_integer(pattern))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: a 'sliding_window_pattern' that is neither a number nor letters L and "
                        "G is not implemented",
                        path);
    int status = letters ? MOE_OK
                         : moe_json_get_u32(path, json, "sliding_window_pattern", MOE_MAX_LAYERS,
                                            false, &every, err);
    if (status == MOE_OK && every == 0)
        status =
            moe_fail(err, MOE_ERR_FORMAT, "%s: 'sliding_window_pattern' 0 makes no sense", path);
    for (uint32_t i = 0; i < c->n_layers && status == MOE_OK; i++)
        c->layer_is_windowed[i] = letters
                                      ? letters[i % strlen(letters)] == 'L' && i + 1 < c->n_layers
                                      : (i + 1) % every != 0;
    return status;
}

/* "is_moe_layer", as published files have it in place of "mlp_layer_types": whether each layer has
 * experts. */
static int exaone_experts(struct moe_config *c, const char *path, const json_t *json,
                          struct moe_err *err)
{
    const json_t *list = json_object_get(json, "is_moe_layer");
    if (!list || json_is_null(list) || json_is_array(json_object_get(json, "mlp_layer_types")))
        return MOE_OK;
    bool whole = json_array_size(list) == c->n_layers;
    for (uint32_t i = 0; i < c->n_layers && whole; i++) {
        const json_t *item = json_array_get(list, i);
        whole = json_is_boolean(item);
        c->layer_is_moe[i] = json_is_true(item);
    }
    return whole ? MOE_OK
                 : moe_fail(err, MOE_ERR_FORMAT,
                            "%s: 'is_moe_layer' must say true or false for %" PRIu32 " layers",
                            path, c->n_layers);
}

int family_exaone_moe_hf(struct moe_config *c, const char *path, const json_t *json,
                         struct moe_rope_settings *rope, struct moe_err *err)
{
    int status = family_shared_experts(c, 1, path, json, err);
    if (status == MOE_OK)
        status = exaone_experts(c, path, json, err);
    if (status != MOE_OK)
        return status;
    c->rope_in_windows = c->window > 0; /* else all layers rotate, and see all */
    if (c->window > 0 && !json_is_array(json_object_get(json, "layer_types")))
        status = exaone_pattern(c, path, json, err);
    return status == MOE_OK ? family_sigmoid_hf(c, path, json, rope, err) : status;
}

/* ---- SmallThinker ---- */

/* A list of 0 or 1 for each layer; absent or null: all `otherwise`. */
static int read_layout(const struct moe_config *c, const char *path, const json_t *json,
                       const char *key, uint8_t otherwise, uint8_t *out, struct moe_err *err)
{
    const json_t *list = json_object_get(json, key);
    bool listed = list && !json_is_null(list);
    if (listed && json_array_size(list) != c->n_layers)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' must be a list of %" PRIu32 " layers", path,
                        key, c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const json_t *item = json_array_get(list, i);
        json_int_t value = json_is_integer(item) ? json_integer_value(item) : -1;
        if (listed && value != 0 && value != 1)
            return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' item %" PRIu32 " is neither 0 nor 1",
                            path, key, i);
        out[i] = listed ? value == 1 : otherwise;
    }
    return MOE_OK;
}

/* All layers rotate, or those with a window, or some where none has one: these then have one that
 * is as wide as any text. */
static int smallthinker_layers(struct moe_config *c, const char *path, const json_t *json,
                               struct moe_err *err)
{
    uint8_t rotates[MOE_MAX_LAYERS], windowed[MOE_MAX_LAYERS];
    uint32_t n_rotating = 0, n_windowed = 0, n_other = 0, other = 0;
    int status = c->n_layers <= MOE_MAX_LAYERS
                     ? read_layout(c, path, json, "rope_layout", 1, rotates, err)
                     : moe_fail(err, MOE_ERR_FORMAT, "%s: too many layers", path);
    if (status == MOE_OK)
        status = read_layout(c, path, json, "sliding_window_layout", 0, windowed, err);
    c->window = 4096;
    if (status == MOE_OK)
        status = moe_json_get_u32(path, json, "sliding_window_size", MOE_MAX_CONTEXT, false,
                                  &c->window, err);
    if (status != MOE_OK)
        return status;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        n_rotating += rotates[i];
        n_windowed += windowed[i];
        if (rotates[i] != windowed[i] && n_other++ == 0)
            other = i;
    }
    c->rope_in_windows = n_rotating < c->n_layers;
    if (c->rope_in_windows && n_windowed > 0 && n_other > 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: 'rope_layout' says that layer %" PRIu32
                        " %s, 'sliding_window_layout' that it %s: where not all layers rotate, "
                        "only those with a window may",
                        path, other, rotates[other] ? "rotates" : "does not rotate",
                        windowed[other] ? "has a window" : "has none");
    bool everything = c->rope_in_windows && n_windowed == 0;
    if (everything || n_windowed == 0)
        c->window = everything ? c->context_max : 0;
    memcpy(c->layer_is_windowed, everything ? rotates : windowed, c->n_layers);
    return MOE_OK;
}

int family_smallthinker_hf(struct moe_config *c, const char *path, const json_t *json,
                           struct moe_rope_settings *rope, struct moe_err *err)
{
    bool softmax = false;
    (void)rope;
    int status =
        moe_json_get_bool(path, json, "moe_primary_router_apply_softmax", false, &softmax, err);
    if (softmax) {
        c->router_kind = MOE_ROUTER_TOPK_SOFTMAX;
        c->norm_topk = false; /* their sum is 1 */
    }
    return status == MOE_OK ? smallthinker_layers(c, path, json, err) : status;
}

/* ---- Command-A with experts ---- */

/* Without "layer_types" layers are global one by one of a pattern, those without experts, which
 * come first, by one of their own; a pattern's count begins anew behind them. */
static int cohere2_layers(struct moe_config *c, const char *path, const json_t *json,
                          struct moe_err *err)
{
    uint32_t every = 4, every_dense = 1, n_dense = 0;
    const struct {
        const char *key;
        uint32_t *out;
    } numbers[] = {
        {"sliding_window_pattern", &every},
        {"prefix_dense_sliding_window_pattern", &every_dense},
        {"first_k_dense_replace", &n_dense},
    };
    int status = MOE_OK;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && status == MOE_OK; i++)
        status = moe_json_get_u32(path, json, numbers[i].key, MOE_MAX_LAYERS, false, numbers[i].out,
                                  err);
    if (status == MOE_OK && (every == 0 || every_dense == 0))
        status =
            moe_fail(err, MOE_ERR_FORMAT, "%s: a sliding window pattern of 0 makes no sense", path);
    c->rope_in_dense = every_dense == 1;
    bool listed = json_is_array(json_object_get(json, "layer_types"));
    for (uint32_t i = 0; i < c->n_layers && status == MOE_OK && !listed && c->window; i++)
        c->layer_is_windowed[i] =
            i < n_dense ? (i + 1) % every_dense != 0 : (i - n_dense + 1) % every != 0;
    return status;
}

/* "expert_selection_fn", and how shared experts are added. */
static int cohere2_experts(struct moe_config *c, const char *path, const json_t *json,
                           struct moe_err *err)
{
    const char *selects = "softmax", *adds = "average";
    int status = family_shared_experts(c, 0, path, json, err);
    if (status == MOE_OK)
        status = moe_json_get_text(path, json, "expert_selection_fn", false, &selects, err);
    if (status == MOE_OK)
        status =
            moe_json_get_text(path, json, "shared_expert_combination_strategy", false, &adds, err);
    if (status != MOE_OK)
        return status;
    bool softmax = strcmp(selects, "softmax") == 0, average = strcmp(adds, "average") == 0;
    if (!softmax && strcmp(selects, "sigmoid") != 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: 'expert_selection_fn' %.60s is not implemented", path, selects);
    if (!average && strcmp(adds, "sum") != 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: 'shared_expert_combination_strategy' %.60s is not implemented", path,
                        adds);
    c->router_kind = softmax ? MOE_ROUTER_TOPK_SOFTMAX : MOE_ROUTER_SIGMOID;
    c->norm_topk = c->norm_topk && !softmax; /* the sum of a softmax is 1 */
    c->moe_scale = c->shared_ff && average ? 0.5f : 1;
    return MOE_OK;
}

int family_cohere2_moe_hf(struct moe_config *c, const char *path, const json_t *json,
                          struct moe_rope_settings *rope, struct moe_err *err)
{
    double eps = 0;
    const json_t *rms = json_object_get(json, "rms_norm_eps");
    (void)rope;
    int status = rms && !json_is_null(rms)
                     ? moe_json_get_double(path, json, "rms_norm_eps", true, &eps, err)
                     : MOE_OK;
    if (status == MOE_OK && eps != 0) {
        c->norm_kind = MOE_NORM_RMS;
        c->norm_eps = (float)eps;
    }
    if (c->dense_ff == 0)
        c->dense_ff = c->expert_ff;
    if (status == MOE_OK)
        status = cohere2_layers(c, path, json, err);
    return status == MOE_OK ? cohere2_experts(c, path, json, err) : status;
}
