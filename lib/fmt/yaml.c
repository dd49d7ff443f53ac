/* Reads YAML into nodes, and gives access to their values. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"
#include "fmt/yaml_internal.h"

enum {
    MAX_DEPTH = 32,
    BLOCK_BYTES = (256 << 10) - 256, /* with what the allocator puts beside it, whole pages */
};

int moe_yaml_fail(struct moe_yaml *doc, const struct moe_yaml_node *node, struct moe_err *err,
                  const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return moe_fail(err, MOE_ERR_FORMAT, "%s: line %" PRIu32 " column %" PRIu32 ": %s", doc->name,
                    node->line, node->column, text);
}

/* ---- Building the tree ---- */

/* Zeroed, 8-aligned memory, released with the document. */
static void *yaml_alloc(struct moe_yaml *doc, uint64_t n, struct moe_err *err)
{
    n = moe_round_up(n, sizeof(void *));
    if (n > doc->room - doc->used) {
        uint64_t room = n > BLOCK_BYTES ? n : BLOCK_BYTES;
        struct moe_yaml_block *block = moe_alloc(1, sizeof *block + room, err);
        if (!block)
            return NULL;
        doc->taken += moe_round_up(sizeof *block + room, 4096);
        block->before = doc->block;
        doc->block = block;
        doc->used = 0;
        doc->room = room;
    }
    void *taken = doc->block->bytes + doc->used;
    doc->used += n;
    return taken;
}

void moe_yaml_free(struct moe_yaml *doc)
{
    if (!doc)
        return;
    while (doc->block) {
        struct moe_yaml_block *before = doc->block->before;
        free(doc->block);
        doc->block = before;
    }
    free(doc->name);
    free(doc);
}

/* Keys of the mapping being read, to find a duplicate without comparing all. */
struct key_set {
    const char **keys;
    uint64_t n, room; /* room: a power of two */
};

static bool insert_key(struct key_set *set, const char *key)
{
    for (uint64_t i = moe_hash64(key, strlen(key)) & (set->room - 1);;
         i = (i + 1) & (set->room - 1)) {
        if (!set->keys[i]) {
            set->keys[i] = key;
            set->n++;
            return true;
        }
        if (strcmp(set->keys[i], key) == 0)
            return false;
    }
}

static int grow_keys(struct key_set *set, struct moe_err *err)
{
    struct key_set bigger = {.room = set->room ? 2 * set->room : 16};
    bigger.keys = moe_alloc(bigger.room, sizeof *bigger.keys, err);
    if (!bigger.keys)
        return MOE_ERR_MEMORY;
    for (uint64_t i = 0; i < set->room; i++)
        if (set->keys[i])
            insert_key(&bigger, set->keys[i]);
    free(set->keys);
    *set = bigger;
    return MOE_OK;
}

struct reader {
    struct moe_yaml *doc;
    yaml_parser_t parser;
    struct moe_err *err;
};

/* Reads the next event; the caller releases it with yaml_event_delete. */
static int next_event(struct reader *r, yaml_event_t *event)
{
    if (yaml_parser_parse(&r->parser, event))
        return MOE_OK;
    const yaml_parser_t *p = &r->parser;
    if (p->error == YAML_MEMORY_ERROR)
        return moe_fail(r->err, MOE_ERR_MEMORY, "%s: out of memory", r->doc->name);
    if (p->error == YAML_READER_ERROR) /* it has no line yet */
        return moe_fail(r->err, MOE_ERR_FORMAT, "%s: not a text file: byte %zu: %s", r->doc->name,
                        p->problem_offset + 1, p->problem ? p->problem : "not UTF-8");
    return moe_fail(r->err, MOE_ERR_FORMAT, "%s: line %zu column %zu: %s", r->doc->name,
                    p->problem_mark.line + 1, p->problem_mark.column + 1,
                    p->problem ? p->problem : "not YAML");
}

