/* The processor's energy counters, from a tree like /sys/class/powercap. */
#define _DEFAULT_SOURCE
#include <fcntl.h>
#include <sys/stat.h>

#include "../scratch_dir.h"
#include "base/energy.h"

/* In place, as a counter is: a new file would not be the one that is open. */
static void put(const char *domain, const char *file, const char *text)
{
    char name[128];
    mkdir(in_dir(domain), 0777);
    snprintf(name, sizeof name, "%s/%s", domain, file);
    int fd = open(in_dir(name), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

static void put_domain(const char *domain, const char *name, const char *microjoules)
{
    put(domain, "name", name);
    put(domain, "max_energy_range_uj", "1000000000\n");
    put(domain, "energy_uj", microjoules);
}

static struct moe_energy *open_dir(void)
{
    struct moe_err err = {0};
    struct moe_energy *e = NULL;
    assert_ok(moe_energy_open(&e, dir, &err), &err);
    return e;
}

static void assert_joules(struct moe_energy *e, double wanted)
{
    double got = moe_energy_joules(e);
    if (got < wanted - 1e-9 || got > wanted + 1e-9)
        fail_msg("%g joules, expected %g", got, wanted);
}

static void assert_unavailable(const char *words)
{
    struct moe_energy *e = open_dir();
    assert_non_null(moe_energy_unavailable(e));
    assert_non_null(strstr(moe_energy_unavailable(e), words));
    assert_true(moe_energy_joules(e) == 0);
    moe_energy_close(e);
}

/* Two packages, one of which wraps; subdomains, the platform and the same package by another
 * interface are not added. */
static void packages_are_added_and_counted_once(void **state)
{
    put_domain("intel-rapl:0", "package-0\n", "5000000\n");
    put_domain("intel-rapl:0:0", "core\n", "1\n");
    put_domain("intel-rapl:1", "package-1\n", "999000000\n");
    put_domain("intel-rapl:2", "psys\n", "1\n");
    put_domain("intel-rapl-mmio:0", "package-0\n", "1\n");
    put_domain("intel-rapl", "package-0\n", "1\n");
    struct moe_energy *e = open_dir();
    assert_null(moe_energy_unavailable(e));
    assert_joules(e, 0);
    put("intel-rapl:0", "energy_uj", "7500000\n");
    put("intel-rapl:0:0", "energy_uj", "2000000\n");
    put("intel-rapl:2", "energy_uj", "90000000\n");
    put("intel-rapl-mmio:0", "energy_uj", "90000000\n");
    assert_joules(e, 2.5);
    put("intel-rapl:1", "energy_uj", "2000000\n"); /* past the end of its range */
    assert_joules(e, 5.5);
    put("intel-rapl:1", "energy_uj", "3000000\n");
    assert_joules(e, 6.5);
    put("intel-rapl:0", "energy_uj", "nonsense\n");
    assert_joules(e, 0);
    assert_non_null(strstr(moe_energy_unavailable(e), "cannot be read"));
    moe_energy_close(e);
    assert_true(moe_energy_joules(NULL) == 0);
}

static void what_is_missing_is_said(void **state)
{
    assert_unavailable("the system has no counters");
    put_domain("intel-rapl:2", "psys\n", "1\n");
    assert_unavailable("the system has no counters");
    put_domain("intel-rapl:0", "package-0\n", "1\n");
    put("intel-rapl:0", "max_energy_range_uj", "");
    assert_unavailable("cannot be read");
    put_domain("intel-rapl:0", "package-0\n", "");
    assert_unavailable("cannot be read");
    put_domain("intel-rapl:0", "package-0\n", "1\n");
    unlink(in_dir("intel-rapl:0/energy_uj"));
    assert_unavailable("cannot be read");
    strcat(dir, "/none");
    assert_unavailable("the system has no counters");
    *strrchr(dir, '/') = '\0';
}

/* One package of two that only root may read makes all of it unknown. */
static void counters_of_root_are_said(void **state)
{
    put_domain("intel-rapl:0", "package-0\n", "1\n");
    put_domain("intel-rapl:1", "package-1\n", "1\n");
    chmod(dir, 0755);
    chmod(in_dir("intel-rapl:1/energy_uj"), 0);
    bool root = geteuid() == 0;
    if (root)
        assert_int_equal(seteuid(65534), 0);
    assert_unavailable("not readable without root");
    if (root)
        assert_int_equal(seteuid(0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(packages_are_added_and_counted_once, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(what_is_missing_is_said, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(counters_of_root_are_said, make_dir, remove_dir),
    };
    return cmocka_run_group_tests_name("energy", tests, NULL, NULL);
}
