#!/usr/bin/perl

# Two nginx over one Redis whose master dies: sentinels make another, or a cluster
# does. With replicas= nothing is executed twice, and what was refused meanwhile is
# executed later; not even if the replica had not been told of anything. Without
# replicas= that one is refused: it has forgotten.

use FindBin;
use lib "$FindBin::Bin/lib";
use lib "$FindBin::Bin/stress";
use Between;
use Idempotency;
use Redis;
use Topology;

use List::Util qw(uniq);
use Time::HiRes qw(sleep time);

my @programs = Redis->programs or plan(skip_all => 'no redis-server');

subtest 'sentinels' => sub { sentinels(program => $programs[0]) };
subtest 'a cluster' => sub { cluster(program => $programs[-1]) };
subtest 'nginx quits, and its master dies' => sub { quits(program => $programs[0]) };
subtest "$_: a replica that is told nothing" => sub { swallowed($_) } for @programs;
subtest 'one master of three is dead' => sub { parted($programs[0]) };
subtest 'a replica stands still' => sub { still($programs[0]) };
subtest 'a slot that has just moved' => sub { moved($programs[0]) }
    if $programs[0] eq 'redis-server';

done_testing();


sub sentinels {
    my %p = (@_, args => ['--appendonly', 'yes', '--repl-diskless-sync-delay', 0]);

    my $master = Redis->new(%p);
    my @replicas = map Redis->new(%p, args => [@{$p{args}}, '--replicaof', '127.0.0.1', $master->port]), 1, 2;
    my @s = Redis->sentinels($master, 3, program => $p{program}, replicas => 2);

    fails_over('mode sentinel; master m; ' . join('', map 'server 127.0.0.1:' . $_->port . ';', @s),
               $master, sub { });
}


# The slots of the dead have no second replica: they wait for it.

sub cluster {
    my @n = Redis->cluster(6, @_, args => ['--appendonly', 'yes']);

    Redis->failovers('yes', @n);
    fails_over('mode cluster; ' . join('', map 'server 127.0.0.1:' . $_->port . ';', @n[3 .. 5]),
               $n[0], sub { $n[0]->start });
}


sub fails_over {
    my ($block, $master, $mend) = @_;

    my @nginx = map nginx(workers => 2, zone => 0, allow => qr/redis "r"|idempotency_redis/, http => <<"EOC",
        idempotency_redis r { $block timeout 1s; connect_timeout 1s; replicas 1; }
        idempotency_zone zone=z:4m redis=r;
EOC
        server => <<'EOC'), 1, 2;
        location / {
            idempotency zone=z;
            idempotency_lease 30s;
            add_header X-Status $idempotency_status always;
            proxy_pass http://$TEST_NGINX_BACKEND;
        }
EOC

    my @ids = map 'f' . $master->port . "-$_", 1 .. 80;

    # each to both at once
    my $ask = sub { map { my $id = $_; map $_->start('POST', "/?id=$id", key => $id), @nginx } @_ };
    my $told = sub { my %n; $n{$_->response->{status}}++ for @_; return join ', ', map "$_: $n{$_}", sort keys %n };

    until_true { $nginx[0]->post('/?id=warm' . $master->port, key => 'warm')->{status} == 200 };
    until_true { $nginx[1]->post('/?id=warm' . $master->port, key => 'warm')->{status} == 200 };

    # ... on a busy machine again, as an answer may be too late
    ok(until_true { $told->($ask->(@ids[0 .. 19])) eq '200: 40' }, 'all is well');
    is(scalar(grep executions($_) != 1, @ids[0 .. 19]), 0, '... and each is executed once');

    # some are under way when it dies
    my @under_way = $ask->(@ids[20 .. 39]);
    $master->kill;

    for my $burst (0 .. 3) {
        push @under_way, $ask->(@ids[40 + 10 * $burst .. 49 + 10 * $burst]);
        sleep 0.5;
    }

    my %status;
    $status{$_->response->{status}}++ for @under_way;
    is(join(' ', grep !/^(?:200|409|503)$/, keys %status), '', 'the master died: answered or refused')
        or diag(join ', ', map "$_: $status{$_}", sort keys %status);
    is(scalar(grep executions($_) > 1, @ids), 0, '... and nothing executed twice');

    $mend->();

    my $again = 0;

    for my $i (0 .. $#ids) {
        $again++ if until_true { $nginx[$i % 2]->post("/?id=$ids[$i]", key => $ids[$i])->{status} == 200 };
    }

    is($again, 80, 'there is another: all are answered');
    is(scalar(grep executions($_) != 1, @ids), 0, '... each executed once');

    $_->stop for @nginx;
}


