#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "base/text.h"
#include "text/alphabet.h"
#include "text/scripts.h"
#include "text/tokenizer_steps.h"

/* ---- The list of steps ---- */

struct moe_step *moe_steps_add(struct moe_steps *steps, uint8_t kind)
{
    if (steps->n == MOE_STEPS_MAX)
        return NULL;
    struct moe_step *step = &steps->steps[steps->n++];
    *step = (struct moe_step){.kind = kind};
    return step;
}

struct moe_step *moe_steps_add_split(struct moe_steps *steps, const char *pattern, uint8_t behavior,
                                     uint8_t flags)
{
    struct moe_step *step = moe_steps_add(steps, MOE_STEP_SPLIT);
    if (!step)
        return NULL;
    step->behavior = behavior;
    step->flags = flags;
    moe_buf_text(&step->text, pattern);
    return step;
}

void moe_steps_release(struct moe_steps *steps)
{
    for (uint32_t i = 0; i < steps->n; i++) {
        moe_buf_release(&steps->steps[i].text);
        moe_buf_release(&steps->steps[i].other);
        pcre2_code_free(steps->steps[i].code);
        pcre2_code_free(steps->steps[i].counted);
    }
    steps->n = 0;
}

static int compile(struct moe_step *step, struct moe_err *err)
{
    struct moe_buf pattern = {0};
    bool literal = step->flags & MOE_STEP_LITERAL;
    int status = MOE_OK, code = 0;
    PCRE2_SIZE offset = 0;
    pcre2_compile_context *context = NULL;
    const char *text = (const char *)step->text.data;

    if (literal)
        moe_buf_append(&pattern, text, step->text.size);
    else
        status = moe_pattern_translate(text, step->text.size, &pattern, err);
    if (status != MOE_OK)
        goto out;
    context = pcre2_compile_context_create(NULL);
    if (!context || pattern.failed) {
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory");
        goto out;
    }
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    uint32_t options =
        literal ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
    step->code =
        pcre2_compile(pattern.data, (PCRE2_SIZE)pattern.size, options, &code, &offset, context);
    if (step->code && !literal)
        step->counted =
            pcre2_compile(pattern.data, (PCRE2_SIZE)pattern.size,
                          options | PCRE2_ANCHORED | PCRE2_AUTO_CALLOUT, &code, &offset, context);
    if (!step->code || (!step->counted && !literal)) {
        if (code == PCRE2_ERROR_HEAP_FAILED) {
            status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: split pattern '%.100s'", text);
            goto out;
        }
        char why[128];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        status = moe_fail(err, MOE_ERR_UNSUPPORTED, "split pattern '%.100s': %s", text, why);
        goto out;
    }
    /* Where the system forbids generated code, pcre2_match interprets. */
    pcre2_jit_compile(step->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
    if (step->counted)
        pcre2_jit_compile(step->counted, PCRE2_JIT_COMPLETE);
out:
    pcre2_compile_context_free(context);
    moe_buf_release(&pattern);
    return status;
}

static int prepare_split(struct moe_step *step, struct moe_err *err)
{
    if (step->behavior > MOE_SPLIT_CONTIGUOUS ||
        step->flags & ~(unsigned)(MOE_STEP_INVERT | MOE_STEP_LITERAL))
        return moe_fail(err, MOE_ERR_FORMAT, "split step with behavior %u, flags %u",
                        step->behavior, step->flags);
    if (step->text.size == 0 || !moe_utf8_valid(step->text.data, step->text.size))
        return moe_fail(err, MOE_ERR_FORMAT, "split pattern is empty or not UTF-8");
    return compile(step, err);
}

static bool is_ascii(const char *text)
{
    while (*text && (uint8_t)*text < 0x80)
        text++;
    return *text == 0;
}

static int prepare_pairs(struct moe_step *step, uint32_t i, struct moe_err *err)
{
    const struct moe_buf *lists[] = {&step->text, &step->other};
    const char *from, *to;
    for (int j = 0; j < 2; j++) {
        uint64_t n_texts = 0;
        for (uint64_t at = 0; at < lists[j]->size; at++)
            n_texts += lists[j]->data[at] == 0;
        if (n_texts % 2 || (lists[j]->size && lists[j]->data[lists[j]->size - 1]))
            return moe_fail(err, MOE_ERR_FORMAT, "normalizer step %u has no pairs of texts", i);
    }
    for (uint64_t at = 0; moe_step_pair(&step->text, &at, &from, &to);)
        if (is_ascii(from) || !is_ascii(to))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "normalizer step %u replaces '%.40s' by '%.40s': only a text that is "
                            "not ASCII is replaced, by one that is",
                            i, from, to);
    return MOE_OK;
}

