/*
 * write_gguf: writes a Qwen2-MoE or Mixtral checkpoint as GGUF, for comparisons with llama.cpp and
 * its relatives.
 *
 *     write_gguf [--type f16|f32|q8_0|q4_0] SRC_DIR OUT.gguf
 *
 * SRC_DIR is a Hugging Face directory: the bundled model, what widen made of it (with as many
 * --heads as --hidden), or the second model. Names, keys and
 * the choice of types are those of llama.cpp's converter (convert_hf_to_gguf.py, --pure where types
 * are concerned): all matrices in the type named, experts of a layer as one tensor of three
 * dimensions, norms, biases and routers in f32. Blocks as ggml defines them: Q8_0 d = max|x| / 127;
 * Q4_0 d = the value of largest magnitude / -8. Rows go through memory in batches.
 */
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/float16.h"
#include "base/mem.h"
#include "fmt/checkpoint.h"
#include "fmt/json.h"
#include "model/config.h"
#include "model/read.h"
#include "prompt/chat.h"

enum { ALIGNMENT = 32, BLOCK = 32, BATCH_BYTES = 8 << 20 };

/* As GGUF numbers them. */
enum value_type { U32 = 4, F32 = 6, BOOL = 7, TEXT = 8, ARRAY = 9, I32 = 5 };
enum token_type { TOKEN_NORMAL = 1, TOKEN_CONTROL = 3, TOKEN_USER_DEFINED = 4, TOKEN_UNUSED = 5 };

static const struct type {
    const char *name;
    uint32_t number, file_type; /* of a tensor, of general.file_type */
    uint32_t block, block_bytes;
} TYPES[] = {
    {"f32", 0, 0, 1, 4},
    {"f16", 1, 1, 1, 2},
    {"q8_0", 8, 7, BLOCK, 34},
    {"q4_0", 2, 2, BLOCK, 18},
};

/* What a tensor's rows and columns count. */
enum size { ONE, HIDDEN, VOCAB, QUERIES, KEYS, EXPERTS, EXPERT_FF, SHARED_FF, N_SIZES };

/* A tensor of every layer: its names after "blk.N." and "model.layers.N.". */
static const struct entry {
    const char *gguf, *hf;
    enum size rows, cols; /* a vector has one row here, and one dimension */
    bool f32, per_expert;
    bool flat;   /* the checkpoint has a matrix of one row */
    bool paired; /* a head's rows i and i + half of them stand side by side */
} QWEN2_MOE[] = {
    {"attn_norm.weight", "input_layernorm.weight", ONE, HIDDEN, .f32 = true},
    {"attn_q.weight", "self_attn.q_proj.weight", QUERIES, HIDDEN, .f32 = false},
    {"attn_q.bias", "self_attn.q_proj.bias", ONE, QUERIES, .f32 = true},
    {"attn_k.weight", "self_attn.k_proj.weight", KEYS, HIDDEN, .f32 = false},
    {"attn_k.bias", "self_attn.k_proj.bias", ONE, KEYS, .f32 = true},
    {"attn_v.weight", "self_attn.v_proj.weight", KEYS, HIDDEN, .f32 = false},
    {"attn_v.bias", "self_attn.v_proj.bias", ONE, KEYS, .f32 = true},
    {"attn_output.weight", "self_attn.o_proj.weight", HIDDEN, QUERIES, .f32 = false},
    {"ffn_norm.weight", "post_attention_layernorm.weight", ONE, HIDDEN, .f32 = true},
    {"ffn_gate_inp.weight", "mlp.gate.weight", EXPERTS, HIDDEN, .f32 = true},
    {"ffn_gate_exps.weight", "gate_proj.weight", EXPERT_FF, HIDDEN, .per_expert = true},
    {"ffn_up_exps.weight", "up_proj.weight", EXPERT_FF, HIDDEN, .per_expert = true},
    {"ffn_down_exps.weight", "down_proj.weight", HIDDEN, EXPERT_FF, .per_expert = true},
    {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", ONE, HIDDEN, .f32 = true,
     .flat = true},
    {"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight", SHARED_FF, HIDDEN,
     .f32 = false},
    {"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight", SHARED_FF, HIDDEN, .f32 = false},
    {"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight", HIDDEN, SHARED_FF,
     .f32 = false},
};
static const struct entry MIXTRAL[] = {
    {"attn_norm.weight", "input_layernorm.weight", ONE, HIDDEN, .f32 = true},
    {"attn_q.weight", "self_attn.q_proj.weight", QUERIES, HIDDEN, .paired = true},
    {"attn_k.weight", "self_attn.k_proj.weight", KEYS, HIDDEN, .paired = true},
    {"attn_v.weight", "self_attn.v_proj.weight", KEYS, HIDDEN, .f32 = false},
    {"attn_output.weight", "self_attn.o_proj.weight", HIDDEN, QUERIES, .f32 = false},
    {"ffn_norm.weight", "post_attention_layernorm.weight", ONE, HIDDEN, .f32 = true},
    {"ffn_gate_inp.weight", "block_sparse_moe.gate.weight", EXPERTS, HIDDEN, .f32 = true},
    {"ffn_gate_exps.weight", "w1.weight", EXPERT_FF, HIDDEN, .per_expert = true},
    {"ffn_up_exps.weight", "w3.weight", EXPERT_FF, HIDDEN, .per_expert = true},
    {"ffn_down_exps.weight", "w2.weight", HIDDEN, EXPERT_FF, .per_expert = true},
};
static const struct entry EMBEDDING = {"token_embd.weight", "model.embed_tokens.weight", VOCAB,
                                       HIDDEN, .f32 = false};
