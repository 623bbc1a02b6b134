/*
 * One token, two machines, and the Redis that they share: the protocol of its
 * scripts (src/store/redis/), with answers that come late, twice or never.
 *
 * Requests 0 and 1 are machine 0's, requests 2 and 3 machine 1's.  Each makes
 * one claim, whose id is its own.  What is sent is in flight until the server
 * carries it out, and again if it was sent again, but not behind its not-after:
 * it may be carried out in the tick in which it was sent, by the server's clock,
 * as leases and windows end by that clock.
 *
 * The Redis is a master and a replica.  What is written is replicated later.  A
 * failover makes the replica the master, with what it has; the old one does not
 * know that yet, and those who speak to it don't.
 *
 * ACKED    replicas=: a claim is granted, and an outcome told, when the replica
 *          has it; otherwise at once
 * RETRY    idempotency_in_doubt retry
 * LOCAL    idempotency_unavailable local
 *
 * KILLS and the others below: how often each may happen; ANY: any one of them.
 * T_... is a twin that breaks one rule, and must be found out: model/run has
 * the list.
 */

#ifndef KILLS
#define KILLS     0    /* a worker dies */
#endif
#ifndef CRASHES
#define CRASHES   0    /* a machine's nginx is restarted, its zone is gone */
#endif
#ifndef FAILOVERS
#define FAILOVERS 0    /* the replica becomes the master */
#endif
#ifndef AMNESIAS
#define AMNESIAS  0    /* the master forgets: restart without AOF, eviction */
#endif
#ifndef EMPTIES
#define EMPTIES   0    /* somebody empties the Redis; nobody agrees to that as
                          long as anything else can happen */
#endif
#ifndef TICKS
#define TICKS     0    /* of the server's clock; a lease is one, a window two */
#endif
#ifndef RESENDS
#define RESENDS   0    /* a claim is sent again; the first may come yet */
#endif
#ifndef LOSSES
#define LOSSES    0    /* an answer is lost */
#endif
#ifndef GIVEUPS
#define GIVEUPS   0    /* a claim is given up before its answer */
#endif
#ifndef CUTOFFS
#define CUTOFFS   0    /* a machine can't reach the Redis for some time */
#endif
#ifndef FORGETS
#define FORGETS   0    /* by hand, while it is pending */
#endif

#ifdef ACKED
#define IS_ACKED   true
#else
#define IS_ACKED   false
#endif

#ifdef RETRY
#define RETRIES    true
#else
#define RETRIES    false
#endif

#ifdef LOCAL
#define IS_LOCAL   true
#else
#define IS_LOCAL   false
#endif

/* a tick has more microseconds than there are claims */

#define MICROS     8

#define NOBODY     4
#define PATIENCE   8
#define ON(i)      ((i) / 2)

mtype = { none, asking, pending, done, doubt, forgotten };
mtype = { idle, sent, unacked, answered };        /* a claim on its way */
mtype = { granted, busy, bound, doubtful, late }; /* its answer */


/* the zone of each machine */

mtype z[2] = none;
byte  zid[2], zowner[2], zends[2];
bool  stale[2];                /* ... and would not */
bool  zowes[2];                /* the Redis has not heard what became of it */

/* the two servers; the fence of what is there, or of what is no more */

mtype s[2] = none;
byte  sid[2], slease[2], sends[2], sfence[2];
byte  master, talks[2];        /* who is it; to whom a machine speaks */
bool  attached = true;         /* the other one is its replica */
bool  cut[2];                  /* a machine reaches nobody */
bool  stamp[2] = true;         /* its stamp is the one that the zones know */

/* the claims, by their ids; a renewal, that comes late */

mtype op[4] = idle, answer[4];
byte  flying[4], until[4], ends[4], at[4], whose[5], fence[5];
byte  fences;
byte  gfence[5];               /* what it was granted with */
byte  instance[2];             /* of a machine's zone, its restarts */
bool  resent[4], owed_release[4];
byte  renewal = NOBODY, renewal_until;

bool  dead[5];

