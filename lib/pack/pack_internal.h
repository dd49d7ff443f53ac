/*
 * What the pack's reader and writer share: the numbers of man/moe-pack.5, the opened pack, and the
 * rules that both sides hold tensors and classes to.
 */
#ifndef MOE_PACK_PACK_INTERNAL_H
#define MOE_PACK_PACK_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "pack/pack.h"

/* Section ids as written; those of enum moe_pack_section are pack_section_id's. */
enum {
    PACK_ID_MODEL = 1,
    PACK_ID_TOKENIZER,
    PACK_ID_CHAT,
    PACK_ID_PROVENANCE,
    PACK_ID_TENSORS,
    PACK_ID_VARIANTS,
    PACK_ID_CLASSES,
    PACK_ID_EXPERTS,
    PACK_N_IDS = PACK_ID_EXPERTS, /* every pack has each of these once */
    PACK_ID_SAMPLING,             /* a pack may have these, too */
    PACK_ID_MAPS,
    PACK_N_KNOWN = PACK_ID_MAPS,
};

enum {
    PACK_CHECKSUM_AT = MOE_PACK_HEADER_BYTES - 8, /* of the header's bytes before it */
    PACK_TABLE_AT = 64,                           /* of the section table in the header */
    PACK_SECTION_ENTRY_BYTES = 32,
    PACK_MAX_SECTIONS = 64,
    PACK_TENSOR_BYTES = 112,
    PACK_VARIANT_BYTES = 80,
    PACK_MATRIX_ALIGN = 64,
    /* A zstd block of 4 bytes expands to at most 128 KiB: a larger ratio is a damaged size. */
    PACK_MAX_RATIO = 1 << 16,
};

#define PACK_MAGIC "MOEP"

/* Required features: a reader that does not know a set bit must refuse the file. */
#define PACK_FEATURE_ZSTD (UINT64_C(1) << 0)  /* some extents are zstd frames */
#define PACK_FEATURE_AHEAD (UINT64_C(1) << 1) /* there are layers behind the model's */
#define PACK_KNOWN_FEATURES (PACK_FEATURE_ZSTD | PACK_FEATURE_AHEAD)

struct pack_section {
    uint32_t id;
    uint64_t offset, bytes, checksum;
};

/* A stored expert; the table is sorted by layer, expert, variant. */
struct pack_expert {
    uint32_t layer, expert, variant;
    struct moe_expert_extent extent;
};

/* What makes a checkpoint a pack (in_place.c): its directory is in memory, its extents are made of
 * ranges of the checkpoint's files when they are read. */
struct pack_in_place {
    struct moe_arranger arranger;
    uint64_t staging_bytes;   /* what all that `read` take at most */
    uint64_t directory_bytes; /* what it holds itself */
    const char *type;         /* of most bytes in a .gguf file, as it names types; NULL: no such */
    int (*read)(struct pack_in_place *in_place, const struct moe_extent *extent, void *to,
                struct moe_err *err);
    uint32_t (*part_rows)(const struct moe_pack_tensor *matrix);
    int (*read_part)(const struct pack_in_place *in_place, const struct moe_pack_tensor *matrix,
                     uint32_t row, void *to, struct moe_err *err);
    void (*read_ahead)(const struct pack_in_place *in_place, const struct moe_extent *extent);
    struct moe_tokenizer *(*take_tokenizer)(struct pack_in_place *in_place);
    void (*close)(struct pack_in_place *in_place);
};

struct moe_pack {
    char *path;
    struct pack_in_place *in_place; /* owned; NULL: a pack's file */
    int fd;                         /* -1 in place */
    uint64_t file_bytes, fingerprint, source_fingerprint;
    const uint8_t *image;              /* the file in memory, borrowed; NULL: it is read */
    const volatile sig_atomic_t *stop; /* (moe_pack_stop_with) */

    struct pack_section table[PACK_MAX_SECTIONS]; /* in file order of the table: rising ids */
    uint32_t n_sections;
    uint8_t *sections[PACK_N_KNOWN]; /* contents of the known ids; NULL where it is not there */

