/*
 * Cache policies against models of them written as plainly as possible: same hits, same victims, on
 * random traces; and properties that every policy must have.
 */
#include "cache/policy.h"

#include "../test.h"

enum { N_KEYS = 40, N_LAYERS = 4, N_EXPERTS = N_KEYS / N_LAYERS, N_STEPS = 20000 };

/* ---- Driving a policy as a cache does ---- */

struct cache {
    struct moe_policy *policy;
    struct moe_usage usage;
    uint32_t capacity, n;
    bool resident[N_KEYS];
};

static void cache_open(struct cache *c, const char *name, uint32_t capacity, uint64_t seed)
{
    struct moe_err err = {0};
    *c = (struct cache){.capacity = capacity};
    assert_ok(moe_usage_init(&c->usage, N_LAYERS, N_EXPERTS, 1, &err), &err);
    const struct moe_policy_params params = {
        .n_keys = N_KEYS, .capacity = capacity, .seed = seed, .usage = &c->usage};
    assert_non_null(moe_policy_find(name));
    assert_ok(moe_policy_follow(moe_policy_find(name), &c->usage, 0, &err), &err);
    assert_ok(moe_policy_open(&c->policy, moe_policy_find(name), &params, &err), &err);
}

static void cache_close(struct cache *c)
{
    moe_policy_close(c->policy);
    moe_usage_release(&c->usage);
}

/* A token asks for one key. Returns true on a hit; *left gets the key that left, or -1. */
static bool cache_ask(struct cache *c, uint32_t key, int64_t *left)
{
    const struct moe_policy_ops *ops = c->policy->ops;
    *left = -1;
    const uint32_t expert = key % N_EXPERTS;
    const struct moe_choices choices = {key / N_EXPERTS, 1, &expert, NULL};
    moe_usage_begin_tokens(&c->usage, 1);
    moe_usage_chosen(&c->usage, &choices);
    moe_usage_note(&c->usage, key, 1, key % 3 == 0);
    if (c->resident[key]) {
        ops->use(c->policy, key);
        return true;
    }
    if (ops->miss)
        ops->miss(c->policy, key);
    if (c->n == c->capacity) {
        *left = ops->victim(c->policy, key, NULL, NULL);
        if (*left < 0)
            return false; /* it passes through */
        assert_true(c->resident[*left]);
        ops->drop(c->policy, (uint32_t)*left);
        c->resident[*left] = false;
        c->n--;
    }
    ops->admit(c->policy, key);
    c->resident[key] = true;
    c->n++;
    return false;
}

/* A trace with a hot set that moves, so that recency and frequency both matter. */
static uint32_t next_key(uint64_t *random, int step)
{
    uint64_t r = test_random(random);
    if (r % 3)
        return (uint32_t)((r >> 8) % 10 + (uint64_t)step / 1500 * 7) % N_KEYS;
    return (uint32_t)(r >> 8) % N_KEYS;
}

/* ---- Plain models ---- */

struct plain {
    uint64_t came[N_KEYS], used[N_KEYS], count[N_KEYS], now;
    bool resident[N_KEYS];
};

static bool plain_ask(struct plain *m, const char *name, uint32_t capacity, uint32_t key,
                      int64_t *left)
{
    uint32_t n = 0;
    bool hit = m->resident[key];
    *left = -1;
    m->now++;
    for (int i = 0; i < N_KEYS; i++)
        n += m->resident[i];
    for (int i = 0; !hit && n == capacity && i < N_KEYS; i++) {
        if (!m->resident[i])
            continue;
        bool better = *left < 0;
        if (!better && strcmp(name, "fifo") == 0)
            better = m->came[i] < m->came[*left];
        else if (!better && strcmp(name, "lru") == 0)
            better = m->used[i] < m->used[*left];
        else if (!better)
            better = m->count[i] < m->count[*left] ||
                     (m->count[i] == m->count[*left] && m->used[i] < m->used[*left]);
        if (better)
            *left = i;
    }
    if (*left >= 0)
        m->resident[*left] = false;
    if (!hit)
        m->came[key] = m->now;
    m->resident[key] = true;
    m->used[key] = m->now;
    m->count[key]++;
    return hit;
}

