
/*
 * The simulated Redis: the real scripts, run by Lua 5.1 as in a real one, or by
 * a real one (server.c), the few commands that they call, and a replica that has
 * some of its writes.
 */


#include "world.h"

#include <lua.h>
#include <lauxlib.h>
#include <lualib.h>
#include <openssl/sha.h>


#define REDIS_KEYS     64
#define REDIS_SCRIPTS  16
#define REDIS_WRITES   8192


typedef struct {
    u_char                         *text;
    size_t                          len;
    int                             ref;
} redis_script_t;


static lua_State      *redis_lua;
static redis_key_t     redis_keys[REDIS_KEYS], redis_replica[REDIS_KEYS];
/* as each one was behind a write */
static redis_key_t     redis_writes[REDIS_WRITES];
/* all of them, and those that the replica has: numbers, from one on */
static uint64_t        redis_written, redis_followed;
static redis_script_t  redis_scripts[REDIS_SCRIPTS];
static uint64_t        redis_micros;
static void          (*redis_publish)(u_char *key, size_t len);


static void
redis_key_free(redis_key_t *k)
{
    free(k->key);
    free(k->value);
    memset(k, 0, sizeof(redis_key_t));
}


static redis_key_t *
redis_key(redis_key_t *keys, const char *key, ngx_uint_t create)
{
    redis_key_t  *k, *room;

    room = NULL;

    for (k = keys; k < keys + REDIS_KEYS; k++) {

        if (k->key && k->ends
            && k->ends <= (int64_t) (redis_micros / 1000))
        {
            redis_key_free(k);
        }

        if (k->key == NULL) {
            room = room ? room : k;

        } else if (strcmp(k->key, key) == 0) {
            return k;
        }
    }

    if (!create) {
        return NULL;
    }

    if (room == NULL) {
        fprintf(stderr, "too many keys\n");
        exit(2);
    }

    room->key = strdup(key);

    return room;
}


static void
redis_key_copy(redis_key_t *to, redis_key_t *from)
{
    redis_key_free(to);

    *to = *from;
    to->key = strdup(from->key);
    to->value = malloc(from->len + 1);
    memcpy(to->value, from->value, from->len);
}


/* --- a replica ------------------------------------------------------------ */


uint64_t
sim_redis_writes(void)
{
    return redis_written;
}


static void
redis_wrote(redis_key_t *k)
{
    redis_key_t  *w;

    w = &redis_writes[redis_written++ % REDIS_WRITES];

    if (redis_written - redis_followed > REDIS_WRITES) {
        fprintf(stderr, "too many writes\n");
        exit(2);
    }

    redis_key_copy(w, k);
}


void
sim_redis_follow(uint64_t n)
{
    redis_key_t  *k;

    while (redis_followed < n) {
        k = &redis_writes[redis_followed++ % REDIS_WRITES];
        redis_key_copy(redis_key(redis_replica, k->key, 1), k);
    }
}


uint64_t
sim_redis_fail_over(void)
{
    uint64_t    since;
    ngx_uint_t  i;

    since = (redis_followed < redis_written) ? redis_followed + 1 : 0;
    redis_followed = redis_written;

    for (i = 0; i < REDIS_KEYS; i++) {
        redis_key_free(&redis_keys[i]);

        if (redis_replica[i].key) {
            redis_key_copy(&redis_keys[i], &redis_replica[i]);
        }
    }

    if (server_there()) {
        server_restore(redis_keys, REDIS_KEYS);
    }

    return since;
}


void
sim_redis_flush(void)
{
    ngx_uint_t  i;

    redis_followed = redis_written;

    for (i = 0; i < REDIS_KEYS; i++) {
        redis_key_free(&redis_keys[i]);
        redis_key_free(&redis_replica[i]);
    }

    if (server_there()) {
        server_restore(redis_keys, 0);
    }
}


/* --- struct: c, I; all of them big-endian --------------------------------- */


static size_t
struct_size(const char **p)
{
    size_t  n;

    for (n = 0; **p >= '0' && **p <= '9'; (*p)++) {
        n = n * 10 + (**p - '0');
    }

    return n;
}


