/* Tests: what stands behind "is". */
#include <string.h>

#include "base/text.h"
#include "jinja/functions.h"
#include "jinja/letters.h"

#define TEST(name, expression)                                                                     \
    static struct jinja_value name(struct jinja_run *run, const struct jinja_function *self,       \
                                   const struct jinja_args *args)                                  \
    {                                                                                              \
        struct jinja_value v = args->values[0];                                                    \
        return jinja_bool(expression);                                                             \
    }

/* The value that v is compared with. */
static struct jinja_value other(struct jinja_run *run, const struct jinja_args *args)
{
    return jinja_need(run, args, 1, NULL);
}

static int64_t remainder_of(struct jinja_run *run, const struct jinja_args *args, int64_t by)
{
    struct jinja_value v = args->values[0];
    if (!jinja_is_whole(v) || by == 0)
        jinja_wrong(run, args, "a whole number", v);
    return by == -1 ? 0 : jinja_whole(v) % by;
}

static bool has_name(const struct jinja_run *run, struct jinja_value v,
                     jinja_call_fn *(*find)(const struct jinja_run *, const char *))
{
    char name[64] = "";
    if (v.kind != JINJA_TEXT || v.as.text->n >= sizeof name)
        return false;
    memcpy(name, v.as.text->bytes, v.as.text->n);
    return find(run, name) != NULL;
}

static bool all_of_case(struct jinja_run *run, const struct jinja_args *args, const char *method)
{
    struct jinja_value v = args->values[0];
    if (v.kind != JINJA_TEXT)
        jinja_wrong(run, args, "a text", v);
    return jinja_true(jinja_call(run, jinja_method(run, args->at, v, method),
                                 &(struct jinja_args){args->at, 0, 0, NULL, NULL}));
}

TEST(t_defined, v.kind != JINJA_UNDEFINED)
TEST(t_undefined, v.kind == JINJA_UNDEFINED)
TEST(t_none, v.kind == JINJA_NONE)
TEST(t_boolean, v.kind == JINJA_BOOL)
TEST(t_true, v.kind == JINJA_BOOL && v.as.truth)
TEST(t_false, v.kind == JINJA_BOOL && !v.as.truth)
TEST(t_integer, v.kind == JINJA_INT)
TEST(t_float, v.kind == JINJA_FLOAT)
TEST(t_number, jinja_is_number(v))
TEST(t_string, v.kind == JINJA_TEXT)
TEST(t_mapping, v.kind == JINJA_DICT)
TEST(t_sequence, v.kind == JINJA_TEXT || jinja_is_sequence(v) || v.kind == JINJA_DICT ||
                     v.kind == JINJA_UNDEFINED)
TEST(t_iterable, v.kind == JINJA_TEXT || jinja_is_sequence(v) || v.kind == JINJA_DICT ||
                     v.kind == JINJA_UNDEFINED || v.kind == JINJA_LOOP || v.kind == JINJA_STREAM)
TEST(t_callable, v.kind == JINJA_FUNCTION || (v.kind == JINJA_LOOP && v.as.dict->calls))
TEST(t_escaped, false && v.kind)
TEST(t_even, v.kind != JINJA_UNDEFINED && remainder_of(run, args, 2) == 0)
TEST(t_odd, v.kind != JINJA_UNDEFINED && remainder_of(run, args, 2) != 0)
TEST(t_divisibleby, v.kind != JINJA_UNDEFINED &&
                        remainder_of(run, args, jinja_whole_arg(run, args, 1, "num", 0)) == 0)
TEST(t_eq, jinja_equal(run, args->at, v, other(run, args)))
TEST(t_ne, !jinja_equal(run, args->at, v, other(run, args)))
TEST(t_lt, jinja_compare(run, args->at, v, other(run, args)) < 0)
TEST(t_le, jinja_compare(run, args->at, v, other(run, args)) <= 0)
TEST(t_gt, jinja_compare(run, args->at, v, other(run, args)) > 0)
TEST(t_ge, jinja_compare(run, args->at, v, other(run, args)) >= 0)
TEST(t_in, jinja_contains(run, args->at, other(run, args), v))
TEST(t_sameas, jinja_same(v, other(run, args)))
TEST(t_filter, has_name(run, v, jinja_find_filter))
TEST(t_test, has_name(run, v, jinja_find_test))
TEST(t_upper, v.kind != JINJA_UNDEFINED && all_of_case(run, args, "isupper"))
TEST(t_lower, v.kind != JINJA_UNDEFINED && all_of_case(run, args, "islower"))

const struct jinja_named jinja_test_table[] = {
    {"defined", t_defined},
    {"undefined", t_undefined},
    {"none", t_none},
    {"boolean", t_boolean},
    {"true", t_true},
    {"false", t_false},
    {"integer", t_integer},
    {"float", t_float},
    {"number", t_number},
    {"string", t_string},
    {"mapping", t_mapping},
    {"sequence", t_sequence},
    {"iterable", t_iterable},
    {"callable", t_callable},
    {"escaped", t_escaped},
    {"even", t_even},
    {"odd", t_odd},
    {"divisibleby", t_divisibleby},
    {"eq", t_eq},
    {"==", t_eq},
    {"equalto", t_eq},
    {"ne", t_ne},
    {"!=", t_ne},
    {"lt", t_lt},
    {"<", t_lt},
    {"lessthan", t_lt},
    {"le", t_le},
    {"<=", t_le},
    {"gt", t_gt},
    {">", t_gt},
    {"greaterthan", t_gt},
    {"ge", t_ge},
    {">=", t_ge},
    {"in", t_in},
    {"sameas", t_sameas},
    {"filter", t_filter},
    {"test", t_test},
    {"upper", t_upper},
    {"lower", t_lower},
    {NULL, NULL},
};
