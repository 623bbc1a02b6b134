
/*
 * A record's head as redis_item.c writes and reads it is the one of the scripts:
 * where what is in it, and how long it is, is read here from record.lua's own
 * words, as a script has them in front.
 */


#include "unit.h"

#include "store/redis/ngx_idempotency_redis_item.h"


#define MOST  32


/* of the scripts: a field's name, its place, how long it is, and whether it is a
   number */

typedef struct {
    char         name[32];
    size_t       at;
    size_t       len;
    ngx_uint_t   number;
} field_t;

static field_t     fields[MOST];
static ngx_uint_t  nfields;
static size_t      whole;

static ngx_str_t   prefix = ngx_string("idem:");
static ngx_str_t   publish = ngx_string("PUBLISH");


static void
parse(char *lua)
{
    char     *p, *end, *layout;
    size_t    at;
    field_t  *f;

    nfields = 0;
    at = 0;

    p = strstr(lua, "local names = {");
    layout = strstr(lua, "local layout = '>");

    if (!check(p != NULL) || !check(layout != NULL)) {
        return;
    }

    end = strchr(p, '}');
    layout += strlen("local layout = '>");

    for (p = strchr(p, '\''); p && p < end; p = strchr(p + 1, '\'')) {

        f = &fields[nfields++];

        if (!check(nfields < MOST)
            || !check(sscanf(p, "'%31[a-z]'", f->name) == 1)
            || !check(*layout == 'c' || *layout == 'I'))
        {
            return;
        }

        f->number = (*layout++ == 'I');
        f->at = at;
        f->len = strtoul(layout, &layout, 10);
        at += f->len;

        p = strchr(p + 1, '\'');
    }

    check(*layout == '\'');

    p = strstr(lua, "local format, length = 'I2', ");

    if (check(p != NULL)) {
        whole = strtoul(p + strlen("local format, length = 'I2', "), NULL, 10);
        check_equal(whole, at);
    }
}


unit_case("what the scripts say of a record")
{
    u_char      *text;
    ngx_str_t   *lua;

    lua = &ngx_idempotency_redis_scripts[NGX_IDEMPOTENCY_REDIS_LIST].text;

    text = ngx_pnalloc(unit_pool, lua->len + 1);

    if (!check(text != NULL)) {
        return;
    }

    ngx_cpystrn(text, lua->data, lua->len + 1);

    parse((char *) text);

    check_equal(nfields, 18);
    check_equal(whole, NGX_IDEMPOTENCY_REDIS_HEAD);
}


static field_t *
field(char *name)
{
    ngx_uint_t  i;

    for (i = 0; i < nfields; i++) {
        if (strcmp(fields[i].name, name) == 0) {
            return &fields[i];
        }
    }

    unit_note("the scripts know no %s", name);
    check(0);

    return &fields[0];
}


static uint64_t
number(u_char *head, char *name)
{
    size_t     i;
    field_t   *f;
    uint64_t   n;

    f = field(name);
    n = 0;

    check(f->number || f->len == 8);

    for (i = 0; i < f->len; i++) {
        n = n << 8 | head[f->at + i];
    }

    return n;
}


static void
set_number(u_char *head, char *name, uint64_t n)
{
    size_t    i;
    field_t  *f;

    f = field(name);

    for (i = f->len; i > 0; i--) {
        head[f->at + i - 1] = (u_char) n;
        n >>= 8;
    }
}


static void
same(u_char *head, char *name, void *data, size_t len)
{
    field_t  *f;

    f = field(name);

    /* settings leave one byte of theirs */

    check(len <= f->len);

    if (!check(ngx_memcmp(head + f->at, data, len) == 0)) {
        unit_note("the %s is elsewhere", name);
    }
}


