/* Packs for tests, by rtn in groups of 64. */
#ifndef TESTS_MAKE_PACK_H
#define TESTS_MAKE_PACK_H

#include "convert/convert.h"

#include "test.h"

#define TINY_MOE "tests/models/tiny-moe"

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

#endif
