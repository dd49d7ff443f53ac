/*
 * Belady's optimum: examples worked by hand, an exhaustive search over what a cache could hold,
 * the textbook's MIN, and that no replay does better.
 */
#include <unistd.h>

#include "base/file.h"
#include "plan/optimal.h"

#include "../test.h"

enum { MAX_LAYERS = 4, MAX_EXPERTS = 16, MAX_K = 4, MAX_TOKENS = 400 };

static char path[128];

static int name_file(void **state)
{
    snprintf(path, sizeof path, "/tmp/moe-optimal-%d", (int)getpid());
    return 0;
}

static int remove_file(void **state)
{
    unlink(path);
    return 0;
}

/* ---- Traces ---- */

struct script {
    uint32_t n_layers, n_experts, top_k, n;
    struct {
        bool first, prompt; /* first of its sequence */
        bool computed[MAX_LAYERS];
        uint32_t chosen[MAX_LAYERS][MAX_K];
    } tokens[MAX_TOKENS];
};

/* A word is a token of one layer and one expert (top_k 1): 'a' decoded, 'A' of a prompt; '|' begins
 * a sequence. */
static void parse(struct script *s, const char *text)
{
    bool first = true;
    *s = (struct script){.n_layers = 1, .n_experts = MAX_EXPERTS, .top_k = 1};
    for (; *text; text++) {
        if (*text == '|') {
            first = true;
            continue;
        }
        bool prompt = *text < 'a';
        s->tokens[s->n].first = first;
        s->tokens[s->n].prompt = prompt;
        s->tokens[s->n].computed[0] = true;
        s->tokens[s->n++].chosen[0][0] = (uint32_t)(*text - (prompt ? 'A' : 'a'));
        first = false;
    }
}

/* Of 100 tokens, `first` begin a sequence; of 100 that begin one or follow a prompt's token,
 * `prompt` belong to the prompt. */
static void make_script(struct script *s, uint64_t *rng, uint32_t first, uint32_t prompt)
{
    for (uint32_t t = 0; t < s->n; t++) {
        bool begins = t == 0 || test_random(rng) % 100 < first;
        s->tokens[t].first = begins;
        s->tokens[t].prompt =
            (begins || s->tokens[t - 1].prompt) && test_random(rng) % 100 < prompt;
        for (uint32_t l = 0; l < s->n_layers; l++) {
            uint32_t left[MAX_EXPERTS];
            s->tokens[t].computed[l] = test_random(rng) % 8 > 0;
            for (uint32_t e = 0; e < s->n_experts; e++)
                left[e] = e;
            for (uint32_t i = 0; i < s->top_k; i++) { /* low ones more often */
                uint32_t a = i + (uint32_t)(test_random(rng) % (s->n_experts - i));
                uint32_t b = i + (uint32_t)(test_random(rng) % (s->n_experts - i));
                a = a < b ? a : b;
                s->tokens[t].chosen[l][i] = left[a];
                left[a] = left[i];
            }
        }
    }
}

static void write_trace(const struct script *s)
{
    static const float weights[MAX_K] = {0.25f, 0.25f, 0.25f, 0.25f};
    const struct moe_trace_shape shape = {
        .n_layers = s->n_layers, .n_experts = s->n_experts, .top_k = s->top_k};
    struct moe_trace_writer *w = NULL;
    struct moe_err err = {0};
    uint32_t at = 0; /* in its sequence */
    assert_ok(moe_trace_create(&w, path, &shape, &err), &err);
    for (uint32_t t = 0; t < s->n; t++, at++) {
        if (s->tokens[t].first) {
            assert_ok(moe_trace_begin(w, &err), &err);
            at = 0;
        }
        assert_ok(moe_trace_add(w, 1, s->tokens[t].prompt, &err), &err);
        for (uint32_t l = 0; l < s->n_layers; l++) {
            struct moe_layer_observation seen = {.chosen = s->tokens[t].chosen[l],
                                                 .weights = weights};
            if (s->tokens[t].computed[l])
                moe_trace_put(w, l, at, 1, &seen, NULL, 0);
        }
    }
    assert_ok(moe_trace_commit(w, &err), &err);
}

