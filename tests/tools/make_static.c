/* make_static FROM LAYERS TO: writes into the directory TO, which is there, the checkpoint FROM
 * with tables of random experts in the place of the routers of LAYERS, which is JSON as
 * config.json's static_routing takes it. */
#include <stdio.h>

#include "../static_checkpoint.h"

static void make(void **state)
{
    char **words = *state;
    struct static_checkpoint m = {.from = words[1], .layers = words[2], .type = "I64"};
    make_static_checkpoint(&m, words[3]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(make, argv)};
    if (argc != 4) {
        fprintf(stderr, "usage: make_static FROM LAYERS TO\n");
        return 2;
    }
    return cmocka_run_group_tests_name("make_static", tests, NULL, NULL);
}
