#include "plan_explain.h"

#include <unistd.h>

#include "cli.h"
#include "fmt/yaml.h"
#include "show/explain.h"
#include "show/explain_coe.h"

static int explain_plan(const char *path, bool json, struct moe_buf *out, struct moe_err *err)
{
    struct moe_plan *plan = NULL;
    int status = moe_plan_read(&plan, path, err);
    if (status == MOE_OK && json)
        status = moe_explain_plan_json(plan, out, err);
    else if (status == MOE_OK)
        moe_explain_plan(plan, cli_screen(STDOUT_FILENO), out);
    moe_plan_free(plan);
    return status;
}

static int explain_statistics(const char *path, bool json, struct moe_buf *out, struct moe_err *err)
{
    struct moe_statistics *s = NULL;
    int status = moe_statistics_read(&s, path, err);
    if (status == MOE_OK && json)
        status = moe_explain_statistics_json(s, out, err);
    else if (status == MOE_OK)
        status = moe_explain_statistics(s, cli_screen(STDOUT_FILENO), out, err);
    moe_statistics_free(s);
    return status;
}

static int explain_coe_plan(const char *path, bool json, struct moe_buf *out, struct moe_err *err)
{
    struct moe_coe_plan *plan = NULL;
    int status = moe_coe_plan_read(&plan, path, err);
    if (status == MOE_OK && json)
        status = moe_coe_plan_write(plan, true, out, err);
    else if (status == MOE_OK)
        moe_explain_coe_plan(plan, cli_screen(STDOUT_FILENO), out);
    moe_coe_plan_free(plan);
    return status;
}

int plan_explain(const char *path, bool json, struct moe_err *err)
{
    struct moe_buf out = {0};
    int status;
    if (moe_yaml_file_is(path, "moe-plan"))
        status = explain_plan(path, json, &out, err);
    else if (moe_yaml_file_is(path, "moe-coe-plan"))
        status = explain_coe_plan(path, json, &out, err);
    else if (moe_yaml_file_is(path, "moe-stats"))
        status = explain_statistics(path, json, &out, err);
    else
        status = moe_explain_pack(path, json, cli_screen(STDOUT_FILENO), &out, err);
    if (!json)
        cli_fit(STDOUT_FILENO, &out);
    return cli_print(status, &out, err);
}
