/*
 * One GGUF file's header, read forward and checked.
 */
#ifndef MOE_FMT_GGUF_INTERNAL_H
#define MOE_FMT_GGUF_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "fmt/gguf.h"
#include "fmt/tensor_list.h"

/* Types of metadata values, as files number them. */
enum gguf_type {
    GGUF_U8 = 0,
    GGUF_I8 = 1,
    GGUF_U16 = 2,
    GGUF_I16 = 3,
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_TEXT = 8,
    GGUF_ARRAY = 9,
    GGUF_U64 = 10,
    GGUF_I64 = 11,
    GGUF_F64 = 12,
    GGUF_N_TYPES
};
/* Bytes of a number or a truth value; 0 for texts, arrays and unknown types. */
uint32_t gguf_type_bytes(uint32_t type);
const char *gguf_type_name(uint32_t type);

/* The front of a file, read as far as needed. `err` describes the first failure; all later reads
 * give zeros. */
struct gguf_reader {
    const char *path;
    int fd;
    uint64_t file_bytes;
    struct moe_buf buf; /* the file's first bytes */
    uint64_t at;        /* the position of the next read */
    int status;
    struct moe_err *err;
};
/* Reads the next n bytes into the buffer and steps over them; returns their place, or UINT64_MAX.
 * `what` is for the error text. */
uint64_t gguf_take(struct gguf_reader *r, uint64_t n, const char *what);
uint32_t gguf_take_u32(struct gguf_reader *r, const char *what);
uint64_t gguf_take_u64(struct gguf_reader *r, const char *what);
/* Fails (MOE_ERR_FORMAT, "PATH: byte N: ...") unless the reader has already failed; returns its
 * status. */
int gguf_fail(struct gguf_reader *r, uint64_t at, const char *format, ...) MOE_PRINTF(3, 4);
/* Reads a text of at most max bytes: its length and place. */
uint64_t gguf_take_text(struct gguf_reader *r, uint64_t max, const char *what, uint64_t *n);

/* One key and its value. */
struct gguf_value {
    char *key;     /* owned */
    uint32_t type; /* an enum gguf_type */
    char *text;    /* a text's bytes and a NUL; owned */
    uint64_t text_bytes;
    uint64_t at;           /* place in the buffer: the number, or an array's first element */
    uint32_t element_type; /* an array's */
    uint64_t n;            /* an array's length */
    uint64_t *offsets;     /* an array of texts' (moe_gguf_array); owned */
};

/* A file's metadata. */
struct gguf_meta {
    struct moe_buf buf;        /* what the values point into */
    struct gguf_value *values; /* sorted by key */
    uint64_t n;
};
void gguf_meta_release(struct gguf_meta *meta);
/* Reads n values. */
int gguf_read_meta(struct gguf_reader *r, struct gguf_meta *meta, uint64_t n);
const struct gguf_value *gguf_find(const struct gguf_meta *meta, const char *key);
/* The value as a whole number that is not negative; false if it is not one. */
bool gguf_whole(const struct gguf_meta *meta, const struct gguf_value *v, uint64_t *out);

/* Reads the infos of n tensors, which end the header, and appends them with file number `file`.
 * `alignment`: of the data. */
int gguf_read_tensors(struct gguf_reader *r, struct moe_tensor_list *list, int file, uint64_t n,
                      uint64_t alignment);

struct moe_gguf {
    struct gguf_meta meta; /* the first part's */
    struct moe_tensor_files files;
};

/* The tensors, sorted by name; borrowed. */
static inline const struct moe_tensor_files *moe_gguf_files(const struct moe_gguf *gguf)
{
    return &gguf->files;
}

#endif
