/* An answer on its way out: no piece of it ends inside a character, whatever bytes the tokens hold.
 * The bundled model generates ids; what these mean is made up here. */
#include "model_fixture.h"

#include "base/text.h"
#include "engine/generate.h"
#include "text/internal.h"

enum { TOKENS = 24, PROMPT = 4094 };

static struct fixture fixture;

static int open_all(void **state)
{
    struct moe_err err = {0};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    fixture_open(&fixture, 16, 1, 8);
    return 0;
}

static int close_all(void **state)
{
    fixture_close(&fixture);
    return 0;
}

/* ---- Helpers ---- */

struct heard {
    struct moe_buf text;
    uint64_t ends[TOKENS + 1]; /* of the pieces */
    uint32_t n;
};

static int hear(void *ctx, const char *bytes, uint64_t n)
{
    struct heard *h = ctx;
    moe_buf_append(&h->text, bytes, n);
    assert_true(n > 0 && h->n <= TOKENS);
    h->ends[h->n++] = h->text.size;
    return MOE_OK;
}

/* Generates with `tok` in place of the model's own; ids gets the TOKENS generated ones. */
static void generate(struct moe_tokenizer *tok, struct heard *heard, uint32_t ids[TOKENS])
{
    struct moe_err err = {0};
    struct moe_sampler_options greedy;
    struct moe_sampler *sampler;
    struct moe_ids history = {0};
    enum moe_stop_reason why;
    struct moe_tokenizer *own = fixture.model->tokenizer;
    const struct moe_generate_options options = {
        .max_tokens = TOKENS, .ignore_eos = true, .text = hear, .ctx = heard};
    greedy = (struct moe_sampler_options){
        .temperature = 0.8, .top_p = 1, .repeat_penalty = 1, .repeat_window = 64};
    greedy.temperature = 0;
    greedy.repeat_penalty = 1.5f; /* many different ids */
    assert_ok(moe_sampler_new(&sampler, &greedy, fixture.model->config.vocab, &err), &err);
    assert_ok(moe_ids_push(&history, PROMPT, &err), &err);
    fixture.model->tokenizer = tok;
    assert_ok(moe_generate(fixture.session, sampler, &history, &options, &why, &err), &err);
    fixture.model->tokenizer = own;
    assert_int_equal(history.n, 1 + TOKENS);
    memcpy(ids, history.ids + 1, TOKENS * sizeof *ids);
    moe_ids_release(&history);
    moe_sampler_free(sampler);
}

/* A tokenizer whose token i has the text that text_of(i) writes; flags for all of them. */
static struct moe_tokenizer *made_up(uint8_t model, uint8_t flags,
                                     const char *(*text_of)(uint32_t id, char space[16]))
{
    struct moe_err err = {0};
    struct moe_tokenizer *tok = moe_tokenizer_new(&err);
    uint32_t n = fixture.model->config.vocab;
    assert_ok(moe_tokenizer_allocate(tok, n, &err), &err);
    tok->model = model;
    for (uint32_t id = 0; id < n; id++) {
        char space[16];
        moe_buf_text(&tok->text, text_of(id, space));
        tok->offsets[id + 1] = (uint32_t)tok->text.size;
        tok->token_flags[id] = flags;
    }
    assert_ok(moe_tokenizer_prepare(tok, &err), &err);
    return tok;
}

/* The bytes of all tokens came, and no piece but the last ends inside a character of theirs. */
static void check_heard(const struct moe_tokenizer *tok, const struct heard *heard,
                        const uint32_t ids[TOKENS], uint32_t least_characters)
{
    struct moe_buf whole = {0};
    uint32_t characters = 0;
    for (int i = 0; i < TOKENS; i++) {
        uint32_t n;
        const uint8_t *bytes = moe_tokenizer_bytes(tok, ids[i], &n);
        moe_buf_append(&whole, bytes, n);
    }
    assert_int_equal(whole.size, heard->text.size);
    assert_memory_equal(whole.data, heard->text.data, whole.size);
    uint32_t piece = 0;
    int length;
    for (uint64_t at = 0; at < whole.size; at += (uint64_t)length) {
        moe_utf8_decode(whole.data + at, whole.size - at, &length);
        while (piece < heard->n && heard->ends[piece] <= at)
            piece++;
        assert_true(heard->ends[piece] >= at + (uint64_t)length);
        characters += length > 1;
    }
    assert_true(characters >= least_characters);
    moe_buf_release(&whole);
}

/* ---- Tests ---- */

/* The end of one character and the beginning of the next. */
static const char *halves(uint32_t id, char space[16])
{
    return "\xac\xe2\x82";
}

static void characters_across_tokens_come_whole(void **state)
{
    struct heard heard = {.n = 0};
    uint32_t ids[TOKENS];
    struct moe_tokenizer *tok = made_up(MOE_TOKENIZER_BYTES, 0, halves);
    generate(tok, &heard, ids);
    check_heard(tok, &heard, ids, TOKENS - 1);
    /* A byte that begins no character is shown as it is, and so is one that remains unfinished. */
    assert_int_equal(heard.ends[0], 1);
    assert_int_equal(heard.ends[1], 4);
    assert_int_equal(heard.n, TOKENS + 1);
    assert_memory_equal(heard.text.data + heard.text.size - 2, "\xe2\x82", 2);
    moe_buf_release(&heard.text);
    moe_tokenizer_free(tok);
}

static uint32_t known[TOKENS]; /* what the model will say */

/* The first ids that come spell a text, a byte each. */
static const char *byte_token(uint32_t id, char space[16])
{
    static const char text[] = "\xe2\x82\xac\xf0\x9f\x98\x80\xc3\xa9\xff\xe2\x82z\xf0\x9f";
    unsigned i = 0;
    while (i < TOKENS && known[i] != id)
        i++;
    snprintf(space, 16, "<0x%02X>", i < sizeof text - 1 ? text[i] & 0xff : 'a');
    return space;
}

static void byte_tokens_join_into_characters(void **state)
{
    struct heard first = {.n = 0}, heard = {.n = 0};
    uint32_t ids[TOKENS];
    generate(fixture.model->tokenizer, &first, known);
    for (int i = 0; i < 9; i++)
        for (int j = 0; j < i; j++)
            assert_int_not_equal(known[i], known[j]); /* else the text is another */
    struct moe_tokenizer *tok = made_up(MOE_TOKENIZER_CHARS, MOE_TOKEN_BYTE, byte_token);
    generate(tok, &heard, ids);
    assert_memory_equal(ids, known, sizeof ids);
    check_heard(tok, &heard, ids, 3);
    assert_int_equal(heard.ends[0], 3);
    assert_int_equal(heard.ends[1], 7);
    assert_int_equal(heard.ends[2], 9);
    moe_buf_release(&first.text);
    moe_buf_release(&heard.text);
    moe_tokenizer_free(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(characters_across_tokens_come_whole),
        cmocka_unit_test(byte_tokens_join_into_characters),
    };
    return cmocka_run_group_tests_name("streaming", tests, open_all, close_all);
}
