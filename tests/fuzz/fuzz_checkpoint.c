/*
 * A Hugging Face checkpoint: a directory of files, each in the input as its number in the table
 * below, the length of what it holds (u16) and that. Of a safetensors file that is the header's
 * JSON; DATA_BYTES of data belong to it. With 128 added to its number a file is as it stands.
 *
 * Of every tensor that is accepted the first and last values are read, and the index of its name is
 * its own; the model described, the template and the tokenizer come from the same directory.
 */
/* Readers: fmt/checkpoint.c fmt/safetensors.c fmt/tensor_list.c */
/* Readers: fmt/tensor_pairs.c */
/* Readers: prompt/chat.c text/vocab_hf.c model/family_hf.c */
#define _GNU_SOURCE
#include "base/file.h"
#include "fmt/checkpoint.h"
#include "model/config.h"
#include "model/read.h"
#include "mutate.h"
#include "prompt/chat.h"
#include "text/vocab.h"

enum { DATA_BYTES = 512, AS_IT_STANDS = 128 };

static const char *const names[] = {"model.safetensors.index.json",
                                    "model.safetensors",
                                    "a.safetensors",
                                    "b.safetensors",
                                    "config.json",
                                    "generation_config.json",
                                    "chat_template.jinja",
                                    "tokenizer_config.json",
                                    "tokenizer.json",
                                    "x.bin",
                                    "x.gguf",
                                    "special_tokens_map.json"};
enum { N_NAMES = sizeof names / sizeof names[0], FIRST_TENSORS = 1, LAST_TENSORS = 3 };

static void put_file(const char *name, const uint8_t *data, uint64_t n, bool has_tensors)
{
    struct moe_buf file = {0};
    char path[96];
    fuzz_path(name, path);
    if (has_tensors)
        moe_buf_u64(&file, n);
    moe_buf_append(&file, data, n);
    for (int i = 0; has_tensors && i < DATA_BYTES; i++)
        moe_buf_u8(&file, (uint8_t)i);
    if (file.failed)
        abort();
    fuzz_put_file(path, file.data ? file.data : (const uint8_t *)"", file.size);
    moe_buf_release(&file);
}

static void put_files(const uint8_t *data, size_t n)
{
    struct moe_cursor c = moe_cursor_over(data, n);
    while (moe_cursor_left(&c) >= 3) {
        uint8_t which = moe_cursor_u8(&c);
        uint64_t bytes = moe_cursor_u16(&c), left = moe_cursor_left(&c);
        uint32_t name = which % AS_IT_STANDS % N_NAMES;
        bytes = bytes < left ? bytes : left;
        put_file(names[name], bytes ? moe_cursor_take(&c, bytes) : data, bytes,
                 which < AS_IT_STANDS && name >= FIRST_TENSORS && name <= LAST_TENSORS);
    }
}

static void read_ends(const struct moe_checkpoint *ck, const struct moe_tensor *t)
{
    enum { SOME = 40 };
    float values[SOME];
    struct moe_err err;
    const struct moe_tensor *found;
    uint64_t some = t->n_items < SOME ? t->n_items : SOME;
    int status = moe_checkpoint_get(ck, t->name, t->n_dims, t->dims, &found, &err);
    if (moe_checkpoint_find(ck, t->name) != t ||
        (status == MOE_OK) != (t->dtype != MOE_DTYPE_OTHER))
        abort();
    if (t->dtype == MOE_DTYPE_OTHER)
        return;
    if ((moe_checkpoint_read(ck, t, 0, some, values, &err) != MOE_OK ||
         moe_checkpoint_read(ck, t, t->n_items - some, some, values, &err) != MOE_OK) &&
        !strstr(err.text, "'g_idx'")) /* which is looked at when it is read */
        abort();                      /* accepted, but lies outside the file */
    if (moe_checkpoint_read(ck, t, 1, t->n_items, values, &err) == MOE_OK)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct moe_config config;
    char dir[96], path[96];
    struct moe_err err;
    struct moe_checkpoint *ck;
    struct moe_tokenizer *tok = NULL;
    struct moe_buf jinja = {0};
    n = fuzz_begin(data, n);
    fuzz_path("", dir);
    put_files(data, n);
    if (FUZZ_TRY(moe_checkpoint_open(&ck, dir, &err)) == MOE_OK) {
        for (uint64_t i = 0; i < moe_checkpoint_n_tensors(ck); i++)
            read_ends(ck, moe_checkpoint_at(ck, i));
        if (moe_checkpoint_gguf(ck) || strcmp(moe_checkpoint_dir(ck), dir) != 0)
            abort();
        moe_checkpoint_close(ck);
    }
    if (FUZZ_TRY(moe_config_read_hf(&config, dir, &err)) == MOE_OK &&
        moe_config_check(&config, "fuzz", &err) != MOE_OK)
        abort();
    if (FUZZ_TRY(moe_chat_read_template(dir, &jinja, &err)) == MOE_OK && jinja.failed)
        abort();
    if (FUZZ_TRY(moe_tokenizer_read_hf(&tok, dir, &err)) == MOE_OK)
        moe_tokenizer_free(tok);
    moe_buf_release(&jinja);
    for (size_t i = 0; i < N_NAMES; i++) {
        fuzz_path(names[i], path);
        unlink(path);
    }
    return 0;
}

FUZZ_MUTATE_PIECES(.head = 3, .length_bytes = 2, .text = true)
