/*
 * widen: makes a wider model that computes the same function, for benchmarks.
 *
 *     widen [--hidden F] [--ff G] [--heads H] [--layers N] [--shard-bytes SIZE] SRC_DIR DST_DIR
 *
 * Every hidden unit of a Qwen2-MoE or Switch Transformers checkpoint is repeated F
 * times and every feed-forward unit G times, powers of two: unit i becomes i, n + i, 2n + i, ... of
 * the wider model. A matrix that produces repeated units has its rows repeated; one that sums over
 * them has its columns repeated and its weights divided, which is exact, since it changes the
 * exponent alone (where a weight would lose a bit, widen refuses). The heads of attention stay as
 * they are, so head_dim is written out; with --heads they are repeated too, those of keys and
 * values alike (llama.cpp's graph wants as many as the hidden units fill, H = F). A tied output
 * head sums over hidden units and so becomes a tensor of its own. With Switch Transformers, which
 * scale a tied head's input by the root of their width, it stays tied: the sum and the scale leave
 * the root of F over, by which the norm before it is divided, so that F is then a power of four.
 *
 * With --layers only the first N of a Qwen2-MoE are taken: a model that says little, and costs
 * tests little.
 *
 * Weights in bf16 stay so; those in f16, of which a divided one may lose bits, become f32.
 *
 * At the end three rows of every tensor are read back and compared with the source.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/float16.h"
#include "base/mem.h"
#include "base/text.h"
#include "fmt/checkpoint.h"

enum axis { KEEP, HIDDEN, FF, HEADS, N_AXES };

/* What the rows and columns of a tensor count, by the end of its name. */
struct rule {
    const char *suffix;
    enum axis rows, cols;
    bool undivided;   /* columns are outputs: the embedding is used row by row */
    bool before_head; /* the norm whose output a tied head takes */
    bool joins;       /* columns are two inputs of equal widths, one behind the other */
};

static const struct rule qwen2_moe[] = {
    {.suffix = "model.embed_tokens.weight", .cols = HIDDEN, .undivided = true},
    {.suffix = "lm_head.weight", .cols = HIDDEN},
    {.suffix = "model.norm.weight", .rows = HIDDEN},
    {.suffix = ".input_layernorm.weight", .rows = HIDDEN},
    {.suffix = ".post_attention_layernorm.weight", .rows = HIDDEN},
    {.suffix = ".self_attn.q_proj.weight", .rows = HEADS, .cols = HIDDEN},
    {.suffix = ".self_attn.k_proj.weight", .rows = HEADS, .cols = HIDDEN},
    {.suffix = ".self_attn.v_proj.weight", .rows = HEADS, .cols = HIDDEN},
    {.suffix = ".self_attn.q_proj.bias", .rows = HEADS},
    {.suffix = ".self_attn.k_proj.bias", .rows = HEADS},
    {.suffix = ".self_attn.v_proj.bias", .rows = HEADS},
    {.suffix = ".self_attn.o_proj.weight", .rows = HIDDEN, .cols = HEADS},
    {.suffix = ".mlp.gate.weight", .cols = HIDDEN},
    {.suffix = ".shared_expert_gate.weight", .cols = HIDDEN},
    {.suffix = ".gate_proj.weight", .rows = FF, .cols = HIDDEN},
    {.suffix = ".up_proj.weight", .rows = FF, .cols = HIDDEN},
    {.suffix = ".down_proj.weight", .rows = HIDDEN, .cols = FF},
    /* Of a layer that drafts (MTP). */
    {.suffix = ".enorm.weight", .rows = HIDDEN},
    {.suffix = ".hnorm.weight", .rows = HIDDEN},
    {.suffix = ".shared_head.norm.weight", .rows = HIDDEN},
    {.suffix = ".eh_proj.weight", .rows = HIDDEN, .cols = HIDDEN, .joins = true},
};

