/* The tools that the backend's tests stand on: what kernels use, as the shim has it, against plain
 * loops; on a GPU, the same kernels. The shim alone is asked whether it sees broken rules. */
#include "../test.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu.h"
#include "kern/kern_math.h"
#include "shim_kernels.h"

static struct moe_gpu *gpu;

static int open_gpu(void **state)
{
    struct moe_err err;
    if (moe_gpu_open(&gpu, 0, &err) != MOE_OK)
        fail_msg("%s", err.text);
    return 0;
}

static int close_gpu(void **state)
{
    moe_gpu_close(gpu);
    return 0;
}

static bool on_shim(void)
{
    return strncmp(moe_gpu_info(gpu)->name, "shim", 4) == 0;
}

static void *device(uint64_t n_bytes)
{
    struct moe_err err;
    void *p = moe_gpu_alloc(gpu, n_bytes, &err);
    if (!p)
        fail_msg("%s", err.text);
    return p;
}

static void *uploaded(const void *from, uint64_t n_bytes)
{
    void *p = device(n_bytes);
    moe_gpu_upload(gpu, MOE_GPU_COMPUTE, p, from, n_bytes);
    return p;
}

/* Fetches what was computed, and frees it on the device. */
static void fetched(void *to, void *from, uint64_t n_bytes)
{
    struct moe_err err;
    moe_gpu_download(gpu, MOE_GPU_COMPUTE, to, from, n_bytes);
    assert_ok(moe_gpu_finish(gpu, &err), &err);
    moe_gpu_free(gpu, from, n_bytes);
}

static void test_barriers(void **state)
{
    enum { N_BLOCKS = 37, N = 256 };
    static int32_t in[N_BLOCKS * N], out[N_BLOCKS];
    uint64_t seed = 1;
    for (int i = 0; i < N_BLOCKS * N; i++)
        in[i] = (int32_t)(test_random(&seed) % 1000) - 500;
    for (uint32_t n = 1; n <= N; n *= 2) {
        void *from = uploaded(in, sizeof in), *to = device(sizeof out);
        try_block_sum(gpu, from, N_BLOCKS, n, to);
        fetched(out, to, sizeof out);
        moe_gpu_free(gpu, from, sizeof in);
        for (uint32_t b = 0; b < N_BLOCKS; b++) {
            int32_t sum = 0;
            for (uint32_t i = 0; i < n; i++)
                sum += in[b * n + i];
            assert_int_equal(out[b], sum);
        }
    }
}

static void test_shuffles(void **state)
{
    int32_t out[5 * 64];
    void *to = device(sizeof out);
    try_shuffles(gpu, to);
    fetched(out, to, sizeof out);
    for (int t = 0; t < 64; t++) {
        int lane = t % 32;
        assert_int_equal(out[t], 100 + (lane ^ 5));
        assert_int_equal(out[64 + t], 100 + (lane + 3 < 32 ? lane + 3 : lane));
        assert_int_equal(out[128 + t], 100 + (lane - 3 >= 0 ? lane - 3 : lane));
        assert_int_equal(out[192 + t], 107);
        assert_int_equal(out[256 + t], 31 * 32 * 63 / 6);
    }
}

static void test_ragged_ends(void **state)
{
    static int32_t out[3001];
    for (uint32_t n = 1; n <= 3000; n = n * 3 + 2) {
        void *to = device(sizeof out);
        try_ragged(gpu, to, n);
        fetched(out, to, sizeof out);
        for (uint32_t i = 0; i < N_ITEMS(out); i++)
            assert_int_equal(out[i], i < n);
    }
}

static void test_atomics(void **state)
{
    uint32_t out[2];
    void *to = device(sizeof out);
    try_atomics(gpu, to, 33, 96);
    fetched(out, to, sizeof out);
    assert_int_equal(out[0], 33 * 96);
    assert_int_equal(out[1], 33 * 96 - 1);
}

static void test_mma(void **state)
{
    uint8_t a[16][32];
    int8_t b[32][8];
    int32_t c[16][8], want[16][8];
    uint64_t seed = 7;
    if (!on_shim() && moe_gpu_info(gpu)->compute_major < 8)
        skip();
    for (int round = 0; round < 8; round++) {
        bool a_signed = round % 2;
        for (int i = 0; i < 16 * 32; i++)
            a[i / 32][i % 32] = (uint8_t)(round < 2 ? 255 : test_random(&seed));
        for (int i = 0; i < 32 * 8; i++)
            b[i / 8][i % 8] = (int8_t)(round < 4 ? 128 : test_random(&seed));
        for (int row = 0; row < 16; row++)
            for (int col = 0; col < 8; col++) {
                int32_t sum = c[row][col] = (int32_t)(test_random(&seed) % 100000) - 50000;
                for (int k = 0; k < 32; k++)
                    sum += (a_signed ? (int8_t)a[row][k] : a[row][k]) * b[k][col];
                want[row][col] = sum;
            }
        void *on_a = uploaded(a, sizeof a), *on_b = uploaded(b, sizeof b);
        void *on_c = uploaded(c, sizeof c);
        try_mma(gpu, on_a, on_b, on_c, a_signed);
        fetched(c, on_c, sizeof c);
        moe_gpu_free(gpu, on_a, sizeof a);
        moe_gpu_free(gpu, on_b, sizeof b);
        assert_memory_equal(c, want, sizeof c);
    }
}

