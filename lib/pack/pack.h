/*
 * Expert pack (.moe): the one file that moe-run needs. Format: man/moe-pack.5.
 *
 * A pack holds a directory (model description, tokenizer, chat template, dense tensors, expert
 * classes and extents) and the weights, each in the layout the kernels consume
 * (quant/layout.h). Every extent starts at a multiple of 4096 bytes and has a checksum; it may be
 * compressed with zstd. This module knows names, extents and bytes; what the model description
 * means is model/config.h's business, what the tokenizer section means text/tokenizer.h's.
 *
 * An expert's variant is one run of consecutive segments in the file (first gate and up, then
 * down), so that a miss is one direct read and computation can start on the first segment. Which
 * matrices are in which segment, and how, is a class; experts refer to classes, so each expert may
 * have bitwidths of its own.
 */
#ifndef MOE_PACK_PACK_H
#define MOE_PACK_PACK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/file.h"
#include "base/progress.h"
#include "model/config.h"
#include "quant/bits.h"
#include "quant/layout.h"

enum {
    MOE_PACK_VERSION = 1,
    MOE_PACK_ALIGN = 4096,
    MOE_PACK_HEADER_BYTES = 4096,
    MOE_PACK_MAX_SEGMENTS = 4, /* of one expert variant */
    MOE_PACK_MAX_MATRICES = 8, /* of one expert variant */
    MOE_PACK_MAX_TENSORS = 1 << 20,
    MOE_PACK_MAX_CLASSES = 1 << 16,
};

/* Sections that other modules fill and read; opaque bytes here. */
enum moe_pack_section {
    MOE_PACK_MODEL = 0,  /* model description, JSON text (model/config.h) */
    MOE_PACK_TOKENIZER,  /* binary (text/tokenizer.h) */
    MOE_PACK_CHAT,       /* chat template source text as the checkpoint has it; may be empty */
    MOE_PACK_PROVENANCE, /* JSON text: how the pack was made (tool, options, source), for --list */
    MOE_PACK_SAMPLING,   /* JSON text: how the model's makers draw tokens (model/sampling.h); empty
                            where they do not say */
    MOE_PACK_MAPS,       /* maps for several tolerances (moe_pack_map_at); empty: none */
    MOE_PACK_N_SECTIONS
};

/* A run of bytes in the file. stored_bytes < raw_bytes exactly when they are a zstd frame. */
struct moe_extent {
    uint64_t offset;       /* in the file, a multiple of MOE_PACK_ALIGN */
    uint64_t stored_bytes; /* in the file, without the padding after them */
    uint64_t raw_bytes;    /* after decompression */
    uint64_t checksum;     /* moe_hash64 of the stored bytes */
};

/* A dense tensor: a matrix, or a vector of `rows` f32 values (cols = 1, layout F32: kept as a plain
 * array, not in panels). */
struct moe_pack_tensor {
    char name[MOE_NAME_BYTES]; /* "layers.3.attn.q"; unique */
    bool is_vector;
    struct moe_layout layout;
    uint32_t rows, cols;
    struct moe_extent extent; /* raw_bytes: moe_layout_bytes, or 4 * rows for a vector */
};

/* What a matrix of an expert is for. Codes as written in files. */
enum moe_expert_role {
    MOE_ROLE_GATE = 1,
    MOE_ROLE_UP = 2,
    MOE_ROLE_DOWN = 3,
    MOE_ROLE_GATE_BIAS = 4, /* vectors: rows plain f32 values, cols = 1, layout F32 */
    MOE_ROLE_UP_BIAS = 5,
    MOE_ROLE_DOWN_BIAS = 6,
};

struct moe_class_matrix {
    uint16_t role;    /* enum moe_expert_role */
    uint16_t segment; /* that it is in */
    struct moe_layout layout;
    uint32_t rows, cols;
    uint64_t offset; /* in the raw segment, a multiple of 64 */
};

/* One way an expert can be stored. Equal classes are shared; a class is also a size class of the
 * cache. */
struct moe_expert_class {
    uint32_t n_segments, n_matrices;               /* no two matrices have the same role */
    uint64_t segment_bytes[MOE_PACK_MAX_SEGMENTS]; /* raw, multiples of 64; gaps are zeros */
    struct moe_class_matrix matrices[MOE_PACK_MAX_MATRICES];
};

/* One precision at which (usually) every expert is stored, best first. */
struct moe_pack_variant {
    char name[MOE_NAME_BYTES];     /* "4", "4d8", "iq4_xs": as --experts names it */
    char method[MOE_METHOD_BYTES]; /* "hqq", "gptq", "trellis", "copy", "carried" */
};

/* One expert at one variant. */
struct moe_expert_extent {
    bool present;
    uint32_t class_index;
    struct moe_extent segments[MOE_PACK_MAX_SEGMENTS]; /* consecutive in the file */
};

