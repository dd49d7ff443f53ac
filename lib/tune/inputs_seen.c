/* Inputs that matrices see on texts, for rounding that knows them (gptq). */
#include "tune/inputs_seen.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "fmt/checkpoint.h"
#include "model/read.h"
#include "model/tensor_roles.h"
#include "quant/cholesky.h"
#include "tune/rerun.h"

enum { CHUNK = 256 /* tokens whose activations are computed at a time */ };

static void place_activations(struct moe_activations *a, struct moe_arena *arena)
{
    const struct moe_config *c = a->config;
    uint32_t ff = c->dense_ff > c->expert_ff ? c->dense_ff : c->expert_ff;
    a->ff_stride = moe_round_up(ff > c->shared_ff ? ff : c->shared_ff, MOE_PANEL_ROWS);
    a->gate = moe_arena_take(arena, CHUNK * a->ff_stride, sizeof *a->gate);
    a->up = moe_arena_take(arena, CHUNK * a->ff_stride, sizeof *a->up);
    moe_inputs_carve(&a->inputs, arena, CHUNK, c->hidden);
}

static int activations_open(struct moe_activations *a, const struct moe_config *config,
                            struct moe_err *err)
{
    struct moe_arena arena = {0};
    *a = (struct moe_activations){.config = config};
    place_activations(a, &arena);
    a->block = moe_alloc(arena.used, 1, err);
    if (!a->block)
        return MOE_ERR_MEMORY;
    arena = (struct moe_arena){.base = a->block, .size = arena.used};
    place_activations(a, &arena);
    return MOE_OK;
}

static void activations_close(struct moe_activations *a)
{
    free(a->block);
    a->block = NULL;
}

/* Adds the second moments of n tokens' activations to moments[width][width], where width is
 * ffn->up.rows. inputs: [tokens][hidden]; rows: [n] those meant, NULL: the first n. */
static void activations_add(struct moe_activations *a, const struct moe_ffn *ffn,
                            const float *inputs, const uint32_t *rows, uint32_t n, double *moments)
{
    uint32_t width = ffn->up.rows, hidden = a->config->hidden;
    for (uint32_t first = 0; first < n; first += CHUNK) {
        uint32_t here = n - first < CHUNK ? n - first : CHUNK;
        moe_inputs_set(&a->inputs, inputs + (rows ? 0 : first * (uint64_t)hidden), hidden,
                       rows ? rows + first : NULL, here, hidden);
        struct moe_mm mm[2] = {
            moe_inputs_mm(&a->inputs, ffn->up, a->up, a->ff_stride),
        };
        if (ffn->gate.data)
            mm[1] = moe_inputs_mm(&a->inputs, ffn->gate, a->gate, a->ff_stride);
        moe_matmul(mm, ffn->gate.data ? 2 : 1);
        for (uint32_t i = 0; i < here; i++)
            moe_activate_row(a->config, ffn->layer, ffn->view, width, NULL,
                             a->gate + i * a->ff_stride, a->up + i * a->ff_stride);
        moe_moments_add(moments, width, a->gate, a->ff_stride, NULL, here);
    }
}

/* What matrices see of texts (inputs_seen.h). */

/* What is added to the diagonal, as a share of its mean: the published 1%, and the inputs'
 * dimensions per token. Few tokens tell little about how columns correlate, and codes that rely on
 * it would serve these tokens at the expense of all others. */
static double damping(uint32_t width, uint32_t n)
{
    return 0.01 + (double)width / n;
}

/* Where a matrix's inputs come from. */
enum kind {
    INTO_ATTENTION,
    INTO_OUTPUT, /* attention's own */
    INTO_FFN,
    N_KEPT,
    INTO_DOWN = N_KEPT, /* activations of INTO_FFN */
    UNKNOWN,
};

/* A factor and whose it is. */
struct slot {
    double *factor;
    bool filled, known;
    enum kind kind;
    uint32_t layer, expert; /* UINT32_MAX: of no expert */
};

