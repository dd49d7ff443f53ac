#include "jinja/letters.h"

#include <string.h>
#include <utf8proc.h>

#include "base/text.h"
#include "jinja/builder.h"

static utf8proc_category_t category(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c);
}

bool jinja_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0x2028 || c == 0x2029 ||
           category(c) == UTF8PROC_CATEGORY_ZS;
}

bool jinja_is_printable(uint32_t c)
{
    switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return c == ' ';
    default:
        return true;
    }
}

bool jinja_is_alpha(uint32_t c)
{
    utf8proc_category_t k = category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool jinja_is_digit(uint32_t c)
{
    return category(c) == UTF8PROC_CATEGORY_ND || c == 0xb2 || c == 0xb3 || c == 0xb9 ||
           (c >= 0x2070 && c <= 0x2089 && c != 0x2071 && category(c) == UTF8PROC_CATEGORY_NO);
}

bool jinja_is_numeric(uint32_t c)
{
    utf8proc_category_t k = category(c);
    return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
}

bool jinja_is_upper(uint32_t c)
{
    return category(c) == UTF8PROC_CATEGORY_LU;
}

bool jinja_is_lower(uint32_t c)
{
    return category(c) == UTF8PROC_CATEGORY_LL || c == 0xaa || c == 0xba;
}

bool jinja_ends_line(uint32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

/* ---- Case ---- */

enum letter_case { TO_LOWER, TO_UPPER, TO_TITLE };

static void add_letter(struct jinja_run *run, struct jinja_builder *b,
                       const struct jinja_text *text, uint32_t i, int length, enum letter_case to)
{
    uint32_t c = moe_utf8_decode((const uint8_t *)text->bytes + i, text->n - i, &length);
    uint8_t bytes[8];
    int n = 0;
    bool caller = jinja_is_callers(text, i);
    if (c == 0xdf && to != TO_LOWER) { /* the one letter that becomes two */
        memcpy(bytes, to == TO_UPPER ? "SS" : "Ss", 2);
        n = 2;
    } else if (c == 0xfffd && length == 1) { /* no character */
        bytes[n++] = (uint8_t)text->bytes[i];
    } else {
        utf8proc_int32_t from = (utf8proc_int32_t)c;
        utf8proc_int32_t became = to == TO_LOWER   ? utf8proc_tolower(from)
                                  : to == TO_UPPER ? utf8proc_toupper(from)
                                                   : utf8proc_totitle(from);
        n = moe_utf8_encode((uint32_t)became, bytes);
    }
    jinja_add(run, b, (const char *)bytes, (uint64_t)n, caller);
}

static struct jinja_value all_letters(struct jinja_run *run, const struct jinja_text *text,
                                      enum letter_case first, enum letter_case rest)
{
    struct jinja_builder b = {0};
    int length;
    for (uint32_t i = 0; i < text->n; i += (uint32_t)length) {
        moe_utf8_decode((const uint8_t *)text->bytes + i, text->n - i, &length);
        add_letter(run, &b, text, i, length, i ? rest : first);
    }
    return jinja_built(run, &b);
}

struct jinja_value jinja_lower(struct jinja_run *run, const struct jinja_text *text)
{
    return all_letters(run, text, TO_LOWER, TO_LOWER);
}

struct jinja_value jinja_upper(struct jinja_run *run, const struct jinja_text *text)
{
    return all_letters(run, text, TO_UPPER, TO_UPPER);
}

struct jinja_value jinja_capitalize(struct jinja_run *run, const struct jinja_text *text)
{
    return all_letters(run, text, TO_TITLE, TO_LOWER);
}

struct jinja_value jinja_title(struct jinja_run *run, const struct jinja_text *text, bool words)
{
    struct jinja_builder b = {0};
    bool begins = true;
    int length;
    for (uint32_t i = 0; i < text->n; i += (uint32_t)length) {
        uint32_t c = moe_utf8_decode((const uint8_t *)text->bytes + i, text->n - i, &length);
        add_letter(run, &b, text, i, length, !begins ? TO_LOWER : words ? TO_UPPER : TO_TITLE);
        begins = words ? jinja_is_space(c) || (c < 0x80 && c && strchr("-([{<", (int)c))
                       : !jinja_is_alpha(c);
    }
    return jinja_built(run, &b);
}
