/*
 * Device profiles as YAML in blocks, figures as one-line mappings; or on one line as JSON.
 */
#include <inttypes.h>

#include "fmt/yaml.h"
#include "sched/device_format.h"

struct writer {
    struct moe_buf *out;
    bool json;
    int depth;
    bool first;  /* of its mapping or list */
    bool dashed; /* the "- " of a list's item stands there: the first key follows it */
};

static void put_string(struct writer *w, const char *text)
{
    if (!w->json) {
        moe_yaml_put_text(w->out, text);
        return;
    }
    moe_buf_text(w->out, "\"");
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p == '"' || *p == '\\')
            moe_buf_printf(w->out, "\\%c", *p);
        else if (*p < 0x20)
            moe_buf_printf(w->out, "\\u%04x", *p);
        else
            moe_buf_append(w->out, p, 1);
    }
    moe_buf_text(w->out, "\"");
}

static void put_indent(struct writer *w)
{
    if (w->json) {
        moe_buf_text(w->out, w->first ? "" : ",");
    } else if (!w->dashed) {
        for (int i = 0; i < w->depth; i++)
            moe_buf_text(w->out, "  ");
    }
    w->first = w->dashed = false;
}

static void put_key(struct writer *w, const char *key)
{
    put_indent(w);
    moe_buf_printf(w->out, w->json ? "\"%s\":" : "%s: ", key);
}

/* A mapping or a list under `key`; of YAML nothing but the deeper level. */
static void open_under(struct writer *w, const char *key, const char *bracket)
{
    put_indent(w);
    moe_buf_printf(w->out, w->json ? "\"%s\":%s" : "%s:\n", key, bracket);
    w->depth++;
    w->first = true;
}

static void close_under(struct writer *w, const char *bracket)
{
    moe_buf_text(w->out, w->json ? bracket : "");
    w->depth--;
    w->first = false;
}

static void open_item(struct writer *w)
{
    put_indent(w);
    moe_buf_text(w->out, w->json ? "{" : "- ");
    w->depth++;
    w->first = true;
    w->dashed = !w->json;
}

static void put_figure(struct writer *w, const struct moe_figure *f)
{
    const char *colon = w->json ? "\":" : ": ", *quote = w->json ? "\"" : "";
    const char *comma = w->json ? "," : ", ";
    const bool plain = f->n_runs == 0 && !f->source[0];
    if (!plain)
        moe_buf_printf(w->out, "{%svalue%s", quote, colon);
    moe_yaml_put_double(w->out, f->value);
    if (f->n_runs) {
        moe_buf_printf(w->out, "%s%smin%s", comma, quote, colon);
        moe_yaml_put_double(w->out, f->min);
        moe_buf_printf(w->out, "%s%smax%s", comma, quote, colon);
        moe_yaml_put_double(w->out, f->max);
        moe_buf_printf(w->out, "%s%sruns%s%" PRIu32, comma, quote, colon, f->n_runs);
    }
    if (f->source[0]) {
        moe_buf_printf(w->out, "%s%ssource%s", comma, quote, colon);
        put_string(w, f->source);
    }
    moe_buf_text(w->out, plain ? "" : "}");
}

static bool is_there(const struct device_member *m, const void *value)
{
    switch (m->kind) {
    case DEVICE_FIGURE:
        return ((const struct moe_figure *)value)->value > 0;
    case DEVICE_TEXT:
        return *(const char *)value != '\0';
    case DEVICE_FLAG:
        return *(const bool *)value;
    default:
        return true;
    }
}

static void put_member(struct writer *w, const struct device_member *m, const void *value)
{
    put_key(w, m->key);
    switch (m->kind) {
    case DEVICE_FIGURE:
        put_figure(w, value);
        break;
    case DEVICE_TEXT:
        put_string(w, value);
        break;
    case DEVICE_COUNT:
        moe_buf_printf(w->out, "%" PRIu32, *(const uint32_t *)value);
        break;
    case DEVICE_FLAG:
        moe_buf_text(w->out, "true");
        break;
    case DEVICE_FINGERPRINT:
        moe_buf_printf(w->out, "\"%016" PRIx64 "\"", *(const uint64_t *)value);
        break;
    }
    moe_buf_text(w->out, w->json ? "" : "\n");
}

