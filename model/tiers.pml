/*
 * One token in two tiers: the zone of each generation of nginx, in shared
 * memory, and behind them a file that they share.  It is the protocol alone:
 * what is asked, granted, written, lost and told, in any order.
 *
 * Requests 0 and 1 belong to generation 0, requests 2 and 3 to generation 1,
 * which starts beside the first one (a binary upgrade, a second nginx by
 * mistake) or after its end (a restart).  Each request has a worker of its
 * own, so that the death of a worker is that of a request.  A generation ends
 * as a whole, its zone with it.
 *
 * STRICT   a claim is on disk before it is granted, and the end of a response
 *          is held until its outcome is; otherwise, as in mode "batched", the
 *          file is on disk at some time later
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
#define CRASHES   0    /* kill -9 of a whole generation */
#endif
#ifndef CUTS
#define CUTS      0    /* a power cut: what is not on disk is gone */
#endif
#ifndef TICKS
#define TICKS     0    /* of the clock; a window is one */
#endif
#ifndef MUTES
#define MUTES     0    /* an answer is lost */
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

#define NOBODY     4
#define GEN(i)     ((i) / 2)

mtype = { none, asking, pending, done, doubt };      /* what a token is */
mtype = { idle, queued, written, answered, mute };   /* a claim on its way */
mtype = { granted, busy, bound, doubtful };          /* its answer */


/* the first tier, of each generation */

mtype z[2] = none;
byte  zid[2], zowner[2], zends[2];
bool  zowes[2];                /* what the file was not told yet */
bool  ask_first[2];            /* what is not in the zone may be in the file */

/* the second, as the processes see it, and as it is on disk */

mtype fs = none, ds = none;
byte  fid, fgen, fends, did, dgen, dends;

/* the claims of requests, and those whose release is owed, by their ids */

mtype op[4] = idle, answer[4];
byte  ends[4];
bool  owed_release[4];

/* who lives, and how the second generation comes in */

bool  started[2], gone[2], hello, acknowledged;
bool  dead[5], stopped[5];

byte  now;

/* what may still happen */

byte  kills = KILLS, stops = STOPS, crashes = CRASHES, cuts = CUTS,
      ticks = TICKS, mutes = MUTES, giveups = GIVEUPS, evicts = EVICTS;

/* what the properties speak of, and no process knows */

mtype truth = none;
byte  truth_ends, holder = NOBODY, executions, excused = 1;
bool  told, lost;


#define without_owner(g)  (dead[zowner[g]] || stopped[zowner[g]])

#ifdef T_WORKER_OWNS
#define file_owner_gone   (gone[fgen] || dead[fid])
#else
#define file_owner_gone   gone[fgen]
#endif


#ifdef T_NOT_ACKNOWLEDGED
#define let_in(g)         true
#else
#define let_in(g)         (g == 0 || acknowledged || gone[0])
#endif

#ifdef T_EVICTS_OWED
#define may_leave(g)      true
#else
#define may_leave(g)      !zowes[g]
#endif

#ifdef T_LATE_ANSWER
#define asks_again(i)     (answer[i] != granted)
#else
#define asks_again(i)     true
#endif

#ifdef T_RELEASE_OVERTAKES
#define may_release(i)    owed_release[i]
#else
#define may_release(i)    (owed_release[i] && op[i] != queued)
#endif

#ifdef T_COPIES_WHAT_ENDED
#define checks_end        false
#else
#define checks_end        true
#endif

#ifdef T_STALE_RECORDS
#define may_record(g, i)  true
#else
#define may_record(g, i)                                                     \
    ((z[g] == pending || z[g] == doubt && zowes[g]) && zowner[g] == i)
#endif


/* PROPERTY: one execution for a token and window, unless doubt was declared
   and retry chosen, or it is the loss that the mode admits */

inline execute() {
    if
    :: truth == done && now >= truth_ends -> executions = 0; excused = 1
    :: else
    fi;

    executions++;
    assert(lost || executions <= excused);

    truth = pending; told = false
}


