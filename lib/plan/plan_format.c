#include "plan/plan_format.h"

#include <math.h>
#include <string.h>

#define OF(type, key, kind, name)                                                                  \
    {                                                                                              \
        key, PLAN_##kind, offsetof(struct type, name), sizeof(((struct type *)0)->name), false     \
    }
#define ALWAYS(type, key, kind, name)                                                              \
    {                                                                                              \
        key, PLAN_##kind, offsetof(struct type, name), sizeof(((struct type *)0)->name), true      \
    }

static const struct plan_member pack_members[] = {
    OF(moe_plan, "name", TEXT, pack),
    OF(moe_plan, "fingerprint", FINGERPRINT, pack_fingerprint),
};

static const struct plan_member shape_members[] = {
    ALWAYS(moe_plan, "moe_layers", COUNT, n_layers),
    ALWAYS(moe_plan, "experts", COUNT, n_experts),
    ALWAYS(moe_plan, "experts_per_token", COUNT, top_k),
};

static const struct plan_member memory_members[] = {
    OF(moe_plan, "total_bytes", WHOLE, memory.total),
    OF(moe_plan, "program_bytes", WHOLE, memory.program),
    OF(moe_plan, "dense_bytes", WHOLE, memory.dense),
    OF(moe_plan, "kv_bytes", WHOLE, memory.kv),
    OF(moe_plan, "work_bytes", WHOLE, memory.work),
    OF(moe_plan, "experts_bytes", WHOLE, memory.experts),
    OF(moe_plan, "floor_bytes", WHOLE, memory.floor),
    OF(moe_plan, "token_experts_bytes", WHOLE, memory.token),
    OF(moe_plan, "all_experts_bytes", WHOLE, memory.all),
    OF(moe_plan, "context_tokens", COUNT, memory.context),
    OF(moe_plan, "batch_tokens", COUNT, memory.batch),
};

static const struct plan_member precision_members[] = {
    OF(moe_plan, "precision", TEXT, high),
    OF(moe_plan, "low_precision", TEXT, low),
};

static const struct plan_member pool_members[] = {
    ALWAYS(moe_plan_pool, "slot_bytes", WHOLE, slot_bytes),
    ALWAYS(moe_plan_pool, "cache_slots", COUNT, n_cache),
    ALWAYS(moe_plan_pool, "working_slots", COUNT, n_working),
};

static const struct plan_member prefetch_members[] = {
    OF(moe_plan, "layer_seconds", AMOUNT, layer_seconds),
    OF(moe_plan, "load_seconds", AMOUNT, load_seconds),
    ALWAYS(moe_plan, "loads", COUNT, slack_loads),
};

static const struct plan_member boundary_members[] = {
    OF(moe_plan, "by_accuracy", LAYERS, boundary_accuracy),
    OF(moe_plan, "by_stall", LAYERS, boundary_stall),
};

static const struct plan_member times_members[] = {
    OF(moe_plan, "load_bytes_per_second", AMOUNT, pace.load_rate),
    OF(moe_plan, "head_seconds", AMOUNT, pace.head),
    OF(moe_plan, "predict_seconds", AMOUNT, pace.predict),
    OF(moe_plan, "host_slowdown", AMOUNT, pace.host_slowdown),
};

static const struct plan_member evidence_members[] = {
    OF(moe_plan, "trace", TEXT, evidence.trace),
    OF(moe_plan, "trace_sequences", WHOLE, evidence.trace_sequences),
    OF(moe_plan, "trace_tokens", WHOLE, evidence.trace_tokens),
    OF(moe_plan, "trace_prompt_tokens", WHOLE, evidence.trace_prompt_tokens),
    OF(moe_plan, "statistics", TEXT, evidence.statistics),
    OF(moe_plan, "statistics_tokens", WHOLE, evidence.statistics_tokens),
    OF(moe_plan, "device", TEXT, evidence.device),
    OF(moe_plan, "times_measured", FLAG, evidence.times_measured),
    OF(moe_plan, "manner_known", FLAG, evidence.manner_known),
    OF(moe_plan, "calibration", TEXT, evidence.calibration),
    OF(moe_plan, "calibration_texts", TEXT, evidence.calibration_texts),
};

