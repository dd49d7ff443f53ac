/*
 * Energy used by the processor, from its own counters: Linux powercap, one directory for each
 * domain. Only whole packages are counted; subdomains (core, uncore, dram) are part of a package
 * and the platform contains them, so both would count twice.
 */
#ifndef MOE_BASE_ENERGY_H
#define MOE_BASE_ENERGY_H

#include "base/err.h"

#define MOE_ENERGY_ROOT "/sys/class/powercap"

struct moe_energy;

/* Opens the counters under `root`. Succeeds even if none can be read; moe_energy_unavailable then
 * says why. MOE_ERR_MEMORY. */
int moe_energy_open(struct moe_energy **out, const char *root, struct moe_err *err);
void moe_energy_close(struct moe_energy *e); /* NULL is fine */
/* NULL while the counters work; otherwise a few words that say why they do not. */
const char *moe_energy_unavailable(const struct moe_energy *e);
/* Joules of all packages since opening; 0 where unavailable (or e is NULL). Follows counters that
 * wrap if called at least once per wrap, which takes minutes. */
double moe_energy_joules(struct moe_energy *e);

#endif
