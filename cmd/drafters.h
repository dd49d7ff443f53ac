/* Who drafts: the words of --draft. */
#ifndef CMD_DRAFTERS_H
#define CMD_DRAFTERS_H

#include <stddef.h>

enum drafter { DRAFT_NONE, DRAFT_NGRAM, DRAFT_MTP };

static const char *const drafters[] = {"none", "ngram", "mtp", NULL};

#endif
