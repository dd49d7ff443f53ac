/* What families with recurrent states compute of their own (family_own.h): which layers have them.
 */
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "family/family_own.h"
#include "fmt/json.h"
#include "model/rope.h"
#include "quant/layout.h"

/* "layer_types": "full_attention", "attention", or one of two words for a recurrent state. */
static int read_layer_types(struct moe_config *c, const char *path, const json_t *list,
                            const char *const recurrent[2], struct moe_err *err)
{
    if (json_array_size(list) != c->n_layers)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'layer_types' must be a list of %" PRIu32 " layers", path,
                        c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const char *type = json_string_value(json_array_get(list, i));
        type = type ? type : "?";
        c->layer_is_recurrent[i] =
            strcmp(type, recurrent[0]) == 0 || strcmp(type, recurrent[1]) == 0;
        if (!c->layer_is_recurrent[i] && strcmp(type, "full_attention") != 0 &&
            strcmp(type, "attention") != 0)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: 'layer_types' item %" PRIu32 " is '%.60s', which is not "
                            "implemented",
                            path, i, type);
    }
    return MOE_OK;
}

/* A model whose layers all attend has none of it. */
static void drop_unused_states(struct moe_config *c)
{
    if (moe_config_recurrent_layers(c, c->n_layers) > 0)
        return;
    c->state_heads = c->state_key_heads = c->state_key_dim = c->state_value_dim = c->conv_width = 0;
    c->state_step_rank = 0;
    c->conv_bias = false;
}

/* ---- Qwen3-Next: gated DeltaNet beside attention ---- */

/* "layer_types", or every "full_attention_interval"-th layer attends. */
int family_qwen3_next_hf(struct moe_config *c, const char *path, const json_t *json,
                         struct moe_rope_settings *rope, struct moe_err *err)
{
    static const char *const recurrent[2] = {"linear_attention", "linear_attention"};
    const json_t *list = json_object_get(json, "layer_types");
    uint32_t interval = 4;
    int status = moe_json_get_u32(path, json, "full_attention_interval", MOE_MAX_LAYERS, false,
                                  &interval, err);
    if (status == MOE_OK && interval == 0)
        status =
            moe_fail(err, MOE_ERR_FORMAT, "%s: 'full_attention_interval' must be at least 1", path);
    if (status == MOE_OK && list && !json_is_null(list))
        status = read_layer_types(c, path, list, recurrent, err);
    else
        for (uint32_t i = 0; i < c->n_layers && status == MOE_OK; i++)
            c->layer_is_recurrent[i] = (i + 1) % interval != 0;
    drop_unused_states(c);
    return status;
}

/* ---- LFM2 with experts: short convolutions beside attention ---- */

int family_lfm2_moe_hf(struct moe_config *c, const char *path, const json_t *json,
                       struct moe_rope_settings *rope, struct moe_err *err)
{
    static const char *const recurrent[2] = {"conv", "conv"};
    uint32_t n_dense = 2;
    int status =
        moe_json_get_u32(path, json, "num_dense_layers", MOE_MAX_LAYERS, false, &n_dense, err);
    if (status == MOE_OK)
        status = read_layer_types(c, path, json_object_get(json, "layer_types"), recurrent, err);
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layer_is_moe[i] = i >= n_dense;
    c->state_heads = 1;
    c->state_value_dim = c->hidden;
    drop_unused_states(c);
    return status;
}

/* ---- Mamba-2 ---- */

/* "time_step_limit", where it is there, must be from 0 up to a number that no step reaches. */
static int check_steps(const char *path, const json_t *json, struct moe_err *err)
{
    const json_t *limit = json_object_get(json, "time_step_limit");
    const json_t *least = json_array_get(limit, 0), *most = json_array_get(limit, 1);
    bool none = !limit || json_is_null(limit) ||
                (json_array_size(limit) == 2 && json_number_value(least) == 0 &&
                 (!json_is_number(most) || json_number_value(most) >= 1e9));
    return none ? MOE_OK
                : moe_fail(err, MOE_ERR_UNSUPPORTED,
                           "%s: 'time_step_limit' is not from 0 to infinity, which alone is "
                           "implemented",
                           path);
}