byte  now, left = 3;

/* what may still happen */

byte  kills = KILLS, crashes = CRASHES, failovers = FAILOVERS,
      amnesias = AMNESIAS, empties = EMPTIES, ticks = TICKS, resends = RESENDS, losses = LOSSES,
      giveups = GIVEUPS, cutoffs = CUTOFFS, forgets = FORGETS;

/* what the properties speak of, and no process knows */

mtype truth = none;
byte  truth_ends, executions, excused = 1, given;
bool  told, lost, owned[4], returned, restarted;


#define zombie(k)      ((k) != master)
#define wanted(i)      (op[i] != idle && z[ON(i)] == asking && zid[ON(i)] == (i))

#ifdef T_NO_NOT_AFTER
#define too_late(t)    false
#else
#define too_late(t)    (now > (t))
#endif

/* each script compares the stamp, in the same step */

#ifdef T_NOT_MEANT
#define meant(k)       true
#else
#define meant(k)       stamp[k]
#endif

#define may(k, i)      (meant(k) && !too_late(until[i]))

/* a claim is given back at once; and if it may come behind that, once more, when
   nothing of it can come any more */

#define may_release(i) (owed_release[i] && op[i] == idle && renewal != (i))

#if defined(T_RELEASE_EARLY)
#define may_come(i)    false
#elif defined(T_NO_NOT_AFTER)
#define may_come(i)    (now <= until[i])
#else
#define may_come(i)    (flying[i] > 0 && now <= until[i])
#endif

#ifdef T_OLDER_TAKES
#define may_take(k, i) true
#else
#define may_take(k, i) (fence[sid[k]] < fence[i])
#endif

#define replicated(k)  (!zombie(k) && attached && s[1 - (k)] == s[k] && \
                        sid[1 - (k)] == sid[k] && \
                        sfence[1 - (k)] == sfence[k] && \
                        sends[1 - (k)] == sends[k])

#ifdef T_ZOMBIE_ACKS
#define has_ack(k)     (replicated(k) || zombie(k))
#else
#define has_ack(k)     replicated(k)
#endif

#ifdef T_STALE_RECORDS
#define may_record(k, m) true
#else
#define may_record(k, m) (s[k] == none || sid[k] == zid[m])
#endif

#ifdef T_FORGOTTEN_BY_LEASE
#define outlives(k)    (now < slease[k])
#else
#define outlives(k)    true
#endif


/* PROPERTY: one execution for a token and window, unless doubt was declared
   and retry chosen, or it is the loss that the mode admits */

inline execute() {
    if
    :: truth == done && now >= truth_ends && !lost ->
        /* who was taken over may execute yet */
        excused = excused - executions + 1; executions = 0
    :: else
    fi;

    executions++;
    assert(lost || executions <= excused);

    truth = pending; told = false
}


/* PROPERTY: what a client was told as recorded is not forgotten (without an
   acknowledgement it may end in doubt, which is told); and what is in doubt
   had an owner, or a master that is none any more says so, or one that has it
   back */

inline declare_doubt(k) {
    assert(!(told && truth == done && now < truth_ends) || !IS_ACKED || lost ||
           zombie(k));
    assert(sid[k] == NOBODY || owned[sid[k]] || op[sid[k]] != idle ||
           owed_release[sid[k]] || dead[sid[k]] || restarted || returned ||
           zombie(k))
}


/* PROPERTY: a repeat never moves the window, wherever its record comes from */

inline replay(e) {
    assert(lost || truth != done || executions > 1 || e == truth_ends)
}


/* a write that only one server has, and that it may not keep */

inline risk(k) {
    if
    :: zombie(k) && !IS_ACKED -> lost = true
    :: else
    fi
}


inline expire(k) {
    if
    :: (s[k] == done || s[k] == doubt || s[k] == forgotten) &&
       now >= sends[k] ->
       s[k] = none; sid[k] = NOBODY; sends[k] = 0; sfence[k] = 0
    :: s[k] == pending && !outlives(k) ->
       s[k] = none; sid[k] = NOBODY; sends[k] = 0; sfence[k] = 0
    :: else
    fi
}


