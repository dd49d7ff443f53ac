/* Filters of lists and dictionaries. */
#include <stdlib.h>
#include <string.h>

#include "jinja/functions.h"
#include "jinja/letters.h"
#include "jinja/print.h"
#include "jinja/sort.h"

static struct jinja_value items_of(struct jinja_run *run, const struct jinja_args *args)
{
    return jinja_items(run, args->at, args->values[0]);
}

/* ---- Members by path ---- */

/* item.a.b or item[0], as "a.b" or a number names it. */
static struct jinja_value by_path(struct jinja_run *run, struct jinja_place at,
                                  struct jinja_value item, struct jinja_value path)
{
    if (path.kind != JINJA_TEXT)
        return jinja_subscript(run, at, item, path);
    const struct jinja_text *text = path.as.text;
    for (uint32_t i = 0, end; i <= text->n; i = end + 1) {
        const char *dot = i < text->n ? memchr(text->bytes + i, '.', text->n - i) : NULL;
        end = dot ? (uint32_t)(dot - text->bytes) : text->n;
        struct jinja_value key = jinja_part_of(run, text, i, end);
        char *rest, *name = jinja_take(&run->heap, key.as.text->n + 1, 1);
        memcpy(name, key.as.text->bytes, key.as.text->n);
        long number = strtol(name, &rest, 10);
        if (name[0] && !*rest)
            key = jinja_int(number);
        item = jinja_subscript(run, at, item, key);
    }
    return item;
}

/* What each item is judged by: itself, or its member named by the argument. */
static struct jinja_value key_of(struct jinja_run *run, const struct jinja_args *args,
                                 struct jinja_value item, struct jinja_value attribute)
{
    return attribute.kind == JINJA_NONE ? item : by_path(run, args->at, item, attribute);
}

/* ---- Of all items ---- */

static struct jinja_value f_length(struct jinja_run *run, const struct jinja_function *self,
                                   const struct jinja_args *args)
{
    return jinja_int(jinja_length(run, args->at, args->values[0]));
}

static struct jinja_value f_list(struct jinja_run *run, const struct jinja_function *self,
                                 const struct jinja_args *args)
{
    struct jinja_value from = items_of(run, args);
    struct jinja_value list = jinja_list(run, JINJA_LIST, from.as.list->n);
    for (uint32_t i = 0; i < from.as.list->n; i++)
        jinja_append(run, list, from.as.list->items[i]);
    return list;
}

static struct jinja_value f_first(struct jinja_run *run, const struct jinja_function *self,
                                  const struct jinja_args *args)
{
    struct jinja_value list = items_of(run, args);
    return list.as.list->n ? list.as.list->items[0] : jinja_undefined("the first item of nothing");
}

static struct jinja_value f_last(struct jinja_run *run, const struct jinja_function *self,
                                 const struct jinja_args *args)
{
    struct jinja_value list = items_of(run, args);
    uint32_t n = list.as.list->n;
    return n ? list.as.list->items[n - 1] : jinja_undefined("the last item of nothing");
}

static struct jinja_value f_join(struct jinja_run *run, const struct jinja_function *self,
                                 const struct jinja_args *args)
{
    struct jinja_value list = items_of(run, args), texts = jinja_list(run, JINJA_LIST, 0);
    struct jinja_value between = jinja_arg(args, 1, "d", jinja_words(run, ""));
    struct jinja_value attribute = jinja_arg(args, 2, "attribute", jinja_none());
    between = jinja_str(run, args->at, between);
    for (uint32_t i = 0; i < list.as.list->n; i++)
        jinja_append(
            run, texts,
            jinja_str(run, args->at, key_of(run, args, list.as.list->items[i], attribute)));
    return jinja_join(run, args->at, texts, between.as.text);
}

static struct jinja_value as_given(struct jinja_run *run, const struct jinja_function *self,
                                   const struct jinja_args *args)
{
    return args->values[0];
}

