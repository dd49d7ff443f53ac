/* Context files: header, ids and pieces, written and read. */
#include "engine/context_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "infer/recurrent.h"
#include "model/config.h"

#define MAGIC "MOEC"
enum { VERSION = 1, HEADER = 104, N_WORDS = 9, FAR = 1, DRAWS = 2 };

/* Upper limit of the text of a file with that many ids: this program writes less. */
static uint64_t most_text(uint64_t n_ids)
{
    return (1 << 20) + 256 * n_ids;
}

void moe_context_release(struct moe_context *c)
{
    moe_ids_release(&c->ids);
    moe_buf_release(&c->text);
    *c = (struct moe_context){0};
}

/* ---- Header ---- */

/* What the file says of itself; the texts and ids follow, then keys and values, then states. */
struct header {
    uint64_t pack;
    uint16_t kind, flags;
    uint32_t n_layers, n_heads, key_dim, value_dim; /* of the cache */
    uint32_t n_ids, n_done, n_text, n_method;
    uint32_t n_states; /* layers whose recurrent states there are */
    struct moe_sampler_draws draws;
    uint64_t head_check; /* of method, text and ids */
};

static void encode(const struct header *h, uint8_t to[HEADER])
{
    const uint32_t words[] = {h->n_layers, h->n_heads, h->key_dim,  h->value_dim, h->n_ids,
                              h->n_done,   h->n_text,  h->n_method, h->n_states};
    memcpy(to, MAGIC, 4);
    moe_put_u32(to + 4, VERSION);
    moe_put_u64(to + 8, h->pack);
    moe_put_u16(to + 16, h->kind);
    moe_put_u16(to + 18, h->flags);
    for (int i = 0; i < N_WORDS; i++)
        moe_put_u32(to + 20 + 4 * i, words[i]);
    for (int i = 0; i < 4; i++)
        moe_put_u64(to + 56 + 8 * i, h->draws.random[i]);
    moe_put_u64(to + 88, h->head_check);
    moe_put_u64(to + 96, moe_hash64(to, 96));
}

static int damaged(const char *path, const char *what, struct moe_err *err)
{
    return moe_fail(err, MOE_ERR_FORMAT, "%s: the context file is damaged: %s", path, what);
}

