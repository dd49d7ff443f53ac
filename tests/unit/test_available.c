/* What control groups leave of memory and processors, by recorded trees of their files: versions 1
 * and 2, nested, in containers, with files that hold nothing useful. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "../scratch_dir.h"
#include "base/limits.h"

#define MIB (UINT64_C(1) << 20)
#define V2 "sys/fs/cgroup"
#define V1 "sys/fs/cgroup/memory"

static void put(const char *file, const char *text)
{
    char command[512];
    snprintf(command, sizeof command, "mkdir -p \"$(dirname '%s')\"", in_dir(file));
    assert_int_equal(system(command), 0);
    write_in_dir(file, text, strlen(text));
}

/* A tree with 1 GiB available to all, and the process in these groups. */
static void begin(const char *groups)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'/*", dir);
    assert_int_equal(system(command), 0);
    put("proc/meminfo", "MemTotal: 2097152 kB\nMemAvailable:    1048576 kB\n");
    put("proc/self/cgroup", groups);
}

static void put_v2(const char *group, const char *max, const char *current, const char *stat)
{
    char file[256];
    snprintf(file, sizeof file, V2 "%s/memory.max", group);
    put(file, max);
    snprintf(file, sizeof file, V2 "%s/memory.current", group);
    put(file, current);
    snprintf(file, sizeof file, V2 "%s/memory.stat", group);
    put(file, stat);
}

static void put_v1(const char *group, const char *limit, const char *usage, const char *stat)
{
    char file[256];
    snprintf(file, sizeof file, V1 "%s/memory.limit_in_bytes", group);
    put(file, limit);
    snprintf(file, sizeof file, V1 "%s/memory.usage_in_bytes", group);
    put(file, usage);
    snprintf(file, sizeof file, V1 "%s/memory.stat", group);
    put(file, stat);
}

static void expect_mib(uint64_t mib)
{
    assert_int_equal(moe_available_bytes_in(dir), mib * MIB);
}

static void without_groups_the_system_counts(void **state)
{
    (void)state;
    begin("0::/\n");
    expect_mib(1024);
    begin("");
    expect_mib(1024);
    assert_true(moe_available_bytes_in("/nowhere") == UINT64_MAX);
}

static void nested_groups_of_version_2(void **state)
{
    (void)state;
    begin("0::/user.slice/run.scope\n");
    put_v2("/user.slice/run.scope", "max\n", "10485760\n", "anon 1\n");
    put_v2("/user.slice", "209715200\n", "104857600\n",
           "anon 1\nfile 5\ninactive_file 52428800\ninactive_file_of 7\n");
    expect_mib(150); /* 200 - (100 - 50) of the group above */
    put_v2("/user.slice/run.scope", "62914560\n", "10485760\n", "anon 1\n");
    expect_mib(50);
    put_v2("/user.slice/run.scope", "1048576\n", "10485760\n", "");
    expect_mib(0); /* beyond its limit already */
}

static void a_container_sees_its_limit_at_the_mount(void **state)
{
    (void)state;
    begin("0::/\n"); /* its own namespace */
    put_v2("", "67108864\n", "4194304\n", "inactive_file 1048576\n");
    expect_mib(61);
    begin("0::/docker/0123abcd\n"); /* the host's path, which the mount does not show */
    put_v2("", "67108864\n", "4194304\n", "");
    expect_mib(60);
    begin("3:cpu,memory:/docker/0123abcd\n0::/docker/0123abcd\n");
    put_v1("", "67108864\n", "4194304\n", "total_inactive_file 0\n");
    expect_mib(60);
}

/* A process that was moved out of its namespace's root: only the mount can be seen. */
static void paths_that_leave_the_namespace(void **state)
{
    (void)state;
    static const char *const paths[] = {"0::/../other\n", "0::/..\n", "0::/a/../../b\n"};
    for (int i = 0; i < 3; i++) {
        begin(paths[i]);
        put("memory.max", "1\n"); /* where such a path leads */
        put("sys/memory.max", "1\n");
        put("sys/fs/memory.max", "1\n");
        put("sys/fs/other/memory.max", "1\n");
        put("sys/fs/b/memory.max", "1\n");
        put_v2("", "67108864\n", "4194304\n", "");
        expect_mib(60);
    }
}

static void version_1_and_both_side_by_side(void **state)
{
    (void)state;
    begin("9:name=memory:/no\n8:memory_of:/no\n5:memory:/a/b\n1:name=systemd:/x\n0::/x\n");
    put_v1("/no", "1\n", "0\n", "");
    put_v1("/a/b", "9223372036854771712\n", "1048576\n", "");
    put_v1("/a", "104857600\n", "31457280\n", "total_inactive_file 10485760\n");
    put_v1("", "9223372036854771712\n", "1048576\n", "");
    put(V2 "/unified/x/cgroup.procs", "");
    expect_mib(80);
    put(V2 "/unified/x/memory.max", "52428800\n");
    put(V2 "/unified/x/memory.current", "10485760\n");
    expect_mib(40);
    begin("4:hugetlb,memory,pids:/a\n"); /* mounted together with others */
    put_v1("/a", "-1\n", "0\n", "");
    expect_mib(1024);
    put_v1("/a", "33554432\n", "0\n", "");
    expect_mib(32);
}

