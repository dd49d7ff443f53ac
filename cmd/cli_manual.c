/* --manual: the manual pages for those who have no man. The build writes them as text
 * (man/text.awk) into one file, which the assembler reads; there each page begins with a form feed
 * and its name: "\fmoe-run.1\n". */
#define _POSIX_C_SOURCE 200809L /* popen */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "cli_private.h"

__asm__(".section .rodata\n"
        ".global cli_manual\n"
        "cli_manual:\n"
        ".incbin \"" CLI_MANUAL "\"\n"
        ".byte 0\n"
        ".previous\n");
extern const char cli_manual[];

/* Finds "moe-plan.5", or for a bare name the first page of that name. */
static const char *find_page(const char *name)
{
    size_t n = strlen(name);
    for (const char *page = cli_manual; page; page = strchr(page + 1, '\f'))
        if (strncmp(page + 1, name, n) == 0 && (page[1 + n] == '.' || page[1 + n] == '\n'))
            return strchr(page, '\n') + 1;
    return NULL;
}

static int refuse_page(const char *name)
{
    struct moe_buf names = {0};
    for (const char *page = cli_manual; page; page = strchr(page + 1, '\f'))
        moe_buf_printf(&names, " %.*s", (int)strcspn(page + 1, "\n"), page + 1);
    int status = cli_misuse("no page '%s': there are%.*s", name, (int)names.size,
                            names.failed ? "" : (const char *)names.data);
    moe_buf_release(&names);
    return status;
}

int cli_print_manual(const char *name)
{
    const char *page = find_page(name);
    if (!page)
        return refuse_page(name);
    FILE *pager = NULL;
    if (cli_is_terminal(STDOUT_FILENO) && isatty(STDIN_FILENO))
        pager = popen("exec ${PAGER:-$(command -v less || command -v more || echo cat)}", "w");
    fwrite(page, 1, strcspn(page, "\f"), pager ? pager : stdout);
    if (pager)
        pclose(pager);
    return CLI_DONE;
}
