/*
 * The loader: right bytes whatever the backend, order and urgency, order observed through the test
 * hook (never by time), one fault at a time, throttling and lockstep. Random faults in
 * test_loader_faults.c.
 */
#define _GNU_SOURCE
#include "io/loader.h"

#include <errno.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "loader_fixture.h"

/* ---- A hook that logs reads and answers as set ---- */

enum { LOG_ROOM = 4096 };

static struct {
    atomic_uint n;
    uint64_t offsets[LOG_ROOM];
    int answer; /* to reads of [from, to) */
    uint64_t from, to;
    atomic_int n_answers; /* left to give; the others get 0 */
    unsigned sleep_microseconds;
    atomic_bool closed; /* a gate: reads wait for it to open */
} hook_log;

static int hook(void *ctx, uint64_t offset, uint64_t n_bytes)
{
    unsigned i = atomic_fetch_add(&hook_log.n, 1);
    if (i < LOG_ROOM)
        hook_log.offsets[i] = offset;
    while (atomic_load(&hook_log.closed))
        usleep(100);
    if (hook_log.sleep_microseconds)
        usleep(hook_log.sleep_microseconds);
    if (offset < hook_log.from || offset >= hook_log.to)
        return 0;
    return atomic_fetch_sub(&hook_log.n_answers, 1) > 0 ? hook_log.answer : 0;
}

static struct moe_loader_options hooked_options(void)
{
    struct moe_loader_options o = fixture_options(&f);
    o.fault = hook;
    memset(&hook_log, 0, sizeof hook_log);
    return o;
}

/* From now on the first n reads in extent i get this answer. */
static void answer(int i, int how, int n)
{
    hook_log.from = f.extents[i].load.offset;
    hook_log.to = hook_log.from + f.extents[i].load.stored_bytes;
    hook_log.answer = how;
    atomic_store(&hook_log.n_answers, n);
}

static bool in_extent(uint64_t offset, int i)
{
    return offset >= f.extents[i].load.offset &&
           offset < f.extents[i].load.offset + f.extents[i].load.stored_bytes;
}

/* ---- Ways to read ---- */

struct way {
    enum moe_load_backend backend;
    bool buffered, copy;
};

static const struct way ways[] = {
    {MOE_LOAD_URING, false, false}, {MOE_LOAD_URING, true, false}, {MOE_LOAD_PREAD, false, false},
    {MOE_LOAD_PREAD, true, false},  {MOE_LOAD_AUTO, false, true},
};

static bool uring_works(void)
{
    struct moe_loader_options o = fixture_options(&f);
    struct moe_loader *l = NULL;
    o.backend = MOE_LOAD_URING;
    int status = moe_loader_open(&l, &o, NULL);
    moe_loader_close(l);
    return status == MOE_OK;
}

/* False: this machine does not have it. */
static bool go_this_way(struct moe_loader_options *o, const struct way *way)
{
    o->backend = way->backend == MOE_LOAD_URING && !uring_works() ? MOE_LOAD_AUTO : way->backend;
    o->buffered = way->buffered;
    if (way->copy) {
        o->copy = f.copy;
        o->copy_bytes = f.copy_bytes;
    }
    return o->backend == way->backend;
}

/* ---- Right bytes ---- */

/* Random asking, promoting, cancelling, polling and waiting; every completion is checked. */
static void random_run(const struct moe_loader_options *options, uint64_t random, int n_steps)
{
    struct moe_loader *l = fixture_loader(options);
    uint32_t handles[N_EXTENTS] = {0};
    bool cancelled[N_EXTENTS] = {0};
    uint32_t n_under_way = 0;
    for (int step = 0; step < n_steps || n_under_way > 0; step++) {
        uint64_t r = test_random(&random);
        int i = (int)((r >> 8) % N_EXTENTS), action = step < n_steps ? (int)(r % 8) : 7;
        enum moe_load_priority priority = r >> 20 & 1 ? MOE_LOAD_DEMAND : MOE_LOAD_PREFETCH;
        float score = (float)(r >> 21 & 7);
        struct moe_load_done done[3];
        uint32_t n = 0;
        if (action < 4 && !handles[i]) {
            handles[i] = fixture_submit(&f, l, i, priority, score);
            cancelled[i] = false;
            n_under_way++;
        } else if (action == 4 && handles[i]) {
            moe_loader_promote(l, handles[i], priority, score);
        } else if (action == 5 && handles[i]) {
            bool gone = moe_loader_cancel(l, handles[i]);
            cancelled[i] = true;
            n_under_way -= gone;
            handles[i] = gone ? 0 : handles[i];
        } else if (action == 6) {
            n = moe_loader_poll(l, done, 3);
        } else if (action == 7) {
            n = moe_loader_wait(l, done, 3);
            assert_true(n > 0 || n_under_way == 0);
        }
        for (uint32_t k = 0; k < n; k++, n_under_way--) {
            int which = (int)done[k].tag;
            if (done[k].status != (cancelled[which] ? MOE_ERR_INTERRUPTED : MOE_OK))
                fail_msg("extent %d: status %d: %s", which, done[k].status, moe_loader_error(l));
            if (!cancelled[which])
                fixture_check(&f, which);
            assert_int_not_equal(handles[which], 0);
            handles[which] = 0;
        }
    }
    assert_int_equal(moe_loader_wait(l, NULL, 1), 0);
    moe_loader_close(l);
}

