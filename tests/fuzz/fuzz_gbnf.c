/*
 * Any text as a grammar: it is read or refused with a line, and one that is read leads along bytes
 * of its own text, each step the same again from the beginning.
 */
/* Readers: grammar/gbnf*.c grammar/automaton.c */
#define _GNU_SOURCE
#include "fuzz.h"
#include "grammar/automaton_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct moe_grammar *g;
    struct automaton *a;
    struct moe_err err = {0};
    n = fuzz_begin(data, n);
    int status = FUZZ_TRY(moe_grammar_parse(&g, "fuzz", data, n, NULL, &err));
    if (status != MOE_OK) {
        if (g || !err.text[0])
            abort();
        return 0;
    }
    if (automaton_new(&a, g, &err) != MOE_OK)
        abort();
    uint32_t place;
    status = automaton_start(a, &place);
    for (size_t i = 0; i < n && status == MOE_OK && place != PLACE_DEAD; i++) {
        uint32_t next;
        status = automaton_step(a, place, data[i], &next);
        if (status == MOE_ERR_LIMIT && !automaton_is_spent(a)) {
            status = automaton_keep(a, &place);
            if (status == MOE_OK)
                status = automaton_step(a, place, data[i], &next);
        }
        if (status == MOE_OK && next != PLACE_DEAD)
            place = next;
        if (status == MOE_OK && !automaton_ends(a, place) && !automaton_goes_on(a, place))
            abort();
    }
    automaton_free(a);
    moe_grammar_free(g);
    return 0;
}
