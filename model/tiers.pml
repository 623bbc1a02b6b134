/*
 * One token in two tiers: the zone of each instance of nginx, in shared
 * memory, and behind them a file that they share.  It is the protocol alone:
 * what is asked, granted, written, lost and told, in any order.
 *
 * Requests 0 and 1 belong to instance 0, requests 2 and 3 to instance 1, which
 * starts beside the first one (a binary upgrade, a second nginx by mistake) or
 * after its end (a restart).  Each request has a worker of its own, so that the
 * death of a worker is that of a request.  An instance ends as a whole, its
 * zone with it.
 *
 * A zone trusts itself while nobody else has the file and its filter has all
 * tokens that are there: then what the filter denies is claimed without a word,
 * and told later.  Else each miss is a question.  Who is alone says so by a
 * lock; while that is held nobody else may ask.
 *
 * STRICT   a claim is on disk before anything is sent, and the end of a
 *          response is held until its outcome is; otherwise, as in the modes
 *          "batched" and "off", the file is on disk at some time later
 * RETRY    idempotency_in_doubt retry
 *
 * KILLS and the others below: how often each may happen; ANY: any one of them.
 * T_... is a twin that breaks one rule, and must be found out: model/run has
 * the list.
 */

#ifndef KILLS
#define KILLS     0    /* a worker dies */
#endif
#ifndef STOPS
#define STOPS     0    /* a worker is stopped, for longer than its lease */
#endif
#ifndef CRASHES
#define CRASHES   0    /* kill -9 of a whole instance */
#endif
#ifndef QUITS
#define QUITS     0    /* an instance ends when it has nothing left to do */
#endif
#ifndef CUTS
#define CUTS      0    /* a power cut: what is not on disk is gone */
#endif
#ifndef TICKS
#define TICKS     0    /* of the clock; a window is one */
#endif
#ifndef FAILS
#define FAILS     0    /* the file says that it failed, whether it did or not */
#endif
#ifndef FULLS
#define FULLS     0    /* ... that it has no room */
#endif
#ifndef GIVEUPS
#define GIVEUPS   0    /* a claim is given up before its answer */
#endif
#ifndef EVICTS
#define EVICTS    0    /* a record leaves the zone for want of memory */
#endif

#ifdef STRICT
#define IS_STRICT  true
#else
#define IS_STRICT  false
#endif

#ifdef RETRY
#define RETRIES    true
#else
#define RETRIES    false
#endif

/* what else a twin leads to, before it is found out by its own property */

#ifdef TWIN
#define SAID       true
#else
#define SAID       false
#endif

#ifdef T_STALE_RECORDS
#define EXECUTED   true
#else
#define EXECUTED   false
#endif

#define NOBODY     4
#define OTHER      4    /* a worker without a request, that never dies */
#define GEN(i)     ((i) / 2)
#define BIT(f)     (1 << (f))

/* what a token is */
mtype = { none, asking, pending, done, doubt, elsewhere, brief };

/* what the file is told of it, and answers */
mtype = { nothing, ask, put };
mtype = { granted, busy, bound, doubtful, taken_in, stale, no_room };

/* a filter is filled, see trust.c */
mtype = { no_fill, waits, reads };


/* the record in each zone: under which fence, whose, and until when */

mtype z[2] = none;
byte  zf[2], zowner[2], zends[2], fence[2];

/* ... what it says that the file has not: OWES_... */

bool  listed[2], taken[2], more[2], heard[2], again[2], aside[2];

/* ... it was in doubt before the zone was alone for the last time */

bool  old[2];

/* the releases that are owed, by fences; and of all that is owed, what is to
   be told before others are let in, or the filter is read */

byte  releases[2], due[2];

/* ... of claims that took over what was in doubt, as the file may have it */

byte  took[2];

/* what is on its way to the file, and who tells it */

mtype what[2] = nothing, says[2], answer[2];
byte  by[2], bf[2], bends[2];
bool  written[2], left[2];

/* may a miss be an absence? */

