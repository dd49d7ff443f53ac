#define _DEFAULT_SOURCE /* mkdtemp */
/*
 * Sparse attention: the same bits for any batch, thread count and company, of equal scores the
 * first, texts that fork, share, go back and come from files, layers that share a choice, and what
 * the indexer's keys take of memory.
 */
#include <jansson.h>
#include <string.h>

#include "engine/context_file.h"
#include "model/read.h"
#include "model_fixture.h"

#include "../scratch_dir.h"

enum { N_IDS = 70, N_SEQUENCES = 3, SHORT = 8 /* of which every row sees all */ };

struct sparse {
    struct fixture f;
    uint32_t ids[N_IDS];
    uint64_t stride;
    float *want; /* [N_IDS][stride] logits after each token, computed one by one */
};

static void open_session(struct fixture *f, uint32_t context, uint16_t kind)
{
    struct moe_err err = {0};
    const struct moe_session_options options = {
        .context = context, .n_sequences = N_SEQUENCES, .batch = N_IDS, .kv_kind = kind};
    moe_session_close(f->session);
    assert_ok(moe_session_open(&f->session, f->model, f->experts, &options, &err), &err);
}

static struct moe_row row_of(const struct sparse *r, uint32_t sequence, uint32_t i)
{
    return (struct moe_row){sequence, i, r->ids[i], 0};
}

static void forward(struct fixture *f, const struct moe_row *rows, uint32_t n, float *logits)
{
    struct moe_err err = {0};
    uint32_t n_layers = f->model->config.n_layers;
    assert_ok(moe_forward(f->session, n > 1 ? MOE_PREFILL : MOE_DECODE, rows, n, 0, n_layers, NULL,
                          NULL, &err),
              &err);
    if (logits)
        assert_ok(moe_logits(f->session, 0, n, logits, &err), &err);
}

/* Computes tokens [first, end) of a sequence in passes of `batch`, with the wanted logits. */
static void compute(struct sparse *r, uint32_t sequence, uint32_t first, uint32_t end,
                    uint32_t batch)
{
    struct moe_row rows[N_IDS];
    float *logits = calloc(batch, r->stride * sizeof *logits);
    for (uint32_t at = first, n; at < end; at += n) {
        n = end - at < batch ? end - at : batch;
        for (uint32_t i = 0; i < n; i++)
            rows[i] = row_of(r, sequence, at + i);
        forward(&r->f, rows, n, logits);
        assert_memory_equal(logits, r->want + at * r->stride, n * r->stride * sizeof *logits);
    }
    free(logits);
}

static void find_wanted(struct sparse *r)
{
    for (uint32_t i = 0; i < N_IDS; i++) {
        const struct moe_row row = row_of(r, 0, i);
        forward(&r->f, &row, 1, r->want + i * r->stride);
    }
}

static int open_all(void **state, const char *checkpoint)
{
    struct moe_err err = {0};
    struct sparse *r = *state = calloc(1, sizeof *r);
    const struct moe_convert_options options = pack_options("8", 8);
    void *unused = NULL;
    assert_int_equal(make_dir(&unused), 0);
    snprintf(r->f.path, sizeof r->f.path, "%s", in_dir("x.moe"));
    make_pack(r->f.path, checkpoint, &options);
    assert_ok(moe_model_open(&r->f.model, r->f.path, 0, NULL, &err), &err);
    assert_ok(moe_experts_open_resident(&r->f.experts, r->f.model->pack, 0, NULL, NULL, &err),
              &err);
    r->stride = moe_logits_stride(&r->f.model->config);
    r->want = calloc(N_IDS, r->stride * sizeof *r->want);
    for (uint32_t i = 0; i < N_IDS; i++)
        r->ids[i] = i * 37 % 251;
    open_session(&r->f, 256, MOE_LAYOUT_F32);
    find_wanted(r);
    return 0;
}

static int open_deepseek(void **state)
{
    return open_all(state, DRAWN "/deepseek-v32-a");
}

static int open_glm(void **state)
{
    return open_all(state, DRAWN "/glm5-b");
}

static int open_minimax(void **state)
{
    return open_all(state, DRAWN "/minimax-m3-c");
}

static int open_qwen(void **state)
{
    return open_all(state, DRAWN "/qwen4-c");
}

static int open_glm_next(void **state)
{
    return open_all(state, DRAWN "/glm5.3");
}

