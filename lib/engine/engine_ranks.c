/* How an engine's experts, or layers, are shared out among ranks, and how these get them. */
#define _GNU_SOURCE /* pread, pwrite, O_CLOEXEC, SEEK_DATA */

#include "engine/engine_ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/par.h"
#include "base/text.h"
#include "engine/memory.h"
#include "infer/rank_worker.h"
#include "ranks/ranks.h"
#include "sched/share.h"

static const uint64_t SUPPOSED_MOST = 1ULL << 50; /* bytes of a budget */
enum {
    MOST_ROWS = 512,         /* of a pass, until rank 0 has said how many */
    LEAST_ROWS = 8,          /* of a pass, where a rank has little memory */
    SUPPOSED_MORE = 1 << 20, /* bytes of a budget: the step in which the smallest is looked for */
};

static int refuse_with_ranks(const struct moe_engine_options *o, const struct moe_pack *pack,
                             struct moe_err *err)
{
    const char *what = o->device.cuda || o->device.test ? "--device other than cpu"
                       : o->plan                        ? "--plan"
                       : o->follows_name                ? "--follow"
                       : o->lockstep                    ? "--lockstep"
                       : o->learn                       ? "--learn"
                                                        : NULL;
    if (o->spread && moe_pack_fd(pack) < 0)
        return moe_fail(err, MOE_ERR_USAGE,
                        "--spread sends parts of a pack, and %s is none: make one with "
                        "moe-quantize",
                        moe_pack_path(pack));
    return what
               ? moe_fail(err, MOE_ERR_UNSUPPORTED,
                          "several ranks do not go with %s: start one process without mpirun", what)
               : MOE_OK;
}

/* Bytes that this rank's budget leaves for experts, or for layers where it has none yet, and what a
 * session would be. */
static int room_for_experts(uint64_t *room, struct moe_session_options *session,
                            const struct moe_model *model, const struct moe_engine_options *own,
                            struct moe_err *err)
{
    struct moe_engine_options o = *own;
    struct moe_memory m;
    struct moe_err small;
    o.strategy = (struct moe_strategy){0};
    o.survey = NULL;
    if (o.experts_only && !model->whole_layers) /* else as rank 0 would have it without layers */
        o.session.batch = MOST_ROWS;
    int status = moe_memory_of(&m, model, NULL, &o, &small);
    if (status != MOE_OK && status != MOE_ERR_LIMIT) {
        if (err)
            *err = small;
        return status;
    }
    const struct moe_plan_memory *host = &m.budget.host;
    const uint64_t beside = host->program + host->dense + host->kv + host->work;
    *room = host->total > beside ? host->total - beside : 0;
    if (o.expert_memory_bytes && o.expert_memory_bytes < *room)
        *room = o.expert_memory_bytes;
    *session = m.session;
    return MOE_OK;
}

/* Bytes of each layer without its experts: its dense weights, and what a session has for it. */
static int size_layers(uint64_t *bytes, struct moe_model *model,
                       const struct moe_session_options *session, struct moe_err *err)
{
    enum { OTHERS = UINT8_MAX };
    const uint32_t n = model->config.n_layers;
    uint8_t owners[MOE_MAX_LAYERS];
    memset(owners, OTHERS, sizeof owners);
    MOE_TRY(moe_model_share_layers(model, 0, owners, err));
    const uint64_t none = model->weights_bytes + moe_session_bytes(&model->config, session);
    for (uint32_t layer = 0; layer < n; layer++) {
        owners[layer] = 0;
        MOE_TRY(moe_model_share_layers(model, 0, owners, err));
        owners[layer] = OTHERS;
        const uint64_t one = model->weights_bytes + moe_session_bytes(&model->config, session);
        bytes[layer] = one > none ? one - none : 0;
    }
    return MOE_OK;
}

/* Whose what is. */
struct shares {
    uint8_t *holders; /* [n_keys][MOE_HOLDERS] of experts; freed by who asked for them */
    uint32_t n_keys;
    uint8_t owners[MOE_MAX_LAYERS]; /* where layers are shared out as a whole */
};

/* Shares layers or experts out among ranks that have that room for them, [n_ranks]. session: as
 * rank 0's will be. */
