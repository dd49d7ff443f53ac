#include "show/explain_file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "fmt/yaml.h"
#include "show/compare.h"
#include "show/explain.h"
#include "show/explain_coe.h"

static int explain_plan(const char *path, bool json, struct moe_screen screen, struct moe_buf *out,
                        struct moe_buf *picture, struct moe_err *err)
{
    (void)picture;
    struct moe_plan *plan = NULL;
    int status = moe_plan_read(&plan, path, err);
    if (status == MOE_OK && json)
        status = moe_explain_plan_json(plan, out, err);
    else if (status == MOE_OK)
        moe_explain_plan(plan, screen, out);
    moe_plan_free(plan);
    return status;
}

static int explain_coe_plan(const char *path, bool json, struct moe_screen screen,
                            struct moe_buf *out, struct moe_buf *picture, struct moe_err *err)
{
    (void)picture;
    struct moe_coe_plan *plan = NULL;
    int status = moe_coe_plan_read(&plan, path, err);
    if (status == MOE_OK && json)
        status = moe_coe_plan_write(plan, true, out, err);
    else if (status == MOE_OK)
        moe_explain_coe_plan(plan, screen, out);
    moe_coe_plan_free(plan);
    return status;
}

static int explain_statistics(const char *path, bool json, struct moe_screen screen,
                              struct moe_buf *out, struct moe_buf *picture, struct moe_err *err)
{
    struct moe_statistics *s = NULL;
    int status = moe_statistics_read(&s, path, err);
    if (status == MOE_OK && json)
        status = moe_explain_statistics_json(s, out, err);
    else if (status == MOE_OK)
        status = moe_explain_statistics(s, screen, out, picture, err);
    moe_statistics_free(s);
    return status;
}

static int explain_map(const char *path, bool json, struct moe_screen screen, struct moe_buf *out,
                       struct moe_buf *picture, struct moe_err *err)
{
    (void)picture;
    struct moe_map *map = NULL;
    int status = moe_map_read(&map, path, err);
    if (status == MOE_OK && json)
        status = moe_map_write_json(map, out, err);
    else if (status == MOE_OK)
        moe_explain_map(map, screen, out);
    moe_map_free(map);
    return status;
}

static int explain_device(const char *path, bool json, struct moe_screen screen,
                          struct moe_buf *out, struct moe_buf *picture, struct moe_err *err)
{
    (void)picture;
    struct moe_device *d = NULL;
    int status = moe_device_read(&d, path, err);
    if (status == MOE_OK && json)
        status = moe_device_write_json(d, out, err);
    else if (status == MOE_OK)
        moe_explain_device(d, screen, out);
    free(d);
    return status;
}

static int explain_trace(const char *path, bool json, struct moe_screen screen, struct moe_buf *out,
                         struct moe_buf *picture, struct moe_err *err)
{
    struct moe_trace *t = NULL;
    int status = moe_trace_open(&t, path, err);
    if (status == MOE_OK)
        status = moe_explain_trace(t, json, screen, out, picture, err);
    moe_trace_close(t);
    return status;
}

/* Whether it is a file that can be read and does not begin as packs do; what cannot be read,
 * opening it as a pack says why. */
static bool is_no_pack(const char *path)
{
    static const char magic[] = {'M', 'O', 'E', 'P'};
    char start[sizeof magic];
    uint64_t bytes = 0;
    int fd = moe_file_open(path, &bytes, NULL);
    if (fd < 0)
        return false;
    bool is = bytes >= sizeof start &&
              moe_file_pread(fd, path, start, sizeof start, 0, NULL) == MOE_OK &&
              memcmp(start, magic, sizeof start) == 0;
    close(fd);
    return !is;
}

int moe_explain_file(const char *path, bool json, struct moe_screen screen, struct moe_buf *out,
                     struct moe_buf *picture, struct moe_err *err)
{
    static const struct {
        const char *format;
        int (*explain)(const char *path, bool json, struct moe_screen screen, struct moe_buf *out,
                       struct moe_buf *picture, struct moe_err *err);
    } known[] = {
        {"moe-plan", explain_plan},        {"moe-coe-plan", explain_coe_plan},
        {"moe-stats", explain_statistics}, {"moe-map", explain_map},
        {"moe-device", explain_device},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (moe_yaml_file_is(path, known[i].format))
            return known[i].explain(path, json, screen, out, picture, err);
    if (moe_trace_is(path))
        return explain_trace(path, json, screen, out, picture, err);
    if (moe_run_figures_is(path))
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: figures of a run are explained beside its plan: --explain PLAN "
                        "--compare FILE",
                        path);
    if (is_no_pack(path))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: neither a plan, statistics, a trace, a bit map, a device profile nor "
                        "a pack",
                        path);
    return moe_explain_pack(path, json, screen, out, err);
}

/* Another kind of file than a plan; what cannot be read, reading it as a plan says why. */
static bool is_no_plan(const char *path)
{
    uint64_t bytes = 0;
    int fd = moe_file_open(path, &bytes, NULL);
    if (fd < 0)
        return false;
    close(fd);
    return !moe_yaml_file_is(path, "moe-plan");
}

int moe_compare_files(const char *path, const char *other, bool json, struct moe_screen screen,
                      struct moe_buf *out, struct moe_err *err)
{
    struct moe_plan *plan = NULL, *second = NULL;
    struct moe_run_figures run;
    struct moe_comparison c;
    bool measured = moe_run_figures_is(other);
    if (is_no_plan(path))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: not a plan: --compare puts the plan of --explain beside another",
                        path);
    if (!measured && is_no_plan(other))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: neither a plan nor what moe-run --stats-json wrote", other);
    int status = moe_plan_read(&plan, path, err);
    if (status == MOE_OK)
        status =
            measured ? moe_run_figures_read(&run, other, err) : moe_plan_read(&second, other, err);
    if (status == MOE_OK && measured)
        moe_compare_run(plan, &run, &c);
    else if (status == MOE_OK)
        moe_compare_plans(plan, second, &c);
    if (status == MOE_OK && json)
        status = moe_comparison_json(&c, out, err);
    else if (status == MOE_OK)
        moe_draw_comparison(&c, screen, out);
    moe_plan_free(plan);
    moe_plan_free(second);
    return status;
}
