/* Opening a pack: the one place that turns untrusted bytes into a struct moe_pack. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "fmt/pack_format.h"

static int damaged(const struct moe_pack *pack, struct moe_err *err, const char *what)
{
    return moe_fail(err, MOE_ERR_FORMAT, "%s: %s (file damaged)", pack->path, what);
}

static int too_new(const struct moe_pack *pack, struct moe_err *err, const char *what)
{
    return moe_fail(err, MOE_ERR_VERSION, "%s: %s; a newer moe-toolkit wrote it", pack->path, what);
}

static bool all_zero(const uint8_t *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (p[i] != 0)
            return false;
    return true;
}

/* ---- Header ---- */

/* The file does not begin like a pack: say what it may be and what to do. */
static int fail_not_a_pack(const struct moe_pack *pack, const uint8_t *start, struct moe_err *err)
{
    size_t n = strlen(pack->path);
    if (memcmp(start, "GGUF", 4) == 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: a .gguf file, not an expert pack; make one with 'moe-quantize %s'",
                        pack->path, pack->path);
    if (n > 12 && strcmp(pack->path + n - 12, ".safetensors") == 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: a checkpoint's weights, not an expert pack; make one with "
                        "'moe-quantize DIRECTORY', the directory that holds this file",
                        pack->path);
    return moe_fail(err, MOE_ERR_FORMAT, "%s: not an expert pack (it does not begin with MOEP)",
                    pack->path);
}

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
            return damaged(pack, err, "sections are missing, twice there or out of order");
        if (zero != 0 || s->bytes > PACK_MAX_SECTION_BYTES ||
            (s->bytes == 0 ? s->offset != 0
                           : s->offset < PACK_HEADER_BYTES || s->offset % MOE_PACK_ALIGN != 0 ||
                                 s->offset > offset_max || s->bytes > offset_max - s->offset))
            return damaged(pack, err, "a section does not lie inside the file");
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
    moe_cursor_u64(&c); /* optional features: whatever they are, this reader may ignore them */
    pack->fingerprint = moe_cursor_u64(&c);
    pack->source_fingerprint = moe_cursor_u64(&c);
    uint64_t reserved = moe_cursor_u64(&c);

    if (version != MOE_PACK_VERSION)
        return moe_fail(err, MOE_ERR_VERSION,
                        "%s: pack version %" PRIu32 ", this program reads version %d", pack->path,
                        version, MOE_PACK_VERSION);
    if (moe_hash64(header, PACK_CHECKSUM_AT) != moe_get_u64(header + PACK_CHECKSUM_AT))
        return damaged(pack, err, "checksum mismatch in the header");
    if (required & ~PACK_KNOWN_FEATURES)
        return moe_fail(err, MOE_ERR_VERSION,
                        "%s: needs features 0x%" PRIx64 " that this program does not have; a newer "
                        "moe-toolkit wrote it",
                        pack->path, required & ~PACK_KNOWN_FEATURES);
    if (file_bytes != pack->file_bytes)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: has %" PRIu64 " bytes, %" PRIu64 " were written (%s)", pack->path,
                        pack->file_bytes, file_bytes,
                        pack->file_bytes < file_bytes ? "cut short" : "something was appended");
    if (header_bytes != PACK_HEADER_BYTES || reserved != 0 || pack->n_sections < PACK_N_IDS ||
        pack->n_sections > PACK_MAX_SECTIONS)
        return damaged(pack, err, "impossible header");
    int status = parse_table(pack, &c, err);
    if (status != MOE_OK)
        return status;
    uint64_t table_bytes = (uint64_t)pack->n_sections * PACK_SECTION_ENTRY_BYTES;
    if (!all_zero(header + c.offset, PACK_CHECKSUM_AT - c.offset))
        return damaged(pack, err, "reserved bytes of the header are not zero");
    if (moe_hash64_chain(pack->source_fingerprint, header + PACK_TABLE_AT, table_bytes) !=
        pack->fingerprint)
        return damaged(pack, err, "the fingerprint does not match the directory");
    return MOE_OK;
}

