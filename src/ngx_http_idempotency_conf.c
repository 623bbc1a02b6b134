
/*
 * What the values of directives are parsed by, where nginx has no setter for
 * them.
 */


#include "ngx_http_idempotency.h"


/*
 * Two moments are told apart by half of what a clock counts: a day less than
 * that, as a window runs from the outcome on and is compared with the claim
 */

#define NGX_HTTP_IDEMPOTENCY_TIME_MAX                                        \
    (NGX_MAX_INT_T_VALUE - 24 * 3600 * 1000)


/* in the order of ngx_http_idempotency_status_e */

ngx_http_idempotency_refusal_t
    ngx_http_idempotency_refusals[NGX_HTTP_IDEMPOTENCY_REFUSALS] = {
    { ngx_null_string, 0 },
    { ngx_string("conflict"), NGX_HTTP_CONFLICT },
    { ngx_string("in_progress"), NGX_HTTP_CONFLICT },
    { ngx_string("in_doubt"), NGX_HTTP_CONFLICT },
    { ngx_string("not_kept"), NGX_HTTP_CONFLICT },
    { ngx_string("similar"), NGX_HTTP_CONFLICT },
    { ngx_string("expired"), NGX_HTTP_CONFLICT },
    { ngx_string("missing"), NGX_HTTP_BAD_REQUEST },
    { ngx_string("malformed"), NGX_HTTP_BAD_REQUEST },
    { ngx_string("limited"), NGX_HTTP_TOO_MANY_REQUESTS },
    { ngx_string("unavailable"), NGX_HTTP_SERVICE_UNAVAILABLE }
};


/* made by whichever directive names it first */

ngx_idempotency_store_t *
ngx_http_idempotency_store(ngx_conf_t *cf, ngx_str_t *name)
{
    ngx_uint_t                         i;
    ngx_idempotency_store_t           *store, **stores;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

    stores = imcf->stores.elts;

    for (i = 0; i < imcf->stores.nelts; i++) {
        if (stores[i]->name.len == name->len
            && ngx_strncmp(stores[i]->name.data, name->data, name->len) == 0)
        {
            return stores[i];
        }
    }

    stores = ngx_array_push(&imcf->stores);
    store = ngx_pcalloc(cf->pool, sizeof(ngx_idempotency_store_t));

    if (stores == NULL || store == NULL) {
        return NULL;
    }

    store->name = *name;
    store->secret = &imcf->secret;
    *stores = store;

    return store;
}


char *
ngx_http_idempotency_set(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idempotency_loc_conf_t  *ilcf = conf;

    ngx_str_t                         *value, name;
    ngx_http_idempotency_use_t        *use;
    ngx_http_idempotency_main_conf_t  *imcf;

    if (ilcf->store != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_strcmp(value[1].data, "off") == 0) {
        ilcf->store = NULL;
        return NGX_CONF_OK;
    }

    if (ngx_strncmp(value[1].data, "zone=", 5) != 0 || value[1].len == 5) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"%V\"", &value[1]);
        return NGX_CONF_ERROR;
    }

    name.len = value[1].len - 5;
    name.data = value[1].data + 5;

    ilcf->store = ngx_http_idempotency_store(cf, &name);
    if (ilcf->store == NULL) {
        return NGX_CONF_ERROR;
    }

    /* it may be defined further down: that is asked for when all is read */

    imcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

    use = ngx_array_push(&imcf->uses);
    if (use == NULL) {
        return NGX_CONF_ERROR;
    }

    use->store = ilcf->store;
    use->file = cf->conf_file->file.name;
    use->line = cf->conf_file->line;

    return NGX_CONF_OK;
}


