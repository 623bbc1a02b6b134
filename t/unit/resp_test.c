
/*
 * What a Redis says, however it is cut: the values it is made into, what is no
 * RESP, and how large it may be; and what is said to it.  And the words of its
 * errors: may it have been executed?
 */


#include "unit.h"

#include "store/redis/ngx_idempotency_redis_resp.h"


typedef struct {
    char    *bytes;
    char    *value;
} said_t;


/* well-formed; as print() writes it */

static said_t  well[] = {
    { "+OK\r\n", "\"OK\"" },
    { "+\r\n", "\"\"" },
    { "-ERR no\r\n", "-ERR no" },
    { ":0\r\n", "0" },
    { ":-42\r\n", "-42" },
    { ":9223372036854775807\r\n", "9223372036854775807" },
    { ":-9223372036854775808\r\n", "-9223372036854775808" },
    { "$0\r\n\r\n", "\"\"" },
    { "$5\r\nhello\r\n", "\"hello\"" },
    { "$6\r\na\r\nb\r\n\r\n", "\"a\r\nb\r\n\"" },
    { "$-1\r\n", "nil" },
    { "*-1\r\n", "nil" },
    { "*0\r\n", "[]" },
    { "*2\r\n:1\r\n$1\r\nx\r\n", "[1 \"x\"]" },
    { "*3\r\n*1\r\n*0\r\n$-1\r\n*2\r\n+a\r\n-b\r\n", "[[[]] nil [\"a\" -b]]" },

    /* as deep as it may be */
    { "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
      "[[[[[[[[1]]]]]]]]" },

    { NULL, NULL }
};


/* and no more of it makes it better */

static char  *ill[] = {
    "HTTP/1.1 400 Bad Request\r\n",
    "\x15\x03\x03\x00\x02\x02\x28\r\n",
    "\r\n",
    "+OK\n",
    "\n",
    ":\r\n",
    ":1x\r\n",
    ":--1\r\n",
    ": 1\r\n",
    ":9223372036854775808\r\n",
    ":-9223372036854775809\r\n",
    ":12345678901234567890\r\n",
    "$\r\n",
    "$-2\r\n",
    "$?\r\n",
    "$1x\r\n",
    "$67108865\r\n",
    "$9223372036854775807\r\n",
    "$5\r\nhello!\r\n",
    "$5\r\nhello\r!",
    "*-2\r\n",
    "*?\r\n",
    "*262145\r\n",
    "*2147483647\r\n",
    "*9223372036854775807\r\n",
    "*2\r\n:1\r\nhello\r\n",
    "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n",

    /* RESP3, which nobody has asked for */
    "_\r\n",
    "#t\r\n",
    ",3.25\r\n",
    "(1\r\n",
    "!9\r\nSYNTAX no\r\n",
    "=9\r\ntxt:a\r\nbc\r\n",
    "%1\r\n+a\r\n:1\r\n",
    "~1\r\n:1\r\n",
    ">2\r\n+message\r\n:2\r\n",
    "*2\r\n|1\r\n+a\r\n:1\r\n:8\r\n:9\r\n",
    NULL
};


static u_char  text[65536];


static u_char *
print(u_char *p, ngx_idempotency_redis_reply_t *reply)
{
    ngx_uint_t  i;

    switch (reply->type) {

    case NGX_IDEMPOTENCY_REDIS_STRING:
        return ngx_sprintf(p, "\"%V\"", &reply->str);

    case NGX_IDEMPOTENCY_REDIS_ERROR:
        return ngx_sprintf(p, "-%V", &reply->str);

    case NGX_IDEMPOTENCY_REDIS_INTEGER:
        return p + sprintf((char *) p, "%lld", (long long) reply->integer);

    case NGX_IDEMPOTENCY_REDIS_NIL:
        return ngx_sprintf(p, "nil");

    default:
        break;
    }

    p = ngx_sprintf(p, "[");

    for (i = 0; i < reply->n; i++) {
        p = ngx_sprintf(p, i ? " " : "");
        p = print(p, &reply->elts[i]);
    }

    return ngx_sprintf(p, "]");
}


