/* Row sources: where a matrix's rows lie in a checkpoint, and reading them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/par.h"
#include "model/config.h"
#include "pack/convert_internal.h"

enum { NAME_BYTES = 256 };

/* ---- Names ---- */

/* Writes layer and expert into a name (struct moe_source). Not by
 * printf, since the format is data. */
static void expand_name(const char *format, uint32_t layer, uint32_t expert, char out[NAME_BYTES])
{
    uint32_t numbers[2] = {layer, expert};
    int next = 0;
    size_t at = 0;
    for (const char *p = format; *p && at < NAME_BYTES - 16; p++) {
        if (p[0] == '%' && (p[1] == 'u' || p[1] == 'p') && next < 2) {
            uint32_t number = numbers[next++] - (p[1] == 'p');
            at += (size_t)snprintf(out + at, NAME_BYTES - at, "%" PRIu32, number);
            p++;
        } else {
            out[at++] = *p;
        }
    }
    out[at] = '\0';
}

/* Whether the name fits the format: a number for each "%u", any text for a "*" at its end. */
static bool matches_format(const char *format, const char *name)
{
    while (*format) {
        if (strcmp(format, "*") == 0)
            return *name != '\0';
        if (format[0] == '%' && format[1] == 'u') {
            size_t digits = strspn(name, "0123456789");
            if (digits == 0)
                return false;
            name += digits;
            format += 2;
        } else if (*format++ != *name++) {
            return false;
        }
    }
    return *name == '\0';
}

/* Name number i of a tensor of the model: the family's own first, then the usual ones. NULL past
 * the last; an entry without a name is skipped. other: of a layer that has names of its own in
 * place of the first ones. */
static const struct moe_source *name_at(const struct convert_source *s, bool is_expert, int index,
                                        bool other, int i)
{
    const struct moe_family_tensors *names = &s->family->tensors[s->naming];
    const struct moe_tensor_spec *spec =
        is_expert ? moe_expert_part_spec(index) : moe_tensor_spec(index);
    if (i < MOE_MAX_OWN_NAMES) {
        static const struct moe_source none = {0};
        const struct moe_source_names *own =
            i == 0 && other && names->others ? names->others : names->names[i];
        if (!own)
            return &none;
        return is_expert ? &own->expert[index] : &own->dense[index];
    }
    i -= MOE_MAX_OWN_NAMES;
    return i < MOE_MAX_USUAL_NAMES ? &spec->names[s->naming][i] : NULL;
}

bool convert_sees_images(const struct convert_source *source, const char *name)
{
    /* GGUF files of llama.cpp have it apart; ollama's have it inside. */
    static const char *const formats[MOE_N_NAMINGS][25] = {{"model.visual.*",
                                                            "model.vision_tower.*",
                                                            "model.embed_vision.*",
                                                            "model.audio_tower.*",
                                                            "model.audio.*",
                                                            "model.embed_audio.*",
                                                            "vision_model.*",
                                                            "multi_modal_projector.*",
                                                            "vision_tower.*",
                                                            "mm_projector.*",
                                                            "model.mm_projector.*",
                                                            "model.multi_modal_projector.*",
                                                            "model.vision_adapter.*",
                                                            "model.vision_projection.*",
                                                            "vit_large_projector.*",
                                                            "model.vision_model.*",
                                                            "vit.*",
                                                            "model.resampler_model.*",
                                                            "patch_merge_mlp.*",
                                                            "model.view_separator",
                                                            "thinker.visual.*",
                                                            "thinker.audio_tower.*",
                                                            "talker.*",
                                                            "code2wav.*",
                                                            NULL},
                                                           {"v.*", "mm.*", NULL}};
    static const char experts[] = ".mlp.experts.";
    const char *expert = strstr(name, experts);
    bool sees = false;
    for (const char *const *format = formats[source->naming]; *format; format++)
        sees |= matches_format(*format, name);
    if (source->family->tensors[source->naming].image_experts && expert) {
        uint64_t number = strtoull(expert + sizeof experts - 1, NULL, 10);
        sees |= number / source->config->n_experts == 1;
    }
    return source->family->hf.in_text_config && sees;
}

bool convert_is_beyond(const struct convert_source *source, const char *name)
{
    static const char *const formats[MOE_N_NAMINGS] = {"model.layers.%u.*", "blk.%u.*"};
    const char *format = formats[source->naming];
    uint64_t first = moe_config_stored_layer(source->config, source->config->n_layers),
             n = source->config->n_beyond;
    if (matches_format("mtp.*", name) ||
        (source->naming == MOE_NAMING_HF && matches_format("model.mtp_*", name)))
        return true;
    if (!matches_format(format, name))
        return false;
    uint64_t layer = strtoull(name + strcspn(format, "%"), NULL, 10);
    return layer >= first && layer - first < n;
}

bool convert_is_shared(const struct convert_source *source, const char *name)
{
    static const char *const formats[][MOE_N_NAMINGS] = {
        {"model.layers.%u.embed_tokens.weight", "blk.%u.nextn.embed_tokens.weight"},
        {"model.layers.%u.shared_head.head.weight", "blk.%u.nextn.shared_head_head.weight"}};
    return source->config->n_ahead && (matches_format(formats[0][source->naming], name) ||
                                       matches_format(formats[1][source->naming], name));
}

/* Whether the tensor belongs to the indexer of a layer that shares another layer's choice; some
 * files repeat it there. */
static bool is_idle_indexer(const struct convert_source *source, const char *name)
{
    static const char *const formats[MOE_N_NAMINGS] = {"model.layers.%u.self_attn.indexer.*",
                                                       "blk.%u.indexer.*"};
    const char *format = formats[source->naming];
    const struct moe_config *c = source->config;
    if (!matches_format(format, name))
        return false;
    uint64_t layer = strtoull(name + strcspn(format, "%"), NULL, 10);
    return layer < c->n_layers && c->layers[layer].shares_choice;
}