static const struct entry OUTPUT_NORM = {"output_norm.weight", "model.norm.weight", ONE, HIDDEN,
                                         .f32 = true};
static const struct entry OUTPUT = {"output.weight", "lm_head.weight", VOCAB, HIDDEN, .f32 = false};

/* llama.cpp's graph of this architecture wants a tensor of the head's own. */
static const struct entry TIED_OUTPUT = {"output.weight", "model.embed_tokens.weight", VOCAB,
                                         HIDDEN, .f32 = false};

struct output {
    const struct entry *entry;
    const struct type *type;
    int layer; /* -1: of none */
    uint64_t offset, bytes;
};

struct gguf {
    const char *src, *dst;
    const struct type *type; /* of matrices */
    struct moe_config config;
    struct moe_checkpoint *ck;
    uint64_t sizes[N_SIZES];
    bool mixtral; /* llama.cpp has it under "llama" */
    struct output outputs[3 + MOE_MAX_LAYERS * (sizeof QWEN2_MOE / sizeof *QWEN2_MOE)];
    uint64_t n_outputs, data_bytes;
    uint64_t n_weights, n_rounded; /* of matrices; rounded: the file's value is another one */
    struct moe_buf values;         /* metadata */
    uint64_t n_values;
};

/* ---- Metadata ---- */

static void put_text(struct moe_buf *out, const char *text)
{
    moe_buf_u64(out, strlen(text));
    moe_buf_text(out, text);
}

static void put_key(struct gguf *g, const char *key, enum value_type type)
{
    put_text(&g->values, key);
    moe_buf_u32(&g->values, type);
    g->n_values++;
}

static void put_array(struct gguf *g, const char *key, enum value_type type, uint64_t n)
{
    put_key(g, key, ARRAY);
    moe_buf_u32(&g->values, type);
    moe_buf_u64(&g->values, n);
}

static void put_u32(struct gguf *g, const char *key, uint32_t value)
{
    put_key(g, key, U32);
    moe_buf_u32(&g->values, value);
}

static void put_f32(struct gguf *g, const char *key, double value)
{
    put_key(g, key, F32);
    moe_buf_f32(&g->values, (float)value);
}

/* A number under the architecture's name. */
static void put_own(struct gguf *g, const char *name, uint32_t value)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", g->mixtral ? "llama" : "qwen2moe", name);
    put_u32(g, key, value);
}

