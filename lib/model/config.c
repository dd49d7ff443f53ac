#include "model/config.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "fmt/json.h"
#include "quant/layout.h"

/* ---- Defaults ---- */

void moe_config_init(struct moe_config *config)
{
    *config = (struct moe_config){
        .embed_scale = 1,
        .residual_scale = 1,
        .logit_scale = 1,
        .routed_scale = 1,
        .rope_scale = 1,
        .rope_scale_long = 1,
    };
}

void moe_config_complete(struct moe_config *c)
{
    if (c->n_kv_heads == 0)
        c->n_kv_heads = c->n_heads;
    if (c->head_dim == 0 && c->n_heads > 0)
        c->head_dim = c->hidden / c->n_heads;
    if (c->value_dim == 0)
        c->value_dim = c->head_dim;
    if (c->rope_dim == 0)
        c->rope_dim = c->head_dim;
    if (c->attn_scale == 0 && c->head_dim > 0)
        c->attn_scale = 1.0f / sqrtf((float)c->head_dim);
}

/* ---- The description as JSON: one table for writing and reading ---- */

enum field_kind { FIELD_U32, FIELD_BOOL, FIELD_DOUBLE, FIELD_FLOAT, FIELD_CHOICE };

struct field {
    const char *key;
    enum field_kind kind;
    bool optional; /* not written where it has moe_config_init's value */
    size_t offset;
    uint32_t max;               /* of FIELD_U32 */
    const char *const *choices; /* of FIELD_CHOICE, by value; NULL ends them */
};

static const char *const norm_names[] = {"rms", "layer", NULL};
static const char *const qk_norm_names[] = {"none", "head", "full", NULL};
static const char *const router_names[] = {"softmax", "topk-softmax", "sparsemixer", NULL};
static const char *const act_names[] = {"swiglu", "swiglu-clamped", NULL};

#define FIELD(key, kind, optional, max, choices)                                                   \
    {                                                                                              \
#key, kind, optional, offsetof(struct moe_config, key), max, choices                       \
    }
#define NEEDED_U32(key, max) FIELD(key, FIELD_U32, false, max, NULL)
#define OPTIONAL_U32(key, max) FIELD(key, FIELD_U32, true, max, NULL)
#define NEEDED(key, kind) FIELD(key, kind, false, 0, NULL)
#define OPTIONAL(key, kind) FIELD(key, kind, true, 0, NULL)
#define CHOICE(key, names) FIELD(key, FIELD_CHOICE, true, 0, names)

enum { MAX_WIDTH = 1 << 24, MAX_HEAD_DIM = 1 << 12, MAX_KV_RANK = 1 << 14 };