/* Whether it makes keys or values of a layer that sees another one's. */
static bool is_idle_keys(const struct convert_source *source, const char *name)
{
    static const char *const formats[MOE_N_NAMINGS][4] = {
        {"model.layers.%u.self_attn.k_*", "model.layers.%u.self_attn.v_*",
         "model.language_model.layers.%u.self_attn.k_*",
         "model.language_model.layers.%u.self_attn.v_*"},
        {"blk.%u.attn_k.*", "blk.%u.attn_v.*", "blk.%u.attn_k_norm.*", ""}};
    const struct moe_config *c = source->config;
    for (int i = 0; i < 4; i++) {
        const char *format = formats[source->naming][i];
        if (!matches_format(format, name))
            continue;
        uint64_t layer = strtoull(name + strcspn(format, "%"), NULL, 10);
        return layer < c->n_layers && c->layers[layer].shares_keys;
    }
    return false;
}

/* Whether it is among the tensors that all models or the family leave out. */
static bool is_ignored(const struct convert_source *source, const char *name)
{
    const char *const *lists[] = {moe_ignored_names[source->naming],
                                  source->family->tensors[source->naming].ignored};
    for (int i = 0; i < 2; i++)
        for (const char *const *ignored = lists[i]; *ignored; ignored++)
            if (matches_format(*ignored, name))
                return true;
    return false;
}

/* How names begin in the text part of a model that also sees images. */
static const struct {
    const char *whole, *text;
} text_parts[] = {{"model.", "model.language_model."},
                  {"", "language_model."},
                  /* as transformers saves Kimi-K2.5 */
                  {"model.layers.", "language_model.model.blocks."},
                  {"", "thinker."},
                  /* Inkling's */
                  {"model.", "model.llm."}};
enum { TEXT_PARTS = sizeof text_parts / sizeof text_parts[0] };

bool convert_may_ignore(const struct convert_source *source, const char *name)
{
    if (convert_is_beyond(source, name) || convert_sees_images(source, name) ||
        is_idle_indexer(source, name) || is_idle_keys(source, name) || is_ignored(source, name))
        return true;
    for (int i = 0; source->family->hf.in_text_config && i < TEXT_PARTS; i++) {
        char whole[NAME_BYTES];
        const size_t n = strlen(text_parts[i].text);
        if (strncmp(name, text_parts[i].text, n) == 0 &&
            snprintf(whole, sizeof whole, "%s%s", text_parts[i].whole, name + n) < NAME_BYTES &&
            is_ignored(source, whole))
            return true;
    }
    return false;
}

/* Compares a tensor with the embedding, value by value. */
static int compare_with_embedding(const struct convert_source *source,
                                  const struct row_source *embed, const struct moe_tensor *tensor,
                                  bool *same, struct moe_err *err)
{
    uint32_t cols = embed->cols;
    int status = MOE_OK;
    *same = tensor->n_dims == 2 && tensor->dims[0] == embed->rows && tensor->dims[1] == cols;
    float *rows = moe_alloc(2 * (uint64_t)cols, sizeof *rows, err);
    if (!rows)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < embed->rows && *same && status == MOE_OK; i++) {
        status = convert_read_rows(embed, i, 1, rows, err);
        if (status == MOE_OK)
            status = moe_checkpoint_read(source->checkpoint, tensor, (uint64_t)i * cols, cols,
                                         rows + cols, err);
        *same = status == MOE_OK && memcmp(rows, rows + cols, cols * sizeof *rows) == 0;
    }
    free(rows);
    return status;
}

int convert_check_copy(const struct convert_source *source, const struct moe_tensor *tensor,
                       bool *is_copy, struct moe_err *err)
{
    const char *const *copies = source->family->tensors[source->naming].copies;
    struct row_source embed;
    bool same;
    while (*copies && strcmp(*copies, tensor->name) != 0)
        copies++;
    *is_copy = *copies != NULL;
    if (*is_copy)
        MOE_TRY(convert_find_dense(source, MOE_T_EMBED, 0, &embed, err));
    if (!*is_copy)
        return MOE_OK;
    MOE_TRY(compare_with_embedding(source, &embed, tensor, &same, err));
    if (!same)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: tensor '%s' differs from '%s'; stacks with an embedding of their "
                        "own are not implemented",
                        moe_checkpoint_dir(source->checkpoint), tensor->name, embed.tensor->name);
    return MOE_OK;
}

/* ---- Tensors ---- */

/* A matrix to look for in the checkpoint. */
struct wanted {
    bool is_expert; /* one expert's part */
    int index;      /* enum moe_tensor_role, or enum moe_expert_part */
    const struct moe_tensor_spec *spec;
    bool is_vector;
    uint32_t rows, cols;
    uint32_t layer, expert;
};

/* The tensor holds all experts when its name has no number for the expert. */
static bool holds_all_experts(const struct moe_source *from)
{
    const char *mark = strstr(from->name, "%u");
    return !mark || !strstr(mark + 2, "%u");
}

static bool is_plain(const struct moe_tensor *t)
{
    return t->dtype == MOE_DTYPE_F32 || t->dtype == MOE_DTYPE_F16 || t->dtype == MOE_DTYPE_BF16;
}

static bool is_scaled(const struct moe_tensor *t)
{
    const struct moe_ggml_type *type = moe_dtype_block(t->dtype);
    return type && moe_kind_is_scaled(type->kind);
}

/* Changes a name to that of the text part of a model that also sees images, in the i-th way; false:
 * there are no more ways. */
static bool is_text_part(const struct convert_source *s, int i, const char *name,
                         char out[NAME_BYTES])
{
    if (s->naming != MOE_NAMING_HF || !s->family->hf.in_text_config)
        return false;
    size_t n = strlen(text_parts[i].whole);
    return strncmp(name, text_parts[i].whole, n) == 0 &&
           snprintf(out, NAME_BYTES, "%s%s", text_parts[i].text, name + n) < NAME_BYTES;
}

/* Changes the name of a layer's tensor to that of a layer that drafts, where those are numbered
 * apart. */
static bool is_ahead(const struct convert_source *s, uint32_t layer, const char *name,
                     char out[NAME_BYTES])
{
    static const char layers[] = "model.layers.";
    size_t n = sizeof layers - 1;
    if (s->naming != MOE_NAMING_HF || layer < s->config->n_layers || strncmp(name, layers, n) != 0)
        return false;
    snprintf(out, NAME_BYTES, "mtp.layers.%" PRIu32 "%.200s", layer - s->config->n_layers,
             name + n + strspn(name + n, "0123456789"));
    return true;
}

/* The checkpoint's tensor of a name in a table, or NULL; `out` becomes the name in full, that of
 * the text part where it is there. */