static void put_model(struct gguf *g)
{
    const struct moe_config *c = &g->config;
    put_key(g, "general.architecture", TEXT);
    put_text(&g->values, g->mixtral ? "llama" : "qwen2moe");
    put_u32(g, "general.file_type", g->type->file_type);
    put_u32(g, "general.quantization_version", 2);
    put_own(g, "block_count", c->n_layers);
    put_own(g, "context_length", c->context_max);
    put_own(g, "embedding_length", c->hidden);
    put_own(g, "feed_forward_length",
            g->mixtral    ? c->expert_ff
            : c->dense_ff ? c->dense_ff
                          : c->shared_ff);
    put_own(g, "attention.head_count", c->n_heads);
    put_own(g, "attention.head_count_kv", c->n_kv_heads);
    put_own(g, "attention.key_length", c->head_dim);
    put_own(g, "attention.value_length", c->head_dim);
    put_own(g, "expert_count", c->n_experts);
    put_own(g, "expert_used_count", c->top_k);
    if (g->mixtral) {
        put_own(g, "rope.dimension_count", c->head_dim);
        put_own(g, "vocab_size", c->vocab);
    } else {
        put_own(g, "expert_feed_forward_length", c->expert_ff);
        put_own(g, "expert_shared_feed_forward_length", c->shared_ff);
    }
    put_f32(g,
            g->mixtral ? "llama.attention.layer_norm_rms_epsilon"
                       : "qwen2moe.attention.layer_norm_rms_epsilon",
            c->norm_eps);
    put_f32(g, g->mixtral ? "llama.rope.freq_base" : "qwen2moe.rope.freq_base", c->rope_theta);
}

/* The Qwen2 pre-tokenizer, which llama.cpp knows by name: the one Split in a sequence has its
 * pattern. */
static bool is_qwen2_split(const json_t *tokenizer)
{
    static const char pattern[] =
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+"
        "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    const json_t *steps =
        json_object_get(json_object_get(tokenizer, "pre_tokenizer"), "pretokenizers");
    const json_t *split = json_object_get(json_array_get(steps, 0), "pattern");
    const char *text = json_string_value(json_object_get(split, "Regex"));
    return text && strcmp(text, pattern) == 0;
}

/* Sets the texts and types of tokens by id; false when an id is out of range. */
static bool list_tokens(const json_t *tokenizer, const char **texts, uint32_t *types, uint32_t n)
{
    const char *text;
    json_t *item;
    size_t i;
    json_object_foreach(json_object_get(json_object_get(tokenizer, "model"), "vocab"), text, item)
    {
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id >= n)
            return false;
        texts[id] = text;
        types[id] = TOKEN_NORMAL;
    }
    json_array_foreach(json_object_get(tokenizer, "added_tokens"), i, item)
    {
        json_int_t id = json_integer_value(json_object_get(item, "id"));
        text = json_string_value(json_object_get(item, "content"));
        if (!text || id < 0 || id >= n)
            return false;
        texts[id] = text;
        types[id] =
            json_is_true(json_object_get(item, "special")) ? TOKEN_CONTROL : TOKEN_USER_DEFINED;
    }
    return true;
}

/* A merge is written "a b", in newer files ["a", "b"]. False for anything else. */
static bool put_merge(struct moe_buf *out, const json_t *merge)
{
    const char *a = json_string_value(json_array_get(merge, 0));
    const char *b = json_string_value(json_array_get(merge, 1));
    if (json_is_string(merge)) {
        put_text(out, json_string_value(merge));
    } else if (a && b) {
        moe_buf_u64(out, strlen(a) + 1 + strlen(b));
        moe_buf_printf(out, "%s %s", a, b);
    }
    return json_is_string(merge) || (a && b);
}

