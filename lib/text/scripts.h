/*
 * Which script a character belongs to. Internal to the tokenizer.
 */
#ifndef MOE_TEXT_SCRIPTS_H
#define MOE_TEXT_SCRIPTS_H

#include <stdint.h>

/* A number for the character's script, or 0: it goes with any. */
uint8_t moe_script_of(uint32_t c);

#endif
