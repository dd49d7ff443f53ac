/* Unigram models: the search against its definition, what their tokens are, and damaged ones. Their
 * ids against the reference library's are in test_tokenizer_reference. */
#include <math.h>

#include "base/file.h"
#include "base/text.h"
#include "text/internal.h"
#include "text/unigram.h"
#include "text/vocab_store.h"
#include "tokenizer_fixture.h"

/* ---- The search ---- */

/* The best score of all ways through text[at..n), those before adding up to `score`. */
static double best_of_all(const struct moe_unigram *u, char tokens[][8], int n_tokens,
                          const char *text, double score)
{
    double best = -HUGE_VAL;
    bool alone = false;
    if (!*text)
        return score;
    for (int i = 0; i < n_tokens; i++) {
        size_t n = strlen(tokens[i]);
        if (strncmp(text, tokens[i], n) != 0)
            continue;
        alone = alone || n == 1;
        best = fmax(best, best_of_all(u, tokens, n_tokens, text + n, u->scores[i] + score));
    }
    if (!alone)
        best = fmax(best, best_of_all(u, tokens, n_tokens, text + 1, u->unknown + score));
    return best;
}

/* Adding in order rounds alike on both sides, so the scores are equal to the last bit. */
static void the_way_found_is_the_best(void **state)
{
    uint64_t rng = 7;
    for (int round = 0; round < 300; round++) {
        char tokens[24][8], text[12];
        struct moe_unigram u = {0};
        struct moe_unigram_scratch scratch = {0};
        struct moe_err err = {0};
        int n_tokens = 0;
        double scores[24], score = 0, along = 0;
        u.scores = scores;
        u.unknown = -20 + (double)(round % 30);
        while (n_tokens < 24) {
            int n = 1 + (int)(test_random(&rng) % 4), same = 0;
            for (int i = 0; i < n; i++)
                tokens[n_tokens][i] = (char)('a' + test_random(&rng) % 3);
            tokens[n_tokens][n] = 0;
            for (int i = 0; i < n_tokens; i++)
                same += strcmp(tokens[i], tokens[n_tokens]) == 0;
            if (same)
                continue;
            /* Few different scores: many ways are equally good. */
            scores[n_tokens] = -1 - (double)(test_random(&rng) % 5) * 0.1;
            assert_ok(moe_trie_add(&u.trie, (uint8_t *)tokens[n_tokens], (uint64_t)n,
                                   (uint32_t)n_tokens, &err),
                      &err);
            n_tokens++;
        }
        int n = 1 + (int)(test_random(&rng) % 11);
        for (int i = 0; i < n; i++)
            text[i] = (char)('a' + test_random(&rng) % 4); /* 'd' is unknown */
        text[n] = 0;
        assert_ok(moe_unigram_best(&u, &scratch, (uint8_t *)text, (uint64_t)n, &score, &err), &err);
        assert_true(score == best_of_all(&u, tokens, n_tokens, text, 0));
        for (uint32_t at = 0; at < (uint32_t)n; at = scratch.places[at].other) {
            uint32_t token = scratch.places[at].token;
            along = (token == MOE_UNIGRAM_UNKNOWN ? u.unknown : scores[token]) + along;
            assert_int_equal(scratch.places[at].other - at,
                             token == MOE_UNIGRAM_UNKNOWN ? 1 : strlen(tokens[token]));
        }
        assert_true(score == along);
        u.scores = NULL;
        moe_unigram_release(&u);
        moe_unigram_scratch_release(&scratch);
    }
}

/* What the library prints of a vocabulary that it has read. */
static void scores_are_those_the_library_reads(void **state)
{
    static const double scores[][2] = {
        {0, 0},
        {-0.5, -0.5},
        {-1000, -1000},
        {3, 3},
        {-2.0122928619384766, -2.012292861938477},
        {-3.4130232328555046, -3.413023232855505},
        {-3.6548933228051883, -3.654893322805188},
        {-7.2730734151758165, -7.273073415175816},
        {-7.579489923415206e-13, -7.579489923415207e-13},
    };
    for (size_t i = 0; i < N_ITEMS(scores); i++)
        assert_true(moe_vocab_score(scores[i][0]) == scores[i][1]);
}

/* ---- Small vocabularies ---- */

#define SPACES "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"split\":false}"
#define DECODER "\"decoder\":{\"type\":\"Metaspace\"}"
#define UNK "[\"<unk>\",0]"

static int parse(struct moe_tokenizer **tok, const char *json, struct moe_err *err)
{
    return moe_tokenizer_parse_hf(tok, "t.json", json, strlen(json), NULL, NULL, 0, err);
}

