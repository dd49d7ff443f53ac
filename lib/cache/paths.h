/*
 * Paths: which past tokens chose most like the current one, and what these chose next.
 *
 * A path is what a token chose, layer by layer. The current token, and before it those that led to
 * it, lie beside earlier ones at every distance: at distance d each token beside the one d before.
 * For each distance the shares of experts that were the same add up, fading by an eighth a layer;
 * the MOE_PATHS_NEAREST distances with the largest sums vote for what their tokens chose in the
 * layers to come, and the tokens after them in the layers up to the current one. A vote weighs e^(8
 * s), s the faded mean share. Sums are whole numbers, the same on every machine.
 *
 * One text at a time: passes over several texts neither remember nor vote. The last tokens are
 * remembered, over all texts.
 */
#ifndef MOE_CACHE_PATHS_H
#define MOE_CACHE_PATHS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"
#include "cache/usage.h"

enum { MOE_PATHS_NEAREST = 8, MOE_PATHS_TOKENS = 2048 };

struct moe_paths_nearest {
    uint32_t n, tokens[MOE_PATHS_NEAREST]; /* modulo `room` */
    float weights[MOE_PATHS_NEAREST];      /* of their votes */
};

struct moe_paths {
    uint32_t n_layers, n_experts, top_k;
    uint32_t room; /* tokens remembered, whole blocks of them; 0: nothing is */
    bool wide;     /* experts' numbers take two bytes */
    /* By token modulo `room`: blocks of tokens, of each token's choice a row of the block. The
     * first row has n_experts + 1 for what is not known. */
    uint8_t *chosen;    /* [layer][room / BLOCK][top_k][BLOCK] of one or two bytes */
    uint16_t *likeness; /* [room] of the current token, and those before, to each and before it */
    uint32_t now;       /* the current token, modulo `room` */
    uint32_t n_filled;  /* the first ones that may be known, of `room` */
    uint32_t layer;     /* whose router chose last */
    uint32_t n_rows;    /* of the pass */
    uint32_t sequence;  /* the text */
    bool follows;       /* it has a last token */
    struct moe_paths_nearest near;
    uint8_t *mine; /* [top_k][BLOCK] scratch */
    uint16_t *row; /* [top_k] scratch */
};

/* Carves everything, zeroed: room for MOE_PATHS_TOKENS tokens, or fewer, none at last, as
 * params->beside asks; begin before use. */
void moe_paths_carve(struct moe_paths *p, struct moe_arena *arena,
                     const struct moe_follower_params *params);
void moe_paths_begin(struct moe_paths *p);
/* Begins anew: the next token follows none. */
void moe_paths_begin_sequence(struct moe_paths *p);
/* Adds a router's choices. Whether there are votes now. known: who is nearest then, where another
 * that was given the same has found it out, from the beginning on; else NULL. */
bool moe_paths_add(struct moe_paths *p, const struct moe_choices *c,
                   const struct moe_paths_nearest *known);
/* Adds the votes for a layer's next choice, or that `later` tokens after it, to votes [n_experts],
 * zero before, and lists the experts that have some: voted [MOE_PATHS_NEAREST * top_k]. Returns
 * their number. */
uint32_t moe_paths_votes(const struct moe_paths *p, uint32_t layer, uint32_t later, float *votes,
                         uint16_t *voted);
/* Visits what the last n_tokens tokens chose in each layer, the newest first; reads: as far as
 * there is room, that is what they chose from now on. */
bool moe_paths_visit(struct moe_paths *p, uint32_t n_tokens, bool reads, moe_part_fn visit,
                     void *ctx);

#endif
