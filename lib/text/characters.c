/*
 * What kind of character one is, and where characters and white space begin and end.
 */
#include <utf8proc.h>

#include "base/text.h"
#include "text/tokenizer_steps.h"

bool moe_is_white(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

/* Alphabetic, Mark, Decimal_Number, Connector_Punctuation and Join_Control (UTS 18, annex C). Of
 * the alphabetic ones only the circled and squared letters are neither letters, marks nor numbers
 * that are letters. */
bool moe_is_word(uint32_t c)
{
    static const uint32_t circled[][2] = {
        {0x24b6, 0x24e9}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};
    utf8proc_category_t kind = utf8proc_category((utf8proc_int32_t)c);
    if ((kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_NL) ||
        kind == UTF8PROC_CATEGORY_PC || c == 0x200c || c == 0x200d)
        return true;
    for (int i = 0; i < 4; i++)
        if (c >= circled[i][0] && c <= circled[i][1])
            return true;
    return false;
}

uint64_t moe_character_before(const uint8_t *text, uint64_t from, uint64_t at)
{
    int length;
    uint64_t start = at - 1;
    while (start > from && at - start < 4 && (text[start] & 0xc0) == 0x80)
        start--;
    moe_utf8_decode(text + start, at - start, &length);
    return start + (uint64_t)length == at ? start : at - 1;
}

uint64_t moe_white_after(const uint8_t *text, uint64_t at, uint64_t n)
{
    int length;
    while (at < n && moe_is_white(moe_utf8_decode(text + at, n - at, &length)))
        at += (uint64_t)length;
    return at;
}

uint64_t moe_white_before(const uint8_t *text, uint64_t from, uint64_t at)
{
    while (at > from) {
        int length;
        uint64_t start = moe_character_before(text, from, at);
        if (!moe_is_white(moe_utf8_decode(text + start, at - start, &length)))
            break;
        at = start;
    }
    return at;
}
