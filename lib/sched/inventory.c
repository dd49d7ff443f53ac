/* What a pack offers a strategy: variants and sizes. */
#include "sched/inventory.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Bytes of an expert at most: sums over all experts that a trace may have do not overflow. */
static const uint64_t MOST_BYTES = (uint64_t)1 << 40;

/* ---- Making ---- */

static int make_tables(struct moe_inventory *i, struct moe_err *err)
{
    uint64_t n = (uint64_t)i->n_layers * i->n_experts * i->n_variants;
    i->model_layer = moe_alloc(i->n_layers, sizeof *i->model_layer, err);
    i->is_static = moe_alloc(i->n_layers, sizeof *i->is_static, err);
    i->class_of = moe_alloc(n, sizeof *i->class_of, err);
    i->stored = moe_alloc(n * MOE_PACK_MAX_SEGMENTS, sizeof *i->stored, err);
    if (!i->model_layer || !i->is_static || !i->class_of || !i->stored)
        return MOE_ERR_MEMORY;
    for (uint32_t layer = 0; layer < i->n_layers; layer++)
        i->model_layer[layer] = layer;
    for (uint64_t x = 0; x < n; x++)
        i->class_of[x] = UINT32_MAX;
    return MOE_OK;
}

static void name_variant(struct moe_inventory *i, uint32_t variant, const char *name)
{
    snprintf(i->variants[variant], sizeof i->variants[variant], "%.*s",
             (int)sizeof i->variants[variant] - 1, name);
}

static void size_class(struct moe_size_class *class_)
{
    class_->slot_bytes = 0;
    for (uint32_t s = 0; s < class_->n_segments; s++)
        class_->slot_bytes += moe_round_up(class_->segment_bytes[s], MOE_PACK_ALIGN);
}

static void put_expert(struct moe_inventory *i, uint32_t key, uint32_t variant,
                       const struct moe_expert_extent *x)
{
    uint64_t at = moe_expert_copy(i->n_variants, key, variant);
    if (!x->present)
        return;
    i->class_of[at] = x->class_index;
    for (uint32_t s = 0; s < i->classes[x->class_index].n_segments; s++)
        i->stored[at * MOE_PACK_MAX_SEGMENTS + s] = x->segments[s].stored_bytes;
}

/* Whether the model has experts there, of its own or those of an earlier visit. */
static bool has_experts(const struct moe_pack *pack, const struct moe_config *config,
                        uint32_t layer)
{
    return moe_pack_layer_has_experts(pack, layer) ||
           (config && layer < config->n_layers && config->layers[layer].moe);
}

int moe_inventory_of_pack(struct moe_inventory *out, const struct moe_pack *pack, uint32_t top_k,
                          const struct moe_config *config, struct moe_err *err)
{
    struct moe_inventory *i = out;
    *i = (struct moe_inventory){
        .n_experts = moe_pack_n_experts(pack),
        .top_k = top_k,
        .n_model_layers = moe_pack_n_layers(pack),
        .n_variants = moe_pack_n_variants(pack),
        .n_classes = moe_pack_n_classes(pack),
    };
    if (i->n_classes > MOE_MAX_CLASSES)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: more than %d classes of experts",
                        moe_pack_path(pack), MOE_MAX_CLASSES);
    for (uint32_t v = 0; v < i->n_variants; v++)
        name_variant(i, v, moe_pack_variant_at(pack, v)->name);
    for (uint32_t c = 0; c < i->n_classes; c++) {
        const struct moe_expert_class *class_ = moe_pack_class_at(pack, c);
        i->classes[c].n_segments = class_->n_segments;
        memcpy(i->classes[c].segment_bytes, class_->segment_bytes, sizeof class_->segment_bytes);
        size_class(&i->classes[c]);
    }
    for (uint32_t layer = 0; layer < i->n_model_layers; layer++)
        i->n_layers += has_experts(pack, config, layer);
    int status = make_tables(i, err);
    for (uint32_t layer = 0, n = 0; layer < i->n_model_layers && status == MOE_OK; layer++) {
        if (!has_experts(pack, config, layer))
            continue;
        for (uint32_t e = 0; e < i->n_experts; e++)
            for (uint32_t v = 0; v < i->n_variants; v++)
                put_expert(i, moe_expert_key(i->n_experts, n, e), v,
                           moe_pack_expert(pack, layer, e, v));
        i->model_layer[n++] = layer;
    }
    if (config && status == MOE_OK)
        moe_inventory_set_model(i, config);
    return status;
}

