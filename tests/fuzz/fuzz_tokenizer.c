/*
 * Fuzzer: a tokenizer's section of a pack; where the input begins with '{' a tokenizer.json and
 * maybe tokenizer_config.json, added_tokens.json and special_tokens_map.json, each but the last
 * ended by a NUL; where it begins with "GGUF" a GGUF file, where with '#' GPTSAN's vocab.txt,
 * emoji.json and maybe tokenizer_config.json, in the same way. Whatever is accepted is used: some
 * text and the input itself are encoded and decoded, and what is written is read again.
 */
/* Readers: text/tokenizer*.c text/bpe.c text/pretokenize.c text/pattern.c text/normalize.c */
/* Readers: text/vocab_hf.c text/vocab_gguf.c text/vocab_gptsan.c text/vocab_store.c */
/* Readers: text/unigram.c */
#define _GNU_SOURCE
#include "fmt/gguf.h"
#include "mutate.h"
#include "text/internal.h"
#include "text/vocab.h"

/* Moves what there is to the end of another list. */
static int take(void *ctx, struct moe_ids *ids, struct moe_err *err)
{
    struct moe_ids *to = ctx;
    int status = MOE_OK;
    for (uint64_t i = 0; i < ids->n && status == MOE_OK; i++)
        status = moe_ids_push(to, ids->ids[i], err);
    ids->n = 0;
    return status;
}

/* A text in parts, its beginning and its survey agree with the whole. */
static void encode_parts(const struct moe_tokenizer *tok, const char *text, uint64_t n,
                         const struct moe_ids *whole)
{
    struct moe_ids taken = {0}, rest = {0}, start = {0};
    struct moe_err err;
    struct moe_tokenizer_survey survey;
    uint64_t few = 1 + n % 4;
    if (fuzz_must(
            FUZZ_TRY(moe_tokenizer_encode_parts(tok, text, n, few, take, &taken, &rest, &err))) &&
        fuzz_must(FUZZ_TRY(take(&taken, &rest, &err))) &&
        (taken.n != whole->n ||
         (taken.n && memcmp(taken.ids, whole->ids, taken.n * sizeof *taken.ids) != 0)))
        abort();
    if (fuzz_must(FUZZ_TRY(moe_tokenizer_encode_start(tok, text, n, few, &start, &err))) &&
        (start.n > whole->n || (start.n < few && start.n < whole->n) ||
         (start.n && memcmp(start.ids, whole->ids, start.n * sizeof *start.ids) != 0)))
        abort();
    if (fuzz_must(FUZZ_TRY(moe_tokenizer_look(tok, text, n, whole->n + 1, &survey, &err))) &&
        (survey.least_ids > whole->n || moe_tokenizer_memory(tok, n, survey.longest_piece) >
                                            moe_tokenizer_memory(tok, n, UINT64_MAX)))
        abort();
    moe_ids_release(&taken);
    moe_ids_release(&rest);
    moe_ids_release(&start);
}

static void encode(const struct moe_tokenizer *tok, const void *text, uint64_t n)
{
    struct moe_ids ids = {0}, plain = {0};
    struct moe_err err;
    const struct moe_span words[] = {{n / 8, n / 4}, {n / 2, n / 8}};
    struct moe_buf answer = {0};
    int status = FUZZ_TRY(n & 2   ? moe_tokenizer_encode_chat(tok, text, n, words, 2, &ids, &err)
                          : n & 4 ? moe_tokenizer_encode_whole(tok, text, n, n & 1, &ids, &err)
                                  : moe_tokenizer_encode(tok, text, n, n & 1, &ids, &err));
    for (uint64_t i = 0; i < ids.n && status == MOE_OK; i++) {
        uint32_t bytes;
        moe_tokenizer_bytes(tok, ids.ids[i], &bytes);
        moe_tokenizer_is_special(tok, ids.ids[i]);
        if (ids.ids[i] >= moe_tokenizer_n_tokens(tok))
            abort();
    }
    struct moe_tokenizer_survey look;
    if (status == MOE_OK && n & 2 &&
        fuzz_must(
            FUZZ_TRY(moe_tokenizer_look_chat(tok, text, n, words, 2, ids.n + 1, &look, &err))) &&
        look.least_ids > ids.n)
        abort();
    if (status == MOE_OK)
        fuzz_must(FUZZ_TRY(moe_tokenizer_decode(tok, ids.ids, ids.n, &answer, &err)));
    moe_buf_release(&answer);
    if (FUZZ_TRY(moe_tokenizer_encode(tok, text, n, false, &plain, &err)) == MOE_OK)
        encode_parts(tok, text, n, &plain);
    moe_ids_release(&ids);
    moe_ids_release(&plain);
}

