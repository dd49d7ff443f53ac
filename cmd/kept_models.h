/*
 * Models that other programs keep: where LM Studio, llama.cpp, ollama and the Hugging Face
 * libraries put what they download, listed and opened by short names.
 */
#ifndef CMD_KEPT_MODELS_H
#define CMD_KEPT_MODELS_H

#include "base/buf.h"
#include "base/err.h"

/* Replaces the name of a file that does not exist by the path of the one model of that short name,
 * and a directory that is no checkpoint by the one model in it; that path lives as long as the
 * program. Returns -1, or an exit status after a message: none has the name, or several have. */
int kept_model_resolve(const char **name);

/* Lists the models in a directory; NULL: in all usual places. */
int kept_models_list(const char *dir, struct moe_buf *out, struct moe_err *err);

#endif
