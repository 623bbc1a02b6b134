#!/usr/bin/perl

# What becomes of a call, whatever its server says, and however that arrives; and
# of the connections. The server is one that says what this test wants; what real
# ones do is in t/redis_servers.t.

use lib 't/lib';
use FakeRedis;
use Idempotency;
use Redis;
use RedisCaller;
use Time::HiRes qw(time sleep);

plan(skip_all => 'no tree of headers, as util/build makes it') unless Redis->caller;

my $n;


# An nginx with a block of this server.

sub fake {
    my ($fake, $block, %o) = @_;

    my $port = ref $fake ? $fake->port : $fake;

    return $n = with("server 127.0.0.1:$port; " . ($block // ''), %o);
}


# --- answers ------------------------------------------------------------------

my $fake = FakeRedis->new;
fake($fake, 'timeout 20s; connections 1;');

is(call('-', arg => ['a b', '']),
   qq{error=0 maybe=0 why="" reply=["EVALSHA" "63143b6f8007b98c53ca2149822777b3566f9241" "1" "-" "a b" ""]\n},
   'a script, its key and arguments');

for (
    [ 'FAULT', 1, 'ERR user_script:1: no such thing script: f00, on @user_script:1.' ],
    [ 'FULL', 0, q{OOM command not allowed when used memory > 'maxmemory'.} ],
    [ 'FULL', 0, 'MISCONF Redis is configured to save RDB snapshots' ],
    [ 'FULL', 0, 'NOREPLICAS Not enough good replicas to write.' ],
    [ 'DENIED', 0, 'NOAUTH Authentication required.' ],
    [ 'DENIED', 0, 'NOPERM this user has no permissions' ],
    [ 'DENIED', 1, 'NOPERM in the midst of it script: f00, on @user_script:1.' ],
    [ 'FAULT', 0, 'WRONGTYPE Operation against a key' ],
    [ 'FAULT', 0, 'CROSSSLOT Keys in request' ],
    [ 'AWAY', 0, 'MOVED 1 127.0.0.1:1' ],
    [ 'AWAY', 0, 'ASK 1 127.0.0.1:1' ],
    [ 'FAULT', 0, 'NOSCRIPT' ],
    [ 'FAULT', 1, 'SOMETHING new' ],
) {
    my ($error, $maybe, $text) = @$_;

    is_call(call("say:-$text%0D%0A"), $error, $maybe, qq{why="$text" reply=-$text}, $text);
    is_call(call("slow:-$text%0D%0A"), $error, $maybe, qq{why="$text"}, '... byte by byte');
}

for (
    [ '%2B%0D%0A', '""' ], [ ':-7%0D%0A', ':-7' ], [ '$-1%0D%0A', 'nil' ],
    [ '$4%0D%0Aa%00%0D%0A%0D%0A', qr/"a\0\r\n"/ ],
    [ '*3%0D%0A:1%0D%0A*1%0D%0A$1%0D%0Ax%0D%0A*-1%0D%0A', '[:1 ["x"] nil]' ],
) {
    my ($bytes, $reply) = @$_;

    like(call("say:$bytes"), qr/^error=\d+ .* reply=(?:\Q$reply\E|$reply)\n/s, "answer: $bytes");
    like(call("slow:$bytes"), qr/^error=\d+ .* reply=(?:\Q$reply\E|$reply)\n/s, '... byte by byte');
}

is($fake->connections, 1, 'one connection for all that');

# what is no answer

fake($fake, 'timeout 20s; connections 1;');

is_call(call('cut:'), 'CONNECT', 1, 'it closed the connection', 'it closes the connection');
is_call(call('cut:$5%0D%0Ahel'), 'CONNECT', 1, 'it closed the connection', '... in an answer');
is_call(call('say:HTTP/1.1 400 Bad Request%0D%0A'), 'PROTOCOL', 1, 'its answer is not RESP',
        'something else than RESP');
is_call(call('say:*1000000%0D%0A'), 'PROTOCOL', 1, '', 'an array that is too large');
is_call(call('say::1%0D%0A:2%0D%0A'), 'OK', 0, ':1', 'two answers');
is_call(call('say::3%0D%0A'), 'OK', 0, ':3', '... and it goes on behind that');

like($n->log, qr/\[error\] .*idempotency_redis "r": no connection to 127\.0\.0\.1:\d+: an answer without a question/,
     'what was wrong is told');

# later

is_call(call('say:-LOADING it%0D%0A|-BUSY a script%0D%0A|-MASTERDOWN x%0D%0A|-TRYAGAIN y%0D%0A|'
             . '-CLUSTERDOWN z%0D%0A|:1%0D%0A'), 'OK', 0, ':1', 'what says "later" is asked later');

my $before = $fake->connections;

is_call(call('say:-LOADING it%0D%0A', msec => 300), 'AWAY', 0, 'it says: LOADING it',
        '... until the call is given up');
is($fake->connections, $before, '... and the connection stays');

is_call(call('say:-READONLY no master%0D%0A|:1%0D%0A'), 'OK', 0, ':1',
        'a master that is none any more is asked again, by another connection');
is($fake->connections, $before + 1, '... one');

is_call(call('say:-NOSCRIPT no%0D%0A|:1%0D%0A'), 'OK', 0, ':1', 'a script that it lacks');
is_deeply([map { $_->[0] } (grep { ($_->[3] // '') =~ /NOSCRIPT no/ } $fake->commands)[-2, -1]],
          ['EVALSHA', 'EVAL'], '... is sent');
is((grep { ($_->[3] // '') =~ /NOSCRIPT no/ } $fake->commands)[-1][1], 'return', '... as it is');


# --- time ---------------------------------------------------------------------

fake($fake, 'timeout 20s; connections 1;');

my $resets = $fake->resets;
my $from = time;

is_call(call('none', msec => 200, n => 3), 'TIMEOUT', 1, qr/why="no answer in time"(?:.*no answer in time){2}/s,
        'no answer in time, of three');
ok(until_true { $fake->resets == $resets + 1 }, '... and the connection is reset');
is_call(call('say::1%0D%0A'), 'OK', 0, ':1', '... and there is another one');

# a call's deadline by the server's clock

my ($until) = call('-', until => 1, msec => 5000) =~ /"-" "(\d+)"/;

cmp_ok($until / 1e6, '>', $from + 4, 'its deadline, by the clock of the server');
cmp_ok($until / 1e6, '<=', time + 5, '... rather too early');


# a server that is always one answer behind is slow, but it answers, unless the machine
# stands still for a second

{
    my ($behind, $stays);

    for (1 .. 20) {
        my $last;

        $behind = FakeRedis->new(SUBSCRIBE => sub {
            my ($name) = @_;
            my $answer = defined $last ? "*3\r\n" . join('', map FakeRedis::bulk($_), 'subscribe', $last) . ":1\r\n" : undef;

            $last = $name;
            return $answer;
        });

        fake($behind, 'timeout 1s; connections 1;', allow => qr/idempotency_redis/);

        my ($i, $until, @watches) = (0, time + 2.5);

        while (time < $until) {
            push @watches, watching('c' . ++$i, msec => 30000);
            sleep 0.05;
        }

        last if $stays = $n->log !~ /no connection/;
        $behind->stop;
    }

    ok($stays, 'subscriptions, and never all of them answered: the connection stays');
    ok(until_true { $n->log =~ /no connection to .*: no answer in time/ }, '... until no answer comes any more');

    $n->stop;
    $behind->stop;
}


# --- acknowledgements -----------------------------------------------------------

$fake->stop;
$fake->start(WAIT => [":2\r\n", ":1\r\n", ":0\r\n", "-UNBLOCKED no master\r\n", '', ":2\r\n"]);
fake($fake, 'timeout 20s; connections 1; replicas 2;');

my %durable = (durable => 1, msec => 8000);

is_call(call('say::7%0D%0A', %durable, n => 3), 'OK', 0, qr/reply=:7\n.*:7\n.*:7\n/s,
        'replicas have it');
is(scalar(grep { $_->[0] eq 'WAIT' } $fake->commands), 1, '... asked once for three');

my ($wait) = grep { $_->[0] eq 'WAIT' } $fake->commands;
is($wait->[1], 2, '... how many');
ok($wait->[2] > 1000 && $wait->[2] < 8000, '... for less than the calls have') or diag("@$wait");

is_call(call('say::7%0D%0A', %durable), 'UNACKED', 1, qr/why="too few.*reply=:7/, 'one has it');
is_call(call('say::7%0D%0A', %durable), 'UNACKED', 1, ':7', 'none has it');
is_call(call('say::7%0D%0A', %durable), 'UNACKED', 1, 'why="UNBLOCKED no master"', 'it is no master any more');
is_call(call('say::7%0D%0A', %durable), 'CONNECT', 1, 'it closed', 'it goes between answer and acknowledgement');
is_call(call('say:-OOM no%0D%0A', %durable), 'FULL', 0, '-OOM no', 'an error is one without replicas');
is_call(call('say::7%0D%0A', msec => 8000), 'OK', 0, ':7', 'what is not to be durable is asked without');
is(scalar(grep { $_->[0] eq 'WAIT' } $fake->commands), 6, '... so many times');

$fake->stop;
$fake->start(WAITAOF => ["*2\r\n:1\r\n:0\r\n", "*2\r\n:0\r\n:0\r\n", "-ERR unknown command\r\n"]);
fake($fake, 'timeout 20s; connections 1; fsync on;');

is_call(call('say::7%0D%0A', %durable), 'OK', 0, ':7', 'it is on disk');
is_call(call('say::7%0D%0A', %durable), 'UNACKED', 1, 'not on disk', '... or not');
is_call(call('say::7%0D%0A', %durable), 'UNACKED', 1, 'ERR unknown command', '... or nobody knows');

$fake->stop;
$fake->start(WAIT => ":1\r\n", WAITAOF => ["*2\r\n:1\r\n:0\r\n", "*2\r\n:0\r\n:0\r\n"]);
fake($fake, 'timeout 20s; connections 1; fsync on; replicas 1;');

is_call(call('say::7%0D%0A', %durable), 'OK', 0, ':7', 'both');
is_call(call('say::7%0D%0A', %durable), 'UNACKED', 1, 'not on disk', '... or one of them');


# --- greetings ------------------------------------------------------------------

sub greeted {
    my ($name, $block, $answers, $error, $like) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    $fake->stop;
    $fake->start(%$answers);
    fake($fake, "timeout 20s; connections 1; $block", allow => qr/idempotency_redis/);

    my $call = call('say::1%0D%0A', msec => $error eq 'OK' ? 20000 : 500);

    is_call($call, $error, 0, $error eq 'OK' ? ':1' : '', $name);

    return unless $like;
    ok(until_true { $n->log =~ $like }, '... and the log says so') or diag($n->log);
}

greeted('no HELLO will do', '', { HELLO => "-ERR unknown command 'HELLO'\r\n" }, 'OK');
greeted('... nor the right to say it', '', { HELLO => "-NOPERM no\r\n" }, 'OK');
greeted('a replica is no master', '', { ROLE => "*2\r\n+slave\r\n+x\r\n" }, 'AWAY',
        qr/no connection to .*: it is no master, but "slave"/);
greeted('who does not say so may be one', '', { ROLE => "-NOPERM no\r\n" }, 'OK',
        qr/\[warn\] .*does not tell whether it is a master: NOPERM no/);
greeted('no password', '', { HELLO => "-NOAUTH HELLO must be\r\n", ROLE => "-NOAUTH no\r\n",
                             TIME => "-NOAUTH no\r\n" }, 'DENIED',
        qr/no connection to .*: it says: NOAUTH/);
greeted('no clock', '', { TIME => "-NOPERM no\r\n" }, 'DENIED', qr/it says: NOPERM no/);
greeted('too many of us', '', { CONNECT => "-ERR max number of clients reached\r\n" }, 'CONNECT',
        qr/it says: ERR max number of clients/);
greeted('no such database', 'database 99;', { SELECT => "-ERR DB index is out of range\r\n" },
        'CONNECT', qr/it says: ERR DB index is out of range/);
greeted('it forgets what it has no memory for', '',
        { INFO => FakeRedis::bulk("# Server\r\nrun_id:" . 'a' x 40 . "\r\nmaxmemory_policy:allkeys-lru\r\n") },
        'OK', qr/\[warn\] .*forgets when its memory is full \(maxmemory-policy allkeys-lru\)/);
greeted('it forgets when it restarts', '',
        { INFO => FakeRedis::bulk("# Server\r\nrun_id:" . 'a' x 40 . "\r\naof_enabled:0\r\n") },
        'OK', qr/\[warn\] .*\(appendonly no\)/);
greeted('it has forgotten', '',
        { INFO => FakeRedis::bulk("# Server\r\nrun_id:" . 'a' x 40 . "\r\nevicted_keys:17\r\n") },
        'OK', qr/\[error\] .*has evicted 17 keys/);
greeted('nobody can tell', '', { INFO => "-NOPERM no\r\n" }, 'OK',
        qr/\[warn\] .*does not tell whether it would forget: NOPERM no/);

$fake->stop;
$fake->start;
fake($fake, 'connections 1;');
call('say::1%0D%0A');
unlike($n->log, qr/\[(?:warn|error)\]/, 'nothing to say of one that keeps everything');

# who we are

my $secret = File::Temp->new(TMPDIR => 1);
print $secret "pa ss\"w\xc3\xb6rd\nanother line\n";
close $secret;

fake($fake, "timeout 20s; connections 1; user me; password_file $secret; database 3;");
is_call(call('say::1%0D%0A'), 'OK', 0, ':1', 'user, password, database');

my @greeting = map { [@$_] } $fake->commands;
@greeting = @greeting[-7 .. -1];
is_deeply([map "@$_", @greeting[0 .. 5]],
          [ "AUTH me pa ss\"w\xc3\xb6rd", 'HELLO 2 SETNAME nginx-idempotency', 'SELECT 3', 'ROLE', 'INFO', 'TIME' ],
          '... are told first');
unlike($n->log, qr/pa ss/, '... and no password is in the log');

$fake->stop;
$fake->start(AUTH => "-WRONGPASS invalid username-password pair or user is disabled.\r\n");
fake($fake, "timeout 20s; password_file $secret;");
is_call(call('say::1%0D%0A'), 'DENIED', 0, 'it says: WRONGPASS', 'a wrong password is answered at once');
unlike($n->log, qr/pa ss/, '... and is not in the log');


# --- it comes and goes ------------------------------------------------------------

fake(dead_port(), 'timeout 300ms; connections 1;');

is_call(call('x', msec => 20000), 'CONNECT', 0, 'connect() failed: Connection refused',
        'nobody listens');
ok(until_true { state() =~ /^up 0/ }, '... and it is down');

# answered, though its time would be long
within 15, sub {
    is_call(call('x', msec => 60000), 'CONNECT', 0, 'Connection refused', '... at once from then on');
};

$fake->stop;
fake($fake, 'timeout 300ms; connections 1;');
ok(until_true { state() =~ /^up 0/ }, 'it is down');
$fake->start;
ok(until_true { state() =~ /^up 1 time [1-9]/ }, '... and up when it is back');
is_call(call('say::1%0D%0A', msec => 20000), 'OK', 0, ':1', '... for calls');
is(scalar(() = $n->log =~ /no connection to/g), 1, '... told once');
is(scalar(() = $n->log =~ /is back/g), 1, '... as is that it is back');

# by its name, which leads elsewhere after a while

my $dns = free_port();
my ($here, $there) = (FakeRedis->new, undef);
$there = FakeRedis->at('127.0.0.2', $here->port);

FakeRedis::names($dns);
$n = with("server redis.test:@{[$here->port]}; timeout 300ms; connections 1;",
          in_http => "resolver 127.0.0.1:$dns valid=1s ipv6=off;");

is_call(call('x', msec => 20000), 'CONNECT', 0, 'could not resolve "redis.test"', 'a name that nobody knows');
FakeRedis::names($dns, 'redis.test' => '127.0.0.1');
ok(until_true { up() }, '... until somebody does');
is_call(call('say::1%0D%0A', msec => 20000), 'OK', 0, ':1', '... where it leads');
is($here->connections, 1, '... once');
FakeRedis::names($dns, 'redis.test' => '127.0.0.2');
$here->stop;
ok(until_true { call('say::2%0D%0A', msec => 2000) =~ /^error=0 .*:2/ }, '... and then elsewhere');
is($there->connections, 1, '... once');

$_->stop for $there;


# --- who is asked where the others are ------------------------------------------

# One that lets nobody in is tried with longer and longer pauses: what another is
# asked meanwhile is counted by that, whatever the time it takes.

sub strangers {
    my ($name, $mode, $answers, $line) = @_;

    my $closed = FakeRedis->new(CONNECT => "-ERR max number of clients reached\r\n");
    my $stranger = FakeRedis->new(%$answers);

    with({ c => "server 127.0.0.1:@{[$closed->port]}; timeout 300ms; connections 1;",
           r => "$mode server 127.0.0.1:@{[$stranger->port]}; timeout 300ms; connections 1;" },
         allow => qr/idempotency_redis/);

    ok(until_true { $closed->connections >= 8 }, "$name: it is asked");

    my ($asked, $tried) = map $_->connections, $stranger, $closed;

    cmp_ok($asked, '>', 1, '... again');
    cmp_ok($asked, '<=', 2 * $tried + 2, '... but not all the time');

    if ($line) {
        like(caller_nginx()->log, $line, '... as the log says');
        is(scalar(() = caller_nginx()->log =~ /"r": no connection to 127/g), 1, '... once');
    }

    return ($stranger, $closed);
}

my $m = FakeRedis->new;
my $where = sub { my ($m) = @_; return "*2\r\n" . FakeRedis::bulk('127.0.0.1') . FakeRedis::bulk($m->port) };

my ($who, $closed) = strangers('no cluster', 'mode cluster;',
    { CLUSTER => "-ERR This instance has cluster support disabled\r\n" },
    qr/\[error\] .*no connection to 127.*: it says: ERR This instance/);

$who->stop;
$who->start(CLUSTER => "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n\$9\r\n127.0.0.1\r\n:@{[$m->port]}\r\n");
ok(until_true { call('say::1%0D%0A', msec => 2000) =~ /^error=0 .*:1$/ }, '... until it is one');
is(scalar(() = caller_nginx()->log =~ /no connection to 127.*:@{[$who->port]}: it says/g), 1, '... told once');
is(scalar(() = caller_nginx()->log =~ /127.*:@{[$who->port]} is back/g), 1, '... as is that it is back');
$_->stop for $who, $closed;

# A master that died, and lost its slots, gets them back: it is not taken for dead.

{
    my ($one, $two) = map FakeRedis->new, 1, 2;
    my $map = sub { return "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n\$9\r\n127.0.0.1\r\n:@{[$_[0]->port]}\r\n" };
    my $seed = FakeRedis->new(CLUSTER => $map->($one));
    my $served = sub { return until_true { call('say::1%0D%0A', msec => 2000) =~ /^error=0 .*:1$/ } };

    fake($seed, 'mode cluster; timeout 300ms; connections 1;', allow => qr/idempotency_redis/);

    ok($served->(), 'a master of a cluster');
    $one->stop;
    ok(until_true { state() =~ /^up 0/ }, '... is gone');

    $seed->stop;
    $seed->start(CLUSTER => $map->($two));
    ok($served->(), '... another one has its slots');

    $one->start;
    is_call(call("say:-MOVED%201%20127.0.0.1:@{[$one->port]}%0D%0A|:1%0D%0A", msec => 20000), 'OK', 0, ':1',
            '... and gives them back');

    $_->stop for $seed, $one, $two;
}

# One that announces a name, and no address beside it, where nobody can be asked for it.

{
    my $seed = FakeRedis->new(CLUSTER => "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n" . FakeRedis::bulk('redis.test') . ":6379\r\n");

    fake($seed, 'mode cluster; timeout 300ms; connections 1;', allow => qr/idempotency_redis/);

    is_call(call('x', msec => 20000), 'CONNECT', 0, '"http" has no "resolver" for "redis.test"',
            'a cluster of names, and no resolver');
    is(scalar(() = $n->log =~ /has no "resolver" for "redis.test"/g), 1, '... told once');

    $seed->stop;
}

($who, $closed) = strangers('a cluster without slots', 'mode cluster;', { CLUSTER => "*0\r\n" },
                            qr/it does not know the slots/);
$_->stop for $who, $closed;

($who, $closed) = strangers('no sentinel', 'mode sentinel; master m;',
    { SENTINEL => "-ERR unknown command 'SENTINEL'\r\n" }, qr/it says: ERR unknown command/);
$_->stop for $who, $closed;

($who, $closed) = strangers('a sentinel that does not know the master', 'mode sentinel; master m;',
                            { SENTINEL => "*-1\r\n" }, qr/it does not know the master "m"/);

$who->stop;
$who->start(SENTINEL => $where->($m), SUBSCRIBE => "*3\r\n+subscribe\r\n+x\r\n:1\r\n");
ok(until_true { call('say::1%0D%0A', msec => 2000) =~ /^error=0 .*:1$/ }, '... until it does');
$_->stop for $who, $closed;

($who, $closed) = strangers('a sentinel that says so, and goes', 'mode sentinel; master m;',
                            { SENTINEL => $where->($m), SUBSCRIBE => '' });

# what is heard of the master shortens the pauses

ok(until_true { call('say::1%0D%0A', msec => 2000) =~ /^error=0 .*:1$/ }, 'the master is there');

my @before = map $_->connections, $who, $closed;

for (1 .. 10) {
    my $n = $who->connections;

    call('cut:', msec => 20000);
    until_true { $who->connections > $n };
    until_true { call('say::1%0D%0A', msec => 2000) =~ /^error=0/ };
}

my @after = map $_->connections, $who, $closed;

cmp_ok($after[0] - $before[0], '>', $after[1] - $before[1] + 3, '... and lost: somebody else is asked soon');
$_->stop for $who, $closed, $m;

fake($fake, 'timeout 300ms; connections 1;');

# no descriptor, and no memory, for each that is lost

my ($descriptors, $memory);

for my $round (1 .. 300) {
    call('cut:$5%0D%0Ahel', msec => 20000);
    call('none', msec => 1) if $round % 10 == 0;

    ($descriptors, $memory) = (descriptors(), memory()) if $round == 100;
}

is_call(call('say::1%0D%0A', msec => 20000), 'OK', 0, ':1', 'it was lost 300 times');
cmp_ok(abs(descriptors() - $descriptors), '<=', 2, '... and no descriptor');
cmp_ok(memory() - $memory, '<=', 512, '... nor memory');


# --- the end ------------------------------------------------------------------------

# nothing is under way: nobody waits for a connection

fake($fake, 'timeout 100s; connect_timeout 100s; connections 2;');
is_call(call('say::1%0D%0A'), 'OK', 0, ':1', 'a connection');

ok(gone(sub { }), 'a worker that has nothing to do exits');

fake($fake, 'timeout 100s; connections 2;');

# a reload: the connections of those before end with them, and only theirs

call('say::1%0D%0A');

for my $round (1 .. 3) {
    ok($n->reload(modules_after => [Redis->caller], zone => 0, log_level => 'notice',
                  http => "idempotency_redis r { server 127.0.0.1:@{[$fake->port]}; timeout 100s; connections 2; }",
                  server => 'location /r/ { redis_caller r; }'), "reload $round");
    is_call(call('say::1%0D%0A'), 'OK', 0, ':1', '... and on');
    ok(until_true { $fake->open == 2 }, '... with two connections');
}

# the answer is waited for, and so is its deadline

fake($fake, 'timeout 100s; connections 1;');
call('say::1%0D%0A');

my $slow = $n->start('GET', uri('slow:$300%0D%0A' . 'x' x 300 . '%0D%0A', msec => 60000));
until_true { grep { ($_->[3] // '') =~ /^slow:\$300/ } $fake->commands };

ok(gone(sub { is_call($slow->response->{body}, 'OK', 0, 'xxx', 'an answer under way is waited for') }),
   '... then the worker exits');

fake($fake, 'timeout 100s; connections 1;');
call('say::1%0D%0A');

my $none = $n->start('GET', uri('none', msec => 1500));
until_true { ($fake->commands)[-1][3] eq 'none' };

ok(gone(sub { is_call($none->response->{body}, 'TIMEOUT', 1, 'no answer', 'one that does not come, until its deadline') }),
   '... then the worker exits');

$n->stop;

done_testing();
