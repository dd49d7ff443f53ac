/*
 * Beam search: the texts and scores of transformers (tests/fixtures/make_beams.py); all texts of a
 * tiny vocabulary tried, where beams are as many; a plain search that computes every text anew, on
 * models with every switch; and what is left of it in the session.
 */
#include <jansson.h>
#include <math.h>

#include "random_model.h"

#include "engine/beams.h"
#include "engine/conversation.h"
#include "model_fixture.h"

static int open_all(void **state)
{
    struct moe_err err = {0};
    (void)state;
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    return 0;
}

static struct moe_session *open_session(const struct fixture *f, uint32_t context, uint32_t n,
                                        uint32_t batch)
{
    struct moe_err err = {0};
    struct moe_session *s;
    const struct moe_session_options o = {.context = context, .n_sequences = n, .batch = batch};
    assert_ok(moe_session_open(&s, f->model, f->experts, &o, &err), &err);
    return s;
}

static void open_pack(struct fixture *f)
{
    struct moe_err err = {0};
    assert_ok(moe_model_open(&f->model, f->path, 0, NULL, &err), &err);
    assert_ok(moe_experts_open_resident(&f->experts, f->model->pack, 0, NULL, NULL, &err), &err);
}

/* ---- Searching ---- */

enum { LAST_SEED = SANITIZED ? 116 : 124 };
enum { MOST = 40 };

struct found {
    uint32_t tokens[MOST], n; /* without one that ended it by itself */
    double score;
    enum moe_stop_reason why;
    uint32_t n_kept; /* positions of the session's text */
};

static struct found search(struct moe_session *s, const uint32_t *prompt, uint32_t n_prompt,
                           const struct moe_generate_options *o)
{
    struct moe_err err = {0};
    struct moe_ids ids = {0};
    struct found found = {.why = MOE_STOP_USER};
    for (uint32_t i = 0; i < n_prompt; i++)
        assert_ok(moe_ids_push(&ids, prompt[i], &err), &err);
    assert_ok(moe_generate(s, NULL, &ids, o, &found.why, &err), &err);
    found.n_kept = moe_sequence_length(s, 0);
    found.n = (uint32_t)ids.n - n_prompt;
    assert_true(found.n <= MOST);
    memcpy(found.tokens, ids.ids + n_prompt, found.n * sizeof *ids.ids);
    found.score = s->stats.beam_score;
    assert_int_equal(s->stats.beams, o->beams.n);
    moe_ids_release(&ids);
    for (uint32_t i = 1; i < s->n_sequences; i++)
        assert_int_equal(s->kv_pool.n_taken[i], 0);
    assert_int_equal(s->kv_pool.n_free + s->kv_pool.n_taken[0], s->kv_pool.n_blocks);
    return found;
}

static void set_eos(struct moe_model *m, const uint32_t *ids, uint32_t n)
{
    m->config.n_eos = n;
    memcpy(m->config.eos, ids, n * sizeof *ids);
}

/* ---- The reference ---- */