static const struct field fields[] = {
    NEEDED_U32(n_layers, MOE_MAX_LAYERS),
    NEEDED_U32(hidden, MAX_WIDTH),
    NEEDED_U32(vocab, MAX_WIDTH),
    NEEDED_U32(context_max, MOE_MAX_CONTEXT),
    CHOICE(norm_kind, norm_names),
    NEEDED(norm_eps, FIELD_FLOAT),
    OPTIONAL(embed_scale, FIELD_FLOAT),
    OPTIONAL(residual_scale, FIELD_FLOAT),
    OPTIONAL(logit_scale, FIELD_FLOAT),
    NEEDED(tied_head, FIELD_BOOL),
    OPTIONAL(head_bias, FIELD_BOOL),
    NEEDED_U32(n_heads, MOE_MAX_HEADS),
    NEEDED_U32(n_kv_heads, MOE_MAX_HEADS),
    NEEDED_U32(head_dim, MAX_HEAD_DIM),
    OPTIONAL_U32(value_dim, MAX_HEAD_DIM),
    NEEDED(qkv_bias, FIELD_BOOL),
    OPTIONAL(o_bias, FIELD_BOOL),
    CHOICE(qk_norm, qk_norm_names),
    OPTIONAL(clip_qkv, FIELD_FLOAT),
    OPTIONAL(attn_scale, FIELD_FLOAT),
    OPTIONAL(attn_sinks, FIELD_BOOL),
    OPTIONAL_U32(window, MOE_MAX_CONTEXT),
    OPTIONAL_U32(kv_rank, MAX_WIDTH),
    OPTIONAL_U32(q_rank, MAX_WIDTH),
    OPTIONAL_U32(rope_dim, 2 * MOE_MAX_ROPE_PAIRS),
    NEEDED(rope_theta, FIELD_DOUBLE),
    OPTIONAL(rope_scale, FIELD_DOUBLE),
    OPTIONAL_U32(rope_original, MOE_MAX_CONTEXT),
    OPTIONAL(rope_scale_long, FIELD_DOUBLE),
    NEEDED_U32(dense_ff, MAX_WIDTH),
    NEEDED_U32(n_experts, MOE_MAX_EXPERTS),
    NEEDED_U32(top_k, MOE_MAX_TOP_K),
    NEEDED_U32(expert_ff, MAX_WIDTH),
    CHOICE(expert_act, act_names),
    OPTIONAL(act_alpha, FIELD_FLOAT),
    OPTIONAL(act_limit, FIELD_FLOAT),
    OPTIONAL(expert_bias, FIELD_BOOL),
    NEEDED_U32(shared_ff, MAX_WIDTH),
    NEEDED(shared_gate, FIELD_BOOL),
    CHOICE(router_kind, router_names),
    OPTIONAL(router_bias, FIELD_BOOL),
    NEEDED(norm_topk, FIELD_BOOL),
    OPTIONAL(routed_scale, FIELD_FLOAT),
    OPTIONAL(router_jitter, FIELD_FLOAT),
    OPTIONAL_U32(n_groups, MOE_MAX_EXPERTS),
    OPTIONAL_U32(top_groups, MOE_MAX_EXPERTS),
};

enum { N_FIELDS = sizeof fields / sizeof fields[0] };

/* Bytes of the member that a field names. */
static size_t field_size(const struct field *f)
{
    switch (f->kind) {
    case FIELD_U32:
        return sizeof(uint32_t);
    case FIELD_BOOL:
        return sizeof(bool);
    case FIELD_DOUBLE:
        return sizeof(double);
    case FIELD_FLOAT:
        return sizeof(float);
    case FIELD_CHOICE:
        return sizeof(int);
    }
    return 0;
}

static void write_field(const struct moe_config *config, const struct field *f, struct moe_buf *out)
{
    const char *at = (const char *)config + f->offset;
    moe_buf_printf(out, ",\"%s\":", f->key);
    switch (f->kind) {
    case FIELD_U32:
        moe_buf_printf(out, "%" PRIu32, *(const uint32_t *)at);
        break;
    case FIELD_BOOL:
        moe_buf_text(out, *(const bool *)at ? "true" : "false");
        break;
    case FIELD_DOUBLE:
        moe_buf_printf(out, "%.17g", *(const double *)at);
        break;
    case FIELD_FLOAT:
        moe_buf_printf(out, "%.9g", (double)*(const float *)at);
        break;
    case FIELD_CHOICE:
        moe_buf_printf(out, "\"%s\"", f->choices[*(const int *)at]);
        break;
    }
}

static void write_layers(const struct moe_config *config, const char *key, const uint8_t *flags,
                         struct moe_buf *out)
{
    const char *comma = "";
    moe_buf_printf(out, ",\"%s\":[", key);
    for (uint32_t i = 0; i < config->n_layers; i++) {
        if (!flags[i])
            continue;
        moe_buf_printf(out, "%s%" PRIu32, comma, i);
        comma = ",";
    }
    moe_buf_text(out, "]");
}

