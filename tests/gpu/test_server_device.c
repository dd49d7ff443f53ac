/*
 * Executors of a server that compute on a device: answers are those of each model alone on the
 * processor, to the bit, whatever share of the device's memory and of the host's they have; and
 * packs that left the device are loaded from the host's memory.
 */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include "../server_fixture.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../make_pack.h"
#include "base/file.h"
#include "base/par.h"
#include "engine/memory.h"
#include "gpu.h"
#include "kern/kern.h"
#include "shim_kernels.h"

enum {
    N_MODELS = 4,
    N = 8,
    CONTEXT = 64,
    SEED = 5,
#ifdef __SANITIZE_ADDRESS__ /* minutes for all divisions of memory: one for each set of executors  \
                             */
    EVERY = 7,
#else
    EVERY = 1,
#endif
};

static const char *const bits[N_MODELS] = {"4", "8", "3", "2"};
static char packs[N_MODELS][128];
static uint64_t sizes[N_MODELS]; /* of the files */

/* What the models' engines take of the device's memory, at most, and sessions at least. */
static struct {
    uint64_t all, least, session;
} takes;

static int make_packs(void **state)
{
    struct moe_err err;
    struct moe_gpu *gpu;
    (void)state;
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    assert_ok(moe_gpu_open(&gpu, 0, &err), &err);
    for (int i = 0; i < N_MODELS; i++) {
        const struct moe_engine_options o = {.session = {.context = CONTEXT}};
        const struct moe_session_room unlimited = {UINT64_MAX, UINT64_MAX};
        struct moe_session_options session = {.context = CONTEXT, .n_sequences = 4, .gpu = gpu};
        struct moe_session_room least;
        struct moe_needs needs;
        struct stat file;
        const struct moe_convert_options options = pack_options(bits[i], 8);
        snprintf(packs[i], sizeof packs[i], "/tmp/moe-device-%s-%d.moe", bits[i], (int)getpid());
        make_pack(packs[i], DRAWN "/qwen3-moe-a", &options);
        assert_int_equal(stat(packs[i], &file), 0);
        sizes[i] = (uint64_t)file.st_size;
        assert_ok(moe_needs_of(&needs, packs[i], &o, gpu, &err), &err);
        const struct moe_needs_on *on = &needs.on[true];
        assert_true(on->whole && on->least < on->most);
        assert_ok(moe_needs_fit_session(&session, &needs, true, unlimited, &least, &err), &err);
        takes.all = on->most > takes.all ? on->most : takes.all;
        takes.least = on->least > takes.least ? on->least : takes.least;
        takes.session = least.gpu > takes.session ? least.gpu : takes.session;
    }
    moe_gpu_close(gpu);
    return 0;
}

static int remove_packs(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++)
        unlink(packs[i]);
    return 0;
}

/* A model's share of main memory is enough beside a cache of any size on the device. */
static void any_cache_has_enough_beside_it(void **state)
{
    struct moe_err err;
    struct moe_gpu *gpu;
    (void)state;
    assert_ok(moe_gpu_open(&gpu, 0, &err), &err);
    for (int i = 0; moe_strategy_name_at(i); i++) {
        struct moe_engine_options o = {.session = {.context = CONTEXT}, .shares = true};
        struct moe_model *model;
        struct moe_needs needs;
        struct moe_memory m;
        assert_true(moe_strategy_find(moe_strategy_name_at(i), &o.strategy));
        assert_ok(moe_strategy_settle(&o.strategy, &err), &err);
        if (o.strategy.needs_profile || o.strategy.needs_low || o.strategy.resident)
            continue;
        assert_ok(moe_needs_of(&needs, packs[0], &o, gpu, &err), &err);
        assert_ok(moe_model_open_directory(&model, packs[0], &err), &err);
        const struct moe_needs_on *on = &needs.on[true];
        o.memory_bytes = on->host_least;
        for (o.gpu_memory_bytes = on->least; o.gpu_memory_bytes < on->most;
             o.gpu_memory_bytes += on->most / 200)
            assert_ok(moe_memory_of(&m, model, gpu, &o, &err), &err);
        moe_model_close(model);
    }
    moe_gpu_close(gpu);
}

