/*
 * Routing statistics: a file; two, with a form feed between them, which are merged; where the input
 * begins with a byte below 8, documents to be counted; where with 8, keys for a table of paths.
 * What is accepted is used for every figure, and comes back the same after writing and reading.
 * What is counted adds up: two shards give the file of one run, and what belongs to different runs
 * is refused or added. A table keeps what a plain list of all keys says.
 */
/* Readers: profile/statistics*.c profile/origins.c */
#define _GNU_SOURCE
#include "mutate.h"
#include "profile/statistics.h"
#include "profile/statistics_figures.h"
#include "show/explain.h"
#include "show/show.h"

static void use(const struct moe_statistics *s)
{
    struct moe_err err;
    struct moe_buf text = {0};
    float *scores = malloc(s->shape.n_experts * sizeof *scores);
    const uint32_t before[MOE_STATISTICS_MAX_TOP_K] = {0};
    if (!scores ||
        moe_show_statistics(s, (struct moe_screen){200, true, true}, &text, &err) != MOE_OK ||
        moe_explain_statistics(s, MOE_PLAIN_SCREEN, &text, &text, &err) != MOE_OK)
        abort();
    moe_buf_clear(&text);
    if (moe_show_statistics_json(s, &text, &err) != MOE_OK)
        abort();
    fuzz_check_json(&text);
    moe_buf_clear(&text);
    if (moe_explain_statistics_json(s, &text, &err) != MOE_OK)
        abort();
    fuzz_check_json(&text);
    moe_statistics_placement(s);
    moe_statistics_bytes(&s->shape);
    if (moe_statistics_paths_bytes(&s->shape, 7) > moe_statistics_paths_bytes_with(s, 7))
        abort();
    moe_statistics_check_finished(s, &err);
    for (uint32_t layer = 1; layer < s->shape.n_layers; layer++) {
        moe_path_scores(s, MOE_PREDICT_PATH, layer, 0, before, scores);
        moe_path_scores(s, MOE_PREDICT_PATH_RANK1, layer, 0, before, scores);
    }
    free(scores);
    moe_buf_release(&text);
}

static void write_text(const struct moe_statistics *s, struct moe_buf *out)
{
    struct moe_err err;
    if (moe_statistics_write(s, out, &err) != MOE_OK)
        abort();
}

/* Origins are those of their copy, whatever it is called. */
static void check_origins(const struct moe_statistics *s)
{
    struct moe_err err;
    struct moe_origins copy;
    struct moe_buf text = {0};
    if (fuzz_must(FUZZ_TRY(moe_origins_copy(&copy, &s->origins, &err)))) {
        moe_origins_name(&copy, "copy");
        if (moe_origins_problem(&copy) || moe_origins_difference(&copy, &s->origins) ||
            moe_origins_documents(&copy) != moe_origins_documents(&s->origins) ||
            (copy.n && !moe_origins_find(&copy, &s->origins.items[s->origins.n - 1])))
            abort();
        moe_origins_print(&copy, &text);
        if (copy.n && moe_origins_join(&copy, &s->origins, &err) != MOE_ERR_USAGE)
            abort(); /* would count twice */
    }
    moe_buf_release(&text);
    moe_origins_release(&copy);
}

static void check_round_trip(const struct moe_statistics *s)
{
    struct moe_err err;
    struct moe_buf first = {0}, second = {0};
    struct moe_statistics *again;
    bool written = fuzz_must(FUZZ_TRY(moe_statistics_write(s, &first, &err)));
    if (written &&
        fuzz_must(FUZZ_TRY(moe_statistics_read(&again, fuzz_file(first.data, first.size), &err)))) {
        write_text(again, &second);
        if (moe_statistics_fingerprint(again) != moe_statistics_fingerprint(s))
            abort();
        fuzz_must(FUZZ_TRY(moe_statistics_add(again, s, &err)));
        moe_statistics_free(again);
        fuzz_same(&first, &second);
    }
    moe_buf_release(&first);
    check_origins(s);
}

static void read_file(const uint8_t *data, size_t n)
{
    struct moe_err err;
    struct moe_statistics *s;
    if (FUZZ_TRY(moe_statistics_read(&s, fuzz_file(data, n), &err)) != MOE_OK)
        return;
    if (n % 8 == 4) /* showing takes longest */
        use(s);
    check_round_trip(s);
    moe_statistics_free(s);
}

