/* Reading packs: header, directory, extents. */
#define _POSIX_C_SOURCE 200809L /* posix_fadvise */

#include "pack/pack.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/par.h"
#include "fmt/json_scan.h"
#include "pack/pack_internal.h"

/* ---- What both sides hold descriptions to ---- */

bool pack_name_valid(const char *name, uint64_t room)
{
    uint64_t n = 0;
    while (n < room && name[n] > ' ' && name[n] < 0x7f)
        n++;
    return n > 0 && n < room && name[n] == '\0';
}

static bool role_is_vector(uint16_t role)
{
    return role >= MOE_ROLE_GATE_BIAS && role <= MOE_ROLE_DOWN_BIAS;
}

static bool dims_valid(struct moe_layout layout, uint32_t rows, uint32_t cols)
{
    return rows > 0 && rows <= MOE_MAX_DIM && cols > 0 && cols <= MOE_MAX_DIM &&
           (!moe_kind_is_scaled(layout.kind) || cols % 32 == 0);
}

static bool vector_valid(struct moe_layout layout, uint32_t cols)
{
    return layout.kind == MOE_LAYOUT_F32 && layout.group == 0 && cols == 1;
}

uint64_t pack_tensor_raw_bytes(const struct moe_pack_tensor *t)
{
    return t->is_vector ? 4 * (uint64_t)t->rows : moe_layout_bytes(t->layout, t->rows, t->cols);
}

static uint64_t matrix_bytes(const struct moe_class_matrix *m)
{
    return role_is_vector(m->role) ? 4 * (uint64_t)m->rows
                                   : moe_layout_bytes(m->layout, m->rows, m->cols);
}

const char *pack_tensor_problem(const struct moe_pack_tensor *t)
{
    if (!pack_name_valid(t->name, sizeof t->name))
        return "its name is empty, too long or not plain ASCII";
    if (!moe_layout_valid(t->layout))
        return "its layout has an impossible group";
    if (!dims_valid(t->layout, t->rows, t->cols))
        return "its shape is impossible";
    if (t->is_vector && !vector_valid(t->layout, t->cols))
        return "a vector must be f32 with one column";
    return NULL;
}

const char *pack_class_problem(const struct moe_expert_class *c)
{
    if (c->n_segments < 1 || c->n_segments > MOE_PACK_MAX_SEGMENTS || c->n_matrices < 1 ||
        c->n_matrices > MOE_PACK_MAX_MATRICES)
        return "its number of segments or matrices is impossible";
    for (uint32_t s = 0; s < c->n_segments; s++)
        if (c->segment_bytes[s] == 0 || c->segment_bytes[s] % PACK_MATRIX_ALIGN != 0)
            return "a segment is empty or no multiple of 64 bytes";
    for (uint32_t i = 0; i < c->n_matrices; i++) {
        const struct moe_class_matrix *m = &c->matrices[i];
        if (!moe_layout_valid(m->layout))
            return "a matrix has a layout with an impossible group";
        if (!dims_valid(m->layout, m->rows, m->cols))
            return "a matrix has an impossible shape";
        if (role_is_vector(m->role) && !vector_valid(m->layout, m->cols))
            return "a bias must be f32 with one column";
        if (m->segment >= c->n_segments || m->offset % PACK_MATRIX_ALIGN != 0 ||
            m->offset > c->segment_bytes[m->segment] ||
            matrix_bytes(m) > c->segment_bytes[m->segment] - m->offset)
            return "a matrix is not inside its segment";
        for (uint32_t j = 0; j < i; j++) {
            const struct moe_class_matrix *o = &c->matrices[j];
            if (o->role == m->role)
                return "two matrices have the same role";
            if (o->segment == m->segment && o->offset < m->offset + matrix_bytes(m) &&
                m->offset < o->offset + matrix_bytes(o))
                return "two matrices overlap";
        }
    }
    return NULL;
}

/* ---- Looking things up ---- */

void moe_pack_close(struct moe_pack *pack)
{
    if (!pack)
        return;
    if (pack->in_place)
        pack->in_place->close(pack->in_place);
    if (pack->fd >= 0)
        close(pack->fd);
    for (int i = 0; i < PACK_N_KNOWN; i++)
        free(pack->sections[i]);
    free(pack->tensors);
    free(pack->tensors_by_name);
    free(pack->classes);
    free(pack->experts);
    free(pack->path);
    free(pack);
}

const char *moe_pack_path(const struct moe_pack *pack)
{
    return pack->path;
}

int moe_pack_fd(const struct moe_pack *pack)
{
    return pack->fd;
}

const struct moe_arranger *moe_pack_arranger(const struct moe_pack *pack)
{
    return pack->in_place ? &pack->in_place->arranger : NULL;
}

uint64_t moe_pack_file_bytes(const struct moe_pack *pack)
{
    return pack->file_bytes;
}

uint64_t moe_pack_directory_offset(const struct moe_pack *pack)
{
    uint64_t first = pack->file_bytes;
    for (uint32_t i = 0; i < pack->n_sections; i++)
        if (pack->table[i].bytes > 0 && pack->table[i].offset < first)
            first = pack->table[i].offset;
    return first;
}

uint64_t moe_pack_directory_bytes(const struct moe_pack *pack)
{
    uint64_t bytes = sizeof *pack + strlen(pack->path) + 1;
    for (uint32_t i = 0; i < pack_n_known(pack); i++)
        bytes += pack->table[i].bytes + 1;
    return bytes + pack->n_tensors * (sizeof *pack->tensors + sizeof *pack->tensors_by_name) +
           pack->n_classes * sizeof *pack->classes +
           (pack->in_place ? pack->in_place->directory_bytes : 0) +
           (uint64_t)pack->n_stored * sizeof *pack->experts;
}

uint64_t moe_pack_fingerprint(const struct moe_pack *pack)
{
    return pack->fingerprint;
}

uint64_t moe_pack_source_fingerprint(const struct moe_pack *pack)
{
    return pack->source_fingerprint;
}

const char *moe_pack_gguf_type(const struct moe_pack *pack)
{
    return pack->in_place ? pack->in_place->type : NULL;
}

const uint8_t *moe_pack_section(const struct moe_pack *pack, enum moe_pack_section id, uint64_t *n)
{
    static const uint8_t nothing[1];
    uint32_t i = pack_section_id(id) - 1; /* opening made sure that entry i is id i + 1, */
    while (i >= PACK_N_IDS && (i >= pack->n_sections || pack->table[i].id > pack_section_id(id)))
        i--; /* or of those that may lack a later one */
    *n = pack->table[i].id == pack_section_id(id) ? pack->table[i].bytes : 0;
    return *n ? pack->sections[i] : nothing;
}

