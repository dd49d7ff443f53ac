/* Machines that run a model together, moe-device(5): reading and writing. */
#include "profile/machines.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_FILE_BYTES = 1 << 20 };
#define MAX_SECONDS 1e3
#define LEAST_RATE 1.0
#define MAX_RATE 1e15

/* ---- The file ---- */

static const struct moe_member message_members[] = {
    MOE_RISING_FIELD(struct moe_machine_message, "bytes", bytes, 1, INT32_MAX),
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_machine_message, "seconds", seconds, MOE_ABOVE_0,
                 MAX_SECONDS),
};
static const struct moe_record message_record = {MOE_RECORD(message_members)};

#define LINK(key, field, least, most)                                                              \
    MOE_FIELD_IN(MOE_IF_SET, struct moe_machine_link, key, field, least, most)

static const struct moe_member link_members[] = {
    LINK("latency_seconds", latency_seconds, 0, MAX_SECONDS),
    LINK("bytes_per_second", bytes_per_second, LEAST_RATE, MAX_RATE),
    LINK("handling_seconds", handling_seconds, 0, MAX_SECONDS),
    LINK("handling_seconds_per_byte", handling_seconds_per_byte, 0, 1 / LEAST_RATE),
    MOE_LINE_LIST(struct moe_machine_link, "messages", messages, n_messages, message_record),
};

static int check_link(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    const struct moe_machine_link *l = record;
    return l->bytes_per_second > 0
               ? MOE_OK
               : moe_yaml_fail(r->doc, map, r->err, "'bytes_per_second' is missing");
}

static const struct moe_record link_record = {MOE_RECORD(link_members), check_link};

#define MACHINE(presence, key, field, least, most)                                                 \
    MOE_FIELD_IN(presence, struct moe_machine, key, field, least, most)

static const struct moe_member machine_members[] = {
    MOE_FIELD(MOE_ALWAYS, struct moe_machine, "name", name),
    MOE_FIELD(MOE_ALWAYS, struct moe_machine, "memory", memory),
    MACHINE(MOE_IF_SET, "count", count, 1, MOE_MAX_MACHINES),
    MOE_FIELD(MOE_IF_SET, struct moe_machine, "profile", profile),
    MACHINE(MOE_IF_SET, "memory_bytes_per_second", memory_bytes_per_second, LEAST_RATE, MAX_RATE),
    MACHINE(MOE_IF_SET, "storage_bytes_per_second", storage_bytes_per_second, LEAST_RATE, MAX_RATE),
    MOE_SECTION(MOE_IF_SET, "link", offsetof(struct moe_machine, link), link_record),
};

static int check_machine(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    struct moe_machine *m = record;
    if (!moe_parse_bytes(m->memory, &m->memory_bytes))
        return moe_yaml_fail(r->doc, map, r->err, "'memory' is not a size like 512M or 24GiB");
    if (m->profile[0] ? m->memory_bytes_per_second > 0 || m->storage_bytes_per_second > 0
                      : !(m->memory_bytes_per_second > 0 && m->storage_bytes_per_second > 0))
        return moe_yaml_fail(r->doc, map, r->err,
                             "give either 'profile' or 'memory_bytes_per_second' and "
                             "'storage_bytes_per_second'");
    return MOE_OK;
}

static const struct moe_record machine_record = {MOE_RECORD(machine_members), check_machine};

static const struct moe_member machines_members[] = {
    MOE_FIELD(MOE_IF_SET, struct moe_machines, "source", source),
    MOE_SECTION(MOE_IF_SET, "network", offsetof(struct moe_machines, network), link_record),
    MOE_LIST(struct moe_machines, "machines", machines, n, machine_record),
};

static int check_machines(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    const struct moe_machines *m = record;
    uint32_t n = 0;
    if (m->n == 0)
        return moe_yaml_fail(r->doc, map, r->err, "'machines' is missing");
    for (uint32_t i = 0; i < m->n; i++) {
        for (uint32_t k = 0; k < i; k++)
            if (strcmp(m->machines[i].name, m->machines[k].name) == 0)
                return moe_yaml_fail(r->doc, map, r->err,
                                     "two machines are '%s': several that are alike have 'count'",
                                     m->machines[i].name);
        n += m->machines[i].count ? m->machines[i].count : 1;
        if (n > 1 && !(m->machines[i].link.bytes_per_second > 0) &&
            !(m->network.bytes_per_second > 0))
            return moe_yaml_fail(r->doc, map, r->err,
                                 "machine '%s' has no 'link', and there is no 'network'",
                                 m->machines[i].name);
    }
    return n <= MOE_MAX_MACHINES
               ? MOE_OK
               : moe_yaml_fail(r->doc, map, r->err, "more than %d machines", MOE_MAX_MACHINES);
}

static const struct moe_record machines_record = {MOE_RECORD(machines_members), check_machines};

const struct moe_record_format moe_machines_format = {.name = "moe-machines",
                                                      .title = "Machines",
                                                      .version = MOE_MACHINES_VERSION,
                                                      .max_bytes = MAX_FILE_BYTES,
                                                      .page = "moe-device",
                                                      .record = &machines_record,
                                                      .bytes = sizeof(struct moe_machines)};

int moe_machines_write(const struct moe_machines *m, struct moe_buf *out, struct moe_err *err)
{
    return moe_record_write(&moe_machines_format, m, false, out, err);
}

int moe_machines_read(struct moe_machines **out, const char *path, struct moe_err *err)
{
    struct moe_machines *read = NULL;
    *out = NULL;
    MOE_TRY(moe_record_read(&moe_machines_format, &read, path, err));
    struct moe_machines *all = calloc(1, sizeof *all);
    if (!all) {
        free(read);
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    }
    *all = *read;
    all->n = 0;
    for (uint32_t i = 0; i < read->n; i++) {
        struct moe_machine m = read->machines[i];
        const uint32_t count = m.count ? m.count : 1;
        if (!(m.link.bytes_per_second > 0))
            m.link = read->network;
        m.count = 1;
        for (uint32_t k = 0; k < count; k++)
            all->machines[all->n++] = m;
    }
    free(read);
    *out = all;
    return MOE_OK;
}

/* ---- Links ---- */

bool moe_machine_link_fit(struct moe_machine_link *l)
{
    enum { SMALL = 4096 };
    const struct moe_machine_message *last = &l->messages[l->n_messages - 1];
    double latency = last->seconds;
    for (uint32_t i = 0; i < l->n_messages; i++)
        if (l->messages[i].bytes <= SMALL && l->messages[i].seconds < latency)
            latency = l->messages[i].seconds;
    const double rest = last->seconds - latency;
    l->latency_seconds = latency;
    l->bytes_per_second = rest >= latency ? (double)last->bytes / rest : 0;
    return l->bytes_per_second > 0;
}