static int decode(const uint8_t from[HEADER], const char *path, struct header *h,
                  struct moe_err *err)
{
    uint32_t *const words[] = {&h->n_layers, &h->n_heads, &h->key_dim,  &h->value_dim, &h->n_ids,
                               &h->n_done,   &h->n_text,  &h->n_method, &h->n_states};
    if (memcmp(from, MAGIC, 4) != 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: is not a context file (/save makes one)", path);
    if (moe_get_u32(from + 4) != VERSION)
        return moe_fail(err, MOE_ERR_VERSION,
                        "%s: a context file of version %u, and this program reads version %d", path,
                        moe_get_u32(from + 4), VERSION);
    if (moe_get_u64(from + 96) != moe_hash64(from, 96))
        return damaged(path, "the checksum of its header is wrong", err);
    h->pack = moe_get_u64(from + 8);
    h->kind = moe_get_u16(from + 16);
    h->flags = moe_get_u16(from + 18);
    for (int i = 0; i < N_WORDS; i++)
        *words[i] = moe_get_u32(from + 20 + 4 * i);
    for (int i = 0; i < 4; i++)
        h->draws.random[i] = moe_get_u64(from + 56 + 8 * i);
    h->head_check = moe_get_u64(from + 88);
    const uint64_t *r = h->draws.random;
    bool sense = moe_kv_kind_name(h->kind) && h->n_done <= h->n_ids &&
                 h->n_ids <= MOE_MAX_CONTEXT && h->n_text <= most_text(h->n_ids) &&
                 h->n_method < MOE_CONTEXT_METHOD && h->flags <= (FAR | DRAWS) &&
                 (!(h->flags & DRAWS) || r[0] | r[1] | r[2] | r[3]);
    return sense ? MOE_OK : damaged(path, "its header has impossible values", err);
}

/* ---- Pieces ---- */

/* Each piece is followed by its checksum, chained to that of the piece before; check: what
 * the first one's is chained to. */
static int write_pieces(struct moe_outfile *file, const struct moe_kept *p, uint64_t check,
                        struct moe_err *err)
{
    uint64_t bytes, n = moe_kept_count(p, &bytes);
    uint8_t *room = moe_alloc(moe_kept_room(p), 1, err);
    int status;
    MOE_STEP(room ? MOE_OK : MOE_ERR_MEMORY);
    for (uint64_t i = 0; i < n; i++) {
        const struct moe_kept_piece piece = moe_kept_at(p, i);
        uint8_t behind[sizeof check], *at = moe_kept_place(p, &piece, room);
        moe_kept_get(p, &piece, at);
        check = moe_hash64_chain(check, at, piece.bytes);
        moe_put_u64(behind, check);
        MOE_STEP(moe_outfile_write(file, at, piece.bytes, file->size_bytes, err));
        MOE_STEP(moe_outfile_write(file, behind, sizeof behind, file->size_bytes, err));
    }
out:
    free(room);
    return status;
}

static int put_pieces(void *file, const struct moe_kept *p, struct moe_err *err)
{
    const struct moe_context_file *f = file;
    uint64_t at = f->pieces_at, check = f->check, bytes, n = moe_kept_count(p, &bytes);
    uint8_t *room = moe_alloc(moe_kept_room(p), 1, err);
    int status = room ? MOE_OK : MOE_ERR_MEMORY;
    for (uint64_t i = 0; i < n && status == MOE_OK; i++) {
        const struct moe_kept_piece piece = moe_kept_at(p, i);
        uint8_t behind[sizeof check], *to = moe_kept_place(p, &piece, room);
        status = moe_file_pread(f->fd, f->path, to, piece.bytes, at, err);
        if (status == MOE_OK)
            status = moe_file_pread(f->fd, f->path, behind, sizeof behind, at + piece.bytes, err);
        if (status != MOE_OK)
            break;
        at += piece.bytes + sizeof behind;
        check = moe_hash64_chain(check, to, piece.bytes);
        if (check != moe_get_u64(behind))
            status = moe_fail(err, MOE_ERR_FORMAT,
                              "%s: the context file is damaged: a checksum of its %s is wrong",
                              f->path, moe_kept_words[piece.kind]);
        else if (!moe_kept_put(p, &piece, to))
            status = moe_fail(err, MOE_ERR_FORMAT,
                              "%s: the context file is damaged: a cell of its %s is not finite",
                              f->path, moe_kept_words[piece.kind]);
    }
    free(room);
    return status;
}

/* Layers that have states, or compress, where there are n positions. */
static uint32_t n_states_of(const struct moe_kept *p, uint64_t n)
{
    return n ? moe_kept_state_layers(p) : 0;
}

uint64_t moe_context_most(const struct moe_context_file *f, const struct moe_session *s)
{
    uint64_t n = f->context.n_done;
    if (n <= s->context)
        return n;
    return s->state_ends ? 0 : s->context;
}

int moe_context_put(struct moe_context_file *f, struct moe_session *s, uint32_t sequence,
                    uint64_t n, struct moe_err *err)
{
    return moe_sequence_load(s, sequence, f->context.ids.ids, (uint32_t)n, f->context.far,
                             put_pieces, f, err);
}

/* ---- Writing ---- */

static int write_all(struct moe_outfile *file, const uint8_t header[HEADER],
                     const struct moe_buf *head, const struct moe_kept *p, uint64_t head_check,
                     struct moe_err *err)
{
    MOE_TRY(moe_outfile_write(file, header, HEADER, 0, err));
    MOE_TRY(moe_outfile_write(file, head->data, head->size, HEADER, err));
    return write_pieces(file, p, head_check, err);
}

int moe_context_write(const char *path, const struct moe_session *s, uint32_t sequence,
                      const struct moe_context *c, struct moe_err *err)
{
    struct moe_kept p;
    MOE_TRY(moe_sequence_save(s, sequence, (uint32_t)c->n_done, &p, err));
    if (c->ids.n > MOE_MAX_CONTEXT || c->text.size > most_text(c->ids.n))
        return moe_fail(err, MOE_ERR_LIMIT, "%s: a text of %" PRIu64 " bytes is too long to save",
                        path, c->text.size);
    struct header h = {
        .pack = moe_pack_fingerprint(s->model->pack),
        .kind = s->kv_kind,
        .flags = (uint16_t)((p.far ? FAR : 0) | (c->has_draws ? DRAWS : 0)),
        .n_layers = moe_kept_kv_layers(&p),
        .n_heads = p.kv->n_heads,
        .key_dim = p.kv->key_dim,
        .value_dim = p.kv->value_dim,
        .n_ids = (uint32_t)c->ids.n,
        .n_done = p.n,
        .n_states = n_states_of(&p, p.n),
        .n_text = (uint32_t)c->text.size,
        .n_method = (uint32_t)strlen(c->method),
        .draws = c->draws,
    };
    struct moe_buf head = {0};
    moe_buf_text(&head, c->method);
    moe_buf_append(&head, c->text.data, c->text.size);
    for (uint64_t i = 0; i < c->ids.n; i++)
        moe_buf_u32(&head, c->ids.ids[i]);
    h.head_check = head.failed ? 0 : moe_hash64(head.data, head.size);
    uint8_t header[HEADER];
    encode(&h, header);
    struct moe_outfile file = {.fd = -1};
    int status;
    MOE_STEP(head.failed ? moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", path)
                         : moe_outfile_open(&file, path, err));
    moe_outfile_keep_private(&file); /* it holds what was said */
    MOE_STEP(moe_outfile_end(&file, write_all(&file, header, &head, &p, h.head_check, err), err));
out:
    moe_buf_release(&head);
    return status;
}

/* ---- Reading ---- */

/* Checks that keys and values of the file are what this session would compute. */
static int check_origin(const struct header *h, const char *path, const struct moe_session *s,
                        const struct moe_kept *p, struct moe_err *err)
{
    const struct moe_kv *kv = p->kv;
    if (h->pack != moe_pack_fingerprint(s->model->pack))
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: the context was computed with another pack than %s", path,
                        moe_pack_path(s->model->pack));
    if (h->kind != s->kv_kind)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: its keys and values are kept as %s, and here as %s (--kv %s)", path,
                        moe_kv_kind_name(h->kind), moe_kv_kind_name(s->kv_kind),
                        moe_kv_kind_name(h->kind));
    if (h->n_layers != moe_kept_kv_layers(p) || h->n_heads != kv->n_heads ||
        h->key_dim != kv->key_dim || h->value_dim != kv->value_dim ||
        h->n_states != n_states_of(p, h->n_done))
        return damaged(path, "its keys and values are not of the shape of its pack", err);
    return MOE_OK;
}