static const struct moe_tensor *find_named(const struct convert_source *s, const struct wanted *w,
                                           const char *format, char out[NAME_BYTES])
{
    static const char whole[] = "model.";
    bool in_encoder = w->spec->per_layer && moe_config_in_encoder(s->config, w->layer);
    uint32_t first = w->spec->per_layer && !in_encoder ? s->config->n_encoder : 0;
    if (s->family->tensors[s->naming].in_halves)
        expand_name(format, w->layer / 2, w->is_expert ? w->expert : w->layer % 2, out);
    else
        expand_name(format, moe_config_stored_layer(s->config, w->layer) - first, w->expert, out);
    const struct moe_tensor *t = moe_checkpoint_find(s->checkpoint, out);
    for (int way = 0; !t && way <= TEXT_PARTS; way++) {
        char other[NAME_BYTES];
        bool named = way == 0 ? is_ahead(s, w->spec->per_layer ? w->layer : 0, out, other)
                              : is_text_part(s, way - 1, out, other);
        t = named ? moe_checkpoint_find(s->checkpoint, other) : NULL;
        if (t)
            memcpy(out, other, NAME_BYTES);
    }
    if (!t && s->family->tensors[s->naming].bare && strncmp(out, whole, sizeof whole - 1) == 0 &&
        (t = moe_checkpoint_find(s->checkpoint, out + sizeof whole - 1)))
        memmove(out, out + sizeof whole - 1, strlen(out) - sizeof whole + 2);
    return t;
}

/* Finds the first name that the checkpoint has a tensor for; *name is that name in full. */
static int find_source(const struct convert_source *s, const struct wanted *w,
                       const struct moe_source **from, char name[NAME_BYTES], struct moe_err *err)
{
    const struct moe_source *entry;
    bool in_encoder = w->spec->per_layer && moe_config_in_encoder(s->config, w->layer);
    bool other = in_encoder || (s->family->tensors[s->naming].in_halves && w->layer % 2 != 0);
    *from = NULL;
    for (int i = 0; (entry = name_at(s, w->is_expert, w->index, other, i)) != NULL; i++) {
        if (!entry->name)
            continue;
        char candidate[NAME_BYTES];
        bool there = find_named(s, w, entry->name, candidate) != NULL;
        if (there || !*from) { /* a missing tensor is reported under its first name */
            *from = entry;
            memcpy(name, candidate, NAME_BYTES);
        }
        if (there)
            break;
    }
    return *from ? MOE_OK
                 : moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: family %s has no tensor '%s'",
                            moe_checkpoint_dir(s->checkpoint), s->family->name, w->spec->pack_name);
}

/* Rows of a head in kv_b_proj: the keys' and the values'. */
static uint32_t kv_head_rows(const struct moe_config *c, uint32_t layer)
{
    return moe_config_head_dim(c, layer) - moe_config_rotated(c, layer) + c->value_dim;
}

/* Rows of a recurrent state in a tensor of several roles: how many there are of a role, and how
 * many before them, for each key head or (MOE_TAKE_STATE_ROWS, _ALL) for all. Returns those of all
 * roles. */
static uint32_t state_part(const struct moe_config *c, int role, enum moe_take take,
                           uint32_t *before, uint32_t *own)
{
    uint32_t heads = c->state_key_heads ? c->state_key_heads : 1, each = c->state_heads / heads;
    uint32_t keys = c->state_key_dim, values = each * c->state_value_dim;
    const struct {
        int role;
        uint32_t n;
    } delta[] = {{MOE_T_STATE_Q, keys},   {MOE_T_STATE_K, keys},    {MOE_T_STATE_V, values},
                 {MOE_T_STATE_Z, values}, {MOE_T_STATE_BETA, each}, {MOE_T_STATE_DECAY, each}},
      scan[] = {{MOE_T_STATE_Z, values},
                {MOE_T_STATE_V, values},
                {MOE_T_STATE_K, keys},
                {MOE_T_STATE_Q, keys},
                {MOE_T_STATE_DECAY, each}},
      select[] = {{MOE_T_STATE_DECAY_DOWN, c->state_step_rank},
                  {MOE_T_STATE_K, keys},
                  {MOE_T_STATE_Q, keys}},
      fade[] = {{MOE_T_STATE_Q, keys}, {MOE_T_STATE_K, keys}, {MOE_T_STATE_V, values}},
      *all = c->state_kind == MOE_STATE_SCAN     ? scan
             : c->state_kind == MOE_STATE_SELECT ? select
             : c->state_kind == MOE_STATE_FADE   ? fade
                                                 : delta;
    bool whole = take == MOE_TAKE_STATE_ALL, rows = take == MOE_TAKE_STATE_ROWS || whole;
    bool small = all == delta && !whole && (role == MOE_T_STATE_BETA || role == MOE_T_STATE_DECAY);
    int begin = small ? 4 : 0, end = small || whole ? 6 : rows ? 3 : 4;
    if (all != delta)
        end = all == scan ? 5 : 3;
    uint32_t sum = 0, times = rows ? heads : 1;
    for (int i = begin; i < end; i++) {
        if (all[i].role == role) {
            *before = times * sum;
            *own = times * all[i].n;
        }
        sum += all[i].n;
    }
    return times * sum;
}

static uint64_t state_rows(const struct moe_config *c, int role, enum moe_take take)
{
    uint32_t before, own, all = state_part(c, role, take, &before, &own);
    return (uint64_t)all * (take == MOE_TAKE_STATE_HEADS ? c->state_key_heads : 1);
}

/* Taps of the role's convolution, and its channels where it has `weights` weights. */
static uint32_t conv_taps(const struct moe_config *c, int role)
{
    return role == MOE_T_NGRAM_CONV ? c->ngram_taps : c->conv_width;
}
static uint32_t conv_channels(const struct moe_config *c, int role, uint64_t weights)
{
    uint32_t taps = conv_taps(c, role);
    return taps ? (uint32_t)(weights / taps) : 0;
}

/* Of a short convolution's input. */
static uint32_t third_of(int role)
{
    return role == MOE_T_STATE_SCALE ? 0 : role == MOE_T_STATE_Z ? 1 : 2;
}

/* Rows of queries, keys and values, or of an indexer's queries and keys, in one tensor: how many,
 * and how many before those of the role. */