static void
an_item(ngx_idempotency_item_t *item)
{
    ngx_memzero(item, sizeof(ngx_idempotency_item_t));

    item->instance = 0xa1a2a3a4a5a6a7a8;
    item->sequence = 0xf1f2f3f4f5f6f7;
    item->fence = 0xb1b2b3b4b5b6b7;
    item->window = 0xc1c2c3c4c5c6c7;
    item->recorded = 5000;
    item->ends = 90000;
    item->status = 0xd1d2d3;
    item->replays = 0xe1e2e3;

    ngx_memset(item->token, 1, sizeof(item->token));
    ngx_memset(item->fingerprint, 2, sizeof(item->fingerprint));
    ngx_memset(item->parts.identity, 3, sizeof(item->parts.identity));
    ngx_memset(item->parts.action, 4, sizeof(item->parts.action));
    ngx_memset(item->parts.body, 5, sizeof(item->parts.body));
    ngx_memset(item->parts.settings, 6, sizeof(item->parts.settings));
    ngx_memset(item->mac, 7, sizeof(item->mac));

    item->parts.version = 8;
}


unit_case("a head as it is written")
{
    u_char                        *head, key[128];
    ngx_uint_t                     i;
    ngx_idempotency_item_t         item;
    ngx_idempotency_redis_item_t   ri;

    static struct {
        ngx_idempotency_item_e     what;
        ngx_idempotency_outcome_e  outcome;
        u_char                     state;
    } as[] = {
        { NGX_IDEMPOTENCY_ITEM_ASK, NGX_IDEMPOTENCY_PENDING, 'P' },
        { NGX_IDEMPOTENCY_ITEM_PUT, NGX_IDEMPOTENCY_PENDING, 'P' },
        { NGX_IDEMPOTENCY_ITEM_PUT, NGX_IDEMPOTENCY_DONE, 'D' },
        { NGX_IDEMPOTENCY_ITEM_PUT, NGX_IDEMPOTENCY_NOT_KEPT, 'N' },
        { NGX_IDEMPOTENCY_ITEM_PUT, NGX_IDEMPOTENCY_IN_DOUBT, 'U' },
        { NGX_IDEMPOTENCY_ITEM_RELEASE, NGX_IDEMPOTENCY_PENDING, 'P' }
    };

    for (i = 0; i < sizeof(as) / sizeof(as[0]); i++) {
        an_item(&item);
        ngx_memzero(&ri, sizeof(ri));

        item.what = as[i].what;
        item.outcome = as[i].outcome;
        item.taken = 1;

        ri.item = &item;
        ri.key = key;

        ngx_idempotency_redis_item_call(&ri, &prefix, &publish, 7000);

        if (!check(ri.call.nargs > 0)
            || !check_equal(ri.args[0].len, whole))
        {
            continue;
        }

        head = ri.args[0].data;

        same(head, "format", "I2", 2);
        same(head, "state", &as[i].state, 1);
        check_equal(number(head, "form"), item.parts.version);
        check(number(head, "instance") == item.instance);
        check(number(head, "sequence") == item.sequence);
        check(number(head, "fence") == item.fence);
        check(number(head, "window") == (uint64_t) item.window);
        check_equal(number(head, "status"),
                    (item.outcome == NGX_IDEMPOTENCY_PENDING) ? 1
                                                              : item.status);
        check_equal(number(head, "replays"), item.replays);
        same(head, "fingerprint", item.fingerprint, sizeof(item.fingerprint));
        same(head, "identity", item.parts.identity,
             sizeof(item.parts.identity));
        same(head, "action", item.parts.action, sizeof(item.parts.action));
        same(head, "body", item.parts.body, sizeof(item.parts.body));
        same(head, "settings", item.parts.settings,
             sizeof(item.parts.settings));
        same(head, "mac", item.mac, sizeof(item.mac));
    }
}


/* as an answer has it, at this time of the server */

