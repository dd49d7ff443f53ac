/*
 * A trie over the texts of tokens, as a hash table of steps: from a node by a byte to a child.
 * Walks start at node 0, the root.
 */
#ifndef MOE_TEXT_UNIGRAM_H
#define MOE_TEXT_UNIGRAM_H

#include <stdint.h>

#include "base/err.h"

struct moe_trie_node;

struct moe_trie {                /* empty: zeroed */
    struct moe_trie_node *nodes; /* owned */
    uint32_t *slots;             /* owned: child of (node, byte); 0: empty */
    uint32_t n_nodes, node_room, mask;
};

#define MOE_TRIE_NONE UINT32_MAX

/* Adds n > 0 bytes; replaces the token of a text that is already there. */
int moe_trie_add(struct moe_trie *t, const uint8_t *text, uint64_t n, uint32_t token,
                 struct moe_err *err);
void moe_trie_release(struct moe_trie *t);
uint64_t moe_trie_bytes(const struct moe_trie *t); /* bytes it owns */
/* The child by this byte; 0: none. */
uint32_t moe_trie_child(const struct moe_trie *t, uint32_t node, uint8_t byte);
/* The token whose text ends at this node (not the root), or MOE_TRIE_NONE. */
uint32_t moe_trie_token(const struct moe_trie *t, uint32_t node);

/*
 * Unigram language models (SentencePiece): cut a text into the tokens with the largest sum of
 * scores, log probabilities. Ties and the order of adding scores are as in huggingface/tokenizers
 * (models/unigram, encode_optimized), so that the ids are the same.
 *
 * A text of n bytes takes time and memory in proportion to n: no token is longer than
 * MOE_UNIGRAM_TOKEN_MAX bytes.
 */

enum {
    MOE_UNIGRAM_TOKEN_MAX = 1024, /* bytes: every place of a text is tried with all lengths */
    MOE_UNIGRAM_PENALTY = 10      /* an unknown character's score lies this far below the worst */
};

struct moe_unigram {
    double *scores;       /* of each id; owned */
    double unknown;       /* of a character that is not a token */
    struct moe_trie trie; /* texts of the tokens, each of at most MOE_UNIGRAM_TOKEN_MAX bytes */
};

void moe_unigram_release(struct moe_unigram *u);

/* The place before byte i of a text, i from 0 to n. */
struct moe_unigram_place {
    double score;   /* of the best way to this place */
    uint32_t other; /* where its last token begins; once the way is known, where the next ends */
    uint32_t token; /* that token; MOE_UNIGRAM_UNKNOWN: a character that is not a token */
};

#define MOE_UNIGRAM_UNKNOWN MOE_TRIE_NONE

/* One thread's working memory, reused from text to text. Start from a zeroed struct. */
struct moe_unigram_scratch {
    struct moe_unigram_place *places;
    uint64_t room;
};
void moe_unigram_scratch_release(struct moe_unigram_scratch *scratch);
/* Bytes of scratch for texts of at most n bytes. */
uint64_t moe_unigram_scratch_bytes(uint64_t n);

/* Finds the best way through n bytes, n > 0: from place 0 on, scratch->places[at] has the token
 * that begins there and where it ends. Starts from *score and sets it to the whole's, so that a
 * text cut where every way passes can continue. */
int moe_unigram_best(const struct moe_unigram *u, struct moe_unigram_scratch *scratch,
                     const uint8_t *text, uint64_t n, double *score, struct moe_err *err);

#endif