static struct moe_tokenizer *make(const char *json)
{
    struct moe_tokenizer *tok = NULL;
    struct moe_err err = {0};
    assert_ok(parse(&tok, json, &err), &err);
    return repack(tok);
}

/* Ids as "1 2 3". */
static void expect(const struct moe_tokenizer *tok, const char *text, bool special,
                   const char *want)
{
    struct moe_ids ids = encode(tok, text, strlen(text), special);
    struct moe_buf got = {0};
    for (uint64_t i = 0; i < ids.n; i++)
        moe_buf_printf(&got, i ? " %u" : "%u", ids.ids[i]);
    assert_string_equal(got.data ? (char *)got.data : "", want);
    moe_buf_release(&got);
    moe_ids_release(&ids);
}

/* The example of the library's documentation. */
static void unknown_characters_in_a_row_are_one(void **state)
{
    struct moe_tokenizer *tok =
        make("{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[" UNK
             ",[\"a\",0],[\"b\",0],[\"c\",0],[\"d\",0],[\"cd\",1.0],[\"ab\",2],[\"abc\",5],"
             "[\"abcd\",10]]}}");
    expect(tok, "abcdacdxx", false, "8 1 5 0");
    expect(tok, "xaxx\u00e9\xff\xff", false, "0 1 0 0 0"); /* no UTF-8: each byte by itself */
    expect(tok, "", false, "");
    moe_tokenizer_free(tok);
}

static void unknown_characters_fall_back_to_bytes(void **state)
{
    /* "xy" is worse than two unknown characters, but they are it when joined. */
    struct moe_tokenizer *tok = make(
        "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"byte_fallback\":true,\"vocab\":[" UNK
        ",[\"<0x78>\",0],[\"<0xC3>\",0],[\"<0xA9>\",0],[\"a\",50.5],[\"xy\",40],[\"b\",40]]}}");
    expect(tok, "ax\u00e9a\u00e9", false, "4 1 2 3 4 2 3");
    expect(tok, "axza", false, "4 0 4"); /* z has no byte token: none has */
    expect(tok, "axya", false, "4 5 4");
    expect(tok, "\xc3", false, "2");
    expect(tok, "<0x78>", false, "1");
    moe_tokenizer_free(tok);
    struct moe_err err = {0};
    struct moe_ids ids = {0};
    assert_ok(parse(&tok, "{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1]]}}", &err), &err);
    assert_fails(moe_tokenizer_encode(tok, "ab", 2, false, &ids, &err), MOE_ERR_UNSUPPORTED,
                 "no token for byte 0x62", &err);
    moe_ids_release(&ids);
    moe_tokenizer_free(tok);
}

static void the_last_of_equal_texts_counts(void **state)
{
    struct moe_tokenizer *tok = make("{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[" UNK
                                     ",[\"a\",-90],[\"b\",-2],[\"a\",-3]]}}");
    uint32_t n;
    expect(tok, "ab", false, "3 2");
    moe_tokenizer_bytes(tok, 1, &n);
    assert_int_equal(n, 0);
    assert_true(tok->unigram.unknown == -100); /* the worst of all */
    moe_tokenizer_free(tok);
}

/* Where no token holds a space inside, a text is searched word by word, with the ids of the whole.
 */
static void words_apart_change_nothing(void **state)
{
    struct moe_tokenizer *tok =
        make("{" SPACES ",\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[" UNK
             ",[\"\u2581\",-3.3],[\"\u2581a\",-1.1],[\"a\",-2.2],[\"ab\",-1.7],[\"b\",-0.6],"
             "[\"\u2581ab\",-1.7],[\"\u2581\u2581\",-3.3000000000000003]]}}");
    assert_true(tok->words_apart);
    uint64_t rng = 3;
    for (int round = 0; round < 500; round++) {
        char text[64];
        for (int i = 0; i < 64; i++)
            text[i] = "ab  xa b"[test_random(&rng) % 8];
        struct moe_ids cut = encode(tok, text, 64, false);
        tok->words_apart = false;
        struct moe_ids whole = encode(tok, text, 64, false);
        tok->words_apart = true;
        assert_int_equal(cut.n, whole.n);
        assert_memory_equal(cut.ids, whole.ids, cut.n * sizeof *cut.ids);
        moe_ids_release(&cut);
        moe_ids_release(&whole);
    }
    moe_tokenizer_free(tok);
}

/* ---- What tokens there are ---- */

