#include "io/token_bucket.h"

double token_bucket_charge(struct token_bucket *b, double since, double now, double bytes)
{
    if (b->rate <= 0)
        return 0;
    double from = now - TOKEN_BUCKET_LATE;
    if (from < since)
        from = since;
    if (from < b->due)
        from = b->due;
    b->due = from + bytes / b->rate;
    return b->due;
}

double token_bucket_delay(const struct token_bucket *b, double now)
{
    double delay = b->rate > 0 ? b->due - TOKEN_BUCKET_AHEAD - now : 0;
    return delay > 0 ? delay : 0;
}
