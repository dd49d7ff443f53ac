/*
 * Records: structs that are files. One table of members (key, type, place in the struct, range,
 * whether it may be missing) reads, checks and writes a mapping of a YAML file, or writes it as
 * JSON. Mappings and lists of mappings within it are members with their own tables; a function
 * beside the table does what no table can say (checks across members, lists of another shape).
 *
 * A member's type is that of the field: char[], bool, uint32_t, uint64_t, double. Members are
 * written and read in the order of the table: a check may rely on everything before it.
 */
#ifndef MOE_FMT_RECORD_H
#define MOE_FMT_RECORD_H

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fmt/emit.h"
#include "fmt/yaml.h"

struct moe_record_reader {
    struct moe_yaml *doc;
    void *whole; /* the document's record */
    struct moe_err *err;
};

struct moe_record_writer {
    struct moe_emit emit;
    const void *whole;
};

enum moe_presence {
    MOE_ALWAYS,   /* a file without it is damaged; a text must not be empty */
    MOE_IF_SET,   /* missing: 0, false or ""; written if above that, and finite */
    MOE_IF_KNOWN, /* missing: -1, or UINT32_MAX; written if at least 0, and finite */
};

enum moe_member_type {
    MOE_MEMBER_TEXT,
    MOE_MEMBER_BOOL,
    MOE_MEMBER_U32,
    MOE_MEMBER_U64,
    MOE_MEMBER_DOUBLE,
    MOE_MEMBER_FINGERPRINT, /* uint64_t as 16 hexadecimal digits */
    MOE_MEMBER_NAME,        /* an enum as one of its names */
    MOE_MEMBER_MAP,         /* a mapping with a table of its own */
    MOE_MEMBER_GROUP,       /* more members of the same mapping, where their record is there */
    MOE_MEMBER_LIST,        /* of mappings */
    MOE_MEMBER_OWN,         /* read and written by functions */
};

struct moe_record;
struct moe_member;

/* Functions that read and write a format's own members; `record`: the struct that `map` is read
 * into, or that is written. They judge a missing member. */
struct moe_member_own {
    int (*read)(struct moe_record_reader *r, struct moe_yaml_node *map, const struct moe_member *m,
                void *record);
    void (*write)(struct moe_record_writer *w, const struct moe_member *m, const void *record);
    /* Whether it makes its section be written; NULL: yes, and `write` decides for itself. */
    bool (*is_there)(const struct moe_member *m, const void *record);
};

struct moe_member {
    const char *key;
    enum moe_member_type type;
    enum moe_presence presence;
    bool in_line;    /* a mapping, or each of a list, on one line of YAML */
    bool owned;      /* a list: the field points to its items */
    bool rising;     /* a number of a list's items: greater than in the item before */
    size_t at;       /* offset in the struct */
    size_t bytes;    /* bytes of the field, or of a list's item */
    double min, max; /* range of a number; HUGE_VAL: what the type holds; max of a list: its items;
                        of an enum: its names */
    size_t n_at;     /* a list's: the offset of its length, uint32_t */
    const char *const *names;        /* an enum's */
    const struct moe_record *record; /* the table of a mapping, a group, a list's items */
    const struct moe_member_own *own;
};

struct moe_record {
    const struct moe_member *members;
    size_t n;
    /* Checks a mapping after all its members have been read; NULL: nothing to check. */
    int (*check)(struct moe_record_reader *r, struct moe_yaml_node *map, void *record);
    /* Whether there is such a mapping to write; NULL: if any member has something to write. */
    bool (*is_there)(const void *record);
    bool flagged;   /* ... or if a bool of the struct says so, which reading sets */
    size_t flag_at; /* its offset */
};

/* ---- Entries of tables ---- */

#define MOE_RECORD(table_) .members = (table_), .n = sizeof(table_) / sizeof(table_)[0]

#define MOE_FIELD_OF(type_, field) (((type_ *)0)->field)
#define MOE_FLAGGED(type_, field) .flagged = true, .flag_at = offsetof(type_, field)
/* clang-format off */
#define MOE_FIELD_TYPE(value)                                                                      \
    _Generic((value), char * : MOE_MEMBER_TEXT, bool : MOE_MEMBER_BOOL, uint32_t : MOE_MEMBER_U32, \
             uint64_t : MOE_MEMBER_U64, double : MOE_MEMBER_DOUBLE)
#define MOE_FIELD_PLACE(type_, field)                                                              \
    .at = offsetof(type_, field), .bytes = sizeof MOE_FIELD_OF(type_, field)

/* `field` of struct type_, a number (if it is one) from min_ to max_. */
#define MOE_FIELD_IN(presence_, type_, key_, field, min_, max_)                                    \
    {.key = key_, .type = MOE_FIELD_TYPE(MOE_FIELD_OF(type_, field)), .presence = presence_,       \
     MOE_FIELD_PLACE(type_, field), .min = min_, .max = max_}
/* ... at least 0. */
#define MOE_FIELD(presence_, type_, key_, field)                                                   \
    MOE_FIELD_IN(presence_, type_, key_, field, 0, HUGE_VAL)
/* ... of a list's items, each greater than the one before; always present. */
#define MOE_RISING_FIELD(type_, key_, field, min_, max_)                                           \
    {.key = key_, .type = MOE_FIELD_TYPE(MOE_FIELD_OF(type_, field)), .presence = MOE_ALWAYS,      \
     MOE_FIELD_PLACE(type_, field), .min = min_, .max = max_, .rising = true}
