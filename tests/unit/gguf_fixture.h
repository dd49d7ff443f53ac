/* Descriptions read from the fixtures' GGUF files, and from copies of them that say something else.
 */
#ifndef TESTS_UNIT_GGUF_FIXTURE_H
#define TESTS_UNIT_GGUF_FIXTURE_H

#include "base/buf.h"
#include "base/file.h"
#include "fmt/checkpoint.h"
#include "model/read.h"

#include "../forge_gguf.h"

#define FIXTURE(name) DRAWN "/" name "/model.gguf"

static struct moe_config config; /* the one that was read last */

static inline int read_config(const char *path, struct moe_err *err)
{
    struct moe_checkpoint *ck = NULL;
    int status = moe_checkpoint_open(&ck, path, err);
    if (status == MOE_OK)
        status = moe_config_read_gguf(&config, ck, err);
    moe_checkpoint_close(ck);
    return status;
}

static inline void read_ok(const char *path)
{
    struct moe_err err = {0};
    assert_ok(read_config(path, &err), &err);
}

/* A copy of the file with another number for a key, or for a layer in its list; or with another
 * name of the same length for the key. */
static inline const char *changed(const char *source, const char *key, int layer, uint32_t value,
                                  const char *name)
{
    struct moe_err err = {0};
    struct moe_buf file = {0};
    assert_ok(moe_file_read_all(source, 1 << 28, &file, &err), &err);
    if (layer >= 0)
        set_u32_item(file.data, file.size, key, (uint32_t)layer, value);
    else if (!name)
        set_u32_key(file.data, file.size, key, value);
    else
        memcpy(after_key(file.data, file.size, key) - strlen(name), name, strlen(name));
    FILE *out = fopen(in_dir("changed.gguf"), "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(file.data, 1, file.size, out), file.size);
    assert_int_equal(fclose(out), 0);
    moe_buf_release(&file);
    return in_dir("changed.gguf");
}

/* Such a copy that is refused with these words. */
struct refused_gguf {
    const char *file, *key;
    int layer;
    uint32_t value;
    const char *name;
    int status;
    const char *words;
};

static inline void assert_refused(const struct refused_gguf *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct moe_err err = {0};
        const char *path =
            changed(cases[i].file, cases[i].key, cases[i].layer, cases[i].value, cases[i].name);
        assert_fails(read_config(path, &err), cases[i].status, cases[i].words, &err);
    }
}

#endif
