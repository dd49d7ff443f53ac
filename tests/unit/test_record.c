/* A record of every kind of member, read, checked and written. */
#include "fmt/record.h"

#include <stdlib.h>
#include <string.h>

#include "../test.h"

enum colour { RED, GREEN, N_COLOURS };
static const char *const colours[N_COLOURS] = {"red", "green"};

struct item {
    uint32_t rows;
    double seconds;
};

struct thing {
    char name[8];
    bool fast;
    enum colour colour;
    uint32_t count, layer; /* layer: UINT32_MAX: not known */
    uint64_t bytes, id;
    double share, rate; /* rate: below 0: not known */
    bool has_more;
    double more;
    uint32_t n_items, n_others;
    struct item items[3];
    struct item *others;
};

static const struct moe_member item_members[] = {
    MOE_RISING_FIELD(struct item, "rows", rows, 1, HUGE_VAL),
    MOE_FIELD(MOE_IF_SET, struct item, "seconds", seconds),
};
static const struct moe_record item_record = {MOE_RECORD(item_members)};

static const struct moe_member more_members[] = {
    MOE_FIELD_IN(MOE_ALWAYS, struct thing, "more", more, MOE_ABOVE_0, HUGE_VAL),
};
static const struct moe_record more_record = {MOE_RECORD(more_members),
                                              MOE_FLAGGED(struct thing, has_more)};

/* A check across the record: refuses one name. */
static int check_thing(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    const struct thing *t = record;
    assert_ptr_equal(r->whole, t);
    return strcmp(t->name, "AAH") == 0 ? moe_yaml_fail(r->doc, map, r->err, "too loud") : MOE_OK;
}

static const struct moe_member thing_members[] = {
    MOE_FIELD(MOE_ALWAYS, struct thing, "name", name),
    MOE_FIELD(MOE_IF_SET, struct thing, "fast", fast),
    MOE_NAME(MOE_IF_SET, struct thing, "colour", colour, colours),
    MOE_FIELD_IN(MOE_ALWAYS, struct thing, "count", count, 1, 9),
    MOE_FIELD(MOE_IF_KNOWN, struct thing, "layer", layer),
    MOE_FIELD(MOE_IF_SET, struct thing, "bytes", bytes),
    MOE_FINGERPRINT(MOE_IF_SET, struct thing, "id", id),
    MOE_FIELD_IN(MOE_IF_SET, struct thing, "share", share, 0, 1),
    MOE_FIELD(MOE_IF_KNOWN, struct thing, "rate", rate),
    MOE_SECTION(MOE_IF_SET, "section", 0, more_record),
    MOE_LINE_LIST(struct thing, "items", items, n_items, item_record),
    MOE_OWNED_LINE_LIST(struct thing, "others", others, n_others, item_record, 4),
};
static const struct moe_record thing_record = {MOE_RECORD(thing_members), check_thing};

static void release(void *whole)
{
    free(((struct thing *)whole)->others);
}

static const struct moe_record_format format = {
    "moe-thing", "Thing", 1, 1000, &thing_record, NULL, sizeof(struct thing), release};

#define HEAD "# Thing: see moe-thing(5).\nformat: moe-thing\nversion: 1\n"

static void comes_back(const char *text)
{
    struct moe_err err = {0};
    struct thing *t;
    struct moe_buf out = {0};
    assert_ok(moe_record_parse(&format, &t, "x", text, strlen(text), &err), &err);
    assert_ok(moe_record_write(&format, t, false, &out, &err), &err);
    moe_buf_u8(&out, 0);
    assert_string_equal((const char *)out.data, text);
    moe_buf_release(&out);
    moe_record_free(&format, t);
}

static void refused(const char *members, const char *why)
{
    struct moe_err err = {0};
    struct thing *t;
    struct moe_buf text = {0};
    moe_buf_printf(&text, HEAD "%s", members);
    assert_fails(moe_record_parse(&format, &t, "x", text.data, text.size, &err), MOE_ERR_FORMAT,
                 why, &err);
    assert_null(t);
    moe_buf_release(&text);
}

static void what_is_read_is_written_again(void **state)
{
    comes_back(HEAD "name: a\ncount: 1\n");
    comes_back(HEAD
               "name: a\nfast: true\ncolour: green\ncount: 9\nlayer: 0\nbytes: 9007199254740992\n"
               "id: \"00000000000000ab\"\nshare: 1\nrate: 0\nsection:\n  more: 0.25\n"
               "items:\n  - {rows: 1}\n  - {rows: 4, seconds: 0.5}\n"
               "others:\n  - {rows: 2, seconds: 1}\n");
}

static void missing_members_have_their_values(void **state)
{
    static const char text[] = HEAD "name: a\ncount: 1\n";
    struct moe_err err = {0};
    struct thing *t;
    assert_ok(moe_record_parse(&format, &t, "x", text, strlen(text), &err), &err);
    assert_true(t->share == 0 && t->rate == -1 && t->layer == UINT32_MAX && !t->has_more);
    assert_true(t->colour == RED);
    moe_record_free(&format, t);
}

static void what_is_wrong_is_named(void **state)
{
    refused("count: 1\n", "'name' is missing");
    refused("name: \"\"\ncount: 1\n", "line 4 column 7: 'name' is empty");
    refused("name: abcdefgh\ncount: 1\n", "'name' is longer than 7 bytes");
    refused("name: a\ncolour: blue\ncount: 1\n",
            "line 5 column 9: 'colour' is 'blue', not one of: red, green");
    refused("name: a\ncount: 0\n", "line 5 column 8: 'count' must be from 1 to 9");
    refused("name: a\ncount: 10\n", "'count' must be a whole number from 0 to 9");
    refused("name: a\ncount: 1\nbytes: 9007199254740993\n", "line 6 column 8: 'bytes'");
    refused("name: a\ncount: 1\nshare: 1.5\n", "'share' must be from 0 to 1");
    refused("name: a\ncount: 1\nrate: -1\n", "'rate' must be at least 0");
    refused("name: a\ncount: 1\nsection: {more: 0}\n", "'more' must be above 0");
    refused("name: a\ncount: 1\nitems: [{rows: 2}, {rows: 2}]\n",
            "line 6 column 20: 'rows' must be rising");
    refused("name: a\ncount: 1\nitems: [{rows: 1}, {rows: 2}, {rows: 3}, {rows: 4}]\n",
            "'items' must not have more than 3 items");
    refused("name: a\ncount: 1\nothers: [2]\n", "an item must be a mapping");
    refused("name: a\ncount: 1\nlength: 4\n", "unknown key 'length'");
    refused("name: AAH\ncount: 1\n", "too loud");
}

static void numbers_that_are_not_finite_are_refused(void **state)
{
    struct moe_err err = {0};
    struct moe_buf out = {0};
    struct thing t = {.name = "a", .count = 1, .has_more = true, .more = HUGE_VAL, .rate = NAN};
    assert_fails(moe_record_write(&format, &t, true, &out, &err), MOE_ERR_USAGE,
                 "a number of 'more' is not finite", &err);
    moe_buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_read_is_written_again),
        cmocka_unit_test(missing_members_have_their_values),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(numbers_that_are_not_finite_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