/* ---- A collection ---- */

/* Requests name their model; results of the first go on to the third. */
static struct moe_coe_collection *make_collection(void)
{
    struct moe_coe_collection *c;
    struct moe_buf text = {0};
    struct moe_err err;
    moe_buf_text(&text, "format: moe-coe\nversion: 1\nexperts:\n");
    for (int i = 0; i < N_MODELS; i++)
        moe_buf_printf(&text, "  - {name: m%d, pack: %s, probability: 0.%d}\n", i, packs[i], 5 - i);
    moe_buf_text(&text, "routes:\n");
    for (int i = 0; i < N_MODELS; i++)
        moe_buf_printf(&text, "  - {field: kind, equals: k%d, expert: m%d}\n", i, i);
    moe_buf_text(&text, "follows:\n  - {after: m0, expert: m2}\n"); /* answers are no texts */
    assert_false(text.failed);
    assert_ok(moe_record_parse(&moe_coe_collection_format, &c, "test", text.data, text.size, &err),
              &err);
    moe_buf_release(&text);
    return c;
}

static void write_request(struct asked *a, int number, int kind, int tokens)
{
    snprintf(a->json, sizeof a->json,
             "{\"prompt\": \"Once %d\", \"max_tokens\": %d, \"seed\": %d, \"temperature\": %g, "
             "\"ignore_eos\": true, \"metadata\": {\"kind\": \"k%d\"}}",
             number, tokens, number, number % 3 ? 0.9 : 0.0, kind);
}

static void write_requests(struct asked asked[N])
{
    uint64_t random = SEED;
    for (int i = 0; i < N; i++)
        write_request(&asked[i], i, i % N_MODELS, 1 + (int)(test_random(&random) % 4));
}

/* What the rules give when each model answers alone, on the processor. */
static void follow_alone(const struct moe_coe_collection *c, const struct asked asked[N],
                         struct moe_buf want[N])
{
    struct moe_engine *engines[N_MODELS];
    struct moe_err err;
    int n_followed = 0;
    for (int i = 0; i < N_MODELS; i++) {
        const struct moe_engine_options o = {.session = {.context = CONTEXT}};
        assert_ok(moe_engine_open(&engines[i], packs[i], &o, NULL, &err), &err);
    }
    for (int i = 0; i < N; i++) {
        struct moe_request *r = request_of(&asked[i]);
        uint32_t at = (uint32_t)(i % N_MODELS), next = at;
        while (next != MOE_COE_NONE) {
            at = next;
            moe_buf_clear(&want[i]);
            answer_alone(engines[at], r, &want[i]);
            next = moe_coe_next_expert(c, at, (const char *)want[i].data, want[i].size);
        }
        n_followed += at != (uint32_t)(i % N_MODELS);
        moe_request_free(r);
    }
    assert_true(n_followed > 0);
    for (int i = 0; i < N_MODELS; i++)
        moe_engine_close(engines[i]);
}

static struct moe_server *opened(const struct moe_server_options *o)
{
    struct moe_server *s;
    struct moe_err err;
    assert_ok(moe_server_open(&s, o, NULL, &err), &err);
    return s;
}

static struct moe_server_counts counted(struct moe_server *s)
{
    struct moe_server_counts counts;
    moe_server_count(s, &counts);
    return counts;
}

static bool same_text(const struct asked *a, const struct moe_buf *want)
{
    return a->text.size == want->size &&
           (want->size == 0 || memcmp(a->text.data, want->data, want->size) == 0);
}

/* The least main memory that works for these options. */
static uint64_t floor_of(struct moe_server_options o)
{
    o.engine.memory_bytes = 0;
    struct moe_server *s = opened(&o);
    uint64_t bytes = counted(s).floor_bytes + (1 << 18); /* directories vary a little */
    moe_server_close(s);
    return bytes;
}

