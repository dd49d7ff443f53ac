/*
 * Device profiles, moe-device(5): how fast a machine computes and reads.
 */
#ifndef MOE_PROFILE_DEVICE_H
#define MOE_PROFILE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/text.h"
#include "fmt/record.h"

/*
 * Components: what the time of a phase (prompts, or decoded tokens) is made of. One table for what
 * was expected (plans, simulations) and for what was measured (statistics of a run), so that the
 * two can be compared one by one. The components of a phase add up to its time.
 */

enum moe_component {
    MOE_COMPONENT_COMPUTE = 0, /* the rest: computing */
    MOE_COMPONENT_HANDLING,    /* the computing threads' own work for loads: asking for them, taking
                                  them in, checking, copying or decoding their bytes */
    MOE_COMPONENT_STALL,       /* waiting for loads, asleep */
    MOE_COMPONENT_HOST,        /* waiting for experts that the host, or another rank, computes */
    MOE_N_COMPONENTS
};

struct moe_component_name {
    const char *name;     /* for people */
    const char *run_key;  /* seconds of a phase: moe-run --stats-json, moe-plan --simulate --json */
    const char *plan_key; /* seconds of a token, in the file of a plan */
};
const struct moe_component_name *moe_component_name(enum moe_component component);

/* The seconds of a phase whose parts but for computing are known: sets that, returns all. */
struct moe_components {
    double seconds[MOE_N_COMPONENTS];
};
struct moe_components moe_components_of(double total, double handling, double stall, double host);

/*
 * Device profile: the speed of a machine's computation, memory and loads, as planner and simulator
 * need it. Plain data; the file is YAML, moe-device(5). tune/device_bench.h measures one; those
 * under profiles/ are taken from papers and specifications.
 *
 * Everything may be unknown: a figure then has the value 0, and what is derived from it is NAN.
 */

enum {
    MOE_DEVICE_VERSION = 1,
    MOE_DEVICE_TEXT = 320, /* bytes of a text, NUL included */
    MOE_DEVICE_MAX_READS = 16,
    MOE_DEVICE_MAX_BATCHES = 8,
    MOE_DEVICE_MAX_VARIANTS = 8,
    MOE_DEVICE_MAX_TIMED = 8,
    MOE_DEVICE_MAX_BURSTS = 8,
    MOE_DEVICE_MAX_HANDLING = 8,
};

/* A number above zero that was measured or given; 0: not known. */
struct moe_figure {
    double value;                 /* of several runs the median */
    double min, max;              /* of the runs; 0 where there were none */
    uint32_t n_runs;              /* 0: given, not measured */
    char source[MOE_DEVICE_TEXT]; /* "": as its section says */
};

struct moe_device_host {
    char source[MOE_DEVICE_TEXT], name[MOE_DEVICE_TEXT];
    char cpu_level[16];               /* as --cpu names it */
    struct moe_figure cores, threads; /* threads: of the measurements */
    struct moe_figure memory_bytes, memory_bytes_per_second;
};

struct moe_device_accelerator {
    char source[MOE_DEVICE_TEXT], name[MOE_DEVICE_TEXT]; /* name "": there is none */
    bool shares_memory;                                  /* with the host */
    struct moe_figure memory_bytes, memory_bytes_per_second;
    struct moe_figure link_bytes_per_second; /* host to device */
    struct moe_figure link_piece_seconds;    /* ... beside that, each piece of a load */
    struct moe_figure launch_seconds;        /* starting one kernel */
    struct moe_figure trip_seconds; /* a router's choice to the host, and its answer back */
};

/* Loads of read_bytes each, in_flight of them at a time. */
struct moe_device_reads {
    uint32_t in_flight;
    struct moe_figure bytes_per_second; /* of all together */
    struct moe_figure seconds;          /* of one, from its request to its last byte */
};

/* A burst: `loads` loads of `bytes` each, asked for at once of an idle disk. */
struct moe_device_burst {
    uint32_t loads;
    uint64_t bytes;
    struct moe_figure first_seconds; /* until one of them had come */
    struct moe_figure seconds;       /* until all had */
};

