/*
 * make_script CHECKPOINT SCRIPT TO: writes into the directory TO, which is there, a checkpoint that
 * says what a table tells it: SCRIPT is a JSON array of pairs of texts, [AFTER, SAY]. Where a
 * context ends with AFTER, or its last WINDOW tokens, the model says SAY, token by token, and where
 * nothing is known it says the end token. Tokenizer and end token are those of CHECKPOINT.
 *
 * One layer does it. Each token has a code of random signs. Queries and keys are biases without
 * weights, so that rotary positions make a head look at one distance, and each head copies the
 * code that far back. A unit of an expert is one line of the table: its gate is open where all the
 * codes are those of the line, and it writes the next token's own code, by which logits are made.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/file.h"
#include "fmt/json.h"
#include "model/config.h"
#include "model/read.h"
#include "text/vocab.h"

#include "../test.h"

enum {
    HEADS = 31,
    WINDOW = HEADS + 1, /* tokens of a context that are seen */
    CODE = 24,
    OUT = 64, /* signs of a token's other code, which logits are made from */
    SEEN = WINDOW * CODE,
    ONE = SEEN, /* the place of a constant */
    SAID = SEEN + 1,
    HEAD_DIM = 32,
    HIDDEN = HEADS * HEAD_DIM,
    EXPERTS = 2, /* that are both chosen */
};
static const double STEEP = 16, LOUD = 16, SCORE = 20, ROPE_BASE = 10;

struct line {
    uint32_t n, seen[WINDOW], next; /* seen[0]: the last token */
};

struct maker {
    struct moe_tokenizer *tok;
    uint32_t vocab, end;
    struct line *lines;
    uint32_t n_lines;
    struct moe_buf header, data; /* of the safetensors file */
};

static double sign(uint32_t token, uint32_t place)
{
    uint64_t state = (uint64_t)token * 1000 + place + 1;
    test_random(&state);
    return test_random(&state) >> 40 & 1 ? 1 : -1;
}

/* ---- The table ---- */

/* The text of n tokens, the last one first. */
static const char *text_of(const struct maker *m, const uint32_t *seen, uint32_t n,
                           struct moe_buf *out)
{
    moe_buf_clear(out);
    while (n-- > 0) {
        uint32_t length = 0;
        const uint8_t *bytes = moe_tokenizer_bytes(m->tok, seen[n], &length);
        moe_buf_append(out, bytes, length);
    }
    moe_buf_u8(out, 0);
    assert_false(out->failed);
    return (const char *)out->data;
}

static void add_line(struct maker *m, const struct moe_ids *ids, uint64_t n)
{
    struct line *l = &m->lines[m->n_lines];
    *l = (struct line){.n = n < WINDOW ? (uint32_t)n : WINDOW, .next = ids->ids[n]};
    for (uint32_t i = 0; i < l->n; i++)
        l->seen[i] = ids->ids[n - 1 - i];
    for (uint32_t i = 0; i < m->n_lines; i++) {
        const struct line *other = &m->lines[i];
        const uint32_t both = other->n < l->n ? other->n : l->n;
        if (memcmp(other->seen, l->seen, both * sizeof *l->seen) != 0)
            continue;
        struct moe_buf text[3] = {{0}};
        if (other->next != l->next)
            fail_msg("behind the same %u tokens '%s' the script says '%s' and '%s'", both,
                     text_of(m, l->seen, both, &text[0]), text_of(m, &other->next, 1, &text[1]),
                     text_of(m, &l->next, 1, &text[2]));
        return;
    }
    m->n_lines++;
}

static void read_script(struct maker *m, const char *path)
{
    struct moe_err err = {0};
    json_t *script;
    const json_t *pair;
    size_t i;
    assert_ok(moe_json_read(&script, path, 1 << 20, 64 << 20, &err), &err);
    json_array_foreach(script, i, pair)
    {
        struct moe_ids ids = {0};
        const char *after = json_string_value(json_array_get(pair, 0)),
                   *say = json_string_value(json_array_get(pair, 1));
        if (!after || !*after || !say)
            fail_msg("%s: [%zu] is no pair of texts", path, i);
        assert_ok(moe_tokenizer_encode(m->tok, after, strlen(after), true, &ids, &err), &err);
        const uint64_t before = ids.n;
        assert_ok(moe_tokenizer_encode(m->tok, say, strlen(say), true, &ids, &err), &err);
        struct line *more = realloc(m->lines, (m->n_lines + ids.n) * sizeof *more);
        assert_non_null(more);
        m->lines = more;
        for (uint64_t n = before; n < ids.n; n++)
            add_line(m, &ids, n);
        moe_ids_release(&ids);
    }
    json_decref(script);
}

