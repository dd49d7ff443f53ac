/* Packs for tests, by rtn in groups of 64. */
#ifndef TESTS_MAKE_PACK_H
#define TESTS_MAKE_PACK_H

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pack/convert.h"

#include "test.h"

#define TINY_MOE BUNDLED "/tiny-moe"

/* Options for experts at "4d8,2" and the like, and so many bits for everything else (0 and no
 * experts: as in the pack that is packed again). */
static inline struct moe_convert_options pack_options(const char *experts, int dense_bits)
{
    struct moe_convert_options o = {
        .dense_bits = dense_bits, .method = moe_quant_method_find("rtn"), .group = 64};
    char text[64], *word, *rest;
    strcpy(text, experts);
    for (word = strtok_r(text, ",", &rest); word; word = strtok_r(NULL, ",", &rest))
        assert_true(moe_parse_bits(word, &o.experts[o.n_experts++]));
    return o;
}

static inline void make_pack(const char *path, const char *checkpoint,
                             const struct moe_convert_options *options)
{
    struct moe_err err = {0};
    struct moe_convert_report report;
    assert_ok(moe_convert_checkpoint(checkpoint, path, options, &report, &err), &err);
}

/* The bundled model's pack at `path`. Test programs share what they make: a copy in
 * $BUILD/tests/packs that is newer than this program and the model; without $BUILD it is made here.
 * Of the options only bits, group and compression may differ. */
static inline void bundled_pack(const char *path, const struct moe_convert_options *options)
{
    const char *build = getenv("BUILD"),
               *sources[] = {"/proc/self/exe", TINY_MOE "/model.safetensors"};
    char kept[512], command[1600];
    struct stat file, source;
    int n = snprintf(kept, sizeof kept, "%s/tests/packs/%d-%u-%d", build ? build : "",
                     options->dense_bits, options->group, options->zstd_level);
    for (int i = 0; i < options->n_experts; i++)
        n += snprintf(kept + n, sizeof kept - (size_t)n, "-%dd%d", options->experts[i].gate_up,
                      options->experts[i].down);
    bool fresh = build && stat(kept, &file) == 0;
    for (int i = 0; i < 2; i++)
        fresh = fresh && stat(sources[i], &source) == 0 && file.st_mtime > source.st_mtime;
    if (!fresh)
        make_pack(path, TINY_MOE, options);
    if (fresh)
        snprintf(command, sizeof command, "cp '%s' '%s'", kept, path);
    else /* whole at once: others look for it */
        snprintf(command, sizeof command,
                 "mkdir -p '%s/tests/packs' && cp '%s' '%s.%d' && mv '%s.%d' '%s'", build, path,
                 kept, (int)getpid(), kept, (int)getpid(), kept);
    if (build)
        assert_int_equal(system(command), 0);
}

#endif
