/* What a pack holds, and what a conversion did. */

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "fmt/json_scan.h"
#include "pack/convert.h"
#include "pack/pack.h"
#include "show/show.h"

enum { DIGITS = 6 /* of what is measured in bits, for scripts */ };

/* ---- Figures ---- */

static void add_extent(struct moe_weight_sum *sum, const struct moe_extent *e)
{
    sum->raw_bytes += e->raw_bytes;
    sum->paged_bytes += moe_round_up(e->raw_bytes, MOE_PACK_ALIGN);
    sum->stored_bytes += moe_round_up(e->stored_bytes, MOE_PACK_ALIGN);
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

/* The bits of an expert's matrices, or their types. False where the expert is not there. */
static bool bits_at(const struct moe_pack *pack, const struct moe_expert_extent *e, bool types,
                    struct moe_bits *out)
{
    const struct moe_expert_class *class_ =
        e->present ? moe_pack_class_at(pack, e->class_index) : NULL;
    return class_ && (types ? moe_class_types : moe_class_bits)(class_, out);
}

/* Whether the expert differs from the first one seen in its bits or types. */
static bool has_other_bits(const struct moe_pack *pack, const struct moe_expert_extent *e,
                           struct moe_bits *first)
{
    struct moe_bits bits;
    if (!bits_at(pack, e, true, &bits))
        return false;
    if (first->down == 0)
        *first = bits;
    return !moe_bits_equal(bits, *first);
}

/* Whether the tensor is of a layer that drafts. */
static bool is_ahead(const struct moe_config *c, const char *tensor)
{
    unsigned layer;
    return sscanf(tensor, "layers.%u.", &layer) == 1 && layer >= c->n_layers;
}

int moe_pack_summarize(struct moe_pack *pack, struct moe_pack_summary *out, struct moe_err *err)
{
    *out = (struct moe_pack_summary){.pack = pack};
    uint64_t n;
    const uint8_t *model = moe_pack_section(pack, MOE_PACK_MODEL, &n);
    MOE_TRY(moe_config_read(&out->config, moe_pack_path(pack), model, n, err));
    out->n_moe_layers = out->config.n_moe_layers;
    for (uint32_t i = 0; i < moe_pack_n_tensors(pack); i++) {
        const struct moe_pack_tensor *t = moe_pack_tensor_at(pack, i);
        struct moe_weight_sum *sum = is_ahead(&out->config, t->name) ? &out->ahead : &out->dense;
        sum->count++;
        add_weights(sum, t->layout, t->rows, t->cols);
        add_extent(sum, &t->extent);
    }
    for (uint32_t v = 0; v < moe_pack_n_variants(pack); v++) {
        struct moe_bits first = {0};
        for (uint32_t layer = 0; layer < moe_pack_n_layers(pack); layer++)
            for (uint32_t e = 0; e < moe_pack_n_experts(pack); e++) {
                const struct moe_expert_extent *x = moe_pack_expert(pack, layer, e, v);
                add_expert(&out->variants[v], pack, x);
                out->mixed[v] |= has_other_bits(pack, x, &first);
            }
        for (uint32_t i = 0; i < out->config.n_ahead * moe_pack_n_experts(pack); i++)
            add_expert(&out->ahead, pack,
                       moe_pack_expert(pack, out->config.n_layers + i / moe_pack_n_experts(pack),
                                       i % moe_pack_n_experts(pack), v));
    }
    moe_pack_section(pack, MOE_PACK_TOKENIZER, &out->tokenizer_bytes);
    moe_pack_section(pack, MOE_PACK_CHAT, &n);
    out->has_chat_template = n > 0;
    out->synthesized = moe_pack_synthesized(pack);
    const uint8_t *sampling = moe_pack_section(pack, MOE_PACK_SAMPLING, &n);
    return moe_sampling_parse(&out->sampling, moe_pack_path(pack), sampling, n, err);
}

int moe_pack_summary_open(struct moe_pack_summary **out, const char *path, struct moe_err *err)
{
    struct moe_pack *pack = NULL;
    struct moe_pack_summary *s = *out = moe_alloc(1, sizeof *s, err);
    if (!s)
        return MOE_ERR_MEMORY;
    MOE_TRY(moe_pack_open(&pack, path, err));
    return moe_pack_summarize(pack, s, err);
}

void moe_pack_summary_close(struct moe_pack_summary *s)
{
    if (s)
        moe_pack_close(s->pack);
    free(s);
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

/* Appends "12 layers"; of a model with an encoder "6 + 6 layers (encoder + decoder)". n: all, or
 * all of a kind; n_encoder: those of the encoder. */
static void say_layers(const struct moe_config *c, uint32_t n, uint32_t n_encoder,
                       const struct moe_loop *loop, struct moe_buf *out)
{
    if (loop->n)
        moe_buf_printf(out, "%" PRIu32 " layers in %" PRIu32 " visits", moe_loop_owners(loop, n),
                       n);
    else if (c->n_encoder)
        moe_buf_printf(out, "%" PRIu32 " + %" PRIu32 " layers (encoder + decoder)", n_encoder,
                       n - n_encoder);
    else
        moe_buf_printf(out, "%" PRIu32 " layers", n);
}

void moe_show_pack_line(const struct moe_pack_summary *s, struct moe_buf *out)
{
    say_layers(&s->config, s->config.n_layers, s->config.n_encoder, &s->config.loop, out);
    for (uint32_t v = 0; v < moe_pack_n_variants(s->pack); v++) {
        const char *name = moe_show_variant_bits(s->pack, v);
        if (v == 0)
            moe_buf_printf(out, ", %" PRIu64 " experts at %s%s (%.2f bits/weight)",
                           s->variants[v].count, name, moe_bits_unit(name),
                           moe_weight_sum_bits(&s->variants[v]));
        else
            moe_buf_printf(out, " and %s%s (%.2f)", name, moe_bits_unit(name),
                           moe_weight_sum_bits(&s->variants[v]));
    }
    moe_buf_printf(out, ", dense %.2f bits/weight", moe_weight_sum_bits(&s->dense));
    if (s->synthesized.is)
        moe_buf_printf(out, ", drawn weights%s", s->synthesized.sparse ? " (sparse)" : "");
}

/* width: of the names' column. */
static void sum_line(struct moe_buf *out, int width, const char *name, const char *method,
                     const struct moe_weight_sum *sum)
{
    char raw[32], stored[32];
    moe_buf_printf(out, "  %-*s %-8s %7" PRIu64 " %11.2f %8.2f %12s %12s\n", width, name, method,
                   sum->count, moe_weight_sum_bits(sum), moe_weight_sum_nominal_bits(sum),
                   moe_format_bytes(sum->raw_bytes, raw),
                   moe_format_bytes(sum->stored_bytes, stored));
}

/* The stack of a tensor's layer, and the layer's number in it; NULL: it is of none, or there is but
 * one stack. */
static const char *stack_of(const struct moe_config *c, const char *tensor, uint32_t *layer)
{
    unsigned number;
    if (!c->n_encoder || sscanf(tensor, "layers.%u.", &number) != 1)
        return NULL;
    bool encoder = moe_config_in_encoder(c, number);
    *layer = encoder ? number : number - c->n_encoder;
    return encoder ? "encoder" : "decoder";
}

static void tensor_lines(const struct moe_pack *pack, const struct moe_config *c,
                         struct moe_buf *out)
{
    moe_buf_printf(out, "\n  %-28s %-6s %6s %18s %14s%s\n", "tensor", "layout", "group", "shape",
                   "stored bytes", c->n_encoder ? "  stack" : "");
    for (uint32_t i = 0; i < moe_pack_n_tensors(pack); i++) {
        const struct moe_pack_tensor *t = moe_pack_tensor_at(pack, i);
        char shape[32];
        if (t->is_vector)
            snprintf(shape, sizeof shape, "%" PRIu32, t->rows);
        else
            snprintf(shape, sizeof shape, "%" PRIu32 " x %" PRIu32, t->rows, t->cols);
        moe_buf_printf(out, "  %-28s %-6s %6" PRIu32 " %18s %14" PRIu64, t->name,
                       moe_layout_name(t->layout.kind), t->layout.group, shape,
                       t->extent.stored_bytes);
        uint32_t layer;
        const char *stack = stack_of(c, t->name, &layer);
        if (stack)
            moe_buf_printf(out, "  %s %" PRIu32, stack, layer);
        moe_buf_text(out, "\n");
    }
}

static uint32_t n_static(const struct moe_config *c)
{
    uint32_t n = 0;
    for (uint32_t layer = 0; layer < c->n_layers; layer++)
        n += c->layers[layer].static_routing;
    return n;
}

void moe_show_pack(const struct moe_pack_summary *s, bool tensors, struct moe_buf *out)
{
    const struct moe_config *c = &s->config;
    char bytes[32];
    char path[4096];
    snprintf(path, sizeof path, "%s", moe_pack_path(s->pack));
    moe_blank_line_feeds(path);
    moe_format_bytes(moe_pack_file_bytes(s->pack), bytes);
    if (moe_pack_arranger(s->pack))
        moe_buf_printf(out, "%s: a checkpoint, %s as a pack that keeps everything as it is\n", path,
                       bytes);
    else
        moe_buf_printf(out, "%s: %s, version %d\n", path, bytes, MOE_PACK_VERSION);
    moe_buf_printf(out, "  model      %s, ", c->family);
    say_layers(c, c->n_layers, c->n_encoder, &c->loop, out);
    moe_buf_printf(out, ", hidden %" PRIu32 ", vocabulary %" PRIu32 ", context %" PRIu32 "\n",
                   c->hidden, c->vocab, c->context_max);
    if (c->n_experts) {
        moe_buf_printf(out, "  experts    %" PRIu32 " in each of ", c->n_experts);
        const struct moe_loop loop = moe_config_moe_loop(c);
        say_layers(c, s->n_moe_layers, c->layers[c->n_encoder].moe_index, &loop, out);
        moe_buf_printf(out, ", %" PRIu32 " used per token, width %" PRIu32, c->top_k, c->expert_ff);
        if (c->shared_ff)
            moe_buf_printf(out, ", shared expert %" PRIu32, c->shared_ff);
        if (n_static(c))
            moe_buf_printf(out, ", in %" PRIu32 " layers chosen by the token", n_static(c));
        moe_buf_text(out, "\n");
    }
    moe_buf_printf(out, "  tokenizer  %s, chat template: %s\n",
                   moe_format_bytes(s->tokenizer_bytes, bytes),
                   s->has_chat_template ? "yes" : "no");
    struct moe_sampler_options nothing;
    moe_sampling_unsaid(&nothing);
    moe_buf_text(out, "  sampling   ");
    moe_show_sampling(&nothing, &s->sampling, out);
    moe_buf_printf(out, "\n  identity   pack %016" PRIx64 ", source %016" PRIx64 "\n",
                   moe_pack_fingerprint(s->pack), moe_pack_source_fingerprint(s->pack));
    int width = 12;
    for (uint32_t v = 0; v < moe_pack_n_variants(s->pack); v++) {
        const int takes = 8 + (int)strlen(moe_pack_variant_at(s->pack, v)->name); /* "experts " */
        width = takes > width ? takes : width;
    }
    if (s->synthesized.is)
        moe_buf_printf(out, "  weights    drawn by --synthesize%s: what it says is no text\n",
                       s->synthesized.sparse ? ", experts are holes of the file" : "");
    moe_buf_printf(out, "\n  %-*s %-8s %7s %11s %8s %12s %12s\n", width, "weights", "method",
                   "count", "bits/weight", "nominal", "in memory", "in the file");
    sum_line(out, width, "dense", "", &s->dense);
    for (uint32_t v = 0; v < moe_pack_n_variants(s->pack); v++) {
        const struct moe_pack_variant *variant = moe_pack_variant_at(s->pack, v);
        char name[MOE_NAME_BYTES + 8];
        snprintf(name, sizeof name, "experts %s", variant->name);
        sum_line(out, width, name, variant->method, &s->variants[v]);
    }
    if (s->ahead.count)
        sum_line(out, width, "drafts (MTP)", "", &s->ahead);
    for (uint32_t i = 0; i < moe_pack_n_maps(s->pack); i++) {
        moe_buf_text(out, i ? "  " : "\n  ");
        moe_show_pack_map(s->pack, i, out);
        moe_buf_text(out, "\n");
    }
    if (tensors)
        tensor_lines(s->pack, c, out);
}

void moe_show_pack_map(const struct moe_pack *pack, uint32_t i, struct moe_buf *out)
{
    const struct moe_pack_map map = moe_pack_map_at(pack, i);
    const bool taken = moe_pack_map_taken(pack) == i;
    const char *unit = map.points ? " points" : "%";
    char bytes[32];
    moe_buf_printf(out, "map for a tolerance of %g%s%s: experts of %s, %+.2f%s on its texts",
                   map.tolerance, unit, map.points ? "" : " of the nats",
                   moe_format_bytes(moe_pack_map_bytes(pack, taken ? UINT32_MAX : i), bytes),
                   map.loss, unit);
    if (map.checked)
        moe_buf_printf(out, ", %+.2f%s on others", map.check, unit);
}

/* ---- For scripts ---- */

static void emit_maps(struct moe_emit *e, const struct moe_pack *pack)
{
    moe_emit_open_list(e, "maps");
    for (uint32_t i = 0; i < moe_pack_n_maps(pack); i++) {
        const struct moe_pack_map map = moe_pack_map_at(pack, i);
        moe_emit_open_map(e, NULL);
        moe_emit_real(e, "tolerance", DIGITS, map.tolerance);
        moe_emit_text(e, "unit", map.points ? "points" : "percent");
        moe_emit_u64(e, "memory_bytes", moe_pack_map_bytes(pack, i));
        moe_emit_real(e, "loss", DIGITS, map.loss);
        if (map.checked)
            moe_emit_real(e, "check", DIGITS, map.check);
        moe_emit_close(e);
    }
    moe_emit_close(e);
}

/* The members of a sum, in a mapping that is open. */
static void emit_sum(struct moe_emit *e, const struct moe_weight_sum *sum)
{
    moe_emit_u64(e, "count", sum->count);
    moe_emit_u64(e, "weights", sum->weights);
    moe_emit_real(e, "bits_per_weight", DIGITS, moe_weight_sum_bits(sum));
    moe_emit_real(e, "nominal_bits_per_weight", DIGITS, moe_weight_sum_nominal_bits(sum));
    moe_emit_u64(e, "memory_bytes", sum->raw_bytes);
    moe_emit_u64(e, "file_bytes", sum->stored_bytes);
}

static void emit_variants(struct moe_emit *e, const struct moe_pack_summary *s)
{
    moe_emit_open_list(e, "variants");
    for (uint32_t v = 0; v < moe_pack_n_variants(s->pack); v++) {
        const struct moe_pack_variant *variant = moe_pack_variant_at(s->pack, v);
        moe_emit_open_map(e, NULL);
        emit_sum(e, &s->variants[v]);
        moe_emit_text(e, "name", variant->name);
        moe_emit_text(e, "method", variant->method);
        moe_show_pack_bits_json(s, v, e);
        moe_emit_close(e);
    }
    moe_emit_close(e);
}

static void emit_tensors(struct moe_emit *e, const struct moe_pack *pack,
                         const struct moe_config *c)
{
    moe_emit_open_list(e, "tensors");
    for (uint32_t i = 0; i < moe_pack_n_tensors(pack); i++) {
        const struct moe_pack_tensor *t = moe_pack_tensor_at(pack, i);
        moe_emit_open_map(e, NULL);
        moe_emit_text(e, "name", t->name);
        moe_emit_text(e, "layout", moe_layout_name(t->layout.kind));
        moe_emit_u64(e, "group", t->layout.group);
        moe_emit_u64(e, "rows", t->rows);
        moe_emit_u64(e, "cols", t->cols);
        moe_emit_u64(e, "file_bytes", t->extent.stored_bytes);
        uint32_t layer;
        const char *stack = stack_of(c, t->name, &layer);
        if (stack) {
            moe_emit_text(e, "stack", stack);
            moe_emit_u64(e, "stack_layer", layer);
        }
        moe_emit_close(e);
    }
    moe_emit_close(e);
}

/* The next value as a member, in the document's own lines. */
static void emit_value(struct moe_emit *e, const char *key, struct moe_json_scan *s)
{
    enum moe_json_kind kind = moe_json_scan_peek(s);
    struct moe_buf name = {0};
    uint64_t n;
    if (e->depth < MOE_EMIT_MAX_DEPTH && (kind == MOE_JSON_OBJECT || kind == MOE_JSON_ARRAY)) {
        if (kind == MOE_JSON_OBJECT)
            moe_emit_open_map(e, key);
        else
            moe_emit_open_list(e, key);
        moe_json_scan_enter(s);
        while (moe_json_scan_next(s, &name))
            emit_value(e, (const char *)name.data, s);
        moe_emit_close(e);
        moe_buf_release(&name);
        return;
    }
    const char *text = moe_json_scan_raw(s, &n);
    char number[64];
    snprintf(number, sizeof number, "%.*s", (int)(n < sizeof number ? n : 0), text);
    if (kind == MOE_JSON_NUMBER && strpbrk(number, ".eE"))
        moe_emit_real(e, key, DIGITS, strtod(number, NULL));
    else
        moe_emit_json(e, key, text, n);
}

/* A JSON section as a value of its own; null when it is none. */
static int emit_section(struct moe_emit *e, const char *key, const struct moe_pack *pack,
                        enum moe_pack_section id, struct moe_err *err)
{
    uint64_t n;
    const uint8_t *text = moe_pack_section(pack, id, &n);
    struct moe_json_scan s;
    if (n == 0 || text[0] != '{' || !moe_json_is_sound(text, n)) {
        moe_emit_null(e, key);
        return MOE_OK;
    }
    moe_json_scan_begin(&s, moe_pack_path(pack), text, n, false, err);
    emit_value(e, key, &s);
    return moe_json_scan_end(&s);
}

int moe_show_pack_json(const struct moe_pack_summary *s, bool tensors, struct moe_buf *out,
                       struct moe_err *err)
{
    struct moe_emit e;
    moe_emit_begin_json(&e, out, MOE_EMIT_INDENTED);
    moe_emit_u64(&e, "version", MOE_PACK_VERSION);
    moe_emit_u64(&e, "file_bytes", moe_pack_file_bytes(s->pack));
    moe_emit_fingerprint(&e, "fingerprint", moe_pack_fingerprint(s->pack));
    moe_emit_fingerprint(&e, "source_fingerprint", moe_pack_source_fingerprint(s->pack));
    int status = emit_section(&e, "model", s->pack, MOE_PACK_MODEL, err);
    if (status == MOE_OK)
        status = emit_section(&e, "provenance", s->pack, MOE_PACK_PROVENANCE, err);
    if (status == MOE_OK)
        status = emit_section(&e, "sampling", s->pack, MOE_PACK_SAMPLING, err);
    if (s->synthesized.is)
        moe_emit_bool(&e, "synthesized", true);
    moe_emit_u64(&e, "tokenizer_bytes", s->tokenizer_bytes);
    moe_emit_bool(&e, "chat_template", s->has_chat_template);
    moe_emit_u64(&e, "n_moe_layers", s->n_moe_layers);
    if (s->config.n_encoder)
        moe_emit_u64(&e, "n_moe_encoder_layers", s->config.layers[s->config.n_encoder].moe_index);
    moe_emit_open_map(&e, "dense");
    emit_sum(&e, &s->dense);
    moe_emit_close(&e);
    emit_variants(&e, s);
    if (s->ahead.count) {
        moe_emit_open_map(&e, "drafts");
        emit_sum(&e, &s->ahead);
        moe_emit_close(&e);
    }
    if (moe_pack_n_maps(s->pack))
        emit_maps(&e, s->pack);
    if (tensors)
        emit_tensors(&e, s->pack, &s->config);
    return status == MOE_OK ? moe_emit_end(&e, err) : status;
}

/* Which bits each expert has, as a picture and as a list. */

enum {
    PER_LINE = 64, /* experts; with their gaps and the layer's number a line has 79 columns, */
    MOST_PER_LINE = 128, /* or 151 */
    PER_GROUP = 8,
    MAX_KINDS = 36, /* of bits: six by six */
};

/* The bits that occur, best first, and how each is drawn: a bitwidth of one digit as itself, others
 * as letters. */
struct key {
    bool has_gate; /* the experts have one */
    bool types;    /* some of as many bits are of different types, which it tells apart */
    int n;
    struct moe_bits bits[MAX_KINDS];
    uint64_t count[MAX_KINDS];
    char sign[MAX_KINDS];
};

/* The place of the bits in the key; key->n: they are not in it. */
static int find_bits(const struct key *key, struct moe_bits bits)
{
    int i = 0;
    while (i < key->n && !moe_bits_equal(key->bits[i], bits))
        i++;
    return i;
}

static void add_bits(struct key *key, struct moe_bits bits)
{
    int at = find_bits(key, bits);
    if (at < key->n) {
        key->count[at]++;
        return;
    }
    if (key->n == MAX_KINDS)
        return;
    for (at = key->n++; at > 0 && moe_bits_sum(bits, key->has_gate) >
                                      moe_bits_sum(key->bits[at - 1], key->has_gate);
         at--) {
        key->bits[at] = key->bits[at - 1];
        key->count[at] = key->count[at - 1];
    }
    key->bits[at] = bits;
    key->count[at] = 1;
}

/* Whether some experts of the variant have as many bits as others, and other types. */
static bool has_types(const struct moe_pack *pack, uint32_t variant)
{
    struct moe_bits seen[MAX_KINDS][2];
    int n = 0;
    for (uint32_t layer = 0; layer < moe_pack_n_layers(pack); layer++)
        for (uint32_t e = 0; e < moe_pack_n_experts(pack); e++) {
            const struct moe_expert_extent *x = moe_pack_expert(pack, layer, e, variant);
            struct moe_bits bits, types;
            int i = 0;
            if (!bits_at(pack, x, false, &bits) || !bits_at(pack, x, true, &types))
                continue;
            while (i < n && !moe_bits_equal(seen[i][0], bits))
                i++;
            if (i < n && !moe_bits_equal(seen[i][1], types))
                return true;
            if (i == n && n < MAX_KINDS) {
                seen[n][0] = bits;
                seen[n++][1] = types;
            }
        }
    return false;
}

static void make_key(struct key *key, const struct moe_pack *pack, uint32_t variant)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJ";
    struct moe_bits bits;
    int n_letters = 0;
    *key = (struct key){.has_gate = true, .types = has_types(pack, variant)};
    for (uint32_t i = 0; i < moe_pack_n_classes(pack); i++)
        key->has_gate &= moe_class_has_gate(moe_pack_class_at(pack, i));
    for (uint32_t layer = 0; layer < moe_pack_n_layers(pack); layer++)
        for (uint32_t e = 0; e < moe_pack_n_experts(pack); e++)
            if (bits_at(pack, moe_pack_expert(pack, layer, e, variant), key->types, &bits))
                add_bits(key, bits);
    for (int i = 0; i < key->n; i++) {
        char name[MOE_BITS_BYTES];
        moe_format_bits(key->bits[i], name);
        key->sign[i] = strlen(name) == 1 ? name[0] : letters[n_letters++];
    }
}

/* ---- The picture ---- */

/* From warm to cold in the 256 colours of terminals, dark letters on them; the last for all that
 * follow. */
static const uint8_t shades[] = {209, 222, 151, 117, 147, 250};

static int shade_of(int kind)
{
    int n = sizeof shades;
    return shades[kind < n ? kind : n - 1];
}

static void draw_sign(struct moe_buf *out, const struct key *key, int kind,
                      struct moe_screen screen)
{
    char sign = kind < key->n ? key->sign[kind] : '.';
    if (screen.colour && kind < key->n)
        moe_buf_printf(out, "\033[30;48;5;%dm%c\033[0m", shade_of(kind), sign);
    else
        moe_buf_printf(out, "%c", sign);
}

static void draw_layer(struct moe_buf *out, const struct moe_pack *pack, uint32_t layer,
                       uint32_t variant, const struct key *key, struct moe_screen screen)
{
    uint32_t n = moe_pack_n_experts(pack),
             per_line = screen.columns >= 80 ? PER_LINE : PER_LINE / 2;
    if (n > PER_LINE && screen.columns > 151)
        per_line = MOST_PER_LINE;
    for (uint32_t first = 0; first < n; first += per_line) {
        if (first == 0)
            moe_buf_printf(out, "  %4" PRIu32 " ", layer);
        else
            moe_buf_printf(out, "  %4s ", "");
        for (uint32_t e = first; e < n && e < first + per_line; e++) {
            struct moe_bits bits;
            bool there = bits_at(pack, moe_pack_expert(pack, layer, e, variant), key->types, &bits);
            if (e % PER_GROUP == 0)
                moe_buf_text(out, " ");
            draw_sign(out, key, there ? find_bits(key, bits) : key->n, screen);
        }
        moe_buf_text(out, "\n");
    }
}

static void count_layer(struct moe_buf *out, const struct moe_pack *pack, uint32_t layer,
                        uint32_t variant, const struct key *key)
{
    moe_buf_printf(out, "  %4" PRIu32 " ", layer);
    for (int kind = 0; kind < key->n; kind++) {
        struct moe_bits bits;
        uint32_t n = 0;
        char name[MOE_BITS_BYTES];
        for (uint32_t e = 0; e < moe_pack_n_experts(pack); e++)
            n += bits_at(pack, moe_pack_expert(pack, layer, e, variant), key->types, &bits) &&
                 moe_bits_equal(bits, key->bits[kind]);
        moe_format_bits(key->bits[kind], name);
        moe_buf_printf(out, "%s%" PRIu32 " at %s", kind ? ", " : " ", n, name);
    }
    moe_buf_text(out, "\n");
}

static void draw_key(struct moe_buf *out, const struct key *key, bool signs,
                     struct moe_screen screen)
{
    moe_buf_text(out, "  bits  ");
    for (int kind = 0; kind < key->n; kind++) {
        char name[MOE_BITS_BYTES];
        moe_format_bits(key->bits[kind], name);
        if (kind > 0)
            moe_buf_text(out, ", ");
        if (signs)
            draw_sign(out, key, kind, screen);
        if (!signs || strlen(name) > 1)
            moe_buf_printf(out, "%s%s", signs ? " = " : "", name);
        moe_buf_printf(out, ": %" PRIu64 " expert%s", key->count[kind],
                       key->count[kind] == 1 ? "" : "s");
    }
    moe_buf_text(out, "\n");
}

void moe_show_pack_bits(const struct moe_pack_summary *s, struct moe_screen screen,
                        struct moe_buf *out)
{
    bool drawn = moe_pack_n_experts(s->pack) <= MOE_SHOW_DRAWN;
    for (uint32_t v = 0; v < moe_pack_n_variants(s->pack); v++) {
        struct key key;
        if (!s->mixed[v])
            continue;
        make_key(&key, s->pack, v);
        moe_buf_printf(out, "\n  experts %s: bits of each, by layer\n",
                       moe_pack_variant_at(s->pack, v)->name);
        for (uint32_t layer = 0; layer < moe_pack_n_layers(s->pack); layer++) {
            if (s->config.n_encoder && (layer == 0 || layer == s->config.n_encoder))
                moe_buf_printf(out, "  %s\n", layer ? "decoder" : "encoder");
            if (moe_pack_usable_variant(s->pack, layer, 0, v) == UINT32_MAX)
                continue;
            if (drawn)
                draw_layer(out, s->pack, layer, v, &key, screen);
            else
                count_layer(out, s->pack, layer, v, &key);
        }
        draw_key(out, &key, drawn, screen);
    }
}

/* ---- For scripts ---- */

void moe_show_pack_bits_json(const struct moe_pack_summary *s, uint32_t variant, struct moe_emit *e)
{
    if (!s->mixed[variant]) {
        moe_emit_null(e, "map");
        return;
    }
    const bool types = has_types(s->pack, variant);
    moe_emit_open_list(e, "map");
    for (uint32_t layer = 0; layer < moe_pack_n_layers(s->pack); layer++) {
        if (moe_pack_usable_variant(s->pack, layer, 0, variant) == UINT32_MAX)
            continue;
        moe_emit_open_map(e, NULL);
        moe_emit_u64(e, "layer", layer);
        moe_emit_open_list(e, "bits");
        for (uint32_t i = 0; i < moe_pack_n_experts(s->pack); i++) {
            struct moe_bits bits;
            char name[MOE_BITS_BYTES];
            if (bits_at(s->pack, moe_pack_expert(s->pack, layer, i, variant), types, &bits)) {
                moe_format_bits(bits, name);
                moe_emit_text(e, NULL, name);
            } else {
                moe_emit_null(e, NULL);
            }
        }
        moe_emit_close(e);
        moe_emit_close(e);
    }
    moe_emit_close(e);
}

/* ---- Conversions ---- */

/* Two digits, however small: rounded scales cost some thousandths of a percent. */
static void put_error(const struct moe_quant_error *error, struct moe_buf *out)
{
    double share = error->sum_squared_weight > 0
                       ? sqrt(error->sum_squared_error / error->sum_squared_weight)
                       : 0;
    moe_buf_printf(out, "error %.2g%%", 100 * share);
}

static void put_carried(const struct moe_convert_report *report, const char *path,
                        struct moe_buf *out)
{
    if (report->carried + report->requantized > 0)
        moe_buf_printf(out,
                       "%s: of the source's quantized weights %" PRIu64 " carried over, %" PRIu64
                       " quantized again\n",
                       path, report->carried, report->requantized);
}

/* Whether matrices of the same type were rounded to another layout of as many bits, too. */
static bool has_other_kind(const struct moe_convert_report *report, const struct moe_rounding *r)
{
    bool has = false;
    for (uint32_t i = 0; i < report->n_roundings; i++)
        has |= strcmp(report->roundings[i].from, r->from) == 0 &&
               report->roundings[i].kind != r->kind &&
               moe_layout_bits(report->roundings[i].kind) == moe_layout_bits(r->kind);
    return has;
}

static void put_rounding(const struct moe_convert_report *report, const struct moe_rounding *r,
                         const char *path, struct moe_buf *out)
{
    moe_buf_printf(out, "%s: ", path);
    for (uint32_t i = 0; i < r->n_names; i++)
        moe_buf_printf(out, "%s%" PRIu32 " %s", i ? ", " : "", r->names[i].n, r->names[i].name);
    if (r->n_others)
        moe_buf_printf(out, ", %" PRIu32 " others", r->n_others);
    if (has_other_kind(report, r))
        moe_buf_printf(out, ": %s -> %s, ", r->from, moe_layout_name(r->kind));
    else
        moe_buf_printf(out, ": %s -> %d bits, ", r->from, moe_layout_bits(r->kind));
    put_error(&r->error, out);
    moe_buf_text(out, "\n");
}

void moe_show_source(const struct moe_convert_report *report, const char *path, struct moe_buf *out)
{
    put_carried(report, path, out);
    for (uint32_t i = 0; i < report->n_roundings; i++)
        put_rounding(report, &report->roundings[i], path, out);
    if (report->n_beyond)
        moe_buf_printf(out,
                       "%s: left out: %" PRIu64 " tensors of layers that predict further tokens "
                       "(MTP)\n",
                       path, report->n_beyond);
    if (report->n_visual)
        moe_buf_printf(out, "%s: left out: %" PRIu64 " tensors of the part that sees images\n",
                       path, report->n_visual);
}