/* ---- Granite-4 ---- */

/* "mamba_d_head" is a number, or "auto": what "mamba_expand" times the stream gives each head. */
static int read_head_width(struct moe_config *c, const char *path, const json_t *json,
                           struct moe_err *err)
{
    uint32_t expand = 2, width = 0;
    const char *text = json_string_value(json_object_get(json, "mamba_d_head"));
    bool given = json_object_get(json, "mamba_d_head") && !(text && strcmp(text, "auto") == 0);
    int status = moe_json_get_u32(path, json, "mamba_expand", MOE_MAX_DIM, false, &expand, err);
    if (status == MOE_OK && given)
        status = moe_json_get_u32(path, json, "mamba_d_head", MOE_MAX_HEAD_DIM, true, &width, err);
    uint64_t values = (uint64_t)expand * c->hidden;
    if (status == MOE_OK && !given && c->state_heads)
        width = (uint32_t)(values / c->state_heads);
    if (status == MOE_OK && (uint64_t)width * c->state_heads != values)
        status = moe_fail(err, MOE_ERR_FORMAT,
                          "%s: %" PRIu32 " heads of %" PRIu32 " values are not %" PRIu32
                          " times the width of %" PRIu32,
                          path, c->state_heads, width, expand, c->hidden);
    c->state_value_dim = width;
    return status;
}

int family_granite_hybrid_hf(struct moe_config *c, const char *path, const json_t *json,
                             struct moe_rope_settings *rope, struct moe_err *err)
{
    static const char *const recurrent[2] = {"mamba", "linear_attention"};
    const char *positions = json_string_value(json_object_get(json, "position_embedding_type"));
    int status = check_steps(path, json, err);
    if (status == MOE_OK)
        status = read_layer_types(c, path, json_object_get(json, "layer_types"), recurrent, err);
    if (status == MOE_OK && moe_config_recurrent_layers(c, c->n_layers))
        status = read_head_width(c, path, json, err);
    if (status == MOE_OK && positions && strcmp(positions, "rope") == 0) {
        c->positions = MOE_POSITIONS_ROTARY;
        status = moe_rope_read_hf(rope, path, json, err);
    }
    if (c->n_experts == 0) {
        c->dense_ff = c->shared_ff;
        c->expert_ff = c->shared_ff = c->top_k = 0;
        memset(c->layer_is_moe, 0, c->n_layers);
    }
    drop_unused_states(c);
    return status;
}

/* ---- Nemotron-H: every layer is a half ---- */

enum half { MAMBA, ATTENTION, MOE, MLP, N_HALVES };

/* A letter of "hybrid_override_pattern", or one of two words of "layers_block_type". */
static int half_of(const char *letter, const char *word)
{
    static const char *const names[N_HALVES][3] = {
        [MAMBA] = {"M", "mamba", "linear_attention"},
        [ATTENTION] = {"*", "attention", "full_attention"},
        [MOE] = {"E", "moe", "moe"},
        [MLP] = {"-", "mlp", "mlp"},
    };
    for (int i = 0; i < N_HALVES; i++)
        if (letter ? names[i][0][0] == *letter
                   : strcmp(names[i][1], word) == 0 || strcmp(names[i][2], word) == 0)
            return i;
    return N_HALVES;
}

