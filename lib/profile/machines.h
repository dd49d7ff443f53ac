/*
 * Machines that run a model together, moe-device(5): how fast each is, what memory it gives, and
 * the network between the first of them, which runs the model, and the others. Plain data; the file
 * is YAML. moe-profile --device makes one where several ranks measure (tune/machines_bench.h).
 */
#ifndef MOE_PROFILE_MACHINES_H
#define MOE_PROFILE_MACHINES_H

#include "profile/device.h"

enum {
    MOE_MACHINES_VERSION = 1,
    MOE_MAX_MACHINES = 64,
    MOE_MACHINE_MESSAGES = 16,
};

/* A message there or back, by its size. */
struct moe_machine_message {
    uint64_t bytes;
    double seconds; /* from the call that sends it to the one that has it; half of a round trip */
};

/* The way from the first machine to another. All 0: not known. */
struct moe_machine_link {
    double latency_seconds, bytes_per_second;
    /* Of the first machine's processor: for each further message, for each byte. */
    double handling_seconds, handling_seconds_per_byte;
    uint32_t n_messages;
    struct moe_machine_message messages[MOE_MACHINE_MESSAGES]; /* rising bytes */
};

struct moe_machine {
    char name[64];
    char memory[32]; /* as --memory takes it */
    uint64_t memory_bytes;
    uint32_t count; /* such machines */
    /* How fast it is: a moe-device(5), beside this file, or two figures. */
    char profile[MOE_DEVICE_TEXT];
    double memory_bytes_per_second, storage_bytes_per_second;
    struct moe_machine_link link; /* of the first machine: none; else the network's where not set */
};

struct moe_machines {
    char source[MOE_DEVICE_TEXT];
    struct moe_machine_link network; /* where machines have no link of their own */
    uint32_t n;
    struct moe_machine machines[MOE_MAX_MACHINES];
};

extern const struct moe_record_format moe_machines_format;
/* Reads the file, each machine `count` times and with its link. *out is released with free().
 * MOE_ERR_FORMAT, MOE_ERR_VERSION, MOE_ERR_IO. */
int moe_machines_read(struct moe_machines **out, const char *path, struct moe_err *err);
int moe_machines_write(const struct moe_machines *m, struct moe_buf *out, struct moe_err *err);

/* Sets latency and rate of a link from its messages (at least one): the least time of a small one,
 * and what the largest takes beside that. False, and no rate: that is less than the former, so
 * larger messages must tell. */
bool moe_machine_link_fit(struct moe_machine_link *link);

#endif
