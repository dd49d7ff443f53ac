/*
 * Looking at a YAML document: members by key, items of lists, each checked for its type and range.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "fmt/yaml_node.h"

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

/* The member, or NULL where there is none (status tells whether that is an error). */
static int find(struct moe_yaml *doc, struct moe_yaml_node *map, const char *key, bool required,
                struct moe_yaml_node **out, struct moe_err *err)
{
    *out = moe_yaml_get(map, key);
    if (!*out && required)
        return moe_yaml_fail(doc, map, err, "'%s' is missing", key);
    return MOE_OK;
}

/* "'key'" or "item", for error texts. */
static const char *called(const struct moe_yaml_node *node, char room[80])
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
                             called(item, room), max);
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
        return moe_yaml_fail(doc, item, err, "%s must be a whole number", called(item, room));
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
        return moe_yaml_fail(doc, item, err, "%s must be a number", called(item, room));
    *out = value;
    return MOE_OK;
}

int moe_yaml_item_text(struct moe_yaml *doc, struct moe_yaml_node *item, const char **out,
                       struct moe_err *err)
{
    char room[80];
    if (item->kind != MOE_YAML_SCALAR)
        return moe_yaml_fail(doc, item, err, "%s must be a text", called(item, room));
    *out = item->text;
    return MOE_OK;
}

int moe_yaml_item_map(struct moe_yaml *doc, struct moe_yaml_node *item, struct moe_err *err)
{
    char room[80];
    return item->kind == MOE_YAML_MAP
               ? MOE_OK
               : moe_yaml_fail(doc, item, err, "%s must be a mapping", called(item, room));
}

int moe_yaml_item_list(struct moe_yaml *doc, struct moe_yaml_node *item, struct moe_err *err)
{
    char room[80];
    return item->kind == MOE_YAML_LIST
               ? MOE_OK
               : moe_yaml_fail(doc, item, err, "%s must be a list", called(item, room));
}

int moe_yaml_get_u64(struct moe_yaml *doc, struct moe_yaml_node *map, const char *key, uint64_t max,
                     bool required, uint64_t *out, struct moe_err *err)
{
    struct moe_yaml_node *node;
    int status = find(doc, map, key, required, &node, err);
    return node ? moe_yaml_item_u64(doc, node, max, out, err) : status;
}

int moe_yaml_get_u32(struct moe_yaml *doc, struct moe_yaml_node *map, const char *key, uint32_t max,
                     bool required, uint32_t *out, struct moe_err *err)
{
    uint64_t value = *out;
    int status = moe_yaml_get_u64(doc, map, key, max, required, &value, err);
    *out = (uint32_t)value;
    return status;
}

int moe_yaml_get_double(struct moe_yaml *doc, struct moe_yaml_node *map, const char *key,
                        bool required, double *out, struct moe_err *err)
{
    struct moe_yaml_node *node;
    int status = find(doc, map, key, required, &node, err);
    return node ? moe_yaml_item_double(doc, node, out, err) : status;
}

int moe_yaml_get_bool(struct moe_yaml *doc, struct moe_yaml_node *map, const char *key,
                      bool required, bool *out, struct moe_err *err)
{
    struct moe_yaml_node *node;
    int status = find(doc, map, key, required, &node, err);
    if (!node)
        return status;
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
    int status = find(doc, map, key, required, &node, err);
    return node ? moe_yaml_item_text(doc, node, out, err) : status;
}

int moe_yaml_item_fingerprint(struct moe_yaml *doc, struct moe_yaml_node *item, uint64_t *out,
                              struct moe_err *err)
{
    const char *digits = NULL;
    char room[80];
    int status = moe_yaml_item_text(doc, item, &digits, err);
    if (!digits)
        return status;
    if (strlen(digits) != 16 || strspn(digits, "0123456789abcdef") != 16)
        return moe_yaml_fail(doc, item, err, "%s must have 16 hexadecimal digits",
                             called(item, room));
    *out = strtoull(digits, NULL, 16);
    return MOE_OK;
}