static int read_sections(struct moe_pack *pack, struct moe_err *err)
{
    for (uint32_t i = 0; i < PACK_N_IDS; i++) {
        const struct pack_section *s = &pack->table[i];
        /* One byte more: sections that are texts end in a NUL for whoever prints them. */
        uint8_t *data = moe_alloc(s->bytes + 1, 1, err);
        if (!data)
            return MOE_ERR_MEMORY;
        pack->sections[i] = data;
        int status = moe_file_pread(pack->fd, pack->path, data, s->bytes, s->offset, err);
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

static struct moe_cursor section_cursor(const struct moe_pack *pack, uint32_t id)
{
    return moe_cursor_over(pack->sections[id - 1], pack->table[id - 1].bytes);
}

/* ---- Tables ---- */

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
           e->raw_bytes / PACK_MAX_RATIO <= e->stored_bytes && e->offset >= PACK_HEADER_BYTES &&
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
    if (!memchr(out, '\0', n) || !all_zero(p + strlen(out), n - strlen(out)))
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
    uint32_t zero = moe_cursor_u32(&c);
    if (zero != 0 || pack->n_layers > MOE_PACK_MAX_LAYERS ||
        pack->n_experts > MOE_PACK_MAX_EXPERTS || pack->n_variants > MOE_PACK_MAX_VARIANTS ||
        moe_cursor_left(&c) != (uint64_t)pack->n_variants * PACK_VARIANT_BYTES)
        return damaged(pack, err, "impossible table of variants");
    for (uint32_t i = 0; i < pack->n_variants; i++) {
        struct moe_pack_variant *v = &pack->variants[i];
        take_name(&c, v->name, sizeof v->name);
        take_name(&c, v->method, sizeof v->method);
        if (!pack_name_valid(v->name, sizeof v->name) ||
            !pack_name_valid(v->method, sizeof v->method))
            return damaged(pack, err, "a variant without a proper name");
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(pack->variants[j].name, v->name) == 0)
                return damaged(pack, err, "two variants of one name");
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
            status = moe_fail(err, MOE_ERR_FORMAT, "%s: tensor '%s' is there twice (file damaged)",
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
        return damaged(pack, err, "impossible table of tensors");
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
        return damaged(pack, err, "the table of expert classes ends early");
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
    /* A class has at least 8 bytes of counts, a segment and a matrix: n cannot be a lie that costs
     * much memory. */
    if (c.failed || zero != 0 || n > MOE_PACK_MAX_CLASSES || n > moe_cursor_left(&c) / 48)
        return damaged(pack, err, "impossible table of expert classes");
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
        return damaged(pack, err, "bytes behind the table of expert classes");
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
        return damaged(pack, err, "an expert's numbers are out of range");
    if (e > pack->experts && !expert_rises(e - 1, e))
        return damaged(pack, err, "experts are twice there or out of order");
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
        return damaged(pack, err, "impossible table of experts");
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
        return damaged(pack, err, "the table of experts has another length than its entries");
    return MOE_OK;
}

/* The pieces, padded, follow each other from the header to the file's end: nothing overlaps, and no
 * byte of the file lies outside all checksums except padding. */
static int check_tiling(const struct moe_pack *pack, struct moe_err *err)
{
    uint64_t n;
    struct pack_piece *pieces = pack_pieces(pack, &n, err);
    if (!pieces)
        return MOE_ERR_MEMORY;
    int status = MOE_OK;
    uint64_t at = PACK_HEADER_BYTES;
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
        status = damaged(pack, err, "its end belongs to nothing");
    free(pieces);
    return status;
}

int moe_pack_open(struct moe_pack **out, const char *path, struct moe_err *err)
{
    *out = NULL;
    if (moe_path_is_directory(path))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: a directory, not an expert pack; if it is a checkpoint, make a pack "
                        "with 'moe-quantize %s'",
                        path, path);
    struct moe_pack *pack = moe_alloc(1, sizeof *pack, err);
    if (!pack)
        return MOE_ERR_MEMORY;
    pack->fd = -1;
    uint8_t header[PACK_HEADER_BYTES] = {0};
    int status = MOE_ERR_MEMORY;
    pack->path = moe_strndup(path, strlen(path), err);
    if (!pack->path)
        goto done;
    int fd = moe_file_open(path, &pack->file_bytes, err);
    if (fd < 0) {
        status = fd;
        goto done;
    }
    pack->fd = fd;
    uint64_t n = pack->file_bytes < sizeof header ? pack->file_bytes : sizeof header;
    status = moe_file_pread(fd, path, header, n, 0, err);
    if (status == MOE_OK && memcmp(header, PACK_MAGIC, 4) != 0)
        status = fail_not_a_pack(pack, header, err);
    if (status == MOE_OK && n < sizeof header)
        status = damaged(pack, err, "too short for an expert pack");
    if (status == MOE_OK)
        status = parse_header(pack, header, err);
    if (status == MOE_OK)
        status = read_sections(pack, err);
    if (status == MOE_OK)
        status = parse_variants(pack, err);
    if (status == MOE_OK)
        status = parse_tensors(pack, err);
    if (status == MOE_OK)
        status = parse_classes(pack, err);
    if (status == MOE_OK)
        status = parse_experts(pack, err);
    if (status == MOE_OK)
        status = check_tiling(pack, err);
done:
    if (status == MOE_OK)
        *out = pack;
    else
        moe_pack_close(pack);
    return status;
}
