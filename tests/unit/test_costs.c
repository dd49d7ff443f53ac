/* Costs of expert models: the file, what is wrong with one, a collection's experts from it. */
#include "../test.h"

#include <math.h>

#include "serve/coe_costs.h"

#define HEAD                                                                                       \
    "format: moe-coe-costs\nversion: 1\nmachine: \"a machine\"\nmemory_bytes: 17179869184\n"
#define PROCESSORS                                                                                 \
    "processors:\n"                                                                                \
    "  - {name: cuda, memory_bytes: 12884901888}\n"                                                \
    "  - {name: cpu}\n"
#define TEAMS                                                                                      \
    "processors:\n  - {name: cuda, memory_bytes: 12884901888}\n  - {name: cpu, threads: 4}\n"
#define KINDS "architectures:\n  - {name: big, source: \"measured\"}\n  - {name: small}\n"
#define COST(kind, on, rest)                                                                       \
    "  - {architecture: " kind ", processor: " on ", per_request_seconds: 0.5, "                   \
    "per_batch_seconds: 2, max_batch: 4, load_seconds: 10, " rest "expert_bytes: "
#define COSTS                                                                                      \
    "costs:\n" COST("big", "cuda", "load_from_host_seconds: 3, ") "100, request_bytes: 7}\n" COST( \
        "big", "cpu", "") "120}\n" COST("small", "cpu", "") "30}\n"
#define BATCHES                                                                                    \
    "batches:\n  - {architecture: big, processor: cpu, requests: 4, seconds: 4, bytes: 9}\n"
#define MODELS                                                                                     \
    "models:\n  - {name: chat, architecture: big, probability: 0.75}\n"                            \
    "  - {name: code, architecture: small}\n"
#define ALL HEAD PROCESSORS KINDS COSTS BATCHES MODELS

#define COLLECTION                                                                                 \
    "format: moe-coe\nversion: 1\nexperts:\n  - {name: chat, pack: chat.moe}\n"                    \
    "  - {name: code, pack: code.moe}\n"                                                           \
    "  - {name: check, pack: check.moe, architecture: big, device: cpu}\n"                         \
    "routes:\n  - {field: topic, equals: code, expert: code, quantity: 30}\n"                      \
    "  - {expert: chat, quantity: 70}\n"

static struct moe_coe_costs *parse(const char *text)
{
    struct moe_coe_costs *c;
    struct moe_err err;
    assert_ok(moe_record_parse(&moe_coe_costs_format, &c, "c.yaml", text, strlen(text), &err),
              &err);
    return c;
}

static struct moe_coe_collection *collect(const char *text)
{
    struct moe_coe_collection *c;
    struct moe_err err;
    assert_ok(moe_record_parse(&moe_coe_collection_format, &c, "c.yaml", text, strlen(text), &err),
              &err);
    return c;
}

static void files_come_back(void **state)
{
    (void)state;
    for (int json = 0; json < 2; json++) {
        struct moe_coe_costs *c = parse(ALL);
        struct moe_buf first = {0}, second = {0};
        struct moe_err err;
        assert_int_equal(c->n_costs, 3);
        assert_int_equal(c->costs[1].kind, 0);
        assert_int_equal(c->costs[1].on, 1);
        assert_int_equal(c->batches[0].bytes, 9);
        assert_ok(moe_coe_costs_write(c, json, &first, &err), &err);
        moe_coe_costs_free(c);
        assert_ok(
            moe_record_parse(&moe_coe_costs_format, &c, "again", first.data, first.size, &err),
            &err);
        assert_ok(moe_coe_costs_write(c, json, &second, &err), &err);
        assert_int_equal(first.size, second.size);
        assert_memory_equal(first.data, second.data, first.size);
        moe_coe_costs_free(c);
        moe_buf_release(&first);
        moe_buf_release(&second);
    }
}

