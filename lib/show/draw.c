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

void moe_draw_bar(struct moe_buf *out, double share, uint32_t width, bool blocks)
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
    uint32_t parts = blocks ? (uint32_t)(8 * cells + 0.5) : 8 * (uint32_t)(cells + 0.5);
    for (uint32_t i = 0; i < parts / 8; i++)
        moe_buf_text(out, blocks ? "\xe2\x96\x88" : "#");
    moe_buf_text(out, eighths[parts % 8]);
}

const char *moe_draw_shade(double amount, double usual, bool blocks)
{
    static const char *const of_blocks[] = {" ", "\xe2\x96\x91", "\xe2\x96\x92", "\xe2\x96\x93",
                                            "\xe2\x96\x88"};
    static const char *const of_ascii[] = {" ", ".", ":", "o", "#"};
    const double limits[] = {0.125, 0.5, 1, 2};
    int level = 0;
    while (level < 4 && amount > limits[level] * usual)
        level++;
    return blocks ? of_blocks[level] : of_ascii[level];
}

void moe_draw_paragraph(struct moe_buf *out, const char *first, uint32_t indent, const char *format,
                        ...)
{
    char text[MOE_DRAW_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t room = MOE_DRAW_WIDTH - indent;
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