static int close_all(void **state)
{
    struct sparse *r = *state;
    fixture_close(&r->f);
    free(r->want);
    free(r);
    return remove_dir(state);
}

/* ---- The same bits ---- */

static void any_batch_gives_the_same_bits(void **state)
{
    struct sparse *r = *state;
    static const uint32_t batches[] = {2, 5, 16, 33, N_IDS};
    static const uint16_t kinds[] = {MOE_LAYOUT_Q8, MOE_LAYOUT_Q4 | MOE_LAYOUT_F16 << 8,
                                     MOE_LAYOUT_F16, MOE_LAYOUT_F32};
    for (size_t k = 0; k < N_ITEMS(kinds); k++) {
        open_session(&r->f, 256, kinds[k]);
        find_wanted(r);
        for (int threads = 1; threads <= 3; threads += 2) {
            moe_par_set_threads(threads);
            open_session(&r->f, 256, kinds[k]);
            for (size_t i = 0; i < N_ITEMS(batches); i++)
                compute(r, 1, 0, N_IDS, batches[i]);
        }
        moe_par_set_threads(2);
        open_session(&r->f, N_IDS + 10, kinds[k]); /* blocks of another size */
        compute(r, 2, 0, N_IDS, 7);
    }
}

static void company_changes_nothing(void **state)
{
    struct sparse *r = *state;
    struct moe_row rows[11];
    float *logits = calloc(N_ITEMS(rows), r->stride * sizeof *logits);
    for (uint32_t at = 0; at + 5 <= N_IDS; at += 5) {
        for (uint32_t i = 0; i < 5; i++) { /* row by row of two, and one that begins again */
            rows[2 * i] = row_of(r, 0, at + i);
            rows[2 * i + 1] = row_of(r, 2, at + i);
        }
        rows[10] = row_of(r, 1, 0);
        forward(&r->f, rows, 11, logits);
        for (uint32_t i = 0; i < 10; i++)
            assert_memory_equal(logits + i * r->stride, r->want + (at + i / 2) * r->stride,
                                r->stride * sizeof *logits);
        assert_memory_equal(logits + 10 * r->stride, r->want, r->stride * sizeof *logits);
    }
    free(logits);
}

/* ---- Texts ---- */

static void texts_go_back_fork_and_share(void **state)
{
    struct sparse *r = *state;
    struct moe_session *s = r->f.session;
    struct moe_err err = {0};
    uint32_t n_known = 0;
    compute(r, 0, 0, 50, 50);
    for (uint32_t i = 30; i < 50; i++) { /* a draft in vain */
        struct moe_row other = row_of(r, 0, i);
        other.token = (other.token + 1) % 251;
        forward(&r->f, &other, 1, NULL);
    }
    compute(r, 0, 30, N_IDS, 3);
    moe_sequence_rewind(s, 1, 0);
    assert_ok(moe_sequence_fork(s, 0, 1, 41, &err), &err);
    compute(r, 1, 41, N_IDS, 6);
    compute(r, 0, 41, 45, 1);
    moe_sequence_rewind(s, 2, 0);
    assert_ok(moe_sequence_sync(s, 2, r->ids, N_IDS, N_IDS, &n_known, &err), &err);
    compute(r, 2, n_known, N_IDS, 9);
    moe_sequence_rewind(s, 0, 0);
    compute(r, 0, 0, 12, 5);
}

/* Also of sessions in which no row chooses. */
static void files_hold_the_indexer(void **state)
{
    struct sparse *r = *state;
    struct moe_err err = {0};
    static const uint32_t contexts[] = {SHORT, 256};
    for (size_t i = 0; i < N_ITEMS(contexts); i++) {
        uint32_t n = contexts[i] < N_IDS ? contexts[i] : 45;
        struct moe_context_file file;
        struct moe_context c = {.ids = {.ids = r->ids, .n = n}, .n_done = n};
        open_session(&r->f, contexts[i], MOE_LAYOUT_F32);
        compute(r, 0, 0, n, 11);
        assert_ok(moe_context_write(in_dir("c"), r->f.session, 0, &c, &err), &err);
        open_session(&r->f, 256, MOE_LAYOUT_F32);
        assert_ok(moe_context_open(&file, in_dir("c"), r->f.session, "", &err), &err);
        assert_ok(moe_context_put(&file, r->f.session, 0, n, &err), &err);
        moe_context_close(&file);
        compute(r, 0, n, N_IDS, 4);
    }
}

/* ---- The choice ---- */