static void tables_are_by_processor(void **state)
{
    struct moe_coe_costs *c = parse(ALL);
    struct moe_coe_cost table[2];
    (void)state;
    assert_int_equal(moe_coe_costs_processor(c, "cpu"), 1);
    assert_int_equal(moe_coe_costs_processor(c, "tpu"), MOE_COE_NONE);
    moe_coe_costs_table(c, 0, 0, table);
    assert_true(table[0].max_batch == 4 && table[0].load_from_host == 3);
    assert_true(table[0].request_bytes == 7 && table[1].max_batch == 0);
    moe_coe_costs_table(c, 1, 0, table);
    assert_true(table[1].max_batch == 4 && table[1].per_batch == 2 && table[1].load == 10);
    moe_coe_costs_free(c);
}

/* Four threads of which teams of 4 and 1 are measured: 2 lie between, by 1 / threads. */
static void teams_have_costs_of_their_own(void **state)
{
    static const char team[] =
        "  - {architecture: big, processor: cpu, threads: 1, per_request_seconds: 1.7, "
        "per_batch_seconds: 8, max_batch: 3, load_seconds: 10, expert_bytes: 120, "
        "request_bytes: 2}\n";
    struct moe_buf text = {0};
    struct moe_coe_cost table[2];
    uint32_t threads, at_a_time;
    (void)state;
    moe_buf_text(&text, HEAD TEAMS KINDS COSTS);
    moe_buf_text(&text, team);
    moe_buf_text(&text, BATCHES "  - {architecture: big, processor: cpu, threads: 1, requests: 2, "
                                "seconds: 9}\n");
    moe_buf_u8(&text, 0);
    struct moe_coe_costs *c = parse((const char *)text.data);
    assert_int_equal(c->costs[1].threads, 4); /* all, where none are said */
    assert_int_equal(c->batches[0].threads, 4);
    assert_int_equal(c->batches[1].threads, 1);
    moe_coe_costs_table(c, 1, 1, table);
    assert_true(table[0].per_request == 1.7 && table[0].max_batch == 3);
    moe_coe_costs_table(c, 1, 0, table);
    assert_true(table[0].per_request == 0.5 && table[0].per_batch == 2 && table[0].max_batch == 4);
    moe_coe_costs_table(c, 1, 9, table); /* more than there are */
    assert_true(table[0].per_request == 0.5);
    moe_coe_costs_table(c, 1, 2, table); /* 1/2 is a third of the way from 1/4 to 1 */
    assert_true(fabs(table[0].per_request - (0.5 + 1.2 / 3)) < 1e-12);
    assert_true(fabs(table[0].per_batch - 4) < 1e-12);
    assert_true(table[0].max_batch == 4 && table[0].load == 10);
    assert_true(fabs(table[1].per_request - 1) < 1e-12); /* one team alone is measured: 0.5 * 2 */
    moe_coe_costs_table(c, 0, 0, table);
    assert_true(table[0].per_request == 0.5 && table[0].load_from_host == 3);
    for (uint32_t n = 1; n <= 6; n++) {
        static const uint32_t teams[] = {0, 4, 2, 1, 1, 1, 1};
        moe_coe_costs_teams(c, 1, n, &threads, &at_a_time);
        assert_int_equal(threads, teams[n]);
        assert_int_equal(at_a_time, n < 4 ? n : 4);
        moe_coe_costs_teams(c, 0, n, &threads, &at_a_time); /* in turn */
        assert_true(threads == 0 && at_a_time == 1);
    }
    moe_coe_costs_free(c);
    moe_buf_release(&text);
}

