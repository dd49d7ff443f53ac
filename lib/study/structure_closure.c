#include <string.h>

#include "study/structure.h"

enum { MAX_DEPTH = 256 };

struct scan {
    const char *text;
    uint64_t n;
    char open[MAX_DEPTH]; /* the partners that are waited for */
    uint32_t depth;
    bool brackets;    /* nothing was wrong so far */
    uint64_t quotes;  /* typographic ones that are open */
    bool quotes_fine; /* likewise */
};

static bool starts_with(const struct scan *s, uint64_t at, const char *what)
{
    uint64_t n = strlen(what);
    return s->n - at >= n && memcmp(s->text + at, what, n) == 0;
}

/* Bytes of the mark that opens a string here; 0: none does. */
static uint64_t opening_mark(const struct scan *s, uint64_t at)
{
    if (starts_with(s, at, "\"\"\"") || starts_with(s, at, "'''"))
        return 3;
    return s->text[at] == '"';
}

/* Behind the string that begins at `at` with a mark of so many bytes; *closed: whether it ends. */
static uint64_t skip_string(const struct scan *s, uint64_t at, uint64_t mark, bool *closed)
{
    const char *begin = s->text + at;
    for (at += mark; at < s->n; at++) {
        if (s->text[at] == '\\')
            at++;
        else if (s->n - at >= mark && memcmp(s->text + at, begin, mark) == 0)
            return at + mark;
    }
    *closed = false;
    return s->n;
}

static void take_bracket(struct scan *s, char c)
{
    static const char opening[] = "([{", closing[] = ")]}";
    const char *kind = memchr(opening, c, 3);
    if (kind && s->depth == MAX_DEPTH)
        s->brackets = false;
    else if (kind)
        s->open[s->depth++] = closing[kind - opening];
    else if (memchr(closing, c, 3) && (s->depth == 0 || s->open[--s->depth] != c))
        s->brackets = false;
}

static void take_quote(struct scan *s, uint64_t at)
{
    if (starts_with(s, at, "\xe2\x80\x9c"))
        s->quotes++;
    else if (starts_with(s, at, "\xe2\x80\x9d") && s->quotes > 0)
        s->quotes--;
    else if (starts_with(s, at, "\xe2\x80\x9d"))
        s->quotes_fine = false;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* "#### 1,234.5" behind everything but blanks. */
static bool ends_with_answer(const char *text, uint64_t n)
{
    while (n > 0 && is_blank(text[n - 1]))
        n--;
    uint64_t at = n;
    while (at > 0 && text[at - 1] != '\n')
        at--;
    if (n - at < 6 || memcmp(text + at, "#### ", 5) != 0)
        return false;
    at += 5;
    if (text[at] == '-')
        at++;
    if (at == n || !is_digit(text[at]))
        return false;
    while (at < n && (is_digit(text[at]) || text[at] == ',' || text[at] == '.'))
        at++;
    return at == n;
}

struct moe_closure moe_closure_of(const char *text, uint64_t n)
{
    struct scan s = {.text = text, .n = n, .brackets = true, .quotes_fine = true};
    for (uint64_t at = 0; at < n;) {
        uint64_t mark = opening_mark(&s, at);
        if (mark) {
            at = skip_string(&s, at, mark, &s.quotes_fine);
        } else {
            take_bracket(&s, text[at]);
            take_quote(&s, at);
            at++;
        }
    }
    return (struct moe_closure){
        .brackets = s.brackets && s.depth == 0,
        .quotes = s.quotes_fine && s.quotes == 0,
        .answer = ends_with_answer(text, n),
    };
}