/* PROPERTY: the fence of a claim is higher than any that was given before; and
   the same for the same claim, whatever of it is heard, by the same server */

inline give(k, i) {
    if
#ifndef T_FENCE_ANEW
    :: s[k] == pending && sid[k] == i -> skip
#endif
    :: else ->
#ifdef T_FENCE_MADE_HERE
        sfence[k] = fence[i] + 2 * (1 - ON(i));
#else
        sfence[k] = (sfence[k] >= MICROS * now -> sfence[k] + 1
                                               : MICROS * now);
#endif
        assert(sid[k] == i || lost || zombie(k) || sfence[k] > given)
    fi;

    gfence[i] = sfence[k]
}


inline take(k, i) {
    give(k, i);
    s[k] = pending; sid[k] = i; slease[k] = now + 1; sends[k] = 0;
    answer[i] = granted;
    op[i] = unacked;
    risk(k)
}


inline claim_doubtful(k, i) {
    if
    :: RETRIES ->
        excused++;
        take(k, i)
    :: else ->
        if
        :: s[k] == pending -> s[k] = doubt; slease[k] = 0; sends[k] = now + 2
        :: else
        fi;

        answer[i] = doubtful; op[i] = answered
    fi
}


/* claim.lua */

inline script_claim(k, i) {
    expire(k);
    at[i] = k;

    if
    :: !may(k, i) -> answer[i] = late; op[i] = answered

    :: may(k, i) && (s[k] == none || s[k] == forgotten) ->
        take(k, i)

    :: may(k, i) && s[k] == done ->
        answer[i] = bound; ends[i] = sends[k]; op[i] = answered

    :: may(k, i) && s[k] == doubt -> claim_doubtful(k, i)

    :: may(k, i) && s[k] == pending ->
        if
        :: sid[k] == i ->
#ifdef T_RESENT_NOT_WRITTEN
            answer[i] = granted; op[i] = answered
#else
            take(k, i)
#endif

           /* of its own zone: what is left of one that was given up; but
              not by one that was given up itself, and comes late */

        :: sid[k] != i && whose[sid[k]] == whose[i] && may_take(k, i) ->
            take(k, i)

        :: sid[k] != i && whose[sid[k]] == whose[i] && !may_take(k, i) ->
            answer[i] = busy; op[i] = answered

        :: sid[k] != i && whose[sid[k]] != whose[i] && now < slease[k] ->
            answer[i] = busy; op[i] = answered

        :: sid[k] != i && whose[sid[k]] != whose[i] && now >= slease[k] ->
            declare_doubt(k);
            claim_doubtful(k, i)
        fi
    fi
}


/* put.lua, of an outcome.  PROPERTY: an owner whose claim was taken over never
   records */

inline script_put(k, m) {
    expire(k);

    if
    :: may_record(k, m) ->
        assert(s[k] == none || sid[k] == zid[m] || lost);

        if
        :: s[k] == forgotten || s[k] == done && z[m] != done ->
            stale[m] = true
        :: else ->
            s[k] = z[m]; sid[k] = zid[m]; slease[k] = 0;
            sfence[k] = (sfence[k] > gfence[zid[m]] -> sfence[k]
                                                    : gfence[zid[m]]);
#ifdef T_WINDOW_FROM_DELIVERY
            sends[k] = now + 2;
#else
            sends[k] = zends[m];
#endif
            risk(k)
        fi

    :: else -> stale[m] = true
    fi
}


inline put(m) {
    script_put(talks[m], m);

    if
    :: !IS_ACKED || has_ack(talks[m]) -> zowes[m] = false
    :: else
    fi
}


/* it leaves the zone; whatever the Redis has of it is nobody's any more */

inline leave(m) {
#ifndef T_NOT_RELEASED
    owed_release[zid[m]] = true;
#endif
    z[m] = none; zowes[m] = false
}