struct moe_inputs_seen {
    struct moe_convert_inputs for_convert;
    struct moe_model *model;
    struct moe_experts *experts;
    struct moe_corpus *corpus;
    struct moe_rerun *rerun;
    uint8_t *table; /* zeros: every expert at its best */
    struct moe_rule_table best;
    bool looked;             /* the layer after the states has run; what it saw: */
    uint64_t first, n_rows;  /* rows kept before the current pass, and of it */
    uint32_t widths[N_KEPT]; /* of inputs, in floats */
    float *kept[N_KEPT];     /* [n_predicted][width] */
    uint32_t *chosen;        /* [n_predicted][top_k] */
    uint32_t *rows;          /* [n_predicted] those of one expert */
    struct slot slots[2];    /* of matrices into a feed-forward or attention, and out of them */
    struct moe_convert_rare *rare; /* [n_rare] */
    bool *is_rare;                 /* [layer][expert] whether it is there */
    struct moe_activations activations;
};

/* ---- Running a layer ---- */

static void keep_inputs(struct moe_inputs_seen *seen, enum kind kind, const float *x,
                        uint64_t stride)
{
    uint32_t width = seen->widths[kind];
    for (uint64_t i = 0; i < seen->n_rows; i++)
        memcpy(seen->kept[kind] + (seen->first + i) * width, x + i * stride, width * sizeof *x);
}

static void see_attention(void *ctx, uint32_t layer, uint32_t n_rows, const float *input,
                          uint64_t stride)
{
    struct moe_inputs_seen *seen = ctx;
    seen->first += seen->n_rows;
    seen->n_rows = n_rows;
    keep_inputs(seen, INTO_ATTENTION, input, stride);
}

static void see_attended(void *ctx, uint32_t layer, const float *output, uint64_t output_stride,
                         const float *norm, uint64_t norm_stride)
{
    struct moe_inputs_seen *seen = ctx;
    if (output)
        keep_inputs(seen, INTO_OUTPUT, output, output_stride);
    keep_inputs(seen, INTO_FFN, norm, norm_stride);
}

static void see_routed(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                       const float *gate_input, uint64_t hidden_stride, const float *probabilities,
                       uint64_t router_stride, const uint32_t *chosen, const float *weights)
{
    struct moe_inputs_seen *seen = ctx;
    uint32_t k = seen->model->config.top_k;
    memcpy(seen->chosen + seen->first * k, chosen, (uint64_t)n_rows * k * sizeof *chosen);
}

/* Runs the texts through the layers up to this one and keeps what its matrices see. */
static int advance_layer(struct moe_inputs_seen *seen, uint32_t layer, struct moe_err *err)
{
    const struct moe_rule rule = moe_rule_of_table(&seen->best);
    int status = MOE_OK;
    if (layer < moe_rerun_layer(seen->rerun)) {
        moe_rerun_rewind(seen->rerun);
        seen->looked = false;
    }
    while (status == MOE_OK && (!seen->looked || moe_rerun_layer(seen->rerun) < layer)) {
        if (seen->looked)
            moe_rerun_step(seen->rerun);
        seen->first = seen->n_rows = 0;
        status = moe_rerun_look(seen->rerun, &rule, NULL, err);
        seen->looked = status == MOE_OK;
    }
    return status;
}

/* ---- Activations ---- */