static int put_vocabulary(struct gguf *g, const char *path, const json_t *tokenizer,
                          struct moe_err *err)
{
    uint32_t n = g->config.vocab;
    const char **texts = moe_alloc(n, sizeof *texts, err);
    uint32_t *types = moe_alloc(n, sizeof *types, err);
    const json_t *merges = json_object_get(json_object_get(tokenizer, "model"), "merges");
    const json_t *merge;
    size_t i;
    int status = texts && types ? MOE_OK : MOE_ERR_MEMORY;
    if (status == MOE_OK && !list_tokens(tokenizer, texts, types, n))
        status =
            moe_fail(err, MOE_ERR_FORMAT, "%s: a token's number is not below %" PRIu32, path, n);
    if (status == MOE_OK) {
        put_array(g, "tokenizer.ggml.tokens", TEXT, n);
        for (uint32_t id = 0; id < n; id++) {
            char unused[32];
            snprintf(unused, sizeof unused, "[PAD%" PRIu32 "]", id);
            put_text(&g->values, texts[id] ? texts[id] : unused);
        }
        put_array(g, "tokenizer.ggml.token_type", I32, n);
        for (uint32_t id = 0; id < n; id++)
            moe_buf_u32(&g->values, texts[id] ? types[id] : TOKEN_UNUSED);
        put_array(g, "tokenizer.ggml.merges", TEXT, json_array_size(merges));
        json_array_foreach(merges, i, merge) if (status == MOE_OK && !put_merge(&g->values, merge))
            status = moe_fail(err, MOE_ERR_FORMAT, "%s: merge %zu is no pair", path, i);
    }
    free(texts);
    free(types);
    return status;
}

static int put_tokenizer(struct gguf *g, struct moe_err *err)
{
    char *path = moe_path_join(g->src, "tokenizer.json", err);
    json_t *tokenizer = NULL;
    int status = path ? moe_json_read(&tokenizer, path, 256 << 20, MOE_JSON_TOKENIZER_MEMORY, err)
                      : MOE_ERR_MEMORY;
    if (status == MOE_OK && !is_qwen2_split(tokenizer))
        status = moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: not the pre-tokenizer of Qwen2", path);
    if (status == MOE_OK) {
        put_key(g, "tokenizer.ggml.model", TEXT);
        put_text(&g->values, "gpt2");
        put_key(g, "tokenizer.ggml.pre", TEXT);
        put_text(&g->values, "qwen2");
        status = put_vocabulary(g, path, tokenizer, err);
    }
    moe_json_free(tokenizer);
    free(path);
    return status;
}

static int put_specials(struct gguf *g, struct moe_err *err)
{
    struct moe_buf jinja = {0};
    uint32_t bos = UINT32_MAX;
    char *path = moe_path_join(g->src, "config.json", err);
    json_t *config = NULL;
    int status =
        path ? moe_json_read(&config, path, 1 << 20, MOE_JSON_CONFIG_MEMORY, err) : MOE_ERR_MEMORY;
    if (status == MOE_OK)
        status =
            moe_json_get_u32(path, config, "bos_token_id", g->config.vocab - 1, false, &bos, err);
    if (status == MOE_OK)
        status = moe_chat_read_template(g->src, &jinja, err);
    if (status == MOE_OK) {
        if (bos != UINT32_MAX)
            put_u32(g, "tokenizer.ggml.bos_token_id", bos);
        if (g->config.n_eos)
            put_u32(g, "tokenizer.ggml.eos_token_id", g->config.eos[0]);
        put_key(g, "tokenizer.ggml.add_bos_token", BOOL);
        moe_buf_u8(&g->values, 0);
        if (jinja.size) {
            put_key(g, "tokenizer.chat_template", TEXT);
            put_text(&g->values, (const char *)jinja.data);
        }
    }
    moe_json_free(config);
    moe_buf_release(&jinja);
    free(path);
    return status;
}

/* ---- Tensors ---- */

static uint64_t align(uint64_t n)
{
    return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static uint64_t row_bytes(const struct gguf *g, const struct output *o)
{
    return g->sizes[o->entry->cols] / o->type->block * o->type->block_bytes;
}

static uint64_t n_parts(const struct gguf *g, const struct output *o)
{
    return o->entry->per_expert ? g->sizes[EXPERTS] : 1;
}

static int add_output(struct gguf *g, const struct entry *entry, int layer, struct moe_err *err)
{
    struct output *o = &g->outputs[g->n_outputs++];
    *o = (struct output){.entry = entry, .layer = layer, .offset = g->data_bytes};
    o->type = entry->f32 ? &TYPES[0] : g->type;
    if (g->sizes[entry->cols] % o->type->block)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: rows of %s have %" PRIu64 " values, not a multiple of %" PRIu32,
                        g->src, entry->hf, g->sizes[entry->cols], o->type->block);
    o->bytes = row_bytes(g, o) * g->sizes[entry->rows] * n_parts(g, o);
    g->data_bytes += align(o->bytes);
    return MOE_OK;
}