/* Experts of one segment: a class for each variant that has any, as large as they are on average.
 * bytes: [variant][layer][expert]. */
static int of_sizes(struct moe_inventory *i, const uint64_t *bytes, struct moe_err *err)
{
    uint32_t n_keys = moe_inventory_n_keys(i);
    int status = make_tables(i, err);
    for (uint32_t v = 0; v < i->n_variants && status == MOE_OK; v++) {
        double sum = 0;
        uint64_t n = 0;
        for (uint32_t key = 0; key < n_keys; key++) {
            uint64_t size = bytes[(uint64_t)v * n_keys + key];
            if (size == 0)
                continue;
            uint64_t copy = moe_expert_copy(i->n_variants, key, v);
            i->class_of[copy] = i->n_classes;
            i->stored[copy * MOE_PACK_MAX_SEGMENTS] = size;
            sum += (double)size;
            n++;
        }
        if (n == 0)
            continue;
        struct moe_size_class *class_ = &i->classes[i->n_classes++];
        class_->n_segments = 1;
        class_->segment_bytes[0] = (uint64_t)(sum / (double)n + 0.5);
        size_class(class_);
    }
    return status;
}

int moe_inventory_uniform(struct moe_inventory *out, uint32_t n_layers, uint32_t n_experts,
                          uint32_t top_k, const char (*variants)[MOE_NAME_BYTES],
                          const uint64_t *bytes, uint32_t n_variants, struct moe_err *err)
{
    *out = (struct moe_inventory){
        .n_layers = n_layers,
        .n_experts = n_experts,
        .top_k = top_k,
        .n_model_layers = n_layers,
        .n_variants = n_variants,
    };
    uint64_t n_keys = (uint64_t)n_layers * n_experts;
    uint64_t *sizes = moe_alloc(n_keys * n_variants, sizeof *sizes, err);
    if (!sizes)
        return MOE_ERR_MEMORY;
    for (uint32_t v = 0; v < n_variants; v++) {
        name_variant(out, v, variants[v]);
        for (uint64_t key = 0; key < n_keys; key++)
            sizes[v * n_keys + key] = bytes[v];
    }
    int status = of_sizes(out, sizes, err);
    free(sizes);
    return status;
}

/* Checks the sizes in a trace, which are whatever its file says. */
static int check_sizes(const struct moe_trace_shape *shape, struct moe_err *err)
{
    for (uint32_t layer = 0; layer < shape->n_layers; layer++)
        for (uint32_t e = 0; moe_loop_owner(&shape->loop, layer) == layer && e < shape->n_experts;
             e++) {
            uint64_t largest = 0;
            for (uint32_t v = 0; v < shape->n_variants; v++) {
                uint64_t bytes = moe_trace_expert_bytes(shape, v, layer, e);
                largest = bytes > largest ? bytes : largest;
            }
            if (largest == 0)
                return moe_fail(err, MOE_ERR_FORMAT, "the trace's layer %u expert %u has no size",
                                layer, e);
            if (largest > MOST_BYTES)
                return moe_fail(err, MOE_ERR_FORMAT,
                                "the trace's layer %u expert %u is larger than any (%" PRIu64
                                " bytes)",
                                layer, e, largest);
        }
    return MOE_OK;
}

static void set_stacks(struct moe_inventory *i, const struct moe_trace_shape *shape)
{
    moe_inventory_set_encoder(i, shape->n_encoder);
    memcpy(i->is_static, shape->is_static, i->n_layers);
    moe_inventory_set_loop(i, &shape->loop);
}