static int check_method(const char *path, const char *theirs, const char *ours, struct moe_err *err)
{
    if (strcmp(theirs, ours) == 0)
        return MOE_OK;
    return moe_fail(err, MOE_ERR_USAGE,
                    "%s: the context was computed %s%s, and this run computes %s%s", path,
                    *theirs ? "by the inexact " : "exactly", theirs,
                    *ours ? "by the inexact " : "exactly", ours);
}

static int take_head(struct moe_context *c, const struct header *h, const uint8_t *head,
                     const char *path, const struct moe_session *s, struct moe_err *err)
{
    const uint8_t *ids = head + h->n_method + h->n_text;
    uint32_t vocab = s->model->config.vocab;
    memcpy(c->method, head, h->n_method);
    moe_buf_append(&c->text, head + h->n_method, h->n_text);
    int status = c->text.failed ? moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", path)
                                : moe_ids_reserve(&c->ids, h->n_ids, err);
    for (uint32_t i = 0; i < h->n_ids && status == MOE_OK; i++) {
        uint32_t id = moe_get_u32(ids + 4 * (uint64_t)i);
        status = id < vocab ? moe_ids_push(&c->ids, id, err)
                            : damaged(path, "it has a token that the model does not know", err);
    }
    c->n_done = h->n_done;
    c->far = h->flags & FAR;
    c->has_draws = h->flags & DRAWS;
    c->draws = h->draws;
    return status;
}

/* Everything but the pieces, of a file of `size` bytes; p: of this session, whose n is set. */
static int read_head(struct moe_context_file *f, uint64_t size, const struct moe_session *s,
                     struct moe_kept *p, struct moe_err *err)
{
    uint8_t header[HEADER];
    struct header h;
    if (size < HEADER)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: is not a context file", f->path);
    MOE_TRY(moe_file_pread(f->fd, f->path, header, HEADER, 0, err));
    MOE_TRY(decode(header, f->path, &h, err));
    MOE_TRY(check_origin(&h, f->path, s, p, err));
    uint64_t n_head = h.n_method + (uint64_t)h.n_text + 4 * (uint64_t)h.n_ids;
    f->pieces_at = HEADER + n_head;
    f->check = h.head_check;
    p->n = h.n_done;
    uint64_t bytes, n = moe_kept_count(p, &bytes);
    if (size != f->pieces_at + bytes + n * sizeof f->check)
        return damaged(f->path, "its size is not what its header says", err);
    uint8_t *head = moe_alloc(n_head + 1, 1, err);
    if (!head)
        return MOE_ERR_MEMORY;
    int status;
    MOE_STEP(moe_file_pread(f->fd, f->path, head, n_head, HEADER, err));
    if (moe_hash64(head, n_head) != h.head_check)
        MOE_STEP(damaged(f->path, "the checksum of its text is wrong", err));
    MOE_STEP(take_head(&f->context, &h, head, f->path, s, err));
out:
    free(head);
    return status;
}

int moe_context_open(struct moe_context_file *out, const char *path, const struct moe_session *s,
                     const char *method, struct moe_err *err)
{
    uint64_t size = 0;
    *out = (struct moe_context_file){.fd = -1};
    struct moe_kept p;
    MOE_TRY(moe_sequence_save(s, 0, 0, &p, err));
    if (!(out->path = moe_strndup(path, strlen(path), err)))
        return MOE_ERR_MEMORY;
    int status = out->fd = moe_file_open(path, &size, err);
    if (status >= 0)
        status = read_head(out, size, s, &p, err);
    if (status == MOE_OK)
        status = check_method(path, out->context.method, method, err);
    if (status != MOE_OK)
        moe_context_close(out);
    return status;
}

void moe_context_close(struct moe_context_file *f)
{
    if (f->path && f->fd >= 0)
        close(f->fd);
    free(f->path);
    moe_context_release(&f->context);
    *f = (struct moe_context_file){.fd = -1};
}
