
/*
 * A real Redis or Valkey that runs the scripts, in the place of Lua (redis.c).
 * Its clock is the world's (t/lib/clock.c), and all that is asked of it with a
 * call goes over in one piece.
 */


#include "world.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/sha.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>


#define SERVER_SCRIPTS  16
#define REPLY           300000


typedef struct {
    char                            type;
    long long                       n;
    char                           *text;
} value_t;


static FILE      *in, *out;
static char       bulk[1024 * 1024];
static int64_t   *server_clock;
static u_char     loaded[SERVER_SCRIPTS][SHA_DIGEST_LENGTH];
static ngx_uint_t n_loaded;
static void     (*server_publish)(u_char *key, size_t len);


static void
server_dies(const char *why)
{
    fprintf(stderr, "the server: %s: %s\n", why, strerror(errno));
    exit(2);
}


/* --- words and values ----------------------------------------------------- */


static void
add_word(const void *p, size_t len)
{
    fprintf(out, "$%zu\r\n", len);
    fwrite(p, 1, len, out);
    fputs("\r\n", out);
}


static void
add_text(const char *text)
{
    add_word(text, strlen(text));
}


static void
add_number(int64_t n)
{
    char  text[32];

    add_word(text, sprintf(text, "%lld", (long long) n));
}


static void
add_command(ngx_uint_t words, const char *name)
{
    fprintf(out, "*%u\r\n", (unsigned) words);
    add_text(name);
}


/* valid until the next one */

static value_t
value(void)
{
    char     line[1024];
    value_t  v;

    if (fgets(line, sizeof(line), in) == NULL) {
        server_dies("read");
    }

    if (line[0] == '-') {
        fprintf(stderr, "the server says: %s", line);
        exit(2);
    }

    v.type = line[0];
    v.text = "";
    v.n = (v.type == '_') ? -1 : strtoll(line + 1, NULL, 10);

    if (strchr("$=", v.type) && v.n >= 0) {

        if (v.n + 2 > (long long) sizeof(bulk)
            || fread(bulk, 1, v.n + 2, in) != (size_t) v.n + 2)
        {
            server_dies("read");
        }

        v.text = bulk;
    }

    return v;
}


/* ... that is no message of a channel */

static value_t
answer(void)
{
    long long   n;
    value_t     v, word;

    for ( ;; ) {
        v = value();

        if (v.type != '>') {
            return v;
        }

        for (n = v.n; n; n--) {
            word = value();

            /* pmessage, the pattern, the channel, the message */

            if (v.n == 4 && n == 2 && server_publish) {
                server_publish((u_char *) word.text, word.n);
            }
        }
    }
}


/* what is in it, too */

static void
skip(value_t v)
{
    long long  n;

    n = (v.type == '%') ? 2 * v.n : (strchr("*~", v.type)) ? v.n : 0;

    while (n-- > 0) {
        skip(value());
    }
}


static void
answers(ngx_uint_t n)
{
    (void) fflush(out);

    while (n--) {
        skip(answer());
    }
}


/* --- the server ----------------------------------------------------------- */


ngx_uint_t
server_there(void)
{
    return in != NULL;
}


void
server_open(char *path, char *clock)
{
    int                  fd, server;
    ngx_uint_t           i;
    struct sockaddr_un   addr;

    fd = open(clock, O_RDWR);
    server_clock = (fd == -1) ? MAP_FAILED
                   : mmap(NULL, sizeof(int64_t), PROT_READ|PROT_WRITE,
                          MAP_SHARED, fd, 0);

    if (server_clock == MAP_FAILED) {
        server_dies(clock);
    }

    close(fd);

    memset(&addr, 0, sizeof(addr));
    addr.sun_family = AF_UNIX;
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);

    server = socket(AF_UNIX, SOCK_STREAM, 0);

    for (i = 0; connect(server, (struct sockaddr *) &addr, sizeof(addr)) != 0;
         i++)
    {
        if (i == 6000) {
            server_dies(path);
        }

        usleep(10000);
    }

    in = fdopen(server, "r");
    out = fdopen(dup(server), "w");

    add_command(2, "HELLO");
    add_number(3);
    add_command(2, "PSUBSCRIBE");
    add_text("p:*");
    add_command(1, "PING");
    answers(2);
}


/* what it has is what stands in those, and nothing else */

