/*
 * Energy that the processor took, by its own counters: Linux' powercap, one directory for each
 * domain. Whole packages are counted; their subdomains (core, uncore, dram) and the platform are
 * part of them or hold them, and would count twice.
 */
#ifndef MOE_BASE_ENERGY_H
#define MOE_BASE_ENERGY_H

#include "base/err.h"

#define MOE_ENERGY_ROOT "/sys/class/powercap"

struct moe_energy;

/* Opens the counters under `root`. Without any that can be read it is open as well, and says why.
 * MOE_ERR_MEMORY. */
int moe_energy_open(struct moe_energy **out, const char *root, struct moe_err *err);
void moe_energy_close(struct moe_energy *e); /* NULL is fine */
/* NULL: the counters are read; otherwise why they are not, in a few words. */
const char *moe_energy_unavailable(const struct moe_energy *e);
/* Joules of all packages since opening; 0 where unavailable (or e is NULL). Counters that wrap are
 * followed if this is called at least once per round, minutes at the least. */
double moe_energy_joules(struct moe_energy *e);

#endif
