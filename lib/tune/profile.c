/* Profiling: documents, statistics and trace are saved, resumed and ended together. */
#include "tune/profile.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"
#include "tune/probe.h"

enum {
    /* Of the tables of paths: a share of the budget is theirs, and so much in any case. */
    PATHS_SHARE = 4,
    PATHS_BYTES = 64 << 20,

    YAML_BYTES = 24, /* of a byte of a partial file while it is read: a node for a short number */
};

struct profiling {
    const struct moe_profile_options *options;
    struct moe_documents documents;
    struct moe_probe *probe;
    struct moe_statistics *statistics;
    struct moe_trace_writer *trace;   /* NULL: none, or it is finished */
    char *trace_path, *trace_partial; /* where the option's links lead; while unfinished */
    bool trace_resumed;               /* the partial trace goes on */
    bool whole;                       /* no document is half counted, no frame half written */
    uint64_t n_documents;             /* met until now, of all shards */
    uint64_t to_skip, hash_skipped, hash_wanted; /* documents that the partial file has counted */
    struct moe_saving saving;
};

/* The trace first: it may hold more documents than the statistics, never fewer. */
static int save_trace(struct profiling *p, struct moe_err *err)
{
    if (!p->trace_resumed) /* statistics of another run have nothing to do with this trace */
        unlink(p->options->partial);
    p->trace_resumed = true;
    return moe_trace_save(p->trace, err);
}

static int save_partial(struct profiling *p, struct moe_err *err)
{
    struct moe_buf text = {0};
    int status;
    MOE_STEP(p->trace ? save_trace(p, err) : MOE_OK);
    MOE_STEP(moe_statistics_write(p->statistics, &text, err));
    MOE_STEP(moe_file_write_all(p->options->partial, text.data, text.size, err));
out:
    moe_buf_release(&text);
    p->saving.saved = moe_seconds();
    p->whole &=
        status == MOE_OK; /* a trace that lacks what could not be written is not saved again */
    return status;
}

/* Before anything of the document is counted: the statistics stay whole. */
static int check_paths(const struct profiling *p, uint64_t n, struct moe_err *err)
{
    uint64_t needed = moe_statistics_paths_bytes_with(p->statistics, n);
    char now[32];
    if (needed <= p->options->paths_bytes)
        return MOE_OK;
    return moe_fail(
        err, MOE_ERR_LIMIT,
        "after %" PRIu64 " documents the tables of paths outgrow the %s that the budget "
        "leaves them: --resume with --memory %" PRIu64 "M (or profile fewer texts)",
        p->statistics->totals[MOE_TOTAL_DOCUMENTS], moe_format_bytes(p->options->paths_bytes, now),
        (2 * PATHS_SHARE * needed + (1 << 20) - 1) >> 20);
}

/* Counts the next document, of n tokens; *take: it must be run. */
static int meet_document(struct profiling *p, uint64_t hash, uint64_t n, bool *take,
                         struct moe_err *err)
{
    *take = false;
    if (p->n_documents++ % p->options->n_shards != p->options->shard)
        return MOE_OK;
    if (p->to_skip > 0) {
        p->hash_skipped += hash;
        if (--p->to_skip == 0 && p->hash_skipped != p->hash_wanted)
            return moe_fail(err, MOE_ERR_USAGE,
                            "%s: was made from other texts; remove it or give those",
                            p->options->partial);
        return MOE_OK;
    }
    int status = check_paths(p, n, err);
    *take = status == MOE_OK;
    p->whole &= status != MOE_OK;
    return status;
}

/* A document has been run, with this status. */
static int end_document(struct profiling *p, int status, struct moe_err *err)
{
    p->whole = status == MOE_OK;
    if (status == MOE_OK && p->options->partial && moe_saving_due(&p->saving, moe_seconds()))
        status = save_partial(p, err);
    return status;
}

static int profile_document(void *ctx, const uint32_t *ids, uint64_t n, struct moe_err *err)
{
    struct profiling *p = ctx;
    bool take;
    MOE_TRY(meet_document(p, moe_hash64(ids, n * sizeof *ids), n, &take, err));
    if (take)
        MOE_TRY(end_document(p, moe_probe_document(p->probe, ids, (uint32_t)n, err), err));
    return MOE_OK;
}