static void write_doubles(const char *key, const double *values, uint32_t n, struct moe_buf *out)
{
    if (n == 0)
        return;
    moe_buf_printf(out, ",\"%s\":[", key);
    for (uint32_t i = 0; i < n; i++)
        moe_buf_printf(out, "%s%.17g", i ? "," : "", values[i]);
    moe_buf_text(out, "]");
}

void moe_config_write(const struct moe_config *config, struct moe_buf *out)
{
    struct moe_config usual;
    moe_config_init(&usual);
    moe_buf_printf(out, "{\"family\":\"%s\"", config->family);
    for (int i = 0; i < N_FIELDS; i++) {
        const struct field *f = &fields[i];
        if (!f->optional || memcmp((const char *)config + f->offset,
                                   (const char *)&usual + f->offset, field_size(f)) != 0)
            write_field(config, f, out);
    }
    write_doubles("rope_freqs", config->rope_freqs, config->n_rope_freqs, out);
    write_doubles("rope_freqs_long", config->rope_freqs_long, config->n_rope_freqs_long, out);
    if (config->window)
        write_layers(config, "windowed_layers", config->layer_is_windowed, out);
    write_layers(config, "moe_layers", config->layer_is_moe, out);
    moe_buf_text(out, ",\"eos\":[");
    for (uint32_t i = 0; i < config->n_eos; i++)
        moe_buf_printf(out, "%s%" PRIu32, i ? "," : "", config->eos[i]);
    moe_buf_text(out, "]}");
}

static int read_choice(const char *name, const json_t *json, const struct field *f, int *out,
                       struct moe_err *err)
{
    const char *text = NULL;
    int status = moe_json_get_text(name, json, f->key, false, &text, err);
    if (status != MOE_OK || !text)
        return status;
    for (int i = 0; f->choices[i]; i++)
        if (strcmp(f->choices[i], text) == 0) {
            *out = i;
            return MOE_OK;
        }
    return moe_fail(err, MOE_ERR_VERSION, "%s: unknown %s '%s' (made by a newer version?)", name,
                    f->key, text);
}

static int read_field(struct moe_config *config, const struct field *f, const char *name,
                      const json_t *json, struct moe_err *err)
{
    char *at = (char *)config + f->offset;
    bool required = !f->optional;
    switch (f->kind) {
    case FIELD_U32:
        return moe_json_get_u32(name, json, f->key, f->max, required, (uint32_t *)at, err);
    case FIELD_BOOL:
        return moe_json_get_bool(name, json, f->key, required, (bool *)at, err);
    case FIELD_DOUBLE:
        return moe_json_get_double(name, json, f->key, required, (double *)at, err);
    case FIELD_FLOAT: {
        double value = (double)*(float *)at;
        int status = moe_json_get_double(name, json, f->key, required, &value, err);
        *(float *)at = (float)value;
        return status;
    }
    case FIELD_CHOICE:
        return read_choice(name, json, f, (int *)at, err);
    }
    return MOE_OK;
}

static bool known_key(const char *key)
{
    static const char *const others[] = {
        "family", "rope_freqs", "rope_freqs_long", "windowed_layers", "moe_layers", "eos",
    };
    for (int i = 0; i < N_FIELDS; i++)
        if (strcmp(key, fields[i].key) == 0)
            return true;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(key, others[i]) == 0)
            return true;
    return false;
}

/* Reads array `key` of whole numbers below `limit`; `take` is called for each. */
static int read_numbers(struct moe_config *config, const char *name, const json_t *json,
                        const char *key, uint32_t limit, uint32_t max_count,
                        void (*take)(struct moe_config *config, uint32_t value),
                        struct moe_err *err)
{
    const json_t *array = json_object_get(json, key);
    if (!json_is_array(array) || json_array_size(array) > max_count)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' must be a list of at most %" PRIu32 " items",
                        name, key, max_count);
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *item = json_array_get(array, i);
        if (!json_is_integer(item) || json_integer_value(item) < 0 ||
            json_integer_value(item) >= (json_int_t)limit)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: '%s' item %zu must be a whole number below %" PRIu32, name, key, i,
                            limit);
        take(config, (uint32_t)json_integer_value(item));
    }
    return MOE_OK;
}