static void experts_are_made_of_costs_and_collection(void **state)
{
    static const char follows[] =
        COLLECTION "follows:\n  - {after: code, equals: ok, expert: check, share: 0.5}\n"
                   "  - {after: chat, expert: check, share: 0.1}\n"
                   "  - {after: code, equals: yes, expert: check, share: 0.5}\n";
    struct moe_coe_collection *collection = collect(follows);
    struct moe_coe_costs *c = parse(ALL);
    struct moe_coe_experts *all;
    struct moe_err err;
    bool probable;
    (void)state;
    assert_ok(moe_coe_costs_experts(&all, c, collection, &probable, &err), &err);
    assert_int_equal(all->n, 3);
    assert_int_equal(all->n_kinds, 2);
    assert_true(probable);
    assert_true(all->experts[0].probability == 0.75); /* the costs': not 0.7 */
    assert_true(fabs(all->experts[1].probability - 0.3) < 1e-12);
    assert_true(fabs(all->experts[2].probability - 0.37) < 1e-12);
    assert_int_equal(all->experts[0].bytes, 120); /* the processor that needs most */
    assert_int_equal(all->experts[0].not_on, 0);
    assert_int_equal(all->experts[1].bytes, 30);
    assert_int_equal(all->experts[1].not_on, 1); /* nothing is known of it there */
    assert_int_equal(all->experts[2].not_on, 1); /* the collection says so */
    assert_int_equal(all->experts[2].n_before, 2);
    assert_int_equal(all->before[all->experts[2].first_before], 1);
    assert_int_equal(all->before[all->experts[2].first_before + 1], 0);
    moe_coe_experts_free(all);
    moe_coe_collection_free(collection);
    /* Without quantities nothing is known but what the costs say. */
    collection = collect("format: moe-coe\nversion: 1\nexperts:\n  - {name: chat, pack: p}\n"
                         "  - {name: code, pack: p}\nroutes:\n"
                         "  - {field: x, equals: y, expert: code}\n  - {expert: chat}\n");
    assert_ok(moe_coe_costs_experts(&all, c, collection, &probable, &err), &err);
    assert_false(probable);
    assert_true(all->experts[0].probability == 0.75 && all->experts[1].probability == 0);
    moe_coe_experts_free(all);
    moe_coe_collection_free(collection);
    moe_coe_costs_free(c);
}

static void experts_come_after_those_that_lead_to_them(void **state)
{
    struct moe_coe_collection *collection =
        collect("format: moe-coe\nversion: 1\nexperts:\n"
                "  - {name: a, pack: p, architecture: big}\n"
                "  - {name: b, pack: p, architecture: big}\n"
                "  - {name: c, pack: p, architecture: small}\n"
                "  - {name: d, pack: p, architecture: small}\n"
                "routes:\n  - {field: x, equals: y, expert: d}\n  - {expert: a}\n"
                "follows:\n  - {after: a, expert: b}\n  - {after: b, expert: c}\n"
                "  - {after: b, expert: d}\n  - {after: a, equals: z, expert: c}\n");
    static const uint32_t n_before[] = {0, 1, 2, 0}; /* requests begin with d, too */
    struct moe_coe_costs *c = parse(ALL);
    struct moe_coe_experts *all;
    struct moe_err err;
    (void)state;
    assert_ok(moe_coe_costs_experts(&all, c, collection, NULL, &err), &err);
    for (int i = 0; i < 4; i++)
        assert_int_equal(all->experts[i].n_before, n_before[i]);
    assert_int_equal(all->before[all->experts[1].first_before], 0);
    assert_int_equal(all->before[all->experts[2].first_before], 1);
    assert_int_equal(all->before[all->experts[2].first_before + 1], 0);
    moe_coe_experts_free(all);
    moe_coe_collection_free(collection);
    moe_coe_costs_free(c);
}

static void experts_without_costs_are_named(void **state)
{
    static const struct {
        const char *expert, *words;
    } rows[] = {
        {"{name: x, pack: p}", "expert 'x' has no architecture"},
        {"{name: x, pack: p, architecture: huge}", "no architecture 'huge'"},
        {"{name: x, pack: p, architecture: small, device: cuda}", "may run on 'cuda'"},
    };
    struct moe_coe_costs *c = parse(ALL);
    (void)state;
    for (size_t i = 0; i < N_ITEMS(rows); i++) {
        char text[512];
        struct moe_coe_experts *all;
        struct moe_err err;
        snprintf(text, sizeof text,
                 "format: moe-coe\nversion: 1\nexperts:\n  - %s\nroutes:\n  - {expert: x}\n",
                 rows[i].expert);
        struct moe_coe_collection *collection = collect(text);
        assert_fails(moe_coe_costs_experts(&all, c, collection, NULL, &err), MOE_ERR_USAGE,
                     rows[i].words, &err);
        assert_null(all);
        moe_coe_collection_free(collection);
    }
    moe_coe_costs_free(c);
}