proctype Server() {
    byte i;

end_server:
    do
       /* any claim in flight, by the server that it was sent to */

    :: atomic {
           flying[0] > 0 || flying[1] > 0 || flying[2] > 0 || flying[3] > 0 ->

           if
           :: flying[0] > 0 -> i = 0
           :: flying[1] > 0 -> i = 1
           :: flying[2] > 0 -> i = 2
           :: flying[3] > 0 -> i = 3
           fi;

           flying[i]--;

           if
           :: op[i] == sent -> script_claim(talks[ON(i)], i)

           :: op[i] != sent ->
               /* nobody hears the answer, but it is carried out */
               mtype was_op = op[i];
               mtype was_answer = answer[i];
               byte was_ends = ends[i], was_at = at[i], was_fence = gfence[i];

               if
               :: was_op == idle && answer[i] != none &&
                  s[talks[ON(i)]] == done -> skip
               :: else -> script_claim(talks[ON(i)], i)
               fi;

               op[i] = was_op; answer[i] = was_answer; ends[i] = was_ends;
               at[i] = was_at; gfence[i] = was_fence
           fi;

           i = 0
       }

       /* replication */

    :: atomic {
           attached && (s[1 - master] != s[master] ||
                        sid[1 - master] != sid[master] ||
                        slease[1 - master] != slease[master] ||
                        sfence[1 - master] != sfence[master] ||
                        sends[1 - master] != sends[master]) ->
           s[1 - master] = s[master]; sid[1 - master] = sid[master];
           slease[1 - master] = slease[master];
           sfence[1 - master] = sfence[master];
           sends[1 - master] = sends[master]
       }

       /* WAIT */

    :: atomic {
           op[0] == unacked || op[1] == unacked || op[2] == unacked ||
           op[3] == unacked ->

           if
           :: op[0] == unacked -> i = 0
           :: op[1] == unacked -> i = 1
           :: op[2] == unacked -> i = 2
           :: op[3] == unacked -> i = 3
           fi;

           if
           :: !IS_ACKED || has_ack(at[i]) ->
               op[i] = answered;
               given = (gfence[i] > given -> gfence[i] : given)
           :: IS_ACKED && !has_ack(at[i]) && (zombie(at[i]) || !attached) ->
               answer[i] = late; op[i] = answered
           :: IS_ACKED && !has_ack(at[i]) && !zombie(at[i]) && attached ->
               /* not yet */
               skip
           fi;

           i = 0
       }

       /* a renewal that was sent before */

    :: atomic {
           renewal != NOBODY ->
           i = talks[ON(renewal)];
           expire(i);

           if
           :: !meant(i) || too_late(renewal_until)
           :: meant(i) && !too_late(renewal_until) && s[i] == pending &&
              sid[i] == renewal -> slease[i] = now + 1
           :: meant(i) && !too_late(renewal_until) && s[i] == none ->
               s[i] = pending; sid[i] = renewal; slease[i] = now + 1;
               sends[i] = 0;
               sfence[i] = (sfence[i] > gfence[renewal] -> sfence[i]
                                                        : gfence[renewal])
           :: else
           fi;

           renewal = NOBODY; i = 0
       }
    od
}


/* what any worker of a machine does when it comes by */

proctype Machine(byte m) {
    byte i;

end_machine:
    do
    :: atomic {
           zowes[m] && !cut[m] && z[m] != none && meant(talks[m]) -> put(m)
       }

    :: atomic {
           !cut[m] && meant(talks[m]) &&
           (may_release(2 * m) || may_release(2 * m + 1)) ->

           if
           :: may_release(2 * m) -> i = 2 * m
           :: may_release(2 * m + 1) -> i = 2 * m + 1
           fi;

           if
           :: (s[talks[m]] == pending || s[talks[m]] == doubt) &&
              sid[talks[m]] == i ->
#ifdef T_NO_REMAINS
               sfence[talks[m]] = 0;
#endif
               s[talks[m]] = none; sid[talks[m]] = NOBODY;
               sends[talks[m]] = 0; slease[talks[m]] = 0
           :: else
           fi;

           owed_release[i] = may_come(i); i = 0
       }

       /* the owner lives: told at once, or on its way for a while */

    :: atomic {
           ticks > 0 && !cut[m] && z[m] == pending && !dead[zowner[m]] &&
           renewal == NOBODY && slease[talks[m]] == now + 0 &&
           sid[talks[m]] == zid[m] ->
           renewal = zid[m]; renewal_until = now
       }

       /* the claims of a worker that died */

    :: atomic { z[m] == asking && dead[zowner[m]] -> leave(m) }

    :: atomic {
           z[m] == pending && dead[zowner[m]] ->
           z[m] = doubt; zends[m] = now + 2; zowes[m] = true
       }
    od
}


