#include "html/page.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

static const char style[] =
    ":root{color-scheme:light dark;--bg:#fff;--fg:#1c2430;--dim:#5b6675;--line:#d5dbe3;"
    "--k0:#eef2f7;--k1:#d6e4f5;--k2:#b3d0f0;--k3:#8bb8e8;--k4:#629edd;--k5:#3f82cc;--k6:#2a66ad;"
    "--k7:#1b4b88;--k8:#0f3161;--unknown:#bbb;--below:#d98a2b;--mark:#c2410c;"
    "--s0:#5b6675;--s1:#3f82cc;--s2:#2f9e77;--s3:#b7791f;--s4:#8b5cc7;--s5:#d5dbe3}"
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
    ".s4{fill:var(--s4)}.s5{fill:var(--s5)}.curve{fill:none;stroke:var(--s1);stroke-width:2}"
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

void moe_page_open_table(struct moe_page *p, const char *const *heads, uint32_t n)
{
    moe_buf_text(p->out, "<div><table>\n");
    put_cells(p, "th", heads, n);
}

void moe_page_row(struct moe_page *p, const char *const *cells, uint32_t n)
{
    put_cells(p, "td", cells, n);
}

void moe_page_close_table(struct moe_page *p)
{
    moe_buf_text(p->out, "</table></div>\n");
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
    moe_page_close_table(p);
}

void moe_page_note(struct moe_page *p, const char *text)
{
    put_element(p, "p class=\"note\"", text);
}

void moe_page_answer(struct moe_page *p, const char *text)
{
    put_element(p, "p class=\"answer\"", text);
}