/* Of the device's memory so much for n executors, each with room for its session and `models`. */
static uint64_t gpu_memory(uint64_t n, uint64_t models)
{
    return MOE_GPU_OWN_BYTES + n * (models + takes.session);
}

/* ---- Tests ---- */

static const struct moe_server_executor executors[][3] = {
    {{.device = {.cuda = true}}},
    {{.device = {.cuda = true}}, {.device = {.cuda = true}}, {.device = {.cuda = true}}},
    {{.device = {.cuda = false}}, {.device = {.cuda = true}}, {.device = {.cuda = true}}},
};
static const uint32_t n_executors[] = {1, 3, 3}, n_cuda[] = {1, 3, 2};

static void check_answers(const struct moe_server_options *o, const struct moe_buf want[N])
{
    static struct asked asked[N];
    char limit[32];
    snprintf(limit, sizeof limit, "%" PRIu64, o->engine.gpu_memory_bytes);
    if (o->engine.gpu_memory_bytes) /* the shim's device has no more */
        setenv("MOE_SHIM_MEMORY", limit, 1);
    write_requests(asked);
    struct moe_server *s = opened(o);
    for (int i = 0; i < N; i++)
        submit(s, &asked[i]);
    moe_server_drain(s);
    struct moe_server_counts counts = counted(s);
    uint64_t loads = 0, host_loads = 0;
    for (uint32_t i = 0; i < counts.n_executors; i++) {
        loads += counts.executors[i].loads;
        host_loads += counts.executors[i].host_loads;
    }
    moe_server_close(s);
    unsetenv("MOE_SHIM_MEMORY");
    for (int i = 0; i < N; i++) {
        assert_int_equal(asked[i].n_ended, 1);
        if (asked[i].result.status != MOE_OK)
            fail_msg("request %d: %s", i, asked[i].err.text);
        if (!same_text(&asked[i], &want[i]))
            fail_msg("%s, %s, %u executors, %" PRIu64 " and %" PRIu64 " bytes: request %d",
                     o->schedule->name, moe_coe_evict_at(o->evict), o->n_executors,
                     o->engine.memory_bytes, o->engine.gpu_memory_bytes, i);
        moe_buf_release(&asked[i].text);
    }
    assert_int_equal(counts.ended, N);
    assert_true(counts.follow_ons > 0);
    assert_true(loads >= N_MODELS && host_loads < loads);
    if (counts.host_bytes < sizes[3]) /* the smallest */
        assert_int_equal(host_loads, 0);
    assert_true(counts.host_taken <= counts.host_bytes);
    assert_true(counts.gpu_bytes > 0);
}

static void collections_answer_as_on_the_processor(void **state)
{
    static struct asked asked[N];
    struct moe_coe_collection *c = make_collection();
    struct moe_buf want[N] = {{0}};
    const struct moe_coe_schedule *schedule;
    uint32_t number = 0;
    (void)state;
    write_requests(asked);
    follow_alone(c, asked, want);
    for (int e = 0; e < 3; e++) {
        /* Models have caches there; one each has room, with little beside it; all have. */
        const uint64_t gpu[] = {gpu_memory(n_cuda[e], takes.least),
                                gpu_memory(n_cuda[e], takes.all + takes.least / 2), 0};
        struct moe_server_options o = {
            .collection = c,
            .engine = {.session = {.context = CONTEXT}, .program_bytes = 64 << 20},
            .executors = executors[e],
            .n_executors = n_executors[e],
            .sequences = 4,
            .expert_share = 0.99,
        };
        for (int g = 0; g < 3; g++) {
            o.engine.gpu_memory_bytes = gpu[g];
            const uint64_t memory[] = {floor_of(o), 0};
            for (int m = 0; m < 2; m++, number++) {
                if (number % EVERY != 0)
                    continue;
                o.engine.memory_bytes = memory[m];
                o.evict = (enum moe_coe_evict)(number % 3);
                schedule = moe_coe_schedule_at(number % 4);
                assert_non_null(schedule);
                o.schedule = schedule;
                check_answers(&o, want);
            }
        }
    }
    for (int i = 0; i < N; i++)
        moe_buf_release(&want[i]);
    moe_coe_collection_free(c);
}

