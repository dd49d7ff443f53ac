#include "show/show_pack.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "convert/convert.h"
#include "fmt/json.h"
#include "fmt/pack_bits.h"

/* ---- Figures ---- */

static void add_extent(struct moe_weight_sum *sum, const struct moe_extent *e)
{
    sum->raw_bytes += e->raw_bytes;
    sum->stored_bytes += e->stored_bytes;
}

static void add_weights(struct moe_weight_sum *sum, struct moe_layout layout, uint32_t rows,
                        uint32_t cols)
{
    uint64_t n = (uint64_t)rows * cols;
    sum->weights += n;
    sum->code_bits += n * (uint64_t)moe_layout_bits(layout.kind);
}

static void add_expert(struct moe_weight_sum *sum, const struct moe_pack *pack,
                       const struct moe_expert_extent *e)
{
    if (!e->present)
        return;
    const struct moe_expert_class *class_ = moe_pack_class_at(pack, e->class_index);
    sum->count++;
    for (uint32_t s = 0; s < class_->n_segments; s++)
        add_extent(sum, &e->segments[s]);
    for (uint32_t i = 0; i < class_->n_matrices; i++) {
        const struct moe_class_matrix *m = &class_->matrices[i];
        add_weights(sum, m->layout, m->rows, m->cols);
    }
}

/* Whether the expert has other bits than the first one seen. */
static bool differs(const struct moe_pack *pack, const struct moe_expert_extent *e,
                    struct moe_bits *first)
{
    struct moe_bits bits;
    if (!e->present || !moe_class_bits(moe_pack_class_at(pack, e->class_index), &bits))
        return false;
    if (first->down == 0)
        *first = bits;
    return bits.gate_up != first->gate_up || bits.down != first->down;
}

int moe_pack_summarize(const struct moe_pack *pack, struct moe_pack_summary *out,
                       struct moe_err *err)
{
    *out = (struct moe_pack_summary){0};
    uint64_t n;
    const uint8_t *model = moe_pack_section(pack, MOE_PACK_MODEL, &n);
    int status = moe_config_read(&out->config, moe_pack_path(pack), model, n, err);
    if (status != MOE_OK)
        return status;
    out->n_moe_layers = moe_config_moe_layers(&out->config, out->config.n_layers);
    for (uint32_t i = 0; i < moe_pack_n_tensors(pack); i++) {
        const struct moe_pack_tensor *t = moe_pack_tensor_at(pack, i);
        out->dense.count++;
        add_weights(&out->dense, t->layout, t->rows, t->cols);
        add_extent(&out->dense, &t->extent);
    }
    for (uint32_t v = 0; v < moe_pack_n_variants(pack); v++) {
        struct moe_bits first = {0};
        for (uint32_t layer = 0; layer < moe_pack_n_layers(pack); layer++)
            for (uint32_t e = 0; e < moe_pack_n_experts(pack); e++) {
                const struct moe_expert_extent *x = moe_pack_expert(pack, layer, e, v);
                add_expert(&out->variants[v], pack, x);
                out->mixed[v] |= differs(pack, x, &first);
            }
    }
    moe_pack_section(pack, MOE_PACK_TOKENIZER, &out->tokenizer_bytes);
    moe_pack_section(pack, MOE_PACK_CHAT, &n);
    out->has_chat_template = n > 0;
    return MOE_OK;
}

double moe_weight_sum_bits(const struct moe_weight_sum *sum)
{
    return sum->weights ? 8 * (double)sum->raw_bytes / (double)sum->weights : 0;
}

double moe_weight_sum_nominal_bits(const struct moe_weight_sum *sum)
{
    return sum->weights ? (double)sum->code_bits / (double)sum->weights : 0;
}

/* ---- For people ---- */

const char *moe_show_variant_bits(const struct moe_pack *pack, uint32_t variant)
{
    const char *name = moe_pack_variant_at(pack, variant)->name;
    return strcmp(name, MOE_MAP_VARIANT) == 0 ? "a map's" : name;
}

