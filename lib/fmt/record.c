/* Reads and writes structs as YAML by tables of their members. */
#include "fmt/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* ---- Reading ---- */

static int fail_range(struct moe_record_reader *r, struct moe_yaml_node *map,
                      const struct moe_member *m)
{
    struct moe_yaml_node *at = moe_yaml_get(map, m->key);
    if (m->max < HUGE_VAL && m->min == MOE_ABOVE_0)
        return moe_yaml_fail(r->doc, at, r->err, "'%s' must be above 0 and at most %.15g", m->key,
                             m->max);
    if (m->max < HUGE_VAL)
        return moe_yaml_fail(r->doc, at, r->err, "'%s' must be from %.15g to %.15g", m->key, m->min,
                             m->max);
    if (m->min == MOE_ABOVE_0)
        return moe_yaml_fail(r->doc, at, r->err, "'%s' must be above 0", m->key);
    return moe_yaml_fail(r->doc, at, r->err, "'%s' must be at least %.15g", m->key, m->min);
}

static int read_text(struct moe_record_reader *r, struct moe_yaml_node *map,
                     const struct moe_member *m, char *to)
{
    const char *text = NULL;
    bool required = m->presence == MOE_ALWAYS;
    int status = moe_yaml_get_text(r->doc, map, m->key, required, &text, r->err);
    if (!text)
        return status;
    if (strlen(text) >= m->bytes)
        return moe_yaml_fail(r->doc, moe_yaml_get(map, m->key), r->err,
                             "'%s' is longer than %zu bytes", m->key, m->bytes - 1);
    if (required && !text[0])
        return moe_yaml_fail(r->doc, moe_yaml_get(map, m->key), r->err, "'%s' is empty", m->key);
    memcpy(to, text, strlen(text) + 1);
    return MOE_OK;
}

static int read_whole(struct moe_record_reader *r, struct moe_yaml_node *map,
                      const struct moe_member *m, uint64_t most, uint64_t *to)
{
    most = m->max < (double)most ? (uint64_t)m->max : most;
    int status = moe_yaml_get_u64(r->doc, map, m->key, most, true, to, r->err);
    return status == MOE_OK && (double)*to < m->min ? fail_range(r, map, m) : status;
}

static int read_double(struct moe_record_reader *r, struct moe_yaml_node *map,
                       const struct moe_member *m, double *to)
{
    int status = moe_yaml_get_double(r->doc, map, m->key, true, to, r->err);
    return status == MOE_OK && !(*to >= m->min && *to <= m->max) ? fail_range(r, map, m) : status;
}

static int read_name(struct moe_record_reader *r, struct moe_yaml_node *map,
                     const struct moe_member *m, void *to)
{
    const char *name = NULL;
    char possible[160] = "";
    MOE_TRY(moe_yaml_get_text(r->doc, map, m->key, true, &name, r->err));
    for (uint32_t i = 0; i < (uint32_t)m->max; i++) {
        size_t n = strlen(possible);
        if (strcmp(name, m->names[i]) == 0) {
            memcpy(to, &i, sizeof i);
            return MOE_OK;
        }
        snprintf(possible + n, sizeof possible - n, "%s%s", n ? ", " : "", m->names[i]);
    }
    return moe_yaml_fail(r->doc, moe_yaml_get(map, m->key), r->err,
                         "'%s' is '%.60s', not one of: %s", m->key, name, possible);
}

/* Reads a number, name or truth value that is there, or required. */
static int read_value(struct moe_record_reader *r, struct moe_yaml_node *map,
                      const struct moe_member *m, void *to)
{
    uint64_t value = 0;
    int status;
    switch (m->type) {
    case MOE_MEMBER_BOOL:
        return moe_yaml_get_bool(r->doc, map, m->key, true, to, r->err);
    case MOE_MEMBER_U32:
        status = read_whole(r, map, m, UINT32_MAX, &value);
        *(uint32_t *)to = (uint32_t)value;
        return status;
    case MOE_MEMBER_U64:
        return read_whole(r, map, m, MOE_MAX_WHOLE, to);
    case MOE_MEMBER_DOUBLE:
        return read_double(r, map, m, to);
    case MOE_MEMBER_NAME:
        return read_name(r, map, m, to);
    default:
        return moe_yaml_get_fingerprint(r->doc, map, m->key, true, to, r->err);
    }
}

static int read_section(struct moe_record_reader *r, struct moe_yaml_node *map,
                        const struct moe_member *m, void *to)
{
    struct moe_yaml_node *section = NULL;
    int status = moe_yaml_get_map(r->doc, map, m->key, m->presence == MOE_ALWAYS, &section, r->err);
    return section ? moe_record_read_map(r, section, m->record, to) : status;
}

static double number_at(const struct moe_member *m, const char *record)
{
    const void *value = record + m->at;
    return m->type == MOE_MEMBER_U32   ? *(const uint32_t *)value
           : m->type == MOE_MEMBER_U64 ? (double)*(const uint64_t *)value
                                       : *(const double *)value;
}

