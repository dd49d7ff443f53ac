/* moe-plan --explain: finds out what kind a file is, and explains it; bit maps and device
 * profiles. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "cache/learnt.h"
#include "fmt/gguf.h"
#include "fmt/yaml.h"
#include "show/compare.h"
#include "show/draw.h"
#include "show/explain.h"
#include "show/show.h"

static int explain_statistics(const char *path, bool json, const struct moe_pen *pen,
                              struct moe_buf *picture, struct moe_err *err)
{
    struct moe_statistics *s = NULL;
    int status;
    MOE_STEP(moe_statistics_read(&s, path, err));
    if (json)
        MOE_STEP(moe_explain_statistics_json(s, pen->out, err));
    else
        MOE_STEP(moe_explain_statistics(s, pen->screen, pen->out, picture, err));
out:
    moe_statistics_free(s);
    return status;
}

/* ---- Records ---- */
enum record { PLAN, COE_PLAN, MAP, DEVICE, N_RECORDS };
static const struct moe_record_format *const records[N_RECORDS] = {
    [PLAN] = &moe_plan_format,
    [COE_PLAN] = &moe_coe_plan_format,
    [MAP] = &moe_map_format,
    [DEVICE] = &moe_device_format,
};

static int explain_record(enum record kind, const char *path, bool json, const struct moe_pen *pen,
                          struct moe_err *err)
{
    void *whole;
    MOE_TRY(moe_record_read(records[kind], &whole, path, err));
    int status = MOE_OK;
    if (json && kind == PLAN)
        status = moe_explain_plan_json(whole, pen->out, err);
    else if (json)
        status = moe_record_write(records[kind], whole, true, pen->out, err);
    else if (kind == PLAN)
        moe_explain_plan(whole, pen->screen, pen->out);
    else if (kind == COE_PLAN)
        moe_explain_coe_plan(whole, pen->screen, pen->out);
    else if (kind == MAP)
        moe_explain_map(whole, pen->screen, pen->out);
    else
        moe_explain_device(whole, pen->screen, pen->out);
    moe_record_free(records[kind], whole);
    return status;
}

static int explain_trace(const char *path, bool json, const struct moe_pen *pen,
                         struct moe_buf *picture, struct moe_err *err)
{
    struct moe_trace *t = NULL;
    int status = moe_trace_open(&t, path, err);
    if (status == MOE_OK)
        status = moe_explain_trace(t, json, pen->screen, pen->out, picture, err);
    moe_trace_close(t);
    return status;
}

/* Whether it is a file that can be read and does not begin as packs do; what cannot be read,
 * opening it as a pack says why. */
static bool is_no_pack(const char *path)
{
    static const char magic[] = {'M', 'O', 'E', 'P'};
    char start[sizeof magic];
    uint64_t bytes = 0;
    int fd = moe_file_open(path, &bytes, NULL);
    if (fd < 0)
        return false;
    bool is = bytes >= sizeof start &&
              moe_file_pread(fd, path, start, sizeof start, 0, NULL) == MOE_OK &&
              memcmp(start, magic, sizeof start) == 0;
    close(fd);
    return !is;
}

int moe_explain_file(const char *path, bool json, struct moe_screen screen, struct moe_buf *out,
                     struct moe_buf *picture, struct moe_err *err)
{
    const struct moe_pen pen = {out, screen};
    for (enum record kind = 0; kind < N_RECORDS; kind++)
        if (moe_yaml_file_is(path, records[kind]->name))
            return explain_record(kind, path, json, &pen, err);
    if (moe_yaml_file_is(path, "moe-stats"))
        return explain_statistics(path, json, &pen, picture, err);
    if (moe_trace_is(path))
        return explain_trace(path, json, &pen, picture, err);
    if (moe_run_figures_is(path))
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: figures of a run are explained beside its plan: --explain PLAN "
                        "--compare FILE",
                        path);
    if (moe_learnt_is(path))
        return moe_show_learnt(path, json, out, err);
    if (is_no_pack(path) && !moe_gguf_is(path) && !moe_ends_with(path, ".safetensors"))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: neither a plan, statistics, a trace, a bit map, a device profile, "
                        "what a cache has learnt nor a pack",
                        path);
    return moe_explain_pack(path, json, screen, out, err);
}

/* Another kind of file than a plan; what cannot be read, reading it as a plan says why. */
static bool is_no_plan(const char *path)
{
    uint64_t bytes = 0;
    int fd = moe_file_open(path, &bytes, NULL);
    if (fd < 0)
        return false;
    close(fd);
    return !moe_yaml_file_is(path, "moe-plan");
}

int moe_compare_files(const char *path, const char *other, bool json, struct moe_screen screen,
                      struct moe_buf *out, struct moe_err *err)
{
    struct moe_plan *plan = NULL, *second = NULL;
    struct moe_run_figures run;
    struct moe_comparison c;
    bool measured = moe_run_figures_is(other);
    if (is_no_plan(path))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: not a plan: --compare puts the plan of --explain beside another",
                        path);
    if (!measured && is_no_plan(other))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: neither a plan nor what moe-run --stats-json wrote", other);
    int status;
    MOE_STEP(moe_plan_read(&plan, path, err));
    MOE_STEP(measured ? moe_run_figures_read(&run, other, err)
                      : moe_plan_read(&second, other, err));
    if (measured)
        moe_compare_run(plan, &run, &c);
    else
        moe_compare_plans(plan, second, &c);
    if (json)
        MOE_STEP(moe_comparison_json(&c, out, err));
    else
        moe_draw_comparison(&c, screen, out);
