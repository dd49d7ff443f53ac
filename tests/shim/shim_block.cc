/*
 * Blocks of threads as fibers. A thread needs a stack of its own only once it has to wait: the
 * stack at work starts one thread after the other, and is left to the one that waits, while
 * another stack goes on starting. So a kernel without barriers is a loop, and one with barriers
 * costs a switch per thread and barrier.
 */
#include "cuda_runtime.h"
#include "shim_fiber.h"

#include <mutex>
#include <stdarg.h>
#include <vector>

__thread uint3 threadIdx, blockIdx;
__thread dim3 blockDim, gridDim;

enum { MAX_THREADS = 1024, MAX_SHARED = 48 << 10, GARBAGE = 0xa5 };

enum meeting { MEET_SYNC, MEET_SHUFFLE, MEET_MMA };
static const char *const meeting_name[] = {"__syncwarp", "a shuffle", "an mma"};

struct warp {
    shim_fiber *waiting[warpSize];
    int n_waiting, n_ended, line;
    meeting kind;
    unsigned round;
    uint32_t values[2][warpSize]; /* a lane may be one shuffle ahead of others, not two */
    uint32_t a[warpSize][4], b[warpSize][2];
    int32_t c[warpSize][4];
};

/* The block at work on this thread of the processor. */
struct block {
    const char *kernel;
    const std::function<void()> *thread;
    unsigned n_threads, n_started, n_ended;
    bool descending; /* order in which threads are started */
    shim_fiber *waiting[MAX_THREADS];
    unsigned n_waiting;
    int line;
    warp warps[MAX_THREADS / warpSize];
    void *shared;

    shim_fiber caller, stacks[MAX_THREADS + 1];
    shim_fiber *current, *ready[MAX_THREADS], *idle[MAX_THREADS + 1];
    unsigned n_stacks, n_ready, n_idle;
};
static thread_local block *here;

/* Frees it when its thread ends. */
static thread_local struct block_owner {
    ~block_owner()
    {
        for (unsigned i = 0; here && i < here->n_stacks; i++)
            shim_fiber_drop(&here->stacks[i]);
        free(here);
        here = NULL;
    }
    block *make()
    {
        here = (block *)calloc(1, sizeof *here);
        shim_fiber_of_thread(&here->caller);
        return here;
    }
} owner;

static __thread unsigned thread_number; /* threadIdx as one number */

unsigned shim_lane()
{
    return thread_number % warpSize;
}

void *shim_shared()
{
    return here->shared;
}

[[noreturn]] static void wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));
[[noreturn]] static void wrong(const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "shim: kernel %s: block (%u,%u,%u): %s\n", here->kernel, blockIdx.x, blockIdx.y,
            blockIdx.z, text);
    abort();
}

/* ---- Copies into shared memory ---- */

/* What a thread has asked for and not waited for; all of one block's, since one is at work. In
 * every other block copies are made only when they are waited for, in the others at once: what is
 * read too early shows in the first, what is overwritten too early in the second. */
struct thread_copies {
    struct copy {
        void *to;
        const void *from;
        int n_bytes;
    };
    std::vector<copy> asked;
    std::vector<size_t> ends; /* of groups */
    size_t n_made, n_groups_made;
};
static thread_copies copies[MAX_THREADS];

void shim_copy(void *to, const void *from, int n_bytes)
{
    if ((uintptr_t)to % n_bytes || (uintptr_t)from % n_bytes)
        wrong("thread %u copies %d bytes that are not aligned", thread_number, n_bytes);
    copies[thread_number].asked.push_back({to, from, n_bytes});
    if (!here->descending)
        memcpy(to, from, n_bytes);
}

void shim_copies_end()
{
    thread_copies &c = copies[thread_number];
    c.ends.push_back(c.asked.size());
}

void shim_copies_wait(unsigned n_under_way)
{
    thread_copies &c = copies[thread_number];
    for (; c.n_groups_made + n_under_way < c.ends.size(); c.n_groups_made++)
        for (; c.n_made < c.ends[c.n_groups_made]; c.n_made++)
            if (here->descending)
                memcpy(c.asked[c.n_made].to, c.asked[c.n_made].from, c.asked[c.n_made].n_bytes);
}

static void end_copies()
{
    thread_copies &c = copies[thread_number];
    if (c.n_made < c.asked.size())
        wrong("thread %u ended without waiting for its copies", thread_number);
    c.asked.clear(); /* which keeps its memory */
    c.ends.clear();
    c.n_made = c.n_groups_made = 0;
}

/* ---- Who runs ---- */

static void run_threads();

static void continue_as(shim_fiber *next)
{
    shim_fiber *self = here->current;
    here->current = next;
    shim_fiber_switch(self, next);
}

