#include "serve/reply_logprobs.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "fmt/scalar.h"

enum { N_LISTS = 4, TOKENS = 0, TOKEN_LOGPROBS, TOP_LOGPROBS, OFFSETS };

static const char *const list_names[N_LISTS] = {"tokens", "token_logprobs", "top_logprobs",
                                                "text_offset"};

/* Room for the next item of a list. */
static struct moe_buf *next_item(struct moe_buf *list)
{
    moe_buf_text(list, list->size ? "," : "[");
    return list;
}

/* ---- /v1/completions ---- */

/* A token's name: its text, or "bytes:\xe2\x80" where it is none; NUL-terminated. */
static void name_token(const struct moe_token_chance *c, struct moe_buf *name)
{
    moe_buf_clear(name);
    bool is_text =
        moe_utf8_valid(c->bytes, c->n_bytes) && !(c->n_bytes && memchr(c->bytes, 0, c->n_bytes));
    if (is_text) {
        moe_buf_append(name, c->bytes, c->n_bytes);
    } else {
        moe_buf_text(name, "bytes:");
        for (uint32_t i = 0; i < c->n_bytes; i++)
            moe_buf_printf(name, "\\x%02x", c->bytes[i]);
    }
    moe_buf_append(name, "", 1);
}

static void put_named(struct moe_emit *e, const struct moe_token_chance *c, struct moe_buf *name)
{
    name_token(c, name);
    if (!name->failed)
        moe_emit_rounded(e, (const char *)name->data, 9,
                         moe_log_probability_shown(c->log_probability));
}

/* Two tokens with the same bytes have one name: the likelier one is shown. */
static bool has_name_before(const struct moe_token_said *said, uint32_t n,
                            const struct moe_token_chance *c)
{
    for (uint32_t i = 0; i < n; i++)
        if (said->top[i].n_bytes == c->n_bytes &&
            (c->n_bytes == 0 || memcmp(said->top[i].bytes, c->bytes, c->n_bytes) == 0))
            return true;
    return false;
}

static void add_top(struct reply_logprobs *p, const struct moe_token_said *said,
                    struct moe_buf *name)
{
    struct moe_emit e;
    struct moe_buf *list = next_item(&p->lists[TOP_LOGPROBS]);
    moe_emit_begin_json(&e, list, MOE_EMIT_COMPACT);
    for (uint32_t i = 0; i < said->n_top; i++)
        if (!has_name_before(said, i, &said->top[i]))
            put_named(&e, &said->top[i], name);
    if (!has_name_before(said, said->n_top, &said->token))
        put_named(&e, &said->token, name);
    moe_emit_end_item(&e, NULL);
}

static void add_to_text(struct reply_logprobs *p, const struct moe_token_said *said)
{
    struct moe_buf name = {0};
    name_token(&said->token, &name);
    if (!name.failed)
        moe_scalar_bytes(next_item(&p->lists[TOKENS]), name.data, name.size - 1);
    p->lists[TOKENS].failed |= name.failed;
    moe_buf_printf(next_item(&p->lists[TOKEN_LOGPROBS]), "%.9g",
                   moe_log_probability_shown(said->token.log_probability));
    moe_buf_printf(next_item(&p->lists[OFFSETS]), "%llu", (unsigned long long)p->offset);
    if (p->with_top)
        add_top(p, said, &name);
    for (uint32_t i = 0; i < said->token.n_bytes; i++)
        p->offset += (said->token.bytes[i] & 0xc0) != 0x80; /* not within a character */
    moe_buf_release(&name);
}

/* ---- Both ---- */

void reply_logprobs_begin(struct reply_logprobs *p, const struct moe_request *r)
{
    *p = (struct reply_logprobs){.kind = r->kind, .with_top = r->top_logprobs > 0};
}

void reply_logprobs_add(struct reply_logprobs *p, const struct moe_token_said *said)
{
    if (p->kind == MOE_REQUEST_CHAT)
        moe_token_said_json(said, next_item(&p->lists[0]));
    else
        add_to_text(p, said);
}

bool reply_logprobs_failed(const struct reply_logprobs *p)
{
    bool failed = false;
    for (int i = 0; i < N_LISTS; i++)
        failed |= p->lists[i].failed;
    return failed;
}

static void put_list(struct moe_emit *e, const char *key, struct moe_buf *list)
{
    moe_buf_text(list, list->size ? "]" : "[]");
    moe_emit_json(e, key, list->data, list->size);
    moe_buf_clear(list);
}

void reply_logprobs_put(struct reply_logprobs *p, struct moe_emit *e)
{
    moe_emit_open_map(e, "logprobs");
    if (p->kind == MOE_REQUEST_CHAT) {
        put_list(e, "content", &p->lists[0]);
        moe_emit_null(e, "refusal");
    }
    for (int i = 0; i < N_LISTS && p->kind == MOE_REQUEST_TEXT; i++)
        if (i == TOP_LOGPROBS && !p->with_top)
            moe_emit_null(e, list_names[i]);
        else
            put_list(e, list_names[i], &p->lists[i]);
    moe_emit_close(e);
}

void reply_logprobs_release(struct reply_logprobs *p)
{
    for (int i = 0; i < N_LISTS; i++)
        moe_buf_release(&p->lists[i]);
}
