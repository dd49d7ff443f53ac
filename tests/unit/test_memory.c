/*
 * What is computed of a process's memory is what is seen of it, within stated bounds: the
 * directories of several packs, statistics, and a server's engines that come and go.
 */
#define _DEFAULT_SOURCE
#include <malloc.h>
#include <sys/mman.h>

#include "api/moe.h"
#include "base/file.h"
#include "base/mem.h"
#include "engine/memory.h"
#include "infer/cpu_stages.h"
#include "profile/statistics.h"

#include "model_fixture.h"

enum {
    DIRECTORY_SLACK = 512 << 10, /* bytes: patterns and templates are of any size */
    KEPT = 64 << 10,             /* of what was freed, for the next to ask malloc */
    REPEATS = 5,
};

static uint64_t in_use(void)
{
    const struct mallinfo2 info = mallinfo2();
    return (uint64_t)info.uordblks + info.hblkhd;
}

struct pack_case {
    const char *checkpoint, *experts;
};

static const struct pack_case packs[] = {
    {TINY_MOE, "4"},
    {TINY_MOE, "8,4,2"},
    {BUNDLED "/tiny-switch", "4"},
    {DRAWN "/qwen3-moe-a", "4"},
    {DRAWN "/deepseek-v3-a", "8,4"},
    {DRAWN "/gptsan-a", "4"},
    {DRAWN "/jamba-a", "4"},
    {DRAWN "/gpt-oss-a/model.gguf", "4"},
};

static void in_each_pack(void (*check)(const char *path, const char *name))
{
    for (size_t i = 0; i < N_ITEMS(packs); i++) {
        char path[64];
        const struct moe_convert_options options = pack_options(packs[i].experts, 8);
        snprintf(path, sizeof path, "/tmp/moe-memory-%d.moe", (int)getpid());
        make_pack(path, packs[i].checkpoint, &options);
        check(path, packs[i].checkpoint);
        unlink(path);
    }
}

/* At least what is seen, and at most a quarter and the slack more. A sanitizer's malloc does not
 * say what is in use. */
static void compare(const char *name, const char *what, uint64_t computed, uint64_t seen,
                    uint64_t slack)
{
    if (!SANITIZED && (computed < seen || computed > seen + seen / 4 + slack))
        fail_msg("%s: %s takes %.0f KiB, %.0f were computed", name, what, (double)seen / 1024,
                 (double)computed / 1024);
}

static void open_and_close(const char *path, const char *name)
{
    for (int i = 0; i < REPEATS; i++) { /* the first also takes what the library keeps */
        struct moe_err err = {0};
        struct moe_model *model;
        const uint64_t before = in_use();
        assert_ok(moe_model_open_directory(&model, path, &err), &err);
        if (i > 0)
            compare(name, "the directory", moe_model_directory_bytes(model), in_use() - before,
                    DIRECTORY_SLACK);
        moe_model_close(model);
        assert_true(in_use() <= before + (i ? KEPT : DIRECTORY_SLACK));
    }
}

static void directories(void **state)
{
    (void)state;
    in_each_pack(open_and_close);
}

/* Engines that share a process take no more than their share, the session apart, in any order. */
static void open_with_shares(const char *path, const char *name)
{
    struct moe_err err = {0};
    struct moe_needs needs;
    const struct moe_engine_options plain = {.session = {.n_sequences = 1, .n_sources = 1}};
    assert_ok(moe_needs_of(&needs, path, &plain, NULL, &err), &err);
    const struct moe_needs_on *on = &needs.on[false];
    assert_true(on->least <= on->most);
    for (int i = 0; i < REPEATS; i++) {
        struct moe_engine_options o = plain;
        struct moe_engine *e;
        const uint64_t before = in_use(), rss = moe_rss_bytes();
        o.shares = true;
        o.memory_bytes = i % 2 ? on->least : on->most;
        assert_ok(moe_engine_open(&e, path, &o, NULL, &err), &err);
        const struct moe_plan_memory *m = &e->budget.host;
        assert_int_equal(m->total, o.memory_bytes);
        assert_true(m->floor <= on->least || on->least == on->most);
        assert_true(m->program + m->dense + m->kv + m->work + m->experts <= o.memory_bytes);
        if (!SANITIZED && moe_rss_bytes() > rss + o.memory_bytes)
            fail_msg("%s: a share of %.0f KiB grew by %.0f", name, (double)o.memory_bytes / 1024,
                     (double)(moe_rss_bytes() - rss) / 1024);
        moe_engine_close(e);
        assert_true(in_use() <= before + (i ? KEPT : DIRECTORY_SLACK));
        struct moe_needs again; /* ... and what is said does not depend on what was open */
        assert_ok(moe_needs_of(&again, path, &plain, NULL, &err), &err);
        assert_memory_equal(&again.on, &needs.on, sizeof needs.on);
        o.memory_bytes = on->least - 1;
        assert_int_equal(moe_engine_open(&e, path, &o, NULL, &err), MOE_ERR_LIMIT);
    }
}