proctype Request(byte me) {
    byte m = ON(me);

    {
        true;

meet:
    atomic {
        if
        :: z[m] == done && now >= zends[m] -> leave(m)
        :: z[m] == doubt && !zowes[m] -> z[m] = none       /* not copied */
        :: else
        fi;

        if
        :: z[m] == none && !(IS_LOCAL && cut[m]) ->
            z[m] = asking; zid[m] = me; zowner[m] = me;
            whose[me] = m + 2 * instance[m];
            fences++; fence[me] = fences;
            flying[me] = 1; until[me] = now; op[me] = sent

        :: z[m] == none && IS_LOCAL && cut[m] ->
            /* PROPERTY: the loss that this mode admits */
            lost = true;
            z[m] = pending; zid[m] = me; zowner[m] = me; owned[me] = true;
            goto send

        :: z[m] == asking || z[m] == pending -> goto wait

        :: z[m] == done -> replay(zends[m]); goto end

        :: z[m] == doubt -> goto end
        fi
    }

ask:
    if
    :: atomic {
           op[me] == answered ->
           op[me] = idle;

#ifndef T_RESENT_LEFT
           /* whatever the answer to one of them: the other may bind yet */

           if
           :: resent[me] && answer[me] != granted -> owed_release[me] = true
           :: else
           fi;

#endif
           if
           :: !(z[m] == asking && zid[m] == me) ->
               owed_release[me] = true;
               goto end

           :: else ->
               if
               :: answer[me] == granted ->
                   assert(sid[talks[m]] != me || returned ||
                          sfence[talks[m]] == gfence[me]);
                   z[m] = pending; zowner[m] = me; owned[me] = true;
                   goto send

               :: answer[me] == busy -> z[m] = none; goto elsewhere

               :: answer[me] == bound && now >= ends[me] ->
                   z[m] = none; goto end

               :: answer[me] == bound && now < ends[me] ->
                   z[m] = done; zends[m] = ends[me]; replay(ends[me]);
                   goto end

               :: answer[me] == doubtful -> z[m] = none; goto end

                  /* it came too late, or nobody else has it: 503 */

               :: answer[me] == late -> leave(m); goto end
               fi
           fi
       }

       /* the same claim, once more; by another connection */

    :: atomic {
           resends > 0 && op[me] == sent && !cut[m] ->
           resends--;
           flying[me]++; resent[me] = true;
           goto ask
       }

       /* the answer was lost: it is sent again, as long as it is wanted */

    :: atomic {
           losses > 0 && op[me] == answered && wanted(me) && now <= until[me] ->
           losses--;
           flying[me]++; resent[me] = true; op[me] = sent;
           goto ask
       }

       /* its deadline: 503 */

    :: atomic {
           wanted(me) &&
           (giveups > 0 || now > until[me] && op[me] != answered) ->

           if
           :: now > until[me]
           :: now <= until[me] -> giveups--
           fi;

           leave(m);
           op[me] = idle;
           goto end
       }
    fi;

wait:
    /* PROPERTY: nobody waits for ever (no invalid end state) */

    atomic {
        !((z[m] == asking || z[m] == pending) && !dead[zowner[m]]) -> goto meet
    }

elsewhere:
    /* by a wake-up or a timer; with a new id, which is another request here */

    atomic {
        !(s[talks[m]] == pending && now < slease[talks[m]]) -> goto end
    }

send:
    if
    :: atomic {
           /* refused, not a byte was sent: released */
           z[m] == pending && zowner[m] == me && zid[m] == me ->
           leave(m);
           goto end
       }

    :: atomic { true -> execute() }
    fi;

    atomic {
        if
        :: z[m] == pending && zowner[m] == me && zid[m] == me ->
            z[m] = done; zends[m] = now + 2; zowes[m] = true; stale[m] = false;
            truth = done; truth_ends = now + 2

        :: else -> goto end
        fi
    }

#if defined(ACKED) && !defined(T_NOT_HELD)
    !zowes[m];
#endif
    atomic {
        if
        :: z[m] == done && zid[m] == me && truth == done && !stale[m] ->
            told = true
        :: else
        fi
    }

    } unless {
        dead[me]
    };

end:
    left--
}