static int divide(struct shares *out, struct moe_model *model, const struct moe_engine_options *own,
                  const struct moe_session_options *session, const uint64_t *room,
                  struct moe_err *err)
{
    const uint32_t n_layers = model->config.n_layers, n = moe_ranks_wire(own->ranks)->n_ranks;
    const struct moe_statistics *statistics = own->share_layers ? NULL : own->statistics;
    struct moe_inventory inventory;
    uint64_t bytes[MOE_MAX_LAYERS], *frequency = NULL;
    bool parts[MOE_MAX_LAYERS];
    int status;
    MOE_STEP(
        moe_inventory_of_pack(&inventory, model->pack, model->config.top_k, &model->config, err));
    if (statistics && !moe_model_fits_statistics(model, statistics))
        MOE_STEP(moe_fail(err, MOE_ERR_USAGE, "the statistics are of another model than %s",
                          moe_pack_path(model->pack)));
    if (statistics) { /* of no layers that draft */
        frequency = moe_inventory_uses(&inventory, moe_statistics_placement(statistics),
                                       statistics->shape.n_layers, err);
        MOE_STEP(frequency ? MOE_OK : MOE_ERR_MEMORY);
    }
    out->n_keys = moe_inventory_n_keys(&inventory);
    out->holders = moe_alloc(out->n_keys, MOE_HOLDERS, err);
    MOE_STEP(out->holders ? MOE_OK : MOE_ERR_MEMORY);
    if (!own->share_layers) {
        MOE_STEP(moe_share_experts(&inventory, room, n, frequency, out->holders, err));
        goto out;
    }
    for (uint32_t layer = 0; layer < n_layers; layer++)
        parts[layer] = moe_config_parts_at(&model->config, layer);
    MOE_STEP(size_layers(bytes, model, session, err));
    MOE_STEP(moe_share_layers(&inventory, bytes, parts, n_layers, room, n, out->owners,
                              out->holders, err));
out:
    free(frequency);
    moe_inventory_release(&inventory);
    return status;
}

/* ---- Packs that come from rank 0 ----
 * A rank's file has rank 0's length, header and directory, the experts that the rank was given, and
 * holes. FILE.have says which of them are known to be whole, so that these are not read again; what
 * it does not speak of is looked at.
 */

static int failed_at(const char *what, const char *path, struct moe_err *err)
{
    char text[128];
    const int code = errno;
    return moe_fail(err, MOE_ERR_IO, "%s: %s: %s", path, what,
                    moe_errno_text(code, text, sizeof text));
}

static int write_at(int fd, const char *path, const void *data, uint64_t n, uint64_t offset,
                    struct moe_err *err)
{
    for (uint64_t at = 0; at < n;) {
        const ssize_t wrote = pwrite(fd, (const uint8_t *)data + at, n - at, (off_t)(offset + at));
        if (wrote < 0 && errno != EINTR)
            return failed_at("cannot be written", path, err);
        at += wrote > 0 ? (uint64_t)wrote : 0;
    }
    return MOE_OK;
}

/* Bytes of rank 0's file, where `to` has room for all of them. */
static int fetch(struct moe_ranks *ranks, uint8_t *to, uint64_t n, uint64_t offset, uint64_t done,
                 uint64_t total, struct moe_err *err)
{
    for (uint64_t at = 0, part; at < n; at += part) {
        part = n - at < MOE_RANK_PIECE_BYTES ? n - at : MOE_RANK_PIECE_BYTES;
        MOE_TRY(moe_ranks_fetch(ranks, to + at, part, offset + at, done + at, total, NULL, err));
    }
    return MOE_OK;
}

static int note_path(struct moe_buf *to, const char *path, struct moe_err *err)
{
    moe_buf_printf(to, "%s.have", path);
    return to->failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory") : MOE_OK;
}