static void shares_of_engines(void **state)
{
    (void)state;
    in_each_pack(open_with_shares);
}

static uint64_t present(void *at, uint64_t bytes)
{
    static unsigned char pages[1 << 16];
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), n = (bytes + page - 1) / page;
    uint64_t sum = 0;
    assert_true(n <= sizeof pages);
    assert_int_equal(mincore(at, bytes, pages), 0);
    for (uint64_t i = 0; i < n; i++)
        sum += (pages[i] & 1) * page;
    return sum;
}

/* A pass takes no more of what it borrows than its rows, and the next smaller one gives it back. */
static void borrow_and_give_back(const char *path, const char *name)
{
    enum { ROWS = 48, OWN = 16 };
    static const uint32_t passes[] = {OWN, 20, ROWS, 1, 30, OWN};
    struct moe_err err = {0};
    struct moe_engine *e;
    struct moe_engine_options o = {.session = {.context = ROWS, .n_sequences = 1}};
    assert_ok(moe_engine_open(&e, path, &o, NULL, &err), &err);
    const struct moe_config *c = &e->model->config;
    o.session = (struct moe_session_options){.context = ROWS, .batch = ROWS, .own_rows = OWN};
    moe_engine_close_session(e);
    const uint64_t with = moe_session_bytes(c, &o.session);
    assert_ok(moe_engine_open_session(e, &o.session, &err), &err);
    struct cpu_work *w = e->session->device;
    o.session.own_rows = 0;
    const uint64_t ends = with - moe_session_bytes(c, &o.session);
    for (size_t i = 0; i < N_ITEMS(passes) && !c->n_encoder && !c->prefix_lm; i++) {
        struct moe_row rows[ROWS];
        for (uint32_t k = 0; k < passes[i]; k++)
            rows[k] = (struct moe_row){.position = k, .token = k + 1};
        assert_ok(
            moe_forward(e->session, MOE_PREFILL, rows, passes[i], 0, c->n_layers, NULL, NULL, &err),
            &err);
        const uint64_t may = moe_session_rows_bytes(c, &o.session, passes[i]) + ends;
        if (present(w->rows, w->rows_bytes) > may)
            fail_msg("%s: a pass of %u rows has %.0f KiB, not %.0f", name, passes[i],
                     (double)present(w->rows, w->rows_bytes) / 1024, (double)may / 1024);
    }
    moe_engine_close(e);
}

static void passes_borrow_no_more_than_their_rows(void **state)
{
    (void)state;
    in_each_pack(borrow_and_give_back);
}

static uint32_t n_grown; /* packs */

/* Rows of a text from `from` on in passes of 64. */
static void read_text(struct moe_session *s, uint32_t sequence, uint32_t from, uint32_t n)
{
    enum { ROWS = 64 };
    const struct moe_config *c = &s->model->config;
    struct moe_err err = {0};
    for (uint32_t at = from, some; at < n; at += some) {
        struct moe_row rows[ROWS];
        some = n - at < ROWS ? n - at : ROWS;
        for (uint32_t i = 0; i < some; i++)
            rows[i] = (struct moe_row){sequence, at + i, (at + i) % 50 + 1, n};
        assert_ok(moe_forward(s, MOE_PREFILL, rows, some, 0, c->n_layers, NULL, NULL, &err), &err);
    }
}

