/*
 * A file, and how far it was written: its identity and its number, which rises
 * with each commit, and beside it its witness, which says how far it was
 * surely on disk.  Two instances commit to it; they are killed and start
 * again, the power fails, and the file becomes what it once was (a backup, a
 * log that was lost), while nobody uses it or somebody does.
 *
 * Invariant: the witness says no more than is on disk.  So neither a kill nor
 * a power cut makes a file older than its witness.
 *
 * Invariant (STRICT): nothing is granted before the witness says so.  So a file
 * that lacks a grant is older than its witness, but after a power cut, as the
 * witness itself is never synced.
 *
 * Invariant: who agreed to an older file has given it another identity, and
 * who did not agree has not seen it.
 *
 * STRICT   each commit is synced and witnessed before its answer; otherwise,
 *          as in the mode "batched", it is at some time later
 *
 * KILLS and the others below: how often each may happen.  T_... is a twin that
 * breaks one rule, and must be found out: model/run has the list.
 */

#ifndef KILLS
#define KILLS     0    /* kill -9 of an instance */
#endif
#ifndef CUTS
#define CUTS      0    /* a power cut */
#endif
#ifndef OLDS
#define OLDS      0    /* the file is what it was, while nobody uses it */
#endif
#ifndef SWAPS
#define SWAPS     0    /* ... while somebody does */
#endif

#ifdef STRICT
#define IS_STRICT  true
#else
#define IS_STRICT  false
#endif

#define COMMITS    4
#define NOBODY     2

/* an instance */
mtype = { off, starts, serves, answers, writes, refused };

/* its thread that syncs */
mtype = { rests, syncs, testifies };


/* the file as processes see it, how far it is on disk, and what it once was */

byte  ident = 1, num, disk, backup, bident, idents = 1;
bool  has_backup;

/* the witness: two slots, as processes see them and on disk; 0: torn */

byte  slot[2], sident[2] = 1, sdisk[2], sdident[2] = 1;

/* what an instance is at, whose file it has, and how far it saw that */

mtype at[2] = off, task[2] = rests;
byte  known[2], last[2], mark[2], where[2];

/* whose turn it is to commit, or to write the witness */

byte  turn = NOBODY;

byte  commits = COMMITS, kills = KILLS, cuts = CUTS, olds = OLDS, swaps = SWAPS;

/* what no process knows: the last number that somebody was granted, and
   whether the file is older than that; who has not agreed */

byte  grants;
bool  older, cut, unaware[2];


#define newest     (slot[1] > slot[0])
#define oldest     (slot[1] <= slot[0])

#ifdef T_OLDER_ACCEPTED
#define is_older   false
#else
#define is_older   (num < last[g] || known[g] != ident)
#endif

/* ... somebody agreed to it meanwhile */

#define is_changed (slot[newest] != last[g] || sident[newest] != known[g])

#ifdef T_NOT_COMPARED
#define is_other   false
#else
#ifdef T_WITNESS_NOT_READ
#define is_other   (num < last[g] || ident != known[g])
#else
#define is_other   (num < last[g] || ident != known[g] || num < slot[newest])
#endif
#endif


/* the older slot, so that a torn one leaves the other */

inline testify(n) {
    if
    :: sident[newest] == known[g] && n > slot[newest] ->
        where[g] = oldest;
        slot[where[g]] = n; sident[where[g]] = known[g];
        where[g] = 0
    :: else
    fi
}


inline granted(n) {
    assert(!unaware[g]);
    grants = (n > grants -> n : grants)
}


inline off_with(i) {
    at[i] = off; task[i] = rests; known[i] = 0; last[i] = 0; mark[i] = 0;
    where[i] = 0; unaware[i] = false;

    if
    :: turn == i -> turn = NOBODY
    :: else
    fi
}