void moe_show_pack_line(const struct moe_pack *pack, const struct moe_pack_summary *s,
                        struct moe_buf *out)
{
    moe_buf_printf(out, "%" PRIu32 " layers", s->config.n_layers);
    for (uint32_t v = 0; v < moe_pack_n_variants(pack); v++) {
        const char *name = moe_show_variant_bits(pack, v);
        if (v == 0)
            moe_buf_printf(out, ", %" PRIu64 " experts at %s bits (%.2f bits/weight)",
                           s->variants[v].count, name, moe_weight_sum_bits(&s->variants[v]));
        else
            moe_buf_printf(out, " and %s bits (%.2f)", name, moe_weight_sum_bits(&s->variants[v]));
    }
    moe_buf_printf(out, ", dense %.2f bits/weight", moe_weight_sum_bits(&s->dense));
}

static void sum_line(struct moe_buf *out, const char *name, const char *method,
                     const struct moe_weight_sum *sum)
{
    char raw[32], stored[32];
    moe_buf_printf(out, "  %-12s %-8s %7" PRIu64 " %11.2f %8.2f %12s %12s\n", name, method,
                   sum->count, moe_weight_sum_bits(sum), moe_weight_sum_nominal_bits(sum),
                   moe_format_bytes(sum->raw_bytes, raw),
                   moe_format_bytes(sum->stored_bytes, stored));
}

static void tensor_lines(const struct moe_pack *pack, struct moe_buf *out)
{
    moe_buf_printf(out, "\n  %-28s %-6s %6s %18s %14s\n", "tensor", "layout", "group", "shape",
                   "stored bytes");
    for (uint32_t i = 0; i < moe_pack_n_tensors(pack); i++) {
        const struct moe_pack_tensor *t = moe_pack_tensor_at(pack, i);
        char shape[32];
        if (t->is_vector)
            snprintf(shape, sizeof shape, "%" PRIu32, t->rows);
        else
            snprintf(shape, sizeof shape, "%" PRIu32 " x %" PRIu32, t->rows, t->cols);
        moe_buf_printf(out, "  %-28s %-6s %6" PRIu32 " %18s %14" PRIu64 "\n", t->name,
                       moe_layout_name(t->layout.kind), t->layout.group, shape,
                       t->extent.stored_bytes);
    }
}

void moe_show_pack(const struct moe_pack *pack, const struct moe_pack_summary *s, bool tensors,
                   struct moe_buf *out)
{
    const struct moe_config *c = &s->config;
    char bytes[32];
    moe_buf_printf(out, "%s: %s, version %d\n", moe_pack_path(pack),
                   moe_format_bytes(moe_pack_file_bytes(pack), bytes), MOE_PACK_VERSION);
    moe_buf_printf(out,
                   "  model      %s, %" PRIu32 " layers, hidden %" PRIu32 ", vocabulary %" PRIu32
                   ", context %" PRIu32 "\n",
                   c->family, c->n_layers, c->hidden, c->vocab, c->context_max);
    if (c->n_experts) {
        moe_buf_printf(out,
                       "  experts    %" PRIu32 " in each of %" PRIu32 " layers, %" PRIu32
                       " used per token, width %" PRIu32,
                       c->n_experts, s->n_moe_layers, c->top_k, c->expert_ff);
        if (c->shared_ff)
            moe_buf_printf(out, ", shared expert %" PRIu32, c->shared_ff);
        moe_buf_text(out, "\n");
    }
    moe_buf_printf(out, "  tokenizer  %s, chat template: %s\n",
                   moe_format_bytes(s->tokenizer_bytes, bytes),
                   s->has_chat_template ? "yes" : "no");
    moe_buf_printf(out, "  identity   pack %016" PRIx64 ", source %016" PRIx64 "\n",
                   moe_pack_fingerprint(pack), moe_pack_source_fingerprint(pack));
    moe_buf_printf(out, "\n  %-12s %-8s %7s %11s %8s %12s %12s\n", "weights", "method", "count",
                   "bits/weight", "nominal", "in memory", "in the file");
    sum_line(out, "dense", "", &s->dense);
    for (uint32_t v = 0; v < moe_pack_n_variants(pack); v++) {
        const struct moe_pack_variant *variant = moe_pack_variant_at(pack, v);
        char name[MOE_PACK_NAME_BYTES + 8];
        snprintf(name, sizeof name, "experts %s", variant->name);
        sum_line(out, name, variant->method, &s->variants[v]);
    }
    if (tensors)
        tensor_lines(pack, out);
}

