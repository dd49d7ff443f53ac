/* The loader: requests, the reads of their pieces, checks and decoding, polling and waiting.
 * loader_open.c opens and closes it. */
#define _GNU_SOURCE /* O_DIRECT */

#include "io/loader.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/par.h"
#include "gpu.h"
#include "io/loader_internal.h"

/* How long one poll (and one step, loader_internal.h) verifies and decodes, and how long one turn
 * of wait does before it looks at the reads again. */
static const double POLL_SECONDS = 20e-6, WAIT_SECONDS = 200e-6;

/* ---- A link of a given speed ---- */

/* Charges a transfer requested at `since` and started `now`; returns when it ends (0 without a
 * limit). */
static double token_bucket_charge(struct token_bucket *b, double since, double now, double bytes)
{
    if (b->rate <= 0)
        return 0;
    double from = now - TOKEN_BUCKET_LATE;
    if (from < since)
        from = since;
    if (from < b->due)
        from = b->due;
    b->due = from + bytes / b->rate;
    return b->due;
}

/* Seconds until the next transfer may be started; 0: now. */
static double token_bucket_delay(const struct token_bucket *b, double now)
{
    double delay = b->rate > 0 ? b->due - TOKEN_BUCKET_AHEAD - now : 0;
    return delay > 0 ? delay : 0;
}

/* ---- Files ---- */

/* Opens the file of fd again with other flags: through /proc, which works even after the name is
 * removed, else by name if it still names the same file. */
static int reopen(int fd, const char *path, int flags)
{
    char self[64];
    struct stat want, got;
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    int again = open(self, flags);
    if (again >= 0 || !path)
        return again;
    again = open(path, flags);
    if (again >= 0 && (fstat(fd, &want) != 0 || fstat(again, &got) != 0 ||
                       want.st_dev != got.st_dev || want.st_ino != got.st_ino)) {
        close(again);
        again = -1;
    }
    return again;
}

static ssize_t try_read(int fd, void *page)
{
    ssize_t got;
    int n_tries = 0;
    do
        got = pread(fd, page, 4096, 0);
    while (got < 0 && errno == EINTR && n_tries++ < 1000);
    return got;
}