/* Texts that are put into a text keep it UTF-8; the precompiled map says so of its own. */
static int prepare_normalizer(struct moe_step *step, uint32_t i, struct moe_err *err)
{
    bool compiled = step->kind == MOE_STEP_PRECOMPILED;
    if ((!compiled && !moe_utf8_valid(step->text.data, step->text.size)) ||
        !moe_utf8_valid(step->other.data, step->other.size))
        return moe_fail(err, MOE_ERR_FORMAT, "normalizer step %u is not UTF-8", i);
    if ((step->kind == MOE_STEP_REPLACE || step->kind == MOE_STEP_REPLACE_RUNS) &&
        step->text.size == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "normalizer step %u replaces nothing", i);
    if (step->kind == MOE_STEP_REPLACE_MATCHES) {
        step->flags = 0;
        return prepare_split(step, err);
    }
    if (step->kind == MOE_STEP_REPLACE_PAIRS)
        return prepare_pairs(step, i, err);
    if (step->kind == MOE_STEP_BERT && step->flags != MOE_STEP_CLEAN &&
        step->flags != MOE_STEP_APART && step->flags != MOE_STEP_ACCENTS)
        return moe_fail(err, MOE_ERR_FORMAT, "normalizer step %u has flags %u", i, step->flags);
    return compiled ? moe_charsmap_open(&step->map, step->text.data, step->text.size, err) : MOE_OK;
}

int moe_steps_prepare(struct moe_steps *steps, bool normalizer, struct moe_err *err)
{
    bool spelled = false;
    int first = normalizer ? MOE_STEP_NFC : MOE_STEP_SPLIT;
    int last = normalizer ? MOE_STEP_BERT : MOE_STEP_ALPHABET;
    for (uint32_t i = 0; i < steps->n; i++) {
        struct moe_step *step = &steps->steps[i];
        if (step->kind < first || step->kind > last)
            return moe_fail(err, MOE_ERR_UNSUPPORTED, "unknown %s step %u",
                            normalizer ? "normalizer" : "pre-tokenizer", step->kind);
        if (spelled && step->kind != MOE_STEP_SPLIT && step->kind != MOE_STEP_SCRIPTS)
            return moe_fail(err, MOE_ERR_UNSUPPORTED, "step %u changes the bytes' alphabet", i);
        spelled = step->kind == MOE_STEP_ALPHABET || spelled;
        if (step->text.failed || step->other.failed)
            return moe_fail(err, MOE_ERR_MEMORY, "out of memory");
        bool pairs = step->kind == MOE_STEP_REPLACE_PAIRS;
        uint64_t other = pairs ? MOE_STEP_PAIRS_MAX : MOE_STEP_TEXT_MAX;
        uint64_t most = step->kind == MOE_STEP_PRECOMPILED ? MOE_CHARSMAP_MAX : other;
        if (step->text.size > most || step->other.size > other)
            return moe_fail(err, MOE_ERR_FORMAT, "step %u has a text of absurd size", i);
        int status = normalizer                     ? prepare_normalizer(step, i, err)
                     : step->kind == MOE_STEP_SPLIT ? prepare_split(step, err)
                                                    : MOE_OK;
        if (status != MOE_OK)
            return status;
    }
    return MOE_OK;
}

