#define _DEFAULT_SOURCE /* mkdtemp, symlink */
/*
 * Layers whose windows lie apart (infer/kv_pool.h): the same bits as with whole layers for any
 * batch, thread count and company; texts that go back, fork, share, end and come from files; what
 * is gone is refused; sizes are those that are planned.
 */
#include <dirent.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/context_file.h"
#include "infer/kv_pool.h"
#include "model/read.h"
#include "model_fixture.h"

#include "../scratch_dir.h"

enum { N_IDS = 1700, CONTEXT = 2048, BATCH = 256, N_SEQUENCES = 3, MOST_POSITIONS = 2560 };

struct windows {
    struct fixture f;
    struct moe_session *whole;
    uint32_t ids[MOST_POSITIONS];
    uint64_t stride;
    float *want, *got; /* [BATCH][stride] */
};

/* ---- Sessions ---- */

static struct moe_session_options options_of(uint32_t context, uint32_t n_sequences)
{
    return (struct moe_session_options){
        .context = context, .n_sequences = n_sequences, .batch = BATCH};
}

static void close_sessions(struct windows *w)
{
    moe_session_close(w->whole);
    moe_session_close(w->f.session);
    w->whole = w->f.session = NULL;
}

/* One session of each kind. */
static void open_sessions(struct windows *w, struct moe_session_options o)
{
    struct moe_err err = {0};
    close_sessions(w);
    assert_ok(moe_session_open(&w->f.session, w->f.model, w->f.experts, &o, &err), &err);
    o.whole_windows = true;
    assert_ok(moe_session_open(&w->whole, w->f.model, w->f.experts, &o, &err), &err);
    assert_int_equal(w->whole->kv_pool.n_slots, 0);
    assert_true(w->f.session->kv_pool.n_slots > 0);
}

/* The fixture's checkpoint, of a model for longer texts. */
static void make_longer(const char *checkpoint, const char *to)
{
    char path[256], link[512], here[256];
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(mkdir(to, 0700), 0);
    DIR *files = opendir(checkpoint);
    assert_non_null(files);
    for (struct dirent *e; (e = readdir(files));) {
        if (e->d_name[0] == '.' || strcmp(e->d_name, "config.json") == 0)
            continue;
        snprintf(link, sizeof link, "%.200s/%.100s/%.100s", here, checkpoint, e->d_name);
        snprintf(path, sizeof path, "%.100s/%.100s", to, e->d_name);
        assert_int_equal(symlink(link, path), 0);
    }
    closedir(files);
    snprintf(path, sizeof path, "%s/config.json", checkpoint);
    json_t *config = json_load_file(path, 0, NULL);
    assert_non_null(config);
    json_t *text = json_object_get(config, "text_config");
    json_object_set_new(text ? text : config, "max_position_embeddings",
                        json_integer(MOST_POSITIONS));
    snprintf(path, sizeof path, "%.100s/config.json", to);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
}

static void open_model(struct windows *w, const char *checkpoint)
{
    struct moe_err err = {0};
    const struct moe_convert_options options = pack_options("8", 8);
    void *unused = NULL;
    assert_int_equal(make_dir(&unused), 0);
    char longer[128];
    snprintf(longer, sizeof longer, "%s", in_dir("checkpoint"));
    make_longer(checkpoint, longer);
    snprintf(w->f.path, sizeof w->f.path, "%s", in_dir("x.moe"));
    make_pack(w->f.path, longer, &options);
    assert_ok(moe_model_open(&w->f.model, w->f.path, 0, NULL, &err), &err);
    assert_ok(moe_experts_open_resident(&w->f.experts, w->f.model->pack, 0, NULL, NULL, &err),
              &err);
    w->stride = moe_logits_stride(&w->f.model->config);
    w->want = calloc(BATCH, w->stride * sizeof *w->want);
    w->got = calloc(BATCH, w->stride * sizeof *w->got);
    for (uint32_t i = 0; i < MOST_POSITIONS; i++)
        w->ids[i] = (i * 37 + i / 251 * 11) % 251;
}

static void close_model(struct windows *w)
{
    void *unused = NULL;
    close_sessions(w);
    fixture_close(&w->f);
    free(w->want);
    free(w->got);
    *w = (struct windows){0};
    assert_int_equal(remove_dir(&unused), 0);
}

/* ---- Computing ---- */