int loader_file_open(struct loader_file *f, int fd, const char *path, bool want_direct, void *page,
                     struct moe_err *err)
{
    *f = (struct loader_file){.buffered_fd = -1, .direct_fd = -1};
    if (want_direct)
        f->direct_fd = reopen(fd, path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (f->direct_fd >= 0 && try_read(f->direct_fd, page) < 0) {
        close(f->direct_fd); /* some file systems accept the flag but refuse the reads */
        f->direct_fd = -1;
    }
    f->buffered_fd = reopen(fd, path, O_RDONLY | O_CLOEXEC);
    f->owned = f->buffered_fd >= 0;
    if (f->owned) /* pieces are read whole: readahead would only cost time */
        posix_fadvise(f->buffered_fd, 0, 0, POSIX_FADV_RANDOM);
    else
        f->buffered_fd = fd;
    if (f->direct_fd < 0 && try_read(f->buffered_fd, page) < 0) {
        char text[128];
        int status = moe_fail(err, MOE_ERR_IO, "%s: cannot read: %s", path ? path : "file",
                              moe_errno_text(errno, text, sizeof text));
        loader_file_close(f);
        return status;
    }
    return MOE_OK;
}

void loader_file_close(struct loader_file *f)
{
    if (f->direct_fd >= 0)
        close(f->direct_fd);
    if (f->owned)
        close(f->buffered_fd);
    *f = (struct loader_file){.buffered_fd = -1, .direct_fd = -1};
}

/* Drops a range from the page cache. */
static void loader_file_forget(const struct loader_file *f, uint64_t offset, uint64_t n_bytes)
{
    if (f->buffered_fd >= 0)
        posix_fadvise(f->buffered_fd, (off_t)offset, (off_t)n_bytes, POSIX_FADV_DONTNEED);
}

/* ---- Checksums ---- */

/* Makes the decoder allocate its input buffer now, as it otherwise would with the first frame that
 * comes piece by piece: decodes a frame of one byte, with the window that a block of 128 KiB needs.
 */
static size_t prime(ZSTD_DCtx *decoder)
{
    static const uint8_t frame[] = {0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38, 0x0b, 0x00, 0x00, 0x00};
    uint8_t byte;
    ZSTD_inBuffer in = {frame, sizeof frame, 0};
    ZSTD_outBuffer out = {&byte, 1, 0};
    return ZSTD_decompressStream(decoder, &out, &in);
}

static ZSTD_DCtx *new_decoder(void)
{
    ZSTD_DCtx *decoder = ZSTD_createDCtx();
    if (!decoder)
        return NULL;
    /* A frame compressed in one call has a window as large as its contents. Allows any size: it
     * costs no memory when blocks are decoded to their place (experimental parameter 2: the output
     * buffer stays the same). */
    ZSTD_bounds window = ZSTD_dParam_getBounds(ZSTD_d_windowLogMax);
    if (ZSTD_isError(ZSTD_DCtx_setParameter(decoder, ZSTD_d_windowLogMax, window.upperBound)) ||
        ZSTD_isError(ZSTD_DCtx_setParameter(decoder, ZSTD_d_experimentalParam2, 1)) ||
        prime(decoder) != 0) {
        ZSTD_freeDCtx(decoder);
        return NULL;
    }
    return decoder;
}

int loader_check_open(struct loader_check *c, bool decodes, struct moe_err *err)
{
    *c = (struct loader_check){.hasher = moe_hasher_new()};
    if (decodes)
        c->decoder = new_decoder();
    if (c->hasher && (!decodes || c->decoder))
        return MOE_OK;
    loader_check_close(c);
    return moe_fail(err, MOE_ERR_MEMORY, "out of memory for a decoder");
}

void loader_check_close(struct loader_check *c)
{
    moe_hasher_free(c->hasher);
    ZSTD_freeDCtx(c->decoder);
    *c = (struct loader_check){0};
}

/* Begins a request whose stored bytes are at `stored`; borrows both until it is over. Drops the
 * previous one. */
static void loader_check_begin(struct loader_check *c, const struct moe_load *load,
                               const uint8_t *stored, bool verify)
{
    bool arranges = c->arranger != NULL;
    *c = (struct loader_check){
        .hasher = c->hasher,
        .decoder = c->decoder,
        .arranger = c->arranger,
        .ranges = c->ranges,
        .name = load->offset,
        .stored = stored,
        .stored_bytes = load->stored_bytes,
        .raw_bytes = load->raw_bytes,
        .checksum = load->checksum,
        .to = load->to,
        .verifying = verify && !arranges,
        .decoding = arranges || load->stored_bytes != load->raw_bytes,
    };
    if (c->verifying)
        moe_hasher_begin(c->hasher);
}

/* Whether nothing is left to verify or decode, or a problem was found. */
static bool loader_check_over(const struct loader_check *c)
{
    return c->problem || (!c->verifying && !c->decoding);
}

static void verify_some(struct loader_check *c)
{
    uint64_t left = c->stored_bytes - c->hashed;
    uint64_t n = left < CHECK_HASH_BYTES ? left : CHECK_HASH_BYTES;
    moe_hasher_add(c->hasher, c->stored + c->hashed, n);
    c->hashed += n;
    if (n < left)
        return;
    c->verifying = false;
    if (moe_hasher_end(c->hasher) != c->checksum)
        c->problem = "checksum mismatch";
}

/* Begins a frame, if it is the only one and has the size that the directory states. */
static void begin_frame(struct loader_check *c)
{
    if (ZSTD_getFrameContentSize(c->stored, c->stored_bytes) != c->raw_bytes ||
        ZSTD_findFrameCompressedSize(c->stored, c->stored_bytes) != c->stored_bytes)
        c->problem = "its zstd frame does not have the size that the directory states";
    c->in = (ZSTD_inBuffer){c->stored, 0, 0};
    c->out = (ZSTD_outBuffer){c->to, c->raw_bytes, 0};
    c->wanted = ZSTD_initDStream(c->decoder);
}

/* Decodes the next block. Passes only as much input as the decoder asks for: given more, it would
 * decode all of it. */
static void decode_block(struct loader_check *c)
{
    uint64_t left = c->stored_bytes - c->in.pos;
    size_t before = c->out.pos;
    while (c->wanted > 0 && left > 0 && c->out.pos == before) {
        c->in.size = c->in.pos + (c->wanted < left ? c->wanted : left);
        c->wanted = ZSTD_decompressStream(c->decoder, &c->out, &c->in);
        if (ZSTD_isError(c->wanted))
            break;
        left = c->stored_bytes - c->in.pos;
    }
    if (c->wanted > 0 && (left > 0 && !ZSTD_isError(c->wanted)))
        return;
    c->decoding = false;
    if (c->wanted != 0 || left > 0 || c->out.pos != c->raw_bytes)
        c->problem = "its zstd frame cannot be decompressed";
}

static void arrange_some(struct loader_check *c)
{
    int status = c->arranger->step(c->arranger->ctx, c->name, c->ranges->at, c->ranges->n,
                                   c->stored, c->step++, c->to, &c->decoding, &c->failure);
    if (status != MOE_OK)
        c->problem = c->failure.text;
}

/* Does the next step of an unfinished check. */
static void loader_check_step(struct loader_check *c)
{
    double start = moe_seconds();
    if (c->verifying) {
        verify_some(c);
        c->verify_seconds += moe_seconds() - start;
        return;
    }
    if (c->arranger)
        arrange_some(c);
    else if (!c->in.src)
        begin_frame(c);
    if (!c->arranger && !c->problem)
        decode_block(c);
    c->decode_seconds += moe_seconds() - start;
}

/* Moves requests from one state to the next, and between the lists of each state. */

static void loader_request_read(struct moe_loader *l, uint32_t item, double now)
{
    struct loader_request *r = &l->requests[item];
    r->state = REQUEST_READING;
    r->since = now;
    moe_link_add(&l->queue, item, r->read_bytes, r->load.priority, r->load.score);
}

/* Appends a request whose reads are over to the READY ones. */
static void loader_request_ready(struct moe_loader *l, uint32_t item)
{
    struct loader_request *r = &l->requests[item];
    r->state = REQUEST_READY;
    r->next = MOE_LINK_NONE;
    if (l->first_ready == MOE_LINK_NONE)
        l->first_ready = item;
    else
        l->requests[l->last_ready].next = item;
    l->last_ready = item;
}

/* Removes it from the READY ones. */
static void loader_request_unready(struct moe_loader *l, uint32_t item)
{
    uint32_t before = MOE_LINK_NONE;
    for (uint32_t i = l->first_ready; i != item; i = l->requests[i].next)
        before = i;
    if (before == MOE_LINK_NONE)
        l->first_ready = l->requests[item].next;
    else
        l->requests[before].next = l->requests[item].next;
    if (l->last_ready == item)
        l->last_ready = before;
}

/* Drops what the request has read from the page cache. */
static void loader_request_forget(struct moe_loader *l, uint32_t item)
{
    const struct moe_file_range whole = {0, l->requests[item].load.offset,
                                         l->requests[item].load.stored_bytes};
    const struct moe_file_range *ranges = l->arranger ? l->ranges[item].at : &whole;
    for (uint32_t i = 0; i < (l->arranger ? l->ranges[item].n : 1); i++)
        loader_file_forget(&l->files[ranges[i].file], moe_range_begin(&ranges[i]),
                           moe_range_read_bytes(&ranges[i]));
}

/* Frees the request and the room for its staged bytes. */
static void loader_request_free(struct moe_loader *l, uint32_t item)
{
    struct loader_request *r = &l->requests[item];
    if (!l->stats.direct && r->bytes_in > 0)
        loader_request_forget(l, item);
    if (r->stored && loader_is_staged(l, &r->load))
        staging_give(&l->staging, item);
    r->state = REQUEST_FREE;
    r->next = l->free_request;
    l->free_request = item;
    l->n_requests--;
}

/* Pieces: which starts next, and what happens when one comes back. */

enum {
    MAX_IO_ERRORS = 2,  /* repeats after EIO: a path may fail over, a bus be reset */
    MAX_STALLS = 3,     /* reads that return less than a block although the file goes on */
    MAX_REFUSALS = 200, /* refusals by the kernel, with growing pauses: about four seconds */
};

void loader_fault_apply(struct loader_piece *piece, int32_t got)
{
    piece->result = loader_fault_refuses(piece) ? piece->fault : got;
    if (piece->fault == 0 || piece->result <= 0)
        return;
    if (piece->fault == INT32_MIN) {
        /* a place in the bytes that matter, determined by the offset */
        uint32_t at =
            (uint32_t)(piece->offset / MOE_LOAD_ALIGN * 2654435761u) % piece->wanted_bytes;
        if (at < (uint32_t)got)
            piece->to[at] ^= 1 << at % 8;
    } else {
        piece->result = got > piece->fault ? got - piece->fault : 0;
        memset(piece->to + piece->result, 0xa5, (size_t)(got - piece->result));
    }
}

/* ---- States of a piece ---- */

static void piece_free(struct moe_loader *l, struct loader_piece *piece)
{
    l->requests[piece->request].n_pieces--;
    piece->state = PIECE_FREE;
    l->free_pieces[l->n_free_pieces++] = (uint32_t)(piece - l->pieces);
    if (l->n_free_pieces == l->options.queue_depth)
        l->stats.read_seconds += moe_seconds() - l->reading_since;
}

static void piece_send(struct moe_loader *l, struct loader_piece *piece)
{
    piece->state = PIECE_AT_BACKEND;
    l->n_at_backend++;
    l->backend->ops->start(l->backend, piece);
}

/* Keeps a piece that is neither at the backend nor finished. */
static void piece_put_by(struct moe_loader *l, struct loader_piece *piece, int state)
{
    piece->state = state;
    l->n_put_by++;
}

/* Ends a piece. With its last piece the request is ready. */
static void piece_over(struct moe_loader *l, struct loader_piece *piece)
{
    uint32_t item = piece->request;
    struct loader_request *r = &l->requests[item];
    piece_free(l, piece);
    if (r->n_pieces == 0 && l->queue.items[item].state != MOE_LINK_QUEUED)
        loader_request_ready(l, item);
}

bool loader_read_abandon(struct moe_loader *l, uint32_t item)
{
    l->requests[item].given_up = true;
    moe_link_drop(&l->queue, item);
    for (uint32_t i = 0; i < l->options.queue_depth && l->n_put_by > 0; i++) {
        struct loader_piece *piece = &l->pieces[i];
        if (piece->request == item && (piece->state == PIECE_HELD || piece->state == PIECE_AGAIN)) {
            l->n_put_by--;
            piece_free(l, piece);
        }
    }
    return l->requests[item].n_pieces == 0;
}

/* ---- What comes back ---- */

/* Whether a read that returned less than its piece wants stopped before the file's end. */
static bool stopped_early(const struct moe_loader *l, const struct loader_piece *piece)
{
    struct stat st;
    return piece->result > 0 && fstat(l->files[piece->file].buffered_fd, &st) == 0 &&
           (uint64_t)st.st_size >= piece->offset + piece->wanted_bytes;
}

/* Fails the request for good, with its piece's error; the caller still owns the piece. */
static void fail_read(struct moe_loader *l, const struct loader_piece *piece)
{
    struct loader_request *r = &l->requests[piece->request];
    const char *path = l->options.path;
    char text[128];
    if (l->arranger)
        l->arranger->fd(l->arranger->ctx, piece->file, &path);
    int status = l->options.gpu ? moe_gpu_status(l->options.gpu, &l->error) : MOE_OK;
    if (status != MOE_OK)
        r->status = status;
    else if (piece->result < 0)
        r->status = moe_fail(
            &l->error, MOE_ERR_IO, "%s: cannot read %" PRIu32 " bytes at offset %" PRIu64 ": %s",
            path, piece->n_bytes, piece->offset, moe_errno_text(-piece->result, text, sizeof text));
    else if (stopped_early(l, piece))
        r->status = moe_fail(&l->error, MOE_ERR_IO,
                             "%s: cannot read %" PRIu32 " bytes at offset %" PRIu64
                             ": reads return less than a block",
                             path, piece->n_bytes, piece->offset);
    else
        r->status = moe_fail(&l->error, MOE_ERR_FORMAT,
                             "%s: ends at byte %" PRIu64 ", %" PRIu32 " more were expected", path,
                             piece->offset + (uint32_t)piece->result,
                             piece->wanted_bytes - (uint32_t)piece->result);
    loader_read_abandon(l, piece->request);
}

/* Moves a short piece past the bytes it has read: whole blocks only, since direct reads must begin
 * at one. */
static bool may_continue(const struct moe_loader *l, struct loader_piece *piece)
{
    uint32_t kept = (uint32_t)piece->result & ~(uint32_t)(MOE_LOAD_ALIGN - 1);
    piece->n_stalls = kept > 0 ? 0 : piece->n_stalls + 1;
    if (piece->n_stalls >= (stopped_early(l, piece) ? MAX_REFUSALS : MAX_STALLS))
        return false;
    piece->offset += kept;
    piece->to += kept;
    piece->n_bytes -= kept;
    piece->wanted_bytes -= kept;
    return true;
}

/* Decides whether to repeat the piece's failed read; sets when. */
static bool may_retry(struct moe_loader *l, struct loader_piece *piece, double now)
{
    switch (-piece->result) {
    case EINVAL:
        /* Direct I/O may be refused only now (blocks larger than ours, a file system that accepted
         * the flag): the page cache accepts any read. */
        if (piece->fd != l->files[piece->file].direct_fd || piece->fd < 0)
            return false;
        l->stats.direct = false;
        piece->fd = l->files[piece->file].buffered_fd;
        return true;
    case EIO:
        piece->not_before = now + 1e-3;
        return piece->n_errors++ < MAX_IO_ERRORS;
    case EINTR:
        return piece->n_errors++ < MAX_REFUSALS;
    case EAGAIN:
    case EBUSY:
    case ENOMEM:
        piece->not_before = now + 2e-4 * piece->n_errors;
        return piece->n_errors++ < MAX_REFUSALS;
    default:
        return false;
    }
}

/* Handles a piece whose read has ended, by the clock too. */
static void settle_piece(struct moe_loader *l, struct loader_piece *piece, double now)
{
    struct loader_request *r = &l->requests[piece->request];
    piece->state = PIECE_IN_HAND;
    if (piece->result > 0) {
        double share = (loader_waited(l, now) - piece->waited) / (now - piece->started);
        l->stats.wait_bytes += share > 0 ? share * piece->result : 0;
        l->stats.bytes_read += (uint32_t)piece->result;
        r->bytes_in += (uint32_t)piece->result;
        if (r->status == MOE_ERR_INTERRUPTED)
            l->stats.cancelled_bytes += (uint32_t)piece->result;
    }
    if (!r->given_up && piece->result < (int64_t)piece->wanted_bytes) {
        piece->not_before = now;
        if (piece->result < 0 ? may_retry(l, piece, now) : may_continue(l, piece)) {
            l->stats.retries++;
            piece_put_by(l, piece, PIECE_AGAIN);
            return;
        }
        fail_read(l, piece);
    }
    piece_over(l, piece);
}

static void collect_pieces(struct moe_loader *l, double now)
{
    uint32_t n = l->backend->ops->reap(l->backend, l->reaped, l->options.queue_depth);
    l->n_at_backend -= n;
    for (uint32_t i = 0; i < n; i++) {
        struct loader_piece *piece = l->reaped[i];
        if (piece->due > now && !l->requests[piece->request].given_up)
            piece_put_by(l, piece, PIECE_HELD);
        else
            settle_piece(l, piece, now);
    }
}

/* Takes up pieces whose time has come. */
static void take_up(struct moe_loader *l, double now)
{
    for (uint32_t i = 0; i < l->options.queue_depth && l->n_put_by > 0; i++) {
        struct loader_piece *piece = &l->pieces[i];
        if (piece->state == PIECE_HELD && piece->due <= now) {
            l->n_put_by--;
            settle_piece(l, piece, now);
        } else if (piece->state == PIECE_AGAIN && piece->not_before <= now) {
            l->n_put_by--;
            piece_send(l, piece);
        }
    }
}

/* ---- What starts ---- */

/* The most urgent request that can start a piece; MOE_LINK_NONE. A compressed one needs room to be
 * read into. While one waits for room, less urgent ones get none (or small ones could block a large
 * one forever); requests that have room go on and will free it. */
static uint32_t next_to_start(struct moe_loader *l)
{
    bool crowded = false;
    uint32_t item = moe_link_first(&l->queue);
    for (; item != MOE_LINK_NONE; item = moe_link_after(&l->queue, item)) {
        struct loader_request *r = &l->requests[item];
        if (!r->stored && !crowded)
            r->stored = staging_take(&l->staging, item, r->read_bytes);
        if (r->stored)
            break;
        crowded = true;
    }
    return item;
}

/* What a request reads from its place `at` on: where, and how many bytes of it are wanted; the
 * padding of a file's last block may not be there. Returns the bytes to read up to the end. */
static uint64_t bytes_from(const struct moe_loader *l, uint32_t item, uint64_t at,
                           struct moe_file_range *wanted)
{
    const struct loader_request *r = &l->requests[item];
    *wanted = (struct moe_file_range){0, r->load.offset + at, r->load.stored_bytes - at};
    if (!l->arranger)
        return r->read_bytes - at;
    const struct moe_file_range *range = l->ranges[item].at;
    for (; at >= moe_range_read_bytes(range); range++)
        at -= moe_range_read_bytes(range);
    uint64_t offset = moe_range_begin(range) + at;
    *wanted = (struct moe_file_range){range->file, offset, range->offset + range->bytes - offset};
    return moe_range_read_bytes(range) - at;
}

static void start_piece(struct moe_loader *l, uint32_t item, double now)
{
    struct loader_request *r = &l->requests[item];
    struct moe_file_range wanted;
    uint64_t at = moe_link_at(&l->queue, item), to_end = bytes_from(l, item, at, &wanted);
    uint32_t n_bytes = moe_link_start(&l->queue, item, to_end);
    const struct loader_file *file = &l->files[wanted.file];
    if (l->n_free_pieces == l->options.queue_depth)
        l->reading_since = now;
    struct loader_piece *piece = &l->pieces[l->free_pieces[--l->n_free_pieces]];
    *piece = (struct loader_piece){
        .offset = wanted.offset,
        .from = r->load.from ? (const uint8_t *)r->load.from + at : NULL,
        .to = r->stored + at,
        .n_bytes = n_bytes,
        .wanted_bytes = wanted.bytes < n_bytes ? (uint32_t)wanted.bytes : n_bytes,
        .file = wanted.file,
        .fd = l->stats.direct ? file->direct_fd : file->buffered_fd,
        .request = item,
        .started = now,
        .waited = loader_waited(l, now),
        .due = token_bucket_charge(&l->bucket, r->since, now, n_bytes),
    };
    r->n_pieces++;
    l->stats.pieces++;
    piece_send(l, piece);
}

/* The request whose piece may start now; MOE_LINK_NONE. */
static uint32_t can_start(struct moe_loader *l)
{
    uint32_t item = l->n_free_pieces > 0 ? next_to_start(l) : MOE_LINK_NONE;
    uint32_t n_started = l->options.queue_depth - l->n_free_pieces;
    if (item != MOE_LINK_NONE && l->requests[item].load.priority != MOE_LOAD_DEMAND &&
        (n_started >= l->options.prefetch_depth || n_started >= l->queue.prefetch_pieces))
        item = MOE_LINK_NONE;
    return item;
}

/* Reaps finished reads, repeats those that should be, starts new ones. Does not wait. */
static void loader_read_pump(struct moe_loader *l)
{
    double now = moe_seconds();
    collect_pieces(l, now);
    take_up(l, now);
    uint32_t item;
    while ((item = can_start(l)) != MOE_LINK_NONE && token_bucket_delay(&l->bucket, now) <= 0)
        start_piece(l, item, now);
    collect_pieces(l, now); /* also submits the started pieces to the kernel */
    if (l->n_free_pieces < l->options.queue_depth) {
        l->stats.read_seconds += now - l->reading_since;
        l->reading_since = now;
    }
}

static double earlier(double a, double b)
{
    return a < b ? a : b;
}

/* Sleeps until loader_read_pump has something to do, or until that time (INFINITY: no limit). */
static void loader_read_sleep(struct moe_loader *l, double until)
{
    double now = moe_seconds();
    for (uint32_t i = 0; i < l->options.queue_depth && l->n_put_by > 0; i++) {
        const struct loader_piece *piece = &l->pieces[i];
        if (piece->state == PIECE_HELD)
            until = earlier(until, piece->due);
        else if (piece->state == PIECE_AGAIN)
            until = earlier(until, piece->not_before);
    }
    if (can_start(l) != MOE_LINK_NONE)
        until = earlier(until, now + token_bucket_delay(&l->bucket, now));
    if (until > now)
        l->backend->ops->wait(l->backend, until < INFINITY ? until - now : -1);
}

void loader_read_drain(struct moe_loader *l)
{
    while (l->n_at_backend > 0) {
        l->backend->ops->wait(l->backend, -1);
        collect_pieces(l, INFINITY);
    }
}

/* Requests whose reads have ended: checksum, decoding, the report. */

/* ---- Jobs ---- */

static void job_free(struct moe_loader *l, struct loader_job *job)
{
    l->stats.verify_seconds += job->check.verify_seconds;
    l->stats.decode_seconds += job->check.decode_seconds;
    job->item = MOE_LINK_NONE;
    l->n_busy--;
}

static struct loader_job *job_of(struct moe_loader *l, uint32_t item)
{
    struct loader_job *job = l->jobs;
    while (job->item != item)
        job++;
    return job;
}

/* Gives up a READY or CHECKING request, which then is not reported. */
static void loader_finish_abandon(struct moe_loader *l, uint32_t item)
{
    if (l->requests[item].state == REQUEST_CHECKING)
        job_free(l, job_of(l, item));
    else
        loader_request_unready(l, item);
}

/* Whether any request still needs to be verified, decoded or reported. */
static bool loader_finish_pending(const struct moe_loader *l)
{
    return l->n_busy > 0 || l->first_ready != MOE_LINK_NONE;
}

static bool is_demand(const struct moe_loader *l, uint32_t item)
{
    return l->requests[item].load.priority == MOE_LOAD_DEMAND;
}

/* The first demand among the ready requests that have not failed, else the first request;
 * MOE_LINK_NONE. */
static uint32_t next_ready(const struct moe_loader *l)
{
    uint32_t found = MOE_LINK_NONE;
    for (uint32_t i = l->first_ready; i != MOE_LINK_NONE; i = l->requests[i].next) {
        if (l->requests[i].status != MOE_OK)
            continue;
        if (is_demand(l, i))
            return i;
        if (found == MOE_LINK_NONE)
            found = i;
    }
    return found;
}

/* A job for the request: a free one or, for a demand, one busy with a prefetch, which then starts
 * again later. NULL: none. */
static struct loader_job *job_for(struct moe_loader *l, uint32_t item)
{
    struct loader_job *found = NULL;
    for (uint32_t i = 0; i < l->n_jobs; i++) {
        struct loader_job *job = &l->jobs[i];
        if (job->item == MOE_LINK_NONE)
            return job;
        if (is_demand(l, item) && !is_demand(l, job->item))
            found = job;
    }
    if (found) {
        uint32_t put_off = found->item;
        job_free(l, found);
        loader_request_ready(l, put_off);
    }
    return found;
}

/* Gives ready requests to jobs. */
static void start_jobs(struct moe_loader *l)
{
    uint32_t item;
    struct loader_job *job;
    while ((item = next_ready(l)) != MOE_LINK_NONE && (job = job_for(l, item))) {
        struct loader_request *r = &l->requests[item];
        loader_request_unready(l, item);
        r->state = REQUEST_CHECKING;
        job->item = item;
        job->check.arranger = l->arranger;
        job->check.ranges = l->arranger ? &l->ranges[item] : NULL;
        l->n_busy++;
        loader_check_begin(&job->check, &r->load, r->stored, l->options.verify);
    }
}

static void work_until(struct loader_job *job, double until)
{
    while (!loader_check_over(&job->check)) {
        loader_check_step(&job->check);
        if (moe_seconds() >= until)
            break;
    }
}

struct shift {
    struct moe_loader *l;
    double seconds;
};

/* Gives each job its full time, even if there are fewer threads than jobs. */
static void work_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct shift *s = ctx;
    for (int64_t i = begin; i < end; i++)
        if (s->l->jobs[i].item != MOE_LINK_NONE)
            work_until(&s->l->jobs[i], moe_seconds() + s->seconds);
}

