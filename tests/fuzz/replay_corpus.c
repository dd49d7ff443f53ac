/* Feeds every file of the directories named to a fuzz target, without a fuzzer: the corpus as a
 * test; where the target lets allocations fail, again with each of them failing. Prints how many
 * there were; a crash is the failure. */
#define _GNU_SOURCE
#include "fuzz.h"

#include <dirent.h>

#include "base/file.h"

/* Targets that mutate inputs ask the fuzzer for its own mutations; nothing mutates here. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t n, size_t max);
size_t LLVMFuzzerMutate(uint8_t *data, size_t n, size_t max)
{
    (void)data;
    return n < max ? n : max;
}

static void replay_input(const uint8_t *data, size_t n)
{
    fuzz_fails_always = 0;
    LLVMFuzzerTestOneInput(data, n);
    /* Each of the first, then ever fewer: large inputs make thousands. */
    fuzz_failed = true;
    for (uint64_t i = 1; fuzz_failed; i += 1 + i / 64) {
        fuzz_failed = false;
        fuzz_fails_always = i;
        LLVMFuzzerTestOneInput(data, n);
    }
}

static int replay(const char *dir, int *n_files)
{
    struct moe_err err;
    DIR *d = opendir(dir);
    if (!d) {
        fprintf(stderr, "%s: cannot open\n", dir);
        return 1;
    }
    int failed = 0;
    for (const struct dirent *e; !failed && (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.')
            continue;
        struct moe_buf input = {0};
        char *path = moe_path_join(dir, e->d_name, &err);
        failed = !path || moe_file_read_all(path, 1 << 24, &input, &err) != MOE_OK;
        if (failed)
            fprintf(stderr, "%s\n", err.text);
        else
            replay_input(input.data ? input.data : (const uint8_t *)"", input.size);
        *n_files += !failed;
        moe_buf_release(&input);
        free(path);
    }
    closedir(d);
    return failed;
}

int main(int argc, char **argv)
{
    int n_files = 0, failed = 0;
    for (int i = 1; i < argc && !failed; i++)
        failed = replay(argv[i], &n_files);
    printf("%s: %d inputs\n", argv[0], n_files);
    return failed || n_files == 0;
}
