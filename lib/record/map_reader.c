#include "record/map_reader.h"

#include <inttypes.h>
#include <string.h>

#define MAX_WHOLE (UINT64_C(1) << 53)

enum { MAX_BITS = 32 };

static int read_text(struct map_reader *r, struct moe_yaml_node *map, const struct map_member *m,
                     char *to)
{
    const char *text = NULL;
    int status = moe_yaml_get_text(r->doc, map, m->key, true, &text, r->err);
    if (status != MOE_OK)
        return status;
    if (strlen(text) >= m->room)
        return moe_yaml_fail(r->doc, moe_yaml_get(map, m->key), r->err,
                             "'%s' is longer than %zu bytes", m->key, m->room - 1);
    if (!text[0])
        return moe_yaml_fail(r->doc, moe_yaml_get(map, m->key), r->err, "'%s' is empty", m->key);
    memcpy(to, text, strlen(text) + 1);
    return MOE_OK;
}

int map_read_double(struct map_reader *r, struct moe_yaml_node *map, const char *key,
                    enum map_kind kind, double *to)
{
    double most = kind == MAP_SHARE ? 1 : kind == MAP_POINTS ? 100 : 0; /* 0: any */
    int status = moe_yaml_get_double(r->doc, map, key, true, to, r->err);
    if (status != MOE_OK || kind == MAP_CHANGE)
        return status;
    if (most > 0 && !(*to >= 0 && *to <= most))
        return moe_yaml_fail(r->doc, moe_yaml_get(map, key), r->err, "'%s' must be from 0 to %g",
                             key, most);
    if (*to < 0)
        return moe_yaml_fail(r->doc, moe_yaml_get(map, key), r->err, "'%s' must be at least 0",
                             key);
    return MOE_OK;
}

int map_read_bits(struct map_reader *r, struct moe_yaml_node *map, const char *key, uint32_t *to)
{
    int status = moe_yaml_get_u32(r->doc, map, key, MAX_BITS, true, to, r->err);
    if (status == MOE_OK && *to == 0)
        status = moe_yaml_fail(r->doc, moe_yaml_get(map, key), r->err, "'%s' must be above 0", key);
    return status;
}

static int read_member(struct map_reader *r, struct moe_yaml_node *map, const struct map_member *m,
                       void *to)
{
    switch (m->kind) {
    case MAP_TEXT:
        return read_text(r, map, m, to);
    case MAP_COUNT:
        return moe_yaml_get_u32(r->doc, map, m->key, UINT32_MAX, true, to, r->err);
    case MAP_BITS:
        return map_read_bits(r, map, m->key, to);
    case MAP_WHOLE:
        return moe_yaml_get_u64(r->doc, map, m->key, MAX_WHOLE, true, to, r->err);
    case MAP_FINGERPRINT:
        return moe_yaml_get_fingerprint(r->doc, map, m->key, true, to, r->err);
    case MAP_FLAG:
        return moe_yaml_get_bool(r->doc, map, m->key, true, to, r->err);
    case MAP_AMOUNT:
    case MAP_SHARE:
    case MAP_POINTS:
    case MAP_CHANGE:
        return map_read_double(r, map, m->key, m->kind, to);
    }
    return MOE_OK;
}

int map_read_members(struct map_reader *r, struct moe_yaml_node *map, const struct map_table *table,
                     void *to)
{
    int status = MOE_OK;
    for (size_t i = 0; i < table->n && status == MOE_OK; i++)
        status = read_member(r, map, &table->members[i], (char *)to + table->members[i].at);
    return status;
}

int map_read_loss(struct map_reader *r, struct moe_yaml_node *map, const char *key,
                  struct moe_loss *loss)
{
    struct moe_yaml_node *node = NULL;
    int status = moe_yaml_get_map(r->doc, map, key, false, &node, r->err);
    if (!node)
        return status;
    status = map_read_members(r, node, &map_loss, loss);
    if (status == MOE_OK && (loss->tokens == 0 || loss->documents > loss->tokens))
        status = moe_yaml_fail(r->doc, node, r->err,
                               "'%s' must have 'tokens', and at least as many as 'documents'", key);
    return status;
}

int map_find_variant(struct map_reader *r, const struct moe_yaml_node *node, const char *name,
                     uint32_t *variant)
{
    for (uint32_t v = 0; v < r->map->n_variants; v++)
        if (strcmp(name, r->map->variants[v]) == 0) {
            *variant = v;
            return MOE_OK;
        }
    return moe_yaml_fail(r->doc, node, r->err, "'%.60s' is none of the variants", name);
}

static int read_variant(struct map_reader *r, struct moe_yaml_node *map, const char *key,
                        uint32_t *variant)
{
    const char *name = NULL;
    int status = moe_yaml_get_text(r->doc, map, key, true, &name, r->err);
    return status == MOE_OK ? map_find_variant(r, moe_yaml_get(map, key), name, variant) : status;
}

int map_read_pair(struct map_reader *r, struct moe_yaml_node *map, const char *high_key,
                  const char *low_key, uint32_t *high, uint32_t *low)
{
    int status = read_variant(r, map, high_key, high);
    if (status == MOE_OK)
        status = read_variant(r, map, low_key, low);
    if (status == MOE_OK && *low <= *high)
        status = moe_yaml_fail(r->doc, moe_yaml_get(map, low_key), r->err,
                               "'%s' must be a lower variant than '%s'", low_key, high_key);
    return status;
}

int map_read_items(struct map_reader *r, struct moe_yaml_node *map, const char *key, uint32_t max,
                   int (*read)(struct map_reader *r, struct moe_yaml_node *item, uint32_t i),
                   uint32_t *n)
{
    struct moe_yaml_node *list = NULL;
    uint64_t found = 0;
    uint32_t i = 0;
    int status = moe_yaml_get_list(r->doc, map, key, false, &list, &found, r->err);
    if (status == MOE_OK && found > max)
        return moe_yaml_fail(r->doc, list, r->err, "'%s' must not have more than %" PRIu32 " items",
                             key, max);
    *n = (uint32_t)found;
    for (struct moe_yaml_node *m = list ? moe_yaml_first(list) : NULL; m && status == MOE_OK;
         m = moe_yaml_next(m)) {
        status = moe_yaml_item_map(r->doc, m, r->err);
        if (status == MOE_OK)
            status = read(r, m, i++);
    }
    return status;
}

int map_read_list(struct map_reader *r, struct moe_yaml_node *map, const char *key, uint64_t n,
                  struct moe_yaml_node **list)
{
    uint64_t found = 0;
    int status = moe_yaml_get_list(r->doc, map, key, true, list, &found, r->err);
    if (status == MOE_OK && found != n)
        status = moe_yaml_fail(r->doc, *list, r->err,
                               "'%s' must have %" PRIu64 " items, not %" PRIu64, key, n, found);
    return status;
}