static void work_alone(struct moe_loader *l, double until)
{
    for (int demands = 1; demands >= 0; demands--)
        for (uint32_t i = 0; i < l->n_jobs && moe_seconds() < until; i++)
            if (l->jobs[i].item != MOE_LINK_NONE && is_demand(l, l->jobs[i].item) == demands)
                work_until(&l->jobs[i], until);
}

/* ---- Reports ---- */

/* Rereads the request from the disk: memory, the page cache or the transfer may be at fault rather
 * than the file. */
static void read_again(struct moe_loader *l, uint32_t item)
{
    struct loader_request *r = &l->requests[item];
    if (!l->stats.direct)
        loader_request_forget(l, item);
    r->n_rereads++;
    l->stats.rereads++;
    loader_request_read(l, item, moe_seconds());
}

static void report_load(struct moe_loader *l, uint32_t item, struct moe_load_done *done)
{
    const struct loader_request *r = &l->requests[item];
    *done = (struct moe_load_done){.tag = r->load.tag, .status = r->status};
    loader_request_free(l, item);
}

/* Reports requests that failed or were cancelled: they need no check. */
static uint32_t report_failed(struct moe_loader *l, struct moe_load_done *done, uint32_t max)
{
    uint32_t n = 0, after;
    for (uint32_t i = l->first_ready; i != MOE_LINK_NONE && n < max; i = after) {
        after = l->requests[i].next;
        if (l->requests[i].status != MOE_OK) {
            loader_request_unready(l, i);
            report_load(l, i, &done[n++]);
        }
    }
    return n;
}

