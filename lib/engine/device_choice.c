#include "engine/device_choice.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

enum { MAX_GPU = 1023 };

bool moe_device_parse(const char *text, struct moe_device_choice *device, char why[128])
{
    char speed[32];
    const char *numbers = strncmp(text, "test:", 5) == 0 ? text + 5 : "";
    size_t n = strcspn(numbers, ",");
    if (strcmp(text, "cpu") == 0) {
        *device = (struct moe_device_choice){0};
        return true;
    }
    if (strcmp(text, "auto") == 0) {
        *device = (struct moe_device_choice){.cuda = true, .automatic = true};
        return true;
    }
    if (strncmp(text, "cuda", 4) == 0 && (text[4] == 0 || text[4] == ':')) {
        uint64_t index = 0;
        *device = (struct moe_device_choice){.cuda = true};
        if (text[4] == 0 || (moe_parse_u64(text + 5, &index) && index <= MAX_GPU)) {
            device->index = (int)index;
            return true;
        }
    }
    if (n < sizeof speed && numbers[n]) {
        memcpy(speed, numbers, n);
        speed[n] = 0;
        *device = (struct moe_device_choice){.test = true};
        if (moe_parse_double(speed, &device->speed) && device->speed >= 1 &&
            moe_parse_rate(numbers + n + 1, &device->link_rate))
            return true;
    }
    snprintf(
        why, 128,
        "is not cpu, cuda[:N], auto or test:SPEED,LINK, as in test:4,2GB/s; SPEED is 1 or more");
    return false;
}