static struct jinja_value f_reverse(struct jinja_run *run, const struct jinja_function *self,
                                    const struct jinja_args *args)
{
    struct jinja_value list = items_of(run, args), back = jinja_list(run, JINJA_LIST, 0);
    bool text = args->values[0].kind == JINJA_TEXT;
    for (uint32_t i = list.as.list->n; i > 0; i--)
        jinja_append(run, back, list.as.list->items[i - 1]);
    if (text)
        return jinja_join(run, args->at, back, jinja_words(run, "").as.text);
    struct jinja_value *one = jinja_take(&run->heap, 1, sizeof *one);
    *one = back;
    return jinja_stream(run, as_given, &(struct jinja_args){args->at, 1, 0, one, NULL});
}

static struct jinja_value f_sum(struct jinja_run *run, const struct jinja_function *self,
                                const struct jinja_args *args)
{
    struct jinja_value list = items_of(run, args);
    struct jinja_value attribute = jinja_arg(args, 1, "attribute", jinja_none());
    struct jinja_value sum = jinja_arg(args, 2, "start", jinja_int(0));
    for (uint32_t i = 0; i < list.as.list->n; i++) {
        struct jinja_value v = key_of(run, args, list.as.list->items[i], attribute);
        int64_t whole;
        if (!jinja_is_number(v) || !jinja_is_number(sum))
            jinja_wrong(run, args, "a number", jinja_is_number(v) ? sum : v);
        if (!jinja_is_whole(v) || !jinja_is_whole(sum))
            sum = jinja_float(jinja_number(sum) + jinja_number(v));
        else if (__builtin_add_overflow(jinja_whole(sum), jinja_whole(v), &whole))
            jinja_fail(&run->heap, args->at, MOE_ERR_LIMIT, "the number is too large");
        else
            sum = jinja_int(whole);
    }
    return sum;
}

static struct jinja_value extreme(struct jinja_run *run, const struct jinja_args *args, int sign)
{
    struct jinja_value list = items_of(run, args);
    bool fold = !jinja_true(jinja_arg(args, 1, "case_sensitive", jinja_bool(false)));
    struct jinja_value attribute = jinja_arg(args, 2, "attribute", jinja_none()), best_key, best;
    if (list.as.list->n == 0)
        return jinja_undefined("the extreme of nothing");
    for (uint32_t i = 0; i < list.as.list->n; i++) {
        struct jinja_value key = key_of(run, args, list.as.list->items[i], attribute);
        key = fold ? jinja_folded(run, key) : key;
        if (i > 0 && sign * jinja_compare(run, args->at, key, best_key) <= 0)
            continue;
        best_key = key;
        best = list.as.list->items[i];
    }
    return best;
}

static struct jinja_value f_max(struct jinja_run *run, const struct jinja_function *self,
                                const struct jinja_args *args)
{
    return extreme(run, args, 1);
}

static struct jinja_value f_min(struct jinja_run *run, const struct jinja_function *self,
                                const struct jinja_args *args)
{
    return extreme(run, args, -1);
}

static struct jinja_value f_sort(struct jinja_run *run, const struct jinja_function *self,
                                 const struct jinja_args *args)
{
    struct jinja_value list = items_of(run, args), sorted = jinja_list(run, JINJA_LIST, 0);
    bool reverse = jinja_true(jinja_arg(args, 1, "reverse", jinja_bool(false)));
    bool fold = !jinja_true(jinja_arg(args, 2, "case_sensitive", jinja_bool(false)));
    struct jinja_value attribute = jinja_arg(args, 3, "attribute", jinja_none());
    uint32_t n = list.as.list->n;
    struct jinja_entry *order = jinja_take(&run->heap, n, sizeof *order);
    for (uint32_t i = 0; i < n; i++)
        order[i] = (struct jinja_entry){key_of(run, args, list.as.list->items[i], attribute),
                                        list.as.list->items[i]};
    jinja_sort(run, args->at, order, n, fold, reverse);
    for (uint32_t i = 0; i < n; i++)
        jinja_append(run, sorted, order[i].value);
    return sorted;
}