static uint32_t read_ids(const json_t *list, uint32_t *ids)
{
    size_t n = json_array_size(list);
    for (size_t i = 0; i < n; i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return (uint32_t)n;
}

static void check_case(struct fixture *f, const json_t *c)
{
    static const char *const early[] = {"no", "yes", "never"};
    const char *says = json_string_value(json_object_get(c, "early_stopping"));
    uint32_t prompt[64], eos[8], text[MOST];
    uint32_t n_prompt = read_ids(json_object_get(c, "ids"), prompt);
    uint32_t n = read_ids(json_object_get(c, "text"), text);
    struct moe_generate_options o = {
        .beams = {.n = (uint32_t)json_integer_value(json_object_get(c, "beams")),
                  .length_penalty = json_number_value(json_object_get(c, "length_penalty"))},
        .max_tokens = (uint64_t)json_integer_value(json_object_get(c, "tokens")),
    };
    while (strcmp(early[o.beams.early], says) != 0)
        o.beams.early++;
    set_eos(f->model, eos, read_ids(json_object_get(c, "eos"), eos));
    struct moe_session *s = open_session(f, 128, o.beams.n, 8);
    const struct found found = search(s, prompt, n_prompt, &o);
    bool ended = moe_config_is_eos(&f->model->config, text[n - 1]);
    assert_int_equal(found.n, n - ended);
    assert_memory_equal(found.tokens, text, found.n * sizeof *text);
    assert_int_equal(found.why, ended ? MOE_STOP_EOS : MOE_STOP_LENGTH);
    double score = json_number_value(json_object_get(c, "score"));
    if (fabs(found.score - score) > 1e-3 * fmax(1, fabs(score)))
        fail_msg("a score of %g instead of %g", found.score, score);
    assert_int_equal(found.n_kept, n_prompt);
    moe_session_close(s);
}

static void finds_the_texts_of_transformers(void **state)
{
    json_error_t error;
    json_t *cases = json_load_file("tests/fixtures/beams.json", 0, &error), *c;
    const char *open = "";
    struct fixture f = {.path = ""};
    size_t i;
    (void)state;
    assert_true(json_array_size(cases) > 30);
    json_array_foreach(cases, i, c)
    {
        const char *checkpoint = json_string_value(json_object_get(c, "checkpoint"));
        int bits = (int)json_integer_value(json_object_get(c, "bits"));
        char experts[16], path[100];
        if (strcmp(checkpoint, open) != 0) {
            if (*open)
                fixture_close(&f);
            f = (struct fixture){.path = ""};
            open = checkpoint;
            const bool bundled = strcmp(open, "tiny-moe") == 0;
            snprintf(path, sizeof path, "%s/%s", bundled ? BUNDLED : DRAWN, open);
            snprintf(experts, sizeof experts, "%d", bits);
            const struct moe_convert_options options = pack_options(experts, bits);
            snprintf(f.path, sizeof f.path, "/tmp/moe-beams-%d.moe", (int)getpid());
            make_pack(f.path, path, &options);
            open_pack(&f);
        }
        check_case(&f, c);
    }
    fixture_close(&f);
    json_decref(cases);
}

/* ---- Every text computed anew ---- */

struct text {
    uint32_t tokens[MOST], n;
    double score;
};

struct plain {
    struct moe_session *session; /* of one sequence */
    const uint32_t *prompt;
    uint32_t n_prompt;
    const struct moe_generate_options *options;
    double *log_p; /* [vocab] */
};

/* Log probabilities of what follows a text. */
static void follow(struct plain *p, const struct text *t)
{
    struct moe_err err = {0};
    struct moe_session *s = p->session;
    uint32_t n = p->n_prompt + t->n, vocab = s->model->config.vocab;
    struct moe_row *rows = calloc(n, sizeof *rows);
    float *logits = calloc(moe_logits_stride(&s->model->config), sizeof *logits);
    for (uint32_t i = 0; i < n; i++)
        rows[i] =
            (struct moe_row){0, i, i < p->n_prompt ? p->prompt[i] : t->tokens[i - p->n_prompt], n};
    assert_ok(moe_forward(s, MOE_PREFILL, rows, n, 0, s->model->config.n_layers, NULL, NULL, &err),
              &err);
    assert_ok(moe_logits(s, n - 1, 1, logits, &err), &err);
    double sum = 0, largest = -INFINITY;
    for (uint32_t i = 0; i < vocab; i++)
        largest = fmax(largest, logits[i]);
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp(logits[i] - largest);
    for (uint32_t i = 0; i < vocab; i++)
        p->log_p[i] = logits[i] - largest - log(sum);
    free(rows);
    free(logits);
}

static double by_length(const struct plain *p, double score, uint32_t n)
{
    return score / pow(n, p->options->beams.length_penalty);
}

/* The best of all texts that go on from `t`. */
static void try_all(struct plain *p, const struct text *t, struct text *best)
{
    const struct moe_config *c = &p->session->model->config;
    double *log_p = calloc(c->vocab, sizeof *log_p);
    follow(p, t);
    memcpy(log_p, p->log_p, c->vocab * sizeof *log_p);
    for (uint32_t id = 0; id < c->vocab; id++) {
        struct text longer = *t;
        longer.tokens[longer.n++] = id;
        longer.score += log_p[id];
        double score = by_length(p, longer.score, longer.n);
        if (!moe_config_is_eos(c, id) && longer.n < p->options->max_tokens) {
            try_all(p, &longer, best);
        } else if (score > best->score) {
            *best = longer;
            best->score = score;
        }
    }
    free(log_p);
}

static int by_score(const void *a, const void *b)
{
    double x = ((const struct text *)a)->score, y = ((const struct text *)b)->score;
    return (x < y) - (x > y);
}

/* The search as transformers describes it, over whole texts. */
static struct text plain_search(struct plain *p)
{
    const struct moe_config *c = &p->session->model->config;
    const struct moe_beam_options *o = &p->options->beams;
    uint32_t n_done = 0, n_live = 1;
    uint64_t most = p->options->max_tokens;
    struct text *live = calloc(o->n, sizeof *live), *done = calloc(2 * o->n + 1, sizeof *done);
    struct text *all = calloc((uint64_t)o->n * c->vocab, sizeof *all), best;
    for (uint32_t step = 1;; step++) {
        uint32_t n = 0, n_next = 0, kept = (c->n_eos > 1 ? 1 + c->n_eos : 2) * o->n;
        for (uint32_t i = 0; i < n_live; i++) {
            follow(p, &live[i]);
            for (uint32_t id = 0; id < c->vocab; id++, n++) {
                all[n] = live[i];
                all[n].tokens[all[n].n++] = id;
                all[n].score += p->log_p[id];
            }
        }
        qsort(all, n, sizeof *all, by_score);
        for (uint32_t i = 0; i < n && i < kept; i++) {
            bool ends = step == most || moe_config_is_eos(c, all[i].tokens[step - 1]);
            if (ends && i < o->n) {
                done[n_done] = all[i];
                done[n_done].score = by_length(p, all[i].score, step);
                n_done++;
            } else if (!ends && n_next < o->n) {
                live[n_next++] = all[i];
            }
        }
        qsort(done, n_done, sizeof *done, by_score);
        n_done = n_done < o->n ? n_done : o->n;
        n_live = n_next;
        bool longest = o->early == MOE_EARLY_NEVER && o->length_penalty > 0;
        if (n_live == 0 ||
            (n_done == o->n && (o->early == MOE_EARLY_YES ||
                                by_length(p, live[0].score, longest ? (uint32_t)most : step) <=
                                    done[n_done - 1].score)))
            break;
    }
    best = done[0];
    free(live);
    free(done);
    free(all);
    return best;
}

static void compare(const struct found *found, const struct text *want, const struct moe_config *c)
{
    uint32_t n = want->n - moe_config_is_eos(c, want->tokens[want->n - 1]);
    assert_int_equal(found->n, n);
    assert_memory_equal(found->tokens, want->tokens, n * sizeof *want->tokens);
    assert_true(fabs(found->score - want->score) < 1e-9 * fmax(1, fabs(want->score)));
}

static void open_random(struct fixture *f, uint64_t seed, struct random_model *m)
{
    random_model_draw(m, seed);
    *f = (struct fixture){.session = NULL};
    snprintf(f->path, sizeof f->path, "/tmp/moe-beams-%d.moe", (int)getpid());
    random_model_write(m, 32, f->path);
    open_pack(f);
}

static void as_many_beams_as_texts_find_the_best_of_all(void **state)
{
    uint64_t random = 5;
    uint32_t n_tried = 0;
    (void)state;
    for (uint64_t seed = 1; n_tried < 3; seed++) {
        struct fixture f;
        struct random_model m;
        open_random(&f, seed, &m);
        if (m.c.vocab < 24) {
            uint32_t vocab = m.c.vocab, prompt[] = {1, 2, 3};
            uint32_t eos = random_below(&random, vocab);
            const double penalties[] = {1, 0, -1};
            const struct moe_generate_options o = {
                .beams = {vocab * vocab, penalties[n_tried], MOE_EARLY_NEVER}, .max_tokens = 3};
            set_eos(f.model, &eos, 1);
            struct moe_session *s = open_session(&f, 16, o.beams.n, 64);
            struct plain p = {open_session(&f, 16, 1, 16), prompt, 3, &o,
                              calloc(vocab, sizeof *p.log_p)};
            struct text none = {.n = 0}, best = {.score = -INFINITY};
            try_all(&p, &none, &best);
            const struct found found = search(s, prompt, 3, &o);
            compare(&found, &best, &f.model->config);
            moe_session_close(p.session);
            moe_session_close(s);
            free(p.log_p);
            n_tried++;
        }
        random_model_free(&m);
        fixture_close(&f);
    }
}

/* Texts grow past a block of the cache, and with LongRoPE past the original context. */
static void finds_what_a_search_over_whole_texts_finds(void **state)
{
    enum { CONTEXT = 64 };
    uint64_t random = 6;
    uint32_t n_far = 0, n_ended = 0;
    (void)state;
    for (uint64_t seed = 100; seed < LAST_SEED; seed++) {
        struct fixture f;
        struct random_model m;
        uint32_t prompt[CONTEXT], eos[2], n_prompt = 1 + random_below(&random, 30);
        open_random(&f, seed, &m);
        if (m.c.rope_original && n_prompt < m.c.rope_original && m.c.rope_original < CONTEXT / 2)
            n_prompt = m.c.rope_original - random_below(&random, 3);
        const struct moe_generate_options o = {
            .beams = {2 + random_below(&random, 5), (double)random_below(&random, 5) / 2 - 0.5,
                      (enum moe_early_stopping)random_below(&random, 3)},
            .max_tokens = 1 + random_below(&random, 24)};
        for (uint32_t i = 0; i < n_prompt; i++)
            prompt[i] = random_below(&random, m.c.vocab);
        for (int i = 0; i < 2; i++)
            eos[i] = random_below(&random, m.c.vocab);
        set_eos(f.model, eos, 1 + random_below(&random, 2));
        struct moe_session *s = open_session(&f, CONTEXT, o.beams.n, 7);
        struct plain p = {open_session(&f, CONTEXT, 1, CONTEXT), prompt, n_prompt, &o,
                          calloc(m.c.vocab, sizeof *p.log_p)};
        const struct text want = plain_search(&p);
        const struct found found = search(s, prompt, n_prompt, &o);
        compare(&found, &want, &f.model->config);
        n_ended += found.why == MOE_STOP_EOS;
        n_far += m.c.rope_original && n_prompt <= m.c.rope_original &&
                 n_prompt + found.n > m.c.rope_original;
        moe_session_close(p.session);
        moe_session_close(s);
        free(p.log_p);
        random_model_free(&m);
        fixture_close(&f);
    }
    assert_true(n_ended > 3);
    assert_true(n_far > 0);
}

/* ---- The bundled model ---- */

static void forks_across_blocks(void **state)
{
    enum { N = 253, BLOCK = 256 }; /* the plain search computes all of it for each token */
    struct fixture f;
    uint32_t prompt[N];
    uint64_t random = 7;
    const struct moe_generate_options o = {.beams = {4, 1, MOE_EARLY_NO}, .max_tokens = 6};
    (void)state;
    fixture_open(&f, 4, 1, 0);
    for (int i = 0; i < N; i++)
        prompt[i] = random_below(&random, 4000);
    struct moe_session *s = open_session(&f, 512, 4, 64);
    assert_int_equal(s->kv_pool.block_positions, BLOCK);
    struct plain p = {open_session(&f, 512, 1, 512), prompt, N, &o, calloc(4096, sizeof *p.log_p)};
    const struct text want = plain_search(&p);
    const struct found found = search(s, prompt, N, &o);
    compare(&found, &want, &f.model->config);
    assert_int_equal(found.n_kept, N);
    moe_session_close(p.session);
    moe_session_close(s);
    free(p.log_p);
    fixture_close(&f);
}

static int hear(void *ctx, const char *bytes, uint64_t n)
{
    moe_buf_append(ctx, bytes, n);
    return MOE_OK;
}

/* Asks twice and continues: each as in a session of its own. */
static void a_conversation_goes_on_from_the_best_text(void **state)
{
    struct fixture f;
    struct moe_err err = {0};
    struct moe_buf first = {0}, second = {0}, whole = {0};
    enum moe_stop_reason why;
    struct moe_generate_options o = {
        .beams = {3, 1, MOE_EARLY_NO}, .max_tokens = 8, .text = hear, .ctx = &first};
    struct moe_conversation talk;
    (void)state;
    fixture_open(&f, 4, 1, 0);
    struct moe_session *s = open_session(&f, 256, 3, 16);
    assert_ok(moe_conversation_init(&talk, s, NULL, &err), &err);
    assert_ok(moe_conversation_ask(&talk, "Once upon a time", NULL, &o, &why, &err), &err);
    assert_true(first.size > 0);
    uint64_t n_asked = talk.history.n;
    o.ctx = &second;
    assert_ok(moe_conversation_continue(&talk, NULL, &o, &why, &err), &err);
    assert_int_equal(talk.history.n, n_asked + 8);
    /* The same prompt whole, in a new session. */
    struct moe_session *other = open_session(&f, 256, 3, 16);
    struct moe_ids ids = {0};
    for (uint64_t i = 0; i < n_asked; i++)
        assert_ok(moe_ids_push(&ids, talk.history.ids[i], &err), &err);
    o.ctx = &whole;
    assert_ok(moe_generate(other, NULL, &ids, &o, &why, &err), &err);
    assert_int_equal(whole.size, second.size);
    assert_memory_equal(whole.data, second.data, whole.size);
    moe_ids_release(&ids);
    moe_session_close(other);
    moe_conversation_release(&talk);
    moe_session_close(s);
    moe_buf_release(&first);
    moe_buf_release(&second);
    moe_buf_release(&whole);
    fixture_close(&f);
}

/* A stop text that the unstopped answer has ends the search, and is not shown. */
static void stop_texts_end_texts(void **state)
{
    struct fixture f;
    struct moe_err err = {0};
    struct moe_buf text = {0};
    enum moe_stop_reason why;
    const char *stops[] = {"", NULL, NULL};
    struct moe_generate_options o = {.beams = {3, 1, MOE_EARLY_YES},
                                     .max_tokens = 16,
                                     .text = hear,
                                     .ctx = &text,
                                     .stop_texts = stops};
    struct moe_conversation talk;
    char word[3] = "";
    (void)state;
    fixture_open(&f, 4, 1, 0);
    struct moe_session *s = open_session(&f, 256, 3, 16);
    assert_ok(moe_conversation_init(&talk, s, NULL, &err), &err);
    assert_ok(moe_conversation_ask(&talk, "Once upon a time", NULL, &o, &why, &err), &err);
    assert_true(text.size > 12);
    memcpy(word, text.data + 8, 2); /* may lie across tokens */
    stops[1] = word;
    moe_buf_clear(&text);
    assert_ok(moe_conversation_ask(&talk, "Once upon a time", NULL, &o, &why, &err), &err);
    moe_buf_u8(&text, 0);
    assert_null(strstr((const char *)text.data, word));
    moe_conversation_release(&talk);
    moe_session_close(s);
    moe_buf_release(&text);
    fixture_close(&f);
}

static void is_refused_without_room(void **state)
{
    struct fixture f;
    struct moe_err err = {0};
    enum moe_stop_reason why;
    struct moe_ids ids = {0};
    const struct moe_generate_options o = {.beams = {3, 1, MOE_EARLY_NO}, .max_tokens = 4};
    (void)state;
    fixture_open(&f, 4, 2, 16);
    assert_ok(moe_ids_push(&ids, 5, &err), &err);
    assert_fails(moe_generate(f.session, NULL, &ids, &o, &why, &err), MOE_ERR_USAGE,
                 "3 beams need as many sequences, and there are 2", &err);
    moe_ids_release(&ids);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_the_texts_of_transformers),
        cmocka_unit_test(as_many_beams_as_texts_find_the_best_of_all),
        cmocka_unit_test(finds_what_a_search_over_whole_texts_finds),
        cmocka_unit_test(forks_across_blocks),
        cmocka_unit_test(a_conversation_goes_on_from_the_best_text),
        cmocka_unit_test(stop_texts_end_texts),
        cmocka_unit_test(is_refused_without_room),
    };
    return cmocka_run_group_tests(tests, open_all, NULL);
}
