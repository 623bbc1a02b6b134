#!/usr/bin/perl

# docs/guarantees.md, "What happens if", a worker dies: what it owned is in doubt as
# soon as anybody notices, those who wait elsewhere are told, and with
# idempotency_in_doubt retry the next one takes over. An owner that nobody can
# ask has its lease, and comes too late after that.

use lib 't/lib';
use Idempotency;
use Stress;

use Time::HiRes qw(time);

my $died = qr/exited on signal/;
my $stuck = stuck_port();

sub start_nginx {
    my (%o) = @_;

    return nginx(workers => 2, allow => $died, %o,
                 http => <<'EOC' . crowd(<<"EOC2") . ($o{http} // ''));
    log_format result '$request_uri $status $idempotency_status';
    access_log $TEST_NGINX_ROOT/logs/access.log result;
    idempotency_wait_timeout 10m;
    proxy_read_timeout 10m;

    # who is told within patience() is not told by the end of a lease
    idempotency_lease 10m;
EOC
    idempotency zone=z;

    location / { proxy_pass http://\$TEST_NGINX_BACKEND; }
    location /retry { idempotency_in_doubt retry;
                      proxy_pass http://\$TEST_NGINX_BACKEND; }
    location /reject { idempotency_in_progress reject;
                       proxy_pass http://\$TEST_NGINX_BACKEND; }
    location /never { proxy_connect_timeout 10m;
                      proxy_pass http://127.0.0.1:$stuck; }
    location /never-retry { idempotency_in_doubt retry;
                            proxy_connect_timeout 10m;
                            proxy_pass http://127.0.0.1:$stuck; }
    location /lease { idempotency_lease 1s;
                      proxy_pass http://\$TEST_NGINX_BACKEND; }
    location /lease-retry { idempotency_lease 1s; idempotency_in_doubt retry;
                            proxy_pass http://\$TEST_NGINX_BACKEND; }
EOC2
}


my $n = start_nginx();


sub workers {
    my @pid = until_true { my @w = $n->workers; @w == 2 ? \@w : 0 };

    return @{$pid[0]};
}


sub kill_it {
    my ($signal, $pid) = @_;

    kill $signal => $pid;

    # its successor works
    ok(until_true { my @w = $n->workers; @w == 2 && !grep $_ == $pid, @w },
       "... SIG$signal, and another takes its place");
}


# --- the owner dies ---------------------------------------------------------

for my $signal (qw(KILL SEGV TERM)) {
    for my $at ('/x', '/reject', '/never') {
        my $state = $at eq '/never' ? 'before' : 'after';
        my $name = "SIG$signal $state it was sent, $at";
        my $id = "$signal$at";
        $id =~ s{/}{-}g;

        my ($mine, $other) = workers();
        my $p = parking($n);
        my ($owner, $uri, @o) = owner($n, $id, pid => $mine, at => $at,
                                      stuck => $at eq '/never');
        my @w = $at eq '/reject' ? ()
                : map { ask(connection_to($n, $other), 'POST', $uri, @o) } 1 .. 5;

        ok(parked($p, 1 + @w), "$name: an owner, " . @w . ' wait elsewhere');

        kill_it($signal, $mine);

        is_deeply([ map { told($_) . ' ' . problem($_) } gather(@w) ],
                  [ ('409 IN_DOUBT in_doubt') x @w ],
                  '... those who wait are told');
        ok($owner->closed, '... the client gets nothing');

        for my $pid (workers()) {
            my $r = ask(connection_to($n, $pid), 'POST', $uri, @o)->response;

            is(told($r) . ' ' . problem($r), '409 IN_DOUBT in_doubt',
               '... in doubt for all');
        }

        my $r = $n->post($uri, @o, body => 'another');
        is(told($r), '409 CONFLICT', '... and bound');

        is(go($id), $state eq 'after' ? 1 : 0, '... the backend ends')
            if $state eq 'before';
        is(executions($id), $state eq 'after' ? 1 : 0, '... never again');
        go($id) if $state eq 'after';
        $_->close for @w, $owner;
    }
}


# The next request finds it out as well as one that waits does: no worker has
# had to look for it.

{
    my ($mine, $other) = workers();
    my $c = connection_to($n, $other);
    my ($owner, $uri, @o) = owner($n, 'next', pid => $mine);

    kill KILL => $mine;

    my $r = ask($c, 'POST', $uri, @o)->response;
    is(told($r), '409 IN_DOUBT', 'the next one finds a dead owner');
    go('next');
    ok(until_true { my @w = $n->workers; @w == 2 && !grep $_ == $mine, @w },
       '... before or after it is replaced');
    $_->close for $c, $owner;
}


# --- another takes over -----------------------------------------------------

for my $signal (qw(KILL SEGV TERM)) {
    my $id = "retry-$signal";
    my ($mine, $other) = workers();
    my $p = parking($n);
    my ($owner, $uri, @o) = owner($n, $id, pid => $mine, at => '/retry');
    my @w = map { ask(connection_to($n, $other), 'POST', $uri, @o) } 1 .. 4;

    ok(parked($p, 5), "SIG$signal, retry: an owner, 4 wait elsewhere");
    kill_it($signal, $mine);

    ok(until_true { executions($id) == 2 },
       '... one of them takes over');
    held($id);

    my $p2 = parking($n);
    my $late = $n->start('POST', $uri, @o);
    ok(parked($p2, 1), '... the others wait for that one, and so do new ones');
    is(scalar(grep $_->readable, @w, $late), 0, '... nobody is answered yet');
    go($id);

    my @r = gather(@w, $late);
    is_deeply([ sort map { told($_) } @r ],
              [ '200 NEW', ('200 WAITED') x 4 ], '... all get its outcome');
    is(scalar(grep { $_->{body} =~ /^exec=2 / } @r), 5, '... and no other');
    is(told($n->post($uri, @o)), '200 REPLAYED', '... which stands');
    is(executions($id), 2, '... executed no third time');
    $_->close for @w, $late, $owner;
}

{
    # what cannot connect has not executed, but nobody is left who knows
    my ($mine, $other) = workers();
    my $p = parking($n);
    my ($owner, $uri, @o) = owner($n, 'never-retry', pid => $mine,
                                  at => '/never-retry', stuck => 1);
    ok(parked($p, 1), 'retry, killed before it was sent');
    kill_it(KILL => $mine);
    $p = parking($n);
    my $c = $n->start('POST', $uri, @o);
    ok(parked($p, 1), '... the next one tries again');
    ok(!$c->readable, '... and is not refused');
    $_->close for $c, $owner;
}


# --- one that waits dies ----------------------------------------------------

for my $signal (qw(KILL TERM)) {
    my $id = "waiter-$signal";
    my ($mine, $other) = workers();
    my $p = parking($n);
    my ($owner, $uri, @o) = owner($n, $id, pid => $mine);
    my @die = map { ask(connection_to($n, $other), 'POST', $uri, @o) } 1 .. 3;
    my @stay = map { ask(connection_to($n, $mine), 'POST', $uri, @o) } 1 .. 3;

    ok(parked($p, 7), "SIG$signal: waiting in both workers");
    kill_it($signal, $other);
    is(scalar(grep { $_->closed } @die), 3, '... one dies');

    $p = parking($n);
    my ($new) = grep { $_ != $mine } workers();
    my @more = map { ask(connection_to($n, $new), 'POST', $uri, @o) } 1 .. 3;
    ok(parked($p, 3), '... its successor has waiters of its own');
    is(scalar(grep $_->readable, @stay, @more, $owner), 0,
       '... the others wait on');
    go($id);
    is_deeply([ map { told($_) } gather(@stay, @more) ],
              [ ('200 WAITED') x 6 ], '... and are answered');
    is(told($owner->response), '200 NEW', '... and so is the owner');
    is(executions($id), 1, '... executed once');
    $_->close for @die, @stay, @more, $owner;
}


# --- all of them die --------------------------------------------------------

{
    my @pid = workers();
    my ($owner, $uri, @o) = owner($n, 'all', pid => $pid[0]);
    my ($second, @two) = owner($n, 'all2', pid => $pid[1], at => '/retry');

    kill KILL => @pid;
    ok(until_true {
        my @w = $n->workers;
        @w == 2 && !grep { $_ == $pid[0] || $_ == $pid[1] } @w
    }, 'all workers die');

    is(told($n->post($uri, @o)), '409 IN_DOUBT', '... in doubt');
    go($_) for qw(all all2);
    my $c = $n->start('POST', @two);
    ok(until_true { executions('all2') == 2 }, '... or tried again');
    go('all2');
    is(told($c->response), '200 NEW', '... by one who gets the answer');
    $_->close for $c, $owner, $second;

    # what was recorded before is still there
    is(told($n->post('/x?id=waiter-KILL&gate=1', key => 'waiter-KILL',
                          body => 'b')), '200 REPLAYED',
       '... what was recorded stays');
}


# --- an owner that nobody can ask -------------------------------------------

# Stopped, but not while it writes for its zone to a file: then no other worker
# can, and this one is told so.

sub stop_it {
    my ($pid, $c) = @_;

    my $tries = 0;

    return until_true {
        my $id = "stopped-$pid-" . $tries++;

        kill STOP => $pid;
        ask($c, 'POST', "/x?id=$id", key => $id, body => 'b');
        return 1 if told($c->response) eq '200 NEW';
        kill CONT => $pid;
        return 0;
    };
}


for my $retry ('', '-retry') {
    my $id = "stop$retry";
    my ($mine, $other) = workers();
    my $p = parking($n);
    my $from = time;
    my ($owner, $uri, @o) = owner($n, $id, pid => $mine, at => "/lease$retry");
    my @w = map { ask(connection_to($n, $other), 'POST', $uri, @o) } 1 .. 3;

    my $c = connection_to($n, $other);

    ok(parked($p, 4), "SIGSTOP$retry: an owner, 3 wait elsewhere");
    ok(stop_it($mine, $c), '... it is stopped');

    # its last sign of life may be as old as its claim
    if ($retry eq '') {
        is_deeply([ map { told($_) } gather(@w) ],
                  [ ('409 IN_DOUBT') x 3 ], '... in doubt after its lease');
        cmp_ok(time - $from, '>=', 0.98, '... not before');

    } else {
        ok(until_true { executions($id) == 2 },
           '... one of them takes over after the lease');
        cmp_ok(time - $from, '>=', 0.98, '... not before');
    }

    # The one stopped had execution 1: let it have its answer, too late.
    if ($retry eq '') {
        go($id);
        kill CONT => $mine;
        is(told($owner->response), '200 NEW',
           '... the late owner still gets its answer');

        # what stands behind has heard of the doubt, and somebody else may have taken over
        my $known = Idempotency::in_memory() ? '200 REPLAYED' : '409 IN_DOUBT';

        ok(until_true {
            told($n->post($uri, @o)) eq $known;
        }, '... and where nobody can have taken over, there is no doubt any more');
        is(executions($id), 1, '... executed once');

    } else {
        held($id, 2);
        # ... or the store has not said so: a late one loses one answer of 32
        my $told = qr/claim was taken over|it is not known whether the outcome/;
        my $lines = () = $n->log =~ /$told/g;

        go($id);
        my @r = gather(@w);
        is_deeply([ sort map { told($_) } @r ],
                  [ '200 NEW', ('200 WAITED') x 2 ],
                  '... all get the new outcome');
        kill CONT => $mine;
        my $r = $owner->response;
        is($r->{status} . $r->{body}, "200exec=1 id=$id\n",
           '... the late owner still gets its own answer');
        ok(until_true {
            my $now = () = $n->log =~ /$told/g;
            $now > $lines;
        }, '... but cannot record it');
        $r = $n->post($uri, @o);
        is($r->{body}, "exec=2 id=$id\n", '... what the other recorded stands');
        is(executions($id), 2, '... executed no third time');
    }

    $_->close for @w, $owner;
}

# A living owner has no lease: it may take its time. One that gets no processor
# for so long is taken for dead, which no machine does to it each time.

{
    my $keeps;

    for my $round (1 .. 5) {
        my $id = "slow$round";
        my ($mine, $other) = workers();
        my $p = parking($n);
        my ($owner, $uri, @o) = owner($n, $id, pid => $mine, at => '/lease');
        my $c = ask(connection_to($n, $other), 'POST', $uri, @o);

        parked($p, 2);
        $keeps = !$c->readable(2.5);
        go($id);
        $keeps &&= told($c->response) eq '200 WAITED'
                   && told($owner->response) eq '200 NEW'
                   && executions($id) == 1;
        $_->close for $c, $owner;
        last if $keeps;
    }

    ok($keeps, 'an owner slower than its lease keeps its claim while it lives');
}

$n->stop;


# --- cut off by worker_shutdown_timeout -------------------------------------

for my $retry ('', '/retry') {
    $n = start_nginx(main => "worker_shutdown_timeout 500ms;\n");

    my $id = "shutdown$retry";
    $id =~ s{/}{-};
    my ($mine) = workers();
    my ($owner, $uri, @o) = owner($n, $id, pid => $mine, at => $retry || '/x');

    ok($n->reload, "worker_shutdown_timeout$retry: a reload");

    my $c = $n->start('POST', $uri, @o);

    if ($retry) {
        ok(until_true { executions($id) == 2 }, '... another takes over');
        go($id);
        is(told($c->response), '200 NEW', '... and ends');

    } else {
        is(told($c->response), '409 IN_DOUBT',
           '... what was cut off is in doubt');
        is(executions($id), 1, '... executed once');
        go($id);
    }

    ok(until_true { !kill 0, $mine }, '... the old worker has gone');
    $_->close for $c, $owner;
    $n->stop;
}

done_testing();