static void forward(struct moe_session *s, const struct moe_row *rows, uint32_t n, float *logits)
{
    struct moe_err err = {0};
    assert_ok(moe_forward(s, n > 1 ? MOE_PREFILL : MOE_DECODE, rows, n, 0,
                          s->model->config.n_layers, NULL, NULL, &err),
              &err);
    assert_ok(moe_logits(s, 0, n, logits, &err), &err);
}

/* The rows have the same logits in both sessions. */
static void both(struct windows *w, const struct moe_row *rows, uint32_t n)
{
    forward(w->whole, rows, n, w->want);
    forward(w->f.session, rows, n, w->got);
    assert_memory_equal(w->got, w->want, n * w->stride * sizeof *w->got);
}

static void compute(struct windows *w, uint32_t sequence, uint32_t first, uint32_t end,
                    uint32_t batch)
{
    struct moe_row rows[BATCH];
    for (uint32_t at = first, n; at < end; at += n) {
        n = end - at < batch ? end - at : batch;
        for (uint32_t i = 0; i < n; i++)
            rows[i] = (struct moe_row){sequence, at + i, w->ids[at + i], 0};
        both(w, rows, n);
    }
}

/* Slots and blocks know each other, and nobody has two. */
static void check_slots(const struct moe_kv_pool *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_blocks; i++)
        if (p->slot_of[i] != MOE_NO_BLOCK) {
            assert_true(p->slot_of[i] < p->n_slots);
            assert_int_equal(p->slots[p->slot_of[i]].block, i);
            n++;
        }
    for (uint32_t i = 0; i < p->n_slots; i++)
        n -= p->slots[i].block != MOE_NO_BLOCK;
    assert_int_equal(n, 0);
}

static const char *const fixtures[] = {DRAWN "/gpt-oss-a",     DRAWN "/gemma4-a",
                                       DRAWN "/llama4-a",      DRAWN "/afmoe-a",
                                       DRAWN "/deepseek-v4-a", DRAWN "/mixtral-b"};

static void any_batch_gives_the_bits_of_whole_layers(void **state)
{
    struct windows w = {0};
    (void)state;
    for (size_t i = 0; i < N_ITEMS(fixtures); i++) {
        open_model(&w, fixtures[i]);
        moe_par_set_threads(i ? 2 : 3);
        open_sessions(&w, options_of(CONTEXT, 1));
        compute(&w, 0, 0, N_IDS, i == 0 ? 7 : i % 2 ? 100 : BATCH);
        check_slots(&w.f.session->kv_pool);
        moe_par_set_threads(2);
        compute(&w, 0, 0, 100, i == 0 ? 1 : 33); /* the text begins again */
        close_model(&w);
    }
}

/* Windows of more than a block. */
static void wide_windows_take_more_slots(void **state)
{
    struct windows w = {0};
    (void)state;
    open_model(&w, fixtures[0]);
    w.f.model->config.window = 300;
    open_sessions(&w, options_of(MOST_POSITIONS, 1));
    compute(&w, 0, 0, 2400, 200);
    compute(&w, 0, 2400 - MOE_KV_BACK, MOST_POSITIONS, 64);
    close_model(&w);
}

/* ---- Going back ---- */

static void texts_go_back_as_far_as_is_kept(void **state)
{
    struct windows w = {0};
    struct moe_err err = {0};
    (void)state;
    open_model(&w, fixtures[0]);
    open_sessions(&w, options_of(MOST_POSITIONS, 1));
    struct moe_session *s = w.f.session;
    moe_kv_windows_mark(&s->kv_pool, 0, 20, 700);
    compute(&w, 0, 0, 2500, BATCH);
    for (uint32_t back = 0; back <= MOE_KV_BACK; back++)
        assert_int_equal(moe_sequence_from(s, 0, 2500 - back), 2500 - back);
    for (uint32_t i = 2500 - MOE_KV_BACK; i < 2500; i++) { /* a draft in vain */
        const struct moe_row other = {0, i, (w.ids[i] + 1) % 251, 0};
        both(&w, &other, 1);
    }
    compute(&w, 0, 2500 - MOE_KV_BACK, 2520, 50);
    /* The prompt's beginning and its end are there, what is between and behind is not. */
    assert_int_equal(moe_sequence_from(s, 0, 700), 700);
    assert_int_equal(moe_sequence_from(s, 0, 700 - MOE_KV_BACK), 700 - MOE_KV_BACK);
    assert_int_equal(moe_sequence_from(s, 0, 20), 20);
    uint32_t from = moe_sequence_from(s, 0, 1500);
    assert_true(from >= 700 && from < 1500);
    const struct moe_row gone = {0, 1500, 1, 0};
    assert_fails(
        moe_forward(s, MOE_DECODE, &gone, 1, 0, w.f.model->config.n_layers, NULL, NULL, &err),
        MOE_ERR_USAGE, "is no longer kept", &err);
    compute(&w, 0, from, from + 30, 30);
    compute(&w, 0, 700, 1600, 33);
    check_slots(&s->kv_pool);
    close_model(&w);
}