/* The header comes last: a file without one is begun again, and has nothing of what was noted. */
static int fetch_directory(struct moe_ranks *ranks, int fd, const char *path,
                           const uint8_t header[MOE_PACK_HEADER_BYTES],
                           const struct moe_rank_piece *whole, struct moe_err *err)
{
    const uint64_t n = whole->file_bytes - whole->directory;
    uint8_t *directory = whole->directory < whole->file_bytes ? moe_alloc(n, 1, err) : NULL;
    struct moe_buf have_path = {0};
    int status;
    MOE_STEP(directory ? MOE_OK : MOE_ERR_MEMORY);
    MOE_STEP(note_path(&have_path, path, err));
    if (unlink((const char *)have_path.data) != 0 && errno != ENOENT)
        MOE_STEP(failed_at("cannot be removed", (const char *)have_path.data, err));
    MOE_STEP(fetch(ranks, directory, n, whole->directory, 0, n, err));
    if (ftruncate(fd, (off_t)whole->file_bytes) != 0)
        MOE_STEP(failed_at("cannot be made as long as rank 0's", path, err));
    MOE_STEP(write_at(fd, path, directory, n, whole->directory, err));
    if (fdatasync(fd) != 0)
        MOE_STEP(failed_at("cannot be written", path, err));
    MOE_STEP(write_at(fd, path, header, MOE_PACK_HEADER_BYTES, 0, err));
out:
    moe_buf_release(&have_path);
    free(directory);
    return status;
}

int moe_engine_begin_spread(char **path, bool *begun_now, struct moe_ranks *ranks,
                            const char *directory, const char *pack, struct moe_err *err)
{
    static const uint8_t none[MOE_PACK_HEADER_BYTES];
    uint8_t header[MOE_PACK_HEADER_BYTES], had[MOE_PACK_HEADER_BYTES];
    struct moe_rank_piece whole;
    struct stat st;
    int fd = -1, status;
    *begun_now = false;
    *path = moe_path_join(directory, moe_path_name(pack), err);
    MOE_STEP(*path ? MOE_OK : MOE_ERR_MEMORY);
    if (mkdir(directory, 0777) != 0 && errno != EEXIST)
        MOE_STEP(failed_at("cannot be made", directory, err));
    fd = open(*path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || fstat(fd, &st) != 0)
        MOE_STEP(failed_at("cannot be written", *path, err));
    MOE_STEP(moe_ranks_fetch(ranks, header, sizeof header, 0, 0, 0, &whole, err));
    memset(had, 0, sizeof had);
    if (pread(fd, had, sizeof had, 0) < 0)
        MOE_STEP(failed_at("cannot be read", *path, err));
    *begun_now = st.st_size == 0;
    const bool begun = *begun_now || (uint64_t)st.st_size == whole.file_bytes;
    if (begun && memcmp(had, none, sizeof had) == 0)
        MOE_STEP(fetch_directory(ranks, fd, *path, header, &whole, err));
    else if (!begun || memcmp(had, header, sizeof had) != 0)
        MOE_STEP(moe_fail(err, MOE_ERR_USAGE,
                          "%s is no part of rank 0's %s: remove it, or name another directory with "
                          "--spread",
                          *path, moe_path_name(pack)));
    MOE_STEP(moe_ranks_fetch(ranks, NULL, 0, 0, 0, 0, NULL, err));
out:
    if (fd >= 0)
        close(fd);
    return status;
}

void moe_engine_undo_spread(const char *path)
{
    struct moe_buf have_path = {0};
    struct moe_err ignored;
    if (note_path(&have_path, path, &ignored) == MOE_OK &&
        !moe_path_exists((const char *)have_path.data))
        unlink(path);
    moe_buf_release(&have_path);
}

/* A rank's part of a pack. */
struct part {
    struct moe_ranks *ranks;
    const struct moe_pack *pack;
    const char *path;
    const char *have_path;
    int fd;
    uint8_t *have;        /* [layers][experts][variants] whether it is known to be whole */
    uint64_t n;           /* ... how many these are */
    uint8_t *room;        /* for the largest segment */
    uint64_t done, total; /* bytes of what is not known to be whole */
    uint64_t largest;     /* segment of that */
    uint64_t since_noted;
};

static uint64_t stored_bytes(const struct part *p, const struct moe_expert_extent *x)
{
    uint64_t sum = 0;
    for (uint32_t s = 0; s < moe_pack_class_at(p->pack, x->class_index)->n_segments; s++)
        sum += x->segments[s].stored_bytes;
    return sum;
}

/* Notes what has come, once it is on the disk. */
static int note(struct part *p, struct moe_err *err)
{
    struct moe_buf file = {0};
    if (fdatasync(p->fd) != 0)
        return failed_at("cannot be written", p->path, err);
    moe_buf_u64(&file, moe_pack_fingerprint(p->pack));
    moe_buf_append(&file, p->have, p->n);
    int status = file.failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory")
                             : moe_file_write_all(p->have_path, file.data, file.size, err);
    moe_buf_release(&file);
    p->since_noted = 0;
    return status;
}

