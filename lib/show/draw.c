#include "show/draw.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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
