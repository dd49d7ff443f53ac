/*
 * What the bytes of a pack are, piece by piece, and whether they still are.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/mem.h"
#include "pack/pack_format.h"

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