/* What was noted of this file; of another nothing is believed. */
static int read_note(struct part *p, struct moe_err *err)
{
    struct moe_buf file = {0};
    int status = MOE_OK;
    if (moe_path_exists(p->have_path))
        status = moe_file_read_all(p->have_path, 8 + p->n, &file, err);
    if (status == MOE_OK && file.size == 8 + p->n &&
        moe_get_u64(file.data) == moe_pack_fingerprint(p->pack))
        memcpy(p->have, file.data + 8, p->n);
    moe_buf_release(&file);
    return status;
}

static int is_whole(struct part *p, const struct moe_expert_extent *x, bool *whole,
                    struct moe_err *err)
{
    *whole = true;
    for (uint32_t s = 0; *whole && s < moe_pack_class_at(p->pack, x->class_index)->n_segments;
         s++) {
        const struct moe_extent *e = &x->segments[s];
        const off_t data = lseek(p->fd, (off_t)e->offset, SEEK_DATA);
        *whole = data >= 0 && (uint64_t)data < e->offset + e->stored_bytes;
        if (!*whole) /* a hole, or it ends with one: nothing has come */
            break;
        MOE_TRY(moe_file_pread(p->fd, p->path, p->room, e->stored_bytes, e->offset, err));
        *whole = moe_hash64(p->room, e->stored_bytes) == e->checksum;
    }
    p->done += stored_bytes(p, x);
    moe_ranks_say_state(p->ranks, MOE_RANK_LOADING, p->done, p->total);
    return MOE_OK;
}

static int fetch_expert(struct part *p, const struct moe_expert_extent *x, bool *whole,
                        struct moe_err *err)
{
    enum { NOTE_EVERY = 256 << 20 };
    for (uint32_t s = 0; s < moe_pack_class_at(p->pack, x->class_index)->n_segments; s++) {
        const struct moe_extent *e = &x->segments[s];
        MOE_TRY(fetch(p->ranks, p->room, e->stored_bytes, e->offset, p->done, p->total, err));
        if (moe_hash64(p->room, e->stored_bytes) != e->checksum)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "rank 0's %s is damaged: an expert's checksum does not match (run "
                            "moe-quantize --verify there)",
                            moe_path_name(p->path));
        MOE_TRY(write_at(p->fd, p->path, p->room, e->stored_bytes, e->offset, err));
        p->done += e->stored_bytes;
        p->since_noted += e->stored_bytes;
    }
    *whole = true;
    return p->since_noted < NOTE_EVERY ? MOE_OK : note(p, err);
}

/* Has `look` look at this rank's experts that are not known to be whole. */
static int visit(struct part *p,
                 int (*look)(struct part *p, const struct moe_expert_extent *x, bool *whole,
                             struct moe_err *err),
                 struct moe_err *err)
{
    const uint32_t n_experts = moe_pack_n_experts(p->pack),
                   n_variants = moe_pack_n_variants(p->pack);
    for (uint64_t i = 0; i < p->n; i++) {
        const uint32_t at = (uint32_t)(i / n_variants), v = (uint32_t)(i % n_variants);
        const struct moe_expert_extent *x =
            moe_pack_expert(p->pack, at / n_experts, at % n_experts, v);
        bool whole = p->have[i];
        if (!x->present || whole)
            continue;
        MOE_TRY(look(p, x, &whole, err));
        p->have[i] = whole;
    }
    return MOE_OK;
}

static int count(struct part *p, const struct moe_expert_extent *x, bool *whole,
                 struct moe_err *err)
{
    (void)whole;
    (void)err;
    p->total += stored_bytes(p, x);
    for (uint32_t s = 0; s < MOE_PACK_MAX_SEGMENTS; s++)
        if (x->segments[s].stored_bytes > p->largest)
            p->largest = x->segments[s].stored_bytes;
    return MOE_OK;
}

