/*
 * Reads checkpoints' tokenizers: Hugging Face's files, and GGUF's metadata. The result is a struct
 * moe_tokenizer (text/tokenizer.h), complete and checked.
 */
#ifndef MOE_TEXT_VOCAB_H
#define MOE_TEXT_VOCAB_H

#include "text/tokenizer.h"

struct moe_gguf;

/* Reads a Hugging Face directory: tokenizer.json and, optional, tokenizer_config.json (named
 * tokens, added ones, add_bos_token, add_prefix_space), added_tokens.json and
 * special_tokens_map.json; or, without tokenizer.json, vocab.txt and emoji.json (GPTSAN). A
 * normalizer, pre-tokenizer, model or post-processor part that we do not implement is
 * MOE_ERR_UNSUPPORTED and named. */
int moe_tokenizer_read_hf(struct moe_tokenizer **out, const char *dir, struct moe_err *err);
/* Reads a GGUF file's metadata: vocabularies with merges ("gpt2", "gemma4") and a pre-tokenizer
 * known by name, and SentencePiece's: "llama", whose scores become merges, and "t5", a unigram
 * model. The ids are those of the tokenizer.json that the file was converted from. Another kind or
 * pre-tokenizer is MOE_ERR_UNSUPPORTED and named. */
int moe_tokenizer_read_gguf(struct moe_tokenizer **out, const struct moe_gguf *gguf,
                            struct moe_err *err);

/* Makes 256 tokens, one for each byte, for a model without a tokenizer. */
int moe_tokenizer_of_bytes(struct moe_tokenizer **out, struct moe_err *err);

/* GPTSAN's vocab.txt and emoji.json, texts in memory; tokenizer_config.json may be NULL. */
int moe_tokenizer_parse_gptsan(struct moe_tokenizer **out, const char *vocab_name,
                               const struct moe_buf *vocab, const char *emoji_name,
                               const struct moe_buf *emoji, const char *config_name,
                               const struct moe_buf *config, struct moe_err *err);

struct moe_hf_text {
    const char *name; /* the file's name, for error texts */
    const void *data; /* NULL: no such file */
    uint64_t n;
};
struct moe_hf_texts {
    struct moe_hf_text tokenizer, config, added, special_map;
};
/* moe_tokenizer_read_hf over texts in memory; all but the first may be missing. */
int moe_tokenizer_parse_hf_files(struct moe_tokenizer **out, const struct moe_hf_texts *texts,
                                 struct moe_err *err);
/* The same with two of them; config may be NULL. */
int moe_tokenizer_parse_hf(struct moe_tokenizer **out, const char *name, const void *json,
                           uint64_t n, const char *config_name, const void *config,
                           uint64_t config_n, struct moe_err *err);

#endif
