#include "experts/host_places.h"

#include <stdlib.h>

#include "base/mem.h"

/* ---- Order of copies ---- */

static void unlink_place(struct moe_host_places *p, uint32_t place)
{
    const struct moe_host_place *x = &p->places[place];
    if (x->older == MOE_NO_PLACE)
        p->classes[x->class_index].oldest = x->newer;
    else
        p->places[x->older].newer = x->newer;
    if (x->newer == MOE_NO_PLACE)
        p->classes[x->class_index].newest = x->older;
    else
        p->places[x->newer].older = x->older;
}

static void link_newest(struct moe_host_places *p, uint32_t place)
{
    struct moe_host_place *x = &p->places[place];
    uint32_t *newest = &p->classes[x->class_index].newest;
    x->older = *newest;
    x->newer = MOE_NO_PLACE;
    if (*newest == MOE_NO_PLACE)
        p->classes[x->class_index].oldest = place;
    else
        p->places[*newest].newer = place;
    *newest = place;
}

static void link_oldest(struct moe_host_places *p, uint32_t place)
{
    struct moe_host_place *x = &p->places[place];
    uint32_t *oldest = &p->classes[x->class_index].oldest;
    x->newer = *oldest;
    x->older = MOE_NO_PLACE;
    if (*oldest == MOE_NO_PLACE)
        p->classes[x->class_index].newest = place;
    else
        p->places[*oldest].older = place;
    *oldest = place;
}

/* ---- The interface ---- */

int moe_host_places_open(struct moe_host_places *p, uint32_t n_keys, const uint32_t *n_in,
                         uint32_t n_classes, struct moe_err *err)
{
    *p = (struct moe_host_places){.n_keys = n_keys};
    for (uint32_t c = 0; c < MOE_MAX_CLASSES; c++)
        p->classes[c].oldest = p->classes[c].newest = MOE_NO_PLACE;
    for (uint32_t c = 0; c < n_classes; c++)
        p->n_places += n_in[c];
    p->places = moe_alloc(p->n_places, sizeof *p->places, err);
    p->of_key = moe_alloc(n_keys, sizeof *p->of_key, err);
    if (!p->places || !p->of_key)
        return MOE_ERR_MEMORY;
    for (uint32_t key = 0; key < n_keys; key++)
        p->of_key[key] = MOE_NO_PLACE;
    for (uint32_t c = 0, place = 0; c < n_classes; c++) {
        for (uint32_t i = 0; i < n_in[c]; i++, place++) {
            p->places[place] = (struct moe_host_place){.class_index = c, .key = MOE_PLACE_EMPTY};
            link_newest(p, place);
        }
    }
    return MOE_OK;
}

void moe_host_places_close(struct moe_host_places *p)
{
    free(p->places);
    free(p->of_key);
    *p = (struct moe_host_places){0};
}

uint32_t moe_host_places_find(const struct moe_host_places *p, uint32_t key)
{
    return p->of_key[key];
}

/* What the place holds is forgotten. */
static void empty(struct moe_host_places *p, struct moe_host_place *x)
{
    if (x->key != MOE_PLACE_EMPTY)
        p->of_key[x->key] = MOE_NO_PLACE;
    x->key = MOE_PLACE_EMPTY;
    x->arrived = 0;
}

uint32_t moe_host_places_take(struct moe_host_places *p, uint32_t class_index, uint32_t key)
{
    uint32_t place = p->classes[class_index].oldest;
    while (place != MOE_NO_PLACE && p->places[place].pins > 0)
        place = p->places[place].newer;
    if (place == MOE_NO_PLACE)
        return MOE_NO_PLACE;
    empty(p, &p->places[place]);
    p->places[place].key = key;
    p->of_key[key] = place;
    return place;
}

void moe_host_places_pin(struct moe_host_places *p, uint32_t place)
{
    p->places[place].pins++;
}

void moe_host_places_unpin(struct moe_host_places *p, uint32_t place)
{
    struct moe_host_place *x = &p->places[place];
    if (--x->pins > 0 || x->arrived)
        return;
    empty(p, x);
    unlink_place(p, place);
    link_oldest(p, place);
}

void moe_host_places_copied(struct moe_host_places *p, uint32_t place)
{
    unlink_place(p, place);
    link_newest(p, place);
}
