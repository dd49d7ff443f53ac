/* Writing a pack: weights as they come, then the directory, last of all the header. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "base/hash.h"
#include "base/mem.h"
#include "pack/pack_writer.h"

static void writer_free(struct moe_pack_writer *w)
{
    for (int i = 0; i < MOE_PACK_N_SECTIONS; i++)
        moe_buf_release(&w->sections[i]);
    moe_buf_release(&w->frame);
    ZSTD_freeCCtx(w->zstd);
    free(w->tensors);
    free(w->classes);
    free(w->experts);
    free(w);
}

/* Makes room for one more item in a growing array. */
static int grow(void **items, uint64_t n, uint64_t *room, uint64_t item_bytes, struct moe_err *err)
{
    if (n < *room)
        return MOE_OK;
    uint64_t wanted = *room ? 2 * *room : 64;
    void *grown = moe_alloc(wanted, item_bytes, err);
    if (!grown)
        return MOE_ERR_MEMORY;
    if (n)
        memcpy(grown, *items, n * item_bytes);
    free(*items);
    *items = grown;
    *room = wanted;
    return MOE_OK;
}

/* A window of 32 KiB makes blocks of 32 KiB, which a loader decodes one at a time between other
 * work. Quantized weights hardly repeat: it costs 0.1 % of the ratio at most (measured). */
static ZSTD_CCtx *new_compressor(int level)
{
    ZSTD_CCtx *zstd = ZSTD_createCCtx();
    if (zstd && (ZSTD_isError(ZSTD_CCtx_setParameter(zstd, ZSTD_c_compressionLevel, level)) ||
                 ZSTD_isError(ZSTD_CCtx_setParameter(zstd, ZSTD_c_windowLog, 15)))) {
        ZSTD_freeCCtx(zstd);
        zstd = NULL;
    }
    return zstd;
}

int moe_pack_create(struct moe_pack_writer **out, const char *path, uint32_t n_layers,
                    uint32_t n_experts, const struct moe_pack_variant *variants,
                    uint32_t n_variants, uint64_t source_fingerprint, int zstd_level,
                    struct moe_err *err)
{
    *out = NULL;
    if (n_layers > MOE_PACK_MAX_LAYERS || n_experts > MOE_PACK_MAX_EXPERTS ||
        n_variants > MOE_PACK_MAX_VARIANTS || zstd_level < 0 || zstd_level > ZSTD_maxCLevel())
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: %" PRIu32 " layers, %" PRIu32 " experts, %" PRIu32
                        " variants, zstd level %d: beyond what a pack can have",
                        path, n_layers, n_experts, n_variants, zstd_level);
    for (uint32_t i = 0; i < n_variants; i++) {
        bool valid = pack_name_valid(variants[i].name, sizeof variants[i].name) &&
                     pack_name_valid(variants[i].method, sizeof variants[i].method);
        for (uint32_t j = 0; j < i && valid; j++)
            valid = strcmp(variants[j].name, variants[i].name) != 0;
        if (!valid)
            return moe_fail(err, MOE_ERR_USAGE, "%s: variant %" PRIu32 " has no name of its own",
                            path, i);
    }
    struct moe_pack_writer *w = moe_alloc(1, sizeof *w, err);
    if (!w)
        return MOE_ERR_MEMORY;
    w->at = PACK_HEADER_BYTES;
    w->n_layers = n_layers;
    w->n_experts = n_experts;
    w->n_variants = n_variants;
    if (n_variants)
        memcpy(w->variants, variants, n_variants * sizeof *variants);
    w->source_fingerprint = source_fingerprint;
    w->zstd_level = zstd_level;
    int status = MOE_OK;
    if (zstd_level && !(w->zstd = new_compressor(zstd_level)))
        status = moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory for zstd", path);
    if (status == MOE_OK)
        status = moe_outfile_open(&w->file, path, err);
    if (status == MOE_OK)
        *out = w;
    else
        writer_free(w);
    return status;
}

int moe_pack_put_ahead(struct moe_pack_writer *w, uint32_t n, struct moe_err *err)
{
    if (n > MOE_PACK_MAX_LAYERS - w->n_layers)
        return pack_wrong_use(w, err, "too many of them", "layers");
    w->n_layers += n;
    w->n_ahead += n;
    w->features |= n ? PACK_FEATURE_AHEAD : 0;
    return MOE_OK;
}

