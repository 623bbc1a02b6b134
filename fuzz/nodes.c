
/*
 * Where servers are, as a cluster or a sentinel says: values of any type in any
 * place.  What is taken for a server has a name and a port, each stands there
 * once, and each slot belongs to one of them, or to none.
 */


#include "fuzz.h"

#include "store/redis/ngx_idempotency_redis.c"


#define NODES_DEPTH  5
#define NODES_MOST   512


typedef struct {
    const uint8_t                  *pos;
    const uint8_t                  *last;
    ngx_idempotency_redis_reply_t  *next;
} values_t;


static ngx_idempotency_redis_reply_t  values[NODES_MOST];
static redis_node_t                  *slots[NGX_IDEMPOTENCY_REDIS_SLOTS];
static redis_conn_t                   conn;
static ngx_idempotency_redis_t        redis;


/* connections are there, and nothing comes of them */

redis_kind_t  ngx_idempotency_redis_pipeline;

volatile ngx_msec_t  ngx_current_msec;
ngx_uint_t           ngx_worker;


redis_conn_t *
ngx_idempotency_redis_conn_create(redis_node_t *node, redis_kind_t *kind)
{
    return &conn;
}


redis_conn_t *
ngx_idempotency_redis_conn_next(ngx_idempotency_redis_t *r, redis_conn_t *c)
{
    return NULL;
}


void
ngx_idempotency_redis_conn_lose(redis_conn_t *c,
    ngx_idempotency_redis_error_e error, const char *format, ...)
{
    u_char   text[256];
    va_list  args;

    va_start(args, format);
    (void) ngx_vslprintf(text, text + sizeof(text), format, args);
    va_end(args);
}


void
ngx_idempotency_redis_conn_stop(redis_conn_t *c, char *why)
{
    /* void */
}


void
ngx_idempotency_redis_conn_restart(redis_conn_t *c, ngx_msec_t pause,
    char *why)
{
    /* void */
}


#define nothing_comes(name)                                                   \
                                                                              \
void                                                                          \
name(redis_conn_t *c)                                                         \
{                                                                             \
    /* void */                                                                \
}

nothing_comes(ngx_idempotency_redis_conn_back)
nothing_comes(ngx_idempotency_redis_conn_connect)
nothing_comes(ngx_idempotency_redis_pipeline_leave)


/* a value: what it is, how much of it, and its bytes or its elements */

static void
value(values_t *v, ngx_idempotency_redis_reply_t *reply, ngx_uint_t depth)
{
    size_t      n;
    ngx_uint_t  i;

    static ngx_idempotency_redis_type_e  types[] = {
        NGX_IDEMPOTENCY_REDIS_STRING, NGX_IDEMPOTENCY_REDIS_ARRAY,
        NGX_IDEMPOTENCY_REDIS_INTEGER, NGX_IDEMPOTENCY_REDIS_NIL,
        NGX_IDEMPOTENCY_REDIS_ERROR
    };

    ngx_memzero(reply, sizeof(ngx_idempotency_redis_reply_t));
    reply->type = NGX_IDEMPOTENCY_REDIS_NIL;

    if (v->last - v->pos < 2) {
        return;
    }

    reply->type = types[v->pos[0] % 5];
    n = v->pos[1];
    v->pos += 2;

    switch (reply->type) {

    case NGX_IDEMPOTENCY_REDIS_ARRAY:

        if (depth == NODES_DEPTH || n > (size_t) (values + NODES_MOST - v->next))
        {
            return;
        }

        reply->n = n;
        reply->elts = v->next;
        v->next += n;

        for (i = 0; i < n; i++) {
            value(v, &reply->elts[i], depth + 1);
        }

        return;

    case NGX_IDEMPOTENCY_REDIS_INTEGER:
        n = ngx_min(n, 8);

        for (i = 0; i < n && v->pos < v->last; i++) {
            reply->integer = (int64_t) ((uint64_t) reply->integer << 8
                                        | *v->pos++);
        }

        return;

    case NGX_IDEMPOTENCY_REDIS_STRING:
    case NGX_IDEMPOTENCY_REDIS_ERROR:
        reply->str.len = ngx_min(n, (size_t) (v->last - v->pos));
        reply->str.data = fuzz_copy(v->pos, reply->str.len);
        v->pos += reply->str.len;

        return;

    default:
        return;
    }
}