static bool any_there(const struct device_table *table, const void *from)
{
    bool any = false;
    for (size_t i = 0; i < table->n; i++)
        any |= is_there(&table->members[i], (const char *)from + table->members[i].at);
    return any;
}

static void put_members(struct writer *w, const struct device_table *table, const void *from)
{
    for (size_t i = 0; i < table->n; i++)
        if (is_there(&table->members[i], (const char *)from + table->members[i].at))
            put_member(w, &table->members[i], (const char *)from + table->members[i].at);
}

static void put_storage(struct writer *w, const struct moe_device_storage *s)
{
    if (s->n_reads == 0 && !any_there(&device_storage, s))
        return;
    open_under(w, "storage", "{");
    put_members(w, &device_storage, s);
    if (s->n_reads) {
        open_under(w, "reads", "[");
        for (uint32_t i = 0; i < s->n_reads; i++) {
            open_item(w);
            put_members(w, &device_reads, &s->reads[i]);
            close_under(w, "}");
        }
        close_under(w, "]");
    }
    close_under(w, "}");
}

static void put_model(struct writer *w, const struct moe_device_model *m)
{
    open_under(w, "model", "{");
    put_members(w, &device_model, m);
    if (m->n_variants) {
        open_under(w, "variants", "[");
        for (uint32_t i = 0; i < m->n_variants; i++) {
            open_item(w);
            put_members(w, &device_variant, &m->variants[i]);
            close_under(w, "}");
        }
        close_under(w, "]");
    }
    if (m->n_batches) {
        open_under(w, "batches", "[");
        for (uint32_t i = 0; i < m->n_batches; i++) {
            const struct moe_device_batch *b = &m->batches[i];
            open_item(w);
            put_members(w, &device_batch, b);
            if (b->n_experts) {
                open_under(w, "expert_seconds", "{");
                for (uint32_t v = 0; v < b->n_experts; v++) {
                    if (b->experts[v].value <= 0)
                        continue;
                    put_indent(w);
                    put_string(w, m->variants[v].name);
                    moe_buf_text(w->out, w->json ? ":" : ": ");
                    put_figure(w, &b->experts[v]);
                    moe_buf_text(w->out, w->json ? "" : "\n");
                }
                close_under(w, "}");
            }
            close_under(w, "}");
        }
        close_under(w, "]");
    }
    close_under(w, "}");
}

static void put_section(struct writer *w, const char *key, const struct device_table *table,
                        const void *from)
{
    if (!any_there(table, from))
        return;
    open_under(w, key, "{");
    put_members(w, table, from);
    close_under(w, "}");
}

static int put_device(struct writer *w, const struct moe_device *d, struct moe_err *err)
{
    put_members(w, &device_root, d);
    put_section(w, "host", &device_host, &d->host);
    put_section(w, "accelerator", &device_accelerator, &d->accelerator);
    put_storage(w, &d->storage);
    if (d->has_model)
        put_model(w, &d->model);
    return w->out->failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory") : MOE_OK;
}

int moe_device_write(const struct moe_device *d, struct moe_buf *out, struct moe_err *err)
{
    struct writer w = {.out = out};
    moe_buf_printf(out, "# Device profile: see moe-device(5).\nformat: moe-device\nversion: %d\n",
                   MOE_DEVICE_VERSION);
    return put_device(&w, d, err);
}

int moe_device_write_json(const struct moe_device *d, struct moe_buf *out, struct moe_err *err)
{
    struct writer w = {.out = out, .json = true};
    moe_buf_printf(out, "{\"format\":\"moe-device\",\"version\":%d", MOE_DEVICE_VERSION);
    int status = put_device(&w, d, err);
    moe_buf_text(out, "}\n");
    return status;
}
