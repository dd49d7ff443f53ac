/*
 * Tokenizer: text to token ids and back, byte-exact.
 *
 * BPE as in Hugging Face's tokenizer.json or a GGUF file's vocabulary, over bytes or over
 * characters with byte fallback, and SentencePiece's unigram models. Added tokens are cut out
 * first; the rest is normalized and split by the pre-tokenizer's patterns (PCRE2); each piece is
 * merged by rank, or becomes the tokens with the largest sum of scores, or (GPTSAN) those with the
 * smallest ids. Ids are decoded one after another to their bytes. If the tokenizer has no
 * normalizer and adds no space, encoding and decoding gives back any text, even bytes that are not
 * valid UTF-8.
 *
 * In a pack a tokenizer is a compact binary section (moe-pack(5)), so that no JSON is parsed at
 * start. Immutable after loading; several threads may encode at once.
 */
#ifndef MOE_TEXT_TOKENIZER_H
#define MOE_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

struct moe_tokenizer;

/* text/vocab.h reads checkpoints' tokenizers. */

/* Reads a pack's section, and writes it. */
int moe_tokenizer_read(struct moe_tokenizer **out, const char *name, const void *data, uint64_t n,
                       struct moe_err *err);
void moe_tokenizer_write(const struct moe_tokenizer *tok, struct moe_buf *out);
void moe_tokenizer_free(struct moe_tokenizer *tok);

uint32_t moe_tokenizer_n_tokens(const struct moe_tokenizer *tok); /* largest id + 1 */

/* Growable list of ids; release with moe_ids_release. */
struct moe_ids {
    uint32_t *ids;
    uint64_t n, room;
};
void moe_ids_release(struct moe_ids *ids);
int moe_ids_push(struct moe_ids *ids, uint32_t id, struct moe_err *err);
/* Makes room for n more. */
int moe_ids_reserve(struct moe_ids *ids, uint64_t n, struct moe_err *err);

/* Appends the ids of n bytes of text, and nothing before or after them. parse_special: recognizes
 * added tokens marked special in the text (templates need it; a user's words should not). */
int moe_tokenizer_encode(const struct moe_tokenizer *tok, const char *text, uint64_t n,
                         bool parse_special, struct moe_ids *out, struct moe_err *err);

/* Appends the ids of a whole text with the tokens that the tokenizer's files put before it (if
 * moe_tokenizer_adds_bos) and after it (T5: </s>): the input for any text but a chat, whose
 * template writes such tokens itself. */
int moe_tokenizer_encode_whole(const struct moe_tokenizer *tok, const char *text, uint64_t n,
                               bool parse_special, struct moe_ids *out, struct moe_err *err);

/*
 * Long texts, whose ids need not all be held. Ids are final piece by piece, so the first ones are
 * known long before the text's end is read.
 */
enum { MOE_TOKENIZER_ENOUGH = 1 }; /* returned by `take` to skip the rest of the text */

/* The same as moe_tokenizer_encode without special tokens, but calls `take` whenever `out` holds
 * `enough` ids or more; it may remove some. The remaining ids are in `out`, also after a failure.
 */
int moe_tokenizer_encode_parts(const struct moe_tokenizer *tok, const char *text, uint64_t n,
                               uint64_t enough,
                               int (*take)(void *ctx, struct moe_ids *ids, struct moe_err *err),
                               void *ctx, struct moe_ids *out, struct moe_err *err);
/* ... but stops once `enough` or more have been appended: they begin as those of the whole text do.
 */
int moe_tokenizer_encode_start(const struct moe_tokenizer *tok, const char *text, uint64_t n,
                               uint64_t enough, struct moe_ids *out, struct moe_err *err);

/* Bounds on a text's ids, found without encoding it. */
struct moe_tokenizer_survey {
    uint64_t least_ids; /* the text has at least this many, or `enough` */
    uint64_t
        longest_piece; /* in bytes, among the pieces that moe_tokenizer_encode_start would encode */
};
int moe_tokenizer_look(const struct moe_tokenizer *tok, const char *text, uint64_t n,
                       uint64_t enough, struct moe_tokenizer_survey *out, struct moe_err *err);