/* ---- Tensors ---- */

/* Begins a tensor of zeros; the result lasts until the next. */
static float *tensor(struct maker *m, uint64_t rows, uint64_t columns, const char *name, ...)
{
    const uint64_t begin = m->data.size, n = rows * (columns ? columns : 1);
    char full[128], shape[64];
    va_list args;
    va_start(args, name);
    vsnprintf(full, sizeof full, name, args);
    va_end(args);
    snprintf(shape, sizeof shape, columns ? "%llu,%llu" : "%llu", (unsigned long long)rows,
             (unsigned long long)columns);
    for (uint64_t i = 0; i < n; i++)
        moe_buf_f32(&m->data, 0);
    moe_buf_printf(&m->header,
                   "%c\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%llu,%llu]}",
                   m->header.size ? ',' : '{', full, shape, (unsigned long long)begin,
                   (unsigned long long)m->data.size);
    return (float *)(void *)(m->data.data + begin);
}

/* A norm that leaves vectors with this sum of squares as they are; 0: as usual. */
static void put_norm(struct maker *m, const char *name, double squares)
{
    float *weights = tensor(m, HIDDEN, 0, "model.%s.weight", name);
    for (int i = 0; i < HIDDEN; i++)
        weights[i] = squares > 0 ? (float)sqrt(squares / HIDDEN) : 1;
}

static void put_attention(struct maker *m)
{
    static const char *const kinds[] = {"q", "k", "v"};
    float *t;
    for (int k = 0; k < 3; k++) {
        const int rows = k ? HEAD_DIM : HEADS * HEAD_DIM;
        t = tensor(m, (uint64_t)rows, HIDDEN, "model.layers.0.self_attn.%s_proj.weight", kinds[k]);
        for (int i = 0; k == 2 && i < CODE; i++)
            t[i * HIDDEN + i] = 1;
        t = tensor(m, (uint64_t)rows, 0, "model.layers.0.self_attn.%s_proj.bias", kinds[k]);
        for (int i = 0; k < 2 && i < rows; i++) {
            const int half = HEAD_DIM / 2, pair = i % half, far = k ? 0 : i / HEAD_DIM + 1;
            const double angle = far * pow(ROPE_BASE, -(double)pair / half);
            t[i] = (float)(SCORE * (i % HEAD_DIM < half ? cos(angle) : -sin(angle)));
        }
    }
    t = tensor(m, HIDDEN, HIDDEN, "model.layers.0.self_attn.o_proj.weight");
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < CODE; i++)
            t[((h + 1) * CODE + i) * HIDDEN + h * HEAD_DIM + i] = 1;
}

static void put_expert(struct maker *m, uint32_t expert, uint32_t n_units)
{
    static const char name[] = "model.layers.0.mlp.experts.%u.%s_proj.weight";
    float *t = tensor(m, n_units, HIDDEN, name, expert, "gate");
    for (uint32_t u = 0; u < n_units && expert + EXPERTS * u < m->n_lines; u++) {
        const struct line *l = &m->lines[expert + EXPERTS * u];
        for (uint32_t i = 0; i < l->n * CODE; i++)
            t[u * HIDDEN + i] = (float)(STEEP * sign(l->seen[i / CODE], i % CODE));
        t[u * HIDDEN + ONE] = (float)(STEEP * (1 - (double)l->n * CODE));
    }
    t = tensor(m, n_units, HIDDEN, name, expert, "up");
    for (uint32_t u = 0; u < n_units; u++)
        t[u * HIDDEN + ONE] = 1;
    t = tensor(m, HIDDEN, n_units, name, expert, "down");
    for (uint32_t u = 0; u < n_units && expert + EXPERTS * u < m->n_lines; u++)
        for (uint32_t i = 0; i < OUT; i++)
            t[(SAID + i) * n_units + u] =
                (float)(EXPERTS * LOUD / STEEP *
                        sign(m->lines[expert + EXPERTS * u].next, CODE + i));
}