int moe_inventory_of_trace(struct moe_inventory *out, const struct moe_trace_shape *shape,
                           uint64_t default_bytes, struct moe_err *err)
{
    static const char unnamed[1][MOE_NAME_BYTES] = {"as told"};
    *out = (struct moe_inventory){0};
    if (shape->n_variants == 0 && default_bytes == 0)
        return moe_fail(err, MOE_ERR_USAGE,
                        "the trace does not say how large experts are: name it with "
                        "--expert-size SIZE");
    if (shape->n_variants == 0) {
        int made = moe_inventory_uniform(out, shape->n_layers, shape->n_experts, shape->top_k,
                                         unnamed, &default_bytes, 1, err);
        if (made == MOE_OK)
            set_stacks(out, shape);
        return made;
    }
    MOE_TRY(check_sizes(shape, err));
    *out = (struct moe_inventory){
        .n_layers = shape->n_layers,
        .n_experts = shape->n_experts,
        .top_k = shape->top_k,
        .n_model_layers = shape->n_layers,
        .n_variants = shape->n_variants,
    };
    memcpy(out->variants, shape->variants, sizeof out->variants);
    MOE_TRY(of_sizes(out, shape->expert_bytes, err));
    set_stacks(out, shape);
    return MOE_OK;
}

void moe_inventory_set_model(struct moe_inventory *i, const struct moe_config *c)
{
    if (i->n_model_layers < c->n_layers) /* packs have layers that draft as well */
        i->n_model_layers = c->n_layers;
    for (uint32_t layer = 0, n = 0; layer < i->n_model_layers && n < i->n_layers; layer++)
        if (c->layers[layer].moe) {
            i->is_static[n] = c->layers[layer].static_routing;
            i->model_layer[n++] = layer;
        }
    moe_inventory_set_encoder(i, c->n_encoder);
    i->routes_early = c->router_early;
    const struct moe_loop loop = moe_config_moe_loop(c);
    moe_inventory_set_loop(i, &loop);
}

void moe_inventory_set_loop(struct moe_inventory *i, const struct moe_loop *loop)
{
    i->loop = *loop;
    for (uint32_t layer = 0; layer < i->n_layers; layer++)
        for (uint32_t at = 0; !moe_inventory_owns(i, layer) && at < i->n_experts * i->n_variants;
             at++)
            i->class_of[(uint64_t)layer * i->n_experts * i->n_variants + at] = UINT32_MAX;
}

uint64_t *moe_inventory_uses(const struct moe_inventory *i, const uint64_t *of_layers,
                             uint32_t n_layers, struct moe_err *err)
{
    uint64_t *uses = moe_alloc(moe_inventory_n_keys(i), sizeof *uses, err);
    for (uint32_t layer = 0; uses && layer < n_layers && layer < i->n_layers; layer++)
        for (uint32_t e = 0; e < i->n_experts; e++)
            uses[moe_inventory_key(i, layer, e)] += of_layers[(uint64_t)layer * i->n_experts + e];
    return uses;
}

void moe_inventory_set_encoder(struct moe_inventory *i, uint32_t n_model_layers)
{
    i->n_encoder = 0;
    i->n_model_encoder = n_model_layers;
    while (i->n_encoder < i->n_layers && i->model_layer[i->n_encoder] < n_model_layers)
        i->n_encoder++;
}

void moe_inventory_release(struct moe_inventory *inventory)
{
    free(inventory->model_layer);
    free(inventory->is_static);
    free(inventory->class_of);
    free(inventory->stored);
    *inventory = (struct moe_inventory){0};
}

/* ---- Queries ---- */

uint64_t moe_size_class_offset(const struct moe_size_class *class_, uint32_t segment)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < segment; i++)
        at += moe_round_up(class_->segment_bytes[i], MOE_PACK_ALIGN);
    return at;
}

static uint32_t class_of(const struct moe_inventory *i, uint32_t key, uint32_t variant)
{
    return i->class_of[moe_expert_copy(i->n_variants, key, variant)];
}

uint32_t moe_inventory_usable(const struct moe_inventory *i, uint32_t key, uint32_t variant)
{
    if (variant < i->n_variants && class_of(i, key, variant) != UINT32_MAX)
        return variant;
    variant = 0;
    while (variant < i->n_variants && class_of(i, key, variant) == UINT32_MAX)
        variant++;
    return variant < i->n_variants ? variant : UINT32_MAX;
}

