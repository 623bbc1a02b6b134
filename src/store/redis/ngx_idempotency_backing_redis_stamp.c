
/*
 * The backing that is a Redis: which store it is, and how far it has come.  A
 * zone has a stamp there (in a cluster one for each of 64 parts of its slots,
 * which move with them), and remembers in shared memory what it has seen of the
 * stamp: its identity, and the last beat that was acknowledged.
 *
 * Invariants, by name:
 *
 *   KNOWN    A zone that knows a stamp never makes one, whatever of it was
 *            acknowledged.
 *   MEANT    Nothing is claimed, written or released unless the stamp is the
 *            known one: the scripts compare it.  In a cluster they can't reach
 *            it, so each connection asks, and one worker asks each second.
 *   ASKED    The server compares its stamp with the one that the question
 *            names.  If the zone has learnt another stamp since, the answer
 *            counts for nothing.
 *   BEHIND   A beat is behind if it is older than an acknowledged one, by the
 *            server's own clock.  None of our clocks is compared, so no beat is
 *            late.
 *   REFUSED  If the worker that asks each second finds a stamp wrong for two
 *            seconds, it is refused until an operator agrees, or until it is
 *            right again: a master that was replaced is asked no longer than
 *            that.
 */


#include "ngx_idempotency_backing_redis.h"


/* how often the stamps are asked for, and how long they have to be wrong, in
   msec; a late answer may take as long as two calls */

#define STAMP_BEAT   1000
#define STAMP_WRONG  2000

/* a code of stamp.lua that no operator can agree to */

#define STAMP_FOREIGN  'K'

/* values of tier.other: refused, or wrong and perhaps refused soon */

#define STAMP_REFUSED  1
#define STAMP_WRONGED  2

#define STAMP_LEN   (2 * sizeof(uint64_t))
#define STAMP_HEAD  (2 + 2 * NGX_IDEMPOTENCY_STAMP_LEN + 1 + NGX_INT_T_LEN)


/* arguments of the script */

typedef struct {
    u_char                          known[STAMP_LEN];
    u_char                          beat[NGX_INT64_LEN];
} stamp_says_t;


struct ngx_idempotency_redis_beat_s {
    ngx_idempotency_redis_call_t    call;
    ngx_str_t                       args[NGX_IDEMPOTENCY_REDIS_STAMP_ARGS];
    stamp_says_t                    says;
    ngx_idempotency_redis_stamp_t  *stamp;
    ngx_msec_t                      sent;
    ngx_uint_t                      busy;
};


/* a reply of the script */

typedef struct {
    ngx_uint_t                      code;
    uint64_t                        known;
    uint64_t                        least;
    uint64_t                        identity;
    uint64_t                        was;
    uint64_t                        beat;
} stamp_answer_t;


static ngx_int_t stamp_keys(ngx_idempotency_redis_zone_t *redis);
static ngx_int_t stamp_parts(ngx_idempotency_redis_zone_t *redis, size_t size);
static ngx_idempotency_redis_zone_t *stamp_zone(
    ngx_idempotency_redis_mark_t *mark);
static ngx_uint_t stamp_meant(ngx_idempotency_redis_zone_t *redis);
static void stamp_mark_says(ngx_idempotency_redis_stamp_t *stamp,
    ngx_str_t *args);
static void stamp_says(ngx_idempotency_redis_stamp_t *stamp,
    stamp_says_t *says, ngx_str_t *args);
static void stamp_beat(ngx_idempotency_redis_beat_t *beat, ngx_uint_t n,
    ngx_msec_t deadline);
static void stamp_beat_handler(ngx_idempotency_redis_call_t *call);
static ngx_int_t stamp_mark_handler(ngx_idempotency_redis_stamp_t *stamp,
    ngx_idempotency_redis_reply_t *reply);
static ngx_int_t stamp_judge(ngx_idempotency_redis_stamp_t *stamp,
    ngx_idempotency_redis_reply_t *reply, ngx_uint_t acked, ngx_msec_t *sent);