static const struct rule switch_transformers[] = {
    {.suffix = "shared.weight", .cols = HIDDEN, .undivided = true},
    {.suffix = ".embed_tokens.weight", .cols = HIDDEN, .undivided = true},
    {.suffix = "lm_head.weight", .cols = HIDDEN},
    {.suffix = "decoder.final_layer_norm.weight", .rows = HIDDEN, .before_head = true},
    {.suffix = "layer_norm.weight", .rows = HIDDEN},
    {.suffix = "Attention.q.weight", .rows = HEADS, .cols = HIDDEN},
    {.suffix = "Attention.k.weight", .rows = HEADS, .cols = HIDDEN},
    {.suffix = "Attention.v.weight", .rows = HEADS, .cols = HIDDEN},
    {.suffix = "Attention.o.weight", .rows = HIDDEN, .cols = HEADS},
    {.suffix = ".relative_attention_bias.weight", .cols = HEADS, .undivided = true},
    {.suffix = ".router.classifier.weight", .cols = HIDDEN},
    {.suffix = ".router.classifier.bias"},
    {.suffix = ".wi.weight", .rows = FF, .cols = HIDDEN},
    {.suffix = ".wo.weight", .rows = HIDDEN, .cols = FF},
};

/* The models that can be widened: their tensors, and which numbers of config.json grow. */
static const struct kind {
    const char *type;
    const struct rule *rules;
    size_t n_rules;
    struct {
        const char *key;
        enum axis axis;
    } numbers[8];
    bool stays_tied;
} kinds[] = {
    {.type = "qwen2_moe",
     .rules = qwen2_moe,
     .n_rules = sizeof qwen2_moe / sizeof qwen2_moe[0],
     .numbers = {{"num_attention_heads", HEADS},
                 {"num_key_value_heads", HEADS},
                 {"hidden_size", HIDDEN},
                 {"intermediate_size", FF},
                 {"moe_intermediate_size", FF},
                 {"shared_expert_intermediate_size", FF}}},
    {.type = "switch_transformers",
     .rules = switch_transformers,
     .n_rules = sizeof switch_transformers / sizeof switch_transformers[0],
     .numbers = {{"num_heads", HEADS}, {"d_model", HIDDEN}, {"d_ff", FF}},
     .stays_tied = true},
};

/* A tensor to be written. */
struct output {
    const char *name;
    const struct moe_tensor *source;
    uint64_t rows, cols;           /* of the source; a vector has one column */
    uint64_t row_times, col_times; /* repetitions */
    uint64_t run;                  /* columns that are repeated together: all, or half of them */
    uint32_t item;                 /* bytes of a weight */
    float factor;                  /* of every weight */
    int shard;                     /* number, from 0 */
    uint64_t begin, bytes;         /* in that shard's data */
};

struct widening {
    const struct kind *kind;
    bool tied; /* the head is the embedding, in the wide model too */
    uint64_t times[N_AXES];
    uint64_t n_layers; /* that are taken; 0: all */
    uint64_t shard_bytes;
    const char *src, *dst;
    struct moe_checkpoint *ck;
    struct output *outputs;
    uint64_t n_outputs;
    int n_shards;
};

/* ---- What becomes of each tensor ---- */

static const struct rule *rule_of(const struct kind *kind, const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < kind->n_rules; i++) {
        size_t suffix = strlen(kind->rules[i].suffix);
        if (n >= suffix && strcmp(name + n - suffix, kind->rules[i].suffix) == 0)
            return &kind->rules[i];
    }
    return NULL;
}

/* The root of a power of four; 0: it is none. */
static uint64_t root_of(uint64_t n)
{
    uint64_t root = 1;
    while (root * root < n)
        root *= 2;
    return root * root == n ? root : 0;
}

