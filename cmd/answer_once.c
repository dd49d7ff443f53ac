#define _POSIX_C_SOURCE 200809L /* isatty */
#include "answer_once.h"

#include <unistd.h>

#include "repl/repl.h"
#include "run_options.h"

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

int answer_once(struct moe_conversation *talk, const char *text, double started,
                struct moe_err *err)
{
    const struct moe_model *model = talk->session->model;
    bool tokens = cli_given("logprobs");
    struct moe_sampler *sampler = NULL;
    struct moe_buf line = {0};
    struct moe_generate_options go = {
        .beams = opt.beams,
        .max_tokens = opt.n,
        .ignore_eos = opt.ignore_eos,
        .stop_texts = opt.stops.items,
        .stop = &cli_stop,
        .progress = cli_progress(),
        .started = started,
        .text = tokens ? NULL : repl_stream,
        .token = tokens ? print_token : NULL,
        .n_top = opt.logprobs,
        .ctx = &line,
    };
    enum moe_stop_reason why;
    err->text[0] = 0;
    int status = moe_sampler_new(&sampler, &opt.sampling, model->config.vocab, err);
    cli_catch_interrupt(false);
    if (status == MOE_OK)
        status = moe_conversation_ask(talk, text, sampler, &go, &why, err);
    cli_progress_done();
    if (status == MOE_OK) {
        if (isatty(STDOUT_FILENO) && !tokens)
            cli_write("\n", 1);
        status = cli_flush(err);
        repl_explain_stop(why, talk->session->context);
        if (status == MOE_OK && why == MOE_STOP_USER)
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "interrupted");
    } else if (line.failed) {
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: a token's log probabilities");
    } else if (!err->text[0]) {
        status = cli_flush(err); /* standard output failed */
    }
    moe_sampler_free(sampler);
    moe_buf_release(&line);
    return status;
}