/* An expert's activations: its best weights are read for it. */
static int add_expert_activations(struct moe_inputs_seen *seen, uint32_t layer, uint32_t expert,
                                  uint32_t n, double *moments, struct moe_err *err)
{
    struct moe_expert_view view = {.layer = layer, .expert = expert};
    struct moe_arena arena = {0};
    while (!moe_pack_expert(seen->model->pack, layer, expert, view.variant)->present)
        view.variant++; /* moe_model_open has seen one */
    int status = moe_expert_view_read(&view, seen->model->pack, &arena, err);
    uint8_t *block = moe_alloc(arena.used, 1, err);
    arena = (struct moe_arena){.base = block, .size = arena.used};
    if (!block)
        return MOE_ERR_MEMORY;
    if (status == MOE_OK)
        status = moe_expert_view_read(&view, seen->model->pack, &arena, err);
    if (status == MOE_OK) {
        const struct moe_ffn ffn = {view.gate, view.up, &view, layer};
        activations_add(&seen->activations, &ffn, seen->kept[INTO_FFN], seen->rows, n, moments);
    }
    free(block);
    return status;
}

/* ---- Factors ---- */

static enum kind kind_of(const struct moe_config *config, const struct moe_matrix_name *matrix)
{
    if (matrix->of_expert)
        return matrix->role == MOE_E_DOWN ? INTO_DOWN : INTO_FFN;
    switch (matrix->role) {
    case MOE_T_Q:
        return config->q_rank ? UNKNOWN : INTO_ATTENTION;
    case MOE_T_Q_DOWN:
    case MOE_T_K:
    case MOE_T_V:
    case MOE_T_KV_DOWN:
    case MOE_T_ATTN_GATE:
    case MOE_T_STATE_V:
    case MOE_T_STATE_SCALE:
        return INTO_ATTENTION;
    case MOE_T_STATE_Z: /* of KDA made of a vector, and these of Mamba of values */
        return config->state_kind == MOE_STATE_KDA ? UNKNOWN : INTO_ATTENTION;
    case MOE_T_STATE_Q:
    case MOE_T_STATE_K:
        return config->state_step_rank ? UNKNOWN : INTO_ATTENTION;
    case MOE_T_O: /* layers of two widths */
        return config->global_head_dim ? UNKNOWN : INTO_OUTPUT;
    case MOE_T_GATE:
    case MOE_T_UP:
    case MOE_T_SHARED_GATE:
        return INTO_FFN;
    case MOE_T_SHARED_GATE_PROJ: /* perhaps under another norm than the experts' */
    case MOE_T_SHARED_UP:
        return config->own_norms ? UNKNOWN : INTO_FFN;
    case MOE_T_SHARED_DOWN:
        return config->own_norms ? UNKNOWN : INTO_DOWN;
    case MOE_T_DOWN:
        return INTO_DOWN;
    default:
        return UNKNOWN;
    }
}

/* Lists the rows that were routed to an expert. */
static uint32_t find_rows(struct moe_inputs_seen *seen, uint32_t expert)
{
    uint32_t n = 0, k = seen->model->config.top_k;
    for (uint64_t i = 0; i < seen->corpus->n_predicted; i++)
        for (uint32_t j = 0; j < k; j++)
            if (seen->chosen[i * k + j] == expert)
                seen->rows[n++] = (uint32_t)i;
    return n;
}

/* Notes an expert once: factors are asked for matrix by matrix, and again where bits are shared out
 * before experts are rounded. */
static void note_rare(struct moe_inputs_seen *seen, uint32_t layer, uint32_t expert, uint32_t n)
{
    bool *noted = &seen->is_rare[(uint64_t)layer * seen->model->config.n_experts + expert];
    if (!*noted)
        seen->rare[seen->for_convert.n_rare++] = (struct moe_convert_rare){layer, expert, n};
    *noted = true;
}

static void forget_rare(void *ctx)
{
    struct moe_inputs_seen *seen = ctx;
    const struct moe_config *c = &seen->model->config;
    memset(seen->is_rare, 0, (uint64_t)c->n_layers * c->n_experts * sizeof *seen->is_rare);
    seen->for_convert.n_rare = 0;
}

static void note_kept(void *ctx, uint32_t layer, uint32_t expert, uint32_t n)
{
    note_rare(ctx, layer, expert, n);
}