struct moe_pack; /* opened for reading */
struct moe_tokenizer;

/* Opens, checks the header, every section's checksum, all bounds, overlaps and sizes; the weights
 * themselves are not read. MOE_ERR_FORMAT: damaged or not a pack; MOE_ERR_VERSION: of another
 * version.
 *
 * A checkpoint (a directory, one of its .safetensors files, a .gguf file) is opened in place: as
 * the pack that conversion with everything in its own precision would make, with the same tensors
 * and experts, without a file. Its extents are offsets in that pack, without checksums; what is
 * read is arranged out of the checkpoint's files. MOE_ERR_UNSUPPORTED, with the moe-quantize
 * command to use: a tensor would have to be rounded. Its fingerprints do not depend on where its
 * files lie, and are no pack's. */
int moe_pack_open(struct moe_pack **out, const char *path, struct moe_err *err);
/* A pack's file in memory, whole. */
struct moe_pack_image {
    const uint8_t *bytes;
    uint64_t n;
};
/* Reads the file in one sweep; the system keeps no copy of its own. most: bytes that there may be,
 * else MOE_ERR_FORMAT. stops: asked between pieces, true ends it with MOE_ERR_INTERRUPTED; may be
 * NULL. */
int moe_pack_image_read(struct moe_pack_image *out, const char *path, uint64_t most,
                        bool (*stops)(void *ctx), void *ctx, struct moe_err *err);
void moe_pack_image_free(struct moe_pack_image *image); /* an empty one is fine */
/* The same of a file that `image` (NULL: none) is of: what is read comes from there, weights too,
 * until moe_pack_leave_image. The image is borrowed until then. */
int moe_pack_open_image(struct moe_pack **out, const char *path, const struct moe_pack_image *image,
                        struct moe_err *err);
/* What is read from now on comes from the file. */
void moe_pack_leave_image(struct moe_pack *pack);
void moe_pack_close(struct moe_pack *pack);

const char *moe_pack_path(const struct moe_pack *pack);
int moe_pack_fd(const struct moe_pack *pack); /* -1: a checkpoint in place */
/* How a loader reads the extents of a checkpoint in place; NULL: a pack's file. */
const struct moe_arranger *moe_pack_arranger(const struct moe_pack *pack);
/* Reads everything, moe_pack_file_bytes, as it is, or would be, in the file. */
int moe_pack_read_all(const struct moe_pack *pack, void *to, struct moe_err *err);
uint64_t moe_pack_file_bytes(const struct moe_pack *pack);
/* The file begins with MOE_PACK_HEADER_BYTES that say all of its contents, by hashes; from here to
 * its end is its directory. Both are enough to open it. */
uint64_t moe_pack_directory_offset(const struct moe_pack *pack);
/* The tokenizer that was read when a checkpoint was opened in place of a pack, which its section is
 * made of: the caller's from then on. NULL: there is none, or it was taken. */
struct moe_tokenizer *moe_pack_take_tokenizer(struct moe_pack *pack);
/* What all take at most that read it at the same time: room for something compressed or arranged;
 * 0: nothing is. */
uint64_t moe_pack_staging_bytes(const struct moe_pack *pack);
/* Whether something is compressed: that room is for one extent at a time, so one thread reads. */
bool moe_pack_is_compressed(const struct moe_pack *pack);
/* What the directory, as it is opened, holds in memory. */
uint64_t moe_pack_directory_bytes(const struct moe_pack *pack);
/* Hash of the whole directory, extents' checksums included: changes with any content. */
uint64_t moe_pack_fingerprint(const struct moe_pack *pack);
/* Hash of the source model (its description, tokenizer and weights as read): equal for all packs
 * made from one checkpoint, so that statistics can follow the model through re-packing. */
uint64_t moe_pack_source_fingerprint(const struct moe_pack *pack);

/* The type of most weights of a .gguf file in place, as GGUF names it: "Q4_1"; NULL: it is none. */
const char *moe_pack_gguf_type(const struct moe_pack *pack);

/* A section's bytes, borrowed; *n may be 0. */
const uint8_t *moe_pack_section(const struct moe_pack *pack, enum moe_pack_section id, uint64_t *n);

uint32_t moe_pack_n_tensors(const struct moe_pack *pack);
const struct moe_pack_tensor *moe_pack_tensor_at(const struct moe_pack *pack, uint32_t i);
const struct moe_pack_tensor *moe_pack_tensor_find(const struct moe_pack *pack, const char *name);

uint32_t moe_pack_n_layers(const struct moe_pack *pack); /* the model's, dense ones too */
/* Layers behind these, which draft tokens (config.h, n_ahead). They do not count above, so that
 * nothing that is made of the model's layers sees them, until they are taken: then n_layers counts
 * them, and moe_pack_expert's layers go on with them. */