/* The computing thread's own time for a load of `bytes`: asking for it, taking it in, checking it.
 */
struct moe_device_handling {
    uint64_t bytes;
    struct moe_figure seconds;
};

struct moe_device_storage {
    char source[MOE_DEVICE_TEXT], name[MOE_DEVICE_TEXT];
    bool direct;                        /* past the page cache */
    struct moe_figure bytes_per_second; /* where nothing else is known */
    struct moe_figure latency_seconds;  /* of a read of 4096 bytes by itself */
    struct moe_figure read_bytes;
    uint32_t n_reads;
    struct moe_device_reads reads[MOE_DEVICE_MAX_READS]; /* rising in_flight */
    uint32_t n_bursts;
    struct moe_device_burst bursts[MOE_DEVICE_MAX_BURSTS];
    uint32_t n_handling;
    struct moe_device_handling handling[MOE_DEVICE_MAX_HANDLING]; /* rising bytes */
};

/* Seconds of the pieces of one layer for a batch of rows (tokens of one sequence). */
struct moe_device_batch {
    uint32_t rows;
    struct moe_figure attention; /* norms, projections, attention itself, output */
    struct moe_figure router;
    struct moe_figure shared;      /* the shared expert and its gate */
    struct moe_figure combine;     /* grouping rows by expert, adding the experts' outputs */
    struct moe_figure dense;       /* feed-forward of a layer without experts */
    struct moe_figure expert_rows; /* rows that an expert in use computed, on average */
    uint32_t n_experts;            /* like n_variants, or 0 */
    struct moe_figure experts[MOE_DEVICE_MAX_VARIANTS]; /* one expert, for expert_rows rows */
};

struct moe_device_variant {
    char name[64];           /* as the pack names it */
    struct moe_figure bytes; /* of an expert in the pack, on average: what a load reads */
};

struct moe_device_model {
    char source[MOE_DEVICE_TEXT];
    uint64_t source_fingerprint;
    uint32_t layers, moe_layers, experts_per_token, positions; /* positions: attended to, at most */
    uint32_t far_positions;                                    /* more of them; 0: not measured */
    struct moe_figure far_attention;    /* a batch's attention, of one row that attends to these */
    struct moe_figure head_seconds;     /* final norm and head, one row */
    struct moe_figure interruptions;    /* how many times as long a row takes through MoE layers in
                                           the mean as by each layer's median, where nothing waits:
                                           what other programs and rare long pauses add, at least
                                           1; 0: not measured */
    struct moe_figure loading_slowdown; /* how many times as long a row's layer takes while loads go
                                           on; 0: not measured */
    struct moe_figure loading_steal;    /* share of the processors' time that the host of a virtual
                                           machine keeps then; 0: nothing, or not measured */
    struct moe_figure wake;             /* seconds by which a layer takes longer after a sleep */
    struct moe_figure late; /* seconds by which a thread that sleeps for a load's time wakes too
                               late, in the mean */
    uint32_t n_variants;
    struct moe_device_variant variants[MOE_DEVICE_MAX_VARIANTS];
    uint32_t n_batches;
    struct moe_device_batch batches[MOE_DEVICE_MAX_BATCHES]; /* rising rows */
};

/* What others say a model takes here, where moe-profile measured nothing: times of a paper's own
 * engine, launches and copies included, which do not follow from bandwidths. */
struct moe_device_timed {
    char model[64]; /* for people */
    uint32_t moe_layers, experts, experts_per_token;
    struct moe_figure layer;      /* one layer for one token, its experts in memory */
    struct moe_figure load;       /* one expert ... */
    struct moe_figure load_bytes; /* ... and its bytes */
};

struct moe_device {
    char name[MOE_DEVICE_TEXT], source[MOE_DEVICE_TEXT];
    struct moe_device_host host;
    struct moe_device_accelerator accelerator;
    struct moe_device_storage storage;
    bool has_model;
    struct moe_device_model model;
    uint32_t n_timed;
    struct moe_device_timed timed[MOE_DEVICE_MAX_TIMED];
};

