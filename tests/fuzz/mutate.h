/*
 * Mutations that know what an input is made of, where those of single bytes seldom get past the
 * first checks: texts of lines and numbers (FUZZ_MUTATE_TEXT), and sequences of pieces with their
 * lengths (FUZZ_MUTATE_PIECES), whose lengths are put right again, most of the time. One of them
 * stands at the end of a target. Checksums are made by the targets, which also leave some wrong.
 */
#ifndef TESTS_FUZZ_MUTATE_H
#define TESTS_FUZZ_MUTATE_H

#include "base/bytes.h"
#include "base/random.h"
#include "fuzz.h"

size_t LLVMFuzzerMutate(uint8_t *data, size_t n, size_t max);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t max, unsigned int seed);

/* Replaces n bytes at `at` by `with`, as far as there is room; returns the new size. */
static inline size_t mutate_replace(uint8_t *data, size_t size, size_t max, size_t at, size_t n,
                                    const uint8_t *with, size_t n_with)
{
    if (size - n + n_with > max)
        return size;
    memmove(data + at + n_with, data + at + n, size - at - n);
    memcpy(data + at, with, n_with);
    return size - n + n_with;
}

/* ---- Texts ---- */

struct mutate_range {
    size_t at, n;
};

/* A line, its newline included. */
static inline struct mutate_range mutate_line(const uint8_t *data, size_t n, uint64_t *rng)
{
    size_t at = moe_random_next(rng) % n, end = at;
    while (at > 0 && data[at - 1] != '\n')
        at--;
    while (end < n && data[end] != '\n')
        end++;
    return (struct mutate_range){at, end - at + (end < n)};
}

/* A run of characters that numbers have, at or after a random place; n is 0 where there is none. */
static inline struct mutate_range mutate_number(const uint8_t *data, size_t n, uint64_t *rng)
{
    size_t at = moe_random_next(rng) % n, end;
    while (at < n && (data[at] < '0' || data[at] > '9'))
        at++;
    while (at > 0 && at < n && data[at - 1] >= '0' && data[at - 1] <= '9')
        at--;
    for (end = at; end < n && strchr("0123456789.eE", data[end]) && data[end];)
        end++;
    return (struct mutate_range){at, end - at};
}

static inline size_t mutate_change_number(uint8_t *data, size_t n, size_t max, uint64_t *rng)
{
    static const char *const ends[] = {"0",          "1",  "-1",  "0.5",
                                       "4294967295", "~",  "1e9", "18446744073709551615",
                                       "1e-30",      "64", "4096"};
    struct mutate_range r = mutate_number(data, n, rng);
    char text[32];
    snprintf(text, sizeof text, "%.*s", r.n < 24 ? (int)r.n : 24, (const char *)data + r.at);
    if (moe_random_next(rng) % 2)
        snprintf(text, sizeof text, "%lld",
                 (long long)((uint64_t)strtoll(text, NULL, 10) + moe_random_next(rng) % 5 - 2));
    else
        snprintf(text, sizeof text, "%s",
                 ends[moe_random_next(rng) % (sizeof ends / sizeof ends[0])]);
    return mutate_replace(data, n, max, r.at, r.n, (const uint8_t *)text, strlen(text));
}

/* A line is dropped, doubled, or takes the place of another. */
static inline size_t mutate_move_line(uint8_t *data, size_t n, size_t max, uint64_t *rng)
{
    static uint8_t line[1 << 12];
    struct mutate_range from = mutate_line(data, n, rng), to = mutate_line(data, n, rng);
    uint64_t what = moe_random_next(rng) % 3;
    if (from.n > sizeof line)
        return LLVMFuzzerMutate(data, n, max);
    memcpy(line, data + from.at, from.n);
    return what == 0 ? mutate_replace(data, n, max, from.at, from.n, line, 0)
                     : mutate_replace(data, n, max, to.at, what == 1 ? 0 : to.n, line, from.n);
}

static inline size_t mutate_text(uint8_t *data, size_t n, size_t max, uint64_t *rng)
{
    uint64_t what = n ? moe_random_next(rng) % 4 : 3;
    return what == 0   ? mutate_change_number(data, n, max, rng)
           : what == 1 ? mutate_move_line(data, n, max, rng)
                       : LLVMFuzzerMutate(data, n, max);
}