static int
struct_pack(lua_State *l)
{
    int          arg;
    char         c;
    size_t       n, len, i;
    uint64_t     number;
    const char  *p, *s;
    luaL_Buffer  b;

    p = luaL_checkstring(l, 1);
    arg = 2;

    luaL_buffinit(l, &b);

    while ((c = *p++) != '\0') {

        if (c == '>') {
            continue;
        }

        n = struct_size(&p);

        if (c == 'c') {
            s = luaL_checklstring(l, arg++, &len);

            if (len < n) {
                return luaL_error(l, "string too short");
            }

            luaL_addlstring(&b, s, n);
            continue;
        }

        number = (uint64_t) (int64_t) luaL_checknumber(l, arg++);

        for (i = n; i; i--) {
            luaL_addchar(&b, (char) (number >> (i - 1) * 8));
        }
    }

    luaL_pushresult(&b);

    return 1;
}


static int
struct_unpack(lua_State *l)
{
    int          told;
    char         c;
    size_t       n, len, i, pos;
    uint64_t     number;
    const char  *p, *s;

    p = luaL_checkstring(l, 1);
    s = luaL_checklstring(l, 2, &len);
    pos = 0;
    told = 0;

    luaL_checkstack(l, 32, "struct");

    while ((c = *p++) != '\0') {

        if (c == '>') {
            continue;
        }

        n = struct_size(&p);

        if (pos + n > len) {
            return luaL_error(l, "data string too short");
        }

        if (c == 'c') {
            lua_pushlstring(l, s + pos, n);

        } else {
            for (number = 0, i = 0; i < n; i++) {
                number = number << 8 | (u_char) s[pos + i];
            }

            lua_pushnumber(l, (lua_Number) number);
        }

        pos += n;
        told++;
    }

    lua_pushinteger(l, pos + 1);

    return told + 1;
}


/* --- redis ---------------------------------------------------------------- */


static int
redis_status(lua_State *l, const char *what, const char *text)
{
    lua_newtable(l);
    lua_pushstring(l, text);
    lua_setfield(l, -2, what);

    return 1;
}


static int
redis_set(lua_State *l)
{
    size_t        len;
    redis_key_t  *k;
    const char   *value;

    value = luaL_checklstring(l, 3, &len);
    k = redis_key(redis_keys, luaL_checkstring(l, 2), 1);

    free(k->value);
    k->value = malloc(len + 1);
    memcpy(k->value, value, len);
    k->len = len;

    if (lua_gettop(l) > 4) {
        k->ends = redis_micros / 1000 + (int64_t) luaL_checknumber(l, 5);

    } else if (lua_gettop(l) == 3) {
        k->ends = 0;
    }

    redis_wrote(k);

    return redis_status(l, "ok", "OK");
}


static int
redis_command(lua_State *l)
{
    char          text[32];
    size_t        last;
    const char   *command, *key;
    redis_key_t  *k;

    command = luaL_checkstring(l, 1);

    if (strcmp(command, "TIME") == 0) {
        lua_newtable(l);
        snprintf(text, sizeof(text), "%llu",
                 (unsigned long long) (redis_micros / 1000000));
        lua_pushstring(l, text);
        lua_rawseti(l, -2, 1);
        snprintf(text, sizeof(text), "%llu",
                 (unsigned long long) (redis_micros % 1000000));
        lua_pushstring(l, text);
        lua_rawseti(l, -2, 2);

        return 1;
    }

    key = luaL_checkstring(l, 2);

    if (strcmp(command, "SET") == 0) {
        return redis_set(l);
    }

    if (strcmp(command, "PUBLISH") == 0 || strcmp(command, "SPUBLISH") == 0) {
        redis_publish((u_char *) key, strlen(key));
        lua_pushinteger(l, 1);
        return 1;
    }

    k = redis_key(redis_keys, key, 0);

    if (strcmp(command, "GET") == 0) {
        if (k) {
            lua_pushlstring(l, k->value, k->len);

        } else {
            lua_pushboolean(l, 0);
        }

        return 1;
    }

    if (strcmp(command, "GETRANGE") == 0) {
        last = (size_t) luaL_checknumber(l, 4) + 1;
        lua_pushlstring(l, k ? k->value : "",
                        k ? ngx_min(k->len, last) : 0);
        return 1;
    }

    if (strcmp(command, "PEXPIRE") == 0) {
        if (k) {
            k->ends = redis_micros / 1000 + (int64_t) luaL_checknumber(l, 3);
            redis_wrote(k);
        }

        lua_pushinteger(l, k != NULL);
        return 1;
    }

    return luaL_error(l, "no such command: %s", command);
}


static int
redis_sha1hex(lua_State *l)
{
    int          i;
    char         text[41];
    size_t       len;
    u_char       digest[20];
    const char  *s;

    s = luaL_checklstring(l, 1, &len);
    SHA1((u_char *) s, len, digest);

    for (i = 0; i < 20; i++) {
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    }

    lua_pushstring(l, text);

    return 1;
}