static struct jinja_value unique_now(struct jinja_run *run, const struct jinja_function *self,
                                     const struct jinja_args *args)
{
    struct jinja_value list = items_of(run, args), kept = jinja_list(run, JINJA_LIST, 0);
    struct jinja_value keys = jinja_list(run, JINJA_LIST, 0);
    bool fold = !jinja_true(jinja_arg(args, 1, "case_sensitive", jinja_bool(false)));
    struct jinja_value attribute = jinja_arg(args, 2, "attribute", jinja_none());
    for (uint32_t i = 0; i < list.as.list->n; i++) {
        struct jinja_value key = key_of(run, args, list.as.list->items[i], attribute);
        key = fold ? jinja_folded(run, key) : key;
        if (jinja_contains(run, args->at, keys, key))
            continue;
        jinja_append(run, keys, key);
        jinja_append(run, kept, list.as.list->items[i]);
    }
    return kept;
}

/* ---- Groups ---- */

static struct jinja_value batch_now(struct jinja_run *run, const struct jinja_function *self,
                                    const struct jinja_args *args)
{
    struct jinja_value list = items_of(run, args), rows = jinja_list(run, JINJA_LIST, 0), row;
    int64_t n = jinja_whole_arg(run, args, 1, "linecount", 0);
    struct jinja_value fill = jinja_arg(args, 2, "fill_with", jinja_none());
    if (n < 1)
        jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "a batch has at least one item");
    for (uint32_t i = 0; i < list.as.list->n; i++) {
        if (i % n == 0)
            jinja_append(run, rows, row = jinja_list(run, JINJA_LIST, 0));
        jinja_append(run, row, list.as.list->items[i]);
    }
    while (fill.kind != JINJA_NONE && list.as.list->n && row.as.list->n < n) {
        jinja_step(run, args->at, 1);
        jinja_append(run, row, fill);
    }
    return rows;
}

static struct jinja_value slice_now(struct jinja_run *run, const struct jinja_function *self,
                                    const struct jinja_args *args)
{
    struct jinja_value list = items_of(run, args), rows = jinja_list(run, JINJA_LIST, 0);
    int64_t n = jinja_whole_arg(run, args, 1, "slices", 0), from = 0;
    struct jinja_value fill = jinja_arg(args, 2, "fill_with", jinja_none());
    if (n < 1)
        jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "there is at least one slice");
    jinja_step(run, args->at, (uint64_t)n);
    int64_t each = list.as.list->n / n, more = list.as.list->n % n;
    for (int64_t k = 0; k < n; k++) {
        struct jinja_value row = jinja_list(run, JINJA_LIST, 0);
        int64_t take = each + (k < more);
        for (int64_t i = 0; i < take; i++)
            jinja_append(run, row, list.as.list->items[from + i]);
        from += take;
        if (fill.kind != JINJA_NONE && k >= more && more)
            jinja_append(run, row, fill);
        jinja_append(run, rows, row);
    }
    return rows;
}

static struct jinja_value f_groupby(struct jinja_run *run, const struct jinja_function *self,
                                    const struct jinja_args *args)
{
    struct jinja_value list = items_of(run, args), groups = jinja_list(run, JINJA_LIST, 0);
    struct jinja_value attribute = jinja_need(run, args, 1, "attribute");
    struct jinja_value otherwise = jinja_arg(args, 2, "default", jinja_none());
    uint32_t n = list.as.list->n;
    struct jinja_entry *order = jinja_take(&run->heap, n, sizeof *order);
    for (uint32_t i = 0; i < n; i++) {
        struct jinja_value key = by_path(run, args->at, list.as.list->items[i], attribute);
        key = key.kind == JINJA_UNDEFINED ? otherwise : key;
        order[i] = (struct jinja_entry){key, list.as.list->items[i]};
    }
    jinja_sort(run, args->at, order, n, false, false);
    for (uint32_t i = 0; i < n;) {
        struct jinja_value group = jinja_list(run, JINJA_TUPLE, 2);
        struct jinja_value members = jinja_list(run, JINJA_LIST, 0), key = order[i].key;
        for (; i < n && jinja_equal(run, args->at, order[i].key, key); i++)
            jinja_append(run, members, order[i].value);
        jinja_append(run, group, key);
        jinja_append(run, group, members);
        jinja_append(run, groups, group);
    }
    return groups;
}

