/*
 * Link: in which order, and on a modelled link when, loads move over a channel of bytes.
 *
 * Items are cut into pieces; whenever a piece can start it is one of the most urgent item: demands
 * before prefetches, demands in the order in which they became demands, prefetches by falling score
 * (equal ones in the order they came). An urgent item thus waits for pieces that are under way,
 * never for whole items.
 *
 * Two users must decide exactly alike: the loader (io/) orders its reads with the first half and
 * runs --lockstep on the second; the simulator (plan/) drives the second half without a file. Pure:
 * no I/O, no clock but its own, no allocation. One thread.
 */
#ifndef MOE_CACHE_LINK_H
#define MOE_CACHE_LINK_H

#include <stdbool.h>
#include <stdint.h>

enum moe_load_priority {
    MOE_LOAD_DEMAND = 0, /* a computation waits for it, or will once it has done the rest */
    MOE_LOAD_PREFETCH,   /* ordered among each other by score */
};

#define MOE_LINK_NONE UINT32_MAX

/* Defaults of loader and simulator (measured: io/loader_open.c): bytes of a piece; how many may be
 * in flight when a piece of a demand, or of a prefetch, has started. */
enum {
    MOE_LINK_PIECE_BYTES = 512 * 1024,
    MOE_LINK_DEMANDS_IN_FLIGHT = 16,
    MOE_LINK_PREFETCHES_IN_FLIGHT = 4,
};

/* Bookkeeping of one item; the fields are the link's. */
struct moe_link_item {
    uint64_t bytes, started; /* to move; in pieces started so far */
    uint64_t order;          /* rising with each submission and each promotion to a demand */
    double arrived_at;       /* modelled: when its last piece was over */
    enum moe_load_priority priority;
    float score;
    uint32_t before, after; /* neighbours in one of the link's lists; MOE_LINK_NONE */
    enum {
        MOE_LINK_IDLE = 0,
        MOE_LINK_QUEUED,
        MOE_LINK_STARTED, /* with its last piece */
        MOE_LINK_ENDING,  /* the same, modelled */
        MOE_LINK_ARRIVED
    } state;
};

struct moe_link_list {
    uint32_t first, last;
};

/* What loads cost on a modelled link beside their bytes' time on it. All 0: nothing. */
struct moe_link_costs {
    double piece;         /* of the link's time: each piece, beside its bytes */
    double latency;       /* from the end of an item's last piece until it has arrived */
    double handling;      /* of the computing thread's time: each item that is added */
    double handling_byte; /* ... and each byte of items that are taken */
    double slowdown;      /* how many times as long computing takes while pieces move; 0: 1 */
    double wake;          /* what computing takes longer after the thread slept in moe_link_wait */
    uint32_t demands_in_flight;    /* pieces that share the link's time and end together: */
    uint32_t prefetches_in_flight; /* prefetches join while they are fewer. 0: 1 */
};

struct moe_link {
    struct moe_link_item *items; /* n_items; borrowed */
    uint32_t n_items;
    uint32_t piece_bytes;
    uint64_t next_order;
    struct moe_link_list queue; /* items with pieces not yet started, most urgent first */

    /* The modelled half. */
    double rate; /* bytes per second */
    struct moe_link_costs costs;
    double owed;                  /* handling that the clock has not passed yet */
    double worked_seconds;        /* handling so far */
    bool slept;                   /* since the last computation */
    double clock;                 /* seconds */
    double free_at;               /* when the pieces under way are over, or were */
    double busy_seconds;          /* time pieces took so far, those under way included */
    bool busy;                    /* pieces are under way */
    struct moe_link_list ending;  /* items whose last piece is */
    struct moe_link_list arrived; /* in order of arrival, by the clock or soon */
};

/* items: room for n_items, which the caller keeps while the link is used and numbers as it likes.
 * rate: above 0 for the modelled half; ignored by the first half. */
void moe_link_init(struct moe_link *l, struct moe_link_item *items, uint32_t n_items,
                   uint32_t piece_bytes, double rate);

/* ---- Order ---- */

/* Queues an idle item of `bytes` > 0. */
void moe_link_add(struct moe_link *l, uint32_t item, uint64_t bytes,
                  enum moe_load_priority priority, float score);
/* Changes its urgency; no effect on pieces started. A prefetch that becomes a demand lines up
 * after the demands there are. */
void moe_link_promote(struct moe_link *l, uint32_t item, enum moe_load_priority priority,
                      float score);
/* The item is idle again, wherever it was. On a modelled link its piece under way still takes its
 * time, as it would on a real one. */
void moe_link_drop(struct moe_link *l, uint32_t item);

/* The most urgent item with a piece to start, and the one after `item`; MOE_LINK_NONE. */
uint32_t moe_link_first(const struct moe_link *l);
uint32_t moe_link_after(const struct moe_link *l, uint32_t item);

/* Takes the next piece of a queued item: returns its bytes (piece_bytes, or what is left), *at its
 * place in the item. With the last piece the item leaves the queue. */
uint32_t moe_link_start(struct moe_link *l, uint32_t item, uint64_t *at);

/* ---- Modelled time ----
 * Pieces take costs.piece + bytes / rate seconds each. One moves at a time or, where
 * costs.*_in_flight say so, as many as the queue has, which then are over together: a disk that is
 * asked for much at once works at all of it. Pieces start only when the clock moves on, so items
 * queued at one instant compete by urgency alone, whatever the order of the calls.
 *
 * Costs are all 0 after moe_link_init; set them before the first item. Handling is paid when the
 * clock next moves on, before anything else, and counts in worked_seconds.
 */

/* Computation took `seconds`, without what loads add to it: the link worked meanwhile. Returns the
 * clock. */
double moe_link_advance(struct moe_link *l, double seconds);
/* Moves the clock to the next arrival, unless an arrived item is waiting to be taken or nothing is
 * under way. Returns the clock; what it moved on less what worked_seconds grew by was sleep. */
double moe_link_wait(struct moe_link *l);
/* Seconds until the pieces under way are over, or the next ones if none are: nothing arrives
 * before. 0: an arrived item is waiting to be taken; INFINITY: nothing is under way. */
double moe_link_next_piece(const struct moe_link *l);
/* Takes an item that has arrived, the earliest first, and makes it idle; MOE_LINK_NONE: none. */
uint32_t moe_link_take_arrived(struct moe_link *l);

#endif
