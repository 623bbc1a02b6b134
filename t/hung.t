#!/usr/bin/perl

# docs/operation.md, "A disk that hangs": who comes is answered at once, the rest is
# served, and it goes on when the disk answers. A failed sync is no hang. Workers
# come and go meanwhile, and so does nginx.

use lib 't/lib';
use Disk;
use IO::Socket::INET;
use Idempotency;
use Restart;
use Stress;

use Time::HiRes qw(time sleep);

if (my $why = no_state()) {
    plan(skip_all => "no file: $why");
}

my ($disk, $n);
my $names = 0;

sub start_nginx {
    my ($mode, %o) = @_;

    $disk = Disk->new(delete $o{files} // '/z.db');
    $n = outliving(workers => 2, env => $disk->env, main => $disk->main, %o,
                   allow => qr/z\.db|exited on signal|state|zone "z"/,
                   zone => with_state($mode), server => <<'EOC');
    idempotency zone=z;
    idempotency_in_progress reject;
    add_header X-Status $idempotency_status always;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /free { idempotency off; proxy_pass http://$TEST_NGINX_BACKEND; }
    location = /pid { idempotency off; return 200 $pid; }
    location /api/ { idempotency_api; }
EOC
}

sub order {
    my ($id) = @_;

    $id //= 'n' . ++$names;
    return told($n->post("/x?id=$id", key => $id, body => 'b'));
}

# A worker that has just come may have to open the file yet.

sub each_uses_it {
    my ($name) = @_;

    for my $pid ($n->workers) {
        my $c = connection_to($n, $pid);

        ok((until_true {
            told(ask($c, 'POST', '/x', key => 'n' . ++$names, body => 'b')->response) eq '200 NEW'
        }), "$name: each worker uses it");
    }
}


sub up { return $n->get('/api/metrics')->{body} =~ /^nginx_idempotency_store_up\S* 1/m ? 1 : 0 }


# --- syncs that hang -------------------------------------------------------------

# commits go on, but not without limit

start_nginx('batched');
is(order('first'), '200 NEW', 'batched: a disk that is well');
$disk->set(sync => 'hang');

ok((until_true { order() eq '503 UNAVAILABLE' }), '... its syncs hang: no more claims after some time');
ok((until_true { !up() }), '... store_up');
is((() = $n->log =~ /\[crit\].* is unavailable: what was written is not on disk for 2 s/g), 1, '... one line says so');
is(order('first'), '200 REPLAYED', '... memory answers');
is($n->post('/free')->{status}, 200, '... and what needs no store is served');

$disk->well;
ok((until_true { order() eq '200 NEW' }), '... it goes on when they have come back');
ok((until_true { up() }), '... store_up');
$n->stop;


# --- writes that fail --------------------------------------------------------------

# what asks and writes nothing is answered yet, and makes nothing well

for my $how (qw(fail full)) {
    start_nginx('batched');
    is(order('first'), '200 NEW', "batched: a disk that is well");
    $disk->set(write => $how);
    ok((until_true { order() eq '503 UNAVAILABLE' && !up() }), "... its writes fail, $how: no more claims");

    # for longer than it takes to try again, several times
    my $told = join ' ', map { sleep 0.02; order(), up() } 1 .. 50;

    is($told, join(' ', ('503 UNAVAILABLE', 0) x 50), '... and it stays so');
    $disk->well;
    ok((until_true { up() && order() eq '200 NEW' }), '... until it is well');
    is(order('first'), '200 REPLAYED', '... with what is there');
    is(join(' ', $n->log =~ /z\.db" of zone "z" is (unavailable|available again)/g),
       'unavailable available again', '... a line when it goes, and one when it comes');
    $n->stop;
}


# --- syncs that fail ---------------------------------------------------------------

for my $mode (qw(batched strict)) {
    start_nginx($mode);
    is(order('first'), '200 NEW', "$mode: a disk that is well");
    $disk->set(sync => 'fail');
    ok((until_true { order(); $n->log =~ /\[crit\].*is unavailable/ }), '... its syncs fail: it is said');
    $disk->well;

    is(order(), '503 UNAVAILABLE', '... nobody knows what is on the disk then');
    is($n->reload, 1, '... a reload');
    is(order(), '503 UNAVAILABLE', '... does not tell');
    is(order('first'), '200 REPLAYED', '... memory answers');

    $n->restart('QUIT');
    is(order(), '200 NEW', '... a start looks');
    is(order('first'), '200 REPLAYED', '... and finds what was there');
    $n->stop;
}


# --- reads that fail ---------------------------------------------------------------

# SQLite calls them damage. Nothing is: they come back, and so does the store.

for ([ batched => '/z.db' ], [ strict => '/z.db' ], [ batched => '/z.db-wal' ]) {
    my ($mode, $files) = @$_;

    start_nginx($mode, files => $files);
    is(order('first'), '200 NEW', "$mode, $files: a disk that is well");

    # what one worker writes, the other one reads anew
    my @by = map { connection_to($n, $_) } $n->workers;
    my $by = sub { told(ask($_[0], 'POST', '/x', key => 'n' . ++$names, body => 'b')->response) };

    is(join(' ', map { $by->($_) } @by, @by), join(' ', ('200 NEW') x 4), '... which both workers use');
    $disk->set(read => 'fail');
    $by->($_) for @by, @by;

    ok((until_true { order() eq '503 UNAVAILABLE' }), '... it can not be read: what is fresh is refused');
    ok((until_true { $n->log =~ /\[crit\].* is unavailable: .*/ }), '... it is said');
    unlike($n->log, qr/damaged|remove it/, '... as what it is');

    $disk->well;
    ok((until_true { order() eq '200 NEW' }), '... it goes on when it can be');
    ok((until_true { up() }), '... store_up');
    is(order('first'), '200 REPLAYED', '... with what is there');
    $n->stop;
}


# --- workers that end --------------------------------------------------------------

for my $signal (qw(QUIT TERM)) {
    start_nginx('strict');
    is(order('first'), '200 NEW', "$signal: a disk that is well");
    $disk->set(all => 'hang');

    my $waits = $n->start('POST', '/x?id=hangs', key => 'hangs', body => 'b');
    ok((until_true { $disk->hung }), '... that hangs');

    # a thread that is in the kernel does not keep its worker

    my $cpu = sub {
        my $sum = 0;

        for ($n->alive) {
            my @stat = split ' ', slurp("/proc/$_/stat") =~ s/.*\)//sr;
            $sum += ($stat[11] // 0) + ($stat[12] // 0);
        }

        return $sum;
    };

    if ($signal eq 'QUIT') {
        my $before = $cpu->();
        is($n->reload, 1, '... a reload');
        sleep 2;
        cmp_ok($cpu->() - $before, '<', 100, '... in which nobody spins');
        is($n->post('/free')->{status}, 200, '... the new workers serve');
    }

    # in this test the kernel lets it go when it is told so

    $disk->well;
    ok($n->down($signal), '... nginx ends');
    $n->up;
    is(order(), '200 NEW', '... and starts');
    $n->stop;
}


# --- the ports of who ends ---------------------------------------------------------

# While the kernel holds a thread, the files of its process stay open, even if that
# has ended: but not the ports, which the next nginx needs.

for my $how ([ 'QUIT' ], [ 'TERM' ], map [ $_, main => "master_process off;\n", workers => 0 ], qw(QUIT TERM)) {
    my ($signal, @single) = @$how;
    my $name = @single ? "$signal, without a master" : $signal;

    start_nginx('strict', @single);
    is(order('first'), '200 NEW', "$name: a disk that is well");
    $disk->set(all => 'stuck');
    $n->start('POST', '/x?id=stuck', key => 'stuck', body => 'b');
    ok((until_true { $disk->hung }), '... one that holds a thread for good');

    my $began = time;

    $n->strike($signal);
    ok((until_true {
        IO::Socket::INET->new(Listen => 1, ReuseAddr => 1, LocalAddr => '127.0.0.1', LocalPort => $n->port)
    }), '... who ends leaves its port');
    cmp_ok(time - $began, '<', 5, '... without waiting for that');
    ok(scalar($n->alive), '... before the disk answers');

    $disk->well;
    ok((until_true { $n->gone }), '... and is gone then');
    $n->up;
    is(order('first'), '200 REPLAYED', '... and the next one starts');
    $n->stop;
}


# --- a start --------------------------------------------------------------------

# it waits for no disk for good, and the store comes when that answers

for my $mode (qw(batched strict)) {
    start_nginx($mode);
    is(order('first'), '200 NEW', "$mode: a disk that is well");
    $n->down('QUIT');
    $disk->set(all => 'hang');
    $n->up;

    like($n->log, qr/\[alert\].* the state file .*nothing was heard of it for 5 s.*; zone "z" is without it until it can be used/,
         '... hangs at a start, which goes on without it');
    is(order(), '503 UNAVAILABLE', '... what needs it is refused');
    is($n->post('/free')->{status}, 200, '... and what does not is served');

    $disk->well;

    each_uses_it('... it answers');

    is(order('first'), '200 REPLAYED', '... with what is there');
    is($n->reload, 1, '... a reload');
    ok((until_true { order() eq '200 NEW' }), '... goes on with it');
    kill KILL => $n->workers;
    ok((until_true { $n->workers == 2 && $n->get('/pid')->{status} == 200 && order() eq '200 NEW' }),
       '... so do workers that come');
    each_uses_it('... both');
    is(order('first'), '200 REPLAYED', '... with what was there');

    # another nginx sees that this one lives
    my $second = outliving(map({ $_ => $n->{$_} } qw(workers env main server)),
                           allow => qr/the state file/, zone => with_state($mode, path => $n->root . '/z.db'));
    my (undef, $uri, @o) = owner($n, 'held');

    is(told($second->post($uri, @o)), '409 IN_PROGRESS', '... whose claims live for another nginx');
    go('held');
    $second->stop;

    $n->restart('KILL');
    is(order('first'), '200 REPLAYED', '... and a start finds it all');
    $n->stop;
}


# --- a start without the file, and a reload with it ---------------------------------------

# the workers of before, which lack it, may stay for hours: no one waits for them

for my $mode (qw(batched strict)) {
    start_nginx($mode);
    is(order('first'), '200 NEW', "$mode: a disk that is well");
    $n->down('QUIT');
    $disk->set(open => 'gone', write => 'full');
    $n->up;

    like($n->log, qr/\[alert\].* zone "z" is without it until it can be used/, '... a start without it');
    is(order(), '503 UNAVAILABLE', '... what needs it is refused');

    my @old = $n->workers;
    my @stay = map { ask(connection_to($n, $_), 'POST', "/free?id=stays$_&gate=1", body => 'b') } @old;
    held("stays$_") for @old;

    $disk->well;
    is($n->reload, 1, '... a reload with it');
    ok((until_true { order() eq '200 NEW' }), '... it is used while the workers of before are there');
    is(order('first'), '200 REPLAYED', '... with what is there');

    go("stays$_") for @old;
    is(join(' ', map { $_->response->{status} } @stay), '200 200', '... and finish what they have');
    ok((until_true { my %alive = map { $_ => 1 } $n->alive; !grep $alive{$_}, @old }), '... and go');
    $n->stop;
}


# ... and what a worker of before has seen meanwhile does not count

{
    my $lock = sub {
        my ($owners, $type) = @_;

        # F_OFD_SETLK, SEEK_SET, one byte: that of starts
        fcntl $owners, 37, my $start = pack 's2 x4 q2 l x4', $type, 0, 2, 1, 0 or die "-owners: $!";
    };

    start_nginx('batched', workers => 1);
    is(order('first'), '200 NEW', 'a reload while a worker looks at the file');
    $n->down('QUIT');

    my $file = $n->root . '/z.db';

    link $file, "$file-other" or die $!;
    $n->up;
    is(order(), '503 UNAVAILABLE', '... a start without it');

    my ($old) = $n->workers;
    my $stays = ask(connection_to($n, $old), 'POST', '/free?id=stays&gate=1', body => 'b');

    held('stays');

    open my $owners, '+<', "$file-owners" or die $!;
    $lock->($owners, 1);
    unlink "$file-other";
    sleep 1.5;
    kill STOP => $old;
    until_true { !grep { slurp($_) !~ /\) T / } glob "/proc/$old/task/*/stat" };
    $lock->($owners, 2);

    $n->signal('HUP');
    ok((until_true { order() eq '200 NEW' }), '... a reload with it');
    link $file, "$file-other" or die $!;
    kill CONT => $old;
    sleep 1.5;
    is(order(), '200 NEW', '... and stays so');

    # ... nor does it say that the zone is without the file
    unlink "$file-other";
    sleep 1.5;
    unlike($n->log, qr/can't be locked/, '... and nothing else is said');
    go('stays');
    is($stays->response->{status}, 200, '... the old worker has finished');
    ok((until_true { !grep { $_ == $old } $n->alive }), '... and goes');
    $n->stop;
}


# --- -owners, and what a worker needs that comes -----------------------------------------

start_nginx('batched');
is(order('first'), '200 NEW', 'a worker that comes');

my $file = $n->root . '/z.db';

rename "$file-owners", "$file-away" or die $!;
kill KILL => $n->workers;
ok((until_true { $n->workers == 2 && $n->post('/free')->{status} == 200 }), '... without -owners serves what needs no store');
is(order(), '503 UNAVAILABLE', '... and what needs it not');
rename "$file-away", "$file-owners" or die $!;
ok((until_true { order() eq '200 NEW' }), '... until it is back');
$n->stop;


# --- nginx's helpers ------------------------------------------------------------------

# an orphan of theirs holds nothing: what the dead master's workers had is in doubt

start_nginx('batched', http => 'proxy_cache_path $TEST_NGINX_ROOT/cache keys_zone=c:1m;');

my $manager;

ok((until_true { ($manager) = grep { slurp("/proc/$_/cmdline") =~ /cache manager/ } $n->alive }), 'a cache manager');
is(join(' ', grep { (readlink // '') =~ m{/z\.db} } glob "/proc/$manager/fd/*"), '', '... has nothing of the store open');
$n->stop;

done_testing();
