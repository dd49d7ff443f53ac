#include "plan/plan_reader.h"

#include <inttypes.h>
#include <string.h>

/* Whole numbers that a double, and so every reader of JSON, holds exactly. */
#define MAX_WHOLE (UINT64_C(1) << 53)

int plan_read_text(struct plan_reader *r, struct moe_yaml_node *map, const struct plan_member *m,
                   char *to)
{
    const char *text = NULL;
    int status = moe_yaml_get_text(r->doc, map, m->key, m->required, &text, r->err);
    if (!text)
        return status;
    if (strlen(text) >= m->room)
        return moe_yaml_fail(r->doc, moe_yaml_get(map, m->key), r->err,
                             "'%s' is longer than %zu bytes", m->key, m->room - 1);
    if (m->required && !text[0])
        return moe_yaml_fail(r->doc, moe_yaml_get(map, m->key), r->err, "'%s' is empty", m->key);
    memcpy(to, text, strlen(text) + 1);
    return MOE_OK;
}

static int read_double(struct plan_reader *r, struct moe_yaml_node *map,
                       const struct plan_member *m, double *to)
{
    double value = *to;
    bool is_share = m->kind == PLAN_SHARE;
    if (!moe_yaml_get(map, m->key) && !m->required)
        return MOE_OK;
    int status = moe_yaml_get_double(r->doc, map, m->key, m->required, &value, r->err);
    if (status == MOE_OK && m->kind != PLAN_CHANGE && (value < 0 || (is_share && value > 1)))
        status = moe_yaml_fail(r->doc, moe_yaml_get(map, m->key), r->err, "'%s' must be %s", m->key,
                               is_share ? "from 0 to 1" : "at least 0");
    *to = value;
    return status;
}

static int read_member(struct plan_reader *r, struct moe_yaml_node *map,
                       const struct plan_member *m, void *to)
{
    switch (m->kind) {
    case PLAN_TEXT:
        return plan_read_text(r, map, m, to);
    case PLAN_COUNT:
        return moe_yaml_get_u32(r->doc, map, m->key, UINT32_MAX, m->required, to, r->err);
    case PLAN_LAYERS:
        return moe_yaml_get_u32(r->doc, map, m->key, r->plan->n_layers, m->required, to, r->err);
    case PLAN_WHOLE:
        return moe_yaml_get_u64(r->doc, map, m->key, MAX_WHOLE, m->required, to, r->err);
    case PLAN_AMOUNT:
    case PLAN_FIGURE:
    case PLAN_SHARE:
    case PLAN_CHANGE:
        return read_double(r, map, m, to);
    case PLAN_FLAG:
        return moe_yaml_get_bool(r->doc, map, m->key, m->required, to, r->err);
    case PLAN_FINGERPRINT:
        return moe_yaml_get_fingerprint(r->doc, map, m->key, m->required, to, r->err);
    }
    return MOE_OK;
}

int plan_read_members(struct plan_reader *r, struct moe_yaml_node *map,
                      const struct plan_table *table, void *to)
{
    int status = MOE_OK;
    for (size_t i = 0; i < table->n && status == MOE_OK; i++)
        status = read_member(r, map, &table->members[i], (char *)to + table->members[i].at);
    return status;
}

int plan_read_section(struct plan_reader *r, const char *key, const struct plan_table *table)
{
    struct moe_yaml_node *map = NULL;
    int status = moe_yaml_get_map(r->doc, r->root, key, false, &map, r->err);
    return map ? plan_read_members(r, map, table, r->plan) : status;
}

int plan_read_items(struct plan_reader *r, struct moe_yaml_node *map, const char *key, uint32_t max,
                    int (*read)(struct plan_reader *r, struct moe_yaml_node *item, uint32_t i),
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

int plan_read_numbers(struct plan_reader *r, struct moe_yaml_node *list, uint64_t max,
                      uint32_t *out)
{
    int status = MOE_OK;
    for (struct moe_yaml_node *m = moe_yaml_first(list); m && status == MOE_OK;
         m = moe_yaml_next(m)) {
        uint64_t value = 0;
        status = moe_yaml_item_u64(r->doc, m, max, &value, r->err);
        *out++ = (uint32_t)value;
    }
    return status;
}
