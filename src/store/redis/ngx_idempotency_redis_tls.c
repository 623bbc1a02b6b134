
/* TLS to a Redis: the handshake, and whether it is the one it should be. */


#include "ngx_idempotency_redis_conn.h"


#if (NGX_SSL)

#include <openssl/x509v3.h>


static void tls_done(ngx_connection_t *c);
static ngx_int_t tls_name(ngx_idempotency_redis_conn_t *conn,
    ngx_str_t *name, ngx_uint_t *address);
static char *tls_verify(ngx_idempotency_redis_conn_t *conn,
    ngx_str_t *what);
static ngx_uint_t tls_check_address(ngx_connection_t *c, ngx_str_t *name);


void
ngx_idempotency_redis_tls(ngx_idempotency_redis_conn_t *conn)
{
    char              *host;
    ngx_int_t          rc;
    ngx_str_t          name;
    ngx_uint_t         address;
    ngx_connection_t  *c;

    c = conn->c;
    host = NULL;

    if (ngx_ssl_create_connection(&conn->redis->conf.ssl_ctx, c,
                                  NGX_SSL_BUFFER|NGX_SSL_CLIENT)
        != NGX_OK)
    {
        goto failed;
    }

    /* as SNI knows no addresses */

    if (tls_name(conn, &name, &address) == NGX_OK && !address) {
        host = ngx_pnalloc(conn->pool, name.len + 1);

        if (host == NULL) {
            goto failed;
        }

        (void) ngx_cpystrn((u_char *) host, name.data, name.len + 1);

        if (SSL_set_tlsext_host_name(c->ssl->connection, host) == 0) {
            goto failed;
        }
    }

    rc = ngx_ssl_handshake(c);

    if (rc == NGX_AGAIN) {
        c->ssl->handler = tls_done;
        return;
    }

    tls_done(c);
    return;

failed:

    ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_CONNECT,
                                    "no TLS connection", NULL);
}


static void
tls_done(ngx_connection_t *c)
{
    char                          *why;
    ngx_str_t                      what;
    ngx_idempotency_redis_conn_t  *conn;

    conn = c->data;

    if (!c->ssl->handshaked) {
        ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_CONNECT,
                                        "TLS handshake failed", NULL);
        return;
    }

    if (conn->redis->conf.ssl_verify) {
        ngx_str_null(&what);
        why = tls_verify(conn, &what);

        if (why) {
            ngx_idempotency_redis_conn_lose(conn,
                                            NGX_IDEMPOTENCY_REDIS_DENIED, why,
                                            what.len ? &what : NULL);
            return;
        }
    }

    ngx_idempotency_redis_conn_greet(conn);
}


/* as whom it has to identify itself; NGX_DECLINED: a unix socket has no name */

static ngx_int_t
tls_name(ngx_idempotency_redis_conn_t *conn, ngx_str_t *name,
    ngx_uint_t *address)
{
    u_char  buf[16];

    *name = conn->redis->conf.ssl_name.len ? conn->redis->conf.ssl_name
                                           : conn->node->host;

    if (name->len == 0) {
        return NGX_DECLINED;
    }

    if (name->data[0] == '[' && name->data[name->len - 1] == ']') {
        name->data++;
        name->len -= 2;
    }

    *address = (ngx_inet_addr(name->data, name->len) != INADDR_NONE)
#if (NGX_HAVE_INET6)
               || ngx_inet6_addr(name->data, name->len, buf) == NGX_OK
#endif
               ;

    return NGX_OK;
}


/* NULL: it is the one */

static char *
tls_verify(ngx_idempotency_redis_conn_t *conn, ngx_str_t *what)
{
    long               rc;
    X509              *cert;
    ngx_str_t          name;
    ngx_uint_t         address, ok;
    ngx_connection_t  *c;

    c = conn->c;

    rc = SSL_get_verify_result(c->ssl->connection);

    if (rc != X509_V_OK) {
        what->data = (u_char *) X509_verify_cert_error_string(rc);
        what->len = ngx_strlen(what->data);

        return "its certificate was not accepted:";
    }

    cert = SSL_get_peer_certificate(c->ssl->connection);

    if (cert == NULL) {
        return "it has no certificate";
    }

    X509_free(cert);

    if (tls_name(conn, &name, &address) != NGX_OK) {
        return "\"ssl_name\" is not set, and a unix socket has no name";
    }

    ok = address ? tls_check_address(c, &name)
                 : (ngx_ssl_check_host(c, &name) == NGX_OK);

    if (!ok) {
        *what = name;
        return "its certificate is not one of";
    }

    return NULL;
}


static ngx_uint_t
tls_check_address(ngx_connection_t *c, ngx_str_t *name)
{
    int      rc;
    X509    *cert;
    u_char   text[NGX_SOCKADDR_STRLEN + 1];

    cert = SSL_get_peer_certificate(c->ssl->connection);

    if (cert == NULL) {
        return 0;
    }

    (void) ngx_cpystrn(text, name->data,
                       ngx_min(name->len, NGX_SOCKADDR_STRLEN) + 1);

    rc = X509_check_ip_asc(cert, (char *) text, 0);

    X509_free(cert);

    return rc == 1;
}


#else


void
ngx_idempotency_redis_tls(ngx_idempotency_redis_conn_t *conn)
{
    /* the configuration has been refused */
}

#endif