static struct moe_lookups *read_lookups(const struct script *s, uint64_t max_tokens)
{
    struct moe_lookups *l = NULL;
    struct moe_trace *t = NULL;
    struct moe_err err = {0};
    write_trace(s);
    assert_ok(moe_trace_open(&t, path, &err), &err);
    assert_ok(moe_lookups_read(&l, t, (struct moe_excerpt){.max_tokens = max_tokens}, &err), &err);
    moe_trace_close(t);
    return l;
}

static uint64_t optimum(const struct moe_lookups *l, uint64_t capacity)
{
    uint64_t hits = UINT64_MAX;
    struct moe_err err = {0};
    assert_ok(moe_optimal_hits(l, capacity, &hits, &err), &err);
    return hits;
}

/* The lookups again, as sets of experts (bits: layer * n_experts + expert): prompts in passes of at
 * most `batch` tokens. */
struct steps {
    uint32_t n;
    struct {
        uint64_t keys;
        bool decoded;
    } at[MAX_TOKENS * MAX_LAYERS];
};

static void list_steps(const struct script *s, uint32_t batch, struct steps *out)
{
    out->n = 0;
    for (uint32_t t = 0, end; t < s->n; t = end) {
        for (end = t + 1; s->tokens[t].prompt && end < s->n && s->tokens[end].prompt &&
                          !s->tokens[end].first && end - t < batch;)
            end++;
        for (uint32_t l = 0; l < s->n_layers; l++) {
            uint64_t keys = 0;
            for (uint32_t i = t; i < end; i++)
                for (uint32_t k = 0; k < s->top_k && s->tokens[i].computed[l]; k++)
                    keys |= (uint64_t)1 << (l * s->n_experts + s->tokens[i].chosen[l][k]);
            out->at[out->n].decoded = !s->tokens[t].prompt;
            out->at[out->n].keys = keys;
            out->n += keys != 0;
        }
    }
}

static uint32_t count(uint64_t set)
{
    uint32_t n = 0;
    for (; set; set &= set - 1)
        n++;
    return n;
}

static uint64_t count_decoded(const struct steps *s)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < s->n; i++)
        n += s->at[i].decoded ? count(s->at[i].keys) : 0;
    return n;
}

/* ---- Other ways to the number ---- */

/* The best over everything that a cache may do: after a step it holds any `capacity` of what it
 * held and what was looked up. Of at most 8 keys. */
static uint64_t search(const struct steps *s, uint32_t capacity)
{
    int best[256], next[256], most = 0;
    for (int set = 0; set < 256; set++)
        best[set] = set ? -1 : 0;
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t keys = (uint32_t)s->at[i].keys;
        for (int set = 0; set < 256; set++)
            next[set] = -1;
        for (uint32_t set = 0; set < 256; set++) {
            int hits = best[set] + (int)(s->at[i].decoded ? count(set & keys) : 0);
            for (uint32_t all = set | keys, kept = all; best[set] >= 0; kept = (kept - 1) & all) {
                if (count(kept) <= capacity && hits > next[kept])
                    next[kept] = hits;
                if (kept == 0)
                    break;
            }
        }
        memcpy(best, next, sizeof best);
    }
    for (int set = 0; set < 256; set++)
        most = best[set] > most ? best[set] : most;
    return (uint64_t)most;
}

static uint32_t next_use(const struct steps *s, uint32_t from, uint32_t key)
{
    while (from < s->n && !(s->at[from].keys >> key & 1))
        from++;
    return from;
}

/* MIN where every step is one lookup: of the cached keys and the new one, the one leaves whose next
 * use is farthest. */
static uint64_t textbook(const struct steps *s, uint32_t capacity)
{
    uint64_t held = 0, hits = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        hits += (held & s->at[i].keys) != 0;
        held |= s->at[i].keys;
        if (count(held) <= capacity)
            continue;
        uint32_t farthest = 0, when = 0;
        for (uint32_t key = 0; key < 64; key++)
            if (held >> key & 1 && next_use(s, i + 1, key) >= when) {
                when = next_use(s, i + 1, key);
                farthest = key;
            }
        held &= ~((uint64_t)1 << farthest);
    }
    return hits;
}

/* Least recently used, one lookup after the other. Keys of one step do not evict one another: one
 * that finds no room passes through. */
