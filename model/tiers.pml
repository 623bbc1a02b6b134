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
 * What a zone does not know is asked for, once for all who want it.  A question
 * is a claim, and has an id: the file's answer to the same id is the same,
 * however often it is asked.  Whoever asked may end before the answer; then the
 * record is abandoned and keeps the id, until the answer is there.  What is
 * granted to nobody is offered: to who comes next, or it is released.
 *
 * STRICT   a claim is on disk before anything is sent, and the end of a
 *          response is held until its outcome is; otherwise, as in the mode
 *          "batched", the file is on disk at some time later
 * RETRY    idempotency_in_doubt retry
 * LOCAL    idempotency_unavailable local: while the file hangs the first
 *          instance goes by its zone alone, which does not have what is in
 *          doubt in the file.  The other one starts when it has ended
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
#ifndef HANGS
#define HANGS     0    /* it answers late: until then the store is down */
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

#ifdef LOCAL
#define IS_LOCAL   true
#else
#define IS_LOCAL   false
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
mtype = { none, asking, abandoned, offered, pending, done, doubt, elsewhere,
          brief };

/* what the file is told of it, and answers */
mtype = { nothing, ask, put };
mtype = { granted, busy, bound, doubtful, taken_in, stale, no_room };


/* the record in each zone: under which id (its fence), whose, until when */

mtype z[2] = none;
byte  zf[2], zowner[2], zends[2], fence[2];

/* ... what it says that the file has not; `again`: nobody knows whether the
   file has it; `heard`: it may have something of this id */

bool  listed[2], taken[2], more[2], heard[2], again[2];

/* claims that are none any more, by their ids */

byte  releases[2];

/* what is on its way to the file, and who tells it */

mtype what[2] = nothing, says[2], answer[2];
byte  by[2], bf[2], bends[2];
bool  written[2], left[2];

/* the file has not answered for too long */

bool  down[2];

/* twins only: what another thread has still on its way */

byte  ghost[2];

/* the file, as the processes see it, and as it is on disk: its state, whose
   claim it is, until when; and whether that took over what was in doubt */

mtype fs = none, ds = none;
byte  ff, fgen, fends, df, dgen, dends;
bool  ftook, dtook;

/* who lives */

bool  started[2], gone[2], busied[5], dead[5], stopped[5];

byte  now;

/* what may still happen */

byte  kills = KILLS, stops = STOPS, crashes = CRASHES, quits = QUITS,
      cuts = CUTS, ticks = TICKS, fails = FAILS, fulls = FULLS,
      hangs = HANGS, giveups = GIVEUPS, evicts = EVICTS;

/* what the properties speak of, and no process knows */

mtype truth = none;
byte  truth_ends, holder = NOBODY;
bool  deposed[5], doubted[5], told, lost;


#define others(g)         (started[1 - g] && !gone[1 - g])

#define owes(g)           (listed[g] || taken[g])

#define without_owner(g)  (dead[zowner[g]] || stopped[zowner[g]])

/* Invariant: one of those who ask under an id has its grant.  The id alone
   does not tell who, as another one may have taken the question over */

#ifdef T_ID_ALONE
#define mine(g, i, f)     (zf[g] == f)
#else
#define mine(g, i, f)     (zf[g] == f && zowner[g] == i)
#endif

#ifdef T_WORKER_OWNS
#define owner_gone        (gone[fgen] || dead[2 * fgen])
#else
#define owner_gone        gone[fgen]
#endif

#ifdef T_EVICTS_OWED
#define may_leave(g)      (!taken[g])
#else
#define may_leave(g)      !owes(g)
#endif

#ifdef T_REPLAYS_WHAT_ENDED
#define has_ended(g)      false
#else
#define has_ended(g)      (now >= zends[g])
#endif

/* an owner that was taken for dead knows better, unless somebody else may have
   heard of it and taken it over */