proctype Instance(byte g) {
end:
    do
       /* a start reads the witness first, then the file: others may commit */

    :: atomic {
           at[g] == off ->
#ifdef T_FILE_FIRST
           last[g] = num; known[g] = ident;
#else
           last[g] = slot[newest]; known[g] = sident[newest];
#endif
           at[g] = starts
       }

    :: atomic {
           at[g] == starts ->
#ifdef T_FILE_FIRST
           if
           :: last[g] < slot[newest] ->
#else
           if
           :: is_older && is_changed -> at[g] = off
           :: is_older && !is_changed ->
#endif
               /* PROPERTY: only an older file is refused */

               assert(older);
               at[g] = refused

           :: else ->

               /* PROPERTY: what was granted is in it, but for what a power
                  cut took */

               assert(!older || num >= grants || cut || !IS_STRICT);
               at[g] = serves; last[g] = num; known[g] = ident
           fi
       }

       /* a commit: what it was is compared within its transaction */

    :: atomic {
           at[g] == serves && turn == NOBODY && commits > 0 ->
           if
           :: is_other ->
               assert(unaware[g] || older || ident != known[g]);
               at[g] = refused
           :: else ->
               commits--;
               num++; last[g] = num;
#ifdef STRICT
               disk = num;
               at[g] = answers; turn = g
#else
               granted(num)
#endif
           fi
       }

#if defined(STRICT) && defined(T_ANSWERED_FIRST)
    :: atomic { at[g] == answers -> granted(last[g]); at[g] = writes }
    :: atomic {
           at[g] == writes ->
           testify(last[g]);
           at[g] = serves; turn = NOBODY
       }

#elif defined(STRICT) && defined(T_NO_TURN)

       /* two may choose the same slot, and the later one writes less */

    :: atomic {
           at[g] == answers ->
           turn = NOBODY;
           where[g] = oldest;
           at[g] = writes
       }
    :: atomic {
           at[g] == writes ->
           slot[where[g]] = last[g]; sident[where[g]] = known[g];
           where[g] = 0;
           granted(last[g]);
           at[g] = serves
       }

#elif defined(STRICT)
    :: atomic { at[g] == answers -> testify(last[g]); at[g] = writes }
    :: atomic {
           at[g] == writes ->
           granted(last[g]);
           at[g] = serves; turn = NOBODY
       }

#else
       /* what is surely on disk behind a sync is what was there before it */

    :: atomic {
           at[g] == serves && task[g] == rests && disk < num &&
           ident == known[g] ->
           mark[g] = num;
           task[g] = syncs
       }

    :: atomic {
           at[g] == serves && task[g] == syncs ->
           if
           :: ident == known[g] -> disk = num
           :: else
           fi;
           task[g] = testifies
       }

    :: atomic {
           at[g] == serves && task[g] == testifies && turn == NOBODY ->
#ifdef T_READ_AFTER
           mark[g] = num;
#endif
           testify(mark[g]);
           task[g] = rests; mark[g] = 0
       }
#endif

       /* an operator agrees to the file as it is.  One that is older gets
          another identity, so that nobody goes on with it who did not see that
          its numbers began anew; and what a sync began to say is about
          another file */

    :: atomic {
           at[g] == refused && turn == NOBODY ->
#ifndef T_SAME_IDENTITY
           if
           :: ident == known[g] || num < slot[newest] ->
               idents++; ident = idents
           :: else
           fi;
#endif
           assert(ident < 6);
           slot[0] = num; slot[1] = 0; sident[0] = ident; sident[1] = ident;
           sdisk[0] = num; sdisk[1] = 0; sdident[0] = ident; sdident[1] = ident;
           disk = num; grants = num; older = false; unaware[g] = false;
           at[g] = serves; last[g] = num; known[g] = ident;
           task[g] = rests; mark[g] = 0
       }
    od
}


inline torn(i) {
    if
    :: slot[i] == sdisk[i]
    :: slot[i] != sdisk[i] -> slot[i] = sdisk[i]; sident[i] = sdident[i]
    :: slot[i] != sdisk[i] -> slot[i] = 0
    :: slot[i] != sdisk[i]
    fi;

    sdisk[i] = slot[i]; sdident[i] = sident[i]
}


inline restore() {
    num = backup; disk = backup; ident = bident; older = true;
    has_backup = false; backup = 0; bident = 0
}


/* nobody is to go on who did not agree, as what was surely on disk is not there
   any more */

#define noticed(i)   (slot[newest] > backup || known[i] != bident)


proctype World() {
end:
    do
    :: atomic { olds + swaps > 0 && !has_backup -> has_backup = true;
                backup = num; bident = ident }

    :: atomic { kills > 0 && at[0] != off -> kills--; off_with(0) }
    :: atomic { kills > 0 && at[1] != off -> kills--; off_with(1) }

    :: atomic {
           cuts > 0 ->
           cuts--; cut = true;
           off_with(0); off_with(1);

           do
           :: num > disk -> num--
           :: break
           od;

           disk = num;
           torn(0); torn(1)
       }

    :: atomic {
           olds > 0 && has_backup && backup < num ->
           olds--;
           off_with(0); off_with(1);
           restore()
       }

    :: atomic {
           swaps > 0 && has_backup && backup < num && turn == NOBODY &&
           at[0] != starts && at[1] != starts ->
           swaps--;

           if
           :: at[0] == serves -> unaware[0] = noticed(0)
           :: else
           fi;

           if
           :: at[1] == serves -> unaware[1] = noticed(1)
           :: else
           fi;

           restore()
       }
    od
}


init {
    atomic {
        run Instance(0); run Instance(1); run World()
    }
}