/* Reports a finished job. False: its bytes were damaged and are being read again. */
static bool report_checked(struct moe_loader *l, struct loader_job *job, struct moe_load_done *done)
{
    uint32_t item = job->item;
    struct loader_request *r = &l->requests[item];
    const char *problem = job->check.problem;
    struct moe_err why = job->check.failure;
    job_free(l, job);
    if (problem && r->n_rereads == 0) {
        read_again(l, item);
        return false;
    }
    if (problem && l->arranger) {
        l->error = why;
        r->status = why.status;
    } else if (problem)
        r->status = moe_fail(&l->error, MOE_ERR_FORMAT,
                             "%s: %" PRIu64 " bytes at offset %" PRIu64
                             ": %s (file damaged? run moe-quantize --verify)",
                             l->options.path, r->load.stored_bytes, r->load.offset, problem);
    report_load(l, item, done);
    return true;
}

/* Works on ready requests, demands first, for about `seconds`: with the other computing threads, or
 * on the owner's only. Writes at most `max` completions to done[]; returns how many. */
static uint32_t loader_finish_some(struct moe_loader *l, struct moe_load_done *done, uint32_t max,
                                   double seconds, bool together)
{
    struct shift s = {l, seconds};
    uint32_t n = report_failed(l, done, max);
    start_jobs(l);
    if (together && l->n_busy > 1)
        moe_par_for(l->n_jobs, 1, work_range, &s);
    else
        work_alone(l, moe_seconds() + seconds);
    for (uint32_t i = 0; i < l->n_jobs && n < max; i++) {
        struct loader_job *job = &l->jobs[i];
        if (job->item != MOE_LINK_NONE && loader_check_over(&job->check))
            n += report_checked(l, job, &done[n]);
    }
    return n;
}

