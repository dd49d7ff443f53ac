/* Which device is to run a model, and the words of --device for it. */
#ifndef MOE_ENGINE_DEVICE_CHOICE_H
#define MOE_ENGINE_DEVICE_CHOICE_H

#include <stdbool.h>

struct moe_device_choice {
    bool test;        /* rehearses a device: one core is the device, another its host */
    double speed;     /* of the test device: how many times as fast as its host, at least 1 */
    double link_rate; /* ... and bytes per second from the host's memory to its own */
    bool cuda;        /* GPU number `index`; neither: the plain CPU */
    int index;
    bool automatic; /* with cuda: the plain CPU where no GPU can be used */
};

/* "cpu", "cuda", "cuda:N", "auto", "test:SPEED,LINK". False: it is none of these, and `why` says
 * so, for behind the text. */
bool moe_device_parse(const char *text, struct moe_device_choice *out, char why[128]);

#endif