/* n blocks are held, of which n_full have a row in each position. */
static void has_blocks(const char *name, const struct moe_session *s, uint32_t n, uint32_t n_full)
{
    const struct moe_kv *kv = s->stages->kv(s);
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), each = moe_kv_block_bytes(kv);
    const uint64_t has = present(kv->whole.keys, kv->whole.n_blocks * each);
    assert_int_equal(s->kv_pool.n_held, n);
    if (has > n * each + 2 * kv->whole.n_blocks * page || has < n_full * each / 2)
        fail_msg("%s: %u blocks of %.0f KiB have %.0f", name, n, (double)each / 1024,
                 (double)has / 1024);
}

/* Blocks of the KV cache take memory from when rows are in them until no text reaches them. */
static void grow_and_shrink(const char *path, const char *name)
{
    enum { BLOCK = 256, CONTEXT = 2 * BLOCK };
    struct moe_err err = {0};
    struct moe_engine *e;
    struct moe_engine_options o = {.session = {.context = CONTEXT, .n_sequences = 2}};
    if (moe_engine_open(&e, path, &o, NULL, &err) == MOE_ERR_USAGE) /* so long is no text of it */
        return;
    const struct moe_config *c = &e->model->config;
    moe_engine_close_session(e);
    o.session.batch = 64;
    o.session.kv_grows = true;
    if (!c->n_encoder && !c->prefix_lm && c->layers[c->n_layers].state_index == 0) {
        uint32_t ids[BLOCK + 1], n;
        for (uint32_t i = 0; i <= BLOCK; i++)
            ids[i] = i % 50 + 1;
        assert_ok(moe_engine_open_session(e, &o.session, &err), &err);
        struct moe_session *s = e->session;
        has_blocks(name, s, 0, 0);
        read_text(s, 0, 0, BLOCK + 10);
        has_blocks(name, s, 2, 1);
        read_text(s, 1, 0, 20);
        has_blocks(name, s, 3, 1);
        const uint32_t back = moe_sequence_rewind(s, 0, 5);
        has_blocks(name, s, 3, 1); /* until the next pass */
        read_text(s, 1, 20, 30);
        has_blocks(name, s, back ? 2 : 1, 0);
        moe_sequence_rewind(s, 0, 0);
        read_text(s, 1, 30, BLOCK + 1);
        has_blocks(name, s, 2, 1);
        assert_ok(moe_sequence_sync(s, 0, ids, 100, 101, &n, &err), &err);
        has_blocks(name, s, n ? 3 : 2, 1); /* with a copy of what is alike */
        moe_sequence_rewind(s, 0, 0);
        moe_sequence_rewind(s, 1, 0);
        read_text(s, 0, 0, 3);
        has_blocks(name, s, 1, 0);
        assert_true(moe_sequence_known(s, 0, ids, BLOCK + 1) <= 3);
        n_grown++;
    }
    moe_engine_close(e);
}

static void blocks_are_held_while_texts_need_them(void **state)
{
    (void)state;
    in_each_pack(grow_and_shrink);
    assert_true(n_grown > 1);
}

/* The same budget is split alike whatever the process holds. */
static void a_larger_process_has_the_same_split(void **state)
{
    (void)state;
    enum { MORE = 64 << 20 };
    char path[128];
    struct moe_err err = {0};
    struct moe_model *model;
    struct moe_memory small, large;
    fixture_pack(path, 4);
    assert_ok(moe_model_open_directory(&model, path, &err), &err);
    const struct moe_engine_options o = {.memory_bytes = moe_program_bytes(false) + (20 << 20),
                                         .session = {.context = 256, .n_sequences = 1}};
    assert_ok(moe_memory_of(&small, model, NULL, &o, &err), &err);
    char *more = malloc(MORE);
    assert_non_null(more);
    memset(more, 1, MORE);
    assert_ok(moe_memory_of(&large, model, NULL, &o, &err), &err);
    assert_memory_equal(&small.budget, &large.budget, sizeof small.budget);
    assert_true(small.most > small.budget.host.floor && small.most == large.most);
    free(more);
    moe_model_close(model);
    unlink(path);
}