static int
is(ngx_idempotency_redis_reply_t *reply, char *value)
{
    *print(text, reply) = '\0';

    if (ngx_strcmp(text, value) == 0) {
        return 1;
    }

    unit_note("%s is not %s", text, value);

    return 0;
}


static void
put(ngx_idempotency_resp_t *resp, char *bytes, size_t len)
{
    u_char  *p;
    size_t   size;

    while (len) {
        p = ngx_idempotency_resp_room(resp, &size);

        if (!check(p != NULL && size > 0)) {
            return;
        }

        size = ngx_min(size, len);
        ngx_memcpy(p, bytes, size);
        resp->in.len += size;

        bytes += size;
        len -= size;
    }
}


/* cut in two at each place, and into single bytes; and as one of three */

unit_case("a reply is the same, however it is cut")
{
    size_t                          i, len, cut;
    said_t                         *said;
    ngx_idempotency_resp_t          resp;
    ngx_idempotency_redis_reply_t  *reply, *copy;

    for (said = well; said->bytes; said++) {
        len = ngx_strlen(said->bytes);

        for (cut = 0; cut <= len; cut++) {
            ngx_memzero(&resp, sizeof(resp));

            put(&resp, ":1\r\n", 4);
            put(&resp, said->bytes, cut);

            check_equal(ngx_idempotency_resp_next(&resp, &reply), NGX_OK);
            check(is(reply, "1"));

            if (cut < len) {
                check_equal(ngx_idempotency_resp_next(&resp, &reply),
                            NGX_AGAIN);
            }

            put(&resp, said->bytes + cut, len - cut);
            put(&resp, "+end\r\n", 6);

            if (check_equal(ngx_idempotency_resp_next(&resp, &reply), NGX_OK)) {
                check(is(reply, said->value));

                copy = ngx_idempotency_resp_copy(&resp);
                check_equal(ngx_idempotency_resp_next(&resp, &reply), NGX_OK);
                check(is(reply, "\"end\""));
                check(is(copy, said->value));
                ngx_free(copy);
            }

            check_equal(ngx_idempotency_resp_next(&resp, &reply), NGX_AGAIN);
            ngx_idempotency_resp_free(&resp);
        }

        ngx_memzero(&resp, sizeof(resp));

        for (i = 0; i < len; i++) {
            check_equal(ngx_idempotency_resp_next(&resp, &reply), NGX_AGAIN);
            put(&resp, said->bytes + i, 1);
        }

        check_equal(ngx_idempotency_resp_next(&resp, &reply), NGX_OK);
        check(is(reply, said->value));
        ngx_idempotency_resp_free(&resp);
    }
}


unit_case("what is no RESP is found out, however it is cut")
{
    char                          **bytes;
    size_t                          i, len;
    ngx_int_t                       rc;
    ngx_idempotency_resp_t          resp;
    ngx_idempotency_redis_reply_t  *reply;

    for (bytes = ill; *bytes; bytes++) {
        len = ngx_strlen(*bytes);

        ngx_memzero(&resp, sizeof(resp));
        put(&resp, *bytes, len);

        if (!check_equal(ngx_idempotency_resp_next(&resp, &reply),
                         NGX_ERROR))
        {
            unit_note("%s", *bytes);
        }

        ngx_idempotency_resp_free(&resp);

        ngx_memzero(&resp, sizeof(resp));
        rc = NGX_AGAIN;

        for (i = 0; i < len && rc == NGX_AGAIN; i++) {
            put(&resp, *bytes + i, 1);
            rc = ngx_idempotency_resp_next(&resp, &reply);
        }

        check_equal(rc, NGX_ERROR);
        ngx_idempotency_resp_free(&resp);
    }
}


/* a line that does not end, values without end */

