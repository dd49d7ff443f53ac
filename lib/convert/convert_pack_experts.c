/* Re-packing experts: each is copied, or quantized from its most precise stored form. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "convert/convert_repack.h"

/* Reads an expert's segments into memory of its own; free() *block. */
static int read_expert(const struct repack *r, const struct moe_expert_extent *e, uint32_t layer,
                       uint32_t expert, uint8_t **block, uint8_t *segments[MOE_PACK_MAX_SEGMENTS],
                       struct moe_err *err)
{
    const struct moe_expert_class *class_ = moe_pack_class_at(r->pack, e->class_index);
    int status = convert_alloc_segments(class_, block, segments, err);
    for (uint32_t s = 0; s < class_->n_segments && status == MOE_OK; s++) {
        char what[80];
        snprintf(what, sizeof what, "layer %" PRIu32 " expert %" PRIu32 " segment %" PRIu32, layer,
                 expert, s);
        status = moe_pack_read(r->pack, &e->segments[s], segments[s], what, err);
    }
    return status;
}

static int put_segments(struct converter *c, uint32_t layer, uint32_t expert, int variant,
                        const struct moe_expert_class *class_, uint8_t *const *segments,
                        struct moe_err *err)
{
    uint32_t index;
    int status = moe_pack_put_class(c->writer, class_, &index, err);
    if (status == MOE_OK)
        status = moe_pack_put_expert(c->writer, layer, expert, (uint32_t)variant, index,
                                     (const void *const *)segments, err);
    return status;
}

static int copy_expert(struct converter *c, const struct repack *r,
                       const struct moe_expert_extent *e, uint32_t layer, uint32_t expert,
                       int variant, struct moe_err *err)
{
    uint8_t *block = NULL, *segments[MOE_PACK_MAX_SEGMENTS];
    const struct moe_expert_class *class_ = moe_pack_class_at(r->pack, e->class_index);
    int status = read_expert(r, e, layer, expert, &block, segments, err);
    if (status == MOE_OK)
        status = put_segments(c, layer, expert, variant, class_, segments, err);
    for (uint32_t s = 0; s < class_->n_segments; s++) {
        c->done += class_->segment_bytes[s];
        c->report->source_bytes += class_->segment_bytes[s];
    }
    free(block);
    return status;
}

/* One matrix of a new variant from the same matrix of the best stored one. */
static int encode_matrix(struct converter *c, int variant, const struct moe_class_matrix *from,
                         const uint8_t *from_data, const struct moe_class_matrix *to,
                         uint8_t *to_data, const struct row_source *source, struct moe_err *err)
{
    if (moe_expert_part_is_bias(convert_part_of(from->role))) {
        memcpy(to_data, from_data, 4 * (uint64_t)from->rows);
        return MOE_OK;
    }
    struct row_target target = {to->layout, to_data,
                                &c->report->error[c->variants[variant].option]};
    return convert_rows(c, source, &target, 1, err);
}

static int encode_expert(struct converter *c, const struct repack *r,
                         const struct moe_expert_extent *e, uint32_t layer, uint32_t expert,
                         int variant, struct moe_err *err)
{
    const struct moe_expert_class *class_ = moe_pack_class_at(r->pack, e->class_index);
    struct moe_expert_class new_class = *class_;
    struct moe_mat mats[MOE_PACK_MAX_MATRICES];
    struct row_source sources[MOE_PACK_MAX_MATRICES];
    uint8_t *block = NULL, *new_block = NULL;
    uint8_t *segments[MOE_PACK_MAX_SEGMENTS], *new_segments[MOE_PACK_MAX_SEGMENTS];
    const struct moe_bits wanted = convert_bits(c, variant, layer, expert);
    char name[64];
    snprintf(name, sizeof name, "layer %" PRIu32 " expert %" PRIu32, layer, expert);
    int status = read_expert(r, e, layer, expert, &block, segments, err);
    for (uint32_t i = 0; i < class_->n_matrices && status == MOE_OK; i++) {
        const struct moe_class_matrix *m = &class_->matrices[i];
        int bits = convert_part_bits(wanted, convert_part_of(m->role));
        int has = moe_layout_bits(m->layout.kind);
        mats[i] = (struct moe_mat){segments[m->segment] + m->offset, m->layout, m->rows, m->cols};
        if (bits == 0)
            continue;
        if (bits > has)
            status = repack_refuse_more_bits(c, name, has, bits, err);
        else
            status = repack_source(c, name, &mats[i], bits, &sources[i], err);
        sources[i].part = moe_expert_part_spec(convert_part_of(m->role))->pack_name;
        if (status == MOE_OK)
            new_class.matrices[i].layout = convert_layout(c, bits, sources[i].float16_kind);
    }
    if (status == MOE_OK) {
        convert_place_matrices(&new_class);
        status = convert_alloc_segments(&new_class, &new_block, new_segments, err);
    }
    for (uint32_t i = 0; i < class_->n_matrices && status == MOE_OK; i++) {
        const struct moe_class_matrix *to = &new_class.matrices[i];
        const struct moe_matrix_name matrix = {layer, true, convert_part_of(to->role), expert};
        int bits = convert_part_bits(wanted, convert_part_of(to->role));
        if (bits)
            status = convert_find_inputs(c, &matrix, bits, &sources[i], err);
        if (status == MOE_OK)
            status = encode_matrix(c, variant, &class_->matrices[i], mats[i].data, to,
                                   new_segments[to->segment] + to->offset, &sources[i], err);
    }
    if (status == MOE_OK)
        status = put_segments(c, layer, expert, variant, &new_class, new_segments, err);
    free(block);
    free(new_block);
    return status;
}

static void count_expert(struct converter *c, const struct repack *r, uint32_t layer,
                         uint32_t expert)
{
    const struct moe_expert_extent *e = repack_best(r->pack, layer, expert).extent;
    const struct moe_expert_class *class_ = e ? moe_pack_class_at(r->pack, e->class_index) : NULL;
    for (uint32_t i = 0; class_ && i < class_->n_matrices; i++)
        c->report->expert_weights += (uint64_t)class_->matrices[i].rows * class_->matrices[i].cols;
}

int repack_put_experts(struct converter *c, const struct repack *r, struct moe_err *err)
{
    int status = MOE_OK;
    for (uint32_t layer = 0; layer < moe_pack_n_layers(r->pack); layer++)
        for (uint32_t e = 0; e < moe_pack_n_experts(r->pack) && status == MOE_OK; e++) {
            count_expert(c, r, layer, e);
            for (int v = 0; v < c->n_variants && status == MOE_OK; v++) {
                struct repack_origin from = repack_origin(c, r, layer, e, v);
                status = convert_check_stop(c, err);
                if (status == MOE_OK && from.extent)
                    status = (from.copied ? copy_expert : encode_expert)(c, r, from.extent, layer,
                                                                         e, v, err);
                moe_progress_report(c->options->progress, "packing", c->done, c->total);
            }
        }
    return status;
}
