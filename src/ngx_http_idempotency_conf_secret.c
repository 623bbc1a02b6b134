
/* idempotency_secret: a file of keys, read once, by the master. */


#include "ngx_http_idempotency.h"
#include <openssl/crypto.h>


/* more than all keys that there may be, with comments */

#define CONF_SECRET_SIZE  65536


static ngx_int_t conf_secret_open(ngx_conf_t *cf, ngx_file_t *file);
static ngx_int_t conf_secret_read(ngx_conf_t *cf, ngx_file_t *file,
    ngx_idempotency_secret_t *secret);


char *
ngx_http_idempotency_set_secret(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_int_t                          rc;
    ngx_str_t                         *value;
    ngx_file_t                         file;
    ngx_pool_cleanup_t                *cln;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

    if (imcf->secret.digest_key || imcf->secret.nseals) {
        return "is duplicate";
    }

    value = cf->args->elts;

    ngx_memzero(&file, sizeof(ngx_file_t));

    file.name = value[1];
    file.log = cf->log;

    cln = ngx_pool_cleanup_add(cf->pool, 0);

    if (cln == NULL
        || ngx_conf_full_name(cf->cycle, &file.name, 1) != NGX_OK
        || conf_secret_open(cf, &file) != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    cln->handler = ngx_idempotency_secret_wipe;
    cln->data = &imcf->secret;

    rc = conf_secret_read(cf, &file, &imcf->secret);

    (void) ngx_close_file(file.fd);

    return (rc == NGX_OK) ? NGX_CONF_OK : NGX_CONF_ERROR;
}


/* a pipe without a writer would be waited for */

static ngx_int_t
conf_secret_open(ngx_conf_t *cf, ngx_file_t *file)
{
    file->fd = ngx_open_file(file->name.data,
                             NGX_FILE_RDONLY|NGX_FILE_NONBLOCK,
                             NGX_FILE_OPEN, 0);

    if (file->fd == NGX_INVALID_FILE) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           ngx_open_file_n " \"%V\" failed", &file->name);
        return NGX_ERROR;
    }

    if (ngx_fd_info(file->fd, &file->info) == NGX_FILE_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           ngx_fd_info_n " \"%V\" failed", &file->name);

    } else if (!ngx_is_file(&file->info)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" is not a regular file", &file->name);

    } else if (ngx_file_size(&file->info) > CONF_SECRET_SIZE) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" is too large for a file of keys",
                           &file->name);

    } else {
        return NGX_OK;
    }

    (void) ngx_close_file(file->fd);

    return NGX_ERROR;
}


static ngx_int_t
conf_secret_read(ngx_conf_t *cf, ngx_file_t *file,
    ngx_idempotency_secret_t *secret)
{
    char        *why;
    char         mode[8];
    u_char      *data;
    size_t       size;
    ssize_t      n;
    ngx_uint_t   line;

    size = ngx_file_size(&file->info);

    data = ngx_alloc(size + 1, cf->log);
    if (data == NULL) {
        return NGX_ERROR;
    }

    n = ngx_read_file(file, data, size, 0);

    if (n == NGX_ERROR) {
        ngx_free(data);
        return NGX_ERROR;
    }

    why = ngx_idempotency_secret_parse(secret, data, n, &line);

    OPENSSL_cleanse(data, size);
    ngx_free(data);

    if (why) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0, "%s in %V:%ui", why,
                      &file->name, line);
        return NGX_ERROR;
    }

    if (secret->digest_key == NULL && secret->nseals == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "no keys in \"%V\"",
                           &file->name);
        return NGX_ERROR;
    }

    if (file->info.st_mode & S_IRWXO) {
        (void) snprintf(mode, sizeof(mode), "%04o",
                        (unsigned) (file->info.st_mode & 07777));

        ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                           "the keys in \"%V\" are open to others, with the "
                           "mode %s", &file->name, mode);
    }

    return NGX_OK;
}