/* a host may be missing, and is the server that was asked then; nothing else
   stands for one */

static void
ranges(ngx_idempotency_redis_reply_t *reply)
{
    ngx_uint_t                      i;
    ngx_idempotency_redis_type_e    type;
    ngx_idempotency_redis_reply_t  *range;

    for (i = 0; i < reply->n; i++) {
        range = &reply->elts[i];

        if (range->n < 3 || range->elts[2].n == 0) {
            continue;
        }

        type = range->elts[2].elts[0].type;

        if (type == NGX_IDEMPOTENCY_REDIS_STRING
            || type == NGX_IDEMPOTENCY_REDIS_NIL)
        {
            return;
        }
    }

    for (i = 0; i < NGX_IDEMPOTENCY_REDIS_SLOTS; i++) {
        hold(slots[i] == NULL);
    }
}


static void
servers(ngx_uint_t cluster)
{
    ngx_uint_t     i;
    redis_node_t  *node, *other;

    node = NULL;

    while ((node = node_next(&redis, node)) != NULL) {

        if (node->named == NULL) {
            continue;
        }

        hold(node->host.len && node->port && node->name.len > node->host.len);

        other = node;

        while ((other = node_next(&redis, other)) != NULL) {
            hold(!node_is(other, &node->host, node->port));
        }
    }

    for (i = 0; cluster && i < NGX_IDEMPOTENCY_REDIS_SLOTS; i++) {
        hold(slots[i] == NULL || (slots[i]->named && slots[i]->known));
    }
}


static void
end(void)
{
    ngx_queue_t   *q;
    redis_node_t  *node;

    while (!ngx_queue_empty(&redis.nodes)) {
        q = ngx_queue_head(&redis.nodes);
        node = ngx_queue_data(q, redis_node_t, queue);

        ngx_queue_remove(q);
        free(node->named);
        free(node);
    }
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    values_t                       v;
    ngx_uint_t                     kind;
    struct sockaddr_in            *sin;
    ngx_idempotency_redis_reply_t  reply;

    static ngx_log_t    log;
    static ngx_cycle_t  cycle;

    cycle.log = &log;
    ngx_cycle = &cycle;

    (void) fuzz_pool();

    if (size < 1) {
        return 0;
    }

    ngx_memzero(&conn, sizeof(conn));
    ngx_memzero(&redis, sizeof(redis));
    ngx_memzero(slots, sizeof(slots));

    kind = data[0] % 4;
    redis.log = &log;
    redis.conf.connections = 1;
    ngx_str_set(&redis.conf.master, "m");
    redis.slots = (kind == 0 || kind == 3) ? slots : NULL;
    ngx_queue_init(&redis.nodes);
    ngx_rbtree_init(&redis.channels, &redis.channels_sentinel,
                    ngx_str_rbtree_insert_value);
    redis.home = node_create(&redis);
    redis.discovery = &conn;

    conn.redis = &redis;
    conn.node = redis.home;

    sin = &conn.sockaddr.sockaddr_in;
    sin->sin_family = AF_INET;
    sin->sin_port = htons(6379);
    conn.peer.socklen = sizeof(struct sockaddr_in);

    v.pos = data + 1;
    v.last = data + size;

    while (v.last - v.pos >= 2) {
        v.next = values;
        value(&v, &reply, 0);

        switch (kind) {

        case 0:
            discovery_answer(&conn, NULL, &reply);

            if (reply.type == NGX_IDEMPOTENCY_REDIS_ARRAY && reply.n) {
                ranges(&reply);
            }

            break;

        case 1:
            discovery_answer(&conn, NULL, &reply);
            break;

        case 2:
            (void) sentinel_push(&conn, &reply);
            break;

        case 3:
            if (reply.type == NGX_IDEMPOTENCY_REDIS_ERROR) {
                (void) ngx_idempotency_redis_moved(&redis, &reply.str,
                                                   reply.str.len & 1);
            }

            break;
        }

        servers(redis.slots != NULL);
    }

    end();

    return 0;
}
