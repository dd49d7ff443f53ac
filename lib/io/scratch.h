/*
 * A scratch file to measure reads on. It has no name: it is gone when it is closed or the process
 * ends, however that happens.
 */
#ifndef MOE_IO_SCRATCH_H
#define MOE_IO_SCRATCH_H

#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"

/* Makes a file of n_bytes in `dir`, written, synced and dropped from the page cache where the
 * system allows it. Its bytes are random (no file system can compress them) and always the same.
 * checksums: of each n_bytes / n_checksums bytes in turn (base/hash.h), or NULL; n_checksums
 * divides n_bytes. Returns a descriptor: close() it. MOE_ERR_IO, MOE_ERR_INTERRUPTED. */
int moe_scratch_open(const char *dir, uint64_t n_bytes, uint64_t *checksums, uint64_t n_checksums,
                     const struct moe_progress *progress, struct moe_err *err);

#endif
