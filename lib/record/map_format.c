#include "record/map_format.h"

#define OF(type, key, kind, name)                                                                  \
    {                                                                                              \
        key, MAP_##kind, offsetof(struct type, name), sizeof(((struct type *)0)->name)             \
    }

static const struct map_member head_members[] = {
    OF(moe_map, "source_fingerprint", FINGERPRINT, source_fingerprint),
    OF(moe_map, "pack_fingerprint", FINGERPRINT, pack_fingerprint),
    OF(moe_map, "dense_bits", BITS, pack_dense_bits),
    OF(moe_map, "max_document_tokens", COUNT, max_tokens),
};

static const struct map_member shape_members[] = {
    OF(moe_map, "moe_layers", COUNT, n_layers),
    OF(moe_map, "experts", COUNT, n_experts),
    OF(moe_map, "experts_per_token", COUNT, top_k),
};

static const struct map_member choice_members[] = {
    OF(moe_map, "dense_bits", BITS, choice.dense_bits),
    OF(moe_map, "expert_bytes", WHOLE, choice.expert_bytes),
    OF(moe_map, "dense_bytes", WHOLE, choice.dense_bytes),
};

static const struct map_member fate_members[] = {
    OF(moe_map, "share", SHARE, fate.share),
};

static const struct map_member hobbit_members[] = {
    OF(moe_map, "t1", SHARE, hobbit.t1),
    OF(moe_map, "t2", SHARE, hobbit.t2),
    OF(moe_map, "high_share", SHARE, hobbit.high_share),
    OF(moe_map, "low_share", SHARE, hobbit.low_share),
    OF(moe_map, "skipped_share", SHARE, hobbit.skipped_share),
};

static const struct map_member tuned_members[] = {
    OF(moe_map, "low_pool_share", SHARE, hobbit.low_pool),
    OF(moe_map, "penalty_per_activation", AMOUNT, hobbit.penalty),
    OF(moe_map, "default_penalty_per_activation", AMOUNT, hobbit.default_penalty),
};

static const struct map_member loss_members[] = {
    OF(moe_loss, "documents", WHOLE, documents),
    OF(moe_loss, "tokens", WHOLE, tokens),
    OF(moe_loss, "nats_per_token", AMOUNT, nll),
    OF(moe_loss, "reference_nats_per_token", AMOUNT, reference_nll),
    OF(moe_loss, "nll_percent", CHANGE, nll_percent),
    OF(moe_loss, "nll_error_percent", AMOUNT, nll_error),
    OF(moe_loss, "top1_points", POINTS, top1_points),
    OF(moe_loss, "top1_error_points", AMOUNT, top1_error),
};

static const struct map_member text_members[] = {
    OF(moe_map_text, "name", TEXT, name),      OF(moe_map_text, "documents", WHOLE, documents),
    OF(moe_map_text, "tokens", WHOLE, tokens), OF(moe_map_text, "hash", FINGERPRINT, hash),
    OF(moe_map_text, "check", FLAG, check),
};

static const struct map_member rung_members[] = {
    OF(moe_rung, "experts", TEXT, experts),
    OF(moe_rung, "dense_bits", BITS, dense_bits),
    OF(moe_rung, "bytes", WHOLE, bytes),
};

#define TABLE(name)                                                                                \
    const struct map_table map_##name = {name##_members,                                           \
                                         sizeof name##_members / sizeof name##_members[0]}
TABLE(head);
TABLE(shape);
TABLE(choice);
TABLE(fate);
TABLE(hobbit);
TABLE(tuned);
TABLE(loss);
TABLE(text);
TABLE(rung);

const char *const map_tolerance_keys[MOE_N_METRICS] = {"tolerance_percent", "tolerance_points"};
const char *const map_expected_keys[MOE_N_METRICS] = {"expected_percent", "expected_points"};
const char *const map_weight_keys[MOE_HOBBIT_WEIGHTS] = {"lru", "lfu", "lhu", "fld"};