bool  trusted[2], filter[2], next[2];
mtype filling[2] = no_fill;
byte  alone = NOBODY;

/* the file, as the processes see it, and as it is on disk */

mtype fs = none, ds = none;
byte  ff, fgen, fends, df, dgen, dends;

/* who lives */

bool  started[2], gone[2], busied[4], dead[5], stopped[5];

byte  now;

/* what may still happen */

byte  kills = KILLS, stops = STOPS, crashes = CRASHES, quits = QUITS,
      cuts = CUTS, ticks = TICKS, fails = FAILS, fulls = FULLS,
      giveups = GIVEUPS, evicts = EVICTS;

/* what the properties speak of, and no process knows */

mtype truth = none;
byte  truth_ends, holder = NOBODY;
bool  deposed[5], told, lost;


#define others(g)         (started[1 - g] && !gone[1 - g])

#define owes(g)           (listed[g] || taken[g])

#define without_owner(g)  (dead[zowner[g]] || stopped[zowner[g]])

#define mine(g, i, f)     (zf[g] == f && zowner[g] == i)

#ifdef T_WORKER_OWNS
#define owner_gone        (gone[fgen] || dead[2 * fgen])
#else
#define owner_gone        gone[fgen]
#endif

#ifdef T_NOT_ACKNOWLEDGED
#define may_claim(g)      true
#else
#define may_claim(g)      (alone == NOBODY || alone == g)
#endif

#ifdef T_EVICTS_OWED
#define may_leave(g)      (!taken[g])
#else
#define may_leave(g)      !owes(g)
#endif

#ifdef T_LET_IN_EARLY
#define may_let_in(g)     true
#else
#define may_let_in(g)     (due[g] == 0)
#endif

#ifdef T_FILLS_ON
#define ends_fill(g)      true
#else
#define ends_fill(g)      (filling[g] == no_fill)
#endif

#ifdef T_FILLS_EARLY
#define may_read(g)       true
#else
#define may_read(g)       (due[g] == 0)
#endif

#ifdef T_REPLAYS_WHAT_ENDED
#define has_ended(g)      false
#else
#define has_ended(g)      (now >= zends[g])
#endif

/* nobody else can have taken over what is in doubt */

#ifdef T_CAME_AND_WENT
#define untouched(g)      (!heard[g] || trusted[g])
#else
#define untouched(g)      (!heard[g] || trusted[g] && !old[g])
#endif

#ifdef T_STALE_RECORDS
#define revives(g)        true
#else
#define revives(g)        untouched(g)
#endif


/* PROPERTY: one execution for a token and window, unless doubt was declared
   and retry chosen, or it is the loss that the mode admits.  Who was taken for
   dead before he sent anything executes then, at last */

inline execute(i) {
    if
    :: truth == done && now >= truth_ends -> truth = none
    :: else
    fi;

    if
    :: deposed[i] ->
        assert(truth == doubt || RETRIES)
    :: else ->
        assert(EXECUTED || truth == none || truth == doubt && RETRIES);
        truth = pending; told = false
    fi
}


/* PROPERTY: what a client was told as recorded is not forgotten.  (The end of
   all that knew it, but for mode strict, may leave it in doubt, and that is
   told) */

inline declare_doubt() {
    assert(!(told && truth == done && now < truth_ends));

    truth = doubt;

    if
    :: holder != NOBODY -> deposed[holder] = true
    :: else
    fi
}


/* PROPERTY: a repeat never moves the window, wherever its record comes from */

inline replay(g) {
    assert(truth != done || zends[g] == truth_ends && now < truth_ends);
#ifdef T_REPLAY_MOVES
    zends[g] = now + 2
#endif
}


/* PROPERTY: an owner whose claim was taken over never records */

inline record(g, i) {
    assert(holder == i);

    z[g] = done; zends[g] = now + 1; old[g] = false;
    owe(g);
    truth = done; truth_ends = now + 1; deposed[i] = false
}


inline own(g, i) {
    z[g] = pending; zowner[g] = i; holder = i; deposed[i] = false
}