/* Reads array `key` of numbers, where it is there. */
static int read_doubles(const char *name, const json_t *json, const char *key, double *out,
                        uint32_t *n, struct moe_err *err)
{
    const json_t *array = json_object_get(json, key);
    *n = 0;
    if (!array)
        return MOE_OK;
    if (!json_is_array(array) || json_array_size(array) > MOE_MAX_ROPE_PAIRS)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' must be a list of at most %d numbers", name,
                        key, MOE_MAX_ROPE_PAIRS);
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *item = json_array_get(array, i);
        if (!json_is_number(item) || !isfinite(json_number_value(item)))
            return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' item %zu is not a number", name, key, i);
        out[(*n)++] = json_number_value(item);
    }
    return MOE_OK;
}

static void take_moe_layer(struct moe_config *config, uint32_t layer)
{
    config->layer_is_moe[layer] = 1;
}

static void take_windowed_layer(struct moe_config *config, uint32_t layer)
{
    config->layer_is_windowed[layer] = 1;
}

static void take_eos(struct moe_config *config, uint32_t id)
{
    for (uint32_t i = 0; i < config->n_eos; i++)
        if (config->eos[i] == id)
            return;
    if (config->n_eos < MOE_MAX_EOS)
        config->eos[config->n_eos++] = id;
}

static int read_lists(struct moe_config *config, const char *name, const json_t *json,
                      struct moe_err *err)
{
    int status =
        read_doubles(name, json, "rope_freqs", config->rope_freqs, &config->n_rope_freqs, err);
    if (status == MOE_OK)
        status = read_doubles(name, json, "rope_freqs_long", config->rope_freqs_long,
                              &config->n_rope_freqs_long, err);
    if (status == MOE_OK && json_object_get(json, "windowed_layers"))
        status = read_numbers(config, name, json, "windowed_layers", config->n_layers,
                              config->n_layers, take_windowed_layer, err);
    if (status == MOE_OK)
        status = read_numbers(config, name, json, "moe_layers", config->n_layers, config->n_layers,
                              take_moe_layer, err);
    if (status == MOE_OK)
        status = read_numbers(config, name, json, "eos", MAX_WIDTH, MOE_MAX_EOS, take_eos, err);
    return status;
}

int moe_config_read(struct moe_config *config, const char *name, const void *text, uint64_t n,
                    struct moe_err *err)
{
    moe_config_init(config);
    json_t *json = moe_json_parse(name, text, n, err);
    if (!json)
        return MOE_ERR_FORMAT;
    int status = MOE_OK;
    const char *family = NULL, *key;
    json_t *value;
    if (!json_is_object(json)) {
        status = moe_fail(err, MOE_ERR_FORMAT, "%s: the model description is not an object", name);
        goto done;
    }
    json_object_foreach(json, key, value)
    {
        if (!known_key(key)) {
            status = moe_fail(err, MOE_ERR_VERSION,
                              "%s: unknown key '%s' (made by a newer version?)", name, key);
            goto done;
        }
    }
    status = moe_json_get_text(name, json, "family", true, &family, err);
    if (status == MOE_OK)
        snprintf(config->family, sizeof config->family, "%s", family);
    for (int i = 0; i < N_FIELDS && status == MOE_OK; i++)
        status = read_field(config, &fields[i], name, json, err);
    if (status == MOE_OK)
        status = read_lists(config, name, json, err);
    if (status == MOE_OK) {
        moe_config_complete(config);
        status = moe_config_check(config, name, err);
    }
done:
    moe_json_free(json);
    return status;
}

/* ---- Checks ---- */

struct range {
    const char *key;
    uint32_t value, low, high;
};

