/* Texts cut into documents and windows, and read as pairs. */
#include "tune/documents.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "fmt/json_scan.h"

enum {
    WINDOW = 256 << 10,
    SMALL_BYTES = 512 << 10, /* counted for any text: a document that takes less is not looked at */
};

/* A text being cut into documents. */
struct cutting {
    const struct moe_documents *d;
    const char *path;
    int fd;
    uint64_t size;
    char *separator;
    uint64_t separator_n;
    uint32_t first;            /* the token before each document */
    char *window;              /* [WINDOW] */
    uint64_t from, have;       /* the bytes of the file in it */
    uint64_t after;            /* what is left of the file */
    uint64_t begin, end;       /* of the document at hand */
    struct moe_hasher *hasher; /* of the documents' bytes; NULL: none is wanted */
    uint64_t fingerprint;      /* of the documents read */
    char *text;                /* [room] */
    uint64_t room;
};

static void cutting_close(struct cutting *c)
{
    if (c->fd >= 0)
        close(c->fd);
    free(c->separator);
    free(c->window);
    free(c->text);
}

static int cutting_open(struct cutting *c, const struct moe_documents *d, const char *path,
                        struct moe_err *err)
{
    *c = (struct cutting){.d = d, .path = path, .fd = -1};
    if (d->max_tokens < 2)
        return moe_fail(err, MOE_ERR_USAGE, "documents of %u tokens do not work: 2 and more do",
                        d->max_tokens);
    if (d->pairs) {
        c->window = moe_alloc(WINDOW, 1, err);
        c->fd = c->window ? moe_file_open(path, &c->size, err) : MOE_ERR_MEMORY;
        return c->fd < 0 ? c->fd : MOE_OK;
    }
    int64_t eos = moe_tokenizer_separator(d->tokenizer);
    if (eos < 0)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: cannot be cut into documents: the model has no end-of-text token",
                        path);
    uint32_t length = 0;
    const uint8_t *bytes = moe_tokenizer_bytes(d->tokenizer, (uint32_t)eos, &length);
    c->first =
        (uint32_t)(moe_tokenizer_adds_bos(d->tokenizer) ? moe_tokenizer_bos(d->tokenizer) : eos);
    if (d->separator)
        length = (uint32_t)strlen(d->separator);
    c->separator_n = length;
    if (length >= WINDOW / 2)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "an end-of-text token of %u bytes", length);
    c->fd = moe_file_open(path, &c->size, err);
    if (c->fd < 0)
        return c->fd;
    c->separator = moe_strndup(d->separator ? d->separator : (const char *)bytes, length, err);
    c->window = moe_alloc(WINDOW, 1, err);
    return c->separator && c->window ? MOE_OK : MOE_ERR_MEMORY;
}

/* ---- Where documents are ---- */

/* The n bytes of the file from `at` on that are in the window: `least` or more, unless it ends. */
static int look_at(struct cutting *c, uint64_t at, uint64_t least, const char **text, uint64_t *n,
                   struct moe_err *err)
{
    uint64_t left = c->size - at, want = left < least ? left : least;
    bool inside = at >= c->from && at + want <= c->from + c->have;
    if (!inside) {
        uint64_t bytes = left < WINDOW ? left : WINDOW;
        int status = moe_file_pread(c->fd, c->path, c->window, bytes, at, err);
        c->from = at;
        c->have = status == MOE_OK ? bytes : 0;
        if (status != MOE_OK)
            return status;
    }
    *n = c->from + c->have - at;
    *text = c->window + (at - c->from);
    return MOE_OK;
}

/* Finds the end of the line at `line`: *next is where the next begins. *separates: it holds only
 * the separator; lines of pairs separate nothing. */
static int pass_line(struct cutting *c, uint64_t line, bool *separates, uint64_t *next,
                     struct moe_err *err)
{
    const char *text, *newline = NULL;
    uint64_t n, length = c->separator_n;
    int status;
    MOE_STEP(look_at(c, line, length + 1, &text, &n, err));
    *separates = !c->d->pairs && n >= length && memcmp(text, c->separator, length) == 0 &&
                 (n == length || text[length] == '\n');
    while (!newline && line < c->size) {
        newline = memchr(text, '\n', n);
        line += newline ? (uint64_t)(newline - text) + 1 : n;
        if (!newline && line < c->size)
            MOE_STEP(look_at(c, line, 1, &text, &n, err));
    }
out:
    *next = line;
    return status;
}

