/* GPTSAN's tokenizer: what its tokens show, and damaged files. Its ids against the reference's are
 * in test_tokenizer_reference. */
#include "base/text.h"
#include "text/internal.h"
#include "tokenizer_fixture.h"

static int parse(struct moe_tokenizer **tok, const char *vocab, const char *emoji,
                 const char *config, struct moe_err *err)
{
    struct moe_buf texts[3] = {{0}};
    moe_buf_text(&texts[0], vocab);
    moe_buf_text(&texts[1], emoji);
    moe_buf_text(&texts[2], config ? config : "");
    int status = moe_tokenizer_parse_gptsan(tok, "vocab.txt", &texts[0], "emoji.json", &texts[1],
                                            "config.json", config ? &texts[2] : NULL, err);
    for (int i = 0; i < 3; i++)
        moe_buf_release(&texts[i]);
    return status;
}

#define EMOJI "{\"emoji\":{\"\u2605\":\"<|emoji1|>\"},\"emoji_inv\":{\"<|emoji1|>\":\"\u2605\"}}"

static void check_shown(const struct moe_tokenizer *tok, const char *text, const char *want)
{
    struct moe_ids ids = encode(tok, text, strlen(text), true);
    struct moe_buf out = {0};
    struct moe_err err = {0};
    assert_ok(moe_tokenizer_decode(tok, ids.ids, ids.n, &out, &err), &err);
    assert_string_equal(out.data ? (char *)out.data : "", want);
    moe_buf_release(&out);
    moe_ids_release(&ids);
}

/* Expectations as the reference decodes them. */
static void answers_show_one_spelling_and_repeat(void **state)
{
    struct moe_tokenizer *tok = repack(read_hf(FIXTURES "/gptsan"));
    check_shown(tok, "\u658e\u85e4 \u5b78 THE", "\u6589\u85e4 \u5b66 the");
    check_shown(tok, "\u3000\r\n\t\n", " \n\t\n");
    check_shown(tok, "\u732b<|bagoftoken|>\u3002", "\u732b\u732b\u732b\u732b\u3002");
    check_shown(tok, "<|bagoftoken|>\u732b", "\u732b");
    check_shown(tok, "\u00ea<|bagoftoken|>", "\u00ea\u00ea\u00ea\u00ea"); /* two byte tokens */
    check_shown(tok, "a<|bagoftoken|><|bagoftoken|>", "aaaaaaa");
    check_shown(tok, "\u2191\u00a1\u2501", "\u2016\u01c0\u2016"); /* symbols of some kind */
    check_shown(tok, "<|startoftext|>\u732b<|endoftext|><URL>", "\u732b<URL>");
    check_shown(tok, "\U0001f603", "\U0001f600"); /* a kind of emoji */
    uint32_t bag = (uint32_t)moe_tokenizer_find(tok, "<|bagoftoken|>");
    assert_true(moe_tokenizer_repeats(tok, bag) && !moe_tokenizer_repeats(tok, bag + 1));
    assert_false(moe_tokenizer_repeats(tok, UINT32_MAX));
    moe_tokenizer_free(tok);
}

static void a_prefix_stands_between_its_tokens(void **state)
{
    static const char text[] = "\u732b<|endoftext|>";
    struct moe_tokenizer *tok = repack(read_hf(FIXTURES "/gptsan-clean"));
    struct moe_ids ids = {0}, plain = encode(tok, text, strlen(text), false);
    struct moe_err err = {0};
    assert_ok(moe_tokenizer_encode_whole(tok, text, strlen(text), false, &ids, &err), &err);
    assert_int_equal(ids.n, plain.n + 2);
    assert_int_equal(ids.ids[0], moe_tokenizer_find(tok, "<|startoftext|>"));
    assert_int_equal(ids.ids[0], moe_tokenizer_bos(tok));
    assert_memory_equal(ids.ids + 1, plain.ids, plain.n * sizeof *plain.ids);
    assert_int_equal(ids.ids[ids.n - 1], moe_tokenizer_find(tok, "<|segmenter|>"));
    for (uint64_t i = 0; i < plain.n; i++)
        assert_false(moe_tokenizer_is_special(tok, plain.ids[i]));
    assert_int_equal(moe_tokenizer_eos(tok), moe_tokenizer_find(tok, "<|endoftext|>"));
    assert_int_equal(moe_tokenizer_separator(tok), moe_tokenizer_eos(tok));
    assert_true(moe_tokenizer_ends_answer(
        tok, (uint32_t)moe_tokenizer_find(tok, "<|separator|>"))); /* its padding */
    moe_ids_release(&ids);
    moe_ids_release(&plain);
    moe_tokenizer_free(tok);
}

/* The pattern for prices tries every way to cut a number. */
static void cleaning_long_numbers_ends(void **state)
{
    struct moe_tokenizer *tok = read_hf(FIXTURES "/gptsan-clean");
    char text[4000];
    struct moe_ids ids = {0};
    struct moe_err err = {0};
    memset(text, '1', sizeof text);
    for (uint64_t i = 5; i < sizeof text; i += 6)
        text[i] = 'x';
    assert_ok(moe_tokenizer_encode(tok, text, sizeof text, false, &ids, &err), &err);
    /* No telephone number: those become something else before. */
    for (uint64_t i = 0; i + 3 <= sizeof text; i += 3)
        memcpy(text + i, "\xd9\xa1\x31", 3); /* U+0661, a digit, and 1 */
    assert_fails(moe_tokenizer_encode(tok, text, sizeof text - 1, false, &ids, &err), MOE_ERR_LIMIT,
                 "too many steps", &err);
    moe_ids_release(&ids);
    moe_tokenizer_free(tok);
}

