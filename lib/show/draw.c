/* Tables, bars, wrapped text and heat maps for terminals. */
#define _POSIX_C_SOURCE 200809L /* strnlen */

#include "show/draw.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "show/explain.h"

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

char *moe_format_about(double x, char room[32])
{
    double unit = 1;
    if (!(x >= 0))
        return strcpy(room, "?");
    while (x >= 99.5 * unit)
        unit *= 10;
    int digits = x >= 9.95 || x == 0 ? 0 : x >= 0.995 ? 1 : x >= 0.0995 ? 2 : 3;
    snprintf(room, 32, "%.*f", digits, digits ? x : unit * round(x / unit));
    return room;
}

char *moe_format_about_share(double share, char room[32])
{
    if (!(share >= 0))
        return strcpy(room, "?");
    bool nearly = share < 0.0995 || (share > 0.99 && share < 0.9995);
    snprintf(room, 32, nearly && share > 0 ? "%.1f%%" : "%.0f%%", 100 * share);
    return room;
}

char *moe_format_about_seconds(double seconds, char room[32])
{
    char figure[32];
    const double times = seconds < 0.0995e-3 ? 1e6 : seconds < 0.995 ? 1e3 : 1;
    const char *unit = times > 1e3 ? "us" : times > 1 ? "ms" : "s";
    snprintf(room, 32, "%.24s %s", moe_format_about(times * seconds, figure), unit);
    return room;
}