static void every_way_brings_the_right_bytes(void **state)
{
    for (size_t k = 0; k < N_ITEMS(ways); k++) {
        struct moe_loader_options o = fixture_options(&f);
        if (!go_this_way(&o, &ways[k]))
            continue;
        for (int i = 0; i < 12; i++) {
            o.verify = i % 3 != 0;
            o.queue_depth = 1u << i % 4;
            o.piece_bytes = 4096u << i % 7;
            random_run(&o, 1000 * k + (uint64_t)i, 250);
        }
        o.rate = 400e6;
        random_run(&o, k, 100);
        o.lockstep = true;
        random_run(&o, k, 250);
    }
}

static void stats_tell_what_is_in_use(void **state)
{
    for (size_t k = 0; k < N_ITEMS(ways); k++) {
        struct moe_loader_options o = fixture_options(&f);
        if (!go_this_way(&o, &ways[k]))
            continue;
        struct moe_loader *l = fixture_loader(&o);
        struct moe_load_done done;
        fixture_submit(&f, l, 0, MOE_LOAD_DEMAND, 0);
        assert_int_equal(moe_loader_wait(l, &done, 1), 1);
        const struct moe_loader_stats *s = moe_loader_stats(l);
        assert_int_equal(s->uring, ways[k].backend == MOE_LOAD_URING);
        if (ways[k].buffered || ways[k].copy)
            assert_false(s->direct);
        assert_int_equal(s->requests, 1);
        assert_int_equal(s->bytes_read, MAX_RAW);
        assert_int_equal(s->pieces, (MAX_RAW + 16383) / 16384);
        assert_int_equal(s->retries + s->rereads + s->cancelled, 0);
        moe_loader_close(l);
    }
}

/* ---- Order ---- */

/* Reads of extent `other` started before the last read of extent i. */
static unsigned n_before(int other, int i)
{
    unsigned n = atomic_load(&hook_log.n), n_other = 0, at_last = 0;
    for (unsigned k = 0; k < n; k++) {
        n_other += in_extent(hook_log.offsets[k], other);
        if (in_extent(hook_log.offsets[k], i))
            at_last = n_other;
    }
    return at_last;
}

static void a_demand_overtakes_a_prefetch(void **state)
{
    for (size_t k = 0; k < N_ITEMS(ways); k++) {
        struct moe_loader_options o = hooked_options();
        struct moe_load_done done[2];
        if (!go_this_way(&o, &ways[k]))
            continue;
        /* Of two reading threads one may lose its core over a demand's last piece, while the other
         * goes on to the prefetch. */
        o.queue_depth = ways[k].backend == MOE_LOAD_PREAD ? 1 : 2;
        o.piece_bytes = 4096;
        struct moe_loader *l = fixture_loader(&o);
        fixture_submit(&f, l, 0, MOE_LOAD_PREFETCH, 1); /* 50 pieces */
        uint32_t second = fixture_submit(&f, l, 15, MOE_LOAD_PREFETCH, 0.5f);
        fixture_submit(&f, l, 10, MOE_LOAD_DEMAND, 0);
        moe_loader_promote(l, second, MOE_LOAD_DEMAND, 0);
        assert_int_equal(moe_loader_wait(l, done, 1), 1);
        assert_int_equal(moe_loader_wait(l, done + 1, 1), 1);
        assert_int_equal(done[0].tag + done[1].tag, 10 + 15);
        fixture_check(&f, 10);
        fixture_check(&f, 15);
        assert_int_equal(moe_loader_wait(l, done, 2), 1);
        fixture_check(&f, 0);
        /* What the three submissions themselves started: depth pieces each at most. */
        assert_in_range(n_before(0, 10), 0, 3 * o.queue_depth);
        assert_in_range(n_before(0, 15), 0, 3 * o.queue_depth);
        moe_loader_close(l);
    }
}