static void write_and_read(const struct moe_tokenizer *tok)
{
    struct moe_buf out = {0};
    struct moe_tokenizer *again = NULL;
    struct moe_err err;
    moe_tokenizer_write(tok, &out);
    if (!out.failed)
        fuzz_must(FUZZ_TRY(moe_tokenizer_read(&again, "again", out.data, out.size, &err)));
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

/* Texts that follow one another, each but the last ended by a NUL. */
static bool cut_texts(const uint8_t *data, size_t n, struct moe_buf *files, int n_files)
{
    bool failed = false;
    for (int i = 0; i < n_files; i++) {
        const uint8_t *end = i < n_files - 1 && n ? memchr(data, 0, n) : NULL;
        size_t size = end ? (size_t)(end - data) : n;
        moe_buf_append(&files[i], data, size);
        data += end ? size + 1 : size;
        n -= end ? size + 1 : size;
        failed = failed || files[i].failed;
    }
    return !failed;
}

static int read_gptsan(struct moe_tokenizer **tok, const uint8_t *data, size_t n,
                       struct moe_err *err)
{
    struct moe_buf files[3] = {{0}};
    int status = !cut_texts(data, n, files, 3)
                     ? moe_fail(err, MOE_ERR_MEMORY, "out of memory")
                     : moe_tokenizer_parse_gptsan(tok, "vocab", &files[0], "emoji", &files[1],
                                                  "config", files[2].size ? &files[2] : NULL, err);
    for (int i = 0; i < 3; i++)
        moe_buf_release(&files[i]);
    return status;
}

static int read_hf(struct moe_tokenizer **tok, const uint8_t *data, size_t n, struct moe_err *err)
{
    struct moe_buf files[4] = {{0}};
    bool cut = cut_texts(data, n, files, 4);
    struct moe_hf_text all[4] = {
        {"tokenizer", NULL, 0}, {"config", NULL, 0}, {"added", NULL, 0}, {"map", NULL, 0}};
    for (int i = 0; i < 4; i++) {
        all[i].data = files[i].size ? files[i].data : NULL;
        all[i].n = files[i].size;
    }
    const struct moe_hf_texts texts = {all[0], all[1], all[2], all[3]};
    int status = cut ? moe_tokenizer_parse_hf_files(tok, &texts, err)
                     : moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    for (int i = 0; i < 4; i++)
        moe_buf_release(&files[i]);
    return status;
}

static int read_any(struct moe_tokenizer **tok, const uint8_t *data, size_t n, struct moe_err *err)
{
    if (n && data[0] == '{')
        return read_hf(tok, data, n, err);
    if (n >= 4 && memcmp(data, "GGUF", 4) == 0)
        return read_gguf(tok, data, n, err);
    if (n && data[0] == '#')
        return read_gptsan(tok, data + 1, n - 1, err);
    return moe_tokenizer_read(tok, "fuzz", data, n, err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char text[] = "Hello  w\xc3\xb6rld's 123\n\n\t <s>e\xcc\x81\xff\xf0\x9f\x98\x80";
    struct moe_tokenizer *tok = NULL;
    struct moe_err err;
    n = fuzz_begin(data, n);
    if (FUZZ_TRY(read_any(&tok, data, n, &err)) != MOE_OK)
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