static struct jinja_value items_now(struct jinja_run *run, const struct jinja_function *self,
                                    const struct jinja_args *args)
{
    struct jinja_value v = args->values[0];
    if (v.kind == JINJA_UNDEFINED)
        return jinja_list(run, JINJA_LIST, 0);
    if (v.kind != JINJA_DICT)
        jinja_wrong(run, args, "a dictionary", v);
    return jinja_call(run, jinja_method(run, args->at, v, "items"),
                      &(struct jinja_args){args->at, 0, 0, NULL, NULL});
}

static struct jinja_value f_dictsort(struct jinja_run *run, const struct jinja_function *self,
                                     const struct jinja_args *args)
{
    struct jinja_value v = args->values[0], list = jinja_list(run, JINJA_LIST, 0);
    bool fold = !jinja_true(jinja_arg(args, 1, "case_sensitive", jinja_bool(false)));
    struct jinja_value by = jinja_arg(args, 2, "by", jinja_words(run, "key"));
    if (v.kind != JINJA_DICT)
        jinja_wrong(run, args, "a dictionary", v);
    const struct jinja_entry *sorted =
        jinja_sorted_entries(run, args->at, v.as.dict, jinja_is_name(by, "value"), fold);
    bool reverse = jinja_true(jinja_arg(args, 3, "reverse", jinja_bool(false)));
    for (uint32_t i = 0; i < v.as.dict->n; i++) {
        const struct jinja_entry *entry = &sorted[reverse ? v.as.dict->n - 1 - i : i];
        struct jinja_value pair = jinja_list(run, JINJA_TUPLE, 2);
        jinja_append(run, pair, entry->key);
        jinja_append(run, pair, entry->value);
        jinja_append(run, list, pair);
    }
    return list;
}

/* ---- Each item through a filter or a test ---- */

/* The arguments that follow number `first`, behind an item. */
static struct jinja_args behind(struct jinja_run *run, const struct jinja_args *args,
                                uint32_t first, struct jinja_value item)
{
    uint32_t n = args->n > first ? args->n - first : 0;
    struct jinja_value *values = jinja_take(&run->heap, n + 1, sizeof *values);
    values[0] = item;
    if (n)
        memcpy(values + 1, args->values + first, n * sizeof *values);
    return (struct jinja_args){args->at, n + 1, args->n_named, values, args->names};
}

/* The items of what is true; of anything else, None too, there are none. */
static struct jinja_value items_if_any(struct jinja_run *run, const struct jinja_args *args)
{
    return jinja_true(args->values[0]) ? items_of(run, args) : jinja_list(run, JINJA_LIST, 0);
}

/* A filter's or test's name, argument number i. */
static const char *name_at(struct jinja_run *run, const struct jinja_args *args, uint32_t i)
{
    const struct jinja_text *text = jinja_need_text(run, args, i, NULL);
    char *name = jinja_take(&run->heap, text->n + 1, 1);
    memcpy(name, text->bytes, text->n);
    return name;
}