static ngx_int_t stamp_read(ngx_idempotency_redis_reply_t *reply,
    stamp_answer_t *answer);
static uint64_t stamp_hex(ngx_str_t *text);
static void stamp_right(ngx_idempotency_redis_zone_t *redis,
    ngx_idempotency_tier_stamp_t *s, stamp_answer_t *answer,
    ngx_uint_t acked);
static ngx_uint_t stamp_wrong(ngx_idempotency_redis_zone_t *redis,
    ngx_idempotency_tier_stamp_t *s, stamp_answer_t *answer,
    ngx_msec_t *sent);
static void stamp_changed(ngx_idempotency_tier_sh_t *sh);
static void stamp_why(ngx_idempotency_redis_stamp_t *stamp,
    stamp_answer_t *answer);
static void stamp_tell_right(ngx_idempotency_redis_zone_t *redis,
    stamp_answer_t *answer, ngx_uint_t refused);
static void stamp_tell_wrong(ngx_idempotency_redis_zone_t *redis,
    ngx_uint_t accepts);


ngx_int_t
ngx_idempotency_redis_stamps_init(ngx_idempotency_redis_zone_t *redis)
{
    u_char                        *p;
    ngx_idempotency_redis_mark_t  *mark;

    mark = &redis->mark;

    p = ngx_pnalloc(redis->pool, 2 * STAMP_HEAD + 1 + STAMP_LEN
                                 + NGX_INT64_LEN);
    if (p == NULL) {
        return NGX_ERROR;
    }

    redis->stamp_head.data = p;

    p = ngx_cpymem(p, "2 ", 2);
    p = ngx_hex_dump(p, (u_char *) redis->tier.shm->store->secret->stamp,
                     NGX_IDEMPOTENCY_STAMP_LEN);

    p = ngx_sprintf(p, " %ud", NGX_IDEMPOTENCY_FINGERPRINT_VERSION);

    redis->stamp_head.len = p - redis->stamp_head.data;

    mark->meant[0].data = p;
    mark->meant[1].data = p + redis->stamp_head.len + 1 + STAMP_LEN;

    (void) ngx_sprintf(redis->stamp_asker, "%016xL", redis->tier.instance);

    mark->tries = &ngx_idempotency_redis_scripts[NGX_IDEMPOTENCY_REDIS_TRY];
    mark->script = &ngx_idempotency_redis_scripts[NGX_IDEMPOTENCY_REDIS_STAMP];
    mark->says = stamp_mark_says;
    mark->handler = stamp_mark_handler;

    if (stamp_keys(redis) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_idempotency_redis_mark(redis->redis, mark);

    return NGX_OK;
}


static ngx_int_t
stamp_keys(ngx_idempotency_redis_zone_t *redis)
{
    u_char                         *p;
    size_t                          size;
    ngx_uint_t                      i, n;
    ngx_idempotency_redis_stamp_t  *stamps;

    n = (redis->conf->mode == NGX_IDEMPOTENCY_REDIS_CLUSTER)
            ? NGX_IDEMPOTENCY_TIER_STAMPS : 1;
    size = redis->prefix.len + sizeof("stamp{}") - 1 + NGX_INT_T_LEN;

    stamps = ngx_palloc(redis->pool,
                        n * sizeof(ngx_idempotency_redis_stamp_t));
    p = ngx_pnalloc(redis->pool, n * size);

    if (stamps == NULL || p == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < n; i++) {
        stamps[i].mark = &redis->mark;
        stamps[i].key.data = p + i * size;
        stamps[i].key.len = ngx_sprintf(stamps[i].key.data, "%Vstamp",
                                        &redis->prefix)
                            - stamps[i].key.data;
    }

    redis->mark.stamps = stamps;
    redis->mark.nstamps = n;

    return (n == 1) ? NGX_OK : stamp_parts(redis, size);
}


/* a key for each part of the slots, the same for all zones: {number} */

static ngx_int_t
stamp_parts(ngx_idempotency_redis_zone_t *redis, size_t size)
{
    ngx_str_t                       key;
    ngx_uint_t                      i, n, part;
    ngx_idempotency_redis_stamp_t  *stamps;
    u_char                          there[NGX_IDEMPOTENCY_TIER_STAMPS];

    stamps = redis->mark.stamps;
    ngx_memzero(there, sizeof(there));

    key.data = ngx_pnalloc(redis->pool, size);
    if (key.data == NULL) {
        return NGX_ERROR;
    }

    for (i = 0, n = 0; n < NGX_IDEMPOTENCY_TIER_STAMPS; i++) {

        if (i == NGX_IDEMPOTENCY_REDIS_SLOTS) {

            /* a prefix with braces: all keys are in one slot */

            redis->mark.nstamps = 1;
            break;
        }

        key.len = ngx_sprintf(key.data, "%Vstamp{%ui}", &redis->prefix, i)
                  - key.data;

        part = ngx_idempotency_redis_slot(&key) * NGX_IDEMPOTENCY_TIER_STAMPS
               / NGX_IDEMPOTENCY_REDIS_SLOTS;

        if (!there[part]) {
            there[part] = 1;
            n++;

            stamps[part].key.len = key.len;
            ngx_memcpy(stamps[part].key.data, key.data, key.len);
        }
    }

    return NGX_OK;
}


ngx_int_t
ngx_idempotency_redis_stamps_init_process(ngx_idempotency_redis_zone_t *redis,
    ngx_pool_t *pool)
{
    ngx_uint_t                     i, n;
    ngx_idempotency_redis_beat_t  *beat;

    n = redis->mark.nstamps;

    redis->beats = ngx_pcalloc(pool,
                               2 * n * sizeof(ngx_idempotency_redis_beat_t));
    if (redis->beats == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < 2 * n; i++) {
        beat = &redis->beats[i];

        beat->stamp = &redis->mark.stamps[i % n];
        beat->sent = ngx_current_msec - STAMP_BEAT;

        beat->call.script = redis->mark.script;
        beat->call.key = beat->stamp->key;
        beat->call.args = beat->args;
        beat->call.nargs = NGX_IDEMPOTENCY_REDIS_STAMP_ARGS;
        beat->call.durable = (i >= n);
        beat->call.handler = stamp_beat_handler;
        beat->call.data = beat;
    }

    redis->beaten = ngx_current_msec - STAMP_BEAT;

    /* no connection can have another stamp: there is none yet */

    (void) stamp_meant(redis);

    return NGX_OK;
}


static ngx_idempotency_redis_zone_t *
stamp_zone(ngx_idempotency_redis_mark_t *mark)
{
    return (ngx_idempotency_redis_zone_t *)
               ((u_char *) mark
                - offsetof(ngx_idempotency_redis_zone_t, mark));
}


/* in a cluster nothing is sent while a stamp is wrong */

const char *
ngx_idempotency_redis_stamps_look(ngx_idempotency_redis_zone_t *redis)
{
    ngx_idempotency_tier_sh_t  *sh;

    sh = &redis->tier.shm->sh->tier;

    if (sh->other == STAMP_REFUSED
        || (sh->other && redis->mark.nstamps > 1))
    {
        return "it is not the one that it was, or has forgotten";
    }

    if (stamp_meant(redis)) {
        ngx_idempotency_redis_marked(redis->redis, &redis->mark);
    }

    return NULL;
}


/* Takes over from shared memory the stamp that the scripts must find
   (record.lua).  True if it has changed: then a wrong stamp may be right
   now. */

static ngx_uint_t
stamp_meant(ngx_idempotency_redis_zone_t *redis)
{
    int64_t                        least;
    u_char                        *p;
    ngx_uint_t                     changed;
    ngx_idempotency_shm_t         *shm;
    ngx_idempotency_redis_mark_t  *mark;
    ngx_idempotency_tier_stamp_t  *s;

    shm = redis->tier.shm;
    mark = &redis->mark;
    s = shm->sh->tier.stamps;

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        return 0;
    }

    changed = (redis->stamped != shm->sh->tier.stamped);
    redis->stamped = shm->sh->tier.stamped;
    least = (int64_t) s->beat - STAMP_WRONG;

    p = ngx_cpymem(mark->meant[0].data, redis->stamp_head.data,
                   redis->stamp_head.len);
    p = ngx_sprintf(p, " %016xL", s->identity);
    mark->meant[0].len = p - mark->meant[0].data;

    ngx_idempotency_shm_unlock(shm);

    p = ngx_sprintf(mark->meant[1].data, "%L", ngx_max(least, 0));
    mark->meant[1].len = p - mark->meant[1].data;

    return changed;
}