unit_case("nothing is endless")
{
    ngx_int_t                       rc;
    ngx_uint_t                      n;
    ngx_idempotency_resp_t          resp;
    ngx_idempotency_redis_reply_t  *reply;

    ngx_memzero(&resp, sizeof(resp));
    put(&resp, "+", 1);

    for (n = 0; n < NGX_IDEMPOTENCY_RESP_LINE - 1; n++) {
        put(&resp, "x", 1);
    }

    check_equal(ngx_idempotency_resp_next(&resp, &reply), NGX_AGAIN);
    put(&resp, "xx", 2);
    check_equal(ngx_idempotency_resp_next(&resp, &reply), NGX_ERROR);
    ngx_idempotency_resp_free(&resp);

    ngx_memzero(&resp, sizeof(resp));
    put(&resp, "*262144\r\n", 9);
    rc = NGX_AGAIN;

    for (n = 1; n < 300000 && rc == NGX_AGAIN; n++) {
        put(&resp, n % 2 ? "*2\r\n" : ":1\r\n", 4);
        rc = ngx_idempotency_resp_next(&resp, &reply);
    }

    check_equal(rc, NGX_ERROR);
    check(n < NGX_IDEMPOTENCY_RESP_VALUES + 2);
    check(resp.in.size < 4 * 1024 * 1024);
    ngx_idempotency_resp_free(&resp);
}


/* strings of any size in pieces, many in a row; what they took is given back;
   and no memory is taken for what is only announced */

unit_case("large strings, and memory that is given back")
{
    char                            head[32], piece[4096];
    size_t                          size, left, n;
    ngx_uint_t                      i;
    ngx_idempotency_resp_t          resp;
    ngx_idempotency_redis_reply_t  *reply;

    ngx_memzero(&resp, sizeof(resp));
    ngx_memset(piece, 'z', sizeof(piece));

    for (size = 4000; size < 3000000; size = size * 3 / 2) {
        *ngx_sprintf((u_char *) head, "$%uz\r\n", size) = '\0';
        put(&resp, head, ngx_strlen(head));

        for (left = size; left; left -= n) {
            check_equal(ngx_idempotency_resp_next(&resp, &reply), NGX_AGAIN);
            n = ngx_min(left, sizeof(piece));
            put(&resp, piece, n);
        }

        check_equal(ngx_idempotency_resp_next(&resp, &reply), NGX_AGAIN);
        put(&resp, "\r\n", 2);

        if (!check_equal(ngx_idempotency_resp_next(&resp, &reply), NGX_OK)) {
            break;
        }

        check_equal(reply->str.len, size);
        check(reply->str.data[0] == 'z' && reply->str.data[size - 1] == 'z');
    }

    for (i = 0; i < 100000; i++) {
        put(&resp, "$2\r\nok\r\n:", 9);
        check_equal(ngx_idempotency_resp_next(&resp, &reply), NGX_OK);
        put(&resp, "1\r\n", 3);
        check_equal(ngx_idempotency_resp_next(&resp, &reply), NGX_OK);
    }

    check(is(reply, "1"));
    check(resp.in.size <= 16384);

    put(&resp, "$67000000\r\n", 11);
    check_equal(ngx_idempotency_resp_next(&resp, &reply), NGX_AGAIN);
    (void) ngx_idempotency_resp_room(&resp, &size);
    check(resp.in.size < 256 * 1024);

    ngx_idempotency_resp_free(&resp);
}


static void
say(ngx_idempotency_resp_buf_t *out, const char *format, ...)
{
    va_list  args;

    va_start(args, format);
    ngx_idempotency_resp_say(out, format, args);
    va_end(args);
}


