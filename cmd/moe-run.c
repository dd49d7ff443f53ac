/* moe-run: runs a model. See man/moe-run.1. */
#define _DEFAULT_SOURCE /* isatty */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "cli.h"
#include "engine/beams.h"
#include "engine/encode.h"
#include "fmt/json.h"
#include "grammar/constraint.h"
#include "join_ranks.h"
#include "kept_models.h"
#include "repl/repl.h"
#include "run_modes.h"
#include "run_options.h"
#include "run_prompt.h"
#include "show/show.h"

enum { DEFAULT_CONTEXT = 4096, CALLS_BYTES = 256 << 10 /* a usual grammar of calls */ };

/* ---- Opening ---- */

struct run {
    const char *pack;
    struct moe_engine *engine;
    struct moe_session *session; /* the engine's */
    struct moe_model *model;     /* the engine's */
    struct moe_statistics *statistics;
    struct moe_plan *plan;
    struct moe_stats stats; /* of the whole run */
    struct prompt prompt;
    uint32_t context;                /* positions */
    uint64_t may_hold;               /* bytes of a text */
    uint64_t text_bytes;             /* that texts take beside the session */
    struct moe_ranks *ranks;         /* this is rank 0; NULL: it runs alone */
    struct moe_rank_report *reports; /* [n_ranks - 1] for --stats */
    struct moe_timeline timeline;
    struct measure_trace followed; /* of --follow */
    struct moe_grammar *grammar;   /* NULL: answers are free */
    struct moe_constraint *constraint;
    struct json_t *tools; /* of --tools; NULL: none */
};

/* The context length to allocate; 0: the model's, up to *cap. */
static uint32_t wanted_context(const struct run *r, uint32_t *cap)
{
    *cap = DEFAULT_CONTEXT;
    if (opt.context)
        return opt.context;
    if (opt.perplexity && (opt.window || cli_given("max-doc-tokens")))
        return opt.window ? opt.window : opt.max_doc_tokens;
    if (opt.perplexity)
        *cap = opt.max_doc_tokens;
    if (opt.follow)
        return r->followed.survey.longest < 2 ? 2 : r->followed.survey.longest;
    if (opt.bench && (uint64_t)opt.prompt_tokens + opt.n <= MOE_MAX_CONTEXT)
        return opt.prompt_tokens + (uint32_t)opt.n;
    return 0;
}

/* A map belongs to a model; its packs may have other precisions. */
static int read_map(struct moe_map **map, const char *path, struct moe_err *err)
{
    struct moe_pack *pack = NULL;
    int status;
    MOE_STEP(moe_map_read(map, opt.calibration, err));
    MOE_STEP(moe_pack_open(&pack, path, err));
    if ((*map)->source_fingerprint != moe_pack_source_fingerprint(pack))
        MOE_STEP(moe_fail(err, MOE_ERR_USAGE, "%s: a bit map of another model than %s",
                          opt.calibration, path));
out:
    moe_pack_close(pack);
    return status;
}

/* Sets the engine's options of the strategy; with none given the engine chooses. */
static int choose_strategy(struct run *r, struct moe_err *err)
{
    struct moe_strategy strategy;
    bool automatic;
    struct moe_map *map = NULL;
    int status = opt.calibration ? read_map(&map, r->pack, err) : MOE_OK;
    opt.strategy.map = map;
    if (status == MOE_OK)
        status = strategy_options_apply(&opt.strategy, &strategy, &automatic, err);
    opt.strategy.map = NULL;
    moe_map_free(map);
    if (status == MOE_OK && opt.strategy.statistics)
        status = moe_statistics_read(&r->statistics, opt.strategy.statistics, err);
    if (status != MOE_OK)
        return status;
    if (!automatic)
        opt.engine.strategy = strategy;
    opt.engine.exact = opt.strategy.exact;
    opt.engine.statistics = r->statistics;
    opt.engine.low_variant = opt.strategy.low;
    opt.engine.staging = opt.strategy.staging;
    opt.engine.device = opt.strategy.device;
    return MOE_OK;
}

