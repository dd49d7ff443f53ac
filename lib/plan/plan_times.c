/*
 * The times in the file of a plan: for each piece of a layer and an expert of each variant, seconds
 * by rows of the batch.
 */
#include <inttypes.h>
#include <string.h>

#include "plan/plan_file.h"

static int read_numbers(struct moe_record_reader *r, struct moe_yaml_node *map, const char *key,
                        double *out, uint32_t *n)
{
    struct moe_yaml_node *list = NULL;
    uint64_t found = 0;
    int status = moe_yaml_get_list(r->doc, map, key, false, &list, &found, r->err);
    if (status == MOE_OK && found > MOE_LINE_POINTS)
        status = moe_yaml_fail(r->doc, list, r->err, "'%s' must not have more than %d items", key,
                               MOE_LINE_POINTS);
    if (list && status == MOE_OK)
        status = moe_yaml_list_doubles(r->doc, list, 0, out, r->err);
    *n = (uint32_t)found;
    return status;
}

/* `rows` and `seconds`; without points where both are missing. */
static int read_line(struct moe_record_reader *r, struct moe_yaml_node *map, struct moe_line *line)
{
    uint32_t n_seconds = 0;
    int status = read_numbers(r, map, "rows", line->x, &line->n);
    if (status == MOE_OK)
        status = read_numbers(r, map, "seconds", line->y, &n_seconds);
    if (status == MOE_OK && line->n != n_seconds)
        return moe_yaml_fail(r->doc, map, r->err, "'rows' and 'seconds' differ in length");
    for (uint32_t i = 0; i < line->n && status == MOE_OK; i++)
        if (line->x[i] <= (i ? line->x[i - 1] : 0))
            status = moe_yaml_fail(r->doc, moe_yaml_get(map, "rows"), r->err,
                                   "'rows' must be above 0 and rising");
    return status;
}

static void write_line(struct moe_emit *e, const struct moe_line *line)
{
    moe_emit_doubles(e, "rows", line->x, line->n);
    moe_emit_doubles(e, "seconds", line->y, line->n);
}

static int read_pieces(struct moe_record_reader *r, struct moe_yaml_node *map,
                       const struct moe_member *m, void *record)
{
    struct moe_pace *pace = &((struct moe_plan *)record)->pace;
    int status = MOE_OK;
    (void)m;
    for (enum moe_piece piece = 0; piece < MOE_N_PIECES && status == MOE_OK; piece++) {
        struct moe_yaml_node *line = NULL;
        status = moe_yaml_get_map(r->doc, map, moe_piece_name(piece), false, &line, r->err);
        if (line)
            status = read_line(r, line, &pace->pieces[piece]);
    }
    return status;
}

static void write_pieces(struct moe_record_writer *w, const struct moe_member *m,
                         const void *record)
{
    const struct moe_pace *pace = &((const struct moe_plan *)record)->pace;
    (void)m;
    for (enum moe_piece piece = 0; piece < MOE_N_PIECES; piece++) {
        if (pace->pieces[piece].n == 0)
            continue;
        moe_emit_open_map(&w->emit, moe_piece_name(piece));
        write_line(&w->emit, &pace->pieces[piece]);
        moe_emit_close(&w->emit);
    }
}

static bool has_pieces(const struct moe_member *m, const void *record)
{
    const struct moe_pace *pace = &((const struct moe_plan *)record)->pace;
    bool any = false;
    (void)m;
    for (int i = 0; i < MOE_N_PIECES; i++)
        any |= pace->pieces[i].n > 0;
    return any;
}

static const struct moe_member_own pieces = {read_pieces, write_pieces, has_pieces};

/* Items are in two arrays: names in the plan, lines in its pace. */
static const struct moe_member variant_name =
    MOE_FIELD(MOE_ALWAYS, struct moe_plan, "precision", variants[0]);

static int read_variant(struct moe_record_reader *r, struct moe_yaml_node *item, struct moe_plan *p,
                        uint32_t v)
{
    int status = moe_yaml_item_map(r->doc, item, r->err);
    if (status == MOE_OK)
        status =
            moe_record_read_member(r, item, &variant_name, (char *)p + sizeof p->variants[0] * v);
    for (uint32_t i = 0; i < v && status == MOE_OK; i++)
        if (strcmp(p->variants[v], p->variants[i]) == 0)
            status = moe_yaml_fail(r->doc, item, r->err, "precision '%s' is there twice",
                                   p->variants[v]);
    return status == MOE_OK ? read_line(r, item, &p->pace.experts[v]) : status;
}

static int read_variants(struct moe_record_reader *r, struct moe_yaml_node *map,
                         const struct moe_member *m, void *record)
{
    struct moe_plan *p = record;
    struct moe_yaml_node *list = NULL;
    uint64_t n = 0;
    int status = moe_yaml_get_list(r->doc, map, m->key, false, &list, &n, r->err);
    if (status == MOE_OK && n > MOE_PACK_MAX_VARIANTS)
        return moe_yaml_fail(r->doc, list, r->err, "'%s' must not have more than %d items", m->key,
                             MOE_PACK_MAX_VARIANTS);
    for (struct moe_yaml_node *item = list ? moe_yaml_first(list) : NULL; item && status == MOE_OK;
         item = moe_yaml_next(item))
        status = read_variant(r, item, p, p->pace.n_variants++);
    return status;
}

static void write_variants(struct moe_record_writer *w, const struct moe_member *m,
                           const void *record)
{
    const struct moe_plan *p = record;
    moe_emit_open_list(&w->emit, m->key);
    for (uint32_t v = 0; v < p->pace.n_variants; v++) {
        moe_emit_open_map(&w->emit, NULL);
        moe_emit_text(&w->emit, variant_name.key, p->variants[v]);
        if (p->pace.experts[v].n)
            write_line(&w->emit, &p->pace.experts[v]);
        moe_emit_close(&w->emit);
    }
    moe_emit_close(&w->emit);
}

static bool has_variants(const struct moe_member *m, const void *record)
{
    (void)m;
    return ((const struct moe_plan *)record)->pace.n_variants > 0;
}

static const struct moe_member_own variants = {read_variants, write_variants, has_variants};

#define IN_FLIGHT(key, field) MOE_FIELD_IN(MOE_IF_SET, struct moe_plan, key, field, 0, 65535)
static const struct moe_member times_members[] = {
    FIELD("load_bytes_per_second", pace.load_rate),
    FIELD("load_piece_seconds", pace.loads.piece),
    FIELD("storage_bytes_per_second", pace.storage_rate),
    FIELD("storage_piece_seconds", pace.storage_piece_seconds),
    FIELD("joint_seconds", pace.joint),
    FIELD("head_seconds", pace.head),
    FIELD("predict_seconds", pace.predict),
    FIELD("host_slowdown", pace.host_slowdown),
    FIELD("attend_seconds", pace.attend),
    FIELD("positions", pace.positions),
    FIELD("load_latency_seconds", pace.loads.latency),
    IN_FLIGHT("demands_in_flight", pace.loads.demands_in_flight),
    IN_FLIGHT("prefetches_in_flight", pace.loads.prefetches_in_flight),
    FIELD("handling_seconds", pace.loads.handling),
    FIELD("handling_seconds_per_byte", pace.loads.handling_byte),
    FIELD("loading_slowdown", pace.loads.slowdown),
    FIELD("wake_seconds", pace.loads.wake),
    MOE_OWN(NULL, 0, pieces),
    MOE_OWN("experts", 0, variants),
};
const struct moe_record plan_times_record = {MOE_RECORD(times_members)};
