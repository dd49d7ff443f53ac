/* One of several packs chosen by loss and memory. */
#include "planning.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "cli.h"
#include "pack/map.h"
#include "pack/pack.h"
#include "tune/dense_bits.h"

/* One of the packs. */
struct candidate {
    char path[MOE_PLAN_TEXT];
    double loss; /* percent, or points of what its map was judged by */
    enum moe_judge judge;
    double rate; /* tokens/s */
    struct moe_plan *plan;
    char why[192]; /* it does not fit */
};

/* The loss that a map measured of what a pack holds first: its choice, or a uniform bitwidth; NULL:
 * of neither, with these bits of the dense part. */
static const struct moe_loss *find_loss(const struct moe_map *map, const char *experts,
                                        uint32_t dense_bits)
{
    const struct moe_map_choice *c = &map->choice;
    if (strcmp(experts, "map") == 0)
        return c->there && c->dense_bits == dense_bits && c->loss.tokens ? &c->loss : NULL;
    for (uint32_t i = 0; i < map->n_uniform; i++)
        if (strcmp(map->uniform[i].experts, experts) == 0 &&
            map->uniform[i].dense_bits == dense_bits && map->uniform[i].loss.tokens)
            return &map->uniform[i].loss;
    return NULL;
}

static int loss_of_map(struct candidate *c, const struct moe_map *map, struct moe_err *err)
{
    struct moe_pack *pack = NULL;
    char dense[MOE_WIDTH_BYTES];
    uint32_t dense_bits = 0;
    int status = moe_pack_open(&pack, c->path, err);
    if (status == MOE_OK && moe_pack_source_fingerprint(pack) != map->source_fingerprint)
        status = moe_fail(err, MOE_ERR_USAGE, "%s: the map is of another model", c->path);
    if (status == MOE_OK && moe_pack_n_variants(pack) == 0)
        status = moe_fail(err, MOE_ERR_USAGE, "%s: has no experts", c->path);
    if (status == MOE_OK)
        status = moe_dense_bits_of_pack(pack, &dense_bits, err);
    if (status == MOE_OK) {
        const char *name = moe_pack_variant_at(pack, 0)->name;
        const struct moe_loss *loss = find_loss(map, name, dense_bits);
        if (loss)
            c->loss = moe_map_loss(map, loss);
        else
            status = moe_fail(err, MOE_ERR_USAGE,
                              "%s: the map says nothing of experts at '%s' with a dense part of "
                              "%s%s",
                              c->path, name, moe_format_width((int)dense_bits, dense),
                              moe_bits_unit(dense));
        c->judge = map->judge;
    }
    moe_pack_close(pack);
    return status;
}

/* "MODEL=LOSS". */
static int read_candidate(struct candidate *c, const char *text, struct moe_err *err)
{
    const char *equals = strrchr(text, '=');
    struct moe_map *map = NULL;
    if (!equals || equals == text || equals - text >= (ptrdiff_t)sizeof c->path)
        return moe_fail(err, MOE_ERR_USAGE, "%s: its loss is not given: %s=MAP, or %s=1.5%%", text,
                        text, text);
    snprintf(c->path, sizeof c->path, "%.*s", (int)(equals - text), text);
    if (moe_parse_share(equals + 1, &c->loss)) {
        c->loss *= 100;
        return MOE_OK;
    }
    int status = moe_map_read(&map, equals + 1, err);
    if (status == MOE_OK)
        status = loss_of_map(c, map, err);
    moe_map_free(map);
    return status;
}

/* Losses are compared: all are in nats, or all in the same points of answers. */
static int check_judges(const struct candidate *all, int n, struct moe_err *err)
{
    for (int i = 1; i < n; i++)
        if (all[i].judge != all[0].judge)
            return moe_fail(err, MOE_ERR_USAGE, "%s: what it loses is in %s, what %s loses in %s",
                            all[i].path, moe_judge_name(all[i].judge), all[0].path,
                            moe_judge_name(all[0].judge));
    return MOE_OK;
}

static int plan_one(struct candidate *c, const struct plan_options *o, struct moe_err *err)
{
    struct plan_options options = *o;
    options.pack = c->path;
    int status = plan_compute(&c->plan, &options, err);
    if (status == MOE_ERR_LIMIT) {
        snprintf(c->why, sizeof c->why, "%.*s", (int)sizeof c->why - 1, err->text);
        return MOE_OK;
    }
    if (status == MOE_OK)
        c->rate = c->plan->expected.decode_tokens_per_second;
    return status;
}

/* Whether to run a rather than b, where both fit. */
static bool is_better(const struct candidate *a, const struct candidate *b, double tolerable)
{
    bool a_good = a->loss <= tolerable, b_good = b->loss <= tolerable;
    if (a_good != b_good)
        return a_good;
    if (a_good)
        return a->rate > b->rate;
    return a->loss < b->loss || (a->loss == b->loss && a->rate > b->rate);
}

static void say_candidate(const struct candidate *c, const struct candidate *chosen,
                          double tolerable, struct moe_buf *out)
{
    moe_buf_printf(out, "%s: loses %.3g%%, ", c->path, c->loss);
    if (!c->plan) {
        moe_buf_printf(out, "does not fit: %s\n", c->why);
        return;
    }
    moe_buf_printf(out, "%.4g tokens/s: ", c->rate);
    if (c == chosen)
        moe_buf_text(out, c->loss <= tolerable ? "chosen, the fastest within the loss\n"
                                               : "chosen, the smallest loss that fits\n");
    else if (chosen->loss <= tolerable && c->loss > tolerable)
        moe_buf_printf(out, "loses more than %.3g%%\n", tolerable);
    else if (chosen->loss <= tolerable)
        moe_buf_text(out, "slower\n");
    else
        moe_buf_text(out, c->loss > chosen->loss ? "loses more\n" : "slower\n");
}

int plan_choose(char **packs, int n, double tolerable, const struct plan_options *o,
                struct moe_err *err)
{
    struct candidate *all = moe_alloc((uint64_t)n, sizeof *all, err);
    const struct candidate *chosen = NULL;
    struct moe_buf text = {0};
    int status;
    MOE_STEP(all ? MOE_OK : MOE_ERR_MEMORY);
    for (int i = 0; i < n; i++)
        MOE_STEP(read_candidate(&all[i], packs[i], err));
    MOE_STEP(check_judges(all, n, err));
    for (int i = 0; i < n; i++) {
        MOE_STEP(plan_one(&all[i], o, err));
        if (all[i].plan && (!chosen || is_better(&all[i], chosen, tolerable)))
            chosen = &all[i];
    }
    if (!chosen)
        MOE_STEP(moe_fail(err, MOE_ERR_LIMIT, "none of the packs fits: %s", all[n - 1].why));
    for (int i = 0; i < n; i++)
        say_candidate(&all[i], chosen, tolerable, &text);
out:
    status = cli_print(status, &text, err);
    if (status == MOE_OK)
        status = plan_put(chosen->plan, o, err);
    for (int i = 0; all && i < n; i++)
        moe_plan_free(all[i].plan);
    free(all);
    return status;
}
