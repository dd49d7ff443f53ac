/*
 * Fibers: stacks that are switched between by hand. By a few instructions on the machines we know
 * (a barrier of 256 threads is 256 switches; swapcontext makes a system call for each), elsewhere
 * by ucontext.
 */
#ifndef TESTS_SHIM_SHIM_FIBER_H
#define TESTS_SHIM_SHIM_FIBER_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#if !defined(__x86_64__) && !defined(__aarch64__)
#define SHIM_UCONTEXT
#endif
#ifdef SHIM_UCONTEXT
#include <ucontext.h>
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
enum { SHIM_STACK_BYTES = 256 << 10 };
#else
enum { SHIM_STACK_BYTES = 64 << 10 };
#endif

struct shim_fiber {
    char *stack; /* its lowest byte */
    size_t stack_bytes;
#ifdef SHIM_UCONTEXT
    ucontext_t context;
#else
    void *sp; /* while it does not run */
#endif
};

#ifndef SHIM_UCONTEXT
/* Saves what a function call keeps on this stack, its pointer in *from, and continues at `to`. */
extern "C" void shim_switch_stack(void **from, void *to);
#endif

static inline void shim_fiber_switch(struct shim_fiber *from, struct shim_fiber *to)
{
#ifdef __SANITIZE_ADDRESS__
    void *fake;
    __sanitizer_start_switch_fiber(&fake, to->stack, to->stack_bytes);
#endif
#ifdef SHIM_UCONTEXT
    swapcontext(&from->context, &to->context);
#else
    shim_switch_stack(&from->sp, to->sp);
#endif
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
#endif
}

/* What a new fiber does first. */
static inline void shim_fiber_entered(void)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(NULL, NULL, NULL);
#endif
}

/* The stack that the calling thread has by itself. */
static inline void shim_fiber_of_thread(struct shim_fiber *fiber)
{
    pthread_attr_t attr;
    void *stack = NULL;
    if (pthread_getattr_np(pthread_self(), &attr) == 0) {
        pthread_attr_getstack(&attr, &stack, &fiber->stack_bytes);
        pthread_attr_destroy(&attr);
    }
    fiber->stack = (char *)stack;
}

/* A fiber that will begin with `entry`, which never returns. Stacks end in a page that may not be
 * touched, and begin at different places of a page: else all would compete for the same lines of
 * the cache. */
static inline void shim_fiber_make(struct shim_fiber *fiber, unsigned number, void (*entry)(void))
{
    const size_t page = 4096, colour = number % 16 * 240;
    char *memory = (char *)mmap(NULL, page + SHIM_STACK_BYTES, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) {
        perror("shim: no memory for a stack");
        abort();
    }
    fiber->stack = memory + page;
    fiber->stack_bytes = SHIM_STACK_BYTES - colour;
#ifdef SHIM_UCONTEXT
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = fiber->stack_bytes;
    makecontext(&fiber->context, entry, 0);
#elif defined(__x86_64__)
    /* Popped by the first switch: six registers, the address to return to; then as after a call. */
    void **top = (void **)(fiber->stack + fiber->stack_bytes) - 8;
    for (int i = 0; i < 8; i++)
        top[i] = NULL;
    top[6] = (void *)entry;
    fiber->sp = top;
#else
    /* x19 to x30 (the link register last), d8 to d15. */
    void **top = (void **)(fiber->stack + fiber->stack_bytes) - 20;
    for (int i = 0; i < 20; i++)
        top[i] = NULL;
    top[11] = (void *)entry;
    fiber->sp = top;
#endif
}

/* Gives back the stack of a fiber that was made, wherever on it the fiber stopped. */
static inline void shim_fiber_drop(struct shim_fiber *fiber)
{
    const size_t page = 4096;
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(fiber->stack, SHIM_STACK_BYTES);
#endif
    munmap(fiber->stack - page, page + SHIM_STACK_BYTES);
}

#endif
