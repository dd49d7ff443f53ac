/* Conversions whose Nth allocation fails: each ends in an error, and no pack, or in the right
 * bytes. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "../failing_malloc.h"
#include "../make_pack.h"
#include "../scratch_dir.h"

#include "pack/pack.h"

/* Nearly all of a checkpoint's 1,700 allocations are those of its JSON files: not each is tried. */
#ifndef CHECKPOINT_STEP
#define CHECKPOINT_STEP 7
#endif
#define SOURCE DRAWN "/qwen2-moe-a"

static int convert(const char *from, const char *to, const struct moe_convert_options *options,
                   struct moe_err *err)
{
    struct moe_convert_report report;
    return moe_path_is_directory(from) ? moe_convert_checkpoint(from, to, options, &report, err)
                                       : moe_convert_pack(from, to, options, &report, err);
}

/* Fails allocation 0, `step`, 2 `step` ... of the conversion until none is left to fail. */
static void check_failures(const char *from, const struct moe_convert_options *options, long step)
{
    struct moe_err err = {0};
    struct moe_buf right = {0}, bytes = {0};
    const char *path = in_dir("x.moe");
    assert_ok(convert(from, path, options, &err), &err);
    assert_ok(moe_file_read_all(path, 1 << 24, &right, &err), &err);
    long n = 0, n_errors = 0;
    for (bool reached = true; reached; n += step) {
        remove(path);
        fail_allocation(n);
        int status = convert(from, path, options, &err);
        reached = all_allocations_work();
        if (status == MOE_OK) {
            moe_buf_clear(&bytes);
            assert_ok(moe_file_read_all(path, 1 << 24, &bytes, &err), &err);
            assert_int_equal(bytes.size, right.size);
            assert_memory_equal(bytes.data, right.data, right.size);
        } else {
            n_errors++;
            if (status == MOE_ERR_FORMAT)
                fail_msg("allocation %ld: no memory is called damage: %s", n, err.text);
            if (moe_path_exists(path))
                fail_msg("allocation %ld: %s, and yet a pack", n, err.text);
        }
    }
    assert_true(n_errors > 0 || !CAN_FAIL);
    moe_buf_release(&right);
    moe_buf_release(&bytes);
    remove(path);
}

static void checkpoints_become_packs_or_nothing(void **state)
{
    (void)state;
    struct moe_convert_options options = pack_options("4", 8);
    check_failures(SOURCE, &options, CHECKPOINT_STEP);
}

static void packs_become_packs_or_nothing(void **state)
{
    (void)state;
    struct moe_convert_options options = pack_options("8,4", 16);
    make_pack(in_dir("from.moe"), SOURCE, &options);
    options = pack_options("4", 8);
    check_failures(in_dir("from.moe"), &options, 1);
    remove(in_dir("from.moe"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checkpoints_become_packs_or_nothing),
        cmocka_unit_test(packs_become_packs_or_nothing),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