inline owe(g) {
    if
    :: taken[g] -> more[g] = true
    :: else -> listed[g] = true
    fi
}


inline owes_nothing(g) {
    listed[g] = false; taken[g] = false; more[g] = false;
    heard[g] = false; again[g] = false; aside[g] = false;
    old[g] = false
}


/* it leaves the zone: a claim that the file may have is to be released there,
   behind what is on its way */

inline leave(g) {
    if
    :: taken[g] ->
#ifdef T_RELEASE_OVERTAKES
        releases[g] = releases[g] | BIT(zf[g]);
        due[g] = due[g] & ~BIT(zf[g]);
#endif
        left[g] = true; bf[g] = zf[g]

    :: !taken[g] && heard[g] &&
       (listed[g] || z[g] == asking || z[g] == pending) ->
#ifndef T_NOT_RELEASED
        releases[g] = releases[g] | BIT(zf[g])
#else
        due[g] = due[g] & ~BIT(zf[g])
#endif

    :: else -> due[g] = due[g] & ~BIT(zf[g])
    fi;

    z[g] = none; zf[g] = 0; zowner[g] = NOBODY; zends[g] = 0;
    owes_nothing(g)
}


/* a claim, or a question, under a fence of its own */

inline number(g, i) {
    fence[g]++;
    assert(fence[g] < 8);

    zf[g] = fence[g]; zowner[g] = i;

#ifndef T_FILTER_FORGETS
    filter[g] = true;
#endif
#ifndef T_FILL_MISSES_NEW
    if
    :: filling[g] != no_fill -> next[g] = true
    :: else
    fi
#endif
}


/* its worker has gone; before the answer nothing was sent */

inline orphan(g) {
    if
    :: z[g] == asking -> leave(g)
    :: else ->
        declare_doubt();
        z[g] = doubt; old[g] = false;
        owe(g)
    fi
}


/* taken over in its place */

inline reclaim(g, i) {
    if
    :: due[g] & BIT(zf[g]) ->
        due[g] = due[g] & ~BIT(zf[g]) | BIT(fence[g] + 1)
    :: else
    fi;

    number(g, i);
    own(g, i);
    took[g] = took[g] | BIT(zf[g]);
    old[g] = false;
    owe(g)
}


inline outstanding(g) {
    due[g] = releases[g];

    if
    :: owes(g) -> due[g] = due[g] | BIT(zf[g])
    :: else
    fi;

    if
    :: what[g] != nothing && left[g] -> due[g] = due[g] | BIT(bf[g])
    :: else
    fi
}


inline sync() {
    ds = fs; df = ff; dgen = fgen; dends = fends
}


inline file_none() {
    fs = none; ff = 0; fgen = 0; fends = 0
}


inline file_expire() {
    if
    :: fs == done && now >= fends -> file_none()
    :: else
    fi
}


inline file_take(g, f) {
    fs = pending; ff = f; fgen = g; fends = 0; answer[g] = granted
}


inline file_doubtful(g, f) {
    if
    :: RETRIES -> file_take(g, f)
    :: else -> fs = doubt; answer[g] = doubtful
    fi
}


/* check, bind and claim, in one transaction */

inline file_ask(g, f) {
    if
    :: fs == none -> file_take(g, f)
    :: fs == done -> answer[g] = bound; bends[g] = fends
    :: fs == doubt -> file_doubtful(g, f)

       /* of what it has claimed itself the zone knows best */

    :: fs == pending && fgen == g -> file_take(g, f)

    :: fs == pending && fgen != g && !owner_gone -> answer[g] = busy

    :: fs == pending && fgen != g && owner_gone ->
        declare_doubt();
        file_doubtful(g, f)
    fi
}


/* what the zone knows is not older than what is there, or it is stale */

