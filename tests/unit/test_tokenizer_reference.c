/* Ids against the reference library's (tests/fixtures/make_tokenizers.py), for every kind of
 * tokenizer, read from tokenizer.json, from GGUF and from a pack's section. */
#include "base/bytes.h"
#include "base/file.h"
#include "fmt/gguf.h"
#include "fmt/json.h"
#include "text/internal.h"
#include "tokenizer_fixture.h"

static const struct {
    const char *name;
    bool has_gguf;
} KINDS[] = {
    {"deepseek", true},      {"deepseek-coder", true}, {"deepseek-llm", true},   {"gpt2", true},
    {"gpt4o", true},         {"granite", true},        {"llama2", true},         {"llama3", true},
    {"metaspace", false},    {"normalized", false},    {"olmo", true},           {"phi3", true},
    {"prefix", false},       {"qwen2", true},          {"steps", false},         {"unknown", false},
    {"gptsan", false},       {"gptsan-clean", false},  {"albert", false},        {"t5", false},
    {"unigram-bytes", true}, {"unigram-nmt", false},   {"unigram-whole", false},
};

static char *path_of(const char *name, const char *file, char path[256])
{
    snprintf(path, 256, "%s/%s/%s", FIXTURES, name, file);
    return path;
}

static struct moe_tokenizer *read_gguf(const char *name)
{
    char path[256];
    struct moe_gguf *gguf = NULL;
    struct moe_tokenizer *tok = NULL;
    struct moe_err err = {0};
    assert_ok(moe_gguf_open(&gguf, path_of(name, "vocab.gguf", path), &err), &err);
    assert_ok(moe_tokenizer_read_gguf(&tok, gguf, &err), &err);
    moe_gguf_close(gguf);
    return tok;
}

/* ---- Cases: short texts, with their ids ---- */

static void check_cases(const struct moe_tokenizer *tok, const char *name, bool from_gguf)
{
    char path[256];
    struct moe_err err = {0};
    json_t *cases;
    assert_ok(moe_json_read(&cases, path_of(name, "cases.json", path), 1 << 24,
                            MOE_JSON_TOKENIZER_MEMORY, &err),
              &err);
    assert_true(json_array_size(cases) > 40);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i);
        const char *text = json_string_value(json_object_get(one, "text"));
        if (!from_gguf || !json_is_false(json_object_get(one, "gguf")))
            check_ids(tok, text, strlen(text), json_is_true(json_object_get(one, "special")),
                      json_object_get(one, "ids"), 0);
    }
    moe_json_free(cases);
}

/* ---- Stress: many texts, with a hash of their ids ---- */

/* FNV-1a */
static uint32_t hash_bytes(uint32_t hash, const uint8_t *bytes, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        hash = (hash ^ bytes[i]) * 0x01000193;
    return hash;
}

static uint32_t hash_ids(const struct moe_ids *ids)
{
    uint32_t hash = 0x811c9dc5;
    for (uint64_t i = 0; i < ids->n; i++) {
        uint8_t bytes[4];
        moe_put_u32(bytes, ids->ids[i]);
        hash = hash_bytes(hash, bytes, 4);
    }
    return hash;
}

static void check_stress(const struct moe_tokenizer *tok, const char *name)
{
    char path[256];
    struct moe_buf texts = {0}, wanted = {0};
    struct moe_err err = {0};
    assert_ok(moe_file_read_all(FIXTURES "/stress.txt", 1 << 20, &texts, &err), &err);
    assert_ok(moe_file_read_all(path_of(name, "stress.ids", path), 1 << 20, &wanted, &err), &err);
    char *line = (char *)wanted.data;
    uint64_t count = 0;
    for (uint64_t at = 0; at < texts.size; count++) {
        const char *text = (const char *)texts.data + at;
        struct moe_ids ids = encode(tok, text, strlen(text), false);
        uint64_t n = strtoull(line, &line, 10);
        uint32_t hash = (uint32_t)strtoul(line, &line, 16);
        if (ids.n != n || hash_ids(&ids) != hash)
            fail_msg("%s: stress text %llu '%.40s': %llu ids, hash %08x; expected %llu, %08x", name,
                     (unsigned long long)count, text, (unsigned long long)ids.n, hash_ids(&ids),
                     (unsigned long long)n, hash);
        at += strlen(text) + 1;
        moe_ids_release(&ids);
    }
    assert_true(count > 500);
    moe_buf_release(&texts);
    moe_buf_release(&wanted);
}

