/* Helpers of the tokenizer's tests. */
#ifndef TESTS_UNIT_TOKENIZER_FIXTURE_H
#define TESTS_UNIT_TOKENIZER_FIXTURE_H

#include <jansson.h>

#include "../test.h"
#include "text/vocab.h"

#define FIXTURES "tests/fixtures/tokenizers" /* made by tests/fixtures/make_tokenizers.py */

static inline struct moe_tokenizer *read_hf(const char *from)
{
    struct moe_tokenizer *tok = NULL;
    struct moe_err err = {0};
    assert_ok(moe_tokenizer_read_hf(&tok, from, &err), &err);
    return tok;
}

/* Through the pack section and back. */
static inline struct moe_tokenizer *repack(struct moe_tokenizer *tok)
{
    struct moe_buf first = {0}, second = {0};
    struct moe_tokenizer *again = NULL;
    struct moe_err err = {0};
    moe_tokenizer_write(tok, &first);
    assert_false(first.failed);
    assert_ok(moe_tokenizer_read(&again, "pack", first.data, first.size, &err), &err);
    moe_tokenizer_write(again, &second);
    assert_int_equal(first.size, second.size);
    assert_memory_equal(first.data, second.data, first.size);
    assert_int_equal(moe_tokenizer_eos(tok), moe_tokenizer_eos(again));
    assert_int_equal(moe_tokenizer_bos(tok), moe_tokenizer_bos(again));
    assert_int_equal(moe_tokenizer_separator(tok), moe_tokenizer_separator(again));
    moe_buf_release(&first);
    moe_buf_release(&second);
    moe_tokenizer_free(tok);
    return again;
}

static inline struct moe_ids encode(const struct moe_tokenizer *tok, const void *text, uint64_t n,
                                    bool special)
{
    struct moe_ids ids = {0};
    struct moe_err err = {0};
    assert_ok(moe_tokenizer_encode(tok, text, n, special, &ids, &err), &err);
    return ids;
}

static inline void decode(const struct moe_tokenizer *tok, const struct moe_ids *ids,
                          struct moe_buf *out)
{
    for (uint64_t i = 0; i < ids->n; i++) {
        uint32_t n;
        const uint8_t *bytes = moe_tokenizer_bytes(tok, ids->ids[i], &n);
        moe_buf_append(out, bytes, n);
    }
    assert_false(out->failed);
}

static inline void check_round_trip(const struct moe_tokenizer *tok, const void *text, uint64_t n)
{
    struct moe_ids ids = encode(tok, text, n, false);
    struct moe_buf back = {0};
    decode(tok, &ids, &back);
    assert_int_equal(back.size, n);
    if (n)
        assert_memory_equal(back.data, text, n);
    moe_buf_release(&back);
    moe_ids_release(&ids);
}

static inline void check_ids(const struct moe_tokenizer *tok, const char *text, uint64_t n,
                             bool special, const json_t *want, size_t skip)
{
    struct moe_ids ids = encode(tok, text, n, special);
    if (ids.n != json_array_size(want) - skip)
        fail_msg("'%.40s': %llu ids, expected %zu", text, (unsigned long long)ids.n,
                 json_array_size(want) - skip);
    for (size_t i = 0; i < ids.n; i++) {
        json_int_t id = json_integer_value(json_array_get(want, i + skip));
        if (ids.ids[i] != id)
            fail_msg("'%.40s': id %zu is %u, expected %lld", text, i, ids.ids[i], (long long)id);
    }
    moe_ids_release(&ids);
}

#endif
