#include "pack/pack.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "pack/pack_format.h"

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

static bool dims_valid(uint32_t rows, uint32_t cols)
{
    return rows > 0 && rows <= MOE_MAX_DIM && cols > 0 && cols <= MOE_MAX_DIM;
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
    if (!dims_valid(t->rows, t->cols))
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
        if (!dims_valid(m->rows, m->cols))
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

uint64_t moe_pack_file_bytes(const struct moe_pack *pack)
{
    return pack->file_bytes;
}

uint64_t moe_pack_directory_bytes(const struct moe_pack *pack)
{
    uint64_t bytes = sizeof *pack + strlen(pack->path) + 1;
    for (uint32_t i = 0; i < pack_n_known(pack); i++)
        bytes += pack->table[i].bytes + 1;
    return bytes + pack->n_tensors * (sizeof *pack->tensors + sizeof *pack->tensors_by_name) +
           pack->n_classes * sizeof *pack->classes +
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

const uint8_t *moe_pack_section(const struct moe_pack *pack, enum moe_pack_section id, uint64_t *n)
{
    static const uint8_t nothing[1];
    uint32_t i = pack_section_id(id) - 1; /* opening made sure that entry i is id i + 1 */
    *n = i < pack_n_known(pack) ? pack->table[i].bytes : 0;
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

const char *pack_decode(const struct moe_extent *extent, const void *stored, void *to)
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
        return "its zstd frame has another size than the directory says";
    size_t got = ZSTD_decompress(to, extent->raw_bytes, stored, extent->stored_bytes);
    if (ZSTD_isError(got) || got != extent->raw_bytes)
        return "its zstd frame cannot be decompressed";
    return NULL;
}

int moe_pack_decode(const struct moe_pack *pack, const struct moe_extent *extent,
                    const void *stored, void *to, const char *what, struct moe_err *err)
{
    const char *problem = pack_decode(extent, stored, to);
    if (problem)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: %s: %s (file damaged? run moe-quantize --verify)",
                        pack->path, what, problem);
    return MOE_OK;
}

int pack_pread(const struct moe_pack *pack, void *to, uint64_t n, uint64_t offset,
               struct moe_err *err)
{
    if (!pack->image)
        return moe_file_pread(pack->fd, pack->path, to, n, offset, err);
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
    bool compressed = extent->stored_bytes != extent->raw_bytes;
    void *stored = compressed ? moe_alloc(extent->stored_bytes, 1, err) : to;
    if (!stored)
        return MOE_ERR_MEMORY;
    int status = pack_pread(pack, stored, extent->stored_bytes, extent->offset, err);
    if (status == MOE_OK)
        status = moe_pack_decode(pack, extent, stored, to, what, err);
    if (compressed)
        free(stored);
    return status;
}

static void stage(uint64_t *largest, const struct moe_extent *x)
{
    if (x->stored_bytes != x->raw_bytes && x->stored_bytes > *largest)
        *largest = x->stored_bytes;
}

uint64_t moe_pack_staging_bytes(const struct moe_pack *pack)
{
    uint64_t largest = 0;
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