static uint64_t attention_rows(const struct moe_config *c, int role, uint64_t *before)
{
    uint64_t indexed = (uint64_t)c->index_heads * c->index_dim;
    if (role == MOE_T_INDEX_Q || role == MOE_T_INDEX_K) {
        *before = role == MOE_T_INDEX_Q ? 0 : indexed;
        return indexed + c->index_dim;
    }
    uint64_t queries = (uint64_t)c->n_heads * c->head_dim;
    uint64_t keys = (uint64_t)c->n_kv_heads * c->head_dim;
    *before = role == MOE_T_Q ? 0 : role == MOE_T_K ? queries : queries + keys;
    return queries + 2 * keys;
}

/* The shape that the tensor must have. */
static int expected_shape(const struct convert_source *s, const struct wanted *w,
                          const struct moe_source *from, bool transposed, bool all_experts,
                          uint64_t dims[MOE_MAX_TENSOR_DIMS])
{
    uint64_t rows = w->rows, cols = w->cols, before;
    uint64_t key_heads = s->config->state_key_heads ? s->config->state_key_heads : 1;
    int n = 0;
    switch (from->take) {
    case MOE_TAKE_ALL:
    case MOE_TAKE_EXPERT:
    case MOE_TAKE_BUCKETS:
    case MOE_TAKE_ROW:
    case MOE_TAKE_TEXT:
    case MOE_TAKE_GROUPS:
    case MOE_TAKE_CONV:
    case MOE_TAKE_JOINED:
    case MOE_TAKE_TURNED:
    case MOE_TAKE_PLACES:
    case MOE_TAKE_PROFILES:
    case MOE_TAKE_HEADS:
    case MOE_TAKE_LATEST:
    case MOE_TAKE_INPUT:
    case MOE_TAKE_SIDES:
    case MOE_TAKE_ROUTES:
    case MOE_TAKE_TAPS:
    case MOE_TAKE_FIRST:
    case MOE_TAKE_NUMBERS:
    case MOE_TAKE_MESSAGE:
    case MOE_TAKE_MESSAGES:
        break;
    case MOE_TAKE_FIRST_HALF:
    case MOE_TAKE_SECOND_HALF:
    case MOE_TAKE_EVEN:
    case MOE_TAKE_ODD:
        rows *= 2;
        break;
    case MOE_TAKE_HEAD_QUERY:
    case MOE_TAKE_HEAD_GATE:
        rows = (uint64_t)s->config->n_heads * (s->config->head_dim + s->config->value_dim);
        break;
    case MOE_TAKE_ATTENTION:
        rows = attention_rows(s->config, w->index, &before);
        break;
    case MOE_TAKE_THIRD:
        rows *= 3;
        break;
    case MOE_TAKE_STATE_HEADS:
    case MOE_TAKE_STATE_ROWS:
    case MOE_TAKE_STATE_ALL:
        rows = state_rows(s->config, w->index, from->take);
        break;
    case MOE_TAKE_KEYS:
    case MOE_TAKE_VALUES:
        rows = (uint64_t)moe_config_heads(s->config, w->layer) * kv_head_rows(s->config, w->layer);
        cols = moe_config_kv_rank(s->config, w->layer);
        break;
    }
    uint32_t ratio = w->spec->per_layer ? moe_config_ratio(s->config, w->layer) : 0;
    uint32_t rel_dim = s->config->rel_dim, sides = s->config->shared_sinks;
    uint32_t heads = moe_config_heads(s->config, w->layer);
    uint32_t taps = s->config->conv_width ? s->config->conv_width : 1;
    const uint64_t lists[][3] = {
        [MOE_TAKE_BUCKETS] = {s->config->n_buckets, s->config->n_heads},
        [MOE_TAKE_ROW] = {1, rows},
        [MOE_TAKE_TEXT] = {2, rows},
        [MOE_TAKE_GROUPS] = {key_heads, rows / key_heads},
        [MOE_TAKE_CONV] = {conv_channels(s->config, w->index, rows), 1,
                           conv_taps(s->config, w->index)},
        [MOE_TAKE_JOINED] = {rows * moe_config_ngrams_joined(s->config), s->config->ngram_dim},
        [MOE_TAKE_TURNED] = {s->config->state_value_dim, s->config->state_key_dim},
        [MOE_TAKE_PLACES] = {ratio, rows / (ratio ? ratio : 1)},
        [MOE_TAKE_PROFILES] = {s->config->rel_dim, rel_dim ? rows / rel_dim : 0},
        [MOE_TAKE_HEADS] = {heads, heads ? rows / heads : 0},
        [MOE_TAKE_LATEST] = {taps, taps ? rows / taps : 0},
        [MOE_TAKE_INPUT] = {3, rows},
        [MOE_TAKE_SIDES] = {sides, rows, sides ? cols / sides : 0},
        [MOE_TAKE_ROUTES] = {s->config->vocab, s->config->top_k},
        [MOE_TAKE_MESSAGE] = {s->config->loop.n, 4, rows},
        [MOE_TAKE_MESSAGES] = {2 * (uint64_t)s->config->loop.n, rows},
    };
    if (from->take == MOE_TAKE_TAPS) {
        dims[0] = rows;
        dims[1] = cols / s->config->conv_width;
        dims[2] = s->config->conv_width;
        return 3;
    }
    if (from->take == MOE_TAKE_INPUT && s->config->layers[w->layer].windowed) {
        dims[0] = rows;
        return 1;
    }
    if (from->take >= MOE_TAKE_BUCKETS) {
        n = from->take == MOE_TAKE_CONV || from->take == MOE_TAKE_SIDES ||
                    from->take == MOE_TAKE_MESSAGE
                ? 3
                : 2;
        memcpy(dims, lists[from->take], (size_t)n * sizeof **lists);
        return n;
    }
    if (all_experts)
        dims[n++] = s->config->n_experts;
    dims[n++] = transposed ? cols : rows;
    if (!w->is_vector)
        dims[n++] = transposed ? rows : cols;
    return n;
}

/* Whether the tensor has the shape of one that is not transposed. */
static bool is_upright(const struct convert_source *s, const struct wanted *w,
                       const struct moe_source *from, const struct moe_tensor *t)
{
    uint64_t dims[MOE_MAX_TENSOR_DIMS];
    int n = expected_shape(s, w, from, false, w->is_expert && holds_all_experts(from), dims);
    return t->n_dims == n && memcmp(t->dims, dims, (size_t)n * sizeof *dims) == 0;
}