uint32_t moe_pack_n_tensors(const struct moe_pack *pack)
{
    return pack->n_tensors;
}

const struct moe_pack_tensor *moe_pack_tensor_at(const struct moe_pack *pack, uint32_t i)
{
    return &pack->tensors[i];
}

const struct moe_pack_tensor *moe_pack_tensor_find(const struct moe_pack *pack, const char *name)
{
    uint32_t low = 0, high = pack->n_tensors;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct moe_pack_tensor *t = &pack->tensors[pack->tensors_by_name[middle]];
        int order = strcmp(name, t->name);
        if (order == 0)
            return t;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

uint32_t moe_pack_n_layers(const struct moe_pack *pack)
{
    return pack->takes_ahead ? pack->n_layers : pack->n_layers - pack->n_ahead;
}

uint32_t moe_pack_n_ahead(const struct moe_pack *pack)
{
    return pack->n_ahead;
}

void moe_pack_take_ahead(struct moe_pack *pack)
{
    pack->takes_ahead = true;
}

uint32_t moe_pack_n_experts(const struct moe_pack *pack)
{
    return pack->n_experts;
}

uint32_t moe_pack_n_variants(const struct moe_pack *pack)
{
    return pack->n_variants;
}

const struct moe_pack_variant *moe_pack_variant_at(const struct moe_pack *pack, uint32_t i)
{
    return &pack->variants[i];
}

uint32_t moe_pack_n_classes(const struct moe_pack *pack)
{
    return pack->n_classes;
}

const struct moe_expert_class *moe_pack_class_at(const struct moe_pack *pack, uint32_t i)
{
    return &pack->classes[i];
}

static int compare_expert(const struct pack_expert *e, uint32_t layer, uint32_t expert,
                          uint32_t variant)
{
    if (e->layer != layer)
        return e->layer < layer ? -1 : 1;
    if (e->expert != expert)
        return e->expert < expert ? -1 : 1;
    return e->variant < variant ? -1 : e->variant > variant;
}

const struct moe_expert_extent *moe_pack_expert(const struct moe_pack *pack, uint32_t layer,
                                                uint32_t expert, uint32_t variant)
{
    static const struct moe_expert_extent absent;
    uint32_t low = 0, high = pack->n_stored;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = compare_expert(&pack->experts[middle], layer, expert, variant);
        if (order == 0)
            return &pack->experts[middle].extent;
        if (order > 0)
            high = middle;
        else
            low = middle + 1;
    }
    return &absent;
}

uint32_t moe_pack_usable_variant(const struct moe_pack *pack, uint32_t layer, uint32_t expert,
                                 uint32_t variant)
{
    if (moe_pack_expert(pack, layer, expert, variant)->present)
        return variant;
    for (uint32_t v = 0; v < moe_pack_n_variants(pack); v++)
        if (moe_pack_expert(pack, layer, expert, v)->present)
            return v;
    return UINT32_MAX;
}

/* The first stored expert of a layer from this one on: its place in the table. */
static uint32_t first_of_layer(const struct moe_pack *pack, uint32_t layer)
{
    uint32_t low = 0, high = pack->n_stored;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (pack->experts[middle].layer >= layer)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

bool moe_pack_layer_has_experts(const struct moe_pack *pack, uint32_t layer)
{
    uint32_t first = first_of_layer(pack, layer);
    return first < pack->n_stored && pack->experts[first].layer == layer;
}

void moe_pack_keep_own(struct moe_pack *pack, const struct moe_config *config,
                       const uint8_t *holders, uint8_t self)
{
    for (uint32_t i = 0; i < pack->n_stored; i++) {
        const uint32_t layer = pack->experts[i].layer;
        if (layer >= moe_pack_n_layers(pack))
            continue;
        const uint64_t first = (uint64_t)config->layers[layer].moe_index * pack->n_experts;
        const uint8_t *h = holders ? holders + 2 * (first + pack->experts[i].expert) : NULL;
        pack->experts[i].extent.present = !holders || h[0] == self || h[1] == self;
    }
}

bool moe_class_matrix_view(const struct moe_expert_class *class_, uint16_t role,
                           const uint8_t *const *segments, struct moe_mat *out)
{
    for (uint32_t i = 0; i < class_->n_matrices; i++) {
        const struct moe_class_matrix *m = &class_->matrices[i];
        if (m->role == role) {
            *out = (struct moe_mat){.data = segments[m->segment] + m->offset,
                                    .layout = m->layout,
                                    .rows = m->rows,
                                    .cols = m->cols};
            return true;
        }
    }
    return false;
}

/* ---- Reading weights ---- */

/* Why the stored bytes of an extent are not what the directory says, or NULL when they are, and
 * then `to` has the raw bytes. `to` may be `stored` when the extent is not compressed. */
static const char *pack_decode(const struct moe_extent *extent, const void *stored, void *to)
{
    if (moe_hash64(stored, extent->stored_bytes) != extent->checksum)
        return "checksum mismatch";
    if (extent->stored_bytes == extent->raw_bytes) {
        if (to != stored)
            memcpy(to, stored, extent->raw_bytes);
        return NULL;
    }
    /* One frame and nothing after it, of the size that the directory says. */
    if (ZSTD_getFrameContentSize(stored, extent->stored_bytes) != extent->raw_bytes ||
        ZSTD_findFrameCompressedSize(stored, extent->stored_bytes) != extent->stored_bytes)
        return "its zstd frame does not have the size that the directory states";
    size_t got = ZSTD_decompress(to, extent->raw_bytes, stored, extent->stored_bytes);
    if (ZSTD_isError(got) || got != extent->raw_bytes)
        return "its zstd frame cannot be decompressed";
    return NULL;
}

/* The second half of moe_pack_read, for bytes that came some other way (direct I/O): checks the
 * extent's stored_bytes at `stored` and writes its raw_bytes to `to`, which may be `stored` when
 * the extent is not compressed. Thread-safe. */
static int decode_extent(const struct moe_pack *pack, const struct moe_extent *extent,
                         const void *stored, void *to, const char *what, struct moe_err *err)
{
    const char *problem = pack_decode(extent, stored, to);
    if (problem)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: %s: %s (file damaged? run moe-quantize --verify)",
                        pack->path, what, problem);
    return MOE_OK;
}