static int check_ranges(const char *name, const struct range *ranges, size_t n, struct moe_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (ranges[i].value < ranges[i].low || ranges[i].value > ranges[i].high)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: %s is %" PRIu32 ", expected %" PRIu32 " to %" PRIu32, name,
                            ranges[i].key, ranges[i].value, ranges[i].low, ranges[i].high);
    return MOE_OK;
}

static int check_attention(const struct moe_config *c, const char *name, struct moe_err *err)
{
    bool windowed = false;
    for (uint32_t i = 0; i < c->n_layers; i++)
        windowed |= c->layer_is_windowed[i];
    if (windowed && c->window == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: windowed layers need a window", name);
    if (!c->kv_rank)
        return c->q_rank || c->value_dim != c->head_dim
                   ? moe_fail(err, MOE_ERR_FORMAT,
                              "%s: only latent attention has low-rank queries or values of "
                              "another width",
                              name)
                   : MOE_OK;
    if ((uint64_t)c->n_heads * c->kv_rank + c->rope_dim > MAX_WIDTH)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: a latent vector of %" PRIu32 " values for %" PRIu32
                        " heads is too wide",
                        name, c->kv_rank, c->n_heads);
    if (c->rope_dim >= c->head_dim)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: latent attention rotates %" PRIu32 " of %" PRIu32
                        " values: none is left",
                        name, c->rope_dim, c->head_dim);
    /* Heads are blocks of rows of k_up and v_up: they must begin with a panel. */
    if (c->kv_rank > MAX_KV_RANK || c->kv_rank % MOE_PANEL_ROWS != 0 ||
        c->value_dim % MOE_PANEL_ROWS != 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: latent attention of rank %" PRIu32 " with values of %" PRIu32
                        ": multiples of %d, ranks up to %d, are implemented",
                        name, c->kv_rank, c->value_dim, MOE_PANEL_ROWS, MAX_KV_RANK);
    if (c->qkv_bias || c->qk_norm != MOE_QK_NORM_NONE || c->clip_qkv > 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: latent attention with biases, norms or clipping of queries and keys "
                        "is not implemented",
                        name);
    return MOE_OK;
}

static int check_freqs(const char *name, const double *freqs, uint32_t n, uint32_t pairs,
                       double scale, struct moe_err *err)
{
    if (n != 0 && n != pairs)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " rotary frequencies for %" PRIu32 " pairs", name, n, pairs);
    for (uint32_t i = 0; i < n; i++)
        if (!(fabs(freqs[i]) <= 1e6))
            return moe_fail(err, MOE_ERR_FORMAT, "%s: a rotary frequency of %g makes no sense",
                            name, freqs[i]);
    if (!(scale > 0 && scale < 1e6))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: a rotary scale of %g makes no sense", name,
                        scale);
    return MOE_OK;
}

static int check_rope(const struct moe_config *c, const char *name, struct moe_err *err)
{
    if (!(c->rope_theta > 1 && c->rope_theta < 1e12))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: rope theta %g makes no sense", name,
                        c->rope_theta);
    uint32_t pairs = c->rope_dim / 2;
    int status = check_freqs(name, c->rope_freqs, c->n_rope_freqs, pairs, c->rope_scale, err);
    if (status == MOE_OK)
        status = check_freqs(name, c->rope_freqs_long, c->n_rope_freqs_long, pairs,
                             c->rope_scale_long, err);
    if (status == MOE_OK && c->rope_original && !c->n_rope_freqs_long)
        status = moe_fail(err, MOE_ERR_FORMAT,
                          "%s: rotary frequencies for long contexts are missing", name);
    return status;
}

