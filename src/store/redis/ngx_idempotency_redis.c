
/*
 * The client: a worker's view of an idempotency_redis block.  Calls go to the
 * node that the topology names, and every few seconds each connection that says
 * nothing is checked.
 */


#include "ngx_idempotency_redis_conn.h"

#include <poll.h>


/* a look at servers and connections that say nothing, in msec; every so many
   of them, their settings */

#define REDIS_TICK  5000
#define REDIS_INFO  2

/* a server's health is looked at so often, and what it said holds for so long;
   replicas may be silent for so long.  A claim is tried from time to time, as
   not all servers tell of their replicas */

#define REDIS_LOOK     250
#define REDIS_WELL     5000
#define REDIS_SILENCE  1000
#define REDIS_TRY      5000

/* connections that are looked at when the event loop has ended */

#define REDIS_POLL  256


static void redis_connect(ngx_idempotency_redis_t *redis);
static void redis_wait_events(ngx_idempotency_redis_conn_t *conn,
    struct pollfd *fd);
static void redis_exit_node(ngx_idempotency_redis_node_t *node);
static ngx_uint_t redis_up(ngx_idempotency_redis_node_t *node);
static void redis_look_handler(ngx_event_t *ev);
static void redis_look(ngx_idempotency_redis_node_t *node);
static void redis_looked(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static void redis_tick(ngx_event_t *ev);


ngx_idempotency_redis_t *
ngx_idempotency_redis_create(ngx_conf_t *cf)
{
    return ngx_pcalloc(cf->pool, sizeof(ngx_idempotency_redis_t));
}


ngx_idempotency_redis_conf_t *
ngx_idempotency_redis_conf(ngx_idempotency_redis_t *redis)
{
    return &redis->conf;
}


ngx_int_t
ngx_idempotency_redis_init_process(ngx_idempotency_redis_t *redis,
    ngx_cycle_t *cycle)
{
    if (redis->started) {
        return NGX_OK;
    }

    redis->started = 1;
    redis->log = cycle->log;

    ngx_queue_init(&redis->nodes);
    ngx_queue_init(&redis->graves);

    redis->bury.data = redis;
    redis->bury.log = cycle->log;
    redis->bury.cancelable = 1;

    redis->tick.data = redis;
    redis->tick.log = cycle->log;
    redis->tick.handler = redis_tick;
    redis->tick.cancelable = 1;

    ngx_add_timer(&redis->tick, REDIS_TICK);

    redis->look.data = redis;
    redis->look.log = cycle->log;
    redis->look.handler = redis_look_handler;
    redis->look.cancelable = 1;

    redis->topology = ngx_idempotency_redis_topologies[redis->conf.mode];

    ngx_rbtree_init(&redis->channels, &redis->channels_sentinel,
                    ngx_str_rbtree_insert_value);

    return redis->topology->init(redis);
}


void
ngx_idempotency_redis_exit_process(ngx_idempotency_redis_t *redis)
{
    ngx_idempotency_redis_node_t  *node;

    if (!redis->started) {
        return;
    }

    redis->started = 0;
    node = NULL;

    while ((node = ngx_idempotency_redis_node_next(redis, node)) != NULL) {
        redis_exit_node(node);
    }

    ngx_idempotency_redis_conn_exit(redis->discovery);
}


/*
 * The event loop has ended, and of all connections of the process only these
 * are looked at, and no timer.
 */

void
ngx_idempotency_redis_wait(ngx_idempotency_redis_t *redis, ngx_msec_t time,
    ngx_uint_t first)
{
    ngx_uint_t                     i, n, nfds;
    struct pollfd                  fds[REDIS_POLL];
    ngx_idempotency_redis_conn_t  *conn, *conns[REDIS_POLL];
    ngx_idempotency_redis_node_t  *node;

    nfds = 0;
    n = 2 * redis->conf.connections;

    if (first) {
        redis_connect(redis);
    }

    ngx_event_process_posted((ngx_cycle_t *) ngx_cycle, &ngx_posted_events);

    node = NULL;

    while ((node = ngx_idempotency_redis_node_next(redis, node)) != NULL) {
        for (i = 0; i < n; i++) {
            conn = node->conns[i];

            if (conn == NULL || conn->c == NULL || nfds == REDIS_POLL) {
                continue;
            }

            fds[nfds].fd = conn->c->fd;
            fds[nfds].events = conn->c->write->ready ? POLLIN
                                                     : (POLLIN|POLLOUT);
            fds[nfds].revents = 0;
            conns[nfds++] = conn;
        }
    }

    (void) poll(fds, nfds, ngx_min(time, 50));

    ngx_time_update();

    for (i = 0; i < nfds; i++) {
        redis_wait_events(conns[i], &fds[i]);
    }

    ngx_event_process_posted((ngx_cycle_t *) ngx_cycle, &ngx_posted_events);
}


/* nothing is given up before it was tried once more */

static void
redis_connect(ngx_idempotency_redis_t *redis)
{
    ngx_uint_t                     i, n;
    ngx_idempotency_redis_conn_t  *conn;
    ngx_idempotency_redis_node_t  *node;

    n = 2 * redis->conf.connections;
    node = NULL;

    while ((node = ngx_idempotency_redis_node_next(redis, node)) != NULL) {
        for (i = 0; i < n; i++) {
            conn = node->conns[i];

            if (conn == NULL || conn->state != ngx_idempotency_redis_closed) {
                continue;
            }

            if (conn->timer.timer_set) {
                ngx_del_timer(&conn->timer);
            }

            conn->down = 0;
            ngx_idempotency_redis_conn_connect(conn);
        }
    }
}


/* it may be lost by what is read from it, or by what another one has read */

static void
redis_wait_events(ngx_idempotency_redis_conn_t *conn, struct pollfd *fd)
{
    ngx_event_t  *ev;

    if (conn->c && conn->c->fd == fd->fd
        && (fd->revents & (POLLIN|POLLERR|POLLHUP)))
    {
        ev = conn->c->read;
        ev->ready = 1;
        ev->available = -1;
        ev->handler(ev);
    }

    if (conn->c && conn->c->fd == fd->fd
        && (fd->revents & (POLLOUT|POLLERR|POLLHUP)))
    {
        ev = conn->c->write;
        ev->ready = 1;
        ev->handler(ev);
    }
}


/* nobody is told any more: this is the end */

static void
redis_exit_node(ngx_idempotency_redis_node_t *node)
{
    ngx_uint_t  i, n;

    n = 2 * node->redis->conf.connections;

    for (i = 0; i < n; i++) {
        ngx_idempotency_redis_conn_exit(node->conns[i]);
    }

    ngx_idempotency_redis_conn_exit(node->pubsub);
}


void
ngx_idempotency_redis_call(ngx_idempotency_redis_t *redis, ngx_uint_t n,
    ngx_idempotency_redis_call_t *call)
{
    call->n = n;
    call->tries = 0;
    call->eval = 0;
    call->asking = 0;
    call->slow = 0;

    ngx_idempotency_redis_route(redis, call);
}


void
ngx_idempotency_redis_route(ngx_idempotency_redis_t *redis,
    ngx_idempotency_redis_call_t *call)
{
    ngx_idempotency_redis_conn_t  *conn;
    ngx_idempotency_redis_node_t  *node;

    node = (call->key.len || redis->topology->find == NULL)
           ? redis->topology->route(redis, &call->key)
           : redis->topology->find(redis, call->master);

    conn = ngx_idempotency_redis_node_conn(node, call->n, call->durable);

    if (conn == NULL) {

        /* the first one is made at the start */

        conn = redis->first;
    }

    ngx_idempotency_redis_pipeline_call(conn, call);
}


ngx_int_t
ngx_idempotency_redis_master(ngx_idempotency_redis_t *redis, uint64_t *master,
    uint64_t *all)
{
    if (redis->topology->next) {
        return redis->topology->next(redis, master, all);
    }

    *all = 1;

    return (*master)++ ? NGX_DONE : NGX_OK;
}


uint64_t
ngx_idempotency_redis_time(ngx_idempotency_redis_t *redis)
{
    uint64_t                       now;
    ngx_idempotency_redis_node_t  *node;

    node = NULL;

    while ((node = ngx_idempotency_redis_node_next(redis, node)) != NULL) {
        now = ngx_idempotency_redis_node_time(node);

        if (now) {
            return now;
        }
    }

    return 0;
}


ngx_uint_t
ngx_idempotency_redis_up(ngx_idempotency_redis_t *redis)
{
    ngx_uint_t                     known;
    ngx_idempotency_redis_node_t  *node;

    known = 0;
    node = NULL;

    while ((node = ngx_idempotency_redis_node_next(redis, node)) != NULL) {
        if (node->known) {
            known = 1;

            if (redis_up(node)) {
                return 1;
            }
        }
    }

    return known ? 0 : !redis->first->down;
}


/* it may be: nobody has tried, or one of its connections is not given up */

static ngx_uint_t
redis_up(ngx_idempotency_redis_node_t *node)
{
    ngx_uint_t                     i, n, tried;
    ngx_idempotency_redis_conn_t  *conn;

    n = node->redis->conf.connections;
    tried = 0;

    for (i = 0; i < n; i++) {
        conn = node->conns[i];

        if (conn) {
            tried = 1;

            if (!conn->down) {
                return 1;
            }
        }
    }

    return !tried;
}


ngx_uint_t
ngx_idempotency_redis_well(ngx_idempotency_redis_t *redis)
{
    ngx_uint_t                     well;
    ngx_idempotency_redis_node_t  *node;

    well = 1;
    node = NULL;

    while ((node = ngx_idempotency_redis_node_next(redis, node)) != NULL) {
        if (!node->known) {
            continue;
        }

        redis_look(node);

        if (node->conns[0] == NULL || node->well == 0
            || node->conns[0]->state != ngx_idempotency_redis_ready
            || ngx_current_msec - node->well >= REDIS_WELL)
        {
            well = 0;
        }
    }

    return well;
}


ngx_uint_t
ngx_idempotency_redis_missing(ngx_idempotency_redis_node_t *node)
{
    return node->missing
           && ngx_current_msec - node->missed >= REDIS_SILENCE
           && ngx_current_msec - node->tried < REDIS_TRY;
}


void
ngx_idempotency_redis_acked(ngx_idempotency_redis_node_t *node)
{
    node->well = ngx_current_msec;
    node->missing = 0;
    node->offset = 0;
}


void
ngx_idempotency_redis_unacked(ngx_idempotency_redis_node_t *node,
    ngx_msec_t sent)
{
    node->well = 0;
    node->tried = ngx_current_msec;

    if (node->missing) {
        return;
    }

    node->missing = 1;
    node->missed = sent;
    node->offset = 0;

    if (!node->redis->look.timer_set) {
        ngx_add_timer(&node->redis->look, REDIS_LOOK);
    }
}


static void
redis_look_handler(ngx_event_t *ev)
{
    ngx_idempotency_redis_t       *redis;
    ngx_idempotency_redis_node_t  *node;

    redis = ev->data;
    node = NULL;

    while ((node = ngx_idempotency_redis_node_next(redis, node)) != NULL) {
        if (!node->missing) {
            continue;
        }

        redis_look(node);

        if (!ev->timer_set && !ngx_exiting) {
            ngx_add_timer(ev, REDIS_LOOK);
        }
    }
}


/* over a connection that waits for no replica */

static void
redis_look(ngx_idempotency_redis_node_t *node)
{
    ngx_idempotency_redis_conn_t  *conn;

    conn = node->conns[0];

    if (node->looking || conn == NULL || conn->retire
        || conn->state != ngx_idempotency_redis_ready
        || ngx_current_msec - node->looked < REDIS_LOOK)
    {
        return;
    }

    node->looking = 1;
    node->looked = ngx_current_msec;

    ngx_idempotency_resp_say(&conn->out, "ROLE", NULL);
    (void) ngx_idempotency_redis_conn_expect(conn, redis_looked, node);
    ngx_idempotency_redis_conn_write(conn);
}


/*
 * "master", its offset, and each replica with the offset that this one has
 * acknowledged.  What was written before the first look has to be there.  Who
 * tells nothing of all this is well if he answers.
 */

static void
redis_looked(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    ngx_idempotency_redis_node_t  *node = data;

    int64_t                         offset;
    ngx_int_t                       n;
    ngx_uint_t                      i;
    ngx_idempotency_redis_reply_t  *replica;

    node->looking = 0;

    ngx_idempotency_redis_conn_expected(conn);

    if (reply == NULL) {
        return;
    }

    if (reply->type != NGX_IDEMPOTENCY_REDIS_ARRAY || reply->n < 3) {
        ngx_idempotency_redis_acked(node);
        return;
    }

    if (reply->elts[2].type != NGX_IDEMPOTENCY_REDIS_ARRAY) {
        /* it is no master */
        return;
    }

    if (node->offset == 0) {
        node->offset = reply->elts[1].integer;
    }

    n = 0;

    for (i = 0; i < reply->elts[2].n; i++) {
        replica = &reply->elts[2].elts[i];

        n += (replica->n == 3
              && ngx_idempotency_resp_decimal(replica->elts[2].str.data,
                                              replica->elts[2].str.len,
                                              &offset)
                 == NGX_OK
              && offset >= node->offset);
    }

    if (n >= conn->redis->conf.replicas) {
        ngx_idempotency_redis_acked(node);
    }
}


/* what says nothing may be dead, and a clock that was told long ago wrong */

static void
redis_tick(ngx_event_t *ev)
{
    ngx_uint_t                     i, n, info;
    ngx_idempotency_redis_t       *redis;
    ngx_idempotency_redis_conn_t  *conn;
    ngx_idempotency_redis_node_t  *node;

    redis = ev->data;
    n = 2 * redis->conf.connections;

    info = (++redis->ticks % REDIS_INFO == 0);
    node = NULL;

    while ((node = ngx_idempotency_redis_node_next(redis, node)) != NULL) {
        for (i = 0; i < n; i++) {
            conn = node->conns[i];

            /* behind what is durable, it would have to wait */

            if (conn && conn->state == ngx_idempotency_redis_ready
                && !conn->asked && !conn->expected)
            {
                ngx_idempotency_redis_mark_ask(conn, 0);
                ngx_idempotency_redis_conn_check(conn, info && conn->info);
                ngx_idempotency_redis_conn_write(conn);
            }
        }

        if (node->pubsub) {
            ngx_idempotency_redis_pubsub_tick(node->pubsub);
        }
    }

    if (redis->topology->tick) {
        redis->topology->tick(redis);
    }

    if (!ngx_exiting) {
        ngx_add_timer(ev, REDIS_TICK);
    }
}
