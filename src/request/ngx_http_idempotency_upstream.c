
/*
 * An owner's request at both ends: its client, which may leave, and its
 * upstream, to which it is sent once.  For requests that own nothing nginx's
 * own rules hold.
 *
 * GOES ON    When the client leaves, the upstream's connection stays, the
 *            response is captured to the end, and a retry gets a replay.
 * SENT ONCE  When a peer fails, nginx asks the next one.  It takes PUT and
 *            DELETE for repeatable, and tries a peer again whose kept
 *            connection was closed.  An owner goes to the next peer only if not
 *            a byte was sent.  As nginx's keepalive module does, we stand
 *            between nginx and the balancer: while a peer is asked, nginx sees
 *            no further one; afterwards, what was sent decides whether there is
 *            one.
 * NESTED     The upstream may be this nginx: a TLS front before an inner
 *            server.  The inner request has the token that the outer request
 *            owns, and would wait for it in vain.  It is known by its
 *            connection, through which the owner's request was sent.  So all
 *            workers share a table of the ends of such connections, for as long
 *            as the owner's request is outstanding, and only of those to ports
 *            at which this nginx listens.  A request that passes so is sent
 *            once, too, and its own connection is in the table.
 */


#include "ngx_http_idempotency.h"


/* so long a response that is not kept is read without its client */

#if (NGX_IDEMPOTENCY_FAULTS)
#define NGX_HTTP_IDEMPOTENCY_CLIENT_READ_ON  1000
#else
#define NGX_HTTP_IDEMPOTENCY_CLIENT_READ_ON  300000
#endif

/* At most one in so many of a worker's connections is for requests whose
   clients have left, and one in so many of these for one client. */

#define NGX_HTTP_IDEMPOTENCY_CLIENT_SHARE    8

/* a full list is logged once in so many milliseconds */

#define NGX_HTTP_IDEMPOTENCY_CLIENT_LOG      60000


/* A connection has one of the places behind that of its hash.  Pages of the
   table are touched when they are needed. */

#define NGX_HTTP_IDEMPOTENCY_PEERS         32768
#define NGX_HTTP_IDEMPOTENCY_PEERS_NEAR    16
#define NGX_HTTP_IDEMPOTENCY_PEERS_ZONE_SIZE                                 \
    (sizeof(peer_sent_t) * (NGX_HTTP_IDEMPOTENCY_PEERS                       \
                            + NGX_HTTP_IDEMPOTENCY_PEERS_NEAR)               \
     + 16 * ngx_pagesize)

typedef struct {
    ngx_http_upstream_srv_conf_t       *upstream;
    ngx_http_upstream_init_peer_pt      init;
} peer_upstream_t;

/* address and port of both ends, IPv4 as a mapped IPv6 address */

#define NGX_HTTP_IDEMPOTENCY_PEER_END  18

typedef struct {
    u_char                              connected
                                            [NGX_HTTP_IDEMPOTENCY_PEER_END];
    u_char                              accepted
                                            [NGX_HTTP_IDEMPOTENCY_PEER_END];
} peer_ends_t;

/* a connection on which an owner's request is outstanding */

typedef struct {
    peer_ends_t                         ends;
    /* 0: the place is free */
    ngx_pid_t                           pid;
    /* the request was seen at the other end */
    ngx_uint_t                          seen;

    /* the address of its counters tells which zone it is */
    ngx_idempotency_counters_t         *zone;
    u_char                              token[NGX_IDEMPOTENCY_DIGEST_LEN];
    uint64_t                            fence;
} peer_sent_t;

typedef struct {
    ngx_http_upstream_t                *upstream;
    ngx_http_idempotency_ctx_t         *ctx;

    ngx_output_chain_filter_pt          output_filter;
    void                               *filter_ctx;

    /* bytes were sent, or are about to be; the connection is in the table, by
       these ends */
    ngx_uint_t                          outstanding;
    ngx_uint_t                          listed;
    peer_ends_t                         ends;

    /* the balancer's own functions */
    ngx_event_get_peer_pt               get;
    ngx_event_free_peer_pt              free;
    /* how many peers the balancer has left */
    ngx_uint_t                          tries;
} peer_t;


