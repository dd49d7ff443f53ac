#define _DEFAULT_SOURCE /* mkdtemp */
/* GGUF vocabularies made by hand: what is refused, by name, and the defaults for what the format
 * leaves out. test_tokenizer_reference checks the ids. */
#include <math.h>
#include <unistd.h>

#include "base/file.h"
#include "fmt/gguf.h"
#include "tokenizer_fixture.h"

#include "../scratch_dir.h" /* last: `dir` is a parameter above */

enum { U32 = 4, I32 = 5, F32 = 6, BOOL = 7, TEXT = 8, ARRAY = 9, MOST = 12 };

/* What is zero or NULL is left out of the file. */
struct vocab {
    const char *architecture, *model, *pre;
    const char *tokens[MOST], *merges[MOST];
    int32_t types[MOST];
    float scores[MOST];
    uint32_t n_types, n_scores; /* how many the file is to have */
    const char *number_key, *flag_key, *text_key;
    uint32_t number;
    bool flag;
};

static char path[96];

static int set_up(void **state)
{
    int status = make_dir(state);
    strcpy(path, in_dir("vocab.gguf"));
    return status;
}

static int tear_down(void **state)
{
    unlink(path);
    return remove_empty_dir(state);
}

/* ---- Files ---- */

static void put_text(struct moe_buf *b, const char *text)
{
    moe_buf_u64(b, strlen(text));
    moe_buf_text(b, text);
}

static void put_key(struct moe_buf *b, const char *name, uint32_t type, uint64_t *n_keys)
{
    put_text(b, name);
    moe_buf_u32(b, type);
    ++*n_keys;
}

static void put_text_value(struct moe_buf *b, const char *name, const char *text, uint64_t *n_keys)
{
    if (!text)
        return;
    put_key(b, name, TEXT, n_keys);
    put_text(b, text);
}

static void put_texts(struct moe_buf *b, const char *name, const char *const *texts,
                      uint64_t *n_keys)
{
    uint64_t n = 0;
    while (n < MOST && texts[n])
        n++;
    if (!n)
        return;
    put_key(b, name, ARRAY, n_keys);
    moe_buf_u32(b, TEXT);
    moe_buf_u64(b, n);
    for (uint64_t i = 0; i < n; i++)
        put_text(b, texts[i]);
}

static void put_numbers(struct moe_buf *b, const char *name, uint32_t type, const void *numbers,
                        uint32_t n, uint64_t *n_keys)
{
    if (!n)
        return;
    put_key(b, name, ARRAY, n_keys);
    moe_buf_u32(b, type);
    moe_buf_u64(b, n);
    moe_buf_append(b, numbers, 4 * (uint64_t)n);
}

static int read_vocab(const struct vocab *v, struct moe_tokenizer **out, struct moe_err *err)
{
    struct moe_buf keys = {0}, file = {0};
    uint64_t n_keys = 0;
    struct moe_gguf *gguf = NULL;
    put_text_value(&keys, "general.architecture", v->architecture, &n_keys);
    put_text_value(&keys, "tokenizer.ggml.model", v->model, &n_keys);
    put_text_value(&keys, "tokenizer.ggml.pre", v->pre, &n_keys);
    put_texts(&keys, "tokenizer.ggml.tokens", v->tokens, &n_keys);
    put_texts(&keys, "tokenizer.ggml.merges", v->merges, &n_keys);
    put_numbers(&keys, "tokenizer.ggml.token_type", I32, v->types, v->n_types, &n_keys);
    put_numbers(&keys, "tokenizer.ggml.scores", F32, v->scores, v->n_scores, &n_keys);
    put_text_value(&keys, v->text_key, v->text_key ? "text" : NULL, &n_keys);
    if (v->number_key) {
        put_key(&keys, v->number_key, U32, &n_keys);
        moe_buf_u32(&keys, v->number);
    }
    if (v->flag_key) {
        put_key(&keys, v->flag_key, BOOL, &n_keys);
        moe_buf_u8(&keys, v->flag);
    }
    moe_buf_text(&file, "GGUF");
    moe_buf_u32(&file, 3);
    moe_buf_u64(&file, 0);
    moe_buf_u64(&file, n_keys);
    moe_buf_append(&file, keys.data, keys.size);
    assert_false(file.failed || keys.failed);
    assert_ok(moe_file_write_all(path, file.data, file.size, err), err);
    moe_buf_release(&keys);
    moe_buf_release(&file);
    assert_ok(moe_gguf_open(&gguf, path, err), err);
    int status = moe_tokenizer_read_gguf(out, gguf, err);
    moe_gguf_close(gguf);
    return status;
}