ngx_int_t
ngx_http_idempotency_check_zones(ngx_conf_t *cf)
{
    ngx_uint_t                         i;
    ngx_http_idempotency_use_t        *use;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

    use = imcf->uses.elts;

    for (i = 0; i < imcf->uses.nelts; i++) {

        if (use[i].store->engine == NULL) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "\"idempotency\" zone \"%V\" is unknown in %V:%ui",
                          &use[i].store->name, &use[i].file, use[i].line);

            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


ngx_module_t *
ngx_http_idempotency_find_module(ngx_conf_t *cf, char *name)
{
    ngx_uint_t  i;

    for (i = 0; cf->cycle->modules[i]; i++) {
        if (ngx_strcmp(cf->cycle->modules[i]->name, name) == 0) {
            return cf->cycle->modules[i];
        }
    }

    return NULL;
}


char *
ngx_http_idempotency_set_methods(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_idempotency_loc_conf_t  *ilcf = conf;

    if (ilcf->methods) {
        return "is duplicate";
    }

    return ngx_conf_set_bitmask_slot(cf, cmd, conf);
}


char *
ngx_http_idempotency_set_normalize(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_idempotency_loc_conf_t  *ilcf = conf;

    char                           *rv;
    ngx_uint_t                      n;
    ngx_command_t                   command;
    ngx_conf_bitmask_t             *mask;
    const ngx_idempotency_kind_t  **kind;

    if (ilcf->canon.flags) {
        return "is duplicate";
    }

    for (n = 0; ngx_idempotency_kinds[n]; n++) { /* void */ }

    mask = ngx_pcalloc(cf->temp_pool, (n + 2) * sizeof(ngx_conf_bitmask_t));
    if (mask == NULL) {
        return NGX_CONF_ERROR;
    }

    command = *cmd;
    command.post = mask;

    ngx_str_set(&mask->name, "off");
    mask->mask = NGX_CONF_BITMASK_SET;

    for (kind = ngx_idempotency_kinds; *kind; kind++) {
        mask++;
        mask->name = (*kind)->name;
        mask->mask = (*kind)->flag;
    }

    rv = ngx_conf_set_bitmask_slot(cf, &command, conf);

    if (rv == NGX_CONF_OK
        && (ilcf->canon.flags & NGX_CONF_BITMASK_SET)
        && (ilcf->canon.flags & NGX_IDEMPOTENCY_CANON_ALL))
    {
        return "has both \"off\" and types";
    }

    return rv;
}


/*
 * What is begun with: "default", or "any", or else nothing, but the default if
 * it begins with "!".  Then codes and classes of codes such as "2xx" are added
 * and, with "!", taken away, in their order.
 */

char *
ngx_http_idempotency_set_keep(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idempotency_loc_conf_t  *ilcf = conf;

    ngx_int_t    code, last;
    ngx_str_t   *value, name;
    ngx_uint_t   i, begin, no;

    if (ilcf->keep != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    ilcf->keep = ngx_palloc(cf->pool, NGX_HTTP_IDEMPOTENCY_STATUSES);
    if (ilcf->keep == NULL) {
        return NGX_CONF_ERROR;
    }

    value = cf->args->elts;

    i = 2;

    if (ngx_strcmp(value[1].data, "default") == 0) {
        begin = NGX_HTTP_IDEMPOTENCY_KEEP_DEFAULT;

    } else if (ngx_strcmp(value[1].data, "any") == 0) {
        begin = NGX_HTTP_IDEMPOTENCY_KEEP_YES;

    } else {
        i = 1;
        begin = (value[1].len && value[1].data[0] == '!')
                    ? NGX_HTTP_IDEMPOTENCY_KEEP_DEFAULT
                    : NGX_HTTP_IDEMPOTENCY_KEEP_NO;
    }

    ngx_memset(ilcf->keep, begin, NGX_HTTP_IDEMPOTENCY_STATUSES);

    for ( /* void */ ; i < cf->args->nelts; i++) {

        name = value[i];
        no = (name.len && name.data[0] == '!');

        name.data += no;
        name.len -= no;

        if (name.len == 3 && ngx_strcmp(name.data + 1, "xx") == 0) {
            code = ngx_atoi(name.data, 1) * 100;
            last = code + 99;

        } else {
            code = ngx_atoi(name.data, name.len);
            last = code;
        }

        if (code < 200 || last > 599) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid status \"%V\"", &value[i]);
            return NGX_CONF_ERROR;
        }

        ngx_memset(ilcf->keep + code, no ? NGX_HTTP_IDEMPOTENCY_KEEP_NO
                                         : NGX_HTTP_IDEMPOTENCY_KEEP_YES,
                   last - code + 1);
    }

    return NGX_CONF_OK;
}