/* ---- Running ---- */

static int run_step(struct moe_pretokenizer *p, uint32_t i, const char *text, uint64_t n,
                    bool at_start, struct moe_err *err);

/* Joins parts (matches and the text between them) as the behavior says. */
struct joiner {
    struct moe_pretokenizer *p;
    uint32_t i; /* the step */
    const char *text;
    bool at_start;
    uint64_t start, end; /* held back until the next part is known */
    bool is_match;       /* of the last part held */
};

static int pass_on(struct joiner *j, struct moe_err *err)
{
    uint64_t start = j->start;
    j->start = j->end;
    if (start == j->end)
        return MOE_OK;
    return run_step(j->p, j->i + 1, j->text + start, j->end - start, j->at_start && start == 0,
                    err);
}

static int add_part(struct joiner *j, uint64_t start, uint64_t end, bool is_match,
                    struct moe_err *err)
{
    const struct moe_step *step = &j->p->steps->steps[j->i];
    if (start == end)
        return MOE_OK;
    if (step->flags & MOE_STEP_INVERT)
        is_match = !is_match;
    bool holding = j->end > j->start, join = false;
    if (step->behavior == MOE_SPLIT_PREVIOUS)
        join = holding && is_match && !j->is_match;
    else if (step->behavior == MOE_SPLIT_NEXT)
        join = holding && !is_match && j->is_match;
    else if (step->behavior == MOE_SPLIT_CONTIGUOUS)
        join = holding && is_match == j->is_match;
    int status = join ? MOE_OK : pass_on(j, err);
    if (!join)
        j->start = start;
    j->end = end;
    j->is_match = is_match;
    if (step->behavior == MOE_SPLIT_REMOVED && is_match)
        j->start = end;
    return status;
}

static int run_split(struct moe_pretokenizer *p, uint32_t i, const char *text, uint64_t n,
                     bool at_start, struct moe_err *err)
{
    int status = MOE_OK;
    struct joiner j = {.p = p, .i = i, .text = text, .at_start = at_start};
    uint64_t done = 0, from = 0;
    while (status == MOE_OK && from < n) {
        uint64_t start = 0, end = 0;
        int found = moe_pretokenizer_find(p, i, text, n, from, &start, &end, err);
        if (found < 0)
            return found;
        if (!found)
            break;
        status = add_part(&j, done, start, false, err);
        if (status == MOE_OK)
            status = add_part(&j, start, end, true, err);
        done = end;
        from = end;
        if (start == end && end < n) { /* an empty match: go on after the next character */
            int length;
            moe_utf8_decode((const uint8_t *)text + end, n - end, &length);
            from = end + (uint64_t)length;
        } else if (start == end) {
            break;
        }
    }
    if (status == MOE_OK)
        status = add_part(&j, done, n, false, err);
    return status == MOE_OK ? pass_on(&j, err) : status;
}

static int run_metaspace(struct moe_pretokenizer *p, uint32_t i, const char *text, uint64_t n,
                         bool at_start, struct moe_err *err)
{
    uint8_t flags = p->steps->steps[i].flags;
    struct moe_buf out = {0};
    bool prepend = !(flags & MOE_STEP_PREPEND_NEVER) &&
                   (at_start || !(flags & MOE_STEP_PREPEND_FIRST)) && text[0] != ' ' &&
                   !(n >= 3 && memcmp(text, MOE_METASPACE, 3) == 0);
    if (prepend)
        moe_buf_text(&out, MOE_METASPACE);
    for (uint64_t at = 0; at < n;) {
        const char *space = memchr(text + at, ' ', n - at);
        uint64_t end = space ? (uint64_t)(space - text) : n;
        moe_buf_append(&out, text + at, end - at);
        if (space)
            moe_buf_text(&out, MOE_METASPACE);
        at = end + 1;
    }
    int status = out.failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory")
                            : run_step(p, i + 1, (const char *)out.data, out.size, at_start, err);
    moe_buf_release(&out);
    return status;
}