static struct moe_tokenizer *accept(const struct vocab *v)
{
    struct moe_tokenizer *tok = NULL;
    struct moe_err err = {0};
    assert_ok(read_vocab(v, &tok, &err), &err);
    return tok;
}

static void refuse(const struct vocab *v, int status, const char *words)
{
    struct moe_tokenizer *tok = NULL;
    struct moe_err err = {0};
    assert_fails(read_vocab(v, &tok, &err), status, words, &err);
    assert_non_null(strstr(err.text, "vocab.gguf"));
    assert_null(tok);
}

static const struct vocab BYTES = {
    .architecture = "llama",
    .model = "gpt2",
    .pre = "gpt-2",
    .tokens = {"1", "2", "3", "4", "12", "123", "1234", "<s>", "\xc4\xa0", "[PAD9]", "a"},
    .merges = {"1 2", "12 3", "123 4"},
    .types = {1, 1, 1, 1, 1, 1, 1, 3, 1, 5, 1},
    .n_types = 11,
};

static const struct vocab PIECES = {
    .architecture = "llama",
    .model = "llama",
    .pre = "default",
    .tokens = {"<unk>", "<s>", "</s>", "<0x41>", "\xe2\x96\x81", "a", "b", "ab", "ba", "bab"},
    .types = {2, 3, 3, 6, 1, 1, 1, 1, 1, 1},
    .scores = {0, 0, 0, 0, -1, -2, -3, -5, -4, -6},
    .n_types = 10,
    .n_scores = 10,
};

static void check_encoded(const struct vocab *v, const char *text, const uint32_t *want, uint64_t n)
{
    struct moe_tokenizer *tok = repack(accept(v));
    struct moe_ids ids = encode(tok, text, strlen(text), false);
    assert_int_equal(ids.n, n);
    assert_memory_equal(ids.ids, want, n * sizeof *want);
    moe_ids_release(&ids);
    moe_tokenizer_free(tok);
}

/* ---- Byte-level ---- */

static void pre_tokenizers_go_by_name(void **state)
{
    static const struct {
        const char *name;
        uint32_t ids[4], n;
    } pres[] = {
        {"gpt-2", {6}, 1},
        {"olmo", {6}, 1},
        {"starcoder", {0, 1, 2, 3}, 4},
        {"refact", {0, 1, 2, 3}, 4},
        {"smollm", {0, 1, 2, 3}, 4},
        {"qwen2", {0, 1, 2, 3}, 4},
        {"dbrx", {5, 3}, 2},
        {"llama-bpe", {5, 3}, 2},
        {"gpt-4o", {5, 3}, 2},
        {"deepseek-llm", {0, 1, 2, 3}, 4},
        {"deepseek-v3", {5, 3}, 2},
        {"deepseek-coder", {0, 1, 2, 3}, 4},
        {"default", {5, 3}, 2},
    };
    struct vocab v = BYTES;
    for (size_t i = 0; i < N_ITEMS(pres); i++) {
        v.pre = pres[i].name;
        check_encoded(&v, "1234", pres[i].ids, pres[i].n);
    }
    static const char *const refused[] = {"whitespace", "gpt-2 phi-2", "gpt", ""};
    for (size_t i = 0; i < N_ITEMS(refused); i++) {
        v.pre = refused[i];
        refuse(&v, MOE_ERR_UNSUPPORTED, refused[i]);
    }
    v.pre = NULL;
    refuse(&v, MOE_ERR_UNSUPPORTED, "tokenizer.ggml.pre");
}

