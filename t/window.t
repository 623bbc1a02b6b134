#!/usr/bin/perl

# docs/directives.md, "idempotency_window" and "idempotency_content_window": so
# long after the outcome was recorded, never extended by repeats. When it ends,
# the token is fresh again, unless its key tells that it is too old by then
# (idempotency_key_max_age), and its place is free (idempotency_quota).

use lib 't/lib';
use Idempotency;

use Time::HiRes qw(time sleep);

my $count = 0;

my $n = nginx(workers => 2, http => <<'EOC1', server => <<'EOC');
    map $http_x_tenant $by_tenant { bank 30d; shop 1h; default ""; }
EOC1
    idempotency zone=z;
    idempotency_in_progress reject;
    add_header X-Status $idempotency_status always;
    add_header X-Age $idempotency_age always;
    add_header X-Expires $idempotency_expires always;
    idempotency_key_max_age 1h;

    location /ms { idempotency_window 300ms; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /1s { idempotency_window 1s; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /2s { idempotency_window 2s; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /day { idempotency_window 1d; proxy_pass http://$TEST_NGINX_BACKEND; }

    location /uuid7 { idempotency_window 300ms; idempotency_key_format uuid7;
                      proxy_pass http://$TEST_NGINX_BACKEND; }
    location /quota { idempotency_window 2s; idempotency_quota 3 $arg_whose;
                      proxy_pass http://$TEST_NGINX_BACKEND; }

    location /clicks { idempotency_missing_key content; idempotency_in_progress wait;
                       proxy_pass http://$TEST_NGINX_BACKEND; }
    location /content { idempotency_missing_key content; idempotency_content_window 300ms;
                        proxy_pass http://$TEST_NGINX_BACKEND;

        location /content/1d { idempotency_content_window 1d; idempotency_window 300ms;
                               proxy_pass http://$TEST_NGINX_BACKEND; }
    }

    location /told { idempotency_window $http_x_window; proxy_pass http://$TEST_NGINX_BACKEND;

        location /told/below { proxy_pass http://$TEST_NGINX_BACKEND; }
        location /told/constant { idempotency_window 2s; proxy_pass http://$TEST_NGINX_BACKEND; }
        location /told/mapped { idempotency_window $by_tenant; proxy_pass http://$TEST_NGINX_BACKEND; }
        location /told/units { idempotency_window "${arg_h}h"; proxy_pass http://$TEST_NGINX_BACKEND; }
        location /told/uuid7 { idempotency_key_format uuid7; idempotency_key_max_age 10m;
                               proxy_pass http://$TEST_NGINX_BACKEND; }
    }

    location /warn { idempotency_similar warn; idempotency_content_window 1s;
                     proxy_pass http://$TEST_NGINX_BACKEND; }
    location /reject { idempotency_similar reject; idempotency_content_window 1s;
                       proxy_pass http://$TEST_NGINX_BACKEND; }
    location /brief { idempotency_similar reject; idempotency_window 300ms;
                      proxy_pass http://$TEST_NGINX_BACKEND; }
EOC

sub post {
    my ($at, $id, $body, $key) = @_;

    $key //= $at eq '/content' ? '' : $id;

    return $n->post("$at?id=$id", key => $key, body => $body // 'b');
}


# How long a thing was seen to hold, and how long it cannot have held: the
# record is made between the request's start and its answer, and is looked at
# between that of the repeat's. The window must lie between both. Repeats come
# all the time and do not extend it; a slow machine may have time for few.

for (['ms', 0.3], ['1s', 1], ['content', 0.3]) {
    my ($at, $window) = @$_;
    my $repeats = 0;

    for (my $key = $at; length $key < 20 && $repeats <= 2; $key .= 'x') {
        my ($before, $r, $after) = (time, post("/$at", $key), time);
        my ($alive, $dead) = (0);

        is($r->{body}, "exec=1 id=$key\n", "$at: executed");

        for ($repeats = 0; ; $repeats++) {
            my $asked = time;

            $r = post("/$at", $key);
            $dead = time - $before;
            last if !$r->replayed || $dead > patience();
            $alive = $asked - $after;
            sleep 0.02;
        }

        is($r->{body}, "exec=2 id=$key\n", '... then it is fresh');
        cmp_ok($alive, '<=', $window + 0.05, '... no longer than that');
        cmp_ok($dead, '>=', $window - 0.05, '... no shorter');
        is(executions($key), 2, '... executed twice in all');
    }

    cmp_ok($repeats, '>', 2, '... and replayed meanwhile');
}


# A body that was refused in the window is fresh after it, and the new record
# has a window of its own.

{
    my ($key, $refused, $from, $fresh, @then) = 'body';

    for (1 .. 20) {
        $refused = within(0.3, sub {
            $key .= 'x';
            post('/ms', $key, 'a');
            post('/ms', $key, 'b');
        });

        until_true { $from = time; ($fresh = post('/ms', $key, 'b'))->{status} == 200 };

        @then = map { post('/ms', $key, $_) } 'b', 'a';
        last if time - $from < 0.3;
    }

    is(told($refused, $fresh, @then), '409 CONFLICT, 200 NEW, 200 REPLAYED, 409 CONFLICT',
       'another body: a conflict in the window, new after it, and the first one is the other one now');
    is(executions($key), 2, '... executed once each');
}


# A long window beside short ones, in one zone: each its own. The short one
# that came later ends first, the long one is not swept with it.

{
    my $start = time;
    my $r;

    post($_, "zone$_") for '/2s', '/day', '/1s', '/ms';

    for my $at ('/ms', '/1s', '/2s') {
        ok(until_true { !post($at, "zone$at")->replayed }, "in one zone: that of $at ends");
        $r = post('/2s', 'zone/2s');
        ok($r->replayed, '... that of /2s does not') if time - $start < 2;
    }

    cmp_ok(time - $start, '>=', 1.95, '... before its time');

    $r = post('/day', 'zone/day');
    ok($r->replayed, '... that of /day lives');
    ok($r->header('X-Age') >= 1 && $r->header('X-Age') <= time - $start + 1, '... and knows its age');
}


# The window begins when the outcome is recorded: not while it is pending.

{
    my ($key, $again, $executed);

    for (1 .. 20) {
        $key = "pending$_";

        my @m = (POST => "/ms?id=$key&gate=1", key => $key, body => 'b');
        my $owner = $n->start(@m);

        held($key);

        my @r = map { sleep 0.1; $n->request(@m)->{status} } 1 .. 6;
        is("@r", join(' ', (409) x 6), 'pending: longer than its window');

        my $from = time;

        go($key);
        is($owner->response->{status}, 200, '... answered');

        # too late for a replay, the upstream holds it
        my $c = $n->start(@m);
        until_true { $c->readable || executions($key) == 2 };

        $again = $c->readable ? $c->response : undef;
        $executed = executions($key);
        go($key);
        $c->close;
        last if $again || time - $from < 0.3;
    }

    ok($again && $again->replayed, '... replayed after it');
    is($executed, 1, '... executed once');
}


# A key and the content have each a window of their own.

{
    for my $at ('/content', '/content/1d') {
        my ($ends, $lives) = $at =~ /1d/ ? ("key$at", '') : ('', "key$at");

        is(post($at, 'two', 'b', $_)->header('X-Status'), 'NEW',
           "$at, " . ($_ || 'content')) for $ends, $lives;
        ok(until_true { !post($at, 'two', 'b', $ends)->replayed },
           '... one ends');
        ok(post($at, 'two', 'b', $lives)->replayed, '... the other one does not');
    }
}


# Who clicks again before the first click has ended waits for its redirect.

{
    my @m = (POST => '/clicks?id=c&gate=1&status=303&h=Location:%20/c', body => 'b');
    my @click = $n->start(@m);

    held('c');
    push @click, map { $n->start(@m) } 1 .. 5;
    go('c');

    is(join(' ', map { my $r = $_->response;
                       $r->header('X-Status') =~ s/REPLAYED/WAITED/r
                       . $r->header('Location') } @click),
       join(' ', 'NEW/c', ('WAITED/c') x 5), 'clicks: the first one is all');
    is(executions('c'), 1, '... executed once');
}


# What was just seen with another key, by the same measure.

for my $policy (qw(warn reject)) {
    my $similar = $policy eq 'warn' ? '200 SIMILAR' : '409 SIMILAR';
    my ($i, $alive, $dead, $last, $from) = (0, 0);

    # what is marked is bound; what is refused may be asked again
    my $ask = sub {
        my ($key) = @_;
        my $r = post("/$policy", $policy, 'b', "$policy-"
                     . ($key // ($policy eq 'warn' ? $i++ : 'r')));
        return "$r->{status} " . $r->header('X-Status');
    };

    my $before = time;
    is($ask->('first'), '200 NEW', "$policy: seen");
    my $after = time;

    while (1) {
        $from = time;
        $last = $ask->();
        $dead = time - $before;
        last if $last ne $similar || $dead > patience();
        $alive = $from - $after;
        sleep 0.02;
    }

    is($last, '200 NEW', '... then it is new, also for a key that was refused');
    cmp_ok($alive, '<=', 1.05, '... no longer than its second');
    cmp_ok($dead, '>=', 0.95, '... no shorter');
    is($ask->('first'), '200 REPLAYED', '... the first key is bound as before');

    for (1 .. 20) {
        $last = $ask->("again$_");
        last if time - $from < 1;
        until_true { $from = time; $ask->("new$_" . $i++) eq '200 NEW' };
    }

    is($last, $similar, '... and others are similar to that');
}


# A token may end before: that key is fresh, and its content its own.

post('/brief', 'brief');
my $r;
ok(until_true { !($r = post('/brief', 'brief'))->replayed }, 'a brief key ends');
is($r->{body}, "exec=2 id=brief\n", '... and is not similar to itself');
is(post('/brief', 'brief', 'b', 'other')->{status}, 409, '... as another one is');


# A key that tells its time: bound beyond its window, until it is too old; and
# then it is too old, never fresh.

{
    my $key = Idempotency::uuid7(0);

    is(post('/uuid7', $key)->{status}, 200, 'a uuid7: executed');
    sleep 0.6;

    my $r = post('/uuid7', $key);
    ok($r->replayed, '... bound beyond its window');
    like($r->header('X-Expires'), qr/^(?:3[0-5]\d\d|3600)$/, '... for its age');

    my ($made, $first);

    for (1 .. 20) {
        ($made, $key) = (time - 3598.5, Idempotency::uuid7(3598.5));
        $first = post('/uuid7', $key);
        last if $first->{status} != 409;
    }

    ok(until_true { $r = post('/uuid7', $key); !$r->replayed },
       '... up to its age');
    cmp_ok(time - $made, '>=', 3599.8, '... not before that');
    is("$first->{status} $r->{status} " . $r->header('X-Status'),
       '200 409 EXPIRED', '... and then too old, never fresh');
    is(executions($key), 1, '... executed once');

    # its record ends by another clock, and may have a few milliseconds before
    is(post('/uuid7', Idempotency::uuid7(3599.93))->header('X-Status'),
       'EXPIRED', '... too old a moment before its record can have ended');
}


# A request may tell its window.

{
    my $of = sub {
        my ($at, @h) = @_;
        return $n->post($at, key => 'told' . ++$count, headers => \@h)->header('X-Expires');
    };
    my $day = 86400;
    my %is = ('1s' => 1, '300ms' => 1, '1ms' => 1, '1001ms' => 2, 7 => 8, 60 => 60, 61 => 90, '59m' => 3600,
              '1h' => 3600, '1h 1s' => 5400, '24h' => $day, '1d1s' => 2 * $day, '7d' => 7 * $day,
              '30d' => 30 * $day, '1M' => $day, '399d' => 400 * $day, '400d' => 400 * $day,
              '' => $day, 0 => $day, '0s' => $day, '400d1s' => $day, '401d' => $day, '1y2y' => $day,
              x => $day, '-1' => $day, '1x' => $day, '1s%' => $day, '9' x 30 => $day);

    is($of->('/told', "X-Window: $_"), $is{$_}, "a window of \"$_\"") for sort keys %is;

    is($of->('/told'), $day, '... of nothing');
    is($of->('/told/below', 'X-Window: 1h'), 3600, '... inherited');
    is($of->('/told/constant', 'X-Window: 1h'), 2, '... or not');
    is($of->('/told/mapped', "X-Tenant: $_->[0]"), $_->[1], "... of tenant \"$_->[0]\"")
        for ['bank', 30 * $day], ['shop', 3600], ['', $day];
    is($of->('/told/units?h=2'), 7200, '... with a unit');
    is($of->('/told/units'), $day, '... which alone is nothing');

    my @lines = $n->log =~ /\[error\] (\d+#).* invalid window "([^"]*)", the default is used/g;
    my %lines;

    while (my ($pid, $value) = splice @lines, 0, 2) { $lines{$value}{$pid}++ }

    is(join(' ', sort keys %lines), join(' ', sort grep { length && $is{$_} == $day && !/^(?:24h)$/ } keys %is),
       'each that is none is logged');

    $of->('/told', 'X-Window: again') for 1 .. 9;
    my %again;
    $again{$_}++ for $n->log =~ /(\d+#).* invalid window "again"/g;
    is(join(' ', values %again), join(' ', (1) x keys %again), '... once in a worker');

    $of->('/told', "X-Window: none$_") for 1 .. 300;
    my $most = () = $n->log =~ /invalid window/g;
    cmp_ok($most, '<=', 2 * 64, '... and no flood of them is');
}

# ... but not its zone's queues.

{
    my %seen;
    my $below = 0;

    for my $s (map { int exp($_ / 400 * log 34560000) } 0 .. 400) {
        my $r = $n->post('/told', key => 'told' . ++$count, headers => [ "X-Window: $s" ]);
        $seen{$r->header('X-Expires')} = 1;
        $below += $r->header('X-Expires') < $s || $r->header('X-Expires') > 2 * $s;
    }

    is(scalar(keys %seen), 64, 'there are 64 windows');
    is($below, 0, '... none shorter than what was told, or more than twice as long');
}

# It is the first one's, and what it says is what is done.

{
    my $told = sub { $n->post('/told', key => 'first', headers => [ "X-Window: $_[0]" ], body => 'b') };

    is($told->('1s')->header('X-Status'), 'NEW', 'a second');
    ok(until_true { $told->('1d')->header('X-Status') eq 'NEW' }, '... then it is fresh');
    is($told->('1s')->header('X-Status'), 'REPLAYED', 'a day');
    sleep 1.2;
    is($told->('1s')->header('X-Status'), 'REPLAYED', '... which no repeat makes shorter');
}

# A key that tells its time lives until it is too old, whatever the window.

{
    my $r = $n->post('/told/uuid7', key => Idempotency::uuid7(0), headers => [ 'X-Window: 1s' ]);

    cmp_ok($r->header('X-Expires'), '>', 590, 'uuid7: as long as its key is young');
    is($n->post('/told/uuid7', key => Idempotency::uuid7(700), headers => [ 'X-Window: 1h' ])
         ->header('X-Status'), 'EXPIRED', '... and no longer, whatever the window');
}


# A place comes back with its window, when Retry-After says so.

{
    my ($whose, $r, $begun) = 'a';
    my $one = sub {
        return $n->post("/quota?whose=$whose", key => $whose . $_[0], body => 'b');
    };

    for (1 .. 20) {
        $begun = time;
        $whose .= 'a';
        $one->($_) for 1 .. 3;
        $r = $one->(4);

        # on a busy machine the first one may have ended by now
        last if time - $begun < 1.9;
    }

    is($r->header('X-Status'), 'LIMITED', 'a quota: all taken');
    like($r->header('Retry-After'), qr/^[12]$/, '... for a moment');
    sleep $r->header('Retry-After');
    is($one->(4)->header('X-Status'), 'NEW', '... and Retry-After is right');
}

$n->stop;
done_testing();
