/* A whole GGUF file: opened, and of every tensor that is accepted the first and last values read;
 * values asked for by key, whatever their type; the model described. */
/* Readers: fmt/gguf*.c fmt/checkpoint.c fmt/tensor_list.c model/family_gguf.c */
#define _GNU_SOURCE
#include "fuzz.h"

#include "fmt/checkpoint.h"
#include "fmt/gguf.h"
#include "model/config.h"

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
    if (moe_checkpoint_open(&ck, fuzz_file(data, n), NULL) != MOE_OK)
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