static ngx_int_t client_content_handler(ngx_http_request_t *r);
static void client_keep_upstream(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void client_guard(ngx_http_request_t *sr);
static ngx_int_t client_subrequest_done(ngx_http_request_t *sr, void *data,
    ngx_int_t rc);
static ngx_uint_t client_hide(ngx_http_request_t *sr);
#ifdef NGX_HTTP_VERSION_30
static void client_quic_handler(ngx_event_t *rev);
#endif
static void client_write_handler(ngx_http_request_t *r);
static void client_read_handler(ngx_http_request_t *r);
static ngx_uint_t client_closed(ngx_http_request_t *r);
static void client_left(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void client_resume(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void client_read_on(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void client_read_on_handler(ngx_event_t *ev);
static void client_abort(ngx_http_request_t *r);
static ngx_int_t client_leave(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t client_count(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void client_abandon(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_uint_t one);
static void peer_warn(ngx_conf_t *cf, ngx_array_t *locations);
static int ngx_libc_cdecl peer_compare(const void *one, const void *two);
static ngx_int_t peer_init(ngx_http_request_t *r,
    ngx_http_upstream_srv_conf_t *us);
static peer_t *peer_create(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void peer_wrap(peer_t *p);
static void peer_wrap_output(peer_t *p);
static ngx_int_t peer_output(void *data, ngx_chain_t *in);
static ngx_int_t peer_get(ngx_peer_connection_t *pc, void *data);
static void peer_free(ngx_peer_connection_t *pc, void *data,
    ngx_uint_t state);
static peer_t *peer_of(ngx_peer_connection_t *pc);
static ngx_int_t peers_init_zone(ngx_shm_zone_t *shm_zone, void *data);
static ngx_uint_t peers_add(peer_t *p);
static peer_sent_t *peers_find(peer_ends_t *ends, ngx_uint_t take);
static ngx_uint_t peers_listened_at(struct sockaddr *sockaddr);
static ngx_int_t peers_end(ngx_socket_t s, ngx_uint_t other, u_char *end);
static ngx_int_t send_once(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);


static ngx_str_t  client_upstreams[] = {
    ngx_string("ngx_http_proxy_module"),
    ngx_string("ngx_http_fastcgi_module"),
    ngx_string("ngx_http_uwsgi_module"),
    ngx_string("ngx_http_scgi_module"),
    ngx_string("ngx_http_grpc_module"),
    ngx_null_string
};

/*
 * The requests of this worker whose clients have left, hashed by the value of
 * the quota; their number; and how many the limit has refused since the last
 * log line.
 */

static ngx_queue_t  client_left_queues[64];
static ngx_uint_t   client_left_n;
static ngx_uint_t   client_abandoned;
static ngx_msec_t   client_logged;


static ngx_slab_pool_t  *peers_shpool;
static peer_sent_t      *peers;


/* a directive that has no effect for owners: an operator might rely on it */

static void
peer_warn(ngx_conf_t *cf, ngx_array_t *locations)
{
    void                      ***location;
    ngx_str_t                   *name;
    ngx_uint_t                   i, n;
    ngx_module_t                *module;
    ngx_http_upstream_conf_t    *conf;

    location = locations->elts;

    for (i = 0; cf->cycle->modules[i]; i++) {
        module = cf->cycle->modules[i];

        for (name = client_upstreams; name->len; name++) {
            if (ngx_strcmp(module->name, name->data) == 0) {
                break;
            }
        }

        if (name->len == 0) {
            continue;
        }

        for (n = 0; n < locations->nelts; n++) {
            conf = location[n][module->ctx_index];

            if (conf->next_upstream & NGX_HTTP_UPSTREAM_FT_NON_IDEMPOTENT) {
                ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                                   "\"non_idempotent\" of *_next_upstream "
                                   "has no effect with \"idempotency\" on "
                                   "requests with a key");
            }
        }
    }
}


/*
 * Called for an owner and its subrequests before the content handler of any
 * location.  That handler creates the upstream, and no client can leave in
 * between.
 */

void
ngx_http_idempotency_carry(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    /* nginx's static files have no content handler, and change nothing;
       WebDAV, whose handler runs in the same phase, does */

    if (r->content_handler
        || (r->method & ngx_http_idempotency_dav_methods(r)))
    {
        ctx->client.handler_ran = 1;

        if (r == r->main && r->content_handler != client_content_handler) {
            ngx_http_idempotency_sent_on(r, ctx);
        }
    }

    if (r != r->main) {
        client_guard(r);
        return;
    }

    if (r->content_handler && r->content_handler != client_content_handler) {
        ctx->client.content_handler = r->content_handler;
        r->content_handler = client_content_handler;
    }
}


static ngx_int_t
client_content_handler(ngx_http_request_t *r)
{
    ngx_int_t                    rc;
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_http_idempotency_get_ctx(r);

    r->content_handler = ctx->client.content_handler;

    rc = ctx->client.content_handler(r);

    if ((ngx_http_idempotency_owns(ctx) || ngx_http_idempotency_nests(ctx))
        && send_once(r, ctx) != NGX_OK)
    {
        /* the request could be sent twice, so it ends here; the upstream's
           cleanup takes one of its counts */

        (*r->upstream->cleanup)(r);

        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (ngx_http_idempotency_carried(ctx)) {
        client_keep_upstream(r, ctx);
    }

#ifdef NGX_HTTP_VERSION_30

    if (ngx_http_idempotency_carried(ctx)
        && r->http_version == NGX_HTTP_VERSION_30
        && r->connection->read->handler != client_quic_handler)
    {
        ctx->client.read_handler = r->connection->read->handler;
        r->connection->read->handler = client_quic_handler;
    }

#endif

    return rc;
}


/*
 * As if *_ignore_client_abort were on, for this request alone.  The copy has
 * the setting for the upstream's later checks.  The handlers that the upstream
 * has set already are set here as it would set them.  Without memory nginx's
 * own rules hold: the client may end the request.
 */

static void
client_keep_upstream(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_event_t               *rev;
    ngx_http_upstream_t       *u;
    ngx_http_upstream_conf_t  *conf;

    u = r->upstream;

    if (u == NULL || u->conf == NULL || u->conf->ignore_client_abort) {
        return;
    }

    conf = ngx_idempotency_fault(&ctx->claim.op, NGX_IDEMPOTENCY_FAULT_NO_POOL)
           ? NULL : ngx_palloc(r->pool, sizeof(ngx_http_upstream_conf_t));

    if (conf == NULL) {
        return;
    }

    *conf = *u->conf;
    conf->ignore_client_abort = 1;

    u->conf = conf;

    if (u->cleanup == NULL || u->header_sent) {
        return;
    }

    r->read_event_handler = client_read_handler;
    r->write_event_handler = ngx_http_request_empty_handler;

    rev = r->connection->read;

    if (r->http_version < NGX_HTTP_VERSION_20 && rev->ready) {

        /* the client may have closed its side right after the request */

        ngx_post_event(rev, &ngx_posted_events);
    }
}


/* the subrequest's maker may have set a handler: ours calls it */

static void
client_guard(ngx_http_request_t *sr)
{
    ngx_http_post_subrequest_t  *ps;

    if (sr->post_subrequest
        && sr->post_subrequest->handler == client_subrequest_done)
    {
        return;
    }

    ps = ngx_palloc(sr->pool, sizeof(ngx_http_post_subrequest_t));
    if (ps == NULL) {
        return;
    }

    ps->handler = client_subrequest_done;
    ps->data = sr->post_subrequest;

    sr->post_subrequest = ps;
}


/*
 * A subrequest that ends after the client has left, as a mirror's, would end
 * the main request, too, and njs would never go on.  So the connection's error
 * is hidden from both until the next output.
 */

static ngx_int_t
client_subrequest_done(ngx_http_request_t *sr, void *data, ngx_int_t rc)
{
    ngx_http_post_subrequest_t  *ps = data;

    ngx_uint_t  hidden;

    hidden = client_hide(sr);

    if (ps) {
        rc = ps->handler(sr, ps->data, rc);

        /* it may have sent something to the client */

        hidden |= client_hide(sr);
    }

    if (!hidden) {
        return rc;
    }

    return (rc == NGX_ERROR
            || rc == NGX_HTTP_REQUEST_TIME_OUT
            || rc == NGX_HTTP_CLIENT_CLOSED_REQUEST) ? NGX_OK : rc;
}


static ngx_uint_t
client_hide(ngx_http_request_t *sr)
{
    ngx_connection_t            *c;
    ngx_http_idempotency_ctx_t  *ctx;

    c = sr->connection;
    ctx = ngx_http_idempotency_get_ctx(sr);

    if (!ngx_http_idempotency_carried(ctx)
        || (!c->error && !ctx->client.gone)
        || client_leave(sr->main, ctx) != NGX_OK)
    {
        return 0;
    }

    c->error = 0;

    return 1;
}


#ifdef NGX_HTTP_VERSION_30

/* a QUIC connection that ends closes its streams, and so their requests */

static void
client_quic_handler(ngx_event_t *rev)
{
    ngx_connection_t            *c;
    ngx_http_request_t          *r;
    ngx_http_idempotency_ctx_t  *ctx;

    c = rev->data;
    r = ((ngx_http_request_t *) c->data)->main;
    ctx = ngx_http_idempotency_get_ctx(r);

    if (!c->close || !ngx_http_idempotency_carried(ctx)) {
        ctx->client.read_handler(rev);
        return;
    }

    ngx_http_set_log_request(c->log, r);

    c->close = 0;

    client_left(r, ctx);

    ngx_http_run_posted_requests(c);
}

#endif


/* Whether a filter failed because the client has gone, while the owner's
   response is still being read.  Any other failure ends the request. */

ngx_uint_t
ngx_http_idempotency_client_gone(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_int_t rc)
{
    if (rc != NGX_ERROR || !ngx_http_idempotency_carried(ctx)
        || !r->connection->error)
    {
        return 0;
    }

    return client_leave(r, ctx) == NGX_OK;
}


/*
 * A client that reads nothing for send_timeout would end the upstream's
 * response, too.  The upstream sets its handler after the header is sent, so
 * ours is set before it with the first bytes of the body.
 */

void
ngx_http_idempotency_watch_client(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    if (r->upstream == NULL
        || r->upstream->cleanup == NULL
        || r->write_event_handler == client_write_handler)
    {
        return;
    }

    ctx->client.write_event_handler = r->write_event_handler;
    r->write_event_handler = client_write_handler;
}


static void
client_write_handler(ngx_http_request_t *r)
{
    ngx_event_t                 *wev;
    ngx_connection_t            *c;
    ngx_http_idempotency_ctx_t  *ctx;

    c = r->connection;
    wev = c->write;
    ctx = ngx_http_idempotency_get_ctx(r);

    if (wev->timedout && ngx_http_idempotency_carried(ctx)) {
        wev->timedout = 0;

        if (!ctx->client.gone) {
            c->timedout = 1;

            client_left(r, ctx);
            return;
        }
    }

    ctx->client.write_event_handler(r);
}


/*
 * The outcome of a response that can't be kept is recorded before its end.
 * The rest matters to the client alone, and is read for a limited time without
 * it.
 */

void
ngx_http_idempotency_not_kept(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_event_t  *rev;

    client_read_on(r, ctx);

    if (ctx->client.gone
        || (r->read_event_handler != ngx_http_block_reading
            && r->read_event_handler != client_read_handler))
    {
        return;
    }

    r->read_event_handler = client_read_handler;

    rev = r->connection->read;

    if (rev->ready) {
        ngx_post_event(rev, &ngx_posted_events);

    } else {
        (void) ngx_handle_read_event(rev, 0);
    }
}


/*
 * The client of an owner has closed its side, or is gone.  An HTTP/1 client
 * may still read: so it is only counted among the clients that have left, and
 * nginx notices its end with the next output.  A stream that was reset would
 * end the request if the upstream's answer leads to an error_page, so the
 * reset is hidden until then.  A response that can't be kept goes on without
 * its client at once.
 */

static void
client_read_handler(ngx_http_request_t *r)
{
    ngx_http_idempotency_ctx_t  *ctx;

    if (!client_closed(r)) {

        if ((ngx_event_flags & NGX_USE_LEVEL_EVENT)
            && r->connection->read->active)
        {
            (void) ngx_del_event(r->connection->read, NGX_READ_EVENT, 0);
        }

        return;
    }

    r->read_event_handler = ngx_http_block_reading;

    ctx = ngx_http_idempotency_get_ctx(r);

    if (!ngx_http_idempotency_carried(ctx)) {
        return;
    }

    if (!ngx_http_idempotency_owns(ctx)) {
        client_left(r, ctx);
        return;
    }

    if (r->http_version >= NGX_HTTP_VERSION_20) {

        if (client_leave(r, ctx) != NGX_OK) {
            client_abort(r);
            return;
        }

        r->connection->error = 0;

        client_resume(r, ctx);

    } else if (client_count(r, ctx) != NGX_OK) {
        client_abort(r);
    }
}


/* as ngx_http_test_reading() does */

static ngx_uint_t
client_closed(ngx_http_request_t *r)
{
    int                n;
    char               buf[1];
    ngx_connection_t  *c;

    c = r->connection;

    if (c->error || c->read->error) {
        return 1;
    }

    if (r->http_version >= NGX_HTTP_VERSION_20) {
        return 0;
    }

#if (NGX_HAVE_KQUEUE)

    if (ngx_event_flags & NGX_USE_KQUEUE_EVENT) {
        return c->read->pending_eof;
    }

#endif

#if (NGX_HAVE_EPOLLRDHUP)

    if ((ngx_event_flags & NGX_USE_EPOLL_EVENT) && ngx_use_epoll_rdhup) {
        return c->read->pending_eof;
    }

#endif

    n = recv(c->fd, buf, 1, MSG_PEEK);

    return n == 0 || (n == -1 && ngx_socket_errno != NGX_EAGAIN);
}


/* an event told that the client has left */

static void
client_left(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    r->connection->error = 1;

    if (client_leave(r, ctx) != NGX_OK) {
        client_abort(r);
        return;
    }

    client_resume(r, ctx);
}


/* the upstream may have waited for a client that reads nothing */

static void
client_resume(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    if (r->write_event_handler == client_write_handler) {
        ctx->client.write_event_handler(r);
    }
}


/* one count is for the upstream's cleanup, as when nginx closes a
   connection */

static void
client_abort(ngx_http_request_t *r)
{
    r->connection->error = 1;

    r->count++;

    ngx_http_finalize_request(r, NGX_HTTP_CLIENT_CLOSED_REQUEST);
}


/*
 * From now on the upstream is read at its own pace.  Output that was passed on
 * will never be taken, and filters below us may still refer to it: so it stays
 * where it is, and the upstream gets other memory.
 */

static ngx_int_t
client_leave(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    size_t                size;
    u_char               *p;
    ngx_event_t          *wev;
    ngx_http_upstream_t  *u;

    if (ctx->client.gone) {
        return NGX_OK;
    }

    if (client_count(r, ctx) != NGX_OK) {
        return NGX_DECLINED;
    }

    ngx_log_error(NGX_LOG_INFO, r->connection->log, 0,
                  "idempotency: the client %s, its request goes on",
                  r->connection->timedout ? "timed out" : "disconnected");

    ctx->client.gone = 1;

    wev = r->connection->write;
    wev->ready = 1;

    if (r->http_version >= NGX_HTTP_VERSION_20) {

        /* a stream has no event of its own that could be deleted */

        wev->active = 0;
    }

    client_read_on(r, ctx);

    u = r->upstream;

    if (u == NULL || u->cleanup == NULL || !u->header_sent) {
        return NGX_OK;
    }

    if (u->buffering) {
        u->pipe->busy = NULL;
        u->pipe->allocated = 0;

        return NGX_OK;
    }

    size = u->buffer.end - u->buffer.start;

    p = ngx_palloc(r->pool, size);
    if (p == NULL) {
        return NGX_ERROR;
    }

    u->busy_bufs = NULL;

    u->buffer.start = p;
    u->buffer.pos = p;
    u->buffer.last = p;
    u->buffer.end = p + size;

    return NGX_OK;
}


/*
 * A client that sends a request and leaves occupies a connection of nginx and
 * one of the upstream until the response is there.  So the number of such
 * requests is limited, in all and for one client.  nginx ends those beyond the
 * limit, and their upstreams' connections.
 */

static ngx_int_t
client_count(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_uint_t                   most, most_of_one, n;
    ngx_queue_t                 *q, *of_one;
    ngx_http_idempotency_ctx_t  *other;

    if (ctx->client.left) {
        return NGX_OK;
    }

    if (ctx->client.abandoned) {
        return NGX_DECLINED;
    }

    most = ngx_max(ngx_cycle->connection_n
                   / NGX_HTTP_IDEMPOTENCY_CLIENT_SHARE, 1);
    most_of_one = ngx_max(most / NGX_HTTP_IDEMPOTENCY_CLIENT_SHARE, 1);

    ngx_http_idempotency_quota_value(r, ctx);

    of_one = &client_left_queues[ctx->claim.value[0]
                                 % (sizeof(client_left_queues)
                                    / sizeof(ngx_queue_t))];
    n = 0;

    if (of_one->next == NULL) {
        ngx_queue_init(of_one);
    }

    for (q = ngx_queue_head(of_one);
         q != ngx_queue_sentinel(of_one);
         q = ngx_queue_next(q))
    {
        other = ngx_queue_data(q, ngx_http_idempotency_ctx_t, client.queue);

        if (ngx_memcmp(other->claim.value, ctx->claim.value,
                       NGX_IDEMPOTENCY_DIGEST_LEN)
            == 0)
        {
            n++;
        }
    }

    if (client_left_n >= most || n >= most_of_one) {
        client_abandon(r, ctx, client_left_n < most);
        return NGX_DECLINED;
    }

    ngx_queue_insert_tail(of_one, &ctx->client.queue);
    client_left_n++;
    ctx->client.left = 1;

    return NGX_OK;
}


static void
client_abandon(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_uint_t one)
{
    ctx->client.abandoned = 1;

    ngx_idempotency_stats_add(ctx->conf->store->counters->abandoned, 1);

    client_abandoned++;

    if (client_logged
        && ngx_current_msec - client_logged < NGX_HTTP_IDEMPOTENCY_CLIENT_LOG)
    {
        return;
    }

    ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                  "idempotency: requests given up as their clients left, "
                  "since the last such line: %ui, carried on by this worker: "
                  "%ui%s, zone: \"%V\"",
                  client_abandoned, client_left_n,
                  one ? ", too many for one client" : "",
                  &ctx->conf->store->name);

    client_abandoned = 0;
    client_logged = ngx_current_msec;
}


/* the request ends */

void
ngx_http_idempotency_client_end(ngx_http_idempotency_ctx_t *ctx)
{
    if (ctx->client.timer.timer_set) {
        ngx_del_timer(&ctx->client.timer);
    }

    if (ctx->client.left) {
        ctx->client.left = 0;
        ngx_queue_remove(&ctx->client.queue);
        client_left_n--;
    }
}


/* a response that is not kept is read without its client for a limited time */

static void
client_read_on(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    if (!ctx->client.gone || ngx_http_idempotency_owns(ctx)) {
        return;
    }

    ctx->client.timer.handler = client_read_on_handler;
    ctx->client.timer.data = ctx;
    ctx->client.timer.log = r->connection->log;

    ngx_add_timer(&ctx->client.timer, NGX_HTTP_IDEMPOTENCY_CLIENT_READ_ON);
}


static void
client_read_on_handler(ngx_event_t *ev)
{
    ngx_connection_t            *c;
    ngx_http_request_t          *r;
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ev->data;
    r = ctx->request;
    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    ngx_log_error(NGX_LOG_INFO, c->log, 0,
                  "idempotency: stopped reading a response that is not kept, "
                  "its client has disconnected");

    client_abort(r);

    ngx_http_run_posted_requests(c);
}


/* puts our peer.init in front of each upstream's own */

ngx_int_t
ngx_http_idempotency_init_peers(ngx_conf_t *cf)
{
    ngx_uint_t                          i;
    ngx_shm_zone_t                     *shm_zone;
    peer_upstream_t                    *known;
    ngx_http_upstream_srv_conf_t      **us;
    ngx_http_upstream_main_conf_t      *umcf;
    ngx_http_idempotency_main_conf_t   *imcf;

    static ngx_str_t  name = ngx_string("ngx_http_idempotency_peers");

    shm_zone = ngx_shared_memory_add(cf, &name,
                                     NGX_HTTP_IDEMPOTENCY_PEERS_ZONE_SIZE,
                                     &peers);
    if (shm_zone == NULL) {
        return NGX_ERROR;
    }

    shm_zone->init = peers_init_zone;

    umcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_upstream_module);
    imcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

    peer_warn(cf, &imcf->locations);

    if (ngx_array_init(&imcf->upstreams, cf->pool, umcf->upstreams.nelts + 1,
                       sizeof(peer_upstream_t))
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    us = umcf->upstreams.elts;

    for (i = 0; i < umcf->upstreams.nelts; i++) {

        if (us[i]->peer.init == NULL) {
            continue;
        }

        known = ngx_array_push(&imcf->upstreams);

        known->upstream = us[i];
        known->init = us[i]->peer.init;

        us[i]->peer.init = peer_init;
    }

    ngx_qsort(imcf->upstreams.elts, imcf->upstreams.nelts,
              sizeof(peer_upstream_t), peer_compare);

    return NGX_OK;
}


static int ngx_libc_cdecl
peer_compare(const void *one, const void *two)
{
    const peer_upstream_t  *a = one;
    const peer_upstream_t  *b = two;

    if (a->upstream == b->upstream) {
        return 0;
    }

    return (a->upstream < b->upstream) ? -1 : 1;
}


static ngx_int_t
peer_init(ngx_http_request_t *r, ngx_http_upstream_srv_conf_t *us)
{
    peer_t                            *p;
    ngx_int_t                          rc;
    peer_upstream_t                    key, *known;
    ngx_http_idempotency_ctx_t        *ctx;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    key.upstream = us;

    known = bsearch(&key, imcf->upstreams.elts, imcf->upstreams.nelts,
                    sizeof(peer_upstream_t), peer_compare);

    if (known == NULL) {
        return NGX_ERROR;
    }

    rc = known->init(r, us);

    if (rc != NGX_OK || r != r->main) {
        return rc;
    }

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ngx_http_idempotency_owns(ctx) || ngx_http_idempotency_nests(ctx)) {

        p = peer_create(r, ctx);
        if (p == NULL) {
            return NGX_ERROR;
        }

        peer_wrap(p);
    }

    return NGX_OK;
}


static peer_t *
peer_create(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    peer_t               *p;
    ngx_http_upstream_t  *u;

    p = ngx_pcalloc(r->pool, sizeof(peer_t));
    if (p == NULL) {
        return NULL;
    }

    u = r->upstream;

    p->upstream = u;
    p->ctx = ctx;

    peer_wrap_output(p);

    return p;
}


static void
peer_wrap(peer_t *p)
{
    ngx_http_upstream_t  *u;

    u = p->upstream;

    p->get = u->peer.get;
    p->free = u->peer.free;
    p->tries = u->peer.tries;

    u->peer.get = peer_get;
    u->peer.free = peer_free;
}


static void
peer_wrap_output(peer_t *p)
{
    ngx_http_upstream_t  *u;

    u = p->upstream;

    if (u->output.filter_ctx == p) {
        return;
    }

    p->output_filter = u->output.output_filter;
    p->filter_ctx = u->output.filter_ctx;

    u->output.output_filter = peer_output;
    u->output.filter_ctx = p;
}


/*
 * Output to a peer, whose connection is there by now.  If a resolver gave the
 * addresses, the upstream has a balancer only since then, which is wrapped
 * here.
 */

static ngx_int_t
peer_output(void *data, ngx_chain_t *in)
{
    peer_t  *p = data;

    if (p->upstream->peer.get != peer_get) {
        peer_wrap(p);
        p->upstream->peer.tries = 1;
    }

    if (!p->outstanding) {
        p->outstanding = 1;
        p->listed = peers_add(p);
    }

    return p->output_filter(p->filter_ctx, in);
}


static ngx_int_t
peer_get(ngx_peer_connection_t *pc, void *data)
{
    peer_t     *p;
    ngx_int_t   rc;

    p = peer_of(pc);

    rc = p->get(pc, data);

    /* Lua's balancer may have made the request anew, and its output with it */

    peer_wrap_output(p);

    if (rc == NGX_BUSY || rc == NGX_ERROR) {
        return rc;
    }

    /* nginx must not ask the next peer, whatever this one answers */

    p->tries = pc->tries;
    pc->tries = 1;

    return rc;
}


static void
peer_free(ngx_peer_connection_t *pc, void *data, ngx_uint_t state)
{
    peer_t       *p;
    ngx_uint_t    sent;
    peer_sent_t  *other;

    p = peer_of(pc);

    if (p->listed) {
        ngx_shmtx_lock(&peers_shpool->mutex);

        other = peers_find(&p->ends, 0);

        if (other) {
            other->pid = 0;
        }

        ngx_shmtx_unlock(&peers_shpool->mutex);
    }

    p->outstanding = 0;
    p->listed = 0;

    sent = (p->upstream->request_sent
            && pc->connection && pc->connection->sent > 0);

    pc->tries = p->tries;

    p->free(pc, data, state);

    if (sent) {
        pc->tries = 0;
        pc->cached = 0;
    }
}


/* the balancer keeps its data, so ours is found by the upstream's output */

static peer_t *
peer_of(ngx_peer_connection_t *pc)
{
    ngx_http_upstream_t  *u;

    u = ngx_queue_data(pc, ngx_http_upstream_t, peer);

    return u->output.filter_ctx;
}


/*
 * Called when the upstream of an owner's or nested request was created.
 * Addresses that a resolver gives have no balancer yet that could be wrapped,
 * and may still be unknown: peer_output() wraps it before the first byte.
 */

static ngx_int_t
send_once(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_http_upstream_t  *u;

    u = r->upstream;

    if (u == NULL || u->cleanup == NULL || u->resolved == NULL
        || u->output.output_filter == peer_output)
    {
        return NGX_OK;
    }

    if (ngx_idempotency_fault(&ctx->claim.op, NGX_IDEMPOTENCY_FAULT_NO_POOL)
        || peer_create(r, ctx) == NULL)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}


/*
 * Whether a request that met a pending token came through the connection on
 * which its owner's request is outstanding.  The ends are the socket's, as
 * clients may write any address into a header or the PROXY protocol.  One
 * request passes: the next one through that connection is a duplicate.
 */

ngx_uint_t
ngx_http_idempotency_nested(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_uint_t                nested;
    peer_ends_t               ends;
    peer_sent_t              *sent;
    ngx_idempotency_claim_t  *claim;

    claim = &ctx->claim;

    if (claim->found.outcome != NGX_IDEMPOTENCY_PENDING
        || claim->found.owner == 0 || ctx->wait.waited
        || peers_end(r->connection->fd, 1, ends.connected) != NGX_OK
        || peers_end(r->connection->fd, 0, ends.accepted) != NGX_OK)
    {
        return 0;
    }

    ngx_shmtx_lock(&peers_shpool->mutex);

    sent = peers_find(&ends, 0);

    nested = (sent && !sent->seen
              && sent->zone == ctx->conf->store->counters
              && sent->fence == claim->found.fence
              && ngx_memcmp(sent->token, claim->op.token,
                            NGX_IDEMPOTENCY_DIGEST_LEN)
                 == 0);

    if (nested) {
        sent->seen = 1;
    }

    ngx_shmtx_unlock(&peers_shpool->mutex);

    return nested;
}


static ngx_int_t
peers_init_zone(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_slab_pool_t  *shpool;

    shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    if (data == NULL && !shm_zone->shm.exists) {

        /* fresh pages are zero: they are not touched before they are needed */

        shpool->data = ngx_slab_alloc(shpool, sizeof(peer_sent_t)
                                        * (NGX_HTTP_IDEMPOTENCY_PEERS
                                           + NGX_HTTP_IDEMPOTENCY_PEERS_NEAR));
        if (shpool->data == NULL) {
            return NGX_ERROR;
        }
    }

    peers_shpool = shpool;
    peers = shpool->data;

    /* tells the next cycle that it inherits this zone */

    shm_zone->data = peers;

    return NGX_OK;
}


/* without a place the request at the other end waits as a duplicate does */

static ngx_uint_t
peers_add(peer_t *p)
{
    peer_sent_t              *sent;
    ngx_socket_t              fd;
    ngx_peer_connection_t    *pc;
    ngx_idempotency_claim_t  *claim;

    pc = &p->upstream->peer;
    fd = pc->connection->fd;
    claim = &p->ctx->claim;

    if (!peers_listened_at(pc->sockaddr)
        || peers_end(fd, 0, p->ends.connected) != NGX_OK
        || peers_end(fd, 1, p->ends.accepted) != NGX_OK)
    {
        return 0;
    }

    ngx_shmtx_lock(&peers_shpool->mutex);

    sent = peers_find(&p->ends, 1);

    if (sent) {
        sent->ends = p->ends;
        sent->pid = ngx_pid;
        sent->seen = 0;
        sent->zone = p->ctx->conf->store->counters;
        sent->fence = claim->fence ? claim->fence : claim->found.fence;
        ngx_memcpy(sent->token, claim->op.token, NGX_IDEMPOTENCY_DIGEST_LEN);
    }

    ngx_shmtx_unlock(&peers_shpool->mutex);

    return sent != NULL;
}


/* The place of a connection.  If it has none, and with `take`: a free place,
   or that of a worker that has died. */

static peer_sent_t *
peers_find(peer_ends_t *ends, ngx_uint_t take)
{
    ngx_uint_t    i;
    peer_sent_t  *sent, *other;

    sent = &peers[ngx_crc32_short((u_char *) ends, sizeof(peer_ends_t))
                  % NGX_HTTP_IDEMPOTENCY_PEERS];
    other = NULL;

    for (i = 0; i < NGX_HTTP_IDEMPOTENCY_PEERS_NEAR; i++) {

        if (sent[i].pid == 0) {
            other = &sent[i];

        } else if (ngx_memcmp(&sent[i].ends, ends, sizeof(peer_ends_t)) == 0) {
            return &sent[i];
        }
    }

    for (i = 0; take && !other && i < NGX_HTTP_IDEMPOTENCY_PEERS_NEAR; i++) {
        if (kill(sent[i].pid, 0) == -1 && ngx_errno == NGX_ESRCH) {
            other = &sent[i];
        }
    }

    return take ? other : NULL;
}


/* whether this nginx listens at that port; a worker that quits has closed its
   listeners, and no longer knows */

static ngx_uint_t
peers_listened_at(struct sockaddr *sockaddr)
{
    in_port_t         port;
    ngx_uint_t        i;
    ngx_listening_t  *ls;

    port = ngx_inet_get_port(sockaddr);
    ls = ngx_cycle->listening.elts;

    if (ngx_cycle->listening.nelts == 0) {
        return port != 0;
    }

    for (i = 0; port && i < ngx_cycle->listening.nelts; i++) {
        if (ls[i].type == SOCK_STREAM
            && ngx_inet_get_port(ls[i].sockaddr) == port)
        {
            return 1;
        }
    }

    return 0;
}


/* the socket's own end, or the other one; unix sockets have no names */

static ngx_int_t
peers_end(ngx_socket_t s, ngx_uint_t other, u_char *end)
{
    socklen_t       len;
    in_port_t       port;
    ngx_sockaddr_t  sa;

    len = sizeof(ngx_sockaddr_t);

    if ((other ? getpeername(s, &sa.sockaddr, &len)
               : getsockname(s, &sa.sockaddr, &len))
        == -1)
    {
        return NGX_ERROR;
    }

    ngx_memzero(end, NGX_HTTP_IDEMPOTENCY_PEER_END);

    switch (sa.sockaddr.sa_family) {

#if (NGX_HAVE_INET6)
    case AF_INET6:
        ngx_memcpy(end, &sa.sockaddr_in6.sin6_addr, 16);
        break;
#endif

    case AF_INET:
        end[10] = 0xff;
        end[11] = 0xff;
        ngx_memcpy(end + 12, &sa.sockaddr_in.sin_addr, 4);
        break;

    default:
        return NGX_DECLINED;
    }

    port = ngx_inet_get_port(&sa.sockaddr);
    ngx_memcpy(end + 16, &port, sizeof(in_port_t));

    return NGX_OK;
}