/* ---- Requests ---- */

static const char *load_problem(const struct moe_loader *l, const struct moe_load *load)
{
    bool to_gpu = l->options.gpu != NULL;
    if (to_gpu != (load->from != NULL))
        return "bytes in memory go to a GPU, bytes of a file to memory";
    if (!to_gpu &&
        (load->offset % MOE_LOAD_ALIGN != 0 || (uintptr_t)load->to % MOE_LOAD_ALIGN != 0))
        return "place in file or memory is not a multiple of 4096";
    if (load->stored_bytes == 0 || load->stored_bytes > load->raw_bytes ||
        load->raw_bytes > INT64_MAX - MOE_LOAD_ALIGN ||
        load->offset > INT64_MAX - MOE_LOAD_ALIGN - load->stored_bytes)
        return "sizes make no sense";
    if (loader_is_staged(l, load) && l->options.in_place)
        return "compressed bytes cannot stay in place";
    if (loader_is_staged(l, load) &&
        moe_round_up(load->stored_bytes, MOE_LOAD_ALIGN) > l->options.compressed_bytes &&
        !l->arranger)
        return "more compressed bytes than there is room for";
    return NULL;
}

/* Finds what an arranged load reads. */
static int find_ranges(struct moe_loader *l, const struct moe_load *load, uint32_t item,
                       uint64_t *read_bytes, struct moe_err *err)
{
    struct loader_ranges *r = &l->ranges[item];
    *read_bytes = 0;
    MOE_TRY(l->arranger->ranges(l->arranger->ctx, load->offset, r->at, &r->n, err));
    for (uint32_t i = 0; i < r->n; i++)
        *read_bytes += moe_range_read_bytes(&r->at[i]);
    return *read_bytes > 0 && *read_bytes <= l->options.compressed_bytes
               ? MOE_OK
               : moe_fail(err, MOE_ERR_USAGE, "%s: request of %" PRIu64 " bytes: no room for them",
                          l->options.path, *read_bytes);
}