/* ---- Many sequences ---- */

static void forks_share_and_part(void **state)
{
    struct windows w = {0};
    struct moe_err err = {0};
    struct moe_row rows[N_SEQUENCES];
    (void)state;
    open_model(&w, fixtures[1]);
    struct moe_session_options o = options_of(CONTEXT, N_SEQUENCES);
    o.batch = 64;
    open_sessions(&w, o);
    compute(&w, 0, 0, 1100, 64);
    for (uint32_t i = 1; i < N_SEQUENCES; i++) {
        assert_ok(moe_sequence_fork(w.whole, 0, i, 1100, &err), &err);
        assert_ok(moe_sequence_fork(w.f.session, 0, i, 1100, &err), &err);
    }
    for (uint32_t at = 1100; at < 1400; at++) {
        for (uint32_t i = 0; i < N_SEQUENCES; i++)
            rows[i] = (struct moe_row){i, at, (w.ids[at] + i) % 251, 0};
        both(&w, rows, N_SEQUENCES);
    }
    moe_sequence_rewind(w.whole, 1, 0);
    moe_sequence_rewind(w.f.session, 1, 0);
    compute(&w, 1, 0, 800, 64);
    check_slots(&w.f.session->kv_pool);
    close_model(&w);
}

/* A text of sequences at random: the common one, up to where it becomes one of three others. */
static uint32_t id_at(const struct windows *w, uint32_t text, uint32_t at)
{
    static const uint32_t parts[] = {MOST_POSITIONS, 700, 1000, 1300};
    return at < parts[text] ? w->ids[at] : (w->ids[at] + text) % 251;
}

struct text {
    uint32_t text, n; /* of which so many are computed; 0: it has ended */
};

/* Takes both back to position n, or to one from which both can go on. */
static uint32_t rewind_both(struct windows *w, uint32_t sequence, uint32_t n)
{
    for (uint32_t from = n + 1; from != n;) {
        from = n;
        n = moe_sequence_rewind(w->f.session, sequence, n);
        n = moe_sequence_rewind(w->whole, sequence, n);
    }
    return n;
}

static void begin_text(struct windows *w, uint32_t sequence, struct text *t, uint64_t *random)
{
    struct moe_err err = {0};
    struct moe_session *sessions[] = {w->whole, w->f.session};
    uint32_t ids[CONTEXT], n = 700 + (uint32_t)(test_random(random) % 1100), known[2];
    t->text = (uint32_t)(test_random(random) % 4);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = id_at(w, t->text, i);
    for (int i = 0; i < 2; i++) {
        uint32_t before = moe_sequence_known(sessions[i], 0, ids, n);
        assert_ok(moe_sequence_sync(sessions[i], sequence, ids, n, n, &known[i], &err), &err);
        if (i == 1)
            assert_int_equal(before, known[i]);
    }
    t->n = known[1] <= known[0] ? known[1] : rewind_both(w, sequence, known[0]);
}

static void go_on(struct windows *w, uint32_t sequence, struct text *t, uint64_t *random)
{
    struct moe_row rows[64];
    uint32_t n = 1 + (uint32_t)(test_random(random) % 64);
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct moe_row){sequence, t->n + i, id_at(w, t->text, t->n + i), 0};
    both(w, rows, n);
    t->n += n;
}