static void lines_and_spellings_are_read(void **state)
{
    struct moe_tokenizer *tok = NULL;
    struct moe_err err = {0};
    /* Line ends of every kind, an empty line, a comma alone, the last line without an end. */
    assert_ok(parse(&tok, "a,b\r\n,\rcd,,e\n\nq,<x>,<x>y\n<SP>,e\n<|emoji1|>\n<\nf\n<z>\n<b", EMOJI,
                    NULL, &err),
              &err);
    tok = repack(tok);
    assert_int_equal(moe_tokenizer_n_tokens(tok), 11);
    static const struct {
        const char *text;
        uint32_t n, ids[4];
    } cases[] = {
        {"ab,cd", 4, {0, 0, 1, 2}}, {"e", 1, {5}}, /* the last line that has it */
        {"<x>y", 1, {4}},           {"<x>", 1, {4}}, {"<f", 2, {7, 8}}, {"<z>", 1, {9}},
        {"<bf", 3, {7, 0, 8}}, /* "<b" is too short to count first */
        {"\u2605 f", 3, {6, 5, 8}},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_ids ids = encode(tok, cases[i].text, strlen(cases[i].text), false);
        assert_int_equal(ids.n, cases[i].n);
        assert_memory_equal(ids.ids, cases[i].ids, ids.n * sizeof *ids.ids);
        moe_ids_release(&ids);
    }
    struct moe_ids ids = {0};
    assert_fails(moe_tokenizer_encode(tok, "z", 1, false, &ids, &err), MOE_ERR_UNSUPPORTED,
                 "no token for byte 0x7a", &err);
    moe_ids_release(&ids);
    moe_tokenizer_free(tok);
}

static void damaged_files_are_refused(void **state)
{
    static const char *const cases[][4] = {
        {"", EMOJI, NULL, "0 tokens"},
        {"a\na\n", EMOJI, NULL, "same text"},
        {"\xff\n", EMOJI, NULL, "token 0 is not UTF-8"},
        {"a\n", "", NULL, "emoji.json"},
        {"a\n", "[]", NULL, "no object 'emoji'"},
        {"a\n", "{\"emoji\":{}}", NULL, "no object 'emoji_inv'"},
        {"a\n", "{\"emoji\":{\"\u2605\":1},\"emoji_inv\":{}}", NULL, "stands for no text"},
        {"a\n", "{\"emoji\":{\"\":\"x\"},\"emoji_inv\":{}}", NULL, "stands for no text"},
        {"a\n", "{\"emoji\":{\"x\":\"y\"},\"emoji_inv\":{}}", NULL, "replaces 'x' by 'y'"},
        {"a\n", "{\"emoji\":{\"\u2605\":\"\u2605\"},\"emoji_inv\":{}}", NULL, "only a text"},
        {"a\n", EMOJI, "[]", "not a configuration"},
        {"a\n", EMOJI, "{\"do_clean_text\":1}", "do_clean_text"},
        {"a\n", EMOJI, "{\"bos_token\":1}", "bos_token"},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_tokenizer *tok = NULL;
        struct moe_err err = {0};
        assert_fails(parse(&tok, cases[i][0], cases[i][1], cases[i][2], &err), MOE_ERR_FORMAT,
                     cases[i][3], &err);
        assert_null(tok);
    }
}

/* Whatever a flipped byte makes of a section, it is read or refused. */
static void damaged_sections_do_no_harm(void **state)
{
    struct moe_tokenizer *tok = NULL;
    struct moe_err err = {0};
    struct moe_buf out = {0};
    static const char text[] = "a \u2605\u2501 2021/1/2 100\u5186";
    assert_ok(parse(&tok, "a,b\n<SP>\n<|emoji1|>\n<|byte9|>\n<|nottoken|>\n", EMOJI,
                    "{\"do_clean_text\":true}", &err),
              &err);
    moe_tokenizer_write(tok, &out);
    moe_tokenizer_free(tok);
    for (uint64_t at = 0; at < out.size; at++) {
        /* One bit of each byte: patterns take their time. */
        out.data[at] ^= (uint8_t)(1u << at % 8);
        uint8_t *copy = malloc(out.size);
        memcpy(copy, out.data, out.size);
        tok = NULL;
        if (moe_tokenizer_read(&tok, "p.moe", copy, out.size, &err) == MOE_OK) {
            struct moe_ids ids = {0};
            int status = moe_tokenizer_encode(tok, text, strlen(text), true, &ids, &err);
            assert_true(status == MOE_OK || status == MOE_ERR_UNSUPPORTED ||
                        status == MOE_ERR_LIMIT);
            moe_ids_release(&ids);
        }
        moe_tokenizer_free(tok);
        free(copy);
        out.data[at] ^= (uint8_t)(1u << at % 8);
    }
    moe_buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_show_one_spelling_and_repeat),
        cmocka_unit_test(a_prefix_stands_between_its_tokens),
        cmocka_unit_test(cleaning_long_numbers_ends),
        cmocka_unit_test(lines_and_spellings_are_read),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(damaged_sections_do_no_harm),
    };
    return cmocka_run_group_tests_name("tokenizer_gptsan", tests, NULL, NULL);
}
