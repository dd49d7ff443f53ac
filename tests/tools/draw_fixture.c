/*
 * Draws the weight files of a fixture: draw_fixture DESCRIPTION DIRECTORY. They are random, so they
 * need not be kept: the description says what they hold, line by line, and they are the same on
 * every machine.
 *
 *     seed 12                                           of all numbers below
 *     file model.safetensors                            the tensors that follow go into it
 *     BF16 260x44 embed.weight normal 0.35 0            deviation, mean
 *     #0-2 @0-5 F16 18x44 layers.#.experts.@.up uniform -1 1    of each # and each @
 *     F32 3 scale values 3f800000 40000000 0            bits
 *     I64 4x2 table digits 01120213
 *     F32 2x2 ones is 1
 *     F32 8x8 join eye 0.05                             1 on the diagonal, and this deviation
 *     BF16 44 norm near other.norm 0.9 1.1 0            another's numbers times uniform ones; those
 *                                                       are told less the last
 *     put ones 2 40000000                               the bits of a number that is another, and
 *                                                       of those after it
 *
 * A GGUF file may follow, which makes its tensors of others:
 *
 *     file model.gguf
 *     kv llama.block_count u32 3                        metadata: string, u32, i32, f32, bool
 *     kv llama.rope.dimension_sections i32[] 2 2 2 0    an array
 *     kv tokenizer.ggml.tokens string[] <../gguf/tokens    of the lines of a file
 *     #0-2 F16 6x18x44 blk.#.up = @0-5:layers.#.experts.@.up    whole ones, one after the other
 *     F32 44 q = q_proj[0:2*22,22*1] plus 1             numbers from 0 on: twice, 22 apart, 22 that
 *                                                       follow
 */
#define _POSIX_C_SOURCE 200809L

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/float16.h"
#include "base/random.h"

enum { MAX_DIMS = 5, MAX_LOOPS = 8, MAX_NAME = 200, MAX_WORDS = 4096, GGUF_ALIGNMENT = 32 };

struct type {
    const char *name;
    uint32_t bytes, ggml;
};
static const struct type types[] = {
    {"F32", 4, 0}, {"F16", 2, 1}, {"BF16", 2, 30}, {"I32", 4, 26}, {"I64", 8, 27}};

struct tensor {
    char name[MAX_NAME];
    const struct type *type;
    uint32_t n_dims;
    uint64_t dims[MAX_DIMS], n; /* outermost first; numbers */
    float *values;
};

struct range {
    char sign;
    uint64_t first, last;
};

static const char *path; /* of the description */
static uint32_t line_number;
static uint64_t seed;
static struct tensor *tensors;
static uint32_t n_tensors, first_in_file;
static struct moe_buf metadata;
static uint64_t n_metadata;

static _Noreturn void stop(const char *what, const char *which)
{
    fprintf(stderr, "draw_fixture: %s:%u: %s: %s\n", path, line_number, what, which);
    exit(1);
}

static void *checked(void *memory)
{
    if (!memory)
        stop("out of memory", "a smaller fixture, please");
    return memory;
}

static double number(const char *word)
{
    char *end = NULL;
    double value = word ? strtod(word, &end) : 0;
    if (!word || end == word || *end)
        stop("not a number", word ? word : "nothing");
    return value;
}

static const struct tensor *find_tensor(const char *name)
{
    for (uint32_t i = 0; i < n_tensors; i++)
        if (strcmp(tensors[i].name, name) == 0)
            return &tensors[i];
    stop("no such tensor", name);
}

/* ---- Numbers ---- */

static uint64_t stream_of(const char *name)
{
    uint64_t state = seed;
    for (; *name; name++) {
        state ^= (uint8_t)*name;
        state = moe_random_next(&state);
    }
    return state;
}