static int profile_pair(void *ctx, const struct moe_pair *pair, struct moe_err *err)
{
    struct profiling *p = ctx;
    bool take;
    uint64_t hash = moe_probe_pair_hash(pair->source, pair->n_source, pair->target, pair->n_target);
    MOE_TRY(meet_document(p, hash, pair->n_target, &take, err));
    if (take)
        MOE_TRY(end_document(p,
                             moe_probe_pair(p->probe, pair->source, pair->n_source, pair->target,
                                            pair->n_target, err),
                             err));
    return MOE_OK;
}

/* Says of the statistics what they will be made from. */
static int describe_statistics(struct profiling *p, uint64_t pack_fingerprint, struct moe_err *err)
{
    const struct moe_profile_options *o = p->options;
    struct moe_origins *origins = &p->statistics->origins;
    struct moe_documents documents = p->documents;
    documents.what = "counting tokens";
    documents.left_out = NULL;
    int status = moe_origins_begin(origins, o->n_texts, o->shard, o->n_shards, err);
    if (status != MOE_OK)
        return status;
    struct moe_origin *origin = origins->items;
    origin->pack_fingerprint = pack_fingerprint;
    origin->options_fingerprint = o->prior ? moe_statistics_fingerprint(o->prior) : 0;
    for (uint32_t i = 0; i < o->n_texts && status == MOE_OK; i++) {
        uint64_t n;
        status = moe_documents_count(&documents, o->texts[i], &n, &origin->texts[i], err);
        if (status == MOE_OK && n == 0)
            status = moe_fail(err, MOE_ERR_FORMAT, "%s: has no %s to profile", o->texts[i],
                              o->pairs ? "pair" : "text");
        origin->n_texts++;
        origin->documents += n;
    }
    return status;
}

/* What an interrupted run left must be of the same origin. */
static int check_origin(const char *path, const struct moe_origins *left,
                        const struct moe_origins *wanted, struct moe_err *err)
{
    const char *differs = moe_origins_difference(left, wanted);
    return differs ? moe_fail(err, MOE_ERR_USAGE, "%s: was made from %s; remove it or give those",
                              path, differs)
                   : MOE_OK;
}

/* New statistics, or what the partial file holds. */
static int begin_statistics(struct profiling *p, const struct moe_statistics_shape *shape,
                            uint64_t pack_fingerprint, struct moe_err *err)
{
    const struct moe_profile_options *o = p->options;
    int status = moe_statistics_new(&p->statistics, shape, err);
    if (status == MOE_OK)
        status = describe_statistics(p, pack_fingerprint, err);
    if (status != MOE_OK || !o->partial || !o->resume || !moe_path_exists(o->partial))
        return status;
    struct moe_statistics *before = NULL;
    MOE_STEP(moe_statistics_read(&before, o->partial, err));
    if (moe_statistics_add(p->statistics, before, err) != MOE_OK)
        MOE_STEP(moe_err_prefix(err, "%s", o->partial));
    MOE_STEP(check_origin(o->partial, &before->origins, &p->statistics->origins, err));
out:
    moe_statistics_free(before);
    p->to_skip = p->statistics->totals[MOE_TOTAL_DOCUMENTS];
    p->hash_wanted = p->statistics->totals[MOE_TOTAL_HASH];
    return status;
}

/* ---- The trace ---- */

/* What a trace says about the model, except the experts' sizes. */
static struct moe_trace_shape trace_shape_of(const struct moe_model *model, uint32_t keep)
{
    struct moe_statistics_shape s = moe_model_statistics_shape(model);
    struct moe_trace_shape shape = {
        .n_layers = s.n_layers,
        .n_encoder = s.n_encoder,
        .n_experts = s.n_experts,
        .top_k = s.top_k,
        .keep = keep == MOE_TRACE_KEEP_ENOUGH ? moe_trace_default_keep(s.n_experts, s.top_k)
                : keep < s.n_experts          ? keep
                                              : s.n_experts,
        .predictors = keep > 0 ? MOE_TRACE_PREDICTORS : 0,
        .n_variants = moe_pack_n_variants(model->pack),
        .source_fingerprint = s.source_fingerprint,
        .has_ids = true,
    };
    shape.loop = moe_config_moe_loop(&model->config);
    moe_config_static_layers(&model->config, shape.is_static);
    return shape;
}