/* A program that names no threads computes on all cores, and each counts. */
static void the_library_counts_its_threads(void **state)
{
    (void)state;
    char path[128];
    struct moe *m;
    struct moe_error error;
    struct moe_facts one, all;
    struct moe_options o = {.memory_bytes = 1 << 30, .context = 256};
    fixture_pack(path, 4);
    moe_par_set_threads(1);
    assert_int_equal(moe_open(&m, path, &o, &error), 0);
    assert_int_equal(moe_par_threads(), moe_default_threads());
    moe_facts(m, &all);
    moe_close(m);
    o.threads = 1;
    assert_int_equal(moe_open(&m, path, &o, &error), 0);
    moe_facts(m, &one);
    moe_close(m);
    assert_true(all.least_bytes - one.least_bytes >= ((uint64_t)moe_default_threads() - 1) << 17);
    o.threads = 0; /* as they are */
    assert_int_equal(moe_open(&m, path, &o, &error), 0);
    assert_int_equal(moe_par_threads(), 1);
    moe_close(m);
    unlink(path);
}

/* From the largest useful budget on nothing changes; just below it, something is missing. */
static void more_than_the_most_changes_nothing(void **state)
{
    (void)state;
    char path[128];
    struct moe_err err = {0};
    struct moe_model *model;
    struct moe_memory at, above, below;
    fixture_pack(path, 4);
    assert_ok(moe_model_open_directory(&model, path, &err), &err);
    struct moe_engine_options o = {.memory_bytes = 1,
                                   .session = {.context = 256, .n_sequences = 1}};
    assert_int_equal(moe_memory_of(&below, model, NULL, &o, &err), MOE_ERR_LIMIT);
    o.memory_bytes = below.most;
    assert_ok(moe_memory_of(&at, model, NULL, &o, &err), &err);
    o.memory_bytes = 2 * below.most;
    assert_ok(moe_memory_of(&above, model, NULL, &o, &err), &err);
    o.memory_bytes = below.most - 1;
    assert_ok(moe_memory_of(&below, model, NULL, &o, &err), &err);
    assert_true(at.resolved.strategy.resident && above.resolved.strategy.resident);
    above.budget.host.total = at.budget.host.total;
    assert_memory_equal(&at.budget, &above.budget, sizeof at.budget);
    assert_true(below.budget.batch < at.budget.batch || !below.resolved.strategy.resident);
    moe_model_close(model);
    unlink(path);
}

static void statistics(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_statistics *s;
    const struct moe_statistics_shape shape = {
        .n_layers = 24, .n_experts = 64, .top_k = 8, .max_tokens = 512, .prompt_percent = 50};
    struct moe_buf text = {0};
    char path[64];
    snprintf(path, sizeof path, "/tmp/moe-memory-%d.yaml", (int)getpid());
    assert_ok(moe_statistics_new(&s, &shape, &err), &err);
    assert_ok(moe_origins_begin(&s->origins, 1, 0, 1, &err), &err);
    s->origins.items->documents = 1;
    s->origins.items->pack_fingerprint = 99;
    s->origins.items->texts[s->origins.items->n_texts++] = 1;
    assert_ok(moe_statistics_write(s, &text, &err), &err);
    moe_statistics_free(s);
    assert_ok(moe_file_write_all(path, text.data, text.size, &err), &err);
    moe_buf_release(&text);
    moe_heap_trim();
    const uint64_t before = in_use(), peak = moe_peak_rss_bytes(), rss = moe_rss_bytes();
    assert_ok(moe_statistics_read(&s, path, &err), &err);
    compare("statistics", "what is held", moe_statistics_held_bytes(s), in_use() - before,
            64 << 10);
    const uint64_t reading = moe_statistics_held_bytes(s) + s->read_bytes;
    if (!SANITIZED && moe_peak_rss_bytes() > peak) /* this program had more before, else */
        assert_true(moe_peak_rss_bytes() - rss <= reading + (512 << 10));
    moe_statistics_free(s);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(directories),
        cmocka_unit_test(shares_of_engines),
        cmocka_unit_test(passes_borrow_no_more_than_their_rows),
        cmocka_unit_test(blocks_are_held_while_texts_need_them),
        cmocka_unit_test(a_larger_process_has_the_same_split),
        cmocka_unit_test(the_library_counts_its_threads),
        cmocka_unit_test(more_than_the_most_changes_nothing),
        cmocka_unit_test(statistics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