/* Merges of characters, U+2581 for a space, lines apart. */
static void merges_of_characters_go_by_name(void **state)
{
    static const char *const pres[] = {"gemma4", "sarvam-moe", "granite-embed-multi-311m", NULL};
    static const uint32_t want[] = {7, 4, 5, 8, 3, 5};
    struct vocab v = PIECES;
    v.model = "gpt2";
    v.n_scores = 0;
    v.merges[0] = "a b";
    v.merges[1] = "\n \n"; /* no merge of llama.cpp's has a line's end, but its tokens do */
    v.tokens[8] = "\n";
    v.tokens[9] = "\n\n";
    for (size_t i = 0; i < N_ITEMS(pres); i++) {
        v.pre = pres[i];
        v.model = pres[i] ? "gpt2" : "gemma4";
        check_encoded(&v, "ab a\nAa", want, N_ITEMS(want));
    }
}

static void tokens_are_what_their_types_say(void **state)
{
    struct moe_err err = {0};
    struct moe_tokenizer *tok = accept(&BYTES);
    struct moe_ids ids = encode(tok, "1<s> 2", 6, true);
    static const uint32_t want[] = {0, 7, 8, 1};
    assert_int_equal(ids.n, 4);
    assert_memory_equal(ids.ids, want, sizeof want);
    assert_true(moe_tokenizer_is_special(tok, 7));
    assert_false(moe_tokenizer_is_special(tok, 9));
    assert_int_equal(moe_tokenizer_find(tok, "[PAD9]"), -1); /* no text has it */
    uint32_t n;
    assert_memory_equal(moe_tokenizer_bytes(tok, 9, &n), "[PAD9]", 6);
    assert_int_equal(moe_tokenizer_bos(tok), -1);
    moe_ids_release(&ids);
    moe_tokenizer_free(tok);

    struct vocab v = BYTES;
    v.n_types = 0; /* all are the vocabulary's */
    tok = accept(&v);
    assert_false(moe_tokenizer_is_special(tok, 7));
    moe_tokenizer_free(tok);
    v = BYTES;
    v.number_key = "tokenizer.ggml.bos_token_id";
    v.number = 7;
    v.flag_key = "tokenizer.ggml.add_bos_token";
    v.flag = true;
    tok = accept(&v);
    assert_int_equal(moe_tokenizer_bos(tok), 7);
    assert_true(moe_tokenizer_adds_bos(tok));
    moe_tokenizer_free(tok);
    v.flag = false; /* it has one, and texts do not begin with it */
    tok = accept(&v);
    ids = (struct moe_ids){0};
    assert_ok(moe_tokenizer_encode_whole(tok, "a", 1, false, &ids, &err), &err);
    assert_int_equal(moe_tokenizer_bos(tok), 7);
    assert_true(ids.n > 0 && ids.ids[0] != 7);
    moe_tokenizer_free(tok);
    v.number_key = "tokenizer.ggml.eos_token_id";
    v.flag_key = "tokenizer.ggml.add_eos_token";
    v.flag = true;
    tok = accept(&v);
    ids.n = 0;
    assert_ok(moe_tokenizer_encode_whole(tok, "a", 1, false, &ids, &err), &err);
    assert_int_equal(ids.ids[ids.n - 1], 7);
    moe_tokenizer_free(tok);
    moe_ids_release(&ids);
}