#define FUZZ_MUTATE_TEXT                                                                           \
    size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t max, unsigned int seed)         \
    {                                                                                              \
        uint64_t rng = seed;                                                                       \
        return mutate_text(data, n, max, &rng);                                                    \
    }

/* ---- Pieces ---- */

/* An input is `front` bytes, then pieces: a head that ends with the length of what follows. */
struct mutate_pieces {
    size_t front, head;
    size_t length_bytes; /* 2 or 4 */
    bool text;           /* what follows is mostly text */
};

/* The piece at a random place; n is 0 where there is none. */
static inline struct mutate_range mutate_piece(const struct mutate_pieces *p, const uint8_t *data,
                                               size_t n, uint64_t *rng)
{
    enum { MOST = 64 };
    struct mutate_range pieces[MOST];
    size_t n_pieces = 0;
    for (size_t at = p->front; at + p->head <= n && n_pieces < MOST;) {
        const uint8_t *length = data + at + p->head - p->length_bytes;
        uint64_t inside = p->length_bytes == 2 ? moe_get_u16(length) : moe_get_u32(length);
        size_t left = n - at - p->head;
        pieces[n_pieces] = (struct mutate_range){at, p->head + (inside < left ? inside : left)};
        at += pieces[n_pieces++].n;
    }
    return n_pieces ? pieces[moe_random_next(rng) % n_pieces] : (struct mutate_range){n, 0};
}

/* Mutates what is in one piece and puts its length right. */
static inline size_t mutate_inside(const struct mutate_pieces *p, uint8_t *data, size_t n,
                                   size_t max, uint64_t *rng)
{
    static uint8_t inside[1 << 16];
    struct mutate_range piece = mutate_piece(p, data, n, rng);
    size_t had = piece.n - p->head, room = had + (max - n);
    if (!piece.n || had > sizeof inside)
        return LLVMFuzzerMutate(data, n, max);
    room = room < sizeof inside ? room : sizeof inside;
    room = room < UINT16_MAX / 2 ? room : UINT16_MAX / 2;
    if (room < had || room == 0)
        return LLVMFuzzerMutate(data, n, max);
    memcpy(inside, data + piece.at + p->head, had);
    size_t has =
        p->text ? mutate_text(inside, had, room, rng) : LLVMFuzzerMutate(inside, had, room);
    uint8_t *length = data + piece.at + p->head - p->length_bytes;
    if (p->length_bytes == 2)
        moe_put_u16(length, (uint16_t)has);
    else
        moe_put_u32(length, (uint32_t)has);
    return mutate_replace(data, n, max, piece.at + p->head, had, inside, has);
}

/* A piece is dropped, doubled, or takes the place of another. */
static inline size_t mutate_move_piece(const struct mutate_pieces *p, uint8_t *data, size_t n,
                                       size_t max, uint64_t *rng)
{
    static uint8_t copy[1 << 16];
    struct mutate_range from = mutate_piece(p, data, n, rng), to = mutate_piece(p, data, n, rng);
    uint64_t what = moe_random_next(rng) % 3;
    if (!from.n || from.n > sizeof copy)
        return LLVMFuzzerMutate(data, n, max);
    memcpy(copy, data + from.at, from.n);
    return what == 0 ? mutate_replace(data, n, max, from.at, from.n, copy, 0)
                     : mutate_replace(data, n, max, to.at, what == 1 ? 0 : to.n, copy, from.n);
}

static inline size_t mutate_pieces(const struct mutate_pieces *p, uint8_t *data, size_t n,
                                   size_t max, uint64_t *rng)
{
    uint64_t what = moe_random_next(rng) % 8;
    return what < 5    ? mutate_inside(p, data, n, max, rng)
           : what == 5 ? mutate_move_piece(p, data, n, max, rng)
                       : LLVMFuzzerMutate(data, n, max);
}

#define FUZZ_MUTATE_PIECES(...)                                                                    \
    size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t max, unsigned int seed)         \
    {                                                                                              \
        static const struct mutate_pieces pieces = {__VA_ARGS__};                                  \
        uint64_t rng = seed;                                                                       \
        return mutate_pieces(&pieces, data, n, max, &rng);                                         \
    }

#endif