static void
stamp_mark_says(ngx_idempotency_redis_stamp_t *stamp, ngx_str_t *args)
{
    static stamp_says_t  says;

    stamp_says(stamp, &says, args);
}


static void
stamp_says(ngx_idempotency_redis_stamp_t *stamp, stamp_says_t *says,
    ngx_str_t *args)
{
    uint64_t                       identity, beat;
    ngx_idempotency_shm_t         *shm;
    ngx_idempotency_redis_zone_t  *redis;
    ngx_idempotency_tier_stamp_t  *s;

    redis = stamp_zone(stamp->mark);
    shm = redis->tier.shm;
    s = &shm->sh->tier.stamps[stamp - stamp->mark->stamps];

    identity = 0;
    beat = 0;

    if (ngx_idempotency_shm_lock(shm) == NGX_OK) {
        identity = s->identity;
        beat = s->beat;

        ngx_idempotency_shm_unlock(shm);
    }

    args[0] = redis->stamp_head;

    args[1].data = says->known;
    args[1].len = identity ? ngx_sprintf(says->known, "%016xL", identity)
                             - says->known
                           : 0;

    args[2].data = says->beat;
    args[2].len = ngx_sprintf(says->beat, "%uL", beat) - says->beat;

    args[3].data = redis->stamp_asker;
    args[3].len = sizeof(redis->stamp_asker);

    ngx_str_set(&args[4], "-");
}


