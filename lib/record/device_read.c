/*
 * Reads device profiles.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fmt/yaml.h"
#include "record/device_format.h"

enum { MAX_FILE_BYTES = 1 << 20, MAX_COUNT = 1 << 24 };

static const struct device_member figure_source = {"source", DEVICE_TEXT, 0, MOE_DEVICE_TEXT,
                                                   false};

struct reader {
    struct moe_yaml *doc;
    struct moe_err *err;
};

static int read_text(struct reader *r, struct moe_yaml_node *map, const struct device_member *m,
                     char *to)
{
    const char *text = "";
    int status = moe_yaml_get_text(r->doc, map, m->key, m->required, &text, r->err);
    if (status == MOE_OK && strlen(text) >= m->room)
        return moe_yaml_fail(r->doc, map, r->err, "'%s' is longer than %zu bytes", m->key,
                             m->room - 1);
    if (status == MOE_OK && m->required && !text[0])
        return moe_yaml_fail(r->doc, map, r->err, "'%s' is empty", m->key);
    memcpy(to, text, strlen(text) + 1);
    return status;
}

static int check_figure(struct reader *r, struct moe_yaml_node *map, const char *key,
                        const struct moe_figure *f)
{
    if (f->value <= 0)
        return moe_yaml_fail(r->doc, map, r->err,
                             "'%s' must be above zero (what is not known is "
                             "left out)",
                             key);
    if (f->n_runs && (f->min <= 0 || f->min > f->value || f->max < f->value))
        return moe_yaml_fail(r->doc, map, r->err, "'%s': a median outside of min and max", key);
    return MOE_OK;
}

static int read_figure_mapping(struct reader *r, struct moe_yaml_node *map, struct moe_figure *f)
{
    int status = moe_yaml_get_double(r->doc, map, "value", true, &f->value, r->err);
    if (status == MOE_OK)
        status = moe_yaml_get_u32(r->doc, map, "runs", MAX_COUNT, false, &f->n_runs, r->err);
    if (status == MOE_OK)
        status = read_text(r, map, &figure_source, f->source);
    if (status == MOE_OK && f->n_runs)
        status = moe_yaml_get_double(r->doc, map, "min", true, &f->min, r->err);
    if (status == MOE_OK && f->n_runs)
        status = moe_yaml_get_double(r->doc, map, "max", true, &f->max, r->err);
    return status;
}

/* The member `node` of `map`: a number or a mapping. */
static int read_figure_node(struct reader *r, struct moe_yaml_node *map, struct moe_yaml_node *node,
                            struct moe_figure *f)
{
    const char *key = moe_yaml_key(node);
    int status = moe_yaml_length(node) ? read_figure_mapping(r, node, f)
                                       : moe_yaml_item_double(r->doc, node, &f->value, r->err);
    return status == MOE_OK ? check_figure(r, map, key, f) : status;
}

static int read_member(struct reader *r, struct moe_yaml_node *map, const struct device_member *m,
                       void *to)
{
    switch (m->kind) {
    case DEVICE_FIGURE: {
        struct moe_yaml_node *node = moe_yaml_get(map, m->key);
        return node ? read_figure_node(r, map, node, to) : MOE_OK;
    }
    case DEVICE_TEXT:
        return read_text(r, map, m, to);
    case DEVICE_COUNT:
        return moe_yaml_get_u32(r->doc, map, m->key, MAX_COUNT, m->required, to, r->err);
    case DEVICE_FLAG:
        return moe_yaml_get_bool(r->doc, map, m->key, m->required, to, r->err);
    case DEVICE_FINGERPRINT:
        return moe_yaml_get_fingerprint(r->doc, map, m->key, m->required, to, r->err);
    }
    return MOE_OK;
}

static int read_members(struct reader *r, struct moe_yaml_node *map,
                        const struct device_table *table, void *to)
{
    int status = MOE_OK;
    for (size_t i = 0; i < table->n && status == MOE_OK; i++)
        status = read_member(r, map, &table->members[i], (char *)to + table->members[i].at);
    return status;
}

/* A section that may be missing. */
static int read_section(struct reader *r, const char *key, const struct device_table *table,
                        void *to, struct moe_yaml_node **map)
{
    *map = NULL;
    int status = moe_yaml_get_map(r->doc, moe_yaml_root(r->doc), key, false, map, r->err);
    return *map && status == MOE_OK ? read_members(r, *map, table, to) : status;
}

/* A list of mappings, each read by the table into the next of items[max]. */
static int read_items(struct reader *r, struct moe_yaml_node *map, const char *key,
                      const struct device_table *table, void *items, size_t item_bytes,
                      uint32_t max, uint32_t *n_items)
{
    struct moe_yaml_node *list = NULL;
    uint64_t found = 0;
    int status = moe_yaml_get_list(r->doc, map, key, false, &list, &found, r->err);
    if (status == MOE_OK && found > max)
        return moe_yaml_fail(r->doc, list, r->err, "more than %" PRIu32 " %s", max, key);
    for (struct moe_yaml_node *m = list ? moe_yaml_first(list) : NULL; m && status == MOE_OK;
         m = moe_yaml_next(m)) {
        status = moe_yaml_item_map(r->doc, m, r->err);
        if (status == MOE_OK)
            status = read_members(r, m, table, (char *)items + *n_items * item_bytes);
        ++*n_items;
    }
    return status;
}