/* The sum knows whose it is as both say it. */
static void merge_two(const uint8_t *data, size_t n, const uint8_t *other, size_t n_other)
{
    struct moe_err err;
    struct moe_statistics *sum, *part;
    if (FUZZ_TRY(moe_statistics_read(&sum, fuzz_file(data, n), &err)) != MOE_OK)
        return;
    if (FUZZ_TRY(moe_statistics_read(&part, fuzz_file(other, n_other), &err)) == MOE_OK) {
        uint64_t documents = moe_origins_documents(&sum->origins);
        moe_origins_name(&part->origins, "part");
        moe_origins_difference(&sum->origins, &part->origins);
        if (FUZZ_TRY(moe_statistics_merge(sum, part, &err)) == MOE_OK) {
            documents += moe_origins_documents(&part->origins);
            if (sum->origins.n && moe_origins_documents(&sum->origins) != documents)
                abort();
            moe_origins_check(&sum->origins, true, &err);
            if (FUZZ_TRY(moe_origins_check(&sum->origins, false, &err)) == MOE_OK)
                check_round_trip(sum);
        }
        moe_statistics_free(part);
    }
    moe_statistics_free(sum);
}

/* ---- Tables of paths ---- */

enum { MOST_KEYS = 512 };

/* Adds to a list that rises, too. */
static uint64_t add_to_list(struct moe_path_count *list, uint64_t n, uint64_t key, uint64_t times)
{
    uint64_t at = 0;
    while (at < n && list[at].key < key)
        at++;
    if (at == n || list[at].key != key) {
        memmove(list + at + 1, list + at, (n - at) * sizeof *list);
        list[at] = (struct moe_path_count){key, 0};
        n++;
    }
    list[at].n += times;
    return n;
}

static void check_table(const struct moe_path_table *table, uint64_t limit,
                        const struct moe_path_count *list, uint64_t n)
{
    struct moe_err err;
    uint64_t n_kept, most = limit && limit < n ? limit : n, used = moe_path_table_used(table);
    fuzz_try_begin();
    struct moe_path_count *kept = moe_path_table_sorted(table, &n_kept, &err);
    fuzz_try_end(MOE_OK);
    if (!kept && !fuzz_failed)
        abort();
    if (kept && (n_kept != most || memcmp(kept, list, most * sizeof *list) != 0 || used < most ||
                 (limit && used > 2 * limit) || moe_path_table_sampled(table) != (most < n)))
        abort();
    for (uint64_t i = 0; i < most; i++)
        if (moe_path_table_get(table, list[i].key) != list[i].n)
            abort();
    free(kept);
}

/* After the limit a key to a byte, with how often it comes in the upper bits; a key of 0 times is
 * none. */
static void count_keys(const uint8_t *data, size_t n)
{
    static struct moe_path_count list[MOST_KEYS];
    struct moe_err err;
    struct moe_cursor at = moe_cursor_over(data, n);
    struct moe_path_table *table;
    uint64_t limit = moe_cursor_u8(&at) % 32, n_keys = 0;
    if (!fuzz_must(FUZZ_TRY(moe_path_table_new(&table, limit, &err)))) {
        moe_path_table_free(table);
        return;
    }
    bool whole = true;
    while (moe_cursor_left(&at) >= 2 && n_keys < MOST_KEYS && whole) {
        uint32_t both = moe_cursor_u16(&at);
        uint64_t key = both & 0xfff, times = both >> 12;
        whole = fuzz_must(FUZZ_TRY(moe_path_table_add(table, key, times, &err)));
        if (whole && times)
            n_keys = add_to_list(list, n_keys, key, times);
    }
    if (whole)
        check_table(table, limit, list, n_keys);
    moe_path_table_set_sampled(table);
    if (!moe_path_table_sampled(table))
        abort();
    moe_path_table_free(table);
}

/* ---- Documents ---- */

enum { MAX_TOKENS = 40, MAX_DOCUMENTS = 4, MAX_EXPERTS = 8 };

static struct moe_statistics *new_shard(const struct moe_statistics_shape *shape, uint64_t text,
                                        uint64_t documents, uint32_t shard, uint32_t n_shards,
                                        const struct moe_statistics *prior)
{
    struct moe_err err;
    struct moe_statistics *s;
    if (!fuzz_must(FUZZ_TRY(moe_statistics_new(&s, shape, &err))))
        return NULL;
    if (!fuzz_must(FUZZ_TRY(moe_origins_begin(&s->origins, 1, shard, n_shards, &err)))) {
        moe_statistics_free(s);
        return NULL;
    }
    s->prior = prior;
    s->origins.items->documents = documents;
    s->origins.items->texts[s->origins.items->n_texts++] = text;
    return s;
}

