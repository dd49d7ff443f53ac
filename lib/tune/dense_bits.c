/* The dense part rounded to fewer bits in memory, to measure what that costs. */
#include "tune/dense_bits.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fmt/json_scan.h"

/* Takes method and group from the object that comes next; `whole`: of the whole provenance, whose
 * member "requantized" knows better. *type: the type that the dense part was asked to have, 0 for
 * none. */
static void read_rounding(struct moe_json_scan *s, bool whole, struct moe_dense_rounding *how,
                          int *type)
{
    struct moe_buf text = {0};
    bool requantized = false;
    *how = (struct moe_dense_rounding){moe_quant_method_find("hqq"), 64, NULL};
    moe_json_scan_enter(s);
    while (moe_json_scan_next(s, &text)) {
        const char *key = (const char *)text.data;
        enum moe_json_kind kind = moe_json_scan_peek(s);
        uint64_t group = 0;
        if (whole && strcmp(key, "requantized") == 0 && kind == MOE_JSON_OBJECT) {
            requantized = true;
            read_rounding(s, false, how, type);
        } else if (whole && strcmp(key, "dense") == 0 && kind == MOE_JSON_TEXT) {
            moe_json_scan_text(s, &text);
            *type = s->status == MOE_OK ? moe_parse_width((const char *)text.data) : 0;
        } else if (!requantized && strcmp(key, "method") == 0 && kind == MOE_JSON_TEXT) {
            moe_json_scan_text(s, &text);
            if (s->status == MOE_OK && moe_quant_method_find((const char *)text.data))
                how->method = moe_quant_method_find((const char *)text.data);
        } else if (!requantized && strcmp(key, "group") == 0 && kind == MOE_JSON_NUMBER) {
            if (moe_json_scan_u64(s, &group) && group <= MOE_MAX_GROUP)
                how->group = (uint32_t)group;
        } else {
            moe_json_scan_skip(s);
        }
    }
    moe_buf_release(&text);
}

static int read_provenance(const struct moe_pack *pack, struct moe_dense_rounding *out, int *type,
                           struct moe_err *err)
{
    struct moe_json_scan s;
    uint64_t n;
    const uint8_t *text = moe_pack_section(pack, MOE_PACK_PROVENANCE, &n);
    bool is_ours = n > 0 && text[0] == '{' && moe_json_is_sound(text, n);
    moe_json_scan_begin(&s, moe_pack_path(pack), is_ours ? (const char *)text : "{}",
                        is_ours ? n : 2, false, err);
    *type = 0;
    read_rounding(&s, true, out, type);
    return moe_json_scan_end(&s);
}

int moe_dense_rounding_of(const struct moe_pack *pack, struct moe_dense_rounding *out,
                          struct moe_err *err)
{
    int ignored;
    return read_provenance(pack, out, &ignored, err);
}

/* ---- The tensors of the dense part ---- */

/* Starts zeroed; next_tensor sets it to each in turn. */
struct tensor {
    uint32_t next_role, next_layer;
    uint32_t role, layer, rows, cols;
    struct moe_mat *mat; /* in the model; NULL: a vector */
    bool governed;       /* by --dense */
};

static bool next_tensor(const struct moe_model *m, struct tensor *t)
{
    for (; t->next_layer < m->config.n_layers; t->next_layer++, t->next_role = 0)
        while (t->next_role < MOE_T_N_ROLES) {
            const struct moe_tensor_spec *spec = moe_tensor_spec(t->next_role);
            t->role = t->next_role++;
            t->layer = t->next_layer;
            if ((!spec->per_layer && t->layer > 0) ||
                !moe_tensor_shape(&m->config, t->role, t->layer, &t->rows, &t->cols))
                continue;
            bool vector = spec->kind == MOE_KIND_VECTOR;
            t->mat = vector ? NULL : moe_model_matrix(m, t->role, t->layer);
            t->governed = spec->kind == MOE_KIND_DENSE;
            return true;
        }
    return false;
}

static uint32_t bits_of(const struct moe_mat *mat)
{
    return (uint32_t)moe_layout_bits(mat->layout.kind);
}

uint32_t moe_dense_bits(const struct moe_model *m)
{
    uint32_t most = 0;
    for (struct tensor t = {0}; next_tensor(m, &t);)
        if (t.governed && bits_of(t.mat) > most)
            most = bits_of(t.mat);
    return most;
}

int moe_dense_bits_of_pack(const struct moe_pack *pack, uint32_t *bits, struct moe_err *err)
{
    struct moe_dense_rounding ignored;
    uint32_t most = 0;
    int type;
    for (uint32_t layer = 0; layer < moe_pack_n_layers(pack); layer++)
        for (uint32_t role = 0; role < MOE_T_N_ROLES; role++) {
            char name[MOE_NAME_BYTES];
            moe_tensor_pack_name(role, layer, name);
            const struct moe_pack_tensor *t = moe_pack_tensor_find(pack, name);
            if (!t || moe_tensor_spec(role)->kind != MOE_KIND_DENSE)
                continue;
            const uint32_t has = (uint32_t)moe_layout_bits(t->layout.kind);
            most = has > most ? has : most;
        }
    MOE_TRY(read_provenance(pack, &ignored, &type, err));
    *bits = moe_bits_kind(type) && moe_bits_width(type) == (int)most ? (uint32_t)type : most;
    return MOE_OK;
}

/* The layout of the tensor's matrix if it gets these bits: another where it has more of them or,
 * with as many, is not of the type that is named. Both kinds of 16 bits take as many bytes. */
