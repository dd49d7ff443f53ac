/*
 * A trie over the texts of tokens, as a hash table of steps: from a node by a byte to a child. A
 * text is walked from node 0, the root.
 */
#ifndef MOE_TEXT_TRIE_H
#define MOE_TEXT_TRIE_H

#include <stdint.h>

#include "base/err.h"

struct moe_trie_node;

struct moe_trie {                /* empty: zeroed */
    struct moe_trie_node *nodes; /* owned */
    uint32_t *slots;             /* owned: child of (node, byte); 0: empty */
    uint32_t n_nodes, node_room, mask;
};

#define MOE_TRIE_NONE UINT32_MAX

/* Adds n > 0 bytes; of a text that is there already the token is replaced. */
int moe_trie_add(struct moe_trie *t, const uint8_t *text, uint64_t n, uint32_t token,
                 struct moe_err *err);
void moe_trie_release(struct moe_trie *t);
uint64_t moe_trie_bytes(const struct moe_trie *t); /* that it holds */
/* The child by this byte, or 0: there is none. */
uint32_t moe_trie_child(const struct moe_trie *t, uint32_t node, uint8_t byte);
/* The token whose text ends at this node (not the root), or MOE_TRIE_NONE. */
uint32_t moe_trie_token(const struct moe_trie *t, uint32_t node);

#endif
