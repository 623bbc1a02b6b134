#!/usr/bin/perl

# SPEC, "window": wall time after the outcome was recorded, never extended by
# repeats. When it ends, the token is fresh again.

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;

use Time::HiRes qw(time sleep);

my $n = nginx(workers => 2, server => <<'EOC');
    idempotency zone=z;
    idempotency_in_progress reject;
    idempotency_window 1s;
    proxy_http_version 1.1;
    proxy_pass_header Server;

    add_header X-Status $idempotency_status always;
    add_header X-Age $idempotency_age always;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /two { idempotency_window 2s; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /ms { idempotency_window 300ms; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /day { idempotency_window 1d; proxy_pass http://$TEST_NGINX_BACKEND; }
EOC

# How long a thing was seen to hold, and how long it cannot have held: the
# record is made between the request's start and its answer, and is looked at
# between that of the repeat's. The window must lie between both.

sub lives {
    my ($name, $window, $uri, $k) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my $before = time;
    my $first = $n->post("$uri?id=$k", key => $k, body => 'b');
    my $after = time;

    is($first->{status}, 200, "$name: executed");

    my ($alive, $dead, $repeats, $end) = (0, 0, 0, $before + patience());

    while (time < $end) {
        my $asked = time;
        my $r = $n->post("$uri?id=$k", key => $k, body => 'b');

        if (!$r->replayed) {
            $dead = time - $before;
            is($r->{body}, "exec=2 id=$k\n", "$name: then it is fresh");
            last;
        }

        $repeats++;
        $alive = $asked - $after;
        sleep 0.02;
    }

    cmp_ok($alive, '<=', $window + 0.05, "$name: no longer than that");
    cmp_ok($dead, '>=', $window - 0.05, "$name: no shorter");
    is(executions($k), 2, "$name: executed twice in all");

    return $repeats;
}


# Repeats come all the time and do not extend it; a slow machine may have time
# for few of them.

for (['300 ms', 0.3, '/ms', 'ms'], ['1 s', 1, '/x', 'one']) {
    my ($name, $window, $uri, $k) = @$_;
    my $repeats = 0;

    for (my $i = 0; $i < 20 && $repeats <= 2; $i++) {
        $repeats = lives($name, $window, $uri, "$k$i");
    }

    cmp_ok($repeats, '>', 2, "$name: replayed meanwhile");
}

# A body that was refused in the window is fresh after it, and the new record
# has a window of its own.

{
    my ($k, $fresh, @then);
    my $with = sub { $n->post("/ms?id=$k", key => $k, body => $_[0]) };

    for my $i (1 .. 20) {
        $k = "new$i";

        is(within(0.3, sub {
            $k .= 'x';
            $with->('a');
            $with->('b')->{status};
        }), 409, 'another body: a conflict in the window');

        my $from;

        until_true {
            $from = time;
            $fresh = $with->('b');
            $fresh->{status} == 200;
        };

        @then = map { $with->($_) } qw(b a);
        last if time - $from < 0.3;
    }

    is($fresh->{status}, 200, 'another body: fresh after it');
    is($fresh->header('X-Status'), 'NEW', 'another body: new');
    ok($then[0]->replayed, 'another body: replayed from now on');
    is($then[1]->{status}, 409,
       'another body: the first one is the other one now');
    is(executions($k), 2, 'another body: executed once each');
}

# A long window beside short ones, in one zone: each its own. The short one
# that came later ends first, the long one is not swept with it.

{
    my @m = (body => 'b');
    my $start = time;

    $n->post('/two?id=w2', key => 'w2', @m);
    my $recorded = time;
    $n->post('/day?id=w3', key => 'w3', @m);
    $n->post('/x?id=w1', key => 'w1', @m);
    $n->post('/ms?id=w0', key => 'w0', @m);

    for (['/ms', 'w0'], ['/x', 'w1']) {
        my ($uri, $k) = @$_;
        my $r;

        ok(until_true { $r = $n->post("$uri?id=$k", key => $k, @m);
                        !$r->replayed }, "in one zone: $k ends");

        if (time - $recorded < 1.9) {
            ok($n->post('/two?id=w2', key => 'w2', @m)->replayed,
               "in one zone: w2 outlives $k");
        }
    }

    my $r;
    ok(until_true { $r = $n->post('/two?id=w2', key => 'w2', @m);
                    !$r->replayed }, 'in one zone: w2 ends');
    cmp_ok(time - $start, '>=', 1.95, 'in one zone: w2 not before its time');

    $r = $n->post('/day?id=w3', key => 'w3', @m);
    ok($r->replayed, 'in one zone: w3 lives');
    cmp_ok($r->header('X-Age'), '>=', 1, 'and knows its age');
    cmp_ok($r->header('X-Age'), '<=', time - $start + 1,
           'which is not more than it was here');
}

# The window begins when the outcome is recorded: not while it is pending.

my ($again, $executed);

for my $k (map "pend$_", 1 .. 20) {
    my @m = (key => $k, body => 'b');
    my $uri = "/ms?id=$k&gate=1";
    my $c = $n->start(POST => $uri, @m);

    held($k);

    my $until = time + 0.6;
    my $other = 0;

    while (time < $until) {
        $other++ if $n->post($uri, @m)->{status} != 409;
        sleep 0.05;
    }

    is($other, 0, 'pending: longer than its window');

    my $from = time;

    go($k);
    is($c->response->{status}, 200, 'pending: answered');

    # too late for a replay, the upstream holds it
    my $r = $n->start(POST => $uri, @m);
    until_true { $r->readable || executions($k) == 2 };

    $again = $r->readable ? $r->response : undef;
    $executed = executions($k);
    go($k);
    $r->close;
    last if $again || time - $from < 0.3;
}

ok($again && $again->replayed, 'pending: replayed after it');
is($executed, 1, 'pending: executed once');

ok($n->stop, 'nginx stops in good order');

done_testing();