static void put_tensors(struct maker *m, uint32_t n_units)
{
    float *t = tensor(m, m->vocab, HIDDEN, "model.embed_tokens.weight");
    for (uint32_t v = 0; v < m->vocab; v++) {
        for (uint32_t i = 0; i < CODE; i++)
            t[(uint64_t)v * HIDDEN + i] = (float)sign(v, i);
        t[(uint64_t)v * HIDDEN + ONE] = 1;
        for (uint32_t i = 0; i < OUT; i++)
            t[(uint64_t)v * HIDDEN + SAID + i] = (float)sign(m->end, CODE + i);
    }
    put_norm(m, "layers.0.input_layernorm", CODE + 1 + OUT);
    put_attention(m);
    put_norm(m, "layers.0.post_attention_layernorm", SEEN + 1 + OUT);
    tensor(m, EXPERTS, HIDDEN, "model.layers.0.mlp.gate.weight");
    for (uint32_t e = 0; e < EXPERTS; e++)
        put_expert(m, e, n_units);
    tensor(m, n_units, HIDDEN, "model.layers.0.mlp.shared_expert.gate_proj.weight");
    tensor(m, n_units, HIDDEN, "model.layers.0.mlp.shared_expert.up_proj.weight");
    tensor(m, HIDDEN, n_units, "model.layers.0.mlp.shared_expert.down_proj.weight");
    tensor(m, 1, HIDDEN, "model.layers.0.mlp.shared_expert_gate.weight");
    put_norm(m, "norm", 0);
    t = tensor(m, m->vocab, HIDDEN, "lm_head.weight");
    for (uint32_t v = 0; v < m->vocab; v++)
        for (uint32_t i = 0; i < OUT; i++)
            t[(uint64_t)v * HIDDEN + SAID + i] = (float)sign(v, CODE + i);
}

/* ---- Files ---- */

static void write_file(const char *to, const char *name, const struct moe_buf *text)
{
    struct moe_err err = {0};
    char path[512];
    snprintf(path, sizeof path, "%s/%s", to, name);
    assert_false(text->failed);
    assert_ok(moe_file_write_all(path, text->data, text->size, &err), &err);
}

static void write_files(const struct maker *m, const char *from, const char *to, uint32_t n_units)
{
    static const char *const same[] = {"tokenizer.json", "tokenizer_config.json"};
    struct moe_err err = {0};
    struct moe_buf config = {0}, file = {0};
    for (size_t i = 0; i < N_ITEMS(same); i++) {
        struct moe_buf text = {0};
        char path[512];
        snprintf(path, sizeof path, "%s/%s", from, same[i]);
        assert_ok(moe_file_read_all(path, 1 << 24, &text, &err), &err);
        write_file(to, same[i], &text);
        moe_buf_release(&text);
    }
    moe_buf_printf(
        &config,
        "{\"model_type\": \"qwen2_moe\", \"hidden_act\": \"silu\", \"hidden_size\": %d, "
        "\"num_attention_heads\": %d, \"num_key_value_heads\": 1, \"num_hidden_layers\": 1, "
        "\"num_experts\": %d, \"num_experts_per_tok\": %d, \"norm_topk_prob\": true, "
        "\"moe_intermediate_size\": %u, \"shared_expert_intermediate_size\": %u, "
        "\"intermediate_size\": %u, \"decoder_sparse_step\": 1, \"mlp_only_layers\": [], "
        "\"vocab_size\": %u, \"bos_token_id\": %u, \"eos_token_id\": %u, \"rope_theta\": %g, "
        "\"rms_norm_eps\": 1e-12, \"max_position_embeddings\": 16384, \"qkv_bias\": true, "
        "\"tie_word_embeddings\": false, \"use_sliding_window\": false, \"torch_dtype\": "
        "\"float32\"}\n",
        HIDDEN, HEADS, EXPERTS, EXPERTS, n_units, n_units, n_units, m->vocab, m->end, m->end,
        ROPE_BASE);
    write_file(to, "config.json", &config);
    moe_buf_u64(&file, m->header.size);
    moe_buf_append(&file, m->header.data, m->header.size);
    moe_buf_append(&file, m->data.data, m->data.size);
    write_file(to, "model.safetensors", &file);
    moe_buf_release(&config);
    moe_buf_release(&file);
}

static void make(void **state)
{
    char **words = *state;
    struct maker m = {0};
    struct moe_config config;
    struct moe_err err = {0};
    assert_ok(moe_config_read_hf(&config, words[1], &err), &err);
    assert_ok(moe_tokenizer_read_hf(&m.tok, words[1], &err), &err);
    m.vocab = config.vocab;
    m.end = config.eos[0];
    read_script(&m, words[2]);
    /* As many in both experts, in rows that vectors divide. */
    const uint32_t n_units = (m.n_lines / EXPERTS + 64) / 64 * 64;
    put_tensors(&m, n_units);
    moe_buf_text(&m.header, "}");
    write_files(&m, words[1], words[3], n_units);
    moe_tokenizer_free(m.tok);
    moe_buf_release(&m.header);
    moe_buf_release(&m.data);
    free(m.lines);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(make, argv)};
    if (argc != 4) {
        fprintf(stderr, "usage: make_script CHECKPOINT SCRIPT TO\n");
        return 2;
    }
    return cmocka_run_group_tests_name("make_script", tests, NULL, NULL);
}
