#!/usr/bin/perl

# docs/operation.md, "Another file, or an older one": a file that was exchanged or
# set back, while nginx runs or before it starts, is refused until somebody agrees
# to it; a death is no reason. What a backup is.

use lib 't/lib';
use File::Copy qw(copy move);
use File::Temp ();

use Idempotency;
use Restart;
use Rows;
use Stress;

if (my $why = no_state()) {
    plan(skip_all => "no file: $why");
}

my $server = <<'EOC';
    idempotency zone=z;
    add_header X-Status $idempotency_status always;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /local { idempotency_unavailable local; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /pass { idempotency_unavailable pass; proxy_pass http://$TEST_NGINX_BACKEND; }
    location = /pid { idempotency off; return 200 $pid; }
    location /api/ { idempotency_api write=on; }
EOC

my $tmp = File::Temp->newdir('witness-XXXXXX', TMPDIR => 1);
my $nobody = $> == 0 && getpwnam 'nobody';
my $group = $nobody && getgrgid((getpwnam 'nobody')[3]);

chmod 0755, $tmp;

my ($dir, $n, %as);
our $file;
my ($dirs, $keys) = (0, 0);


# A store of its own for each case, with five tokens, of an nginx that runs.

sub begin {
    my ($sync, %o) = @_;

    $dir = "$tmp/" . ++$dirs;
    mkdir $dir, 0700 or die "$dir: $!";
    chown $nobody, -1, $dir if $nobody;

    $file = "$dir/z.db";
    %as = (zone => 0, server => $server, $nobody ? (user => "nobody $group") : (), %o,
           http => "idempotency_zone zone=z:16m state=$file sync=$sync;\n");

    $n = outliving(%as, allow => qr/the state file|the witness/);
    orders(1 .. 5);
}


sub order {
    my ($id, $at) = @_;

    $at //= '/';
    return told($n->post("$at?id=$dirs-$id", key => "$dirs-$id", body => 'b'));
}

# A machine that is busy may keep the file's disk from answering in time.

sub orders {
    return map {
        my ($id, $told) = $_;
        until_true { ($told = order($id)) ne '503 UNAVAILABLE' };
        $told;
    } @_;
}

sub all_of { my ($what, @got) = @_; return !grep { $_ ne $what } @got }


sub api {
    my ($method, $path, $body) = @_;

    return $n->request($method, "/api$path", body => $body);
}

sub up {
    my ($up) = $n->get('/api/metrics')->{body} =~ /^nginx_idempotency_store_up\S* ([01])/m;
    return $up;
}


sub keep { copy($file, "$dir/kept") or die "$file: $!" }

# What is kept knows 1 .. 5; 6 .. 10 come behind it.

sub begin_and_keep {
    begin(@_);
    $n->down('QUIT');
    keep();
    $n->up;
    orders(6 .. 10);
}

sub put_back {
    my ($from) = @_;

    move($from, $file) or die "$from: $!";
    unlink "$file-wal", "$file-shm";
    chmod 0600, $file;
    chown $nobody, -1, $file if $nobody;
}


sub refused {
    my ($name, $why) = @_;

    like($n->log, qr/\[alert\] .*state file "\Q$file\E" .*$why.*PUT \{"store":"accept"\} to \/zones\/z /,
         "$name: an [alert] says why, and what to do");
    is(order('new'), '503 UNAVAILABLE', '... nothing is executed');
    is(order('local', '/local'), '503 UNAVAILABLE', '... nor by memory alone');
    is(order('pass', '/pass'), '200 UNAVAILABLE', '... but what passes');
    is(up(), 0, '... store_up');
}


sub each_uses_it {
    for my $pid ($n->workers) {
        my $c = connection_to($n, $pid);

        ok((until_true {
            told(ask($c, 'POST', '/', key => 'each' . ++$keys, body => 'b')->response) eq '200 NEW'
        }), '... each worker uses it');
    }
}


sub agrees {
    my ($name) = @_;

    is(api('PUT', '/zones/z', '{"store":"refuse"}')->{status}, 400, "$name: another word is none");
    is(api('PUT', '/zones/z', "{ \"store\": \"accept\" }\n")->{status}, 204, '... somebody agrees');
    ok((until_true { order('again' . ++$keys) eq '200 NEW' }), '... and it is used');
    is(up(), 1, '... store_up');
    is(api('PUT', '/zones/z', '{"store":"accept"}')->{status}, 409, '... there is nothing to agree to');
}


# --- set back between two starts ----------------------------------------------

for my $sync (qw(batched strict)) {
    begin_and_keep($sync);
    $n->down('QUIT');
    put_back("$dir/kept");

    my ($ok, $said) = config_test(%as);
    ok(!$ok, "$sync, a backup: nginx -t fails") or diag($said);
    like($said, qr/\[emerg\].*"\Q$file\E" is older than it was: \d+ of the last commits are missing; to agree/,
         '... and says why');

    $n->up;
    refused("$sync, a backup", 'is older than it was: \d+ of the last commits are missing');

    agrees($sync);
    ok(all_of('200 REPLAYED', orders(1 .. 5)), '... what it knows is replayed');
    ok(all_of('200 NEW', orders(6 .. 10)), '... and what it does not is executed');

    $n->restart('QUIT');
    ok(all_of('200 REPLAYED', orders(1 .. 10)), '... the next start knows both');
    $n->stop;
}


# ... and its disk comes when nginx runs: who agrees does so for all workers

{
    begin_and_keep('batched', workers => 2);
    $n->down('QUIT');
    put_back("$dir/kept");
    rename $dir, "$dir-away" or die "$dir: $!";
    $n->up;
    rename "$dir-away", $dir or die "$dir: $!";

    ok((until_true { $n->log =~ /is refused, it is older than it was/ }), 'a backup that comes late');
    refused('... late', 'is refused, it is older than it was');

    # workers that come refuse it as well
    my @old = $n->workers;

    $n->{allow} = qr/$n->{allow}|exited on signal 9/;

    kill KILL => @old;
    until_true { my %old = map { $_ => 1 } @old; my @new = $n->workers; @new == 2 && !grep $old{$_}, @new };
    like(order('others'), qr/^503 /, '... nor by workers that come');
    ok((until_true { api('PUT', '/zones/z', '{"store":"accept"}')->{status} == 204 }), '... somebody agrees');

    each_uses_it();

    ok(all_of('200 REPLAYED', orders(1 .. 5)), '... what it knows is replayed');
    $n->stop;
}


# ... or it is emptied while nginx runs, in its place, or by one that is put there

for my $sync (qw(batched strict)) {
    for my $how ('emptied', 'replaced by an empty one') {
        begin($sync, workers => 2);
        orders(1 .. 5);

        my $old = "$dir/old";

        rename $file, $old or die "$file: $!" if $how ne 'emptied';
        open my $f, '>', $file or die "$file: $!";
        chmod 0600, $file;
        chown $nobody, -1, $file if $nobody;

        ok((until_true { order('while' . ++$keys) eq '503 UNAVAILABLE' && $n->log =~ /is refused, it (?:was emptied|is empty)/ }),
           "$sync, $how while nginx runs");
        refused("... $how", 'is refused, it (?:was emptied|is empty)');
        ok(all_of('200 REPLAYED', orders(1 .. 5)), '... what memory has is replayed');
        agrees($how);

        each_uses_it();

        ok(all_of('200 REPLAYED', orders(1 .. 5)), '... what memory has is replayed');
        $n->restart('QUIT');
        is(order("again$keys"), '200 NEW', '... it began anew');
        $n->stop;
        unlink $old;
    }
}


# --- without its log ------------------------------------------------------------

# kill -9 leaves it there, and is no reason: what was synced is in it.

begin('strict');
$n->restart('KILL');
ok(all_of('200 REPLAYED', orders(1 .. 5)), 'kill -9 is no reason to refuse');
orders(6 .. 10);
$n->down('KILL');
unlink "$file-wal", "$file-shm";
$n->up;
refused('without its log', 'is older than it was');

# the right file is back

$n->down('QUIT');
unlink "$file-witness";
$n->up;
is(order('w'), '200 NEW', '... whoever removes the witness has agreed');

# its index tells of the log, in batched even of what the witness does not know yet

for my $agrees ('by PUT', 'by the witness') {
    begin('batched');
    $n->down('KILL');
    unlink "$file-wal";
    $n->up;
    refused("without its log, $agrees", 'is without \S+-wal, which had what was written last|is older than it was');

    if ($agrees eq 'by PUT') {
        agrees('without its log');

    } else {
        $n->down('QUIT');
        unlink "$file-witness";
        $n->up;
        is(order('w'), '200 NEW', '... whoever removes the witness has agreed');
    }

    $n->stop;
}


# --- another one, or none ---------------------------------------------------------

begin('batched');
$n->stop;

my $other = $file;

begin('batched');
$n->down('QUIT');
copy($other, "$dir/other");
put_back("$dir/other");
$n->up;
refused('another file', 'is another file than was used last');
agrees('another file');
$n->down('QUIT');
unlink $file, "$file-wal", "$file-shm";
$n->up;
refused('no file', 'is gone, and has left \S+-witness');
agrees('no file');
is(order(1), '200 NEW', '... which knows nothing');
$n->down('QUIT');
truncate $file, 0;
$n->up;
refused('emptied', 'is empty, and has left \S+-witness');
agrees('emptied');
is(order(1), '200 NEW', '... which knows nothing');
$n->down('QUIT');
truncate $file, 0;
unlink "$file-witness";
$n->up;
is(order(1), '200 NEW', '... whoever removes the witness has agreed');
$n->restart('KILL');
like(order(1), qr/^(?:200 REPLAYED|409 IN_DOUBT)$/, '... but what was claimed since');
$n->stop;


# --- while nginx runs ---------------------------------------------------------------

for my $sync (qw(batched strict)) {
    begin_and_keep($sync, workers => 2);

    # what memory has is answered, whatever is at the file's place

    unlink "$file-wal", "$file-shm";
    put_back("$dir/kept");

    ok((until_true { order('x' . ++$keys) eq '503 UNAVAILABLE' && $n->log =~ /is refused, it/ }),
       "$sync, exchanged while nginx runs: refused");
    refused("$sync, exchanged", 'is refused, it is older than it was');
    ok(all_of('200 REPLAYED', orders(6 .. 10)), '... memory answers');
    agrees("$sync, exchanged");
    is(join(" ", orders(1 .. 10)), join(" ", ("200 REPLAYED") x 10), "... both are known");
    $n->stop;
}


# a backup that is copied over the file itself, beside the log that is there

for my $sync (qw(batched strict)) {
    begin_and_keep($sync);
    $n->restart('QUIT');
    ok((until_true { order('before' . ++$keys) eq '200 NEW' && order('before' . ++$keys) eq '200 NEW' }),
       "$sync: while nginx runs");

    # at once: a file that is empty for a moment is lost until a start
    open my $f, '+<:raw', $file or die "$file: $!";
    syswrite $f, slurp("$dir/kept");
    close $f;

    ok((until_true { order('y' . ++$keys) eq '503 UNAVAILABLE' }), '... a backup is copied over it');
    refused("$sync, overwritten", 'is refused, it was overwritten by an older one: \d+ commits');
    $n->stop;
}


# two nginx have it: each has to be told, and both use it then

{
    begin('batched');
    $n->down('QUIT');
    keep();
    $n->up;

    my @both = ($n, outliving(%as, allow => qr/the state file|the witness/));

    orders(6 .. 10);
    unlink "$file-wal", "$file-shm";
    put_back("$dir/kept");

    for (@both) {
        $n = $_;
        until_true { order('both' . ++$keys) eq '503 UNAVAILABLE' && $n->log =~ /is refused, it/ };
    }

    for (@both) {
        $n = $_;
        agrees('one of two nginx');
    }

    my $id = 'both' . ++$keys;

    for (@both) {
        $n = $_;
        ok((until_true { order('both' . ++$keys) eq '200 NEW' }), 'when both have agreed: it uses it');
        is(order($id), $n == $both[0] ? '200 NEW' : '200 REPLAYED', '... together');
    }

    $_->stop for @both;
}


# one that came late, so that each worker has it by itself: all have the one that is
# agreed to, and the death of one is not that of the others

for my $what ('another file', 'a backup') {
    begin('batched');
    $n->stop;

    my $there = $file;

    begin('batched', workers => 2, server => $server =~ s/location \/ \{/$& idempotency_in_progress reject; idempotency_in_doubt retry;/r);
    $n->down('QUIT');
    keep();
    copy($there, "$dir/kept") if $what eq 'another file';
    rename $dir, "$dir-away" or die "$dir: $!";
    $n->up;
    rename "$dir-away", $dir or die "$dir: $!";
    orders(6 .. 10);

    each_uses_it();

    unlink "$file-wal", "$file-shm";
    put_back("$dir/kept");
    ok((until_true { order('late' . ++$keys) eq '503 UNAVAILABLE' && $n->log =~ /is refused, it/ }),
       "$what, in the place of a file that came late: refused");
    agrees($what);

    my ($first) = $n->log =~ /\[warn\] (\d+)#.* is used as it is/;
    my ($second) = grep { $_ != $first } $n->workers;
    my $c = connection_to($n, $second);

    until_true { told(ask($c, 'POST', '/', key => 'second' . ++$keys, body => 'b')->response) eq '200 NEW' };
    ask($c, 'POST', "/?id=$dirs-slow&gate=1", key => "$dirs-slow", body => 'b');
    held("$dirs-slow");

    # its master would make another worker, which would have it

    $n->{allow} = qr/$n->{allow}|exited on signal 9/;
    kill STOP => $n->pid;
    kill KILL => $first;
    until_true { !Restart::Nginx::running(slurp("/proc/$first/stat")) };

    my $m = outliving(%as, allow => qr/the state file/);
    my $told;

    until_true { ($told = told($m->post("/?id=$dirs-slow&gate=1", key => "$dirs-slow", body => 'b'))) !~ /^503/ };
    is($told, '409 IN_PROGRESS', '... what another worker executes is in doubt for nobody when that one has died');
    is(executions("$dirs-slow"), 1, '... once');

    go("$dirs-slow");
    is(told($c->response), '200 NEW', '... with its outcome');
    $m->stop;
    kill CONT => $n->pid;
    $n->stop;
}


# after somebody has agreed each worker says by which way it uses the file that is there
# now: the death of the one that began with it lets nobody in by another way

SKIP: {
    begin_and_keep('batched', workers => 2);
    unlink "$file-wal", "$file-shm";
    put_back("$dir/kept");
    until_true { order('way' . ++$keys) eq '503 UNAVAILABLE' && $n->log =~ /is refused, it/ };
    agrees('the ways to a file that was agreed to');

    each_uses_it();

    mkdir "$dir/alone", 0700;
    spew("$dir/alone/z.db");
    chown $nobody, -1, "$dir/alone", "$dir/alone/z.db" if $nobody;

    skip 'nothing can be mounted', 1
        if $> || system("mount --bind $file $dir/alone/z.db 2>/dev/null") != 0;

    # its master would make another worker, which would have it

    my ($first) = $n->log =~ /\[warn\] (\d+)#.* is used as it is/;

    $n->{allow} = qr/$n->{allow}|exited on signal 9/;
    kill STOP => $n->pid;
    kill KILL => $first;
    until_true { !Restart::Nginx::running(slurp("/proc/$first/stat")) };

    my $m = outliving(%as, workers => 1, allow => qr/the state file/,
                      http => $as{http} =~ s{\Q$file\E}{$dir/alone/z.db}r);

    like($m->log, qr/\[alert\] .* is used by an nginx that has another way to it/, '... nobody gets in by another one');
    $m->stop;
    system("umount $dir/alone/z.db");
    kill CONT => $n->pid;
    $n->stop;
}


# a file of another program is left as it is, to the byte

begin('batched');
sqlite("$dir/others", 'CREATE TABLE t (a); INSERT INTO t VALUES (1)');

my $others = slurp("$dir/others");

put_back("$dir/others");

ok((until_true { order('z' . ++$keys) eq '503 UNAVAILABLE' && $n->log =~ /is refused/ }),
   "another program's file, while nginx runs");
refused('... instead of ours', 'is refused, it is empty, or not a file of this module');
is(order(1), '200 REPLAYED', '... memory answers');
is(api('PUT', '/zones/z', '{"store":"accept"}')->{status}, 204, '... somebody agrees');
ok((until_true { $n->log =~ /can't be agreed to: it has not the tables of this module/ }), '... in vain');
is(order('local', '/local'), '503 UNAVAILABLE', '... and it is refused still');
ok($others eq slurp($file), '... and nothing is written to it');
unlink $file;
agrees('removed');
$n->stop;


# --- the witness --------------------------------------------------------------------

begin('batched');
$n->down('QUIT');
unlink "$file-witness";
mkdir "$file-witness";

my $from = length $n->log;

$n->up;
is(order('w'), '200 NEW', 'no witness is possible: it is used');
is(order('w'), '200 REPLAYED', '... and knows');
my $warns = sub {
    return scalar(() = substr($n->log, $from)
                       =~ /\[warn\].* the witness of the state file "\Q$file\E" can't be read or written/g);
};

until_true { $warns->() };
is($warns->(), 1, '... with one [warn]');
$n->stop;


# a store that never was has none: what stood in its place was taken away

begin('batched');
$n->down('QUIT');
unlink glob "$file*";
mkdir $file;
$n->up;
is(order('dir'), '503 UNAVAILABLE', 'a directory in its place: it is not used');
$n->down('QUIT');
ok(!-e "$file-witness", '... and leaves no witness');
rmdir $file;
$n->up;
is(order('dir'), '200 NEW', '... and the store is made when that has gone');
$n->stop;


# --- backups ------------------------------------------------------------------------

for my $way ("VACUUM INTO 'COPY'", '.backup COPY') {
    begin('batched');

    # an outcome is written behind its answer
    until_true { sqlite($file, 'SELECT count(*) FROM records') >= 5 };

    sqlite($file, $way =~ s{COPY}{$dir/kept}r);
    orders(6 .. 7);
    $n->down('QUIT');
    put_back("$dir/kept");
    unlink "$file-witness";
    $n->up;
    ok(all_of('200 REPLAYED', orders(1 .. 5)), "$way is a backup, taken while nginx runs");
    $n->stop;
}


# what a burst has left is given back by VACUUM, while nginx is stopped

begin('strict');
orders(6 .. 200);
$n->down('QUIT');
sqlite($file, 'DELETE FROM records WHERE id > 5');

my $large = -s $file;

sqlite($file, 'VACUUM');
cmp_ok(-s $file, '<', $large, 'VACUUM makes the file smaller');
$n->up;
ok(all_of('200 REPLAYED', orders(1 .. 5)), '... and it is the one that it was');
is(order(200), '200 NEW', '... which is written to');
$n->stop;


# --- another way to it ------------------------------------------------------------

# Also after a reload. Without a master that is done by the process that has the file open; nginx, with or without
# this module, does not serve by it after that.

for (['a master'], ['no master', main => "master_process off;\n", workers => 0]) { SKIP: {
    my ($name, @with) = @$_;

    begin('batched', @with);
    $n->strike('HUP');
    ok((until_true { 2 == (() = $n->log =~ /idempotency: version /g) }), "$name: a reload");
    ok((until_true { order('reloaded') eq '200 REPLAYED' }), '... it goes on') unless @with;

    mkdir "$dir/alone", 0700;
    mkdir "$dir/whole", 0700;
    spew("$dir/alone/z.db");
    chown $nobody, -1, "$dir/alone", "$dir/alone/z.db" if $nobody;

    skip 'nothing can be mounted', 12
        if $> || system("mount --bind $file $dir/alone/z.db 2>/dev/null") != 0;

    my %by = (%as, main => '', workers => 1);
    my $first = $n;

    $by{http} =~ s{\Q$file\E}{$dir/alone/z.db};

    my ($ok, $said) = config_test(%by);
    ok(!$ok && $said =~ /\[emerg\].* is used by an nginx that has another way to it/, 'a mount of the file alone: nginx -t fails')
        or diag($said);

    {
        local $file = "$dir/alone/z.db";

        $n = outliving(%by, allow => qr/the state file/);
        refused('a mount of the file alone', 'is used by an nginx that has another way to it');
        is(order(1), '503 UNAVAILABLE', '... nothing is executed twice');
        is(api('PUT', '/zones/z', '{"store":"accept"}')->{status}, 204, '... somebody agrees');
        ok((until_true { $n->log =~ /can't be agreed to: it is used by an nginx/ }), '... in vain, as it is in use');
        is(order(1), '503 UNAVAILABLE', '... and nothing is executed twice');
        $n->stop;
    }

    system("umount $dir/alone/z.db");

    # that of its directory is one

    mkdir "$tmp/mounted", 0700;
    system("mount --bind $dir $tmp/mounted") == 0 or die;

    $by{http} = $as{http};
    $by{http} =~ s{\Q$file\E}{$tmp/mounted/z.db};
    $n = outliving(%by, allow => qr/the state file/);
    is(order(1), '200 REPLAYED', 'a mount of its directory is none of that');
    $n->stop;

    system("umount $tmp/mounted");

    $n = $first;
    is(order(1), '200 REPLAYED', '... the first one has it') unless @with;
    @with ? $n->down('KILL') : $n->stop;
} }

done_testing();


sub spew {
    my ($name) = @_;

    open my $f, '>', $name or die "$name: $!";
    close $f;
}
