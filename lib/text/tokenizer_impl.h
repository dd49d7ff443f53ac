/*
 * The tokenizer's internals, shared by its source files, those that read one (vocab/), and its
 * fuzzer.
 */
#ifndef MOE_TEXT_TOKENIZER_IMPL_H
#define MOE_TEXT_TOKENIZER_IMPL_H

#include "text/bpe.h"
#include "text/tokenizer.h"
#include "text/tokenizer_steps.h"
#include "text/unigram.h"

/* Stored values (tokenizer_pack.c): never renumbered. */
enum moe_tokenizer_model {
    MOE_TOKENIZER_BYTES = 1,   /* merging starts from bytes; a token's text is the bytes it means */
    MOE_TOKENIZER_CHARS = 2,   /* merging starts from characters; U+2581 in a text means a space */
    MOE_TOKENIZER_UNIGRAM = 3, /* the tokens with the best scores; characters as above */
    MOE_TOKENIZER_SPELLINGS = 4, /* GPTSAN's: a token's text lists its spellings, "A,B,C" */
};

enum moe_tokenizer_flag {
    MOE_TOKENIZER_IGNORE_MERGES = 1, /* a piece that is a token stays whole */
    MOE_TOKENIZER_BYTE_FALLBACK = 2, /* a character without a token becomes its byte tokens */
    MOE_TOKENIZER_FUSE_UNK = 4,      /* consecutive unknown characters are one unknown token */
    MOE_TOKENIZER_ADDS_BOS = 8,
    /* What decoding a whole answer leaves out: */
    MOE_TOKENIZER_DROPS_SPACES = 16, /* the spaces that its first token begins with */
    MOE_TOKENIZER_DROPS_SPACE = 32,  /* one such space */
    MOE_TOKENIZER_FLAGS = 63,
};

enum moe_token_flag {
    MOE_TOKEN_MODEL = 1,        /* in the model's vocabulary: merging can produce it */
    MOE_TOKEN_ADDED = 2,        /* cut out of a text before anything else */
    MOE_TOKEN_SPECIAL = 4,      /* ... only where special tokens are asked for */
    MOE_TOKEN_BYTE = 8,         /* "<0xNN>", stands for one byte */
    MOE_TOKEN_LSTRIP = 16,      /* added: takes the white space before it */
    MOE_TOKEN_RSTRIP = 32,      /* added: takes the white space after it */
    MOE_TOKEN_NORMALIZED = 64,  /* added: looked for in the normalized text */
    MOE_TOKEN_SINGLE_WORD = 128 /* added: not beside a letter, digit or the like */
    /* None of MODEL, ADDED: a token that only decodes, or, without a text, an id not in use. */
};

enum {
    MOE_TOKENS_MAX = 1 << 22,
    MOE_TOKEN_BYTES_MAX = UINT16_MAX,
};

#define MOE_NO_TOKEN UINT32_MAX

/* An added token as it is looked for: its text, or its normalized text. */
struct moe_added_token {
    const uint8_t *text; /* borrowed from the tokenizer */
    uint32_t n, id;
};

/* Sorted by text, so that the longest one at a place is found by narrowing a range. */
struct moe_added {
    struct moe_added_token *tokens; /* owned */
    uint32_t n;
    uint32_t first[257]; /* those that begin with byte b: tokens[first[b]..first[b + 1]) */
};

/* Fills tok->added; after the normalizer is prepared. */
int moe_added_index(struct moe_tokenizer *tok, struct moe_err *err);
/* The longest added token at text[0..n), n > 0, or NULL; a special one within special_n bytes. */
const struct moe_added_token *moe_added_longest(const struct moe_tokenizer *tok,
                                                const struct moe_added *added, const uint8_t *text,
                                                uint64_t n, uint64_t special_n);

struct moe_tokenizer {
    /* Filled by a reader; stored in a pack's section. */
    uint8_t model;        /* enum moe_tokenizer_model */
    uint32_t flags;       /* enum moe_tokenizer_flag */
    uint32_t n_tokens;    /* largest id + 1 */
    uint32_t *offsets;    /* n_tokens + 1: token i's text is text[offsets[i]..offsets[i + 1]) */
    uint8_t *token_flags; /* enum moe_token_flag, n_tokens */
    struct moe_buf text;
    struct moe_bpe bpe;
    struct moe_unigram unigram; /* stored: scores and that of an unknown character */
    struct moe_steps normalizer, pre_tokenizer;
    uint32_t bos, eos, unk; /* MOE_NO_TOKEN: none */
    uint32_t tail, pad;     /* what follows a whole text; what fills up a batch */