static int add_moments(struct moe_inputs_seen *seen, const struct slot *slot, uint32_t n,
                       uint32_t width, struct moe_err *err)
{
    const uint32_t *rows = slot->expert == UINT32_MAX ? NULL : seen->rows;
    if (slot->kind < N_KEPT) {
        moe_moments_add(slot->factor, width, seen->kept[slot->kind], width, rows, n);
    } else if (rows) {
        return add_expert_activations(seen, slot->layer, slot->expert, n, slot->factor, err);
    } else {
        const struct moe_layer *l = &seen->model->layers[slot->layer];
        const struct moe_ffn ffn = {l->gate, l->up, NULL, slot->layer};
        activations_add(&seen->activations, &ffn, seen->kept[INTO_FFN], NULL, n, slot->factor);
    }
    return MOE_OK;
}

static int fill(struct moe_inputs_seen *seen, struct slot *slot, struct moe_err *err)
{
    uint32_t n = (uint32_t)seen->corpus->n_predicted, width;
    MOE_TRY(advance_layer(seen, slot->layer, err));
    if (slot->expert != UINT32_MAX)
        n = find_rows(seen, slot->expert);
    slot->known = n >= MOE_LEAST_INPUTS;
    if (!slot->known) {
        if (slot->expert != UINT32_MAX)
            note_rare(seen, slot->layer, slot->expert, n);
        return MOE_OK;
    }
    if (slot->kind < N_KEPT)
        width = seen->widths[slot->kind];
    else
        width = slot->expert == UINT32_MAX ? seen->model->layers[slot->layer].up.rows
                                           : seen->model->config.expert_ff;
    free(slot->factor);
    slot->factor = moe_alloc((uint64_t)width * width, sizeof *slot->factor, err);
    if (!slot->factor)
        return MOE_ERR_MEMORY;
    MOE_TRY(add_moments(seen, slot, n, width, err));
    moe_moments_damp(slot->factor, width, damping(width, n));
    if (!moe_cholesky(slot->factor, width))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: layer %u computes values that are not finite on these texts",
                        moe_pack_path(seen->model->pack), slot->layer);
    return MOE_OK;
}

static int find_factor(void *ctx, const struct moe_matrix_name *matrix, const double **factor,
                       struct moe_err *err)
{
    struct moe_inputs_seen *seen = ctx;
    enum kind kind = kind_of(&seen->model->config, matrix);
    uint32_t expert = matrix->of_expert ? matrix->expert : UINT32_MAX;
    *factor = NULL;
    if (kind == UNKNOWN)
        return MOE_OK;
    struct slot *slot = &seen->slots[kind == INTO_OUTPUT || kind == INTO_DOWN];
    int status = MOE_OK;
    if (!slot->filled || slot->kind != kind || slot->layer != matrix->layer ||
        slot->expert != expert) {
        slot->kind = kind;
        slot->layer = matrix->layer;
        slot->expert = expert;
        status = fill(seen, slot, err);
        slot->filled = status == MOE_OK;
    }
    if (status == MOE_OK && slot->known)
        *factor = slot->factor;
    return status;
}

/* ---- Opening ---- */

static int open_buffers(struct moe_inputs_seen *seen, struct moe_err *err)
{
    const struct moe_config *c = &seen->model->config;
    uint64_t n = seen->corpus->n_predicted, n_experts = (uint64_t)c->n_layers * c->n_experts;
    seen->widths[INTO_ATTENTION] = seen->widths[INTO_FFN] = c->hidden;
    seen->widths[INTO_OUTPUT] = c->n_heads * c->value_dim;
    bool there = true;
    for (int i = 0; i < N_KEPT && there; i++) {
        seen->kept[i] = moe_alloc(n, seen->widths[i] * sizeof *seen->kept[i], err);
        there = seen->kept[i] != NULL;
    }
    there = there && (seen->chosen = moe_alloc(n * c->top_k, sizeof *seen->chosen, err)) &&
            (seen->rows = moe_alloc(n, sizeof *seen->rows, err)) &&
            (seen->table = moe_alloc(n_experts, 1, err)) &&
            (seen->rare = moe_alloc(n_experts, sizeof *seen->rare, err)) &&
            (seen->is_rare = moe_alloc(n_experts, sizeof *seen->is_rare, err));
    seen->best = (struct moe_rule_table){seen->table, c->n_experts, c->top_k};
    return there ? activations_open(&seen->activations, c, err) : MOE_ERR_MEMORY;
}

