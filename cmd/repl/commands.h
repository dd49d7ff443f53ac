/*
 * The commands of the interactive prompt. A command is a function, declared below its file's name,
 * and a line of the table in commands.c.
 */
#ifndef CMD_REPL_COMMANDS_H
#define CMD_REPL_COMMANDS_H

#include "console.h"

/* What Tab completes after a command's name. */
enum argument { ARGUMENT_NONE, ARGUMENT_TEXT, ARGUMENT_SETTING, ARGUMENT_FILE };

struct command {
    const char *name, *arg, *help;
    enum argument argument;
    /* `arg` without blanks around it. 0: go on; 1: leave; negative: a fatal error, in err. */
    int (*run)(struct console *c, const char *arg, struct moe_err *err);
};

/* Runs "/NAME ARGUMENT" (changes the line). As struct command's `run`. */
int commands_run(struct console *c, char *line, struct moe_err *err);
/* Completions for the end of `text` (editor.h); ctx is the console. */
void commands_choose(void *ctx, const char *text, struct choices *choices);
/* Says what to do here, and what was opened. */
void commands_greet(const struct console *c);

/* settings.c */
int command_set(struct console *c, const char *arg, struct moe_err *err);
int command_stop(struct console *c, const char *arg, struct moe_err *err);
const char *const *setting_names(void); /* NULL-terminated */
void settings_release(struct console *c);

/* show.c */
int command_show(struct console *c, const char *arg, struct moe_err *err);
int command_stats(struct console *c, const char *arg, struct moe_err *err);
int command_memory(struct console *c, const char *arg, struct moe_err *err);
int command_strategy(struct console *c, const char *arg, struct moe_err *err);

/* texts.c */
int command_system(struct console *c, const char *arg, struct moe_err *err);
int command_file(struct console *c, const char *arg, struct moe_err *err);
int command_reset(struct console *c, const char *arg, struct moe_err *err);

/* turns.c */
int command_result(struct console *c, const char *arg, struct moe_err *err);
int command_undo(struct console *c, const char *arg, struct moe_err *err);
int command_retry(struct console *c, const char *arg, struct moe_err *err);
int command_save(struct console *c, const char *arg, struct moe_err *err);
int command_load(struct console *c, const char *arg, struct moe_err *err);

#endif
