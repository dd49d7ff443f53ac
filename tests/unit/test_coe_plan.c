/* Plans of collections: the file, what is wrong with one, and names of schedules and evictions. */
#include "../test.h"

#include "serve/coe_dispatch.h"
#include "serve/coe_plan.h"

#define HEAD "format: moe-coe-plan\nversion: 1\nschedule: coserve\nevict: two-stage\n"
#define EXECUTORS                                                                                  \
    "executors:\n"                                                                                 \
    "  - {device: cuda, number: 3, expert_bytes: 300, batch_bytes: 100, experts: 5}\n"             \
    "  - {device: cpu, number: 1, expert_bytes: 200}\n"
#define WINDOW(lower, upper, chosen)                                                               \
    "window:\n  device: cuda\n  first: 15\n  fitted: 2\n  margin: 0.05\n  seed: 0\n  "             \
    "lower: " lower "\n  upper: " upper "\n  expected_per_second: 3.5\n  chosen: " chosen "\n"
#define REST                                                                                       \
    "prefetch: true\nhost_bytes: 5\nmemory_bytes: 99\nmachine: m\ncollection: c\ncosts: k\n"       \
    "largest_batches:\n  - {architecture: big, device: cuda, requests: 4}\n"                       \
    "points:\n  - {experts: 15, per_second: 2.5}\n  - {experts: 28, per_second: 3}\n"              \
    "trials:\n  - {cuda: 3, cpu: 1, per_second: 4}\n"                                              \
    "expected_per_second: 4\nexpected_switches: 12\n"                                              \
    "reasons:\n  - {about: cuda, text: \"it is fast\"}\n"

static void files_come_back(void **state)
{
    static const char text[] = HEAD EXECUTORS REST WINDOW("28", "39", "35");
    (void)state;
    for (int json = 0; json < 2; json++) {
        struct moe_coe_plan *p;
        struct moe_buf first = {0}, second = {0};
        struct moe_err err;
        assert_ok(moe_record_parse(&moe_coe_plan_format, &p, "p.yaml", text, strlen(text), &err),
                  &err);
        assert_int_equal(p->n_executors, 2);
        assert_int_equal(p->executors[0].experts, 5);
        assert_true(p->prefetch && p->window.chosen == 35 && p->switches == 12);
        assert_ok(moe_coe_plan_write(p, json, &first, &err), &err);
        moe_coe_plan_free(p);
        assert_ok(moe_record_parse(&moe_coe_plan_format, &p, "again", first.data, first.size, &err),
                  &err);
        assert_ok(moe_coe_plan_write(p, json, &second, &err), &err);
        assert_int_equal(first.size, second.size);
        assert_memory_equal(first.data, second.data, first.size);
        moe_coe_plan_free(p);
        moe_buf_release(&first);
        moe_buf_release(&second);
    }
}

static void a_plan_that_was_made_is_read(void **state)
{
    struct moe_coe_plan *p, *again;
    struct moe_buf text = {0};
    struct moe_err err;
    (void)state;
    assert_ok(moe_coe_plan_new(&p, &err), &err);
    strcpy(p->schedule, "fcfs");
    strcpy(p->evict, "lru");
    p->executors[p->n_executors++] =
        (struct moe_coe_plan_executors){.device = "cpu", .number = 2, .expert_bytes = 10};
    for (int i = 0; i < MOE_COE_MAX_REASONS + 3; i++)
        moe_coe_plan_because(p, "cpu", "number %d %0600d", i, 0);
    assert_int_equal(p->n_reasons, MOE_COE_MAX_REASONS);
    assert_ok(moe_coe_plan_write(p, false, &text, &err), &err);
    assert_ok(moe_record_parse(&moe_coe_plan_format, &again, "made", text.data, text.size, &err),
              &err);
    assert_string_equal(again->reasons[3].text, p->reasons[3].text);
    assert_string_equal(again->window.device, "");
    assert_int_equal(again->executors[0].number, 2);
    moe_coe_plan_free(p);
    moe_coe_plan_free(again);
    moe_buf_release(&text);
}

static void what_is_wrong_is_named(void **state)
{
    static const struct {
        const char *text, *words;
    } rows[] = {
        {HEAD, "there are no executors"},
        {HEAD EXECUTORS "  - {device: cpu, number: 1, expert_bytes: 1}\n", "more than 2"},
        {HEAD "executors:\n  - {device: cpu, number: 1, expert_bytes: 1}\n"
              "  - {device: cpu, number: 1, expert_bytes: 1}\n",
         "'cpu' occurs twice"},
        {HEAD "executors:\n  - {device: tpu, number: 1, expert_bytes: 1}\n", "not 'tpu'"},
        {HEAD "executors:\n  - {device: cpu, number: 0, expert_bytes: 1}\n", "number"},
        {HEAD "executors:\n  - {device: cpu, number: 65, expert_bytes: 1}\n", "number"},
        {HEAD EXECUTORS WINDOW("28", "39", "28"), "'chosen'"},
        {HEAD EXECUTORS WINDOW("28", "39", "40"), "'chosen'"},
        {HEAD EXECUTORS "largest_batches:\n  - {architecture: a, device: x, requests: 1}\n",
         "not 'x'"},
        {"format: moe-coe-plan\nversion: 1\nschedule: x\nevict: lru\n" EXECUTORS, "schedule 'x'"},
        {"format: moe-coe-plan\nversion: 1\nschedule: fcfs\nevict: x\n" EXECUTORS, "eviction 'x'"},
        {"format: moe-coe-plan\nversion: 2\n", "version"},
        {HEAD EXECUTORS "more: 1\n", "more"},
    };
    (void)state;
    for (size_t i = 0; i < N_ITEMS(rows); i++) {
        struct moe_coe_plan *p;
        struct moe_err err = {0};
        int status = moe_record_parse(&moe_coe_plan_format, &p, "p.yaml", rows[i].text,
                                      strlen(rows[i].text), &err);
        if (status == MOE_OK || !strstr(err.text, rows[i].words))
            fail_msg("row %zu: '%s' is not in '%s'", i, rows[i].words, err.text);
        assert_null(p);
    }
}

static void every_name_is_found(void **state)
{
    const struct moe_coe_schedule *s;
    enum moe_coe_evict evict;
    uint32_t n = 0;
    (void)state;
    for (; (s = moe_coe_schedule_at(n)) != NULL; n++)
        assert_ptr_equal(moe_coe_schedule_find(s->name), s);
    assert_int_equal(n, 5);
    assert_null(moe_coe_schedule_find("lifo"));
    for (n = 0; moe_coe_evict_at(n); n++)
        assert_true(moe_coe_evict_find(moe_coe_evict_at(n), &evict) && evict == n);
    assert_int_equal(n, 4);
    assert_false(moe_coe_evict_find("random", &evict));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_come_back),
        cmocka_unit_test(a_plan_that_was_made_is_read),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(every_name_is_found),
    };
    return cmocka_run_group_tests_name("coe_plan", tests, NULL, NULL);
}
