/* Layers that draft (infer/forward.h) against what PyTorch computes of the same description
 * (tests/fixtures/fixture_ahead.py, make_drafters.py): DeepSeek's names, behind latent attention,
 * and Qwen3-Next's, behind recurrent states; and heads that draft for the same models. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "../scratch_dir.h"

#include <jansson.h>
#include <math.h>

#include "infer/forward.h"
#include "model/config.h"
#include "model/read.h"
#include "model_fixture.h"
#include "pack/pack.h"

enum { MOST_IDS = 64, MOST_VOCAB = 512 };

struct ahead {
    struct fixture f;
    json_t *reference;
    uint32_t n, ids[MOST_IDS];
    float worst; /* of all logits compared, in parts of the largest */
};

static json_t *reference_of(const struct ahead *a, const char *key)
{
    json_t *value = json_object_get(json_object_get(a->reference, "ahead"), key);
    assert_non_null(value);
    return value;
}

static void open_session(struct ahead *a, uint32_t batch)
{
    struct moe_err err = {0};
    const struct moe_session_options o = {.context = MOST_IDS, .batch = batch, .n_sequences = 2};
    moe_session_close(a->f.session);
    a->f.session = NULL;
    assert_ok(moe_session_open(&a->f.session, a->f.model, a->f.experts, &o, &err), &err);
}

/* A model, and what drafts: its own layer, of which `fixture` has the reference; or a head in a
 * file, beside the reference of `drafter`. */