/* Many bytes of a file, which threads read side by side. */
struct wide_read {
    const struct moe_pack *pack;
    uint8_t *to;
    uint64_t n, offset;
    int status;
    struct moe_err err; /* of the first that failed */
};

enum { WIDE_PART = 1 << 20 };

static void read_parts(void *ctx, int64_t begin, int64_t end, int thread)
{
    struct wide_read *r = ctx;
    const uint64_t at = (uint64_t)begin * WIDE_PART, wanted = (uint64_t)(end - begin) * WIDE_PART;
    struct moe_err err;
    (void)thread;
    int status = moe_file_pread(r->pack->fd, r->pack->path, r->to + at,
                                wanted < r->n - at ? wanted : r->n - at, r->offset + at, &err);
    if (status != MOE_OK && __atomic_exchange_n(&r->status, status, __ATOMIC_ACQ_REL) == MOE_OK)
        r->err = err;
}

/* Exactly n bytes of the file, or of its image. */
static int pack_pread(const struct moe_pack *pack, void *to, uint64_t n, uint64_t offset,
                      struct moe_err *err)
{
    if (!pack->image) {
        struct wide_read r = {.pack = pack, .to = to, .n = n, .offset = offset};
        moe_par_for((int64_t)((n + WIDE_PART - 1) / WIDE_PART), 1, read_parts, &r);
        if (r.status != MOE_OK && err)
            *err = r.err;
        return r.status;
    }
    if (offset > pack->file_bytes || n > pack->file_bytes - offset)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: ends at byte %" PRIu64 ", before what is read",
                        pack->path, pack->file_bytes);
    memcpy(to, pack->image + offset, n);
    return MOE_OK;
}

void moe_pack_leave_image(struct moe_pack *pack)
{
    pack->image = NULL;
}

int moe_pack_read(const struct moe_pack *pack, const struct moe_extent *extent, void *to,
                  const char *what, struct moe_err *err)
{
    if (pack->in_place)
        return pack->image ? pack_pread(pack, to, extent->raw_bytes, extent->offset, err)
                           : pack->in_place->read(pack->in_place, extent, to, err);
    bool compressed = extent->stored_bytes != extent->raw_bytes;
    void *stored = compressed ? moe_alloc(extent->stored_bytes, 1, err) : to;
    if (!stored)
        return MOE_ERR_MEMORY;
    int status = pack_pread(pack, stored, extent->stored_bytes, extent->offset, err);
    if (status == MOE_OK)
        status = decode_extent(pack, extent, stored, to, what, err);
    if (compressed)
        free(stored);
    return status;
}

void moe_pack_stop_with(struct moe_pack *pack, const volatile sig_atomic_t *stop)
{
    __atomic_store_n(&pack->stop, stop, __ATOMIC_RELAXED);
}

uint32_t moe_pack_part_rows(const struct moe_pack *pack, const struct moe_pack_tensor *t)
{
    return pack->in_place && !pack->image && !t->is_vector ? pack->in_place->part_rows(t) : t->rows;
}

int moe_pack_read_part(const struct moe_pack *pack, const struct moe_pack_tensor *t, uint32_t row,
                       void *to, struct moe_err *err)
{
    char what[MOE_NAME_BYTES + 16];
    if (moe_pack_part_rows(pack, t) < t->rows)
        return pack->in_place->read_part(pack->in_place, t, row, to, err);
    snprintf(what, sizeof what, "tensor '%s'", t->name);
    return moe_pack_read(pack, &t->extent, to, what, err);
}

void moe_pack_read_ahead(const struct moe_pack *pack, const struct moe_extent *extent)
{
    enum { MOST = 64 << 20 }; /* what is read too early may be dropped before it is used */
    const uint64_t n = extent->stored_bytes < MOST ? extent->stored_bytes : MOST;
    if (pack->image)
        return;
    if (pack->in_place)
        pack->in_place->read_ahead(pack->in_place, extent);
    else
        posix_fadvise(pack->fd, (off_t)extent->offset, (off_t)n, POSIX_FADV_WILLNEED);
}

struct moe_tokenizer *moe_pack_take_tokenizer(struct moe_pack *pack)
{
    return pack->in_place ? pack->in_place->take_tokenizer(pack->in_place) : NULL;
}

static void stage(uint64_t *largest, const struct moe_extent *x)
{
    if (x->stored_bytes != x->raw_bytes && x->stored_bytes > *largest)
        *largest = x->stored_bytes;
}

uint64_t moe_pack_staging_bytes(const struct moe_pack *pack)
{
    uint64_t largest = pack->in_place ? pack->in_place->staging_bytes : 0;
    uint32_t n_experts = moe_pack_n_layers(pack) * moe_pack_n_experts(pack);
    for (uint32_t i = 0; i < moe_pack_n_tensors(pack); i++)
        stage(&largest, &moe_pack_tensor_at(pack, i)->extent);
    for (uint32_t i = 0; i < n_experts; i++)
        for (uint32_t variant = 0; variant < moe_pack_n_variants(pack); variant++) {
            const struct moe_expert_extent *e = moe_pack_expert(
                pack, i / moe_pack_n_experts(pack), i % moe_pack_n_experts(pack), variant);
            for (uint32_t k = 0; e->present && k < MOE_PACK_MAX_SEGMENTS; k++)
                stage(&largest, &e->segments[k]);
        }
    return largest;
}

bool moe_pack_is_compressed(const struct moe_pack *pack)
{
    return !moe_pack_arranger(pack) && moe_pack_staging_bytes(pack) > 0;
}

/*
 * Opening a pack: the one place that turns untrusted bytes into a struct moe_pack.
 */

enum { LARGE_BYTES = 64 << 10 /* a section whose count is looked at before its memory is taken */ };

/* ---- Header ---- */