static void an_encoder_gets_its_last_token(void **state)
{
    struct moe_tokenizer *tok = repack(read_hf(FIXTURES "/t5"));
    struct moe_ids ids = {0};
    struct moe_err err = {0};
    assert_int_equal(moe_tokenizer_tail(tok), 1);
    assert_int_equal(moe_tokenizer_eos(tok), 1);
    assert_int_equal(moe_tokenizer_separator(tok), 1);
    assert_int_equal(moe_tokenizer_bos(tok), -1);
    assert_true(moe_tokenizer_ends_answer(tok, 0) && moe_tokenizer_ends_answer(tok, 1));
    assert_false(moe_tokenizer_ends_answer(tok, 2) || moe_tokenizer_ends_answer(tok, UINT32_MAX));
    assert_ok(moe_tokenizer_encode_whole(tok, "a", 1, false, &ids, &err), &err);
    assert_int_equal(ids.ids[ids.n - 1], 1);
    ids.n = 0;
    assert_ok(moe_tokenizer_encode_whole(tok, "", 0, false, &ids, &err), &err);
    assert_int_equal(ids.n, 1);
    moe_tokenizer_free(tok);

    tok = repack(read_hf(FIXTURES "/albert"));
    ids.n = 0;
    assert_ok(moe_tokenizer_encode_whole(tok, "a", 1, false, &ids, &err), &err);
    assert_int_equal(ids.ids[0], moe_tokenizer_find(tok, "[CLS]"));
    assert_int_equal(ids.ids[ids.n - 1], moe_tokenizer_find(tok, "[SEP]"));
    moe_ids_release(&ids);
    moe_tokenizer_free(tok);

    tok = read_hf(FIXTURES "/llama2");
    assert_int_equal(moe_tokenizer_tail(tok), -1);
    moe_tokenizer_free(tok);
}

static void sentinels_are_written_and_read(void **state)
{
    static const char text[] = "The<extra_id_0>cat </s><pad> <extra_id_100>";
    struct moe_tokenizer *tok = repack(read_hf(FIXTURES "/t5"));
    struct moe_ids ids = encode(tok, text, strlen(text), false);
    struct moe_buf out = {0};
    struct moe_err err = {0};
    uint32_t n_sentinels = 0;
    for (uint64_t i = 0; i < ids.n; i++) {
        assert_false(moe_tokenizer_is_special(tok, ids.ids[i]));
        n_sentinels += ids.ids[i] == (uint32_t)moe_tokenizer_find(tok, "<extra_id_0>");
    }
    assert_int_equal(n_sentinels, 1);
    moe_ids_release(&ids);

    ids = encode(tok, text, strlen(text), true);
    assert_ok(moe_tokenizer_decode(tok, ids.ids, ids.n, &out, &err), &err);
    assert_string_equal((char *)out.data, "The<extra_id_0> cat <extra_id_100>");
    bool first = true;
    uint32_t n;
    uint32_t the = (uint32_t)moe_tokenizer_find(tok, "\u2581the");
    moe_tokenizer_said(tok, 1, &first, &n); /* </s> */
    assert_int_equal(n, 0);
    assert_memory_equal(moe_tokenizer_said(tok, the, &first, &n), "the", 3);
    assert_int_equal(n, 3);
    assert_memory_equal(moe_tokenizer_said(tok, the, &first, &n), " the", 4);
    assert_int_equal(n, 4);
    moe_buf_release(&out);
    moe_ids_release(&ids);
    moe_tokenizer_free(tok);
}

static void single_words_stand_alone(void **state)
{
    struct moe_tokenizer *tok =
        make("{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[" UNK ",[\"a\",-1]]},"
             "\"added_tokens\":[{\"id\":2,\"content\":\"x\",\"single_word\":true},"
             "{\"id\":3,\"content\":\"xx\",\"single_word\":true,\"lstrip\":true}]}");
    expect(tok, "x", false, "2");
    expect(tok, "ax", false, "1 0");
    expect(tok, "xa x-x", false, "0 1 0 2 0 2");
    expect(tok, "a xx,xxx", false, "1 3 0"); /* of xxx the first two are looked at and left */
    expect(tok, "\u00e9x x\u0301 x_ \u24d0x x\u200d", false, "0");
    expect(tok, "\xffx\xff", false, "0 2 0");
    moe_tokenizer_free(tok);
}

/* ---- Damaged and unsupported files ---- */

#define MODEL "\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[" UNK ",[\"a\",-1]]}"
#define MAP(text)                                                                                  \
    "{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":" text "}," MODEL "}"