inline file_put(g, f) {
    if
    :: fs == none && fulls > 0 && says[g] == pending ->
        fulls--;
        answer[g] = no_room

    :: fs == none ||
       fgen == g && f >= ff &&
          (f > ff || fs == pending || says[g] != pending) ->

        fs = says[g]; ff = f; fgen = g; answer[g] = taken_in;

        if
        :: fs == done ->
#ifdef T_WINDOW_FROM_DELIVERY
            fends = now + 1
#else
            fends = bends[g]
#endif
        :: else -> fends = 0
        fi

    :: fs != none &&
       !(fgen == g && f >= ff &&
            (f > ff || fs == pending || says[g] != pending)) ->
        answer[g] = stale
    fi
}


inline file_release(g, f) {
    file_expire();

    if
    :: fgen == g &&
       (fs == pending && ff <= f ||
        fs == doubt && (ff == f || ff < f && (took[g] & BIT(f)))) ->
        file_none()
    :: else
    fi;

#if defined(STRICT) && !defined(T_NOT_SYNCED)
    sync();
#endif
    releases[g] = releases[g] & ~BIT(f);
    took[g] = took[g] & ~BIT(f);
    due[g] = due[g] & ~BIT(f)
}


inline gather(g) {
    what[g] = (z[g] == asking -> ask : put);
    says[g] = z[g]; bf[g] = zf[g];
    bends[g] = (z[g] == done -> zends[g] : 0);
    listed[g] = false; taken[g] = true;

    if
    :: by[g] = OTHER
    :: kills + stops > 0 && !dead[2 * g] && !stopped[2 * g] -> by[g] = 2 * g
    fi
}


inline commit(g) {
    file_expire();

    if
    :: what[g] == ask -> file_ask(g, bf[g])
    :: else -> file_put(g, bf[g])
    fi;

#if defined(STRICT) && !defined(T_NOT_SYNCED)
    sync();
#endif
    written[g] = true
}


inline handed(g) {
    what[g] = nothing; says[g] = 0; answer[g] = 0; by[g] = 0; bf[g] = 0;
    bends[g] = 0; written[g] = false; left[g] = false
}


/* its record has left meanwhile: it is told that now */

inline handed_left(g) {
#ifndef T_RELEASE_OVERTAKES
    releases[g] = releases[g] | BIT(bf[g]);
#endif
    handed(g)
}


inline answered(g) {
    due[g] = due[g] & ~BIT(zf[g]);

    if
    :: answer[g] == granted && without_owner(g) ->
        leave(g)

    :: answer[g] == granted && !without_owner(g) ->
        own(g, zowner[g])

    :: answer[g] == bound && now >= bends[g] ->
        z[g] = none; zf[g] = 0;
        owes_nothing(g)

    :: answer[g] == bound && now < bends[g] ->
        z[g] = done; zends[g] = bends[g]; zf[g] = 0;
        owes_nothing(g)

    :: answer[g] == busy ->
        z[g] = elsewhere;
        owes_nothing(g)

    :: answer[g] == doubtful ->
        z[g] = brief;
        owes_nothing(g)
    fi
}


/* the file has answered */

inline hear(g) {
    if
    :: left[g] -> handed_left(g)
    :: else ->

        taken[g] = false; heard[g] = true; again[g] = false;

        if
        :: what[g] == ask -> answered(g)

        :: what[g] == put ->

            /* PROPERTY: nobody else had it meanwhile */

            assert(answer[g] != stale || SAID);

            if
            :: answer[g] == no_room && !more[g] ->
                listed[g] = true; aside[g] = true
#ifdef T_ASIDE_NOT_AWAITED
                ; due[g] = due[g] & ~BIT(zf[g])
#endif
            :: more[g] ->
                more[g] = false; listed[g] = true
#ifdef T_MORE_NOT_AWAITED
                ; due[g] = due[g] & ~BIT(zf[g])
#endif
            :: else -> due[g] = due[g] & ~BIT(zf[g])
            fi
        fi;

        handed(g)
    fi
}


/* nobody knows whether it was told: once more.  A question is answered */

