/*
 * render_template TEMPLATE CONTEXTS: renders a chat template with the variables of each line of
 * CONTEXTS, a JSON object, and prints a line of JSON for each: {"text": ...} or {"error": ...}.
 * tests/fixtures/make_jinja.py compares with jinja2 by it.
 */
#define _GNU_SOURCE /* getline */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "prompt/jinja.h"

static void render(const struct moe_jinja *template, const json_t *variables)
{
    struct moe_buf out = {0};
    struct moe_err err = {0};
    struct moe_jinja_variable list[64];
    struct moe_jinja_input input = {
        .variables = list,
        .now = {.tm_year = 126, .tm_mon = 1, .tm_mday = 3, .tm_wday = 2, .tm_yday = 33}};
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)variables, name, value)
    {
        if (input.n_variables < sizeof list / sizeof list[0])
            list[input.n_variables++] = (struct moe_jinja_variable){name, value, false};
    }
    int status = moe_jinja_render(template, &input, &out, NULL, &err);
    json_t *line = status == MOE_OK
                       ? json_pack("{s:s%}", "text", out.size ? (char *)out.data : "", out.size)
                       : json_pack("{s:s}", "error", err.text);
    json_dumpf(line, stdout, JSON_ENSURE_ASCII);
    putchar('\n');
    json_decref(line);
    moe_buf_release(&out);
}

int main(int argc, char **argv)
{
    struct moe_buf source = {0};
    struct moe_err err = {0};
    struct moe_jinja *template = NULL;
    FILE *contexts = argc == 3 ? fopen(argv[2], "r") : NULL;
    int status = contexts ? moe_file_read_all(argv[1], 16 << 20, &source, &err) : 2;
    if (status == MOE_OK)
        status = moe_jinja_parse(&template, argv[1], source.size ? (char *)source.data : "",
                                 source.size, &err);
    if (status != MOE_OK)
        fprintf(stderr, "render_template: %s\n", err.text);
    char *line = NULL;
    size_t room = 0;
    for (ssize_t n; status == MOE_OK && (n = getline(&line, &room, contexts)) > 0;) {
        json_t *variables = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL);
        render(template, variables);
        json_decref(variables);
    }
    free(line);
    if (contexts)
        fclose(contexts);
    moe_jinja_free(template);
    moe_buf_release(&source);
    return status != MOE_OK;
}
