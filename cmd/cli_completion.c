/*
 * Completions for shells, made from a program's table of options: --completion bash, zsh, fish.
 *
 * An option is completed by what its table says of its argument: the words that it takes, files
 * where the argument is called by the name of one (FILE, PACK, ...), nothing otherwise.
 */
#include <stdio.h>
#include <string.h>

#include "cli_private.h"

/* What an argument is completed by. */
enum by { BY_NOTHING, BY_WORDS, BY_FILES, BY_DIRECTORIES };

bool cli_names_file(const struct cli_option *o)
{
    static const char *const files[] = {"FILE",  "PACK",       "MAP", "STATS", "PLAN", "TRACE",
                                        "COSTS", "COLLECTION", "OUT", "DIR",   NULL};
    for (int i = 0; files[i] && o->arg; i++)
        if (strcmp(o->arg, files[i]) == 0)
            return true;
    return false;
}

static enum by completed_by(const struct cli_option *o)
{
    if (o->choices || o->word)
        return BY_WORDS;
    if (!cli_names_file(o))
        return BY_NOTHING;
    return strcmp(o->arg, "DIR") == 0 ? BY_DIRECTORIES : BY_FILES;
}

static const char *word_of(const struct cli_option *o, int i)
{
    return o->choices ? o->choices[i] : o->word ? o->word(i) : NULL;
}

static void put_words(const struct cli_option *o)
{
    for (int i = 0; word_of(o, i); i++)
        printf("%s%s", i ? " " : "", word_of(o, i));
}

/* Text within single quotes of all three shells, `also` with a backslash before. */
static void put_quoted(const char *text, const char *also)
{
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\''", stdout);
        else if (strchr(also, *text))
            printf("\\%c", *text);
        else
            putchar(*text);
    }
}

/* The name of a shell function: moe-run is moe_run. */
static void put_function(const char *name)
{
    putchar('_');
    for (; *name; name++)
        putchar(*name == '-' ? '_' : *name);
}

/* ---- bash ---- */

/* The options that are completed in one way, as a pattern of case; words have a line for each. */
static void bash_cases(const struct cli_option *const *options, int n, enum by by, const char *what)
{
    bool any = false;
    for (int i = 0; i < n; i++) {
        const struct cli_option *o = options[i];
        if (!o->name || !o->arg || completed_by(o) != by)
            continue;
        printf("%s", any ? "|" : "    ");
        if (o->letter)
            printf("-%c|", o->letter);
        printf("--%s", o->name);
        any = true;
        if (by != BY_WORDS)
            continue;
        printf(") _moe_words '");
        put_words(o);
        printf("'; return ;;\n");
        any = false;
    }
    if (any)
        printf(") %sreturn ;;\n", what);
}

static void print_bash(const char *name, const struct cli_option *const *options, int n)
{
    printf("# bash completion for %s, made by %s --completion bash\n", name, name);
    printf("_moe_words() { mapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"$cur\"); }\n"
           "_moe_files() { compopt -o filenames; mapfile -t COMPREPLY < <(compgen \"$1\" -- "
           "\"$cur\"); }\n");
    put_function(name);
    /* bash splits --option=value at its sign. */
    printf("()\n{\n"
           "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
           "    if [ \"$cur\" = '=' ]; then cur=\n"
           "    elif [ \"$prev\" = '=' ]; then prev=${COMP_WORDS[COMP_CWORD - 2]}; fi\n"
           "    COMPREPLY=()\n"
           "    case $prev in\n");
    bash_cases(options, n, BY_WORDS, "");
    bash_cases(options, n, BY_FILES, "_moe_files -f; ");
    bash_cases(options, n, BY_DIRECTORIES, "_moe_files -d; ");
    bash_cases(options, n, BY_NOTHING, "");
    printf("    esac\n    case $cur in\n    -*) _moe_words '");
    const char *gap = "";
    for (int i = 0; i < n; i++) {
        if (!options[i]->name)
            continue;
        printf("%s--%s", gap, options[i]->name);
        gap = " ";
    }
    printf("' ;;\n    *) _moe_files -f ;;\n    esac\n}\ncomplete -F ");
    put_function(name);
    printf(" %s\n", name);
}

/* ---- zsh ---- */

static void zsh_option(const struct cli_option *o)
{
    const char *sign = o->arg ? "=" : "", *repeated = o->kind == CLI_TEXTS ? "*" : "";
    printf("  ");
    if (o->letter && !*repeated)
        printf("'(-%c --%s)'", o->letter, o->name);
    if (*repeated)
        printf("'*'");
    if (o->letter)
        printf("{-%c%s,--%s%s}'", o->letter, o->arg ? "+" : "", o->name, sign);
    else
        printf("'--%s%s", o->name, sign);
    if (o->help) {
        putchar('[');
        put_quoted(o->help, "[]\\:");
        putchar(']');
    }
    if (o->arg) {
        putchar(':');
        put_quoted(o->arg, "[]\\:");
        putchar(':');
    }
    if (completed_by(o) == BY_FILES)
        printf("_files");
    if (completed_by(o) == BY_DIRECTORIES)
        printf("_files -/");
    if (completed_by(o) == BY_WORDS) {
        putchar('(');
        put_words(o);
        putchar(')');
    }
    printf("' \\\n");
}

static void print_zsh(const char *name, const struct cli_option *const *options, int n)
{
    printf("#compdef %s\n# made by %s --completion zsh\n_arguments -s \\\n", name, name);
    for (int i = 0; i < n; i++)
        if (options[i]->name)
            zsh_option(options[i]);
    printf("  '*:file:_files'\n");
}

/* ---- fish ---- */

static void fish_option(const char *name, const struct cli_option *o)
{
    printf("complete -c %s -l %s", name, o->name);
    if (o->letter)
        printf(" -s %c", o->letter);
    switch (completed_by(o)) {
    case BY_FILES:
        printf(" -rF");
        break;
    case BY_DIRECTORIES:
        printf(" -x -a '(__fish_complete_directories)'");
        break;
    case BY_WORDS:
        printf(" -x -a '");
        put_words(o);
        putchar('\'');
        break;
    case BY_NOTHING:
        printf("%s", o->arg ? " -x" : "");
        break;
    }
    if (o->help) {
        printf(" -d '");
        for (const char *text = o->help; *text; text++)
            printf("%s%c", *text == '\'' || *text == '\\' ? "\\" : "", *text);
        putchar('\'');
    }
    putchar('\n');
}

static void print_fish(const char *name, const struct cli_option *const *options, int n)
{
    printf("# fish completion for %s, made by %s --completion fish\n", name, name);
    for (int i = 0; i < n; i++)
        if (options[i]->name)
            fish_option(name, options[i]);
}

void cli_print_completion(enum cli_shell shell, const char *name,
                          const struct cli_option *const *options, int n)
{
    if (shell == CLI_BASH)
        print_bash(name, options, n);
    else if (shell == CLI_ZSH)
        print_zsh(name, options, n);
    else
        print_fish(name, options, n);
}