static int refuse_decorations(struct reader *r, const struct moe_yaml_node *node,
                              const yaml_event_t *event)
{
    const yaml_char_t *anchor = NULL, *tag = NULL;
    if (event->type == YAML_SCALAR_EVENT) {
        anchor = event->data.scalar.anchor;
        tag = event->data.scalar.tag;
    } else if (event->type == YAML_SEQUENCE_START_EVENT) {
        anchor = event->data.sequence_start.anchor;
        tag = event->data.sequence_start.tag;
    } else if (event->type == YAML_MAPPING_START_EVENT) {
        anchor = event->data.mapping_start.anchor;
        tag = event->data.mapping_start.tag;
    }
    if (anchor || tag || event->type == YAML_ALIAS_EVENT)
        return moe_yaml_fail(r->doc, node, r->err, "anchors, aliases and tags are not supported");
    return MOE_OK;
}

static int set_scalar(struct reader *r, struct moe_yaml_node *node, const yaml_event_t *event)
{
    const char *text = (const char *)event->data.scalar.value;
    size_t n = event->data.scalar.length;
    if (memchr(text, '\0', n))
        return moe_yaml_fail(r->doc, node, r->err, "a text holds a NUL");
    node->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    char *copy = yaml_alloc(r->doc, n + 1, r->err);
    if (copy)
        memcpy(copy, text, n);
    node->text = copy;
    return copy ? MOE_OK : MOE_ERR_MEMORY;
}

static int read_members(struct reader *r, struct moe_yaml_node *parent, int depth);

/* Reads a value whose first event has been read. *out may be set on failure too. */
static int read_value(struct reader *r, const yaml_event_t *event, int depth,
                      struct moe_yaml_node **out)
{
    bool has_members =
        event->type == YAML_SEQUENCE_START_EVENT || event->type == YAML_MAPPING_START_EVENT;
    struct moe_yaml_node *node =
        yaml_alloc(r->doc, has_members ? sizeof *node : offsetof(struct moe_yaml_node, n), r->err);
    *out = node;
    if (!node)
        return MOE_ERR_MEMORY;
    node->line = (uint32_t)event->start_mark.line + 1;
    node->column = (uint32_t)event->start_mark.column + 1;
    MOE_TRY(refuse_decorations(r, node, event));
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        return set_scalar(r, node, event);
    case YAML_SEQUENCE_START_EVENT:
    case YAML_MAPPING_START_EVENT:
        node->kind = event->type == YAML_MAPPING_START_EVENT ? MOE_YAML_MAP : MOE_YAML_LIST;
        if (depth >= MAX_DEPTH)
            return moe_yaml_fail(r->doc, node, r->err, "nested too deeply");
        return read_members(r, node, depth + 1);
    default:
        return moe_yaml_fail(r->doc, node, r->err, "a value is missing");
    }
}

static int read_key(struct reader *r, const yaml_event_t *event, struct key_set *keys,
                    const char **key)
{
    struct moe_yaml_node at = {.line = (uint32_t)event->start_mark.line + 1,
                               .column = (uint32_t)event->start_mark.column + 1};
    if (event->type != YAML_SCALAR_EVENT)
        return moe_yaml_fail(r->doc, &at, r->err, "a key must be a plain word");
    MOE_TRY(refuse_decorations(r, &at, event));
    MOE_TRY(set_scalar(r, &at, event));
    *key = at.text;
    if (2 * keys->n >= keys->room)
        MOE_TRY(grow_keys(keys, r->err));
    if (!insert_key(keys, *key))
        return moe_yaml_fail(r->doc, &at, r->err, "'%.200s' occurs twice", *key);
    return MOE_OK;
}

