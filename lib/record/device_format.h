/*
 * The format of device profiles, moe-device(5), as tables that its reader and its writers follow.
 * Internal to sched/device_*.
 */
#ifndef MOE_RECORD_DEVICE_FORMAT_H
#define MOE_RECORD_DEVICE_FORMAT_H

#include <stdbool.h>
#include <stddef.h>

#include "record/device.h"

enum device_kind {
    DEVICE_FIGURE,      /* struct moe_figure: a number, or a mapping with its spread and source */
    DEVICE_TEXT,        /* char[]; "" is left out */
    DEVICE_COUNT,       /* uint32_t, required */
    DEVICE_FLAG,        /* bool; false is left out */
    DEVICE_FINGERPRINT, /* uint64_t as 16 hexadecimal digits, required */
};

struct device_member {
    const char *key;
    enum device_kind kind;
    size_t at;   /* in its struct */
    size_t room; /* of a text */
    bool required;
};

struct device_table {
    const struct device_member *members;
    size_t n;
};

extern const struct device_table device_root, device_host, device_accelerator, device_storage,
    device_reads, device_model, device_variant, device_batch;

#endif
