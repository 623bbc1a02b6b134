#!/usr/bin/perl

# A server's address may lead to another one by now: a Redis that others use with
# another key of idempotency_secret, or another version, is asked for nothing else
# than that, as it would execute again.  (One of the same key: redis_lost.t.)  Nor is
# one that lets claims be made, but not outcomes be written.

use lib 't/lib';
use File::Temp ();
use Idempotency;
use Redis;

plan(skip_all => 'no redis-server') if !Redis->programs;

my @keeps = (args => [qw(--appendonly yes --appendfsync always)]);

my $ours = Redis->new(@keeps);
my $port = $ours->port;

my $n = nginx(
    allow => qr/redis "r" of zone "[ab]" (?:is unavailable|has lost)|no connection to/,
    zone => "idempotency_redis r { server 127.0.0.1:$port; connections 2; timeout 5s; }\n"
            . "idempotency_zone zone=a:8m redis=r;\nidempotency_zone zone=b:8m redis=r;\n",
    server => <<'EOC');
    add_header X-Status $idempotency_status always;
    location /a { idempotency zone=a; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /b { idempotency zone=b; proxy_pass http://$TEST_NGINX_BACKEND; }
EOC

sub at { my ($zone, $id) = @_; return $n->post("/$zone?id=$id", key => $id, body => 'b', timeout => 60) }

is(at('a', 'one')->{status}, 200, 'a zone over a Redis');
is(at('b', 'two')->{status}, 200, '... and another one');

my ($stamp, $also) = map $ours->command('GET', "idem:$_:stamp"), 'a', 'b';

my $form = qr/^2 ([0-9a-f]{32,}) \d+ [0-9a-f]{16} \d+ \d+$/;

like($_, $form, 'it has a stamp, each of them') for $stamp, $also;
is((split / /, $also)[1], (split / /, $stamp)[1], '... of the digest key');

# as it will be

$_ = join ' ', map { /^\d{13}$/ ? $_ + 3600_000 : $_ } split / /, $_ for $stamp, $also;


# --- another server, while nothing is asked --------------------------------------

my $theirs = Redis->new(@keeps);

$theirs->command('SET', 'idem:a:stamp', $stamp =~ s/^2 \K[0-9a-f]+/'f' x length $&/er);
$theirs->command('SET', 'idem:b:stamp', $also);
$theirs->kill;
$theirs->{port} = $port;

$ours->kill;
$theirs->start;

# each connection there has said what it has to say
sub greeted {
    my ($r) = @_;

    return until_true {
        (() = $r->command('CLIENT', 'LIST') =~ /laddr=127\.0\.0\.1:$port .*cmd=(?:time|eval|evalsha)\b/g) >= 2 };
}

ok(greeted($theirs), 'its address leads to another one');

for (1 .. 4) {
    my $r = at('a', "other$_");

    is($r->{status}, 503, '... which has another stamp: refused');
    is(executions("other$_"), 0, '... and not executed');
}

like($n->log, qr/its "idem:a:stamp" tells of another digest key/, '... as the log says');
is(join(' ', grep /^idem:a:/, @{$theirs->command('KEYS', '*')}), 'idem:a:stamp', '... where nothing was left');

is(at('b', 'three')->{status}, 200, 'another zone is not its concern');


# --- it is ours by now -------------------------------------------------------------

$theirs->command('SET', 'idem:a:stamp', $stamp);
ok(until_true { at('a', 'four')->{status} == 200 }, 'the stamp is ours: it is used, over the connections that there are');
is(executions('four'), 1, '... once');
is(at('a', "five$_")->{status}, 200, '... each of them') for 1 .. 4;


$n->stop;


# --- a user who may not do all that is needed ---------------------------------------

my $limited = Redis->new;
my $password = File::Temp->new(TMPDIR => 1);

print $password "secret\n";
close $password;

my @all = qw(+hello +ping +role +info +time +evalsha +eval +get +getrange +set +pexpire
             +publish +subscribe +unsubscribe);

sub may { return $limited->command('ACL', 'SETUSER', 'nginx', 'on', '>secret', @_) }

may('~idem:*', '&idem:*', @all);

$n = nginx(
    allow => qr/redis "r" of zone "z" is unavailable|no connection to/,
    zone => "idempotency_redis r { server 127.0.0.1:@{[$limited->port]}; connections 1; timeout 5s;"
            . " user nginx; password_file $password; }\nidempotency_zone zone=z:8m redis=r;\n",
    server => 'location /z { idempotency zone=z; proxy_pass http://$TEST_NGINX_BACKEND; }');

# it is told within seconds; somebody executes then at last, and the outage is over
my $lines = sub { my ($what) = @_; return scalar(() = $n->log =~ /$what/g) };
sub served {
    my ($id) = @_;
    my $i = 0;

    return (until_true { at('z', $id . $i++)->{status} == 200 })
        && (until_true { $lines->('is unavailable') == $lines->('available again') });
}
sub anew {
    my ($id) = @_;

    $limited->command('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
    my $r = at('z', $id);
    is($r->{status}, 503, "$id: refused");
    is(executions($id), 0, '... and not executed');
}

ok(served('all'), 'a user with all rights');
like($limited->command('CLIENT', 'LIST'), qr/name=nginx-idempotency /, '... who is seen there');
unlike($n->log, qr/may not/, '... of whom nothing is said');

for my $right (qw(getrange set get pexpire time evalsha)) {
    my $was = () = $n->log =~ /is unavailable/g;
    may("-$right");
    anew($right);
    # what is on its way meets the missing right before a connection tries it, and some servers don't name it then
    like((split /is unavailable/, $n->log, $was + 2)[-1],
         $right =~ /time|evalsha/ ? qr/$right/i : qr/may not (?:\w+, )*\U$right\E|'$right' command|can't run this command/,
         '... as the log says');
    may("+$right");
    ok(served("again$right"), '... until it is granted');
}

may('resetkeys', '~other:*');
anew('keys');
may('~idem:*');
ok(served('againkeys'), '... until it is granted');

# ... while it is connected: what it has executed is not lost
may('-getrange');
ok(until_true { at('z', 'late' . rand)->{status} == 503 }, 'a right that is taken away is missed');
like($n->log, qr/may not GETRANGE "idem:z:stamp"|'getrange' command|can't run this command/, '... as the log says');
may('+getrange');
ok(served('againlate'), '... until it is granted');

# a channel is no need
may('resetchannels');
$limited->command('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
ok(served('mute'), 'who may not publish is served');
ok(until_true { $n->log =~ /\[warn\].* lets its user not publish, .*: PUBLISH/ }, '... and it is warned of');

$n->stop;

# who may not ask for acknowledgements

for (['wait', 'replicas 1'], ['waitaof', 'fsync on']) {
    my ($right, $what) = @$_;

    # Redis 7.0 has no WAITAOF
    my ($r) = grep { ($_->command('COMMAND', 'INFO', $right) // [])->[0] }
              map Redis->new(program => $_, args => [qw(--appendonly yes)]), Redis->programs;

    next if !$r;

    my $replica = Redis->new(program => $r->{program}, args => ['--replicaof', '127.0.0.1', $r->port]);

    until_true { ($r->info('slave0') // '') =~ /state=online/ };
    $r->command('ACL', 'SETUSER', 'nginx', 'on', '>secret', '~idem:*', '&idem:*', @all);

    $n = nginx(
        allow => qr/redis "r" of zone "z" is unavailable|no connection to/,
        zone => "idempotency_redis r { server 127.0.0.1:@{[$r->port]}; timeout 5s; $what;"
                . " user nginx; password_file $password; }\nidempotency_zone zone=z:8m redis=r;\n",
        server => 'location /z { idempotency zone=z; proxy_pass http://$TEST_NGINX_BACKEND; }');

    my (@ids, %told);
    my $ask = sub { push @ids, "$right" . @ids; my $status = at('z', $ids[-1])->{status}; $told{$status}++; $status };

    ok((until_true { $ask->(); $n->log =~ /is unavailable: .*'$right' command/ }), "no $right: the log says so");
    is(join(' ', keys %told), '503', '... all are refused');
    is(scalar(grep executions($_), @ids), 0, '... and not executed');
    $r->command('ACL', 'SETUSER', 'nginx', "+$right");
    ok((until_true { $ask->() == 200 }), '... until it is granted');
    $n->stop;
}

# a server without WAITAOF, or without an append-only file, can't do it

for my $program (Redis->programs) {
    my $r = Redis->new(program => $program);

    $n = nginx(
        workers => 2, allow => qr/redis "r" of zone "z" is unavailable/,
        zone => "idempotency_redis r { server 127.0.0.1:@{[$r->port]}; timeout 5s; fsync on; }\nidempotency_zone zone=z:8m redis=r;\n",
        server => 'location /z { idempotency zone=z; proxy_pass http://$TEST_NGINX_BACKEND; } location /api/ { idempotency_api; }');

    is(at('z', 'unsynced')->{status}, 503, "$program, fsync on: refused");
    sleep 5;
    like($n->get('/api/metrics')->{body}, qr/store_up\S* 0$/m, '... store_up');
    unlike($n->log, qr/is available again/, '... until it can');
    $n->stop;
}

done_testing();
