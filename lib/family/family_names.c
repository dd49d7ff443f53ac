/* Names of tensors that families of several tables have. */
#include "family/family_table.h"

const struct moe_source_names moe_placed_norm_names = {
    .dense = {[MOE_T_FFN_NORM] = MOE_ALL("blk.%u.post_attention_norm.weight")},
};

#define B "blk.%u."
const struct moe_source_names moe_mamba_gguf_names = {
    .dense = {[MOE_T_STATE_Z] = MOE_PART(B "ssm_in.weight", STATE_ROWS),
              [MOE_T_STATE_V] = MOE_PART(B "ssm_in.weight", STATE_ROWS),
              [MOE_T_STATE_K] = MOE_PART(B "ssm_in.weight", STATE_ROWS),
              [MOE_T_STATE_Q] = MOE_PART(B "ssm_in.weight", STATE_ROWS),
              [MOE_T_STATE_DECAY] = MOE_PART(B "ssm_in.weight", STATE_ROWS),
              [MOE_T_STATE_NORM] = MOE_PART(B "ssm_norm.weight", GROUPS)},
};

const struct moe_source_names moe_qwen2_moe_names = {
    .dense = {[MOE_T_SHARED_GATE_PROJ] = MOE_ALL(L "mlp.shared_expert.gate_proj.weight"),
              [MOE_T_SHARED_UP] = MOE_ALL(L "mlp.shared_expert.up_proj.weight"),
              [MOE_T_SHARED_DOWN] = MOE_ALL(L "mlp.shared_expert.down_proj.weight")},
};
