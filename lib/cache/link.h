/*
 * Link: in which order, and on a modelled link when, loads move over a channel of bytes.
 *
 * Items are cut into pieces; the next piece to start belongs to the most urgent item: demands
 * before prefetches, demands in the order in which they became demands, prefetches by falling score
 * (equal ones in order of arrival). An urgent item thus waits for pieces in flight, never for whole
 * items.
 *
 * Two users must decide exactly alike: the loader (io/) orders its reads by the first half and runs
 * --lockstep on the second; the simulator (plan/) drives the second half without a file. Pure: no
 * I/O, no clock but its own, no allocation. One thread.
 */
#ifndef MOE_CACHE_LINK_H
#define MOE_CACHE_LINK_H

#include <stdbool.h>
#include <stdint.h>

enum moe_load_priority {
    MOE_LOAD_DEMAND = 0, /* a computation waits for it, or will soon */
    MOE_LOAD_PREFETCH,   /* ordered among each other by score */
};

#define MOE_LINK_NONE UINT32_MAX

/* Defaults of loader and simulator (measured: io/loader_open.c): bytes of a piece; how many pieces
 * may be in flight, counting the new one, when a demand's or a prefetch's piece starts. */
enum {
    MOE_LINK_PIECE_BYTES = 512 * 1024,
    MOE_LINK_DEMANDS_IN_FLIGHT = 16,
    MOE_LINK_PREFETCHES_IN_FLIGHT = 4,
    MOE_LINK_LEAST_PIECE_BYTES = 64 * 1024, /* of a prefetch on a slow link */
};

/* Seconds of processor, at most, that a thread is owed for having slept: a slice of Linux. */
#define MOE_LINK_MOST_CREDIT 3e-3

/* An item's bookkeeping; only the link writes it. */
struct moe_link_item {
    uint64_t bytes, started; /* bytes to move; bytes in pieces started so far */
    uint64_t order;          /* rises with each submission and each promotion to a demand */
    double arrived_at;       /* modelled: when its last piece ended */
    enum moe_load_priority priority;
    float score;
    uint32_t before, after; /* neighbours in the link's list; MOE_LINK_NONE */
    enum {
        MOE_LINK_IDLE = 0,
        MOE_LINK_QUEUED,
        MOE_LINK_STARTED, /* all pieces started */
        MOE_LINK_ENDING,  /* likewise, modelled */
        MOE_LINK_ARRIVED
    } state;
};

struct moe_link_list {
    uint32_t first, last;
};

/* What loads cost on a modelled link beside the time of their bytes. All 0: nothing. */
struct moe_link_costs {
    double piece;                  /* link time for each piece, beside its bytes */
    double latency;                /* from the end of an item's last piece until it has arrived */
    double handling;               /* computing thread's time for each item that is added */
    double handling_byte;          /* ... and for each byte of items that are taken */
    double slowdown;               /* factor on computing time while pieces move; 0: 1 */
    double wake;                   /* added to computing after the thread slept */
    double late;                   /* by how much a thread that sleeps there wakes too late */
    double interruptions;          /* how many times as long a thread that never sleeps takes for
                                      what it computes, as others want its processor; 0: 1 */
    uint32_t demands_in_flight;    /* pieces that share the link's time and end together; */
    uint32_t prefetches_in_flight; /* prefetches join while there are fewer. 0: 1 */
};

struct moe_link {
    struct moe_link_item *items; /* n_items; borrowed */
    uint32_t n_items;
    uint32_t piece_bytes;
    uint32_t prefetch_bytes, prefetch_pieces; /* of prefetches: in a piece; in flight at most */
    uint64_t next_order;
    struct moe_link_list queue; /* items with pieces not yet started, most urgent first */

    /* The modelled half. */
    double rate; /* bytes per second */
    struct moe_link_costs costs;
    double owed;                  /* handling not yet charged to the clock */
    double worked_seconds;        /* handling so far */
    bool slept;                   /* since the last computation */
    double credit;                /* seconds of processor that others took while it slept */
    double clock;                 /* seconds */
    double free_at;               /* when the current pieces end, or the last ones ended */
    double busy_seconds;          /* time pieces took so far, current ones included */
    bool busy;                    /* pieces are moving */
    struct moe_link_list ending;  /* items whose last piece is moving */
    struct moe_link_list arrived; /* in order of arrival, now or soon by the clock */
};

/* items: room for n_items, which the caller keeps while the link is used and numbers as it likes.
 * rate: above 0 for the modelled half; ignored by the first half. */
void moe_link_init(struct moe_link *l, struct moe_link_item *items, uint32_t n_items,
                   uint32_t piece_bytes, double rate);

/* Limits the prefetched bytes that may be in flight when a demand comes: to fewer pieces, the last
 * of them smaller. Until it is called, only costs and the caller limit them. */
void moe_link_limit_prefetches(struct moe_link *l, double bytes);

/* ---- Order ---- */

/* Queues an idle item of `bytes` > 0. */
void moe_link_add(struct moe_link *l, uint32_t item, uint64_t bytes,
                  enum moe_load_priority priority, float score);
/* Changes its urgency; no effect on started pieces. A prefetch that becomes a demand is queued
 * after the existing demands. */
void moe_link_promote(struct moe_link *l, uint32_t item, enum moe_load_priority priority,
                      float score);
/* Makes the item idle again, wherever it was. On a modelled link its moving piece still takes its
 * time, as it would on a real one. */
void moe_link_drop(struct moe_link *l, uint32_t item);

/* The most urgent item with a piece to start, and the item after `item`; MOE_LINK_NONE. */
uint32_t moe_link_first(const struct moe_link *l);
uint32_t moe_link_after(const struct moe_link *l, uint32_t item);

/* The place in a queued item where its next piece begins. */
uint64_t moe_link_at(const struct moe_link *l, uint32_t item);
/* Starts that piece: returns its bytes (those of a piece, the rest, or `most`). With its last piece
 * the item leaves the queue. */
uint32_t moe_link_start(struct moe_link *l, uint32_t item, uint64_t most);

/* ---- Modelled time ----
 * Pieces take costs.piece + bytes / rate seconds each. One moves at a time or, where
 * costs.*_in_flight allow more, as many as the queue has, which then end together: a disk asked for
 * much at once works at all of it. Pieces start only when the clock moves on, so items queued at
 * one instant compete by urgency, whatever the order of the calls.
 *
 * Costs are all 0 after moe_link_init; set them before the first item. Handling is paid when the
 * clock next moves on, before anything else, and counts in worked_seconds. */

/* Advances the clock by a computation of `seconds`, plus what loads add to it, while the link
 * works. Returns the clock. */
double moe_link_advance(struct moe_link *l, double seconds);
/* Advances the clock to `until`, where it is not there yet: the thread pays the handling it owes
 * and sleeps, for something other than loads. What it computes next is as after moe_link_wait.
 * Returns for how many seconds it slept. */
double moe_link_sleep(struct moe_link *l, double until);
/* Moves the clock to the next arrival, unless an arrived item waits to be taken or there is nothing
 * to move. Returns the clock; its advance minus that of worked_seconds was sleep. */
double moe_link_wait(struct moe_link *l);
/* Seconds until the current pieces end, or the next ones if none move: nothing arrives before. 0:
 * an arrived item waits to be taken; INFINITY: nothing to move. */
double moe_link_next_piece(const struct moe_link *l);
/* Takes the item that arrived first and makes it idle; MOE_LINK_NONE: none. */
uint32_t moe_link_take_arrived(struct moe_link *l);

#endif
