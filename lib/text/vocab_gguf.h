/*
 * A GGUF file's vocabulary: the parts that the file only names or implies.
 */
#ifndef MOE_TEXT_VOCAB_GGUF_H
#define MOE_TEXT_VOCAB_GGUF_H

#include "text/internal.h"
#include "text/vocab.h"

/* Adds the steps and flags of the pre-tokenizer with this name ("tokenizer.ggml.pre"). An unknown
 * name is MOE_ERR_UNSUPPORTED and named. */
int moe_gguf_pre_tokenizer(struct moe_tokenizer *tok, const char *file, const char *pre,
                           struct moe_err *err);

/* Derives the merges of a vocabulary that has one score per token instead (SentencePiece): every
 * pair of tokens that makes a token, the best score first. Scores are finite; the tokens are
 * already stored. */
int moe_gguf_merges_by_score(struct moe_tokenizer *tok, const char *file, const float *scores,
                             struct moe_err *err);

#endif
