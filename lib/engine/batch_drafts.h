/*
 * Drafts of a batch's members. A pass has few rows for them (MOE_BATCH_DRAFT_ROWS with the tokens
 * that are certain), which its members share: alone a draft is as long as it may be, and with as
 * many members as that there is none, since a pass of so many reads weights for all of them anyway.
 * Within that a draft that was wrong is followed by a shorter one (sample/draft.h).
 *
 * A drafted row takes blocks of the KV cache only where some are free: nobody makes room for it.
 * What is in the cache of a draft in vain lies behind the text's end, where the next pass
 * overwrites it, and no other text takes it over. Internal to the batch.
 */
#ifndef MOE_ENGINE_BATCH_DRAFTS_H
#define MOE_ENGINE_BATCH_DRAFTS_H

#include "engine/batch_members.h"

enum { MOE_BATCH_DRAFT_ROWS = 16 };

/* Those that are about to decode get drafts, as many tokens as the pass has rows for. */
void batch_drafts_make(struct moe_batch *b);

/* After the tokens of a pass of n_rows are drawn: recurrent states that draft in vain have changed
 * go back, and the layer that drafts, where there is one, reads the rows and drafts what the next
 * pass is to have. The rows are no longer there afterwards. */
void batch_drafts_after(struct moe_batch *b, uint32_t n_rows);

#endif