static const struct plan_member expected_members[] = {
    OF(moe_plan, "decode_tokens_per_second", FIGURE, expected.decode_tokens_per_second),
    OF(moe_plan, "prefill_tokens_per_second", FIGURE, expected.prefill_tokens_per_second),
    OF(moe_plan, "hit_rate", SHARE, expected.hit_rate),
    OF(moe_plan, "optimal_hit_rate", SHARE, expected.optimal_hit_rate),
    OF(moe_plan, "accuracy", SHARE, expected.accuracy),
    OF(moe_plan, "bytes_per_token", FIGURE, expected.bytes_per_token),
    OF(moe_plan, "compute_seconds", FIGURE, expected.compute_seconds),
    OF(moe_plan, "stall_seconds", FIGURE, expected.stall_seconds),
    OF(moe_plan, "host_seconds", FIGURE, expected.host_seconds),
    OF(moe_plan, "link_seconds", FIGURE, expected.link_seconds),
    OF(moe_plan, "compute_limit_seconds", FIGURE, expected.compute_limit_seconds),
    OF(moe_plan, "link_limit_seconds", FIGURE, expected.link_limit_seconds),
};

static const struct plan_member layer_members[] = {
    OF(moe_plan_layer, "hit_rate", SHARE, hit_rate),
    OF(moe_plan_layer, "accuracy", SHARE, accuracy),
    OF(moe_plan_layer, "stall_seconds", FIGURE, stall_seconds),
};

static const struct plan_member memory_step_members[] = {
    ALWAYS(moe_plan_step, "bytes", AMOUNT, amount),
    OF(moe_plan_step, "decode_tokens_per_second", FIGURE, decode_tokens_per_second),
    OF(moe_plan_step, "hit_rate", SHARE, hit_rate),
};

static const struct plan_member rate_step_members[] = {
    ALWAYS(moe_plan_step, "bytes_per_second", AMOUNT, amount),
    OF(moe_plan_step, "decode_tokens_per_second", FIGURE, decode_tokens_per_second),
    OF(moe_plan_step, "hit_rate", SHARE, hit_rate),
};

static const struct plan_member tried_members[] = {
    ALWAYS(moe_plan_tried, "strategy", TEXT, strategy),
    OF(moe_plan_tried, "decode_tokens_per_second", FIGURE, decode_tokens_per_second),
    OF(moe_plan_tried, "hit_rate", SHARE, hit_rate),
};

static const struct plan_member loss_members[] = {
    ALWAYS(moe_plan_loss, "part", TEXT, part),
    ALWAYS(moe_plan_loss, "tokens", WHOLE, tokens),
    ALWAYS(moe_plan_loss, "nll_percent", CHANGE, nll_percent),
    ALWAYS(moe_plan_loss, "nll_error_percent", FIGURE, nll_error),
    ALWAYS(moe_plan_loss, "top1_points", FIGURE, top1_points),
    ALWAYS(moe_plan_loss, "top1_error_points", FIGURE, top1_error),
};

#define TABLE(name)                                                                                \
    const struct plan_table plan_##name = {name##_members,                                         \
                                           sizeof name##_members / sizeof name##_members[0]}
TABLE(pack);
TABLE(shape);
TABLE(memory);
TABLE(precision);
TABLE(pool);
TABLE(prefetch);
TABLE(boundary);
TABLE(times);
TABLE(evidence);
TABLE(expected);
TABLE(layer);
TABLE(memory_step);
TABLE(rate_step);
TABLE(tried);
TABLE(loss);

bool plan_is_there(const struct plan_member *m, const void *value)
{
    double x = 0;
    switch (m->kind) {
    case PLAN_TEXT:
        return *(const char *)value != '\0';
    case PLAN_COUNT:
        return *(const uint32_t *)value != 0;
    case PLAN_LAYERS:
        return *(const uint32_t *)value != UINT32_MAX;
    case PLAN_WHOLE:
    case PLAN_FINGERPRINT:
        return *(const uint64_t *)value != 0;
    case PLAN_FLAG:
        return *(const bool *)value;
    case PLAN_AMOUNT:
    case PLAN_FIGURE:
    case PLAN_SHARE:
        memcpy(&x, value, sizeof x);
        return isfinite(x) && (m->kind == PLAN_AMOUNT ? x > 0 : x >= 0);
    case PLAN_CHANGE:
        return true;
    }
    return false;
}

bool plan_any_there(const struct plan_table *table, const void *from)
{
    bool any = false;
    for (size_t i = 0; i < table->n; i++)
        any |= plan_is_there(&table->members[i], (const char *)from + table->members[i].at);
    return any;
}

void plan_forget(const struct plan_table *table, void *to)
{
    static const uint32_t no_layers = UINT32_MAX;
    static const double unknown = -1;
    for (size_t i = 0; i < table->n; i++) {
        const struct plan_member *m = &table->members[i];
        char *value = (char *)to + m->at;
        if (m->kind == PLAN_FIGURE || m->kind == PLAN_SHARE)
            memcpy(value, &unknown, sizeof unknown);
        else if (m->kind == PLAN_LAYERS)
            memcpy(value, &no_layers, sizeof no_layers);
        else
            memset(value, 0, m->room);
    }
}