static int list_outputs(struct gguf *g, struct moe_err *err)
{
    const struct moe_config *c = &g->config;
    const uint64_t sizes[N_SIZES] = {1,
                                     c->hidden,
                                     c->vocab,
                                     (uint64_t)c->n_heads * c->head_dim,
                                     (uint64_t)c->n_kv_heads * c->head_dim,
                                     c->n_experts,
                                     c->expert_ff,
                                     c->shared_ff};
    memcpy(g->sizes, sizes, sizeof sizes);
    const struct entry *entries = g->mixtral ? MIXTRAL : QWEN2_MOE;
    const size_t n =
        g->mixtral ? sizeof MIXTRAL / sizeof *MIXTRAL : sizeof QWEN2_MOE / sizeof *QWEN2_MOE;
    int status = add_output(g, &EMBEDDING, -1, err);
    for (int layer = 0; layer < (int)c->n_layers; layer++)
        for (size_t i = 0; i < n && status == MOE_OK; i++)
            status = add_output(g, &entries[i], layer, err);
    if (status == MOE_OK)
        status = add_output(g, &OUTPUT_NORM, -1, err);
    if (status == MOE_OK)
        status = add_output(g, c->tied_head ? &TIED_OUTPUT : &OUTPUT, -1, err);
    return status;
}

static void put_tensor_info(const struct gguf *g, const struct output *o, struct moe_buf *out)
{
    char name[96];
    if (o->layer < 0)
        snprintf(name, sizeof name, "%s", o->entry->gguf);
    else
        snprintf(name, sizeof name, "blk.%d.%s", o->layer, o->entry->gguf);
    put_text(out, name);
    bool vector = o->entry->rows == ONE;
    moe_buf_u32(out, vector ? 1 : o->entry->per_expert ? 3 : 2);
    moe_buf_u64(out, g->sizes[o->entry->cols]); /* innermost first */
    if (!vector)
        moe_buf_u64(out, g->sizes[o->entry->rows]);
    if (o->entry->per_expert)
        moe_buf_u64(out, g->sizes[EXPERTS]);
    moe_buf_u32(out, o->type->number);
    moe_buf_u64(out, o->offset);
}

/* ---- Values ---- */

static uint64_t encode_f16(const float *x, uint64_t n, uint8_t *to)
{
    uint64_t n_rounded = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint16_t bits = moe_f32_to_f16(x[i]);
        n_rounded += moe_f16_to_f32(bits) != x[i];
        moe_put_u16(to + 2 * i, bits);
    }
    return n_rounded;
}

static uint64_t encode_q8_0(const float *x, uint8_t *to)
{
    uint64_t n_rounded = 0;
    float most = 0;
    for (int i = 0; i < BLOCK; i++)
        most = fmaxf(most, fabsf(x[i]));
    float d = most / 127, inverse = d != 0 ? 1 / d : 0;
    uint16_t scale = moe_f32_to_f16(d);
    moe_put_u16(to, scale);
    for (int i = 0; i < BLOCK; i++) {
        int8_t q = (int8_t)roundf(x[i] * inverse);
        to[2 + i] = (uint8_t)q;
        n_rounded += moe_f16_to_f32(scale) * q != x[i];
    }
    return n_rounded;
}

static uint64_t encode_q4_0(const float *x, uint8_t *to)
{
    uint64_t n_rounded = 0;
    float most = 0;
    for (int i = 0; i < BLOCK; i++)
        most = fabsf(x[i]) > fabsf(most) ? x[i] : most;
    float d = most / -8, inverse = d != 0 ? 1 / d : 0;
    uint16_t scale = moe_f32_to_f16(d);
    moe_put_u16(to, scale);
    memset(to + 2, 0, BLOCK / 2);
    for (int i = 0; i < BLOCK; i++) {
        int q = (int)(x[i] * inverse + 8.5f);
        q = q < 15 ? q : 15;
        to[2 + i % (BLOCK / 2)] |= (uint8_t)(i < BLOCK / 2 ? q : q << 4);
        n_rounded += moe_f16_to_f32(scale) * (float)(q - 8) != x[i];
    }
    return n_rounded;
}