static int fetch_experts(struct moe_ranks *ranks, const struct moe_pack *pack, struct moe_err *err)
{
    struct part p = {.ranks = ranks,
                     .pack = pack,
                     .path = moe_pack_path(pack),
                     .fd = -1,
                     .n = (uint64_t)moe_pack_n_layers(pack) * moe_pack_n_experts(pack) *
                          moe_pack_n_variants(pack)};
    struct moe_buf have_path = {0};
    struct statvfs fs;
    char needs[32], has[32];
    int status;
    MOE_STEP(note_path(&have_path, p.path, err));
    p.have_path = (const char *)have_path.data;
    p.have = moe_alloc(p.n, 1, err);
    MOE_STEP(p.have ? MOE_OK : MOE_ERR_MEMORY);
    p.fd = open(p.path, O_RDWR | O_CLOEXEC);
    if (p.fd < 0)
        MOE_STEP(failed_at("cannot be written", p.path, err));
    MOE_STEP(read_note(&p, err));
    MOE_STEP(visit(&p, count, err));
    p.room = moe_alloc(p.largest + 1, 1, err);
    MOE_STEP(p.room ? MOE_OK : MOE_ERR_MEMORY);
    MOE_STEP(visit(&p, is_whole, err));
    p.done = p.total = 0;
    MOE_STEP(visit(&p, count, err));
    if (fstatvfs(p.fd, &fs) == 0 && p.total / fs.f_frsize > fs.f_bavail)
        MOE_STEP(moe_fail(err, MOE_ERR_LIMIT, "%s: %s of experts are to come, and %s are free",
                          p.path, moe_format_bytes(p.total, needs),
                          moe_format_bytes((uint64_t)fs.f_bavail * fs.f_frsize, has)));
    MOE_STEP(visit(&p, fetch_expert, err));
    MOE_STEP(note(&p, err));
    MOE_STEP(moe_ranks_fetch(ranks, NULL, 0, 0, p.done, p.total, NULL, err));
out:
    if (p.since_noted > 0) /* what has come before an error need not come again */
        note(&p, NULL);
    if (p.fd >= 0)
        close(p.fd);
    moe_buf_release(&have_path);
    free(p.have);
    free(p.room);
    return status;
}

/* ---- What each begins with ---- */

/* What a model has on that rank, until it is known which layers. */
static int share_model(struct moe_model *model, const struct moe_engine_options *own, uint32_t rank,
                       uint32_t n_ranks, struct moe_err *err)
{
    if (own->share_attention)
        MOE_TRY(moe_model_share_attention(model, rank, n_ranks, err));
    return own->share_layers ? moe_model_share_layers(model, rank, NULL, err) : MOE_OK;
}

/* Rank 0 decides what is shared out, and of what a session will be what others must know to say how
 * much room they have. */
static int begin(struct moe_ranks *ranks, struct moe_model *model,
                 const struct moe_engine_options *own, uint64_t *room,
                 struct moe_session_options *session, struct moe_err *err)
{
    const uint32_t n_ranks = moe_ranks_wire(ranks)->n_ranks;
    MOE_TRY(share_model(model, own, 0, n_ranks, err));
    MOE_TRY(room_for_experts(room, session, model, own, err));
    struct moe_rank_shape shape = moe_rank_shape_of(model, session);
    return moe_ranks_begin(ranks, &shape, err);
}

/* The session of another rank is as rank 0 says. */
static void take_session(struct moe_engine_options *own, const struct moe_model *model,
                         const struct moe_rank_shape *shape)
{
    own->session = (struct moe_session_options){.batch = shape->batch};
    if (!moe_model_has_session(model))
        return;
    own->session.context = shape->context;
    own->session.n_sequences = shape->n_sequences;
    own->session.kv_blocks = shape->kv_blocks;
    own->session.kv_kind = (uint16_t)shape->kv_kind;
    own->session.whole_windows = !model->whole_layers;
    own->session.n_snapshots = shape->n_snapshots;
    own->session.takes_back = shape->takes_back;
}

static int follow(struct moe_ranks *ranks, struct moe_model *model, struct moe_engine_options *own,
                  uint64_t *room, struct moe_err *err)
{
    const struct moe_wire *wire = moe_ranks_wire(ranks);
    struct moe_rank_shape shape = moe_rank_shape_of(model, &own->session);
    struct moe_session_options session;
    MOE_TRY(moe_ranks_begin(ranks, &shape, err));
    if (shape.n_whole)
        MOE_TRY(moe_model_share_layers(model, wire->rank, NULL, err));
    else if (shape.n_table)
        MOE_TRY(moe_model_share_attention(model, wire->rank, wire->n_ranks, err));
    take_session(own, model, &shape);
    return room_for_experts(room, &session, model, own, err);
}

