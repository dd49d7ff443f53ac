/* Where the interactive prompt keeps its inputs. */
#ifndef CMD_REPL_HISTORY_PATH_H
#define CMD_REPL_HISTORY_PATH_H

/* ${XDG_STATE_HOME:-~/.local/state}/moe-toolkit/history, with its directories created; NULL: there
 * is no such place. The caller frees it. */
char *history_path(void);

#endif