/* PROPERTY: what a client was told as recorded is not forgotten.  (The end of
   all that knew it, in mode batched, may leave it in doubt, which is told) */

inline declare_doubt() {
    assert(!(told && truth == done && now < truth_ends) ||
           !IS_STRICT && gone[0]);
    truth = doubt
}


/* PROPERTY: a repeat never moves the window, wherever its record comes from */

inline replay(g) {
    assert(lost || truth != done || zends[g] == truth_ends);
#ifdef T_REPLAY_MOVES
    zends[g] = now + 2
#endif
}


/* PROPERTY: an owner whose claim was taken over never records */

inline record(g, i) {
    assert(holder == i);

    z[g] = done; zends[g] = now + 1; zowes[g] = true;
    truth = done; truth_ends = now + 1
}


inline own(g, i) {
    z[g] = pending; zowner[g] = i; holder = i
}


/* it leaves the zone, and the file, if that has the claim alone */

inline leave(g) {
#ifndef T_NOT_RELEASED
    owed_release[zid[g]] = owed_release[zid[g]] || zowes[g] || z[g] != done;
#endif
    z[g] = none; zowes[g] = false
}


inline sync() {
    ds = fs; did = fid; dgen = fgen; dends = fends
}


inline file_take(id, g) {
    fs = pending; fid = id; fgen = g
}


inline file_expire() {
    if
    :: fs == done && now >= fends -> fs = none
    :: else
    fi
}


inline file_claim_doubtful(i, g) {
    if
    :: RETRIES -> excused++; file_take(i, g); answer[i] = granted
    :: else -> fs = doubt; answer[i] = doubtful
    fi
}


/* a claim in the file: check, bind and claim, in one transaction */

inline file_claim(i, g) {
    file_expire();

    if
    :: fs == none -> file_take(i, g); answer[i] = granted

    :: fs == done -> answer[i] = bound; ends[i] = fends

    :: fs == doubt -> file_claim_doubtful(i, g)

    :: fs == pending ->
        if
        :: fid == i -> answer[i] = granted   /* one claim, sent twice */
        :: fid != i && !file_owner_gone -> answer[i] = busy
        :: fid != i && file_owner_gone ->
            declare_doubt();
            file_claim_doubtful(i, g)
        fi
    fi
}


/* What the zone owes the file.  Of what its own generation claimed it knows
   best: the claim itself may still be owed, and a release before it */

inline file_settle(g) {
    file_expire();

    if
    :: fs == none || fgen == g && fs != done || fid == zid[g] ->
        fid = zid[g]; fgen = g;

        if
        :: z[g] == done ->
            fs = done;
#ifdef T_WINDOW_FROM_DELIVERY
            fends = now + 1
#else
            fends = zends[g]
#endif
        :: else -> fs = z[g]
        fi

    :: else
    fi;

    zowes[g] = false
}


/* a generation beside its requests: the thread that writes the file, and what
   any worker does when it comes by */