#ifdef T_STALE_RECORDS
#define revives(g)        true
#else
#define revives(g)        (listed[g] && !again[g])
#endif

#define may_hang(g)       (!IS_LOCAL || g == 0)

/* Invariant: a store that is back has no claim of nobody */

#ifdef T_BACK_EARLY
#define may_be_back(g)    (what[g] == nothing)
#else
#define may_be_back(g)    (what[g] == nothing && releases[g] == 0            \
                           && z[g] != abandoned && z[g] != offered)
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
        assert(truth == doubt || RETRIES || IS_LOCAL)
    :: else ->
        assert(EXECUTED || truth == none ||
               truth == doubt && (RETRIES || IS_LOCAL));
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

    z[g] = done; zends[g] = now + 1;
    owe(g);
    truth = done; truth_ends = now + 1; deposed[i] = false
}


/* PROPERTY: nobody's claim is in the file when the store is back, or it would
   be bound there for as long as this instance lives */

inline be_back(g) {
    down[g] = false;
    assert(!(fs == pending && fgen == g && !gone[g]) ||
           zf[g] == ff && zowner[g] != NOBODY)
}


inline own(g, i) {
    z[g] = pending; zowner[g] = i; holder = i; deposed[i] = false;
    doubted[i] = (truth == doubt)
}


inline owe(g) {
    if
    :: taken[g] -> more[g] = true
    :: else -> listed[g] = true
    fi
}


inline owes_nothing(g) {
    listed[g] = false; taken[g] = false; more[g] = false;
    heard[g] = false; again[g] = false
}


inline vanish(g) {
    z[g] = none; zf[g] = 0; zowner[g] = NOBODY; zends[g] = 0;
    owes_nothing(g)
}


inline release(g, f) {
#ifndef T_NOT_RELEASED
    releases[g] = releases[g] | BIT(f)
#else
    skip
#endif
}


/* it leaves the zone: a claim that the file may have is to be released there,
   behind what is on its way.  A question never leaves before its answer */

inline leave(g) {
    if
    :: taken[g] && what[g] == ask ->
#ifdef T_RELEASE_OVERTAKES
        left[g] = true;
        release(g, zf[g]);
        vanish(g)
#else
        z[g] = abandoned; zowner[g] = NOBODY; more[g] = false
#endif

    :: taken[g] && what[g] != ask -> left[g] = true; vanish(g)

    :: !taken[g] && heard[g] && (listed[g] || z[g] != done && z[g] != doubt) ->
        release(g, zf[g]);
        vanish(g)

    :: !taken[g] && !(heard[g] &&
                      (listed[g] || z[g] != done && z[g] != doubt)) ->
        vanish(g)
    fi
}


/* a claim, or a question, under an id of its own */

inline number(g, i) {
    owes_nothing(g);
    fence[g]++;
    assert(fence[g] < 8);

    zf[g] = fence[g]; zowner[g] = i
}


/* who asked has ended: if the file can have heard nothing, that was all */

inline abandon(g) {
    if
    :: taken[g] || again[g] ->
#ifdef T_SECOND_ID

        /* its answer will find no record; another thread asks for the next */

        if
        :: taken[g] && !written[g] -> ghost[g] = bf[g]; handed(g)
        :: taken[g] && written[g] -> left[g] = true
        :: else
        fi;

        release(g, zf[g]);
        vanish(g)
#else
        z[g] = abandoned; zowner[g] = NOBODY
#endif
    :: else -> vanish(g)
    fi
}


/* its worker has gone; before the answer nothing was sent */

inline orphan(g) {
    if
    :: z[g] == asking -> abandon(g)
    :: else ->
        declare_doubt();
        z[g] = doubt;
        owe(g)
    fi
}


inline sync() {
    ds = fs; df = ff; dgen = fgen; dends = fends; dtook = ftook
}


inline synced() {
#if defined(STRICT) && !defined(T_NOT_SYNCED)
    sync()
#else
    skip
#endif
}