static uint64_t replay_lru(const struct steps *s, uint32_t capacity)
{
    uint64_t held = 0, hits = 0, used[64] = {0}, now = 0;
    for (uint32_t i = 0; i < s->n; i++)
        for (uint32_t key = 0; key < 64; key++) {
            if (!(s->at[i].keys >> key & 1))
                continue;
            used[key] = ++now;
            if (held >> key & 1) {
                hits += s->at[i].decoded;
                continue;
            }
            uint64_t may_leave = held & ~s->at[i].keys;
            uint32_t oldest = 64;
            for (uint32_t k = 0; k < 64; k++)
                if (may_leave >> k & 1 && (oldest == 64 || used[k] < used[oldest]))
                    oldest = k;
            if (count(held) >= capacity && oldest == 64)
                continue;
            if (count(held) >= capacity)
                held &= ~((uint64_t)1 << oldest);
            held |= (uint64_t)1 << key;
        }
    return hits;
}

/* ---- The tests ---- */

static void by_hand(void **state)
{
    static const struct {
        const char *trace;
        uint32_t capacity, decoded, hits;
    } examples[] = {
        {"", 1, 0, 0},
        {"abcd", 4, 4, 0}, /* nothing comes twice */
        {"aaaa", 0, 4, 0},
        {"aaaa", 1, 4, 3}, /* a slot serves one interval after the other */
        {"abab", 1, 4, 1},
        {"abab", 2, 4, 2},
        {"aba", 1, 3, 1}, /* b passes through */
        /* The textbooks' string, MIN with three slots: 7 faults. d's and the first e's intervals
           go. */
        {"abcdabeabcde", 3, 12, 5},
        {"ABab", 2, 2, 2}, /* the prompt brings them */
        {"ABab", 1, 2, 1},
        {"a|Aa", 0, 2, 0},
        {"a|Aa", 1, 2, 1},      /* not for the prompt, which loads it anyway */
        {"ab|Ba", 1, 3, 1},     /* a stays, since b's next is a prompt's */
        {"ABABABcab", 2, 3, 2}, /* c passes through */
        {"ab|ab", 2, 4, 2},     /* the cache outlives the sequence */
        {"A|Ba", 1, 1, 1},      /* kept over another prompt */
        {"A|Ba|b", 1, 2, 1},
    };
    for (size_t i = 0; i < N_ITEMS(examples); i++) {
        struct script s;
        parse(&s, examples[i].trace);
        struct moe_lookups *l = read_lookups(&s, 0);
        uint64_t hits = optimum(l, examples[i].capacity);
        if (moe_lookups_decoded(l) != examples[i].decoded || hits != examples[i].hits)
            fail_msg("%s: %u hits of %u", examples[i].trace, (unsigned)hits,
                     (unsigned)moe_lookups_decoded(l));
        moe_lookups_free(l);
    }
    moe_lookups_free(NULL);
}

/* One slot, experts {0, 1}, then {1, 2}, then {2, 3}: each token finds one, which gives its place
 * to the one that it came with, whichever the router named first. */
static void a_hit_makes_room_in_its_layer(void **state)
{
    for (int turned = 0; turned < 2; turned++) {
        struct script s = {.n_layers = 1, .n_experts = 4, .top_k = 2, .n = 3};
        for (uint32_t t = 0; t < 3; t++) {
            s.tokens[t].first = t == 0;
            s.tokens[t].computed[0] = true;
            s.tokens[t].chosen[0][turned] = t;
            s.tokens[t].chosen[0][!turned] = t + 1;
        }
        struct moe_lookups *l = read_lookups(&s, 0);
        assert_int_equal(optimum(l, 1), 2);
        moe_lookups_free(l);
    }
}

static void only_so_many_tokens(void **state)
{
    struct script s;
    parse(&s, "ABa|Cabc");
    for (uint32_t n = 1; n <= s.n + 1; n++) {
        static const uint32_t hits[] = {0, 0, 1, 1, 2, 3, 4, 4};
        struct moe_lookups *l = read_lookups(&s, n);
        assert_int_equal(optimum(l, 3), hits[n - 1]);
        moe_lookups_free(l);
    }
}

