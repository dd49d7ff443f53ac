/* The server's metrics as Prometheus text. */
#include "serve/metrics.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "serve/server.h"

static const double seconds_bounds[MOE_SECONDS_BOUNDS] = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
                                                          2.5,  5,     10,   30,  60,   120, 300};
static const unsigned statuses[MOE_HTTP_N_STATUSES] = MOE_HTTP_STATUSES;

void moe_seconds_count(struct moe_seconds_counted *c, double seconds)
{
    for (int i = 0; i < MOE_SECONDS_BOUNDS; i++)
        c->buckets[i] += seconds <= seconds_bounds[i];
    c->n++;
    c->sum += seconds;
}

void moe_http_count(struct moe_http_counts *c, enum moe_http_route route, unsigned status)
{
    for (int i = 0; i < MOE_HTTP_N_STATUSES; i++)
        c->answered[route][i] += statuses[i] == status;
}

/* ---- The format ---- */

/* A name of another server's has a colon. */
static const char *prefix_of(const char *name)
{
    return strchr(name, ':') ? "" : "moe_";
}

static void head(struct moe_buf *out, const char *name, const char *type, const char *help)
{
    const char *prefix = prefix_of(name);
    moe_buf_printf(out, "# HELP %s%s %s\n# TYPE %s%s %s\n", prefix, name, help, prefix, name, type);
}

static void counter(struct moe_buf *out, const char *name, uint64_t value, const char *help)
{
    head(out, name, "counter", help);
    moe_buf_printf(out, "%s%s %" PRIu64 "\n", prefix_of(name), name, value);
}

static void gauge(struct moe_buf *out, const char *name, uint64_t value, const char *help)
{
    head(out, name, "gauge", help);
    moe_buf_printf(out, "%s%s %" PRIu64 "\n", prefix_of(name), name, value);
}

static void seconds_counter(struct moe_buf *out, const char *name, double value, const char *help)
{
    head(out, name, "counter", help);
    moe_buf_printf(out, "moe_%s %.6f\n", name, value);
}

/* Writes a label's value: escapes backslashes, quotes and line ends. */
static void write_label(struct moe_buf *out, const char *value)
{
    for (; *value; value++) {
        if (*value == '\\' || *value == '"')
            moe_buf_u8(out, '\\');
        if (*value == '\n')
            moe_buf_text(out, "\\n");
        else
            moe_buf_u8(out, (uint8_t)*value);
    }
}

