/* moe-run --perplexity, --bench, --ids. */
#include "run_modes.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli.h"
#include "fmt/emit.h"
#include "offline.h"
#include "tune/bench.h"
#include "tune/perplexity.h"

enum { LOG_BYTES = 64 << 10 };

/* ---- Perplexity ---- */

/* The token log, written as it comes. */
struct token_log {
    struct moe_outfile file;
    struct moe_buf lines; /* not written yet */
    bool compares;        /* --against */
    int status;
    struct moe_err err;
};

static void flush_log(struct token_log *log)
{
    if (log->status == MOE_OK && log->lines.failed)
        log->status = moe_fail(&log->err, MOE_ERR_MEMORY, "out of memory: the token log");
    if (log->status == MOE_OK)
        log->status = moe_outfile_write(&log->file, log->lines.data, log->lines.size,
                                        log->file.size_bytes, &log->err);
    moe_buf_clear(&log->lines);
}

static void log_token(void *ctx, double nats, uint32_t best, double divergence)
{
    struct token_log *log = ctx;
    moe_buf_printf(&log->lines, "%.6f %u", nats, best);
    if (log->compares)
        moe_buf_printf(&log->lines, " %.3e", divergence);
    moe_buf_text(&log->lines, "\n");
    if (log->lines.size > LOG_BYTES)
        flush_log(log);
}

static int end_log(struct token_log *log, int status, struct moe_err *err)
{
    flush_log(log);
    moe_buf_release(&log->lines);
    if (status == MOE_OK && log->status != MOE_OK) {
        *err = log->err;
        status = log->status;
    }
    return moe_outfile_end(&log->file, status, err);
}

static int print_perplexity_json(const struct moe_perplexity *p, const char *unit, bool compared,
                                 struct moe_err *err)
{
    struct moe_buf out = {0};
    struct moe_emit e;
    moe_emit_begin_json(&e, &out, MOE_EMIT_LINE);
    moe_emit_fixed(&e, "nll", 6, p->nll);
    moe_emit_u64(&e, "tokens", p->n_tokens);
    moe_emit_u64(&e, unit, p->n_documents);
    if (p->rouge2 >= 0) {
        moe_emit_fixed(&e, "rouge2", 6, p->rouge2);
        moe_emit_fixed(&e, "accuracy", 6, p->accuracy);
    }
    if (compared) {
        moe_emit_fixed(&e, "divergence", 6, p->divergence);
        moe_emit_fixed(&e, "divergence_error", 6, p->divergence_error);
        moe_emit_fixed(&e, "same_top", 6, p->same_top);
    }
    moe_emit_fixed(&e, "seconds", 3, p->seconds);
    return cli_print(moe_emit_end(&e, err), &out, err);
}

static struct moe_perplexity_options perplexity_options(const struct measure_perplexity_options *o)
{
    return (struct moe_perplexity_options){
        .max_doc_tokens = o->max_doc_tokens,
        .max_windows = o->max_windows,
        .window = o->window,
        .decode_share = o->decode_share,
        .answers = o->answers,
        .logits = o->logits,
        .against = o->against,
        .progress = cli_progress(),
    };
}

int measure_perplexity_survey(const char *path, const struct measure_perplexity_options *options,
                              const struct moe_model *model, const struct moe_engine_room *room,
                              uint64_t *bytes, struct moe_err *err)
{
    const struct moe_perplexity_options po = perplexity_options(options);
    return moe_perplexity_survey(path, &po, model, room, bytes, err);
}