int moe_loader_submit(struct moe_loader *l, const struct moe_load *load, uint32_t *handle,
                      struct moe_err *err)
{
    const char *problem = load_problem(l, load);
    if (problem)
        return moe_fail(err, MOE_ERR_USAGE, "%s: request at offset %" PRIu64 ": %s",
                        l->options.path, load->offset, problem);
    uint32_t item = l->free_request;
    if (item == MOE_LINK_NONE)
        return moe_fail(err, MOE_ERR_LIMIT, "%s: all %" PRIu32 " requests are under way",
                        l->options.path, l->options.n_requests);
    struct loader_request *r = &l->requests[item];
    uint64_t read_bytes = moe_round_up(load->stored_bytes, MOE_LOAD_ALIGN);
    if (l->arranger)
        MOE_TRY(find_ranges(l, load, item, &read_bytes, err));
    l->free_request = r->next;
    l->n_requests++;
    l->stats.requests++;
    uint16_t generation = (uint16_t)(r->generation + 1);
    *r = (struct loader_request){.load = *load,
                                 .generation = generation ? generation : 1,
                                 .stored = loader_is_staged(l, load) ? NULL : load->to,
                                 .read_bytes = read_bytes,
                                 .next = MOE_LINK_NONE};
    *handle = (uint32_t)r->generation << 16 | item;
    if (l->options.lockstep) {
        r->state = REQUEST_MODELLED;
        moe_link_add(&l->model, item, moe_round_up(load->stored_bytes, MOE_LOAD_ALIGN),
                     load->priority, load->score);
    } else {
        double began = moe_seconds();
        loader_request_read(l, item, began);
        if (!l->held)
            loader_read_pump(l);
        l->stats.work_seconds += moe_seconds() - began;
    }
    return MOE_OK;
}

