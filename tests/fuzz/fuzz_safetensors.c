/* The header of a safetensors file, the JSON after its length; 4096 bytes of data follow it. */
/* Readers: fmt/safetensors.c fmt/tensor_list.c fmt/json*.c */
#define _GNU_SOURCE
#include "fmt/safetensors.h"
#include "mutate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    enum { DATA_BYTES = 4096 };
    struct moe_tensor_list list = {0};
    struct moe_err err;
    n = fuzz_begin(data, n);
    int status =
        FUZZ_TRY(moe_safetensors_parse(&list, "fuzz", 0, data, n, 8 + n, DATA_BYTES, &err));
    for (uint64_t i = 0; status == MOE_OK && i < list.n; i++) {
        const struct moe_tensor *t = &list.items[i].tensor;
        if (t->offset < 8 + n || t->offset - 8 - n + t->bytes > DATA_BYTES ||
            (t->dtype != MOE_DTYPE_OTHER &&
             t->bytes != t->n_items * (t->dtype == MOE_DTYPE_F32 ? 4 : 2)))
            abort(); /* accepted, but would be read from outside the file */
    }
    moe_tensor_list_release(&list);
    return 0;
}

FUZZ_MUTATE_TEXT
