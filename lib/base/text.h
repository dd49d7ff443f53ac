/*
 * Text for people: sizes, rates and shares, parsed and formatted, and UTF-8.
 */
#ifndef MOE_BASE_TEXT_H
#define MOE_BASE_TEXT_H

#include <stdbool.h>
#include <stdint.h>

/* Strict parsers: the whole text must be the number; false leaves *out untouched. */

/* "512M", "4G", "1.5GiB", "4096", "10kB". One letter and ...iB count in 1024s, ...B in 1000s
 * (as dd and GNU programs do). At least one byte: a size of 0 would be taken for none given. */
bool moe_parse_bytes(const char *text, uint64_t *out);
/* "1.2GB/s", "900M/s", "2e9": bytes per second, above zero. */
bool moe_parse_rate(const char *text, double *out);
/* "1%", "0.01": a share; not negative. */
bool moe_parse_share(const char *text, double *out);
bool moe_parse_u64(const char *text, uint64_t *out);
bool moe_parse_double(const char *text, double *out); /* finite */

/* "1.50 GiB", "512 B"; writes at most 32 bytes with NUL into `out` and returns it. */
char *moe_format_bytes(uint64_t bytes, char out[32]);
/* Likewise, rounded up for a size that is needed, down for one that is not enough. */
char *moe_format_at_least(uint64_t bytes, char out[32]);
char *moe_format_at_most(uint64_t bytes, char out[32]);

/* UTF-8: how many of the n bytes at `text` form whole characters, counted from the front, so that
 * text[0..result) can be shown without cutting one. Bytes that can never become a character count
 * as whole (the caller shows them as they are). */
uint64_t moe_utf8_complete(const uint8_t *text, uint64_t n);
/* True when the n bytes are valid UTF-8 (no overlong forms, no surrogates). */
bool moe_utf8_valid(const uint8_t *text, uint64_t n);
/* Decodes the character at text[0..n), n > 0; *length gets its bytes (1..4).
 * A byte that starts no valid character gives 0xFFFD and length 1. */
uint32_t moe_utf8_decode(const uint8_t *text, uint64_t n, int *length);
/* Encodes `c` (below 0x110000) into out; returns 1..4. */
int moe_utf8_encode(uint32_t c, uint8_t out[4]);

enum { MOE_VISIBLE_BYTES = 4 };
/* Writes the character at text[0..n), n > 0, to `out` as a terminal may show it, and returns its
 * bytes; *length as above. Control characters (C0, DEL, C1) other than newline and tab, and bytes
 * that are not UTF-8, become their number in angle brackets: ESC is <1B>. Marks that change the
 * writing direction stay: they are text and move no cursor. */
int moe_text_visible(const uint8_t *text, uint64_t n, int *length, uint8_t out[MOE_VISIBLE_BYTES]);

bool moe_ends_with(const char *text, const char *end);
/* A blank of JSON: space, tab, newline, carriage return. */
static inline bool moe_is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}
bool moe_all_blank(const char *text, uint64_t n);
/* For qsort and bsearch, of pointers to texts. */
int moe_compare_texts(const void *a, const void *b);

/*
 * Line: interpolates a quantity measured at a few points.
 */

enum { MOE_LINE_POINTS = 8 };

/* Points of rising x, n at most MOE_LINE_POINTS. */
struct moe_line {
    uint32_t n;
    double x[MOE_LINE_POINTS], y[MOE_LINE_POINTS];
};

/* Adds a point after the others. Ignores one without a figure (x or y not above 0, or NAN) and one
 * whose x is not above the last one's. */
void moe_line_add(struct moe_line *line, double x, double y);

/* Linear between two points; before the first, its y; after the last, with the slope of the last
 * two, but never falling; with a single point, proportional to x. NAN without points. */
double moe_line_at(const struct moe_line *line, double x);

void moe_line_stretch(struct moe_line *line, double by);

#endif