# A worker that quits has closed what it did not need, and has to find the new master.

sub quits {
    my %p = (@_, args => ['--appendonly', 'yes', '--repl-diskless-sync-delay', 0]);

    my $master = Redis->new(%p);
    my $replica = Redis->new(%p, args => [@{$p{args}}, '--replicaof', '127.0.0.1', $master->port]);
    my @s = Redis->sentinels($master, 3, program => $p{program});
    my $servers = join ' ', map '127.0.0.1:' . $_->port, @s;

    my ($a, $b) = map nginx(workers => 1, zone => 0, allow => qr/redis "r"|idempotency_redis/, http => <<"EOC",
        idempotency_redis r { mode sentinel; master m; server $servers; }
        idempotency_zone zone=z:4m redis=r;
EOC
        server => <<'EOC'), 1, 2;
        add_header X-Status $idempotency_status always;
        idempotency zone=z;
        idempotency_lease 1h;
        idempotency_wait_timeout 10m;
        proxy_read_timeout 10m;
        location / { proxy_pass http://$TEST_NGINX_BACKEND; }
EOC

    for my $n ($a, $b) {
        until_true { $n->post('/?id=well', key => 'well')->{status} == 200 };
    }

    my $owner = $a->start('POST', '/?id=quits&gate=1', key => 'quits');
    held('quits');
    until_true { $replica->command('DBSIZE') == $master->command('DBSIZE') };

    $a->signal('QUIT');
    ok((until_true { $a->log =~ /gracefully shutting down/ }), 'nginx quits while it executes');
    $master->kill;
    ok((until_true { $replica->info('role') eq 'master' }), '... and another one becomes the master');
    go('quits');
    is(told($owner->response), '200 NEW', '... then it has executed');

    my $told;
    until_true { ($told = told($b->post('/?id=quits&gate=1', key => 'quits', timeout => 60))) ne '503 UNAVAILABLE' };
    like($told, qr/^200 (?:WAITED|REPLAYED)$/, '... and the new master was told');
    is(executions('quits'), 1, '... executed once');

    $_->stop for $a, $b;
}


# What the master says goes through a proxy, which swallows it on its way to the
# replica: the master does not know.

sub swallowed {
    my ($program) = @_;

    my %p = (program => $program, args => [qw(--appendonly yes --repl-timeout 3600)]);
    my $port = free_port();
    my $between = Between->new($port);
    my $master = Redis->new(%p, port => $port, conf => 'replica-announce-ip 127.0.0.1' . "\n"
                                                       . 'replica-announce-port ' . $between->port . "\n");
    my $replica = Redis->new(%p, conf => 'replicaof 127.0.0.1 ' . $between->port . "\n");

    # however slow all this is, a master is dead when it is, and never else: not even
    # one that has just become it, to which a second is not much
    my @s = Redis->sentinels($master, 3, program => $program, port => $between->port, dead_after => 3_600_000);

    my $where = 'mode sentinel; master m; server ' . join(' ', map '127.0.0.1:' . $_->port, @s) . ';'
                . ' timeout 4s; connect_timeout 4s;';

    my ($a, $b) = map nginx(workers => 1, zone => 0, allow => qr/redis "r"|redis "s"|idempotency_redis/, http => <<"EOC",
        idempotency_redis s { $where replicas 1; }
        idempotency_redis r { $where }
        idempotency_zone zone=safe:4m redis=s;
        idempotency_zone zone=bet:4m redis=r;
EOC
        server => <<'EOC'), 1, 2;
        add_header X-Status $idempotency_status always;
        idempotency_wait_timeout 30s;
        idempotency_lease 1h;
        proxy_read_timeout 10m;
        location /safe { idempotency zone=safe; proxy_pass http://$TEST_NGINX_BACKEND; }
        location /bet { idempotency zone=bet; proxy_pass http://$TEST_NGINX_BACKEND; }
        location /api/ { idempotency_api write=on; }
EOC

    my $ids = "$program-";
    my $uri = sub { my ($where, $id, $more) = @_; "/$where?id=$ids$id" . ($more // '') };
    my $post = sub { my ($n, $where, $id) = @_; told($n->post($uri->($where, $id), key => "$ids$id")) };
    # a busy machine may be slower than a timeout
    my $sure = sub { my @p = @_; my $t; until_true { ($t = $post->(@p)) ne '503 UNAVAILABLE' }; $t };
    my $all_told = sub { my ($zone) = @_; until_true { $a->get('/api/metrics')->{body} =~ /^nginx_idempotency_undelivered\{zone="$zone"\} 0$/m } };
    my $n = 0;

    until_true { ($master->info('slave0') // '') =~ /state=online/ };
    for my $nginx ($a, $b) {
        for my $at (qw(safe bet)) {
            until_true { $post->($nginx, $at, 'warm' . ++$n) eq '200 NEW' };
        }
    }

    is($sure->($a, 'safe', 's0'), '200 NEW', 'all is well: executed');
    is($sure->($a, 'bet', 'r0'), '200 NEW', '... and without replicas=');

    my $owner = $a->start('POST', $uri->('safe', 'under', '&gate=1'), key => "${ids}under");
    held("${ids}under");
    until_true { $replica->command('DBSIZE') == $master->command('DBSIZE') };
    $all_told->('safe');
    is($replica->info('role'), 'slave', '... and nobody has taken the master for dead');

    # ... but what the replica says still comes, and no connection ends

    $between->now('mute', 'replicas');

    my @lost = map "r$_", 1 .. 5;
    my @safe = map "s$_", 1 .. 5;

    is(join(' ', uniq map $sure->($a, 'bet', $_), @lost), '200 NEW', 'the replica is told nothing: executed without replicas=');

    # ... for so long that it is noticed

    my $beat = sub { (split / /, $_[0]->command(qw(GET idem:bet:stamp)))[4] };
    ok(until_true { $beat->($master) > $beat->($replica) + 4000 }, '... for seconds');

    # an outcome that the master has not heard is told to who follows it

    ok($all_told->('bet'), '... and the master has heard it');

    # what is sent again, by a new connection: what it says has to be a write of its own

    my $written = sub { scalar grep /^idem:safe:.{43}$/, @{$master->command(qw(KEYS *))} };
    my $before = $written->();
    my $again = $a->start('POST', $uri->('safe', $safe[0]), key => "$ids$safe[0]");

    ok(until_true { $written->() > $before }, '... refused with it, though the master has it:');
    $between->now('cut', 'clients');
    is(told($again->response), '503 UNAVAILABLE', '... ... if its connection breaks');
    is(join(' ', uniq map $post->($a, 'safe', $_), @safe[1 .. 4]), '503 UNAVAILABLE', '... ... and if it does not');
    is(scalar(grep executions("$ids$_"), @safe), 0, '... ... so not executed');

    is($replica->info('role'), 'slave', '... the other one follows it yet');
    $master->kill;
    $_->dead_after(4000) for @s;
    ok(until_true { ($replica->info('role') // '') eq 'master' }, 'the master dies, and the other one follows');

    # if it came back before all of them know that, it could be the master again

    ok($replica->leads($master, @s), '... as the sentinels say') or diag(map $_->log, @s, $master, $replica);
    $_->dead_after(3_600_000) for @s;

    $between->now('flow', 'replicas');
    $master->start;

    ok($replica->leads($master, @s), '... which has the old one as a replica')
        or diag(map $_->log, @s, $master, $replica);

    for my $id (@safe) {
        ok(until_true { $post->($b, 'safe', $id) eq '200 NEW' }, "$id: what was refused is executed");
        ok(until_true { $post->($a, 'safe', $id) eq '200 REPLAYED' }, '... and replayed elsewhere');
    }

    is(join(' ', map executions("$ids$_"), 's0', @safe), '1 1 1 1 1 1', '... once');
    is($sure->($b, 'safe', 's0'), '200 REPLAYED', '... as is what was executed before');

    go("${ids}under");
    is(told($owner->response), '200 NEW', 'what was executed all the time is answered');
    is(told($b->post($uri->('safe', 'under', '&gate=1'), key => "${ids}under")), '200 REPLAYED', '... and replayed elsewhere');
    is(executions("${ids}under"), 1, '... executed once');

    for my $nginx ($a, $b) {
        ok(until_true { $nginx->log =~ /\[alert\] .*redis "r" of zone "bet" is refused, it has forgotten/ },
           'without replicas= it has forgotten');
    }

    is(join(' ', uniq map $post->($b, 'bet', $_), @lost), '503 UNAVAILABLE', '... what it had not is refused');
    is(join(' ', map executions("$ids$_"), @lost), '1 1 1 1 1', '... and not executed again');
    is($a->request('PUT', '/api/zones/bet', body => '{"store":"accept"}')->{status}, 204, '... until somebody agrees');
    ok(until_true { $post->($b, 'bet', 'r0') eq '200 REPLAYED' }, '... what the replica had is known');
    is(join(' ', uniq map $sure->($b, 'bet', $_), @lost), '200 NEW', '... what it had not is executed again, elsewhere');
    is(join(' ', map executions("$ids$_"), 'r0', @lost), '1 2 2 2 2 2', '... as the table of guarantees says');

    $_->stop for $a, $b;
}


# A part of what it is asked fails, again and again: that is one outage, said once
# when it goes and once when it comes, and over without a request, too.

sub parted {
    my ($program) = @_;

    my @n = Redis->cluster(3, program => $program, args => [qw(--cluster-require-full-coverage no --appendonly yes)]);

    my $nginx = nginx(workers => 1, zone => 0, allow => qr/redis "r"|idempotency_redis/,
                      http => 'idempotency_redis r { mode cluster; server 127.0.0.1:' . $n[1]->port
                              . '; timeout 4s; connect_timeout 4s; } idempotency_zone zone=z:4m redis=r;',
                      server => 'location / { idempotency zone=z; proxy_pass http://$TEST_NGINX_BACKEND; }'
                                . ' location /api/ { idempotency_api; }');

    my $id = 0;
    my $ask = sub { my $n = ++$id; $nginx->post("/?id=part-$n", key => "part-$n")->{status} };
    my $up = sub { $nginx->get('/api/metrics')->{body} =~ /^nginx_idempotency_store_up\S* ([01])/m ? $1 : '?' };

    ok(until_true { $ask->() == 200 }, 'all is well');
    ok(until_true { $up->() == 1 }, '... store_up');

    $n[0]->kill;
    ok(until_true { $ask->() == 503 }, 'one of three is dead: refused');

    my %told;
    until_true { $told{$ask->()}++; ($told{503} // 0) > 20 && ($told{200} // 0) > 20 };
    is(join(' ', sort keys %told), '200 503', '... what is there, and what of the others is executed');

    is($up->(), 0, '... store_up');
    is(scalar(() = $nginx->log =~ /is unavailable/g), 1, '... the log says so once');

    sleep 6;
    is($up->(), 0, 'nobody asks: store_up');
    is(scalar(() = $nginx->log =~ /available again/g), 0, '... and it is not over');

    $n[0]->start;
    ok(until_true { $up->() == 1 }, 'it is back: store_up, without a request');
    is(scalar(() = $nginx->log =~ /available again/g), 1, '... the log says so once');
    ok(until_true { my %t; $t{$ask->()}++ for 1 .. 20; ($t{200} // 0) == 20 }, '... all are executed');

    $nginx->stop;
}


# The master answers, and its replica does not: what is to be acknowledged is refused,
# after a while at once, until it is acknowledged again. That is one outage, too, and
# not over as nobody asks.

sub still {
    my ($program) = @_;

    my %p = (program => $program, args => [qw(--appendonly yes --repl-timeout 3600)]);
    my $master = Redis->new(%p);
    my $replica = Redis->new(%p, args => [@{$p{args}}, '--replicaof', '127.0.0.1', $master->port]);

    until_true { ($master->info('slave0') // '') =~ /state=online/ } or die 'no replica';

    my $nginx = nginx(workers => 2, zone => 0, allow => qr/redis "r"|idempotency_redis/,
                      http => 'idempotency_redis r { server 127.0.0.1:' . $master->port . '; timeout 4s; replicas 1; }'
                              . ' idempotency_zone zone=z:4m redis=r;',
                      server => 'location / { idempotency zone=z; proxy_pass http://$TEST_NGINX_BACKEND; }'
                                . ' location /api/ { idempotency_api; }');

    my $id = 0;
    my $ask = sub { my $n = ++$id; $nginx->post("/?id=still-$n", key => "still-$n")->{status} };
    my $up = sub { $nginx->get('/api/metrics')->{body} =~ /^nginx_idempotency_store_up\S* ([01])/m ? $1 : '?' };
    my $lines = sub { my ($what) = @_; scalar(() = $nginx->log =~ /$what/g) };

    ok(until_true { $ask->() == 200 }, 'all is well');
    ok(until_true { $up->() == 1 }, '... store_up');

    $replica->pause;

    ok(until_true { $ask->() == 503 }, 'it stands still: refused');
    my $began = time;
    is(join(' ', uniq map $ask->(), 1 .. 20), '503', '... each');
    cmp_ok(time - $began, '<', 50, '... and soon at once, not after three seconds each');
    is($up->(), 0, '... store_up');
    is($lines->('is unavailable'), 1, '... the log says so once');

    sleep 6;
    is($up->(), 0, 'nobody asks: store_up');
    is($lines->('available again'), 0, '... and it is not over');

    $replica->resume;
    ok(until_true { $up->() == 1 }, 'it goes on: store_up, without a request');
    is($lines->('available again'), 1, '... the log says so once');
    is($lines->('is unavailable'), 1, '... and nothing else');
    ok(until_true { my %t; $t{$ask->()}++ for 1 .. 20; ($t{200} // 0) == 20 }, '... all are executed');

    $nginx->stop;
}


# A key that moves to another master is there when that one has it, whatever its
# replicas have: that is not ours to wait for. (A Valkey moves none then.)

sub moved {
    my ($program) = @_;

    my $cluster = Topology->new('cluster', program => $program);
    my $over = sub {
        return nginx(zone => 0, allow => qr/redis "r"|idempotency_redis/,
                     http => 'idempotency_redis r { ' . $cluster->block . ' replicas 1; }'
                             . ' idempotency_zone zone=z:4m redis=r;',
                     server => 'add_header X-Status $idempotency_status always; location / { idempotency zone=z;'
                               . ' proxy_pass http://$TEST_NGINX_BACKEND; }');
    };
    my $post = sub { my ($n) = @_; told($n->post('/?id=moves', key => 'moves')) };

    my $n = $over->();
    ok(until_true { $post->($n) eq '200 NEW' }, 'executed');

    my @all = $cluster->all;
    my @masters = $cluster->masters;
    my $has = sub { scalar grep /:[\w-]{43}$/, @{$_[0]->command(qw(KEYS *))} };
    my ($from) = grep $has->($all[$_]), @masters;
    my ($to) = grep $_ != $from, @masters;

    $cluster->failover(sub {
        my ($node, $between) = @_;

        $between->now('mute', 'replicas');
        $cluster->carry(@all[$from, $to], 100);
        is($has->($node), 1, 'it moves to another master, which does not tell its replica');
        $cluster->kill($node);
    }, sub {
        my ($node, $between) = @_;

        $between->now('flow', 'replicas');
        $node->start;
    }, $to);

    is($post->($n), '200 REPLAYED', 'that dies: what memory has is known');

    my $other = $over->();

    ok(until_true { $post->($other) eq '200 NEW' }, '... elsewhere it is forgotten');
    is(executions('moves'), 2, '... and executed again, as the table of guarantees says');

    $_->stop for $n, $other;
}
