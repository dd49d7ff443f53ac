#include "run/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/family.h"

/* ---- The dense part ---------------------------------------------------------------------------
 */

/* Checks that the pack has the tensor as the description implies it. */
static int expect_tensor(const struct moe_model *m, enum moe_tensor_role role, uint32_t layer,
                         uint32_t rows, uint32_t cols, const struct moe_pack_tensor **out,
                         struct moe_err *err)
{
    char name[MOE_PACK_NAME_BYTES];
    moe_tensor_pack_name(role, layer, name);
    const struct moe_pack_tensor *t = moe_pack_tensor_find(m->pack, name);
    bool vector = moe_tensor_spec(role)->kind == MOE_KIND_VECTOR;
    if (!t)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: tensor '%s' is missing", moe_pack_path(m->pack),
                        name);
    if (t->rows != rows || t->cols != cols || t->is_vector != vector)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: tensor '%s' is %u x %u, expected %u x %u",
                        moe_pack_path(m->pack), name, t->rows, t->cols, rows, cols);
    *out = t;
    return MOE_OK;
}

/* Where the matrix (or, for a vector, the array) of a role goes. */
static struct moe_mat *matrix_slot(struct moe_model *m, struct moe_layer *l,
                                   enum moe_tensor_role role)
{
    switch (role) {
    case MOE_T_EMBED:
        return &m->embed;
    case MOE_T_HEAD:
        return &m->head;
    case MOE_T_Q:
        return &l->q;
    case MOE_T_K:
        return &l->k;
    case MOE_T_V:
        return &l->v;
    case MOE_T_O:
        return &l->o;
    case MOE_T_ROUTER:
        return &l->router;
    case MOE_T_SHARED_GATE:
        return &l->shared_gate;
    case MOE_T_GATE:
    case MOE_T_SHARED_GATE_PROJ:
        return &l->gate;
    case MOE_T_UP:
    case MOE_T_SHARED_UP:
        return &l->up;
    case MOE_T_DOWN:
    case MOE_T_SHARED_DOWN:
        return &l->down;
    default:
        return NULL;
    }
}

static const float **vector_slot(struct moe_model *m, struct moe_layer *l,
                                 enum moe_tensor_role role)
{
    switch (role) {
    case MOE_T_FINAL_NORM:
        return &m->final_norm;
    case MOE_T_ATTN_NORM:
        return &l->attn_norm;
    case MOE_T_FFN_NORM:
        return &l->ffn_norm;
    case MOE_T_Q_BIAS:
        return &l->q_bias;
    case MOE_T_K_BIAS:
        return &l->k_bias;
    case MOE_T_V_BIAS:
        return &l->v_bias;
    default:
        return NULL;
    }
}

static int place_tensor(struct moe_model *m, struct moe_layer *l, enum moe_tensor_role role,
                        const struct moe_pack_tensor *t, uint8_t *at, struct moe_err *err)
{
    char what[MOE_PACK_NAME_BYTES + 16];
    snprintf(what, sizeof what, "tensor '%s'", t->name);
    int status = moe_pack_read(m->pack, &t->extent, at, what, err);
    if (status != MOE_OK)
        return status;
    const float **vector = vector_slot(m, l, role);
    struct moe_mat *matrix = matrix_slot(m, l, role);
    if (vector)
        *vector = (const float *)(const void *)at;
    else
        *matrix = (struct moe_mat){at, t->layout, t->rows, t->cols};
    return MOE_OK;
}

/* Walks over every tensor that the description implies. With arena->base NULL it only checks and
 * measures; with memory it reads. */