static void histogram(struct moe_buf *out, const char *name, const struct moe_seconds_counted *c,
                      const char *help)
{
    head(out, name, "histogram", help);
    for (int i = 0; i < MOE_SECONDS_BOUNDS; i++)
        moe_buf_printf(out, "moe_%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, seconds_bounds[i],
                       c->buckets[i]);
    moe_buf_printf(out, "moe_%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, c->n);
    moe_buf_printf(out, "moe_%s_sum %.6f\nmoe_%s_count %" PRIu64 "\n", name, c->sum, name, c->n);
}

/* ---- The families ---- */

static void write_http(const struct moe_http_counts *c, struct moe_buf *out)
{
    head(out, "http_responses_total", "counter", "HTTP responses begun, by route and status.");
    for (int r = 0; r < MOE_HTTP_ROUTES; r++)
        for (int s = 0; s < MOE_HTTP_N_STATUSES; s++)
            if (c->answered[r][s])
                moe_buf_printf(out,
                               "moe_http_responses_total{route=\"%s\",status=\"%u\"} %" PRIu64 "\n",
                               moe_http_paths[r].path, statuses[s], c->answered[r][s]);
    counter(out, "http_connections_total", c->accepted, "Connections accepted.");
    gauge(out, "http_connections", c->connections, "Connections that are open.");
    counter(out, "http_late_total", c->late,
            "Connections closed because a whole request did not arrive in time.");
    counter(out, "http_ousted_total", c->ousted,
            "Connections closed for others, where all were taken.");
    counter(out, "http_clients_gone_total", c->gone,
            "Clients that left before their answer's end.");
    counter(out, "http_clients_cut_total", c->cut,
            "Clients cut off because they read too slowly for the buffers.");
    counter(out, "http_unlogged_total", c->unlogged, "Requests missing in the access log.");
    gauge(out, "http_buffered_bytes", c->buffered, "Bytes of requests and answers in the buffers.");
    gauge(out, "http_buffer_limit_bytes", c->buffer_bytes, "What these may take.");
    histogram(out, "first_token_seconds", &c->first_token,
              "From a request's arrival to its first token.");
    histogram(out, "answer_seconds", &c->whole, "From a request's arrival to its answer's end.");
}

static void write_requests(const struct moe_server_counts *c, struct moe_buf *out)
{
    counter(out, "requests_total", c->requests, "Requests taken into the queue.");
    counter(out, "requests_refused_total", c->refused, "Requests refused by a full queue.");
    head(out, "choices_total", "counter", "Answers that ended, by how.");
    moe_buf_printf(out,
                   "moe_choices_total{end=\"done\"} %" PRIu64
                   "\nmoe_choices_total{end=\"failed\"} %" PRIu64
                   "\nmoe_choices_total{end=\"cancelled\"} %" PRIu64 "\n",
                   c->ended, c->failed, c->cancelled);
    gauge(out, "choices_running", c->running, "Answers that are being computed.");
    gauge(out, "choices_waiting", c->waiting, "Answers that wait in a queue.");
    counter(out, "choices_preempted_total", c->preempted,
            "Answers that gave their memory up for others and were restarted later.");
    counter(out, "choices_rested_total", c->rested,
            "Times that an answer gave its place to one of a client with fewer.");
    counter(out, "requests_ousted_total", c->ousted,
            "Waiting requests that gave their place in a full queue to a client with fewer.");
    counter(out, "follow_ons_total", c->follow_ons, "Results passed on to another model.");
    counter(out, "prompt_tokens_total", c->prompt_tokens, "Tokens of prompts.");
    counter(out, "prompt_tokens_cached_total", c->cached_tokens,
            "Prompt tokens reused from earlier requests.");
    if (c->keeps_prompts) {
        const struct moe_prompt_cache_counts *p = &c->prompt_cache;
        counter(out, "kept_prompt_hits_total", p->hits, "Prompts that began with a file.");
        counter(out, "kept_prompt_tokens_total", p->tokens, "Prompt tokens taken from files.");
        counter(out, "kept_prompts_written_total", p->written, "Files of prompts written.");
        counter(out, "kept_prompts_failed_total", p->failed,
                "Files of prompts that could not be read or written.");
        gauge(out, "kept_prompts", p->files, "Files of prompts in the directory.");
        gauge(out, "kept_prompt_bytes", p->bytes, "Bytes of these files.");
    }
    counter(out, "generated_tokens_total", c->generated_tokens, "Tokens of answers.");
    /* By the names of llama.cpp's server, which balancers and boards ask for. */
    counter(out, "llamacpp:prompt_tokens_total", c->prompt_tokens, "Tokens of prompts.");
    counter(out, "llamacpp:tokens_predicted_total", c->generated_tokens, "Tokens of answers.");
    gauge(out, "llamacpp:requests_processing", c->running, "Answers that are being computed.");
    gauge(out, "llamacpp:requests_deferred", c->waiting, "Answers that wait in a queue.");
    counter(out, "drafted_tokens_total", c->drafted_tokens, "Tokens that were drafted.");
    counter(out, "accepted_tokens_total", c->accepted_tokens, "Drafted tokens that were right.");
    counter(out, "stopped_drafts_total", c->stopped_drafts, "Answers whose drafts stopped.");
    if (c->activations == 0) /* a dense model has no experts; others may not have chosen any yet */
        return;
    counter(out, "expert_activations_total", c->activations,
            "Experts that the models' routers chose.");
    counter(out, "expert_hits_total", c->hits, "Activations of experts that were in memory.");
}

/* Writes every kind from the beginning. */
static void write_exactness(const struct moe_server_counts *c, struct moe_buf *out)
{
    gauge(out, "exact_required", c->exact_required, "1 with --exact.");
    head(out, "inexact_allowed", "gauge",
         "1 if models were opened with options that may change results, and which.");
    if (c->inexact[0]) {
        moe_buf_text(out, "moe_inexact_allowed{by=\"");
        write_label(out, c->inexact);
        moe_buf_text(out, "\"} 1\n");
    }
    head(out, "inexact_total", "counter", "Changes that may have affected results, by kind.");
    for (int i = 0; i < MOE_N_CHANGES; i++)
        moe_buf_printf(out, "moe_inexact_total{change=\"%s\"} %" PRIu64 "\n", moe_change_key(i),
                       c->changes.of[i]);
}

static void write_process(const struct moe_server_counts *c, struct moe_buf *out)
{
    seconds_counter(out, "uptime_seconds_total", c->seconds, "Since the server was opened.");
    if (c->memory_bytes != UINT64_MAX)
        gauge(out, "memory_budget_bytes", c->memory_bytes, "What the process may take.");
    gauge(out, "memory_rss_bytes", c->rss_bytes, "What the process takes.");
    gauge(out, "memory_floor_bytes", c->floor_bytes, "The smallest budget that works.");
    if (c->gpu_bytes) {
        gauge(out, "gpu_memory_budget_bytes", c->gpu_bytes,
              "Memory budget of executors on the GPU.");
        gauge(out, "host_tier_limit_bytes", c->host_bytes, "Main memory for packs above the disk.");
        gauge(out, "host_tier_bytes", c->host_taken, "... and take.");
        gauge(out, "host_tier_models", c->host_models, "Packs in main memory, above the disk.");
    }
    seconds_counter(out, "schedule_seconds_total", c->schedule_seconds,
                    "Time spent on scheduling.");
}

/* A family of figures, one per executor. */
struct executor_figure {
    const char *name, *type, *help;
    double (*of)(const struct moe_server_executor_counts *e);
};

#define FIGURE(member)                                                                             \
    static double of_##member(const struct moe_server_executor_counts *e)                          \
    {                                                                                              \
        return (double)e->member;                                                                  \
    }
FIGURE(running)
FIGURE(waiting)
FIGURE(switches)
FIGURE(loads)
FIGURE(prefetched)
FIGURE(host_loads)
FIGURE(bytes_read)
FIGURE(models_bytes)
FIGURE(batch_bytes)
FIGURE(busy_seconds)
FIGURE(load_seconds)

static const struct executor_figure executor_figures[] = {
    {"executor_running", "gauge", "Answers that it computes.", of_running},
    {"executor_waiting", "gauge", "Answers in its queue.", of_waiting},
    {"executor_switches_total", "counter", "Changes to another model.", of_switches},
    {"executor_loads_total", "counter", "Models that it loaded.", of_loads},
    {"executor_host_loads_total", "counter", "... from main memory; the others are from disk.",
     of_host_loads},
    {"executor_prefetched_total", "counter", "Models that it loaded while another one computed.",
     of_prefetched},
    {"executor_read_bytes_total", "counter", "What was read from disk.", of_bytes_read},
    {"executor_models_bytes", "gauge", "Memory that its models take.", of_models_bytes},
    {"executor_batch_bytes", "gauge", "Memory that computing takes.", of_batch_bytes},
    {"executor_busy_seconds_total", "counter", "It computed.", of_busy_seconds},
    {"executor_load_seconds_total", "counter", "It waited for a model.", of_load_seconds},
};

static void write_executors(const struct moe_server_counts *c, struct moe_buf *out)
{
    for (size_t f = 0; f < sizeof executor_figures / sizeof *executor_figures; f++) {
        const struct executor_figure *figure = &executor_figures[f];
        head(out, figure->name, figure->type, figure->help);
        for (uint32_t i = 0; i < c->n_executors; i++) {
            moe_buf_printf(out, "moe_%s{executor=\"%u\",device=\"", figure->name, i);
            write_label(out, c->executors[i].device ? c->executors[i].device : "");
            moe_buf_printf(out, "\"} %.16g\n", figure->of(&c->executors[i]));
        }
    }
    head(out, "executor_model", "gauge", "1 for the model that it computes.");
    for (uint32_t i = 0; i < c->n_executors; i++)
        if (c->executors[i].model) {
            moe_buf_printf(out, "moe_executor_model{executor=\"%u\",model=\"", i);
            write_label(out, c->executors[i].model);
            moe_buf_text(out, "\"} 1\n");
        }
}

/* A family of figures, one per rank. */
struct rank_figure {
    const char *name, *type, *help;
    double (*of)(const struct moe_rank_report *r);
};

#define RANK_FIGURE(name_, member)                                                                 \
    static double rank_##name_(const struct moe_rank_report *r)                                    \
    {                                                                                              \
        return (double)r->member;                                                                  \
    }
RANK_FIGURE(experts, figures.n_experts)
RANK_FIGURE(messages, messages)
RANK_FIGURE(sent, bytes_sent)
RANK_FIGURE(received, bytes_received)
RANK_FIGURE(messages_on, messages_on)
RANK_FIGURE(on, bytes_on)
RANK_FIGURE(waited, waited_seconds)

static const struct rank_figure rank_figures[] = {
    {"rank_experts", "gauge", "Experts that another rank has.", rank_experts},
    {"rank_messages_total", "counter", "Messages to it.", rank_messages},
    {"rank_sent_bytes_total", "counter", "... and their bytes.", rank_sent},
    {"rank_received_bytes_total", "counter", "Bytes of its answers.", rank_received},
    {"rank_handed_on_messages_total", "counter", "Messages from it to the next rank.",
     rank_messages_on},
    {"rank_handed_on_bytes_total", "counter", "... and their bytes.", rank_on},
    {"rank_waited_seconds_total", "counter", "Rank 0 had nothing to do but wait for it.",
     rank_waited},
};

static void write_ranks(const struct moe_server_counts *c, struct moe_buf *out)
{
    for (size_t f = 0; c->n_ranks && f < sizeof rank_figures / sizeof *rank_figures; f++) {
        const struct rank_figure *figure = &rank_figures[f];
        head(out, figure->name, figure->type, figure->help);
        for (uint32_t i = 0; i < c->n_ranks; i++) {
            moe_buf_printf(out, "moe_%s{rank=\"%u\",host=\"", figure->name, i + 1);
            write_label(out, c->ranks[i].host);
            moe_buf_printf(out, "\"} %.16g\n", figure->of(&c->ranks[i]));
        }
    }
}

void moe_metrics_write(const struct moe_http_counts *http, struct moe_server *server,
                       struct moe_buf *out)
{
    struct moe_server_counts counts;
    moe_server_count(server, &counts);
    head(out, "build_info", "gauge", "1, with the version.");
    moe_buf_printf(out, "moe_build_info{version=\"%s\"} 1\n", MOE_VERSION);
    write_requests(&counts, out);
    write_exactness(&counts, out);
    write_process(&counts, out);
    write_executors(&counts, out);
    write_ranks(&counts, out);
    write_http(http, out);
}