static void bad_byte_vocabularies_are_refused(void **state)
{
    struct vocab v = BYTES;
    v.model = "bert";
    refuse(&v, MOE_ERR_UNSUPPORTED, "'bert'");
    v.model = NULL;
    refuse(&v, MOE_ERR_FORMAT, "tokenizer.ggml.model");
    v = BYTES;
    v.tokens[0] = NULL;
    refuse(&v, MOE_ERR_FORMAT, "tokenizer.ggml.tokens");
    v = BYTES;
    v.tokens[1] = "1";
    refuse(&v, MOE_ERR_FORMAT, "same text");
    v = BYTES;
    v.n_types = 10;
    refuse(&v, MOE_ERR_FORMAT, "token_type");
    v = BYTES;
    v.types[3] = 7;
    refuse(&v, MOE_ERR_FORMAT, "token 3 is of unknown type 7");
    v.types[3] = 6;
    refuse(&v, MOE_ERR_FORMAT, "token 3 is no byte token");
    v = BYTES;
    v.merges[0] = NULL;
    refuse(&v, MOE_ERR_FORMAT, "tokenizer.ggml.merges");
    static const char *const merges[] = {"1", "1 ", " 1", "1 2 3", "1 3", "4 2", "1 x", ""};
    for (size_t i = 0; i < N_ITEMS(merges); i++) {
        v = BYTES;
        v.merges[1] = merges[i];
        refuse(&v, MOE_ERR_FORMAT, "merge 1");
    }
    v = BYTES;
    v.number_key = "tokenizer.ggml.eos_token_id";
    v.number = 11;
    refuse(&v, MOE_ERR_FORMAT, "eos_token_id");
    v = BYTES;
    v.flag_key = "tokenizer.ggml.add_space_prefix";
    moe_tokenizer_free(accept(&v));
    v.flag = true;
    refuse(&v, MOE_ERR_UNSUPPORTED, "add_space_prefix");
}

/* ---- SentencePiece ---- */

static void scores_make_merges(void **state)
{
    struct vocab v = PIECES;
    static const uint32_t best[] = {4, 5, 9}, whole[] = {4, 9}, apart[] = {4, 7, 8};
    static const uint32_t by_id[] = {4, 7, 7}, unknown[] = {4, 3, 0, 5};
    /* "ba" has a better score than "ab". */
    check_encoded(&v, "abab", best, 3);
    check_encoded(&v, "bab", whole, 2);
    check_encoded(&v, "abba", apart, 3);
    check_encoded(&v, "A\u00fc\u00f6a", unknown, 4);
    /* One score for all: the lower id is the better. */
    for (int i = 4; i < 10; i++)
        v.scores[i] = -1000;
    check_encoded(&v, "abab", by_id, 3);
    v.scores[3] = 0; /* of a byte: does not count */
    check_encoded(&v, "abab", by_id, 3);
    v.flag_key = "tokenizer.ggml.add_space_prefix";
    check_encoded(&v, "abab", by_id + 1, 2);
}

static void named_tokens_of_pieces(void **state)
{
    struct moe_tokenizer *tok = accept(&PIECES);
    assert_int_equal(moe_tokenizer_bos(tok), 1);
    assert_int_equal(moe_tokenizer_eos(tok), 2);
    assert_int_equal(moe_tokenizer_separator(tok), 2);
    assert_true(moe_tokenizer_adds_bos(tok));
    uint32_t n;
    assert_memory_equal(moe_tokenizer_bytes(tok, 3, &n), "A", 1);
    assert_memory_equal(moe_tokenizer_bytes(tok, 4, &n), " ", 1);
    moe_tokenizer_free(tok);
    struct vocab v = PIECES;
    v.flag_key = "tokenizer.ggml.add_bos_token";
    tok = accept(&v);
    assert_false(moe_tokenizer_adds_bos(tok));
    moe_tokenizer_free(tok);
}

static void bad_pieces_are_refused(void **state)
{
    struct vocab v = PIECES;
    v.n_scores = 9;
    refuse(&v, MOE_ERR_FORMAT, "scores");
    v.n_scores = 0;
    refuse(&v, MOE_ERR_FORMAT, "scores");
    v = PIECES;
    v.scores[5] = NAN;
    refuse(&v, MOE_ERR_FORMAT, "token 5 has a score that is not finite");
    v.scores[5] = -INFINITY;
    refuse(&v, MOE_ERR_FORMAT, "token 5 has a score that is not finite");
    v = PIECES;
    v.tokens[3] = "<0x4>";
    refuse(&v, MOE_ERR_FORMAT, "token 3 is no byte token");
    v = PIECES;
    v.text_key = "tokenizer.ggml.precompiled_charsmap";
    refuse(&v, MOE_ERR_UNSUPPORTED, "precompiled_charsmap");
    char longest[1100] = {0};
    memset(longest, 'a', sizeof longest - 1);
    v = PIECES;
    v.tokens[9] = longest;
    refuse(&v, MOE_ERR_FORMAT, "token 9 has 1099 bytes");
}