/* ---- What folds, joins and repeats; and the way back ---- */

/* One text against a line "NUMBER HASH HASH-OF-THE-TEXT"; returns what comes after the line. */
static char *check_there_and_back(const struct moe_tokenizer *tok, const char *name,
                                  const void *text, uint64_t n, char *line)
{
    struct moe_ids ids = encode(tok, text, n, false);
    struct moe_buf back = {0};
    struct moe_err err = {0};
    uint64_t want_n = strtoull(line, &line, 10);
    uint32_t want = (uint32_t)strtoul(line, &line, 16);
    if (ids.n != want_n || hash_ids(&ids) != want)
        fail_msg("%s: text '%.60s': %llu ids, hash %08x; expected %llu, %08x", name,
                 (const char *)text, (unsigned long long)ids.n, hash_ids(&ids),
                 (unsigned long long)want_n, want);
    assert_ok(moe_tokenizer_decode(tok, ids.ids, ids.n, &back, &err), &err);
    bool known = line[1] != '-';
    uint32_t want_back = known ? (uint32_t)strtoul(line, &line, 16) : 0;
    if (known && hash_bytes(0x811c9dc5, back.data, back.size) != want_back)
        fail_msg("%s: text '%.60s' comes back as '%.60s'", name, (const char *)text,
                 (const char *)back.data);
    moe_buf_release(&back);
    moe_ids_release(&ids);
    return strchr(line, '\n') + 1;
}

static void check_nasty(const struct moe_tokenizer *tok, const char *name)
{
    char path[256];
    struct moe_buf texts = {0}, more = {0}, wanted = {0};
    struct moe_err err = {0};
    assert_ok(moe_file_read_all(FIXTURES "/nasty.txt", 1 << 20, &texts, &err), &err);
    assert_ok(moe_file_read_all(FIXTURES "/stress.txt", 1 << 20, &more, &err), &err);
    assert_ok(moe_file_read_all(path_of(name, "nasty.ids", path), 1 << 20, &wanted, &err), &err);
    char *line = (char *)wanted.data;
    uint64_t count = 0;
    for (uint64_t at = 0; at < texts.size; count++) {
        const char *text = (const char *)texts.data + at;
        line = check_there_and_back(tok, name, text, strlen(text), line);
        at += strlen(text) + 1;
    }
    assert_true(count > 300);
    line = check_there_and_back(tok, name, texts.data, texts.size, line);
    line = check_there_and_back(tok, name, more.data, more.size, line);
    assert_true(more.size > 100000);
    assert_ptr_equal(line, wanted.data + wanted.size);
    moe_buf_release(&texts);
    moe_buf_release(&more);
    moe_buf_release(&wanted);
}

static void check_kind(struct moe_tokenizer *tok, const char *name, bool from_gguf)
{
    char path[256];
    for (int pass = 0; pass < 2; pass++) {
        check_cases(tok, name, from_gguf);
        if (moe_path_exists(path_of(name, "stress.ids", path)))
            check_stress(tok, name);
        if (moe_path_exists(path_of(name, "nasty.ids", path)))
            check_nasty(tok, name);
        tok = repack(tok);
    }
    moe_tokenizer_free(tok);
}

static void tokenizer_json_gives_the_reference_ids(void **state)
{
    for (size_t i = 0; i < N_ITEMS(KINDS); i++) {
        char path[256];
        path_of(KINDS[i].name, "", path);
        check_kind(read_hf(path), KINDS[i].name, false);
    }
}

static void gguf_gives_the_reference_ids(void **state)
{
    for (size_t i = 0; i < N_ITEMS(KINDS); i++)
        if (KINDS[i].has_gguf)
            check_kind(read_gguf(KINDS[i].name), KINDS[i].name, true);
}