static void prefetches_go_by_score(void **state)
{
    static const float scores[] = {0.1f, 0.7f, 0.3f, 0.9f, 0.7f};
    static const int by_score[] = {15, 5, 20, 10, 0};
    struct moe_loader_options o = hooked_options();
    struct moe_load_done done[5];
    o.queue_depth = 1;
    o.backend = MOE_LOAD_PREAD;
    struct moe_loader *l = fixture_loader(&o);
    atomic_store(&hook_log.closed, true); /* the first piece is read until all have come */
    for (int i = 0; i < 5; i++)
        fixture_submit(&f, l, 5 * i, MOE_LOAD_PREFETCH, scores[i]);
    moe_loader_promote(l, 0, MOE_LOAD_DEMAND, 0); /* nobody's handle */
    atomic_store(&hook_log.closed, false);
    int order[5], n = 0;
    while (n < 5) {
        uint32_t got = moe_loader_wait(l, done, 5);
        for (uint32_t k = 0; k < got; k++)
            order[n++] = (int)done[k].tag;
    }
    assert_memory_equal(order, by_score, sizeof order);
    moe_loader_close(l);
}

/* A prefetch and then a demand are held: let go, the demand is read first; waited for, both come.
 */
static void what_is_held_starts_together(void **state)
{
    for (size_t k = 0; k < N_ITEMS(ways); k++) {
        struct moe_loader_options o = hooked_options();
        struct moe_load_done done[2];
        if (!go_this_way(&o, &ways[k]))
            continue;
        o.queue_depth = 1;
        for (int let_go = 0; let_go < 2; let_go++) {
            struct moe_loader *l = fixture_loader(&o);
            moe_loader_hold(l);
            fixture_submit(&f, l, 0, MOE_LOAD_PREFETCH, 1);
            uint32_t dropped = fixture_submit(&f, l, 5, MOE_LOAD_PREFETCH, 2);
            fixture_submit(&f, l, 10, MOE_LOAD_DEMAND, 0);
            assert_true(moe_loader_cancel(l, dropped));
            assert_int_equal(moe_loader_stats(l)->pieces, 0);
            if (let_go) {
                moe_loader_let_go(l);
                assert_int_not_equal(moe_loader_stats(l)->pieces, 0);
            }
            for (uint32_t n = 0; n < 2;)
                n += moe_loader_wait(l, done + n, 2 - n);
            assert_int_equal(done[0].tag, 10);
            assert_int_equal(done[1].tag, 0);
            assert_int_equal(n_before(5, 0), 0);
            fixture_check(&f, 0);
            fixture_check(&f, 10);
            moe_loader_close(l);
        }
    }
}

static void a_cancelled_request_reads_nothing_more(void **state)
{
    for (size_t k = 0; k < N_ITEMS(ways); k++) {
        struct moe_loader_options o = hooked_options();
        struct moe_load_done done[2];
        if (!go_this_way(&o, &ways[k]))
            continue;
        o.queue_depth = 2;
        struct moe_loader *l = fixture_loader(&o);
        uint32_t stale = fixture_submit(&f, l, 0, MOE_LOAD_PREFETCH, 1); /* 13 pieces */
        uint32_t queued = fixture_submit(&f, l, 5, MOE_LOAD_PREFETCH, 0);
        uint64_t started = moe_loader_stats(l)->pieces;
        assert_true(moe_loader_cancel(l, queued));
        bool gone = moe_loader_cancel(l, stale);
        assert_int_equal(moe_loader_cancel(l, stale), gone);
        uint32_t n = moe_loader_wait(l, done, 2);
        assert_int_equal(n, !gone);
        if (n)
            assert_int_equal(done[0].status, MOE_ERR_INTERRUPTED);
        const struct moe_loader_stats *s = moe_loader_stats(l);
        assert_int_equal(s->pieces, started);
        assert_in_range(atomic_load(&hook_log.n), 0, started);
        assert_int_equal(s->cancelled, 2);
        assert_int_equal(s->cancelled_bytes, s->bytes_read);
        /* Both numbers can be used again, and old handles mean nothing. */
        fixture_submit(&f, l, 0, MOE_LOAD_DEMAND, 0);
        fixture_submit(&f, l, 5, MOE_LOAD_DEMAND, 0);
        assert_true(moe_loader_cancel(l, stale));
        moe_loader_promote(l, queued, MOE_LOAD_PREFETCH, 0);
        for (int left = 2; left > 0; left -= (int)n) {
            n = moe_loader_wait(l, done, 2);
            for (uint32_t i = 0; i < n; i++) {
                assert_int_equal(done[i].status, MOE_OK);
                fixture_check(&f, (int)done[i].tag);
            }
        }
        moe_loader_close(l);
    }
}