/* A stack that starts threads. */
static shim_fiber *idle_stack()
{
    block *b = here;
    if (b->n_idle)
        return b->idle[--b->n_idle];
    shim_fiber *made = &b->stacks[b->n_stacks];
    shim_fiber_make(made, b->n_stacks++, run_threads);
    return made;
}

/* Some wait at __syncthreads, the others for lanes of their warps. */
[[noreturn]] static void stuck()
{
    block *b = here;
    warp *w = b->warps;
    while (!w->n_waiting)
        w++;
    wrong("no thread can continue: %u wait at __syncthreads in line %d, %d lanes of warp %d at %s "
          "in line %d",
          b->n_waiting, b->line, w->n_waiting, (int)(w - b->warps), meeting_name[w->kind], w->line);
}

/* The calling thread waits until it is made ready. */
static void wait_here()
{
    block *b = here;
    uint3 mine = threadIdx;
    unsigned my_number = thread_number;
    if (b->n_ready)
        continue_as(b->ready[--b->n_ready]);
    else if (b->n_started < b->n_threads)
        continue_as(idle_stack());
    else
        stuck();
    threadIdx = mine;
    thread_number = my_number;
}

/* The threads that waited, the last one first: so the order turns around from meeting to
 * meeting. */
static void make_ready(shim_fiber **fibers, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        here->ready[here->n_ready++] = fibers[i];
}

static void run_one(unsigned number)
{
    block *b = here;
    thread_number = number;
    threadIdx = {number, 0, 0};
    if (number >= blockDim.x)
        threadIdx = {number % blockDim.x, number / blockDim.x % blockDim.y,
                     number / blockDim.x / blockDim.y};
    (*b->thread)();
    end_copies();
    warp *w = &b->warps[number / warpSize];
    if (b->n_waiting)
        wrong("thread %u ended while %u wait at __syncthreads in line %d", number, b->n_waiting,
              b->line);
    if (w->n_waiting)
        wrong("thread %u ended while %d lanes of its warp wait at %s in line %d", number,
              w->n_waiting, meeting_name[w->kind], w->line);
    w->n_ended++;
    b->n_ended++;
}

/* What every stack does: starting threads while no other can continue. */
static void run_threads()
{
    shim_fiber_entered();
    for (;;) {
        block *b = here;
        while (!b->n_ready && b->n_started < b->n_threads) {
            unsigned next = b->n_started++;
            run_one(b->descending ? b->n_threads - 1 - next : next);
        }
        b->idle[b->n_idle++] = b->current;
        if (b->n_ready)
            continue_as(b->ready[--b->n_ready]);
        else
            continue_as(&b->caller);
    }
}

/* ---- Where threads meet ---- */

void shim_sync_block(int line)
{
    block *b = here;
    if (b->n_ended)
        wrong("thread %u reached __syncthreads in line %d after %u had ended", thread_number, line,
              b->n_ended);
    if (b->n_waiting && b->line != line)
        wrong("thread %u reached __syncthreads in line %d, others that in line %d", thread_number,
              line, b->line);
    b->line = line;
    if (b->n_waiting + 1 < b->n_threads) {
        b->waiting[b->n_waiting++] = b->current;
        wait_here();
    } else {
        make_ready(b->waiting, b->n_waiting);
        b->n_waiting = 0;
    }
}

/* The caller's lane reaches a meeting of its warp. True for the last one, which does the work and
 * lets the others go; false when it was done. */
static bool meet(warp *w, meeting kind, unsigned mask, int line)
{
    unsigned number = thread_number;
    if (mask != 0xffffffffu)
        wrong("thread %u: %s in line %d with mask %08x, not all lanes", number, meeting_name[kind],
              line, mask);
    if (w->n_ended || number / warpSize * warpSize + warpSize > here->n_threads)
        wrong("thread %u reached %s in line %d with lanes of its warp absent", number,
              meeting_name[kind], line);
    if (w->n_waiting && (w->kind != kind || w->line != line))
        wrong("thread %u reached %s in line %d, others of its warp %s in line %d", number,
              meeting_name[kind], line, meeting_name[w->kind], w->line);
    w->kind = kind;
    w->line = line;
    if (w->n_waiting + 1 == warpSize)
        return true;
    w->waiting[w->n_waiting++] = here->current;
    wait_here();
    return false;
}

static void let_go(warp *w)
{
    make_ready(w->waiting, (unsigned)w->n_waiting);
    w->n_waiting = 0;
    w->round++;
}

static warp *my_warp()
{
    return &here->warps[thread_number / warpSize];
}

