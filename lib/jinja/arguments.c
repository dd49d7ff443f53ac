#include <string.h>

#include "jinja/functions.h"

/* Where it stands among the values; UINT32_MAX: it was not given. */
static uint32_t find(const struct jinja_args *args, uint32_t i, const char *name)
{
    if (i < args->n - args->n_named)
        return i;
    for (uint32_t k = 0; name && k < args->n_named; k++)
        if (strcmp(args->names[k], name) == 0)
            return args->n - args->n_named + k;
    return UINT32_MAX;
}

bool jinja_has_arg(const struct jinja_args *args, uint32_t i, const char *name)
{
    return find(args, i, name) != UINT32_MAX;
}

struct jinja_value jinja_arg(const struct jinja_args *args, uint32_t i, const char *name,
                             struct jinja_value otherwise)
{
    uint32_t at = find(args, i, name);
    return at == UINT32_MAX ? otherwise : args->values[at];
}

struct jinja_value jinja_need(struct jinja_run *run, const struct jinja_args *args, uint32_t i,
                              const char *name)
{
    if (!jinja_has_arg(args, i, name))
        jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "an argument is missing");
    return jinja_arg(args, i, name, jinja_none());
}

const struct jinja_text *jinja_need_text(struct jinja_run *run, const struct jinja_args *args,
                                         uint32_t i, const char *name)
{
    struct jinja_value v = jinja_need(run, args, i, name);
    if (v.kind != JINJA_TEXT)
        jinja_wrong(run, args, "a text", v);
    return v.as.text;
}

int64_t jinja_whole_arg(struct jinja_run *run, const struct jinja_args *args, uint32_t i,
                        const char *name, int64_t otherwise)
{
    struct jinja_value v = jinja_arg(args, i, name, jinja_int(otherwise));
    if (!jinja_is_whole(v))
        jinja_wrong(run, args, "a whole number", v);
    return jinja_whole(v);
}

void jinja_at_most(struct jinja_run *run, const struct jinja_args *args, uint32_t most)
{
    if (args->n - args->n_named > most)
        jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "there are too many arguments");
}

void jinja_wrong(struct jinja_run *run, const struct jinja_args *args, const char *what,
                 struct jinja_value v)
{
    if (v.kind == JINJA_UNDEFINED && v.as.missing)
        jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "'%.60s' is undefined", v.as.missing);
    jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "expected %s, not a value of type %s", what,
               jinja_kind_name(v));
}

/* ---- By name ---- */

static jinja_call_fn *find_in(const struct jinja_named *table, const char *name)
{
    for (; table->name; table++)
        if (strcmp(table->name, name) == 0)
            return table->call;
    return NULL;
}

jinja_call_fn *jinja_find_filter(const struct jinja_run *run, const char *name)
{
    jinja_call_fn *call = find_in(run->names->filters[0], name);
    return call ? call : find_in(run->names->filters[1], name);
}

jinja_call_fn *jinja_find_test(const struct jinja_run *run, const char *name)
{
    return find_in(run->names->tests, name);
}

struct jinja_value jinja_filter(struct jinja_run *run, const char *name,
                                const struct jinja_args *args)
{
    jinja_call_fn *call = jinja_find_filter(run, name);
    if (!call)
        jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "there is no filter '%.60s'", name);
    jinja_step(run, args->at, 1);
    return call(run, NULL, args);
}

bool jinja_test(struct jinja_run *run, const char *name, const struct jinja_args *args)
{
    jinja_call_fn *call = jinja_find_test(run, name);
    if (!call)
        jinja_fail(&run->heap, args->at, MOE_ERR_FORMAT, "there is no test '%.60s'", name);
    jinja_step(run, args->at, 1);
    return jinja_true(call(run, NULL, args));
}
