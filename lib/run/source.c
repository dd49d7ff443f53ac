#include "run/source.h"

#include "base/energy.h"
#include "layer/stages.h"

/* ---- What stands in a pass ---- */

/* One source's rows, from rows[0] on; *n of them. */
static int check_source(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
                        uint32_t *n, struct moe_err *err)
{
    const struct moe_row *r = &rows[0];
    struct moe_encoded *source = &s->sources[r->sequence];
    bool whole = r->length > 0 && r->length <= n_rows && source->pending == 0;
    for (uint32_t i = 0; whole && i < r->length; i++)
        whole =
            rows[i].sequence == r->sequence && rows[i].position == i && rows[i].length == r->length;
    if (!whole)
        return moe_fail(err, MOE_ERR_USAGE,
                        "source %u of %u positions does not stand in the pass once, whole and in "
                        "order",
                        r->sequence, r->length);
    source->pending = *n = r->length;
    return MOE_OK;
}

static int check_attended(const struct moe_session *s, const struct moe_row *row,
                          struct moe_err *err)
{
    uint32_t source = s->attends[row->sequence];
    return s->sources[source].length ? MOE_OK
                                     : moe_fail(err, MOE_ERR_USAGE,
                                                "sequence %u attends to source %u, which is not "
                                                "encoded",
                                                row->sequence, source);
}

/* The sequence's rows from rows[0] on: a prompt stands in the pass with all of them or not at all.
 * *n of them. */
static int check_prompt(const struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
                        uint32_t *n, struct moe_err *err)
{
    uint32_t n_prompt = s->prompts[rows[0].sequence].n;
    *n = 1;
    if (rows[0].position >= n_prompt)
        return MOE_OK;
    bool whole = n_prompt <= n_rows;
    for (uint32_t i = 0; whole && i < n_prompt; i++)
        whole = rows[i].sequence == rows[0].sequence && rows[i].position == i;
    *n = n_prompt;
    return whole ? MOE_OK
                 : moe_fail(err, MOE_ERR_USAGE,
                            "the prompt of %u positions of sequence %u does not stand in the pass "
                            "whole and in order",
                            n_prompt, rows[0].sequence);
}

int moe_sources_check(struct moe_session *s, bool encode, const struct moe_row *rows,
                      uint32_t n_rows, uint32_t begin, uint32_t end, struct moe_err *err)
{
    uint32_t n_encoder = s->model->config.n_encoder, n = 1;
    int status = MOE_OK;
    if (encode ? end > n_encoder : begin < n_encoder)
        return moe_fail(err, MOE_ERR_USAGE,
                        "layers %u to %u are not the %s's: the encoder has the first %u", begin,
                        end, encode ? "encoder" : "decoder", n_encoder);
    for (uint32_t i = 0; i < s->n_sources; i++)
        s->sources[i].pending = 0;
    for (uint32_t i = 0; i < n_rows && s->n_sources && status == MOE_OK; i += n)
        status = encode ? check_source(s, rows + i, n_rows - i, &n, err)
                        : check_attended(s, rows + i, err);
    for (uint32_t i = 0; i < n_rows && s->prompts && status == MOE_OK; i += n)
        status = check_prompt(s, rows + i, n_rows - i, &n, err);
    for (uint32_t i = 0; i < s->n_sources && status == MOE_OK; i++)
        if (s->sources[i].pending)
            s->sources[i].length = 0;
    return status;
}

/* ---- What decoders attend to ---- */

int moe_encode_keep(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
                    float *output, struct moe_err *err)
{
    double started = moe_experts_clock(s->experts), joules = moe_energy_joules(s->energy);
    int status = s->stages->keep_sources(s, rows, n_rows, output, err);
    for (uint32_t i = 0; i < n_rows && status == MOE_OK; i += rows[i].length) {
        struct moe_encoded *source = &s->sources[rows[i].sequence];
        source->length = source->pending;
        source->number = ++s->n_encoded;
    }
    s->stats.encode.seconds += moe_experts_clock(s->experts) - started;
    s->stats.encode.joules += moe_energy_joules(s->energy) - joules;
    return status;
}

void moe_sequence_attend(struct moe_session *s, uint32_t sequence, uint32_t source)
{
    s->attends[sequence] = source;
}

void moe_sequence_prompt(struct moe_session *s, uint32_t sequence, uint32_t n, uint32_t prefix)
{
    s->prompts[sequence] = (struct moe_prompt){n, prefix};
}