static int add_output(struct widening *w, const char *name, const struct moe_tensor *source,
                      struct moe_err *err)
{
    const struct rule *rule = rule_of(w->kind, name);
    if (!rule)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: tensor '%s' is none of %s", w->src, name,
                        w->kind->type);
    bool known = source->dtype == MOE_DTYPE_BF16 || source->dtype == MOE_DTYPE_F16 ||
                 source->dtype == MOE_DTYPE_F32;
    if (!known || source->n_dims > 2)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: tensor '%s' is not a vector or matrix of floats", w->src, name);
    struct output *o = &w->outputs[w->n_outputs++];
    *o = (struct output){.name = name, .source = source, .rows = source->dims[0], .cols = 1};
    if (source->n_dims == 2)
        o->cols = source->dims[1];
    o->item = source->dtype == MOE_DTYPE_BF16 ? 2 : 4;
    o->row_times = w->times[rule->rows];
    o->col_times = w->times[rule->cols];
    o->run = rule->joins ? o->cols / 2 : o->cols;
    o->factor = rule->undivided ? 1 : 1 / (float)o->col_times;
    if (rule->before_head && w->tied)
        o->factor = 1 / (float)root_of(w->times[HIDDEN]);
    o->bytes = o->rows * o->cols * o->row_times * o->col_times * o->item;
    struct output *before = w->n_outputs > 1 ? o - 1 : NULL;
    if (before) {
        o->shard = before->shard;
        o->begin = before->begin + before->bytes;
    }
    if (o->begin > 0 && o->begin + o->bytes > w->shard_bytes) {
        o->shard++;
        o->begin = 0;
    }
    w->n_shards = o->shard + 1;
    return MOE_OK;
}

static int list_outputs(struct widening *w, struct moe_err *err)
{
    uint64_t n = moe_checkpoint_n_tensors(w->ck);
    const struct moe_tensor *embedding = moe_checkpoint_find(w->ck, "model.embed_tokens.weight");
    w->outputs = moe_alloc(n + 1, sizeof *w->outputs, err);
    if (!w->outputs)
        return MOE_ERR_MEMORY;
    int status = MOE_OK;
    if (embedding && !w->kind->stays_tied && !moe_checkpoint_find(w->ck, "lm_head.weight"))
        status = add_output(w, "lm_head.weight", embedding, err);
    for (uint64_t i = 0; i < n && status == MOE_OK; i++) {
        const struct moe_tensor *t = moe_checkpoint_at(w->ck, i);
        uint64_t layer;
        if (w->n_layers && sscanf(t->name, "model.layers.%" SCNu64, &layer) == 1 &&
            layer >= w->n_layers)
            continue;
        status = add_output(w, t->name, t, err);
    }
    return status;
}

/* ---- Shards ---- */

static char *shard_path(const struct widening *w, int shard, struct moe_err *err)
{
    char name[64];
    snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", shard + 1, w->n_shards);
    return moe_path_join(w->dst, name, err);
}

