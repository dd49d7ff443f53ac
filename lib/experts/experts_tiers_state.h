/*
 * What experts_tiers.c (the channel) and experts_transfers.c (transfers through their stages)
 * share. Internal to them.
 */
#ifndef MOE_EXPERTS_EXPERTS_TIERS_STATE_H
#define MOE_EXPERTS_EXPERTS_TIERS_STATE_H

#include "experts/experts_tiers.h"
#include "experts/host_tier.h"

enum { TIERS_AT_ONCE = 32 /* completions taken at a time */ };

/* A segment on its way to a slot. */
struct transfer {
    enum {
        TRANSFER_NONE = 0,
        TRANSFER_WAITING, /* for a place, or for another transfer that is reading the same */
        TRANSFER_READING,
        TRANSFER_COPYING,
        TRANSFER_FAILED, /* to be reported */
    } state;
    uint32_t key, place;
    uint32_t handle; /* of the loader that has it */
    enum moe_load_priority priority;
    float score;
    int status;    /* failed: why */
    uint32_t next; /* failed: the one after */
};

struct tiers {
    struct cached *c;
    struct moe_host_tier host;
    struct moe_loader *disk;            /* NULL: the host tier holds everything */
    struct moe_loader_stats seen;       /* of the disk's, as last counted */
    struct transfer *transfers;         /* [slots][MOE_PACK_MAX_SEGMENTS]; a number here is a tag */
    struct moe_link waiting;            /* orders the waiting ones */
    struct moe_link_item *items;        /* for it */
    uint32_t n_reading, n_copying;      /* with the loaders */
    uint32_t first_failed, last_failed; /* in the order in which they are reported */
    bool stirred;                       /* something ended: a waiting transfer may start */
    struct slot_uses uses;
};

/* Starts waiting transfers as far as possible, the most urgent first. */
void transfers_go_on(struct tiers *t);
/* A transfer no longer needs its place. */
void transfers_release_place(struct tiers *t, const struct transfer *x);

/* What has ended, at most max (and TIERS_AT_ONCE), without waiting or after a wait. 0 after a wait:
 * nothing is under way. */
uint32_t transfers_poll(struct tiers *t, struct moe_arrival *arrivals, uint32_t max);
uint32_t transfers_wait(struct tiers *t, struct moe_arrival *arrivals, uint32_t max);

#endif
