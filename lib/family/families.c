/*
 * The tables of model families (families_*.c) as one. Keys and defaults are those of the public
 * configuration classes (MixtralConfig, ...) or of the code published with a model; GGUF's are
 * those of the gguf package (constants.py) and of llama.cpp's readers.
 */
#include <string.h>

#include "family/family_table.h"

static const struct moe_family *const tables[] = {
    moe_families_softmax,  moe_families_granite, moe_families_local, moe_families_states,
    moe_families_deepseek, moe_families_stacks,  moe_families_dense,
};

const struct moe_family *moe_family_at(int i)
{
    for (size_t t = 0; i >= 0 && t < sizeof tables / sizeof tables[0]; t++)
        for (const struct moe_family *family = tables[t]; family->name; family++)
            if (i-- == 0)
                return family;
    return NULL;
}

const struct moe_family *moe_family_find(const char *name)
{
    const struct moe_family *family;
    for (int i = 0; (family = moe_family_at(i)) != NULL; i++)
        if (strcmp(family->name, name) == 0 || (family->also && strcmp(family->also, name) == 0))
            return family;
    return NULL;
}

const struct moe_family *moe_family_find_architecture(const char *name)
{
    const struct moe_family *family;
    for (int i = 0; (family = moe_family_at(i)) != NULL; i++)
        if (family->hf.architecture && strcmp(family->hf.architecture, name) == 0)
            return family;
    return NULL;
}

const struct moe_family *moe_family_find_gguf(const char *arch, bool has_experts, bool sigmoid)
{
    const struct moe_family *family, *found = NULL;
    for (int i = 0; (family = moe_family_at(i)) != NULL; i++)
        if (family->gguf.arch && strcmp(family->gguf.arch, arch) == 0 &&
            (!found || (family->gguf.dense == !has_experts && family->gguf.sigmoid == sigmoid)))
            found = family;
    return found;
}