/* may be given more than once, as such lists are in nginx */

char *
ngx_http_idempotency_add_names(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char *p = conf;

    ngx_str_t     *value, *name;
    ngx_uint_t     i;
    ngx_array_t  **names;

    names = (ngx_array_t **) (p + cmd->offset);

    if (*names == NGX_CONF_UNSET_PTR) {
        *names = ngx_array_create(cf->pool, 4, sizeof(ngx_str_t));
        if (*names == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {
        name = ngx_array_push(*names);
        if (name == NULL) {
            return NGX_CONF_ERROR;
        }

        *name = value[i];
    }

    return NGX_CONF_OK;
}


char *
ngx_http_idempotency_set_ignore_fields(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_idempotency_loc_conf_t  *ilcf = conf;

    ngx_int_t  rc;
    ngx_str_t  bad;

    if (ngx_http_idempotency_add_names(cf, cmd, conf) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    rc = ngx_idempotency_canon_ignore(&ilcf->canon, ilcf->ignore_fields, &bad,
                                      cf->pool);

    if (rc == NGX_DECLINED) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid JSON pointer \"%V\" in "
                           "\"idempotency_ignore_fields\"", &bad);
    }

    return (rc == NGX_OK) ? NGX_CONF_OK : NGX_CONF_ERROR;
}


char *
ngx_http_idempotency_set_window(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_idempotency_loc_conf_t  *ilcf = conf;

    ngx_str_t                      *value;
    ngx_http_idempotency_window_t  *window;

    value = cf->args->elts;

    if (ilcf->window_value) {
        return "is duplicate";
    }

    if (ngx_http_script_variables_count(&value[1]) == 0) {
        return ngx_conf_set_msec_slot(cf, cmd, conf);
    }

    if (ilcf->window != NGX_CONF_UNSET_MSEC) {
        return "is duplicate";
    }

    window = ngx_pcalloc(cf->pool, sizeof(ngx_http_idempotency_window_t));

    if (window == NULL
        || ngx_http_idempotency_compile(cf, &value[1], &window->value)
           != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    window->line.file = cf->conf_file->file.name;
    window->line.line = cf->conf_file->line;

    ilcf->window_value = window;

    return NGX_CONF_OK;
}


/*
 * To be called when the formats of keys are merged.  A window that is another
 * one for each request can't tell when a key is too old for all of them.
 */

ngx_int_t
ngx_http_idempotency_merge_window(ngx_conf_t *cf,
    ngx_http_idempotency_loc_conf_t *prev,
    ngx_http_idempotency_loc_conf_t *conf)
{
    ngx_http_idempotency_line_t  *line;

    if (conf->window == NGX_CONF_UNSET_MSEC && conf->window_value == NULL) {
        conf->window_value = prev->window_value;
        conf->window = prev->window;
    }

    if (conf->window == NGX_CONF_UNSET_MSEC) {
        conf->window = 24 * 3600 * 1000;
    }

    if (conf->store == NULL || conf->window_value == NULL
        || conf->key_format != NGX_HTTP_IDEMPOTENCY_KEY_FORMAT_UUID7
        || conf->key_max_age != NGX_CONF_UNSET_MSEC)
    {
        return NGX_OK;
    }

    line = &conf->window_value->line;

    ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                  "\"idempotency_window\" with variables needs an "
                  "\"idempotency_key_max_age\" where "
                  "\"idempotency_key_format\" is \"uuid7\" in %V:%ui",
                  &line->file, line->line);

    return NGX_ERROR;
}


char *
ngx_http_idempotency_set_missing_key(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_idempotency_loc_conf_t  *ilcf = conf;

    ngx_http_idempotency_line_t  *line;

    line = ngx_pcalloc(cf->pool, sizeof(ngx_http_idempotency_line_t));
    if (line == NULL) {
        return NGX_CONF_ERROR;
    }

    line->file = cf->conf_file->file.name;
    line->line = cf->conf_file->line;

    ilcf->missing_key_line = line;

    return ngx_conf_set_enum_slot(cf, cmd, conf);
}


/* to be asked when all levels are merged: either may stand on another one */

void
ngx_http_idempotency_warn_content(ngx_conf_t *cf,
    ngx_http_idempotency_loc_conf_t *conf)
{
    ngx_http_idempotency_line_t  *line;

    line = conf->missing_key_line;

    if (conf->missing_key != NGX_HTTP_IDEMPOTENCY_MISSING_KEY_CONTENT
        || (conf->identity && conf->identity->script.value.len)
        || line->warned)
    {
        return;
    }

    line->warned = 1;

    ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                  "idempotency_missing_key content without an "
                  "idempotency_identity, so who asks is a guess by the "
                  "request's credentials in %V:%ui", &line->file, line->line);
}


