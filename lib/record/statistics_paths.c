#include "record/statistics_paths.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

/* Open addressing; n == 0 marks a free place. */
struct moe_path_table {
    struct moe_path_count *places;
    uint64_t room, used; /* room: a power of two */
    uint64_t limit;
    uint64_t largest; /* keys above it are dropped */
    bool sampled;
};

int moe_path_table_new(struct moe_path_table **out, uint64_t limit, struct moe_err *err)
{
    struct moe_path_table *table = moe_alloc(1, sizeof *table, err);
    *out = table;
    if (!table)
        return MOE_ERR_MEMORY;
    table->limit = limit;
    table->largest = UINT64_MAX;
    return MOE_OK;
}

void moe_path_table_free(struct moe_path_table *table)
{
    if (!table)
        return;
    free(table->places);
    free(table);
}

static struct moe_path_count *place_of(const struct moe_path_table *table, uint64_t key)
{
    uint64_t mask = table->room - 1, i = moe_hash64(&key, sizeof key) & mask;
    while (table->places[i].n && table->places[i].key != key)
        i = (i + 1) & mask;
    return &table->places[i];
}

/* Moves all keys up to `largest` into a table of so much room. */
static int rebuild(struct moe_path_table *table, uint64_t room, struct moe_err *err)
{
    struct moe_path_table old = *table;
    table->places = moe_alloc(room, sizeof *table->places, err);
    if (!table->places) {
        table->places = old.places;
        return MOE_ERR_MEMORY;
    }
    table->room = room;
    table->used = 0;
    for (uint64_t i = 0; i < old.room; i++) {
        if (!old.places[i].n || old.places[i].key > table->largest)
            continue;
        *place_of(table, old.places[i].key) = old.places[i];
        table->used++;
    }
    free(old.places);
    return MOE_OK;
}

static int compare(const void *a, const void *b)
{
    const struct moe_path_count *x = a, *y = b;
    return x->key < y->key ? -1 : x->key > y->key;
}

struct moe_path_count *moe_path_table_sorted(const struct moe_path_table *table, uint64_t *n,
                                             struct moe_err *err)
{
    *n = 0;
    struct moe_path_count *list = moe_alloc(table->used ? table->used : 1, sizeof *list, err);
    if (!list)
        return NULL;
    for (uint64_t i = 0; i < table->room; i++)
        if (table->places[i].n)
            list[(*n)++] = table->places[i];
    qsort(list, *n, sizeof *list, compare);
    /* Between two cuts the table holds more than the limit; the surplus is not returned. */
    if (table->limit && *n > table->limit)
        *n = table->limit;
    return list;
}

/* Drops all but the `limit` smallest keys. */
static int cut(struct moe_path_table *table, struct moe_err *err)
{
    uint64_t n;
    struct moe_path_count *list = moe_path_table_sorted(table, &n, err);
    if (!list)
        return MOE_ERR_MEMORY;
    table->largest = list[n - 1].key;
    table->sampled = true;
    free(list);
    return rebuild(table, table->room, err);
}

int moe_path_table_add(struct moe_path_table *table, uint64_t key, uint64_t n, struct moe_err *err)
{
    if (n == 0)
        return MOE_OK;
    if (key > table->largest) {
        table->sampled = true;
        return MOE_OK;
    }
    int status = MOE_OK;
    if (table->limit && table->used >= 2 * table->limit)
        status = cut(table, err);
    if (status == MOE_OK && 2 * (table->used + 1) > table->room)
        status = rebuild(table, table->room ? 2 * table->room : 64, err);
    if (status != MOE_OK || key > table->largest)
        return status;
    struct moe_path_count *place = place_of(table, key);
    table->used += place->n == 0;
    place->key = key;
    place->n += n;
    return MOE_OK;
}

uint64_t moe_path_table_used(const struct moe_path_table *table)
{
    return table->used;
}

uint64_t moe_path_table_bytes(uint64_t n_keys)
{
    uint64_t room = 64;
    while (room < 2 * (n_keys + 1))
        room *= 2;
    /* The table and the half as large one before it; the list, and qsort's copy of it. */
    return (room + room / 2 + 2 * n_keys) * sizeof(struct moe_path_count);
}

uint64_t moe_path_table_get(const struct moe_path_table *table, uint64_t key)
{
    return table->room ? place_of(table, key)->n : 0;
}

bool moe_path_table_sampled(const struct moe_path_table *table)
{
    return table->sampled || (table->limit && table->used > table->limit);
}

void moe_path_table_set_sampled(struct moe_path_table *table)
{
    table->sampled = true;
}