/* The next document that is not empty; *found: there is one. */
static int next_document(struct cutting *c, bool *found, struct moe_err *err)
{
    int status = MOE_OK;
    *found = false;
    while (status == MOE_OK && c->after < c->size && !*found) {
        bool separates = false;
        const char *last;
        uint64_t n;
        c->begin = c->end = c->after;
        do {
            c->end = c->after;
            status = pass_line(c, c->end, &separates, &c->after, err);
        } while (status == MOE_OK && !separates && !c->d->pairs && c->after < c->size);
        if (!separates) /* the file ends */
            c->end = c->after;
        if (status == MOE_OK && c->end > c->begin)
            status = look_at(c, c->end - 1, 1, &last, &n, err);
        if (status == MOE_OK && c->end > c->begin)
            c->end -= *last == '\n';
        *found = status == MOE_OK && c->end > c->begin;
    }
    return status;
}

/* Reads the present document. The old text is freed first: nothing is copied. */
static int read_document(struct cutting *c, struct moe_err *err)
{
    uint64_t n = c->end - c->begin;
    if (n > c->room) {
        free(c->text);
        c->room = 0;
        c->text = n < SIZE_MAX ? malloc(n) : NULL;
        if (!c->text)
            return moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory: a document of %llu bytes",
                            c->path, (unsigned long long)n);
        c->room = n;
    }
    return moe_file_pread(c->fd, c->path, c->text, n, c->begin, err);
}

/* ---- Windows ---- */

/* The present document, cut into windows. */
struct windows {
    struct cutting *c;
    int (*fn)(void *ctx, const uint32_t *ids, uint64_t n, struct moe_err *err);
    void *ctx;
    uint64_t n, tokens, left_out; /* windows that were given, tokens met and left out */
    uint64_t bytes;               /* of the tokens that were given */
};

static int give_window(struct windows *w, uint32_t *ids, uint64_t n, struct moe_err *err)
{
    const struct cutting *c = w->c;
    const struct moe_documents *d = c->d;
    ids[0] = c->first;
    int status = w->fn(w->ctx, ids, n, err);
    w->n++;
    w->tokens += n - 1;
    for (uint64_t i = 1; i < n && d->progress; i++) {
        uint32_t length;
        moe_tokenizer_bytes(d->tokenizer, ids[i], &length);
        w->bytes += length;
    }
    uint64_t at = c->begin + w->bytes; /* normalized text may be longer */
    moe_progress_report(d->progress, d->what, at < c->after ? at : c->after, c->size);
    if (status == MOE_OK && moe_progress_stopped(d->progress))
        status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    return status;
}

/* Gives the windows that are complete and removes them; the first id is the next one's prefix. */
static int take_windows(void *ctx, struct moe_ids *ids, struct moe_err *err)
{
    struct windows *w = ctx;
    const struct moe_documents *d = w->c->d;
    uint64_t window = d->max_tokens, i = 0;
    int status = MOE_OK;
    while (status == MOE_OK && ids->n - i > window && (!d->max_windows || w->n < d->max_windows)) {
        status = give_window(w, ids->ids + i, window, err);
        i += window - 1;
    }
    ids->n -= i;
    memmove(ids->ids, ids->ids + i, ids->n * sizeof *ids->ids);
    if (status == MOE_OK && d->max_windows && w->n == d->max_windows) {
        w->left_out += ids->n - 1;
        ids->n = 1;
        status = d->left_out ? MOE_OK : MOE_TOKENIZER_ENOUGH;
    }
    return status;
}

