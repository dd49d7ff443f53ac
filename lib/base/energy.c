/* Energy counters of the processor's packages, read from Linux powercap. */
#define _DEFAULT_SOURCE /* pread, O_CLOEXEC */
#include "base/energy.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/text.h"

enum { MAX_PACKAGES = 64, NAME_BYTES = 64 };

struct package {
    int fd;         /* the counter's file */
    uint64_t range; /* microjoules; after this the counter wraps to 0 */
    uint64_t last;
};

struct moe_energy {
    const char *unavailable;
    uint32_t n;
    struct package packages[MAX_PACKAGES];
    double microjoules;
};

/* Reads the first line of an open file, without its newline; false where it cannot be read. */
static bool read_line(int fd, char line[NAME_BYTES])
{
    ssize_t n = pread(fd, line, NAME_BYTES - 1, 0);
    if (n <= 0)
        return false;
    line[n] = '\0';
    line[strcspn(line, "\n")] = '\0';
    return true;
}

static int open_in(const char *root, const char *domain, const char *file)
{
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/%s/%s", root, domain, file);
    if (n < 0 || (size_t)n >= sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    return open(path, O_RDONLY | O_CLOEXEC);
}

static bool line_of(const char *root, const char *domain, const char *file, char line[NAME_BYTES])
{
    int fd = open_in(root, domain, file);
    bool read = fd >= 0 && read_line(fd, line);
    if (fd >= 0)
        close(fd);
    return read;
}

static bool read_counter(const struct package *p, uint64_t *now)
{
    char line[NAME_BYTES];
    return read_line(p->fd, line) && moe_parse_u64(line, now);
}

/* Accepts "intel-rapl:0" (AMD uses the same name); rejects the subdomain "intel-rapl:0:1" and
 * "intel-rapl-mmio:0", which counts the same package again. */
static bool is_domain(const char *name)
{
    static const char prefix[] = "intel-rapl:";
    return strncmp(name, prefix, sizeof prefix - 1) == 0 &&
           name[sizeof prefix - 1 + strspn(name + sizeof prefix - 1, "0123456789")] == '\0';
}

static void add_package(struct moe_energy *e, const char *root, const char *domain)
{
    char line[NAME_BYTES];
    struct package p = {.fd = -1};
    if (!line_of(root, domain, "name", line) || strncmp(line, "package", 7) != 0)
        return;
    if (e->n == MAX_PACKAGES) {
        e->unavailable = "more packages than can be counted";
        return;
    }
    p.fd = open_in(root, domain, "energy_uj");
    if (p.fd < 0) {
        e->unavailable = errno == EACCES || errno == EPERM
                             ? "the processor's counters are not readable without root"
                             : "the processor's counters cannot be read";
        return;
    }
    e->packages[e->n++] = p;
    if (!line_of(root, domain, "max_energy_range_uj", line) ||
        !moe_parse_u64(line, &e->packages[e->n - 1].range) ||
        !read_counter(&e->packages[e->n - 1], &e->packages[e->n - 1].last))
        e->unavailable = "the processor's counters cannot be read";
}

int moe_energy_open(struct moe_energy **out, const char *root, struct moe_err *err)
{
    struct moe_energy *e = *out = moe_alloc(1, sizeof *e, err);
    if (!e)
        return MOE_ERR_MEMORY;
    DIR *dir = opendir(root);
    for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;)
        if (is_domain(entry->d_name))
            add_package(e, root, entry->d_name);
    if (dir)
        closedir(dir);
    if (!e->unavailable && e->n == 0)
        e->unavailable = "the system has no counters of the processor's energy";
    return MOE_OK;
}

void moe_energy_close(struct moe_energy *e)
{
    if (!e)
        return;
    for (uint32_t i = 0; i < e->n; i++)
        close(e->packages[i].fd);
    free(e);
}

const char *moe_energy_unavailable(const struct moe_energy *e)
{
    return e->unavailable;
}

double moe_energy_joules(struct moe_energy *e)
{
    if (!e || e->unavailable)
        return 0;
    for (uint32_t i = 0; i < e->n; i++) {
        struct package *p = &e->packages[i];
        uint64_t now;
        if (!read_counter(p, &now)) {
            e->unavailable = "the processor's counters cannot be read";
            return 0;
        }
        e->microjoules += (double)(now >= p->last ? now - p->last : now + p->range - p->last);
        p->last = now;
    }
    return e->microjoules / 1e6;
}