int measure_perplexity(struct moe_session *s, const char *path,
                       const struct measure_perplexity_options *options, struct moe_err *err)
{
    struct token_log log = {.compares = options->against != NULL};
    struct moe_perplexity p;
    struct moe_perplexity_options po = perplexity_options(options);
    po.token = options->token_log ? log_token : NULL;
    po.ctx = &log;
    int status =
        options->token_log ? moe_outfile_open_text(&log.file, options->token_log, err) : MOE_OK;
    if (status != MOE_OK)
        return status;
    cli_catch_interrupt(false);
    status = moe_perplexity(s, path, &po, &p, err);
    cli_progress_done();
    if (status == MOE_OK)
        offline_note_left_out(&p.left_out, s->model->config.n_encoder
                                               ? "--max-doc-tokens N takes more of each pair"
                                               : "--max-windows N takes more of each");
    const char *unit = s->model->config.n_encoder ? "pairs"
                       : options->window          ? "windows"
                                                  : "documents";
    if (options->token_log)
        status = end_log(&log, status, err);
    if (status == MOE_OK && options->json)
        status = print_perplexity_json(&p, unit, options->against != NULL, err);
    else if (status == MOE_OK)
        printf("nll %.4f nats/token, %llu tokens, %llu %s", p.nll, (unsigned long long)p.n_tokens,
               (unsigned long long)p.n_documents, unit);
    if (status == MOE_OK && !options->json && p.rouge2 >= 0)
        printf(", Rouge-2 %.4f, accuracy %.1f%%", p.rouge2, 100 * p.accuracy);
    if (status == MOE_OK && !options->json && options->against)
        printf(", divergence %.5f +- %.5f nats, same top token %.2f%%", p.divergence,
               p.divergence_error, 100 * p.same_top);
    if (status == MOE_OK && !options->json)
        putchar('\n');
    return status;
}

/* ---- Speed ---- */

static void print_figure(const char *name, uint32_t n, const struct moe_bench_figure *f)
{
    printf("%-8s %6u %12.1f %12.1f %12.1f\n", name, n, f->median, f->min, f->max);
}

static void put_figure(struct moe_emit *e, const char *key, const struct moe_bench_figure *f)
{
    moe_emit_open_map(e, key);
    moe_emit_fixed(e, "median", 4, f->median);
    moe_emit_fixed(e, "min", 4, f->min);
    moe_emit_fixed(e, "max", 4, f->max);
    moe_emit_close(e);
}

/* encodes: the prompt was an encoder's source. */
static int print_speed_json(const struct moe_bench_options *options, const struct moe_bench *b,
                            bool encodes, struct moe_err *err)
{
    struct moe_buf out = {0};
    struct moe_emit e;
    moe_emit_begin_json(&e, &out, MOE_EMIT_LINE);
    moe_emit_u64(&e, encodes ? "encode_tokens" : "prefill_tokens", options->prompt_tokens);
    put_figure(&e, encodes ? "encode_tokens_per_s" : "prefill_tokens_per_s", &b->prefill);
    moe_emit_u64(&e, "decode_tokens", options->decode_tokens);
    put_figure(&e, "decode_tokens_per_s", &b->decode);
    moe_emit_u64(&e, "runs", options->n_runs);
    return cli_print(moe_emit_end(&e, err), &out, err);
}

int measure_speed(struct moe_session *s, const struct measure_speed_options *options,
                  struct moe_err *err)
{
    struct moe_ids text = {0};
    struct moe_bench b;
    const struct moe_bench_options bo = {
        .prompt_tokens = options->prompt_tokens,
        .decode_tokens = options->decode_tokens,
        .n_runs = options->n_runs,
        .text = &text,
        .progress = cli_progress(),
    };
    bool encodes = s->model->config.n_encoder > 0;
    int status = MOE_OK;
    cli_catch_interrupt(false);
    if (options->text)
        status =
            moe_tokenizer_encode_start(s->model->tokenizer, options->text, strlen(options->text),
                                       options->prompt_tokens, &text, err);
    if (status == MOE_OK)
        status = moe_bench(s, &bo, &b, err);
    cli_progress_done();
    if (status == MOE_OK && options->json) {
        status = print_speed_json(&bo, &b, encodes, err);
    } else if (status == MOE_OK) {
        printf("tokens/s of %u runs  median          min          max\n", bo.n_runs);
        print_figure(encodes ? "encode" : "prefill", bo.prompt_tokens, &b.prefill);
        print_figure("decode", bo.decode_tokens, &b.decode);
    }
    moe_ids_release(&text);
    return status;
}