int moe_yaml_get_fingerprint(struct moe_yaml *doc, struct moe_yaml_node *map, const char *key,
                             bool required, uint64_t *out, struct moe_err *err)
{
    struct moe_yaml_node *node;
    int status = find(doc, map, key, required, &node, err);
    return node ? moe_yaml_item_fingerprint(doc, node, out, err) : status;
}

int moe_yaml_get_map(struct moe_yaml *doc, struct moe_yaml_node *map, const char *key,
                     bool required, struct moe_yaml_node **out, struct moe_err *err)
{
    struct moe_yaml_node *node;
    int status = find(doc, map, key, required, &node, err);
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
    int status = find(doc, map, key, required, &node, err);
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
    int status = moe_yaml_get_list(doc, map, key, true, out, &found, err);
    if (status == MOE_OK && found != n)
        status = moe_yaml_fail(doc, *out, err, "'%s' must have %" PRIu64 " items, not %" PRIu64,
                               key, n, found);
    return status;
}

int moe_yaml_list_u32s(struct moe_yaml *doc, struct moe_yaml_node *list, uint32_t max, bool rising,
                       uint32_t *out, struct moe_err *err)
{
    int status = MOE_OK;
    uint64_t value = 0, least = 0;
    for (struct moe_yaml_node *m = moe_yaml_members(list); m && status == MOE_OK; m = m->next) {
        status = moe_yaml_item_u64(doc, m, max, &value, err);
        if (status == MOE_OK && rising && value < least)
            status = moe_yaml_fail(doc, m, err, "'%s' must be rising", list->key);
        *out++ = (uint32_t)value;
        least = value + 1;
    }
    return status;
}

int moe_yaml_list_doubles(struct moe_yaml *doc, struct moe_yaml_node *list, double min, double *out,
                          struct moe_err *err)
{
    int status = MOE_OK;
    for (struct moe_yaml_node *m = moe_yaml_members(list); m && status == MOE_OK;
         m = m->next, out++) {
        status = moe_yaml_item_double(doc, m, out, err);
        if (status == MOE_OK && *out < min)
            status = moe_yaml_fail(doc, m, err, "'%s' must be at least %g", list->key, min);
    }
    return status;
}

int moe_yaml_check_format(struct moe_yaml *doc, const char *format, uint32_t newest,
                          uint32_t *version, struct moe_err *err)
{
    const char *found = NULL;
    uint64_t number = 0;
    int status = moe_yaml_get_text(doc, doc->root, "format", true, &found, err);
    if (status == MOE_OK && strcmp(found, format) != 0)
        status = moe_yaml_fail(doc, doc->root->first, err, "format is '%.40s', expected '%s'",
                               found, format);
    if (status == MOE_OK)
        status = moe_yaml_get_u64(doc, doc->root, "version", UINT32_MAX, true, &number, err);
    if (status == MOE_OK && (number == 0 || number > newest))
        status = moe_fail(err, MOE_ERR_VERSION,
                          "%s: %s version %" PRIu64 ", this program reads up to %" PRIu32,
                          doc->name, format, number, newest);
    if (version)
        *version = (uint32_t)number;
    return status;
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
    int status = MOE_OK;
    for (const struct moe_yaml_node *m = moe_yaml_members(node); m && status == MOE_OK;
         m = m->next) {
        if (m->key && !m->known)
            return moe_yaml_fail(doc, m, err, "unknown key '%.200s'", m->key);
        status = check_known(doc, m, err);
    }
    return status;
}

int moe_yaml_check_known(struct moe_yaml *doc, struct moe_err *err)
{
    return check_known(doc, doc->root, err);
}

static void mark_known(struct moe_yaml_node *node)
{
    node->known = true;
    for (struct moe_yaml_node *m = moe_yaml_members(node); m; m = m->next)
        mark_known(m);
}

void moe_yaml_ignore(struct moe_yaml_node *map, const char *key)
{
    struct moe_yaml_node *m = moe_yaml_get(map, key);
    if (m)
        mark_known(m);
}
