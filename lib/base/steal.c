#include "base/steal.h"

#include <stdio.h>

struct moe_ticks moe_ticks_now(void)
{
    double user, nice, system, idle, wait, irq, soft_irq, stolen;
    struct moe_ticks ticks = {0, 0};
    FILE *f = fopen("/proc/stat", "r");
    if (!f)
        return ticks;
    if (fscanf(f, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &user, &nice, &system, &idle, &wait, &irq,
               &soft_irq, &stolen) == 8)
        ticks = (struct moe_ticks){user + nice + system + idle + wait + irq + soft_irq + stolen,
                                   stolen};
    fclose(f);
    return ticks;
}