unit_case("commands")
{
    ngx_str_t                   word = ngx_string("a\0b");
    ngx_str_t                   empty = ngx_null_string;
    ngx_uint_t                  i;
    ngx_idempotency_resp_buf_t  out;

    static char  wanted[] =
        "*3\r\n$3\r\nSET\r\n$3\r\na\0b\r\n$20\r\n18446744073709551615\r\n"
        "*2\r\n$4\r\nPING\r\n$0\r\n\r\n";

    ngx_memzero(&out, sizeof(out));

    ngx_idempotency_resp_command(&out, 3);
    ngx_idempotency_resp_word(&out, (u_char *) "SET", 3);
    ngx_idempotency_resp_str(&out, &word);
    ngx_idempotency_resp_number(&out, (uint64_t) -1);
    say(&out, "PING %V", &empty);

    if (check_equal(out.len, sizeof(wanted) - 1)) {
        check(ngx_memcmp(out.buf, wanted, out.len) == 0);
    }

    ngx_idempotency_resp_skip(&out, 10);
    check_equal(out.pos, 10);
    ngx_idempotency_resp_skip(&out, out.len - 10);
    check(out.pos == 0 && out.len == 0);

    for (i = 0; i < 100000; i++) {
        say(&out, "PING");
    }

    check_equal(out.len, 1400000);
    ngx_idempotency_resp_skip(&out, 1400000);
    check(out.buf == NULL && !out.failed);

    ngx_idempotency_resp_buf_free(&out);
}


typedef struct {
    char                           *text;
    ngx_idempotency_redis_error_e   error;
    ngx_idempotency_redis_do_e      what;
    ngx_uint_t                      maybe;
} verdict_t;


/* STORES.md R16, by what servers say word for word */