    struct moe_pack_tensor *tensors;
    uint32_t n_tensors;
    uint32_t *tensors_by_name; /* numbers, sorted by name */

    uint32_t n_layers, n_experts; /* all layers */
    uint32_t n_ahead;             /* of them, the last: see moe_pack_take_ahead */
    bool takes_ahead;
    uint64_t features; /* required ones */
    struct moe_pack_variant variants[MOE_MAX_VARIANTS];
    uint32_t n_variants;
    struct moe_expert_class *classes;
    uint32_t n_classes;
    struct pack_expert *experts;
    uint32_t n_stored; /* experts in the table, over all layers and variants */
    uint32_t taken;    /* the map that was taken, counted from 1; 0: none */
};

/* Something that occupies bytes of the file. */
struct pack_piece {
    enum { PACK_PIECE_SECTION, PACK_PIECE_TENSOR, PACK_PIECE_SEGMENT } kind;
    uint32_t index;   /* of the section in the table, the tensor, or the stored expert */
    uint32_t segment; /* of the expert */
    struct moe_extent extent;
};

/* The id of an opaque section. */
static inline uint32_t pack_section_id(enum moe_pack_section section)
{
    return section < MOE_PACK_SAMPLING ? (uint32_t)section + 1
                                       : PACK_ID_SAMPLING + (uint32_t)(section - MOE_PACK_SAMPLING);
}

/* How many of the pack's sections, the first, have known ids. */
static inline uint32_t pack_n_known(const struct moe_pack *pack)
{
    uint32_t n = PACK_N_IDS;
    while (n < pack->n_sections && pack->table[n].id <= PACK_N_KNOWN)
        n++;
    return n;
}

/* Opens the pack in a file that is open already; takes the descriptor. path begins error texts. */
int pack_open_file(struct moe_pack **out, const char *path, int fd, uint64_t file_bytes,
                   const struct moe_pack_image *image, struct moe_err *err);
/* The same as moe_pack_create and _commit for a directory without weights: those that are put are
 * NULL. The pack that pack_open_file finds in *fd says where they would be, with checksums of 0. */
int pack_create_directory(struct moe_pack_writer **out, const char *path, uint32_t n_layers,
                          uint32_t n_experts, const struct moe_pack_variant *variants,
                          uint32_t n_variants, struct moe_err *err);
int pack_end_directory(struct moe_pack_writer *w, int *fd, uint64_t *file_bytes,
                       struct moe_err *err);

/* The tables, from sections that have been read. */
int pack_parse_tables(struct moe_pack *pack, struct moe_err *err);
/* What pack_maps.c makes sure of in the section of maps. */
int pack_check_maps(const struct moe_pack *pack, struct moe_err *err);
/* MOE_ERR_FORMAT, "PATH: WHAT (file damaged)". */
int pack_damaged(const struct moe_pack *pack, struct moe_err *err, const char *what);
bool pack_all_zero(const uint8_t *p, uint64_t n);

/* The most bytes that the section of a known id can have: what its tables' limits allow, and for
 * the others several times what the largest models need. */
uint64_t pack_section_max(uint32_t id);
/* Whether a table of n entries can have this size. */
bool pack_count_fits(uint32_t id, uint32_t n, uint64_t bytes);

/* All pieces of the pack in file order; free() them. NULL: out of memory. */
struct pack_piece *pack_pieces(const struct moe_pack *pack, uint64_t *n, struct moe_err *err);
/* "tensor 'embed'", "layer 3 expert 17 variant 4 segment 1", "section 5" */
void pack_piece_name(const struct moe_pack *pack, const struct pack_piece *piece, char out[160]);

/* NULL, or what is wrong with a tensor's or class's description. */
const char *pack_tensor_problem(const struct moe_pack_tensor *tensor);
const char *pack_class_problem(const struct moe_expert_class *class_);
/* True for 1 to room-1 printable ASCII characters other than space and a NUL. */
bool pack_name_valid(const char *name, uint64_t room);
/* Bytes of a tensor whose description is sound. */
uint64_t pack_tensor_raw_bytes(const struct moe_pack_tensor *tensor);

#endif