/* Sets the engine's options that a plan decides. */
static int read_plan(struct run *r, struct moe_err *err)
{
    MOE_TRY(moe_plan_read(&r->plan, opt.plan, err));
    opt.engine.plan = r->plan;
    opt.engine.pace = &r->plan->pace;
    if (opt.engine.lockstep && opt.engine.link_rate <= 0)
        opt.engine.link_rate = r->plan->pace.load_rate;
    if (r->plan->evidence.learnt[0] && !opt.engine.learn)
        cli_note("the cache of this plan begins with what it has learnt: --learn %s",
                 r->plan->evidence.learnt);
    return MOE_OK;
}

/* ---- Texts, looked at before memory is split ---- */

static struct measure_perplexity_options perplexity_options(void)
{
    return (struct measure_perplexity_options){
        .max_doc_tokens = opt.max_doc_tokens,
        .max_windows = opt.max_windows,
        .window = opt.window,
        .decode_share = 1 - opt.prompt_share,
        .token_log = opt.token_log,
        .logits = opt.logits,
        .against = opt.against,
        .answers = opt.judge != 0,
        .json = opt.json,
    };
}

static bool is_interactive(void)
{
    return !opt.prompt && !opt.file && !opt.messages && !opt.show_prompt && !opt.encode &&
           isatty(STDIN_FILENO);
}

static int survey_texts(void *ctx, const struct moe_model *model,
                        const struct moe_engine_room *room, struct moe_err *err)
{
    struct run *r = ctx;
    r->context = room->context;
    MOE_TRY(encode_check_options(r->pack, &model->config, opt.encode, err));
    if (opt.prefix_text && !model->config.prefix_lm)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: option --prefix-text is for models that see a prefix as a whole",
                        r->pack);
    const char *const languages[] = {opt.source_language, opt.target_language};
    for (int i = 0; i < 2; i++) {
        uint32_t id;
        if (languages[i])
            MOE_TRY(moe_prompt_language(model, languages[i], &id, err));
    }
    if (opt.perplexity) {
        const struct measure_perplexity_options mo = perplexity_options();
        return measure_perplexity_survey(opt.perplexity, &mo, model, room, &r->text_bytes, err);
    }
    if (opt.follow)
        return MOE_OK;
    if (opt.bench ? !opt.prompt && !opt.file : is_interactive())
        return MOE_OK;
    r->may_hold = room->may_hold;
    if (!r->prompt.text.data) /* once, where a GPU is tried first */
        MOE_TRY(prompt_read(&r->prompt, opt.prompt, opt.messages ? opt.messages : opt.file,
                            room->may_hold, err));
    MOE_TRY(prompt_survey(&r->prompt, model, opt.bench ? opt.prompt_tokens : room->context,
                          !opt.bench && !opt.encode && !opt.messages, err));
    r->text_bytes = r->prompt.bytes;
    return MOE_OK;
}

static uint64_t beside(const void *ctx, const struct moe_model *model, uint32_t batch)
{
    const struct run *r = ctx;
    uint64_t beams =
        opt.beams.n ? moe_beams_bytes(&model->config, &opt.beams, r->context, batch) : 0;
    uint64_t encode = opt.encode ? moe_encode_bytes(&model->config, batch) : 0;
    uint64_t grammar = r->grammar ? moe_grammar_bytes(r->grammar) : opt.tools ? CALLS_BYTES : 0;
    grammar += grammar ? moe_constraints_bytes(&model->config, 1) : 0;
    const uint64_t room = moe_engine_text_room(r->context);
    return (r->text_bytes > room ? r->text_bytes : room) + beams + encode + grammar;
}

/* On a rank other than 0, which has its part of the experts and nothing else of the model. What
 * fails is rank 0's to say, once they have met. */