static void one_model_on_several_executors(void **state)
{
    static struct asked asked[N];
    struct moe_buf want[N] = {{0}};
    struct moe_engine *e;
    struct moe_err err;
    (void)state;
    const struct moe_engine_options alone = {.session = {.context = CONTEXT}};
    assert_ok(moe_engine_open(&e, packs[0], &alone, NULL, &err), &err);
    for (int i = 0; i < N; i++) {
        write_request(&asked[i], i, 0, 1 + i % 5);
        struct moe_request *r = request_of(&asked[i]);
        answer_alone(e, r, &want[i]);
        moe_request_free(r);
    }
    moe_engine_close(e);
    for (uint32_t n = 1; n <= 2; n++) {
        const struct moe_server_options o = {
            .pack = packs[0],
            .engine = {.session = {.context = CONTEXT}},
            .executors = executors[1],
            .n_executors = n,
            .sequences = 3,
            .schedule = moe_coe_schedule_find("round-robin"),
        };
        struct moe_server *s = opened(&o);
        for (int i = 0; i < N; i++)
            submit(s, &asked[i]);
        moe_server_drain(s);
        struct moe_server_counts counts = counted(s);
        assert_int_equal(counts.n_executors, n);
        for (uint32_t i = 0; i < n; i++) {
            assert_string_equal(counts.executors[i].device, "cuda");
            assert_true(counts.executors[i].busy_seconds > 0);
        }
        moe_server_close(s);
        for (int i = 0; i < N; i++)
            assert_true(asked[i].result.status == MOE_OK && same_text(&asked[i], &want[i]));
    }
    for (int i = 0; i < N; i++) {
        moe_buf_release(&asked[i].text);
        moe_buf_release(&want[i]);
    }
}

/* Whether the device is the shim's. */
static bool is_rehearsed(void)
{
    struct moe_gpu_info info;
    assert_int_equal(moe_gpu_describe(0, &info), 0);
    return strstr(info.name, "shim") != NULL;
}

/* Loses the device: the shim's by a call that fails from now on, a GPU by a kernel of another's
 * that writes where no memory is. */
static void lose_device(const char *fault, bool rehearsed)
{
    struct moe_gpu *other;
    struct moe_err err;
    if (rehearsed) {
        setenv("MOE_SHIM_FAIL", fault, 1);
        return;
    }
    assert_ok(moe_gpu_open(&other, 0, &err), &err);
    try_fault(other, TRY_WILD_WRITE, (int32_t *)4096);
    assert_int_equal(moe_gpu_finish(other, &err), MOE_ERR_DEVICE);
    print_message("# %s\n", err.text);
    moe_gpu_close(other);
}

/* Who is asked when a device is lost is told so, and so is who asks next: it is lost to the
 * process, for which the server says why. Executors on the processor go on. */