uint32_t moe_pack_n_ahead(const struct moe_pack *pack);
void moe_pack_take_ahead(struct moe_pack *pack);
uint32_t moe_pack_n_experts(const struct moe_pack *pack); /* per MoE layer; 0: none at all */
uint32_t moe_pack_n_variants(const struct moe_pack *pack);
const struct moe_pack_variant *moe_pack_variant_at(const struct moe_pack *pack, uint32_t i);
uint32_t moe_pack_n_classes(const struct moe_pack *pack);
const struct moe_expert_class *moe_pack_class_at(const struct moe_pack *pack, uint32_t i);
/* The extent of an expert; ->present is false in dense layers and for absent variants. */
const struct moe_expert_extent *moe_pack_expert(const struct moe_pack *pack, uint32_t layer,
                                                uint32_t expert, uint32_t variant);

/* The variant to use for an expert: `variant` where it is present, else the best there is;
 * UINT32_MAX when the layer has no such expert. */
uint32_t moe_pack_usable_variant(const struct moe_pack *pack, uint32_t layer, uint32_t expert,
                                 uint32_t variant);

/* Whether a layer has experts, in this process or elsewhere. */
bool moe_pack_layer_has_experts(const struct moe_pack *pack, uint32_t layer);
/* Other processes have the experts that `self` does not hold: these are not present then. holders:
 * [MoE layers of the model][n_experts][2], two processes for each; NULL: all are present again. */
void moe_pack_keep_own(struct moe_pack *pack, const struct moe_config *config,
                       const uint8_t *holders, uint8_t self);

/* ---- Maps (pack_maps.c) ----
 * A pack that has experts at several precisions may say which one each deserves under a tolerance,
 * for several tolerances: EdgeMoE chooses among such models at start (III-A).
 */

enum { MOE_PACK_MAX_MAPS = 16, MOE_PACK_NO_VARIANT = 255 };

struct moe_pack_map {
    double tolerance, loss; /* what was tolerated, what the map lost on the texts it was made of; in
                               percent of the nats, or in points */
    bool points, checked;
    double check;            /* on other texts, where it was checked */
    const uint8_t *variants; /* [layers][experts], the variant of each; MOE_PACK_NO_VARIANT where
                                there is none; borrowed */
};

uint32_t moe_pack_n_maps(const struct moe_pack *pack);
/* Of the i-th, of rising tolerance. */
struct moe_pack_map moe_pack_map_at(const struct moe_pack *pack, uint32_t i);
/* What its experts take in memory, all of them, in slots of whole pages; with i = UINT32_MAX those
 * at their best variant, which is the map's once one was taken. */
uint64_t moe_pack_map_bytes(const struct moe_pack *pack, uint32_t i);
/* The fingerprint of the pack with the map taken. */
uint64_t moe_pack_map_fingerprint(const struct moe_pack *pack, uint32_t i);
/* From now on the pack has the variant "map", each expert as the map says, and behind it the last
 * of its variants, and no other: as if it had been made so. Before anything else is asked of its
 * experts. */
void moe_pack_take_map(struct moe_pack *pack, uint32_t i);
/* The one that was taken; UINT32_MAX: none. */
uint32_t moe_pack_map_taken(const struct moe_pack *pack);
/* Appends the section's bytes; maps: of rising tolerance, their variants [n_layers][n_experts]. */
void moe_pack_put_maps(struct moe_buf *out, const struct moe_pack_map *maps, uint32_t n,
                       uint32_t n_layers, uint32_t n_experts);

/* What the provenance says of weights that are no model's but were drawn (pack/synthesize.h). */
struct moe_pack_synthesized {
    bool is;
    bool sparse; /* the experts' are holes of the file */
};
struct moe_pack_synthesized moe_pack_synthesized(const struct moe_pack *pack);
/* MOE_ERR_USAGE where they were: for callers to whom a model's output means something. */
int moe_pack_check_meant(const struct moe_pack *pack, struct moe_err *err);

/* Reads one extent's raw bytes into `to` (raw_bytes of room): pread, checksum, decompression.
 * `what` names it in errors ("layer 3 expert 17 int4"). Thread-safe. */
int moe_pack_read(const struct moe_pack *pack, const struct moe_extent *extent, void *to,
                  const char *what, struct moe_err *err);

/* While *stop is set, reading out of a checkpoint in place ends with MOE_ERR_INTERRUPTED between
 * its rows. Borrowed until the pack is closed; NULL: none. Thread-safe. */
void moe_pack_stop_with(struct moe_pack *pack, const volatile sig_atomic_t *stop);

/* A tensor can be read in parts of this many rows (the last has fewer); a pack's file has one
 * checksum for all of them. */