/* ---- Which batch, and which budgets ----
 * All ranks compute passes of the same rows. Before it says how many, rank 0 does the sums of all
 * of them.
 */

/* This process's budget. Texts are looked at here: what they take is in all sums to come. */
static struct moe_rank_budget budget_of(const struct moe_model *model,
                                        const struct moe_engine_options *own)
{
    struct moe_rank_budget budget = {.experts = own->expert_memory_bytes,
                                     .n_threads = (uint32_t)moe_par_threads()};
    struct moe_engine_options o = *own;
    struct moe_memory m;
    o.experts_only = false;
    int status = moe_memory_of(&m, model, NULL, &o, NULL);
    if (status == MOE_OK || status == MOE_ERR_LIMIT) /* else what is wrong will be said later */
        budget.total = m.budget.host.total;
    if (own->strategy.name)
        moe_strategy_brief(&own->strategy, budget.strategy);
    return budget;
}

/* What a rank does with rank 0's options, its own of experts, and that budget; with as many threads
 * as it has. */
static int suppose_rank(struct moe_engine_options *out, const struct moe_engine_options *own,
                        uint32_t rank, uint64_t total, struct moe_err *err)
{
    const struct moe_rank_budget *its = moe_ranks_budget(own->ranks, rank);
    uint32_t named;
    *out = *own;
    out->memory_bytes = total;
    out->survey = NULL;
    moe_par_set_team((int)its->n_threads);
    if (rank == 0)
        return MOE_OK;
    out->experts_only = true;
    out->beside = NULL;
    out->session = (struct moe_session_options){0};
    out->expert_memory_bytes = its->experts;
    out->strategy = (struct moe_strategy){0};
    return its->strategy[0] ? moe_strategy_parse(its->strategy, &out->strategy, &named, err)
                            : MOE_OK;
}

/* Whether all ranks have enough with these budgets, [n_ranks]: *lacking is one that has not, or
 * n_ranks. *batch: that rank 0 would say. */
static int try_budgets(struct moe_ranks *ranks, struct moe_model *model,
                       const struct moe_engine_options *own, const uint64_t *budgets,
                       uint32_t *batch, uint32_t *lacking, struct moe_err *err)
{
    const uint32_t n = moe_ranks_wire(ranks)->n_ranks;
    struct moe_engine_options o;
    struct moe_session_options session, other;
    struct shares shares = {0};
    uint64_t room[MOE_MAX_RANKS];
    struct moe_memory m;
    const int team = moe_par_set_team(0);
    int status;
    MOE_STEP(suppose_rank(&o, own, 0, budgets[0], err));
    MOE_STEP(share_model(model, own, 0, n, err));
    MOE_STEP(room_for_experts(&room[0], &session, model, &o, err));
    struct moe_rank_shape shape = moe_rank_shape_of(model, &session);
    moe_ranks_suppose(ranks, &shape);
    *batch = session.batch;
    for (uint32_t i = 1; i < n; i++) {
        MOE_STEP(suppose_rank(&o, own, i, budgets[i], err));
        MOE_STEP(share_model(model, own, i, n, err));
        take_session(&o, model, &shape);
        MOE_STEP(room_for_experts(&room[i], &other, model, &o, err));
    }
    MOE_STEP(divide(&shares, model, own, &session, room, err));
    for (*lacking = 0; *lacking < n; ++*lacking) {
        MOE_STEP(suppose_rank(&o, own, *lacking, budgets[*lacking], err));
        MOE_STEP(own->share_layers ? moe_model_share_layers(model, *lacking, shares.owners, err)
                                   : share_model(model, own, *lacking, n, err));
        if (*lacking > 0)
            take_session(&o, model, &shape);
        moe_pack_keep_own(model->pack, &model->config, shares.holders, (uint8_t)*lacking);
        status = moe_memory_of(&m, model, NULL, &o, err);
        moe_pack_keep_own(model->pack, &model->config, NULL, 0);
        if (status == MOE_ERR_LIMIT) {
            status = MOE_OK;
            break;
        }
        MOE_STEP(status);
        if (*lacking == 0) {
            shape = moe_rank_shape_of(model, &m.session);
            moe_ranks_suppose(ranks, &shape);
        }
    }
out:
    moe_par_set_team(team);
    free(shares.holders);
    return status;
}