static void a_lost_device_stays_lost(void **state)
{
    static const char *const faults[] = {"cudaLaunchKernel:40", "cudaStreamSynchronize:30",
                                         "cudaMalloc:1"};
    enum { N_FAULTS = sizeof faults / sizeof faults[0] };
    const bool rehearsed = is_rehearsed(); /* no question can be asked of a lost one */
    if (!rehearsed && getenv("MOE_GPU_CHECKED"))
        skip(); /* a sanitizer would report the kernel */
    struct moe_coe_collection *c = make_collection();
    (void)state;
    for (int way = 0; way < 3; way++) { /* an engine with all memory; several; several executors */
        struct moe_server_options o = {
            .engine = {.session = {.context = CONTEXT}},
            .executors = executors[1],
            .n_executors = way == 2 ? 3 : 1,
            .sequences = 2,
        };
        if (way == 0)
            o.pack = packs[3];
        else
            o.collection = c;
        /* An engine that has all its memory asks for none: models that are loaded do. */
        const int n_faults[] = {N_FAULTS - 1, N_FAULTS, 1};
        for (int i = 0; i < (rehearsed ? n_faults[way] : way == 0); i++) {
            static struct asked before, at, next;
            struct moe_server *s = opened(&o);
            struct moe_err failure;
            write_request(&before, 0, 3, 4);
            submit(s, &before);
            moe_server_drain(s);
            assert_int_equal(before.result.status, MOE_OK);
            assert_false(moe_server_has_failed(s, &failure));
            lose_device(faults[i], rehearsed);
            for (int tries = 0; tries < 20 && at.result.status == MOE_OK; tries++) {
                /* A text perhaps needs none of these calls. */
                moe_buf_release(&at.text);
                write_request(&at, 0, tries % N_MODELS, 4);
                submit(s, &at);
                moe_server_drain(s);
            }
            if (at.result.status == MOE_OK || at.err.status != MOE_ERR_DEVICE)
                fail_msg("way %d, %s: status %d: %s", way, faults[i], at.result.status,
                         at.result.status == MOE_OK ? "it is not called" : at.err.text);
            assert_true(moe_server_has_failed(s, &failure));
            assert_int_equal(failure.status, MOE_ERR_DEVICE);
            write_request(&next, 0, 3, 4);
            submit(s, &next);
            moe_server_drain(s);
            if (way < 2 || next.result.status != MOE_OK)
                assert_int_equal(next.err.status, MOE_ERR_DEVICE);
            else
                assert_true(same_text(&next, &before.text));
            unsetenv("MOE_SHIM_FAIL");
            moe_server_close(s);
            moe_buf_release(&before.text);
            moe_buf_release(&at.text);
            moe_buf_release(&next.text);
            before = at = next = (struct asked){0};
        }
    }
    moe_coe_collection_free(c);
}

/* One executor on the device with room for one model, and a tier of the host's memory for
 * `packs_of` of the likeliest packs and the room that is left. */
static struct moe_server_options one_at_a_time(const struct moe_coe_collection *c,
                                               uint32_t packs_of)
{
    struct moe_server_options o = {
        .collection = c,
        .engine = {.session = {.context = CONTEXT},
                   .program_bytes = 64 << 20,
                   .gpu_memory_bytes = gpu_memory(1, takes.all + takes.least / 2)},
        .executors = executors[0],
        .n_executors = 1,
        .sequences = 4,
        .expert_share = 0.99,
        .schedule = moe_coe_schedule_find("fcfs"),
        .evict = MOE_COE_TWO_STAGE,
        .no_prefetch = true,
    };
    uint64_t want = 0, had = 0;
    for (uint32_t i = 0; i < packs_of; i++)
        want += sizes[i];
    for (o.engine.memory_bytes = floor_of(o); had < want; o.engine.memory_bytes += 1 << 16) {
        struct moe_server *s = opened(&o);
        had = counted(s).host_bytes;
        moe_server_close(s);
    }
    o.engine.memory_bytes -= 1 << 16;
    return o;
}

/* Asks a model, and says what that read from disk and how often the tier had it. */
static void ask_model(struct moe_server *s, int model, uint64_t *read, uint64_t *from_host)
{
    static struct asked a;
    struct moe_server_counts before = counted(s);
    write_request(&a, model, model, 2);
    submit(s, &a);
    moe_server_drain(s);
    struct moe_server_counts after = counted(s);
    assert_int_equal(a.result.status, MOE_OK);
    moe_buf_release(&a.text);
    *read = after.executors[0].bytes_read - before.executors[0].bytes_read;
    *from_host = after.executors[0].host_loads - before.executors[0].host_loads;
}

