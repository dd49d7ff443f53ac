/*
 * A page of HTML that needs nothing else: no network, no script, pictures as SVG, readable from 400
 * pixels on, light or dark as the reader's system is. Text from files goes through moe_page_text
 * or the functions above it, which escape: no name can become markup.
 */
#ifndef MOE_HTML_PAGE_H
#define MOE_HTML_PAGE_H

#include <stdint.h>

#include "base/buf.h"
#include "show/draw.h"

struct moe_page {
    struct moe_buf *out; /* borrowed; its failure is the page's */
};

/* Head, style and the first heading; to moe_page_end. */
void moe_page_begin(struct moe_page *p, struct moe_buf *out, const char *title);
void moe_page_end(struct moe_page *p);

/* Text as it is to be read: what would be markup is escaped, control characters and bytes that are
 * no UTF-8 become U+FFFD. */
void moe_page_text(struct moe_page *p, const char *text);
/* A paragraph; at most 4096 bytes of it. */
void moe_page_say(struct moe_page *p, const char *format, ...) MOE_PRINTF(2, 3);
/* Text whose lines stand as they are, folded away under `title`. */
void moe_page_lines(struct moe_page *p, const char *title, const char *text);

void moe_page_open_section(struct moe_page *p, const char *title);
void moe_page_close_section(struct moe_page *p);

/* Columns after the first hold figures. */
void moe_page_open_table(struct moe_page *p, const char *const *heads, uint32_t n);
void moe_page_row(struct moe_page *p, const char *const *cells, uint32_t n);
void moe_page_close_table(struct moe_page *p);
/* All of a table, its present row in bold. */
void moe_page_table(struct moe_page *p, const struct moe_table *t);
/* A paragraph in small print: what the words of a picture or a table mean. */
void moe_page_note(struct moe_page *p, const char *text);
/* What a page says first, in large print. */
void moe_page_answer(struct moe_page *p, const char *text);

#endif