static int serve_rank(struct run *r, struct moe_err *err)
{
    MOE_TRY(ranks_join(&r->ranks, err));
    opt.engine.ranks = r->ranks;
    opt.engine.measures = opt.bench;
    opt.engine.follows_name = opt.follow;
    int status = choose_strategy(r, err);
    if (status == MOE_OK && opt.plan)
        status = read_plan(r, err);
    if (status == MOE_OK)
        return moe_engine_serve_rank(r->pack, &opt.engine, err);
    moe_ranks_fail(r->ranks, err);
    return status;
}

static int open_run(struct run *r, struct moe_err *err)
{
    MOE_TRY(ranks_join(&r->ranks, err));
    opt.engine.ranks = r->ranks;
    int status = run_options_grammar(&r->grammar, err);
    if (status == MOE_OK && opt.tools)
        status = tools_read(opt.tools, opt.tool_choice, &r->tools, err);
    if (status == MOE_OK)
        status = choose_strategy(r, err);
    if (status == MOE_OK && opt.plan)
        status = read_plan(r, err);
    if (status == MOE_OK && opt.follow)
        status = measure_trace_open(&r->followed, opt.follow, opt.n, err);
    if (status != MOE_OK)
        return status;
    opt.engine.follows = opt.follow ? moe_trace_shape(r->followed.trace) : NULL;
    opt.engine.follows_name = opt.follow;
    opt.engine.session =
        (struct moe_session_options){.context = wanted_context(r, &opt.engine.context_cap),
                                     .n_sequences = opt.beams.n ? opt.beams.n : 1,
                                     .n_sources = 1,
                                     .batch = opt.batch,
                                     .takes_back = opt.draft_max > 0,
                                     .n_snapshots = is_interactive() ? MOE_SNAPSHOTS : 0,
                                     .whole_windows = opt.prompt_cache != NULL,
                                     .kv_kind = opt.strategy.kv_kind,
                                     .predict_on = (enum moe_predict_on)opt.predict_on};
    opt.engine.survey = survey_texts;
    opt.engine.beside = beside;
    opt.engine.beside_ctx = r;
    opt.engine.seed = opt.sampling.seed;
    opt.engine.measures = opt.bench;
    opt.engine.first_token_first = !opt.bench;
    opt.engine.passes = cli_progress();
    opt.engine.timeline = opt.trace_events ? &r->timeline : NULL;
    moe_timeline_init(&r->timeline);
    status = moe_engine_open(&r->engine, r->pack, &opt.engine, cli_progress(), err);
    cli_progress_done();
    if (status == MOE_OK)
        status = prompt_check_read(&r->prompt, r->may_hold, err);
    if (status == MOE_OK && r->grammar)
        status = moe_engine_constrain(r->engine, r->grammar, NULL, &r->constraint, err);
    if (status != MOE_OK)
        return status;
    r->session = r->engine->session;
    r->model = r->engine->model;
    if (opt.engine.tolerance > 0)
        strategy_note_map(r->model->pack, opt.engine.tolerance);
    if (r->model->config.top_k != r->engine->own_top_k)
        cli_note("%s: its tokens choose %u experts where %s has %u: as many as in the trace are "
                 "computed",
                 opt.follow, r->model->config.top_k, r->pack, r->engine->own_top_k);
    if (r->engine->no_gpu.status)
        cli_note("device auto: the CPU computes: %s", r->engine->no_gpu.text);
    const struct moe_strategy *s = &r->engine->strategy;
    if (r->engine->fallback)
        cli_detail("strategy %s: %s", s->name, r->engine->fallback);
    if (moe_strategy_boundary_from(s))
        cli_detail("strategy %s: shallow:%u (%s)", s->name, s->boundary,
                   moe_strategy_boundary_from(s));
    if (moe_strategy_thresholds_from(s))
        cli_detail("strategy %s: %s (thresholds %s)", s->name, r->engine->parts,
                   moe_strategy_thresholds_from(s));
    if (opt.engine.learn && s->resident)
        cli_note("--learn %s: nothing is learnt, because every expert is in memory",
                 opt.engine.learn);
    if (s->cache && s->predict == MOE_PREDICT_BY_NOTHING && !opt.plan &&
        r->engine->budget.below_token)
        cli_note(
            "the expert cache holds fewer experts than one token uses: few will be found in it "
            "(more --memory would help)");
    return MOE_OK;
}

