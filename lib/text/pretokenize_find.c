#define PCRE2_CODE_UNIT_WIDTH 8
#include <inttypes.h>
#include <pcre2.h>
#include <string.h>

#include "base/text.h"
#include "text/tokenizer_steps.h"

/*
 * What matching may cost. PCRE2 does not say what a match took, and its own limit counts no
 * character that a repeat passes. So a search goes over a view of few bytes with few tries, which
 * bound it. Where a match may go beyond the view, or the tries do not do, the places concerned are
 * tried one by one with the pattern compiled to call out before each of its items: each call is a
 * step, and so is every byte moved since the last. The steps of a text are bounded in proportion to
 * its length, whatever the pattern.
 *
 * The patterns of GPT-2, Qwen2, Llama 3, o200k and a DeepSeek model take up to 0.1 steps a byte on
 * English, code and mathematics, and at most 4 on a megabyte of blanks, of one letter, digit or
 * line end, of Chinese, of marks or emoji.
 */
enum {
    VIEW_BYTES = 1024,
    TRIES = 4 * VIEW_BYTES,
    STEPS = 50 * 1000 * 1000, /* of a text: a second or less ... */
    STEPS_PER_BYTE = 64,      /* ... and for each of its bytes */
    HEAP_LIMIT_KIB = 256 * 1024,
};

void moe_pretokenizer_release(struct moe_pretokenizer *p)
{
    for (int i = 0; i < MOE_STEPS_MAX; i++) {
        pcre2_match_data_free(p->match[i]);
        p->match[i] = NULL;
    }
    pcre2_match_context_free(p->limits);
    p->limits = NULL;
}

/* PCRE2's callout: spends the steps since the last one. */
static int spend(pcre2_callout_block *at, void *ctx)
{
    struct moe_pretokenizer *p = ctx;
    uint64_t now = at->current_position, before = p->position;
    uint64_t steps = 1 + (now > before ? now - before : before - now);
    p->position = now;
    if (steps > p->steps_left) {
        p->steps_left = 0;
        return PCRE2_ERROR_MATCHLIMIT;
    }
    p->steps_left -= steps;
    return 0;
}

static int prepare_match(struct moe_pretokenizer *p, uint32_t i, struct moe_err *err)
{
    if (!p->limits) {
        p->limits = pcre2_match_context_create(NULL);
        if (!p->limits)
            return moe_fail(err, MOE_ERR_MEMORY, "out of memory");
        pcre2_set_heap_limit(p->limits, HEAP_LIMIT_KIB);
        pcre2_set_callout(p->limits, spend, p);
    }
    if (!p->match[i])
        p->match[i] = pcre2_match_data_create(1, NULL);
    return p->match[i] ? MOE_OK : moe_fail(err, MOE_ERR_MEMORY, "out of memory");
}

static int match(struct moe_pretokenizer *p, uint32_t i, const void *code, const char *text,
                 uint64_t n, uint64_t from, uint32_t options)
{
    options |= PCRE2_NO_UTF_CHECK;
    int rc = pcre2_match(code, (PCRE2_SPTR)text, n, from, options, p->match[i], p->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, (PCRE2_SPTR)text, n, from, options | PCRE2_NO_JIT, p->match[i],
                         p->limits);
    return rc;
}

/* Searches the bytes [from, end); what would look beyond them is PCRE2_ERROR_PARTIAL, and where
 * that begins is the match's start. */
static int search_view(struct moe_pretokenizer *p, uint32_t i, const char *text, uint64_t n,
                       uint64_t from, uint64_t end)
{
    pcre2_set_match_limit(p->limits, TRIES);
    return match(p, i, p->steps->steps[i].code, text, end, from, end < n ? PCRE2_PARTIAL_HARD : 0);
}

/* Tries the places [from, end), counting steps. */
static int try_places(struct moe_pretokenizer *p, uint32_t i, const char *text, uint64_t n,
                      uint64_t from, uint64_t end)
{
    int rc = PCRE2_ERROR_NOMATCH, length;
    pcre2_set_match_limit(p->limits, UINT32_MAX);
    for (uint64_t at = from; at < end && rc == PCRE2_ERROR_NOMATCH; at += (uint64_t)length) {
        p->position = at;
        rc = match(p, i, p->steps->steps[i].counted, text, n, at, 0);
        moe_utf8_decode((const uint8_t *)text + at, n - at, &length);
    }
    return rc;
}

/* PCRE2_ERROR_MATCHLIMIT: no steps are left. */
static int search(struct moe_pretokenizer *p, uint32_t i, const char *text, uint64_t n,
                  uint64_t from)
{
    int rc = PCRE2_ERROR_NOMATCH;
    if (p->steps->steps[i].flags & MOE_STEP_LITERAL) /* takes no tries */
        return match(p, i, p->steps->steps[i].code, text, n, from, 0);
    for (uint64_t at = from, end; at < n && rc == PCRE2_ERROR_NOMATCH; at = end) {
        end = n - at <= VIEW_BYTES ? n : at + VIEW_BYTES;
        while (end < n && ((uint8_t)text[end] & 0xc0) == 0x80)
            end++; /* to the character's end */
        rc = search_view(p, i, text, n, at, end);
        if (rc == PCRE2_ERROR_PARTIAL) {
            int length;
            at = pcre2_get_ovector_pointer(p->match[i])[0];
            moe_utf8_decode((const uint8_t *)text + at, n - at, &length);
            end = at + (uint64_t)length;
        } else if (rc != PCRE2_ERROR_MATCHLIMIT) {
            continue;
        }
        rc = try_places(p, i, text, n, at, end);
    }
    return rc;
}

int moe_pretokenizer_find(struct moe_pretokenizer *p, uint32_t i, const char *text, uint64_t n,
                          uint64_t from, uint64_t *start, uint64_t *end, struct moe_err *err)
{
    int status = prepare_match(p, i, err);
    if (status != MOE_OK)
        return status;
    int rc = search(p, i, text, n, from);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc == PCRE2_ERROR_MATCHLIMIT)
        return moe_fail(err, MOE_ERR_LIMIT,
                        "pre-tokenizer pattern '%.100s' takes too many steps on a text of %" PRIu64
                        " bytes",
                        (const char *)p->steps->steps[i].text.data, p->text_bytes);
    if (rc < 0) {
        char why[128];
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
        return moe_fail(err, MOE_ERR_LIMIT, "pre-tokenizer pattern '%.100s' failed on a text: %s",
                        (const char *)p->steps->steps[i].text.data, why);
    }
    const PCRE2_SIZE *ovector = pcre2_get_ovector_pointer(p->match[i]);
    *start = ovector[0];
    *end = ovector[1];
    if (*start < from || *end < *start)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "pre-tokenizer pattern moves its match's start");
    return 1;
}

void moe_pretokenizer_allow(struct moe_pretokenizer *p, uint64_t n)
{
    p->steps_left += (p->text_bytes ? 0 : STEPS) + STEPS_PER_BYTE * n;
    p->text_bytes += n;
}