void moe_pack_set_source_fingerprint(struct moe_pack_writer *w, uint64_t source_fingerprint)
{
    w->source_fingerprint = source_fingerprint;
}

int moe_pack_put_section(struct moe_pack_writer *w, enum moe_pack_section id, const void *data,
                         uint64_t n, struct moe_err *err)
{
    if (n > pack_section_max(pack_section_id(id)))
        return pack_wrong_use(w, err, "larger than a section can be", "section");
    struct moe_buf *section = &w->sections[id];
    moe_buf_clear(section);
    if (n)
        moe_buf_append(section, data, n);
    if (section->failed)
        return moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory: %" PRIu64 " bytes", w->file.path,
                        n);
    return MOE_OK;
}

/* Writes raw bytes, compressed where that makes them fewer. */
static int write_extent(struct moe_pack_writer *w, const void *raw, uint64_t raw_bytes,
                        struct moe_extent *out, struct moe_err *err)
{
    const void *stored = raw;
    uint64_t stored_bytes = raw_bytes;
    if (w->zstd) {
        moe_buf_clear(&w->frame);
        size_t bound = ZSTD_compressBound(raw_bytes);
        void *frame = moe_buf_reserve(&w->frame, bound);
        if (!frame)
            return moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory: %zu bytes", w->file.path,
                            bound);
        size_t n = ZSTD_compress2(w->zstd, frame, bound, raw, raw_bytes);
        if (ZSTD_isError(n))
            return moe_fail(err, MOE_ERR_MEMORY, "%s: zstd: %s", w->file.path,
                            ZSTD_getErrorName(n));
        if (n < raw_bytes && raw_bytes / PACK_MAX_RATIO <= n) {
            stored = frame;
            stored_bytes = n;
            w->features |= PACK_FEATURE_ZSTD;
        }
    }
    *out = (struct moe_extent){.offset = w->at,
                               .stored_bytes = stored_bytes,
                               .raw_bytes = raw_bytes,
                               .checksum = moe_hash64(stored, stored_bytes)};
    return pack_write_padded(w, stored, stored_bytes, err);
}

int moe_pack_put_tensor(struct moe_pack_writer *w, const struct moe_pack_tensor *tensor,
                        const void *raw, struct moe_err *err)
{
    const char *problem = pack_tensor_problem(tensor);
    if (problem)
        return pack_wrong_use(w, err, problem, "tensor");
    if (w->n_tensors == MOE_PACK_MAX_TENSORS)
        return pack_wrong_use(w, err, "too many tensors", tensor->name);
    int status =
        grow((void **)&w->tensors, w->n_tensors, &w->tensors_room, sizeof *w->tensors, err);
    if (status != MOE_OK)
        return status;
    struct moe_pack_tensor *t = &w->tensors[w->n_tensors];
    *t = *tensor;
    status = write_extent(w, raw, pack_tensor_raw_bytes(t), &t->extent, err);
    if (status == MOE_OK)
        w->n_tensors++;
    return status;
}

static bool matrices_equal(const struct moe_class_matrix *a, const struct moe_class_matrix *b)
{
    return a->role == b->role && a->segment == b->segment && a->layout.kind == b->layout.kind &&
           a->layout.group == b->layout.group && a->rows == b->rows && a->cols == b->cols &&
           a->offset == b->offset;
}

/* Field by field: structs have padding, and entries beyond the counts are undefined. */
static bool classes_equal(const struct moe_expert_class *a, const struct moe_expert_class *b)
{
    bool equal = a->n_segments == b->n_segments && a->n_matrices == b->n_matrices;
    for (uint32_t i = 0; equal && i < a->n_segments; i++)
        equal = a->segment_bytes[i] == b->segment_bytes[i];
    for (uint32_t i = 0; equal && i < a->n_matrices; i++)
        equal = matrices_equal(&a->matrices[i], &b->matrices[i]);
    return equal;
}

