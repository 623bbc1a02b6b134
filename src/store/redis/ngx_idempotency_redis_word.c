
/*
 * What an error says: may the script have been executed, and what is to be
 * done.  STORES.md R16: the checks of a command come before its execution, and
 * a script of ours writes once, and last.
 */


#include "ngx_idempotency_redis_conn.h"


typedef struct {
    ngx_str_t                        word;
    ngx_idempotency_redis_verdict_t  verdict;
} word_t;


static ngx_uint_t word_in(ngx_str_t *text, char *s);


static word_t  words[] = {
    { ngx_string("NOSCRIPT"),
      { NGX_IDEMPOTENCY_REDIS_FAULT, NGX_IDEMPOTENCY_REDIS_TEXT, 0 } },

    { ngx_string("MOVED"),
      { NGX_IDEMPOTENCY_REDIS_AWAY, NGX_IDEMPOTENCY_REDIS_MOVED, 0 } },
    { ngx_string("ASK"),
      { NGX_IDEMPOTENCY_REDIS_AWAY, NGX_IDEMPOTENCY_REDIS_ASK, 0 } },
    { ngx_string("READONLY"),
      { NGX_IDEMPOTENCY_REDIS_AWAY, NGX_IDEMPOTENCY_REDIS_MASTER, 0 } },

    { ngx_string("LOADING"),
      { NGX_IDEMPOTENCY_REDIS_AWAY, NGX_IDEMPOTENCY_REDIS_LATER, 0 } },
    { ngx_string("MASTERDOWN"),
      { NGX_IDEMPOTENCY_REDIS_AWAY, NGX_IDEMPOTENCY_REDIS_LATER, 0 } },
    { ngx_string("CLUSTERDOWN"),
      { NGX_IDEMPOTENCY_REDIS_AWAY, NGX_IDEMPOTENCY_REDIS_LATER, 0 } },
    { ngx_string("TRYAGAIN"),
      { NGX_IDEMPOTENCY_REDIS_AWAY, NGX_IDEMPOTENCY_REDIS_LATER, 0 } },
    { ngx_string("BUSY"),
      { NGX_IDEMPOTENCY_REDIS_AWAY, NGX_IDEMPOTENCY_REDIS_LATER, 0 } },

    { ngx_string("OOM"),
      { NGX_IDEMPOTENCY_REDIS_FULL, NGX_IDEMPOTENCY_REDIS_GIVE, 0 } },
    { ngx_string("MISCONF"),
      { NGX_IDEMPOTENCY_REDIS_FULL, NGX_IDEMPOTENCY_REDIS_GIVE, 0 } },
    { ngx_string("NOREPLICAS"),
      { NGX_IDEMPOTENCY_REDIS_FULL, NGX_IDEMPOTENCY_REDIS_GIVE, 0 } },

    { ngx_string("NOAUTH"),
      { NGX_IDEMPOTENCY_REDIS_DENIED, NGX_IDEMPOTENCY_REDIS_GIVE, 0 } },
    { ngx_string("WRONGPASS"),
      { NGX_IDEMPOTENCY_REDIS_DENIED, NGX_IDEMPOTENCY_REDIS_GIVE, 0 } },
    { ngx_string("DENIED"),
      { NGX_IDEMPOTENCY_REDIS_DENIED, NGX_IDEMPOTENCY_REDIS_GIVE, 0 } },
    { ngx_string("NOPERM"),
      { NGX_IDEMPOTENCY_REDIS_DENIED, NGX_IDEMPOTENCY_REDIS_GIVE, 0 } },

    { ngx_string("CROSSSLOT"),
      { NGX_IDEMPOTENCY_REDIS_FAULT, NGX_IDEMPOTENCY_REDIS_GIVE, 0 } },
    { ngx_string("WRONGTYPE"),
      { NGX_IDEMPOTENCY_REDIS_FAULT, NGX_IDEMPOTENCY_REDIS_GIVE, 0 } },

    /* behind a script that was executed, by one that is no master any more */
    { ngx_string("UNBLOCKED"),
      { NGX_IDEMPOTENCY_REDIS_UNACKED, NGX_IDEMPOTENCY_REDIS_GIVE, 1 } },

    { ngx_null_string,
      { NGX_IDEMPOTENCY_REDIS_FAULT, NGX_IDEMPOTENCY_REDIS_GIVE, 1 } }
};


ngx_idempotency_redis_verdict_t
ngx_idempotency_redis_verdict(ngx_str_t *text)
{
    word_t                           *word;
    ngx_idempotency_redis_verdict_t   verdict;

    for (word = words; word->word.len; word++) {
        if (text->len >= word->word.len
            && ngx_memcmp(text->data, word->word.data, word->word.len) == 0
            && (text->len == word->word.len
                || text->data[word->word.len] == ' '))
        {
            break;
        }
    }

    verdict = word->verdict;

    /* it was not let do its first write, or it can't be killed any more */

    if (word_in(text, "Script killed by user")) {
        verdict.maybe = 0;
        return verdict;
    }

    /*
     * A command inside of the script was refused, which need not be its first
     * one: an outcome is published behind its write.  Who is full, or no
     * master, refuses writes alone, and so all of them.
     */

    if (verdict.error != NGX_IDEMPOTENCY_REDIS_FULL
        && verdict.what != NGX_IDEMPOTENCY_REDIS_MASTER
        && word_in(text, "script: "))
    {
        verdict.what = NGX_IDEMPOTENCY_REDIS_GIVE;
        verdict.maybe = 1;
    }

    return verdict;
}


static ngx_uint_t
word_in(ngx_str_t *text, char *s)
{
    size_t  n;

    n = ngx_strlen(s);

    return text->len >= n
           && ngx_strlcasestrn(text->data, text->data + text->len,
                               (u_char *) s, n - 1)
              != NULL;
}
