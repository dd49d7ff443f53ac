/* The one answer of moe-run -p, -f or standard input. */
#include "run_modes.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "engine/context_file.h"
#include "engine/conversation.h"
#include "repl/repl.h"
#include "run_options.h"
#include "run_prompt.h"

/* A line of JSON for each token. */
static int print_token(void *ctx, const struct moe_token_said *said)
{
    struct moe_buf *line = ctx;
    cli_progress_done();
    moe_buf_clear(line);
    moe_token_said_json(said, line);
    moe_buf_u8(line, '\n');
    if (line->failed)
        return MOE_ERR_MEMORY;
    return cli_write(line->data, line->size) ? MOE_OK : MOE_ERR_IO;
}

/* ---- The prompt kept on disk ---- */

/* Whose prompt is kept, and what the file holds of a context. */
struct keeping {
    const struct moe_engine *engine;
    struct moe_conversation *talk;
    struct moe_ids file; /* ids that it has something of */
    uint64_t held;       /* how many of them this session could take */
};

/* The conversation begins with what the file holds. */
static int load_prompt(struct keeping *k, struct moe_err *err)
{
    struct moe_context_file file = {.fd = -1};
    struct moe_session *s = k->talk->session;
    struct moe_kept none;
    if (!moe_path_exists(opt.prompt_cache))
        return moe_sequence_save(s, 0, 0, &none, err);
    int status = moe_context_open(&file, opt.prompt_cache, s, moe_engine_method(k->engine), err);
    if (status != MOE_OK)
        return status;
    struct moe_context *c = &file.context;
    uint64_t n = moe_context_most(&file, s);
    status = moe_context_put(&file, s, 0, n, err);
    if (status == MOE_OK) {
        k->file = c->ids;
        k->file.n = c->n_done;
        k->held = n;
        c->ids = (struct moe_ids){0};
    }
    moe_context_close(&file);
    return status;
}

/* The file begins with these n tokens, so replacing it would lose something, even where the prompt
 * could not use its states, or keys and values of a text longer than LongRoPE's original context.
 */
static bool keeping_holds(const struct keeping *k, uint64_t n)
{
    const struct moe_ids *prompt = &k->talk->history;
    return k->file.n >= n && memcmp(k->file.ids, prompt->ids, n * sizeof *prompt->ids) == 0;
}

/* Writes the prompt's context where the file held less. Recurrent states change with the answer, so
 * there it is written before the prompt's last token is computed (`reading`), and without that
 * token. */
static int save_prompt(const struct keeping *k, bool reading, struct moe_err *err)
{
    const struct moe_conversation *talk = k->talk;
    struct moe_session *s = talk->session;
    bool states = s->state_ends != NULL;
    uint64_t n = talk->history.n - s->stats.generated_tokens, n_kept = n - states;
    s->stats.loaded_tokens = k->held ? n - s->stats.prompt_tokens : 0;
    if (s->stats.context_shifts)
        return MOE_OK;
    if (k->file.n && keeping_holds(k, n_kept)) {
        if (!reading && s->stats.loaded_tokens + 1 < n)
            cli_note("%s: holds a longer prompt, which this one cannot begin from: it stays as it "
                     "is (another file would keep this one)",
                     opt.prompt_cache);
        return MOE_OK;
    }
    if (states != reading || n_kept > moe_sequence_length(s, 0))
        return MOE_OK;
    struct moe_context c = {.ids = talk->history, .n_done = n_kept};
    c.ids.n = n;
    snprintf(c.method, sizeof c.method, "%s", moe_engine_method(k->engine));
    return moe_context_write(opt.prompt_cache, s, 0, &c, err);
}

static int save_read(void *keeping, struct moe_err *err)
{
    return save_prompt(keeping, true, err);
}

/* ---- The answer ---- */

int answer_once(const struct moe_engine *engine, struct moe_conversation *talk, const char *text,
                struct moe_constraint *constraint, double started, struct moe_err *err)
{
    const struct moe_model *model = talk->session->model;
    bool tokens = cli_given("logprobs");
    struct moe_sampler *sampler = NULL;
    struct moe_buf line = {0};
    struct keeping keeping = {.engine = engine, .talk = talk};
    struct moe_generate_options go = {
        .beams = opt.beams,
        .constraint = constraint,
        .max_tokens = opt.n,
        .min_tokens = opt.min_tokens,
        .stop_ids = opt.stop_ids.ids,
        .n_stop_ids = (uint32_t)opt.stop_ids.n,
        .draft = opt.draft_max,
        .draft_ahead = opt.engine.ahead,
        .ignore_eos = opt.ignore_eos,
        .stop_texts = opt.stops.items,
        .stop = &cli_stop,
        .progress = cli_progress(),
        .started = started,
        .text = tokens ? NULL : repl_stream,
        .token = tokens ? print_token : NULL,
        .n_top = opt.logprobs,
        .ctx = &line,
        .read = opt.prompt_cache ? save_read : NULL,
        .read_ctx = &keeping,
    };
    enum moe_stop_reason why;
    err->text[0] = 0;
    struct moe_sampler_options sampling = opt.sampling;
    moe_sampling_complete(&sampling, &model->sampling);
    int status = moe_sampler_new(&sampler, &sampling, model->config.vocab, err);
    cli_catch_interrupt(false);
    if (status == MOE_OK && opt.prompt_cache)
        status = load_prompt(&keeping, err);
    if (status == MOE_OK)
        status = !text ? moe_conversation_answer(talk, sampler, &go, &why, err)
                       : (opt.context_shift ? moe_conversation_shifting : moe_conversation_ask)(
                             talk, text, sampler, &go, &why, err);
    cli_progress_done();
    if (status == MOE_OK) {
        const bool thinks = talk->on_part && repl_end_said(talk->part_ctx);
        if (opt.json)
            status = messages_print_answer(talk, why, err);
        else if (cli_is_terminal(STDOUT_FILENO) && !tokens)
            cli_write("\n", 1);
        status = status == MOE_OK ? cli_flush(err) : status;
        repl_explain_stop(why, thinks, talk->session->context);
        repl_explain_shift(&talk->session->stats);
        if (status == MOE_OK && opt.prompt_cache)
            status = save_prompt(&keeping, false, err);
        if (status == MOE_OK && why == MOE_STOP_USER)
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "interrupted");
    } else if (line.failed) {
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: a token's log probabilities");
    } else if (!err->text[0]) {
        status = cli_flush(err); /* standard output failed */
    }
    moe_sampler_free(sampler);
    moe_ids_release(&keeping.file);
    moe_buf_release(&line);
    return status;
}