int moe_pack_put_class(struct moe_pack_writer *w, const struct moe_expert_class *class_,
                       uint32_t *index, struct moe_err *err)
{
    const char *problem = pack_class_problem(class_);
    if (problem)
        return pack_wrong_use(w, err, problem, "expert class");
    for (uint64_t i = 0; i < w->n_classes; i++)
        if (classes_equal(&w->classes[i], class_)) {
            *index = (uint32_t)i;
            return MOE_OK;
        }
    if (w->n_classes == MOE_PACK_MAX_CLASSES)
        return pack_wrong_use(w, err, "too many of them", "expert class");
    int status =
        grow((void **)&w->classes, w->n_classes, &w->classes_room, sizeof *w->classes, err);
    if (status != MOE_OK)
        return status;
    *index = (uint32_t)w->n_classes;
    w->classes[w->n_classes++] = *class_;
    return MOE_OK;
}

/* Notes an expert whose segments are written next; NULL: it cannot be. */
static struct pack_expert *add_expert(struct moe_pack_writer *w, uint32_t layer, uint32_t expert,
                                      uint32_t variant, uint32_t class_index, int *status,
                                      struct moe_err *err)
{
    if (layer >= w->n_layers || expert >= w->n_experts || variant >= w->n_variants ||
        class_index >= w->n_classes) {
        *status = pack_wrong_use(w, err, "layer, expert, variant or class out of range", "expert");
        return NULL;
    }
    *status = grow((void **)&w->experts, w->n_stored, &w->experts_room, sizeof *w->experts, err);
    if (*status != MOE_OK)
        return NULL;
    struct pack_expert *e = &w->experts[w->n_stored];
    *e =
        (struct pack_expert){layer, expert, variant, {.present = true, .class_index = class_index}};
    return e;
}

int moe_pack_put_expert(struct moe_pack_writer *w, uint32_t layer, uint32_t expert,
                        uint32_t variant, uint32_t class_index, const void *const *segments,
                        struct moe_err *err)
{
    int status;
    struct pack_expert *e = add_expert(w, layer, expert, variant, class_index, &status, err);
    const struct moe_expert_class *class_ = e ? &w->classes[class_index] : NULL;
    for (uint32_t s = 0; e && s < class_->n_segments && status == MOE_OK; s++)
        status =
            write_extent(w, segments[s], class_->segment_bytes[s], &e->extent.segments[s], err);
    if (status == MOE_OK)
        w->n_stored++;
    return status;
}

/* The checksum of so many zeros. */
static int hash_zeros(uint64_t n, uint64_t *out, struct moe_err *err)
{
    static const uint8_t zeros[1 << 16];
    struct moe_hasher *hasher = moe_hasher_new();
    if (!hasher)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    moe_hasher_begin(hasher);
    for (uint64_t left = n; left > 0;) {
        uint64_t part = left < sizeof zeros ? left : sizeof zeros;
        moe_hasher_add(hasher, zeros, part);
        left -= part;
    }
    *out = moe_hasher_end(hasher);
    moe_hasher_free(hasher);
    return MOE_OK;
}

int moe_pack_put_hole(struct moe_pack_writer *w, uint32_t layer, uint32_t expert, uint32_t variant,
                      uint32_t class_index, struct moe_err *err)
{
    int status;
    struct pack_expert *e = add_expert(w, layer, expert, variant, class_index, &status, err);
    const struct moe_expert_class *class_ = e ? &w->classes[class_index] : NULL;
    for (uint32_t s = 0; e && s < class_->n_segments && status == MOE_OK; s++) {
        struct moe_extent *x = &e->extent.segments[s];
        uint64_t n = class_->segment_bytes[s];
        *x = (struct moe_extent){.offset = w->at, .stored_bytes = n, .raw_bytes = n};
        status = hash_zeros(n, &x->checksum, err);
        w->at = moe_round_up(w->at + n, MOE_PACK_ALIGN);
    }
    if (status == MOE_OK)
        w->n_stored++;
    return status;
}

/* ---- The end ---- */

int moe_pack_commit(struct moe_pack_writer *w, struct moe_err *err)
{
    int status = moe_outfile_end(&w->file, pack_write_directory(w, err), err);
    writer_free(w);
    return status;
}

void moe_pack_abort(struct moe_pack_writer *w)
{
    if (!w)
        return;
    moe_outfile_abort(&w->file);
    writer_free(w);
}