/* A matrix may have its rows in several dimensions; one of a single row may be a vector. */
static bool same_lines(const struct moe_tensor *t, uint64_t rows, uint64_t cols)
{
    uint64_t lines = 1;
    for (int i = 0; i + 1 < t->n_dims; i++)
        if (!moe_mul_u64(lines, t->dims[i], &lines))
            return false;
    return lines == rows && t->dims[t->n_dims - 1] == cols;
}

/* GGUF stores the weights of convolutions with fewer or more dimensions of 1. */
static bool same_taps(const struct moe_tensor *t, const uint64_t dims[MOE_MAX_TENSOR_DIMS])
{
    return t->n_dims != 3 && same_lines(t, dims[0], dims[2]);
}

/* A vector may have further dimensions of 1. */
static bool same_items(const struct moe_tensor *t, uint64_t n)
{
    int wide = 0;
    for (int i = 0; i < t->n_dims; i++)
        wide += t->dims[i] != 1;
    return wide <= 1 && t->n_items == n;
}

static int get_tensor(const struct convert_source *s, const struct wanted *w,
                      const struct moe_source *from, const char *name, bool transposed,
                      const struct moe_tensor **out, struct moe_err *err)
{
    uint64_t dims[MOE_MAX_TENSOR_DIMS];
    bool all_experts = w->is_expert && holds_all_experts(from);
    int n = expected_shape(s, w, from, transposed, all_experts, dims);
    const struct moe_tensor *t = moe_checkpoint_find(s->checkpoint, name);
    if (from->take == MOE_TAKE_ROUTES) /* one expert a token may be a list of them */
        return moe_checkpoint_get_numbers(
            s->checkpoint, name, t && t->n_dims == 1 && dims[1] == 1 ? 1 : n, dims, out, err);
    if (from->take == MOE_TAKE_NUMBERS)
        return moe_checkpoint_get_numbers(s->checkpoint, name, n, dims, out, err);
    if (t && from->take == MOE_TAKE_ALL && w->is_vector && n == 1 && same_items(t, dims[0]))
        return moe_checkpoint_get(s->checkpoint, name, t->n_dims, t->dims, out, err);
    if (t && all_experts && t->n_dims == 2 && n == 3 && same_lines(t, dims[0] * dims[1], dims[2]))
        return moe_checkpoint_get(s->checkpoint, name, t->n_dims, t->dims, out, err);
    if (t && from->take == MOE_TAKE_CONV && same_taps(t, dims))
        return moe_checkpoint_get(s->checkpoint, name, t->n_dims, t->dims, out, err);
    bool whole =
        from->take == MOE_TAKE_ALL || from->take == MOE_TAKE_EVEN || from->take == MOE_TAKE_ODD;
    if (t && from->take == MOE_TAKE_FIRST && t->n_dims == 2 && t->dims[0] > dims[0])
        dims[0] = t->dims[0];
    if (t && whole && n == 2 && !transposed && same_lines(t, dims[0], dims[1]))
        return moe_checkpoint_get(s->checkpoint, name, t->n_dims, t->dims, out, err);
    return moe_checkpoint_get(s->checkpoint, name, n, dims, out, err);
}

/* ---- Shards ---- */

/* What stands in the name of the first one, and how that goes on. */
static const struct {
    const char *first, *any;
} shards[] = {{".shard_0.", ".shard_"}, {".chunk_experts.0.", ".chunk_experts."}};

const struct moe_tensor *convert_shard(const struct row_source *source, uint32_t i)
{
    char name[NAME_BYTES];
    const char *at = NULL;
    size_t k = 0;
    while (k < sizeof shards / sizeof *shards &&
           !(at = strstr(source->tensor->name, shards[k].first)))
        k++;
    if (!at || snprintf(name, sizeof name, "%.*s%s%" PRIu32 ".%s", (int)(at - source->tensor->name),
                        source->tensor->name, shards[k].any, i,
                        at + strlen(shards[k].first)) >= NAME_BYTES)
        return NULL;
    return moe_checkpoint_find(source->checkpoint, name);
}

/* Counts the shards behind the first. All are as long, but the last may be shorter. */
static int take_shards(const struct convert_source *s, const struct wanted *w,
                       const struct moe_source *from, struct row_source *v, struct moe_err *err)
{
    const struct moe_tensor *first = v->tensor, *t = first;
    uint64_t dim = from->take == MOE_TAKE_JOINED ? s->config->ngram_dim : w->cols, rows = 0;
    bool fits = true, last = false;
    for (; fits && t; t = convert_shard(v, ++v->n_shards)) {
        fits = !last && t->n_dims == 2 && t->dims[1] == dim && is_plain(t) &&
               t->dtype == first->dtype && t->dims[0] <= first->dims[0];
        last = t->dims[0] < first->dims[0];
        rows += fits ? t->dims[0] : 0;
    }
    return fits && rows * dim == (uint64_t)w->rows * w->cols
               ? MOE_OK
               : moe_fail(err, MOE_ERR_FORMAT,
                          "%s: tensor '%s' and those behind it have %" PRIu64
                          " rows of F32, F16 or BF16, expected %" PRIu64 " of %" PRIu64 " values",
                          moe_checkpoint_dir(s->checkpoint), first->name, rows,
                          (uint64_t)w->rows * w->cols / dim, dim);
}

/* Reads items [at, at + n) of all shards. */
static int read_shards(const struct row_source *v, uint64_t at, uint64_t n, float *out,
                       struct moe_err *err)
{
    uint64_t each = v->tensor->n_items;
    while (n > 0) {
        const struct moe_tensor *t = convert_shard(v, (uint32_t)(at / each));
        uint64_t left = each - at % each, some = n < left ? n : left;
        MOE_TRY(moe_checkpoint_read(v->checkpoint, t, at % each, some, out, err));
        at += some;
        out += some;
        n -= some;
    }
    return MOE_OK;
}

/* ---- Sources ---- */