/* The same first, last and separating tokens, the same bytes for every id, the same merges. */
static void gguf_and_json_hold_the_same(void **state)
{
    for (size_t i = 0; i < N_ITEMS(KINDS); i++) {
        if (!KINDS[i].has_gguf)
            continue;
        char path[256];
        struct moe_tokenizer *a = read_hf(path_of(KINDS[i].name, "", path));
        struct moe_tokenizer *b = read_gguf(KINDS[i].name);
        assert_int_equal(moe_tokenizer_bos(a), moe_tokenizer_bos(b));
        assert_int_equal(moe_tokenizer_adds_bos(a), moe_tokenizer_adds_bos(b));
        assert_int_equal(moe_tokenizer_eos(a), moe_tokenizer_eos(b));
        assert_int_equal(moe_tokenizer_separator(a), moe_tokenizer_separator(b));
        assert_int_equal(moe_tokenizer_n_tokens(a) + 1, moe_tokenizer_n_tokens(b)); /* [PAD...] */
        for (uint32_t id = 0; id < moe_tokenizer_n_tokens(a); id++) {
            uint32_t n, m;
            const uint8_t *x = moe_tokenizer_bytes(a, id, &n), *y = moe_tokenizer_bytes(b, id, &m);
            assert_int_equal(n, m);
            assert_memory_equal(x, y, n);
        }
        assert_int_equal(moe_tokenizer_tail(a), moe_tokenizer_tail(b));
        assert_int_equal(a->pad, b->pad);
        assert_int_equal(a->unigram.scores != NULL, b->unigram.scores != NULL);
        if (a->unigram.scores)
            assert_memory_equal(a->unigram.scores, b->unigram.scores,
                                a->n_tokens * sizeof *a->unigram.scores);
        assert_true(a->unigram.unknown == b->unigram.unknown);
        assert_int_equal(a->bpe.n_merges, b->bpe.n_merges);
        assert_memory_equal(a->bpe.merges, b->bpe.merges, a->bpe.n_merges * sizeof *a->bpe.merges);
        moe_tokenizer_free(a);
        moe_tokenizer_free(b);
    }
}

/* Bytes that are not UTF-8 come back, and U+0000 with them, in every kind that has a token for
 * every byte. */
static void invalid_utf8_comes_back(void **state)
{
    static const char text[] =
        "ab\xff\xc3(\xe2\x82 \xf0\x9f\x98\xed\xa0\x80\xf4\x90\x80\x80\xc0\x80"
        " caf\xc3\xa9\x80\n\0\xfe";
    for (size_t i = 0; i < N_ITEMS(KINDS); i++) {
        char path[256];
        if (!KINDS[i].has_gguf || strncmp(KINDS[i].name, "unigram", 7) == 0) /* folds characters */
            continue;
        struct moe_tokenizer *both[] = {read_hf(path_of(KINDS[i].name, "", path)),
                                        read_gguf(KINDS[i].name)};
        for (int j = 0; j < 2; j++) {
            struct moe_ids ids = encode(both[j], text, sizeof text - 1, false);
            struct moe_buf back = {0}, kept = {0};
            decode(both[j], &ids, &back);
            /* Llama's kind puts a space before every run of valid text. */
            for (uint64_t k = 0; k < back.size; k++)
                if (back.data[k] != ' ')
                    moe_buf_u8(&kept, back.data[k]);
            assert_int_equal(kept.size, sizeof text - 1 - 2);
            for (uint64_t k = 0, l = 0; k < sizeof text - 1; k++)
                if (text[k] != ' ')
                    assert_int_equal(kept.data[l++], (uint8_t)text[k]);
            moe_ids_release(&ids);
            moe_buf_release(&back);
            moe_buf_release(&kept);
            moe_tokenizer_free(both[j]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenizer_json_gives_the_reference_ids),
        cmocka_unit_test(gguf_gives_the_reference_ids),
        cmocka_unit_test(gguf_and_json_hold_the_same),
        cmocka_unit_test(invalid_utf8_comes_back),
    };
    return cmocka_run_group_tests_name("tokenizer_reference", tests, NULL, NULL);
}
