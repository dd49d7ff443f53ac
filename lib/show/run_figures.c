#include "show/run_figures.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "fmt/json.h"

enum { MAX_BYTES = 1 << 20 };

bool moe_run_figures_is(const char *path)
{
    char text[64] = "";
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    text[n] = 0;
    return text[strspn(text, " \t\r\n")] == '{';
}

/* A number that is not below 0; missing: -1. */
static int get(const char *name, const json_t *object, const char *key, double *out,
               struct moe_err *err)
{
    *out = -1;
    int status = moe_json_get_double(name, object, key, false, out, err);
    if (status == MOE_OK && *out < 0 && *out != -1)
        status =
            moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' is %g, expected 0 or more", name, key, *out);
    return status;
}

static double per(double x, double tokens)
{
    return x >= 0 && tokens > 0 ? x / tokens : -1;
}

static int read_phase(struct moe_run_phase *p, const char *name, const json_t *root,
                      const char *key, struct moe_err *err)
{
    const json_t *object = json_object_get(root, key);
    double loads = -1, read = -1;
    if (!json_is_object(object))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: no '%s': not what moe-run --stats-json writes",
                        name, key);
    struct {
        const char *key;
        double *to;
    } const members[] = {
        {"tokens", &p->tokens},     {"tokens_per_s", &p->tokens_per_second},
        {"hit_rate", &p->hit_rate}, {"bytes_per_token", &p->bytes_per_token},
        {"loads", &loads},          {"read_s", &read},
    };
    int status = MOE_OK;
    for (size_t i = 0; i < sizeof members / sizeof members[0] && status == MOE_OK; i++)
        status = get(name, object, members[i].key, members[i].to, err);
    for (enum moe_component c = 0; c < MOE_N_COMPONENTS && status == MOE_OK; c++) {
        double seconds = -1;
        status = get(name, object, moe_component_name(c)->run_key, &seconds, err);
        p->components.seconds[c] = per(seconds, p->tokens);
    }
    p->loads_per_token = per(loads, p->tokens);
    p->link_seconds = per(read, p->tokens);
    return status;
}

int moe_run_figures_read(struct moe_run_figures *out, const char *path, struct moe_err *err)
{
    json_t *root = NULL;
    const char *strategy = NULL;
    *out = (struct moe_run_figures){.memory_bytes = 0};
    int status = moe_json_read(&root, path, MAX_BYTES, MOE_JSON_CONFIG_MEMORY, err);
    if (status == MOE_OK)
        status = moe_json_get_text(path, root, "strategy", true, &strategy, err);
    if (status == MOE_OK)
        status = get(path, root, "memory_budget_bytes", &out->memory_bytes, err);
    if (status == MOE_OK)
        status = read_phase(&out->decode, path, root, "decode", err);
    if (status == MOE_OK)
        status = read_phase(&out->prefill, path, root, "prefill", err);
    if (status == MOE_OK)
        snprintf(out->strategy, sizeof out->strategy, "%s", strategy);
    moe_json_free(root);
    return status;
}
