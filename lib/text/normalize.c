/* Normalizers: steps that change a text before it is split. */
#define _GNU_SOURCE /* memmem */

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/bytes.h"
#include "base/text.h"
#include "text/internal.h"

static bool is_mark(uint32_t c)
{
    utf8proc_category_t kind = utf8proc_category((utf8proc_int32_t)c);
    return kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_MC ||
           kind == UTF8PROC_CATEGORY_ME;
}

/*
 * Kinds of characters, and where characters and white space begin and end.
 */

static bool is_white(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

/* Alphabetic, Mark, Decimal_Number, Connector_Punctuation and Join_Control (UTS 18, annex C). The
 * only alphabetic characters that are neither letters, marks nor letter numbers are the circled and
 * squared letters. */
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
    while (at < n && is_white(moe_utf8_decode(text + at, n - at, &length)))
        at += (uint64_t)length;
    return at;
}

uint64_t moe_white_before(const uint8_t *text, uint64_t from, uint64_t at)
{
    while (at > from) {
        int length;
        uint64_t start = moe_character_before(text, from, at);
        if (!is_white(moe_utf8_decode(text + start, at - start, &length)))
            break;
        at = start;
    }
    return at;
}

/* ---- Precompiled tables of replacements ---- */

enum { GRAPHEME_BYTES = 6 /* longer ones are handled character by character */ };

/* ---- The trie's units: darts-clone's bits ---- */

#define UNIT_VALUE 0x80000000u /* the unit is a value: the lower bits */

static uint32_t unit_at(const struct moe_charsmap *map, uint32_t i)
{
    return moe_get_u32(map->units + 4 * (uint64_t)i);
}

static bool has_leaf(uint32_t unit)
{
    return unit >> 8 & 1;
}

static uint32_t unit_label(uint32_t unit)
{
    return unit & (UNIT_VALUE | 0xff);
}

static uint32_t unit_offset(uint32_t unit)
{
    return unit >> 10 << ((unit & 1u << 9) >> 6);
}

static uint64_t replacement_bytes(const struct moe_charsmap *map, uint64_t at)
{
    const char *end = memchr(map->texts + at, 0, map->n_text - at);
    return end ? (uint64_t)(end - map->texts) - at : map->n_text - at;
}

int moe_charsmap_open(struct moe_charsmap *map, const void *data, uint64_t n, struct moe_err *err)
{
    const uint8_t *bytes = data;
    uint64_t size = n >= 4 ? moe_get_u32(bytes) : 0;
    if (n < 8 || size < 4 || size % 4 || size > n - 4 || n > MOE_CHARSMAP_MAX)
        return moe_fail(err, MOE_ERR_FORMAT, "the precompiled map of characters is damaged");
    *map = (struct moe_charsmap){bytes + 4, (const char *)bytes + 4 + size, size / 4, n - 4 - size};
    if (!moe_utf8_valid((const uint8_t *)map->texts, map->n_text))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "the precompiled map of characters has replacements that are not UTF-8");
    /* A unit itself shows whether it is a value, so all are checked here. */
    for (uint64_t i = 0; i < map->n_units; i++) {
        uint32_t unit = unit_at(map, (uint32_t)i), at = unit & ~UNIT_VALUE;
        if (unit & UNIT_VALUE && (at >= map->n_text || ((uint8_t)map->texts[at] & 0xc0) == 0x80))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "the precompiled map of characters names replacement %u, which does "
                            "not exist",
                            at);
    }
    return MOE_OK;
}

/* The longest replacement in bytes. */
static uint64_t charsmap_longest(const struct moe_charsmap *map)
{
    uint64_t longest = 0;
    for (uint64_t at = 0; at < map->n_text;) {
        uint64_t n = replacement_bytes(map, at);
        longest = n > longest ? n : longest;
        at += n + 1;
    }
    return longest;
}