void
server_restore(redis_key_t *keys, ngx_uint_t n)
{
    ngx_uint_t    count;
    redis_key_t  *k;

    add_command(1, "FLUSHALL");

    for (count = 1, k = keys; k < keys + n; k++) {

        if (k->key == NULL) {
            continue;
        }

        add_command(k->ends ? 5 : 3, "SET");
        add_text(k->key);
        add_word(k->value, k->len);

        if (k->ends) {
            add_text("PXAT");
            add_number(k->ends);
        }

        count++;
    }

    answers(count);
}


static void
server_loads(ngx_str_t *text, u_char *sha)
{
    ngx_uint_t  i;

    SHA1(text->data, text->len, sha);

    for (i = 0; i < n_loaded; i++) {
        if (memcmp(loaded[i], sha, SHA_DIGEST_LENGTH) == 0) {
            return;
        }
    }

    memcpy(loaded[n_loaded++], sha, SHA_DIGEST_LENGTH);

    add_command(3, "SCRIPT");
    add_text("LOAD");
    add_word(text->data, text->len);
    answers(1);
}


static void
add_dirty(void)
{
    add_command(2, "INFO");
    add_text("persistence");
}


/* how much was written, ever */

static long long
dirty(void)
{
    char     *at;
    value_t   v;

    static char  name[] = "rdb_changes_since_last_save:";

    v = answer();
    at = memmem(v.text, v.n, name, sizeof(name) - 1);

    return at ? atoll(at + sizeof(name) - 1) : -1;
}


/* the answer of a script: an array of strings */

static ngx_idempotency_redis_reply_t *
server_reply(void)
{
    size_t                          size;
    u_char                         *p, *end;
    value_t                         v;
    ngx_uint_t                      i, n;
    ngx_idempotency_redis_reply_t  *reply;

    v = answer();
    n = v.n;
    size = (n + 1) * sizeof(ngx_idempotency_redis_reply_t);
    reply = malloc(size + REPLY);
    memset(reply, 0, size);
    end = (u_char *) reply + size + REPLY;
    reply->type = NGX_IDEMPOTENCY_REDIS_ARRAY;
    reply->n = n;
    reply->elts = reply + 1;
    p = (u_char *) reply + size;

    for (i = 0; i < n; i++) {
        v = answer();

        if (v.type != '$' || v.n > end - p) {
            server_dies("an answer");
        }

        reply->elts[i].type = NGX_IDEMPOTENCY_REDIS_STRING;
        reply->elts[i].str.data = p;
        reply->elts[i].str.len = v.n;
        p = ngx_cpymem(p, v.text, v.n);
    }

    return reply;
}


/* a call, and what it has written to its keys: those that it names */

ngx_idempotency_redis_reply_t *
server_call(ngx_str_t *text, ngx_str_t *words, ngx_uint_t nkeys,
    ngx_uint_t nwords, uint64_t micros,
    void (*publish)(u_char *key, size_t len), void (*wrote)(redis_key_t *k))
{
    char                            sha[2 * SHA_DIGEST_LENGTH + 1];
    u_char                          digest[SHA_DIGEST_LENGTH];
    value_t                         v;
    long long                       before;
    redis_key_t                     k;
    ngx_uint_t                      i, changed;
    ngx_idempotency_redis_reply_t  *reply;

    *server_clock = micros;
    server_loads(text, digest);
    *ngx_hex_dump((u_char *) sha, digest, SHA_DIGEST_LENGTH) = '\0';

    add_dirty();
    add_command(3 + nwords, "EVALSHA");
    add_text(sha);
    add_number(nkeys);

    for (i = 0; i < nwords; i++) {
        add_word(words[i].data, words[i].len);
    }

    add_dirty();

    for (i = 0; i < nkeys; i++) {
        add_command(2, "GET");
        add_word(words[i].data, words[i].len);
        add_command(2, "PEXPIRETIME");
        add_word(words[i].data, words[i].len);
    }

    (void) fflush(out);

    before = dirty();
    server_publish = publish;
    reply = server_reply();
    changed = (dirty() != before);
    server_publish = NULL;

    for (i = 0; i < nkeys; i++) {
        v = answer();
        k.key = strndup((char *) words[i].data, words[i].len);
        k.len = ngx_max(v.n, 0);
        k.value = malloc(k.len + 1);
        memcpy(k.value, v.text, k.len);
        v = answer();
        k.ends = ngx_max(v.n, 0);

        if (changed && v.n != -2) {
            wrote(&k);
        }

        free(k.key);
        free(k.value);
    }

    return reply;
}
