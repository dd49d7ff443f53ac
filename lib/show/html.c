/* The writer of HTML pages, and pictures as SVG. */
#include "show/html.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "show/draw.h"

static const char style[] =
    ":root{color-scheme:light dark;--bg:#fff;--fg:#1c2430;--dim:#5b6675;--line:#d5dbe3;"
    "--k0:#eef2f7;--k1:#d6e4f5;--k2:#b3d0f0;--k3:#8bb8e8;--k4:#629edd;--k5:#3f82cc;--k6:#2a66ad;"
    "--k7:#1b4b88;--k8:#0f3161;--unknown:#bbb;--below:#d98a2b;--mark:#c2410c;"
    "--s0:#5b6675;--s1:#3f82cc;--s2:#2f9e77;--s3:#b7791f;--s4:#8b5cc7;--s5:#d5dbe3;"
    "--s6:#c2577a;--s7:#7a8f2e}"
    "@media(prefers-color-scheme:dark){:root{--bg:#12161c;--fg:#e4e9f0;--dim:#9aa6b5;"
    "--line:#303947;--k0:#1b232e;--k1:#1c3350;--k2:#1f4673;--k3:#285d96;--k4:#3878b8;--k5:#5596d3;"
    "--k6:#7db4e6;--k7:#abd1f4;--k8:#dcefff;--unknown:#555;--below:#e0a04a;--mark:#fb923c;"
    "--s0:#9aa6b5;--s5:#303947}}"
    "body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;margin:0 auto;"
    "padding:1rem;max-width:46rem}h1{font-size:1.4rem;overflow-wrap:anywhere}"
    "h2{font-size:1.1rem;margin:2rem 0 .5rem;border-bottom:1px solid var(--line)}"
    "svg{display:block;width:100%;height:auto;margin:.5rem 0}"
    "svg text{font:9px system-ui,sans-serif;fill:var(--dim)}"
    "table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}"
    "th,td{text-align:right;padding:.15rem .3rem;border-bottom:1px solid var(--line)}"
    "th:first-child,td:first-child{text-align:left;min-width:8rem;overflow-wrap:anywhere}"
    "td+td{white-space:nowrap}th{font-weight:600;color:var(--dim)}div{overflow-x:auto}p{overflow-"
    "wrap:anywhere}"
    "pre{overflow-x:auto;font-size:12px;line-height:1.35}figure{margin:0}"
    "figcaption,.note{color:var(--dim);font-size:.9em}.answer{font-size:1.25rem}"
    ".now{font-weight:600}.grid{stroke:var(--line);stroke-width:.5}"
    ".k0{fill:var(--k0)}.k1{fill:var(--k1)}.k2{fill:var(--k2)}.k3{fill:var(--k3)}"
    ".k4{fill:var(--k4)}.k5{fill:var(--k5)}.k6{fill:var(--k6)}.k7{fill:var(--k7)}"
    ".k8{fill:var(--k8)}.unknown{fill:var(--unknown)}.below{fill:var(--below)}"
    ".s0{fill:var(--s0)}.s1{fill:var(--s1)}.s2{fill:var(--s2)}.s3{fill:var(--s3)}"
    ".s4{fill:var(--s4)}.s5{fill:var(--s5)}.s6{fill:var(--s6)}.s7{fill:var(--s7)}.curve{fill:none;"
    "stroke:var(--s1);stroke-width:2}"
    ".axis{stroke:var(--line)}.mark{stroke:var(--mark);stroke-width:1.5;stroke-dasharray:4 3}";

void moe_page_text(struct moe_page *p, const char *text)
{
    const uint8_t *at = (const uint8_t *)text;
    for (uint64_t left = strlen(text); left;) {
        int length;
        uint32_t c = moe_utf8_decode(at, left, &length);
        if (c == '<')
            moe_buf_text(p->out, "&lt;");
        else if (c == '>')
            moe_buf_text(p->out, "&gt;");
        else if (c == '&')
            moe_buf_text(p->out, "&amp;");
        else if (c == '"')
            moe_buf_text(p->out, "&quot;");
        else if (c == '\'')
            moe_buf_text(p->out, "&#39;");
        else if (c == 0xFFFD || (c < 32 && c != '\n' && c != '\t') || (c >= 127 && c < 160))
            moe_buf_text(p->out, "\xef\xbf\xbd");
        else
            moe_buf_append(p->out, at, (uint64_t)length);
        at += length;
        left -= (uint64_t)length;
    }
}