/* Appends the replacement of the shortest beginning that has one; false if none has. */
static bool replace_longest(const struct moe_charsmap *map, const char *text, uint64_t n,
                            struct moe_buf *out)
{
    uint32_t node = unit_offset(unit_at(map, 0));
    for (uint64_t i = 0; i < n && text[i]; i++) {
        uint8_t byte = (uint8_t)text[i];
        node ^= byte;
        if (node >= map->n_units || unit_label(unit_at(map, node)) != byte)
            return false;
        uint32_t unit = unit_at(map, node);
        node ^= unit_offset(unit);
        if (!has_leaf(unit))
            continue;
        uint32_t value = node < map->n_units ? unit_at(map, node) : 0;
        if (!(value & UNIT_VALUE)) /* damaged */
            return false;
        value &= ~UNIT_VALUE;
        moe_buf_append(out, map->texts + value, replacement_bytes(map, value));
        return true;
    }
    return false;
}

/* ---- Graphemes ---- */

/* Bytes of the first grapheme; n > 0. */
static uint64_t grapheme_bytes(const uint8_t *text, uint64_t n)
{
    int length;
    utf8proc_int32_t state = 0;
    if (text[0] < 0x80 && (n == 1 || (text[1] < 0x80 && text[1] != '\n')))
        return 1;
    uint32_t c = moe_utf8_decode(text, n, &length);
    uint64_t at = (uint64_t)length;
    while (at < n) {
        uint32_t next = moe_utf8_decode(text + at, n - at, &length);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)c, (utf8proc_int32_t)next, &state))
            break;
        c = next;
        at += (uint64_t)length;
    }
    return at;
}

void moe_charsmap_apply(const struct moe_charsmap *map, const char *text, uint64_t n,
                        struct moe_buf *out)
{
    int length;
    for (uint64_t at = 0; at < n;) {
        uint64_t end = at + grapheme_bytes((const uint8_t *)text + at, n - at);
        if (end - at < GRAPHEME_BYTES && replace_longest(map, text + at, end - at, out))
            at = end;
        for (; at < end; at += (uint64_t)length) {
            moe_utf8_decode((const uint8_t *)text + at, end - at, &length);
            if (!replace_longest(map, text + at, (uint64_t)length, out))
                moe_buf_append(out, text + at, (uint64_t)length);
        }
    }
}

/* ---- Unicode's normalization forms ---- */

/* utf8proc options for each form; text whose bytes are all below `changes` is already normalized.
 */
static const struct form {
    const char *name;
    int options;
    uint8_t changes;
} FORMS[] = {
    [MOE_STEP_NFC] = {"NFC", UTF8PROC_COMPOSE, 0xcc /* from U+0300 on */},
    [MOE_STEP_NFD] = {"NFD", UTF8PROC_DECOMPOSE, 0x80},
    [MOE_STEP_NFKC] = {"NFKC", UTF8PROC_COMPOSE | UTF8PROC_COMPAT, 0x80},
    [MOE_STEP_NFKD] = {"NFKD", UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT, 0x80},
};

static bool is_form(uint8_t kind)
{
    return kind <= MOE_STEP_NFKD && FORMS[kind].name;
}

static bool is_surely_in_form(const struct form *form, const char *text, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        if ((uint8_t)text[i] >= form->changes)
            return false;
    }
    return true;
}

static int bring_to_form(const struct form *form, const char *text, uint64_t n, struct moe_buf *out,
                         struct moe_err *err)
{
    utf8proc_uint8_t *result = NULL;
    utf8proc_ssize_t size =
        utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &result,
                     (utf8proc_option_t)(UTF8PROC_STABLE | form->options));
    if (size < 0)
        return moe_fail(err, size == UTF8PROC_ERROR_NOMEM ? MOE_ERR_MEMORY : MOE_ERR_LIMIT,
                        "a text of %llu bytes cannot be normalized to %s: %s",
                        (unsigned long long)n, form->name, utf8proc_errmsg(size));
    moe_buf_append(out, result, (uint64_t)size);
    free(result);
    return MOE_OK;
}

/* ---- Steps that look at characters one by one ---- */

enum { DROPPED = 0x110000 /* no character */ };

