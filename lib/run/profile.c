#include "run/profile.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "run/documents.h"
#include "run/probe.h"

/* Between two writings of the partial file: what an interruption by force may cost. */
enum { SAVE_SECONDS = 30 };

struct profiling {
    const struct moe_profile_options *options;
    struct moe_probe *probe;
    struct moe_statistics *statistics;
    uint64_t n_documents;                        /* met so far, of all shards */
    uint64_t to_skip, hash_skipped, hash_wanted; /* documents that the partial file has counted */
    double saved;
};

static int save(struct profiling *p, struct moe_err *err)
{
    struct moe_buf text = {0};
    int status = moe_statistics_write(p->statistics, &text, err);
    if (status == MOE_OK)
        status = moe_file_write_all(p->options->partial, text.data, text.size, err);
    moe_buf_release(&text);
    p->saved = moe_seconds();
    return status;
}

static int profile_document(void *ctx, const uint32_t *ids, uint64_t n, struct moe_err *err)
{
    struct profiling *p = ctx;
    if (p->n_documents++ % p->options->n_shards != p->options->shard)
        return MOE_OK;
    if (p->to_skip > 0) {
        p->hash_skipped += moe_hash64(ids, n * sizeof *ids);
        if (--p->to_skip == 0 && p->hash_skipped != p->hash_wanted)
            return moe_fail(err, MOE_ERR_USAGE,
                            "%s: was made from other texts; remove it or name those",
                            p->options->partial);
        return MOE_OK;
    }
    int status = moe_probe_document(p->probe, ids, (uint32_t)n, err);
    if (status == MOE_OK && p->options->partial && moe_seconds() - p->saved > SAVE_SECONDS)
        status = save(p, err);
    return status;
}

/* New statistics, or what the partial file holds. */
static int begin(struct profiling *p, const struct moe_statistics_shape *shape, struct moe_err *err)
{
    const struct moe_profile_options *o = p->options;
    int status = moe_statistics_new(&p->statistics, shape, err);
    if (status != MOE_OK || !o->partial || !o->resume || !moe_path_exists(o->partial))
        return status;
    struct moe_statistics *before = NULL;
    status = moe_statistics_read(&before, o->partial, err);
    if (status == MOE_OK && moe_statistics_merge(p->statistics, before, err) != MOE_OK)
        status = moe_err_prefix(err, "%s", o->partial);
    moe_statistics_free(before);
    p->to_skip = p->statistics->totals[MOE_TOTAL_DOCUMENTS];
    p->hash_wanted = p->statistics->totals[MOE_TOTAL_HASH];
    return status;
}

int moe_profile_texts(struct moe_session *session, const struct moe_profile_options *o,
                      struct moe_statistics **out, struct moe_err *err)
{
    struct profiling p = {.options = o, .saved = moe_seconds()};
    struct moe_statistics_shape shape = moe_probe_shape(session->model);
    const struct moe_documents documents = {
        .tokenizer = session->model->tokenizer,
        .max_tokens = o->max_tokens,
        .what = "profiling",
        .progress = o->progress,
    };
    shape.max_tokens = o->max_tokens;
    shape.prompt_percent = o->prompt_percent;
    *out = NULL;
    int status = shape.n_layers ? MOE_OK
                                : moe_fail(err, MOE_ERR_UNSUPPORTED,
                                           "the model has no experts: nothing to profile");
    if (status == MOE_OK)
        status = begin(&p, &shape, err);
    if (status == MOE_OK) {
        p.statistics->prior = o->prior;
        status = moe_probe_open(&p.probe, session, p.statistics, err);
    }
    for (uint32_t i = 0; i < o->n_texts && status == MOE_OK; i++)
        status = moe_documents_each(&documents, o->texts[i], profile_document, &p, err);
    if (status == MOE_OK && p.to_skip > 0)
        status = moe_fail(err, MOE_ERR_USAGE,
                          "%s: was made from more documents than the texts have", o->partial);
    else if (status == MOE_OK && p.statistics->totals[MOE_TOTAL_DOCUMENTS] == 0 && o->n_shards == 1)
        status = moe_fail(err, MOE_ERR_FORMAT, "%s: has no text to profile", o->texts[0]);
    struct moe_err ignored;
    if (status != MOE_OK && o->partial && p.to_skip == 0 && p.statistics &&
        p.statistics->totals[MOE_TOTAL_DOCUMENTS] > 0)
        save(&p, &ignored);
    moe_probe_close(p.probe);
    if (status == MOE_OK) {
        if (o->partial)
            unlink(o->partial);
        *out = p.statistics;
    } else {
        moe_statistics_free(p.statistics);
    }
    return status;
}
