/* What a trace holds: some lines for a person, or JSON. */
#include "show/show.h"

#include <inttypes.h>

#include "base/text.h"
#include "fmt/emit.h"

/* Smallest and largest bytes of the experts that a variant has. */
struct sizes {
    uint64_t least, most;
};

static struct sizes sizes_of(const struct moe_trace_shape *shape, uint32_t variant)
{
    struct sizes s = {UINT64_MAX, 0};
    for (uint32_t layer = 0; layer < shape->n_layers; layer++)
        for (uint32_t e = 0; e < shape->n_experts; e++) {
            uint64_t bytes = moe_trace_expert_bytes(shape, variant, layer, e);
            if (bytes == 0)
                continue;
            s.least = bytes < s.least ? bytes : s.least;
            s.most = bytes > s.most ? bytes : s.most;
        }
    return s;
}

static uint32_t n_static(const struct moe_trace_shape *s)
{
    uint32_t n = 0;
    for (uint32_t layer = 0; layer < s->n_layers; layer++)
        n += s->is_static[layer];
    return n;
}

static double bytes_per_token(const struct moe_trace *t)
{
    uint64_t tokens = moe_trace_totals(t)->tokens;
    return tokens ? (double)moe_trace_file_bytes(t) / (double)tokens : 0;
}

void moe_show_trace(const struct moe_trace *t, struct moe_buf *out)
{
    const struct moe_trace_shape *s = moe_trace_shape(t);
    const struct moe_trace_totals *n = moe_trace_totals(t);
    char bytes[2][32];
    moe_buf_printf(out,
                   "Trace of %" PRIu64 " tokens (%" PRIu64 " of prompts, %" PRIu64
                   " decoded) in %" PRIu64 " sequence%s\n",
                   n->tokens, n->prompt_tokens, n->tokens - n->prompt_tokens, n->sequences,
                   n->sequences == 1 ? "" : "s");
    moe_origins_print(moe_trace_origins(t), out);
    if (s->source_fingerprint)
        moe_buf_printf(out, "Model %016" PRIx64 ": ", s->source_fingerprint);
    else
        moe_buf_text(out, "Imported: ");
    moe_buf_printf(out, "%" PRIu32 " MoE layers", moe_loop_owners(&s->loop, s->n_layers));
    if (s->loop.n)
        moe_buf_printf(out, " in %" PRIu32 " visits", s->n_layers);
    moe_buf_printf(out, ", %" PRIu32 " experts, %" PRIu32 " per token%s\n", s->n_experts, s->top_k,
                   s->loop.n ? " and visit" : "");
    if (n_static(s))
        moe_buf_printf(out, "Of these, %" PRIu32 " layers choose experts by the token\n",
                       n_static(s));
    if (s->n_variants == 0)
        moe_buf_text(out, "Bytes of an expert: not known\n");
    for (uint32_t v = 0; v < s->n_variants; v++) {
        struct sizes size = sizes_of(s, v);
        if (size.most == 0)
            continue;
        moe_buf_printf(out, "Bytes of an expert, variant %s: %s", s->variants[v],
                       moe_format_bytes(size.least, bytes[0]));
        if (size.most > size.least)
            moe_buf_printf(out, " to %s", moe_format_bytes(size.most, bytes[1]));
        moe_buf_text(out, "\n");
    }
    if (s->keep == 0)
        moe_buf_text(out, "Choices and weights only, no scores\n");
    else
        moe_buf_printf(out, "Scores of the best %" PRIu32 " experts by the router", s->keep);
    for (int i = 0; i < MOE_N_PREDICTORS; i++)
        if (s->predictors & 1u << i)
            moe_buf_printf(out, ", %s", moe_predictor_name((enum moe_predictor)i));
    moe_buf_printf(out, "%s%s in the file, %.0f bytes per token\n", s->keep ? "\n" : "",
                   moe_format_bytes(moe_trace_file_bytes(t), bytes[0]), bytes_per_token(t));
}

void moe_show_trace_json(const struct moe_trace *t, struct moe_buf *out)
{
    const struct moe_trace_shape *s = moe_trace_shape(t);
    const struct moe_trace_totals *n = moe_trace_totals(t);
    struct moe_record_writer w = {.whole = t};
    struct moe_emit *e = &w.emit;
    moe_emit_begin_json(e, out, MOE_EMIT_LINE);
    moe_emit_u64(e, "sequences", n->sequences);
    moe_emit_u64(e, "tokens", n->tokens);
    moe_emit_u64(e, "prompt_tokens", n->prompt_tokens);
    moe_emit_fingerprint(e, "source_fingerprint", s->source_fingerprint);
    moe_record_write_map(&w, &moe_origins_record, moe_trace_origins(t));
    moe_emit_u64(e, "layers", s->n_layers);
    moe_emit_u64(e, "experts", s->n_experts);
    moe_emit_u64(e, "top_k", s->top_k);
    if (n_static(s))
        moe_emit_u64(e, "static_layers", n_static(s));
    moe_emit_open_list(e, "variants");
    for (uint32_t v = 0; v < s->n_variants; v++) {
        struct sizes size = sizes_of(s, v);
        moe_emit_open_map(e, NULL);
        moe_emit_text(e, "name", s->variants[v]);
        moe_emit_u64(e, "expert_bytes_min", size.most ? size.least : 0);
        moe_emit_u64(e, "expert_bytes_max", size.most);
        moe_emit_close(e);
    }
    moe_emit_close(e);
    moe_emit_u64(e, "keep", s->keep);
    moe_emit_open_list(e, "predictors");
    for (int i = 0; i < MOE_N_PREDICTORS; i++)
        if (s->predictors & 1u << i)
            moe_emit_text(e, NULL, moe_predictor_name((enum moe_predictor)i));
    moe_emit_close(e);
    moe_emit_u64(e, "file_bytes", moe_trace_file_bytes(t));
    moe_emit_fixed(e, "bytes_per_token", 1, bytes_per_token(t));
    moe_emit_end(e, NULL); /* the caller looks at the buffer */
}