/* Logits of the last token, when those from `from` on before it are others. */
static void logits_after(struct sparse *r, uint32_t from, uint32_t shift, float *logits)
{
    float *all = calloc(N_IDS, r->stride * sizeof *all);
    struct moe_row rows[N_IDS];
    for (uint32_t i = 0; i < N_IDS; i++) {
        rows[i] = row_of(r, 0, i);
        if (i >= from && i + 1 < N_IDS)
            rows[i].token = (rows[i].token + shift) % 251;
    }
    forward(&r->f, rows, N_IDS, all);
    memcpy(logits, all + (N_IDS - 1) * r->stride, r->stride * sizeof *logits);
    free(all);
}

/* Where all scores are equal the first positions are seen, and nothing else: not even the row's. */
static void of_equal_scores_the_first_are_chosen(void **state)
{
    struct sparse *r = *state;
    struct moe_model *m = r->f.model;
    uint32_t top = m->config.index_top;
    float *logits = calloc(3, r->stride * sizeof *logits);
    uint64_t bytes = r->stride * sizeof *logits;
    open_session(&r->f, 256, MOE_LAYOUT_F32);
    logits_after(r, top, 5, logits);
    assert_memory_not_equal(logits, r->want + (N_IDS - 1) * r->stride, bytes);
    for (uint32_t i = 0; i < m->config.n_layers; i++) {
        struct moe_mat w = m->layers[i].index_weights;
        if (w.data)
            memset((uint8_t *)w.data, 0,
                   moe_layout_panel_bytes(w.layout, w.cols) * ((w.rows + 15) / 16));
    }
    logits_after(r, N_IDS, 0, logits);
    logits_after(r, top, 5, logits + r->stride);
    logits_after(r, top - 1, 5, logits + 2 * r->stride);
    assert_memory_equal(logits, logits + r->stride, bytes);
    assert_memory_not_equal(logits, logits + 2 * r->stride, bytes);
    free(logits);
}

static void a_pass_begins_where_positions_are_chosen(void **state)
{
    struct sparse *r = *state;
    const struct moe_config *c = &r->f.model->config;
    struct moe_err err = {0};
    struct moe_row rows[30], later;
    float *hidden = calloc(30, c->hidden * sizeof *hidden);
    float *again = calloc(30, c->hidden * sizeof *again);
    uint32_t layer = 1, n = 30;
    while (!c->layers[layer].shares_choice)
        layer++;
    assert_int_equal(moe_config_beginning(c, layer), layer - 1);
    for (uint32_t i = 0; i < n; i++)
        rows[i] = row_of(r, 0, i);
    later = row_of(r, 0, n);
    open_session(&r->f, 256, MOE_LAYOUT_F32);
    assert_ok(moe_forward(r->f.session, MOE_PREFILL, rows, n, 0, layer, NULL, hidden, &err), &err);
    for (int i = 0; i < 2; i++) /* the choice of the pass before */
        assert_ok(moe_forward(r->f.session, MOE_PREFILL, rows, n, layer, c->n_layers, hidden, again,
                              &err),
                  &err);
    assert_fails(
        moe_forward(r->f.session, MOE_DECODE, &later, 1, layer, c->n_layers, hidden, NULL, &err),
        MOE_ERR_USAGE, "where the pass must begin", &err);
    free(hidden);
    free(again);
}

/* ---- Memory ---- */

static void keys_are_booked(void **state)
{
    struct sparse *r = *state;
    const struct moe_config *c = &r->f.model->config;
    struct moe_session_options o = {.context = 256, .n_sequences = 1, .batch = 4};
    /* "FSSFS", or each of 3 layers, or for blocks the first and the last. */
    uint64_t indexers = c->n_layers == 5 || c->index_block ? 2 : 3;
    uint64_t of_layer = c->index_block ? 2 * (16 + 16) : 12 + 32 + 32;
    uint64_t position = c->n_layers * of_layer + indexers * c->index_dim;
    assert_int_equal(moe_config_indexers(c, c->n_layers), indexers);
    assert_int_equal(moe_session_kv_bytes(c, &o), 256 * position * 4);
    uint64_t before = moe_session_bytes(c, &o), more = 256 * position * 4;
    o.n_sequences = 2;
    assert_in_range(moe_session_bytes(c, &o) - before, more, more + 8192);
    o.kv_kind = MOE_LAYOUT_F16;
    assert_int_equal(moe_session_kv_bytes(c, &o), 2 * 256 * position * 2);
}

