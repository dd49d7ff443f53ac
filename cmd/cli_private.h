/* Shared by the files of the command line (cli.h), private to them. */
#ifndef CMD_CLI_PRIVATE_H
#define CMD_CLI_PRIVATE_H

#include "cli.h"

/* Sets the option's variable to `text` (NULL for a flag). CLI_DONE, or the exit status after a
 * message that says which arguments are valid. */
int cli_set(const struct cli_option *o, const char *text);

/* Whether its argument is the name of a file or directory. */
bool cli_names_file(const struct cli_option *o);

/* On stdout. `common`: the options of every program, ends with CLI_END. */
void cli_print_help(const struct cli_program *program, const struct cli_option *common);
void cli_print_version(const struct cli_program *program);
/* On stdout: the commands by which a shell completes the program's n options (entries without a
 * name are none) and its files. */
enum cli_shell { CLI_BASH, CLI_ZSH, CLI_FISH };
void cli_print_completion(enum cli_shell shell, const char *name,
                          const struct cli_option *const *options, int n);

/* Shows a manual page, "moe-run" or "moe-plan.5", in a pager where a person reads. CLI_DONE, or the
 * exit status after a message that names the pages. */
int cli_print_manual(const char *name);

/* Puts streams of cli_output.c in the places of stdout and stderr. */
void cli_open_output(void);
/* The program's name. */
const char *cli_name(void);

#endif