    /* Derived by moe_tokenizer_prepare. */
    uint32_t *vocabulary; /* hash table of the MODEL tokens' texts: id + 1, or 0 */
    uint32_t mask;        /* its slots - 1 */
    uint32_t byte_ids[256];
    struct moe_added added[2]; /* [1]: those looked for in the normalized text */
    struct moe_buf normalized; /* the texts of added[1] */
    uint32_t *shown_offsets; /* of tokens that mean something other than their text; may be NULL */
    struct moe_buf shown;
    struct moe_trie spellings; /* of a model of spellings, without special tokens */
    uint32_t separator;
    bool words_apart; /* no token has a space after another character: words merge alone */
};

/* Tokens are spelled in characters, U+2581 for a space; bytes are tokens "<0xNN>". */
static inline bool moe_has_characters(const struct moe_tokenizer *tok)
{
    return tok->model == MOE_TOKENIZER_CHARS || tok->model == MOE_TOKENIZER_UNIGRAM;
}

/* U+2581, a space in the tokens of a character model. */
static inline bool moe_is_metaspace(const uint8_t *text, uint64_t n)
{
    return n >= 3 && text[0] == 0xe2 && text[1] == 0x96 && text[2] == 0x81;
}

/* An empty tokenizer, to be filled, then prepared; moe_tokenizer_free it in any case. */
struct moe_tokenizer *moe_tokenizer_new(struct moe_err *err);
/* Room for n tokens: offsets and flags, zeroed. */
int moe_tokenizer_allocate(struct moe_tokenizer *tok, uint32_t n, struct moe_err *err);
/* Makes moe_tokenizer_lookup work, once tokens are there. */
int moe_tokenizer_index(struct moe_tokenizer *tok, struct moe_err *err);
/* Checks everything a reader filled and derives the rest. Error texts have no file name. */
int moe_tokenizer_prepare(struct moe_tokenizer *tok, struct moe_err *err);

/* The text of a token, borrowed, not terminated. */
static inline const uint8_t *moe_token_text(const struct moe_tokenizer *tok, uint32_t id,
                                            uint32_t *n)
{
    *n = tok->offsets[id + 1] - tok->offsets[id];
    return tok->text.data + tok->offsets[id];
}

/* Whether the token is "<extra_id_NUMBER>". */
bool moe_token_is_sentinel(const char *token, uint64_t n);
/* The byte that the token "<0xNN>" stands for, or -1. */
int moe_token_byte(const void *token, uint64_t n);

/* Whether there is a byte token for each of the n bytes. */
bool moe_tokenizer_has_bytes(const struct moe_tokenizer *tok, const uint8_t *text, uint64_t n);

/* The MODEL token with exactly this text, or MOE_NO_TOKEN. */
uint32_t moe_tokenizer_lookup(const struct moe_tokenizer *tok, const void *text, uint64_t n);

/* Appends the ids of n bytes by a unigram model; `out` has room for n more. *score goes from piece
 * to piece of a text that is cut where every way passes (moe_unigram_best). */
int moe_unigram_encode(const struct moe_tokenizer *tok, struct moe_unigram_scratch *scratch,
                       const uint8_t *text, uint64_t n, double *score, struct moe_ids *out,
                       struct moe_err *err);
/* Checks a unigram model's scores and tokens, and makes the trie of them. */
int moe_unigram_prepare(struct moe_tokenizer *tok, struct moe_err *err);

/* The same by a model of spellings; its index, and what its tokens mean; whether a token stands for
 * a byte, or for what the one before it shows. */
int moe_spellings_encode(const struct moe_tokenizer *tok, const uint8_t *text, uint64_t n,
                         struct moe_ids *out, struct moe_err *err);
int moe_spellings_prepare(struct moe_tokenizer *tok, struct moe_err *err);
bool moe_spellings_is_byte(const struct moe_tokenizer *tok, uint32_t id);
bool moe_spellings_is_bag(const struct moe_tokenizer *tok, uint32_t id);

#endif
