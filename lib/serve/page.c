/* The assembler reads the page, from the directory in which make runs. */
#include "serve/page.h"

__asm__(".section .rodata\n"
        ".global moe_page\n"
        "moe_page:\n"
        ".incbin \"lib/serve/page.html\"\n"
        "moe_page_end:\n"
        ".byte 0\n"
        ".balign 8\n"
        ".global moe_page_bytes\n"
        "moe_page_bytes:\n"
        ".quad moe_page_end - moe_page\n"
        ".previous\n");