/* The length and JSON header of a shard, padded so that the data begin at a multiple of 8. */
static int shard_header(const struct widening *w, int shard, struct moe_buf *header,
                        struct moe_err *err)
{
    struct moe_buf json = {0};
    moe_buf_text(&json, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (uint64_t i = 0; i < w->n_outputs; i++) {
        const struct output *o = &w->outputs[i];
        if (o->shard != shard)
            continue;
        moe_buf_printf(&json, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%" PRIu64, o->name,
                       o->item == 4 ? "F32" : "BF16", o->rows * o->row_times);
        if (o->source->n_dims == 2)
            moe_buf_printf(&json, ",%" PRIu64, o->cols * o->col_times);
        moe_buf_printf(&json, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", o->begin,
                       o->begin + o->bytes);
    }
    moe_buf_text(&json, "}");
    while (json.size % 8 && !json.failed)
        moe_buf_text(&json, " ");
    moe_buf_u64(header, json.size);
    moe_buf_append(header, json.data, json.size);
    bool failed = json.failed || header->failed;
    moe_buf_release(&json);
    return failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory") : MOE_OK;
}

/* `run` columns of a source row, repeated; false when a weight cannot be divided exactly. */
static bool widen_run(const struct output *o, const float *from, uint8_t *to)
{
    uint64_t bytes = o->item * o->run;
    for (uint64_t c = 0; c < o->run; c++) {
        float value = from[c] * o->factor;
        if (o->item == 4) {
            moe_put_u32(to + 4 * c, moe_f32_bits(value));
        } else {
            moe_put_u16(to + 2 * c, moe_f32_to_bf16(value));
            value = moe_bf16_to_f32(moe_f32_to_bf16(value));
        }
        if (value / o->factor != from[c])
            return false;
    }
    for (uint64_t k = 1; k < o->col_times; k++)
        memcpy(to + k * bytes, to, bytes);
    return true;
}

static bool widen_row(const struct output *o, const float *from, uint8_t *to)
{
    bool exact = true;
    for (uint64_t c = 0; c < o->cols && exact; c += o->run)
        exact = widen_run(o, from + c, to + o->item * c * o->col_times);
    return exact;
}

/* Streams one tensor in batches of rows; `data` is where the shard's data begin. */
static int write_tensor(const struct widening *w, const struct output *o, struct moe_outfile *out,
                        uint64_t data, struct moe_err *err)
{
    uint64_t row_bytes = o->item * o->cols * o->col_times;
    uint64_t batch = (8u << 20) / row_bytes ? (8u << 20) / row_bytes : 1;
    batch = batch < o->rows ? batch : o->rows;
    float *from = moe_alloc(batch * o->cols, sizeof *from, err);
    uint8_t *to = moe_alloc(batch, row_bytes, err);
    int status = from && to ? MOE_OK : MOE_ERR_MEMORY;
    for (uint64_t row = 0; row < o->rows && status == MOE_OK; row += batch) {
        uint64_t n = o->rows - row < batch ? o->rows - row : batch;
        status = moe_checkpoint_read(w->ck, o->source, row * o->cols, n * o->cols, from, err);
        for (uint64_t r = 0; r < n && status == MOE_OK; r++)
            if (!widen_row(o, from + r * o->cols, to + r * row_bytes))
                status = moe_fail(err, MOE_ERR_LIMIT,
                                  "%s: tensor '%s' row %" PRIu64
                                  ": a weight is too small to be divided exactly",
                                  w->src, o->name, row + r);
        for (uint64_t k = 0; k < o->row_times && status == MOE_OK; k++)
            status = moe_outfile_write(out, to, n * row_bytes,
                                       data + o->begin + (k * o->rows + row) * row_bytes, err);
    }
    free(from);
    free(to);
    return status;
}

static int write_shard(const struct widening *w, int shard, struct moe_err *err)
{
    struct moe_buf header = {0};
    struct moe_outfile out;
    char *path = shard_path(w, shard, err);
    int status = path ? shard_header(w, shard, &header, err) : MOE_ERR_MEMORY;
    if (status == MOE_OK)
        status = moe_outfile_open(&out, path, err);
    if (status == MOE_OK) {
        status = moe_outfile_write(&out, header.data, header.size, 0, err);
        for (uint64_t i = 0; i < w->n_outputs && status == MOE_OK; i++)
            if (w->outputs[i].shard == shard)
                status = write_tensor(w, &w->outputs[i], &out, header.size, err);
        if (status == MOE_OK)
            status = moe_outfile_commit(&out, err);
        else
            moe_outfile_abort(&out);
    }
    moe_buf_release(&header);
    free(path);
    return status;
}

/* ---- The files beside the weights ---- */

static int write_json(const struct widening *w, const char *name, const json_t *json,
                      struct moe_err *err)
{
    char *path = moe_path_join(w->dst, name, err);
    char *text = json_dumps(json, JSON_INDENT(2));
    int status = path && text ? moe_file_write_all(path, text, strlen(text), err)
                              : moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    free(path);
    free(text);
    return status;
}

static int write_index(const struct widening *w, struct moe_err *err)
{
    json_t *index = json_object(), *map = json_object();
    uint64_t total = 0;
    for (uint64_t i = 0; i < w->n_outputs; i++) {
        char name[64];
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", w->outputs[i].shard + 1,
                 w->n_shards);
        json_object_set_new(map, w->outputs[i].name, json_string(name));
        total += w->outputs[i].bytes;
    }
    json_object_set_new(index, "metadata", json_pack("{s:I}", "total_size", (json_int_t)total));
    json_object_set_new(index, "weight_map", map);
    int status = write_json(w, "model.safetensors.index.json", index, err);
    json_decref(index);
    return status;
}

static void multiply(json_t *config, const char *key, uint64_t times)
{
    json_t *value = json_object_get(config, key);
    if (json_is_integer(value))
        json_integer_set(value, json_integer_value(value) * (json_int_t)times);
}

static const struct kind *kind_of(const char *type)
{
    for (size_t i = 0; type && i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(type, kinds[i].type) == 0)
            return &kinds[i];
    return NULL;
}