/* ---- Unigram ---- */

static const struct vocab UNIGRAM = {
    .architecture = "t5",
    .model = "t5",
    .tokens = {"<pad>", "</s>", "<unk>", "\xe2\x96\x81", "a", "b", "ab", "<extra_id_0>", "[PAD8]"},
    .types = {3, 3, 2, 1, 1, 1, 1, 3, 5},
    .scores = {0, 0, 0, -3, -1, -2, -2.5, -1000, -1000},
    .n_types = 9,
    .n_scores = 9,
};

static void unigrams_go_by_their_flags(void **state)
{
    static const uint32_t plain[] = {3, 6, 3, 3, 4, 3}, squeezed[] = {3, 6, 3, 4};
    static const uint32_t unknown[] = {3, 2, 7, 3, 4};
    struct vocab v = UNIGRAM;
    struct moe_tokenizer *tok = accept(&v);
    assert_int_equal(moe_tokenizer_tail(tok), 1);
    assert_int_equal(moe_tokenizer_eos(tok), 1);
    assert_int_equal(moe_tokenizer_bos(tok), -1);
    assert_true(moe_tokenizer_ends_answer(tok, 0));
    assert_false(moe_tokenizer_is_special(tok, 7)); /* a sentinel, whatever its type */
    moe_tokenizer_free(tok);
    check_encoded(&v, "ab  a ", plain, 6);
    /* -1000 is no score of a model's: what is unknown costs 13. */
    check_encoded(&v, "\u00fc\u00fc<extra_id_0>a", unknown, 5);
    v.flag_key = "tokenizer.ggml.remove_extra_whitespaces";
    v.flag = true;
    check_encoded(&v, "ab  a ", squeezed, 4);
    v.flag_key = "tokenizer.ggml.add_space_prefix";
    v.flag = false;
    check_encoded(&v, "ab  a ", plain + 1, 5);
    v.flag_key = "tokenizer.ggml.add_eos_token";
    tok = accept(&v);
    assert_int_equal(moe_tokenizer_tail(tok), -1);
    moe_tokenizer_free(tok);
}

static void bad_unigrams_are_refused(void **state)
{
    struct vocab v = UNIGRAM;
    v.n_scores = 0;
    refuse(&v, MOE_ERR_FORMAT, "scores");
    v = UNIGRAM;
    v.scores[4] = INFINITY;
    refuse(&v, MOE_ERR_FORMAT, "token 4 has a score that is not finite");
    v = UNIGRAM;
    v.text_key = "tokenizer.ggml.precompiled_charsmap";
    refuse(&v, MOE_ERR_FORMAT, "precompiled_charsmap");
    v = UNIGRAM;
    v.number_key = "tokenizer.ggml.padding_token_id";
    v.number = 9;
    refuse(&v, MOE_ERR_FORMAT, "padding_token_id");
    v = UNIGRAM;
    v.tokens[5] = "a";
    refuse(&v, MOE_ERR_FORMAT, "same text");
    char longest[1100] = {0};
    memset(longest, 'a', sizeof longest - 1);
    v.tokens[5] = longest;
    refuse(&v, MOE_ERR_FORMAT, "token 5 is not UTF-8 or has more than 1024 bytes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pre_tokenizers_go_by_name),
        cmocka_unit_test(merges_of_characters_go_by_name),
        cmocka_unit_test(tokens_are_what_their_types_say),
        cmocka_unit_test(bad_byte_vocabularies_are_refused),
        cmocka_unit_test(scores_make_merges),
        cmocka_unit_test(named_tokens_of_pieces),
        cmocka_unit_test(bad_pieces_are_refused),
        cmocka_unit_test(unigrams_go_by_their_flags),
        cmocka_unit_test(bad_unigrams_are_refused),
    };
    return cmocka_run_group_tests_name("tokenizer_gguf", tests, set_up, tear_down);
}