/* One document, its choices, weights and predictions as the bytes say; whether it was counted. */
static bool count(struct moe_statistics *s, struct moe_cursor at, uint64_t hash)
{
    uint32_t k = s->shape.top_k, n_experts = s->shape.n_experts;
    uint32_t n = moe_cursor_u8(&at) % (s->shape.max_tokens + 1);
    struct moe_err err;
    if (!fuzz_must(FUZZ_TRY(moe_statistics_begin(s, hash, &err))))
        return false;
    for (uint32_t token = 0; token < n; token++)
        for (uint32_t layer = 0; layer < s->shape.n_layers; layer++) {
            uint32_t chosen[MAX_EXPERTS];
            float weights[MAX_EXPERTS], norms[MAX_EXPERTS], scores[MAX_EXPERTS], cosine;
            uint32_t first = moe_cursor_u8(&at);
            for (uint32_t i = 0; i < k; i++) {
                chosen[i] = (first + i) % n_experts;
                weights[i] = (float)(first >> 4) / (float)(1 + i) / 16;
                norms[i] = weights[i] * (float)(first % 7);
            }
            for (uint32_t e = 0; e < n_experts; e++)
                scores[e] = (float)((first * (e + 3)) % 11);
            cosine = (float)first / 128 - 1;
            struct moe_layer_observation seen = {
                .chosen = chosen, .weights = weights, .stride = n_experts, .norms = norms};
            for (int p = MOE_PREDICT_GATE_1; layer && p <= MOE_PREDICT_RESIDUAL_3; p++)
                seen.predicted[p] = first & 1u << p % 8 ? scores : NULL;
            for (int c = 0; layer && c < MOE_N_COSINES; c++)
                seen.cosines[c] = first & 2u << c ? &cosine : NULL;
            moe_statistics_observe(s, layer, token, 1, &seen);
        }
    return fuzz_must(FUZZ_TRY(moe_statistics_end(s, &err)));
}

struct counted {
    struct moe_statistics *prior, *whole, *odd, *even, *other;
};

/* Whole runs over other texts add up; anything else is refused. */
static void check_sums(struct counted *c, const uint8_t *data, size_t n)
{
    struct moe_err err;
    struct moe_buf one = {0}, sum = {0};
    if (n % 8 == 4)
        use(c->whole);
    check_round_trip(c->odd);
    write_text(c->whole, &one);
    bool merged = fuzz_must(FUZZ_TRY(moe_statistics_merge(c->odd, c->even, &err)));
    if (merged) {
        if (moe_origins_check(&c->odd->origins, false, &err) != MOE_OK)
            abort();
        write_text(c->odd, &sum);
        fuzz_same(&one, &sum);
        if (FUZZ_TRY(moe_statistics_merge(c->odd, c->other, &err)) == MOE_OK)
            FUZZ_TRY(moe_origins_check(&c->odd->origins, data[n / 2] % 4 == 0, &err));
        FUZZ_TRY(moe_statistics_merge(c->other, c->even, &err));
    }
    moe_buf_release(&one);
}

static void count_documents(const uint8_t *data, size_t n)
{
    struct moe_cursor at = moe_cursor_over(data, n);
    uint8_t sizes = moe_cursor_u8(&at);
    struct moe_statistics_shape shape = {.n_layers = 1 + sizes % 4,
                                         .n_experts = 1 + moe_cursor_u8(&at) % MAX_EXPERTS,
                                         .max_tokens = 1 + moe_cursor_u8(&at) % MAX_TOKENS,
                                         .prompt_percent = moe_cursor_u8(&at) % 101};
    shape.top_k = 1 + moe_cursor_u8(&at) % shape.n_experts;
    uint64_t n_documents = moe_cursor_u8(&at) % (MAX_DOCUMENTS + 1), text = moe_cursor_u8(&at);
    struct counted c = {.prior = new_shard(&shape, 0, 1, 0, 1, NULL)};
    bool all = c.prior && count(c.prior, at, 1);
    c.whole = new_shard(&shape, text, n_documents, 0, 1, c.prior);
    c.odd = new_shard(&shape, text, n_documents, 1, 2, c.prior);
    c.even = new_shard(&shape, text, n_documents, 0, 2, c.prior);
    c.other = new_shard(&shape, text + data[n / 2] % 2, 1, 0, 1 + data[n - 1] % 3, NULL);
    all = all && c.whole && c.odd && c.even && c.other;
    for (uint64_t i = 0; i < n_documents && all; i++) {
        struct moe_cursor here = at;
        uint64_t left = moe_cursor_left(&at), share = left / (n_documents - i);
        moe_cursor_take(&at, share);
        all = count(c.whole, here, i * 3 % 8) && count(i % 2 ? c.odd : c.even, here, i * 3 % 8);
    }
    if (all)
        check_sums(&c, data, n);
    moe_statistics_free(c.other);
    moe_statistics_free(c.prior);
    moe_statistics_free(c.whole);
    moe_statistics_free(c.odd);
    moe_statistics_free(c.even);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    n = fuzz_begin(data, n);
    const uint8_t *between = memchr(data, '\f', n);
    if (n && data[0] < 8)
        count_documents(data, n);
    else if (n && data[0] == 8)
        count_keys(data + 1, n - 1);
    else if (between)
        merge_two(data, (size_t)(between - data), between + 1, n - 1 - (size_t)(between - data));
    else
        read_file(data, n);
    return 0;
}

FUZZ_MUTATE_TEXT
