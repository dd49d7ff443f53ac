/* moe-run --encode: a vector for each text. */
#include "run_modes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli.h"
#include "engine/prompt.h"
#include "fmt/emit.h"

enum { DIGITS = 9 }; /* a float32 is read back from as many exactly */

static const char *const names[] = {
    [MOE_POOL_MEAN] = "mean",
    [MOE_POOL_FIRST] = "first",
    [MOE_POOL_LAST] = "last",
};

int encode_check_options(const char *pack, const struct moe_config *c, bool encodes,
                         struct moe_err *err)
{
    static const char *const others[] = {"system", "template-file"};
    if (encodes && !c->n_encoder)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: the model has no encoder: option --encode needs one that has", pack);
    for (size_t i = 0; i < sizeof others / sizeof others[0] && c->n_encoder; i++)
        if (cli_given(others[i]))
            return moe_fail(err, MOE_ERR_USAGE,
                            "%s: option --%s is not for models with an encoder, which answers each "
                            "source by itself",
                            pack, others[i]);
    return MOE_OK;
}

static int print_embedding(uint64_t n_tokens, enum moe_pooling pooling, const float *embedding,
                           uint32_t n, struct moe_err *err)
{
    struct moe_buf line = {0};
    struct moe_emit e;
    moe_emit_begin_json(&e, &line, MOE_EMIT_LINE);
    moe_emit_u64(&e, "tokens", n_tokens);
    moe_emit_text(&e, "pooling", names[pooling]);
    moe_emit_open_line_list(&e, "embedding");
    for (uint32_t i = 0; i < n; i++)
        moe_emit_rounded(&e, NULL, DIGITS, (double)embedding[i]);
    moe_emit_close(&e);
    int status = moe_emit_end(&e, err);
    cli_progress_done();
    if (status == MOE_OK && !cli_write(line.data, line.size))
        status = cli_flush(err);
    moe_buf_release(&line);
    return status;
}

static int encode_one(struct moe_session *s, const char *text, uint64_t n, enum moe_pooling pooling,
                      float *embedding, struct moe_err *err)
{
    struct moe_ids ids = {0};
    int status;
    MOE_STEP(moe_prompt_plain(s->model, text, n, &ids, err));
    MOE_STEP(moe_encode_pooled(s, ids.ids, ids.n, pooling, embedding, err));
    MOE_STEP(print_embedding(ids.n, pooling, embedding, s->model->config.hidden, err));
out:
    moe_ids_release(&ids);
    return status;
}

int encode_texts(struct moe_session *s, const struct moe_buf *text, bool one,
                 enum moe_pooling pooling, struct moe_err *err)
{
    const char *at = (const char *)text->data, *end = at + text->size - 1;
    float *embedding = moe_alloc(s->model->config.hidden, sizeof *embedding, err);
    uint64_t line = 1;
    int status = embedding ? MOE_OK : MOE_ERR_MEMORY;
    cli_catch_interrupt(false);
    for (; status == MOE_OK && (one ? line == 1 : at < end); line++) {
        const char *newline = one ? NULL : memchr(at, '\n', (size_t)(end - at));
        const char *stop = newline ? newline : end;
        status = cli_stop ? moe_fail(err, MOE_ERR_INTERRUPTED, "interrupted")
                          : encode_one(s, at, (uint64_t)(stop - at), pooling, embedding, err);
        at = newline ? newline + 1 : end;
    }
    if (status == MOE_ERR_LIMIT && !one) {
        struct moe_err why = *err;
        status = moe_fail(err, status, "line %" PRIu64 ": %s", line - 1, why.text);
    }
    free(embedding);
    return status == MOE_OK ? cli_flush(err) : status;
}
