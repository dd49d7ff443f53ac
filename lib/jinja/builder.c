#define _GNU_SOURCE /* memmem */
#include "jinja/builder.h"

#include <string.h>

/* ---- Building ---- */

static void make_room(struct jinja_run *run, struct jinja_builder *b, uint64_t n)
{
    uint64_t want = b->n + n, room = b->room ? b->room : 64;
    if (want <= b->room)
        return;
    while (room < want)
        room *= 2;
    if (room > UINT32_MAX) /* far above any limit of memory */
        room = UINT32_MAX;
    b->bytes = jinja_grow(&run->heap, b->bytes, b->n, room, 1);
    b->room = (uint32_t)room;
}

static void add_callers(struct jinja_run *run, struct jinja_builder *b, uint32_t begin,
                        uint32_t end)
{
    if (begin == end)
        return;
    if (b->n_parts && b->parts[b->n_parts - 1].end == begin) {
        b->parts[b->n_parts - 1].end = end;
        return;
    }
    if (b->n_parts == b->parts_room) {
        b->parts_room = b->parts_room ? 2 * b->parts_room : 4;
        b->parts = jinja_grow(&run->heap, b->parts, b->n_parts, b->parts_room, sizeof *b->parts);
    }
    b->parts[b->n_parts++] = (struct jinja_part){begin, end};
}

void jinja_add(struct jinja_run *run, struct jinja_builder *b, const char *bytes, uint64_t n,
               bool caller)
{
    if (n == 0)
        return;
    make_room(run, b, n);
    memcpy(b->bytes + b->n, bytes, n);
    b->n += (uint32_t)n;
    if (caller)
        add_callers(run, b, b->n - (uint32_t)n, b->n);
}

void jinja_add_words(struct jinja_run *run, struct jinja_builder *b, const char *words)
{
    jinja_add(run, b, words, strlen(words), false);
}

void jinja_add_part(struct jinja_run *run, struct jinja_builder *b, const struct jinja_text *text,
                    uint32_t begin, uint32_t end)
{
    uint32_t at = b->n;
    jinja_add(run, b, text->bytes + begin, end - begin, false);
    for (uint32_t i = 0; i < text->n_parts; i++) {
        uint32_t first = text->parts[i].begin > begin ? text->parts[i].begin : begin;
        uint32_t last = text->parts[i].end < end ? text->parts[i].end : end;
        if (first < last)
            add_callers(run, b, at + first - begin, at + last - begin);
    }
}

void jinja_add_text(struct jinja_run *run, struct jinja_builder *b, const struct jinja_text *text)
{
    jinja_add_part(run, b, text, 0, text->n);
}

struct jinja_value jinja_built(struct jinja_run *run, struct jinja_builder *b)
{
    struct jinja_text *text = jinja_take(&run->heap, 1, sizeof *text);
    *text = (struct jinja_text){b->bytes ? b->bytes : "", b->n, b->n_parts, b->parts, false};
    return (struct jinja_value){JINJA_TEXT, {.text = text}};
}

struct jinja_value jinja_built_safe(struct jinja_run *run, struct jinja_builder *b)
{
    struct jinja_text *text = jinja_take(&run->heap, 1, sizeof *text);
    *text = *jinja_built(run, b).as.text;
    text->safe = true;
    return (struct jinja_value){JINJA_TEXT, {.text = text}};
}

/* ---- Parts ---- */

bool jinja_is_callers(const struct jinja_text *text, uint32_t i)
{
    for (uint32_t k = 0; k < text->n_parts; k++)
        if (i >= text->parts[k].begin && i < text->parts[k].end)
            return true;
    return false;
}

struct jinja_value jinja_part_of(struct jinja_run *run, const struct jinja_text *text,
                                 uint32_t begin, uint32_t end)
{
    struct jinja_builder b = {0};
    jinja_add_part(run, &b, text, begin, end);
    return text->safe ? jinja_built_safe(run, &b) : jinja_built(run, &b);
}

struct jinja_value jinja_escape(struct jinja_run *run, const struct jinja_text *text)
{
    static const char special[] = "&<>'\"";
    static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    struct jinja_builder b = {0};
    uint32_t plain = 0;
    for (uint32_t i = 0; i < text->n; i++) {
        const char *at = text->bytes[i] ? strchr(special, text->bytes[i]) : NULL;
        if (!at)
            continue;
        jinja_add_part(run, &b, text, plain, i);
        jinja_add_words(run, &b, names[at - special]);
        plain = i + 1;
    }
    jinja_add_part(run, &b, text, plain, text->n);
    return jinja_built_safe(run, &b);
}

/* Whether a character begins with this byte. */
static bool begins(char byte)
{
    return ((unsigned char)byte & 0xc0) != 0x80;
}

uint32_t jinja_count(const struct jinja_text *text, uint32_t n)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        count += begins(text->bytes[i]);
    return count;
}

uint32_t jinja_byte_of(const struct jinja_text *text, uint64_t i)
{
    uint32_t at = 0;
    for (uint64_t seen = 0; at < text->n; at++)
        if (begins(text->bytes[at]) && seen++ == i)
            break;
    return at;
}

int64_t jinja_find_text(const struct jinja_text *text, uint32_t from, const struct jinja_text *what)
{
    if (what->n == 0)
        return from <= text->n ? (int64_t)from : -1;
    if (from > text->n)
        return -1;
    const char *found = memmem(text->bytes + from, text->n - from, what->bytes, what->n);
    return found ? found - text->bytes : -1;
}

int64_t jinja_find_last(const struct jinja_text *text, uint32_t to, const struct jinja_text *what)
{
    if (what->n > to)
        return -1;
    for (int64_t at = to - what->n; at >= 0; at--)
        if (what->n == 0 || memcmp(text->bytes + at, what->bytes, what->n) == 0)
            return at;
    return -1;
}