void
ngx_idempotency_redis_stamps_beat(ngx_idempotency_tier_t *tier)
{
    ngx_uint_t                     i;
    ngx_idempotency_redis_zone_t  *redis;

    redis = (ngx_idempotency_redis_zone_t *) tier;

    if (redis->redis == NULL || redis->exiting || ngx_exiting
        || ngx_current_msec - redis->beaten < STAMP_BEAT
        || !ngx_idempotency_redis_up(redis->redis))
    {
        return;
    }

    redis->beaten = ngx_current_msec;

    for (i = 0; i < redis->mark.nstamps; i++) {
        stamp_beat(&redis->beats[i], 0,
                   ngx_current_msec + 2 * redis->conf->timeout);
    }
}


/* before the call, on its connection: one acknowledgement covers both */

void
ngx_idempotency_redis_stamps_with(ngx_idempotency_redis_zone_t *redis,
    ngx_idempotency_redis_call_t *call, ngx_uint_t n)
{
    ngx_idempotency_redis_beat_t  *beat;

    if (!call->durable || !redis->tier.strict) {
        return;
    }

    beat = &redis->beats[redis->mark.nstamps];

    if (redis->mark.nstamps > 1) {
        beat += ngx_idempotency_redis_slot(&call->key) * redis->mark.nstamps
                / NGX_IDEMPOTENCY_REDIS_SLOTS;
    }

    if (ngx_current_msec - beat->sent >= STAMP_BEAT) {
        stamp_beat(beat, n, call->deadline);
    }
}