/* ---- Descriptions ---- */

static int read_changed(const char *path, const char *more, struct moe_config *c,
                        struct moe_err *err)
{
    json_error_t error;
    json_t *json = json_load_file(path, 0, &error);
    json_t *changes = json_loads(more, 0, &error), *text = json_object_get(json, "text_config");
    assert_non_null(changes);
    json_object_update_recursive(text ? text : json, changes);
    int status = moe_config_read_hf_json(c, "x", json, err);
    json_decref(changes);
    json_decref(json);
    return status;
}

static int read_with(const char *more, struct moe_config *c, struct moe_err *err)
{
    return read_changed("tests/fixtures/glm5-b/config.json", more, c, err);
}

static void layers_share_as_is_said(void **state)
{
    static const struct {
        const char *changes, *shares;
    } cases[] = {
        {"{}", "FSSFS"},
        {"{\"index_topk_freq\": 1}", "FFFFF"},
        {"{\"index_skip_topk_offset\": 3, \"index_topk_freq\": 2}", "FFFSF"},
        {"{\"index_topk_pattern\": \"FFSFS\"}", "FFSFS"},
        {"{\"indexer_types\": [\"full\", \"shared\", \"full\", \"full\", \"shared\"]}", "FSFFS"},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_err err = {0};
        struct moe_config c, again;
        struct moe_buf text = {0};
        assert_ok(read_with(cases[i].changes, &c, &err), &err);
        for (uint32_t layer = 0; layer < c.n_layers; layer++)
            assert_int_equal(c.layers[layer].shares_choice, cases[i].shares[layer] == 'S');
        moe_config_write(&c, &text);
        assert_ok(moe_config_read(&again, "y", text.data, text.size, &err), &err);
        assert_memory_equal(c.layers, again.layers, sizeof c.layers);
        assert_int_equal(again.index_top, c.index_top);
        moe_buf_release(&text);
        assert_fails(moe_config_check_gpu(&c, "z", &err), MOE_ERR_UNSUPPORTED,
                     "a GPU does not compute", &err);
    }
}

static void what_is_not_computed_is_refused(void **state)
{
    static const struct {
        const char *changes;
        int status;
        const char *words;
    } cases[] = {
        {"{\"index_topk_pattern\": \"SFFFF\"}", MOE_ERR_FORMAT, "first layer has no choice"},
        {"{\"index_topk_pattern\": \"FSS\"}", MOE_ERR_FORMAT, "5 letters F or S"},
        {"{\"indexer_types\": [\"full\"]}", MOE_ERR_FORMAT, "'indexer_types' must be a list of 5"},
        {"{\"index_topk_pattern\": [1, 2, 3, 4, 5]}", MOE_ERR_UNSUPPORTED, "item 0 is '?'"},
        {"{\"indexer_rope_interleave\": false}", MOE_ERR_UNSUPPORTED, "indexer_rope_interleave"},
        {"{\"layer_types\": [\"full_attention\"]}", MOE_ERR_UNSUPPORTED, "'full_attention'"},
        {"{\"index_topk\": 0}", MOE_ERR_FORMAT, "index_topk"},
        {"{\"index_head_dim\": 10}", MOE_ERR_FORMAT, "an indexer's head is 10, expected 12"},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_err err = {0};
        struct moe_config c;
        assert_fails(read_with(cases[i].changes, &c, &err), cases[i].status, cases[i].words, &err);
    }
}

#define SPARSE(setting) "{\"sparse_attention_config\": {" setting "}}"