static int check_router(const struct moe_config *c, const char *name, struct moe_err *err)
{
    if (c->n_groups &&
        (c->n_experts % c->n_groups != 0 || c->top_groups == 0 || c->top_groups > c->n_groups ||
         c->top_k > c->n_experts / c->n_groups * c->top_groups))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " experts in %" PRIu32 " groups, %" PRIu32
                        " of them for a token, cannot give %" PRIu32 " experts",
                        name, c->n_experts, c->n_groups, c->top_groups, c->top_k);
    if (c->router_kind == MOE_ROUTER_SPARSEMIXER && (c->top_k != 2 || c->n_experts < 2))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: sparsemixer routing is implemented for two experts per token", name);
    if (c->expert_act == MOE_ACT_SWIGLU_CLAMPED && !(c->act_limit > 0 && c->act_alpha > 0))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: a clamped activation needs limit and alpha",
                        name);
    return MOE_OK;
}

int moe_config_check(const struct moe_config *c, const char *name, struct moe_err *err)
{
    uint32_t n_moe = 0;
    for (uint32_t i = 0; i < c->n_layers && i < MOE_MAX_LAYERS; i++)
        n_moe += c->layer_is_moe[i];
    const struct range basic[] = {
        {"the number of layers", c->n_layers, 1, MOE_MAX_LAYERS},
        {"the hidden width", c->hidden, 1, MAX_WIDTH},
        {"the vocabulary", c->vocab, 1, MAX_WIDTH},
        {"the context length", c->context_max, 1, MOE_MAX_CONTEXT},
        {"the number of attention heads", c->n_heads, 1, MOE_MAX_HEADS},
        {"the number of key/value heads", c->n_kv_heads, 1, c->n_heads},
        {"the head width", c->head_dim, 2, MAX_HEAD_DIM},
        {"the width of a value", c->value_dim, 1, MAX_HEAD_DIM},
        {"the rotated width", c->rope_dim, 2,
         c->head_dim < 2 * MOE_MAX_ROPE_PAIRS ? c->head_dim : 2 * MOE_MAX_ROPE_PAIRS},
    };
    int status = check_ranges(name, basic, sizeof basic / sizeof basic[0], err);
    if (status != MOE_OK)
        return status;
    if (c->n_heads % c->n_kv_heads != 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " attention heads cannot share %" PRIu32 " key/value heads",
                        name, c->n_heads, c->n_kv_heads);
    if (c->rope_dim % 2 != 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: the rotated width %" PRIu32 " is odd", name,
                        c->rope_dim);
    status = check_attention(c, name, err);
    if (status == MOE_OK)
        status = check_rope(c, name, err);
    if (status != MOE_OK)
        return status;
    const float scales[] = {c->embed_scale, c->residual_scale, c->logit_scale, c->routed_scale,
                            c->attn_scale};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++)
        if (!isfinite(scales[i]) || scales[i] == 0)
            return moe_fail(err, MOE_ERR_FORMAT, "%s: a scale of %g makes no sense", name,
                            (double)scales[i]);
    const float limits[] = {c->clip_qkv, c->act_alpha, c->act_limit, c->router_jitter};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        if (!(limits[i] >= 0) || !isfinite(limits[i]))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: a limit of %g (clip_qkv, of the activation or the router) makes "
                            "no sense",
                            name, (double)limits[i]);
    if (!(c->norm_eps > 0 && c->norm_eps < 1))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: norm epsilon %g makes no sense", name,
                        (double)c->norm_eps);
    if (n_moe) {
        const struct range moe[] = {
            {"the number of experts", c->n_experts, 1, MOE_MAX_EXPERTS},
            {"the experts per token", c->top_k, 1,
             c->n_experts < MOE_MAX_TOP_K ? c->n_experts : MOE_MAX_TOP_K},
            {"an expert's width", c->expert_ff, 1, MAX_WIDTH},
        };
        status = check_ranges(name, moe, sizeof moe / sizeof moe[0], err);
        if (status == MOE_OK)
            status = check_router(c, name, err);
        if (status != MOE_OK)
            return status;
    }
    if (n_moe < c->n_layers && c->dense_ff == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: a dense layer needs a feed-forward width", name);
    return MOE_OK;
}
