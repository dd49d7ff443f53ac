/* The bundled model at 16 bits, and what its training framework computed with it (reference.json).
 */
#ifndef TESTS_UNIT_REFERENCE_FIXTURE_H
#define TESTS_UNIT_REFERENCE_FIXTURE_H

#include <jansson.h>

#include "model_fixture.h"

static struct fixture fixture;
static json_t *reference;

static inline int open_reference(void **state)
{
    json_error_t error;
    struct moe_err err = {0};
    (void)state;
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    fixture_open(&fixture, 16, 1, 0);
    reference = json_load_file(TINY_MOE "/reference.json", 0, &error);
    assert_non_null(reference);
    return 0;
}

static inline int close_reference(void **state)
{
    (void)state;
    json_decref(reference);
    fixture_close(&fixture);
    return 0;
}

#endif
