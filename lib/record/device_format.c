#include "record/device_format.h"

#define FIGURE_OF(s, key, name)                                                                    \
    {                                                                                              \
        key, DEVICE_FIGURE, offsetof(struct s, name), 0, false                                     \
    }
#define TEXT_OF(s, key, name)                                                                      \
    {                                                                                              \
        key, DEVICE_TEXT, offsetof(struct s, name), sizeof(((struct s *)0)->name), false           \
    }
#define COUNT_OF(s, key, name)                                                                     \
    {                                                                                              \
        key, DEVICE_COUNT, offsetof(struct s, name), 0, true                                       \
    }

static const struct device_member root_members[] = {
    {"name", DEVICE_TEXT, offsetof(struct moe_device, name), MOE_DEVICE_TEXT, true},
    TEXT_OF(moe_device, "source", source),
};

static const struct device_member host_members[] = {
    TEXT_OF(moe_device_host, "source", source),
    TEXT_OF(moe_device_host, "name", name),
    TEXT_OF(moe_device_host, "cpu_level", cpu_level),
    FIGURE_OF(moe_device_host, "cores", cores),
    FIGURE_OF(moe_device_host, "threads", threads),
    FIGURE_OF(moe_device_host, "memory_bytes", memory_bytes),
    FIGURE_OF(moe_device_host, "memory_bytes_per_second", memory_bytes_per_second),
};

static const struct device_member accelerator_members[] = {
    TEXT_OF(moe_device_accelerator, "source", source),
    {"name", DEVICE_TEXT, offsetof(struct moe_device_accelerator, name), MOE_DEVICE_TEXT, true},
    {"shares_host_memory", DEVICE_FLAG, offsetof(struct moe_device_accelerator, shares_memory), 0,
     false},
    FIGURE_OF(moe_device_accelerator, "memory_bytes", memory_bytes),
    FIGURE_OF(moe_device_accelerator, "memory_bytes_per_second", memory_bytes_per_second),
    FIGURE_OF(moe_device_accelerator, "link_bytes_per_second", link_bytes_per_second),
};

static const struct device_member storage_members[] = {
    TEXT_OF(moe_device_storage, "source", source),
    TEXT_OF(moe_device_storage, "name", name),
    {"direct", DEVICE_FLAG, offsetof(struct moe_device_storage, direct), 0, false},
    FIGURE_OF(moe_device_storage, "bytes_per_second", bytes_per_second),
    FIGURE_OF(moe_device_storage, "latency_seconds", latency_seconds),
    FIGURE_OF(moe_device_storage, "read_bytes", read_bytes),
};

static const struct device_member reads_members[] = {
    COUNT_OF(moe_device_reads, "in_flight", in_flight),
    FIGURE_OF(moe_device_reads, "bytes_per_second", bytes_per_second),
    FIGURE_OF(moe_device_reads, "seconds", seconds),
};

static const struct device_member model_members[] = {
    TEXT_OF(moe_device_model, "source", source),
    {"source_fingerprint", DEVICE_FINGERPRINT,
     offsetof(struct moe_device_model, source_fingerprint), 0, true},
    COUNT_OF(moe_device_model, "layers", layers),
    COUNT_OF(moe_device_model, "moe_layers", moe_layers),
    COUNT_OF(moe_device_model, "experts_per_token", experts_per_token),
    COUNT_OF(moe_device_model, "positions", positions),
    FIGURE_OF(moe_device_model, "head_seconds", head_seconds),
};

static const struct device_member variant_members[] = {
    {"name", DEVICE_TEXT, offsetof(struct moe_device_variant, name), 64, true},
    FIGURE_OF(moe_device_variant, "bytes", bytes),
};

static const struct device_member batch_members[] = {
    COUNT_OF(moe_device_batch, "rows", rows),
    FIGURE_OF(moe_device_batch, "attention_seconds", attention),
    FIGURE_OF(moe_device_batch, "router_seconds", router),
    FIGURE_OF(moe_device_batch, "shared_seconds", shared),
    FIGURE_OF(moe_device_batch, "combine_seconds", combine),
    FIGURE_OF(moe_device_batch, "dense_seconds", dense),
    FIGURE_OF(moe_device_batch, "expert_rows", expert_rows),
};

#define TABLE(name)                                                                                \
    const struct device_table device_##name = {name##_members,                                     \
                                               sizeof name##_members / sizeof name##_members[0]}
TABLE(root);
TABLE(host);
TABLE(accelerator);
TABLE(storage);
TABLE(reads);
TABLE(model);
TABLE(variant);
TABLE(batch);