static int check_rising(struct moe_record_reader *r, struct moe_yaml_node *item,
                        const struct moe_member *list, const char *record)
{
    const struct moe_record *table = list->record;
    for (size_t i = 0; i < table->n; i++)
        if (table->members[i].rising && number_at(&table->members[i], record) <=
                                            number_at(&table->members[i], record - list->bytes))
            return moe_yaml_fail(r->doc, item, r->err, "'%s' must be rising",
                                 table->members[i].key);
    return MOE_OK;
}

static int read_list(struct moe_record_reader *r, struct moe_yaml_node *map,
                     const struct moe_member *m, char *record)
{
    struct moe_yaml_node *list = NULL;
    uint64_t found = 0;
    uint32_t *n = (uint32_t *)(record + m->n_at);
    char *items = record + m->at;
    int status = moe_yaml_get_list(r->doc, map, m->key, false, &list, &found, r->err);
    if (!list)
        return status;
    if ((double)found > m->max)
        return moe_yaml_fail(r->doc, list, r->err, "'%s' must not have more than %.0f items",
                             m->key, m->max);
    if (m->owned) {
        items = moe_alloc(found, m->bytes, r->err);
        if (!items)
            return MOE_ERR_MEMORY;
        *(void **)(record + m->at) = items;
    }
    for (struct moe_yaml_node *item = moe_yaml_first(list); item && status == MOE_OK;
         item = moe_yaml_next(item), items += m->bytes, ++*n) {
        status = moe_yaml_item_map(r->doc, item, r->err);
        if (status == MOE_OK)
            status = moe_record_read_map(r, item, m->record, items);
        if (status == MOE_OK && *n)
            status = check_rising(r, item, m, items);
    }
    return status;
}

static void clear_member(const struct moe_member *m, char *value)
{
    static const uint32_t unknown_count = UINT32_MAX;
    static const double unknown = -1;
    memset(value, 0, m->bytes);
    if (m->presence == MOE_IF_KNOWN && m->type == MOE_MEMBER_U32)
        memcpy(value, &unknown_count, sizeof unknown_count);
    else if (m->presence == MOE_IF_KNOWN && m->type == MOE_MEMBER_DOUBLE)
        memcpy(value, &unknown, sizeof unknown);
}

int moe_record_read_member(struct moe_record_reader *r, struct moe_yaml_node *map,
                           const struct moe_member *m, void *record)
{
    char *to = (char *)record + m->at;
    switch (m->type) {
    case MOE_MEMBER_OWN:
        return m->own->read(r, map, m, record);
    case MOE_MEMBER_GROUP:
        return moe_record_is_there(m->record, to) ? moe_record_read_map(r, map, m->record, to)
                                                  : MOE_OK;
    case MOE_MEMBER_MAP:
        return read_section(r, map, m, to);
    case MOE_MEMBER_LIST:
        return read_list(r, map, m, record);
    case MOE_MEMBER_TEXT:
        clear_member(m, to);
        return read_text(r, map, m, to);
    default:
        clear_member(m, to);
        return m->presence == MOE_ALWAYS || moe_yaml_get(map, m->key) ? read_value(r, map, m, to)
                                                                      : MOE_OK;
    }
}

int moe_record_read_map(struct moe_record_reader *r, struct moe_yaml_node *map,
                        const struct moe_record *table, void *record)
{
    int status = MOE_OK;
    for (size_t i = 0; i < table->n; i++)
        MOE_STEP(moe_record_read_member(r, map, &table->members[i], record));
out:
    if (table->flagged)
        *(bool *)((char *)record + table->flag_at) = true;
    return status == MOE_OK && table->check ? table->check(r, map, record) : status;
}

void moe_record_clear(const struct moe_record *table, void *record)
{
    for (size_t i = 0; i < table->n; i++)
        clear_member(&table->members[i], (char *)record + table->members[i].at);
}

/* Reads the document into a new struct, and releases it. */
static int read_document(const struct moe_record_format *format, void *out, struct moe_yaml *doc,
                         struct moe_err *err)
{
    struct moe_record_reader r = {doc, moe_alloc(1, format->bytes, err), err};
    int status;
    MOE_STEP(r.whole ? moe_yaml_check_format(doc, format->name, format->version, err)
                     : MOE_ERR_MEMORY);
    MOE_STEP(moe_record_read_map(&r, moe_yaml_root(doc), format->record, r.whole));
    MOE_STEP(moe_yaml_check_known(doc, err));
out:
    moe_yaml_free(doc);
    if (status != MOE_OK) {
        moe_record_free(format, r.whole);
        r.whole = NULL;
    }
    memcpy(out, &r.whole, sizeof r.whole);
    return status;
}

int moe_record_read(const struct moe_record_format *format, void *out, const char *path,
                    struct moe_err *err)
{
    struct moe_yaml *doc;
    memset(out, 0, sizeof(void *));
    MOE_TRY(moe_yaml_read(&doc, path, format->max_bytes, err));
    return read_document(format, out, doc, err);
}

