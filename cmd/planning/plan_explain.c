/* --explain, --compare and --html. */
#include "plan_explain.h"

#include <unistd.h>

#include "cli.h"
#include "show/explain.h"
#include "show/html.h"

int plan_explain(const char *path, const char *other, bool json, struct moe_err *err)
{
    const struct moe_screen screen = cli_screen(STDOUT_FILENO);
    struct moe_buf out = {0}, picture = {0};
    int status = other ? moe_compare_files(path, other, json, screen, &out, err)
                       : moe_explain_file(path, json, screen, &out, &picture, err);
    if (!json)
        cli_fit(STDOUT_FILENO, &out);
    status = cli_print(status, &out, err);
    return cli_print_as_is(status, &picture, err);
}

int plan_page(const char *path, const char *timeline, const char *html, struct moe_err *err)
{
    struct moe_buf out = {0};
    int status = moe_page_of_file(path, timeline, &out, err);
    return cli_save(status, &out, html, err);
}