static void simple_policies_equal_their_models(void **state)
{
    static const char *const names[] = {"lru", "fifo", "lfu"};
    static const uint32_t capacities[] = {1, 2, 7, 20, 39};
    for (size_t k = 0; k < N_ITEMS(names); k++) {
        for (size_t j = 0; j < N_ITEMS(capacities); j++) {
            struct cache c;
            struct plain m = {0};
            uint64_t random = 99 + j;
            uint32_t hits = 0;
            cache_open(&c, names[k], capacities[j], 0);
            for (int step = 0; step < N_STEPS; step++) {
                uint32_t key = next_key(&random, step);
                int64_t left, want;
                bool hit = cache_ask(&c, key, &left);
                if (hit != plain_ask(&m, names[k], capacities[j], key, &want) || left != want)
                    fail_msg("%s, %u slots, step %d: %lld left instead of %lld", names[k],
                             capacities[j], step, (long long)left, (long long)want);
                hits += hit;
            }
            assert_in_range(hits, capacities[j] > 1 ? 100 : 1, N_STEPS);
            cache_close(&c);
        }
    }
}

/* ---- ARC in one piece, as the paper prints it ---- */

struct list {
    uint32_t keys[2 * N_KEYS], n; /* most recent first */
};

static int find(const struct list *l, uint32_t key)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (l->keys[i] == key)
            return (int)i;
    return -1;
}

static void take_out(struct list *l, int at)
{
    memmove(l->keys + at, l->keys + at + 1, (l->n - (uint32_t)at - 1) * sizeof *l->keys);
    l->n--;
}

static void put_first(struct list *l, uint32_t key)
{
    memmove(l->keys + 1, l->keys, l->n * sizeof *l->keys);
    l->keys[0] = key;
    l->n++;
}

struct whole_arc {
    struct list t1, t2, b1, b2;
    double p;
};

static int64_t replace(struct whole_arc *a, bool in_b2)
{
    bool first = a->t1.n >= 1 && ((in_b2 && a->t1.n == a->p) || a->t1.n > a->p);
    struct list *from = first ? &a->t1 : &a->t2, *to = first ? &a->b1 : &a->b2;
    uint32_t key = from->keys[from->n - 1];
    from->n--;
    put_first(to, key);
    return key;
}

static bool whole_arc_ask(struct whole_arc *a, uint32_t c, uint32_t x, int64_t *left)
{
    int at;
    *left = -1;
    if ((at = find(&a->t1, x)) >= 0 || (find(&a->t2, x)) >= 0) { /* case I */
        if (at >= 0)
            take_out(&a->t1, at);
        else
            take_out(&a->t2, find(&a->t2, x));
        put_first(&a->t2, x);
        return true;
    }
    if ((at = find(&a->b1, x)) >= 0) { /* case II */
        double delta = a->b1.n >= a->b2.n ? 1 : (double)a->b2.n / a->b1.n;
        a->p = a->p + delta < c ? a->p + delta : c;
        *left = replace(a, false);
        take_out(&a->b1, find(&a->b1, x));
        put_first(&a->t2, x);
        return false;
    }
    if ((at = find(&a->b2, x)) >= 0) { /* case III */
        double delta = a->b2.n >= a->b1.n ? 1 : (double)a->b1.n / a->b2.n;
        a->p = a->p - delta > 0 ? a->p - delta : 0;
        *left = replace(a, true);
        take_out(&a->b2, find(&a->b2, x));
        put_first(&a->t2, x);
        return false;
    }
    if (a->t1.n + a->b1.n == c) { /* case IV A */
        if (a->t1.n < c) {
            a->b1.n--;
            *left = replace(a, false);
        } else {
            *left = a->t1.keys[a->t1.n - 1];
            a->t1.n--;
        }
    } else if (a->t1.n + a->t2.n + a->b1.n + a->b2.n >= c) { /* case IV B */
        if (a->t1.n + a->t2.n + a->b1.n + a->b2.n == 2 * c)
            a->b2.n--;
        *left = replace(a, false);
    }
    put_first(&a->t1, x);
    return false;
}