static void open_all(struct ahead *a, const char *fixture, const char *file, const char *drafter,
                     const char *head)
{
    struct moe_err err = {0};
    char path[256];
    const struct moe_convert_options options = pack_options("32", 32);
    *a = (struct ahead){0};
    snprintf(path, sizeof path, "%s/reference.json", drafter ? drafter : fixture);
    a->reference = json_load_file(path, 0, NULL);
    assert_non_null(a->reference);
    json_t *ids = reference_of(a, "ids");
    a->n = (uint32_t)json_array_size(ids);
    assert_true(a->n <= MOST_IDS);
    for (uint32_t i = 0; i < a->n; i++)
        a->ids[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
    snprintf(a->f.path, sizeof a->f.path, "/tmp/moe-ahead-%d.moe", (int)getpid());
    snprintf(path, sizeof path, "%s%s", fixture, file);
    make_pack(a->f.path, path, &options);
    assert_ok(moe_model_open_directory(&a->f.model, a->f.path, &err), &err);
    assert_ok(drafter ? moe_model_take_drafter(a->f.model, head, &err)
                      : moe_model_take_ahead(a->f.model, &err),
              &err);
    assert_ok(moe_model_load(a->f.model, 0, NULL, NULL, &err), &err);
    assert_ok(moe_experts_open_resident(&a->f.experts, a->f.model->pack, 0, NULL, NULL, &err),
              &err);
}

static void close_all(struct ahead *a)
{
    fixture_close(&a->f);
    json_decref(a->reference);
}

/* Row `row` of what was computed last has these logits, or with `follows` the token before added;
 * returns the likeliest token. */
static uint32_t compare_row(struct ahead *a, uint32_t row, const uint32_t *follows,
                            const json_t *want)
{
    struct moe_err err = {0};
    float logits[MOST_VOCAB], largest = 0, off = 0;
    uint32_t best = 0;
    assert_true(moe_logits_stride(&a->f.model->config) <= MOST_VOCAB);
    assert_int_equal(json_array_size(want), a->f.model->config.vocab);
    assert_ok(moe_logits(a->f.session, row, 1, logits, &err), &err);
    if (follows)
        assert_ok(moe_ahead_follow(a->f.session, *follows, logits, &err), &err);
    for (uint32_t v = 0; v < a->f.model->config.vocab; v++) {
        float w = (float)json_number_value(json_array_get(want, v));
        if (json_is_null(json_array_get(want, v))) { /* none of the head's tokens */
            assert_true(logits[v] == -INFINITY);
            continue;
        }
        largest = fmaxf(largest, fabsf(w));
        off = fmaxf(off, fabsf(w - logits[v]));
        best = logits[v] > logits[best] ? v : best;
    }
    a->worst = fmaxf(a->worst, off / largest);
    return best;
}

/* The same of a head's block, whose first token is known; returns the token that stands there. */
static uint32_t compare_block_row(struct ahead *a, uint32_t row, uint32_t token, const json_t *want)
{
    const struct moe_config *head = &a->f.model->drafter->config;
    const bool drafts = row > 0 || head->from_anchor;
    uint32_t best = compare_row(a, row, drafts && head->markov_rank ? &token : NULL, want);
    return drafts ? best : token;
}

/* Row `row` of what was computed last is what the reference says of a position. */
static void compare(struct ahead *a, uint32_t row, uint32_t position)
{
    json_t *positions = reference_of(a, "positions"), *all = reference_of(a, "logits");
    for (size_t i = 0; i < json_array_size(positions); i++)
        if (json_integer_value(json_array_get(positions, i)) == position)
            compare_row(a, row, NULL, json_array_get(all, i));
}

/* The text in passes of `batch`, and after each the layer that drafts; then a token further. */
static void read_text(struct ahead *a, uint32_t batch)
{
    struct moe_err err = {0};
    struct moe_row rows[MOST_IDS], next[MOST_IDS];
    uint32_t n_layers = a->f.model->config.n_layers, last = 0;
    open_session(a, batch);
    for (uint32_t at = 0, n; at < a->n - 1; at += n) {
        n = a->n - 1 - at < batch ? a->n - 1 - at : batch;
        for (uint32_t i = 0; i < n; i++) {
            rows[i] = (struct moe_row){0, at + i, a->ids[at + i], a->n};
            next[i] = (struct moe_row){0, at + i, a->ids[at + i + 1], a->n};
        }
        assert_ok(moe_forward(a->f.session, MOE_PREFILL, rows, n, 0, n_layers, NULL, NULL, &err),
                  &err);
        assert_ok(moe_ahead(a->f.session, next, n, NULL, &err), &err);
        for (uint32_t i = 0; i < n; i++)
            compare(a, i, at + i);
        last = n - 1;
    }
    const struct moe_row further = {0, a->n - 1,
                                    (uint32_t)json_integer_value(reference_of(a, "drafted")), a->n};
    assert_ok(moe_ahead(a->f.session, &further, 1, &last, &err), &err);
    compare(a, 0, a->n - 1);
}

/* A head's blocks behind some of the text, which passes of `batch` bring there. */
static void draft_blocks(struct ahead *a, uint32_t batch)
{
    struct moe_err err = {0};
    struct moe_row rows[MOST_IDS];
    const struct moe_config *c = &a->f.model->config, *head = &a->f.model->drafter->config;
    const json_t *blocks = reference_of(a, "blocks"), *block;
    uint32_t at = 0;
    size_t b;
    open_session(a, batch);
    json_array_foreach(blocks, b, block)
    {
        const uint32_t before = (uint32_t)json_integer_value(json_object_get(block, "before"));
        for (uint32_t n; at < before; at += n) {
            n = before - at < batch ? before - at : batch;
            for (uint32_t i = 0; i < n; i++)
                rows[i] = (struct moe_row){1, at + i, a->ids[at + i], a->n};
            assert_ok(
                moe_forward(a->f.session, MOE_PREFILL, rows, n, 0, c->n_layers, NULL, NULL, &err),
                &err);
            assert_ok(moe_ahead(a->f.session, rows, n, NULL, &err), &err);
        }
        if (head->draft_block > batch)
            continue;
        for (uint32_t i = 0; i < head->draft_block; i++)
            rows[i] = (struct moe_row){1, before + i, i ? head->mask_token : a->ids[before],
                                       before + head->draft_block};
        assert_ok(moe_ahead_block(a->f.session, rows, head->draft_block, &err), &err);
        uint32_t token = a->ids[before];
        for (uint32_t i = 0; i < head->draft_block; i++)
            token =
                compare_block_row(a, i, token, json_array_get(json_object_get(block, "logits"), i));
    }
}

static void check_blocks(const char *fixture, const char *drafter, const char *head)
{
    static const uint32_t batches[] = {9, 10, MOST_IDS};
    struct ahead a;
    open_all(&a, fixture, "", drafter, head);
    for (size_t i = 0; i < N_ITEMS(batches); i++)
        draft_blocks(&a, batches[i]);
    print_message("# %s: %.2g of the largest logit\n", head, (double)a.worst);
    assert_true(a.worst > 0 && a.worst < 1e-4f);
    close_all(&a);
}

/* DFlash: blocks of 5 that two layers see as a whole, in place, from GGUF and from a pack. */
static void a_head_of_blocks(void **state)
{
    const struct moe_convert_options options = pack_options("32", 32);
    make_dir(state);
    make_pack(in_dir("head.moe"), DRAWN "/dflash-a", &options);
    check_blocks(DRAWN "/ahead-deepseek", DRAWN "/dflash-a", DRAWN "/dflash-a");
    check_blocks(DRAWN "/ahead-deepseek", DRAWN "/dflash-a", DRAWN "/dflash-a/model.gguf");
    check_blocks(DRAWN "/ahead-deepseek", DRAWN "/dflash-a", in_dir("head.moe"));
    remove_dir(state);
}

/* Windows, in which rows see none behind them, or do; biases, scales, a rotation of half a head,
 * some tokens of its own; a block that is causal. */
static void heads_of_other_blocks(void **state)
{
    check_blocks(DRAWN "/ahead-qwen3-next", DRAWN "/dflash-b", DRAWN "/dflash-b");
    check_blocks(DRAWN "/ahead-deepseek", DRAWN "/dflash-c", DRAWN "/dflash-c");
    check_blocks(DRAWN "/ahead-deepseek", DRAWN "/dflash-d", DRAWN "/dflash-d");
}

/* A GGUF file with an embedding and no output: the embedding is both. */
static void a_tied_head_of_blocks(void **state)
{
    const struct moe_convert_options options = pack_options("32", 32);
    make_dir(state);
    make_pack(in_dir("head.moe"), DRAWN "/dflash-e/model.gguf", &options);
    check_blocks(DRAWN "/ahead-deepseek", DRAWN "/dflash-e", DRAWN "/dflash-e/model.gguf");
    check_blocks(DRAWN "/ahead-deepseek", DRAWN "/dflash-e", in_dir("head.moe"));
    remove_dir(state);
}

/* DSpark: blocks whose tokens depend on the ones before them, from the known one's row on, or from
 * the next; the latter of some tokens. */
static void heads_whose_tokens_follow(void **state)
{
    const struct moe_convert_options options = pack_options("32", 32);
    make_dir(state);
    make_pack(in_dir("head.moe"), DRAWN "/dspark-a", &options);
    check_blocks(DRAWN "/ahead-deepseek", DRAWN "/dspark-a", DRAWN "/dspark-a");
    check_blocks(DRAWN "/ahead-deepseek", DRAWN "/dspark-a", DRAWN "/dspark-a/model.gguf");
    check_blocks(DRAWN "/ahead-deepseek", DRAWN "/dspark-a", in_dir("head.moe"));
    check_blocks(DRAWN "/ahead-deepseek", DRAWN "/dspark-b", DRAWN "/dspark-b");
    remove_dir(state);
}

/* Drafts of other tokens, after which the text goes back to before them, leave nothing behind. */
static void take_back(struct ahead *a)
{
    struct moe_err err = {0};
    struct moe_row rows[MOST_IDS], next[MOST_IDS];
    const uint32_t n_layers = a->f.model->config.n_layers, n = a->n - 1;
    open_session(a, MOST_IDS);
    for (int round = 0; round < 2; round++) {
        const uint32_t first = round ? moe_sequence_rewind(a->f.session, 0, 11) : 0;
        for (uint32_t i = first; i < n; i++) {
            const uint32_t other = i > 11 && round == 0;
            rows[i] = (struct moe_row){0, i, a->ids[i] ^ other, a->n};
            next[i] = (struct moe_row){0, i, a->ids[i + 1] ^ other, a->n};
        }
        assert_ok(moe_forward(a->f.session, MOE_PREFILL, rows + first, n - first, 0, n_layers, NULL,
                              NULL, &err),
                  &err);
        assert_ok(moe_ahead(a->f.session, next + first, n - first, NULL, &err), &err);
        for (uint32_t i = first; i < n && round; i++)
            compare(a, i - first, i);
    }
}

static void check_fixture(const char *fixture, const char *file)
{
    static const uint32_t batches[] = {1, 7, MOST_IDS};
    struct ahead a;
    open_all(&a, fixture, file, NULL, NULL);
    for (size_t i = 0; i < N_ITEMS(batches); i++)
        read_text(&a, batches[i]);
    print_message("# %s%s: %.2g of the largest logit\n", fixture, file, (double)a.worst);
    assert_true(a.worst > 0 && a.worst < 1e-4f);
    /* Its activations are counted with the others', its rows are no tokens. */
    const struct moe_phase_stats *p = &a.f.session->stats.prefill;
    const struct moe_config *c = &a.f.model->config;
    uint64_t n = (uint64_t)(a.n - 1) * c->top_k;
    assert_int_equal(p->tokens, a.n - 1);
    assert_int_equal(p->experts.activations, (c->n_moe_layers + 1) * n + c->top_k);
    close_all(&a);
}

/* A head drafts the same in place and out of a pack; it has no experts. */
static void check_head(const char *fixture, const char *drafter, const char *head)
{
    static const uint32_t batches[] = {1, 7, MOST_IDS};
    struct ahead a;
    open_all(&a, fixture, "", drafter, head);
    for (size_t i = 0; i < N_ITEMS(batches); i++)
        read_text(&a, batches[i]);
    const struct moe_phase_stats *p = &a.f.session->stats.prefill;
    const struct moe_config *c = &a.f.model->config;
    assert_int_equal(p->tokens, a.n - 1);
    assert_int_equal(p->experts.activations, (uint64_t)c->n_moe_layers * (a.n - 1) * c->top_k);
    take_back(&a);
    print_message("# %s: %.2g of the largest logit\n", head, (double)a.worst);
    assert_true(a.worst > 0 && a.worst < 1e-4f);
    close_all(&a);
}

/* SpecForge's names, some of the model's tokens, behind latent attention. */
static void a_head_of_some_tokens(void **state)
{
    const struct moe_convert_options options = pack_options("32", 32);
    make_dir(state);
    make_pack(in_dir("head.moe"), DRAWN "/eagle3-a", &options);
    check_head(DRAWN "/ahead-deepseek", DRAWN "/eagle3-a", DRAWN "/eagle3-a");
    check_head(DRAWN "/ahead-deepseek", DRAWN "/eagle3-a", DRAWN "/eagle3-a/model.gguf");
    check_head(DRAWN "/ahead-deepseek", DRAWN "/eagle3-a", in_dir("head.moe"));
    remove_dir(state);
}

/* Those of vLLM's speculators, both switches, its own embedding and the model's output, a rotation
 * for long texts, behind recurrent states. */
static void a_head_with_every_switch(void **state)
{
    check_head(DRAWN "/ahead-qwen3-next", DRAWN "/eagle3-b", DRAWN "/eagle3-b");
}

/* Heads wider and narrower than anything of the model's latent attention. */
static void heads_of_other_widths(void **state)
{
    check_head(DRAWN "/ahead-deepseek", DRAWN "/eagle3-c", DRAWN "/eagle3-c");
    check_head(DRAWN "/ahead-deepseek", DRAWN "/eagle3-d", DRAWN "/eagle3-d");
}

/* Latent attention: wider than the model's own, with YaRN, and for a model that has none. */
static void heads_with_latent_attention(void **state)
{
    const struct moe_convert_options options = pack_options("32", 32);
    make_dir(state);
    make_pack(in_dir("head.moe"), DRAWN "/eagle3-e", &options);
    check_head(DRAWN "/ahead-deepseek", DRAWN "/eagle3-e", DRAWN "/eagle3-e");
    check_head(DRAWN "/ahead-deepseek", DRAWN "/eagle3-e", in_dir("head.moe"));
    check_head(DRAWN "/ahead-qwen3-next", DRAWN "/eagle3-f", DRAWN "/eagle3-f");
    remove_dir(state);
}

static void heads_are_for_their_model(void **state)
{
    struct moe_err err = {0};
    struct moe_model *model;
    const struct moe_convert_options options = pack_options("4", 8);
    make_dir(state);
    make_pack(in_dir("x.moe"), DRAWN "/ahead-deepseek", &options);
    assert_ok(moe_model_open_directory(&model, in_dir("x.moe"), &err), &err);
    const struct moe_session_options o = {.context = 64};
    const uint64_t load = moe_model_load_bytes(model, 64),
                   kv = moe_session_kv_bytes(&model->config, &o),
                   all = moe_session_bytes(&model->config, &o);
    assert_fails(moe_model_take_drafter(model, DRAWN "/eagle3-b", &err), MOE_ERR_FORMAT,
                 "drafts for another model", &err);
    moe_model_close(model);
    assert_ok(moe_model_open_directory(&model, in_dir("x.moe"), &err), &err);
    assert_fails(moe_model_take_drafter(model, in_dir("x.moe"), &err), MOE_ERR_UNSUPPORTED,
                 "no head that drafts", &err);
    moe_model_close(model);
    assert_fails(moe_model_open_directory(&model, DRAWN "/eagle3-a", &err), MOE_ERR_UNSUPPORTED,
                 "only drafts", &err);
    assert_ok(moe_model_open_directory(&model, in_dir("x.moe"), &err), &err);
    assert_ok(moe_model_take_drafter(model, DRAWN "/eagle3-a", &err), &err);
    assert_int_equal(moe_pack_n_layers(model->pack), 2);
    assert_true(moe_model_load_bytes(model, 64) > load);
    assert_true(moe_session_kv_bytes(&model->config, &o) > kv);
    assert_true(moe_session_bytes(&model->config, &o) > all);
    moe_model_close(model);
    remove_dir(state);
}

/* What a session has room for by its model's description a head has not; nor has a model whose
 * heads have convolutions room for its latent attention. */
static void heads_are_plain(void **state)
{
    (void)state;
    static struct moe_config heads[5], c;
    static const char *const names[] = {DRAWN "/eagle3-a", DRAWN "/eagle3-a", DRAWN "/eagle3-e",
                                        DRAWN "/dflash-a", DRAWN "/eagle3-a"};
    struct moe_err err = {0};
    for (size_t i = 0; i < N_ITEMS(names); i++)
        assert_ok(moe_config_read_hf(&heads[i], names[i], &err), &err);
    heads[0].attn_gate = true;
    heads[1].global_head_dim = heads[1].head_dim;
    heads[1].global_kv_heads = heads[1].n_kv_heads;
    heads[1].n_global_freqs = heads[1].rope_dim / 2;
    heads[2].layers[0].unrotated = true;
    heads[3].kv_rank = 16;
    heads[3].rope_dim = 8;
    heads[3].qk_norm = MOE_QK_NORM_NONE;
    heads[4].attn_experts = 4;
    heads[4].hidden = 48;
    heads[4].head_dim = heads[4].value_dim = heads[4].rope_dim = 16;
    for (size_t i = 0; i < N_ITEMS(names); i++)
        assert_fails(moe_config_check(&heads[i], names[i], &err), MOE_ERR_UNSUPPORTED,
                     "implemented as one dense layer", &err);
    assert_ok(moe_config_read_hf(&c, DRAWN "/zaya-a", &err), &err);
    c.router_dim = 0;
    heads[2].hidden = c.hidden;
    heads[2].vocab = c.vocab;
    assert_fails(moe_config_take_drafter(&c, &heads[2], "x", "y", &err), MOE_ERR_UNSUPPORTED,
                 "without compressed", &err);
    c.state_kind = MOE_STATE_DELTA;
    assert_ok(moe_config_take_drafter(&c, &heads[2], "x", "y", &err), &err);
}

static void deepseeks_layer(void **state)
{
    check_fixture(DRAWN "/ahead-deepseek", "");
    check_fixture(DRAWN "/ahead-deepseek", "/model.gguf");
}

static void qwen3_nexts_layer(void **state)
{
    check_fixture(DRAWN "/ahead-qwen3-next", "");
}

/* What is made of a pack does not see the layer unless it is taken. */
static void nothing_else_sees_it(void **state)
{
    struct moe_err err = {0};
    struct moe_convert_options options = pack_options("4", 8);
    struct moe_convert_report report;
    struct moe_model *with, *without;
    make_dir(state);
    make_pack(in_dir("with.moe"), DRAWN "/ahead-deepseek", &options);
    options.no_ahead = true;
    make_pack(in_dir("without.moe"), DRAWN "/ahead-deepseek", &options);
    assert_ok(moe_model_open_directory(&with, in_dir("with.moe"), &err), &err);
    assert_ok(moe_model_open_directory(&without, in_dir("without.moe"), &err), &err);
    assert_int_equal(with->config.n_ahead, 1);
    assert_int_equal(with->config.n_drafting, 0);
    assert_int_equal(without->config.n_ahead, 0);
    assert_int_equal(moe_pack_n_layers(with->pack), 2);
    assert_int_equal(moe_pack_n_ahead(with->pack), 1);
    assert_int_equal(moe_pack_source_fingerprint(with->pack),
                     moe_pack_source_fingerprint(without->pack));
    assert_int_equal(moe_model_load_bytes(with, 64), moe_model_load_bytes(without, 64));
    assert_int_equal(moe_cache_slot_bytes(with->pack, 0), moe_cache_slot_bytes(without->pack, 0));
    const struct moe_session_options o = {.context = 64};
    assert_int_equal(moe_session_bytes(&with->config, &o), moe_session_bytes(&without->config, &o));
    assert_ok(moe_model_take_ahead(with, &err), &err);
    assert_int_equal(moe_pack_n_layers(with->pack), 3);
    assert_true(moe_model_load_bytes(with, 64) > moe_model_load_bytes(without, 64));
    assert_true(moe_session_kv_bytes(&with->config, &o) >
                moe_session_kv_bytes(&without->config, &o));
    assert_fails(moe_model_take_ahead(without, &err), MOE_ERR_UNSUPPORTED, "no layer that drafts",
                 &err);
    moe_model_close(with);
    moe_model_close(without);

    /* Packed again it stays, or goes. */
    options = pack_options("", 0);
    assert_ok(moe_convert_pack(in_dir("with.moe"), in_dir("again.moe"), &options, &report, &err),
              &err);
    assert_ok(moe_model_open_directory(&with, in_dir("again.moe"), &err), &err);
    assert_ok(moe_model_take_ahead(with, &err), &err);
    moe_model_close(with);
    options.no_ahead = true;
    assert_ok(moe_convert_pack(in_dir("with.moe"), in_dir("gone.moe"), &options, &report, &err),
              &err);
    assert_ok(moe_model_open_directory(&without, in_dir("gone.moe"), &err), &err);
    assert_int_equal(without->config.n_ahead, 0);
    assert_int_equal(moe_pack_n_ahead(without->pack), 0);
    moe_model_close(without);
    remove_dir(state);
}

/* Without its matrix it is what it was: left out. */
static void a_layer_in_part_is_left_out(void **state)
{
    struct moe_err err = {0};
    const struct moe_convert_options options = pack_options("4", 8);
    struct moe_convert_report report;
    struct moe_model *model;
    make_dir(state);
    assert_ok(
        moe_convert_checkpoint(DRAWN "/deepseek-v3-a", in_dir("x.moe"), &options, &report, &err),
        &err);
    assert_true(report.n_beyond > 0);
    assert_ok(moe_model_open_directory(&model, in_dir("x.moe"), &err), &err);
    assert_int_equal(model->config.n_ahead, 0);
    moe_model_close(model);
    remove_dir(state);
}

int main(void)
{
    struct moe_err err = {0};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deepseeks_layer),           cmocka_unit_test(qwen3_nexts_layer),
        cmocka_unit_test(a_head_of_some_tokens),     cmocka_unit_test(a_head_with_every_switch),
        cmocka_unit_test(heads_of_other_widths),     cmocka_unit_test(heads_with_latent_attention),
        cmocka_unit_test(heads_are_for_their_model), cmocka_unit_test(heads_are_plain),
        cmocka_unit_test(heads_whose_tokens_follow), cmocka_unit_test(a_head_of_blocks),
        cmocka_unit_test(heads_of_other_blocks),     cmocka_unit_test(a_tied_head_of_blocks),
        cmocka_unit_test(nothing_else_sees_it),      cmocka_unit_test(a_layer_in_part_is_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
