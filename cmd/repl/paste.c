/* Marks of bracketed paste found in what is typed. */
#include "paste.h"

#include <stdbool.h>
#include <stdlib.h>
#include <wchar.h>

enum { MAX_CHARACTERS = 16 << 20 };

static const wchar_t END[] = L"\033[201~";
enum { N_END = sizeof END / sizeof END[0] - 1 };

static bool is_break(wchar_t c)
{
    return c == L'\n' || c == L'\r';
}

/* The terminal has swapped the two bytes of lines that end in two. */
static void tidy(wchar_t *text, size_t n)
{
    size_t to = 0;
    for (size_t i = 0; i < n; i++) {
        if (is_break(text[i])) {
            bool pair = i + 1 < n && is_break(text[i + 1]) && text[i] != text[i + 1];
            text[to++] = L'\n';
            i += pair;
        } else if (text[i]) {
            text[to++] = text[i];
        }
    }
    if (to > 0 && text[to - 1] == L'\n')
        to--;
    text[to] = 0;
}

/* Whatever becomes of the text, none of it is left to be taken for keys. */
wchar_t *paste_read(EditLine *el)
{
    wchar_t *text = NULL, c;
    size_t n = 0, room = 0, matched = 0;
    bool whole = true;
    while (matched < N_END && el_wgetc(el, &c) > 0) {
        matched = c == END[matched] ? matched + 1 : c == END[0] ? 1 : 0;
        if (whole && n == room) {
            room = room ? 2 * room : 4096;
            wchar_t *larger = n < MAX_CHARACTERS ? realloc(text, room * sizeof *text) : NULL;
            whole = larger != NULL;
            text = larger ? larger : text;
        }
        if (whole)
            text[n++] = c;
    }
    if (!whole || matched < N_END) {
        free(text);
        return NULL;
    }
    tidy(text, n - N_END);
    return text;
}