inline untake(g, failed) {
    if
    :: left[g] -> handed_left(g)
    :: else ->

        taken[g] = false; heard[g] = true; again[g] = true;
        listed[g] = true; more[g] = false;

        if
        :: what[g] == ask && failed -> listed[g] = false; leave(g)
        :: else
        fi;

        handed(g)
    fi
}


/* an instance beside its requests: what any of its workers does when it comes
   by, the thread that writes the file, and who looks after trust */

proctype Instance(byte g) {
    byte f;

    {
end_idle:
    do
    :: atomic {
           what[g] == nothing && listed[g] && !aside[g] ->
           gather(g)
       }

    :: atomic {
           what[g] != nothing && !written[g] && !dead[by[g]] &&
           !stopped[by[g]] && (what[g] != ask || may_claim(g)) ->
           commit(g)
       }

    :: atomic {
           written[g] && !dead[by[g]] && !stopped[by[g]] ->
           hear(g)
       }

    :: atomic {
           fails > 0 && what[g] != nothing && !dead[by[g]] &&
           !stopped[by[g]] ->
           fails--;
           untake(g, true)
       }

       /* who told it has died */

    :: atomic { what[g] != nothing && dead[by[g]] -> untake(g, false) }

       /* a release: behind what is on its way */

    :: atomic {
#ifdef T_RELEASE_OVERTAKES
           releases[g] != 0 ->
#else
           releases[g] != 0 && what[g] == nothing ->
#endif
           f = 1;

           do
           :: releases[g] & BIT(f) -> break
           :: else -> f++
           od;

           file_release(g, f);
           f = 0
       }

       /* there may be room now */

    :: atomic { aside[g] -> aside[g] = false }

       /* the claims of a worker that died */

    :: atomic {
           (z[g] == asking || z[g] == pending) && dead[zowner[g]] ->
           orphan(g)
       }

       /* who waits for what is pending elsewhere claims it then */

    :: atomic {
           z[g] == elsewhere &&
           !(fs == pending && fgen != g && !owner_gone) ->
           z[g] = none; zf[g] = 0
       }

       /* what is in doubt there is no copy: who comes later asks again */

    :: atomic {
           z[g] == brief && !busied[zowner[g]] ->
           z[g] = none; zf[g] = 0
       }

       /* memory is short: what the file has may leave */

    :: atomic {
           evicts > 0 && (z[g] == done || z[g] == doubt) && may_leave(g) ->
           evicts--;
           due[g] = due[g] & ~BIT(zf[g]);
           z[g] = none; zf[g] = 0; zends[g] = 0;
           owes_nothing(g)
       }

       /* others are there: from now on it asks, and lets them in when the
          file has all that it claimed until then */

    :: atomic {
           others(g) && (trusted[g] || filling[g] != no_fill) ->
           if
           :: trusted[g] -> trusted[g] = false; outstanding(g)
           :: else
           fi;
           filling[g] = no_fill; next[g] = false
       }

    :: atomic {
           others(g) && alone == g && !trusted[g] && may_let_in(g) &&
           ends_fill(g) ->
           alone = NOBODY; due[g] = 0
       }

       /* nobody else is */

    :: atomic {
           !others(g) && !trusted[g] && filling[g] == no_fill && due[g] == 0 &&
           may_claim(g) ->
           alone = g;
           filling[g] = waits;
           outstanding(g)
       }

    :: atomic {
           filling[g] == waits && may_read(g) ->
           filling[g] = reads; due[g] = 0;

           if
           :: fs != none -> next[g] = true
           :: else
           fi
       }

    :: atomic {
           filling[g] == reads && !others(g) ->
           filter[g] = next[g]; next[g] = false;
           filling[g] = no_fill;
           trusted[g] = true;
           old[g] = (z[g] == doubt)
       }
    od
    } unless {
        gone[g] || lost
    }
}


