/*
 * Fuzzer: a tokenizer's section of a pack, where the input begins with '{' a tokenizer.json, where
 * it begins with "GGUF" a GGUF file.
 * Whatever is accepted is used: some text and the input itself are encoded and decoded, and what is
 * written is read again.
 */
/* Readers: text/tokenizer*.c text/bpe.c text/pretokenize.c text/pattern.c text/normalize.c */
#define _GNU_SOURCE
#include "fmt/gguf.h"
#include "mutate.h"
#include "text/tokenizer_impl.h"

static void encode(const struct moe_tokenizer *tok, const void *text, uint64_t n)
{
    struct moe_ids ids = {0};
    struct moe_err err;
    const struct moe_span words[] = {{n / 8, n / 4}, {n / 2, n / 8}};
    int status = n & 2 ? moe_tokenizer_encode_chat(tok, text, n, words, 2, &ids, &err)
                       : moe_tokenizer_encode(tok, text, n, n & 1, &ids, &err);
    if (status == MOE_OK) {
        for (uint64_t i = 0; i < ids.n; i++) {
            uint32_t bytes;
            moe_tokenizer_bytes(tok, ids.ids[i], &bytes);
            if (ids.ids[i] >= moe_tokenizer_n_tokens(tok))
                abort();
        }
    }
    moe_ids_release(&ids);
}

static void write_and_read(const struct moe_tokenizer *tok)
{
    struct moe_buf out = {0};
    struct moe_tokenizer *again = NULL;
    struct moe_err err;
    moe_tokenizer_write(tok, &out);
    if (!out.failed && moe_tokenizer_read(&again, "again", out.data, out.size, &err) != MOE_OK)
        abort();
    moe_tokenizer_free(again);
    moe_buf_release(&out);
}

static int read_gguf(struct moe_tokenizer **tok, const uint8_t *data, size_t n, struct moe_err *err)
{
    struct moe_gguf *gguf;
    int status = moe_gguf_open(&gguf, fuzz_file(data, n), err);
    if (status != MOE_OK)
        return status;
    status = moe_tokenizer_read_gguf(tok, gguf, err);
    moe_gguf_close(gguf);
    return status;
}

static int read_any(struct moe_tokenizer **tok, const uint8_t *data, size_t n, struct moe_err *err)
{
    if (n && data[0] == '{')
        return moe_tokenizer_parse_hf(tok, "fuzz", data, n, NULL, NULL, 0, err);
    if (n >= 4 && memcmp(data, "GGUF", 4) == 0)
        return read_gguf(tok, data, n, err);
    return moe_tokenizer_read(tok, "fuzz", data, n, err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char text[] = "Hello  w\xc3\xb6rld's 123\n\n\t <s>e\xcc\x81\xff\xf0\x9f\x98\x80";
    struct moe_tokenizer *tok = NULL;
    struct moe_err err;
    if (read_any(&tok, data, n, &err) != MOE_OK)
        return 0;
    encode(tok, text, sizeof text - 1);
    encode(tok, data, n < 4096 ? n : 4096);
    write_and_read(tok);
    moe_tokenizer_free(tok);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t max, unsigned int seed)
{
    uint64_t rng = seed;
    return n && data[0] == '{' ? mutate_text(data, n, max, &rng) : LLVMFuzzerMutate(data, n, max);
}
