/* Every part of a tokenizer that is read, in 60 small tokenizers: ids of 300 texts and more as the
 * reference libraries have them (tests/fixtures/make_kinds.py), from the files and from a pack's
 * section; and GGUF's names of pre-tokenizers, with llama.cpp's ids (tests/fixtures/make_pres.py).
 */
#include "base/bytes.h"
#include "base/file.h"
#include "fmt/json.h"
#include "text/internal.h"
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
    assert_ok(moe_tokenizer_encode_whole(tok, text, strlen(text), true, &whole, &err), &err);
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

/* ---- Pre-tokenizers by the names that GGUF has for them ---- */

/* A tokenizer of the vocabulary `model` with the steps of a name, by way of tokenizer.json. */
static int read_pre(const json_t *model, const char *name, struct moe_tokenizer **out,
                    struct moe_err *err)
{
    struct moe_tokenizer *named = moe_tokenizer_new(err);
    assert_ok(moe_gguf_pre_tokenizer(named, "f.gguf", name, err), err);
    json_t *file = json_deep_copy(model), *splits = json_array();
    for (uint32_t i = 0; i < named->pre_tokenizer.n; i++) {
        const struct moe_buf *text = &named->pre_tokenizer.steps[i].text;
        json_array_append_new(splits,
                              json_pack("{s:s, s:{s:s%}, s:s}", "type", "Split", "pattern", "Regex",
                                        text->data, (size_t)text->size, "behavior", "Isolated"));
    }
    json_array_append_new(splits, json_pack("{s:s, s:b, s:b}", "type", "ByteLevel",
                                            "add_prefix_space", 0, "use_regex", 0));
    json_object_set_new(file, "pre_tokenizer",
                        json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", splits));
    if (named->normalizer.n)
        json_object_set_new(file, "normalizer", json_pack("{s:s}", "type", "NFC"));
    json_object_set_new(json_object_get(file, "model"), "ignore_merges",
                        json_boolean(named->flags & MOE_TOKENIZER_IGNORE_MERGES));
    char *whole = json_dumps(file, 0);
    int status = moe_tokenizer_parse_hf(out, "t.json", whole, strlen(whole), NULL, NULL, 0, err);
    free(whole);
    json_decref(file);
    moe_tokenizer_free(named);
    return status;
}

/* Returns how many texts llama.cpp says nothing of that is to be followed. */
static uint64_t check_pre(const struct moe_tokenizer *tok, const char *name, const char *want,
                          const struct moe_buf *texts)
{
    uint64_t count = 0, left_out = 0;
    for (uint64_t at = 0; at < texts->size; count++) {
        const char *text = (const char *)texts->data + at;
        struct moe_ids ids = encode(tok, text, strlen(text), false);
        uint8_t bytes[4];
        uint32_t hash = 0x811c9dc5;
        char digits[9];
        for (uint64_t i = 0; i < ids.n; i++) {
            moe_put_u32(bytes, ids.ids[i]);
            hash = hash_bytes(hash, bytes, 4);
        }
        snprintf(digits, sizeof digits, "%04x", hash & 0xffff);
        left_out += want[4 * count] == '.';
        if (want[4 * count] != '.' && strncmp(digits, want + 4 * count, 4) != 0)
            fail_msg("%s: text %llu '%.60s' has other ids", name, (unsigned long long)count, text);
        at += strlen(text) + 1;
        moe_ids_release(&ids);
    }
    assert_int_equal(strlen(want), 4 * count);
    return left_out;
}

static void gguf_names_give_llama_cpps_ids(void **state)
{
    enum { LEFT_OUT_MAX = 100 }; /* of 333 texts: those that are not in NFC */
    struct moe_buf texts = {0};
    struct moe_err err = {0};
    json_t *root, *pres;
    size_t n_names = 0;
    assert_ok(moe_file_read_all(FIXTURES "/kinds.txt", 1 << 20, &texts, &err), &err);
    assert_ok(
        moe_json_read(&root, FIXTURES "/kinds.json", 1 << 20, MOE_JSON_TOKENIZER_MEMORY, &err),
        &err);
    assert_ok(moe_json_read(&pres, FIXTURES "/pres.json", 1 << 20, MOE_JSON_TOKENIZER_MEMORY, &err),
              &err);
    const json_t *model = json_object_get(json_object_get(root, "models"), "bytes");
    for (size_t i = 0; i < json_array_size(pres); i++) {
        const json_t *group = json_array_get(pres, i), *names = json_object_get(group, "names");
        const char *want = json_string_value(json_object_get(group, "ids"));
        for (size_t k = 0; k < json_array_size(names); k++) {
            const char *name = json_string_value(json_array_get(names, k));
            struct moe_tokenizer *tok = NULL;
            assert_ok(read_pre(model, name, &tok, &err), &err);
            assert_true(check_pre(tok, name, want, &texts) < LEFT_OUT_MAX);
            moe_tokenizer_free(tok);
        }
        n_names += json_array_size(names);
    }
    assert_true(n_names >= 80);
    moe_json_free(pres);
    moe_json_free(root);
    moe_buf_release(&texts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_part_gives_the_reference_ids),
                                       cmocka_unit_test(gguf_names_give_llama_cpps_ids)};
    return cmocka_run_group_tests_name("tokenizer_kinds", tests, NULL, NULL);
}
