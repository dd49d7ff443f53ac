/* Text that the terminal marks as pasted. */
#ifndef CMD_REPL_PASTE_H
#define CMD_REPL_PASTE_H

#include <histedit.h>

/* What a terminal sends before pasted text. */
#define PASTE_BEGINS "\033[200~"

/* Reads up to the mark of the paste's end. The text, which the caller frees, with one newline at
 * the end of each line but the last; NULL: it was too long, there is no memory for it, or Ctrl-C
 * came. */
wchar_t *paste_read(EditLine *el);

#endif
