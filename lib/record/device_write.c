/*
 * Device profiles as YAML in blocks, figures as one-line mappings; or on one line as JSON.
 */
#include "fmt/emit.h"
#include "record/device_format.h"

static void put_figure(struct moe_emit *e, const char *key, const struct moe_figure *f)
{
    if (f->n_runs == 0 && !f->source[0]) {
        moe_emit_double(e, key, f->value);
        return;
    }
    moe_emit_open_line_map(e, key);
    moe_emit_double(e, "value", f->value);
    if (f->n_runs) {
        moe_emit_double(e, "min", f->min);
        moe_emit_double(e, "max", f->max);
        moe_emit_u64(e, "runs", f->n_runs);
    }
    if (f->source[0])
        moe_emit_text(e, "source", f->source);
    moe_emit_close(e);
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

static void put_member(struct moe_emit *e, const struct device_member *m, const void *value)
{
    switch (m->kind) {
    case DEVICE_FIGURE:
        put_figure(e, m->key, value);
        break;
    case DEVICE_TEXT:
        moe_emit_text(e, m->key, value);
        break;
    case DEVICE_COUNT:
        moe_emit_u64(e, m->key, *(const uint32_t *)value);
        break;
    case DEVICE_FLAG:
        moe_emit_bool(e, m->key, true);
        break;
    case DEVICE_FINGERPRINT:
        moe_emit_fingerprint(e, m->key, *(const uint64_t *)value);
        break;
    }
}

static bool any_there(const struct device_table *table, const void *from)
{
    bool any = false;
    for (size_t i = 0; i < table->n; i++)
        any |= is_there(&table->members[i], (const char *)from + table->members[i].at);
    return any;
}

static void put_members(struct moe_emit *e, const struct device_table *table, const void *from)
{
    for (size_t i = 0; i < table->n; i++)
        if (is_there(&table->members[i], (const char *)from + table->members[i].at))
            put_member(e, &table->members[i], (const char *)from + table->members[i].at);
}

static void put_storage(struct moe_emit *e, const struct moe_device_storage *s)
{
    if (s->n_reads == 0 && !any_there(&device_storage, s))
        return;
    moe_emit_open_map(e, "storage");
    put_members(e, &device_storage, s);
    if (s->n_reads) {
        moe_emit_open_list(e, "reads");
        for (uint32_t i = 0; i < s->n_reads; i++) {
            moe_emit_open_map(e, NULL);
            put_members(e, &device_reads, &s->reads[i]);
            moe_emit_close(e);
        }
        moe_emit_close(e);
    }
    moe_emit_close(e);
}

static void put_model(struct moe_emit *e, const struct moe_device_model *m)
{
    moe_emit_open_map(e, "model");
    put_members(e, &device_model, m);
    if (m->n_variants) {
        moe_emit_open_list(e, "variants");
        for (uint32_t i = 0; i < m->n_variants; i++) {
            moe_emit_open_map(e, NULL);
            put_members(e, &device_variant, &m->variants[i]);
            moe_emit_close(e);
        }
        moe_emit_close(e);
    }
    if (m->n_batches) {
        moe_emit_open_list(e, "batches");
        for (uint32_t i = 0; i < m->n_batches; i++) {
            const struct moe_device_batch *b = &m->batches[i];
            moe_emit_open_map(e, NULL);
            put_members(e, &device_batch, b);
            if (b->n_experts) {
                moe_emit_open_map(e, "expert_seconds");
                for (uint32_t v = 0; v < b->n_experts; v++) {
                    if (b->experts[v].value > 0)
                        put_figure(e, m->variants[v].name, &b->experts[v]);
                }
                moe_emit_close(e);
            }
            moe_emit_close(e);
        }
        moe_emit_close(e);
    }
    moe_emit_close(e);
}

static void put_section(struct moe_emit *e, const char *key, const struct device_table *table,
                        const void *from)
{
    if (!any_there(table, from))
        return;
    moe_emit_open_map(e, key);
    put_members(e, table, from);
    moe_emit_close(e);
}

static int put_device(const struct moe_device *d, struct moe_buf *out, bool json,
                      struct moe_err *err)
{
    struct moe_emit e;
    moe_emit_begin(&e, out, json, "Device profile: see moe-device(5).", "moe-device",
                   MOE_DEVICE_VERSION);
    put_members(&e, &device_root, d);
    put_section(&e, "host", &device_host, &d->host);
    put_section(&e, "accelerator", &device_accelerator, &d->accelerator);
    put_storage(&e, &d->storage);
    if (d->has_model)
        put_model(&e, &d->model);
    return moe_emit_end(&e, err);
}

int moe_device_write(const struct moe_device *d, struct moe_buf *out, struct moe_err *err)
{
    return put_device(d, out, false, err);
}

int moe_device_write_json(const struct moe_device *d, struct moe_buf *out, struct moe_err *err)
{
    return put_device(d, out, true, err);
}