proctype Request(byte me) {
    byte g = GEN(me), my = 0, seen = 0;

    {
        atomic {
            started[g] ->

            if
            :: gone[g] -> goto end
            :: else -> busied[me] = true
            fi
        }

        /* what the zone says, in one step */

meet:
        atomic {
            !stopped[me] ->
            my = 0; seen = 0;

            if
            :: z[g] == done && has_ended(g) -> leave(g)
            :: else
            fi;

            if
            :: z[g] == none && trusted[g] && !filter[g] ->
                owes_nothing(g);
                number(g, me);
                my = zf[g];
                own(g, me);
                owe(g);
                goto claimed

            :: z[g] == none && !(trusted[g] && !filter[g]) ->
asks:
                owes_nothing(g);
                number(g, me);
                my = zf[g];
                z[g] = asking;
                owe(g);
                goto asked

            :: (z[g] == asking || z[g] == pending) && without_owner(g) ->
                orphan(g);
                goto meet

            :: (z[g] == asking || z[g] == pending) && !without_owner(g) ||
               z[g] == elsewhere ->
                seen = zf[g];
                goto wait

            :: z[g] == done ->

                /* with `strict` nobody is told what could be forgotten */

                if
                :: IS_STRICT && owes(g) && !aside[g] ->
                    seen = zf[g];
                    goto wait_told

                :: else -> replay(g); goto end
                fi

            :: z[g] == doubt && !RETRIES &&
               (owes(g) || untouched(g)) ->
                goto end

            :: z[g] == doubt && RETRIES &&
               (listed[g] && !taken[g] && !again[g] || untouched(g)) ->
                reclaim(g, me);
                my = zf[g];
                goto claimed

            :: z[g] == doubt && RETRIES && owes(g) &&
               !(listed[g] && !taken[g] && !again[g] || untouched(g)) ->
                seen = zf[g];
                goto wait_told

            :: z[g] == doubt && !owes(g) && !untouched(g) ->

                /* somebody else may have taken it over */

                leave(g);
                goto asks

            :: z[g] == brief -> goto end
            fi
        }

        /* PROPERTY: nobody waits for ever (no invalid end state) */

wait:
        atomic {
            !((z[g] == asking || z[g] == pending) && zf[g] == seen &&
              !without_owner(g) ||
              z[g] == elsewhere && zf[g] == seen) ->
            goto meet
        }

wait_told:
        atomic {
            !((z[g] == done || z[g] == doubt) && zf[g] == seen && owes(g) &&
              !aside[g]) ->
            goto meet
        }

asked:
        if
        :: atomic {
               !stopped[me] && !(z[g] == asking && mine(g, me, my)) ->

               if
               :: z[g] == pending && mine(g, me, my) -> goto send
               :: else -> goto meet
               fi
           }

           /* its deadline: 503 */

        :: atomic {
               !stopped[me] && giveups > 0 && z[g] == asking &&
               mine(g, me, my) ->
               giveups--;
               leave(g);
               goto end
           }
        fi;

        /* claimed without a question: with `strict` the file is to have it */

claimed:
#ifdef STRICT
        if
        :: atomic {
               !stopped[me] && !(z[g] == pending && mine(g, me, my)) ->
               goto meet
           }

        :: atomic {
               !stopped[me] && z[g] == pending && mine(g, me, my) &&
               aside[g] ->
               leave(g);
               goto end
           }

        :: !stopped[me] && z[g] == pending && mine(g, me, my) && !owes(g)
        fi;
#endif

send:
        if
        :: atomic {
               /* refused, not a byte was sent: released */

               !stopped[me] ->

               if
               :: zf[g] == my &&
                  (z[g] == pending || z[g] == doubt && revives(g)) ->
                   z[g] = pending;
                   leave(g);
                   truth = none; deposed[me] = false; holder = NOBODY
               :: else
               fi;

               goto end
           }

        :: atomic { !stopped[me] -> execute(me) }
        fi;

        atomic {
            !stopped[me] ->

            if
            :: zf[g] == my &&
               (z[g] == pending || z[g] == doubt && revives(g)) ->
                record(g, me)

            :: else -> goto end
            fi
        }

#if defined(STRICT) && !defined(T_NOT_HELD)
        !(z[g] == done && zf[g] == my && owes(g) && !aside[g]);
#endif
        atomic {
            if
            :: z[g] == done && zf[g] == my && !(IS_STRICT && aside[g]) ->
                told = true
            :: else
            fi
        }

    } unless {
        dead[me] || lost
    };

end:
    busied[me] = false
}