static ngx_int_t
answered(ngx_idempotency_item_t *item, ngx_str_t *record, char *there,
    int64_t now)
{
    ngx_idempotency_redis_item_t   ri;
    ngx_idempotency_redis_reply_t  reply, elts[3];

    ngx_memzero(&ri, sizeof(ri));
    ngx_memzero(&reply, sizeof(reply));
    ngx_memzero(elts, sizeof(elts));

    ri.item = item;
    reply.type = NGX_IDEMPOTENCY_REDIS_ARRAY;
    reply.n = 3;
    reply.elts = elts;

    ngx_str_set(&elts[0].str, "B");
    elts[1].str.data = (u_char *) there;
    elts[1].str.len = strlen(there);
    elts[2].str = *record;

    return ngx_idempotency_redis_item_answer(&ri, &reply, now);
}


unit_case("a record as it is read")
{
    u_char                  *p, bytes[NGX_IDEMPOTENCY_REDIS_HEAD + 3];
    ngx_uint_t               i;
    ngx_str_t                record;
    ngx_idempotency_item_t   item, is;

    static struct {
        u_char                     state;
        ngx_idempotency_outcome_e  outcome;
    } as[] = {
        { 'P', NGX_IDEMPOTENCY_PENDING },
        { 'D', NGX_IDEMPOTENCY_DONE },
        { 'N', NGX_IDEMPOTENCY_NOT_KEPT },
        { 'U', NGX_IDEMPOTENCY_IN_DOUBT }
    };

    an_item(&is);

    for (i = 0; i < sizeof(as) / sizeof(as[0]); i++) {
        p = bytes;

        ngx_memzero(bytes, sizeof(bytes));
        ngx_memcpy(bytes + whole, "abc", 3);
        ngx_memcpy(p + field("format")->at, "I2", 2);
        p[field("state")->at] = as[i].state;
        set_number(p, "form", is.parts.version);
        set_number(p, "instance", is.instance);
        set_number(p, "sequence", is.sequence);
        set_number(p, "fence", is.fence);
        set_number(p, "window", is.window);
        set_number(p, "status", is.status);
        set_number(p, "replays", is.replays);
        set_number(p, "lease", 1000600);
        set_number(p, "recorded", 1000100);
        set_number(p, "ends", 1000900);

#define put(name, what)                                                       \
        ngx_memcpy(p + field(name)->at, what, sizeof(what))

        put("fingerprint", is.fingerprint);
        put("identity", is.parts.identity);
        put("action", is.parts.action);
        put("body", is.parts.body);
        put("settings", is.parts.settings);
        put("mac", is.mac);

        record.data = bytes;
        record.len = sizeof(bytes);

        ngx_memzero(&item, sizeof(item));

        check_equal(answered(&item, &record, "1000300", 7000), NGX_OK);

        check_equal(item.outcome, as[i].outcome);
        check_equal(item.parts.version, is.parts.version);
        check(item.instance == is.instance);
        check(item.sequence == is.sequence);
        check(item.fence == is.fence);
        check(item.window == is.window);
        check_equal(item.status,
                    (item.outcome == NGX_IDEMPOTENCY_PENDING) ? 0 : is.status);
        check_equal(item.replays, is.replays);
        check_equal(item.recorded, 6800);
        check_equal(item.ends, 7600);
        check_equal(item.lapses,
                    (item.outcome == NGX_IDEMPOTENCY_PENDING) ? 7300 : 0);
        check(ngx_memcmp(item.fingerprint, is.fingerprint,
                         sizeof(is.fingerprint)) == 0);
        check(ngx_memcmp(item.parts.identity, is.parts.identity,
                         sizeof(is.parts.identity)) == 0);
        check(ngx_memcmp(item.parts.action, is.parts.action,
                         sizeof(is.parts.action)) == 0);
        check(ngx_memcmp(item.parts.body, is.parts.body,
                         sizeof(is.parts.body)) == 0);
        check(ngx_memcmp(item.parts.settings, is.parts.settings,
                         sizeof(is.parts.settings)) == 0);
        check(ngx_memcmp(item.mac, is.mac, sizeof(is.mac)) == 0);
        check_equal(item.response.len, 3);
        check(ngx_memcmp(item.response.data, "abc", 3) == 0);

        free(item.response.data);
    }

    bytes[field("state")->at] = 'F';
    check_equal(answered(&item, &record, "0", 0), NGX_DECLINED);
}