static int parse_table(struct moe_pack *pack, struct moe_cursor *c, struct moe_err *err)
{
    uint64_t offset_max = pack->file_bytes;
    for (uint32_t i = 0; i < pack->n_sections; i++) {
        struct pack_section *s = &pack->table[i];
        s->id = moe_cursor_u32(c);
        uint32_t zero = moe_cursor_u32(c);
        s->offset = moe_cursor_u64(c);
        s->bytes = moe_cursor_u64(c);
        s->checksum = moe_cursor_u64(c);
        /* Rising ids from 1 without a gap through the known ones, so that entry i is id i + 1. */
        if (i < PACK_N_IDS ? s->id != i + 1 : s->id <= pack->table[i - 1].id)
            return pack_damaged(pack, err, "sections are missing, twice there or out of order");
        if (zero != 0 ||
            (s->bytes == 0 ? s->offset != 0
                           : s->offset < MOE_PACK_HEADER_BYTES || s->offset % MOE_PACK_ALIGN != 0 ||
                                 s->offset > offset_max || s->bytes > offset_max - s->offset))
            return pack_damaged(pack, err, "a section is not inside the file");
        if (s->id <= PACK_N_KNOWN && s->bytes > pack_section_max(s->id))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: section %" PRIu32 " of %" PRIu64 " bytes: none is that large "
                            "(file damaged)",
                            pack->path, s->id, s->bytes);
    }
    return MOE_OK;
}

static int parse_header(struct moe_pack *pack, const uint8_t *header, struct moe_err *err)
{
    struct moe_cursor c = moe_cursor_over(header, PACK_CHECKSUM_AT);
    moe_cursor_take(&c, 4); /* magic, seen by the caller */
    uint32_t version = moe_cursor_u32(&c);
    uint32_t header_bytes = moe_cursor_u32(&c);
    pack->n_sections = moe_cursor_u32(&c);
    uint64_t file_bytes = moe_cursor_u64(&c);
    uint64_t required = moe_cursor_u64(&c);
    moe_cursor_u64(&c); /* optional features: a reader may ignore any of them */
    pack->fingerprint = moe_cursor_u64(&c);
    pack->source_fingerprint = moe_cursor_u64(&c);
    uint64_t reserved = moe_cursor_u64(&c);

    if (version != MOE_PACK_VERSION)
        return moe_fail(err, MOE_ERR_VERSION,
                        "%s: pack version %" PRIu32 ", this program reads version %d", pack->path,
                        version, MOE_PACK_VERSION);
    if (moe_hash64(header, PACK_CHECKSUM_AT) != moe_get_u64(header + PACK_CHECKSUM_AT))
        return pack_damaged(pack, err, "checksum mismatch in the header");
    if (required & ~PACK_KNOWN_FEATURES)
        return moe_fail(err, MOE_ERR_VERSION,
                        "%s: needs features 0x%" PRIx64 " that this program does not have; a newer "
                        "moe-toolkit wrote it",
                        pack->path, required & ~PACK_KNOWN_FEATURES);
    pack->features = required;
    if (file_bytes != pack->file_bytes)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: has %" PRIu64 " bytes, %" PRIu64 " were written (%s)", pack->path,
                        pack->file_bytes, file_bytes,
                        pack->file_bytes < file_bytes ? "cut short" : "something was appended");
    if (header_bytes != MOE_PACK_HEADER_BYTES || reserved != 0 || pack->n_sections < PACK_N_IDS ||
        pack->n_sections > PACK_MAX_SECTIONS)
        return pack_damaged(pack, err, "impossible header");
    MOE_TRY(parse_table(pack, &c, err));
    uint64_t table_bytes = (uint64_t)pack->n_sections * PACK_SECTION_ENTRY_BYTES;
    if (!pack_all_zero(header + c.offset, PACK_CHECKSUM_AT - c.offset))
        return pack_damaged(pack, err, "reserved bytes of the header are not zero");
    if (moe_hash64_chain(pack->source_fingerprint, header + PACK_TABLE_AT, table_bytes) !=
        pack->fingerprint)
        return pack_damaged(pack, err, "the fingerprint does not match the directory");
    return MOE_OK;
}

static int read_sections(struct moe_pack *pack, struct moe_err *err)
{
    for (uint32_t i = 0; i < pack_n_known(pack); i++) {
        const struct pack_section *s = &pack->table[i];
        uint8_t count[4] = {0};
        int status = MOE_OK;
        if (s->bytes > LARGE_BYTES)
            status = pack_pread(pack, count, sizeof count, s->offset, err);
        if (status != MOE_OK)
            return status;
        if (s->bytes > LARGE_BYTES && !pack_count_fits(s->id, moe_get_u32(count), s->bytes))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: section %" PRIu32 " of %" PRIu64 " bytes, more than its %" PRIu32
                            " entries take (file damaged)",
                            pack->path, s->id, s->bytes, moe_get_u32(count));
        /* One byte more: sections that are texts end in a NUL, for printing them. */
        uint8_t *data = moe_alloc(s->bytes + 1, 1, err);
        if (!data)
            return MOE_ERR_MEMORY;
        pack->sections[i] = data;
        status = pack_pread(pack, data, s->bytes, s->offset, err);
        if (status != MOE_OK)
            return status;
        if (moe_hash64(data, s->bytes) != s->checksum)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: section %" PRIu32 ": checksum mismatch "
                            "(file damaged)",
                            pack->path, s->id);
    }
    return MOE_OK;
}

/* ---- All ---- */

/* The pieces, padded, follow each other from the header to the file's end: nothing overlaps, and no
 * byte of the file but padding is outside all checksums. */
static int check_tiling(const struct moe_pack *pack, struct moe_err *err)
{
    uint64_t n;
    struct pack_piece *pieces = pack_pieces(pack, &n, err);
    if (!pieces)
        return MOE_ERR_MEMORY;
    int status = MOE_OK;
    uint64_t at = MOE_PACK_HEADER_BYTES;
    for (uint64_t i = 0; i < n && status == MOE_OK; i++) {
        char name[160];
        if (pieces[i].extent.offset != at) {
            pack_piece_name(pack, &pieces[i], name);
            status = moe_fail(err, MOE_ERR_FORMAT,
                              "%s: %s begins at byte %" PRIu64 ", expected %" PRIu64
                              ": an overlap or a gap (file damaged)",
                              pack->path, name, pieces[i].extent.offset, at);
        }
        at = moe_round_up(pieces[i].extent.offset + pieces[i].extent.stored_bytes, MOE_PACK_ALIGN);
    }
    if (status == MOE_OK && at != pack->file_bytes)
        status = pack_damaged(pack, err, "its end belongs to nothing");
    free(pieces);
    return status;
}