inline kill(i) {
    dead[i] = true
}


/* what the zone alone had is lost, but for mode strict, or in doubt */

inline crash(g) {
    if
    :: !IS_STRICT && owes(g) &&
       (z[g] == pending || z[g] == done || z[g] == doubt) ->
        if
        :: fs == none -> lost = true
        :: fs == pending || fs == doubt ->
            truth = doubt; told = false
        :: else
        fi
    :: else
    fi;

    gone[g] = true;
    kill(2 * g); kill(2 * g + 1);
    releases[g] = 0; due[g] = 0; took[g] = 0;
    handed(g);
    z[g] = none; zf[g] = 0; zowner[g] = NOBODY; zends[g] = 0; fence[g] = 0;
    owes_nothing(g);
    trusted[g] = false; filter[g] = false; next[g] = false;
    filling[g] = no_fill;

    if
    :: alone == g -> alone = NOBODY
    :: else
    fi
}


inline quit(g) {
    gone[g] = true;
    due[g] = 0; took[g] = 0;
    z[g] = none; zf[g] = 0; zowner[g] = NOBODY; zends[g] = 0; fence[g] = 0;
    owes_nothing(g);
    trusted[g] = false; filter[g] = false; next[g] = false;
    filling[g] = no_fill;

    if
    :: alone == g -> alone = NOBODY
    :: else
    fi
}


#define may_quit(g)                                                          \
    (started[g] && !gone[g] && !busied[2 * g] && !busied[2 * g + 1]          \
     && what[g] == nothing && !listed[g] && releases[g] == 0)


proctype World() {
end_world:
    do
    :: lost -> break

    :: atomic { kills > 0 && !gone[0] -> kills--; kill(0) }
    :: atomic { kills > 0 && started[1] && !gone[1] -> kills--; kill(2) }

    :: atomic { stops > 0 -> stops--; stopped[0] = true }
    :: atomic { stopped[0] -> stopped[0] = false }

    :: atomic { ticks > 0 -> ticks--; now++ }

    :: atomic { crashes > 0 && !gone[0] -> crashes--; crash(0) }
    :: atomic { crashes > 0 && others(0) -> crashes--; crash(1) }

    :: atomic { quits > 0 && may_quit(0) -> quits--; quit(0) }
    :: atomic { quits > 0 && may_quit(1) -> quits--; quit(1) }

    :: atomic {
           cuts > 0 && !started[1] ->
           cuts--;
           crash(0);

           if
           :: !IS_STRICT && (fs != ds || ff != df) -> lost = true
           :: else
           fi;

           fs = ds; ff = df; fgen = dgen; fends = dends
       }

#ifndef STRICT
    :: atomic {
           cuts > 0 && (fs != ds || ff != df || fends != dends) -> sync()
       }
#endif

       /* the other instance, beside the first one or after it */

    :: atomic {
           !started[1] ->
           started[1] = true;

#ifdef T_PENDING_ENDS_AT_START
           if
           :: gone[0] && fs == pending -> file_none()
           :: else
           fi
#endif
       }
    od
}


init {
    atomic {

#ifdef ANY
        if
        :: kills = 1
        :: stops = 1
        :: crashes = 1
        :: quits = 1
        :: cuts = 1
        :: ticks = 1
        :: fails = 1
        :: fulls = 1
        :: giveups = 1
        :: evicts = 1
        fi;
#endif

        zowner[0] = NOBODY; zowner[1] = NOBODY;
        started[0] = true;

#if defined(SMALL) && !defined(T_FILLS_ON)
        trusted[0] = true; alone = 0;
#endif

        run Instance(0); run Instance(1);
        run Request(0); run Request(1); run Request(2);
#ifndef SMALL
        run Request(3);
#endif
        run World()
    }
}
