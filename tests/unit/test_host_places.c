/* Places in host memory beside a plain model of them: which keys have places, and which key is
 * evicted. */
#include "../test.h"

#include "sched/host_places.h"

enum { CLASSES = 3, KEYS = 60, PLACES = 16, ROUNDS = 40000 };
static const uint32_t N_IN[CLASSES] = {1, 4, 11};

/* The model: for each key, whether it has a place, since when it was copied, and its pins. */
struct plain {
    bool held;
    uint64_t copied; /* a rising number; 0: never, or emptied */
    uint32_t pins;
    bool arrived;
};

static uint32_t class_of(uint32_t key)
{
    return key % CLASSES;
}

/* Whether every place of the class is pinned, and how many hold something. */
static uint32_t held_in(const struct plain *plain, uint32_t class_index, bool *all_pinned)
{
    uint32_t held = 0, pinned = 0;
    for (uint32_t key = class_index; key < KEYS; key += CLASSES) {
        held += plain[key].held;
        pinned += plain[key].held && plain[key].pins > 0;
    }
    *all_pinned = pinned == N_IN[class_index];
    return held;
}

static void check(const struct moe_host_places *p, const struct plain *plain)
{
    uint32_t n_held = 0, n_empty = 0;
    for (uint32_t key = 0; key < KEYS; key++) {
        uint32_t place = moe_host_places_find(p, key);
        assert_int_equal(place != MOE_NO_PLACE, plain[key].held);
        if (!plain[key].held)
            continue;
        n_held++;
        assert_int_equal(p->places[place].copy, key);
        assert_int_equal(p->places[place].class_index, class_of(key));
        assert_int_equal(p->places[place].pins, plain[key].pins);
        assert_int_equal(p->places[place].arrived != 0, plain[key].arrived);
    }
    for (uint32_t i = 0; i < p->n_places; i++)
        n_empty += p->places[i].copy == MOE_PLACE_EMPTY;
    assert_int_equal(n_held + n_empty, PLACES);
}

/* The key that the model evicts: of the unpinned ones the least recently copied. */
static uint32_t gives_way(const struct plain *plain, uint32_t class_index)
{
    uint32_t found = MOE_PLACE_EMPTY;
    for (uint32_t key = class_index; key < KEYS; key += CLASSES)
        if (plain[key].held && plain[key].pins == 0 &&
            (found == MOE_PLACE_EMPTY || plain[key].copied < plain[found].copied))
            found = key;
    return found;
}

static void take(struct moe_host_places *p, struct plain *plain, uint32_t key, uint64_t now)
{
    bool all_pinned;
    uint32_t c = class_of(key), held = held_in(plain, c, &all_pinned);
    uint32_t leaves = held < N_IN[c] ? MOE_PLACE_EMPTY : gives_way(plain, c);
    uint32_t place = moe_host_places_take(p, c, key);
    assert_int_equal(place == MOE_NO_PLACE, all_pinned);
    if (place == MOE_NO_PLACE)
        return;
    if (leaves != MOE_PLACE_EMPTY)
        plain[leaves] = (struct plain){0};
    moe_host_places_pin(p, place);
    p->places[place].arrived = 1;
    moe_host_places_copied(p, place);
    plain[key] = (struct plain){true, now, 1, true};
}

static void random_use_agrees_with_a_plain_model(void **state)
{
    struct moe_err err = {0};
    struct moe_host_places p;
    struct plain plain[KEYS] = {{0}};
    uint64_t random = 5, taken = 0, refused = 0;
    assert_ok(moe_host_places_open(&p, KEYS, N_IN, CLASSES, &err), &err);
    assert_int_equal(p.n_places, PLACES);
    for (uint64_t now = 1; now <= ROUNDS; now++) {
        uint32_t key = (uint32_t)(test_random(&random) % KEYS);
        uint32_t place = moe_host_places_find(&p, key);
        if (place == MOE_NO_PLACE) {
            take(&p, plain, key, now);
            taken += plain[key].held;
            refused += !plain[key].held;
        } else if (test_random(&random) % 4 == 0 && plain[key].pins < 3) {
            moe_host_places_pin(&p, place);
            plain[key].pins++;
        } else if (test_random(&random) % 4 == 0) {
            moe_host_places_copied(&p, place);
            plain[key].copied = now;
        } else if (plain[key].pins > 0) {
            moe_host_places_unpin(&p, place);
            plain[key].pins--;
        }
        check(&p, plain);
    }
    print_message("# %llu places taken, %llu times all were pinned\n", (unsigned long long)taken,
                  (unsigned long long)refused);
    assert_true(taken > ROUNDS / 100 && refused > ROUNDS / 100);
    moe_host_places_close(&p);
}

/* A place whose load was given up is empty, and the first to be taken. */
static void what_did_not_arrive_is_forgotten(void **state)
{
    struct moe_err err = {0};
    struct moe_host_places p;
    const uint32_t n_in[1] = {3};
    assert_ok(moe_host_places_open(&p, 10, n_in, 1, &err), &err);
    for (uint32_t key = 0; key < 3; key++) {
        uint32_t place = moe_host_places_take(&p, 0, key);
        moe_host_places_pin(&p, place);
        moe_host_places_pin(&p, place);
        p.places[place].arrived = key != 1;
        moe_host_places_copied(&p, place);
    }
    assert_int_equal(moe_host_places_take(&p, 0, 5), MOE_NO_PLACE);
    uint32_t given_up = moe_host_places_find(&p, 1);
    for (uint32_t key = 0; key < 3; key++) {
        uint32_t place = moe_host_places_find(&p, key);
        moe_host_places_unpin(&p, place);
        assert_int_equal(moe_host_places_find(&p, key), place); /* somebody still writes */
        moe_host_places_unpin(&p, place);
    }
    assert_int_equal(moe_host_places_find(&p, 1), MOE_NO_PLACE);
    assert_int_not_equal(moe_host_places_find(&p, 0), MOE_NO_PLACE);
    assert_int_equal(moe_host_places_take(&p, 0, 7), given_up);
    moe_host_places_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_use_agrees_with_a_plain_model),
        cmocka_unit_test(what_did_not_arrive_is_forgotten),
    };
    return cmocka_run_group_tests_name("host_places", tests, NULL, NULL);
}
