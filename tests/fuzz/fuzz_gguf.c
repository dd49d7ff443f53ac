/*
 * A whole GGUF file, or the parts of one, each after its length (u32): opened, and of every tensor
 * that is accepted the first and last values read; values asked for by key, whatever their type;
 * the model described.
 */
/* Readers: model/family_own.c model/family_settings.c */
/* Readers: fmt/gguf*.c fmt/checkpoint.c fmt/tensor_list.c model/family_gguf.c */
#define _GNU_SOURCE
#include "fmt/checkpoint.h"
#include "fmt/gguf.h"
#include "model/config.h"
#include "model/read.h"
#include "mutate.h"

static void read_ends(const struct moe_checkpoint *ck, const struct moe_tensor *t)
{
    enum { SOME = 300 };
    float values[SOME];
    uint64_t some = t->n_items < SOME ? t->n_items : SOME;
    if (t->dtype == MOE_DTYPE_OTHER)
        return;
    if (moe_checkpoint_read(ck, t, 0, some, values, NULL) != MOE_OK ||
        moe_checkpoint_read(ck, t, t->n_items - some, some, values, NULL) != MOE_OK)
        abort(); /* accepted, but lies outside the file */
}

static void read_value(const struct moe_gguf *gguf, const char *key)
{
    struct moe_gguf_array a;
    uint32_t whole;
    double real;
    bool flag;
    const char *text;
    uint64_t n;
    volatile double sum = 0;
    moe_gguf_get_u32(gguf, key, UINT32_MAX, false, &whole, NULL);
    moe_gguf_get_double(gguf, key, false, &real, NULL);
    moe_gguf_get_bool(gguf, key, false, &flag, NULL);
    moe_gguf_get_text(gguf, key, false, &text, NULL);
    if (moe_gguf_get_array(gguf, key, false, &a, NULL) != MOE_OK)
        return;
    for (uint64_t i = 0; i < a.n; i++) {
        if (moe_gguf_array_is_text(&a)) {
            const char *element = moe_gguf_array_text(&a, i, &n);
            sum += n ? element[0] + element[n - 1] : 0;
        } else {
            sum += moe_gguf_array_number(&a, i);
        }
    }
}

enum { MOST_PARTS = 3 };

static void part_path(uint32_t no, uint32_t n_parts, char path[96])
{
    char name[40];
    snprintf(name, sizeof name, "m-%05u-of-%05u.gguf", no + 1, n_parts);
    fuzz_path(name, path);
}

/* Writes (or removes) the parts; the path of the last one. */
static void put_parts(const uint8_t *data, size_t n, bool remove, char path[96])
{
    struct moe_cursor c = moe_cursor_over(data, n), count = c;
    uint32_t n_parts = 0;
    for (; n_parts < MOST_PARTS && moe_cursor_left(&count) >= 4; n_parts++) {
        uint64_t want = moe_cursor_u32(&count), left = moe_cursor_left(&count);
        moe_cursor_take(&count, want < left ? want : left);
    }
    part_path(0, n_parts, path);
    for (uint32_t no = 0; no < n_parts; no++) {
        uint64_t want = moe_cursor_u32(&c), left = moe_cursor_left(&c);
        uint64_t bytes = want < left ? want : left;
        const uint8_t *part = moe_cursor_take(&c, bytes);
        part_path(no, n_parts, path);
        if (remove)
            unlink(path);
        else if (bytes)
            fuzz_put_file(path, part, bytes);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const keys[] = {"general.architecture",
                                       "general.alignment",
                                       "tokenizer.ggml.tokens",
                                       "split.count",
                                       "k",
                                       "t.u8",
                                       "t.i64",
                                       "t.f32",
                                       "t.bool",
                                       "t.text",
                                       "t.zero",
                                       "t.texts",
                                       "t.i32s",
                                       "t.bools"};
    struct moe_checkpoint *ck;
    struct moe_err err;
    char path[96];
    n = fuzz_begin(data, n);
    bool parts = n < 4 || memcmp(data, "GGUF", 4) != 0;
    if (parts)
        put_parts(data, n, false, path);
    int status = FUZZ_TRY(moe_checkpoint_open(&ck, parts ? path : fuzz_file(data, n), &err));
    if (parts)
        put_parts(data, n, true, path);
    if (status != MOE_OK)
        return 0;
    for (uint64_t i = 0; i < moe_checkpoint_n_tensors(ck); i++)
        read_ends(ck, moe_checkpoint_at(ck, i));
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && moe_checkpoint_gguf(ck); i++)
        read_value(moe_checkpoint_gguf(ck), keys[i]);
    static struct moe_config config;
    if (moe_checkpoint_gguf(ck) && moe_config_read_gguf(&config, ck, NULL) == MOE_OK &&
        moe_config_check(&config, "fuzz", NULL) != MOE_OK)
        abort();
    moe_checkpoint_close(ck);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t max, unsigned int seed)
{
    static const struct mutate_pieces parts = {.head = 4, .length_bytes = 4};
    uint64_t rng = seed;
    return n >= 4 && memcmp(data, "GGUF", 4) != 0 ? mutate_pieces(&parts, data, n, max, &rng)
                                                  : LLVMFuzzerMutate(data, n, max);
}