proctype World() {
    byte m;

end_world:
    do
    :: atomic { kills > 0 -> kills--; dead[0] = true; op[0] = idle }

       /* its zone is gone; what it had sent may come yet */

    :: atomic { crashes > 0 ->
           crashes--;
           dead[0] = true; op[0] = idle; op[1] = idle;
           owed_release[0] = false; owed_release[1] = false;

           if
           :: z[0] == pending || z[0] == asking -> dead[zowner[0]] = true
           :: else
           fi;

           z[0] = none; zowes[0] = false; zid[0] = NOBODY;
           instance[0]++; restarted = true
       }

    :: atomic { ticks > 0 -> ticks--; now++ }

       /* while anybody waits, time goes on */

    :: atomic { timeout && left > 0 && now < PATIENCE -> now++ }

    :: atomic { failovers > 0 && attached ->
           failovers--;

           if
           :: !IS_ACKED && !replicated(master) -> lost = true
           :: else
           fi;

           /* what was not replicated: a release, a renewal, an outcome */
           returned = true;
           master = 1 - master; attached = false
       }

       /* who speaks to the old master is told, or cut off; it is a replica */

    :: atomic { talks[0] != master -> talks[0] = master }
    :: atomic { talks[1] != master -> talks[1] = master }

    :: atomic {
           !attached && talks[0] == master && talks[1] == master ->
           attached = true
       }

    :: atomic { amnesias > 0 ->
           amnesias--; lost = true; returned = true;
           s[0] = none; s[1] = none; sid[0] = NOBODY; sid[1] = NOBODY;
           sends[0] = 0; sends[1] = 0; sfence[0] = 0; sfence[1] = 0
       }

    :: atomic { empties > 0 ->
           empties--; stamp[0] = false; stamp[1] = false;
           s[0] = none; s[1] = none; sid[0] = NOBODY; sid[1] = NOBODY;
           sends[0] = 0; sends[1] = 0; sfence[0] = 0; sfence[1] = 0
       }

       /* PROPERTY: nothing is lost before somebody agrees to that */

    :: atomic { timeout && !stamp[master] ->
           stamp[0] = true; stamp[1] = true; lost = true; returned = true
       }

    :: atomic { cutoffs > 0 -> cutoffs--; cut[0] = true }
    :: atomic { cut[0] -> cut[0] = false }

    :: atomic { forgets > 0 && s[master] == pending && attached ->
           forgets--; excused++; told = false;
           s[master] = forgotten; sends[master] = now + 1
       }
    od
}


init {
    atomic {
        dead[NOBODY] = true;
        sid[0] = NOBODY; sid[1] = NOBODY;

#ifdef ANY
        if
        :: kills = 1
        :: crashes = 1
        :: failovers = 1
        :: amnesias = 1
        :: empties = 1
        :: ticks = 1
        :: resends = 1
        :: losses = 1
        :: giveups = 1
        :: cutoffs = 1
        :: forgets = 1
        fi;
#endif

        run Server(); run Machine(0); run Machine(1);
        run Request(0); run Request(1); run Request(2);
#ifndef SMALL
        run Request(3); left++;
#endif
        run World()
    }
}