#define MOE_FINGERPRINT(presence_, type_, key_, field)                                             \
    {.key = key_, .type = MOE_MEMBER_FINGERPRINT, .presence = presence_,                           \
     MOE_FIELD_PLACE(type_, field)}
/* An enum as one of names_, an array. Where it may be missing, it is then 0. */
#define MOE_NAME(presence_, type_, key_, field, names_)                                            \
    {.key = key_, .type = MOE_MEMBER_NAME, .presence = presence_, MOE_FIELD_PLACE(type_, field),   \
     .names = names_, .max = sizeof(names_) / sizeof(names_)[0]}
/* A mapping, read into the struct at offset at_ by record_. */
#define MOE_SECTION(presence_, key_, at_, record_)                                                 \
    {.key = key_, .type = MOE_MEMBER_MAP, .presence = presence_, .at = at_, .record = &(record_)}
#define MOE_LINE_SECTION(presence_, key_, at_, record_)                                            \
    {.key = key_, .type = MOE_MEMBER_MAP, .presence = presence_, .at = at_, .record = &(record_),  \
     .in_line = true}
#define MOE_GROUP(record_)                                                                         \
    {.type = MOE_MEMBER_GROUP, .presence = MOE_IF_SET, .record = &(record_)}
/* A list that may be missing; `field`: an array for its items, n_field: their number. */
#define MOE_LIST(type_, key_, field, n_field, record_)                                             \
    {.key = key_, .type = MOE_MEMBER_LIST, .presence = MOE_IF_SET, .at = offsetof(type_, field),   \
     .bytes = sizeof MOE_FIELD_OF(type_, field[0]), .n_at = offsetof(type_, n_field),              \
     .max = sizeof MOE_FIELD_OF(type_, field) / sizeof MOE_FIELD_OF(type_, field[0]),              \
     .record = &(record_)}
/* ... with a line for each item. */
#define MOE_LINE_LIST(type_, key_, field, n_field, record_)                                        \
    {.key = key_, .type = MOE_MEMBER_LIST, .presence = MOE_IF_SET, .at = offsetof(type_, field),   \
     .bytes = sizeof MOE_FIELD_OF(type_, field[0]), .n_at = offsetof(type_, n_field),              \
     .max = sizeof MOE_FIELD_OF(type_, field) / sizeof MOE_FIELD_OF(type_, field[0]),              \
     .record = &(record_), .in_line = true}
/* ... where `field` points to at most max_ items, which reading allocates (free). */
#define MOE_OWNED_LINE_LIST(type_, key_, field, n_field, record_, max_)                            \
    {.key = key_, .type = MOE_MEMBER_LIST, .presence = MOE_IF_SET, .at = offsetof(type_, field),   \
     .bytes = sizeof MOE_FIELD_OF(type_, field[0]), .n_at = offsetof(type_, n_field),              \
     .max = max_, .record = &(record_), .in_line = true, .owned = true}
#define MOE_OWN(key_, at_, own_)                                                                   \
    {.key = key_, .type = MOE_MEMBER_OWN, .presence = MOE_IF_SET, .at = at_, .own = &(own_)}
/* clang-format on */

/* A number above 0, as the least of a range. */
#define MOE_ABOVE_0 DBL_MIN
/* A double, and so every reader of JSON, holds whole numbers up to here exactly; larger ones are
 * refused. */
#define MOE_MAX_WHOLE (UINT64_C(1) << 53)

/* ---- Whole files ---- */

struct moe_record_format {
    const char *name; /* "moe-plan" */
    const char *title;
    uint32_t version;
    uint64_t max_bytes; /* limit of a file */
    const struct moe_record *record;
    const char *page;             /* its page in section 5; NULL: the name */
    size_t bytes;                 /* of the struct */
    void (*release)(void *whole); /* frees what the struct points to; NULL: nothing */
};

/* Reads a file into a struct of its own. out: a pointer to a pointer to one; it becomes NULL on
 * errors. MOE_ERR_FORMAT with line and column, MOE_ERR_VERSION, MOE_ERR_IO, MOE_ERR_MEMORY. */
int moe_record_read(const struct moe_record_format *format, void *out, const char *path,
                    struct moe_err *err);
/* ... from n bytes of text; `name` begins error texts. */
int moe_record_parse(const struct moe_record_format *format, void *out, const char *name,
                     const void *text, uint64_t n, struct moe_err *err);
/* Releases a struct that reading made; NULL: nothing happens. */
void moe_record_free(const struct moe_record_format *format, void *whole);
/* Appends the file's YAML, or one JSON object of the same members. MOE_ERR_MEMORY; MOE_ERR_USAGE: a
 * number is not finite. */
int moe_record_write(const struct moe_record_format *format, const void *whole, bool json,
                     struct moe_buf *out, struct moe_err *err);

/* ---- For formats' own members ---- */

/* Reads one member of `map` as the tables do. */
int moe_record_read_member(struct moe_record_reader *r, struct moe_yaml_node *map,
                           const struct moe_member *m, void *record);
/* Reads all members of the table and runs its check. */
int moe_record_read_map(struct moe_record_reader *r, struct moe_yaml_node *map,
                        const struct moe_record *table, void *record);
void moe_record_write_map(struct moe_record_writer *w, const struct moe_record *table,
                          const void *record);
bool moe_record_is_there(const struct moe_record *table, const void *record);
/* Sets a struct to what it has where the file says nothing; for tables without mappings and lists.
 */
void moe_record_clear(const struct moe_record *table, void *record);

#endif
