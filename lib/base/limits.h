/* What the machine and the control groups of this process leave it: memory and processors. */
#ifndef MOE_BASE_LIMITS_H
#define MOE_BASE_LIMITS_H

#include <stdint.h>

/* Memory that this process can still take without pushing others out: what the system calls
 * available, and what the limits of its control groups (v1 or v2) leave. Page cache counts as free:
 * it is reclaimed when memory is needed. UINT64_MAX where neither is known. */
uint64_t moe_available_bytes(void);

/* Processors that the CPU quotas of its control groups allow, rounded up: 2 for a quota of 150 ms
 * in 100 ms. At least 1; UINT32_MAX without a quota. */
uint32_t moe_quota_cores(void);

/* The same by the files below another root than "", for tests: ROOT/proc, ROOT/sys. */
uint64_t moe_available_bytes_in(const char *root);
uint32_t moe_quota_cores_in(const char *root);

#endif
