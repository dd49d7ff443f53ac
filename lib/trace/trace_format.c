#include "trace/trace_format.h"

#include <string.h>

/* Files have these numbers. */
_Static_assert(MOE_PREDICT_GATE_1 == 1 && MOE_PREDICT_ATTN == 4 && MOE_PREDICT_ATTN_1 == 5 &&
                   MOE_PREDICT_RESIDUAL_1 == 6 && MOE_PREDICT_RESIDUAL_3 == 8,
               "moe-trace(5) numbers predictors");

uint32_t moe_trace_default_keep(uint32_t n_experts, uint32_t top_k)
{
    uint32_t quarter = (n_experts + 3) / 4, keep = quarter > 2 * top_k ? quarter : 2 * top_k;
    return keep < n_experts ? keep : n_experts;
}

uint32_t moe_trace_first_layer(enum moe_predictor predictor)
{
    switch (predictor) {
    case MOE_PREDICT_GATE_1:
    case MOE_PREDICT_ATTN_1:
    case MOE_PREDICT_RESIDUAL_1:
        return 1;
    case MOE_PREDICT_GATE_2:
    case MOE_PREDICT_RESIDUAL_2:
        return 2;
    case MOE_PREDICT_GATE_3:
    case MOE_PREDICT_RESIDUAL_3:
        return 3;
    default:
        return 0;
    }
}

bool moe_trace_predicts(const struct moe_trace_shape *shape, enum moe_predictor predictor,
                        uint32_t layer)
{
    uint32_t first = layer < shape->n_encoder ? 0 : shape->n_encoder;
    return layer - first >= moe_trace_first_layer(predictor) && !shape->is_static[layer];
}

static void add_column(struct trace_layout *f, const struct moe_trace_shape *shape, bool is_ids,
                       uint32_t n, uint32_t first_layer, uint32_t needs)
{
    uint32_t *width = is_ids ? &f->n_ids : &f->n_scores;
    if (n == 0)
        return;
    f->columns[f->n_columns++] = (struct trace_column){is_ids, *width, n, first_layer, needs};
    *width += n;
    if (first_layer < shape->n_layers)
        f->token_bytes +=
            (uint64_t)n * (is_ids ? f->id_bytes : 2) * (shape->n_layers - first_layer);
}

struct trace_layout trace_layout_of(const struct moe_trace_shape *shape)
{
    struct trace_layout f = {.id_bytes = shape->n_experts > 256 ? 2 : 1};
    uint32_t k = shape->top_k, keep = shape->keep;
    f.n_router = keep > k ? keep : k;
    f.token_bytes = shape->n_layers + /* whether each was computed */
                    (shape->has_ids ? TRACE_TOKEN_ID_BYTES : 0);
    add_column(&f, shape, true, k, 0, 0);
    add_column(&f, shape, false, k, 0, 0);
    f.router_scores = f.n_scores;
    if (keep > 0) {
        add_column(&f, shape, true, f.n_router - k, 0, MOE_TRACE_NEXT_BEST);
        add_column(&f, shape, false, f.n_router, 0, MOE_TRACE_NEXT_BEST);
    }
    for (int i = 0; i < MOE_N_PREDICTORS; i++) {
        if (!(shape->predictors & 1u << i))
            continue;
        uint32_t first = moe_trace_first_layer((enum moe_predictor)i);
        f.predicted_ids[i] = f.n_ids;
        f.predicted_scores[i] = f.n_scores;
        add_column(&f, shape, true, keep, first, 1u << i);
        add_column(&f, shape, false, keep, first, 1u << i);
    }
    f.frame_tokens = (uint32_t)(TRACE_FRAME_BYTES / f.token_bytes);
    f.frame_tokens = f.frame_tokens > TRACE_MAX_FRAME_TOKENS ? TRACE_MAX_FRAME_TOKENS
                     : f.frame_tokens == 0                   ? 1
                                                             : f.frame_tokens;
    return f;
}

uint32_t trace_version(const struct moe_trace_shape *shape)
{
    bool any = memchr(shape->is_static, 1, shape->n_layers) != NULL;
    return shape->has_ids ? MOE_TRACE_VERSION : any ? 4 : shape->n_encoder ? 3 : 2;
}

uint64_t trace_description_bytes(const struct moe_trace_shape *shape)
{
    return shape->n_variants *
           (MOE_PACK_NAME_BYTES + sizeof(uint64_t) * (uint64_t)shape->n_layers * shape->n_experts);
}

bool trace_same_shape(const struct moe_trace_shape *a, const struct moe_trace_shape *b)
{
    bool same = a->n_layers == b->n_layers && a->n_experts == b->n_experts &&
                a->n_encoder == b->n_encoder && a->top_k == b->top_k && a->keep == b->keep &&
                a->predictors == b->predictors && a->n_variants == b->n_variants &&
                a->source_fingerprint == b->source_fingerprint && a->has_ids == b->has_ids &&
                memcmp(a->is_static, b->is_static, a->n_layers) == 0;
    for (uint32_t v = 0; same && v < a->n_variants; v++)
        same = strcmp(a->variants[v], b->variants[v]) == 0;
    uint64_t n = (uint64_t)a->n_variants * a->n_layers * a->n_experts;
    if (same && n && a->expert_bytes && b->expert_bytes)
        same = memcmp(a->expert_bytes, b->expert_bytes, n * sizeof *a->expert_bytes) == 0;
    return same;
}

const char *trace_shape_problem(const struct moe_trace_shape *s)
{
    if (s->n_layers == 0 || s->n_layers > MOE_PACK_MAX_LAYERS || s->n_experts == 0 ||
        s->n_experts > MOE_PACK_MAX_EXPERTS ||
        (uint64_t)s->n_layers * s->n_experts > MOE_RECORD_MAX_EXPERTS)
        return "no or too many layers or experts";
    if (s->n_encoder >= s->n_layers)
        return "an encoder and no decoder";
    if (s->top_k == 0 || s->top_k > s->n_experts)
        return "the number of experts chosen is beyond those there are";
    if (s->keep > s->n_experts)
        return "more scores kept than there are experts";
    if ((s->predictors & ~(uint32_t)MOE_TRACE_PREDICTORS) != 0 || (s->predictors && !s->keep))
        return "predictors that a trace cannot hold";
    if (s->n_variants > MOE_PACK_MAX_VARIANTS)
        return "too many variants";
    if (trace_layout_of(s).token_bytes > TRACE_MAX_FRAME_BYTES)
        return "a token takes too many bytes: keep fewer scores";
    return NULL;
}