static int read_storage(struct reader *r, struct moe_device_storage *s)
{
    struct moe_yaml_node *map;
    int status = read_section(r, "storage", &device_storage, s, &map);
    if (!map || status != MOE_OK)
        return status;
    status = read_items(r, map, "reads", &device_reads, s->reads, sizeof s->reads[0],
                        MOE_DEVICE_MAX_READS, &s->n_reads);
    for (uint32_t i = 0; i < s->n_reads && status == MOE_OK; i++)
        if (s->reads[i].in_flight <= (i ? s->reads[i - 1].in_flight : 0))
            status = moe_yaml_fail(r->doc, map, r->err, "'reads' must have rising 'in_flight'");
    return status;
}

static int check_variants(struct reader *r, struct moe_yaml_node *map,
                          const struct moe_device_model *m)
{
    for (uint32_t i = 0; i < m->n_variants; i++)
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(m->variants[i].name, m->variants[j].name) == 0)
                return moe_yaml_fail(r->doc, map, r->err, "variant '%s' is there twice",
                                     m->variants[i].name);
    return MOE_OK;
}

/* expert_seconds: a mapping from variants to figures. */
static int read_experts(struct reader *r, struct moe_yaml_node *batch, struct moe_device *d,
                        struct moe_device_batch *b)
{
    struct moe_yaml_node *map = NULL;
    int status = moe_yaml_get_map(r->doc, batch, "expert_seconds", false, &map, r->err);
    if (map)
        b->n_experts = d->model.n_variants;
    for (struct moe_yaml_node *m = map ? moe_yaml_first(map) : NULL; m && status == MOE_OK;
         m = moe_yaml_next(m)) {
        int v = moe_device_variant(d, moe_yaml_key(m));
        status = v < 0 ? moe_yaml_fail(r->doc, m, r->err, "'%.60s' is none of the variants",
                                       moe_yaml_key(m))
                       : read_figure_node(r, map, m, &b->experts[v]);
    }
    return status;
}

static int read_model(struct reader *r, struct moe_device *d)
{
    struct moe_device_model *m = &d->model;
    struct moe_yaml_node *map, *list = NULL;
    uint64_t n = 0;
    uint32_t i = 0;
    int status = read_section(r, "model", &device_model, m, &map);
    d->has_model = map != NULL;
    if (!map || status != MOE_OK)
        return status;
    status = read_items(r, map, "variants", &device_variant, m->variants, sizeof m->variants[0],
                        MOE_DEVICE_MAX_VARIANTS, &m->n_variants);
    if (status == MOE_OK)
        status = check_variants(r, map, m);
    if (status == MOE_OK)
        status = read_items(r, map, "batches", &device_batch, m->batches, sizeof m->batches[0],
                            MOE_DEVICE_MAX_BATCHES, &m->n_batches);
    if (status == MOE_OK)
        status = moe_yaml_get_list(r->doc, map, "batches", false, &list, &n, r->err);
    for (struct moe_yaml_node *b = list ? moe_yaml_first(list) : NULL; b && status == MOE_OK;
         b = moe_yaml_next(b), i++) {
        status = read_experts(r, b, d, &m->batches[i]);
        if (status == MOE_OK && m->batches[i].rows <= (i ? m->batches[i - 1].rows : 0))
            status = moe_yaml_fail(r->doc, b, r->err, "'batches' must have rising 'rows'");
    }
    return status;
}

static int read_device(struct reader *r, struct moe_device *d)
{
    struct moe_yaml_node *map;
    int status = moe_yaml_check_format(r->doc, "moe-device", MOE_DEVICE_VERSION, NULL, r->err);
    if (status == MOE_OK)
        status = read_members(r, moe_yaml_root(r->doc), &device_root, d);
    if (status == MOE_OK)
        status = read_section(r, "host", &device_host, &d->host, &map);
    if (status == MOE_OK)
        status = read_section(r, "accelerator", &device_accelerator, &d->accelerator, &map);
    if (status == MOE_OK)
        status = read_storage(r, &d->storage);
    if (status == MOE_OK)
        status = read_model(r, d);
    return status == MOE_OK ? moe_yaml_check_known(r->doc, r->err) : status;
}

int moe_device_read(struct moe_device **out, const char *path, struct moe_err *err)
{
    struct reader r = {.err = err};
    *out = NULL;
    int status = moe_yaml_read(&r.doc, path, MAX_FILE_BYTES, err);
    struct moe_device *d = status == MOE_OK ? moe_alloc(1, sizeof *d, err) : NULL;
    if (status == MOE_OK)
        status = d ? read_device(&r, d) : MOE_ERR_MEMORY;
    moe_yaml_free(r.doc);
    if (status != MOE_OK) {
        free(d);
        return status;
    }
    *out = d;
    return MOE_OK;
}
