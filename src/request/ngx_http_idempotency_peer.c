
/*
 * An owner's request is sent to an upstream once.  nginx asks the next peer
 * when one fails, and takes PUT and DELETE for what may be repeated; a peer's
 * connection that was kept alive it tries again in any case.  An owner goes on
 * to the next one only if not a byte was sent.
 *
 * We stand between nginx and the balancer, as nginx's keepalive module does:
 * while a peer is asked, there is no other one; whether there is one
 * afterwards is decided by what was sent.
 */


#include "ngx_http_idempotency_conf.h"


typedef struct {
    ngx_http_upstream_srv_conf_t       *upstream;
    ngx_http_upstream_init_peer_pt      init;
} peer_upstream_t;


/* what the balancer has set, and how many peers it has left */

typedef struct {
    ngx_http_upstream_t                *upstream;

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
static ngx_int_t peer_once(ngx_http_request_t *r, ngx_http_upstream_t *u);
static ngx_int_t peer_get(ngx_peer_connection_t *pc, void *data);
static void peer_free(ngx_peer_connection_t *pc, void *data,
    ngx_uint_t state);
static void peer_notify(ngx_peer_connection_t *pc, void *data,
    ngx_uint_t type);
#if (NGX_SSL || NGX_COMPAT)
static ngx_int_t peer_set_session(ngx_peer_connection_t *pc, void *data);
static void peer_save_session(ngx_peer_connection_t *pc, void *data);
#endif


/* in front of the balancers of all upstreams */

ngx_int_t
ngx_http_idempotency_init_peers(ngx_conf_t *cf)
{
    ngx_uint_t                          i;
    peer_upstream_t                    *known;
    ngx_http_upstream_srv_conf_t      **us;
    ngx_http_upstream_main_conf_t      *umcf;
    ngx_http_idempotency_main_conf_t   *imcf;

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

    return ngx_http_idempotency_owns(ctx) ? peer_once(r, r->upstream) : NGX_OK;
}


static ngx_int_t
peer_once(ngx_http_request_t *r, ngx_http_upstream_t *u)
{
    peer_t  *p;

    p = ngx_palloc(r->pool, sizeof(peer_t));
    if (p == NULL) {
        return NGX_ERROR;
    }

    p->upstream = u;
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

    return NGX_OK;
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
 * To be called once an owner's upstream is there.  Addresses that a resolver
 * gives have no balancer that could be stood before; if they are still to
 * come, nginx is left with what it does by itself: a POST that was sent is
 * not repeated, unless it is told to, and of other methods one is tried.
 */

ngx_int_t
ngx_http_idempotency_send_once(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_http_upstream_t       *u;
    ngx_http_upstream_conf_t  *conf;

    u = r->upstream;

    if (u == NULL || u->cleanup == NULL || u->resolved == NULL
        || u->peer.get == peer_get)
    {
        return NGX_OK;
    }

    if (ngx_idempotency_fault(&ctx->claim.op, NGX_IDEMPOTENCY_FAULT_NO_POOL)) {
        return NGX_ERROR;
    }

    if (u->peer.get) {

        if (peer_once(r, u) != NGX_OK) {
            return NGX_ERROR;
        }

        /* it is asked already, and is still to be connected to */

        u->peer.tries = 1;

        return NGX_OK;
    }

    conf = ngx_palloc(r->pool, sizeof(ngx_http_upstream_conf_t));
    if (conf == NULL) {
        return NGX_ERROR;
    }

    *conf = *u->conf;
    conf->next_upstream &= ~NGX_HTTP_UPSTREAM_FT_NON_IDEMPOTENT;

    if ((r->method & (NGX_HTTP_POST|NGX_HTTP_LOCK|NGX_HTTP_PATCH)) == 0) {
        conf->next_upstream_tries = 1;
    }

    u->conf = conf;

    return NGX_OK;
}
