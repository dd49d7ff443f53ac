/*
 * From text to pieces: normalizer steps, then pre-tokenizer steps.
 *
 * Both are short lists of `struct moe_step`, as stored in a pack. Readers fill them and
 * moe_steps_prepare compiles their patterns. All texts must be valid UTF-8.
 */
#ifndef MOE_TEXT_INTERNAL_H
#define MOE_TEXT_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "text/bpe.h"
#include "text/tokenizer.h"
#include "text/unigram.h"

/*
 * SentencePiece's compiled normalization rules ("precompiled_charsmap"): a double-array trie
 * (darts-clone) from short texts to places in a list of replacements.
 *
 *   u32 bytes of the trie, its units (u32, little-endian), then replacements, each ended by a NUL
 *
 * Applied as in huggingface/tokenizers (the crate spm_precompiled): a grapheme of up to five bytes
 * becomes the replacement of its shortest beginning that has one; otherwise, and in longer
 * graphemes, each character is replaced by itself.
 */

enum { MOE_CHARSMAP_MAX = 1 << 24 }; /* bytes; published ones have 300,000 */

struct moe_charsmap {
    const uint8_t *units; /* borrowed, 4 bytes each */
    const char *texts;    /* borrowed */
    uint64_t n_units, n_text;
};

/* Checks n bytes and opens them as a map, which borrows them. */
int moe_charsmap_open(struct moe_charsmap *map, const void *data, uint64_t n, struct moe_err *err);
/* Appends n bytes of valid UTF-8 after replacement. */
void moe_charsmap_apply(const struct moe_charsmap *map, const char *text, uint64_t n,
                        struct moe_buf *out);

/*
 * Steps.
 */

/* Stored values: never renumbered. */
enum moe_step_kind {
    MOE_STEP_NFC = 1,           /* normalizer: canonical composition */
    MOE_STEP_PREPEND = 2,       /* normalizer: `text` before a text that is not empty */
    MOE_STEP_REPLACE = 3,       /* normalizer: every `text` becomes `other` */
    MOE_STEP_NFD = 4,           /* normalizer: canonical decomposition */
    MOE_STEP_NFKC = 5,          /* normalizer: compatible characters too, composed */
    MOE_STEP_NFKD = 6,          /* normalizer: compatible characters too, decomposed */
    MOE_STEP_NMT = 7,           /* normalizer: SentencePiece's "nmt" rules for controls, blanks */
    MOE_STEP_LOWERCASE = 8,     /* normalizer: each character by itself */
    MOE_STEP_STRIP = 9,         /* normalizer: strips white space at the flagged sides */
    MOE_STEP_STRIP_MARKS = 10,  /* normalizer: drops combining marks */
    MOE_STEP_REPLACE_RUNS = 11, /* normalizer: two or more of `text` in a row become `other` */
    MOE_STEP_PRECOMPILED = 12,  /* normalizer: SentencePiece's rules, `text` (a charsmap) */
    MOE_STEP_REPLACE_MATCHES = 13, /* normalizer: matches of the pattern `text` become `other` */
    MOE_STEP_REPLACE_PAIRS =
        14,              /* normalizer: texts become others, one pair of `text` after another */
    MOE_STEP_BERT = 15,  /* normalizer: one of BERT's rules, by the flags */
    MOE_STEP_SPLIT = 16, /* pre-tokenizer: split at matches of the pattern `text` */
    MOE_STEP_PREFIX_SPACE = 17, /* pre-tokenizer: adds a space before a piece without one */
    MOE_STEP_METASPACE = 18,    /* pre-tokenizer: spaces become U+2581, one is added in front */
    MOE_STEP_SCRIPTS = 19,      /* pre-tokenizer: splits between scripts */
    MOE_STEP_ALPHABET = 20,     /* pre-tokenizer: later steps see GPT-2's alphabet */
};

enum moe_split_behavior {
    MOE_SPLIT_ISOLATED = 0,  /* a match is a piece, and so is the text between */
    MOE_SPLIT_REMOVED = 1,   /* matches are dropped */
    MOE_SPLIT_PREVIOUS = 2,  /* a match ends the piece before it */
    MOE_SPLIT_NEXT = 3,      /* a match begins the piece after it */
    MOE_SPLIT_CONTIGUOUS = 4 /* adjacent matches are one piece */
};

