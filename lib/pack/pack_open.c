/*
 * Opening a pack: with pack_tables.c the one place that turns untrusted bytes into a struct
 * moe_pack.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "pack/pack_format.h"

enum { LARGE_BYTES = 64 << 10 /* a section whose count is looked at before its memory is taken */ };

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
            return pack_damaged(pack, err, "sections are missing, twice there or out of order");
        if (zero != 0 ||
            (s->bytes == 0 ? s->offset != 0
                           : s->offset < PACK_HEADER_BYTES || s->offset % MOE_PACK_ALIGN != 0 ||
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
    if (header_bytes != PACK_HEADER_BYTES || reserved != 0 || pack->n_sections < PACK_N_IDS ||
        pack->n_sections > PACK_MAX_SECTIONS)
        return pack_damaged(pack, err, "impossible header");
    int status = parse_table(pack, &c, err);
    if (status != MOE_OK)
        return status;
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
        status = pack_damaged(pack, err, "its end belongs to nothing");
    free(pieces);
    return status;
}

int moe_pack_open(struct moe_pack **out, const char *path, struct moe_err *err)
{
    return moe_pack_open_image(out, path, NULL, err);
}

int moe_pack_open_image(struct moe_pack **out, const char *path, const struct moe_pack_image *image,
                        struct moe_err *err)
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
    if (image) {
        pack->image = image->bytes;
        pack->file_bytes = image->n;
    }
    uint64_t n = pack->file_bytes < sizeof header ? pack->file_bytes : sizeof header;
    status = pack_pread(pack, header, n, 0, err);
    if (status == MOE_OK && memcmp(header, PACK_MAGIC, 4) != 0)
        status = fail_not_a_pack(pack, header, err);
    if (status == MOE_OK && n < sizeof header)
        status = pack_damaged(pack, err, "too short for an expert pack");
    if (status == MOE_OK)
        status = parse_header(pack, header, err);
    if (status == MOE_OK)
        status = read_sections(pack, err);
    if (status == MOE_OK)
        status = pack_parse_tables(pack, err);
    if (status == MOE_OK)
        status = check_tiling(pack, err);
done:
    if (status == MOE_OK)
        *out = pack;
    else
        moe_pack_close(pack);
    return status;
}
