
/*
 * An owner's request is sent to an upstream once.  nginx asks the next peer
 * when one fails, and takes PUT and DELETE for what may be repeated; a peer's
 * connection that was kept alive it tries again in any case.  An owner goes on
 * to the next one only if not a byte was sent.
 *
 * We stand between nginx and the balancer, as nginx's keepalive module does:
 * while a peer is asked, there is no other one; whether there is one
 * afterwards is decided by what was sent.
 *
 * That upstream may be this nginx: a TLS front before an inner server.  The
 * inner request has the token that the outer one owns, and would wait for it
 * in vain.  It is known by its connection, which is the one that the owner's
 * request was sent through: so all workers share a table of the ends of such
 * connections, each for as long as the request is outstanding.  Only those to
 * a port at which this nginx listens are in it.  What passes so is sent once,
 * too, and has its own connection in the table.
 */


#include "ngx_http_idempotency_conf.h"


/* a place takes 128 bytes, pages are used as they are needed */

#define NGX_HTTP_IDEMPOTENCY_PEERS_ZONE_SIZE  (4 * 1024 * 1024)
#define NGX_HTTP_IDEMPOTENCY_PEERS_BUCKETS    1024


typedef struct {
    ngx_http_upstream_srv_conf_t       *upstream;
    ngx_http_upstream_init_peer_pt      init;
} peer_upstream_t;


/* address and port of both, IPv4 as IPv6 has it */

#define NGX_HTTP_IDEMPOTENCY_PEER_END  18

typedef struct {
    u_char                              connected
                                            [NGX_HTTP_IDEMPOTENCY_PEER_END];
    u_char                              accepted
                                            [NGX_HTTP_IDEMPOTENCY_PEER_END];
} peer_ends_t;


/* a connection on which a request with this claim is outstanding */

typedef struct peer_sent_s  peer_sent_t;

struct peer_sent_s {
    peer_sent_t                        *next;
    peer_ends_t                         ends;
    ngx_pid_t                           pid;
    /* it was seen at the other end */
    ngx_uint_t                          seen;

    /* a zone is told by where it has its counters */
    ngx_idempotency_counters_t         *zone;
    u_char                              token[NGX_IDEMPOTENCY_DIGEST_LEN];
    uint64_t                            fence;
};


typedef struct {
    peer_sent_t                        *buckets
                                          [NGX_HTTP_IDEMPOTENCY_PEERS_BUCKETS];
    /* when there was no place, and it was looked for one last */
    time_t                              swept;
} peers_sh_t;


/* what the balancer has set, and how many peers it has left */

typedef struct {
    ngx_http_upstream_t                *upstream;
    ngx_http_idempotency_ctx_t         *ctx;

    ngx_output_chain_filter_pt          output_filter;
    void                               *filter_ctx;

    /* something was sent, or is about to be; by which ends it is listed */
    ngx_uint_t                          outstanding;
    ngx_uint_t                          listed;
    peer_ends_t                         ends;

    ngx_uint_t                          tries;
    void                               *data;
    ngx_event_get_peer_pt               get;
    ngx_event_free_peer_pt              free;
    ngx_event_notify_peer_pt            notify;

#if (NGX_SSL || NGX_COMPAT)
    ngx_event_set_peer_session_pt       set_session;
    ngx_event_save_peer_session_pt      save_session;
#endif
} peer_t;


static int ngx_libc_cdecl peer_compare(const void *one, const void *two);
static ngx_int_t peer_init(ngx_http_request_t *r,
    ngx_http_upstream_srv_conf_t *us);
static peer_t *peer_once(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void peer_wrap(peer_t *p);
static ngx_int_t peer_output(void *data, ngx_chain_t *in);
static ngx_int_t peer_get(ngx_peer_connection_t *pc, void *data);
static void peer_free(ngx_peer_connection_t *pc, void *data,
    ngx_uint_t state);
static void peer_notify(ngx_peer_connection_t *pc, void *data,
    ngx_uint_t type);
#if (NGX_SSL || NGX_COMPAT)
static ngx_int_t peer_set_session(ngx_peer_connection_t *pc, void *data);
static void peer_save_session(ngx_peer_connection_t *pc, void *data);
#endif

static ngx_int_t peers_init_zone(ngx_shm_zone_t *shm_zone, void *data);
static ngx_uint_t peers_add(peer_t *p);
static void peers_remove(peer_ends_t *ends);
static void peers_sweep(void);
static peer_sent_t **peers_find(peer_ends_t *ends);
static ngx_uint_t peers_here(struct sockaddr *sockaddr);
static ngx_int_t peers_end(ngx_socket_t s, ngx_uint_t other, u_char *end);


static ngx_slab_pool_t  *peers_shpool;
static peers_sh_t       *peers_sh;


/* in front of the balancers of all upstreams */

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
                                     &peers_sh);
    if (shm_zone == NULL) {
        return NGX_ERROR;
    }

    shm_zone->init = peers_init_zone;

    umcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_upstream_module);
    imcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

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

        p = peer_once(r, ctx);
        if (p == NULL) {
            return NGX_ERROR;
        }

        peer_wrap(p);
    }

    return NGX_OK;
}


