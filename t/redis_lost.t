#!/usr/bin/perl

# docs/operation.md, "Another Redis, or one that has forgotten": a server that is
# another one, is empty, was emptied or was set back executes nothing again. It is
# refused until somebody agrees to it, on one machine for all; or it is gone on
# with, if the block says so.

use lib 't/lib';
use FakeRedis;
use Idempotency;
use Redis;

use File::Temp ();
use List::Util qw(uniq);

my @programs = Redis->programs or plan(skip_all => 'no redis-server');

my @keeps = (program => $programs[0], args => [qw(--appendonly yes --appendfsync always)]);
my @forgets = (program => $programs[0]);

my $server = <<'EOC';
    add_header X-Status $idempotency_status always;
    proxy_read_timeout 10m;

    location / { idempotency zone=z; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /local { idempotency zone=z; idempotency_unavailable local; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /pass { idempotency zone=z; idempotency_unavailable pass; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /off { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /api/ { idempotency_api write=on; }
EOC

my ($cases, $keys, $a, $b) = (0, 0);
my $log = qr/redis "r" of zone "z"|idempotency_redis "r"|outcomes are not in the redis/;


# Two nginx of a block; a token that only one of them has in its memory.

sub conf {
    my ($block, $secret, $more) = @_;

    return (workers => 2, zone => 0, server => $server, allow => $log,
            http => ($more // '') . "idempotency_redis r { $block timeout 5s; connect_timeout 5s; }\n"
                    . ($secret ? "idempotency_secret $secret;\n" : '')
                    . "idempotency_zone zone=z:8m redis=r;\n");
}

sub begin {
    my ($block, $other, $more) = @_;

    $cases++;
    $a = nginx(conf($block, undef, $more));
    $b = nginx(conf($other // $block, undef, $more));

    is(sure($_, 'warm' . ++$keys), '200 NEW', "case $cases: executed") for $a, $b;
    is(sure($b, 'theirs'), '200 NEW', '... and what only the other one has in memory');
    is(sure($a, 'ours'), '200 NEW', '... and what has only this one');

    # an outcome may be told behind its response
    ok((until_true { api($_, 'GET', '/metrics')->{body} =~ /^nginx_idempotency_undelivered\S* 0$/m }), '... it is told')
        for $a, $b;
}

sub order {
    my ($n, $id, $at) = @_;

    $at //= '/';
    return told($n->post("$at?id=$cases-$id", key => "$cases-$id", body => 'b', timeout => 60));
}

# on a busy machine an answer may come too late
sub sure {
    my @what = @_;
    my $told;

    until_true { ($told = order(@what)) ne '503 UNAVAILABLE' };
    return $told;
}

sub new_at { my ($n) = @_; return order($n, 'new' . ++$keys) }
sub done { return executions("$cases-$_[0]") }
sub api { my ($n, $method, $path, $body) = @_; return $n->request($method, "/api$path", body => $body) }
sub up { return api($_[0], 'GET', '/metrics')->{body} =~ /^nginx_idempotency_store_up\S* ([01])/m ? $1 : '?' }

sub errors {
    my ($n) = @_;
    my ($body, $sum) = (api($n, 'GET', '/metrics')->{body}, 0);

    $sum += $1 while $body =~ /^nginx_idempotency_store_errors_total\S* (\d+)/mg;
    return $sum;
}

# what any of its workers says
sub all_say { my ($n, $what) = @_; return until_true { !grep { new_at($n) ne $what } 1 .. 8 } }


# It is asked again and again until the log has told, and some times more.

sub refused {
    my ($name, $n, $why) = @_;

    my %told;
    my $ask = sub { $told{order($n, 'theirs')}++ };

    ok((until_true { $ask->(); $n->log =~ /\[alert\] .*$why.*PUT \{"store":"accept"\} to \/zones\/z / }),
       "$name: an [alert] says why, and what to do") or diag($n->log);
    $ask->() for 1 .. 8;

    is(join(', ', sort keys %told), '503 UNAVAILABLE', '... all the time it was refused');
    is(done('theirs'), 1, '... what was executed is not executed again');
    is(order($n, 'local', '/local'), '503 UNAVAILABLE', '... nor is anything by memory alone');
    is(order($n, 'pass', '/pass'), '200 UNAVAILABLE', '... but what passes');
    is(order($n, 'ours'), '200 REPLAYED', '... and what memory has is answered');
    is(up($n), 0, '... store_up');
    is(scalar(() = $n->log =~ /\[alert\]/g), 1, '... the log says so once');
}

sub agrees {
    my ($name, $n) = @_;

    is(api($n, 'PUT', '/zones/z', '{"store":"accept"}')->{status}, 204, "$name: somebody agrees");
    ok((until_true { new_at($n) eq '200 NEW' }), '... and it is used');
    ok((until_true { up($n) == 1 }), '... store_up');
    is(api($n, 'PUT', '/zones/z', '{"store":"accept"}')->{status}, 409, '... there is nothing to agree to');
}

# one PUT serves all
sub follows {
    my ($name, $n) = @_;

    ok((until_true { new_at($n) eq '200 NEW' }), "$name: who shares it follows") or diag($n->log);
    ok((until_true { up($n) == 1 }), '... store_up');
}

sub end { $_->stop for $a, $b }


# --- where the address leads ------------------------------------------------------

{
    my ($ours, $theirs) = map Redis->new(@keeps), 1, 2;

    begin('server 127.0.0.1:' . $ours->port . ';');
    ok($a->reload(conf('server 127.0.0.1:' . $theirs->port . ';')), 'another address, by a reload');
    ok(all_say($a, '503 UNAVAILABLE'), '... nothing new is executed');
    refused('another server by a reload', $a, 'it has no');
    is(scalar @{$theirs->command('KEYS', '*')}, 0, '... where nothing was left');
    is(sure($b, 'still'), '200 NEW', '... the other nginx has the old one');
    ok($a->reload(conf('server 127.0.0.1:' . $ours->port . ';')), 'the old address, by a reload');
    ok(all_say($a, '200 NEW'), '... it is the one that it was, and nobody has to agree');
    is(sure($a, 'theirs'), '200 REPLAYED', '... and knows what it knew');
    ok((until_true { up($a) == 1 }), '... store_up');
    end();

    begin('server 127.0.0.1:' . $ours->port . ';');
    ok($a->reload(conf('server 127.0.0.1:' . $ours->port . '; database 3;')), 'another database, by a reload');
    ok(all_say($a, '503 UNAVAILABLE'), '... nothing new is executed');
    refused('another database', $a, 'it has no');
    agrees('another database', $a);
    end();
}

{
    my ($ours, $theirs) = map Redis->new(@keeps), 1, 2;
    my $port = $ours->port;

    # that one has been in use, by others

    my $n = nginx(conf('server 127.0.0.1:' . $theirs->port . ';'));
    is(sure($n, 'others'), '200 NEW', 'another server, which others use');
    $n->stop;

    begin("server 127.0.0.1:$port;");
    $theirs->kill;
    $theirs->{port} = $port;
    $ours->kill;
    $theirs->start;
    refused('another server under its address', $a, 'it is another one');
    agrees('another server', $a);
    follows('another server', $b);
    end();
}


# a name leads to another server, and connections are made anew

{
    my $ours = Redis->new(@keeps);
    my $theirs = Redis->new(program => $programs[0], port => $ours->port,
                            args => [qw(--appendonly yes --appendfsync always --bind 127.0.0.2)]);
    my $dns = free_port();
    my $others = sub {
        FakeRedis::names($dns, 'redis.test' => $_[0]);
        $ours->command('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
    };

    FakeRedis::names($dns, 'redis.test' => '127.0.0.1');
    begin('server redis.test:' . $ours->port . ';', undef, "resolver 127.0.0.1:$dns valid=1s ipv6=off;\n");
    until_true { $others->('127.0.0.2'); $a->log =~ /is refused/ };
    refused('another server under its name', $a, 'it has no');
    is(scalar @{$theirs->command('KEYS', '*')}, 0, '... where nothing was left');
    FakeRedis::names($dns, 'redis.test' => '127.0.0.1');
    $theirs->kill;
    ok(all_say($a, '200 NEW'), '... which leads back: it is the one that it was');
    is(sure($a, 'theirs'), '200 REPLAYED', '... and knows what it knew');
    end();
}


# --- it has forgotten --------------------------------------------------------------

for my $program (@programs) {
    my $redis = Redis->new(program => $program);

    begin('server 127.0.0.1:' . $redis->port . ';');
    $redis->command('FLUSHALL');
    is(order($a, 'alone', '/local'), '503 UNAVAILABLE', "$program, FLUSHALL: memory alone decides nothing");
    cmp_ok(errors($a), '<', 100, '... and it is not asked again and again');
    refused("$program, FLUSHALL", $a, 'it has no');
    agrees("$program, FLUSHALL", $a);
    follows("$program, FLUSHALL", $b);
    is(sure($a, 'theirs'), '200 NEW', '... what it forgot is executed again, as was agreed');

    # who was not there when somebody agreed, twice
    $redis->command('FLUSHALL');
    ok((until_true { new_at($b) eq '503 UNAVAILABLE' && up($b) == 0 }), '... once more');
    agrees("$program, FLUSHALL once more", $b);
    follows("$program, FLUSHALL once more", $a);
    end();
}

{
    my $redis = Redis->new(@forgets);

    begin('server 127.0.0.1:' . $redis->port . ';');
    $redis->kill;
    $redis->start;
    refused('a restart without persistence', $a, 'it has no');
    agrees('a restart', $a);
    follows('a restart', $b);
    end();
}

{
    my ($master, $replica) = map Redis->new(@forgets), 1, 2;
    my $port = $master->port;

    begin("server 127.0.0.1:$port;");
    $replica->kill;
    $master->kill;
    $replica->{port} = $port;
    $replica->start;
    $replica->command('REPLICAOF', '127.0.0.1', free_port());
    ok((until_true { order($a, 'theirs') eq '503 UNAVAILABLE' }), 'a replica that was told nothing');
    $replica->command('REPLICAOF', 'NO', 'ONE');
    refused('... is the master', $a, 'it has no');
    agrees('an empty replica', $a);
    follows('an empty replica', $b);
    end();
}

# before anything was acknowledged

{
    my $master = Redis->new(@forgets);
    my $replica = Redis->new(@forgets, args => ['--replicaof', '127.0.0.1', $master->port]);

    my @conf = conf('server 127.0.0.1:' . $master->port . '; replicas 1;');
    my $n = nginx(@conf);

    $cases++;
    is(sure($n, 'known'), '200 NEW', 'its scripts are there');
    $n->stop;
    $replica->pause;

    my $tokens = sub { scalar grep /:[\w-]{43}$/, @{$master->command('KEYS', '*')} };
    my $before = $tokens->();

    $n = nginx(@conf);
    ok((until_true { new_at($n) eq '503 UNAVAILABLE' && $tokens->() > $before }),
       'a claim that the master has, and no replica acknowledges');
    $master->command('FLUSHALL');
    $replica->resume;

    my %told;

    until_true { $told{new_at($n)}++; $n->log =~ /is refused/ };
    like($n->log, qr/\[alert\] .*is refused, it has no/, '... then it is emptied: an [alert] says so');
    is(join(' ', keys %told), '503 UNAVAILABLE', '... and nothing is executed');
    agrees('emptied before anything was acknowledged', $n);
    $n->stop;
}

# an older state: its stamp is the same one

{
    my $redis = Redis->new(@keeps);

    begin('server 127.0.0.1:' . $redis->port . ';');

    my ($now) = map { my $key = $_; sub { (split / /, $redis->command('GET', $key))[4] } } 'idem:z:stamp';
    my $dump = $redis->command('DUMP', 'idem:z:stamp');
    my $then = $now->();

    ok((until_true { $now->() > $then + 6000 }), 'its stamp goes on, while nobody asks');
    $redis->command(@$_) for ['MULTI'], ['FLUSHALL'], ['RESTORE', 'idem:z:stamp', 0, $dump];
    is(join(' ', @{$redis->command('EXEC')}), 'OK OK', 'it is set back');
    refused('... by more than 2 s', $a, 'it is \d+ s older');
    agrees('a state that was set back', $a);
    follows('a state that was set back', $b);
    end();
}

# a worker that a reload has left behind leaves that to another one

{
    my $redis = Redis->new(@keeps);
    my $n = nginx(conf('server 127.0.0.1:' . $redis->port . ';'), workers => 1);
    my $beat = sub { (split / /, $redis->command('GET', 'idem:z:stamp') // '')[4] // 0 };

    ok((until_true { new_at($n) eq '200 NEW' && $beat->() }), 'one worker');

    my ($old) = $n->workers;
    my $long = $n->start('GET', '/off?id=long&gate=1');
    held('long');
    ok($n->reload, '... stays behind a reload, for somebody who is not protected');

    my $then = $beat->();
    ok((until_true { $beat->() > $then + 3000 }), '... and the stamp goes on');
    ok(kill(0, $old), '... all the while');
    go('long');
    is($long->response->{status}, 200, '... until it is done');
    until_true { !kill(0, $old) };
    $n->stop;
}

# ... by less: it is said, and used

my $back = <<'EOL';
    local head, beat, rest = string.match(redis.call('GET', KEYS[1]), '^(%S+ %S+ %S+ %S+) (%d+)(.*)')
    if beat == ARGV[1] then return beat end
    beat = string.format('%.0f', beat - 1500)
    redis.call('SET', KEYS[1], head .. ' ' .. beat .. rest)
    return beat
EOL

{
    my $redis = Redis->new(@keeps);

    begin('server 127.0.0.1:' . $redis->port . ';');

    # whenever somebody has written it
    my $last = 0;

    ok((until_true {
        $last = $redis->command('EVAL', $back, 1, 'idem:z:stamp', $last);
        grep { $_->log =~ /\[alert\] .*has forgotten \d+ ms/ } $a, $b;
    }), 'it is set back by a second and a half: an [alert] says so');
    ok((until_true { new_at($_) eq '200 NEW' }), '... and it is used') for $a, $b;
    is(sure($a, 'theirs'), '200 REPLAYED', '... as is what it knows');
    unlike($_->log, qr/is refused/, '... and not refused') for $a, $b;
    end();
}


# --- its clock ------------------------------------------------------------------------

{
    my $redis = Redis->new(@keeps);

    begin('server 127.0.0.1:' . $redis->port . ';');
    $redis->pause;
    my @c = map { $_->start('POST', "/?id=$cases-stopped" . ++$keys, key => "$cases-stopped$keys", body => 'b') } $a, $b;
    until_true { $a->log =~ /is unavailable/ };
    $redis->resume;
    ok(all_say($_, '200 NEW'), 'a server that stood still is the same one') for $a, $b;
    unlike($_->log, qr/\[alert\]/, '... nobody says anything else') for $a, $b;
    end();
}


# --- lost accept ------------------------------------------------------------------------

{
    my $redis = Redis->new(@forgets);

    begin('lost accept; server 127.0.0.1:' . $redis->port . ';');
    $redis->command('FLUSHALL');
    ok(all_say($a, '200 NEW'), 'lost accept: it is gone on with');
    ok(all_say($b, '200 NEW'), '... by all');
    like($a->log . $b->log, qr/\[alert\] .*redis "r" of zone "z" is gone on with: it has no/, '... and an [alert] says why');
    is(api($a, 'PUT', '/zones/z', '{"store":"accept"}')->{status}, 409, '... there is nothing to agree to');
    is(sure($a, 'theirs'), '200 NEW', '... what it forgot is executed again, as was agreed');
    end();
}


# --- another digest key -------------------------------------------------------------------

{
    my $redis = Redis->new(@forgets);
    my @secrets;

    for my $k (1, 2) {
        my $f = File::Temp->new(TMPDIR => 1);
        print $f 'digest ' . $k x 64 . "\n";
        close $f;
        push @secrets, $f;
    }

    my $block = 'server 127.0.0.1:' . $redis->port . ';';

    $cases++;
    my ($one, $two) = map nginx(conf($block, $_)), @secrets;

    for my $id (1 .. 8) { order($_, "key$id") for $one, $two }
    is(scalar(grep done("key$_") > 1, 1 .. 8), 0, 'two digest keys: nothing is executed by both');

    my ($in, $out) = ($one, $two);
    ok((until_true { ($in, $out) = ($out, $in); new_at($in) eq '200 NEW' }), '... one of them is served');

    ok((until_true { $out->log =~ /\[alert\] .*another digest key/ }), '... the other one is refused');
    is(api($out, 'PUT', '/zones/z', '{"store":"accept"}')->{status}, 409, '... that can\'t be agreed to');
    is(new_at($out), '503 UNAVAILABLE', '... it stays so');
    is(sure($in, 'in'), '200 NEW', '... the first one is served');
    $_->stop for $one, $two;
}


# --- a cluster: each of its masters has its own ------------------------------------------------

{
    my @n = Redis->cluster(3, @forgets);

    begin('mode cluster; server ' . join(' ', map '127.0.0.1:' . $_->port, @n) . ';');

    my @theirs = map { my $id = "slot$_"; sure($b, $id); $id } 1 .. 12;

    # all of its stamps, each once: it is one failover

    my @stamps = @{$n[0]->command('KEYS', 'idem:z:stamp*')};
    my $said = sub { scalar(() = ($a->log . $b->log) =~ /has forgotten \d+ ms/g) };

    $n[0]->command('EVAL', $back, 1, $_, 0) for @stamps;
    ok((until_true { $said->() }), 'a master of a cluster is set back: an [alert] says so');
    new_at($_) for map { ($a, $b) } 1 .. 20;
    cmp_ok($said->(), '<=', 4, '... each worker once') or diag(scalar @stamps);

    # until it has been looked at again it may execute what was forgotten: that window
    # is a second; this asks behind it

    $n[1]->command('FLUSHALL');
    ok((until_true { $a->log =~ /\[alert\] .*it has no/ }), 'a master of a cluster is emptied: an [alert] says so');
    is(join(' ', uniq map order($a, $_), @theirs), '503 UNAVAILABLE', '... it is refused');
    is(join(' ', uniq map done($_), @theirs), '1', '... nothing is executed again');
    agrees('an emptied master', $a);
    follows('an emptied master', $b);
    is(scalar(() = $a->log =~ /is used as it is/g), 1, '... which is said once');

    # what was right when somebody agreed is not what he agreed to, though it is asked
    # later, as it is busy
    my $emptied = sub { scalar(() = $a->log =~ /\[alert\] .*it has no/g) };
    my $busy = $n[2]->connect;

    $n[1]->command('FLUSHALL');
    ok((until_true { $emptied->() == 2 }), 'a master of a cluster is emptied once more: an [alert] says so');
    $n[2]->command(qw(CONFIG SET lua-time-limit 10));
    syswrite $busy->{socket}, qq{EVAL "for i = 1, 2000000000 do end redis.call('FLUSHALL')" 0\r\n};
    ok((until_true { $n[2]->command('PING') =~ /^BUSY/ }), '... another one is busy');
    is(api($a, 'PUT', '/zones/z', '{"store":"accept"}')->{status}, 204, '... somebody agrees');
    ok((until_true { api($a, 'PUT', '/zones/z', '{"store":"accept"}')->{status} == 409 }), '... there is nothing more to agree to');
    ok((until_true { $emptied->() == 3 }), '... then that is emptied: an [alert] says so');
    agrees('that one', $a);
    follows('that one', $b);

    # its restart ends its connections
    $n[2]->kill;
    $n[2]->start;
    ok((until_true { $emptied->() == 4 }), 'a master restarts without persistence: an [alert] says so');
    agrees('a master that restarted', $a);
    follows('a master that restarted', $b);
    end();
}


done_testing();