static int walk_tensors(struct moe_model *m, struct moe_arena *arena,
                        const struct moe_progress *progress, struct moe_err *err)
{
    const struct moe_config *c = &m->config;
    for (uint32_t layer = 0; layer < c->n_layers; layer++) {
        struct moe_layer *l = &m->layers[layer];
        l->is_moe = c->layer_is_moe[layer];
        for (int role = 0; role < MOE_T_N_ROLES; role++) {
            const struct moe_pack_tensor *t = NULL;
            uint32_t rows, cols;
            if ((!moe_tensor_spec(role)->per_layer && layer > 0) ||
                !moe_tensor_shape(c, role, layer, &rows, &cols))
                continue;
            int status = expect_tensor(m, role, layer, rows, cols, &t, err);
            if (status != MOE_OK)
                return status;
            uint8_t *at = moe_arena_take(arena, t->extent.raw_bytes, 1);
            if (at)
                status = place_tensor(m, l, role, t, at, err);
            if (status != MOE_OK)
                return status;
        }
        l->has_ffn = l->down.data != NULL;
        if (arena->base) {
            moe_progress_report(progress, "loading", arena->used, arena->size);
            if (moe_progress_stopped(progress))
                return moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
        }
    }
    if (arena->overflowed)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: the dense part has an absurd size",
                        moe_pack_path(m->pack));
    return MOE_OK;
}

static int read_dense_part(struct moe_model *m, const struct moe_progress *progress,
                           struct moe_err *err)
{
    m->weights = moe_pages_alloc(m->weights_bytes, err);
    if (!m->weights)
        return MOE_ERR_MEMORY;
    struct moe_arena arena = {.base = m->weights, .size = m->weights_bytes};
    int status = walk_tensors(m, &arena, progress, err);
    if (m->config.tied_head)
        m->head = m->embed;
    return status;
}

/* ---- The experts' shapes ----------------------------------------------------------------------
 */

static int check_class(const struct moe_model *m, const struct moe_expert_class *class_,
                       struct moe_err *err)
{
    const struct moe_config *c = &m->config;
    const struct {
        uint16_t role;
        uint32_t rows, cols;
    } wanted[] = {
        {MOE_ROLE_GATE, c->expert_ff, c->hidden},
        {MOE_ROLE_UP, c->expert_ff, c->hidden},
        {MOE_ROLE_DOWN, c->hidden, c->expert_ff},
    };
    for (int i = 0; i < 3; i++) {
        bool found = false;
        for (uint32_t k = 0; k < class_->n_matrices; k++)
            found |= class_->matrices[k].role == wanted[i].role &&
                     class_->matrices[k].rows == wanted[i].rows &&
                     class_->matrices[k].cols == wanted[i].cols;
        if (!found)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: an expert class lacks the %u x %u matrix of role %u",
                            moe_pack_path(m->pack), wanted[i].rows, wanted[i].cols, wanted[i].role);
    }
    return MOE_OK;
}

/* Every expert of a MoE layer is there in at least one variant, and all have the model's shape. */
static int check_experts(const struct moe_model *m, struct moe_err *err)
{
    for (uint32_t i = 0; i < moe_pack_n_classes(m->pack); i++) {
        int status = check_class(m, moe_pack_class_at(m->pack, i), err);
        if (status != MOE_OK)
            return status;
    }
    for (uint32_t layer = 0; layer < m->config.n_layers; layer++) {
        for (uint32_t e = 0; m->config.layer_is_moe[layer] && e < m->config.n_experts; e++) {
            bool present = false;
            for (uint32_t v = 0; v < moe_pack_n_variants(m->pack); v++)
                present |= moe_pack_expert(m->pack, layer, e, v)->present;
            if (!present)
                return moe_fail(err, MOE_ERR_FORMAT, "%s: layer %u expert %u is missing",
                                moe_pack_path(m->pack), layer, e);
        }
    }
    return MOE_OK;
}

/* ---- The rest ---------------------------------------------------------------------------------
 */

/* cos and sin of position * theta^(-2i/head_dim), in double, rounded once. */
static int make_rope(struct moe_model *m, uint32_t n_positions, struct moe_err *err)
{
    uint32_t half = m->config.head_dim / 2;
    m->rope_positions = n_positions;
    m->rope = moe_alloc((uint64_t)n_positions * half, 2 * sizeof *m->rope, err);
    if (!m->rope)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < half; i++) {
        double frequency = pow(m->config.rope_theta, -2.0 * i / m->config.head_dim);
        for (uint32_t p = 0; p < n_positions; p++) {
            float *cs = m->rope + ((uint64_t)p * half + i) * 2;
            cs[0] = (float)cos(p * frequency);
            cs[1] = (float)sin(p * frequency);
        }
    }
    return MOE_OK;
}