static void more_compressed_requests_than_room_wait_for_each_other(void **state)
{
    struct moe_loader_options o = fixture_options(&f);
    struct moe_loader *l;
    struct moe_load_done done[N_EXTENTS];
    uint64_t largest = 0;
    uint32_t n_left = 0;
    for (int i = 0; i < N_EXTENTS; i++)
        if (f.extents[i].compressed && f.extents[i].load.stored_bytes > largest)
            largest = f.extents[i].load.stored_bytes;
    o.compressed_bytes = largest;
    l = fixture_loader(&o);
    for (int i = 0; i < N_EXTENTS; i++, n_left++)
        fixture_submit(&f, l, i, MOE_LOAD_PREFETCH, (float)(i % 7));
    while (n_left > 0) {
        uint32_t n = moe_loader_wait(l, done, N_EXTENTS), n_compressed = 0;
        n_left -= n;
        for (uint32_t k = 0; k < n; k++) {
            assert_int_equal(done[k].status, MOE_OK);
            fixture_check(&f, (int)done[k].tag);
            n_compressed += f.extents[done[k].tag].compressed;
        }
        assert_in_range(n_compressed, 0, 1);
    }
    assert_true(moe_loader_stats(l)->decode_seconds > 0);
    moe_loader_close(l);
}

/* ---- One fault at a time ---- */

static void one_fault(int i, int how, int times, int status, const char *words, bool again)
{
    for (size_t k = 0; k < N_ITEMS(ways); k++) {
        struct moe_loader_options o = hooked_options();
        struct moe_load_done done[2];
        if (!go_this_way(&o, &ways[k]) || (ways[k].copy && how == -EINVAL))
            continue;
        answer(i, how, times);
        struct moe_loader *l = fixture_loader(&o);
        fixture_submit(&f, l, i, MOE_LOAD_DEMAND, 0);
        assert_int_equal(moe_loader_wait(l, done, 2), 1);
        if (done[0].status != status || !strstr(moe_loader_error(l), words))
            fail_msg("fault %d x%d, way %zu: status %d: '%s'", how, times, k, done[0].status,
                     moe_loader_error(l));
        if (status == MOE_OK)
            fixture_check(&f, i);
        const struct moe_loader_stats *s = moe_loader_stats(l);
        assert_int_equal(s->retries + s->rereads > 0, again);
        if (how != INT_MIN) /* mended at once, not by way of the checksum */
            assert_int_equal(s->rereads, 0);
        /* The loader works as before. */
        atomic_store(&hook_log.n_answers, 0);
        fixture_submit(&f, l, i, MOE_LOAD_DEMAND, 0);
        assert_int_equal(moe_loader_wait(l, done, 2), 1);
        assert_int_equal(done[0].status, MOE_OK);
        fixture_check(&f, i);
        moe_loader_close(l);
    }
}

static void faults_are_mended_or_reported(void **state)
{
    one_fault(0, -EINTR, 9, MOE_OK, "", true);
    one_fault(0, -EAGAIN, 9, MOE_OK, "", true);
    one_fault(0, -EIO, 2, MOE_OK, "", true);
    one_fault(5, -EIO, 1000, MOE_ERR_IO, "Input/output error", true);
    one_fault(5, -ENXIO, 1, MOE_ERR_IO, "No such device", false);
    one_fault(0, 1, 2, MOE_OK, "", true);
    one_fault(0, 5000, 3, MOE_OK, "", true);
    one_fault(0, 100000, 2, MOE_OK, "", true);
    one_fault(0, 100000, 10000, MOE_ERR_FORMAT, "16384 more were expected", true);
    one_fault(0, INT_MIN, 1, MOE_OK, "", true);
    one_fault(0, INT_MIN, 10000, MOE_ERR_FORMAT, "204800 bytes at offset 0: checksum mismatch",
              true);
    one_fault(1, INT_MIN, 1, MOE_OK, "", true); /* compressed */
    one_fault(1, INT_MIN, 10000, MOE_ERR_FORMAT, "checksum mismatch", true);
}

