#include "../test.h"

#include <jansson.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "fmt/json.h"
#include "model/tokenizer.h"

#define TINY "tests/models/tiny-moe"
#define FIXTURES "tests/fixtures/tokenizers"

/* ---- Helpers ----------------------------------------------------------------------------------
 */

static struct moe_tokenizer *read_hf(const char *dir)
{
    struct moe_tokenizer *tok = NULL;
    struct moe_err err = {0};
    assert_ok(moe_tokenizer_read_hf(&tok, dir, &err), &err);
    return tok;
}

/* Through the pack section and back. */
static struct moe_tokenizer *repack(struct moe_tokenizer *tok)
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

static struct moe_ids encode(const struct moe_tokenizer *tok, const void *text, uint64_t n,
                             bool special)
{
    struct moe_ids ids = {0};
    struct moe_err err = {0};
    assert_ok(moe_tokenizer_encode(tok, text, n, special, &ids, &err), &err);
    return ids;
}

static void decode(const struct moe_tokenizer *tok, const struct moe_ids *ids, struct moe_buf *out)
{
    for (uint64_t i = 0; i < ids->n; i++) {
        uint32_t n;
        const uint8_t *bytes = moe_tokenizer_bytes(tok, ids->ids[i], &n);
        moe_buf_append(out, bytes, n);
    }
    assert_false(out->failed);
}

static void check_round_trip(const struct moe_tokenizer *tok, const void *text, uint64_t n)
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

static void check_ids(const struct moe_tokenizer *tok, const char *text, uint64_t n, bool special,
                      const json_t *want, size_t skip)
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

/* ---- The bundled model ------------------------------------------------------------------------
 */

static void prompts_have_the_reference_ids(void **state)
{
    struct moe_err err = {0};
    struct moe_tokenizer *tok = read_hf(TINY);
    json_t *reference = moe_json_read(TINY "/reference.json", 1 << 20, &err);
    assert_non_null(reference);
    const json_t *prompts = json_object_get(reference, "prompts");
    assert_int_equal(json_array_size(prompts), 8);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < 8; i++) {
            const json_t *prompt = json_array_get(prompts, i),
                         *ids = json_object_get(prompt, "ids");
            const char *text = json_string_value(json_object_get(prompt, "text"));
            assert_int_equal(json_integer_value(json_array_get(ids, 0)),
                             moe_tokenizer_separator(tok));
            check_ids(tok, text, strlen(text), false, ids, 1);
        }
        tok = repack(tok);
    }
    moe_json_free(reference);
    moe_tokenizer_free(tok);
}

/* tests/data/nll.json holds the tokens that the reference counted; a document is what lies between
 * the separator lines without the newline before the separator. */
static void documents_have_the_reference_counts(void **state)
{
    struct moe_err err = {0};
    struct moe_tokenizer *tok = read_hf(TINY);
    json_t *nll = moe_json_read("tests/data/nll.json", 1 << 20, &err);
    const char *key;
    json_t *value;
    assert_non_null(nll);
    json_object_foreach(nll, key, value)
    {
        static const char separator[] = "\n<|endoftext|>\n";
        struct moe_buf text = {0};
        char path[256];
        uint64_t counted = 0, n_documents = 0;
        snprintf(path, sizeof path, "tests/data/%s.txt", key);
        assert_ok(moe_file_read_all(path, 1 << 20, &text, &err), &err);
        check_round_trip(tok, text.data, text.size);
        for (const char *at = (const char *)text.data, *end; (end = strstr(at, separator));) {
            struct moe_ids ids = encode(tok, at, (uint64_t)(end - at), false);
            counted += ids.n < 255 ? ids.n : 255;
            n_documents++;
            moe_ids_release(&ids);
            at = end + strlen(separator);
        }
        assert_int_equal(n_documents, json_integer_value(json_object_get(value, "docs")));
        assert_int_equal(counted, json_integer_value(json_object_get(value, "tokens")));
        moe_buf_release(&text);
    }
    moe_json_free(nll);
    moe_tokenizer_free(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_have_the_reference_ids),
        cmocka_unit_test(documents_have_the_reference_counts),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