/* The lists say how many layers there are, whatever "num_hidden_layers" says. */
static int read_halves(struct moe_config *c, const char *path, const json_t *json,
                       struct moe_err *err)
{
    const json_t *list = json_object_get(json, "layers_block_type");
    const char *pattern = json_string_value(json_object_get(json, "hybrid_override_pattern"));
    bool listed = json_is_array(list);
    size_t n = listed ? json_array_size(list) : pattern ? strlen(pattern) : 0;
    if (n == 0 || n > MOE_MAX_LAYERS)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'layers_block_type', or 'hybrid_override_pattern', must name 1 to %d "
                        "layers",
                        path, MOE_MAX_LAYERS);
    c->n_layers = (uint32_t)n;
    for (uint32_t i = 0; i < n; i++) {
        const char *word = json_string_value(json_array_get(list, i));
        int half = half_of(listed ? NULL : pattern + i, word ? word : "?");
        if (half == N_HALVES)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: layer %" PRIu32 " is '%.60s', which is not implemented", path, i,
                            !listed ? pattern + i
                            : word  ? word
                                    : "?");
        c->layer_is_recurrent[i] = half == MAMBA;
        c->layer_is_moe[i] = half == MOE;
        c->layer_no_attention[i] = half == MOE || half == MLP;
        c->layer_no_ffn[i] = half == MAMBA || half == ATTENTION;
    }
    return MOE_OK;
}

int family_nemotron_h_hf(struct moe_config *c, const char *path, const json_t *json,
                         struct moe_rope_settings *rope, struct moe_err *err)
{
    int status = check_steps(path, json, err);
    if (status == MOE_OK)
        status = read_halves(c, path, json, err);
    if (c->n_groups <= 1)
        c->n_groups = c->top_groups = 0;
    if (status == MOE_OK && moe_config_moe_layers(c, c->n_layers) == 0)
        c->n_experts = c->top_k = c->expert_ff = c->shared_ff = 0;
    drop_unused_states(c);
    return status;
}

/* ---- Kimi-Linear: KDA beside latent attention ---- */

/* The numbers of a list, from 1, are those of the layers that `flag` is set for. */
static int read_numbered(const struct moe_config *c, const char *path, const json_t *from,
                         const char *key, uint8_t flag, uint8_t *kinds, struct moe_err *err)
{
    const json_t *list = json_object_get(from, key), *item;
    size_t i;
    json_array_foreach(list, i, item)
    {
        json_int_t layer = json_is_integer(item) ? json_integer_value(item) : 0;
        if (layer < 1 || layer > (json_int_t)c->n_layers || kinds[layer - 1])
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: '%s' item %zu is no layer, or one that is listed already", path,
                            key, i);
        kinds[layer - 1] = flag;
    }
    return MOE_OK;
}

/* "linear_attn_config" numbers all layers in two lists. */
static int read_numbered_layers(struct moe_config *c, const char *path, const json_t *from,
                                struct moe_err *err)
{
    enum { KDA = 1, FULL = 2 };
    uint8_t kinds[MOE_MAX_LAYERS] = {0};
    int status = read_numbered(c, path, from, "kda_layers", KDA, kinds, err);
    if (status == MOE_OK)
        status = read_numbered(c, path, from, "full_attn_layers", FULL, kinds, err);
    for (uint32_t i = 0; i < c->n_layers && status == MOE_OK; i++) {
        c->layer_is_recurrent[i] = kinds[i] == KDA;
        if (kinds[i] == 0)
            status = moe_fail(err, MOE_ERR_FORMAT,
                              "%s: layer %" PRIu32 " is neither in 'kda_layers' nor in "
                              "'full_attn_layers'",
                              path, i + 1);
    }
    return status;
}

