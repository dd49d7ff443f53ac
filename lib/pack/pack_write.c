/* Writing a pack: weights as they come, then the directory, last of all the header. */
#define _GNU_SOURCE /* memfd_create */

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zstd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"
#include "pack/pack_internal.h"

/* A pack being written. */
struct moe_pack_writer {
    struct moe_outfile file;
    bool in_memory;
    uint64_t at; /* where the next extent goes */
    int zstd_level;
    ZSTD_CCtx *zstd;      /* NULL when zstd_level is 0 */
    struct moe_buf frame; /* the extent being compressed */
    uint64_t features, source_fingerprint;

    uint32_t n_layers, n_experts, n_variants;
    uint32_t n_ahead; /* of the layers, the last */
    struct moe_pack_variant variants[MOE_MAX_VARIANTS];
    struct moe_buf sections[MOE_PACK_N_SECTIONS];
    struct moe_pack_tensor *tensors;
    uint64_t n_tensors, tensors_room;
    struct moe_expert_class *classes;
    uint64_t n_classes, classes_room;
    struct pack_expert *experts;
    uint64_t n_stored, experts_room;
};

/* MOE_ERR_USAGE, "PATH: NAME: WHAT". */
static int pack_wrong_use(const struct moe_pack_writer *w, struct moe_err *err, const char *what,
                          const char *name)
{
    return moe_fail(err, MOE_ERR_USAGE, "%s: %s: %s", w->file.path, name, what);
}

/* Writes bytes at the next free place and zeros up to the one after. */
static int pack_write_padded(struct moe_pack_writer *w, const void *data, uint64_t n,
                             struct moe_err *err)
{
    static const uint8_t zeros[MOE_PACK_ALIGN];
    uint64_t end = w->at + n, padded = moe_round_up(end, MOE_PACK_ALIGN);
    MOE_TRY(moe_outfile_write(&w->file, data, n, w->at, err));
    MOE_TRY(moe_outfile_write(&w->file, zeros, padded - end, end, err));
    w->at = padded;
    return MOE_OK;
}

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

/* A file in memory: a directory takes little, and weights are holes. */
static int open_memory(struct moe_outfile *out, const char *path, struct moe_err *err)
{
    char text[128];
    *out = (struct moe_outfile){.path = moe_strndup(path, strlen(path), err)};
    if (!out->path)
        return MOE_ERR_MEMORY;
    out->fd = memfd_create("moe-directory", MFD_CLOEXEC);
    if (out->fd >= 0)
        return MOE_OK;
    free(out->path);
    return moe_fail(err, MOE_ERR_IO, "%s: no file in memory: %s", path,
                    moe_errno_text(errno, text, sizeof text));
}

