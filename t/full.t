#!/usr/bin/perl

# A zone that is full: nothing is executed whose outcome could not be kept,
# nothing kept is lost, and what has expired makes room by itself.

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;
use Stress;

use Time::HiRes qw(time sleep);

my $n;

sub start_nginx {
    my ($zone, $server, %o) = @_;

    $n = nginx(zone => 0, http => <<"EOC" . crowd(<<"EOC2"), %o);
    idempotency_zone $zone;
    idempotency_max_response 16k;
    keepalive_requests 100000;
EOC
    idempotency zone=z;
    $server
    location / { proxy_pass http://\$TEST_NGINX_BACKEND; }
    location /pass { idempotency_unavailable pass;
                     proxy_pass http://\$TEST_NGINX_BACKEND; }
    location /code { idempotency_status unavailable=429;
                     proxy_pass http://\$TEST_NGINX_BACKEND; }
    location /dry { idempotency_dry_run on;
                    proxy_pass http://\$TEST_NGINX_BACKEND; }
EOC2
}


# One connection for all: there are many.

my $c;

sub one {
    my ($key, $uri, %o) = @_;

    $c = $n->connect if !$c || $c->{eof};

    return ask($c, 'POST', $uri, key => $key, body => 'b', %o)->response;
}


# Takes new tokens until one is refused; how many were taken, and the refusal.

sub fill {
    my ($prefix, $uri) = @_;

    for (my $i = 0; $i < 20000; $i++) {
        my $r = one("$prefix$i", $uri);

        return ($i, $r) if status_of($r) ne '200 NEW';
    }

    return (20000, undef);
}


# --- what a full zone says and does -----------------------------------------

{
    start_nginx('zone=z:256k', '');

    my $uri = '/x?id=full&size=3000';
    my ($taken, $r) = fill('full', $uri);

    cmp_ok($taken, '>', 20, 'a zone of 256k takes some');
    is(status_of($r), '503 UNAVAILABLE', '... and refuses one more');
    is(problem($r), 'unavailable', '... its problem');

    # a crowd is told so many times that it does not come back at once
    my %after = map { (one('more', $uri)->header('Retry-After') => 1) } 1 .. 60;
    is(join(' ', grep { !/^(?:[5-9]|1[0-5])$/ } keys %after), '',
       '... when to come back: in 5 to 15 seconds');
    cmp_ok(keys %after, '>', 3, '... not all at once');
    is(executions('full'), $taken, '... nothing was executed that was not taken');
    like($n->log, qr/\[error\].*idempotency: refused with status 503, unavailable/,
         '... it is logged');

    for my $i (0 .. $taken - 1) {
        my $r = one("full$i", $uri);
        my $exec = $i + 1;

        next if status_of($r) eq '200 REPLAYED'
                && $r->{body} eq pattern(3000, $exec);

        fail("... number $i is replayed");
        diag(status_of($r));
        last;
    }

    is(executions('full'), $taken, '... what it knows is replayed, all of it');
    is(status_of(one('full0', $uri, body => 'other')), '409 CONFLICT',
       '... and bound');

    is(status_of(one('more', '/code?id=full&size=3000')), '429 UNAVAILABLE',
       'idempotency_status unavailable');
    is(status_of(one('more', '/dry?id=dry')), '200 UNAVAILABLE_DRY_RUN',
       'a dry run passes');
    is(executions('dry'), 1, '... executed');

    my $seen = length $n->log;
    is(status_of(one('passes', '/pass?id=passes')), '200 UNAVAILABLE',
       'idempotency_unavailable pass');
    is(status_of(one('passes', '/pass?id=passes')), '200 UNAVAILABLE',
       '... passes unprotected');
    is(executions('passes'), 2, '... each time');
    like(substr($n->log, $seen),
         qr/\[error\].*idempotency: passed unprotected.*zone: "z"/,
         '... and it is logged');

    # what needs no memory still works
    is($n->get('/x?id=get')->{status}, 200, 'a GET is not concerned');
    is($n->post('/x?id=nokey')->{status}, 200, '... nor what has no key');

    $n->stop;
    undef $c;
}


# A pending one keeps its place: what was let in can be recorded.

{
    start_nginx('zone=z:256k', '');

    my $own = $n->start('POST', '/x?id=held&size=15000&gate=1', key => 'held',
                        body => 'b');
    held('held');

    my ($taken) = fill('hold', '/x?id=hold&size=15000');
    cmp_ok($taken, '>', 3, 'full while one is pending');
    go('held');
    is(status_of($own->response), '200 NEW', '... which ends');

    my $r = one('held', '/x?id=held&size=15000&gate=1');
    is(status_of($r), '200 REPLAYED', '... and is recorded');
    ok($r->{body} eq pattern(15000, 1), '... all of it');
    $own->close;
    $n->stop;
    undef $c;
}


# --- evict=responses --------------------------------------------------------

{
    start_nginx('zone=z:256k evict=responses', '');

    my $uri = '/x?id=evict&size=3000';
    my $count = 150;
    my @new = grep { status_of(one("evict$_", $uri)) eq '200 NEW' } 1 .. $count;

    is(scalar @new, $count, 'evict=responses: more than there is room for');

    my @r = map { one("evict$_", $uri) } 1 .. $count;
    my @is = map { status_of($_) } @r;
    my $kept = grep { $_ eq '200 REPLAYED' } @is;

    cmp_ok($kept, '>', 10, '... some are replayed');
    is_deeply(\@is, [ ('409 NOT_KEPT') x ($count - $kept),
                      ('200 REPLAYED') x $kept ],
              '... the oldest are not kept') or diag("@is");
    is(problem($r[0]), 'not_kept', '... they say so');
    like($r[0]{body}, qr/\b200\b/, '... and name the status');
    is(executions('evict'), $count, '... but all stay bound');
    is(status_of(one('evict1', $uri, body => 'other')), '409 CONFLICT',
       '... to what they are');

    # tokens go on being taken, up to where not even they have room
    my ($taken, $r) = fill('small', '/x?id=small');
    cmp_ok($taken, '>', 50, '... tokens alone have room');
    is(status_of($r), '503 UNAVAILABLE', '... up to a point');
    is(status_of(one('evict1', $uri)), '409 NOT_KEPT',
       '... and none is forgotten');
    is(status_of(one('small0', '/x?id=small')), '409 NOT_KEPT', '... not one');
    is(executions('small'), $taken, '... each executed once');
    $n->stop;
    undef $c;
}


# --- what has expired makes room --------------------------------------------

# A zone must be full before the first one has expired, so a slow machine gets
# longer windows.

sub in_some_window {
    my ($code) = @_;

    for my $window (0.6, 2, 6, 20, 60, 180) {
        return if $code->($window);
    }

    fail('a zone is full in three minutes');
}


# Round after round of a zone full of tokens that nobody asks for again. Sizes
# vary, so that what is left has holes.

my @sizes = (10, 200, 700, 3000, 6000, 12000);

in_some_window(sub {
    my ($window) = @_;
    my (@taken, @executed);

    start_nginx('zone=z:512k', 'idempotency_window ' . 1000 * $window . 'ms;');

    my $in_time = 1;

    for my $round (1 .. 6) {
        my $id = "round$window-$round";
        my $from = time;
        my $taken = 0;

        while (1) {
            my $size = $sizes[($taken * 7 + ($taken >> 3)) % @sizes];
            my $r = one("r$round-$taken", "/x?id=$id&size=$size");

            last if $r->{status} != 200;
            $taken++;
            $in_time = time - $from < $window or last;
        }

        last if !$in_time;

        push @taken, $taken;
        push @executed, executions($id);

        # the window of the last one, and nothing else, has to pass
        sleep $window + 0.05;
    }

    $n->stop;
    undef $c;
    return 0 if !$in_time;

    is_deeply(\@executed, \@taken, 'round after round, all that is taken is '
                                   . 'executed');
    is(scalar(grep { $_ >= $taken[0] } @taken), 6,
       '... each time as many as at first') or diag("@taken");
    return 1;
});


# Mixed windows: what stays has its place.

in_some_window(sub {
    my ($window) = @_;

    start_nginx('zone=z:256k', 'location /short { proxy_pass '
                               . 'http://$TEST_NGINX_BACKEND; '
                               . 'idempotency_window ' . 1000 * $window . 'ms; }');

    my $half = 15;
    my $keep = "keep$window";
    my $kept = grep { status_of(one("keep$_", "/x?id=$keep&size=3000"))
                      eq '200 NEW' } 1 .. $half;

    my $from = time;
    my ($short) = fill('short', '/short?id=short&size=3000');
    my $full = status_of(one('next', '/x?id=next&size=3000'));

    if (time - $from >= $window) {
        $n->stop;
        undef $c;
        return 0;
    }

    is($kept, $half, 'some that stay');
    cmp_ok($short, '>', 5, '... and some that do not, up to the end');
    is($full, '503 UNAVAILABLE', '... full');

    ok(until_true {
        status_of(one('next', '/x?id=next&size=3000')) eq '200 NEW'
    }, '... what has expired makes room, though nobody asks for it');

    # they end as they came, one after the other
    sleep $window;

    my ($again) = fill('again', '/short?id=again&size=3000');
    cmp_ok($again, '>=', $short - 1, '... all of it');

    my @r = map { one("keep$_", "/x?id=$keep&size=3000") } 1 .. $half;
    is(scalar(grep { status_of($_) eq '200 REPLAYED' } @r), $half,
       '... and what stays is still there');
    is(executions($keep), $half, '... executed once');
    $n->stop;
    return 1;
});

done_testing();