int pack_open_file(struct moe_pack **out, const char *path, int fd, uint64_t file_bytes,
                   const struct moe_pack_image *image, struct moe_err *err)
{
    *out = NULL;
    struct moe_pack *pack = moe_alloc(1, sizeof *pack, err);
    if (!pack) {
        close(fd);
        return MOE_ERR_MEMORY;
    }
    pack->fd = fd;
    pack->file_bytes = file_bytes;
    uint8_t header[MOE_PACK_HEADER_BYTES] = {0};
    int status = MOE_ERR_MEMORY;
    pack->path = moe_strndup(path, strlen(path), err);
    if (!pack->path)
        goto out;
    if (image) {
        pack->image = image->bytes;
        pack->file_bytes = image->n;
    }
    static const char not_a_pack[] =
        "not an expert pack, nor a GGUF file (it begins as neither does)";
    uint64_t n = pack->file_bytes < sizeof header ? pack->file_bytes : sizeof header;
    MOE_STEP(pack_pread(pack, header, n, 0, err));
    if (memcmp(header, PACK_MAGIC, 4) != 0)
        MOE_STEP(pack->image ? moe_fail(err, MOE_ERR_FORMAT, "%s: %s", path, not_a_pack)
                             : moe_file_refuse(fd, path, not_a_pack + strlen("not "), err));
    if (n < sizeof header)
        MOE_STEP(pack_damaged(pack, err, "too short for an expert pack"));
    MOE_STEP(parse_header(pack, header, err));
    MOE_STEP(read_sections(pack, err));
    MOE_STEP(pack_parse_tables(pack, err));
    MOE_STEP(check_tiling(pack, err));
out:
    if (status == MOE_OK)
        *out = pack;
    else
        moe_pack_close(pack);
    return status;
}

/*
 * The tables of a pack's directory, read and checked: variants, tensors, classes, experts.
 */

int pack_damaged(const struct moe_pack *pack, struct moe_err *err, const char *what)
{
    return moe_fail(err, MOE_ERR_FORMAT, "%s: %s (file damaged)", pack->path, what);
}

static int too_new(const struct moe_pack *pack, struct moe_err *err, const char *what)
{
    return moe_fail(err, MOE_ERR_VERSION, "%s: %s; a newer moe-toolkit wrote it", pack->path, what);
}

bool pack_all_zero(const uint8_t *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (p[i] != 0)
            return false;
    return true;
}

enum {
    CLASS_BYTES_MAX = 8 + 8 * MOE_PACK_MAX_SEGMENTS + 32 * MOE_PACK_MAX_MATRICES,
    EXPERT_BYTES_MAX = 16 + 32 * MOE_PACK_MAX_SEGMENTS,
};

uint64_t pack_section_max(uint32_t id)
{
    static const uint64_t max[] = {
        [PACK_ID_MODEL] = 4 << 20,       /* some KiB */
        [PACK_ID_TOKENIZER] = 64 << 20,  /* 10 MiB: 262,144 tokens and half a million merges */
        [PACK_ID_CHAT] = 4 << 20,        /* tens of KiB */
        [PACK_ID_PROVENANCE] = 32 << 20, /* 20 bytes for each expert seen too rarely */
        [PACK_ID_TENSORS] = 8 + (uint64_t)MOE_PACK_MAX_TENSORS * PACK_TENSOR_BYTES,
        [PACK_ID_VARIANTS] = 16 + MOE_MAX_VARIANTS * PACK_VARIANT_BYTES,
        [PACK_ID_CLASSES] = 8 + (uint64_t)MOE_PACK_MAX_CLASSES * CLASS_BYTES_MAX,
        [PACK_ID_SAMPLING] = 1 << 20,  /* a hundred bytes */
        [PACK_ID_MAPS] = 32 << 20,     /* a byte for each expert and map */
        [PACK_ID_EXPERTS] = 128 << 20, /* 10 MiB: 61 layers of 384 experts in four variants */
    };
    return id < sizeof max / sizeof max[0] ? max[id] : 0;
}

bool pack_count_fits(uint32_t id, uint32_t n, uint64_t bytes)
{
    switch (id) {
    case PACK_ID_TENSORS:
        return bytes <= 8 + (uint64_t)n * PACK_TENSOR_BYTES;
    case PACK_ID_CLASSES:
        return bytes <= 8 + (uint64_t)n * CLASS_BYTES_MAX;
    case PACK_ID_EXPERTS:
        return bytes <= 8 + (uint64_t)n * EXPERT_BYTES_MAX;
    default:
        return true;
    }
}

static struct moe_cursor section_cursor(const struct moe_pack *pack, uint32_t id)
{
    return moe_cursor_over(pack->sections[id - 1], pack->table[id - 1].bytes);
}

static struct moe_extent take_extent(struct moe_cursor *c)
{
    struct moe_extent e;
    e.offset = moe_cursor_u64(c);
    e.stored_bytes = moe_cursor_u64(c);
    e.raw_bytes = moe_cursor_u64(c);
    e.checksum = moe_cursor_u64(c);
    return e;
}

static bool extent_valid(const struct moe_pack *pack, const struct moe_extent *e, uint64_t expected)
{
    return e->raw_bytes == expected && e->stored_bytes > 0 && e->stored_bytes <= e->raw_bytes &&
           e->raw_bytes / PACK_MAX_RATIO <= e->stored_bytes && e->offset >= MOE_PACK_HEADER_BYTES &&
           e->offset % MOE_PACK_ALIGN == 0 && e->offset <= pack->file_bytes &&
           e->stored_bytes <= pack->file_bytes - e->offset;
}

/* A name field: characters, then zeros to its end. */
static void take_name(struct moe_cursor *c, char *out, uint64_t n)
{
    const uint8_t *p = moe_cursor_take(c, n);
    memset(out, 0, n);
    if (!p)
        return;
    memcpy(out, p, n);
    if (!memchr(out, '\0', n) || !pack_all_zero(p + strlen(out), n - strlen(out)))
        out[0] = '\0'; /* refused as an invalid name */
}

static bool layout_known(uint16_t kind)
{
    return moe_layout_bits(kind) != 0;
}

static int parse_variants(struct moe_pack *pack, struct moe_err *err)
{
    struct moe_cursor c = section_cursor(pack, PACK_ID_VARIANTS);
    pack->n_layers = moe_cursor_u32(&c);
    pack->n_experts = moe_cursor_u32(&c);
    pack->n_variants = moe_cursor_u32(&c);
    pack->n_ahead = moe_cursor_u32(&c);
    bool may_be_ahead = pack->features & PACK_FEATURE_AHEAD;
    if (pack->n_ahead > (may_be_ahead ? pack->n_layers : 0) || pack->n_layers > MOE_MAX_LAYERS ||
        pack->n_experts > MOE_MAX_EXPERTS || pack->n_variants > MOE_MAX_VARIANTS ||
        moe_cursor_left(&c) != (uint64_t)pack->n_variants * PACK_VARIANT_BYTES)
        return pack_damaged(pack, err, "impossible table of variants");
    for (uint32_t i = 0; i < pack->n_variants; i++) {
        struct moe_pack_variant *v = &pack->variants[i];
        take_name(&c, v->name, sizeof v->name);
        take_name(&c, v->method, sizeof v->method);
        if (!pack_name_valid(v->name, sizeof v->name) ||
            !pack_name_valid(v->method, sizeof v->method))
            return pack_damaged(pack, err, "a variant without a proper name");
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(pack->variants[j].name, v->name) == 0)
                return pack_damaged(pack, err, "two variants of one name");
    }
    return MOE_OK;
}

