#!/usr/bin/perl

# docs/directives.md, idempotency_api, of a zone with something behind it: what
# this machine's memory does not know is asked for there, listed, forgotten and
# settled there; and what is told of it.

use lib 't/lib';
use Idempotency;
use Restart;

use JSON::PP qw(decode_json);

plan(skip_all => no_state()) if no_state();

my $server = <<'EOC';
    idempotency zone=z;

    location / { proxy_pass http://$TEST_NGINX_BACKEND; }
    location /reject { idempotency_in_progress reject; proxy_pass http://$TEST_NGINX_BACKEND; }
    location /idem/ { idempotency_api write=on; }
    location = /outcome { idempotency_api; }
EOC

my $n;
my $records = '/idem/zones/z/records';
my @me = (headers => ['Authorization: Bearer me']);

sub names { return "$_[0]->{status} " . ($_[0]->{body} =~ /"type":"urn:idempotency:(\w+)"/ ? $1 : '-') }

sub zone { return decode_json($n->get('/idem/zones/z')->{body}) }

sub row { return decode_json($n->get("$records?key=$_[0]")->{body}) }

sub walk {
    my ($args) = @_;

    my $next = "$records?$args";
    my @rows;

    while ($next) {
        my $r = $n->get($next);

        is($r->{status}, 200, 'a page') if $r->{status} != 200;
        push @rows, map decode_json($_), split /\n/, $r->{body};
        ($next) = ($r->header('Link') // '') =~ /^<([^>]*)>; rel="next"$/;
    }

    return @rows;
}

sub caught_up { until_true { my $s = zone()->{store}; $s->{up} && $s->{undelivered} == 0 } }

for my $mode (qw(batched strict)) {
    $n->stop if $n;
    $n = outliving(workers => 2, zone => with_state($mode), server => $server,
                   allow => qr/exited on signal/);

    ok(caught_up(), "$mode: it is told all");

    my $store = zone()->{store};

    is($store->{kind}, 'file', 'its kind');
    is($store->{sync}, $mode, 'its mode');

    $n->post("/p$_", key => "k$_", body => $_, @me) for 1 .. 150;
    $n->post('/reject?id=doubt&close=1', key => $_, @me) for qw(d1 d2 d3);

    ok(caught_up(), 'what came since, too');
    cmp_ok(zone()->{store}{latency}{count}, '>', 0, 'how long that took is known');

    my %before = map { $_->{token} => $_ } walk('limit=1000');

    is(scalar keys %before, 153, 'in memory');

    # another life: nothing is in memory

    $n->restart('KILL');
    ok(caught_up(), 'after a restart');
    is(scalar(walk('limit=1000')), 0, '... memory is empty');

    for my $limit (7, 64, 1000) {
        my @rows = walk("tier=backing&limit=$limit");
        my %seen;

        $seen{$_->{token}}++ for @rows;
        is(scalar @rows, 153, "limit=$limit: all are listed of the store behind");
        is(scalar(grep { $_ != 1 } values %seen), 0, '... once');
        is(scalar(grep { !$before{$_} } keys %seen), 0, '... and no others');
    }

    my ($one) = grep { $_->{outcome} eq 'done' } walk('tier=backing');
    my $was = $before{$one->{token}};

    is($one->{$_}, $was->{$_}, "$_ is as it was") for qw(fingerprint status fence);
    cmp_ok(abs($one->{recorded} - $was->{recorded}), '<', 2, 'so is when it was recorded');
    cmp_ok(abs($one->{expires} - $was->{expires}), '<', 2, '... and ends');
    is($n->request('HEAD', "$records?tier=backing&limit=3")->{status}, 200, 'HEAD');

    my $row = row('k1');

    is($row->{outcome}, 'done', 'one by its key');
    is($row->{fingerprint}, $before{$row->{token}}{fingerprint}, '... is the one');
    is(names($n->get("$records?key=none")), '404 no_record', 'one that is nowhere');
    is(decode_json($n->get('/outcome', key => 'k2', @me)->{body})->{outcome}, 'done', '/outcome');
    is($n->get('/outcome', key => 'k2')->{status}, 404, '... for nobody else');
    is(decode_json($n->get('/outcome', key => 'none', @me)->{body})->{outcome}, 'unknown', '... unknown');

    # forgotten there, as the next life shows

    is($n->request('DELETE', $records, key => 'k3')->{status}, 204, 'DELETE');
    is(names($n->get("$records?key=k3")), '404 no_record', '... it is gone');
    is(names($n->request('DELETE', $records, key => 'k3')), '404 no_record', '... once');
    is(names($n->request('DELETE', $records, key => 'none')), '404 no_record', 'one that is nowhere');

    # settled there

    is(row('d1')->{outcome}, 'in_doubt', 'one in doubt');
    is($n->request('PUT', $records, key => 'd1', body => 'done')->{status}, 204, '... is done');
    is($n->request('PUT', $records, key => 'd2', body => 'released')->{status}, 204, '... another is released');
    is(names($n->request('PUT', $records, key => 'k4', body => 'done')), '409 not_in_doubt', 'what is not in doubt');
    is(names($n->request('PUT', $records, key => 'none', body => 'done')), '404 no_record', 'what is nowhere');

    ok(caught_up(), 'all that is told');
    $n->restart('KILL');
    ok(caught_up(), '... and remembered');

    is(names($n->get("$records?key=k3")), '404 no_record', 'what was forgotten');
    is(row('d1')->{outcome}, 'not_kept', 'what was settled');
    is(names($n->get("$records?key=d2")), '404 no_record', 'what was released');
    is(row('d3')->{outcome}, 'in_doubt', 'what nobody has touched');
    is(scalar(walk('tier=backing')), 151, 'and that is all');

    # pending when all died

    my $c = $n->start(POST => "/reject?id=gone$mode&gate=1", key => 'gone', @me);
    held("gone$mode");
    ok(caught_up(), 'one that is pending');
    my ($pending) = grep { $_->{outcome} eq 'pending' } walk('tier=backing');
    like($pending->{owner}, qr/^[0-9a-f]{16}$/, '... has an owner there');
    is($pending->{expires}, undef, '... and no end');
    $n->restart('KILL');
    go("gone$mode");
    is(row('gone')->{outcome}, 'in_doubt', '... is in doubt when that has died');

    # it fails

    unlink glob($n->root . '/z.db*');
    until_true { $n->post('/x', key => 'fails' . rand)->{status} == 503 };
    is(zone()->{store}{up}, JSON::PP::false, 'it is down');
    like($n->get('/idem/metrics')->{body}, qr/^nginx_idempotency_store_up\{zone="z"\} 0$/m, '... in metrics');
    cmp_ok(zone()->{unavailable}, '>', 0, '... and so is counted');
    is(names($n->get("$records?key=k5")), '503 unavailable', 'one that only it knows');
    is(names($n->get("$records?tier=backing")), '503 unavailable', 'all that it knows');

    $n->{allow} = qr/exited on signal|is unavailable/;
}

# --- a Redis, that others share ---------------------------------------------

SKIP: {
    require Redis;

    my ($program) = Redis->programs or skip 'no Redis', 1;
    my $redis = Redis->new(program => $program);
    my $zone = 'idempotency_redis r { server unix:' . $redis->path . '; prefix "a*[b]\\\\?:"; timeout 5s; } '
             . "idempotency_zone zone=z:16m redis=r;\n";

    $n->stop;

    my ($one, $two) = map nginx(zone => $zone, server => $server, workers => 2), 1, 2;

    $n = $one;
    $n->post("/p$_", key => "k$_", body => $_, @me) for 1 .. 300;
    $n->post('/reject?id=doubt&close=1', key => $_, @me) for qw(d1 d2);
    until_true { zone()->{store}{undelivered} == 0 };
    is(zone()->{store}{kind}, 'redis', 'a Redis');

    my %here = map { $_->{token} => $_ } walk('limit=1000');

    # what others have there is theirs
    $redis->command(SET => "a*[b]\\?:z:$_", 'x' x 200) for 'A' x 43, 'stamps';
    $redis->command(SET => 'axbb?:z:' . 'A' x 43, 'I2D' . 'x' x 200);

    $n = $two;
    is(scalar(walk('limit=1000')), 0, 'another nginx knows nothing');

    for my $limit (1, 50, 1000) {
        my %there = map { $_->{token} => $_ } walk("tier=backing&limit=$limit");

        is(join(' ', sort keys %there), join(' ', sort keys %here), "limit=$limit: but its Redis does");

        my ($is) = grep { $_->{outcome} eq 'done' } values %there;
        my $was = $here{$is->{token}};

        is($is->{$_}, $was->{$_}, "... $_") for qw(fingerprint status fence);
        cmp_ok(abs($is->{$_} - $was->{$_}), '<', 2, "... $_") for qw(recorded expires);
    }

    is(row('k1')->{outcome}, 'done', 'one by its key');
    is($n->request('DELETE', $records, key => 'k2')->{status}, 204, '... forgotten');
    is($n->request('PUT', $records, key => 'd1', body => 'done')->{status}, 204, '... settled');
    is($n->request('PUT', $records, key => 'd2', body => 'released')->{status}, 204, '... released');

    until_true { zone()->{store}{undelivered} == 0 };
    is(scalar(keys %{{ map { $_->{token} => 1 } walk('tier=backing') }}), 300, '... there, too');
    is(decode_json($n->get('/outcome', key => 'k3', @me)->{body})->{outcome}, 'done', '/outcome');

    my $c = $one->start(POST => '/reject?id=far&gate=1', key => 'far', @me);
    held('far');
    is(row('far')->{outcome}, 'pending', 'one that is pending at the other one');
    is($n->get('/outcome', key => 'far', @me)->{status}, 200, '... and told of to its client');
    go('far');
    $c->response;
    ok(until_true { row('far')->{outcome} eq 'done' }, '... then done');

    $redis->kill;
    until_true { !zone()->{store}{up} || ($n->post('/x', key => rand), 0)[1] };
    is(names($n->get("$records?tier=backing")), '503 unavailable', 'when it is gone');

    $_->{allow} = qr/idempotency_redis|is unavailable|did not list/ for $one, $two;
    $one->stop;
}

if (Idempotency::in_memory()) {
    my $plain = nginx(server => 'location /a/ { idempotency_api; }');

    is(names($plain->get('/a/zones/z/records?tier=backing')), '400 no_backing', 'nothing stands behind');
    is(names($plain->get('/a/zones/z/records?tier=else')), '400 bad_argument', 'no tier');
    is($plain->get('/a/zones/z/records?tier=memory')->{status}, 200, 'memory is one');
    unlike($plain->get('/a/metrics')->{body}, qr/store_|undelivered/, 'no metrics of it');
    $plain->stop;
}

ok($n->stop, 'the log is clean');

done_testing();