static int run_prefix_space(struct moe_pretokenizer *p, uint32_t i, const char *text, uint64_t n,
                            bool at_start, struct moe_err *err)
{
    if (text[0] == ' ')
        return run_step(p, i + 1, text, n, at_start, err);
    struct moe_buf out = {0};
    moe_buf_u8(&out, ' ');
    moe_buf_append(&out, text, n);
    int status = out.failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory")
                            : run_step(p, i + 1, (const char *)out.data, out.size, at_start, err);
    moe_buf_release(&out);
    return status;
}

/* What is of no script goes with what is before it; before the first script it is dropped, as in
 * huggingface/tokenizers. */
static int run_scripts(struct moe_pretokenizer *p, uint32_t i, const char *text, uint64_t n,
                       bool at_start, struct moe_err *err)
{
    uint64_t start = n;
    uint8_t script = 0;
    int status = MOE_OK, length;
    for (uint64_t at = 0; at < n && status == MOE_OK; at += (uint64_t)length) {
        uint8_t next = moe_script_of(moe_utf8_decode((const uint8_t *)text + at, n - at, &length));
        if (next == 0 || next == script)
            continue;
        if (script)
            status = run_step(p, i + 1, text + start, at - start, at_start && start == 0, err);
        start = at;
        script = next;
    }
    if (status == MOE_OK && start < n)
        status = run_step(p, i + 1, text + start, n - start, at_start && start == 0, err);
    return status;
}

static int run_alphabet(struct moe_pretokenizer *p, uint32_t i, const char *text, uint64_t n,
                        bool at_start, struct moe_err *err)
{
    struct moe_buf out = {0};
    moe_alphabet_write(text, n, &out);
    p->spelled = true;
    int status = out.failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory")
                            : run_step(p, i + 1, (const char *)out.data, out.size, at_start, err);
    p->spelled = false;
    moe_buf_release(&out);
    return status;
}

static int pass_piece(struct moe_pretokenizer *p, const char *text, uint64_t n, struct moe_err *err)
{
    struct moe_buf bytes = {0};
    if (!p->spelled)
        return p->emit(p->ctx, text, n, err);
    int status = MOE_OK;
    if (!moe_alphabet_read(text, n, &bytes))
        status = moe_fail(err, MOE_ERR_FORMAT, "a piece is not in the bytes' alphabet");
    else if (bytes.failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    else
        status = p->emit(p->ctx, (const char *)bytes.data, bytes.size, err);
    moe_buf_release(&bytes);
    return status;
}

static int run_step(struct moe_pretokenizer *p, uint32_t i, const char *text, uint64_t n,
                    bool at_start, struct moe_err *err)
{
    if (i == p->steps->n)
        return pass_piece(p, text, n, err);
    switch (p->steps->steps[i].kind) {
    case MOE_STEP_SCRIPTS:
        return run_scripts(p, i, text, n, at_start, err);
    case MOE_STEP_ALPHABET:
        return run_alphabet(p, i, text, n, at_start, err);
    case MOE_STEP_SPLIT:
        return run_split(p, i, text, n, at_start, err);
    case MOE_STEP_METASPACE:
        return run_metaspace(p, i, text, n, at_start, err);
    default:
        return run_prefix_space(p, i, text, n, at_start, err);
    }
}

int moe_pretokenize(struct moe_pretokenizer *p, const char *text, uint64_t n, bool at_start,
                    struct moe_err *err)
{
    moe_pretokenizer_allow(p, n);
    return n ? run_step(p, 0, text, n, at_start, err) : MOE_OK;
}