static int compare_name_entries(const void *a, const void *b)
{
    return strcmp((*(const struct moe_pack_tensor *const *)a)->name,
                  (*(const struct moe_pack_tensor *const *)b)->name);
}

/* Sorts the tensors' numbers by name and refuses a name that comes twice. */
static int index_names(struct moe_pack *pack, struct moe_err *err)
{
    uint32_t n = pack->n_tensors;
    int status = MOE_ERR_MEMORY;
    const struct moe_pack_tensor **sorted = moe_alloc(n, sizeof *sorted, err);
    pack->tensors_by_name = moe_alloc(n, sizeof *pack->tensors_by_name, err);
    if (!sorted || !pack->tensors_by_name)
        goto done;
    for (uint32_t i = 0; i < n; i++)
        sorted[i] = &pack->tensors[i];
    qsort(sorted, n, sizeof *sorted, compare_name_entries);
    status = MOE_OK;
    for (uint32_t i = 0; i < n; i++) {
        pack->tensors_by_name[i] = (uint32_t)(sorted[i] - pack->tensors);
        if (i > 0 && strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            status = moe_fail(err, MOE_ERR_FORMAT, "%s: tensor '%s' occurs twice (file damaged)",
                              pack->path, sorted[i]->name);
    }
done:
    free(sorted);
    return status;
}

static int parse_tensors(struct moe_pack *pack, struct moe_err *err)
{
    struct moe_cursor c = section_cursor(pack, PACK_ID_TENSORS);
    uint32_t n = moe_cursor_u32(&c);
    uint32_t zero = moe_cursor_u32(&c);
    if (c.failed || zero != 0 || n > MOE_PACK_MAX_TENSORS ||
        moe_cursor_left(&c) != (uint64_t)n * PACK_TENSOR_BYTES)
        return pack_damaged(pack, err, "impossible table of tensors");
    pack->tensors = moe_alloc(n, sizeof *pack->tensors, err);
    if (!pack->tensors)
        return MOE_ERR_MEMORY;
    pack->n_tensors = n;
    for (uint32_t i = 0; i < n; i++) {
        struct moe_pack_tensor *t = &pack->tensors[i];
        take_name(&c, t->name, sizeof t->name);
        t->layout.kind = moe_cursor_u16(&c);
        uint8_t flags = moe_cursor_u8(&c);
        uint8_t reserved = moe_cursor_u8(&c);
        t->is_vector = flags & 1;
        t->layout.group = moe_cursor_u32(&c);
        t->rows = moe_cursor_u32(&c);
        t->cols = moe_cursor_u32(&c);
        t->extent = take_extent(&c);
        if (!layout_known(t->layout.kind) || flags > 1)
            return too_new(pack, err, "a tensor has a layout that this program does not know");
        const char *problem = pack_tensor_problem(t);
        if (!problem && reserved != 0)
            problem = "reserved bytes are not zero";
        if (!problem && !extent_valid(pack, &t->extent, pack_tensor_raw_bytes(t)))
            problem = "its size does not fit its shape or the file";
        if (problem)
            return moe_fail(err, MOE_ERR_FORMAT, "%s: tensor %" PRIu32 " '%s': %s (file damaged)",
                            pack->path, i, t->name, problem);
    }
    return index_names(pack, err);
}

static int parse_class(struct moe_pack *pack, struct moe_cursor *c, struct moe_expert_class *out,
                       struct moe_err *err)
{
    out->n_segments = moe_cursor_u32(c);
    out->n_matrices = moe_cursor_u32(c);
    if (out->n_segments > MOE_PACK_MAX_SEGMENTS || out->n_matrices > MOE_PACK_MAX_MATRICES)
        return too_new(pack, err, "an expert class has more parts than this program knows");
    for (uint32_t s = 0; s < out->n_segments; s++)
        out->segment_bytes[s] = moe_cursor_u64(c);
    bool known = true, zeros = true;
    for (uint32_t i = 0; i < out->n_matrices; i++) {
        struct moe_class_matrix *m = &out->matrices[i];
        m->role = moe_cursor_u16(c);
        m->segment = moe_cursor_u16(c);
        m->layout.kind = moe_cursor_u16(c);
        zeros = moe_cursor_u16(c) == 0 && zeros;
        m->layout.group = moe_cursor_u32(c);
        m->rows = moe_cursor_u32(c);
        m->cols = moe_cursor_u32(c);
        zeros = moe_cursor_u32(c) == 0 && zeros;
        m->offset = moe_cursor_u64(c);
        known = known && layout_known(m->layout.kind) && m->role >= MOE_ROLE_GATE &&
                m->role <= MOE_ROLE_DOWN_BIAS;
    }
    if (c->failed)
        return pack_damaged(pack, err, "the table of expert classes ends early");
    if (!known)
        return too_new(pack, err, "an expert class has parts that this program does not know");
    const char *problem = pack_class_problem(out);
    if (!problem && !zeros)
        problem = "reserved bytes are not zero";
    if (problem)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: expert class %d: %s (file damaged)", pack->path,
                        (int)(out - pack->classes), problem);
    return MOE_OK;
}

static int parse_classes(struct moe_pack *pack, struct moe_err *err)
{
    struct moe_cursor c = section_cursor(pack, PACK_ID_CLASSES);
    uint32_t n = moe_cursor_u32(&c);
    uint32_t zero = moe_cursor_u32(&c);
    /* A class has at least 8 bytes of counts, a segment and a matrix: a false n cannot cost
     * much memory. */
    if (c.failed || zero != 0 || n > MOE_PACK_MAX_CLASSES || n > moe_cursor_left(&c) / 48)
        return pack_damaged(pack, err, "impossible table of expert classes");
    pack->classes = moe_alloc(n, sizeof *pack->classes, err);
    if (!pack->classes)
        return MOE_ERR_MEMORY;
    pack->n_classes = n;
    for (uint32_t i = 0; i < n; i++) {
        int status = parse_class(pack, &c, &pack->classes[i], err);
        if (status != MOE_OK)
            return status;
    }
    if (moe_cursor_left(&c) != 0)
        return pack_damaged(pack, err, "bytes after the table of expert classes");
    return MOE_OK;
}