static void refused_direct_reads_become_buffered(void **state)
{
    struct moe_loader_options o = hooked_options();
    struct moe_load_done done;
    answer(0, -EINVAL, 1);
    struct moe_loader *l = fixture_loader(&o);
    bool direct = moe_loader_stats(l)->direct;
    fixture_submit(&f, l, 0, MOE_LOAD_DEMAND, 0);
    assert_int_equal(moe_loader_wait(l, &done, 1), 1);
    assert_int_equal(done.status, direct ? MOE_OK : MOE_ERR_IO);
    if (direct)
        fixture_check(&f, 0);
    assert_false(moe_loader_stats(l)->direct);
    moe_loader_close(l);
}

static void damaged_directories_are_reported(void **state)
{
    struct moe_err err;
    struct moe_loader_options o = fixture_options(&f);
    struct moe_load_done done;
    uint32_t handle;
    o.verify = false;
    struct moe_loader *l = fixture_loader(&o);
    struct moe_load load = f.extents[1].load;
    load.to = f.buffers[1];
    load.raw_bytes -= 1; /* not what the frame says */
    assert_ok(moe_loader_submit(l, &load, &handle, &err), &err);
    assert_int_equal(moe_loader_wait(l, &done, 1), 1);
    assert_int_equal(done.status, MOE_ERR_FORMAT);
    assert_non_null(strstr(moe_loader_error(l), "does not have the size"));
    load = f.extents[N_EXTENTS - 1].load;
    load.to = f.buffers[0];
    load.stored_bytes = load.raw_bytes = load.raw_bytes + 5000;
    assert_ok(moe_loader_submit(l, &load, &handle, &err), &err);
    assert_int_equal(moe_loader_wait(l, &done, 1), 1);
    assert_int_equal(done.status, MOE_ERR_FORMAT);
    assert_non_null(strstr(moe_loader_error(l), "ends at byte"));
    moe_loader_close(l);
}

static void senseless_requests_are_refused(void **state)
{
    struct moe_err err;
    struct moe_loader_options o = fixture_options(&f);
    struct moe_loader *l;
    uint32_t handle;
    o.n_requests = 2;
    o.rate = 1; /* a byte per second: all stay */
    l = fixture_loader(&o);
    struct moe_load load = f.extents[0].load, bad = load;
    bad.to = load.to = f.buffers[0];
    bad.offset = 512;
    assert_fails(moe_loader_submit(l, &bad, &handle, &err), MOE_ERR_USAGE, "multiple of 4096",
                 &err);
    bad = load;
    bad.stored_bytes++;
    assert_fails(moe_loader_submit(l, &bad, &handle, &err), MOE_ERR_USAGE, "sizes", &err);
    bad = load;
    bad.offset = INT64_MAX & ~4095ull;
    assert_fails(moe_loader_submit(l, &bad, &handle, &err), MOE_ERR_USAGE, "sizes", &err);
    bad = load;
    bad.raw_bytes = 10 * MAX_RAW;
    assert_fails(moe_loader_submit(l, &bad, &handle, &err), MOE_ERR_USAGE, "room", &err);
    assert_ok(moe_loader_submit(l, &load, &handle, &err), &err);
    assert_ok(moe_loader_submit(l, &load, &handle, &err), &err);
    assert_fails(moe_loader_submit(l, &load, &handle, &err), MOE_ERR_LIMIT, "all 2 requests", &err);
    moe_loader_close(l); /* with requests under way */
    o.lockstep = true;
    o.rate = 0;
    assert_fails(moe_loader_open(&l, &o, &err), MOE_ERR_USAGE, "need a rate", &err);
    o.lockstep = false;
    o.piece_bytes = 5000;
    assert_fails(moe_loader_open(&l, &o, &err), MOE_ERR_USAGE, "piece size", &err);
    o.piece_bytes = 0;
    o.fd = -1;
    o.path = "/nonexistent";
    assert_fails(moe_loader_open(&l, &o, &err), MOE_ERR_IO, "/nonexistent: cannot read", &err);
}