proctype Generation(byte g) {
    byte i;

end_idle:
    do
    :: gone[g] -> break

    :: atomic {
           op[2 * g] == queued || op[2 * g + 1] == queued ->

           if
           :: op[2 * g] == queued -> i = 2 * g
           :: op[2 * g + 1] == queued -> i = 2 * g + 1
           fi;

           file_claim(i, g);
           op[i] = written; i = 0
       }

    :: atomic {
           op[2 * g] == written || op[2 * g + 1] == written ->

           if
           :: op[2 * g] == written -> i = 2 * g
           :: op[2 * g + 1] == written -> i = 2 * g + 1
           fi;

#if defined(STRICT) && !defined(T_NOT_SYNCED)
           sync();
#endif
           if
           :: op[i] = answered
           :: mutes > 0 -> mutes--; op[i] = mute
           fi;

           i = 0
       }

       /* a release never overtakes the claim that it is about */

    :: atomic {
           may_release(2 * g) || may_release(2 * g + 1) ->

           if
           :: may_release(2 * g) -> i = 2 * g
           :: may_release(2 * g + 1) -> i = 2 * g + 1
           fi;

           if
           :: (fs == pending || fs == doubt) && fid == i -> fs = none
           :: else
           fi;

           owed_release[i] = false; i = 0
       }

    :: atomic {
           zowes[g] ->
           file_settle(g);
#ifdef STRICT
           sync()
#endif
       }

       /* the claims of a worker that died */

    :: atomic { z[g] == asking && dead[zowner[g]] -> leave(g) }

    :: atomic {
           z[g] == pending && dead[zowner[g]] ->
           declare_doubt();
           z[g] = doubt; zowes[g] = true
       }

       /* memory is short: what the file has may leave */

    :: atomic {
           evicts > 0 && z[g] == done && may_leave(g) ->
           evicts--;
           z[g] = none; zowes[g] = false
#ifndef T_EVICTS_UNNOTED
           ; ask_first[g] = true
#endif
       }

       /* who was alone asks the file first from now on, and lets the newcomer
          in once the file has all that the zone has */

    :: atomic { g == 0 && hello && !ask_first[g] -> ask_first[g] = true }

    :: atomic {
           g == 0 && hello && !acknowledged && ask_first[g] && !zowes[g] ->
           acknowledged = true
       }
    od
}


proctype Request(byte me) {
    byte g = GEN(me), seen = NOBODY;

end_not_started:
    started[g];

    {
        let_in(g);

        /* what the zone says, in one step */

meet:
        atomic {
            !stopped[me] ->

            if
            :: z[g] == done && now >= zends[g] -> leave(g)
            :: else
            fi;

            if
            :: z[g] == none && (ask_first[g] || IS_STRICT) ->
                z[g] = asking; zid[g] = me; zowner[g] = me;
                goto ask

            :: z[g] == none && !ask_first[g] && !IS_STRICT ->
                zid[g] = me; zowes[g] = true;
                own(g, me);
                goto send

            :: z[g] == asking && zowner[g] == me -> goto ask

            :: z[g] == asking && zowner[g] != me && without_owner(g) ->
                /* nothing was sent before the answer */
                leave(g);
                goto meet

            :: z[g] == pending && without_owner(g) ->
                declare_doubt();
                z[g] = doubt; zowes[g] = true;
                goto meet

            :: (z[g] == asking || z[g] == pending) && zowner[g] != me &&
               !without_owner(g) ->
                seen = zid[g];
                goto wait

            :: z[g] == done -> replay(g); goto end

            :: z[g] == doubt && !RETRIES -> goto end

            :: z[g] == doubt && RETRIES ->
                /* taken over: by a claim of its own, once the file has
                   released the other */
                excused++;
                leave(g);
                goto meet
            fi
        }

        /* PROPERTY: nobody waits for ever (no invalid end state) */

wait:
        atomic {
            !((z[g] == asking || z[g] == pending) && zid[g] == seen &&
              !without_owner(g)) ->
            seen = NOBODY;
            goto meet
        }

ask:
        atomic {
            !stopped[me] ->

            if
            :: z[g] == asking && zowner[g] == me ->
                op[me] = queued

            :: else -> goto again
            fi
        }

        if
        :: atomic {
               !stopped[me] && op[me] == answered ->
               op[me] = idle;

               if
               :: !(z[g] == asking && zowner[g] == me) && asks_again(me) ->
                   /* too late: its claim was left, and released */
                   owed_release[me] = true;
                   goto again

               :: else ->
                   if
                   :: answer[me] == granted -> own(g, me); goto send
                   :: answer[me] == busy -> goto elsewhere

                   :: answer[me] == bound && now >= ends[me] && checks_end ->
                       z[g] = none;
                       goto meet

                   :: answer[me] == bound && !(now >= ends[me] && checks_end) ->
                       z[g] = done; zends[g] = ends[me];
                       replay(g);
                       goto end

                   :: answer[me] == doubtful ->
                       /* not copied: whoever comes next asks again */
                       z[g] = none;
                       goto end
                   fi
               fi
           }

        :: atomic { !stopped[me] && op[me] == mute -> op[me] = idle; goto ask }

           /* its deadline: 503 */

        :: atomic {
               !stopped[me] && giveups > 0 && op[me] != idle &&
               op[me] != answered && z[g] == asking && zowner[g] == me ->
               giveups--;
               leave(g);
               op[me] = idle;
               goto end
           }
        fi;

again:
        /* to ask again it would need a claim with a new id, which is another
           request here */
#ifdef T_SAME_ID_AGAIN
        goto meet;
#else
        goto end;
#endif

elsewhere:
        atomic {
            !(fs == pending && fid != me && !file_owner_gone) -> goto ask
        }

send:
        if
        :: atomic {
               /* refused, not a byte was sent: released */
               !stopped[me] ->

               if
               :: z[g] == pending && zowner[g] == me -> leave(g)
               :: else
               fi;

               goto end
           }

        :: atomic { !stopped[me] -> execute() }
        fi;

        atomic {
            !stopped[me] ->

            if
            :: may_record(g, me) -> record(g, me)

            :: !may_record(g, me) && z[g] == doubt && zowner[g] == me &&
               fs == doubt && fid == zid[g] ->
                /* late, in time: the file has it in doubt still */
                record(g, me);
                file_settle(g);
                sync()

            :: else -> goto end
            fi
        }

#if defined(STRICT) && !defined(T_NOT_HELD)
        !zowes[g];
#endif
        atomic {
            if
            :: z[g] == done && zowner[g] == me -> told = true
            :: else
            fi
        }

    } unless {
        dead[me]
    };

end:
    skip
}