out:
    moe_plan_free(plan);
    moe_plan_free(second);
    return status;
}

/* What a bit map and a device profile say, in words, before their figures. */

/* ---- A bit map ---- */

/* Which layers' experts matter most: the mean of what is lost. */
static void put_layers_that_matter(const struct moe_map *map, const struct moe_pen *pen)
{
    const struct moe_importances *m = &map->importances;
    double most = -INFINITY, sum = 0;
    uint32_t layer = 0, n_layers = 0;
    for (uint32_t l = 0; l < map->n_layers; l++) {
        double of = 0;
        uint32_t n = 0;
        for (uint32_t e = 0; e < map->n_experts; e++) {
            uint64_t at = (uint64_t)l * map->n_experts + e;
            of += m->known[at] ? m->nats[at] : 0;
            n += m->known[at];
        }
        if (n == 0)
            continue;
        n_layers++;
        sum += of / n;
        if (of / n > most) {
            most = of / n;
            layer = l;
        }
    }
    if (n_layers > 1 && sum > 0)
        moe_say(pen, 0,
                "Layer %" PRIu32 " is the most sensitive: an expert of it matters %.1f times as "
                "much as one of a layer on average.",
                map->model_layer[layer], most / (sum / n_layers));
}

void moe_explain_map(const struct moe_map *map, struct moe_screen screen, struct moe_buf *out)
{
    const struct moe_pen pen = {out, screen};
    const struct moe_map_choice *c = &map->choice;
    char room[2][32], error[32] = "error unknown";
    if (c->loss.documents != 1)
        snprintf(error, sizeof error, "%s%.2f", moe_draw_plus_minus(screen), c->loss.nll_error);
    if (c->there && map->n_uniform)
        moe_say(&pen, 0,
                "It makes the model's weights %s instead of %s, and its texts surprise the model "
                "%+.2f%% (%s).",
                moe_format_bytes(c->expert_bytes + c->dense_bytes, room[0]),
                moe_format_bytes(map->uniform[0].bytes, room[1]), c->loss.nll_percent, error);
    else if (!c->there && map->n_savings == 0)
        moe_say(&pen, 0, "Nothing was chosen yet: moe-calibrate --tolerance does.");
    if (map->importances.there)
        put_layers_that_matter(map, &pen);
    moe_say(&pen, 0,
            "This is a bit map: what a model loses when its experts (blocks of weights) are stored "
            "with fewer bits, and so how many bits each deserves. What is lost is in nats: how "
            "much more a text surprises the model; 1%% more is hardly seen, 10%% is.");
    moe_buf_text(out, "\n");
    moe_show_map(map, screen, out);
    moe_say(&pen, 0,
            c->there || map->n_savings == 0
                ? "\nNext: moe-quantize --map MAP makes a pack of it; moe-plan --calibration MAP "
                  "plans with what else it found."
                : "\nNext: moe-plan --calibration MAP --tolerance 1%% plans the fastest way to run "
                  "that loses so much at most.");
}

/* ---- A device profile ---- */

/* What a token would take at least where nothing but weights is read. */
static void put_rates(const struct moe_device *d, enum moe_device_tier tier,
                      const struct moe_pen *pen)
{
    char room[2][32], times[32];
    double memory = tier == MOE_TIER_HOST ? d->accelerator.memory_bytes_per_second.value
                                          : d->host.memory_bytes_per_second.value;
    double load = moe_device_load_rate(d, tier);
    if (!(memory > 0) || !(load > 0))
        return;
    moe_say(pen, 0,
            "An expert that must be read first takes %s times as long as one that is in memory: "
            "weights come from memory at up to %s, from the %s at %s.",
            moe_format_about(1 + memory / load, times), moe_format_rate(memory, room[0]),
            tier == MOE_TIER_HOST ? "host, over the bus," : "disk", moe_format_rate(load, room[1]));
    if (!moe_device_load_measured(d, tier))
        moe_say(pen, 0, "The rate of loads was stated, not measured: few machines reach it.");
}

void moe_explain_device(const struct moe_device *d, struct moe_screen screen, struct moe_buf *out)
{
    const struct moe_pen pen = {out, screen};
    double spread = moe_device_spread(d);
    enum moe_device_tier tier =
        d->accelerator.name[0] && !d->accelerator.shares_memory ? MOE_TIER_HOST : MOE_TIER_STORAGE;
    if (!d->has_model || d->model.moe_layers)
        put_rates(d, tier, &pen);
    moe_say(&pen, 0,
            "This is a device profile: how fast a machine computes and reads. Plans are made with "
            "these figures.");
    if (!d->has_model)
        moe_say(&pen, 0,
                "It has no times of a model: they are computed from the memory's bandwidth, which "
                "is an estimate (moe-profile --device PACK measures).");
    if (spread > MOE_QUIET_SPREAD)
        moe_say(&pen, 0,
                "Runs of the same measurement differed: the median took %.0f%% longer than the "
                "fastest. The machine was busy; measure again when it is not.",
                100 * spread);
    moe_buf_text(out, "\n");
    moe_show_device(d, screen, out);
    moe_buf_text(out, "\nNext: moe-plan PACK --memory SIZE --device-profile FILE\n");
}
