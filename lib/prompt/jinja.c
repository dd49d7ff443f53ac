/* Jinja's interface: parsing and rendering, and the jump out of both on errors. */
#include "prompt/jinja.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "prompt/jinja_functions.h"
#include "prompt/jinja_render.h"

enum {
    MAX_SOURCE = 4 << 20,
    PARSE_MEMORY = 256 << 20,
    STEPS = 8 * 1000 * 1000,
    OUTPUT = 64 << 20,
    RENDER_MEMORY = 512 << 20,
    DEPTH = 100,
    STACK = 1000,
};

struct moe_jinja {
    struct jinja_heap heap; /* owns the tree */
    struct jinja_node *first;
};

/* ---- Parsing ---- */

/* Calls setjmp; nothing else may lie between it and code that jumps. */
static int parse_source(struct moe_jinja *t, const char *source, uint64_t n)
{
    if (setjmp(t->heap.out) == 0)
        t->first = jinja_parse(&t->heap, source, n);
    return t->heap.status;
}

int moe_jinja_parse(struct moe_jinja **out, const char *name, const char *source, uint64_t n,
                    struct moe_err *err)
{
    *out = NULL;
    if (n > MAX_SOURCE)
        return moe_fail(err, MOE_ERR_LIMIT, "%s: a template of %llu bytes is too large", name,
                        (unsigned long long)n);
    struct moe_jinja *t = moe_alloc(1, sizeof *t, err);
    if (!t)
        return MOE_ERR_MEMORY;
    t->heap = (struct jinja_heap){.limit = PARSE_MEMORY, .name = name, .err = err};
    int status = parse_source(t, source, n);
    t->heap.err = NULL; /* the caller's, for this call only */
    if (status != MOE_OK) {
        moe_jinja_free(t);
        return status;
    }
    *out = t;
    return MOE_OK;
}

void moe_jinja_free(struct moe_jinja *t)
{
    if (!t)
        return;
    jinja_heap_free(&t->heap);
    free(t);
}

/* ---- Rendering ---- */

/* Makes the outermost scope of the variables. */
static struct jinja_scope *variables(struct jinja_run *run)
{
    struct jinja_scope *scope = jinja_scope(run, NULL);
    for (uint32_t i = 0; i < run->input->n_variables; i++) {
        const struct moe_jinja_variable *v = &run->input->variables[i];
        jinja_name(run, scope, v->name, jinja_from_json(run, v->value, v->caller));
    }
    return scope;
}

/* Calls setjmp, like parse. */
static int render(struct jinja_run *run, const struct moe_jinja *t)
{
    if (setjmp(run->heap.out) == 0)
        jinja_execute(run, jinja_scope(run, variables(run)), t->first);
    return run->heap.status;
}

static int hand_over(const struct jinja_builder *text, const struct moe_jinja *t, uint64_t most,
                     struct moe_buf *out, struct moe_buf *words, struct moe_err *err)
{
    uint64_t base = out->size;
    if (text->n > most)
        return moe_fail(err, MOE_ERR_LIMIT, "%s: the template writes more than %llu bytes",
                        t->heap.name, (unsigned long long)most);
    moe_buf_append(out, text->n ? text->bytes : "", text->n);
    for (uint32_t i = 0; words && i < text->n_parts; i++) {
        const struct moe_span span = {base + text->parts[i].begin,
                                      text->parts[i].end - text->parts[i].begin};
        moe_buf_append(words, &span, sizeof span);
    }
    if (out->failed || (words && words->failed))
        return moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory: what the template writes",
                        t->heap.name);
    return MOE_OK;
}

static const struct jinja_names names = {{jinja_filters_of_values, jinja_filters_of_lists},
                                         jinja_test_table};

int moe_jinja_render(const struct moe_jinja *t, const struct moe_jinja_input *input,
                     struct moe_buf *out, struct moe_buf *words, struct moe_err *err)
{
    struct jinja_run *run = moe_alloc(1, sizeof *run, err);
    if (!run)
        return MOE_ERR_MEMORY;
    struct jinja_builder text = {0};
    const struct moe_jinja_limits *l = &input->limits;
    *run = (struct jinja_run){
        .heap = {.limit = l->memory ? l->memory : RENDER_MEMORY, .name = t->heap.name, .err = err},
        .input = input,
        .names = &names,
        .steps_left = l->steps ? l->steps : STEPS,
        .depth_left = l->depth ? l->depth : DEPTH,
        .stack_left = STACK,
        .out = &text,
    };
    int status = render(run, t);
    if (status == MOE_OK)
        status = hand_over(&text, t, l->output ? l->output : OUTPUT, out, words, err);
    jinja_heap_free(&run->heap);
    free(run);
    return status;
}
