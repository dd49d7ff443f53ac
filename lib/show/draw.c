#include "show/draw.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- Figures ---- */

char *moe_format_speed(double tokens_per_second, char room[32])
{
    if (!(tokens_per_second >= 0))
        return strcpy(room, "?");
    snprintf(room, 32, tokens_per_second < 10 ? "%.2f" : "%.1f", tokens_per_second);
    return room;
}

char *moe_format_percent(double share, char room[32])
{
    if (!(share >= 0))
        return strcpy(room, "?");
    snprintf(room, 32, "%.1f%%", 100 * share);
    return room;
}

char *moe_format_rate(double bytes_per_second, char room[32])
{
    if (bytes_per_second >= 1e9)
        snprintf(room, 32, "%.2f GB/s", bytes_per_second * 1e-9);
    else
        snprintf(room, 32, "%.1f MB/s", bytes_per_second * 1e-6);
    return room;
}

char *moe_format_seconds(double seconds, char room[32])
{
    if (seconds < 1e-3)
        snprintf(room, 32, "%.1f us", seconds * 1e6);
    else
        snprintf(room, 32, "%.2f ms", seconds * 1e3);
    return room;
}

char *moe_format_duration(double seconds, char room[32])
{
    if (seconds < 9.95)
        snprintf(room, 32, "%.1f s", seconds);
    else if (seconds < 100)
        snprintf(room, 32, "%.0f s", seconds);
    else if (seconds < 100 * 60)
        snprintf(room, 32, "%.0f min", seconds / 60);
    else if (seconds < 72 * 3600)
        snprintf(room, 32, "%.1f h", seconds / 3600);
    else
        snprintf(room, 32, "%.1f days", seconds / 86400);
    return room;
}

char *moe_format_layers(uint32_t first, uint32_t n, char room[32])
{
    if (n == 1)
        snprintf(room, 32, "%" PRIu32, first);
    else
        snprintf(room, 32, "%" PRIu32 "-%" PRIu32, first, first + n - 1);
    return room;
}

void moe_draw_percent(struct moe_buf *out, double share, int width)
{
    char room[32];
    moe_buf_printf(out, "%*s", width, share >= 0 ? moe_format_percent(share, room) : "-");
}

/* ---- Bars, shades, paragraphs ---- */

uint32_t moe_draw_columns(struct moe_screen screen, uint32_t usual, uint32_t most)
{
    if (screen.columns >= MOE_USUAL_COLUMNS) {
        uint32_t n = usual + (screen.columns - MOE_USUAL_COLUMNS);
        return n < most ? n : most;
    }
    uint32_t less = MOE_USUAL_COLUMNS - screen.columns;
    return less + usual / 3 < usual ? usual - less : usual / 3;
}

void moe_draw_bar(struct moe_buf *out, double share, uint32_t width, struct moe_screen screen)
{
    static const char *const eighths[] = {"",
                                          "\xe2\x96\x8f",
                                          "\xe2\x96\x8e",
                                          "\xe2\x96\x8d",
                                          "\xe2\x96\x8c",
                                          "\xe2\x96\x8b",
                                          "\xe2\x96\x8a",
                                          "\xe2\x96\x89"};
    if (!(share > 0))
        return;
    double cells = (share < 1 ? share : 1) * width;
    uint32_t parts = screen.blocks ? (uint32_t)(8 * cells + 0.5) : 8 * (uint32_t)(cells + 0.5);
    for (uint32_t i = 0; i < parts / 8; i++)
        moe_buf_text(out, screen.blocks ? "\xe2\x96\x88" : "#");
    moe_buf_text(out, eighths[parts % 8]);
}

uint32_t moe_shade_level(double amount, double usual)
{
    const double limits[MOE_SHADES - 1] = {0.125, 0.5, 1, 2};
    uint32_t level = 0;
    while (level < MOE_SHADES - 1 && amount > limits[level] * usual)
        level++;
    return level;
}

