/*
 * Prompts kept on disk: what was computed of texts, in a directory of context files
 * (engine/context_file.h), so that it outlives the KV cache and the server.
 *
 * A file is of one pack, one kind of KV cache and one owner; its name says which. What is not named
 * so is not touched. The directory holds a limited number of bytes: the files that were used
 * longest ago go first. Files come by being renamed and go at any time, so that servers may share a
 * directory.
 *
 * Functions are called by threads that compute, on sessions of their own.
 */
#ifndef MOE_SERVE_PROMPT_CACHE_H
#define MOE_SERVE_PROMPT_CACHE_H

#include <stdint.h>

#include "base/err.h"
#include "engine/context_file.h"
#include "engine/engine.h"

struct moe_prompt_cache_options {
    const char *directory; /* borrowed; NULL: there is none */
    uint64_t bytes;
    /* Says a line of what went wrong, which changes no answer. */
    void (*tell)(const char *line);
};

struct moe_prompt_cache_counts {
    uint64_t hits, tokens; /* prompts that began with a file, and tokens that were not computed */
    uint64_t written;      /* files */
    uint64_t failed;       /* files that could not be read or written */
    uint64_t files, bytes; /* in the directory, as seen last */
};

struct moe_prompt_cache;

/* Bytes of memory that it takes for texts of `context` tokens and n sessions at a time. */
uint64_t moe_prompt_cache_bytes(uint32_t context, uint32_t n);

/* Makes the directory where there is none. */
int moe_prompt_cache_open(struct moe_prompt_cache **out,
                          const struct moe_prompt_cache_options *options, struct moe_err *err);
void moe_prompt_cache_close(struct moe_prompt_cache *c); /* NULL is fine */

/* The beginning of an owner's text. */
struct moe_prompt_text {
    uint64_t owner;
    const uint32_t *ids;
    uint64_t n;
};

/* Puts what a file has of the text into the KV cache, if that is more than it has: through a
 * sequence that is free before and after. */
void moe_prompt_cache_load(struct moe_prompt_cache *c, const struct moe_engine *engine,
                           uint32_t sequence, const struct moe_prompt_text *text);

/* Texts that have ended, for when there is nothing else to do; one of zeroes has none. */
struct moe_prompt_waiting {
    uint32_t n;
    struct {
        uint64_t owner;
        struct moe_ids ids;
    } texts[8]; /* the oldest first, which gives way */
};
/* Takes a copy, in place of what it begins with. */
void moe_prompt_wait(struct moe_prompt_waiting *w, const struct moe_prompt_text *text);
/* Saves the oldest and forgets it; sequence UINT32_MAX: only forgets it. */
void moe_prompt_cache_save_oldest(struct moe_prompt_cache *c, struct moe_prompt_waiting *w,
                                  const struct moe_engine *engine, uint32_t sequence);

struct moe_prompt_cache_counts moe_prompt_cache_count(struct moe_prompt_cache *c);

#endif
