/* The chat page, page.html, as the build put it into the library. */
#ifndef MOE_SERVE_PAGE_H
#define MOE_SERVE_PAGE_H

#include <stddef.h>

extern const char moe_page[];
extern const size_t moe_page_bytes;

/* What stands in the page where every response has a number of its own: browsers run the scripts
 * and styles that carry it, and no others. */
#define MOE_PAGE_NONCE "NONCE-OF-THIS-RESPONSE"

#endif