/* The row of a looped layer's scores, of as many as the tensor has for a layer. */
static uint64_t message_row(const struct convert_source *s, int role, uint32_t layer,
                            uint32_t by_layer)
{
    const uint32_t of = role == MOE_T_Q_TOLD_SCORES   ? 0
                        : role == MOE_T_K_TOLD_SCORES ? 1
                        : role == MOE_T_V_TOLD_SCORES ? 2
                                                      : 3;
    const uint64_t first = (uint64_t)(layer - s->config->loop.begin) * by_layer;
    return first + (by_layer == 4 ? of : of >= 2);
}

/* Where the part taken of the tensor begins, and how far apart its rows are. */
static void place_part(const struct convert_source *s, const struct moe_source *from, int role,
                       uint32_t layer, struct row_source *v)
{
    uint32_t before = 0;
    uint64_t first = 0;
    switch (from->take) {
    case MOE_TAKE_ALL:
    case MOE_TAKE_EXPERT:
    case MOE_TAKE_BUCKETS:
    case MOE_TAKE_ROW:
    case MOE_TAKE_TEXT:
    case MOE_TAKE_GROUPS:
    case MOE_TAKE_PLACES:
    case MOE_TAKE_PROFILES:
    case MOE_TAKE_HEADS:
    case MOE_TAKE_LATEST:
    case MOE_TAKE_ROUTES:
    case MOE_TAKE_TAPS:
    case MOE_TAKE_JOINED:
    case MOE_TAKE_FIRST:
    case MOE_TAKE_NUMBERS:
    case MOE_TAKE_FIRST_HALF:
        break;
    case MOE_TAKE_SIDES:
        v->n_sides = s->config->shared_sinks;
        break;
    case MOE_TAKE_INPUT:
        first = (uint64_t)v->rows * (role == MOE_T_K_SCORES ? 1 : role == MOE_T_V_SCORES ? 2 : 0);
        break;
    case MOE_TAKE_MESSAGE:
        first = v->rows * message_row(s, role, layer, 4);
        break;
    case MOE_TAKE_MESSAGES:
        first = v->rows * message_row(s, role, layer, 2);
        break;
    case MOE_TAKE_HEAD_QUERY:
    case MOE_TAKE_HEAD_GATE:
        first = from->take == MOE_TAKE_HEAD_GATE ? s->config->head_dim : 0;
        v->block_rows = first ? s->config->value_dim : s->config->head_dim;
        v->stride = s->config->head_dim + s->config->value_dim;
        break;
    case MOE_TAKE_STATE_HEADS:
    case MOE_TAKE_STATE_ROWS:
    case MOE_TAKE_STATE_ALL:
        v->stride = state_part(s->config, role, from->take, &before, &v->block_rows);
        first = before;
        break;
    case MOE_TAKE_CONV: /* a tap's weights are a column */
        v->transposed = true;
        v->block_rows = conv_channels(s->config, role, v->rows);
        v->stride = 1;
        v->step = conv_taps(s->config, role);
        break;
    case MOE_TAKE_TURNED:
        v->transposed = true;
        v->block_rows = s->config->state_value_dim;
        v->stride = 1;
        v->step = s->config->state_key_dim;
        break;
    case MOE_TAKE_ATTENTION:
        attention_rows(s->config, role, &first);
        break;
    case MOE_TAKE_THIRD:
        first = (uint64_t)v->rows * third_of(role);
        break;
    case MOE_TAKE_SECOND_HALF:
        first = v->rows;
        break;
    case MOE_TAKE_EVEN:
    case MOE_TAKE_ODD:
        first = from->take == MOE_TAKE_ODD;
        v->step = 2;
        break;
    case MOE_TAKE_KEYS:
        v->transposed = true;
        v->block_rows = moe_config_kv_rank(s->config, layer);
        v->stride = kv_head_rows(s->config, layer);
        break;
    case MOE_TAKE_VALUES:
        v->block_rows = s->config->value_dim;
        v->stride = kv_head_rows(s->config, layer);
        first = v->stride - v->block_rows;
        break;
    }
    if (v->transposed)
        v->first_column = first;
    else
        v->first_line = first;
}

/* In packs, queries and keys have their rotated rows first in a head, and in halves (config.h); the
 * shared key of latent attention follows the latent vector, as in checkpoints. */
static void place_rotation(const struct convert_source *s, int role, uint32_t layer,
                           struct row_source *v)
{
    const struct moe_config *c = s->config;
    uint32_t head = moe_config_head_dim(c, layer), rotated = moe_config_rotated(c, layer);
    switch (role) {
    case MOE_T_Q:
    case MOE_T_K:
    case MOE_T_Q_BIAS:
    case MOE_T_K_BIAS:
        if (v->stride == v->rows) /* not beside gates */
            v->stride = head;
        v->block_rows = head;
        v->rotated_from = c->kv_rank ? head - rotated : 0;
        break;
    case MOE_T_K_NORM:
        if (!c->latent_key_norm)
            return;
        break;
    case MOE_T_KV_DOWN:
        v->rotated_to = v->rotated_from = moe_config_kv_rank(c, layer);
        break;
    case MOE_T_INDEX_Q:
    case MOE_T_INDEX_HEAD_NORM:
    case MOE_T_INDEX_K:
    case MOE_T_INDEX_K_NORM:
    case MOE_T_INDEX_K_NORM_BIAS:
        v->block_rows = v->stride = c->index_dim;
        v->n_rotated = rotated;
        v->paired = s->family->tensors[s->naming].index_paired;
        if (s->family->tensors[s->naming].index_last)
            v->rotated_from = c->index_dim - rotated;
        return;
    default:
        return;
    }
    v->n_rotated = rotated;
    v->paired = s->family->tensors[s->naming].paired;
}

/* Whether rows of a panel have scales of their own, though the tensor has them for many rows: these
 * are not the tensor's rows in their order. */
static bool scales_differ(const struct row_source *source, uint32_t block_rows)
{
    for (uint32_t row = 0; row < source->rows; row++) {
        uint64_t first = convert_source_line(source, row - row % MOE_PANEL_ROWS);
        if (convert_source_line(source, row) / block_rows != first / block_rows)
            return true;
    }
    return false;
}

/* Bytes of the tensor that the source covers. */
static uint64_t bytes_of(const struct row_source *source)
{
    const struct moe_tensor *t = source->tensor;
    double share = (double)source->rows * source->cols / (double)t->n_items;
    return (uint64_t)((double)t->bytes * share + 0.5);
}

