#!/usr/bin/perl

# docs/operation.md, "When the file fails": idempotency_unavailable decides about
# what is fresh, what the zone has is replayed, the log says it once, and what can
# heal does.

use IO::Handle;

use lib 't/lib';
use Idempotency;
use Restart;
use Stress;

if (my $why = no_state()) {
    plan(skip_all => "no file: $why");
}

my ($n, $dir, @mounted);

END { system('umount', '-l', $_) for @mounted }

sub start_nginx {
    my ($mode, %o) = @_;

    $n->stop if $n;

    $n = outliving(workers => 2, zone => 0, allow => qr/exited on signal|state file/,
                   http => with_state($mode, %o) . crowd(<<'EOC'));
    idempotency zone=z;
    idempotency_max_response 100k;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /local { idempotency_unavailable local; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /pass { idempotency_unavailable pass; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /api/ { idempotency_api; }
EOC
}


my $names = 0;

sub name { return 'n' . ++$names . '-' . shift }

sub order {
    my ($id, $at) = @_;

    return $n->post(($at // '/x') . "?id=$id", key => $id, body => 'b');
}


# Those that are taken until one is not: but in mode strict, some are before the
# disk has said no.

sub until_refused {
    my @taken;

    my $r = until_true {
        my $id = name('until');
        my $r = order($id);

        push @taken, $id if told($r) eq '200 NEW';

        return told($r) eq '503 UNAVAILABLE' && executions($id) == 0 && $r;
    };

    return ($r, @taken);
}


sub until_taken {
    return until_true { told(order(name('taken'))) eq '200 NEW' };
}


# What a restart finds, see restart.t.

sub settled {
    return !grep {
        my $id = name('settled');

        order($id);
        !until_true { grep { index(slurp($_), "id=$id") >= 0 } glob "$dir/z.db*" };
    } 1, 2;
}


# Each worker may say it, once.

sub said {
    my ($re, $from) = @_;

    my $n = () = substr($n->log, $from) =~ /$re/mg;

    return $n >= 1 && $n <= 2;
}

my $down = qr/state file "[^"]+\/z\.db".* unavailable/;
my $up = qr/state file "[^"]+\/z\.db".* available again/;


# Of what the zone knows nothing is lost, whatever the file does.

sub all_replayed {
    my ($name, @ids) = @_;

    is(join(' ', map { told(order(@$_)) } @ids), join(' ', ('200 REPLAYED') x @ids),
       "$name: what the zone has is replayed");
    is(scalar(grep { executions($_->[0]) != 1 } @ids), 0, '... and not executed');
    is(told($n->post("/x?id=$ids[0][0]", key => $ids[0][0], body => 'c')), '409 CONFLICT',
       '... and bound') if @ids;
}


# What each value of the directive makes of a fresh one; those that are in the
# zone alone: what is full is not out of reach.

sub decided {
    my ($name, $from, $full) = @_;

    my ($r, @taken) = until_refused();

    is(told($r) . ' ' . problem($r), '503 UNAVAILABLE unavailable', "$name: reject refuses");
    like($r->header('Retry-After'), qr/^(?:[5-9]|1[0-5])$/, '... and says when to come back');

    my @local = map name('local'), 1 .. 3;
    is(join(' ', map { told(order($_, '/local')) } @local),
       join(' ', ($full ? '503 UNAVAILABLE' : '200 NEW') x 3), '... local ' . ($full ? 'refuses' : 'takes') . ' it');
    @local = () if $full;

    my $pass = name('pass');
    is(join(' ', map { told(order($pass, '/pass')) } 1, 2), '200 UNAVAILABLE 200 UNAVAILABLE',
       '... pass passes it, each time');
    is(executions($pass), 2, '... to the upstream');

    order(name('more')) for 1 .. 50;
    ok(said($down, $from), '... the log says so, once');

    my @zone = ((map [$_], @taken), map [$_, '/local'], @local);
    all_replayed($name, @zone);

    return @zone;
}


# --- a full disk ---------------------------------------------------------------

sub disk {
    my ($size) = @_;

    $dir = File::Temp->newdir('outage-XXXXXX', TMPDIR => 1);
    chmod 0755, $dir;
    system("mount -t tmpfs -o size=$size none '$dir' 2>/dev/null") == 0 or return 0;
    push @mounted, "$dir";

    return 1;
}


sub fill {
    open my $f, '>', "$dir/ballast" or die "$dir: $!";
    1 while syswrite $f, 'x' x 1024;
}


for my $mode (qw(strict batched)) {
    SKIP: {
        skip('tmpfs cannot be mounted here', 1) if $> != 0 || !disk('4m');

        start_nginx($mode, path => "$dir/z.db");

        my @before = map [name('before')], 1 .. 5;
        is(join(' ', map { told(order(@$_)) } @before), join(' ', ('200 NEW') x 5),
           "$mode: there is room");
        settled();

        my $from = length $n->log;
        fill();

        my @zone = decided("$mode, a full disk", $from, 1);
        like($n->get('/api/metrics')->{body}, qr/^nginx_idempotency_store_errors_total\S*error="full"\S* [1-9]/m,
             '... counted as such');
        all_replayed("$mode, a full disk", @before);

        ok(unlink("$dir/ballast"), "$mode: room again");
        ok(until_taken(), '... it heals by itself');
        ok(said($up, $from), '... and the log says so');
        all_replayed('... and then', @before, @zone);
        settled();
        $n->restart('KILL');
        all_replayed('... and after a restart', @before, @zone);
        $n->stop;

        # full at its start

        fill();
        my $said = $n->refused;
        is($said =~ /\[emerg\].*\Q$dir\E/ ? 1 : told(order(name('start'))) eq '503 UNAVAILABLE',
           1, "$mode: a disk that is full at the start is told, or refused");
        $n->stop;
        undef $n;
        system('umount', '-l', pop @mounted);
    }
}


# --- what somebody does to the file -------------------------------------------------

my %done_to_it = (
    'removed'   => sub { unlink "$dir/z.db" or die $! },
    'replaced'  => sub { system('cp', "$dir/z.db", "$dir/new") == 0
                         && rename "$dir/new", "$dir/z.db" or die $! },
    'its log removed' => sub { unlink "$dir/z.db-wal" or die $! },
);

for my $mode (qw(strict batched)) {
    for my $what (sort keys %done_to_it) {
        my $name = "$mode, $what";

        $dir = File::Temp->newdir('outage-XXXXXX', TMPDIR => 1);
        chmod 0755, $dir;
        start_nginx($mode, path => "$dir/z.db");

        my @before = map [name('before')], 1 .. 5;
        order(@$_) for @before;
        settled();

        # a worker that has not opened the file yet could use it again without its log

        my @pids = $n->workers;

        for my $c (map { connection_to($n, $_) } @pids) {
            my $id = name('open');
            ask($c, 'POST', "/x?id=$id", key => $id, body => 'b')->response;
        }

        until_true {
            !grep { my $fds = "/proc/$_/fd"; !grep { (readlink // '') =~ /z\.db-wal$/ } glob "$fds/*" } @pids
        } or die "$name: a worker has not opened it";

        my $from = length $n->log;
        $done_to_it{$what}->();

        # one that has what was there is used: by whoever meets it next

        if ($what eq 'replaced') {
            ok(until_taken(), "$name: a copy is used");

        } else {
            decided($name, $from);
        }

        all_replayed($name, @before);

        # never an empty store without a word

        my $at = length $n->log;
        $n->down('KILL');
        $n->up;

        if (substr($n->log, $at) =~ /\[alert\].* the state file "\Q$dir\E\/z\.db" /) {
            is(told(order(name('start'))), '503 UNAVAILABLE', "$name: a start refuses it");

        } else {
            isnt($what, 'removed', "$name: a start finds what was there");
            all_replayed("$name: a start", @before);
        }

        $n->{allow} = qr/exited on signal|state file|\[emerg\].*z\.db/;
        $n->stop;
        undef $n;
    }
}


# The log removed while one worker alone has it open: no other begins a new log
# before what the old one has is in the file. If nobody noticed, a start refuses.

for my $mode (qw(strict batched)) {
    for my $asked (1, 0) {
        my $name = "$mode, its log removed, " . ($asked ? 'another asks' : 'nobody asks');

        my $by = sub {
            my ($c, $id) = @_;
            return ask($c, 'POST', "/x?id=$id", key => $id, body => 'b')->response;
        };
        my (@before, $other);

        # each opens it when it has something to do there, and one of them reads it
        until_true {
            $dir = File::Temp->newdir('outage-XXXXXX', TMPDIR => 1);
            chmod 0755, $dir;
            start_nginx($mode, path => "$dir/z.db");

            my @pids = $n->workers;
            (my $one, $other) = map { connection_to($n, $_) } @pids;

            @before = map [name('before')], 1 .. 5;
            $by->($one, $_->[0]) for @before;
            until_true { index(slurp("$dir/z.db-wal"), "id=$before[-1][0]") >= 0 };

            !grep { (readlink // '') =~ /z\.db-wal$/ } glob "/proc/$pids[1]/fd/*";
        } or die 'both workers have it';

        unlink "$dir/z.db-wal" or die $!;

        if ($asked) {
            ok(until_true { told($by->($other, name('until'))) eq '200 NEW' }, "$name: it is used again");
            all_replayed($name, map [$_->[0]], @before);
        }

        my $at = length $n->log;
        $n->down('KILL');
        $n->up;

        # if a quiet moment came before the kill, it was noticed

        if (!$asked && substr($n->log, $at) =~ /\[alert\].*"\Q$dir\E\/z\.db" (?:is without .*z\.db-wal, which had|is older)/) {
            is(told(order(name('start'))), '503 UNAVAILABLE', "$name: a start refuses it");

        } else {
            all_replayed("$name: a start", @before);
        }

        $n->{allow} = qr/exited on signal|state file|\[emerg\].*z\.db/;
        $n->stop;
        undef $n;
    }
}


# Whom nobody asks: it is noticed all the same, and said once.

for my $mode (qw(strict batched)) {
for (['its log removed', sub { unlink "$dir/z.db-wal" }, sub { $n->restart('KILL') }],
     ['its directory moved', sub { rename $dir, "$dir-away" }, sub { rename "$dir-away", $dir }])
{
    my ($what, $ill, $well) = @$_;
    my $name = "$mode, $what while nobody asks";

    $dir = File::Temp->newdir('outage-XXXXXX', TMPDIR => 1);
    chmod 0755, $dir;
    start_nginx($mode, path => "$dir/z.db");

    # all workers have it open
    for my $pid ($n->workers) {
        my $c = connection_to($n, $pid);
        my $id = name('both');

        ask($c, 'POST', "/x?id=$id", key => $id, body => 'b')->response;
    }

    settled();

    my $from = length $n->log;

    $ill->() or die $!;
    ok(until_true { substr($n->log, $from) =~ $down }, "$name: it is said");
    is(told(order(name('noticed'))), '503 UNAVAILABLE', '... and refused');
    $well->() or die $!;
    ok(until_taken(), '... until it is mended');
    is(() = substr($n->log, $from) =~ /$down/g, 1, '... it was said once');
    $n->stop;
    undef $n;
}
}


# Moved away, and back: the same file.

$dir = File::Temp->newdir('outage-XXXXXX', TMPDIR => 1);
chmod 0755, $dir;
start_nginx('batched', path => "$dir/z.db");

{
    my @before = map [name('before')], 1 .. 5;
    order(@$_) for @before;
    settled();

    my $from = length $n->log;

    rename "$dir/z.db", "$dir/away" or die $!;

    my @zone = decided('moved away', $from);

    rename "$dir/away", "$dir/z.db" or die $!;
    ok(until_taken(), 'moved back: it heals');
    ok(said($up, $from), '... and the log says so');
    settled();
    $n->restart('KILL');
    all_replayed('... and after a restart', @before, @zone);
}


# --- no more than so much -----------------------------------------------------------

# What is larger loses responses, not tokens; then it refuses. That what has ended
# makes room is told by t/unit/db_damage_test.c, which has a clock of its own.

for my $mode (qw(strict batched)) {
    $dir = File::Temp->newdir('outage-XXXXXX', TMPDIR => 1);
    chmod 0755, $dir;
    start_nginx($mode, path => "$dir/z.db", more => 'max_size=1m');

    my ($c, @taken);
    my $one = sub {
        my ($id) = @_;

        $c = $n->connect if !$c || $c->{eof};
        return ask($c, 'POST', "/x?id=$id&size=20000", key => $id, body => 'b')->response;
    };

    my $r = until_true {
        my $id = name('size');
        my $r = $one->($id);

        push @taken, $id if told($r) eq '200 NEW';
        told($r) eq '503 UNAVAILABLE';
    };

    ok($r, "$mode: max_size is reached");
    cmp_ok(scalar @taken, '>', 20, '... after some');
    cmp_ok(-s "$dir/z.db", '<=', 1048576 * 1.1, '... and kept to');
    is(join(' ', grep { !/^(?:200 REPLAYED|409 NOT_KEPT)$/ } map told($one->($_)), @taken), '',
       '... all are bound');
    is(scalar(grep { executions($_) != 1 } @taken), 0, '... executed once');
    undef $c;

    # what only the file knows shows no room

    $n->restart('KILL');

    my $from = length $n->log;

    is(join(' ', map { told($one->($_)), told(order(name('full'))) } @taken[0 .. 4]),
       join(' ', ('200 REPLAYED', '503 UNAVAILABLE') x 5), '... a known one, a fresh one');
    ok(said($down, $from), '... of which the log says it once');
    unlike(substr($n->log, $from), $up, '... and that there is room not at all');

    my $metrics = $n->get('/api/metrics')->{body};

    like($metrics, qr/store_up\{zone="z"\} 0$/m, '... store_up says so');
    like($metrics, qr/store_errors_total\{zone="z",error="full"\} [1-9]/, '... and an error is counted');
    undef $c;
}


# --- a quota ------------------------------------------------------------------------

# The file is asked for each token that memory does not know. What is beyond the
# quota leaves nothing there that would drive out what is within.

$dir = File::Temp->newdir('outage-XXXXXX', TMPDIR => 1);
chmod 0755, $dir;
$n->stop;
$n = outliving(workers => 2, zone => 0, allow => qr/state file/,
               http => with_state('batched', path => "$dir/z.db", size => '128k') . crowd(<<'EOC'));
    idempotency zone=z;
    idempotency_max_response 1k;
    idempotency_quota 2 $http_x_user;
    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
EOC

{
    my $c = $n->connect;
    my $one = sub {
        my ($id, $user) = @_;
        return told(ask($c, 'POST', "/x?id=$id", key => $id, body => 'b', headers => ["X-User: $user"])->response);
    };

    my ($own, $other) = (name('own'), name('other'));

    is($one->($own, 'a') . ', ' . $one->($other, 'b'), '200 NEW, 200 NEW', 'a quota: one each');

    my %told;
    $told{$one->(name('many'), 'a')}++ for 1 .. 700;

    is_deeply(\%told, {'200 NEW' => 1, '429 LIMITED' => 699}, '... many beyond it: none of them is executed');
    is($one->($own, 'a') . ', ' . $one->($other, 'b') . ', ' . $one->(name('third'), 'b'),
       '200 REPLAYED, 200 REPLAYED, 200 NEW', '... and nobody else notices');
}


# --- one that stands still -------------------------------------------------------

# Who was stopped before a commit has the lock of those who commit (the first byte
# of the file beside) until it goes on, or dies, and is not waited for; who was
# stopped within one has SQLite's own.

for my $mode (qw(strict batched)) {
    $dir = File::Temp->newdir('outage-XXXXXX', TMPDIR => 1);
    chmod 0777, $dir;
    start_nginx($mode, path => "$dir/z.db");

    my $known = name('known');
    is(told(order($known)), '200 NEW', "$mode: before somebody stands still");
    is(told(order($known)), '200 REPLAYED', '... it is known');

    pipe(my $ready, my $tell) or die "pipe: $!";

    my $holder = child(sub {
        open my $f, '+<', "$dir/z.db-owners" or die "z.db-owners: $!";

        # F_OFD_SETLKW, F_WRLCK, SEEK_SET, one byte
        my $lock = pack 's s x4 q q i x4', 1, 0, 0, 1, 0;

        sysseek $f, 0, 0;
        fcntl $f, 38, $lock or die "fcntl: $!";
        syswrite $tell, '1';
        sleep 3600;
    });

    sysread $ready, my $byte, 1;

    is(told(order($known)), '200 REPLAYED', '... what memory knows is replayed meanwhile');

    ok(until_taken(), '... a fresh one is executed');
    kill KILL => $holder;

    my $within = open my $sqlite, '|-', 'sqlite3', '-batch', '-cmd', '.timeout 60000', "$dir/z.db" or die "sqlite3: $!";
    $sqlite->autoflush;
    print $sqlite "BEGIN IMMEDIATE;\n";

    my $id = name('within');

    ok(until_true { told(order($id . $within++)) eq '503 UNAVAILABLE' }, '... within one: a fresh one waits, and is refused');
    $id .= $within - 1;
    is(executions($id), 0, '... not executed');

    close $sqlite;
    ok(until_true { told(order($id)) =~ /^200/ }, '... it goes on when that one has gone');
    is(executions($id), 1, '... executed once');
}

$n->stop if $n;

done_testing();