static void
stamp_beat(ngx_idempotency_redis_beat_t *beat, ngx_uint_t n,
    ngx_msec_t deadline)
{
    ngx_idempotency_redis_zone_t  *redis;
    ngx_idempotency_tier_sh_t     *sh;

    if (beat->busy) {
        return;
    }

    redis = stamp_zone(beat->stamp->mark);
    sh = &redis->tier.shm->sh->tier;

    stamp_says(beat->stamp, &beat->says, beat->args);

    if (beat->call.durable) {
        ngx_str_set(&beat->args[4], "w");

    } else if (sh->agreed) {
        ngx_str_set(&beat->args[4], "a");
    }

    beat->busy = 1;
    beat->sent = ngx_current_msec;
    beat->call.deadline = deadline;

    ngx_idempotency_redis_call(redis->redis, n, &beat->call);
}


static void
stamp_beat_handler(ngx_idempotency_redis_call_t *call)
{
    ngx_idempotency_redis_beat_t  *beat = call->data;

    ngx_idempotency_redis_zone_t  *redis;

    beat->busy = 0;
    redis = stamp_zone(beat->stamp->mark);

    if (call->reply == NULL
        || (call->error != NGX_IDEMPOTENCY_REDIS_OK
            && call->error != NGX_IDEMPOTENCY_REDIS_UNACKED))
    {
        return;
    }

    (void) stamp_judge(beat->stamp, call->reply,
                       call->error == NGX_IDEMPOTENCY_REDIS_OK
                       && (call->durable || !redis->tier.strict),
                       &beat->sent);
}


static ngx_int_t
stamp_mark_handler(ngx_idempotency_redis_stamp_t *stamp,
    ngx_idempotency_redis_reply_t *reply)
{
    return stamp_judge(stamp, reply, !stamp_zone(stamp->mark)->tier.strict,
                       NULL);
}


/* NGX_OK: the stamp is the known one; NGX_AGAIN: another one is known since the
   question was sent */

static ngx_int_t
stamp_judge(ngx_idempotency_redis_stamp_t *stamp,
    ngx_idempotency_redis_reply_t *reply, ngx_uint_t acked, ngx_msec_t *sent)
{
    ngx_uint_t                     refused, tell;
    stamp_answer_t                 answer;
    ngx_idempotency_shm_t         *shm;
    ngx_idempotency_redis_zone_t  *redis;
    ngx_idempotency_tier_stamp_t  *s;

    redis = stamp_zone(stamp->mark);
    shm = redis->tier.shm;
    s = &shm->sh->tier.stamps[stamp - stamp->mark->stamps];

    if (stamp_read(reply, &answer) != NGX_OK) {
        stamp->mark->why.data = stamp->mark->text;
        stamp->mark->why.len = ngx_snprintf(stamp->mark->text,
                                       sizeof(stamp->mark->text),
                                       "its \"%V\" is not known: %V",
                                       &stamp->key, &reply->str)
                               - stamp->mark->text;
        return NGX_ERROR;
    }

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        return NGX_AGAIN;
    }

    if (answer.known != s->identity
        && (answer.identity != s->identity || !answer.beat))
    {
        ngx_idempotency_shm_unlock(shm);
        return NGX_AGAIN;
    }

    refused = s->refused;

    if (answer.beat) {
        stamp_right(redis, s, &answer, acked);
        ngx_idempotency_shm_unlock(shm);

        stamp_tell_right(redis, &answer, refused);

        if (stamp_meant(redis)) {
            ngx_idempotency_redis_marked(redis->redis, &redis->mark);
        }

        return NGX_OK;
    }

    stamp_why(stamp, &answer);
    tell = stamp_wrong(redis, s, &answer, sent);

    ngx_idempotency_shm_unlock(shm);

    if (tell) {

        /* if we go on with this stamp, ask at once */

        redis->beaten = ngx_current_msec - STAMP_BEAT;

        stamp_tell_wrong(redis, tell == STAMP_WRONGED);
    }

    return NGX_ERROR;
}