static int read_sections(struct moe_model *m, const char *path, struct moe_err *err)
{
    uint64_t n = 0;
    const uint8_t *bytes = moe_pack_section(m->pack, MOE_PACK_MODEL, &n);
    int status = moe_config_read(&m->config, path, bytes, n, err);
    if (status != MOE_OK)
        return status;
    if (moe_pack_n_layers(m->pack) != m->config.n_layers ||
        moe_pack_n_experts(m->pack) != m->config.n_experts)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: the model has %u layers of %u experts, the directory %u of %u", path,
                        m->config.n_layers, m->config.n_experts, moe_pack_n_layers(m->pack),
                        moe_pack_n_experts(m->pack));
    bytes = moe_pack_section(m->pack, MOE_PACK_TOKENIZER, &n);
    status = moe_tokenizer_read(&m->tokenizer, path, bytes, n, err);
    if (status != MOE_OK)
        return status;
    if (moe_tokenizer_n_tokens(m->tokenizer) > m->config.vocab)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: the tokenizer knows %u tokens, the model only %u",
                        path, moe_tokenizer_n_tokens(m->tokenizer), m->config.vocab);
    bytes = moe_pack_section(m->pack, MOE_PACK_CHAT, &n);
    m->chat_template = moe_strndup((const char *)bytes, n, err);
    return m->chat_template ? MOE_OK : MOE_ERR_MEMORY;
}

int moe_model_open_directory(struct moe_model **out, const char *path, struct moe_err *err)
{
    *out = NULL;
    struct moe_model *m = moe_alloc(1, sizeof *m, err);
    if (!m)
        return MOE_ERR_MEMORY;
    struct moe_arena sizes = {0};
    int status = moe_pack_open(&m->pack, path, err);
    if (status == MOE_OK)
        status = read_sections(m, path, err);
    if (status == MOE_OK) {
        m->layers = moe_alloc(m->config.n_layers, sizeof *m->layers, err);
        status = m->layers ? MOE_OK : MOE_ERR_MEMORY;
    }
    if (status == MOE_OK)
        status = check_experts(m, err);
    if (status == MOE_OK)
        status = walk_tensors(m, &sizes, NULL, err);
    if (status != MOE_OK) {
        moe_model_close(m);
        return status;
    }
    m->weights_bytes = sizes.used;
    *out = m;
    return MOE_OK;
}

static uint32_t context_or_all(const struct moe_model *m, uint32_t context)
{
    return context ? context : m->config.context_max;
}

uint64_t moe_model_load_bytes(const struct moe_model *m, uint32_t context)
{
    return m->weights_bytes +
           (uint64_t)context_or_all(m, context) * m->config.head_dim * sizeof *m->rope;
}

int moe_model_load(struct moe_model *m, uint32_t context, const struct moe_progress *progress,
                   struct moe_err *err)
{
    int status = read_dense_part(m, progress, err);
    return status == MOE_OK ? make_rope(m, context_or_all(m, context), err) : status;
}

int moe_model_open(struct moe_model **out, const char *path, uint32_t context,
                   const struct moe_progress *progress, struct moe_err *err)
{
    int status = moe_model_open_directory(out, path, err);
    if (status == MOE_OK)
        status = moe_model_load(*out, context, progress, err);
    if (status != MOE_OK) {
        moe_model_close(*out);
        *out = NULL;
    }
    return status;
}

void moe_model_close(struct moe_model *m)
{
    if (!m)
        return;
    moe_pages_free(m->weights, m->weights_bytes);
    moe_tokenizer_free(m->tokenizer);
    moe_pack_close(m->pack);
    free(m->chat_template);
    free(m->layers);
    free(m->rope);
    free(m);
}