char *moe_format_about_bytes(double bytes, char room[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    int unit = 0;
    for (; bytes >= 999.5 && unit < 6; unit++)
        bytes /= 1024;
    int digits = unit == 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
    snprintf(room, 32, "%.*f %s", digits, bytes, units[unit]);
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

static uint32_t level_of_shade(double amount, double usual)
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
    uint32_t level = level_of_shade(amount, usual);
    return screen.blocks ? of_blocks[level] : of_ascii[level];
}

void moe_draw_paragraph(struct moe_buf *out, struct moe_screen screen, const char *first,
                        uint32_t indent, const char *text)
{
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

void moe_say(const struct moe_pen *pen, uint32_t indent, const char *format, ...)
{
    char text[MOE_DRAW_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    moe_draw_paragraph(pen->out, pen->screen, NULL, indent, text);
}

void moe_draw_spelling(struct moe_buf *out, struct moe_screen screen, const char *first,
                       uint32_t indent, const char *text, size_t most)
{
    const uint32_t columns = screen.columns < MOE_TEXT_COLUMNS ? screen.columns : MOE_TEXT_COLUMNS;
    const size_t n = moe_utf8_complete((const uint8_t *)text, strnlen(text, most));
    uint32_t at = indent;
    moe_buf_printf(out, "%-*s", (int)indent, first ? first : "");
    for (size_t i = 0, part; i < n; i += part, at += (uint32_t)part) {
        part = 1 + strcspn(text + i + 1, "+");
        part = part < n - i ? part : n - i;
        part = part < columns - indent ? part : columns - indent;
        if (at > indent && at + part > columns) {
            moe_buf_printf(out, "\n%*s", (int)indent, "");
            at = indent;
        }
        moe_buf_printf(out, "%.*s", (int)part, text + i);
    }
    moe_buf_text(out, "\n");
}

const char *moe_draw_plus_minus(struct moe_screen screen)
{
    return screen.blocks ? "\xc2\xb1" : "+-";
}

/* ---- Tables ---- */

void moe_table_begin(struct moe_table *t, uint32_t n_columns, const char *const *heads)
{
    *t = (struct moe_table){.n_columns = n_columns};
    moe_table_row(t, 0, heads);
}

void moe_table_row(struct moe_table *t, double bar, const char *const *cells)
{
    if (t->n_rows == MOE_TABLE_ROWS)
        return;
    t->bars[t->n_rows] = bar;
    for (uint32_t i = 0; i < t->n_columns; i++)
        snprintf(t->cells[t->n_rows][i], MOE_TABLE_CELL, "%s", cells[i]);
    t->n_rows++;
}

void moe_draw_table(struct moe_buf *out, struct moe_screen screen, const struct moe_table *t)
{
    enum { INDENT = 2, GAP = 2, MOST_BAR = 32, LEAST_BAR = 6 };
    uint32_t width[MOE_TABLE_COLUMNS] = {0}, used = INDENT, shown = 0;
    bool bars = false, heads = false;
    for (uint32_t row = 0; row < t->n_rows; row++) {
        bars |= t->bars[row] > 0;
        for (uint32_t i = 0; i < t->n_columns; i++) {
            uint32_t n = (uint32_t)strlen(t->cells[row][i]) + (i == 0 && t->marked ? 2 : 0);
            width[i] = n > width[i] ? n : width[i];
            heads |= row == 0 && n > (i == 0 && t->marked ? 2U : 0U);
        }
    }
    while (shown < t->n_columns && used + width[shown] + (shown ? GAP : 0) <= screen.columns) {
        used += width[shown] + (shown ? GAP : 0);
        shown++;
    }
    uint32_t room = screen.columns > used + GAP ? screen.columns - used - GAP : 0;
    bars &= room >= LEAST_BAR;
    for (uint32_t row = heads ? 0 : 1; row < t->n_rows; row++) {
        const char *mark = !t->marked ? "" : row && row == t->marked ? "> " : "  ";
        uint64_t begun = out->size;
        moe_buf_printf(out, "%*s%s%-*s", INDENT, "", mark, (int)(width[0] - strlen(mark)),
                       t->cells[row][0]);
        for (uint32_t i = 1; i < shown; i++)
            moe_buf_printf(out, "%*s%*s", GAP, "", (int)width[i], t->cells[row][i]);
        if (bars && t->bars[row] > 0) {
            moe_buf_printf(out, "%*s", GAP, "");
            moe_draw_bar(out, t->bars[row], room < MOST_BAR ? room : MOST_BAR, screen);
        }
        while (!out->failed && out->size > begun && out->data[out->size - 1] == ' ')
            out->size--;
        moe_buf_text(out, "\n");
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

/* ---- Heat maps ---- */

enum { COLUMNS = 64, MOST_COLUMNS = 184 };

int moe_heat_init(struct moe_heat *heat, uint32_t n_layers, uint32_t n_experts, struct moe_err *err)
{
    *heat = (struct moe_heat){.n_layers = n_layers, .n_experts = n_experts, .usual = 1};
    heat->values = moe_alloc((uint64_t)n_layers * n_experts, sizeof *heat->values, err);
    return heat->values ? MOE_OK : MOE_ERR_MEMORY;
}

void moe_heat_release(struct moe_heat *heat)
{
    free(heat->values);
    heat->values = NULL;
}

int moe_heat_of_counts(struct moe_heat *heat, const uint64_t *counts, uint32_t n_layers,
                       uint32_t n_experts, struct moe_err *err)
{
    MOE_TRY(moe_heat_init(heat, n_layers, n_experts, err));
    heat->usual = 1.0 / n_experts;
    for (uint32_t l = 0; l < n_layers; l++) {
        const uint64_t *of = counts + (uint64_t)l * n_experts;
        double sum = 0;
        for (uint32_t e = 0; e < n_experts; e++)
            sum += (double)of[e];
        for (uint32_t e = 0; e < n_experts; e++)
            heat->values[(uint64_t)l * n_experts + e] = sum > 0 ? (double)of[e] / sum : (double)NAN;
    }
    return MOE_OK;
}

/* ---- Drawing ---- */

uint32_t moe_heat_experts(const struct moe_heat *heat, struct moe_screen screen)
{
    uint32_t columns = moe_draw_columns(screen, COLUMNS, MOST_COLUMNS);
    return (heat->n_experts + columns - 1) / columns;
}

uint32_t moe_heat_layers(const struct moe_heat *heat)
{
    return (heat->n_layers + MOE_HEAT_LINES - 1) / MOE_HEAT_LINES;
}

double moe_heat_cell(const struct moe_heat *h, uint32_t layer, uint32_t n_layers, uint32_t expert,
                     uint32_t n_experts)
{
    double sum = 0;
    uint32_t n = 0;
    for (uint32_t l = layer; l < layer + n_layers && l < h->n_layers; l++)
        for (uint32_t e = expert; e < expert + n_experts && e < h->n_experts; e++) {
            double x = h->values[(uint64_t)l * h->n_experts + e];
            if (isnan(x))
                continue;
            sum += x;
            n++;
        }
    return n ? sum / n : (double)NAN;
}

/* Of the 256 colours of terminals, from cold to warm. */
static const uint8_t colours[MOE_SHADES] = {0, 67, 151, 222, 209};

void moe_draw_heat(const struct moe_heat *h, struct moe_screen screen, struct moe_buf *out)
{
    uint32_t experts = moe_heat_experts(h, screen), layers = moe_heat_layers(h);
    for (uint32_t l = 0; l < h->n_layers; l += layers) {
        uint32_t before = 0; /* shade of the cell before, whose colour still holds */
        moe_buf_printf(out, "  %4" PRIu32 " |", h->names ? h->names[l] : l);
        for (uint32_t e = 0; e < h->n_experts; e += experts) {
            double x = moe_heat_cell(h, l, layers, e, experts);
            uint32_t shade = x > 0 ? level_of_shade(x, h->usual) : 0;
            if (screen.colour && shade != before && shade)
                moe_buf_printf(out, "\033[38;5;%dm", colours[shade]);
            else if (screen.colour && shade != before)
                moe_buf_text(out, "\033[0m");
            before = shade;
            moe_buf_text(out, isnan(x) ? "?" : x < 0 ? "-" : moe_draw_shade(x, h->usual, screen));
        }
        moe_buf_text(out, screen.colour && before ? "\033[0m|\n" : "|\n");
    }
}

void moe_heat_json(struct moe_emit *e, const char *key, const struct moe_heat *h)
{
    moe_emit_open_list(e, key);
    for (uint32_t l = 0; l < h->n_layers; l++) {
        moe_emit_open_line_list(e, NULL);
        for (uint32_t i = 0; i < h->n_experts; i++)
            moe_emit_rounded(e, NULL, 4, h->values[(uint64_t)l * h->n_experts + i]);
        moe_emit_close(e);
    }
    moe_emit_close(e);
}