static void equals_an_exhaustive_search(void **state)
{
    static const uint32_t batches[] = {1, 2, 3, UINT32_MAX};
    uint64_t rng = 1, with_prompt = 0, above_lru = 0;
    for (int round = 0; round < 600; round++) {
        uint32_t n_layers = 1 + (uint32_t)round % 2, top_k = 1 + (uint32_t)round / 2 % 2;
        struct script s = {.n_layers = n_layers,
                           .n_experts = 3 + (uint32_t)(test_random(&rng) % (n_layers == 1 ? 3 : 2)),
                           .top_k = top_k};
        struct steps steps;
        uint32_t batch = batches[test_random(&rng) % N_ITEMS(batches)];
        s.n = (10 + (uint32_t)(test_random(&rng) % 5)) / (n_layers * top_k);
        make_script(&s, &rng, 25, round % 3 ? 70 : 0);
        list_steps(&s, batch, &steps);
        struct moe_lookups *l = read_lookups(&s, 0);
        assert_int_equal(moe_lookups_decoded(l), count_decoded(&steps));
        for (uint32_t capacity = 0; capacity <= 4; capacity++) {
            assert_int_equal(optimum(l, capacity), search(&steps, capacity));
            above_lru += optimum(l, capacity) > replay_lru(&steps, capacity);
        }
        with_prompt += moe_lookups_decoded(l) < (uint64_t)s.n * n_layers * top_k;
        moe_lookups_free(l);
    }
    assert_true(with_prompt > 100 && above_lru > 100);
}

static void equals_min_where_every_lookup_is_a_step(void **state)
{
    uint64_t rng = 2;
    for (int round = 0; round < 40; round++) {
        struct script s = {.n_layers = 2, .n_experts = 12, .top_k = 1, .n = MAX_TOKENS};
        struct steps steps;
        make_script(&s, &rng, 5, 0);
        list_steps(&s, 1, &steps);
        struct moe_lookups *l = read_lookups(&s, 0);
        for (uint32_t capacity = 0; capacity < 25; capacity += 3)
            assert_int_equal(optimum(l, capacity), textbook(&steps, capacity));
        moe_lookups_free(l);
    }
}

/* More room is never worse, no room gives none, all the room everything but the first of each; and
 * a cache that does not know the future has no more. */
static void bounds(void **state)
{
    uint64_t rng = 3;
    for (int round = 0; round < 20; round++) {
        struct script s = {.n_layers = 4, .n_experts = 16, .top_k = 4, .n = MAX_TOKENS};
        struct steps steps;
        uint32_t batch = round % 2 ? UINT32_MAX : 8;
        uint64_t before = 0, seen = 0, again = 0;
        make_script(&s, &rng, 3, 90);
        list_steps(&s, batch, &steps);
        for (uint32_t i = 0; i < steps.n; i++) {
            again += steps.at[i].decoded ? count(steps.at[i].keys & seen) : 0;
            seen |= steps.at[i].keys;
        }
        struct moe_lookups *l = read_lookups(&s, 0);
        for (uint32_t capacity = 0; capacity <= 64; capacity++) {
            uint64_t hits = optimum(l, capacity);
            assert_true(hits >= before && hits >= replay_lru(&steps, capacity));
            assert_true(capacity > 0 || hits == 0);
            before = hits;
        }
        assert_true(again > 0);
        assert_int_equal(before, again);
        assert_int_equal(optimum(l, UINT64_MAX), again);
        moe_lookups_free(l);
    }
}

static void a_damaged_trace_is_an_error(void **state)
{
    struct moe_lookups *l = NULL;
    struct moe_trace *t = NULL;
    struct moe_buf file = {0};
    struct moe_err err = {0};
    struct script s;
    parse(&s, "ABab");
    write_trace(&s);
    assert_ok(moe_file_read_all(path, 1 << 20, &file, &err), &err);
    file.data[file.size - 1] ^= 1;
    assert_ok(moe_file_write_all(path, file.data, file.size, &err), &err);
    assert_ok(moe_trace_open(&t, path, &err), &err);
    assert_fails(moe_lookups_read(&l, t, (struct moe_excerpt){0}, &err), MOE_ERR_FORMAT, "checksum",
                 &err);
    assert_null(l);
    moe_trace_close(t);
    moe_buf_release(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(a_hit_makes_room_in_its_layer),
        cmocka_unit_test(only_so_many_tokens),
        cmocka_unit_test(equals_an_exhaustive_search),
        cmocka_unit_test(equals_min_where_every_lookup_is_a_step),
        cmocka_unit_test(bounds),
        cmocka_unit_test(a_damaged_trace_is_an_error),
    };
    return cmocka_run_group_tests(tests, name_file, remove_file);
}