/* Reads the members of an opened mapping or sequence, to its end. */
static int read_members(struct reader *r, struct moe_yaml_node *parent, int depth)
{
    struct key_set keys = {0};
    bool done = false;
    int status = MOE_OK;
    while (status == MOE_OK && !done) {
        yaml_event_t event;
        const char *key = NULL;
        struct moe_yaml_node *value = NULL;
        status = next_event(r, &event);
        if (status != MOE_OK)
            break;
        done = event.type ==
               (parent->kind == MOE_YAML_MAP ? YAML_MAPPING_END_EVENT : YAML_SEQUENCE_END_EVENT);
        if (!done && parent->kind == MOE_YAML_MAP) {
            status = read_key(r, &event, &keys, &key);
            yaml_event_delete(&event);
            if (status == MOE_OK)
                status = next_event(r, &event);
            if (status != MOE_OK)
                break;
        }
        if (!done)
            status = read_value(r, &event, depth, &value);
        yaml_event_delete(&event);
        if (!value)
            continue;
        value->key = key;
        *(parent->last ? &parent->last->next : &parent->first) = value;
        parent->last = value;
        parent->n++;
    }
    free(keys.keys);
    return status;
}

/* Stream start, document start, the root, document end, stream end. */
static int read_document(struct reader *r)
{
    static const yaml_event_type_t wanted[] = {YAML_STREAM_START_EVENT, YAML_DOCUMENT_START_EVENT,
                                               YAML_NO_EVENT, YAML_DOCUMENT_END_EVENT,
                                               YAML_STREAM_END_EVENT};
    int status = MOE_OK;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0] && status == MOE_OK; i++) {
        yaml_event_t event;
        status = next_event(r, &event);
        if (status != MOE_OK)
            break;
        if (wanted[i] == YAML_NO_EVENT)
            status = read_value(r, &event, 0, &r->doc->root);
        else if (event.type != wanted[i])
            status = moe_fail(r->err, MOE_ERR_FORMAT, "%s: not one YAML document", r->doc->name);
        yaml_event_delete(&event);
    }
    if (status == MOE_OK && r->doc->root->kind != MOE_YAML_MAP)
        status = moe_fail(r->err, MOE_ERR_FORMAT, "%s: the document is not a mapping of keys",
                          r->doc->name);
    return status;
}

int moe_yaml_parse(struct moe_yaml **out, const char *name, const void *text, uint64_t n,
                   struct moe_err *err)
{
    *out = NULL;
    struct reader r = {.err = err};
    r.doc = moe_alloc(1, sizeof *r.doc, err);
    if (!r.doc)
        return MOE_ERR_MEMORY;
    r.doc->taken = n;
    r.doc->name = moe_strndup(name, strlen(name), err);
    int status = r.doc->name ? MOE_OK : MOE_ERR_MEMORY;
    if (status == MOE_OK && !yaml_parser_initialize(&r.parser))
        status = moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", name);
    else if (status == MOE_OK) {
        yaml_parser_set_input_string(&r.parser, text ? text : (const void *)"", n);
        yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
        status = read_document(&r);
        yaml_parser_delete(&r.parser);
    }
    if (status != MOE_OK) {
        moe_yaml_free(r.doc);
        return status;
    }
    *out = r.doc;
    return MOE_OK;
}

int moe_yaml_read(struct moe_yaml **out, const char *path, uint64_t max_bytes, struct moe_err *err)
{
    struct moe_buf text = {0};
    *out = NULL;
    int status = moe_file_read_all(path, max_bytes, &text, err);
    if (status == MOE_OK)
        status = moe_yaml_parse(out, path, text.data, text.size, err);
    moe_buf_release(&text);
    return status;
}

/*
 * Looks at a YAML document: members by key, items of lists, each checked for its type and range.
 */

uint64_t moe_yaml_bytes(const struct moe_yaml *doc)
{
    return doc->taken;
}

struct moe_yaml_node *moe_yaml_root(struct moe_yaml *doc)
{
    return doc->root;
}

struct moe_yaml_node *moe_yaml_first(struct moe_yaml_node *list)
{
    return moe_yaml_members(list);
}

struct moe_yaml_node *moe_yaml_next(struct moe_yaml_node *item)
{
    return item->next;
}

uint64_t moe_yaml_length(const struct moe_yaml_node *node)
{
    return node->kind == MOE_YAML_SCALAR ? 0 : node->n;
}