static void the_high_mark_counts(void **state)
{
    (void)state;
    begin("0::/a\n");
    put_v2("/a", "max\n", "10485760\n", "");
    put(V2 "/a/memory.high", "52428800\n");
    put(V2 "/a/memory.swap.max", "1073741824\n"); /* swap does not make room */
    expect_mib(40);
    put(V2 "/a/memory.high", "max\n");
    expect_mib(1024);
    put_v2("/a", "31457280\n", "10485760\n", "");
    put(V2 "/a/memory.high", "52428800\n");
    expect_mib(20);
}

/* After a file was read its pages fill the group, and are given up when memory is needed. */
static void page_cache_is_free(void **state)
{
    (void)state;
    begin("0::/a\n");
    put_v2("/a", "283115520\n", "278921216\n",
           "anon 8388608\nfile 268435456\nshmem 4194304\ninactive_file 52428800\n"
           "active_file 209715200\nslab_reclaimable 2097152\nslab_unreclaimable 1048576\n");
    expect_mib(270 - (266 - 50 - 200 - 2));
    put_v2("/a", "67108864\n", "20971520\n", "active_file 62914560\ninactive_file 1\n");
    expect_mib(64); /* no more than the limit, whatever the kernel counts */
    begin("4:memory:/a\n");
    put_v1("/a", "283115520\n", "278921216\n",
           "active_file 1048576\ninactive_file 1048576\ntotal_inactive_file 52428800\n"
           "total_active_file 209715200\n");
    expect_mib(270 - (266 - 50 - 200));
}

static void expect_cores(uint32_t cores)
{
    assert_int_equal(moe_quota_cores_in(dir), cores);
}

static void quotas_of_version_2(void **state)
{
    (void)state;
    begin("0::/user.slice/run.scope\n");
    expect_cores(UINT32_MAX);
    put(V2 "/user.slice/run.scope/cpu.max", "max 100000\n");
    expect_cores(UINT32_MAX);
    put(V2 "/user.slice/run.scope/cpu.max", "400000 100000\n");
    expect_cores(4);
    put(V2 "/user.slice/cpu.max", "150000 100000\n"); /* the group above has less */
    expect_cores(2);
    put(V2 "/user.slice/cpu.max", "200000 100000\n");
    expect_cores(2);
    put(V2 "/user.slice/run.scope/cpu.max", "1000 50000\n");
    expect_cores(1);
    begin("0::/docker/0123abcd\n"); /* the host's path, which the mount does not show */
    put(V2 "/cpu.max", "300000 100000\n");
    expect_cores(3);
}

static void quotas_of_version_1(void **state)
{
    (void)state;
    begin("5:cpuset:/no\n4:cpu,cpuacct:/a/b\n3:memory:/no\n");
    put("sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us", "100000\n");
    expect_cores(UINT32_MAX);
    put("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "250000\n");
    put("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
    expect_cores(3);
    put("sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "100000\n");
    put("sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000\n");
    expect_cores(1);
    put("sys/fs/cgroup/cpu/no/cpu.cfs_quota_us", "1\n");
    begin("4:cpuacct:/a\n"); /* not the one with quotas */
    put("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "100000\n");
    put("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
    expect_cores(UINT32_MAX);
}

static void garbage_is_no_limit(void **state)
{
    (void)state;
    static const char *const limits[] = {"", "\n", "many\n", "99999999999999999999999999\n",
                                         "-1\n"};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        begin("0::/a\n\n:\n::\n0:\n7:memory\nno line at all\n1:memory:relative\n");
        put_v2("/a", limits[i], "x\n", "inactive_file\ninactive_file many\n");
        expect_mib(1024);
    }
    put_v2("/a", "41943040\n", "x\n", ""); /* what is used is not known */
    expect_mib(40);
    put("proc/meminfo", "MemAvailable: lots\n");
    expect_mib(40);
    char line[6000] = "0::/";
    memset(line + 4, 'a', sizeof line - 5);
    begin(line);
    expect_mib(1024);
    static const char *const quotas[] = {
        "", "\n", "100000\n", "100000 0\n", "many 100000\n", "-1 100000\n"};
    for (size_t i = 0; i < sizeof quotas / sizeof *quotas; i++) {
        begin("0::/a\n");
        put(V2 "/a/cpu.max", quotas[i]);
        expect_cores(UINT32_MAX);
    }
    put(V2 "/a/cpu.max", "99999999999999999999999999 1\n");
    expect_cores(UINT32_MAX);
    put(V2 "/a/cpu.max", "0 100000\n");
    expect_cores(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_groups_the_system_counts),
        cmocka_unit_test(nested_groups_of_version_2),
        cmocka_unit_test(a_container_sees_its_limit_at_the_mount),
        cmocka_unit_test(paths_that_leave_the_namespace),
        cmocka_unit_test(version_1_and_both_side_by_side),
        cmocka_unit_test(the_high_mark_counts),
        cmocka_unit_test(page_cache_is_free),
        cmocka_unit_test(quotas_of_version_2),
        cmocka_unit_test(quotas_of_version_1),
        cmocka_unit_test(garbage_is_no_limit),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