/* ---- For scripts ---- */

static json_t *hex(uint64_t value)
{
    char text[17];
    snprintf(text, sizeof text, "%016" PRIx64, value);
    return json_string(text);
}

static json_t *sum_json(const struct moe_weight_sum *sum)
{
    return json_pack("{s:I, s:I, s:f, s:f, s:I, s:I}", "count", (json_int_t)sum->count, "weights",
                     (json_int_t)sum->weights, "bits_per_weight", moe_weight_sum_bits(sum),
                     "nominal_bits_per_weight", moe_weight_sum_nominal_bits(sum), "memory_bytes",
                     (json_int_t)sum->raw_bytes, "file_bytes", (json_int_t)sum->stored_bytes);
}

static json_t *variants_json(const struct moe_pack *pack, const struct moe_pack_summary *s)
{
    json_t *list = json_array();
    for (uint32_t v = 0; v < moe_pack_n_variants(pack); v++) {
        const struct moe_pack_variant *variant = moe_pack_variant_at(pack, v);
        json_t *item = sum_json(&s->variants[v]);
        json_object_set_new(item, "name", json_string(variant->name));
        json_object_set_new(item, "method", json_string(variant->method));
        json_object_set_new(item, "map", moe_show_pack_bits_json(pack, s, v));
        json_array_append_new(list, item);
    }
    return list;
}

static json_t *tensors_json(const struct moe_pack *pack)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < moe_pack_n_tensors(pack); i++) {
        const struct moe_pack_tensor *t = moe_pack_tensor_at(pack, i);
        json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:I, s:I, s:I}", "name", t->name,
                                              "layout", moe_layout_name(t->layout.kind), "group",
                                              (json_int_t)t->layout.group, "rows",
                                              (json_int_t)t->rows, "cols", (json_int_t)t->cols,
                                              "file_bytes", (json_int_t)t->extent.stored_bytes));
    }
    return list;
}

/* A JSON section as a value of its own; null when it is none. */
static json_t *section_json(const struct moe_pack *pack, enum moe_pack_section id)
{
    uint64_t n;
    const uint8_t *text = moe_pack_section(pack, id, &n);
    json_t *json = moe_json_parse("", text, n, NULL);
    return json ? json : json_null();
}

int moe_show_pack_json(const struct moe_pack *pack, const struct moe_pack_summary *s, bool tensors,
                       struct moe_buf *out, struct moe_err *err)
{
    json_t *json = json_pack("{s:i, s:I, s:o, s:o, s:o, s:o, s:I, s:b, s:o, s:o, s:o}", "version",
                             MOE_PACK_VERSION, "file_bytes", (json_int_t)moe_pack_file_bytes(pack),
                             "fingerprint", hex(moe_pack_fingerprint(pack)), "source_fingerprint",
                             hex(moe_pack_source_fingerprint(pack)), "model",
                             section_json(pack, MOE_PACK_MODEL), "provenance",
                             section_json(pack, MOE_PACK_PROVENANCE), "tokenizer_bytes",
                             (json_int_t)s->tokenizer_bytes, "chat_template", s->has_chat_template,
                             "n_moe_layers", json_integer(s->n_moe_layers), "dense",
                             sum_json(&s->dense), "variants", variants_json(pack, s));
    if (json && tensors)
        json_object_set_new(json, "tensors", tensors_json(pack));
    char *text = json ? json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) : NULL;
    if (text) {
        moe_buf_text(out, text);
        moe_buf_text(out, "\n");
    }
    json_decref(json);
    free(text);
    return text && !out->failed ? MOE_OK : moe_fail(err, MOE_ERR_MEMORY, "out of memory");
}