/* Adds the experts' sizes; *bytes gets their array, the caller's to free. */
static int add_expert_bytes(const struct moe_model *model, struct moe_trace_shape *shape,
                            uint64_t **bytes, struct moe_err *err)
{
    const struct moe_pack *pack = model->pack;
    uint64_t n = (uint64_t)shape->n_variants * shape->n_layers * shape->n_experts;
    uint64_t *at = *bytes = moe_alloc(n, sizeof **bytes, err);
    if (!at)
        return MOE_ERR_MEMORY;
    shape->expert_bytes = at;
    for (uint32_t v = 0; v < shape->n_variants; v++) {
        snprintf(shape->variants[v], sizeof shape->variants[v], "%s",
                 moe_pack_variant_at(pack, v)->name);
        for (uint32_t layer = 0; layer < model->config.n_layers; layer++)
            for (uint32_t e = 0; model->config.layers[layer].moe && e < shape->n_experts;
                 e++, at++) {
                const struct moe_expert_extent *extent = moe_pack_expert(pack, layer, e, v);
                const struct moe_expert_class *class_ =
                    moe_pack_class_at(pack, extent->class_index);
                for (uint32_t i = 0; extent->present && i < class_->n_segments; i++)
                    *at += class_->segment_bytes[i];
            }
    }
    return MOE_OK;
}

/* A trace does not depend on other statistics, but does not say what the prompts are. */
static int trace_origins(const struct profiling *p, struct moe_origins *to, struct moe_err *err)
{
    uint8_t settings[8];
    moe_put_u32(settings, p->options->max_tokens);
    moe_put_u32(settings + 4, p->options->prompt_percent);
    MOE_TRY(moe_origins_copy(to, &p->statistics->origins, err));
    to->items->options_fingerprint = moe_hash64(settings, sizeof settings);
    return MOE_OK;
}

/* Whether the trace is in its place already: the run was killed when only its statistics were not.
 */
static bool is_finished(const struct profiling *p, const struct moe_trace_shape *shape,
                        const struct moe_origins *origins)
{
    struct moe_trace *t = NULL;
    bool finished =
        !moe_path_exists(p->trace_partial) && moe_trace_open(&t, p->trace_path, NULL) == MOE_OK &&
        moe_trace_origins(t)->n && !moe_origins_difference(moe_trace_origins(t), origins) &&
        moe_trace_shape(t)->keep == shape->keep && moe_trace_totals(t)->sequences == p->to_skip &&
        moe_trace_totals(t)->tokens == p->statistics->totals[MOE_TOTAL_TOKENS];
    moe_trace_close(t);
    return finished;
}

/* Goes on with a stopped run's trace behind the documents that are in the statistics. */
static int resume_trace(struct profiling *p, const struct moe_trace_shape *shape,
                        const struct moe_origins *origins, struct moe_err *err)
{
    struct moe_trace *before = NULL;
    const struct moe_trace_totals until = {.sequences = p->to_skip,
                                           .tokens = p->statistics->totals[MOE_TOTAL_TOKENS]};
    if (!moe_path_exists(p->trace_partial))
        return moe_fail(
            err, MOE_ERR_USAGE,
            "%s: is missing, so the trace cannot be continued; remove %s and start again",
            p->trace_partial, p->options->partial);
    int status = moe_trace_open_part(&before, p->trace_partial, err);
    if (status == MOE_OK)
        status = check_origin(p->trace_partial, moe_trace_origins(before), origins, err);
    if (status == MOE_OK) {
        status = moe_trace_continue(&p->trace, before, shape, &until, err);
        p->trace_resumed = true;
    }
    moe_trace_close(before);
    return status;
}