/* ---- What follows from a profile ----
 * All seconds. Between the batches that were measured times are interpolated, beyond the largest
 * they grow as between the last two. NAN where the profile does not know.
 */

enum moe_device_part {
    MOE_DEVICE_ROUTE, /* a layer until its router has chosen: attention and router */
    MOE_DEVICE_ATTENTION,
    MOE_DEVICE_ROUTER,
    MOE_DEVICE_SHARED,
    MOE_DEVICE_COMBINE,
    MOE_DEVICE_LAYER_DENSE, /* a whole layer without experts */
    MOE_DEVICE_LAYER_MOE,   /* ... with experts, but for the routed ones */
};
/* Its seconds by rows of the pass; no points where a figure that it needs is not known. */
struct moe_line moe_device_part_line(const struct moe_device *d, enum moe_device_part part);
/* Seconds of one routed expert by rows that want it. Batches that gave an expert no more rows than
 * the one before are left out. */
struct moe_line moe_device_expert_line(const struct moe_device *d, uint32_t variant);

/* A whole layer but for its routed experts. */
double moe_device_layer_seconds(const struct moe_device *d, bool is_moe, double rows);
/* One routed expert at a variant of the profile, for `rows` rows that want it. */
double moe_device_expert_seconds(const struct moe_device *d, uint32_t variant, double rows);
/* The head for one row. */
double moe_device_head_seconds(const struct moe_device *d);
/* Finds what is said of a model of this shape; NULL: nothing. */
const struct moe_device_timed *moe_device_find_timed(const struct moe_device *d,
                                                     uint32_t moe_layers, uint32_t experts,
                                                     uint32_t experts_per_token);
/* The variant of that name, or -1. */
int moe_device_variant(const struct moe_device *d, const char *name);

/* Where weights are loaded from. */
enum moe_device_tier {
    MOE_TIER_STORAGE, /* into the host's memory */
    MOE_TIER_HOST,    /* from the host's memory into the accelerator's */
};

/* Whether the rate of loads was measured, not stated. */
bool moe_device_load_measured(const struct moe_device *d, enum moe_device_tier from);
/* How much longer than the fastest run of a measurement the median took, as a share: the most among
 * memory, reads and attention; 0: nothing was measured twice. */
double moe_device_spread(const struct moe_device *d);

/* Bytes per second of loads that follow each other without a pause. */
double moe_device_load_rate(const struct moe_device *d, enum moe_device_tier from);
/* What a load takes of the computing thread: *seconds, and *per_byte for each of its bytes; 0 where
 * the profile does not say. */
void moe_device_handling(const struct moe_device *d, double *seconds, double *per_byte);

/* What bursts say of loads that are asked for at once, in pieces of piece_bytes: n of them arrive
 * after latency + n (pieces x piece + bytes / bytes_per_second) seconds. */
struct moe_device_burst_costs {
    double bytes_per_second, piece, latency;
    double together; /* pieces that arrive at a time, 1 or more: one disk works at all that it is
                        asked for, another at one after the other */
};

/* False: the profile has no bursts, or one load took as long as many. */
bool moe_device_burst_costs(const struct moe_device *d, uint32_t piece_bytes,
                            struct moe_device_burst_costs *out);
/* Returns what one load of `bytes` takes with no other in flight: latency and transfer. */
double moe_device_load_seconds(const struct moe_device *d, enum moe_device_tier from,
                               uint64_t bytes);

/* ---- The file ---- */

/* Appends the YAML text, or one JSON object of the same members. MOE_ERR_MEMORY. */
int moe_device_write(const struct moe_device *d, bool json, struct moe_buf *out,
                     struct moe_err *err);
extern const struct moe_record_format moe_device_format;
/* Reads a profile; *out is released with free(). MOE_ERR_FORMAT, MOE_ERR_VERSION, MOE_ERR_IO. */
int moe_device_read(struct moe_device **out, const char *path, struct moe_err *err);

#endif