static int read_texts(struct moe_inputs_seen *seen, const struct moe_inputs_options *o,
                      struct moe_err *err)
{
    uint32_t longest = o->max_tokens ? o->max_tokens : MOE_INPUTS_DOC_TOKENS;
    if (longest > seen->model->config.context_max)
        longest = seen->model->config.context_max;
    const struct moe_documents documents = {
        .tokenizer = seen->model->tokenizer,
        .max_tokens = longest,
        .max_windows = o->max_windows,
        .separator = o->bundled ? MOE_BUNDLED_SEPARATOR : NULL,
        .progress = o->progress,
    };
    const int status = moe_corpus_read(&seen->corpus, &documents, o->texts, o->n_texts, err);
    if (status != MOE_OK && o->bundled)
        moe_err_rename(err, o->texts[0], "the bundled texts");
    MOE_TRY(status);
    const uint64_t tokens = seen->corpus->n_predicted, n = seen->corpus->n_documents;
    moe_corpus_thin_out(seen->corpus, MOE_MOST_INPUTS);
    if (o->left_out) {
        o->left_out[0] = seen->corpus->left_out;
        o->left_out[1] = (struct moe_left_out){tokens - seen->corpus->n_predicted, tokens,
                                               n - seen->corpus->n_documents};
    }
    seen->for_convert.n_tokens = seen->corpus->n_predicted;
    seen->for_convert.hash =
        moe_hash64(seen->corpus->ids, seen->corpus->n_tokens * sizeof *seen->corpus->ids);
    return moe_model_load(seen->model, seen->corpus->longest, NULL, o->progress, err);
}

static int open_run(struct moe_inputs_seen *seen, const struct moe_inputs_options *o,
                    struct moe_err *err)
{
    const struct moe_pack *pack = seen->model->pack;
    const struct moe_rerun_options options = {
        .keeps_states = true, .n_variants = moe_pack_n_variants(pack), .progress = o->progress};
    uint64_t least, all;
    moe_experts_every_bytes(pack, &least, &all);
    MOE_TRY(moe_experts_open_every(&seen->experts, pack, least, o->progress, err));
    MOE_TRY(moe_rerun_open(&seen->rerun, seen->model, seen->experts, seen->corpus, &options, err));
    moe_rerun_session(seen->rerun)->observer = (struct moe_observer){
        .ctx = seen, .attending = see_attention, .attended = see_attended, .routed = see_routed};
    return MOE_OK;
}

uint64_t moe_inputs_seen_bytes(const struct moe_model *model, const struct moe_corpus *corpus)
{
    const struct moe_config *c = &model->config;
    const struct moe_rerun_options rerun = {.keeps_states = true,
                                            .n_variants = moe_pack_n_variants(model->pack)};
    uint64_t least, all, n = corpus->n_predicted, attended = (uint64_t)c->n_heads * c->value_dim;
    uint64_t widest = c->hidden > attended ? c->hidden : attended;
    widest = widest > c->dense_ff ? widest : c->dense_ff;
    widest = widest > c->shared_ff ? widest : c->shared_ff;
    widest = widest > c->expert_ff ? widest : c->expert_ff;
    moe_experts_every_bytes(model->pack, &least, &all);
    n = n > MOE_MOST_INPUTS ? MOE_MOST_INPUTS : n;
    return model->weights_bytes + least + moe_rerun_bytes(c, corpus, &rerun) +
           n * (2 * c->hidden + attended + c->top_k + 1) * sizeof(float) +
           2 * widest * widest * sizeof(double);
}

