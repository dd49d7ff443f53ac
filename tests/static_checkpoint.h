/* A checkpoint whose layers choose experts by the token, made from one whose layers have routers:
 * every tensor as f32, a table of random experts in the place of each router. */
#ifndef TESTS_STATIC_CHECKPOINT_H
#define TESTS_STATIC_CHECKPOINT_H

#include <stdlib.h>

#include "base/buf.h"
#include "base/file.h"
#include "fmt/checkpoint.h"
#include "model/config.h"
#include "model/read.h"

#include "test.h"

struct static_checkpoint {
    const char *from;
    const char *layers;    /* config.json's static_routing, as JSON */
    const char *type;      /* of the tables: "I32" or "I64" */
    int64_t spoilt;        /* if not 0: an expert of the last token in each */
    bool twice;            /* the last token has its first expert in every place */
    bool flat;             /* tables are lists; of one expert a token */
    struct moe_config c;   /* the result's */
    struct moe_buf header; /* of the safetensors file */
    struct moe_buf data;
    uint64_t random;
};

static inline void static_entry(struct static_checkpoint *m, const char *name, const char *type,
                                int n_dims, const uint64_t *dims, uint64_t begin)
{
    moe_buf_printf(&m->header, "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[", m->header.size ? ',' : '{',
                   name, type);
    for (int i = 0; i < n_dims; i++)
        moe_buf_printf(&m->header, "%s%llu", i ? "," : "", (unsigned long long)dims[i]);
    moe_buf_printf(&m->header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin,
                   (unsigned long long)m->data.size);
}

static inline void static_table(struct static_checkpoint *m, const char *name)
{
    const uint64_t dims[] = {m->c.vocab, m->c.top_k};
    uint64_t begin = m->data.size, n = dims[0] * dims[1];
    uint32_t first = 0;
    for (uint64_t i = 0; i < n; i++) {
        bool last = i / m->c.top_k + 1 == m->c.vocab;
        first = i % m->c.top_k == 0 ? (uint32_t)(test_random(&m->random) % m->c.n_experts) : first;
        int64_t expert = (first + i % m->c.top_k) % m->c.n_experts;
        expert = last && m->spoilt ? m->spoilt : last && m->twice ? first : expert;
        if (strcmp(m->type, "I32") == 0)
            moe_buf_u32(&m->data, (uint32_t)expert);
        else
            moe_buf_u64(&m->data, (uint64_t)expert);
    }
    static_entry(m, name, m->type, m->flat ? 1 : 2, dims, begin);
}

/* The layer of a tensor's name, an encoder's counted first; -1: of none. */
static inline int static_layer_of(const struct moe_config *c, const char *name)
{
    unsigned layer;
    if (sscanf(name, "encoder.block.%u.", &layer) == 1 ||
        sscanf(name, "model.layers.%u.", &layer) == 1)
        return (int)layer;
    return sscanf(name, "decoder.block.%u.", &layer) == 1 ? (int)(c->n_encoder + layer) : -1;
}

static inline void static_tensor(struct static_checkpoint *m, const struct moe_checkpoint *ck,
                                 const struct moe_tensor *t)
{
    static const char *const routers[] = {"mlp.router.classifier.weight", "mlp.gate.weight"};
    struct moe_err err = {0};
    uint64_t begin = m->data.size;
    int layer = static_layer_of(&m->c, t->name);
    for (size_t i = 0; i < N_ITEMS(routers) && layer >= 0 && m->c.layers[layer].static_routing;
         i++) {
        const char *end = strstr(t->name, routers[i]);
        char name[256];
        if (!end)
            continue;
        snprintf(name, sizeof name, "%.*smlp.routes", (int)(end - t->name), t->name);
        static_table(m, name);
        return;
    }
    float *values = calloc(t->n_items, sizeof *values);
    assert_ok(moe_checkpoint_read(ck, t, 0, t->n_items, values, &err), &err);
    for (uint64_t i = 0; i < t->n_items; i++)
        moe_buf_f32(&m->data, values[i]);
    free(values);
    static_entry(m, t->name, "F32", t->n_dims, t->dims, begin);
}

static inline void static_path(char out[512], const char *directory, const char *name)
{
    snprintf(out, 512, "%s/%s", directory, name);
}

/* config.json with the key in front of the others. */
static inline void static_config(struct static_checkpoint *m, const char *to)
{
    struct moe_err err = {0};
    struct moe_buf old = {0}, text = {0};
    char path[512];
    static_path(path, m->from, "config.json");
    assert_ok(moe_file_read_all(path, 1 << 20, &old, &err), &err);
    moe_buf_printf(&text, "{\"static_routing\": %s,", m->layers);
    moe_buf_append(&text, old.data + 1, old.size - 1);
    static_path(path, to, "config.json");
    assert_ok(moe_file_write_all(path, text.data, text.size, &err), &err);
    moe_buf_release(&old);
    moe_buf_release(&text);
}

/* Writes the checkpoint into the directory `to`, which is there. */
static inline void make_static_checkpoint(struct static_checkpoint *m, const char *to)
{
    static const char *const others[] = {"tokenizer.json", "tokenizer_config.json"};
    struct moe_err err = {0};
    struct moe_checkpoint *ck = NULL;
    struct moe_buf file = {0};
    char path[512];
    m->random = 3;
    static_config(m, to);
    assert_ok(moe_config_read_hf(&m->c, to, &err), &err);
    assert_ok(moe_checkpoint_open(&ck, m->from, &err), &err);
    for (uint64_t i = 0; i < moe_checkpoint_n_tensors(ck); i++)
        static_tensor(m, ck, moe_checkpoint_at(ck, i));
    moe_buf_text(&m->header, "}");
    moe_buf_u64(&file, m->header.size);
    moe_buf_append(&file, m->header.data, m->header.size);
    moe_buf_append(&file, m->data.data, m->data.size);
    static_path(path, to, "model.safetensors");
    assert_ok(moe_file_write_all(path, file.data, file.size, &err), &err);
    for (size_t i = 0; i < N_ITEMS(others); i++) {
        struct moe_buf text = {0};
        static_path(path, m->from, others[i]);
        assert_ok(moe_file_read_all(path, 1 << 24, &text, &err), &err);
        static_path(path, to, others[i]);
        assert_ok(moe_file_write_all(path, text.data, text.size, &err), &err);
        moe_buf_release(&text);
    }
    moe_checkpoint_close(ck);
    moe_buf_release(&file);
    moe_buf_release(&m->header);
    moe_buf_release(&m->data);
}

#endif