/* ... with the batch that rank 0 has room for, or a smaller one, which *o then names. */
static int try_batches(struct moe_ranks *ranks, struct moe_model *model,
                       struct moe_engine_options *o, const uint64_t *budgets, uint32_t *lacking,
                       struct moe_err *err)
{
    const uint32_t named = o->session.batch, n = moe_ranks_wire(ranks)->n_ranks;
    uint32_t batch, first;
    MOE_TRY(try_budgets(ranks, model, o, budgets, &batch, lacking, err));
    first = *lacking;
    while (*lacking < n && !named && batch > LEAST_ROWS) {
        o->session.batch = batch / 2 > LEAST_ROWS ? batch / 2 : LEAST_ROWS;
        MOE_TRY(try_budgets(ranks, model, o, budgets, &batch, lacking, err));
    }
    if (*lacking == n)
        return MOE_OK;
    o->session.batch = named;
    *lacking = first;
    return MOE_OK;
}

/* Whether all have enough where none has less than `least`. */
static int try_least(struct moe_ranks *ranks, struct moe_model *model,
                     const struct moe_engine_options *own, uint64_t least, bool *fits,
                     struct moe_err *err)
{
    const uint32_t n = moe_ranks_wire(ranks)->n_ranks;
    struct moe_engine_options o = *own;
    uint64_t budgets[MOE_MAX_RANKS];
    uint32_t lacking;
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t total = moe_ranks_budget(ranks, i)->total;
        budgets[i] = total > least ? total : least;
    }
    MOE_TRY(try_batches(ranks, model, &o, budgets, &lacking, err));
    *fits = lacking == n;
    return MOE_OK;
}

/* Refuses budgets with which a rank has too little, and names the smallest that works for all. */
static int refuse_budgets(struct moe_ranks *ranks, struct moe_model *model,
                          const struct moe_engine_options *own, uint32_t lacking,
                          struct moe_err *err)
{
    struct moe_plan_memory m = {.total = moe_ranks_budget(ranks, lacking)->total};
    uint64_t low = m.total / SUPPOSED_MORE, high = low, more = 1;
    struct moe_err why;
    char rank[32] = "";
    for (bool fits = false; !fits; more *= 2) {
        if (high > SUPPOSED_MOST / SUPPOSED_MORE)
            return MOE_OK; /* more memory is not what is lacking: what is, will be said */
        low = high;
        high += more;
        MOE_TRY(try_least(ranks, model, own, high * SUPPOSED_MORE, &fits, err));
    }
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        bool fits;
        MOE_TRY(try_least(ranks, model, own, middle * SUPPOSED_MORE, &fits, err));
        *(fits ? &high : &low) = middle;
    }
    m.floor = high * SUPPOSED_MORE;
    if (lacking > 0)
        snprintf(rank, sizeof rank, "rank %u: ", lacking);
    moe_memory_refuse(model, &m, false, &why);
    return moe_fail(err, MOE_ERR_LIMIT, "%s%s", rank, why.text);
}

/* Rank 0, once it knows all budgets: settles the batch, where its own is too large for another, or
 * refuses. */
static int settle_batch(struct moe_ranks *ranks, struct moe_model *model,
                        struct moe_engine_options *own, struct moe_err *err)
{
    const uint32_t n = moe_ranks_wire(ranks)->n_ranks;
    uint64_t budgets[MOE_MAX_RANKS];
    uint32_t lacking;
    struct moe_err ignored;
    for (uint32_t i = 0; i < n; i++)
        if ((budgets[i] = moe_ranks_budget(ranks, i)->total) == 0)
            return MOE_OK;
    if (try_batches(ranks, model, own, budgets, &lacking, &ignored) != MOE_OK || lacking == n)
        return MOE_OK;
    return refuse_budgets(ranks, model, own, lacking, err);
}

/* ---- All of it ---- */

