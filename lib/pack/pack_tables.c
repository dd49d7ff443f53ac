/*
 * The tables of a pack's directory, read and checked: variants, tensors, classes, experts.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "pack/pack_format.h"

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
        [PACK_ID_VARIANTS] = 16 + MOE_PACK_MAX_VARIANTS * PACK_VARIANT_BYTES,
        [PACK_ID_CLASSES] = 8 + (uint64_t)MOE_PACK_MAX_CLASSES * CLASS_BYTES_MAX,
        [PACK_ID_SAMPLING] = 1 << 20,  /* a hundred bytes */
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
    if (pack->n_ahead > (may_be_ahead ? pack->n_layers : 0) ||
        pack->n_layers > MOE_PACK_MAX_LAYERS || pack->n_experts > MOE_PACK_MAX_EXPERTS ||
        pack->n_variants > MOE_PACK_MAX_VARIANTS ||
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
    int status = parse_variants(pack, err);
    if (status == MOE_OK)
        status = parse_tensors(pack, err);
    if (status == MOE_OK)
        status = parse_classes(pack, err);
    return status == MOE_OK ? parse_experts(pack, err) : status;
}
