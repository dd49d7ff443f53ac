/*
 * The terminal while the interactive prompt has it.
 *
 * Between the lines that are edited it is silent: what is typed while an answer comes is not shown
 * then but waits for the next line. What is pasted comes between marks (bracketed paste). Whenever
 * the program stops (Ctrl-Z) or leaves, by whatever way it can notice, the terminal is given back
 * as it was found; in the foreground again the program takes it again.
 *
 * There is one terminal, so the state is one. Everything here belongs to the main thread.
 */
#ifndef CMD_REPL_TERMINAL_H
#define CMD_REPL_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

/* Takes the terminal behind standard input; `out` is written to the terminal itself. */
void terminal_take(FILE *out);
/* As it was found. Safe in a signal handler, and when it was not taken. */
void terminal_give_back(void);

/* Begins or ends a line: signals then wait for terminal_wait, or are served at once. */
void terminal_edits(bool editing);

enum terminal_event {
    TERMINAL_BYTE,      /* to be read; or the end, or an error */
    TERMINAL_INTERRUPT, /* Ctrl-C: cli_stop is set */
    TERMINAL_SUSPEND,   /* Ctrl-Z: terminal_suspend stops the program */
    TERMINAL_CONTINUE,  /* continued: another program had the terminal meanwhile */
    TERMINAL_RESIZE,
};
/* Waits for what comes first, of a line that is edited. */
enum terminal_event terminal_wait(void);

/* Gives the terminal back and stops the program until it is continued. */
void terminal_suspend(void);
/* After TERMINAL_CONTINUE, or at first: has what is pasted marked. */
void terminal_mark_pastes(void);

/* Whether it moves its cursor (TERM is not "dumb"). */
bool terminal_moves(void);

#endif