inline file_none() {
    fs = none; ff = 0; fgen = 0; fends = 0; ftook = false
}


inline file_expire() {
    if
    :: fs == done && now >= fends -> file_none()
    :: else
    fi
}


inline file_take(g, f) {
    ftook = (ftook || fs == doubt);
    fs = pending; ff = f; fgen = g; fends = 0; answer[g] = granted
}


inline file_doubtful(g, f) {
    if
    :: RETRIES -> file_take(g, f)
    :: else -> fs = doubt; ftook = false; answer[g] = doubtful
    fi
}


/* check, bind and claim, in one transaction */

inline file_ask(g, f) {
    if
    :: fs == none && fulls > 0 -> fulls--; answer[g] = no_room
    :: fs == none -> file_take(g, f)
    :: fs == done -> answer[g] = bound; bends[g] = fends
    :: fs == doubt -> file_doubtful(g, f)

       /* of what it has claimed itself the zone knows best */

    :: fs == pending && fgen == g -> file_take(g, f)

    :: fs == pending && fgen != g && !owner_gone -> answer[g] = busy

    :: fs == pending && fgen != g && owner_gone ->
        declare_doubt();
        fs = doubt;
        file_doubtful(g, f)
    fi
}


/* what the zone knows is not older than what is there, or it is stale */