uint64_t
sim_redis_reset(void)
{
    static const luaL_Reg  redis[] = {
        { "call", redis_command },
        { "pcall", redis_command },
        { "sha1hex", redis_sha1hex },
        { NULL, NULL }
    };

    static const luaL_Reg  structs[] = {
        { "pack", struct_pack },
        { "unpack", struct_unpack },
        { NULL, NULL }
    };

    sim_redis_flush();

    if (redis_lua) {
        return redis_written;
    }

    redis_lua = luaL_newstate();
    luaL_openlibs(redis_lua);
    luaL_register(redis_lua, "redis", redis);
    luaL_register(redis_lua, "struct", structs);
    lua_settop(redis_lua, 0);

    return redis_written;
}


static int
redis_script(ngx_str_t *text)
{
    size_t           skip;
    redis_script_t  *s;

    for (s = redis_scripts; s->len; s++) {
        if (s->len == text->len && memcmp(s->text, text->data, s->len) == 0) {
            return s->ref;
        }
    }

    /* the flags */

    skip = 0;

    if (text->len > 2 && memcmp(text->data, "#!", 2) == 0) {
        skip = (u_char *) memchr(text->data, '\n', text->len) - text->data;
    }

    if (s == redis_scripts + REDIS_SCRIPTS - 1
        || luaL_loadbuffer(redis_lua, (char *) text->data + skip,
                           text->len - skip, "script")
           != 0)
    {
        fprintf(stderr, "a script is none: %s\n",
                lua_tostring(redis_lua, -1));
        exit(2);
    }

    s->text = malloc(text->len);
    memcpy(s->text, text->data, text->len);
    s->len = text->len;
    s->ref = luaL_ref(redis_lua, LUA_REGISTRYINDEX);

    return s->ref;
}


static void
redis_words(char *name, ngx_str_t *words, ngx_uint_t n)
{
    ngx_uint_t  i;

    lua_newtable(redis_lua);

    for (i = 0; i < n; i++) {
        lua_pushlstring(redis_lua, (char *) words[i].data, words[i].len);
        lua_rawseti(redis_lua, -2, i + 1);
    }

    lua_setglobal(redis_lua, name);
}


/* what a script returned: an array of strings */

static ngx_idempotency_redis_reply_t *
redis_reply(void)
{
    size_t                          len, size;
    u_char                         *p;
    ngx_uint_t                      i, n;
    const char                     *s;
    ngx_idempotency_redis_reply_t  *reply;

    n = lua_istable(redis_lua, -1) ? lua_objlen(redis_lua, -1) : 0;
    size = (n + 1) * sizeof(ngx_idempotency_redis_reply_t);

    for (i = 1; i <= n; i++) {
        lua_rawgeti(redis_lua, -1, i);
        (void) lua_tolstring(redis_lua, -1, &len);
        size += len;
        lua_pop(redis_lua, 1);
    }

    reply = calloc(1, size);
    reply->type = NGX_IDEMPOTENCY_REDIS_ARRAY;
    reply->n = n;
    reply->elts = reply + 1;
    p = (u_char *) (reply + 1 + n);

    for (i = 0; i < n; i++) {
        lua_rawgeti(redis_lua, -1, i + 1);
        s = lua_tolstring(redis_lua, -1, &len);

        reply->elts[i].type = NGX_IDEMPOTENCY_REDIS_STRING;
        reply->elts[i].str.data = p;
        reply->elts[i].str.len = len;
        memcpy(p, s, len);
        p += len;

        lua_pop(redis_lua, 1);
    }

    return reply;
}


ngx_idempotency_redis_reply_t *
sim_redis_call(ngx_str_t *text, ngx_str_t *words, ngx_uint_t nkeys,
    ngx_uint_t nwords, uint64_t micros,
    void (*publish)(u_char *key, size_t len))
{
    ngx_idempotency_redis_reply_t  *reply;

    redis_micros = micros;
    redis_publish = publish;

    if (server_there()) {
        return server_call(text, words, nkeys, nwords, micros, publish,
                           redis_wrote);
    }

    lua_rawgeti(redis_lua, LUA_REGISTRYINDEX, redis_script(text));
    redis_words("KEYS", words, nkeys);
    redis_words("ARGV", words + nkeys, nwords - nkeys);

    if (lua_pcall(redis_lua, 0, 1, 0) != 0) {
        fprintf(stderr, "a script fails: %s\n", lua_tostring(redis_lua, -1));
        exit(2);
    }

    reply = redis_reply();
    lua_settop(redis_lua, 0);

    return reply;
}