static int create_writer(struct moe_pack_writer **out, const char *path, uint32_t n_layers,
                         uint32_t n_experts, const struct moe_pack_variant *variants,
                         uint32_t n_variants, int zstd_level, bool in_memory, struct moe_err *err)
{
    *out = NULL;
    if (n_layers > MOE_MAX_LAYERS || n_experts > MOE_MAX_EXPERTS || n_variants > MOE_MAX_VARIANTS ||
        zstd_level < 0 || zstd_level > ZSTD_maxCLevel())
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
    w->at = MOE_PACK_HEADER_BYTES;
    w->n_layers = n_layers;
    w->n_experts = n_experts;
    w->n_variants = n_variants;
    if (n_variants)
        memcpy(w->variants, variants, n_variants * sizeof *variants);
    w->zstd_level = zstd_level;
    w->in_memory = in_memory;
    int status = MOE_OK;
    if (zstd_level && !(w->zstd = new_compressor(zstd_level)))
        MOE_STEP(moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory for zstd", path));
    MOE_STEP(in_memory ? open_memory(&w->file, path, err) : moe_outfile_open(&w->file, path, err));
out:
    if (status == MOE_OK)
        *out = w;
    else
        writer_free(w);
    return status;
}

int moe_pack_create(struct moe_pack_writer **out, const char *path, uint32_t n_layers,
                    uint32_t n_experts, const struct moe_pack_variant *variants,
                    uint32_t n_variants, uint64_t source_fingerprint, int zstd_level,
                    struct moe_err *err)
{
    MOE_TRY(create_writer(out, path, n_layers, n_experts, variants, n_variants, zstd_level, false,
                          err));
    (*out)->source_fingerprint = source_fingerprint;
    return MOE_OK;
}

int pack_create_directory(struct moe_pack_writer **out, const char *path, uint32_t n_layers,
                          uint32_t n_experts, const struct moe_pack_variant *variants,
                          uint32_t n_variants, struct moe_err *err)
{
    return create_writer(out, path, n_layers, n_experts, variants, n_variants, 0, true, err);
}

int moe_pack_put_ahead(struct moe_pack_writer *w, uint32_t n, struct moe_err *err)
{
    if (n > MOE_MAX_LAYERS - w->n_layers)
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
    if (w->in_memory) {
        *out = (struct moe_extent){w->at, raw_bytes, raw_bytes, 0};
        w->at = moe_round_up(w->at + raw_bytes, MOE_PACK_ALIGN);
        return MOE_OK;
    }
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
    MOE_TRY(grow((void **)&w->tensors, w->n_tensors, &w->tensors_room, sizeof *w->tensors, err));
    struct moe_pack_tensor *t = &w->tensors[w->n_tensors];
    *t = *tensor;
    MOE_TRY(write_extent(w, raw, pack_tensor_raw_bytes(t), &t->extent, err));
    w->n_tensors++;
    return MOE_OK;
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
    MOE_TRY(grow((void **)&w->classes, w->n_classes, &w->classes_room, sizeof *w->classes, err));
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
        status = write_extent(w, segments ? segments[s] : NULL, class_->segment_bytes[s],
                              &e->extent.segments[s], err);
    if (status == MOE_OK)
        w->n_stored++;
    return status;
}

/* Returns the checksum of n zeros. */
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

/* ---- The directory and the header, written last ---- */

static void put_extent(struct moe_buf *b, const struct moe_extent *e)
{
    moe_buf_u64(b, e->offset);
    moe_buf_u64(b, e->stored_bytes);
    moe_buf_u64(b, e->raw_bytes);
    moe_buf_u64(b, e->checksum);
}

/* A name field, filled up with zeros after the name. */
static void put_name(struct moe_buf *b, const char *name, uint64_t room)
{
    uint64_t n = strlen(name);
    moe_buf_append(b, name, n);
    for (; n < room; n++)
        moe_buf_u8(b, 0);
}

static void write_variants(const struct moe_pack_writer *w, struct moe_buf *b)
{
    moe_buf_u32(b, w->n_layers);
    moe_buf_u32(b, w->n_experts);
    moe_buf_u32(b, w->n_variants);
    moe_buf_u32(b, w->n_ahead);
    for (uint32_t i = 0; i < w->n_variants; i++) {
        put_name(b, w->variants[i].name, MOE_NAME_BYTES);
        put_name(b, w->variants[i].method, MOE_METHOD_BYTES);
    }
}

static void write_tensors(const struct moe_pack_writer *w, struct moe_buf *b)
{
    moe_buf_u32(b, (uint32_t)w->n_tensors);
    moe_buf_u32(b, 0);
    for (uint64_t i = 0; i < w->n_tensors; i++) {
        const struct moe_pack_tensor *t = &w->tensors[i];
        put_name(b, t->name, MOE_NAME_BYTES);
        moe_buf_u16(b, t->layout.kind);
        moe_buf_u8(b, t->is_vector);
        moe_buf_u8(b, 0);
        moe_buf_u32(b, t->layout.group);
        moe_buf_u32(b, t->rows);
        moe_buf_u32(b, t->cols);
        put_extent(b, &t->extent);
    }
}

static void write_classes(const struct moe_pack_writer *w, struct moe_buf *b)
{
    moe_buf_u32(b, (uint32_t)w->n_classes);
    moe_buf_u32(b, 0);
    for (uint64_t i = 0; i < w->n_classes; i++) {
        const struct moe_expert_class *c = &w->classes[i];
        moe_buf_u32(b, c->n_segments);
        moe_buf_u32(b, c->n_matrices);
        for (uint32_t s = 0; s < c->n_segments; s++)
            moe_buf_u64(b, c->segment_bytes[s]);
        for (uint32_t m = 0; m < c->n_matrices; m++) {
            const struct moe_class_matrix *x = &c->matrices[m];
            moe_buf_u16(b, x->role);
            moe_buf_u16(b, x->segment);
            moe_buf_u16(b, x->layout.kind);
            moe_buf_u16(b, 0);
            moe_buf_u32(b, x->layout.group);
            moe_buf_u32(b, x->rows);
            moe_buf_u32(b, x->cols);
            moe_buf_u32(b, 0);
            moe_buf_u64(b, x->offset);
        }
    }
}

static int compare_experts(const void *a, const void *b)
{
    const struct pack_expert *x = a, *y = b;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    if (x->expert != y->expert)
        return x->expert < y->expert ? -1 : 1;
    return x->variant < y->variant ? -1 : x->variant > y->variant;
}

static void write_experts(const struct moe_pack_writer *w, struct moe_buf *b)
{
    moe_buf_u32(b, (uint32_t)w->n_stored);
    moe_buf_u32(b, 0);
    for (uint64_t i = 0; i < w->n_stored; i++) {
        const struct pack_expert *e = &w->experts[i];
        moe_buf_u32(b, e->layer);
        moe_buf_u32(b, e->expert);
        moe_buf_u32(b, e->variant);
        moe_buf_u32(b, e->extent.class_index);
        for (uint32_t s = 0; s < w->classes[e->extent.class_index].n_segments; s++)
            put_extent(b, &e->extent.segments[s]);
    }
}

/* Sorts the experts, as the table wants them, and refuses what was put twice. */
static int check_unique(struct moe_pack_writer *w, struct moe_err *err)
{
    if (w->n_stored)
        qsort(w->experts, w->n_stored, sizeof *w->experts, compare_experts);
    for (uint64_t i = 1; i < w->n_stored; i++)
        if (compare_experts(&w->experts[i - 1], &w->experts[i]) == 0)
            return pack_wrong_use(w, err, "an expert was put twice", "experts");
    const char **names = moe_alloc(w->n_tensors, sizeof *names, err);
    if (!names)
        return MOE_ERR_MEMORY;
    for (uint64_t i = 0; i < w->n_tensors; i++)
        names[i] = w->tensors[i].name;
    qsort(names, w->n_tensors, sizeof *names, moe_compare_texts);
    int status = MOE_OK;
    for (uint64_t i = 1; i < w->n_tensors && status == MOE_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            status = pack_wrong_use(w, err, "the tensor was put twice", names[i]);
    free(names);
    return status;
}

/* Without optional ones that are empty. */
static uint32_t n_sections(const struct moe_pack_writer *w)
{
    return PACK_N_IDS + (w->sections[MOE_PACK_SAMPLING].size > 0) +
           (w->sections[MOE_PACK_MAPS].size > 0);
}

static int write_directory(struct moe_pack_writer *w, uint8_t *header, struct moe_err *err)
{
    struct moe_buf tables[PACK_N_KNOWN + 1] = {{0}}; /* by id */
    const struct moe_buf *contents[PACK_N_KNOWN + 1];
    write_tensors(w, &tables[PACK_ID_TENSORS]);
    write_variants(w, &tables[PACK_ID_VARIANTS]);
    write_classes(w, &tables[PACK_ID_CLASSES]);
    write_experts(w, &tables[PACK_ID_EXPERTS]);
    for (uint32_t id = 1; id <= PACK_N_KNOWN; id++)
        contents[id] = &tables[id];
    for (int i = 0; i < MOE_PACK_N_SECTIONS; i++)
        contents[pack_section_id((enum moe_pack_section)i)] = &w->sections[i];
    int status = MOE_OK;
    uint8_t *entry = header + PACK_TABLE_AT;
    for (uint32_t id = 1; id <= PACK_N_KNOWN && status == MOE_OK; id++) {
        const struct moe_buf *b = contents[id];
        if (id > PACK_N_IDS && b->size == 0)
            continue;
        if (b->failed)
            status =
                moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory: the directory", w->file.path);
        else if (b->size > pack_section_max(id))
            status = moe_fail(err, MOE_ERR_LIMIT,
                              "%s: a section would have %" PRIu64 " bytes, more than %" PRIu64,
                              w->file.path, b->size, pack_section_max(id));
        moe_put_u32(entry, id);
        moe_put_u64(entry + 8, b->size ? w->at : 0);
        moe_put_u64(entry + 16, b->size);
        moe_put_u64(entry + 24, moe_hash64(b->data ? b->data : header, b->size));
        entry += PACK_SECTION_ENTRY_BYTES;
        if (status == MOE_OK)
            status = pack_write_padded(w, b->data, b->size, err);
    }
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        moe_buf_release(&tables[i]);
    return status;
}

uint64_t moe_pack_class_entry_bytes(const struct moe_expert_class *class_)
{
    return 8 + 8 * (uint64_t)class_->n_segments + 40 * (uint64_t)class_->n_matrices;
}

uint64_t moe_pack_tables_bytes(uint64_t n_tensors, uint64_t class_bytes, uint64_t n_experts,
                               uint64_t n_segments)
{
    return MOE_PACK_HEADER_BYTES + moe_round_up(8 + PACK_TENSOR_BYTES * n_tensors, MOE_PACK_ALIGN) +
           moe_round_up(16 + PACK_VARIANT_BYTES, MOE_PACK_ALIGN) +
           moe_round_up(8 + class_bytes, MOE_PACK_ALIGN) +
           moe_round_up(8 + 16 * n_experts + 32 * n_segments, MOE_PACK_ALIGN);
}

static void fill_header(const struct moe_pack_writer *w, uint8_t *header)
{
    memcpy(header, PACK_MAGIC, 4);
    moe_put_u32(header + 4, MOE_PACK_VERSION);
    moe_put_u32(header + 8, MOE_PACK_HEADER_BYTES);
    moe_put_u32(header + 12, n_sections(w));
    moe_put_u64(header + 16, w->at);
    moe_put_u64(header + 24, w->features);
    moe_put_u64(header + 32, 0); /* optional features */
    moe_put_u64(header + 40, moe_hash64_chain(w->source_fingerprint, header + PACK_TABLE_AT,
                                              n_sections(w) * PACK_SECTION_ENTRY_BYTES));
    moe_put_u64(header + 48, w->source_fingerprint);
    moe_put_u64(header + PACK_CHECKSUM_AT, moe_hash64(header, PACK_CHECKSUM_AT));
}

/* Writes the directory and the header. MOE_ERR_USAGE: a tensor or an expert was put twice. */
static int pack_write_directory(struct moe_pack_writer *w, struct moe_err *err)
{
    uint8_t header[MOE_PACK_HEADER_BYTES] = {0};
    MOE_TRY(check_unique(w, err));
    MOE_TRY(write_directory(w, header, err));
    fill_header(w, header);
    return moe_outfile_write(&w->file, header, sizeof header, 0, err);
}

int pack_end_directory(struct moe_pack_writer *w, int *fd, uint64_t *file_bytes,
                       struct moe_err *err)
{
    int status = pack_write_directory(w, err);
    if (status == MOE_OK) {
        *fd = w->file.fd;
        *file_bytes = w->at;
        w->file.fd = -1;
    }
    moe_pack_abort(w);
    return status;
}

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
    if (w->in_memory) {
        if (w->file.fd >= 0)
            close(w->file.fd);
        free(w->file.path);
    } else
        moe_outfile_abort(&w->file);
    writer_free(w);
}