static void blocks_are_chosen_as_is_said(void **state)
{
    static const struct {
        const char *changes, *all; /* which layers see all */
        uint32_t top;              /* 0: there is no indexer */
    } cases[] = {
        {"{}", "010", 12},
        {SPARSE("\"sparse_attention_freq\": [0, 1, 1], \"sparse_topk_blocks\": 5"), "100", 15},
        {SPARSE("\"sparse_attention_freq\": [0, 0, 0]"), "000", 0},
        {"{\"layer_types\": [\"full_attention\", \"full_attention\", \"minimax_m3_sparse\"]}",
         "110", 12},
    };
    static const struct {
        const char *changes;
        int status;
        const char *words;
    } refused[] = {
        {SPARSE("\"sparse_num_index_heads\": 3"), MOE_ERR_UNSUPPORTED,
         "a head for each head of keys"},
        {SPARSE("\"sparse_local_block\": 0"), MOE_ERR_FORMAT,
         "last blocks that are always chosen is 0"},
        {SPARSE("\"sparse_local_block\": 5"), MOE_ERR_FORMAT,
         "number of last blocks that are always chosen is 5"},
        {SPARSE("\"sparse_index_dim\": 6"), MOE_ERR_FORMAT, "the width of an indexer's head"},
        {SPARSE("\"sparse_attention_freq\": [1]"), MOE_ERR_FORMAT, "must be a list of 3 layers"},
        {"{\"layer_types\": [\"sliding\", \"sliding\", \"sliding\"]}", MOE_ERR_UNSUPPORTED,
         "'sliding'"},
    };
    const char *path = "tests/fixtures/minimax-m3-c/config.json";
    struct moe_err err = {0};
    struct moe_config c, again;
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_buf text = {0};
        assert_ok(read_changed(path, cases[i].changes, &c, &err), &err);
        assert_int_equal(c.index_top, cases[i].top);
        for (uint32_t layer = 0; layer < c.n_layers; layer++)
            assert_int_equal(c.layers[layer].sees_all, cases[i].all[layer] == '1');
        moe_config_write(&c, &text);
        assert_ok(moe_config_read(&again, "y", text.data, text.size, &err), &err);
        assert_memory_equal(c.layers, again.layers, sizeof c.layers);
        assert_true(again.index_block == c.index_block && again.index_local == c.index_local);
        moe_buf_release(&text);
    }
    for (size_t i = 0; i < N_ITEMS(refused); i++) {
        memset(&err, 0, sizeof err);
        assert_fails(read_changed(path, refused[i].changes, &c, &err), refused[i].status,
                     refused[i].words, &err);
    }
    memset(&err, 0, sizeof err);
    assert_fails(
        read_changed("tests/fixtures/qwen4-c/config.json", "{\"indexer_budget\": 3}", &c, &err),
        MOE_ERR_FORMAT, "budget of 3 positions is less than its blocks of 4", &err);
}

int main(void)
{
    struct moe_err err = {0};
    const struct CMUnitTest minimax[] = {
        cmocka_unit_test(any_batch_gives_the_same_bits),
        cmocka_unit_test(company_changes_nothing),
        cmocka_unit_test(texts_go_back_fork_and_share),
        cmocka_unit_test(files_hold_the_indexer),
        cmocka_unit_test(keys_are_booked),
    };
    const struct CMUnitTest means[] = {
        cmocka_unit_test(any_batch_gives_the_same_bits),
        cmocka_unit_test(company_changes_nothing),
    };
    const struct CMUnitTest deepseek[] = {
        cmocka_unit_test(any_batch_gives_the_same_bits),
        cmocka_unit_test(company_changes_nothing),
        cmocka_unit_test(texts_go_back_fork_and_share),
        cmocka_unit_test(files_hold_the_indexer),
        cmocka_unit_test(keys_are_booked),
        cmocka_unit_test(of_equal_scores_the_first_are_chosen),
    };
    const struct CMUnitTest glm[] = {
        cmocka_unit_test(any_batch_gives_the_same_bits),
        cmocka_unit_test(company_changes_nothing),
        cmocka_unit_test(texts_go_back_fork_and_share),
        cmocka_unit_test(files_hold_the_indexer),
        cmocka_unit_test(keys_are_booked),
        cmocka_unit_test(a_pass_begins_where_positions_are_chosen),
        cmocka_unit_test(of_equal_scores_the_first_are_chosen),
    };
    const struct CMUnitTest descriptions[] = {
        cmocka_unit_test(layers_share_as_is_said),
        cmocka_unit_test(what_is_not_computed_is_refused),
        cmocka_unit_test(blocks_are_chosen_as_is_said),
    };
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    return cmocka_run_group_tests_name("sparse: DeepSeek-V3.2", deepseek, open_deepseek,
                                       close_all) +
           cmocka_run_group_tests_name("sparse: GLM-5, sharing", glm, open_glm, close_all) +
           cmocka_run_group_tests_name("sparse: MiniMax-M3, blocks", minimax, open_minimax,
                                       close_all) +
           cmocka_run_group_tests_name("sparse: Qwen4, means of blocks", means, open_qwen,
                                       close_all) +
           cmocka_run_group_tests_name("sparse: GLM-5.3, pools", means, open_glm_next, close_all) +
           cmocka_run_group_tests_name("sparse: descriptions", descriptions, NULL, NULL);
}