/* with a constant everybody is the same */

char *
ngx_http_idempotency_set_identity(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_idempotency_loc_conf_t  *ilcf = conf;

    ngx_str_t  *value;

    if (ilcf->identity) {
        return "is duplicate";
    }

    value = cf->args->elts;

    ilcf->identity = ngx_palloc(cf->pool,
                                sizeof(ngx_http_idempotency_value_t));

    if (ilcf->identity == NULL
        || ngx_http_idempotency_compile(cf, &value[1], ilcf->identity)
           != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    if (value[1].len && ilcf->identity->script.lengths == NULL) {
        ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                           "\"idempotency_identity\" is the constant \"%V\": "
                           "whoever has a key gets its response", &value[1]);
    }

    return NGX_CONF_OK;
}


/* "off", or names that are added to the built-in ones */

char *
ngx_http_idempotency_set_ignore_cookies(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_idempotency_loc_conf_t  *ilcf = conf;

    ngx_int_t    rc;
    ngx_str_t   *value;
    ngx_uint_t   i, off;

    value = cf->args->elts;

    off = 0;

    for (i = 1; i < cf->args->nelts; i++) {
        off |= (ngx_strcmp(value[i].data, "off") == 0);
    }

    if (off && cf->args->nelts == 2 && ilcf->ignore_cookies == NULL) {
        return "is duplicate";
    }

    if (ilcf->ignore_cookies == NULL
        || (off && (cf->args->nelts > 2
                    || ilcf->ignore_cookies != NGX_CONF_UNSET_PTR)))
    {
        return "has both \"off\" and names";
    }

    if (off) {
        ilcf->ignore_cookies = NULL;
        return NGX_CONF_OK;
    }

    if (ilcf->ignore_cookies == NGX_CONF_UNSET_PTR) {
        ilcf->ignore_cookies = ngx_http_idempotency_ignored_create(cf);
        if (ilcf->ignore_cookies == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    for (i = 1; i < cf->args->nelts; i++) {

        rc = ngx_http_idempotency_ignore_cookie(ilcf->ignore_cookies,
                                                &value[i]);

        if (rc == NGX_DECLINED) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid cookie name \"%V\"", &value[i]);
        }

        if (rc != NGX_OK) {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


/* a number, and whose it is; or "off" */

char *
ngx_http_idempotency_set_quota(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idempotency_loc_conf_t  *ilcf = conf;

    ngx_int_t   n;
    ngx_str_t  *value;

    if (ilcf->quota != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "off") == 0) {
        ilcf->quota = 0;
        return NGX_CONF_OK;
    }

    n = ngx_atoi(value[1].data, value[1].len);

    if (n <= 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid number \"%V\"", &value[1]);
        return NGX_CONF_ERROR;
    }

    ilcf->quota = n;

    if (cf->args->nelts == 2) {
        return NGX_CONF_OK;
    }

    ilcf->quota_value = ngx_palloc(cf->pool,
                                   sizeof(ngx_http_idempotency_value_t));

    if (ilcf->quota_value == NULL
        || ngx_http_idempotency_compile(cf, &value[2], ilcf->quota_value)
           != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


char *
ngx_http_idempotency_set_status(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idempotency_loc_conf_t  *ilcf = conf;

    ngx_int_t    code;
    ngx_str_t   *value, *name;
    ngx_uint_t   i, n;

    name = NULL;
    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        for (n = 1; n < NGX_HTTP_IDEMPOTENCY_REFUSALS; n++) {
            name = &ngx_http_idempotency_refusals[n].name;

            if (value[i].len > name->len
                && ngx_strncmp(value[i].data, name->data, name->len) == 0
                && value[i].data[name->len] == '=')
            {
                break;
            }
        }

        if (n == NGX_HTTP_IDEMPOTENCY_REFUSALS) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\"", &value[i]);
            return NGX_CONF_ERROR;
        }

        code = ngx_atoi(value[i].data + name->len + 1,
                        value[i].len - name->len - 1);

        switch (code) {

        /*
         * With these nginx closes the connection, or says something else to
         * the client: they never arrive
         */

        case NGX_HTTP_REQUEST_TIME_OUT:
        case NGX_HTTP_CLOSE:
        case NGX_HTTP_REQUEST_HEADER_TOO_LARGE:
        case NGX_HTTPS_CERT_ERROR:
        case NGX_HTTPS_NO_CERT:
        case NGX_HTTP_TO_HTTPS:
        case NGX_HTTP_CLIENT_CLOSED_REQUEST:
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid status \"%V\", nginx has a meaning "
                               "of its own for it", &value[i]);
            return NGX_CONF_ERROR;
        }

        if (code < 400 || code > 599) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid status \"%V\", it must be "
                               "from 400 to 599", &value[i]);
            return NGX_CONF_ERROR;
        }

        if (ilcf->status[n]) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "duplicate status \"%V\"", &value[i]);
            return NGX_CONF_ERROR;
        }

        ilcf->status[n] = code;
    }

    return NGX_CONF_OK;
}