static int check_model(const struct moe_config *c, const char *path, struct moe_err *err)
{
    if (!c->n_encoder && !c->expert_dim)
        return MOE_OK;
    return moe_fail(err, MOE_ERR_UNSUPPORTED,
                    "%s: inputs of matrices are measured in models without an encoder and without "
                    "experts in a space of their own",
                    path);
}

int moe_inputs_seen_open(struct moe_inputs_seen **out, const char *pack_path,
                         const struct moe_inputs_options *options, struct moe_err *err)
{
    *out = NULL;
    struct moe_inputs_seen *seen = moe_alloc(1, sizeof *seen, err);
    if (!seen)
        return MOE_ERR_MEMORY;
    int status;
    MOE_STEP(moe_model_open_directory(&seen->model, pack_path, err));
    MOE_STEP(check_model(&seen->model->config, pack_path, err));
    MOE_STEP(read_texts(seen, options, err));
    MOE_STEP(open_buffers(seen, err));
    MOE_STEP(open_run(seen, options, err));
    seen->for_convert.ctx = seen;
    seen->for_convert.factor = find_factor;
    seen->for_convert.forget_rare = forget_rare;
    seen->for_convert.note_rare = note_kept;
    seen->for_convert.least_tokens = MOE_LEAST_INPUTS;
    seen->for_convert.bundled = options->bundled;
    seen->for_convert.rare = seen->rare;
    *out = seen;
    return MOE_OK;
out:
    moe_inputs_seen_close(seen);
    return status;
}

const struct moe_convert_inputs *moe_inputs_seen_of(const struct moe_inputs_seen *seen)
{
    return &seen->for_convert;
}

void moe_inputs_seen_close(struct moe_inputs_seen *seen)
{
    if (!seen)
        return;
    moe_rerun_close(seen->rerun);
    moe_experts_close(seen->experts);
    moe_corpus_free(seen->corpus);
    moe_model_close(seen->model);
    for (int i = 0; i < N_KEPT; i++)
        free(seen->kept[i]);
    for (int i = 0; i < 2; i++)
        free(seen->slots[i].factor);
    free(seen->chosen);
    free(seen->rows);
    free(seen->table);
    free(seen->rare);
    free(seen->is_rare);
    activations_close(&seen->activations);
    free(seen);
}

/* ---- Error-aware rounding ---- */

enum { NAMED = 16 /* rare experts in a note; the provenance lists all */ };

/* A missing text should show before hours of conversion. */
static int check_texts(const struct moe_inputs_options *inputs, struct moe_err *err)
{
    for (uint32_t i = 0; i < inputs->n_texts; i++) {
        uint64_t size;
        int fd = moe_file_open(inputs->texts[i], &size, err);
        if (fd < 0)
            return fd;
        close(fd);
    }
    return MOE_OK;
}

/* Converts the checkpoint to 16 bits, or to 32 where 32 are wanted; a quantized one to its own
 * codes, which the second step leaves as they are where no fewer bits are asked for. The pack of a
 * dense model has no experts to quantize. */
static int make_original(const char *source, const char *path, struct moe_convert_options *options,
                         struct moe_err *err)
{
    struct moe_convert_options original = *options;
    struct moe_convert_report report;
    int bits = 16;
    for (int i = 0; i < options->n_experts; i++)
        if (options->experts[i].gate_up == 32 || options->experts[i].down == 32)
            bits = 32;
    original.experts[0] = (struct moe_bits){bits, bits};
    original.n_experts = 1;
    original.dense_bits = options->dense_bits == 32 ? 32 : 16;
    original.own_experts = original.own_dense = true;
    original.exact_experts = !options->own_experts;
    original.exact_dense = !options->own_dense;
    original.zstd_level = 0;
    original.map = NULL; /* only the second step applies it */
    MOE_TRY(moe_convert_checkpoint(source, path, &original, &report, err));
    if (report.expert_weights == 0 || (report.kept_experts && options->own_experts))
        options->n_experts = 0;
    if (report.kept_dense && options->own_dense)
        options->dense_bits = 0;
    options->of_quantized = report.carried + report.requantized > 0;
    return MOE_OK;
}