enum {
    MOE_STEP_INVERT = 1,        /* split: the text that does not match counts as the match */
    MOE_STEP_LITERAL = 2,       /* split: the pattern is plain text, not an expression */
    MOE_STEP_PREPEND_FIRST = 4, /* metaspace: added in front of the text's first piece only */
    MOE_STEP_PREPEND_NEVER = 8, /* metaspace: none added */
    MOE_STEP_LEFT = 16,         /* strip: at the beginning */
    MOE_STEP_RIGHT = 32,        /* strip: at the end */
    MOE_STEP_CLEAN = 1,         /* BERT: controls dropped, white space to spaces */
    MOE_STEP_APART = 2,         /* BERT: spaces around Chinese characters */
    MOE_STEP_ACCENTS = 4,       /* BERT: nonspacing marks dropped */

    MOE_STEPS_MAX = 32,          /* of each list */
    MOE_STEP_TEXT_MAX = 1 << 15, /* bytes of a pattern */
    MOE_STEP_PAIRS_MAX = 1 << 20 /* bytes of pairs */
};

#define MOE_METASPACE "\xe2\x96\x81" /* U+2581 */

/* GPT-2's split, which the type ByteLevel implies (huggingface/tokenizers). */
#define MOE_PATTERN_GPT2                                                                           \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

struct moe_step {
    uint8_t kind, behavior, flags;
    struct moe_buf text, other; /* owned */
    void *code;                 /* compiled pattern (pcre2_code), owned; NULL before prepare */
    void *counted;              /* the same with callouts, for a single place; NULL for a literal */
    struct moe_charsmap map;    /* `text` of a precompiled step; empty before prepare */
};

struct moe_steps {
    struct moe_step steps[MOE_STEPS_MAX];
    uint32_t n;
};

/* Reads the next pair at *at; false at the end. Pairs of texts are stored one after another, each
 * text ended by a NUL. The replaced text has a character that is not ASCII, its replacement has
 * none: so a text grows at most by its own length times the longest replacement. */
bool moe_step_pair(const struct moe_buf *pairs, uint64_t *at, const char **from, const char **to);

/* Appends a step, zeroed; NULL when the list is full. */
struct moe_step *moe_steps_add(struct moe_steps *steps, uint8_t kind);
/* Appends a split at `pattern`; prepare reports a shortage of memory. */
struct moe_step *moe_steps_add_split(struct moe_steps *steps, const char *pattern, uint8_t behavior,
                                     uint8_t flags);
void moe_steps_release(struct moe_steps *steps);

/* Checks kinds, behaviors and flags of a list (normalizer or pre-tokenizer) and compiles the
 * patterns. */
int moe_steps_prepare(struct moe_steps *steps, bool normalizer, struct moe_err *err);

/* The most bytes that the steps take for a text of *n bytes, beside the text; *n becomes the
 * longest it may be after them. */
uint64_t moe_steps_memory(const struct moe_steps *steps, uint64_t *n);

/* Unicode's White_Space, and the word characters of regular expressions (\\w). */
bool moe_is_word(uint32_t c);
/* The end of the white space that begins at `at`, and the beginning, not before `from`, of the
 * white space that ends at `at`. */
uint64_t moe_white_after(const uint8_t *text, uint64_t at, uint64_t n);
uint64_t moe_white_before(const uint8_t *text, uint64_t from, uint64_t at);
/* The beginning of the character that ends at `at`, after `from`; a byte that is not UTF-8 counts
 * as a character. */
uint64_t moe_character_before(const uint8_t *text, uint64_t from, uint64_t at);

/* Applies the normalizer to n bytes. *result is either the text itself or lies in `out`. */
int moe_normalize(const struct moe_steps *steps, const char *text, uint64_t n, struct moe_buf *out,
                  const char **result, uint64_t *result_n, struct moe_err *err);

/* The state of one pre-tokenizing call, with match data per step, so that threads share only the
 * code. Start from a zeroed struct with `steps`, `emit` and `ctx` set. */