static void arc_equals_the_paper(void **state)
{
    static const uint32_t capacities[] = {1, 2, 5, 13, 30};
    for (size_t j = 0; j < N_ITEMS(capacities); j++) {
        struct cache c;
        struct whole_arc a = {0};
        uint64_t random = 5 + j;
        cache_open(&c, "arc", capacities[j], 0);
        for (int step = 0; step < N_STEPS; step++) {
            uint32_t key = next_key(&random, step);
            int64_t left, want;
            bool hit = cache_ask(&c, key, &left);
            if (hit != whole_arc_ask(&a, capacities[j], key, &want) || left != want)
                fail_msg("arc, %u slots, step %d, key %u: %lld left instead of %lld", capacities[j],
                         step, key, (long long)left, (long long)want);
        }
        cache_close(&c);
    }
}

/* ---- Every policy ---- */

static bool odd_only(void *ctx, uint32_t key)
{
    return key % 2 == 1;
}

static bool none(void *ctx, uint32_t key)
{
    return false;
}

static void victims_are_resident_and_not_pinned(void **state)
{
    const struct moe_policy_ops *ops;
    for (int i = 0; (ops = moe_policy_at(i)) != NULL; i++) {
        struct cache c;
        cache_open(&c, ops->name, 10, 3);
        assert_int_equal(ops->victim(c.policy, 1, NULL, NULL), MOE_NO_KEY); /* empty */
        uint64_t random = 1;
        int64_t left;
        for (int step = 0; step < 2000; step++) {
            cache_ask(&c, next_key(&random, step), &left);
            int64_t key = ops->victim(c.policy, MOE_NO_KEY, odd_only, NULL);
            if (key >= 0)
                assert_true(key % 2 == 1 && c.resident[key]);
            assert_int_equal(ops->victim(c.policy, MOE_NO_KEY, none, NULL), MOE_NO_KEY);
        }
        cache_close(&c);
    }
}

static void random_depends_on_its_seed_alone(void **state)
{
    int64_t left[2][500], other;
    int differ = 0;
    for (int run = 0; run < 2; run++) {
        struct cache c, d;
        uint64_t random = 1;
        cache_open(&c, "random", 10, 42);
        cache_open(&d, "random", 10, 43);
        for (int step = 0; step < 500; step++) {
            uint32_t key = next_key(&random, step);
            cache_ask(&c, key, &left[run][step]);
            cache_ask(&d, key, &other);
            differ += other != left[run][step];
        }
        cache_close(&c);
        cache_close(&d);
    }
    assert_memory_equal(left[0], left[1], sizeof left[0]);
    assert_true(differ > 0);
}

static void pinned_keeps_the_first(void **state)
{
    struct cache c;
    int64_t left;
    cache_open(&c, "pinned", 5, 0);
    for (uint32_t key = 0; key < 20; key++)
        cache_ask(&c, key, &left);
    for (uint32_t key = 0; key < 20; key++)
        assert_int_equal(cache_ask(&c, key, &left), key < 5);
    cache_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(simple_policies_equal_their_models),
        cmocka_unit_test(arc_equals_the_paper),
        cmocka_unit_test(victims_are_resident_and_not_pinned),
        cmocka_unit_test(random_depends_on_its_seed_alone),
        cmocka_unit_test(pinned_keeps_the_first),
    };
    return cmocka_run_group_tests_name("policy", tests, NULL, NULL);
}