static struct jinja_value map_now(struct jinja_run *run, const struct jinja_function *self,
                                  const struct jinja_args *args)
{
    struct jinja_value list = items_if_any(run, args), mapped = jinja_list(run, JINJA_LIST, 0);
    bool positional = args->n - args->n_named > 1;
    struct jinja_value attribute = jinja_arg(args, UINT32_MAX, "attribute", jinja_none());
    struct jinja_value otherwise = jinja_arg(args, UINT32_MAX, "default", jinja_undefined(NULL));
    const char *filter = positional ? name_at(run, args, 1) : NULL;
    if (!positional && attribute.kind == JINJA_NONE)
        jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "map needs a filter or an attribute");
    for (uint32_t i = 0; i < list.as.list->n; i++) {
        struct jinja_value item = list.as.list->items[i];
        if (filter) {
            struct jinja_args inner = behind(run, args, 2, item);
            item = jinja_filter(run, filter, &inner);
        } else {
            item = by_path(run, args->at, item, attribute);
            item = item.kind == JINJA_UNDEFINED ? otherwise : item;
        }
        jinja_append(run, mapped, item);
    }
    return mapped;
}

/* The items of which a test, of a member (attribute) or of themselves, says `wanted`. */
static struct jinja_value select_items(struct jinja_run *run, const struct jinja_args *args,
                                       bool attribute, bool wanted)
{
    struct jinja_value list = items_if_any(run, args), kept = jinja_list(run, JINJA_LIST, 0);
    uint32_t at = attribute ? 2 : 1;
    const char *test = args->n - args->n_named > at ? name_at(run, args, at) : NULL;
    struct jinja_value path = attribute ? jinja_need(run, args, 1, "attribute") : jinja_none();
    for (uint32_t i = 0; i < list.as.list->n; i++) {
        struct jinja_value item = key_of(run, args, list.as.list->items[i], path);
        bool is = jinja_true(item);
        if (test) {
            struct jinja_args inner = behind(run, args, at + 1, item);
            is = jinja_test(run, test, &inner);
        }
        if (is == wanted)
            jinja_append(run, kept, list.as.list->items[i]);
    }
    return kept;
}

static struct jinja_value select_now(struct jinja_run *run, const struct jinja_function *self,
                                     const struct jinja_args *args)
{
    return select_items(run, args, false, true);
}

static struct jinja_value reject_now(struct jinja_run *run, const struct jinja_function *self,
                                     const struct jinja_args *args)
{
    return select_items(run, args, false, false);
}

static struct jinja_value selectattr_now(struct jinja_run *run, const struct jinja_function *self,
                                         const struct jinja_args *args)
{
    return select_items(run, args, true, true);
}

static struct jinja_value rejectattr_now(struct jinja_run *run, const struct jinja_function *self,
                                         const struct jinja_args *args)
{
    return select_items(run, args, true, false);
}

/* Filters that Jinja has as generators: nothing is computed, or fails, before an item is asked for.
 */
#define LATER(name)                                                                                \
    static struct jinja_value f_##name(struct jinja_run *run, const struct jinja_function *self,   \
                                       const struct jinja_args *args)                              \
    {                                                                                              \
        return jinja_stream(run, name##_now, args);                                                \
    }
LATER(batch)
LATER(slice)
LATER(unique)
LATER(items)
LATER(map)
LATER(select)
LATER(reject)
LATER(selectattr)
LATER(rejectattr)

const struct jinja_named jinja_filters_of_lists[] = {
    {"length", f_length},
    {"count", f_length},
    {"list", f_list},
    {"first", f_first},
    {"last", f_last},
    {"join", f_join},
    {"reverse", f_reverse},
    {"sum", f_sum},
    {"max", f_max},
    {"min", f_min},
    {"sort", f_sort},
    {"unique", f_unique},
    {"batch", f_batch},
    {"slice", f_slice},
    {"groupby", f_groupby},
    {"items", f_items},
    {"dictsort", f_dictsort},
    {"map", f_map},
    {"select", f_select},
    {"reject", f_reject},
    {"selectattr", f_selectattr},
    {"rejectattr", f_rejectattr},
    {NULL, NULL},
};