/* name: of the element, with its attributes after a blank. */
static void put_element(struct moe_page *p, const char *name, const char *text)
{
    moe_buf_printf(p->out, "<%s>", name);
    moe_page_text(p, text);
    moe_buf_printf(p->out, "</%.*s>\n", (int)strcspn(name, " "), name);
}

void moe_page_begin(struct moe_page *p, struct moe_buf *out, const char *title)
{
    *p = (struct moe_page){out};
    moe_buf_text(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
                      "<meta name=\"viewport\" content=\"width=device-width\"/>\n");
    put_element(p, "title", title);
    moe_buf_text(out, "<style>");
    moe_buf_text(out, style);
    moe_buf_text(out, "</style>\n</head>\n<body>\n");
    put_element(p, "h1", title);
}

void moe_page_end(struct moe_page *p)
{
    moe_buf_text(p->out, "</body>\n</html>\n");
}

void moe_page_say(struct moe_page *p, const char *format, ...)
{
    char text[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    put_element(p, "p", text);
}

void moe_page_lines(struct moe_page *p, const char *title, const char *text)
{
    moe_buf_text(p->out, "<details>\n");
    put_element(p, "summary", title);
    put_element(p, "pre", text);
    moe_buf_text(p->out, "</details>\n");
}

void moe_page_open_section(struct moe_page *p, const char *title)
{
    moe_buf_text(p->out, "<section>\n");
    put_element(p, "h2", title);
}

void moe_page_close_section(struct moe_page *p)
{
    moe_buf_text(p->out, "</section>\n");
}

static void put_cells(struct moe_page *p, const char *name, const char *const *cells, uint32_t n)
{
    moe_buf_text(p->out, "<tr>");
    for (uint32_t i = 0; i < n; i++)
        put_element(p, name, cells[i]);
    moe_buf_text(p->out, "</tr>\n");
}

void moe_page_table(struct moe_page *p, const struct moe_table *t)
{
    moe_buf_text(p->out, "<div><table>\n");
    for (uint32_t row = 0; row < t->n_rows; row++) {
        const char *cells[MOE_TABLE_COLUMNS];
        for (uint32_t i = 0; i < t->n_columns; i++)
            cells[i] = t->cells[row][i];
        put_cells(p,
                  row == 0           ? "th"
                  : row == t->marked ? "td class=\"now\""
                                     : "td",
                  cells, t->n_columns);
    }
    moe_buf_text(p->out, "</table></div>\n");
}

void moe_page_note(struct moe_page *p, const char *text)
{
    put_element(p, "p class=\"note\"", text);
}

void moe_page_answer(struct moe_page *p, const char *text)
{
    put_element(p, "p class=\"answer\"", text);
}

/* ---- Pictures ---- */

/* In units of the picture: as wide as a small screen, so that its text stays readable there. */
enum { WIDTH = 360, LEFT = 34, STRIP = 48, CURVE = 190, SHADES = 9 };

static void open_picture(struct moe_page *p, double height, const char *caption)
{
    moe_buf_printf(p->out, "<figure>\n<svg viewBox=\"0 0 %d %.1f\" role=\"img\">\n<title>", WIDTH,
                   height);
    moe_page_text(p, caption);
    moe_buf_text(p->out, "</title>\n");
}

static void close_picture(struct moe_page *p, const char *caption)
{
    moe_buf_text(p->out, "</svg>\n<figcaption>");
    moe_page_text(p, caption);
    moe_buf_text(p->out, "</figcaption>\n</figure>\n");
}

static void put_label(struct moe_page *p, double x, double y, const char *anchor, const char *text)
{
    moe_buf_printf(p->out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    moe_page_text(p, text);
    moe_buf_text(p->out, "</text>\n");
}

/* ---- Heat maps ---- */

static void put_shade(struct moe_page *p, double x, double usual)
{
    if (isnan(x))
        moe_buf_text(p->out, "unknown");
    else if (x < 0)
        moe_buf_text(p->out, "below");
    else
        moe_buf_printf(p->out, "k%d",
                       usual > 0 ? (int)fmin(SHADES - 1, round((SHADES - 1) * x / (2 * usual)))
                                 : 0);
}

void moe_page_heat(struct moe_page *p, const struct moe_heat *h, const char *caption,
                   const char *const *columns)
{
    uint32_t experts = (h->n_experts + MOE_PAGE_COLUMNS - 1) / MOE_PAGE_COLUMNS;
    uint32_t layers = moe_heat_layers(h);
    uint32_t across = (h->n_experts + experts - 1) / experts;
    uint32_t down = (h->n_layers + layers - 1) / layers;
    double w = (double)(WIDTH - LEFT) / across, line = down > 24 ? 4 : 12;
    open_picture(p, line * down + 2, caption);
    for (uint32_t l = 0; l < h->n_layers; l += layers) {
        double y = line * (l / layers);
        uint32_t name = h->names ? h->names[l] : l;
        char room[32];
        snprintf(room, sizeof room, "%" PRIu32, name);
        if (line >= 9 || l / layers % 4 == 0)
            put_label(p, LEFT - 4, y + 9, "end", room);
        for (uint32_t e = 0; e < h->n_experts; e += experts) {
            double x = moe_heat_cell(h, l, layers, e, experts);
            moe_buf_printf(p->out,
                           "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" class=\"",
                           LEFT + w * (e / experts), y, fmax(0.5, w - 0.4), line - 0.6);
            put_shade(p, x, h->usual);
            moe_buf_printf(p->out, "\"><title>layer %" PRIu32 ", ", name);
            if (columns)
                moe_page_text(p, columns[e]);
            else
                moe_buf_printf(p->out, "expert %" PRIu32, e);
            if (isnan(x))
                moe_buf_text(p->out, ": not known</title></rect>\n");
            else
                moe_buf_printf(p->out, ": %.4g</title></rect>\n", x);
        }
    }
    close_picture(p, caption);
}

/* ---- Parts ---- */

void moe_page_parts(struct moe_page *p, const struct moe_explained_part *parts, uint32_t n,
                    const char *caption, char *(*format)(double amount, char room[32]))
{
    static const char *const heads[] = {"", "amount", "share"};
    double sum = 0, at = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += parts[i].amount;
    if (!(sum > 0))
        return;
    open_picture(p, 26, caption);
    for (uint32_t i = 0; i < n; i++) {
        double width = WIDTH * parts[i].amount / sum;
        moe_buf_printf(p->out,
                       "<rect x=\"%.2f\" y=\"0\" width=\"%.2f\" height=\"24\" class=\"s%" PRIu32
                       "\"><title>",
                       at, width, i % MOE_EXPLAINED_PARTS);
        moe_page_text(p, parts[i].name);
        moe_buf_text(p->out, "</title></rect>\n");
        at += width;
    }
    close_picture(p, caption);
    moe_buf_text(p->out, "<div><table>\n");
    put_cells(p, "th", heads, 3);
    for (uint32_t i = 0; i < n; i++) {
        char room[2][32];
        moe_buf_text(p->out, "<tr><td>");
        moe_buf_printf(
            p->out,
            "<svg viewBox=\"0 0 10 10\" style=\"width:.7em;display:inline;margin:0 .4em "
            "0 0\" aria-hidden=\"true\"><rect width=\"10\" height=\"10\" class=\"s%" PRIu32
            "\"/></svg>",
            i % MOE_EXPLAINED_PARTS);
        moe_page_text(p, parts[i].name);
        moe_buf_printf(p->out, "</td><td>%s</td><td>%s</td></tr>\n",
                       format(parts[i].amount, room[0]),
                       moe_format_percent(parts[i].amount / sum, room[1]));
    }
    moe_buf_text(p->out, "</table></div>\n");
}

/* ---- Curves, strips ---- */

/* Finds a round figure that fits 2 to 5 times into `most`. */
static double tick_of(double most)
{
    double unit = pow(10, floor(log10(most)));
    return most / unit >= 5   ? 2 * unit
           : most / unit >= 2 ? unit
           : most / unit >= 1 ? unit / 2
                              : unit / 5;
}

/* Where an amount lies on the x axis. */
static double place_of(const struct moe_page_curve *c, double x)
{
    const double low = c->x[0], high = c->x[c->n - 1];
    const double share = c->logarithmic ? log(x / low) / log(high / low) : (x - low) / (high - low);
    return LEFT + (WIDTH - LEFT - 14) * share;
}

/* Labels of the x axis below its points; where there is no room the later one is left out, but
 * never the last. */
static void put_x_labels(struct moe_page *p, const struct moe_page_curve *c, double y)
{
    enum { ROOM = 52 };
    double last = place_of(c, c->x[c->n - 1]), at = -ROOM;
    for (uint32_t i = 0; i < c->n; i++) {
        char room[32];
        double x = place_of(c, c->x[i]);
        if (x < at + ROOM || (i + 1 < c->n && x > last - 1.3 * ROOM))
            continue;
        at = x;
        moe_buf_printf(p->out, "<path class=\"axis\" d=\"M%.2f %.2f V%.2f\"/>\n", x, y - 10, y - 7);
        put_label(p, i + 1 == c->n ? WIDTH - 1 : x, y, i + 1 == c->n ? "end" : "middle",
                  c->format_x(c->x[i], room));
    }
}

void moe_page_curve(struct moe_page *p, const struct moe_page_curve *c)
{
    enum { BOTTOM = CURVE - 34, TOP = 26 };
    double most = 0;
    char room[2][32];
    if (c->n < 2 || !(c->x[0] > 0) || !(c->x[c->n - 1] > c->x[0]))
        return;
    for (uint32_t i = 0; i < c->n; i++)
        most = fmax(most, c->y[i]);
    if (!(most > 0))
        return;
#define AT_Y(v) (BOTTOM - (BOTTOM - TOP) * fmax(0, v) / most)
    open_picture(p, CURVE, c->caption);
    for (double tick = 0; tick <= most * 1.0001; tick += tick_of(most)) {
        moe_buf_printf(p->out, "<path class=\"grid\" d=\"M%d %.2f H%d\"/>\n", LEFT, AT_Y(tick),
                       WIDTH);
        put_label(p, LEFT - 3, AT_Y(tick) + 3, "end", moe_format_about(tick, room[0]));
    }
    moe_buf_printf(p->out,
                   "<path class=\"axis\" fill=\"none\" d=\"M%d %d V%d H%d\"/>\n<path "
                   "class=\"curve\" d=\"",
                   LEFT, TOP, BOTTOM, WIDTH);
    for (uint32_t i = 0; i < c->n; i++)
        moe_buf_printf(p->out, "%c%.2f %.2f ", i ? 'L' : 'M', place_of(c, c->x[i]), AT_Y(c->y[i]));
    moe_buf_text(p->out, "\"/>\n");
    for (uint32_t i = 0; i < c->n; i++) {
        moe_buf_printf(p->out, "<circle cx=\"%.2f\" cy=\"%.2f\" r=\"3\" class=\"s1\"><title>",
                       place_of(c, c->x[i]), AT_Y(c->y[i]));
        moe_page_text(p, c->format_x(c->x[i], room[0]));
        moe_buf_printf(p->out, ": about %s tokens/s</title></circle>\n",
                       moe_format_about(c->y[i], room[1]));
    }
    if (c->now >= c->x[0] && c->now <= c->x[c->n - 1]) {
        double x = place_of(c, c->now);
        bool right = x > WIDTH / 2.0;
        char name[96];
        snprintf(name, sizeof name, "%s: %s", c->now_name, c->format_x(c->now, room[0]));
        moe_buf_printf(p->out, "<path class=\"mark\" d=\"M%.2f %d V%d\"/>\n", x, 14, BOTTOM);
        put_label(p, right ? x - 3 : x + 3, 21, right ? "end" : "start", name);
    }
    put_label(p, 2, 9, "start", c->y_name);
    put_x_labels(p, c, BOTTOM + 13);
    put_label(p, (LEFT + WIDTH) / 2.0, CURVE - 5, "middle", c->x_name);
    close_picture(p, c->caption);
#undef AT_Y
}

void moe_page_strip(struct moe_page *p, const double *values, uint32_t n, double most,
                    const char *caption)
{
    double w = (double)WIDTH / n;
    open_picture(p, STRIP + 2, caption);
    moe_buf_printf(p->out, "<path class=\"axis\" d=\"M0 %d H%d\"/>\n", STRIP, WIDTH);
    for (uint32_t i = 0; i < n && most > 0; i++) {
        double height = STRIP * fmin(1, values[i] / most);
        if (height > 0.05)
            moe_buf_printf(p->out,
                           "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" "
                           "class=\"s1\"/>\n",
                           w * i, STRIP - height, w + 0.2, height); /* no gaps */
    }
    close_picture(p, caption);
}