static int make_source(const struct convert_source *s, const struct wanted *w,
                       struct row_source *out, struct moe_err *err)
{
    char name[NAME_BYTES];
    const struct moe_source *from;
    *out = (struct row_source){.checkpoint = s->checkpoint,
                               .rows = w->rows,
                               .cols = w->cols,
                               .step = 1,
                               .block_rows = w->rows,
                               .stride = w->rows};
    MOE_TRY(find_source(s, w, &from, name, err));
    /* Blocks of quantized values run along a row's columns: those are never transposed. */
    const struct moe_tensor *found = moe_checkpoint_find(s->checkpoint, name);
    out->transposed = from->transposed && (!found || is_plain(found) || is_scaled(found)) &&
                      !(from->either && found && is_upright(s, w, from, found));
    out->tensor = found;
    if (found && convert_shard(out, 0) == found) {
        MOE_TRY(take_shards(s, w, from, out, err));
    } else {
        MOE_TRY(get_tensor(s, w, from, name, out->transposed, &out->tensor, err));
    }
    const struct moe_tensor *t = out->tensor;
    enum moe_dtype dtype = t->dtype;
    const struct moe_ggml_type *type = moe_dtype_block(dtype);
    bool f16 = dtype == MOE_DTYPE_F16 || (!is_plain(t) && dtype != MOE_DTYPE_MXFP4);
    out->name = t->name;
    const char *codes = moe_checkpoint_codes(t);
    out->type = codes ? codes : type ? type->name : NULL;
    out->quantized = codes || (type && type->items > 1);
    out->bytes = bytes_of(out);
    out->float16_kind = f16 ? MOE_LAYOUT_F16 : MOE_LAYOUT_BF16; /* MXFP4 needs BF16's range */
    out->is_f32 = dtype == MOE_DTYPE_F32;
    out->block = is_plain(t) || out->transposed ? NULL : type;
    out->width = w->is_vector ? 1 : from->take == MOE_TAKE_TAPS ? w->cols : t->dims[t->n_dims - 1];
    if (from->take == MOE_TAKE_JOINED) {
        if (out->width != w->cols && type && type->factor) /* rows have scales of their own */
            out->block = NULL;
        out->width = w->cols;
    }
    out->stored = from->stored;
    out->numbers = from->take == MOE_TAKE_ROUTES || from->take == MOE_TAKE_NUMBERS;
    if (from->times) {
        out->times = find_named(s, w, from->times, name);
        if (!out->times || !same_items(out->times, w->rows))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: tensor '%s' is %s, %" PRIu32 " values multiply '%s'",
                            moe_checkpoint_dir(s->checkpoint), name,
                            out->times ? "of another length" : "missing", w->rows, t->name);
    }
    place_part(s, from, w->is_expert ? -1 : w->index, w->layer, out);
    if (out->transposed || out->n_sides)
        out->block = NULL;
    if (w->is_expert && holds_all_experts(from))
        out->expert_lines = t->n_items / out->width / s->config->n_experts;
    else if (!w->is_expert)
        place_rotation(s, w->index, w->layer, out);
    out->first_line += out->expert_lines * w->expert;
    if (out->block && out->block->kind == MOE_LAYOUT_F8_B &&
        scales_differ(out, moe_checkpoint_scale_rows(t)))
        out->block = moe_ggml_scaled_by_row(out->block);
    return MOE_OK;
}

int convert_find_dense(const struct convert_source *source, enum moe_tensor_role role,
                       uint32_t layer, struct row_source *out, struct moe_err *err)
{
    const struct moe_tensor_spec *spec = moe_tensor_spec(role);
    struct wanted w = {
        .index = role, .spec = spec, .is_vector = spec->kind == MOE_KIND_VECTOR, .layer = layer};
    moe_tensor_shape(source->config, role, layer, &w.rows, &w.cols);
    return make_source(source, &w, out, err);
}

int convert_find_expert(const struct convert_source *source, uint32_t layer, uint32_t expert,
                        enum moe_expert_part part, struct row_source *out, struct moe_err *err)
{
    struct stacked_part *last = source->stacked ? &source->stacked[part] : NULL;
    if (last && last->first.tensor && last->layer == layer) {
        *out = last->first;
        out->first_line += out->expert_lines * expert;
        return MOE_OK;
    }
    const struct moe_tensor_spec *spec = moe_expert_part_spec(part);
    struct wanted w = {.is_expert = true,
                       .index = part,
                       .spec = spec,
                       .is_vector = spec->kind == MOE_KIND_VECTOR,
                       .layer = layer,
                       .expert = expert};
    moe_expert_part_shape(source->config, part, &w.rows, &w.cols);
    MOE_TRY(make_source(source, &w, out, err));
    if (!last)
        return MOE_OK;
    /* How scales lie may differ from expert to expert. */
    *last = (struct stacked_part){.layer = layer};
    if (out->expert_lines && !(out->block && moe_kind_is_scaled(out->block->kind)))
        last->first = *out;
    last->first.first_line -= out->expert_lines * expert;
    return MOE_OK;
}

const struct moe_tensor *convert_look_for(const struct convert_source *source,
                                          enum moe_tensor_role role)
{
    const struct wanted w = {.index = role, .spec = moe_tensor_spec(role)};
    const struct moe_source *from;
    char name[NAME_BYTES];
    return find_source(source, &w, &from, name, NULL) == MOE_OK
               ? moe_checkpoint_find(source->checkpoint, name)
               : NULL;
}

int convert_compare_head(const struct convert_source *source, const struct moe_tensor **head,
                         bool *same, struct moe_err *err)
{
    struct row_source view, embed;
    *head = convert_look_for(source, MOE_T_HEAD);
    if (!*head)
        return MOE_OK;
    int status = convert_find_dense(source, MOE_T_HEAD, 0, &view, err);
    if (!same || status != MOE_OK)
        return status;
    status = convert_find_dense(source, MOE_T_EMBED, 0, &embed, err);
    if (status == MOE_OK)
        status = compare_with_embedding(source, &embed, view.tensor, same, err);
    return status;
}

/* The rows of a source, read from the checkpoint or out of a pack. */

/* Values read at once where only some of them are wanted: 1 MiB of f32, or one line. */
enum { GATHER_ITEMS = 1 << 18 };