static void close_run(struct run *r)
{
    moe_constraint_free(r->constraint);
    moe_grammar_free(r->grammar);
    moe_engine_close(r->engine);
    free(r->reports);
    moe_trace_close(r->followed.trace);
    moe_buf_release(&r->prompt.text);
    moe_statistics_free(r->statistics);
    moe_plan_free(r->plan);
    moe_timeline_release(&r->timeline);
    moe_json_free(r->tools);
}

/* ---- Text ---- */

/* How answers of the conversation are shown: read for thoughts and calls where the template or the
 * caller has them, and for --json. */
static void show_answers(const struct run *r, struct moe_conversation *talk, struct repl_said *said)
{
    if (!talk->chat || !(talk->tools || opt.json || moe_chat_thought_member(talk->chat)) ||
        opt.beams.n || cli_given("logprobs"))
        return;
    *said = (struct repl_said){.hidden = opt.json,
                               .apart = r->constraint && !talk->held_to_calls && !is_interactive()};
    talk->on_part = repl_say_part;
    talk->part_ctx = said;
}

/* Refuses tokens in options that the model does not have. */
static int check_tokens(const struct moe_model *model, struct moe_err *err)
{
    const struct moe_logit_bias *biases = opt.sampling.biases;
    const uint32_t vocab = model->config.vocab;
    uint32_t most = 0;
    for (uint32_t i = 0; i < opt.sampling.n_biases; i++)
        most = biases[i].id > most ? biases[i].id : most;
    const char *option = most >= vocab ? "logit-bias" : "stop-token-id";
    for (uint64_t i = 0; i < opt.stop_ids.n && most < vocab; i++)
        most = opt.stop_ids.ids[i] > most ? opt.stop_ids.ids[i] : most;
    if (most < vocab)
        return MOE_OK;
    return moe_fail(err, MOE_ERR_USAGE, "option --%s names token %u: the model has %u", option,
                    most, vocab);
}

static int generate(struct run *r, double started, struct moe_err *err)
{
    struct moe_chat *chat = NULL;
    struct json_t *messages = NULL;
    struct repl_said said = {0};
    struct moe_conversation talk = {0};
    const char *text = opt.messages ? NULL : (const char *)r->prompt.text.data;
    bool raw = opt.raw || opt.prefix_text || r->model->config.n_encoder;
    int status;
    MOE_STEP(check_tokens(r->model, err));
    MOE_STEP(prompt_chat(opt.template_file, raw, r->model, r->pack, &chat, err));
    MOE_STEP(moe_conversation_init(&talk, r->session, chat, err));
    talk.prefix = opt.prefix_text;
    talk.languages = (struct moe_languages){opt.source_language, opt.target_language};
    cli_detail("seed %llu", (unsigned long long)opt.sampling.seed);
    if (opt.system)
        MOE_STEP(moe_conversation_system(&talk, opt.system, err));
    if (opt.messages)
        MOE_STEP(messages_take(&talk, opt.messages, &r->prompt.text, &messages, err));
    if ((opt.tools || opt.json) && !chat)
        MOE_STEP(moe_fail(err, MOE_ERR_USAGE,
                          "%s: option --%s goes with chats, and the model has no chat template",
                          r->pack, opt.tools ? "tools" : "json"));
    if (r->tools)
        talk.tools = r->tools;
    if (!r->grammar)
        MOE_STEP(messages_hold_calls(&talk, r->engine, opt.tool_choice, &r->grammar, &r->constraint,
                                     err));
    show_answers(r, &talk, &said);
    if (is_interactive()) {
        struct repl repl = {
            .engine = r->engine,
            .pack = r->pack,
            .template_file = opt.template_file,
            .conversation = &talk,
            .sampling = &opt.sampling,
            .beams = opt.beams,
            .constraint = r->constraint,
            .max_tokens = opt.n,
            .min_tokens = opt.min_tokens,
            .stop_ids = &opt.stop_ids,
            .draft = opt.draft_max,
            .draft_ahead = opt.engine.ahead,
            .ignore_eos = opt.ignore_eos,
            .context_shift = opt.context_shift,
            .exact = opt.strategy.exact,
            .stop_texts = opt.stops.items,
            .total = &r->stats,
        };
        if (repl_run(&repl) != CLI_DONE)
            MOE_STEP(-1); /* it has said why */
    } else if (opt.show_prompt) {
        MOE_STEP(messages_show_prompt(&talk, text, err));
    } else {
        status = answer_once(r->engine, &talk, text, r->constraint, started, err);
        r->stats = r->session->stats; /* of an answer that was interrupted, too */
    }
out:
    moe_conversation_release(&talk);
    moe_chat_free(chat);
    moe_json_free(messages);
    return status;
}

