/*
 * The bundled model as a pack, made once per test program, and a model opened from it.
 */
#ifndef TESTS_MODEL_FIXTURE_H
#define TESTS_MODEL_FIXTURE_H

#include <unistd.h>

#include "base/par.h"
#include "infer/session.h"
#include "kern/kern.h"

#include "../make_pack.h"

struct fixture {
    char path[128];
    struct moe_model *model;
    struct moe_experts *experts;
    struct moe_session *session;
};

/* Makes a pack of the bundled model with the given bits (experts and dense alike). */
static inline void fixture_pack(char path[128], int bits)
{
    char experts[16];
    snprintf(experts, sizeof experts, "%d", bits);
    const struct moe_convert_options options = pack_options(experts, bits);
    snprintf(path, 128, "/tmp/moe-test-%d-%d.moe", bits, (int)getpid());
    bundled_pack(path, &options);
}

static inline void fixture_open(struct fixture *f, int bits, uint32_t n_sequences, uint32_t batch)
{
    struct moe_err err = {0};
    fixture_pack(f->path, bits);
    assert_ok(moe_model_open(&f->model, f->path, 0, NULL, &err), &err);
    assert_ok(moe_experts_open_resident(&f->experts, f->model->pack, 0, NULL, NULL, &err), &err);
    const struct moe_session_options options = {.n_sequences = n_sequences, .batch = batch};
    assert_ok(moe_session_open(&f->session, f->model, f->experts, &options, &err), &err);
}

static inline void fixture_close(struct fixture *f)
{
    moe_session_close(f->session);
    moe_experts_close(f->experts);
    moe_model_close(f->model);
    unlink(f->path);
}

#endif
