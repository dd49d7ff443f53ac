/* The table of commands, help, and what Tab completes. */
#include "commands.h"

#include <stdio.h>
#include <string.h>

#include "cli.h"

static int do_help(struct console *c, const char *arg, struct moe_err *err);

static int do_continue(struct console *c, const char *arg, struct moe_err *err)
{
    return console_answer(c, NULL, err);
}

static int do_quit(struct console *c, const char *arg, struct moe_err *err)
{
    return 1;
}

static const struct command commands[] = {
    {"help", "", "this list", ARGUMENT_NONE, do_help},
    {"show", "", "the model, its template and context, memory, sampling", ARGUMENT_NONE,
     command_show},
    {"stats", "", "time and memory used so far", ARGUMENT_NONE, command_stats},
    {"memory", "", "where memory goes", ARGUMENT_NONE, command_memory},
    {"strategy", "", "how experts are kept and loaded", ARGUMENT_NONE, command_strategy},
    {"system", "TEXT", "set the system text (- removes it) and begin again", ARGUMENT_TEXT,
     command_system},
    {"file", "PATH", "add a file's text to the next message (- drops it)", ARGUMENT_FILE,
     command_file},
    {"set", "NAME VALUE", "temp, top-k, logit-bias, seed, n, ...; without a name, shows all",
     ARGUMENT_SETTING, command_set},
    {"stop", "TEXT", "end answers before this text (- removes all)", ARGUMENT_TEXT, command_stop},
    {"continue", "", "continue the last answer (an empty line does the same)", ARGUMENT_NONE,
     do_continue},
    {"result", "TEXT", "what the tool that the answer called gives back", ARGUMENT_TEXT,
     command_result},
    {"undo", "", "take back the last question and its answer", ARGUMENT_NONE, command_undo},
    {"retry", "", "ask the last question again, with other draws", ARGUMENT_NONE, command_retry},
    {"save", "FILE", "keep the conversation, with all that was computed", ARGUMENT_FILE,
     command_save},
    {"load", "FILE", "go on with a conversation that was saved", ARGUMENT_FILE, command_load},
    {"reset", "", "forget the conversation", ARGUMENT_NONE, command_reset},
    {"quit", "", "leave (Ctrl-D does the same)", ARGUMENT_NONE, do_quit},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static int do_help(struct console *c, const char *arg, struct moe_err *err)
{
    enum { COLUMN = 17 };
    char row[256];
    for (int i = 0; i < N_COMMANDS; i++) {
        snprintf(row, sizeof row, "/%s %s", commands[i].name, commands[i].arg);
        size_t n = strlen(row);
        snprintf(row + n, sizeof row - n, "%*s%s", n < COLUMN ? (int)(COLUMN - n) : 1, "",
                 commands[i].help);
        console_print(row);
    }
    console_print("A line ending in \\ continues on the next; text between lines of \"\"\" "
                  "is taken whole, and so is what is pasted. Tab completes.");
    console_print("Ctrl-C stops an answer and clears a line; at an empty prompt, pressed "
                  "twice, it leaves.");
    return 0;
}

void commands_greet(const struct console *c)
{
    const struct moe_conversation *talk = c->r->conversation;
    const struct moe_config *m = &talk->session->model->config;
    if (cli_quiet)
        return;
    console_tell(c, "%s and press Enter; /help lists the commands, Ctrl-D leaves.",
                 m->n_encoder ? "Type a text for the model to answer"
                 : talk->chat ? "Type a message"
                              : "Type the beginning of a text");
    char experts[64] = "";
    if (m->n_experts) /* a dense model has none */
        snprintf(experts, sizeof experts, ", %u experts (%u per token)", m->n_experts, m->top_k);
    console_tell(c, "%s: %s, %u layers%s; %s", c->r->pack, m->family, m->n_layers, experts,
                 m->n_encoder ? "each input is a source of its own, without history"
                 : talk->chat ? "chat by its template"
                              : "plain continuation");
}

static const char *nearest_command(const char *name)
{
    const char *names[N_COMMANDS + 1] = {NULL};
    for (int i = 0; i < N_COMMANDS; i++)
        names[i] = commands[i].name;
    return cli_nearest_name(name, names);
}

int commands_run(struct console *c, char *line, struct moe_err *err)
{
    char *name = line + 1, *end = name + strlen(name);
    while (end > name && strchr(" \t", end[-1]))
        *--end = 0;
    size_t n = strcspn(name, " \t\n");
    const char *arg = name + n + strspn(name + n, " \t\n");
    for (int i = 0; i < N_COMMANDS; i++)
        if (strlen(commands[i].name) == n && strncmp(commands[i].name, name, n) == 0)
            return commands[i].run(c, arg, err);
    name[n] = 0;
    const char *nearest = nearest_command(name);
    if (nearest)
        fprintf(stderr, "unknown command /%s; did you mean /%s? /help lists them\n", name, nearest);
    else
        fprintf(stderr, "unknown command /%s; /help lists them\n", name);
    return 0;
}

/* ---- Completion ---- */

static void choose_word(struct choices *choices, const char *begins, const char *const *words)
{
    for (; *words; words++)
        if (strncmp(*words, begins, strlen(begins)) == 0)
            choices_add(choices, *words, "");
    choices->typed = strlen(begins);
}

void commands_choose(void *ctx, const char *text, struct choices *choices)
{
    size_t n = strcspn(text, " \t");
    const char *arg = text + n + strspn(text + n, " \t");
    (void)ctx;
    if (text[0] != '/')
        return;
    choices->end = " ";
    for (int i = 0; i < N_COMMANDS; i++) {
        const struct command *command = &commands[i];
        if (!text[n]) {
            if (strncmp(command->name, text + 1, n - 1) == 0)
                choices_add(choices, command->name, "");
            choices->typed = n - 1;
        } else if (strlen(command->name) == n - 1 && strncmp(command->name, text + 1, n - 1) == 0) {
            if (command->argument == ARGUMENT_FILE)
                choices_add_files(choices, arg);
            if (command->argument == ARGUMENT_SETTING && !arg[strcspn(arg, " \t")])
                choose_word(choices, arg, setting_names());
            choices->end = command->argument == ARGUMENT_FILE ? "" : " ";
        }
    }
}
