/* What Tab completes in the interactive prompt. */
#define _POSIX_C_SOURCE 200809L /* strdup, wcswidth */
#define _XOPEN_SOURCE 700
#include "choices.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <wchar.h>

#include "base/buf.h"
#include "base/text.h"

enum { MAX_CHOICES = 10000, SHOWN = 200 };

void choices_add(struct choices *c, const char *word, const char *tail)
{
    if (c->n >= MAX_CHOICES || c->failed)
        return;
    if ((c->n & (c->n - 1)) == 0) { /* room for the next power of two */
        char **more = realloc(c->words, (c->n ? 2 * c->n : 1) * sizeof *more);
        c->failed = !more;
        if (!more)
            return;
        c->words = more;
    }
    size_t n = strlen(word), n_tail = strlen(tail);
    char *copy = malloc(n + n_tail + 1);
    c->failed = !copy;
    if (!copy)
        return;
    memcpy(copy, word, n);
    memcpy(copy + n, tail, n_tail + 1);
    c->words[c->n++] = copy;
}

void choices_release(struct choices *c)
{
    for (size_t i = 0; i < c->n; i++)
        free(c->words[i]);
    free(c->words);
    *c = (struct choices){0};
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

size_t choices_common(struct choices *c)
{
    if (c->n == 0)
        return 0;
    qsort(c->words, c->n, sizeof *c->words, by_name);
    const char *first = c->words[0], *last = c->words[c->n - 1];
    size_t n = 0;
    while (first[n] && first[n] == last[n])
        n++;
    return (size_t)moe_utf8_complete((const uint8_t *)first, n);
}

/* Of the terminal; a character of a file's name that is no text is shown as a few. */
static int columns_of(const char *text)
{
    wchar_t wide[256];
    size_t n = mbstowcs(wide, text, 256);
    int columns = n < 256 ? wcswidth(wide, n) : -1;
    return columns >= 0 ? columns : (int)strlen(text);
}

void choices_list(const struct choices *c, int width)
{
    size_t n = c->n < SHOWN ? c->n : SHOWN;
    int widest = 1;
    for (size_t i = 0; i < n; i++) {
        int columns = columns_of(c->words[i]);
        widest = columns > widest ? columns : widest;
    }
    size_t per_row = width > widest ? (size_t)((width + 1) / (widest + 2)) : 1;
    size_t rows = (n + per_row - 1) / (per_row ? per_row : 1);
    for (size_t row = 0; row < rows; row++) {
        for (size_t i = row; i < n; i += rows) {
            const char *word = c->words[i];
            bool ends = i + rows >= n;
            fprintf(stderr, "%s%*s", word, ends ? 0 : widest + 2 - columns_of(word), "");
        }
        fputc('\n', stderr);
    }
    if (n < c->n)
        fprintf(stderr, "... and %zu more\n", c->n - n);
}

void choices_add_files(struct choices *c, const char *path)
{
    const char *slash = strrchr(path, '/'), *home = getenv("HOME");
    const char *name = slash ? slash + 1 : path;
    bool at_home = strncmp(path, "~/", 2) == 0 && home;
    struct moe_buf text = {0};
    if (at_home)
        moe_buf_text(&text, home);
    if (slash)
        moe_buf_append(&text, path + at_home, (uint64_t)(slash - path) + 1 - at_home);
    else
        moe_buf_text(&text, "./");
    uint64_t n_directory = text.size;
    DIR *directory = text.failed ? NULL : opendir((const char *)text.data);
    for (struct dirent *d; directory && (d = readdir(directory));) {
        struct stat about;
        bool hidden = d->d_name[0] == '.' && name[0] != '.';
        if (hidden || strncmp(d->d_name, name, strlen(name)) != 0 || strcmp(d->d_name, ".") == 0 ||
            strcmp(d->d_name, "..") == 0)
            continue;
        text.size = n_directory;
        moe_buf_text(&text, d->d_name);
        if (!text.failed)
            choices_add(c, d->d_name,
                        stat((const char *)text.data, &about) == 0 && S_ISDIR(about.st_mode) ? "/"
                                                                                             : "");
    }
    if (directory)
        closedir(directory);
    c->typed = strlen(name);
    moe_buf_release(&text);
}