/* ---- Following a trace ---- */

int measure_trace_open(struct measure_trace *t, const char *path, uint64_t max_tokens,
                       struct moe_err *err)
{
    t->path = path;
    MOE_TRY(moe_trace_open(&t->trace, path, err));
    t->excerpt = moe_excerpt_of(t->trace, max_tokens);
    MOE_TRY(moe_followed_look(t->trace, t->excerpt, &t->survey, err));
    if (t->survey.sequences == 0)
        return moe_fail(err, MOE_ERR_USAGE, "%s: a trace without tokens", path);
    return MOE_OK;
}

static double per_second(const struct moe_phase_stats *p)
{
    return p->seconds > 0 ? (double)p->tokens / p->seconds : 0;
}

static int print_followed_json(const struct moe_stats *stats, bool encodes,
                               const struct moe_phase_stats *prompts, struct moe_err *err)
{
    struct moe_buf out = {0};
    struct moe_emit e;
    moe_emit_begin_json(&e, &out, MOE_EMIT_LINE);
    moe_emit_text(&e, "followed", stats->followed);
    moe_emit_u64(&e, encodes ? "encode_tokens" : "prefill_tokens", prompts->tokens);
    moe_emit_fixed(&e, encodes ? "encode_tokens_per_s" : "prefill_tokens_per_s", 4,
                   per_second(prompts));
    moe_emit_u64(&e, "decode_tokens", stats->decode.tokens);
    moe_emit_fixed(&e, "decode_tokens_per_s", 4, per_second(&stats->decode));
    return cli_print(moe_emit_end(&e, err), &out, err);
}

int measure_followed(const struct moe_engine *e, const struct measure_trace *t, bool json,
                     struct moe_err *err)
{
    struct moe_session *s = e->session;
    const struct moe_followed followed = {
        .trace = t->trace,
        .excerpt = t->excerpt,
        .strategy = &e->strategy,
        .statistics = e->statistics,
        .progress = cli_progress(),
    };
    bool encodes = s->model->config.n_encoder > 0;
    const struct moe_phase_stats *prompts = encodes ? &s->stats.encode : &s->stats.prefill;
    cli_catch_interrupt(false);
    int status = moe_bench_follow(s, &followed, err);
    cli_progress_done();
    snprintf(s->stats.followed, sizeof s->stats.followed, "%s", moe_path_name(t->path));
    if (status == MOE_OK && json) {
        status = print_followed_json(&s->stats, encodes, prompts, err);
    } else if (status == MOE_OK) {
        printf("tokens/s following %s\n", s->stats.followed);
        printf("%-8s %6llu %12.2f\n", encodes ? "encode" : "prefill",
               (unsigned long long)prompts->tokens, per_second(prompts));
        printf("%-8s %6llu %12.2f\n", "decode", (unsigned long long)s->stats.decode.tokens,
               per_second(&s->stats.decode));
    }
    return status;
}

/* ---- Token ids ---- */

int measure_ids(const char *pack_path, const char *text, struct moe_err *err)
{
    struct moe_pack *pack;
    struct moe_tokenizer *tok = NULL;
    struct moe_ids ids = {0};
    int status = moe_pack_open(&pack, pack_path, err);
    if (status != MOE_OK)
        return status;
    uint64_t n;
    const uint8_t *section = moe_pack_section(pack, MOE_PACK_TOKENIZER, &n);
    MOE_STEP(moe_tokenizer_read(&tok, pack_path, section, n, err));
    MOE_STEP(moe_tokenizer_encode_whole(tok, text, strlen(text), false, &ids, err));
    for (uint64_t i = 0; i < ids.n; i++)
        printf("%s%u", i ? " " : "", ids.ids[i]);
    putchar('\n');
out:
    moe_ids_release(&ids);
    moe_tokenizer_free(tok);
    moe_pack_close(pack);
    return status;
}