const char *moe_yaml_key(struct moe_yaml_node *value)
{
    value->known = true;
    return value->key;
}

static bool is_null(const struct moe_yaml_node *node)
{
    return node->kind == MOE_YAML_SCALAR && !node->quoted &&
           (strcmp(node->text, "") == 0 || strcmp(node->text, "~") == 0 ||
            strcmp(node->text, "null") == 0);
}

struct moe_yaml_node *moe_yaml_get(struct moe_yaml_node *map, const char *key)
{
    struct moe_yaml_node *m = map->kind == MOE_YAML_MAP ? map->first : NULL;
    while (m && strcmp(m->key, key) != 0)
        m = m->next;
    if (m)
        m->known = true;
    return m && !is_null(m) ? m : NULL;
}

/* The member, or NULL if there is none (status tells whether that is an error). */
static int find_member(struct moe_yaml *doc, struct moe_yaml_node *map, const char *key,
                       bool required, struct moe_yaml_node **out, struct moe_err *err)
{
    *out = moe_yaml_get(map, key);
    if (!*out && required)
        return moe_yaml_fail(doc, map, err, "'%s' is missing", key);
    return MOE_OK;
}

/* "'key'" or "item", for error texts. */
static const char *node_name(const struct moe_yaml_node *node, char room[80])
{
    if (!node->key)
        return "an item";
    snprintf(room, 80, "'%.70s'", node->key);
    return room;
}

int moe_yaml_item_u64(struct moe_yaml *doc, struct moe_yaml_node *item, uint64_t max, uint64_t *out,
                      struct moe_err *err)
{
    char room[80], *end = NULL;
    errno = 0;
    bool digit = item->kind == MOE_YAML_SCALAR && !item->quoted && item->text[0] >= '0' &&
                 item->text[0] <= '9';
    unsigned long long value = digit ? strtoull(item->text, &end, 10) : 0;
    if (!digit || *end != '\0' || errno == ERANGE || value > max)
        return moe_yaml_fail(doc, item, err, "%s must be a whole number from 0 to %" PRIu64,
                             node_name(item, room), max);
    *out = value;
    return MOE_OK;
}

int moe_yaml_item_i64(struct moe_yaml *doc, struct moe_yaml_node *item, int64_t *out,
                      struct moe_err *err)
{
    char room[80], *end = NULL;
    const char *text = item->kind == MOE_YAML_SCALAR && !item->quoted ? item->text : "";
    bool number = text[0] != '\0' && strspn(text, "-0123456789") == strlen(text);
    errno = 0;
    long long value = number ? strtoll(text, &end, 10) : 0;
    if (!number || *end != '\0' || errno == ERANGE)
        return moe_yaml_fail(doc, item, err, "%s must be a whole number", node_name(item, room));
    *out = value;
    return MOE_OK;
}

int moe_yaml_item_double(struct moe_yaml *doc, struct moe_yaml_node *item, double *out,
                         struct moe_err *err)
{
    char room[80], *end = NULL;
    bool number = item->kind == MOE_YAML_SCALAR && !item->quoted && item->text[0] != '\0' &&
                  strspn(item->text, "0123456789+-.eE") == strlen(item->text);
    double value = number ? strtod(item->text, &end) : 0;
    if (!number || *end != '\0' || !isfinite(value))
        return moe_yaml_fail(doc, item, err, "%s must be a number", node_name(item, room));
    *out = value;
    return MOE_OK;
}

int moe_yaml_item_text(struct moe_yaml *doc, struct moe_yaml_node *item, const char **out,
                       struct moe_err *err)
{
    char room[80];
    if (item->kind != MOE_YAML_SCALAR)
        return moe_yaml_fail(doc, item, err, "%s must be a text", node_name(item, room));
    *out = item->text;
    return MOE_OK;
}

int moe_yaml_item_map(struct moe_yaml *doc, struct moe_yaml_node *item, struct moe_err *err)
{
    char room[80];
    return item->kind == MOE_YAML_MAP
               ? MOE_OK
               : moe_yaml_fail(doc, item, err, "%s must be a mapping", node_name(item, room));
}

