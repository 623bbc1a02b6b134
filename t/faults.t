#!/usr/bin/perl

# States that no request reaches by asking nicely: a worker that dies at the
# worst places, memory that runs out, a wake that is lost. The module is built
# once more for this, with its fault points compiled in.

use lib 't/lib';
use Faults;
use Idempotency;
use Stress;

my $n;

sub start_nginx {
    my (%o) = @_;

    $n = nginx(workers => 2, zone => 0,
               http => <<'EOC' . crowd(<<'EOC2'), %o);
    idempotency_zone zone=z:256k;
    idempotency_zone zone=y:256k;
    idempotency_max_response 128k;
    idempotency_wait_timeout 10m;
    idempotency_lease 10m;
    proxy_read_timeout 10m;
    keepalive_requests 100000;
EOC
    idempotency zone=z;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /retry { idempotency_in_doubt retry;
                      proxy_pass http://$TEST_NGINX_BACKEND; }
    location /reject { idempotency_in_progress reject;
                       proxy_pass http://$TEST_NGINX_BACKEND; }
    location /pass { idempotency_unavailable pass;
                     proxy_pass http://$TEST_NGINX_BACKEND; }
    location /busy { idempotency_lease 300ms; idempotency_in_doubt retry;
                     proxy_pass http://$TEST_NGINX_BACKEND; }
    # an address that is no upstream's name: nginx finds it for each request
    location /address {
        proxy_pass http://0$TEST_NGINX_BACKEND$request_uri; }
    location /y { idempotency zone=y;
                  proxy_pass http://$TEST_NGINX_BACKEND; }
EOC2
}


sub fault { return (headers => ["X-Idempotency-Fault: $_[0]"]) }


# Two workers, none of them one that died.

sub workers {
    my (@died) = @_;

    my $now = until_true {
        my @w = $n->workers;
        my %w = map { $_ => 1 } @w;
        @w == 2 && !grep($w{$_}, @died) ? \@w : 0;
    };

    return @{$now || die 'no two workers'};
}


# --- dies as it has claimed -------------------------------------------------

start_nginx(allow => qr/exited on signal 9/);

{
    my ($mine, $other) = workers();
    my @o = (key => 'claimed', body => 'b');
    my $uri = '/x?id=claimed';
    my $c = ask(connection_to($n, $mine), 'POST', $uri, @o, fault('die-claimed'));

    ok($c->closed, 'a worker dies as it has claimed');
    workers($mine);

    is(told(ask(connection_to($n, $_), 'POST', $uri, @o)->response),
       '409 IN_DOUBT', '... in doubt') for workers();
    is(executions('claimed'), 0, '... though it was not sent');

    ($mine) = workers();
    $uri = '/retry?id=again';
    @o = (key => 'again', body => 'b');
    $c = ask(connection_to($n, $mine), 'POST', $uri, @o, fault('die-claimed'));
    ok($c->closed, 'the same, with retry');
    is(told($n->post($uri, @o)), '200 NEW', '... the next one takes over');
    is(told($n->post($uri, @o)), '200 REPLAYED', '... and is recorded');
    is(executions('again'), 1, '... executed once');
    workers($mine);
}


# --- busy for longer than its lease -----------------------------------------

# Its event loop does not come round, so it gives no sign of life: it is there
# all the same.

{
    my ($mine, $other) = workers();
    my @w = map { connection_to($n, $other) } 1 .. 3;
    my @o = (key => 'busy', body => 'b');
    my $uri = '/busy?id=busy';
    my $owner = ask(connection_to($n, $mine), 'POST', $uri, @o, fault('busy'));

    # it is busy as soon as it has claimed
    ok($n->wait_log(qr/busy for a while/), 'an owner is busy');
    ask($_, 'POST', $uri, @o) for @w;

    is_deeply([ map { told($_) } gather(@w) ], [ ('200 WAITED') x 3 ],
              '... nobody takes its claim over');
    is(told($owner->response), '200 NEW', '... and it ends as any');
    is(executions('busy'), 1, '... executed once');
    $_->close for @w, $owner;
}


# --- dies as it would record ------------------------------------------------

# A small response, and one that is stored in several steps.

for my $size (100, 100000) {
    my ($mine, $other) = workers();
    my $id = "recording$size";
    my $uri = "/x?id=$id&gate=1&size=$size";
    my @o = (key => $id, body => 'b');
    my $p = parking($n);
    my $owner = ask(connection_to($n, $mine), 'POST', $uri, @o,
                    fault('die-recording'));

    held($id);
    my @w = map { ask(connection_to($n, $other), 'POST', $uri, @o) } 1 .. 4;
    ok(parked($p, 5), "$size bytes: an owner, and 4 wait elsewhere");
    go($id);

    is_deeply([ map { told($_) } gather(@w) ],
              [ ('409 IN_DOUBT') x 4 ],
              '... its worker dies as it would record: they are told');
    is(executions($id), 1, '... executed once');
    workers($mine);
    is(told($n->post($uri, @o)), '409 IN_DOUBT', '... in doubt it is');
    $_->close for @w, $owner;

    ($mine, $other) = workers();
    $id = "retry$size";
    $uri = "/retry?id=$id&gate=1&size=$size";
    @o = (key => $id, body => 'b');
    $p = parking($n);
    $owner = ask(connection_to($n, $mine), 'POST', $uri, @o,
                 fault('die-recording'));
    held($id);
    @w = map { ask(connection_to($n, $other), 'POST', $uri, @o) } 1 .. 4;
    ok(parked($p, 5), '... with retry');
    go($id);
    ok(until_true { executions($id) == 2 }, '... one of them takes over');
    held($id);
    go($id);
    is_deeply([ sort map { told($_) } gather(@w) ],
              [ '200 NEW', ('200 WAITED') x 3 ], '... and all get its outcome');
    is($n->post($uri, @o)->{body}, pattern($size, 2), '... which is recorded');
    is(executions($id), 2, '... executed no third time');
    workers($mine);
    $_->close for @w, $owner;
}


# --- no memory for the response ---------------------------------------------

{
    my @o = (key => 'memory', body => 'b');
    my $uri = '/x?id=memory&size=3000';
    my $first = $n->post($uri, @o, fault('no-memory'));

    is(told($first), '200 NEW', 'no memory for a response');
    is($first->{body}, pattern(3000, 1), '... the client gets it');
    ok($n->wait_log(qr/\[error\].*idempotency: zone "z" is full, a response of/),
       '... it is logged');

    for (1, 2) {
        my $r = $n->post($uri, @o);

        is(told($r) . ' ' . problem($r), '409 NOT_KEPT not_kept',
           '... but it is not kept');
    }

    is(executions('memory'), 1, '... executed once');

    # an error in doubt that cannot be kept is still in doubt
    @o = (key => 'doubt', body => 'b');
    $uri = '/x?id=doubt&close=1';
    is(told($n->post($uri, @o, fault('no-memory'))), '502 NEW',
       'no memory for an error in doubt');
    is(told($n->post($uri, @o)), '409 IN_DOUBT', '... in doubt it is');
    is(executions('doubt'), 1, '... executed once');

    # those who wait
    @o = (key => 'mwait', body => 'b');
    $uri = '/x?id=mwait&gate=1';
    my $p = parking($n);
    my $owner = $n->start('POST', $uri, @o, fault('no-memory'));
    held('mwait');
    my @w = map { $n->start('POST', $uri, @o) } 1 .. 4;
    ok(parked($p, 5), 'no memory while others wait');
    go('mwait');
    is_deeply([ map { told($_) } gather(@w) ],
              [ ('409 NOT_KEPT') x 4 ], '... they are told');
    is(told($owner->response), '200 NEW', '... the owner gets its answer');
    $_->close for @w, $owner;
}


# --- no memory for a copy of the upstream's settings ------------------------

# By then its content handler has run, which holds the request.

{
    my @o = (key => 'pool', body => 'b');
    my $uri = '/x?id=pool';

    is(told($n->post($uri, @o, fault('no-pool'))), '200 NEW',
       'no memory to go on without a client: an owner goes on with it');
    is(told($n->post($uri, @o)), '200 REPLAYED', '... and is recorded');

    # what could be sent twice is ended
    @o = (key => 'once', body => 'b');
    $uri = '/address?id=once';

    my $c = $n->connect;

    is(told(ask($c, 'POST', $uri, @o, fault('no-pool'))->response),
       '500 NEW', 'no memory to make sure that it is sent once: it is not');
    ok($c->closed, '... its connection is closed, as after any 500');
    is(told($n->post($uri, @o)), '200 NEW', '... and its token is fresh');
    is(executions($_), 1, '... executed once') for qw(pool once);

    # nothing holds the workers
    my @w = $n->workers;
    ok($n->reload, '... a reload');
    ok(until_true { !grep kill(0, $_), @w }, '... the old workers end');
}


# --- a wake is lost ---------------------------------------------------------

{
    my @o = (key => 'wake', body => 'b');
    my $uri = '/x?id=wake&gate=1';
    my $p = parking($n);
    my $owner = $n->start('POST', $uri, @o, fault('drop-wake'));
    held('wake');
    my @w = map { ask(connection_to($n, $_), 'POST', $uri, @o) }
            map { ($_) x 4 } workers();
    ok(parked($p, 9), 'waiting for a wake that is lost');
    go('wake');
    is(told($owner->response), '200 NEW', '... the owner gets its answer');
    is_deeply([ map { told($_) } gather(@w) ],
              [ ('200 WAITED') x 8 ], '... the others look again by themselves');
    is(executions('wake'), 1, '... executed once');
    $_->close for @w, $owner;
}

$n->stop;


# --- dies inside the lock ---------------------------------------------------

my $torn = qr/idempotency zone "z" was left inconsistent by process/;
my $anew = qr/idempotency zone "z" was recreated/;

sub alerts { my $re = shift; my $n = () = $n->log =~ /\[alert\].*$re/g; return $n }

sub capacity {
    my ($prefix) = @_;

    my $c = $n->connect;

    for (my $i = 0; $i < 5000; $i++) {
        my $r = ask($c, 'POST', "/fill?id=$prefix", key => "$prefix$i",
                    body => 'b')->response;

        return $i if $r->{status} != 200;
    }

    return 5000;
}

start_nginx();
my $room = capacity('fresh');
cmp_ok($room, '>', 10, "a fresh zone takes $room tokens");
$n->stop;

start_nginx(allow => qr{exited on signal 9|zone "z" was locked by|$torn|$anew});

{
    is(told($n->post('/x?id=old', key => 'old', body => 'b')), '200 NEW',
       'a token that is known');
    is(told($n->post('/y?id=y', key => 'y', body => 'b')), '200 NEW',
       '... and one of another zone');

    my ($mine, $other) = workers();
    my $p = parking($n);
    my @held = (key => 'held', body => 'b');
    my $held = ask(connection_to($n, $other), 'POST', '/x?id=held&gate=1', @held);
    held('held');
    my $w = ask(connection_to($n, $other), 'POST', '/x?id=held&gate=1', @held);
    ok(parked($p, 2), '... and one that another waits for');

    my $c = ask(connection_to($n, $mine), 'POST', '/x?id=torn', key => 'torn',
                body => 'b', fault('die-locked'));
    ok($c->closed, 'a worker dies inside the lock');
    my @now = workers($mine);

    for my $pid (@now) {
        for (['/x?id=old', 'old'], ['/x?id=torn', 'torn'], ['/x?id=new', 'new'],
             ['/retry?id=torn', 'torn'], ['/reject?id=old', 'old'])
        {
            my ($uri, $key) = @$_;
            my $r = ask(connection_to($n, $pid), 'POST', $uri, key => $key,
                        body => 'b')->response;

            is(told($r), '503 UNAVAILABLE', "... $uri is refused");
            like($r->header('Retry-After') // '', qr/^(?:[5-9]|1[0-5])$/,
                 '... when to come back');
        }
    }

    is(told($w->response), '503 UNAVAILABLE',
       '... and so is the one that waits');
    is(alerts($torn), 1, '... one alert says why');
    like($n->log, qr/$torn $mine\b/, '... and who died');
    is(executions($_), 0, "... $_ is not executed") for qw(torn new);
    is(executions('old'), 1, '... nor what is known, a second time');

    is(told($n->post('/pass?id=pass', key => 'pass', body => 'b')),
       '200 UNAVAILABLE', '... idempotency_unavailable pass passes');
    is($n->get('/x?id=get')->{status}, 200, '... a GET is not concerned');
    is(told($n->post('/y?id=y', key => 'y', body => 'b')),
       '200 REPLAYED', '... nor the other zone');

    # a worker that merely restarts does not decide it
    kill TERM => $now[0] == $other ? $now[1] : $now[0];
    workers($mine, $now[0] == $other ? $now[1] : $now[0]);
    is(told($n->post('/x?id=old', key => 'old', body => 'b')),
       '503 UNAVAILABLE', '... another worker comes: refused all the same');

    ok($n->reload, 'a reload');
    is(alerts($anew), 1, '... makes it anew, which one alert says');
    my $what = in_memory() ? 'its tokens are lost' : 'its store has its tokens';
    like($n->log, qr/$anew: $what/, "... $what");
    is(alerts($torn), 1, '... and no other');

    for my $pid (workers()) {
        my $r = ask(connection_to($n, $pid), 'POST', "/x?id=after$pid",
                    key => "after$pid", body => 'b')->response;
        is(told($r), '200 NEW', '... it takes tokens');
        is(told($n->post("/x?id=after$pid", key => "after$pid",
                              body => 'b')), '200 REPLAYED', '... and knows them');
    }

    # The owner from before, in an old worker, has lost its claim: the token is
    # as fresh as all. What is behind the zone still knows that it was claimed.
    $p = parking($n);
    my $second = $n->start('POST', '/x?id=held&gate=1', @held);

    if (in_memory()) {
        held('held', 2);
        go('held');
        is(told($held->response), '200 NEW',
           '... an owner from before gets its answer');
        is($second->response->{body}, "exec=2 id=held\n", '... as does the new one');
        is($n->post('/x?id=held&gate=1', @held)->{body}, "exec=2 id=held\n",
           '... whose record stands');
        is(executions('held'), 2, '... executed no third time');

    } else {
        is(told($second->response), '409 IN_DOUBT', '... what was pending is in doubt');
        is(told($n->post('/x?id=old', key => 'old', body => 'b')), '200 REPLAYED',
           '... what was known is known');
        go('held');
        is(told($held->response), '200 NEW',
           '... an owner from before gets its answer');
        is(told($n->post('/x?id=held&gate=1', @held)), '409 IN_DOUBT',
           '... which is not recorded');
        is(executions('held'), 1, '... executed once');
    }

    is(told($n->post('/y?id=y', key => 'y', body => 'b')),
       '200 REPLAYED', '... the other zone knows what it knew');
    $_->close for $c, $held, $w, $second;
}

# Again and again, and it is as good as new.

for my $round (1 .. 3) {
    my ($mine) = workers();
    my $c = ask(connection_to($n, $mine), 'POST', "/x?id=r$round",
                key => "r$round", body => 'b', fault('die-locked'));
    ok($c->closed, "round $round: a worker dies inside the lock");
    workers($mine);
    is(told($n->post("/x?id=r$round", key => "r$round", body => 'b')),
       '503 UNAVAILABLE', '... refused');
    ok($n->reload, '... a reload');
    is(told($n->post("/x?id=r$round", key => "r$round", body => 'b')),
       '200 NEW', '... and it works again');
    $c->close;
}

{
    my ($mine) = workers();
    my $c = ask(connection_to($n, $mine), 'POST', '/x?id=last', key => 'last',
                body => 'b', fault('die-locked'));
    ok($c->closed, 'once more');
    workers($mine);
    ok($n->reload, '... a reload, before anybody has asked');
    is(capacity('again'), $room, '... the zone takes as many as a fresh one')
        if in_memory();
}

$n->stop;

done_testing();