/* Makes the description that of the wide model. */
static int widen_config(struct widening *w, json_t *config, const char *path, struct moe_err *err)
{
    const json_t *hidden = json_object_get(config, "hidden_size"),
                 *heads = json_object_get(config, "num_attention_heads");
    w->kind = kind_of(json_string_value(json_object_get(config, "model_type")));
    if (!w->kind)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: not the config of a qwen2_moe or switch_transformers model", path);
    w->tied = w->kind->stays_tied && !json_is_false(json_object_get(config, "tie_word_embeddings"));
    if (w->tied && root_of(w->times[HIDDEN]) == 0)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: its head is its embedding: --hidden must be a power of four", path);
    if (!w->kind->stays_tied) {
        if (json_integer_value(hidden) <= 0 || json_integer_value(heads) <= 0)
            return moe_fail(err, MOE_ERR_FORMAT, "%s: no 'hidden_size' for heads", path);
        if (!json_is_integer(json_object_get(config, "head_dim")))
            json_object_set_new(
                config, "head_dim",
                json_integer(json_integer_value(hidden) / json_integer_value(heads)));
        json_object_set_new(config, "tie_word_embeddings", json_false());
    }
    if (w->n_layers) {
        json_t *layers = json_object_get(config, "num_hidden_layers");
        if (w->n_layers > (uint64_t)json_integer_value(layers))
            return moe_fail(err, MOE_ERR_USAGE, "%s: has fewer layers than --layers asks for",
                            path);
        json_integer_set(layers, (json_int_t)w->n_layers);
    }
    for (int i = 0; w->kind->numbers[i].key; i++)
        multiply(config, w->kind->numbers[i].key, w->times[w->kind->numbers[i].axis]);
    return MOE_OK;
}

static int write_config(struct widening *w, struct moe_err *err)
{
    char *path = moe_path_join(w->src, "config.json", err);
    if (!path)
        return MOE_ERR_MEMORY;
    json_error_t why;
    json_t *config = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
    int status = config
                     ? widen_config(w, config, path, err)
                     : moe_fail(err, MOE_ERR_FORMAT, "%s: line %d: %s", path, why.line, why.text);
    if (status == MOE_OK)
        status = write_json(w, "config.json", config, err);
    json_decref(config);
    free(path);
    return status;
}

/* Copies the model's other files, where they exist. */
static int copy_others(const struct widening *w, struct moe_err *err)
{
    static const char *const names[] = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "chat_template.jinja",
                                        "generation_config.json"};
    int status = MOE_OK;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && status == MOE_OK; i++) {
        struct moe_buf text = {0};
        char *from = moe_path_join(w->src, names[i], err),
             *to = moe_path_join(w->dst, names[i], err);
        if (!from || !to)
            status = MOE_ERR_MEMORY;
        else if (moe_path_exists(from))
            status = moe_file_read_all(from, 256 << 20, &text, err);
        if (status == MOE_OK && text.data)
            status = moe_file_write_all(to, text.data, text.size, err);
        moe_buf_release(&text);
        free(from);
        free(to);
    }
    return status;
}

/* ---- Reading back ---- */

/* Compares row `row` of the source with all its copies. from: cols, wide: cols * col_times. */
static int check_row(const struct widening *w, const struct output *o,
                     const struct moe_checkpoint *wide_ck, const struct moe_tensor *wide_tensor,
                     uint64_t row, float *from, float *wide, struct moe_err *err)
{
    uint64_t wide_cols = o->cols * o->col_times;
    int status = moe_checkpoint_read(w->ck, o->source, row * o->cols, o->cols, from, err);
    for (uint64_t k = 0; k < o->row_times && status == MOE_OK; k++) {
        uint64_t first = (k * o->rows + row) * wide_cols;
        status = moe_checkpoint_read(wide_ck, wide_tensor, first, wide_cols, wide, err);
        for (uint64_t c = 0; c < wide_cols && status == MOE_OK; c++)
            if (wide[c] / o->factor != from[c / (o->run * o->col_times) * o->run + c % o->run])
                status = moe_fail(err, MOE_ERR_LIMIT,
                                  "%s: tensor '%s' row %" PRIu64 " column %" PRIu64
                                  " is not the weight of the source",
                                  w->dst, o->name, k * o->rows + row, c);
    }
    return status;
}