/* The sum of four uniform numbers, which is nearly normal, with deviation 1. */
static double draw_normal(uint64_t *state)
{
    uint64_t bits = moe_random_next(state);
    int64_t sum =
        (int64_t)((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
    return (double)(sum - 2 * 0xffff) / 37837.0;
}

static float as_stored(const struct type *type, double value)
{
    float v = (float)value;
    if (strcmp(type->name, "F16") == 0)
        return moe_round_f16(v);
    return strcmp(type->name, "BF16") == 0 ? moe_bf16_to_f32(moe_f32_to_bf16(v)) : v;
}

static void draw(struct tensor *t, char *const *words, bool normal)
{
    uint64_t state = stream_of(t->name);
    double a = number(words[0]), b = number(words[1]);
    for (uint64_t i = 0; i < t->n; i++) {
        double part = normal ? a * draw_normal(&state)
                             : (b - a) * ((double)(moe_random_next(&state) >> 40) * 0x1p-24);
        t->values[i] = as_stored(t->type, (normal ? b : a) + part);
    }
}

/* Another tensor's numbers, each times one between two. What is stored is less than them by an
 * offset. */
static void draw_near(struct tensor *t, char *const *words)
{
    uint64_t state = stream_of(t->name);
    const struct tensor *from = find_tensor(words[0] ? words[0] : "nothing");
    double low = number(words[1]), high = number(words[2]), offset = number(words[3]);
    if (from->n != t->n)
        stop("of another size", from->name);
    for (uint64_t i = 0; i < t->n; i++) {
        double factor = low + (high - low) * ((double)(moe_random_next(&state) >> 40) * 0x1p-24);
        t->values[i] = as_stored(t->type, (from->values[i] + offset) * factor - offset);
    }
}

static void draw_eye(struct tensor *t, char *const *words)
{
    uint64_t state = stream_of(t->name), cols = t->dims[t->n_dims - 1];
    double deviation = number(words[0]);
    for (uint64_t i = 0; i < t->n; i++)
        t->values[i] = as_stored(t->type, (i / cols == i % cols) + deviation * draw_normal(&state));
}

/* Appends numbers of a tensor, "NAME" or "NAME[FIRST:COUNT*STEP,...]", outermost loop first. */
static void copy_piece(struct tensor *t, uint64_t *at, char *piece, double plus)
{
    uint64_t count[MAX_LOOPS] = {0}, step[MAX_LOOPS] = {0}, n_loops = 0, first = 0, n = 1;
    char *view = strchr(piece, '[');
    if (view) {
        *view++ = 0;
        first = strtoull(view, &view, 10);
        while (*view == ':' || *view == ',') {
            count[n_loops] = strtoull(view + 1, &view, 10);
            step[n_loops] = *view == '*' ? strtoull(view + 1, &view, 10) : 0;
            n *= count[n_loops++];
            if (n_loops == MAX_LOOPS)
                stop("too many loops", piece);
        }
        if (strcmp(view, "]") != 0)
            stop("what part of it?", piece);
    }
    const struct tensor *from = find_tensor(piece);
    if (!view)
        n = from->n;
    if (n > t->n - *at)
        stop("more numbers than the tensor has", t->name);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t index = view ? first : i, rest = i;
        for (uint64_t k = n_loops; k-- > 0; rest /= count[k])
            index += rest % count[k] * step[k];
        if (index >= from->n)
            stop("beyond the tensor's end", piece);
        t->values[(*at)++] = as_stored(t->type, (double)from->values[index] + plus);
    }
}

static void replace_sign(char *to, const char *from, char sign, uint64_t value)
{
    int n = 0;
    for (; *from; from++)
        n += *from == sign
                 ? snprintf(to + n, (size_t)(MAX_NAME - n), "%llu", (unsigned long long)value)
                 : snprintf(to + n, (size_t)(MAX_NAME - n), "%c", *from);
    if (n >= MAX_NAME)
        stop("too long a name", from);
}

static struct range read_range(const char *word, char **end)
{
    struct range r = {.sign = *word};
    r.first = strtoull(word + 1, end, 10);
    r.last = **end == '-' ? strtoull(*end + 1, end, 10) : r.first;
    return r;
}

static void copy_pieces(struct tensor *t, char *const *words)
{
    uint64_t at = 0;
    double plus = 0;
    int n = 0;
    for (; words[n] && strcmp(words[n], "plus") != 0; n++)
        continue;
    if (words[n])
        plus = number(words[n + 1]);
    for (int i = 0; i < n; i++) {
        char name[MAX_NAME], *piece = words[i];
        struct range r = {0};
        if (*piece == '@') {
            r = read_range(piece, &piece);
            piece++; /* the colon */
        }
        for (uint64_t k = r.first; k <= r.last; k++) {
            replace_sign(name, piece, '@', k);
            copy_piece(t, &at, name, plus);
        }
    }
    if (at != t->n)
        stop("fewer numbers than the tensor has", t->name);
}

static void fill(struct tensor *t, char *const *words)
{
    const char *rule = words[0] ? words[0] : "nothing";
    if (strcmp(rule, "normal") == 0 || strcmp(rule, "uniform") == 0)
        draw(t, words + 1, *rule == 'n');
    else if (strcmp(rule, "near") == 0)
        draw_near(t, words + 1);
    else if (strcmp(rule, "eye") == 0)
        draw_eye(t, words + 1);
    else if (strcmp(rule, "=") == 0)
        copy_pieces(t, words + 1);
    else if (strcmp(rule, "is") == 0)
        for (uint64_t i = 0; i < t->n; i++)
            t->values[i] = as_stored(t->type, number(words[1]));
    else if (strcmp(rule, "digits") == 0 && words[1] && strlen(words[1]) == t->n)
        for (uint64_t i = 0; i < t->n; i++)
            t->values[i] = (float)(words[1][i] - '0');
    else if (strcmp(rule, "values") == 0)
        for (uint64_t i = 0; i < t->n; i++) {
            if (!words[i + 1])
                stop("fewer numbers than the tensor has", t->name);
            t->values[i] = moe_bits_f32((uint32_t)strtoul(words[i + 1], NULL, 16));
        }
    else
        stop("how are its numbers drawn?", rule);
}

/* ---- Files ---- */

static uint64_t data_bytes(const struct tensor *t)
{
    return t->n * t->type->bytes;
}

static void put_data(struct moe_buf *out, const struct tensor *t)
{
    for (uint64_t i = 0; i < t->n; i++) {
        float v = t->values[i];
        switch (t->type->ggml) {
        case 0:
            moe_buf_f32(out, v);
            break;
        case 1:
            moe_buf_u16(out, moe_f32_to_f16(v));
            break;
        case 30:
            moe_buf_u16(out, moe_f32_to_bf16(v));
            break;
        case 26:
            moe_buf_u32(out, (uint32_t)v);
            break;
        default:
            moe_buf_u64(out, (uint64_t)v);
        }
    }
}

static void write_safetensors(struct moe_buf *out)
{
    struct moe_buf head = {0};
    uint64_t at = 0;
    for (uint32_t i = first_in_file; i < n_tensors; i++) {
        const struct tensor *t = &tensors[i];
        moe_buf_printf(&head, "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[", at ? ',' : '{', t->name,
                       t->type->name);
        for (uint32_t d = 0; d < t->n_dims; d++)
            moe_buf_printf(&head, "%s%llu", d ? "," : "", (unsigned long long)t->dims[d]);
        moe_buf_printf(&head, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                       (unsigned long long)(at + data_bytes(t)));
        at += data_bytes(t);
    }
    moe_buf_text(&head, "}");
    while (head.size % 8)
        moe_buf_text(&head, " ");
    moe_buf_u64(out, head.size);
    moe_buf_append(out, head.data, head.size);
    for (uint32_t i = first_in_file; i < n_tensors; i++)
        put_data(out, &tensors[i]);
    moe_buf_release(&head);
}

static void put_text(struct moe_buf *out, const char *text, uint64_t n)
{
    moe_buf_u64(out, n);
    moe_buf_append(out, text, n);
}

static void align(struct moe_buf *out)
{
    while (out->size % GGUF_ALIGNMENT)
        moe_buf_u8(out, 0);
}

static void write_gguf(struct moe_buf *out)
{
    uint64_t at = 0;
    moe_buf_text(out, "GGUF");
    moe_buf_u32(out, 3);
    moe_buf_u64(out, n_tensors - first_in_file);
    moe_buf_u64(out, n_metadata);
    moe_buf_append(out, metadata.data, metadata.size);
    for (uint32_t i = first_in_file; i < n_tensors; i++) {
        const struct tensor *t = &tensors[i];
        put_text(out, t->name, strlen(t->name));
        moe_buf_u32(out, t->n_dims);
        for (uint32_t d = t->n_dims; d-- > 0;)
            moe_buf_u64(out, t->dims[d]);
        moe_buf_u32(out, t->type->ggml);
        moe_buf_u64(out, at);
        at += (data_bytes(t) + GGUF_ALIGNMENT - 1) / GGUF_ALIGNMENT * GGUF_ALIGNMENT;
    }
    for (uint32_t i = first_in_file; i < n_tensors; i++) {
        align(out);
        put_data(out, &tensors[i]);
    }
    align(out);
}

static void write_file(const char *directory, const char *name)
{
    struct moe_buf out = {0};
    struct moe_err err = {0};
    char *to = checked(moe_path_join(directory, name, &err));
    if (strstr(name, ".gguf"))
        write_gguf(&out);
    else
        write_safetensors(&out);
    if (out.failed || metadata.failed)
        stop("out of memory", name);
    if (moe_file_write_all(to, out.data, out.size, &err) != MOE_OK)
        stop("not written", err.text);
    moe_buf_release(&out);
    moe_buf_clear(&metadata);
    n_metadata = 0;
    free(to);
}

/* ---- The description ---- */

struct value_type {
    const char *name;
    uint32_t number;
};
static const struct value_type value_types[] = {{"string", 8}, {"u32", 4},  {"i32", 5},
                                                {"f32", 6},    {"bool", 7}, {"u64", 10}};

static void put_value(struct moe_buf *out, const struct value_type *type, const char *text)
{
    switch (type->number) {
    case 4:
        moe_buf_u32(out, (uint32_t)number(text));
        break;
    case 5:
        moe_buf_u32(out, (uint32_t)(int32_t)number(text));
        break;
    case 6:
        moe_buf_f32(out, (float)number(text));
        break;
    case 7:
        moe_buf_u8(out, (uint8_t)number(text));
        break;
    case 10: /* no double holds them all */
        moe_buf_u64(out, strtoull(text, NULL, 10));
        break;
    default:
        put_text(out, text, strlen(text));
    }
}

/* A value for each line of a file, which is named from the description's directory. Returns their
 * number. */
static uint64_t put_lines(struct moe_buf *out, const struct value_type *type, const char *name)
{
    struct moe_err err = {0};
    struct moe_buf text = {0};
    char *directory = checked(moe_path_directory(path, &err)),
         *from = checked(moe_path_join(directory, name, &err));
    uint64_t n = 0;
    if (moe_file_read_all(from, 1 << 20, &text, &err) != MOE_OK)
        stop("not read", err.text);
    for (char *line = (char *)text.data, *end; line && (end = strchr(line, '\n'));
         line = end + 1, n++) {
        *end = 0;
        put_value(out, type, line);
    }
    moe_buf_release(&text);
    free(directory);
    free(from);
    return n;
}

/* KEY TYPE VALUE, or KEY TYPE[] and values or <FILE */
static void read_metadata(char *const *words)
{
    const char *name = words[0] && words[1] ? words[1] : "nothing";
    size_t length = strcspn(name, "[");
    const struct value_type *type = NULL;
    for (size_t i = 0; i < sizeof value_types / sizeof *value_types; i++)
        if (strlen(value_types[i].name) == length &&
            strncmp(name, value_types[i].name, length) == 0)
            type = &value_types[i];
    if (!type || !words[2])
        stop("wants a key, a type and a value", name);
    n_metadata++;
    put_text(&metadata, words[0], strlen(words[0]));
    if (!name[length]) {
        moe_buf_u32(&metadata, type->number);
        put_value(&metadata, type, words[2]);
        return;
    }
    struct moe_buf items = {0};
    uint64_t n = 0;
    if (*words[2] == '<')
        n = put_lines(&items, type, words[2] + 1);
    else
        for (; words[2 + n]; n++)
            put_value(&items, type, words[2 + n]);
    moe_buf_u32(&metadata, 9); /* an array */
    moe_buf_u32(&metadata, type->number);
    moe_buf_u64(&metadata, n);
    moe_buf_append(&metadata, items.data, items.size);
    moe_buf_release(&items);
}

static void read_tensor(char *const *words)
{
    struct tensor t = {.n = 1};
    for (size_t i = 0; i < sizeof types / sizeof *types && words[0]; i++)
        if (strcmp(words[0], types[i].name) == 0)
            t.type = &types[i];
    if (!t.type || !words[1] || !words[2] || strlen(words[2]) >= sizeof t.name)
        stop("wants a type, a shape and a name", words[0] ? words[0] : "nothing");
    char *at = words[1];
    for (; t.n_dims < MAX_DIMS && *at; at += *at == 'x')
        t.n *= t.dims[t.n_dims++] = strtoull(at, &at, 10);
    if (*at)
        stop("not a shape", words[1]);
    memcpy(t.name, words[2], strlen(words[2]));
    t.values = checked(calloc(t.n + 1, sizeof *t.values));
    fill(&t, words + 3);
    tensors = checked(realloc(tensors, (n_tensors + 1) * sizeof *tensors));
    tensors[n_tensors++] = t;
}

/* NAME INDEX BITS... */
static void change_values(char *const *words)
{
    const struct tensor *t = find_tensor(words[0] ? words[0] : "nothing");
    uint64_t at = (uint64_t)number(words[1]);
    for (int i = 2; words[i]; i++, at++) {
        if (at >= t->n)
            stop("more numbers than the tensor has", t->name);
        t->values[at] = moe_bits_f32((uint32_t)strtoul(words[i], NULL, 16));
    }
}

/* A tensor's line, once for each number that its signs stand for. */
static void read_tensors(char **words)
{
    if (!words[0] || (*words[0] != '#' && *words[0] != '@')) {
        read_tensor(words);
        return;
    }
    char *end, *once[MAX_WORDS], (*text)[MAX_NAME] = checked(calloc(MAX_WORDS, sizeof *text));
    const struct range r = read_range(words[0], &end);
    for (uint64_t k = r.first; k <= r.last; k++) {
        int n = 0;
        for (; words[n + 1]; n++) {
            replace_sign(text[n], words[n + 1], r.sign, k);
            once[n] = text[n];
        }
        once[n] = NULL;
        read_tensors(once);
    }
    free(text);
}

static void read_description(char *text, const char *directory)
{
    const char *file = NULL;
    for (char *rest = NULL, *line = strtok_r(text, "\n", &rest); line;
         line = strtok_r(NULL, "\n", &rest)) {
        char *words[MAX_WORDS] = {NULL}, *more = NULL;
        int n = 0;
        line_number++;
        for (char *w = strtok_r(line, " ", &more); w && n < MAX_WORDS - 1;
             w = strtok_r(NULL, " ", &more))
            words[n++] = w;
        if (n == 2 && strcmp(words[0], "seed") == 0) {
            seed = (uint64_t)number(words[1]);
        } else if (n == 2 && strcmp(words[0], "file") == 0) {
            if (file)
                write_file(directory, file);
            file = words[1];
            first_in_file = n_tensors;
        } else if (n && strcmp(words[0], "kv") == 0) {
            read_metadata(words + 1);
        } else if (n && strcmp(words[0], "put") == 0) {
            change_values(words + 1);
        } else if (n) {
            read_tensors(words);
        }
    }
    if (!file)
        stop("names no file", path);
    write_file(directory, file);
}

int main(int argc, char **argv)
{
    struct moe_buf text = {0};
    struct moe_err err = {0};
    if (argc != 3) {
        fprintf(stderr, "usage: draw_fixture DESCRIPTION DIRECTORY\n");
        return 2;
    }
    path = argv[1];
    if (moe_file_read_all(path, 1 << 20, &text, &err) != MOE_OK)
        stop("not read", err.text);
    read_description((char *)text.data, argv[2]);
    for (uint32_t i = 0; i < n_tensors; i++)
        free(tensors[i].values);
    free(tensors);
    moe_buf_release(&metadata);
    moe_buf_release(&text);
    return 0;
}