/* How far an error-aware conversion came. */
enum stage { ORIGINAL, TEXTS, CONVERSION };

/* A model that the options do not suit, or whose inputs are not measured, should show before its
 * checkpoint is converted. What a description is refused for that says. *stage: TEXTS in the latter
 * case. */
static int check_source(const char *source, const struct moe_convert_options *options,
                        enum stage *stage, struct moe_err *err)
{
    struct moe_config *config = moe_alloc(1, sizeof *config, err);
    struct moe_checkpoint *checkpoint = NULL;
    struct moe_err ignored;
    int status = config ? MOE_OK : MOE_ERR_MEMORY;
    if (status == MOE_OK &&
        (moe_path_is_directory(source)
             ? moe_config_read_hf(config, source, &ignored) == MOE_OK
             : moe_checkpoint_open(&checkpoint, source, &ignored) == MOE_OK &&
                   moe_config_read_gguf(config, checkpoint, &ignored) == MOE_OK)) {
        *stage = CONVERSION;
        status = moe_convert_check_experts(source, config->n_experts, options, err);
        if (status == MOE_OK) {
            *stage = TEXTS;
            status = check_model(config, source, err);
        }
    }
    moe_checkpoint_close(checkpoint);
    free(config);
    return status;
}

static void describe_inputs(const struct moe_convert_inputs *inputs, struct moe_buf *note)
{
    moe_buf_printf(note, "inputs of %llu tokens%s", (unsigned long long)inputs->n_tokens,
                   inputs->bundled ? " of the bundled texts: stories, sums, code" : "");
    if (inputs->n_rare == 0)
        return;
    moe_buf_printf(note, "; %u %s in fewer than %u and rounded as without texts:", inputs->n_rare,
                   inputs->n_rare == 1 ? "expert was seen" : "experts were seen",
                   inputs->least_tokens);
    for (uint32_t i = 0; i < inputs->n_rare && i < NAMED; i++)
        moe_buf_printf(note, "%s layer %u expert %u", i ? "," : "", inputs->rare[i].layer,
                       inputs->rare[i].expert);
    if (inputs->n_rare > NAMED)
        moe_buf_text(note, ", ... (the pack's provenance has all)");
}

/* The same of a pack, before texts are read. */
static int check_pack(const char *path, const struct moe_convert_options *options,
                      struct moe_err *err)
{
    struct moe_pack *pack = NULL;
    int status = moe_pack_open(&pack, path, err);
    if (status == MOE_OK)
        status = moe_convert_check_experts(path, moe_pack_n_experts(pack), options, err);
    moe_pack_close(pack);
    return status;
}

/* *stage: whether the texts can be run, and the conversion began. Bundled texts are not run where
 * all is copied. */
static int convert_pack(const char *pack, const char *out_path,
                        const struct moe_convert_options *options,
                        const struct moe_inputs_options *inputs, enum stage *stage,
                        struct moe_convert_report *report, struct moe_buf *note,
                        struct moe_err *err)
{
    struct moe_convert_options aware = *options;
    struct moe_inputs_seen *seen = NULL;
    bool rounds = true;
    int status;
    *stage = CONVERSION;
    MOE_STEP(check_pack(pack, options, err));
    if (inputs->bundled && options->mean_bits == 0 && !options->target_bytes)
        MOE_STEP(moe_convert_rounds(pack, out_path, options, &rounds, err));
    if (!rounds)
        return moe_convert_pack(pack, out_path, options, report, err);
    *stage = TEXTS;
    MOE_STEP(moe_inputs_seen_open(&seen, pack, inputs, err));
    *stage = CONVERSION;
    aware.inputs = moe_inputs_seen_of(seen);
    MOE_STEP(moe_convert_pack(pack, out_path, &aware, report, err));
    if (note)
        describe_inputs(aware.inputs, note);
out:
    moe_inputs_seen_close(seen);
    return status;
}

