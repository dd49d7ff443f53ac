/* Memory and processors left to this process by the machine and its control groups. */
#ifndef MOE_BASE_LIMITS_H
#define MOE_BASE_LIMITS_H

#include <stdint.h>

/* Memory that this process can still take without pushing others out: the smaller of the system's
 * MemAvailable and what its control groups (v1 or v2) have left. Page cache counts as free, as the
 * kernel reclaims it on demand. UINT64_MAX if neither is known. */
uint64_t moe_available_bytes(void);

/* Processors that the CPU quotas of its control groups allow, rounded up: 2 for a quota of 150 ms
 * in 100 ms. At least 1; UINT32_MAX without a quota. */
uint32_t moe_quota_cores(void);

/* The same read from the files below `root` (ROOT/proc, ROOT/sys), for tests. */
uint64_t moe_available_bytes_in(const char *root);
uint32_t moe_quota_cores_in(const char *root);

#endif