void moe_loader_hold(struct moe_loader *l)
{
    l->held = true;
}

void moe_loader_let_go(struct moe_loader *l)
{
    l->held = false;
    if (l->options.lockstep || moe_link_first(&l->queue) == MOE_LINK_NONE)
        return;
    double began = moe_seconds();
    loader_read_pump(l);
    l->stats.work_seconds += moe_seconds() - began;
}

/* The unfinished request with that handle, or NULL. */
static struct loader_request *find_request(struct moe_loader *l, uint32_t handle, uint32_t *item)
{
    *item = handle & 0xffff;
    if (*item >= l->options.n_requests)
        return NULL;
    struct loader_request *r = &l->requests[*item];
    return r->state != REQUEST_FREE && r->generation == handle >> 16 ? r : NULL;
}

void moe_loader_promote(struct moe_loader *l, uint32_t handle, enum moe_load_priority priority,
                        float score)
{
    uint32_t item;
    struct loader_request *r = find_request(l, handle, &item);
    if (!r)
        return;
    r->load.priority = priority;
    r->load.score = score;
    if (r->state == REQUEST_MODELLED)
        moe_link_promote(&l->model, item, priority, score);
    else if (r->state == REQUEST_READING)
        moe_link_promote(&l->queue, item, priority, score);
}