static peer_t *
peer_once(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
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

    p->output_filter = u->output.output_filter;
    p->filter_ctx = u->output.filter_ctx;

    u->output.output_filter = peer_output;
    u->output.filter_ctx = p;

    return p;
}


static void
peer_wrap(peer_t *p)
{
    ngx_http_upstream_t  *u;

    u = p->upstream;

    p->tries = u->peer.tries;

    p->data = u->peer.data;
    p->get = u->peer.get;
    p->free = u->peer.free;
    p->notify = u->peer.notify;

    u->peer.data = p;
    u->peer.get = peer_get;
    u->peer.free = peer_free;

    if (p->notify) {
        u->peer.notify = peer_notify;
    }

#if (NGX_SSL || NGX_COMPAT)

    p->set_session = u->peer.set_session;
    p->save_session = u->peer.save_session;

    if (p->set_session) {
        u->peer.set_session = peer_set_session;
    }

    if (p->save_session) {
        u->peer.save_session = peer_save_session;
    }

#endif
}


/*
 * What goes to a peer, which is connected to by now.  Addresses that a resolver
 * gave have a balancer since then: one of them is being asked.
 */

static ngx_int_t
peer_output(void *data, ngx_chain_t *in)
{
    peer_t *p = data;

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
    peer_t  *p = data;

    ngx_int_t  rc;

    rc = p->get(pc, p->data);

    if (rc == NGX_BUSY || rc == NGX_ERROR) {
        return rc;
    }

    /* so that whatever it answers is the answer */

    p->tries = pc->tries;
    pc->tries = 1;

    return rc;
}


static void
peer_free(ngx_peer_connection_t *pc, void *data, ngx_uint_t state)
{
    peer_t  *p = data;

    ngx_uint_t  sent;

    if (p->listed) {
        peers_remove(&p->ends);
    }

    p->outstanding = 0;
    p->listed = 0;

    sent = (p->upstream->request_sent
            && pc->connection && pc->connection->sent > 0);

    pc->tries = p->tries;

    p->free(pc, p->data, state);

    if (sent) {
        pc->tries = 0;
        pc->cached = 0;
    }
}


static void
peer_notify(ngx_peer_connection_t *pc, void *data, ngx_uint_t type)
{
    peer_t  *p = data;

    p->notify(pc, p->data, type);
}


#if (NGX_SSL || NGX_COMPAT)

static ngx_int_t
peer_set_session(ngx_peer_connection_t *pc, void *data)
{
    peer_t  *p = data;

    return p->set_session(pc, p->data);
}


static void
peer_save_session(ngx_peer_connection_t *pc, void *data)
{
    peer_t  *p = data;

    p->save_session(pc, p->data);
}

#endif


/*
 * To be called once the upstream of what is sent once is there.  Addresses that
 * a resolver gives have no balancer that could be stood before, and may be
 * still to come: we have our place before the first byte.
 */

ngx_int_t
ngx_http_idempotency_send_once(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_http_upstream_t  *u;

    u = r->upstream;

    if (u == NULL || u->cleanup == NULL || u->resolved == NULL
        || u->output.output_filter == peer_output)
    {
        return NGX_OK;
    }

    if (ngx_idempotency_fault(&ctx->claim.op, NGX_IDEMPOTENCY_FAULT_NO_POOL)
        || peer_once(r, ctx) == NULL)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}