uint32_t moe_pack_part_rows(const struct moe_pack *pack, const struct moe_pack_tensor *tensor);
/* Reads the part that begins with a row; to: where the whole tensor goes. Thread-safe. */
int moe_pack_read_part(const struct moe_pack *pack, const struct moe_pack_tensor *tensor,
                       uint32_t row, void *to, struct moe_err *err);

/* Has the system read an extent, of a large one the first part, into the page cache. */
void moe_pack_read_ahead(const struct moe_pack *pack, const struct moe_extent *extent);

/* Reads the whole file: every checksum, every zstd frame, and the zeros between extents. *bytes
 * (may be NULL) gets the number of bytes read. MOE_ERR_FORMAT names the tensor or "layer 3 expert
 * 17 variant 4 segment 1". MOE_ERR_USAGE: a checkpoint in place, which has no checksums. */
int moe_pack_verify(const struct moe_pack *pack, const struct moe_progress *progress,
                    uint64_t *bytes, struct moe_err *err);

/* A matrix of an expert as a view into its raw segment bytes; false when the class has no such
 * role. `segments[i]` points to segment i. */
bool moe_class_matrix_view(const struct moe_expert_class *class_, uint16_t role,
                           const uint8_t *const *segments, struct moe_mat *out);

/* ---- Writing ----
 * Order of calls: create, section for each, add_class as needed, tensors and experts in any order
 * as their bytes become ready (they are written at once, only the directory stays in memory),
 * commit. The directory goes to the end of the file, its place into the header.
 */
struct moe_pack_writer;

int moe_pack_create(struct moe_pack_writer **out, const char *path, uint32_t n_layers,
                    uint32_t n_experts, const struct moe_pack_variant *variants,
                    uint32_t n_variants, uint64_t source_fingerprint, int zstd_level /* 0: none */,
                    struct moe_err *err);
/* Sets or replaces the source fingerprint, which a converter knows only once it has read the last
 * weight. */
void moe_pack_set_source_fingerprint(struct moe_pack_writer *w, uint64_t source_fingerprint);
/* The pack has n more layers, behind the model's (moe_pack_n_ahead). Before their experts are put.
 */
int moe_pack_put_ahead(struct moe_pack_writer *w, uint32_t n, struct moe_err *err);
/* Copies a section's bytes; the last call for an id counts. */
int moe_pack_put_section(struct moe_pack_writer *w, enum moe_pack_section id, const void *data,
                         uint64_t n, struct moe_err *err);
/* Writes a tensor's raw bytes; ->extent of `tensor` is ignored. */
int moe_pack_put_tensor(struct moe_pack_writer *w, const struct moe_pack_tensor *tensor,
                        const void *raw, struct moe_err *err);
/* Finds or adds an equal class; *index gets its number. */
int moe_pack_put_class(struct moe_pack_writer *w, const struct moe_expert_class *class_,
                       uint32_t *index, struct moe_err *err);
/* Writes an expert's raw segments (sizes as its class says). */
int moe_pack_put_expert(struct moe_pack_writer *w, uint32_t layer, uint32_t expert,
                        uint32_t variant, uint32_t class_index, const void *const *segments,
                        struct moe_err *err);
/* The same of an expert all of whose bytes are zero, which are not written: the file has holes
 * there, where the file system allows. */
int moe_pack_put_hole(struct moe_pack_writer *w, uint32_t layer, uint32_t expert, uint32_t variant,
                      uint32_t class_index, struct moe_err *err);
/* What the header and the tables of the directory take in a file of one variant: of classes whose
 * entries take class_bytes, of experts with n_segments in all. */
uint64_t moe_pack_tables_bytes(uint64_t n_tensors, uint64_t class_bytes, uint64_t n_experts,
                               uint64_t n_segments);
uint64_t moe_pack_class_entry_bytes(const struct moe_expert_class *class_);
/* Writes directory and header, flushes, renames. The writer is gone afterwards either way. A tensor
 * or expert that was put twice is MOE_ERR_USAGE. */
int moe_pack_commit(struct moe_pack_writer *w, struct moe_err *err);
/* Drops everything written. NULL is fine. */
void moe_pack_abort(struct moe_pack_writer *w);

/* The bits of an expert that is stored as this class says, the more of gate's and up's; false: it
 * has other matrices than gate, up and down. */
bool moe_class_bits(const struct moe_expert_class *class_, struct moe_bits *out);
/* The same, as the kinds of layout where these can be asked for by name (quant/bits.h). */
bool moe_class_types(const struct moe_expert_class *class_, struct moe_bits *out);

/* Whether experts that are stored so have a gate beside up and down. */
bool moe_class_has_gate(const struct moe_expert_class *class_);

/* The bits that a variant is named after, zeros for a map's; false: its name is no bitwidth. */
bool moe_variant_bits(const struct moe_pack_variant *variant, struct moe_bits *out);

#endif