bool moe_loader_cancel(struct moe_loader *l, uint32_t handle)
{
    uint32_t item;
    struct loader_request *r = find_request(l, handle, &item);
    if (!r || r->status == MOE_ERR_INTERRUPTED)
        return !r;
    bool gone = true;
    if (r->status == MOE_OK) {
        l->stats.cancelled++;
        l->stats.cancelled_bytes += r->bytes_in;
    }
    if (r->state == REQUEST_READING) {
        r->status = MOE_ERR_INTERRUPTED;
        gone = loader_read_abandon(l, item);
    } else if (r->state != REQUEST_MODELLED) {
        loader_finish_abandon(l, item);
    } else { /* the modelled link has moved bytes that nobody needs */
        uint64_t moved = l->model.items[item].started;
        l->stats.cancelled_bytes += moved;
        l->stats.bytes_read += moved;
        moe_link_drop(&l->model, item);
    }
    if (gone)
        loader_request_free(l, item);
    return gone;
}

void moe_loader_limit_prefetches(struct moe_loader *l, double bytes)
{
    moe_link_limit_prefetches(&l->queue, bytes);
    if (l->options.lockstep)
        moe_link_limit_prefetches(&l->model, bytes);
}

/* ---- Lockstep ---- */

/* Reads a whole request once its modelled time has come. */
static void fetch(struct moe_loader *l, uint32_t item, struct moe_load_done *done)
{
    loader_request_read(l, item, moe_seconds());
    do {
        loader_read_pump(l);
        if (!loader_finish_pending(l))
            loader_read_sleep(l, INFINITY);
    } while (loader_finish_some(l, done, 1, WAIT_SECONDS, false) == 0);
}

static uint32_t poll_lockstep(struct moe_loader *l, struct moe_load_done *done, uint32_t max)
{
    uint32_t n = 0, item;
    while (n < max && (item = moe_link_take_arrived(&l->model)) != MOE_LINK_NONE)
        fetch(l, item, &done[n++]);
    l->stats.read_seconds = l->model.busy_seconds;
    l->stats.work_seconds = l->model.worked_seconds;
    return n;
}

double moe_loader_advance(struct moe_loader *l, double seconds)
{
    if (!l->options.lockstep)
        return 0;
    moe_link_advance(&l->model, seconds);
    l->stats.work_seconds = l->model.worked_seconds;
    return l->model.clock;
}

double moe_loader_next_piece(const struct moe_loader *l)
{
    return l->options.lockstep ? moe_link_next_piece(&l->model) : 0;
}

/* ---- Polling and waiting ---- */

/* Reaps reads and starts others, works on those that have ended, reports. */
static uint32_t attend(struct moe_loader *l, struct moe_load_done *done, uint32_t max,
                       double seconds, bool together)
{
    loader_read_pump(l);
    if (!loader_finish_pending(l) || max == 0)
        return 0;
    uint32_t n = loader_finish_some(l, done, max, seconds, together);
    loader_read_pump(l); /* the queue is empty now; there may be room for compressed bytes */
    return n;
}

uint32_t moe_loader_poll(struct moe_loader *l, struct moe_load_done *done, uint32_t max)
{
    if (l->options.lockstep)
        return poll_lockstep(l, done, max);
    double started = moe_seconds();
    uint32_t n = attend(l, done, max, POLL_SECONDS, false);
    double seconds = moe_seconds() - started;
    l->stats.work_seconds += seconds;
    if (seconds > l->stats.longest_poll_seconds)
        l->stats.longest_poll_seconds = seconds;
    return n;
}

static uint32_t wait_lockstep(struct moe_loader *l, struct moe_load_done *done, uint32_t max)
{
    uint32_t n = poll_lockstep(l, done, max);
    while (n == 0 && max > 0 && l->n_requests > 0) {
        double before = l->model.clock, worked = l->model.worked_seconds;
        double passed = moe_link_wait(&l->model) - before;
        l->stats.wait_seconds += passed - (l->model.worked_seconds - worked);
        n = poll_lockstep(l, done, max);
    }
    return n;
}

uint32_t moe_loader_wait(struct moe_loader *l, struct moe_load_done *done, uint32_t max)
{
    if (l->options.lockstep)
        return wait_lockstep(l, done, max);
    return moe_loader_wait_for(l, done, max, INFINITY);
}

uint32_t moe_loader_wait_for(struct moe_loader *l, struct moe_load_done *done, uint32_t max,
                             double seconds)
{
    if (l->options.lockstep)
        return poll_lockstep(l, done, max);
    uint32_t n;
    double slept = l->stats.wait_seconds;
    l->waiting_since = moe_seconds();
    double began = l->waiting_since, until = began + seconds;
    while ((n = attend(l, done, max, WAIT_SECONDS, true)) == 0 && max > 0 && l->n_requests > 0) {
        double before = moe_seconds();
        if (before >= until)
            break;
        if (loader_finish_pending(l))
            continue;
        loader_read_sleep(l, until);
        l->stats.wait_seconds += moe_seconds() - before;
    }
    double now = moe_seconds();
    l->stats.work_seconds += now - began - (l->stats.wait_seconds - slept);
    l->waited = loader_waited(l, now);
    l->waiting_since = 0;
    return n;
}

const char *moe_loader_error(const struct moe_loader *l)
{
    return l->error.text;
}

const struct moe_loader_stats *moe_loader_stats(const struct moe_loader *l)
{
    return &l->stats;
}