/* ---- Requests ---- */

static int serve_requests(struct run *r, struct moe_err *err)
{
    struct moe_server *server = NULL;
    struct moe_server_options o = {
        .pack = r->pack, .sequences = opt.sequences, .draft = opt.draft_max};
    o.template_file = opt.template_file;
    MOE_TRY(ranks_join(&r->ranks, err));
    opt.engine.ranks = r->ranks;
    int status = choose_strategy(r, err);
    if (status == MOE_OK && opt.plan)
        status = read_plan(r, err);
    if (status != MOE_OK)
        return status;
    o.engine = opt.engine;
    o.engine.context_cap = DEFAULT_CONTEXT;
    o.engine.session =
        (struct moe_session_options){.context = opt.context,
                                     .batch = opt.batch,
                                     .kv_kind = opt.strategy.kv_kind,
                                     .predict_on = (enum moe_predict_on)opt.predict_on};
    status = requests_open(&server, &opt.requests, &o, err);
    if (status == MOE_OK)
        status = requests_serve(server, &opt.requests, err);
    if (server && opt.strategy.exact)
        status = requests_check_exact(server, status, err);
    moe_server_close(server);
    return status;
}

/* ---- Measuring ---- */

static int perplexity(struct run *r, struct moe_err *err)
{
    const struct measure_perplexity_options mo = perplexity_options();
    int status = measure_perplexity(r->session, opt.perplexity, &mo, err);
    r->stats = r->session->stats;
    return status;
}

static int bench(struct run *r, struct moe_err *err)
{
    const struct measure_speed_options mo = {
        .prompt_tokens = opt.prompt_tokens,
        .decode_tokens = opt.n < UINT32_MAX ? (uint32_t)opt.n : UINT32_MAX,
        .n_runs = opt.bench_runs,
        .text = (const char *)r->prompt.text.data,
        .json = opt.json,
    };
    int status = opt.follow ? measure_followed(r->engine, &r->followed, opt.json, err)
                            : measure_speed(r->session, &mo, err);
    r->stats = r->session->stats;
    return status;
}

static int encode(struct run *r, struct moe_err *err)
{
    int status = encode_texts(r->session, &r->prompt.text, opt.prompt != NULL,
                              (enum moe_pooling)opt.pooling, err);
    r->stats = r->session->stats;
    return status;
}

/* ---- What is said of a run ---- */

static int ask_ranks(struct run *r, struct moe_err *err)
{
    const uint32_t n = r->ranks ? moe_ranks_wire(r->ranks)->n_ranks - 1 : 0;
    if (n == 0 || (!opt.stats && !opt.stats_json))
        return MOE_OK;
    r->reports = moe_alloc(n, sizeof *r->reports, err);
    if (!r->reports)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < n; i++)
        MOE_TRY(moe_ranks_report(r->ranks, i + 1, &r->reports[i], err));
    r->stats.ranks = r->reports;
    r->stats.n_ranks = n;
    return MOE_OK;
}