/* The place in the source's block of place `i` in the pack's. */
static uint32_t source_place(const struct row_source *v, uint32_t i)
{
    uint32_t n = v->n_rotated;
    if (i >= v->rotated_to && i - v->rotated_to < n) {
        uint32_t rotated = i - v->rotated_to;
        if (v->paired)
            rotated = rotated < n / 2 ? 2 * rotated : 2 * (rotated - n / 2) + 1;
        return v->rotated_from + rotated;
    }
    uint32_t other = i < v->rotated_to ? i : i - n;
    return other < v->rotated_from ? other : other + n;
}

uint64_t convert_source_line(const struct row_source *source, uint32_t row)
{
    uint64_t block_line = (uint64_t)(row / source->block_rows) * source->stride;
    return source->first_line +
           source->step * (block_line + source_place(source, row % source->block_rows));
}

/* Reads lines first, first + 2, ... n of them, through a buffer. */
static int read_every_other(const struct row_source *v, uint64_t first, uint32_t n, float *buffer,
                            float *out, struct moe_err *err)
{
    MOE_TRY(moe_checkpoint_read(v->checkpoint, v->tensor, first * v->width,
                                (2 * (uint64_t)n - 1) * v->width, buffer, err));
    for (uint32_t i = 0; i < n; i++)
        memcpy(out + (uint64_t)i * v->width, buffer + 2 * (uint64_t)i * v->width,
               v->width * sizeof *out);
    return MOE_OK;
}

/* Reads rows by runs of lines that follow each other or are two apart. */
static int read_lines(const struct row_source *v, uint32_t first, uint32_t n, float *buffer,
                      uint64_t buffer_items, float *out, struct moe_err *err)
{
    uint64_t most = buffer_items / v->width / 2;
    for (uint32_t i = 0, run; i < n; i += run) {
        uint64_t line = convert_source_line(v, first + i);
        uint64_t apart = i + 1 < n ? convert_source_line(v, first + i + 1) - line : 1;
        if (apart != 1 && (apart != 2 || most < 2))
            apart = 1;
        run = 1;
        while (i + run < n && (apart == 1 || run < most) &&
               convert_source_line(v, first + i + run) == line + apart * run)
            run++;
        float *to = out + (uint64_t)i * v->width;
        MOE_TRY(apart == 1 ? moe_checkpoint_read(v->checkpoint, v->tensor, line * v->width,
                                                 run * v->width, to, err)
                           : read_every_other(v, line, run, buffer, to, err));
    }
    return MOE_OK;
}

/* Reads rows of one block out of a transposed tensor: a piece of every line. */
static int read_columns(const struct row_source *v, uint32_t first, uint32_t n, float *buffer,
                        float *out, struct moe_err *err)
{
    uint64_t line = v->first_line + (uint64_t)(first / v->block_rows) * v->stride;
    uint64_t column = v->first_column + (uint64_t)v->step * (first % v->block_rows);
    uint64_t span = (uint64_t)v->step * (n - 1) + 1;
    for (uint32_t c = 0; c < v->cols; c++) {
        MOE_TRY(moe_checkpoint_read(v->checkpoint, v->tensor, (line + c) * v->width + column, span,
                                    buffer, err));
        for (uint32_t i = 0; i < n; i++)
            out[(uint64_t)i * v->cols + c] = buffer[(uint64_t)v->step * i];
    }
    return MOE_OK;
}

/* Reads rows whose pieces stand in matrices that follow each other. */
static int read_sides(const struct row_source *v, uint32_t first, uint32_t n, float *out,
                      struct moe_err *err)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint64_t side = 0; side < v->n_sides; side++, out += v->width)
            MOE_TRY(moe_checkpoint_read(v->checkpoint, v->tensor,
                                        (side * v->rows + first + i) * v->width, v->width, out,
                                        err));
    return MOE_OK;
}

static int read_tensor(const struct row_source *source, uint32_t first, uint32_t n, float *out,
                       struct moe_err *err)
{
    if (source->n_shards)
        return read_shards(source, first * source->width, n * source->width, out, err);
    if (source->n_sides)
        return read_sides(source, first, n, out, err);
    /* Reads at once all columns of the rows of a transposed tensor, else one line, or twice the
     wanted ones if they fit: tensors are often small. */
    uint64_t items = 2 * (uint64_t)n * source->width;
    items = items < GATHER_ITEMS ? items : GATHER_ITEMS;
    if (source->transposed)
        items = (uint64_t)source->step * n;
    items = items > source->width ? items : source->width;
    float *buffer = moe_alloc(items, sizeof *buffer, err);
    if (!buffer)
        return MOE_ERR_MEMORY;
    int status = MOE_OK;
    if (!source->transposed)
        status = read_lines(source, first, n, buffer, items, out, err);
    for (uint32_t i = 0, run; source->transposed && i < n && status == MOE_OK; i += run) {
        uint32_t left = source->block_rows - (first + i) % source->block_rows;
        run = n - i < left ? n - i : left;
        status =
            read_columns(source, first + i, run, buffer, out + (uint64_t)i * source->cols, err);
    }
    free(buffer);
    return status;
}

struct load_rows {
    const struct moe_mat *mat;
    uint32_t first;
    float *out;
};

static void load_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct load_rows *l = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        moe_layout_load_row(l->mat, l->first + (uint32_t)i, l->out + (uint64_t)i * l->mat->cols);
}

int convert_read_rows(const struct row_source *source, uint32_t first, uint32_t n, float *out,
                      struct moe_err *err)
{
    if (!source->mat)
        return read_tensor(source, first, n, out, err);
    struct load_rows l = {source->mat, first, out};
    moe_par_for(n, MOE_PANEL_ROWS, load_range, &l);
    return MOE_OK;
}

int convert_read_blocks(const struct row_source *source, uint32_t first, uint32_t n, uint8_t *out,
                        struct moe_err *err)
{
    const struct moe_ggml_type *type = moe_dtype_block(source->tensor->dtype);
    uint64_t blocks = source->width / type->items; /* of a line */
    for (uint32_t i = 0, run; i < n; i += run) {
        uint64_t line = convert_source_line(source, first + i);
        run = 1;
        while (i + run < n && convert_source_line(source, first + i + run) == line + run)
            run++;
        MOE_TRY(moe_checkpoint_read_blocks(source->checkpoint, source->tensor, line * blocks,
                                           run * blocks, out + i * blocks * type->bytes, err));
    }
    return MOE_OK;
}
