/* Every part of a tokenizer that is read, in 60 small tokenizers: ids of 300 texts and more as the
 * reference libraries have them (tests/fixtures/make_kinds.py), from the files and from a pack's
 * section. */
#include "base/bytes.h"
#include "base/file.h"
#include "fmt/json.h"
#include "tokenizer_fixture.h"

/* One member of a kind as a file's text; NULL where the kind has none. */
static struct moe_hf_text text_of(const json_t *kind, const char *key, const char *name)
{
    const json_t *value = json_object_get(kind, key);
    char *text = value ? json_dumps(value, 0) : NULL;
    return (struct moe_hf_text){name, text, text ? strlen(text) : 0};
}

/* Reads a kind's tokenizer: the members of its model, then its own. */
static int read_kind(const json_t *models, const json_t *kind, struct moe_tokenizer **out,
                     struct moe_err *err)
{
    json_t *file =
        json_copy(json_object_get(models, json_string_value(json_object_get(kind, "model"))));
    json_object_update(file, json_object_get(kind, "file"));
    char *whole = json_dumps(file, 0);
    const struct moe_hf_texts texts = {
        .tokenizer = {"tokenizer.json", whole, strlen(whole)},
        .config = text_of(kind, "config", "tokenizer_config.json"),
        .added = text_of(kind, "added", "added_tokens.json"),
        .special_map = text_of(kind, "special_map", "special_tokens_map.json"),
    };
    int status = moe_tokenizer_parse_hf_files(out, &texts, err);
    const struct moe_hf_text *all[] = {&texts.tokenizer, &texts.config, &texts.added,
                                       &texts.special_map};
    for (int i = 0; i < 4; i++)
        free((void *)all[i]->data);
    json_decref(file);
    return status;
}

/* FNV-1a */
static uint32_t hash_bytes(uint32_t hash, const void *bytes, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        hash = (hash ^ ((const uint8_t *)bytes)[i]) * 0x01000193;
    return hash;
}

/* Ids as 4 bytes each, then 0xffffffff. */
static uint32_t hash_ids(uint32_t hash, const struct moe_ids *ids)
{
    uint8_t bytes[4];
    for (uint64_t i = 0; i < ids->n; i++) {
        moe_put_u32(bytes, ids->ids[i]);
        hash = hash_bytes(hash, bytes, 4);
    }
    return hash_bytes(hash, "\xff\xff\xff\xff", 4);
}

static uint32_t hash_text(const struct moe_tokenizer *tok, const char *text, bool decodes)
{
    struct moe_ids plain = encode(tok, text, strlen(text), false), whole = {0};
    struct moe_buf back = {0};
    struct moe_err err = {0};
    assert_ok(moe_tokenizer_encode_source(tok, text, strlen(text), true, &whole, &err), &err);
    assert_ok(moe_tokenizer_decode(tok, plain.ids, plain.n, &back, &err), &err);
    uint32_t hash = hash_ids(hash_ids(0x811c9dc5, &plain), &whole);
    if (decodes)
        hash = hash_bytes(hash, back.data, back.size);
    moe_ids_release(&plain);
    moe_ids_release(&whole);
    moe_buf_release(&back);
    return hash;
}

static void check_texts(const struct moe_tokenizer *tok, const json_t *kind,
                        const struct moe_buf *texts)
{
    const char *want = json_string_value(json_object_get(kind, "ids"));
    bool decodes = !json_object_get(kind, "decodes");
    uint64_t count = 0;
    for (uint64_t at = 0; at < texts->size; count++) {
        const char *text = (const char *)texts->data + at;
        char hash[9];
        snprintf(hash, sizeof hash, "%08x", hash_text(tok, text, decodes));
        if (strncmp(hash, want + 8 * count, 8) != 0)
            fail_msg("%s: text %llu '%.60s' has other ids",
                     json_string_value(json_object_get(kind, "name")), (unsigned long long)count,
                     text);
        at += strlen(text) + 1;
    }
    assert_int_equal(strlen(want), 8 * count);
    assert_true(count >= 300);
}

static void check_named(const struct moe_tokenizer *tok, const json_t *kind)
{
    const json_t *bos = json_object_get(kind, "bos"), *eos = json_object_get(kind, "eos");
    if (bos)
        assert_int_equal(moe_tokenizer_bos(tok), json_integer_value(bos));
    if (eos)
        assert_int_equal(moe_tokenizer_eos(tok), json_integer_value(eos));
}

static void every_part_gives_the_reference_ids(void **state)
{
    struct moe_buf texts = {0};
    struct moe_err err = {0};
    json_t *root;
    assert_ok(moe_file_read_all(FIXTURES "/kinds.txt", 1 << 20, &texts, &err), &err);
    assert_ok(
        moe_json_read(&root, FIXTURES "/kinds.json", 1 << 20, MOE_JSON_TOKENIZER_MEMORY, &err),
        &err);
    const json_t *kinds = json_object_get(root, "kinds"), *models = json_object_get(root, "models");
    for (size_t i = 0; i < json_array_size(kinds); i++) {
        const json_t *kind = json_array_get(kinds, i);
        struct moe_tokenizer *tok = NULL;
        assert_ok(read_kind(models, kind, &tok, &err), &err);
        check_named(tok, kind);
        check_texts(tok, kind, &texts);
        tok = repack(tok);
        check_texts(tok, kind, &texts);
        moe_tokenizer_free(tok);
    }
    assert_true(json_array_size(kinds) >= 60);
    moe_json_free(root);
    moe_buf_release(&texts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_part_gives_the_reference_ids)};
    return cmocka_run_group_tests_name("tokenizer_kinds", tests, NULL, NULL);
}
