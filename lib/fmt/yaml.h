/*
 * YAML files of the toolkit: statistics, bit maps, plans, device profiles, collections. A strict
 * subset of YAML 1.1 over libyaml: one document of mappings, sequences and scalars; no anchors,
 * aliases or tags; duplicate keys are refused. Errors give line and column.
 *
 * Reading marks the keys that were asked for: moe_yaml_check_known then names the first one that
 * was not.
 */
#ifndef MOE_FMT_YAML_H
#define MOE_FMT_YAML_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

struct moe_yaml;      /* a document */
struct moe_yaml_node; /* a value in it; borrowed */

/* Parses n bytes whose root is a mapping; `name` (a path) begins error texts. Released with
 * moe_yaml_free. MOE_ERR_FORMAT. */
int moe_yaml_parse(struct moe_yaml **out, const char *name, const void *text, uint64_t n,
                   struct moe_err *err);
/* Reads and parses a file of at most max_bytes. */
int moe_yaml_read(struct moe_yaml **out, const char *path, uint64_t max_bytes, struct moe_err *err);
void moe_yaml_free(struct moe_yaml *doc);

/* Memory that the text and the document take. */
uint64_t moe_yaml_bytes(const struct moe_yaml *doc);
struct moe_yaml_node *moe_yaml_root(struct moe_yaml *doc);

/* Checks that the root has `format: FORMAT` and `version: VERSION`. Another format is
 * MOE_ERR_FORMAT, another version MOE_ERR_VERSION. */
int moe_yaml_check_format(struct moe_yaml *doc, const char *format, uint32_t version,
                          struct moe_err *err);
/* Whether a file begins as one of that format (its first lines have `format: FORMAT`), to choose a
 * reader; false also if it cannot be read. */
bool moe_yaml_file_is(const char *path, const char *format);
/* MOE_ERR_FORMAT for the first key that was not asked for. */
int moe_yaml_check_known(struct moe_yaml *doc, struct moe_err *err);

/*
 * Members of a mapping. Each returns MOE_OK with *out set; a missing member (or null, "~") is
 * MOE_ERR_FORMAT when required, else leaves *out unchanged; a member of a wrong type or range is
 * always MOE_ERR_FORMAT.
 */
int moe_yaml_get_u64(struct moe_yaml *doc, struct moe_yaml_node *map, const char *key, uint64_t max,
                     bool required, uint64_t *out, struct moe_err *err);
int moe_yaml_get_u32(struct moe_yaml *doc, struct moe_yaml_node *map, const char *key, uint32_t max,
                     bool required, uint32_t *out, struct moe_err *err);
int moe_yaml_get_double(struct moe_yaml *doc, struct moe_yaml_node *map, const char *key,
                        bool required, double *out, struct moe_err *err);
int moe_yaml_get_bool(struct moe_yaml *doc, struct moe_yaml_node *map, const char *key,
                      bool required, bool *out, struct moe_err *err);
/* Borrowed from the document. */
int moe_yaml_get_text(struct moe_yaml *doc, struct moe_yaml_node *map, const char *key,
                      bool required, const char **out, struct moe_err *err);
/* 16 hexadecimal digits, small letters. */
int moe_yaml_get_fingerprint(struct moe_yaml *doc, struct moe_yaml_node *map, const char *key,
                             bool required, uint64_t *out, struct moe_err *err);
int moe_yaml_get_map(struct moe_yaml *doc, struct moe_yaml_node *map, const char *key,
                     bool required, struct moe_yaml_node **out, struct moe_err *err);
/* The member, of any kind; NULL if missing (or null). */
struct moe_yaml_node *moe_yaml_get(struct moe_yaml_node *map, const char *key);
/* *out: the sequence; *n: its length. */
int moe_yaml_get_list(struct moe_yaml *doc, struct moe_yaml_node *map, const char *key,
                      bool required, struct moe_yaml_node **out, uint64_t *n, struct moe_err *err);

/* A required sequence of exactly n items. */
int moe_yaml_get_list_of(struct moe_yaml *doc, struct moe_yaml_node *map, const char *key,
                         uint64_t n, struct moe_yaml_node **out, struct moe_err *err);

/* Iterates over the members of a sequence; NULL at the end. */
struct moe_yaml_node *moe_yaml_first(struct moe_yaml_node *list);
struct moe_yaml_node *moe_yaml_next(struct moe_yaml_node *item);
/* Members of a sequence or mapping; 0 for a scalar. */
uint64_t moe_yaml_length(const struct moe_yaml_node *node);
/* Iterates over a mapping whose keys are data ("experts: {3: 4d8, 7: 2}"): the first member's
 * value, then on as above; _key returns its key and marks it as known. */
const char *moe_yaml_key(struct moe_yaml_node *value);

/* A sequence's item as a number, a text, a mapping or a sequence. */
int moe_yaml_item_u64(struct moe_yaml *doc, struct moe_yaml_node *item, uint64_t max, uint64_t *out,
                      struct moe_err *err);
int moe_yaml_item_i64(struct moe_yaml *doc, struct moe_yaml_node *item, int64_t *out,
                      struct moe_err *err);
int moe_yaml_item_double(struct moe_yaml *doc, struct moe_yaml_node *item, double *out,
                         struct moe_err *err);
int moe_yaml_item_text(struct moe_yaml *doc, struct moe_yaml_node *item, const char **out,
                       struct moe_err *err);
int moe_yaml_item_fingerprint(struct moe_yaml *doc, struct moe_yaml_node *item, uint64_t *out,
                              struct moe_err *err);
int moe_yaml_item_map(struct moe_yaml *doc, struct moe_yaml_node *item, struct moe_err *err);
int moe_yaml_item_list(struct moe_yaml *doc, struct moe_yaml_node *item, struct moe_err *err);

/* The items of a sequence as numbers; out: room for all. Whole ones are at most max and, if
 * `rising`, each greater than the one before; others are at least min. */
int moe_yaml_list_u32s(struct moe_yaml *doc, struct moe_yaml_node *list, uint32_t max, bool rising,
                       uint32_t *out, struct moe_err *err);
int moe_yaml_list_doubles(struct moe_yaml *doc, struct moe_yaml_node *list, double min, double *out,
                          struct moe_err *err);

/* Fails at a node: "PATH: line 3 column 7: TEXT", with MOE_ERR_FORMAT. */
int moe_yaml_fail(struct moe_yaml *doc, const struct moe_yaml_node *node, struct moe_err *err,
                  const char *format, ...) MOE_PRINTF(4, 5);

#endif
