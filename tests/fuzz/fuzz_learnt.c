/*
 * What a cache has learnt: a file, or where the input's first byte is odd its arrays, which
 * checksums would hide from mutations. Bytes 1 to 5 then say of which shape and how many past
 * tokens, and the rest changes the arrays of a cache that has learnt a little: it is added to them
 * bit by bit. What is accepted goes on learning, with scores that are numbers, and comes back the
 * same after writing and reading; what is refused has learnt nothing.
 */
/* Readers: cache/learnt.c */
#define _GNU_SOURCE
#include <math.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "cache/learnt.h"
#include "cache/policy.h"
#include "mutate.h"

enum { SHAPE = 6, STEPS = 40 };

static struct moe_learnt_origin shape_of(const uint8_t *data, size_t n)
{
    struct moe_learnt_origin of = {.source = 7, .name = "fuzz", 2, 5, 2};
    if (n < SHAPE)
        return of;
    of.n_layers = 1 + data[1] % 3;
    of.n_experts = 1 + data[2] % 40;
    if (data[2] >= 0xf0) { /* numbers of two bytes */
        of.n_layers = 1;
        of.n_experts += 256;
    }
    of.top_k = 1 + data[3] % (of.n_experts < 8 ? of.n_experts : 8);
    return of;
}

static bool open_usage(struct moe_usage *u, const struct moe_learnt_origin *of)
{
    struct moe_err err;
    *u = (struct moe_usage){0};
    return fuzz_must(moe_usage_init(u, of->n_layers, of->n_experts, of->top_k, &err)) &&
           fuzz_must(moe_policy_follow(moe_policy_find("learned"), u, 0, &err));
}

static bool append(void *ctx, void *numbers, uint64_t n, uint32_t bytes)
{
    moe_buf_append(ctx, numbers, n * bytes);
    return true;
}

/* Tokens whose choices the input draws. */
static void go_on(struct moe_usage *u, const uint8_t *data, size_t n)
{
    uint32_t chosen[8];
    for (uint32_t step = 0; step < STEPS; step++)
        for (uint32_t layer = 0; layer < u->n_layers; layer++) {
            const struct moe_choices c = {layer, 1, chosen, NULL};
            for (uint32_t k = 0; k < u->top_k; k++) /* distinct */
                chosen[k] = (data[(step * 7 + layer) % n] + step * 3 + k) % u->n_experts;
            moe_usage_chosen(u, &c);
        }
    for (uint32_t key = 0; key < u->n_layers * u->n_experts; key++)
        if (isnan(u->follower->scores[key]))
            abort();
}

/* A file of those arrays, with a header and checksums that are right. */
static void make_file(struct moe_usage *u, const struct moe_learnt_origin *of, const uint8_t *data,
                      size_t n, struct moe_buf *file)
{
    struct moe_follower *f = u->follower;
    const uint32_t n_tokens = (uint32_t)(data[4] | data[5] << 8) % (f->n_tokens + 9);
    struct moe_buf arrays = {0};
    go_on(u, data, SHAPE);
    f->learnt(f, n_tokens, false, append, &arrays);
    for (size_t i = SHAPE; i < n && i - SHAPE < arrays.size; i++)
        arrays.data[i - SHAPE] ^= data[i];
    moe_buf_append(file, "MOEL", 4);
    moe_buf_u32(file, 1);
    moe_buf_u64(file, of->source);
    moe_buf_u32(file, of->n_layers);
    moe_buf_u32(file, of->n_experts);
    moe_buf_u32(file, of->top_k);
    moe_buf_u32(file, n_tokens);
    moe_buf_u64(file, moe_hash64(arrays.data, arrays.size));
    moe_buf_u64(file, file->failed ? 0 : moe_hash64(file->data, file->size));
    moe_buf_append(file, arrays.data, arrays.size);
    moe_buf_release(&arrays);
}

static bool write_learnt(struct moe_usage *u, const struct moe_learnt_origin *of,
                         struct moe_buf *out)
{
    struct moe_err err;
    char path[96];
    fuzz_path("learnt", path);
    bool good = fuzz_must(moe_learnt_write(path, of, u->follower, &err));
    FILE *in = good ? fopen(path, "rb") : NULL;
    for (int c; in && (c = fgetc(in)) != EOF;)
        moe_buf_u8(out, (uint8_t)c);
    if (in)
        fclose(in);
    unlink(path);
    return good && !out->failed;
}

static void use(struct moe_usage *u, const struct moe_learnt_origin *of, const uint8_t *data,
                size_t n)
{
    struct moe_buf first = {0}, second = {0};
    struct moe_usage again = {0};
    struct moe_err err;
    go_on(u, data, n);
    /* Weights as large as nothing learns may have led to scores that are refused. */
    if (write_learnt(u, of, &first) && open_usage(&again, of) &&
        moe_learnt_read(fuzz_file(first.data, first.size), of, again.follower, &err) == MOE_OK &&
        write_learnt(&again, of, &second))
        fuzz_same(&first, &second);
    moe_buf_release(&first);
    moe_buf_release(&second);
    moe_usage_release(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct moe_usage u = {0}, other = {0}, fresh = {0};
    struct moe_buf file = {0};
    struct moe_err err;
    n = fuzz_begin(data, n);
    bool arrays = n >= SHAPE && data[0] & 1;
    const struct moe_learnt_origin of = shape_of(data, arrays ? n : 0);
    if (open_usage(&u, &of) && open_usage(&other, &of) && open_usage(&fresh, &of)) {
        if (arrays)
            make_file(&other, &of, data, n, &file);
        else
            moe_buf_append(&file, data, n);
        int status =
            FUZZ_TRY(moe_learnt_read(fuzz_file(file.data, file.size), &of, u.follower, &err));
        if (status == MOE_OK)
            use(&u, &of, data, n);
        else if (memcmp(u.follower->scores, fresh.follower->scores,
                        (size_t)of.n_layers * of.n_experts * sizeof *u.follower->scores) != 0)
            abort();
    }
    moe_buf_release(&file);
    moe_usage_release(&u);
    moe_usage_release(&other);
    moe_usage_release(&fresh);
    return 0;
}