inline file_put(g, f) {
    if
    :: fs == none ||
       fgen == g && f >= ff &&
          (f > ff || fs == pending || says[g] != pending) ->

        fs = says[g]; ff = f; fgen = g; answer[g] = taken_in;
        ftook = (ftook && fs == pending);

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


/* what had been taken over in doubt is in doubt again, and not fresh */

inline file_release(g, f) {
    file_expire();

    if
    :: fgen == g && ff <= f && fs == pending && ftook ->
        fs = doubt; ftook = false
    :: fgen == g && (fs == pending && !ftook && ff <= f ||
                     fs == doubt && ff == f) ->
        file_none()
    :: else
    fi;

    synced();
    releases[g] = releases[g] & ~BIT(f)
}


inline gather(g) {
    what[g] = ((z[g] == asking || z[g] == abandoned) -> ask : put);
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

    synced();
    written[g] = true
}


inline handed(g) {
    what[g] = nothing; says[g] = 0; answer[g] = 0; by[g] = 0; bf[g] = 0;
    bends[g] = 0; written[g] = false; left[g] = false
}


/* its record has left meanwhile: the file is told that now */

inline handed_left(g) {
#ifndef T_RELEASE_OVERTAKES
    release(g, bf[g]);
#endif
    handed(g)
}


/* a question is answered, and no claim was made of it meanwhile */

inline answered(g) {
    if
    :: answer[g] == granted && z[g] == asking && !without_owner(g) ->
        own(g, zowner[g])

    :: answer[g] == granted && !(z[g] == asking && !without_owner(g)) ->
#ifdef T_GRANT_TO_NOBODY
        vanish(g)
#else
        z[g] = offered; zowner[g] = NOBODY
#endif

    :: answer[g] == bound && now >= bends[g] || answer[g] == no_room ->
        vanish(g)

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
        :: what[g] == ask && (z[g] == asking || z[g] == abandoned) ->
            answered(g)

        :: !(what[g] == ask && (z[g] == asking || z[g] == abandoned)) ->

            /* PROPERTY: nobody else had it meanwhile, but what is in doubt
               or has ended */

            assert(answer[g] != stale || says[g] == doubt ||
                   now >= bends[g] || SAID);

            listed[g] = more[g]; more[g] = false
        fi;

        handed(g)
    fi
}


/* nobody knows whether it was told: once more, the same */

inline untake(g) {
    if
    :: left[g] -> handed_left(g)
    :: else ->
#ifdef T_LATE_BATCH
        if
        :: what[g] == ask && stopped[by[g]] && !written[g] -> ghost[g] = bf[g]
        :: else
        fi;
#endif
        taken[g] = false; heard[g] = true; again[g] = true;
        listed[g] = true; more[g] = false;
        handed(g)
    fi
}


/* an instance beside its requests: what any of its workers does when it comes
   by, and the thread that writes the file */

proctype Instance(byte g) {
    byte f;

    {
end_idle:
    do
    :: atomic {
           what[g] == nothing && listed[g] ->
           gather(g)
       }

    :: atomic {
           what[g] != nothing && !written[g] && !dead[by[g]] &&
           !stopped[by[g]] ->
           commit(g)
       }

    :: atomic {
           written[g] && !dead[by[g]] && !stopped[by[g]] ->
           hear(g)
       }

#ifdef T_ANSWERED_EARLY
    :: atomic {
           what[g] == ask && !written[g] && z[g] == asking &&
           fs == none && !without_owner(g) ->
           own(g, zowner[g])
       }
#endif

    :: atomic {
           fails > 0 && what[g] != nothing && !dead[by[g]] &&
           !stopped[by[g]] ->
           fails--;
           untake(g)
       }

       /* who told it has died, or is silent for too long: then, what he may
          still commit, he drops behind his BEGIN */

    :: atomic {
           what[g] != nothing && (dead[by[g]] || stopped[by[g]]) ->
           untake(g)
       }

#ifdef TWIN
    :: atomic {
           ghost[g] != 0 ->
           f = answer[g];
           file_expire();
           file_ask(g, ghost[g]);
           ghost[g] = 0; answer[g] = f; f = 0
       }
#endif

       /* the store hangs, and is back */

    :: atomic {
           hangs > 0 && what[g] != nothing && !down[g] && may_hang(g) ->
           hangs--;
           down[g] = true
       }

    :: atomic {
           down[g] && may_be_back(g) ->
           be_back(g)
       }

       /* a release: behind what is on its way */

    :: atomic {
#if defined(T_RELEASE_OVERTAKES) || defined(T_SECOND_ID)
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

       /* what was granted to nobody, and nobody comes */

    :: atomic { z[g] == offered -> leave(g) }

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
           vanish(g)
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
            :: z[g] == none && !down[g] ->
asks:
                number(g, me);
                my = zf[g];
                owe(g);
#ifdef T_NOT_ASKED
                own(g, me);
                goto send
#else
                z[g] = asking;
                goto asked
#endif

            :: z[g] == none && down[g] ->
                if
                :: IS_LOCAL ->
                    number(g, me);
                    my = zf[g];
                    own(g, me);
                    owe(g);
                    goto send
                :: else -> goto end
                fi

               /* the same question, and its id, is another one's now */

            :: z[g] == abandoned && !down[g] ->
                z[g] = asking; zowner[g] = me;
                my = zf[g];
                goto asked

            :: z[g] == abandoned && down[g] ->
                if
                :: IS_LOCAL -> goto alone
                :: else -> goto end
                fi

            :: z[g] == offered && (!down[g] || IS_LOCAL) ->
                my = zf[g];
                own(g, me);
                goto send

            :: z[g] == offered && down[g] && !IS_LOCAL -> goto end

            :: (z[g] == asking || z[g] == pending) && without_owner(g) ->
                orphan(g);
                goto meet

            :: (z[g] == asking || z[g] == elsewhere) && down[g] &&
               !(z[g] == asking && without_owner(g)) ->
                goto end

            :: z[g] == asking && !without_owner(g) && !down[g] ||
               z[g] == pending && !without_owner(g) ||
               z[g] == elsewhere && !down[g] ->
                seen = zf[g];
                goto wait

            :: z[g] == done ->

                /* with `strict` nobody is told what could be forgotten */

                if
                :: IS_STRICT && owes(g) && !(down[g] && IS_LOCAL) ->
                    seen = zf[g];
                    goto wait_told

                :: else -> replay(g); goto end
                fi

            :: z[g] == doubt && (!RETRIES && owes(g) || down[g]) -> goto end

               /* the file is to know of the doubt before it is asked */

            :: z[g] == doubt && RETRIES && owes(g) && !down[g] ->
                seen = zf[g];
                goto wait_told

            :: z[g] == doubt && !owes(g) && !down[g] ->

                /* somebody else may have taken it over */

                vanish(g);
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
            !((z[g] == done || z[g] == doubt) && zf[g] == seen && owes(g)) ->
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

           /* its deadline, or the store hangs: 503, or nginx goes by its own
              zone, under the same id */

        :: atomic {
               !stopped[me] && (giveups > 0 || down[g]) && z[g] == asking &&
               mine(g, me, my) ->

               if
               :: IS_LOCAL && down[g] ->
alone:
                   own(g, me);
                   my = zf[g];
                   owe(g);
                   goto send

               :: else ->
                   if
                   :: down[g]
                   :: else -> giveups--
                   fi;

                   abandon(g);
                   goto end
               fi
           }
        fi;

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
                   truth = (doubted[me] -> doubt : none);
                   deposed[me] = false; holder = NOBODY
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
        !(z[g] == done && zf[g] == my && owes(g)) || down[g];
#endif
        atomic {
            if
#ifdef T_NOT_HELD
            :: z[g] == done && zf[g] == my -> told = true
#else
            :: z[g] == done && zf[g] == my && !(IS_STRICT && owes(g)) ->
                told = true
#endif
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


inline forget(g) {
    gone[g] = true;
    releases[g] = 0; down[g] = false; ghost[g] = 0;
    handed(g);
    vanish(g);
    fence[g] = 0
}


/* PROPERTY: the death of processes forgets no claim that was sent, as the file
   has it: truth stays what it was, and whoever comes then finds it in doubt.
   What went by the zone alone (`local`) is lost; an outcome that nobody waited
   to have in the file is in doubt */

inline crash(g) {
    if
    :: IS_LOCAL && owes(g) && fs == none -> lost = true
    :: !IS_STRICT && owes(g) && z[g] == done &&
       (fs == pending || fs == doubt) ->
        truth = doubt; told = false
    :: else
    fi;

    kill(2 * g); kill(2 * g + 1);
    forget(g)
}


#define may_quit(g)                                                          \
    (started[g] && !gone[g] && !busied[2 * g] && !busied[2 * g + 1]          \
     && what[g] == nothing && !listed[g] && releases[g] == 0                 \
     && z[g] != offered)

#ifdef LOCAL
#define may_start         gone[0]
#else
#define may_start         true
#endif


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

    :: atomic { quits > 0 && may_quit(0) -> quits--; forget(0) }
    :: atomic { quits > 0 && may_quit(1) -> quits--; forget(1) }

    :: atomic {
           cuts > 0 && !started[1] ->
           cuts--;
           crash(0);

           if
           :: !IS_STRICT && (fs != ds || ff != df) -> lost = true
           :: else
           fi;

           fs = ds; ff = df; fgen = dgen; fends = dends; ftook = dtook
       }

#ifndef STRICT
    :: atomic {
           cuts > 0 && (fs != ds || ff != df || fends != dends) -> sync()
       }
#endif

       /* the other instance, beside the first one or after it */

    :: atomic {
           !started[1] && may_start ->
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
        :: hangs = 1
        :: giveups = 1
#ifdef LOCAL
        :: true
#else
        :: evicts = 1
#endif
        fi;
#endif

#ifdef LOCAL
        hangs = 1; quits = 1;
#endif

        zowner[0] = NOBODY; zowner[1] = NOBODY;
        started[0] = true;

        run Instance(0); run Instance(1);
        run Request(0); run Request(1); run Request(2);
#ifndef SMALL
        run Request(3);
#endif
        run World()
    }
}