int moe_record_parse(const struct moe_record_format *format, void *out, const char *name,
                     const void *text, uint64_t n, struct moe_err *err)
{
    struct moe_yaml *doc;
    memset(out, 0, sizeof(void *));
    MOE_TRY(moe_yaml_parse(&doc, name, text, n, err));
    return read_document(format, out, doc, err);
}

void moe_record_free(const struct moe_record_format *format, void *whole)
{
    if (whole && format->release)
        format->release(whole);
    free(whole);
}

/* ---- Writing ---- */

/* Whether the member has anything to write. */
static bool has_value(const struct moe_member *m, const char *record)
{
    const void *value = record + m->at;
    bool from_0 = m->presence == MOE_IF_KNOWN;
    double x;
    switch (m->type) {
    case MOE_MEMBER_TEXT:
    case MOE_MEMBER_BOOL:
        return *(const char *)value != 0;
    case MOE_MEMBER_NAME:
    case MOE_MEMBER_U32:
        return *(const uint32_t *)value != (from_0 ? UINT32_MAX : 0);
    case MOE_MEMBER_U64:
    case MOE_MEMBER_FINGERPRINT:
        return *(const uint64_t *)value != 0;
    case MOE_MEMBER_DOUBLE:
        x = *(const double *)value;
        return isfinite(x) && (x > 0 || (from_0 && x == 0));
    case MOE_MEMBER_LIST:
        return *(const uint32_t *)(record + m->n_at) > 0;
    case MOE_MEMBER_MAP:
    case MOE_MEMBER_GROUP:
        return moe_record_is_there(m->record, value);
    case MOE_MEMBER_OWN:
        return !m->own->is_there || m->own->is_there(m, record);
    }
    return false;
}

bool moe_record_is_there(const struct moe_record *table, const void *record)
{
    if (table->is_there)
        return table->is_there(record);
    if (table->flagged)
        return *(const bool *)((const char *)record + table->flag_at);
    bool any = false;
    for (size_t i = 0; i < table->n; i++)
        any |= has_value(&table->members[i], record);
    return any;
}

static void open_map(struct moe_emit *e, const char *key, bool in_line)
{
    if (in_line)
        moe_emit_open_line_map(e, key);
    else
        moe_emit_open_map(e, key);
}

static void write_list(struct moe_record_writer *w, const struct moe_member *m, const char *record)
{
    uint32_t n = *(const uint32_t *)(record + m->n_at);
    const char *items = m->owned ? *(const char *const *)(record + m->at) : record + m->at;
    moe_emit_open_list(&w->emit, m->key);
    for (uint32_t i = 0; i < n; i++) {
        open_map(&w->emit, NULL, m->in_line);
        moe_record_write_map(w, m->record, items + i * m->bytes);
        moe_emit_close(&w->emit);
    }
    moe_emit_close(&w->emit);
}

static void write_member(struct moe_record_writer *w, const struct moe_member *m,
                         const char *record)
{
    const void *value = record + m->at;
    switch (m->type) {
    case MOE_MEMBER_TEXT:
        moe_emit_text(&w->emit, m->key, value);
        break;
    case MOE_MEMBER_BOOL:
        moe_emit_bool(&w->emit, m->key, *(const bool *)value);
        break;
    case MOE_MEMBER_U32:
        moe_emit_u64(&w->emit, m->key, *(const uint32_t *)value);
        break;
    case MOE_MEMBER_U64:
        moe_emit_u64(&w->emit, m->key, *(const uint64_t *)value);
        break;
    case MOE_MEMBER_NAME:
        moe_emit_text(&w->emit, m->key, m->names[*(const uint32_t *)value]);
        break;
    case MOE_MEMBER_DOUBLE:
        moe_emit_double(&w->emit, m->key, *(const double *)value);
        break;
    case MOE_MEMBER_FINGERPRINT:
        moe_emit_fingerprint(&w->emit, m->key, *(const uint64_t *)value);
        break;
    case MOE_MEMBER_MAP:
        open_map(&w->emit, m->key, m->in_line);
        moe_record_write_map(w, m->record, value);
        moe_emit_close(&w->emit);
        break;
    case MOE_MEMBER_GROUP:
        moe_record_write_map(w, m->record, value);
        break;
    case MOE_MEMBER_LIST:
        write_list(w, m, record);
        break;
    case MOE_MEMBER_OWN:
        m->own->write(w, m, record);
        break;
    }
}

void moe_record_write_map(struct moe_record_writer *w, const struct moe_record *table,
                          const void *record)
{
    for (size_t i = 0; i < table->n; i++)
        if (table->members[i].presence == MOE_ALWAYS || has_value(&table->members[i], record))
            write_member(w, &table->members[i], record);
}

int moe_record_write(const struct moe_record_format *format, const void *whole, bool json,
                     struct moe_buf *out, struct moe_err *err)
{
    struct moe_record_writer w = {.whole = whole};
    char comment[80];
    snprintf(comment, sizeof comment, "%s: see %s(5).", format->title,
             format->page ? format->page : format->name);
    moe_emit_begin(&w.emit, out, json, comment, format->name, format->version);
    moe_record_write_map(&w, format->record, whole);
    return moe_emit_end(&w.emit, err);
}