char *
ngx_http_idempotency_check_time(ngx_conf_t *cf, void *post, void *data)
{
    ngx_msec_t  *msp = data;

    if (*msp == 0) {
        return "must not be zero";
    }

    return (*msp > NGX_HTTP_IDEMPOTENCY_TIME_MAX) ? "is too long"
                                                  : NGX_CONF_OK;
}


/* "off", or a token as RFC 9110 has it */

char *
ngx_http_idempotency_check_replay_header(ngx_conf_t *cf, void *post,
    void *data)
{
    ngx_str_t  *name = data;

    size_t  i;
    u_char  c;

    if (ngx_strcmp(name->data, "off") == 0) {
        name->len = 0;
        return NGX_CONF_OK;
    }

    for (i = 0; i < name->len; i++) {
        c = name->data[i];

        if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') {
            continue;
        }

        if ((c < '0' || c > '9') && ngx_strchr("!#$%&'*+-.^_`|~", c) == NULL) {
            break;
        }
    }

    if (name->len == 0 || i < name->len) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid header name \"%V\"", name);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


/* it goes into a header line and into JSON as it is */

char *
ngx_http_idempotency_check_docs(ngx_conf_t *cf, void *post, void *data)
{
    ngx_str_t  *url = data;

    size_t  i;

    for (i = 0; i < url->len; i++) {
        if (url->data[i] <= ' ' || url->data[i] >= 0x7f
            || ngx_strchr("<>\"\\", url->data[i]))
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid URL \"%V\"", url);
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}