/* Rank 0, once it knows what room all have. */
static int settle_shares(struct moe_ranks *ranks, struct moe_model *model,
                         const struct moe_engine_options *own,
                         const struct moe_session_options *session, struct moe_err *err)
{
    struct shares shares = {0};
    uint64_t room[MOE_MAX_RANKS];
    int status;
    for (uint32_t i = 0; i < moe_ranks_wire(ranks)->n_ranks; i++)
        room[i] = moe_ranks_room(ranks, i);
    MOE_STEP(divide(&shares, model, own, session, room, err));
    MOE_STEP(moe_ranks_divide(ranks, shares.holders, shares.n_keys,
                              own->share_layers ? shares.owners : NULL, model->config.n_layers,
                              err));
    if (own->share_layers)
        MOE_STEP(moe_model_share_layers(model, 0, moe_ranks_owners(ranks), err));
out:
    free(shares.holders);
    return status;
}

/* What differs between ranks' options is refused, but for what is about a rank's own machine
 * (memory, threads, disks), and texts, contexts and how tokens are drawn, where rank 0's count. One
 * that holds all of its experts may do so by itself, whatever others do. */
static int meet(struct moe_ranks *ranks, const struct moe_model *model,
                const struct moe_engine_options *own, struct moe_err *err)
{
    const struct moe_rank_budget budget = budget_of(model, own);
    struct moe_buf options = {0};
    char tolerance[32], staging[16];
    snprintf(tolerance, sizeof tolerance, "%g", own->tolerance);
    snprintf(staging, sizeof staging, "%u", own->staging);
    if (!own->strategy.resident)
        moe_buf_printf(&options, "--strategy %s\n", budget.strategy[0] ? budget.strategy : "no");
    moe_buf_printf(&options, "--share-attention %s\n--share-layers %s\n--statistics %s\n",
                   own->share_attention ? "yes" : "no", own->share_layers ? "yes" : "no",
                   own->statistics ? "yes" : "no");
    moe_buf_printf(&options, "--tolerance %s\n--low %s\n--staging %s\n--draft %s\n",
                   own->tolerance > 0 ? tolerance : "no",
                   own->low_variant ? own->low_variant : "no", own->staging > 0 ? staging : "no",
                   own->drafter ? "a head"
                   : own->draft ? own->draft
                                : "no");
    int status = options.failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory")
                                : moe_ranks_meet(ranks, moe_pack_fingerprint(model->pack), &budget,
                                                 (const char *)options.data, err);
    moe_buf_release(&options);
    return status;
}

int moe_engine_join_ranks(struct moe_model *model, struct moe_engine_options *own,
                          struct moe_err *err)
{
    struct moe_ranks *ranks = own->ranks;
    const uint32_t rank = moe_ranks_wire(ranks)->rank;
    uint64_t room = 0;
    MOE_TRY(refuse_with_ranks(own, model->pack, err));
    if (model->config.n_experts == 0)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s has no experts to share out among ranks: start one process without "
                        "mpirun",
                        moe_pack_path(model->pack));
    if (rank == 0 && own->spread)
        MOE_TRY(moe_ranks_give(ranks, model->pack, NULL, err));
    MOE_TRY(meet(ranks, model, own, err));
    if (rank == 0) {
        struct moe_session_options session;
        if (own->share_layers)
            MOE_TRY(moe_config_check_parts(&model->config, moe_ranks_wire(ranks)->n_ranks,
                                           moe_pack_path(model->pack), err));
        MOE_TRY(settle_batch(ranks, model, own, err));
        MOE_TRY(begin(ranks, model, own, &room, &session, err));
        MOE_TRY(moe_ranks_say_room(ranks, room, err));
        MOE_TRY(settle_shares(ranks, model, own, &session, err));
    } else {
        MOE_TRY(follow(ranks, model, own, &room, err));
        MOE_TRY(moe_ranks_say_room(ranks, room, err));
        struct moe_rank_shape shape = moe_rank_shape_of(model, &own->session);
        MOE_TRY(moe_ranks_share(ranks, &shape, err));
        if (moe_ranks_owners(ranks))
            MOE_TRY(moe_model_share_layers(model, rank, moe_ranks_owners(ranks), err));
        take_session(own, model, &shape);
    }
    moe_pack_keep_own(model->pack, &model->config, moe_ranks_holders(ranks), (uint8_t)rank);
    return rank > 0 && own->spread ? fetch_experts(ranks, model->pack, err) : MOE_OK;
}
