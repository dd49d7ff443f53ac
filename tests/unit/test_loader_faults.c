/*
 * The loader under random faults: errors of all kinds, short reads, flipped bits, delays, at rates
 * from rare to nearly always, with cancelling and promoting in between. Each run must end, and each
 * request with the right bytes or with an error. FAULT_RUNS=N: so many runs in the place of 3,000.
 */
#define _GNU_SOURCE
#include "io/loader.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>

#include "loader_fixture.h"

enum { N_IN_RUN = 10 };

static struct {
    atomic_ullong n; /* calls so far; the seed of each answer */
    uint64_t seed;
    unsigned one_in; /* reads are damaged */
    bool may_flip;
} faults;

static int inject(void *ctx, uint64_t offset, uint64_t n_bytes)
{
    static const int codes[] = {-EIO,    -EINTR, -EAGAIN, -EIO, -ENOMEM, -ENXIO,
                                -EINVAL, -EBADF, -EBUSY,  -EIO, -EAGAIN, -EINTR};
    uint64_t state = faults.seed + atomic_fetch_add(&faults.n, 1), r = test_random(&state);
    if ((r >> 8 & 63) == 0)
        usleep((unsigned)(r >> 14 & 255));
    if ((r >> 32) % faults.one_in != 0)
        return 0;
    switch (r & 3) {
    case 0:
        return faults.may_flip ? INT_MIN : 1;
    case 1:
        return (int)(1 + (r >> 16) % n_bytes);
    default:
        return codes[(r >> 16) % N_ITEMS(codes)];
    }
}

struct tally {
    unsigned ok, failed, cancelled;
};

static void one_run(uint64_t seed, struct tally *tally)
{
    static const unsigned one_in[] = {2, 4, 10, 30, 100};
    uint64_t random = seed;
    struct moe_loader_options o = fixture_options(&f);
    uint64_t r = test_random(&random);
    o.backend = r & 1 ? MOE_LOAD_PREAD : MOE_LOAD_AUTO;
    o.buffered = r >> 1 & 1;
    o.lockstep = (r >> 2 & 7) == 0;
    o.rate = o.lockstep || (r >> 5 & 7) == 0 ? 2e9 : 0;
    if ((r >> 8 & 7) == 0) {
        o.copy = f.copy;
        o.copy_bytes = f.copy_bytes;
    }
    o.queue_depth = 1u << (r >> 11 & 3);
    o.piece_bytes = 4096u << (r >> 13 & 7) % 7;
    o.verify = (r >> 16 & 3) != 0;
    faults.seed = seed * 0x9e3779b97f4a7c15u;
    faults.one_in = one_in[(r >> 18) % N_ITEMS(one_in)];
    faults.may_flip = o.verify; /* without checksums nobody can notice */
    atomic_store(&faults.n, 0);
    o.fault = inject;

    struct moe_loader *l = fixture_loader(&o);
    struct moe_load_done done[4];
    uint32_t n_under_way = 0, handles[N_EXTENTS];
    int first = (int)((r >> 32) % N_EXTENTS);
    for (int k = 0; k < N_IN_RUN; k++, n_under_way++) {
        int i = (first + 7 * k) % N_EXTENTS;
        handles[i] = fixture_submit(&f, l, i, k % 3 ? MOE_LOAD_PREFETCH : MOE_LOAD_DEMAND, k);
    }
    bool leave = (r >> 40 & 15) == 0;
    while (n_under_way > 0 && !leave) {
        r = test_random(&random);
        int i = (first + 7 * (int)(r >> 8 & 7)) % N_EXTENTS;
        if ((r & 7) == 0 && handles[i] && moe_loader_cancel(l, handles[i])) {
            n_under_way -= handles[i] != 0;
            tally->cancelled++;
            handles[i] = 0;
            continue;
        }
        if ((r & 7) == 1 && handles[i])
            moe_loader_promote(l, handles[i], MOE_LOAD_DEMAND, 0);
        uint32_t n = r & 8 ? moe_loader_wait(l, done, 4) : moe_loader_poll(l, done, 4);
        n_under_way -= n;
        for (uint32_t k = 0; k < n; k++) {
            int which = (int)done[k].tag;
            handles[which] = 0;
            if (done[k].status == MOE_OK) {
                fixture_check(&f, which);
                tally->ok++;
            } else if (done[k].status == MOE_ERR_INTERRUPTED) {
                tally->cancelled++;
            } else {
                assert_true(done[k].status == MOE_ERR_IO || done[k].status == MOE_ERR_FORMAT);
                assert_non_null(strstr(moe_loader_error(l), o.path));
                tally->failed++;
            }
        }
    }
    moe_loader_close(l);
}

static void right_bytes_or_an_error(void **state)
{
    struct tally tally = {0};
    const char *named = getenv("FAULT_RUNS");
    const unsigned n_runs = named ? (unsigned)strtoul(named, NULL, 10) : 3000;
    for (unsigned i = 0; i < n_runs; i++) {
        alarm(60); /* a hang is a failure */
        one_run(UINT64_C(1000003) * i + 1, &tally);
    }
    alarm(0);
    print_message("%u runs: %u requests served, %u failed, %u cancelled\n", n_runs, tally.ok,
                  tally.failed, tally.cancelled);
    assert_true(tally.ok > n_runs && tally.failed > n_runs / 10 && tally.cancelled > n_runs / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_bytes_or_an_error),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