static int new_trace(struct profiling *p, const struct moe_trace_shape *shape,
                     const struct moe_origins *origins, struct moe_err *err)
{
    MOE_TRY(moe_trace_create(&p->trace, p->trace_partial, shape, err));
    return moe_trace_set_origins(p->trace, origins, err);
}

/* Where the trace goes, and its partial file beside it: one file that is renamed in the end. */
static int name_trace(struct profiling *p, struct moe_err *err)
{
    struct moe_buf name = {0};
    MOE_TRY(moe_path_follow(&p->trace_path, p->options->trace, err));
    moe_buf_printf(&name, "%s.part", p->trace_path);
    p->trace_partial = name.failed ? NULL : moe_strndup((char *)name.data, name.size, err);
    if (name.failed)
        moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    moe_buf_release(&name);
    return p->trace_partial ? MOE_OK : MOE_ERR_MEMORY;
}

static int begin_trace(struct profiling *p, const struct moe_session *session, struct moe_err *err)
{
    const struct moe_model *model = session->model;
    struct moe_trace_shape shape = trace_shape_of(model, p->options->trace_keep);
    struct moe_origins origins = {0};
    uint64_t *bytes = NULL;
    int status;
    MOE_STEP(name_trace(p, err));
    MOE_STEP(add_expert_bytes(model, &shape, &bytes, err));
    MOE_STEP(trace_origins(p, &origins, err));
    if (p->to_skip == 0)
        MOE_STEP(new_trace(p, &shape, &origins, err));
    else if (!is_finished(p, &shape, &origins))
        MOE_STEP(resume_trace(p, &shape, &origins, err));
    if (p->trace) {
        MOE_STEP(moe_trace_reserve(p->trace, session->batch, err));
        moe_probe_set_trace(p->probe, p->trace);
    }
out:
    moe_origins_release(&origins);
    free(bytes);
    return status;
}

static int finish_trace(struct profiling *p, struct moe_err *err)
{
    struct moe_trace_writer *trace = p->trace;
    p->trace = NULL;
    MOE_TRY(moe_trace_commit(trace, err));
    return moe_file_replace(p->trace_partial, p->trace_path, err);
}

/* Saves the finished documents. The trace leaves its partial file only once the statistics have all
 * documents: a run cannot resume without it. */
static int end(struct profiling *p, int status, struct moe_err *err)
{
    struct moe_err ignored;
    if (status == MOE_OK && p->options->partial)
        status = save_partial(p, err);
    else if (p->options->partial && p->whole && p->to_skip == 0 && p->statistics &&
             p->statistics->totals[MOE_TOTAL_DOCUMENTS] > 0)
        save_partial(p, &ignored);
    if (status == MOE_OK && p->trace)
        status = finish_trace(p, err);
    moe_trace_abort(p->trace);
    return status;
}

/* ---- Profiling ---- */

static struct moe_statistics_shape shape_of(const struct moe_model *model,
                                            const struct moe_profile_options *o)
{
    struct moe_statistics_shape shape = moe_model_statistics_shape(model);
    shape.max_tokens = o->max_tokens;
    shape.prompt_percent = o->prompt_percent;
    return shape;
}

int moe_profile_survey(struct moe_profile_options *o, const struct moe_model *model,
                       const struct moe_engine_room *room, struct moe_err *err)
{
    const struct moe_statistics_shape shape = shape_of(model, o);
    const struct moe_documents documents = {.tokenizer = model->tokenizer,
                                            .max_tokens = o->max_tokens,
                                            .max_windows = o->max_windows,
                                            .pairs = o->pairs,
                                            .progress = o->progress};
    struct moe_documents_size size;
    if (shape.n_layers == 0)
        return MOE_OK;
    int status = moe_documents_survey(&documents, o->texts, o->n_texts, room->may_hold, &size, err);
    uint64_t most = room->total / PATHS_SHARE;
    most = most > PATHS_BYTES ? most : PATHS_BYTES;
    o->text_bytes = size.bytes;
    o->paths_bytes = moe_statistics_paths_bytes(&shape, size.most_ids);
    o->paths_bytes = o->paths_bytes < most ? o->paths_bytes : most;
    return status;
}