static void texts_at_random_are_those_of_whole_layers(void **state)
{
    struct windows w = {0};
    uint64_t random = 11, n_shared = 0, n_less = 0;
    struct text texts[N_SEQUENCES] = {{0, 0}};
    (void)state;
    open_model(&w, fixtures[0]);
    struct moe_session_options o = options_of(CONTEXT, N_SEQUENCES);
    o.batch = 64;
    open_sessions(&w, o);
    for (int step = 0; step < 550; step++) {
        uint32_t i = (uint32_t)(test_random(&random) % N_SEQUENCES);
        struct text *t = &texts[i];
        uint64_t what = test_random(&random) % 30;
        if (what == 0 || (t->n && t->n + 64 > CONTEXT)) {
            moe_sequence_rewind(w.whole, i, 0);
            moe_sequence_rewind(w.f.session, i, 0);
            t->n = 0;
        } else if (what == 1 && t->n) { /* back, by any number */
            uint32_t n = (uint32_t)(test_random(&random) % (t->n + 1));
            t->n = rewind_both(&w, i, n);
            n_less += t->n < n;
        }
        if (t->n == 0 && w.f.session->kv_pool.n_taken[i] == 0) {
            begin_text(&w, i, t, &random);
            n_shared += t->n > 0;
        } else {
            go_on(&w, i, t, &random);
        }
        check_slots(&w.f.session->kv_pool);
    }
    print_message("# %d shared, %d went further back\n", (int)n_shared, (int)n_less);
    assert_true(n_shared > 3 && n_less > 3);
    close_model(&w);
}

/* ---- Files ---- */

static void files_hold_what_is_there(void **state)
{
    struct windows w = {0};
    struct moe_err err = {0};
    struct moe_context_file file;
    (void)state;
    open_model(&w, fixtures[0]);
    open_sessions(&w, options_of(CONTEXT, 1));
    compute(&w, 0, 0, N_IDS, BATCH);
    struct moe_context c = {.ids = {.ids = w.ids, .n = N_IDS}, .n_done = N_IDS};
    struct moe_session *from[] = {w.whole, w.f.session};
    for (int i = 0; i < 2; i++) {
        assert_ok(moe_context_write(in_dir("c"), from[i], 0, &c, &err), &err);
        open_sessions(&w, options_of(CONTEXT, 1));
        struct moe_session *to[] = {w.whole, w.f.session};
        for (int k = 0; k < 2; k++) {
            assert_ok(moe_context_open(&file, in_dir("c"), to[k], "", &err), &err);
            assert_int_equal(file.context.n_done, i ? 0 : N_IDS);
            assert_ok(moe_context_put(&file, to[k], 0, file.context.n_done, &err), &err);
            moe_context_close(&file);
        }
        compute(&w, 0, i ? 0 : N_IDS - 40, N_IDS + 90, 64);
        assert_true(moe_sequence_from(w.f.session, 0, 300) <= 300);
        from[1] = w.f.session;
    }
    close_model(&w);
}

/* ---- Sizes ---- */

static void memory_is_that_of_slots(void **state)
{
    struct windows w = {0};
    (void)state;
    open_model(&w, fixtures[0]);
    const struct moe_config *c = &w.f.model->config;
    struct moe_session_options o = options_of(CONTEXT, 1);
    uint64_t n_windowed = 0, block = 256 * c->n_kv_heads * (c->head_dim + moe_padded(c->head_dim));
    for (uint32_t i = 0; i < c->n_layers; i++)
        n_windowed += c->layers[i].windowed;
    open_sessions(&w, o);
    /* Two and a bit for 8 positions seen before, 64 to go back and 256 rows; three for marks. */
    assert_int_equal(w.f.session->kv_pool.n_slots, 6);
    uint64_t apart = moe_session_kv_bytes(c, &o), all = moe_session_bytes(c, &o);
    assert_int_equal(apart, 4 * block * (8 * (c->n_layers - n_windowed) + 6 * n_windowed));
    o.whole_windows = true;
    assert_int_equal(moe_session_kv_bytes(c, &o), 4 * block * 8 * c->n_layers);
    assert_true(moe_session_bytes(c, &o) > all);
    o.whole_windows = false;
    o.context = 1536; /* no fewer blocks than slots */
    assert_int_equal(moe_session_kv_bytes(c, &o), 4 * block * 6 * c->n_layers);
    o.context = MOST_POSITIONS;
    assert_int_equal(moe_session_kv_bytes(c, &o),
                     4 * block * (10 * (c->n_layers - n_windowed) + 6 * n_windowed));
    close_model(&w);
}

int main(void)
{
    struct moe_err err = {0};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_batch_gives_the_bits_of_whole_layers),
        cmocka_unit_test(wide_windows_take_more_slots),
        cmocka_unit_test(texts_go_back_as_far_as_is_kept),
        cmocka_unit_test(forks_share_and_part),
        cmocka_unit_test(texts_at_random_are_those_of_whole_layers),
        cmocka_unit_test(files_hold_what_is_there),
        cmocka_unit_test(memory_is_that_of_slots),
    };
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    return cmocka_run_group_tests_name("windows", tests, NULL, NULL);
}
