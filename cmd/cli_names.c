/* Names that are not known: which one was probably meant. */
#include <stddef.h>
#include <string.h>

#include "cli.h"

/* Names in other programs, and the names here: options, settings and commands of the prompt. */
static const char *const others[][2] = {
    {"temperature", "temp"},
    {"topk", "top-k"},
    {"topp", "top-p"},
    {"minp", "min-p"},
    {"repetition-penalty", "repeat-penalty"},
    {"rep-pen", "repeat-penalty"},
    {"max-tokens", "tokens"},
    {"max-tokens", "n"},
    {"max-new-tokens", "tokens"},
    {"max-new-tokens", "n"},
    {"max-completion-tokens", "n"},
    {"n-predict", "tokens"},
    {"n-predict", "n"},
    {"num-predict", "tokens"},
    {"num-predict", "n"},
    {"tokens", "n"},
    {"ctx-size", "context"},
    {"num-ctx", "context"},
    {"n-ctx", "context"},
    {"max-model-len", "context"},
    {"system-prompt", "system"},
    {"reverse-prompt", "stop"},
    {"chat-template", "template-file"},
    {"chat-template-file", "template-file"},
    {"grammar-file", "grammar"},
    {"batch-size", "batch"},
    {"parallel", "sequences"},
    {"max-num-seqs", "sequences"},
    {"host", "listen"},
    {"api-key", "api-key-file"},
    {"alias", "name"},
    {"served-model-name", "name"},
    {"exit", "quit"},
    {"bye", "quit"},
    {"clear", "reset"},
    {"new", "reset"},
    {"regenerate", "retry"},
    {"info", "show"},
    {"read", "file"},
};

/* How many letters have to be changed, added, left out, or swapped with their neighbour; words
 * longer than the table count as entirely different. */
static unsigned distance(const char *a, const char *b)
{
    enum { LONGEST = 32 };
    unsigned d[LONGEST + 1][LONGEST + 1];
    size_t n = strlen(a), m = strlen(b);
    if (n > LONGEST || m > LONGEST)
        return LONGEST;
    for (unsigned i = 0; i <= n; i++) {
        for (unsigned j = 0; j <= m; j++) {
            if (!i || !j) {
                d[i][j] = i + j;
                continue;
            }
            unsigned least = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            least = d[i - 1][j] + 1 < least ? d[i - 1][j] + 1 : least;
            least = d[i][j - 1] + 1 < least ? d[i][j - 1] + 1 : least;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                d[i - 2][j - 2] + 1 < least)
                least = d[i - 2][j - 2] + 1;
            d[i][j] = least;
        }
    }
    return d[n][m];
}

static const char *find_name(const char *name, const char *const *names)
{
    while (*names && strcmp(*names, name) != 0)
        names++;
    return *names;
}

const char *cli_nearest_name(const char *word, const char *const *names)
{
    char plain[64]; /* as names are spelled here */
    size_t n = strspn(word, "-"), length = strlen(word + n);
    if (length == 0 || length >= sizeof plain)
        return NULL;
    for (size_t i = 0; i <= length; i++)
        plain[i] = word[n + i] == '_' ? '-' : word[n + i];
    const char *nearest = find_name(plain, names);
    for (size_t i = 0; i < sizeof others / sizeof others[0] && !nearest; i++)
        if (strcmp(others[i][0], plain) == 0)
            nearest = find_name(others[i][1], names);
    unsigned least = length > 3 ? 3 : 2;
    bool found = nearest;
    for (; !found && *names; names++) {
        unsigned d = distance(plain, *names);
        found = strncmp(*names, plain, length) == 0;
        if (found || d < least) {
            least = d;
            nearest = *names;
        }
    }
    return nearest;
}
