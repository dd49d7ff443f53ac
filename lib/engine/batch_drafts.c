#include "engine/batch_drafts.h"

#include "run/ahead.h"

static uint32_t smaller(uint32_t a, uint64_t b)
{
    return b < a ? (uint32_t)b : a;
}

/* ---- Room ---- */

/* Rows of a pass, shared by those that decode. */
struct shares {
    uint32_t left, members;
};

static struct shares shares_of(const struct moe_batch *b)
{
    const struct moe_session *s = b->session;
    struct shares shares = {0, 0};
    uint32_t certain = 0;
    for (uint32_t i = 0; i < s->n_sequences; i++)
        if (b->running[i] && batch_is_decoding(b->running[i])) {
            shares.members++;
            certain += 1 + b->running[i]->n_again;
        }
    /* What states have to compute again must fit the next pass, beside a token of everyone else. */
    uint32_t others = s->stands ? s->n_sequences - shares.members : 0;
    uint32_t batch = s->batch > others ? s->batch - others : 0;
    uint32_t most = batch < MOE_BATCH_DRAFT_ROWS ? batch : MOE_BATCH_DRAFT_ROWS;
    shares.left = most > certain ? most - certain : 0;
    return shares;
}

/* The next member's share, of which `used` will be taken. */
static uint32_t share(const struct shares *shares)
{
    return shares->members ? shares->left / shares->members : 0;
}

static void take(struct shares *shares, uint32_t used)
{
    shares->left -= used;
    shares->members--;
}

/* How many tokens, at most `most`, a sequence's draft may have: it has blocks for them. */
static uint32_t room_for(struct moe_batch *b, uint32_t sequence, uint32_t most)
{
    const struct member *m = b->running[sequence];
    struct moe_err full;
    uint32_t rows = 1 + m->n_again + most;
    most = smaller(most, moe_drafting_room(&m->answer, &m->history, rows, m->n_again, m->far));
    most = smaller(most, m->drafting.draft.next);
    while (most && moe_sequence_reserve(b->session, sequence, (uint32_t)m->history.n + most,
                                        &full) != MOE_OK)
        most--;
    return most;
}

void batch_drafts_make(struct moe_batch *b)
{
    struct shares shares = shares_of(b);
    for (uint32_t i = 0; i < b->session->n_sequences; i++) {
        struct member *m = b->running[i];
        if (!m || !batch_is_decoding(m))
            continue;
        struct moe_draft *d = &m->drafting.draft;
        uint32_t most = d->most ? room_for(b, i, share(&shares)) : 0;
        if (m->drafting.ahead)
            moe_draft_cut(d, most);
        else if (d->most)
            moe_draft_make(d, m->history.ids, m->history.n, most);
        if (d->n)
            moe_sequence_mark(b->session, i, (uint32_t)m->n_done);
        m->n_drafted += d->n;
        b->session->stats.drafted_tokens += d->n;
        take(&shares, d->n);
    }
}

/* ---- The layer that drafts ---- */

/* It reads rows of those that want its drafts, where the token after is known. *n: how many. Of
 * what a sequence has taken over it reads nothing: there its keys and values are those of the other
 * text, whose next token may have been another; a draft may be worse for it. */
static int read_ahead(struct moe_batch *b, uint32_t n_rows, uint32_t *n, struct moe_err *err)
{
    *n = 0;
    for (uint32_t row = 0; row < n_rows; row++) {
        const struct moe_row r = b->rows[row];
        const struct member *m = b->running[r.sequence];
        if (!m || !m->drafting.ahead || r.position + 1 >= m->history.n)
            continue;
        b->from[*n] = row;
        b->rows[(*n)++] =
            (struct moe_row){r.sequence, r.position, m->history.ids[r.position + 1], 0};
    }
    return *n ? moe_ahead(b->session, b->rows, *n, b->from, err) : MOE_OK;
}

/* Of n rows those stay that drafts go on from, with the states that they are in. */
static uint32_t keep_ends(struct moe_batch *b, uint32_t n_rows)
{
    struct shares shares = shares_of(b);
    uint32_t n = 0;
    for (uint32_t row = 0; row < n_rows; row++) {
        const struct moe_row r = b->rows[row];
        struct member *m = b->running[r.sequence];
        if (r.position + 2 != m->history.n || !batch_is_decoding(m) || !m->drafting.draft.most)
            continue;
        m->to_draft = room_for(b, r.sequence, share(&shares));
        take(&shares, m->to_draft);
        moe_draft_cut(&m->drafting.draft, 0);
        if (!m->to_draft)
            continue;
        b->from[n] = row;
        b->rows[n++] = r;
    }
    return n;
}

/* A token more for each of n rows: the likeliest by the layer's own states. */
static int draw_ahead(struct moe_batch *b, uint32_t n, struct moe_err *err)
{
    const struct moe_config *c = &b->session->model->config;
    const uint64_t stride = moe_logits_stride(c);
    for (uint32_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && b->from[end] - b->from[i] < BATCH_LOGITS_ROWS; end++)
            ;
        uint32_t first = b->from[i];
        int status = moe_logits(b->session, first, b->from[end - 1] - first + 1, b->logits, err);
        if (status != MOE_OK)
            return status;
        for (uint32_t k = i; k < end; k++) {
            struct moe_draft *d = &b->running[b->rows[k].sequence]->drafting.draft;
            d->ids[d->n++] =
                moe_drafting_likeliest(b->logits + (b->from[k] - first) * stride, c->vocab);
            d->made = d->n;
        }
    }
    return MOE_OK;
}

/* Of n rows the layer's next ones for those that are to have more tokens. */
static uint32_t go_on(struct moe_batch *b, uint32_t n)
{
    uint32_t more = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct moe_row r = b->rows[i];
        const struct member *m = b->running[r.sequence];
        const struct moe_draft *d = &m->drafting.draft;
        if (d->n >= m->to_draft)
            continue;
        b->from[more] = b->from[i];
        b->rows[more++] = (struct moe_row){r.sequence, r.position + 1, d->ids[d->n - 1], 0};
    }
    return more;
}

static void draft_ahead(struct moe_batch *b, uint32_t n_rows)
{
    struct moe_err err;
    uint32_t n_read;
    int status = read_ahead(b, n_rows, &n_read, &err);
    uint32_t n = status == MOE_OK ? keep_ends(b, n_read) : n_read;
    while (n > 0 && status == MOE_OK) {
        status = draw_ahead(b, n, &err);
        if (status != MOE_OK || (n = go_on(b, n)) == 0)
            break;
        status = moe_ahead(b->session, b->rows, n, b->from, &err);
        for (uint32_t i = 0; i < n; i++)
            b->from[i] = i;
    }
    if (status != MOE_OK)
        batch_fail_rows(b, n, status, &err);
}

/* ---- After a pass ---- */

/* A draft in vain has left the states behind it. */
static void go_back(struct moe_batch *b, uint32_t sequence)
{
    struct member *m = b->running[sequence];
    uint32_t n = moe_sequence_back(b->session, sequence, (uint32_t)m->n_done);
    if (n < m->n_done && n > 0)
        m->n_again = (uint32_t)m->n_done - n;
    m->n_done = n;
}

void batch_drafts_after(struct moe_batch *b, uint32_t n_rows)
{
    const struct moe_session *s = b->session;
    for (uint32_t i = 0; i < s->n_sequences && s->stands; i++)
        if (b->running[i] && b->running[i]->n_done > 0)
            go_back(b, i);
    if (s->model->config.n_drafting)
        draft_ahead(b, n_rows);
}