int moe_yaml_item_list(struct moe_yaml *doc, struct moe_yaml_node *item, struct moe_err *err)
{
    char room[80];
    return item->kind == MOE_YAML_LIST
               ? MOE_OK
               : moe_yaml_fail(doc, item, err, "%s must be a list", node_name(item, room));
}

int moe_yaml_get_u64(struct moe_yaml *doc, struct moe_yaml_node *map, const char *key, uint64_t max,
                     bool required, uint64_t *out, struct moe_err *err)
{
    struct moe_yaml_node *node;
    int status = find_member(doc, map, key, required, &node, err);
    return node ? moe_yaml_item_u64(doc, node, max, out, err) : status;
}

int moe_yaml_get_u32(struct moe_yaml *doc, struct moe_yaml_node *map, const char *key, uint32_t max,
                     bool required, uint32_t *out, struct moe_err *err)
{
    uint64_t value = *out;
    MOE_TRY(moe_yaml_get_u64(doc, map, key, max, required, &value, err));
    *out = (uint32_t)value;
    return MOE_OK;
}

int moe_yaml_get_double(struct moe_yaml *doc, struct moe_yaml_node *map, const char *key,
                        bool required, double *out, struct moe_err *err)
{
    struct moe_yaml_node *node;
    int status = find_member(doc, map, key, required, &node, err);
    return node ? moe_yaml_item_double(doc, node, out, err) : status;
}

int moe_yaml_get_bool(struct moe_yaml *doc, struct moe_yaml_node *map, const char *key,
                      bool required, bool *out, struct moe_err *err)
{
    struct moe_yaml_node *node;
    MOE_TRY(find_member(doc, map, key, required, &node, err));
    if (!node)
        return MOE_OK;
    bool plain = node->kind == MOE_YAML_SCALAR && !node->quoted;
    if (plain && strcmp(node->text, "true") == 0)
        *out = true;
    else if (plain && strcmp(node->text, "false") == 0)
        *out = false;
    else
        return moe_yaml_fail(doc, node, err, "'%s' must be true or false", key);
    return MOE_OK;
}

int moe_yaml_get_text(struct moe_yaml *doc, struct moe_yaml_node *map, const char *key,
                      bool required, const char **out, struct moe_err *err)
{
    struct moe_yaml_node *node;
    int status = find_member(doc, map, key, required, &node, err);
    return node ? moe_yaml_item_text(doc, node, out, err) : status;
}

int moe_yaml_item_fingerprint(struct moe_yaml *doc, struct moe_yaml_node *item, uint64_t *out,
                              struct moe_err *err)
{
    const char *digits = NULL;
    char room[80];
    MOE_TRY(moe_yaml_item_text(doc, item, &digits, err));
    if (!digits)
        return MOE_OK;
    if (strlen(digits) != 16 || strspn(digits, "0123456789abcdef") != 16)
        return moe_yaml_fail(doc, item, err, "%s must have 16 hexadecimal digits",
                             node_name(item, room));
    *out = strtoull(digits, NULL, 16);
    return MOE_OK;
}

int moe_yaml_get_fingerprint(struct moe_yaml *doc, struct moe_yaml_node *map, const char *key,
                             bool required, uint64_t *out, struct moe_err *err)
{
    struct moe_yaml_node *node;
    int status = find_member(doc, map, key, required, &node, err);
    return node ? moe_yaml_item_fingerprint(doc, node, out, err) : status;
}

int moe_yaml_get_map(struct moe_yaml *doc, struct moe_yaml_node *map, const char *key,
                     bool required, struct moe_yaml_node **out, struct moe_err *err)
{
    struct moe_yaml_node *node;
    int status = find_member(doc, map, key, required, &node, err);
    if (!node)
        return status;
    status = moe_yaml_item_map(doc, node, err);
    if (status == MOE_OK)
        *out = node;
    return status;
}