/* ---- Without io_uring ---- */

/* Makes a system call of io_uring fail with `code` in this process, as container runtimes do. */
static bool forbid(uint32_t call, uint32_t code)
{
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | code),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog all = {.len = N_ITEMS(program), .filter = program};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) == 0;
}

/* 0: as it should be; 77: this machine has no seccomp. */
static int child_without_uring(uint32_t code)
{
    struct moe_err err = {0};
    struct moe_loader *l = NULL;
    struct moe_load_done done;
    struct moe_loader_options o = fixture_options(&f);
    uint32_t handle;
    if (!forbid(SYS_io_uring_setup, code))
        return 77;
    o.backend = MOE_LOAD_URING;
    if (moe_loader_open(&l, &o, &err) != MOE_ERR_IO || !strstr(err.text, "io_uring"))
        return 1;
    o.backend = MOE_LOAD_AUTO;
    struct moe_load load = f.extents[0].load;
    load.to = f.buffers[0];
    if (moe_loader_open(&l, &o, &err) != MOE_OK ||
        moe_loader_submit(l, &load, &handle, &err) != MOE_OK || moe_loader_wait(l, &done, 1) != 1 ||
        done.status != MOE_OK || moe_loader_stats(l)->uring ||
        memcmp(f.buffers[0], f.extents[0].raw, MAX_RAW) != 0)
        return 2;
    moe_loader_close(l);
    return 0;
}

