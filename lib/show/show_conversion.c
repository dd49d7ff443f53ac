#include "show/show_conversion.h"

#include <inttypes.h>
#include <math.h>

/* Two digits, however small: rounded scales cost some thousandths of a percent. */
static void put_error(const struct moe_quant_error *error, struct moe_buf *out)
{
    double share = error->sum_squared_weight > 0
                       ? sqrt(error->sum_squared_error / error->sum_squared_weight)
                       : 0;
    moe_buf_printf(out, "error %.2g%%", 100 * share);
}

static void put_carried(const struct moe_convert_report *report, const char *path,
                        struct moe_buf *out)
{
    const struct moe_ggml_counts *n = &report->carried;
    uint64_t carried = n->exact + n->rounded, again = n->fitted + report->requantized;
    if (carried + again == 0)
        return;
    moe_buf_printf(out, "%s: of the source's quantized weights %" PRIu64 " carried over", path,
                   carried);
    if (n->rounded) {
        moe_buf_printf(out, " (%" PRIu64 " with scales rounded to f16, ", n->rounded);
        put_error(&report->carried_error, out);
        moe_buf_text(out, ")");
    }
    moe_buf_printf(out, ", %" PRIu64 " quantized again\n", again);
}

static void put_rounding(const struct moe_rounding *r, const char *path, struct moe_buf *out)
{
    moe_buf_printf(out, "%s: ", path);
    for (uint32_t i = 0; i < r->n_names; i++)
        moe_buf_printf(out, "%s%" PRIu32 " %s", i ? ", " : "", r->names[i].n, r->names[i].name);
    if (r->n_others)
        moe_buf_printf(out, ", %" PRIu32 " others", r->n_others);
    moe_buf_printf(out, ": %s -> %d bits, ", r->from, r->bits);
    put_error(&r->error, out);
    moe_buf_text(out, "\n");
}

void moe_show_source(const struct moe_convert_report *report, const char *path, struct moe_buf *out)
{
    put_carried(report, path, out);
    for (uint32_t i = 0; i < report->n_roundings; i++)
        put_rounding(&report->roundings[i], path, out);
    if (report->n_beyond)
        moe_buf_printf(out,
                       "%s: left out: %" PRIu64 " tensors of layers that predict further tokens "
                       "(MTP)\n",
                       path, report->n_beyond);
    if (report->n_visual)
        moe_buf_printf(out, "%s: left out: %" PRIu64 " tensors of the part that sees images\n",
                       path, report->n_visual);
}