const char *moe_draw_shade(double amount, double usual, struct moe_screen screen)
{
    static const char *const of_blocks[MOE_SHADES] = {" ", "\xe2\x96\x91", "\xe2\x96\x92",
                                                      "\xe2\x96\x93", "\xe2\x96\x88"};
    static const char *const of_ascii[MOE_SHADES] = {" ", ".", ":", "o", "#"};
    uint32_t level = moe_shade_level(amount, usual);
    return screen.blocks ? of_blocks[level] : of_ascii[level];
}

void moe_draw_paragraph(struct moe_buf *out, struct moe_screen screen, const char *first,
                        uint32_t indent, const char *format, ...)
{
    char text[MOE_DRAW_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t room = (screen.columns < MOE_TEXT_COLUMNS ? screen.columns : MOE_TEXT_COLUMNS) - indent;
    for (const char *at = text; *at; first = NULL) {
        size_t n = strlen(at);
        if (n > room) {
            for (n = room; n > 0 && at[n] != ' '; n--)
                ;
            n = n ? n : room;
        }
        moe_buf_printf(out, "%-*s%.*s\n", (int)indent, first ? first : "", (int)n, at);
        at += n;
        at += strspn(at, " ");
    }
}

/* Bytes of a terminal sequence that begins there: "\033[30;48m". */
static uint64_t sequence_at(const char *text, uint64_t n)
{
    uint64_t i = 2;
    if (n < 2 || text[0] != '\033' || text[1] != '[')
        return 0;
    while (i < n && (text[i] < '@' || text[i] > '~'))
        i++;
    return i < n ? i + 1 : n;
}

/* Bytes of the text (n of them) that the first columns take: up to the last blank among these, or
 * all of them where there is none. */
static uint64_t bytes_that_fit(const char *text, uint64_t n, uint32_t columns)
{
    uint64_t blank = 0, at = 0;
    for (uint32_t column = 0; at < n; column++) {
        for (uint64_t of; (of = sequence_at(text + at, n - at)) > 0;)
            at += of;
        if (at < n && text[at] == ' ')
            blank = at;
        if (at < n && column == columns)
            return blank ? blank : at;
        for (at += at < n; at < n && (text[at] & 0xc0) == 0x80; at++)
            ;
    }
    return n;
}

static void fit_line(const char *line, uint64_t n, uint32_t columns, struct moe_buf *out)
{
    uint64_t indent = 0, gap = 0;
    while (indent < n && line[indent] == ' ')
        indent++;
    /* Below the second column of a table, where it has one. */
    for (gap = indent; gap + 1 < n && !(line[gap] == ' ' && line[gap + 1] == ' '); gap++)
        ;
    while (gap < n && line[gap] == ' ')
        gap++;
    uint32_t hang = indent + 4 < columns / 2 ? (uint32_t)indent + 4 : 4;
    if (gap < n && gap <= columns / 2)
        hang = (uint32_t)gap;
    uint64_t first = bytes_that_fit(line + indent, n - indent, columns - (uint32_t)indent);
    moe_buf_append(out, line, indent + first);
    for (uint64_t at = indent + first; at < n;) {
        while (at < n && line[at] == ' ')
            at++;
        uint64_t more = bytes_that_fit(line + at, n - at, columns - hang);
        if (more)
            moe_buf_printf(out, "\n%*s", (int)hang, "");
        moe_buf_append(out, line + at, more);
        at += more;
    }
}

void moe_draw_fit(struct moe_buf *text, struct moe_screen screen)
{
    if (text->failed || !text->data)
        return;
    struct moe_buf out = {0};
    const char *at = (const char *)text->data, *end = at + text->size;
    while (at < end) {
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        uint64_t n = (uint64_t)((line_end ? line_end : end) - at);
        fit_line(at, n, screen.columns, &out);
        if (line_end)
            moe_buf_text(&out, "\n");
        at += n + (line_end != NULL);
    }
    moe_buf_release(text);
    *text = out;
}
