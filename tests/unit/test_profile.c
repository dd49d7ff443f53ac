/* Profiling whose tables of paths outgrow their share: it ends between two documents, and goes on.
 */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "../scratch_dir.h"
#include "model_fixture.h"

#include "engine/engine.h"
#include "tune/profile.h"

enum { N_DOCUMENTS = 6, MAX_TOKENS = 24 };

static struct fixture f;

static int open_model(void **state)
{
    struct moe_err err;
    (void)state;
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    fixture_open(&f, 4, 1, 64);
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    fixture_close(&f);
    return 0;
}

static void write_text(const char *name)
{
    static const char *const first[] = {"One day", "Once upon", "The cat", "A bird", "Tom", "Lily"};
    struct moe_buf text = {0};
    for (int i = 0; i < N_DOCUMENTS; i++)
        moe_buf_printf(&text, "%s went to the park and saw a %s dog there.\n<|endoftext|>\n",
                       first[i], i % 2 ? "big" : "little");
    write_in_dir(name, text.data, text.size);
    moe_buf_release(&text);
}

/* As YAML; releases them. */
static struct moe_buf written(struct moe_statistics *s)
{
    struct moe_buf text = {0};
    struct moe_err err;
    assert_ok(moe_statistics_write(s, &text, &err), &err);
    moe_statistics_free(s);
    return text;
}

static void tables_of_paths_end_a_run_that_goes_on(void **state)
{
    const char *const texts[] = {in_dir("text")};
    struct moe_statistics_shape shape = moe_model_statistics_shape(f.model);
    const struct moe_engine_room room = moe_engine_room_of(UINT64_MAX, 0, MAX_TOKENS);
    struct moe_profile_options o = {
        .texts = texts,
        .n_texts = 1,
        .max_tokens = MAX_TOKENS,
        .prompt_percent = 50,
        .n_shards = 1,
    };
    struct moe_statistics *s, *part;
    struct moe_err err;
    (void)state;
    write_text("text");
    assert_ok(moe_profile_survey(&o, f.model, &room, &err), &err);
    assert_ok(moe_profile_texts(f.session, &o, &s, &err), &err);
    struct moe_buf whole = written(s);

    uint64_t enough = o.paths_bytes;
    o.partial = in_dir("s.part");
    o.paths_bytes = moe_statistics_paths_bytes(&shape, 2 * MAX_TOKENS); /* of about three of them */
    assert_fails(moe_profile_texts(f.session, &o, &s, &err), MOE_ERR_LIMIT,
                 "documents the tables of paths outgrow the", &err);
    assert_non_null(strstr(err.text, "--resume with --memory "));
    assert_ok(moe_statistics_read(&part, o.partial, &err), &err);
    assert_in_range(part->totals[MOE_TOTAL_DOCUMENTS], 1, N_DOCUMENTS - 1);
    moe_statistics_free(part);

    o.resume = true;
    assert_fails(moe_profile_texts(f.session, &o, &s, &err), MOE_ERR_LIMIT, "outgrow", &err);
    o.paths_bytes = enough;
    assert_ok(moe_profile_texts(f.session, &o, &s, &err), &err);
    struct moe_buf resumed = written(s);
    assert_int_equal(resumed.size, whole.size);
    assert_memory_equal(resumed.data, whole.data, whole.size);
    moe_buf_release(&whole);
    moe_buf_release(&resumed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(tables_of_paths_end_a_run_that_goes_on, make_dir,
                                        remove_dir),
    };
    return cmocka_run_group_tests_name("profile", tests, open_model, close_model);
}