static ngx_int_t
stamp_read(ngx_idempotency_redis_reply_t *reply, stamp_answer_t *answer)
{
    ngx_uint_t                      i;
    ngx_idempotency_redis_reply_t  *elts;

    if (reply->type != NGX_IDEMPOTENCY_REDIS_ARRAY || reply->n != 7) {
        return NGX_ERROR;
    }

    elts = reply->elts;

    for (i = 0; i < 7; i++) {
        if (elts[i].type != NGX_IDEMPOTENCY_REDIS_STRING) {
            return NGX_ERROR;
        }
    }

    if (elts[0].str.len != 1) {
        return NGX_ERROR;
    }

    answer->code = elts[0].str.data[0];
    answer->known = stamp_hex(&elts[2].str);
    answer->least = ngx_atoof(elts[3].str.data, elts[3].str.len);
    answer->identity = stamp_hex(&elts[4].str);
    answer->was = ngx_atoof(elts[5].str.data, elts[5].str.len);
    answer->beat = ngx_atoof(elts[6].str.data, elts[6].str.len);

    return NGX_OK;
}


static uint64_t
stamp_hex(ngx_str_t *text)
{
    u_char      c;
    uint64_t    n;
    ngx_uint_t  i;

    for (i = 0, n = 0; i < text->len; i++) {
        c = text->data[i];
        n = n << 4 | (c <= '9' ? c - '0' : c - 'a' + 10);
    }

    return n;
}


static void
stamp_right(ngx_idempotency_redis_zone_t *redis,
    ngx_idempotency_tier_stamp_t *s, stamp_answer_t *answer, ngx_uint_t acked)
{
    ngx_uint_t                  changed;
    ngx_idempotency_tier_sh_t  *sh;

    sh = &redis->tier.shm->sh->tier;
    changed = (s->since != 0);

    if (s->identity != answer->identity) {
        s->identity = answer->identity;
        s->beat = 0;
        changed = 1;
    }

    if (acked) {
        s->beat = ngx_max(s->beat, answer->beat);
    }

    s->since = 0;
    s->refused = 0;

    if (changed) {
        stamp_changed(sh);
    }
}


/* STAMP_REFUSED, or STAMP_WRONGED: we go on with it, as the block says; 0:
   there is nothing to log, or not yet */

static ngx_uint_t
stamp_wrong(ngx_idempotency_redis_zone_t *redis,
    ngx_idempotency_tier_stamp_t *s, stamp_answer_t *answer, ngx_msec_t *sent)
{
    ngx_uint_t                  other;
    ngx_idempotency_tier_sh_t  *sh;

    sh = &redis->tier.shm->sh->tier;

    s->found = answer->code;

    if (s->since == 0) {
        s->since = ngx_max(ngx_current_msec, 1);
        stamp_changed(sh);
        return 0;
    }

    if (s->refused || sent == NULL
        || (ngx_msec_int_t) (*sent - s->since) < STAMP_WRONG)
    {
        return 0;
    }

    if (s->found != STAMP_FOREIGN && redis->conf->lost) {
        if (sh->agreed) {
            return 0;
        }

        sh->agreed = 1;

        return STAMP_WRONGED;
    }

    other = sh->other;

    s->refused = 1;
    sh->failing = 1;
    stamp_changed(sh);

    return (other == STAMP_REFUSED) ? 0 : STAMP_REFUSED;
}


static void
stamp_changed(ngx_idempotency_tier_sh_t *sh)
{
    ngx_uint_t  i, other;

    other = 0;

    for (i = 0; i < NGX_IDEMPOTENCY_TIER_STAMPS; i++) {

        if (sh->stamps[i].refused) {
            other = STAMP_REFUSED;
            break;
        }

        if (sh->stamps[i].since) {
            other = STAMP_WRONGED;
        }
    }

    if (other == 0) {
        sh->agreed = 0;
    }

    sh->other = other;
    sh->stamped++;
}


