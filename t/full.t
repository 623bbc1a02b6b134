#!/usr/bin/perl

# docs/guarantees.md, "What happens if", a full zone: nothing is executed whose
# outcome could not be kept, nothing kept is lost, and what has expired makes
# room by itself.

use lib 't/lib';
use Idempotency;
use Stress;

use Time::HiRes qw(time sleep);

# what is behind it is told, and then it may leave: see t/restart.t
plan(skip_all => 'a zone with something behind it is not full') if !in_memory();

my ($n, $c);

sub start_nginx {
    my ($zone, $window) = @_;

    $n->stop if $n;
    undef $c;
    $n = nginx(zone => 0, http => "idempotency_zone zone=z:$zone;",
               server => <<'EOC' . "idempotency_window $window;");
    idempotency zone=z;
    idempotency_max_response 16k;
    keepalive_requests 100000;
    add_header X-Status $idempotency_status always;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /pass { idempotency_unavailable pass; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /uuid7 { idempotency_unavailable pass; idempotency_key_format uuid7;
                      proxy_pass http://$TEST_NGINX_BACKEND; }
    location /code { idempotency_status unavailable=429; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /dry { idempotency_dry_run on; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /similar { idempotency_similar reject; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /long { idempotency_window 1d; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /figures/ { idempotency_api; }
EOC
}


# One connection for all: there are many.

sub one {
    my ($key, $uri, $body) = @_;

    $c = $n->connect if !$c || $c->{eof};

    return ask($c, 'POST', $uri, key => $key, body => $body // 'b')->response;
}


# Takes new tokens until one is refused; how many were taken, and the refusal.

sub fill {
    my ($prefix, $uri) = @_;

    for (my $i = 0; ; $i++) {
        my $r = one("$prefix$i", $uri);

        return ($i, $r) if told($r) ne '200 NEW' || $i == 20000;
    }
}


# --- what a full zone says and does -----------------------------------------

start_nginx('256k', '1d');

my $uri = '/x?id=full&size=3000';
my ($taken, $r) = fill('full', $uri);

cmp_ok($taken, '>', 20, 'a zone of 256k takes some');
is(told($r) . ' ' . problem($r), '503 UNAVAILABLE unavailable',
   '... and refuses one more');

# a crowd is told so many times that it does not come back at once
my %after = map { (one('more', $uri)->header('Retry-After') => 1) } 1 .. 60;
is(join(' ', grep { !/^(?:[5-9]|1[0-5])$/ } keys %after), '',
   '... when to come back: in 5 to 15 seconds');
cmp_ok(keys %after, '>', 3, '... not all at once');
is(executions('full'), $taken, '... nothing was executed that was not taken');
like($n->log, qr/\[error\].*idempotency: refused with status 503, unavailable/,
     '... it is logged');

my @lost = grep {
    my $r = one("full$_", $uri);
    told($r) ne '200 REPLAYED' || $r->{body} ne pattern(3000, $_ + 1);
} 0 .. $taken - 1;

is("@lost", '', '... what it knows is replayed, all of it');
is(executions('full'), $taken, '... and not executed');

for (['... and bound', '409 CONFLICT', 'full0', $uri, 'other'],
     ['idempotency_status unavailable', '429 UNAVAILABLE', 'more', '/code'],
     ['a dry run passes', '200 UNAVAILABLE_DRY_RUN', 'more', '/dry?id=dry'],
     ['idempotency_unavailable pass', '200 UNAVAILABLE', 'passes', '/pass?id=passes'],
     ['... passes each time', '200 UNAVAILABLE', 'passes', '/pass?id=passes'],
     ['... a new uuid7 as well', '200 UNAVAILABLE', Idempotency::uuid7(0), '/uuid7'],
     ['... but no old one', '409 EXPIRED', Idempotency::uuid7(2 * 86400), '/uuid7'])
{
    my ($name, $told, @ask) = @$_;

    is(told(one(@ask)), $told, $name);
}

is(join(' ', map { executions($_) } qw(dry passes /uuid7)), '1 2 1', '... executed');
like($n->log, qr/\[error\].*idempotency: passed unprotected.*zone: "z"/, '... and it is logged');

# what needs no memory still works
is($n->get('/x?id=get')->{status}, 200, 'a GET is not concerned');
is($n->post('/x?id=nokey')->{status}, 200, '... nor what has no key');


# A pending one keeps its place: what was let in can be recorded.

start_nginx('256k', '1d');

my $held = '/x?id=held&size=15000&gate=1';
my $own = $n->start('POST', $held, key => 'held', body => 'b');
held('held');
cmp_ok((fill('hold', '/x?id=hold&size=15000'))[0], '>', 3, 'full while one is pending');
go('held');
is(told($own->response, $r = one('held', $held)), '200 NEW, 200 REPLAYED', '... which ends, and is recorded');
ok($r->{body} eq pattern(15000, 1), '... all of it');
$own->close;


# --- evict=responses --------------------------------------------------------

start_nginx('256k evict=responses', '1d');

$uri = '/x?id=evict&size=3000';
is(scalar(grep { told(one("evict$_", $uri)) eq '200 NEW' } 1 .. 150), 150,
   'evict=responses: more than there is room for');

my @is = map { told($r = one("evict$_", $uri)) } reverse 1 .. 150;
my $kept = grep { $_ eq '200 REPLAYED' } @is;

cmp_ok($kept, '>', 10, '... some are replayed');
is_deeply(\@is, [ ('200 REPLAYED') x $kept, ('409 NOT_KEPT') x (150 - $kept) ],
          '... the oldest are not kept');
is(problem($r), 'not_kept', '... they say so');
like($r->{body}, qr/\b200\b/, '... and name the status');
is(executions('evict'), 150, '... but all stay bound');
is(told(one('evict1', $uri, 'other')), '409 CONFLICT',
   '... to what they are');

# tokens go on being taken, up to where not even they have room
($taken, $r) = fill('small', '/x?id=small');
cmp_ok($taken, '>', 50, '... tokens alone have room');
is(told($r, one('evict1', $uri), one('small0', '/x?id=small')), '503 UNAVAILABLE, 409 NOT_KEPT, 409 NOT_KEPT',
   '... up to a point, and none is forgotten');
is(executions('small'), $taken, '... each executed once');


# --- what has expired makes room --------------------------------------------

# A zone must be full before the first one has expired, so a slow machine gets
# longer windows.

sub in_some_window {
    my ($zone, $code) = @_;

    for my $window (0.6, 2, 6, 20, 60, 180) {
        start_nginx($zone, 1000 * $window . 'ms');
        return if $code->($window);
    }

    fail('a zone is full in three minutes');
}


# Round after round of a zone full of tokens that nobody asks for again. Sizes
# vary, so that what is left has holes.

in_some_window('512k', sub {
    my ($window) = @_;

    my @sizes = (10, 200, 700, 3000, 6000, 12000);
    my (@taken, @executed);

    for my $round (1 .. 6) {
        my $id = "round$window-$round";
        my ($i, $from) = (0, time);

        $i++ while one("$round-$i", "/x?id=$id&size="
                       . $sizes[($i * 7 + ($i >> 3)) % @sizes])->{status} == 200
                   && time - $from < $window;
        return 0 if time - $from >= $window;

        push @taken, $i;
        push @executed, executions($id);

        # the window of the last one, and nothing else, has to pass
        sleep $window + 0.05;
    }

    is_deeply(\@executed, \@taken,
              'round after round, all that is taken is executed');
    # one that ends late leaves a hole
    is(scalar(grep { $_ >= $taken[0] - 2 } @taken), 6,
       '... each time nearly as many as at first') or diag("@taken");
    return 1;
});


# Mixed windows: what stays has its place.

in_some_window('256k', sub {
    my ($window) = @_;

    my $uri = "/long?id=long$window&size=3000";
    my $kept = grep { told(one("keep$_", $uri)) eq '200 NEW' } 1 .. 15;
    my $from = time;
    my ($short) = fill('short', '/x?id=short&size=3000');
    my $full = told(one('next', $uri));

    return 0 if time - $from >= $window;

    is($kept, 15, 'some that stay');
    cmp_ok($short, '>', 5, '... and some that do not, up to the end');
    is($full, '503 UNAVAILABLE', '... full');

    ok(until_true { told(one('next', $uri)) eq '200 NEW' },
       '... what has expired makes room, though nobody asks for it');

    # they end as they came, one after the other
    sleep $window;

    cmp_ok((fill('again', '/x?id=again&size=3000'))[0], '>=', $short - 1,
           '... all of it');
    is(scalar(grep { told(one("keep$_", $uri)) eq '200 REPLAYED' } 1 .. 15),
       15, '... and what stays is still there');
    is(executions("long$window"), 16, '... executed once');
    return 1;
});

# Where a key has been claimed, and there is no room to note what it was sent
# with, it is fresh again.

# A request takes two places: with one that is taken before, the last one that is
# left is that of a key, or is none.

my $fresh = 0;

for my $before (0, 1) {
    start_nginx('32k', '1d');

    my $id = "similar$before";
    my ($i, $r) = 0;

    one('one', '/x') if $before;

    do { $r = one("s$i", "/similar?id=$id", "i=$i") }
        until told($r) ne '200 NEW' || ++$i == 500;

    is(told($r), '503 UNAVAILABLE', 'idempotency_similar: full');
    like($n->get('/figures/zones/z')->{body}, qr/"unavailable":1,"abandoned"/,
         '... and counted');
    is(executions($id), $i, '... what was refused was not executed');
    is(told(one('s0', "/similar?id=$id", 'i=0')), '200 REPLAYED',
       '... what was stays');
    $fresh++ if told(one("s$i", '/x', 'other')) eq '200 NEW';
}

is($fresh, 1, '... and the key that had room is fresh again');

$n->stop;
done_testing();
