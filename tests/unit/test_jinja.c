#define _DEFAULT_SOURCE
/* Templates against jinja2's own output; refusals say where, and nothing grows without bound. */
#include "../test.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "prompt/jinja.h"

static const struct tm DAY = {
    .tm_year = 126, .tm_mon = 1, .tm_mday = 3, .tm_wday = 2, .tm_yday = 33};

/* Renders; *text is freed by the caller, NULL where that fails. */
static int render(const char *source, const json_t *variables, const struct moe_jinja_limits *l,
                  char **text, struct moe_buf *words, struct moe_err *err)
{
    struct moe_jinja *template;
    struct moe_buf out = {0};
    struct moe_jinja_variable list[64];
    struct moe_jinja_input input = {.variables = list, .now = DAY};
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)variables, name, value) list[input.n_variables++] =
        (struct moe_jinja_variable){name, value, strcmp(name, "messages") == 0};
    if (l)
        input.limits = *l;
    *text = NULL;
    int status = moe_jinja_parse(&template, "t", source, strlen(source), err);
    if (status == MOE_OK)
        status = moe_jinja_render(template, &input, &out, words, err);
    if (status == MOE_OK)
        *text = strdup(out.size ? (char *)out.data : "");
    moe_jinja_free(template);
    moe_buf_release(&out);
    return status;
}

/* tests/fixtures/make_jinja.py: what jinja2 made of the same templates. */
static void templates_render_as_jinja2_does(void **state)
{
    json_t *all = json_load_file("tests/fixtures/jinja/expected.json", 0, NULL), *one;
    const json_t *variables = json_object_get(all, "variables");
    size_t i, n_refused = 0;
    assert_non_null(all);
    json_array_foreach(json_object_get(all, "cases"), i, one)
    {
        const char *source = json_string_value(json_object_get(one, "template"));
        const json_t *want = json_object_get(one, "text");
        struct moe_err err = {0};
        char *text;
        int status = render(source, variables, NULL, &text, NULL, &err);
        if (json_is_null(want) != (status != MOE_OK))
            fail_msg("%s: %s", source, status == MOE_OK ? text : err.text);
        if (status == MOE_OK && strcmp(text, json_string_value(want)) != 0)
            fail_msg("%s:\n%s\nwanted\n%s", source, text, json_string_value(want));
        n_refused += status != MOE_OK;
        free(text);
    }
    assert_true(i > 140 && n_refused > 30 && n_refused < 60);
    json_decref(all);
}

static void refusals_say_where(void **state)
{
    static const struct {
        const char *source, *text;
        int status;
    } cases[] = {
        {"a\n {{ raise_exception('No ' ~ 7) }}",
         "t, line 2, column 20: the template refuses this: No 7", MOE_ERR_USAGE},
        {"{{ 1 +\n nope.x }}", "t, line 2, column 6: 'nope' is undefined", MOE_ERR_FORMAT},
        {"{% if x %}\n", "t, line 1, column 11: the template ends where", MOE_ERR_FORMAT},
        {"x {% include 'y' %}", "t, line 1, column 3: chat templates cannot have 'include'",
         MOE_ERR_UNSUPPORTED},
        {"{{ [].insert(0, 1) }}", "'insert' would change a value", MOE_ERR_FORMAT},
        {"{{ 'a' + 1 }}", "'+' has no meaning for a str and a int", MOE_ERR_FORMAT},
        {"{{ 'a'.ljust(5, 3) }}", "expected a text, not a value of type int", MOE_ERR_FORMAT},
        {"{{ {'a': 1}[1:] }}", "a value of type dict has no slices", MOE_ERR_FORMAT},
        {"{{ dict([[1]]) }}", "a dictionary is made of another, of pairs", MOE_ERR_FORMAT},
        {"{{ 1|nofilter }}", "there is no filter 'nofilter'", MOE_ERR_FORMAT},
        {"{{ 'a }}", "the string has no end", MOE_ERR_FORMAT},
    };
    json_t *none = json_object();
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_err err = {0};
        char *text;
        assert_int_equal(render(cases[i].source, none, NULL, &text, NULL, &err), cases[i].status);
        if (!strstr(err.text, cases[i].text))
            fail_msg("%s: %s", cases[i].source, err.text);
    }
    json_decref(none);
}

/* Two lists that hold themselves. */
#define SELF "{% set a = [] %}{% set b = [] %}{% set _ = a.append(a) %}{% set _ = b.append(b) %}"

