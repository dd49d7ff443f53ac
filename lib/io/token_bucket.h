/*
 * A link of a given speed, rehearsed by the clock: says when a transfer of so many bytes is over.
 *
 * Transfers are charged whole, one after the other. Unlike tokens that pile up, this gives no
 * credit for idle time: the first transfer after a pause takes its full time, as on a real link. In
 * any window at most rate * (window + LATE) bytes and one transfer are over. Internal to io/.
 */
#ifndef MOE_IO_TOKEN_BUCKET_H
#define MOE_IO_TOKEN_BUCKET_H

struct token_bucket {
    double rate; /* bytes per second; 0: no limit */
    double due;  /* when the last transfer charged is over, in seconds of the caller's clock */
};

/* How far back a transfer may be dated, at most to the moment it was asked for, if the owner was
 * busy computing and let the link fall idle: a real link would not have waited for the owner. */
#define TOKEN_BUCKET_LATE 0.010
/* How long before the link is free the next read starts, so that the disk's latency does not add to
 * the link's time. */
#define TOKEN_BUCKET_AHEAD 0.002

/* Charges a transfer asked for at `since` and started `now`; returns when it is over (0 without a
 * limit). */
double token_bucket_charge(struct token_bucket *b, double since, double now, double bytes);

/* Seconds until the next transfer may be started; 0: now. */
double token_bucket_delay(const struct token_bucket *b, double now);

#endif