static verdict_t  verdicts[] = {
    { "NOSCRIPT No matching script. Please use EVAL.",
      NGX_IDEMPOTENCY_REDIS_FAULT, NGX_IDEMPOTENCY_REDIS_TEXT, 0 },
    { "MOVED 3999 127.0.0.1:6381",
      NGX_IDEMPOTENCY_REDIS_AWAY, NGX_IDEMPOTENCY_REDIS_MOVED, 0 },
    { "ASK 3999 127.0.0.1:6381",
      NGX_IDEMPOTENCY_REDIS_AWAY, NGX_IDEMPOTENCY_REDIS_ASK, 0 },
    { "READONLY You can't write against a read only replica.",
      NGX_IDEMPOTENCY_REDIS_AWAY, NGX_IDEMPOTENCY_REDIS_MASTER, 0 },
    { "LOADING Redis is loading the dataset in memory",
      NGX_IDEMPOTENCY_REDIS_AWAY, NGX_IDEMPOTENCY_REDIS_LATER, 0 },
    { "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set "
      "to 'no'.",
      NGX_IDEMPOTENCY_REDIS_AWAY, NGX_IDEMPOTENCY_REDIS_LATER, 0 },
    { "CLUSTERDOWN The cluster is down",
      NGX_IDEMPOTENCY_REDIS_AWAY, NGX_IDEMPOTENCY_REDIS_LATER, 0 },
    { "TRYAGAIN Multiple keys request during rehashing of slot",
      NGX_IDEMPOTENCY_REDIS_AWAY, NGX_IDEMPOTENCY_REDIS_LATER, 0 },
    { "BUSY Redis is busy running a script. You can only call SCRIPT KILL or "
      "SHUTDOWN NOSAVE.",
      NGX_IDEMPOTENCY_REDIS_AWAY, NGX_IDEMPOTENCY_REDIS_LATER, 0 },
    { "OOM command not allowed when used memory > 'maxmemory'.",
      NGX_IDEMPOTENCY_REDIS_FULL, NGX_IDEMPOTENCY_REDIS_GIVE, 0 },
    { "OOM command not allowed when used memory > 'maxmemory'. script: 2ab, on "
      "@user_script:1.",
      NGX_IDEMPOTENCY_REDIS_FULL, NGX_IDEMPOTENCY_REDIS_GIVE, 0 },
    { "MISCONF Redis is configured to save RDB snapshots, but it's currently "
      "unable to persist to disk.",
      NGX_IDEMPOTENCY_REDIS_FULL, NGX_IDEMPOTENCY_REDIS_GIVE, 0 },
    { "NOREPLICAS Not enough good replicas to write.",
      NGX_IDEMPOTENCY_REDIS_FULL, NGX_IDEMPOTENCY_REDIS_GIVE, 0 },
    { "NOAUTH Authentication required.",
      NGX_IDEMPOTENCY_REDIS_DENIED, NGX_IDEMPOTENCY_REDIS_GIVE, 0 },
    { "WRONGPASS invalid username-password pair or user is disabled.",
      NGX_IDEMPOTENCY_REDIS_DENIED, NGX_IDEMPOTENCY_REDIS_GIVE, 0 },
    { "DENIED Redis is running in protected mode because",
      NGX_IDEMPOTENCY_REDIS_DENIED, NGX_IDEMPOTENCY_REDIS_GIVE, 0 },
    { "NOPERM this user has no permissions to run the 'evalsha' command",
      NGX_IDEMPOTENCY_REDIS_DENIED, NGX_IDEMPOTENCY_REDIS_GIVE, 0 },
    { "NOPERM this user has no permissions to access one of the channels used "
      "as arguments script: 2ab, on @user_script:9.",
      NGX_IDEMPOTENCY_REDIS_DENIED, NGX_IDEMPOTENCY_REDIS_GIVE, 1 },
    { "CROSSSLOT Keys in request don't hash to the same slot",
      NGX_IDEMPOTENCY_REDIS_FAULT, NGX_IDEMPOTENCY_REDIS_GIVE, 0 },
    { "WRONGTYPE Operation against a key holding the wrong kind of value",
      NGX_IDEMPOTENCY_REDIS_FAULT, NGX_IDEMPOTENCY_REDIS_GIVE, 0 },
    { "WRONGTYPE Operation against a key holding the wrong kind of value "
      "script: 2ab, on @user_script:1.",
      NGX_IDEMPOTENCY_REDIS_FAULT, NGX_IDEMPOTENCY_REDIS_GIVE, 1 },
    { "READONLY You can't write against a read only replica. script: 2ab, on "
      "@user_script:1.",
      NGX_IDEMPOTENCY_REDIS_AWAY, NGX_IDEMPOTENCY_REDIS_MASTER, 0 },
    { "ERR Error running script (call to f_2ab): @user_script:1: Script killed "
      "by user with SCRIPT KILL...",
      NGX_IDEMPOTENCY_REDIS_FAULT, NGX_IDEMPOTENCY_REDIS_GIVE, 0 },
    { "ERR user_script:1: Script attempted to access nonexistent global "
      "variable 'x' script: 2ab, on @user_script:1.",
      NGX_IDEMPOTENCY_REDIS_FAULT, NGX_IDEMPOTENCY_REDIS_GIVE, 1 },
    { "UNBLOCKED force unblock from blocking operation, instance state changed "
      "(master -> replica?)",
      NGX_IDEMPOTENCY_REDIS_UNACKED, NGX_IDEMPOTENCY_REDIS_GIVE, 1 },
    { "ERR unknown command 'EVALSHA'",
      NGX_IDEMPOTENCY_REDIS_FAULT, NGX_IDEMPOTENCY_REDIS_GIVE, 1 },
    { "MOVEDON something new",
      NGX_IDEMPOTENCY_REDIS_FAULT, NGX_IDEMPOTENCY_REDIS_GIVE, 1 },
    { "OOM", NGX_IDEMPOTENCY_REDIS_FULL, NGX_IDEMPOTENCY_REDIS_GIVE, 0 },
    { "", NGX_IDEMPOTENCY_REDIS_FAULT, NGX_IDEMPOTENCY_REDIS_GIVE, 1 },
    { NULL, 0, 0, 0 }
};


unit_case("what an error says of its script")
{
    ngx_str_t                        said;
    verdict_t                       *v;
    ngx_idempotency_redis_verdict_t  verdict;

    for (v = verdicts; v->text; v++) {
        said.data = (u_char *) v->text;
        said.len = ngx_strlen(v->text);

        verdict = ngx_idempotency_redis_verdict(&said);

        if (!(check_equal(verdict.error, v->error)
              && check_equal(verdict.what, v->what)
              && check_equal(verdict.maybe, v->maybe)))
        {
            unit_note("%s", v->text);
        }
    }
}
