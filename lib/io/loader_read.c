/* The loader's pieces: which one starts when, and what happens to those that come back. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "gpu.h"
#include "io/loader_state.h"

enum {
    MAX_IO_ERRORS = 2,  /* more tries after EIO: a path may fail over, a bus be reset */
    MAX_STALLS = 3,     /* reads that bring less than a block where the file ends */
    MAX_REFUSALS = 200, /* by the kernel, with growing pauses: about four seconds */
};

void loader_fault_apply(struct loader_piece *piece, int32_t got)
{
    piece->result = loader_fault_refuses(piece) ? piece->fault : got;
    if (piece->fault == 0 || piece->result <= 0)
        return;
    if (piece->fault == INT32_MIN) {
        /* Somewhere in the bytes that matter, at a place that only the offset decides. */
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

/* Keeps a piece that is neither at the backend nor over. */
static void piece_put_by(struct moe_loader *l, struct loader_piece *piece, int state)
{
    piece->state = state;
    l->n_put_by++;
}

/* A piece of the request is over. With the last one the request is ready. */
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

/* Whether a read that brought less than its piece wants did not stop at the file's end. */
static bool stopped_early(const struct moe_loader *l, const struct loader_piece *piece)
{
    struct stat st;
    return piece->result > 0 && fstat(l->file.buffered_fd, &st) == 0 &&
           (uint64_t)st.st_size >= piece->offset + piece->wanted_bytes;
}

/* The request has failed for good, as its piece shows; the piece still belongs to the caller. */
static void fail_read(struct moe_loader *l, const struct loader_piece *piece)
{
    struct loader_request *r = &l->requests[piece->request];
    const char *path = l->options.path;
    char text[128];
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
                             ": reads bring less than a block",
                             path, piece->n_bytes, piece->offset);
    else
        r->status = moe_fail(&l->error, MOE_ERR_FORMAT,
                             "%s: ends at byte %" PRIu64 ", %" PRIu32 " more were expected", path,
                             piece->offset + (uint32_t)piece->result,
                             piece->wanted_bytes - (uint32_t)piece->result);
    loader_read_abandon(l, piece->request);
}

/* Moves a short piece past the bytes that it brought: whole blocks only, as direct reads must begin
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

/* Whether the piece, whose read failed, should be read again; sets when. */
static bool may_retry(struct moe_loader *l, struct loader_piece *piece, double now)
{
    switch (-piece->result) {
    case EINVAL:
        /* Direct I/O that is refused only now (larger blocks than ours, a file system that accepted
         * the flag): the page cache takes any read. */
        if (piece->fd != l->file.direct_fd || piece->fd < 0)
            return false;
        l->stats.direct = false;
        piece->fd = l->file.buffered_fd;
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

/* The piece's read is over, also by the clock. */
static void settle(struct moe_loader *l, struct loader_piece *piece, double now)
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

static void collect(struct moe_loader *l, double now)
{
    uint32_t n = l->backend->ops->reap(l->backend, l->reaped, l->options.queue_depth);
    l->n_at_backend -= n;
    for (uint32_t i = 0; i < n; i++) {
        struct loader_piece *piece = l->reaped[i];
        if (piece->due > now && !l->requests[piece->request].given_up)
            piece_put_by(l, piece, PIECE_HELD);
        else
            settle(l, piece, now);
    }
}

/* Pieces whose time has come. */
static void take_up(struct moe_loader *l, double now)
{
    for (uint32_t i = 0; i < l->options.queue_depth && l->n_put_by > 0; i++) {
        struct loader_piece *piece = &l->pieces[i];
        if (piece->state == PIECE_HELD && piece->due <= now) {
            l->n_put_by--;
            settle(l, piece, now);
        } else if (piece->state == PIECE_AGAIN && piece->not_before <= now) {
            l->n_put_by--;
            piece_send(l, piece);
        }
    }
}

/* ---- What starts ---- */

/* The most urgent request that can start a piece; MOE_LINK_NONE. A compressed one needs room to be
 * read into. While one waits for room, less urgent ones get none (or small ones could block a large
 * one forever), but those that have room go on, and will free it. */
static uint32_t next_to_start(struct moe_loader *l)
{
    bool crowded = false;
    uint32_t item = moe_link_first(&l->queue);
    for (; item != MOE_LINK_NONE; item = moe_link_after(&l->queue, item)) {
        struct loader_request *r = &l->requests[item];
        if (!r->stored && !crowded)
            r->stored = staging_take(&l->staging, item, loader_read_bytes(&r->load));
        if (r->stored)
            break;
        crowded = true;
    }
    return item;
}

static void start_piece(struct moe_loader *l, uint32_t item, double now)
{
    struct loader_request *r = &l->requests[item];
    uint64_t at;
    uint32_t n_bytes = moe_link_start(&l->queue, item, &at);
    uint64_t left = r->load.stored_bytes - at;
    if (l->n_free_pieces == l->options.queue_depth)
        l->reading_since = now;
    struct loader_piece *piece = &l->pieces[l->free_pieces[--l->n_free_pieces]];
    *piece = (struct loader_piece){
        .offset = r->load.offset + at,
        .from = r->load.from ? (const uint8_t *)r->load.from + at : NULL,
        .to = r->stored + at,
        .n_bytes = n_bytes,
        .wanted_bytes = left < n_bytes ? (uint32_t)left : n_bytes,
        .fd = l->stats.direct ? l->file.direct_fd : l->file.buffered_fd,
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
        n_started >= l->options.prefetch_depth)
        item = MOE_LINK_NONE;
    return item;
}

void loader_read_pump(struct moe_loader *l)
{
    double now = moe_seconds();
    collect(l, now);
    take_up(l, now);
    uint32_t item;
    while ((item = can_start(l)) != MOE_LINK_NONE && token_bucket_delay(&l->bucket, now) <= 0)
        start_piece(l, item, now);
    collect(l, now); /* also hands what was started to the kernel */
    if (l->n_free_pieces < l->options.queue_depth) {
        l->stats.read_seconds += now - l->reading_since;
        l->reading_since = now;
    }
}

static double earlier(double a, double b)
{
    return a < b ? a : b;
}

void loader_read_sleep(struct moe_loader *l, double until)
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
        collect(l, INFINITY);
    }
}