static void damaged_json_is_refused(void **state)
{
    static const struct {
        const char *json, *words;
        int status;
    } cases[] = {
        {"{\"model\":{\"type\":\"Unigram\"}}", "not a list of tokens", MOE_ERR_FORMAT},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "not a list of tokens", MOE_ERR_FORMAT},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":{\"a\":0}}}", "not a list of tokens",
         MOE_ERR_FORMAT},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[\"a\"]}}", "token 0 is no pair",
         MOE_ERR_FORMAT},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0],[\"b\",\"0\"]]}}",
         "token 1 is no pair", MOE_ERR_FORMAT},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[1,0]]}}", "token 0 is no pair",
         MOE_ERR_FORMAT},
        {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":1,\"vocab\":[[\"a\",0]]}}", "unk_id",
         MOE_ERR_FORMAT},
        {"{\"model\":{\"type\":\"Unigram\",\"byte_fallback\":1,\"vocab\":[[\"a\",0]]}}",
         "byte_fallback", MOE_ERR_FORMAT},
        {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\"}," MODEL "}", "Unigram", MOE_ERR_UNSUPPORTED},
        {"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{}},"
         "{\"SpecialToken\":{\"id\":\"x\"}}]}," MODEL "}",
         "names no token: 'x'", MOE_ERR_FORMAT},
        {"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{}},"
         "{\"SpecialToken\":{\"id\":\"a\"}},{\"SpecialToken\":{\"id\":\"a\"}}]}," MODEL "}",
         "one last", MOE_ERR_UNSUPPORTED},
        {"{\"normalizer\":{\"type\":\"Nmt\"},\"pre_tokenizer\":{\"type\":\"Metaspace\","
         "\"prepend_scheme\":\"first\"}," MODEL "}",
         "remove a text's beginning", MOE_ERR_UNSUPPORTED},
        {"{\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":2,\"stop\":0}," MODEL "}",
         "start", MOE_ERR_FORMAT},
        {MAP("5"), "no base64", MOE_ERR_FORMAT},
        {MAP("\"\""), "no base64", MOE_ERR_FORMAT},
        {MAP("\"AAA\""), "no base64", MOE_ERR_FORMAT},
        {MAP("\"AA-A\""), "no base64", MOE_ERR_FORMAT},
        {MAP("\"AAA=\""), "map of characters is damaged", MOE_ERR_FORMAT},
        {MAP("\"AAAAAA==\""), "map of characters is damaged", MOE_ERR_FORMAT},
        /* One unit, a value: replacement 5 of 1 byte. */
        {MAP("\"BAAAAAUAAIBh\""), "replacement 5", MOE_ERR_FORMAT},
        {MAP("\"BAAAAAAAAAD/\""), "not UTF-8", MOE_ERR_FORMAT},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_tokenizer *tok = NULL;
        struct moe_err err = {0};
        assert_fails(parse(&tok, cases[i].json, &err), cases[i].status, cases[i].words, &err);
    }
    struct moe_tokenizer *tok = make(MAP("\"BAAAAAAAAABh\""));
    expect(tok, "ab", false, "1 0");
    moe_tokenizer_free(tok);
}

/* Every map that is read can be used, whatever its units say. */
static void damaged_maps_do_no_harm(void **state)
{
    struct moe_tokenizer *tok = read_hf(FIXTURES "/unigram-bytes");
    struct moe_buf texts = {0}, out = {0};
    struct moe_err err = {0};
    assert_ok(moe_file_read_all(FIXTURES "/nasty.txt", 1 << 20, &texts, &err), &err);
    const struct moe_buf *data = &tok->normalizer.steps[0].text;
    uint64_t rng = 11, used = 0;
    for (int round = 0; round < 300; round++) {
        struct moe_charsmap map;
        uint64_t n = round % 3 ? data->size : test_random(&rng) % data->size;
        uint8_t *copy = malloc(n + 1); /* exactly: a sanitizer sees a read past it */
        memcpy(copy, data->data, n);
        for (int i = 0; i < 1 + round % 5 && n > 4; i++)
            copy[4 + test_random(&rng) % (n - 4)] ^= (uint8_t)(1u << test_random(&rng) % 8);
        if (moe_charsmap_open(&map, copy, n, &err) == MOE_OK) {
            used++;
            moe_buf_clear(&out);
            moe_charsmap_apply(&map, (const char *)texts.data, texts.size, &out);
            assert_true(moe_utf8_valid(out.data, out.size));
        }
        free(copy);
    }
    assert_true(used > 10 && used < 300);
    moe_buf_release(&texts);
    moe_buf_release(&out);
    moe_tokenizer_free(tok);
}

