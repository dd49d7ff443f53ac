#include "study/structure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/sampler.h"

/* ---- Judging ---- */

/* The ids' bytes, without special tokens, in place of what `out` held. */
static int detokenize(const struct moe_tokenizer *tok, const uint32_t *ids, uint64_t n,
                      struct moe_buf *out, struct moe_err *err)
{
    moe_buf_clear(out);
    for (uint64_t i = 0; i < n; i++) {
        uint32_t n_bytes = 0;
        const uint8_t *bytes = moe_tokenizer_bytes(tok, ids[i], &n_bytes);
        if (!moe_tokenizer_is_special(tok, ids[i]))
            moe_buf_append(out, bytes, n_bytes);
    }
    return out->failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory for a document's text")
                       : MOE_OK;
}

static struct moe_closure judge(const struct moe_buf *text, bool ended,
                                struct moe_map_structure *sums)
{
    struct moe_closure c = moe_closure_of((const char *)text->data, text->size);
    sums->documents++;
    sums->brackets += c.brackets;
    sums->quotes += c.quotes;
    sums->answers += c.answer;
    sums->ended += ended;
    return c;
}

/* Empty sums, named after the text. */
static int begin(const struct moe_corpus *corpus, uint32_t text, struct moe_map_structure *out,
                 struct moe_err *err)
{
    if (text >= corpus->n_texts)
        return moe_fail(err, MOE_ERR_USAGE, "there is no text %u among %u", text, corpus->n_texts);
    const char *path = corpus->texts[text].path, *slash = strrchr(path, '/');
    snprintf(out->text, sizeof out->text, "%s", slash ? slash + 1 : path);
    out->documents = out->brackets = out->quotes = out->answers = out->ended = 0;
    return MOE_OK;
}

static uint32_t end_of(const struct moe_corpus_text *text, uint32_t documents)
{
    uint32_t n = documents && documents < text->n_documents ? documents : text->n_documents;
    return text->first_document + n;
}

int moe_structure_originals(const struct moe_tokenizer *tokenizer, const struct moe_corpus *corpus,
                            uint32_t text, uint32_t documents, struct moe_map_structure *out,
                            struct moe_err *err)
{
    struct moe_buf bytes = {0};
    struct moe_map_structure unwanted = {0};
    bool answers = false;
    int status = begin(corpus, text, out, err);
    if (status != MOE_OK)
        return status;
    const struct moe_corpus_text *t = &corpus->texts[text];
    for (uint32_t d = t->first_document; d < end_of(t, 0) && status == MOE_OK; d++) {
        status = detokenize(tokenizer, corpus->ids + corpus->first[d], moe_corpus_length(corpus, d),
                            &bytes, err);
        if (status == MOE_OK)
            answers |= judge(&bytes, true, d < end_of(t, documents) ? out : &unwanted).answer;
    }
    if (!answers)
        out->answers = UINT32_MAX;
    moe_buf_release(&bytes);
    return status;
}

/* ---- Writing ---- */

/* A sequence of the session and the document that is being continued in it. */
struct desk {
    bool busy;
    uint32_t document;
    uint64_t n_prompt, n_done; /* tokens; those computed */
    struct moe_ids ids;        /* the prompt and what was written since */
};

struct writers {
    struct moe_session *s;
    const struct moe_corpus *corpus;
    const struct moe_structure_options *options;
    struct moe_sampler *sampler;
    struct desk *desks;   /* [n_sequences] */
    struct moe_row *rows; /* [batch] */
    float *logits;        /* [n_logits][stride] */
    uint32_t n_logits;
    struct moe_buf text;
    uint32_t first, next, end; /* documents: all, of these not begun */
    struct moe_map_structure *out;
};

/* Puts the next document on the desk, if there is one. */
static int start(struct writers *w, struct desk *k, struct moe_err *err)
{
    k->busy = w->next < w->end;
    if (!k->busy)
        return MOE_OK;
    k->document = w->next++;
    k->n_done = k->ids.n = 0;
    k->n_prompt = (uint64_t)(w->options->prompt_share * moe_corpus_length(w->corpus, k->document));
    if (k->n_prompt < 2)
        k->n_prompt = 2;
    if (k->n_prompt > w->s->context)
        return moe_fail(err, MOE_ERR_LIMIT,
                        "a prompt of %llu tokens does not fit the context of %u",
                        (unsigned long long)k->n_prompt, w->s->context);
    const uint32_t *ids = w->corpus->ids + w->corpus->first[k->document];
    int status = MOE_OK;
    for (uint64_t i = 0; i < k->n_prompt && status == MOE_OK; i++)
        status = moe_ids_push(&k->ids, ids[i], err);
    return status;
}

static int finish(struct writers *w, struct desk *k, bool ended, struct moe_err *err)
{
    const struct moe_structure_options *o = w->options;
    int status = detokenize(w->s->model->tokenizer, k->ids.ids, k->ids.n, &w->text, err);
    if (status != MOE_OK)
        return status;
    judge(&w->text, ended, w->out);
    if (o->wrote)
        o->wrote(o->ctx, k->document, (const char *)w->text.data, w->text.size, ended);
    moe_progress_report(o->progress, "continuing", w->out->documents, w->end - w->first);
    return start(w, k, err);
}

