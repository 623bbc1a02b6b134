#!/usr/bin/perl

# SPEC, idempotency_key_format uuid7 and idempotency_key_max_age: a key tells
# when it was made, so that no retry, however late, executes twice.

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;
use Stress;

use Time::HiRes qw(time sleep);

my $n = nginx(workers => 2, allow => qr/zone "tiny" is full|unavailable/,
              http => <<'EOC', server => <<'EOC');
    idempotency_zone zone=tiny:32k;

    # the same place with other settings, as after a reload
    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1;
        server_name localhost;
        idempotency zone=z;
        idempotency_key_format uuid7;
        idempotency_key_max_age 10s;
        add_header X-Status $idempotency_status always;
        location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    }

    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_2;
        server_name window;
        idempotency zone=z;
        idempotency_key_format uuid7;
        idempotency_window 30m;
        add_header X-Status $idempotency_status always;
        location / { proxy_pass http://$TEST_NGINX_BACKEND; }
        location /longer { idempotency_window 2h;
                           proxy_pass http://$TEST_NGINX_BACKEND; }
    }
EOC
    idempotency zone=z;
    idempotency_key_format uuid7;
    idempotency_key_max_age 1h;
    add_header X-Status $idempotency_status always;
    add_header X-Expires "$idempotency_expires" always;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /short { idempotency_window 1s; idempotency_key_max_age 7s;
                      proxy_pass http://$TEST_NGINX_BACKEND; }
    location /window { idempotency_window 30m; idempotency_key_max_age 1m;
                       proxy_pass http://$TEST_NGINX_BACKEND; }
    location /code { idempotency_status expired=410;
                     proxy_pass http://$TEST_NGINX_BACKEND; }
    location /dry { idempotency_dry_run on;
                    proxy_pass http://$TEST_NGINX_BACKEND; }
    location /tiny { idempotency zone=tiny; idempotency_max_response 16k;
                     proxy_pass http://$TEST_NGINX_BACKEND;

                     location /tiny/pass {
                         idempotency_unavailable pass;
                         proxy_pass http://$TEST_NGINX_BACKEND;
                     } }
    location /content { idempotency_missing_key content;
                        proxy_pass http://$TEST_NGINX_BACKEND; }
EOC


# A key made so many seconds ago; a letter tells keys of one millisecond apart.

my $made = 0;

sub key {
    my ($ago, %o) = @_;

    my $t = sprintf '%012x', (time - $ago) * 1000;

    return substr($t, 0, 8) . '-' . substr($t, 8) . '-' . ($o{version} // 7)
           . sprintf('%03x-', $made++ % 4096) . ($o{variant} // 'a')
           . 'bcd-0123456789ab';
}

sub post {
    my ($at, $key, $id, %o) = @_;

    return $n->post("$at?id=$id", key => $key, body => 'b', %o);
}

sub told { my $r = shift; return status_of($r) . ' ' . (problem($r) // '') }


# --- what a key is ----------------------------------------------------------

for (['a key', key(0)], ['upper case', uc key(0)], ['quoted', '"' . key(0) . '"'],
     ['59 min old', key(59 * 60)], ['from 55 s ahead', key(-55)],
     map { ["variant $_", key(0, variant => $_)] } qw(8 9 a b A B))
{
    my ($name, $key) = @$_;
    (my $id = $name) =~ s/\W/-/g;

    is(status_of(post('/x', $key, $id)), '200 NEW', "$name: new");
    is(status_of(post('/x', $key, $id)), '200 REPLAYED', "$name: replayed");
    is(executions($id), 1, "$name: executed once");
}

for (['no uuid', 'abc'], ['from 2 min ahead', key(-120)],
     ['from long ahead', 'ffffffff-ffff-7000-8000-000000000000'],
     map({ ["version $_", key(0, version => $_)] } 0 .. 6, 8, 'a', 'f'),
     map({ ["variant $_", key(0, variant => $_)] } 0, 7, 'c', 'f'),
     ['longer', key(0) . '0'], ['shorter', substr key(0), 1],
     ['no hexadecimal', (key(0) =~ s/b/g/r)])
{
    my ($name, $key) = @$_;

    is(told(post('/x', $key, 'malformed')), '400 MALFORMED malformed', $name);
}

is(executions('malformed'), 0, 'none of them was executed');


# --- too old ----------------------------------------------------------------

for (['61 min old', key(61 * 60)], ['a day old', key(86400)],
     ['of 1970', '00000000-0000-7000-8000-000000000000'])
{
    my ($name, $key) = @$_;

    for (1, 2) {
        my $r = post('/x', $key, 'old');

        is(told($r), '409 EXPIRED expired', "$name: refused");
        ok(!$r->has('Retry-After'), '... for good');
    }

    is(told(post('/code', $key, 'old')), '410 EXPIRED expired', '... by status');
    is(status_of(post('/dry', $key, 'dry')), '200 EXPIRED_DRY_RUN',
       '... and noticed in a dry run');
}

is(executions('old'), 0, 'no old key was executed');

# by default the window is the age
{
    my @there = (port => $n->port(2));

    is(status_of(post('/x', key(29 * 60), 'age', @there)), '200 NEW',
       'younger than the window');
    is(told(post('/x', key(31 * 60), 'age', @there)), '409 EXPIRED expired',
       'older than the window');
    is(status_of(post('/longer', key(31 * 60), 'age', @there)), '200 NEW',
       "... not than another location's");
    is(told(post('/longer', key(121 * 60), 'age', @there)),
       '409 EXPIRED expired', '... which has one as well');
}

# without a key the content has no time of its own
is(status_of(post('/content', undef, 'content')), '200 NEW', 'no key');


# --- the later of two ends --------------------------------------------------

{
    # bound beyond its window, until it is too old
    my $key = key(0);
    my $first = post('/short', $key, 'short');
    is(status_of($first), '200 NEW', 'a window of 1 s, an age of 7 s');
    my $late = post('/x', $key, 'short');
    cmp_ok($late->header('X-Expires'), '<=', 7, '... it is bound for');

    my $end = time + 60;
    my ($r, $state) = (undef, 'bound');

    while (time < $end) {
        my $asked = time;
        $r = post('/short', $key, 'short');
        last if status_of($r) ne '200 REPLAYED';
        $state = 'beyond its window' if $asked > $end - 60 + 1.5;
        sleep 0.1;
    }

    is($state, 'beyond its window', '... bound beyond its window');
    is(told($r), '409 EXPIRED expired', '... and then too old, never fresh');
    is(executions('short'), 1, '... executed once');

    # and beyond its age, until its window ends: a bound token is answered
    $key = key(30);
    $first = post('/window', $key, 'window');
    is(status_of($first), '200 NEW', 'a window of 30 min, an age of 1 min');
    my $x = post('/window', $key, 'window')->header('X-Expires');
    ok($x > 1700 && $x <= 1800, "... bound for its window: $x s");

    # elsewhere it would be too old by now
    $key = key(20);
    is(status_of(post('/x', $key, 'bound')), '200 NEW', 'bound elsewhere');
    my @there = (port => $n->port(1));
    is(status_of(post('/x', $key, 'bound', @there)), '200 REPLAYED',
       '... answered, though too old here');
    is(told($n->post('/x?id=bound', key => $key, body => 'other', @there)),
       '409 CONFLICT conflict', '... a conflict as well');
    is(told(post('/x', key(20), 'bound', @there)), '409 EXPIRED expired',
       '... any other is too old');
    is(executions('bound'), 1, '... executed once');

    # its record ends by another clock, and may have a few milliseconds before
    is(told(post('/x', key(9.93), 'clocks', @there)), '409 EXPIRED expired',
       'too old a moment before its record can have ended');
}


# --- released: fresh, and perhaps too old by then ---------------------------

{
    my $key = key(0);
    is(status_of(post('/x', $key, 'free', headers => [])), '200 NEW', 'new');
    my $r = $n->post('/x?id=free2&status=429', key => my $again = key(58 * 60),
                     body => 'b');
    is(status_of($r), '429 NEW', 'released');
    is(status_of($n->post('/x?id=free2&status=429', key => $again,
                          body => 'b')), '429 NEW', '... and fresh');
    is(told($n->post('/short?id=free2', key => $again, body => 'b')),
       '409 EXPIRED expired', '... but not where it is too old');
}


# --- a zone that is full lets no old key in ---------------------------------

{
    my $r;

    for (1 .. 500) {
        $r = post('/tiny', key(0), 'tiny');
        last if $r->{status} != 200;
    }

    is(told($r), '503 UNAVAILABLE unavailable', 'a full zone');
    is(status_of(post('/tiny/pass', key(0), 'pass')), '200 UNAVAILABLE',
       '... passes what may be new');
    is(executions('pass'), 1, '... executed');
    is(told(post('/tiny/pass', key(7200), 'pass')), '409 EXPIRED expired',
       '... but nothing old');
    is(executions('pass'), 1, '... not executed');
}

$n->stop;
done_testing();
