/* Completions: words that begin as the line does before the cursor. */
#ifndef CMD_REPL_CHOICES_H
#define CMD_REPL_CHOICES_H

#include <stdbool.h>
#include <stddef.h>

struct choices {
    char **words; /* [n], owned */
    size_t n;
    size_t typed;    /* bytes at the line's end that each begins with */
    bool failed;     /* out of memory */
    const char *end; /* what follows a word that is the only one; "": nothing; borrowed */
};

/* Adds a copy of word + tail. */
void choices_add(struct choices *c, const char *word, const char *tail);
void choices_release(struct choices *c);

/* Sorts them, and returns how many bytes all have in common, whole characters. */
size_t choices_common(struct choices *c);

/* Lists them on stderr, side by side in `width` columns. */
void choices_list(const struct choices *c, int width);

/* Adds the files whose path begins with `path`; directories end in a slash. ~/ is the home. */
void choices_add_files(struct choices *c, const char *path);

#endif