static int check_tensor(const struct widening *w, const struct output *o,
                        const struct moe_checkpoint *wide_ck, struct moe_err *err)
{
    const uint64_t dims[2] = {o->rows * o->row_times, o->cols * o->col_times};
    const uint64_t rows[3] = {0, o->rows / 2, o->rows - 1};
    const struct moe_tensor *t;
    int status = moe_checkpoint_get(wide_ck, o->name, o->source->n_dims, dims, &t, err);
    if (status != MOE_OK)
        return status;
    float *from = moe_alloc(o->cols, sizeof *from, err);
    float *wide = moe_alloc(dims[1], sizeof *wide, err);
    status = from && wide ? MOE_OK : MOE_ERR_MEMORY;
    for (int i = 0; i < 3 && status == MOE_OK; i++)
        status = check_row(w, o, wide_ck, t, rows[i], from, wide, err);
    free(from);
    free(wide);
    return status;
}

static int check_all(const struct widening *w, struct moe_err *err)
{
    struct moe_checkpoint *wide_ck;
    int status = moe_checkpoint_open(&wide_ck, w->dst, err);
    if (status != MOE_OK)
        return status;
    for (uint64_t i = 0; i < w->n_outputs && status == MOE_OK; i++)
        status = check_tensor(w, &w->outputs[i], wide_ck, err);
    moe_checkpoint_close(wide_ck);
    return status;
}

/* ---- Program ---- */

static int widen(struct widening *w, struct moe_err *err)
{
    if (mkdir(w->dst, 0777) != 0 && errno != EEXIST)
        return moe_fail(err, MOE_ERR_IO, "%s: cannot make the directory", w->dst);
    struct stat from, to;
    if (stat(w->src, &from) == 0 && stat(w->dst, &to) == 0 && from.st_ino == to.st_ino &&
        from.st_dev == to.st_dev)
        return moe_fail(err, MOE_ERR_USAGE, "%s: is the source itself", w->dst);
    int status = moe_checkpoint_open(&w->ck, w->src, err);
    if (status == MOE_OK)
        status = write_config(w, err);
    if (status == MOE_OK)
        status = list_outputs(w, err);
    for (int shard = 0; shard < w->n_shards && status == MOE_OK; shard++)
        status = write_shard(w, shard, err);
    if (status == MOE_OK)
        status = write_index(w, err);
    if (status == MOE_OK)
        status = copy_others(w, err);
    if (status == MOE_OK)
        status = check_all(w, err);
    free(w->outputs);
    moe_checkpoint_close(w->ck);
    return status;
}

static bool parse_factor(const char *text, uint64_t *out)
{
    uint64_t v;
    if (!moe_parse_u64(text, &v) || v == 0 || v > 1024 || (v & (v - 1)))
        return false;
    *out = v;
    return true;
}

static int usage(void)
{
    fputs("usage: widen [--hidden F] [--ff G] [--heads H] [--layers N] [--shard-bytes SIZE] "
          "SRC_DIR DST_DIR\n"
          "F, G and H are powers of two up to 1024\n",
          stderr);
    return 2;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"hidden", required_argument, NULL, 'h'},      {"ff", required_argument, NULL, 'f'},
        {"heads", required_argument, NULL, 'a'},       {"layers", required_argument, NULL, 'l'},
        {"shard-bytes", required_argument, NULL, 's'}, {0}};
    struct widening w = {.times = {1, 1, 1, 1}, .shard_bytes = 4ull << 30};
    struct moe_err err = {0};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        bool ok = c == 'h'   ? parse_factor(optarg, &w.times[HIDDEN])
                  : c == 'f' ? parse_factor(optarg, &w.times[FF])
                  : c == 'a' ? parse_factor(optarg, &w.times[HEADS])
                  : c == 'l' ? moe_parse_u64(optarg, &w.n_layers)
                  : c == 's' ? moe_parse_bytes(optarg, &w.shard_bytes)
                             : false;
        if (!ok)
            return usage();
    }
    if (argc - optind != 2)
        return usage();
    w.src = argv[optind];
    w.dst = argv[optind + 1];
    if (widen(&w, &err) == MOE_OK)
        return 0;
    fprintf(stderr, "widen: %s\n", err.text);
    return err.status == MOE_ERR_USAGE ? 2 : 1;
}
