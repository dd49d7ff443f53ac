/*
 * Is a bit map better than chance? Shuffles a map's choice among the experts (equal bytes, where
 * all experts are of one size) a number of times, and measures map and shuffles side by side on
 * texts; differences are paired, document by document.
 *
 *     bench_maps PACK MAP SHUFFLES TEXT...
 *
 * The last line is for tables: "LOSS ERROR MEAN LOWEST HIGHEST BETTER CLEAR SHUFFLES": the map's
 * loss over the highest precision in percent and its standard error; of the shuffles' losses mean,
 * lowest and highest; how many the map is better than, and how many of these by more than two
 * standard errors of the difference.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/random.h"
#include "kern/kern.h"
#include "tune/dense_bits.h"
#include "tune/quality.h"

enum { MAX_TOKENS = 256 };

static struct {
    struct moe_map *map;
    struct moe_model *model, *derived;
    struct moe_experts *experts;
    struct moe_corpus *corpus;
    struct moe_rerun *own, *rerun; /* with the pack's dense part; with the map's */
    uint8_t *table;
    struct moe_quality reference, chosen;
} b;

static void must(int status, const struct moe_err *err)
{
    if (status == MOE_OK)
        return;
    fprintf(stderr, "bench_maps: %s\n", err->text);
    exit(1);
}

/* Of the whole model: variants[MoE layers][n_experts], or all at the best. */
static struct moe_quality measure(struct moe_rerun *r, const uint8_t *variants,
                                  const struct moe_quality *reference)
{
    struct moe_err err;
    struct moe_quality q;
    struct moe_rule_table at = {b.table, b.map->n_experts, b.map->top_k};
    const struct moe_rule rule = moe_rule_of_table(&at);
    for (uint32_t l = 0; l < b.map->n_layers; l++) {
        uint8_t *to = b.table + (uint64_t)b.map->model_layer[l] * b.map->n_experts;
        if (variants)
            memcpy(to, variants + (uint64_t)l * b.map->n_experts, b.map->n_experts);
        else
            memset(to, 0, b.map->n_experts);
    }
    must(moe_quality_measure(&q, r, &rule, reference, &err), &err);
    return q;
}

static void shuffle(uint8_t *variants, uint64_t n, uint64_t *state)
{
    for (uint64_t i = n - 1; i > 0; i--) {
        uint64_t j = moe_random_next(state) % (i + 1);
        uint8_t v = variants[i];
        variants[i] = variants[j];
        variants[j] = v;
    }
}

static void open_all(const char *pack, const char *map, const char *const *texts, uint32_t n)
{
    struct moe_err err;
    must(moe_kern_select(moe_cpu_detect(), &err), &err);
    must(moe_map_read(&b.map, map, &err), &err);
    must(moe_model_open(&b.model, pack, MAX_TOKENS, NULL, &err), &err);
    if (!b.map->choice.there || b.map->pack_fingerprint != moe_pack_fingerprint(b.model->pack)) {
        fprintf(stderr, "bench_maps: %s: is no choice for this pack\n", map);
        exit(1);
    }
    must(moe_experts_open_every(&b.experts, b.model->pack, 0, NULL, &err), &err);
    const struct moe_documents documents = {.tokenizer = b.model->tokenizer,
                                            .max_tokens = MAX_TOKENS,
                                            .max_windows = 1,
                                            .pairs = b.model->config.n_encoder > 0,
                                            .decoder_start = b.model->config.decoder_start};
    must(moe_corpus_read(&b.corpus, &documents, texts, n, &err), &err);
    const struct moe_rerun_options options = {.n_variants = b.map->n_variants};
    must(moe_rerun_open(&b.own, b.model, b.experts, b.corpus, &options, &err), &err);
    b.rerun = b.own;
    if (b.map->choice.dense_bits != b.map->pack_dense_bits) {
        struct moe_dense_rounding how;
        must(moe_dense_rounding_of(b.model->pack, &how, &err), &err);
        if (b.map->dense_method[0])
            how = (struct moe_dense_rounding){moe_quant_method_find(b.map->dense_method),
                                              b.map->dense_group, NULL};
        if (!how.method || how.method->compensates) {
            fprintf(stderr, "bench_maps: %s: its dense part cannot be made again\n", map);
            exit(1);
        }
        must(moe_dense_derive(&b.derived, b.model, &how, b.map->choice.dense_bits, &err), &err);
        must(moe_rerun_open(&b.rerun, b.derived, b.experts, b.corpus, &options, &err), &err);
    }
    b.table = calloc(b.model->config.n_layers, b.map->n_experts);
    if (!b.table)
        exit(1);
}

static void close_all(void)
{
    moe_quality_release(&b.reference);
    moe_quality_release(&b.chosen);
    if (b.rerun != b.own)
        moe_rerun_close(b.rerun);
    moe_rerun_close(b.own);
    moe_dense_release(b.derived);
    moe_experts_close(b.experts);
    moe_corpus_free(b.corpus);
    moe_model_close(b.model);
    moe_map_free(b.map);
    free(b.table);
}

int main(int argc, char **argv)
{
    uint64_t state = 1;
    if (argc < 5) {
        fprintf(stderr, "usage: bench_maps PACK MAP SHUFFLES TEXT...\n");
        return 2;
    }
    int n_shuffles = atoi(argv[3]), n_better = 0, n_clear = 0;
    open_all(argv[1], argv[2], (const char *const *)argv + 4, (uint32_t)argc - 4);
    uint32_t n = b.corpus->n_documents;
    uint64_t n_experts = (uint64_t)b.map->n_layers * b.map->n_experts;
    uint8_t *variants = malloc(n_experts);
    struct moe_loss loss, more;
    double sum = 0, lowest = 1e300, highest = -1e300;
    if (!variants)
        return 1;
    memcpy(variants, b.map->choice.variant, n_experts);
    b.reference = measure(b.own, NULL, NULL);
    b.chosen = measure(b.rerun, variants, &b.reference);
    moe_quality_loss(&b.chosen, &b.reference, 0, n, &loss);
    printf("the map      %+.3f%% (%.3f)\n", loss.nll_percent, loss.nll_error);
    for (int i = 0; i < n_shuffles; i++) {
        shuffle(variants, n_experts, &state);
        struct moe_quality q = measure(b.rerun, variants, &b.reference);
        struct moe_loss shuffled;
        moe_quality_loss(&q, &b.reference, 0, n, &shuffled);
        moe_quality_loss(&q, &b.chosen, 0, n, &more);
        printf("shuffle %-4d %+.3f%%, over the map %+.3f%% (%.3f)\n", i + 1, shuffled.nll_percent,
               more.nll_percent, more.nll_error);
        sum += shuffled.nll_percent;
        lowest = shuffled.nll_percent < lowest ? shuffled.nll_percent : lowest;
        highest = shuffled.nll_percent > highest ? shuffled.nll_percent : highest;
        n_better += more.nll_percent > 0;
        n_clear += more.nll_percent > 2 * more.nll_error;
        moe_quality_release(&q);
    }
    printf("%.3f %.3f %.3f %.3f %.3f %d %d %d\n", loss.nll_percent, loss.nll_error,
           sum / n_shuffles, lowest, highest, n_better, n_clear, n_shuffles);
    free(variants);
    close_all();
    return 0;
}