/* Published files have the numbers of KDA in an object, those of newer writers beside the rest. */
int family_kimi_linear_hf(struct moe_config *c, const char *path, const json_t *json,
                          struct moe_rope_settings *rope, struct moe_err *err)
{
    static const char *const recurrent[2] = {"linear_attention", "linear_attention"};
    const json_t *own = json_object_get(json, "linear_attn_config");
    bool nested = json_is_object(own);
    const json_t *from = nested ? own : json;
    uint32_t width = 128, n_shared = 1;
    const struct {
        const json_t *from;
        const char *key;
        uint32_t *out, max;
    } numbers[] = {
        {from, nested ? "num_heads" : "linear_num_heads", &c->state_heads, MOE_MAX_HEADS},
        {from, nested ? "head_dim" : "linear_head_dim", &width, MOE_MAX_HEAD_DIM},
        {from, nested ? "short_conv_kernel_size" : "linear_conv_kernel_dim", &c->conv_width,
         MOE_MAX_HEAD_DIM},
        {json, "n_shared_experts", &n_shared, MOE_MAX_EXPERTS},
        {json, "num_shared_experts", &n_shared, MOE_MAX_EXPERTS},
    };
    int status = family_deepseek_v3_hf(c, path, json, rope, err);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && status == MOE_OK; i++)
        status = moe_json_get_u32(path, numbers[i].from, numbers[i].key, numbers[i].max, false,
                                  numbers[i].out, err);
    if (status == MOE_OK && (uint64_t)n_shared * c->expert_ff > MOE_MAX_DIM)
        status = moe_fail(err, MOE_ERR_FORMAT,
                          "%s: %" PRIu32 " shared experts of width %" PRIu32 " make no sense", path,
                          n_shared, c->expert_ff);
    if (status != MOE_OK)
        return status;
    c->shared_ff = n_shared * c->expert_ff;
    c->state_key_heads = c->state_heads;
    c->state_key_dim = c->state_value_dim = width;
    if (nested)
        status = read_numbered_layers(c, path, own, err);
    else
        status = read_layer_types(c, path, json_object_get(json, "layer_types"), recurrent, err);
    drop_unused_states(c);
    return status;
}

/* ---- Jamba: Mamba, with experts in every other layer ---- */

int family_jamba_hf(struct moe_config *c, const char *path, const json_t *json,
                    struct moe_rope_settings *rope, struct moe_err *err)
{
    uint32_t attends[2] = {8, 4}, experts[2] = {2, 1}, expand = 2, rank = (c->hidden + 15) / 16;
    const char *text = json_string_value(json_object_get(json, "mamba_dt_rank"));
    bool automatic = text && strcmp(text, "auto") == 0;
    const struct {
        const char *key;
        uint32_t *out, max;
    } numbers[] = {
        {"attn_layer_period", &attends[0], MOE_MAX_LAYERS},
        {"attn_layer_offset", &attends[1], MOE_MAX_LAYERS},
        {"expert_layer_period", &experts[0], MOE_MAX_LAYERS},
        {"expert_layer_offset", &experts[1], MOE_MAX_LAYERS},
        {"mamba_expand", &expand, MOE_MAX_HEADS},
        {automatic ? "" : "mamba_dt_rank", &rank, MOE_MAX_DIM},
    };
    int status = MOE_OK;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && status == MOE_OK; i++)
        status = moe_json_get_u32(path, json, numbers[i].key, numbers[i].max, false, numbers[i].out,
                                  err);
    if (status == MOE_OK && (attends[1] >= attends[0] || experts[1] >= experts[0] ||
                             (uint64_t)expand * c->hidden > MOE_MAX_DIM))
        status = moe_fail(err, MOE_ERR_FORMAT,
                          "%s: attention in layer %" PRIu32 " of %" PRIu32 ", experts in %" PRIu32
                          " of %" PRIu32 ", states %" PRIu32
                          " times as wide as the stream make no sense",
                          path, attends[1], attends[0], experts[1], experts[0], expand);
    if (status != MOE_OK)
        return status;
    c->state_heads = c->state_key_heads = 1;
    c->state_value_dim = expand * c->hidden;
    c->state_step_rank = rank;
    c->dense_ff = c->expert_ff;
    if (c->n_experts <= 1)
        c->n_experts = c->top_k = c->expert_ff = 0;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        c->layer_is_recurrent[i] = i % attends[0] != attends[1];
        c->layer_is_moe[i] = c->n_experts > 0 && i % experts[0] == experts[1];
    }
    drop_unused_states(c);
    return status;
}