/* n values, whole blocks; counts those that the file gives back as others. */
static uint64_t encode(const struct type *type, const float *x, uint64_t n, uint8_t *to)
{
    uint64_t n_rounded = 0;
    if (type == &TYPES[0])
        for (uint64_t i = 0; i < n; i++)
            moe_put_u32(to + 4 * i, moe_f32_bits(x[i]));
    else if (type == &TYPES[1])
        n_rounded = encode_f16(x, n, to);
    else
        for (uint64_t i = 0; i < n / BLOCK; i++, x += BLOCK, to += type->block_bytes)
            n_rounded += type == &TYPES[2] ? encode_q8_0(x, to) : encode_q4_0(x, to);
    return n_rounded;
}

static int find_source(const struct gguf *g, const struct output *o, uint64_t part,
                       const struct moe_tensor **out, struct moe_err *err)
{
    char name[160];
    if (o->layer < 0)
        snprintf(name, sizeof name, "%s", o->entry->hf);
    else if (o->entry->per_expert)
        snprintf(name, sizeof name, "model.layers.%d.%s.experts.%" PRIu64 ".%s", o->layer,
                 g->mixtral ? "block_sparse_moe" : "mlp", part, o->entry->hf);
    else
        snprintf(name, sizeof name, "model.layers.%d.%s", o->layer, o->entry->hf);
    const uint64_t dims[2] = {g->sizes[o->entry->rows], g->sizes[o->entry->cols]};
    bool vector = o->entry->rows == ONE && !o->entry->flat;
    return moe_checkpoint_get(g->ck, name, vector ? 1 : 2, vector ? dims + 1 : dims, out, err);
}

/* The checkpoint's row that is row `row` of the file. */
static uint64_t source_row(const struct gguf *g, const struct output *o, uint64_t row)
{
    const uint64_t head = g->config.head_dim, at = row % head;
    return o->entry->paired ? row - at + at % 2 * (head / 2) + at / 2 : row;
}

/* One tensor, part after part in batches of rows; `data` is where the file's data begin. */
static int write_tensor(struct gguf *g, const struct output *o, struct moe_outfile *file,
                        uint64_t data, struct moe_err *err)
{
    uint64_t cols = g->sizes[o->entry->cols], rows = g->sizes[o->entry->rows];
    uint64_t batch = BATCH_BYTES / (cols * sizeof(float));
    batch = batch < 1 || o->entry->paired ? 1 : batch < rows ? batch : rows;
    float *from = moe_alloc(batch * cols, sizeof *from, err);
    uint8_t *to = moe_alloc(batch, row_bytes(g, o), err);
    int status = from && to ? MOE_OK : MOE_ERR_MEMORY;
    uint64_t at = data + o->offset;
    for (uint64_t part = 0; part < n_parts(g, o) && status == MOE_OK; part++) {
        const struct moe_tensor *source = NULL;
        status = find_source(g, o, part, &source, err);
        for (uint64_t row = 0; row < rows && status == MOE_OK; row += batch) {
            uint64_t n = rows - row < batch ? rows - row : batch;
            status = moe_checkpoint_read(g->ck, source, source_row(g, o, row) * cols, n * cols,
                                         from, err);
            if (status != MOE_OK)
                break;
            g->n_rounded += encode(o->type, from, n * cols, to);
            g->n_weights += o->entry->f32 ? 0 : n * cols;
            status = moe_outfile_write(file, to, n * row_bytes(g, o), at, err);
            at += n * row_bytes(g, o);
        }
    }
    free(from);
    free(to);
    return status;
}

/* ---- Program ---- */

