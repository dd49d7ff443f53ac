/*
 * Characters as Python classifies and changes them, by Unicode's tables. Private to this floor.
 */
#ifndef MOE_JINJA_LETTERS_H
#define MOE_JINJA_LETTERS_H

#include "jinja/value.h"

bool jinja_is_space(uint32_t c);
bool jinja_is_printable(uint32_t c); /* repr shows it as it is */
bool jinja_is_alpha(uint32_t c);
bool jinja_is_digit(uint32_t c);
bool jinja_is_numeric(uint32_t c);
bool jinja_is_upper(uint32_t c);
bool jinja_is_lower(uint32_t c);
bool jinja_ends_line(uint32_t c); /* of splitlines */

struct jinja_value jinja_lower(struct jinja_run *run, const struct jinja_text *text);
struct jinja_value jinja_upper(struct jinja_run *run, const struct jinja_text *text);
/* The first character in upper case, the others in lower case. */
struct jinja_value jinja_capitalize(struct jinja_run *run, const struct jinja_text *text);
/* Each word so. Words begin after what is no letter, or (words true, as Jinja's filter has it)
 * after white space and -([{< alone. */
struct jinja_value jinja_title(struct jinja_run *run, const struct jinja_text *text, bool words);

#endif
