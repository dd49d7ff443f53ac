/*
 * Components: what the time of a phase (prompts, or decoded tokens) is made of. One table for what
 * was expected (plans, simulations) and for what was measured (statistics of a run), so that the
 * two can be compared one by one. The components of a phase add up to its time.
 */
#ifndef MOE_RECORD_COMPONENTS_H
#define MOE_RECORD_COMPONENTS_H

enum moe_component {
    MOE_COMPONENT_COMPUTE = 0, /* the rest: computing */
    MOE_COMPONENT_HANDLING,    /* the computing threads' own work for loads: asking for them, taking
                                  them in, checking, copying or decoding their bytes */
    MOE_COMPONENT_STALL,       /* waiting for loads, asleep */
    MOE_COMPONENT_HOST,        /* waiting for experts that the host computes */
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

#endif