static void what_leaves_the_device_stays_in_the_host_tier(void **state)
{
    struct moe_coe_collection *c = make_collection();
    uint64_t read, from_host;
    (void)state;
    c->n_follows = 0; /* each answers itself */
    /* All have room: placed and filled at the start, nothing is read afterwards. */
    struct moe_server_options o = one_at_a_time(c, N_MODELS);
    struct moe_server *s = opened(&o);
    struct moe_server_counts counts = counted(s);
    assert_int_equal(counts.host_models, N_MODELS);
    assert_int_equal(counts.executors[0].loads, 1);
    assert_int_equal(counts.executors[0].host_loads, 0);
    assert_int_equal(counts.executors[0].bytes_read, sizes[0]); /* the likeliest */
    for (int round = 0; round < 2; round++)
        for (int i = N_MODELS - 1; i >= 0; i--) {
            ask_model(s, i, &read, &from_host);
            assert_int_equal(read, 0);
            assert_int_equal(from_host, 1);
        }
    moe_server_close(s);
    /* Three have: the likeliest; the fourth is read, and by two-stage eviction takes the place of
     * the least likely. */
    o = one_at_a_time(c, 3);
    s = opened(&o);
    assert_int_equal(counted(s).host_models, 3);
    ask_model(s, 2, &read, &from_host);
    assert_true(read == 0 && from_host == 1);
    ask_model(s, 3, &read, &from_host);
    assert_true(read == sizes[3] && from_host == 0);
    ask_model(s, 0, &read, &from_host);
    assert_true(read == 0 && from_host == 1);
    ask_model(s, 3, &read, &from_host);
    assert_true(read == 0 && from_host == 1); /* it stayed */
    ask_model(s, 2, &read, &from_host);
    assert_true(read == sizes[2] && from_host == 0);
    moe_server_close(s);
    /* No room: all are read each time. */
    o.engine.memory_bytes = floor_of(o);
    s = opened(&o);
    assert_true(counted(s).host_bytes < sizes[3]);
    for (int i = 0; i < N_MODELS; i++) {
        ask_model(s, (i + 1) % N_MODELS, &read, &from_host);
        assert_true(read > 0 && from_host == 0);
    }
    moe_server_close(s);
    moe_coe_collection_free(c);
}

/* A pack in the tier whose file is another one by now is read anew; one that is damaged fails
 * alone, until it is whole again. */
static void packs_that_change_are_read_anew(void **state)
{
    static struct asked a;
    struct moe_coe_collection *c = make_collection();
    struct moe_buf file = {0}, want = {0};
    uint64_t read, from_host;
    struct moe_err err;
    (void)state;
    c->n_follows = 0;
    struct moe_server_options o = one_at_a_time(c, N_MODELS);
    struct moe_server *s = opened(&o);
    assert_ok(moe_file_read_all(packs[3], 1 << 30, &file, &err), &err);
    for (uint64_t i = file.size / 2; i < file.size; i++)
        file.data[i] ^= 1;
    assert_ok(moe_file_write_all(packs[3], file.data, file.size, &err), &err);
    write_request(&a, 3, 3, 2);
    submit(s, &a);
    moe_server_drain(s);
    assert_int_equal(a.result.status, MOE_ERR_FORMAT);
    assert_non_null(strstr(a.err.text, packs[3]));
    ask_model(s, 1, &read, &from_host);
    assert_true(read == 0 && from_host == 1);
    for (uint64_t i = file.size / 2; i < file.size; i++)
        file.data[i] ^= 1;
    assert_ok(moe_file_write_all(packs[3], file.data, file.size, &err), &err);
    submit(s, &a);
    moe_server_drain(s);
    struct moe_engine *e;
    const struct moe_engine_options alone = {.session = {.context = CONTEXT}};
    assert_ok(moe_engine_open(&e, packs[3], &alone, NULL, &err), &err);
    struct moe_request *r = request_of(&a);
    answer_alone(e, r, &want);
    moe_request_free(r);
    moe_engine_close(e);
    assert_int_equal(a.result.status, MOE_OK);
    assert_true(same_text(&a, &want));
    moe_server_close(s);
    moe_buf_release(&a.text);
    moe_buf_release(&want);
    moe_buf_release(&file);
    moe_coe_collection_free(c);
}