/*
 * Whether a request that met a pending token came through the connection on
 * which its owner's is outstanding.  The ends are the socket's: what a client
 * claims of its address, by a header or the PROXY protocol, is nothing to go
 * by.  A request passes once: what else comes through there is another one.
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

    sent = *peers_find(&ends);

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

        shpool->data = ngx_slab_calloc(shpool, sizeof(peers_sh_t));
        if (shpool->data == NULL) {
            return NGX_ERROR;
        }

        shpool->log_nomem = 0;
    }

    peers_shpool = shpool;
    peers_sh = shpool->data;

    /* a mark that this zone is inherited */

    shm_zone->data = peers_sh;

    return NGX_OK;
}


/* without a place in the table its other end waits, as anybody would */

static ngx_uint_t
peers_add(peer_t *p)
{
    peer_sent_t              *sent, **place;
    ngx_socket_t              fd;
    ngx_peer_connection_t    *pc;
    ngx_idempotency_claim_t  *claim;

    pc = &p->upstream->peer;
    fd = pc->connection->fd;
    claim = &p->ctx->claim;

    if (!peers_here(pc->sockaddr)
        || peers_end(fd, 0, p->ends.connected) != NGX_OK
        || peers_end(fd, 1, p->ends.accepted) != NGX_OK)
    {
        return 0;
    }

    ngx_shmtx_lock(&peers_shpool->mutex);

    /* a worker that died may have left it there */

    place = peers_find(&p->ends);
    sent = *place;

    if (sent == NULL) {
        sent = ngx_slab_calloc_locked(peers_shpool, sizeof(peer_sent_t));

        if (sent == NULL && peers_sh->swept != ngx_time()) {
            peers_sh->swept = ngx_time();
            peers_sweep();

            place = peers_find(&p->ends);
            sent = ngx_slab_calloc_locked(peers_shpool, sizeof(peer_sent_t));
        }
    }

    if (sent) {
        sent->ends = p->ends;
        sent->pid = ngx_pid;
        sent->seen = 0;
        sent->zone = p->ctx->conf->store->counters;
        sent->fence = claim->fence ? claim->fence : claim->found.fence;
        ngx_memcpy(sent->token, claim->op.token, NGX_IDEMPOTENCY_DIGEST_LEN);

        *place = sent;
    }

    ngx_shmtx_unlock(&peers_shpool->mutex);

    return sent != NULL;
}


static void
peers_remove(peer_ends_t *ends)
{
    peer_sent_t  *sent, **place;

    ngx_shmtx_lock(&peers_shpool->mutex);

    place = peers_find(ends);
    sent = *place;

    if (sent) {
        *place = sent->next;
        ngx_slab_free_locked(peers_shpool, sent);
    }

    ngx_shmtx_unlock(&peers_shpool->mutex);
}


/* what workers have left that died */

static void
peers_sweep(void)
{
    ngx_uint_t    i;
    peer_sent_t  *sent, **place;

    for (i = 0; i < NGX_HTTP_IDEMPOTENCY_PEERS_BUCKETS; i++) {

        place = &peers_sh->buckets[i];

        while ((sent = *place) != NULL) {

            if (kill(sent->pid, 0) == -1 && ngx_errno == NGX_ESRCH) {
                *place = sent->next;
                ngx_slab_free_locked(peers_shpool, sent);

            } else {
                place = &sent->next;
            }
        }
    }
}


/* where it is, or would be */

static peer_sent_t **
peers_find(peer_ends_t *ends)
{
    ngx_uint_t     hash;
    peer_sent_t  **place;

    hash = ngx_crc32_short((u_char *) ends, sizeof(peer_ends_t));
    place = &peers_sh->buckets[hash % NGX_HTTP_IDEMPOTENCY_PEERS_BUCKETS];

    while (*place
           && ngx_memcmp(&(*place)->ends, ends, sizeof(peer_ends_t)) != 0)
    {
        place = &(*place)->next;
    }

    return place;
}


/* this nginx listens at such a port */

static ngx_uint_t
peers_here(struct sockaddr *sockaddr)
{
    in_port_t         port;
    ngx_uint_t        i;
    ngx_listening_t  *ls;

    port = ngx_inet_get_port(sockaddr);
    ls = ngx_cycle->listening.elts;

    for (i = 0; port && i < ngx_cycle->listening.nelts; i++) {
        if (ls[i].type == SOCK_STREAM
            && ngx_inet_get_port(ls[i].sockaddr) == port)
        {
            return 1;
        }
    }

    return 0;
}


/* of a socket, or the other one; those of unix sockets have no names */

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
