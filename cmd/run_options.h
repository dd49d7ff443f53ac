/* The command line of moe-run: its options, checked. */
#ifndef CMD_RUN_OPTIONS_H
#define CMD_RUN_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "cli.h"
#include "engine/answer.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "requests.h"
#include "strategy_options.h"

struct run_options {
    const char *prompt, *file, *prefix_text, *source_language, *target_language, *system,
        *template_file, *perplexity, *token_log, *logits, *against, *ids, *stats_json,
        *trace_events, *plan, *calibration, *prompt_cache, *grammar, *json_schema, *messages,
        *tools, *tool_choice, *follow;
    struct cli_texts stops, biases, breakers, stop_token_ids;
    struct moe_ids stop_ids; /* of stop_token_ids */
    uint64_t n, min_tokens;  /* tokens to generate at most, at least; UINT64_MAX: no limit */
    uint32_t context, batch, sequences, logprobs, max_doc_tokens, max_windows, window,
        prompt_tokens, bench_runs;
    double prompt_share; /* of --perplexity's documents */
    bool show_prompt, context_shift, raw, ignore_eos, bench, encode, json, json_object, stats, list;
    int predict_on;     /* enum moe_predict_on */
    int early_stopping; /* enum moe_early_stopping */
    int pooling;        /* enum moe_pooling */
    int judge;          /* of judges: 0 is nats */
    struct strategy_drafter draft;
    uint32_t draft_max; /* 0 without drafts */
    struct strategy_options strategy;
    struct requests_options requests;
    struct moe_engine_options engine;
    struct moe_sampler_options sampling;
    struct moe_beam_options beams;
};

extern struct run_options opt; /* of the process */
/* Frees what its options made. */
void run_options_release(void);

/* Parses and checks. Returns -1 when the program should go on, otherwise the status to exit with.
 * *pack: the path of the pack or checkpoint; of the directory to --list, or NULL. */
int run_options_parse(int argc, char **argv, const char **pack);

/* Reads "15043-1.5" or "15043-inf", a token with what is added to its logit. */
bool run_options_bias(const char *text, struct moe_logit_bias *out);

/* Reads the grammar that answers must follow; *out stays as it was where they are free. Needs no
 * pack, so mistakes show at once. */
int run_options_grammar(struct moe_grammar **out, struct moe_err *err);

#endif