/* Whatever a template does, it ends, and in one sentence. */
static void bombs_are_bounded(void **state)
{
    static const char *const cases[] = {
        "{% for a in range(99999) %}{% for b in range(99999) %}{{ b }}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}"
        "{% endfor %}{{ ns.x }}",
        "{{ 'abcdefgh' * 999999999999 }}",
        "{{ [1] * 999999999999 }}",
        "{{ 'a'.ljust(999999999999) }}",
        "{{ 2 ** 99999999 }}",
        "{{ range(99999999) }}",
        "{{ dict.fromkeys(range(99999)) }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}"
        "{% endfor %}{{ ns.x }}",
        "{% for x in [[]] recursive %}{{ loop([[]]) }}{% endfor %}",
        SELF "{{ a }}",
        SELF "{{ a|tojson }}",
        SELF "{{ a == b }}",
        SELF "{{ a < b }}",
        SELF "{{ [a, b]|sort }}",
    };
    json_t *none = json_object();
    const struct moe_jinja_limits limits = {.memory = 16 << 20, .steps = 1000 * 1000};
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_err err = {0};
        char *text;
        if (render(cases[i], none, &limits, &text, NULL, &err) != MOE_ERR_LIMIT)
            fail_msg("%s: %s", cases[i], err.text);
        free(text);
    }
    json_decref(none);
}

static void check_deep(const char *head, const char *before, const char *middle, const char *after,
                       const char *tail)
{
    struct moe_buf source = {0};
    struct moe_err err = {0};
    char *text;
    json_t *none = json_object();
    moe_buf_text(&source, head);
    for (int i = 0; i < 20000; i++)
        moe_buf_text(&source, before);
    moe_buf_text(&source, middle);
    for (int i = 0; i < 20000; i++)
        moe_buf_text(&source, after);
    moe_buf_text(&source, tail);
    assert_int_equal(render((char *)source.data, none, NULL, &text, NULL, &err), MOE_ERR_LIMIT);
    moe_buf_release(&source);
    json_decref(none);
}

static void nesting_is_bounded(void **state)
{
    check_deep("{{ ", "(", "1", ")", " }}");
    check_deep("{{ ", "[", "1", "]", " }}");
    check_deep("{{ ", "-", "1", "", " }}");
    check_deep("{{ ", "not ", "1", "", " }}");
    check_deep("{{ 1", "", "", " + 1", " }}");
    check_deep("{{ 'a'", "", "", "|upper", " }}");
    check_deep("{{ {}", "", "", ".a", " }}");
    check_deep("{{ 1", "", "", " and 1", " }}");
    check_deep("", "{% if 1 %}", "x", "{% endif %}", "");
    check_deep("{% if 0 %}", "", "", "{% elif 0 %}", "{% endif %}");
    check_deep("{{ 1", "", "", " if 1 else 2", " }}");
}

/* Which bytes come from the caller: the rest may hold special tokens. */
static void check_words(const char *source, const char *want)
{
    json_t *variables = json_pack("{s:[{s:s,s:s}],s:s}", "messages", "role", "user", "content",
                                  " <s>a-b ", "bos_token", "<s>");
    struct moe_buf words = {0}, shown = {0};
    struct moe_err err = {0};
    char *text;
    assert_int_equal(render(source, variables, NULL, &text, &words, &err), MOE_OK);
    const struct moe_span *spans = (const void *)words.data;
    for (uint64_t i = 0, k = 0; i <= strlen(text); i++) {
        uint64_t n = words.size / sizeof *spans;
        if (k < n && spans[k].at + spans[k].n == i) {
            moe_buf_text(&shown, "}");
            k++;
        }
        if (k < n && spans[k].at == i)
            moe_buf_text(&shown, "{");
        moe_buf_append(&shown, text + i, text[i] != '\0');
    }
    assert_string_equal((char *)shown.data, want);
    moe_buf_release(&words);
    moe_buf_release(&shown);
    json_decref(variables);
    free(text);
}

static void callers_texts_are_known(void **state)
{
    check_words("{{ bos_token }}[{{ messages[0].content }}]", "<s>[{ <s>a-b }]");
    check_words("{{ '<s>' + messages[0].content|trim + '</s>' }}", "<s>{<s>a-b}</s>");
    check_words("{{ messages[0].content.split('-')[1] ~ '<s>' }}", "{b }<s>");
    check_words("{{ messages[0].content|replace('-', '<s>') }}", "{ <s>a}<s>{b }");
    check_words("{{ messages[0].content[1:4] * 2 }}!", "{<s><s>}!");
    check_words("{% set x %}<{{ messages[0].content|upper }}>{% endset %}{{ x }}", "<{ <S>A-B }>");
    check_words("{% macro m(t) %}({{ t }}){% endmacro %}{{ m(messages[0].content) }}",
                "({ <s>a-b })");
    check_words("{{ '%s|%s' % (bos_token, messages[0].content) }}", "<s>|{ <s>a-b }");
    check_words("{{ [messages[0].content, 'x']|join('<s>') }}", "{ <s>a-b }<s>x");
    check_words("{{ messages[0]|tojson }}",
                "{\"{role}\": \"{user}\", \"{content}\": \"{ <s>a-b }\"}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(templates_render_as_jinja2_does),
        cmocka_unit_test(refusals_say_where),
        cmocka_unit_test(bombs_are_bounded),
        cmocka_unit_test(nesting_is_bounded),
        cmocka_unit_test(callers_texts_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
