#include "html/page_file.h"

#include <stdio.h>
#include <string.h>

#include "fmt/yaml.h"
#include "html/pages.h"
#include "trace/trace.h"

int moe_page_of_file(const char *path, const char *timeline, struct moe_buf *out,
                     struct moe_err *err)
{
    static const struct {
        const char *format, *title;
        int (*draw)(struct moe_page *p, const char *path, struct moe_err *err);
    } known[] = {
        {"moe-plan", "Plan", page_plan},
        {"moe-map", "Bit map", page_map},
        {"moe-device", "Device profile", page_device},
        {"moe-stats", "Statistics", page_statistics}, /* last: what else is read as */
    };
    enum { LAST = sizeof known / sizeof known[0] - 1 };
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    struct moe_page page;
    char title[300];
    bool trace = moe_trace_is(path);
    size_t i = 0;
    while (!trace && i < LAST && !moe_yaml_file_is(path, known[i].format))
        i++;
    snprintf(title, sizeof title, "%s: %s", trace ? "Trace" : known[i].title, name);
    moe_page_begin(&page, out, title);
    int status = (trace ? page_trace : known[i].draw)(&page, path, err);
    if (status == MOE_OK && timeline)
        status = page_timeline(&page, timeline, err);
    moe_page_end(&page);
    return status;
}
