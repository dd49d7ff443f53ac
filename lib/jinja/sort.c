#include "jinja/sort.h"

#include <string.h>

#include "jinja/letters.h"

struct jinja_value jinja_folded(struct jinja_run *run, struct jinja_value v)
{
    return v.kind == JINJA_TEXT ? jinja_lower(run, v.as.text) : v;
}

/* Merges the sorted halves [0, half) and [half, n) of items through `room`. */
static void merge(struct jinja_run *run, struct jinja_place at, struct jinja_entry *items,
                  uint32_t half, uint32_t n, bool reverse, struct jinja_entry *room)
{
    uint32_t a = 0, b = half, k = 0;
    memcpy(room, items, n * sizeof *items);
    while (a < half && b < n) {
        int order = jinja_compare(run, at, room[b].key, room[a].key);
        items[k++] = (reverse ? order > 0 : order < 0) ? room[b++] : room[a++];
    }
    while (a < half)
        items[k++] = room[a++];
    while (b < n)
        items[k++] = room[b++];
}

static void sort(struct jinja_run *run, struct jinja_place at, struct jinja_entry *items,
                 uint32_t n, bool reverse, struct jinja_entry *room)
{
    if (n < 2)
        return;
    sort(run, at, items, n / 2, reverse, room);
    sort(run, at, items + n / 2, n - n / 2, reverse, room);
    merge(run, at, items, n / 2, n, reverse, room);
}

void jinja_sort(struct jinja_run *run, struct jinja_place at, struct jinja_entry *items, uint32_t n,
                bool fold, bool reverse)
{
    for (uint32_t i = 0; fold && i < n; i++)
        items[i].key = jinja_folded(run, items[i].key);
    sort(run, at, items, n, reverse, jinja_take(&run->heap, n, sizeof *items));
}

struct jinja_entry *jinja_sorted_entries(struct jinja_run *run, struct jinja_place at,
                                         const struct jinja_dict *dict, bool by_value, bool fold)
{
    uint32_t n = dict->n;
    struct jinja_entry *order = jinja_take(&run->heap, n, sizeof *order);
    struct jinja_entry *sorted = jinja_take(&run->heap, n, sizeof *sorted);
    for (uint32_t i = 0; i < n; i++)
        order[i] = (struct jinja_entry){by_value ? dict->entries[i].value : dict->entries[i].key,
                                        jinja_int(i)};
    jinja_sort(run, at, order, n, fold, false);
    for (uint32_t i = 0; i < n; i++)
        sorted[i] = dict->entries[order[i].value.as.whole];
    return sorted;
}