static int take_token(struct writers *w, struct desk *k, const float *logits, struct moe_err *err)
{
    const struct moe_model *m = w->s->model;
    uint32_t id = moe_sampler_next(w->sampler, logits, k->ids.ids, k->ids.n);
    if (moe_config_is_eos(&m->config, id) || id == moe_tokenizer_separator(m->tokenizer))
        return finish(w, k, true, err);
    int status = moe_ids_push(&k->ids, id, err);
    bool full = k->ids.n - k->n_prompt >= w->options->max_new || k->n_done >= w->s->context;
    return status == MOE_OK && full ? finish(w, k, false, err) : status;
}

/* The rows of the next pass: of prompts while there are any, else one of each desk. */
static uint32_t gather(struct writers *w, enum moe_phase *phase)
{
    uint32_t n = 0;
    *phase = MOE_DECODE;
    for (uint32_t i = 0; i < w->s->n_sequences; i++)
        if (w->desks[i].busy && w->desks[i].n_done < w->desks[i].n_prompt)
            *phase = MOE_PREFILL;
    for (uint32_t i = 0; i < w->s->n_sequences; i++) {
        const struct desk *k = &w->desks[i];
        if (!k->busy || (*phase == MOE_PREFILL && k->n_done >= k->n_prompt))
            continue;
        for (uint64_t at = k->n_done; at < k->ids.n && n < w->s->batch; at++)
            w->rows[n++] = (struct moe_row){i, (uint32_t)at, k->ids.ids[at]};
    }
    return n;
}

/* Whether the row is the last of what its desk has, so that its logits are wanted. */
static bool is_last(const struct writers *w, uint32_t row)
{
    return w->rows[row].position + 1 == w->desks[w->rows[row].sequence].ids.n;
}

/* After a pass: writes a token wherever one is due, logits for several neighbours at once. */
static int take_rows(struct writers *w, uint32_t n_rows, struct moe_err *err)
{
    uint64_t stride = moe_logits_stride(&w->s->model->config);
    int status = MOE_OK;
    for (uint32_t i = 0; i < n_rows; i++)
        w->desks[w->rows[i].sequence].n_done++;
    for (uint32_t i = 0, n; i < n_rows && status == MOE_OK; i += n ? n : 1) {
        for (n = 0; i + n < n_rows && n < w->n_logits && is_last(w, i + n);)
            n++;
        if (n)
            status = moe_logits(w->s, i, n, w->logits, err);
        for (uint32_t j = 0; j < n && status == MOE_OK; j++)
            status = take_token(w, &w->desks[w->rows[i + j].sequence], w->logits + j * stride, err);
    }
    return status;
}

static int write_all(struct writers *w, struct moe_err *err)
{
    int status = MOE_OK;
    enum moe_phase phase;
    uint32_t n;
    for (uint32_t i = 0; i < w->s->n_sequences && status == MOE_OK; i++)
        status = start(w, &w->desks[i], err);
    while (status == MOE_OK && (n = gather(w, &phase)) > 0) {
        if (moe_progress_stopped(w->options->progress))
            return moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
        status =
            moe_forward(w->s, phase, w->rows, n, 0, w->s->model->config.n_layers, NULL, NULL, err);
        if (status == MOE_OK)
            status = take_rows(w, n, err);
    }
    return status;
}

/* ---- Entry ---- */

static int open_writers(struct writers *w, struct moe_err *err)
{
    const struct moe_config *c = &w->s->model->config;
    struct moe_sampler_options greedy;
    moe_sampler_options_default(&greedy);
    greedy.temperature = 0;
    w->n_logits = w->s->n_sequences < w->s->batch ? w->s->n_sequences : w->s->batch;
    w->desks = moe_alloc(w->s->n_sequences, sizeof *w->desks, err);
    w->rows = moe_alloc(w->s->batch, sizeof *w->rows, err);
    w->logits = moe_alloc(w->n_logits, moe_logits_stride(c) * sizeof *w->logits, err);
    if (!w->desks || !w->rows || !w->logits)
        return MOE_ERR_MEMORY;
    return moe_sampler_new(&w->sampler, &greedy, c->vocab, err);
}

static void close_writers(struct writers *w)
{
    for (uint32_t i = 0; w->desks && i < w->s->n_sequences; i++)
        moe_ids_release(&w->desks[i].ids);
    moe_buf_release(&w->text);
    moe_sampler_free(w->sampler);
    free(w->desks);
    free(w->rows);
    free(w->logits);
}

int moe_structure_measure(struct moe_session *s, const struct moe_corpus *corpus, uint32_t text,
                          const struct moe_structure_options *options,
                          struct moe_map_structure *out, struct moe_err *err)
{
    if (!(options->prompt_share > 0 && options->prompt_share <= 1) || options->max_new == 0)
        return moe_fail(err, MOE_ERR_USAGE,
                        "a prompt of %g of a document and %u tokens after it "
                        "cannot be",
                        options->prompt_share, options->max_new);
    struct moe_map_structure originals;
    int status = moe_structure_originals(s->model->tokenizer, corpus, text, 0, &originals, err);
    if (status == MOE_OK)
        status = begin(corpus, text, out, err);
    if (status != MOE_OK)
        return status;
    const struct moe_corpus_text *t = &corpus->texts[text];
    struct writers w = {
        .s = s,
        .corpus = corpus,
        .options = options,
        .first = t->first_document,
        .next = t->first_document,
        .end = end_of(t, options->documents),
        .out = out,
    };
    status = open_writers(&w, err);
    if (status == MOE_OK)
        status = write_all(&w, err);
    if (status == MOE_OK && originals.answers == UINT32_MAX)
        out->answers = UINT32_MAX;
    close_writers(&w);
    return status;
}