static void what_is_wrong_is_named(void **state)
{
    static const struct {
        const char *text, *words;
    } rows[] = {
        {HEAD, "there are no costs"},
        {HEAD PROCESSORS KINDS, "'big' has no costs"},
        {HEAD PROCESSORS "  - {name: cpu}\n", "more than 2"},
        {HEAD "processors:\n  - {name: cpu}\n  - {name: cpu}\n", "'cpu' occurs twice"},
        {HEAD "processors:\n  - {name: tpu}\n", "not 'tpu'"},
        {HEAD PROCESSORS "architectures:\n  - {name: a}\n  - {name: a}\n", "'a' occurs twice"},
        {HEAD PROCESSORS KINDS "costs:\n" COST("none", "cpu", "") "1}\n", "not one of the arch"},
        {HEAD PROCESSORS KINDS "costs:\n" COST("big", "tpu", "") "1}\n", "not one of the proc"},
        {HEAD PROCESSORS KINDS "costs:\n" COST("big", "cuda", "") "1}\n", "is missing"},
        {HEAD PROCESSORS KINDS "costs:\n" COST("big", "cpu", "load_from_host_seconds: 1, ") "1}\n",
         "shares the host's"},
        {HEAD PROCESSORS KINDS "costs:\n" COST("big", "cpu", "") "0}\n", "expert_bytes"},
        {HEAD PROCESSORS KINDS COSTS COST("big", "cpu", "") "1}\n", "'big' on 'cpu' occurs twice"},
        {HEAD PROCESSORS KINDS COSTS COST("big", "cpu", "threads: 2, ") "1}\n",
         "'threads' is 2, and processor 'cpu' has 0"},
        {HEAD TEAMS KINDS COSTS COST("big", "cpu", "threads: 4, ") "1}\n", "occurs twice"},
        {HEAD TEAMS KINDS COSTS COST("big", "cpu", "threads: 5, ") "1}\n", "has 4"},
        {HEAD TEAMS KINDS "costs:\n" COST("big", "cpu", "threads: 2, ") "1}\n",
         "'big' on 'cpu' has no costs for all 4 threads"},
        {HEAD TEAMS KINDS COSTS "batches:\n  - {architecture: big, processor: cpu, threads: 5, "
                                "requests: 1, seconds: 1}\n",
         "'threads' is 5"},
        {HEAD PROCESSORS KINDS COSTS "batches:\n  - {architecture: big, processor: x, "
                                     "requests: 1, seconds: 1}\n",
         "'x' is not one"},
        {HEAD PROCESSORS KINDS COSTS "batches:\n  - {architecture: big, processor: cpu, "
                                     "requests: 0, seconds: 1}\n",
         "requests"},
        {ALL "  - {name: chat, architecture: small}\n", "'chat' occurs twice"},
        {ALL "  - {name: x, architecture: y}\n", "'y' is not one of the architectures"},
        {ALL "  - {name: x, architecture: big, probability: 2}\n", "probability"},
        {ALL "whatever: 1\n", "whatever"},
        {"format: moe-coe\nversion: 1\n", "moe-coe"},
        {"format: moe-coe-costs\nversion: 2\n", "version"},
    };
    (void)state;
    for (size_t i = 0; i < N_ITEMS(rows); i++) {
        struct moe_coe_costs *c;
        struct moe_err err = {0};
        int status = moe_record_parse(&moe_coe_costs_format, &c, "c.yaml", rows[i].text,
                                      strlen(rows[i].text), &err);
        if (status == MOE_OK || !strstr(err.text, rows[i].words))
            fail_msg("row %zu: '%s' is not in '%s'", i, rows[i].words, err.text);
        assert_null(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_come_back),
        cmocka_unit_test(tables_are_by_processor),
        cmocka_unit_test(teams_have_costs_of_their_own),
        cmocka_unit_test(experts_are_made_of_costs_and_collection),
        cmocka_unit_test(experts_come_after_those_that_lead_to_them),
        cmocka_unit_test(experts_without_costs_are_named),
        cmocka_unit_test(what_is_wrong_is_named),
    };
    return cmocka_run_group_tests_name("costs", tests, NULL, NULL);
}