static void
stamp_why(ngx_idempotency_redis_stamp_t *stamp, stamp_answer_t *answer)
{
    u_char                        *p, *last;
    ngx_idempotency_redis_mark_t  *mark;

    mark = stamp->mark;

    p = mark->text;
    last = p + sizeof(mark->text);

    switch (answer->code) {

    case 'N':
        p = ngx_slprintf(p, last, "it has no \"%V\": it is another one, or "
                         "was emptied", &stamp->key);
        break;

    case 'S':
        p = ngx_slprintf(p, last, "it is another one, as its \"%V\" tells",
                         &stamp->key);
        break;

    case 'P':
        p = ngx_slprintf(p, last, "it has forgotten: it is %uL s older than "
                         "what it had acknowledged, as its \"%V\" tells",
                         (answer->least - answer->was) / 1000, &stamp->key);
        break;

    default:
        p = ngx_slprintf(p, last, "its \"%V\" tells of another digest key than "
                         "that of \"idempotency_secret\", or of another "
                         "version of the module", &stamp->key);
    }

    mark->why.data = mark->text;
    mark->why.len = p - mark->text;
}


static void
stamp_tell_right(ngx_idempotency_redis_zone_t *redis, stamp_answer_t *answer,
    ngx_uint_t refused)
{
    ngx_str_t  *zone;

    zone = &redis->tier.shm->store->name;

    if (answer->identity == answer->known && answer->was < answer->least) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                      "idempotency: the %V of zone \"%V\" has forgotten %uL ms "
                      "of what it had acknowledged: what was claimed then may "
                      "be executed again", &redis->tier.name, zone,
                      answer->least - answer->was);
    }

    if (!refused) {
        return;
    }

    if (answer->identity == answer->known) {
        ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                      "idempotency: the %V of zone \"%V\" is the one that it "
                      "was", &redis->tier.name, zone);

    } else {
        ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                      "idempotency: the %V of zone \"%V\" is used as it is, as "
                      "somebody has agreed to that", &redis->tier.name, zone);
    }
}


static void
stamp_tell_wrong(ngx_idempotency_redis_zone_t *redis, ngx_uint_t accepts)
{
    ngx_str_t  *zone;

    zone = &redis->tier.shm->store->name;

    if (accepts) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                      "idempotency: the %V of zone \"%V\" is gone on with: %V; "
                      "what it does not know is executed again",
                      &redis->tier.name, zone, &redis->mark.why);
        return;
    }

    ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                  "idempotency: the %V of zone \"%V\" is refused, %V; "
                  "to agree to it as it is, PUT {\"store\":\"accept\"} "
                  "to /zones/%V of idempotency_api",
                  &redis->tier.name, zone, &redis->mark.why, zone);
}


/* this worker asks at once, and the others follow */

ngx_int_t
ngx_idempotency_redis_stamps_agree(ngx_idempotency_tier_t *tier)
{
    ngx_uint_t                     i, n;
    ngx_idempotency_tier_sh_t     *sh;
    ngx_idempotency_redis_zone_t  *redis;

    redis = (ngx_idempotency_redis_zone_t *) tier;

    if (redis->redis == NULL || ngx_idempotency_shm_lock(tier->shm) != NGX_OK) {
        return NGX_DECLINED;
    }

    sh = &tier->shm->sh->tier;
    n = 0;

    for (i = 0; i < redis->mark.nstamps; i++) {
        n += (sh->stamps[i].since && sh->stamps[i].found != STAMP_FOREIGN);
    }

    sh->agreed = (n != 0);

    ngx_idempotency_shm_unlock(tier->shm);

    if (n == 0) {
        return NGX_DECLINED;
    }

    redis->beaten = ngx_current_msec - STAMP_BEAT;
    ngx_idempotency_redis_stamps_beat(tier);

    return NGX_OK;
}