void shim_sync_warp(unsigned mask, int line)
{
    warp *w = my_warp();
    if (meet(w, MEET_SYNC, mask, line))
        let_go(w);
}

const uint32_t *shim_exchange(unsigned mask, uint32_t value, int line)
{
    warp *w = my_warp();
    uint32_t *values = w->values[w->round % 2];
    values[shim_lane()] = value;
    if (meet(w, MEET_SHUFFLE, mask, line))
        let_go(w);
    return values;
}

/* The warp's product. PTX ISA, "Matrix Fragments for mma.m16n8k32": with g = lane / 4, t = lane %
 * 4, byte k of register i of a is row g + 8 (i % 2), column 16 (i / 2) + 4 t + k; of b it is row
 * 16 i + 4 t + k, column g; c's register i is row g + 8 (i / 2), column 2 t + i % 2. */
static void multiply(warp *w, bool a_signed)
{
    uint8_t a_bytes[16][32], b_bytes[8][32];
    int16_t a[16][32], b[8][32];
    for (int lane = 0; lane < warpSize; lane++) {
        int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; i++)
            memcpy(&a_bytes[g + 8 * (i % 2)][16 * (i / 2) + 4 * t], &w->a[lane][i], 4);
        for (int i = 0; i < 2; i++)
            memcpy(&b_bytes[g][16 * i + 4 * t], &w->b[lane][i], 4);
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 32; k++)
            a[row][k] = a_signed ? (int8_t)a_bytes[row][k] : a_bytes[row][k];
    for (int col = 0; col < 8; col++)
        for (int k = 0; k < 32; k++)
            b[col][k] = (int8_t)b_bytes[col][k];
    for (int lane = 0; lane < warpSize; lane++)
        for (int i = 0; i < 4; i++) {
            const int16_t *row = a[lane / 4 + 8 * (i / 2)], *col = b[2 * (lane % 4) + i % 2];
            int32_t sum = 0;
            for (int k = 0; k < 32; k++)
                sum += row[k] * col[k];
            w->c[lane][i] = (int32_t)((uint32_t)w->c[lane][i] + (uint32_t)sum);
        }
}

void shim_mma(int32_t c[4], const uint32_t a[4], const uint32_t b[2], bool a_signed, int line)
{
    warp *w = my_warp();
    unsigned lane = shim_lane();
    memcpy(w->a[lane], a, sizeof w->a[lane]);
    memcpy(w->b[lane], b, sizeof w->b[lane]);
    memcpy(w->c[lane], c, sizeof w->c[lane]);
    if (meet(w, MEET_MMA, 0xffffffffu, line)) {
        multiply(w, a_signed);
        let_go(w);
    }
    memcpy(c, w->c[lane], sizeof w->c[lane]);
}

/* ---- Grids ---- */

static unsigned common_divisor(unsigned a, unsigned b)
{
    return b ? common_divisor(b, a % b) : a;
}

/* A step by which all n blocks are visited, neighbours far apart. */
static unsigned permuting_step(unsigned n)
{
    unsigned step = n * 5 / 8 | 1;
    while (common_divisor(step, n) != 1)
        step += 2;
    return step;
}

static void run_block(block *b, unsigned number, dim3 grid)
{
    blockIdx.x = number % grid.x;
    blockIdx.y = number / grid.x % grid.y;
    blockIdx.z = number / grid.x / grid.y;
    b->n_started = b->n_ended = 0;
    b->descending = !b->descending;
    for (unsigned i = 0; i * warpSize < b->n_threads; i++)
        b->warps[i].n_ended = 0;
    b->current = &b->caller;
    continue_as(idle_stack());
    if (b->n_ended < b->n_threads)
        wrong("%u threads have ended, the others wait for each other", b->n_ended);
}

/* Shared memory of the kernels is static: threads that have megabytes of their own leave no room on
 * the small stacks of the program's. */
static std::mutex at_work;

void shim_run_grid(const char *name, dim3 grid, dim3 block_dim, size_t shared_bytes,
                   const std::function<void()> &thread)
{
    std::lock_guard<std::mutex> hold(at_work);
    block *b = here ? here : owner.make();
    unsigned n_blocks = grid.x * grid.y * grid.z, step = permuting_step(n_blocks);
    b->kernel = name;
    b->thread = &thread;
    b->n_threads = block_dim.x * block_dim.y * block_dim.z;
    b->shared = malloc(shared_bytes);
    gridDim = grid;
    blockDim = block_dim;
    for (unsigned i = 0; i < n_blocks; i++) {
        memset(b->shared, GARBAGE, shared_bytes);
        run_block(b, (unsigned)((uint64_t)i * step % n_blocks), grid);
    }
    free(b->shared);
    b->shared = NULL;
}