bool moe_inventory_is_best(const struct moe_inventory *i, uint32_t variant)
{
    for (uint32_t key = 0; variant > 0 && key < moe_inventory_n_keys(i); key++)
        if (moe_inventory_usable(i, key, variant) != moe_inventory_usable(i, key, 0))
            return false;
    return true;
}

uint32_t moe_inventory_variant(const struct moe_inventory *i, const char *name)
{
    uint32_t v = 0;
    while (v < i->n_variants && strcmp(i->variants[v], name) != 0)
        v++;
    return v;
}

uint64_t moe_inventory_load_bytes(const struct moe_inventory *i, uint32_t key, uint32_t variant,
                                  uint32_t segment)
{
    return moe_round_up(moe_inventory_stored(i, key, variant)[segment], MOE_PACK_ALIGN);
}

struct sums {
    uint64_t n, load, slots, largest;
    uint64_t of_class[MOE_MAX_CLASSES];
};

/* Sums over all experts, each at the variant that it would be used at. */
static struct sums sum_of(const struct moe_inventory *i, uint32_t variant)
{
    struct sums s = {0};
    for (uint32_t key = 0; key < moe_inventory_n_keys(i); key++) {
        uint32_t v = moe_inventory_usable(i, key, variant);
        if (v == UINT32_MAX)
            continue;
        const struct moe_size_class *class_ = moe_inventory_class(i, key, v);
        s.n++;
        s.of_class[class_ - i->classes]++;
        s.slots += class_->slot_bytes;
        if (class_->slot_bytes > s.largest)
            s.largest = class_->slot_bytes;
        for (uint32_t k = 0; k < class_->n_segments; k++)
            s.load += moe_inventory_load_bytes(i, key, v, k);
    }
    return s;
}

double moe_inventory_mean_load(const struct moe_inventory *i, uint32_t variant)
{
    struct sums s = sum_of(i, variant);
    return s.n ? (double)s.load / (double)s.n : 0;
}

uint64_t moe_inventory_slot_bytes(const struct moe_inventory *i, uint32_t variant)
{
    return sum_of(i, variant).largest;
}

uint64_t moe_inventory_mean_bytes(const struct moe_inventory *i, uint32_t variant)
{
    struct sums s = sum_of(i, variant);
    return s.n ? s.slots / s.n : 0;
}

uint64_t moe_inventory_all_bytes(const struct moe_inventory *i, uint32_t variant)
{
    return sum_of(i, variant).slots;
}

/* ---- Pools ---- */

void moe_pools_size(struct moe_pools *out, const struct moe_inventory *i,
                    const struct moe_strategy *strategy, uint32_t high, uint32_t low,
                    uint64_t cache_bytes, uint32_t n_working)
{
    bool uses_low = strategy->needs_low && low != high;
    struct sums highs = sum_of(i, high), lows = {0};
    if (uses_low)
        lows = sum_of(i, low);
    double low_share = uses_low ? strategy->low_pool : 0;
    *out = (struct moe_pools){.n_classes = i->n_classes};
    for (uint32_t c = 0; c < i->n_classes; c++) {
        double slots = 0;
        uint64_t most = highs.of_class[c] + lows.of_class[c];
        if (highs.of_class[c])
            slots += (double)cache_bytes * (1 - low_share) * (double)highs.of_class[c] /
                     (double)highs.slots;
        if (lows.of_class[c])
            slots +=
                (double)cache_bytes * low_share * (double)lows.of_class[c] / (double)lows.slots;
        struct moe_pool_params *pool = &out->pools[c];
        pool->n_cache = slots < (double)most ? (uint32_t)slots : (uint32_t)most;
        if (most)
            pool->n_working = n_working ? n_working : 1;
        out->n_slots += pool->n_cache + pool->n_working;
        out->bytes += (uint64_t)(pool->n_cache + pool->n_working) * i->classes[c].slot_bytes;
    }
}

bool moe_pools_can_lend(const struct moe_pools *pools, const struct moe_inventory *i,
                        uint32_t n_rows)
{
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < pools->n_classes; c++)
        bytes += pools->pools[c].n_cache * i->classes[c].slot_bytes;
    return moe_loan_bytes(&pools->loan, n_rows, pools->loan.n_blocks) <= bytes;
}
