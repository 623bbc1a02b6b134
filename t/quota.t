#!/usr/bin/perl

# SPEC, idempotency_quota: one client can't fill the zone for all.

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;
use Stress;

use Time::HiRes qw(time sleep);

my $n = nginx(workers => 2, zone => 0, http => <<'EOC', server => <<'EOC');
    idempotency_zone zone=z:1m;
    idempotency_zone zone=y:1m;
EOC
    idempotency zone=z;
    idempotency_quota 3;
    set_real_ip_from 127.0.0.1;
    real_ip_header X-From;
    add_header X-Status $idempotency_status always;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /five { idempotency_quota 5;
                     proxy_pass http://$TEST_NGINX_BACKEND; }
    location /off { idempotency_quota off;
                    proxy_pass http://$TEST_NGINX_BACKEND; }
    location /y { idempotency zone=y;
                  proxy_pass http://$TEST_NGINX_BACKEND; }
    location /string { idempotency_quota 2 $http_x_user;
                       proxy_pass http://$TEST_NGINX_BACKEND; }
    location /address { idempotency_quota 3 $remote_addr;
                        proxy_pass http://$TEST_NGINX_BACKEND; }
    location /short { idempotency_window 2s;
                      proxy_pass http://$TEST_NGINX_BACKEND; }
    location /code { idempotency_status limited=503;
                     proxy_pass http://$TEST_NGINX_BACKEND; }
    location /dry { idempotency_dry_run on;
                    proxy_pass http://$TEST_NGINX_BACKEND; }
    location /content { idempotency_missing_key content;
                        proxy_pass http://$TEST_NGINX_BACKEND; }
    location /reject { idempotency_in_progress reject;
                       proxy_pass http://$TEST_NGINX_BACKEND; }
EOC

my $keys = 0;

sub post {
    my ($from, $uri, %o) = @_;

    $o{key} //= 'k' . ++$keys unless exists $o{key};
    $uri .= ($uri =~ /\?/ ? '&' : '?') . 'id=' . ($o{id} // 'x');

    return $n->post($uri, body => $o{body} // 'b', key => $o{key},
                    headers => [ "X-From: $from", @{$o{headers} // []} ]);
}

sub told { my $r = shift; return status_of($r) . ' ' . (problem($r) // '') }

my $limited = '429 LIMITED limited';


# --- so many, and no more ---------------------------------------------------

{
    my @k = map { "one$_" } 1 .. 3;

    is(status_of(post('1.1.1.1', '/x', key => $_)), '200 NEW', "$_ of three")
        for @k;

    my $r = post('1.1.1.1', '/x', key => 'one4', id => 'four');
    is(told($r), $limited, 'a fourth is refused');
    ok($r->header('Retry-After') > 86300 && $r->header('Retry-After') <= 86400,
       '... until the oldest ends: ' . $r->header('Retry-After'));
    is(executions('four'), 0, '... not executed');

    is(status_of(post('1.1.1.1', '/x', key => $_)), '200 REPLAYED',
       "a repeat of $_ is answered") for @k;
    is(told(post('1.1.1.1', '/x', key => 'one1', body => 'c')),
       '409 CONFLICT conflict', 'and a conflict told');

    is(status_of(post('1.1.1.2', '/x')), '200 NEW', 'another is not concerned');

    # by zone and value, wherever it is
    is(status_of(post('1.1.1.1', '/five')), '200 NEW', 'five elsewhere: one,')
        for 1, 2;
    is(told(post('1.1.1.1', '/five')), $limited, '... not three, as all count');
    is(told(post('1.1.1.1', '/address')), $limited, '... by $remote_addr, too');
    is(status_of(post('1.1.1.1', '/y')), '200 NEW', 'another zone');
    is(status_of(post('1.1.1.1', '/off')), '200 NEW', 'no quota') for 1 .. 4;
    is(told(post('1.1.1.1', '/code')), '503 LIMITED limited', 'its status');
    is(status_of(post('1.1.1.1', '/dry')), '200 LIMITED_DRY_RUN', 'a dry run');
    is(told(post('1.1.1.1', '/content', key => undef)), $limited,
       'content counts as well');
    is(status_of(post('1.1.1.3', '/content', key => undef, body => $_)),
       '200 NEW', 'content of another') for 1 .. 3;
    is(told(post('1.1.1.3', '/content', key => undef, body => 4)), $limited,
       '... up to its quota');
    is(status_of(post('1.1.1.3', '/content', key => undef, body => 3)),
       '200 REPLAYED', '... a repeat is answered');
}


# --- who is one -------------------------------------------------------------

{
    # IPv6: a network of 64 bits is one
    is(status_of(post("2001:db8::$_", '/x')), '200 NEW', "2001:db8::$_")
        for 1 .. 3;
    is(told(post('2001:db8::ffff:ffff:ffff:ffff', '/x')), $limited,
       'of the same /64');
    is(status_of(post('2001:db8:0:1::1', '/x')), '200 NEW', 'of the next one');

    # an IPv4 address in IPv6 is that address
    is(status_of(post('::ffff:3.3.3.3', '/x')), '200 NEW', '::ffff:3.3.3.3')
        for 1 .. 2;
    is(status_of(post('3.3.3.3', '/x')), '200 NEW', 'is 3.3.3.3');
    is(told(post('3.3.3.3', '/x')), $limited, '... and has three');
    is(status_of(post('::ffff:3.3.3.4', '/x')), '200 NEW', '3.3.3.4 is not');

    # a string of one's own; who has none isn't counted
    is(status_of(post('4.4.4.4', '/string', headers => ['X-User: a'])),
       '200 NEW', 'user a') for 1, 2;
    is(told(post('4.4.4.5', '/string', headers => ['X-User: a'])), $limited,
       '... has two, from anywhere');
    is(status_of(post('4.4.4.4', '/string', headers => ['X-User: b'])),
       '200 NEW', 'user b');
    is(status_of(post('4.4.4.4', '/string')), '200 NEW', 'nobody') for 1 .. 3;
}


# --- a place comes back -----------------------------------------------------

{
    # with its window
    my ($r, $from);

    for my $i (1 .. 20) {
        my $begun = time;

        $from = "5.5.6.$i";
        post($from, '/short') for 1 .. 3;
        $r = post($from, '/short', id => 'late');

        # on a busy machine the first one may have ended by now
        last if time - $begun < 1.9;
    }

    is(told($r), $limited, 'all taken');
    like($r->header('Retry-After') // '', qr/^[12]$/, '... for a moment');
    sleep $r->header('Retry-After') // 0;
    is(status_of(post($from, '/short', id => 'late')), '200 NEW',
       'Retry-After is right');

    # released, whatever the reason
    for my $query ('status=429', 'h=X-Accel-Idempotency:%20release') {
        is(post('5.5.5.6', "/x?$query")->header('X-Status'), 'NEW',
           "released, $query") for 1 .. 5;
    }

    # pending ones count
    my @c = map {
        $n->start('POST', "/reject?id=held&gate=1", key => "p$_", body => 'b',
                  headers => ['X-From: 5.5.5.7'])
    } 1 .. 3;
    held('held', 3);
    is(told(post('5.5.5.7', '/x')), $limited, 'three are pending');
    my $r2 = $n->post('/reject?id=held&gate=1', key => 'p1', body => 'b',
                      headers => ['X-From: 5.5.5.7']);
    is(told($r2), '409 IN_PROGRESS in_progress', '... repeats are told so');
    go('held');
    is(status_of($_->response), '200 NEW', '... one ends') for @c;
    is(told(post('5.5.5.7', '/x')), $limited, '... and is still on record');
}


# --- one client can't fill the zone for all ---------------------------------

{
    my $refused = 0;

    for (1 .. 400) {
        my $r = post('6.6.6.6', '/x?size=5000');
        $refused++ if $r->{status} == 429;
    }

    is($refused, 397, 'one who asks for much gets three');
    is(status_of(post("7.7.7.$_", '/x?size=5000')), '200 NEW',
       "there is room for another ($_)") for 1 .. 20;
}

$n->stop;
done_testing();
