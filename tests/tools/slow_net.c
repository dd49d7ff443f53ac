/*
 * A network between network namespaces, for machines whose kernel has no netem: a switch in user
 * space, with one port in each namespace.
 *
 *     slow_net MICROSECONDS BITS_PER_SECOND NAMESPACE...
 *
 * Makes a tap device "net0" in each namespace, prints "ready", and then carries frames until it is
 * killed: each takes its time on the sender's link, the delay, and its time on the receiver's link,
 * both ways at once. The caller gives the devices addresses. Needs root.
 */
#define _GNU_SOURCE /* setns */
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { MOST_PORTS = 16, MOST_FRAME = 65536, MOST_WAITING = 4096, MAC_BYTES = 6 };

struct frame {
    double due;
    int to;
    ssize_t bytes;
    uint8_t data[MOST_FRAME];
};

struct port {
    int fd;
    uint8_t mac[MAC_BYTES]; /* of the last frame from there */
    double out_free, in_free;
};

static struct port ports[MOST_PORTS];
static int n_ports;
static double delay, rate;
static struct frame *waiting[MOST_WAITING]; /* [n_waiting] in the order in which they came */
static int n_waiting;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void fail(const char *what, const char *name)
{
    fprintf(stderr, "slow_net: %s %s: %s\n", what, name, strerror(errno));
    exit(1);
}

/* A tap device in the namespace; this process is back in its own afterwards. */
static int open_port(const char *name, int home)
{
    char path[256];
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI};
    snprintf(path, sizeof path, "/run/netns/%s", name);
    int space = open(path, O_RDONLY | O_CLOEXEC);
    if (space < 0 || setns(space, CLONE_NEWNET) != 0)
        fail("namespace", name);
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    snprintf(request.ifr_name, sizeof request.ifr_name, "net0");
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request) != 0)
        fail("tap device in", name);
    close(space);
    if (setns(home, CLONE_NEWNET) != 0)
        fail("namespace", "of its own");
    return fd;
}

/* Queues a copy of the frame for one port. */
static void queue(const struct frame *f, int to, double left)
{
    struct port *p = &ports[to];
    if (n_waiting == MOST_WAITING)
        return; /* a switch drops, too */
    struct frame *copy = malloc(sizeof *copy - sizeof copy->data + (size_t)f->bytes);
    if (!copy)
        return;
    double begins = left + delay > p->in_free ? left + delay : p->in_free;
    memcpy(copy->data, f->data, (size_t)f->bytes);
    copy->bytes = f->bytes;
    copy->to = to;
    copy->due = p->in_free = begins + 8 * (double)f->bytes / rate;
    waiting[n_waiting++] = copy;
}

static void take(int from)
{
    static struct frame f;
    struct port *p = &ports[from];
    for (int i = 0; i < 64 && (f.bytes = read(p->fd, f.data, sizeof f.data)) > 2 * MAC_BYTES; i++) {
        const double t = now();
        memcpy(p->mac, f.data + MAC_BYTES, MAC_BYTES);
        p->out_free = (t > p->out_free ? t : p->out_free) + 8 * (double)f.bytes / rate;
        int to = -1;
        for (int k = 0; k < n_ports && to < 0; k++)
            if (k != from && memcmp(ports[k].mac, f.data, MAC_BYTES) == 0)
                to = k;
        for (int k = 0; k < n_ports; k++)
            if (k != from && (to < 0 || k == to))
                queue(&f, k, p->out_free);
    }
}

/* Hands over what is due, and returns when the next one is. Frames of a port are due in the order
 * in which they were queued. */
static double carry(void)
{
    const double t = now();
    double next = t + 1;
    int kept = 0;
    for (int i = 0; i < n_waiting; i++) {
        struct frame *f = waiting[i];
        if (f->due > t) {
            next = f->due < next ? f->due : next;
            waiting[kept++] = f;
            continue;
        }
        if (write(ports[f->to].fd, f->data, (size_t)f->bytes) < 0 && errno != EIO &&
            errno != EAGAIN)
            fail("write to port", "");
        free(f);
    }
    n_waiting = kept;
    return next;
}

int main(int argc, char **argv)
{
    struct pollfd polls[MOST_PORTS];
    if (argc < 5 || argc - 3 > MOST_PORTS) {
        fprintf(stderr, "slow_net MICROSECONDS BITS_PER_SECOND NAMESPACE...\n");
        return 2;
    }
    delay = 1e-6 * atof(argv[1]);
    rate = atof(argv[2]);
    int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    for (n_ports = 0; n_ports < argc - 3; n_ports++) {
        ports[n_ports].fd = open_port(argv[3 + n_ports], home);
        polls[n_ports] = (struct pollfd){.fd = ports[n_ports].fd, .events = POLLIN};
    }
    puts("ready");
    fflush(stdout);
    for (;;) {
        const double left = carry() - now();
        /* What is due soon is waited for awake: sleeping takes 50 microseconds too long. */
        const struct timespec t = {
            .tv_nsec = left > 150e-6 ? (long)((left - 100e-6) * 1e9) % 1000000000 : 0};
        if (ppoll(polls, (nfds_t)n_ports, &t, NULL) < 0 && errno != EINTR)
            fail("poll", "");
        for (int i = 0; i < n_ports; i++)
            if (polls[i].revents & POLLIN)
                take(i);
    }
}