struct moe_pretokenizer {
    const struct moe_steps *steps;
    int (*emit)(void *ctx, const char *piece, uint64_t n, struct moe_err *err);
    void *ctx;
    void *match[MOE_STEPS_MAX]; /* pcre2_match_data */
    void *limits;               /* pcre2_match_context */
    uint64_t text_bytes;        /* split so far */
    uint64_t steps_left;        /* steps that matching may still take (pattern.c) */
    uint64_t position;          /* the last step's place */
    bool spelled;               /* pieces are in GPT-2's alphabet */
};
void moe_pretokenizer_release(struct moe_pretokenizer *p);

/* Finds the next match of split step i at or after `from`. Returns 1: found, 0: none, or a status.
 */
int moe_pretokenizer_find(struct moe_pretokenizer *p, uint32_t i, const char *text, uint64_t n,
                          uint64_t from, uint64_t *start, uint64_t *end, struct moe_err *err);
/* Adds the steps that matching may take for n more bytes of a text. */
void moe_pretokenizer_allow(struct moe_pretokenizer *p, uint64_t n);

/* Splits n bytes and calls emit for every piece in order; pieces are not empty. at_start: the text
 * begins here. Stops at the first status that is not MOE_OK; MOE_ERR_LIMIT: a pattern takes too
 * many steps for a text of this length. */
int moe_pretokenize(struct moe_pretokenizer *p, const char *text, uint64_t n, bool at_start,
                    struct moe_err *err);

/* Rewrites a pattern from Hugging Face's dialect (Oniguruma, Ruby syntax) to PCRE2's. A construct
 * that differs in meaning and cannot be rewritten is MOE_ERR_UNSUPPORTED. */
int moe_pattern_translate(const char *pattern, uint64_t n, struct moe_buf *out,
                          struct moe_err *err);

/*
 * The tokenizer's internals, shared by its source files, its readers (vocab_*), and its fuzzer.
 */

/* Stored values (tokenizer_pack.c): never renumbered. */
enum moe_tokenizer_model {
    MOE_TOKENIZER_BYTES = 1,     /* merging starts from bytes; a token's text is its bytes */
    MOE_TOKENIZER_CHARS = 2,     /* merging starts from characters; U+2581 means a space */
    MOE_TOKENIZER_UNIGRAM = 3,   /* the tokens with the best scores; characters as above */
    MOE_TOKENIZER_SPELLINGS = 4, /* GPTSAN's: a token's text lists its spellings, "A,B,C" */
};

enum moe_tokenizer_flag {
    MOE_TOKENIZER_IGNORE_MERGES = 1, /* a piece that is a token stays whole */
    MOE_TOKENIZER_BYTE_FALLBACK = 2, /* a character without a token becomes its byte tokens */
    MOE_TOKENIZER_FUSE_UNK = 4,      /* consecutive unknown characters are one unknown token */
    MOE_TOKENIZER_ADDS_BOS = 8,
    /* Left out when a whole answer is decoded: */
    MOE_TOKENIZER_DROPS_SPACES = 16, /* the spaces that its first token begins with */
    MOE_TOKENIZER_DROPS_SPACE = 32,  /* one such space */
    MOE_TOKENIZER_FLAGS = 63,
};

enum moe_token_flag {
    MOE_TOKEN_MODEL = 1,        /* in the model's vocabulary: merging can produce it */
    MOE_TOKEN_ADDED = 2,        /* cut out of a text before anything else */
    MOE_TOKEN_SPECIAL = 4,      /* ... only when special tokens are parsed */
    MOE_TOKEN_BYTE = 8,         /* "<0xNN>", one byte */
    MOE_TOKEN_LSTRIP = 16,      /* added: takes the white space before it */
    MOE_TOKEN_RSTRIP = 32,      /* added: takes the white space after it */
    MOE_TOKEN_NORMALIZED = 64,  /* added: searched in the normalized text */
    MOE_TOKEN_SINGLE_WORD = 128 /* added: never next to a letter, digit or the like */
    /* Neither MODEL nor ADDED: a token that only decodes or, without a text, an unused id. */
};

enum {
    MOE_TOKENS_MAX = 1 << 22,
    MOE_TOKEN_BYTES_MAX = UINT16_MAX,
};

#define MOE_NO_TOKEN UINT32_MAX

/* An added token as searched: its text, or its normalized text. */
struct moe_added_token {
    const uint8_t *text; /* borrowed from the tokenizer */
    uint32_t n, id;
};

