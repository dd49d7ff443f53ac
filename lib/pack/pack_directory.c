/*
 * The end of a pack that is written: the tables of its directory, and its header.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/mem.h"
#include "pack/pack_writer.h"

int pack_wrong_use(const struct moe_pack_writer *w, struct moe_err *err, const char *what,
                   const char *name)
{
    return moe_fail(err, MOE_ERR_USAGE, "%s: %s: %s", w->file.path, name, what);
}

/* Writes bytes at the next free place and zeros up to the one after. */
int pack_write_padded(struct moe_pack_writer *w, const void *data, uint64_t n, struct moe_err *err)
{
    static const uint8_t zeros[MOE_PACK_ALIGN];
    uint64_t end = w->at + n, padded = moe_round_up(end, MOE_PACK_ALIGN);
    int status = moe_outfile_write(&w->file, data, n, w->at, err);
    if (status == MOE_OK)
        status = moe_outfile_write(&w->file, zeros, padded - end, end, err);
    if (status == MOE_OK)
        w->at = padded;
    return status;
}

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
        put_name(b, w->variants[i].name, MOE_PACK_NAME_BYTES);
        put_name(b, w->variants[i].method, PACK_METHOD_BYTES);
    }
}

static void write_tensors(const struct moe_pack_writer *w, struct moe_buf *b)
{
    moe_buf_u32(b, (uint32_t)w->n_tensors);
    moe_buf_u32(b, 0);
    for (uint64_t i = 0; i < w->n_tensors; i++) {
        const struct moe_pack_tensor *t = &w->tensors[i];
        put_name(b, t->name, MOE_PACK_NAME_BYTES);
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

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
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
    qsort(names, w->n_tensors, sizeof *names, compare_names);
    int status = MOE_OK;
    for (uint64_t i = 1; i < w->n_tensors && status == MOE_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            status = pack_wrong_use(w, err, "the tensor was put twice", names[i]);
    free(names);
    return status;
}

/* Without the optional one where that is empty. */
static uint32_t n_sections(const struct moe_pack_writer *w)
{
    return w->sections[MOE_PACK_SAMPLING].size ? PACK_N_KNOWN : PACK_N_IDS;
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
    for (uint32_t id = 1; id <= n_sections(w) && status == MOE_OK; id++) {
        const struct moe_buf *b = contents[id];
        if (b->failed)
            status =
                moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory: the directory", w->file.path);
        else if (b->size > pack_section_max(id))
            status = moe_fail(err, MOE_ERR_LIMIT,
                              "%s: a section would have %" PRIu64 " bytes, more than %" PRIu64,
                              w->file.path, b->size, pack_section_max(id));
        uint8_t *entry = header + PACK_TABLE_AT + (id - 1) * PACK_SECTION_ENTRY_BYTES;
        moe_put_u32(entry, id);
        moe_put_u64(entry + 8, b->size ? w->at : 0);
        moe_put_u64(entry + 16, b->size);
        moe_put_u64(entry + 24, moe_hash64(b->data ? b->data : header, b->size));
        if (status == MOE_OK)
            status = pack_write_padded(w, b->data, b->size, err);
    }
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        moe_buf_release(&tables[i]);
    return status;
}

static void fill_header(const struct moe_pack_writer *w, uint8_t *header)
{
    memcpy(header, PACK_MAGIC, 4);
    moe_put_u32(header + 4, MOE_PACK_VERSION);
    moe_put_u32(header + 8, PACK_HEADER_BYTES);
    moe_put_u32(header + 12, n_sections(w));
    moe_put_u64(header + 16, w->at);
    moe_put_u64(header + 24, w->features);
    moe_put_u64(header + 32, 0); /* optional features */
    moe_put_u64(header + 40, moe_hash64_chain(w->source_fingerprint, header + PACK_TABLE_AT,
                                              n_sections(w) * PACK_SECTION_ENTRY_BYTES));
    moe_put_u64(header + 48, w->source_fingerprint);
    moe_put_u64(header + PACK_CHECKSUM_AT, moe_hash64(header, PACK_CHECKSUM_AT));
}

int pack_write_directory(struct moe_pack_writer *w, struct moe_err *err)
{
    uint8_t header[PACK_HEADER_BYTES] = {0};
    int status = check_unique(w, err);
    if (status == MOE_OK)
        status = write_directory(w, header, err);
    if (status != MOE_OK)
        return status;
    fill_header(w, header);
    return moe_outfile_write(&w->file, header, sizeof header, 0, err);
}