/* ... of those that moe_tokenizer_encode_chat makes. */
int moe_tokenizer_look_chat(const struct moe_tokenizer *tok, const char *text, uint64_t n,
                            const struct moe_span *words, uint64_t n_words, uint64_t enough,
                            struct moe_tokenizer_survey *out, struct moe_err *err);
/* Bytes that it owns, without its compiled patterns. */
uint64_t moe_tokenizer_held_bytes(const struct moe_tokenizer *tok);
/* The most bytes that encoding n bytes takes, beside them and their ids, with such a longest piece
 * (UINT64_MAX: unknown). */
uint64_t moe_tokenizer_memory(const struct moe_tokenizer *tok, uint64_t n, uint64_t longest_piece);

/* The same as moe_tokenizer_encode with parse_special, but a special token with bytes in one of the
 * `words` (in ascending order, disjoint) is plain text: a template's special tokens count, typed
 * ones do not. If the words hold no special token the ids are the same. */
int moe_tokenizer_encode_chat(const struct moe_tokenizer *tok, const char *text, uint64_t n,
                              const struct moe_span *words, uint64_t n_words, struct moe_ids *out,
                              struct moe_err *err);

/* The bytes of one token, borrowed, and their number; special tokens give their text. An id without
 * a token gives 0 bytes. */
const uint8_t *moe_tokenizer_bytes(const struct moe_tokenizer *tok, uint32_t id, uint32_t *n);
/* Whether the token is special. Sentinels, "<extra_id_0>" and so on, are added tokens but never
 * special, whatever the file says: a user writes and reads them. */
bool moe_tokenizer_is_special(const struct moe_tokenizer *tok, uint32_t id);

/* The bytes of one token of an answer: none for a special token; for the first token without the
 * space that the tokenizer puts before a text. *first begins as true and becomes false once a token
 * has been shown. Borrowed. */
const uint8_t *moe_tokenizer_said(const struct moe_tokenizer *tok, uint32_t id, bool *first,
                                  uint32_t *n);
/* Whether the token repeats what the previous token showed, three more times (GPTSAN's bag of
 * tokens); it shows nothing itself. */
bool moe_tokenizer_repeats(const struct moe_tokenizer *tok, uint32_t id);
/* Appends the text of n ids as an answer. */
int moe_tokenizer_decode(const struct moe_tokenizer *tok, const uint32_t *ids, uint64_t n,
                         struct moe_buf *out, struct moe_err *err);
/* The id whose token is exactly this text (added tokens first), or -1. */
int64_t moe_tokenizer_find(const struct moe_tokenizer *tok, const char *text);
/* The special token of a language as NLLB's 202 are named, "fra_Latn": an ISO 639-3 code and an ISO
 * 15924 script; -1: there is none of this name. */
int64_t moe_tokenizer_language(const struct moe_tokenizer *tok, const char *name);

/* The token that begins a text, or -1; and whether texts should begin with it. */
int64_t moe_tokenizer_bos(const struct moe_tokenizer *tok);
bool moe_tokenizer_adds_bos(const struct moe_tokenizer *tok);
/* The token that the tokenizer puts after a whole text (moe_tokenizer_encode_whole), or -1. */
int64_t moe_tokenizer_tail(const struct moe_tokenizer *tok);
/* Whether an answer ends with this token: eos, the separator, or padding. */
bool moe_tokenizer_ends_answer(const struct moe_tokenizer *tok, uint32_t id);
/* The token that ends an answer (a chat checkpoint names its end of turn), or -1. */
int64_t moe_tokenizer_eos(const struct moe_tokenizer *tok);
/* The end-of-text token, which separates documents: <|endoftext|> or the like if there is one, else
 * eos; or -1. */
int64_t moe_tokenizer_separator(const struct moe_tokenizer *tok);

#endif