/* What reading the partial file takes. */
static uint64_t resume_bytes(const struct moe_profile_options *o)
{
    struct moe_err ignored;
    uint64_t size = 0;
    int fd = o->resume && o->partial && moe_path_exists(o->partial)
                 ? moe_file_open(o->partial, &size, &ignored)
                 : -1;
    if (fd < 0)
        return 0;
    close(fd);
    return size * YAML_BYTES;
}

uint64_t moe_profile_bytes(const struct moe_profile_options *o, const struct moe_model *model,
                           uint32_t batch)
{
    struct moe_statistics_shape shape = shape_of(model, o);
    struct moe_trace_shape trace = trace_shape_of(model, o->trace_keep);
    if (shape.n_layers == 0) /* without experts there is nothing to profile */
        return 0;
    return moe_statistics_bytes(&shape) + moe_probe_bytes(&model->config, batch) + o->text_bytes +
           o->paths_bytes + resume_bytes(o) +
           (o->prior ? moe_statistics_held_bytes(o->prior) + o->prior->read_bytes : 0) +
           (o->trace ? moe_trace_writer_bytes(&trace, batch) : 0);
}

int moe_profile_texts(struct moe_session *session, const struct moe_profile_options *o,
                      struct moe_statistics **out, struct moe_err *err)
{
    struct moe_statistics_shape shape = shape_of(session->model, o);
    double now = moe_seconds();
    struct profiling p = {
        .options = o,
        .documents = {.tokenizer = session->model->tokenizer,
                      .max_tokens = o->max_tokens,
                      .max_windows = o->max_windows,
                      .pairs = o->pairs,
                      .decoder_start = session->model->config.decoder_start,
                      .answer_start = session->model->config.answer_start,
                      .what = "profiling",
                      .progress = o->progress,
                      .left_out = o->left_out},
        .saving = {now, now},
        .whole = true,
    };
    *out = NULL;
    int status;
    if (!shape.n_layers)
        MOE_STEP(
            moe_fail(err, MOE_ERR_UNSUPPORTED, "the model has no experts: nothing to profile"));
    if (o->pairs != (session->model->config.n_encoder > 0))
        MOE_STEP(moe_fail(err, MOE_ERR_USAGE,
                          o->pairs ? "the model has no encoder: it takes texts (--text FILE)"
                                   : "the model has an encoder: it takes pairs (--pairs FILE)"));
    if (o->partial)
        MOE_STEP(moe_outfile_try(o->partial, err));
    MOE_STEP(begin_statistics(&p, &shape, moe_pack_fingerprint(session->model->pack), err));
    p.statistics->prior = o->prior;
    MOE_STEP(moe_probe_open(&p.probe, session, p.statistics, err));
    if (o->trace)
        MOE_STEP(begin_trace(&p, session, err));
    for (uint32_t i = 0; i < o->n_texts; i++)
        MOE_STEP(o->pairs
                     ? moe_pairs_each(&p.documents, o->texts[i], profile_pair, &p, err)
                     : moe_documents_each(&p.documents, o->texts[i], profile_document, &p, err));
    if (p.to_skip > 0)
        MOE_STEP(moe_fail(err, MOE_ERR_USAGE,
                          "%s: was made from more documents than the texts have", o->partial));
    if (p.n_documents == 0)
        MOE_STEP(moe_fail(err, MOE_ERR_FORMAT, "%s: has no text to profile", o->texts[0]));
    if (p.n_documents != p.statistics->origins.items->documents)
        MOE_STEP(moe_fail(err, MOE_ERR_IO, "%s: was changed while it was read", o->texts[0]));
out:
    status = end(&p, status, err);
    moe_probe_close(p.probe);
    free(p.trace_path);
    free(p.trace_partial);
    if (status == MOE_OK)
        *out = p.statistics;
    else
        moe_statistics_free(p.statistics);
    return status;
}
