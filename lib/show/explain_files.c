/* What a bit map and a device profile say, in words, before their figures. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/text.h"
#include "show/draw.h"
#include "show/explain.h"
#include "show/show_device.h"
#include "show/show_map.h"

/* ---- A bit map ---- */

/* Which layers' experts matter most: the mean of what is lost. */
static void put_layers_that_matter(const struct moe_map *map, struct moe_screen screen,
                                   struct moe_buf *out)
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
        moe_draw_paragraph(out, screen, NULL, 0,
                           "Layer %" PRIu32 " is the most sensitive: an expert of it matters %.1f "
                           "times as much as one of a layer on average.",
                           map->model_layer[layer], most / (sum / n_layers));
}

void moe_explain_map(const struct moe_map *map, struct moe_screen screen, struct moe_buf *out)
{
    const struct moe_map_choice *c = &map->choice;
    char room[2][32];
    if (c->there && map->n_uniform)
        moe_draw_paragraph(out, screen, NULL, 0,
                           "It makes the model %s in place of %s, and its texts surprise it "
                           "%+.2f%% (%s%.2f).",
                           moe_format_bytes(c->expert_bytes + c->dense_bytes, room[0]),
                           moe_format_bytes(map->uniform[0].bytes, room[1]), c->loss.nll_percent,
                           moe_draw_plus_minus(screen), c->loss.nll_error);
    else if (!c->there)
        moe_draw_paragraph(out, screen, NULL, 0,
                           "Nothing was chosen yet: moe-calibrate --tolerance does.");
    if (map->importances.there)
        put_layers_that_matter(map, screen, out);
    moe_draw_paragraph(
        out, screen, NULL, 0,
        "This is a bit map: what a model loses when its experts (blocks of weights) are "
        "stored with fewer bits, and so how many bits each deserves. What is lost is "
        "in nats: how much more a text surprises the model; 1%% more is hardly seen, "
        "10%% is.");
    moe_buf_text(out, "\n");
    moe_show_map(map, screen, out);
    moe_draw_paragraph(out, screen, NULL, 0,
                       "\nNext: moe-quantize --map MAP makes a pack of it; moe-plan --calibration "
                       "MAP plans with what else it found.");
}

/* ---- A device profile ---- */

/* What a token would take at least where nothing but weights is read. */
static void put_rates(const struct moe_device *d, enum moe_device_tier tier,
                      struct moe_screen screen, struct moe_buf *out)
{
    char room[2][32], times[32];
    double memory = tier == MOE_TIER_HOST ? d->accelerator.memory_bytes_per_second.value
                                          : d->host.memory_bytes_per_second.value;
    double load = moe_device_load_rate(d, tier);
    if (!(memory > 0) || !(load > 0))
        return;
    moe_draw_paragraph(out, screen, NULL, 0,
                       "An expert that must be read first takes %s times as long as one that is in "
                       "memory: weights come from memory at up to %s, from the %s at %s.",
                       moe_format_about(1 + memory / load, times), moe_format_rate(memory, room[0]),
                       tier == MOE_TIER_HOST ? "host, over the bus," : "disk",
                       moe_format_rate(load, room[1]));
    if (!moe_device_load_measured(d, tier))
        moe_draw_paragraph(out, screen, NULL, 0,
                           "The rate of loads was stated, not measured: few machines reach it.");
}

void moe_explain_device(const struct moe_device *d, struct moe_screen screen, struct moe_buf *out)
{
    double spread = moe_device_spread(d);
    enum moe_device_tier tier =
        d->accelerator.name[0] && !d->accelerator.shares_memory ? MOE_TIER_HOST : MOE_TIER_STORAGE;
    if (!d->has_model || d->model.moe_layers)
        put_rates(d, tier, screen, out);
    moe_draw_paragraph(out, screen, NULL, 0,
                       "This is a device profile: how fast a machine computes and reads. Plans are "
                       "made with these figures.");
    if (!d->has_model)
        moe_draw_paragraph(out, screen, NULL, 0,
                           "It has no times of a model: they are computed from the memory's "
                           "bandwidth, which is an estimate (moe-profile --device PACK measures).");
    if (spread > MOE_QUIET_SPREAD)
        moe_draw_paragraph(
            out, screen, NULL, 0,
            "Runs of the same measurement differed: the median took %.0f%% longer than "
            "the fastest. The machine was busy; measure again when it is not.",
            100 * spread);
    moe_buf_text(out, "\n");
    moe_show_device(d, screen, out);
    moe_buf_text(out, "\nNext: moe-plan PACK --memory SIZE --device-profile FILE\n");
}
