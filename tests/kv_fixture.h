/* Sequences whose blocks of the KV cache lie in no order. */
#ifndef TESTS_KV_FIXTURE_H
#define TESTS_KV_FIXTURE_H

#include "infer/session.h"
#include "test.h"

/* Has every sequence take room for its whole context, a block at a time, in turns as they fall:
 * some blocks were another's before. */
static inline void scatter_blocks(struct moe_session *s, uint64_t *random)
{
    struct moe_err err;
    for (int round = 0; round < 2; round++) {
        uint32_t each = s->kv_pool.block_positions;
        for (uint32_t left = s->kv_pool.n_blocks; left > 0;) {
            uint32_t sequence = (uint32_t)(test_random(random) % s->n_sequences);
            uint32_t n = (s->kv_pool.n_taken[sequence] + 1) * each;
            if (s->kv_pool.n_taken[sequence] == s->kv_pool.per_sequence)
                continue;
            assert_ok(moe_sequence_reserve(s, sequence, n < s->context ? n : s->context, &err),
                      &err);
            left--;
        }
        for (uint32_t i = 0; round == 0 && i < s->n_sequences; i++)
            moe_sequence_rewind(s, i, 0);
    }
}

#endif