static struct moe_layout layout_at(const struct tensor *t, const struct moe_quant_method *method,
                                   uint32_t group, uint32_t bits)
{
    const struct moe_layout has = t->mat->layout,
                            lower = moe_quant_layout_of(method, (int)bits, t->cols, group,
                                                        MOE_LAYOUT_BF16);
    const int width = moe_bits_width((int)bits), more = moe_layout_bits(has.kind) - width;
    const bool other = more == 0 && moe_bits_kind((int)bits) && has.kind != lower.kind &&
                       has.kind != moe_bits_kind((int)bits);
    return t->governed && (more > 0 || other) ? lower : has;
}

static bool changes(const struct tensor *t, const struct moe_quant_method *method, uint32_t group,
                    uint32_t bits)
{
    return t->mat && layout_at(t, method, group, bits).kind != t->mat->layout.kind;
}

bool moe_dense_has(const struct moe_model *m, const struct moe_dense_rounding *how, uint32_t bits)
{
    bool has = true;
    for (struct tensor t = {0}; has && next_tensor(m, &t);)
        has = !changes(&t, how->method, how->group, bits);
    return has;
}

static uint64_t bytes_at(const struct tensor *t, const struct moe_dense_rounding *how,
                         uint32_t bits)
{
    return t->mat ? moe_layout_bytes(layout_at(t, how->method, how->group, bits), t->rows, t->cols)
                  : t->rows * sizeof(float);
}

uint64_t moe_dense_bytes(const struct moe_model *m, const struct moe_dense_rounding *how,
                         uint32_t bits, uint32_t align)
{
    uint64_t sum = 0;
    for (struct tensor t = {0}; next_tensor(m, &t);)
        sum += moe_round_up(bytes_at(&t, how, bits), align);
    return sum;
}

uint64_t moe_dense_file_bytes(const struct moe_model *m)
{
    uint64_t sum = 0;
    for (struct tensor t = {0}; next_tensor(m, &t);) {
        char name[MOE_NAME_BYTES];
        moe_tensor_pack_name(t.role, t.layer, name);
        const struct moe_pack_tensor *stored = moe_pack_tensor_find(m->pack, name);
        sum += stored ? moe_round_up(stored->extent.stored_bytes, MOE_PACK_ALIGN) : 0;
    }
    return sum;
}

/* ---- A model with fewer bits ---- */

/* Re-quantizes every matrix that has more bits into the arena; one without memory only measures. */
static int derive_matrices(struct moe_model *d, const struct moe_convert_options *options,
                           struct moe_arena *arena, struct moe_err *err)
{
    const uint32_t bits = (uint32_t)options->dense_bits;
    for (struct tensor t = {0}; next_tensor(d, &t);) {
        if (!changes(&t, options->method, options->group, bits))
            continue;
        const struct moe_layout lower = layout_at(&t, options->method, options->group, bits);
        uint8_t *at = moe_arena_take(arena, moe_layout_bytes(lower, t.rows, t.cols), 1);
        struct moe_mat derived = {.data = at, .rows = t.rows, .cols = t.cols};
        const struct moe_matrix_name name = {.layer = t.layer, .role = (int)t.role};
        if (at)
            MOE_TRY(moe_convert_matrix(t.mat, moe_pack_path(d->pack), &name, options, at,
                                       &derived.layout, err));
        if (at)
            *t.mat = derived;
    }
    moe_model_repeat_layers(d);
    return MOE_OK;
}

static int check_bits(const struct moe_model *m, const struct moe_convert_options *options,
                      struct moe_err *err)
{
    const uint32_t most = moe_dense_bits(m), bits = (uint32_t)moe_bits_width(options->dense_bits);
    if (bits > most)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: its dense part has %u bits, %u cannot be made of them; convert the "
                        "checkpoint again",
                        moe_pack_path(m->pack), most, bits);
    if (bits < most &&
        moe_quant_layout(options->method, options->dense_bits, options->group, MOE_LAYOUT_BF16)
                .kind == MOE_LAYOUT_NONE)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: its dense part cannot be rounded to %u bit%s by %s in groups of %u; "
                        "--method names another",
                        moe_pack_path(m->pack), bits, bits == 1 ? "" : "s", options->method->name,
                        options->group);
    return MOE_OK;
}

int moe_dense_derive(struct moe_model **out, const struct moe_model *model,
                     const struct moe_dense_rounding *how, uint32_t bits, struct moe_err *err)
{
    *out = NULL;
    const struct moe_convert_options options = {
        .dense_bits = (int)bits,
        .method = how->method,
        .group = how->group,
        .inputs = how->inputs,
    };
    int status = check_bits(model, &options, err);
    struct moe_model *d = status == MOE_OK ? moe_alloc(1, sizeof *d, err) : NULL;
    if (!d)
        return status == MOE_OK ? MOE_ERR_MEMORY : status;
    *d = *model;
    d->weights = NULL;
    d->layers = moe_alloc(model->config.n_layers, sizeof *d->layers, err);
    if (!d->layers) {
        moe_dense_release(d);
        return MOE_ERR_MEMORY;
    }
    memcpy(d->layers, model->layers, model->config.n_layers * sizeof *d->layers);
    struct moe_arena sizes = {0};
    status = derive_matrices(d, &options, &sizes, err);
    d->weights_bytes = sizes.used;
    if (status == MOE_OK && sizes.used > 0) {
        d->weights = moe_pages_alloc(sizes.used, err);
        struct moe_arena arena = {.base = d->weights, .size = sizes.used};
        status = d->weights ? derive_matrices(d, &options, &arena, err) : MOE_ERR_MEMORY;
    }
    if (d->config.tied_head)
        d->head = d->embed;
    if (status != MOE_OK)
        moe_dense_release(d);
    else
        *out = d;
    return status;
}

void moe_dense_release(struct moe_model *d)
{
    if (!d)
        return;
    moe_pages_free(d->weights, d->weights_bytes);
    free(d->layers);
    free(d);
}