/* A device whose memory is the host's: all of it is of one budget, and there is no tier. */
static void one_memory_has_no_tier(void **state)
{
    static struct asked asked[N];
    struct moe_coe_collection *c = make_collection();
    struct moe_buf want[N] = {{0}};
    struct moe_gpu_info info;
    (void)state;
    write_requests(asked);
    follow_alone(c, asked, want);
    setenv("MOE_SHIM_UNIFIED", "1", 1);
    assert_int_equal(moe_gpu_describe(0, &info), 0);
    for (uint64_t more = 0; info.unified && more <= 100 << 20; more += 100 << 20) {
        struct moe_server_options o = {
            .collection = c,
            .engine = {.session = {.context = CONTEXT}, .program_bytes = 64 << 20},
            .executors = executors[2],
            .n_executors = n_executors[2],
            .sequences = 4,
            .schedule = moe_coe_schedule_find("round-robin"),
        };
        o.engine.memory_bytes = floor_of(o) + more;
        struct moe_server *s = opened(&o);
        for (int i = 0; i < N; i++)
            submit(s, &asked[i]);
        moe_server_drain(s);
        struct moe_server_counts counts = counted(s);
        moe_server_close(s);
        assert_int_equal(counts.host_bytes, 0);
        for (uint32_t i = 0; i < counts.n_executors; i++)
            assert_int_equal(counts.executors[i].host_loads, 0);
        assert_true(counts.gpu_bytes < counts.memory_bytes - (64 << 20));
        for (int i = 0; i < N; i++)
            assert_true(asked[i].result.status == MOE_OK && same_text(&asked[i], &want[i]));
    }
    unsetenv("MOE_SHIM_UNIFIED");
    for (int i = 0; i < N; i++) {
        moe_buf_release(&asked[i].text);
        moe_buf_release(&want[i]);
    }
    moe_coe_collection_free(c);
}

static void too_little_of_the_device_is_refused(void **state)
{
    struct moe_coe_collection *c = make_collection();
    struct moe_server_options o = {
        .collection = c,
        .engine = {.session = {.context = CONTEXT},
                   .gpu_memory_bytes = gpu_memory(3, takes.least) - 1},
        .executors = executors[1],
        .n_executors = 3,
        .sequences = 4,
    };
    struct moe_server *s;
    struct moe_err err;
    (void)state;
    assert_fails(moe_server_open(&s, &o, NULL, &err), MOE_ERR_LIMIT,
                 "on the GPU is too small: the smallest that works is", &err);
    o.engine.gpu_memory_bytes++;
    moe_server_close(opened(&o));
    o.engine.memory_bytes = 1 << 20;
    assert_fails(moe_server_open(&s, &o, NULL, &err), MOE_ERR_LIMIT,
                 "is too small: the smallest that works is", &err);
    o.engine.device.index = 7;
    assert_fails(moe_server_open(&s, &o, NULL, &err), MOE_ERR_DEVICE, "executors on cuda: ", &err);
    moe_coe_collection_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_cache_has_enough_beside_it),
        cmocka_unit_test(one_model_on_several_executors),
        cmocka_unit_test(collections_answer_as_on_the_processor),
        cmocka_unit_test(what_leaves_the_device_stays_in_the_host_tier),
        cmocka_unit_test(packs_that_change_are_read_anew),
        cmocka_unit_test(one_memory_has_no_tier),
        cmocka_unit_test(too_little_of_the_device_is_refused),
        cmocka_unit_test(a_lost_device_stays_lost),
    };
    return cmocka_run_group_tests_name("server_device", tests, make_packs, remove_packs);
}