/* The pack in between has no name: it is gone with the process, however that ends. */
static int convert_through_original(const char *source, const char *out_path,
                                    const struct moe_convert_options *options,
                                    const struct moe_inputs_options *inputs, enum stage *stage,
                                    struct moe_convert_report *report, struct moe_buf *note,
                                    struct moe_err *err)
{
    struct moe_convert_options wanted = *options;
    char original[MOE_DESCRIPTOR_PATH], *target = NULL, *dir = NULL;
    int fd = -1, status;
    MOE_STEP(check_source(source, options, stage, err));
    *stage = ORIGINAL;
    MOE_STEP(moe_outfile_try(out_path, err));
    MOE_STEP(moe_path_follow(&target, out_path, err));
    dir = moe_path_directory(target, err);
    MOE_STEP(dir ? MOE_OK : MOE_ERR_MEMORY);
    fd = moe_file_nameless(dir, original, err);
    MOE_STEP(fd < 0 ? fd : MOE_OK);
    /* What cannot be written there is the output's matter, what it has the source's. */
    status = make_original(source, original, &wanted, err);
    if (status != MOE_OK)
        moe_err_rename(err, original, out_path);
    MOE_STEP(status);
    status = convert_pack(original, out_path, &wanted, inputs, stage, report, note, err);
    if (status != MOE_OK)
        moe_err_rename(err, original, source);
out:
    if (fd >= 0)
        close(fd);
    free(dir);
    free(target);
    return status;
}

/* Says what to type where texts are no use, as *err says. `keeps`: of a checkpoint, which without
 * texts is not converted in parts. */
static int refuse_texts(const char *source, const struct moe_convert_options *options, bool keeps,
                        struct moe_err *err)
{
    const struct moe_err why = *err;
    const bool named = strncmp(why.text, source, strlen(source)) == 0;
    const char *instead = options->method->trellis ? "--text none does without texts"
                                                   : "--method best --text none does without texts";
    if (options->mean_bits > 0)
        instead = "--bits shares bits out by texts; --experts BITS --text none does without them";
    else if (options->target_bytes)
        instead = "--target shares bits out by texts; --experts BITS --dense BITS --text none does "
                  "without them";
    return moe_fail(err, why.status, "%s%s%s; %s%s", named ? "" : source, named ? "" : ": ",
                    why.text, instead, keeps ? ", and without --resume, --shard and --join" : "");
}

int moe_convert_error_aware(const char *source, bool is_checkpoint, const char *out_path,
                            const struct moe_convert_options *options,
                            const struct moe_inputs_options *inputs,
                            struct moe_convert_report *report, struct moe_buf *note,
                            struct moe_err *err)
{
    const bool shares = options->mean_bits > 0 || options->target_bytes,
               keeps = options->keeps || options->n_shards || options->n_joined;
    enum stage stage = ORIGINAL;
    MOE_TRY(check_texts(inputs, err));
    int status = (is_checkpoint ? convert_through_original : convert_pack)(
        source, out_path, options, inputs, &stage, report, note, err);
    if (status == MOE_OK || status == MOE_ERR_INTERRUPTED || stage == CONVERSION)
        return status;
    if (!inputs->bundled || shares || (is_checkpoint && keeps))
        return stage == TEXTS && (status == MOE_ERR_USAGE || status == MOE_ERR_UNSUPPORTED)
                   ? refuse_texts(source, options, is_checkpoint && keeps, err)
                   : status;
    if (note)
        moe_buf_printf(note, "rounded without the bundled texts: %s", err->text);
    return (is_checkpoint ? moe_convert_checkpoint : moe_convert_pack)(source, out_path, options,
                                                                       report, err);
}
