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

int family_exaone_moe_hf(struct moe_config *c, const char *path, const json_t *json,
                         struct moe_rope_settings *rope, struct moe_err *err)
{
    int status = family_shared_experts(c, 1, path, json, err);
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

/* Files with a window are of models whose layers 0, 4, 8, ... have none and do not rotate. */
int family_smallthinker_gguf(struct moe_config *c, const struct moe_gguf *gguf,
                             struct moe_rope_settings *rope, struct moe_err *err)
{
    enum { EVERY = 4 };
    uint32_t every = EVERY;
    struct moe_gguf_key key = moe_gguf_arch_key(gguf, "attention.sliding_window_pattern");
    (void)rope;
    int status = moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, "attention.sliding_window").text,
                                  MOE_MAX_CONTEXT, false, &c->window, err);
    if (status == MOE_OK)
        status = moe_gguf_get_u32(gguf, key.text, UINT32_MAX, false, &every, err);
    if (status == MOE_OK && every != EVERY)
        status = moe_fail(err, MOE_ERR_UNSUPPORTED,
                          "%s: '%s' is %" PRIu32 ", only %d is "
                          "implemented for this family",
                          moe_gguf_path(gguf), key.text, every, EVERY);
    c->rope_in_windows = c->window > 0;
    for (uint32_t i = 0; i < c->n_layers && c->window > 0; i++)
        c->layer_is_windowed[i] = i % EVERY != 0;
    return status;
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

/* ---- Gemma-4 ---- */

/* Five local layers, then a global one, where nothing is listed; the last is global anyway. */
static void gemma4_layers(struct moe_config *c, const json_t *json)
{
    bool listed = json_is_array(json_object_get(json, "layer_types"));
    for (uint32_t i = 0; i < c->n_layers && !listed; i++)
        c->layer_is_windowed[i] = (i + 1) % 6 != 0;
    if (c->n_layers > 0)
        c->layer_is_windowed[c->n_layers - 1] = 0;
}

/* "per_layer_config", as newer writers have it: the same for every global layer, and nothing else.
 */
static int gemma4_by_layer(struct moe_config *c, const char *path, const json_t *json,
                           struct moe_err *err)
{
    const json_t *by_layer = json_object_get(json, "per_layer_config");
    uint32_t n_global = 0, wide = 0, heads = 0;
    for (uint32_t i = 0; i < c->n_layers && json_is_object(by_layer); i++) {
        char key[16];
        snprintf(key, sizeof key, "%" PRIu32, i);
        const json_t *own = json_object_get(by_layer, key);
        uint32_t head_dim = c->head_dim, kv_heads = c->n_kv_heads;
        int status = MOE_OK;
        if (own)
            status =
                moe_json_get_u32(path, own, "head_dim", MOE_MAX_HEAD_DIM, false, &head_dim, err);
        if (own && status == MOE_OK)
            status = moe_json_get_u32(path, own, "num_key_value_heads", MOE_MAX_HEADS, false,
                                      &kv_heads, err);
        if (status != MOE_OK)
            return status;
        bool global = !c->layer_is_windowed[i];
        if (global && n_global++ == 0) {
            wide = head_dim;
            heads = kv_heads;
        }
        if (head_dim != (global ? wide : c->head_dim) ||
            kv_heads != (global ? heads : c->n_kv_heads))
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: 'per_layer_config' gives layer %" PRIu32
                            " heads of its own, which only global layers may have, all the same",
                            path, i);
    }
    if (wide) {
        c->global_head_dim = wide;
        c->global_kv_heads = heads;
    }
    return MOE_OK;
}

/* The part of a global head that is rotated ("proportional") has the frequencies that it would have
 * if all were; the other pairs stand still. */
static int gemma4_global_rope(struct moe_config *c, const char *path, const json_t *json,
                              struct moe_err *err)
{
    const json_t *all = json_object_get(json, "rope_parameters");
    const json_t *rope = json_object_get(all, "full_attention");
    double theta = 1e6, partial = 0.25;
    const char *type = "proportional";
    if (json_is_object(rope)) {
        type = "default";
        partial = 1;
    } else if (json_is_object(all)) {
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'rope_parameters' says nothing of 'full_attention'", path);
    }
    int status = MOE_OK;
    if (rope)
        status = moe_json_get_text(path, rope, "rope_type", false, &type, err);
    if (rope && status == MOE_OK)
        status = moe_json_get_double(path, rope, "rope_theta", false, &theta, err);
    if (rope && status == MOE_OK)
        status = moe_json_get_double(path, rope, "partial_rotary_factor", false, &partial, err);
    if (status != MOE_OK)
        return status;
    if (strcmp(type, "default") == 0)
        partial = 1;
    else if (strcmp(type, "proportional") != 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: rotary scaling '%.60s' of global layers is not implemented", path,
                        type);
    if (!(partial >= 0 && partial <= 1) || !(theta > 1) ||
        c->global_head_dim / 2 > MOE_MAX_ROPE_PAIRS)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: rotating %g of %" PRIu32
                        " values of a head by theta %g makes no sense",
                        path, partial, c->global_head_dim, theta);
    uint32_t pairs = c->global_head_dim / 2;
    uint32_t turning = (uint32_t)(partial * c->global_head_dim / 2);
    c->n_global_freqs = pairs;
    for (uint32_t i = 0; i < pairs; i++)
        c->global_freqs[i] = i < turning ? pow(theta, -(double)i / pairs) : 0;
    return MOE_OK;
}

int family_gemma4_hf(struct moe_config *c, const char *path, const json_t *json,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    uint32_t by_layer = 256;
    bool has_experts = false;
    int status = moe_json_get_u32(path, json, "hidden_size_per_layer_input", MOE_MAX_HEAD_DIM,
                                  false, &by_layer, err);
    if (status == MOE_OK)
        status = moe_json_get_bool(path, json, "enable_moe_block", false, &has_experts, err);
    if (status == MOE_OK && by_layer != 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: embeddings by layer ('hidden_size_per_layer_input' %" PRIu32
                        ") are not implemented",
                        path, by_layer);
    if (status != MOE_OK)
        return status;
    gemma4_layers(c, json);
    c->embed_scale = sqrtf((float)c->hidden);
    if (c->global_head_dim == 0)
        c->global_head_dim = 512;
    if (c->global_kv_heads == 0 || !c->global_keys_are_values)
        c->global_kv_heads = c->n_kv_heads;
    status = gemma4_by_layer(c, path, json, err);
    if (status == MOE_OK)
        status = gemma4_global_rope(c, path, json, err);
    if (has_experts) {
        memset(c->layer_is_moe, 1, c->n_layers);
        c->shared_ff = c->dense_ff;
        c->dense_ff = 0;
        c->own_norms = c->expert_scale = true;
    } else {
        c->n_experts = c->top_k = c->expert_ff = 0;
    }
    return status;
}
