/* The file that keeps inputs. */
#define _POSIX_C_SOURCE 200809L /* mkdir */
#include "history_path.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"

char *history_path(void)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    struct moe_buf path = {0};
    if (state && *state == '/')
        moe_buf_text(&path, state);
    else if (home && *home == '/')
        moe_buf_printf(&path, "%s/.local/state", home);
    else
        return NULL;
    moe_buf_text(&path, "/moe-toolkit/history");
    if (path.failed)
        return NULL;
    char *text = (char *)path.data;
    for (char *slash = strchr(text + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(text, 0700); /* may exist; if it cannot be made, saving fails */
        *slash = '/';
    }
    return text;
}