static int write_file(struct gguf *g, struct moe_err *err)
{
    static const uint8_t zeros[ALIGNMENT];
    struct moe_outfile file;
    struct moe_buf head = {0};
    moe_buf_text(&head, "GGUF");
    moe_buf_u32(&head, 3);
    moe_buf_u64(&head, g->n_outputs);
    moe_buf_u64(&head, g->n_values);
    moe_buf_append(&head, g->values.data, g->values.size);
    for (uint64_t i = 0; i < g->n_outputs; i++)
        put_tensor_info(g, &g->outputs[i], &head);
    moe_buf_append(&head, zeros, align(head.size) - head.size);
    int status = head.failed || g->values.failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory")
                                                 : moe_outfile_open(&file, g->dst, err);
    if (status == MOE_OK) {
        status = moe_outfile_write(&file, head.data, head.size, 0, err);
        for (uint64_t i = 0; i < g->n_outputs && status == MOE_OK; i++)
            status = write_tensor(g, &g->outputs[i], &file, head.size, err);
        uint64_t end = head.size + g->data_bytes;
        if (status == MOE_OK && file.size_bytes < end)
            status = moe_outfile_write(&file, zeros, end - file.size_bytes, file.size_bytes, err);
        if (status == MOE_OK)
            status = moe_outfile_commit(&file, err);
        else
            moe_outfile_abort(&file);
    }
    moe_buf_release(&head);
    return status;
}

/* What llama.cpp's graph of this architecture does not have. */
static int check_config(const struct gguf *g, struct moe_err *err)
{
    const struct moe_config *c = &g->config;
    bool all_moe = true;
    for (uint32_t layer = 0; layer < c->n_layers; layer++)
        all_moe &= c->layers[layer].moe != 0;
    const bool qwen = !c->norm_topk && c->shared_ff && c->shared_gate && c->qkv_bias;
    const bool mixtral = c->norm_topk && !c->shared_ff && !c->qkv_bias;
    if (!all_moe || !(g->mixtral ? mixtral : qwen) || c->n_rope_freqs || c->window)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: neither a Qwen2-MoE with experts in every layer, a shared one, biases "
                        "and plain rotary positions, nor a Mixtral",
                        g->src);
    if ((uint64_t)c->n_heads * c->head_dim != c->hidden)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: llama.cpp's graph wants heads that fill the %" PRIu32
                        " hidden units: widen with as many --heads as --hidden",
                        g->src, c->hidden);
    return MOE_OK;
}

static int convert(struct gguf *g, struct moe_err *err)
{
    int status = moe_config_read_hf(&g->config, g->src, err);
    g->mixtral = status == MOE_OK && !g->config.shared_ff;
    if (status == MOE_OK)
        status = check_config(g, err);
    if (status == MOE_OK)
        status = moe_checkpoint_open(&g->ck, g->src, err);
    if (status == MOE_OK)
        status = list_outputs(g, err);
    if (status == MOE_OK) {
        put_model(g);
        status = put_tokenizer(g, err);
    }
    if (status == MOE_OK)
        status = put_specials(g, err);
    if (status == MOE_OK)
        status = write_file(g, err);
    moe_buf_release(&g->values);
    moe_checkpoint_close(g->ck);
    return status;
}

static int usage(void)
{
    fputs("usage: write_gguf [--type f16|f32|q8_0|q4_0] SRC_DIR OUT.gguf\n", stderr);
    return 2;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"type", required_argument, NULL, 't'}, {0}};
    static struct gguf g = {.type = &TYPES[1]};
    struct moe_err err = {0};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        size_t i = 0;
        while (c == 't' && i < sizeof TYPES / sizeof *TYPES && strcmp(optarg, TYPES[i].name) != 0)
            i++;
        if (c != 't' || i == sizeof TYPES / sizeof *TYPES)
            return usage();
        g.type = &TYPES[i];
    }
    if (argc - optind != 2)
        return usage();
    g.src = argv[optind];
    g.dst = argv[optind + 1];
    if (convert(&g, &err) != MOE_OK) {
        fprintf(stderr, "write_gguf: %s\n", err.text);
        return 1;
    }
    printf("%s: %" PRIu64 " tensors, %" PRIu64 " weights in %s, %" PRIu64 " of them rounded\n",
           g.dst, g.n_outputs, g.n_weights, g.type->name, g.n_rounded);
    return 0;
}