/* Calls fn with the windows of the present document; *n: their number. */
static int each_window(struct cutting *c, struct moe_ids *ids,
                       int (*fn)(void *ctx, const uint32_t *ids, uint64_t n, struct moe_err *err),
                       void *ctx, uint64_t *n, struct moe_err *err)
{
    const struct moe_documents *d = c->d;
    struct windows w = {.c = c, .fn = fn, .ctx = ctx};
    int status = read_document(c, err);
    ids->n = 0;
    if (status == MOE_OK)
        status = moe_ids_push(ids, c->first, err);
    /* One id more than a window: that it is the last is known at the document's end. */
    if (status == MOE_OK)
        status =
            moe_tokenizer_encode_parts(d->tokenizer, c->text, c->end - c->begin,
                                       (uint64_t)d->max_tokens + 1, take_windows, &w, ids, err);
    if (status == MOE_OK && (w.n == 0 || (ids->n > 1 && (!d->max_windows || w.n < d->max_windows))))
        status = give_window(&w, ids->ids, ids->n, err);
    else if (ids->n > 1)
        w.left_out += ids->n - 1;
    if (d->left_out) {
        d->left_out->tokens += w.left_out;
        d->left_out->of += w.tokens + w.left_out;
        d->left_out->documents += w.left_out > 0;
    }
    *n = w.n;
    return status;
}

/* ---- What they take ---- */

static uint64_t document_bytes(const struct moe_documents *d, uint64_t n, uint64_t longest_piece)
{
    uint64_t piece = longest_piece < n ? longest_piece : n;
    uint64_t ids = d->max_tokens < n ? d->max_tokens : n + 1;
    /* The list of ids doubles where it grows. */
    return n + moe_tokenizer_memory(d->tokenizer, n, longest_piece) +
           2 * (ids + piece) * sizeof(uint32_t);
}

static int survey_document(struct cutting *c, uint64_t may_hold, struct moe_documents_size *out,
                           struct moe_err *err)
{
    const struct moe_documents *d = c->d;
    uint64_t n = c->end - c->begin, bytes = document_bytes(d, n, UINT64_MAX);
    uint64_t more = d->pairs ? 0 : n / (d->max_tokens - 1); /* windows behind the first */
    if (d->max_windows && more > d->max_windows - 1)
        more = d->max_windows - 1;
    if (d->pairs) /* both texts, decoded and encoded */
        bytes += n + document_bytes(d, n, UINT64_MAX);
    struct moe_tokenizer_survey survey;
    out->n += 1 + more;
    out->most_ids += (1 + more) * d->max_tokens < n ? (1 + more) * d->max_tokens : n + 1 + more;
    out->longest = n > out->longest ? n : out->longest;
    out->all_bytes += n;
    if (bytes <= out->bytes)
        return MOE_OK;
    if (n <= may_hold && !d->pairs) {
        MOE_TRY(read_document(c, err));
        MOE_TRY(moe_tokenizer_look(d->tokenizer, c->text, n, UINT64_MAX, &survey, err));
        bytes = document_bytes(d, n, survey.longest_piece);
    }
    out->bytes = bytes > out->bytes ? bytes : out->bytes;
    return MOE_OK;
}

int moe_documents_survey(const struct moe_documents *d, const char *const *paths, uint32_t n_paths,
                         uint64_t may_hold, struct moe_documents_size *out, struct moe_err *err)
{
    int status = MOE_OK;
    *out = (struct moe_documents_size){.bytes = SMALL_BYTES};
    for (uint32_t i = 0; i < n_paths && status == MOE_OK; i++) {
        struct cutting c;
        bool found = true;
        status = cutting_open(&c, d, paths[i], err);
        while (status == MOE_OK && found) {
            status = next_document(&c, &found, err);
            if (status == MOE_OK && found)
                status = survey_document(&c, may_hold, out, err);
            if (status == MOE_OK && moe_progress_stopped(d->progress))
                status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
        }
        cutting_close(&c);
    }
    out->bytes += WINDOW;
    return status;
}

/* ---- Reading ---- */

/* Continues the fingerprint with the document's bytes. */
static int chain(struct cutting *c, struct moe_hasher *hasher, uint64_t *fingerprint,
                 struct moe_err *err)
{
    moe_hasher_begin_after(hasher, *fingerprint);
    for (uint64_t at = c->begin, n = 0; at < c->end; at += n) {
        const char *text;
        MOE_TRY(look_at(c, at, 1, &text, &n, err));
        n = n < c->end - at ? n : c->end - at;
        moe_hasher_add(hasher, text, n);
    }
    *fingerprint = moe_hasher_end(hasher);
    return MOE_OK;
}