static struct moe_buf section(void)
{
    struct moe_tokenizer *tok = make("{" SPACES "," DECODER "," MODEL "}");
    struct moe_buf out = {0};
    moe_tokenizer_write(tok, &out);
    moe_tokenizer_free(tok);
    return out;
}

static int read_section(const struct moe_buf *b, uint64_t n, struct moe_err *err)
{
    struct moe_tokenizer *tok = NULL;
    uint8_t *copy = malloc(n + 1);
    memcpy(copy, b->data, n);
    int status = moe_tokenizer_read(&tok, "p.moe", copy, n, err);
    if (status == MOE_OK) {
        struct moe_ids ids = {0};
        int encoded = moe_tokenizer_encode_whole(tok, "a b\xff", 4, true, &ids, err);
        assert_true(encoded == MOE_OK || encoded == MOE_ERR_UNSUPPORTED);
        moe_ids_release(&ids);
    }
    moe_tokenizer_free(tok);
    free(copy);
    return status;
}

static void check_patch(uint64_t at, uint32_t value, int bytes, int status, const char *words)
{
    struct moe_buf b = section();
    struct moe_err err = {0};
    for (int i = 0; i < bytes; i++)
        b.data[at + (uint64_t)i] = (uint8_t)(value >> 8 * i);
    assert_fails(read_section(&b, b.size, &err), status, words, &err);
    moe_buf_release(&b);
}

static void damaged_sections_are_refused(void **state)
{
    enum { FLAGS = 64 + 2 * 2, TEXT = FLAGS + 2, SCORES = TEXT + 6, NAN_BITS = 0x7fc00000 };
    struct moe_buf b = section();
    struct moe_err err = {0};
    assert_ok(read_section(&b, b.size, &err), &err);
    for (uint64_t n = 0; n < b.size; n++)
        assert_fails(read_section(&b, n, &err), MOE_ERR_FORMAT, "p.moe", &err);
    /* Whatever a flipped byte makes of it, it is read or refused. */
    for (uint64_t at = 0; at < b.size; at++) {
        for (int bit = 0; bit < 8; bit++) {
            b.data[at] ^= (uint8_t)(1u << bit);
            read_section(&b, b.size, &err);
            b.data[at] ^= (uint8_t)(1u << bit);
        }
    }
    moe_buf_release(&b);
    check_patch(6, 2, 1, MOE_ERR_UNSUPPORTED, "scores");
    check_patch(40, 0, 4, MOE_ERR_UNSUPPORTED, "scores");
    check_patch(40, 5, 4, MOE_ERR_UNSUPPORTED, "scores");
    check_patch(40, 8, 4, MOE_ERR_FORMAT, "cut off");
    check_patch(62, 0x7ff0, 2, MOE_ERR_FORMAT, "no finite score for unknown text");
    check_patch(TEXT + 5, 0xff, 1, MOE_ERR_FORMAT, "UTF-8");
    check_patch(SCORES, NAN_BITS, 4, MOE_ERR_FORMAT, "token 0 has a score that is not finite");
}

static void overlong_tokens_are_refused(void **state)
{
    struct moe_buf json = {0};
    struct moe_tokenizer *tok = NULL;
    struct moe_err err = {0};
    moe_buf_text(&json, "{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"");
    for (int i = 0; i <= MOE_UNIGRAM_TOKEN_MAX; i++)
        moe_buf_u8(&json, 'a');
    moe_buf_text(&json, "\",0]]}}");
    assert_fails(parse(&tok, (char *)json.data, &err), MOE_ERR_FORMAT, "more than 1024 bytes",
                 &err);
    moe_buf_release(&json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_way_found_is_the_best),
        cmocka_unit_test(scores_are_those_the_library_reads),
        cmocka_unit_test(unknown_characters_in_a_row_are_one),
        cmocka_unit_test(unknown_characters_fall_back_to_bytes),
        cmocka_unit_test(the_last_of_equal_texts_counts),
        cmocka_unit_test(words_apart_change_nothing),
        cmocka_unit_test(an_encoder_gets_its_last_token),
        cmocka_unit_test(sentinels_are_written_and_read),
        cmocka_unit_test(single_words_stand_alone),
        cmocka_unit_test(damaged_json_is_refused),
        cmocka_unit_test(damaged_maps_do_no_harm),
        cmocka_unit_test(damaged_sections_are_refused),
        cmocka_unit_test(overlong_tokens_are_refused),
    };
    return cmocka_run_group_tests_name("tokenizer_unigram", tests, NULL, NULL);
}