inline kill(i) {
    dead[i] = true; op[i] = idle
}


inline crash(g) {
    if
    :: !IS_STRICT && zowes[g] && z[g] != none &&
       !(fs != none && fid == zid[g]) -> lost = true
    :: else
    fi;

    gone[g] = true;
    kill(2 * g); kill(2 * g + 1);
    owed_release[2 * g] = false; owed_release[2 * g + 1] = false;
    z[g] = none; zowes[g] = false
}


proctype World() {
end_world:
    do
    :: atomic { kills > 0 -> kills--; if :: kill(0) :: kill(2) fi }

    :: atomic { stops > 0 -> stops--; stopped[0] = true }
    :: atomic { stopped[0] -> stopped[0] = false }

    :: atomic { ticks > 0 -> ticks--; now++ }

    :: atomic { crashes > 0 && !gone[0] -> crashes--; crash(0) }

    :: atomic {
           cuts > 0 && !started[1] ->
           cuts--;
           crash(0);

           if
           :: !IS_STRICT && (fs != ds || fid != did) -> lost = true
           :: else
           fi;

           fs = ds; fid = did; fgen = dgen; fends = dends
       }

#ifndef STRICT
    :: atomic { fs != ds || fid != did || fends != dends -> sync() }
#endif

       /* the next generation, beside the first one or after it */

    :: atomic {
           !started[1] ->
           started[1] = true;
           ask_first[1] = true;

           if
           :: !gone[0] -> hello = true
#ifdef T_PENDING_ENDS_AT_START
           :: gone[0] && fs == pending -> fs = none
           :: gone[0] && fs != pending
#else
           :: else
#endif
           fi
       }
    od
}


init {
    atomic {
        dead[NOBODY] = true;

#ifdef ANY
        if
        :: kills = 1
        :: stops = 1
        :: crashes = 1
        :: cuts = 1
        :: ticks = 2
        :: mutes = 1
        :: giveups = 1
        :: evicts = 1
        fi;
#endif

        started[0] = true;

        run Generation(0); run Generation(1);
        run Request(0); run Request(1); run Request(2);
#ifndef SMALL
        run Request(3);
#endif
        run World()
    }
}