static bool expert_rises(const struct pack_expert *a, const struct pack_expert *b)
{
    if (a->layer != b->layer)
        return a->layer < b->layer;
    if (a->expert != b->expert)
        return a->expert < b->expert;
    return a->variant < b->variant;
}

static int parse_expert(struct moe_pack *pack, struct moe_cursor *c, struct pack_expert *e,
                        struct moe_err *err)
{
    e->layer = moe_cursor_u32(c);
    e->expert = moe_cursor_u32(c);
    e->variant = moe_cursor_u32(c);
    uint32_t number = moe_cursor_u32(c);
    if (e->layer >= pack->n_layers || e->expert >= pack->n_experts ||
        e->variant >= pack->n_variants || number >= pack->n_classes)
        return pack_damaged(pack, err, "an expert's numbers are out of range");
    if (e > pack->experts && !expert_rises(e - 1, e))
        return pack_damaged(pack, err, "experts are twice there or out of order");
    const struct moe_expert_class *class_ = &pack->classes[number];
    e->extent.present = true;
    e->extent.class_index = number;
    for (uint32_t s = 0; s < class_->n_segments; s++) {
        struct moe_extent *x = &e->extent.segments[s];
        *x = take_extent(c);
        bool follows =
            s == 0 || x->offset == moe_round_up(x[-1].offset + x[-1].stored_bytes, MOE_PACK_ALIGN);
        if (!follows || !extent_valid(pack, x, class_->segment_bytes[s]))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: layer %" PRIu32 " expert %" PRIu32 " variant %s segment %" PRIu32
                            ": its place or size is impossible (file damaged)",
                            pack->path, e->layer, e->expert, pack->variants[e->variant].name, s);
    }
    return MOE_OK;
}

static int parse_experts(struct moe_pack *pack, struct moe_err *err)
{
    struct moe_cursor c = section_cursor(pack, PACK_ID_EXPERTS);
    uint32_t n = moe_cursor_u32(&c);
    uint32_t zero = moe_cursor_u32(&c);
    /* 16 bytes of numbers and at least one extent each. */
    if (c.failed || zero != 0 || n > moe_cursor_left(&c) / 48)
        return pack_damaged(pack, err, "impossible table of experts");
    pack->experts = moe_alloc(n, sizeof *pack->experts, err);
    if (!pack->experts)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < n; i++) {
        int status = parse_expert(pack, &c, &pack->experts[i], err);
        if (status != MOE_OK)
            return status;
        pack->n_stored = i + 1;
    }
    if (c.failed || moe_cursor_left(&c) != 0)
        return pack_damaged(pack, err, "the table of experts has another length than its entries");
    return MOE_OK;
}

int pack_parse_tables(struct moe_pack *pack, struct moe_err *err)
{
    MOE_TRY(parse_variants(pack, err));
    MOE_TRY(parse_tensors(pack, err));
    MOE_TRY(parse_classes(pack, err));
    return parse_experts(pack, err);
}

/*
 * The mark of a pack whose weights were drawn: the member "synthesized" of its provenance, an
 * object. What is not sound JSON marks nothing: a pack is sound without a provenance.
 */

/* The object's members. */
static void read_mark(struct moe_json_scan *s, struct moe_pack_synthesized *out)
{
    struct moe_buf key = {0};
    moe_json_scan_enter(s);
    while (moe_json_scan_next(s, &key)) {
        uint64_t n;
        const char *value = moe_json_scan_raw(s, &n);
        if (strcmp((const char *)key.data, "sparse") == 0 && value)
            out->sparse = n == 4 && memcmp(value, "true", 4) == 0;
    }
    moe_buf_release(&key);
}

struct moe_pack_synthesized moe_pack_synthesized(const struct moe_pack *pack)
{
    struct moe_pack_synthesized out = {0};
    struct moe_json_scan s;
    struct moe_err ignored;
    struct moe_buf key = {0};
    uint64_t n;
    const uint8_t *text = moe_pack_section(pack, MOE_PACK_PROVENANCE, &n);
    if (n == 0 || text[0] != '{')
        return out;
    moe_json_scan_begin(&s, moe_pack_path(pack), text, n, false, &ignored);
    moe_json_scan_enter(&s);
    while (moe_json_scan_next(&s, &key)) {
        out.is |= strcmp((const char *)key.data, "synthesized") == 0;
        if (strcmp((const char *)key.data, "synthesized") == 0 &&
            moe_json_scan_peek(&s) == MOE_JSON_OBJECT)
            read_mark(&s, &out);
        else
            moe_json_scan_skip(&s);
    }
    moe_buf_release(&key);
    moe_json_scan_end(&s);
    return out;
}

int moe_pack_check_meant(const struct moe_pack *pack, struct moe_err *err)
{
    if (!moe_pack_synthesized(pack).is)
        return MOE_OK;
    return moe_fail(
        err, MOE_ERR_USAGE,
        "%s: its weights were drawn by moe-quantize --synthesize, so what it says is no "
        "text; moe-run --bench measures how it runs",
        moe_pack_path(pack));
}

/*
 * What the bytes of a pack are, piece by piece, and whether they still are.
 */

/* ---- Pieces: everything that occupies bytes ---- */