int moe_yaml_get_list(struct moe_yaml *doc, struct moe_yaml_node *map, const char *key,
                      bool required, struct moe_yaml_node **out, uint64_t *n, struct moe_err *err)
{
    struct moe_yaml_node *node;
    int status = find_member(doc, map, key, required, &node, err);
    if (!node)
        return status;
    status = moe_yaml_item_list(doc, node, err);
    if (status == MOE_OK) {
        *out = node;
        *n = node->n;
    }
    return status;
}

int moe_yaml_get_list_of(struct moe_yaml *doc, struct moe_yaml_node *map, const char *key,
                         uint64_t n, struct moe_yaml_node **out, struct moe_err *err)
{
    uint64_t found = 0;
    MOE_TRY(moe_yaml_get_list(doc, map, key, true, out, &found, err));
    if (found != n)
        return moe_yaml_fail(doc, *out, err, "'%s' must have %" PRIu64 " items, not %" PRIu64, key,
                             n, found);
    return MOE_OK;
}

int moe_yaml_list_u32s(struct moe_yaml *doc, struct moe_yaml_node *list, uint32_t max, bool rising,
                       uint32_t *out, struct moe_err *err)
{
    uint64_t value = 0, least = 0;
    for (struct moe_yaml_node *m = moe_yaml_members(list); m; m = m->next) {
        MOE_TRY(moe_yaml_item_u64(doc, m, max, &value, err));
        if (rising && value < least)
            return moe_yaml_fail(doc, m, err, "'%s' must be rising", list->key);
        *out++ = (uint32_t)value;
        least = value + 1;
    }
    return MOE_OK;
}

int moe_yaml_list_doubles(struct moe_yaml *doc, struct moe_yaml_node *list, double min, double *out,
                          struct moe_err *err)
{
    for (struct moe_yaml_node *m = moe_yaml_members(list); m; m = m->next, out++) {
        MOE_TRY(moe_yaml_item_double(doc, m, out, err));
        if (*out < min)
            return moe_yaml_fail(doc, m, err, "'%s' must be at least %g", list->key, min);
    }
    return MOE_OK;
}

int moe_yaml_check_format(struct moe_yaml *doc, const char *format, uint32_t version,
                          struct moe_err *err)
{
    const char *found = NULL;
    uint64_t number = 0;
    MOE_TRY(moe_yaml_get_text(doc, doc->root, "format", true, &found, err));
    if (strcmp(found, format) != 0)
        return moe_yaml_fail(doc, doc->root->first, err, "format is '%.40s', expected '%s'", found,
                             format);
    MOE_TRY(moe_yaml_get_u64(doc, doc->root, "version", UINT32_MAX, true, &number, err));
    if (number != version)
        return moe_fail(err, MOE_ERR_VERSION,
                        "%s: %s version %" PRIu64 ", this program reads version %" PRIu32,
                        doc->name, format, number, version);
    return MOE_OK;
}

bool moe_yaml_file_is(const char *path, const char *format)
{
    char text[2048], line[128];
    uint64_t n = 0;
    int fd = moe_file_open(path, &n, NULL);
    if (fd < 0)
        return false;
    n = n < sizeof text ? n : sizeof text - 1;
    bool read = moe_file_pread(fd, path, text, n, 0, NULL) == MOE_OK;
    close(fd);
    text[read ? n : 0] = '\0';
    snprintf(line, sizeof line, "format: %s\n", format);
    const char *at = strstr(text, line);
    return at && (at == text || at[-1] == '\n');
}

static int check_known(struct moe_yaml *doc, const struct moe_yaml_node *node, struct moe_err *err)
{
    for (const struct moe_yaml_node *m = moe_yaml_members(node); m; m = m->next) {
        if (m->key && !m->known)
            return moe_yaml_fail(doc, m, err, "unknown key '%.200s'", m->key);
        MOE_TRY(check_known(doc, m, err));
    }
    return MOE_OK;
}

int moe_yaml_check_known(struct moe_yaml *doc, struct moe_err *err)
{
    return check_known(doc, doc->root, err);
}
