#include "show/heat.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

enum { COLUMNS = 64, MOST_COLUMNS = 184 };

int moe_heat_init(struct moe_heat *heat, uint32_t n_layers, uint32_t n_experts, struct moe_err *err)
{
    *heat = (struct moe_heat){.n_layers = n_layers, .n_experts = n_experts, .usual = 1};
    heat->values = moe_alloc((uint64_t)n_layers * n_experts, sizeof *heat->values, err);
    return heat->values ? MOE_OK : MOE_ERR_MEMORY;
}

void moe_heat_release(struct moe_heat *heat)
{
    free(heat->values);
    heat->values = NULL;
}

int moe_heat_of_counts(struct moe_heat *heat, const uint64_t *counts, uint32_t n_layers,
                       uint32_t n_experts, struct moe_err *err)
{
    int status = moe_heat_init(heat, n_layers, n_experts, err);
    heat->usual = 1.0 / n_experts;
    for (uint32_t l = 0; l < n_layers && status == MOE_OK; l++) {
        const uint64_t *of = counts + (uint64_t)l * n_experts;
        double sum = 0;
        for (uint32_t e = 0; e < n_experts; e++)
            sum += (double)of[e];
        for (uint32_t e = 0; e < n_experts; e++)
            heat->values[(uint64_t)l * n_experts + e] = sum > 0 ? (double)of[e] / sum : (double)NAN;
    }
    return status;
}

/* ---- Drawing ---- */

uint32_t moe_heat_experts(const struct moe_heat *heat, struct moe_screen screen)
{
    uint32_t columns = moe_draw_columns(screen, COLUMNS, MOST_COLUMNS);
    return (heat->n_experts + columns - 1) / columns;
}

uint32_t moe_heat_layers(const struct moe_heat *heat)
{
    return (heat->n_layers + MOE_HEAT_LINES - 1) / MOE_HEAT_LINES;
}

double moe_heat_cell(const struct moe_heat *h, uint32_t layer, uint32_t n_layers, uint32_t expert,
                     uint32_t n_experts)
{
    double sum = 0;
    uint32_t n = 0;
    for (uint32_t l = layer; l < layer + n_layers && l < h->n_layers; l++)
        for (uint32_t e = expert; e < expert + n_experts && e < h->n_experts; e++) {
            double x = h->values[(uint64_t)l * h->n_experts + e];
            if (isnan(x))
                continue;
            sum += x;
            n++;
        }
    return n ? sum / n : (double)NAN;
}

/* Of the 256 colours of terminals, from cold to warm. */
static const uint8_t colours[MOE_SHADES] = {0, 67, 151, 222, 209};

void moe_draw_heat(const struct moe_heat *h, struct moe_screen screen, struct moe_buf *out)
{
    uint32_t experts = moe_heat_experts(h, screen), layers = moe_heat_layers(h);
    for (uint32_t l = 0; l < h->n_layers; l += layers) {
        uint32_t before = 0; /* shade of the cell before, whose colour still holds */
        moe_buf_printf(out, "  %4" PRIu32 " |", h->names ? h->names[l] : l);
        for (uint32_t e = 0; e < h->n_experts; e += experts) {
            double x = moe_heat_cell(h, l, layers, e, experts);
            uint32_t shade = x > 0 ? moe_shade_level(x, h->usual) : 0;
            if (screen.colour && shade != before && shade)
                moe_buf_printf(out, "\033[38;5;%dm", colours[shade]);
            else if (screen.colour && shade != before)
                moe_buf_text(out, "\033[0m");
            before = shade;
            moe_buf_text(out, isnan(x) ? "?" : x < 0 ? "-" : moe_draw_shade(x, h->usual, screen));
        }
        moe_buf_text(out, screen.colour && before ? "\033[0m|\n" : "|\n");
    }
}

void moe_heat_json(struct moe_emit *e, const char *key, const struct moe_heat *h)
{
    moe_emit_open_list(e, key);
    for (uint32_t l = 0; l < h->n_layers; l++) {
        moe_emit_open_line_list(e, NULL);
        for (uint32_t i = 0; i < h->n_experts; i++)
            moe_emit_rounded(e, NULL, 4, h->values[(uint64_t)l * h->n_experts + i]);
        moe_emit_close(e);
    }
    moe_emit_close(e);
}