static int compare_pieces(const void *a, const void *b)
{
    const struct moe_extent *x = &((const struct pack_piece *)a)->extent;
    const struct moe_extent *y = &((const struct pack_piece *)b)->extent;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

struct pack_piece *pack_pieces(const struct moe_pack *pack, uint64_t *n, struct moe_err *err)
{
    uint64_t room = (uint64_t)pack->n_sections + pack->n_tensors +
                    (uint64_t)pack->n_stored * MOE_PACK_MAX_SEGMENTS;
    struct pack_piece *pieces = moe_alloc(room, sizeof *pieces, err);
    if (!pieces)
        return NULL;
    uint64_t at = 0;
    for (uint32_t i = 0; i < pack->n_sections; i++) {
        const struct pack_section *s = &pack->table[i];
        if (s->bytes > 0)
            pieces[at++] =
                (struct pack_piece){.kind = PACK_PIECE_SECTION,
                                    .index = i,
                                    .extent = {s->offset, s->bytes, s->bytes, s->checksum}};
    }
    for (uint32_t i = 0; i < pack->n_tensors; i++)
        pieces[at++] = (struct pack_piece){
            .kind = PACK_PIECE_TENSOR, .index = i, .extent = pack->tensors[i].extent};
    for (uint32_t i = 0; i < pack->n_stored; i++) {
        const struct moe_expert_extent *e = &pack->experts[i].extent;
        for (uint32_t s = 0; s < pack->classes[e->class_index].n_segments; s++)
            pieces[at++] = (struct pack_piece){
                .kind = PACK_PIECE_SEGMENT, .index = i, .segment = s, .extent = e->segments[s]};
    }
    qsort(pieces, at, sizeof *pieces, compare_pieces);
    *n = at;
    return pieces;
}

void pack_piece_name(const struct moe_pack *pack, const struct pack_piece *piece, char out[160])
{
    switch (piece->kind) {
    case PACK_PIECE_SECTION:
        snprintf(out, 160, "section %" PRIu32, pack->table[piece->index].id);
        break;
    case PACK_PIECE_TENSOR:
        snprintf(out, 160, "tensor '%s'", pack->tensors[piece->index].name);
        break;
    case PACK_PIECE_SEGMENT: {
        const struct pack_expert *e = &pack->experts[piece->index];
        snprintf(out, 160, "layer %" PRIu32 " expert %" PRIu32 " variant %s segment %" PRIu32,
                 e->layer, e->expert, pack->variants[e->variant].name, piece->segment);
    }
    }
}

int moe_pack_read_all(const struct moe_pack *pack, void *to, struct moe_err *err)
{
    uint64_t n = 0;
    if (!pack->in_place)
        return pack_pread(pack, to, pack->file_bytes, 0, err);
    struct pack_piece *pieces = pack_pieces(pack, &n, err);
    int status = pieces ? MOE_OK : MOE_ERR_MEMORY;
    for (uint64_t i = 0; i < n && status == MOE_OK; i++)
        if (pieces[i].kind != PACK_PIECE_SECTION)
            status = pack->in_place->read(pack->in_place, &pieces[i].extent,
                                          (uint8_t *)to + pieces[i].extent.offset, err);
    free(pieces);
    return status;
}

/* ---- Verifying ---- */

/* Reads one piece with the padding after it, which must be zeros up to the next unit. */
static int verify_piece(const struct moe_pack *pack, const struct pack_piece *piece,
                        struct moe_err *err)
{
    const struct moe_extent *extent = &piece->extent;
    uint64_t padded = moe_round_up(extent->stored_bytes, MOE_PACK_ALIGN);
    int status = MOE_ERR_MEMORY;
    uint8_t *stored = moe_pages_alloc(padded, err);
    void *raw = stored && extent->raw_bytes != extent->stored_bytes
                    ? moe_pages_alloc(extent->raw_bytes, err)
                    : stored;
    if (!raw)
        goto done;
    status = pack_pread(pack, stored, padded, extent->offset, err);
    if (status != MOE_OK)
        goto done;
    const char *problem = NULL;
    for (uint64_t i = extent->stored_bytes; i < padded && !problem; i++)
        if (stored[i] != 0)
            problem = "the padding after it is not zero";
    if (!problem)
        problem = pack_decode(extent, stored, raw);
    if (problem) {
        char name[160];
        pack_piece_name(pack, piece, name);
        status =
            moe_fail(err, MOE_ERR_FORMAT, "%s: %s: %s (file damaged)", pack->path, name, problem);
    }
done:
    if (raw != stored)
        moe_pages_free(raw, extent->raw_bytes);
    moe_pages_free(stored, padded);
    return status;
}

int moe_pack_verify(const struct moe_pack *pack, const struct moe_progress *progress,
                    uint64_t *bytes, struct moe_err *err)
{
    uint64_t n;
    if (pack->in_place)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: has no checksums to verify; a pack made of it with moe-quantize has",
                        pack->path);
    struct pack_piece *pieces = pack_pieces(pack, &n, err);
    if (!pieces)
        return MOE_ERR_MEMORY;
    int status = MOE_OK;
    for (uint64_t i = 0; i < n && status == MOE_OK; i++) {
        if (moe_progress_stopped(progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "%s: stopped before everything was read",
                              pack->path);
        else
            status = verify_piece(pack, &pieces[i], err);
        moe_progress_report(progress, "verifying",
                            i + 1 < n ? pieces[i + 1].extent.offset : pack->file_bytes,
                            pack->file_bytes);
    }
    free(pieces);
    if (bytes && status == MOE_OK)
        *bytes = pack->file_bytes; /* opening made sure that header and pieces cover the file */
    return status;
}

/* ---- Bits of experts ---- */

bool moe_class_bits(const struct moe_expert_class *class_, struct moe_bits *out)
{
    *out = (struct moe_bits){0};
    for (uint32_t i = 0; i < class_->n_matrices; i++) {
        const struct moe_class_matrix *m = &class_->matrices[i];
        int bits = moe_layout_bits(m->layout.kind);
        if (m->role == MOE_ROLE_GATE || m->role == MOE_ROLE_UP)
            out->gate_up = bits > out->gate_up ? bits : out->gate_up;
        else if (m->role == MOE_ROLE_DOWN)
            out->down = bits;
    }
    return out->gate_up > 0 && out->down > 0;
}

bool moe_class_types(const struct moe_expert_class *class_, struct moe_bits *out)
{
    if (!moe_class_bits(class_, out))
        return false;
    for (uint32_t i = 0; i < class_->n_matrices; i++) {
        const struct moe_class_matrix *m = &class_->matrices[i];
        if (!moe_bits_names(m->layout.kind))
            continue;
        if (m->role == MOE_ROLE_GATE || m->role == MOE_ROLE_UP)
            out->gate_up = MOE_BITS_KIND + m->layout.kind;
        else if (m->role == MOE_ROLE_DOWN)
            out->down = MOE_BITS_KIND + m->layout.kind;
    }
    return true;
}

bool moe_class_has_gate(const struct moe_expert_class *class_)
{
    bool has = false;
    for (uint32_t i = 0; i < class_->n_matrices; i++)
        has |= class_->matrices[i].role == MOE_ROLE_GATE;
    return has;
}

bool moe_variant_bits(const struct moe_pack_variant *variant, struct moe_bits *out)
{
    return moe_parse_variant(variant->name, out);
}