/* Added tokens sorted by text, so that the longest at a place is found by narrowing a range. */
struct moe_added {
    struct moe_added_token *tokens; /* owned */
    uint32_t n;
    uint32_t first[257]; /* tokens that begin with byte b: tokens[first[b]..first[b + 1]) */
};

/* The longest added token at text[0..n), n > 0, or NULL; a special one must lie within special_n
 * bytes. */
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
    struct moe_unigram unigram; /* stored: scores, and the score of an unknown character */
    struct moe_steps normalizer, pre_tokenizer;
    uint32_t bos, eos, unk; /* MOE_NO_TOKEN: none */
    uint32_t tail, pad;     /* appended to a whole text; fills up a batch */

    /* Derived by moe_tokenizer_prepare. */
    uint32_t *vocabulary; /* hash table of the MODEL tokens' texts: id + 1, or 0 */
    uint32_t mask;        /* its slots - 1 */
    uint32_t byte_ids[256];
    struct moe_added added[2]; /* [1]: those searched in the normalized text */
    struct moe_buf normalized; /* texts of added[1] */
    uint32_t *shown_offsets;   /* of tokens whose meaning differs from their text; may be NULL */
    struct moe_buf shown;
    struct moe_trie spellings; /* for a model of spellings, without special tokens */
    uint32_t separator;
    bool words_apart; /* no token has a space after another character: words merge independently */
};

/* Whether tokens are spelled in characters, U+2581 for a space, and bytes as tokens "<0xNN>". */
static inline bool moe_has_characters(const struct moe_tokenizer *tok)
{
    return tok->model == MOE_TOKENIZER_CHARS || tok->model == MOE_TOKENIZER_UNIGRAM;
}

/* U+2581, a space in the tokens of a character model. */
static inline bool moe_is_metaspace(const uint8_t *text, uint64_t n)
{
    return n >= 3 && text[0] == 0xe2 && text[1] == 0x96 && text[2] == 0x81;
}

/* An empty tokenizer to fill, then prepare; release with moe_tokenizer_free in any case. */
struct moe_tokenizer *moe_tokenizer_new(struct moe_err *err);
/* Allocates n tokens: offsets and flags, zeroed. */
int moe_tokenizer_allocate(struct moe_tokenizer *tok, uint32_t n, struct moe_err *err);
/* Builds the index of moe_tokenizer_lookup over the tokens. */
int moe_tokenizer_index(struct moe_tokenizer *tok, struct moe_err *err);
/* Checks everything a reader filled in and derives the rest. Error texts have no file name. */
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
/* The byte of the token "<0xNN>", or -1. */
int moe_token_byte(const void *token, uint64_t n);

/* Whether each of the n bytes has a byte token. */
bool moe_tokenizer_has_bytes(const struct moe_tokenizer *tok, const uint8_t *text, uint64_t n);

/* The MODEL token with exactly this text, or MOE_NO_TOKEN. */
uint32_t moe_tokenizer_lookup(const struct moe_tokenizer *tok, const void *text, uint64_t n);

/* Appends the ids of n bytes by a unigram model; `out` has room for n more. *score is carried from
 * piece to piece of a text that is cut where every way passes (moe_unigram_best). */
int moe_unigram_encode(const struct moe_tokenizer *tok, struct moe_unigram_scratch *scratch,
                       const uint8_t *text, uint64_t n, double *score, struct moe_ids *out,
                       struct moe_err *err);

/* The same for a model of spellings: encoding; its index and the meaning of its tokens; whether a
 * token is a byte, or repeats what the previous one shows. */
int moe_spellings_encode(const struct moe_tokenizer *tok, const uint8_t *text, uint64_t n,
                         struct moe_ids *out, struct moe_err *err);

/* Appends the bytes that n bytes of characters spell in GPT-2's alphabet, which has one character
 * for each byte; false (and nothing appended) if a character is not in it. */
bool moe_alphabet_read(const char *text, uint64_t n, struct moe_buf *out);

/* Adds the steps and flags of the pre-tokenizer with this name ("tokenizer.ggml.pre"). An unknown
 * name is MOE_ERR_UNSUPPORTED and named. */
int moe_gguf_pre_tokenizer(struct moe_tokenizer *tok, const char *file, const char *pre,
                           struct moe_err *err);

#endif
