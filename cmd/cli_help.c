/* --help and --version. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cpu.h"
#include "cli_private.h"
#include "gpu.h"
#include "kern/kern.h"

enum { TEXT_COLUMN = 26, LIST_COLUMN = 12 };

/* "-n, --tokens N"; an option without a letter is indented like the others where `align` is set. */
static int name_option(const struct cli_option *o, bool align, char *out, size_t size)
{
    char letter[8] = "";
    if (o->letter)
        snprintf(letter, sizeof letter, "-%c, ", o->letter);
    return snprintf(out, size, "%*s--%s%s%s%s", align ? 4 : 0, letter, o->name, o->arg ? " " : "",
                    o->arg ? o->arg : "", o->kind == CLI_TEXTS ? "..." : "");
}

static void print_row(const struct cli_option *o)
{
    char name[64];
    int n = name_option(o, true, name, sizeof name);
    cli_say("  %-*s %s%s%s%s%s\n", TEXT_COLUMN - 2, name, n > TEXT_COLUMN - 2 ? " " : "", o->help,
            o->shown ? " [" : "", o->shown ? o->shown : "", o->shown ? "]" : "");
}

/* Returns the column after the option: `column` is where the line stood. */
static int print_in_list(const struct cli_option *o, int column)
{
    int width = (int)cli_screen(STDOUT_FILENO).columns;
    char text[128];
    int n = name_option(o, false, text, sizeof text);
    if (o->shown)
        n += snprintf(text + n, sizeof text - (size_t)n, " [%s]", o->shown);
    if (column > LIST_COLUMN && column + 2 + n > width) {
        printf("\n%*s", LIST_COLUMN, "");
        column = LIST_COLUMN;
    }
    return column + printf("%s%s", column > LIST_COLUMN ? "  " : "", text);
}

static void print_options(const struct cli_option *options)
{
    enum cli_kind group = CLI_HEADING;
    int column = 0; /* of a group's list, which is still without its newline */
    for (const struct cli_option *o = options; o->kind != CLI_END; o++) {
        bool begins = o->kind == CLI_HEADING || o->kind == CLI_LIST || o->kind == CLI_ELSEWHERE;
        if (begins && column)
            putchar('\n');
        if (begins)
            group = o->kind;
        if (o->kind == CLI_HEADING)
            printf("\n%s:\n", o->help);
        else if (o->kind == CLI_ELSEWHERE)
            cli_say("%s:%*ssee %s\n", o->help, LIST_COLUMN - 1 - (int)strlen(o->help), "",
                    o->shown);
        else if (begins)
            printf("%s:%*s", o->help, LIST_COLUMN - 1 - (int)strlen(o->help), "");
        if (begins)
            column = group == CLI_LIST ? LIST_COLUMN : 0;
        else if (group == CLI_HEADING)
            print_row(o);
        else if (group == CLI_LIST)
            column = print_in_list(o, column);
    }
    if (column)
        putchar('\n');
}

void cli_print_help(const struct cli_program *program, const struct cli_option *common)
{
    for (int i = 0; program->usage[i]; i++)
        cli_say("%s %s %s\n", i ? "      " : "Usage:", program->name, program->usage[i]);
    cli_say("%s\n", program->summary);
    print_options(program->options);
    print_options(common);
    printf("\nExamples:\n");
    for (int i = 0; program->examples[i]; i++)
        cli_say("  %s\n", program->examples[i]);
}

void cli_print_version(const struct cli_program *program)
{
    printf("%s (moe-toolkit) " MOE_VERSION "\ncpu: %s, CUDA: %s\n", program->name,
           moe_cpu_level_name(moe_kern.level), moe_gpu_build());
}