static int give_nothing(void *ctx, const uint32_t *ids, uint64_t n, struct moe_err *err)
{
    (void)ctx, (void)ids, (void)n, (void)err;
    return MOE_OK;
}

int moe_documents_count(const struct moe_documents *d, const char *path, uint64_t *n,
                        uint64_t *fingerprint, struct moe_err *err)
{
    struct cutting c;
    struct moe_hasher *hasher = moe_hasher_new();
    struct moe_ids ids = {0};
    bool found = true;
    int status;
    *n = *fingerprint = 0;
    MOE_STEP(cutting_open(&c, d, path, err));
    if (!hasher)
        MOE_STEP(moe_fail(err, MOE_ERR_MEMORY, "out of memory: a text's fingerprint"));
    while (found) {
        MOE_STEP(next_document(&c, &found, err));
        uint64_t n_windows = found;
        if (found)
            MOE_STEP(chain(&c, hasher, fingerprint, err));
        if (found && !d->pairs)
            MOE_STEP(each_window(&c, &ids, give_nothing, NULL, &n_windows, err));
        *n += n_windows;
        if (moe_progress_stopped(d->progress))
            MOE_STEP(moe_fail(err, MOE_ERR_INTERRUPTED, "stopped"));
    }
out:
    moe_ids_release(&ids);
    moe_hasher_free(hasher);
    cutting_close(&c);
    return status;
}