/* Runs `body` in a child, which may lose system calls, for each code. */
static void in_children(int (*body)(uint32_t code), const uint32_t *codes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            alarm(60); /* it inherits none */
            _exit(body(codes[i]));
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        if (WEXITSTATUS(status) == 77)
            skip();
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

static void without_io_uring_threads_read(void **state)
{
    static const uint32_t codes[] = {ENOSYS, EPERM};
    in_children(child_without_uring, codes, N_ITEMS(codes));
}

/* The ring works until half of the extents have been asked for. */
static int child_losing_uring(uint32_t code)
{
    struct moe_loader_options o = fixture_options(&f);
    struct moe_loader *l = NULL;
    struct moe_load_done done;
    uint32_t n_done = 0;
    o.backend = MOE_LOAD_URING;
    if (moe_loader_open(&l, &o, NULL) != MOE_OK)
        return 77;
    for (int i = 0; i < N_EXTENTS; i++) {
        if (i == N_EXTENTS / 2 && !forbid(SYS_io_uring_enter, code))
            return 77;
        fixture_submit(&f, l, i, MOE_LOAD_DEMAND, 0);
    }
    for (; moe_loader_wait(l, &done, 1) == 1; n_done++) {
        if (done.status != MOE_OK)
            return 1;
        fixture_check(&f, (int)done.tag);
    }
    if (n_done != N_EXTENTS || moe_loader_stats(l)->uring)
        return 2;
    fixture_submit(&f, l, 0, MOE_LOAD_DEMAND, 0);
    moe_loader_close(l);
    return 0;
}

/* EAGAIN may pass, and is waited for; the others never do. */
static void a_ring_that_stops_working_is_done_without(void **state)
{
    static const uint32_t codes[] = {EPERM, EBADF, EFAULT, EAGAIN};
    in_children(child_losing_uring, codes, N_ITEMS(codes));
}

/* ---- Rates and modelled time ---- */

/* Noise can only make it slower, so only the upper bound is asserted. */
static void the_rate_is_never_exceeded(void **state)
{
    for (size_t k = 0; k < N_ITEMS(ways); k++) {
        struct moe_loader_options o = fixture_options(&f);
        struct moe_load_done done[N_EXTENTS];
        if (!go_this_way(&o, &ways[k]))
            continue;
        o.rate = 20e6;
        struct moe_loader *l = fixture_loader(&o);
        for (int pause = 0; pause < 2; pause++) {
            double start = moe_seconds(), bytes = 0;
            for (int i = 0; i < 20; i++)
                fixture_submit(&f, l, i, MOE_LOAD_PREFETCH, (float)i);
            for (uint32_t n_left = 20; n_left > 0;) {
                if (pause)
                    usleep(5000); /* an owner that computes meanwhile gains nothing */
                uint32_t n = moe_loader_wait(l, done, N_EXTENTS);
                n_left -= n;
                for (uint32_t i = 0; i < n; i++)
                    bytes += (double)moe_round_up(f.extents[done[i].tag].load.stored_bytes, 4096);
                assert_true(bytes <= 20e6 * (moe_seconds() - start));
            }
        }
        assert_true(moe_loader_stats(l)->wait_seconds > 0);
        moe_loader_close(l);
    }
}

struct event {
    uint64_t tag;
    double clock;
};

/* The same calls over modelled time; returns how many completions there were. */
static uint32_t lockstep_run(const struct moe_loader_options *options, struct event *events)
{
    struct moe_loader *l = fixture_loader(options);
    struct moe_load_done done[4];
    uint32_t handles[N_EXTENTS], n_events = 0;
    for (int step = 0; step < 12; step++) {
        for (int i = 4 * step; i < 4 * step + 4; i++)
            handles[i] = fixture_submit(&f, l, i, i % 3 ? MOE_LOAD_PREFETCH : MOE_LOAD_DEMAND,
                                        (float)(i * 7 % 5));
        if (step % 3 == 1)
            assert_true(moe_loader_cancel(l, handles[4 * step - 1]));
        if (step % 3 == 2)
            moe_loader_promote(l, handles[4 * step - 2], MOE_LOAD_DEMAND, 0);
        moe_loader_advance(l, 0.0005 * step);
        uint32_t n = step % 2 ? moe_loader_wait(l, done, 4) : moe_loader_poll(l, done, 4);
        for (;;) {
            for (uint32_t k = 0; k < n; k++) {
                assert_int_equal(done[k].status, MOE_OK);
                fixture_check(&f, (int)done[k].tag);
                events[n_events++] = (struct event){done[k].tag, moe_loader_advance(l, 0)};
            }
            if (step < 11 || n == 0)
                break;
            n = moe_loader_wait(l, done, 4);
        }
    }
    assert_true(moe_loader_stats(l)->wait_seconds > 0);
    assert_true(moe_loader_stats(l)->read_seconds <= moe_loader_advance(l, 0));
    moe_loader_close(l);
    return n_events;
}

static void lockstep_does_not_depend_on_the_disk(void **state)
{
    struct event first[N_EXTENTS], events[N_EXTENTS];
    uint32_t n_first = 0;
    for (size_t k = 0; k < N_ITEMS(ways); k++) {
        struct moe_loader_options o = hooked_options();
        if (!go_this_way(&o, &ways[k]))
            continue;
        o.rate = 300e6;
        o.lockstep = true;
        hook_log.sleep_microseconds = (unsigned)(100 * k);
        answer((int)k, -EAGAIN, 3);
        memset(events, 0, sizeof events);
        uint32_t n = lockstep_run(&o, n_first ? events : first);
        if (n_first) {
            assert_int_equal(n, n_first);
            assert_memory_equal(events, first, n * sizeof *events);
        }
        n_first = n;
    }
    assert_in_range(n_first, N_EXTENTS - 4, N_EXTENTS);
}

static void sizes_are_told_beforehand(void **state)
{
    struct moe_loader_options o = fixture_options(&f);
    uint64_t with = moe_loader_bytes(&o);
    o.compressed_bytes = 0;
    assert_in_range(with - moe_loader_bytes(&o), STAGING_BYTES, STAGING_BYTES + (384 << 10));
    o.lockstep = true;
    assert_in_range(moe_loader_bytes(&o), 4096, 1 << 20);
}

int main(void)
{
    alarm(600); /* a hang is a failure, too */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_brings_the_right_bytes),
        cmocka_unit_test(stats_tell_what_is_in_use),
        cmocka_unit_test(a_demand_overtakes_a_prefetch),
        cmocka_unit_test(prefetches_go_by_score),
        cmocka_unit_test(what_is_held_starts_together),
        cmocka_unit_test(a_cancelled_request_reads_nothing_more),
        cmocka_unit_test(more_compressed_requests_than_room_wait_for_each_other),
        cmocka_unit_test(faults_are_mended_or_reported),
        cmocka_unit_test(refused_direct_reads_become_buffered),
        cmocka_unit_test(damaged_directories_are_reported),
        cmocka_unit_test(senseless_requests_are_refused),
        cmocka_unit_test(without_io_uring_threads_read),
        cmocka_unit_test(a_ring_that_stops_working_is_done_without),
        cmocka_unit_test(the_rate_is_never_exceeded),
        cmocka_unit_test(lockstep_does_not_depend_on_the_disk),
        cmocka_unit_test(sizes_are_told_beforehand),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