static int run_report(const struct moe_engine *engine, struct moe_stats *stats,
                      const struct moe_timeline *timeline, struct moe_err *err)
{
    struct moe_buf text = {0}, json = {0};
    int status = MOE_OK;
    moe_engine_finish_stats(engine, stats);
    if (!opt.bench && !opt.perplexity && !opt.encode && !opt.show_prompt && !opt.beams.n) {
        stats->asked = &opt.sampling;
        stats->published = &engine->model->sampling;
    }
    if (opt.stats) {
        moe_show_run(stats, &text);
        moe_budget_write_text(&engine->budget, &text);
    }
    if (opt.stats_json)
        moe_show_run_json(stats, &json);
    cli_fit(STDERR_FILENO, &text);
    if (text.failed || json.failed)
        MOE_STEP(moe_fail(err, MOE_ERR_MEMORY, "out of memory: the statistics"));
    else if (opt.stats)
        fputs((const char *)text.data, stderr);
    MOE_STEP(cli_flush(err)); /* "-" comes after the answer */
    if (opt.stats_json)
        MOE_STEP(moe_file_write_all(opt.stats_json, json.data, json.size, err));
    if (opt.trace_events)
        MOE_STEP(moe_timeline_save(timeline, opt.trace_events, err));
out:
    moe_buf_release(&text);
    moe_buf_release(&json);
    return status;
}

static int run_check_exact(const struct moe_engine *engine, struct moe_stats *stats, int status,
                           struct moe_err *err)
{
    struct moe_err inexact;
    if (status == MOE_ERR_INTERRUPTED && engine)
        moe_engine_finish_stats(engine, stats);
    else if (status != MOE_OK)
        return status;
    int got = moe_stats_check_exact(stats, &inexact);
    if (got == MOE_OK)
        return status;
    *err = inexact;
    return got;
}

/* Of a run that was interrupted, too. */
static int save_learnt(const struct moe_engine *engine, int status, struct moe_err *err)
{
    struct moe_err why;
    int saved = moe_engine_save_learnt(engine, &why);
    if (saved == MOE_OK)
        return status;
    *err = why;
    return saved;
}

int main(int argc, char **argv)
{
    double started = moe_seconds();
    struct moe_err err = {0};
    struct run r = {0};
    const bool is_other_rank = ranks_begin();
    int status = run_options_parse(argc, argv, &r.pack);
    if (status >= 0)
        return ranks_leave(NULL, status);
    if (is_other_rank) {
        status = opt.list || opt.ids ? MOE_OK : serve_rank(&r, &err);
    } else if (opt.list) {
        struct moe_buf text = {0};
        status = cli_print(kept_models_list(r.pack, &text, &err), &text, &err);
    } else if (opt.ids) {
        status = measure_ids(r.pack, opt.ids, &err);
    } else if (opt.requests.input) {
        status = serve_requests(&r, &err);
    } else {
        status = open_run(&r, &err);
        if (status == MOE_OK)
            status = opt.perplexity ? perplexity(&r, &err)
                     : opt.bench    ? bench(&r, &err)
                     : opt.encode   ? encode(&r, &err)
                                    : generate(&r, started, &err);
        if (status == MOE_OK)
            status = ask_ranks(&r, &err);
        if (status == MOE_OK)
            status = run_report(r.engine, &r.stats, &r.timeline, &err);
        if (status == MOE_OK || (status == MOE_ERR_INTERRUPTED && r.engine))
            status = save_learnt(r.engine, status, &err);
        if (opt.strategy.exact)
            status = run_check_exact(r.engine, &r.stats, status, &err);
    }
    close_run(&r);
    int exit_status = CLI_DONE;
    if (status != MOE_OK)
        exit_status = err.text[0] ? cli_error(&err) : CLI_FAILED;
    run_options_release();
    return ranks_leave(r.ranks, cli_finish(exit_status));
}