int moe_documents_each(const struct moe_documents *d, const char *path,
                       int (*fn)(void *ctx, const uint32_t *ids, uint64_t n, struct moe_err *err),
                       void *ctx, struct moe_err *err)
{
    struct cutting c;
    struct moe_ids ids = {0};
    bool found = true;
    int status = cutting_open(&c, d, path, err);
    while (status == MOE_OK && found) {
        status = next_document(&c, &found, err);
        if (status != MOE_OK || !found)
            break;
        uint64_t n_windows;
        status = each_window(&c, &ids, fn, ctx, &n_windows, err);
        moe_progress_report(d->progress, d->what, c.after, c.size);
        if (status == MOE_OK && moe_progress_stopped(d->progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    moe_ids_release(&ids);
    cutting_close(&c);
    return status;
}

/* ---- Pairs ---- */

/* Members of a line: two texts, and perhaps their languages. */
enum { TEXTS = 2, MEMBERS = 4 };

static int read_pair(const char *name, const char *line, uint64_t n, struct moe_buf texts[MEMBERS],
                     struct moe_err *err)
{
    static const char *const keys[MEMBERS] = {"source", "target", "source_language",
                                              "target_language"};
    struct moe_json_scan s;
    struct moe_buf key = {0};
    bool found[MEMBERS] = {false};
    for (int i = TEXTS; i < MEMBERS; i++)
        moe_buf_clear(&texts[i]);
    moe_json_scan_begin(&s, name, line, n, false, err);
    if (moe_json_scan_peek(&s) != MOE_JSON_OBJECT)
        moe_json_scan_fail(&s, "a pair is an object: {\"source\": TEXT, \"target\": TEXT}");
    moe_json_scan_enter(&s);
    while (moe_json_scan_next(&s, &key)) {
        int i = 0;
        while (i < MEMBERS && strcmp((const char *)key.data, keys[i]) != 0)
            i++;
        if (i == MEMBERS || (i >= TEXTS && moe_json_scan_peek(&s) == MOE_JSON_NULL)) {
            moe_json_scan_skip(&s);
            continue;
        }
        moe_buf_clear(&texts[i]);
        moe_json_scan_text(&s, &texts[i]);
        found[i] = true;
    }
    if (!found[0] || !found[1])
        moe_json_scan_fail(&s, "a pair needs a \"%s\"", keys[found[0]]);
    moe_buf_release(&key);
    return moe_json_scan_end(&s);
}

/* Puts the token of a language in place of the first one, which is the tokenizer's own. */
static int put_language(const struct moe_documents *d, const struct moe_buf *language, uint32_t *id,
                        const char *name, struct moe_err *err)
{
    const char *text = (const char *)language->data;
    int64_t found =
        moe_tokenizer_adds_bos(d->tokenizer) ? moe_tokenizer_language(d->tokenizer, text) : -1;
    if (found < 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%.60s' is no language of the model", name, text);
    *id = (uint32_t)found;
    return MOE_OK;
}

/* Appends the ids of a text, which ends at a NUL, in its language (empty: that of the token
 * `start`; 0: the tokenizer's). */
static int encode_text(const struct moe_documents *d, const struct moe_buf *text,
                       const struct moe_buf *language, uint32_t start, const char *name,
                       struct moe_ids *ids, struct moe_err *err)
{
    uint64_t before = ids->n; /* a target's prefix */
    int status = moe_tokenizer_encode_whole(d->tokenizer, (const char *)text->data,
                                            strlen((const char *)text->data), true, ids, err);
    if (status == MOE_OK && language->size)
        status = put_language(d, language, &ids->ids[before], name, err);
    else if (status == MOE_OK && start && moe_tokenizer_adds_bos(d->tokenizer))
        ids->ids[before] = start;
    uint64_t cut = ids->n > d->max_tokens ? ids->n - d->max_tokens : 0;
    if (d->left_out) {
        d->left_out->of += ids->n - before;
        d->left_out->tokens += cut;
        d->left_out->documents += cut > 0;
    }
    ids->n -= cut;
    return status;
}

int moe_pairs_each(const struct moe_documents *d, const char *path,
                   int (*fn)(void *ctx, const struct moe_pair *pair, struct moe_err *err),
                   void *ctx, struct moe_err *err)
{
    struct cutting c;
    struct moe_ids source = {0}, target = {0};
    struct moe_buf texts[MEMBERS] = {{0}}, name = {0};
    bool found = true;
    int status;
    MOE_STEP(cutting_open(&c, d, path, err));
    for (uint64_t number = 1;; number++) {
        MOE_STEP(next_document(&c, &found, err));
        if (!found)
            break;
        moe_buf_clear(&name);
        moe_buf_printf(&name, "%s: pair %llu", path, (unsigned long long)number);
        source.n = target.n = 0;
        if (name.failed)
            MOE_STEP(moe_fail(err, MOE_ERR_MEMORY, "out of memory"));
        MOE_STEP(read_document(&c, err));
        MOE_STEP(read_pair((const char *)name.data, c.text, c.end - c.begin, texts, err));
        const char *said = (const char *)name.data;
        MOE_STEP(encode_text(d, &texts[0], &texts[TEXTS], 0, said, &source, err));
        MOE_STEP(moe_ids_push(&target, d->decoder_start, err));
        MOE_STEP(encode_text(d, &texts[1], &texts[TEXTS + 1], d->answer_start, said, &target, err));
        if (!*(const char *)texts[0].data || !*(const char *)texts[1].data)
            MOE_STEP(moe_fail(err, MOE_ERR_FORMAT, "%s: has an empty text", said));
        const struct moe_pair pair = {source.ids, target.ids, (uint32_t)source.n,
                                      (uint32_t)target.n, (const char *)texts[1].data};
        MOE_STEP(fn(ctx, &pair, err));
        moe_progress_report(d->progress, d->what, c.after, c.size);
        if (moe_progress_stopped(d->progress))
            MOE_STEP(moe_fail(err, MOE_ERR_INTERRUPTED, "stopped"));
    }
out:
    moe_ids_release(&source);
    moe_ids_release(&target);
    for (int i = 0; i < MEMBERS; i++)
        moe_buf_release(&texts[i]);
    moe_buf_release(&name);
    cutting_close(&c);
    return status;
}

/* ---- Corpora ---- */

enum { ROOM = 64 };

/* A corpus that grows. */
struct reading {
    struct moe_corpus *corpus;
    uint64_t ids_room, documents_room, pairs_room, sources_room, text_room;
};

static int grow(void **array, uint64_t *room, uint64_t needed, uint64_t item, struct moe_err *err)
{
    if (needed <= *room)
        return MOE_OK;
    uint64_t wanted = needed + needed / 2 + ROOM, bytes;
    void *more = moe_mul_u64(wanted, item, &bytes) ? realloc(*array, bytes) : NULL;
    if (!more)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for the texts' tokens");
    *array = more;
    *room = wanted;
    return MOE_OK;
}

static int add_document(void *ctx, const uint32_t *ids, uint64_t n, struct moe_err *err)
{
    struct reading *r = ctx;
    struct moe_corpus *c = r->corpus;
    struct moe_corpus_text *text = &c->texts[c->n_texts - 1];
    if (n < 2)
        return MOE_OK; /* nothing to predict */
    if (c->n_documents == UINT32_MAX - 2)
        return moe_fail(err, MOE_ERR_USAGE, "%s: too many documents", text->path);
    MOE_TRY(grow((void **)&c->ids, &r->ids_room, c->n_tokens + n, sizeof *c->ids, err));
    MOE_TRY(grow((void **)&c->first, &r->documents_room, (uint64_t)c->n_documents + 2,
                 sizeof *c->first, err));
    memcpy(c->ids + c->n_tokens, ids, n * sizeof *ids);
    c->first[c->n_documents] = c->n_tokens;
    c->first[++c->n_documents] = c->n_tokens += n;
    c->n_predicted += n - 1;
    c->longest = n > c->longest ? (uint32_t)n : c->longest;
    text->n_documents++;
    text->n_predicted += n - 1;
    text->hash = moe_hash64_chain(text->hash, ids, n * sizeof *ids);
    return MOE_OK;
}

/* The pair becomes document number n_documents. */
static int add_pair(void *ctx, const struct moe_pair *pair, struct moe_err *err)
{
    struct reading *r = ctx;
    struct moe_corpus *c = r->corpus;
    struct moe_corpus_text *text = &c->texts[c->n_texts - 1];
    uint64_t n = pair->n_source, n_bytes = strlen(pair->target_text) + 1;
    MOE_TRY(grow((void **)&c->source_ids, &r->sources_room, c->n_source_tokens + n,
                 sizeof *c->source_ids, err));
    MOE_TRY(grow((void **)&c->target_text, &r->text_room, c->n_text_bytes + n_bytes, 1, err));
    MOE_TRY(grow((void **)&c->pairs, &r->pairs_room, (uint64_t)c->n_documents + 2, sizeof *c->pairs,
                 err));
    memcpy(c->source_ids + c->n_source_tokens, pair->source, n * sizeof *pair->source);
    memcpy(c->target_text + c->n_text_bytes, pair->target_text, n_bytes);
    c->pairs[c->n_documents] = (struct moe_corpus_pair){c->n_source_tokens, c->n_text_bytes};
    c->n_source_tokens += n;
    c->n_text_bytes += n_bytes;
    c->pairs[c->n_documents + 1] = (struct moe_corpus_pair){c->n_source_tokens, c->n_text_bytes};
    c->longest_source = n > c->longest_source ? (uint32_t)n : c->longest_source;
    text->hash = moe_hash64_chain(text->hash, pair->source, n * sizeof *pair->source);
    return add_document(r, pair->target, pair->n_target, err);
}

/* ---- Counting ---- */

static int count_document(void *ctx, const uint32_t *ids, uint64_t n, struct moe_err *err)
{
    (void)ids, (void)err;
    struct moe_corpus *c = ctx;
    if (n < 2)
        return MOE_OK;
    c->n_documents++;
    c->n_tokens += n;
    c->n_predicted += n - 1;
    c->longest = n > c->longest ? (uint32_t)n : c->longest;
    return MOE_OK;
}

static int count_pair(void *ctx, const struct moe_pair *pair, struct moe_err *err)
{
    struct moe_corpus *c = ctx;
    c->n_source_tokens += pair->n_source;
    c->n_text_bytes += strlen(pair->target_text) + 1;
    c->longest_source = pair->n_source > c->longest_source ? pair->n_source : c->longest_source;
    return count_document(c, pair->target, pair->n_target, err);
}

/* What it has at most, without having been read. */
static void count_most(struct moe_corpus *c, const struct moe_documents *d,
                       const struct moe_documents_size *size)
{
    c->n_documents = size->n < UINT32_MAX ? (uint32_t)size->n : UINT32_MAX;
    c->n_tokens = c->n_predicted = size->most_ids;
    c->longest = d->max_tokens;
    c->n_source_tokens = d->pairs ? size->most_ids : 0;
    c->n_text_bytes = d->pairs ? size->all_bytes : 0;
    c->longest_source = d->pairs ? d->max_tokens : 0;
}

/* Bytes of a growing array of n items. */
static uint64_t room_bytes(uint64_t n, uint64_t item)
{
    return (n + n / 2 + ROOM) * item;
}

int moe_corpus_survey(struct moe_corpus *out, uint64_t *bytes, uint64_t *reading,
                      const struct moe_documents *how, const char *const *paths, uint32_t n_paths,
                      uint64_t may_hold, struct moe_err *err)
{
    struct moe_documents documents = *how;
    struct moe_documents_size size;
    documents.what = "counting tokens";
    *out = (struct moe_corpus){.n_texts = n_paths};
    int status;
    MOE_STEP(moe_documents_survey(&documents, paths, n_paths, may_hold, &size, err));
    bool counted = size.bytes <= may_hold;
    if (!counted)
        count_most(out, &documents, &size);
    for (uint32_t i = 0; i < n_paths && counted; i++)
        MOE_STEP(documents.pairs
                     ? moe_pairs_each(&documents, paths[i], count_pair, out, err)
                     : moe_documents_each(&documents, paths[i], count_document, out, err));
out:
    *reading = size.bytes;
    *bytes = room_bytes(out->n_tokens, sizeof *out->ids) +
             room_bytes((uint64_t)out->n_documents + 2, sizeof *out->first);
    if (documents.pairs)
        *bytes += room_bytes(out->n_source_tokens, sizeof *out->source_ids) +
                  room_bytes(out->n_text_bytes, 1) +
                  room_bytes((uint64_t)out->n_documents + 2, sizeof *out->pairs);
    return status;
}

int moe_corpus_read(struct moe_corpus **out, const struct moe_documents *how,
                    const char *const *paths, uint32_t n_paths, struct moe_err *err)
{
    struct reading r = {.corpus = moe_alloc(1, sizeof *r.corpus, err)};
    struct moe_documents documents = *how;
    documents.what = documents.pairs ? "reading pairs" : "reading texts";
    *out = NULL;
    if (!r.corpus)
        return MOE_ERR_MEMORY;
    documents.left_out = &r.corpus->left_out;
    r.corpus->texts = moe_alloc(n_paths, sizeof *r.corpus->texts, err);
    int status;
    MOE_STEP(r.corpus->texts ? MOE_OK : MOE_ERR_MEMORY);
    for (uint32_t i = 0; i < n_paths; i++) {
        struct moe_corpus_text *text = &r.corpus->texts[r.corpus->n_texts++];
        text->path = paths[i];
        text->first_document = r.corpus->n_documents;
        MOE_STEP(documents.pairs ? moe_pairs_each(&documents, paths[i], add_pair, &r, err)
                                 : moe_documents_each(&documents, paths[i], add_document, &r, err));
        if (text->n_documents == 0)
            MOE_STEP(moe_fail(err, MOE_ERR_FORMAT, "%s: has no %s to predict", paths[i],
                              documents.pairs ? "pair" : "text"));
    }
out:
    if (status == MOE_OK)
        *out = r.corpus;
    else
        moe_corpus_free(r.corpus);
    return status;
}

void moe_corpus_thin_out(struct moe_corpus *c, uint64_t most_tokens)
{
    if (c->n_tokens <= most_tokens)
        return;
    uint64_t share = most_tokens, of = c->n_tokens, at = 0;
    uint32_t kept = 0, n = c->n_documents;
    c->longest = 0;
    for (uint64_t d = 0; d < n; d++) {
        uint32_t length = moe_corpus_length(c, (uint32_t)d);
        if ((d + 1) * share / of == d * share / of || at + length > most_tokens)
            continue;
        memmove(c->ids + at, c->ids + c->first[d], length * sizeof *c->ids);
        c->first[kept++] = at;
        at += length;
        c->longest = length > c->longest ? length : c->longest;
    }
    c->first[kept] = at;
    c->n_documents = kept;
    c->n_tokens = at;
    c->n_predicted = at - kept;
}

void moe_corpus_free(struct moe_corpus *corpus)
{
    if (!corpus)
        return;
    free(corpus->texts);
    free(corpus->first);
    free(corpus->ids);
    free(corpus->pairs);
    free(corpus->source_ids);
    free(corpus->target_text);
    free(corpus);
}