static void test_dp4a(void **state)
{
    uint64_t seed = 3;
    for (int round = 0; round < 20; round++) {
        uint32_t a = (uint32_t)test_random(&seed), b = (uint32_t)test_random(&seed);
        int32_t out[2], mixed = -7, both = -7;
        for (int k = 0; k < 4; k++) {
            mixed += (int32_t)(a >> 8 * k & 255) * (int8_t)(b >> 8 * k);
            both += (int8_t)(a >> 8 * k) * (int8_t)(b >> 8 * k);
        }
        void *to = device(sizeof out);
        try_dp4a(gpu, a, (int32_t)b, -7, to);
        fetched(out, to, sizeof out);
        assert_int_equal(out[0], mixed);
        assert_int_equal(out[1], both);
    }
}

static void test_join16(void **state)
{
    uint64_t seed = 4;
    float in[32], out[32], lanes[16];
    for (int i = 0; i < 32; i++)
        in[i] = test_uniform(&seed) * (i % 3 ? 1.0f : 1e6f);
    void *from = uploaded(in, sizeof in), *to = device(sizeof out);
    try_join16(gpu, from, to);
    fetched(out, to, sizeof out);
    moe_gpu_free(gpu, from, sizeof in);
    for (int i = 0; i < 32; i++) {
        memcpy(lanes, in + i / 16 * 16, sizeof lanes);
        float want = moe_math_join(lanes);
        assert_memory_equal(&out[i], &want, sizeof want);
    }
}

/* ---- What is wrong shows ---- */

static void test_reverse(void **state)
{
    enum { N = 128 };
    int32_t in[N], out[N];
    for (int barrier = on_shim() ? 0 : 1; barrier < 2; barrier++) {
        int n_wrong = 0;
        for (int i = 0; i < N; i++)
            in[i] = 1000 * barrier + i + 1;
        void *from = uploaded(in, sizeof in), *to = device(sizeof out);
        try_reverse(gpu, from, to, N, barrier);
        fetched(out, to, sizeof out);
        moe_gpu_free(gpu, from, sizeof in);
        for (int i = 0; i < N; i++)
            n_wrong += out[i] != in[N - 1 - i];
        assert_int_equal(n_wrong != 0, !barrier);
    }
}

static void test_copies(void **state)
{
    enum { N = 96 };
    int32_t in[2 * N], out[2][2 * N];
    for (int i = 0; i < 2 * N; i++)
        in[i] = i + 1;
    for (int wait = on_shim() ? 0 : 1; wait < 2; wait++) {
        int n_wrong[2] = {0, 0};
        void *from = uploaded(in, sizeof in), *to = device(sizeof out);
        try_copies(gpu, from, to, N, wait);
        fetched(out, to, sizeof out);
        moe_gpu_free(gpu, from, sizeof in);
        for (int b = 0; b < 2; b++)
            for (int i = 0; i < 2 * N; i++)
                n_wrong[b] += out[b][i] != in[i < N ? N - 1 - i : 3 * N - 1 - i];
        assert_int_equal(n_wrong[0] + n_wrong[1] != 0, !wait);
    }
}

/* Runs a broken kernel in a process of its own; what that says before it dies. */
static void last_words(enum try_fault fault, char *text, size_t n_bytes)
{
    int ends[2], status;
    size_t have = 0;
    ssize_t got;
    void *out = device(64 * sizeof(int32_t));
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        try_fault(gpu, fault, out);
        moe_gpu_finish(gpu, NULL);
        _exit(0);
    }
    close(ends[1]);
    while (have + 1 < n_bytes && (got = read(ends[0], text + have, n_bytes - 1 - have)) > 0)
        have += (size_t)got;
    text[have] = '\0';
    close(ends[0]);
    moe_gpu_free(gpu, out, 64 * sizeof(int32_t));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
}

static void test_broken_rules(void **state)
{
    static const char *const words[] = {
        [TRY_ENDED_BEFORE_BARRIER] = "kernel broken: block (0,0,0): thread 5 ended while 5 wait at "
                                     "__syncthreads",
        [TRY_OTHER_BARRIER] = "others that in line",
        [TRY_LANES_ABSENT] = "thread 40 ended while 8 lanes of its warp wait at a shuffle",
        [TRY_PART_OF_A_WARP] = "not all lanes",
        [TRY_BARRIER_AND_SHUFFLE] = "no thread can continue",
        [TRY_COPY_LEFT] = "thread 5 ended without waiting for its copies",
    };
    char text[4096];
    if (!on_shim())
        skip();
    for (int fault = 0; fault < (int)N_ITEMS(words); fault++) {
        last_words((enum try_fault)fault, text, sizeof text);
        if (!strstr(text, words[fault]))
            fail_msg("'%s' should contain '%s'", text, words[fault]);
    }
#ifdef __SANITIZE_ADDRESS__
    last_words(TRY_OVERRUN, text, sizeof text);
    assert_non_null(strstr(text, "heap-buffer-overflow"));
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_barriers),    cmocka_unit_test(test_shuffles),
        cmocka_unit_test(test_ragged_ends), cmocka_unit_test(test_atomics),
        cmocka_unit_test(test_mma),         cmocka_unit_test(test_dp4a),
        cmocka_unit_test(test_join16),      cmocka_unit_test(test_reverse),
        cmocka_unit_test(test_copies),      cmocka_unit_test(test_broken_rules),
    };
    return cmocka_run_group_tests(tests, open_gpu, close_gpu);
}
