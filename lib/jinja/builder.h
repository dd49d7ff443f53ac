/*
 * Texts: building them, and taking parts of them, with the memory of which bytes come from the
 * caller. Places in a text are bytes here; Python counts characters (jinja_count,
 * jinja_byte_of). Private to this floor.
 */
#ifndef MOE_JINJA_BUILDER_H
#define MOE_JINJA_BUILDER_H

#include "jinja/value.h"

/* A text that grows. Start from a zeroed struct. */
struct jinja_builder {
    char *bytes;
    uint32_t n, room;
    uint32_t n_parts, parts_room;
    struct jinja_part *parts;
};

/* Appends n bytes, the caller's or not. */
void jinja_add(struct jinja_run *run, struct jinja_builder *b, const char *bytes, uint64_t n,
               bool caller);
static inline void jinja_add_char(struct jinja_run *run, struct jinja_builder *b, char c)
{
    jinja_add(run, b, &c, 1, false);
}
void jinja_add_words(struct jinja_run *run, struct jinja_builder *b, const char *words);
/* Appends bytes [begin, end) of a text. */
void jinja_add_part(struct jinja_run *run, struct jinja_builder *b, const struct jinja_text *text,
                    uint32_t begin, uint32_t end);
void jinja_add_text(struct jinja_run *run, struct jinja_builder *b, const struct jinja_text *text);
/* The text so far; the builder is not to be used any more. */
struct jinja_value jinja_built(struct jinja_run *run, struct jinja_builder *b);
/* ... that is marked as escaped. */
struct jinja_value jinja_built_safe(struct jinja_run *run, struct jinja_builder *b);
/* The text with &, <, >, ' and " as HTML writes them, marked so. */
struct jinja_value jinja_escape(struct jinja_run *run, const struct jinja_text *text);

/* Whether byte i of a text comes from the caller. */
bool jinja_is_callers(const struct jinja_text *text, uint32_t i);
/* Bytes [begin, end) as a text of its own. */
struct jinja_value jinja_part_of(struct jinja_run *run, const struct jinja_text *text,
                                 uint32_t begin, uint32_t end);
/* Characters among the first n bytes. */
uint32_t jinja_count(const struct jinja_text *text, uint32_t n);
/* The byte at which character i begins; text->n past the last. */
uint32_t jinja_byte_of(const struct jinja_text *text, uint64_t i);
/* Where `what` is in the text, from byte `from` on; -1: nowhere. */
int64_t jinja_find_text(const struct jinja_text *text, uint32_t from,
                        const struct jinja_text *what);
/* ... the last place that ends at `to` or before. */
int64_t jinja_find_last(const struct jinja_text *text, uint32_t to, const struct jinja_text *what);

#endif
