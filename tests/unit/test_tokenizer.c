#define _DEFAULT_SOURCE /* mkdtemp */
/* Tokenizers: the reference libraries' ids; bytes come back; hostile patterns are stopped. */

#include <jansson.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/text.h"
#include "fmt/json.h"
#include "text/bpe.h"
#include "text/internal.h"
#include "text/tokenizer.h"
#include "tokenizer_fixture.h"

#define TINY BUNDLED "/tiny-moe"

/* ---- The bundled model ---- */

static void prompts_have_the_reference_ids(void **state)
{
    struct moe_err err = {0};
    struct moe_tokenizer *tok = read_hf(TINY);
    json_t *reference;
    assert_ok(
        moe_json_read(&reference, TINY "/reference.json", 1 << 20, MOE_JSON_TOKENIZER_MEMORY, &err),
        &err);
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
    json_t *nll;
    const char *key;
    json_t *value;
    assert_ok(moe_json_read(&nll, "tests/data/nll.json", 1 << 20, MOE_JSON_TOKENIZER_MEMORY, &err),
              &err);
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

/* ---- What tokens there are ---- */

static void check_named(const char *name, int64_t bos, bool adds, int64_t eos, int64_t separator)
{
    char dir[256];
    snprintf(dir, sizeof dir, "%s/%s", FIXTURES, name);
    struct moe_tokenizer *tok = repack(read_hf(dir));
    assert_int_equal(moe_tokenizer_bos(tok), bos);
    assert_int_equal(moe_tokenizer_adds_bos(tok), adds);
    assert_int_equal(moe_tokenizer_eos(tok), eos);
    assert_int_equal(moe_tokenizer_separator(tok), separator);
    moe_tokenizer_free(tok);
}

static int64_t find_in(const char *name, const char *text)
{
    char dir[256];
    snprintf(dir, sizeof dir, "%s/%s", FIXTURES, name);
    struct moe_tokenizer *tok = read_hf(dir);
    int64_t id = moe_tokenizer_find(tok, text);
    assert_true(id >= 0 && moe_tokenizer_is_special(tok, (uint32_t)id));
    moe_tokenizer_free(tok);
    return id;
}

static void first_and_last_tokens_are_found(void **state)
{
    int64_t text_end = find_in("gpt2", "<|endoftext|>");
    check_named("gpt2", text_end, false, text_end, text_end);
    text_end = find_in("qwen2", "<|endoftext|>");
    check_named("qwen2", -1, false, find_in("qwen2", "<|im_end|>"), text_end);
    check_named("llama3", find_in("llama3", "<|begin_of_text|>"), true,
                find_in("llama3", "<|eot_id|>"), find_in("llama3", "<|end_of_text|>"));
    check_named("llama2", 1, true, 2, 2);
    check_named("unknown", 1, true, 2, 2); /* no word on it in the configuration */
    text_end = find_in("deepseek", "<\uff5cend\u2581of\u2581sentence\uff5c>");
    check_named("deepseek", find_in("deepseek", "<\uff5cbegin\u2581of\u2581sentence\uff5c>"), true,
                text_end, text_end);
    text_end = find_in("gpt4o", "<|endoftext|>");
    check_named("gpt4o", -1, false, text_end, text_end);
    text_end = find_in("prefix", "<s>"); /* named as {"content": ...} */
    check_named("prefix", -1, false, text_end, text_end);
}

static void tokens_mean_their_bytes(void **state)
{
    uint32_t n;
    struct moe_tokenizer *tok = repack(read_hf(FIXTURES "/llama2"));
    int64_t id = moe_tokenizer_find(tok, "<0x0A>");
    assert_memory_equal(moe_tokenizer_bytes(tok, (uint32_t)id, &n), "\n", 1);
    assert_int_equal(n, 1);
    id = moe_tokenizer_find(tok, "\u2581the");
    assert_memory_equal(moe_tokenizer_bytes(tok, (uint32_t)id, &n), " the", 4);
    assert_int_equal(n, 4);
    assert_memory_equal(moe_tokenizer_bytes(tok, 1, &n), "<s>", 3);
    assert_int_equal(moe_tokenizer_find(tok, "no such token"), -1);
    assert_int_equal(moe_tokenizer_find(tok, ""), -1);
    moe_tokenizer_bytes(tok, moe_tokenizer_n_tokens(tok), &n);
    assert_int_equal(n, 0);
    moe_tokenizer_bytes(tok, UINT32_MAX, &n);
    assert_int_equal(n, 0);
    assert_false(moe_tokenizer_is_special(tok, UINT32_MAX));
    moe_tokenizer_free(tok);
}

static void special_tokens_count_only_where_asked_for(void **state)
{
    struct moe_tokenizer *tok = read_hf(TINY);
    static const char text[] = "<|im_start|>user\nHi<|im_end|>";
    struct moe_ids plain = encode(tok, text, strlen(text), false);
    struct moe_ids special = encode(tok, text, strlen(text), true);
    for (uint64_t i = 0; i < plain.n; i++)
        assert_false(moe_tokenizer_is_special(tok, plain.ids[i]));
    assert_int_equal(special.ids[0], 4094);
    assert_int_equal(special.ids[special.n - 1], 4095);
    check_round_trip(tok, text, strlen(text));
    moe_ids_release(&plain);
    moe_ids_release(&special);
    /* Ids are appended to what is there. */
    struct moe_err err = {0};
    assert_ok(moe_ids_push(&plain, 17, &err), &err);
    assert_ok(moe_tokenizer_encode(tok, "<|im_end|>", 10, true, &plain, &err), &err);
    assert_int_equal(plain.n, 2);
    assert_int_equal(plain.ids[0], 17);
    assert_ok(moe_tokenizer_encode(tok, NULL, 0, true, &plain, &err), &err);
    assert_int_equal(plain.n, 2);
    moe_ids_release(&plain);
    moe_tokenizer_free(tok);
}

static struct moe_ids encode_chat(const struct moe_tokenizer *tok, const char *text,
                                  const struct moe_span *words, uint64_t n_words)
{
    struct moe_ids ids = {0};
    struct moe_err err = {0};
    struct moe_tokenizer_survey look;
    const uint64_t n = strlen(text);
    assert_ok(moe_tokenizer_encode_chat(tok, text, n, words, n_words, &ids, &err), &err);
    assert_ok(moe_tokenizer_look_chat(tok, text, n, words, n_words, UINT64_MAX, &look, &err), &err);
    assert_true(look.least_ids <= ids.n);
    return ids;
}

static int n_special(const struct moe_tokenizer *tok, const struct moe_ids *ids)
{
    int n = 0;
    for (uint64_t i = 0; i < ids->n; i++)
        n += moe_tokenizer_is_special(tok, ids->ids[i]);
    return n;
}

/* Where words hold no mark, marking them as words changes nothing, wherever they begin and end. */
static void words_without_marks_change_no_ids(void **state)
{
    static const struct {
        const char *dir, *text;
    } cases[] = {
        {TINY, "<|im_start|>user\n Hello  the're  \n\n you<|im_end|>\n<|im_start|>x"},
        {FIXTURES "/llama2", "<s>[INST]  Hello\n\xc3\xa9 there [/INST] ok </s><s>[INST] x [/INST]"},
        {FIXTURES "/llama3", "<|begin_of_text|>user\n\nHello  World's<|end_of_text|>\n12345 x"},
        {FIXTURES "/metaspace", "<s>[INST]  Hello\n there [/INST] ok </s><s>[INST] x"},
        {FIXTURES "/steps", "<s>Hello e\xcc\x81 there 12 </s> a <s> b"},
        {FIXTURES "/prefix", "<s>Hello there </s> a <s> b"},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_tokenizer *tok = repack(read_hf(cases[i].dir));
        const char *text = cases[i].text;
        uint64_t n = strlen(text);
        struct moe_ids whole = encode(tok, text, n, true);
        for (uint64_t from = 0; from < n; from++) {
            for (uint64_t to = from; to <= n; to++) {
                /* Part of a mark or a whole one is not what this is about. */
                if (to > from && strpbrk(text + from, "<>|") &&
                    strpbrk(text + from, "<>|") < text + to)
                    break;
                bool inside = false;
                for (uint64_t at = from; at > 0 && !inside && text[at - 1] != '>'; at--)
                    inside = text[at - 1] == '<';
                if (inside)
                    continue;
                const struct moe_span words[] = {{0, 0}, {from, to - from}};
                struct moe_ids ids = encode_chat(tok, text, words, 2);
                assert_int_equal(ids.n, whole.n);
                assert_memory_equal(ids.ids, whole.ids, whole.n * sizeof *whole.ids);
                moe_ids_release(&ids);
            }
        }
        moe_ids_release(&whole);
        moe_tokenizer_free(tok);
    }
}

static void marks_in_words_are_words(void **state)
{
    struct moe_tokenizer *tok = repack(read_hf(TINY));
    static const char text[] = "<|im_start|>user\nA<|im_end|>B<|im_end|>\n<|im_start|>";
    /* "A<|im_end|>B" was typed. */
    const struct moe_span typed = {17, 12};
    struct moe_ids ids = encode_chat(tok, text, &typed, 1);
    struct moe_buf back = {0};
    assert_int_equal(n_special(tok, &ids), 3);
    assert_int_equal(ids.ids[0], 4094);
    decode(tok, &ids, &back);
    assert_string_equal((char *)back.data, text);
    moe_buf_release(&back);
    moe_ids_release(&ids);
    /* A mark with a single byte of words in it is none. */
    for (uint64_t at = 0; at < 12; at++) {
        const struct moe_span one = {at, 1};
        ids = encode_chat(tok, text, &one, 1);
        assert_int_equal(n_special(tok, &ids), 3);
        moe_ids_release(&ids);
    }
    /* Several, and one up to the end. */
    const struct moe_span many[] = {{2, 3}, {18, 10}, {42, 12}};
    ids = encode_chat(tok, text, many, 3);
    assert_int_equal(n_special(tok, &ids), 1);
    moe_ids_release(&ids);
    moe_tokenizer_free(tok);
}

/* Special tokens that are looked for in the normalized text, where positions are others. */
static void normalized_marks_in_words_are_words(void **state)
{
    struct moe_tokenizer *tok = read_hf(FIXTURES "/llama2");
    struct moe_err err = {0};
    /* <s> remains one that is looked for in the text as it is. */
    tok->token_flags[moe_tokenizer_find(tok, "</s>")] |= MOE_TOKEN_NORMALIZED;
    tok = repack(tok);
    assert_true(tok->added[1].n > 0);
    static const char text[] = "<s>[INST] a </s> b [/INST] c </s><s>[INST] d [/INST]";
    const struct moe_span words[] = {{10, 8}, {43, 1}};
    struct moe_ids whole = encode(tok, text, strlen(text), true);
    struct moe_ids ids = encode_chat(tok, text, words, 2);
    struct moe_ids clean = encode_chat(tok, text, words + 1, 1);
    assert_int_equal(n_special(tok, &whole), 4);
    assert_int_equal(n_special(tok, &ids), 3);
    assert_int_equal(clean.n, whole.n);
    assert_memory_equal(clean.ids, whole.ids, whole.n * sizeof *whole.ids);
    assert_ok(moe_tokenizer_encode_chat(tok, text, 0, NULL, 0, &ids, &err), &err);
    moe_ids_release(&whole);
    moe_ids_release(&ids);
    moe_ids_release(&clean);
    moe_tokenizer_free(tok);
}

/* ---- Any bytes, long pieces ---- */

static void any_bytes_come_back(void **state)
{
    static const char *const dirs[] = {TINY, FIXTURES "/gpt2", FIXTURES "/llama3",
                                       FIXTURES "/gpt4o", FIXTURES "/deepseek"};
    uint8_t text[400];
    uint64_t seed = 11;
    for (size_t d = 0; d < N_ITEMS(dirs); d++) {
        struct moe_tokenizer *tok = read_hf(dirs[d]);
        for (int i = 0; i < 600; i++) {
            uint64_t n = test_random(&seed) % sizeof text, kind = test_random(&seed) % 4;
            for (uint64_t j = 0; j < n; j++) {
                uint64_t r = test_random(&seed);
                static const char common[] = " \n\t\r aeiou'sT1.<|\xe2\x80\xa8\xf0\x9f\x98\x80\xc3";
                text[j] = kind == 0   ? (uint8_t)r
                          : kind == 1 ? (uint8_t)common[r % (sizeof common - 1)]
                          : kind == 2 ? (uint8_t)(r % 2 ? 0xf0 | r >> 8 : r >> 16)
                                      : (uint8_t)(' ' + r % 90);
            }
            check_round_trip(tok, text, n);
        }
        moe_tokenizer_free(tok);
    }
}

static void long_pieces_are_quick(void **state)
{
    enum { N = 400000 };
    struct moe_tokenizer *tok = read_hf(TINY);
    char *text = malloc(N);
    uint64_t seed = 9;
    assert_non_null(text);
    for (int kind = 0; kind < 6; kind++) {
        for (int i = 0; i < N; i++) {
            uint64_t r = test_random(&seed);
            text[i] = kind == 0   ? 'a'
                      : kind == 1 ? ' '
                      : kind == 2 ? "ab"[i & 1]
                      : kind == 3 ? (char)('a' + r % 26)
                      : kind == 4 ? "\n\r"[i & 1]
                                  : '=';
        }
        double start = test_cpu_seconds();
        check_round_trip(tok, text, N);
        double seconds = test_cpu_seconds() - start;
        /* 0.05 to 0.1 s here; quadratic work would take minutes. */
        if (seconds > 10)
            fail_msg("kind %d: %.1f s", kind, seconds);
    }
    free(text);
    moe_tokenizer_free(tok);
}

/* ---- What matching may cost ---- */

static int count_bytes(void *ctx, const char *piece, uint64_t n, struct moe_err *err)
{
    (void)piece;
    (void)err;
    *(uint64_t *)ctx += n;
    return MOE_OK;
}

/* Splits at the pattern; every byte of the text comes back. */
static int split(const char *pattern, const char *text, uint64_t n, struct moe_err *err)
{
    struct moe_steps steps = {0};
    uint64_t bytes = 0;
    struct moe_pretokenizer p = {.steps = &steps, .emit = count_bytes, .ctx = &bytes};
    assert_non_null(moe_steps_add_split(&steps, pattern, MOE_SPLIT_ISOLATED, 0));
    assert_ok(moe_steps_prepare(&steps, false, err), err);
    int status = moe_pretokenize(&p, text, n, true, err);
    if (status == MOE_OK)
        assert_int_equal(bytes, n);
    moe_pretokenizer_release(&p);
    moe_steps_release(&steps);
    return status;
}

/* Patterns whose matching grows faster than the text end in an error at once. */
static void hostile_patterns_are_stopped(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    static const struct {
        const char *pattern;
        uint64_t n, run; /* bytes; a blank after so many letters a */
    } hostile[] = {
        {"(?:a+)+[bc]", 50, 50},   /* exponential */
        {"(?:a|a?)+[bc]", 50, 50}, /* the same */
        {"(?:a+)+b|.", N, 20},     /* a million steps for each run, which then is found */
        {"(?:a*[bc]|a)*d", N, N},  /* from each place to the end, again and again */
        {"a*(?=a*[bc])|a*[bc]", N, N},
    };
    char *text = malloc(N);
    struct moe_err err = {0};
    for (size_t i = 0; i < N_ITEMS(hostile); i++) {
        char words[160];
        for (uint64_t at = 0; at < hostile[i].n; at++)
            text[at] = (at + 1) % (hostile[i].run + 1) ? 'a' : ' ';
        snprintf(words, sizeof words,
                 "pre-tokenizer pattern '%s' takes too many steps on a text of",
                 hostile[i].pattern);
        assert_fails(split(hostile[i].pattern, text, hostile[i].n, &err), MOE_ERR_LIMIT, words,
                     &err);
    }
    free(text);
}

/* Nothing of published patterns comes near the bound: a megabyte of one character. */
static void published_patterns_are_not(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    static const char *const patterns[] = {
        MOE_PATTERN_GPT2,
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
        "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        "\\p{N}",
    };
    static const char *const characters[] = {
        " ", "a", "7", "\n", "=", "A", "\xe4\xb8\xad", "\xcc\x81", "\xf0\x9f\x98\x80"};
    char *text = malloc(N);
    struct moe_err err = {0};
    for (size_t i = 0; i < N_ITEMS(patterns) * N_ITEMS(characters); i++) {
        const char *c = characters[i / N_ITEMS(patterns)];
        uint64_t length = strlen(c), n = N / length * length;
        for (uint64_t at = 0; at < n; at++)
            text[at] = c[at % length];
        assert_ok(split(patterns[i % N_ITEMS(patterns)], text, n, &err), &err);
    }
    free(text);
}

/* The definition: lowest rank first, leftmost among equals, looking at everything each time. */
static uint64_t merge_plainly(const struct moe_bpe *bpe, uint32_t *ids, uint64_t n)
{
    for (uint32_t rank = 0; rank < bpe->n_merges;) {
        const struct moe_bpe_merge *m = &bpe->merges[rank++];
        for (uint64_t i = 0; i + 1 < n; i++) {
            if (ids[i] == m->left && ids[i + 1] == m->right) {
                ids[i] = m->result;
                memmove(ids + i + 1, ids + i + 2, (n - i - 2) * sizeof *ids);
                n--;
                rank = 0; /* a merge may make a pair of any rank */
                break;
            }
        }
    }
    return n;
}

static void merging_follows_its_definition(void **state)
{
    struct moe_err err = {0};
    struct moe_bpe_scratch scratch = {0};
    uint64_t seed = 21;
    for (int round = 0; round < 300; round++) {
        enum { BASE = 3, MERGES = 24, LONGEST = 120 };
        struct moe_bpe bpe = {.n_merges = 0};
        uint8_t flags[BASE + MERGES] = {0};
        bpe.merges = calloc(MERGES, sizeof *bpe.merges);
        for (uint32_t i = 0; i < MERGES; i++) {
            struct moe_bpe_merge m = {(uint32_t)(test_random(&seed) % (BASE + i)),
                                      (uint32_t)(test_random(&seed) % (BASE + i)), BASE + i};
            bool known = false;
            for (uint32_t j = 0; j < bpe.n_merges; j++)
                known |= bpe.merges[j].left == m.left && bpe.merges[j].right == m.right;
            if (!known)
                bpe.merges[bpe.n_merges++] = m;
        }
        /* Ranks that are not in the order of making. */
        for (uint32_t i = bpe.n_merges; i > 1; i--) {
            uint32_t j = (uint32_t)(test_random(&seed) % i);
            struct moe_bpe_merge m = bpe.merges[i - 1];
            bpe.merges[i - 1] = bpe.merges[j];
            bpe.merges[j] = m;
        }
        assert_ok(moe_bpe_index(&bpe, flags, 0, &err), &err);
        for (int i = 0; i < 20; i++) {
            uint32_t ids[LONGEST], want[LONGEST];
            uint64_t n = test_random(&seed) % (LONGEST + 1);
            for (uint64_t j = 0; j < n; j++)
                ids[j] = want[j] = (uint32_t)(test_random(&seed) % BASE);
            uint64_t n_want = merge_plainly(&bpe, want, n);
            assert_ok(moe_bpe_merge(&bpe, &scratch, ids, &n, &err), &err);
            assert_int_equal(n, n_want);
            for (uint64_t j = 0; j < n; j++)
                assert_int_equal(ids[j], want[j]);
        }
        moe_bpe_release(&bpe);
    }
    moe_bpe_scratch_release(&scratch);
}

/* ---- Patterns ---- */

static void check_translation(const char *pattern, const char *want)
{
    struct moe_buf out = {0};
    struct moe_err err = {0};
    assert_ok(moe_pattern_translate(pattern, strlen(pattern), &out, &err), &err);
    assert_string_equal((char *)out.data, want);
    moe_buf_release(&out);
}

static void patterns_are_rewritten_or_refused(void **state)
{
    check_translation("a|b+?", "a|b+?");
    check_translation("[]a]x", "[]a]x");
    check_translation("\\u4e00(?m:.){,3}", "\\x{4e00}(?s:.){0,3}");
    check_translation("^$", "(?m:^)(?m:$)");
    check_translation("[a&&b]", "(?:(?=[a])[b])");
    check_translation("[^a-z&&[^aeiou]c]+", "(?:(?!(?=[a-z])(?:[c]|[^aeiou]))(?s:.))+");
    check_translation("[a[b]^]", "(?:[a\\^]|[b])");
    check_translation("[^[a]]\\h", "(?:(?![a])(?s:.))[0-9A-Fa-f]");
    check_translation("\\p{Han}\\p{L}\\P{^Nd}", "\\p{sc:Han}\\p{L}\\P{^Nd}");
    static const char *const refused[][2] = {
        {"[a&&]", "empty"},    {"[&&a]", "nothing"},     {"\\X", "\\X"},
        {"\\pL", "\\p"},       {"[\\s-x]", "range"},     {"[a", "without an"},
        {"[\\B]", "\\B"},      {"[[:print:]]", "named"}, {"[[[[[[[[[a]]]]]]]]]", "deep"},
        {"a{2,3}+", "{n,m}+"}, {"(?<n>a)", "group"},     {"(*UTF)", "(*"},
        {"a\\", "backslash"},  {"\\u12", "\\u"},
    };
    for (size_t i = 0; i < N_ITEMS(refused); i++) {
        struct moe_buf out = {0};
        struct moe_err err = {0};
        const char *pattern = refused[i][0];
        assert_fails(moe_pattern_translate(pattern, strlen(pattern), &out, &err),
                     MOE_ERR_UNSUPPORTED, refused[i][1], &err);
        moe_buf_release(&out);
    }
}

/* ---- Damaged and unsupported files ---- */

#define VOCAB "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}"
#define LEVEL "\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"decoder\":{\"type\":\"ByteLevel\"}"
#define MODEL "\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a b\"]}"

static int parse(const char *json, const char *config, struct moe_err *err)
{
    struct moe_tokenizer *tok = NULL;
    int status = moe_tokenizer_parse_hf(&tok, "t.json", json, strlen(json), "c.json", config,
                                        config ? strlen(config) : 0, err);
    if (status == MOE_OK)
        moe_tokenizer_free(tok);
    return status;
}

/* The configuration's switches come before the post-processor, which holds where they are silent;
 * NLLB's class has both of its own, as AutoTokenizer of transformers 4.57.6 gives them. */
static void what_stands_around_a_text(void **state)
{
#define BARE                                                                                       \
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"                       \
    "\"decoder\":{\"type\":\"ByteLevel\"}"
#define AROUND                                                                                     \
    "{" BARE ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["                   \
    "{\"SpecialToken\":{\"id\":\"a\"}},{\"Sequence\":{\"id\":\"A\"}}],"                            \
    "\"special_tokens\":{\"a\":{\"id\":\"a\",\"ids\":[0],\"tokens\":[\"a\"]}}}," MODEL "}"
#define BEHIND                                                                                     \
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\"}" \
    "},"                                                                                           \
    "{\"SpecialToken\":{\"id\":\"a\"}},{\"SpecialToken\":{\"id\":\"b\"}}]}"
#define TRANSLATES "\"tokenizer_class\":\"NllbTokenizer\",\"eos_token\":\"a\""
    static const struct {
        const char *json, *config, *ids;
    } cases[] = {
        {AROUND, "{}", "0 2"},
        {AROUND, "{\"add_bos_token\":false}", "2"},
        {AROUND, "{\"add_eos_token\":true,\"eos_token\":\"b\"}", "0 2 1"},
        {"{" BARE "," MODEL "}", "{\"bos_token\":\"a\",\"eos_token\":\"b\"}", "2"},
        {"{" BARE "," MODEL "}", "{\"bos_token\":\"a\",\"add_bos_token\":true}", "0 2"},
        {"{" BARE "," MODEL "}", "{\"eos_token\":\"b\",\"add_eos_token\":true}", "2 1"},
        {"{" BARE "," MODEL "}", "{\"add_bos_token\":true,\"add_eos_token\":true}", "2"},
        {AROUND, "{" TRANSLATES ",\"src_lang\":\"b\"}", "1 2 0"},
        {"{" BARE "," MODEL "}", "{" TRANSLATES ",\"src_lang\":\"ab\"}", "2 2 0"},
        {"{" BARE "," BEHIND "," MODEL "}", "{" TRANSLATES ",\"src_lang\":\"a\"}", "0 2 0"},
        {AROUND,
         "{" TRANSLATES ",\"src_lang\":\"b\",\"add_bos_token\":false,\"add_eos_token\":false,"
         "\"legacy_behaviour\":false}",
         "1 2 0"},
    };
    static const struct {
        const char *config, *says;
        int status;
    } refused[] = {
        {"{" TRANSLATES "}", "c.json: src_lang or eos_token names no token: 'eng_Latn'",
         MOE_ERR_FORMAT},
        {"{" TRANSLATES ",\"src_lang\":null}", "names no token: 'eng_Latn'", MOE_ERR_FORMAT},
        {"{" TRANSLATES ",\"src_lang\":1}", "'src_lang'", MOE_ERR_FORMAT},
        {"{" TRANSLATES ",\"src_lang\":\"a\",\"legacy_behaviour\":true}",
         "a language behind a text's end (legacy_behaviour)", MOE_ERR_UNSUPPORTED},
    };
    (void)state;
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_tokenizer *tok = NULL;
        struct moe_ids ids = {0};
        struct moe_buf text = {0};
        struct moe_err err = {0};
        const char *config = cases[i].config;
        assert_ok(moe_tokenizer_parse_hf(&tok, "t.json", cases[i].json, strlen(cases[i].json),
                                         "c.json", config, strlen(config), &err),
                  &err);
        assert_ok(moe_tokenizer_encode_whole(tok, "ab", 2, false, &ids, &err), &err);
        for (uint64_t k = 0; k < ids.n; k++)
            moe_buf_printf(&text, "%s%u", k ? " " : "", ids.ids[k]);
        assert_string_equal(text.data, cases[i].ids);
        moe_buf_release(&text);
        moe_ids_release(&ids);
        moe_tokenizer_free(tok);
    }
    for (size_t i = 0; i < N_ITEMS(refused); i++) {
        struct moe_err err = {0};
        assert_fails(parse(AROUND, refused[i].config, &err), refused[i].status, refused[i].says,
                     &err);
    }
}

static void what_is_not_implemented_is_named(void **state)
{
    static const char *const cases[][2] = {
        {"{" LEVEL ",\"model\":{\"type\":\"Unigram\"}}", "Unigram"},
        {"{" LEVEL ",\"normalizer\":{\"type\":\"ByteLevel\"}," MODEL "}", "normalizer 'ByteLevel'"},
        {"{" LEVEL ",\"model\":{\"type\":\"WordLevel\"}}", "WordLevel"},
        {"{" LEVEL ",\"model\":{\"type\":\"WordPiece\"}}", "WordPiece"},
        {"{\"pre_tokenizer\":{\"type\":\"OddPreTokenizer\"}," MODEL "}", "OddPreTokenizer"},
        {"{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},"
         "{\"type\":\"Metaspace\"}]}," MODEL "}",
         "after ByteLevel"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},"
         "\"behavior\":\"Odd\"}," MODEL "}",
         "Odd"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a\"},"
         "\"behavior\":\"Isolated\"}," MODEL "}",
         "(a"},
        {"{" LEVEL ",\"post_processor\":{\"type\":\"OddProcessing\"}," MODEL "}", "OddProcessing"},
        {"{" LEVEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
         "{\"SpecialToken\":{\"id\":\"a\"}},{\"SpecialToken\":{\"id\":\"b\"}}]}," MODEL "}",
         "more than one first token"},
        {"{\"decoder\":{\"type\":\"WordPiece\"}," MODEL "}", "WordPiece"},
        {"{" LEVEL ",\"model\":{\"dropout\":0.1," VOCAB ",\"merges\":[]}}", "dropout"},
        {"{" LEVEL ",\"model\":{\"end_of_word_suffix\":\"</w>\"," VOCAB ",\"merges\":[]}}",
         "end_of_word_suffix"},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_err err = {0};
        assert_fails(parse(cases[i][0], NULL, &err), MOE_ERR_UNSUPPORTED, cases[i][1], &err);
    }
}

/* How older files say whether a space is put before; where the newer member is there, it
 * decides. */
static void older_metaspace_is_understood(void **state)
{
    static const struct {
        const char *fields;
        uint8_t flags;
        uint32_t n_steps;
    } cases[] = {
        {"", 0, 2},
        {",\"add_prefix_space\":true", 0, 2},
        {",\"add_prefix_space\":false", MOE_STEP_PREPEND_NEVER, 2},
        {",\"add_prefix_space\":true,\"prepend_scheme\":\"first\"", MOE_STEP_PREPEND_FIRST, 2},
        {",\"add_prefix_space\":true,\"prepend_scheme\":\"always\",\"split\":false", 0, 1},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        char json[512];
        struct moe_tokenizer *tok = NULL;
        struct moe_err err = {0};
        snprintf(json, sizeof json,
                 "{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\u2581\","
                 "\"str_rep\":\"\u2581\"%s},\"decoder\":{\"type\":\"Metaspace\"}," MODEL "}",
                 cases[i].fields);
        assert_ok(moe_tokenizer_parse_hf(&tok, "t.json", json, strlen(json), NULL, NULL, 0, &err),
                  &err);
        assert_int_equal(tok->pre_tokenizer.n, cases[i].n_steps);
        assert_int_equal(tok->pre_tokenizer.steps[0].kind, MOE_STEP_METASPACE);
        assert_int_equal(tok->pre_tokenizer.steps[0].flags, cases[i].flags);
        moe_tokenizer_free(tok);
    }
}

static void damaged_json_is_refused(void **state)
{
    static const char *const cases[][2] = {
        {"", "t.json"},
        {"[]", "not a tokenizer"},
        {"{}", "no tokenizer model"},
        {"{" LEVEL ",\"model\":{\"type\":\"BPE\",\"merges\":[]}}", "no vocabulary"},
        {"{" LEVEL ",\"model\":{\"vocab\":{},\"merges\":[]}}", "empty"},
        {"{" LEVEL ",\"model\":{" VOCAB "}}", "merges"},
        {"{" LEVEL ",\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", "one id"},
        {"{" LEVEL ",\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "proper id"},
        {"{" LEVEL ",\"model\":{\"vocab\":{\"a\":4000000000},\"merges\":[]}}", "proper id"},
        {"{" LEVEL ",\"model\":{\"vocab\":{\"a\":\"0\"},\"merges\":[]}}", "proper id"},
        {"{" LEVEL ",\"model\":{" VOCAB ",\"merges\":[\"a c\"]}}", "merge 0"},
        {"{" LEVEL ",\"model\":{" VOCAB ",\"merges\":[\"a b\",\"ab\"]}}", "merge 1"},
        {"{" LEVEL ",\"model\":{" VOCAB ",\"merges\":[[\"a\",\"b\"],[\"a\"]]}}", "merge 1"},
        {"{" LEVEL ",\"model\":{" VOCAB ",\"merges\":[[\"a\",\"b\"],\"a b\"]}}", "merge 1"},
        {"{" LEVEL ",\"added_tokens\":[{\"id\":1,\"content\":\"x\"}]," MODEL "}", "fit"},
        {"{" LEVEL ",\"added_tokens\":[{\"id\":1,\"content\":\"a\"}]," MODEL "}", "fit"},
        {"{" LEVEL ",\"added_tokens\":[{\"id\":7,\"content\":\"\"}]," MODEL "}", "empty"},
        {"{" LEVEL
         ",\"added_tokens\":[{\"id\":7,\"content\":\"x\"},{\"id\":8,\"content\":\"x\"}]," MODEL "}",
         "same text"},
        {"{" LEVEL ",\"added_tokens\":[7]," MODEL "}", "proper id"},
        {"{\"pre_tokenizer\":{\"type\":\"Sequence\"}," MODEL "}", "Sequence"},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_err err = {0};
        assert_fails(parse(cases[i][0], NULL, &err), MOE_ERR_FORMAT, cases[i][1], &err);
    }
    struct moe_err err = {0};
    assert_ok(parse("{" LEVEL "," MODEL "}", "{\"eos_token\":\"ab\",\"bos_token\":null}", &err),
              &err);
    assert_fails(parse("{" LEVEL "," MODEL "}", "{\"eos_token\":5}", &err), MOE_ERR_FORMAT,
                 "c.json", &err);
    assert_fails(parse("{" LEVEL "," MODEL "}", "[]", &err), MOE_ERR_FORMAT, "c.json", &err);
    static const char *const configs[][2] = {
        {"{\"added_tokens_decoder\":7}", "no list"},
        {"{\"added_tokens_decoder\":{\"x\":{\"content\":\"<s>\"}}}", "damaged"},
        {"{\"added_tokens_decoder\":{\"-1\":{\"content\":\"<s>\"}}}", "damaged"},
        {"{\"added_tokens_decoder\":{\"3\":{\"content\":\"\"}}}", "damaged"},
        {"{\"added_tokens_decoder\":{\"3\":\"<s>\"}}", "damaged"},
        {"{\"added_tokens_decoder\":{\"1\":{\"content\":\"<s>\"}}}", "fit the vocabulary"},
        {"{\"added_tokens_decoder\":{\"9999999999\":{\"content\":\"<s>\"}}}", "9999999999"},
        {"{\"added_tokens_decoder\":{\"3\":{\"content\":\"<s>\",\"lstrip\":7}}}", "lstrip"},
        {"{\"add_prefix_space\":7}", "add_prefix_space"},
    };
    for (size_t i = 0; i < N_ITEMS(configs); i++)
        assert_fails(parse("{" LEVEL "," MODEL "}", configs[i][0], &err), MOE_ERR_FORMAT,
                     configs[i][1], &err);
    struct moe_tokenizer *tok = NULL;
    assert_fails(moe_tokenizer_read_hf(&tok, "tests/none", &err), MOE_ERR_IO, "tokenizer.json",
                 &err);
}

/* A tokenizer without tokens for all bytes says so instead of dropping text. */
static void bytes_without_a_token_are_an_error(void **state)
{
    struct moe_tokenizer *tok = NULL;
    struct moe_err err = {0};
    struct moe_ids ids = {0};
    static const char json[] = "{" LEVEL "," MODEL "}";
    assert_ok(moe_tokenizer_parse_hf(&tok, "t.json", json, strlen(json), NULL, NULL, 0, &err),
              &err);
    assert_ok(moe_ids_push(&ids, 5, &err), &err);
    assert_fails(moe_tokenizer_encode(tok, "abc", 3, false, &ids, &err), MOE_ERR_UNSUPPORTED,
                 "byte 0x20", &err);
    assert_int_equal(ids.n, 1);
    moe_ids_release(&ids);
    moe_tokenizer_free(tok);
}

static struct moe_buf small_section(void)
{
    struct moe_tokenizer *tok = NULL;
    struct moe_err err = {0};
    struct moe_buf out = {0};
    static const char json[] =
        "{\"normalizer\":{\"type\":\"NFC\"}," LEVEL
        ",\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true}]," MODEL "}";
    assert_ok(moe_tokenizer_parse_hf(&tok, "t.json", json, strlen(json), NULL, NULL, 0, &err),
              &err);
    moe_tokenizer_write(tok, &out);
    moe_tokenizer_free(tok);
    return out;
}

static int read_section(const struct moe_buf *b, uint64_t n, struct moe_err *err)
{
    /* A copy of exactly n bytes, so that a sanitizer sees a read past them. */
    uint8_t *copy = malloc(n ? n : 1);
    struct moe_tokenizer *tok = NULL;
    if (n)
        memcpy(copy, b->data, n);
    int status = moe_tokenizer_read(&tok, "p.moe", copy, n, err);
    free(copy);
    if (status == MOE_OK) {
        struct moe_ids ids = {0};
        int encoded = moe_tokenizer_encode(tok, "ab <s>\xff", 7, true, &ids, err);
        assert_true(encoded == MOE_OK || encoded == MOE_ERR_UNSUPPORTED ||
                    encoded == MOE_ERR_LIMIT);
        moe_ids_release(&ids);
        moe_tokenizer_free(tok);
    }
    return status;
}

static void check_patch(uint64_t at, uint32_t value, int bytes, int status, const char *words)
{
    struct moe_buf b = small_section();
    struct moe_err err = {0};
    for (int i = 0; i < bytes; i++)
        b.data[at + (uint64_t)i] = (uint8_t)(value >> 8 * i);
    assert_fails(read_section(&b, b.size, &err), status, words, &err);
    assert_non_null(strstr(err.text, "p.moe: tokenizer:"));
    moe_buf_release(&b);
}

static void damaged_sections_are_refused(void **state)
{
    enum { LENGTHS = 64, FLAGS = LENGTHS + 8, TEXT = FLAGS + 4, MERGES = TEXT + 7 };
    struct moe_buf b = small_section();
    struct moe_err err = {0};
    assert_ok(read_section(&b, b.size, &err), &err);
    for (uint64_t n = 0; n < b.size; n++)
        assert_fails(read_section(&b, n, &err), MOE_ERR_FORMAT, "p.moe", &err);
    moe_buf_u8(&b, 0);
    assert_fails(read_section(&b, b.size, &err), MOE_ERR_FORMAT, "follow", &err);
    moe_buf_release(&b);

    check_patch(0, 'X', 1, MOE_ERR_FORMAT, "no tokenizer");
    check_patch(4, 2, 2, MOE_ERR_VERSION, "version 2");
    check_patch(6, 9, 1, MOE_ERR_UNSUPPORTED, "model 9");
    check_patch(8, 0x80000000, 4, MOE_ERR_UNSUPPORTED, "flags");
    check_patch(12, UINT32_MAX, 4, MOE_ERR_FORMAT, "cut off");
    check_patch(12, 0, 4, MOE_ERR_FORMAT, "0 tokens");
    check_patch(16, UINT32_MAX, 4, MOE_ERR_FORMAT, "cut off");
    check_patch(24, 1000, 4, MOE_ERR_FORMAT, "step");
    check_patch(28, 77, 4, MOE_ERR_FORMAT, "bos");
    check_patch(40, 1, 4, MOE_ERR_UNSUPPORTED, "scores");
    check_patch(44, 6, 4, MOE_ERR_FORMAT, "outside");
    check_patch(48, 99, 4, MOE_ERR_FORMAT, "98 does not exist");
    check_patch(52, 99, 4, MOE_ERR_FORMAT, "98 does not exist");
    check_patch(56, 1, 1, MOE_ERR_UNSUPPORTED, "fields");
    check_patch(LENGTHS, 9, 1, MOE_ERR_FORMAT, "outside");
    check_patch(FLAGS, MOE_TOKEN_SINGLE_WORD, 1, MOE_ERR_FORMAT, "flags");
    check_patch(FLAGS, MOE_TOKEN_SPECIAL, 1, MOE_ERR_FORMAT, "flags");
    check_patch(FLAGS, MOE_TOKEN_MODEL | MOE_TOKEN_BYTE, 1, MOE_ERR_FORMAT, "byte token");
    check_patch(FLAGS, 0, 1, MOE_ERR_FORMAT, "merge 0");
    check_patch(TEXT, 'b', 1, MOE_ERR_FORMAT, "merge 0");
    check_patch(MERGES, 99, 4, MOE_ERR_FORMAT, "token 99");
    check_patch(MERGES + 8, 1, 4, MOE_ERR_FORMAT, "merge 0");
    check_patch(MERGES + 12, 99, 1, MOE_ERR_UNSUPPORTED, "normalizer step 99");
}

/* Whatever a flipped byte makes of a section, it is read or refused; never a crash. */
static void flipped_bytes_do_no_harm(void **state)
{
    struct moe_buf b = small_section();
    for (uint64_t at = 0; at < b.size; at++) {
        static const uint8_t flips[] = {0x01, 0x10, 0x80, 0xff};
        for (size_t i = 0; i < N_ITEMS(flips); i++) {
            struct moe_err err = {0};
            b.data[at] ^= flips[i];
            read_section(&b, b.size, &err);
            b.data[at] ^= flips[i];
        }
    }
    moe_buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_have_the_reference_ids),
        cmocka_unit_test(documents_have_the_reference_counts),
        cmocka_unit_test(first_and_last_tokens_are_found),
        cmocka_unit_test(tokens_mean_their_bytes),
        cmocka_unit_test(special_tokens_count_only_where_asked_for),
        cmocka_unit_test(words_without_marks_change_no_ids),
        cmocka_unit_test(marks_in_words_are_words),
        cmocka_unit_test(normalized_marks_in_words_are_words),
        cmocka_unit_test(any_bytes_come_back),
        cmocka_unit_test(long_pieces_are_quick),
        cmocka_unit_test(hostile_patterns_are_stopped),
        cmocka_unit_test(published_patterns_are_not),
        cmocka_unit_test(merging_follows_its_definition),
        cmocka_unit_test(patterns_are_rewritten_or_refused),
        cmocka_unit_test(what_stands_around_a_text),
        cmocka_unit_test(what_is_not_implemented_is_named),
        cmocka_unit_test(older_metaspace_is_understood),
        cmocka_unit_test(damaged_json_is_refused),
        cmocka_unit_test(bytes_without_a_token_are_an_error),
        cmocka_unit_test(damaged_sections_are_refused),
        cmocka_unit_test(flipped_bytes_do_no_harm),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