static uint32_t nmt(uint32_t c)
{
    if ((c >= 1 && c <= 8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f || c == 0x8f ||
        c == 0x9f)
        return DROPPED;
    bool blank = c == 9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 ||
                 (c >= 0x200b && c <= 0x200f) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                 c == 0xfeff || c == 0xfffd;
    return blank ? ' ' : c;
}

/* Clean-up as in huggingface/tokenizers (normalizers/bert.rs). */
static uint32_t clean(uint32_t c)
{
    utf8proc_category_t kind = utf8proc_category((utf8proc_int32_t)c);
    if (c == 9 || c == 0xa || c == 0xd)
        return ' ';
    if (c == 0xfffd || kind == UTF8PROC_CATEGORY_CC || kind == UTF8PROC_CATEGORY_CF ||
        kind == UTF8PROC_CATEGORY_CO)
        return DROPPED;
    return is_white(c) ? ' ' : c;
}

static bool is_chinese(uint32_t c)
{
    static const uint32_t blocks[][2] = {{0x3400, 0x4dbf},   {0x4e00, 0x9fff},   {0xf900, 0xfaff},
                                         {0x20000, 0x2a6df}, {0x2a700, 0x2b81f}, {0x2b920, 0x2ceaf},
                                         {0x2f800, 0x2fa1f}};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        if (c >= blocks[i][0] && c <= blocks[i][1])
            return true;
    return false;
}

static uint32_t by_bert(uint8_t flags, uint32_t c)
{
    if (flags & MOE_STEP_CLEAN)
        return clean(c);
    bool accent =
        flags & MOE_STEP_ACCENTS && utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_MN;
    return accent ? DROPPED : c;
}

static uint32_t normalized_character(const struct moe_step *step, uint32_t c)
{
    switch (step->kind) {
    case MOE_STEP_BERT:
        return by_bert(step->flags, c);
    case MOE_STEP_NMT:
        return nmt(c);
    case MOE_STEP_LOWERCASE:
        return c == 0x130 ? 'i' : (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
    default:
        return is_mark(c) ? DROPPED : c;
    }
}

static void change_characters(const struct moe_step *step, const char *text, uint64_t n,
                              struct moe_buf *out)
{
    bool apart = step->kind == MOE_STEP_BERT && step->flags & MOE_STEP_APART;
    uint8_t bytes[4];
    int length;
    for (uint64_t at = 0; at < n; at += (uint64_t)length) {
        uint32_t c = moe_utf8_decode((const uint8_t *)text + at, n - at, &length);
        uint32_t to = normalized_character(step, c);
        bool spaces = apart && is_chinese(c);
        if (spaces)
            moe_buf_u8(out, ' ');
        if (to == c)
            moe_buf_append(out, text + at, (uint64_t)length);
        else if (to != DROPPED)
            moe_buf_append(out, bytes, (uint64_t)moe_utf8_encode(to, bytes));
        if (spaces)
            moe_buf_u8(out, ' ');
        if (step->kind == MOE_STEP_LOWERCASE &&
            c == 0x130) /* the only one that becomes two characters */
            moe_buf_text(out, "\xcc\x87");
    }
}

/* ---- Other steps ---- */

static void strip(uint8_t flags, const char *text, uint64_t n, struct moe_buf *out)
{
    const uint8_t *bytes = (const uint8_t *)text;
    uint64_t start = flags & MOE_STEP_LEFT ? moe_white_after(bytes, 0, n) : 0;
    uint64_t end = flags & MOE_STEP_RIGHT ? moe_white_before(bytes, start, n) : n;
    moe_buf_append(out, text + start, end - start);
}

/* Replaces every `text`, or every run of `least` or more of them. */
static void replace_text(const struct moe_step *step, uint64_t least, const char *text, uint64_t n,
                         struct moe_buf *out)
{
    uint64_t size = step->text.size;
    for (uint64_t at = 0; at < n;) {
        const char *found = memchr(text + at, step->text.data[0], n - at);
        uint64_t end = found ? (uint64_t)(found - text) : n, count = 0;
        moe_buf_append(out, text + at, end - at);
        at = end;
        while (size <= n - end && memcmp(text + end, step->text.data, size) == 0 &&
               (count == 0 || least > 1)) {
            end += size;
            count++;
        }
        if (count >= least) {
            moe_buf_append(out, step->other.data, step->other.size);
        } else {
            end = at < n && end == at ? at + 1 : end;
            moe_buf_append(out, text + at, end - at);
        }
        at = end;
    }
}

static int replace_matches(const struct moe_steps *steps, uint32_t i, const char *text, uint64_t n,
                           struct moe_buf *out, struct moe_err *err)
{
    struct moe_pretokenizer p = {.steps = steps};
    const struct moe_buf *other = &steps->steps[i].other;
    uint64_t at = 0, start = 0, end = 0;
    int found = 1;
    moe_pretokenizer_allow(&p, n);
    while (at < n && (found = moe_pretokenizer_find(&p, i, text, n, at, &start, &end, err)) > 0) {
        if (start == end) {
            found = moe_fail(err, MOE_ERR_UNSUPPORTED, "pattern '%.100s' replaces nothing",
                             (const char *)steps->steps[i].text.data);
            break;
        }
        moe_buf_append(out, text + at, start - at);
        moe_buf_append(out, other->data, other->size);
        at = end;
    }
    moe_buf_append(out, text + at, n - at);
    moe_pretokenizer_release(&p);
    return found < 0 ? found : MOE_OK;
}

bool moe_step_pair(const struct moe_buf *pairs, uint64_t *at, const char **from, const char **to)
{
    if (*at >= pairs->size)
        return false;
    *from = (const char *)pairs->data + *at;
    *to = *from + strlen(*from) + 1;
    *at += strlen(*from) + strlen(*to) + 2;
    return true;
}

/* Replaces pair after pair over the whole text. A pair with a byte that the text lacks costs
 * nothing: of a thousand emoji few are in one text. */
static void replace_pairs(const struct moe_step *step, const char *text, uint64_t n,
                          struct moe_buf *out)
{
    bool has[256] = {false};
    struct moe_buf next = {0};
    const char *from, *to;
    for (uint64_t i = 0; i < n; i++)
        has[(uint8_t)text[i]] = true;
    moe_buf_append(out, text, n);
    for (uint64_t at = 0; moe_step_pair(&step->text, &at, &from, &to) && !out->failed;) {
        uint64_t size = strlen(from), done = 0;
        bool possible = true;
        for (const char *c = from; *c; c++)
            possible = possible && ((uint8_t)*c < 0x80 || has[(uint8_t)*c]);
        moe_buf_clear(&next);
        const char *data = (const char *)out->data, *found = NULL;
        while (possible && (found = memmem(data + done, out->size - done, from, size))) {
            moe_buf_append(&next, data + done, (uint64_t)(found - data) - done);
            moe_buf_text(&next, to);
            done = (uint64_t)(found - data) + size;
        }
        if (done == 0)
            continue;
        moe_buf_append(&next, data + done, out->size - done);
        struct moe_buf before = *out;
        *out = next;
        next = before;
    }
    moe_buf_release(&next);
}

/* Applies step i to a text. */
static int apply(const struct moe_steps *steps, uint32_t i, const char *text, uint64_t n,
                 struct moe_buf *out, struct moe_err *err)
{
    const struct moe_step *step = &steps->steps[i];
    switch (step->kind) {
    case MOE_STEP_REPLACE_MATCHES:
        return replace_matches(steps, i, text, n, out, err);
    case MOE_STEP_REPLACE_PAIRS:
        replace_pairs(step, text, n, out);
        break;
    case MOE_STEP_PREPEND:
        moe_buf_append(out, step->text.data, step->text.size);
        moe_buf_append(out, text, n);
        break;
    case MOE_STEP_REPLACE:
    case MOE_STEP_REPLACE_RUNS:
        replace_text(step, step->kind == MOE_STEP_REPLACE ? 1 : 2, text, n, out);
        break;
    case MOE_STEP_STRIP:
        strip(step->flags, text, n, out);
        break;
    case MOE_STEP_PRECOMPILED:
        moe_charsmap_apply(&step->map, text, n, out);
        break;
    case MOE_STEP_NMT:
    case MOE_STEP_LOWERCASE:
    case MOE_STEP_STRIP_MARKS:
    case MOE_STEP_BERT:
        change_characters(step, text, n, out);
        break;
    default:
        MOE_TRY(bring_to_form(&FORMS[step->kind], text, n, out, err));
    }
    return MOE_OK;
}

/* ---- All steps ---- */

static uint64_t longest_other(const struct moe_buf *pairs)
{
    const char *from, *to;
    uint64_t longest = 0;
    for (uint64_t at = 0; moe_step_pair(pairs, &at, &from, &to);)
        longest = strlen(to) > longest ? strlen(to) : longest;
    return longest;
}

uint64_t moe_steps_memory(const struct moe_steps *steps, uint64_t *n)
{
    enum {
        DECOMPOSED = 24, /* bytes per byte: UTF-32 of a decomposition, U+FDFA's being the longest */
        COMPOSED = 11,   /* ... and the same in UTF-8 */
        LOWERED = 2,
    };
    uint64_t bytes = 0, longest;
    for (uint32_t i = 0; i < steps->n; i++) {
        const struct moe_step *step = &steps->steps[i];
        switch (step->kind) {
        case MOE_STEP_NFC:
            bytes += 8 * *n; /* canonical decompositions are shorter */
            *n *= 3;
            break;
        case MOE_STEP_NFD:
        case MOE_STEP_NFKC:
        case MOE_STEP_NFKD:
            bytes += DECOMPOSED * *n;
            *n *= COMPOSED;
            break;
        case MOE_STEP_LOWERCASE:
        case MOE_STEP_BERT: /* three bytes and two spaces */
            *n *= LOWERED;
            break;
        case MOE_STEP_PRECOMPILED:
            longest = charsmap_longest(&step->map);
            *n *= longest > 1 ? longest : 1;
            break;
        case MOE_STEP_REPLACE: /* the replaced text is not empty */
        case MOE_STEP_REPLACE_RUNS:
            if (step->other.size > step->text.size)
                *n = (*n / step->text.size + 1) * step->other.size;
            break;
        case MOE_STEP_REPLACE_MATCHES: /* none is empty */
            *n *= step->other.size > 1 ? step->other.size : 1;
            break;
        case MOE_STEP_REPLACE_PAIRS: /* twice: the text before and after a pair */
            *n += *n * longest_other(&step->text);
            bytes += moe_buf_room(*n);
            break;
        case MOE_STEP_ALPHABET: /* a piece returns to its own buffer */
            *n *= 2;
            bytes += moe_buf_room(*n);
            break;
        case MOE_STEP_METASPACE:
            *n = (*n + 1) * strlen(MOE_METASPACE);
            break;
        case MOE_STEP_NMT: /* not longer than before */
        case MOE_STEP_STRIP:
        case MOE_STEP_STRIP_MARKS:
            break;
        case MOE_STEP_PREPEND:
        case MOE_STEP_PREFIX_SPACE:
            *n += step->text.size + 1;
            break;
        default:
            continue; /* pieces lie in the text */
        }
        bytes += moe_buf_room(*n);
    }
    return bytes;
}

int moe_normalize(const struct moe_steps *steps, const char *text, uint64_t n, struct moe_buf *out,
                  const char **result, uint64_t *result_n, struct moe_err *err)
{
    struct moe_buf next = {0};
    int status = MOE_OK;
    *result = text;
    *result_n = n;
    for (uint32_t i = 0; i < steps->n && status == MOE_OK && *result_n; i++) {
        const struct moe_step *step = &steps->steps[i];
        if (is_form(step->kind) && is_surely_in_form(&FORMS[step->kind], *result, *result_n))
            continue;
        moe_buf_clear(&next);
        status = apply(steps, i, *result, *result_n, &next, err);
        if (next.failed)
            status = moe_fail(err, MOE_ERR_MEMORY, "out of memory");
        struct moe_buf done = *out;
        *out = next;
        next = done;
        *result = (const char *)out->data;
        *result_n = out->size;
    }
    moe_buf_release(&next);
    return status;
}
